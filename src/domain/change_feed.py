"""The changes of a catalog's entries, in order, from its versions (ADR 126)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import attrs

from lancekeep.domain.errors import Damaged, InvalidInput
from lancekeep.domain.identifiers import DROPPED, MANIFEST_DELIMITER, ObjectId
from lancekeep.domain.manifest_entry import MOVING_TO, ManifestEntry

CREATED = "created"
ALTERED = "altered"
RENAMED = "renamed"
DROPPED_KIND = "dropped"

_CURSOR = re.compile(r"(0|[1-9][0-9]{0,18})\.([0-9a-f]{0,64})(?:\.(.*))?", re.DOTALL)


@attrs.frozen
class ChangeCursor:
    """A position in the changes of a catalog.

    Attributes:
        version: The version of the catalog; 0 before its first change.
        token: The token of the change that made the version. A catalog that was restored from a backup has other ones.
        key: The object id of the last change that was read in the version; None after the whole version.
    """

    version: int
    token: str
    key: str | None = None

    @staticmethod
    def parse(text: str) -> ChangeCursor:
        """Parse the text of a cursor.

        Raises:
            InvalidInput: The text is no cursor.
        """
        found = _CURSOR.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise InvalidInput(
                f"the cursor is {text!r:.80}; expected the cursor of a change or of a page, or the result of latest()"
            )
        return ChangeCursor(int(found[1]), found[2], found[3])

    def __str__(self) -> str:
        return f"{self.version}.{self.token}" + ("" if self.key is None else f".{self.key}")


@attrs.frozen
class CatalogChange:
    """One change of a namespace, a table or another entry of a catalog.

    Attributes:
        id: The id of the change. No other change has it, so a consumer that reads a change twice recognizes it.
        cursor: Where to continue after this change.
        kind: ``created``, ``altered``, ``renamed`` or ``dropped``. A restored table (`Catalog.undrop`) is created.
        object_type: ``namespace``, ``table``, or a type of an extension.
        object_id: The object; the root for a change of the catalog's properties.
        former: The id of the object before it was renamed.
        version: The version of the catalog that the change is part of. The changes of one transaction share it.
        at: The time of the change in microseconds since 1970 in UTC, by the clock of the server.
    """

    id: str
    cursor: str
    kind: str
    object_type: str
    object_id: ObjectId
    former: ObjectId | None
    version: int
    at: int
    _entry: ManifestEntry = attrs.field(repr=False)

    @property
    def location(self) -> str | None:
        """The directory of the table, relative to the root; None for a namespace."""
        return self._entry.location

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties after the change; of a dropped object, before it.

        Raises:
            Damaged: The stored properties cannot be read.
        """
        return self._entry.properties


@attrs.frozen
class ChangePage:
    """Some changes of a catalog, in order.

    Attributes:
        changes: The changes; none if there are no further ones.
        cursor: Where to continue.
    """

    changes: Sequence[CatalogChange]
    cursor: str


@attrs.frozen
class CatalogVersion:
    """One version of a catalog, as the difference from the version before it.

    Attributes:
        version: The number.
        token: The token of the change, which no other change has.
        at: The time of the change in microseconds since 1970, in UTC.
        before: The entries that the change ended, by object id.
        after: The entries that the change began, by object id. The root has the id ``""``.
    """

    version: int
    token: str
    at: int
    before: Mapping[str, ManifestEntry]
    after: Mapping[str, ManifestEntry]

    def changes(self, after: str | None = None) -> list[CatalogChange]:
        """Return the changes in the order of their object ids.

        An entry of another id at the same location is the same table under another name. Records of dropped tables are
        not shown.

        Args:
            after: Only changes of later object ids.
        """
        left = {
            entry.location: key
            for key, entry in self.before.items()
            if entry.location is not None and key not in self.after and not _is_hidden(key)
        }
        shown: dict[str, tuple[str, ManifestEntry, str | None]] = {}
        for key, entry in self.after.items():
            if _is_hidden(key) or _only_announces_a_move(self.before.get(key), entry):
                continue
            former = None if key in self.before or entry.location is None else left.pop(entry.location, None)
            kind = ALTERED if key in self.before or not key else CREATED if former is None else RENAMED
            shown[key] = kind, entry, former
        renamed = {former for _, _, former in shown.values()}
        for key, entry in self.before.items():
            if not (key in self.after or key in renamed or _is_hidden(key)):
                shown[key] = DROPPED_KIND, entry, None
        keys = sorted(shown)
        return [self._change(key, *shown[key], is_last=key == keys[-1]) for key in keys if after is None or key > after]

    def _change(self, key: str, kind: str, entry: ManifestEntry, former: str | None, *, is_last: bool) -> CatalogChange:
        return CatalogChange(
            f"{self.token}-{key}",
            str(ChangeCursor(self.version, self.token, None if is_last else key)),
            kind,
            entry.object_type,
            ObjectId.from_key(key),
            None if former is None else ObjectId.from_key(former),
            self.version,
            self.at,
            entry,
        )

    @property
    def cursor(self) -> ChangeCursor:
        """The position after the version."""
        return ChangeCursor(self.version, self.token)


def _is_hidden(key: str) -> bool:
    return key.partition(MANIFEST_DELIMITER)[0] == DROPPED


def _only_announces_a_move(before: ManifestEntry | None, after: ManifestEntry) -> bool:
    """Return whether a change only adds or removes the record of a rename that moves files."""
    if before is None or not any(MOVING_TO in (each.metadata or "") for each in (before, after)):
        return False
    try:
        bare = [each.with_properties({MOVING_TO: None}) for each in (before, after)]
    except Damaged:  # software of others wrote the entry
        return False
    return bare[0] == bare[1] and before.extension == after.extension
