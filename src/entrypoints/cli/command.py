"""The class of every command: shared options, and a catalog that may be left out."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import click

from lancekeep.config import ConnectionConfig, named_catalogs
from lancekeep.entrypoints.cli.commands import DEBUG

QUIET, LEFT_OUT = "lancekeep.quiet", "lancekeep.left_out"
"""Keys of `click.Context.meta`, which the contexts of one command line share."""

CATALOG = "place"
"""The parameter that holds the argument CATALOG."""


def command(name: str | None = None) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command of a function."""
    return click.command(name, cls=Command)


class Command(click.Command):
    """A command with ``--quiet`` and ``--debug``.

    If it takes a CATALOG, the caller may leave it out. The number of arguments tells whether it is there; if both are
    possible, the first argument is the catalog if it is a path with a slash, a URL, the name of a configured catalog or
    a directory, or if no default is configured.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for option, key, explanation in (
            ("--quiet", QUIET, "Print no messages and no progress, only data and errors."),
            ("--debug", DEBUG, "Show the traceback of an error."),
        ):
            self.params.append(
                click.Option([option], is_flag=True, expose_value=False, callback=_kept_as(key), help=explanation)
            )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        arguments = [param for param in self.params if isinstance(param, click.Argument)]
        takes_catalog = any(argument.name == CATALOG for argument in arguments)
        if takes_catalog and not ctx.resilient_parsing and not {*ctx.help_option_names} & {*args}:
            others = [argument for argument in arguments if argument.name != CATALOG]
            if _is_left_out(self._positional(ctx, args), others):
                ctx.meta[LEFT_OUT] = True
                args = ["default", *args]
        return super().parse_args(ctx, args)

    def _positional(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Return the arguments that are neither options nor values of options."""
        options = click.Command(self.name, params=[each for each in self.params if isinstance(each, click.Option)])
        _, positional, _ = options.make_parser(ctx).parse_args(list(args))
        return positional


def _is_left_out(positional: Sequence[str], others: Sequence[click.Argument]) -> bool:
    if len(positional) <= sum(argument.required for argument in others):
        return True
    if all(argument.nargs > 0 for argument in others) and len(positional) > len(others):
        return False
    return not names_catalog(positional[0]) and ConnectionConfig.resolve({}).root is not None


def names_catalog(text: str) -> bool:
    """Return whether an argument is a catalog rather than a name in it."""
    return (
        "/" in text or os.sep in text or text.startswith((".", "~")) or text in named_catalogs() or os.path.isdir(text)
    )


def _kept_as(key: str) -> Callable[[click.Context, click.Parameter, bool], None]:
    def keep(context: click.Context, _: click.Parameter, value: bool) -> None:
        context.meta[key] = context.meta.get(key, False) or value

    return keep
