"""Compare the indexes of a table with its rows.

Every value of scalar columns, every label, every word and every substring of three characters is searched by the index,
scalar values a few thousand at a time. The rows that the index names must have the values, and no row may be missing.
Vector indexes are compared for a sample of vectors. Memory is bounded by the number of values that are held at a time.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance.query import MatchQuery

from lancekeep.domain.column_names import quoted, unquoted
from lancekeep.domain.indexes import is_system_index

_HELD = 1 << 18
"""The most distinct values that one pass over a column holds."""
_ASKED = 4096
_SAMPLE, _NEIGHBOURS, _RECALL = 64, 10, 0.5
_RANGES = ("BTREE", "BITMAP", "ZONEMAP")
_SCALAR = (*_RANGES, "BLOOMFILTER")
_SUBSTRINGS = ("NGRAM", "FM")
_GRAM = 3
_WORD = re.compile(r"\w+")
_NAME = re.compile(r"`(?:[^`]|``)*`|[^.`]+")
_USED = re.compile(r"ScalarIndexQuery: .*\]@(.+)\(\w+\)|ANNSubIndex: name=(.+?), k=")
_SHOWN = 80
_LONGEST, _BEGIN = 40, 3
"""Longer words are not indexed. A stemmed word begins like the word."""

_UNITS = {"s": "Second", "ms": "Millisecond", "us": "Microsecond", "ns": "Nanosecond"}
_TYPES = {
    **{f"int{bits}": f"Int{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"UInt{bits}" for bits in (8, 16, 32, 64)},
    "halffloat": "Float16",
    "float": "Float32",
    "double": "Float64",
    "bool": "Boolean",
    "date32[day]": "Date32",
    "date64[ms]": "Date64",
}
"""The names that the engine's SQL has for types."""

Told = Callable[[str], object]


@attrs.frozen
class VerifiedIndex:
    """An index that was compared with the rows, or the reason why it was not.

    Attributes:
        name: The index.
        kind: Its kind, for example ``BTree``.
        column: The path of its column or field.
        values: The number of distinct values, labels, words, substrings or sampled vectors that were searched by it.
        reason: Why it was not compared; empty if it was.
    """

    name: str
    kind: str
    column: str
    values: int = 0
    reason: str = ""


@attrs.frozen
class IndexCounts:
    """How many indexes were compared.

    Attributes:
        compared: The number of indexes that were compared with the rows.
        not_compared: The number of indexes that were not.
        values: The number of values that were searched.
    """

    compared: int
    not_compared: int
    values: int

    @classmethod
    def of(cls, indexes: Iterable[VerifiedIndex]) -> IndexCounts:
        """Count indexes."""
        every = list(indexes)
        compared = sum(not index.reason for index in every)
        return cls(compared, len(every) - compared, sum(index.values for index in every))

    def __str__(self) -> str:
        others = f", {_many(self.not_compared, 'index', 'indexes')} not compared" if self.not_compared else ""
        compared = _many(self.compared, "index", "indexes")
        return f"{compared} compared by {_many(self.values, 'value', 'values')}{others}"


def _many(count: int, one: str, more: str) -> str:
    return f"{count:,} {one if count == 1 else more}"


class _NotComparedError(Exception):
    """The reason why an index cannot be compared."""


@attrs.define
class _Difference:
    """How the answers of an index differ from the rows; a row may count several times."""

    values: int = 0
    wrong: int = 0
    missing: int = 0

    def add(self, found: int, right: int, expected: int) -> None:
        """Count a search that found some rows, of which some are right."""
        self.wrong += found - right
        self.missing += max(0, expected - right)
        self.wrong += max(0, right - expected)  # a row is named twice

    def __str__(self) -> str:
        if not self.wrong and not self.missing:
            return ""
        wrong, missing = ("rows" if count else "no rows" for count in (self.wrong, self.missing))
        return f"its answers have {wrong} without the value, and lack {missing}"


def compared_indexes(dataset: Any, told: Told) -> Iterator[tuple[VerifiedIndex, str]]:
    """Yield each index, and its fault; empty without a fault.

    Args:
        dataset: The version.
        told: Called with the name of each index before it is compared.
    """
    for index in sorted(dataset.describe_indices(), key=lambda each: str(each.name)):
        told(index.name)
        result = VerifiedIndex(index.name, index.index_type, ", ".join(index.field_names))
        problem = ""
        try:
            values, problem = _compared(dataset, index)
            result = attrs.evolve(result, values=values)
        except _NotComparedError as reason:
            result = attrs.evolve(result, reason=str(reason))
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            problem = f"a search by it fails: {' '.join(str(error).split())}"
            result = attrs.evolve(result, reason="a search by it fails")
        yield result, problem and f"{problem}. Drop and create it"


def _compared(dataset: Any, index: Any) -> tuple[int, str]:
    """Return how many values were searched by an index, and how it differs from the rows; empty if it does not.

    Raises:
        _NotComparedError: The index cannot be compared.
    """
    if is_system_index(index.name):
        raise _NotComparedError("the engine keeps it for itself, and searches no values by it")
    kind, path = index.index_type.replace("_", "").upper(), index.field_names[0]
    if kind.startswith("IVF") or kind == "VECTOR":
        return _of_vectors(dataset, index, path)
    column = quoted(*map(unquoted, _NAME.findall(path)))
    if kind == "INVERTED":
        found = _of_words(dataset, path, column, index.details or {})
    elif kind == "LABELLIST":
        found = _of_labels(dataset, index, column)
    elif kind in _SUBSTRINGS:
        found = _of_substrings(dataset, index, column)
    elif kind in _SCALAR:
        found = _of_values(dataset, index, column, ranges=kind in _RANGES)
    else:
        raise _NotComparedError(f"there is no comparison for indexes of the kind {index.index_type}")
    return found.values, str(found)


def _require_used(dataset: Any, index: Any, **search: Any) -> None:
    """Raise `_NotComparedError` unless the engine uses an index for a search."""
    used = {scalar or vector for scalar, vector in _USED.findall(dataset.scanner(**search).explain_plan())}
    if index.name not in used:
        by = f"searches by the index {' and '.join(sorted(used))}" if used else "does not search by it"
        condition = str(search.get("filter", "nearest"))
        raise _NotComparedError(
            f"the engine {by}: {condition if len(condition) <= _SHOWN else condition[:_SHOWN] + '…'}"
        )


# -- scalar values ---------------------------------------------------------------------------------------------------


def _of_values(dataset: Any, index: Any, column: str, *, ranges: bool) -> _Difference:
    found, first = _Difference(), True
    values, counts, more = _smallest(dataset, column, None)
    few = values[:_ASKED]
    _require_used(dataset, index, filter=_among(column, few[:1]) if len(few) else f"{column} IS NULL")
    if len(few):
        _search_and_scan(dataset, column, f"NOT {_among(column, few)}", lambda held: _others(held, few), found)
    while len(values):
        for start in range(0, len(values), _ASKED):
            part, numbers = values[start : start + _ASKED], counts[start : start + _ASKED]
            found.values += len(part)
            for some, expected in _halves(part, numbers):
                _search(dataset, column, _among(column, some), some, expected, found)
            following = values[start + _ASKED : start + _ASKED + 1]
            if ranges and (len(following) or not more):
                limits = [] if first else [f"{column} >= {_literals(part[:1])[0]}"]
                limits += [f"{column} < {literal}" for literal in _literals(following)]
                condition = " AND ".join(limits) or f"{column} IS NOT NULL"
                _search(dataset, column, condition, part, int(pc.sum(numbers).as_py()), found, nan=True)
            first = False
        if not more:
            break
        values, counts, more = _smallest(dataset, column, values[-1:])
    _search_and_scan(dataset, column, f"{column} IS NULL", lambda held: held.null_count, found)
    if pa.types.is_floating(values.type):
        [nan] = _literals(pa.array([float("nan")], pa.float64()).cast(values.type))
        _search_and_scan(dataset, column, f"{column} = {nan}", lambda held: pc.sum(pc.is_nan(held)).as_py() or 0, found)
    return found


def _halves(values: Any, counts: Any) -> Iterator[tuple[Any, int]]:
    """Yield all values, and halves in which any two values are apart at least once, with their numbers of rows."""
    yield values, int(pc.sum(counts).as_py())
    numbers = np.arange(len(values))
    for bit in range((len(values) - 1).bit_length()):
        for side in (0, 1):
            chosen = pa.array((numbers >> bit) % 2 == side)
            yield values.filter(chosen), int(pc.sum(counts.filter(chosen)).as_py())


def _others(held: Any, values: Any) -> int:
    """Count the values that are neither null nor in a list."""
    within = int(pc.sum(pc.is_in(_comparable(held), values, skip_nulls=True)).as_py() or 0)
    return len(held) - int(held.null_count) - within


def _search(
    dataset: Any,
    column: str,
    condition: str,
    values: Any,
    expected: int,
    found: _Difference,
    *,
    nan: bool = False,
) -> None:
    """Search by the index, and compare the values of the rows; with ``nan``, they may be NaN."""
    names = right = 0
    for held in _selected(dataset, column, condition):
        numbers = _comparable(held)
        names += len(numbers if nan else held)
        right += int(pc.sum(pc.is_in(numbers, values)).as_py() or 0)
    found.add(names, right, expected)


def _search_and_scan(
    dataset: Any, column: str, condition: str, right: Callable[[Any], int], found: _Difference
) -> None:
    """Search by the index, and compare the number of right rows with a scan."""
    names = correct = 0
    for held in _selected(dataset, column, condition):
        names += len(held)
        correct += right(held)
    found.add(names, correct, sum(map(len, _selected(dataset, column, condition, use_index=False))))


def _smallest(dataset: Any, column: str, after: Any) -> tuple[Any, Any, bool]:
    """Return the smallest values of a column above one, their counts, and whether there are more."""
    held, more = None, False
    condition = None if after is None else f"{column} > {_literals(after)[0]}"
    for every in _selected(dataset, column, condition, use_index=False):
        values = _comparable(every.drop_null())
        counted = pa.table({"v": values, "n": pa.array(np.ones(len(values), np.int64))})
        counted = counted.group_by("v").aggregate([("n", "sum")]).rename_columns(["v", "n"])
        held = counted if held is None else pa.concat_tables([held, counted])
        if held.num_rows > 2 * _HELD:
            held, cut = _cut(held)
            more = more or cut
    if held is None:
        return pa.nulls(0), pa.nulls(0), False
    held, cut = _cut(held)
    return held["v"].combine_chunks(), held["n"].combine_chunks(), more or cut


def _cut(held: pa.Table) -> tuple[pa.Table, bool]:
    held = held.group_by("v").aggregate([("n", "sum")]).rename_columns(["v", "n"]).sort_by("v")
    return held.slice(0, _HELD), held.num_rows > _HELD


def _selected(dataset: Any, column: str, condition: str | None, *, use_index: bool = True) -> Iterator[Any]:
    """Yield the values of the rows of a search, or with ``use_index=False`` of a scan."""
    scanner = dataset.scanner(columns={"v": column}, filter=condition, use_scalar_index=use_index)
    return (batch.column(0) for batch in scanner.to_batches())


def _comparable(values: Any) -> Any:
    """Leave out NaN, and make negative zero positive, because SQL of the engine takes both zeros as equal."""
    if not pa.types.is_floating(values.type):
        return values
    if pa.types.is_float16(values.type):
        raise _NotComparedError("pyarrow cannot compare values of the type halffloat")
    return pc.add(values.filter(pc.invert(pc.is_nan(values))), pa.scalar(0, values.type))


# -- labels, substrings and words ------------------------------------------------------------------------------------


def _of_labels(dataset: Any, index: Any, column: str) -> _Difference:
    def condition(label: Any) -> str:
        return f"array_has_any({column}, [{_literals(pa.array([label], kind))[0]}])"

    kind = dataset.scanner(columns={"v": column}).projected_schema.field(0).type.value_type
    return _of_parts(dataset, index, column, lambda value: set(value or ()) - {None}, condition)


def _of_substrings(dataset: Any, index: Any, column: str) -> _Difference:
    def condition(part: str) -> str:
        return f"contains({column}, {_text(part)})"

    return _of_parts(dataset, index, column, _grams, condition)


def _grams(text: str | None) -> set[str]:
    """Return the substrings by which the engine searches: it splits texts where a character is no letter or digit."""
    parts = {(text or "")[at : at + _GRAM] for at in range(len(text or "") - _GRAM + 1)}
    return {part for part in parts if part.isalnum()}


def _of_parts(
    dataset: Any, index: Any, column: str, parts: Callable[[Any], set[Any]], condition: Callable[[Any], str]
) -> _Difference:
    """Search every part of the values by the index."""
    found = _Difference()
    for part, expected in _counted(dataset, column, parts):
        if not found.values:
            _require_used(dataset, index, filter=condition(part))
        found.values += 1
        names = right = 0
        for held in _selected(dataset, column, condition(part)):
            names += len(held)
            right += sum(part in (value or ()) for value in held.to_pylist())
        found.add(names, right, expected)
    return found


def _of_words(dataset: Any, path: str, column: str, details: Any) -> _Difference:
    found = _Difference()
    tokenizer = details.get("lance_tokenizer") or details.get("base_tokenizer")
    if tokenizer not in ("simple", "whitespace", "text", None):
        raise _NotComparedError(f"only the engine knows the words of the tokenizer {tokenizer!r}")
    stops = details.get("remove_stop_words", True)
    every = dataset.count_rows()
    for word, expected in _counted(dataset, column, _words):
        found.values += 1
        begin = word if not details.get("stem", True) or not word.isalpha() else word[: max(_BEGIN, len(word) - 4)]
        names = exact = like = 0
        scanner = dataset.scanner(
            columns={"v": column},
            full_text_query=MatchQuery(word, path),
            limit=every,
            disable_scoring_autoprojection=True,
        )
        for batch in scanner.to_batches():
            for words in map(_words, batch.column("v").to_pylist()):
                names += 1
                exact += word in words
                like += any(each.startswith(begin) for each in words)
        if names or not stops:
            found.wrong += names - like + max(0, exact - expected)
            found.missing += max(0, expected - exact)
    return found


def _words(text: Any) -> set[str]:
    if isinstance(text, list):
        return set().union(*map(_words, text))
    if not isinstance(text, str):
        return set()
    plain = "".join(each for each in unicodedata.normalize("NFKD", text) if not unicodedata.combining(each))
    return {word for word in _WORD.findall(plain.lower()) if len(word) <= _LONGEST and "_" not in word}


def _counted(dataset: Any, column: str, parts: Callable[[Any], set[Any]]) -> Iterator[tuple[Any, int]]:
    """Yield the parts of the values of a column in ascending order, with the number of rows that have each."""
    after: Any = None
    while True:
        held: Counter[Any] = Counter()
        for values in _selected(dataset, column, None):
            for value in values.to_pylist():
                held.update(each for each in parts(value) if after is None or each > after)
            if len(held) > 2 * _HELD:
                held = Counter(dict(sorted(held.items())[: _HELD + 1]))
        chosen = sorted(held.items())
        yield from chosen[:_HELD]
        if len(chosen) <= _HELD:
            return
        after = chosen[_HELD - 1][0]


# -- conditions ------------------------------------------------------------------------------------------------------
# Expressions of pyarrow would be quicker, but the engine refuses fields of structs in them.


def _among(column: str, values: Any) -> str:
    return f"{column} IN ({', '.join(_literals(values))})"


def _literals(values: Any) -> list[str]:
    """Return values as the engine's SQL states them.

    Raises:
        _NotComparedError: SQL cannot state values of the type.
    """
    kind = values.type
    if pa.types.is_dictionary(kind):
        values, kind = values.dictionary_decode(), kind.value_type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return list(map(_text, values.to_pylist()))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return [f"X'{value.hex()}'" for value in values.to_pylist()]
    name = _type_name(kind)
    if pa.types.is_temporal(kind):
        whole = pa.int64() if kind.bit_width == 64 else pa.int32()
        return [f"arrow_cast({value}, '{name}')" for value in values.cast(whole).to_pylist()]
    texts = values.cast(pa.string()).to_pylist()
    if pa.types.is_signed_integer(kind) and kind.bit_width < 64:
        return list(texts)
    return [f"arrow_cast('{text}', '{name}')" for text in texts]


def _type_name(kind: Any) -> str:
    if pa.types.is_decimal(kind):
        return f"Decimal{kind.bit_width}({kind.precision}, {kind.scale})"
    if pa.types.is_timestamp(kind):
        zone = "None" if kind.tz is None else f'Some("{kind.tz}")'
        return f"Timestamp({_UNITS[kind.unit]}, {zone})"
    if pa.types.is_time(kind):
        return f"Time{kind.bit_width}({_UNITS[kind.unit]})"
    if pa.types.is_duration(kind):
        return f"Duration({_UNITS[kind.unit]})"
    if str(kind) not in _TYPES:
        raise _NotComparedError(f"the engine's SQL cannot state values of the type {kind}")
    return _TYPES[str(kind)]


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


# -- vectors ---------------------------------------------------------------------------------------------------------


def _of_vectors(dataset: Any, index: Any, path: str) -> tuple[int, str]:
    column = quoted(*map(unquoted, _NAME.findall(path)))
    statistics = dataset.stats.index_stats(index.name)
    held = sum(part["size"] for each in statistics["indices"] for part in each.get("partitions", ()))
    covered = {fragment for segment in index.segments for fragment in segment.fragment_ids}
    live = sum(each.count_rows() for each in dataset.get_fragments() if each.fragment_id in covered)
    empty = dataset.count_rows(f"{column} IS NULL")
    reasons = []
    if any("partitions" in each for each in statistics["indices"]) and held < live - empty:
        reasons.append(f"{live - empty - held:,} of the rows that it covers are in none of its partitions")
    sample = _sample(dataset, column) if not reasons else []
    if sample:
        _require_used(dataset, index, nearest={"column": path, "q": sample[0], "k": _NEIGHBOURS})
    elif live > empty and not reasons:
        raise _NotComparedError(f"none of {_SAMPLE} sampled rows has one vector of finite numbers")
    lost, recall = _searched(dataset, path, sample)
    if lost:
        reasons.append(f"it does not find {lost} of {len(sample)} sampled rows by their own vectors")
    if recall < _RECALL:
        reasons.append(f"its recall is {recall:.2f}")
    return len(sample), "; ".join(reasons)


def _sample(dataset: Any, column: str) -> list[Sequence[float]]:
    rows = dataset.count_rows()
    positions = np.unique(np.linspace(0, rows - 1, _SAMPLE).astype(int)).tolist() if rows else []
    vectors = dataset.take(positions, columns={"v": column})["v"].to_pylist()
    return [each for each in vectors if each and isinstance(each[0], float | int) and np.isfinite(each).all()]


def _searched(dataset: Any, path: str, sample: Sequence[Sequence[float]]) -> tuple[int, float]:
    """Return how many sampled rows are not found by their own vectors, and the recall."""
    lost, hits, expected = 0, 0, 0
    for vector in sample:
        near = [_nearest(dataset, path, vector, use_index=use_index) for use_index in (True, False)]
        lost += not near[0] or min(near[0].values()) > min(near[1].values()) + 1e-3
        hits += len(near[0].keys() & near[1].keys())
        expected += len(near[1])
    return lost, hits / expected if expected else 1.0


def _nearest(dataset: Any, path: str, vector: Sequence[float], *, use_index: bool) -> dict[int, float]:
    query = {"column": path, "q": vector, "k": _NEIGHBOURS, "use_index": use_index}
    if use_index:
        query |= {"nprobes": 1 << 16, "refine_factor": 10}
    found = dataset.to_table(columns=["_distance"], nearest=query, with_row_id=True)
    return dict(zip(found["_rowid"].to_pylist(), found["_distance"].to_pylist(), strict=True))
