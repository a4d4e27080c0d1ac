"""``lancekeep index``: build an index on a column."""

from __future__ import annotations

from typing import Any

import click

from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.jobs import Surroundings, on_spark, print_summaries


@command()
@on_spark
@click.argument("table")
@click.argument("column")
@click.option(
    "--kind", required=True, help="BTREE, BITMAP, LABEL_LIST, NGRAM, ZONEMAP, BLOOMFILTER, INVERTED, IVF_PQ, …"
)
@click.option("--name", help="Name of the index; default: <column>_idx.")
@click.option("--segments", type=click.IntRange(1), help="Segments built in parallel; default: one per core.")
@click.option(
    "--metric",
    type=click.Choice(["l2", "cosine", "dot"]),
    default="l2",
    show_default=True,
    help="Distance metric of a vector index.",
)
@click.option("--partitions", type=click.IntRange(1), help="Partitions of a vector index.")
@click.option("--sub-vectors", type=click.IntRange(1), help="Sub-vectors of a vector index with product quantization.")
@click.option("--replace", is_flag=True, help="Rebuild an existing index.")
def index(chosen: Surroundings, /, table: str, column: str, kind: str, as_json: bool, **options: Any) -> None:
    """Build an index on a column, as one version.

    Indexes COLUMN of TABLE of CATALOG. Does nothing if the index already covers the whole table.
    """
    with chosen.running("index", [table]) as job:
        summary = job.jobs.index(*job.given, table, column, kind, progress=job.report, **options)
    print_summaries([summary], as_json)
