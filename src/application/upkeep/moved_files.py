"""What the files of a table are for a move to another directory (ADR 71)."""

from __future__ import annotations

from datetime import timedelta

from lancekeep.domain.dataset_files import REFERENCES, Place
from lancekeep.domain.layout import HINT, VERSIONS
from lancekeep.domain.naming import ManifestName, is_detached_name
from lancekeep.domain.table import (
    CLONES_DIRECTORY,
    DEREGISTERED_MARKER,
    MOVED_MARKER,
    MOVING_MARKER,
    RESERVED_MARKER,
)
from lancekeep.ports.object_store import ObjectInfo

_IN_FLIGHT = timedelta(minutes=15)
"""The least age at which a version is removed from the old place if the storage decides about versions.

A commit that has found no fence creates its manifest next. If other versions were committed since, and the table has
moved, its name must not be free again. The manifest stays unchanged: its own writer may still compare it.
"""

_LEFT_BEHIND = {RESERVED_MARKER, DEREGISTERED_MARKER, MOVING_MARKER, MOVED_MARKER}
"""Markers, which describe the directory itself."""


def is_version(path: str) -> bool:
    """Return whether a file is the final manifest of a version of a table or branch."""
    name = _manifest_name(path)
    return name is not None and not name.is_staged


def _manifest_name(path: str) -> ManifestName | None:
    """Return the name of a final or staged manifest of a table or branch; None for any other file."""
    place = Place.of(path)
    return None if place is None or place.directory != VERSIONS else ManifestName.parse(place.rest)


def is_detached(path: str) -> bool:
    """Return whether a file is the manifest of a detached version."""
    place = Place.of(path)
    return place is not None and place.directory == VERSIONS and is_detached_name(place.rest)


def is_copied(path: str) -> bool:
    """Return whether a file of a table is copied unchanged."""
    if path in _LEFT_BEHIND or path.startswith((f"{CLONES_DIRECTORY}/", f"{REFERENCES}/")):
        return False
    return not path.endswith(f"{VERSIONS}/{HINT}") and _manifest_name(path) is None and not is_detached(path)


def may_be_awaited(info: ObjectInfo, fence: ObjectInfo) -> bool:
    """Return whether a commit in flight may still want the name of a version."""
    if info.modified is None or fence.modified is None:
        return True
    return fence.modified - info.modified < _IN_FLIGHT
