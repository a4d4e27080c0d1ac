"""A rename that moves files beside writers: every acknowledged version has the new name, and no refused one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Barrier, Event, Thread
from typing import Any

import lance
import pyarrow as pa
import pytest
from faults import Crash, killed_at_each_state, outcomes_beside

import lancekeep
from lancekeep.adapters.lance.channels import Channel
from lancekeep.application.catalog import directory_of
from lancekeep.application.rows import moved_tables
from lancekeep.application.rows.moved_tables import MovedTables
from lancekeep.application.upkeep.relocation import Relocation
from lancekeep.application.upkeep.renames import Renames
from lancekeep.domain.manifest_entry import MOVING_TO

STORES = ["none", "conditional-put", "sqlite"]


def rows(*values: int) -> pa.Table:
    return pa.table({"a": pa.array(values, pa.int64())})


def connect(path: Path, store: str = "none") -> lancekeep.Catalog:
    urls = {"sqlite": f"sqlite://{path}/commits.db", "conditional-put": "conditional-put://"}
    return lancekeep.connect(str(path / "lake"), commit_store=urls.get(store), storage_options={"fsync": "false"})


def values(catalog: lancekeep.Catalog, name: str) -> list[int]:
    return sorted(catalog.open(name).to_table()["a"].to_pylist())


def record_of(catalog: lancekeep.Catalog, name: str = "t") -> str | None:
    entry = directory_of(catalog).ledger.fresh().find(name)
    return None if entry is None else entry.properties.get(MOVING_TO)


class Racer:
    """A writer that finds the table by its old or new name; it remembers which rows were acknowledged or refused."""

    def __init__(
        self, catalog: lancekeep.Catalog, number: int, begin: Barrier, stop: Event, *, by_handle: bool
    ) -> None:
        self._catalog, self._first = catalog, 100_000 * (number + 1)
        self._begin, self._stop, self._by_handle = begin, stop, by_handle
        self.acknowledged: set[int] = set()
        self.refused: set[int] = set()

    def run(self) -> None:
        value = self._first
        self._begin.wait()
        while not self._stop.is_set():
            value += 1
            for name in ("t", "u"):
                try:
                    if self._by_handle:
                        self._catalog.open(name).insert(rows(value), mode="append")
                    else:
                        self._catalog.write(name, rows(value), "append")
                except lancekeep.TableNotFound:
                    continue
                except (OSError, ValueError, lancekeep.CommitUnknown):  # not learnt
                    break
                except lancekeep.LancekeepError:
                    self.refused.add(value)
                    break
                self.acknowledged.add(value)
                break


@pytest.mark.parametrize("store", STORES)
def test_rename_beside_writers_loses_no_row_and_brings_no_refused_row(tmp_path: Path, store: str) -> None:
    for turn in range(4):
        path = tmp_path / str(turn)
        path.mkdir()
        catalog = connect(path, store)
        catalog.write("t", rows(0))
        begin, stop = Barrier(4), Event()
        racers = [Racer(connect(path, store), number, begin, stop, by_handle=number == 2) for number in range(3)]
        threads = [Thread(target=racer.run) for racer in racers]
        for thread in threads:
            thread.start()
        begin.wait()
        try:
            assert catalog.rename_table("t", "u").id.name == "u"
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        found = values(connect(path, store), "u")
        assert len(found) == len(set(found))
        assert set().union(*(racer.acknowledged for racer in racers)) <= set(found)
        assert not set(found).intersection(*(racer.refused for racer in racers))


def at(monkeypatch: pytest.MonkeyPatch, owner: Any, step: str, act: Callable[[], Any], *, after: bool = False) -> None:
    """``act`` happens once, before or after the next call of a step."""
    itself, acts = getattr(owner, step), [act]

    def meddled(self: Any, *arguments: Any) -> Any:
        if acts and not after:
            acts.pop()()
        result = itself(self, *arguments)
        if acts and after:
            acts.pop()()
        return result

    monkeypatch.setattr(owner, step, meddled)


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("by_handle", [False, True])
def test_acknowledged_version_keeps_its_number_under_the_new_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, by_handle: bool
) -> None:
    """The first commit under the new name took the number of a version that the rename had still to carry over."""
    monkeypatch.setattr(moved_tables, "_RENAME_PAUSES", (0.0,))
    monkeypatch.setattr(MovedTables, "_before_commit", lambda self, table, view: view)  # it began before
    catalog, other, third = (connect(tmp_path, store) for _ in range(3))
    catalog.write("t", rows(1))

    def append() -> None:
        if by_handle:
            other.open("t").insert(rows(2), mode="append")
        else:
            other.write("t", rows(2), "append")

    at(monkeypatch, Renames, "_enter", append)
    at(monkeypatch, Relocation, "carry_over", lambda: third.write("u", rows(3), "append"))
    catalog.rename_table("t", "u")
    assert values(third, "u") == [1, 2, 3]
    assert [each.version for each in third.versions.history("u")] == [3, 2, 1]
    assert third.list_tables() == ["u"]
    assert third.upkeep.fsck(grace=0).findings == ()


@pytest.mark.parametrize("store", STORES)
def test_writer_waits_until_the_rename_has_carried_its_version_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    catalog, other = connect(tmp_path, store), connect(tmp_path, store)
    catalog.write("t", rows(1))
    written, carried = Event(), Event()
    confirmed = MovedTables._require_unmoved
    answers: list[object] = []

    def renamed_before_the_check(*arguments: Any, **named: Any) -> None:
        written.set()
        assert carried.wait(20)
        confirmed(*arguments, **named)

    def append() -> None:
        try:
            answers.append(other.write("t", rows(2), "append").version)
        except lancekeep.LancekeepError as error:
            answers.append(error)

    monkeypatch.setattr(MovedTables, "_before_commit", lambda self, table, view: view)  # it began before
    monkeypatch.setattr(MovedTables, "_require_unmoved", renamed_before_the_check)
    writer = Thread(target=append)

    def commit() -> None:
        writer.start()
        assert written.wait(20)

    at(monkeypatch, Renames, "_enter", commit)
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            proceed.set()
            assert done.wait(20)

    proceed, done = Event(), Event()
    monkeypatch.setattr(directory_of(other).commits.retry, "sleep", sleep)

    def hold() -> None:  # the entry has the new name, and the version is not there yet
        carried.set()
        assert proceed.wait(20)

    at(monkeypatch, Relocation, "carry_over", hold)
    catalog.rename_table("t", "u")
    done.set()
    writer.join()
    assert answers == [2]
    assert values(catalog, "u") == [1, 2]


def test_commit_stops_a_rename_that_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, other = connect(tmp_path), connect(tmp_path)
    catalog.write("t", rows(1), properties={"owner": "me"})
    position = catalog.changes.latest()

    def kill() -> None:
        raise Crash

    with monkeypatch.context() as patch:
        at(patch, Renames, "_enter", kill)
        with pytest.raises(Crash):
            catalog.rename_table("t", "u")
    assert record_of(other) is not None
    assert other.describe_table("t").properties == {"owner": "me"}
    assert other.changes.read(position).changes == []
    pauses: list[float] = []
    monkeypatch.setattr(directory_of(other).commits.retry, "sleep", pauses.append)
    assert other.write("t", rows(2), "append").version == 2
    assert 1 < sum(pauses) < 5
    assert record_of(other) is None
    pauses.clear()
    assert other.write("t", rows(3), "append").version == 3
    assert not pauses
    other.upkeep.fsck(repair=True, grace=0)
    catalog.rename_table("t", "u")
    assert values(other, "u") == [1, 2, 3]
    assert other.upkeep.fsck(grace=0).findings == ()


@pytest.mark.parametrize("act", ["deregister", "drop"])
def test_table_removed_during_its_rename_comes_back_without_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    catalog, other = connect(tmp_path), connect(tmp_path)
    catalog.write("t", rows(1))
    remove = other.deregister_table if act == "deregister" else lambda name: other.drop_table(name, keep=60)
    at(monkeypatch, Renames, "_enter", lambda: remove("t"))
    with pytest.raises(lancekeep.TableNotFound):
        catalog.rename_table("t", "u")
    if act == "deregister":
        other.register_table("t", "t.lance")
    else:
        other.undrop("t")
    assert record_of(other) is None
    lance.write_dataset(rows(2), other.describe_table("t").uri, mode="append")  # no fence stops a native writer
    assert values(other, "t") == [1, 2]


def test_rename_that_fails_removes_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, other = connect(tmp_path), connect(tmp_path)
    catalog.write("t", rows(1))
    at(monkeypatch, Renames, "_enter", lambda: other.declare_table("u"))
    with pytest.raises(lancekeep.TableAlreadyExists):
        catalog.rename_table("t", "u")
    assert record_of(other) is None
    assert other.upkeep.fsck(grace=0).findings == ()


def test_later_rename_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, other = connect(tmp_path), connect(tmp_path)
    catalog.write("t", rows(1))
    with monkeypatch.context() as patch:

        def overtake() -> None:
            patch.undo()
            with monkeypatch.context() as again:
                at(again, Renames, "_enter", fail)
                with pytest.raises(Crash):
                    other.rename_table("t", "v")

        def fail() -> None:
            raise Crash

        at(patch, Renames, "_enter", overtake)
        with pytest.raises(lancekeep.ConcurrentModification, match="another rename"):
            catalog.rename_table("t", "u")
    assert record_of(other) is not None  # the record of the other rename stays
    catalog.rename_table("t", "u")
    assert values(other, "u") == [1]


@pytest.mark.parametrize("store", ["none", "sqlite"])
def test_killed_rename_loses_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str) -> None:
    monkeypatch.setattr(moved_tables, "_RENAME_PAUSES", (0.0,))
    now = tmp_path / "now"
    now.mkdir()
    connect(now, store).write("t", rows(1))
    kills = 0
    for kill in killed_at_each_state(
        monkeypatch, now, lambda: connect(now, store), lambda catalog: catalog.rename_table("t", "u")
    ):
        kills += 1
        catalog = connect(now, store)
        (name,) = catalog.list_tables()
        catalog.write(name, rows(2), "append")
        assert values(catalog, name) == [1, 2], kill
        assert record_of(catalog, name) is None
        catalog.upkeep.fsck(repair=True, remove_tables=True, grace=0)
        if name == "t":
            catalog.rename_table("t", "u")
        assert values(catalog, "u") == [1, 2], kill
    assert kills > 5


# -- at each call of a store ------------------------------------------------------------------------------------------

LEAVES: dict[str, Callable[[lancekeep.Catalog], object]] = {
    "renamed": lambda catalog: catalog.rename_table("t", "u"),
    "dropped": lambda catalog: catalog.drop_table("t"),
}
READS: dict[str, Callable[[lancekeep.Catalog], object]] = {
    "open": lambda catalog: catalog.open("t"),
    "open by version": lambda catalog: catalog.open("t", version=1),
    "describe": lambda catalog: catalog.versions.describe("t"),
    "indexes": lambda catalog: catalog.structure.indexes("t"),
    "branches": lambda catalog: catalog.branches.list("t"),
}


def place(path: Path, store: str) -> Callable[[int], lancekeep.Catalog]:
    """Return a function that connects to the n-th catalog, which has a table with two versions."""

    def connected(number: int) -> lancekeep.Catalog:
        at = path / str(number)
        known = at.exists()
        at.mkdir(exist_ok=True)
        catalog = connect(at, store)
        if not known:
            catalog.write("t", rows(1))
            catalog.write("t", rows(2), "append")
        return catalog

    return connected


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("leave", LEAVES)
@pytest.mark.parametrize("read", READS)
def test_read_of_a_table_that_is_renamed_or_dropped_finds_no_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, leave: str, read: str
) -> None:
    """Reads called such a table damaged, whose callers would look for a repair."""
    outcomes = [
        outcome
        for _, outcome in outcomes_beside(
            monkeypatch, place(tmp_path, store), lambda catalog: lambda: READS[read](catalog), LEAVES[leave]
        )
    ]
    errors = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
    assert len(errors) > 5
    assert [error for error in errors if not isinstance(error, lancekeep.TableNotFound)] == []


def written(catalog: lancekeep.Catalog, value: int, *, after: Callable[[], object] = lambda: None) -> Callable[[], int]:
    """Begin a write of fragments; return its commit. ``after`` happens between the plan and the data files."""
    plan = catalog.begin_write("t", rows(value).schema, "append")
    after()
    fragments = lance.fragment.write_fragments(rows(value), plan.uri, schema=plan.schema, mode=plan.fragment_mode)
    return lambda: catalog.commit_fragments(plan, fragments).version


WRITES: dict[str, Callable[[lancekeep.Catalog], Callable[[], object]]] = {
    "fragments": lambda catalog: written(catalog, 3),
    "append": lambda catalog: lambda: catalog.write("t", rows(3), "append"),
    "overwrite": lambda catalog: lambda: catalog.write("t", rows(3), "overwrite"),
    "restore": lambda catalog: lambda: catalog.versions.restore("t", 1),
    "delete": lambda catalog: lambda: catalog.data.delete("t", "a = 1"),
}


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("leave", LEAVES)
@pytest.mark.parametrize("write", WRITES)
def test_write_to_a_table_that_is_renamed_or_dropped_is_committed_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, leave: str, write: str
) -> None:
    """Writes of fragments reported a missing version, which says nothing of the commit."""
    expected = (lancekeep.TableNotFound, lancekeep.Refused, lancekeep.Retryable, lancekeep.CommitUnknown)
    connected = place(tmp_path, store)
    others = []
    for number, (_, outcome) in enumerate(outcomes_beside(monkeypatch, connected, WRITES[write], LEAVES[leave]), 1):
        if isinstance(outcome, Exception) and not isinstance(outcome, expected):
            others.append(outcome)
        catalog = connected(number)
        if isinstance(outcome, lancekeep.Refused) and "u" in catalog.list_tables():
            was_committed = 3 in values(catalog, "u")
            assert not was_committed or "check whether" in str(outcome), outcome
    assert others == []


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("leave", LEAVES)
def test_commit_of_fragments_written_after_a_rename_or_drop_is_refused(tmp_path: Path, store: str, leave: str) -> None:
    """The data files bring the old name back, as a table without versions."""
    catalog, other = connect(tmp_path, store), connect(tmp_path, store)
    other.write("t", rows(1))
    commit = written(catalog, 2, after=lambda: LEAVES[leave](other))
    with pytest.raises(lancekeep.CommitRefused):
        commit()


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("leave", LEAVES)
def test_commit_whose_columns_cannot_be_compared_after_a_rename_or_drop_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, leave: str
) -> None:
    """Files of another writer bring the name back, and the writer heard that a version was cleaned up."""
    catalog, other = connect(tmp_path, store), connect(tmp_path, store)
    other.write("t", rows(1))
    commit = written(catalog, 2, after=lambda: other.write("t", rows(3), "append"))

    def leave_files() -> None:
        of_another = other.begin_write("t", rows(4).schema, "append")
        LEAVES[leave](other)
        lance.fragment.write_fragments(rows(4), of_another.uri, schema=of_another.schema, mode=of_another.fragment_mode)

    at(monkeypatch, Channel, "_require_fitting", leave_files)
    with pytest.raises(lancekeep.CommitRefused, match="dropped or renamed"):
        commit()
