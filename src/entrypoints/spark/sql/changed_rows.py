"""Write the rows that a statement has changed; runs on the executors.

A statement that assigns some columns gets only their values from Spark. For each fragment, the task chooses what writes
fewer bytes: new data files of these columns for the whole fragment, or new rows, whose other columns it reads from the
table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from lance.fragment import RowIdSequence

from lancekeep.adapters.lance.indexes import trusted_indexes
from lancekeep.application.rows.row_rules import check_texts
from lancekeep.domain.errors import Unsupported
from lancekeep.entrypoints.scanning import average_row, batch_rows, row_bytes
from lancekeep.entrypoints.spark.arrow_types import fit
from lancekeep.entrypoints.spark.projection import field_ids
from lancekeep.entrypoints.spark.reading import Snapshot
from lancekeep.entrypoints.spark.sql.column_files import ADDRESS, OFFSETS, Addresses, Rewritten, rewrite
from lancekeep.entrypoints.spark.sql.workers import Batches
from lancekeep.entrypoints.spark.writing import write_batches
from lancekeep.ports.table_engine import WritePlan

FRAGMENT_BITS = np.uint64(32)
_HELD_BYTES = 64 << 20
"""The most new values of a fragment that a task holds in memory; more become new rows."""


class Layout(NamedTuple):
    """Where the parts of a changed row are.

    Attributes:
        operations: The values of the first column that mean delete, update and insert.
        row: The positions of the table's columns; None for missing columns.
        address: The position of the old address.
        unchanged: The indexes of the table's columns that no update changes; updated rows lack their values.
        gathered: Whether all changed rows of a fragment are in one task, and are next to each other.
    """

    operations: tuple[int, int, int]
    row: tuple[int | None, ...]
    address: int
    unchanged: frozenset[int] = frozenset()
    gathered: bool = False

    def without(self, columns: Sequence[int], *, drop: bool) -> Layout:
        """Return the layout after columns at some positions have lost their values.

        With ``drop``, the positions are removed too.
        """
        unchanged = frozenset(index for index, at in enumerate(self.row) if at in columns)
        if not drop:
            return self._replace(unchanged=unchanged)
        gone = np.sort(columns)
        row = tuple(None if at in columns else at - int(np.searchsorted(gone, at)) for at in self.row if at is not None)
        return self._replace(
            row=row, address=self.address - int(np.searchsorted(gone, self.address)), unchanged=unchanged
        )

    def assigned(self, table: pa.Schema) -> pa.Schema:
        """Return the columns of the table that updates change."""
        return pa.schema([field for index, field in enumerate(table) if index not in self.unchanged])


class Written(NamedTuple):
    """What a task has written.

    Attributes:
        added: The fragments of new rows, as JSON.
        deleted: The addresses of deleted rows.
        moved: The old addresses of moved rows.
        rewritten: The fragments with new columns.
    """

    added: list[str]
    deleted: Addresses
    moved: Addresses
    rewritten: list[Rewritten]


def write_changes(batches: Batches, plan: WritePlan, snapshot: Snapshot, layout: Layout) -> Written:
    """Write the changed rows of one task."""
    task = _Task(plan, snapshot, layout)
    added = write_batches(task.rows(batches), plan)
    return Written(task.with_row_ids(added), task.deleted(), task.moved(), task.rewritten)


@attrs.define(slots=False)
class _Task:
    plan: WritePlan
    snapshot: Snapshot
    layout: Layout
    rewritten: list[Rewritten] = attrs.field(factory=list)
    _deleted: list[Addresses] = attrs.field(factory=list)
    _moved: list[Addresses] = attrs.field(factory=list)
    _held: list[pa.RecordBatch] = attrs.field(factory=list)
    _fragment: Any = None
    _living: Any = None
    _held_bytes: int = 0
    _is_split: bool = False

    @cached_property
    def _dataset(self) -> Any:
        return self.snapshot.open()

    @cached_property
    def _assigned(self) -> pa.Schema:
        """The columns that updates change."""
        return self.layout.assigned(self.plan.schema)

    @cached_property
    def _kept(self) -> list[str]:
        return [name for index, name in enumerate(self.plan.schema.names) if index in self.layout.unchanged]

    def rows(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """Yield the new rows, and rewrite columns of fragments.

        Moved rows come before inserted ones if the batches are sorted by address.
        """
        delete, update, insert = self.layout.operations
        for batch in batches:
            kind = batch.column(0)
            unknown = set(pc.unique(kind).to_pylist()) - {delete, update, insert}
            if unknown:
                raise Unsupported(f"Spark asks for a change of the kind {min(unknown)}, which is not known")
            if self.layout.unchanged:
                yield from self._updated(batch.filter(pc.not_equal(kind, insert)))
                new = batch.filter(pc.equal(kind, insert))
                if new.num_rows:
                    yield from self._finish()
            else:
                self._deleted.append(self._addresses(batch.filter(pc.equal(kind, delete))))
                self._moved.append(self._addresses(batch.filter(pc.equal(kind, update))))
                new = batch.filter(pc.not_equal(kind, delete))
            if new.num_rows and self.layout.row:
                yield self._whole(new)
        yield from self._finish()

    def deleted(self) -> Addresses:
        """Return the addresses of deleted rows."""
        return np.concatenate([np.empty(0, np.uint64), *self._deleted])

    def moved(self) -> Addresses:
        """Return the old addresses of moved rows."""
        return np.concatenate([np.empty(0, np.uint64), *self._moved])

    def with_row_ids(self, fragments: Sequence[str]) -> list[str]:
        """Give moved rows their ids again; the commit gives ids to the rows after them."""
        if not fragments or not any(map(len, self._moved)) or not self._dataset.has_stable_row_ids:
            return list(fragments)
        ids = self._ids(self.moved())
        found = []
        for text in fragments:
            fragment = json.loads(text)
            own, ids = ids[: fragment["physical_rows"]], ids[fragment["physical_rows"] :]
            if len(own):
                fragment["row_id_meta"] = json.loads(RowIdSequence(pa.array(own)).to_inline_metadata().json())
            found.append(json.dumps(fragment))
        return found

    def _ids(self, addresses: Addresses) -> Addresses:
        numbers, positions = np.unique(addresses >> FRAGMENT_BITS, return_inverse=True)
        ids = np.empty(len(addresses), np.uint64)
        for at, number in enumerate(numbers.tolist()):
            sequence = RowIdSequence.from_inline_metadata(self._dataset.get_fragment(number).metadata.row_id_meta)
            chosen = positions == at
            ids[chosen] = sequence.to_pyarrow().to_numpy()[addresses[chosen] & OFFSETS]
        return ids

    def _addresses(self, batch: pa.RecordBatch) -> Addresses:
        return np.asarray(batch.column(self.layout.address).cast(pa.uint64()).to_numpy(zero_copy_only=False))

    def _whole(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [batch.column(at) for at in self.layout.row if at is not None]
        return pa.RecordBatch.from_arrays(columns, names=self.plan.schema.names)

    # -- updates of some columns, a fragment at a time --------------------------------------------------------------

    def _updated(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take the deleted and updated rows of a batch; yield the new rows of finished fragments."""
        numbers = self._addresses(batch) >> FRAGMENT_BITS
        starts = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1), len(numbers)] if len(numbers) else []
        for start, end in pairwise(starts):
            number = int(numbers[start])
            if self._fragment is None or self._fragment.fragment_id != number:
                yield from self._finish()
                self._fragment = self._dataset.get_fragment(number)
            self._held.append(batch.slice(start, end - start))
            self._held_bytes += self._held[-1].nbytes
            if self._held_bytes > _HELD_BYTES:
                self._is_split = True
                yield from self._move()

    def _finish(self) -> Iterator[pa.RecordBatch]:
        """Write the changes of the fragment that are held."""
        if self._held and self._columns_are_less():
            self._rewrite()
        else:
            yield from self._move()
        self._fragment, self._living, self._is_split = None, None, False

    @cached_property
    def _is_indexed(self) -> bool:
        """Whether an index of an assigned column would keep entries of the replaced values."""
        return bool(trusted_indexes(self._dataset, field_ids(self._dataset, self._assigned.names)))

    def _columns_are_less(self) -> bool:
        """Whether columns of the whole fragment are fewer bytes than whole rows, and may replace stored columns."""
        if (
            self._is_indexed
            or not self.layout.gathered
            or self._is_split
            or any(self._removed_at(held) for held in self._held)
        ):
            return False
        schema, fragment = self._dataset.schema, self._fragment
        stored = {number for file in fragment.metadata.files for number in file.fields}
        if not set(field_ids(self._dataset, self._assigned.names, leaves=True)) <= stored:
            return False  # the fragment is older than a column
        average = average_row(fragment)
        columns = fragment.physical_rows * row_bytes(schema, self._assigned.names, average)
        rows = sum(held.num_rows for held in self._held) * row_bytes(schema, schema.names, average)
        return bool(columns <= rows)

    def _removed_at(self, batch: pa.RecordBatch) -> int:
        return int(pc.sum(pc.equal(batch.column(0), self.layout.operations[0])).as_py())

    def _rewrite(self) -> None:
        """Write the assigned columns of the fragment."""
        held = pa.concat_batches(self._held)
        self.rewritten.append(rewrite(self._dataset, self._fragment, self._addresses(held), self._new(held), self.plan))
        self._forget()

    def _new(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the assigned columns of updated rows in the types of the table."""
        row = self.layout.row
        columns = [batch.column(at) for index, at in enumerate(row) if index not in self.layout.unchanged]
        new = fit(pa.RecordBatch.from_arrays(columns, names=self._assigned.names), self._assigned)
        check_texts(new)
        return new

    def _move(self) -> Iterator[pa.RecordBatch]:
        """Yield the held updates as whole rows, and forget them."""
        if not self._held:
            return
        held = pa.concat_batches(self._held)
        is_deleted = pc.equal(held.column(0), self.layout.operations[0])
        self._deleted.append(self._addresses(held.filter(is_deleted)))
        updated = held.filter(pc.invert(is_deleted))
        most = batch_rows(self._dataset.schema, self.plan.schema.names, [self._fragment])
        for start in range(0, updated.num_rows, most):
            yield self._completed(updated.slice(start, most))
        self._forget()

    def _forget(self) -> None:
        self._held.clear()
        self._held_bytes = 0

    def _completed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Add the unchanged columns of updated rows."""
        addresses = self._addresses(batch)
        self._moved.append(addresses)
        stored = self._fragment.take(self._positions(addresses), columns=self._kept)
        columns = {name: pa.concat_arrays(stored[name].chunks) for name in self._kept}
        new = self._new(batch)
        columns |= dict(zip(new.schema.names, new.columns, strict=True))
        return pa.RecordBatch.from_arrays([columns[name] for name in self.plan.schema.names], schema=self.plan.schema)

    def _positions(self, addresses: Addresses) -> list[int]:
        """Return the positions of rows among the rows of the fragment that are not deleted."""
        offsets: npt.NDArray[Any] = addresses & OFFSETS
        if self._fragment.num_deletions:
            if self._living is None:
                scanner = self._fragment.scanner(columns=[], with_row_address=True)
                self._living = scanner.to_table()[ADDRESS].to_numpy()
            offsets = np.searchsorted(self._living, addresses)
        return [int(offset) for offset in offsets]
