"""``lancekeep resolve``: settle a commit whose outcome was unknown."""

from __future__ import annotations

import click

from lancekeep.domain.commit import Committed, Conflict
from lancekeep.domain.transaction import AllCommitted
from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.commands import UNREACHABLE, WRONG
from lancekeep.entrypoints.cli.console import print_line
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, as_json, stores
from lancekeep.entrypoints.cli.output import print_report
from lancekeep.entrypoints.cli.upkeep import mode


@command()
@as_json
@mode
@stores
@click.argument("token")
@click.pass_context
def resolve(context: click.Context, chosen: Stores, token: str, mode: str | None, as_json: bool) -> None:
    """Settle a commit whose outcome was unknown.

    TOKEN comes with the error CommitUnknown. Completes the commit if its version is still free. Exit code 1: another
    writer committed the version, so nothing was committed; 3: the stores still do not answer, so try again later.
    """
    functions: PublicFunctions = context.obj
    with chosen.catalog(functions, mode=mode) as catalog:
        outcome = catalog.resolve(token)
    match outcome:
        case Committed():
            document: dict[str, object] = {"outcome": "committed", "version": outcome.version, "path": outcome.path}
            line, code = f"Committed: version {outcome.version}, {outcome.path}", 0
        case AllCommitted():
            versions = [{"version": each.version, "path": each.path} for each in outcome.versions]
            document = {"outcome": "committed", "versions": versions}
            line, code = (
                "Committed: " + "; ".join(f"version {each.version}, {each.path}" for each in outcome.versions),
                0,
            )
        case Conflict():
            winner = None if outcome.winner is None else outcome.winner.path
            document = {"outcome": "conflict", "winner": winner}
            line, code = f"Not committed: {winner or 'another writer'} committed this version. Write again.", WRONG
        case _:
            document = {"outcome": "unknown", "reason": outcome.reason, "token": str(outcome.token)}
            line, code = f"Still unknown: {outcome.reason}. Nothing was removed. Try again later.", UNREACHABLE
    if as_json:
        print_report(document)
    else:
        print_line(line)
    context.exit(code)
