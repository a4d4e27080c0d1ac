"""A target of a backup belongs to one process, which may be killed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest

from lancekeep.adapters.object_stores.memory import MemoryObjectStore
from lancekeep.application.entries.outside import OutsideDirectory
from lancekeep.application.retry import Retry
from lancekeep.application.upkeep.backup_claim import TERM, Claim
from lancekeep.application.upkeep.backup_place import BackupPlace
from lancekeep.application.upkeep.lease import Lease
from lancekeep.domain.backup import CLAIM
from lancekeep.domain.errors import ConcurrentModification, Refused, StoreUnavailable


class Time:
    """A clock that the pauses of a retry move on, and an act in each pause."""

    def __init__(self, act: Callable[[], object] = lambda: None) -> None:
        self.now = 0.0
        self._act = act

    def retry(self) -> Retry:
        return Retry(clock=lambda: self.now, sleep=self.pause)

    def pause(self, seconds: float) -> None:
        self.now += seconds
        self._act()


class Forgetful(MemoryObjectStore):
    """Lose the replies to the second create, and to the third one, which the client repeats."""

    def __init__(self) -> None:
        super().__init__()
        self.losses = iter(("", "no reply", "", "retried"))

    def put_if_absent(self, key: str, content: bytes) -> bool:
        created, loss = super().put_if_absent(key, content), next(self.losses, "")
        if loss == "no reply":
            raise StoreUnavailable(loss)
        return created and not loss


def claim(objects: MemoryObjectStore, time: Time) -> Claim:
    return Claim(BackupPlace(OutsideDirectory(objects, "backup", "memory:///backup"), time.retry()))


def test_claim_of_a_killed_process_is_free_after_a_term() -> None:
    objects, time, waits = MemoryObjectStore(), Time(), list[str]()
    assert Lease(objects, "backup/", "killed", TERM, CLAIM).acquire(0)
    with claim(objects, time).held(waits.append):
        assert waits == ["killed"]
        assert TERM <= time.now < TERM + 1
    assert not list(objects.list(""))


def test_claim_that_its_process_renews_is_refused() -> None:
    objects = MemoryObjectStore()
    lease = Lease(objects, "backup/", "host 7", TERM, CLAIM)
    assert lease.acquire(0)
    with pytest.raises(Refused, match="another process, host 7, writes a backup"), ExitStack() as stack:
        stack.enter_context(claim(objects, Time(lease.renew)).held(lambda _: None))
    assert lease.renew()


def test_process_that_was_stopped_for_a_term_writes_nothing_more() -> None:
    objects, time = MemoryObjectStore(), Time()
    own = claim(objects, time)
    with own.held(lambda _: None):
        own.require()
        other = Lease(objects, "backup/", "other", TERM, CLAIM)
        assert not other.acquire(0)
        assert other.acquire(TERM)
        time.now += TERM
        with pytest.raises(ConcurrentModification, match="another backup writes to memory:///backup"):
            own.require()
    assert other.renew()


def test_lost_replies_lose_no_lease() -> None:
    lease = Lease(Forgetful(), "", "one", TERM)
    assert lease.acquire(0)
    with pytest.raises(StoreUnavailable):
        lease.renew()
    assert lease.renew()
    assert lease.renew()
    assert lease.holder() == "one"
