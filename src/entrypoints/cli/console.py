"""How commands talk: results on stdout, everything else on stderr, and errors as one line and an exit code."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from lancekeep.domain.errors import AccessDenied, InvalidInput, LancekeepError, NotFound, StoreUnavailable

WRONG, USAGE, UNREACHABLE, STOPPED = 1, 2, 3, 130
_STYLES = {"passed": "green", "failed": "bold red", "unsupported": "yellow"}


class Failed(click.ClickException):
    """An error of ours, told as the one line that its message is."""

    exit_code: int  # type: ignore[misc] # click itself sets it on the class; here it differs by the error

    def __init__(self, error: LancekeepError) -> None:
        super().__init__(" ".join(" ".join((str(error), *getattr(error, "__notes__", ()))).split()))
        self.exit_code = _exit_code(error)


def _exit_code(error: LancekeepError) -> int:
    if isinstance(error, InvalidInput):
        return USAGE
    return UNREACHABLE if isinstance(error, StoreUnavailable | AccessDenied | NotFound) else WRONG


class Commands(click.Group):
    """Commands whose errors are told without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except LancekeepError as error:
            raise Failed(error) from error
        except KeyboardInterrupt as stop:
            click.echo(" ".join(("Stopped.", *getattr(stop, "__notes__", ()))), err=True)
            ctx.exit(STOPPED)


@contextmanager
def progress(title: str) -> Iterator[Callable[[int, int, str], None]]:
    """A bar on stderr, where that is a terminal; what it gives is told how many are done, of how many, and what."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    errors = Console(stderr=True)
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task(title, total=None)

        def tell(done: int, total: int, name: str) -> None:
            bar.update(task, completed=done, total=total, description=f"{title}: {name}")

        yield tell


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table on stdout, with all that is said; words that say how something went have their colour."""
    table = Table(*columns, title=Text(title), title_justify="left", min_width=72)
    for row in rows:
        table.add_row(*(Text(cell, _STYLES.get(cell, ""), overflow="fold") for cell in row))
    Console().print(table)


def print_line(text: str) -> None:
    """A line on stdout."""
    click.echo(text)


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))
