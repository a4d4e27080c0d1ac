"""``lancekeep bench``: measure this deployment."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any
from uuid import uuid4

import click

from lancekeep.application.catalog import Catalog, services_of
from lancekeep.domain.errors import LancekeepError, Refused, Unsupported
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.protection import PROTECTED
from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.console import confirmed, progress
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, assume_yes, stores
from lancekeep.entrypoints.cli.output import COUNT, NUMBER, Column, Output, output
from lancekeep.entrypoints.cli.upkeep import mode

_COLUMNS = (
    Column("operation"),
    Column("per second", NUMBER),
    Column("p50 ms", NUMBER),
    Column("p99 ms", NUMBER),
    Column("measured", COUNT),
)
_PAGE, _MOST = 1000, 100_000
"""The names of a list, and the most times that an operation runs."""


@command()
@output
@assume_yes
@click.option(
    "--seconds", type=click.FloatRange(0.1, 600), default=9.0, show_default=True, help="How long to measure, in total."
)
@mode
@stores
@click.pass_obj
def bench(
    functions: PublicFunctions, chosen: Stores, mode: str | None, seconds: float, assume_yes: bool, out: Output
) -> None:
    """Measure commits, opens and lists per second.

    Commits single rows to a table of its own, opens its latest version, and lists the first page of CATALOG, one
    operation at a time. The table lies in a new namespace, and both are removed afterwards, also after Ctrl-C. Shows
    the plan and asks; scripts need --yes.
    """
    import pyarrow as pa

    with chosen.catalog(functions, new=True, mode=mode) as catalog:
        name = f"lancekeep-bench-{uuid4().hex[:12]}"
        _require_removable(catalog)
        made = "Create a catalog, which stays, and measure" if services_of(catalog).is_bare() else "Measure"
        plan = f"{made} {catalog.root_uri} for {seconds:g} s, in the new namespace {name}, which is removed afterwards"
        if not confirmed(plan, assume_yes):
            return
        row = pa.table({"id": [1]})
        with _scratch(catalog, name) as table, progress("bench") as report:
            with _uninterrupted():
                catalog.write(table, row)
            operations: dict[str, Callable[[], Any]] = {
                "commit": lambda: catalog.write(table, row, "append"),
                "open": lambda: catalog.open(table),
                "list": lambda: services_of(catalog).tables.page(ObjectId(()), None, _PAGE, include_declared=True),
            }
            rows = []
            for at, (operation, act) in enumerate(operations.items()):
                report(at, len(operations), operation)
                rows.append(_row(operation, _durations(act, seconds / len(operations))))
    out.rows(_COLUMNS, rows)


def _require_removable(catalog: Catalog) -> None:
    """Raise `Refused` if the protection of the whole catalog would keep what the measurement writes."""
    if PROTECTED in catalog.describe_namespace("").properties:
        raise Refused(
            f"the catalog {catalog.root_uri} is protected, so what a measurement writes could not be removed. Nothing "
            "was changed. Measure another catalog in the same storage"
        )


@contextmanager
def _scratch(catalog: Catalog, name: str) -> Iterator[str]:
    """Yield the name of a new table in a new namespace, and remove both afterwards.

    A V1 directory has no namespaces, so the table lies in its root.
    """
    namespace = False
    try:
        with _uninterrupted():
            namespace = _created(catalog, name)
        yield f"{name}.rows" if namespace else name
    except BaseException as first:
        try:
            with _uninterrupted():
                _remove(catalog, name, namespace)
        except LancekeepError as second:
            first.add_note(f"{name} could not be removed: {second}")
        raise
    with _uninterrupted():
        _remove(catalog, name, namespace)


def _created(catalog: Catalog, name: str) -> bool:
    """Create a namespace; return False if the catalog has none."""
    try:
        catalog.create_namespace(name)
    except Unsupported:
        return False
    return True


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C until the end of the block.

    The engine completes an interrupted write in its own threads, so its files would appear after their removal.
    """
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


def _remove(catalog: Catalog, name: str, namespace: bool) -> None:
    table = f"{name}.rows" if namespace else name
    if catalog.table_exists(table):
        try:
            catalog.drop_table(table, keep=0)
        except Unsupported:  # a server decides how long it keeps a dropped table
            catalog.drop_table(table)
    if namespace:
        catalog.drop_namespace(name)


def _durations(act: Callable[[], Any], seconds: float) -> list[float]:
    """Repeat an operation, at least once; return the duration of each call."""
    durations: list[float] = []
    end = perf_counter() + seconds
    while not durations or (perf_counter() < end and len(durations) < _MOST):
        with _uninterrupted():
            began = perf_counter()
            act()
            durations.append(perf_counter() - began)
    return durations


def _row(operation: str, durations: list[float]) -> dict[str, Any]:
    ordered = sorted(durations)

    def percentile(share: float) -> float:
        return round(1000 * ordered[min(int(len(ordered) * share), len(ordered) - 1)], 3)

    return {
        "operation": operation,
        "per second": round(len(durations) / sum(durations), 1),
        "p50 ms": percentile(0.5),
        "p99 ms": percentile(0.99),
        "measured": len(durations),
    }
