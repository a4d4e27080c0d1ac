"""Read fragments of one version of a table in Spark's tasks.

The driver opens the table through the catalog once. Tasks open the same version by its location, without a catalog. A
plan stays small for any number of fragments: it holds runs of fragment ids and a bounded number of parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs
import lance
import pyarrow as pa

from lancekeep.adapters.lance.batches import READ_AHEAD
from lancekeep.domain.column_names import require_readable
from lancekeep.domain.errors import InvalidInput, Refused
from lancekeep.entrypoints.scanning import batch_rows
from lancekeep.entrypoints.spark.arrow_types import as_spark_sees, as_spark_takes
from lancekeep.entrypoints.spark.internals.workers import add_to_task
from lancekeep.entrypoints.spark.projection import Origin, origins_by_name, projected
from lancekeep.entrypoints.spark.worker_gc import freeze_imports
from lancekeep.format.manifest import FragmentEntry, fragment_entries, transaction_name
from lancekeep.native import CACHED_METADATA
from lancekeep.ports.table_engine import access

if TYPE_CHECKING:  # a worker imports this module for each task whose rows a LIMIT cuts off, and needs no catalog
    from lancekeep.application.catalog import Catalog

ROWS_OF_A_PARTITION = 100_000
"""The least number of rows of a part; one task reads adjacent fragments until it reaches this number."""
MOST_PARTITIONS = 4096
"""The most parts of a plan; larger tables get parts with more rows."""

READ_ROWS = "readRows"
READ_BYTES = "readBytes"
REQUESTS = "requests"
BY_INDEX = "byIndex"
"""The names of the numbers that a task reports about its reads."""


@attrs.frozen
class Snapshot:
    """A version of a table for tasks to read; can be pickled and holds no catalog.

    Location and version number do not identify a version: a table that was dropped and created again may have both.
    With ``vends``, a task opens the table through its server, which renews the credentials that it vends.
    """

    uri: str
    version: int
    identity: str
    storage_options: dict[str, str] = attrs.field(repr=False)
    branch: str | None = None
    vends: Any | None = attrs.field(default=None, repr=False, eq=False)
    table: tuple[str, ...] = ()

    @staticmethod
    def of(catalog: Catalog, dataset: Any, branch: str | None = None) -> Snapshot:
        """Return the version of a dataset that the catalog has opened."""
        from lancekeep.application.catalog import services_of  # a driver has a catalog, a worker has none

        vends = services_of(catalog).vends
        options, table = dict(catalog.storage_options), () if vends is None else tuple(dataset._table_id)
        return Snapshot(dataset.uri, dataset.version, identity(dataset), options, branch, vends, table)

    @property
    def access(self) -> dict[str, Any]:
        """The arguments by which pylance reaches the files of the table."""
        return access(self.storage_options, self.vends, self.table)

    def open(self) -> Any:
        """Open the version.

        Raises:
            Refused: The location holds another table.
        """
        uri = self.uri if self.vends is None else None
        open_at = partial(lance.dataset, uri, metadata_cache_size_bytes=CACHED_METADATA, **self.access)
        if self.branch is None:
            dataset = open_at(version=self.version)
        else:
            dataset = open_at().checkout_version((self.branch, self.version))
        if identity(dataset) != self.identity:
            raise Refused(
                f"version {self.version} of {self.uri} is not the version that the query was planned for: the table "
                "was dropped and created again. Run the query again."
            )
        return dataset


class Fragment(NamedTuple):
    """A fragment, as plans use it.

    Attributes:
        id: The id of the fragment.
        rows: The number of rows, without deleted ones.
        size: The size of whole rows in bytes; None if unknown.
    """

    id: int
    rows: int
    size: int | None


def identity(dataset: Any) -> str:
    """Return a unique identity of a version.

    Returns:
        The name of its transaction, or a digest of its manifest if it has none.
    """
    manifest = _manifest(dataset)
    return transaction_name(manifest) or blake2b(manifest, digest_size=16).hexdigest()


def entries(dataset: Any) -> Iterator[FragmentEntry]:
    """Return the manifest's fragment entries without creating fragment objects."""
    return fragment_entries(_manifest(dataset))


def _manifest(dataset: Any) -> bytes:
    return bytes(dataset.__getstate__()[_MANIFEST])


_MANIFEST = 3
"""The position of the manifest in the state of a pickled ``LanceDataset``."""


def stored_fragments(dataset: Any, found: Iterable[FragmentEntry] | None = None) -> Iterator[Fragment]:
    """Yield fragments in order, by default all of the version.

    Counts the rows if an old manifest does not record their number.
    """
    for entry in entries(dataset) if found is None else found:
        rows = entry.rows if entry.rows is not None else dataset.get_fragment(entry.id).count_rows()
        yield Fragment(entry.id, rows, entry.size)


@attrs.frozen
class FragmentReader:
    """Read fragments of a version as batches of Spark's Arrow types; can be pickled.

    Attributes:
        snapshot: The version.
        schema: The exact schema of the batches.
        filter: A condition in the scanner's SQL; only rows that satisfy it are read.
        batch_size: The most rows of a batch.
        origins: The origins of the columns; None if all are stored as in ``schema``.
    """

    snapshot: Snapshot
    schema: pa.Schema
    filter: str | None = None
    batch_size: int | None = None
    origins: tuple[Origin, ...] | None = None

    @staticmethod
    def of(snapshot: Snapshot, stored: pa.Schema, schema: pa.Schema, batch_size: int | None = None) -> FragmentReader:
        """Create a reader of whole or partial columns.

        Raises:
            InvalidInput: ``stored`` lacks a column of this name and type.
        """
        require_types(stored, schema)
        return FragmentReader(snapshot, schema, batch_size=batch_size, origins=origins_by_name(stored, schema))

    def __reduce__(self) -> tuple[Any, ...]:
        """Let a plan hold the schema as Arrow's message: a pickled schema has each field on its own."""
        schema = self.schema.serialize().to_pybytes()
        return _reader, (self.snapshot, schema, self.filter, self.batch_size, self.origins)

    def read(self, runs: Sequence[range], limit: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the fragments in order, at most ``limit``."""
        for batch, _ in self.read_with(runs, limit, ()):
            yield batch

    def restricted(self, condition: str) -> FragmentReader:
        """Return a reader of the rows that satisfy one condition alone."""
        return attrs.evolve(self, filter=condition)

    def read_with(
        self, runs: Sequence[range], limit: int | None, extra: Sequence[str]
    ) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
        """Yield batches of rows, each with a batch of added columns.

        Args:
            runs: The fragments.
            limit: The most rows.
            extra: The columns that the scanner adds, such as ``_rowaddr``. They keep the scanner's types.
        """
        freeze_imports()
        if not runs:
            return
        dataset = self.snapshot.open()
        fragments = [dataset.get_fragment(number) for run in runs for number in run]
        names = self._stored_names
        stored = dataset.schema
        whole = not extra and names == stored.names
        scanner = dataset.scanner(
            columns=None if whole else [*names, *extra],  # the engine's projection by name is quadratic
            with_row_id=not names and not extra,  # a batch without columns would have no rows
            filter=self.filter,
            limit=limit,
            batch_size=self.batch_size or batch_rows(stored, names, fragments),
            fragments=fragments,
            scan_in_order=True,
            blob_handling="all_binary",
            scan_stats_callback=report,
            **READ_AHEAD,
        )
        for batch in scanner.to_batches():
            if batch.num_rows:
                chosen = batch if self.origins is None else projected(batch, self.origins, self.schema)
                added = batch.select(list(extra))
                yield as_spark_takes(chosen.select(self.schema.names) if extra else chosen, self.schema), added

    @property
    def _stored_names(self) -> list[str]:
        if self.origins is None:
            return list(self.schema.names)
        return [origin.name for origin in self.origins if origin.name is not None]


def report(read: Any) -> None:
    """Report to the task what a scan has read, by the engine's statistics."""
    add_to_task(
        {
            READ_ROWS: read.all_counts.get("rows_scanned", 0),
            READ_BYTES: read.bytes_read,
            REQUESTS: read.requests,
            BY_INDEX: int(read.index_comparisons > 0 or read.indices_loaded > 0),
        }
    )


def _reader(snapshot: Snapshot, schema: bytes, *others: Any) -> FragmentReader:
    return FragmentReader(snapshot, pa.ipc.read_schema(pa.py_buffer(schema)), *others)


def require_columns(stored: pa.Schema, names: Iterable[str]) -> None:
    """Check that the table has the columns.

    Raises:
        InvalidInput: A column is missing.
    """
    known = dict.fromkeys(stored.names)  # Arrow lists them on each access
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InvalidInput(f"the table has no column {unknown[0]!r}; it has {', '.join(known)}")


def require_types(stored: pa.Schema, wanted: pa.Schema) -> None:
    """Check that the table has the columns, with the types that Spark expects.

    Ignores nullability, which Spark may not know. A requested struct may lack stored fields.

    Raises:
        InvalidInput: A column is missing or has another type.
    """
    require_columns(stored, wanted.names)
    require_readable(wanted.names)
    for field in wanted:
        kind = stored.field(field.name).type
        if field.type == kind:
            continue
        seen = as_spark_sees(kind)
        if not _is_part(as_spark_sees(field.type), seen):
            raise InvalidInput(
                f"the column {field.name!r} of the table is {seen} in Spark; it was asked for as {field.type}"
            )


def _is_part(wanted: pa.DataType, seen: pa.DataType) -> bool:
    if pa.types.is_struct(wanted) and pa.types.is_struct(seen):
        known = {child.name: child.type for child in seen}
        return all(child.name in known and _is_part(child.type, known[child.name]) for child in wanted)
    if pa.types.is_list(wanted) and pa.types.is_list(seen):
        return _is_part(wanted.value_type, seen.value_type)
    if pa.types.is_map(wanted) and pa.types.is_map(seen):
        return _is_part(wanted.key_type, seen.key_type) and _is_part(wanted.item_type, seen.item_type)
    return bool(wanted == seen)


class Part(NamedTuple):
    """Runs of fragment ids for one task, with their number of rows."""

    runs: list[range]
    rows: int


def partitions(fragments: Iterable[Fragment], rows: int, most: int = MOST_PARTITIONS) -> Iterator[Part]:
    """Divide fragments into parts, one for each task.

    Args:
        fragments: The fragments.
        rows: The number of rows in all fragments.
        most: The most parts.
    """
    share = max(ROWS_OF_A_PARTITION, -(-rows // most))
    part = Part([], 0)
    for fragment in fragments:
        part = Part(_extended(part.runs, fragment.id), part.rows + fragment.rows)
        if part.rows >= share:
            yield part
            part = Part([], 0)
    if part.runs:
        yield part


def _extended(runs: list[range], number: int) -> list[range]:
    if runs and runs[-1].stop == number:
        runs[-1] = range(runs[-1].start, number + 1)
    else:
        runs.append(range(number, number + 1))
    return runs


def first_rows(parts: Iterable[Part], limit: int) -> Iterator[Part]:
    """Yield the parts that hold the first rows.

    The number of rows of each part is the number to take from it.
    """
    for part in parts:
        if limit <= 0:
            break
        yield part._replace(rows=min(limit, part.rows))
        limit -= part.rows
