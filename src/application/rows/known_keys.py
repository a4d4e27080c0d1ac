"""The rows of a table by their keys, in the memory of a process."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lancekeep.native import compute as pc

MOST_KEYS: Final = 4_000_000
"""The rows of a table whose keys a process holds."""
MOST_BYTES: Final = 64 << 20
"""The bytes of these keys, with the addresses of their rows."""
MOST_BYTES_TOGETHER: Final = 128 << 20
"""The bytes of the keys of all tables."""
_MOST_MOVED, _MOST_MOVED_BYTES = 50_000, 8 << 20
"""The moves, and their bytes, after which the keys are put in order."""
_BYTES_OF_A_MOVE = 256
"""The bytes of an entry of a key that was moved, without the key itself."""

Addresses = npt.NDArray[np.uint64]


class KnownKeys:
    """The addresses of the live rows of one version, by their keys.

    A version that this process makes of it is noted by the rows that it moves and adds. Not safe for several threads.

    Args:
        kind: the ``pyarrow.DataType`` of the key column.
    """

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self._is_sorted = pa.types.is_integer(kind)  # texts take seconds to sort
        self._values = pa.chunked_array([], kind)
        self._addresses: Addresses = np.empty(0, np.uint64)
        self._moved: dict[Any, int] = {}
        self._moved_bytes = 0
        self._dead = set[int]()

    @property
    def size(self) -> int:
        """The bytes in memory."""
        return int(self._values.nbytes) + self._addresses.nbytes + self._moved_bytes

    @property
    def are_too_many(self) -> bool:
        """Whether a process must not hold these keys."""
        rows = len(self._addresses) - len(self._dead) + len(self._moved)
        return rows > MOST_KEYS or self.size > MOST_BYTES

    def find(self, wanted: Collection[Any]) -> Mapping[Any, Sequence[int]]:
        """Return the addresses of the rows with some values.

        Values that no row has are left out.
        """
        found: dict[Any, list[int]] = {value: [self._moved[value]] for value in wanted if value in self._moved}
        at = self._places(pa.array(wanted, self.kind))
        values = self._values.take(pa.array(at)).to_pylist()
        for value, address in zip(values, self._addresses[at].tolist(), strict=True):
            if address not in self._dead:
                found.setdefault(value, []).append(address)
        return found

    def _places(self, wanted: Any) -> Addresses:
        """Return the places of some values in memory."""
        if not self._is_sorted or not len(self._values):
            found: Addresses = pc.indices_nonzero(pc.is_in(self._values, value_set=wanted)).to_numpy()
            return found
        values, asked = self._values.chunk(0).to_numpy(), np.unique(wanted.to_numpy())
        first, last = (np.searchsorted(values, asked, side) for side in ("left", "right"))
        many = last - first
        return np.repeat(last - np.cumsum(many), many).astype(np.uint64) + np.arange(many.sum(), dtype=np.uint64)

    def move(self, values: Sequence[Any], fragment: int, before: Mapping[Any, Sequence[int]]) -> None:
        """Note that the rows with some values are the rows of a new fragment now.

        Args:
            values: the values of the rows of the fragment, in order.
            fragment: its id.
            before: what `find` has returned for these values.
        """
        for value, addresses in before.items():
            if value not in self._moved:  # otherwise its address is forgotten here
                self._dead.update(addresses)
        self._moved_bytes += sum(_bytes_of(value) for value in values if value not in self._moved)
        self._moved.update((value, fragment << 32 | offset) for offset, value in enumerate(values))
        if len(self._moved) > _MOST_MOVED or self._moved_bytes > _MOST_MOVED_BYTES:
            self.replace((), self._moved_rows())

    def replace(self, fragments: Collection[int], rows: Iterable[tuple[Any, Addresses]]) -> None:
        """Forget the rows of some fragments, and add rows.

        Args:
            fragments: the ids of the fragments.
            rows: values of the key column, each with the addresses of their rows.
        """
        added = list(rows)
        gone = np.array(sorted(fragments), np.uint64)
        if fragments:
            self._moved = {value: each for value, each in self._moved.items() if each >> 32 not in fragments}
            self._moved_bytes = sum(map(_bytes_of, self._moved))
        keep = ~np.isin(self._addresses >> np.uint64(32), gone)
        keep &= ~np.isin(self._addresses, np.array(sorted(self._dead), np.uint64))
        self._dead.clear()
        values = self._values.filter(pa.array(keep))
        values = pa.chunked_array([*values.chunks, *(each.cast(self.kind) for each, _ in added)], self.kind)
        self._addresses = np.concatenate([self._addresses[keep], *(each for _, each in added)])
        together = values.combine_chunks()
        if together.null_count:  # which no caller asks for
            keep = together.is_valid().to_numpy(zero_copy_only=False)
            together, self._addresses = together.drop_null(), self._addresses[keep]
        if self._is_sorted:
            order = np.argsort(together.to_numpy(), kind="stable")
            together, self._addresses = together.take(pa.array(order)), self._addresses[order]
        self._values = pa.chunked_array([together], self.kind)

    def _moved_rows(self) -> Iterator[tuple[Any, Addresses]]:
        moved, self._moved, self._moved_bytes = self._moved, {}, 0
        yield pa.array(list(moved), self.kind), np.fromiter(moved.values(), np.uint64, len(moved))


def _bytes_of(value: Any) -> int:
    return sys.getsizeof(value) + _BYTES_OF_A_MOVE
