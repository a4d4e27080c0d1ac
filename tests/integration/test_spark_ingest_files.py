"""Ingest of files of every kind: each row once, bad records reported, interrupted at any point."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
import lance
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession

import lancekeep
from lancekeep.entrypoints.spark.jobs.files import Piece, list_files
from lancekeep.entrypoints.spark.jobs.ingested import RUN_PROPERTY, IngestedFiles, run_of
from lancekeep.entrypoints.spark.jobs.readers import Wanted, inspect, read
from lancekeep.jobs import Summary, ingest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),  # the JVM is forked, and executes at once
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
]


class Lake:
    """A catalog, a folder of files to take in, and one for what is bad."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark = spark
        self.directory = directory
        self.landing = directory / "landing"
        self.landing.mkdir()
        self.bad = directory / "bad"
        self.catalog = self.connect()

    def connect(self) -> lancekeep.Catalog:
        return lancekeep.connect(str(self.directory / "lake"), commit_store=f"sqlite://{self.directory}/commits.db")

    def ingest(self, sources: Any = None, catalog: lancekeep.Catalog | None = None, **options: Any) -> Summary:
        return ingest(self.spark, catalog or self.catalog, "t", sources or str(self.landing), **options)

    def kept(self, **options: Any) -> Summary:
        return self.ingest(bad_records=str(self.bad), **{"max_bad": 100, **options})

    def set_aside(self) -> list[tuple[str, int | None, str, Any]]:
        lines = [json.loads(line) for file in self.bad.iterdir() for line in file.read_text().splitlines()]
        told = [(line["file"].rpartition("/")[2], line["row"], line["reason"], line["record"]) for line in lines]
        return sorted(told, key=lambda bad: (bad[0], bad[1] or 0))

    def plain(self) -> lance.LanceDataset:
        """Return the table as plain pylance reads it."""
        return lance.dataset(self.catalog.describe_table("t").uri)

    def ids(self) -> list[int]:
        found: list[int] = sorted(self.plain().to_table(columns=["id"])["id"].to_pylist())
        return found

    def parquet(self, name: str, ids: range, **columns: Any) -> None:
        data = pa.table({"id": pa.array(ids, pa.int64()), **columns})
        pa.parquet.write_table(data, self.landing / f"{name}.parquet", row_group_size=10)


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, tmp_path)


# -- formats --------------------------------------------------------------------------------------------------------


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    lines = zlib.compress(bytes((width + 1) * height))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", lines) + chunk(b"IEND", b"")


def write_csv(folder: Path, start: int) -> None:
    (folder / f"{start}.csv").write_text(f'id,text\n{start},"two\nlines"\n\n{start + 1},\n{start + 2},""\n')


def write_json(folder: Path, start: int) -> None:
    rows = [{"id": start, "text": "two\nlines"}, {"id": start + 1}, {"id": start + 2, "text": ""}]
    whole = json.dumps(rows) if start else "\n\n".join(map(json.dumps, rows))  # one array, and lines
    (folder / f"{start}.json").write_text(whole)


def rows_from(start: int) -> pa.Table:
    return pa.table({"id": range(start, start + 3), "text": ["two\nlines", None, ""]})


def write_arrow(folder: Path, start: int) -> None:
    if start:
        with pa.ipc.new_stream(str(folder / f"{start}.arrow"), rows_from(start).schema) as stream:
            stream.write_table(rows_from(start))
    else:
        pa.feather.write_feather(rows_from(start), str(folder / f"{start}.feather"))


def write_parquet(folder: Path, start: int) -> None:
    pa.parquet.write_table(rows_from(start), folder / f"{start}.parquet", row_group_size=1)


@pytest.mark.parametrize("write", [write_csv, write_json, write_arrow, write_parquet])
def test_files_of_each_format_are_ingested_once(lake: Lake, write: Callable[[Path, int], None]) -> None:
    write(lake.landing, 0)
    write(lake.landing, 3)
    (lake.landing / "_SUCCESS").touch()
    first = lake.ingest(task_bytes=64)  # every file, and every row group of parquet, is a task
    expected = pa.concat_tables([rows_from(0), rows_from(3)])
    assert lake.plain().to_table().sort_by("id") == expected
    assert (first.before, first.version, first.rows, first.counts["files"]) == (None, 1, 6, 2)

    again = lake.ingest()
    assert (again.before, again.version, again.rows, again.counts["files known already"]) == (1, 1, 0, 2)
    write(lake.landing, 6)
    later = lake.ingest(f"{lake.landing}/[0-9]*").counts
    assert (later["files"], later["files known already"]) == (1, 2)
    assert lake.plain().to_table().sort_by("id") == pa.concat_tables([expected, rows_from(6)])
    assert [entry.version for entry in lake.catalog.versions.history("t")] == [2, 1]


def test_images_become_rows_with_bytes_and_header_fields(lake: Lake) -> None:
    (lake.landing / "a.png").write_bytes(png(3, 5))
    (lake.landing / "b.gif").write_bytes(b"GIF89a" + struct.pack("<HH", 640, 480) + bytes(20))
    (lake.landing / "c.jpg").write_bytes(b"no image at all")
    summary = lake.kept()
    rows = lake.plain().to_table().sort_by("uri").to_pylist()
    assert [(row["format"], row["width"], row["height"]) for row in rows] == [("png", 3, 5), ("gif", 640, 480)]
    assert rows[0]["image"] == png(3, 5)
    assert rows[0]["uri"] == f"file://{lake.landing}/a.png"
    assert [bad[:2] for bad in lake.set_aside()] == [("c.jpg", None)]
    assert (summary.counts["files"], summary.counts["files unread"]) == (2, 1)


def test_files_on_s3_are_found_and_named_without_secrets(moto_endpoint: str) -> None:
    bucket, query = f"landing-{uuid4().hex}", f"?endpoint_override={moto_endpoint}&region=us-east-1"
    client = boto3.client("s3", endpoint_url=moto_endpoint)
    client.create_bucket(Bucket=bucket)
    for name in ("a/0.csv", "a/1.csv", "_b/2.csv"):
        client.put_object(Bucket=bucket, Key=name, Body=b"id\n7\n")
    for source, expected in (("", ["a/0", "a/1"]), ("/a/*1.csv", ["a/1"]), ("/_b/2.csv", ["_b/2"])):
        found = list_files(f"s3://test:test@{bucket}{source}{query}")
        assert [file.uri for file in found] == [f"s3://{bucket}/{name}.csv" for name in expected]
    [batch] = read(
        Piece(found[0], 6), "csv", Wanted(pa.schema([("id", pa.int64())])), lambda *bad: pytest.fail(str(bad))
    )
    assert batch.to_pydict() == {"id": [7]}


# -- columns --------------------------------------------------------------------------------------------------------


def test_columns_are_widened_over_all_files(lake: Lake) -> None:
    lake.parquet("a", range(2), n=pa.array([1, 2], pa.int8()), v=[[1.0, 2.0], None], late=pa.nulls(2))
    lake.parquet("b", range(2, 4), n=pa.array([2**40, None]), v=[[3.0, 4.0]] * 2, more=["x", "y"])
    lake.ingest(vectors={"v": 2}, source_column="file")
    table = lake.plain().to_table().sort_by("id")
    assert table.schema.field("n").type == pa.int64()
    assert table.schema.field("v").type == pa.list_(pa.float32(), 2)
    assert table.schema.field("late").type == pa.string()
    assert table["v"].to_pylist() == [[1, 2], None, [3, 4], [3, 4]]
    assert table["more"].to_pylist() == [None, None, "x", "y"]
    assert [uri.rpartition("/")[2] for uri in table["file"].to_pylist()] == ["a.parquet"] * 2 + ["b.parquet"] * 2


def test_new_columns_are_refused_added_or_set_aside(lake: Lake) -> None:
    lake.parquet("a", range(2))
    lake.ingest()
    lake.parquet("b", range(2, 4), new=["x", "y"])
    with pytest.raises(lancekeep.InvalidInput, match=r"no columns 'new'.*schema='evolve'"):
        lake.ingest()
    assert lake.kept(schema="enforce").counts["files unread"] == 1
    assert [bad[:3] for bad in lake.set_aside()] == [("b.parquet", None, "'new' is not a column of the table")]
    assert lake.catalog.describe_table("t").version == 1

    evolved = lake.ingest(schema="evolve")  # the file that was not read is there to be taken in still
    assert (evolved.rows, evolved.version) == (2, 3)
    assert lake.plain().to_table().sort_by("id")["new"].to_pylist() == [None, None, "x", "y"]


# -- what is bad ----------------------------------------------------------------------------------------------------

COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("day", pa.date32()), ("x", pa.float32())])


def write_broken(folder: Path) -> None:
    (folder / "a.csv").write_bytes(
        b"id,day,x\n1,2020-01-01,1.5\n2,2020-01-02\n3,someday,\n,2020-01-03,2\n5,2020-01-03,\xff\n6,,\n7,8,9,10\n"
    )
    (folder / "b.csv").write_text("id,other\n1,2\n")


def test_bad_rows_and_files_are_kept_with_location_and_reason(lake: Lake) -> None:
    write_broken(lake.landing)
    summary = lake.kept(columns=COLUMNS, schema="enforce")
    assert lake.plain().to_table().to_pylist()[1:] == [{"id": 6, "day": None, "x": None}]
    assert lake.ids() == [1, 6]
    told = lake.set_aside()
    assert [(file, row) for file, row, _, _ in told] == [*(("a.csv", row) for row in (2, 3, 4, 5, 7)), ("b.csv", None)]
    assert [record for _, _, _, record in told[:3]] == [
        "2,2020-01-02",
        {"id": "3", "day": "someday", "x": None},
        {"id": None, "day": "2020-01-03", "x": "2"},
    ]
    assert "2 values, the header 3 columns" in told[0][2]
    assert "takes no nulls" in told[2][2]
    assert (summary.counts["bad records"], summary.counts["files unread"]) == (6, 1)
    assert lake.kept(schema="enforce").counts["files known already"] == 1  # and what could not be read is tried again
    assert len(lake.set_aside()) == 7


def test_bad_json_lines_do_not_affect_other_lines(lake: Lake) -> None:
    lines = ['{"id": 1}', "", '{"id": 2,', '{"id": 3}', '{"id": "x"}', '{"id": 4, "odd": 1}', '{"id": 5} {"id": 6}']
    (lake.landing / "a.jsonl").write_text("\n".join(lines))
    lake.kept(columns=pa.schema([("id", pa.int64())]), schema="enforce")
    assert lake.ids() == [1, 3]
    assert [(row, record) for _, row, _, record in lake.set_aside()] == [(n, lines[n - 1]) for n in (3, 5, 6, 7)]


def found(path: Path, text: str, columns: pa.Schema | None = None, timezone: str | None = None) -> Any:
    """What inspection finds of a file, and which rows and bad records reading it in these columns gives."""
    path.write_text(text)
    [file] = list_files(str(path))
    kind = path.suffix[1:]
    schema = columns or inspect(file, kind).schema
    assert schema is not None
    bad: list[tuple[int | None, str]] = []
    wanted = Wanted(schema, timezone=timezone)
    batches = list(read(Piece(file, 1), kind, wanted, lambda file, row, reason, record=None: bad.append((row, reason))))
    return schema, pa.Table.from_batches(batches, schema).to_pylist(), bad


def test_integers_beyond_64_bits_are_read_without_loss(tmp_path: Path) -> None:
    large = [9007199254740993, -7, None, 12345678901234567890]
    csv = "n,m,x\n" + "".join(f"{'' if n is None else n},{'' if n is None else n},1.5\n" for n in large)
    schema, rows, bad = found(tmp_path / "a.csv", csv)
    assert [field.type for field in schema] == [pa.decimal128(20, 0), pa.decimal128(20, 0), pa.float64()]
    assert [row["n"] for row in rows] == large
    lines = "\n".join(json.dumps({"n": n, "st": {"l": [n]}, "x": 1.5}) for n in large)
    schema, rows, more = found(tmp_path / "a.json", lines)
    assert schema.field("n").type == pa.decimal128(20, 0)
    assert schema.field("st").type == pa.struct([("l", pa.list_(pa.decimal128(20, 0)))])
    assert [row["n"] for row in rows] == [row["st"]["l"][0] for row in rows] == large
    assert not bad
    assert not more
    assert found(tmp_path / "b.csv", f"n\n{10**29}\n")[0].field("n").type == pa.decimal128(30, 0)
    assert found(tmp_path / "c.csv", f"n\n{10**40}\n1\n")[1] == [{"n": str(10**40)}, {"n": "1"}]


def test_integer_that_a_double_rounds_is_bad_record(tmp_path: Path) -> None:
    doubles = pa.schema([("n", pa.float64())])
    for columns in (None, doubles):
        _, rows, bad = found(tmp_path / "a.csv", "n\n1.5\n9007199254740993\n9007199254740992\n", columns)
        assert [row["n"] for row in rows] == [1.5, 2.0**53]
        assert [row for row, _ in bad] == [2]
        assert "a double would round 9007199254740993" in bad[0][1]
        lines = '{"n": 1.5}\n{"n": 9007199254740993}\n{"n": 9007199254740992}\n'
        _, rows, bad = found(tmp_path / "a.json", lines, columns)
        assert ([row["n"] for row in rows], [row for row, _ in bad]) == ([1.5, 2.0**53], [2])


def test_json_column_gets_type_of_most_records_and_others_are_bad(lake: Lake) -> None:
    lines = [json.dumps({"id": n, "x": "odd" if n in (0, 40) else n, "st": {"y": n / 2}}) for n in range(100)]
    (lake.landing / "a.json").write_text("\n".join(lines))
    (lake.landing / "b.json").write_text('{"id": 100, "x": ["odd", "too"]}')
    with pytest.raises(lancekeep.InvalidInput, match="no type holds both"):
        lake.ingest()
    summary = lake.kept()
    assert lake.plain().schema.field("x").type == pa.int64()
    assert lake.ids() == [n for n in range(100) if n not in (0, 40)]
    assert [(file, row) for file, row, _, _ in lake.set_aside()] == [("a.json", 1), ("a.json", 41), ("b.json", 1)]
    assert summary.counts["bad records"] == 3


def test_timestamps_of_csv_without_zone_are_read_in_given_zone(lake: Lake) -> None:
    text = "id,at\n1,2026-07-01 12:00:00\n2,2026-07-01T12:00:00Z\n3,2026-03-29 02:30:00\n4,\n"
    instants = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    _, rows, bad = found(lake.landing / "a.csv", text, instants, "Europe/Berlin")
    noon = datetime(2026, 7, 1, 12, tzinfo=UTC)
    assert [row["at"] for row in rows] == [noon - timedelta(hours=2), noon, None]
    assert [row for row, _ in bad] == [3]  # the hour that summer time skips
    (lake.landing / "a.csv").write_text("id,at\n1,2026-07-01 12:00:00\n")
    lake.ingest(timezone="Europe/Berlin")
    assert lake.plain().to_table()["at"].to_pylist() == [noon - timedelta(hours=2)]
    with pytest.raises(lancekeep.InvalidInput, match="unknown time zone 'Nowhere'"):
        lake.ingest(timezone="Nowhere")


def test_truncated_file_yields_rows_before_truncation(lake: Lake) -> None:
    lake.parquet("a", range(30))
    whole = (lake.landing / "a.parquet").read_bytes()
    place = pa.parquet.ParquetFile(lake.landing / "a.parquet").metadata.row_group(1).column(0).data_page_offset
    (lake.landing / "a.parquet").write_bytes(whole[:place] + bytes(20) + whole[place + 20 :])
    (lake.landing / "b.parquet").write_bytes(whole[:50])
    lake.parquet("c", range(100, 103))
    lake.kept()
    assert lake.ids() == [*range(10), *range(20, 30), *range(100, 103)]
    assert [bad[:2] for bad in lake.set_aside()] == [("a.parquet", 11), ("b.parquet", None)]


def test_too_many_bad_records_fail_job_before_commit(lake: Lake) -> None:
    write_broken(lake.landing)
    with pytest.raises(lancekeep.InvalidInput, match=r"more than 0 bad records; the last: row \d of .*a\.csv: has"):
        lake.ingest(columns=COLUMNS, schema="enforce")
    with pytest.raises(lancekeep.InvalidInput, match="bad records"):
        lake.kept(columns=COLUMNS, schema="enforce", max_bad=5, task_bytes=10)  # 5 and 1, in two tasks
    assert len(lake.set_aside()) == 6
    assert not lake.catalog.table_exists("t")
    with pytest.raises(lancekeep.InvalidInput, match="never dropped"):
        lake.ingest(max_bad=1)


# -- once -----------------------------------------------------------------------------------------------------------


def test_changed_file_is_refused_added_or_replaced(lake: Lake) -> None:
    lake.parquet("a", range(3))
    lake.parquet("b", range(10, 13))
    lake.ingest(source_column="file", task_bytes=1)
    lake.parquet("a", range(5))
    with pytest.raises(lancekeep.Refused, match=r"1 files changed since .*a\.parquet"):
        lake.ingest()
    assert lake.ingest(changed="replace", source_column="file").rows == 5
    assert lake.ids() == [*range(5), *range(10, 13)]
    assert lake.ingest(changed="replace", source_column="file").rows == 0
    lake.parquet("a", range(2))
    lake.ingest(changed="append", source_column="file")
    assert lake.ids() == [0, 0, 1, 1, 2, 3, 4, *range(10, 13)]
    assert lake.ingest(mode="overwrite", source_column="file").version == 4
    assert lake.ids() == [0, 1, *range(10, 13)]
    assert lake.ingest(mode="overwrite", source_column="file").version == 4  # it holds these files and no others


class Stopped(BaseException):
    """An interruption that no code handles, like Ctrl-C."""


@pytest.mark.parametrize("table", ["new", "old"])
@pytest.mark.parametrize("committed", [False, True], ids=["before", "behind"])
def test_ingest_stopped_around_commit_is_completed_by_next_run(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, committed: bool, table: str
) -> None:
    if table == "old":
        lake.parquet("0", range(100, 103))
        lake.ingest()
    lake.parquet("a", range(3))

    def stop(self: lancekeep.Catalog, *arguments: Any, **options: Any) -> None:
        if committed:
            commit(self, *arguments, **options)
        raise Stopped

    commit = lancekeep.Catalog.commit_fragments
    with monkeypatch.context() as patch:
        patch.setattr(lancekeep.Catalog, "commit_fragments", stop)
        patch.setattr(lancekeep.Catalog, "abandon_write", lambda self, plan: None)  # a kill leaves it no time
        with pytest.raises(Stopped):
            lake.ingest()
    again = lake.ingest(catalog=lake.connect())
    assert again.rows == (0 if committed else 3)
    assert [identity for identity in lake.ids() if identity < 100] == [0, 1, 2]
    lake.catalog.write("t", pa.table({"id": [7]}), "append")
    assert lake.ingest(catalog=lake.connect()).rows == 0


def test_concurrent_runs_ingest_each_file_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one comes in between the tasks and the commit of the first, and so does a writer of another kind."""
    lake.parquet("0", range(100, 101))
    lake.ingest()
    lake.parquet("a", range(3))
    lake.parquet("b", range(10, 13))
    commit = lancekeep.Catalog.commit_fragments
    other = lake.connect()

    def overtaken(self: lancekeep.Catalog, *arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(lancekeep.Catalog, "commit_fragments", commit)
        lake.ingest(f"{lake.landing}/a.parquet", catalog=other)
        other.write("t", pa.table({"id": [1000]}), "append")
        return commit(self, *arguments, **options)

    monkeypatch.setattr(lancekeep.Catalog, "commit_fragments", overtaken)
    assert lake.ingest().rows == 3
    assert lake.ids() == [0, 1, 2, 10, 11, 12, 100, 1000]
    assert lake.ingest().rows == 0


def test_ingest_records_are_compacted_and_lost_version_voids_one(
    tmp_path: Path,
) -> None:
    catalog = lancekeep.connect(str(tmp_path / "lake"), commit_store=f"sqlite://{tmp_path}/commits.db")
    schema = pa.schema([("id", pa.int64())])
    catalog.write("t", schema.empty_table())
    record = IngestedFiles(catalog, catalog.find_table("t"))
    files = []
    for number in range(2, 22):
        path = tmp_path / f"{number}.csv"
        path.write_text("id\n")
        [file] = list_files(str(path))
        record.propose(number, f"run{number}", [file], replaces=False)
        plan = catalog.begin_write("t", schema, "append")
        loses = number % 7 == 0
        catalog.commit_fragments(plan, [], properties={RUN_PROPERTY: "another" if loses else f"run{number}"})
        files += [] if loses else [file.uri]
    assert sorted(record.read(catalog.open("t"))["uri"].to_pylist()) == sorted(files)
    entries = list(Path(catalog.describe_table("t").uri.removeprefix("file://"), "_ingested").iterdir())
    assert len(entries) == 1
    assert sorted(IngestedFiles(catalog, catalog.find_table("t")).read(catalog.open("t"))["uri"].to_pylist()) == sorted(
        files
    )


@pytest.mark.parametrize("mode", ["v1", "v2", "compatible"])
@pytest.mark.parametrize("removal", ["drop", "rename"])
def test_record_of_ingested_files_does_not_outlive_its_table(tmp_path: Path, mode: str, removal: str) -> None:
    catalog = lancekeep.connect(str(tmp_path / "lake"), mode=mode, commit_store=f"sqlite://{tmp_path}/commits.db")
    rows = pa.table({"id": pa.array([1], pa.int64())})
    catalog.write("t", rows)
    path = tmp_path / "a.csv"
    path.write_text("id\n")
    [file] = list_files(str(path))
    record, run = IngestedFiles(catalog, catalog.find_table("t")), run_of([file], "append t")
    record.propose(2, run, [file], replaces=False)
    catalog.commit_fragments(catalog.begin_write("t", rows.schema, "append"), [], properties={RUN_PROPERTY: run})
    record.settle(2, run)
    if removal == "drop" or mode == "v1":
        catalog.drop_table("t")
    else:
        catalog.rename_table("t", "other")
        moved = IngestedFiles(catalog, catalog.find_table("other"))
        assert moved.read(catalog.open("other"))["uri"].to_pylist() == [file.uri]
    catalog.write("t", rows)
    catalog.write("t", rows, "append")
    assert IngestedFiles(catalog, catalog.find_table("t")).read(catalog.open("t")).num_rows == 0
    assert not catalog.upkeep.fsck(grace=0).findings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "create"}, "unknown mode 'create'; choose append, overwrite"),
        ({"schema": "guess"}, "unknown schema 'guess'"),
        ({"format": "xlsx"}, "unknown format 'xlsx'"),
        ({"changed": "replace"}, "source_column"),
        ({"schema": "enforce"}, "no columns to enforce"),
        ({"vectors": {"id": 2}}, "no column 'id' of lists that could be vectors of 2"),
        ({"sources": "/nowhere/*.csv"}, "no file under /nowhere"),
    ],
)
def test_invalid_options_are_refused_before_any_task(lake: Lake, options: dict[str, Any], message: str) -> None:
    (lake.landing / "a.csv").write_text("id\n1\n")
    with pytest.raises(lancekeep.LancekeepError, match=message):
        lake.ingest(**options)
    assert not lake.catalog.table_exists("t")


@pytest.mark.parametrize("chunk", [2, 7, 1 << 20])
def test_json_array_is_read_incrementally(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    rows = [{"id": number, "n": number * 1.5, "s": 'é, ]"\\ ' * (number % 5)} for number in range(40)]
    file = tmp_path / "a.json"
    monkeypatch.setattr("lancekeep.entrypoints.spark.jobs.json_records.CHUNK", chunk)
    schema = pa.schema([("id", pa.int64()), ("n", pa.float64()), ("s", pa.string())])
    told: list[str] = []

    def taken(text: str) -> list[dict[str, Any]]:
        file.write_text(text)
        [listed] = list_files(str(file))
        piece = Piece(listed, listed.size)
        read_ = read(piece, "json", Wanted(schema), lambda file, row, reason, record=None: told.append(reason))
        return [row for batch in read_ for row in batch.to_pylist()]

    assert taken(json.dumps(rows, ensure_ascii=False)) == taken(f" {json.dumps(rows, indent=1)}\n") == rows
    assert [*taken("[]"), *taken("[ \n ] "), *told] == []
    whole = json.dumps(rows)
    for broken, left in ((whole[:-1], 39), (whole[:-1] + ",]", 40), (whole + "[", 40), ("[", 0), ("[}", 0)):
        assert taken(broken) == rows[:left]  # what comes before the place where it breaks
        assert told.pop().startswith("cannot be read: ")
    assert told == []
