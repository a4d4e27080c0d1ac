"""Dictionaries of columns in an Arrow IPC file.

A file can add values to the dictionary of a column, and cannot replace it. The engine gives each batch the dictionary
of its data file.
"""

from __future__ import annotations

from typing import Any, Final

import attrs
import pyarrow as pa

from lancekeep.domain.errors import Unsupported
from lancekeep.native import compute as pc

OPTIONS: Final = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
"""How to write a file whose dictionaries grow."""


@attrs.define
class _Growing:
    """The dictionary of one column, and the last dictionary of a batch with its places in it."""

    values: pa.Array
    last: pa.Array
    places: pa.Array


class Dictionaries:
    """Gives batches one dictionary for each column, which only grows."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], _Growing] = {}

    def merged(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with the same values.

        Raises:
            Unsupported: A column has more values than its dictionary can have.
        """
        if not any(map(_holds_dictionary, batch.schema.types)):
            return batch
        columns = [self._merged(column, (at,), batch.schema.names[at]) for at, column in enumerate(batch.columns)]
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)

    def _merged(self, array: Any, place: tuple[int, ...], name: str) -> Any:
        if not _holds_dictionary(array.type):
            return array
        if isinstance(array, pa.DictionaryArray):
            return self._encoded(array, place, name)
        if isinstance(array, pa.StructArray):
            fields = [self._merged(array.field(at), (*place, at), name) for at in range(array.type.num_fields)]
            return pa.StructArray.from_arrays(fields, fields=list(array.type), mask=array.is_null())
        if isinstance(array, pa.ListArray | pa.LargeListArray):
            first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
            parts = (array.keys, array.items) if isinstance(array, pa.MapArray) else (array.values,)
            inner = [self._merged(part.slice(first, last - first), (*place, at), name) for at, part in enumerate(parts)]
            offsets = pc.subtract(array.offsets, pa.scalar(first, array.offsets.type))
            return type(array).from_arrays(offsets, *inner, type=array.type, mask=array.is_null())
        return array

    def _encoded(self, array: pa.DictionaryArray, place: tuple[int, ...], name: str) -> pa.DictionaryArray:
        kind, own = array.type, array.dictionary
        known = self._known.get(place)
        if known is None:
            self._known[place] = _Growing(own, own, pa.array(range(len(own)), pa.int64()))
            return array
        if not known.last.equals(own):
            new = own.filter(pc.invert(pc.is_in(own, value_set=known.values)))
            values = pa.concat_arrays([known.values, pc.unique(new)])
            places = pc.index_in(own, value_set=values).cast(pa.int64())
            known = self._known[place] = _Growing(values, own, places)
        try:
            indices = known.places.take(array.indices.cast(pa.int64())).cast(kind.index_type)
        except pa.ArrowInvalid as error:
            raise Unsupported(
                f"the column {name!r} has more values in these rows than its type {kind} can have in one answer; query "
                "fewer rows, or leave the column out"
            ) from error
        return pa.DictionaryArray.from_arrays(indices, known.values, ordered=kind.ordered)


def _holds_dictionary(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        return True
    return any(_holds_dictionary(kind.field(at).type) for at in range(kind.num_fields))
