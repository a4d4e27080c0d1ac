"""Rows of the manifest table (directory namespace V2, "Manifest Table Schema")."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs

from lancekeep.domain.errors import Damaged
from lancekeep.domain.identifiers import MANIFEST_DELIMITER, ObjectId

NAMESPACE = "namespace"
TABLE = "table"

OWN_PROPERTIES = "lancekeep."
"""What the names of the catalog's own properties begin with; of the root namespace, a V1 directory has no others."""
RESERVED = f"{OWN_PROPERTIES}reserved"
"""In the entry of a table that was found as a mere reservation in its V1 directory, until the table is declared by
whoever has put that there; not shown."""


@attrs.frozen
class ManifestEntry:
    """One object of the catalog.

    object_id: the names joined by ``$``. object_type: ``namespace``, ``table``, or a type of an extension.
    location: the table's directory, relative to the root; None for a namespace. metadata: the properties as JSON.
    extension: the values of ``base_objects`` and of columns that the specification does not know, kept as they are.
    listed: found as a V1 directory, not entered in the manifest table (compatibility mode, rules 1 and 2).
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
        """What is wrong with the entry itself, for people; None if nothing is."""
        if "" in self.object_id.split(MANIFEST_DELIMITER) or not self.object_type:
            return (
                f"a row with the object id {self.object_id[:80]!r} and the type {self.object_type[:80]!r}; expected "
                "names joined by '$' and a type, none of them empty. Remove it with pylance"
            )
        try:
            self.properties  # noqa: B018 - it raises
        except Damaged as error:
            return str(error)
        return None

    @property
    def properties(self) -> dict[str, str]:
        """The properties of the namespace or table. Raises `Damaged` where the metadata are no JSON object of text."""
        if not self.metadata:
            return {}
        try:
            properties = json.loads(self.metadata)
        except (ValueError, RecursionError):
            properties = None
        if not isinstance(properties, dict) or not all(isinstance(value, str) for value in properties.values()):
            raise Damaged(
                f"the catalog's entry of {ObjectId.from_key(self.object_id)} has the metadata {self.metadata[:80]!r}; "
                "expected a JSON object of text values. Correct it with the software that wrote it, or make it anew."
            )
        return properties

    def with_properties(self, changes: Mapping[str, str | None]) -> ManifestEntry:
        """The entry with some properties set, and those given as None removed."""
        merged = {**self.properties, **changes}
        kept = {name: value for name, value in merged.items() if value is not None}
        return attrs.evolve(self, metadata=encode_properties(kept), listed=False)


def encode_properties(properties: Mapping[str, str]) -> str | None:
    """Properties as the native engine stores them: compact JSON, and null where there are none."""
    return json.dumps(dict(properties), separators=(",", ":"), ensure_ascii=False) if properties else None
