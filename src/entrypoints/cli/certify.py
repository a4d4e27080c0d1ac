"""``lancekeep certify``: check that stores provide what commits need."""

from __future__ import annotations

from itertools import groupby

import attrs
import click

from lancekeep.application.certification import Certificate, Check
from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.commands import WRONG
from lancekeep.entrypoints.cli.console import print_line, print_table, progress
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, as_json, stores
from lancekeep.entrypoints.cli.output import print_report


@command()
@as_json
@stores
@click.pass_context
def certify(context: click.Context, chosen: Stores, as_json: bool) -> None:
    """Measure whether the stores are safe for commits.

    Checks the object store at ROOT together with the commit store. Writes below ROOT/.lancekeep-certify-<uuid>/ and
    removes it afterwards. Exit code 1: the stores can lose a commit.
    """
    functions: PublicFunctions = context.obj
    with progress("certify") as report_progress:
        certificate = functions.certify(**chosen.of_versions, progress=report_progress)
    if as_json:
        print_report(_document(certificate), "checks", Check)
    else:
        _print(certificate)
    if not certificate.safe:
        context.exit(WRONG)


def _print(certificate: Certificate) -> None:
    print_line(f"{certificate.root} with {certificate.commit_store or 'no commit store'}")
    for subject, checks in groupby(certificate.checks, lambda check: check.subject):
        rows = [(check.name, check.result.value, check.evidence) for check in checks]
        print_table(subject, ("check", "result", "evidence"), rows)
    if certificate.safe:
        print_line("Safe: no check found a way to lose a commit.")
    else:
        print_line(f"Not safe: {', '.join(check.name for check in certificate.failed)} failed.")


def _document(certificate: Certificate) -> dict[str, object]:
    checks = [{**attrs.asdict(check), "result": check.result.value} for check in certificate.checks]
    return {
        "root": certificate.root,
        "commit_store": certificate.commit_store or None,
        "safe": certificate.safe,
        "checks": checks,
    }
