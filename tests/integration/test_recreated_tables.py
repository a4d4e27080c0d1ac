"""An operation whose table is dropped and created again changes all of the new table, or nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import lance
import pyarrow as pa
import pytest
from faults import READS, outcomes_beside

import lancekeep
from lancekeep.application.catalog import directory_of
from lancekeep.application.rows import appends, direct_upserts, handover, table_transactions
from lancekeep.application.rows.idempotency import Answer, Attempt
from lancekeep.domain import operations
from lancekeep.domain.idempotency import RequestKey
from lancekeep.domain.manifest import DataFile, Fragment
from lancekeep.ports.rows import MergeRule
from lancekeep.ports.table_structure import ColumnChange, FieldMetadata, NewIndex

OLD, NEW, LATE = 0, 1, 2
"""The values of the column ``by``: which table a row was written to, or that the operation wrote it."""

Catalog = lancekeep.Catalog
Rows = Sequence[tuple[int, int]]
Act = Callable[[Catalog], object]
Begin = Callable[[Catalog], Callable[[], object]]
"""Prepares an operation, and returns it."""

PLACES = {
    "conditional-put": ("compatible", "conditional-put://"),
    "sqlite": ("compatible", "sqlite://{}/rows.db"),
    "v1": ("v1", "sqlite://{}/rows.db"),
    "hashed": ("v2", "sqlite://{}/rows.db"),
    "storage-managed": ("compatible", None),
    "memory": ("compatible", "memory://{}"),
}
FEW = [("sqlite", 3), ("conditional-put", 4)]
"""Places, and numbers of versions of the new table; the old table has three."""
ALL = [(place, versions) for place in PLACES for versions in (2, 3, 4, 5)]
BY_THE_ENGINE = ("delete a branch", "clean up", "repair")
"""Operations whose writes the ports do not see, or which write nothing if the table has no fault."""

CLEAR = (lancekeep.NotFound, lancekeep.Refused, lancekeep.Retryable, lancekeep.CommitUnknown)


def rows(by: int, *values: int) -> pa.Table:
    return pa.table({"a": pa.array(values, pa.int64()), "by": pa.array([by] * len(values), pa.int64())})


def fill(catalog: Catalog, by: int, versions: int) -> None:
    """Create a table. Its first fragments have the same sizes each time."""
    catalog.write("t", rows(by, 1, 2, 3))
    for version in range(1, versions):
        catalog.write("t", rows(by, 10 * version), "append")


def read(catalog: Catalog) -> Rows:
    """Return the rows that plain pylance reads; require every version, column and index to be readable."""
    uri = catalog.describe_table("t").uri
    for version in lance.dataset(uri).versions():
        lance.dataset(uri, version=version["version"]).to_table()
    dataset = lance.dataset(uri)
    found = dataset.to_table(columns=["a", "by"]).to_pydict()
    for value in found["a"]:
        assert dataset.count_rows(f"a = {value}") == 1
    return sorted(zip(found["a"], found["by"], strict=True))


# -- the operations ---------------------------------------------------------------------------------------------------


def plain(act: Act) -> Begin:
    return lambda catalog: partial(act, catalog)


def prepared(*acts: Act) -> Begin:
    """Return an operation that follows others, which are not disturbed."""

    def begin(catalog: Catalog) -> Callable[[], object]:
        for act in acts[:-1]:
            act(catalog)
        return partial(acts[-1], catalog)

    return begin


def keyed_append(catalog: Catalog) -> None:
    def act() -> Answer:
        catalog.write("t", rows(LATE, 7), "append")
        return Answer("")

    key = RequestKey.of("ann", "insert_into_table", ("t",), str(uuid4()))
    attempt = Attempt(fingerprint="7", act=act, committed=lambda _: Answer(""), shares=True)
    directory_of(catalog).requests.perform(key, attempt)


def fragments(catalog: Catalog) -> Callable[[], object]:
    plan = catalog.begin_write("t", rows(LATE, 7).schema, "append")
    written = lance.fragment.write_fragments(rows(LATE, 7), plan.uri, schema=plan.schema, mode=plan.fragment_mode)
    return lambda: catalog.commit_fragments(plan, written)


def rewritten(catalog: Catalog) -> Callable[[], object]:
    found = directory_of(catalog).engine.compaction.rewrite(catalog.open("t"), 1000)
    return lambda: catalog.upkeep.commit_compaction("t", found)


def transaction(catalog: Catalog) -> Callable[[], object]:
    """Prepare a transaction that adds a fragment, and does not name the version that it read."""
    dataset = catalog.open("t")
    [new] = lance.fragment.write_fragments(rows(LATE, 7), dataset)
    [file] = new.files
    data = DataFile(
        file.path, tuple(file.fields), tuple(file.column_indices), file.file_major_version, file.file_minor_version
    )
    append = operations.Append((Fragment(files=(data,), physical_rows=1),))
    return lambda: catalog.commit("t", operations.Transaction(dataset.version, str(uuid4()), operation=append))


def upsert(catalog: Catalog, *, update: bool = True, delete: bool = False) -> object:
    """Upsert rows; with ``delete``, which deletes nothing here, only the engine can."""
    rule = MergeRule(["a"], update=update, insert=True, delete=delete, delete_if="a = 1000" if delete else None)
    return catalog.data.merge("t", rows(LATE, 2, 7).to_reader(), rule)


def index(catalog: Catalog) -> object:
    return catalog.structure.create_index("t", NewIndex("a", "BTREE"))


def column(catalog: Catalog) -> object:
    return catalog.structure.add_columns("t", {"z": "a + by"})


def branch(catalog: Catalog) -> None:
    catalog.branches.create("t", "b")
    catalog.data.insert("t", rows(LATE, 7), branch="b")


def tag(catalog: Catalog) -> None:
    catalog.tags.create("t", "tag", 1)


def append_to_two(catalog: Catalog) -> None:
    with catalog.transaction() as transaction:
        transaction.write("t", rows(LATE, 7), "append")
        transaction.write("other", rows(LATE, 7), "append")


def unchanged(found: Rows) -> Rows:
    return found


def appended(found: Rows) -> Rows:
    return sorted([*found, (7, LATE)])


def updated(found: Rows) -> Rows:
    return sorted((a, LATE if a == 2 else by) for a, by in found)


def upserted(found: Rows) -> Rows:
    return appended(updated(found))


OPERATIONS: dict[str, tuple[Begin, Callable[[Rows], Rows]]] = {
    "append": (plain(lambda c: c.write("t", rows(LATE, 7), "append")), appended),
    "append a stream": (plain(lambda c: c.write("t", rows(LATE, 7).to_reader(), "append")), appended),
    "keyed append": (plain(keyed_append), appended),
    "commit fragments": (fragments, appended),
    "commit a transaction": (transaction, appended),
    "overwrite": (plain(lambda c: c.write("t", rows(LATE, 7), "overwrite")), lambda _: [(7, LATE)]),
    "delete": (plain(lambda c: c.data.delete("t", "a = 1")), lambda found: [row for row in found if row[0] != 1]),
    "delete a fragment": (
        plain(lambda c: c.data.delete("t", "a < 5")), lambda found: [row for row in found if row[0] >= 5]
    ),
    "update": (plain(lambda c: c.data.update("t", {"by": "2"}, "a = 2")), updated),
    "first upsert": (plain(upsert), upserted),
    "upsert": (prepared(lambda c: c.data.merge("t", rows(OLD, 2).to_reader(), MergeRule(["a"], update=True)), upsert),
        upserted),
    "insert what is new": (plain(partial(upsert, update=False)), appended),
    "merge": (plain(partial(upsert, delete=True)), upserted),
    "compact": (plain(lambda c: c.upkeep.compact("t")), unchanged),
    "compact with an index": (prepared(index, lambda c: c.upkeep.compact("t")), unchanged),
    "commit a compaction": (rewritten, unchanged),
    "add columns": (plain(column), unchanged),
    "alter columns": (
        plain(lambda c: c.structure.alter_columns("t", [ColumnChange("a", data_type=pa.int32())])), unchanged
    ),
    "drop columns": (prepared(column, lambda c: c.structure.drop_columns("t", ["z"])), unchanged),
    "create an index": (plain(index), unchanged),
    "merge indexes": (
        prepared(
            index,
            lambda c: c.write("t", rows(OLD, 40), "append"),
            lambda c: c.structure.merge_indexes("t", ["a_idx"]),
        ),
        unchanged,
    ),
    "set metadata": (plain(lambda c: c.structure.set_metadata("t", {"k": "v"})), unchanged),
    "set metadata of a field": (
        plain(lambda c: c.structure.set_field_metadata("t", [FieldMetadata("a", {"k": "v"})])), unchanged
    ),
    "restore": (plain(lambda c: c.versions.restore("t", 1)), lambda found: [row for row in found if row[0] < 5]),
    "create a branch": (plain(lambda c: c.branches.create("t", "b")), unchanged),
    "write to a branch": (
        prepared(branch, lambda c: c.data.insert("t", rows(LATE, 8), branch="b")), unchanged
    ),
    "fast-forward": (prepared(branch, lambda c: c.branches.fast_forward("t", "b")), unchanged),
    "delete a branch": (prepared(branch, lambda c: c.branches.delete("t", "b")), unchanged),
    "create a tag": (plain(tag), unchanged),
    "move a tag": (prepared(tag, lambda c: c.tags.update("t", "tag", 2)), unchanged),
    "clean up": (plain(lambda c: c.upkeep.cleanup(timedelta(0), grace=timedelta(0))), unchanged),
    "repair": (plain(lambda c: c.upkeep.fsck(deep=True, repair=True, grace=0)), unchanged),
    "transaction": (prepared(lambda c: c.write("other", rows(OLD, 1)), append_to_two), appended),
}  # fmt: skip


# -- the verdict ------------------------------------------------------------------------------------------------------


def connect(path: Path, place: str) -> Catalog:
    mode, url = PLACES[place]
    path.mkdir(exist_ok=True)
    return lancekeep.connect(
        str(path / "lake"),
        commit_store=url and url.format(f"{path.parent.name}{path.name}" if url.startswith("memory") else path),
        mode=mode,
        storage_options={"fsync": "false"},
    )


def is_counted(operation: str, method: str) -> bool:
    return operation in BY_THE_ENGINE or method not in READS


def states(
    path: Path, monkeypatch: pytest.MonkeyPatch, place: str, operation: str, versions: int
) -> Iterator[tuple[str, Catalog, object]]:
    """Recreate the table before each write of a port; yield the method, the catalog after it, and the outcome."""

    def connected(number: int) -> Catalog:
        is_new = not (path / str(number)).exists()
        catalog = connect(path / str(number), place)
        if is_new:
            fill(catalog, OLD, 3)
        return catalog

    def recreate(catalog: Catalog) -> None:
        catalog.drop_table("t")
        fill(catalog, NEW, versions)

    begin, _ = OPERATIONS[operation]
    counts = partial(is_counted, operation)
    found = outcomes_beside(monkeypatch, connected, begin, recreate, counts=counts)
    for number, (method, outcome) in enumerate(found, 1):
        with connect(path / str(number), place) as catalog:
            yield method, catalog, outcome


def require_new_table(catalog: Catalog, outcome: object, before: Rows, after: Rows) -> None:
    """Require the rows of the new table, changed by the operation or not, and that the table accepts an append."""
    found = read(catalog)
    assert found in (before, after)
    if isinstance(outcome, Exception):
        assert isinstance(outcome, CLEAR) or "dropped" in str(outcome)
    if isinstance(outcome, lancekeep.Refused) and "check whether" not in str(outcome):
        assert found == before
    schema = lance.dataset(catalog.describe_table("t").uri).schema
    more = pa.table({name: [NEW if name == "by" else 99] for name in schema.names}).cast(schema)
    catalog.write("t", more, "append")
    assert read(catalog) == sorted([*found, (99, NEW)])


def require_named(catalog: Catalog, outcome: object) -> None:
    """Require that a failed transaction names the other table if the table holds its commit."""
    is_committed = LATE in catalog.open("other").to_table()["by"].to_pylist()
    if isinstance(outcome, lancekeep.CommitRefused | lancekeep.Damaged):
        assert ("committed as version 2 of " in str(outcome)) is is_committed
    else:
        assert is_committed or isinstance(outcome, lancekeep.LancekeepError)


@pytest.mark.parametrize(("place", "versions"), ALL if "LANCEKEEP_ALL_STORES" in os.environ else FEW)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_operation_on_a_recreated_table_changes_the_new_table_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, operation: str, versions: int
) -> None:
    monkeypatch.setattr(direct_upserts, "_OFTEN", 0)
    for module in (appends, table_transactions):  # the new table is complete before the operation continues
        monkeypatch.setattr(module, "in_background", lambda act: act())
    before = sorted([(1, NEW), (2, NEW), (3, NEW), *((10 * version, NEW) for version in range(1, versions))])
    after = OPERATIONS[operation][1](before)
    count = 0
    for method, catalog, outcome in states(tmp_path, monkeypatch, place, operation, versions):
        count += 1
        if (operation, versions, method) == ("clean up", 2, "delete"):
            continue  # the request that is sent at this moment removes the latest version of the new table
        try:
            if operation == "transaction":
                require_named(catalog, outcome)
            require_new_table(catalog, outcome, before, after)
        except Exception as error:
            raise AssertionError(f"recreated before call {count}, {method}: {outcome!r}") from error
    assert count or (place, operation) == ("conditional-put", "transaction")  # which is refused at once


TURNS = [(place, *numbers) for place in ("conditional-put", "sqlite") for numbers in ((2, 1), (2, 2), (2, 3), (4, 1))]
"""Places, numbers of versions of the new table, and numbers of appends of this process to it."""
BY_TURNS = (
    "delete", "delete a fragment", "update", "first upsert", "upsert", "compact", "commit a compaction",
    "commit a transaction"
)  # fmt: skip
"""Operations that wait for a turn between two groups of appends."""


def outcome_beside(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object], meddle: Callable[[], object]) -> object:
    """Return the result of an operation or its error; ``meddle`` is called when it begins to wait for its turn."""
    real, meddled = handover.Handover.wait, list[object]()

    def wait(turn: handover.Handover, *latest: Any) -> Any:
        if not meddled:
            meddled.append(meddle())
        return real(turn, *latest)

    outcome: object
    with monkeypatch.context() as patch:
        patch.setattr(handover.Handover, "wait", wait)
        try:
            outcome = act()
        except Exception as error:
            outcome = error
    assert meddled
    return outcome


@pytest.mark.parametrize(("place", "versions", "appended"), TURNS)
@pytest.mark.parametrize("operation", BY_TURNS)
def test_table_is_recreated_while_an_operation_waits_for_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, operation: str, versions: int, appended: int
) -> None:
    catalog, other = (connect(tmp_path / "c", place) for _ in range(2))
    fill(catalog, OLD, 3)
    begin, change = OPERATIONS[operation]
    act = begin(catalog)

    def recreate() -> None:
        other.drop_table("t")
        fill(other, NEW, versions)
        for number in range(appended):
            catalog.write("t", rows(NEW, 50 + number), "append")

    outcome = outcome_beside(monkeypatch, act, recreate)
    before = [*((each, NEW) for each in (1, 2, 3)), *((10 * version, NEW) for version in range(1, versions))]
    before = sorted([*before, *((50 + number, NEW) for number in range(appended))])
    require_new_table(catalog, outcome, before, change(before))


def test_appends_do_not_follow_the_version_of_a_renamed_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, other = (connect(tmp_path / "c", "hashed") for _ in range(2))
    fill(catalog, OLD, 3)

    def replace() -> None:
        other.rename_table("t", "u")
        fill(other, NEW, 2)
        catalog.write("t", rows(NEW, 50), "append")

    outcome_beside(monkeypatch, lambda: catalog.data.delete("t", "a = 1"), replace)
    before = [(1, NEW), (2, NEW), (3, NEW), (10, NEW), (50, NEW)]
    require_new_table(catalog, None, before, before)
    found = lance.dataset(catalog.describe_table("u").uri).to_table()["a"].to_pylist()
    assert sorted(found) in ([1, 2, 3, 10, 20], [2, 3, 10, 20])


def delete_versions(catalog: Catalog) -> object:
    versions = directory_of(catalog).versions
    return versions.delete_versions(versions.dataset_root(catalog.find_table("t")), range(1, 6))


REMOVALS: dict[str, Act] = {
    "clean up": lambda c: c.upkeep.cleanup(timedelta(0), grace=timedelta(0)),
    "delete versions": delete_versions,
}


@pytest.mark.parametrize("place", ["conditional-put", "sqlite", "storage-managed"])
@pytest.mark.parametrize("name", REMOVALS)
def test_removal_of_versions_ends_when_the_table_is_recreated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, name: str
) -> None:
    """Only the request that is sent at the moment can hit the new table."""

    def connected(number: int) -> Catalog:
        is_new = not (tmp_path / str(number)).exists()
        catalog = connect(tmp_path / str(number), place)
        if is_new:
            fill(catalog, OLD, 6)
        return catalog

    def recreate(catalog: Catalog) -> None:
        catalog.drop_table("t")
        fill(catalog, NEW, 6)

    act = partial(plain, REMOVALS[name])()
    found = outcomes_beside(monkeypatch, connected, act, recreate, counts=lambda method: method == "delete")
    numbers = []
    for number, _ in enumerate(found, 1):
        with connect(tmp_path / str(number), place) as catalog:
            versions = [each["version"] for each in lance.dataset(catalog.describe_table("t").uri).versions()]
            assert len(versions) >= 5, number
            assert versions[-1] == 6
            catalog.write("t", rows(NEW, 99), "append")
            assert [by for _, by in read(catalog)] == [NEW] * 9
        numbers.append(number)
    assert len(numbers) >= 5
