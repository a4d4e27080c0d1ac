"""The pages of the reference name everything that they are about."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import lancekeep
from lancekeep.domain import errors
from lancekeep.domain.commit_token import CommitToken, CommitUnknown, StagedManifest
from lancekeep.entrypoints.cli.commands import Failed
from lancekeep.entrypoints.rest.errors import Problem

DOCS = Path(__file__).parents[2] / "docs"
SOURCE = DOCS.with_name("src")
PUBLIC = [getattr(lancekeep, name) for name in lancekeep.__all__]
ERRORS = [each for each in PUBLIC if isinstance(each, type) and issubclass(each, lancekeep.LancekeepError)]
ABSTRACT = {errors.LancekeepError, errors.NotFound, errors.AlreadyExists, errors.Retryable}
ONLY_SPARK = {errors.ViewNotFound, errors.ViewAlreadyExists}
"""Raised by statements about views of SQL, which neither commands nor servers offer."""


def rows(page: str, header: str) -> Iterator[list[str]]:
    """Yield the cells of the rows of a table."""
    table = (DOCS / page).read_text().partition(header)[2].partition("\n\n")[0]
    for line in table.splitlines()[2:]:
        yield [cell.strip() for cell in line.strip("|").split("|")]


def test_page_about_errors_names_each_error_once() -> None:
    named = [cells[0].strip("`") for cells in rows("errors.md", "| error | raised when |")]
    assert sorted(named) == sorted(error.__name__ for error in ERRORS if error is not lancekeep.LancekeepError)


def test_page_about_errors_names_each_warning() -> None:
    named = [cells[0].strip("`") for cells in rows("errors.md", "| warning |")]
    warnings = [each for each in PUBLIC if isinstance(each, type) and issubclass(each, Warning)]
    assert sorted(named) == sorted(each.__name__ for each in warnings)


def made(kind: type[errors.LancekeepError]) -> errors.LancekeepError:
    if kind is CommitUnknown:
        return CommitUnknown("message", CommitToken(StagedManifest("file:///t", 1, "p.manifest-1", 1, begins=True)))
    return kind("message")


@pytest.mark.parametrize(
    "kind", [each for each in ERRORS if each not in ABSTRACT | ONLY_SPARK], ids=lambda kind: kind.__name__
)
def test_page_about_errors_has_the_codes_of_commands_and_servers(kind: type[errors.LancekeepError]) -> None:
    families = {cells[0].strip("`"): cells[1:] for cells in rows("errors.md", "| family |")}
    [family] = (families[base.__name__] for base in kind.__mro__ if base.__name__ in families)
    codes, statuses = (set(map(int, re.findall(r"\d+", cell))) for cell in family[1:])
    error = made(kind)
    assert Failed(error).exit_code in codes
    assert Problem.of(error).status in statuses


def test_properties_are_those_of_the_source() -> None:
    source = "\n".join(path.read_text() for path in SOURCE.rglob("*.py"))
    named = set(re.findall(r"`lancekeep([.:][\w.]+?)(?:\.NAME)?`", (DOCS / "properties.md").read_text()))
    assert len(named) > 10
    for name in named:
        assert f'"lancekeep{name}' in source or f"{{OWN_PROPERTIES}}{name[1:]}" in source, name
