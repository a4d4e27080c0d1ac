"""The stores that the processes of a simulation share, and their faults, which a seed chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from random import Random
from threading import get_ident
from typing import TypeVar

import attrs
from faults import Crash
from simulation.model import ROOT, Model, Operation
from simulation.scheduler import Scheduler

from lancekeep.adapters.commit_stores.memory import MemoryCommitStore
from lancekeep.adapters.object_stores.memory import MemoryObjectStore
from lancekeep.domain.errors import LancekeepError, StoreUnavailable, UnsafeStore
from lancekeep.domain.naming import final_path
from lancekeep.domain.version_row import Reservation, VersionRow
from lancekeep.ports.commit_store import CommitStoreGuarantees
from lancekeep.ports.object_store import ObjectInfo, ObjectStoreGuarantees, Piece, StorageTime, Tail

T = TypeVar("T")
START = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
_LONGEST = 60_000
"""Calls of ports after which a run counts as one that does not end."""


@attrs.frozen
class Setting:
    """What a seed chooses for a run.

    mode: ``v2`` or ``compatible``. commit_store: ``memory``, or ``conditional-put``. remembers: whether the commit
    store does; where not, it fails over to a state of some calls ago. creates, copies: whether the object store has
    these atomic calls. page: keys in a page of a listing. faults, crashes: how often a call fails, or its process dies.
    actors, operations: how many processes at a time, and operations of each. dated: whether the object store's answers
    carry its time. appends: whether processes also append data files, and recreate tables beside commits.
    """

    mode: str
    commit_store: str
    remembers: bool
    creates: bool
    copies: bool
    page: int
    faults: float
    crashes: float
    actors: int
    operations: int
    dated: bool
    appends: bool

    @staticmethod
    def of(random: Random, *, appends: bool) -> Setting:
        creates = random.random() < 0.8
        remembers = not creates or random.random() < 0.5
        mode = random.choice(["v2", "compatible"])
        return Setting(
            mode=mode,
            commit_store="conditional-put" if creates and random.random() < 0.25 else "memory",
            remembers=remembers,
            creates=creates,
            copies=creates and random.random() < 0.7,
            page=random.choice([1, 3, 1000]),
            faults=random.choice([0.0, 0.005, 0.03, 0.08]),
            crashes=random.choice([0.0, 0.002, 0.01]),
            actors=random.choice([2, 3, 3, 4]) if creates or mode == "v2" else 2,  # docs/simulation.md
            operations=random.choice([8, 15, 25]),
            dated=random.random() < 0.5,
            appends=appends,
        )


class World:
    """The simulated time, storage and random choices."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.setting = Setting.of(self.random, appends=seed % 2 == 0)
        self.scheduler = Scheduler(self.random)
        self.time = START
        self.raw = MemoryObjectStore(clock=lambda: datetime.fromtimestamp(self.time, UTC))
        self.rows = MemoryCommitStore(f"simulation-{id(self)}")
        self.rows._histories = type(self.rows._histories)()  # rows of this run alone
        self.model = Model(
            self.raw,
            lambda base: self.rows.latest(base) is not None,
            v1=self.setting.mode == "compatible",
            creates=self.setting.creates,
        )
        self.trace: list[str] = []
        self.calls_of_other_threads: list[str] = []
        self.quiet = False
        self.busy = 0
        self.jumps = 0
        self._digest = sha256()
        self._late: list[tuple[int, Callable[[], object]]] = []
        self._past: list[tuple[dict[str, dict[int, VersionRow]], dict[str, int]]] = []
        self._outages: dict[tuple[str, str], int] = {}

    @property
    def trace_hash(self) -> str:
        return self._digest.hexdigest()

    def note(self, line: str) -> None:
        line = f"{self.scheduler.step:5} {self.time - START:10.3f} {line}"
        self._digest.update(f"{line}\n".encode())
        self.trace.append(line)

    # -- what may happen between two calls ------------------------------------------------------------------------

    def turn(self, process: Process) -> None:
        """Let another process run, let time pass, and let requests in flight arrive."""
        if self.quiet:
            return
        self.scheduler.pass_turn(process.number)
        if self.scheduler.step > _LONGEST:
            raise AssertionError("the run does not end")
        self.time += self.random.random() * 0.02
        chance = self.random.random()
        if chance < 0.001 and self.jumps < 6:
            self.jumps += 1
            self._jump(self.random.choice([61, 700, 1200]))
        elif chance < 0.003 and not self.setting.remembers:
            self._fail_over()
        elif chance < 0.004 and self.setting.faults:
            outage = self.scheduler.step + self.random.choice([10, 40, 100])
            self._outages[process.name, self.random.choice(["objects", "rows"])] = outage
        due = [act for at, act in self._late if at <= self.scheduler.step]
        self._late = [(at, act) for at, act in self._late if at > self.scheduler.step]
        for act in due:
            self._arrive(act)

    def settle(self) -> None:
        """Let the requests in flight arrive, in any order."""
        late, self._late = self._late, []
        self.random.shuffle(late)
        for _, act in late:
            self._arrive(act)

    def _arrive(self, act: Callable[[], object]) -> None:
        with suppress(LancekeepError):  # the process no longer waits for the reply
            act()

    def _jump(self, seconds: float) -> None:
        """Suspend all processes, for longer than a request stays in flight."""
        self.settle()
        self.time += seconds
        self.note(f"-- {seconds} s pass")

    def pass_idly(self) -> None:
        """Let hours pass between two operations, if no request is in flight."""
        if not self.busy and self.random.random() < 0.05:
            self._jump(self.random.choice([3600, 6 * 3600]))

    def later(self, act: Callable[[], object]) -> None:
        self._late.append((self.scheduler.step + self.random.choice([1, 10, 60]), act))

    def fate(self, process: Process, store: str, late: bool) -> str:
        """The fate of a call."""
        if self.quiet:
            return ""
        if self.random.random() < self.setting.crashes:
            return self.random.choice(["crash before", "crash after"])
        outage = self._outages.get((process.name, store), 0) > self.scheduler.step
        if self.random.random() < (0.7 if outage else self.setting.faults):
            return self.random.choice(["failed", "lost reply", "late"] if late else ["failed", "lost reply"])
        return ""

    # -- the commit store's other node ------------------------------------------------------------------------------

    def remember_rows(self) -> None:
        histories = self.rows._histories
        self._past.append(({base: dict(rows) for base, rows in histories.rows.items()}, dict(histories.latest)))
        del self._past[:-4]

    def _fail_over(self) -> None:
        """Let a replica take over that lacks the last calls."""
        if len(self._past) < 2:
            return
        lost = self.random.randrange(1, len(self._past))
        del self._past[-lost:]
        rows, latest = self._past[-1]
        self._note_ghosts(rows)
        self.rows._histories.rows = {base: dict(history) for base, history in rows.items()}
        self.rows._histories.latest = dict(latest)
        self.note(f"-- the commit store fails over and loses {lost} calls")

    def _note_ghosts(self, rows: dict[str, dict[int, VersionRow]]) -> None:
        """Note rows that return with a forgotten removal, without their manifests (docs/simulation.md)."""
        known = self.rows._histories.rows
        back = (
            row for base, history in rows.items() for row in history.values() if row.version not in known.get(base, {})
        )
        for row in back:
            if not {row.path, final_path(row.path)} & self.raw._objects.keys():
                self.model.trodden.add(row.base_uri.removeprefix(f"{self.raw.root_uri}{ROOT}/"))


class Process:
    """A process with a catalog, which does nothing after a crash."""

    def __init__(self, world: World, number: int, name: str) -> None:
        self.world = world
        self.number = number
        self.name = name
        self.dead = False
        self.operation: Operation | None = None
        self.skew = world.random.choice([-3600.0, 0.0, 0.0, 3600.0])
        self._thread = get_ident()

    def clock(self) -> float:
        """This machine's clock, which may be wrong by an hour."""
        return self.world.time + self.skew

    def sleep(self, seconds: float) -> None:
        self.world.time += seconds
        if not self.dead:
            self.world.turn(self)

    def call(
        self, store: str, method: str, subject: str, act: Callable[[], T], *, changes: str = "", late: bool = False
    ) -> T:
        """Call a port. changes: the key whose object may change. late: it may, when it failed, still be carried out."""
        if get_ident() != self._thread:
            self.world.calls_of_other_threads.append(f"{self.name} {method} {subject}")
            raise Crash
        if self.dead:
            raise Crash
        world, operation = self.world, self.operation
        world.turn(self)
        fate = world.fate(self, store, late)
        if not world.quiet:
            world.note(f"{self.name} {method} {subject}{f' ** {fate}' if fate else ''}")

        def perform() -> T:
            result = act()
            if changes:
                world.model.wrote(changes, operation)
            if store == "rows":
                world.remember_rows()
            return result

        if fate == "crash before":
            self.dead = True
            raise Crash
        if fate == "failed":
            raise StoreUnavailable(f"{method} {subject}: no reply")
        if fate == "late":
            world.later(perform)
            raise StoreUnavailable(f"{method} {subject}: no reply")
        result = perform()
        if store == "objects" and world.setting.dated:
            StorageTime.record(datetime.fromtimestamp(world.time, UTC))
        if fate == "crash after":
            self.dead = True
            raise Crash
        if fate == "lost reply":
            raise StoreUnavailable(f"{method} {subject}: no reply")
        return result


class Objects:
    """The object store as one process has it. ETags are new at every look, and atomic copies are hard links."""

    def __init__(self, process: Process) -> None:
        setting = process.world.setting
        self._process = process
        self._raw = process.world.raw
        self._page = setting.page
        self.root_uri = self._raw.root_uri
        self.guarantees = ObjectStoreGuarantees(
            atomic_create=setting.creates, atomic_copy=setting.copies, durable=True, paged=setting.page < 1000
        )

    def prove(self) -> None:
        """Do nothing: the guarantees hold."""

    def get(self, key: str) -> bytes:
        return self._process.call("objects", "get", key, lambda: self._raw.get(key))

    def tail(self, key: str, most: int) -> Tail | None:
        return self._process.call("objects", "tail", key, lambda: self._raw.tail(key, most))

    def piece(self, key: str, start: int, most: int, stamp: str | None = None) -> Piece:
        return self._process.call("objects", "piece", key, lambda: self._raw.piece(key, start, most, stamp))

    def put(self, key: str, content: bytes) -> None:
        self._process.call("objects", "put", key, lambda: self._raw.put(key, content), changes=key)

    def put_pieces(self, key: str, size: int, pieces: Iterable[bytes]) -> None:
        self.put(key, b"".join(pieces))

    def put_if_absent(self, key: str, content: bytes) -> bool:
        if not self.guarantees.atomic_create:
            raise UnsafeStore("there is no create-only write")
        return self._change("put_if_absent", key, lambda: self._raw.put_if_absent(key, content))

    def copy_if_absent(self, source: str, target: str) -> bool:
        if not self.guarantees.atomic_copy:
            raise UnsafeStore("there is no create-only copy")
        return self._change("copy_if_absent", target, lambda: self._raw.copy_if_absent(source, target))

    def head(self, key: str) -> ObjectInfo | None:
        info = self._process.call("objects", "head", key, lambda: self._raw.head(key))
        return None if info is None else attrs.evolve(info, etag=f"{self._process.world.random.random()}")

    def list(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        """Page by page, each as it is when it is asked for."""

        def page() -> list[ObjectInfo]:
            keys = sorted(key for key in self._raw._objects if key.startswith(prefix) and key > after)
            return [info for key in keys[: self._page] if (info := self._raw.head(key)) is not None]

        while infos := self._process.call("objects", "list", f"{prefix} {after}", page):
            yield from infos
            if len(infos) < self._page:
                return
            after = infos[-1].key

    def directories(self, prefix: str) -> Iterator[str]:
        return iter(self._process.call("objects", "directories", prefix, lambda: list(self._raw.directories(prefix))))

    def delete(self, key: str) -> None:
        def act() -> None:
            raw, final = self._raw, final_path(key)
            if self.guarantees.atomic_copy and raw._objects.get(final) == raw._objects.get(key) is not None:
                raw.put(final, raw.get(final))  # one file has both names, so its time is that of the removal
            raw.delete(key)

        self._process.call("objects", "delete", key, act, changes=key)

    def copy(self, source: str, target: str) -> None:
        self._process.call("objects", "copy", target, lambda: self._raw.copy(source, target), changes=target)

    def prune(self, directory: str) -> None:
        """There are only keys."""

    def unfinished(self, prefix: str) -> Iterator[ObjectInfo]:
        return iter(())

    def passes_link(self, directory: str, below: str) -> bool:
        return False

    def close(self) -> None:
        """There are no connections."""

    def _change(self, method: str, key: str, act: Callable[[], bool]) -> bool:
        return self._process.call("objects", method, key, act, changes=key, late=True)


class Rows:
    """The commit store as one process has it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._rows = process.world.rows
        self.url = "memory://simulation"
        self.guarantees = CommitStoreGuarantees(remembers=process.world.setting.remembers, shared=True)

    def get(self, base_uri: str, version: int) -> VersionRow | None:
        return self._call("get row", f"{base_uri} {version}", lambda: self._rows.get(base_uri, version))

    def latest(self, base_uri: str) -> VersionRow | None:
        return self._call("latest row", base_uri, lambda: self._rows.latest(base_uri))

    def list(self, base_uri: str, *, after: int | None, limit: int | None, descending: bool) -> list[VersionRow]:
        return self._call(
            "list rows", base_uri, lambda: self._rows.list(base_uri, after=after, limit=limit, descending=descending)
        )

    def reserve(self, row: VersionRow, *, first: bool) -> Reservation:
        return self._call("reserve", row.path, lambda: self._rows.reserve(row, first=first), late=True)

    def finalize(self, row: VersionRow) -> bool:
        return self._call("finalize", row.path, lambda: self._rows.finalize(row), late=True)

    def record(self, rows: Iterable[VersionRow]) -> None:
        entered = list(rows)
        self._call("record", f"{[row.path for row in entered]}", lambda: self._rows.record(entered))

    def delete(self, base_uri: str, versions: Iterable[int] | None = None) -> int:
        return self._call("delete rows", base_uri, lambda: self._rows.delete(base_uri, versions))

    def close(self) -> None:
        """Nothing is held."""

    def _call(self, method: str, subject: str, act: Callable[[], T], *, late: bool = False) -> T:
        return self._process.call("rows", method, subject, act, late=late)
