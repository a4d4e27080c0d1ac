"""Any sequence of transactions of `catalog.commit` and of pylance leaves the rows and settings of a model."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import attrs
import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from lance import LanceOperation
from lance.fragment import write_fragments

import lancekeep
from lancekeep.application.catalog import directory_of
from lancekeep.domain.operations import Transaction
from lancekeep.format.table_version import TableVersion

Rows = frozenset[int]
COMMITS, RETRIES, REFUSED = "commits", "retries", "is refused"
KEYS = ("k", "l")
MINE = st.sampled_from(
    [*["delete"] * 4, *["update"] * 3, *["compact"] * 3, "append", "append", "configure", "overwrite", "restore"]
)
THEIRS = st.sampled_from(
    [*["delete"] * 4, *["update"] * 2, "append", "configure", "index", "compact", "overwrite", "restore"]
)
PICKS = st.tuples(st.sampled_from(range(24)), st.sampled_from([1, 1, 2, 3, 5]))
Step = tuple[str, tuple[int, int]]
"""A kind of operation, the first row, version or key that it affects, and how many rows."""


@attrs.frozen
class Version:
    """A version in the model.

    Attributes:
        kind: The operation that made it.
        touched: The rows that the operation deleted or replaced.
        moves: Whether it removed or rewrote whole fragments.
        key: The key that it set.
    """

    rows: Rows
    config: dict[str, str]
    kind: str
    touched: Rows = frozenset()
    moves: bool = False
    key: str = ""


@attrs.frozen
class Prepared:
    """A transaction that was built on a version, and is committed later."""

    kind: str
    transaction: Transaction
    added: Rows = frozenset()
    deleted: Rows = frozenset()
    moves: bool = False
    key: str = ""
    value: str = ""
    restored: int = 0
    rewritten: Sequence[Any] = ()

    def outcomes(self, since: list[Version]) -> set[str]:
        """Return what may become of it after other versions, by the words of the documentation."""
        kinds = {version.kind for version in since}
        gone = bool(kinds & {"overwrite", "restore"})
        match self.kind:
            case "append":
                return {REFUSED if gone else COMMITS}
            case "delete" | "update" if gone:
                return {REFUSED}
            case "delete" | "update":
                if any(not self.deleted.isdisjoint(version.touched) for version in since):
                    return {RETRIES}
                moves = any(version.moves or (self.moves and version.touched) for version in since)
                return {COMMITS, RETRIES} if moves else {COMMITS}
            case "compact" if gone:
                return {REFUSED, RETRIES}
            case "compact":
                return {COMMITS, RETRIES} if kinds & {"delete", "update", "compact", "index"} else {COMMITS}
            case "overwrite":
                return {RETRIES if "overwrite" in kinds else COMMITS}
            case "configure":
                return {REFUSED if any(version.key == self.key for version in since) else COMMITS}
        return {COMMITS}


class Transactions(RuleBasedStateMachine):
    stable_row_ids = False

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.uri = self.directory / "lake" / "t.lance"
        self.versions: dict[int, Version] = {}
        self.committed: list[tuple[Prepared, Any]] = []
        self.next = 0

    def teardown(self) -> None:
        try:
            for number, version in self.versions.items():
                assert self.rows_of(lance.dataset(self.uri, version=number)) == version.rows, number
            assert self.catalog.upkeep.fsck(deep=True, grace=0).findings == ()
        finally:
            shutil.rmtree(self.directory)

    @initialize(fragments=st.integers(1, 3))
    def create(self, fragments: int) -> None:
        for number in range(fragments):
            mode: Any = "append" if number else "create"
            lance.write_dataset(self.new(6), self.uri, mode=mode, enable_stable_row_ids=self.stable_row_ids)
            self.versions[number + 1] = Version(frozenset(range(self.next)), {}, "append")
        store = f"file://{self.directory}/commits?fsync=false"
        options = {"fsync": "false"}
        with lancekeep.connect(str(self.directory / "lake"), storage_options=options) as catalog:
            catalog.upkeep.change_commit_store(store)
        self.catalog = lancekeep.connect(str(self.directory / "lake"), commit_store=store, storage_options=options)

    @rule(
        mine=st.lists(st.tuples(MINE, PICKS), min_size=1, max_size=3),
        theirs=st.lists(st.tuples(THEIRS, PICKS), max_size=2),
        detached=st.booleans(),
        repeated=st.booleans(),
    )
    def race(self, mine: list[Step], theirs: list[Step], detached: bool, repeated: bool) -> None:
        """Build transactions on one version, let pylance commit others, then commit the transactions."""
        built = [prepared for kind, picks in mine if (prepared := self.prepare(kind, *picks)) is not None]
        for kind, picks in theirs:
            self.natively(kind, *picks)
        for prepared in built:
            self.commit(prepared)
        if detached and built and not built[0].rewritten:
            self.commit_detached(built[0])
        if repeated and self.committed:
            prepared, committed = self.committed[0]
            assert self.catalog.commit("t", prepared.transaction).version == committed.version

    # -- through pylance ----------------------------------------------------------------------------------------

    def natively(self, kind: str, pick: int, count: int) -> None:
        """Commit by pylance, through the catalog, and add the versions to the model."""
        before, fragments, table = self.versions[self.latest], self.fragment_ids(), self.catalog.open("t")
        after = before
        match kind:
            case "append" | "overwrite":
                added = self.new(count)
                lance.write_dataset(added, table, mode=kind)
                after = self.after(Prepared(kind, Transaction(), self.ids(added)), before)
            case "delete" if gone := self.some(pick, count):
                table.delete(within(gone))
                after = self.after(Prepared(kind, Transaction(), deleted=gone), before)
            case "update" if gone := self.some(pick, 1):
                added = self.new(1)
                table.update({"a": str(*self.ids(added))}, where=within(gone))
                after = self.after(Prepared(kind, Transaction(), self.ids(added), gone), before)
            case "restore":
                number = self.a_version(pick)
                table.checkout_version(number).restore()
                after = self.after(Prepared(kind, Transaction(), restored=number), before)
            case "configure":
                value = str(uuid4())
                table.update_config({KEYS[pick % 2]: value})
                after = self.after(Prepared(kind, Transaction(), key=KEYS[pick % 2], value=value), before)
            case "index":
                table.create_scalar_index("a", "BTREE", replace=True)
                after = attrs.evolve(before, kind="index", touched=frozenset(), moves=False, key="")
            case "compact":
                table.optimize.compact_files()
                after = attrs.evolve(before, kind="compact", touched=frozenset(), moves=False, key="")
        self.follow(lance.dataset(self.uri).version, after, fragments)

    def follow(self, last: int, after: Version, fragments: set[int]) -> None:
        """Add the versions of one change; those before its last one reserve ids for a compaction."""
        before = self.versions[self.latest]
        for number in range(self.latest + 1, last):
            self.versions[number] = Version(before.rows, before.config, "reserve")
        if last > self.latest:
            moves = after.moves or not fragments <= self.fragment_ids()
            self.versions[last] = attrs.evolve(after, moves=moves)

    # -- through catalog.commit ---------------------------------------------------------------------------------

    def prepare(self, kind: str, pick: int, count: int) -> Prepared | None:
        """Build a transaction on the latest version; None if there is no row to change."""
        match kind:
            case "append":
                added = self.new(count)
                return Prepared(kind, self.recorded(LanceOperation.Append(self.fragments(added))), self.ids(added))
            case "overwrite":
                added = self.new(count)
                operation: Any = LanceOperation.Overwrite(added.schema, self.fragments(added))
                return Prepared(kind, self.recorded(operation), self.ids(added))
            case "restore":
                number = self.a_version(pick)
                transaction = attrs.evolve(self.recorded(LanceOperation.Restore(number)), read_version=self.latest)
                return Prepared(kind, transaction, restored=number)
            case "configure":
                key, value = KEYS[pick % 2], str(uuid4())
                update: Any = LanceOperation.UpdateMap({key: value}, False)
                transaction = self.recorded(LanceOperation.UpdateConfig(config_updates=update))
                return Prepared(kind, transaction, key=key, value=value)
            case "compact":
                rewritten = directory_of(self.catalog).engine.compaction.rewrite(self.catalog.open("t"), 1000)
                return Prepared(kind, Transaction(self.latest), rewritten=rewritten) if rewritten else None
        gone = self.some(pick, count)
        if not gone:
            return None
        hit = [each for each in lance.dataset(self.uri).get_fragments() if each.count_rows(within(gone))]
        left = {each.fragment_id: each.delete(within(gone)) for each in hit}
        empty = [number for number, fragment in left.items() if fragment is None]
        changed = [each for each in left.values() if each]
        if kind == "update":
            added = self.new(len(gone))
            moved = LanceOperation.Update(empty, changed, list(self.fragments(added)), update_mode="rewrite_rows")
            return Prepared("update", self.recorded(moved), self.ids(added), gone, moves=bool(empty))
        operation = LanceOperation.Delete(changed, empty, within(gone))
        return Prepared("delete", self.recorded(operation), deleted=gone, moves=bool(empty))

    def commit(self, prepared: Prepared) -> None:
        latest, before = self.latest, self.fragment_ids()
        since = range(prepared.transaction.read_version + 1, latest + 1)
        allowed = prepared.outcomes([self.versions[number] for number in since])
        try:
            if prepared.rewritten:
                committed = self.catalog.upkeep.commit_compaction("t", prepared.rewritten)
            else:
                committed = self.catalog.commit("t", prepared.transaction)
            found = COMMITS
        except lancekeep.ConcurrentModification:
            found = RETRIES
        except (lancekeep.CommitRefused, lancekeep.Unsupported):  # the latter from the engine, if the index is gone
            found = REFUSED
        assert found in allowed, (prepared, allowed)
        if found == COMMITS:
            assert committed.version == latest + 1 or prepared.rewritten
            after = self.after(prepared, self.versions[latest])
            self.follow(committed.version, after, before)
            if not prepared.rewritten:
                self.committed.append((prepared, committed))
        elif (last := lance.dataset(self.uri).version) > latest:  # the engine has reserved ids
            assert prepared.rewritten
            self.follow(last, attrs.evolve(self.versions[latest], kind="reserve", touched=frozenset()), before)

    def commit_detached(self, prepared: Prepared) -> None:
        transaction = attrs.evolve(prepared.transaction, uuid=str(uuid4()))
        committed = self.catalog.commit("t", transaction, detached=True)
        detached = lance.dataset(self.uri).checkout_version(committed.version)
        expected = self.after(prepared, self.versions[transaction.read_version])
        assert (self.rows_of(detached), dict(detached.config())) == (expected.rows, expected.config)

    @invariant()
    def plain_readers_see_the_model(self) -> None:
        if self.versions:
            table = lance.dataset(self.uri)
            table.validate()
            expected = self.versions[self.latest]
            assert table.version == self.latest
            assert (self.rows_of(table), dict(table.config())) == (expected.rows, expected.config)
            some = self.some(0, 3)
            assert table.to_table(filter=within(some)).num_rows == len(some)

    # -- helpers ------------------------------------------------------------------------------------------------

    @property
    def latest(self) -> int:
        return max(self.versions)

    @property
    def rows(self) -> Rows:
        return self.versions[self.latest].rows

    def after(self, prepared: Prepared, before: Version) -> Version:
        """Return the version that follows ``before`` by the model."""
        match prepared.kind:
            case "restore":
                restored = self.versions[prepared.restored]
                return Version(restored.rows, restored.config, "restore", moves=True)
            case "overwrite":
                return Version(prepared.added, before.config, "overwrite", before.rows, moves=True)
            case "configure":
                config = {**before.config, prepared.key: prepared.value}
                return Version(before.rows, config, "configure", key=prepared.key)
        rows = (before.rows | prepared.added) - prepared.deleted
        return Version(rows, before.config, prepared.kind, prepared.deleted)

    def recorded(self, operation: Any) -> Transaction:
        """Return the transaction of an operation on the latest version, as pylance records it."""
        copy = self.directory / str(uuid4())
        shutil.copytree(self.uri, copy)
        version = lance.LanceDataset.commit(copy, operation, read_version=self.latest).version
        path = copy / "_versions" / f"{2**64 - 1 - version}.manifest"
        transaction = TableVersion.parse(path.read_bytes(), path.name).transaction
        shutil.rmtree(copy)
        assert transaction is not None
        return transaction

    def fragments(self, rows: pa.Table) -> Any:
        return write_fragments(rows, self.uri, schema=rows.schema, mode="append")

    def fragment_ids(self) -> set[int]:
        return {fragment.fragment_id for fragment in lance.dataset(self.uri).get_fragments()}

    def new(self, count: int) -> pa.Table:
        ids = range(self.next, self.next + count)
        self.next += count
        return pa.table({"a": pa.array(ids, pa.int64()), "b": [str(number) for number in ids]})

    def some(self, pick: int, count: int) -> Rows:
        rows = sorted(self.rows)
        at = pick % len(rows) if rows else 0
        return frozenset(rows[at : at + count])

    def a_version(self, pick: int) -> int:
        return 1 + pick % self.latest

    @staticmethod
    def ids(table: pa.Table) -> Rows:
        return frozenset(table["a"].to_pylist())

    @staticmethod
    def rows_of(dataset: Any) -> Rows:
        found: list[int] = dataset.to_table()["a"].to_pylist()
        assert len(found) == len(set(found))
        return frozenset(found)


class WithStableRowIds(Transactions):
    stable_row_ids = True


def within(rows: Rows) -> str:
    return f"a in ({', '.join(map(str, sorted(rows)))})" if rows else "a < 0"


@pytest.mark.slow
@pytest.mark.parametrize("machine", [Transactions, WithStableRowIds])
def test_any_sequence_of_transactions_leaves_the_rows_of_a_model(machine: type[Transactions]) -> None:
    budget = settings(
        max_examples=12,
        stateful_step_count=8,
        derandomize=True,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=budget)
