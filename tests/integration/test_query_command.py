"""``lancekeep query``: SQL on tables of a catalog, judged by rows in memory."""

from __future__ import annotations

import builtins
import fcntl
import json
import math
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import lancekeep
from lancekeep.application.scratch import disk_directory
from lancekeep.entrypoints.cli import lancekeep as command

NUMBERS = pa.table(
    {
        "id": range(100),
        "text": [None if n % 9 == 0 else f"it's \"{n}" for n in range(100)],
        "x": [math.copysign(math.nan, n % 2 - 0.5) if n % 3 == 0 else n / 2 for n in range(100)],
        "kind": pa.array([f"k{n % 3}" for n in range(100)]).dictionary_encode(),
        "deep": [{"a": n, "b": [n]} for n in range(100)],
        "half": pa.array([1] * 100, pa.float16()),
    }
)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("query")
    with lancekeep.connect(f"{place}/lake", commit_store=f"sqlite://{place}/commits.db") as catalog:
        for namespace in ("ml", "a", "a.b", "a.b.c", "temp"):
            catalog.create_namespace(namespace)
        catalog.write("ml.t", NUMBERS)
        catalog.tags.create("ml.t", "first", 1)
        catalog.write("ml.t", NUMBERS.slice(0, 1).set_column(0, "id", pa.array([100])), "append")
        catalog.data.delete("ml.t", "id = 50")
        catalog.write("a.b.u", pa.table({"id": [2, 3], "y": [2.5, 3.5]}))
        catalog.write("a.b.c.d", pa.table({"id": [4]}))
        catalog.write(["ml", 'a b"c.d'], pa.table({"id": [5]}))
        catalog.write("temp.t", pa.table({"id": [6]}))
        catalog.write("empty", pa.table({"id": pa.array([], pa.int64())}))
        catalog.write("CASE", pa.table({"id": [7]}))
        catalog.write("case", pa.table({"id": [8]}))
        blobs = pa.schema([pa.field("b", pa.large_binary(), metadata={"lance-encoding:blob": "true"})])
        catalog.write("blobs", pa.table({"b": [b"four", None]}, blobs))
        catalog.write("spans", pa.table({"id": [1, 2, 3], "span": pa.array([1, 2, 3], pa.duration("us"))}))
        catalog.write("long", pa.table({"text": [*["1"] * 199_999, "x"]}))
        catalog.write("twin", pa.table({"id": [1]}))
        catalog.tags.create("twin", "0s", 1)
        catalog.write("twin", pa.table({"id": [2]}), "append")
        catalog.write(["twin@1"], pa.table({"id": [1, 2, 3]}))
        catalog.write(["twin AT (VERSION => 1)"], pa.table({"id": [1]}))
        catalog.write("lancekeep 1", pa.table({"id": [1]}))
        catalog.write("lancekeep 2", pa.table({"id": [2]}))
        catalog.write("wide", pa.table({f"c{n}": [n] for n in range(2000)}))
    return f"{place}/lake"


def run(lake: str, sql: str, *options: str, **how: Any) -> Result:
    return CliRunner().invoke(command, ["query", lake, sql, *options], obj=lancekeep, **how)


def rows(lake: str, sql: str) -> list[dict[str, Any]]:
    done = run(lake, sql, "-o", "jsonl")
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_tables_of_several_namespaces_are_joined(lake: str) -> None:
    found = rows(lake, "SELECT id, ml.t.text, y FROM ml.t JOIN a.b.u USING (id) ORDER BY id")
    assert found == [{"id": 2, "text": "it's \"2", "y": 2.5}, {"id": 3, "text": "it's \"3", "y": 3.5}]


@pytest.mark.parametrize(
    ("name", "number"),
    [('"a.b.c.d"', 4), ('ml."a b""c.d"', 5), ('"temp.t"', 6), ('"CASE"', 7), ('"case"', 8), ("case_", None)],
)
def test_names_between_quotes_are_those_of_the_catalog(lake: str, name: str, number: int | None) -> None:
    if number is None:
        assert run(lake, f"SELECT id FROM {name}").exit_code == 3
    else:
        assert rows(lake, f"SELECT id FROM {name}") == [{"id": number}]


@pytest.mark.parametrize(
    ("sql", "advice"),
    [
        ("FROM a.b.c.d", '"a.b.c.d" between double quotes'),
        ("FROM temp.t", "between double quotes"),
        ('FROM "CASE" JOIN "case" USING (id)', "differ only in case"),
        ("SELECT half FROM ml.t", "half"),
        ("SELEC 1", "malformed"),
        ("", "found 0"),
        ("SELECT 1; SELECT 2", "found 2"),
        ("FROM ml.t AT (VERSION => 1 + 1)", "AT (VERSION => 3)"),
        ("FROM ml.t AT (TIMESTAMP => 'soon')", "neither a time"),
        ("SELECT error('broken')", "broken"),
        ("SELECT CAST(text AS INTEGER) FROM ml.t", "Could not convert string"),
    ],
)
def test_statement_that_cannot_run_says_why(lake: str, sql: str, advice: str) -> None:
    done = run(lake, sql)
    assert done.exit_code == 2
    assert advice in done.stderr


@pytest.mark.parametrize(
    "condition",
    [
        "text = 'it''s \"5'",
        "text IS NULL",
        "x > 40",
        "x = 'nan'",
        "x < 3",
        "x <= 3 OR id = 12",
        "NOT (x >= 3)",
        "kind = 'k1'",
        "kind IN ('k1', 'k2') AND id < 10",
        "deep.a = 3",
        "id IN (1, 2, 50, 100)",
        "id = 1 OR text LIKE '%9'",
        "NOT (id > 3)",
    ],
)
def test_filter_gives_the_rows_that_it_gives_in_memory(lake: str, condition: str) -> None:
    import duckdb

    with lancekeep.connect(lake, commit_store="remembered") as catalog:
        uri = catalog.describe_table("ml.t").uri
    with duckdb.connect(":memory:") as judge:
        judge.register("t", lance.dataset(uri).to_table(columns=["id", "text", "x", "kind", "deep"]))
        expected = judge.execute(f"SELECT id FROM t WHERE {condition} ORDER BY id").fetchall()
    assert [(row["id"],) for row in rows(lake, f"SELECT id FROM ml.t WHERE {condition} ORDER BY id")] == expected
    assert expected


def test_lance_reads_only_the_columns_and_rows_of_the_query(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    scanner = lance.LanceDataset.scanner

    def recorded(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs:
            asked.append((kwargs["columns"], str(kwargs["filter"])))
        return scanner(self, *args, **kwargs)

    monkeypatch.setattr(lance.LanceDataset, "scanner", recorded)
    assert rows(lake, "SELECT max(x) AS m FROM ml.t WHERE id < 2") == [{"m": "nan"}]
    assert asked == [(["x", "id"], "(id < 2)")]


def test_versions_tags_and_times_are_read(lake: str) -> None:
    counts = "SELECT count(*) AS n, max(t.id) AS m FROM ml.t"
    assert rows(lake, counts) == [{"n": 100, "m": 100}]
    assert rows(lake, f"{counts} AT (VERSION => 1)") == [{"n": 100, "m": 99}]
    assert rows(lake, f"{counts} AT (VERSION => 'first')") == [{"n": 100, "m": 99}]
    assert rows(lake, f"{counts} AT (VERSION => 2)") == [{"n": 101, "m": 100}]
    assert rows(lake, f"{counts} AT (TIMESTAMP => '0s')") == [{"n": 100, "m": 100}]
    both = "SELECT id FROM ml.t AT (VERSION => 1) EXCEPT SELECT id FROM ml.t"
    assert rows(lake, both) == [{"id": 50}]
    assert run(lake, f"{counts} AT (VERSION => 9)").exit_code == 3


def test_versions_of_similar_names_are_distinguished(lake: str) -> None:
    both = "SELECT a.n AS a, b.n AS b FROM (SELECT count(*) AS n FROM {}) a, (SELECT count(*) AS n FROM {}) b"
    tag, moment = "twin AT (VERSION => '0s')", "twin AT (TIMESTAMP => '0s')"
    assert rows(lake, both.format(tag, moment)) == [{"a": 1, "b": 2}]
    assert rows(lake, both.format("twin AT (VERSION => 1)", '"twin@1"')) == [{"a": 1, "b": 3}]
    named = '"twin AT (VERSION => 1)"'
    assert "differ only in" in run(lake, both.format("twin AT (VERSION => 1)", named)).stderr


def test_table_with_the_name_of_a_source_is_read(lake: str) -> None:
    for number in (1, 2):
        name = f'"lancekeep {number}"'
        assert rows(lake, f"SELECT s.id FROM {name} s JOIN a.b.u ON u.id = 2") == [{"id": number}]


def test_names_of_with_clauses_are_no_tables(lake: str) -> None:
    assert rows(lake, "WITH c AS (SELECT 1 AS id), t AS (FROM c) SELECT count(*) AS n FROM t") == [{"n": 1}]


def test_columns_of_one_name_are_numbered(lake: str) -> None:
    assert rows(lake, "SELECT 1 AS x, 2 AS x, 3 AS x_1") == [{"x": 1, "x_2": 2, "x_1": 3}]


def test_empty_and_wide_tables_are_read(lake: str) -> None:
    done = run(lake, "FROM empty")
    assert (done.exit_code, done.stdout) == (0, "")
    assert rows(lake, "SELECT c0 + c1999 AS n FROM wide") == [{"n": 1999}]


def test_filter_on_a_table_with_time_spans_is_applied(lake: str) -> None:
    assert rows(lake, "SELECT id FROM spans WHERE id < 3 AND span > INTERVAL '1 microsecond'") == [{"id": 2}]


def test_blobs_are_described(lake: str) -> None:
    assert rows(lake, "SELECT b.size FROM blobs") == [{"size": 4}, {"size": None}]
    assert rows(lake, "SELECT count(*) AS n FROM blobs WHERE b.size = 4") == [{"n": 1}]
    assert [row["b"] and row["b"]["size"] for row in rows(lake, "FROM blobs")] == [4, None]


@pytest.mark.parametrize("form", ["table", "json", "jsonl", "csv"])
def test_times_that_python_lacks_are_texts(lake: str, form: str) -> None:
    sql = "SELECT TIMESTAMP '11103-08-29 01:02:03' AS t, [TIMESTAMP 'infinity'] AS i, 1 AS n"
    done = run(lake, sql, "-o", form)
    assert (done.exit_code, "11103-08-29 01:02:03" in done.stdout) == (0, True), done.output
    assert "value out of range: 9223372036854775807" in done.stdout


@pytest.mark.parametrize(
    "sql",
    [
        "COPY (FROM ml.t) TO '{place}/stolen.csv'",
        "FROM read_csv('{place}/secret.csv')",
        "FROM '{place}/secret.csv'",
        "FROM glob('{place}/*')",
        "SELECT * FROM catalog",
        "SELECT * FROM statement",
        "ATTACH '{place}/other.db'",
        "SET enable_external_access = true",
        "INSTALL httpfs",
        "DROP VIEW ml.t",
        "WITH x AS (INSERT INTO empty VALUES (1) RETURNING *) FROM x",
        "SELECT 1; COPY (SELECT 1) TO '{place}/stolen.csv'",
    ],
)
def test_query_reads_and_writes_nothing_else(lake: str, tmp_path: Path, sql: str) -> None:
    (tmp_path / "secret.csv").write_text("secret\n1\n")
    done = run(lake, sql.format(place=tmp_path))
    assert done.exit_code in (2, 3), done.output
    assert "secret" not in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["secret.csv"]


def test_table_for_people_has_a_limit_that_it_tells(lake: str) -> None:
    done = run(lake, "SELECT id FROM ml.t ORDER BY id", "--limit", "2")
    assert (done.stdout.split(), "more rows" in done.stderr) == (["id", "0", "1"], True)
    assert len(run(lake, "FROM range(3000)", "--limit", "0").stdout.splitlines()) == 3001
    assert len(run(lake, "FROM range(3000)", "-o", "csv").stdout.splitlines()) == 3001


def test_answer_that_ends_early_ends_its_scans(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from lancekeep.entrypoints.cli.sql import answer

    scans, to_batches = [], lance.LanceScanner.to_batches

    def recorded(self: Any) -> Any:
        scans.append("started")
        try:
            yield from to_batches(self)
        finally:
            scans.append("ended")

    monkeypatch.setattr(lance.LanceScanner, "to_batches", recorded)
    with (
        lancekeep.connect(lake, commit_store="remembered") as catalog,
        answer(catalog, "FROM long WHERE text IS NOT NULL", lambda _: None) as (_, batches),
    ):
        assert next(batches).num_rows
    assert scans == ["started", "ended"]


def test_statement_that_fails_after_some_rows_says_why(lake: str) -> None:
    done = run(lake, "SELECT CAST(text AS INTEGER) FROM long", "-o", "jsonl")
    assert (done.exit_code, "DuckDB cannot run this: Could not convert string 'x'" in done.stderr) == (2, True)


def test_answer_as_arrow_is_streamed(lake: str) -> None:
    program = [sys.executable, "-m", "lancekeep", "query", lake, "FROM range(10000) SELECT range AS n", "-o", "arrow"]
    done = subprocess.run(program, capture_output=True, check=True)
    with pa.ipc.open_stream(done.stdout) as stream:
        batches = list(stream)
    assert (sum(batch.num_rows for batch in batches), len(batches) > 1) == (10000, True)


@pytest.mark.parametrize(
    "endless",
    [
        "SELECT sum(hash(a.range * b.range)) FROM range(1000000) a, range(1000000) b, ml.t",
        "SELECT id FROM ml.t UNION ALL SELECT range FROM range(1000000000000) WHERE hash(range) = 1",
    ],
)
def test_statement_that_ctrl_c_stops_changes_nothing(lake: str, monkeypatch: pytest.MonkeyPatch, endless: str) -> None:
    def interrupt() -> None:
        time.sleep(0.3)  # until the statement runs
        # To this thread: it does not end a wait of the main thread, as a signal just before that wait does not.
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)

    class Worker(ThreadPoolExecutor):
        def submit(self, *args: Any, **kwargs: Any) -> Any:
            if interrupting.ident is None:  # a second signal would stop the next test
                interrupting.start()
            return super().submit(*args, **kwargs)

    monkeypatch.setattr("lancekeep.entrypoints.cli.sql.ThreadPoolExecutor", Worker)
    done = run(lake, endless)
    assert (done.exit_code, "Stopped. Nothing was changed." in done.stderr) == (130, True), done.output


def test_directory_of_a_killed_query_is_removed_by_the_next(
    lake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "outside").mkdir()
    (tmp_path / "lancekeep-query-link").symlink_to(tmp_path / "outside")
    (tmp_path / "lancekeep-query-killed").mkdir()
    (tmp_path / "lancekeep-query-killed" / "spilled").write_text("rows")
    with disk_directory("query") as living:
        assert rows(lake, "SELECT 1 AS x") == [{"x": 1}]
        assert {*tmp_path.iterdir()} == {living, tmp_path / "outside", tmp_path / "lancekeep-query-link"}
    assert not living.exists()


def test_directory_that_is_removed_before_its_lock_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    flock = fcntl.flock
    lost: list[Path] = []

    def late(opened: int, how: int) -> None:
        if not lost:
            lost.extend(tmp_path.iterdir())
            lost[0].rmdir()
        flock(opened, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with disk_directory("query") as directory:
        assert directory.exists()
    assert (len(lost), list(tmp_path.iterdir())) == (1, [])


def test_statement_is_read_from_standard_input(lake: str) -> None:
    assert run(lake, "-", "-o", "csv", input="SELECT 1 AS x").stdout == "x\n1\n"


def test_message_names_the_extra(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "duckdb" or name.endswith("cli.sql"):
            raise ImportError("No module named 'duckdb'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    done = run(lake, "SELECT 1")
    assert (done.exit_code, "pip install 'lancekeep[query]'" in done.stderr) == (2, True)


def test_lost_file_is_reported_as_the_engine_reports_it(tmp_path: Path) -> None:
    with lancekeep.connect(f"{tmp_path}/lake", commit_store=f"sqlite://{tmp_path}/commits.db") as catalog:
        catalog.write("t", pa.table({"id": [1]}))
        [file] = Path(catalog.describe_table("t").uri.removeprefix("file://")).glob("data/*.lance")
    file.unlink()
    done = run(f"{tmp_path}/lake", "SELECT sum(id) FROM t")
    assert done.exit_code != 0
    assert file.name in done.stderr
    assert "registered as" not in done.stderr
