"""Data files that are encoded here: the native engine reads them, and its own are left to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lance.file import LanceFileReader, LanceFileWriter

from lancekeep import connect
from lancekeep.application.catalog import directory_of
from lancekeep.domain.catalog import Put
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import ManifestEntry
from lancekeep.format import large_data_file
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


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


# -- many rows -----------------------------------------------------------------------------------------------------


def large_columns(rows: int) -> list[pa.Array]:
    """Return columns with one empty text, nulls in the second column, and a slice as the third."""
    names = [f"a{number}é" if number else "" for number in range(rows)]
    places = [None if number % 3 == 1 else f"p{number}" for number in range(rows)]
    return [pa.array(names), pa.array(places, pa.string()), pa.array(["before", None, *places]).slice(2)]


@pytest.mark.parametrize("rows", [1, 4095, 4096, 4097, 9000])
def test_engine_reads_encoded_file_of_many_rows(rows: int, schema: bytes, tmp_path: Path) -> None:
    columns = large_columns(rows)
    content = large_data_file.encode(columns, schema)
    assert content is not None
    assert as_the_engine_reads(content, tmp_path / "own.lance") == [column.to_pylist() for column in columns]
    taken = LanceFileReader(str(tmp_path / "own.lance")).take_rows([0, rows - 1] if rows > 1 else [0]).to_table()
    assert taken["name"].to_pylist() == [columns[0][at].as_py() for at in sorted({0, rows - 1})]
    found = large_data_file.decode(content)
    assert found is not None
    assert [column.to_pylist() for column in found] == [column.to_pylist() for column in columns]
    assert decode(content) is None


def test_chunk_above_the_limit_is_left_to_the_engine(schema: bytes) -> None:
    rows = 4096
    assert large_data_file.encode([pa.array(["x" * 200] * rows)] * 3, schema) is not None
    assert large_data_file.encode([pa.array(["x" * 300] * rows)] * 3, schema) is None


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_large_file_of_the_engine_is_left_to_the_engine(version: str, tmp_path: Path) -> None:
    columns = [column.to_pylist() for column in large_columns(5000)]
    assert large_data_file.decode(by_engine(tmp_path / "a.lance", columns, version)) is None


@given(data=st.data())
def test_damaged_large_file_is_left_to_the_engine_or_holds_other_text(data: st.DataObject, schema: bytes) -> None:
    content = large_data_file.encode(large_columns(4100), schema)
    assert content is not None
    damaged = bytearray(content)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    assert large_data_file.decode(content[data.draw(st.integers(1, len(content))) :]) is None
    found = large_data_file.decode(bytes(damaged))
    assert found is None or [len(column) for column in found] == [4100] * 3
    for column in found or ():
        column.to_pylist()


def test_catalog_of_many_tables_writes_own_files(tmp_path: Path) -> None:
    ids = [ObjectId((f"t{number}",)) for number in range(5000)]
    with connect(str(tmp_path), mode="v2") as catalog:
        changes = [Put(ManifestEntry.table(each, f"{each}.lance", {"a": each.key})) for each in ids]
        directory_of(catalog).ledger.manifest.apply(lambda view: (changes, None))
    [file] = (tmp_path / "__manifest" / "data").iterdir()
    found = large_data_file.decode(file.read_bytes())
    assert found is not None
    assert found[0].to_pylist() == [each.key for each in ids]
    with connect(str(tmp_path), mode="v2") as catalog:
        assert catalog.list_tables() == sorted(each.key for each in ids)
        assert catalog.find_table("t4999").properties == {"a": "t4999"}
