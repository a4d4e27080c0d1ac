"""Logical types: text for the type of a column, as native tables have it."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lancekeep
from lancekeep.format.logical_types import arrow_type, logical_type

TYPES = {
    "null": pa.null(),
    "bool": pa.bool_(),
    "int32": pa.int32(),
    "uint64": pa.uint64(),
    "halffloat": pa.float16(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "large_string": pa.large_string(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "date32:day": pa.date32(),
    "timestamp:us:UTC": pa.timestamp("us", "UTC"),
    "timestamp:s:-": pa.timestamp("s"),
    "timestamp:ms:+02:00": pa.timestamp("ms", "+02:00"),
    "decimal:128:10:2": pa.decimal128(10, 2),
    "decimal:256:50:-3": pa.decimal256(50, -3),
    "fixed_size_binary:7": pa.binary(7),
}


@pytest.mark.parametrize("text", TYPES)
def test_logical_type_and_arrow_type_are_inverse(text: str) -> None:
    assert logical_type(TYPES[text]) == text
    assert arrow_type(text) == TYPES[text]


def test_native_tables_use_the_same_text(tmp_path: Path) -> None:
    schema = pa.schema([pa.field(text, kind) for text, kind in TYPES.items() if kind != pa.decimal256(50, -3)])
    lance.write_dataset(schema.empty_table(), str(tmp_path / "t"))
    fields = lance.dataset(str(tmp_path / "t")).lance_schema.fields()
    assert [f'LogicalType("{field.name()}")' in repr(field) for field in fields] == [True] * len(fields)


def test_dictionary_has_the_logical_type_of_its_values() -> None:
    assert logical_type(pa.dictionary(pa.int8(), pa.string())) == "string"


def test_nested_type_is_refused() -> None:
    with pytest.raises(lancekeep.InvalidInput, match="struct<x: int64>"):
        logical_type(pa.struct([("x", pa.int64())]))


@pytest.mark.parametrize(
    "text", ["", "text", "timestamp:us", "timestamp:week:-", "decimal:128:x:2", "fixed_size_binary:x"]
)
def test_text_that_names_no_logical_type_is_refused(text: str) -> None:
    with pytest.raises(lancekeep.InvalidInput, match="is not a logical type"):
        arrow_type(text)
