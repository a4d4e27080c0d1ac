"""Which columns of a version or a branch are columns of the latest version."""

from __future__ import annotations

from typing import Any, Final

import attrs

from lancekeep.application.rows.services import WriteService
from lancekeep.domain.column_identity import same, surely_same
from lancekeep.domain.errors import Damaged, VersionNotFound
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest import Manifest
from lancekeep.format.table_version import parse_manifest
from lancekeep.ports.table_engine import TableEngine

_MOST_READ: Final = 64
"""The versions that are read at most to find out whether columns are the same."""


@attrs.define
class ColumnHistory:
    """Compares versions of one table; for one request.

    Attributes:
        table: The table.
    """

    _writes: WriteService
    _engine: TableEngine
    table: ObjectId
    _left: int = _MOST_READ

    def manifest(self, dataset: Any) -> Manifest:
        """Return the manifest of an opened version."""
        return parse_manifest(self._engine.rows.manifest(dataset), str(self.table))

    def same(self, version: Manifest, branch: str | None, latest: Manifest) -> frozenset[int]:
        """Return the ids of fields that are the same in the latest version.

        Args:
            version: The version.
            branch: Its branch; None for the main history.
            latest: The latest version of the main history.
        """
        if branch is None:
            return same(version, latest, lambda number: self._read(number, None))
        found = surely_same(version, latest)
        if {field.id for field in version.fields} <= found:
            return found
        return found | self._through_fork(version, branch, latest)

    def _through_fork(self, version: Manifest, branch: str, latest: Manifest) -> frozenset[int]:
        """Return the ids of fields that are the same in the version from which the branch began."""
        begun = self._writes.examine(self.table, self._engine.structure.branches, None, None).get(branch)
        first = None if begun is None else self._read(begun.version, branch)
        if begun is None or first is None:
            return frozenset()
        on_branch = same(first, version, lambda number: self._read(number, branch))
        return on_branch & self.same(first, begun.parent, latest)

    def _read(self, number: int, branch: str | None) -> Manifest | None:
        if not self._left:
            return None
        self._left -= 1
        try:
            return self.manifest(self._writes.open(self.table, number, None, branch))
        except (VersionNotFound, Damaged):
            return None
