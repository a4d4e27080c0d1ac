"""Small data files that are encoded here: the native engine reads them, and its own are left to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lance.file import LanceFileReader, LanceFileWriter

from lancekeep import connect
from lancekeep.format.data_file import MOST_BYTES, MOST_ROWS, Column, decode, encode, schema_of

SCHEMA = pa.schema(
    [pa.field("name", pa.string(), nullable=False), pa.field("place", pa.string()), pa.field("more", pa.string())]
)
TEXT = st.text(st.characters(codec="utf-8"), max_size=40)
ROWS = st.lists(st.tuples(TEXT, TEXT | st.none(), TEXT | st.none()), min_size=1, max_size=70)


def by_engine(path: Path, columns: list[Column], version: str = "2.2") -> bytes:
    batch = pa.RecordBatch.from_arrays([pa.array(column, pa.string()) for column in columns], schema=SCHEMA)
    with LanceFileWriter(str(path), SCHEMA, version=cast(Any, version)) as writer:
        writer.write_batch(batch)
    return path.read_bytes()


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return schema_of(by_engine(tmp_path_factory.mktemp("example") / "a.lance", [["a"], ["b"], ["c"]]))


def as_the_engine_reads(content: bytes, path: Path) -> list[Column]:
    path.write_bytes(content)
    table = LanceFileReader(str(path)).read_all().to_table()
    assert table.schema.names == SCHEMA.names
    return [column.to_pylist() for column in table.columns]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS)
def test_engine_reads_encoded_file(rows: list[Any], schema: bytes, tmp_path: Path) -> None:
    columns = [list(column) for column in zip(*rows, strict=True)]
    content = encode(columns, schema)
    assert content is not None
    assert as_the_engine_reads(content, tmp_path / "own.lance") == columns
    assert decode(content) == columns


@pytest.mark.parametrize(
    "columns",
    [
        [[str(number) for number in range(MOST_ROWS)], [None] * MOST_ROWS, ["é"] * (MOST_ROWS - 1) + [None]],
        [["x" * MOST_BYTES], ["é" * (MOST_BYTES // 2)], [""]],
    ],
    ids=["rows", "bytes"],
)
def test_file_above_the_limit_is_left_to_the_engine(columns: list[Column], schema: bytes, tmp_path: Path) -> None:
    content = encode(columns, schema)
    assert content is not None
    assert as_the_engine_reads(content, tmp_path / "own.lance") == decode(content) == columns
    assert encode([[*column, "x"] for column in columns], schema) is None


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_file_of_the_engine_is_left_to_the_engine(version: str, tmp_path: Path) -> None:
    columns: list[Column] = [["a", "a"], [None, None], ["b", None]]
    assert decode(by_engine(tmp_path / "a.lance", columns, version)) is None


@given(position=st.integers(0), byte=st.integers(0, 255), cut=st.integers(0, 200))
def test_damaged_file_is_left_to_the_engine_or_holds_other_text(
    position: int, byte: int, cut: int, schema: bytes
) -> None:
    content = encode([["a", "b"], ["c", None], ["d", "ef"]], schema)
    assert content is not None
    damaged = bytearray(content)
    damaged[position % len(content)] = byte
    assert decode(content[cut + 1 :]) is None
    found = decode(bytes(damaged))
    assert found is None or [len(column) for column in found] == [2, 2, 2]


def test_catalog_writes_own_files_up_to_the_limit(tmp_path: Path) -> None:
    with connect(str(tmp_path)) as catalog:
        catalog.create_namespace("a", {"kind": "small"})
        [file] = (tmp_path / "__manifest" / "data").iterdir()
        assert decode(file.read_bytes()) == [["a"], ["namespace"], ['{"kind":"small"}']]
