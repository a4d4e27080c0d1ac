"""The committer of a table that servers on several hosts write to.

Processes of one host agree on a committer by themselves. Processes of several hosts compete for the versions of a
table until one has lost a version. Then they agree by a lease on the table in the storage of the catalog: the
holder commits, and the others send it their appends and upserts. No safety depends on the lease: processes that do not
see it, or see it late, compete.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from hashlib import sha256
from threading import Condition, Event
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
MOST_TABLES: Final = 128
"""The tables whose lease a process holds or looks for.

A renewal is four requests. With a latency of 60 ms, `AT_ONCE` threads renew so many leases within a term.
"""
AT_ONCE: Final = 16
"""The leases that are looked at together."""
RELEASED_WITHIN: Final = 2.0
"""Seconds for which `SharedCommitters.close` waits for leases to be released."""
_DIRECTORY: Final = "committers"
_LOG = logging.getLogger(__name__)


@attrs.define(eq=False)
class _Table:
    """A table for whose versions processes of several hosts compete.

    Attributes:
        used: When a caller of this process last wrote to the table, in monotonic seconds.
        lease: Its lease; None before the first look at it.
        holder: The address of the process to which its writes go; None without one.
        is_held: Whether this process has the lease.
        renewed: When it took or renewed the lease.
        is_settling: Whether a thread looks at the lease.
        is_failing: Whether the storage failed at the last look, which the log says once.
    """

    used: float
    lease: Lease | None = None
    holder: str | None = None
    is_held: bool = False
    renewed: float = float("-inf")
    is_settling: bool = False
    is_failing: bool = False


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
        self._lock = Condition()
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

        def left() -> float:
            return max(0.0, ends - self._clock())

        self._has_left.set()
        answered = self._links.leave(left())
        answered &= self._local is None or self._local.leave(left())
        return self._has_released(left()) and answered

    def close(self) -> None:
        self.leave(0)
        self._has_released(RELEASED_WITHIN)
        self._links.close()
        if self._local is not None:
            self._local.close()

    def _has_released(self, seconds: float) -> bool:
        """Wait until the leases are released, or for some seconds."""
        with self._lock:
            return self._lock.wait_for(lambda: not self._is_looking, seconds)

    # -- for the links ------------------------------------------------------------------------------------------

    def takes(self, table: ObjectId) -> bool:
        """Return whether this process has the lease, and callers that write to the table."""
        shared = self._tables.get(table)
        if shared is None or not shared.is_held or self._has_left.is_set():
            return False
        return self._clock() - shared.used <= UNUSED

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
        """Take, renew and give up leases, and link to their holders, while tables are shared.

        The leases are looked at in other threads: no process or request that is slow delays the next renewals.
        """
        with ThreadPoolExecutor(AT_ONCE, "lancekeep-leases") as pool:
            while not self._has_left.is_set():
                if not self._begin_to_settle(pool):
                    return
                self._has_left.wait(LOOK_EVERY)
        with ThreadPoolExecutor(AT_ONCE, "lancekeep-leases") as pool:
            for shared in self._tables.values():
                if shared.is_held and shared.lease is not None:
                    shared.is_held = False
                    _start(pool, partial(_release, shared.lease))
        with self._lock:
            self._tables.clear()
            self._is_looking = False
            self._lock.notify_all()

    def _begin_to_settle(self, pool: Executor) -> bool:
        """Look at the leases at which no thread looks; return False if no table is left."""
        with self._lock:
            now = self._clock()
            for table, shared in list(self._tables.items()):
                if now - shared.used > UNUSED and not (shared.is_held or shared.is_settling):
                    del self._tables[table]
            if not self._tables:
                self._is_looking = False
                self._lock.notify_all()
                return False
            found = [item for item in self._tables.items() if not item[1].is_settling]
        for table, shared in sorted(found, key=lambda item: (not item[1].is_held, item[1].renewed)):
            shared.is_settling = True
            _start(pool, partial(self._settle, table, shared))
        return True

    def _settle(self, table: ObjectId, shared: _Table) -> None:
        try:
            self._settle_lease(table, shared)
            shared.is_failing = False
        except LancekeepError as error:  # the next look may succeed
            if not shared.is_failing:
                _LOG.warning(
                    "The storage failed at the lease on the committer of %s; until it works, this server competes for "
                    "the versions of the table: %s",
                    table,
                    error,
                )
            shared.is_failing = True
        except Exception:  # also then, and the other tables need theirs
            _LOG.exception("the lease on the committer of %s cannot be read", table)
        finally:
            shared.is_settling = False

    def _settle_lease(self, table: ObjectId, shared: _Table) -> None:
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
                if not self._links.link(holder):  # its end since is noted already
                    shared.holder = None
            elif lease.acquire(now):
                shared.is_held, shared.renewed = True, self._clock()

    def _lease(self, table: ObjectId) -> Lease:
        name = sha256(table.key.encode()).hexdigest()[:32]
        return Lease(self._objects, self._prefix, self._links.address, TERM, f"{self._scope}/{name}")

    def _proof(self, challenge: str) -> str:
        return f"{self._prefix}{MAINTENANCE_DIRECTORY}/{self._scope}/proofs/{sha256(challenge.encode()).hexdigest()}"

    @property
    def _scope(self) -> str:
        return f"{_DIRECTORY}/{sha256(self._identity().encode()).hexdigest()[:16]}"


def _release(lease: Lease) -> None:
    with suppress(LancekeepError):  # then it ends by itself
        lease.release()


def _start(pool: Executor, act: Callable[[], None]) -> None:
    """Call a function in a thread of the pool; in this thread if the system or the interpreter starts none."""
    try:
        pool.submit(act)
    except RuntimeError:
        act()
