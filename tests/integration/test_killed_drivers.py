"""Spark's drivers and executors killed at random moments of every kind of work: exact rows, and nothing left behind.

`make test` kills one driver with some kinds of work, `make soak` many with all kinds, and executors of a cluster.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import lance
import pyarrow as pa
import pytest
from clusters import printed_by
from spark_driver import CLUSTER, KINDS, PARTS, ROWS, Driver, connect, connect_divided

import lancekeep
from lancekeep.application.upkeep.fsck import Kind

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),  # the driver is forked, and executes at once
]

IS_SOAK = "LANCEKEEP_DRIVER_KILLS" in os.environ
KILLS = int(os.environ.get("LANCEKEEP_DRIVER_KILLS", "1"))
OTHERS = 1
"""The number of kinds of work of a driver besides its stream, unless it has all."""
VICTIMS = ("written", "committing", "committed", "all", "program", "jvm")
"""What ends a driver: a moment of its stream, or the death of so much of it. Each run begins with another one."""
NOW = timedelta(0)


def test_killed_driver_loses_and_repeats_no_work(tmp_path: Path) -> None:
    """Each driver also loses a worker first. The last one ends normally, in a soak on a cluster losing executors."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    others = [kind for kind in KINDS if kind != "stream"]
    done = dict.fromkeys(["stream", *(others if IS_SOAK else chance.sample(others, OTHERS))], 0)
    first = chance.randrange(len(VICTIMS))
    for kill in range(KILLS):
        with Driver(tmp_path, done) as driver:
            driver.await_works()
            driver.go_on(chance.random())
            driver.kill("worker", chance.choice)
            driver.await_works()
            driver.go_on(chance.random())
            victim = VICTIMS[(first + kill) % len(VICTIMS)]
            if victim in ("all", "program", "jvm"):
                driver.kill(victim, chance.choice)
            else:
                driver.command(victim)
            assert driver.end() != 0
            done = driver.done
        with connect(tmp_path) as catalog:
            found = states(catalog, done)
            assert orphans(catalog, tmp_path / "lake") == set()
        committed = [kind for kind in done if found[kind] > done[kind]]
        print(f"kill {kill}, {victim}: {done}, and committed without a reply: {committed}")
    with Driver(tmp_path, done, CLUSTER if IS_SOAK else "local[2,4]") as driver:
        for _ in range(KILLS if IS_SOAK else 0):
            driver.await_works()
            driver.go_on(chance.random())
            driver.kill("executor", chance.choice)
        driver.await_works()
        driver.command("stop")
        assert driver.end() == 0
    with connect(tmp_path) as catalog:
        assert states(catalog, driver.done) == driver.done
        assert orphans(catalog, tmp_path / "lake") == set()


def test_tasks_that_run_twice_count_once(tmp_path: Path) -> None:
    """A speculative copy replaces a task that hangs; a killed executor loses the results of an earlier stage, too."""
    rows = {number: number for number in range(8)}
    inserted = rows | {100 + number: number for number in range(8)}
    updated = inserted | {number: 2 * number for number in range(4)}
    merged = updated | {4 + number: number for number in range(8)}
    grouped = merged | {200 + number: 20 for number in range(4)}
    deleted = {number: value for number, value in grouped.items() if number < 100}
    expected = [inserted, updated, merged, grouped, deleted]
    assert [dict(found) for found in printed_by("cluster_retries.py", tmp_path)] == expected


# -- exact rows -----------------------------------------------------------------------------------------------------


def states(catalog: lancekeep.Catalog, done: dict[str, int]) -> dict[str, int]:
    """How many works of each kind the tables hold; all that are acknowledged, or one more, and each whole and once."""
    found = {kind: state(catalog) for kind, state in STATES.items() if kind in done}
    assert all(done[kind] <= found[kind] <= done[kind] + 1 for kind in done), f"{done} are done, {found} there"
    return found


def ids(catalog: lancekeep.Catalog, table: str) -> list[int]:
    return sorted(rows(catalog, table, "id"))


def rows(catalog: lancekeep.Catalog, table: str, column: str) -> list[Any]:
    """Of a table's latest version, as a reader without the catalog sees them, too."""
    found: list[Any] = catalog.open(table).to_table(columns=[column])[column].to_pylist()
    plain = lance.dataset(catalog.describe_table(table).uri).to_table(columns=[column])
    assert plain[column].to_pylist() == found
    return found


def works(numbers: list[int]) -> int:
    """How many works these rows are. Fails where they are not whole works from the first on, each once."""
    assert numbers == list(range(len(numbers)))
    assert len(numbers) % ROWS == 0
    return len(numbers) // ROWS


def appended(catalog: lancekeep.Catalog) -> int:
    return works(ids(catalog, "appended"))


def overwritten(catalog: lancekeep.Catalog) -> int:
    found = ids(catalog, "overwritten")
    assert found == list(range(found[0], found[0] + ROWS))
    return works([*range(found[0]), *found])


def upserted(catalog: lancekeep.Catalog) -> int:
    found = dict(zip(rows(catalog, "upserted", "id"), rows(catalog, "upserted", "work"), strict=True))
    count = max(found.values(), default=-1) + 1
    expected = {key: work for work in range(count) for key in range(work * ROWS // 2, work * ROWS // 2 + ROWS)}
    assert found == expected
    assert len(rows(catalog, "upserted", "id")) == len(expected)
    return count


def streamed(catalog: lancekeep.Catalog) -> int:
    count = works(ids(catalog, "sink"))
    assert works(ids(catalog, "source")) in (count, count + 1)
    return count


def divided(catalog: lancekeep.Catalog) -> int:
    """Each partition has its rows once, and no files of batches that were not published."""
    count = works(ids(catalog, "joined"))
    assert works(ids(catalog, "whole")) in (count, count + 1)
    with connect_divided(Path(urlsplit(catalog.root_uri).path).parent) as parts:
        found = parts.partitions.open().scan().to_table().to_pydict()
        assert works(sorted(found["id"])) in (count, count + 1)
        assert found["part"] == [number % PARTS for number in found["id"]]
        parts.upkeep.cleanup(NOW, keep=5, grace=NOW)
        parts.upkeep.fsck(repair=True, deep=True, grace=0)
        assert parts.upkeep.fsck(deep=True, grace=0).findings == ()
        assert works(sorted(parts.partitions.open().scan().to_table()["id"].to_pylist())) * ROWS == len(found["id"])
    return count


def piped(catalog: lancekeep.Catalog) -> int:
    snapshot = catalog.snapshot(["silver", "gold"])
    count = works(ids(catalog, "silver"))
    assert works(sorted(snapshot.open("silver").to_table()["id"].to_pylist())) == count
    sums = {"rows": count * ROWS, "total": sum(range(count * ROWS))}
    assert snapshot.open("gold").to_table().to_pylist() == [sums]
    assert works(ids(catalog, "bronze")) in (count, count + 1)
    return count


def kept(catalog: lancekeep.Catalog) -> int:
    """The rows of the last work may not have their column yet."""
    table = catalog.open("kept").to_table().sort_by("id").to_pydict()
    count = works(table["id"])
    twice = [2 * number for number in table["id"]]
    last = (count - 1) * ROWS
    assert table["twice"] in (twice, [*twice[:last], *[None] * ROWS])
    return count


STATES = {
    "stream": streamed,
    "partitions": divided,
    "append": appended,
    "overwrite": overwritten,
    "upsert": upserted,
    "pipeline": piped,
    "upkeep": kept,
}


# -- nothing left behind --------------------------------------------------------------------------------------------


def orphans(catalog: lancekeep.Catalog, lake: Path) -> set[str]:
    """Clean up, and return the files below the lake that no version refers to. No writer may be active."""
    catalog.write("newest", pa.table({"id": [0]}), "overwrite")  # its manifest gives the current time
    catalog.upkeep.cleanup(NOW, keep=5, grace=NOW)
    assert {finding.kind for finding in catalog.upkeep.fsck(repair=True, deep=True, grace=0).findings} <= {
        Kind.LEFTOVER
    }
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()
    found = {str(path.relative_to(lake)) for path in lake.rglob("*") if not path.is_dir()}
    tables = ["__manifest", *(Path(catalog.describe_table(table).uri).name for table in catalog.list_tables())]
    return found - {".lancekeep.json"} - {f"{table}/{name}" for table in tables for name in needed(lake / table)}


def needed(table: Path) -> Iterator[str]:
    """Return the files that the versions of a table need, according to the engine."""
    yield from (".lance-reserved", "_versions/latest_version_hint.json")
    yield from (f"_ingested/{file.name}" for file in table.glob("_ingested/*.arrow"))
    latest = lance.dataset(str(table))
    numbers = [version["version"] for version in latest.versions()]
    assert numbers == list(range(numbers[0], latest.version + 1))
    for number in numbers:
        version = latest.checkout_version(number)
        yield f"_versions/{2**64 - 1 - number:020}.manifest"
        transaction = version.read_transaction(number)
        assert transaction is not None
        yield f"_transactions/{transaction.read_version}-{transaction.uuid}.txn"
        for fragment in version.get_fragments():
            yield from (f"data/{file.path}" for file in fragment.data_files())
            deletions = fragment.deletion_file()
            if deletions is not None:
                yield deletions
