"""Stable row ids: sequences in all encodings, and the index from row id to address."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lancekeep.domain.errors import Damaged
from lancekeep.format.messages import RowIdSequence, RowVersionSequence, parse
from lancekeep.format.row_ids import (
    RowIdIndex,
    decode_row_ids,
    decode_row_versions,
    encode_row_ids,
    encode_row_versions,
)

IDS = st.integers(0, 2**64 - 1) | st.integers(0, 3000)


def encodings(content: bytes) -> list[str]:
    return [segment.ListFields()[0][0].name for segment in parse(RowIdSequence, content).segments]


@settings(max_examples=60)
@given(st.lists(IDS, unique=True, max_size=40), st.booleans())
def test_row_ids_survive_a_round_trip(ids: list[int], ascending: bool) -> None:
    ids = sorted(ids) if ascending else ids
    content = encode_row_ids(np.array(ids, np.uint64))
    assert decode_row_ids(content, len(ids), "f").tolist() == ids


@pytest.mark.parametrize(
    ("ids", "encoding"),
    [
        (range(5, 1000), "range"),
        ([*range(5, 500), *range(501, 1000)], "range_with_holes"),
        (range(0, 1000, 2), "range_with_bitmap"),
        (range(0, 10_000, 1000), "sorted_array"),
        ([7, 3, 2**40, 1], "array"),
    ],
)
def test_encoding_is_the_smallest_one(ids: Any, encoding: str) -> None:
    content = encode_row_ids(np.array(list(ids), np.uint64))
    assert encodings(content) == [encoding]
    assert decode_row_ids(content, len(ids), "f").tolist() == list(ids)


def test_sequences_of_lance_are_decoded_and_reproduced(tmp_path: Path) -> None:
    dataset = lance.write_dataset(pa.table({"a": range(3000)}), str(tmp_path / "t"), enable_stable_row_ids=True)
    seen = set()
    for predicate in ("a = 17", "a % 7 = 0", "a % 100 > 0", "a = -1"):
        dataset.delete(predicate)
        if predicate == "a = -1":
            dataset.update({"a": "a + 1"}, where="a > 1000")
            dataset.update({"a": "a + 1"}, where="a > 1500")
        dataset.optimize.compact_files(materialize_deletions_threshold=0.0)
        fragments = []
        for fragment in dataset.get_fragments():
            content = bytes(fragment.metadata.to_json()["row_id_meta"]["Inline"])
            rows = fragment.metadata.physical_rows
            ids = decode_row_ids(content, rows, "f")
            if len(encodings(content)) == 1:
                assert encode_row_ids(ids) == content
            seen.update(encodings(content))
            assert fragment.metadata.num_deletions == 0
            fragments.append((fragment.fragment_id, ids, None))
        index = RowIdIndex.build(fragments)
        table = dataset.to_table(with_row_id=True, with_row_address=True)
        addresses, found = index.lookup(table["_rowid"].to_numpy())
        assert found.all()
        assert addresses.tolist() == table["_rowaddr"].to_pylist()
        assert len(index) == dataset.count_rows()
    assert {"range_with_holes", "range_with_bitmap"} <= seen


@settings(max_examples=30)
@given(st.lists(st.lists(st.integers(0, 60) | IDS, max_size=20), max_size=4), st.integers(0, 3))
def test_index_finds_every_id_in_any_order(parts: list[list[int]], offset: int) -> None:
    seen: dict[int, int] = {}
    fragments = []
    for number, part in enumerate(parts):
        ids = [found for found in dict.fromkeys(part) if found not in seen]
        seen |= {found: (number + offset) << 32 | at for at, found in enumerate(ids)}
        fragments.append((number + offset, np.array(ids, np.uint64), None))
    index = RowIdIndex.build(fragments)
    assert dict(zip(index.ids.tolist(), index.addresses.tolist(), strict=True)) == seen
    assert index.ids.tolist() == sorted(seen)


def test_index_leaves_out_deleted_rows_and_unknown_ids() -> None:
    moved = np.array([7, 3], np.uint64)
    index = RowIdIndex.build([(0, np.arange(10, dtype=np.uint64), np.array([3, 7], np.uint32)), (5, moved, None)])
    addresses, found = index.lookup(np.array([3, 7, 0, 99], np.uint64))
    assert found.tolist() == [True, True, True, False]
    assert addresses[:3].tolist() == [5 << 32 | 1, 5 << 32, 0]
    assert not RowIdIndex.build([]).lookup(moved)[1].any()


def test_row_id_that_occurs_twice_is_damaged() -> None:
    with pytest.raises(Damaged, match="the row id 4 occurs twice: in fragment 0 at row 4, and in fragment 2 at row 1"):
        RowIdIndex.build([(0, np.arange(5, dtype=np.uint64), None), (2, np.array([9, 4], np.uint64), None)])


def sequence(**segment: Any) -> bytes:
    return bytes(RowIdSequence(segments=[segment]).SerializeToString())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (sequence(range={"start": 0, "end": 2**60}), "at most 3 are left"),
        (sequence(range={"start": 9, "end": 2}), "has -7 row ids"),
        (sequence(range={"start": 0, "end": 2}), "it has 2 row ids; the fragment has 3 rows"),
        (sequence(range_with_bitmap={"start": 0, "end": 2**60, "bitmap": b"\7"}), "does not fit"),
        (
            sequence(range_with_holes={"start": 0, "end": 4, "holes": {"u64_array": {"values": bytes(7)}}}),
            "no array of",
        ),
        (
            sequence(range_with_holes={"start": 0, "end": 4, "holes": {"u16_array": {"base": 9, "offsets": b"\0\0"}}}),
            "are outside of it",
        ),
        (sequence(sorted_array={"u16_array": {"offsets": b"\2\0\1\0\3\0"}}), "is not ascending"),
        (sequence(array={"u32_array": {"base": 2**64 - 1, "offsets": b"\2\0\0\0"}}), "exceeds 64 bits"),
        (sequence(), "a segment has 0 encodings"),
        (b"\xff", "the message of 1 bytes at 0"),
    ],
)
def test_damaged_sequence_is_named(content: bytes, message: str) -> None:
    with pytest.raises(Damaged, match=message) as caught:
        decode_row_ids(content, 3, "fragment 4")
    assert str(caught.value).startswith("fragment 4 is not a row id sequence")


@given(st.lists(st.integers(1, 4), max_size=12))
def test_row_versions_survive_a_round_trip(versions: list[int]) -> None:
    content = encode_row_versions(np.array(versions, np.uint64))
    assert decode_row_versions(content, len(versions), "f").tolist() == versions


def test_row_versions_of_lance_are_decoded(tmp_path: Path) -> None:
    dataset = lance.write_dataset(pa.table({"a": range(40)}), str(tmp_path / "t"), enable_stable_row_ids=True)
    for number in range(3):
        dataset.update({"a": "a + 100"}, where=f"a % 7 = {number}")
        lance.write_dataset(pa.table({"a": [1000 + number]}), dataset, mode="append")
        dataset.optimize.compact_files(materialize_deletions_threshold=0.0)
        for fragment in dataset.get_fragments():
            described, columns = (
                fragment.metadata.to_json(),
                ["_row_created_at_version", "_row_last_updated_at_version"],
            )
            table = fragment.to_table(columns=["a", *columns])
            for column, key in zip(columns, ("created_at_version_meta", "last_updated_at_version_meta"), strict=True):
                content = bytes(described[key]["inline"])
                assert decode_row_versions(content, table.num_rows, "f").tolist() == table[column].to_pylist()


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([{"span": {"range": {"end": 2}}, "version": 1}], "it has 2 versions; the fragment has 3 rows"),
        ([{"span": {"range": {"end": 2**60}}, "version": 1}], "at most 3 are left"),
        ([{"version": 1}], "a segment has 0 encodings"),
    ],
)
def test_damaged_row_versions_are_named(runs: list[Any], message: str) -> None:
    content = RowVersionSequence(runs=runs).SerializeToString()
    with pytest.raises(Damaged, match=message) as caught:
        decode_row_versions(content, 3, "fragment 4")
    assert str(caught.value).startswith("fragment 4 is not a sequence of versions")
