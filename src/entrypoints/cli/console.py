"""Output of the commands: results on stdout, progress on stderr."""

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

_STYLES = {"passed": "green", "failed": "bold red", "unsupported": "yellow"}


@contextmanager
def progress(title: str) -> Iterator[Callable[[int, int, str], None]]:
    """Show a progress bar on stderr if it is a terminal.

    Yields:
        A function that takes the number of finished items, the total and the name of the current item.
    """
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

        def report(done: int, total: int, name: str) -> None:
            bar.update(task, completed=done, total=total, description=f"{title}: {name}")

        yield report


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table to stdout with whole cells, and colour words for results."""
    table = Table(*columns, title=Text(title), title_justify="left", min_width=72)
    for row in rows:
        table.add_row(*(Text(cell, _STYLES.get(cell, ""), overflow="fold") for cell in row))
    Console().print(table)


def print_line(text: str) -> None:
    """Print a line to stdout."""
    click.echo(text)


def print_json(value: Any) -> None:
    """Print one JSON document to stdout."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))
