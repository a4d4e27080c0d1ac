"""One process commits the appends and upserts of a table for all processes of a host: no row is lost or doubled."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any
from uuid import uuid4

import lance
import pyarrow as pa
import pytest
from appending import held_back
from cluster_keys import cluster_in

import lancekeep
from lancekeep.adapters.committers import tls_connections, unix
from lancekeep.adapters.lance.rows import LanceRows
from lancekeep.application.catalog import directory_of
from lancekeep.application.rows import forwarding, waiting_upserts
from lancekeep.application.rows.idempotency import Answer, Attempt
from lancekeep.application.upkeep import shared_committers
from lancekeep.application.upkeep.shared_committers import SharedCommitters
from lancekeep.composition import Sharing, open_catalog
from lancekeep.config import ConnectionConfig, given
from lancekeep.domain.commit import Committed
from lancekeep.domain.commit_token import CommitUnknown
from lancekeep.domain.errors import InvalidInput, TableNotFound
from lancekeep.domain.idempotency import RequestKey
from lancekeep.domain.identifiers import ObjectId
from lancekeep.ports.rows import MergeCounts, MergeRule

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="committers are shared on Linux only")


def table(number: int) -> pa.Table:
    return pa.table({"number": pa.array([number], pa.int64())})


class Host:
    """A host with several processes that use one catalog.

    The first process commits the appends of the table ``t``.
    """

    def __init__(self, root: Path, store: str) -> None:
        self._committers = root / "committers"
        self._committers.mkdir(mode=0o700)
        self._sharing = Sharing(self._committers)
        self._root, self._store = str(root / "lake"), store or None
        self._open()

    def _open(self) -> None:
        self.opened: list[lancekeep.Catalog] = []
        self.first, self.other = self.process(), self.process()
        self.first.write("t", table(0))
        self.first.write("t", table(1), "append")

    def process(self) -> lancekeep.Catalog:
        catalog = open_catalog(
            ConnectionConfig.resolve(given(root=self._root, commit_store=self._store)), self._sharing
        )
        self.opened.append(catalog)
        return catalog

    def elsewhere(self) -> lancekeep.Catalog:
        """Open the catalog in a process of another host."""
        return lancekeep.connect(self._root, commit_store=self._store)

    def rows(self) -> Counter[int]:
        """Return the rows that plain pylance reads."""
        return Counter(lance.dataset(self.first.open("t").uri).to_table()["number"].to_pylist())

    def versions(self) -> int:
        version: int = self.first.open("t").version
        return version


class Hosts(Host):
    """Processes on hosts of their own. The first one has the leases of all tables of these tests."""

    def __init__(self, root: Path) -> None:
        self._sharing = Sharing(cluster=cluster_in(root))
        self._root, self._store = str(root / "lake"), None
        self._open()

    def process(self) -> lancekeep.Catalog:
        catalog = super().process()
        if len(self.opened) == 1:
            catalog.write("any", table(0))
        catalog.write("any", table(0), "append")  # it takes part from now on
        committers: Any = directory_of(catalog)._committers
        for name in ("t", "p", "r", "two", "absent"):
            committers.lost(ObjectId((name,)))
        ends = time.monotonic() + 60
        while not all(each.is_held or each.holder for each in committers._tables.values()):
            assert time.monotonic() < ends
            time.sleep(0.01)
        return catalog


@pytest.fixture(params=["storage", "sqlite", "hosts"])
def host(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    for module, names in (
        (unix, ("UNUSED", "SILENCE")),
        (tls_connections, ("SILENCE",)),
        (shared_committers, ("UNUSED", "TERM")),
    ):
        for name in names:  # times do not count here
            monkeypatch.setattr(module, name, 300.0)
    monkeypatch.setattr(shared_committers, "LOOK_EVERY", 0.01)
    host = (
        Hosts(tmp_path)
        if request.param == "hosts"
        else Host(tmp_path, f"sqlite://{tmp_path}/commits.db" if request.param == "sqlite" else "")
    )
    yield host
    for catalog in host.opened:
        catalog.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def append(catalog: lancekeep.Catalog, number: int) -> Any:
    return catalog.write("t", table(number), "append")


def commits_own(catalog: lancekeep.Catalog, name: str = "t") -> bool:
    """Return whether this process commits appends to a table."""
    return ObjectId((name,)) in directory_of(catalog).versions.lines._lines


class Stopped:
    """A committer that stops once, before or after a step of its next commit.

    Attributes:
        reached: Is set when it has stopped.
        permitted: Lets it go on.
    """

    def __init__(self, catalog: lancekeep.Catalog, point: str) -> None:
        self.reached, self.permitted = Event(), Event()
        commits = directory_of(catalog).versions.commits
        when, step = point.split(" the ")
        create = "_create_built" if commits.rows.guarantees.derived else "_settle"
        name = {"token": "commit_built", "manifest": create}[step]
        perform = getattr(commits, name)

        def stopping(*arguments: Any, **named: Any) -> Any:
            if when == "before":
                self._stop()
            result = perform(*arguments, **named)
            if when == "after":
                self._stop()
            return result

        setattr(commits, name, stopping)

    def _stop(self) -> None:
        if not self.reached.is_set():
            self.reached.set()
            assert self.permitted.wait(60)


def give_up(catalog: lancekeep.Catalog) -> None:
    """Fence the committers of a process, as it does if they are silent."""
    committers: Any = directory_of(catalog)._committers
    if isinstance(committers, SharedCommitters):
        links: Any = committers._links
        links._avoided = dict.fromkeys(links._links, float("inf"))
        for each in list(links._links.values()):
            links._loop.call_soon_threadsafe(each.end)
        return
    committers._avoided = dict.fromkeys(committers._committers, float("inf"))
    for each in list(committers._committers.values()):
        each.end()


def test_appends_of_all_processes_share_commits(host: Host, pool: ThreadPoolExecutor) -> None:
    before = host.versions()
    held_back(host.first, until=4)
    catalogs = (host.first, host.other, host.other, host.process())
    answers = list(pool.map(append, catalogs, range(2, 6)))
    assert {answer.version for answer in answers} == {before + 1}
    assert [answer.rows for answer in answers] == [1] * 4
    assert not commits_own(host.other)
    assert directory_of(host.other).writes._appends.are_recent(ObjectId(("t",)))
    assert host.rows() == Counter(range(6))


def test_what_one_process_refuses_the_other_hears(host: Host) -> None:
    host.first.write("r", table(5), properties={"constraint.positive": "number > 0"})
    host.first.write("r", table(6), "append")
    with pytest.raises(InvalidInput, match="positive"):
        host.other.write("r", table(-1), "append")
    host.other.write("r", table(7), "append")
    assert not commits_own(host.other, "r")
    with pytest.raises(TableNotFound):
        host.other.write("absent", table(1), "append")
    assert sorted(lance.dataset(host.first.open("r").uri).to_table()["number"].to_pylist()) == [5, 6, 7]
    host.first.write("two", pa.table({"a": [1], "b": [2]}))
    host.first.write("two", pa.table({"a": [1], "b": [2]}), "append")
    host.other.write("two", pa.table({"b": [2], "a": [1]}), "append")  # by the engine alone
    assert lance.dataset(host.first.open("two").uri).to_table().to_pylist() == [{"a": 1, "b": 2}] * 3


def test_large_append_is_not_sent(host: Host) -> None:
    with pytest.raises(lancekeep.InvalidInput):
        host.other.write("t", pa.table({"text": ["x" * (9 << 20)]}), "append")
    host.other.write("t", pa.table({"number": pa.nulls(2 << 20, pa.int64())}), "append")
    assert host.rows() == Counter({0: 1, 1: 1, None: 2 << 20})


@pytest.mark.parametrize("point", ["before the token", "before the manifest", "after the manifest"])
def test_stopped_committer_commits_nothing_that_was_given_up(
    host: Host, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    monkeypatch.setattr(forwarding, "SETTLED_WITHIN", 0.0)
    stopped = Stopped(host.first, point)
    answer = pool.submit(append, host.other, 2)
    assert stopped.reached.wait(60)
    give_up(host.other)
    try:
        committed, token = answer.result(60), None
    except CommitUnknown as error:
        committed, token = None, error.token
    derived = directory_of(host.first).versions.commits.rows.guarantees.derived  # otherwise the asker completes it
    assert (token is not None) == (point == "before the manifest" and derived)
    stopped.permitted.set()
    assert append(host.first, 3).rows == 1
    assert host.rows() == Counter(range(4))
    if token is not None:
        committed = host.other.resolve(token)
    assert isinstance(committed, Committed)
    assert 2 in lance.dataset(host.first.open("t").uri, version=committed.version).to_table()["number"].to_pylist()


def test_lost_attempt_of_a_stopped_committer_is_repeated_by_the_asker(host: Host, pool: ThreadPoolExecutor) -> None:
    stopped = Stopped(host.first, "before the manifest")
    answer = pool.submit(append, host.other, 2)
    assert stopped.reached.wait(60)
    append(host.elsewhere(), 3)
    give_up(host.other)
    assert answer.result(60).rows == 1
    stopped.permitted.set()
    append(host.first, 4)
    assert host.rows() == Counter(range(5))


def test_announced_version_that_another_process_commits_later_settles_the_appends(
    host: Host, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "SETTLED_WITHIN", 60.0)
    resolved = Event()
    resolve = directory_of(host.other).writes._appends._forwarding._resolve  # type: ignore[union-attr]

    def watched(token: Any) -> Any:
        outcome = resolve(token)
        resolved.set()
        return outcome

    directory_of(host.other).writes._appends._forwarding._resolve = watched  # type: ignore[union-attr]
    held_back(host.first, until=2)
    stopped = Stopped(host.first, "before the manifest")
    answers = [pool.submit(append, host.other, number) for number in (2, 3)]
    assert stopped.reached.wait(60)
    give_up(host.other)
    assert resolved.wait(60)
    append(host.elsewhere(), 4)
    assert [answer.result(60).rows for answer in answers] == [1, 1]
    stopped.permitted.set()
    append(host.first, 5)
    assert host.rows() == Counter(range(6))


def test_rest_of_a_group_is_committed_without_what_was_given_up(host: Host, pool: ThreadPoolExecutor) -> None:
    held_back(host.first, until=2)
    stopped = Stopped(host.first, "before the token")
    answers = [pool.submit(append, catalog, number) for catalog, number in ((host.first, 2), (host.other, 3))]
    assert stopped.reached.wait(60)
    give_up(host.other)
    assert answers[1].result(60).rows == 1
    stopped.permitted.set()
    assert answers[0].result(60).rows == 1  # as a group's; the engine counts none
    assert answers[0].result().version != answers[1].result().version
    assert host.rows() == Counter(range(4))


def keyed(catalog: lancekeep.Catalog, number: int, key: str) -> int:
    """Append a row as a server does for a keyed request, and return the version that is answered."""

    def answer(committed: Any) -> Answer:
        return Answer(json.dumps(committed.version))

    request = RequestKey.of("ann", "insert_into_table", ("t",), key)
    attempt = Attempt(
        fingerprint=str(number), act=lambda: answer(append(catalog, number)), committed=answer, shares=True
    )
    version: int = json.loads(directory_of(catalog).requests.perform(request, attempt))
    return version


def test_keyed_append_has_one_effect_through_any_process(host: Host, pool: ThreadPoolExecutor) -> None:
    keys = [str(uuid4()) for _ in range(3)]
    held_back(host.first, until=3)
    versions = list(pool.map(keyed, (host.other, host.first, host.other), range(2, 5), keys))
    assert len(set(versions)) == 1
    assert list(map(keyed, (host.first, host.other, host.first), range(2, 5), keys)) == versions
    with pytest.raises(InvalidInput):
        keyed(host.first, 9, keys[0])
    assert not commits_own(host.other)
    assert host.rows() == Counter(range(5))


def test_keyed_append_that_was_given_up_is_repeated_once(host: Host, pool: ThreadPoolExecutor) -> None:
    key = str(uuid4())
    stopped = Stopped(host.first, "before the token")
    answer = pool.submit(keyed, host.other, 2, key)
    assert stopped.reached.wait(60)
    give_up(host.other)
    version = answer.result(60)
    stopped.permitted.set()
    append(host.first, 3)
    assert keyed(host.first, 2, key) == keyed(host.other, 2, key) == version
    assert host.rows() == Counter(range(4))


def test_other_process_commits_after_the_end_of_the_first(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unix, "UNUSED", 60.0)
    append(host.other, 2)
    with closing(host.first):
        pass
    append(host.other, 3)
    assert commits_own(host.other)
    append(host.other, 4)  # the append before it may have met the end of the first, and takes no lock then
    third = host.process()
    append(third, 5)
    assert not commits_own(third)
    assert Counter(lance.dataset(host.other.open("t").uri).to_table()["number"].to_pylist()) == Counter(range(6))


# -- upserts -----------------------------------------------------------------------------------------------------


def people(*ids: int, by: int = 0) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "by": pa.array([by] * len(ids), pa.int64())})


def upsert(catalog: lancekeep.Catalog, *ids: int, by: int = 0, patience: float = 30.0) -> Any:
    rule = MergeRule(["id"], update=True, insert=True)
    return catalog.data.merge("p", people(*ids, by=by).to_reader(), rule, patience=patience)


def plain(host: Host, version: int | None = None) -> dict[int, int]:
    """Return who has written each key last, as plain pylance reads it. Requires each key once."""
    rows = lance.dataset(host.first.open("p").uri, version=version).to_table().to_pydict()
    assert len(rows["id"]) == len(set(rows["id"])), "a key is there twice"
    return dict(zip(rows["id"], rows["by"], strict=True))


@pytest.fixture
def upserting(host: Host) -> Host:
    """A host whose first process commits the upserts of the table ``p``."""
    host.first.write("p", people(0, 1, 2))
    upsert(host.first, 0)
    return host


def commits_own_upserts(catalog: lancekeep.Catalog) -> bool:
    """Return whether this process commits upserts itself."""
    return bool(directory_of(catalog).upserts._waiting_lines._lines)  # type: ignore[attr-defined]


def test_upserts_of_all_processes_share_a_version_and_have_their_own_counts(
    upserting: Host, pool: ThreadPoolExecutor
) -> None:
    before = upserting.first.open("p").version
    third = upserting.process()
    held_back(upserting.first, until=4, upserts=True)
    answers = [
        pool.submit(upsert, upserting.first, 1, 5, by=1),
        pool.submit(upsert, upserting.other, 6, by=2),
        pool.submit(upsert, upserting.other, 0, by=3),
        pool.submit(upsert, third, 2, 7, 8, by=4),
    ]
    changes, counts = zip(*(answer.result(60) for answer in answers), strict=True)
    assert {change.version for change in changes} == {before + 1}
    assert len({change.transaction for change in changes}) == 1
    assert counts == (MergeCounts(1, 1, 0), MergeCounts(1, 0, 0), MergeCounts(0, 1, 0), MergeCounts(2, 1, 0))
    assert not commits_own_upserts(upserting.other)
    assert not commits_own_upserts(third)
    assert plain(upserting) == {0: 3, 1: 1, 2: 4, 5: 1, 6: 2, 7: 4, 8: 4}


def test_upserts_that_the_first_process_cannot_commit_for_others(upserting: Host) -> None:
    upserting.first.alter_table("p", {"constraint.small": "by < 100"})
    with pytest.raises(InvalidInput, match="small"):
        upsert(upserting.other, 3, by=100)
    assert upsert(upserting.other, 3, by=9)[1] == MergeCounts(1, 0, 0)
    assert not commits_own_upserts(upserting.other)
    upserting.elsewhere().write("p", people(3, by=8), "append")
    assert upsert(upserting.other, 4, 3, by=7)[1] == MergeCounts(1, 2, 0)
    upserting.first.data.delete("p", "id = 3")
    cleaned = {"lance.auto_cleanup.interval": "99", "lance.auto_cleanup.older_than": "7d"}
    upserting.first.open("p").update_config(cleaned)
    assert upsert(upserting.other, 4, 5, by=6)[1] == MergeCounts(1, 1, 0)  # by the engine, which announces nothing
    assert plain(upserting) == {0: 0, 1: 0, 2: 0, 4: 6, 5: 6}


@pytest.mark.parametrize("point", ["before the token", "before the manifest", "after the manifest"])
def test_stopped_committer_merges_nothing_that_was_given_up(
    upserting: Host, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    monkeypatch.setattr(forwarding, "SETTLED_WITHIN", 0.0)
    stopped = Stopped(upserting.first, point)
    answer = pool.submit(upsert, upserting.other, 1, 5, by=1)
    assert stopped.reached.wait(60)
    give_up(upserting.other)
    token = None
    try:
        assert answer.result(60)[1] == MergeCounts(1, 1, 0)
    except CommitUnknown as error:
        token = error.token
    derived = directory_of(upserting.first).versions.commits.rows.guarantees.derived
    assert (token is not None) == (point == "before the manifest" and derived)
    if token is None:
        upsert(upserting.other, 1, by=2)
    stopped.permitted.set()
    assert upsert(upserting.first, 6)[1] == MergeCounts(1, 0, 0)
    assert plain(upserting) == {0: 0, 1: 2 if token is None else 1, 2: 0, 5: 1, 6: 0}
    if token is not None:
        outcome = upserting.other.resolve(token)
        assert isinstance(outcome, Committed)
        assert plain(upserting, outcome.version) == {0: 0, 1: 1, 2: 0, 5: 1}


def test_lost_upsert_of_a_stopped_committer_is_repeated_and_counted_again(
    upserting: Host, pool: ThreadPoolExecutor
) -> None:
    stopped = Stopped(upserting.first, "before the manifest")
    answer = pool.submit(upsert, upserting.other, 1, 5, by=1)
    assert stopped.reached.wait(60)
    other = upserting.elsewhere()
    upsert(other, 5, by=2)
    other.data.delete("p", "id = 1")
    give_up(upserting.other)
    assert answer.result(60)[1] == MergeCounts(1, 1, 0)
    assert plain(upserting)[5] == plain(upserting)[1] == 1
    stopped.permitted.set()
    upsert(upserting.first, 6)
    assert plain(upserting) == {0: 0, 1: 1, 2: 0, 5: 1, 6: 0}


def test_rest_of_a_merge_is_committed_without_what_was_given_up(upserting: Host, pool: ThreadPoolExecutor) -> None:
    held_back(upserting.first, until=2, upserts=True)
    stopped = Stopped(upserting.first, "before the token")
    answers = [pool.submit(upsert, upserting.first, 1, by=1), pool.submit(upsert, upserting.other, 2, 5, by=2)]
    assert stopped.reached.wait(60)
    give_up(upserting.other)
    assert answers[1].result(60)[1] == MergeCounts(1, 1, 0)
    upsert(upserting.other, 2, by=3)
    stopped.permitted.set()
    assert answers[0].result(60)[1] == MergeCounts(0, 1, 0)
    assert answers[0].result()[0].version != answers[1].result()[0].version
    assert plain(upserting) == {0: 0, 1: 1, 2: 3, 5: 2}


def test_asker_gives_up_a_committer_whose_merge_hangs(
    upserting: Host, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge, reached, permitted, ended = LanceRows.merge, Event(), Event(), Event()

    def hanging(self: LanceRows, *given: Any) -> Any:
        if not reached.is_set():
            monkeypatch.setattr(waiting_upserts, "LONGEST_MERGE", 0.01)
            reached.set()
            assert permitted.wait(60)
            ended.set()
        else:  # the asker's own, which has its time
            monkeypatch.setattr(waiting_upserts, "LONGEST_MERGE", longest)
        return merge(self, *given)

    longest, wait = waiting_upserts.LONGEST_MERGE, waiting_upserts.Upsert.wait
    patient = partial(monkeypatch.setattr, waiting_upserts.Upsert, "wait")
    patient(lambda upsert, seconds=60.0: wait(upsert, min(seconds, 0.05)))
    monkeypatch.setattr(LanceRows, "merge", hanging)
    answer = pool.submit(upsert, upserting.other, 1, 5, by=1, patience=0.0)
    assert reached.wait(60)
    assert answer.result(60)[1] == MergeCounts(1, 1, 0)
    assert commits_own_upserts(upserting.other)
    patient(wait)
    upsert(upserting.other, 1, by=2)
    permitted.set()
    assert ended.wait(60)
    upsert(upserting.first, 6)
    assert plain(upserting) == {0: 0, 1: 2, 2: 0, 5: 1, 6: 0}


def test_other_process_commits_upserts_after_the_end_of_the_first(
    upserting: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unix, "UNUSED", 60.0)
    upsert(upserting.other, 3, by=1)
    assert not commits_own_upserts(upserting.other)
    with closing(upserting.first):
        pass
    assert upsert(upserting.other, 3, 4, by=2)[1] == MergeCounts(1, 1, 0)
    assert commits_own_upserts(upserting.other)
    upsert(upserting.other, 3, by=2)  # the upsert before it may have met the end of the first, and takes no lock then
    third = upserting.process()
    upsert(third, 3, by=3)
    assert not commits_own_upserts(third)
    rows = lance.dataset(third.open("p").uri).to_table().to_pydict()
    assert dict(zip(rows["id"], rows["by"], strict=True)) == {0: 0, 1: 0, 2: 0, 3: 3, 4: 2}


def keyed_upsert(catalog: lancekeep.Catalog, number: int, key: str) -> Any:
    """Upsert a row as a server does for a keyed request; return the version and the counts that are answered."""

    def act() -> Answer:
        change, counts = upsert(catalog, number, by=number)
        return Answer(json.dumps([change.version, counts.inserted, counts.updated]))

    def answer(outcome: Any) -> Answer:
        return Answer(json.dumps([outcome.version, outcome.inserted, outcome.updated]))

    request = RequestKey.of("ann", "merge_insert_into_table", ("p",), key)
    attempt = Attempt(fingerprint=str(number), act=act, committed=answer, shares=True, upserts=True)
    return json.loads(directory_of(catalog).requests.perform(request, attempt))


def test_keyed_upsert_has_one_effect_through_any_process(upserting: Host, pool: ThreadPoolExecutor) -> None:
    keys = [str(uuid4()) for _ in range(3)]
    held_back(upserting.first, until=3, upserts=True)
    answers = list(pool.map(keyed_upsert, (upserting.other, upserting.first, upserting.other), (1, 5, 6), keys))
    version = answers[0][0]
    assert answers == [[version, 0, 1], [version, 1, 0], [version, 1, 0]]
    upserting.first.data.delete("p", "id = 5")
    assert list(map(keyed_upsert, (upserting.first, upserting.other, upserting.first), (1, 5, 6), keys)) == answers
    assert not commits_own_upserts(upserting.other)
    assert plain(upserting) == {0: 0, 1: 1, 2: 0, 6: 6}


@pytest.mark.parametrize("point", ["before the token", "before the manifest"])
def test_keyed_upsert_that_was_given_up_is_repeated_once(
    upserting: Host, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    monkeypatch.setattr(forwarding, "SETTLED_WITHIN", 0.0)
    key = str(uuid4())
    stopped = Stopped(upserting.first, point)
    answer = pool.submit(keyed_upsert, upserting.other, 5, key)
    assert stopped.reached.wait(60)
    give_up(upserting.other)
    if isinstance(answer.exception(60), CommitUnknown):  # a repetition commits in place of the stopped process
        answer = pool.submit(keyed_upsert, upserting.other, 5, key)
    told = answer.result(60)
    assert told[1:] == [1, 0]
    upsert(upserting.other, 5, by=9)
    stopped.permitted.set()
    upsert(upserting.first, 6)
    assert keyed_upsert(upserting.first, 5, key) == keyed_upsert(upserting.other, 5, key) == told
    assert plain(upserting) == {0: 0, 1: 0, 2: 0, 5: 9, 6: 0}
