"""Limits of the lists and names that a caller gives in one call.

They are generous for honest use, and keep the time and memory of a call that is not honest small.
"""

from __future__ import annotations

from collections.abc import Sized

from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.identifiers import LONGEST

MOST_ITEMS = 10_000
"""The most columns, expressions, query vectors, ranges or changes in one call."""

MOST_TOGETHER = 1000
"""The most versions or entries of the catalog that one call commits together."""

LONGEST_NAME = 4096
"""The longest name of a column, field or index in bytes. Every later manifest of the table keeps it."""


def require_few(name: str, items: Sized, most: int = MOST_ITEMS) -> None:
    """Check the length of a list or mapping.

    Args:
        name: What a caller calls it, for the message.
        items: The list or mapping.
        most: Its largest length.

    Raises:
        InvalidInput: It is longer.
    """
    if len(items) > most:
        raise InvalidInput(f"{name} has {len(items):,} entries; at most {most:,} are allowed. Use several calls")


def require_short(name: str, text: str, most: int = LONGEST) -> None:
    """Check the length of a name.

    Args:
        name: What it names, for the message.
        text: The name.
        most: Its largest size in bytes, by default the size of an identifier.

    Raises:
        InvalidInput: It is longer.
    """
    size = len(text.encode(errors="replace"))
    if size > most:
        raise InvalidInput(f"{name} {text[:60]!r}… has {size:,} bytes; at most {most:,} are allowed")
