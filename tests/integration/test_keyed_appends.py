"""Keyed appends share commits: each request has one effect, over crashes, retries and attempts at the same time."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import attrs
import lance
import pyarrow as pa
import pytest
from appending import all_at_once, held_back
from deployments import Deployment, deployment
from faults import Crash, Faulty, lost_replies
from keyed import at_manifests, connect, key_of, names_of_records, new_key
from writers import kill_two_at_work

import lancekeep
from lancekeep.adapters.object_stores.local import LocalObjectStore
from lancekeep.application.catalog import directory_of
from lancekeep.application.rows.idempotency import Answer, Attempt
from lancekeep.application.rows.recorded_keys import requests_directory
from lancekeep.domain.commit import Committed
from lancekeep.domain.errors import InvalidInput, StoreUnavailable
from lancekeep.domain.idempotency import RequestKey, Superseded
from lancekeep.domain.recorded_keys import MERGED_GROUPS

SOAKS = "LANCEKEEP_ALL_STORES" in os.environ
"""Whether `make soak` runs the tests."""
FEW = ("storage", "sqlite", "conditional-put", "table of the storage")
"""The last has a commit store, which leaves the versions of the table to the storage."""
STORES = (*FEW, "files", "redis", "dynamodb", "conditional-put-s3")
TWO = ("storage", "sqlite", "conditional-put")[: 3 if SOAKS else 2]


@attrs.frozen
class Site:
    at: Deployment

    def open(self) -> lancekeep.Catalog:
        return connect(self.at)

    def rows(self) -> Counter[int]:
        """Return the rows that plain pylance reads."""
        uri = self.open().open("t").uri
        dataset = lance.dataset(uri, storage_options=self.at.storage_options or None)
        return Counter(dataset.to_table()["number"].to_pylist())


@pytest.fixture(params=STORES if SOAKS else FEW)
def site(request: pytest.FixtureRequest, tmp_path: Path, redis_url: str, moto_endpoint: str) -> Site:
    by_storage = request.param == "table of the storage"
    kind = "sqlite" if by_storage else request.param
    site = Site(deployment(kind, tmp_path, redis_url, moto_endpoint))
    catalog = site.open()
    catalog.write("t", table(0), properties={"lancekeep.managed": "storage"} if by_storage else None)
    return site


def table(number: int) -> pa.Table:
    return pa.table({"number": pa.array([number], pa.int64())})


def append(
    catalog: lancekeep.Catalog,
    number: int,
    key: str,
    after: Callable[[], object] = lambda: None,
    *,
    rows: Callable[[int], Any] = table,
    shares: bool = True,
) -> Any:
    """Append a row as a server does for a keyed request, and return the version that is answered."""

    def act() -> Answer:
        committed = catalog.write("t", rows(number), "append")
        after()
        return Answer(json.dumps(committed.version))

    def committed(outcome: Any) -> Answer:
        assert isinstance(outcome, Committed)
        return Answer(json.dumps(outcome.version))

    request = RequestKey.of("ann", "insert_into_table", ("t",), key)
    attempt = Attempt(fingerprint=str(number), act=act, committed=committed, shares=shares)
    return json.loads(directory_of(catalog).requests.perform(request, attempt))


@pytest.mark.parametrize("site", STORES if SOAKS else (*FEW, "redis", "conditional-put-s3"), indirect=True)
def test_keyed_appends_share_a_commit_and_repeat_their_answers(site: Site) -> None:
    catalog, keys = site.open(), [new_key() for _ in range(8)]
    held_back(catalog, until=10)
    answers = all_at_once(
        [partial(append, catalog, number, key) for number, key in enumerate(keys, 1)]
        + [partial(catalog.write, "t", table(number), "append") for number in (9, 10)]
    )
    assert answers[:8] == [2] * 8
    assert {answer.version for answer in answers[8:]} == {2}
    other = site.open()
    assert [append(other, number, key) for number, key in enumerate(keys, 1)] == [2] * 8
    assert site.rows() == Counter(range(11))


def test_two_attempts_in_one_group_have_one_effect(site: Site) -> None:
    catalog, key = site.open(), new_key()
    held_back(catalog, until=3)
    answers = all_at_once(
        [partial(append, catalog, 1, key), partial(append, catalog, 1, key), partial(append, catalog, 2, new_key())]
    )
    assert site.rows() == Counter(range(3))
    assert any(not isinstance(answer, Exception) for answer in answers[:2])
    assert all(isinstance(answer, int | Superseded) for answer in answers), answers
    assert append(catalog, 1, key) in answers


def test_a_request_whose_answer_was_lost_is_answered_with_its_commit(site: Site) -> None:
    catalog, key = site.open(), new_key()

    def crash() -> None:
        raise Crash

    with pytest.raises(Crash):
        append(catalog, 1, key, crash)
    catalog.write("t", table(2), "append")
    other = site.open()
    assert append(other, 1, key) == 2
    assert append(site.open(), 1, key) == 2
    assert site.rows() == Counter(range(3))


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_process_that_ends_at_its_commit_leaves_a_request_that_can_be_repeated(site: Site, when: str) -> None:
    """The claim exists; the manifest exists or does not."""
    catalog, keys = site.open(), [new_key(), new_key()]
    at_manifests(catalog, lambda: (when, RuntimeError("the process ends here")))
    held_back(catalog, until=2)
    ended: list[BaseException] = []

    def attempt(number: int) -> None:
        try:
            append(catalog, number, keys[number - 1])
        except RuntimeError as error:
            ended.append(error)

    all_at_once([partial(attempt, 1), partial(attempt, 2)])
    assert len(ended) == 2
    other = site.open()
    answers = [append(other, number, keys[number - 1]) for number in (1, 2)]
    assert [append(site.open(), number, keys[number - 1]) for number in (1, 2)] == answers
    assert site.rows() == Counter(range(3))


def test_a_repeated_request_overtakes_the_first_before_its_commit(site: Site) -> None:
    """The repetition commits in another process while the first attempt is about to create its manifest."""
    first, second, key = site.open(), site.open(), new_key()
    answers: list[Any] = []

    def overtake() -> None:
        if not answers:
            answers.append(None)
            try:
                answers[0] = append(second, 1, key)
            except (lancekeep.CommitUnknown, Superseded) as error:  # the first attempt holds the version, or claims it
                answers[0] = error

    at_manifests(first, overtake)
    held_back(first, until=2)
    found = all_at_once([partial(append, first, 1, key), partial(append, first, 2, new_key())])
    assert isinstance(found[0], int | Superseded), found
    assert isinstance(found[1], int), found
    assert site.rows() == Counter(range(3))
    answer = append(site.open(), 1, key)
    assert isinstance(answers[0], lancekeep.CommitUnknown | Superseded) or answer == answers[0]


def test_a_repeated_request_finds_the_first_at_its_own_commit(site: Site) -> None:
    """The first attempt commits while the repetition is about to create its manifest."""
    first, second, key = site.open(), site.open(), new_key()
    may_commit, repeated = threading.Event(), threading.Event()

    def hold() -> None:
        repeated.set()
        may_commit.wait()

    at_manifests(first, hold)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(append, first, 1, key)
        repeated.wait()

        def release() -> None:
            may_commit.set()
            running.exception()

        at_manifests(second, release)
        try:
            answer = append(second, 1, key)
        finally:
            may_commit.set()
        assert isinstance(running.exception(), Superseded | None)
    assert site.rows() == Counter(range(2))
    assert append(site.open(), 1, key) == answer


@pytest.mark.parametrize("method", ["put", "put_if_absent", "copy_if_absent"])
def test_lost_replies_neither_lose_nor_double_keyed_appends(site: Site, method: str) -> None:
    catalog = site.open()
    commits = directory_of(catalog).versions.commits
    commits.objects = Faulty(commits.objects, lost_replies(method, 6))
    keys = [new_key() for _ in range(6)]
    answers = all_at_once([partial(append, catalog, number, key) for number, key in enumerate(keys, 1)])
    assert not [answer for answer in answers if isinstance(answer, Exception)], answers
    assert [append(site.open(), number, key) for number, key in enumerate(keys, 1)] == answers
    assert site.rows() == Counter(range(7))


def test_a_staged_manifest_without_reply_commits_nothing(tmp_path: Path) -> None:
    """No other process knows the staged manifest, so a repetition commits the rows."""
    site = Site(deployment("sqlite", tmp_path, "", ""))
    catalog, key = site.open(), new_key()
    catalog.write("t", table(0))
    append(catalog, 1, new_key())
    commits, honest = directory_of(catalog).versions.commits, directory_of(catalog).versions.commits.objects
    puts = count()

    def decide(name: str, _: int) -> tuple[str, BaseException] | None:
        lost = name == "put" and next(puts) > 2  # the first three are the data, transaction and keys of the group
        return ("after", StoreUnavailable("no answer")) if lost else None

    commits.objects = Faulty(honest, decide)
    commits.retry = attrs.evolve(commits.retry, patience=0.0)
    held_back(catalog, until=2)
    answers = all_at_once([partial(append, catalog, 2, key), partial(catalog.write, "t", table(3), "append")])
    assert [type(answer) for answer in answers] == [StoreUnavailable] * 2
    assert append(site.open(), 2, key) == 3
    assert site.rows() == Counter(range(3))


@pytest.mark.parametrize("shares", [True, False])
def test_a_refused_append_is_refused_again(local: Site, shares: bool) -> None:
    key = new_key()
    with pytest.raises(lancekeep.LancekeepError):
        append(local.open(), 1, key, rows=lambda number: pa.table({"other": [number]}), shares=shares)
    append(local.open(), 2, new_key())
    assert local.rows() == Counter([0, 2])


def test_an_answer_outlives_its_table(local: Site) -> None:
    key = new_key()
    alone = append(local.open(), 1, key, rows=stream)
    local.open().drop_table("t")
    assert append(local.open(), 1, key) == alone
    with pytest.raises(lancekeep.TableNotFound):
        append(local.open(), 1, new_key())


def append_until_killed(at: Deployment, writer: int, ledger: str) -> None:
    """Append from four threads; record each request before it begins."""
    catalog = connect(at)
    with open(ledger, "a", buffering=1) as begun:

        def many(thread: int) -> None:
            for each in count():
                number = (writer * 10 + thread) * 1_000_000 + each
                begun.write(f"{number}\n")
                append(catalog, number, key_of(number))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(many, range(4)))


@pytest.mark.parametrize("kind", TWO)
def test_repeated_requests_of_killed_processes_have_one_effect(tmp_path: Path, kind: str) -> None:
    site = Site(deployment(kind, tmp_path, "", ""))
    site.open().write("t", table(0))
    begun = [int(line) for line in kill_two_at_work(tmp_path, append_until_killed, site.at, works=12)]
    catalog = site.open()
    for number in begun:
        append(catalog, number, key_of(number))
    assert site.rows() == Counter([0, *begun])


# -- the records of keys -----------------------------------------------------------------------------------------------


@pytest.fixture
def local(tmp_path: Path) -> Site:
    site = Site(deployment("conditional-put", tmp_path, "", ""))
    site.open().write("t", table(0))
    return site


@pytest.mark.parametrize("kind", TWO)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_at_each_call_leaves_an_append_that_can_be_repeated(tmp_path: Path, kind: str, when: str) -> None:
    site = Site(deployment(kind, tmp_path, "", ""))
    site.open().write("t", table(0))
    for nth in count():
        catalog, key = site.open(), new_key()
        commits = directory_of(catalog).versions.commits
        calls = count()
        crashed: list[int] = []

        def decide(
            name: str, _: int, calls: Any = calls, crashed: list[int] = crashed, nth: int = nth
        ) -> tuple[str, BaseException] | None:
            if crashed or next(calls) == nth:  # a process that has ended calls nothing
                crashed.append(nth)
                return ("before" if len(crashed) > 1 else when), Crash()
            return None

        commits.objects = Faulty(commits.objects, decide)
        with suppress(Crash):
            append(catalog, nth + 1, key)
        answer = append(site.open(), nth + 1, key)
        assert append(site.open(), nth + 1, key) == answer
        assert site.rows() == Counter(range(nth + 2))
        if not crashed:
            assert nth > 5
            return


@pytest.mark.parametrize("site", FEW, indirect=True)
def test_a_key_with_other_rows_is_refused(site: Site) -> None:
    key = new_key()
    append(site.open(), 1, key)
    for catalog in (site.open(), site.open()):
        with pytest.raises(InvalidInput, match="another request"):
            append(catalog, 2, key)
    assert append(site.open(), 1, key) == 2
    assert site.rows() == Counter(range(2))


def test_records_are_merged_and_found_by_other_processes(local: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lancekeep.application.rows.recorded_keys.in_background", lambda act: act())
    catalog, other = local.open(), local.open()
    append(other, 0, new_key())
    keys = [new_key() for _ in range(MERGED_GROUPS + 3)]
    answers = [append(catalog, number, key) for number, key in enumerate(keys)]
    records = names_of_records(local.at)
    assert len(records) < 10
    assert sum(name.startswith("1-") for name in records) == 1
    for each in (catalog, other, local.open()):
        assert [append(each, number, key) for number, key in enumerate(keys)] == answers


def test_records_of_an_ended_process_are_merged(local: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lancekeep.application.rows.recorded_keys.in_background", lambda act: act())
    keys = [new_key() for _ in range(MERGED_GROUPS)]
    answers = []
    for start in (0, MERGED_GROUPS // 2):
        catalog = local.open()
        answers += [append(catalog, n, keys[n]) for n in range(start, start + MERGED_GROUPS // 2)]
    assert len(names_of_records(local.at)) == 1
    assert [append(local.open(), 1, keys[1])] == answers[1:2]


@pytest.mark.parametrize("kind", ["storage", "conditional-put"])
def test_an_append_with_a_log_of_an_earlier_release_is_not_repeated(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, keys = Site(deployment(kind, tmp_path, "", "")), [new_key() for _ in range(3)]
    site.open().write("t", table(0))
    old = [append(site.open(), number, key, shares=False) for number, key in enumerate(keys, 1)]
    for most in (20_000, 1):
        monkeypatch.setattr("lancekeep.application.rows.recorded_keys.MOST_LOGS", most)
        assert [append(site.open(), number, key) for number, key in enumerate(keys, 1)] == old
        assert append(site.open(), 9, new_key()) > max(old)
    assert site.rows() == Counter([0, 1, 2, 3, 9, 9])


def stream(number: int) -> pa.RecordBatchReader:
    """Return a row as a stream, which the engine appends."""
    return table(number).to_reader()


@pytest.mark.parametrize("site", FEW, indirect=True)
def test_an_append_that_the_engine_commits_excludes_a_shared_one(site: Site) -> None:
    """The same request is alone in one attempt and shares a commit in the other, as after a change of the table."""
    key, other = new_key(), new_key()
    alone = append(site.open(), 1, key, rows=stream)
    assert append(site.open(), 1, key) == alone
    shared = append(site.open(), 2, other)
    assert append(site.open(), 2, other, rows=stream) == shared
    assert site.rows() == Counter(range(3))


class Killed(BaseException):
    pass


@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.parametrize("site", FEW, indirect=True)
def test_an_attempt_that_ends_after_the_commit_of_the_engine_is_not_made_again(site: Site, shares: bool) -> None:
    key = new_key()

    def end() -> None:
        raise Killed

    with pytest.raises(Killed):
        append(site.open(), 1, key, end, rows=stream, shares=shares)
    with suppress(StoreUnavailable):  # where the storage manages the table, the commit leaves no proof
        assert append(site.open(), 1, key, rows=stream, shares=shares) == 2
    assert site.rows() == Counter(range(2))


@pytest.mark.parametrize("site", ["storage"], indirect=True)
def test_a_shared_append_finds_an_attempt_that_the_engine_is_about_to_commit(site: Site) -> None:
    """Without a commit store, the engine may commit after the shared append, so its record has to be read before."""
    one, two, key = site.open(), site.open(), new_key()
    append(one, 2, new_key())  # its committer knows every record of the version that it follows
    recorded, may_commit, calls = threading.Event(), threading.Event(), count()

    def held(number: int) -> Any:
        if next(calls) == 1:  # the first call finds out that the append cannot share a commit
            recorded.set()
            may_commit.wait()
        return stream(number)

    commits = directory_of(one).versions.commits
    put = commits.objects.put
    with ThreadPoolExecutor(1) as pool:

        def overtake(at: str, content: bytes) -> object:
            if "/keys-" in at and not recorded.is_set():
                running.append(pool.submit(append, two, 1, key, rows=held))
                recorded.wait()
            return put(at, content)

        running: list[Any] = []
        commits.objects = watched = Faulty(commits.objects)
        watched.put = overtake  # type: ignore[attr-defined]
        try:
            with suppress(StoreUnavailable):
                append(one, 1, key)
        finally:
            may_commit.set()
        assert isinstance(running[0].result(), int)
    assert site.rows() == Counter(range(3))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("site", FEW, indirect=True)
def test_attempts_that_share_and_do_not_share_at_once_have_one_effect(site: Site, first: bool) -> None:
    one, two, key = site.open(), site.open(), new_key()
    answers: list[Any] = []

    def overtake() -> None:
        if not answers:
            answers.append(None)
            try:
                answers[0] = append(two, 1, key, rows=stream if first else table)
            except (lancekeep.CommitUnknown, StoreUnavailable) as error:
                answers[0] = error

    at_manifests(one, overtake)
    with suppress(StoreUnavailable, lancekeep.CommitUnknown):
        answers.append(append(one, 1, key, rows=table if first else stream))
    append(site.open(), 2, new_key())
    with suppress(StoreUnavailable):  # without a commit store, an attempt by the engine leaves no proof
        append(site.open(), 1, key)
    assert site.rows() in (Counter(range(3)), Counter([0, 2])), answers
    if any(isinstance(answer, int) for answer in answers):
        assert site.rows() == Counter(range(3))


def test_old_records_are_removed_by_age(local: Site) -> None:
    catalog = local.open()
    append(catalog, 1, new_key())
    assert directory_of(catalog).requests.clean_up() == 0
    assert names_of_records(local.at)
    directory_of(catalog).requests.clean_up(timedelta(0))
    assert names_of_records(local.at) == []
    assert catalog.upkeep.fsck().findings == ()


def test_an_append_whose_version_was_removed_is_unknown(local: Site) -> None:
    key = new_key()
    append(local.open(), 1, key)
    catalog = local.open()
    catalog.write("t", table(2), "append")
    lance.dataset(catalog.open("t").uri).cleanup_old_versions(older_than=timedelta(0))
    with pytest.raises(StoreUnavailable, match="cannot be determined"):
        append(local.open(), 1, key)
    assert local.rows() == Counter(range(3))


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"version":1,"transaction":"x","keys":""}', b"\xff" * 50])
@pytest.mark.parametrize("level", [0, 1])
def test_a_damaged_record_is_named(local: Site, content: bytes, level: int) -> None:
    append(local.open(), 1, new_key())
    places = directory_of(local.open()).places
    [record] = [info.key for info in places.objects.list(requests_directory(places)) if "/keys-" in info.key]
    places.objects.put(record.rpartition("/")[0] + f"/{level}-damaged", content)
    with pytest.raises(lancekeep.Damaged, match="-damaged does not hold"):
        append(local.open(), 2, new_key())


def test_a_keyed_group_makes_one_more_request(local: Site) -> None:
    catalog = local.open()
    append(catalog, 1, new_key())
    commits = directory_of(catalog).versions.commits
    commits.objects = watched = Faulty(commits.objects)
    append(catalog, 2, new_key())
    keyed = Counter(watched.calls)
    watched.calls.clear()
    catalog.write("t", table(3), "append")
    assert keyed - Counter(watched.calls) == Counter(put=1)


def test_a_group_that_lost_its_version_reads_the_other_commit_once(local: Site) -> None:
    def reads(appends: int) -> int:
        """Let a group lose its version to another process; return how many objects it reads."""
        catalog, other, puts = local.open(), local.open(), count()
        append(catalog, 1, new_key())
        commits = directory_of(catalog).versions.commits

        def decide(name: str, _: int) -> None:
            if name == "put" and next(puts) == 2:  # the data, transaction and keys of the group
                other.write("t", table(2), "append")

        commits.objects = watched = Faulty(commits.objects, decide)
        held_back(catalog, until=appends)
        answers = all_at_once([partial(append, catalog, 3, new_key()) for _ in range(appends)])
        assert len(set(answers)) == 1
        assert next(puts) > 2
        return Counter(watched.calls)["get"]

    assert reads(8) == reads(2)
    assert local.rows() == Counter({0: 1, 1: 2, 2: 2, 3: 10})


def test_a_request_is_answered_after_its_version_was_cleaned_up(local: Site) -> None:
    key, alone = new_key(), new_key()
    answers = append(local.open(), 1, key), append(local.open(), 2, alone, rows=stream)
    catalog = local.open()
    catalog.write("t", table(3), "append")
    report = catalog.upkeep.cleanup(older_than=timedelta(0), keep=1, grace=timedelta(0), tables=["t"])
    assert report.versions >= max(answers)
    assert (append(local.open(), 1, key), append(local.open(), 2, alone)) == answers
    assert local.rows() == Counter(range(4))


def test_an_unreadable_record_keeps_the_versions_that_it_may_name(local: Site) -> None:
    append(local.open(), 1, new_key())
    local.open().write("t", table(2), "append")
    places = directory_of(local.open()).places
    [record] = [info.key for info in places.objects.list(requests_directory(places)) if "/keys-" in info.key]
    places.objects.put(record, b"{}")
    report = local.open().upkeep.cleanup(older_than=timedelta(0), keep=1, tables=["t"])
    assert report.versions == 0
    assert "does not hold the keys" in report.skipped[0].reason


def test_records_of_requests_with_logs_are_merged(local: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lancekeep.application.rows.recorded_keys.in_background", lambda act: act())
    monkeypatch.setattr("lancekeep.application.rows.recorded_keys.MERGED_GROUPS", 4)
    monkeypatch.setattr("lancekeep.domain.recorded_keys.MERGED_GROUPS", 4)
    catalog, keys = local.open(), [new_key() for _ in range(4)]
    answers = [append(catalog, number, key, rows=stream) for number, key in enumerate(keys)]
    assert [name[:2] for name in names_of_records(local.at)] == ["1-"]
    assert [append(local.open(), number, key) for number, key in enumerate(keys)] == answers


def test_a_listing_finds_keys_that_are_merged_in_the_meantime(local: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names are read before the merge, and the files after it."""
    merges = list[Callable[[], object]]()
    monkeypatch.setattr("lancekeep.application.rows.recorded_keys.in_background", merges.append)
    writer, other, keys = local.open(), local.open(), [new_key() for _ in range(MERGED_GROUPS)]
    answers = [append(writer, number, key) for number, key in enumerate(keys)]
    head = LocalObjectStore.head

    def merge_first(self: LocalObjectStore, key: str) -> object:
        if "/keys-" in key and merges:
            merges.pop()()
        return head(self, key)

    monkeypatch.setattr(LocalObjectStore, "head", merge_first)
    assert len(merges) == 1
    assert [append(other, number, key) for number, key in enumerate(keys)] == answers
    assert [name[:2] for name in names_of_records(local.at)] == ["1-"]


@pytest.mark.parametrize("name", [".DS_Store", ".nfs00000001", "9-later"])
def test_hidden_files_of_other_programs_are_no_records(local: Site, name: str) -> None:
    key = new_key()
    append(local.open(), 1, key)
    places = directory_of(local.open()).places
    [record] = [info.key for info in places.objects.list(requests_directory(places)) if "/keys-" in info.key]
    places.objects.put(f"{record.rpartition('/')[0]}/{name}", b"x")
    if name.startswith("."):
        assert append(local.open(), 1, key) == 2
    else:
        with pytest.raises(lancekeep.Unsupported, match="later release"):
            append(local.open(), 1, key)
