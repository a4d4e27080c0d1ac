"""Versions that the Lance engine would refuse, or could not read, are refused before they are committed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from uuid import uuid4

import attrs
import lance
import pyarrow as pa
import pytest
from lance.optimize import Compaction

import lancekeep
from lancekeep.domain.manifest import Fragment
from lancekeep.domain.operations import Append, Delete, Overwrite, Rewrite, RewrittenIndex, Transaction
from lancekeep.format.judge import problems
from lancekeep.format.judged_fragments import Problem
from lancekeep.format.manifest import ManifestFile
from lancekeep.format.messages import Transaction as Message
from lancekeep.format.table_version import TableVersion


def rows(*values: int) -> pa.Table:
    return pa.table({"a": pa.array(values, pa.int64()), "b": [str(value) for value in values]})


def path_of(uri: Path, version: int) -> Path:
    return uri / "_versions" / f"{2**64 - 1 - version}.manifest"


def read(uri: Path, version: int | None = None) -> TableVersion:
    path = path_of(uri, version or lance.dataset(uri).version)
    return TableVersion.parse(path.read_bytes(), str(path))


def create(uri: Path, *, stable: bool = False, storage: Any = "2.0") -> Any:
    table = None
    for first in (0, 2, 4):
        mode: Any = "append" if first else "create"
        found = rows(first, first + 1)
        table = lance.write_dataset(found, uri, mode=mode, enable_stable_row_ids=stable, data_storage_version=storage)
    return table


@pytest.fixture
def uri(tmp_path: Path) -> Path:
    """The place of a table in a lake."""
    return tmp_path / "lake" / "t.lance"


def catalog_of(uri: Path) -> lancekeep.Catalog:
    return lancekeep.connect(str(uri.parent))


def compacted(table: Any, size: int = 100) -> list[Any]:
    plan = Compaction.plan(table, {"target_rows_per_fragment": size})
    return [task.execute(table) for task in plan.tasks]


def test_compaction_that_is_committed_twice_in_one_call_is_refused(uri: Path) -> None:
    results = compacted(create(uri))
    with pytest.raises(lancekeep.CommitRefused, match="fragment 0: expected one rewrite of it, found 2"):
        catalog_of(uri).upkeep.commit_compaction("t", [*results, *results])
    assert lance.dataset(uri).to_table() == rows(*range(6))
    catalog_of(uri).upkeep.commit_compaction("t", results)
    assert lance.dataset(uri).to_table() == rows(*range(6))


def test_overlapping_compactions_are_refused(uri: Path) -> None:
    create(uri)
    table = lance.write_dataset(rows(6), uri, mode="append")
    results = [*compacted(table), *compacted(table, 3)]
    assert len(results) > 1
    with pytest.raises(lancekeep.CommitRefused, match="one rewrite"):
        catalog_of(uri).upkeep.commit_compaction("t", results)
    assert lance.dataset(uri).to_table() == rows(*range(7))


def rewrite(uri: Path) -> Transaction:
    """Return a compaction of a table, whose files are at the table."""
    copy = uri.parent.parent / "copy.lance"
    shutil.copytree(uri, copy)
    lance.dataset(copy).optimize.compact_files()
    shutil.copytree(copy / "data", uri / "data", dirs_exist_ok=True)
    found = read(copy).transaction
    assert found is not None
    return attrs.evolve(found, read_version=lance.dataset(uri).version)


def test_rewrite_of_a_repeated_group_is_refused(uri: Path) -> None:
    create(uri)
    transaction = rewrite(uri)
    assert isinstance(transaction.operation, Rewrite)
    [group] = transaction.operation.groups
    twice = attrs.evolve(transaction, operation=Rewrite(groups=(group, attrs.evolve(group, new_fragments=()))))
    for operation in (twice.operation, Rewrite(groups=(group, group))):
        with pytest.raises(lancekeep.CommitRefused):
            catalog_of(uri).commit("t", attrs.evolve(twice, operation=operation))
    assert lance.dataset(uri).to_table() == rows(*range(6))


def test_rewrite_of_a_fragment_that_its_index_does_not_cover_is_refused(uri: Path) -> None:
    """The index would cover the new fragment, and filters would miss the rows of the old one."""
    table = create(uri)
    transaction = rewrite(uri)
    table.create_scalar_index("a", "BTREE")
    lance.write_dataset(rows(6), uri, mode="append")
    [index] = read(uri).indices
    assert index.uuid is not None
    copy = str(uuid4())
    shutil.copytree(uri / "_indices" / index.uuid, uri / "_indices" / copy)
    new = RewrittenIndex(index.uuid, copy, index.index_details, index.index_version or 0, index.files)
    assert isinstance(transaction.operation, Rewrite)
    [group] = transaction.operation.groups
    last = read(uri).manifest.fragments[-1]
    wider = attrs.evolve(
        group,
        old_fragments=(*group.old_fragments, last),
        new_fragments=(*group.new_fragments, attrs.evolve(last, id=0)),
    )
    operation = Rewrite(groups=(wider,), rewritten_indices=(new,))
    latest = attrs.evolve(transaction, read_version=lance.dataset(uri).version, operation=operation)
    with pytest.raises(lancekeep.ConcurrentModification, match="covers fragments that the transaction rewrites"):
        catalog_of(uri).commit("t", latest)
    assert lance.dataset(uri).to_table(filter="a = 6").num_rows == 1


def test_rewrite_without_row_ids_of_a_table_with_stable_ones_is_refused(uri: Path) -> None:
    create(uri, stable=True)
    transaction = rewrite(uri)
    assert isinstance(transaction.operation, Rewrite)
    [group] = transaction.operation.groups
    bare = tuple(attrs.evolve(each, inline_row_ids=None) for each in group.new_fragments)
    without = attrs.evolve(transaction, operation=Rewrite(groups=(attrs.evolve(group, new_fragments=bare),)))
    with pytest.raises(lancekeep.CommitRefused, match="expected row ids, as the table has the feature, found none"):
        catalog_of(uri).commit("t", without)
    catalog_of(uri).commit("t", transaction)
    assert lance.dataset(uri).to_table() == rows(*range(6))


def new_fragments(uri: Path, storage: Any, *values: int) -> tuple[Fragment, ...]:
    """Write rows as fragments of a table, in a version of the file format."""
    scratch = uri.parent.parent / f"scratch-{uuid4()}"
    lance.write_dataset(rows(*values), scratch, data_storage_version=storage)
    shutil.copytree(scratch / "data", uri / "data", dirs_exist_ok=True)
    return tuple(attrs.evolve(each, id=0) for each in read(scratch).manifest.fragments)


@pytest.mark.parametrize("operation", [Append, Overwrite])
@pytest.mark.parametrize("storage", ["2.1", "legacy"])
def test_files_of_another_format_are_refused(uri: Path, operation: type, storage: str) -> None:
    table = create(uri)
    new = new_fragments(uri, storage, 7)
    schema = {"schema": read(uri).manifest.fields} if operation is Overwrite else {}
    transaction = Transaction(table.version, str(uuid4()), operation=operation(new, **schema))
    refusal = r"expected the format 2\.0 of the table, found|legacy format"
    with pytest.raises(lancekeep.Refused, match=refusal):
        catalog_of(uri).commit("t", transaction)
    assert lance.dataset(uri).to_table() == rows(*range(6))


def test_legacy_files_of_others_are_refused_in_a_legacy_table(tmp_path: Path) -> None:
    uri = tmp_path / "lake" / "t.lance"
    lance.write_dataset(rows(1, 2), uri, data_storage_version="legacy")
    [new] = new_fragments(uri, "legacy", 7)
    wrong = attrs.evolve(new, physical_rows=9)  # the footer does not say it
    with pytest.raises(lancekeep.Unsupported, match=r"legacy format.*Add its rows by write\(\)"):
        catalog_of(uri).commit("t", Transaction(1, str(uuid4()), operation=Append((wrong,))))
    catalog_of(uri).write("t", rows(3), "append")
    assert lance.dataset(uri).to_table() == rows(1, 2, 3)


def test_transaction_of_the_engine_s_own_class_is_invalid_input(uri: Path) -> None:
    create(uri)
    transaction: Any = lance.Transaction(1, lance.LanceOperation.Restore(1))
    with pytest.raises(lancekeep.InvalidInput, match=r"not a lance\.\S+Transaction"):
        catalog_of(uri).commit("t", transaction)


def test_appends_do_not_follow_a_version_that_the_engine_cannot_read(uri: Path) -> None:
    table = create(uri)
    version = read(uri)
    broken = [*version.manifest.fragments, *(attrs.evolve(each, id=3) for each in new_fragments(uri, "2.1", 7))]
    manifest = attrs.evolve(version.manifest, version=table.version + 1, fragments=broken, max_fragment_id=3)
    path_of(uri, table.version + 1).write_bytes(attrs.evolve(version, manifest=manifest).serialize())
    with pytest.raises(Exception, match=r"mixed|mixes|cannot"):
        catalog_of(uri).write("t", rows(8), "append")
    assert not path_of(uri, table.version + 2).exists()
    [problem] = problems(attrs.evolve(version, manifest=manifest, transaction=None))
    assert (problem.expected, problem.found) == ("the format 2.0 of the table", "2.1")


def test_append_with_an_unknown_base_or_field_is_refused(uri: Path) -> None:
    table = create(uri)
    [new] = new_fragments(uri, "2.0", 7)
    [file] = new.files
    for other, why in (
        (attrs.evolve(file, base_id=9), "expected a base path of the version, found 9"),
        (attrs.evolve(file, fields=(0, 77)), "expected fields of the table, found 77"),
    ):
        transaction = Transaction(table.version, str(uuid4()), operation=Append((attrs.evolve(new, files=(other,)),)))
        with pytest.raises(lancekeep.CommitRefused, match=why):
            catalog_of(uri).commit("t", transaction)
    catalog_of(uri).commit("t", Transaction(table.version, str(uuid4()), operation=Append((new,))))
    assert lance.dataset(uri).to_table() == rows(*range(6), 7)


def test_files_that_differ_from_their_description_are_refused(uri: Path) -> None:
    table = create(uri)
    [new] = new_fragments(uri, "2.0", 7, 8)
    [file] = new.files
    (uri / "data" / "short.lance").write_bytes((uri / "data" / file.path).read_bytes()[:-5])
    for fragment, why in (
        (attrs.evolve(new, physical_rows=3), "expected 3 rows, found 2"),
        (attrs.evolve(new, files=(attrs.evolve(file, file_size_bytes=7),)), "expected 7 bytes, found"),
        (
            attrs.evolve(new, files=(attrs.evolve(file, column_indices=(0, 5)),)),
            "expected 2 columns, found the column 5",
        ),
        (
            attrs.evolve(new, files=(attrs.evolve(file, column_indices=(1, 0)),)),
            "expected the type int64, found string",
        ),
        (attrs.evolve(new, files=(attrs.evolve(file, path="none.lance"),)), "expected a file, found none"),
        (attrs.evolve(new, files=(attrs.evolve(file, path="../t/x"),)), "expected a path below its directory"),
        (attrs.evolve(new, files=(attrs.evolve(file, path="short.lance", file_size_bytes=0),)), "not a data file"),
    ):
        transaction = Transaction(table.version, str(uuid4()), operation=Append((fragment,)))
        with pytest.raises(lancekeep.CommitRefused, match=why):
            catalog_of(uri).commit("t", transaction)
    mixed = attrs.evolve(file, path=new_fragments(uri, "2.1", 7, 8)[0].files[0].path, file_size_bytes=0)
    transaction = Transaction(table.version, str(uuid4()), operation=Append((attrs.evolve(new, files=(mixed,)),)))
    with pytest.raises(lancekeep.CommitRefused, match=r"expected the format 2\.0, found 2\.1"):
        catalog_of(uri).commit("t", transaction)
    assert lance.dataset(uri).to_table() == rows(*range(6))


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda file: file.unlink(), "expected a file, found none"),
        (lambda file: file.write_bytes(file.read_bytes()[:-9]), "expected a deletion file, found"),
        (None, "expected 2 deleted rows, found 1"),
    ],
)
def test_delete_with_a_wrong_deletion_file_is_refused(uri: Path, damage: Any, why: str) -> None:
    table = create(uri)
    copy = uri.parent.parent / "copy.lance"
    shutil.copytree(uri, copy)
    lance.dataset(copy).delete("a = 3")
    shutil.copytree(copy / "_deletions", uri / "_deletions")
    transaction = read(copy).transaction
    assert transaction is not None
    assert isinstance(transaction.operation, Delete)
    if damage is None:
        [fragment] = transaction.operation.updated_fragments
        assert fragment.deletion_file is not None
        counted = attrs.evolve(fragment.deletion_file, num_deleted_rows=2)
        wrong = Delete((attrs.evolve(fragment, deletion_file=counted),))
        transaction = attrs.evolve(transaction, operation=wrong)
    else:
        damage(next((uri / "_deletions").iterdir()))
    with pytest.raises(lancekeep.CommitRefused, match=why):
        catalog_of(uri).commit("t", transaction)
    assert lance.dataset(uri).version == table.version


@pytest.mark.parametrize("deep", [False, True])
def test_clone_of_a_source_with_an_unknown_writer_flag_is_refused(uri: Path, deep: bool) -> None:
    table = create(uri)
    path = path_of(uri, table.version)
    file = ManifestFile.parse(path.read_bytes(), "t")
    file.manifest.writer_feature_flags |= 1 << 40
    path.write_bytes(file.serialize(Message(read_version=2, uuid=str(uuid4()))))
    catalog = catalog_of(uri)
    with pytest.raises(lancekeep.Unsupported, match="unknown flag"):
        catalog.clone("t", "c", deep=deep)
    assert [str(each) for each in catalog.list_all_tables()] == ["t"]


def test_versions_of_the_engine_have_no_problems(uri: Path) -> None:
    table = create(uri, stable=True, storage="2.1")
    table.delete("a = 3")
    table.create_scalar_index("a", "BTREE")
    table = lance.dataset(uri)
    table.update({"b": "'x'"}, where="a = 4")
    table.add_columns({"c": "a + 1"})
    lance.dataset(uri).drop_columns(["b"])
    lance.dataset(uri).optimize.compact_files()
    lance.dataset(uri).restore()
    latest = lance.dataset(uri).version
    versions = {number: read(uri, number) for number in range(1, latest + 1)}
    assert [problem for version in versions.values() for problem in problems(version)] == []
    assert problems(attrs.evolve(versions[1], manifest=attrs.evolve(versions[1].manifest, version=0))) == [
        Problem("the version", "a number of at least 1", "0")
    ]


def test_configuration_costs_no_look_at_fragments(uri: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create(uri)
    version = read(uri)
    after = attrs.evolve(version, manifest=attrs.evolve(version.manifest, version=version.manifest.version + 1))
    after = attrs.evolve(after, transaction=None)
    monkeypatch.setattr("lancekeep.format.values.decoded", lambda *_: pytest.fail("a fragment was decoded"))
    assert problems(after, version) == []
