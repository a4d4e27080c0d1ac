"""Bodies with Arrow data: small ones are decoded at once, and others are streams, with the same rows and errors."""

from __future__ import annotations

import struct
from decimal import Decimal
from io import BytesIO
from typing import Any

import pyarrow as pa
import pytest

from lancekeep.adapters.committers.frames import Incoming, append_frame, append_of
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.identifiers import ObjectId
from lancekeep.entrypoints.namespace import streams
from lancekeep.entrypoints.rest.arrow_bodies import opened
from lancekeep.entrypoints.rest.errors import HttpError
from lancekeep.format.arrow_ipc import ROWS_WITHOUT_BYTES
from lancekeep.ports.data_files import Rows

MOST = 1 << 20
SMALL = pa.table(
    {
        "id": range(50),
        "text": ["é", None] * 25,
        "list": [[1, None], []] * 25,
        "struct": [{"a": 1}, None] * 25,
        "word": pa.array(["x", "y"] * 25).dictionary_encode(),
        "price": pa.array([Decimal("1.5"), None] * 25, pa.decimal128(10, 2)),
        "none": pa.nulls(50),
    }
)


def body(table: pa.Table, *, rows: int = 10, codec: str | None = None) -> bytes:
    """Return a table as a stream of batches of some rows."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_table(table, rows)
    return bytes(sink.getvalue())


def rows_of(content: bytes) -> tuple[Rows | None, pa.Table]:
    """Return the rows if they were decoded at once, and all rows in any case."""
    with opened(BytesIO(content), MOST, 16 * MOST) as rows:
        return (rows, rows.table) if isinstance(rows, Rows) else (None, rows.read_all())


@pytest.mark.parametrize("codec", [None, "zstd", "lz4"])
def test_a_small_body_is_decoded_at_once(codec: str | None) -> None:
    content = body(SMALL, codec=codec)
    rows, table = rows_of(content)
    assert rows is not None
    assert table == SMALL
    assert rows.count == SMALL.num_rows
    assert rows.size >= SMALL.nbytes
    assert rows.encoded == (content if codec is None else None)


def test_a_body_of_an_earlier_format_is_not_sent_on() -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SMALL.schema, options=pa.ipc.IpcWriteOptions(use_legacy_format=True)) as writer:
        writer.write_table(SMALL)
    rows, table = rows_of(bytes(sink.getvalue()))
    assert rows is not None
    assert table == SMALL
    assert rows.encoded is None


def test_rows_are_sent_to_another_process_as_they_came() -> None:
    content = body(SMALL)[:-8]  # without the mark at its end, which pyarrow would write
    rows, _ = rows_of(content)
    assert rows is not None
    sent = append_frame(ObjectId.of("ml.t"), 1, rows, None)
    assert sent is not None
    incoming = Incoming(MOST)
    incoming.add(sent)
    found = incoming.next()
    assert found is not None
    assert found[1] == content
    assert append_of(*found)[1].table == SMALL


def test_a_dictionary_that_is_replaced_keeps_its_values() -> None:
    sink = pa.BufferOutputStream()
    words = [pa.array(some).dictionary_encode() for some in (["a", "b"], ["c"])]
    with pa.ipc.new_stream(sink, pa.schema([("word", words[0].type)])) as writer:
        for each in words:
            writer.write_batch(pa.record_batch({"word": each}))
    assert rows_of(bytes(sink.getvalue()))[1]["word"].to_pylist() == ["a", "b", "c"]


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"id": pa.array(range(40_000), pa.int64())}),
        pa.table({"none": pa.nulls(2 * ROWS_WITHOUT_BYTES)}),
        pa.table({"text": pa.array(["a view", None], pa.string_view())}),
    ],
    ids=["bytes", "values", "views"],
)
def test_other_bodies_are_streams(table: pa.Table) -> None:
    assert rows_of(body(table, rows=10_000)) == (None, table)


def test_a_small_body_that_expands_is_a_stream() -> None:
    zeros = pa.table({"id": pa.array([0] * 40_000, pa.int64())})
    content = body(zeros, rows=10_000, codec="zstd")
    assert len(content) < 10_000
    assert rows_of(content) == (None, zeros)


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def with_wrong_text(content: bytes) -> bytes:
    return content.replace("é".encode(), b"\xff\xff")


@pytest.mark.parametrize("damaged", [cut, with_wrong_text])
def test_a_damaged_small_body_is_refused_before_its_rows_are_used(damaged: Any) -> None:
    with pytest.raises(InvalidInput, match="not a valid Arrow IPC stream"):
        rows_of(damaged(body(SMALL)))


def test_a_batch_that_is_too_large_is_refused() -> None:
    with pytest.raises(HttpError) as caught:
        rows_of(body(pa.table({"id": pa.array(range(200_000), pa.int64())}), rows=200_000))
    assert caught.value.status == 413


def test_values_of_messages_that_are_not_padded_are_aligned() -> None:
    table = pa.table({"id": pa.array(range(50), pa.int64())})
    content = body(table, rows=50)
    batch = 8 + struct.unpack_from("<I", content, 4)[0]
    size = struct.unpack_from("<I", content, batch + 4)[0]
    end = batch + 8 + size
    moved = content[: batch + 4] + struct.pack("<I", size + 1) + content[batch + 8 : end] + b"\0" + content[end:]
    rows, found = rows_of(moved)
    assert rows is not None
    assert found == table
    sent = append_of({"append": 1, "table": "t", "key": None}, moved)[1].table
    with streams.Incoming.of_bytes(moved).blamed() as reader:
        assert isinstance(reader, pa.RecordBatchReader)
        in_this_process = reader.read_all()
    for each in (found, sent, in_this_process):
        assert each["id"].chunk(0).buffers()[1].address % 8 == 0


def test_a_negative_size_is_refused() -> None:
    content = body(pa.table({"id": pa.array(range(50), pa.int64())}), rows=50)
    node = struct.pack("<qq", 50, 0)
    assert content.count(node) == 1
    with pytest.raises(InvalidInput, match="negative"):
        rows_of(content.replace(node, struct.pack("<qq", -50, 0)))


def test_a_small_dictionary_may_grow() -> None:
    sink = pa.BufferOutputStream()
    words = [pa.array(some).dictionary_encode() for some in (["a", "b"], ["a", "b", "c"])]
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    with pa.ipc.new_stream(sink, pa.schema([("word", words[0].type)]), options=options) as writer:
        for each in words:
            writer.write_batch(pa.record_batch({"word": each}))
    rows, found = rows_of(bytes(sink.getvalue()))
    assert rows is not None
    assert found["word"].to_pylist() == ["a", "b", "a", "b", "c"]


def test_a_dictionary_in_the_values_of_a_dictionary_is_refused() -> None:
    inner = pa.StructArray.from_arrays([pa.array(["a", "b"]).dictionary_encode()], ["x"])
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), inner)
    with pytest.raises(InvalidInput, match="a dictionary in the values of a dictionary"):
        rows_of(body(pa.table({"c": column})))
