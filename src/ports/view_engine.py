"""The port of view engines: sources and histories of materialized views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from lancekeep.domain.view import Effect


class ViewEngine(Protocol):
    """Read datasets that a `TableEngine` has opened.

    Its methods belong into the ``act`` of `TableEngine.examine`.
    """

    def transaction_name(self, dataset: Any) -> str:
        """Return the name of the transaction file of a dataset's version."""

    def effect(self, dataset: Any, version: int) -> tuple[Effect, Mapping[str, str]]:
        """Return what a version did, and the properties of its transaction."""

    def output(self, dataset: Any, columns: Sequence[str] | Mapping[str, str] | None, condition: str | None) -> Any:
        """Return the ``pyarrow.Schema`` of a query.

        Raises:
            InvalidInput: an expression is invalid.
        """

    def rows(
        self,
        dataset: Any,
        columns: Sequence[str] | Mapping[str, str] | None,
        condition: str | None,
        after: Any | None,
    ) -> Any:
        """Return the rows of a query as a ``pyarrow.RecordBatchReader``.

        Args:
            dataset: the dataset.
            columns: its columns, or SQL expressions by name; None for all.
            condition: the SQL condition of the rows; None for all.
            after: an earlier version of the dataset; its fragments are left out.
        """
