"""Commit store in a Hive Metastore, by its compare-and-set (ADR 129).

A history is a view in a database of the store's own: a table without a directory or data. Parameters of the view hold
the rows, and the parameter `TOKEN` changes with each change. ``alter_table`` replaces the view if the token is the one
that the change is based on.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby, islice
from threading import Lock
from typing import ClassVar, Generic, TypeVar
from urllib.parse import unquote

import attrs

from lancekeep.adapters.commit_stores.claims import (
    ATTEMPTS,
    answer_claim,
    latest_agreed,
    may_finalize,
    reserve_alone,
)
from lancekeep.adapters.commit_stores.hive_history import Change, History, Segment, decode, encode
from lancekeep.domain.errors import (
    AccessDenied,
    Damaged,
    InvalidInput,
    LancekeepError,
    Refused,
    StoreUnavailable,
    UnsafeStore,
)
from lancekeep.domain.version_row import BatchReservation, Claim, Reservation, Reserved, VersionRow
from lancekeep.hive.address import OPTIONS, Address
from lancekeep.hive.errors import Modified, ObjectExists, ObjectMissing, ReplyLost
from lancekeep.hive.messages import (
    VIEW,
    Database,
    FieldSchema,
    SerDeInfo,
    StorageDescriptor,
    Table,
)
from lancekeep.hive.metastore import Metastore
from lancekeep.ports.commit_store import CommitStoreGuarantees
from lancekeep.ports.object_store import ObjectStore
from lancekeep.store_urls import StoreUrl

T = TypeVar("T")

DEFAULT_DATABASE = "lancekeep_versions"
DURABLE = "durable"
BATCH = 1000
"""Rows that one change enters."""
TOKEN = "lancekeep.token"
PROBE = "lancekeep_probe"
"""The view by which a store finds out whether the Metastore checks conditions."""
_STATE = "lancekeep.state"
_PART = 4000
"""Characters of a parameter: the database of an older Metastore keeps no more."""
_KEPT = 1000
"""Histories, and segments, whose last known state a store keeps in memory."""
_BY_NAME = 8
"""Segments per request."""
_NOTE = "Lancekeep keeps version rows in the parameters of this view"


@attrs.frozen
class _Head:
    """A state of a history as the Metastore holds it; the token is empty if there is no view."""

    history: History
    token: str = ""


@attrs.frozen
class _Decision:
    """What to change."""

    put: Sequence[VersionRow] = ()
    remove: Collection[int] = ()


class HiveCommitStore:
    """Keep version rows in a Hive Metastore, for many machines.

    The first call connects.

    A change is based on the state that this process knows, so it costs one request. If the state is older than the one
    in the Metastore, the Metastore refuses the change, and it is decided again.

    Args:
        metastore: The Metastore.
        database: The database of the views, which the first row creates.
        durable: The deployment declares that the Metastore's own database loses no acknowledged row.
    """

    options: ClassVar[frozenset[str]] = OPTIONS | {DURABLE}

    def __init__(self, metastore: Metastore, database: str, *, durable: bool = False) -> None:
        self._metastore, self._database = metastore, database
        self.url = f"{metastore.url}/{database}"
        self.guarantees = CommitStoreGuarantees(remembers=durable, shared=True)
        self._heads: _Kept[_Head] = _Kept()
        self._segments: _Kept[Mapping[int, VersionRow]] = _Kept()
        self._checks_conditions = False

    @classmethod
    def open(cls, url: StoreUrl, objects: ObjectStore) -> HiveCommitStore:
        database = unquote(url.parts.path.strip("/")) or DEFAULT_DATABASE
        if not re.fullmatch("[a-z0-9_]{1,128}", database):
            url.refuse(f"the database is {database!r:.80}; expected lower-case letters, digits and '_'")
        return cls(Metastore.of(Address.of(url)), database, durable=url.boolean(DURABLE, False))

    def __repr__(self) -> str:
        return f"HiveCommitStore({self.url!r})"

    # -- reading ---------------------------------------------------------------------------------------------------

    def get(self, base_uri: str, version: int) -> VersionRow | None:
        return self._read(base_uri, lambda history: self._row(history, version))

    def latest(self, base_uri: str) -> VersionRow | None:
        return self._head(base_uri).history.latest

    def latest_all(self, base_uris: Sequence[str]) -> Sequence[VersionRow | None]:
        return latest_agreed(self, base_uris)

    def list(self, base_uri: str, *, after: int | None, limit: int | None, descending: bool) -> list[VersionRow]:
        return self._read(base_uri, lambda history: [*islice(self._rows(history, after, descending), limit)])

    # -- writing ---------------------------------------------------------------------------------------------------

    def reserve(self, row: VersionRow, *, first: bool) -> Reservation:
        claim = Claim(row, first)

        def decide(history: History) -> tuple[Reservation, _Decision]:
            told = answer_claim(claim, self._row(history, row.version), history.latest)
            return (Reserved(), _Decision([row])) if told is None else (told, _Decision())

        return self._change(row.base_uri, decide)

    def reserve_all(self, claims: Sequence[Claim]) -> BatchReservation:
        return reserve_alone(self, claims)

    def finalize(self, row: VersionRow) -> bool:
        def decide(history: History) -> tuple[bool, _Decision]:
            held = self._row(history, row.version)
            if held is None or not may_finalize(held):
                return held is not None, _Decision()
            return True, _Decision([attrs.evolve(row, committer=held.committer)])

        return self._change(row.base_uri, decide)

    def record(self, rows: Iterable[VersionRow]) -> None:
        for base_uri, group in groupby(rows, lambda row: row.base_uri):
            while batch := list(islice(group, BATCH)):

                def decide(history: History, batch: Sequence[VersionRow] = batch) -> tuple[None, _Decision]:
                    new: dict[int, VersionRow] = {}
                    for row in batch:
                        if self._row(history, row.version) is None:
                            new.setdefault(row.version, row)
                    return None, _Decision(list(new.values()))

                self._change(base_uri, decide)

    def delete(self, base_uri: str, versions: Iterable[int] | None = None) -> int:
        if versions is None:
            return self._delete_history(base_uri)
        chosen = set(versions)

        def decide(history: History) -> tuple[int, _Decision]:
            found = {version for version in chosen if self._row(history, version) is not None}
            return len(found), _Decision((), found)

        return self._change(base_uri, decide) if chosen else 0

    def close(self) -> None:
        """Close the idle connections; a later call opens new ones."""
        self._metastore.close()

    # -- the protocol ----------------------------------------------------------------------------------------------

    def _read(self, base_uri: str, act: Callable[[History], T]) -> T:
        """Return what an action reads of one state of a history."""
        for _ in range(ATTEMPTS):
            head = self._head(base_uri)
            try:
                return act(head.history)
            except _Replaced as replaced:  # the segments of the state that was read are gone
                if self._head(base_uri) == head:
                    raise replaced.damaged from None
        raise self._contested(base_uri)

    def _change(self, base_uri: str, decide: Callable[[History], tuple[T, _Decision]]) -> T:
        """Apply a decision to a history by compare-and-set.

        A decision that changes nothing is the answer only if it is based on the present state.
        """
        head, lost = self._heads.get(base_uri), False
        for _ in range(ATTEMPTS):
            fresh = head is None
            if head is None:
                head = self._head(base_uri)
            token = secrets.token_hex(8)
            try:
                answer, decision = decide(head.history)
                if decision.put or decision.remove:
                    if self._write(head, decision, token):
                        return answer
                elif fresh:
                    return answer
            except _Replaced as replaced:
                if fresh and self._head(base_uri) == head:
                    raise replaced.damaged from None
            except ReplyLost as error:
                self._heads.drop(base_uri)
                if lost or error.late:
                    raise
                lost = True
                if self._head(base_uri).token == token:
                    return answer
            except LancekeepError:  # such as a dropped database: the next call reads the present state
                self._heads.drop(base_uri)
                raise
            head = None
        raise self._contested(base_uri)

    def _write(self, head: _Head, decision: _Decision, token: str) -> bool:
        """Replace the state of a history. Return False if it is no longer the given one."""
        self._require_conditions()
        base_uri = head.history.base_uri
        name = _name(base_uri)
        # A segment is named after the state that its writer replaces, so a sweep knows which writers have failed.
        change = Change(
            head.history,
            lambda segment: self._load(base_uri, [segment])[0],
            lambda: f"{head.token}_{secrets.token_hex(4)}",
        )
        new = _Head(change.made(decision.put, decision.remove), token)
        if not head.token:
            if change.written:  # segments are named after a state: create one with the newest row first
                newest = max(decision.put, key=lambda row: row.version)
                self._write(head, _Decision([newest]), token)
                return False
            created = self._create(_view(self._database, name, _state(new)))
        else:
            for suffix, rows in change.written.items():
                content = History(base_uri, {row.version: row for row in rows})
                self._create(_view(self._database, f"{name}_{suffix}", _state(_Head(content, token))))
                self._segments.put(f"{name}_{suffix}", content.rows)
            created = self._replace(name, head.token, new)
        if created:
            self._heads.put(base_uri, new)
            if head.history.segments != new.history.segments:
                self._sweep(base_uri)
        else:
            self._heads.drop(base_uri)
        return created

    def _replace(self, name: str, token: str, new: _Head) -> bool:
        try:
            self._metastore.alter_table(
                self._database, name, _view(self._database, name, _state(new)), expected=(TOKEN, token)
            )
        except (Modified, ObjectMissing):
            return False
        return True

    def _create(self, view: Table) -> bool:
        """Create a view, and the database before the first one. Return False if the view exists."""
        try:
            return self._created(view)
        except (InvalidInput, ObjectMissing):
            if self._metastore.database(self._database) is not None:
                raise
        with suppress(ObjectExists):
            self._metastore.create_database(Database(self._database, _NOTE, parameters={}))
        return self._created(view)

    def _created(self, view: Table) -> bool:
        try:
            self._metastore.create_table(view)
        except ObjectExists:
            return False
        return True

    def _delete_history(self, base_uri: str) -> int:
        head = self._head(base_uri)
        self._heads.drop(base_uri)
        if not head.token:
            return 0
        try:
            self._metastore.drop_table(self._database, _name(base_uri))
        except ObjectMissing:
            return 0
        if head.history.segments:
            self._sweep(base_uri)
        return head.history.count

    def _sweep(self, base_uri: str) -> None:
        """Drop segments that no state needs: replaced ones, and remains of failed writers.

        A writer can still make a state of a segment only if the segment is named after the present token. The names are
        listed before the token is read, so a segment of a later state is not among them.
        """
        name = _name(base_uri)
        with suppress(LancekeepError):  # the next sweep finds what this one leaves
            found = [
                each.removeprefix(f"{name}_")
                for each in self._metastore.table_names(self._database, f"{name}_*")
                if each.startswith(f"{name}_")
            ]
            head = self._head(base_uri)
            used = {segment.name for segment in head.history.segments}
            for suffix in found:
                if suffix not in used and not (head.token and suffix.startswith(f"{head.token}_")):
                    with suppress(ObjectMissing):
                        self._metastore.drop_table(self._database, f"{name}_{suffix}")

    def _require_conditions(self) -> None:
        """Raise `UnsafeStore` if the Metastore ignores the condition of a change.

        Hive 3.1 does: its ``alter_table`` does not know the expected parameter.
        """
        if self._checks_conditions:
            return
        probe = _view(self._database, PROBE, {TOKEN: "0"})
        for _ in range(2):
            try:
                self._metastore.alter_table(self._database, PROBE, probe, expected=(TOKEN, "1"))
            except Modified:
                self._checks_conditions = True
                return
            except ReplyLost as error:
                if error.late:
                    raise
            except AccessDenied:
                raise
            except (ObjectMissing, Refused):  # Hive 4 takes a missing database for a remote one
                self._create(probe)
            else:
                raise UnsafeStore(
                    f"{self.url}: this Metastore changes a table although its parameter has another value than the "
                    "expected one, so writers would overwrite each other's versions. Use Hive 2.3.10, 4.0 or newer, "
                    "or another commit store"
                )
        raise StoreUnavailable(f"{self.url}: the view {PROBE} cannot be changed; try again")

    # -- states ----------------------------------------------------------------------------------------------------

    def _head(self, base_uri: str) -> _Head:
        """Return the present state of a history."""
        name = _name(base_uri)
        view = self._metastore.table(self._database, name)
        if view is None:
            self._heads.drop(base_uri)
            return _Head(History(base_uri))
        history, token = self._parsed(view, base_uri), (view.parameters or {}).get(TOKEN, "")
        if not token or (history.segments and not history.rows):
            raise Damaged(f"{self.url}: the view {name} of {base_uri} lacks its token or its newest row")
        head = _Head(history, token)
        self._heads.put(base_uri, head)
        return head

    def _parsed(self, view: Table, base_uri: str) -> History:
        parameters = view.parameters or {}
        parts: list[str] = []
        while (part := parameters.get(f"{_STATE}.{len(parts):04}")) is not None:
            parts.append(part)
        return decode("".join(parts), f"{self.url}: view {view.name}", base_uri)

    def _row(self, history: History, version: int) -> VersionRow | None:
        held = history.rows.get(version)
        if held is not None:
            return held
        segment = history.segment_of(version)
        return None if segment is None else self._load(history.base_uri, [segment])[0].get(version)

    def _load(self, base_uri: str, segments: Sequence[Segment]) -> Sequence[Mapping[int, VersionRow]]:
        """Return the rows of segments, of which the missing ones are read in one request."""
        name = _name(base_uri)
        names = [f"{name}_{segment.name}" for segment in segments]
        known = {each: rows for each in names if (rows := self._segments.get(each)) is not None}
        missing = [each for each in names if each not in known]
        if missing:
            for view in self._metastore.tables(self._database, missing):
                if view.name in missing:
                    known[view.name] = self._parsed(view, base_uri).rows
                    self._segments.put(view.name, known[view.name])
        for each in names:
            if each not in known:
                raise _Replaced(
                    Damaged(
                        f"{self.url}: the view {each} is missing, which holds rows of {base_uri}. Another program "
                        "dropped it: delete the rows of this table, and they are entered again from the manifests"
                    )
                )
        return [known[each] for each in names]

    def _rows(self, history: History, after: int | None, descending: bool) -> Iterator[VersionRow]:
        """Yield the rows after a version, from the head and from the segments."""

        def follows(version: int) -> bool:
            return after is None or (version < after if descending else version > after)

        def sign(version: int) -> int:
            return -version if descending else version

        own = sorted((row for row in history.rows.values() if follows(row.version)), key=lambda row: sign(row.version))
        needed = iter(
            [
                segment
                for segment in (reversed(history.segments) if descending else history.segments)
                if follows(segment.first) or follows(segment.last)
            ]
        )
        while batch := list(islice(needed, _BY_NAME)):
            for rows in self._load(history.base_uri, batch):
                for row in sorted(rows.values(), key=lambda row: sign(row.version)):
                    while own and sign(own[0].version) < sign(row.version):
                        yield own.pop(0)
                    if follows(row.version):
                        yield row
        yield from own

    def _contested(self, base_uri: str) -> StoreUnavailable:
        return StoreUnavailable(f"{self.url}: other writers kept changing the rows of {base_uri}; try again")


class _Replaced(Exception):
    """A segment is gone: the state that names it is no longer the present one, or damaged."""

    def __init__(self, damaged: Damaged) -> None:
        super().__init__(str(damaged))
        self.damaged = damaged


class _Kept(Generic[T]):
    """The last values that were put, for several threads."""

    def __init__(self) -> None:
        self._values: OrderedDict[str, T] = OrderedDict()
        self._lock = Lock()

    def get(self, key: str) -> T | None:
        with self._lock:
            return self._values.get(key)

    def put(self, key: str, value: T) -> None:
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            while len(self._values) > _KEPT:
                self._values.popitem(last=False)

    def drop(self, key: str) -> None:
        with self._lock:
            self._values.pop(key, None)


def _name(base_uri: str) -> str:
    return f"h_{hashlib.sha256(base_uri.encode(errors='surrogatepass')).hexdigest()[:40]}"


def _state(head: _Head) -> dict[str, str]:
    """Return the parameters that hold a state."""
    text = encode(head.history)
    parts = (text[start : start + _PART] for start in range(0, len(text), _PART))
    return {TOKEN: head.token, **{f"{_STATE}.{number:04}": part for number, part in enumerate(parts)}}


def _view(database: str, name: str, parameters: Mapping[str, str]) -> Table:
    """Return a view that Hive can read: one row with a note."""
    select = f"SELECT '{_NOTE}' AS note"
    storage = StorageDescriptor(
        [FieldSchema("note", "string")],
        compressed=False,
        buckets=-1,
        serde=SerDeInfo(parameters={}),
        bucket_columns=[],
        sort_columns=[],
        parameters={},
    )
    return Table(
        name,
        database,
        storage=storage,
        partition_keys=[],
        parameters={"comment": _NOTE, **parameters},
        view_text=select,
        view_expanded_text=select,
        kind=VIEW,
    )
