"""Compatibility mode: the manifest table and the V1 directory as one catalog.

Directory namespace V2, "Compatibility Mode".
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import merge
from itertools import chain, islice
from operator import attrgetter

import attrs

from lancekeep.adapters.manifest_stores.directory_listing import DirectoryListing, V1Directory
from lancekeep.domain.catalog import (
    AddColumns,
    CatalogView,
    Change,
    ManifestStoreGuarantees,
    Put,
    Remove,
    SetProperties,
    Stamped,
    page,
)
from lancekeep.domain.errors import ConcurrentModification, LancekeepError, StoreUnavailable
from lancekeep.domain.idempotency import PROPERTY as REQUEST_PROPERTY
from lancekeep.domain.idempotency import without_records
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.identity import IDENTITY_PROPERTY
from lancekeep.domain.manifest_entry import OWN_PROPERTIES, TABLE, ManifestEntry
from lancekeep.domain.table import V1_SUFFIX, v1_table
from lancekeep.ports.change_feed import ChangeFeed
from lancekeep.ports.manifest_store import Decision, ManifestStore, Result
from lancekeep.ports.object_store import ObjectInfo

_ATTEMPTS = 20

_GUARANTEES = ManifestStoreGuarantees(lists_directories=True)


class CompatibleView:
    """The `CatalogView` of both stores.

    The manifest takes precedence; V1 directories count unless a table of the manifest owns them. A migration enters a
    table in the manifest before it hides the directory. A reader that asks the manifest first and the directory second
    may miss a table that moves in between, and therefore reads the latest manifest again.

    Args:
        manifest: the view of the manifest.
        listing: returns the directory: its current content, or the content that a decision sees.
        latest: returns the latest view of the manifest. A decision passes None, because it is retried.
    """

    guarantees = _GUARANTEES

    def __init__(
        self,
        manifest: CatalogView,
        listing: Callable[[], V1Directory],
        latest: Callable[[], CatalogView] | None = None,
    ) -> None:
        self.manifest = manifest
        self._listing = listing
        self._latest = latest or (lambda: manifest)
        self._properties: Mapping[str, str] | None = None

    def stamp(self, parent: ObjectId, object_type: str) -> object | None:
        """Return the stamp of the manifest.

        The tables of the root have none: they may be in the directory alone.
        """
        if (parent.is_root and object_type == TABLE) or not isinstance(self.manifest, Stamped):
            return None
        return self.manifest.stamp(parent, object_type)

    @property
    def version(self) -> int:
        return self.manifest.version or self._listing().version

    @property
    def columns(self) -> Mapping[str, str]:
        return self.manifest.columns

    @property
    def unnamed(self) -> int:
        return self.manifest.unnamed

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties of the manifest.

        Until the manifest records a commit store, the properties of the V1 directory count, too.
        """
        if self._properties is None:
            entered = self.manifest.properties
            self._properties = entered if own_properties(entered) else {**self._listing().properties, **entered}
        return self._properties

    @property
    def entered(self) -> Mapping[str, str]:
        return self.manifest.entered

    def find(self, object_id: str) -> ManifestEntry | None:
        entry = self.manifest.find(object_id)
        if entry is not None or v1_table(object_id + V1_SUFFIX) is None:
            return entry
        if self.manifest.owner_of(object_id + V1_SUFFIX) is None:
            entry = self._listing().find(object_id)
        latest = self._latest()
        if latest is self.manifest:
            return entry
        return CompatibleView(latest, self._listing, self._latest).find(object_id)

    def children(
        self, parent: ObjectId, object_type: str, after: str | None = None, limit: int | None = None
    ) -> tuple[list[str], str | None]:
        if not parent.is_root or object_type != TABLE:
            return self.manifest.children(parent, object_type, after, limit)
        more = None if limit is None else limit + 1
        entered, _ = self.manifest.children(parent, TABLE, after, more)
        listed = (entry.object_id for entry in self._listed(after))
        found = page(list(islice(merge(entered, listed), more)), None, limit)
        latest = self._latest()
        if latest is self.manifest:
            return found
        return CompatibleView(latest, self._listing).children(parent, object_type, after, limit)

    def descendants(self, parent: ObjectId) -> Iterator[ManifestEntry]:
        return chain(self.manifest.descendants(parent), self._listed() if parent.is_root else ())

    def all_of(self, object_type: str, after: str | None = None) -> Iterator[ManifestEntry]:
        listed = self._listed(after) if object_type == TABLE else ()
        return merge(self.manifest.all_of(object_type, after), listed, key=attrgetter("object_id"))

    def owner_of(self, location: str) -> ManifestEntry | None:
        owner = self.manifest.owner_of(location)
        table = v1_table(location.partition("/")[0])
        if owner is not None or table is None:
            return owner
        found = self._listing().find(table.key) if self.manifest.find(table.key) is None else None
        latest = self._latest()
        if latest is self.manifest:
            return found
        return CompatibleView(latest, self._listing, self._latest).owner_of(location)

    def _listed(self, after: str | None = None) -> Iterator[ManifestEntry]:
        """Yield the tables that only the directory holds, in byte order."""
        listing = self._listing()
        return (
            entry
            for name in listing.names(after)
            if self.manifest.find(name) is None
            and self.manifest.owner_of(name + V1_SUFFIX) is None
            and (entry := listing.find(name)) is not None
        )


@attrs.define
class _Step:
    """What a decision requires in addition to the changes of the manifest.

    Attributes:
        listing: the V1 directory as the decision saw it.
        remember: properties that the directory must store first.
        hide: V1 directories to hide first.
        again: whether the decision must be repeated.
        show: V1 directories to show afterwards.
    """

    listing: V1Directory
    remember: Mapping[str, str] | None = None
    hide: Collection[str] = ()
    again: bool = False
    show: Collection[str] = ()


class CompatibleManifestStore:
    """A `ManifestStore` over both stores.

    V1 readers follow the manifest. If a table leaves its V1 directory, the deregistered marker hides it before the
    manifest changes. If a table is registered there again, the marker is removed after the change. In between, the
    manifest decides. docs/interoperability.md lists the states after a crash.
    """

    guarantees = _GUARANTEES

    def __init__(self, manifest: ManifestStore, listing: DirectoryListing) -> None:
        self._manifest = manifest
        self._listing = listing
        self.history = manifest.history
        self._view = CompatibleView(manifest.recent(), listing.view, manifest.view)
        self._remembered: Mapping[str, str] = {}

    @property
    def feed(self) -> ChangeFeed | None:
        return self._manifest.feed

    def location_of(self, table_id: ObjectId) -> str | None:
        return self._listing.location_of(table_id)

    def view(self) -> CompatibleView:
        return self._over(self._manifest.view())

    def recent(self) -> CompatibleView:
        return CompatibleView(self._manifest.recent(), self._listing.view)

    def apply(self, decide: Decision[Result]) -> tuple[CompatibleView, Result]:
        hidden: list[str] = []  # directories that bear a marker for this change
        marked: list[str] = []  # directories whose marker this call created
        stored: Mapping[str, str] | None = None  # what this call has stored in the directory
        try:
            for _ in range(_ATTEMPTS):
                step, result = self._ask(decide, hidden, stored)
                if step.remember is not None and self._listing.remember(step.remember, step.listing):
                    self._remembered = stored = step.remember
                created = [location for location in step.hide if self._listing.hide(location)]
                hidden += step.hide
                marked += created
                if not (step.again or step.hide or step.remember is not None):
                    for location in chain(hidden, step.show):  # A failed writer may have removed its marker.
                        self._agree(location)
                    return self.view(), result
            raise ConcurrentModification("concurrent writers changed the same tables; nothing was changed, try again")
        except StoreUnavailable:
            raise  # The manifest may have changed: the marker stays, and the manifest decides.
        except LancekeepError:
            self._restore(marked)
            raise

    def optimize(self) -> None:
        self._manifest.optimize()

    def clean_up(self) -> int:
        return self._manifest.clean_up()

    def leftovers(self) -> Sequence[ObjectInfo]:
        return self._manifest.leftovers()

    def close(self) -> None:
        self._manifest.close()
        self._listing.close()

    def _over(self, manifest: CatalogView) -> CompatibleView:
        """Return the same view until the manifest changes; directories are read on demand.

        Without a manifest each view is new, because the directory may record a commit store at any time.
        """
        view = self._view
        if view.manifest is not manifest or manifest.version == 0:
            self._view = view = CompatibleView(manifest, self._listing.view, self._manifest.view)
        return view

    def _ask(
        self, decide: Decision[Result], hidden: Collection[str], stored: Mapping[str, str] | None
    ) -> tuple[_Step, Result]:
        """Ask for the changes. Make the changes of the manifest at once if nothing has to be done before."""

        def decide_on_both(manifest: CatalogView) -> tuple[Sequence[Change], tuple[_Step, Result]]:
            listing = self._listing.view()
            view = CompatibleView(manifest, lambda: listing)
            changes, result = decide(view)
            step, entered = self._planned(view, listing, changes, hidden, stored) if changes else (_Step(listing), [])
            return entered, (step, result)

        _, answer = self._manifest.apply(decide_on_both)
        return answer

    def _planned(
        self,
        view: CompatibleView,
        listing: V1Directory,
        changes: Sequence[Change],
        hidden: Collection[str],
        stored: Mapping[str, str] | None,
    ) -> tuple[_Step, list[Change]]:
        """Return the required step, and the changes to make in the manifest now."""
        remembered = own_properties(_properties_after(view.properties, changes))
        is_changed = remembered != own_properties(
            view.properties
        )  # then another process may have stored other ones since
        if remembered != (stored if is_changed else self._remembered):
            return _Step(listing, remember=remembered), []
        entered: list[Change] = [change for change in changes if isinstance(change, SetProperties | AddColumns)]
        if remembered != own_properties(_properties_after(view.manifest.properties, changes)):
            entered.append(SetProperties(remembered))
        rows = [change for change in changes if isinstance(change, Put | Remove)]
        vacated = _vacated(view, rows)
        listed = [entry for entry in vacated.values() if entry.listed]
        if listed:
            # The manifest must hold a table before its directory is hidden: a migration that decides on the same
            # manifest would not see the marker alone.
            early = [without_records(change) for change in entered]  # the records are of the change that follows
            return _Step(listing, again=True), [*early, *(Put(attrs.evolve(entry, listed=False)) for entry in listed)]
        # Another table may exist by now in a directory that was hidden for this change.
        seen = [place for place in vacated if place not in hidden or listing.find(place.removesuffix(V1_SUFFIX))]
        if seen:
            return _Step(listing, hide=seen), []
        entered += (row for row in rows if isinstance(row, Put) or view.manifest.find(row.object_id) is not None)
        put = (row.entry for row in rows if isinstance(row, Put))
        shown = [entry.object_id + V1_SUFFIX for entry in put if _reappears(entry, view.manifest, listing)]
        return _Step(listing, show=shown), entered

    def _restore(self, marked: Collection[str]) -> None:
        """Show hidden directories again, if the manifest still holds their tables."""
        with suppress(LancekeepError):  # The caller gets the original error.
            for location in marked:
                if self._is_entered(location):
                    self._agree(location)

    def _agree(self, location: str) -> None:
        """Show or hide a V1 directory until it agrees with the manifest."""
        shown = None
        while shown != (entered := self._is_entered(location)):
            if entered:
                self._listing.show(location)
            else:
                self._listing.hide(location)
            shown = entered

    def _is_entered(self, location: str) -> bool:
        owner = self._manifest.view().owner_of(location)
        return owner is not None and owner.object_type == TABLE and owner.location == location


def own_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that a V1 directory stores, too.

    The identity alone is not worth a file: no file outside of the catalog carries it yet.
    """
    own = {
        name: value
        for name, value in properties.items()
        if name.startswith(OWN_PROPERTIES) and not name.startswith(REQUEST_PROPERTY)
    }
    return own if own.keys() - {IDENTITY_PROPERTY} else {}


def _properties_after(properties: Mapping[str, str], changes: Sequence[Change]) -> Mapping[str, str]:
    for change in changes:
        if isinstance(change, SetProperties):
            properties = change.merged_into(properties)
    return properties


def _vacated(view: CompatibleView, rows: Sequence[Put | Remove]) -> dict[str, ManifestEntry]:
    """Return the V1 directories that lose their table by the changes, with the table."""
    taken = {change.entry.location for change in rows if isinstance(change, Put) and change.entry.object_type == TABLE}
    left = (view.find(change.entry.object_id if isinstance(change, Put) else change.object_id) for change in rows)
    return {
        entry.location: entry
        for entry in left
        if entry is not None
        and entry.location is not None
        and entry.location not in taken
        and v1_table(entry.location) is not None
    }


def _reappears(entry: ManifestEntry, manifest: CatalogView, listing: V1Directory) -> bool:
    """Return whether a table enters its own V1 directory while a marker may hide it.

    The directory of a new table is visible by the reservation inside. If the table was there before, a marker belongs
    to a writer that is about to remove the table.
    """
    if entry.location != entry.object_id + V1_SUFFIX:
        return False
    before = manifest.find(entry.object_id)
    return (before is None or before.location != entry.location) and listing.find(entry.object_id) is None
