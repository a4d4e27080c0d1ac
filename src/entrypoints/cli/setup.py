"""``lancekeep doctor``: check this machine."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import attrs
import click

from lancekeep.application.catalog import Catalog, directory_of
from lancekeep.application.upkeep.directory import NoDirectory
from lancekeep.config import public_url
from lancekeep.domain.errors import LancekeepError
from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.commands import WRONG, one_line
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, stores_if_named
from lancekeep.entrypoints.cli.output import Column, Output, output
from lancekeep.entrypoints.cli.upkeep import mode
from lancekeep.ports.object_store import StorageTime

_DRIVERS = {
    "s3": "boto3",
    "redis": "redis",
    "postgres": "psycopg",
    "spark": "pyspark",
    "server": "starlette",
    "tracing": "opentelemetry.sdk",
    "query": "duckdb",
    "stats": "datasketches",
}
"""A module of each extra."""
_SKEW = 60
"""The seconds by which the clocks of this machine and the storage may differ."""


@attrs.frozen
class _Check:
    """One line of the report; ``failed`` decides about the exit code."""

    check: str
    result: str
    advice: str = ""
    failed: bool = False


@command()
@output
@mode
@stores_if_named
@click.pass_context
def doctor(context: click.Context, chosen: Stores | None, mode: str | None, out: Output) -> None:
    """Check the versions, extras and stores of this machine.

    Opens CATALOG, compares the clock of this machine with the times in the storage's replies, and changes nothing.
    Without a CATALOG, checks this machine only. Exit code 1: a check failed.
    """
    functions: PublicFunctions = context.obj
    checks = [*_versions(), *_extras(), _java(), *_catalog(functions, chosen, mode)]
    rows = [{"check": each.check, "result": each.result, "advice": each.advice} for each in checks]
    out.rows((Column("check"), Column("result"), Column("advice")), rows)
    if any(each.failed for each in checks):
        context.exit(WRONG)


def _versions() -> Iterator[_Check]:
    yield _Check("python", platform.python_version())
    for package in ("lancekeep", "pylance", "pyarrow", "lance-namespace"):
        yield _Check(package, version(package))


def _extras() -> Iterator[_Check]:
    for extra, module in _DRIVERS.items():
        package = module.partition(".")[0]
        if find_spec(package) is None:
            yield _Check(f"extra {extra}", "not installed", f"pip install 'lancekeep[{extra}]'")
        else:
            yield _Check(f"extra {extra}", _version_of(package))


def _version_of(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return "installed"


def _java() -> _Check:
    program = shutil.which("java")
    if program is None:
        return _Check("java", "not found", "Spark needs Java 17 or newer")
    done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60, check=False)
    found = re.search(r'version "(\d+)', done.stderr + done.stdout)
    if found is None or int(found[1]) < 17:
        return _Check("java", found[1] if found else "unknown", "Spark needs Java 17 or newer")
    return _Check("java", found[1])


def _catalog(functions: PublicFunctions, chosen: Stores | None, mode: str | None) -> Iterator[_Check]:
    if chosen is None:
        yield _Check("catalog", "none is named", "Name a CATALOG, or configure one: lancekeep config init")
        return
    try:
        with chosen.catalog(functions, mode=mode) as catalog:
            yield _Check("catalog", f"{catalog.root_uri} opens")
            yield _clock(catalog)
    except LancekeepError as error:
        yield _Check("catalog", f"{public_url(chosen.root)} does not open", one_line(str(error)), failed=True)


def _clock(catalog: Catalog) -> _Check:
    """Compare the clock of this machine with the clock of the storage.

    The replies to a listing state the time, so nothing is written.
    """
    before = datetime.now(UTC)
    with suppress(NoDirectory), StorageTime() as answered:
        parts = directory_of(catalog)
        next(parts.commits.objects.list(parts.places.prefix), None)
    after = datetime.now(UTC)
    if answered.last is None:
        return _Check("clock", "not compared", "The storage states no time in its replies.")
    return clock_check(before, answered.last, after)


def clock_check(before: datetime, answered: datetime, after: datetime) -> _Check:
    """Judge the time in a reply, which states whole seconds.

    Args:
        before: The time of this machine before the request.
        answered: The time in the reply.
        after: The time of this machine after the reply.
    """
    ahead = max((before - answered - timedelta(seconds=1)).total_seconds(), 0.0)
    behind = max((answered - after).total_seconds(), 0.0)
    skew = max(ahead, behind)
    if skew == 0:
        return _Check("clock", "agrees with the storage")
    found = f"{skew:.0f} s {'ahead of' if ahead else 'behind'} the storage"
    if skew < _SKEW:
        return _Check("clock", found)
    return _Check(
        "clock", found, "Synchronize the clock: S3 refuses requests, and times of versions mislead.", failed=True
    )
