"""The port of compaction engines, which rewrite small fragments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from lancekeep.domain.operations import Transaction


class CompactionEngine(Protocol):
    """Rewrite fragments of a dataset that a `TableEngine` has opened.

    Calls belong into the ``act`` of `TableEngine.change` or `TableEngine.examine`, which translate their errors.
    """

    def rewrite(
        self,
        dataset: Any,
        target_rows: int,
        *,
        columns: Sequence[str] = (),
        excluded: Collection[int] = (),
        threads: int | None = None,
        proceed: Callable[[], bool] = lambda: True,
    ) -> Sequence[Any]:
        """Rewrite small fragments and fragments with many deleted rows; commit nothing.

        Adjacent fragments with fewer than ``target_rows`` rows are small.

        Args:
            dataset: The dataset.
            target_rows: The size of the new fragments.
            columns: The columns by which the rows are sorted, unless an index names the rows, or the table has stable
                row ids or blobs.
            excluded: The ids of fragments that stay as they are.
            threads: The number of threads; None for one for each core.
            proceed: Called after each new fragment; the rest stays as it is once it returns False.

        Returns: The results that the other methods take; empty if there was nothing to rewrite.
        """

    def transaction(self, rewritten: Sequence[Any]) -> Transaction:
        """Return the transaction that replaces the rewritten fragments.

        Neither the transaction nor the new fragments have ids.

        Raises:
            InvalidInput: the results belong to several plans.
            Unsupported: only the engine can commit, for example because an index has to be rewritten.
        """

    def new_files(self, rewritten: Sequence[Any]) -> Sequence[str]:
        """Return the names of the new files in the table's ``data`` directory."""

    def commit(self, dataset: Any, rewritten: Sequence[Any]) -> Any:
        """Replace the rewritten fragments, and return the dataset.

        The indexes that cover them are rewritten, too.
        """
