"""``lancekeep stats``: what the columns of a table hold."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import click

from lancekeep.entrypoints.cli.cells import cell
from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.console import message, progress
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, stores
from lancekeep.entrypoints.cli.output import COUNT, Column, Output, output
from lancekeep.entrypoints.cli.reading import chosen_version, refusing, version_option
from lancekeep.entrypoints.cli.upkeep import mode

_BATCH = 1024
_BARS = "▁▂▃▄▅▆▇█"
_COLUMNS = (
    Column("column"),
    Column("type"),
    Column("nulls", COUNT),
    Column("nan", COUNT),
    Column("distinct", COUNT),
    Column("min"),
    Column("mean"),
    Column("max"),
    Column("dimension"),
    Column("norm"),
    Column("histogram"),
)


@command()
@output
@click.option("--sample", type=click.IntRange(1), metavar="N", help="Read N random rows in place of the whole table.")
@click.option("--seed", type=int, help="Choose the same rows in each run.")
@version_option
@mode
@stores
@click.argument("name")
@click.argument("columns", nargs=-1, metavar="[COLUMN]...")
@click.pass_obj
def stats(
    functions: PublicFunctions,
    chosen: Stores,
    name: str,
    columns: tuple[str, ...],
    mode: str | None,
    version: str | None,
    branch: str | None,
    at: datetime | None,
    sample: int | None,
    seed: int | None,
    out: Output,
) -> None:
    """Show what the columns of a table hold.

    Reads the table NAME once, with little memory. Shows nulls, NaN, the least, mean and greatest value of each COLUMN,
    and the dimension and norm of vectors. The number of distinct values has an error of about 2 %. The histogram has
    ten parts of equal width between the least and the greatest value, or norm; counts are estimates.
    """
    from lancekeep.entrypoints.cli.column_stats import HAS_SKETCHES, ColumnStats

    with (
        progress("stats") as report,
        chosen.catalog(functions, mode=mode) as catalog,
        refusing(),
    ):
        dataset = catalog.open(name, **chosen_version(version, branch, at))
        wanted = list(dict.fromkeys(columns)) or None
        scanner = dataset.scanner(columns=wanted, batch_size=_BATCH)
        found = [ColumnStats(field) for field in scanner.projected_schema]
        rows = dataset.count_rows()
        is_sample = sample is not None and sample < rows
        batches = _sampled(dataset, wanted, rows, sample or 0, seed) if is_sample else scanner.to_batches()
        done, total = 0, (sample or 0) if is_sample else rows
        for batch in batches:
            for column, each in zip(batch.columns, found, strict=True):
                each.add(column)
            done += batch.num_rows
            report(done, total, name)
    if is_sample:
        message(f"A sample of {total:,} of {rows:,} rows.")
    if not HAS_SKETCHES:
        message("Distinct values and histograms need another package: pip install 'lancekeep[stats]'.")
    is_table = out.form == "table"
    out.rows(_COLUMNS, [_shown(each.found(), out.exact) if is_table else each.found() for each in found])


def _sampled(dataset: Any, columns: Sequence[str] | None, rows: int, number: int, seed: int | None) -> Iterator[Any]:
    positions = sorted(random.Random(seed).sample(range(rows), number))
    for start in range(0, number, _BATCH):
        yield from dataset.take(positions[start : start + _BATCH], columns=columns).to_batches()


def _shown(found: dict[str, Any], exact: bool) -> dict[str, Any]:
    """Return statistics for people."""
    texts = {name: cell(found[name], exact=exact) for name in ("min", "mean", "max") if found[name] is not None}
    if isinstance(found["dimension"], list):
        texts["dimension"] = " to ".join(map(str, found["dimension"]))
    if found["norm"] is not None:
        texts["norm"] = ", ".join(f"{part} {cell(value, exact=exact)}" for part, value in found["norm"].items())
    counts = found["histogram"]
    if counts is not None:
        highest = max(*counts, 1)
        drawn = "".join(_BARS[-(-each * (len(_BARS) - 1) // highest)] for each in counts)
        texts["histogram"] = f"{drawn} {', '.join(map(str, counts))}" if exact else drawn
    return {**found, "nan": found["nan"] or None, **texts}
