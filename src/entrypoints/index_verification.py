"""Compare the indexes of a table with its rows.

Every value of scalar columns, every label and every word is searched by the index, a few thousand values at a time. The
rows that it names must have the values, and no row may be missing. Vector indexes are compared for a sample of vectors.
Memory is bounded by the number of values that are held at a time.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance.query import MatchQuery

from lancekeep.domain.indexes import is_system_index

_HELD = 1 << 18
"""The most distinct values that one pass over a column holds."""
_ASKED = 4096
_SAMPLE, _NEIGHBOURS, _RECALL = 64, 10, 0.5
_RANGES = ("BTREE", "BITMAP", "ZONEMAP")
_SCALAR = (*_RANGES, "BLOOMFILTER")
_WORD = re.compile(r"\w+")
_LONGEST, _BEGIN = 40, 3
"""Longer words are not indexed. A stemmed word begins like the word."""

Told = Callable[[str], object]


@attrs.define
class _Difference:
    """How the answers of an index differ from the rows; a row may count several times."""

    wrong: int = 0
    missing: int = 0

    def add(self, found: int, right: int, expected: int) -> None:
        """Count a search that found some rows, of which some are right."""
        self.wrong += found - right
        self.missing += max(0, expected - right)
        self.wrong += max(0, right - expected)  # a row is named twice

    def __str__(self) -> str:
        wrong, missing = ("rows" if count else "no rows" for count in (self.wrong, self.missing))
        return f"its answers have {wrong} without the value, and lack {missing}"


def index_problems(dataset: Any, told: Told) -> Iterator[tuple[str, str]]:
    """Yield an index and what is wrong with it.

    Args:
        dataset: The version.
        told: Called with the name of each index before it is compared.
    """
    for index in sorted(dataset.describe_indices(), key=lambda each: str(each.name)):
        if is_system_index(index.name):
            continue
        told(index.name)
        try:
            reason = _compared(dataset, index)
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            reason = f"a search by it fails: {' '.join(str(error).split())}"
        if reason:
            yield f"index {index.name}", f"{reason}. Drop and create it"


def _compared(dataset: Any, index: Any) -> str:
    """Return how an index differs from the rows; empty if it does not."""
    kind, column = index.index_type.replace("_", "").upper(), index.field_names[0]
    if kind.startswith("IVF") or kind == "VECTOR":
        return _of_vectors(dataset, index, column)
    compare = {"LABELLIST": _of_labels, "INVERTED": _of_words}.get(kind)
    if compare is not None:
        found = compare(dataset, column, index.details or {})
    elif kind in _SCALAR and column in dataset.schema.names:
        found = _of_values(dataset, column, ranges=kind in _RANGES)
    else:
        return ""
    return str(found) if found.wrong or found.missing else ""


# -- scalar values ---------------------------------------------------------------------------------------------------


def _of_values(dataset: Any, column: str, *, ranges: bool) -> _Difference:
    found, field, first = _Difference(), pc.field(column), True
    values, counts, more = _smallest(dataset, column, None)
    while len(values):
        for start in range(0, len(values), _ASKED):
            part, expected = values[start : start + _ASKED], int(pc.sum(counts[start : start + _ASKED]).as_py())
            _search(dataset, column, field.isin(part), part, expected, found)
            for half in _halves(part):
                _search(dataset, column, field.isin(half), half, None, found)
            following = values[start + _ASKED] if start + _ASKED < len(values) else None
            if ranges and (following is not None or not more):
                condition = None if first else field >= part[0]
                if following is not None:
                    below = field < following
                    condition = below if condition is None else condition & below
                if condition is None:
                    condition = field.is_valid()
                _search(dataset, column, condition, part, expected, found)
            first = False
        if not more:
            break
        values, counts, more = _smallest(dataset, column, values[-1])
    nulls = dataset.scanner(columns={"v": column}, filter=field.is_null()).to_table().num_rows
    expected = sum(batch.column(0).null_count for batch in _scan(dataset, column, None))
    found.add(nulls, min(nulls, expected), expected)
    return found


def _halves(values: Any) -> Iterator[Any]:
    """Yield halves of values such that any two values are in different halves at least once."""
    numbers = np.arange(len(values))
    for bit in range((len(values) - 1).bit_length()):
        for side in (0, 1):
            yield values.filter(pa.array((numbers >> bit) % 2 == side))


def _search(dataset: Any, column: str, condition: Any, values: Any, expected: int | None, found: _Difference) -> None:
    """Search by the index, and compare the values of the rows; without ``expected``, do not count missing rows."""
    names = right = 0
    for batch in dataset.scanner(columns={"v": column}, filter=condition).to_batches():
        held = _without_nan(batch.column(0))
        names += len(held)
        right += int(pc.sum(pc.is_in(held, values)).as_py() or 0)
    found.add(names, right, right if expected is None else expected)


def _smallest(dataset: Any, column: str, after: Any) -> tuple[Any, Any, bool]:
    """Return the smallest values of a column above one, their counts, and whether there are more."""
    held, more = None, False
    for batch in _scan(dataset, column, after):
        values = _without_nan(batch.column(0).drop_null())
        counted = pa.table({"v": values, "n": pa.array(np.ones(len(values), np.int64))})
        counted = counted.group_by("v").aggregate([("n", "sum")]).rename_columns(["v", "n"])
        held = counted if held is None else pa.concat_tables([held, counted])
        if held.num_rows > 2 * _HELD:
            held, cut = _cut(held)
            more = more or cut
    if held is None:
        return [], [], False
    held, cut = _cut(held)
    return held["v"].combine_chunks(), held["n"].combine_chunks(), more or cut


def _cut(held: pa.Table) -> tuple[pa.Table, bool]:
    held = held.group_by("v").aggregate([("n", "sum")]).rename_columns(["v", "n"]).sort_by("v")
    return held.slice(0, _HELD), held.num_rows > _HELD


def _scan(dataset: Any, column: str, after: Any) -> Iterator[Any]:
    condition = None if after is None else pc.field(column) > after
    return iter(dataset.scanner(columns={"v": column}, filter=condition, use_scalar_index=False).to_batches())


def _without_nan(values: Any) -> Any:
    return values.filter(pc.invert(pc.is_nan(values))) if pa.types.is_floating(values.type) else values


# -- labels and words ------------------------------------------------------------------------------------------------


def _of_labels(dataset: Any, column: str, details: Any) -> _Difference:
    found = _Difference()
    for label, expected in _counted(dataset, column, lambda labels: {each for each in labels if each is not None}):
        if not isinstance(label, str | int):
            continue
        literal = "'" + label.replace("'", "''") + "'" if isinstance(label, str) else str(label).lower()
        rows = dataset.to_table(columns={"v": column}, filter=f"array_has_any({_quoted(column)}, [{literal}])")
        found.add(rows.num_rows, sum(label in (each or ()) for each in rows["v"].to_pylist()), expected)
    return found


def _of_words(dataset: Any, column: str, details: Any) -> _Difference:
    found = _Difference()
    if details.get("base_tokenizer") not in ("simple", "whitespace", None) or column not in dataset.schema.names:
        return found
    stops = details.get("remove_stop_words", True)
    every = dataset.count_rows()
    for word, expected in _counted(dataset, column, _words):
        query = MatchQuery(word, column)
        scanner = dataset.scanner(columns=[column], full_text_query=query, limit=every)
        texts = [_words(each) for each in scanner.to_table()[column].to_pylist()]
        exact = sum(word in words for words in texts)
        begin = word if not details.get("stem", True) or not word.isalpha() else word[: max(_BEGIN, len(word) - 4)]
        like = sum(any(each.startswith(begin) for each in words) for words in texts)
        if texts or not stops:
            found.wrong += len(texts) - like + max(0, exact - expected)
            found.missing += max(0, expected - exact)
    return found


def _words(text: Any) -> set[str]:
    if not isinstance(text, str):
        return set()
    plain = "".join(each for each in unicodedata.normalize("NFKD", text) if not unicodedata.combining(each))
    return {word for word in _WORD.findall(plain.lower()) if len(word) <= _LONGEST and "_" not in word}


def _counted(dataset: Any, column: str, parts: Callable[[Any], set[Any]]) -> Iterator[tuple[Any, int]]:
    """Yield the parts of the values of a column in ascending order, with the number of rows that have each."""
    after: Any = None
    while True:
        held: Counter[Any] = Counter()
        for batch in _scan(dataset, column, None):
            for value in batch.column(0).to_pylist():
                held.update(each for each in parts(value or ()) if after is None or each > after)
            if len(held) > 2 * _HELD:
                held = Counter(dict(sorted(held.items())[: _HELD + 1]))
        chosen = sorted(held.items())
        yield from chosen[:_HELD]
        if len(chosen) <= _HELD:
            return
        after = chosen[_HELD - 1][0]


def _quoted(column: str) -> str:
    return ".".join(f"`{part}`" for part in column.split("."))


# -- vectors ---------------------------------------------------------------------------------------------------------


def _of_vectors(dataset: Any, index: Any, column: str) -> str:
    statistics = dataset.stats.index_stats(index.name)
    held = sum(part["size"] for each in statistics["indices"] for part in each.get("partitions", ()))
    covered = {fragment for segment in index.segments for fragment in segment.fragment_ids}
    live = sum(each.count_rows() for each in dataset.get_fragments() if each.fragment_id in covered)
    empty = dataset.count_rows(f"{_quoted(column)} IS NULL")
    reasons = []
    if any("partitions" in each for each in statistics["indices"]) and held < live - empty:
        reasons.append(f"{live - empty - held:,} of the rows that it covers are in none of its partitions")
    lost, recall = _sampled(dataset, column)
    if lost:
        reasons.append(f"it does not find {lost} of {_SAMPLE} sampled rows by their own vectors")
    if recall < _RECALL:
        reasons.append(f"its recall is {recall:.2f}")
    return "; ".join(reasons)


def _sampled(dataset: Any, column: str) -> tuple[int, float]:
    """Return how many sampled rows are not found by their own vectors, and the recall."""
    rows = dataset.count_rows()
    positions = np.unique(np.linspace(0, rows - 1, _SAMPLE).astype(int)).tolist() if rows else []
    sample = dataset.take(positions, columns=[column])
    lost, hits, expected = 0, 0, 0
    for vector in sample[column].to_pylist():
        if vector is None or not isinstance(vector[0], float | int) or not np.isfinite(vector).all():
            continue
        near = [_nearest(dataset, column, vector, use_index=use_index) for use_index in (True, False)]
        lost += not near[0] or min(near[0].values()) > min(near[1].values()) + 1e-3
        hits += len(near[0].keys() & near[1].keys())
        expected += len(near[1])
    return lost, hits / expected if expected else 1.0


def _nearest(dataset: Any, column: str, vector: Sequence[float], *, use_index: bool) -> dict[int, float]:
    query = {"column": column, "q": vector, "k": _NEIGHBOURS, "use_index": use_index}
    if use_index:
        query |= {"nprobes": 1 << 16, "refine_factor": 10}
    found = dataset.to_table(columns=["_distance"], nearest=query, with_row_id=True)
    return dict(zip(found["_rowid"].to_pylist(), found["_distance"].to_pylist(), strict=True))
