"""Deletion files of both kinds, in both directions, and what is refused."""

from __future__ import annotations

import struct
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap

from lancekeep.domain.dataset_files import deletion_file_name
from lancekeep.domain.errors import Damaged
from lancekeep.domain.manifest import DeletionFile, DeletionFileType
from lancekeep.format.deletions import MOST_IN_ARROW, decode_bitmap, kind_for, read, write
from lancekeep.format.table_version import TableVersion

ARROW, BITMAP = DeletionFileType.ARROW_ARRAY, DeletionFileType.BITMAP
POSITIONS = st.sets(st.integers(0, 2**32 - 1) | st.integers(0, 1000), max_size=30)
SPANS = st.lists(st.tuples(st.integers(0, 2**20), st.integers(1, 10_000)), max_size=4)


@settings(max_examples=40)
@given(POSITIONS, st.sampled_from(DeletionFileType))
def test_positions_survive_a_round_trip(positions: set[int], kind: DeletionFileType) -> None:
    rows = np.array(sorted(positions), np.uint32)
    file = DeletionFile(kind, num_deleted_rows=len(rows))
    assert read(write(rows, kind), file, 0, "f").tolist() == sorted(positions)


@settings(max_examples=40)
@given(SPANS, st.booleans())
def test_bitmap_of_any_containers_is_read_as_pyroaring_reads_it(spans: list[tuple[int, int]], runs: bool) -> None:
    bitmap = BitMap()
    for start, size in spans:
        bitmap |= BitMap(range(start, start + size))
    if runs:
        bitmap.run_optimize()
    assert decode_bitmap(bytes(bitmap.serialize()), 2**32).tolist() == list(bitmap)


@pytest.mark.parametrize(("count", "kind"), [(3, ARROW), (MOST_IN_ARROW, ARROW), (MOST_IN_ARROW + 1, BITMAP)])
def test_deletions_of_lance_are_read_and_those_written_here_are_read_by_lance(
    tmp_path: Path, count: int, kind: DeletionFileType
) -> None:
    dataset = lance.write_dataset(pa.table({"a": range(8000)}), str(tmp_path / "t"))
    dataset.delete(f"a % 2 = 0 and a < {2 * min(count, 2600)} or a % 2 = 1 and a < {2 * max(0, count - 2600)}")
    version = TableVersion.parse(next(Path(dataset.uri, "_versions").glob("*613.manifest")).read_bytes(), "m")
    [fragment] = version.manifest.fragments
    file = fragment.deletion_file
    assert file is not None
    assert file.file_type is kind is kind_for(count)
    name = deletion_file_name(fragment.id, file.read_version, file.id, bitmap=kind is BITMAP)
    path = Path(dataset.uri, "_deletions", name)
    rows = read(path.read_bytes(), file, fragment.physical_rows, name)
    assert len(rows) == count
    assert fragment.live_rows == dataset.count_rows() == 8000 - count
    assert set(dataset.to_table()["a"].to_pylist()) == set(range(8000)) - set(rows.tolist())
    others = np.arange(count, dtype=np.uint32) + np.uint32(50)
    path.write_bytes(write(others, kind))
    again = lance.dataset(shifted(path.parents[1], tmp_path / "again"))
    assert again.to_table()["a"].to_pylist() == [*range(50), *range(50 + count, 8000)]


def shifted(source: Path, target: Path) -> Path:
    """Move a table, so that no cache has it."""
    return source.rename(target)


def arrow(column: pa.Array, batches: int = 1) -> bytes:
    sink = pa.BufferOutputStream()
    batch = pa.record_batch([column], names=["row_id"])
    with pa.ipc.new_file(sink, batch.schema) as writer:
        for _ in range(batches):
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def runs(*pairs: tuple[int, int], count: int) -> bytes:
    """Return a bitmap of one container of runs."""
    body = b"".join(struct.pack("<HH", start, length) for start, length in pairs)
    return struct.pack("<IBHHH", 12347, 1, 0, count - 1, len(pairs)) + body


HUGE = b"".join(
    [
        struct.pack("<I", 12347 | 0xFFFF << 16) + b"\xff" * 8192,  # 65536 containers, all of runs
        *(struct.pack("<HH", key, 0xFFFF) for key in range(65536)),
        bytes(4 * 65536),
    ]
)


@pytest.mark.parametrize(
    ("content", "kind", "message"),
    [
        (arrow(pa.array([1, 2], pa.uint32())), ARROW, "marks 2 rows from byte 0 on; the manifest says 3"),
        (arrow(pa.array([1, 2, 99], pa.uint32())), ARROW, "marks the rows 1 to 99 of a fragment of 50"),
        (arrow(pa.array([1, 2, 2], pa.uint32())), ARROW, "marks a row twice"),
        (arrow(pa.array([1, 2, -3], pa.int32())), ARROW, "marks the rows -3 to 2"),
        (arrow(pa.array([1, None, 3], pa.uint32())), ARROW, "1 positions are null"),
        (arrow(pa.array(["a"])), ARROW, "expected one column of integers"),
        (arrow(pa.array([1, 2, 3], pa.uint32()), 2), ARROW, "has 2 batches"),
        (b"", ARROW, "not a deletion file"),
        (bytes(BitMap([1, 2]).serialize()), BITMAP, "the manifest says 3"),
        (bytes(BitMap([1, 2, 99]).serialize()), BITMAP, "marks the row 99 of a fragment of 50"),
        (bytes(BitMap([1, 2, 3]).serialize()) + b"x", BITMAP, "1 bytes follow the last container at byte"),
        (b"", BITMAP, "requires a buffer"),
        (b"LANC1234", BITMAP, "at byte 0, which is no Roaring bitmap"),
        (runs((1, 0), (1, 1), count=3), BITMAP, "not ascending"),
        (runs((0, 7), count=3), BITMAP, "the runs at byte 9 have 8 rows; the header says 3"),
        (runs((65535, 2), count=3), BITMAP, "exceeds its container"),
        (HUGE, BITMAP, "its header at byte 0 claims 4294967296 rows of a fragment of 50"),
    ],
)
def test_file_that_contradicts_its_manifest_is_damaged(content: bytes, kind: DeletionFileType, message: str) -> None:
    with pytest.raises(Damaged, match=message) as caught:
        read(content, DeletionFile(kind, num_deleted_rows=3), 50, "_deletions/0-1-2")
    assert str(caught.value).startswith("_deletions/0-1-2 is not a deletion file of the kind")
