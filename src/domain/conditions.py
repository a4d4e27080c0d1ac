"""SQL of callers who may read a part of a table.

The engine reads an expression generously: it ignores what follows a complete one, finds columns regardless of case, and
computes parts of a condition for rows that other parts exclude, so an error shows what such rows hold. Here an
expression is cut into tokens and written again: each name between backticks, as the schema spells it, and nothing else
that could name a column.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple

import attrs

from lancekeep.domain.column_names import quoted, unquoted
from lancekeep.domain.errors import ColumnNotFound, InvalidInput
from lancekeep.domain.expression_growth import FUNCTIONS, growing_functions
from lancekeep.domain.typed_constants import ColumnType, Constant, typed

MOST_CHARACTERS: Final = 100_000
"""The most characters of an expression."""

DEEPEST: Final = 50
"""The most levels of parentheses of a condition."""

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+)
    |(?P<binary>[xX]'[0-9a-fA-F]*')
    |(?P<text>'(?:[^'\\\0]|'')*')
    |(?P<quoted>`(?:[^`\\\0]|``)+`)
    |(?P<number>(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![\w.]))
    |(?P<word>[^\W\d]\w*)
    |(?P<mark><=>|<>|!=|<=|>=|==|\|\||::|[-=<>+*/%(),.\[\]])""",
    re.VERBOSE,
)
_COMMENTS = ("--", "/*")

_COMPARISONS: Final = frozenset(("=", "==", "<>", "!=", "<", "<=", ">", ">="))
_RESERVED: Final = frozenset(("and", "or", "not", "in", "is", "null", "like", "ilike", "between", "true", "false"))
"""Words of conditions that are no names unless they are between backticks."""
_OPERATORS: Final = _COMPARISONS | {"<=>", "||", "+", "-", "*", "/", "%"}
_BETWEEN_VALUES: Final = frozenset(("and", "or", "like", "ilike", "between", "escape", "when", "then", "else"))
"""Words that stand between two values, where the engine expects no name."""
_MEMBERSHIPS: Final = frozenset(("array_has", "array_contains"))
_TYPED: Final = frozenset(("date", "timestamp", "time", "interval"))
"""Words that make a constant of the text that follows."""
_TYPES: Final = frozenset(
    (
        *("bigint", "binary", "boolean", "date", "decimal", "double", "float", "int", "integer", "numeric", "real"),
        *("smallint", "string", "text", "time", "timestamp", "tinyint", "varchar"),
    )
)


_CASTS: Final = frozenset(("cast", "try_cast"))
_CONDITION: Final = (
    "with rights on some rows, a condition compares columns with constants, by =, <>, <, <=, >, >=, IN, BETWEEN, LIKE, "
    "IS NULL, array_has, AND, OR and NOT. Compute other values in a column"
)
_EXPRESSION: Final = (
    "with rights on some columns, an expression has names, constants, operators, CASE, CAST and functions. Write a "
    "name that is a keyword between backticks"
)


class Token(NamedTuple):
    """A token of an expression.

    Attributes:
        kind: ``text``, ``binary``, ``quoted``, ``number``, ``word``, ``mark``, or empty at the end.
        text: The token.
    """

    kind: str
    text: str

    @property
    def word(self) -> str:
        """The word in lower case; empty for any other token."""
        return self.text.lower() if self.kind == "word" else ""

    @property
    def is_name(self) -> bool:
        """Whether the token may name a column."""
        return self.kind in ("word", "quoted")


_END = Token("", "")


@attrs.frozen
class Condition:
    """A condition that compares columns with constants.

    If the constants have the kinds of the columns, no value makes it fail.

    Attributes:
        text: The condition with quoted names.
        paths: The columns that it names.
        constants: The constants that it compares columns with.
    """

    text: str
    paths: frozenset[tuple[str, ...]]
    constants: tuple[Constant, ...] = ()
    _template: str = attrs.field(default="", eq=False, repr=False)

    def unfit(self, types: Mapping[tuple[str, ...], ColumnType]) -> Constant | None:
        """Return a constant that its column cannot have; None if all fit.

        Args:
            types: The types of the columns that the condition names.
        """
        return next((each for each in self.constants if typed(each, types[each.path]) is None), None)

    def written(self, types: Mapping[tuple[str, ...], ColumnType]) -> str:
        """Return SQL that is true where the condition is true, and nowhere else.

        Args:
            types: The types of the columns that the condition names. All constants fit.
        """
        return _filled(self._template, [typed(each, types[each.path]) or "" for each in self.constants])


def require_path(path: tuple[str, ...], paths: Collection[tuple[str, ...]]) -> None:
    """Refuse a column that a caller may not read, as one that does not exist.

    Raises:
        ColumnNotFound: The path is not among the paths.
    """
    if path not in paths:
        raise ColumnNotFound(
            f"the table has no column {'.'.join(path)[:100]!r} that you may read; describe the table for its columns"
        )


def path_of(text: str) -> tuple[str, ...]:
    """Return a path such as ``a.b`` as its names.

    Raises:
        ColumnNotFound: The text is no path.
    """
    try:
        reader = _Reader(_tokens(text))
        path = reader.path()
        reader.require_end()
    except InvalidInput as error:
        raise ColumnNotFound(f"{text[:100]!r} is no path of a column that you may read: name a column") from error
    return path


def condition_of(text: str) -> Condition:
    """Return a condition that compares columns with constants.

    It consists of comparisons, ``IN``, ``BETWEEN``, ``LIKE``, ``IS NULL``, ``AND``, ``OR``, ``NOT`` and parentheses.

    Raises:
        InvalidInput: The text is no such condition.
    """
    reader = _Reader(_tokens(text))
    found = reader.disjunction(0)
    reader.require_end()
    constants = tuple(reader.constants)
    shown = _filled(found.text, [f"{_KEYWORDS.get(each.kind, '')}{each.text}" for each in constants])
    return Condition(shown, frozenset(reader.paths), constants, found.holds)


def expression_of(text: str, paths: Collection[tuple[str, ...]]) -> str:
    """Return an expression that names readable columns alone.

    Args:
        text: The expression.
        paths: The paths that it may name.

    Raises:
        InvalidInput: The expression has something that is neither a name, a constant, an operator nor a function.
        ColumnNotFound: It names a column that is not readable.
    """
    reader = _Reader(_tokens(text))
    found = reader.expression()
    for path in reader.paths:
        require_path(path, paths)
    return found


_KEYWORDS: Final = {"date": "DATE ", "timestamp": "TIMESTAMP ", "time": "TIME ", "interval": "INTERVAL "}
_PLACE = re.compile("\0([0-9]+)\0")
"""Where a constant is in the text of a condition."""


def _filled(template: str, constants: Sequence[str]) -> str:
    return _PLACE.sub(lambda match: constants[int(match[1])], template)


def _function(name: str) -> str:
    if name not in _CASTS and name not in FUNCTIONS and name not in growing_functions():
        raise InvalidInput(f"{name[:60]!r} is no function that expressions may call; compute the value in a column")
    return name


def _tokens(text: str) -> list[Token]:
    if len(text) > MOST_CHARACTERS:
        raise InvalidInput(f"the expression has {len(text):,} characters; at most {MOST_CHARACTERS:,} are allowed")
    found: list[Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or text.startswith(_COMMENTS, at):
            raise InvalidInput(
                f"an expression of a caller with restricted rights cannot have {text[at : at + 2]!r} at character "
                f"{at + 1}: write texts between single quotes without backslashes, names between backticks, and no "
                "comments"
            )
        at = match.end()
        kind = str(match.lastgroup)
        if kind != "space":
            found.append(Token(kind, match.group()))
    return found


class _Part(NamedTuple):
    """A part of a condition.

    The engine takes some parts for true or false which are null. It takes ``c IN (1) AND c IN (2)`` for false, so its
    negation selects nulls. So no negation is around two comparisons, and each comparison has its column not null.

    Attributes:
        text: The part as it was given.
        holds: SQL that is true where the part is true, and nowhere else.
        fails: SQL that is true where the part is false, and nowhere else.
    """

    text: str
    holds: str
    fails: str


def _comparing(path: tuple[str, ...], text: str) -> _Part:
    known = f"{quoted(*path)} IS NOT NULL AND"
    return _Part(f"({text})", f"({known} ({text}))", f"({known} NOT ({text}))")


class _Reader:
    """Reads tokens from left to right."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self.paths: set[tuple[str, ...]] = set()
        self.constants: list[Constant] = []

    @property
    def next(self) -> Token:
        return self._tokens[self._at] if self._at < len(self._tokens) else _END

    @property
    def after(self) -> Token:
        return self._tokens[self._at + 1] if self._at + 1 < len(self._tokens) else _END

    def take(self) -> Token:
        found = self.next
        self._at += 1
        return found

    def path(self) -> tuple[str, ...]:
        names = [self._name()]
        while self.next.text == ".":
            self.take()
            names.append(self._name())
        return tuple(names)

    def require_end(self) -> None:
        if self.next.kind:
            raise self._refusal()

    def expression(self) -> str:
        """Read an expression with functions; it is written again, token by token.

        A word is a name wherever the engine expects a value, so no column can have the name of a keyword there.
        """
        found: list[str] = []
        groups: list[str] = []
        ended = False
        while self.next.kind:
            ended = self._operator(found, groups) if ended else self._operand(found, groups)
        if groups or not ended:
            raise self._refusal(_EXPRESSION)
        return " ".join(found)

    def _operand(self, found: list[str], groups: list[str]) -> bool:
        """Read a part of a value; return whether the value may end there."""
        token, after = self.next, self.after
        if token.kind in ("text", "number", "binary"):
            found.append(self.take().text)
            return True
        if token.word in ("null", "true", "false"):
            found.append(self._one_of(token.word))
            return True
        if token.word in _TYPED and after.kind == "text":
            found += (self._one_of(token.word), self.take().text)
            return True
        if token.word in ("not", "case"):
            found.append(self._one_of(token.word))
            if token.word == "case" and self.next.word == "when":
                found.append(self._one_of("when"))
            return False
        if token.text in ("-", "+"):
            found.append(self.take().text)
            return False
        if token.kind == "word" and after.text == "(":
            found.append(_function(self.take().word))
            return self._open(found, groups)
        if token.is_name:
            path = self.path()
            self.paths.add(path)
            found.append(quoted(*path))
            return True
        if token.text in ("(", "["):
            return self._open(found, groups)
        raise self._refusal(_EXPRESSION)

    def _operator(self, found: list[str], groups: list[str]) -> bool:
        """Read what follows a value; return whether a value may end there."""
        token = self.next
        if token.text in (")", "]") and groups and groups.pop() == token.text:
            found.append(self.take().text)
            return True
        if token.text == "[":
            return self._open(found, groups)
        if token.text in _OPERATORS or (token.text == "," and groups):
            found.append(self.take().text)
            return False
        if token.text == "::" or (token.word == "as" and groups):
            found.append(self.take().text.upper())
            return self._type(found)
        if token.word in _BETWEEN_VALUES:
            found.append(self._one_of(token.word))
            return False
        if token.word == "end" or (token.word == "not" and self.after.word in ("in", "like", "ilike", "between")):
            found.append(self._one_of(token.word))
            return True
        if token.word == "in" and self.after.text == "(":
            found.append(self._one_of("in"))
            return self._open(found, groups)
        if token.word == "is":
            found.append(f"{self._one_of('is')}{self._word_if('not')}")
            if self.next.word == "distinct":
                found += (self._one_of("distinct"), self._one_of("from"))
                return False
            found.append(self._one_of("null", "true", "false"))
            return True
        raise self._refusal(_EXPRESSION)

    def _open(self, found: list[str], groups: list[str]) -> bool:
        """Read the beginning of a group; return whether it is empty."""
        opening = self.take().text
        closing = ")" if opening == "(" else "]"
        found.append(opening)
        if self.next.text == closing:
            found.append(self.take().text)
            return True
        groups.append(closing)
        return False

    def _type(self, found: list[str]) -> bool:
        found.append(self._one_of(*_TYPES))
        if self.next.text == "(":
            found.append(self.take().text)
            while self.next.kind == "number" or self.next.text == ",":
                found.append(self.take().text)
            self._require(")")
            found.append(")")
        return True

    def disjunction(self, depth: int) -> _Part:
        if depth > DEEPEST:
            raise InvalidInput(f"the condition has more than {DEEPEST} levels of parentheses; use fewer")
        return self._chain("or", lambda: self._chain("and", lambda: self._negation(depth)))

    def _chain(self, word: str, part: Callable[[], _Part]) -> _Part:
        found = [part()]
        while self.next.word == word:
            self.take()
            found.append(part())
        if len(found) == 1:
            return found[0]
        both, other = (" AND ", " OR ") if word == "and" else (" OR ", " AND ")
        return _Part(
            both.join(each.text for each in found),
            f"({both.join(each.holds for each in found)})",
            f"({other.join(each.fails for each in found)})",
        )

    def _negation(self, depth: int) -> _Part:
        negations = 0
        while self.next.word == "not":
            self.take()
            negations += 1
        inner = self._predicate(depth)
        return _Part(f"NOT {inner.text}", inner.fails, inner.holds) if negations % 2 else inner

    def _predicate(self, depth: int) -> _Part:
        if self.next.text == "(":
            self.take()
            inner = self.disjunction(depth + 1)
            self._require(")")
            return inner._replace(text=f"({inner.text})")
        if not self._begins_column():
            value, kind = self._constant()
            if self.next.text not in _COMPARISONS:
                raise self._refusal()
            operator, path = self.take().text, self._column()
            return _comparing(path, f"{self._compare(path, value, kind)} {operator} {quoted(*path)}")
        if self.next.word in _MEMBERSHIPS and self.after.text == "(":
            return self._membership()
        path = self._column()
        if self.next.word == "is":
            found = f"({quoted(*path)}{self._state(path)})"  # null of no value
            return _Part(found, found, f"(NOT {found})")
        return _comparing(path, f"{quoted(*path)}{self._comparison(path)}")

    def _membership(self) -> _Part:
        self.take()
        self._require("(")
        path = self._column()
        self._require(",")
        value, kind = self._constant()
        if not kind:
            raise self._refusal()
        self._require(")")
        return _comparing(path, f"array_has({quoted(*path)}, {self._compare(path, value, kind, of_element=True)})")

    def _state(self, path: tuple[str, ...]) -> str:
        self.take()
        negated, value = self._word_if("not"), self._one_of("null", "true", "false")
        if value != "NULL":
            self._compare(path, "", "boolean")
        return f" IS{negated} {value}"

    def _comparison(self, path: tuple[str, ...]) -> str:
        token = self.next
        if token.text in _COMPARISONS:
            self.take()
            return f" {token.text} {self._value(path)}"
        negated = self._word_if("not")
        word = self.next.word
        if word in ("like", "ilike"):
            self.take()
            if self.next.kind != "text":
                raise self._refusal()
            return f"{negated} {word.upper()} {self._compare(path, self.take().text, 'pattern')}"
        if word == "between":
            self.take()
            lower = self._value(path)
            self._one_of("and")
            return f"{negated} BETWEEN {lower} AND {self._value(path)}"
        if word == "in":
            self.take()
            self._require("(")
            values = [self._value(path)]
            while self.next.text == ",":
                self.take()
                values.append(self._value(path))
            self._require(")")
            return f"{negated} IN ({', '.join(values)})"
        if negated:
            raise self._refusal()
        self._compare(path, "", "boolean")
        return ""

    def _value(self, path: tuple[str, ...]) -> str:
        """Read a constant with which a column is compared."""
        return self._compare(path, *self._constant())

    def _compare(self, path: tuple[str, ...], value: str, kind: str, *, of_element: bool = False) -> str:
        """Note that a column is compared with a constant; return the place of the constant in the text."""
        if not kind:
            return value
        self.constants.append(Constant(path, kind, value, of_element))
        return f"\0{len(self.constants) - 1}\0"

    def _constant(self) -> tuple[str, str]:
        """Read a constant; return it without its keyword, with its kind, which is empty for null."""
        token = self.take()
        if token.text == "-" and self.next.kind == "number":
            return f"-{self.take().text}", "number"
        if token.word in _TYPED and self.next.kind == "text":
            return self.take().text, token.word
        if token.word in ("true", "false", "null"):
            return token.word.upper(), "" if token.word == "null" else "boolean"
        if token.kind not in ("text", "number", "binary"):
            self._at -= 1
            raise self._refusal()
        return token.text, token.kind

    def _begins_column(self) -> bool:
        token = self.next
        if token.kind == "quoted":
            return True
        is_constant = token.word in _TYPED and self.after.kind == "text"
        return token.kind == "word" and token.word not in _RESERVED and not is_constant

    def _column(self) -> tuple[str, ...]:
        if not self._begins_column():
            raise self._refusal()
        path = self.path()
        if self.next.text == "(":
            raise self._refusal()
        self.paths.add(path)
        return path

    def _name(self) -> str:
        token = self.take()
        if not token.is_name:
            self._at -= 1
            raise self._refusal()
        return unquoted(token.text)

    def _require(self, mark: str) -> None:
        if self.next.text != mark:
            raise self._refusal()
        self.take()

    def _word_if(self, word: str) -> str:
        if self.next.word != word:
            return ""
        self.take()
        return f" {word.upper()}"

    def _one_of(self, *words: str) -> str:
        if self.next.word not in words:
            raise self._refusal()
        return self.take().word.upper()

    def _refusal(self, advice: str = _CONDITION) -> InvalidInput:
        token = self.next
        place = repr(token.text[:60]) if token.kind else "its end"
        return InvalidInput(f"the expression cannot be read from {place} on: {advice}")
