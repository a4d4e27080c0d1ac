"""Datasets of `Catalog.open` in a catalog without a commit store: they commit through it in V1 directories."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable
from functools import partialmethod
from pathlib import Path
from threading import Barrier, Event, Thread
from time import sleep
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancekeep
from lancekeep.application.catalog import directory_of


def rows(*values: int) -> pa.Table:
    return pa.table({"a": pa.array(values, pa.int64()), "s": ["x"] * len(values)})


def write(catalog: lancekeep.Catalog, name: str = "t") -> None:
    catalog.write(name, rows(1, 2))
    catalog.write(name, rows(3, 4), "append")


def stored(catalog: lancekeep.Catalog) -> dict[str, list[int]]:
    """Return the rows of each table that has a version."""
    tables = catalog.list_all_tables(include_declared=False)
    return {str(name): sorted(catalog.open(name).to_table()["a"].to_pylist()) for name in tables}


def _merge(dataset: Any) -> None:
    dataset.merge_insert("a").when_matched_update_all().when_not_matched_insert_all().execute(rows(3, 9))


CHANGES: dict[str, Callable[[Any], object]] = {
    "append": lambda dataset: dataset.insert(rows(9), mode="append"),
    "overwrite": lambda dataset: lance.write_dataset(rows(9), dataset, mode="overwrite"),
    "delete": lambda dataset: dataset.delete("a = 3"),
    "update": lambda dataset: dataset.update({"s": "'y'"}, where="a = 3"),
    "merge": _merge,
    "add_columns": lambda dataset: dataset.add_columns({"b": "a + 1"}),
    "drop_columns": lambda dataset: dataset.drop_columns(["s"]),
    "index": lambda dataset: dataset.create_scalar_index("a", "BTREE"),
    "compact": lambda dataset: dataset.optimize.compact_files(),
    "configure": lambda dataset: dataset.update_config({"k": "v"}),
}


@pytest.mark.parametrize("change", ["rename", "drop"])
@pytest.mark.parametrize("name", CHANGES)
def test_stale_handle_is_refused(tmp_path: Path, name: str, change: str) -> None:
    catalog, other, fresh = (lancekeep.connect(str(tmp_path / "lake")) for _ in range(3))
    write(other)
    handle = catalog.open("t")
    handle.to_table()
    if change == "rename":
        other.rename_table("t", "moved")
    else:
        other.drop_table("t")
    with pytest.raises((OSError, pa.ArrowInvalid)):
        CHANGES[name](handle)
    assert stored(fresh) == ({"moved": [1, 2, 3, 4]} if change == "rename" else {})


@pytest.mark.parametrize("store", [None, "conditional-put://"])
def test_error_of_a_stale_handle_does_not_depend_on_the_store(tmp_path: Path, store: str | None) -> None:
    catalog = lancekeep.connect(str(tmp_path / "lake"), commit_store=store)
    write(catalog)
    handle = catalog.open("t")
    catalog.drop_table("t")
    with pytest.raises(OSError, match="open it again"):
        handle.checkout_latest()
    with pytest.raises(OSError, match="Commit result for version 3 is unknown"):
        handle.insert(rows(9), mode="append")


class Racer:
    """A writer that opens a handle for every few writes, and remembers the acknowledged ones."""

    def __init__(self, root: str, number: int, begin: Barrier, stop: Event) -> None:
        self._catalog = lancekeep.connect(root)
        self._first = 1000 * (number + 1)
        self._begin, self._stop = begin, stop
        self.appended: list[int] = []
        self.deleted: list[int] = []
        self.failed: list[BaseException] = []

    def run(self) -> None:
        handle, value = self._catalog.open("t"), self._first
        self._begin.wait()
        while not self._stop.is_set() and value < self._first + 60:
            value += 1
            try:
                if value % 4 == 0 and self.appended:
                    handle.delete(f"a = {self.appended[-1]}")
                    self.deleted.append(self.appended.pop())
                elif value % 4 == 1:
                    handle.merge_insert("a").when_not_matched_insert_all().execute(rows(value))
                    self.appended.append(value)
                elif value % 4 == 2:
                    handle.update({"s": f"'{value}'"}, where="a = 1")
                else:
                    handle.insert(rows(value), mode="append")
                    self.appended.append(value)
            except (OSError, ValueError) as error:
                self.failed.append(error)
                try:
                    handle = self._catalog.open("t")
                except lancekeep.LancekeepError:
                    return


@pytest.mark.parametrize("change", ["rename", "drop"])
@pytest.mark.parametrize("delay", [0.02, 0.06])
def test_handles_that_race_a_change_of_the_catalog_lose_nothing(tmp_path: Path, change: str, delay: float) -> None:
    root = str(tmp_path / "lake")
    other, fresh = (lancekeep.connect(root) for _ in range(2))
    write(other)
    begin, stop = Barrier(3), Event()
    racers = [Racer(root, number, begin, stop) for number in range(2)]
    threads = [Thread(target=racer.run) for racer in racers]
    for thread in threads:
        thread.start()
    begin.wait()
    sleep(delay)
    moved = True
    try:
        if change == "rename":
            other.rename_table("t", "moved")
        else:
            other.drop_table("t")
    except lancekeep.ConcurrentModification:
        moved = False
    dropped_at = [list(racer.appended) for racer in racers]
    sleep(0.1)
    stop.set()
    for thread in threads:
        thread.join()
    found = stored(fresh)
    if change == "drop":
        assert found == {}
        late = [racer.appended[len(before) + 1 :] for racer, before in zip(racers, dropped_at, strict=True)]
        assert late == [[], []]  # one write of each may have ended before the drop
        return
    assert list(found) == (["moved"] if moved else ["t"])
    (values,) = found.values()
    assert len(values) == len(set(values))
    for racer in racers:
        assert set(racer.appended) <= set(values)
        assert not set(racer.deleted) & set(values)


@pytest.mark.parametrize("mode", ["compatible", "v1"])
def test_handle_makes_clones_and_pickles(tmp_path: Path, mode: str) -> None:
    with lancekeep.connect(str(tmp_path / "lake"), mode=mode) as catalog:
        write(catalog)
        handle = catalog.open("t")
        handle.create_branch("b")
        branch = catalog.open("t", branch="b")
        branch.insert(rows(5), mode="append")
    assert handle.shallow_clone(str(tmp_path / "shallow"), reference=1).count_rows() == 2
    assert handle.deep_clone(str(tmp_path / "deep"), 2).count_rows() == 4
    assert branch.shallow_clone(str(tmp_path / "branch"), reference=branch.version).count_rows() == 5
    task = pickle.loads(pickle.dumps(handle))
    assert task.count_rows() == 4
    task.insert(rows(6), mode="append")
    handle.insert(rows(7), mode="append")  # after the catalog is closed, too
    assert lance.dataset(task.uri).count_rows() == 6


def _counted(self: Any, name: str, asked: Counter[str], ask: Callable[..., Any], *given: Any, **named: Any) -> Any:
    asked[name] += 1
    return ask(self, *given, **named)


@pytest.mark.parametrize(
    ("mode", "asked"),
    [("v2", {}), ("compatible", {"head": 7, "get": 2, "list": 1, "delete": 1})],
)
def test_handle_asks_for_tables_in_v1_directories_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, asked: dict[str, int]
) -> None:
    catalog = lancekeep.connect(str(tmp_path / "lake"), mode=mode)
    write(catalog)
    handle = catalog.open("t")
    handle.insert(rows(5), mode="append")
    requests: Counter[str] = Counter()
    objects = type(directory_of(catalog).commits.objects)
    for name in ("head", "get", "list", "directories", "put", "put_if_absent", "copy", "delete"):
        monkeypatch.setattr(objects, name, partialmethod(_counted, name, requests, getattr(objects, name)))
    handle.insert(rows(6), mode="append")
    assert requests == Counter(asked)
    reads = [catalog.open, catalog.scan]
    counts = []
    for read in reads:
        requests.clear()
        found = read("t")
        assert (found.to_table() if read is reads[0] else found.to_arrow()).num_rows == 6
        counts.append(+requests)
    opened, scanned = counts
    assert (opened == scanned) is (mode == "v2")
