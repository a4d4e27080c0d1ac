"""``lancekeep quotas``: how much of the quotas of a policy is used."""

from __future__ import annotations

from pathlib import Path

import click

from lancekeep.adapters.authorization.policy_file import read_policy
from lancekeep.application.upkeep.quota_usage import QuotaUsage
from lancekeep.domain.errors import InvalidInput
from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, stores
from lancekeep.entrypoints.cli.output import BYTES, COUNT, TIME, Column, Output, Row, output
from lancekeep.entrypoints.cli.upkeep import mode

_COLUMNS = (
    Column("quota", COUNT),
    Column("on"),
    Column("tables", COUNT),
    Column("most tables", COUNT),
    Column("bytes", BYTES),
    Column("most bytes", BYTES),
    Column("used"),
    Column("measured", TIME),
)


@command()
@output
@click.option(
    "--policy",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The policy of the server. A CATALOG that is a server has its own.",
)
@mode
@stores
@click.pass_obj
def quotas(functions: PublicFunctions, chosen: Stores, mode: str | None, policy: Path | None, out: Output) -> None:
    """Show how much of the quotas of a policy is used.

    A server shows the quotas of the subtrees that you may describe, as it measured them last. In a directory, the
    quotas of the file --policy are measured now, by listing the directories of the tables. "used" is the share of the
    limit that is used most.
    """
    if policy is None and not chosen.served:
        raise InvalidInput("the quotas of a catalog are in the policy of its server; name the file by --policy")
    with chosen.catalog(functions, mode=mode) as catalog:
        found = catalog.upkeep.quotas(None if policy is None else read_policy(policy).quotas)
    out.rows(_COLUMNS, (_row(each, out) for each in found), "There are no quotas to show.")


def _row(usage: QuotaUsage, out: Output) -> Row:
    share: float | str | None = usage.share
    if share is not None and out.form == "table":
        share = f"{share:.0%}"
    return {
        "quota": usage.quota,
        "on": str(usage.subtree),
        "tables": usage.tables,
        "most tables": usage.max_tables,
        "bytes": usage.bytes,
        "most bytes": usage.max_bytes,
        "used": share,
        "measured": usage.measured,
    }
