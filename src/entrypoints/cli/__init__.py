"""The command line, ``lancekeep``: one module for each command, listed here."""

from __future__ import annotations

from typing import NoReturn

import click

from lancekeep.entrypoints.cli.backfill import backfill
from lancekeep.entrypoints.cli.certify import certify
from lancekeep.entrypoints.cli.cleanup import cleanup
from lancekeep.entrypoints.cli.compact import compact
from lancekeep.entrypoints.cli.console import Commands
from lancekeep.entrypoints.cli.drop import deregister, drop
from lancekeep.entrypoints.cli.fsck import fsck
from lancekeep.entrypoints.cli.index import index
from lancekeep.entrypoints.cli.ingest import ingest
from lancekeep.entrypoints.cli.migrate import migrate
from lancekeep.entrypoints.cli.optimize import optimize
from lancekeep.entrypoints.cli.options import Doors
from lancekeep.entrypoints.cli.repair import repair
from lancekeep.entrypoints.cli.resolve import resolve
from lancekeep.entrypoints.cli.upsert import upsert
from lancekeep.entrypoints.cli.verify import verify


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="lancekeep", prog_name="lancekeep", message="%(prog)s %(version)s")
def lancekeep() -> None:
    """The catalog and commit layer for Lance tables.

    Exit codes: 0 done, and nothing found wrong; 1 something is wrong or was refused; 2 the command cannot mean
    anything; 3 a store could not be reached, or what was named is not there; 130 stopped by Ctrl-C.
    """


for command in (certify, cleanup, deregister, drop, fsck, migrate, optimize, repair, resolve):
    lancekeep.add_command(command)
for job in (backfill, compact, index, ingest, upsert, verify):
    lancekeep.add_command(job)


def main(doors: Doors) -> NoReturn:
    """Run the command that this process was started with, on the catalog's public functions, and exit."""
    lancekeep.main(prog_name="lancekeep", obj=doors)
    raise SystemExit(0)  # click has exited by then
