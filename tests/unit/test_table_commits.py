"""The runner of the commit protocol with lost replies, crashes, lost rows and other finalizers, in memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from itertools import count

import pytest
from faults import Crash, Faulty, crash_at, lost_replies
from unchecked import unchecked

from lancekeep.adapters.commit_stores.memory import MemoryCommitStore
from lancekeep.adapters.object_stores.memory import MemoryObjectStore
from lancekeep.application.commits.managed_rows import ManagedRows
from lancekeep.application.commits.table_commits import TableCommits
from lancekeep.application.retry import Retry
from lancekeep.application.upkeep.commit_store_move import move_history
from lancekeep.application.upkeep.relocation import Relocation
from lancekeep.domain.commit import Committed, Conflict, Unknown
from lancekeep.domain.commit_token import CommitToken, StagedManifest
from lancekeep.domain.errors import (
    AccessDenied,
    CommitRefused,
    CommitStoreMismatch,
    Damaged,
    LancekeepError,
    Refused,
    StoreUnavailable,
)
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.naming import ManifestName, NamingScheme
from lancekeep.domain.version_row import Reserved, VersionRow
from lancekeep.format.judge import Approved
from lancekeep.ports.object_store import ObjectStoreGuarantees

NAMES = count()
UUIDS = count()


class World:
    """One dataset with its object store and commit store, and a way to commit to it."""

    def __init__(self) -> None:
        self.objects = MemoryObjectStore()
        self.rows = MemoryCommitStore(f"world-{next(NAMES)}")
        self.root = DatasetRoot("t.lance", self.objects.root_uri + "t.lance")

    def commits(self, *, objects: object = None, rows: object = None, patience: float = 5.0) -> TableCommits:
        clock = count(0.0, 0.001)
        retry = Retry(patience, clock=lambda: next(clock), sleep=lambda _: None, jitter=lambda: 0.5)
        return TableCommits(objects or self.objects, rows or self.rows, "tester", retry)  # type: ignore[arg-type] # doubles

    def stage(self, version: int, text: str = "") -> str:
        name = NamingScheme.V2.final_name(version)
        path = f"{self.root.versions_key}{name}-{next(UUIDS):08x}"
        self.objects.put(path, f"{path}{text}LANC".encode())
        return path

    def commit(self, version: int, commits: TableCommits | None = None, path: str | None = None) -> object:
        path = path or self.stage(version)
        return (commits or self.commits()).commit(self.root, version, path, None, branch=False, check=unchecked)

    def fill(self, versions: int) -> None:
        for version in range(1, versions + 1):
            assert isinstance(self.commit(version), Committed)

    def history(self) -> dict[int, bytes]:
        """What a plain reader of the directory sees; and no gap in it."""
        found = {}
        for info in self.objects.list(self.root.versions_key):
            name = ManifestName.parse(info.key.rpartition("/")[2])
            if name is not None and not name.is_staged:
                found[name.version] = self.objects.get(info.key)
        assert sorted(found) == list(range(1, len(found) + 1))
        return found

    def staged(self) -> list[str]:
        return [info.key for info in self.objects.list(self.root.versions_key) if ".manifest-" in info.key]


@pytest.fixture
def world() -> World:
    return World()


def test_commit_costs_one_reserve_one_copy_one_publish_and_one_delete(world: World) -> None:
    world.fill(2)
    objects, rows = Faulty(world.objects), Faulty(world.rows)
    path = world.stage(3)
    commits = world.commits(objects=objects, rows=rows)
    assert commits.latest(world.root) is not None  # as every writer reads it
    rows.calls.clear()
    objects.calls.clear()
    assert isinstance(world.commit(3, commits, path), Committed)
    assert dict(rows.counts) == {"reserve": 1, "finalize": 1}
    assert dict(objects.counts) == {"get": 1, "copy_if_absent": 1, "delete": 1}
    rows.calls.clear()
    objects.calls.clear()
    assert commits.get(world.root, 3) is not None  # native reads its own version back: that costs nothing
    assert not rows.calls
    assert world.commits(objects=objects, rows=rows).latest(world.root)
    assert dict(rows.counts) == {"latest": 1}
    assert dict(objects.counts) == {"head": 1}  # of the version after it


@pytest.mark.parametrize("replies", [1, 3])
@pytest.mark.parametrize("method", ["reserve", "finalize", "copy_if_absent", "delete"])
def test_lost_replies_commit_exactly_once(world: World, method: str, replies: int) -> None:
    world.fill(1)
    path = world.stage(2)
    content = world.objects.get(path)
    objects, rows = Faulty(world.objects), Faulty(world.rows)
    (rows if method in ("reserve", "finalize") else objects).decide = lost_replies(method, replies)
    assert isinstance(world.commit(2, world.commits(objects=objects, rows=rows), path), Committed)
    assert world.history()[2] == content
    assert not world.staged()
    assert [row.version for row in world.rows.list(world.root.base_uri, after=None, limit=None, descending=False)] == [
        1,
        2,
    ]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("method", "expected"),
    [("reserve", Unknown), ("copy_if_absent", Unknown), ("finalize", Committed), ("delete", Committed)],
)
def test_unreachable_store_gives_the_correct_outcome_and_deletes_nothing(
    world: World, method: str, expected: type, when: str
) -> None:
    world.fill(1)
    path = world.stage(2)
    content = world.objects.get(path)

    def down(name: str, _: int) -> tuple[str, BaseException] | None:
        return (when, StoreUnavailable("down")) if name == method else None

    objects, rows = Faulty(world.objects, down), Faulty(world.rows, down)
    outcome = world.commit(2, world.commits(objects=objects, rows=rows, patience=0.05), path)
    assert isinstance(outcome, expected)
    if isinstance(outcome, Unknown):
        assert "delete" not in objects.calls
        assert world.objects.get(path) == content
        for token in (outcome.token, CommitToken.parse(str(outcome.token))):
            assert isinstance(world.commits().resolve(token), Committed)
    assert world.commits().latest(world.root) == world.commits().get(world.root, 2)
    assert world.history()[2] == content


def test_resolve_reports_a_conflict_if_another_writer_has_the_version(world: World) -> None:
    world.fill(1)
    path = world.stage(2)

    def down(name: str, _: int) -> tuple[str, BaseException] | None:
        return ("before", StoreUnavailable("down")) if name == "reserve" else None

    outcome = world.commit(2, world.commits(rows=Faulty(world.rows, down), patience=0.05), path)
    assert isinstance(outcome, Unknown)
    other = world.stage(2)
    assert isinstance(world.commit(2, path=other), Committed)
    settled = world.commits().resolve(outcome.token)
    assert isinstance(settled, Conflict)
    assert settled.winner is not None
    assert settled.winner.version == 2
    assert world.commits().resolve(outcome.token) == Conflict(settled.winner)
    assert world.history()[2] == other.encode() + b"LANC"
    assert not world.staged()


def test_resolve_without_the_staged_manifest_reserves_nothing(world: World) -> None:
    world.fill(1)
    token = lost_commit(world)
    assert isinstance(world.commits().resolve(token), Unknown)
    assert world.rows.get(world.root.base_uri, 2) is None


def test_resolve_withdraws_its_reservation_of_a_missing_manifest(world: World) -> None:
    world.fill(1)
    token = lost_commit(world)
    assert world.rows.reserve(token.staged.row, first=False) == Reserved()
    with pytest.raises(Damaged):
        world.commits().latest(world.root)
    assert isinstance(world.commits().resolve(token), Unknown)
    assert isinstance(world.commit(2), Committed)


def test_commit_without_its_staged_manifest_withdraws_the_reservation(world: World) -> None:
    """The table is dropped and recreated in its directory while the writer is paused."""
    world.fill(1)
    path = world.stage(2)

    def drop(name: str, _: int) -> None:
        if name == "copy_if_absent":
            world.objects.delete(path)

    assert isinstance(world.commit(2, world.commits(objects=Faulty(world.objects, drop)), path), Unknown)
    assert world.rows.get(world.root.base_uri, 2) is None
    assert isinstance(world.commit(2), Committed)


def test_restored_row_of_a_dropped_table_is_removed_again(world: World) -> None:
    """Otherwise the next table in that directory would continue the old history."""
    world.fill(1)

    def drop(name: str, _: int) -> None:
        if name == "finalize":
            world.rows.delete(world.root.base_uri)
            for info in list(world.objects.list(world.root.versions_key)):
                world.objects.delete(info.key)

    world.commit(2, world.commits(rows=Faulty(world.rows, drop)))
    assert world.rows.latest(world.root.base_uri) is None
    assert isinstance(world.commit(1), Committed)


def test_row_recorded_with_lost_reply_is_removed_if_its_table_was_dropped(world: World) -> None:
    world.fill(1)
    reply_to_record = lost_replies("record", 1)
    rows = Faulty(world.rows)

    def drop_before_finalize(name: str, nth: int) -> tuple[str, BaseException] | None:
        if name == "finalize" and "finalize" not in rows.calls:
            world.rows.delete(world.root.base_uri)
            for info in list(world.objects.list(world.root.versions_key)):
                world.objects.delete(info.key)
        return reply_to_record(name, nth)

    rows.decide = drop_before_finalize
    world.commit(2, world.commits(rows=rows))
    assert rows.counts["record"] == 2
    assert world.rows.latest(world.root.base_uri) is None
    assert isinstance(world.commit(1), Committed)


def test_resolve_keeps_the_reservation_of_another_writer(world: World) -> None:
    world.fill(1)
    token = lost_commit(world)
    other = VersionRow(world.root.base_uri, 2, world.stage(2), 9)
    assert world.rows.reserve(other, first=False) == Reserved()
    assert isinstance(world.commits().resolve(token), Unknown)
    assert world.rows.get(world.root.base_uri, 2) == other


def lost_commit(world: World) -> CommitToken:
    """Return the token of a commit of version 2 whose manifest is missing, as after a drop."""
    path = world.stage(2)
    content = world.objects.get(path)
    world.objects.delete(path)
    return CommitToken(StagedManifest(world.root.base_uri, 2, path, len(content), digest=sha256(content).hexdigest()))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("nth", range(5))
def test_crash_at_any_port_call_is_recovered_by_the_next_participant(world: World, nth: int, when: str) -> None:
    world.fill(2)
    path = world.stage(3)
    content = world.objects.get(path)
    calls: list[str] = []

    def decide(name: str, _: int) -> tuple[str, BaseException] | None:
        calls.append(name)
        return crash_at(nth, when)(name, len(calls) - 1)

    objects, rows = Faulty(world.objects), Faulty(world.rows)
    commits = world.commits(objects=objects, rows=rows)
    assert commits.latest(world.root) is not None  # as every writer reads it
    objects.decide = rows.decide = decide
    with pytest.raises(Crash):
        world.commit(3, commits, path)
    assert len(world.history()) in (2, 3)  # who knows nothing of the commit store is at most one version behind
    latest = world.commits().latest(world.root)
    assert latest is not None
    assert latest.version == len(world.history())
    if latest.version == 3:
        assert world.history()[3] == content
        left = [path] if (nth, when) in ((3, "after"), (4, "before")) else []
        assert world.staged() == left  # published but not removed: a file that nothing refers to
    following = world.commit(latest.version + 1)
    assert isinstance(following, Committed)
    assert len(world.history()) == latest.version + 1


@pytest.mark.parametrize("nth", range(5))
def test_crash_of_a_helper_is_recovered_by_the_next_participant(world: World, nth: int) -> None:
    world.fill(1)
    path = world.stage(2)
    assert world.rows.reserve(VersionRow(world.root.base_uri, 2, path, 9), first=False)
    calls: list[str] = []

    def decide(name: str, _: int) -> tuple[str, BaseException] | None:
        calls.append(name)
        return crash_at(nth, "after")(name, len(calls) - 1)

    with pytest.raises(Crash):
        world.commits(objects=Faulty(world.objects, decide), rows=Faulty(world.rows, decide)).latest(world.root)
    latest = world.commits().latest(world.root)
    assert latest is not None
    assert latest.is_final
    assert latest.size == len(world.objects.get(latest.path))
    assert world.staged() == ([path] if nth == 3 else [])


def test_read_only_reader_raises_instead_of_returning_an_older_version(world: World) -> None:
    """The latest row is staged, and this reader can neither copy the manifest nor change the row."""
    world.fill(1)
    path = world.stage(2)
    assert world.rows.reserve(VersionRow(world.root.base_uri, 2, path, 9), first=False)

    def read_only(name: str, _: int) -> tuple[str, BaseException] | None:
        writes = ("put", "put_if_absent", "copy_if_absent", "copy", "delete", "reserve", "finalize", "record")
        return (
            ("before", AccessDenied(f"{name}: the credentials at hand do not permit this")) if name in writes else None
        )

    reader = world.commits(objects=Faulty(world.objects, read_only), rows=Faulty(world.rows, read_only))
    with pytest.raises(LancekeepError, match="do not permit"):
        reader.latest(world.root)
    assert world.staged() == [path]
    latest = world.commits().latest(world.root)  # a participant that may write finishes it
    assert latest is not None
    assert latest.is_final
    assert reader.latest(world.root) == latest


def test_writer_recognizes_its_commit_that_a_reader_finalized(world: World) -> None:
    """The reply of reserve is lost, a reader finalizes the commit, and the writer retries."""
    world.fill(1)
    path = world.stage(2)
    content = world.objects.get(path)
    first = [True]

    def decide(name: str, _: int) -> tuple[str, BaseException] | None:
        if name == "reserve" and first[0]:
            first[0] = False
            return "after", StoreUnavailable("the reply was lost")
        if name == "reserve":
            assert world.commits().latest(world.root) == VersionRow(
                world.root.base_uri, 2, path.partition("-")[0], len(content), "tester"
            )
        return None

    assert isinstance(world.commit(2, world.commits(rows=Faulty(world.rows, decide)), path), Committed)
    assert world.history()[2] == content


def test_lost_row_is_restored_when_it_is_published(world: World) -> None:
    world.fill(1)
    path = world.stage(2)

    def forget(name: str, _: int) -> tuple[str, BaseException] | None:
        if name == "finalize":
            world.rows.delete(world.root.base_uri, [2])
        return None

    assert isinstance(world.commit(2, world.commits(rows=Faulty(world.rows, forget)), path), Committed)
    row = world.rows.get(world.root.base_uri, 2)
    assert row is not None
    assert row.is_final


def test_acknowledged_version_survives_a_lost_row(world: World) -> None:
    """A failover loses the row of version 3. Its final object stays, and the next writer of 3 conflicts."""
    world.fill(3)
    before = world.history()
    world.rows.delete(world.root.base_uri, [3])
    assert isinstance(world.commit(3), Conflict)
    assert world.history() == before
    assert not world.staged()
    assert isinstance(world.commit(4), Committed)


def test_read_only_reader_finds_versions_without_rows(world: World) -> None:
    world.fill(4)
    world.rows.delete(world.root.base_uri, [3, 4])

    def read_only(name: str, _: int) -> tuple[str, BaseException] | None:
        return ("before", AccessDenied(f"{name}: not permitted")) if name in ("record", "delete") else None

    latest = world.commits(rows=Faulty(world.rows, read_only)).latest(world.root)
    assert latest is not None
    assert latest.version == 4
    assert [row.version for row in world.rows.list(world.root.base_uri, after=None, limit=None, descending=False)] == [
        1,
        2,
    ]


def test_version_deleted_while_a_reader_records_its_row_leaves_no_row(world: World) -> None:
    """The reader checks the manifest before the delete removes it."""
    world.fill(4)

    def read(name: str, _: int) -> None:
        if name == "delete":
            assert world.commits().page(world.root, None, None, True)

    commits = world.commits(objects=Faulty(world.objects, read))
    assert commits.delete(world.root, [1, 2]) == 2
    assert [row.version for row in world.rows.list(world.root.base_uri, after=None, limit=None, descending=False)] == [
        3,
        4,
    ]


def test_reader_of_a_concurrently_deleted_version_returns_the_latest(world: World) -> None:
    """The reader finds a staged row. Two commits and a deletion then remove the version."""
    world.fill(1)
    path = world.stage(2)
    assert world.rows.reserve(VersionRow(world.root.base_uri, 2, path, 9), first=False) == Reserved()

    def others(name: str, _: int) -> None:
        if name == "copy_if_absent":
            world.commit(3)
            world.commits().delete(world.root, [1, 2])

    latest = world.commits(objects=Faulty(world.objects, others)).latest(world.root)
    assert latest is not None
    assert latest.version == 3


def test_table_dropped_while_a_reader_searches_for_versions_leaves_no_row(world: World) -> None:
    world.fill(3)
    world.rows.delete(world.root.base_uri, [3])

    def drop(name: str, _: int) -> None:
        if name == "record":
            world.rows.delete(world.root.base_uri)
            for info in list(world.objects.list(world.root.versions_key)):
                world.objects.delete(info.key)

    world.commits(rows=Faulty(world.rows, drop)).latest(world.root)
    assert world.rows.latest(world.root.base_uri) is None


@pytest.mark.parametrize("scheme", list(NamingScheme))
def test_history_without_rows_is_adopted_newest_first(world: World, scheme: NamingScheme) -> None:
    for version in (1, 2, 3, 12):
        world.objects.put(world.root.manifest_key(version, scheme), b"manifest LANC")
    entered: list[int] = []
    rows = Faulty(world.rows)

    class Spy:
        url, guarantees = world.rows.url, world.rows.guarantees

        def __getattr__(self, name: str) -> Callable[..., object]:
            def call(*args: object, **kwargs: object) -> object:
                if name == "record":
                    entered.extend(row.version for row in args[0])  # type: ignore[attr-defined] # rows
                return getattr(rows, name)(*args, **kwargs)

            return call

    commits = world.commits(rows=Spy())
    latest = commits.latest(world.root)
    assert latest is not None
    assert latest.version == 12
    assert entered == [12, 3, 2, 1]
    assert [row.version for row in commits.page(world.root, None, None, True)] == [12, 3, 2, 1]
    assert [row.version for row in commits.page(world.root, 1, 2, False)] == [2, 3]


def test_table_dropped_during_its_adoption_leaves_no_row(world: World) -> None:
    keys = [world.root.manifest_key(version, NamingScheme.V2) for version in (1, 2)]
    for key in keys:
        world.objects.put(key, b"manifest LANC")

    def drop(method: str, _: int) -> None:
        for key in keys if method == "record" else ():
            world.objects.delete(key)

    assert world.commits(rows=Faulty(world.rows, drop)).latest(world.root) is None
    assert world.rows.list(world.root.base_uri, after=None, limit=None, descending=False) == []


def test_reserving_a_directory_deletes_only_rows_without_manifests(world: World) -> None:
    world.fill(2)
    world.objects.delete(world.root.manifest_key(2, NamingScheme.V2))  # of a table that lay here before
    world.commits().forget_predecessor(world.root)
    left = world.rows.list(world.root.base_uri, after=None, limit=None, descending=False)
    assert [row.version for row in left] == [1]  # of one that began here when the directory was taken


def test_mixed_naming_schemes_raise_an_error(world: World) -> None:
    world.objects.put(world.root.manifest_key(1, NamingScheme.V2), b"LANC")
    world.objects.put(world.root.manifest_key(2, NamingScheme.V1), b"LANC")
    with pytest.raises(Damaged, match="mixes the V1 and V2"):
        world.commits().latest(world.root)


def test_row_without_a_manifest_raises_damaged(world: World) -> None:
    world.fill(1)
    path = world.stage(2)
    world.rows.reserve(VersionRow(world.root.base_uri, 2, path, 9), first=False)
    world.objects.delete(path)
    with pytest.raises(Damaged, match="neither that staged manifest nor the final manifest exists"):
        world.commits().latest(world.root)


def fill_with_names(world: World, scheme: NamingScheme) -> None:
    for version in (1, 2):
        path = f"{world.root.manifest_key(version, scheme)}-0b1d{version}"
        world.objects.put(path, b"manifest LANC")
        assert isinstance(world.commit(version, path=path), Committed)


def test_manifest_with_a_v2_name_is_refused_in_a_table_of_v1_names(world: World) -> None:
    fill_with_names(world, NamingScheme.V1)
    staged = f"{world.root.manifest_key(3, NamingScheme.V2)}-0b1d3"
    world.objects.put(staged, b"manifest LANC")
    knowing = world.commits()
    assert knowing.latest(world.root) is not None
    for commits in (world.commits(), knowing):
        with pytest.raises(CommitRefused, match=r"named by the scheme V2, .* by V1"):
            world.commit(3, commits, staged)
    latest = world.commits().latest(world.root)
    assert latest is not None
    assert latest.version == 2
    assert world.staged() == [staged]


@pytest.mark.parametrize("knows", [True, False])
def test_manifest_with_a_v1_name_gets_a_v2_name_in_a_table_of_v2_names(world: World, knows: bool) -> None:
    fill_with_names(world, NamingScheme.V1)
    commits = world.commits()
    if knows:  # the process read the table while it had V1 names
        assert commits.latest(world.root) is not None
    other = world.commits()
    approved = Approved(3, "", b"switch LANC", "")
    built, _ = other.commit_built(world.root, approved, check=unchecked, scheme=NamingScheme.V2)
    assert isinstance(built, Committed)
    stale = f"{world.root.manifest_key(3, NamingScheme.V1)}-0b1d3"
    world.objects.put(stale, b"manifest LANC")
    assert isinstance(world.commit(3, commits, stale), Conflict)
    staged = f"{world.root.manifest_key(4, NamingScheme.V1)}-0b1d4"
    world.objects.put(staged, b"manifest LANC")
    committed = world.commit(4, commits, staged)
    assert committed == Committed(4, world.root.manifest_key(4, NamingScheme.V2), 13)
    assert world.objects.get(committed.path) == b"manifest LANC"
    assert world.staged() == []


def test_gaps_are_refused(world: World) -> None:
    world.fill(2)
    for version in (4, 9):
        with pytest.raises(CommitRefused, match="leave a gap"):
            world.commit(version)
    assert isinstance(world.commit(2), Conflict)
    assert isinstance(world.commit(1), Conflict)
    assert len(world.history()) == 2


def test_branch_begins_once_with_the_number_of_its_parent(world: World) -> None:
    world.fill(4)
    branch = world.root.branch("b1")

    def stage(version: int) -> str:
        path = f"{branch.versions_key}{NamingScheme.V2.final_name(version)}-{next(UUIDS):08x}"
        world.objects.put(path, b"LANC" + path.encode() + b"LANC")
        return path

    commits = world.commits()
    assert isinstance(commits.commit(branch, 4, stage(4), None, branch=True, check=unchecked), Committed)
    assert isinstance(commits.commit(branch, 5, stage(5), None, branch=True, check=unchecked), Committed)
    with pytest.raises(CommitRefused, match="leave a gap"):
        commits.commit(branch, 8, stage(8), None, branch=True, check=unchecked)
    assert [history.key for history in commits.histories(world.root)] == ["t.lance", "t.lance/tree/b1"]


@pytest.mark.parametrize(
    "path",
    [
        "other.lance/_versions/18446744073709551613.manifest-aaaa",
        "t.lance/_versions/18446744073709551613.manifest",
        "t.lance/_versions/18446744073709551612.manifest-aaaa",
        "t.lance/_versions/../_versions/18446744073709551613.manifest-aaaa",
        "t.lance/data/18446744073709551613.manifest-aaaa",
        "t.lance/_versions/d18446744073709551613.manifest-aaaa",
        "/t.lance/_versions/18446744073709551613.manifest-aaaa",
        "",
    ],
)
def test_staged_manifest_of_another_table_or_version_is_refused(world: World, path: str) -> None:
    world.fill(1)
    with pytest.raises(CommitRefused, match="not a staged manifest"):
        world.commits().commit(world.root, 2, path, None, branch=False, check=unchecked)


def test_missing_truncated_or_invalid_staged_manifest_is_refused(world: World) -> None:
    world.fill(1)
    path = world.stage(2)
    with pytest.raises(CommitRefused, match=r"has \d+ bytes where 7 were announced"):
        world.commits().commit(world.root, 2, path, 7, branch=False, check=unchecked)
    world.objects.put(path, b"not a manifest")
    with pytest.raises(CommitRefused, match="not a Lance manifest"):
        world.commits().commit(world.root, 2, path, None, branch=False, check=unchecked)
    world.objects.delete(path)
    with pytest.raises(CommitRefused, match="does not exist"):
        world.commits().commit(world.root, 2, path, None, branch=False, check=unchecked)
    assert world.rows.get(world.root.base_uri, 2) is None


def test_deleting_versions_keeps_the_latest_and_leaves_no_free_version(world: World) -> None:
    world.fill(5)
    commits = world.commits()
    with pytest.raises(Refused, match="is the latest"):
        commits.delete(world.root, [4, 5])
    assert commits.delete(world.root, [1, 2, 4, 99]) == 3
    assert commits.delete(world.root, [1, 2, 4]) == 0
    assert commits.get(world.root, 4) is None
    assert isinstance(world.commit(4), Conflict)
    assert isinstance(world.commit(6), Committed)


def test_moved_history_is_fenced_in_the_old_store(world: World) -> None:
    world.fill(3)
    commits = world.commits()
    new = MemoryCommitStore(f"world-{next(NAMES)}")
    target = world.commits(rows=new)
    assert move_history(commits, world.root, target.rows) == 3
    assert move_history(commits, world.root, target.rows) == 3  # repeating it completes it
    for version in (4, 5):
        with pytest.raises(CommitStoreMismatch, match="moved to memory://"):
            world.commit(version)
    with pytest.raises(CommitStoreMismatch, match="Connect with that commit store"):
        world.commits().latest(world.root)
    assert isinstance(world.commit(4, world.commits(rows=new)), Committed)
    assert move_history(target, world.root, commits.rows) == 4  # and back again
    assert isinstance(world.commit(5), Committed)


def test_commits_go_to_the_store_of_the_move_and_both_stores_are_closed(world: World) -> None:
    world.fill(2)
    commits = world.commits(rows=(old := Faulty(world.rows)))
    new = Faulty(MemoryCommitStore(f"world-{next(NAMES)}"))
    move_history(commits, world.root, ManagedRows(new, None, world.objects.root_uri))
    commits.move_to(new)
    old.calls.clear()
    assert isinstance(world.commit(3, commits), Committed)
    assert [row.version for row in commits.page(world.root, None, None, False)] == [1, 2, 3]
    assert not old.calls
    commits.rows.close()
    assert old.calls[-1] == new.calls[-1] == "close"


def test_store_without_atomic_create_copies_after_the_reservation(world: World) -> None:
    class Plain(Faulty):
        guarantees = ObjectStoreGuarantees(atomic_create=False, atomic_copy=False, durable=True)

    objects = Plain(world.objects)
    assert isinstance(world.commit(1, world.commits(objects=objects)), Committed)
    assert not {"put_if_absent", "copy_if_absent"} & set(objects.calls)
    assert len(world.history()) == 1


def test_rename_without_atomic_create_copies_after_a_reservation(world: World) -> None:
    """Other writers already commit to the new directory, so a reservation decides before the write."""
    root = DatasetRoot("u", "memory:///u")
    told: list[object] = []

    class Plain(MemoryObjectStore):
        guarantees = ObjectStoreGuarantees(atomic_create=False, atomic_copy=False, durable=True)

        def put(self, key: str, content: bytes) -> None:
            if key == root.manifest_key(1, NamingScheme.V2) and not told:
                staged = f"{key}-another"
                super().put(staged, b"another LANC")
                told.append(None)
                told[:] = [commits.commit(root, 1, staged, None, branch=False, check=unchecked)]
            super().put(key, content)

    world.objects = Plain()
    commits = world.commits()
    move = Relocation(commits, world.root, root)
    move.copy()
    assert isinstance(world.commit(1), Committed)  # by who had the table open at the old place
    with suppress(Damaged):
        move.carry_over()
    final = world.objects.get(root.manifest_key(1, NamingScheme.V2))
    assert (final == b"another LANC") == isinstance(told[0], Committed)
    assert [row.path for row in commits.page(root, None, None, True)] == [root.manifest_key(1, NamingScheme.V2)]
