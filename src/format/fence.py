"""Versions that end the history of a table at one place (ADR 71).

A fence has the files of the version before it, and a writer flag that no writer knows. Readers read it as any version.
Every writer refuses to commit after it, whatever handle it holds and whatever commit store decides. Engines before 13
ignore the flag when they rebase. A fence therefore has no transaction that these engines find, so they cannot rebase on
a fence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lancekeep.domain.features import FENCE
from lancekeep.format.judge import Approved, approve_file
from lancekeep.format.manifest import (
    TRANSACTION_SECTIONS,
    ManifestFile,
    make_successor,
    section_at,
)
from lancekeep.format.messages import Transaction

MOVED_TO = "lancekeep.moved_to"
"""The property of a fence's transaction that names the next location of the table."""


def is_fence(content: bytes, name: str) -> bool:
    """Return whether a manifest is a fence.

    Raises:
        Damaged: the content is not a manifest.
    """
    return bool(ManifestFile.parse(content, name).manifest.writer_feature_flags & FENCE)


def fence(content: bytes, name: str, uuid: str, now: int, location: str) -> Approved:
    """Return a fence that follows a version.

    Args:
        content: the manifest file of the latest version.
        name: the table, for messages.
        uuid: the id of the transaction.
        now: the time in nanoseconds since 1970.
        location: the next location of the table.

    Raises:
        CommitRefused: the judge has found problems.
        Damaged: the content is not a manifest.
    """
    file = ManifestFile.parse(content, name)
    file.manifest.writer_feature_flags |= FENCE
    transaction = _following(file, uuid, now, location)
    file.manifest.ClearField("transaction_file")
    return approve_file(name, file.serialize(transaction, TRANSACTION_SECTIONS[:1]), content)


def without_fence(content: bytes, name: str, uuid: str, now: int, location: str) -> Approved:
    """Return the version that follows a fence and permits writes again.

    Takes the arguments of `fence`, and raises its errors.
    """
    file = ManifestFile.parse(content, name)
    file.manifest.writer_feature_flags &= ~FENCE
    return approve_file(name, file.serialize(_following(file, uuid, now, location)), content)


def unchanged(content: bytes, name: str, uuid: str, now: int) -> Approved:
    """Return the version that follows a version and holds the same.

    Takes the arguments of `fence`, and raises its errors.
    """
    file = ManifestFile.parse(content, name)
    return approve_file(name, file.serialize(_following(file, uuid, now)), content)


def emptied(content: bytes, name: str) -> bytes:
    """Return a fence without files, which readers refuse too.

    Garbage collection counts the files of every manifest as needed, and the table may have removed files of this
    version.

    Raises:
        Damaged: the content is not a manifest.
    """
    file = ManifestFile.parse(content, name)
    file.manifest.ClearField("fragments")
    file.manifest.ClearField("base_paths")
    file.manifest.ClearField("transaction_file")
    file.manifest.reader_feature_flags |= FENCE
    return ManifestFile(file.manifest, None, file.dictionaries).serialize_with(None)


def at_other_place(content: bytes, name: str, moved: Callable[[str], str], *, lift: bool = True) -> bytes:
    """Return the manifest of the same version of a table that was copied.

    Args:
        content: the manifest file.
        name: the file, for messages.
        moved: returns the new spelling of a base path.
        lift: whether the fence of the old place does not hold at the new one.

    Raises:
        Damaged: the content is not a manifest.
    """
    file = ManifestFile.parse(content, name)
    manifest = file.manifest
    paths = [moved(base.path) for base in manifest.base_paths]
    fenced = lift and manifest.writer_feature_flags & FENCE
    if not fenced and all(base.path == path for base, path in zip(manifest.base_paths, paths, strict=True)):
        return content
    for base, path in zip(manifest.base_paths, paths, strict=True):
        base.path = path
    if fenced:
        manifest.writer_feature_flags &= ~FENCE
    stated = [field for field in TRANSACTION_SECTIONS if manifest.HasField(field)]
    return file.serialize_with(section_at(content, getattr(manifest, stated[0])) if stated else None)


def _following(file: ManifestFile, uuid: str, now: int, location: str | None = None) -> Any:
    """Turn a manifest into the manifest of the next version, and return its transaction."""
    manifest: Any = file.manifest
    transaction = Transaction(read_version=manifest.version, uuid=uuid)
    transaction.update_config.SetInParent()
    if location is not None:
        transaction.transaction_properties.add(key=MOVED_TO, value=location)
    make_successor(manifest, manifest.version + 1, now, f"{transaction.read_version}-{uuid}.txn")
    return transaction
