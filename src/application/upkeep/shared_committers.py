"""The committer of a table that servers on several hosts write to.

Processes of one host agree on a committer by themselves. Processes of several hosts compete for the versions of a
table until one has lost a version. Then they agree by a lease on the table in the storage of the catalog: the
holder commits, and the others send it their appends and upserts. No safety depends on the lease: processes that do not
see it, or see it late, compete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from threading import Event, Lock
from typing import Final

import attrs

from lancekeep.application.concurrency import in_background
from lancekeep.application.upkeep.lease import Lease
from lancekeep.domain.errors import LancekeepError
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.recorded_keys import SharedKey
from lancekeep.domain.table import MAINTENANCE_DIRECTORY
from lancekeep.ports.committers import Committers, Links, Received, Reply, SentUpsert
from lancekeep.ports.data_files import Rows
from lancekeep.ports.object_store import ObjectStore
from lancekeep.ports.rows import MergeCounts

TERM: Final = 3.0
"""Seconds after which the lease of a process that ended is free."""
UNUSED: Final = 10.0
"""Seconds without a write by its own callers after which a process gives up the lease of a table, or forgets it."""
LOOK_EVERY: Final = 0.5
"""Seconds between two looks at the leases."""
MOST_TABLES: Final = 256
"""The tables whose lease a process holds or looks for."""
_DIRECTORY: Final = "committers"


@attrs.define(eq=False)
class _Table:
    """A table for whose versions processes of several hosts compete.

    Attributes:
        used: When a caller of this process last wrote to the table, in monotonic seconds.
        lease: Its lease; None before the first look at it.
        holder: The address of the process to which its writes go; None without one.
        is_held: Whether this process has the lease.
        renewed: When it took or renewed the lease.
    """

    used: float
    lease: Lease | None = None
    holder: str | None = None
    is_held: bool = False
    renewed: float = float("-inf")


class SharedCommitters:
    """A `Committers` for processes on several hosts; see the module.

    Args:
        local: The committers of this host; None if this process is the only one on it.
        links: The connections to processes of other hosts.
        objects: The storage of the catalog, with a create-only write.
        prefix: The prefix of every key of the catalog.
        identity: Returns the identity of the catalog; empty without one. Catalogs that share a storage have different
            ones.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self,
        local: Committers | None,
        links: Links,
        objects: ObjectStore,
        prefix: str,
        identity: Callable[[], str],
        clock: Callable[[], float],
    ) -> None:
        self._local = local
        self._links = links
        self._objects = objects
        self._prefix = prefix
        self._identity = identity
        self._clock = clock
        self._lock = Lock()
        self._tables: dict[ObjectId, _Table] = {}
        self._is_looking = False
        self._has_left = Event()

    def begin(
        self,
        receive: Callable[[Received], None],
        counted: Callable[[Sequence[int], Sequence[MergeCounts]], None],
        answered: Callable[[Sequence[int], Reply], None],
    ) -> None:
        self._receive, self._counted, self._answered = receive, counted, answered
        if self._local is not None:
            self._local.begin(receive, counted, answered)
        self._links.begin(self)

    def send(
        self, table: ObjectId, number: int, rows: Rows, key: SharedKey | None, upsert: SentUpsert | None = None
    ) -> bool:
        shared = self._tables.get(table)
        if shared is not None:
            shared.used = self._clock()
            holder = shared.holder
            if holder is not None and self._links.send(holder, table, number, rows, key, upsert):
                return True
        return self._local is not None and self._local.send(table, number, rows, key, upsert)

    def lost(self, table: ObjectId) -> None:
        if table in self._tables:
            return
        with self._lock:
            if self._has_left.is_set() or len(self._tables) == MOST_TABLES:
                return
            self._tables[table] = _Table(self._clock())
            if self._is_looking:
                return
            self._is_looking = True
        try:
            in_background(self._look)
        except RuntimeError:  # the system starts no thread
            self._is_looking = False

    def is_elsewhere(self, table: ObjectId) -> bool:
        shared = self._tables.get(table)
        return shared is not None and shared.holder is not None

    def give_up(self, number: int) -> None:
        if self._local is not None:
            self._local.give_up(number)
        self._links.give_up(number)

    def leave(self, seconds: float) -> bool:
        ends = self._clock() + seconds
        self._has_left.set()
        with self._lock:
            held = [shared.lease for shared in self._tables.values() if shared.is_held and shared.lease is not None]
            for shared in self._tables.values():
                shared.is_held = False
        for lease in held:
            with suppress(LancekeepError):  # then it ends by itself
                lease.release()
        answered = self._links.leave(max(0.0, ends - self._clock()))
        return (self._local is None or self._local.leave(max(0.0, ends - self._clock()))) and answered

    def close(self) -> None:
        self.leave(0)
        self._links.close()
        if self._local is not None:
            self._local.close()

    # -- for the links ------------------------------------------------------------------------------------------

    def takes(self, table: ObjectId) -> bool:
        """Return whether this process has the lease, and callers that write to the table."""
        shared = self._tables.get(table)
        return shared is not None and shared.is_held and self._clock() - shared.used <= UNUSED

    def receive(self, received: Received) -> None:
        self._receive(received)

    def counted(self, numbers: Sequence[int], counts: Sequence[MergeCounts]) -> None:
        self._counted(numbers, counts)

    def answered(self, numbers: Sequence[int], reply: Reply) -> None:
        self._answered(numbers, reply)

    def unlinked(self, address: str) -> None:
        with self._lock:
            for shared in self._tables.values():
                if shared.holder == address:
                    shared.holder = None

    def prove(self, challenge: str) -> None:
        self._objects.put(self._proof(challenge), challenge.encode())

    def is_proven(self, challenge: str) -> bool:
        key = self._proof(challenge)
        if self._objects.head(key) is None:
            return False
        self._objects.delete(key)
        return True

    # -- the leases ---------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Take, renew and give up leases, and link to their holders, while tables are shared."""
        while True:
            with self._lock:
                now = self._clock()
                ended = self._has_left.is_set()
                for table, shared in list(self._tables.items()):
                    if ended or (now - shared.used > UNUSED and not shared.is_held):
                        del self._tables[table]
                if not self._tables:
                    self._is_looking = False
                    return
                found = list(self._tables.items())
            for table, shared in found:
                with suppress(LancekeepError):  # the next look may succeed
                    self._settle(table, shared)
            self._has_left.wait(LOOK_EVERY)

    def _settle(self, table: ObjectId, shared: _Table) -> None:
        now, lease = self._clock(), shared.lease
        if lease is None:
            lease = shared.lease = self._lease(table)
        if shared.is_held:
            if now - shared.used > UNUSED:
                shared.is_held = False
                lease.release()
            elif now - shared.renewed >= TERM / 3:
                shared.is_held, shared.renewed = lease.renew(), now
        elif shared.holder is None:
            holder = lease.holder()
            if holder is not None and holder != self._links.address and self._links.link(holder):
                shared.holder = holder
            elif lease.acquire(now):
                self._hold(shared, lease)

    def _hold(self, shared: _Table, lease: Lease) -> None:
        with self._lock:
            if not self._has_left.is_set():
                shared.is_held, shared.renewed = True, self._clock()
                return
        lease.release()

    def _lease(self, table: ObjectId) -> Lease:
        name = sha256(table.key.encode()).hexdigest()[:32]
        return Lease(self._objects, self._prefix, self._links.address, TERM, f"{self._scope}/{name}")

    def _proof(self, challenge: str) -> str:
        return f"{self._prefix}{MAINTENANCE_DIRECTORY}/{self._scope}/proofs/{sha256(challenge.encode()).hexdigest()}"

    @property
    def _scope(self) -> str:
        return f"{_DIRECTORY}/{sha256(self._identity().encode()).hexdigest()[:16]}"
