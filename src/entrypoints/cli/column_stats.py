"""Statistics of a column, in bounded memory, from its batches."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from lancekeep.entrypoints.cli.cells import values_of

try:
    import datasketches
except ImportError:
    datasketches = None

HAS_SKETCHES = datasketches is not None
"""Whether distinct values and histograms are estimated: the extra ``stats``."""

_BINS = 10
_PRECISION = 12
"""The base-2 logarithm of the registers of a HyperLogLog: a standard error of 1.6 %, in 4 kB."""
_RANKS = 200
"""The parameter k of a KLL sketch: ranks have an error of 1.3 %, in 4 kB."""


class ColumnStats:
    """The statistics of one column.

    Floating-point NaN counts as a value of its own, outside of the minimum, the mean and the histogram. Of a vector,
    the norm is measured.
    """

    def __init__(self, field: Any) -> None:
        """Create the statistics of a column without rows."""
        self._field = field
        self._nulls = self._nans = 0
        self._measured = _Measured()
        self._lowest: Any = None
        self._highest: Any = None
        self._lengths: tuple[int, int] | None = None
        self._distinct = datasketches.hll_sketch(_PRECISION) if HAS_SKETCHES and _is_plain(_bare(field.type)) else None

    def add(self, array: Any) -> None:
        """Add the values of a batch."""
        self._nulls += array.null_count
        values = _plain_values(array.drop_null())
        if _is_list(values.type):
            self._add_lists(values)
        elif _is_plain(values.type):
            self._add_plain(values)

    def _add_plain(self, values: Any) -> None:
        if types.is_floating(values.type):
            is_nan = pc.is_nan(values)
            self._nans += pc.sum(is_nan).as_py() or 0
            self._count_distinct(values)
            values = values.filter(pc.invert(is_nan))
        else:
            self._count_distinct(values)
        if not len(values):
            return
        low, high = _range(values)
        self._lowest = low if self._lowest is None else min(self._lowest, low)
        self._highest = high if self._highest is None else max(self._highest, high)
        if types.is_boolean(values.type) or types.is_temporal(values.type):
            values = _as_integers(values)
        if types.is_integer(values.type) or types.is_floating(values.type) or types.is_decimal(values.type):
            self._measured.add(pc.cast(values, pa.float64(), safe=False).to_numpy(zero_copy_only=False))

    def _count_distinct(self, values: Any) -> None:
        if self._distinct is None:
            return
        unique = pc.unique(values)
        if types.is_temporal(unique.type) or types.is_boolean(unique.type):
            unique = _as_integers(unique)
        update = self._distinct.update
        for value in unique.to_pylist():
            if isinstance(value, bytes):
                update(value.decode("latin-1"))
            elif isinstance(value, float) or (isinstance(value, int) and abs(value) < 1 << 63):
                update(value)
            else:
                update(str(value))

    def _add_lists(self, lists: Any) -> None:
        if not len(lists):
            return
        if types.is_fixed_size_list(lists.type):
            low = high = lists.type.list_size
        else:
            lengths = pc.min_max(pc.list_value_length(lists))
            low, high = lengths["min"].as_py(), lengths["max"].as_py()
        known = self._lengths or (low, high)
        self._lengths = min(known[0], low), max(known[1], high)
        if not _is_number(lists.type.value_type):
            return
        numbers = pc.cast(lists.flatten(), pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        if types.is_fixed_size_list(lists.type):
            rows = numbers.reshape(len(lists), low)
            squares = np.einsum("ij,ij->i", rows, rows)
        else:
            parents = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)
            squares = np.bincount(parents, numbers * numbers, minlength=len(lists))
        norms = np.sqrt(squares)
        self._nans += int(np.isnan(norms).sum())
        self._measured.add(norms[~np.isnan(norms)])

    def found(self) -> dict[str, Any]:
        """Return the statistics as plain values; None if the type has none."""
        is_list, measured = _is_list(_bare(self._field.type)), self._measured
        is_mean = measured.has_mean and not types.is_temporal(_bare(self._field.type))
        mean = measured.total / measured.count if is_mean else None
        norm = {"min": measured.low, "mean": mean, "max": measured.high} if is_list and measured.count else None
        low, high = self._lengths or (None, None)
        return {
            "column": self._field.name,
            "type": str(self._field.type),
            "nulls": self._nulls,
            "nan": self._nans,
            "distinct": None if self._distinct is None else round(self._distinct.get_estimate()),
            "min": self._end(self._lowest),
            "mean": None if is_list else mean,
            "max": self._end(self._highest),
            "dimension": low if low == high else [low, high],
            "norm": norm,
            "histogram": measured.histogram(),
        }

    def _end(self, value: Any) -> Any:
        """Return the least or the greatest value; times are counted as integers, of which Python has all."""
        kind = _bare(self._field.type)
        if value is None or not types.is_temporal(kind):
            return value
        return values_of(pa.array([value], pa.int32() if _is_short(kind) else pa.int64()).cast(kind))[0]


class _Measured:
    """The count, sum, range and distribution of numbers."""

    def __init__(self) -> None:
        self.count, self.total = 0, 0.0
        self.low, self.high = math.inf, -math.inf
        self._ranks = datasketches.kll_doubles_sketch(_RANKS) if HAS_SKETCHES else None

    def add(self, numbers: Any) -> None:
        if not len(numbers):
            return
        self.count += len(numbers)
        with np.errstate(over="ignore", invalid="ignore"):
            self.total += float(numbers.sum())
        self.low, self.high = min(self.low, float(numbers.min())), max(self.high, float(numbers.max()))
        if self._ranks is not None:
            self._ranks.update(numbers[np.isfinite(numbers)])

    @property
    def has_mean(self) -> bool:
        """Whether the sum is a number; the sum of large finite values may be none."""
        is_finite = math.isfinite(self.low) and math.isfinite(self.high)
        return self.count > 0 and (math.isfinite(self.total) or not is_finite)

    def histogram(self) -> list[int] | None:
        """Return the estimated counts of finite values in parts of equal width."""
        if self._ranks is None or self._ranks.is_empty():
            return None
        low, high, count = self._ranks.get_min_value(), self._ranks.get_max_value(), self._ranks.n
        if not math.isfinite(high - low):
            return None
        bounds = np.linspace(low, high, _BINS + 1)[1:-1]
        if len({low, *bounds, high}) != _BINS + 1:  # the values are too close for so many parts
            return [count]
        return [round(part * count) for part in self._ranks.get_pmf(bounds)]


def _bare(arrow_type: Any) -> Any:
    """Return the type of the values without an extension or a dictionary."""
    if isinstance(arrow_type, pa.BaseExtensionType):
        return _bare(arrow_type.storage_type)
    return _bare(arrow_type.value_type) if types.is_dictionary(arrow_type) else arrow_type


def _plain_values(array: Any) -> Any:
    if isinstance(array.type, pa.BaseExtensionType):
        return _plain_values(array.storage)
    if types.is_dictionary(array.type):
        return _plain_values(array.dictionary_decode())
    return pc.cast(array, pa.float32()) if types.is_float16(array.type) else array


def _is_list(arrow_type: Any) -> bool:
    return bool(types.is_fixed_size_list(arrow_type) or types.is_list(arrow_type) or types.is_large_list(arrow_type))


def _is_number(arrow_type: Any) -> bool:
    return bool(types.is_integer(arrow_type) or types.is_floating(arrow_type))


def _is_plain(arrow_type: Any) -> bool:
    """Return whether values of a type have an order and a count of distinct values."""
    return bool(
        _is_number(arrow_type)
        or types.is_decimal(arrow_type)
        or types.is_boolean(arrow_type)
        or (types.is_temporal(arrow_type) and not types.is_interval(arrow_type))
        or types.is_string(arrow_type)
        or types.is_large_string(arrow_type)
        or types.is_binary(arrow_type)
        or types.is_large_binary(arrow_type)
        or types.is_fixed_size_binary(arrow_type)
    )


def _is_short(arrow_type: Any) -> bool:
    """Return whether a type of times has 32 bits."""
    return bool(types.is_date32(arrow_type) or types.is_time32(arrow_type))


def _as_integers(values: Any) -> Any:
    return pc.cast(pc.cast(values, pa.int32()) if _is_short(values.type) else values, pa.int64())


def _range(values: Any) -> tuple[Any, Any]:
    """Return the least and the greatest of some values."""
    found = pc.min_max(_as_integers(values) if types.is_temporal(values.type) else values)
    return found["min"].as_py(), found["max"].as_py()
