"""List the commands, import them on use, and turn errors into exit codes."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import click

from lancekeep.adapters.lance.panics import panics_translated
from lancekeep.domain.errors import AccessDenied, InvalidInput, LancekeepError, NotFound, StoreUnavailable

WRONG, USAGE, UNREACHABLE, STOPPED = 1, 2, 3, 130
DEBUG = "lancekeep.debug"
"""The key of `click.Context.meta` under which a command keeps its option ``--debug``."""

_WHAT_TO_DO = re.compile(r"(?<=[^\s.;]{2})[.;] +(?=[^\s])")
"""The end of the part of a message that says what failed."""


class Entry(NamedTuple):
    """A command in the group's list.

    Attributes:
        name: The name.
        module: The module that defines the command.
        summary: The summary in the list.
        stopped: What Ctrl-C leaves; empty for a command that changes nothing.
    """

    name: str
    module: str
    summary: str
    stopped: str = ""


class Failed(click.ClickException):
    """An error: one line that says what failed, and one that says what to do."""

    exit_code: int  # type: ignore[misc] # click declares a class attribute; here it depends on the error

    def __init__(self, error: Exception) -> None:
        if isinstance(error, LancekeepError):
            text, advice = str(error), ""
        elif isinstance(error, OSError):
            text, advice = f"{error.filename or 'the file'}: {error.strerror or error}", ""
        else:
            text = f"{type(error).__name__}: {error}"
            advice = "This is a defect. Run the command again with --debug, and report the traceback."
        notes = (*getattr(error, "__notes__", ()), advice)
        what, *rest = _WHAT_TO_DO.split(one_line(text), maxsplit=1)
        todo = " ".join(one_line(each) for each in (*rest, *notes) if each)
        super().__init__(what if not todo else f"{what.rstrip('.')}.\n{todo[0].upper()}{todo[1:]}")
        self.exit_code = _exit_code(error)


def one_line(text: str) -> str:
    """Return a text as one line, without characters that a terminal obeys."""
    words = " ".join(text.split())
    return words if words.isprintable() else "".join(map(visible, words))


def visible(character: str) -> str:
    """Return a character, or its escape sequence if it is not printable."""
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def _exit_code(error: Exception) -> int:
    if isinstance(error, InvalidInput):
        return USAGE
    return UNREACHABLE if isinstance(error, StoreUnavailable | AccessDenied | NotFound) else WRONG


class Commands(click.Group):
    """A group that lists commands in sections and imports each on use."""

    def __init__(self, *args: Any, sections: Mapping[str, Sequence[Entry]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sections = sections
        self._entries = {entry.name: entry for entries in sections.values() for entry in entries}
        for entry in self._entries.values():
            self.add_command(click.Command(entry.name, help=entry.summary))  # a placeholder, which click lists

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._entries:
            return None
        module = import_module(f"{__package__}.{self._entries[cmd_name].module}")
        name = cmd_name.replace("-", "_")
        command: click.Command = getattr(module, name if hasattr(module, name) else f"{name}_")  # a word of Python
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command. For an unknown one, suggest only commands that change nothing."""
        name = args[0]
        if name not in self._entries and not name.startswith("-") and not ctx.resilient_parsing:
            from difflib import get_close_matches

            harmless = [entry.name for entry in self._entries.values() if not entry.stopped]
            near = get_close_matches(name, harmless, n=1)
            suggestion = f"Did you mean {near[0]!r}?" if near else "Run lancekeep --help for the list."
            ctx.fail(f"No such command {name!r}. {suggestion}")
        return super().resolve_command(ctx, args)

    def _main_shell_completion(
        self, ctx_args: Any, prog_name: str, complete_var: str | None = None
    ) -> None:  # click's own way imports the command, which takes too long for a key press
        instruction = os.environ.get("_LANCEKEEP_COMPLETE")
        if instruction == "lookup":
            from lancekeep.entrypoints.cli.lookup import look_up

            look_up(ctx_args["obj"])
            sys.exit(0)
        if instruction:
            from lancekeep.entrypoints.cli.completion import complete

            complete(self, instruction)
            sys.exit(0)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self._entries))
        for title, entries in self.sections.items():
            with formatter.section(title):
                formatter.write_dl([(entry.name.ljust(width), entry.summary) for entry in entries])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with panics_translated():
                return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:
            if ctx.meta.get(DEBUG):
                traceback.print_exception(error)
            raise Failed(error) from error
        except KeyboardInterrupt as stop:
            entry = self._entries.get(ctx.invoked_subcommand or "")
            state = "Nothing was changed." if entry is None or not entry.stopped else entry.stopped
            click.echo(" ".join(("Stopped.", *getattr(stop, "__notes__", (state,)))), err=True)
            ctx.exit(STOPPED)
