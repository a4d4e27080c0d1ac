"""Keyed upserts share merges: each request has one effect and one answer, over crashes, retries and other processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import attrs
import lance
import pyarrow as pa
import pytest
from appending import all_at_once, held_back
from deployments import Deployment, deployment
from faults import Crash, Faulty
from keyed import at_manifests, connect, key_of, names_of_records, new_key
from starlette.testclient import TestClient
from writers import kill_two_at_work

import lancekeep
from lancekeep.application.catalog import directory_of
from lancekeep.application.commits.keyed_requests import current_sharing
from lancekeep.application.rows.idempotency import Answer, Attempt
from lancekeep.domain.commit import Committed, Upserted
from lancekeep.domain.errors import InvalidInput, StoreUnavailable
from lancekeep.domain.idempotency import RequestKey, Superseded
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace
from lancekeep.entrypoints.rest.app import create_app
from lancekeep.entrypoints.rest.settings import ServerSettings
from lancekeep.ports.rows import MergeRule

UPSERT = MergeRule(["id"], update=True, insert=True)
MOST_CRASHES = 100
"""The calls after which nothing is expected to call the storage; about 75 are made."""
Told = list[int]
"""What a request is answered: its version, and the rows that it inserted and updated."""


def people(*ids: int, by: int = 0) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "by": pa.array([by] * len(ids), pa.int64())})


@attrs.frozen
class Site:
    at: Deployment

    def open(self) -> lancekeep.Catalog:
        return connect(self.at)

    def rows(self, version: int | None = None) -> dict[int, int]:
        """Return who has written each key last, as plain pylance reads it. Requires each key once."""
        rows = lance.dataset(self.open().open("t").uri, version=version).to_table().to_pydict()
        assert len(rows["id"]) == len(set(rows["id"])), "a key is there twice"
        return dict(zip(rows["id"], rows["by"], strict=True))


@pytest.fixture(params=["storage", "sqlite", "redis", "dynamodb", "postgres"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    urls = {"redis": "redis_url", "dynamodb": "moto_endpoint", "postgres": "postgres_url"}
    url = request.getfixturevalue(urls[request.param]) if request.param in urls else ""
    site = Site(deployment(request.param, tmp_path, url, url, url))
    site.open().write("t", people(0))
    return site


def upsert(
    catalog: lancekeep.Catalog,
    key: str,
    *ids: int,
    by: int = 1,
    after: Callable[[], object] = lambda: None,
    shares: bool = True,
    rule: MergeRule = UPSERT,
) -> Told:
    """Upsert as a server does for a keyed request; return what is answered."""

    def act() -> Answer:
        change, counts = catalog.data.merge("t", people(*ids, by=by).to_reader(), rule)
        after()
        return Answer(json.dumps([change.version, counts.inserted, counts.updated]))

    def committed(outcome: Any) -> Answer:
        assert isinstance(outcome, Committed)
        counts = [outcome.inserted, outcome.updated] if isinstance(outcome, Upserted) else []
        return Answer(json.dumps([outcome.version, *counts]))

    request = RequestKey.of("ann", "merge_insert_into_table", ("t",), key)
    attempt = Attempt(fingerprint=f"{ids} {by}", act=act, committed=committed, shares=shares, upserts=shares)
    told: Told = json.loads(directory_of(catalog).requests.perform(request, attempt))
    return told


def test_keyed_upserts_share_a_version_and_repeat_their_counts(site: Site) -> None:
    catalog, keys = site.open(), [new_key() for _ in range(3)]
    upsert(catalog, new_key(), 9)
    held_back(catalog, until=4, upserts=True)
    acts = [partial(upsert, catalog, key, number, number + 10) for number, key in enumerate(keys)]
    *answers, plain = all_at_once([*acts, lambda: catalog.data.merge("t", people(7).to_reader(), UPSERT)])
    version = plain[0].version
    assert answers == [[version, 1, 1], [version, 2, 0], [version, 2, 0]]
    site.open().data.update("t", {"by": "5"})
    for each in (catalog, site.open()):
        assert [upsert(each, key, number, number + 10) for number, key in enumerate(keys)] == answers
        with pytest.raises(InvalidInput, match="another request"):
            upsert(each, keys[0], 0, 10, by=3)
    assert set(site.rows().values()) == {5}


def test_a_server_repeats_the_whole_response(site: Site) -> None:
    clauses = "when_matched_update_all=true&when_not_matched_insert_all=true"
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, people().schema) as writer:
        writer.write_table(people(0, 1))
    headers = {"idempotency-key": new_key(), "content-type": "application/vnd.apache.arrow.stream"}
    answers = []
    for _ in range(2):
        with TestClient(create_app(CatalogNamespace(site.open()), ServerSettings())) as client:
            given = {"content": sink.getvalue().to_pybytes(), "headers": headers}
            answers.append(client.post(f"/v1/table/t/merge_insert?on=id&{clauses}", **given).json())
    assert answers[0] == answers[1]
    assert answers[0]["transaction_id"]
    assert [answers[0][f"num_{each}_rows"] for each in ("inserted", "updated", "deleted")] == [1, 1, 0]
    [record] = names_of_records(site.at)
    assert record.startswith("0-"), "the request has no log"


def test_a_request_is_repeated_through_a_server_of_an_earlier_release(site: Site) -> None:
    """Its requests have logs alone: it finds no recorded key, and its own logs are found."""
    later, earlier = new_key(), new_key()
    old = upsert(site.open(), earlier, 2, shares=False)
    assert old[1:] == [1, 0]
    catalog = site.open()
    assert upsert(catalog, earlier, 2) == old
    assert upsert(catalog, later, 3)[1:] == [1, 0]
    assert upsert(site.open(), later, 3, shares=False)[1:] == [0, 1]
    assert site.rows() == {0: 0, 2: 1, 3: 1}


def test_an_upsert_that_the_engine_commits_has_a_log(site: Site) -> None:
    key, other = new_key(), new_key()
    site.open().open("t").update_config({"lance.auto_cleanup.interval": "99", "lance.auto_cleanup.older_than": "7d"})
    version = site.open().open("t").version
    answer = upsert(site.open(), key, 0, 1)
    assert answer == [version + 1, 1, 1]
    deleting = MergeRule(["id"], update=True, insert=True, delete=True)
    assert upsert(site.open(), other, 2, rule=deleting)[0] == version + 2
    assert upsert(site.open(), key, 0, 1) == answer
    assert upsert(site.open(), other, 2, rule=deleting)[0] == version + 2
    assert site.rows() == {2: 1}


def test_counts_that_no_record_holds_are_kept_in_a_log(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lancekeep.domain.recorded_keys.MOST_COUNTED", 1)
    key = new_key()
    answer = upsert(site.open(), key, 1, 2)
    assert answer[1:] == [2, 0]
    assert upsert(site.open(), key, 1, 2) == answer


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_at_each_call_leaves_an_upsert_that_can_be_repeated(site: Site, when: str) -> None:
    for nth in range(1, MOST_CRASHES):
        catalog, key = site.open(), new_key()
        commits = directory_of(catalog).versions.commits
        calls, crashed = count(1), list[int]()

        def decide(
            name: str, _: int, calls: Any = calls, crashed: list[int] = crashed, nth: int = nth
        ) -> tuple[str, BaseException] | None:
            if crashed or next(calls) == 2 * nth:  # a process that has ended calls nothing
                crashed.append(nth)
                return ("before" if len(crashed) > 1 else when), Crash()
            return None

        commits.objects = Faulty(commits.objects, decide)
        with suppress(Crash, lancekeep.LancekeepError):
            upsert(catalog, key, 0, nth, by=nth)
        answer = upsert(site.open(), key, 0, nth, by=nth)
        assert answer[1:] == [1, 1]
        site.open().data.update("t", {"by": "-1"}, "id = 0")
        assert upsert(site.open(), key, 0, nth, by=nth) == answer
        assert site.rows() == {0: -1} | {each: each for each in range(1, nth + 1)}
        if not crashed:
            break
    assert nth > 4


@pytest.mark.parametrize("is_late", [True, False])
def test_a_repeated_request_overtakes_the_first_before_its_commit(site: Site, is_late: bool) -> None:
    """The repetition commits in another process, at the same version or at a later one."""
    first, second, key = site.open(), site.open(), new_key()
    answers: list[Any] = []

    def overtake() -> None:
        if not answers:
            answers.append(None)
            if is_late:
                second.write("t", people(50), "append")
            try:
                answers[0] = upsert(second, key, 0, 1)
            except (lancekeep.CommitUnknown, Superseded) as error:
                answers[0] = error

    at_manifests(first, overtake)
    held_back(first, until=2, upserts=True)
    found = all_at_once([partial(upsert, first, key, 0, 1), partial(upsert, first, new_key(), 2)])
    answer = upsert(site.open(), key, 0, 1)
    told = [each for each in (found[0], answers[0]) if isinstance(each, list)]
    assert answer[1:] == [1, 1]
    assert told
    assert all(each == answer for each in told), (found, answers, answer)
    assert found[1][1:] == [1, 0]
    assert site.rows() == {0: 1, 1: 1, 2: 1} | ({50: 0} if is_late else {})


def test_an_attempt_that_has_left_excludes_a_shared_one(site: Site) -> None:
    """The same request has a log in one attempt, and shares a merge in the other."""
    catalog, key = site.open(), new_key()
    upsert(catalog, new_key(), 5)

    def end() -> None:
        raise Crash

    with pytest.raises(Crash):  # neither key nor log says that it has ended
        upsert(site.open(), key, 0, 1, after=end, rule=MergeRule(["id"], update=True, insert=True, delete=True))
    version = site.open().open("t").version
    with suppress(StoreUnavailable):  # without a commit store, nothing proves it
        assert upsert(catalog, key, 0, 1) == [version]
    assert site.open().open("t").version == version


@pytest.mark.parametrize("site", ["storage"], indirect=True)
def test_a_shared_upsert_finds_an_attempt_that_the_engine_is_about_to_commit(site: Site) -> None:
    """Without a commit store, the engine may commit after the shared upsert, so its record has to be read before."""
    one, two, key = site.open(), site.open(), new_key()
    upsert(one, new_key(), 5)  # its committer knows every record of the version that it follows
    recorded, may_commit, running = Event(), Event(), list[Any]()
    commits = directory_of(one).versions.commits
    put, merge = commits.objects.put, two.data.merge

    def held(*given: Any) -> Any:
        if current_sharing() is None:  # the attempt with a log
            recorded.set()
            may_commit.wait()
        return merge(*given)

    two.data.merge = held  # type: ignore[method-assign, assignment]
    with ThreadPoolExecutor(1) as pool:

        def overtake(at: str, content: bytes) -> object:
            if "/keys-" in at and not running:
                deleting = MergeRule(["id"], update=True, insert=True, update_if="true")
                running.append(pool.submit(upsert, two, key, 0, 1, rule=deleting))
                assert recorded.wait(60)
            return put(at, content)

        commits.objects = watched = Faulty(commits.objects)
        watched.put = overtake  # type: ignore[attr-defined]
        version = one.open("t").version
        try:
            with suppress(StoreUnavailable):
                upsert(one, key, 0, 1)
            assert site.open().open("t").version == version
        finally:
            may_commit.set()
        assert running[0].result()[0] == version + 1
    assert site.rows() == {0: 1, 1: 1, 5: 1}


def upsert_until_killed(at: Deployment, writer: int, ledger: str) -> None:
    """Upsert from four threads; record each request before it begins."""
    catalog = connect(at)
    with open(ledger, "a", buffering=1) as begun:

        def many(thread: int) -> None:
            for each in count(1):
                number = (writer * 10 + thread) * 1_000_000 + each
                begun.write(f"{number}\n")
                upsert(catalog, key_of(number), number, by=number)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(many, range(4)))


def test_repeated_requests_of_killed_processes_have_one_effect(site: Site, tmp_path: Path) -> None:
    begun = [int(line) for line in kill_two_at_work(tmp_path, upsert_until_killed, site.at, works=8)]
    catalog = site.open()
    catalog.data.update("t", {"by": "-1"})
    were = site.rows()
    answers = [upsert(catalog, key_of(number), number, by=number) for number in begun]
    assert [answer[1:] for answer in answers] == [[1, 0]] * len(begun)
    assert site.rows() == were | {number: number for number in begun if number not in were}
    assert [upsert(site.open(), key_of(number), number, by=number) for number in begun[:3]] == answers[:3]


def test_merged_records_keep_the_counts(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The records of groups and merged records have the layout of earlier releases, which merge them, too."""
    monkeypatch.setattr("lancekeep.application.rows.recorded_keys.in_background", lambda act: act())
    monkeypatch.setattr("lancekeep.application.rows.recorded_keys.MERGED_GROUPS", 4)
    monkeypatch.setattr("lancekeep.domain.recorded_keys.MERGED_GROUPS", 4)
    catalog, keys = site.open(), [new_key() for _ in range(4)]
    answers = [upsert(catalog, key, 0, number) for number, key in enumerate(keys, 1)]
    assert [name[:2] for name in names_of_records(site.at)] == ["1-"]
    assert [upsert(site.open(), key, 0, number) for number, key in enumerate(keys, 1)] == answers
    assert [answer[1:] for answer in answers] == [[1, 1]] * 4
