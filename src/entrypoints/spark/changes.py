"""Compute the rows that each version of a table inserts, deletes and updates.

The driver compares the manifests of adjacent versions, and tasks read only fragments that differ. Stable row ids show
which row an update has replaced. Without them, appends, deletes and overwrites are known exactly, and a version that
updated rows is refused.

Versions of rows show which rows an update has changed. Some writers replace values without them, and a restore may
bring such values back, so tasks compare the values of these versions (docs/adr/0197).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from hashlib import blake2b
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lancekeep.application.catalog import Catalog, services_of
from lancekeep.domain.errors import InvalidInput, Refused
from lancekeep.domain.stable_row_ids import STABLE_ROW_IDS
from lancekeep.entrypoints.spark.reading import FragmentReader, Snapshot, entries
from lancekeep.format.kept_values import keep_rows, replaces_silently

INSERT, DELETE, BEFORE, AFTER = "insert", "delete", "update_preimage", "update_postimage"
CHANGE_COLUMNS = pa.schema(
    [
        pa.field("_change_type", pa.string(), nullable=False),
        pa.field("_commit_version", pa.int64(), nullable=False),
        pa.field("_commit_timestamp", pa.timestamp("us", "UTC"), nullable=False),
    ]
)
"""The columns of a change after the columns of the table, as Spark names them."""

_UPDATED = "_row_last_updated_at_version"
_KEEPING_ROWS = ("Rewrite", "Merge", "CreateIndex", "UpdateConfig", "Project", "ReserveFragments", "UpdateMemWalState")
"""Operations that change no row. ``Merge`` adds columns, and ``Project`` drops or renames them.

A ``Merge`` of another program may also replace values.
"""

Reader = Callable[[Any], FragmentReader]
"""Creates the reader of a version in the columns of the changes, given its ``LanceDataset``."""


@attrs.frozen
class Side:
    """The differing fragments of one of two versions; can be pickled."""

    reader: FragmentReader
    runs: tuple[range, ...]

    def rows(self, extra: Sequence[str] = ()) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch]]:
        return self.reader.read_with(self.runs, None, extra)

    def keys(self, names: Sequence[str], *, digests: bool) -> list[np.ndarray[Any, Any]]:
        """Return metadata columns of all rows, sorted by the first.

        With ``digests``, the last column has the digests of the rows.
        """
        reader = self.reader if digests else attrs.evolve(self.reader, schema=pa.schema([]), origins=None)
        found = [
            [*(extra.column(name).to_numpy() for name in names), *([_digests(batch)] if digests else [])]
            for batch, extra in reader.read_with(self.runs, None, names)
        ]
        empty = [np.empty(0, np.uint64)] * (len(names) + digests)
        columns = [np.concatenate(parts) for parts in zip(empty, *found, strict=True)]
        order = np.argsort(columns[0], kind="stable")
        return [column[order] for column in columns]


def _digests(batch: pa.RecordBatch) -> np.ndarray[Any, Any]:
    """Return a digest of each row. Rows of equal values have equal digests, also if they are null."""
    rows = (blake2b(batch.take(pa.array([at])).serialize(), digest_size=8).digest() for at in range(len(batch)))
    return np.frombuffer(b"".join(rows), np.uint64)


@attrs.frozen
class Step:
    """The changes of one version; can be pickled.

    Attributes:
        version: The version.
        time: The time of its commit.
        before: The fragments of the preceding version that differ; None if there are none.
        after: The fragments of the version that differ; None if there are none.
        key: The metadata column that identifies rows; None if all rows before are deleted and all after are inserted.
        compares: Whether the values of rows decide which were updated, not the versions of their last updates.
        schema: The schema of the changes.
    """

    version: int
    time: datetime
    before: Side | None
    after: Side | None
    key: str | None
    compares: bool
    schema: pa.Schema

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the changes."""
        if self.key is None or self.before is None or self.after is None:
            for side, kind in ((self.before, DELETE), (self.after, INSERT)):
                if side is not None:
                    yield from (self._change(batch, pa.array([kind] * len(batch))) for batch, _ in side.rows())
            return
        names = [self.key, _UPDATED] if self.key == "_rowid" and not self.compares else [self.key]
        old, new = (side.keys(names, digests=self.compares) for side in (self.before, self.after))
        _, at_old, at_new = np.intersect1d(old[0], new[0], assume_unique=True, return_indices=True)
        differs = np.zeros(len(at_old), bool)
        for was, now in zip(old[1:], new[1:], strict=True):
            differs |= was[at_old] != now[at_new]
        updated = old[0][at_old][differs]
        for side, others, alone, changed in (
            (self.before, new[0], DELETE, BEFORE),
            (self.after, old[0], INSERT, AFTER),
        ):
            for batch, extra in side.rows([self.key]):
                keys = extra.column(0).to_numpy()
                is_alone, is_changed = ~np.isin(keys, others), np.isin(keys, updated)
                kinds = pc.if_else(pa.array(is_alone), alone, changed)
                chosen = pa.array(is_alone | is_changed)
                yield self._change(batch.filter(chosen), kinds.filter(chosen))

    def _change(self, batch: pa.RecordBatch, kinds: pa.Array) -> pa.RecordBatch:
        count = len(batch)
        added = [
            kinds.cast(pa.string()),
            pa.array([self.version] * count, pa.int64()),
            pa.array([self.time] * count, CHANGE_COLUMNS.field(2).type),
        ]
        return pa.RecordBatch.from_arrays([*batch.columns, *added], schema=self.schema)


def steps(
    catalog: Catalog,
    name: str,
    open_version: Callable[[int], Any],
    versions: Iterable[int],
    schema: pa.Schema,
    reader: Reader | None = None,
) -> Iterator[Step]:
    """Plan the changes of versions.

    Args:
        catalog: The catalog.
        name: The table, for errors.
        open_version: Opens a version.
        versions: The versions, in order.
        schema: The columns of the table in Spark's Arrow types, followed by `CHANGE_COLUMNS`.
        reader: Creates the reader of a version. By default each version has the columns of the table.

    Raises:
        Refused: A version updated rows, and the table has no stable row ids.
        InvalidInput: A version has other columns.
        VersionNotFound: Clean-up removed a version, or the one before it.
    """
    columns = pa.schema(list(schema)[: len(schema) - len(CHANGE_COLUMNS)])
    chosen = reader or partial(_reader_of_same_columns, catalog, name, columns)
    wanted = list(versions)
    listed = open_version(wanted[-1]).versions() if wanted else []
    times = {one["version"]: one["timestamp"].astimezone(UTC) for one in listed}
    for version in wanted:
        after = open_version(version)
        before = open_version(version - 1) if version > 1 else None
        step = _step(catalog, name, before, after, times[version], schema, chosen)
        if step is not None:
            yield step


def initial_step(catalog: Catalog, name: str, dataset: Any, schema: pa.Schema, reader: Reader) -> Iterator[Step]:
    """Plan the rows of a version as inserts."""
    listed = {one["version"]: one["timestamp"].astimezone(UTC) for one in dataset.versions()}
    step = _step(catalog, name, None, dataset, listed[dataset.version], schema, reader)
    if step is not None:
        yield step


def _step(
    catalog: Catalog, name: str, before: Any, after: Any, time: datetime, schema: pa.Schema, reader: Reader
) -> Step | None:
    new = {entry.id: entry.content for entry in entries(after)}
    old = {} if before is None else {entry.id: entry.content for entry in entries(before)}
    gone = [number for number, content in old.items() if new.get(number) != content]
    come = [number for number, content in new.items() if old.get(number) != content]
    key, compares = None, False
    if gone:
        operation = services_of(catalog).engine.structure.operation(after)
        if operation in _KEEPING_ROWS and (operation != "Merge" or keep_rows(old, new)):
            return None
        if operation != "Overwrite":
            if after.has_stable_row_ids and before.has_stable_row_ids:
                key = "_rowid"
                compares = operation in ("Restore", "Merge") or any(
                    replaces_silently(old[number], new[number]) for number in gone if number in new
                )
            elif operation == "Delete":
                key = "_rowaddr"
            else:
                raise Refused(
                    f"version {after.version} of {name} updated rows ({operation}), and the table has no stable row "
                    "ids that show which. Skip the version: read other versions in SQL, or start a stream with a new "
                    f"checkpoint. Tables that are created with {STABLE_ROW_IDS!r} = 'true' have stable row ids."
                )
    if not gone and not come:
        return None
    removed, added = _side(before, gone, reader), _side(after, come, reader)
    return Step(after.version, time, removed, added, key, compares, schema)


def _side(dataset: Any, numbers: Sequence[int], reader: Reader) -> Side | None:
    if not numbers:
        return None
    return Side(reader(dataset), tuple(range(number, number + 1) for number in sorted(numbers)))


def _reader_of_same_columns(catalog: Catalog, name: str, columns: pa.Schema, dataset: Any) -> FragmentReader:
    if dataset.schema.names != columns.names:
        raise InvalidInput(
            f"version {dataset.version} of {name} has the columns {', '.join(dataset.schema.names)}, and the last "
            f"version of the range has {', '.join(columns.names)}. Read the changes before and after in two queries."
        )
    return FragmentReader.of(Snapshot.of(catalog, dataset), dataset.schema, columns)
