"""The world of the model as one immutable value, what each call of a port does to it, and what must always hold.

A manifest is the text ``{version}{letter}<{letter of its predecessor}``: letters are given in the order of staging, so
states that differ only in which writer did what are one state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum, auto
from functools import cache
from typing import Any

import attrs

from lancekeep.adapters.commit_stores import claims
from lancekeep.domain.direct_commits import approval_of
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.naming import ManifestName, NamingScheme, final_path, final_versions
from lancekeep.domain.version_row import NotReady, Reserved, Taken, VersionRow

ROOT = DatasetRoot("t", "memory:///t")


class Mishap(Enum):
    """What a call of a port answers where it has no answer."""

    FAULT = auto()
    MISSING = auto()

    def __repr__(self) -> str:
        return {Mishap.FAULT: "no reply", Mishap.MISSING: "no such object"}[self]


@attrs.frozen(cache_hash=True)
class World:
    """The state that outlives a participant, and the facts that the invariants need.

    Attributes:
        rows: The rows of the commit store, in the order of versions.
        objects: The directory, by key.
        staged: The number of manifests that were ever staged, by version.
        history: The content of each version when it first was final.
        removed: The versions that a cleaner began to delete.
        forgotten: The versions whose rows the commit store lost or reverted.
        denied: The manifests that were reported lost.
        faults: The number of faults that may still happen.
        losses: The number of rows that may still be lost.
        failovers: The number of failovers that may still happen.
        padded: Manifests of one version differ in size.
        holds: The table holds direct commits.
        lifted: Its readers and writers approve the direct commits that they meet.
        direct: The manifests of writers that commit without the commit store.
        approvals: The approved content of versions that direct commits took, as rows.
    """

    rows: tuple[VersionRow, ...] = ()
    objects: tuple[tuple[str, bytes], ...] = ()
    staged: tuple[tuple[int, int], ...] = ()
    history: tuple[tuple[int, bytes], ...] = ()
    removed: frozenset[int] = frozenset()
    forgotten: frozenset[int] = frozenset()
    denied: frozenset[bytes] = frozenset()
    faults: int = 0
    losses: int = 0
    failovers: int = 0
    padded: bool = False
    holds: bool = False
    lifted: bool = False
    direct: frozenset[bytes] = frozenset()
    approvals: tuple[VersionRow, ...] = ()

    def row(self, version: int) -> VersionRow | None:
        return next((row for row in self.rows if row.version == version), None)

    def object(self, key: str) -> bytes | None:
        return next((content for name, content in self.objects if name == key), None)

    @property
    def latest_row(self) -> VersionRow | None:
        return self.rows[-1] if self.rows else None

    @property
    def finals(self) -> dict[int, bytes]:
        """Return the versions in the directory, which readers without the commit store see."""
        return _finals(self.objects)

    def with_row(self, row: VersionRow) -> World:
        rows = [*(other for other in self.rows if other.version != row.version), row]
        return attrs.evolve(self, rows=tuple(sorted(rows, key=lambda row: row.version)))

    def without_row(self, version: int) -> World:
        return attrs.evolve(self, rows=tuple(row for row in self.rows if row.version != version))

    def with_object(self, key: str, content: bytes) -> World:
        return attrs.evolve(self, objects=tuple(sorted({**dict(self.objects), key: content}.items())))

    def without_object(self, key: str) -> World:
        return attrs.evolve(self, objects=tuple(entry for entry in self.objects if entry[0] != key))


@cache
def _finals(objects: tuple[tuple[str, bytes], ...]) -> dict[int, bytes]:
    contents = {key.rpartition("/")[2]: content for key, content in objects}
    scheme, versions = final_versions(contents, ROOT.versions_key)
    return {} if scheme is None else {version: contents[scheme.final_name(version)] for version in versions}


@attrs.frozen(cache_hash=True)
class Request:
    """One call of a port: the step in which participants take turns."""

    method: str
    args: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"{self.method}({', '.join(map(shown, self.args))})"


def shown(value: object) -> str:
    """A value in a trace: ``2a staged`` is the row of version 2 that points at the staged manifest 2a."""
    match value:
        case VersionRow():
            return shown(value.path) + (f" ({value.size} bytes)" if value.is_final else "")
        case NotReady(latest):
            return f"NotReady(latest: {shown(latest)})"
        case Taken(row):
            return f"Taken({shown(row)})"
        case bytes():
            return value.rstrip(b".").decode().removesuffix("LANC").rstrip(".")
        case str() if (name := ManifestName.parse(value.rpartition("/")[2])) is not None:
            return f"{name.version}{name.uuid} staged" if name.is_staged else f"{name.version} final"
        case tuple():
            return f"[{', '.join(map(shown, value))}]"
        case _:
            return str(value) if isinstance(value, str) else repr(value)


def perform(world: World, request: Request) -> tuple[World, Any]:
    """The world after one call of a port, and what the caller is answered."""
    return CALLS[request.method](world, *request.args)


# -- the commit store, by the rules that every adapter shares -------------------------------------------------------


def _reserve(world: World, row: VersionRow, first: bool) -> tuple[World, Any]:
    held = world.row(row.version)
    if held is not None:
        return world, claims.answer(row, held)
    if not claims.may_claim(row, world.latest_row, first=first):
        return world, NotReady(world.latest_row)
    return world.with_row(row), Reserved()


def _finalize(world: World, row: VersionRow) -> tuple[World, Any]:
    held = world.row(row.version)
    if held is None:
        return world, False
    return (world.with_row(row) if claims.may_finalize(held) else world), True


def _record(world: World, row: VersionRow) -> tuple[World, Any]:
    return (world.with_row(row) if world.row(row.version) is None else world), None


def _delete_row(world: World, version: int) -> tuple[World, Any]:
    """Delete a row, as only a cleaner does. From now on, no participant may rely on the version."""
    count = int(world.row(version) is not None)
    return attrs.evolve(world.without_row(version), removed=world.removed | {version}), count


def _list_rows(world: World, after: int | None, descending: bool) -> tuple[World, Any]:
    rows = world.rows[::-1] if descending else world.rows
    if after is not None:
        rows = tuple(row for row in rows if (row.version < after if descending else row.version > after))
    return world, rows


# -- the object store ----------------------------------------------------------------------------------------------


def _get(world: World, key: str) -> tuple[World, Any]:
    content = world.object(key)
    return world, Mishap.MISSING if content is None else content


def _put(world: World, key: str, content: bytes) -> tuple[World, Any]:
    return world.with_object(key, content), None


def _put_if_absent(world: World, key: str, content: bytes) -> tuple[World, Any]:
    return (world, False) if world.object(key) is not None else (world.with_object(key, content), True)


def copy_if_absent(world: World, source: str, target: str) -> tuple[World, Any]:
    content = world.object(source)
    return (world, Mishap.MISSING) if content is None else _put_if_absent(world, target, content)


def _copy(world: World, source: str, target: str) -> tuple[World, Any]:
    content = world.object(source)
    return (world, Mishap.MISSING) if content is None else (world.with_object(target, content), None)


def _head(world: World, key: str) -> tuple[World, Any]:
    content = world.object(key)
    return world, None if content is None else len(content)


def _list(world: World, prefix: str) -> tuple[World, Any]:
    return world, tuple((key, len(content)) for key, content in world.objects if key.startswith(prefix))


def _delete(world: World, key: str) -> tuple[World, Any]:
    return world.without_object(key), None


def _stage(world: World, version: int, predecessor: bytes) -> tuple[World, Any]:
    """Stage a manifest of a native writer, built on ``predecessor``, under a unique name."""
    count = dict(world.staged).get(version, 0)
    letter = chr(ord("a") + count)
    padding = "." * count if world.padded else ""
    content = f"{version}{letter}<{letter_of(predecessor)}{padding}LANC".encode()
    path = f"{ROOT.manifest_key(version, NamingScheme.V2)}-{letter}"
    staged = tuple(sorted({**dict(world.staged), version: count + 1}.items()))
    return attrs.evolve(world.with_object(path, content), staged=staged), (path, content)


def _commit_directly(world: World, version: int, predecessor: bytes) -> tuple[World, Any]:
    """Create a final manifest as a writer does that does not know the commit store."""
    world, (path, content) = _stage(world, version, predecessor)
    world, created = _put_if_absent(world.without_object(path), final_path(path), content)
    return (attrs.evolve(world, direct=world.direct | {content}) if created else world), created


def _approve(world: World, row: VersionRow) -> tuple[World, Any]:
    if any(each.version == row.version for each in world.approvals):
        return world, None
    return attrs.evolve(world, approvals=(*world.approvals, row)), None


CALLS: dict[str, Callable[..., tuple[World, Any]]] = {
    "rows.get": lambda world, version: (world, world.row(version)),
    "rows.latest": lambda world: (world, world.latest_row),
    "rows.list": _list_rows,
    "rows.reserve": _reserve,
    "rows.finalize": _finalize,
    "rows.record": _record,
    "rows.delete": _delete_row,
    "objects.get": _get,
    "objects.put": _put,
    "objects.put_if_absent": _put_if_absent,
    "objects.copy_if_absent": copy_if_absent,
    "objects.copy": _copy,
    "objects.head": _head,
    "objects.list": _list,
    "objects.delete": _delete,
    "stage": _stage,
    "rows.approval": lambda world, version: (
        world,
        next((row for row in world.approvals if row.version == version), None),
    ),
    "rows.approve": _approve,
    "rows.lifted": lambda world: (world, world.lifted),
    "lift": lambda world: (attrs.evolve(world, lifted=True), None),
    "direct": _commit_directly,
    "head of the directory": lambda world: (world, max(world.finals.items(), default=(0, b""))),
    "newest": lambda world: (world, max(dict(world.history) if world.holds else world.finals, default=0)),
}


def letter_of(content: bytes) -> str:
    """Which of the manifests of its version this is; empty for nothing at all."""
    return content.partition(b"<")[0].decode().lstrip("0123456789")


def begun(versions: int) -> World:
    """A table with so many versions, all of them final."""
    world, predecessor = World(), b""
    for version in range(1, versions + 1):
        world, (path, content) = _stage(world, version, predecessor)
        key = final_path(path)
        world = world.without_object(path).with_object(key, content)
        world = world.with_row(VersionRow(ROOT.base_uri, version, key, len(content)))
        predecessor = content
    return attrs.evolve(world, history=tuple(sorted(world.finals.items())))


# -- what the commit store may do by itself ------------------------------------------------------------------------


def mishaps(world: World) -> Iterator[tuple[str, World]]:
    """Lose one row of the commit store, or fail over to a replica without the last writes."""
    if world.losses:
        for row in world.rows:
            after = attrs.evolve(world.without_row(row.version), losses=world.losses - 1)
            yield f"forgets the row {shown(row)}", _forgotten(after, [row])
    if world.failovers:
        for count, row in enumerate(world.rows):
            after = attrs.evolve(world, rows=world.rows[:count], failovers=world.failovers - 1)
            after = _forgotten(after, world.rows[count:])
            yield f"fails over to before {shown(row)}", after
            content = dict(world.history).get(row.version)
            if row.is_final and content is not None and row.version not in world.removed:
                staged = attrs.evolve(row, path=f"{row.path}-{letter_of(content)}")
                yield f"fails over to {shown(staged)}", after.with_row(staged)


def _forgotten(world: World, rows: Iterable[VersionRow]) -> World:
    return attrs.evolve(world, forgotten=world.forgotten | {row.version for row in rows})


# -- invariants ----------------------------------------------------------------------------------------------------


def remembered(before: World, after: World) -> tuple[World, str | None]:
    """The world with the versions that became final in this step in its history; and what must not have happened."""
    if after.holds:
        return _reflected(before, after)
    if after.objects == before.objects:
        return after, None
    finals, history = after.finals, dict(before.history)
    gone = before.finals.keys() - finals.keys() - after.removed
    if gone:
        return after, f"version {min(gone)} was removed, and not by a cleaner"
    for version, content in finals.items():
        held = history.setdefault(version, content)
        if held != content:
            return after, f"version {version} held {shown(held)}, and now holds {shown(content)}"
        if version > 1 and version - 1 not in history:
            return after, f"a gap: version {version} is final, and version {version - 1} never was"
        if version > 1 and not content.partition(b"<")[2].startswith(letter_of(history[version - 1]).encode()):
            return after, f"version {version} is {shown(content)}, and its predecessor {shown(history[version - 1])}"
    return attrs.evolve(after, history=tuple(sorted(history.items()))), None


def _reflected(before: World, after: World) -> tuple[World, str | None]:
    """As `remembered`, for a table that holds direct commits: final rows are its history."""
    if after.rows == before.rows and after.objects == before.objects:
        return after, None
    finals, history = after.finals, dict(before.history)
    if gone := before.finals.keys() - finals.keys():
        return after, f"version {min(gone)} was removed"
    for row in after.rows:
        content = finals.get(row.version)
        if not row.is_final or content is None:
            continue
        held = history.setdefault(row.version, content)
        if held != content:
            return after, f"version {row.version} held {shown(held)}, and now holds {shown(content)}"
        if content in after.direct and approval_of(ROOT.base_uri, row.version, content) not in after.approvals:
            return after, f"version {row.version} is the direct commit {shown(content)}, which was not adopted"
        if row.version > 1 and row.version - 1 not in history:
            return after, f"a gap: version {row.version} is final, and version {row.version - 1} never was"
        if row.version > 1 and not content.partition(b"<")[2].startswith(letter_of(history[row.version - 1]).encode()):
            return after, f"version {row.version} is {shown(content)}, and its predecessor {history[row.version - 1]!r}"
    return attrs.evolve(after, history=tuple(sorted(history.items()))), None


def _violation_of_holding(world: World) -> str | None:
    """As `violation`, for a table that holds direct commits."""
    finals = world.finals
    for version, content in world.history:
        row = world.row(version)
        if row is None:
            return f"the row of version {version} is gone"
        if finals.get(version) != content:
            return f"version {version} held {shown(content)}, and its object is {shown(finals.get(version))}"
        if content in world.denied:
            return f"{shown(content)} was reported lost, and is version {version}"
        if row.is_final and row.size != len(content):
            return f"the row {shown(row)} is final, and its object is {shown(content)}"
    return None


def violation(world: World) -> str | None:
    """Return the violated invariant; None if all hold."""
    if world.holds:
        return _violation_of_holding(world)
    finals, history = world.finals, dict(world.history)
    newest = max(finals, default=0)
    if history and newest != max(history):
        return f"the latest version {max(history)} is gone"
    if missing := history.keys() - finals.keys() - world.removed:
        return f"a copy of the directory lacks version {min(missing)}, which no cleaner removed"
    for row in world.rows:
        if row.version > newest + 1:
            return f"a reader of the directory alone sees version {newest}, and {row.version} is reserved"
        content = finals.get(row.version)
        if row.is_final and row.version not in world.removed and (content is None or len(content) != row.size):
            return (
                f"the row {shown(row)} is final, and its object is {'missing' if content is None else shown(content)}"
            )
        if not row.is_final and row.version not in world.forgotten and world.object(row.path) is None:
            return f"the row {shown(row)} points at a manifest that is gone"
    for version, content in history.items():
        if content in world.denied:
            return f"{shown(content)} was reported lost, and is version {version}"
    return None


def told(world: World, tale: Tale) -> tuple[World, str | None]:
    """Return the world after a report of a participant to its caller, and the violation in the report."""
    match tale.what, tale.about:
        case "committed", (version, content, _) if world.holds:
            history = dict(world.history)
            known = history.setdefault(version, content)
            is_right = known == content == world.finals.get(version)
            wrong = None if is_right else f"committed was reported for {shown(content)}; version {version} is {known!r}"
            return attrs.evolve(world, history=tuple(sorted(history.items()))), wrong
        case "committed", (version, content, unrestored):
            held = dict(world.history).get(version)
            found = world.finals.get(version, content if version in world.removed else None)
            fine = held == content == found
            if version in unrestored:
                return world, f"committed was reported for {shown(content)}, whose row was found lost and not put back"
            return (
                world,
                None if fine else f"committed was reported for {shown(content)}; version {version} is {held!r}",
            )
        case "lost", content:
            return attrs.evolve(world, denied=world.denied | {content}), None
        case "unknown", (path, removed):
            return world, f"unknown was reported after {shown(path)} had been removed" if path in removed else None
        case "read", (version, newest):
            return (
                world,
                f"a reader was shown version {version}, and {newest} was final before" if version < newest else None,
            )
        case "vanished", version:
            return world, None if version in world.removed else f"version {version} could not be read"
    return world, f"{tale.what}: {tale.about}"


@attrs.frozen
class Tale:
    """A report of a participant to its caller: ``committed``, ``lost``, ``unknown``, ``vanished`` or an error."""

    what: str
    about: Any
