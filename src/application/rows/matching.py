"""Match the rows of two streams by their identity, in bounded memory.

A hash join: if both streams together exceed the memory, they are divided by the hash of the identity into files, and
each pair of files is matched alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import chain
from tempfile import TemporaryFile
from typing import Any
from zlib import crc32

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lancekeep.domain.errors import InvalidInput

INSERT, DELETE, BEFORE, AFTER = "insert", "delete", "update_preimage", "update_postimage"
CHANGE_TYPE = "_change_type"
"""The column that says what a row is; its values have the names of Spark's change feeds."""

_PARTS = 16
_MOST_LEVELS = 8
Array = np.ndarray[Any, Any]


@attrs.frozen
class Matching:
    """How to match rows.

    Attributes:
        names: What holds the rows before and after, for messages.
        keys: The columns that identify rows. Their values are unique on each side.
        compared: The columns whose values decide whether a row was updated.
        schema: The columns of both streams.
        memory: The bytes of rows in memory.
    """

    names: tuple[str, str]
    keys: Sequence[str]
    compared: Sequence[str]
    schema: pa.Schema
    memory: int

    def changes(self, before: Iterable[pa.RecordBatch], after: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows that differ, with their `CHANGE_TYPE` as the first column.

        Raises:
            InvalidInput: Several rows of one side have the same identity.
        """
        return self._joined(before, after, 0)

    def _joined(
        self, before: Iterable[pa.RecordBatch], after: Iterable[pa.RecordBatch], level: int
    ) -> Iterator[pa.RecordBatch]:
        sides = [_Side(iter(side)) for side in (before, after)]
        most = self.memory // 2 if level < _MOST_LEVELS else None
        if all(side.fits(most) for side in sides):
            tables = [pa.Table.from_batches(side.held, self.schema) for side in sides]
            yield from self._matched(tables[0], tables[1])
            return
        with ExitStack() as files:
            parts = [self._divided(side, level, files) for side in sides]
            for old, new in zip(*parts, strict=True):
                yield from self._joined(pa.ipc.open_stream(old), pa.ipc.open_stream(new), level + 1)

    def _divided(self, side: _Side, level: int, files: ExitStack) -> list[Any]:
        """Divide rows by the hash of their identity into files, and return the files."""
        found = [files.enter_context(_temporary_file()) for _ in range(_PARTS)]
        with ExitStack() as open_writers:
            writers = [open_writers.enter_context(pa.ipc.new_stream(file, self.schema)) for file in found]
            for batch in side.all():
                numbers = _hashed([batch.column(key) for key in self.keys], level) % _PARTS
                for number in np.unique(numbers):
                    writers[number].write_batch(batch.filter(pa.array(numbers == number)))
        for file in found:
            file.seek(0)
        return found

    def _matched(self, before: pa.Table, after: pa.Table) -> Iterator[pa.RecordBatch]:
        old, new = _codes(before, after, self.keys)
        for name, table, codes in ((self.names[0], before, old), (self.names[1], after, new)):
            self._require_unique(name, table, codes)
        _, at_old, at_new = np.intersect1d(old, new, assume_unique=True, return_indices=True)
        kept, found = before.take(pa.array(at_old)), after.take(pa.array(at_new))
        differ = np.zeros(len(at_old), bool)
        for column in self.compared:
            differ |= ~equal(kept[column].combine_chunks(), found[column].combine_chunks())
        for kind, rows in (
            (DELETE, _without(before, at_old)),
            (INSERT, _without(after, at_new)),
            (BEFORE, kept.filter(pa.array(differ))),
            (AFTER, found.filter(pa.array(differ))),
        ):
            yield from rows.add_column(0, CHANGE_TYPE, pa.array([kind] * len(rows), pa.string())).to_batches()

    def _require_unique(self, name: str, table: pa.Table, codes: Array) -> None:
        values, counts = np.unique(codes, return_counts=True)
        if len(values) == len(codes):
            return
        row = int(np.flatnonzero(codes == values[counts > 1][0])[0])
        key = {each: table[each][row].as_py() for each in self.keys}
        raise InvalidInput(
            f"{name} has {counts.max()} rows with the key {key!r:.200}, so they cannot be told apart; choose columns "
            "that identify a row"
        )


@attrs.define
class _Side:
    """The rows of one side, of which the first are held in memory."""

    _rest: Iterator[pa.RecordBatch]
    held: list[pa.RecordBatch] = attrs.field(factory=list)

    def fits(self, most: int | None) -> bool:
        """Hold rows up to a number of bytes, and return whether all are held."""
        size = 0
        for batch in self._rest:
            self.held.append(batch)
            size += batch.get_total_buffer_size()
            if most is not None and size > most:
                return False
        return True

    def all(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows, once, and give the held ones up."""
        held, self.held = self.held, []
        return chain(held, self._rest)


def equal(some: pa.Array, others: pa.Array) -> Array:
    """Return for each place whether two arrays of one type have the same value.

    Null equals null, and NaN equals NaN.
    """
    if isinstance(some, pa.ExtensionArray):
        return equal(some.storage, others.storage)
    kind, valid = some.type, np.asarray(some.is_valid())
    same: Array = valid == np.asarray(others.is_valid())
    both = np.flatnonzero(same & valid)
    if not len(both) or pa.types.is_null(kind):
        return same
    left, right = some.take(pa.array(both)), others.take(pa.array(both))  # contiguous, and without nulls
    same[both] = _equal_values(left, right, kind)
    return same


def _equal_values(some: pa.Array, others: pa.Array, kind: pa.DataType) -> Array:
    """Compare arrays without nulls; their children may have some."""
    if pa.types.is_struct(kind):
        fields = [equal(left, right) for left, right in zip(some.flatten(), others.flatten(), strict=True)]
        return np.asarray(np.logical_and.reduce(fields)) if fields else np.ones(len(some), bool)
    if pa.types.is_dictionary(kind):
        return equal(some.dictionary_decode(), others.dictionary_decode())
    if pa.types.is_fixed_size_list(kind):
        if not kind.list_size:
            return np.ones(len(some), bool)
        values = equal(some.flatten(), others.flatten())
        return np.asarray(values.reshape(len(some), kind.list_size).all(axis=1))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        if pa.types.is_map(kind):
            listed = pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)]))
            some, others = some.cast(listed), others.cast(listed)
        lengths = np.asarray(pc.list_value_length(some))
        same: Array = lengths == np.asarray(pc.list_value_length(others))
        chosen = same & (lengths > 0)
        if chosen.any():
            mask = pa.array(chosen)
            values = equal(some.filter(mask).flatten(), others.filter(mask).flatten())
            starts = np.concatenate([[0], np.cumsum(lengths[chosen])[:-1]])
            same[chosen] = np.logical_and.reduceat(values, starts)
        return same
    try:
        found = np.array(pc.equal(some, others))
    except pa.ArrowNotImplementedError:
        return np.array([left == right for left, right in zip(some.to_pylist(), others.to_pylist(), strict=True)])
    if pa.types.is_floating(kind):
        found |= np.array(pc.is_nan(some)) & np.array(pc.is_nan(others))
    return found


def _temporary_file() -> Any:
    return TemporaryFile(prefix="lancekeep-")


def _codes(before: pa.Table, after: pa.Table, keys: Sequence[str]) -> tuple[Array, Array]:
    """Return a number for each row of both tables; equal identities have equal numbers."""
    codes: Array = np.zeros(len(before) + len(after), np.int64)
    for key in keys:
        both = pa.chunked_array([*before[key].chunks, *after[key].chunks], before.schema.field(key).type)
        encoded = both.combine_chunks().dictionary_encode(null_encoding="encode")
        numbers = np.asarray(encoded.indices, dtype=np.int64)
        codes = np.unique(codes * (len(encoded.dictionary) + 1) + numbers, return_inverse=True)[1].astype(np.int64)
    return codes[: len(before)], codes[len(before) :]


def _hashed(columns: Sequence[pa.Array], level: int) -> Array:
    """Return a hash of each row, with another seed on each level."""
    if len(columns) == 1 and pa.types.is_integer(columns[0].type) and not columns[0].null_count:
        numbers = columns[0].to_numpy().astype(np.int64).view(np.uint64) + np.uint64(level * 0x9E3779B9)
        mixed = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        return np.asarray(mixed >> np.uint64(33))
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    return np.array([crc32(repr((level, row)).encode()) >> 7 for row in rows], np.uint64)


def _without(table: pa.Table, rows: Array) -> pa.Table:
    mask = np.ones(len(table), bool)
    mask[rows] = False
    return table.filter(pa.array(mask))
