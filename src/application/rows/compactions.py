"""Compact tables beside writers that append without a pause.

The engine rewrites fragments. Its own commit first reserves fragment ids by a version of its own, and repeats whole
reads after each lost version. Lancekeep commits the rewrite as one version, which it rebases in memory on the appends
that came between (table format, "Conflict Resolution"). If an index covers a rewritten fragment, the engine has to
rewrite the index too, and commits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import attrs

from lancekeep.application.rows.services import WriteService
from lancekeep.domain.appends import REBASED
from lancekeep.domain.clustering import cluster_columns
from lancekeep.domain.commit import Committed
from lancekeep.domain.errors import CommitRefused, ConcurrentModification, InvalidInput, Unsupported
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import DatasetRoot
from lancekeep.ports.table_engine import TableEngine

if TYPE_CHECKING:
    from lancekeep.application.rows.table_transactions import TableTransactions

ATTEMPTS = 5
REPEATED = (ConcurrentModification, CommitRefused)
"""The errors of `Compactions.commit` after which to plan again, for example after an overwrite."""


def given_up(object_id: ObjectId, refusal: Exception) -> ConcurrentModification:
    """Return the error after all attempts; it gives the reason of the last attempt."""
    return ConcurrentModification(
        f"{object_id}: {ATTEMPTS} compactions were refused, and nothing was committed. The last refusal: {refusal}"
    )


class Compactions:
    """Rewrites small fragments of tables.

    Args:
        transactions: Returns what commits without the engine; None if only the engine commits.
        properties: Returns the properties of a table; by default, no table is clustered.
    """

    def __init__(
        self,
        writes: WriteService,
        engine: TableEngine,
        transactions: Callable[[], TableTransactions] | None,
        properties: Callable[[ObjectId], Mapping[str, str]] = lambda _: {},
    ) -> None:
        self._properties = properties
        self._writes = writes
        self._engine = engine
        self._transactions = transactions

    def compact(
        self,
        object_id: ObjectId,
        target_rows: int,
        *,
        excluded: Collection[int] = (),
        threads: int | None = None,
        proceed: Callable[[], bool] = lambda: True,
    ) -> Committed | None:
        """Compact a table; see `Upkeep.compact` and `CompactionEngine.rewrite`."""
        if target_rows < 1:
            raise InvalidInput(f"target_rows is at least 1; found {target_rows}")
        root, columns = self.root(object_id), cluster_columns(self._properties(object_id))
        for _ in range(ATTEMPTS):
            rewrite = partial(
                self._engine.compaction.rewrite,
                target_rows=target_rows,
                columns=columns,
                excluded=excluded,
                threads=threads,
                proceed=proceed,
            )
            rewritten = self._writes.examine(object_id, rewrite, None, None)
            if not rewritten:
                return None
            try:
                return self.commit(object_id, rewritten)
            except REPEATED as error:
                refusal = error
                self.discard(root, rewritten)
            except Unsupported:
                self.discard(root, rewritten)
                raise
        raise given_up(object_id, refusal) from refusal

    def root(self, object_id: ObjectId) -> DatasetRoot | None:
        """Return the root of a table, for `discard`; None if a server has its files.

        Raises:
            Damaged: As `Versions.require_one_scheme`.
        """
        return None if self._transactions is None else self._transactions().root(object_id)

    def discard(self, root: DatasetRoot | None, rewritten: Sequence[Any]) -> None:
        """Remove the files of rewritten fragments that were definitely not committed.

        Args:
            root: The root of the table before it was rewritten.
            rewritten: What the engine has rewritten for this caller, never a description that a caller passes.
        """
        if root is not None and self._transactions is not None:
            self._transactions().remove_data_files(root, self._engine.compaction.new_files(rewritten))

    def commit(self, object_id: ObjectId, rewritten: Sequence[Any]) -> Committed:
        """Commit rewritten fragments; see `Upkeep.commit_compaction`."""
        try:
            return self._commit(object_id, rewritten)
        except Unsupported:
            if self._transactions is not None:
                self._transactions().require_own_indexes(object_id)
            act = partial(self._engine.compaction.commit, rewritten=rewritten)
            return self._writes.commit_change(object_id, act)

    def _commit(self, object_id: ObjectId, rewritten: Sequence[Any]) -> Committed:
        """Commit without the engine.

        Raises:
            Unsupported: Only the engine can commit; nothing was committed.
        """
        if self._transactions is None:
            raise Unsupported(f"{object_id}: the engine commits through the server")
        transaction = attrs.evolve(
            self._engine.compaction.transaction(rewritten), uuid=str(uuid4()), transaction_properties=dict([REBASED])
        )
        return self._transactions().commit(object_id, transaction, by_engine=True)
