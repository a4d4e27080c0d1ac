"""Output of the commands: results on stdout, progress on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic

import click

from lancekeep.domain.errors import Refused
from lancekeep.entrypoints.cli.command import QUIET

_PAUSE = 0.05
"""The seconds between two updates of a progress bar, which take longer than a small step."""
_WIDEST = 10_000
"""The columns of an output that is no terminal."""
_STYLES = {"passed": "green", "failed": "bold red", "unsupported": "yellow"}


@contextmanager
def progress(title: str) -> Iterator[Callable[[int, int, str], None]]:
    """Show a progress bar on stderr if it is a terminal.

    Yields:
        A function that takes the number of finished items, the total and the name of the current item.
    """
    from rich.console import Console  # loads on first use, like all of rich: most commands print without it
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    errors = Console(stderr=True)
    with Progress(*columns, console=errors, transient=True, disable=_is_quiet() or not errors.is_terminal) as bar:
        task, shown = bar.add_task(title, total=None), ("", 0.0)

        def report(done: int, total: int, name: str) -> None:
            nonlocal shown
            if name == shown[0] and monotonic() - shown[1] < _PAUSE:
                return
            shown = name, monotonic()
            bar.update(task, completed=done, total=total, description=f"{title}: {name}")

        yield report


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table to stdout with whole cells, and colour words for results.

    A terminal folds cells at its width; elsewhere, a row is a line.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*columns, title=Text(title), title_justify="left", min_width=72)
    for row in rows:
        table.add_row(*(Text(cell, _STYLES.get(cell, ""), overflow="fold") for cell in row))
    has_width = Console().is_terminal or "COLUMNS" in os.environ
    Console(width=None if has_width else _WIDEST).print(table)


def message(text: str) -> None:
    """Print a message to stderr, unless ``--quiet`` is given."""
    if not _is_quiet():
        click.echo(text, err=True)


def confirmed(plan: str, assume_yes: bool) -> bool:
    """Return whether to carry out a plan: by ``--yes``, or by the answer of a person.

    Raises:
        Refused: There is no ``--yes``, and no terminal to ask.
    """
    if not assume_yes and not can_ask():
        raise Refused(f"{plan}: this needs a confirmation, and there is no terminal. Nothing was changed. Add --yes")
    return assume_yes or agreed(plan)


def agreed(plan: str) -> bool:
    """Ask at a terminal whether to carry out a plan; False without a terminal."""
    if not can_ask():
        return False
    click.echo(f"{plan}.", err=True)
    if click.confirm("Proceed?", err=True):
        return True
    message("Nothing was changed.")
    return False


def can_ask() -> bool:
    """Return whether a person can answer a question."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _is_quiet() -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(QUIET))


def print_line(text: str) -> None:
    """Print a line to stdout."""
    click.echo(text)
