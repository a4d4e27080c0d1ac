"""The leases of committers: slow storage, silent holders and the end of a process delay and lose none."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from threading import Event
from typing import Any

import pytest

from lancekeep.adapters.object_stores.memory import MemoryObjectStore
from lancekeep.application.upkeep import shared_committers
from lancekeep.application.upkeep.shared_committers import SharedCommitters
from lancekeep.domain.errors import StoreUnavailable
from lancekeep.domain.identifiers import ObjectId
from lancekeep.ports.committers import LinkedTables

TABLE, OTHER = ObjectId(("t",)), ObjectId(("u",))


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("LOOK_EVERY", 0.01), ("TERM", 0.3), ("RELEASED_WITHIN", 0.5)):
        monkeypatch.setattr(shared_committers, name, seconds)


def eventually(holds: Callable[[], object]) -> None:
    ends = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.005)


class SomeLinks:
    """Links of which a test decides how they are made."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.make: Callable[[str], bool] = lambda address: True

    def begin(self, tables: LinkedTables) -> None:
        self.tables = tables

    def link(self, address: str) -> bool:
        return self.make(address)

    def leave(self, seconds: float) -> bool:
        return True

    def close(self) -> None:
        pass


class Storage(MemoryObjectStore):
    """A storage whose deletions and new objects wait for a test, if their keys begin with a prefix."""

    def __init__(self) -> None:
        super().__init__()
        self.permitted = Event()
        self.permitted.set()
        self.waiting = Event()
        self.delays: Callable[[str, str], bool] = lambda request, key: False

    def _delay(self, request: str, key: str) -> None:
        if self.delays(request, key):
            self.waiting.set()
            assert self.permitted.wait(30)

    def delete(self, key: str) -> None:
        self._delay("delete", key)
        super().delete(key)

    def put_if_absent(self, key: str, *arguments: Any, **named: Any) -> bool:
        self._delay("put", key)
        return super().put_if_absent(key, *arguments, **named)

    def leases(self) -> dict[str, str]:
        """Return the newest object of each lease, by its directory."""
        found = sorted(info.key for info in self.list("") if "/committers/" in info.key)
        return {key.rpartition("/")[0]: key.rpartition("/")[2] for key in found}


class Process:
    """A process that wants leases; its links do what a test says."""

    def __init__(self, storage: Storage, address: str) -> None:
        self.links = SomeLinks(address)
        self.committers = SharedCommitters(None, self.links, storage, "", lambda: "", time.monotonic)  # type: ignore[arg-type]
        self.committers.begin(lambda *_: None, lambda *_: None, lambda *_: None)

    def holds(self, table: ObjectId = TABLE) -> bool:
        return self.committers.takes(table)

    def sends(self, table: ObjectId = TABLE) -> bool:
        return self.committers.is_elsewhere(table)


@pytest.fixture
def storage() -> Storage:
    return Storage()


@pytest.fixture
def process(storage: Storage) -> Iterator[Callable[[str], Process]]:
    with ExitStack() as stack:

        def start(address: str) -> Process:
            found = Process(storage, address)
            stack.callback(found.committers.close)
            return found

        yield start
        storage.permitted.set()


def test_silent_holder_of_one_table_delays_no_renewal_of_another(
    storage: Storage, process: Callable[[str], Process]
) -> None:
    one, other, third = process("one"), process("other"), process("third")
    other.committers.lost(OTHER)
    eventually(lambda: other.holds(OTHER))
    one.committers.lost(TABLE)
    eventually(one.holds)
    asked, answered = Event(), Event()

    def wait(address: str) -> bool:
        asked.set()
        return answered.wait(30)

    one.links.make = wait
    one.committers.lost(OTHER)
    assert asked.wait(30)
    third.links.make = lambda address: False
    third.committers.lost(TABLE)
    time.sleep(3 * shared_committers.TERM)
    assert one.holds()
    assert not third.holds()
    answered.set()


def test_slow_request_for_one_lease_delays_no_renewal_of_another(
    storage: Storage, process: Callable[[str], Process]
) -> None:
    one, third = process("one"), process("third")
    one.committers.lost(TABLE)
    eventually(one.holds)
    (directory,) = storage.leases()
    storage.permitted.clear()
    storage.delays = lambda request, key: request == "put" and not key.startswith(directory)
    one.committers.lost(OTHER)
    assert storage.waiting.wait(30)
    third.links.make = lambda address: False
    third.committers.lost(TABLE)
    time.sleep(3 * shared_committers.TERM)
    assert one.holds()
    assert not third.holds()


def test_fault_of_one_lease_is_logged_and_does_not_stop_the_others(
    process: Callable[[str], Process], caplog: pytest.LogCaptureFixture
) -> None:
    one, other = process("one"), process("other")
    other.committers.lost(OTHER)
    eventually(lambda: other.holds(OTHER))

    def fail(address: str) -> bool:
        raise ValueError("no address")

    one.links.make = fail
    one.committers.lost(OTHER)
    eventually(lambda: str(OTHER) in caplog.text)
    one.committers.lost(TABLE)
    eventually(one.holds)


def test_storage_that_refuses_a_lease_is_logged_once(
    storage: Storage, process: Callable[[str], Process], caplog: pytest.LogCaptureFixture
) -> None:
    refused: list[str] = []

    def refuse(request: str, key: str) -> bool:
        refused.append(key)
        raise StoreUnavailable("the key may write no object there")

    storage.delays = refuse
    one = process("one")
    one.committers.lost(TABLE)
    eventually(lambda: len(refused) > 3)
    assert caplog.text.count("the key may write no object there") == 1
    storage.delays = lambda request, key: False
    eventually(one.holds)


def test_link_that_ends_at_once_leaves_no_holder(process: Callable[[str], Process]) -> None:
    one, other = process("one"), process("other")
    other.committers.lost(TABLE)
    eventually(other.holds)
    made: list[str] = []

    def end_at_once(address: str) -> bool:
        made.append(address)
        if len(made) == 1:  # its end is noted before its holder
            one.links.tables.unlinked(address)
            return True
        return False

    one.links.make = end_at_once
    one.committers.lost(TABLE)
    eventually(lambda: len(made) > 3)
    assert not one.sends()
    one.links.make = lambda address: True
    eventually(one.sends)


def test_process_that_leaves_releases_the_lease_that_it_renews_then(
    storage: Storage, process: Callable[[str], Process]
) -> None:
    one = process("one")
    one.committers.lost(TABLE)
    eventually(one.holds)
    storage.permitted.clear()
    storage.delays = lambda request, key: request == "put"
    assert storage.waiting.wait(30)
    assert not one.committers.leave(0.1)
    assert not one.holds()
    storage.permitted.set()
    assert one.committers.leave(30)
    assert storage.leases() == {}
    one.committers.lost(OTHER)
    time.sleep(0.05)
    assert storage.leases() == {}


def test_storage_that_does_not_answer_delays_no_end(storage: Storage, process: Callable[[str], Process]) -> None:
    one = process("one")
    for number in range(3):
        one.committers.lost(ObjectId((f"t{number}",)))
    eventually(lambda: len(storage.leases()) == 3)
    storage.permitted.clear()
    storage.delays = lambda request, key: request == "delete"
    begun = time.monotonic()
    assert not one.committers.leave(0.2)
    one.committers.close()
    assert time.monotonic() - begun < 5
    storage.permitted.set()
    assert one.committers.leave(30)
    assert storage.leases() == {}


def test_lease_that_cannot_be_released_ends_by_itself(
    storage: Storage, process: Callable[[str], Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = process("one"), process("other")
    one.committers.lost(TABLE)
    eventually(one.holds)

    def fail(key: str) -> None:
        raise StoreUnavailable("down")

    with monkeypatch.context() as patch:
        patch.setattr(storage, "delete", fail)
        assert one.committers.leave(30)
    other.links.make = lambda address: False
    other.committers.lost(TABLE)
    eventually(other.holds)
