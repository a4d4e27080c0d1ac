"""Options and output that the upkeep commands share."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import attrs
import click

from lancekeep.entrypoints.cli.console import print_line, print_table
from lancekeep.entrypoints.spans import SPANS, parsed_span

if TYPE_CHECKING:
    from lancekeep.application.upkeep.fsck import FsckReport

P = ParamSpec("P")
T = TypeVar("T")


def span(value: str) -> timedelta:
    """Parse a whole number with a unit, such as 7d.

    Raises:
        click.BadParameter: The value is no such number.
    """
    found = parsed_span(value)
    if found is None:
        raise click.BadParameter(f"{value!r} is not a time span; expected {SPANS}")
    return found


def mode(command: Callable[P, T]) -> Callable[P, T]:
    """Add ``--mode``: where the catalog stores its entries."""
    modes = click.Choice(["compatible", "v2", "v1"])
    explanation = "Where the catalog stores its entries; compatible by default. See lancekeep.connect."
    return click.option("--mode", type=modes, help=explanation)(command)


def looks(command: Callable[P, T]) -> Callable[P, T]:
    """Add the options that limit what fsck and repair check."""
    options = [
        click.option("--deep", is_flag=True, help="Also check the contents of every table."),
        click.option(
            "--table", "tables", multiple=True, metavar="NAME", help="Check only this table; may be repeated."
        ),
        click.option(
            "--grace", type=span, default="1h", show_default=True, help="Never remove anything younger than this."
        ),
        click.option("--remove-tables", is_flag=True, help="Also remove tables without a catalog entry."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def print_findings(report: FsckReport) -> None:
    """Print the findings as a table, and a summary line."""
    if report.findings:
        rows = [
            (finding.kind.value, finding.object, finding.meaning, "repaired" if finding.repaired else finding.repair)
            for finding in report.findings
        ]
        print_table("Findings", ("kind", "object", "meaning", "repair"), rows)
    print_line(str(report).partition("\n")[0].removesuffix(":"))


def findings_document(report: FsckReport) -> dict[str, object]:
    """Return the report as ``--json`` prints it."""
    findings = [{**attrs.asdict(finding), "kind": finding.kind.value} for finding in report.findings]
    return {**attrs.asdict(report, recurse=False), "findings": findings}
