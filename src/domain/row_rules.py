"""CHECK constraints, generated columns and the lengths of texts.

Every writer of the catalog enforces them.

A rule is an expression in a small part of SQL that each writer evaluates as Spark does (with ANSI mode on):

- columns and fields of structs, whole numbers, decimals, texts without quotes or backslashes, ``DATE '2026-11-23'``,
  ``TRUE``, ``FALSE`` and ``NULL``;
- ``=``, ``<>``, ``!=``, ``<``, ``<=``, ``>``, ``>=``, ``BETWEEN``, ``IN`` and ``IS [NOT] NULL``;
- ``AND``, ``OR``, ``NOT``, ``+``, ``-``, ``*``, ``length`` and parentheses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import NoReturn

import attrs

from lancekeep.domain.column_names import quoted, unquoted
from lancekeep.domain.errors import InvalidInput

CONSTRAINT = "constraint."
"""The property ``constraint.NAME`` of a table is a condition that no row may violate. NULL passes."""
GENERATED = "generated."
"""The property ``generated.COLUMN`` of a table is the expression of a generated column."""
CHAR, VARCHAR = LENGTHS = ("char.", "varchar.")
"""The properties ``char.COLUMN`` and ``varchar.COLUMN`` of a table are the exact, and the largest, length of a text."""
DEFAULT = "default."
"""The property ``default.COLUMN`` of a table is the value that SQL gives a column that an INSERT leaves out."""


@attrs.frozen
class Column:
    """A column, or a field of a struct."""

    path: tuple[str, ...]


@attrs.frozen
class Date:
    """A date as text, year, month and day."""

    text: str


@attrs.frozen
class Literal:
    """A constant; None is NULL."""

    value: bool | int | Decimal | str | Date | None


@attrs.frozen
class Call:
    """An operator or a function in upper case, with its operands."""

    name: str
    operands: tuple[Expression, ...]


Expression = Column | Literal | Call


@attrs.frozen
class Rule:
    """One rule of the rows of a table.

    Attributes:
        name: the property that stores the rule.
        text: its expression as text.
        expression: its expression.
        column: the generated column; None for a constraint or a length.
    """

    name: str
    text: str
    expression: Expression
    column: str | None

    @property
    def columns(self) -> frozenset[str]:
        """The columns of the table that the rule reads."""
        own = () if self.column is None else (self.column,)
        return frozenset((*(column.path[0] for column in _columns(self.expression)), *own))


Rules = tuple[Rule, ...]
_RULES = (CONSTRAINT, GENERATED, *LENGTHS)


def rules_of(properties: Mapping[str, str]) -> Rules:
    """Return the rules that the properties of a table state.

    Raises:
        InvalidInput: a rule cannot be evaluated.
    """
    stated = ((name, text) for name, text in properties.items() if name.startswith(_RULES))
    return tuple(_rule(name, text) for name, text in sorted(stated))


def columns_of(rules: Rules) -> list[str]:
    """Return the columns that rules read, sorted."""
    return sorted(frozenset().union(*(rule.columns for rule in rules)))


@lru_cache(maxsize=256)
def _rule(name: str, text: str) -> Rule:
    prefix = next(prefix for prefix in _RULES if name.startswith(prefix))
    if name == prefix:
        raise InvalidInput(f"the property {name!r} needs a name after the dot")
    if prefix in LENGTHS:
        text = _length(name, text, prefix)
    column = name.removeprefix(GENERATED) if prefix == GENERATED else None
    return Rule(name, text, _Parser(name, text).whole(), column)


def _length(name: str, text: str, prefix: str) -> str:
    """Return the rule that a length states."""
    column = name.removeprefix(prefix)
    if not re.fullmatch(r"[1-9]\d{0,8}", text, re.ASCII):
        raise InvalidInput(f"{name} = {text!r}: expected a number of characters from 1 to 999999999")
    return f"length({quoted(column)}) {'=' if prefix == CHAR else '<='} {text}"


def _columns(expression: Expression) -> Iterator[Column]:
    if isinstance(expression, Column):
        yield expression
    elif isinstance(expression, Call):
        for operand in expression.operands:
            yield from _columns(operand)


_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+\.\d*|\.\d+|\d+)(?![\w.])|(?P<text>'[^'\\]*'(?!'))|(?P<quoted>`(?:[^`]|``)+`)|(?P<word>[A-Za-z_]\w*)"
    r"|(?P<sign><>|!=|<=>?|>=|==|[-+*=<>(),.]))",
    re.ASCII,
)
_COMPARISONS = {"=": "=", "==": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">=", "<=>": "<=>"}
_FUNCTIONS = {"LENGTH": "LENGTH", "CHAR_LENGTH": "LENGTH"}
_KEYWORDS = {"AND", "OR", "NOT", "IS", "IN", "BETWEEN", "NULL", "TRUE", "FALSE"}
_DEEPEST = 50


@attrs.define
class _Parser:
    """Parses an expression by recursive descent."""

    name: str
    text: str
    tokens: list[tuple[str, str]] = attrs.field(factory=list)
    at: int = 0
    depth: int = 0

    def whole(self) -> Expression:
        place, text = 0, self.text.rstrip()
        while place < len(text):
            found = _TOKEN.match(text, place)
            if found is None:
                self._refuse(text[place:].strip()[:20])
            self.tokens.append((str(found.lastgroup), found[str(found.lastgroup)]))
            place = found.end()
        expression = self._disjunction()
        if self.at < len(self.tokens):
            self._refuse(self.tokens[self.at][1])
        return expression

    def _disjunction(self) -> Expression:
        self.depth += 1
        if self.depth > _DEEPEST:
            self._refuse("more nested parentheses")
        left = self._conjunction()
        while self._word("OR"):
            left = Call("OR", (left, self._conjunction()))
        self.depth -= 1
        return left

    def _conjunction(self) -> Expression:
        left = self._negation()
        while self._word("AND"):
            left = Call("AND", (left, self._negation()))
        return left

    def _negation(self) -> Expression:
        turned = False
        while self._word("NOT"):
            turned = not turned
        condition = self._condition()
        return Call("NOT", (condition,)) if turned else condition

    def _condition(self) -> Expression:
        left = self._sum()
        kind, text = self._next()
        if kind == "sign" and text in _COMPARISONS:
            self.at += 1
            return Call(_COMPARISONS[text], (left, self._sum()))
        if self._word("IS"):
            turned = self._word("NOT")
            self._require_word("NULL")
            return _turned(Call("IS NULL", (left,)), turned)
        turned = self._word("NOT")
        if self._word("BETWEEN"):
            low = self._sum()
            self._require_word("AND")
            return _turned(Call("AND", (Call(">=", (left, low)), Call("<=", (left, self._sum())))), turned)
        if self._word("IN"):
            self._require_sign("(")
            found: Expression = Call("=", (left, self._sum()))
            while self._sign(","):
                found = Call("OR", (found, Call("=", (left, self._sum()))))
            self._require_sign(")")
            return _turned(found, turned)
        if turned:
            self._refuse("NOT")
        return left

    def _sum(self) -> Expression:
        left = self._product()
        while self._next()[1] in ("+", "-"):
            name = self._take()
            left = Call(name, (left, self._product()))
        return left

    def _product(self) -> Expression:
        left = self._operand()
        while self._sign("*"):
            left = Call("*", (left, self._operand()))
        return left

    def _operand(self) -> Expression:
        if self._sign("-"):
            kind, text = self._next()
            if kind != "number":
                self._refuse(f"-{text}")
            return _number(f"-{self._take()}")
        if self._sign("("):
            inner = self._disjunction()
            self._require_sign(")")
            return inner
        kind, text = self._next()
        if kind == "number":
            return _number(self._take())
        if kind == "text":
            return Literal(self._take()[1:-1])
        if kind == "word" and text.upper() in ("NULL", "TRUE", "FALSE"):
            return Literal({"NULL": None, "TRUE": True, "FALSE": False}[self._take().upper()])
        if kind == "word" and text.upper() == "DATE" and self._after()[0] == "text":
            self.at += 1
            return self._date(self._take()[1:-1])
        if kind == "word" and self._after()[1] == "(":
            return self._function()
        if kind not in ("quoted", "word") or text.upper() in _KEYWORDS:
            self._refuse(text or "the end")
        return self._column()

    def _function(self) -> Expression:
        function = _FUNCTIONS.get(self._next()[1].upper())
        if function is None:
            self._refuse(f"the function {self._next()[1]}")
        self.at += 2
        call = Call(function, (self._sum(),))
        self._require_sign(")")
        return call

    def _column(self) -> Column:
        path = [unquoted(self._take())]
        while self._sign("."):
            kind, text = self._next()
            if kind not in ("word", "quoted"):
                self._refuse(text)
            path.append(unquoted(self._take()))
        return Column(tuple(path))

    def _date(self, text: str) -> Literal:
        if not re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])", text, re.ASCII):
            self._refuse(f"DATE '{text}'")
        return Literal(Date(text))

    def _next(self) -> tuple[str, str]:
        return self.tokens[self.at] if self.at < len(self.tokens) else ("", "")

    def _after(self) -> tuple[str, str]:
        return self.tokens[self.at + 1] if self.at + 1 < len(self.tokens) else ("", "")

    def _take(self) -> str:
        self.at += 1
        return self.tokens[self.at - 1][1]

    def _sign(self, sign: str) -> bool:
        found = self._next() == ("sign", sign)
        self.at += found
        return found

    def _word(self, word: str) -> bool:
        kind, text = self._next()
        found = kind == "word" and text.upper() == word
        self.at += found
        return found

    def _require_sign(self, sign: str) -> None:
        if not self._sign(sign):
            self._refuse(self._next()[1] or "the end")

    def _require_word(self, word: str) -> None:
        if not self._word(word):
            self._refuse(self._next()[1] or "the end")

    def _refuse(self, what: str) -> NoReturn:
        raise InvalidInput(
            f"{self.name} = {self.text!r}: not every writer can evaluate it as Spark does, because of {what!r}. Use "
            "columns, constants, comparisons, BETWEEN, IN, IS NULL, AND, OR, NOT, +, -, * and length"
        )


def _turned(condition: Expression, turned: bool) -> Expression:
    return Call("NOT", (condition,)) if turned else condition


def _number(text: str) -> Literal:
    return Literal(Decimal(text) if "." in text else int(text))
