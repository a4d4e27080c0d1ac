"""Tables that other releases of Lance wrote (see tests/fixtures/make_tables.py)."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from lancekeep.domain.dataset_files import deletion_file_name
from lancekeep.domain.manifest import DeletionFileType, IndexMetadata
from lancekeep.domain.naming import ManifestName
from lancekeep.format.deletions import read
from lancekeep.format.row_ids import decode_row_ids
from lancekeep.format.schema import arrow_schema, primary_key
from lancekeep.format.table_version import TableVersion, parse_transaction, serialize_transaction

TABLES = sorted((Path(__file__).parents[1] / "fixtures" / "tables").glob("*.zip"))
OPERATIONS = {"Overwrite", "CreateIndex", "Delete", "UpdateConfig", "Merge", "ReserveFragments", "Rewrite"}


@pytest.fixture(params=TABLES, ids=lambda path: path.stem)
def table(request: pytest.FixtureRequest) -> tuple[str, dict[str, bytes]]:
    """The release and the files of a table."""
    with zipfile.ZipFile(request.param) as archive:
        return request.param.stem, {name: archive.read(name) for name in archive.namelist()}


def test_manifests_of_older_releases_decode(table: tuple[str, dict[str, bytes]]) -> None:
    release, files = table
    contents = {path: content for path, content in files.items() if path.endswith(".manifest")}
    versions = {path: TableVersion.parse(content, path) for path, content in contents.items()}
    for path, version in versions.items():
        name = ManifestName.parse(path.rpartition("/")[2])
        assert name is not None
        assert version.manifest.version == name.version
        assert str(version.manifest.writer_version) == f"lance {release}"
        again = version.serialize()
        if release != "0.30.0":  # its files begin with the transaction, which no field of the manifest names
            assert again == contents[path]
        assert TableVersion.parse(again, path).manifest.fragments == version.manifest.fragments
    latest = max(versions.values(), key=lambda version: version.manifest.version)
    schema = arrow_schema(latest.manifest.fields, latest.manifest.schema_metadata)
    assert schema.names == ["id", "s", "v", "d", "t", "twice"]
    assert schema.metadata == {b"k": b"v"}
    assert [field.name for field in primary_key(latest.manifest.fields)] == ["id"]
    assert sum(fragment.live_rows for fragment in latest.manifest.fragments) == 16_000 - 2 - 5_333
    assert [index.name for index in latest.indices if isinstance(index, IndexMetadata)] == ["id_idx"]


def test_transactions_of_older_releases_decode(table: tuple[str, dict[str, bytes]]) -> None:
    _, files = table
    operations = set()
    for path, content in files.items():
        if path.endswith(".txn"):
            transaction = parse_transaction(content, path)
            assert path == f"_transactions/{transaction.read_version}-{transaction.uuid}.txn"
            assert serialize_transaction(transaction) == content
            operations.add(type(transaction.operation).__name__)
    assert operations == OPERATIONS


def test_deletion_files_and_row_ids_of_older_releases_decode(table: tuple[str, dict[str, bytes]]) -> None:
    release, files = table
    kinds, sequences = set(), 0
    for path, content in files.items():
        if not path.endswith(".manifest"):
            continue
        for fragment in TableVersion.parse(content, path).manifest.fragments:
            file = fragment.deletion_file
            if file is not None:
                bitmap = file.file_type is DeletionFileType.BITMAP
                name = f"_deletions/{deletion_file_name(fragment.id, file.read_version, file.id, bitmap=bitmap)}"
                rows = read(files[name], file, fragment.physical_rows, name)
                assert len(rows) == fragment.physical_rows - fragment.live_rows
                kinds.add(file.file_type)
            if fragment.inline_row_ids is not None:
                ids = decode_row_ids(fragment.inline_row_ids, fragment.physical_rows, path)
                sequences += len(ids) == len(set(ids.tolist())) == fragment.physical_rows
    assert kinds == set(DeletionFileType)
    assert bool(sequences) == (release != "0.30.0")  # which had no stable row ids by default
