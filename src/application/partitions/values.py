"""Partition values of Arrow data.

See "Partition Transform" in the partitioning specification. The transforms equal the results of DataFusion for the
expressions that the specification derives from them. The specification does not define the bytes that are hashed. Here
they are, all little endian:

- integers and dates as 64-bit integers, because equal values of different widths must share a bucket
- timestamps as 64-bit counts of their own unit
- text in UTF-8
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from decimal import localcontext
from functools import reduce
from itertools import pairwise, product
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa

from lancekeep.application.partitions.arrow_json import type_json, type_of
from lancekeep.domain.errors import Damaged, InvalidInput
from lancekeep.domain.partitioning import DATE_PARTS, PartitionBy, PartitionField, PartitionSpec, Transform
from lancekeep.domain.partitions import Values
from lancekeep.domain.pruning import Filter, Image, Predicate, by_equality, by_order, equalities
from lancekeep.format.arrow_metadata import FIELD_ID
from lancekeep.native import compute as pc

_PARTS: dict[str, Callable[[pa.Array], pa.Array]] = {part: getattr(pc, part) for part in DATE_PARTS}
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MOST_COMBINATIONS = 1024
"""The most combinations of values for which `keeps` computes buckets."""

_LONGEST_RANGE = {"month": 366, "day": 31, "hour": 1}
"""The most days of a range for which `keeps` lists the months, days or hours."""


# -- fields ---------------------------------------------------------------------------------------------------------


def with_field_ids(schema: pa.Schema) -> pa.Schema:
    """Return the schema with a number in the metadata of every column.

    Raises:
        InvalidInput: A column name occurs twice, or some columns have a number of their own and others do not.
    """
    given = [(field.metadata or {}).get(FIELD_ID) for field in schema]
    if len(set(schema.names)) < len(schema.names):
        raise InvalidInput(f"the schema names a column twice: {', '.join(schema.names)}")
    if not any(given):
        numbered = [
            field.with_metadata({**(field.metadata or {}), FIELD_ID: str(at).encode()})
            for at, field in enumerate(schema)
        ]
        return pa.schema(numbered, schema.metadata)
    if any(text is None or not text.isdigit() for text in given) or len(set(given)) < len(given):
        raise InvalidInput(
            f"some columns have a {FIELD_ID.decode()} of their own in their metadata; give one to every column, or to "
            "none"
        )
    return schema


def as_stored(schema: pa.Schema) -> pa.Schema:
    """Return the schema with texts and bytes in place of views, which no table has."""
    return pa.schema([_stored(field) for field in schema], schema.metadata)


def _stored(field: pa.Field) -> pa.Field:
    kind = field.type
    if pa.types.is_string_view(kind):
        return field.with_type(pa.string())
    if pa.types.is_binary_view(kind):
        return field.with_type(pa.binary())
    if pa.types.is_struct(kind):
        return field.with_type(pa.struct(map(_stored, kind)))
    if pa.types.is_map(kind):
        return field.with_type(pa.map_(_stored(kind.key_field), _stored(kind.item_field)))
    if pa.types.is_fixed_size_list(kind):
        return field.with_type(pa.list_(_stored(kind.value_field), kind.list_size))
    if pa.types.is_list(kind):
        return field.with_type(pa.list_(_stored(kind.value_field)))
    if pa.types.is_large_list(kind):
        return field.with_type(pa.large_list(_stored(kind.value_field)))
    return field


def sources_by_id(schema: pa.Schema) -> dict[int, pa.Field]:
    """Return the columns by their number.

    Raises:
        Damaged: A column has no usable number.
    """
    try:
        return {int(field.metadata[FIELD_ID]): field for field in schema}
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"the schema of the partitions has columns without a usable {FIELD_ID.decode()}") from error


def partition_field(by: PartitionBy, schema: pa.Schema) -> PartitionField:
    """Return the partition field that a user requests, for a schema with field ids.

    Raises:
        InvalidInput: A column does not exist, or its type does not suit the transform.
    """
    missing = [name for name in by.columns if name not in schema.names]
    if missing:
        raise InvalidInput(f"cannot partition by {missing[0]!r}: the columns are {', '.join(schema.names)}")
    fields = [schema.field(name) for name in by.columns]
    for field in fields:
        _require_suitable(by.transform, field)
    if by.transform.type == "multi_bucket" and (len(fields) < 2 or len(set(by.columns)) < len(fields)):
        raise InvalidInput(f"multi_bucket takes several columns, each once; found {', '.join(by.columns) or 'none'}")
    ids = tuple(int(field.metadata[FIELD_ID]) for field in fields)
    return PartitionField(by.name, ids, by.transform, None, type_json(_result_type(by.transform, fields[0].type)))


def column_type(field: PartitionField, schema: pa.Schema) -> pa.DataType:
    """Return the type of a partition field's column in the manifest table.

    Raises:
        Damaged: The result type of the field is unknown.
    """
    source = sources_by_id(schema).get(field.source_ids[0])
    if field.transform is not None and source is not None:
        return _result_type(field.transform, source.type)
    try:
        return type_of(field.result_type)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Damaged(f"the partition field {field.field_id!r} has an unusable result_type: {error}") from error


def _result_type(transform: Transform, source: pa.DataType) -> pa.DataType:
    return source if transform.type in ("identity", "truncate") else pa.int32()


def _require_suitable(transform: Transform, field: pa.Field) -> None:
    is_, kind = pa.types, field.type
    text, whole = is_.is_string(kind) or is_.is_large_string(kind), is_.is_integer(kind)
    bytes_ = is_.is_binary(kind) or is_.is_large_binary(kind)
    moment = is_.is_date32(kind) or is_.is_timestamp(kind)
    number = whole or is_.is_decimal128(kind)
    suitable = {
        "identity": text or bytes_ or number or is_.is_boolean(kind) or is_.is_floating(kind) or moment,
        "bucket": text or bytes_ or whole or moment,
        "multi_bucket": text or bytes_ or whole or moment,
        "truncate": text or number or is_.is_floating(kind),
    }.get(transform.type, moment)
    if transform.type == "identity" and (is_.is_float16(kind) or (is_.is_timestamp(kind) and kind.unit == "ns")):
        suitable = False
    if not suitable:
        raise InvalidInput(
            f"cannot partition by {transform} of the column {field.name!r}: it is {kind}. Dates and timestamps have "
            "years, months, days and hours; numbers and text can be truncated; floating point numbers cannot be "
            "hashed; no timestamp in nanoseconds, list or struct is a partition value"
        )


# -- values ---------------------------------------------------------------------------------------------------------


def partition_arrays(data: pa.Table, spec: PartitionSpec, schema: pa.Schema) -> list[pa.Array]:
    """Return the values of each partition field for rows of the schema.

    A source column that no longer exists counts as null.
    """
    sources = sources_by_id(schema)
    found = []
    for field in spec.fields:
        assert field.transform is not None  # the spec is writable
        columns = [_combined(data[sources[number].name]) for number in field.source_ids if number in sources]
        if columns:
            found.append(transformed(field.transform, columns))
        else:
            found.append(pa.nulls(data.num_rows, column_type(field, schema)))
    return found


def transformed(transform: Transform, columns: Sequence[pa.Array]) -> pa.Array:
    """Apply a transform to columns of the same length."""
    kind = transform.type
    [first, *_] = columns
    if kind == "identity":
        return first
    if kind == "hour" and pa.types.is_date(first.type):
        return pc.if_else(pc.is_valid(first), pa.scalar(0, pa.int32()), pa.scalar(None, pa.int32()))
    if kind in _PARTS:
        return _PARTS[kind](first).cast(pa.int32())
    if kind == "truncate":
        return _truncated(first, transform.parameter or 1)
    hashes = murmur3(columns).astype(np.int64)
    known = pc.is_valid(columns[0])
    for column in columns[1:]:
        known = pc.or_(known, pc.is_valid(column))
    buckets = (np.abs(hashes) % (transform.parameter or 1)).astype(np.int32)
    return pc.if_else(known, pa.array(buckets), pa.scalar(None, pa.int32()))


def split(data: pa.Table, values: Sequence[pa.Array]) -> Iterator[tuple[Values, pa.Table]]:
    """Yield each combination of partition values with its rows, in original order."""
    codes = np.zeros(data.num_rows, dtype=np.int64)
    for column in map(_normalized, values):
        encoded = column.dictionary_encode(null_encoding="encode")
        codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy()
        codes = np.unique(codes, return_inverse=True)[1]  # keep the products of sizes small
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    sorted_rows = data.take(pa.array(order))
    for start, end in pairwise([*starts, len(order)]):
        row = int(order[start])
        yield tuple(column[row].as_py() for column in values), sorted_rows.slice(start, end - start)


def _truncated(column: pa.Array, width: int) -> pa.Array:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pc.utf8_slice_codeunits(column, 0, width)
    if pa.types.is_decimal128(kind):
        with localcontext(prec=2 * kind.precision):
            values = [None if value is None else value - value % width for value in column.to_pylist()]
        return pa.array(values, kind)
    if pa.types.is_floating(kind):
        floats = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
        with np.errstate(invalid="ignore"):  # the multiple of an infinity is NaN, as in DataFusion
            multiples = floats - np.fmod(floats, floats.dtype.type(width))
        return pc.if_else(pc.is_valid(column), pa.array(multiples, kind), pa.scalar(None, kind))
    numbers = np.asarray(pc.fill_null(column, 0))
    wide = numbers.astype(np.uint64 if pa.types.is_unsigned_integer(kind) else np.int64)
    kept = wide - np.fmod(wide, wide.dtype.type(width))
    return pc.if_else(pc.is_valid(column), pa.array(kept.astype(numbers.dtype)), pa.scalar(None, kind))


def _normalized(column: pa.Array) -> pa.Array:
    """Replace all NaN by one value, and negative zero by zero."""
    if not pa.types.is_floating(column.type):
        return column
    return pc.if_else(
        pc.is_nan(column), pa.scalar(float("nan"), column.type), pc.add(column, pa.scalar(0, column.type))
    )


def _combined(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined


# -- filters --------------------------------------------------------------------------------------------------------


def literals(predicate: Predicate, field: pa.Field) -> pa.Array:
    """Return the values of a predicate in the type of its column.

    Text may stand for a date or timestamp.

    Raises:
        InvalidInput: A value cannot be compared with the column.
    """
    try:
        if pa.types.is_temporal(field.type) and all(isinstance(value, str) for value in predicate.values):
            return _moments(pa.array(predicate.values, pa.string()), field.type)
        if pa.types.is_temporal(field.type) and any(isinstance(value, int | float) for value in predicate.values):
            raise TypeError("a number is no date or timestamp")
        found = pa.array(predicate.values, field.type)
        if len(found) and not pa.array(predicate.values).cast(field.type).equals(
            found
        ):  # fails if the cast loses digits
            raise ValueError("the column cannot hold them exactly")
        return found
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(
            f"the column {field.name!r} is {field.type}; it cannot be compared with {predicate.values!r:.200}: {error}"
        ) from error


def _moments(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Parse dates or timestamps; a timestamp without an offset is UTC."""
    if getattr(kind, "tz", None) is None:
        return texts.cast(kind)
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        return texts.cast(pa.timestamp(kind.unit)).cast(kind)


def expression(wanted: Filter, schema: pa.Schema) -> Any:
    """Return a filter as a ``pyarrow`` expression; None if it accepts every row.

    Raises:
        InvalidInput: A column does not exist, or a value cannot be compared with it.
    """
    alternatives = []
    for conjunction in wanted:
        conditions = [_condition(predicate, schema) for predicate in conjunction]
        if not conditions:
            return None
        alternatives.append(reduce(operator.and_, conditions))
    return reduce(operator.or_, alternatives)


def _condition(predicate: Predicate, schema: pa.Schema) -> Any:
    if predicate.column not in schema.names:
        raise InvalidInput(f"there is no column {predicate.column!r}; the columns are {', '.join(schema.names)}")
    column = pc.field(predicate.column)
    if predicate.operator == "is null":
        return column.is_null()
    present = ~column.is_null()
    values = literals(predicate, schema.field(predicate.column))
    match predicate.operator:
        case "is not null":
            return present
        case "in":
            return column.isin(values) if len(values) else pc.scalar(False)
        case "not in":
            return present & ~column.isin(values) if len(values) else present
        case comparison:
            return _COMPARISONS[comparison](column, values[0])


def is_understood(wanted: Filter, schema: pa.Schema) -> bool:
    """Return whether Lance supports a filter.

    It supports no conditions on unsigned integers and half-precision floats.
    """
    kinds = [schema.field(predicate.column).type for conjunction in wanted for predicate in conjunction]
    return not any(pa.types.is_unsigned_integer(kind) or pa.types.is_float16(kind) for kind in kinds)


def keeps(field: PartitionField, schema: pa.Schema, conjunction: Sequence[Predicate]) -> Callable[[Any], bool]:
    """Return a test whether a partition can hold rows that satisfy a conjunction.

    The test takes a value of the partition field.
    """
    transform, sources = field.transform, sources_by_id(schema)
    if transform is None or not all(number in sources for number in field.source_ids):
        return lambda value: True
    columns = [sources[number] for number in field.source_ids]
    if transform.type == "multi_bucket":
        return _keeps_buckets(transform, columns, conjunction)
    [column] = columns
    own = [predicate for predicate in conjunction if predicate.column == column.name]
    tests = [_test(transform, predicate, literals(predicate, column)) for predicate in own]
    listed = _parts_in_range(transform, own, column)
    return lambda value: (listed is None or value in listed) and all(test(value) for test in tests)


def _test(transform: Transform, predicate: Predicate, values: pa.Array) -> Callable[[Any], bool]:
    if transform.type not in ("identity", "year", "truncate"):
        equal = set(transformed(transform, [values]).to_pylist())
        return lambda value: by_equality(value, predicate, equal)
    if transform.type == "truncate" and pa.types.is_floating(values.type) and not pc.all(pc.is_finite(values)).as_py():
        return lambda value: True  # the multiple of an infinity is NaN
    images = [Image(image, image) for image in transformed(transform, [values]).to_pylist()]
    if (
        transform.type == "truncate"
        and not pa.types.is_string(values.type)
        and not pa.types.is_large_string(values.type)
    ):
        pairs = list(zip(images, values.to_pylist(), strict=True))
        with localcontext(prec=100):
            images = [
                Image(
                    image.lowest - (transform.parameter or 1) if value < image.lowest else image.lowest, image.highest
                )
                for image, value in pairs
            ]
    return lambda value: by_order(value, predicate, images, exact=transform.type == "identity")


def _keeps_buckets(
    transform: Transform, columns: Sequence[pa.Field], conjunction: Sequence[Predicate]
) -> Callable[[Any], bool]:
    allowed = equalities(conjunction)
    if not all(column.name in allowed for column in columns):
        return lambda value: True
    if prod(len(allowed[column.name].values) for column in columns) > _MOST_COMBINATIONS:
        return lambda value: True
    chosen = list(product(*[literals(allowed[column.name], column) for column in columns]))
    arrays = [pa.array([row[at] for row in chosen], column.type) for at, column in enumerate(columns)]
    buckets = set(transformed(transform, arrays).to_pylist())
    return lambda value: value in buckets


def _parts_in_range(transform: Transform, own: Sequence[Predicate], column: pa.Field) -> set[int] | None:
    """Return the months, days or hours between the bounds of a conjunction.

    Time zones other than UTC are not handled: if clocks are set back, the steps may skip an hour.

    Returns:
        None if any value may occur.
    """
    days = _LONGEST_RANGE.get(transform.type)
    if days is None or getattr(column.type, "tz", None) not in (None, "UTC"):
        return None
    dates = pa.types.is_date32(column.type)
    width = pa.int32() if dates else pa.int64()
    bounds: dict[str, list[int]] = {">": [], "<": []}
    for predicate in own:
        if predicate.operator[0] in bounds:
            bounds[predicate.operator[0]] += literals(predicate, column).cast(width).to_pylist()
    if not bounds[">"] or not bounds["<"]:
        return None
    low, high = max(bounds[">"]), min(bounds["<"])
    day = 1 if dates else 86400 * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[column.type.unit]
    if high - low > days * day:
        return None
    steps = [*range(low, high, day if dates else day // 24), high] if low <= high else []
    return set(transformed(transform, [pa.array(steps, width).cast(column.type)]).to_pylist())


# -- hashes ---------------------------------------------------------------------------------------------------------


def murmur3(columns: Sequence[pa.Array]) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return the Murmur3 hash (x86, 32 bits, seed 0) of each row.

    The hash covers the concatenated values of the row; nulls are omitted.
    """
    if not len(columns[0]):
        return np.zeros(0, np.int32)
    joined = pc.binary_join_element_wise(
        *[pc.fill_null(_bytes(column), b"") for column in columns], pa.scalar(b"", pa.large_binary())
    )
    _, offsets, data = joined.buffers()
    ends = np.frombuffer(offsets, np.int64)[joined.offset : joined.offset + len(joined) + 1]
    starts, lengths = ends[:-1], np.diff(ends)
    padded = np.concatenate([np.frombuffer(data or b"", np.uint8), np.zeros(4, np.uint8)])
    state = np.zeros(len(joined), np.uint32)
    blocks = lengths // 4
    for block in range(int(blocks.max())):
        rows = np.flatnonzero(blocks > block)
        state[rows] = _rotated(state[rows] ^ _mixed(_word(padded, starts[rows] + 4 * block)), 13) * np.uint32(5)
        state[rows] += np.uint32(0xE6546B64)
    tails = lengths % 4
    rows = np.flatnonzero(tails)
    mask = (np.uint32(1) << (8 * tails[rows]).astype(np.uint32)) - np.uint32(1)
    state[rows] ^= _mixed(_word(padded, starts[rows] + 4 * blocks[rows]) & mask)
    state ^= lengths.astype(np.uint32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        state = (state ^ (state >> np.uint32(shift))) * np.uint32(factor)
    return state.view(np.int32)


def _bytes(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind):
        return column.cast(pa.large_binary())
    if pa.types.is_large_binary(kind):
        return column
    if pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    if kind != pa.uint64():  # a larger value has no equal in another type
        column = column.cast(pa.int64())
    words = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(8), len(column), [None, pa.py_buffer(words.astype("<u8"))])
    present = pc.if_else(pc.is_valid(column), fixed, pa.scalar(None, pa.binary(8)))
    return present.cast(pa.large_binary())


def _word(data: np.ndarray[Any, np.dtype[np.uint8]], at: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """Return four bytes from each position as a little-endian word."""
    word = np.zeros(len(at), np.uint32)
    for byte in range(4):
        word |= data[at + byte].astype(np.uint32) << np.uint32(8 * byte)
    return word


def _mixed(word: np.ndarray[Any, np.dtype[np.uint32]]) -> np.ndarray[Any, np.dtype[np.uint32]]:
    return _rotated(word * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)


def _rotated(word: np.ndarray[Any, np.dtype[np.uint32]], by: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    return (word << np.uint32(by)) | (word >> np.uint32(32 - by))
