"""Catalogs of one PostgreSQL server that is killed: some order of the calls explains each result.

``LANCEKEEP_POSTGRES_MINUTES`` sets the duration; `make soak` runs ten minutes. Without it, the server is killed once.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path

import attrs
import lance
import pyarrow as pa
from linearizability import Call, State, Step, unexplained
from postgres_clients import ABSENT, EXISTS, ROWS, UNKNOWN, Told, connect, ready, use, use_alone
from postgres_servers import migrated_server
from redis_servers import poll

MINUTES = float(os.environ.get("LANCEKEEP_POSTGRES_MINUTES", "0"))
KILLS = 1
"""How often the server is killed, unless the duration is set."""
CALLS = 30
"""The calls between two kills."""
CLIENTS = 4


def sets(location: str | None) -> Step:
    return lambda state: (state is None, location)


def removes(state: State) -> tuple[bool, State]:
    return state is not None, None


def sees(location: str | None) -> Step:
    return lambda state: (state == location, state)


def exists(state: State) -> tuple[bool, State]:
    return state is not None, state


def appends(value: str) -> Step:
    return lambda state: (True, f"{state},{value}")


def calls_of(told: list[Told]) -> list[Call]:
    """Return the calls about one table. Its location says by which declaration it was made."""
    known = {each.result for each in told if each.verb == "declare"}
    lost = {each.result for each in told if each.verb == "describe"} - known - {ABSENT, UNKNOWN}
    calls = []
    for each in told:
        steps: list[Step]
        verb, _, value = each.verb.partition(" ")
        if verb == "append":
            steps = [appends(value)]
        elif each.verb == "read":
            steps = [] if each.result == UNKNOWN else [sees(each.result)]
        elif each.result == UNKNOWN:  # one of these, or none
            possible: dict[str, list[Step]] = {"declare": [sets(place) for place in lost or {"?"}], "drop": [removes]}
            steps = possible.get(each.verb, [])
        elif each.result == EXISTS:
            steps = [exists]
        elif each.result == ABSENT:
            steps = [sees(None)]
        else:
            made: dict[str, Step] = {"declare": sets(each.result), "describe": sees(each.result), "drop": removes}
            steps = [made[each.verb]]
        ended = float("inf") if each.result == UNKNOWN else each.ended
        calls += [Call(each.began, ended, step, f"{each.began:.4f}-{each.ended:.4f} {each}") for step in steps]
    return calls


def test_stale_read_has_no_order() -> None:
    told = [
        Told("a", "declare", 1, 2, "x"),
        Told("a", "declare", 3, 9, UNKNOWN),
        Told("a", "drop", 4, 6, "dropped"),
        Told("a", "describe", 7, 8, "y"),
    ]
    assert unexplained(calls_of(told)) == []
    stale = attrs.evolve(told[3], result="x")
    assert len(unexplained(calls_of([*told[:3], stale]))) == 4
    assert unexplained(calls_of([*told[:3], attrs.evolve(stale, began=5)])) == []


def test_read_that_lacks_an_acknowledged_append_has_no_order() -> None:
    told = [Told(ROWS, "append 1", 1, 2, "appended"), Told(ROWS, "append 2", 1, 4, UNKNOWN)]
    for possible in ("0,1", "0,1,2", "0,2,1"):
        assert unexplained(calls_of([*told, Told(ROWS, "read", 5, 6, possible)]), "0") == []
    for impossible in ("0", "0,2", "0,1,1"):
        assert unexplained(calls_of([*told, Told(ROWS, "read", 5, 6, impossible)]), "0") != []


def test_results_have_an_order_while_the_server_is_killed(tmp_path: Path) -> None:
    told: list[Told] = []
    root, done = tmp_path / "lake", tmp_path / "done"
    with migrated_server("fsync=on") as server:
        url = server.url()

        def use_until(calls: int) -> None:
            poll(lambda: len(told) >= calls or any(client.done() for client in clients))
            for client in clients:
                if client.done():
                    client.result()

        with connect(root, url) as first:
            first.create_namespace("n")
            first.write(f"n.{ROWS}", pa.table({"a": [0]}))
        end, kills = time.monotonic() + 60 * MINUTES, 0
        spawn = get_context("spawn")  # Lance cannot be forked
        with ProcessPoolExecutor(1, spawn) as process, ThreadPoolExecutor(CLIENTS) as threads:
            clients = [threads.submit(use, root, url, number, done, told.append) for number in range(CLIENTS)]
            other = process.submit(use_alone, root, url, CLIENTS, done)
            try:
                poll(lambda: other.done() or all(ready(done, number).exists() for number in range(CLIENTS + 1)))
                while kills < KILLS or time.monotonic() < end:
                    use_until(len(told) + CALLS)
                    server.kill()
                    server.start()
                    kills += 1
                use_until(len(told) + CALLS)
            finally:
                done.touch()
            wait(clients)
            for client in clients:
                client.result()
            told += other.result()
        with connect(root, url) as last:
            assert last.upkeep.fsck().findings == ()
            began, uri = time.monotonic(), last.open(f"n.{ROWS}").uri
            native = ",".join(map(str, lance.dataset(uri).to_table()["a"].to_pylist()))
            told.append(Told(ROWS, "read", began, time.monotonic(), native))
    tables = defaultdict(list)
    for each in told:
        tables[each.name].append(each)
    unknown = sum(each.result == UNKNOWN for each in told)
    print(f"{len(told)} calls, {kills} kills, {unknown} unknown outcomes")
    for name, results in tables.items():
        assert not (left := unexplained(calls_of(results), "0" if name == ROWS else None)), f"{name}: " + "\n".join(
            left[-12:]
        )
