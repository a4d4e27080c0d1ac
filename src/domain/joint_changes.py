"""Decisions of several callers that one change of the catalog carries out.

The change has the effect of the decisions one after the other: each decides as if those before it had been carried out.
A decision whose questions they affect is left out, so no view with their changes is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from lancekeep.domain.catalog import (
    AddColumns,
    CatalogView,
    Change,
    ManifestStoreGuarantees,
    Put,
    Remove,
    SetProperties,
    ancestors,
)
from lancekeep.domain.errors import LancekeepError, StoreUnavailable
from lancekeep.domain.identifiers import MANIFEST_DELIMITER, ObjectId
from lancekeep.domain.manifest_entry import ManifestEntry

MOST_CHANGES = 256
"""The most changes that decisions of several callers make together, so that a large one delays no other."""

Decide = Callable[[CatalogView], tuple[Sequence[Change], Any]]


class _Affected(Exception):
    """The changes of earlier decisions may alter the answer to a question."""


@attrs.define
class Touched:
    """What changes put into entries, and which answers of a view they may alter.

    Attributes:
        entries: The new entries, by object id; None for a removed one.
        locations: The directories of the new entries.
        above: These directories, and all that contain them.
    """

    entries: dict[str, ManifestEntry | None] = attrs.field(factory=dict)
    locations: set[str] = attrs.field(factory=set)
    above: set[str] = attrs.field(factory=set)

    def add(self, changes: Sequence[Change]) -> None:
        for change in changes:
            match change:
                case Put(entry):
                    self.entries[entry.object_id] = entry
                    if entry.location is not None:
                        self.locations.add(entry.location)
                        self.above.update(ancestors(entry.location))
                case Remove(object_id):
                    self.entries[object_id] = None

    def owner(self, location: str, owner: ManifestEntry | None) -> bool:
        """Return whether the answer of `CatalogView.owner_of` may be altered."""
        if owner is not None and owner.object_id in self.entries:
            return True
        return location in self.above or ("/" in location and not self.locations.isdisjoint(ancestors(location)))

    def below(self, parent: ObjectId) -> bool:
        """Return whether an entry below a namespace, at any depth, is touched."""
        begin = parent.key + MANIFEST_DELIMITER
        return any(parent.is_root or object_id.startswith(begin) for object_id in self.entries)


@attrs.frozen
class Decided:
    """The result of a decision that the joint change carries out."""

    result: Any


def decide_jointly(view: CatalogView, decisions: Sequence[Decide]) -> tuple[list[Change], list[Decided | None]]:
    """Take decisions one after the other, about one view.

    Returns:
        All changes, and for each decision its result; None if it has to be taken alone: it was refused, makes many
        changes, or depends on the changes of the decisions before it.

    Raises:
        StoreUnavailable: The view cannot be read.
    """
    joint = _JointView(view)
    decided: list[Decided | None] = []
    for decide in decisions:
        try:
            changes, result = decide(joint)
            joint.add(changes)
        except StoreUnavailable:
            raise
        except (_Affected, LancekeepError):
            decided.append(None)
        else:
            decided.append(Decided(result))
    return joint.changes, decided


class _JointView:
    """A view that answers only what the changes added so far do not affect."""

    def __init__(self, view: CatalogView) -> None:
        self._view = view
        self.changes: list[Change] = []
        self._touched = Touched()
        self._has_properties = self._has_columns = False

    def add(self, changes: Sequence[Change]) -> None:
        """Add the changes of a decision.

        Raises:
            _Affected: They are too many, or an earlier decision changes the same entry.
        """
        if len(self.changes) + len(changes) > MOST_CHANGES or any(map(self._is_touched, changes)):
            raise _Affected
        self._has_properties |= any(isinstance(change, SetProperties) for change in changes)
        self._has_columns |= any(isinstance(change, AddColumns) for change in changes)
        self._touched.add(changes)
        self.changes += changes

    @property
    def version(self) -> int:
        return self._view.version

    @property
    def guarantees(self) -> ManifestStoreGuarantees:
        return self._view.guarantees

    @property
    def unnamed(self) -> int:
        return self._view.unnamed

    @property
    def properties(self) -> Mapping[str, str]:
        self._require(not self._has_properties)
        return self._view.properties

    @property
    def entered(self) -> Mapping[str, str]:
        self._require(not self._has_properties)
        return self._view.entered

    @property
    def columns(self) -> Mapping[str, str]:
        self._require(not self._has_columns)
        return self._view.columns

    def find(self, object_id: str) -> ManifestEntry | None:
        self._require(object_id not in self._touched.entries)
        return self._view.find(object_id)

    def children(
        self, parent: ObjectId, object_type: str, after: str | None = None, limit: int | None = None
    ) -> tuple[list[str], str | None]:
        self._require(not self._touched.below(parent))
        return self._view.children(parent, object_type, after, limit)

    def descendants(self, parent: ObjectId) -> Iterator[ManifestEntry]:
        self._require(not self._touched.below(parent))
        return self._view.descendants(parent)

    def all_of(self, object_type: str, after: str | None = None) -> Iterator[ManifestEntry]:
        self._require(not self._touched.entries)
        return self._view.all_of(object_type, after)

    def owner_of(self, location: str) -> ManifestEntry | None:
        owner = self._view.owner_of(location)
        self._require(not self._touched.owner(location, owner))
        return owner

    def _is_touched(self, change: Change) -> bool:
        match change:
            case Put(entry):
                return entry.object_id in self._touched.entries
            case Remove(object_id):
                return object_id in self._touched.entries
        return False

    def _require(self, unaffected: bool) -> None:
        if not unaffected:
            raise _Affected
