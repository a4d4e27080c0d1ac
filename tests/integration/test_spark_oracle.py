"""Spark as the oracle: statements give the same rows over a table and over a copy in Spark's memory.

The statements name every column in each way that Lancekeep evaluates by itself, and others at random.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import attrs
import lance
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import lancekeep
import lancekeep.spark
from lancekeep.ports.table_structure import NewIndex

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),  # the JVM is forked, and executes at once
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
]

SEED = 20261122
TOGETHER = 12
"""The number of queries of one job."""
MUTATIONS = int(os.environ.get("LANCEKEEP_SPARK_MUTATIONS", "1"))
SELECTS = 8 * MUTATIONS

CHEAP = {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "1"}
"""Settings that plan a statement fast: each runs once."""

TIMES = ["2026-03-08 02:30:00", "1969-12-31 23:59:59.999999", "2026-11-01 01:30:00.5", "0001-01-01 00:00:00"]
SCALARS: dict[str, tuple[str, list[str]]] = {
    "b": ("BOOLEAN", ["true", "false"]),
    "i8": ("TINYINT", ["-128Y", "0Y", "7Y", "127Y"]),
    "i16": ("SMALLINT", ["-32768S", "0S", "300S"]),
    "i32": ("INT", ["-2147483648", "-1", "0", "1", "2147483647"]),
    "i64": ("BIGINT", ["-9223372036854775808L", "0L", "9007199254740993L", "9223372036854775807L"]),
    "f32": ("FLOAT", ["float('NaN')", "float('-Infinity')", "-0.0f", "0.0f", "1.5f", "16777217f"]),
    "f64": ("DOUBLE", ["double('NaN')", "double('Infinity')", "-0.0d", "0.0d", "0.1d", "-1e300d", "9007199254740992d"]),
    "d5": ("DECIMAL(5,2)", ["0.00", "-0.01", "999.99", "1.50"]),
    "d20": ("DECIMAL(20,0)", ["0", "18446744073709551615", "-5"]),
    "d38": ("DECIMAL(38,10)", ["0.0000000001", "-1234567890123456789012345678.0000000001", "2"]),
    "s": (
        "STRING",
        ["''", "'a'", "'A'", "'abc'", "'a%c'", "'naïve ✈'", "'it''s'", "'z '", "'\U0001f600'", "'\ufffd'"],
    ),
    "bin": ("BINARY", ["X''", "X'00'", "X'ff00'", "X'61'", "X'7f'"]),
    "dt": ("DATE", ["date'1969-12-31'", "date'2026-03-08'", "date'0001-01-01'", "date'9999-12-31'"]),
    "ts": ("TIMESTAMP", [f"timestamp'{time}Z'" for time in TIMES[:3]]),
    "tn": ("TIMESTAMP_NTZ", [f"timestamp_ntz'{time}'" for time in TIMES]),
    "iv": ("INTERVAL DAY TO SECOND", ["interval '1' day", "interval '-1.5' second", "interval '0' second"]),
}
NESTED: dict[str, tuple[str, list[str]]] = {
    "st": (
        "STRUCT<x: INT, y: STRING, z: DOUBLE, deep: STRUCT<p: BIGINT, q: DATE>>",
        [
            "named_struct('x', 1, 'y', 'a', 'z', -0.0d, 'deep', named_struct('p', 5L, 'q', date'2026-03-08'))",
            "named_struct('x', null, 'y', null, 'z', double('NaN'), 'deep', null)",
            "named_struct('x', 2, 'y', 'abc', 'z', 0.1d, 'deep', named_struct('p', null, 'q', null))",
        ],
    ),
    "ar": ("ARRAY<INT>", ["array(1, null, 3)", "array()", "array(2)", "array(null)"]),
    "vec": ("ARRAY<FLOAT>", ["array(1f, 2f)", "array(-0.0f, 3.5f)", "array(0f, 0f)"]),
    "mp": ("MAP<STRING, BIGINT>", ["map('k', 1L)", "map('k', null, 'l', 2L)", "map()"]),
    "ast": (
        "ARRAY<STRUCT<p: INT, q: STRING>>",
        ["array(named_struct('p', 1, 'q', 'a'), null)", "array()", "array(named_struct('p', null, 'q', 'b'))"],
    ),
    "mst": (
        "MAP<STRING, STRUCT<m: INT, n: INT>>",
        ["map('k', named_struct('m', 1, 'n', 2))", "map('k', null)", "map()"],
    ),
}
COLUMNS = {"id": ("INT", ["0", "5", "11"]), **SCALARS, **NESTED, "empty": ("INT", ["null"])}
PARTS = {
    "st.x": COLUMNS["i32"],
    "st.y": COLUMNS["s"],
    "st.z": COLUMNS["f64"],
    "st.deep.p": COLUMNS["i64"],
    "st.deep.q": COLUMNS["dt"],
    "get(ar, 0)": COLUMNS["i32"],
    "mp['k']": COLUMNS["i64"],
    "get(ast, 0).q": COLUMNS["s"],
    "mst['k'].n": COLUMNS["i32"],
    "get(vec, 1)": COLUMNS["f32"],
}
COMPARED = {**SCALARS, **PARTS}
PATTERNS = ["a%", "%c", "%b%", r"a\\%%"]
INDEXED = {
    "b": "BITMAP",
    "i8": "BITMAP",
    **dict.fromkeys(["i32", "i64", "f32", "f64", "d20", "s", "bin", "dt", "ts", "tn"], "BTREE"),
}
MAINTENANCE: list[Callable[[lancekeep.Catalog], object]] = [
    lambda catalog: catalog.structure.merge_indexes("t", [f"{name}_idx" for name in INDEXED]),
    lambda catalog: catalog.upkeep.compact("t"),
    lambda catalog: catalog.upkeep.cleanup(timedelta(0), grace=timedelta(0), tables=["t"]),
]
CONDITIONS = ["", " WHERE id < 9", " WHERE s >= 'a'", " WHERE f64 > 0", " WHERE id > 1000", " WHERE upper(s) = 'A'"]
SUMMED = ("i8", "i16", "i32", "d5", "d20", "st.x", "mst['k'].n")
UNSORTED = ("mp", "mst")  # maps have no order, so they cannot be grouped or compared


class Statements:
    """Random SQL; ``{t}`` stands for the table."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def row(self, number: int) -> str:
        values = [
            "null" if self.random.random() < 0.15 else f"cast({self.random.choice(values)} AS {kind})"
            for kind, values in (COLUMNS[name] for name in COLUMNS if name != "id")
        ]
        return f"SELECT {number} id, " + ", ".join(
            f"{value if value != 'null' else f'cast(null AS {COLUMNS[name][0]})'} {name}"
            for name, value in zip(list(COLUMNS)[1:], values, strict=True)
        )

    def rows(self, first: int, count: int) -> str:
        return " UNION ALL ".join(self.row(first + at) for at in range(count))

    def condition(self, depth: int = 2, simple: bool = False) -> str:
        """Return a condition; if ``simple``, one that the engine evaluates."""
        if depth and self.random.random() < 0.5:
            left, right = self.condition(depth - 1, simple), self.condition(depth - 1, simple)
            return self.random.choice([f"({left} AND {right})", f"({left} OR {right})", f"NOT ({left})"])
        name = self.random.choice(list(SCALARS) if simple else list(COMPARED))
        kind, values = COMPARED[name]
        value = self.random.choice(values)
        forms = [
            f"{name} {self.random.choice(['=', '<>', '<', '<=', '>', '>=', '<=>'])} {value}",
            f"{name} IN ({', '.join(self.random.choices([*values, 'null'] if not simple else values, k=3))})",
            f"{name} IS {self.random.choice(['', 'NOT '])}NULL",
            # The engine combines lists, and takes no value in common for false where the column is null, too.
            "(" + " OR ".join(f"{name} NOT IN ({one})" for one in self.random.choices(values, k=2)) + ")",
        ]
        if kind == "STRING":
            forms += [f"{name} LIKE '{self.random.choice(PATTERNS)}'"] * 2
        if not simple:
            forms += [f"{name} BETWEEN {value} AND {self.random.choice(values)}", f"{name} = {name}"]
            if kind == "STRING":
                forms += [f"{name} LIKE 'a_c'", f"upper({name}) = 'A'", f"length({name}) > 1"]
        return self.random.choice(forms)

    def lookup(self, name: str) -> str:
        """Return a condition that the index of a column answers."""
        return f"{name} = {self.random.choice(SCALARS[name][1])}"

    def target(self) -> str:
        """Return a condition for a change of rows."""
        return self.random.choice([self.condition(), self.lookup(self.random.choice(list(INDEXED)))])

    def subquery(self) -> str:
        forms = [
            "true",
            f"id IN (SELECT id FROM {{t}} WHERE {self.condition(1)})",
            f"id > (SELECT avg(id) FROM {{t}} WHERE {self.condition(1)})",
            f"NOT EXISTS (SELECT 1 FROM {{t}} WHERE {self.condition(0)} LIMIT 1)",
        ]
        return self.random.choice(forms)

    def values(self) -> dict[str, str]:
        """Return new values of some columns."""
        names = self.random.sample(list(COLUMNS)[1:], 2)
        return {
            name: f"cast({self.random.choice([*COLUMNS[name][1], 'null'])} AS {COLUMNS[name][0]})" for name in names
        }

    def select(self) -> str:
        where = f" WHERE {self.condition()}" if self.random.random() < 0.7 else ""
        names = [*COLUMNS, *PARTS]
        compared = [name for name in names if name not in UNSORTED]
        forms: list[Callable[[], str]] = [
            lambda: f"SELECT {', '.join(self.random.sample(names, self.random.randint(1, 5)))} FROM {{t}}{where}",
            lambda: f"SELECT * FROM {{t}}{where}",
            lambda: f"SELECT count(*), count({self.random.choice(names)}) FROM {{t}}{where}",
            lambda: f"SELECT count(*) FROM {{t}}{where}",
            lambda: (
                f"SELECT min({(name := self.random.choice(compared))}), max({name}), count(DISTINCT {name}) "
                f"FROM {{t}}{where}"
            ),
            lambda: (
                f"SELECT min({(name := self.random.choice(list(SCALARS)))}), max({name}), count({name}), count(*) "
                f"FROM {{t}}{where}"
            ),
            lambda: (
                f"SELECT id, {(name := self.random.choice(list(SCALARS)))} FROM {{t}}{where} ORDER BY {name} "
                f"{self.random.choice(['', 'DESC', 'NULLS LAST', 'DESC NULLS FIRST'])}, id LIMIT 5"
            ),
            lambda: f"SELECT sum({(name := self.random.choice(SUMMED))}), avg({name}) FROM {{t}}{where}",
            lambda: f"SELECT {(name := self.random.choice(compared))}, count(*) FROM {{t}}{where} GROUP BY {name}",
            lambda: f"SELECT id, {self.random.choice(names)} FROM {{t}}{where} ORDER BY id LIMIT 3",
            lambda: f"SELECT count(*) FROM (SELECT * FROM {{t}}{where} LIMIT 4)",
            lambda: f"SELECT DISTINCT {self.random.choice(compared)} FROM {{t}}{where}",
            lambda: f"SELECT id, {self.condition(1)} FROM {{t}}{where}",
            lambda: (
                f"SELECT a.id, b.id FROM {{t}} a JOIN {{t}} b ON a.{(name := self.random.choice(list(SCALARS)))} = "
                f"b.{name} AND a.id < b.id"
            ),
            lambda: f"SELECT id FROM {{t}} WHERE id IN (SELECT max(id) FROM {{t}}{where})",
        ]
        return self.random.choice(forms)()

    def pushed(self) -> Iterator[str]:
        """Yield aggregates and orders with a limit that are evaluated next to the rows, for every column."""
        for number, name in enumerate(SCALARS):
            where, nulls = self.random.choice(CONDITIONS), self.random.choice(["", "NULLS FIRST", "NULLS LAST"])
            summed = ("i8", "i16", "i32", "d5", "d20")[number % 5]
            for some in ("", where):  # the scan may not take the condition, and then has no aggregate either
                yield f"SELECT min({name}), max({name}), count(*), count({name}) FROM {{t}}{some}"
                yield f"SELECT {name}, count(*), count(s), max(i64), min(s) FROM {{t}}{some} GROUP BY {name}"
                yield (
                    f"SELECT {name}, sum({summed}), avg({summed}), min(f64) + 0, max(f32) + 0 "  # -0.0 + 0 is 0.0
                    f"FROM {{t}}{some} GROUP BY {name}"
                )
            for way in ("ASC", "DESC"):
                limit = ("LIMIT 5", "LIMIT 3 OFFSET 4")[number % 2]
                yield f"SELECT id, ar, {name} FROM {{t}}{where} ORDER BY {name} {way} {nulls}, id DESC {limit}"
        for where in CONDITIONS:
            yield f"SELECT min(f64), max(f32), count(ar), count(*) FROM {{t}}{where}"
            yield f"SELECT sum(i8) + count(*), avg(i16), try_sum(i32), try_avg(i8), sum(d5), avg(d20) FROM {{t}}{where}"
            yield f"SELECT b, dt, count(*) n FROM {{t}}{where} GROUP BY dt, b HAVING n > 1"
        for name in ("f64", "s", "d38"):
            yield f"SELECT DISTINCT {name}, b FROM {{t}}"
        yield "SELECT min(empty), max(empty), count(empty) FROM {t}"
        yield "SELECT empty, count(*) FROM {t} GROUP BY empty"
        yield "SELECT id FROM {t} ORDER BY empty DESC, id LIMIT 5"
        yield "SELECT id, s FROM {t} ORDER BY f64 DESC, f32, id LIMIT 9"


@attrs.frozen
class Pair:
    """A table, or a branch of one, and a view of the rows that it must have according to Spark."""

    spark: SparkSession
    catalog: lancekeep.Catalog
    table: str = "lake.t"
    view: str = "copy"

    def differences(self, statements: Sequence[str]) -> list[str]:
        """What is different in the answers to statements."""
        found, expected = self.answers(statements, self.table), self.answers(statements, self.view)
        return [
            f"{statement}\n  only in lake: {list((found[at] - expected[at]).elements())[:3]}"
            f"\n  only in Spark: {list((expected[at] - found[at]).elements())[:3]}"
            for at, statement in enumerate(statements)
            if found[at] != expected[at]
        ]

    def answers(self, statements: Sequence[str], table: str) -> list[Counter[str]]:
        """The rows of each statement as text; all are one job of Spark's, unless one of them fails."""
        parts = [
            f"SELECT {at} n, cast(struct(*) AS STRING) row FROM ({statement.replace('{t}', table)})"
            for at, statement in enumerate(statements)
        ]
        answers: list[Counter[str]] = [Counter() for _ in statements]
        try:
            for number, row in self.spark.sql(" UNION ALL ".join(parts)).collect():
                answers[number][row] += 1
        except PySparkException as error:
            if len(statements) == 1:
                return [Counter([error.getCondition() or str(error)[:300]])]
            return [answer for statement in statements for answer in self.answers([statement], table)]
        return answers

    def replace(self, query: str) -> None:
        """Have the view hold what a query of it gives."""
        frame = self.spark.sql(query).coalesce(1).localCheckpoint()
        frame.createOrReplaceTempView(self.view)

    def branch(self, name: str) -> Pair:
        """Create a branch with the rows of the table."""
        self.spark.sql(f"CALL lake.system.create_branch('{self.table.removeprefix('lake.')}', '{name}')")
        made = attrs.evolve(self, table=f"{self.table}.branch_{name}", view=f"copy_{name}")
        made.replace(f"SELECT * FROM {self.view}")
        return made


@pytest.fixture
def pair(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Yield an empty table; a test may give it further properties."""
    catalog = lancekeep.spark.install(
        spark, "lake", str(tmp_path / "lake"), commit_store=f"sqlite://{tmp_path}/commits.db"
    )
    before = {name: spark.conf.get(name, None) for name in CHEAP}
    for name, value in CHEAP.items():
        spark.conf.set(name, value)
    with catalog:
        columns = ", ".join(f"{name} {kind}" for name, (kind, _) in COLUMNS.items())
        properties = {"vector.vec": "2", **getattr(request, "param", {})}
        given = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
        spark.sql(f"CREATE TABLE lake.t ({columns}) TBLPROPERTIES ({given})")
        yield Pair(spark, catalog)
    for name, former in before.items():
        spark.conf.unset(name) if former is None else spark.conf.set(name, former)


def test_generated_statements_give_rows_of_spark(pair: Pair) -> None:
    statements = Statements(SEED)
    parts = [statements.rows(first, 12) for first in (0, 12)]
    for part in parts:  # two fragments, with deleted rows in each
        pair.spark.sql(f"INSERT INTO lake.t {part}")
    pair.spark.sql("DELETE FROM lake.t WHERE id % 7 = 3")
    pair.replace(f"SELECT * FROM ({' UNION ALL '.join(parts)}) WHERE id % 7 <> 3")

    selects = ["SELECT * FROM {t}", *statements.pushed(), *(statements.select() for _ in range(SELECTS))]
    batches = [selects[at : at + TOGETHER] for at in range(0, len(selects), TOGETHER)]
    with ThreadPoolExecutor(2) as pool:
        differences = [found for batch in pool.map(pair.differences, batches) for found in batch]
    assert not differences, "\n".join([f"{len(differences)} of {len(selects)}:", *differences[:20]])

    for name, kind in INDEXED.items():
        pair.catalog.structure.create_index("t", NewIndex(name, kind))
    for number in range(MUTATIONS):
        mutate(pair, statements, number)
        MAINTENANCE[number % len(MAINTENANCE)](pair.catalog)
        found = [f"SELECT id, s FROM {{t}} WHERE {statements.lookup(name)}" for name in INDEXED]
        assert pair.differences(["SELECT * FROM {t}", *found]) == []
    change_branch(pair, statements)
    stored = lance.dataset(pair.catalog.describe_table("t").uri)
    assert stored.count_rows() == pair.spark.table("copy").count()
    assert stored.schema.field("vec").type == pa.list_(pa.float32(), 2)


def change_branch(pair: Pair, statements: Statements) -> None:
    """Change a branch, which changes nothing in the main history, and publish it."""
    branch = pair.branch("dev")
    for number in range(MUTATIONS):
        mutate(branch, statements, number + 1)
        found = [f"SELECT id, s FROM {{t}} WHERE {statements.lookup(name)}" for name in INDEXED]
        assert branch.differences(["SELECT * FROM {t}", *found]) == []
        assert pair.differences(["SELECT * FROM {t}"]) == []
    pair.spark.sql("CALL lake.system.fast_forward('t', 'dev')")
    pair.replace(f"SELECT * FROM {branch.view}")
    assert pair.differences(["SELECT * FROM {t}"]) == []


@pytest.mark.parametrize("pair", [{"lancekeep.stable_row_ids": "true"}], indirect=True)
def test_streamed_changes_add_up_to_rows_of_spark(pair: Pair, tmp_path: Path) -> None:
    statements = Statements(SEED)
    rows = statements.rows(0, 12)
    pair.spark.sql(f"INSERT INTO lake.t {rows}")
    follow(pair, tmp_path)
    pair.spark.sql("DELETE FROM lake.t WHERE id % 5 = 1")  # a generated condition may choose no row
    pair.replace(f"SELECT * FROM ({rows}) WHERE id % 5 <> 1")
    for number in range(2 + MUTATIONS):
        mutate(pair, statements, number)
        MAINTENANCE[1](pair.catalog)
        follow(pair, tmp_path)
        assert pair.differences(["SELECT * FROM {t}"]) == []
        assert sums(pair) == pair.answers(["SELECT * FROM {t}"], "copy")
    kinds = {row[0] for row in pair.spark.sql("SELECT DISTINCT _change_type FROM lake.changes").collect()}
    assert kinds == {"insert", "delete", "update_preimage", "update_postimage"}


def follow(pair: Pair, place: Path) -> None:
    """Stream the new changes of the table into the table ``changes``."""
    options = {"root": str(place / "lake"), "commit_store": f"sqlite://{place}/commits.db"}
    source = pair.spark.readStream.format("lancekeep").options(**options, read_changes="true").load("t")
    written = source.writeStream.format("lancekeep").options(**options, checkpointLocation=str(place / "checkpoint"))
    written.trigger(availableNow=True).start("changes").awaitTermination()


def sums(pair: Pair) -> list[Counter[str]]:
    """Return the rows that were added once more than removed, as text."""
    sign = "CASE WHEN _change_type IN ('insert', 'update_postimage') THEN 1 ELSE -1 END"
    row = f"cast(struct({', '.join(COLUMNS)}) AS STRING)"
    query = f"SELECT {row} row, sum({sign}) n FROM lake.changes GROUP BY 1 HAVING n <> 0"
    return [Counter({found.row: found.n for found in pair.spark.sql(query).collect()})]


def mutate(pair: Pair, statements: Statements, number: int) -> None:
    """Change the table, and the copy as Spark understands the statement."""
    kinds = (delete, update, merge, insert, overwrite, update, merge, merge)
    kinds[number % len(kinds)](pair, statements, number)


def insert(pair: Pair, statements: Statements, number: int) -> None:
    query = f"SELECT * FROM {{t}} WHERE {statements.condition()}"
    pair.spark.sql(f"INSERT INTO {pair.table} {query.replace('{t}', pair.table)}")
    pair.replace(f"SELECT * FROM {pair.view} UNION ALL {query.replace('{t}', pair.view)}")


def overwrite(pair: Pair, statements: Statements, number: int) -> None:
    rows = statements.rows(100 + 12 * number, 12)
    pair.spark.sql(f"INSERT OVERWRITE {pair.table} {rows}")
    pair.replace(rows)


def delete(pair: Pair, statements: Statements, number: int) -> None:
    condition = f"{statements.target()} AND {statements.subquery()}"
    pair.spark.sql(f"DELETE FROM {pair.table} WHERE {condition.replace('{t}', pair.table)}")
    pair.replace(f"SELECT * FROM {pair.view} WHERE NOT coalesce({condition.replace('{t}', pair.view)}, false)")


def update(pair: Pair, statements: Statements, number: int) -> None:
    condition, values = statements.target(), statements.values()
    pair.spark.sql(f"UPDATE {pair.table} SET {assigned(values)} WHERE {condition}")
    pair.replace(f"SELECT {chosen(values, condition)} FROM {pair.view}")


def assigned(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items())


def chosen(values: Mapping[str, str], condition: str) -> str:
    """Return the columns with their new values where a condition is true."""
    return ", ".join(
        f"CASE WHEN {condition} THEN {values[name]} ELSE {name} END {name}" if name in values else name
        for name in COLUMNS
    )


def merge(pair: Pair, statements: Statements, number: int) -> None:
    """Rows of the source have the ids of some rows of the table, and new ones."""
    first = statements.random.choice([0, 6, 18, 100 + 12 * number])
    names = ", ".join(f"{name} s_{name}" for name in COLUMNS)
    pair.spark.sql(f"SELECT {names} FROM ({statements.rows(first, 12)})").createOrReplaceTempView("source")
    gone, changes, orphaned = (statements.target() for _ in range(3))
    values = {name: f"s_{name}" for name in statements.random.sample(list(COLUMNS)[1:], 3)} | statements.values()
    pair.spark.sql(
        f"MERGE INTO {pair.table} USING source ON id = s_id WHEN MATCHED AND {gone} THEN DELETE "
        f"WHEN MATCHED AND {changes} THEN UPDATE SET {assigned(values)} "
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(COLUMNS)}) VALUES ({', '.join(f's_{name}' for name in COLUMNS)}) "
        f"WHEN NOT MATCHED BY SOURCE AND {orphaned} THEN DELETE"
    )
    view = pair.view
    pair.replace(
        f"SELECT {chosen(values, changes)} FROM {view} JOIN source ON id = s_id WHERE NOT coalesce({gone}, false) "
        "UNION ALL "
        f"SELECT {', '.join(f's_{name}' for name in COLUMNS)} FROM source LEFT ANTI JOIN {view} ON id = s_id UNION ALL "
        f"SELECT * FROM {view} WHERE id NOT IN (SELECT s_id FROM source) AND NOT coalesce({orphaned}, false)"
    )
