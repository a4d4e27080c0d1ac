"""The log of events: each change and each commit once, in order, whatever is killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Barrier, Thread
from typing import Any
from uuid import uuid4

import httpx
import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner
from cloudevents.core.formats.json import JSONFormat
from faults import Faulty
from redis_servers import poll
from rest_server import running, serving

import lancekeep
from lancekeep.adapters.authentication.api_keys import KeyFile
from lancekeep.application.catalog import directory_of
from lancekeep.application.events import log as event_log
from lancekeep.application.events import recorder
from lancekeep.domain.errors import InvalidInput, Refused, Unsupported
from lancekeep.domain.events import EventBatch, visible
from lancekeep.entrypoints.cli import lancekeep as program
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace
from lancekeep.entrypoints.rest.app import create_app
from lancekeep.entrypoints.rest.security.setup import security_of
from lancekeep.entrypoints.rest.settings import ServerSettings

ROWS = pa.table({"a": [1, 2, 3]})


def connect(root: Path, **options: Any) -> lancekeep.Catalog:
    return lancekeep.connect(str(root), storage_options={"fsync": "false"}, **options)


@pytest.fixture(params=["compatible", "v2", "postgres"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[lancekeep.Catalog]:
    options: dict[str, Any] = {"mode": request.param}
    if request.param == "postgres":
        url = f"{request.getfixturevalue('postgres_url')}?catalog={uuid4()}"
        options = {"impl": "postgres", "uri": url}
    with connect(tmp_path / "lake", **options) as catalog:
        yield catalog


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[lancekeep.Catalog]:
    with connect(tmp_path / "lake") as catalog:
        yield catalog


def shown(events: Any) -> list[tuple[str, str]]:
    """Return the kinds and ids of events, without those of the catalog itself."""
    return [(event.kind, str(event.object_id)) for event in events if event.object_id.names]


def settle(catalog: lancekeep.Catalog) -> None:
    """Record events until there are none."""
    while catalog.events.record():
        pass


def commits(events: Any, table: str, branch: str | None = None) -> list[tuple[int, str]]:
    """Return the versions and transactions of the commits of a history."""
    found = (each for each in events if each.kind == "committed" and str(each.object_id) == table)
    return [(each.data["version"], each.data["transaction"]) for each in found if each.data.get("branch") == branch]


def history(uri: str) -> list[tuple[int, str]]:
    """Return the versions of a table and their transactions, by plain pylance."""
    dataset = lance.dataset(uri)
    numbers = [each["version"] for each in dataset.versions()]
    transactions = [dataset.read_transaction(number) for number in numbers]
    return [(number, each.uuid) for number, each in zip(numbers, transactions, strict=True) if each is not None]


def same(found: list[tuple[int, str]], expected: list[tuple[int, str]]) -> bool:
    """Return whether events are the versions of a history, each once and in order."""
    return len(found) == len(expected) and all(
        version == number and uuid in name for (version, name), (number, uuid) in zip(found, expected, strict=True)
    )


def test_changes_and_commits_are_shown_once_in_order(catalog: lancekeep.Catalog) -> None:
    catalog.write("before", ROWS)
    with pytest.raises(Refused, match="no log of events"):
        catalog.events.read()
    assert catalog.events.record() == 0
    start = catalog.events.latest()
    catalog.create_namespace("n")
    catalog.write("n.t", ROWS)
    catalog.write("before", ROWS, "append")
    uri = catalog.describe_table("n.t").uri
    lance.write_dataset(ROWS, uri, mode="append")  # a native commit
    assert catalog.events.record()
    catalog.rename_table("n.t", "n.u")
    catalog.data.delete("n.u", "a = 1")
    catalog.branches.create("n.u", "dev")
    catalog.write("n.u", ROWS, "append")
    expected = history(uri)
    catalog.drop_table("n.u", keep=3600)
    assert catalog.events.record()
    catalog.undrop("n.u")
    assert catalog.events.record() == 1
    assert catalog.events.record() == 0
    page = catalog.events.read(start)
    assert [each for each in shown(page.events) if each[0] != "committed"] == [
        *(("created", "n"), ("created", "n.t"), ("renamed", "n.u"), ("dropped", "n.u"), ("created", "n.u")),
    ]
    found = commits(page.events, "n.t") + commits(page.events, "n.u")
    assert same(found, expected)
    assert [version for version, _ in commits(page.events, "before")] == [2]
    assert commits(page.events, "n.u", "dev")
    assert shown(page.events)[-2:] == [("dropped", "n.u"), ("created", "n.u")]
    assert len({event.id for event in page.events}) == len(page.events)
    operations = [event.data["operation"] for event in page.events if event.kind == "committed"]
    assert set(operations) >= {"Overwrite", "Append", "Delete"}
    assert page.cursor == catalog.events.latest()
    for number, event in enumerate(page.events):
        assert catalog.events.read(event.cursor).events == page.events[number + 1 :]
    assert shown(catalog.events.read(start, below="n").events) == [
        each for each in shown(page.events) if each[1] != "before"
    ]
    assert catalog.events.read(limit=2).events == page.events[:2]


def test_a_table_that_only_a_listing_shows_is_followed(plain: lancekeep.Catalog, tmp_path: Path) -> None:
    plain.events.record()
    uri = str(tmp_path / "lake/native.lance")
    for _ in range(2):
        lance.write_dataset(ROWS, uri, mode="overwrite")
    settle(plain)
    lance.dataset(uri).delete("a = 1")
    plain.upkeep.migrate()  # enters it in the manifest
    settle(plain)
    events = plain.events.read().events
    assert same(commits(events, "native"), history(uri))
    assert next(each for each in shown(events) if each[0] != "committed") == ("created", "native")


def test_a_table_at_the_place_of_a_dropped_one_is_another_table(plain: lancekeep.Catalog) -> None:
    plain.events.record()
    expected = []
    for _ in range(3):  # the root keeps the names of V1 directories
        plain.write("t", ROWS)
        plain.write("t", ROWS, "append")
        expected += history(plain.describe_table("t").uri)
        plain.events.record()
        plain.drop_table("t", keep=0)
    plain.events.record()
    assert same(commits(plain.events.read().events, "t"), expected)


def test_concurrent_recorders_append_each_event_once(plain: lancekeep.Catalog, tmp_path: Path) -> None:
    plain.events.record()
    names = [f"t{number}" for number in range(4)]
    for name in names:
        plain.write(name, ROWS)
    barrier = Barrier(4)

    def work(number: int) -> None:
        with connect(tmp_path / "lake") as own:
            barrier.wait()
            for _ in range(5):
                own.write(names[number], ROWS, "append")
                own.events.record()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    settle(plain)
    events = plain.events.read(limit=1000).events
    assert len({event.id for event in events}) == len(events)
    for name in names:
        assert same(commits(events, name), history(plain.describe_table(name).uri))


def test_a_recorder_goes_on_from_a_checkpoint(
    plain: lancekeep.Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "CHECKPOINT_EVERY", 2)
    monkeypatch.setattr(recorder, "KEEP", timedelta(0))
    plain.events.record()
    start = plain.events.latest()
    directory = tmp_path / "lake/.lancekeep-events/log"
    for number in range(6):
        plain.write("t", ROWS, "append" if number else "create")
        with connect(tmp_path / "lake") as other:
            assert other.events.record()
    kept = sorted(directory.iterdir())
    assert 0 < len(kept) < 6  # the batch of the newest checkpoint, and those that are as young as it
    assert [version for version, _ in commits(plain.events.read().events, "t")][-1] == 6
    late = directory / f"{1:020}"  # of a process that was suspended, then killed before it took its batch back
    late.write_bytes(kept[0].read_bytes())
    monkeypatch.setattr(recorder, "KEEP", timedelta(days=1))
    assert plain.events.read().cursor == plain.events.latest()
    for number in range(2):
        plain.create_namespace(f"n{number}")
        plain.events.record()
    assert not late.exists()
    for cursor in (start, "0." + start.partition(".")[2], start.partition(".")[0] + ".99"):
        with pytest.raises(lancekeep.CursorExpired, match="latest"):
            plain.events.read(cursor)
    for cursor in ("", "x", f"{start}.0", f"{start}.-1"):
        with pytest.raises(InvalidInput, match="at a server"):
            plain.events.read(cursor)
    with pytest.raises(InvalidInput, match="limit"):
        plain.events.read(limit=0)
    with pytest.raises(InvalidInput, match="wait"):
        plain.events.read(wait=-1)


def test_the_latest_cursor_costs_few_requests(plain: lancekeep.Catalog) -> None:
    plain.events.record()
    for number in range(30):
        plain.create_namespace(f"n{number}")
        plain.events.record()
    own = directory_of(plain)
    objects = Faulty(own.places.objects)
    log = event_log.EventLog(objects, own.places.prefix, own.commits.retry)
    assert str(log.latest()) == plain.events.latest()
    assert len(objects.calls) <= 4


def test_a_late_recorder_takes_its_batch_back(plain: lancekeep.Catalog, tmp_path: Path) -> None:
    """A process that was suspended finds its number free, because the batch of this number was removed."""
    plain.events.record()
    plain.write("t", ROWS)
    plain.events.record()
    own = directory_of(plain)
    log = event_log.EventLog(own.places.objects, own.places.prefix, own.commits.retry)
    last = log.latest()
    for old in sorted((tmp_path / "lake/.lancekeep-events/log").iterdir()):
        old.unlink()
    assert not log.append(EventBatch(last.log, last.batch + 1, "urn:x"))
    assert not list((tmp_path / "lake/.lancekeep-events/log").iterdir())


def test_changes_that_are_not_kept_are_reported_and_no_commit_is_lost(plain: lancekeep.Catalog, tmp_path: Path) -> None:
    plain.events.record()
    plain.create_namespace("n")
    plain.write("n.t", ROWS)
    plain.write("n.t", ROWS, "append")
    plain.create_namespace("m")
    for old in sorted((tmp_path / "lake/__manifest/_versions").glob("*.manifest"))[1:]:  # as a clean-up does
        old.unlink()
    with connect(tmp_path / "lake") as other:
        assert other.events.record() == 3
        events = other.events.read().events
        assert shown(events) == [("committed", "n.t")] * 2
        assert events[0].type == "lancekeep.catalog.changes-missed"
        assert other.events.read(below="m").events == events[:1]
        assert list(visible(events, lambda _: False)) == events[:1], "every subscriber has to list the catalog"
        assert same(commits(events, "n.t"), history(other.describe_table("n.t").uri))
    uri = plain.describe_table("n.t").uri
    for _ in range(2):
        plain.write("n.t", ROWS, "append")
    lance.dataset(uri).cleanup_old_versions(timedelta(0))
    assert plain.events.record() == 2
    missed, committed = plain.events.read().events[-2:]
    assert (missed.kind, missed.data["first"], missed.data["last"]) == ("versions-missed", 3, 3)
    assert committed.data["version"] == 4


def test_homes_without_a_feed_and_damaged_logs_are_refused(tmp_path: Path) -> None:
    with connect(tmp_path / "v1", mode="v1") as catalog:
        catalog.write("t", ROWS)
        for act in (
            catalog.events.record,
            catalog.events.read,
            catalog.events.latest,
            lambda: next(catalog.events.watch()),
        ):
            with pytest.raises(Unsupported, match=r"V1 directory keeps no feed.* connect with mode='compatible'"):
                act()
        assert not (tmp_path / "v1/.lancekeep-events").exists()
        with serving(CatalogNamespace(catalog)) as front:
            answer = httpx.get(f"{front.uri}/v1/events")
        assert (answer.status_code, answer.json()["code"]) == (501, 0), answer.text
    serve = ["serve", str(tmp_path / "v1"), "--mode", "v1", "--events", "--port", "0"]
    refused = CliRunner().invoke(program, serve, obj=lancekeep)
    assert (refused.exit_code, "keeps no feed of its changes" in refused.output) == (1, True), refused.output
    with connect(tmp_path / "lake") as catalog:
        catalog.write("t", ROWS)
        catalog.events.record()
        batch = next((tmp_path / "lake/.lancekeep-events/log").iterdir())
        sound = json.loads(batch.read_bytes())
        other = json.dumps({**sound, "number": 7}).encode()
        strange = json.dumps({**sound, "events": [["1", "x", ["t"], 0, {"former": [3]}]]}).encode()
        for content in (b"", b"[]", b'{"format":2}', b'{"format":1,"events":[[1]]}', b"\xff" * 10, other, strange):
            batch.write_bytes(content)
            with pytest.raises(lancekeep.Damaged, match="log of events"):
                catalog.events.read()
        [finding] = catalog.upkeep.fsck().findings
        assert (finding.kind.value, finding.object) == ("damaged log of events", f".lancekeep-events/log/{batch.name}")


# -- over REST ---------------------------------------------------------------------------------------------------


@pytest.fixture
def url(plain: lancekeep.Catalog, tmp_path: Path) -> Iterator[str]:
    plain.events.record()
    plain.write("t", ROWS)
    plain.events.record()
    namespace = lancekeep.DirectoryNamespace(**{"root": str(tmp_path / "lake"), "storage.fsync": "false"})
    with serving(namespace) as front:
        yield front.uri


def test_server_answers_with_a_batch_of_cloudevents(plain: lancekeep.Catalog, url: str) -> None:
    answer = httpx.get(f"{url}/v1/events")
    assert answer.headers["content-type"] == "application/cloudevents-batch+json"
    expected = plain.events.read()
    identity = plain.upkeep.identity()
    assert identity is not None
    for each, event in zip(answer.json(), expected.events, strict=True):
        parsed = JSONFormat().read(None, json.dumps(each))  # the SDK is the judge
        assert (parsed.get_id(), parsed.get_type()) == (event.id, event.type)
        assert parsed.get_subject() == (event.object_id.key or None)
        assert parsed.get_source() == f"urn:lancekeep:{identity.id}"
        assert parsed.get_data() == event.data
        assert parsed.get_extension("cursor") == event.cursor
    assert answer.headers["x-lancekeep-cursor"] == expected.cursor
    assert httpx.get(f"{url}/v1/events", params={"after": expected.cursor}).json() == []
    refuses = {"accept": "text/event-stream;q=0, application/json"}
    assert httpx.get(f"{url}/v1/events", headers=refuses).json() == answer.json()
    assert httpx.get(f"{url}/v1/events", params={"after": "latest"}).headers["x-lancekeep-cursor"] == expected.cursor
    assert httpx.get(f"{url}/v1/events", params={"after": "aa.1"}).status_code == 410
    for wrong in ({"after": "x"}, {"limit": "0"}, {"limit": "1001"}, {"wait": "61"}, {"wait": "-1"}, {"id": "a$$b"}):
        assert httpx.get(f"{url}/v1/events", params=wrong).status_code == 400, wrong
    with lancekeep.connect(url) as remote:
        assert remote.events.read() == expected
        assert remote.events.read(below="t").events == expected.events[-len(shown(expected.events)) :]
        assert remote.events.latest() == expected.cursor
        with pytest.raises(lancekeep.CursorExpired):
            remote.events.read("aa.1")


def test_server_waits_for_an_event_and_streams(plain: lancekeep.Catalog, url: str) -> None:
    cursor = plain.events.latest()
    waiting = Thread(target=lambda: (plain.write("t", ROWS, "append"), plain.events.record()))
    with httpx.stream("GET", f"{url}/v1/events", headers={"accept": "text/event-stream"}, timeout=60) as stream:
        events = (json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: "))
        expected = [each.id for each in plain.events.read().events]
        assert [each["id"] for each in islice(events, len(expected))] == expected
        waiting.start()
        found = next(events)
        assert found["data"]["version"] == 2
    waiting.join()
    answer = httpx.get(f"{url}/v1/events", params={"after": cursor, "wait": 60}, timeout=90)
    assert [each["id"] for each in answer.json()] == [found["id"]]
    waiting = Thread(target=lambda: (plain.write("t", ROWS, "append"), plain.events.record()))
    waiting.start()
    answer = httpx.get(f"{url}/v1/events", params={"after": found["cursor"], "wait": 60}, timeout=90)
    assert [each["data"]["version"] for each in answer.json()] == [3]
    waiting.join()
    headers = {"accept": "text/event-stream", "last-event-id": found["cursor"]}
    with httpx.stream("GET", f"{url}/v1/events", headers=headers, timeout=60) as stream:
        data = next(line for line in stream.iter_lines() if line.startswith("data: "))
    assert json.loads(data[6:])["data"]["version"] == 3


def test_a_caller_sees_the_events_of_objects_that_it_may_describe(plain: lancekeep.Catalog, tmp_path: Path) -> None:
    plain.events.record()
    for name in ("mine", "theirs"):
        plain.create_namespace(name)
        plain.write(f"{name}.t", ROWS)
    plain.rename_table("mine.t", "theirs.secret")
    plain.rename_table("theirs.t", "mine.u")
    plain.rename_table("mine.u", "mine.v")
    settle(plain)
    expected = [("created", "mine"), ("created", "mine.t"), ("dropped", "mine.t"), ("created", "mine.u")]
    expected += [("renamed", "mine.v"), ("committed", "mine.v")]
    keys, policy = KeyFile(tmp_path / "keys.json"), tmp_path / "policy.toml"
    [ada, bob] = [keys.create(name, ())[1] for name in ("ada", "bob")]
    policy.write_text(
        '[[grants]]\nrole = "read"\non = "mine"\nprincipals = ["key:ada"]\n'
        '[[grants]]\nrights = ["list"]\non = ""\nprincipals = ["key:bob"]\n'
    )
    settings = ServerSettings(keys=str(tmp_path / "keys.json"), policy=str(policy))
    security = security_of(settings, {})
    namespace = lancekeep.DirectoryNamespace(**{"root": str(tmp_path / "lake"), "storage.fsync": "false"})
    app = create_app(namespace, settings, around=security.around, middleware=security.middleware)
    with running(app, settings) as url:
        answer = httpx.get(f"{url}/v1/events", headers={"x-api-key": ada})
        found = [(each["type"].rpartition(".")[2], each["subject"].replace("$", ".")) for each in answer.json()]
        assert sorted(found) == sorted(expected)
        assert found[: len(expected) - 1] == expected[:-1]
        assert "theirs" not in answer.text
        assert "secret" not in answer.text
        assert answer.headers["x-lancekeep-cursor"] == plain.events.latest()
        assert httpx.get(f"{url}/v1/events", headers={"x-api-key": bob}).status_code == 403
        assert httpx.get(f"{url}/v1/events").status_code == 401
        hidden = httpx.get(f"{url}/v1/events", params={"id": "theirs"}, headers={"x-api-key": ada})
        assert (hidden.status_code, hidden.json()["code"]) == (404, 1)


def test_a_stream_ends_when_the_credential_of_its_caller_is_revoked(plain: lancekeep.Catalog, tmp_path: Path) -> None:
    plain.events.record()
    plain.write("t", ROWS)
    plain.events.record()
    keys = KeyFile(tmp_path / "keys.json")
    key, secret = keys.create("ada", ())
    settings = ServerSettings(keys=str(tmp_path / "keys.json"))
    namespace = lancekeep.DirectoryNamespace(**{"root": str(tmp_path / "lake"), "storage.fsync": "false"})
    headers = {"x-api-key": secret, "accept": "text/event-stream"}
    with (
        running(create_app(namespace, settings, middleware=security_of(settings, {}).middleware), settings) as url,
        httpx.stream("GET", f"{url}/v1/events", headers=headers, timeout=60) as stream,
    ):
        lines = stream.iter_lines()
        assert any(line.startswith("data: ") for line in lines)
        keys.revoke(key.id)
        plain.write("t", ROWS, "append")
        plain.events.record()
        later = (json.loads(line[6:])["data"] for line in lines if line.startswith("data: "))
        assert not any(data.get("version") == 2 for data in later)
        assert httpx.get(f"{url}/v1/events", headers=headers).status_code == 401


def test_a_server_records_events_until_it_is_killed_and_after(plain: lancekeep.Catalog, tmp_path: Path) -> None:
    uri = str(tmp_path / "lake/t.lance")
    lance.write_dataset(ROWS, uri)

    def serve() -> tuple[subprocess.Popen[str], str]:
        line = [sys.executable, "-m", "lancekeep", "serve", str(tmp_path / "lake"), "--events", "--port", "0"]
        server = subprocess.Popen([*line, "--log-format", "json"], stderr=subprocess.PIPE, text=True)
        assert server.stderr is not None
        return server, json.loads(server.stderr.readline())["url"]

    found: list[dict[str, Any]] = []
    cursor = "latest"
    for stop in (signal.SIGKILL, signal.SIGTERM):
        server, url = serve()
        try:
            if cursor == "latest":
                cursor = httpx.get(f"{url}/v1/events", params={"after": cursor}).headers["x-lancekeep-cursor"]
            lance.write_dataset(ROWS, uri, mode="append")
            while not found or found[-1]["data"]["version"] < lance.dataset(uri).version:
                answer = httpx.get(f"{url}/v1/events", params={"after": cursor, "wait": 30}, timeout=60)
                found += (each for each in answer.json() if each["type"] == "lancekeep.table.committed")
                cursor = answer.headers["x-lancekeep-cursor"]
        finally:
            server.send_signal(stop)
            assert server.wait() == (0 if stop == signal.SIGTERM else -stop)
        lance.write_dataset(ROWS, uri, mode="append")  # while no server runs
    assert [each["data"]["version"] for each in found] == [2, 3, 4]


# -- kills -------------------------------------------------------------------------------------------------------

WRITER = """
import contextlib, lance, lancekeep, pyarrow as pa, sys
root, name, rows = sys.argv[1], sys.argv[2], pa.table({"a": [1]})
catalog = lancekeep.connect(root, storage_options={"fsync": "false"})
while True:
    with contextlib.suppress(lancekeep.LancekeepError, OSError):
        if not catalog.table_exists(name):
            catalog.write(name, rows)
        for _ in range(3):
            catalog.write(name, rows, "append")
        lance.write_dataset(rows, catalog.describe_table(name).uri, mode="append")  # a native commit
        catalog.alter_table(name, {"k": "v"})
"""
RECORDER = """
import lancekeep, sys
catalog = lancekeep.connect(sys.argv[1], storage_options={"fsync": "false"})
while True:
    catalog.events.record()
"""
READER = """
import json, lancekeep, sys
catalog = lancekeep.connect(sys.argv[1], storage_options={"fsync": "false"})
log = open(sys.argv[2], "a")
for event in catalog.events.watch(sys.argv[3] or None, poll=0.05):
    log.write(json.dumps([event.cursor, event.id]) + "\\n")
    log.flush()
"""


@pytest.mark.parametrize("kills", [2, 40])
def test_kills_lose_and_repeat_no_event(plain: lancekeep.Catalog, tmp_path: Path, kills: int) -> None:
    root, log = str(tmp_path / "lake"), tmp_path / "read"
    plain.events.record()
    log.touch()

    def run(program: str, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", program, root, *arguments], stderr=subprocess.DEVNULL)

    def read() -> list[list[str]]:
        return [json.loads(line) for line in log.read_text().splitlines() if line.endswith("]")]

    def reader() -> subprocess.Popen[bytes]:
        log.write_text("".join(json.dumps(each) + "\n" for each in read()))  # without a line that a kill has cut
        return run(READER, str(log), read()[-1][0] if read() else "")

    def has_read(count: int) -> bool:
        return len(read()) >= count

    programs: list[Callable[[], subprocess.Popen[bytes]]] = [
        partial(run, RECORDER),
        reader,
        partial(run, WRITER, "a"),
        *([partial(run, RECORDER), partial(run, WRITER, "b")] if kills > 2 else []),
    ]
    running = [start() for start in programs]
    try:
        for number in range(kills):
            seen = len(read())
            poll(partial(has_read, seen + 4))
            place = number % len(running)
            running[place].send_signal(signal.SIGKILL)
            running[place].wait()
            running[place] = programs[place]()
    finally:
        for each in (*running[:1], *running[2:]):
            each.kill()
            each.wait()
    settle(plain)
    events = list(plain.events.read(limit=10_000).events)
    poll(lambda: bool(read()) and read()[-1][0] == events[-1].cursor)
    running[1].kill()
    running[1].wait()
    assert len({event.id for event in events}) == len(events)
    assert list(dict.fromkeys(each[1] for each in read())) == [event.id for event in events]  # deduplicated by id
    for name in plain.list_tables():
        assert same(commits(events, name), history(plain.describe_table(name).uri)), name
    changes = [each.id.partition("-")[0] for each in plain.changes.read(limit=10_000).changes]
    recorded = [event.id.partition("_")[0] for event in events if "catalog_version" in event.data]
    assert recorded == changes[-len(recorded) :]
