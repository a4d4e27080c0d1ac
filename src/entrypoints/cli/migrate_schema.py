"""``lancekeep migrate-schema``: the tables of a PostgreSQL store."""

from __future__ import annotations

import click

from lancekeep.composition import migrate_schema as migrate
from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.output import COUNT, Column, Output, output


@command()
@output
@click.argument("url", metavar="URL")
def migrate_schema(out: Output, url: str) -> None:
    """Create or update the tables of a PostgreSQL store.

    URL names the store: postgresql://[USER@]HOST[:PORT]/DATABASE. The user must be permitted to create
    tables. The password comes from PGPASSWORD or ~/.pgpass. One transaction makes all changes.
    """
    before, after = migrate(url)
    columns = (Column("before", COUNT), Column("schema", COUNT))
    out.document(columns, {"before": before, "schema": after})
