"""Limits of SQL expressions.

The engine plans an expression by recursion. A chain of operators that is too long exhausts its stack, which ends the
process. Chains of ``AND`` and ``OR`` may be longer than others, and lists are safe. Measured with pylance 14: 20,000
conditions joined by ``AND`` are planned, and 50,000 end the process. 25,000 expressions of a list are planned in a
second. Functions such as ``repeat`` and ``lpad`` can exhaust the memory.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import attrs

from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.expression_growth import COLUMN, size_of

MOST_PARTS = 200
"""The most names, values and operators of one chain; the engine takes about four times as many."""

MOST_JOINED = 10_000
"""The most ``AND`` and ``OR`` of an expression."""

MOST_CHARACTERS = 4 << 20
"""The most characters of an expression."""

MOST_COMMAS = 100_000
"""The most commas of an expression, which separate the values of its lists."""

MOST_SIZE = 200 * COLUMN
"""The largest size of the values of expressions; see `size_of`."""

_TOKEN = re.compile(r"""'(?:[^']|'')*'|"[^"]*"|`[^`]*`|\w+|::|\|\||/\*|--|[<>=!]+|\S""")
_MARKS = frozenset({"/*", "--", "$", "#", "\\"})
"""Tokens that begin comments or quotes in some dialects, which may hide what follows from `_TOKEN`."""
_ESCAPED = re.compile(r"\w'[^']*\\")
"""A backslash in a text with a prefix, which may not end where `_TOKEN` ends it."""
_EACH = re.compile(r"\w+|[^\w\s]")
_OPEN, _CLOSE = frozenset({"(", "[", "{", "case"}), frozenset({")", "]", "}", "end"})
_NEXT = frozenset({"or", "and", ",", "when", "then", "else"})


@attrs.define
class _Level:
    """The expression between two parentheses: its parts, and the largest depth of an expression inside and before."""

    parts: int = 0
    inside: int = 0
    before: int = 0
    between: int = 0

    @property
    def depth(self) -> int:
        return max(self.before, self.parts + self.inside)

    def end_chain(self) -> None:
        self.before, self.parts, self.inside = self.depth, 0, 0


def require_bounded(*expressions: str | None) -> None:
    """Check that the engine can plan and compute expressions.

    None is no expression.

    Raises:
        InvalidInput: An expression or a chain in it is too long, or the values may be too large for the memory.
    """
    size = 0
    for expression in expressions:
        if expression is None:
            continue
        _require_fewer(expression, len(expression), MOST_CHARACTERS, "characters")
        tokens = [token.lower() for token in _TOKEN.findall(expression)]
        _require_fewer(expression, tokens.count(","), MOST_COMMAS, "commas")
        _require_fewer(expression, tokens.count("and") + tokens.count("or"), MOST_JOINED, "AND and OR")
        depth = _depth(expression, tokens)
        if depth > MOST_PARTS:
            raise InvalidInput(
                f"the expression {expression[:60]!r}… has a chain of {depth:,} names, values and operators; at "
                f"most {MOST_PARTS} are allowed. Use a list such as x IN (1, 2), or compute the value in a column"
            )
        size += size_of(expression)
    if size > MOST_SIZE:
        raise InvalidInput(
            f"the value of {_longest(expressions)[:60]!r}… may be more than {MOST_SIZE // COLUMN} times as large as "
            "the columns that it reads, or longer than 10,000 characters. Use smaller numbers and constants, or "
            "compute the value in a column"
        )


def _require_fewer(expression: str, count: int, most: int, name: str) -> None:
    if count > most:
        raise InvalidInput(
            f"the expression {expression[:60]!r}… has {count:,} {name}; at most {most:,} are allowed. Use a list such "
            "as x IN (1, 2), or several requests"
        )


def _longest(expressions: Sequence[str | None]) -> str:
    return max((each or "" for each in expressions), key=len)


def _depth(expression: str, tokens: Sequence[str]) -> int:
    if not _MARKS.isdisjoint(tokens) or _ESCAPED.search(expression):
        return len(_EACH.findall(expression))
    if len(tokens) <= MOST_PARTS:
        return len(tokens)
    levels = [_Level()]
    for token in tokens:
        level = levels[-1]
        if token in _OPEN:
            level.parts += 1
            levels.append(_Level())
        elif token in _CLOSE and len(levels) > 1:
            inside = levels.pop().depth
            levels[-1].inside = max(levels[-1].inside, inside)
        elif token == "and" and level.between:
            level.between -= 1
        elif token in _NEXT:
            level.end_chain()
        else:
            level.parts += 1
            level.between += token == "between"
    while len(levels) > 1:
        inside = levels.pop().depth
        levels[-1].inside = max(levels[-1].inside, inside)
    return levels[0].depth
