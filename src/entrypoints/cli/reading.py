"""Options and look-ups that the reading commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click

if TYPE_CHECKING:
    from lancekeep.application.catalog import Catalog

P = ParamSpec("P")
T = TypeVar("T")


def version_option(command: Callable[P, T]) -> Callable[P, T]:
    """Add ``--version`` and ``--branch``."""
    version = click.option("--version", metavar="N|TAG", help="A version, or the name of a tag. Default: the latest.")
    branch = click.option("--branch", metavar="NAME", help="A branch. Default: the main history.")
    return version(branch(command))


def chosen_version(version: str | None, branch: str | None) -> dict[str, Any]:
    """Return the arguments by which `Catalog.open` chooses a version."""
    if version is not None and not version.isdecimal():
        return {"tag": version, "branch": branch}
    return {"version": None if version is None else int(version), "branch": branch}


def tags_by_version(catalog: Catalog, table: str, branch: str | None = None) -> dict[int, list[str]]:
    """Return the names of the tags of a history, by version."""
    found: dict[int, list[str]] = {}
    for name, tag in catalog.tags.list(table).items():
        if tag.branch == branch:
            found.setdefault(tag.version, []).append(name)
    return found
