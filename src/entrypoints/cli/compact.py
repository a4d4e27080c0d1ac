"""``lancekeep compact``: small fragments into large ones."""

from __future__ import annotations

import click

from lancekeep.entrypoints.cli.jobs import Surroundings, on_spark, print_summaries, tables_of


@click.command()
@on_spark
@click.argument("tables", nargs=-1)
@click.option("--target-rows", type=click.IntRange(1), default=1 << 20, show_default=True, help="Rows of a fragment.")
def compact(chosen: Surroundings, tables: tuple[str, ...], target_rows: int, as_json: bool) -> None:
    """Rewrite small fragments, and those with many deleted rows, of TABLES at ROOT; of all, if none is named.

    Others may write meanwhile. Stopped, a table is done or untouched; running it again does the rest.
    """
    with chosen.running("compact", tables) as job:
        names = tables_of(job.catalog, tables)
        summaries = [job.jobs.compact(*job.given, name, target_rows=target_rows, progress=job.told) for name in names]
    print_summaries(summaries, as_json)
