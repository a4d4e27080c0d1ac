"""``lancekeep ingest``: files into a table."""

from __future__ import annotations

from typing import Any

import click

from lancekeep.entrypoints.cli.jobs import Surroundings, on_spark, print_summaries
from lancekeep.entrypoints.cli.options import pairs


@click.command()
@on_spark
@click.argument("table")
@click.argument("sources", nargs=-1, required=True)
@click.option(
    "--format", type=click.Choice(["parquet", "csv", "json", "arrow", "image"]), help="By the names, if left out."
)
@click.option(
    "--write",
    "write_mode",
    type=click.Choice(["append", "overwrite"]),
    default="append",
    show_default=True,
    help="Add to the table, or have it hold these files alone.",
)
@click.option(
    "--schema",
    type=click.Choice(["infer", "evolve", "enforce"]),
    default="infer",
    show_default=True,
    help="Files with other columns: refused, their columns added, or set aside.",
)
@click.option("--columns", metavar="DDL", help="Of a new table: 'id LONG NOT NULL, text STRING'.")
@pairs("--vector", "A column of lists that shall be vectors, with their dimension; may be repeated.")
@click.option("--source-column", metavar="NAME", help="A column for the URI of each row's file.")
@click.option("--bad-records", metavar="FOLDER", help="Where to keep what does not parse or fit, with the reason.")
@click.option(
    "--max-bad",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="With more bad records nothing is committed.",
)
@click.option(
    "--changed",
    type=click.Choice(["refuse", "append", "replace"]),
    default="refuse",
    show_default=True,
    help="Files that changed since they were taken in.",
)
@click.option("--timezone", metavar="ZONE", help="Of timestamps in CSV that name none, as Europe/Berlin.")
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
    """Take files into TABLE of the catalog at ROOT as one version, each file once.

    SOURCES are paths, URIs and patterns of either; a folder is all below it. Files that an earlier run has taken in are
    left out, so running it again is safe, after a stop too.
    """
    vectors = {name: _dimension(name, size) for name, size in vector.items()}
    with chosen.running("ingest", sources=sources, new=True) as job:
        stored = job.jobs.columns_of(columns) if columns else None
        summary = job.jobs.ingest(
            *job.given, table, sources, mode=write_mode, columns=stored, vectors=vectors, progress=job.told, **options
        )
    print_summaries([summary], as_json)


def _dimension(name: str, size: str) -> int:
    if not size.isdecimal() or not int(size):
        raise click.BadParameter(f"the dimension of {name} is {size!r}; give a number, as embedding=768")
    return int(size)
