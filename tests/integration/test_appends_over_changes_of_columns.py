"""Appends of fragments that were written before the columns of their table changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancekeep
from lancekeep.adapters.lance.engine import LanceEngine

SCHEMA = pa.schema([("id", pa.int32()), ("at", pa.struct([("x", pa.int32())]))])


@pytest.fixture(params=["commit store", "directory"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[lancekeep.Catalog]:
    """Yield a catalog that commits through itself, in V2 and in V1 directories."""
    with connect(tmp_path, managed=request.param == "commit store") as catalog:
        yield catalog


def connect(path: Path, *, managed: bool = True) -> lancekeep.Catalog:
    store = f"sqlite://{path}/commits.db" if managed else None
    return lancekeep.connect(str(path / "lake"), commit_store=store, mode="v2" if managed else "v1")


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
    with connect(tmp_path) as catalog:
        if change in LOSING:
            with pytest.raises(lancekeep.ConcurrentModification, match="dropped, replaced or retyped columns since"):
                append_over(catalog, LOSING[change], in_a_transaction=True)
        else:
            append_over(catalog, KEEPING[change], in_a_transaction=True)
        found = catalog.open("t").to_table(filter="at.x = 2").to_pylist()
        assert [row.get("id", row.get("key")) for row in found] == ([] if change in LOSING else [2])


def at_the_look(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """``act`` happens once, before the commit opens the version that it would follow."""
    opened, acts = LanceEngine.open, [act]

    def open_later(self: LanceEngine, table: Any, version: int | None, tag: str | None, branch: str | None) -> Any:
        if version is not None and acts:
            acts.pop()()
        return opened(self, table, version, tag, branch)

    monkeypatch.setattr(LanceEngine, "open", open_later)


def clean_up_after(appends: int) -> Callable[[lancekeep.Catalog], object]:
    def act(catalog: lancekeep.Catalog) -> None:
        for number in range(appends):
            catalog.write("t", rows(7 + number), "append")
        catalog.upkeep.cleanup(0)

    return act


def fail(_: lancekeep.Catalog) -> None:
    raise lancekeep.StoreUnavailable("the storage is away")


CONCURRENT: dict[str, tuple[Callable[[lancekeep.Catalog], object], type[Exception], str]] = {
    "cleaned up": (clean_up_after(1), lancekeep.CommitRefused, "Nothing was committed"),  # the engine tried again
    "cleaned up twice": (clean_up_after(2), lancekeep.ConcurrentModification, "nothing of this call was committed"),
    "dropped": (lambda catalog: catalog.drop_table("t", keep=0), lancekeep.Refused, "was dropped or renamed"),
    "no answer": (fail, lancekeep.StoreUnavailable, "^the storage is away$"),
}


@pytest.mark.parametrize("how", ["commit store", "directory", "transaction"])
@pytest.mark.parametrize("case", CONCURRENT)
def test_append_that_cannot_be_compared_is_a_definite_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, how: str
) -> None:
    """The engine does not know why the commit ended, and takes the version for perhaps committed."""
    act, kind, text = CONCURRENT[case]
    with connect(tmp_path, managed=how != "directory") as catalog:
        at_the_look(monkeypatch, lambda: act(catalog))
        with pytest.raises(kind, match=text):
            append_over(catalog, KEEPING["appended"], in_a_transaction=how == "transaction")
        monkeypatch.undo()
        assert case == "dropped" or 2 not in catalog.open("t").to_table()["id"].to_pylist()
