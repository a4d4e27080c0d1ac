"""What a backup copies, and in which order.

A version names files, and some records name versions. Whatever refers to something else is therefore listed before the
thing that it refers to is copied:

1. records that name versions, such as tags, positions of subscribers, and the entries of the catalog;
2. manifests, which are listed now and copied last;
3. files that manifests name, and records that a writer makes before its commit;
4. the manifests that were listed, and then the manifests of the entries.

A file that a listed manifest names existed before the manifest, so it is copied, unless a clean-up has removed it.
Clean-up removes manifests before their files, so such a manifest is gone before step 4 copies it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from enum import Enum, auto
from hashlib import blake2b
from urllib.parse import quote

import attrs

from lancekeep.domain.dataset_files import DATA, DELETIONS, DIRECTORIES, INDICES, REFERENCES, TRANSACTIONS, Place
from lancekeep.domain.errors import Damaged
from lancekeep.domain.layout import BRANCHES, HINT, VERSIONS
from lancekeep.domain.mem_wal import MEM_WAL_DIRECTORY
from lancekeep.domain.naming import ManifestName
from lancekeep.domain.table import (
    DEREGISTERED_MARKER,
    EVENTS_DIRECTORY,
    INGESTED_DIRECTORY,
    MAINTENANCE_DIRECTORY,
    MANIFEST_DIRECTORY,
    MOVED_MARKER,
    MOVING_MARKER,
    REQUESTS_DIRECTORY,
    RESERVED_MARKER,
    WAITING_DIRECTORY,
)

RECORD = ".lancekeep-backup.json"
"""A file in the target, which says of what it is a backup."""

FILES = ".lancekeep-backup-files.json"
"""A file in the target with the size of each file of the complete backup."""

CLAIM = "backup"
"""The name of the lease in the target of the process that writes to it."""

SUBSCRIBERS = f"{EVENTS_DIRECTORY}/subscribers/"
"""The positions of subscribers of events.

The log is not copied: a restored log would give the numbers of events that followed the backup to other events, and a
reader with a later cursor would miss these. Without the log, a new one begins, and every cursor expires.
"""

_FORMAT = 1
_NAMED = frozenset((DATA, DELETIONS, INDICES, TRANSACTIONS))
_MARKERS = frozenset((RESERVED_MARKER, DEREGISTERED_MARKER, MOVING_MARKER, MOVED_MARKER))
_OF_BACKUP = (RECORD, FILES, f"{MAINTENANCE_DIRECTORY}/{CLAIM}/")
_OF_PROCESSES = (f"{MAINTENANCE_DIRECTORY}/", f"{WAITING_DIRECTORY}/")
_MANIFEST_TABLE_DATA = re.compile(r"[0-9a-f]{32}\.lance")
_INGESTED = re.compile(r"(?P<version>[0-9]{20})\.[0-9a-f]{32}(?P<merged>(?:-and-before)*)\.[ab]-[a-z]+\.arrow")


class Part(Enum):
    """The part of a backup to which a file belongs.

    RECORD_OF_VERSIONS: it may name versions. ENTRIES: a manifest of the manifest table. MANIFEST: another manifest.
    NAMED: a file that never changes, which manifests name. BEFORE_COMMIT: a record that its writer makes before the
    commit, so it counts only if the version exists. NONE: it is not copied.
    """

    RECORD_OF_VERSIONS = auto()
    ENTRIES = auto()
    MANIFEST = auto()
    NAMED = auto()
    BEFORE_COMMIT = auto()
    NONE = auto()


@attrs.frozen
class BackedUpFile:
    """A file of a catalog.

    Attributes:
        path: its path below the root.
        part: the part of the backup to which it belongs.
        root: the directory of its dataset, if it is a manifest, or named by manifests.
    """

    path: str
    part: Part
    root: str = ""

    @staticmethod
    def of(path: str) -> BackedUpFile:
        """Return the file at a path below the root."""
        if path in (RECORD, FILES) or path.startswith((*_OF_PROCESSES, f"{EVENTS_DIRECTORY}/")):
            return BackedUpFile(path, Part.NONE)  # subscribers are listed apart
        if path.startswith(f"{MANIFEST_DIRECTORY}/{REQUESTS_DIRECTORY}/"):
            return BackedUpFile(path, Part.BEFORE_COMMIT)
        parts = path.split("/")
        if MEM_WAL_DIRECTORY in parts:  # a later version contains these rows
            return BackedUpFile(path, Part.RECORD_OF_VERSIONS)
        if parts[-2:-1] == [INGESTED_DIRECTORY] and _INGESTED.fullmatch(parts[-1]):
            return BackedUpFile(path, Part.BEFORE_COMMIT, "/".join(parts[:-2]))
        at = next((at for at in range(len(parts) - 2, 0, -1) if parts[at] in DIRECTORIES), 0)
        root, directory, rest = "/".join(parts[:at]), parts[at], "/".join(parts[at + 1 :])
        if not at or directory == REFERENCES:
            return BackedUpFile(path, Part.RECORD_OF_VERSIONS)
        place = Place("", directory, rest)
        if place.is_unfinished or (directory == VERSIONS and rest == HINT):  # the next commit writes the hint again
            return BackedUpFile(path, Part.NONE)
        if directory == VERSIONS:
            return BackedUpFile(path, Part.ENTRIES if root == MANIFEST_DIRECTORY else Part.MANIFEST, root)
        is_own = place.is_generated or (directory == DATA and _MANIFEST_TABLE_DATA.fullmatch(rest) is not None)
        if directory in _NAMED and is_own:
            return BackedUpFile(path, Part.NAMED, root)
        return BackedUpFile(path, Part.RECORD_OF_VERSIONS, root if directory in _NAMED else "")

    @property
    def is_named(self) -> bool:
        """Whether manifests may name the file.

        A writer may give its files names of its own, which it may use twice: so such a file is a record, too.
        """
        return self.part is Part.NAMED or (self.part is Part.RECORD_OF_VERSIONS and bool(self.root))

    @property
    def is_content(self) -> bool:
        """Whether manifests may name the file if it is in the directory of a base path."""
        return self.part is Part.NAMED or (self.part is Part.RECORD_OF_VERSIONS and not self.is_mark)

    @property
    def is_mark(self) -> bool:
        """Whether the file is a tag, a branch or a marker of a directory.

        Nothing replaces it when it is removed.
        """
        return self.path.rpartition("/")[2] in _MARKERS or f"/{REFERENCES}/" in self.path

    @property
    def branch_file(self) -> str | None:
        """The path of the file that names the branch of a manifest; None on main."""
        table, tree, name = self.root.partition(f"/{BRANCHES}/")
        return f"{table}/{REFERENCES}/branches/{quote(name, safe='')}.json" if tree else None

    @property
    def is_staged(self) -> bool:
        """Whether the file is a manifest that is no version yet."""
        name = ManifestName.parse(self.path.rpartition("/")[2].removeprefix("d"))
        return self.part in (Part.ENTRIES, Part.MANIFEST) and name is not None and name.is_staged

    @property
    def version(self) -> int | None:
        """The number of the version that a final manifest is; None for other files."""
        name = ManifestName.parse(self.path.rpartition("/")[2])
        is_final = self.part in (Part.ENTRIES, Part.MANIFEST) and name is not None and not name.is_staged
        return name.version if is_final and name is not None else None

    @property
    def ingested(self) -> tuple[int, bool] | None:
        """The version of a record of ingested files, and whether it merges others.

        None for other files.
        """
        found = _INGESTED.fullmatch(self.path.rpartition("/")[2]) if self.part is Part.BEFORE_COMMIT else None
        return None if found is None else (int(found["version"]), bool(found["merged"]))


def is_of_backup(path: str) -> bool:
    """Return whether a file below a target is about the backup itself."""
    return path.startswith(_OF_BACKUP)


def newest(files: Iterable[BackedUpFile]) -> dict[str, BackedUpFile]:
    """Return the manifest of the latest version of each dataset."""
    found: dict[str, BackedUpFile] = {}
    for file in files:
        version = file.version
        if version is not None and version >= (found[file.root].version or 0 if file.root in found else 0):
            found[file.root] = file
    return found


@attrs.frozen
class BackupRecord:
    """What a target says about itself.

    Attributes:
        source: the root that is backed up.
        target: the place of the backup.
        contents: the digest of `FILES`; empty while the backup is not complete.
    """

    source: str
    target: str
    contents: str = ""

    def encode(self) -> bytes:
        """Return the content of the file."""
        return json.dumps({"format": _FORMAT, **attrs.asdict(self)}, indent=2).encode() + b"\n"

    @staticmethod
    def decode(content: bytes, key: str) -> BackupRecord:
        """Parse the content of the file.

        Raises:
            Damaged: it is not the record of a backup.
        """
        try:
            found = json.loads(content)
            if found.pop("format") == _FORMAT and all(isinstance(value, str) for value in found.values()):
                return BackupRecord(**found)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            pass
        raise Damaged(f"{key} is not the record of a backup of this release, or was changed. Choose another backup")

    def sizes(self, content: bytes) -> Mapping[str, int] | None:
        """Return the sizes of the files of the complete backup.

        None if ``content`` is not the one of its `FILES`.
        """
        try:
            found = json.loads(content) if _digest(content) == self.contents else None
        except (ValueError, RecursionError):
            return None
        is_valid = isinstance(found, dict) and all(type(size) is int for size in found.values())
        return found if is_valid else None


def encoded_sizes(sizes: Mapping[str, int]) -> bytes:
    """Return the content of `FILES`."""
    return json.dumps(sizes, indent=0, sort_keys=True).encode() + b"\n"


def digest_of_contents(sizes: Mapping[str, int]) -> str:
    """Return a digest of the names and sizes of files."""
    return _digest(encoded_sizes(sizes))


def _digest(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()
