"""``lancekeep upsert``: update or insert rows by key."""

from __future__ import annotations

import click

from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.jobs import Surroundings, on_spark, print_summaries


@command()
@on_spark
@click.argument("table")
@click.argument("sources", nargs=-1, required=True)
@click.option(
    "--on",
    multiple=True,
    metavar="NAME",
    help="Key column; may be repeated. By default the primary key of the table.",
)
@click.option(
    "--format", default="parquet", show_default=True, help="Format of the files; Spark must be able to read it."
)
def upsert(
    chosen: Surroundings,
    table: str,
    sources: tuple[str, ...],
    on: tuple[str, ...],
    format: str,  # noqa: A002 - the name of the option
    as_json: bool,
) -> None:
    """Update or insert rows by key from files, as one version.

    Updates the rows of TABLE whose key occurs in SOURCES, and inserts the others. Refuses sources that contain a key
    twice.
    """
    with chosen.running("upsert", [table]) as job:
        frame = job.jobs.changes_in(job.spark, sources, format)
        summary = job.jobs.upsert(job.catalog, table, frame, list(on) or None)
    print_summaries([summary], as_json)
