"""Adopt versions that have a final manifest and no row in the commit store.

A commit store that was restored from a backup lacks its last rows, and a writer that bypasses the catalog records none.
The final manifests are versions nevertheless, so readers find them and record their rows, unless the table holds direct
commits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import count, pairwise, takewhile
from typing import TYPE_CHECKING

from lancekeep.application.commits.managed_rows import ManagedRows
from lancekeep.domain.errors import AccessDenied, Damaged, ObjectNotFound, Unsupported
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.naming import ManifestName, NamingScheme, final_names
from lancekeep.domain.version_row import VersionRow, scheme_of
from lancekeep.format.manifest import is_manifest
from lancekeep.ports.object_store import ObjectInfo, ObjectStore

if TYPE_CHECKING:
    from lancekeep.application.commits.direct_commits import DirectCommits

_REMEMBERED = 4096
"""The number of gaps kept in memory: a deleted version stays deleted."""

_READ_ONLY = (AccessDenied, Unsupported)
"""The errors of a commit store that lets this process read only: a role without the right to write, or a standby."""

Gap = tuple[int, int]
"""The versions before and after a gap of versions without rows."""


class Adoption:
    """Finds versions without rows and records their rows; every method is idempotent."""

    def __init__(self, objects: ObjectStore, rows: ManagedRows, direct: Callable[[], DirectCommits]) -> None:
        self._objects = objects
        self._rows = rows
        self._direct = direct
        self._empty: set[tuple[str, Gap]] = set()

    def adopt(self, root: DatasetRoot) -> VersionRow | None:
        """Record all rows of a history without rows; return its latest version, if any."""
        infos = {key.rpartition("/")[2]: info for key, info in self._listed(root).items()}
        names = final_names(infos, root.versions_key)
        if not names:
            return None
        newest_first = [infos[name] for name in reversed(names.values())]
        rows = [VersionRow(root.base_uri, *each) for each in _described(newest_first)]
        if self._direct().is_marked(root.base_uri):
            rows = [row for row in rows if self._direct().may_be_version(row)]
            if not rows:
                return None
        try:
            self._rows.record(rows)  # newest first: a concurrent reader must not take an older version for the latest
        except Damaged:
            if all(self._objects.head(row.path) is not None for row in rows):
                raise
            return self.adopt(root)  # a concurrent writer removed versions, or dropped the table
        return self.adopt(root) if self.forget_vanished(root, rows) else rows[0]

    def any_final(self, root: DatasetRoot) -> bool:
        """Return whether the history's directory holds a final manifest."""
        names = (ManifestName.parse(key.rpartition("/")[2]) for key in self._listed(root))
        return any(name is not None and not name.is_staged for name in names)

    def following(self, row: VersionRow) -> ObjectInfo | None:
        """Return the final manifest of the version after ``row``, if it exists.

        A version with a V2 name may follow a version with a V1 name, never the other way round.
        """
        found = self._objects.head(_sibling(row, row.version + 1, NamingScheme.V2))
        if found is None and scheme_of(row) is NamingScheme.V1:
            return self._objects.head(_sibling(row, row.version + 1, NamingScheme.V1))
        return found

    def catch_up(self, root: DatasetRoot, latest: VersionRow) -> VersionRow:
        """Record the versions that follow the latest row without a gap.

        A reader that cannot write to the commit store gets the version without recording rows.

        Returns:
            The newest of these versions, or ``latest``.
        """
        only_v2 = scheme_of(latest) is NamingScheme.V2
        found: dict[int, dict[NamingScheme, ObjectInfo]] = {}
        for key, info in self._listed(root, latest.version if only_v2 else None).items():
            name = ManifestName.parse(key.rpartition("/")[2])
            if name is not None and not name.is_staged:
                found.setdefault(name.version, {})[name.scheme] = info
        infos = []
        for version in takewhile(found.__contains__, count(latest.version + 1)):
            only_v2 = only_v2 or NamingScheme.V2 in found[version]
            if only_v2 and NamingScheme.V2 not in found[version]:
                break
            infos.append(found[version][NamingScheme.V2 if only_v2 else NamingScheme.V1])
        while infos and not self._is_complete(infos[-1]):
            infos.pop()
        rows = [VersionRow(root.base_uri, *each) for each in _described(infos)]
        if rows and self._direct().is_marked(root.base_uri):
            rows = [*takewhile(self._direct().may_be_version, rows)]
        with suppress(*_READ_ONLY):
            self._rows.record(rows)  # oldest first: after a crash the next reader continues
            self.forget_vanished(root, rows)
        return rows[-1] if rows else latest

    def fill(self, root: DatasetRoot, rows: Sequence[VersionRow], bounds: Iterable[int]) -> bool:
        """Record the versions without rows between given rows, or up to ``bounds``.

        Args:
            root: The history.
            rows: A part of the history, in any order.
            bounds: Versions up to which ``rows`` should be complete; 0 precedes the first version.

        Returns:
            Whether it recorded any.
        """
        edges = sorted({row.version for row in rows} | set(bounds))
        gaps = {gap for gap in pairwise(edges) if gap[1] - gap[0] > 1 and (root.base_uri, gap) not in self._empty}
        holed = {gap for gap in gaps if self._shows(rows[0], gap)}
        if len(self._empty) > _REMEMBERED:
            self._empty.clear()
        self._empty |= {(root.base_uri, gap) for gap in gaps - holed}
        if not holed:
            return False
        missing: dict[int, ObjectInfo] = {}
        for key, info in self._listed(root).items():
            name = ManifestName.parse(key.rpartition("/")[2])
            if name is None or name.is_staged or not any(low < name.version < high for low, high in holed):
                continue
            if name.version not in missing or name.scheme is NamingScheme.V2:
                missing[name.version] = info
        lost = [VersionRow(root.base_uri, *each) for each in _described(missing.values())]
        try:
            self._rows.record(lost)
        except _READ_ONLY:
            return False
        self.forget_vanished(root, lost)
        return True

    def record(self, row: VersionRow) -> None:
        """Record a row that was lost; delete it again if its manifest no longer exists.

        `forget_vanished` explains why.
        """
        self._rows.record([row])
        if self._objects.head(row.path) is None:
            self.forget(row)

    def forget_vanished(self, root: DatasetRoot, rows: Sequence[VersionRow]) -> bool:
        """Delete the rows whose manifests no longer exist; return whether there were any.

        A drop deletes rows before the manifests and once more after them. So a participant that records a row, and
        checks the manifest afterwards, leaves no stale row.
        """
        present = self._listed(root) if rows else {}
        vanished = [row for row in rows if row.path not in present]
        for row in vanished:
            self.forget(row)
        return bool(vanished)

    def forget(self, row: VersionRow) -> None:
        """Delete this row; another row of that version stays."""
        if self._rows.get(row.base_uri, row.version) == row:
            self._rows.delete(row.base_uri, [row.version])

    def forget_gaps(self) -> None:
        """Clear the memory of gaps: another table may have the same location now."""
        self._empty.clear()

    def _shows(self, row: VersionRow, gap: Gap) -> bool:
        """Return whether a manifest exists at one of the ends of a gap."""
        low, high = gap
        ends = {high - 1, low + 1} if low else {high - 1}
        schemes = [NamingScheme.V2] if scheme_of(row) is NamingScheme.V2 else [NamingScheme.V1, NamingScheme.V2]
        keys = (_sibling(row, version, scheme) for version in ends for scheme in schemes)
        return any(self._objects.head(key) is not None for key in keys)

    def _is_complete(self, info: ObjectInfo) -> bool:
        """Return whether a file with a final name is a complete manifest."""
        with suppress(ObjectNotFound):
            return is_manifest(self._objects.get(info.key))
        return False

    def _listed(self, root: DatasetRoot, above: int | None = None) -> dict[str, ObjectInfo]:
        """Return the objects directly in ``_versions``, by key.

        With ``above``, versions up to this one are left out. Listings return V2 names from the newest version on, so
        this listing ends early.
        """
        end = None if above is None else root.manifest_key(above, NamingScheme.V2)
        infos = takewhile(lambda info: end is None or info.key < end, self._objects.list(root.versions_key))
        return {info.key: info for info in infos if "/" not in info.key[len(root.versions_key) :]}


def _described(infos: Iterable[ObjectInfo]) -> list[tuple[int, str, int]]:
    """Return version, key and size of final manifests."""
    names = ((ManifestName.parse(info.key.rpartition("/")[2]), info) for info in infos)
    return [(name.version, info.key, info.size) for name, info in names if name is not None]


@lru_cache(4096)
def _sibling(row: VersionRow, version: int, scheme: NamingScheme) -> str:
    """Return the key of the final manifest of another version of the same history."""
    return f"{row.path.rpartition('/')[0]}/{scheme.final_name(version)}"
