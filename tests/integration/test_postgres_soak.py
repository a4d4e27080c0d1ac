"""Catalogs of one PostgreSQL server that is killed: some order of the calls explains each result.

``LANCEKEEP_POSTGRES_MINUTES`` sets the duration; `make soak` runs ten minutes. Without it, the server is killed once.
"""

from __future__ import annotations

import faulthandler
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, wait
from math import inf
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


def appends(value: str, last: str | None) -> Step:
    """Return the step of an append to a table whose values are ``last`` in the end; None if they are not known."""

    def step(state: State) -> tuple[bool, State]:
        after = f"{state},{value}"
        return last is None or f"{last},".startswith(f"{after},"), after

    return step


def calls_of(told: list[Told], kills: Sequence[float] = (), last: str | None = None) -> list[Call]:
    """Return the calls about one table. Its location says by which declaration it was made.

    A call whose outcome is unknown has no effect after the next kill, which ends the sessions of the server.

    Args:
        told: What the clients noted.
        kills: When each kill of the server was complete.
        last: The values of the table in the end, to which nothing else was done than to append.
    """
    known = {each.result for each in told if each.verb == "declare"}
    lost: dict[str, float] = {}  # places of declarations without a reply, and until when they were first seen
    for each in sorted(told, key=lambda each: each.ended):
        if each.verb == "describe" and each.result not in {*known, ABSENT, UNKNOWN}:
            lost.setdefault(each.result, each.ended)
    calls = []
    for each in told:
        steps: list[Step]
        verb, _, value = each.verb.partition(" ")
        if verb == "append":
            steps = [appends(value, last)]
        elif each.verb == "read":
            steps = [] if each.result == UNKNOWN else [sees(each.result)]
        elif each.result == UNKNOWN:  # one of these, or none
            places = ["?", *(place for place, seen in lost.items() if seen > each.began)]
            possible: dict[str, list[Step]] = {"declare": list(map(sets, places)), "drop": [removes]}
            steps = possible.get(each.verb, [])
        elif each.result == EXISTS:
            steps = [exists]
        elif each.result == ABSENT:
            steps = [sees(None)]
        else:
            made: dict[str, Step] = {"declare": sets(each.result), "describe": sees(each.result), "drop": removes}
            steps = [made[each.verb]]
        certain = each.result != UNKNOWN
        ended = each.ended if certain else min((kill for kill in kills if kill > each.ended), default=inf)
        calls += [Call(each.began, ended, step, f"{each.began:.4f}-{each.ended:.4f} {each}", certain) for step in steps]
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


def test_call_without_a_reply_has_no_effect_after_the_next_kill() -> None:
    told = [Told("a", "declare", 1, 2, UNKNOWN), Told("a", "describe", 5, 6, ABSENT), Told("a", "describe", 7, 8, "x")]
    assert unexplained(calls_of(told)) == []
    assert unexplained(calls_of(told, [9])) == []
    assert len(unexplained(calls_of(told, [4, 9]))) == 4
    assert unexplained(calls_of([told[0], attrs.evolve(told[1], result="x"), told[2]], [4])) == []
    assert unexplained(calls_of(told[:2], [4])) == [], "it need not have had an effect"


def test_results_have_an_order_while_the_server_is_killed(tmp_path: Path) -> None:
    if MINUTES:
        faulthandler.cancel_dump_traceback_later()  # the limit of a test's time
    told: list[Told] = []
    kills: list[float] = []
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
        end = time.monotonic() + 60 * MINUTES
        spawn = get_context("spawn")  # Lance cannot be forked
        with ProcessPoolExecutor(1, spawn) as process, ThreadPoolExecutor(CLIENTS) as threads:
            clients = [threads.submit(use, root, url, number, done, told.append) for number in range(CLIENTS)]
            other = process.submit(use_alone, root, url, CLIENTS, done)
            try:
                poll(lambda: other.done() or all(ready(done, number).exists() for number in range(CLIENTS + 1)))
                while len(kills) < KILLS or time.monotonic() < end:
                    use_until(len(told) + CALLS)
                    server.kill()
                    kills.append(time.monotonic())
                    server.start()
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
    print(f"{len(told)} calls, {len(kills)} kills, {unknown} unknown outcomes")
    for name, results in tables.items():
        rows = (native, "0") if name == ROWS else (None, None)
        left = unexplained(calls_of(results, kills, rows[0]), rows[1])
        assert not left, f"{name}: " + "\n".join(left[-12:])
