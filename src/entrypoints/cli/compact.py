"""``lancekeep compact``: merge small fragments."""

from __future__ import annotations

import click

from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.jobs import Surroundings, on_spark, print_summaries, tables_of


@command()
@on_spark
@click.argument("tables", nargs=-1)
@click.option("--target-rows", type=click.IntRange(1), default=1 << 20, show_default=True, help="Rows per fragment.")
def compact(chosen: Surroundings, tables: tuple[str, ...], target_rows: int, as_json: bool) -> None:
    """Merge small fragments of tables and remove deleted rows.

    Compacts TABLES of CATALOG; by default all. Concurrent writes are safe. A stopped run leaves each table
    either compacted or unchanged; run it again to compact the rest.
    """
    with chosen.running("compact", tables) as job:
        names = tables_of(job.catalog, tables)
        summaries = [job.jobs.compact(*job.given, name, target_rows=target_rows, progress=job.report) for name in names]
    print_summaries(summaries, as_json)
