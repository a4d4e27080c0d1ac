"""How much larger than its columns the value of an SQL expression can be.

The engine bounds neither the value of a function nor the memory of an expression, and a process that runs out of memory
ends. Sizes are characters: a column counts as `COLUMN` of them, whatever its values hold, so a bound on the size is a
bound on the growth. A function that is not in the tables here is refused, because its growth is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import attrs

from lancekeep.domain.errors import InvalidInput

COLUMN = 50
"""The size of a column's value."""

_TOKEN = re.compile(r"""'(?:[^']|'')*'|"[^"]*"|`[^`]*`|\w+|::|\|\||->|[<>=!]+|\S""")
_UNCERTAIN = ("\\", "/*", "--", "$", "#")
"""Marks of comments and quotes that may hide what follows from `_TOKEN`."""
_NUMBERS = re.compile("[0-9]+")

_COMPARES = frozenset(
    {
        *("and", "or", "not", "is", "in", "like", "ilike", "between", "similar", "regexp", "rlike"),
        *("=", "==", "<", ">", "<=", ">=", "<>", "!=", "<=>"),
    }
)
_ENDS = _COMPARES | {"when", "then", "else"}
"""Tokens between values of which one is not part of the other."""
_WORDS = frozenset(
    {
        *("any", "all", "some", "as", "cast", "try_cast", "safe_cast", "case", "exists", "interval", "array", "struct"),
        *("bigint", "binary", "boolean", "bytea", "char", "date", "datetime", "decimal", "double", "float", "int"),
        *("integer", "numeric", "real", "smallint", "string", "text", "time", "timestamp", "tinyint", "unsigned"),
        *("varbinary", "varchar", "escape", "extract", "from", "for", "placing", "div", "mod", "xor", "distinct"),
    }
)
"""Words before a parenthesis that are no functions."""


def _names(prefixes: str, names: str) -> frozenset[str]:
    """Return names, with each of the prefixes if there are any."""
    begins = [f"{prefix}_" for prefix in prefixes.split()] or [""]
    return frozenset(f"{begin}{name}" for begin in begins for name in names.split())


FUNCTIONS = _names(
    "",
    """
    abs acos acosh asin asinh atan atan2 atanh cbrt ceil cos cosh cot degrees exp factorial floor gcd isnan iszero
    lcm ln log log10 log2 nanvl pi pow power radians random rand round signum sin sinh sqrt tan tanh trunc coalesce
    greatest ifnull least nullif nvl nvl2 ascii bit_length btrim char_length character_length chr concat contains
    ends_with find_in_set initcap instr left length levenshtein lower ltrim octet_length overlay position reverse
    right rtrim split_part starts_with strpos substr substr_index substring substring_index to_hex translate trim
    upper uuid decode regexp_count regexp_instr regexp_like current_date current_time current_timestamp date_bin
    date_format date_part date_trunc datepart datetrunc from_unixtime make_date make_time now to_char
    to_date to_local_time to_time to_timestamp to_timestamp_micros to_timestamp_millis to_timestamp_nanos
    to_timestamp_seconds to_unixtime today arrays_overlap arrays_zip list_zip cardinality empty flatten make_array
    make_list string_to_array string_to_list named_struct row struct union_extract union_tag element_at map make_map
    map_entries map_extract map_keys map_values digest md5 sha224 sha256 sha384 sha512 arrow_typeof arrow_metadata
    arrow_field get_field version contains_tokens array_normalize cosine_distance inner_product json_array_contains
    json_array_length json_exists json_extract json_extract_with_type json_get json_get_bool json_get_float
    json_get_int json_get_string st_area st_asbinary st_astext st_centroid st_contains st_convexhull st_coveredby
    st_covers st_crosses st_disjoint st_distance st_endpoint st_equals st_geometrytype st_geomfromtext
    st_geomfromwkb st_intersects st_isvalid st_length st_m st_makepoint st_ndims st_npoints st_overlaps st_point
    st_startpoint st_touches st_within st_x st_xmax st_xmin st_y st_ymax st_ymin st_z st_zmax st_zmin geometrytype
    box2d
    array_min
    """,
) | _names(
    "array list",
    """
    any_value append cat concat contains dims distance distinct element empty except extract has has_all has_any indexof
    intersect length max ndims pop_back pop_front position positions prepend push_back push_front remove remove_all
    remove_n reverse slice sort union
    """,
)
"""Functions whose value is at most as large as all of their arguments together."""


class Value(NamedTuple):
    """A value in an expression.

    Attributes:
        size: Its size.
        text: The content of a literal; None if the value is no literal.
        number: A whole number; None if the value is no such literal.
    """

    size: int
    text: str | None = None
    number: int | None = None


def _literal(name: str, values: Sequence[Value], place: int) -> str:
    """Return the text of an argument. Raises `InvalidInput` unless it is a literal."""
    if place >= len(values):
        return ""
    value = values[place]
    text = value.text if value.text is not None else None if value.number is None else str(value.number)
    if text is None:
        raise InvalidInput(
            f"argument {place + 1} of {name} is an expression, so its value may be larger than the memory. Write a "
            "constant, or compute the value in a column"
        )
    return text


def _number(name: str, values: Sequence[Value], place: int) -> int:
    if place < len(values) and values[place].number is None:
        raise InvalidInput(
            f"argument {place + 1} of {name} is no whole number, so its value may be larger than the memory. Write a "
            "number, or compute the value in a column"
        )
    return 0 if place >= len(values) else abs(values[place].number or 0)


def _sum(_: str, values: Sequence[Value]) -> int:
    return sum(each.size for each in values)


def _padded(name: str, values: Sequence[Value]) -> int:
    return _sum(name, values) + _number(name, values, 1)


def _repeated(name: str, values: Sequence[Value]) -> int:
    return _sum(name, values[:1]) * max(1, _number(name, values, 1))


def _resized(name: str, values: Sequence[Value]) -> int:
    return _sum(name, values[:1]) + max(1, _sum(name, values[2:])) * _number(name, values, 1)


def _series(name: str, values: Sequence[Value]) -> int:
    return sum(_number(name, values, place) for place in range(len(values)))


def _joined(name: str, values: Sequence[Value]) -> int:
    return _sum(name, values) + _sum(name, values[:1]) * len(values)


def _replaced(place: int, *others: int) -> Callable[[str, Sequence[Value]], int]:
    def size(name: str, values: Sequence[Value]) -> int:
        most = max(len(_literal(name, values, each)) for each in (place, *others))
        return _sum(name, values) * (1 + most)

    return size


def _matched(name: str, values: Sequence[Value]) -> int:
    return _sum(name, values) * (1 + _literal(name, values, 1).count("("))


def _encoded(name: str, values: Sequence[Value]) -> int:
    return 2 * _sum(name, values)


def _cast(name: str, values: Sequence[Value]) -> int:
    numbers = map(int, _NUMBERS.findall(_literal(name, values, 1)[:1000]))
    return _sum(name, values) + max(numbers, default=0)


_SIZES: dict[str, Callable[[str, Sequence[Value]], int]] = {
    **dict.fromkeys(("lpad", "rpad"), _padded),
    **dict.fromkeys(("repeat", "array_repeat", "list_repeat"), _repeated),
    **dict.fromkeys(("array_resize", "list_resize"), _resized),
    **dict.fromkeys(("range", "generate_series"), _series),
    "concat_ws": _joined,
    **dict.fromkeys(("replace", "regexp_replace"), _replaced(2)),
    **dict.fromkeys(_names("array list", "replace replace_all replace_n"), _replaced(2)),
    **dict.fromkeys(_names("array list", "join to_string"), _replaced(1, 2)),
    "regexp_match": _matched,
    "encode": _encoded,
    **dict.fromkeys(("arrow_cast", "arrow_try_cast"), _cast),
}
"""Functions whose value can be larger than their arguments."""
_HIDDEN = re.compile(rf"\b({'|'.join(_SIZES)})`?\s*[(/#-]", re.IGNORECASE)
"""A call, also with a comment before its parenthesis. Each text is read once, so no text takes long."""


def growing_functions() -> frozenset[str]:
    """Return the functions whose value can be larger than their arguments."""
    return frozenset(_SIZES)


_CALLED = re.compile(r"(\b\w+|`)\s*\(")
_GROWS = re.compile(r"\[|\|\||'[^']{1000}|\"[^\"]{1000}")


def _is_plain(expression: str) -> bool:
    """Return whether an expression only compares and computes numbers."""
    called = all(found[1].lower() in _WORDS or found[1].lower() in _ENDS for found in _CALLED.finditer(expression))
    return called and not _GROWS.search(expression) and not any(mark in expression for mark in _UNCERTAIN)


def size_of(expression: str) -> int:
    """Return the largest size of an expression, beyond the size of one column.

    Raises:
        InvalidInput: A function of the expression has no bound, or is unknown.
    """
    if _is_plain(expression):
        return 0
    if any(mark in expression for mark in _UNCERTAIN) and (found := _HIDDEN.search(expression)):
        raise InvalidInput(
            f"the expression {expression[:60]!r}… calls {found[1].lower()}, and has a comment, '$', '#' or a "
            "backslash, which may hide how large its value is. Leave these out"
        )
    return max(0, _Reader(_TOKEN.findall(expression)).read("", "").size - COLUMN)


@attrs.define
class _Reader:
    """Reads an expression once, from left to right. Its depth is limited before."""

    tokens: Sequence[str]
    at: int = 0

    def read(self, opening: str, name: str) -> Value:
        """Read up to the token that closes a group.

        Args:
            opening: The token that opened it; empty for the whole expression.
            name: The function that is called; empty for a group.
        """
        values: list[Value] = []
        part: list[Value] = []
        largest = 0
        before, ended = "", opening
        while self.at < len(self.tokens):
            token = self.tokens[self.at]
            word = token.lower()
            self.at += 1
            if word in (")", "]", "}", "end"):
                break
            if word in ("(", "[", "{", "case"):
                part.append(self._group(word, before, part))
            elif word == ",":
                values.append(_whole(part, largest, ended))
                part, largest, ended = [], 0, opening
            elif word in _ENDS:
                largest = max(1, _whole(part, largest, word if word in _COMPARES else ended).size)
                part, ended = [], word
            else:
                part.append(_value(token))
            before = token
        values.append(_whole(part, largest, ended))
        if name:
            return Value(_SIZES.get(name, _sum)(name, values))
        if opening == "in":
            return Value(max(each.size for each in values))
        return values[0] if len(values) == 1 else Value(sum(each.size for each in values))

    def _group(self, opening: str, before: str, part: list[Value]) -> Value:
        """Read a group, after the token ``before``."""
        name = before.strip("`").lower() if opening == "(" else ""
        if not (before[:1] == "`" or name.isidentifier()) or name in _WORDS or name in _ENDS:
            return self.read("in" if name == "in" else opening, "")
        if name not in FUNCTIONS and name not in _SIZES:
            raise InvalidInput(
                f"{name[:60]!r} is no function that expressions may call: how large its value can be is not known. "
                "Compute the value in a column"
            )
        if part:
            part.pop()  # the name of the function
        return self.read(opening, name)


def _value(token: str) -> Value:
    if token[0] in "'\"":
        return Value(len(token), text=token[1:-1])
    if token.isdecimal():
        return Value(1, number=int(token) if len(token) < 20 else 10**20)
    return Value(COLUMN if token[0] == "`" or token[0].isalpha() or token[0] == "_" else 0)


def _whole(part: Sequence[Value], largest: int, compared: str) -> Value:
    """Return the value of tokens between two commas or comparisons.

    Args:
        part: The values of the tokens.
        largest: The largest size of the values before it, with which it is compared; 0 if there are none.
        compared: The token by which it is compared. A literal that is only compared is stored once.
    """
    counted = [each for each in part if each.size]
    if len(counted) == 1 and compared in _COMPARES and counted[0].text is not None:
        return Value(max(largest, 1))
    if len(counted) == 1 and not largest:
        return counted[0]
    return Value(max(largest, sum(each.size for each in part)))
