"""Appends of fragments that were written before the columns of their table changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancekeep

SCHEMA = pa.schema([("id", pa.int32()), ("at", pa.struct([("x", pa.int32())]))])


@pytest.fixture(params=["commit store", "directory"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[lancekeep.Catalog]:
    """Yield a catalog that commits through itself, in V2 and in V1 directories."""
    managed = request.param == "commit store"
    store = f"sqlite://{tmp_path}/commits.db" if managed else None
    with lancekeep.connect(str(tmp_path / "lake"), commit_store=store, mode="v2" if managed else "v1") as catalog:
        yield catalog


def rows(number: int) -> pa.Table:
    return pa.table({"id": [number], "at": [{"x": number}]}, SCHEMA)


def replaced(table: Any) -> None:
    table.drop_columns(["id"])
    table.add_columns({"id": "at.x"})


LOSING: dict[str, Callable[[Any], object]] = {
    "retyped": lambda table: table.alter_columns({"path": "id", "data_type": pa.int64()}),
    "retyped field": lambda table: table.alter_columns({"path": "at.x", "data_type": pa.int64()}),
    "dropped": lambda table: table.drop_columns(["id"]),
    "replaced": replaced,
}
KEEPING: dict[str, Callable[[Any], object]] = {
    "added": lambda table: table.add_columns({"more": "id"}),
    "renamed": lambda table: table.alter_columns({"path": "id", "name": "key"}),
    "appended": lambda table: lance.write_dataset(rows(1), table, mode="append"),
}


def append_over(catalog: lancekeep.Catalog, change: Callable[[Any], object], *, in_a_transaction: bool = False) -> None:
    """Write fragments, change the table, and commit the fragments."""
    catalog.write("t", rows(1))
    plan = catalog.begin_write("t", SCHEMA, "append")
    fragments = lance.fragment.write_fragments(rows(2), plan.uri, schema=plan.schema, mode=plan.fragment_mode)
    change(catalog.open("t"))
    if not in_a_transaction:
        catalog.commit_fragments(plan, fragments)
        return
    with catalog.transaction() as transaction:
        transaction.commit_fragments(plan, fragments)


@pytest.mark.parametrize("change", LOSING)
def test_append_that_would_lose_values_is_refused(catalog: lancekeep.Catalog, change: str) -> None:
    with pytest.raises(lancekeep.ConcurrentModification, match="dropped, replaced or retyped columns since"):
        append_over(catalog, LOSING[change])
    assert catalog.open("t").count_rows() == 1


@pytest.mark.parametrize("change", KEEPING)
def test_append_that_keeps_its_values_is_committed(catalog: lancekeep.Catalog, change: str) -> None:
    append_over(catalog, KEEPING[change])
    found = catalog.open("t").to_table(filter="at.x = 2").to_pylist()
    assert [(row.get("id", row.get("key")), row["at"]) for row in found] == [(2, {"x": 2})]


@pytest.mark.parametrize("change", [*LOSING, *KEEPING])
def test_transaction_keeps_the_values_of_its_appends(tmp_path: Path, change: str) -> None:
    with lancekeep.connect(str(tmp_path / "lake"), commit_store=f"sqlite://{tmp_path}/commits.db") as catalog:
        if change in LOSING:
            with pytest.raises(lancekeep.ConcurrentModification, match="dropped, replaced or retyped columns since"):
                append_over(catalog, LOSING[change], in_a_transaction=True)
        else:
            append_over(catalog, KEEPING[change], in_a_transaction=True)
        found = catalog.open("t").to_table(filter="at.x = 2").to_pylist()
        assert [row.get("id", row.get("key")) for row in found] == ([] if change in LOSING else [2])
