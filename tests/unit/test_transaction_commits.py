"""Transactions over stores that crash, lose replies and lose rows; the tests compare stored bytes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
from faults import Crash, Faulty, crash_at, lost_replies
from unchecked import unchecked

from lancekeep.adapters.commit_stores.memory import MemoryCommitStore
from lancekeep.adapters.object_stores.memory import MemoryObjectStore
from lancekeep.application.commits.table_commits import TableCommits
from lancekeep.application.commits.transaction_commits import Candidate, TransactionCommits
from lancekeep.application.retry import Retry
from lancekeep.domain.commit import Committed, Conflict, Unknown
from lancekeep.domain.commit_token import CommitToken
from lancekeep.domain.errors import CommitRefused, CommitStoreMismatch, Damaged, InvalidInput, StoreUnavailable
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.naming import ManifestName, NamingScheme
from lancekeep.domain.transaction import AllCommitted
from lancekeep.domain.version_row import VersionRow

UUIDS = count(1)
NAMES = count()
TABLES = ("a", "b")
Decide = Callable[[str, int], tuple[str, BaseException] | None]


class World:
    """Two tables with one version each, and a way to commit to both."""

    def __init__(self) -> None:
        self.objects = MemoryObjectStore()
        self.rows = MemoryCommitStore(f"batch-{next(NAMES)}")
        self.roots = {name: DatasetRoot(name, self.objects.root_uri + name) for name in TABLES}
        for name in TABLES:
            self.commit(name, 1)

    def commits(self, *, objects: object = None, rows: object = None, patience: float = 5.0) -> TableCommits:
        clock = count(0.0, 0.001)
        retry = Retry(patience, clock=lambda: next(clock), sleep=lambda _: None, jitter=lambda: 0.5)
        return TableCommits(objects or self.objects, rows or self.rows, "tester", retry)  # type: ignore[arg-type] # doubles

    def stage(self, name: str, version: int) -> Candidate:
        root = self.roots[name]
        path = f"{root.versions_key}{NamingScheme.V2.final_name(version)}-{next(UUIDS):08x}"
        self.objects.put(path, f"{path}LANC".encode())
        return Candidate(root, version, path, None)

    def batch(self, version: int = 2) -> list[Candidate]:
        return [self.stage(name, version) for name in TABLES]

    def commit(self, name: str, version: int) -> None:
        each = self.stage(name, version)
        outcome = self.commits().commit(each.root, version, each.path, None, branch=False, check=unchecked)
        assert isinstance(outcome, Committed)

    def content(self, name: str, version: int) -> bytes | None:
        """What a plain reader of the directory finds."""
        info = self.objects.head(self.roots[name].manifest_key(version, NamingScheme.V2))
        return None if info is None else self.objects.get(info.key)

    def holds(self, batch: list[Candidate]) -> list[bool]:
        """Of which tables the final version is that of the batch."""
        return [(self.content(each.root.key, each.version) or b"").startswith(each.path.encode()) for each in batch]

    def staged(self) -> list[str]:
        names = (info.key for root in self.roots.values() for info in self.objects.list(root.versions_key))
        return [key for key in names if ManifestName.parse(key.rpartition("/")[2]).is_staged]  # type: ignore[union-attr] # all are manifests


@pytest.fixture
def world() -> World:
    return World()


def test_transaction_costs_one_reserve_and_one_publication_per_table(world: World) -> None:
    batch = world.batch()
    objects, rows = Faulty(world.objects), Faulty(world.rows)
    commits = world.commits(objects=objects, rows=rows)
    for each in batch:
        assert commits.latest(each.root) is not None  # as every writer reads it
    rows.calls.clear()
    objects.calls.clear()
    outcome = TransactionCommits(commits).commit(batch, unchecked)
    assert isinstance(outcome, AllCommitted)
    assert [(each.version, each.path) for each in outcome.versions] == [
        (2, each.root.manifest_key(2, NamingScheme.V2)) for each in batch
    ]
    assert dict(rows.counts) == {"reserve_all": 1, "finalize": 2}
    assert dict(objects.counts) == {"get": 2, "copy_if_absent": 2, "delete": 2}
    assert world.holds(batch) == [True, True]


@pytest.mark.parametrize("reader", [TABLES, TABLES[::-1]])
@pytest.mark.parametrize("when", ["before", "after"])
def test_crash_at_any_call_publishes_all_or_nothing_to_the_next_reader(when: str, reader: tuple[str, ...]) -> None:
    for nth in count():
        world = World()
        world.commit("b", 2)
        world.rows.delete(world.roots["b"].base_uri, [2])  # the store lost its row: the batch has to adopt it
        batch = [world.stage("a", 2), world.stage("b", 3)]
        objects, rows = Faulty(world.objects), Faulty(world.rows)
        calls = count()

        def decide(name: str, _: int, calls: count[int] = calls, nth: int = nth) -> tuple[str, BaseException] | None:
            return crash_at(nth, when)(name, next(calls))

        objects.decide = rows.decide = decide
        try:
            outcome = TransactionCommits(world.commits(objects=objects, rows=rows)).commit(batch, unchecked)
        except Crash:
            outcome = None
        versions = {name: world.commits().latest(world.roots[name]) for name in reader}
        decided = [each.version == getattr(versions[each.root.key], "version", None) for each in batch]
        assert world.holds(batch) == decided
        assert decided in ([True, True], [False, False]), nth
        again = TransactionCommits(world.commits()).commit(batch, unchecked) if not decided[0] else outcome
        assert decided == [True, True] or isinstance(again, AllCommitted)
        if outcome is not None:
            assert nth > 12
            return


@pytest.mark.parametrize("replies", [1, 3])
@pytest.mark.parametrize("method", ["reserve_all", "finalize", "copy_if_absent", "delete"])
def test_lost_replies_commit_exactly_once(world: World, method: str, replies: int) -> None:
    batch = world.batch()
    objects, rows = Faulty(world.objects), Faulty(world.rows)
    (rows if method in ("reserve_all", "finalize") else objects).decide = lost_replies(method, replies)
    assert isinstance(
        TransactionCommits(world.commits(objects=objects, rows=rows)).commit(batch, unchecked), AllCommitted
    )
    assert world.holds(batch) == [True, True]
    assert not world.staged()
    assert [row and row.version for row in world.rows.latest_all([root.base_uri for root in world.roots.values()])] == [
        2,
        2,
    ]


@pytest.mark.parametrize("finished", [("a",), ("b",), TABLES])
@pytest.mark.parametrize("overtaken", [False, True])
def test_transaction_that_a_reader_finalized_is_reported_as_committed(
    world: World, finished: tuple[str, ...], overtaken: bool
) -> None:
    batch = world.batch()
    rows = Faulty(world.rows)
    lose = lost_replies("reserve_all", 1)

    def others_first(name: str, nth: int) -> tuple[str, BaseException] | None:
        if name == "reserve_all" and rows.counts["reserve_all"] == 1:
            for table in finished:
                world.commits().latest(world.roots[table])
                if overtaken:
                    world.commit(table, 3)
                    world.commits().delete(world.roots[table], [1])
        return lose(name, nth)

    rows.decide = others_first
    assert isinstance(TransactionCommits(world.commits(rows=rows)).commit(batch, unchecked), AllCommitted)
    assert world.holds(batch) == [True, True]
    assert not world.staged()


def test_version_removed_by_cleanup_counts_as_committed_if_another_proves_it(world: World) -> None:
    batch = world.batch()
    rows = Faulty(world.rows)
    lose = lost_replies("reserve_all", 1)

    def gone(name: str, nth: int) -> tuple[str, BaseException] | None:
        if name == "reserve_all" and rows.counts["reserve_all"] == 1:
            world.commit("a", 3)  # which publishes version 2
            world.commits().delete(world.roots["a"], [1, 2])
        return lose(name, nth)

    rows.decide = gone
    assert isinstance(TransactionCommits(world.commits(rows=rows)).commit(batch, unchecked), AllCommitted)
    assert world.holds(batch) == [False, True]
    assert world.content("a", 3) is not None


@pytest.mark.parametrize("taken", TABLES)
@pytest.mark.parametrize("published", [False, True])
def test_conflict_on_one_table_aborts_the_transaction(world: World, taken: str, published: bool) -> None:
    batch = world.batch()
    other = world.stage(taken, 2)
    row = VersionRow(other.root.base_uri, 2, other.path, len(world.objects.get(other.path)))
    assert world.rows.reserve(row, first=False)
    if published:
        world.commits().latest(other.root)
    outcome = TransactionCommits(world.commits()).commit(batch, unchecked)
    assert isinstance(outcome, Conflict)
    assert outcome.winner is not None
    assert outcome.winner.base_uri == other.root.base_uri
    assert not any(each.path in world.staged() for each in batch)
    assert world.holds(batch) == [False, False]
    for name in TABLES:
        latest = world.commits().latest(world.roots[name])
        assert latest is not None
        assert latest.version == (2 if name == taken else 1)


def test_token_settles_the_whole_unknown_transaction(world: World) -> None:
    for effect in ("before", "after"):
        world = World()
        batch = world.batch()
        rows = Faulty(world.rows)
        rows.decide = lambda name, _, effect=effect: (
            (effect, StoreUnavailable("no reply")) if name == "reserve_all" else None
        )
        objects = Faulty(world.objects)
        outcome = TransactionCommits(world.commits(objects=objects, rows=rows, patience=0.05)).commit(batch, unchecked)
        assert isinstance(outcome, Unknown)
        assert "delete" not in objects.calls
        token = CommitToken.parse(str(outcome.token))
        assert token == outcome.token
        assert len(token.members) == 2
        if effect == "after":
            world.commits().latest(world.roots["b"])  # one table is read, the other is not
        for _ in range(2):
            assert isinstance(TransactionCommits(world.commits()).resolve(token), AllCommitted)
        assert world.holds(batch) == [True, True]
        assert not world.staged()


def test_token_of_taken_versions_resolves_to_a_conflict(world: World) -> None:
    batch = world.batch()
    rows = Faulty(world.rows, lambda name, _: ("before", StoreUnavailable("down")) if name == "reserve_all" else None)
    outcome = TransactionCommits(world.commits(rows=rows, patience=0.05)).commit(batch, unchecked)
    assert isinstance(outcome, Unknown)
    world.commit("b", 2)
    for _ in range(2):
        assert isinstance(TransactionCommits(world.commits()).resolve(outcome.token), Conflict)
    assert world.holds(batch) == [False, False]
    assert not world.staged()


def test_impossible_transaction_is_refused_and_changes_nothing(world: World) -> None:
    a, b = world.batch()
    with pytest.raises(InvalidInput, match="at least one"):
        TransactionCommits(world.commits()).commit([], unchecked)
    with pytest.raises(InvalidInput, match="one new version of each table"):
        TransactionCommits(world.commits()).commit([a, world.stage("a", 3)], unchecked)
    with pytest.raises(CommitRefused, match="would leave a gap"):
        TransactionCommits(world.commits()).commit([a, world.stage("b", 5)], unchecked)
    fence = VersionRow.fence(b.root.base_uri, 2, "redis://elsewhere:6379/0")
    assert world.rows.reserve(fence, first=False)
    with pytest.raises(CommitStoreMismatch, match="elsewhere"):
        TransactionCommits(world.commits()).commit([a, b], unchecked)
    latest = world.rows.latest(a.root.base_uri)
    assert latest is not None
    assert latest.version == 1


def test_partial_transaction_after_a_lost_row_raises_damaged(world: World) -> None:
    """No order of calls can prevent a part; docs/transactions.md explains why."""
    batch = world.batch()
    objects = Faulty(world.objects)
    done: list[str] = []

    def forget(name: str, _: int) -> tuple[str, BaseException] | None:
        if name == "copy_if_absent" and not done:
            done.append(name)
            world.rows.delete(batch[1].root.base_uri, [2])
            world.commit("b", 2)
        return None

    objects.decide = forget
    with pytest.raises(Damaged, match=r"version 2 of memory:///b belongs to another writer.*lost an acknowledged row"):
        TransactionCommits(world.commits(objects=objects)).commit(batch, unchecked)
    assert world.holds(batch) == [True, False]


def test_commit_without_the_store_keeps_the_table_readable(world: World) -> None:
    batch = world.batch()
    rows = Faulty(world.rows, lambda name, _: ("after", StoreUnavailable("lost")) if name == "reserve_all" else None)
    outcome = TransactionCommits(world.commits(rows=rows, patience=0.05)).commit(batch, unchecked)
    assert isinstance(outcome, Unknown)
    world.objects.put(world.roots["a"].manifest_key(2, NamingScheme.V2), b"of a writer that knows no commit store")
    world.commits().latest(world.roots["a"])  # what lies there stands, and our staged manifest goes
    with pytest.raises(Damaged, match="a writer committed without it"):
        TransactionCommits(world.commits()).resolve(outcome.token)
    assert world.holds(batch) == [False, True]
    assert world.commits().latest(world.roots["b"]) is not None
