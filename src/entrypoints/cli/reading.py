"""Options and look-ups that the reading commands share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click

from lancekeep.domain.errors import InvalidInput, LancekeepError
from lancekeep.domain.expressions import require_bounded
from lancekeep.domain.identifiers import Identifier
from lancekeep.entrypoints.spans import SPANS, parsed_span

if TYPE_CHECKING:
    from lancekeep.application.catalog import Catalog

P = ParamSpec("P")
T = TypeVar("T")


def version_option(command: Callable[P, T]) -> Callable[P, T]:
    """Add ``--version``, ``--branch`` and ``--at``."""
    version = click.option("--version", metavar="N|TAG", help="A version, or the name of a tag. Default: the latest.")
    branch = click.option("--branch", metavar="NAME", help="A branch. Default: the main history.")
    return version(branch(at_option(command)))


def where_option(command: Callable[P, T]) -> Callable[P, T]:
    """Add ``--where``, a condition that the engine can plan."""
    explanation = "Only rows for which this SQL expression is true."
    return click.option("--where", metavar="EXPRESSION", callback=_shallow, help=explanation)(command)


def _shallow(_: click.Context, __: click.Parameter, expression: str | None) -> str | None:
    require_bounded(expression)
    return expression


def at_option(command: Callable[P, T]) -> Callable[P, T]:
    """Add ``--at``, a time in place of a version."""
    explanation = "The version that was the latest then: 2026-11-24T09:00, or 2d for two days earlier."
    return click.option("--at", metavar="TIME", callback=time_given, help=explanation)(command)


def time_given(_: click.Context, option: click.Parameter, text: str | None) -> datetime | None:
    """Parse a time in ISO 8601, or a time span before now.

    Raises:
        click.BadParameter: The text is neither.
    """
    try:
        return None if text is None else parsed_time(text)
    except InvalidInput as error:
        raise click.BadParameter(str(error), param=option) from None


def parsed_time(text: str) -> datetime:
    """Parse a time in ISO 8601, or a time span before now.

    A time without an offset is one of the local time zone.

    Raises:
        InvalidInput: The text is neither.
    """
    span = parsed_span(text)
    if span is not None:
        return datetime.now(UTC) - span
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        message = f"{text!r} is neither a time, such as 2026-11-24T09:00, nor a time span: {SPANS}"
        raise InvalidInput(message) from None


def chosen_version(version: str | None, branch: str | None, at: datetime | None) -> dict[str, Any]:
    """Return the arguments by which `Catalog.open` chooses a version."""
    number = version if version is None or not version.isdecimal() else int(version)
    choice = {"tag": number} if isinstance(number, str) else {"version": number}
    return {**choice, "branch": branch, "timestamp": at}


@contextmanager
def refusing() -> Iterator[None]:
    """Translate the engine's refusal of an expression, a column or a position."""
    try:
        yield
    except LancekeepError:
        raise
    except (ValueError, IndexError, KeyError) as error:
        raise InvalidInput(f"the engine cannot read these rows: {str(error).partition(', /')[0]}") from error


def tags_by_version(catalog: Catalog, table: Identifier, branch: str | None = None) -> dict[int, list[str]]:
    """Return the names of the tags of a history, by version."""
    found: dict[int, list[str]] = {}
    for name, tag in catalog.tags.list(table).items():
        if tag.branch == branch:
            found.setdefault(tag.version, []).append(name)
    return found
