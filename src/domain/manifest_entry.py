"""Rows of the manifest table (directory namespace V2, "Manifest Table Schema")."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs

from lancekeep.domain.errors import Damaged, InvalidInput
from lancekeep.domain.identifiers import MANIFEST_DELIMITER, ObjectId

NAMESPACE = "namespace"
TABLE = "table"

OWN_PROPERTIES = "lancekeep."
"""The prefix of the catalog's own properties. A V1 directory has no other properties of the root namespace."""
SQL_VIEW = f"{OWN_PROPERTIES}sql_view."
"""The prefix of the properties of a namespace that define its views of SQL."""
CLUSTER_BY = f"{OWN_PROPERTIES}cluster_by"
"""The property of a table with the columns by which compaction sorts, separated by commas."""
FORMER_VIEW_PROPERTY = "materialized_view"
"""The property that defined a view before such properties had the catalog's prefix. Only the catalog sets it."""
RESERVED = f"{OWN_PROPERTIES}reserved"
"""A hidden property of an entry that a migration made of a reservation in a V1 directory. The writer of the reservation
removes it when it declares the table."""
MOVING_TO = f"{OWN_PROPERTIES}moving_to"
"""A hidden property of the entry of a table whose files a rename is moving (ADR 189): the new directory."""


@attrs.frozen
class ManifestEntry:
    """One object of the catalog.

    Attributes:
        object_id: the names joined by ``$``.
        object_type: ``namespace``, ``table``, or a type of an extension.
        location: the table's directory, relative to the root; None for a namespace.
        metadata: the properties as JSON.
        extension: the values of ``base_objects`` and of columns outside the specification, unchanged.
        listed: the table is a V1 directory without a row in the manifest table (compatibility mode, rules 1 and 2).
    """

    object_id: str
    object_type: str
    location: str | None = None
    metadata: str | None = None
    extension: Mapping[str, Any] = attrs.field(factory=dict, eq=False)
    listed: bool = False

    @staticmethod
    def namespace(object_id: ObjectId, properties: Mapping[str, str]) -> ManifestEntry:
        return ManifestEntry(object_id.key, NAMESPACE, None, encode_properties(properties))

    @staticmethod
    def table(object_id: ObjectId, location: str, properties: Mapping[str, str]) -> ManifestEntry:
        return ManifestEntry(object_id.key, TABLE, location, encode_properties(properties))

    @property
    def defect(self) -> str | None:
        """The defect of the entry, as a message for people; None if it is sound."""
        if "" in self.object_id.split(MANIFEST_DELIMITER) or not self.object_type:
            return (
                f"a row with the object id {self.object_id[:80]!r} and the type {self.object_type[:80]!r}; expected "
                "names joined by '$' and a type, none of them empty. Remove it with pylance"
            )
        try:
            self.properties  # noqa: B018 - the property raises
        except Damaged as error:
            return str(error)
        return None

    @property
    def properties(self) -> dict[str, str]:
        """The properties of the namespace or table.

        Raises:
            Damaged: the metadata is not a JSON object of text values.
        """
        if not self.metadata:
            return {}
        try:
            properties = json.loads(self.metadata)
        except (ValueError, RecursionError):
            properties = None
        if not isinstance(properties, dict) or not all(isinstance(value, str) for value in properties.values()):
            raise Damaged(
                f"the catalog's entry of {ObjectId.from_key(self.object_id)} has the metadata {self.metadata[:80]!r}; "
                "expected a JSON object of text values. Correct it with the software that wrote it, or create it again."
            )
        return properties

    def with_properties(self, changes: Mapping[str, str | None]) -> ManifestEntry:
        """Return the entry with some properties set; None removes a property."""
        merged = {**self.properties, **changes}
        kept = {name: value for name, value in merged.items() if value is not None}
        return attrs.evolve(self, metadata=encode_properties(kept), listed=False)


def encode_properties(properties: Mapping[str, str]) -> str | None:
    """Return properties as native clients store them: compact JSON, or null if empty.

    Raises:
        InvalidInput: a name or a value is not Unicode text.
    """
    require_unicode(properties)
    return json.dumps(dict(properties), separators=(",", ":"), ensure_ascii=False) if properties else None


def require_unicode(properties: Mapping[str, str | None]) -> None:
    """Check that the names and values of properties can be stored as UTF-8.

    Raises:
        InvalidInput: one has a lone surrogate.
    """
    for name, value in properties.items():
        for what, text in (("name", name), ("value", value)):
            try:
                if value is not None:  # what is stored can be removed
                    str(text).encode()
            except UnicodeEncodeError as error:
                raise InvalidInput(
                    f"the {what} of the property {name!r:.80} contains {str(text)[error.start]!r}, half of a "
                    "surrogate pair, which no encoding of Unicode can store; pass the whole character"
                ) from error
