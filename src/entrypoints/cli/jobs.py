"""What the commands that run on Spark have in common."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import attrs
import click

from lancekeep.application.catalog import Catalog
from lancekeep.entrypoints.cli.console import print_json, print_table, progress
from lancekeep.entrypoints.cli.options import Doors, Stores, as_json, stores
from lancekeep.entrypoints.cli.upkeep import mode

P = ParamSpec("P")
T = TypeVar("T")


@attrs.frozen
class Running:
    """A job's surroundings. jobs: the module `lancekeep.jobs`. told: progress. given: ``spark, catalog``."""

    jobs: Any
    spark: Any
    catalog: Catalog
    told: Callable[[int, int, str], None]

    @property
    def given(self) -> tuple[Any, Catalog]:
        return self.spark, self.catalog


@attrs.frozen
class Surroundings:
    """What the options say about where a job runs."""

    doors: Doors
    stores: Stores
    mode: str
    master: str

    @contextmanager
    def running(
        self, title: str, tables: Iterable[str] = (), sources: Iterable[str] = (), *, new: bool = False
    ) -> Iterator[Running]:
        """What is needed is looked for before Spark starts: the catalog with its stores, tables, and places of files.

        new: there may be no catalog yet. Raises as ``connect``, `TableNotFound` for one of ``tables``, `NotFound`
        for one of ``sources`` and where there is no catalog.
        """
        with progress(title) as told, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "lance is not fork-safe")  # the JVM is forked, and executes at once
            warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas")
            jobs = self.doors.jobs
            with self.stores.catalog(self.doors, new=new, mode=self.mode) as catalog:
                for table in tables:
                    catalog.find_table(table)
                jobs.require_sources(sources)
                told(0, 1, "starting Spark")
                yield Running(jobs, jobs.session(self.master), catalog, told)


def on_spark(command: Callable[Concatenate[Surroundings, P], T]) -> Callable[..., T]:
    """ROOT with its options, ``--master`` and ``--json``; the command gets a `Surroundings` first."""

    @as_json
    @click.option("--master", default="local[*]", show_default=True, help="Where Spark runs, as Spark takes it.")
    @mode
    @stores
    @click.pass_obj
    @wraps(command)
    def with_surroundings(doors: Doors, chosen: Stores, /, *args: Any, mode: str, master: str, **kwargs: Any) -> T:
        return command(Surroundings(doors, chosen, mode, master), *args, **kwargs)

    return with_surroundings


def tables_of(catalog: Catalog, names: Iterable[str]) -> list[str]:
    """The tables that were named, or all that have rows."""
    return list(names) or [str(table) for table in catalog.list_all_tables(include_declared=False)]


def print_summaries(summaries: list[Any], as_json: bool) -> None:
    """What each job did, one line or one document each."""
    if as_json:
        print_json([attrs.asdict(summary) for summary in summaries])
        return
    rows = [
        (
            summary.table,
            f"{summary.rows:,}",
            f"{summary.bytes / 1e6:,.1f} MB",
            f"{summary.seconds:.1f} s",
            f"{summary.version}"
            if summary.before == summary.version
            else f"{summary.before or 0} -> {summary.version}",
            ", ".join(f"{number:,} {name}" for name, number in summary.counts.items() if number) or "nothing to do",
        )
        for summary in summaries
    ]
    title = summaries[0].job if summaries else "No tables"
    print_table(title, ("table", "rows", "read", "time", "version", "what"), rows)
