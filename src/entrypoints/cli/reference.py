"""The pages about the command line, written from the help of the commands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import click

from lancekeep.entrypoints.cli.commands import Entry

WIDTH = 80


def commands_of(
    group: click.Group, sections: Mapping[str, Sequence[Entry]]
) -> Iterator[tuple[str, str, click.Command]]:
    """Yield every command and subcommand.

    Each comes with its section, and its name with the names above it.
    """
    context = click.Context(group, info_name="lancekeep")
    for section, entries in sections.items():
        for entry in entries:
            command = group.get_command(context, entry.name)
            assert command is not None
            yield from ((section, path, each) for path, each in _below(f"lancekeep {entry.name}", command))


def _below(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from _below(f"{path} {name}", child)


def help_of(command: click.Command, path: str) -> str:
    """Return the help of a command, without the option ``--help``."""
    context = click.Context(command, info_name=path, max_content_width=WIDTH, terminal_width=WIDTH)
    return re.sub(r"(?m)^\s+(-h, )?--help .*\n?", "", command.get_help(context) + "\n")


def manual(group: click.Group, sections: Mapping[str, Sequence[Entry]], version: str) -> str:
    """Return the manual page ``lancekeep(1)``, in the language of man."""
    summary, _, text = (group.help or "").partition("\n\n")
    lines = [
        f'.TH LANCEKEEP 1 "" "lancekeep {version}" "User Commands"',
        ".SH NAME",
        f"lancekeep \\- {_roff(summary[0].lower() + summary[1:].rstrip('.'))}",
        ".SH SYNOPSIS",
        ".B lancekeep",
        "COMMAND [CATALOG] [NAME] [OPTIONS]",
        ".SH DESCRIPTION",
        *_paragraphs(text),
        ".PP",
        "CATALOG is a root, a URL or the name of a configured catalog. It may be left out if a default is configured.",
    ]
    before = ""
    for section, path, command in commands_of(group, sections):
        if section != before:
            lines.append(f".SH {_roff(section.upper())} COMMANDS")
        before = section
        lines += _command(path, command)
    lines += [
        ".SH FILES",
        ".TP",
        ".I lancekeep.toml",
        "The configuration of the project, in the current folder or a parent, and of the user in",
        ".IR ~/.config/lancekeep/ .",
    ]
    return "\n".join(lines) + "\n"


def _command(path: str, command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=path)
    yield f".SS {_roff(path)}"
    yield f".B {_roff(path)}"
    yield _roff(" ".join(command.collect_usage_pieces(context)))
    yield from (".PP", *_paragraphs(command.help or ""))
    for option in command.get_params(context):
        record = option.get_help_record(context) if isinstance(option, click.Option) else None
        if record is not None and "--help" not in option.opts:
            yield from (".TP", f".B {_roff(record[0])}", _roff(record[1]))


def _paragraphs(text: str) -> Iterator[str]:
    for at, paragraph in enumerate(filter(None, text.split("\n\n"))):
        if at:
            yield ".PP"
        yield _roff(paragraph)


def _roff(text: str) -> str:
    """Return a text on one line, of which man interprets nothing."""
    line = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-")
    line = "".join(each if each.isascii() else f"\\[u{ord(each):04X}]" for each in line)
    return f"\\&{line}" if line.startswith((".", "'")) else line
