"""The claim of a root by a manifest store elsewhere.

Two catalogs over one root would take each other's tables for orphans. So the first change records the URL of the
manifest store in the properties file of the root, and another manifest store, or a mode of the directory, is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from lancekeep.adapters.manifest_stores.compatible import own_properties
from lancekeep.adapters.manifest_stores.directory_listing import DirectoryListing, V1Directory
from lancekeep.adapters.manifest_stores.lance_table import LanceManifestStore
from lancekeep.domain.catalog import CatalogView, Lookup, ManifestStoreGuarantees, Question
from lancekeep.domain.errors import ConcurrentModification, Refused
from lancekeep.domain.home_copy import (
    COPY_PROPERTY,
    MANIFEST_STORE_PROPERTY,
    MOVED_PROPERTY,
    copied_properties,
    how_to_connect,
)
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.manifest_entry import ManifestEntry
from lancekeep.domain.table import MANIFEST_DIRECTORY, V1_SUFFIX, is_at, v1_table
from lancekeep.domain.version_row import LatestRow
from lancekeep.ports.change_feed import ChangeFeed
from lancekeep.ports.commit_store import ExternalCommitStore
from lancekeep.ports.manifest_store import (
    Decision,
    ForeseeingManifestStore,
    JoiningManifestStore,
    ManifestStore,
    Result,
)
from lancekeep.ports.object_store import ObjectInfo, ObjectStore

_ATTEMPTS = 10


class ManifestStoreElsewhere(ManifestStore, Protocol):
    """A manifest store that keeps its entries outside of the directory of the root."""

    @property
    def url(self) -> str:
        """The canonical URL, without secrets and tuning options.

        The URLs of two stores are equal exactly if they hold the same entries.
        """

    def begin(self) -> None:
        """Create the catalog of the root, without entries. Idempotent.

        Raises:
            Refused: The catalog belongs to another root.
        """

    def abandon(self) -> None:
        """Remove the catalog of the root unless it was ever changed. Idempotent."""

    def require_possible(self, entry: ManifestEntry) -> None:
        """Check that the store can hold an entry that no guarantee forbids.

        Raises:
            InvalidInput, Unsupported, TableAlreadyExists: It cannot.
        """

    def may_remove(self, entry: ManifestEntry) -> bool:
        """Return whether a table's entry is this catalog's, not other software's."""


def require_entries_in(root: str, url: str | None, properties: Mapping[str, str]) -> None:
    """Raise `Refused` if a root records another place of its entries.

    Args:
        root: The root, for messages.
        url: The URL of the manifest store that was opened; None for the directory of the root.
        properties: The properties in the root's file.
    """
    recorded = properties.get(MANIFEST_STORE_PROPERTY)
    if recorded is not None and recorded != url:
        raise Refused(
            f"the entries of {root} are in the manifest store {recorded}; opened with {url or 'its directory'}. "
            f"{how_to_connect(recorded, root)}."
        )


def require_claim_of(objects: ObjectStore, root_key: str, urls: Sequence[str]) -> None:
    """Raise `Refused` if a root records another manifest store than these."""
    recorded = DirectoryListing(objects, root_key).view().properties.get(MANIFEST_STORE_PROPERTY)
    if recorded is not None and recorded not in urls:
        raise Refused(
            f"the entries of {objects.root_uri}{root_key} are in the manifest store {recorded}; copy them from there"
        )


def take_root(objects: ObjectStore, root_key: str, url: str, _: CatalogView) -> None:
    """Record a manifest store elsewhere as the home of a root's catalog. Idempotent.

    It takes the place of the former home. Processes that have the directory open refuse every operation from now on.
    """
    _record(objects, root_key, lambda recorded: {**recorded, MANIFEST_STORE_PROPERTY: url, MOVED_PROPERTY: url})


def return_root(objects: ObjectStore, root_key: str, view: CatalogView) -> None:
    """Record the directory as the home of its catalog. Idempotent."""
    own = own_properties(copied_properties(view.properties, view.guarantees))

    def returned(recorded: Mapping[str, str]) -> dict[str, str]:
        unfinished = {name: text for name, text in recorded.items() if name == COPY_PROPERTY}  # into a V1 directory
        return {**own, **unfinished}

    _record(objects, root_key, returned)


def show_tables(objects: ObjectStore, root_key: str, view: CatalogView, locations: Collection[str] | None) -> None:
    """Let readers that list directories see the tables of a catalog, and no others.

    Args:
        objects: The object store of the root.
        root_key: The key of the root.
        view: The catalog.
        locations: The directories that may differ; None for each directory of the root.
    """
    if not view.guarantees.locations:
        return  # the directories are the entries
    listing = DirectoryListing(objects, root_key)
    directory = listing.view()
    named = None if locations is None else filter(None, map(v1_table, sorted(locations)))
    for name in directory.names() if named is None else [table.key for table in named]:
        location = name + V1_SUFFIX
        is_shown = directory.find(name) is not None
        if is_shown and not is_at(view, location):
            listing.hide(location)
        elif not is_shown and is_at(view, location):
            listing.show(location)


def _record(objects: ObjectStore, root_key: str, change: Callable[[Mapping[str, str]], dict[str, str]]) -> None:
    listing = DirectoryListing(objects, root_key)
    for _ in range(_ATTEMPTS):
        directory = listing.view()
        properties = change(directory.properties)
        if properties == directory.properties or listing.remember(properties, directory):
            return
    raise ConcurrentModification(
        f"{objects.root_uri}{root_key}: another writer changed the file of its properties; try again"
    )


class ClaimedManifestStore:
    """A manifest store elsewhere, which claims its root with the first change."""

    def __init__(self, store: ManifestStoreElsewhere, objects: ObjectStore, root_key: str) -> None:
        self._store = store
        self._foreseeing = store if isinstance(store, ForeseeingManifestStore) else None
        self._joining = store if isinstance(store, JoiningManifestStore) else None
        self._listing = DirectoryListing(objects, root_key)
        self._manifest = LanceManifestStore(objects, f"{root_key}/{MANIFEST_DIRECTORY}".lstrip("/"))
        self._root = objects.root_uri + root_key
        self._claimed = self._is_claimed(self._listing.view())

    @property
    def url(self) -> str:
        """The canonical URL."""
        return self._store.url

    @property
    def guarantees(self) -> ManifestStoreGuarantees:
        return self._store.guarantees

    @property
    def history(self) -> DatasetRoot | None:
        return self._store.history

    @property
    def feed(self) -> ChangeFeed | None:
        return self._store.feed

    def location_of(self, table_id: ObjectId) -> str | None:
        return self._store.location_of(table_id)

    def view(self) -> CatalogView:
        return self._store.view()

    def view_for(self, question: Question) -> CatalogView:
        return self._store.view() if self._foreseeing is None else self._foreseeing.view_for(question)

    def joins(self, rows: ExternalCommitStore) -> bool:
        return self._joining is not None and self._joining.joins(rows)

    def view_with_latest(self, object_id: str, base_uri: str) -> tuple[CatalogView, LatestRow | None]:
        if self._joining is None:
            return self.view_for(Lookup(object_id)), None
        return self._joining.view_with_latest(object_id, base_uri)

    def recent(self) -> CatalogView:
        return self._store.recent()

    def apply(self, decide: Decision[Result]) -> tuple[CatalogView, Result]:
        if not self._claimed and decide(self._store.view())[0]:
            self._claim()
        return self._store.apply(decide)

    def optimize(self) -> None:
        self._store.optimize()

    def clean_up(self) -> int:
        return self._store.clean_up()

    def leftovers(self) -> Sequence[ObjectInfo]:
        return self._store.leftovers()

    def close(self) -> None:
        self._store.close()

    def _is_claimed(self, directory: V1Directory) -> bool:
        """Return whether the root records this store.

        The view reads the record here, for the first time: a record that another catalog writes later is not replaced.

        Raises:
            Refused: The root records another place of its entries, or holds a catalog of its own.
        """
        require_entries_in(self._root, self._store.url, directory.properties)
        if MANIFEST_STORE_PROPERTY in directory.properties:
            return True
        if directory.remembers or self._manifest.view().version:
            raise Refused(
                f"{self._root} holds a catalog whose entries are in the directory; opened with manifest_store="
                f"{self._store.url!r}. Leave manifest_store out, or choose another root."
            )
        return False

    def _claim(self) -> None:
        """Record this store in the root, once the store has recorded the root.

        Two roots may name one catalog, and two catalogs one root: either record refuses the second one, which then
        leaves no record of its own.
        """
        directory = self._listing.view()
        if not self._is_claimed(directory):
            self._store.begin()
            claim = {**directory.properties, MANIFEST_STORE_PROPERTY: self._store.url}
            try:
                recorded = self._listing.remember(claim, directory) or self._is_claimed(self._listing.view())
            except Refused:
                self._store.abandon()
                raise
            if not recorded:
                raise ConcurrentModification(
                    f"{self._root}: another writer changed the file of its properties; try again"
                )
        self._claimed = True
