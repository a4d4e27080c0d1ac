"""Find rows of the manifest table by id, by parent and by location.

A lookup orders the rows in one run per object type and depth, so the children of a namespace are one contiguous range.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import islice, takewhile
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lancekeep.adapters.manifest_stores.columns import column_of
from lancekeep.domain.identifiers import MANIFEST_DELIMITER
from lancekeep.domain.table import V1_SUFFIX

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

    It needs four bytes per row.
    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._ids: pa.Array = batch.column("object_id")
        depths = pc.count_substring(self._ids, MANIFEST_DELIMITER)
        types = batch.column("object_type")
        self._runs: dict[tuple[str, int], _Run] = {}
        for object_type in pc.unique(types.drop_null()).to_pylist():
            of_type = pc.equal(types, object_type)
            for depth in pc.unique(depths.filter(of_type).drop_null()).to_pylist():
                chosen = pc.indices_nonzero(pc.and_(of_type, pc.equal(depths, depth)))
                self._runs[object_type, depth] = _Run(self._ids, chosen)
        self._of_depth: dict[int, list[_Run]] = {}
        for (_, depth), run in self._runs.items():
            self._of_depth.setdefault(depth, []).append(run)
        self._elsewhere = self._locations_elsewhere(column_of(batch, "location"))
        pa.default_memory_pool().release_unused()  # Without this, a process holds twice the memory of the rows.

    def positions(self, object_id: str) -> Iterable[int]:
        depth = object_id.count(MANIFEST_DELIMITER)
        key = object_id.encode()
        return [position for run in self._of_depth.get(depth, ()) for position in run.positions_of(key)]

    def kinds(self) -> Iterable[tuple[str, int]]:
        return self._runs

    def between(self, kind: tuple[str, int], low: str, high: str | None, size: int = STEP) -> Iterator[Part]:
        run = self._runs.get(kind)
        return iter(()) if run is None else run.between(low.encode(), None if high is None else high.encode(), size)

    def elsewhere(self, low: str, high: str) -> Iterable[int]:
        if not self._elsewhere:
            return ()
        found = islice(self._elsewhere, bisect_left(self._elsewhere, (low, -1)), None)
        return (position for location, position in takewhile(lambda item: item[0] < high, found))

    def _locations_elsewhere(self, locations: pa.Array) -> list[tuple[str, int]]:
        hashed = pc.binary_join_element_wise(pc.utf8_slice_codeunits(locations, 0, HASH_LENGTH), self._ids, "")
        v1 = pc.binary_join_element_wise(self._ids, V1_SUFFIX, "")
        follows = pc.or_(pc.equal(hashed, locations), pc.equal(v1, locations))
        positions = pc.indices_nonzero(pc.invert(pc.fill_null(follows, True)))
        return sorted(zip(locations.take(positions).to_pylist(), positions.to_pylist(), strict=True))


class _Run:
    """Positions of rows in the byte order of their ids."""

    def __init__(self, ids: pa.Array, chosen: pa.Array) -> None:
        keys = ids.take(chosen)
        count = len(keys)
        if not pc.all(pc.less_equal(keys.slice(0, count - 1), keys.slice(1))).as_py():
            chosen = chosen.take(pc.array_sort_indices(keys))
        self._order: np.ndarray[Any, np.dtype[np.uint32]] = chosen.to_numpy().astype(np.uint32)
        self._positions = memoryview(self._order)  # Reading one number from it is faster than from the array.
        self._ids = ids
        _, offsets, data = ids.buffers()
        self._offsets = memoryview(offsets).cast("i")[ids.offset : ids.offset + len(ids) + 1]
        self._data = memoryview(data)
        self._marks = [self._key(at) for at in range(0, count, STEP)]

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
            yield self._ids.take(pa.array(positions)).to_pylist(), positions.tolist()

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


def _parts(start: int, stop: int, size: int) -> Iterator[slice]:
    """Yield consecutive slices; the first has up to ``size`` elements, later ones more."""
    while start < stop:
        end = min(start + size, stop)
        yield slice(start, end)
        start, size = end, min(size * 2, _LARGEST)
