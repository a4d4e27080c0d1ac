"""Let one process at a time write to the target of a backup."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Lock, Thread

from lancekeep.application.upkeep.backup_place import BackupPlace
from lancekeep.application.upkeep.lease import Lease
from lancekeep.domain.backup import CLAIM
from lancekeep.domain.errors import ConcurrentModification, LancekeepError, ObjectNotFound, Refused, UnsafeStore

TERM = 30.0
"""After how many seconds without renewal a claim is free: its process was killed."""
_RENEWAL = 3.0
_PAUSE = 0.5


class Claim:
    """The claim of this process on a target: a lease, which a thread renews.

    Storage without create-only writes has no claims.

    Args:
        place: The target.
    """

    def __init__(self, place: BackupPlace) -> None:
        self._place = place
        self._clock, self._sleep = place.retry.clock, place.retry.sleep
        objects = place.directory.objects
        holder = f"{socket.gethostname()} {os.getpid()}"
        is_safe = objects.guarantees.atomic_create
        self._lease = Lease(objects, place.key(""), holder, TERM, CLAIM) if is_safe else None
        self._renewing = Lock()
        self._renewed: float | None = None

    @contextmanager
    def held(self, waiting: Callable[[str], None]) -> Iterator[None]:
        """Hold the claim while the block runs.

        Args:
            waiting: Called with the name of the process that has the claim, and may have been killed.

        Raises:
            Refused: Another process has the claim and renews it.
        """
        if self._lease is None or not self._acquire(self._lease, waiting):
            yield
            return
        done = Event()
        renewal = Thread(target=self._renew_until, args=(done,), name="backup claim", daemon=True)
        renewal.start()
        try:
            yield
        finally:
            done.set()
            renewal.join()
            self._renewed = None
            with suppress(LancekeepError):  # it ends after a term
                self._lease.release()

    def require(self) -> None:
        """Verify that this process still has the claim, if it holds it.

        Raises:
            ConcurrentModification: This process was stopped for a term, and another process has taken the claim.
        """
        with self._renewing:
            if self._renewed is not None and self._clock() - self._renewed > _RENEWAL:
                self._place.retry.call(self._renew)
            if self._lease is None or self._renewed is None or self._lease.token is not None:
                return
        raise ConcurrentModification(
            f"another backup writes to {self._place.uri} since this process was stopped for {TERM:.0f} s. Wait until "
            "it has ended, then run the command again"
        )

    def _acquire(self, lease: Lease, waiting: Callable[[str], None]) -> bool:
        """Take the claim; return False if the storage turns out to have no create-only writes.

        A server may ignore the condition, and a file system may have no hard links.
        """
        try:
            self._wait_for(lease, waiting)
        except UnsafeStore:
            return False
        self._renewed = self._clock()
        return True

    def _wait_for(self, lease: Lease, waiting: Callable[[str], None]) -> None:
        seen: int | None = None
        while not self._place.retry.call(lambda: lease.acquire(self._clock())):
            if seen is None:
                waiting(self._holder(lease))
            elif lease.seen != seen:
                raise Refused(
                    f"another process, {self._holder(lease)}, writes a backup to {self._place.uri}. Nothing was "
                    "changed. Wait until it has ended, or choose another place"
                )
            seen = lease.seen
            self._sleep(_PAUSE)

    def _holder(self, lease: Lease) -> str:
        with suppress(ObjectNotFound):  # renewed at this moment
            return self._place.retry.call(lease.holder) or "which has ended"
        return self._holder(lease)

    def _renew(self) -> None:
        if self._lease is not None and self._lease.renew():
            self._renewed = self._clock()

    def _renew_until(self, done: Event) -> None:
        """Renew the claim while a file takes long."""
        while not done.wait(_RENEWAL):
            with self._renewing, suppress(LancekeepError):  # the next renewal may succeed
                self._renew()
