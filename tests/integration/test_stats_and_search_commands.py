"""``lancekeep stats`` and ``lancekeep search``, judged by numpy and by rows in memory."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from rest_server import serving

import lancekeep
from lancekeep.entrypoints.cli import column_stats
from lancekeep.entrypoints.cli import lancekeep as command

N = 3000
VECTORS = [None if n % 5 == 0 else [n / 7, 1.0, 0, 0, 0, 0, 0, 0] for n in range(N)]
COLUMNS = {
    "whole": pa.array([None if n % 10 == 0 else n for n in range(N)]),
    "float": pa.array([math.nan if n % 3 == 0 else n / 7 for n in range(N)]),
    "half": pa.array([1.5] * N, pa.float16()),
    "unsigned": pa.array([2**64 - 1 - n % 2 for n in range(N)], pa.uint64()),
    "money": pa.array([Decimal(n) / 100 for n in range(N)], pa.decimal128(10, 2)),
    "time": pa.array([datetime(2026, 1, 1, tzinfo=UTC) + timedelta(n) for n in range(N)], pa.timestamp("us", "UTC")),
    "day": pa.array([date(2026, 1, 1)] * N),
    "span": pa.array([timedelta(n) for n in range(N)]),
    "late": pa.array([2**58 + n for n in range(N)], pa.timestamp("us")),
    "flag": pa.array([n % 4 == 0 for n in range(N)]),
    "bytes": pa.array([bytes([n % 256, 255]) for n in range(N)]),
    "text": pa.array([f"word{n % 50}\n" for n in range(N)]),
    "kind": pa.array([f"k{n % 3}" for n in range(N)]).dictionary_encode(),
    "vector": pa.array(VECTORS, pa.list_(pa.float32(), 8)),
    "list": pa.array([[3, 4][: n % 3] for n in range(N)]),
    "nested": pa.array([{"a": n, "b": [n]} for n in range(N)]),
    "nothing": pa.nulls(N),
    "large": pa.array([1e308] * N),
    "infinite": pa.array([-math.inf, *range(N - 2), math.inf]),
}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("stats")
    with lancekeep.connect(f"{place}/lake", commit_store=f"sqlite://{place}/commits.db") as catalog:
        catalog.write("t", pa.table(COLUMNS))
        catalog.write("empty", pa.table(COLUMNS).slice(0, 0))
        catalog.write("wide", pa.table({f"c{n}": [n, n + 1] for n in range(2000)}))
        rows = pa.table({"id": range(600), "text": [f"word{n} all" for n in range(600)], "v": COLUMNS["vector"][:600]})
        catalog.write("plain", rows)
        catalog.write("two", rows.append_column("w", rows["v"]))
        catalog.write("indexed", rows)
        catalog.structure.create_index("indexed", lancekeep.NewIndex("v", "IVF_FLAT"))
        catalog.structure.create_index("indexed", lancekeep.NewIndex("text", "INVERTED"))
        catalog.write("partly", rows)
        catalog.structure.create_index("partly", lancekeep.NewIndex("v", "IVF_FLAT"))
        catalog.write("partly", rows, "append")
    return f"{place}/lake"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, list(arguments), obj=lancekeep)


def rows(*arguments: str) -> list[dict[str, Any]]:
    done = run(*arguments, "-o", "jsonl")
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


# -- stats ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stats(lake: str) -> dict[str, dict[str, Any]]:
    return {row["column"]: row for row in rows("stats", lake, "t")}


@pytest.mark.parametrize(
    ("column", "nulls", "nan", "low", "high", "distinct"),
    [
        ("whole", 300, 0, 1, 2999, 2700),
        ("float", 0, 1000, 1 / 7, 2999 / 7, 2001),
        ("half", 0, 0, 1.5, 1.5, 1),
        ("unsigned", 0, 0, 2**64 - 2, 2**64 - 1, 2),
        ("money", 0, 0, "0.00", "29.99", 3000),
        ("time", 0, 0, "2026-01-01T00:00:00+00:00", "2034-03-19T00:00:00+00:00", 3000),
        ("day", 0, 0, "2026-01-01", "2026-01-01", 1),
        ("span", 0, 0, 0.0, 2999 * 86400.0, 3000),
        ("late", 0, 0, "11103-08-29 17:22:31.711744", "11103-08-29 17:22:31.714743", 3000),
        ("flag", 0, 0, False, True, 2),
        ("bytes", 0, 0, "AP8=", "//8=", 256),
        ("text", 0, 0, "word0\n", "word9\n", 50),
        ("kind", 0, 0, "k0", "k2", 3),
        ("infinite", 0, 0, "-inf", "inf", 3000),
        ("vector", 600, 0, None, None, None),
        ("list", 0, 0, None, None, None),
        ("nested", 0, 0, None, None, None),
        ("nothing", 3000, 0, None, None, None),
    ],
)
def test_statistics_of_each_type_are_those_of_its_values(
    stats: dict[str, dict[str, Any]], column: str, nulls: int, nan: int, low: Any, high: Any, distinct: int | None
) -> None:
    found = stats[column]
    assert [found[key] for key in ("nulls", "nan", "min", "max")] == [nulls, nan, low, high]
    assert found["distinct"] == (None if distinct is None else pytest.approx(distinct, rel=0.05))


def test_histogram_counts_values_between_minimum_and_maximum(stats: dict[str, dict[str, Any]]) -> None:
    expected = np.histogram([n / 7 for n in range(N) if n % 3], 10)[0]
    assert stats["float"]["histogram"] == pytest.approx(list(expected), abs=0.02 * N)
    assert stats["half"]["histogram"] == [N]
    assert sum(stats["infinite"]["histogram"]) == pytest.approx(N - 2, abs=10)
    assert stats["text"]["histogram"] is None


def test_norms_of_vectors_are_those_of_numpy(stats: dict[str, dict[str, Any]]) -> None:
    norms = [math.hypot(*vector) for vector in VECTORS if vector is not None]
    expected = {"min": min(norms), "mean": np.mean(norms), "max": max(norms)}
    assert stats["vector"]["norm"] == pytest.approx(expected, rel=1e-5)
    assert stats["vector"]["dimension"] == 8
    assert stats["list"]["dimension"] == [0, 2]
    assert stats["list"]["norm"] == {"min": 0.0, "mean": pytest.approx(8 / 3), "max": 5.0}


def test_column_of_a_struct_and_chosen_columns_are_measured(lake: str) -> None:
    [deep, whole] = rows("stats", lake, "t", "nested.a", "whole")
    assert (deep["min"], deep["max"], whole["column"]) == (0, 2999, "whole")
    assert run("stats", lake, "t", "nope").exit_code == 2


def test_empty_and_wide_tables_are_measured(lake: str) -> None:
    assert {row["nulls"] for row in rows("stats", lake, "empty")} == {0}
    found = rows("stats", lake, "wide")
    assert [(row["min"], row["max"]) for row in found] == [(n, n + 1) for n in range(2000)]


def test_mean_is_left_out_if_the_sum_overflows(stats: dict[str, dict[str, Any]]) -> None:
    assert (stats["large"]["mean"], stats["infinite"]["mean"], stats["whole"]["mean"]) == (None, "nan", 1500.0)


def test_tables_of_a_server_are_read(lake: str) -> None:
    with serving(lancekeep.DirectoryNamespace(root=lake, commit_store="remembered")) as front:
        [found] = rows("stats", front.uri, "t", "whole")
        assert (found["min"], found["max"]) == (1, 2999)
        assert rows("search", front.uri, "indexed", "--text", "word7", "--select", "id")[0]["id"] == 7
        assert rows("query", front.uri, "SELECT max(id) AS m FROM plain WHERE id < 3") == [{"m": 2}]


def test_sample_reads_a_number_of_rows(lake: str) -> None:
    done = run("stats", lake, "t", "flag", "--sample", "100", "--seed", "1", "-o", "json")
    assert "A sample of 100 of 3,000 rows." in done.stderr
    assert sum(json.loads(done.stdout)[0]["histogram"]) == 100


def test_without_the_extra_only_estimates_are_missing(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(column_stats, "HAS_SKETCHES", False)
    done = run("stats", lake, "t", "whole", "-o", "json")
    [found] = json.loads(done.stdout)
    assert (found["min"], found["max"], found["distinct"], found["histogram"]) == (1, 2999, None, None)
    assert "pip install 'lancekeep[stats]'" in done.stderr


# -- search --------------------------------------------------------------------------------------------------------


def nearest(table: list[list[float] | None], vector: list[float], k: int) -> list[int]:
    distances = {n: math.dist(each, vector) for n, each in enumerate(table) if each is not None}
    return sorted(distances, key=lambda n: distances[n])[:k]


@pytest.mark.parametrize(("table", "how"), [("plain", "No index was used"), ("indexed", "The index was used.")])
def test_rows_nearest_to_a_row_are_found(lake: str, table: str, how: str) -> None:
    arguments = ("search", lake, table, "--vector", "[1.01, 1, 0, 0, 0, 0, 0, 0]", "-k", "3", "--select", "id")
    assert [row["id"] for row in rows(*arguments)] == nearest(VECTORS[:600], [1.01, 1, 0, 0, 0, 0, 0, 0], 3)
    assert how in run(*arguments).stderr


def test_rows_that_an_index_lacks_are_found_too(lake: str) -> None:
    done = run("search", lake, "partly", "--like", "607", "-k", "2", "--select", "id", "-o", "csv")
    assert done.stdout == "id,_distance\n7,0.0\n7,0.0\n"
    assert "rows that it does not have are compared" in done.stderr


def test_condition_applies_before_the_search(lake: str) -> None:
    found = rows(
        "search",
        lake,
        "plain",
        "--like",
        "7",
        "-k",
        "2",
        "--where",
        "id > 500",
        "--select",
        "id",
        "--select",
        "_distance",
    )
    assert [row["id"] for row in found] == [501, 502]


def test_vector_comes_from_an_option_or_a_file(lake: str, tmp_path: Path) -> None:
    vector = [2.02, 1, 0, 0, 0, 0, 0, 0]
    np.save(tmp_path / "v.npy", np.array([vector]))
    (tmp_path / "v.json").write_text(json.dumps(vector))
    for given in (
        ("--vector", json.dumps(vector)),
        ("--vector-file", f"{tmp_path}/v.npy"),
        ("--vector-file", f"{tmp_path}/v.json"),
    ):
        [found] = rows("search", lake, "plain", *given, "-k", "1")
        assert found["id"] == 14


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"[1, 2]", "2 numbers"),
        (b"[NaN, 1, 1, 1, 1, 1, 1, 1]", "NaN"),
        (b"[1e39, 1, 1, 1, 1, 1, 1, 1]", "above 3.4e+38"),
        (b"[%s, 1, 1, 1, 1, 1, 1, 1]" % (b"9" * 400), "above 3.4e+38"),
        (b"[[1, 2]]", "no vector"),
        (b"[true]", "no vector"),
        (b"{", "no JSON"),
        (b"\xff\xfe\xff", "no JSON"),
        (b"[" * 100_000, "no JSON"),
    ],
)
def test_file_without_a_vector_is_refused(lake: str, tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "v.json").write_bytes(content)
    done = run("search", lake, "plain", "--vector-file", f"{tmp_path}/v.json")
    assert (done.exit_code, reason in done.stderr) == (2, True), done.stderr


def test_pickled_objects_are_not_loaded(lake: str, tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", np.array([{"a": 1}], dtype=object))
    done = run("search", lake, "plain", "--vector-file", f"{tmp_path}/v.npy")
    assert (done.exit_code, "no array of numbers" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("plain", "--like", "5"), "no vector in v"),
        (("plain", "--like", "600"), "no position 600"),
        (("two", "--like", "1"), "v, w"),
        (("two", "--like", "1", "--column", "id"), "v, w"),
        (("plain",), "Give one of"),
        (("plain", "--like", "1", "--text", "a"), "Give one of"),
    ],
)
def test_search_that_cannot_run_says_why(lake: str, arguments: tuple[str, ...], reason: str) -> None:
    done = run("search", lake, *arguments)
    assert (done.exit_code, reason in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize(("table", "how"), [("plain", "No index was used"), ("indexed", "The index was used.")])
def test_rows_of_a_text_are_found_with_and_without_an_index(lake: str, table: str, how: str) -> None:
    done = run("search", lake, table, "--text", "word7", "--select", "id", "-o", "jsonl")
    [found] = map(json.loads, done.stdout.splitlines())
    assert (found["id"], found["_score"] > 0, how in done.stderr) == (7, True, True)
    assert rows("search", lake, table, "--text", "missing") == []


@pytest.mark.parametrize("start", ["head", "tail", "count", "search", "export"])
def test_condition_that_would_end_the_process_is_refused(lake: str, tmp_path: Path, start: str) -> None:
    others = {"search": ["--like", "1"], "export": [f"{tmp_path}/rows.csv"]}.get(start, [])
    done = run(start, lake, "plain", *others, "--where", f"id{'+1' * 20_000} > 0")
    assert (done.exit_code, "has a chain of 40,003 names" in done.stderr) == (2, True), done.output
    done = run(start, lake, "plain", *others, "--where", "lpad('x', 2000000000, 'x') > 'x'")
    assert (done.exit_code, "times as large" in " ".join(done.stderr.split())) == (2, True), done.output
