"""An operation whose table moves to another directory is in the table at its new place, or reports that it is not."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from faults import READS, outcomes_beside

import lancekeep
from lancekeep.application.rows import appends, direct_upserts, table_transactions
from lancekeep.domain.identifiers import ObjectId
from lancekeep.ports.rows import MergeRule

Catalog = lancekeep.Catalog
Rows = list[int]
T = ObjectId.of("t")

PLACES = {
    "conditional-put": "conditional-put://",
    "sqlite": "sqlite://{}/rows.db",
    "storage-managed": None,
    "left to the storage": "sqlite://{}/rows.db",
}


def rows(*values: int) -> pa.Table:
    return pa.table({"a": pa.array(values, pa.int64())})


def append(catalog: Catalog) -> object:
    return catalog.data.insert(T, rows(9).to_reader())


def delete(catalog: Catalog) -> object:
    return catalog.data.delete(T, "a = 1")


def update(catalog: Catalog) -> object:
    return catalog.data.update(T, {"a": "9"}, "a = 1")


def upsert(catalog: Catalog) -> object:
    return catalog.data.merge(T, rows(2, 9), MergeRule(on=["a"], update=True))


def compact(catalog: Catalog) -> object:
    return catalog.upkeep.compact("t")


def write_to_a_branch(catalog: Catalog) -> object:
    return catalog.data.insert(T, rows(9).to_reader(), branch="side")


OPERATIONS: dict[str, tuple[Callable[[Catalog], object], Callable[[Rows], Rows]]] = {
    "append": (append, lambda found: [*found, 9]),
    "delete": (delete, lambda found: [each for each in found if each != 1]),
    "update": (update, lambda found: [*(each for each in found if each != 1), 9]),
    "upsert": (upsert, lambda found: [*found, 9]),
    "compact": (compact, lambda found: found),
    "write to a branch": (write_to_a_branch, lambda found: [*found, 9]),
}


def is_counted(method: str) -> bool:
    return method not in READS


@pytest.mark.parametrize("mode", ["v2", "compatible"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_operation_beside_a_move_is_at_the_new_place_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, place: str, mode: str
) -> None:
    monkeypatch.setattr(direct_upserts, "_OFTEN", 0)
    for module in (appends, table_transactions):  # the move is complete before the operation continues
        monkeypatch.setattr(module, "in_background", lambda act: act())
    act, changed = OPERATIONS[operation]
    branch = "side" if operation == "write to a branch" else None

    def connected(number: int) -> Catalog:
        path = tmp_path / str(number)
        url = PLACES[place]
        is_new = not path.exists()
        path.mkdir(exist_ok=True)
        catalog = lancekeep.connect(
            str(path / "lake"), commit_store=url and url.format(path), mode=mode, storage_options={"fsync": "false"}
        )
        if is_new:
            released = {"lancekeep.managed": "storage"} if place == "left to the storage" else None
            catalog.write("t", rows(1, 2), properties=released)
            catalog.write("t", rows(3), "append")
            if branch:
                catalog.branches.create("t", branch)
        return catalog

    def move(catalog: Catalog) -> None:
        for value in (4, 5, 6):
            catalog.data.insert(T, rows(value).to_reader(), branch=branch)
        catalog.upkeep.relocate("t", "elsewhere")

    def move_in_a_thread(catalog: Catalog) -> None:
        with ThreadPoolExecutor(1) as pool:  # the engine cannot be called by a thread of its own
            pool.submit(move, catalog).result()

    before = [1, 2, 3, 4, 5, 6]
    found_at = outcomes_beside(
        monkeypatch, connected, lambda catalog: partial(act, catalog), move_in_a_thread, counts=is_counted
    )
    for number, (method, outcome) in enumerate(found_at, 1):
        dataset = lance.dataset(tmp_path / str(number) / "lake" / "elsewhere")
        if branch:
            dataset = dataset.checkout_version((branch, None))
        found = sorted(dataset.to_table()["a"].to_pylist())
        if isinstance(outcome, lancekeep.CommitUnknown):
            expected = [before, sorted(changed(before))]
        elif isinstance(outcome, Exception):
            assert isinstance(outcome, lancekeep.LancekeepError), repr(outcome)
            expected = [before]
        else:
            expected = [sorted(changed(before))]
        assert found in expected, f"moved before call {number}, {method}: {outcome!r}"
