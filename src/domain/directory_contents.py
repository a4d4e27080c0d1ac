"""Which files of a directory Lance or Lancekeep wrote.

Names and places decide; every other file is foreign. Repair and drop never remove a foreign file. If a directory holds
one, a catalog alone did not make it, and repair keeps the whole directory.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterable

from lancekeep.domain.dataset_files import DATA, DELETIONS, INDICES, REFERENCES, TRANSACTIONS, Place
from lancekeep.domain.layout import BRANCHES, HINT, VERSIONS
from lancekeep.domain.mem_wal import WalFile
from lancekeep.domain.naming import ManifestName
from lancekeep.domain.table import (
    CLONES_DIRECTORY,
    DEREGISTERED_MARKER,
    DIGESTS_DIRECTORY,
    INGESTED_DIRECTORY,
    MOVED_MARKER,
    MOVING_MARKER,
    RESERVED_MARKER,
)

_MARKERS = frozenset((RESERVED_MARKER, DEREGISTERED_MARKER, MOVING_MARKER, MOVED_MARKER))

_DETACHED = "d"
"""Names of detached manifests, which are not versions of the table, start with this character."""

_TEMPORARY = re.compile(r"\.tmp-[0-9a-f]+-[0-9a-f]+")  # Names of unfinished objects in the local object store.
_MANIFEST_TABLE_DATA = re.compile(r"[0-9a-f]{32}\.lance")  # Names of Lancekeep's data files of the manifest table.
_CLONE_RECORD = re.compile(rf"{re.escape(CLONES_DIRECTORY)}/[0-9a-f]{{32}}")
_DIGEST_RECORD = re.compile(rf"(?:{BRANCHES}/.+/)?{re.escape(DIGESTS_DIRECTORY)}/[0-9a-f]{{32}}\.jsonl")
_INGEST_RECORD = re.compile(rf"{INGESTED_DIRECTORY}/[0-9]{{20}}\.[0-9a-f]{{32}}(?:-and-before)*\.[ab]-[a-z]+\.arrow")
_REFERENCE = re.compile(r"(?:tags|branches)/.+\.json")
_NAMED = (DATA, DELETIONS, TRANSACTIONS, INDICES)


def foreign_files(paths: Iterable[str]) -> list[str]:
    """Return the paths that neither Lance nor Lancekeep wrote."""
    return [path for path in paths if not (is_mark(path) or _is_known(path))]


def is_left_by_writes(paths: Collection[str]) -> bool:
    """Return whether writers made a directory a table that nothing declared.

    Then no marker declares, moves or copies a table, and Lance or Lancekeep wrote each file.
    """
    declared = {RESERVED_MARKER, MOVED_MARKER, MOVING_MARKER}.intersection(paths)
    return not declared and not foreign_files(paths) and any(map(is_mark, paths))


def is_own(path: str) -> bool:
    """Return whether the file is a marker, a record or an unfinished object."""
    name = posixpath.basename(path)
    known = ((_TEMPORARY, name), (_CLONE_RECORD, path), (_DIGEST_RECORD, path))
    return name in _MARKERS or any(pattern.fullmatch(text) for pattern, text in known)


def is_mark(path: str) -> bool:
    """Return whether the path proves that Lance or Lancekeep wrote the file."""
    if is_own(path) or _INGEST_RECORD.fullmatch(path):
        return True
    written = WalFile.of(path)
    if written is not None:
        return written.is_named_by_lance or (written.in_generation is not None and is_mark(written.in_generation))
    place = Place.of(path)
    if place is None:
        return False
    if place.directory == VERSIONS:
        parsed = ManifestName.parse(place.rest)
        return place.is_unfinished or (parsed is not None and (not parsed.is_staged or parsed.is_generated))
    if place.directory == DATA and _MANIFEST_TABLE_DATA.fullmatch(place.rest):
        return True
    return place.directory in _NAMED and place.is_generated


def is_versions_file(name: str) -> bool:
    """Return whether a file of ``_versions`` is a hint or a detached manifest."""
    detached = name.removeprefix(_DETACHED)
    return name == HINT or (name != detached and ManifestName.parse(detached) is not None)


def _is_known(path: str) -> bool:
    """Return whether Lance writes files at this path. Other software may do so, too."""
    written = WalFile.of(path)
    if written is not None:
        return written.in_generation is not None and _is_known(written.in_generation)
    place = Place.of(path)
    if place is None:
        return False
    if place.directory == VERSIONS:
        return is_versions_file(place.rest)
    return place.directory == REFERENCES and _REFERENCE.fullmatch(place.rest) is not None
