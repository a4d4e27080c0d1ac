"""``lancekeep tag`` and ``lancekeep branch``: names of versions and of histories."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from lancekeep.application.catalog import Catalog
from lancekeep.domain.errors import VersionNotFound
from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.console import confirmed, message
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, assume_yes, stores
from lancekeep.entrypoints.cli.output import COUNT, TIME, Column, Output, output
from lancekeep.entrypoints.cli.upkeep import mode

_TAGS = (Column("tag"), Column("version", COUNT), Column("branch"), Column("created", TIME))
_BRANCHES = (Column("branch"), Column("parent"), Column("version", COUNT), Column("created", TIME))


@command()
@output
@click.option("--version", type=click.IntRange(1), help="The version that TAG names. Default: the latest.")
@click.option("--branch", metavar="NAME", help="The branch of the version. Default: the main history.")
@click.option("--move", is_flag=True, help="Let an existing TAG name another version.")
@click.option("-d", "--delete", is_flag=True, help="Delete TAG. The version stays until it is cleaned up.")
@mode
@stores
@click.argument("name")
@click.argument("tag", required=False)
@click.pass_obj
def tag(
    functions: PublicFunctions,
    chosen: Stores,
    name: str,
    tag: str | None,
    mode: str | None,
    version: int | None,
    branch: str | None,
    move: bool,
    delete: bool,
    out: Output,
) -> None:
    """List, create, move and delete the tags of a table.

    Without TAG, lists the tags of the table NAME. A tagged version is not cleaned up.
    """
    if tag is None and (delete or move or version is not None):
        raise click.UsageError("Name the TAG to change.")
    with chosen.catalog(functions, mode=mode) as catalog:
        if tag is None:
            out.rows(_TAGS, [_tag(each, at) for each, at in catalog.tags.list(name).items()], "The table has no tags.")
        elif delete:
            at = catalog.tags.get(name, tag)
            catalog.tags.delete(name, tag)
            message(f"Deleted the tag {tag} of {name}. It named version {at.version}.")
        else:
            number = version if version is not None else _latest(catalog, name, branch)
            (catalog.tags.update if move else catalog.tags.create)(name, tag, number, branch)
            message(f"The tag {tag} of {name} names version {number}.")


def _tag(name: str, at: Any) -> dict[str, Any]:
    created = at.others.get("createdAt")
    parsed = datetime.fromisoformat(created) if isinstance(created, str) else None
    return {"tag": name, "version": at.version, "branch": at.branch, "created": parsed}


def _latest(catalog: Catalog, name: str, branch: str | None) -> int:
    if branch is not None:
        return catalog.versions.describe(name, branch=branch).version
    latest = catalog.describe_table(name).version
    if latest is None:
        raise VersionNotFound(f"the table {name} has no version yet. Write rows into it")
    return latest


@command()
@output
@click.option("--from", "source", metavar="NAME", help="The branch at which BRANCH begins. Default: the main history.")
@click.option("--version", type=click.IntRange(1), help="The version at which BRANCH begins. Default: the latest.")
@click.option("-d", "--delete", is_flag=True, help="Delete BRANCH with its versions and files.")
@assume_yes
@mode
@stores
@click.argument("name")
@click.argument("branch", required=False)
@click.pass_obj
def branch(
    functions: PublicFunctions,
    chosen: Stores,
    name: str,
    branch: str | None,
    mode: str | None,
    source: str | None,
    version: int | None,
    delete: bool,
    assume_yes: bool,
    out: Output,
) -> None:
    """List, create and delete the branches of a table.

    Without BRANCH, lists the branches of the table NAME. --delete shows what it deletes, and asks.
    """
    if branch is None and (delete or source is not None or version is not None):
        raise click.UsageError("Name the BRANCH to change.")
    with chosen.catalog(functions, mode=mode) as catalog:
        if branch is None:
            found = catalog.branches.list(name)
            out.rows(_BRANCHES, [_branch(each, at) for each, at in found.items()], "The table has no branches.")
        elif delete:
            latest = catalog.versions.describe(name, branch=branch)
            plan = (
                f"Delete the branch {branch} of {name}: its versions up to {latest.version}, with {latest.rows:,} rows"
            )
            if confirmed(plan, assume_yes):
                catalog.branches.delete(name, branch)
                message(f"Deleted the branch {branch} of {name}.")
        else:
            catalog.branches.create(name, branch, source, version)
            message(f"Created the branch {branch} of {name}.")


def _branch(name: str, at: Any) -> dict[str, Any]:
    created = datetime.fromtimestamp(at.created, UTC) if at.created else None
    return {"branch": name, "parent": at.parent, "version": at.version, "created": created}
