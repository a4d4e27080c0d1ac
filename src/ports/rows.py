"""The port of row engines, which query and change the rows of opened tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import attrs

from lancekeep.domain.bounds import require_few
from lancekeep.domain.upserts import Key


def _few_vectors(_: object, __: object, vectors: Sequence[Sequence[float]]) -> None:
    require_few("vector", vectors)


def _few_expressions(_: object, __: object, columns: Sequence[str] | Mapping[str, str] | None) -> None:
    if isinstance(columns, Mapping):
        require_few("columns", columns)


@attrs.frozen
class VectorSearch:
    """A search for the nearest vectors.

    Attributes:
        column: the path of the vector field.
        vectors: one query vector, or several for a batch, at most `MOST_ITEMS`, whose answer has a column
            ``query_index``.
        k: the number of rows of each query vector.
        metric: the distance; None for the distance of the index.
        min_probes: the partitions to search at least.
        max_probes: the partitions to search at most.
        refine_factor: read this multiple of ``k`` and rank it by the exact distance.
        effort: the search effort of HNSW.
        range: the smallest distance, and the distance to stay below.
        use_index: search an index if there is one.
    """

    column: str
    vectors: Sequence[Sequence[float]] = attrs.field(validator=_few_vectors)
    k: int
    metric: str | None = None
    min_probes: int | None = None
    max_probes: int | None = None
    refine_factor: int | None = None
    effort: int | None = None
    range: tuple[float | None, float | None] | None = None
    use_index: bool = True


@attrs.frozen
class Query:
    """A query of one version of a table.

    Attributes:
        columns: the field paths to return, or SQL expressions by their names in the answer, at most `MOST_ITEMS`; None
            for all columns.
        condition: the SQL condition of the rows.
        search: the vector search.
        text: the full-text query: a text, or a structured query of the specification as JSON.
        text_columns: the columns of a query that is a text; None for all indexed columns.
        limit: the maximum number of rows. A vector search has its own.
        offset: the number of rows to skip.
        prefilter: apply the condition before the search.
        fast: search only indexed rows.
        row_ids: return the row ids as ``_rowid``.
        bytes_of_blobs: return the bytes of blobs, not their descriptions.
        fragments: the ids of the fragments to read; None for all. A search reads all.
        indexed: answer the condition by scalar indexes if there are any.
    """

    columns: Sequence[str] | Mapping[str, str] | None = attrs.field(default=None, validator=_few_expressions)
    condition: str | None = None
    search: VectorSearch | None = None
    text: str | Mapping[str, Any] | None = None
    text_columns: Sequence[str] | None = None
    limit: int | None = None
    offset: int | None = None
    prefilter: bool = False
    fast: bool = False
    row_ids: bool = False
    bytes_of_blobs: bool = False
    fragments: Sequence[int] | None = None
    indexed: bool = True


@attrs.frozen
class MergeRule:
    """What a merge does with the rows of the source and of the table.

    Attributes:
        on: the paths of the key fields.
        update: replace the rows of the table that match a row of the source.
        update_if: replace only the rows for which this SQL condition on ``source`` and ``target`` is true.
        insert: insert the rows of the source that match no row of the table.
        delete: delete the rows of the table that match no row of the source.
        delete_if: delete only the rows for which this SQL condition is true.
        use_index: find matches by an index on the key if there is one.
    """

    on: Sequence[str]
    update: bool = False
    update_if: str | None = None
    insert: bool = True
    delete: bool = False
    delete_if: str | None = None
    use_index: bool = True


@attrs.frozen
class MergeCounts:
    """How many rows a merge inserted, updated and deleted."""

    inserted: int
    updated: int
    deleted: int


@attrs.frozen
class RowStats:
    """Statistics of one version of a table.

    Attributes:
        size: the bytes of its data on disk.
        indices: the number of its indexes.
        fragments: the number of rows of each fragment.
    """

    size: int
    indices: int
    fragments: Sequence[int]


class Source(Protocol):
    """Rows that can be read several times.

    Attributes:
        rows: their number.
    """

    rows: int

    def stream(self) -> Any:
        """Return the rows as a ``pyarrow.RecordBatchReader``.

        Only one stream is in use at a time.
        """


class RowEngine(Protocol):
    """Query and change the rows of a dataset that a `TableEngine` has opened.

    Changes commit through the dataset, so they belong into the ``act`` of `TableEngine.change`, which translates
    their errors. The other methods raise `InvalidInput` for a malformed query, `ColumnNotFound` for an unknown column,
    and `StoreUnavailable` or `Damaged` for stored data that cannot be read. No method loads a table into memory.
    """

    def scan(self, dataset: Any, query: Query) -> Any:
        """Return the rows as a ``pyarrow.RecordBatchReader``.

        The reader raises the errors of the port.
        """

    def without_columns(self, dataset: Any, names: Collection[str]) -> Any:
        """Return a version as if it lacked the columns of some names, for queries alone."""

    def search_apart(self, dataset: Any, rows: Any, query: Query) -> Any:
        """Answer a full-text query over rows.

        They are searched as a table with full-text indexes like the dataset, so the answer says nothing of other rows.
        Rows of the same score are in the order of the rows. Unless the query is hybrid, its condition comes before its
        limit.

        Args:
            dataset: the dataset.
            rows: a ``pyarrow.Table`` with the columns that the query names.
            query: the query; without columns, all columns of the rows are returned.

        Returns:
            A ``pyarrow.Table``.
        """

    def explain(self, dataset: Any, query: Query, *, verbose: bool) -> str:
        """Return the plan of a query as text."""

    def analyze(self, dataset: Any, query: Query) -> str:
        """Run a query and return its plan with the measured figures."""

    def count(self, dataset: Any, condition: str | None) -> int:
        """Return the number of rows for which a condition is true."""

    def stats(self, dataset: Any) -> RowStats:
        """Return the statistics of the dataset."""

    def manifest(self, dataset: Any) -> bytes:
        """Return the manifest message of the version of a dataset."""

    def fragments(self, dataset: Any, ids: Sequence[int], columns: Sequence[str], metadata: Sequence[str]) -> Any:
        """Return the rows of fragments as a ``pyarrow.RecordBatchReader``.

        Blobs are returned as bytes.

        Args:
            dataset: the dataset.
            ids: the fragments.
            columns: the columns.
            metadata: metadata columns, such as ``_rowid``.
        """

    def insert(self, dataset: Any, data: Any, *, overwrite: bool) -> Any:
        """Append a stream of batches, or replace all rows, and return the new dataset."""

    def delete(self, dataset: Any, condition: str) -> Any:
        """Delete the rows for which a condition is true, and return the new dataset."""

    def update(self, dataset: Any, values: Mapping[str, str], condition: str | None) -> tuple[Any, int]:
        """Set columns to SQL expressions.

        Returns:
            The new dataset and the number of updated rows.
        """

    def updated(self, dataset: Any, values: Mapping[str, str], condition: str | None, columns: Sequence[str]) -> Any:
        """Return the rows of an update as they would be afterwards.

        Args:
            dataset: the dataset.
            values: the SQL expressions of the updated columns.
            condition: the condition of the updated rows; None for all rows.
            columns: the columns to return; columns that the dataset lacks are left out.

        Returns:
            A ``pyarrow.RecordBatchReader``.

        Raises:
            Unsupported: A field of a struct is updated.
        """

    def merge(self, dataset: Any, source: Any, rule: MergeRule) -> tuple[Callable[[], Any], MergeCounts]:
        """Write the files of a merge.

        Args:
            dataset: the dataset.
            source: a stream of batches.
            rule: the rule of the merge.

        Returns:
            A function that commits the merge as the next version and returns the new dataset, and the counts.
        """

    def keeps_apart(self, dataset: Any, version: int, source: Source, rule: MergeRule) -> bool:
        """Return whether a merge may commit on a version that it has not read.

        A merge may do so only if the version certainly adds none of the source's keys. False if in doubt.

        Args:
            dataset: the dataset that the merge has read, or another version of its branch.
            version: a later version.
            source: the source of the merge.
            rule: the rule of the merge.
        """

    def keys(self, rows: Any, on: Sequence[str]) -> frozenset[Key] | None:
        """Return the keys of rows.

        Args:
            rows: a ``pyarrow.Table``.
            on: the key columns.

        Returns:
            The keys; None if two rows have a common key, a key has a null, or the engine may compare keys in another
            way than Python does.
        """

    def takes(self, dataset: Any, rows: Any) -> bool:
        """Return whether a merge may take rows together with rows of other callers.

        The rows, a ``pyarrow.Table``, have exactly the columns of the dataset and no null where it permits none, and
        all files of the dataset are its own.
        """

    def found(self, dataset: Any, on: Sequence[str], keys: Collection[Key]) -> Mapping[Key, int]:
        """Return how many rows have each of some keys, without keys that none has.

        Args:
            dataset: the dataset.
            on: the key columns.
            keys: keys as `keys` returns them, at least one.
        """

    def located(self, dataset: Any, column: str, fragments: Collection[int]) -> Any:
        """Return the values of a column, with the addresses of their rows.

        Returns:
            A ``pyarrow.RecordBatchReader`` of two columns.
        """

    def restore(self, dataset: Any, version: int, branch: str | None) -> Any:
        """Commit an earlier version's contents as a new version, and return the dataset."""

    def transaction(self, dataset: Any) -> str | None:
        """Return the id of the transaction that made the version of a dataset."""

    def repeatable(self, data: Any) -> AbstractContextManager[Source]:
        """Keep a stream of batches, beyond a limit on disk, until the context ends."""
