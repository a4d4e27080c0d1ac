"""The table of conflicts beside what pylance does with each ordered pair of operations."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import lance
import pyarrow as pa
import pytest
from lance import LanceOperation
from lance.dataset import Index
from lance.file import LanceFileWriter
from lance.fragment import DataFile, write_fragments

import lancekeep
from lancekeep.domain.conflicts import Effect, Outcome, conflict
from lancekeep.domain.lineage import Operation
from lancekeep.format.effects import effect_of
from lancekeep.format.table_version import TableVersion

ID, X, Y = 0, 1, 2
ALL = frozenset(range(4))
READ = 4


def rows(first: int, number: int = 10) -> pa.Table:
    ids = range(first, first + number)
    return pa.table({"id": pa.array(ids, pa.int64()), "x": pa.array(ids, pa.int64()), "y": [str(i) for i in ids]})


class Case(NamedTuple):
    """An operation on the table of four fragments of ten rows, and its effect."""

    build: Callable[[lance.LanceDataset], Any]
    effect: Effect


def new_fragments(table: lance.LanceDataset, data: pa.Table) -> list[Any]:
    return list(write_fragments(data, table.uri, schema=data.schema, mode="append"))


def fragment_of(table: lance.LanceDataset, number: int) -> Any:
    return table.get_fragment(number)


def append(table: lance.LanceDataset) -> Any:
    return LanceOperation.Append(new_fragments(table, rows(100)))


def overwrite(table: lance.LanceDataset) -> Any:
    return LanceOperation.Overwrite(rows(0).schema, new_fragments(table, rows(200)))


def restore(table: lance.LanceDataset) -> Any:
    return LanceOperation.Restore(1)


def delete(fragment: int, row: int) -> Case:
    def build(table: lance.LanceDataset) -> Any:
        return LanceOperation.Delete([fragment_of(table, fragment).delete(f"id = {10 * fragment + row}")], [], "id")

    return Case(build, Effect(operation=Operation.DELETE, changed=frozenset({fragment})))


def delete_fragment(fragment: int) -> Case:
    return Case(
        lambda table: LanceOperation.Delete([], [fragment], "id"),
        Effect(operation=Operation.DELETE, removed=frozenset({fragment})),
    )


def index(name: str, field: int, ids: Iterable[int]) -> Case:
    covered = frozenset(ids)

    def build(table: lance.LanceDataset) -> Any:
        fragments: Any = set(covered)  # pylance's annotation names a type that it does not export
        created = Index(str(uuid4()), name, [field], READ, fragments, 0)
        return LanceOperation.CreateIndex([created], [])

    effect = Effect(
        operation=Operation.CREATE_INDEX, indexes=frozenset({name}), covered=covered, fields=frozenset({field})
    )
    return Case(build, effect)


def rewrite(*fragments: int) -> Case:
    def build(table: lance.LanceDataset) -> Any:
        old = [fragment_of(table, fragment) for fragment in fragments]
        new = new_fragments(table, pa.concat_tables(fragment.to_table() for fragment in old))
        for fragment in new:
            fragment.id = 1000 + fragments[0]
        return LanceOperation.Rewrite([LanceOperation.RewriteGroup([f.metadata for f in old], new)], [])

    return Case(build, Effect(operation=Operation.REWRITE, removed=frozenset(fragments)))


def merge(column: str, *, preserves: bool = True) -> Case:
    def build(table: lance.LanceDataset) -> Any:
        merged = [
            fragment.merge_columns(lambda batch: pa.record_batch({column: batch["x"]}), columns=["x"])
            for fragment in table.get_fragments()
        ]
        return LanceOperation.Merge([fragment for fragment, _ in merged], merged[0][1], preserves)

    effect = Effect(operation=Operation.MERGE, changed=ALL, rewritten=ALL, fields=None, preserves_nullability=preserves)
    return Case(build, effect)


def update_rows(fragment: int) -> Case:
    def build(table: lance.LanceDataset) -> Any:
        changed = fragment_of(table, fragment).delete(f"id = {10 * fragment + 1}")
        return LanceOperation.Update(
            updated_fragments=[changed],
            new_fragments=new_fragments(table, rows(500, 1)),
            fields_for_preserving_frag_bitmap=[ID, X, Y],
            update_mode="rewrite_rows",
        )

    return Case(build, Effect(operation=Operation.UPDATE, changed=frozenset({fragment}), fields=None))


def update_column(fragment: int) -> Case:
    def build(table: lance.LanceDataset) -> Any:
        new = pa.table({"id": [10 * fragment], "x": [99]})
        changed, fields = fragment_of(table, fragment).update_columns(new, left_on="id", right_on="id")
        return LanceOperation.Update(updated_fragments=[changed], fields_modified=fields, update_mode="rewrite_columns")

    changed = frozenset({fragment})
    return Case(build, Effect(operation=Operation.UPDATE, changed=changed, rewritten=changed, fields=frozenset({X})))


def project(column: str, field: int, *, preserves: bool = True) -> Case:
    def build(table: lance.LanceDataset) -> Any:
        copy = f"{table.uri}-{column}-{preserves}"
        shutil.copytree(table.uri, copy)
        projected = lance.dataset(copy)
        projected.drop_columns([column])
        return LanceOperation.Project(projected.lance_schema, preserves)

    kept = frozenset({ID, X, Y}) - {field}
    return Case(build, Effect(operation=Operation.PROJECT, fields=kept, preserves_nullability=preserves))


def settings(kind: str | int, key: str) -> Case:
    def build(table: lance.LanceDataset) -> Any:
        update = LanceOperation.UpdateMap({key: "1"}, False)
        if isinstance(kind, int):
            return LanceOperation.UpdateConfig(field_metadata_updates={kind: update})
        if kind == "config":
            return LanceOperation.UpdateConfig(config_updates=update)
        if kind == "table":
            return LanceOperation.UpdateConfig(table_metadata_updates=update)
        return LanceOperation.UpdateConfig(schema_metadata_updates=update)

    return Case(build, Effect(operation=Operation.UPDATE_CONFIG, settings=frozenset({(kind, key)})))


def replace(fragment: int, column: str, field: int) -> Case:
    def build(table: lance.LanceDataset) -> Any:
        data = rows(10 * fragment).select([column])
        name = f"{uuid4().hex}.lance"
        path = Path(table.uri, "data", name)
        with LanceFileWriter(str(path), data.schema) as writer:
            writer.write_batch(data)
        [old] = fragment_of(table, fragment).metadata.files
        new = DataFile(name, [field], [0], old.file_major_version, old.file_minor_version, path.stat().st_size)
        return LanceOperation.DataReplacement([LanceOperation.DataReplacementGroup(fragment, new)])

    changed = frozenset({fragment})
    effect = Effect(operation=Operation.DATA_REPLACEMENT, changed=changed, rewritten=changed, fields=frozenset({field}))
    return Case(build, effect)


CASES: Mapping[str, Case] = {
    "append": Case(append, Effect(operation=Operation.APPEND)),
    "delete a row of fragment 0": delete(0, 1),
    "delete another row of fragment 0": delete(0, 2),
    "delete a row of fragment 1": delete(1, 1),
    "delete fragment 0": delete_fragment(0),
    "overwrite": Case(overwrite, Effect(operation=Operation.OVERWRITE)),
    "index x": index("x_idx", X, ALL),
    "index x of fragment 1": index("x_idx", X, {1}),
    "index y": index("y_idx", Y, ALL),
    "rewrite fragments 0 and 1": rewrite(0, 1),
    "rewrite fragments 2 and 3": rewrite(2, 3),
    "add column z": merge("z"),
    "add column w": merge("w"),
    "restore": Case(restore, Effect(operation=Operation.RESTORE)),
    "update a row of fragment 0": update_rows(0),
    "update a row of fragment 1": update_rows(1),
    "update x in fragment 0": update_column(0),
    "drop y": project("y", Y),
    "drop x": project("x", X),
    "add column z as older engines": merge("z", preserves=False),
    "drop y as older engines": project("y", Y, preserves=False),
    "drop x as older engines": project("x", X, preserves=False),
    "set config a": settings("config", "a"),
    "set config b": settings("config", "b"),
    "set table metadata a": settings("table", "a"),
    "set schema metadata a": settings("schema", "a"),
    "set metadata of x": settings(X, "a"),
    "set metadata of y": settings(Y, "a"),
    "replace x in fragment 0": replace(0, "x", X),
    "replace y in fragment 0": replace(0, "y", Y),
    "replace x in fragment 1": replace(1, "x", X),
}


@pytest.fixture(scope="module")
def operations(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A table of `READ` versions that holds the files of all operations, and the operations."""
    uri = tmp_path_factory.mktemp("conflicts") / "t.lance"
    for first in range(0, 40, 10):
        table = lance.write_dataset(rows(first), uri, mode="append" if first else "create")
    assert table.version == READ
    return uri, {name: case.build(table) for name, case in CASES.items()}


def outcome(uri: Path, operation: Any) -> Outcome:
    try:
        committed = lance.LanceDataset.commit(uri, operation, read_version=READ)
    except (OSError, ValueError, RuntimeError) as error:
        return Outcome.RETRYABLE if "Retryable" in str(error) else Outcome.INCOMPATIBLE
    committed.to_table()
    Path(uri, "_versions", f"{2**64 - 1 - committed.version}.manifest").unlink()
    return Outcome.COMPATIBLE


@pytest.mark.parametrize("first", CASES)
def test_native_decides_as_the_table_of_conflicts(
    operations: tuple[Path, dict[str, Any]], tmp_path: Path, first: str
) -> None:
    base, built = operations
    uri = tmp_path / "t.lance"
    shutil.copytree(base, uri)
    lance.LanceDataset.commit(uri, built[first], read_version=READ)
    found = {second: outcome(uri, built[second]) for second in CASES}
    assert found == {second: conflict(CASES[second].effect, [CASES[first].effect]).outcome for second in CASES}


def test_effects_of_recorded_transactions_are_those_of_the_table(
    operations: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    base, built = operations
    for number, (name, case) in enumerate(CASES.items()):
        uri = tmp_path / f"{number}.lance"
        shutil.copytree(base, uri)
        version = lance.LanceDataset.commit(uri, built[name], read_version=READ).version
        [manifest] = (uri / "_versions").glob(f"{2**64 - 1 - version}.manifest")
        transaction = TableVersion.parse(manifest.read_bytes(), str(manifest)).transaction
        assert transaction is not None
        assert effect_of(transaction) == case.effect, name


def test_native_changes_of_columns_preserve_nullability(tmp_path: Path) -> None:
    changes: list[Callable[[Any], object]] = [
        lambda table: table.add_columns({"z": "x + 1"}),
        lambda table: table.alter_columns({"path": "z", "name": "renamed"}),
        lambda table: table.drop_columns(["renamed"]),
    ]
    table = lance.write_dataset(rows(0), tmp_path / "t.lance")
    for change in changes:
        change(table)
        manifest = min((tmp_path / "t.lance/_versions").glob("*.manifest"))
        transaction = TableVersion.parse(manifest.read_bytes(), str(manifest)).transaction
        assert effect_of(transaction).preserves_nullability


@pytest.mark.parametrize("change", ["add", "drop"])
def test_transactions_follow_changes_of_columns(tmp_path: Path, change: str) -> None:
    catalog = lancekeep.connect(str(tmp_path / "lake"))
    catalog.write("t", rows(0))
    copy = shutil.copytree(tmp_path / "lake/t.lance", tmp_path / "copy.lance")
    lance.dataset(copy).insert(rows(10))
    shutil.copytree(copy / "data", tmp_path / "lake/t.lance/data", dirs_exist_ok=True)
    manifest = min((copy / "_versions").glob("*.manifest"))
    transaction = TableVersion.parse(manifest.read_bytes(), str(manifest)).transaction
    assert transaction is not None
    native = catalog.open("t")
    if change == "add":
        native.add_columns({"z": "x + 1"})
    else:
        native.drop_columns(["y"])
    assert catalog.commit("t", transaction).version == 3
    assert lance.dataset(tmp_path / "lake/t.lance").to_table()["id"].to_pylist() == [*range(20)]


def test_native_merges_deletions_of_different_rows_as_the_table_of_conflicts(tmp_path: Path) -> None:
    for second in (1, 2):
        uri = tmp_path / f"{second}.lance"
        committed, stale = lance.write_dataset(rows(0), uri), lance.dataset(uri)
        committed.delete("id = 1")
        deletions = [
            Effect(operation=Operation.DELETE, changed=frozenset({0}), deleted={0: frozenset({row})})
            for row in (1, second)
        ]
        expected = conflict(deletions[1], deletions[:1]).outcome
        assert expected is (Outcome.RETRYABLE if second == 1 else Outcome.REBASABLE)
        stale.delete(f"id = {second}")
        # native repeats a retryable delete by itself, so the number of versions does not tell; its rows do
        assert lance.dataset(uri).to_table()["id"].to_pylist() == [i for i in range(10) if i not in {1, second}]


@pytest.mark.parametrize("unknown", [Operation.UNKNOWN, Operation.CLONE])
def test_operation_without_rules_conflicts_with_everything(unknown: Operation) -> None:
    other, append = Effect(operation=unknown), Effect(operation=Operation.APPEND)
    assert conflict(append, [other]).outcome is Outcome.INCOMPATIBLE
    assert conflict(other, [append]).outcome is Outcome.INCOMPATIBLE


def test_worst_committed_transaction_decides() -> None:
    delete, overwrite = CASES["delete a row of fragment 0"].effect, CASES["overwrite"].effect
    found = conflict(delete, [CASES["append"].effect, delete, overwrite, delete])
    assert (found.outcome, found.committed) == (Outcome.INCOMPATIBLE, overwrite)
