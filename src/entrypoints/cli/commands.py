"""List the commands, import them on use, and turn errors into exit codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import click

from lancekeep.adapters.lance.panics import panics_translated
from lancekeep.domain.errors import AccessDenied, InvalidInput, LancekeepError, NotFound, StoreUnavailable

WRONG, USAGE, UNREACHABLE, STOPPED = 1, 2, 3, 130


class Entry(NamedTuple):
    """A command in the group's list.

    Attributes:
        name: The name.
        module: The module that defines the command.
        summary: The summary in the list.
    """

    name: str
    module: str
    summary: str


class Failed(click.ClickException):
    """A Lancekeep error, shown as one line."""

    exit_code: int  # type: ignore[misc] # click declares a class attribute; here it depends on the error

    def __init__(self, error: LancekeepError) -> None:
        super().__init__(" ".join(" ".join((str(error), *getattr(error, "__notes__", ()))).split()))
        self.exit_code = _exit_code(error)


def _exit_code(error: LancekeepError) -> int:
    if isinstance(error, InvalidInput):
        return USAGE
    return UNREACHABLE if isinstance(error, StoreUnavailable | AccessDenied | NotFound) else WRONG


class Commands(click.Group):
    """A group that lists commands in sections and imports each on use."""

    def __init__(self, *args: Any, sections: Mapping[str, Sequence[Entry]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sections = sections
        self._modules = {entry.name: entry.module for entries in sections.values() for entry in entries}
        for entries in sections.values():
            for entry in entries:
                # Placeholders: click lists them and suggests them for a mistyped name.
                self.add_command(click.Command(entry.name, help=entry.summary))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._modules:
            return None
        module = import_module(f"{__package__}.{self._modules[cmd_name]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self._modules))
        for title, entries in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(entry.name.ljust(width), entry.summary) for entry in entries])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with panics_translated():
                return super().invoke(ctx)
        except LancekeepError as error:
            raise Failed(error) from error
        except KeyboardInterrupt as stop:
            click.echo(" ".join(("Stopped.", *getattr(stop, "__notes__", ()))), err=True)
            ctx.exit(STOPPED)
