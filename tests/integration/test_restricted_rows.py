"""Rows within a restriction, compared with rows that Python selects.

Each condition is a policy's, and a caller's. Rows for which it is unknown are in neither answer, of the condition and
of its negation.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import lance_namespace as api
import pyarrow as pa
import pytest
from lance_namespace.errors import (
    InvalidInputError,
    PermissionDeniedError,
    TableColumnNotFoundError,
    UnsupportedOperationError,
)

import lancekeep
from lancekeep.domain.conditions import condition_of
from lancekeep.domain.restrictions import Restriction
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace
from lancekeep.entrypoints.namespace.restricted import RestrictedOperations
from lancekeep.ports.table_structure import ColumnChange, NewIndex

UTC, PARIS = dt.UTC, dt.timezone(dt.timedelta(hours=1))
NAN = float("nan")
Rule = tuple[str, Callable[[Any], bool | None]]


def day(*at: int) -> dt.datetime:
    return dt.datetime(*at)  # type: ignore[arg-type]


def among(*values: Any) -> Callable[[Any], bool]:
    return lambda value: value in values


TYPES: dict[str, tuple[pa.DataType, list[Any], list[Rule]]] = {
    "decimal": (
        pa.decimal128(10, 2),
        [Decimal("1.10"), Decimal("2.00"), Decimal("-99999999.99"), Decimal("0.00")],
        [
            ("c = 1.1", lambda c: c == Decimal("1.1")),
            ("c >= 1.10", lambda c: c >= Decimal("1.1")),
            ("2 > c", lambda c: c < 2),
            ("c IN (-99999999.99, 2e0)", among(Decimal("-99999999.99"), Decimal(2))),
            ("c BETWEEN 0 AND 1.1", lambda c: 0 <= c <= Decimal("1.1")),
        ],
    ),
    "wide decimal": (
        pa.decimal128(38, 2),
        [Decimal("9" * 36 + ".99"), Decimal("9" * 36 + ".98"), Decimal(1)],
        [(f"c < {'9' * 36}.99", lambda c: c != Decimal("9" * 36 + ".99"))],
    ),
    "decimal of 256 bits": (
        pa.decimal256(70, 2),
        [Decimal("9" * 60), Decimal(1), Decimal(-1)],
        [(f"c = {'9' * 60}", lambda c: c > 1)],
    ),
    "date": (
        pa.date32(),
        [dt.date(1, 1, 1), dt.date(2020, 1, 1), dt.date(9999, 12, 31)],
        [
            ("c < DATE '2020-01-01'", lambda c: c < dt.date(2020, 1, 1)),
            ("c = '2020-01-01'", lambda c: c == dt.date(2020, 1, 1)),
        ],
    ),
    "date64": (
        pa.date64(),
        [dt.date(1, 1, 1), dt.date(2020, 1, 1)],
        [("c >= '2020-01-01'", lambda c: c == dt.date(2020, 1, 1))],
    ),
    "seconds": (
        pa.timestamp("s"),
        [day(1, 1, 1), day(2020, 1, 1), day(2020, 1, 1, 0, 0, 1), day(9999, 1, 1)],
        [
            ("c > TIMESTAMP '2020-01-01 00:00:00.0'", lambda c: c > day(2020, 1, 1)),
            ("c > DATE '2020-01-01'", lambda c: c > day(2020, 1, 1)),
            ("c = '2020-01-01T00:00:01'", lambda c: c == day(2020, 1, 1, 0, 0, 1)),
        ],
    ),
    "microseconds": (
        pa.timestamp("us"),
        [day(1, 1, 1), day(2020, 1, 1), day(2020, 1, 1, 0, 0, 0, 1)],
        [("c >= TIMESTAMP '2020-01-01 00:00:00.000001'", lambda c: c.microsecond == 1)],
    ),
    "nanoseconds": (
        pa.timestamp("ns"),
        [day(2020, 1, 1), day(2020, 1, 1, 0, 0, 0, 1), day(1700, 1, 1)],
        [
            ("c > TIMESTAMP '2020-01-01 00:00:00.000000999'", lambda c: c.microsecond == 1),
            ("c < TIMESTAMP '2020-01-01 00:00:00.000001001'", lambda c: True),
        ],
    ),
    "a zone": (
        pa.timestamp("us", "Europe/Paris"),
        [dt.datetime(2020, 1, 1, tzinfo=zone) for zone in (UTC, PARIS)] + [dt.datetime(2021, 7, 1, tzinfo=UTC)],
        [
            ("c = TIMESTAMP '2020-01-01 00:00:00'", lambda c: c == dt.datetime(2020, 1, 1, tzinfo=PARIS)),
            ("c = TIMESTAMP '2020-01-01T00:00:00Z'", lambda c: c == dt.datetime(2020, 1, 1, tzinfo=UTC)),
            ("c < '2020-01-01T01:00:00+01:00'", lambda c: c < dt.datetime(2020, 1, 1, tzinfo=UTC)),
        ],
    ),
    "UTC": (
        pa.timestamp("us", "UTC"),
        [dt.datetime(2020, 1, 1, tzinfo=UTC), dt.datetime(2020, 1, 1, tzinfo=PARIS)],
        [("c >= DATE '2020-01-01'", lambda c: c == dt.datetime(2020, 1, 1, tzinfo=UTC))],
    ),
    **{
        f"time {unit}": (
            kind(unit),
            [dt.time(), dt.time(1, 2, 3), dt.time(23, 59, 59)],
            [
                ("c = TIME '01:02:03'", lambda c: c == dt.time(1, 2, 3)),
                ("c > '01:02'", lambda c: c > dt.time(1, 2)),
            ],
        )
        for kind, unit in ((pa.time32, "s"), (pa.time32, "ms"), (pa.time64, "us"), (pa.time64, "ns"))
    },
    "duration": (
        pa.duration("us"),
        [dt.timedelta(seconds=1), dt.timedelta(), dt.timedelta(days=-1), dt.timedelta(microseconds=1500)],
        [
            ("c >= INTERVAL '1.5 milliseconds'", lambda c: c >= dt.timedelta(microseconds=1500)),
            ("c IN (INTERVAL '-1 day', INTERVAL '1 second')", among(dt.timedelta(days=-1), dt.timedelta(seconds=1))),
        ],
    ),
    **{
        str(kind): (
            kind,
            [b"ab", b"\xff\xff", b"\0\0"],
            [("c = X'6162'", lambda c: c == b"ab"), ("c < x'7f00'", lambda c: c < b"\x7f")],
        )
        for kind in (pa.binary(), pa.large_binary(), pa.binary(2))
    },
    "uuid": (
        pa.uuid(),
        [uuid.UUID(int=1), uuid.UUID(int=2)],
        [
            (f"c = '{uuid.UUID(int=2)}'", lambda c: c == uuid.UUID(int=2)),
            (f"c <> X'{uuid.UUID(int=2).hex}'", lambda c: c == uuid.UUID(int=1)),
        ],
    ),
    "words": (
        pa.dictionary(pa.int8(), pa.string()),
        ["a", "b", "c"],
        [("c = 'a'", lambda c: c == "a"), ("c > 'a'", lambda c: c > "a"), ("c LIKE 'a%'", lambda c: c == "a")],
    ),
    "numbers of a dictionary": (
        pa.dictionary(pa.int32(), pa.int64()),
        [1, 2, 3],
        [("c IN (1, 3)", among(1, 3)), ("c > 1", lambda c: c > 1)],
    ),
    "double": (
        pa.float64(),
        [1.5, NAN, -0.0, 0.0, float("inf")],
        [
            ("c = 0", lambda c: c == 0),
            ("c < 0", lambda c: False),
            ("c > 1.5", lambda c: c != c or c > 1.5),  # NaN is larger than each number
            ("c <> 1.5", lambda c: c != 1.5),
        ],
    ),
    **{
        str(kind): (kind, [1.5, NAN, -0.0], [("c >= 1.5", lambda c: c != 0), ("c IN (0, 7)", lambda c: c == 0)])
        for kind in (pa.float16(), pa.float32())
    },
    "int64": (
        pa.int64(),
        [2**63 - 1, -(2**63), 0, 1000],
        [
            (f"c = {2**63 - 1}", lambda c: c == 2**63 - 1),
            (f"c > {-(2**63)}", lambda c: c > -(2**63)),
            ("c = 1e3", lambda c: c == 1000),
            (f"c <= {-(2**63)}.0", lambda c: c == -(2**63)),
            # The engine takes the first part for false, and the second for true, where the value is null.
            ("NOT (c IN (0, 1) AND c IN (1000, 2))", lambda c: True),
            ("c NOT IN (0, 1) OR c NOT IN (1000, 2)", lambda c: True),
            ("NOT ((c = 0 OR c = 1) AND (c = 1000 OR c = 2))", lambda c: True),
        ],
    ),
    "uint64": (pa.uint64(), [2**64 - 1, 0, 1], [(f"c >= {2**64 - 1}", lambda c: c > 1)]),
    "int8": (pa.int8(), [127, -128, 0], [("c BETWEEN -128 AND 0", lambda c: c <= 0)]),
    "boolean": (pa.bool_(), [True, False], [("c", lambda c: c), ("c <> true", lambda c: not c)]),
    "large text": (pa.large_string(), ["a", "b%"], [("c ILIKE 'B%'", lambda c: c == "b%")]),
    "list of texts": (
        pa.list_(pa.string()),
        [["a"], [], ["b", None], ["a", "b"]],
        [("array_has(c, 'a')", lambda c: "a" in c), ("array_contains(c, 'b')", lambda c: "b" in c)],
    ),
    "list of large numbers": (
        pa.list_(pa.uint64()),
        [[2**64 - 1], [1], [None, 3], []],
        [("array_has(c, 1)", lambda c: 1 in c), (f"array_has(c, {2**64 - 1})", lambda c: 2**64 - 1 in c)],
    ),
    "list of fixed size": (pa.list_(pa.int16(), 2), [[1, 2], [3, 4]], [("array_has(c, 1)", lambda c: 1 in c)]),
    "large list of dates": (
        pa.large_list(pa.date32()),
        [[dt.date(2020, 1, 1)], []],
        [("array_has(c, DATE '2020-01-01')", lambda c: bool(c))],
    ),
    **{
        f"list of {kind}": (
            pa.list_(kind),
            [[b"ab"], [], [b"\xff\xff", None]],
            [("array_has(c, X'6162')", lambda c: b"ab" in c)],
        )
        for kind in (pa.binary(), pa.large_binary(), pa.binary(2))
    },
    "list of long dates": (
        pa.list_(pa.date64()),
        [[dt.date(2020, 1, 1)], [], [None]],
        [("array_has(c, '2020-01-01')", lambda c: c == [dt.date(2020, 1, 1)])],
    ),
    "list of decimals": (
        pa.list_(pa.decimal128(10, 2)),
        [[Decimal("1.10")], [Decimal(2)], []],
        [("array_has(c, 1.1)", lambda c: Decimal("1.1") in c)],
    ),
    "struct": (
        pa.struct([("x", pa.int64()), ("s", pa.struct([("t", pa.list_(pa.string()))]))]),
        [{"x": 1, "s": {"t": ["a"]}}, {"x": 2, "s": {"t": []}}, {"x": 3, "s": {"t": ["b"]}}],
        [("c.x > 1", lambda c: c["x"] > 1), ("array_has(c.s.t, 'a')", lambda c: "a" in c["s"]["t"])],
    ),
}

NO_INDEX = ("uuid", "words", "numbers of a dictionary", "struct", "decimal of 256 bits", "duration")


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[lancekeep.Catalog]:
    folder = tmp_path_factory.mktemp("rows")
    with lancekeep.connect(str(folder / "lake"), commit_store="conditional-put://") as catalog:
        catalog.initialize()
        yield catalog


def asked(table: str, **fields: Any) -> api.QueryTableRequest:
    return api.QueryTableRequest(id=[table], **{"k": 0, "vector": {}, **fields})


def perform(catalog: lancekeep.Catalog, operation: str, request: Any, restriction: Restriction) -> Any:
    return RestrictedOperations(CatalogNamespace(catalog)).perform(operation, request, restriction)


def ids(catalog: lancekeep.Catalog, table: str, policy: str, condition: str | None = None, **fields: Any) -> list[int]:
    """Return the ids of the rows that a caller of some rows reads; they are counted, too."""
    restriction = Restriction(None, frozenset([condition_of(policy)]))
    request = asked(table, filter=condition, **fields)
    found: list[int] = perform(catalog, "query_table", request, restriction).read_all()["id"].to_pylist()
    at = {name: value for name, value in fields.items() if name in ("version", "branch")}
    counting = api.CountTableRowsRequest(id=[table], predicate=condition, **at)
    assert perform(catalog, "count_table_rows", counting, restriction).count == len(found)
    return sorted(found)


def expected(values: dict[int, Any], rule: Callable[[Any], bool | None], answer: bool) -> list[int]:
    return [at for at, value in sorted(values.items()) if value is not None and bool(rule(value)) is answer]


@pytest.mark.parametrize("name", TYPES)
def test_conditions_select_the_rows_that_python_selects(catalog: lancekeep.Catalog, name: str) -> None:
    """Also of rows that were deleted, updated, or appended after the index was made, and in earlier versions."""
    kind, values, rules = TYPES[name]
    table = f"t{list(TYPES).index(name)}"
    rows = dict(enumerate([*values, None, *values]))

    def written(some: dict[int, Any]) -> pa.Table:
        storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
        given = [one.bytes if isinstance(one, uuid.UUID) else one for one in some.values()]
        column = pa.array(given, storage.value_type if pa.types.is_dictionary(storage) else storage)
        column = column.dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else column
        column = kind.wrap_array(column) if isinstance(kind, pa.BaseExtensionType) else column
        return pa.table({"id": list(some), "c": column})

    catalog.write(table, written(rows))
    first = catalog.versions.describe(table).version
    if name not in NO_INDEX and not pa.types.is_nested(kind):
        catalog.structure.create_index(table, NewIndex("c", "BTREE", "sorted"))
    catalog.data.delete(table, "id = 0")
    catalog.data.update(table, {"id": "id + 100"}, "id = 1")
    later = {len(rows): values[0], len(rows) + 1: None}
    catalog.write(table, written(later), mode="append")
    now = {**{at: one for at, one in rows.items() if at > 1}, 101: values[1], **later}
    for condition, rule in rules:
        for at, version in ((now, None), (rows, first)):
            for answer, text in ((True, condition), (False, f"NOT ({condition})")):
                wanted = expected(at, rule, answer)
                given = (text,) if version is None else ("id >= 0", text)
                assert ids(catalog, table, *given, version=version) == wanted, text
    assert ids(catalog, table, "c IS NULL") == [at for at, value in sorted(now.items()) if value is None]


UNFIT = {
    "c = 1.105": pa.decimal128(10, 2),
    "c = 123456789": pa.decimal128(10, 2),
    "c > TIMESTAMP '2020-01-01 00:00:00.5'": pa.timestamp("s"),
    "c = TIMESTAMP '2020-01-01 00:00:00Z'": pa.timestamp("us"),
    "c = TIMESTAMP '2020-02-30 00:00:00'": pa.timestamp("us"),
    "c > DATE '1500-01-01'": pa.timestamp("ns"),
    "c < DATE '2020-01-01'": pa.timestamp("us", "Europe/Paris"),
    "c = TIME '24:00:00'": pa.time64("us"),
    "c = TIME '10:00:00.0001'": pa.time32("ms"),
    "c > INTERVAL '1 microsecond'": pa.duration("ms"),
    "c > INTERVAL '1 month'": pa.duration("ms"),
    "c < 300": pa.int8(),
    "c >= -1": pa.uint64(),
    "c > 1.5": pa.int64(),
    "c > 1e300": pa.float32(),
    "c = X'61'": pa.binary(2),
    "c = 'a'": pa.binary(),
    "c LIKE '2020%'": pa.date32(),
    "array_has(c, 0)": pa.list_(pa.float64()),
    "array_has(c, 1.5)": pa.list_(pa.int64()),
    "array_has(c, 'a')": pa.string(),
    "c = '1'": pa.list_(pa.string()),
}


@pytest.mark.parametrize("condition", UNFIT)
def test_a_constant_that_a_column_cannot_have_is_refused(catalog: lancekeep.Catalog, condition: str) -> None:
    """The engine would round it, or convert the values of the column, so the condition would select other rows."""
    table = f"unfit{list(UNFIT).index(condition)}"
    catalog.write(table, pa.table({"id": [1], "c": pa.nulls(1, UNFIT[condition])}))
    with pytest.raises(PermissionDeniedError, match="correct the policy"):
        ids(catalog, table, condition)
    with pytest.raises(InvalidInputError, match="cannot have"):
        ids(catalog, table, "id >= 0", condition)


def test_a_blob_is_compared_with_nothing(catalog: lancekeep.Catalog) -> None:
    """The engine compares its description: a position in a file."""
    blob = pa.field("c", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    rows = [pa.array([1, 2]), pa.array([b"ab", None], pa.large_binary())]
    catalog.write("blobs", pa.table(rows, schema=pa.schema([pa.field("id", pa.int64()), blob])))
    for condition in ("c = X'6162'", "c.data = X'6162'", "NOT (c.uri = 'a')"):
        with pytest.raises(PermissionDeniedError, match="correct the policy"):
            ids(catalog, "blobs", condition)
    assert ids(catalog, "blobs", "c IS NULL") == [2]


# -- versions and branches ----------------------------------------------------------------------------------------


def shown(catalog: lancekeep.Catalog, table: str, *columns: str, rows: str = "", **at: Any) -> list[dict[str, Any]]:
    """Return the rows that a caller of some columns reads, ordered by their ids."""
    restriction = Restriction(frozenset(columns) or None, frozenset([condition_of(rows)] if rows else []))
    request = asked(table, **at)
    found: list[dict[str, Any]] = perform(catalog, "query_table", request, restriction).read_all().to_pylist()
    described = perform(
        catalog,
        "describe_table",
        api.DescribeTableRequest(id=[table], load_detailed_metadata=True, **at),
        restriction,
    )
    assert [field.name for field in described.var_schema.fields] == (list(found[0]) if found else list(columns))
    return sorted(found, key=lambda row: row["id"])


def numbered(*ids: int, **columns: Any) -> pa.Table:
    return pa.table({"id": list(ids), **{name: [value] * len(ids) for name, value in columns.items()}})


@pytest.mark.parametrize("appends", [0, 5])
def test_a_number_that_a_later_column_got_makes_no_earlier_column_readable(
    catalog: lancekeep.Catalog, appends: int
) -> None:
    """A compaction removes the files from which the engine knows which numbers columns had."""
    catalog.write("reused", numbered(1, 2, note="secret"), mode="overwrite")
    first = catalog.versions.describe("reused").version
    for number in range(appends):
        catalog.write("reused", numbered(10 + number, note="secret"), mode="append")
    catalog.structure.drop_columns("reused", ["note"])
    catalog.write("reused", numbered(3), mode="append")
    catalog.open("reused").optimize.compact_files()
    catalog.structure.add_columns("reused", {"note": "'public'"})
    assert [field.id() for field in catalog.open("reused").lance_schema.fields()] == [0, 1]  # as in version 1
    assert shown(catalog, "reused", "id", "note")[0] == {"id": 1, "note": "public"}
    assert shown(catalog, "reused", "id", "note", version=first) == [{"id": 1}, {"id": 2}]
    request = api.CountTableRowsRequest(id=["reused"], version=first)
    by_note = Restriction(None, frozenset([condition_of("note = 'secret'")]))
    with pytest.raises(PermissionDeniedError):
        perform(catalog, "count_table_rows", request, by_note)


def test_an_overwritten_column_that_got_the_name_of_a_dropped_one_is_another(catalog: lancekeep.Catalog) -> None:
    catalog.write("renamed", numbered(1, note="secret"))
    catalog.write("renamed", numbered(2, other="public"), mode="overwrite")
    catalog.structure.alter_columns("renamed", [ColumnChange("other", name="note")])
    assert shown(catalog, "renamed", "id", "note") == [{"id": 2, "note": "public"}]
    assert shown(catalog, "renamed", "id", "note", version=1) == [{"id": 1}]
    # Beside the file of a column that remains, no number is given again.
    catalog.write("kept", numbered(1, note="secret"))
    catalog.structure.drop_columns("kept", ["note"])
    catalog.structure.add_columns("kept", {"note": "'public'"})
    assert shown(catalog, "kept", "id", "note", version=1) == [{"id": 1}]


def test_columns_stay_readable_in_versions_before_all_files_were_rewritten(catalog: lancekeep.Catalog) -> None:
    catalog.write("rewritten", numbered(1, 2, note="a"))
    for number in range(3, 6):
        catalog.write("rewritten", numbered(number, note="b"), mode="append")
    catalog.open("rewritten").optimize.compact_files()
    catalog.write("rewritten", numbered(7, note="c"), mode="overwrite")
    catalog.write("rewritten", numbered(8, note="d"), mode="append")
    assert shown(catalog, "rewritten", "id", "note", version=1) == [{"id": 1, "note": "a"}, {"id": 2, "note": "a"}]
    assert shown(catalog, "rewritten", "id", "note") == [{"id": 7, "note": "c"}, {"id": 8, "note": "d"}]


def test_branches_are_read_within_a_restriction(catalog: lancekeep.Catalog) -> None:
    catalog.write("forked", numbered(1, 2, 3, team="open", salary=9))
    catalog.branches.create("forked", "side")
    catalog.open("forked", branch="side").insert(numbered(4, 5, team="open", salary=8), mode="append")
    catalog.open("forked", branch="side").update({"team": "'closed'"}, "id IN (1, 5)")
    catalog.branches.create("forked", "deeper", source="side")
    catalog.open("forked", branch="deeper").delete("id = 2")
    at = {"columns": ("id", "team"), "rows": "team = 'open'"}
    columns: tuple[str, ...] = ("id", "team")
    for branch, expected_ids in ((None, [1, 2, 3]), ("side", [2, 3, 4]), ("deeper", [3, 4])):
        found = shown(catalog, "forked", *columns, rows=str(at["rows"]), branch=branch)
        assert found == [{"id": number, "team": "open"} for number in expected_ids]
        assert ids(catalog, "forked", "team = 'open'", branch=branch) == expected_ids
    catalog.tags.create("forked", "aside", catalog.open("forked", branch="side").version, branch="side")
    tagged = api.DescribeTableRequest(id=["forked"], tag="aside", load_detailed_metadata=True)
    described = perform(catalog, "describe_table", tagged, Restriction(frozenset({"id", "team"})))
    assert [field.name for field in described.var_schema.fields] == ["id", "team"]


def test_a_branch_keeps_the_columns_that_it_has_of_the_main_history(catalog: lancekeep.Catalog) -> None:
    """Also after all files of both were rewritten; not those that the main history dropped since."""
    catalog.write("grown", numbered(1, team="open", note="secret"))
    catalog.write("grown", numbered(2, team="open", note="secret"), mode="append")
    catalog.branches.create("grown", "side")
    catalog.open("grown", branch="side").optimize.compact_files()
    catalog.open("grown").optimize.compact_files()
    assert shown(catalog, "grown", "id", "note", branch="side")[0] == {"id": 1, "note": "secret"}
    catalog.structure.drop_columns("grown", ["note"])
    catalog.write("grown", numbered(3, team="open"), mode="append")
    catalog.open("grown").optimize.compact_files()
    catalog.structure.add_columns("grown", {"note": "'public'"})
    assert shown(catalog, "grown", "id", "note", branch="side") == [{"id": 1}, {"id": 2}]


def test_a_branch_that_gave_a_number_again_shows_no_column_of_the_main_history(catalog: lancekeep.Catalog) -> None:
    catalog.write("regrown", numbered(1, team="open", note="public"))
    catalog.branches.create("regrown", "side")
    side = catalog.open("regrown", branch="side")
    side.drop_columns(["note"])
    side.insert(numbered(2, team="open"), mode="append")
    side.optimize.compact_files()
    side.add_columns({"note": "'secret'"})
    catalog.write("regrown", numbered(3, team="open", note="public"), mode="append")
    assert shown(catalog, "regrown", "id", "note", branch="side") == [{"id": 1}, {"id": 2}]


@pytest.mark.parametrize("compacted", [False, True])
def test_a_column_of_a_branch_is_another_column_than_one_of_the_main_history(
    catalog: lancekeep.Catalog, compacted: bool
) -> None:
    """Both histories give the same number to their next column."""
    table = f"apart{compacted:d}"
    catalog.write(table, numbered(1, team="open"))
    catalog.branches.create(table, "side")
    side = catalog.open(table, branch="side")
    side.add_columns({"note": "'secret'"})
    side.insert(numbered(2, team="open", note="secret"), mode="append")
    catalog.structure.add_columns(table, {"note": "'public'"})
    catalog.write(table, numbered(3, team="open", note="public"), mode="append")
    if compacted:
        catalog.open(table, branch="side").optimize.compact_files()
        catalog.open(table).optimize.compact_files()
    numbers = [
        {field.name(): field.id() for field in catalog.open(table, branch=each).lance_schema.fields()}
        for each in (None, "side")
    ]
    assert numbers[0] == numbers[1]
    assert shown(catalog, table, "id", "note", "team", branch="side") == [
        {"id": 1, "team": "open"},
        {"id": 2, "team": "open"},
    ]
    with pytest.raises(PermissionDeniedError):
        ids(catalog, table, "note = 'secret'", branch="side")


# -- full-text queries --------------------------------------------------------------------------------------------

WORDS = ("cat", "cats dog", "the running dog", "cat cat bird", "hidden cat", "dogs", "bird song", "hiding")


def texts(*numbers: int) -> pa.Table:
    return pa.table(
        {
            "id": list(numbers),
            "team": ["open" if number % 3 else "closed" for number in numbers],
            "text": [None if number == 7 else WORDS[number % len(WORDS)] for number in numbers],
            "tags": [[WORDS[number % 5], "x"] for number in numbers],
            "box": [{"note": WORDS[number * 3 % 8]} for number in numbers],
            "vector": pa.array([[float(number), 0.0] for number in numbers], pa.list_(pa.float32(), 2)),
            "kind": pa.array([f"k{number % 2}-{number % 3}" for number in numbers]).dictionary_encode(),
        }
    )


INDEXES: dict[str, dict[str, Any]] = {
    "text": {"stem": True, "with_position": True},
    "tags": {"custom_stop_words": ["x", "bird"]},
    "box.note": {"base_tokenizer": "ngram"},
}


@pytest.fixture(scope="module")
def searched(catalog: lancekeep.Catalog) -> lancekeep.Catalog:
    """Return a catalog with a table of open and closed rows, and one with the open rows of the first."""
    every, later = list(range(1, 21)), list(range(21, 31))
    for name, kept in (("mixed", lambda one: True), ("open", lambda one: one % 3)):
        catalog.write(name, texts(*filter(kept, every)))
        if name == "mixed":
            for column, parameters in INDEXES.items():
                catalog.structure.create_index(name, NewIndex(column, "INVERTED", None, parameters))
        catalog.write(name, texts(*filter(kept, later)), mode="append")
        catalog.data.delete(name, "id IN (2, 22)")
        catalog.data.update(name, {"text": "'cat of an update'"}, "id IN (4, 25)")
    for column, parameters in INDEXES.items():
        catalog.structure.create_index("open", NewIndex(column, "INVERTED", None, parameters))
    return catalog


def text(terms: str, *columns: str) -> dict[str, Any]:
    return {"string_query": {"query": terms, "columns": list(columns)}}


def structured(query: dict[str, Any]) -> dict[str, Any]:
    return {"structured_query": {"query": query}}


SEARCHES: dict[str, dict[str, Any]] = {
    "a word": {"full_text_query": text("cat", "text")},
    "words": {"full_text_query": text("running bird", "text")},
    "a list": {"full_text_query": text("dog", "tags")},
    "a stop word of the index": {"full_text_query": text("cat bird", "tags")},
    "a field": {"full_text_query": text("cat", "box.note")},
    "two columns": {"full_text_query": text("cat", "text", "tags")},
    "a phrase": {"full_text_query": structured({"phrase": {"terms": "cat bird", "column": "text"}})},
    "a fuzzy word": {"full_text_query": structured({"match": {"terms": "cax", "column": "text", "fuzziness": 1}})},
    "without": {
        "full_text_query": structured(
            {
                "boolean": {
                    "must": [{"match": {"terms": "cat", "column": "text"}}],
                    "should": [],
                    "must_not": [{"match": {"terms": "bird", "column": "text"}}],
                }
            }
        )
    },
    "a condition": {"full_text_query": text("cat", "text"), "filter": "id > 5 AND kind = 'k1-1'"},
    "some columns": {
        "full_text_query": text("cat", "text"),
        "columns": {"column_names": ["box.note", "id", "_score"]},
        "filter": "kind <> 'x'",
    },
    "aliases": {"full_text_query": text("cat", "text"), "columns": {"column_aliases": {"other": "id", "id": "id"}}},
    "nothing": {"full_text_query": text("zebra", "text")},
    "hybrid": {
        "full_text_query": text("cat", "text"),
        "vector": {"single_vector": [9.0, 0.0]},
        "k": 4,
        "columns": {"column_names": ["id"]},
    },
    "hybrid with a condition": {
        "full_text_query": text("dog", "text"),
        "vector": {"single_vector": [9.0, 0.0]},
        "k": 4,
        "filter": "id > 9",
        "prefilter": True,
    },
}


@pytest.mark.parametrize("search", SEARCHES)
def test_a_full_text_query_is_answered_as_if_there_were_no_other_rows(searched: lancekeep.Catalog, search: str) -> None:
    fields = SEARCHES[search]
    restriction = Restriction(None, frozenset([condition_of("team = 'open'")]))
    found = perform(searched, "query_table", asked("mixed", **fields), restriction).read_all()
    plain = asked("open", **{**fields, "prefilter": True})
    wanted = pa.ipc.open_file(CatalogNamespace(searched).query_table(plain).data).read_all()
    assert found.schema.remove_metadata().names == wanted.schema.names
    keys = [(name, "descending") for name in ("_relevance_score", "_score") if name in wanted.column_names]
    order = [*keys, ("id", "ascending")]
    assert found.sort_by(order).to_pylist() == wanted.sort_by(order).to_pylist()
    assert bool(found.num_rows) is (search != "nothing")


def test_pages_of_a_full_text_query_have_each_row_once(searched: lancekeep.Catalog) -> None:
    restriction = Restriction(None, frozenset([condition_of("team = 'open'")]))

    def page(k: int, offset: int) -> list[int]:
        request = asked("mixed", full_text_query=text("cat", "text"), k=k, offset=offset)
        numbers: list[int] = perform(searched, "query_table", request, restriction).read_all()["id"].to_pylist()
        return numbers

    whole = page(0, 0)
    assert len(whole) > 6
    assert [number for offset in range(0, len(whole) + 2, 2) for number in page(2, offset)] == whole


def test_a_full_text_query_over_too_many_rows_is_refused(
    searched: lancekeep.Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lancekeep.application.rows.restricted_rows._MOST_BYTES", 500)
    restriction = Restriction(None, frozenset([condition_of("team = 'open'")]))
    with pytest.raises(UnsupportedOperationError, match="name fewer columns"):
        perform(searched, "query_table", asked("mixed", full_text_query=text("cat", "text")), restriction)


def test_large_texts_are_refused_before_they_are_put_together(
    searched: lancekeep.Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "lancekeep.application.rows.restricted_rows"
    monkeypatch.setattr(f"{module}._MOST_BYTES", 250)
    monkeypatch.setattr(f"{module}.sealed", lambda batches, _: iter([each for each in batches if not each]))
    restriction = Restriction(None, frozenset([condition_of("team = 'open'")]))
    with pytest.raises(UnsupportedOperationError, match="name fewer columns"):
        perform(searched, "query_table", asked("mixed", full_text_query=text("cat", "text")), restriction)


def test_a_hidden_column_with_the_name_of_a_score_is_not_read(catalog: lancekeep.Catalog) -> None:
    """The engine returns the column, unless the search adds the score."""
    rows = texts(1, 2, 3).append_column("_score", pa.array([7.5, 8.5, 9.5]))
    catalog.write("scored", rows.append_column("_distance", pa.array([7.5, 8.5, 9.5])))
    catalog.structure.create_index("scored", NewIndex("text", "INVERTED"))
    restriction = Restriction(frozenset({"id", "text", "vector"}))
    near: dict[str, Any] = {"vector": {"single_vector": [1.0, 0.0]}, "k": 3}
    for name, search in (("_score", near), ("_distance", {"full_text_query": text("dog", "text")})):
        request = asked("scored", columns={"column_names": ["id", name]}, **search)
        with pytest.raises(TableColumnNotFoundError):
            perform(catalog, "query_table", request, restriction)
