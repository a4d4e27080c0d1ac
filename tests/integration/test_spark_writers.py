"""Spark drivers, a native writer and a Lancekeep writer that append, upsert and merge into one table at once.

`make soak` also kills one of the drivers now and then, and a new driver continues its works.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import lance
import pytest
import writers
from spark_driver import ROWS, Driver, connect, options

from lancekeep.testing.concurrency import PROCESSES

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),  # the driver is forked, and executes at once
]

KILLS = int(os.environ.get("LANCEKEEP_DRIVER_KILLS", "0"))
WORKS = 8 if KILLS else 2
PATIENCE = 20.0
"""Seconds until the drivers stop: they might win against a native merge, which repeats its whole work, for ever."""
FIRST = {"one driver": 999, "another": 1998, "lancekeep": 3000, "native": 4000}
"""The number of each writer's first work."""


def test_concurrent_spark_native_and_lancekeep_writers(tmp_path: Path) -> None:
    catalog = connect(tmp_path)
    catalog.write("shared", writers.common(0))
    failures = PROCESSES.Queue()
    with ExitStack() as stack:
        drivers = {
            name: stack.enter_context(Driver(tmp_path, {"share": FIRST[name]}, "local[1]", name))
            for name in ("one driver", "another")
        }
        for driver in drivers.values():
            driver.await_works()
        others = [
            PROCESSES.Process(target=write, args=(options(tmp_path), FIRST[name], WORKS, ROWS, failures), daemon=True)
            for name, write in (("lancekeep", writers.share), ("native", writers.share_natively))
        ]
        for process in others:
            process.start()
        for _ in range(KILLS):
            drivers["another"].go_on(random.random())
            drivers["another"].kill("all", min)
            assert drivers["another"].end() != 0
            drivers["another"] = stack.enter_context(Driver(tmp_path, drivers["another"].done, "local[1]", "another"))
            drivers["another"].await_works()
        drivers["one driver"].await_works()
        for process in others:
            process.join(PATIENCE)
        for driver in drivers.values():
            driver.command("stop")
            assert driver.end() == 0
        for process in others:
            process.join()
        assert failures.empty(), failures.get()
        done = {name: driver.done["share"] - FIRST[name] for name, driver in drivers.items()}
    done |= {"lancekeep": WORKS, "native": WORKS}

    found = lance.dataset(catalog.describe_table("shared").uri).to_table().to_pydict()
    works = [FIRST[name] + number for name, count in done.items() for number in range(count)]
    appended = Counter({number: 1 for work in works for number in range(work * ROWS, (work + 1) * ROWS)})
    assert Counter(found["id"]) == appended + Counter(range(min(found["id"]), 0))
    rows = dict(zip(found["id"], found["work"], strict=True))
    assert all(work == number // ROWS for number, work in rows.items() if number >= 0)
    (last,) = {rows[number] for number in range(-writers.COMMON, 0)}
    assert last in {FIRST[name] + count - 1 for name, count in done.items()}
    versions = [entry.version for entry in catalog.versions.history("shared")]
    assert versions == list(range(versions[0], 0, -1))
    acknowledged = 1 + sum(count * (2 if name == "native" else 3) for name, count in done.items())
    assert 0 <= versions[0] - acknowledged <= 2 * KILLS  # of a killed work, which is repeated
    catalog.upkeep.fsck(deep=True, repair=True, grace=0)
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()
