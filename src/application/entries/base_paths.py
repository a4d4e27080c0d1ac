"""Which base paths of manifests the current caller may read.

A manifest may name directories outside its table by base paths (storage layout, "Base Path System"). The writer of the
manifest chooses them, and the table engine reads them with the credentials of this process. If the callers of a process
do not trust each other, each base path is checked before a commit publishes it, and before the engine reads through it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial

from lancekeep.application.entries.ledger import Ledger
from lancekeep.application.entries.places import Places
from lancekeep.domain.dataset_files import DATA, DELETIONS, INDICES
from lancekeep.domain.dropped import owner_id
from lancekeep.domain.errors import AccessDenied, CommitRefused, ObjectNotFound
from lancekeep.domain.file_references import certain_location
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.table import find_table
from lancekeep.format.file_references import base_paths, file_references
from lancekeep.ports.object_store import ObjectInfo, ObjectStore

MayRead = Callable[[ObjectId | None, ObjectId | None], bool]
"""Returns whether a base path of the first table may lead into the second; None for a place outside every table."""

_may_read: ContextVar[MayRead | None] = ContextVar("may_read", default=None)


@contextmanager
def restricted(may_read: MayRead) -> Iterator[None]:
    """Refuse other base paths in the ``with`` block.

    Outside of such a block, every base path is permitted.
    """
    token = _may_read.set(may_read)
    try:
        yield
    finally:
        _may_read.reset(token)


def within_one_table(table: ObjectId | None, source: ObjectId | None) -> bool:
    """Permit no base path that leaves its table."""
    return table is not None and table == source


class BasePaths:
    """Resolves and checks the base paths of one catalog."""

    def __init__(self, ledger: Ledger, places: Places) -> None:
        self._ledger = ledger
        self._places = places

    def require(self, table: ObjectId | None, paths: Iterable[str]) -> None:
        """Check the base paths of a version of a table.

        Raises: AccessDenied: The caller may not read a base path. The message does not name the base path.
        """
        may_read = _may_read.get()
        if may_read is not None and not all(may_read(table, self._table_at(path)) for path in paths):
            raise AccessDenied(
                f"a version of the table {table} has base paths outside of its directory that you may not read; "
                "nothing was read or committed. Ask an administrator for a role on the tables that it was cloned from"
            )

    def require_staged(self, root: DatasetRoot, content: bytes) -> None:
        """Check the base paths of a staged manifest; see `require`.

        Args:
            root: The dataset or branch.
            content: The staged manifest.
        """
        if _may_read.get() is not None and (paths := base_paths(content, root.base_uri)):
            self.require(self._owner(self._places.location(root)), paths)

    def uri(self, path: str) -> str:
        """Return the URI by which the table engine opens a base path.

        Raises:
            InvalidInput: The base path is neither an absolute path nor the URI of a directory.
        """
        return self._places.outside(path).uri

    def require_files(self, table: ObjectId, paths: Iterable[str], content: bytes) -> None:
        """Check that a version of a table finds its files at the given base paths.

        Args:
            table: The table.
            paths: The base paths to check.
            content: The manifest of the version.

        Raises:
            AccessDenied: The caller may not read a base path. CommitRefused: A file is missing, or has another size.
        """
        paths = frozenset(paths)
        self.require(table, paths)
        wanted: dict[str, dict[str, int | None]] = {path: {} for path in paths}
        for file in file_references(content, str(table)):
            if file.base in wanted:
                wanted[file.base][file.path] = file.size
        for path, files in wanted.items():
            if files and (problem := self._missing(path, files)) is not None:
                raise CommitRefused(
                    f"{table}: the latest version needs {problem} at the new base path {path!r}. Copy the directory of "
                    "the old base path there, completely, then set the base path again; nothing was committed"
                )

    def _missing(self, path: str, files: Mapping[str, int | None]) -> str | None:
        """Describe the first file that a directory lacks; None if no file is missing."""
        place, retry = self._places.outside(path), self._ledger.commits.retry
        above = f"{place.key}/" if place.key else ""
        parts = {
            f"{part}/" for part in (DATA, DELETIONS, INDICES) if any(each.startswith(f"{part}/") for each in files)
        }
        held: dict[str, int] = {}
        for part in parts or {""}:
            for info in retry.call(partial(_listed, place.objects, above + part)):
                found = info.key.removeprefix(above)
                held[found] = info.size
                held[f"{posixpath.dirname(found)}/"] = 0
        for name, size in files.items():
            if name not in held:
                return f"the file {name!r}, which does not exist"
            if size is not None and held[name] != size:
                return f"the file {name!r} with {size:,} bytes, which has {held[name]:,} bytes"
        return None

    def sources(self, table: ObjectId) -> Sequence[str]:
        """Return the other directories that the latest version of a table reads.

        A directory inside a table is returned as the URI of that table. Directories that the caller may not read are
        left out.
        """
        latest = self._ledger.commits.latest(self._places.dataset_root(find_table(self._ledger.view(), table)))
        found: dict[str, None] = {}
        may_read = _may_read.get()
        with suppress(ObjectNotFound):  # garbage collection has removed the version since
            for path in () if latest is None else self._read(latest.path):
                source = self._table_at(path)
                if source != table and (may_read is None or may_read(table, source)):
                    uri = path if source is None else self._places.uri(find_table(self._ledger.view(), source))
                    found[uri] = None
        return list(found)

    def _read(self, key: str) -> Sequence[str]:
        return base_paths(self._ledger.commits.retry.call(partial(self._places.objects.get, key)), key)

    def _table_at(self, path: str) -> ObjectId | None:
        places = self._places
        location = certain_location(path, places.objects.root_uri, places.prefix)
        return None if location is None else self._owner(location)

    def _owner(self, location: str) -> ObjectId | None:
        """Return the table whose directory is a location or contains it."""
        entry = self._ledger.view().owner_of(location)
        if entry is None or not entry.location or not f"{location}/".startswith(f"{entry.location}/"):
            return None
        return owner_id(entry)


def _listed(objects: ObjectStore, prefix: str) -> list[ObjectInfo]:
    return list(objects.list(prefix))
