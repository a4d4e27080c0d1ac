"""The catalog as a value: what is in it, and how it changes.

Decisions (in `lancekeep.domain.namespace` and `lancekeep.domain.table`) take a view and return changes, or raise. A
manifest store applies changes only where nothing has changed since the view; otherwise it asks for a new decision.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence

import attrs

from lancekeep.domain.errors import NamespaceAlreadyExists, NamespaceNotFound, TableAlreadyExists
from lancekeep.domain.identifiers import MANIFEST_DELIMITER, ObjectId
from lancekeep.domain.manifest_entry import NAMESPACE, TABLE, ManifestEntry


@attrs.frozen
class Put:
    """Enter an entry, in place of one of the same object id."""

    entry: ManifestEntry


@attrs.frozen
class Remove:
    """Remove the entry of an object id."""

    object_id: str


Change = Put | Remove


class CatalogView:
    """The catalog at one version: immutable, and cheap to ask.

    version: counts the changes of the catalog; 0 where it does not exist yet. properties: those of the root namespace.
    """

    def __init__(self, version: int, entries: Iterable[ManifestEntry], properties: Mapping[str, str]) -> None:
        self.version = version
        self.properties = properties
        self.entries: Mapping[str, ManifestEntry] = {entry.object_id: entry for entry in entries}
        self._ids = sorted(self.entries)
        self._owners = {entry.location: entry for entry in self.entries.values() if entry.location}
        self._locations = sorted(self._owners)

    def find(self, object_id: str) -> ManifestEntry | None:
        """The entry of an object id, or None."""
        return self.entries.get(object_id)

    def children(
        self, parent: ObjectId, object_type: str, after: str | None = None, limit: int | None = None
    ) -> tuple[list[str], str | None]:
        """Names of one type directly below a namespace, in order, behind ``after``; and the last one if more follow."""
        prefix = parent.key + MANIFEST_DELIMITER if parent.names else ""
        names: list[str] = []
        at = bisect_left(self._ids, prefix)
        while at < len(self._ids) and self._ids[at].startswith(prefix):
            name = self._ids[at][len(prefix) :]
            if MANIFEST_DELIMITER not in name and self.entries[self._ids[at]].object_type == object_type:
                names.append(name)
            at += 1
        names.sort()
        start = bisect_right(names, after) if after is not None else 0
        page = names[start:] if limit is None else names[start : start + limit]
        return page, page[-1] if page and start + len(page) < len(names) else None

    def descendants(self, parent: ObjectId) -> list[ManifestEntry]:
        """Every entry below a namespace, at any depth, in the order of their ids."""
        prefix = parent.key + MANIFEST_DELIMITER if parent.names else ""
        start = bisect_left(self._ids, prefix)
        found: list[ManifestEntry] = []
        for object_id in self._ids[start:]:
            if not object_id.startswith(prefix):
                break
            found.append(self.entries[object_id])
        return found

    def owner_of(self, location: str) -> ManifestEntry | None:
        """The table whose directory is ``location``, lies above it, or lies below it."""
        ancestor = location
        while ancestor:
            if ancestor in self._owners:
                return self._owners[ancestor]
            ancestor = ancestor.rpartition("/")[0]
        at = bisect_left(self._locations, location + "/")
        if at < len(self._locations) and self._locations[at].startswith(location + "/"):
            return self._owners[self._locations[at]]
        return None

    def after(self, changes: Sequence[Change]) -> dict[str, ManifestEntry]:
        """The entries as they are once ``changes`` are made, in the order they had, new ones last."""
        entries = dict(self.entries)
        for change in changes:
            if isinstance(change, Put):
                entries[change.entry.object_id] = change.entry
            else:
                entries.pop(change.object_id, None)
        return entries


def require_namespace(view: CatalogView, object_id: ObjectId) -> None:
    """Raises `NamespaceNotFound` unless the namespace exists; the root always does."""
    entry = view.find(object_id.key)
    if not object_id.is_root and (entry is None or entry.object_type != NAMESPACE):
        raise NamespaceNotFound(f"there is no namespace {object_id}; create it first")


def require_free(view: CatalogView, object_id: ObjectId, wanted: str) -> None:
    """Raises `TableAlreadyExists` or `NamespaceAlreadyExists` where the name is taken, by an object of any type."""
    entry = view.find(object_id.key)
    if object_id.is_root or entry is not None:
        kind = NAMESPACE if entry is None else entry.object_type
        error = TableAlreadyExists if wanted == TABLE else NamespaceAlreadyExists
        raise error(f"the name {object_id} is taken: a {kind} has it")
