"""What the judge and the witnesses of versions find: one change of a sound version each."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import lance
import numpy as np
import pyarrow as pa
import pytest

from lancekeep.domain.features import Feature
from lancekeep.domain.manifest import (
    BasePath,
    DataOverlayFile,
    DataStorageFormat,
    DeletionFile,
    IndexFile,
    IndexSection,
    SchemaField,
    Timestamp,
)
from lancekeep.domain.operations import Delete, Operation, Rewrite, RewriteGroup, Update, UpdateConfig
from lancekeep.format.deletions import encode_bitmap
from lancekeep.format.judge import problems
from lancekeep.format.table_version import TableVersion
from lancekeep.format.witnesses import contradictions

Change = Callable[[TableVersion], TableVersion]
BASE = BasePath(1, path="file:///elsewhere")


def rows(*values: int) -> pa.Table:
    return pa.table({"a": pa.array(values, pa.int64()), "b": [str(value) for value in values]})


def read(uri: Path, version: int) -> TableVersion:
    path = uri / "_versions" / f"{2**64 - 1 - version}.manifest"
    return TableVersion.parse(path.read_bytes(), str(path))


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> tuple[TableVersion, TableVersion]:
    """The last two versions of a table with an index; an append made the last."""
    uri = tmp_path_factory.mktemp("judged") / "t.lance"
    lance.write_dataset(rows(1, 2), uri).create_scalar_index("a", "BTREE")
    lance.write_dataset(rows(3, 4), uri, mode="append")
    return read(uri, 2), read(uri, 3)


def manifest(**changes: Any) -> Change:
    return lambda version: attrs.evolve(version, manifest=attrs.evolve(version.manifest, **changes))


def index(**changes: Any) -> Change:
    def change(version: TableVersion) -> TableVersion:
        [found] = version.indices
        return attrs.evolve(version, index_section=IndexSection((attrs.evolve(found, **changes),)))

    return change


def last_fragment(**changes: Any) -> Change:
    def change(version: TableVersion) -> TableVersion:
        *first, last = version.manifest.fragments
        return manifest(fragments=(*first, attrs.evolve(last, **changes)))(version)

    return change


def field(**changes: Any) -> Change:
    def change(version: TableVersion) -> TableVersion:
        *first, last = version.manifest.fields
        return manifest(fields=(*first, attrs.evolve(last, **changes)))(version)

    return change


def operation(made: Callable[[TableVersion], Operation]) -> Change:
    def change(version: TableVersion) -> TableVersion:
        assert version.transaction is not None
        return attrs.evolve(version, transaction=attrs.evolve(version.transaction, operation=made(version)))

    return change


def with_bases(*bases: BasePath, flags: int = Feature.BASE_PATHS) -> Change:
    return manifest(base_paths=bases, reader_feature_flags=flags, writer_feature_flags=flags)


def rewrite(*olds: slice) -> Change:
    return operation(
        lambda version: Rewrite(groups=tuple(RewriteGroup(tuple(version.manifest.fragments[old]), ()) for old in olds))
    )


CHANGES: dict[str, tuple[Change, str]] = {
    "number": (manifest(version=0), "the version: expected a number of at least 1"),
    "step": (manifest(version=5), "the version: expected 3, found 5"),
    "nanoseconds": (manifest(timestamp=Timestamp(1, 10**9)), "the time of the version"),
    "name of the transaction": (manifest(transaction_file="2-x.txn"), "the transaction file"),
    "two bases with an id": (with_bases(BASE, BASE), "the base path 1: expected an id of its own"),
    "base without path": (with_bases(BasePath(1)), "the base path 1: expected a path"),
    "base without feature": (with_bases(BASE, flags=0), "the features for readers: expected"),
    "unknown feature": (manifest(writer_feature_flags=1 << 20), "the features: expected known ones"),
    "deletions without feature": (last_fragment(deletion_file=DeletionFile(num_deleted_rows=1)), "the features for"),
    "overlays without feature": (last_fragment(overlays=(DataOverlayFile(),)), "the features for"),
    "changed feature of row ids": (
        manifest(reader_feature_flags=Feature.STABLE_ROW_IDS, writer_feature_flags=Feature.STABLE_ROW_IDS),
        "the feature of stable row ids: expected no change",
    ),
    "fragment twice": (last_fragment(id=0), "fragment 0: expected an id of its own"),
    "fragment beyond the highest": (last_fragment(id=7), "fragment 7"),
    "order of fragments": (
        lambda version: manifest(
            fragments=(version.manifest.fragments[1], attrs.evolve(version.manifest.fragments[1], id=0))
        )(version),
        "expected fragments in the order of their ids",
    ),
    "field twice": (field(id=0), "expected an id of its own"),
    "field with a later parent": (field(parent_id=9), "expected a parent that precedes it"),
    "name of a field twice": (field(name="a"), "expected a name of its own"),
    "empty name of a field": (field(name=""), "expected a name without dots"),
    "dotted name of a field": (field(name="a.b"), "expected a name without dots"),
    "unknown type": (field(logical_type="none such"), "the schema: expected types of Arrow"),
    "nullable key": (field(unenforced_primary_key=True, nullable=True), "of the primary key"),
    "nullable key by position": (field(unenforced_primary_key_position=1, nullable=True), "of the primary key"),
    "key with children": (
        lambda version: manifest(
            fields=(
                *version.manifest.fields,
                SchemaField("s", 2, -1, "struct", unenforced_primary_key=True),
                SchemaField("x", 3, 2, "int64"),
            )
        )(version),
        "found one with children",
    ),
    "index twice": (
        lambda version: attrs.evolve(version, index_section=IndexSection(version.indices * 2)),
        "expected a UUID of its own",
    ),
    "index without id": (index(uuid=None), "expected a UUID of its own"),
    "index of an unknown field": (index(fields=(9,)), "expected fields of the schema"),
    "index at an unknown base": (index(base_id=9), "expected a base path of the version"),
    "path of an index file": (index(files=(IndexFile("../x"),)), "a file of the index"),
    "bitmap of an index": (index(fragment_bitmap=b"?"), "expected a bitmap of fragments"),
    "a fragment deleted twice": (operation(lambda version: Delete((), (0, 0))), "fragment 0: expected one change"),
    "a fragment updated twice": (
        operation(lambda version: Update((0,), tuple(version.manifest.fragments[:1]))),
        "fragment 0: expected one change",
    ),
    "configuration with a new fragment": (operation(lambda version: UpdateConfig()), "the fragments: expected no"),
    "deletion file without a count": (
        operation(lambda version: Delete((attrs.evolve(version.manifest.fragments[0], deletion_file=DeletionFile()),))),
        "the deletion file of fragment 0: expected the number of deleted rows",
    ),
    "deletion file without a count in an update": (
        operation(
            lambda version: Update((), (attrs.evolve(version.manifest.fragments[0], deletion_file=DeletionFile()),))
        ),
        "the deletion file of fragment 0: expected the number of deleted rows",
    ),
    "no ids of fragments left": (manifest(max_fragment_id=2**32 - 1), "the highest fragment id: expected at most"),
    "rewritten fragment with deletions": (
        operation(
            lambda version: Rewrite(
                groups=(
                    RewriteGroup(
                        tuple(version.manifest.fragments[:1]),
                        (attrs.evolve(version.manifest.fragments[0], deletion_file=DeletionFile(num_deleted_rows=1)),),
                    ),
                )
            )
        ),
        "a new fragment: expected no deletion file",
    ),
    "rewrite of nothing": (rewrite(), "expected groups of fragments"),
    "rewrite with an empty group": (rewrite(slice(1), slice(0)), "expected groups of fragments"),
    "rewrite that adds rows": (rewrite(slice(1)), "the rows of the version: expected 2"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_fault_of_a_version_is_a_problem(versions: tuple[TableVersion, TableVersion], name: str) -> None:
    before, after = versions
    change, expected = CHANGES[name]
    changed = change(attrs.evolve(after, index_section=IndexSection(after.indices)))
    found = problems(attrs.evolve(changed, manifest=attrs.evolve(changed.manifest)), before)
    assert any(expected in str(problem) for problem in found), list(map(str, found))


def test_sound_version_has_no_problem(versions: tuple[TableVersion, TableVersion]) -> None:
    before, after = versions
    assert (problems(after, before), problems(after), problems(before)) == ([], [], [])


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (with_bases(BasePath(1, path="file:///other")), "the base path 1: expected 'file:///elsewhere'"),
        (manifest(next_row_id=1), "the next row id: expected 9 or more"),
        (manifest(max_fragment_id=4), "the highest fragment id: expected 5 or more"),
    ],
)
def test_what_a_version_takes_over_stays(
    versions: tuple[TableVersion, TableVersion], change: Change, expected: str
) -> None:
    before, after = versions
    earlier = manifest(next_row_id=9, max_fragment_id=5)(with_bases(BASE)(before))
    unchanged = manifest(next_row_id=9, max_fragment_id=5)(with_bases(BASE)(after))
    assert problems(unchanged, earlier) == []
    assert expected in [str(problem)[: len(expected)] for problem in problems(change(unchanged), earlier)]


def first_fragment(**changes: Any) -> Change:
    def change(version: TableVersion) -> TableVersion:
        first, *others = version.manifest.fragments
        return manifest(fragments=(attrs.evolve(first, **changes), *others))(version)

    return change


OTHERS = "expected the files and rows of the version before"
CONTRADICTIONS: dict[str, tuple[Change, str]] = {
    "name of a field": (field(name="c"), "the fields"),
    "format of files": (manifest(data_format=DataStorageFormat("lance", "0.3")), "the format of data files"),
    "branch": (manifest(branch="b"), "the branch"),
    "configuration": (manifest(config={"k": "v"}), "the configuration"),
    "metadata of the table": (manifest(table_metadata={"k": "v"}), "the metadata of the table"),
    "metadata of the schema": (manifest(schema_metadata={"k": b"v"}), "the metadata of the schema"),
    "rows of the new fragment": (last_fragment(physical_rows=9), "the files and rows that its transaction says"),
    "file of the new fragment": (
        lambda version: last_fragment(
            files=(attrs.evolve(version.manifest.fragments[1].files[0], path="other.lance"),)
        )(version),
        "the fragments: expected one with the data file",
    ),
    "rows of a kept fragment": (first_fragment(physical_rows=9), OTHERS),
    "files of a kept fragment": (first_fragment(files=()), OTHERS),
    "row ids of a kept fragment": (first_fragment(inline_row_ids=b"x"), OTHERS),
    "deletions of a kept fragment": (first_fragment(deletion_file=DeletionFile(num_deleted_rows=1)), OTHERS),
    "number of a kept fragment": (first_fragment(id=5), "fragment 0: expected the fragment of the version before"),
    "no index": (lambda version: attrs.evolve(version, index_section=None), "expected the index of the version before"),
    "fields of an index": (index(fields=(1,)), "expected the description by the version before"),
    "transaction": (operation(lambda version: UpdateConfig()), "the transaction in the manifest"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_each_contradiction_of_a_version_and_its_witnesses_is_a_problem(
    versions: tuple[TableVersion, TableVersion], name: str
) -> None:
    before, after = versions
    change, expected = CONTRADICTIONS[name]
    found = list(contradictions(change(after), before, after.transaction))
    assert any(expected in str(problem) for problem in found), list(map(str, found))


def test_index_that_its_transaction_does_not_describe_is_a_problem(versions: tuple[TableVersion, TableVersion]) -> None:
    created, _ = versions
    more = index(fragment_bitmap=encode_bitmap(np.array([0, 1], np.uint64)))
    for change in (index(fields=(1,)), more, lambda version: attrs.evolve(version, index_section=None)):
        assert any("its transaction" in str(problem) for problem in contradictions(change(created), None, None))


def test_versions_of_the_engine_do_not_contradict_their_witnesses(tmp_path: Path) -> None:
    uri = tmp_path / "t.lance"
    table = lance.write_dataset(rows(1, 2), uri)
    table.create_scalar_index("a", "BTREE", name="i")
    lance.write_dataset(rows(3, 4), uri, mode="append")
    table = lance.dataset(uri)
    table.create_scalar_index("a", "BITMAP", name="i", replace=True)
    table.delete("a = 3")
    table.drop_index("i")
    found = [read(uri, version) for version in range(1, 7)]
    for before, after in pairwise(found):
        assert list(contradictions(after, before, after.transaction)) == []
