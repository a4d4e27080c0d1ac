"""The identity of a catalog.

A random id, and the root at which the catalog is used. It is a property of the root namespace. Directories outside of
the root that belong to the catalog carry it too. The id alone does not identify a catalog, because a copy of the
directory has the same id.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import attrs

from lancekeep.domain.errors import Damaged, Refused
from lancekeep.domain.manifest_entry import OWN_PROPERTIES

IDENTITY_PROPERTY = f"{OWN_PROPERTIES}identity"
"""The property of the root namespace that holds the identity."""


@attrs.frozen
class Identity:
    """The identity of a catalog.

    Attributes:
        id: the random id; empty in the markers of releases without identities.
        root: the URI of the root.
    """

    id: str
    root: str

    def text(self) -> str:
        """Return the identity as a property or a marker stores it."""
        return json.dumps({"id": self.id, "root": self.root})

    @staticmethod
    def of_marker(text: str) -> Identity:
        """Return the identity in a marker; an unknown text has an empty identity."""
        if not text.startswith("{"):
            return Identity("", text)
        return _parsed(text) or Identity("", "")

    def require_at(self, root: str) -> None:
        """Check that the catalog is used at the root that its identity names.

        Raises:
            Refused: the catalog was copied or moved.
        """
        if self.root != root:
            raise Refused(
                f"the catalog at {root} was copied or moved from {self.root}, so files outside of its root may belong "
                "to the catalog there. If it was moved, call adopt_identity(original=True) or `lancekeep "
                "adopt-identity --original`; if it is a copy, call adopt_identity() or `lancekeep adopt-identity`"
            )


def identity_in(properties: Mapping[str, str]) -> Identity | None:
    """Return the identity in the properties of a catalog; None without one.

    Raises:
        Damaged: the property is not an identity.
    """
    text = properties.get(IDENTITY_PROPERTY)
    identity = None if text is None else _parsed(text)
    if text is not None and (identity is None or not identity.id):
        raise Damaged(
            f"the property {IDENTITY_PROPERTY!r} of the catalog is {text[:100]!r}; expected a JSON object with an id "
            "and a root. Give the catalog a new identity with adopt_identity()"
        )
    return identity


def _parsed(text: str) -> Identity | None:
    try:
        match json.loads(text):
            case {"id": str(number), "root": str(root)}:
                return Identity(number, root)
    except (ValueError, RecursionError):
        pass
    return None
