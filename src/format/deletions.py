"""Deletion files: the positions of deleted rows in a fragment.

Table format, "Deletion". An Arrow file holds one column of positions in any order, a Roaring file a 32-bit Roaring
bitmap in the portable format.
Both are input: sizes and counts are checked before memory is allocated for the rows that they claim.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from lancekeep.domain.errors import Damaged
from lancekeep.domain.manifest import DeletionFile, DeletionFileType

Rows = npt.NDArray[np.uint32]

COLUMN: Final = "row_id"
MOST_IN_ARROW: Final = 4999
"""Lance writes more positions as a Roaring bitmap."""

MOST_BYTES: Final = 1 << 30
"""A longer file is damaged: a bitmap of 32-bit positions has at most half the length."""

_COOKIE, _COOKIE_WITHOUT_RUNS = 12347, 12346
_MOST_IN_ARRAY = 4096
_BITSET = 8192  # the size of a container of bits
_NO_OFFSETS = 4  # bitmaps with runs and fewer containers omit the positions of containers


def read(content: bytes, file: DeletionFile, physical_rows: int, name: str) -> Rows:
    """Decode a deletion file.

    Args:
        content: the bytes of the file.
        file: what the manifest says about it.
        physical_rows: the rows of the fragment, deleted ones included; 0 if the manifest does not say.
        name: the file, for messages.

    Returns:
        The positions of the deleted rows, in ascending order.

    Raises:
        Damaged: the file is of another kind, or it does not mark as many rows of the fragment as the manifest says.
    """
    most = physical_rows or 2**32
    try:
        rows = _bitmap(content, most) if file.file_type is DeletionFileType.BITMAP else _arrow(content, most)
        if file.num_deleted_rows and len(rows) != file.num_deleted_rows:
            raise ValueError(f"it marks {len(rows)} rows from byte 0 on; the manifest says {file.num_deleted_rows}")
    except (ValueError, OverflowError, struct.error, pa.ArrowException, OSError) as error:
        kind = file.file_type.name
        raise Damaged(
            f"{name} is not a deletion file of the kind {kind}: {_one_line(error)}. Restore the file, or an earlier "
            "version of the table"
        ) from error
    return rows


def write(rows: Rows, kind: DeletionFileType) -> bytes:
    """Encode a deletion file of distinct positions in ascending order."""
    if kind is DeletionFileType.BITMAP:
        return encode_bitmap(rows)
    sink = pa.BufferOutputStream()
    schema = pa.schema([pa.field(COLUMN, pa.uint32(), nullable=False)])
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(pa.record_batch([pa.array(rows)], schema=schema))
    return bytes(sink.getvalue())


def kind_for(count: int) -> DeletionFileType:
    """Return the kind of file in which Lance stores a number of positions."""
    return DeletionFileType.BITMAP if count > MOST_IN_ARROW else DeletionFileType.ARROW_ARRAY


def encode_bitmap(rows: npt.NDArray[np.unsignedinteger[Any]]) -> bytes:
    """Encode positions as a Roaring bitmap in the portable format."""
    return bytes(BitMap(rows).serialize())


def decode_bitmap(content: bytes, most: int) -> Rows:
    """Decode a Roaring bitmap, such as the fragments that an index covers.

    Args:
        content: the bitmap in the portable format.
        most: the most values that it may have.

    Raises:
        ValueError: the bytes are not such a bitmap.
    """
    try:
        return _bitmap(content, 2**32, most)
    except (OverflowError, struct.error) as error:
        raise ValueError(f"the bitmap of {len(content)} bytes ends too early: {error}") from error


def _arrow(content: bytes, most: int) -> Rows:
    with pa.ipc.open_file(pa.py_buffer(content)) as reader:
        if len(reader.schema) != 1 or reader.schema.field(0).type not in (pa.uint32(), pa.int32()):
            raise ValueError(f"it has the columns {reader.schema.names}; expected one column of integers of 32 bits")
        if reader.num_record_batches > 1:
            raise ValueError(f"it has {reader.num_record_batches} batches; expected one")
        if not reader.num_record_batches:
            return np.empty(0, np.uint32)
        batch = reader.get_batch(0)
    batch.validate(full=True)
    column = batch.column(0)
    if column.null_count:
        raise ValueError(f"{column.null_count} positions are null")
    rows = np.sort(column.to_numpy(zero_copy_only=False))
    if len(rows) and (rows[0] < 0 or rows[-1] >= most):
        raise ValueError(f"it marks the rows {rows[0]} to {rows[-1]} of a fragment of {most}")
    if (rows[1:] == rows[:-1]).any():
        raise ValueError("it marks a row twice")
    return rows.astype(np.uint32)


def _bitmap(content: bytes, most: int, most_values: int | None = None) -> Rows:
    """Decode a bitmap of values below ``most``."""
    keys, counts, runs, at = _header(content)
    total = int(counts.sum())
    if total > (most if most_values is None else most_values):
        raise ValueError(f"its header at byte 0 claims {total} rows of a fragment of {most}")
    found = np.empty(total, np.uint32)
    filled = 0
    for number, (key, count) in enumerate(zip(keys.tolist(), counts.tolist(), strict=True)):
        values, at = _container(content, at, count, bool(runs[number]))
        if len(values) != count:
            raise ValueError(f"the container before byte {at} has {len(values)} rows; its header says {count}")
        if count > 1 and not (values[1:] > values[:-1]).all():
            raise ValueError(f"the rows of the container before byte {at} are not ascending")
        found[filled : filled + count] = values.astype(np.uint32) | np.uint32(key << 16)
        filled += count
    if at != len(content):
        raise ValueError(f"{len(content) - at} bytes follow the last container at byte {at}")
    if total and int(found[-1]) >= most:
        raise ValueError(f"it marks the row {found[-1]} of a fragment of {most}")
    return found


def _header(content: bytes) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.int64], npt.NDArray[np.uint8], int]:
    """Return keys, sizes and run flags of the containers, and the position of the first container."""
    (cookie,) = struct.unpack_from("<I", content, 0)
    has_runs = cookie & 0xFFFF == _COOKIE
    if has_runs:
        count, at = (cookie >> 16) + 1, 4
        flags = np.frombuffer(_slice(content, at, (count + 7) // 8), np.uint8)
        runs = np.unpackbits(flags, bitorder="little")[:count]
        at += len(flags)
    elif cookie == _COOKIE_WITHOUT_RUNS:
        (count,) = struct.unpack_from("<I", content, 4)
        at = 8
        if count > 1 << 16:
            raise ValueError(f"its header at byte 4 claims {count} containers; the most are 65536")
        runs = np.zeros(count, np.uint8)
    else:
        raise ValueError(f"it begins with {cookie:#x} at byte 0, which is no Roaring bitmap")
    described = np.frombuffer(_slice(content, at, 4 * count), "<u2").reshape(-1, 2)
    keys, counts = described[:, 0], described[:, 1].astype(np.int64) + 1
    if count > 1 and not (keys[1:] > keys[:-1]).all():
        raise ValueError(f"the keys of its containers at byte {at} are not ascending")
    at += 4 * count
    if not has_runs or count >= _NO_OFFSETS:
        _slice(content, at, 4 * count)
        at += 4 * count
    return keys, counts, runs, at


def _container(content: bytes, at: int, count: int, is_runs: bool) -> tuple[npt.NDArray[Any], int]:
    """Return the values of the container at a position, and the position of the next container."""
    if is_runs:
        (number,) = struct.unpack_from("<H", content, at)
        pairs = np.frombuffer(_slice(content, at + 2, 4 * number), "<u2").reshape(-1, 2).astype(np.int64)
        lengths = pairs[:, 1] + 1
        if lengths.sum() != count:
            raise ValueError(f"the runs at byte {at} have {lengths.sum()} rows; the header says {count}")
        if len(pairs) and pairs.sum(axis=1).max() > 0xFFFF:
            raise ValueError(f"a run at byte {at} exceeds its container")
        starts = np.repeat(pairs[:, 0] - np.concatenate(([0], np.cumsum(lengths)[:-1])), lengths)
        return starts + np.arange(count), at + 2 + 4 * number
    if count <= _MOST_IN_ARRAY:
        return np.frombuffer(_slice(content, at, 2 * count), "<u2"), at + 2 * count
    bits = np.frombuffer(_slice(content, at, _BITSET), np.uint8)
    return np.flatnonzero(np.unpackbits(bits, bitorder="little")), at + _BITSET


def _slice(content: bytes, at: int, size: int) -> memoryview:
    if at + size > len(content):
        raise ValueError(f"{size} bytes at byte {at} exceed the file of {len(content)}")
    return memoryview(content)[at : at + size]


def _one_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
