"""The state of the catalog, decoded from the bytes in storage, and the changes that operations may make.

After each write that can change the catalog, the model reads its state again and attributes each difference to the
operation that made it. So an acknowledged operation has made exactly its change, once; a refused one has made none; an
unknown one has made all of its change or none.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import attrs

from lancekeep.adapters.manifest_stores.table_versions import TableVersions, Version
from lancekeep.adapters.object_stores.memory import MemoryObjectStore
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import NAMESPACE, TABLE
from lancekeep.domain.naming import ManifestName
from lancekeep.domain.table import DEREGISTERED_MARKER, MOVING_MARKER, V1_SUFFIX, v1_table

ROOT = "lake"
MANIFEST = f"{ROOT}/__manifest/_versions/"


class Violation(Exception):
    """An invariant is violated."""


@attrs.frozen
class Thing:
    """A namespace or a table of the catalog. The root namespace has the empty id."""

    kind: str
    location: str | None
    properties: tuple[tuple[str, str], ...]


State = Mapping[str, Thing]
Event = dict[str, tuple[Thing | None, Thing | None]]


@attrs.define(eq=False)
class Operation:
    """One call of an actor, its outcome, and its changes of the catalog.

    Attributes:
        outcome: ``ok``, ``refused``, or ``unknown``, also after a crash; None while the call is in progress.
        entries: The entries of the manifest when the call ended.
    """

    actor: str
    kind: str
    arguments: dict[str, Any]
    began: int
    began_at: int
    outcome: str | None = None
    error: BaseException | None = None
    result: Any = None
    ended: int = 0
    entries: frozenset[str] = frozenset()
    events: list[tuple[int, Event]] = attrs.Factory(list)
    # Of a commit: the key of the version, its content, the location of the table, and the token of an unknown outcome.
    key: str = ""
    content: bytes = b""
    location: str = ""
    token: Any = None

    @property
    def name(self) -> str:
        return str(self.arguments.get("name", ""))

    def __str__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        outcome = "in progress" if self.outcome is None else self.outcome
        reason = f" {type(self.error).__name__}: {str(self.error)[:200]}" if self.error else ""
        did = f" [{'; '.join(f'{at}: {_shown(event)}' for at, event in self.events)}]" if self.events else ""
        return f"{self.began:5}-{self.ended or '':5} {self.actor} {self.kind}({arguments}) -> {outcome}{reason}{did}"


class Model:
    """The catalog below ``lake/`` in ``raw``.

    Attributes:
        v1: V1 directories count as tables (compatibility mode).
        creates: The storage has create-only writes.
        has_rows: Returns whether the commit store has rows for a base URI.
        trodden: Directories with a known problem that is not prevented (docs/simulation.md). The model does not judge
            their contents.
        copies: Directories to which a rename has copied a table, and which it may remove again.
        mixed: Directories in which a late commit has left an object of the previous table.
        lost: Versions that were removed or overwritten.
    """

    def __init__(self, raw: MemoryObjectStore, has_rows: Callable[[str], bool], *, v1: bool, creates: bool) -> None:
        self.raw = raw
        self.has_rows = has_rows
        self.v1 = v1
        self.creates = creates
        self.states: list[State] = [{"": Thing(NAMESPACE, None, ())}]
        self.changes: list[tuple[Operation | None, Event]] = [(None, {})]
        self.operations: list[Operation] = []
        self.finals: dict[str, bytes] = {}
        self.born: dict[bytes, int] = {}
        self.trodden: set[str] = set()
        self.copies: set[str] = set()
        self.mixed: set[str] = set()
        self.lost: set[str] = set()
        self._authors: dict[bytes, Operation | None] = {}
        self._decoder = TableVersions(raw, f"{ROOT}/__manifest")
        self._version: Version | None = None
        self._entries: frozenset[str] = frozenset()

    @property
    def now(self) -> State:
        return self.states[-1]

    @property
    def moment(self) -> int:
        """The number of the current state."""
        return len(self.states) - 1

    # -- what happens ---------------------------------------------------------------------------------------------

    def wrote(self, key: str, operation: Operation | None) -> None:
        """Handle the creation, removal or change of the object under ``key``."""
        content = self.raw._objects.get(key)
        directory, _, file_name = key.rpartition("/")
        name = ManifestName.parse(file_name)
        if file_name == MOVING_MARKER:
            self.copies.add(directory.removeprefix(f"{ROOT}/"))
        if name is not None and directory + "/" == MANIFEST:
            if name.is_staged:
                if content is not None:
                    self._authors.setdefault(content, operation)
            else:
                self._wrote_final(key, content, operation)
                self._look(operation if content is None else self._authors.get(content, operation))
        elif name is not None and not name.is_staged and directory.endswith("/_versions"):
            self._wrote_final(key, content, operation)
            self._look_at_directories(key, operation)
        else:
            self._look_at_directories(key, operation)

    def _wrote_final(self, key: str, content: bytes | None, operation: Operation | None) -> None:
        before = self.finals.get(key)
        if before is not None and before != content:
            self.lost.add(key)
        if content is None:
            self.finals.pop(key, None)
            owner = None if key.startswith(MANIFEST) else self.owner_of(_location(key))
            if operation is not None and operation.kind in ("fsck", "judge"):
                self._look_for_removals(_location(key))
            location = _location(key)
            own = operation is not None and any(
                left is not None and left.location == location and left != after
                for _, event in operation.events
                for left, after in event.values()
            )
            if before is not None and owner is not None and not own and location not in self.trodden:
                raise Violation(f"{key} was deleted, a version of the table {owner}, by: {operation}")
        elif before is not None and before != content and not self._is_dropped(key):
            if self.creates or operation is None or not self._was_left(_location(key), operation):
                raise Violation(f"{key} held one version and now holds another, by: {operation}")
            self.trodden.add(_location(key))  # the writer began with the table that was there before
            self.finals[key] = content
        else:
            self.finals[key] = content
            self.born.setdefault(content, self.moment)
            if operation is not None and not key.startswith(MANIFEST) and self._was_left(_location(key), operation):
                self._mix(_location(key))

    def _mix(self, location: str) -> None:
        """Mark a directory with a leftover of a late commit; a rename in progress moves it to the new place."""
        self.mixed.add(location)
        for operation in self.operations:
            if operation.kind == "rename" and operation.outcome is None:
                for _, event in operation.events:
                    if any(before is not None and before.location == location for before, _ in event.values()):
                        self.mixed |= {after.location for _, after in event.values() if after and after.location}

    def _is_dropped(self, key: str) -> bool:
        """Return whether a version has no table because its directory was dropped while writers were active."""
        location = _location(key)
        dropped = not key.startswith(MANIFEST) and self.owner_of(location) is None and self.is_being_removed(location)
        return dropped or location in self.trodden

    def _look_at_directories(self, key: str, operation: Operation | None) -> None:
        below = key.removeprefix(f"{ROOT}/")
        if self.v1 and "/" in below and v1_table(below.partition("/")[0]) is not None:
            self._look(operation)

    def _look(self, operation: Operation | None) -> None:
        entries = self._entries
        after = self.read()
        before = self.now
        # An entry that goes makes a difference also where the V1 directory, shown in its place, looks the same.
        gone = entries - self._entries
        event = {
            name: (before.get(name), after.get(name))
            for name in sorted({*before, *after})
            if before.get(name) != after.get(name) or name in gone
        }
        if not event:
            return
        self.states.append(after)
        self.changes.append((operation, event))
        self._require_sound(after, operation)
        if operation is None:
            raise Violation(f"no operation requested {_shown(event)}")
        operation.events.append((self.moment, event))
        if operation.kind == "register":
            self._look_for_removals(operation.arguments["location"])
        if operation.kind in ("alter", "migrate"):  # an entry is made of a reservation, and its directory is empty
            entered = (name for name, (before, after) in event.items() if before is None and after is not None)
            self.trodden |= {name + V1_SUFFIX for name in entered if self._was_taken_back(name, operation, self.moment)}
        if operation.kind == "rename":
            left = {before.location for before, _ in event.values() if before is not None}
            arrived = {after.location for _, after in event.values() if after is not None and after.location}
            self.trodden |= arrived if left & self.trodden else set()
            self.mixed |= arrived if left & self.mixed else set()
        if operation.kind != "declare":  # what a late writer has left in a directory that was dropped
            changed = {name: after for name, (before, after) in event.items() if before != after}
            shown = [after.location for name, after in changed.items() if after and _is_uncovered(name, after)]
            self.trodden |= {place for place in shown if place and self.is_being_removed(place)}
        places = [after.location for _, after in event.values() if after is not None and after.location]
        self.trodden |= {place for place in places if self._has_rows_of_another(place)}

    def _has_rows_of_another(self, location: str) -> bool:
        """A writer who overlooked a drop, or a fail-over, has left rows in the commit store: docs/simulation.md."""
        prefix = f"{ROOT}/{location}/_versions/"
        return self.has_rows(f"{self.raw.root_uri}{ROOT}/{location}") and not any(
            key.startswith(prefix) for key in self.raw._objects
        )

    def _look_for_removals(self, location: str) -> None:
        """Mark a directory that is registered while another operation removes its files or copies files there.

        The registered table may lose them. A dropped directory may also hold objects of a late writer.
        """
        if location in self.copies or self.is_being_removed(location):
            self.trodden.add(location)

    def may_be_unreadable(self, operation: Operation) -> bool:
        """Return whether another table was dropped from the table's directory: a late writer may reserve a version."""
        things = (state.get(_key(operation.name)) for state in self.states[operation.began_at :])
        places = {operation.location, *(thing.location for thing in things if thing is not None)}
        return any(place and self.is_being_removed(place) for place in places)

    def is_being_removed(self, location: str) -> bool:
        """Return whether an operation moved or dropped the table in this directory, and removes its files."""
        return any(
            before is not None and before.location == location
            for operation in self.operations
            if operation.kind in ("drop_table", "drop_namespace", "rename")
            for _, event in operation.events
            if all(after is None or after.location != location for _, after in event.values())
            for before, _ in event.values()
        )

    def read(self) -> State:
        """Return the catalog by the specification: the manifest first, then V1 directories without an owner."""
        state = {"": Thing(NAMESPACE, None, ())}
        names = {key.rpartition("/")[2]: key for key in self.raw._objects if key.startswith(MANIFEST)}
        finals = [(name, key) for file, key in names.items() if (name := ManifestName.parse(file)) and not name.uuid]
        located: list[str] = []
        self._entries = frozenset()
        if finals:
            latest, key = max(finals, key=lambda final: final[0].version)
            if self._version is None or self._version.number != latest.version:
                try:
                    self._version = self._decoder.read(self.raw.get(key), self._version)
                except Exception as error:
                    raise Violation(f"the manifest's version {latest.version} cannot be read: {error!r}") from error
            view = self._version.view
            state[""] = Thing(NAMESPACE, None, _public(view.properties))
            for entry in view.descendants(ObjectId()):
                if entry.object_id in state:
                    raise Violation(f"two entries have the id {entry.object_id}")
                state[entry.object_id] = Thing(entry.object_type, entry.location, _public(entry.properties))
                located += [posixpath.normpath(entry.location)] if entry.location else []
            self._entries = frozenset(state)
        if self.v1:
            for table in self.v1_tables():
                location = table + V1_SUFFIX
                if table not in state and not any(_overlap(location, other) for other in located):
                    state[table] = Thing(TABLE, location, ())
        return state

    def v1_tables(self) -> list[str]:
        """What a V1 reader sees."""
        found: dict[str, bool] = {}
        for key in self.raw._objects:
            directory, _, name = key.removeprefix(f"{ROOT}/").partition("/")
            table = v1_table(directory)
            if name and table is not None:
                found[table.key] = found.get(table.key, True) and name != DEREGISTERED_MARKER
        return sorted(name for name, shown in found.items() if shown)

    def _require_sound(self, state: State, operation: Operation | None) -> None:
        located: list[tuple[str, str]] = []
        for name, thing in state.items():
            parent = name.rpartition("$")[0]
            if parent and (parent not in state or state[parent].kind != NAMESPACE):
                raise Violation(f"{name} is an orphan, by: {operation}")
            if thing.location is not None:
                for other, location in located:
                    if _overlap(location, thing.location) and location not in self.trodden:
                        raise Violation(f"{name} and {other} share the directory {location}, by: {operation}")
                located.append((name, thing.location))

    def owner_of(self, location: str, state: State | None = None) -> str | None:
        things = (self.now if state is None else state).items()
        return next((name for name, thing in things if thing.location and _overlap(thing.location, location)), None)

    # -- outcomes -------------------------------------------------------------------------------------------------

    def ended(self, operation: Operation) -> None:
        """Check an operation against its outcome, as far as it is decided."""
        operation.ended, operation.entries = self.moment, self._entries
        if operation.kind == "commit":
            if operation.location and self._was_left(operation.location, operation):
                self._mix(operation.location)  # its row may stand where the next table in it will find it
            self.check_commit(operation)
        self.check(operation)
        self._require_gone(operation)
        if operation.outcome == "refused":
            self._require_reason(operation)
        elif operation.outcome == "ok" and operation.kind == "look":
            self._require_seen(operation)

    def check(self, operation: Operation) -> None:
        """The differences that an operation made are those it was to make."""
        effect = EFFECTS.get(operation.kind)
        whole = parts = mistaken = 0
        exposed: set[str] = set()
        for moment, event in operation.events:
            if self._is_part(operation, event):
                parts += 1
            elif whole and _hides(event):  # who failed at the same table, or wrote late, had made it visible again
                exposed -= event.keys()
            elif whole and self._shows_again(operation, event, moment):
                exposed |= event.keys()
            elif self._is_echo(operation, event, whole):
                continue
            elif effect is not None and any(
                effect(operation, seen, self.states[moment - 1]) for seen in self._seen(operation, event, moment)
            ):
                whole += 1
                mistaken += self._hides_a_reservation(operation, event, moment)
                exposed |= _exposed(event)
            elif self._enters_what_is_gone(operation, event, moment):
                continue
            elif not (self._is_resurrection(operation, event) or self._is_undone(operation, event)):
                raise Violation(f"{_shown(event)} is not what was asked for: {operation}")
        if whole - mistaken > 1:
            raise Violation(f"it happened {whole} times: {operation}")
        last = self.states[operation.ended]
        exposed = {name for name in exposed - operation.entries if _is_uncovered(name, last.get(name))}
        if exposed and operation.outcome == "ok" and operation.kind in ("deregister", "drop_table", "rename"):
            raise Violation(f"V1 readers see {exposed} all the same: {operation}")
        happened = whole or (parts and not operation.arguments["properties"])
        if operation.outcome == "ok" and effect is not None and not happened and not self._held_before(operation):
            raise Violation(f"it was acknowledged and never happened: {operation}")
        if operation.outcome == "refused" and whole and not self._cancels(operation):
            raise Violation(f"it was refused and happened all the same: {operation}")

    def _held_before(self, operation: Operation) -> bool:
        """Whether what was to be entered has been there already, so that it changed nothing."""
        key = _key(operation.name)
        kind = NAMESPACE if operation.kind == "create_namespace" else TABLE
        location = operation.arguments.get("location", key + V1_SUFFIX if operation.kind == "declare" else None)
        return operation.kind in ("register", "declare", "create_namespace") and any(
            state.get(key) == _entered(operation, location, kind)
            for state in self.states[operation.began_at : operation.ended + 1]
        )

    def _is_part(self, operation: Operation, event: Event) -> bool:
        """A declaration in a V1 directory is seen before its properties are."""
        if operation.kind != "declare" or list(event) != [_key(operation.name)]:
            return False
        before, after = event[_key(operation.name)]
        location = _key(operation.name) + V1_SUFFIX
        return self.v1 and before is None and after == Thing(TABLE, location, ())

    def _seen(self, operation: Operation, event: Event, moment: int) -> list[Event]:
        """A difference as the operation that made it may have seen it: without some of what others did to V1 tables."""
        seen = [event]
        for change in (
            lambda event: self._without_marker(operation, event, moment),
            lambda event: self._without_unseen(operation, event, moment),
            lambda event: [self._with_what_was_taken_back(operation, event, moment)],
            lambda event: [self._without_left(event)],
            lambda event: [_without_uncovered(event)],
            lambda event: [_without_covered(event)],
        ):
            seen += [changed for each in seen for changed in change(each) if changed != each]
        return seen

    def _without_marker(self, operation: Operation, event: Event, moment: int) -> Iterator[Event]:
        """Who failed at a rename, too, has taken off the marker that hides what was left at the old place."""
        left = self.states[moment].get(_key(operation.name))
        if operation.kind == "rename" and _is_uncovered(_key(operation.name), left):
            yield {**event, _key(operation.name): (left, None)}

    def _with_what_was_taken_back(self, operation: Operation, event: Event, moment: int) -> Event:
        return {
            name: (before or Thing(TABLE, name + V1_SUFFIX, ()), after)
            if self._was_taken_back(name, operation, moment)
            else (before, after)
            for name, (before, after) in event.items()
        }

    def _without_left(self, event: Event) -> Event:
        """Return the event without leftovers of a drop, which show once a later table leaves the directory."""
        return {
            name: (before, after)
            for name, (before, after) in event.items()
            if before is not None or name not in _exposed(event) or f"{name}{V1_SUFFIX}" not in self.trodden
        }

    def _without_unseen(self, operation: Operation, event: Event, moment: int) -> Iterator[Event]:
        """Yield the event without each V1 table that appeared only after the operation may have read.

        A reservation is no V1 table until it is entered, or until a late writer has left an object in it.
        """
        for name, (before, after) in event.items():
            if _is_uncovered(name, before) and self._appeared(name, operation.began_at, moment):
                yield {**event, name: (None, after)}

    def _was_taken_back(self, name: str, operation: Operation, moment: int) -> bool:
        """Return whether a reservation that an operation had seen was removed because its owner was refused.

        A concurrent removal of the previous table may remove the reservation even before that.
        """
        return any(
            cause is not None
            and name in event
            and (
                self._is_undone(cause, {name: event[name]})
                or (_hides({name: event[name]}) and self._is_anothers_reservation(name, cause.began_at, at))
            )
            for at, (cause, event) in enumerate(self.changes[operation.began_at + 1 : moment], operation.began_at + 1)
        )

    def _enters_what_is_gone(self, operation: Operation, event: Event, moment: int) -> bool:
        """Return whether an operation enters a reservation or a short-lived V1 table that is removed by now."""
        return operation.kind in ("migrate", "deregister") and all(
            after == Thing(TABLE, name + V1_SUFFIX, ())
            and (
                self._was_taken_back(name, operation, moment)
                or (operation.kind == "migrate" and self._showed(name, operation, moment))
            )
            for name, (_, after) in event.items()
        )

    def _showed(self, name: str, operation: Operation, moment: int) -> bool:
        """Return whether a V1 table showed during an operation because another briefly removed its marker."""
        return any(
            cause is not None
            and name in event
            and _hides({name: event[name]})
            and any(name in shown and _shows({name: shown[name]}) for before, shown in cause.events if before < at)
            for at, (cause, event) in enumerate(self.changes[operation.began_at + 1 : moment], operation.began_at + 1)
        )

    def _is_anothers_reservation(self, name: str, since: int, until: int) -> bool:
        """Return whether the last V1 table that showed between two states is a declaration that is refused."""
        showed = (
            cause
            for cause, event in reversed(self.changes[since + 1 : until])
            if name in event and event[name][1] is not None
        )
        cause = next(showed, None)
        return cause is not None and cause.kind == "declare" and cause.outcome != "ok"

    def _appeared(self, name: str, since: int, until: int) -> bool:
        """Return whether a directory became a table of that name between two states."""
        return any(
            name in event and _is_uncovered(name, event[name][1]) for _, event in self.changes[since + 1 : until]
        )

    def _is_resurrection(self, operation: Operation, event: Event) -> bool:
        """Return whether a late write into a dropped V1 directory made it a V1 table again, as in V1."""
        shown = all(
            self.v1 and after is not None and before is None and after.location == name + V1_SUFFIX
            for name, (before, after) in event.items()
        )
        if operation.kind == "deregister":  # a marker in a directory that has been emptied is taken off again
            return shown and all(self.is_being_removed(name + V1_SUFFIX) for name in event)
        return shown and operation.kind in (
            "commit",
            "resolve",
            "look",
            "rename",
            "drop_table",
            "drop_namespace",
            "fsck",
            "judge",
            "register",
        )

    def _is_undone(self, operation: Operation, event: Event) -> bool:
        """Return whether a refused declaration removed its reservation."""
        return operation.kind in ("declare", "commit", "resolve") and all(
            self.v1 and after is None and before is not None and before.location == name + V1_SUFFIX
            for name, (before, after) in event.items()
        )

    def _is_echo(self, operation: Operation, event: Event, whole: int) -> bool:
        """Return whether a V1 directory changed because another operation removes its table concurrently."""
        if whole and operation.kind == "register" and _shows(event):
            return operation.outcome != "refused"  # unless it dies, it hides that again
        return operation.outcome != "ok" and self._hides_what_was_left(operation, event)

    def _shows_again(self, operation: Operation, event: Event, moment: int) -> bool:
        """Return whether a deregistration briefly shows a table that others registered and removed."""
        since = self.states[operation.events[0][0] : moment]
        return (
            operation.kind == "deregister"
            and _shows(event)
            and all(any(self.owner_of(name + V1_SUFFIX, state) for state in since) for name in event)
        )

    def _hides_what_was_left(self, operation: Operation, event: Event) -> bool:
        """Return whether an operation that lost or crashed has hidden the leftovers at the old place."""
        return operation.kind in ("deregister", "drop_table", "drop_namespace", "rename") and all(
            after is None and _is_uncovered(name, before) and self._was_left(name + V1_SUFFIX, operation)
            for name, (before, after) in event.items()
        )

    def _hides_a_reservation(self, operation: Operation, event: Event, moment: int) -> bool:
        """Return whether a removal hides the next reservation in the V1 directory, whose owner is refused."""
        return (
            operation.kind in ("drop_table", "deregister", "rename")
            and _hides(event)
            and all(self._is_anothers_reservation(name, operation.began_at, moment) for name in event)
        )

    def _was_left(self, location: str, operation: Operation) -> bool:
        return any(
            before is not None and before.location == location
            for cause, event in self.changes[operation.began_at + 1 :]
            if cause is not operation
            for name, (before, after) in event.items()
            if after is None or _is_uncovered(name, after)  # its entry is gone, and it is shown once more
        )

    def _cancels(self, operation: Operation) -> bool:
        total: dict[str, tuple[Thing | None, Thing | None]] = {}
        for _, event in operation.events:
            for name, (before, after) in event.items():
                total[name] = (total.get(name, (before,))[0], after)
        return all(before == after for before, after in total.values())

    def _require_reason(self, operation: Operation) -> None:
        """A refusal is right only if at some moment of the call the catalog was such that it had to be."""
        wanted = CONDITIONS.get(operation.kind)
        error = type(operation.error).__name__
        text = str(operation.error)
        if (
            error == "ConcurrentModification"
            and "other processes changed" in text
            and operation.began_at == self.moment
        ):
            raise Violation(f"no other process changed anything: {operation}")
        if wanted is None or error in ("ConcurrentModification", "Damaged"):
            return
        if operation.kind == "declare" and ("files lie in" in text or "has just taken" in text):
            return
        if operation.kind == "register" and ("no Lance table lies" in text or "is the copy that a rename" in text):
            return
        if all(wanted(operation, state) for state in self.states[operation.began_at : self.moment + 1]):
            raise Violation(f"it was refused for no reason: {operation}")

    def _require_gone(self, operation: Operation) -> None:
        """Check that files which a rename reports as removed during the copy are gone at the source or the copy."""
        said = re.search(rf"/{ROOT}/(\S+): (\S+) was removed or replaced while", str(operation.error))
        if said and not any(f"{ROOT}/{place}/{said[2]}" in self.lost for place in (said[1], *self.copies)):
            raise Violation(f"nothing went: {operation}")

    def _require_seen(self, operation: Operation) -> None:
        seen = operation.result
        states = self.states[operation.began_at : self.moment + 1]
        if isinstance(seen, list):
            wanted: Iterable[Any] = (_children(state, NAMESPACE) for state in states)
        else:
            wanted = (state.get(_key(operation.name)) for state in states)
            if seen is None:
                wanted = (None if thing is None or thing.kind != TABLE else thing for thing in wanted)
        if not any(seen == one for one in wanted):
            raise Violation(f"at no moment of the call was the catalog as it was shown, {seen}: {operation}")

    def check_commit(self, operation: Operation) -> None:
        """An acknowledged version has been there; one that was refused, or went to another, never comes."""
        born = self.born.get(operation.content) if operation.content else None
        if operation.outcome == "ok" and born is None:
            raise Violation(f"the version was acknowledged and is not there: {operation}")
        if operation.outcome != "refused" or born is None or operation.location in self.trodden:
            return
        if not self._was_removed(operation, max(operation.ended, born)):  # a request may be in flight for longer
            raise Violation(f"the version was refused and is there: {operation}")

    def is_anothers_place(self, commit: Operation) -> bool:
        """Whether a version went with its table, and in its directory another table has that version by now."""
        held = self.finals.get(commit.key, commit.content)
        return commit.content in self.born and held != commit.content and self._was_removed(commit, self.moment)

    def _was_removed(self, operation: Operation, until: int) -> bool:
        """Whether the table went since it was committed to: then the version went with it, or moved."""
        states = self.states[operation.began_at : until + 1]
        return any(self.owner_of(operation.location, state) is None for state in states)

    # -- at the end -------------------------------------------------------------------------------------------------

    def check_all(self) -> None:
        for operation in self.operations:
            self.check(operation)
            if operation.kind == "commit":
                self.check_commit(operation)
                if operation.outcome == "ok":
                    self._require_kept(operation)

    def _require_kept(self, operation: Operation) -> None:
        """An acknowledged version is where its table has gone to, unless the table was dropped."""
        location: str | None = operation.location
        assert location is not None
        states = self.states[operation.began_at : operation.ended + 1]
        if all(self.owner_of(location, state) is None for state in states):
            raise Violation(f"the version was acknowledged in a directory that was no table's: {operation}")
        if location in self.trodden:
            return
        cut = False
        for moment, (cause, event) in enumerate(self.changes[operation.began_at + 1 :], operation.began_at + 1):
            left = [name for name, (before, _) in event.items() if before is not None and before.location == location]
            stays = any(after is not None and after.location == location for _, after in event.values())
            arrived = self._arrived(cause, event, moment, location)
            if cut and any(before and before.location == operation.location for before, _ in event.values()):
                return  # another operation registered the old place, and is removing it
            if cause is None or (arrived is None and (stays or not left)):
                continue
            if cause.kind in ("drop_table", "drop_namespace"):
                return
            if cause.kind == "rename" and self.v1 and moment <= operation.ended:
                return  # it may have gone with the table, or into a V1 table that came of it at the old place (ADR 14)
            if arrived is not None:  # otherwise the old place is hidden once more
                location = arrived.location
                cut = cut or cause.outcome != "ok"
                if location in self.trodden:
                    return
        key = f"{ROOT}/{location}/_versions/{operation.key.rpartition('/')[2]}"
        if self.finals.get(key) == operation.content:
            return
        if cut and self.finals.get(operation.key) == operation.content:
            return  # a rename was stopped before it could carry the version over: it is at the old place (ADR 14)
        raise Violation(f"the version was acknowledged and is lost, looked for at {key}: {operation}")

    def _arrived(self, cause: Operation | None, event: Event, moment: int, location: str | None) -> Thing | None:
        """The table that a rename has brought away from a directory; another may have made that visible once more."""
        if cause is None or cause.kind != "rename":
            return None
        source = self.states[moment - 1].get(_key(cause.name))
        if source is None or source.location != location:
            return None
        return event.get(_key(cause.arguments["target"]), (None, None))[1]


# -- what each kind of operation does, and when it may be refused ---------------------------------------------------

Effect = Callable[[Operation, Event, State], bool]
Condition = Callable[[Operation, State], bool]


def _without_uncovered(event: Event) -> Event:
    """A V1 directory that an entry of that name has covered is a table again when the entry goes."""
    return {
        name: (before, None if before is not None and _is_uncovered(name, after) else after)
        for name, (before, after) in event.items()
    }


def _hides(event: Event) -> bool:
    return all(after is None and _is_uncovered(name, before) for name, (before, after) in event.items())


def _shows(event: Event) -> bool:
    return all(before is None and _is_uncovered(name, after) for name, (before, after) in event.items())


def _without_covered(event: Event) -> Event:
    """A V1 directory that comes to be the place of another table is no table of its own any more."""
    taken = {after.location for _, after in event.values() if after is not None}
    return {
        name: (before, after)
        for name, (before, after) in event.items()
        if after is not None or before is None or not _is_uncovered(name, before) or before.location not in taken
    }


def _exposed(event: Event) -> set[str]:
    """The V1 tables that are seen in directories whose tables have left the manifest, and not them."""
    left = {before.location for before, _ in event.values() if before is not None}
    return {name for name, (_, after) in event.items() if _is_uncovered(name, after) and name + V1_SUFFIX in left}


def _is_uncovered(name: str, thing: Thing | None) -> bool:
    return thing == Thing(TABLE, name + V1_SUFFIX, ())


def _single(test: Callable[[Operation, Thing | None, Thing | None], bool]) -> Effect:
    def effect(operation: Operation, event: Event, _: State) -> bool:
        key = _key(operation.name)
        return list(event) == [key] and test(operation, *event[key])

    return effect


def _entered(operation: Operation, location: str | None, kind: str) -> Thing:
    return Thing(kind, location, _public(operation.arguments.get("properties", {})))


def _entered_by_none(operation: Operation) -> Thing:
    """What is registered as V1 readers see it already."""
    return Thing(TABLE, operation.arguments["location"], ())


def _declared(operation: Operation, before: Thing | None, after: Thing | None) -> bool:
    location = after.location if after is not None else None
    if operation.outcome == "ok" and operation.result is not None and location != operation.result.location:
        return False
    if before is None:
        return after == _entered(operation, location, TABLE)
    # The reservation in a V1 directory is a table already: others may have entered and altered it since.
    properties = dict(before.properties) | operation.arguments.get("properties", {})
    reserved = before.kind == TABLE and before.location == _key(operation.name) + V1_SUFFIX
    return reserved and after == Thing(TABLE, location, _public(properties))


def _altered(operation: Operation, before: Thing | None, after: Thing | None) -> bool:
    if before is None or after is None:
        return False
    properties = dict(before.properties) | operation.arguments["properties"]
    return after == Thing(before.kind, before.location, _public(properties))


def _dropped_namespace(operation: Operation, event: Event, state: State) -> bool:
    key = _key(operation.name)
    gone = {name for name in state if name == key or name.startswith(key + "$")}
    return set(event) == gone and all(after is None for _, after in event.values())


def _renamed(operation: Operation, event: Event, _: State) -> bool:
    source, target = _key(operation.name), _key(operation.arguments["target"])
    if set(event) != {source, target}:
        return False
    (before, left), (there, after) = event[source], event[target]
    if before is None or after is None or left is not None or there is not None:
        return False
    return (before.kind, before.properties) == (after.kind, after.properties)


EFFECTS: dict[str, Effect] = {
    "create_namespace": _single(
        lambda operation, before, after: (
            after == _entered(operation, None, NAMESPACE)
            and (before is None or (operation.arguments["overwrite"] and before.kind == NAMESPACE))
        )
    ),
    "alter": _single(_altered),
    "drop_namespace": _dropped_namespace,
    "declare": _single(_declared),
    "register": _single(
        lambda operation, before, after: (
            after == _entered(operation, operation.arguments["location"], TABLE)
            and (before in (None, _entered_by_none(operation)) or operation.arguments["overwrite"])
        )
    ),
    "drop_table": _single(lambda _, before, after: after is None and before is not None and before.kind == TABLE),
    "deregister": _single(lambda _, before, after: after is None and before is not None and before.kind == TABLE),
    "rename": _renamed,
}


def _has(state: State, name: str, kind: str) -> bool:
    return _key(name) in state and state[_key(name)].kind == kind


def _has_parent(state: State, name: str) -> bool:
    return _has(state, name.rpartition(".")[0], NAMESPACE)


def _is_free(operation: Operation, state: State) -> bool:
    return _has_parent(state, operation.name) and _key(operation.name) not in state


def _is_empty(state: State, name: str) -> bool:
    return not any(other.startswith(_key(name) + "$") for other in state)


def _may_create(operation: Operation, state: State) -> bool:
    replaces = operation.arguments["overwrite"] and _has(state, operation.name, NAMESPACE)
    return _is_free(operation, state) or (replaces and _is_empty(state, operation.name))


def _may_register(operation: Operation, state: State) -> bool:
    location = operation.arguments["location"]
    others = (thing.location for name, thing in state.items() if name != _key(operation.name) and thing.location)
    free = not any(_overlap(location, other) for other in others)
    replaces = operation.arguments["overwrite"] and _has(state, operation.name, TABLE)
    return free and (_is_free(operation, state) or replaces)


CONDITIONS: dict[str, Condition] = {
    "create_namespace": _may_create,
    "alter": lambda operation, state: _has(state, operation.name, operation.arguments["of"]),
    "drop_namespace": lambda operation, state: (
        _has(state, operation.name, NAMESPACE) and (operation.arguments["cascade"] or _is_empty(state, operation.name))
    ),
    "declare": _is_free,
    "register": _may_register,
    "drop_table": lambda operation, state: _has(state, operation.name, TABLE),
    "deregister": lambda operation, state: _has(state, operation.name, TABLE),
    "rename": lambda operation, state: (
        _has(state, operation.name, TABLE)
        and _has_parent(state, operation.arguments["target"])
        and _key(operation.arguments["target"]) not in state
    ),
    "migrate": lambda *_: True,
    "clean_up": lambda *_: True,
    "fsck": lambda *_: True,
}


def _children(state: State, kind: str) -> list[str]:
    return sorted(name for name, thing in state.items() if name and "$" not in name and thing.kind == kind)


def _key(name: str) -> str:
    return name.replace(".", "$")


def _public(properties: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, value) for name, value in properties.items() if not name.startswith("lancekeep.")))


def _location(key: str) -> str:
    return key.removeprefix(f"{ROOT}/").partition("/_versions/")[0]


def _overlap(one: str, other: str) -> bool:
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def _shown(event: Event) -> str:
    def short(thing: Thing | None) -> str:
        if thing is None:
            return "-"
        return f"{thing.location or thing.kind}{dict(thing.properties) or ''}"

    return ", ".join(
        f"{name or 'the root'}: {short(before)} -> {short(after)}" for name, (before, after) in event.items()
    )
