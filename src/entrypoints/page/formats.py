"""Values as text for people, as filters of the templates.

Templates escape every value. Besides, controls of the text direction, other invisible characters and parts of invalid
UTF-8 appear as escape sequences, and long values are cut.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from markupsafe import Markup

from lancekeep.domain.notebook import visible
from lancekeep.entrypoints.cli.cells import cell, size

LONGEST = 300
"""The characters of a value that a page shows; a note counts the others."""


def text(value: object, most: int = LONGEST) -> str:
    """Return a value as text without invisible characters, cut to a length."""
    whole = value if isinstance(value, str) else str(value)
    if len(whole) <= most:
        return "".join(map(visible, whole))
    return f"{''.join(map(visible, whole[:most]))}… ({len(whole):,} characters)"


def name(value: object) -> Markup:
    """Return a name, isolated from the text direction around it."""
    return Markup("<bdi>{}</bdi>").format(text(value))


def value(given: Any) -> str:
    """Return a value of a row: nested values and vectors folded, bytes as their size."""
    return text(cell(given), LONGEST + 50)  # `cell` has cut long values


def number(given: int | float) -> str:
    """Return a number with separators of thousands."""
    return f"{given:,}"


def moment(given: datetime) -> Markup:
    """Return a time in UTC, in seconds."""
    at = given.astimezone(UTC)
    return Markup('<time datetime="{}">{} UTC</time>').format(at.isoformat(), at.strftime("%Y-%m-%d %H:%M:%S"))


def plural(count: int, noun: str, nouns: str | None = None) -> str:
    """Return a count with its noun: ``1 row``, ``2 rows``, ``3 branches``."""
    return f"{count:,} {noun if count == 1 else nouns or noun + 's'}"


def span(given: timedelta) -> str:
    """Return a time span in its two largest units: ``3 days 4 hours``."""
    parts: list[str] = []
    seconds = int(given.total_seconds())
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1)):
        count, seconds = divmod(seconds, length)
        if count or parts:
            parts.append(plural(count, unit))
    return " ".join(parts[:2]) or "less than a second"


def command(name: str, /, *words: str, **options: str | bool) -> str:
    """Return a command line of ``lancekeep`` for a shell.

    Args:
        name: The command.
        words: Its arguments. One that begins with a dash stays an argument.
        options: Its options with their values, with underscores for dashes. True stands for an option without a value.
    """
    named = ((name.replace("_", "-"), value) for name, value in options.items())
    given = [f"--{option}" if value is True else f"--{option}={value}" for option, value in named]
    dashes = ["--"] if any(word.startswith("-") for word in words) else []
    return shlex.join(["lancekeep", name, *given, *dashes, *words])


FILTERS: Mapping[str, Any] = {
    "text": text,
    "name": name,
    "value": value,
    "number": number,
    "size": size,
    "moment": moment,
    "plural": plural,
    "span": span,
}
