"""Stable row ids, the index from row id to row address, and versions of rows.

Table format, "Move-Stable Row IDs". A sequence lists the row ids of a fragment in the order of its rows, as segments.
An address is the number of the fragment in the upper 32 bits, and the position of the row in the lower 32 bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt

from lancekeep.domain.errors import Damaged
from lancekeep.format.messages import MESSAGES, parse

Ids = npt.NDArray[np.uint64]

_SEQUENCE, _SEGMENT = MESSAGES["RowIdSequence"], MESSAGES["RowSegment"]
_VERSIONS = MESSAGES["RowVersionSequence"]
_NOWHERE: Final = np.uint64(2**64 - 1)
_DENSE = 4
"""Ids are sorted by a table of all possible ids, if the table is at most so many times longer."""


def decode_row_ids(content: bytes, rows: int, name: str, *, whole: bool = True) -> Ids:
    """Decode a row id sequence.

    Args:
        content: the sequence, from the manifest or from a file.
        rows: the rows of the fragment, deleted ones included.
        name: the fragment or the file, for messages.
        whole: every row has an id. Otherwise the last rows may have none.

    Raises:
        Damaged: the bytes are not a sequence of as many row ids.
    """
    try:
        segments = _parsed(_SEQUENCE, content).segments
        parts, left = [], rows
        for segment in segments:
            part = _values(segment, left)
            left -= len(part)
            parts.append(part)
        if left and whole:
            raise ValueError(f"it has {rows - left} row ids; the fragment has {rows} rows")
    except ValueError as error:
        message = f"{name} is not a row id sequence: the message of {len(content)} bytes at 0: {error}"
        raise Damaged(message) from error
    return np.concatenate(parts) if parts else np.empty(0, np.uint64)


def encode_row_ids(ids: Ids) -> bytes:
    """Encode a row id sequence as one segment.

    The encoding is the smallest that Lance can choose.
    """
    sequence = _SEQUENCE()
    if len(ids):
        _fill(sequence.segments.add(), np.asarray(ids, np.uint64))
    return bytes(sequence.SerializeToString())


def decode_row_versions(content: bytes, rows: int, name: str) -> Ids:
    """Decode the version of each row of a fragment.

    Runs follow each other: of its span, only the length counts. Compactions leave the numbers of the old fragments.

    Args:
        content: the sequence, from the manifest or from a file.
        rows: the rows of the fragment, deleted ones included.
        name: the fragment or the file, for messages.

    Raises:
        Damaged: the bytes are not a sequence of as many versions.
    """
    try:
        runs = _parsed(_VERSIONS, content).runs
        lengths = [len(_values(run.span, rows)) for run in runs]
        if sum(lengths) != rows:
            raise ValueError(f"it has {sum(lengths)} versions; the fragment has {rows} rows")
    except ValueError as error:
        message = f"{name} is not a sequence of versions: the message of {len(content)} bytes at 0: {error}"
        raise Damaged(message) from error
    return np.repeat(np.array([run.version for run in runs], np.uint64), lengths)


def encode_row_versions(versions: Ids) -> bytes:
    """Encode the version of each row of a fragment, as one span for each run of rows."""
    sequence = _VERSIONS()
    starts = np.flatnonzero(np.diff(versions, prepend=versions[:1] + np.uint64(1)))
    for start, end in pairwise([*starts.tolist(), len(versions)]):
        run = sequence.runs.add(version=int(versions[start]))
        _fill_range(run.span.range, start, end)
    return bytes(sequence.SerializeToString())


@attrs.frozen(eq=False)
class RowIdIndex:
    """The addresses of rows by row id.

    Attributes:
        ids: the row ids, in ascending order.
        addresses: their addresses.
    """

    ids: Ids = attrs.field(repr=False)
    addresses: Ids = attrs.field(repr=False)

    @staticmethod
    def build(fragments: Iterable[tuple[int, Ids, npt.NDArray[np.uint32] | None]]) -> RowIdIndex:
        """Build the index of a version.

        Args:
            fragments: per fragment its id, its row ids, and the positions of its deleted rows. A deleted row is not in
                the index: an update may have moved its id to another fragment.

        Raises:
            Damaged: two rows have the same id.
        """
        ids, addresses = [], []
        for fragment, sequence, deleted in fragments:
            found = np.arange(len(sequence), dtype=np.uint64) | np.uint64(fragment << 32)
            if deleted is not None and len(deleted):
                kept = np.ones(len(sequence), bool)
                kept[deleted] = False
                sequence, found = sequence[kept], found[kept]
            ids.append(sequence)
            addresses.append(found)
        all_ids = np.concatenate(ids) if ids else np.empty(0, np.uint64)
        all_addresses = np.concatenate(addresses) if addresses else np.empty(0, np.uint64)
        if not _ascends(all_ids):
            all_ids, all_addresses = _sorted(all_ids, all_addresses)
        repeated = np.flatnonzero(all_ids[1:] == all_ids[:-1])
        if len(repeated):
            at = repeated[0]
            first, second = (divmod(int(address), 1 << 32) for address in all_addresses[at : at + 2])
            raise Damaged(
                f"the row id {all_ids[at]} occurs twice: in fragment {first[0]} at row {first[1]}, and in fragment "
                f"{second[0]} at row {second[1]}. Restore an earlier version."
            )
        return RowIdIndex(all_ids, all_addresses)

    def __len__(self) -> int:
        return len(self.ids)

    def lookup(self, ids: Ids) -> tuple[Ids, npt.NDArray[np.bool_]]:
        """Return the addresses of row ids, and which of the ids exist."""
        if not len(self.ids):
            return np.zeros(len(ids), np.uint64), np.zeros(len(ids), bool)
        at = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return self.addresses[at], self.ids[at] == ids


def _sorted(ids: Ids, addresses: Ids) -> tuple[Ids, Ids]:
    """Sort ids and their addresses by the ids."""
    first = ids.min()
    size = int(ids.max() - first) + 1
    if size <= _DENSE * len(ids):
        table = np.full(size, _NOWHERE)
        table[ids - first] = addresses
        if size == len(ids) and (table != _NOWHERE).all():
            return np.arange(size, dtype=np.uint64) + first, table
        present = np.flatnonzero(table != _NOWHERE)
        if len(present) == len(ids):  # otherwise an id occurs twice
            return present.astype(np.uint64) + first, table[present]
    order = np.argsort(ids, kind="stable")
    return ids[order], addresses[order]


def _parsed(kind: Any, content: bytes) -> Any:
    """Decode a sequence. Raises `ValueError` also if it has unknown fields, which could be rows."""
    message = parse(kind, content)
    size = message.ByteSize()
    message.DiscardUnknownFields()
    if message.ByteSize() != size:
        raise ValueError("it has fields that are not known")
    return message


def _values(segment: Any, most: int) -> Ids:
    """Return the row ids of a segment, at most ``most``."""
    found = segment.ListFields()
    if len(found) != 1:
        raise ValueError(f"a segment has {len(found)} encodings; expected one known encoding")
    field, body = found[0]
    match field.name:
        case "range":
            return _range(body, most)
        case "range_with_holes":
            holes = _array(body.holes, most)
            values = _range(body, most + len(holes))
            if len(holes) and (not _ascends(holes) or holes[0] < body.start or holes[-1] >= body.end):
                raise ValueError(
                    f"the holes of the range {body.start} to {body.end} do not ascend, or are outside of it"
                )
            return values[_absent(len(values), holes - np.uint64(body.start))]
        case "range_with_bitmap":
            size = body.end - body.start
            if not 0 <= size <= 8 * len(body.bitmap) < size + 8:
                raise ValueError(f"a bitmap of {len(body.bitmap)} bytes does not fit {body.start} to {body.end}")
            bits = np.unpackbits(np.frombuffer(body.bitmap, np.uint8), bitorder="little")[:size]
            return _limited(np.flatnonzero(bits).astype(np.uint64) + np.uint64(body.start), most)
        case "sorted_array":
            values = _array(body, most)
            if not _ascends(values):
                raise ValueError("a sorted array is not ascending")
            return values
    return _array(body, most)


def _range(body: Any, most: int) -> Ids:
    size = body.end - body.start
    if not 0 <= size <= most:
        raise ValueError(f"the range {body.start} to {body.end} has {size} row ids; at most {most} are left")
    return np.arange(size, dtype=np.uint64) + np.uint64(body.start)


def _array(array: Any, most: int) -> Ids:
    found = array.ListFields()
    if not found:
        return np.empty(0, np.uint64)
    if len(found) > 1:
        raise ValueError("an array has several encodings")
    field, body = found[0]
    if field.name == "u64_array":
        return _limited(_numbers(body.values, "<u8"), most)
    offsets = _limited(_numbers(body.offsets, "<u2" if field.name == "u16_array" else "<u4"), most)
    if len(offsets) and int(offsets.max()) + body.base >= 1 << 64:
        raise ValueError(f"the base {body.base} exceeds 64 bits with its offsets")
    return offsets + np.uint64(body.base)


def _numbers(content: bytes, kind: str) -> Ids:
    if len(content) % np.dtype(kind).itemsize:
        raise ValueError(f"{len(content)} bytes are no array of {kind}")
    return np.frombuffer(content, kind).astype(np.uint64)


def _limited(values: Ids, most: int) -> Ids:
    if len(values) > most:
        raise ValueError(f"a segment has {len(values)} row ids; at most {most} are left")
    return values


def _absent(size: int, holes: Ids) -> npt.NDArray[np.bool_]:
    kept = np.ones(size, bool)
    kept[holes] = False
    return kept


def _ascends(values: Ids) -> bool:
    return len(values) < 2 or bool((values[1:] > values[:-1]).all())


def _fill(segment: Any, ids: Ids) -> None:
    """Choose the encoding as Lance does: by the estimated sizes, for ascending ids."""
    if not _ascends(ids):
        _fill_array(segment.array, ids)
        return
    start, end = int(ids[0]), int(ids[-1]) + 1
    size = end - start
    holes = size - len(ids)
    if not holes and end < 1 << 64:
        _fill_range(segment.range, start, end)
        return
    costs = {"holes": 24 + 4 * holes, "bitmap": 24 + (size + 7) // 8, "array": 24 + 2 * len(ids)}
    best = min(costs, key=lambda name: costs[name]) if end < 1 << 64 else "array"
    if best == "holes":
        _fill_range(segment.range_with_holes, start, end)
        absent = np.ones(size, bool)
        absent[(ids - np.uint64(start)).astype(np.int64)] = False
        _fill_array(segment.range_with_holes.holes, np.flatnonzero(absent).astype(np.uint64) + np.uint64(start))
    elif best == "bitmap":
        _fill_range(segment.range_with_bitmap, start, end)
        bits = np.zeros(size, np.uint8)
        bits[(ids - np.uint64(start)).astype(np.int64)] = 1
        segment.range_with_bitmap.bitmap = np.packbits(bits, bitorder="little").tobytes()
    else:
        _fill_array(segment.sorted_array, ids)


def _fill_range(body: Any, start: int, end: int) -> None:
    body.SetInParent()
    if start:  # the engine leaves zeros out
        body.start = start
    body.end = end


def _fill_array(array: Any, ids: Ids) -> None:
    """Encode ids by offsets from the smallest id, of as few bits as they need."""
    base = int(ids.min())
    widest = int(ids.max()) - base
    for limit, name, kind in ((1 << 16, "u16_array", "<u2"), (1 << 32, "u32_array", "<u4")):
        if widest < limit:
            body = getattr(array, name)
            body.SetInParent()
            if base:
                body.base = base
            body.offsets = (ids - np.uint64(base)).astype(kind).tobytes()
            return
    array.u64_array.values = ids.astype("<u8").tobytes()
