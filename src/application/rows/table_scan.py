"""Read a table into frames of other packages, by pylance and their own readers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import attrs

from lancekeep.domain.errors import InvalidInput, MissingExtra, Unsupported
from lancekeep.domain.expressions import require_bounded
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.notebook import Shown
from lancekeep.format.table_version import parse_manifest
from lancekeep.ports.rows import Query, RowEngine, VectorSearch

if TYPE_CHECKING:
    import pyarrow as pa


_QUOTED = re.compile(r"""'(?:[^']|'')*'|"[^"]*"|`[^`]*`""")


@attrs.frozen
class TableScan(Shown):
    """The rows of one version of a table, from `Catalog.scan`.

    The version is fixed when the scan is created. Each method returns a new scan or reads; none changes the scan. Reads
    raise `InvalidInput` for a malformed condition, `ColumnNotFound` for a missing column, and `MissingExtra`, which
    names the package, if a package is not installed.

    Attributes:
        table: The table.
        version: The version.
        query: What is read of it.
    """

    table: ObjectId
    version: int
    query: Query
    _dataset: Any = attrs.field(repr=False)
    _rows: RowEngine = attrs.field(repr=False)

    # -- what to read -------------------------------------------------------------------------------------------

    def where(self, condition: str) -> TableScan:
        """Keep the rows for which an SQL condition is true.

        Several conditions must all be true.
        """
        if not isinstance(condition, str) or not condition.strip():
            raise InvalidInput(f"where takes an SQL condition as text, such as 'price > 10'; got {condition!r:.100}")
        if not _is_whole(condition):
            raise InvalidInput(f"{condition!r:.200} is not one whole SQL condition: check its quotes and parentheses")
        require_bounded(condition)  # readers of other packages do not check it
        known = self.query.condition
        return self._with(condition=condition if known is None else f"({known}) AND ({condition})")

    def select(self, *columns: str | Mapping[str, str]) -> TableScan:
        """Read only some columns.

        In place of names, the argument may be one mapping of names to SQL expressions.
        """
        if len(columns) == 1 and isinstance(columns[0], Mapping):
            return self._with(columns=dict(columns[0]))
        if not columns or not all(isinstance(each, str) for each in columns):
            raise InvalidInput("select takes names of columns, or one mapping of names to SQL expressions")
        return self._with(columns=columns)

    def limit(self, rows: int) -> TableScan:
        """Read at most a number of rows."""
        if isinstance(rows, bool) or not isinstance(rows, int) or not 0 <= rows < 1 << 63:
            raise InvalidInput(f"limit takes a number of rows from 0 to 2^63 - 1; got {rows!r:.100}")
        known = self.query.limit
        return self._with(limit=rows if known is None else min(rows, known))

    def search(
        self, vector: Sequence[float], k: int = 10, *, column: str = "vector", metric: str | None = None
    ) -> TableScan:
        """Find the nearest rows to a vector, nearest first, with their ``_distance``.

        Conditions apply before the search.

        Args:
            vector: The vector.
            k: The number of rows.
            column: The column of vectors.
            metric: ``l2``, ``cosine``, ``dot`` or ``hamming``; by default the metric of the index.
        """
        try:
            numbers = [float(number) for number in vector]
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"search takes a vector of numbers; got {vector!r:.100}") from error
        if not numbers or isinstance(k, bool) or not isinstance(k, int) or not 1 <= k < 1 << 63:
            raise InvalidInput(f"search takes a vector that is not empty, and k from 1 to 2^63 - 1; got k={k!r:.100}")
        return self._with(search=VectorSearch(column, [numbers], k, metric), prefilter=True)

    # -- reading ------------------------------------------------------------------------------------------------

    def to_batches(self) -> pa.RecordBatchReader:
        """Return the rows as a ``pyarrow.RecordBatchReader``, with few batches in memory."""
        return self._rows.scan(self._dataset, self._bounded())

    def to_arrow(self) -> pa.Table:
        """Return the rows as a ``pyarrow.Table``."""
        return self.to_batches().read_all()

    def to_pandas(self) -> Any:
        """Return the rows as a ``pandas.DataFrame``."""
        _package("pandas", "to_pandas")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """Return the rows as a ``polars.DataFrame``."""
        return _package("polars", "to_polars").from_arrow(self.to_arrow())

    def to_duckdb(self, connection: Any = None) -> Any:
        """Return the rows as a DuckDB relation, by default of the default connection.

        Args:
            connection: A ``duckdb.DuckDBPyConnection``.
        """
        duckdb = _package("duckdb", "to_duckdb")
        return (duckdb if connection is None else connection).from_arrow(self.to_arrow())

    def to_ray(self) -> Any:
        """Return the rows as a ``ray.data.Dataset``.

        Ray's workers read the files of the table. The rows of a limit, a search, SQL expressions or a branch are read
        here, and handed to Ray.
        """
        ray = _package("ray.data", "to_ray")
        query, dataset = self.query, self._dataset
        is_plain = query.limit is None and query.search is None and not isinstance(query.columns, Mapping)
        branch = parse_manifest(self._rows.manifest(dataset), str(self.table)).branch  # Ray opens none
        if not is_plain or branch is not None:
            return ray.from_arrow(self.to_arrow())
        return ray.read_lance(
            dataset.uri,
            version=self.version,
            columns=None if query.columns is None else list(query.columns),
            filter=query.condition,
            storage_options=dataset.latest_storage_options(),
        )

    def to_torch(self, batch_size: int = 1024) -> Any:
        """Return the rows as a PyTorch ``IterableDataset`` of batches of tensors.

        Args:
            batch_size: The rows of a batch.

        Raises:
            Unsupported: The scan has a limit or a search.
        """
        _package("torch", "to_torch")
        if self.query.limit is not None or self.query.search is not None:
            raise Unsupported(f"{self.table}: PyTorch's reader has no limit and no search; use to_arrow")
        columns = self.query.columns
        return _package("lance.torch.data", "to_torch").LanceDataset(
            self._dataset,
            batch_size,
            columns=dict(columns) if isinstance(columns, Mapping) else None if columns is None else list(columns),
            filter=self.query.condition,
        )

    def count(self) -> int:
        """Return the number of rows."""
        if self.query.search is not None:
            return sum(batch.num_rows for batch in self.to_batches())
        found = self._rows.count(self._dataset, self.query.condition)
        return found if self.query.limit is None else min(found, self.query.limit)

    # -- inside -------------------------------------------------------------------------------------------------

    def _with(self, **changes: Any) -> TableScan:
        return attrs.evolve(self, query=attrs.evolve(self.query, **changes))

    def _bounded(self) -> Query:
        """Return the query of the engine, whose searches have no limit but ``k``."""
        search, limit = self.query.search, self.query.limit
        if search is None or not limit:
            return self.query
        return attrs.evolve(self.query, search=attrs.evolve(search, k=min(search.k, limit)), limit=None)


def _is_whole(condition: str) -> bool:
    """Return whether a condition keeps its meaning between parentheses: the engine ignores what follows one."""
    bare = _QUOTED.sub("", condition)
    depth = 0
    for character in bare:
        depth += (character == "(") - (character == ")")
        if depth < 0:
            return False
    return depth == 0 and not any(mark in bare for mark in ("'", '"', "`", ";", "--", "/*"))


def _package(module: str, method: str) -> Any:
    name = module.partition(".")[0]
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtra(f"{method} needs the package {name}: pip install {name} ({error})") from error
