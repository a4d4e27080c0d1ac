"""The copy of a catalog's entries from one home to another.

A catalog has one home: the manifest store that holds its entries. Two properties of the root namespace say when a
manifest store is not the home (ADR 132):

- `COPY_PROPERTY` in the target, from the first entry until the target is the home.
- `MOVED_PROPERTY` in the source, from the fence on, and for as long as the catalog is elsewhere.

A store with either property refuses every operation of every process. The copy sets and removes them by
compare-and-set, so no moment has two homes.
"""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum, auto
from itertools import groupby
from operator import attrgetter

import attrs

from lancekeep.domain.catalog import CatalogView, Change, ManifestStoreGuarantees, Put, Remove, SetProperties
from lancekeep.domain.dropped import is_record
from lancekeep.domain.errors import ConcurrentModification, Damaged, Refused
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.identity import identity_in
from lancekeep.domain.manifest_entry import OWN_PROPERTIES, RESERVED, TABLE, ManifestEntry

MOVED_PROPERTY = f"{OWN_PROPERTIES}moved_to"
"""The property of the root namespace that names, without secrets, the home to which the catalog moved."""

COPY_PROPERTY = f"{OWN_PROPERTIES}copied_from"
"""The property of the root namespace of an unfinished copy: a `Copying`."""

MANIFEST_STORE_PROPERTY = f"{OWN_PROPERTIES}manifest_store"
"""The property in a root's file that names, without secrets, the manifest store of its entries."""

NOT_HOME = frozenset({MOVED_PROPERTY, COPY_PROPERTY})
"""The properties of a manifest store that is not the home of its catalog."""

MOVING_PROPERTY = f"{OWN_PROPERTIES}commit_store_moving_to"
"""Set while the versions move to another commit store; its value is the URL of that store.

The fence sets it, too: releases that do not know `MOVED_PROPERTY` refuse all operations by it.
"""

SNAPSHOT_VERSION_PROPERTY = f"{OWN_PROPERTIES}snapshot_version"
"""The version of the catalog that a snapshot for native readers shows."""
SNAPSHOT_TIME_PROPERTY = f"{OWN_PROPERTIES}snapshot_at"
"""When the snapshot was written."""

NOT_COPIED = NOT_HOME | {
    MANIFEST_STORE_PROPERTY,
    MOVING_PROPERTY,
    SNAPSHOT_VERSION_PROPERTY,
    SNAPSHOT_TIME_PROPERTY,
}
"""Properties of the root namespace that belong to one home."""


Positions = tuple[str | None, str | None]
NO_POSITIONS: Positions = (None, None)


@attrs.frozen
class Copying:
    """An unfinished copy.

    Attributes:
        source: The home whose entries are copied.
        copier: The random name of the process that copies. A process that takes the copy over has another name.
        compared: The positions in the changes of the source and of the target from which on they may differ, and
            listing readers may see other tables than the entries. None for a home whose position is not known.
    """

    source: str
    copier: str
    compared: Positions = attrs.field(default=NO_POSITIONS, eq=False)

    def text(self) -> str:
        """Return the copy as the property stores it."""
        return json.dumps({"source": self.source, "copier": self.copier, "compared": self.compared})

    @staticmethod
    def of(properties: Mapping[str, str]) -> Copying | None:
        """Return the unfinished copy that properties state; None if there is none.

        Positions that cannot be read are not known.

        Raises:
            Damaged: The property cannot be read.
        """
        text = properties.get(COPY_PROPERTY)
        if text is None:
            return None
        try:
            match json.loads(text):
                case {"source": str(source), "copier": str(copier), **others}:
                    return Copying(source, copier, _positions(others.get("compared")))
        except (ValueError, RecursionError):
            pass
        raise Damaged(
            f"the property {COPY_PROPERTY!r} of the catalog is {text[:100]!r}; expected a JSON object with a source "
            "and a copier. Copy the catalog again into an empty home"
        )


def _positions(stored: object) -> Positions:
    match stored:
        case [str() | None as source, str() | None as target]:
            return source, target
    return NO_POSITIONS


def require_home(properties: Mapping[str, str], root: str) -> None:
    """Check that a manifest store is the home of its catalog.

    Args:
        properties: The properties of the root namespace.
        root: The root, for messages.

    Raises:
        Refused: The catalog moved to another home, or its copy to this home is not finished.
    """
    copying, moved_to = Copying.of(properties), properties.get(MOVED_PROPERTY)
    if copying is not None:
        raise Refused(
            f"the catalog of {root} is being copied from {copying.source} to here. Wait until copy_catalog has "
            "finished, or call it again if it was stopped; until then, nothing can be read or changed here"
        )
    if moved_to is not None:
        raise Refused(f"the catalog of {root} moved to {moved_to}. {how_to_connect(moved_to, root)}")


def how_to_connect(home: str, root: str) -> str:
    """Return the advice how to open a catalog in its new home."""
    if home.startswith(("http://", "https://")):
        return f"Connect to {home}. If copy_catalog was stopped before the end, call it again, or with give_up=True"
    if home.rstrip("/") == root.rstrip("/"):
        return "Its entries are in the directory: connect without manifest_store"
    return f"Connect with manifest_store={home!r}"


# -- what is copied ------------------------------------------------------------------------------------------------


def all_entries(view: CatalogView) -> Iterator[ManifestEntry]:
    """Iterate over all entries in byte order.

    Records of dropped tables and entries of other types are among them.
    """
    kinds = {entry.object_type for entry in view.descendants(ObjectId())}
    return heapq.merge(*map(view.all_of, sorted(kinds)), key=attrgetter("object_id"))


def obstacle(
    entry: ManifestEntry, guarantees: ManifestStoreGuarantees, prescribed: Callable[[ObjectId], str | None]
) -> str | None:
    """Return why a home cannot hold an entry; None if it can.

    Args:
        entry: The entry.
        guarantees: What the home can hold.
        prescribed: Returns the directory that the home prescribes for a table.
    """
    if entry.defect is not None:
        return entry.defect
    object_id, levels = ObjectId.from_key(entry.object_id), guarantees.levels
    names, is_table = object_id.names, entry.object_type == TABLE
    if is_record(entry):
        if not guarantees.properties:
            return f"{guarantees.home} keeps no dropped tables; bring the table back, or purge it"
        names, is_table = names[1:-1], True
    if levels is not None:
        if is_table and len(names) != levels + 1:
            return f"{guarantees.home} names each table by {levels + 1} name(s)"
        if not is_table and len(names) > levels:
            return f"{guarantees.home} has {levels or 'no'} level(s) of namespaces"
    if guarantees.names is not None and not all(re.fullmatch(guarantees.names, name) for name in names):
        return f"{guarantees.home} has only names of the form {guarantees.names}"
    place = prescribed(object_id) if is_table and not guarantees.locations else entry.location
    if entry.location != place:
        return f"its directory is {entry.location!r}; {guarantees.home} has it in {place!r} only"
    if not guarantees.properties and entry.properties.keys() - {RESERVED}:
        return f"{guarantees.home} cannot store properties"
    if not guarantees.columns and _values(entry):
        return f"{guarantees.home} has no columns for the values {', '.join(sorted(_values(entry)))}"
    return None


def is_taken(wanted: ManifestEntry, present: ManifestEntry) -> bool:
    """Return whether other software's entry has the name of another object."""
    if wanted.object_type == TABLE:
        return present.object_type != TABLE or present.location != wanted.location
    return present.object_type != wanted.object_type or present.properties != wanted.properties


def duplicates(entries: Iterable[ManifestEntry]) -> Iterator[ManifestEntry]:
    """Yield entries, given in byte order, whose name an entry before has."""
    for _, same in groupby(entries, key=attrgetter("object_id")):
        yield from list(same)[1:]


def copied_properties(properties: Mapping[str, str], guarantees: ManifestStoreGuarantees) -> dict[str, str]:
    """Return the properties of the root namespace that a home receives."""
    return {
        name: value
        for name, value in properties.items()
        if name not in NOT_COPIED and (guarantees.properties or name.startswith(OWN_PROPERTIES))
    }


def changes_between(
    source: Iterable[ManifestEntry],
    target: Iterable[ManifestEntry],
    guarantees: ManifestStoreGuarantees,
    may_remove: Callable[[ManifestEntry], bool],
) -> Iterator[Change]:
    """Yield the changes after which the target has the entries of the source.

    Args:
        source: The entries of the source in byte order.
        target: The entries of the target in byte order.
        guarantees: What the target can hold.
        may_remove: Returns whether an entry of the target is of this catalog.
    """
    merged = heapq.merge(
        ((entry.object_id, 0, entry) for entry in source),
        ((entry.object_id, 1, entry) for entry in target),
        key=lambda found: found[:2],
    )
    for object_id, group in groupby(merged, key=lambda found: found[0]):
        both: dict[int, ManifestEntry] = {side: entry for _, side, entry in group}
        wanted, present = both.get(0), both.get(1)
        if wanted is None:
            assert present is not None
            if may_remove(present):
                yield Remove(object_id)
        elif present is None or _content(wanted, guarantees) != _content(present, guarantees):
            yield Put(attrs.evolve(wanted, listed=False, extension=wanted.extension if guarantees.columns else {}))


def _content(entry: ManifestEntry, guarantees: ManifestStoreGuarantees) -> tuple[object, ...]:
    """Return what a home holds of an entry. Values of extensions have a text that tells them apart, also NaN."""
    if not guarantees.properties:
        return entry.object_type, entry.location
    if not guarantees.columns:
        return entry.object_type, entry.location, sorted(entry.properties.items())
    extension = sorted((name, repr(value)) for name, value in _values(entry).items())
    return entry.object_type, entry.location, entry.metadata or None, extension


def _values(entry: ManifestEntry) -> Mapping[str, object]:
    """Return the values of columns that others added."""
    return {name: value for name, value in entry.extension.items() if value is not None}


# -- who is the home -----------------------------------------------------------------------------------------------


class Stage(Enum):
    """How far a copy has come.

    NEW: nothing is written. LEFT: the target is an unfinished copy of a home that the catalog had before the source.
    BEGUN: the target is an unfinished copy, and the source is the home. FENCED: the target is an unfinished copy, and
    the source refuses all operations. GIVEN_UP: the target is remains of the source, which still refuses all
    operations. DONE: the target is the home.
    """

    NEW = auto()
    LEFT = auto()
    BEGUN = auto()
    FENCED = auto()
    GIVEN_UP = auto()
    DONE = auto()


@attrs.frozen
class Ends:
    """The names of the two homes of a copy, without secrets."""

    source: str
    target: str


def stage_of(ends: Ends, source: Mapping[str, str], target: Mapping[str, str], *, occupied: bool) -> Stage:
    """Return how far the copy of a catalog has come.

    Args:
        ends: The homes.
        source: The properties of the root namespace in the source.
        target: The properties of the root namespace in the target.
        occupied: Whether the target holds anything.

    Raises:
        Refused: The source is not the home of the catalog, or the target has another catalog.
    """
    moved_to, copying, into_source = source.get(MOVED_PROPERTY), Copying.of(target), Copying.of(source)
    if into_source is not None:
        raise Refused(
            f"{ends.source} is an unfinished copy of {into_source.source}; finish that copy first, or give it up"
        )
    if moved_to not in (None, ends.target):
        raise Refused(f"the catalog of {ends.source} moved to {moved_to}; copy it from there")
    if copying is not None:
        if copying.source == ends.source:
            return Stage.BEGUN if moved_to is None else Stage.FENCED
        if moved_to is None and _is_same_catalog(source, target):
            return Stage.LEFT
        raise Refused(f"{ends.target} is an unfinished copy of {copying.source}; finish that copy first, or give it up")
    back = target.get(MOVED_PROPERTY)
    if moved_to is None:
        if not occupied or _is_snapshot(ends, target):
            return Stage.NEW
        if back is None:
            raise Refused(
                f"{ends.target} holds a catalog of its own; copy into an empty home, or into one that this catalog "
                "had before"
            )
        _require_same_identity(ends, source, target, back)
        return Stage.NEW
    if back == ends.source:
        return Stage.GIVEN_UP
    if back is not None or not occupied:
        state = f"names {back} as the home" if back is not None else "is empty"
        raise Refused(
            f"the catalog of {ends.source} moved to {ends.target}, which {state}: one of them was restored from a "
            "backup, or removed. Restore the state after the move"
        )
    return Stage.DONE


def _is_snapshot(ends: Ends, target: Mapping[str, str]) -> bool:
    """Return whether the target only shows the entries of the source to native readers."""
    return SNAPSHOT_VERSION_PROPERTY in target and target.get(MANIFEST_STORE_PROPERTY) == ends.source


def _require_same_identity(ends: Ends, source: Mapping[str, str], target: Mapping[str, str], left_for: str) -> None:
    """Check that the remains in the target are of the source's catalog.

    A V1 directory and a server hold no identity. Then the home for which the catalog left the target must be the
    source.
    """
    own, remains = identity_in(source), identity_in(target)
    same = left_for == ends.source if own is None or remains is None else own.id == remains.id
    if not same:
        raise Refused(
            f"{ends.target} holds the remains of another catalog than {ends.source}: their identities differ. Copy "
            "into an empty home"
        )


def _is_same_catalog(source: Mapping[str, str], target: Mapping[str, str]) -> bool:
    """Return whether both have the same identity at the same root."""
    own = identity_in(source)
    return own is not None and own == identity_in(target)


def _is_copy_of(view: CatalogView, ends: Ends, identity: Mapping[str, str]) -> bool:
    """Return whether the target is an unfinished copy of the source, or of a home that its catalog had before."""
    copying = Copying.of(view.properties)
    return copying is not None and (copying.source == ends.source or _is_same_catalog(identity, view.properties))


def begun(
    view: CatalogView, ends: Ends, copier: str, identity: Mapping[str, str], *, fenced: bool
) -> tuple[Sequence[Change], None]:
    """Decide to begin a copy in the target, or to take it over.

    Args:
        view: The target.
        ends: The homes.
        copier: The random name of the process that copies.
        identity: The properties with the identity of the catalog.
        fenced: Whether the source refuses all operations. The positions of the former process then stay valid.

    Raises:
        Refused: The target has become an unfinished copy of another catalog.
        ConcurrentModification: The target has become the home of a catalog.
    """
    copying = Copying.of(view.properties)
    if copying is not None and not _is_copy_of(view, ends, identity):
        raise Refused(f"{ends.target} has become a copy of {copying.source}; finish that copy first, or give it up")
    is_home = MOVED_PROPERTY not in view.properties and not _is_snapshot(ends, view.properties)
    if copying is None and view.version and is_home and view.guarantees.properties:
        raise ConcurrentModification(
            f"{ends.target} has become the home of a catalog since: another process has finished a copy. Call "
            "copy_catalog again to see the result"
        )
    compared = positions_of(ends, identity, view.properties) if fenced else NO_POSITIONS
    return [SetProperties({**identity, COPY_PROPERTY: Copying(ends.source, copier, compared).text()})], None


def positions_of(ends: Ends, source: Mapping[str, str], target: Mapping[str, str]) -> Positions:
    """Return the positions that an unfinished copy of the same catalog has stored.

    Args:
        ends: The homes.
        source: The properties of the root namespace in the source.
        target: The properties of the root namespace in the target.
    """
    copying = Copying.of(target)
    if copying is None or copying.source != ends.source or not _is_same_catalog(source, target):
        return NO_POSITIONS
    return copying.compared


def compared_until(view: CatalogView, ends: Ends, copier: str, compared: Positions) -> tuple[Sequence[Change], None]:
    """Decide to store the positions of the last comparison for a later process.

    Raises:
        ConcurrentModification: Another process has taken the copy over.
    """
    text = Copying(ends.source, copier, compared).text()
    return copied(view, ends, copier, [SetProperties({COPY_PROPERTY: text})])


def copied(view: CatalogView, ends: Ends, copier: str, changes: Sequence[Change]) -> tuple[Sequence[Change], None]:
    """Decide to make changes in an unfinished copy.

    Raises:
        ConcurrentModification: Another process has taken the copy over.
    """
    if Copying.of(view.properties) != Copying(ends.source, copier):
        raise ConcurrentModification(
            f"another process continues or has finished the copy from {ends.source} to {ends.target}; this one stops. "
            "Call copy_catalog again to see the result"
        )
    return changes, None


def fenced(view: CatalogView, ends: Ends) -> tuple[Sequence[Change], None]:
    """Decide to refuse all operations in the source from now on.

    Raises:
        Refused: The catalog has moved elsewhere, or its versions are moving to another commit store.
    """
    moved_to = view.properties.get(MOVED_PROPERTY)
    if moved_to not in (None, ends.target):
        raise Refused(f"the catalog of {ends.source} has moved to {moved_to} since; copy it from there")
    if MOVED_PROPERTY in view.entered:  # a V1 directory may have the property before the manifest has it
        return [], None
    require_no_move(view.properties, ends.source)
    moving = f"(none: the catalog moved to {ends.target})"
    return [SetProperties({MOVED_PROPERTY: ends.target, MOVING_PROPERTY: moving})], None


def require_no_move(properties: Mapping[str, str], home: str) -> None:
    """Raise `Refused` if the versions are moving to another commit store."""
    if MOVING_PROPERTY in properties and MOVED_PROPERTY not in properties:
        raise Refused(f"the versions of {home} are moving to another commit store; finish change_commit_store first")


def live(view: CatalogView, ends: Ends, copier: str) -> tuple[Sequence[Change], None]:
    """Decide to make a complete copy the home.

    Raises:
        ConcurrentModification: Another process has taken the copy over.
    """
    return copied(view, ends, copier, [SetProperties(dict.fromkeys(NOT_COPIED))])


def withdrawn(
    view: CatalogView, ends: Ends, identity: Mapping[str, str], copier: str | None = None
) -> tuple[Sequence[Change], None]:
    """Decide to make an unfinished copy remains of the source.

    Args:
        view: The target.
        ends: The homes.
        identity: The properties with the identity of the catalog.
        copier: The process that must still make the copy; None for any.

    Raises:
        ConcurrentModification: Another process has taken the copy over.
    """
    if copier is not None:
        copied(view, ends, copier, ())
    if not _is_copy_of(view, ends, identity):
        return [], None
    return [SetProperties({COPY_PROPERTY: None, MOVED_PROPERTY: ends.source})], None


def unfenced(view: CatalogView, ends: Ends) -> tuple[Sequence[Change], None]:
    """Decide to permit operations in the source again, after its copy was withdrawn."""
    if view.properties.get(MOVED_PROPERTY) != ends.target:
        return [], None
    return [SetProperties(dict.fromkeys((MOVED_PROPERTY, MOVING_PROPERTY)))], None
