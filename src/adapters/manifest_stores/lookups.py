"""Find rows of the manifest table by id, by parent and by location.

A lookup orders the rows in one run per object type and depth, so the children of a namespace are one contiguous range.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice, takewhile
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from lancekeep.adapters.manifest_stores.columns import column_of
from lancekeep.domain.identifiers import MANIFEST_DELIMITER
from lancekeep.domain.table import V1_SUFFIX
from lancekeep.native import compute as pc

HASH_LENGTH = len("12345678_")
"""Length of the prefix that a location has before the object id."""

STEP = 64
"""Every key at a multiple of this number is a Python object: most of a search is one `bisect`."""

_LARGEST = 4096

Part = tuple[Sequence[str], Sequence[int]]
"""Ids, and the position of each id."""


class Lookup(Protocol):
    """Finds rows; positions count from the first row."""

    def positions(self, object_id: str) -> Iterable[int]:
        """Return the positions of an id; several if a foreign writer wrote it twice."""

    def kinds(self) -> Iterable[tuple[str, int]]:
        """Return the object types and depths that occur."""

    def between(self, kind: tuple[str, int], low: str, high: str | None, size: int = STEP) -> Iterator[Part]:
        """Yield the ids of one type and depth with their positions.

        The ids are in byte order. The range includes ``low`` and excludes ``high``. The first part has up to ``size``
        ids; later parts grow.
        """

    def elsewhere(self, low: str, high: str) -> Iterable[int]:
        """Return the positions of rows whose location does not follow from their id.

        The range of locations includes ``low`` and excludes ``high``.
        """


class SmallLookup:
    """A lookup for a few rows: dictionaries and sorted lists."""

    def __init__(self, rows: Iterable[tuple[str | None, str | None, str | None]]) -> None:
        self._positions: dict[str, list[int]] = {}
        self._elsewhere: list[tuple[str, int]] = []
        self._kinds: list[tuple[str, str, int]] = []
        for position, (object_id, object_type, location) in enumerate(rows):
            if object_id is None or object_type is None:
                continue
            self._positions.setdefault(object_id, []).append(position)
            self._kinds.append((object_id, object_type, position))
            if location and location not in (object_id + V1_SUFFIX, location[:HASH_LENGTH] + object_id):
                self._elsewhere.append((location, position))
        self._elsewhere.sort()

    @cached_property
    def _runs(self) -> dict[tuple[str, int], Part]:
        """The ids of each type and depth, in order, with their positions."""
        runs: dict[tuple[str, int], tuple[list[str], list[int]]] = {}
        for object_id, object_type, position in sorted(self._kinds):
            ids, positions = runs.setdefault((object_type, object_id.count(MANIFEST_DELIMITER)), ([], []))
            ids.append(object_id)
            positions.append(position)
        return dict(runs)

    def positions(self, object_id: str) -> Iterable[int]:
        return self._positions.get(object_id, ())

    def kinds(self) -> Iterable[tuple[str, int]]:
        return self._runs

    def between(self, kind: tuple[str, int], low: str, high: str | None, size: int = STEP) -> Iterator[Part]:
        ids, positions = self._runs.get(kind, ((), ()))
        start = bisect_left(ids, low)
        stop = len(ids) if high is None else bisect_left(ids, high)
        return ((ids[part], positions[part]) for part in _parts(start, stop, size))

    def elsewhere(self, low: str, high: str) -> Iterable[int]:
        if not self._elsewhere:
            return ()
        found = islice(self._elsewhere, bisect_left(self._elsewhere, (low, -1)), None)
        return (position for location, position in found if location < high)


class SortedLookup:
    """A lookup for many rows: positions in order per object type and depth.

    It needs eight bytes per row. Each part of it is made when a search first needs it: the first page of a large
    catalog needs neither the order of other depths nor the locations.
    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self._ids: pa.Array = batch.column("object_id")
        self._runs: dict[tuple[str, int], _Run] = {}

    def positions(self, object_id: str) -> Iterable[int]:
        depth = object_id.count(MANIFEST_DELIMITER)
        key = object_id.encode()
        kinds = [kind for kind in self._kinds if kind[1] == depth]
        return [position for kind in kinds for position in self._run(kind).positions_of(key)]

    def kinds(self) -> Iterable[tuple[str, int]]:
        return self._kinds

    def between(self, kind: tuple[str, int], low: str, high: str | None, size: int = STEP) -> Iterator[Part]:
        if kind not in self._kinds:
            return iter(())
        return self._run(kind).between(low.encode(), None if high is None else high.encode(), size)

    def elsewhere(self, low: str, high: str) -> Iterable[int]:
        if not self._elsewhere:
            return ()
        found = islice(self._elsewhere, bisect_left(self._elsewhere, (low, -1)), None)
        return (position for location, position in takewhile(lambda item: item[0] < high, found))

    def _run(self, kind: tuple[str, int]) -> _Run:
        run = self._runs.get(kind)
        if run is None:  # two threads may make it at once, which gives equal runs
            run = self._runs[kind] = _Run(self._ids, pc.and_(*map(pc.equal, self._kind_columns, self._kinds[kind])))
            pa.default_memory_pool().release_unused()  # Without this, a process holds twice the memory of the rows.
        return run

    @cached_property
    def _kind_columns(self) -> tuple[pa.Array, pa.Array]:
        """The type and the depth of each row."""
        return self._batch.column("object_type"), pc.count_substring(self._ids, MANIFEST_DELIMITER)

    @cached_property
    def _kinds(self) -> Mapping[tuple[str, int], tuple[pa.Scalar, pa.Scalar]]:
        """The kinds that occur, also as values of Arrow: to convert a text imports pandas, which takes 0.3 s."""
        types, depths = self._kind_columns
        return {
            (object_type.as_py(), depth.as_py()): (object_type, depth)
            for object_type in pc.unique(types.drop_null())
            for depth in pc.unique(depths.filter(pc.equal(types, object_type)).drop_null())
        }

    @cached_property
    def _elsewhere(self) -> Sequence[tuple[str, int]]:
        locations = column_of(self._batch, "location")
        hashed = pc.binary_join_element_wise(pc.utf8_slice_codeunits(locations, 0, HASH_LENGTH), self._ids, "")
        v1 = pc.binary_join_element_wise(self._ids, V1_SUFFIX, "")
        follows = pc.or_(pc.equal(hashed, locations), pc.equal(v1, locations))
        positions = pc.indices_nonzero(pc.invert(pc.fill_null(follows, True)))
        found = sorted(zip(locations.take(positions).to_pylist(), positions.to_pylist(), strict=True))
        pa.default_memory_pool().release_unused()
        return found


class _Run:
    """Positions of rows in the byte order of their ids."""

    def __init__(self, ids: pa.Array, chosen: pa.BooleanArray) -> None:
        keys, positions = ids.filter(chosen), pc.indices_nonzero(chosen)
        count = len(keys)
        if not pc.all(pc.less_equal(keys.slice(0, count - 1), keys.slice(1))).as_py():
            positions = positions.take(pc.array_sort_indices(keys))
        self._order: np.ndarray[Any, np.dtype[np.uint32]] = _numbers(positions).astype(np.uint32)
        self._positions = memoryview(self._order)  # Reading one number from it is faster than from the array.
        self._ids = ids
        _, offsets, data = ids.buffers()
        self._offsets = memoryview(offsets).cast("i")[ids.offset : ids.offset + len(ids) + 1]
        self._data = memoryview(data)
        self._marks: list[bytes] = ids.take(positions_array(self._order[::STEP])).cast(pa.binary()).to_pylist()

    def positions_of(self, key: bytes) -> Iterator[int]:
        at = self._bisect(key)
        while at < len(self._positions) and self._key(at) == key:
            yield self._positions[at]
            at += 1

    def between(self, low: bytes, high: bytes | None, size: int) -> Iterator[Part]:
        start = self._bisect(low)
        stop = len(self._order) if high is None else self._bisect(high)
        for part in _parts(start, stop, size):
            positions = self._order[part]
            yield self._ids.take(positions_array(positions)).to_pylist(), positions.tolist()

    def _bisect(self, key: bytes) -> int:
        """Return the first place whose key is at least ``key``."""
        mark = bisect_left(self._marks, key)
        low, high = max(0, (mark - 1) * STEP), min(mark * STEP, len(self._positions))
        positions, offsets, data = self._positions, self._offsets, self._data
        while low < high:
            middle = (low + high) // 2
            position = positions[middle]
            if data[offsets[position] : offsets[position + 1]].tobytes() < key:
                low = middle + 1
            else:
                high = middle
        return low

    def _key(self, at: int) -> bytes:
        position = self._positions[at]
        return self._data[self._offsets[position] : self._offsets[position + 1]].tobytes()


def positions_array(positions: Sequence[int] | np.ndarray[Any, np.dtype[np.uint32]]) -> pa.UInt32Array:
    """Return positions for `take`. `pa.array` would import pandas."""
    buffer = pa.py_buffer(np.ascontiguousarray(positions, np.uint32))
    return pa.Array.from_buffers(pa.uint32(), len(positions), [None, buffer])


def _numbers(positions: pa.UInt64Array) -> Any:
    """Return the numbers of an array without nulls. `to_numpy` would import pandas."""
    return np.frombuffer(positions.buffers()[1], np.uint64)[positions.offset :][: len(positions)]


def _parts(start: int, stop: int, size: int) -> Iterator[slice]:
    """Yield consecutive slices; the first has up to ``size`` elements, later ones more."""
    while start < stop:
        end = min(start + size, stop)
        yield slice(start, end)
        start, size = end, min(size * 2, _LARGEST)
