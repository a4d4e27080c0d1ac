"""Bodies with Arrow data: small ones arrive as a table, others as a stream, and both with the same rows and errors."""

from __future__ import annotations

from decimal import Decimal
from io import BytesIO
from typing import Any

import pyarrow as pa
import pytest

from lancekeep.domain.errors import InvalidInput
from lancekeep.entrypoints.rest import arrow_bodies
from lancekeep.entrypoints.rest.arrow_bodies import opened
from lancekeep.entrypoints.rest.errors import HttpError

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


def rows_of(content: bytes) -> tuple[type, pa.Table]:
    with opened(BytesIO(content), MOST, 16 * MOST) as rows:
        return type(rows), rows if isinstance(rows, pa.Table) else rows.read_all()


@pytest.mark.parametrize("codec", [None, "zstd", "lz4"])
def test_a_small_body_is_a_table(codec: str | None) -> None:
    kind, rows = rows_of(body(SMALL, codec=codec))
    assert kind is pa.Table
    assert rows == SMALL


def test_a_dictionary_that_is_replaced_keeps_its_values() -> None:
    sink = pa.BufferOutputStream()
    words = [pa.array(some).dictionary_encode() for some in (["a", "b"], ["c"])]
    with pa.ipc.new_stream(sink, pa.schema([("word", words[0].type)])) as writer:
        for each in words:
            writer.write_batch(pa.record_batch({"word": each}))
    assert rows_of(sink.getvalue().to_pybytes())[1]["word"].to_pylist() == ["a", "b", "c"]


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"id": pa.array(range(40_000), pa.int64())}),
        pa.table({"none": pa.nulls(2 * arrow_bodies.ROWS_WITHOUT_BYTES)}),
        pa.table({"text": pa.array(["a view", None], pa.string_view())}),
    ],
    ids=["bytes", "values", "views"],
)
def test_other_bodies_are_streams(table: pa.Table) -> None:
    kind, rows = rows_of(body(table, rows=10_000))
    assert kind is pa.RecordBatchReader
    assert rows == table


def test_a_small_body_that_expands_is_a_stream() -> None:
    zeros = pa.table({"id": pa.array([0] * 40_000, pa.int64())})
    content = body(zeros, rows=10_000, codec="zstd")
    assert len(content) < 10_000
    assert rows_of(content) == (pa.RecordBatchReader, zeros)


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
