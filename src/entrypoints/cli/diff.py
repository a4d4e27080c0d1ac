"""``lancekeep diff``: compare two versions of a table."""

from __future__ import annotations

from typing import Any

import click

from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, stores
from lancekeep.entrypoints.cli.output import COUNT, Column, Output, output
from lancekeep.entrypoints.cli.upkeep import mode

_COLUMNS = (
    Column("table"),
    Column("before", COUNT),
    Column("after", COUNT),
    Column("rows before", COUNT),
    Column("rows after", COUNT),
    Column("added columns"),
    Column("removed columns"),
    Column("changed columns"),
    Column("files added", COUNT),
    Column("files removed", COUNT),
)


@command()
@output
@click.option("--rows", "show_rows", is_flag=True, help="Show the rows that differ, by keys or stable row ids.")
@click.option("--key", "keys", multiple=True, metavar="NAME", help="A column that identifies rows; may be repeated.")
@click.option("--column", "columns", multiple=True, metavar="NAME", help="Only this column of rows; may be repeated.")
@mode
@stores
@click.argument("name")
@click.argument("before")
@click.argument("after", required=False)
@click.pass_obj
def diff(
    functions: PublicFunctions,
    chosen: Stores,
    name: str,
    before: str,
    after: str | None,
    mode: str | None,
    show_rows: bool,
    keys: tuple[str, ...],
    columns: tuple[str, ...],
    out: Output,
) -> None:
    """Compare two versions of a table.

    BEFORE and AFTER are versions of the table NAME or tags; AFTER is the latest version by default. With --rows or
    --key, shows each row that was inserted, deleted or updated, with the kind of its change.
    """
    with chosen.catalog(functions, mode=mode) as catalog:
        found = catalog.diff(name, _reference(before), None if after is None else _reference(after))
        if show_rows or keys or columns:
            with found.rows(list(keys) or None, list(columns) or None) as reader:
                out.batches(reader.schema, reader, "The versions have the same rows.")
        else:
            out.document(_COLUMNS, _document(found))


def _reference(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _document(found: Any) -> dict[str, Any]:
    return {
        "table": str(found.table),
        "before": found.before,
        "after": found.after,
        "rows before": found.rows_before,
        "rows after": found.rows_after,
        "added columns": [f"{field.name} {field.type}" for field in found.schema.added],
        "removed columns": [f"{field.name} {field.type}" for field in found.schema.removed],
        "changed columns": [f"{old.name} {old.type} -> {new.name} {new.type}" for old, new in found.schema.changed],
        "files added": len(found.files_added),
        "files removed": len(found.files_removed),
    }
