"""``lancekeep conformance``: judge a server by its specification."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lancekeep.config import ConnectionConfig
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.identifiers import ObjectId
from lancekeep.entrypoints.cli.cells import plain
from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.commands import WRONG
from lancekeep.entrypoints.cli.console import message, print_line, print_table, progress
from lancekeep.entrypoints.cli.options import as_json, pairs, pairs_in_file
from lancekeep.entrypoints.cli.output import print_report

if TYPE_CHECKING:
    from lancekeep.testing.conformance import Conformance


@command()
@click.argument("url")
@click.option("--within", metavar="NAMESPACE", help="Work in this existing namespace.  [default: the root]")
@click.option(
    "--only", metavar="TEXT", default="", help="Make the checks with this text in their names: tags/, DropTable/"
)
@pairs("--storage-option", "An option to read the tables with; may be repeated. Also: LANCEKEEP_STORAGE__NAME.")
@pairs_in_file("--storage-option-file", "Read secret options of the storage from lines NAME=VALUE; '-' is stdin.")
@click.option("--keeps-dropped", is_flag=True, help="The server keeps the files of dropped tables for a while.")
@click.option("--junit", type=click.Path(dir_okay=False, path_type=Path), help="Also write the results as JUnit XML.")
@as_json
@click.pass_context
def conformance(
    context: click.Context,
    url: str,
    within: str | None,
    only: str,
    storage_option: dict[str, str],
    storage_option_file: dict[str, str],
    keeps_dropped: bool,
    junit: Path | None,
    as_json: bool,
) -> None:
    """Judge a server of the REST protocol by its specification.

    URL is the server, of whatever make. The behaviours are tried, and each operation of the OpenAPI document is
    requested, well-formed and malformed, in namespaces lancekeep_conformance_*, which are removed afterwards; nothing
    else is changed. Credentials: LANCEKEEP_REST__API_KEY or LANCEKEEP_REST__TOKEN. Exit code 1: a check failed.
    """
    from lancekeep.testing.behaviours import Storage
    from lancekeep.testing.conformance import judge_server

    options = {f"storage.{name}": value for name, value in {**storage_option_file, **storage_option}.items()}
    config = ConnectionConfig.resolve({"root": url, **options})
    if config.impl != "rest":
        raise InvalidInput(f"{config.require_root()} is no server; give its URL, such as http://127.0.0.1:2333")
    properties = {**config.rest_options, "uri": config.require_root()}
    with progress("conformance") as report_progress:
        found = judge_server(
            properties,
            within=() if within is None else ObjectId.of(within).names,
            storage=Storage(config.storage_options, keeps_dropped),
            only=only,
            progress=report_progress,
        )
    if junit is not None:
        junit.write_text(found.junit())
    if as_json:
        print_report(_document(properties["uri"], found), "checks")
    else:
        _print(properties["uri"], found)
    if found.left:
        message(f"Could not remove: {', '.join(map(plain, found.left))}. Drop them by hand.")
    if any(verdict.result.outcome == "failed" for verdict in found.verdicts):
        context.exit(WRONG)


def _print(url: str, found: Conformance) -> None:
    areas = defaultdict[str, list[str]](list)
    for verdict in found.verdicts:
        areas[verdict.area].append(verdict.result.outcome)
    outcomes = tuple(str(outcome) for outcome in found.counts)
    rows = [(area, *(str(tried.count(outcome)) for outcome in outcomes)) for area, tried in areas.items()]
    total = ("all", *(str(count) for count in found.counts.values()))
    print_table(f"Conformance of {url}", ("area", *outcomes), [*rows, total])
    failed = [verdict for verdict in found.verdicts if verdict.result.outcome == "failed"]
    for verdict in failed:
        print_line(verdict.id)
        print_line(f"    the server: {plain(verdict.result.answer)}")
        print_line(f"    specified:  {verdict.sentence}")
    for field in found.beyond:
        print_line(f"Not in the OpenAPI document: {plain(field)}")
    print_line(f"{len(failed)} checks failed." if failed else "The server conforms: no check failed.")


def _document(url: str, found: Conformance) -> dict[str, object]:
    return {
        "server": url,
        "counts": {str(outcome): count for outcome, count in found.counts.items()},
        "checks": [
            {
                "check": verdict.id,
                "outcome": str(verdict.result.outcome),
                "answer": verdict.result.answer,
                "specification": verdict.sentence,
            }
            for verdict in found.verdicts
        ],
        "beyond": list(found.beyond),
        "left": list(found.left),
    }
