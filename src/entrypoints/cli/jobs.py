"""Share options, set-up and output among the Spark commands."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import attrs
import click

from lancekeep.application.catalog import Catalog, directory_of
from lancekeep.entrypoints.cli.console import print_table, progress
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, as_json, stores
from lancekeep.entrypoints.cli.output import print_report
from lancekeep.entrypoints.cli.upkeep import mode

P = ParamSpec("P")
T = TypeVar("T")


@attrs.frozen
class Running:
    """The open resources of a job.

    Attributes:
        jobs: The module `lancekeep.jobs`.
        spark: The session.
        catalog: The catalog.
        report: Receives the progress.
    """

    jobs: Any
    spark: Any
    catalog: Catalog
    report: Callable[[int, int, str], None]

    @property
    def given(self) -> tuple[Any, Catalog]:
        return self.spark, self.catalog


@attrs.frozen
class Surroundings:
    """The place where a job runs, as the options choose it."""

    functions: PublicFunctions
    stores: Stores
    mode: str | None
    master: str

    @contextmanager
    def running(
        self,
        title: str,
        tables: Iterable[str] = (),
        sources: Iterable[str] = (),
        *,
        new: bool = False,
        storage: bool = False,
    ) -> Iterator[Running]:
        """Check the catalog, tables and sources, then start Spark.

        Args:
            title: The title of the progress bar.
            tables: Tables that must exist.
            sources: Sources that must exist.
            new: Whether the job may create the catalog.
            storage: Whether the job needs the catalog's storage, which a catalog over a server does not have.

        Raises:
            NotFound: The catalog, one of ``tables`` or one of ``sources`` does not exist.
            Unsupported: ``storage`` is set, and the catalog belongs to a server.
        """
        with progress(title) as report, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "lance is not fork-safe")  # PySpark forks, then calls exec at once
            warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas")
            jobs = self.functions.jobs
            with self.stores.catalog(self.functions, new=new, mode=self.mode) as catalog:
                if storage:
                    directory_of(catalog, title)  # refuse before Spark starts
                for table in tables:
                    catalog.find_table(table)
                jobs.require_sources(sources)
                report(0, 1, "starting Spark")
                yield Running(jobs, jobs.session(self.master), catalog, report)


def on_spark(command: Callable[Concatenate[Surroundings, P], T]) -> Callable[..., T]:
    """Pass a command a `Surroundings` as its first argument.

    Adds ROOT with its options, ``--master`` and ``--json``.
    """

    @as_json
    @click.option("--master", default="local[*]", show_default=True, help="Spark master URL.")
    @mode
    @stores
    @click.pass_obj
    @wraps(command)
    def with_surroundings(
        functions: PublicFunctions, chosen: Stores, /, *args: Any, mode: str | None, master: str, **kwargs: Any
    ) -> T:
        return command(Surroundings(functions, chosen, mode, master), *args, **kwargs)

    return with_surroundings


def tables_of(catalog: Catalog, names: Iterable[str]) -> list[str]:
    """Return the named tables, by default all except declared-only ones."""
    return list(names) or [str(table) for table in catalog.list_all_tables(include_declared=False)]


def print_summaries(summaries: list[Any], as_json: bool) -> None:
    """Print the summaries of jobs as a table or as one JSON document."""
    if as_json:
        print_report([attrs.asdict(summary) for summary in summaries])
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
