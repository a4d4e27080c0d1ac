"""Deliveries of events: each one reaches its subscriber, in order, whatever is killed."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner
from cloudevents.core.formats.json import JSONFormat
from contracts.test_commit_stores import self_signed
from deployments import bucket
from faults import Crash, Faulty
from prometheus_client import CollectorRegistry, generate_latest
from redis_servers import poll
from unanswered import first_address_unanswered
from webhook_receiver import __file__ as receiver_program

import lancekeep
from lancekeep.adapters.event_sinks.files import EventFiles
from lancekeep.adapters.event_sinks.webhook import Webhook, parsed_secret
from lancekeep.adapters.object_stores import open_object_store
from lancekeep.application.catalog import directory_of
from lancekeep.application.events.deliveries import STORED_EVERY, Deliveries
from lancekeep.application.events.log import EventLog
from lancekeep.application.events.subscriptions import Subscription
from lancekeep.application.upkeep.fsck import Kind
from lancekeep.config import ConnectionConfig
from lancekeep.domain.errors import InvalidInput, StoreUnavailable
from lancekeep.domain.event_delivery import Delivery, Result, Subscriber
from lancekeep.entrypoints.cli import lancekeep as command
from lancekeep.entrypoints.deliveries import DeliveryWorkers, delivering
from lancekeep.entrypoints.events import EventRecording
from lancekeep.entrypoints.rest.event_metrics import EventMetrics
from lancekeep.entrypoints.subscribers import configured_subscribers

ROWS = pa.table({"a": [1, 2, 3]})
SECRET = "whsec_" + base64.b64encode(b"s" * 32).decode()
OTHER = "whsec_" + base64.b64encode(b"o" * 32).decode()


def verified(message: dict[str, Any], secret: str) -> bool:
    """Return whether one signature of a message is by a secret, as the Standard Webhooks specification says."""
    headers = message["headers"]
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.{message['body']}"
    digest = hmac.new(base64.b64decode(secret[len("whsec_") :]), signed.encode(), hashlib.sha256).digest()
    expected = f"v1,{base64.b64encode(digest).decode()}"
    return any(hmac.compare_digest(each, expected) for each in headers["webhook-signature"].split(" "))


@attrs.define
class Receiver:
    """A process that takes webhooks."""

    folder: Path
    port: int = 0
    process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?token=hidden"

    def start(self) -> None:
        self.log.touch()
        self.answers.touch()
        line = [sys.executable, receiver_program, str(self.port), str(self.log), str(self.answers)]
        self.process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    @property
    def log(self) -> Path:
        return self.folder / "received"

    @property
    def answers(self) -> Path:
        return self.folder / "answers"

    def messages(self) -> list[dict[str, Any]]:
        lines = self.log.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("}\n")]

    def events(self) -> list[dict[str, Any]]:
        """Return the received events, each once: where it came first."""
        found: dict[str, dict[str, Any]] = {}
        for message in self.messages():
            for event in json.loads(message["body"]):
                found.setdefault(event["id"], event)
        return list(found.values())

    def ids(self) -> list[str]:
        return [each["id"] for each in self.events()]


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    found = Receiver(tmp_path)
    found.start()
    yield found
    found.kill()


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[lancekeep.Catalog]:
    with lancekeep.connect(str(tmp_path / "lake"), storage_options={"fsync": "false"}) as catalog:
        catalog.events.record()
        yield catalog


class Clock:
    """Time that passes by pauses only."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def deliveries_of(catalog: lancekeep.Catalog, sink: Any, objects: Any = None, **options: Any) -> Deliveries:
    own = directory_of(catalog)
    objects = objects or own.places.objects
    subscriber = Subscriber(**{"name": "hook", "start": "oldest", **options})
    subscription = Subscription(objects, own.places.prefix, own.commits.retry, subscriber.name)
    return Deliveries(subscriber, EventLog.of(own), subscription, sink, Clock(), lambda: 1.0)


def hook(receiver: Receiver, *secrets: str, timeout: float = 10.0) -> Webhook:
    found = [parsed_secret(each, "test") for each in secrets or (SECRET,)]
    return Webhook(receiver.url, lambda: found, timeout)


def run(deliveries: Deliveries, steps: int = 1000) -> list[float]:
    """Deliver until there is nothing to deliver, or deliveries have stopped; return the pauses after failures."""
    pauses: list[float] = []
    for _ in range(steps):
        failed = sum(deliveries.counts.attempts.values()) - deliveries.counts.attempts["taken"]
        pause = deliveries.step()
        deliveries._clock.now += pause  # type: ignore[attr-defined]
        if sum(deliveries.counts.attempts.values()) - deliveries.counts.attempts["taken"] > failed:
            pauses.append(pause)
        elif deliveries.counts.is_stopped or (pause and not deliveries.counts.behind):
            break
    return pauses


def settle(catalog: lancekeep.Catalog) -> list[str]:
    """Record all events, and return the ids of the kept ones."""
    while catalog.events.record():
        pass
    return [event.id for event in catalog.events.read(limit=10_000).events]


def test_batches_are_cloudevents_in_order_with_signatures(catalog: lancekeep.Catalog, receiver: Receiver) -> None:
    catalog.create_namespace("n")
    catalog.write("n.t", ROWS)
    for _ in range(5):
        lance.write_dataset(ROWS, catalog.describe_table("n.t").uri, mode="append")
    expected = settle(catalog)
    run(deliveries_of(catalog, hook(receiver, SECRET, OTHER), batch=3))
    messages = receiver.messages()
    assert [len(json.loads(each["body"])) for each in messages] == [3, 3, 2]
    assert [each["id"] for one in messages for each in json.loads(one["body"])] == expected
    for message in messages:
        assert message["headers"]["content-type"] == "application/cloudevents-batch+json"
        assert message["path"] == "/hook?token=hidden"
        assert verified(message, SECRET)
        assert verified(message, OTHER), "during a rotation, both secrets sign"
        assert not verified(message, "whsec_" + base64.b64encode(b"x" * 32).decode())
        assert not verified({**message, "body": message["body"].replace("n$t", "n$u") + " "}, SECRET)
        for each in json.loads(message["body"]):  # the SDK is the judge
            assert JSONFormat().read(None, json.dumps(each)).get_id() == each["id"]
    assert len({each["headers"]["webhook-id"] for each in messages}) == 3
    found = [each["data"]["version"] for each in receiver.events() if each["type"] == "lancekeep.table.committed"]
    assert found == [each["version"] for each in lance.dataset(catalog.describe_table("n.t").uri).versions()]


def test_a_subscriber_gets_the_types_and_the_subtree_of_its_settings(
    catalog: lancekeep.Catalog, receiver: Receiver
) -> None:
    for name in ("n", "m"):
        catalog.create_namespace(name)
        catalog.write(f"{name}.t", ROWS)
    expected = settle(catalog)
    latest = deliveries_of(catalog, hook(receiver), start="latest", name="latest")
    latest.begin()
    chosen = {"types": frozenset(["lancekeep.table.committed"]), "below": lancekeep.ObjectId.of("n")}
    deliveries = deliveries_of(catalog, hook(receiver), **chosen)
    run(deliveries)
    assert [(each["type"], each["subject"]) for each in receiver.events()] == [("lancekeep.table.committed", "n$t")]
    catalog.write("m.t", ROWS, "append")
    last = settle(catalog)[len(expected) :]
    own = Subscription.of(directory_of(catalog), "hook")
    before = own.position()
    run(deliveries, 1)
    assert own.position() == before
    deliveries._clock.now += STORED_EVERY  # type: ignore[attr-defined]
    run(deliveries, 1)  # the position follows, so that the log may be cleaned up
    position = own.position()
    assert position is not None
    assert position.cursor == catalog.events.latest()
    run(latest)
    assert receiver.ids()[1:] == last


def test_failures_are_retried_with_growing_pauses_and_keep_the_order(
    catalog: lancekeep.Catalog, receiver: Receiver
) -> None:
    for number in range(4):
        catalog.create_namespace(f"n{number}")
    expected = settle(catalog)
    receiver.answers.write_text(
        "500 lost 429:retry-after=77 503:retry-after=999999 hang 408 200 302:location=/other 500"
    )
    deliveries = deliveries_of(catalog, hook(receiver, timeout=0.3), batch=2)
    assert run(deliveries) == [1, 2, 77, 3600, 16, 32, 1, 2]
    assert receiver.ids() == expected
    assert len(receiver.messages()) == 3, "the lost answer repeats its batch"
    assert receiver.messages()[0]["headers"]["webhook-id"] == receiver.messages()[1]["headers"]["webhook-id"]
    assert all(each["path"] != "/other" for each in receiver.messages())
    assert deliveries.counts.attempts == {"taken": 2, "refused": 1, "gone": 0, "failed": 7}
    assert Subscription.of(directory_of(catalog), "hook").problem() is None


def test_a_batch_that_is_refused_becomes_a_dead_letter_that_can_be_replayed(
    catalog: lancekeep.Catalog, receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        catalog.create_namespace(f"n{number}")
    expected = settle(catalog)
    receiver.answers.write_text("400 " * 5)
    deliveries = deliveries_of(catalog, hook(receiver), batch=2)
    run(deliveries)
    assert receiver.ids() == expected[2:]
    assert deliveries.counts.dead_letters == 1
    [letter] = (tmp_path / "lake/.lancekeep-events/subscribers/hook/dead-letters").iterdir()
    assert [each["id"] for each in json.loads(letter.read_text())["events"]] == expected[:2]
    configure(tmp_path, receiver)
    monkeypatch.setenv("LANCEKEEP_CONFIG", str(tmp_path / "lancekeep.toml"))
    monkeypatch.setenv("HOOK_SECRET", SECRET)

    def call(*arguments: str) -> tuple[int, str]:
        found = CliRunner().invoke(command, ["webhooks", str(tmp_path / "lake"), *arguments], obj=lancekeep)
        assert "hidden" not in found.output
        assert SECRET not in found.output
        return found.exit_code, found.output

    [status] = json.loads(call("--json")[1].partition("[")[1] + call("--json")[1].partition("[")[2])
    assert (status["name"], status["dead_letters"], status["behind"], status["problem"]) == ("hook", 1, 0, "")
    receiver.answers.write_text("401")
    assert call("--replay", "hook")[0] == 1
    assert letter.exists()
    assert call("--replay", "hook")[0] == 0
    assert not letter.exists()
    assert sorted(receiver.ids()) == sorted(expected)
    assert call("--test", "hook")[0] == 0
    assert receiver.events()[-1]["type"] == "lancekeep.webhook.test"
    assert verified(receiver.messages()[-1], SECRET)
    assert call("--test", "other")[0] == 2


def test_a_replay_sends_no_event_that_the_settings_exclude_by_now(
    catalog: lancekeep.Catalog, receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        catalog.create_namespace(f"n{number}")
    expected = settle(catalog)
    receiver.answers.write_text("400 " * 10)
    assert run(deliveries_of(catalog, hook(receiver), batch=2))
    assert receiver.ids() == []
    configure(tmp_path, receiver, 'below = "n1"')
    monkeypatch.setenv("LANCEKEEP_CONFIG", str(tmp_path / "lancekeep.toml"))
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    found = CliRunner().invoke(command, ["webhooks", str(tmp_path / "lake"), "--replay", "hook"], obj=lancekeep)
    assert (found.exit_code, receiver.ids()) == (0, expected[1:2])
    assert "hook took 1 of the 2 events" in found.output
    assert "Not sent: 2 events" in found.output
    assert not list((tmp_path / "lake/.lancekeep-events/subscribers/hook/dead-letters").glob("*"))


def test_a_subscriber_that_is_gone_gets_no_further_request(catalog: lancekeep.Catalog, receiver: Receiver) -> None:
    for number in range(3):
        catalog.create_namespace(f"n{number}")
    expected = settle(catalog)
    receiver.answers.write_text("200 410")
    deliveries = deliveries_of(catalog, hook(receiver), batch=1)
    run(deliveries)
    assert deliveries.counts.is_stopped
    assert receiver.answers.read_text() == ""
    run(deliveries, 10)
    assert receiver.ids() == expected[:1]
    assert deliveries.counts.attempts == {"taken": 1, "refused": 0, "gone": 1, "failed": 0}
    problem = Subscription.of(directory_of(catalog), "hook").problem()
    assert problem is not None
    assert problem.is_stopped
    run(deliveries_of(catalog, hook(receiver), batch=1))  # the next server
    assert receiver.ids() == expected


def test_no_answer_of_a_subscriber_holds_the_server_or_is_quoted(
    catalog: lancekeep.Catalog, receiver: Receiver
) -> None:
    catalog.create_namespace("n")
    expected = settle(catalog)
    receiver.answers.write_text("echo flood")
    deliveries = deliveries_of(catalog, hook(receiver))
    deliveries.step()
    problem = Subscription.of(directory_of(catalog), "hook").problem()
    assert problem is not None
    assert problem.text == f"http://127.0.0.1:{receiver.port}/…: no valid response (BadStatusLine)"
    run(deliveries)
    assert receiver.ids() == expected
    assert len(receiver.messages()) == 1
    with socket.create_server(("127.0.0.1", 0)) as slow:  # it sends its part of TLS byte by byte
        pool = ThreadPoolExecutor(1)
        sent = pool.submit(trickle, slow)
        sink = Webhook(f"https://127.0.0.1:{slow.getsockname()[1]}/", lambda: [b"s" * 32], 0.3)
        attempt = sink.deliver(Delivery(1, "urn:x", [], ""))
        assert attempt.problem.endswith("no response within 0.3 seconds")
        assert sent.result() < 30
        pool.shutdown()


def test_a_subscriber_is_reached_although_its_first_address_does_not_answer(
    catalog: lancekeep.Catalog, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    with first_address_unanswered(monkeypatch, "hook.test", receiver.port) as ports:
        sink = Webhook("http://hook.test/hook", lambda: [b"s" * 32], 2.0)
        attempt = sink.deliver(Delivery(1, "urn:x", [], ""))
        ports.pop()
        failed = sink.deliver(Delivery(1, "urn:x", [], ""))
    assert attempt.result is Result.TAKEN, attempt
    assert len(receiver.messages()) == 1
    assert failed.problem == "http://hook.test/…: no response within 2 seconds"


def trickle(server: socket.socket) -> int:
    """Send a TLS record byte by byte until the client ends the connection, and return how many bytes."""
    connection, _ = server.accept()
    record = bytes([22, 3, 3, 64, 0]) + bytes(1 << 14)
    with connection:
        connection.settimeout(0.02)
        for at, byte in enumerate(record):
            try:
                connection.send(bytes([byte]))
                while connection.recv(1 << 16):
                    pass
                return at
            except TimeoutError:
                continue
            except OSError:
                return at
    return len(record)


def test_an_outage_ends_in_dead_letters_or_stops_deliveries(catalog: lancekeep.Catalog, receiver: Receiver) -> None:
    for number in range(3):
        catalog.create_namespace(f"n{number}")
    expected = settle(catalog)
    receiver.kill()
    stopping = deliveries_of(catalog, hook(receiver), batch=1, on_failure="stop", retry_seconds=60, name="stopping")
    pauses = run(stopping)
    assert pauses[:6] == [1, 2, 4, 8, 16, 32]
    assert stopping.counts.is_stopped
    own = Subscription.of(directory_of(catalog), "stopping")
    problem = own.problem()
    assert problem is not None
    assert problem.is_stopped
    assert "hidden" not in problem.text
    deliveries = deliveries_of(catalog, hook(receiver), batch=1, retry_seconds=60)
    run(deliveries, 9)
    assert deliveries.counts.dead_letters >= 1
    receiver.start()
    run(deliveries)
    letters = Subscription.of(directory_of(catalog), "hook")
    buried = [each.delivery.events[0].id for key in letters.letters() if (each := letters.letter(key))]
    assert buried + receiver.ids() == expected
    again = deliveries_of(catalog, hook(receiver), batch=1, on_failure="stop", name="stopping")
    run(again)
    assert receiver.ids()[-len(expected) :] == sorted(receiver.ids(), key=expected.index)
    assert own.problem() is None


@pytest.mark.parametrize("how", ["before", "after"])
def test_a_crash_at_any_request_repeats_events_and_loses_none(
    catalog: lancekeep.Catalog, receiver: Receiver, how: str
) -> None:
    for number in range(4):
        catalog.create_namespace(f"n{number}")
    expected = settle(catalog)
    objects = directory_of(catalog).places.objects
    for nth in range(30):

        def decide(_: str, number: int, nth: int = nth) -> tuple[str, BaseException] | None:
            return (how, Crash()) if number == nth else None

        receiver.answers.write_text("400 400 400 400 400" if nth % 7 == 3 else "")
        faulty = Faulty(objects, decide)
        with pytest.raises(Crash) if nth < 8 else noted(faulty, nth):
            run(deliveries_of(catalog, hook(receiver), faulty, batch=1, name=f"hook{nth}"))
        run(deliveries_of(catalog, hook(receiver), batch=1, name=f"hook{nth}"))
        letters = Subscription.of(directory_of(catalog), f"hook{nth}")
        buried = [each.delivery.events[0].id for key in letters.letters() if (each := letters.letter(key))]
        assert set(buried) | set(receiver.ids()) == set(expected)
        assert receiver.ids() == [each for each in expected if each in receiver.ids()]
        receiver.log.write_text("")


@contextmanager
def noted(faulty: Faulty, nth: int) -> Iterator[None]:
    """Run a block that may end before the request at which it crashes."""
    try:
        yield
    except Crash:
        assert len(faulty.calls) == nth + 1
    else:
        assert len(faulty.calls) <= nth


def test_a_lost_reply_of_the_storage_is_no_loss(catalog: lancekeep.Catalog, receiver: Receiver) -> None:
    for number in range(3):
        catalog.create_namespace(f"n{number}")
    expected = settle(catalog)
    own = directory_of(catalog)

    def decide(method: str, number: int) -> tuple[str, BaseException] | None:
        return ("after", StoreUnavailable("no reply")) if method == "put_if_absent" and number % 2 else None

    run(deliveries_of(catalog, hook(receiver), Faulty(own.places.objects, decide), batch=1))
    assert receiver.ids() == expected
    assert len(receiver.messages()) == len(expected)


def test_two_servers_deliver_everything_in_order(
    catalog: lancekeep.Catalog, receiver: Receiver, tmp_path: Path
) -> None:
    for number in range(20):
        catalog.create_namespace(f"n{number}")
    expected = settle(catalog)
    receiver.answers.write_text("500 200 lost 200 503")

    def work(_: int) -> int:
        with lancekeep.connect(str(tmp_path / "lake"), storage_options={"fsync": "false"}) as own:
            deliveries = deliveries_of(own, hook(receiver), batch=3)
            run(deliveries)
            return deliveries.counts.events

    with ThreadPoolExecutor(2) as pool:
        counts = list(pool.map(work, range(2)))
    assert receiver.ids() == expected
    assert sum(counts) >= len(expected)
    last = max((tmp_path / "lake/.lancekeep-events/subscribers/hook/positions").iterdir())
    assert json.loads(last.read_text())["cursor"] == catalog.events.latest()


def test_one_of_several_servers_delivers_and_the_next_goes_on(
    catalog: lancekeep.Catalog, receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(tmp_path, receiver)
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    found = configured_subscribers({"LANCEKEEP_CONFIG": str(tmp_path / "lancekeep.toml")})

    def deliver_by(running: DeliveryWorkers) -> None:
        [deliveries] = running.deliveries
        before = deliveries.counts.events
        catalog.create_namespace(f"n{before}-{id(running)}")
        expected = settle(catalog)
        poll(lambda: len(receiver.ids()) == len(expected))
        poll(lambda: deliveries.counts.events > before)

    with ExitStack() as stack:
        first = stack.enter_context(ExitStack())
        one = first.enter_context(delivering(catalog, ConnectionConfig(), found, is_recorded=True))
        deliver_by(one)
        two = stack.enter_context(delivering(catalog, ConnectionConfig(), found, is_recorded=True))
        deliver_by(one)
        assert two.deliveries[0].counts.events == 0
        first.close()
        deliver_by(two)
        text = generate_latest(_registry(EventMetrics(EventRecording(catalog), two.deliveries))).decode()
    assert 'lancekeep_delivered_events_total{subscriber="hook"} 1.0' in text
    assert 'lancekeep_deliveries_total{result="taken",subscriber="hook"} 1.0' in text
    assert 'lancekeep_delivery_stopped{subscriber="hook"} 0.0' in text
    assert len(receiver.messages()) == 3, "no event came twice"


def _registry(collector: EventMetrics) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(collector)
    return registry


def test_fsck_finds_each_damaged_object_of_events_once(catalog: lancekeep.Catalog, receiver: Receiver) -> None:
    def found(**options: Any) -> dict[str, str]:
        findings = [each for each in catalog.upkeep.fsck(**options).findings if each.kind is Kind.EVENTS]
        assert len({each.object for each in findings}) == len(findings)
        return {each.object.removeprefix(".lancekeep-events/"): each.meaning for each in findings}

    for number in range(8):
        catalog.create_namespace(f"n{number}")
        catalog.events.record()
    receiver.answers.write_text("400 " * 10)
    run(deliveries_of(catalog, hook(receiver), batch=1))
    assert found(deep=True) == {}
    own = directory_of(catalog)
    above = Path(own.places.root_uri.removeprefix("file://")) / ".lancekeep-events"
    letter, other = sorted((above / "subscribers/hook/dead-letters").iterdir())
    [position] = (above / "subscribers/hook/positions").iterdir()
    batches = sorted((above / "log").iterdir())
    letter.write_text("{}")
    position.write_text(position.read_text().replace('"format":1', '"format":2'))
    (above / "log/notes.txt").write_text("x")
    batches[2].write_bytes(batches[2].read_bytes()[:-5])
    batches[5].unlink()
    damaged = {str(each.relative_to(above)) for each in (letter, position, batches[2], batches[5])} | {"log/notes.txt"}
    assert found().keys() == found(deep=True).keys() == damaged
    assert found(repair=True, grace=0).keys() == damaged, "repair removes nothing"
    assert other.exists()
    for each in (above / "checkpoints").iterdir():  # a later checkpoint, after which recorders read
        each.rename(above / "checkpoints" / each.name.replace("0" * 20, batches[3].name))
    assert found().keys() == damaged - {f"log/{batches[2].name}"}
    assert found(deep=True).keys() == damaged


def test_events_that_are_not_kept_are_reported_as_a_gap(
    catalog: lancekeep.Catalog, receiver: Receiver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    deliveries_of(catalog, hook(receiver), start="latest").begin()
    for number in range(3):
        catalog.create_namespace(f"n{number}")
        settle(catalog)
    batches = sorted((tmp_path / "lake/.lancekeep-events/log").iterdir())
    for old in batches[:2]:  # as a clean-up does
        old.unlink()
    deliveries = deliveries_of(catalog, hook(receiver), types=frozenset(["lancekeep.namespace.created"]))
    run(deliveries)
    gap, *others = receiver.events()
    assert gap["type"] == "lancekeep.catalog.events-missed"
    assert [each["subject"] for each in others] == ["n1", "n2"]
    assert deliveries.counts.gaps == 1
    assert "are lost" in caplog.text
    count = len(receiver.messages())
    run(deliveries_of(catalog, hook(receiver)))
    assert len(receiver.messages()) == count


# -- files ---------------------------------------------------------------------------------------------------------


def written(folder: Path) -> list[str]:
    """Return the ids of the events in files, in the order of the names."""
    files = sorted(folder.glob("*.jsonl"))
    return [json.loads(line)["id"] for file in files for line in file.read_text().splitlines()]


def test_files_have_each_event_once_in_order_in_a_bucket(catalog: lancekeep.Catalog, moto_endpoint: str) -> None:
    options = {
        "endpoint": moto_endpoint,
        "aws_access_key_id": "test",
        "aws_secret_access_key": "test",
        "region": "us-east-1",
        "allow_http": "true",
    }
    for number in range(3):
        catalog.create_namespace(f"n{number}")
    expected = settle(catalog)
    store, place = open_object_store(f"s3://{bucket(moto_endpoint)}/events", options, probe=True)
    run(deliveries_of(catalog, EventFiles(store, place), batch=2, every=60.0))
    run(deliveries_of(catalog, EventFiles(store, place), batch=1, name="again"))
    contents = [store.get(info.key).decode() for info in store.list(f"{place}/") if info.key.endswith(".jsonl")]
    assert [json.loads(line)["id"] for content in contents for line in content.splitlines()] == expected
    assert len(contents) == 2


def test_files_have_each_event_once_in_order_with_several_writers(catalog: lancekeep.Catalog, tmp_path: Path) -> None:
    for number in range(12):
        catalog.create_namespace(f"n{number}")
        if number % 3 == 0:
            catalog.events.record()
    expected = settle(catalog)

    def work(batch: int) -> None:
        with lancekeep.connect(str(tmp_path / "lake"), storage_options={"fsync": "false"}) as own:
            sink = EventFiles(*open_object_store(str(tmp_path / "out"), {"fsync": "false"}))
            run(deliveries_of(own, sink, batch=batch, every=60.0))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, (1, 2, 3)))
    assert written(tmp_path / "out") == expected


@pytest.mark.parametrize(
    "content",
    ["", "[]\n", "no JSON", "[" * 100_000, "{earlier}\n", "{other}\n"],
    ids=["empty", "list", "text", "nested", "earlier", "other"],
)
def test_foreign_file_in_the_place_of_the_next_one_is_a_failure(
    catalog: lancekeep.Catalog, tmp_path: Path, content: str
) -> None:
    for number in range(3):
        catalog.create_namespace(f"n{number}")
    settle(catalog)
    out = tmp_path / "out"
    sink = EventFiles(*open_object_store(str(out), {"fsync": "false"}))
    run(deliveries_of(catalog, sink, batch=1))
    first, second, _ = sorted(out.glob("*.jsonl"))
    other = json.loads(second.read_text())
    other["cursor"] = other["cursor"].replace(catalog.events.latest().partition(".")[0], "0" * 32)
    found = content.replace("{earlier}", first.read_text().strip()).replace("{other}", json.dumps(other))
    second.write_text(found)
    again = deliveries_of(catalog, sink, batch=1, name="again")
    assert len(run(again, steps=20)) > 3
    assert again.counts.attempts["failed"] > 3
    assert second.read_text() == found


@pytest.mark.parametrize("how", ["before", "after"])
def test_files_have_each_event_once_after_a_crash_at_any_request(
    catalog: lancekeep.Catalog, tmp_path: Path, how: str
) -> None:
    for number in range(4):
        catalog.create_namespace(f"n{number}")
    expected = settle(catalog)
    store, _ = open_object_store(str(tmp_path / "out"), {"fsync": "false"})
    for nth in range(30):

        def decide(_: str, number: int, nth: int = nth) -> tuple[str, BaseException] | None:
            return (how, Crash()) if number == nth else None

        folder = tmp_path / f"out{nth}"
        folder.mkdir()
        faulty = Faulty(store, decide)  # the positions and the files are in one store
        with noted(faulty, nth):
            sink = EventFiles(faulty, str(folder).lstrip("/"))
            run(deliveries_of(catalog, sink, faulty, batch=2, name=f"out{nth}"))
        sink = EventFiles(store, str(folder).lstrip("/"))
        run(deliveries_of(catalog, sink, batch=3, name=f"out{nth}"))
        assert written(folder) == expected, nth


def test_files_wait_for_more_events(catalog: lancekeep.Catalog, tmp_path: Path) -> None:
    sink = EventFiles(*open_object_store(str(tmp_path / "out"), {"fsync": "false"}))
    deliveries = deliveries_of(catalog, sink, every=60.0, batch=2)
    deliveries.begin()
    catalog.create_namespace("n")
    catalog.events.record()
    run(deliveries, 30)
    assert not (tmp_path / "out").exists()
    catalog.create_namespace("m")
    catalog.events.record()
    run(deliveries)
    assert len(written(tmp_path / "out")) == 2
    assert len(list((tmp_path / "out").iterdir())) == 1


# -- settings ------------------------------------------------------------------------------------------------------


def configure(folder: Path, receiver: Receiver, more: str = "") -> None:
    (folder / "lancekeep.toml").write_text(
        f'[server]\nevents = true\n[[webhooks]]\nname = "hook"\nurl = "{receiver.url}"\nsecrets = ["env:HOOK_SECRET"]\n'
        f'start = "oldest"\nbatch = 3\ntimeout = "1s"\ntakeover = "1s"\n{more}'
    )


WRONG = {
    'name = "A"': "lower-case",
    'url = "ftp://host/x"': "address of a webhook",
    'url = "https://user:hidden@host/x"': "address of a webhook",
    'url = "https://host:99999/x"': "address of a webhook",
    'url = "https://host/x?token=hidden#y"': "address of a webhook",
    "secrets = []": "env:NAME",
    'secrets = "whsec_hidden"': "env:NAME",
    'secrets = ["whsec_hidden"]': "neither the form",
    'secrets = ["env:A", "env:B", "env:C"]': "two of them",
    'secret = "whsec_hidden"': "unknown key 'secret'",
    'types = ["lancekeep.table.comitted"]': "no events of type",
    "types = [1]": "list of texts",
    "batch = 0": "batch is 0",
    "batch = 1001": "1 to 1000",
    'start = "now"': "choose latest, oldest",
    'on_failure = "drop"': "choose dead-letter, stop",
    'retry_for = "1 day"': "time span",
    'timeout = "0s"': "timeout is 0",
    'takeover = "0s"': "takeover is 0",
    'url = "http://host/hidden"': "no TLS",
    'url = "http://localhost.host/x"': "no TLS",
    'url = "http://169.254.169.254/latest"': "no TLS",
    'allow_http = "yes"': "true or false",
    'below = "a..b"': "empty name",
}


@pytest.mark.parametrize("line", WRONG)
def test_settings_are_checked_and_no_message_quotes_a_secret(tmp_path: Path, line: str) -> None:
    sound = {"name": '"hook"', "url": '"https://host/x"', "secrets": '["env:HOOK_SECRET"]'}
    key, _, value = line.partition(" = ")
    text = "\n".join(f"{name} = {each}" for name, each in {**sound, key: value}.items())
    (tmp_path / "lancekeep.toml").write_text(f"[[webhooks]]\n{text}\n")
    variables = {"LANCEKEEP_CONFIG": str(tmp_path / "lancekeep.toml")}
    with pytest.raises(InvalidInput, match=WRONG[line]) as found:
        configured_subscribers(variables)
    assert "hidden" not in str(found.value)


def test_secrets_that_cannot_be_used_are_named_and_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = '[[webhooks]]\nname = "hook"\nurl = "https://host/x"\nsecrets = ["env:HOOK_SECRET", "file:hook.secret"]\n'
    (tmp_path / "lancekeep.toml").write_text(lines)
    monkeypatch.setenv("LANCEKEEP_CONFIG", str(tmp_path / "lancekeep.toml"))
    [found] = configured_subscribers()
    config = ConnectionConfig()
    with pytest.raises(InvalidInput, match="HOOK_SECRET"):
        found.open(config)
    for wrong in ("whsec_hidden", "whsec_" + base64.b64encode(b"hidden").decode(), "hidden hidden"):
        monkeypatch.setenv("HOOK_SECRET", wrong)
        with pytest.raises(InvalidInput, match="HOOK_SECRET") as error:
            found.open(config)
        assert wrong not in str(error.value)
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    with pytest.raises(InvalidInput, match=r"hook\.secret"):
        found.open(config)
    (tmp_path / "hook.secret").write_text(OTHER + "\n")
    assert found.open(config) is not None
    assert SECRET not in repr(found)
    (tmp_path / "lancekeep.toml").write_text(lines * 2)
    with pytest.raises(InvalidInput, match="two subscribers"):
        configured_subscribers()


def test_the_certificate_of_a_webhook_is_verified(
    catalog: lancekeep.Catalog, receiver: Receiver, tmp_path: Path
) -> None:
    from http.server import HTTPServer
    from threading import Thread

    from webhook_receiver import Receiver as Handler

    certificate, key = self_signed(tmp_path)
    catalog.create_namespace("n")
    expected = settle(catalog)

    class Own(Handler):
        log, answers = receiver.log, receiver.answers

    server = HTTPServer(("127.0.0.1", 0), Own)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url, secrets = f"https://127.0.0.1:{server.server_port}/", [parsed_secret(SECRET, "test")]
    try:
        strict = deliveries_of(catalog, Webhook(url, lambda: secrets))
        strict.step()
        assert strict.counts.attempts == {"taken": 0, "refused": 0, "gone": 0, "failed": 1}
        problem = Subscription.of(directory_of(catalog), "hook").problem()
        assert problem is not None
        assert "not trusted" in problem.text
        run(deliveries_of(catalog, Webhook(url, lambda: secrets, ca_file=str(certificate))))
        assert receiver.ids() == expected
    finally:
        server.shutdown()
        server.server_close()


# -- servers -------------------------------------------------------------------------------------------------------


def serve(folder: Path, *options: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "LANCEKEEP_CONFIG": str(folder / "lancekeep.toml"), "HOOK_SECRET": SECRET}
    line = [sys.executable, "-m", "lancekeep", "serve", str(folder / "lake"), "--port", "0", "--log-format", "json"]
    return subprocess.Popen(
        [*line, "--storage-option", "fsync=false", *options],
        stderr=(folder / "server.log").open("a"),
        text=True,
        env=environment,
    )


@pytest.mark.parametrize(("count", "kills"), [(1, 1), (2, 40)])
def test_kills_of_servers_and_of_the_subscriber_lose_no_event(
    catalog: lancekeep.Catalog, receiver: Receiver, tmp_path: Path, count: int, kills: int
) -> None:
    configure(
        tmp_path,
        receiver,
        '[[event_files]]\nname = "files"\nurl = "out"\nstart = "oldest"\nevery = "1s"\ntakeover = "1s"\n',
    )
    uri = str(tmp_path / "lake/native.lance")
    lance.write_dataset(ROWS, uri)

    def change(number: int) -> None:
        catalog.create_namespace(f"n{number}")
        catalog.write(f"n{number}.t", ROWS)
        lance.write_dataset(ROWS, uri, mode="append")  # a native commit

    def has_more(seen: int) -> bool:
        return len(receiver.ids()) > seen

    servers = [serve(tmp_path) for _ in range(count)]
    try:
        for number in range(kills):
            seen = len(receiver.ids())
            receiver.answers.write_text(("lost", "500", "")[number % 3])
            change(number)
            if number % 3 == 1 or kills == 1:
                receiver.kill()
                receiver.start()
            poll(partial(has_more, seen))
            change(kills + number)
            servers[number % count].send_signal(signal.SIGKILL)
            servers[number % count].wait()
            if number + 1 < kills or count == 1:
                servers[number % count] = serve(tmp_path)
        expected = settle(catalog)
        poll(lambda: len(receiver.ids()) == len(expected))
        poll(lambda: len(written(tmp_path / "out")) == len(expected))
        for each in servers:
            each.send_signal(signal.SIGTERM)
            assert each.wait() in (0, -signal.SIGTERM, -signal.SIGKILL)
    finally:
        for each in servers:
            each.kill()
            each.wait()
    assert receiver.ids() == expected
    assert written(tmp_path / "out") == expected
    assert all(verified(each, SECRET) for each in receiver.messages())
    versions: dict[str, list[int]] = {}
    for event in receiver.events():
        if event["type"] == "lancekeep.table.committed":
            versions.setdefault(event["subject"], []).append(event["data"]["version"])
    for name in catalog.list_all_tables():
        native = lance.dataset(catalog.describe_table(name).uri).versions()
        assert versions.pop(name.key) == [version["version"] for version in native]
    assert not versions
    log = (tmp_path / "server.log").read_text()
    assert "hidden" not in log
    assert SECRET not in log


def test_a_server_without_events_refuses_subscribers(
    catalog: lancekeep.Catalog, receiver: Receiver, tmp_path: Path
) -> None:
    configure(tmp_path, receiver)
    found = configured_subscribers({"LANCEKEEP_CONFIG": str(tmp_path / "lancekeep.toml")})
    with (
        pytest.raises(InvalidInput, match="set events = true"),
        delivering(catalog, ConnectionConfig(), found, is_recorded=False),
    ):
        raise AssertionError("it is refused before the block")
