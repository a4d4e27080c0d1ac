"""The columns of partitions, which all partitions of a catalog have in common."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress

from lancekeep.application.entries.ledger import Ledger
from lancekeep.application.entries.places import Places
from lancekeep.domain.errors import Refused
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.partition_rules import is_partition
from lancekeep.domain.partitions import published_version
from lancekeep.domain.table import Table
from lancekeep.format.schema import columns_in


class PartitionColumns:
    """Keeps the columns of partitions, unless all are altered together."""

    def __init__(self, ledger: Ledger, places: Places) -> None:
        self._ledger = ledger
        self._places = places
        self._alterations: list[frozenset[ObjectId]] = []

    @contextmanager
    def altering(self, tables: Collection[ObjectId]) -> Iterator[None]:
        """Let versions of partitions have other columns.

        The caller publishes these versions together with the common schema, or not at all.
        """
        alteration = frozenset(tables)
        self._alterations.append(alteration)  # not one set: another alteration of the same tables may last longer
        try:
            yield
        finally:
            self._alterations.remove(alteration)

    def require_may_change(self, object_id: ObjectId) -> None:
        """Check that a table is not the table of a partition.

        Raises:
            Refused: The table is a partition; all partitions have the columns of the namespace.
        """
        is_altered = any(object_id in tables for tables in tuple(self._alterations))
        if is_partition(self._ledger.recent(), object_id) and not is_altered:
            raise Refused(
                f"the table {object_id} is a partition, and all partitions have the columns of the partitioned "
                "namespace; nothing was changed. ALTER TABLE of the table of all partitions in Spark changes their "
                "columns. To have other columns in one, create a partitioned catalog with them, and write the rows "
                "there."
            )

    def require_kept(self, table: Table, branch: str | None, staged: Callable[[], bytes]) -> None:
        """Check that a version keeps the columns of the published version.

        For a partition, reads both manifests. An alteration that was not published may have left later versions with
        other columns.

        Raises:
            Refused: The columns differ.
        """
        if not is_partition(self._ledger.recent(), table.id):
            return
        commits, root = self._ledger.commits, self._places.dataset_root(table).branch(branch)
        entry = self._ledger.recent().find(table.id.key) if branch is None else None
        published = None if entry is None else published_version(entry)
        if published is None or published.branch:
            before = commits.latest(root)
        else:
            before = commits.get(root, published.version) or commits.latest(root)
        if before is not None:
            content = self._places.objects.get(before.path)
            with suppress(ValueError):  # an unreadable manifest is refused by the commit
                if columns_in(content) != columns_in(staged()):
                    self.require_may_change(table.id)
