"""Catalogs of one PostgreSQL server that is killed: some order of the calls explains each result.

``LANCEKEEP_POSTGRES_MINUTES`` sets the duration; `make soak` runs ten minutes. Without it, the server is killed once.
"""

from __future__ import annotations

import os
import random
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event

import attrs
from linearizability import Call, State, Step, unexplained
from postgres_servers import migrated_server
from redis_servers import poll

import lancekeep
from lancekeep.domain.errors import ConcurrentModification, StoreUnavailable, TableAlreadyExists, TableNotFound

MINUTES = float(os.environ.get("LANCEKEEP_POSTGRES_MINUTES", "0"))
KILLS = 1
"""How often the server is killed, unless the duration is set."""
CALLS = 30
"""The calls between two kills."""
CLIENTS = 4
NAMES = ("a", "b", "c")
EXISTS, ABSENT, UNKNOWN = "exists", "absent", "unknown"


@attrs.frozen
class Told:
    """The result of a call of a client."""

    name: str
    verb: str
    began: float
    ended: float
    result: str
    """A location, or one of the words above."""


def sets(location: str | None) -> Step:
    return lambda state: (state is None, location)


def removes(state: State) -> tuple[bool, State]:
    return state is not None, None


def sees(location: str | None) -> Step:
    return lambda state: (state == location, state)


def exists(state: State) -> tuple[bool, State]:
    return state is not None, state


def calls_of(told: list[Told]) -> list[Call]:
    """Return the calls about one table. Its location says by which declaration it was made."""
    known = {each.result for each in told if each.verb == "declare"}
    lost = {each.result for each in told if each.verb == "describe"} - known - {ABSENT, UNKNOWN}
    calls = []
    for each in told:
        steps: list[Step]
        if each.result == UNKNOWN:  # one of these, or none
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


def test_results_have_an_order_while_the_server_is_killed(tmp_path: Path) -> None:
    told: list[Told] = []
    done = Event()
    with migrated_server("fsync=on") as server:

        def connect() -> lancekeep.Catalog:
            return lancekeep.connect(
                str(tmp_path / "lake"), impl="postgres", uri=server.url(), storage_options={"fsync": "false"}
            )

        def call(catalog: lancekeep.Catalog, verb: str, name: str) -> str:
            try:
                if verb == "declare":
                    return catalog.declare_table(f"n.{name}").location
                if verb == "describe":
                    return catalog.find_table(f"n.{name}").location
                catalog.drop_table(f"n.{name}")
            except TableAlreadyExists:
                return EXISTS
            except TableNotFound:
                return ABSENT
            except (StoreUnavailable, ConcurrentModification):
                return UNKNOWN
            return "dropped"

        def use(number: int) -> None:
            chance = random.Random(number)
            with connect() as catalog:
                while not done.is_set():
                    verb, name = chance.choice(("declare", "drop", "describe")), chance.choice(NAMES)
                    began = time.monotonic()
                    result = call(catalog, verb, name)
                    told.append(Told(name, verb, began, time.monotonic(), result))

        def use_until(calls: int) -> None:
            poll(lambda: len(told) >= calls or any(client.done() for client in clients))
            for client in clients:
                if client.done():
                    client.result()

        with connect() as first:
            first.create_namespace("n")
        end, kills = time.monotonic() + 60 * MINUTES, 0
        with ThreadPoolExecutor(CLIENTS) as threads:
            clients = [threads.submit(use, number) for number in range(CLIENTS)]
            try:
                while kills < KILLS or time.monotonic() < end:
                    use_until(len(told) + CALLS)
                    server.kill()
                    server.start()
                    kills += 1
                use_until(len(told) + CALLS)
            finally:
                done.set()
            wait(clients)
            for client in clients:
                client.result()
        with connect() as last:
            assert last.upkeep.fsck().findings == ()
    tables = defaultdict(list)
    for each in told:
        tables[each.name].append(each)
    unknown = sum(each.result == UNKNOWN for each in told)
    print(f"{len(told)} calls, {kills} kills, {unknown} unknown outcomes")
    for name, results in tables.items():
        assert not (left := unexplained(calls_of(results))), f"{name}: " + "\n".join(left[-12:])
