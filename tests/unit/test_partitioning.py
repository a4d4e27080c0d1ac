"""Partition specifications, their transforms, and pruning, which may never lose a row."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lancekeep import Damaged, InvalidInput, PartitionBy, PartitionField, PartitionSpec, Refused, Transform
from lancekeep.application.partitions.arrow_json import exact_schema_text, schema_json, schema_of
from lancekeep.application.partitions.calendar import keeps_dates
from lancekeep.application.partitions.values import (
    expression,
    is_understood,
    keeps,
    murmur3,
    partition_arrays,
    partition_field,
    split,
    transformed,
    with_field_ids,
)
from lancekeep.domain.partitioning import next_spec, specs_of
from lancekeep.domain.partitions import key_of
from lancekeep.domain.pruning import parse_filter

FIELD: dict[str, Any] = {
    "field_id": "event_year",
    "source_ids": [1],
    "transform": {"type": "year"},
    "result_type": {"type": "int32"},
}
EXAMPLE = {
    "id": 2,
    "fields": [
        FIELD,
        {"field_id": "country", "source_ids": [2], "expression": "lower(col0)", "result_type": {"type": "utf8"}},
    ],
}
"""Like the specification's appendix A, with an expression."""

SCHEMA = with_field_ids(
    pa.schema(
        [
            ("i", pa.int64()),
            ("small", pa.int8()),
            ("u", pa.uint16()),
            ("f", pa.float64()),
            ("s", pa.string()),
            ("d", pa.date32()),
            ("ts", pa.timestamp("us")),
            ("utc", pa.timestamp("ms", "UTC")),
            ("tz", pa.timestamp("us", "America/New_York")),
            ("dec", pa.decimal128(9, 2)),
            ("b", pa.binary()),
            ("yes", pa.bool_()),
        ]
    )
)


def fields(*wanted: PartitionBy) -> list[PartitionField]:
    return [partition_field(by, SCHEMA) for by in wanted]


# -- specifications -------------------------------------------------------------------------------------------------


def test_spec_round_trips_in_the_specified_form() -> None:
    spec = PartitionSpec.from_json(json.dumps(EXAMPLE))
    assert json.loads(spec.to_json()) == EXAMPLE
    assert (spec.namespace, spec.property, spec.fields[0].column) == (
        "v2",
        "partition_spec_v2",
        "partition_field_event_year",
    )
    with pytest.raises(Refused, match="expression"):
        spec.require_writable()
    assert specs_of({"partition_spec_v2": spec.to_json(), "partition_spec": "none", "other": ""}) == {2: spec}
    with pytest.raises(Damaged, match="the id 2"):
        specs_of({"partition_spec_v3": spec.to_json()})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"transform": {"type": "void"}}, "unknown transform 'void'"),
        ({"transform": {"type": "bucket"}}, "needs num_buckets"),
        ({"transform": {"type": "bucket", "num_buckets": 0}}, "needs num_buckets"),
        ({"transform": {"type": "truncate", "width": True}}, "needs width"),
        ({"transform": {"type": "year", "width": 3}}, "unknown parameters: width"),
        ({"expression": "col0"}, "exactly one of transform and expression"),
        ({"transform": None}, "exactly one of transform and expression"),
        ({"source_ids": []}, "source_ids"),
        ({"source_ids": ["a"]}, "source_ids"),
        ({"result_type": "int32"}, "result_type"),
        ({"field_id": "a.b"}, "field_id"),
    ],
)
def test_unsupported_spec_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        PartitionSpec.from_json(json.dumps({"id": 1, "fields": [{**FIELD, **change}]}))


def test_field_id_is_permanent() -> None:
    first = next_spec({}, fields(PartitionBy.year("ts"), PartitionBy.identity("s")))
    again = next_spec({1: first}, fields(PartitionBy.year("ts", "renamed"), PartitionBy.identity("s")))
    assert again is first
    second = next_spec({1: first}, fields(PartitionBy.identity("s", "other"), PartitionBy.bucket("i", 8)))
    assert [field.field_id for field in second.fields] == ["s", "i_bucket_8"]
    third = next_spec({1: first, 2: second}, fields(PartitionBy.year("ts", "x")))
    assert (third.id, third.fields[0].field_id) == (3, "ts_year")
    with pytest.raises(InvalidInput, match="belongs to another"):
        next_spec({1: first, 2: second}, fields(PartitionBy.month("ts", "ts_year")))
    for twice in (
        [PartitionBy.year("ts"), PartitionBy.year("ts", "b")],
        [PartitionBy.year("ts"), PartitionBy.day("ts", "ts_year")],
    ):
        with pytest.raises(InvalidInput, match="twice"):
            next_spec({}, fields(*twice))
    with pytest.raises(InvalidInput, match="at least one"):
        next_spec({}, [])


@pytest.mark.parametrize(
    ("by", "message"),
    [
        (PartitionBy.identity("nothing"), "the columns are i, small"),
        (PartitionBy.year("i"), "it is int64"),
        (PartitionBy.hour("s"), "it is string"),
        (PartitionBy.bucket("f", 3), "floating point"),
        (PartitionBy.truncate("b", 3), "it is binary"),
        (PartitionBy.multi_bucket(["i"], 3), "several columns"),
    ],
)
def test_transform_of_an_unsuitable_column_is_refused(by: PartitionBy, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        partition_field(by, SCHEMA)


def test_schema_round_trips_through_json_exactly() -> None:
    schema = SCHEMA.append(pa.field("vector", pa.list_(pa.float32(), 3))).with_metadata({"who": "me"})
    text = exact_schema_text(schema)
    assert schema_of(text).equals(schema, check_metadata=True)
    foreign = schema_of(json.dumps(schema_json(schema)))
    assert foreign.field("ts").type == pa.timestamp("us")
    assert foreign.field("utc").type == pa.timestamp("us")
    assert [field.type for field in foreign if field.name not in ("utc", "tz")] == [
        field.type for field in schema if field.name not in ("utc", "tz")
    ]
    evolved = json.loads(text)
    evolved["fields"] = evolved["fields"][:2]
    assert schema_of(json.dumps(evolved)).names == ["i", "small"]
    with pytest.raises(Damaged, match="no schema"):
        schema_of('{"fields":[{"name":"x","type":{"type":"?"}}]}')


# -- transforms -----------------------------------------------------------------------------------------------------


def test_hashes_match_murmur3() -> None:
    """The algorithm's own vectors, and those that Iceberg publishes for the same bytes."""
    texts = {"": 0, "a": 0x3C2569B2, "hello": 0x248BFA47, "hello, world": 0x149BBB7F, "iceberg": 1210000089}
    texts["The quick brown fox jumps over the lazy dog"] = 0x2E4FF723
    assert murmur3([pa.array(texts)]).tolist() == list(texts.values())
    assert murmur3([pa.array([b"\0", b"\0\0", b"\0\0\0", b"\xff\xff\xff\xff", b"\0\1\2\3"])]).view(
        "uint32"
    ).tolist() == [
        0x514E28B7,
        0x30F4C306,
        0x85F0B427,
        0x76293B50,
        2**32 - 188683207,
    ]
    moment = dt.datetime(2017, 11, 16, 22, 31, 8)
    assert murmur3([pa.array([moment], pa.timestamp("us"))]).tolist() == [-2047944441]
    assert murmur3([pa.array([moment.date()])]).tolist() == [-653330422]
    for width in (pa.int8(), pa.uint8(), pa.int32(), pa.int64(), pa.uint64()):
        assert murmur3([pa.array([34, None], width)]).tolist()[0] == 2017239379
    columns = [pa.array([1, None, 1, None]), pa.array(["a", "a", None, None])]
    joined = murmur3([pa.array([b"\1" + b"\0" * 7 + b"a", b"a", b"\1" + b"\0" * 7])]).tolist()
    assert murmur3(columns).tolist()[:3] == joined
    buckets = transformed(Transform("multi_bucket", 7), columns).to_pylist()
    assert buckets == [abs(value) % 7 for value in joined] + [None]
    assert transformed(Transform("bucket", 16), [pa.array([34, None])]).to_pylist() == [2017239379 % 16, None]


def test_transforms_match_the_expressions_in_the_engine(tmp_path: Path) -> None:
    moments = [dt.datetime(1969, 12, 31, 23, 30), dt.datetime(1583, 1, 1), dt.datetime(2024, 2, 29, 5), None]
    data = pa.table(
        {
            "s": ["é😀xyz", "ab", "", None],
            "i": [-7, -5, 7, None],
            "u": pa.array([0, 1, 7, None], pa.uint8()),
            "dec": pa.array([Decimal("-7.50"), Decimal("12.25"), Decimal("0.10"), None], pa.decimal128(9, 2)),
            "f": pa.array([-7.25, 12.7, 1e300, None]),
            "f32": pa.array([math.inf, 12.7, math.nan, None], pa.float32()),
            "ts": pa.array(moments, pa.timestamp("us")),
            "tz": pa.array(moments, pa.timestamp("us", "America/New_York")),
            "d": pa.array(moments, pa.timestamp("us")).cast(pa.date32(), safe=False),
        }
    )
    derived = {f"left({name}, 2)": (Transform("truncate", 2), name) for name in ["s"]}
    derived |= {f"{name} - ({name} % 5)": (Transform("truncate", 5), name) for name in ["i", "u", "dec", "f", "f32"]}
    for part in ("year", "month", "day", "hour"):
        derived |= {f"date_part('{part}', {name})": (Transform(part), name) for name in ["ts", "tz", "d"]}
    dataset = lance.write_dataset(data, tmp_path / "t")
    expected = dataset.to_table(columns={f"c{at}": text for at, text in enumerate(derived)})
    for at, (text, (transform, name)) in enumerate(derived.items()):
        found = transformed(transform, [data[name].combine_chunks()])
        assert [key_of([value]) for value in found.to_pylist()] == [
            key_of([value]) for value in expected[f"c{at}"].to_pylist()
        ], text


def test_rows_are_split_by_their_values() -> None:
    data = pa.table({"f": [1.0, math.nan, 0.0, -0.0, None, 1.0, math.nan], "n": range(7)})
    parts = {key_of(values): rows["n"].to_pylist() for values, rows in split(data, [data["f"].combine_chunks()])}
    assert parts == {(1.0,): [0, 5], (("NaN",),): [1, 6], (0.0,): [2, 3], (None,): [4]}
    assert list(split(data.slice(0, 0), [pa.array([], pa.float64())])) == []


# -- pruning --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_filter", "message"),
    [
        ("i > 3", "list of tuples"),
        ([("i", "~", 3)], "unknown operator"),
        ([("i", "=", None)], "use 'is null'"),
        ([("f", ">", math.nan)], "NaN"),
        ([("i", "in", 3)], "list of values"),
        ([("i", "is null", 3)], "takes no value"),
        ([("i", "=")], "needs a value"),
        ([("nothing", "=", 3)], "no column 'nothing'"),
        ([("i", "=", 3.5)], "cannot be compared"),
        ([("small", "=", 1000)], "cannot be compared"),
        ([("i", "=", "3")], "cannot be compared"),
        ([("d", "=", "yesterday")], "cannot be compared"),
    ],
)
def test_invalid_filter_is_refused(given_filter: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        expression(parse_filter(given_filter), SCHEMA)


def kept(by: PartitionBy, given_filter: Any, values: list[Any]) -> list[Any]:
    [conjunction] = parse_filter(given_filter)
    test = keeps(partition_field(by, SCHEMA), SCHEMA, conjunction)
    return [value for value in values if test(value)]


def test_pruning_keeps_only_matching_partitions() -> None:
    months, days = list(range(1, 13)), list(range(1, 32))
    assert kept(PartitionBy.identity("i"), [("i", ">", 3), ("i", "!=", 5)], [None, 3, 4, 5]) == [4]
    assert kept(
        PartitionBy.year("ts"), [("ts", ">=", "2024-06-01"), ("ts", "<", "2025-01-01")], [2023, 2024, 2025]
    ) == [2024, 2025]
    assert kept(PartitionBy.month("ts"), [("ts", "=", dt.datetime(1960, 2, 3))], months) == [2]
    assert kept(PartitionBy.month("d"), [("d", ">", "2024-11-30"), ("d", "<=", "2025-01-01")], months) == [1, 11, 12]
    assert kept(PartitionBy.day("ts"), [("ts", ">", "2024-02-28"), ("ts", "<", "2024-03-01T01:00")], days) == [
        1,
        28,
        29,
    ]
    assert kept(PartitionBy.bucket("s", 4), [("s", "in", ["iceberg"])], [None, 0, 1, 2, 3]) == [1210000089 % 4]
    assert kept(PartitionBy.truncate("s", 2), [("s", ">=", "b😀x")], ["a", "b😀", "b", "c", None]) == ["b😀", "c"]
    assert kept(PartitionBy.truncate("i", 10), [("i", "=", -7)], [-20, -10, 0, 10]) == [-10, 0]
    assert kept(PartitionBy.identity("f"), [("f", "<", 0.0)], [-1.0, 0.0, 1.0]) == [-1.0, 0.0]
    both = [("i", "=", 1), ("s", "in", ["a", "b"])]
    assert len(kept(PartitionBy.multi_bucket(["i", "s"], 100), both, [None, *range(100)])) == 2
    assert kept(PartitionBy.identity("s"), [("s", "is null")], [None, "a"]) == [None]
    assert kept(PartitionBy.identity("s"), [("s", "not in", ["a"])], [None, "a", "b"]) == ["b"]


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "i": st.sampled_from([-(2**63), -9, -1, 0, 1, 10, 2**63 - 1]),
    "small": st.integers(-7, 7),
    "u": st.integers(0, 40),
    "f": st.sampled_from([math.nan, -math.inf, -1.5, -0.0, 0.0, 1.5, math.inf]),
    "s": st.text("aé😀", max_size=4),
    "d": st.dates(dt.date(1969, 11, 20), dt.date(1970, 2, 10)),
    "ts": st.datetimes(dt.datetime(1969, 12, 30), dt.datetime(1970, 1, 2)),
    "utc": st.datetimes(dt.datetime(1969, 12, 31, 12), dt.datetime(1970, 1, 1, 12)).map(
        lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    ),
    "tz": st.datetimes(dt.datetime(2024, 11, 2), dt.datetime(2024, 11, 4)),
    "dec": st.decimals("-4", "4", places=1),
    "b": st.binary(max_size=2),
    "yes": st.booleans(),
}
EVERY_FIELD = fields(
    *(PartitionBy.identity(name) for name in SCHEMA.names),
    *(PartitionBy.truncate(name, 2) for name in ("i", "small", "u", "s", "dec", "f")),
    *(PartitionBy.bucket(name, 3) for name in ("i", "small", "u", "s", "d", "ts", "utc", "tz", "b")),
    *(
        make(name)
        for make in (PartitionBy.year, PartitionBy.month, PartitionBy.day)
        for name in ("d", "ts", "utc", "tz")
    ),
    *(PartitionBy.hour(name) for name in ("d", "ts", "utc", "tz")),
    PartitionBy.multi_bucket(["i", "s"], 5),
)


DATES = PartitionSpec(
    1,
    tuple(
        fields(
            *(
                make(name)
                for name in ("ts", "d", "utc", "tz")
                for make in (PartitionBy.year, PartitionBy.month, PartitionBy.day)
            ),
            PartitionBy.hour("ts"),
            PartitionBy.hour("utc"),
        )
    ),
)


def test_parts_of_a_date_select_a_range_together() -> None:
    by = fields(PartitionBy.month("d"), PartitionBy.identity("i"), PartitionBy.year("d"), PartitionBy.day("d"))

    def among(*conditions: Any) -> list[tuple[int | None, ...]]:
        days = [(1, 0, 2024, 31), (2, 0, 2024, 1), (3, 0, 2024, 5), (2, 0, 2025, 1), (None, 0, None, None)]
        [conjunction] = parse_filter(list(conditions))
        test = keeps_dates(PartitionSpec(1, tuple(by)), SCHEMA, conjunction)
        return [day for day in days if test(day)]

    assert among(("d", ">=", "2024-02-01"), ("d", "<", "2025-01-01")) == [(2, 0, 2024, 1), (3, 0, 2024, 5)]
    assert among(("d", "in", [dt.date(2024, 1, 31), dt.date(2025, 2, 1)])) == [(1, 0, 2024, 31), (2, 0, 2025, 1)]
    assert among(("d", ">", "2024-03-05")) == [(3, 0, 2024, 5), (2, 0, 2025, 1)]
    assert among(("d", "is null"), ("i", "=", 0)) == [(None, 0, None, None)]
    assert len(among(("d", "!=", "2024-02-01"), ("i", "=", 7))) == 4


@st.composite
def columns_and_bounds(draw: st.DrawFn) -> tuple[pa.Table, dict[str, list[Any]]]:
    """Rows, and two values of each column to compare with, which may or may not occur."""
    columns = {name: draw(st.lists(st.none() | values, min_size=8, max_size=8)) for name, values in VALUES.items()}
    bounds = {}
    for name, values in VALUES.items():
        usual = (st.sampled_from(columns[name]) | values).filter(lambda value: value is not None and value == value)
        bounds[name] = sorted(draw(st.lists(usual, min_size=2, max_size=2)))
    return pa.table(columns, schema=SCHEMA), bounds


def conditions(name: str, low: Any, high: Any) -> list[list[Any]]:
    single = [(name, operator, low) for operator in ("=", "!=", "<", "<=", ">", ">=")]
    single += [(name, "in", [low, high]), (name, "not in", [low])]
    ranges = [[(name, ">=", low), (name, "<", high)], [(name, ">", low), (name, "<=", high)]]
    return [[condition] for condition in (*single, (name, "is null"), (name, "is not null"))] + ranges


def downwards(field: PartitionField, rows: pa.Table) -> list[Any]:
    """What writers make of negative numbers that truncate them otherwise than specified."""
    values = rows[SCHEMA.names[field.source_ids[0]]].to_pylist()
    return [None if value is None else value - value % 2 for value in values]


@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow])
@given(case=columns_and_bounds())
def test_pruning_keeps_every_matching_row(case: tuple[pa.Table, dict[str, list[Any]]]) -> None:
    """Every row is a partition of its own; what the engine finds without partitions is the truth."""
    rows, bounds = case
    numbered = rows.append_column("row", pa.array(range(rows.num_rows)))
    dataset = lance.write_dataset(numbered, "memory://pruning")
    arrays = partition_arrays(rows, PartitionSpec(1, tuple(EVERY_FIELD)), SCHEMA)
    filters = [each for name, values in bounds.items() for each in conditions(name, *values)]
    filters.append([("i", "in", bounds["i"]), ("s", "in", bounds["s"])])
    for given_filter in filters:
        wanted = parse_filter(given_filter)
        condition = expression(wanted, SCHEMA)
        understood = is_understood(wanted, SCHEMA)
        found = dataset.to_table(filter=condition) if understood else numbered.filter(condition)
        names = {name for name, *_ in given_filter}
        for field, array in zip(EVERY_FIELD, arrays, strict=True):
            if not names & {SCHEMA.names[number] for number in field.source_ids}:
                continue
            partitions = [array.to_pylist()]
            if field.transform == Transform("truncate", 2) and field.result_type["type"] != "utf8":
                partitions.append(downwards(field, rows))
            test = keeps(field, SCHEMA, wanted[0])
            for values in partitions:
                lost = [values[row] for row in found["row"].to_pylist() if not test(values[row])]
                assert not lost, (field, given_filter, lost)
        among = keeps_dates(DATES, SCHEMA, wanted[0])
        parts = list(zip(*[array.to_pylist() for array in partition_arrays(rows, DATES, SCHEMA)], strict=True))
        assert all(among(parts[row]) for row in found["row"].to_pylist()), given_filter
