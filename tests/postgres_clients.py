"""Clients of a catalog in PostgreSQL, which note when each call began and ended, in this or another process."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import attrs
import pyarrow as pa

import lancekeep
from lancekeep.domain.errors import ConcurrentModification, StoreUnavailable, TableAlreadyExists, TableNotFound

NAMES = ("a", "b", "c")
ROWS = "rows"
"""The name of a table that always exists, which clients append to."""
EXISTS, ABSENT, UNKNOWN = "exists", "absent", "unknown"


@attrs.frozen
class Told:
    """The result of a call of a client."""

    name: str
    verb: str
    began: float
    ended: float
    result: str
    """A location, the values of a table in their order, or one of the words above."""


def connect(root: Path, url: str) -> lancekeep.Catalog:
    return lancekeep.connect(str(root), impl="postgres", uri=url, storage_options={"fsync": "false"})


def ready(done: Path, number: int) -> Path:
    """Return the file that exists once a client has connected."""
    return done.with_name(f"client-{number}")


def use(root: Path, url: str, number: int, done: Path, tell: Callable[[Told], None]) -> None:
    """Make random calls until the file ``done`` exists."""
    chance, calls = random.Random(number), 0
    with connect(root, url) as catalog:
        ready(done, number).touch()
        while not done.exists():
            verb, calls = chance.choice(("declare", "drop", "describe", "append", "read")), calls + 1
            name = ROWS if verb in ("append", "read") else chance.choice(NAMES)
            value = 1_000_000 * (number + 1) + calls
            began = time.monotonic()  # one clock for all processes of a machine
            result = _call(catalog, verb, name, value)
            verb = f"append {value}" if verb == "append" else verb
            tell(Told(name, verb, began, time.monotonic(), result))


def use_alone(root: Path, url: str, number: int, done: Path) -> list[Told]:
    """Use the catalog in a process of its own, and return what was noted."""
    told: list[Told] = []
    use(root, url, number, done, told.append)
    return told


def _call(catalog: lancekeep.Catalog, verb: str, name: str, value: int) -> str:
    table = f"n.{name}"
    try:
        if verb == "declare":
            return catalog.declare_table(table).location
        if verb == "describe":
            return catalog.find_table(table).location
        if verb == "append":
            catalog.write(table, pa.table({"a": [value]}), "append")
            return "appended"
        if verb == "read":
            return ",".join(map(str, catalog.open(table).to_table()["a"].to_pylist()))
        catalog.drop_table(table)
    except TableAlreadyExists:
        return EXISTS
    except TableNotFound:
        return ABSENT
    except (StoreUnavailable, ConcurrentModification):
        return UNKNOWN
    return "dropped"
