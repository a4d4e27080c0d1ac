"""The metadata of a table with every feature, compared with what pylance reports."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import attrs
import lance
import pyarrow as pa
import pytest

from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.features import Feature
from lancekeep.domain.manifest import DataFile, DeletionFile, Fragment
from lancekeep.domain.operations import (
    Append,
    Clone,
    CreateIndex,
    Delete,
    Merge,
    Overwrite,
    Project,
    Restore,
    Rewrite,
    Transaction,
    Update,
    UpdateConfig,
    UpdateMap,
)
from lancekeep.format.schema import arrow_schema, primary_key, schema_fields
from lancekeep.format.table_version import TableVersion, parse_transaction

KEY = "lance-schema:unenforced-primary-key"
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), False, {KEY: "true", f"{KEY}:position": "2"}),
        pa.field("part", pa.string(), False, {KEY: "true", f"{KEY}:position": "1"}),
        pa.field("s", pa.struct([pa.field("a", pa.list_(pa.int32())), pa.field("b", pa.string())])),
        pa.field("zipped", pa.string(), metadata={"lance-encoding:compression": "zstd"}),
    ],
    {"made by": "a test"},
)
TYPES = [
    *(pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()),
    *(pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.string(), pa.large_string(), pa.binary()),
    *(pa.large_binary(), pa.binary(5), pa.date32(), pa.date64(), pa.time32("s"), pa.time64("ns"), pa.string_view()),
    *(pa.timestamp("us"), pa.timestamp("ns", "Europe/Berlin"), pa.duration("ms"), pa.decimal128(10, 2)),
    *(pa.decimal256(40, -3), pa.list_(pa.int32()), pa.large_list(pa.string()), pa.list_(pa.float32(), 3)),
    *(pa.list_(pa.list_(pa.float32(), 3), 2), pa.list_(pa.field("elem", pa.int32(), False)), pa.struct([])),
    *(pa.large_list(pa.struct([pa.field("a", pa.int32(), False)])), pa.list_(pa.struct([("b", pa.string())]), 2)),
    *(pa.map_(pa.string(), pa.int32()), pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.int64())),
    *(pa.struct([("x", pa.struct([("y", pa.list_(pa.list_(pa.int8())))]))]), pa.json_(), pa.uuid()),
    *(pa.fixed_shape_tensor(pa.float32(), [2, 2]),),
]
WITHOUT_LOGICAL_TYPE = [
    pa.decimal32(5, 1),
    pa.map_(pa.string(), pa.int8(), keys_sorted=True),
    pa.list_view(pa.int8()),
    pa.month_day_nano_interval(),
    pa.run_end_encoded(pa.int32(), pa.int8()),
    pa.opaque(pa.int8(), "a", "b"),
]


def rows(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    texts = [str(number) for number in numbers]
    nested = [{"a": [number], "b": str(number)} for number in numbers]
    return pa.table({"id": numbers, "part": texts, "s": nested, "zipped": texts}, schema=SCHEMA)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> lance.LanceDataset:
    """A table with the features of the format, in twelve versions."""
    root, far = (tmp_path_factory.mktemp("format") / name for name in ("t.lance", "far"))
    far.mkdir()
    bases = [lance.DatasetBasePath(str(far), name="far", is_dataset_root=True)]
    dataset = lance.write_dataset(
        rows(0, 100), str(root), max_rows_per_file=50, enable_stable_row_ids=True, initial_bases=bases,
        target_bases=["far"], transaction_properties={"writer": "test"},
    )  # fmt: skip
    dataset = lance.write_dataset(rows(100, 10), dataset, mode="append")
    dataset.create_scalar_index("id", "BTREE")
    dataset.delete("id in (3, 7)")
    dataset.update({"zipped": "'new'"}, where="id = 60")
    dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows(105, 10))
    dataset.add_columns({"twice": "id * 2"})
    dataset.update_config({"owner": "tests", "gone": "x"})
    dataset.update_config({"gone": None})
    dataset.update_metadata({"text": "of the table"})
    dataset.alter_columns(cast("Any", {"path": "zipped", "name": "packed"}))
    dataset.tags.create("compacted", 1)
    dataset.delete("id = 61")
    return dataset


def version_of(root: str, number: int) -> TableVersion:
    path = next(Path(root, "_versions").glob(f"{2**64 - 1 - number}.manifest"))
    return TableVersion.parse(path.read_bytes(), str(path))


def versions(dataset: lance.LanceDataset) -> Iterator[tuple[lance.LanceDataset, TableVersion]]:
    for number in range(1, dataset.version + 1):
        yield dataset.checkout_version(number), version_of(dataset.uri, number)


def test_manifest_is_what_pylance_reports(dataset: lance.LanceDataset) -> None:
    times: dict[int, Any] = {int(entry["version"]): entry["timestamp"] for entry in dataset.versions()}
    for native, version in versions(dataset):
        manifest = version.manifest
        assert manifest.version == native.version
        assert dict(manifest.config) == native.config()
        assert dict(manifest.table_metadata) == native.metadata
        assert manifest.data_format is not None
        assert manifest.data_format.version == native.data_storage_version
        assert bool(manifest.reader_feature_flags & Feature.STABLE_ROW_IDS) == native.has_stable_row_ids
        assert str(manifest.writer_version) == f"lance {lance.__version__}"
        assert manifest.timestamp is not None
        written = datetime.fromtimestamp(manifest.timestamp.seconds, UTC).astimezone().replace(tzinfo=None)
        assert written == times[native.version].replace(microsecond=0)
        bases = {base.id: (base.name, base.path, base.is_dataset_root) for base in manifest.base_paths}
        assert bases == {
            number: (base.name, base.path, base.is_dataset_root) for number, base in native.base_paths().items()
        }
        assert sum(fragment.live_rows for fragment in manifest.fragments) == native.count_rows()


def test_schema_is_what_pylance_reports(dataset: lance.LanceDataset) -> None:
    for native, version in versions(dataset):
        manifest = version.manifest
        schema = arrow_schema(manifest.fields, manifest.schema_metadata)
        assert schema.equals(native.schema, check_metadata=True)
        assert [field.name for field in primary_key(manifest.fields)] == [
            field.name() for field in native.lance_schema.unenforced_primary_key()
        ]
        found = [(field.name, field.id) for field in manifest.fields]
        assert found == list(depth_first(native.lance_schema.fields()))


def depth_first(fields: list[Any]) -> Iterator[tuple[str, int]]:
    for field in fields:
        yield field.name(), field.id()
        yield from depth_first(field.children())


def test_fragments_are_what_pylance_reports(dataset: lance.LanceDataset) -> None:
    for native, version in versions(dataset):
        reported = [described(each.metadata.to_json()) for each in native.get_fragments()]
        assert [plain(fragment) for fragment in version.manifest.fragments] == reported
    assert any(fragment["deletion_file"] for fragment in reported)
    assert any(file["base_id"] is not None for fragment in reported for file in fragment["files"])
    assert any(
        -2 in file["fields"] or len(fragment["files"]) > 1 for fragment in reported for file in fragment["files"]
    )


def described(reported: dict[str, Any]) -> dict[str, Any]:
    """Return what pylance reports of a fragment in the form of `plain`."""
    inline = {}
    for name in ("row_id_meta", "last_updated_at_version_meta", "created_at_version_meta"):
        found = reported[name]
        inline[name] = None if found is None else bytes(next(iter(found.values())))
    deletion = reported["deletion_file"]
    if deletion:
        kind = {"array": 0, "bitmap": 1}[deletion["file_type"].lower()]
        deletion = {**deletion, "file_type": kind}
    return {
        "id": reported["id"], "files": reported["files"], "physical_rows": reported["physical_rows"],
        "deletion_file": deletion, "overlays": reported["overlays"], **inline,
    }  # fmt: skip


def plain(fragment: Fragment) -> dict[str, Any]:
    return {
        "id": fragment.id,
        "files": [members(file) for file in fragment.files],
        "physical_rows": fragment.physical_rows,
        "deletion_file": members(fragment.deletion_file) if fragment.deletion_file else None,
        "overlays": list(fragment.overlays),
        "row_id_meta": fragment.inline_row_ids,
        "last_updated_at_version_meta": fragment.inline_last_updated_at_versions,
        "created_at_version_meta": fragment.inline_created_at_versions,
    }


def members(file: DataFile | DeletionFile) -> dict[str, Any]:
    found = attrs.asdict(file, filter=lambda attribute, _: attribute.name != "others")
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def test_indices_are_what_pylance_reports(dataset: lance.LanceDataset) -> None:
    for native, version in versions(dataset):
        names = {field.id: field.name for field in version.manifest.fields}
        found = [
            (index.name, index.uuid, [names[number] for number in index.fields], index.dataset_version, index.base_id)
            for index in version.indices
        ]
        assert found == [
            (index["name"], index["uuid"], index["fields"], index["version"], index["base_id"])
            for index in native.list_indices()
        ]
        assert [sum(file.size_bytes for file in index.files) for index in version.indices] == [
            index.total_size_bytes for index in native.describe_indices()
        ]


def test_transactions_are_what_pylance_reports(dataset: lance.LanceDataset) -> None:
    expected = [
        *(Overwrite, Append, CreateIndex, Delete, Update, Update, Merge, UpdateConfig, UpdateConfig, UpdateConfig),
        *(Project, Delete),
    ]
    for (native, version), kind in zip(versions(dataset), expected, strict=True):
        reported: Any = native.read_transaction(native.version)
        found = version.transaction
        assert found is not None
        assert isinstance(found.operation, kind)
        assert (found.read_version, found.uuid) == (reported.read_version, reported.uuid)
        assert dict(found.transaction_properties) == reported.transaction_properties
        path = Path(dataset.uri, "_transactions", version.manifest.transaction_file)
        assert parse_transaction(path.read_bytes(), str(path)) == found
        compare(found, reported.operation)


def compare(found: Transaction, reported: Any) -> None:
    """Compare the members of an operation that pylance shows."""
    for name in ("fragments", "updated_fragments", "new_fragments"):
        if hasattr(reported, name):
            theirs = [described(fragment.to_json()) for fragment in getattr(reported, name)]
            assert [plain(fragment) for fragment in getattr(found.operation, name)] == theirs
    for name in ("predicate", "deleted_fragment_ids", "removed_fragment_ids", "fields_modified"):
        if hasattr(reported, name):
            ours = getattr(found.operation, name)
            assert (list(ours) if isinstance(ours, tuple) else ours) == getattr(reported, name)
    for name in ("config_updates", "table_metadata_updates"):
        update = getattr(reported, name, None)
        if update is not None:
            assert getattr(found.operation, name) == UpdateMap(update.updates, update.replace)


def test_other_operations_decode(tmp_path: Path) -> None:
    dataset = lance.write_dataset(rows(0, 20), str(tmp_path / "t"), max_rows_per_file=5)
    dataset.create_scalar_index("id", "BTREE")
    dataset.optimize.compact_files()
    dataset.checkout_version(1).restore()
    dataset = lance.dataset(dataset.uri)
    found = [version.transaction for _, version in versions(dataset)]
    rewrite, restore = found[-2], found[-1]
    assert rewrite is not None
    assert restore is not None
    assert isinstance(rewrite.operation, Rewrite)
    assert [len(group.old_fragments) for group in rewrite.operation.groups] == [4]
    assert restore.operation == Restore(version=1)
    clone = dataset.shallow_clone(str(tmp_path / "clone"), 1)
    cloned = version_of(clone.uri, clone.version)
    assert cloned.transaction is not None
    assert isinstance(cloned.transaction.operation, Clone)
    assert cloned.transaction.operation.ref_version == 1
    assert [(base.is_dataset_root, base.path) for base in cloned.manifest.base_paths] == [(True, str(tmp_path / "t"))]


def test_pylance_reads_an_encoded_manifest(dataset: lance.LanceDataset, tmp_path: Path) -> None:
    copy = shutil.copytree(dataset.uri, tmp_path / "copy.lance")
    path = copy / "_versions" / f"{2**64 - 1 - dataset.version}.manifest"
    version = TableVersion.parse(path.read_bytes(), str(path))
    rebuilt = attrs.evolve(version.manifest, fragments=list(version.manifest.fragments), tag="encoded here")
    path.write_bytes(attrs.evolve(version, manifest=rebuilt).serialize())
    assert lance.dataset(copy).to_table() == dataset.to_table()


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_type_is_described_as_pylance_does(tmp_path: Path, kind: pa.DataType) -> None:
    schema = pa.schema([pa.field("c", kind, metadata={"a": "b"})], {"m": "n"})
    dataset = lance.write_dataset(schema.empty_table(), str(tmp_path / "t"))
    manifest = version_of(dataset.uri, 1).manifest
    assert schema_fields(schema) == manifest.fields
    assert arrow_schema(manifest.fields, manifest.schema_metadata).equals(dataset.schema, check_metadata=True)


@pytest.mark.parametrize("kind", WITHOUT_LOGICAL_TYPE, ids=str)
def test_type_without_a_logical_type_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(InvalidInput, match="cannot have the type"):
        schema_fields(pa.schema([("c", kind)]))
