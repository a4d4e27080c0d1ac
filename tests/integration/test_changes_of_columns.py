"""Changes of columns are refused if they contradict themselves or would make a table that nothing can read."""

from __future__ import annotations

from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lancekeep
from lancekeep import ColumnChange as Change
from lancekeep.domain.errors import SchemaMismatch
from lancekeep.ports.table_structure import FieldMetadata

ROWS = pa.table({"a": [1, 2], "b": [3, 4], "s": [{"p": 5, "q": 6}] * 2, "l": [[{"p": 7, "q": 8}]] * 2})


@pytest.fixture
def catalog(tmp_path: Path) -> lancekeep.Catalog:
    catalog = lancekeep.connect(str(tmp_path / "lake"), commit_store="conditional-put://")
    catalog.write("t", ROWS)
    return catalog


def read(catalog: lancekeep.Catalog) -> pa.Table:
    return lance.dataset(catalog.describe_table("t").uri).to_table()


@pytest.mark.parametrize(
    "changes",
    [
        [Change("a", name="x"), Change("a", name="y")],
        [Change("a", name="x"), Change("`a`", nullable=True)],
        [Change("a", data_type=pa.int32()), Change("a", data_type=pa.int16())],
        [Change("s.p", name="x"), Change("s.p", name="y")],
        [Change("a", name="x")] * 1000,
    ],
)
def test_column_is_changed_once_in_one_call(catalog: lancekeep.Catalog, changes: list[Change]) -> None:
    with pytest.raises(lancekeep.InvalidInput, match=r"names the column .* twice"):
        catalog.structure.alter_columns("t", changes)
    assert read(catalog) == ROWS


@pytest.mark.parametrize(
    "changes",
    [
        [Change("a", name="b")],
        [Change("a", name="x"), Change("b", name="x")],
        [Change("s.p", name="q")],
        [Change("s.p", name="x"), Change("s.q", name="x")],
        [Change("l.item.p", name="q")],
    ],
)
def test_two_fields_do_not_get_one_name(catalog: lancekeep.Catalog, changes: list[Change]) -> None:
    with pytest.raises(SchemaMismatch, match="two fields would have the name"):
        catalog.structure.alter_columns("t", changes)
    assert read(catalog) == ROWS


def test_fields_exchange_their_names(catalog: lancekeep.Catalog) -> None:
    swap = [Change("a", name="b"), Change("b", name="a"), Change("s.p", name="q"), Change("s.q", name="p")]
    catalog.structure.alter_columns("t", swap)
    found = read(catalog).to_pydict()
    assert (found["a"], found["b"], found["s"][0]) == ([3, 4], [1, 2], {"q": 5, "p": 6})


def test_metadata_of_a_field_change_once_in_one_call(catalog: lancekeep.Catalog) -> None:
    with pytest.raises(lancekeep.InvalidInput, match="names the column '`a`' twice"):
        catalog.structure.set_field_metadata("t", [FieldMetadata("a", {"k": "1"}), FieldMetadata("`a`", {"l": "2"})])
    assert catalog.open("t").schema.field("a").metadata is None
