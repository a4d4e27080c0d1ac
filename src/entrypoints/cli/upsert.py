"""``lancekeep upsert``: files into a table by key."""

from __future__ import annotations

import click

from lancekeep.entrypoints.cli.jobs import Surroundings, on_spark, print_summaries


@click.command()
@on_spark
@click.argument("table")
@click.argument("sources", nargs=-1, required=True)
@click.option("--on", multiple=True, required=True, metavar="NAME", help="A column of the key; may be repeated.")
@click.option("--format", default="parquet", show_default=True, help="Of the files, as Spark reads them.")
def upsert(
    chosen: Surroundings,
    table: str,
    sources: tuple[str, ...],
    on: tuple[str, ...],
    format: str,  # noqa: A002 - the name of the option
    as_json: bool,
) -> None:
    """Update the rows of TABLE whose key is in SOURCES, and add the others, as one version of the catalog at ROOT.

    A key that is in the sources twice is refused.
    """
    with chosen.running("upsert", [table]) as job:
        frame = job.jobs.changes_in(job.spark, sources, format)
        summary = job.jobs.upsert(job.catalog, table, frame, list(on))
    print_summaries([summary], as_json)
