"""What the commands that look after a catalog have in common."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import ParamSpec, TypeVar

import attrs
import click

from lancekeep.application.upkeep.fsck import FsckReport
from lancekeep.entrypoints.cli.console import print_line, print_table

P = ParamSpec("P")
T = TypeVar("T")

_SPAN = re.compile(r"(\d{1,6})([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def span(value: str) -> timedelta:
    """A whole number with a unit. Raises `click.BadParameter`."""
    found = _SPAN.fullmatch(value)
    if found is None:
        raise click.BadParameter(f"{value!r} is no time span; give a number with a unit, as 90s, 30m, 12h, 7d or 2w")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def mode(command: Callable[P, T]) -> Callable[P, T]:
    """``--mode``: where the catalog's entries lie."""
    modes = click.Choice(["compatible", "v2", "v1"])
    explanation = "Where the catalog's entries lie, as lancekeep.connect takes it."
    return click.option("--mode", type=modes, default="compatible", show_default=True, help=explanation)(command)


def looks(command: Callable[P, T]) -> Callable[P, T]:
    """What is to be looked at by fsck and repair, and what counts as young."""
    options = [
        click.option("--deep", is_flag=True, help="Look into every table, too."),
        click.option(
            "--table", "tables", multiple=True, metavar="NAME", help="Look into this table alone; may be repeated."
        ),
        click.option("--grace", type=span, default="1h", show_default=True, help="What is younger is not removed."),
        click.option("--remove-tables", is_flag=True, help="Remove tables, too, that no entry refers to."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def print_findings(report: FsckReport) -> None:
    """The findings as a table, and what was looked at."""
    if report.findings:
        rows = [
            (finding.kind.value, finding.object, finding.meaning, "repaired" if finding.repaired else finding.repair)
            for finding in report.findings
        ]
        print_table("Findings", ("kind", "object", "meaning", "repair"), rows)
    print_line(str(report).partition("\n")[0].removesuffix(":"))


def findings_document(report: FsckReport) -> dict[str, object]:
    findings = [{**attrs.asdict(finding), "kind": finding.kind.value} for finding in report.findings]
    return {**attrs.asdict(report, recurse=False), "findings": findings}
