"""Changes of a partition's table by its name.

The entry of a partition names the version that readers of the partitioned namespace see. So a change by name is
published as well, or refused: acknowledged rows that no reader sees are lost rows.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from lancekeep.application.entries.ledger import Ledger
from lancekeep.application.entries.places import Places
from lancekeep.domain.added_rows import ADDS_NO_ROWS
from lancekeep.domain.catalog import CatalogView, Change, Put
from lancekeep.domain.commit import Committed
from lancekeep.domain.errors import ConcurrentModification, Refused
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.lineage import Operation
from lancekeep.domain.partition_rules import is_partition
from lancekeep.domain.partitioning import READ_BRANCH, READ_TAG
from lancekeep.domain.partitions import pinned, published_version, require_main
from lancekeep.domain.table import find_table
from lancekeep.format.lineage import Manifest
from lancekeep.ports.table_engine import TableEngine


@attrs.frozen
class _Published:
    """The published version of a partition, whose table is at ``root``."""

    table: ObjectId
    root: DatasetRoot
    version: int


class PublishedPartitions:
    """Publishes what changes of partitions by name commit."""

    def __init__(self, ledger: Ledger, places: Places, engine: TableEngine) -> None:
        """Create it.

        Args:
            ledger: The catalog.
            places: The directories of tables.
            engine: Restores versions.
        """
        self._ledger = ledger
        self._places = places
        self._engine = engine

    def require_no_new_rows(self, object_id: ObjectId) -> None:
        """Check that a table may get rows or values by its name.

        Raises:
            Refused: It is a partition, and the partitioned namespace decides to which partition a row belongs.
        """
        if self._find(object_id) is not None:
            raise Refused(
                f"the table {object_id} is a partition, and only the partitioned namespace finds the partition of a "
                "row; nothing was written. Write rows with catalog.partitions.open().write. Rows of a partition can be "
                "deleted by name."
            )

    def commit(self, object_id: ObjectId, branch: str | None, commit: Callable[[], Committed]) -> Committed:
        """Commit a change, and publish it if the table is a partition.

        Versions after the published one belong to writes that failed, so the published one is restored first.

        Args:
            object_id: The table.
            branch: The branch; None for the main history, which is the one to publish.
            commit: Commits the change.

        Raises:
            Refused: Readers use a branch or a tag of the partition. Nothing was committed.
            ConcurrentModification: The version was committed and not published, because the partition was written to
                at the same time, or because the change adds rows.
        """
        published = self._find(object_id) if branch is None else None
        if published is None:
            return commit()
        latest = self._ledger.commits.latest(published.root)
        if latest is not None and not self._adds_no_rows(published, latest.version):
            self._engine.restore(object_id, published.version)
        committed = commit()
        self._publish(published, committed.version)
        return committed

    def _find(self, object_id: ObjectId) -> _Published | None:
        """Return the published version of a partition; None for other tables.

        Raises:
            Refused: Readers use a branch or a tag of the partition.
        """
        if not is_partition(self._ledger.recent(), object_id):
            return None
        entry = self._ledger.view().find(object_id.key)
        if entry is None:
            return None
        require_main(object_id, entry.extension.get(READ_BRANCH), entry.extension.get(READ_TAG))
        published = published_version(entry)
        if published is None:  # of a foreign namespace, whose readers use the latest version
            return None
        root = self._places.dataset_root(find_table(self._ledger.recent(), object_id))
        return _Published(object_id, root, published.version)

    def _publish(self, published: _Published, version: int) -> None:
        adds = not self._adds_no_rows(published, version)

        def decide(view: CatalogView) -> tuple[list[Change], None]:
            entry = view.find(published.table.key)
            now = None if entry is None else published_version(entry)
            if entry is None or now is None or adds or now.version not in (published.version, version):
                raise ConcurrentModification(
                    f"version {version} of the partition {published.table} was committed and not published: "
                    + ("it has rows that the partitioned namespace did not write" if adds else "it was written to")
                    + f". Readers see {'no partition' if now is None else f'version {now.version}'}. Repeat the change"
                )
            return [] if now.version == version else [Put(pinned(entry, version))], None

        self._ledger.apply(decide)

    def _adds_no_rows(self, published: _Published, version: int) -> bool:
        """Return whether a version has only rows of the published one."""
        while version > published.version:
            row = self._ledger.commits.get(published.root, version)
            if row is None:
                return False
            change = Manifest(self._places.objects.get(row.path)).change()
            if change.operation is Operation.RESTORE:
                version = change.restored
            elif change.operation in ADDS_NO_ROWS:
                version -= 1
            else:
                return False
        return version == published.version
