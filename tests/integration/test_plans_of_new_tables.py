"""Plans of `begin_write` for a table without a version: they commit to this table alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancekeep
from lancekeep.application.rows.moved_tables import MovedTables

STORES = [None, "conditional-put://", "sqlite"]
ROWS = pa.table({"a": pa.array([1], pa.int64())})
OTHER = pa.table({"a": pa.array([7], pa.int64())})

AFTERWARDS: dict[str, Callable[[lancekeep.Catalog], object]] = {
    "gone": lambda catalog: None,
    "declared": lambda catalog: catalog.declare_table("t"),
    "written": lambda catalog: catalog.write("t", OTHER),
}


def connect(path: Path, mode: str, store: str | None) -> lancekeep.Catalog:
    url = f"sqlite://{path}/commits.db" if store == "sqlite" else store
    return lancekeep.connect(str(path / "lake"), mode=mode, commit_store=url, storage_options={"fsync": "false"})


def fragments_of(plan: Any) -> Any:
    return lance.fragment.write_fragments(ROWS, plan.uri, schema=plan.schema, mode=plan.fragment_mode)


def stored(catalog: lancekeep.Catalog) -> dict[str, list[int]]:
    """Return the rows of each table that has a version."""
    tables = catalog.list_all_tables(include_declared=False)
    return {str(name): catalog.open(name).to_table()["a"].to_pylist() for name in tables}


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("mode", ["compatible", "v1", "v2"])
@pytest.mark.parametrize("afterwards", AFTERWARDS)
def test_plan_of_a_dropped_table_is_refused(tmp_path: Path, mode: str, store: str | None, afterwards: str) -> None:
    for when in ("before", "after"):
        for write in ("create", "overwrite"):
            path = tmp_path / f"{when}-{write}"
            path.mkdir()
            catalog, other = (connect(path, mode, store) for _ in range(2))
            plan = catalog.begin_write("t", ROWS.schema, write)
            fragments = fragments_of(plan) if when == "after" else None
            other.drop_table("t", keep=0)
            AFTERWARDS[afterwards](other)
            with pytest.raises((lancekeep.LancekeepError, OSError)) as raised:
                # Files that are written now make a directory of the dropped table again.
                catalog.commit_fragments(plan, fragments_of(plan) if fragments is None else fragments)
            assert not isinstance(raised.value, lancekeep.CommitUnknown)
            assert stored(connect(path, mode, store)) == ({"t": [7]} if afterwards == "written" else {})


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("mode", ["compatible", "v1", "v2"])
@pytest.mark.parametrize("marker", [None, b"reserved", b""])
def test_plan_of_a_table_that_stays_is_committed(
    tmp_path: Path, mode: str, store: str | None, marker: bytes | None
) -> None:
    catalog = connect(tmp_path, mode, store)
    declared = catalog.declare_table("t")
    if marker is not None:  # as native writers, and earlier releases, declare a table
        (tmp_path / "lake" / declared.location / ".lance-reserved").write_bytes(marker)
    plan = catalog.begin_write("t", ROWS.schema, "overwrite")
    assert catalog.commit_fragments(plan, fragments_of(plan)).version == 1
    assert stored(catalog) == {"t": [1]}
    with pytest.raises((lancekeep.LancekeepError, OSError)):
        catalog.commit_fragments(plan, fragments_of(plan))
    assert stored(catalog) == {"t": [1]}


@pytest.mark.parametrize("store", STORES)
def test_plan_is_refused_if_its_table_is_replaced_during_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str | None
) -> None:
    catalog, other = (connect(tmp_path, "compatible", store) for _ in range(2))
    plan = catalog.begin_write("t", ROWS.schema, "create")
    fragments = fragments_of(plan)
    confirming = MovedTables.confirming

    def replace(self: MovedTables, *given: Any, **named: Any) -> Any:
        confirm = confirming(self, *given, **named)

        def late(transaction: str) -> None:
            other.drop_table("t", keep=0)
            other.declare_table("t")
            confirm(transaction)

        return late

    monkeypatch.setattr(MovedTables, "confirming", replace)
    with pytest.raises(lancekeep.CommitRefused, match="begin the write again"):
        catalog.commit_fragments(plan, fragments)
    monkeypatch.undo()
    assert stored(other) == {}
    assert other.write("t", OTHER, "overwrite").version == 1
    assert stored(other) == {"t": [7]}


@pytest.mark.parametrize("mode", ["compatible", "v1", "v2"])
@pytest.mark.parametrize("afterwards", [None, *AFTERWARDS])
def test_plan_in_a_transaction_commits_to_its_table_alone(tmp_path: Path, mode: str, afterwards: str | None) -> None:
    catalog, other = (connect(tmp_path, mode, "sqlite") for _ in range(2))
    catalog.write("kept", ROWS)

    def run() -> None:
        with catalog.transaction() as transaction:
            plan = catalog.begin_write("t", ROWS.schema, "create")
            transaction.commit_fragments(plan, fragments_of(plan))
            transaction.write("kept", OTHER, "append")
            if afterwards is not None:
                other.drop_table("t", keep=0)
                AFTERWARDS[afterwards](other)

    if afterwards is None:
        run()
        assert stored(other) == {"kept": [1, 7], "t": [1]}
        return
    with pytest.raises((lancekeep.LancekeepError, OSError)) as raised:
        run()
    assert not isinstance(raised.value, lancekeep.CommitUnknown)
    assert stored(connect(tmp_path, mode, "sqlite")) == {"kept": [1], **({"t": [7]} if afterwards == "written" else {})}
