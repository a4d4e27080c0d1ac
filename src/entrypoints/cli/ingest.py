"""``lancekeep ingest``: load files into a table."""

from __future__ import annotations

from typing import Any

import click

from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.jobs import Surroundings, on_spark, print_summaries
from lancekeep.entrypoints.cli.options import pairs


@command()
@on_spark
@click.argument("table")
@click.argument("sources", nargs=-1, required=True)
@click.option(
    "--format",
    type=click.Choice(["parquet", "csv", "json", "arrow", "image"]),
    help="Format of the files; default: by file name.",
)
@click.option(
    "--write",
    "write_mode",
    type=click.Choice(["append", "overwrite"]),
    default="append",
    show_default=True,
    help="Append to the table, or replace its contents.",
)
@click.option(
    "--schema",
    type=click.Choice(["infer", "evolve", "enforce"]),
    default="infer",
    show_default=True,
    help="Files with other columns: refuse them, add their columns, or set them aside.",
)
@click.option("--columns", metavar="DDL", help="Columns of a new table: 'id LONG NOT NULL, text STRING'.")
@pairs("--vector", "List column to store as vectors, with its dimension; may be repeated.")
@click.option("--source-column", metavar="NAME", help="Add a column with the URI of each row's file.")
@click.option("--bad-records", metavar="FOLDER", help="Folder for records that do not parse or fit, with the reason.")
@click.option(
    "--max-bad",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Commit nothing if there are more bad records.",
)
@click.option(
    "--changed",
    type=click.Choice(["refuse", "append", "replace"]),
    default="refuse",
    show_default=True,
    help="What to do with files that changed since they were ingested.",
)
@click.option("--timezone", metavar="ZONE", help="Time zone of CSV timestamps that name none: Europe/Berlin.")
def ingest(
    chosen: Surroundings,
    /,
    table: str,
    sources: tuple[str, ...],
    write_mode: str,
    columns: str | None,
    vector: dict[str, str],
    as_json: bool,
    **options: Any,
) -> None:
    """Load files into a table, each file exactly once, as one version.

    Writes to TABLE of CATALOG. SOURCES are paths, URIs or glob patterns; a folder stands for every file
    below it. A run skips files that an earlier run ingested, so it is safe to repeat.
    """
    vectors = {name: _dimension(name, size) for name, size in vector.items()}
    with chosen.running("ingest", sources=sources, new=True, storage=True) as job:
        stored = job.jobs.columns_of(columns) if columns else None
        summary = job.jobs.ingest(
            *job.given, table, sources, mode=write_mode, columns=stored, vectors=vectors, progress=job.report, **options
        )
    print_summaries([summary], as_json)


def _dimension(name: str, size: str) -> int:
    if not size.isdecimal() or not int(size):
        raise click.BadParameter(f"the dimension of {name} is {size!r}; expected a positive number: embedding=768")
    return int(size)
