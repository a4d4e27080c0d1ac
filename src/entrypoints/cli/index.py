"""``lancekeep index``: building an index of a column."""

from __future__ import annotations

from typing import Any

import click

from lancekeep.entrypoints.cli.jobs import Surroundings, on_spark, print_summaries


@click.command()
@on_spark
@click.argument("table")
@click.argument("column")
@click.option(
    "--kind", required=True, help="BTREE, BITMAP, LABEL_LIST, NGRAM, ZONEMAP, BLOOMFILTER, INVERTED, IVF_PQ, …"
)
@click.option("--name", help="Of the index; <column>_idx if left out.")
@click.option(
    "--segments", type=click.IntRange(1), help="Parts that are built side by side; as many as cores, if left out."
)
@click.option(
    "--metric", type=click.Choice(["l2", "cosine", "dot"]), default="l2", show_default=True, help="Of vectors."
)
@click.option("--partitions", type=click.IntRange(1), help="Of a vector index.")
@click.option("--sub-vectors", type=click.IntRange(1), help="Of a vector index with product quantisation.")
@click.option("--replace", is_flag=True, help="Build it although it is there.")
def index(chosen: Surroundings, /, table: str, column: str, kind: str, as_json: bool, **options: Any) -> None:
    """Build an index of COLUMN over all of TABLE of the catalog at ROOT, as one version.

    Running it again does nothing while the index covers the whole table.
    """
    with chosen.running("index", [table]) as job:
        summary = job.jobs.index(*job.given, table, column, kind, progress=job.told, **options)
    print_summaries([summary], as_json)
