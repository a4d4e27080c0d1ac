"""The layout below the root of a catalog: keys, URIs, markers and directories."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import unquote

from lancekeep.application.entries.outside import OutsideDirectory, nowhere
from lancekeep.domain.directory_contents import foreign_files, is_mark
from lancekeep.domain.errors import Damaged, InvalidInput, ObjectNotFound
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.naming import ManifestName
from lancekeep.domain.table import (
    DEREGISTERED_MARKER,
    MANIFEST_DIRECTORY,
    MOVING_MARKER,
    RESERVED_MARKER,
    Table,
    confined,
    new_location,
)
from lancekeep.ports.object_store import ObjectStore

if TYPE_CHECKING:  # few commands need it
    from lancekeep.format.begun_clone import BegunClone


class Places:
    """The layout below one root.

    Args:
        objects: The object store that holds the root.
        root_key: The key of the root; empty if the root is the whole store.
        uri_of: Returns the URI by which the table engine opens a key.
        storage_options: The options that the table engine needs to open such a URI.
        entropy: Returns the random part of a new directory's name.
        outside: Opens a directory outside of the root, by its absolute path or URI.
        opened: The object stores to close with the catalog. ``outside`` may add some.
    """

    def __init__(
        self,
        objects: ObjectStore,
        root_key: str,
        *,
        uri_of: Callable[[str], str],
        storage_options: Mapping[str, str],
        entropy: Callable[[], str],
        outside: Callable[[str], OutsideDirectory] = nowhere,
        opened: Collection[ObjectStore] = (),
    ) -> None:
        self.objects = objects
        self.root_key = root_key
        self.storage_options = storage_options
        self._uri_of = uri_of
        self._entropy = entropy
        self.outside = outside
        self._opened = opened
        self.prefix = f"{root_key}/" if root_key else ""
        """The prefix of every key below the root."""

    def close(self) -> None:
        """Release the connections to the object stores. Idempotent."""
        for store in list(self._opened):
            store.close()

    # -- keys and URIs ------------------------------------------------------------------------------------------

    @property
    def root_uri(self) -> str:
        """The URI of the root."""
        return self._uri_of(self.root_key)

    @property
    def base_uri(self) -> str:
        """The prefix of the base URIs by which the commit store knows the tables."""
        return self.objects.root_uri + self.prefix

    @property
    def probe_uri(self) -> str:
        """A base URI without a table, by which a commit store can be asked."""
        return self.objects.root_uri + (self.root_key or MANIFEST_DIRECTORY)

    def key(self, table: Table) -> str:
        """Return the key of a table's directory."""
        return self.prefix + table.location

    def uri(self, table: Table) -> str:
        """Return the URI by which the table engine opens a table."""
        return self._uri_of(self.key(table))

    def uri_at(self, root: DatasetRoot) -> str:
        """Return the URI by which the table engine opens a dataset root."""
        return self._uri_of(root.key)

    def location(self, root: DatasetRoot) -> str:
        """Return the path of a dataset root relative to the root of the catalog."""
        return root.key.removeprefix(self.prefix)

    def dataset_root(self, table: Table) -> DatasetRoot:
        """Return the dataset root of a table.

        Raises:
            Damaged: The storage does not support such a directory, or it is reached by a symbolic link.
        """
        key = self.key(table)
        try:
            linked = self.objects.passes_link(key, self.root_key)
        except InvalidInput as error:
            raise Damaged(f"the directory {table.location!r} of the table {table.id} cannot be: {error}") from error
        if linked:
            raise Damaged(
                f"the directory {table.location!r} of the table {table.id} is reached by a symbolic link, which "
                "may lead out of the catalog or into another table; put the directory itself there, or deregister the "
                "table"
            )
        return self._root(key)

    def chosen_root(self, table: Table) -> DatasetRoot:
        """Return the dataset root of a table whose location the caller chose.

        Raises:
            InvalidInput: In place of the `Damaged` of `dataset_root`.
        """
        try:
            return self.dataset_root(table)
        except Damaged as error:
            raise InvalidInput(str(error)) from error

    def relative(self, location: str) -> str:
        """Return a location as a path relative to the root.

        Args:
            location: A relative path, an absolute path or a URI.

        Raises:
            InvalidInput: The location is outside the root.
        """
        root_uri, root_path = f"{self.root_uri.rstrip('/')}/", f"/{self.root_key}/"
        if location.startswith(root_uri):
            return confined(unquote(location.removeprefix(root_uri)))
        return confined(location.removeprefix(root_path))

    def new_location(self, object_id: ObjectId) -> str:
        """Return a new directory name for a table (V2 specification, "Directory Naming")."""
        return new_location(object_id, self._entropy())

    def _root(self, key: str) -> DatasetRoot:
        return DatasetRoot(key, self.objects.root_uri + key)

    # -- markers ------------------------------------------------------------------------------------------------

    def reserved_marker(self, table: Table) -> str:
        """Return the key of the marker that reserves a directory for a new table."""
        return f"{self.key(table)}/{RESERVED_MARKER}"

    def begun_clone(self, table: Table) -> BegunClone | None:
        """Return the deep clone for which a directory is reserved; None without one."""
        from lancekeep.format.begun_clone import BegunClone

        try:
            return BegunClone.parse(self.objects.get(self.reserved_marker(table)))
        except ObjectNotFound:
            return None

    def moving_marker(self, table: Table) -> str:
        """Return the key of the marker that names the source of a rename's copy."""
        return f"{self.key(table)}/{MOVING_MARKER}"

    def moves_from(self, table: Table) -> str | None:
        """Return the location from which a rename copies a table; None without a marker."""
        try:
            return self.objects.get(self.moving_marker(table)).decode(errors="replace")
        except ObjectNotFound:
            return None

    def is_deregistered(self, table: Table) -> bool:
        """Return whether a marker hides a table's directory from V1 readers."""
        return self.objects.head(f"{self.key(table)}/{DEREGISTERED_MARKER}") is not None

    # -- contents -----------------------------------------------------------------------------------------------

    def is_bare(self) -> bool:
        """Return whether the root is empty: the catalog is new, or its root is mistyped."""
        return not any(self.objects.directories(self.prefix)) and next(self.objects.list(self.prefix), None) is None

    def is_occupied(self, table: Table) -> bool:
        """Return whether a table's directory holds any object."""
        return next(self.objects.list(self.key(table) + "/"), None) is not None

    def is_foreign(self, table: Table) -> bool:
        """Return whether the files of a directory without a version are not Lance's.

        A file that Lance or Lancekeep wrote, such as the marker of a declared table, proves the contrary.
        """
        below, is_empty = self.key(table) + "/", True
        for info in self.objects.list(below):
            if is_mark(info.key.removeprefix(below)):
                return False
            is_empty = False
        return not is_empty

    def names(self, root: DatasetRoot) -> list[str]:
        """Return the paths of files in a table's directory, relative to it."""
        return [key.removeprefix(f"{root.key}/") for key in self.contents(root)]

    def contents(self, root: DatasetRoot) -> list[str]:
        """Return the keys in a table's directory, including unfinished uploads."""
        below = f"{root.key}/"
        return [info.key for info in (*self.objects.list(below), *self.objects.unfinished(below))]

    def latest_manifest(self, root: DatasetRoot, keys: Iterable[str]) -> tuple[bytes, str] | None:
        """Return the content and key of the latest final manifest among some keys.

        Returns:
            None if there is no final manifest, or it was removed.
        """
        names = ((ManifestName.parse(key.removeprefix(root.versions_key)), key) for key in keys)
        finals = [(name.version, key) for name, key in names if name is not None and not name.is_staged]
        with suppress(ObjectNotFound, ValueError):
            _, key = max(finals)
            return self.objects.get(key), key
        return None

    def remove(self, root: DatasetRoot, keys: Iterable[str], *, copied: bool = False) -> None:
        """Remove objects of a table's directory, but keep foreign files.

        Foreign files are files that neither Lance nor Lancekeep wrote. Manifests are removed first, so that a crash
        leaves no table that could be registered. The marker that hides a V1 directory is removed last. If foreign files
        stay, it stays too, so that V1 readers do not see a table.

        Args:
            root: The table's dataset root.
            keys: The keys to remove.
            copied: The directory is a copy, so foreign files are removed too.
        """
        below, hides = f"{root.key}/", f"{root.key}/{DEREGISTERED_MARKER}"
        keys = list(keys)
        paths = () if copied else (key.removeprefix(below) for key in keys)
        foreign = {below + path for path in foreign_files(paths)}
        kept = {*foreign, hides} if foreign else foreign
        for key in sorted(set(keys) - kept, key=lambda key: (key == hides, not key.startswith(root.versions_key), key)):
            self.objects.delete(key)
        self.objects.prune(root.key)
