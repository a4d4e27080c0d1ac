"""Arrow IPC streams of callers are bounded before they are decoded."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import suppress

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as some

from lancekeep.domain.errors import InvalidInput
from lancekeep.entrypoints.rest.arrow_bodies import MOST_COLUMNS, MOST_NESTING, opened
from lancekeep.entrypoints.rest.errors import HttpError
from lancekeep.format.arrow_ipc import ROWS_WITHOUT_BYTES
from lancekeep.ports.data_files import Rows

MIB = 1 << 20
PLAIN = pa.table({"id": range(1000), "name": [f"n{number}" for number in range(1000)]})
NESTED = pa.table(
    {
        "a": pa.array([[1, None], [], None], pa.list_(pa.int64())),
        "b": pa.array([{"x": "y"}] * 3),
        "c": pa.array(["u", "v", "u"]).dictionary_encode(),
        "d": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
        "e": pa.array(["short", "longer than twelve bytes", None], pa.string_view()),
        "f": pa.nulls(3),
    }
)


def stream(table: pa.Table, compression: str | None = None) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    return sink.getvalue()


def read(content: bytes, largest_batch: int = MIB, largest: int = 4 * MIB) -> pa.Table:
    with opened(io.BytesIO(content), largest_batch, largest) as rows:
        return rows.table if isinstance(rows, Rows) else rows.read_all()


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("table", [PLAIN, NESTED, PLAIN.slice(0, 0)])
def test_ordinary_stream_is_read(table: pa.Table, compression: str | None) -> None:
    assert read(stream(table, compression)).equals(table)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: stream(pa.table({"a": pa.array([bytes(2 * MIB)])}), "zstd"), "A batch of the Arrow stream has"),
        (lambda: stream(pa.table({"a": pa.array([bytes(2 * MIB)])})), "A batch of the Arrow stream has"),
        (lambda: stream(pa.table({"a": pa.nulls(10**9)})), "states 1000000000 values in 0 bytes"),
        (
            lambda: stream(
                pa.table({"a": pa.FixedSizeBinaryArray.from_buffers(pa.binary(0), 10**9, [None, pa.py_buffer(b"")])})
            ),
            "states 1000000000 values in 0 bytes",
        ),
        (
            lambda: stream(
                pa.table({"a": pa.FixedSizeListArray.from_arrays(pa.nulls(10**9), 10**9)})  # one row of nested nulls
            ),
            "states 1000000000 values",
        ),
        (
            lambda: (
                stream(pa.table({"a": pa.array([], pa.string()).dictionary_encode()}), None)
                and stream(pa.table({"a": pa.DictionaryArray.from_arrays([0], pa.nulls(10**9))}))
            ),
            "states 1000000000 values",
        ),
        (
            lambda: stream(pa.Table.from_batches([PLAIN.combine_chunks().to_batches()[0]] * 500)),
            "more than 4194304 bytes after decompression",
        ),
        (lambda: stream(pa.table({str(number): [1] for number in range(MOST_COLUMNS + 1)})), "more than 10000 fields"),
        (lambda: stream(nested(MOST_NESTING + 1)), "deeper than 32 levels"),
        (lambda: stream(shared_views()), "The views of a batch stand for"),
        (
            lambda: with_dictionaries(*(pa.nulls(number * ROWS_WITHOUT_BYTES) for number in (1, 2))),
            "A dictionary of the Arrow stream states 2097152 values in 0 bytes",
        ),
        (
            lambda: with_dictionaries(*(pa.array(range(number * 100_000), pa.int64()) for number in (1, 2))),
            "A dictionary of the Arrow stream has 1600000 bytes",
        ),
        (
            lambda: with_dictionaries(*[pa.array(range(10_000), pa.int64())] * 60),
            "more than 4194304 bytes after decompression, if each batch counts with its dictionaries",
        ),
        (lambda: with_dictionaries(*[pa.nulls(ROWS_WITHOUT_BYTES)] * 40), "more than 4194304 bytes"),
        (lambda: stream(pa.table({"a": pa.chunked_array([pa.nulls(ROWS_WITHOUT_BYTES)] * 40)})), "more than 4194304"),
        (
            lambda: stream(pa.table({str(number): pa.nulls(ROWS_WITHOUT_BYTES) for number in range(10)})),
            "A batch of the Arrow stream has 1310720 bytes",
        ),
    ],
    ids=[
        *("zstd", "large", "nulls", "widthless", "nested", "dictionary", "total", "columns", "depth", "views"),
        *("growing nulls", "growing", "shared", "shared nulls", "total nulls", "columns of nulls"),
    ],
)
def test_stream_that_expands_is_refused(make: Callable[[], bytes], message: str) -> None:
    with pytest.raises(HttpError, match=message) as refused:
        read(make())
    assert refused.value.status == 413


def with_dictionaries(*dictionaries: pa.Array) -> bytes:
    """Return a stream of batches of one row; a dictionary that begins with the earlier one extends it."""
    sink = io.BytesIO()
    schema = pa.schema([("a", pa.dictionary(pa.int32(), dictionaries[0].type))])
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)) as writer:
        for each in dictionaries:
            column = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), each)
            writer.write_batch(pa.record_batch([column], schema.names))
    return sink.getvalue()


def nested(depth: int) -> pa.Table:
    kind = pa.int64()
    for _ in range(depth):
        kind = pa.list_(kind)
    return pa.table({"a": pa.array([None], kind)})


def shared_views() -> pa.Table:
    """Views that stand for the same bytes again and again."""
    text = pa.array(["x" * 1000], pa.string_view())
    views = text.buffers()[1].to_pybytes() * 2000
    buffers = [None, pa.py_buffer(views), *text.buffers()[2:]]
    return pa.table({"a": pa.Array.from_buffers(pa.string_view(), 2000, buffers)})


def test_nulls_without_bytes_are_accepted_within_the_limit() -> None:
    assert len(read(stream(pa.table({"a": pa.nulls(ROWS_WITHOUT_BYTES)})))) == ROWS_WITHOUT_BYTES


def test_dictionaries_that_are_shared_or_grow_are_read_within_the_limit() -> None:
    words = pa.array([f"word {number}" for number in range(2000)])
    for each in (words, words.slice(0, 1000)):
        assert read(with_dictionaries(each, words, words))["a"].to_pylist() == ["word 0"] * 3


@pytest.mark.parametrize("content", [b"", b"no arrow", bytes(7), stream(PLAIN)[:100]])
def test_body_that_is_no_stream_is_refused(content: bytes) -> None:
    with pytest.raises((InvalidInput, HttpError), match=r"not an? (valid )?Arrow IPC stream"):
        read(content)


STREAMS = [stream(table, codec) for table in (NESTED, NESTED.drop_columns("e")) for codec in (None, "zstd")]


@given(
    some.sampled_from(STREAMS),
    some.lists(some.tuples(some.integers(0, len(STREAMS[0])), some.integers(0, 255)), min_size=1, max_size=4),
)
def test_damaged_stream_is_read_or_refused(whole: bytes, changes: list[tuple[int, int]]) -> None:
    content = bytearray(whole)
    for position, byte in changes:
        content[position % len(content)] = byte
    with suppress(InvalidInput, HttpError, pa.ArrowException, OSError):
        read(bytes(content))
