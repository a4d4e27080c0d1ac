"""The protection of tables and namespaces against removal and loss.

A protected namespace protects everything below it, and the root everything.
"""

from __future__ import annotations

from collections.abc import Iterable

from lancekeep.domain.catalog import CatalogView, Change, Put, SetProperties
from lancekeep.domain.errors import NamespaceNotFound, Refused
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import OWN_PROPERTIES, ManifestEntry

PROTECTED = f"{OWN_PROPERTIES}protected"
"""The property of a protected table or namespace."""
_VALUE = "true"


def protector(view: CatalogView, object_id: ObjectId) -> ObjectId | None:
    """Return the table or namespace that protects an object, or None."""
    for length in range(len(object_id.names), 0, -1):
        above = ObjectId(object_id.names[:length])
        entry = view.find(above.key)
        if entry is not None and _is_protected(entry):
            return above
    return ObjectId() if PROTECTED in view.entered else None


def require_unprotected(view: CatalogView, object_id: ObjectId, action: str) -> None:
    """Check that nothing protects an object.

    Args:
        view: The catalog.
        object_id: The object.
        action: What the caller wants to do, as a verb.

    Raises:
        Refused: The object, or a namespace above it, is protected.
    """
    by = protector(view, object_id)
    if by is not None:
        own = "it is protected" if by == object_id else f"the namespace {by} protects it"
        raise Refused(
            f"cannot {action} {object_id}: {own}. Nothing was changed. End the protection with "
            f"unprotect({'' if by.is_root else str(by)!r}) first"
        )


def require_none_protected(entries: Iterable[ManifestEntry], action: str) -> None:
    """Raise `Refused` if one of the entries is protected itself."""
    for entry in entries:
        if _is_protected(entry):
            object_id = ObjectId.from_key(entry.object_id)
            raise Refused(
                f"cannot {action}: it contains {object_id}, which is protected. Nothing was changed. End the "
                f"protection with unprotect({str(object_id)!r}) first"
            )


def change_protection(view: CatalogView, object_id: ObjectId, *, protected: bool) -> list[Change]:
    """Protect a table or a namespace, or end its protection. Idempotent.

    Raises:
        NamespaceNotFound: No object has this identifier.
        Unsupported: The catalog is a V1 directory.
    """
    if not view.guarantees.properties:
        raise view.guarantees.refusal("cannot store that an object is protected")
    value = _VALUE if protected else None
    if object_id.is_root:
        return [SetProperties({PROTECTED: value})] if protected is not (PROTECTED in view.entered) else []
    entry = view.find(object_id.key)
    if entry is None:
        raise NamespaceNotFound(f"there is no table and no namespace {object_id} to protect, or to unprotect")
    return [Put(entry.with_properties({PROTECTED: value}))] if protected is not _is_protected(entry) else []


def _is_protected(entry: ManifestEntry) -> bool:
    return PROTECTED in (entry.metadata or "") and PROTECTED in entry.properties
