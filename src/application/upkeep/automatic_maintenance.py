"""Maintain the tables to which this process commits, beside its writers.

`lancekeep.domain.automatic_maintenance` decides what is due for a table. A thread reads the facts, and performs what is
due by the operations that `Upkeep` has. It works for a share of the time, one action after the other. No error of it
reaches a writer. If it is stopped at any point, the next run completes it.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from hashlib import blake2b
from itertools import islice
from threading import Event, Thread, current_thread, main_thread
from weakref import WeakSet

import attrs

from lancekeep.application.entries.base_paths import restricted, within_one_table
from lancekeep.application.entries.clones import Clones
from lancekeep.application.entries.ledger import Ledger
from lancekeep.application.entries.places import Places
from lancekeep.application.rows.committed_tables import CommittedTables
from lancekeep.application.rows.compactions import Compactions
from lancekeep.application.upkeep.cleanup import Cleanup
from lancekeep.application.upkeep.lease import Lease
from lancekeep.application.upkeep.table_facts import facts_of
from lancekeep.domain.automatic_maintenance import (
    SMALL_FRAGMENTS,
    AutomaticPolicy,
    Due,
    TableFacts,
    due,
    listed_after,
    pause_after,
    policy_of,
    rest_after,
)
from lancekeep.domain.errors import LancekeepError, TableNotFound
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.managed import by_storage
from lancekeep.domain.mem_wal import permits_lsm
from lancekeep.domain.naming import ManifestName
from lancekeep.domain.protection import protector
from lancekeep.domain.table import Table, find_table
from lancekeep.format.table_version import TableVersion
from lancekeep.ports.table_engine import TableEngine

COMPACT, INDEX, CLEAN_UP, EXAMINE = "compact", "index", "clean up", "examine"
TERM = 60.0
"""After how many seconds without renewal another process may maintain a table."""
GRACE = timedelta(days=7)
"""The age of orphans that are removed, as of `Upkeep.cleanup`."""

_LOG = logging.getLogger(__name__)
_LEAST_REST = 0.5
_LOOK_EVERY = 5.0
"""Seconds between two examinations of a table."""
_LONGEST_ACTION = 3.0
"""Seconds after which a compaction begins no other fragment."""
_PATIENCE = 10.0
"""Seconds for which `AutomaticMaintenance.close` waits for an action."""
_LONGEST_PATIENCE = 86_400.0
_MOST_IDLE = 3
"""After so many clean-ups without effect in a row, a tag or a branch keeps the versions before a merge."""
_TICK = 0.1
"""Seconds after which an ending process is noticed."""
_SLICE = 0.02
"""Seconds of work of a clean-up, or of examinations, after which writers get the processor."""
_MOST_STATES = 4096
"""So many tables are remembered that wait for their next commits. A forgotten table is examined at its next commit."""

_OPEN: WeakSet[AutomaticMaintenance] = WeakSet()


def _after_fork() -> None:
    for each in _OPEN:
        each.after_fork()


os.register_at_fork(after_in_child=_after_fork)


class _Stopped(Exception):
    """The catalog is being closed; the action ends where it is."""


@attrs.define(eq=False)
class _State:
    """What is known of a table.

    Attributes:
        commits: The commits since the last examination.
        unlisted: The commits since its versions were listed.
        list_after: The commits after which its versions are listed again.
        newest: The time of the newest version by the storage, and when it was seen first.
        expired: The versions that could be removed when they were listed.
        is_merged: Whether fragments were merged since the last clean-up.
        ages_due: When versions are due without another commit.
        not_before: When the table is examined again at the earliest.
        idle: The actions in a row that failed or had no effect.
        lease: The lease on the table.
    """

    commits: int = SMALL_FRAGMENTS
    unlisted: int = 0
    list_after: int = 0
    expired: int = 0
    is_merged: bool = False
    newest: tuple[datetime, float] | None = None
    ages_due: float | None = None
    not_before: float = 0.0
    idle: int = 0
    lease: Lease | None = None

    def wakes(self) -> float | None:
        """Return when the table is to be examined; None if not before its next commit."""
        if self.commits >= SMALL_FRAGMENTS:
            return self.not_before
        return None if self.ages_due is None else max(self.not_before, self.ages_due)

    def count(self, commits: int) -> None:
        """Count commits."""
        self.commits += commits
        self.unlisted += commits

    def begin(self, now: float) -> None:
        """Begin an examination."""
        self.commits = 0
        self.not_before = max(self.not_before, now + _LOOK_EVERY)

    def lists(self, now: float) -> bool:
        """Return whether to list the versions of the table."""
        return self.unlisted >= self.list_after or (self.ages_due is not None and self.ages_due <= now)

    def since(self, newest: datetime, now: float) -> float:
        """Return the seconds since the newest version was listed first."""
        if self.newest is None or self.newest[0] != newest:
            self.newest = newest, now
        return now - self.newest[1]

    def listed(self, versions: int, expired: int, ages_due: float | None) -> None:
        """Note how many versions were listed and have expired, and when more of them are due."""
        self.unlisted, self.list_after = 0, listed_after(versions)
        self.expired, self.ages_due = expired, ages_due

    def succeed(self, kind: str) -> None:
        """Examine the table again after an action that had an effect: more may be due without another commit."""
        self.idle = 0
        self.commits = SMALL_FRAGMENTS
        if kind == COMPACT and not self.is_merged:
            self.is_merged, self.list_after = True, 0
        if kind == CLEAN_UP:  # versions have become older since it listed them
            self.is_merged, self.list_after, self.expired = False, 0, 0

    def tried(self) -> None:
        """Note that a clean-up has not failed."""
        if self.idle >= _MOST_IDLE:
            self.is_merged = False

    def pause(self, now: float) -> None:
        """Examine the table again after a pause, which grows."""
        self.idle += 1
        self.not_before = now + pause_after(self.idle)
        self.repeat()

    def repeat(self) -> None:
        """Examine the table again without another commit."""
        self.commits, self.list_after = SMALL_FRAGMENTS, 0

    @property
    def leads(self) -> bool:
        """Whether this process has the lease on the table."""
        return self.lease is not None and self.lease.token is not None

    def led_by(self, lease: Callable[[], Lease]) -> Lease:
        """Return the lease on the table."""
        self.lease = self.lease or lease()
        return self.lease


class AutomaticMaintenance:
    """Maintains tables in a thread.

    Args:
        ledger: The entries, and the commits.
        places: The directories of the tables.
        clones: Finds the datasets to which no entry refers.
        engine: Refreshes indexes.
        compactions: Compacts tables.
        committed: The tables to which this process commits.
        is_elsewhere: Returns whether another process commits to a table for this one, and maintains it.
        clock: Returns monotonic seconds.
        processor: Returns the seconds for which this thread has used the processor.
    """

    def __init__(
        self,
        ledger: Ledger,
        places: Places,
        clones: Clones,
        engine: TableEngine,
        compactions: Compactions,
        committed: CommittedTables,
        is_elsewhere: Callable[[ObjectId], bool],
        *,
        clock: Callable[[], float] = time.monotonic,
        processor: Callable[[], float] = time.thread_time,
    ) -> None:
        self._ledger = ledger
        self._root = ledger.root_uri  # a process may have several catalogs
        self._places = places
        self._clones = clones
        self._engine = engine
        self._compactions = compactions
        self._committed = committed
        self._is_elsewhere = is_elsewhere
        self._clock = clock
        self._processor = processor
        self.after_fork()
        _OPEN.add(self)

    def after_fork(self) -> None:
        """Forget the thread of the parent."""
        self._committed.after_fork()
        self._stopping = Event()
        self._states: dict[ObjectId, _State] = {}
        self._thread: Thread | None = None
        self.actions = Counter[tuple[str, bool]]()
        """The actions of this process, by kind and whether they failed."""
        self._last: dict[str, float] = {}

    def expired(self) -> int:
        """Return how many versions could be removed when their tables were last examined."""
        return sum(state.expired for state in list(self._states.values()))

    def since(self) -> dict[str, float]:
        """Return for how many seconds no action of a kind has had an effect, by kind."""
        now = self._clock()
        return {kind: now - at for kind, at in dict(self._last).items()}

    # -- the thread ---------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Maintain tables until `close`, in a thread."""
        if self._stopping.is_set():
            return
        # No daemon: the interpreter would end while the table engine uses it.
        thread = Thread(target=self._serve, name="lancekeep-maintenance")
        with suppress(RuntimeError):  # the interpreter shuts down
            thread.start()
            self._thread = thread

    def close(self, patience: float = _PATIENCE) -> bool:
        """Stop after the fragment, the index or the file in progress. Idempotent.

        Returns:
            Whether the thread has ended within ``patience`` seconds.
        """
        self._stopping.set()
        self._committed.changed.set()
        thread = self._thread
        if thread is None or thread is current_thread():
            return True
        thread.join(min(patience, _LONGEST_PATIENCE))
        return not thread.is_alive()

    def _serve(self) -> None:
        with restricted(within_one_table):  # it copies rows without a caller who may read the source of a clone
            rest = _LEAST_REST
            while self._rested(rest):
                try:
                    rest = max(_LEAST_REST, rest_after(self.run_once()))
                except _Stopped:
                    return
                except BaseException as error:  # a panic of native code is no Exception
                    self._failed(EXAMINE, "the catalog", error)
                    rest = _LOOK_EVERY

    def _rested(self, seconds: float) -> bool:
        """Rest, then wait until a table is to be examined; return False if the process or the catalog ends."""
        until = self._clock() + seconds
        wakes = min((at for state in self._states.values() if (at := state.wakes()) is not None), default=None)
        while main_thread().is_alive() and not self._stopping.is_set():
            now = self._clock()
            if now >= until and (self._committed.changed.is_set() or (wakes is not None and now >= wakes)):
                return True
            self._stopping.wait(_TICK)
        return False

    # -- one run ------------------------------------------------------------------------------------------------

    def run_once(self, *, cleans: bool = True) -> float:
        """Maintain the tables that are to be examined.

        Args:
            cleans: Whether to remove versions; a clean-up in progress calls this without.

        Returns:
            The seconds of work after the last rest, as of one core.
        """
        worked = 0.0
        cleaned: dict[AutomaticPolicy, list[tuple[Table, _State]]] = {}
        for table, state in self._waiting():
            if worked >= _SLICE:
                self._rest(rest_after(worked))
                worked = 0.0
            self._require_running()
            used = self._processor()
            state.begin(self._clock())
            if self._is_elsewhere(table):  # its versions would compete with the appends of the other process
                self._release(state)
                state.repeat()
                continue
            engine_seconds = 0.0
            try:
                found = self._examined(table, state)
                if found is None:
                    continue
                entry, policy, wanted = found
                if wanted.compact is not None or wanted.refresh:
                    engine_seconds = self._improve(entry, state, wanted)
                if wanted.clean_up and not cleans:
                    state.repeat()
                elif wanted.clean_up:
                    cleaned.setdefault(policy, []).append((entry, state))
            except TableNotFound:
                self._states.pop(table, None)
            except _Stopped:
                raise
            except BaseException as error:  # one table does not keep the others from their maintenance
                self._failed(EXAMINE, str(table), error)
                state.pause(self._clock())
            finally:
                worked += max(engine_seconds, self._processor() - used)
        for policy, some in cleaned.items():
            used = self._processor()
            self._clean_up(policy, some)
            worked += self._processor() - used
        return worked

    def _waiting(self) -> list[tuple[ObjectId, _State]]:
        """Count the new commits, and return the tables that are to be examined, in the order of their waiting."""
        for table, count in self._committed.take().items():
            state = self._states.pop(table, None) or _State()
            state.count(count)
            self._states[table] = state  # last, for `_forget`
        now = self._clock()
        found = [(at, table) for table, state in self._states.items() if (at := state.wakes()) is not None]
        found.sort(key=lambda each: each[0])
        waiting = [(table, self._states[table]) for at, table in found if at <= now]
        self._forget(len(self._states) - len(found) - _MOST_STATES)
        return waiting

    def _forget(self, many: int) -> None:
        """Forget the tables that wait for their next commits, those with the oldest commits first."""
        if many > 0:
            idle = (table for table, state in self._states.items() if state.wakes() is None)
            for table in list(islice(idle, many)):
                del self._states[table]

    def _examined(self, object_id: ObjectId, state: _State) -> tuple[Table, AutomaticPolicy, Due] | None:
        """Return what is due for a table; None if it is not maintained."""
        view = self._ledger.view()
        table = find_table(view, object_id)
        is_left_to_storage = self._ledger.managed and by_storage(table.properties)
        spared = protector(view, object_id) is not None or is_left_to_storage or permits_lsm(table.properties)
        policy = policy_of(view.properties, table.properties, is_spared=spared)
        if policy is None:
            state.listed(0, 0, None)
            return None
        root = self._places.dataset_root(table)
        commits = self._ledger.commits
        row = commits.latest(root)
        if row is None:
            return None
        version = TableVersion.parse(commits.retry.call(partial(commits.objects.get, row.path)), row.path)
        ages: Sequence[float] = ()
        now = self._clock()
        if state.lists(now):
            ages = self._ages(root, state)
        facts = TableFacts(ages=ages)
        if not version.manifest.base_paths:  # a clone, whose files are at its source
            facts = attrs.evolve(facts_of(version, ages, str(object_id)), is_merged=state.is_merged)
        wanted = due(facts, policy)
        if ages:
            state.listed(len(ages), wanted.expired, None if wanted.again is None else now + wanted.again)
        return table, policy, wanted

    def _ages(self, root: DatasetRoot, state: _State) -> Sequence[float]:
        """Return the ages of the versions of a table.

        The storage states the times of the versions. The time since the newest version counts by the clock of this
        process, from the first listing that shows this version.
        """
        commits = self._ledger.commits
        found: dict[int, datetime] = {}
        for info in commits.retry.call(lambda: list(commits.objects.list(root.versions_key))):
            name = ManifestName.parse(info.key.removeprefix(root.versions_key))
            if name is not None and not name.is_staged and info.modified is not None:
                found[name.version] = info.modified
        if not found:
            return []
        newest = max(found.values())
        passed = state.since(newest, self._clock())
        return [(newest - found[number]).total_seconds() + passed for number in sorted(found)]

    # -- actions ------------------------------------------------------------------------------------------------

    def _improve(self, table: Table, state: _State, wanted: Due) -> float:
        """Compact a table, then refresh its indexes.

        Returns:
            The seconds that the table engine took.
        """
        leads_already = state.leads
        if not self._lead(table, state):
            return 0.0
        began = self._clock()
        try:
            if wanted.compact is not None:
                self._act(COMPACT, [(table, state)], partial(self._compact, table, wanted, began))
            if wanted.refresh:
                self._require_running()
                self._act(INDEX, [(table, state)], partial(self._refresh, table, wanted.refresh))
        finally:
            if not leads_already:  # a clean-up in progress
                self._release(state)
        return self._clock() - began

    def _compact(self, table: Table, wanted: Due, began: float) -> str:
        def proceed() -> bool:
            return not self._stopping.is_set() and self._clock() - began < _LONGEST_ACTION

        assert wanted.compact is not None
        done = self._compactions.compact(table.id, wanted.compact, excluded=wanted.excluded, threads=1, proceed=proceed)
        return "" if done is None else f"version {done.version}, of fragments below {wanted.compact} rows"

    def _refresh(self, table: Table, names: Sequence[str]) -> str:
        done = self._engine.change(
            table.id, lambda dataset: self._engine.structure.merge_indexes(dataset, list(names)), None
        )
        return f"version {done.version}, new rows in {', '.join(names)}"

    def _clean_up(self, policy: AutomaticPolicy, some: Sequence[tuple[Table, _State]]) -> None:
        """Remove the old versions of tables, in one run: it reads the manifests of the catalog."""
        led = list[tuple[Table, _State]]()
        try:
            led += (each for each in some if self._lead(*each))
            presents = [state.lease.present() for _, state in led if state.lease is not None]
            present = max(filter(None, presents), default=None)
            leases = [each.lease for _, each in led if each.lease is not None]
            kept = {str(table.id) for table, _ in led}
            if led:
                every = [table.id for table, _ in led]
                self._act(CLEAN_UP, led, partial(self._remove, policy, every, present, leases, kept), kept)
        except _Stopped:
            raise
        except BaseException as error:  # of a lease
            self._failed(CLEAN_UP, _names(some), error)
            for _, state in some:
                state.pause(self._clock())
        finally:
            for _, state in led:
                self._release(state)

    def _remove(
        self,
        policy: AutomaticPolicy,
        tables: Collection[ObjectId],
        present: datetime | None,
        leases: Sequence[Lease],
        kept: set[str],
    ) -> str:
        """Remove versions; drop the tables that have lost some from ``kept``."""
        age = timedelta(seconds=policy.older_than)
        ledger, places, pace = self._ledger, self._places, self._paced(leases)
        report = Cleanup(ledger, places, self._clones, age, policy.keep, GRACE, tables, pace, present=present).run(
            dry_run=False
        )
        for each in report.skipped:
            _LOG.warning("Automatic maintenance of %s: %s: clean up: skipped: %s", self._root, each.table, each.reason)
        kept.difference_update(each.table for each in report.tables if each.versions)
        return f"{report.versions} versions, {report.files} files" if report.versions else ""

    def _paced(self, leases: Sequence[Lease]) -> Callable[[int, int, str], None]:
        """Return what a clean-up calls before each step.

        It rests for what the clean-up has worked, ends with the catalog, and compacts tables that commits have changed:
        a clean-up of many versions takes minutes.
        """
        used, renewed = self._processor(), self._clock()
        looked = renewed

        def pace(done: int, total: int, step: str) -> None:
            nonlocal used, renewed, looked
            self._require_running()
            worked = self._processor() - used
            if worked < _SLICE:
                return
            self._rest(rest_after(worked))
            if self._clock() - looked > _LOOK_EVERY:
                self._rest(rest_after(self.run_once(cleans=False)))
                looked = self._clock()
            used = self._processor()
            if self._clock() - renewed > TERM / 3:
                renewed = self._clock()
                for lease in leases:
                    lease.renew()  # without it, another process may do the same work

        return pace

    def _act(
        self, kind: str, some: Sequence[tuple[Table, _State]], act: Callable[[], str], kept: Collection[str] = ()
    ) -> None:
        """Perform an action. After a failure, and after an action without effect, a table is left alone.

        Args:
            kind: The kind of the action.
            some: The tables.
            act: Performs it, and returns what it did; an empty text if it had no effect.
            kept: The names of the tables on which it had no effect. Is read after the action.
        """
        names, detail = _names(some), ""
        try:
            detail = act()
        except _Stopped:
            raise
        except BaseException as error:  # also a panic of the table engine: no writer is to notice it
            self._failed(kind, names, error)
        else:
            if detail:
                self.actions[kind, False] += 1
                self._last[kind] = self._clock()
                _LOG.info("Automatic maintenance of %s: %s: %s: %s", self._root, names, kind, detail)
            if kind == CLEAN_UP:
                for _, state in some:
                    state.tried()
        for table, state in some:
            if detail and str(table.id) not in kept:
                state.succeed(kind)
            else:
                state.pause(self._clock())

    def _failed(self, kind: str, name: str, error: BaseException) -> None:
        if self._stopping.is_set():  # the catalog is closed under the action
            return
        self.actions[kind, True] += 1
        again = "Automatic maintenance of %s: %s: %s failed, and runs again later: %s"
        _LOG.warning(again, self._root, name, kind, error)

    def _require_running(self) -> None:
        if self._stopping.is_set() or not main_thread().is_alive():
            raise _Stopped

    def _rest(self, seconds: float) -> None:
        while seconds > 0:
            self._require_running()
            self._stopping.wait(min(seconds, _TICK))
            seconds -= _TICK
        self._require_running()

    # -- leases -------------------------------------------------------------------------------------------------

    def _lead(self, table: Table, state: _State) -> bool:
        """Take the lease on a table; return False if another process maintains it.

        Storage without create-only writes has no lease. Then processes may do the same work.
        """
        objects = self._places.objects
        if not objects.guarantees.atomic_create:
            return True
        name = f"table-{blake2b(table.location.encode(), digest_size=16).hexdigest()}"
        holder = f"{socket.gethostname()} {os.getpid()}"
        lease = state.led_by(lambda: Lease(objects, self._places.prefix, holder, TERM, name))
        if state.leads or lease.acquire(self._clock()):
            return True
        state.repeat()  # the other process may have crashed
        return False

    def _release(self, state: _State) -> None:
        if state.lease is not None:
            with suppress(LancekeepError):  # it ends after a term
                state.lease.release()
            state.lease = None


def _names(some: Sequence[tuple[Table, _State]]) -> str:
    return str(some[0][0].id) + (f" and {len(some) - 1} other tables" if len(some) > 1 else "")
