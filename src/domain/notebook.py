"""Values as HTML for notebooks.

Names, properties and paths are input of others: everything is escaped, controls of the text direction are spelled out,
and the length is bounded.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Set
from html import escape
from itertools import islice
from typing import Any

import attrs

MOST_ITEMS, MOST_CHARACTERS = 20, 200


class Shown:
    """An attrs class that notebooks show as a table of its attributes."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        kind: Any = type(self)
        shown = [each.name for each in attrs.fields(kind) if each.repr]
        return html_table(kind.__name__, ((name, getattr(self, name)) for name in shown))


def html_table(title: str, rows: Iterable[tuple[str, object]]) -> str:
    """Return a table with a row for each name and value."""
    cells = (f"<tr><th>{_text(name)}</th><td>{_value(value)}</td></tr>" for name, value in islice(rows, MOST_ITEMS))
    return f"<table><caption>{_text(title)}</caption>{''.join(cells)}</table>"


def _value(value: object) -> str:
    if isinstance(value, Mapping):
        return _items((f"{_text(name)}: {_text(each)}" for name, each in value.items()), len(value))
    if isinstance(value, list | tuple | Set):
        return _items(map(_text, value), len(value))
    return _text(value)


def _items(items: Iterable[str], count: int) -> str:
    more = [f"and {count - MOST_ITEMS} more"] if count > MOST_ITEMS else []
    return "<br>".join([*islice(items, MOST_ITEMS), *more])


def _text(value: object) -> str:
    text = value if isinstance(value, str) else str(value)
    cut = text[:MOST_CHARACTERS] + "…" if len(text) > MOST_CHARACTERS else text
    return f"<bdi>{escape(''.join(map(visible, cut)))}</bdi>"


def visible(character: str) -> str:
    """Return a character, or its escape sequence if it is invisible.

    Controls, format characters and surrogates are invisible.
    """
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp"):
        return character.encode("unicode_escape", "surrogatepass").decode()
    return character
