"""Streams from and into tables: what each batch holds, and that a batch is committed once however it is interrupted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import lance
import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # py4j is published without types
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, LongType, StructField, StructType

import lancekeep
import lancekeep.spark
from lancekeep.entrypoints.spark import streaming
from lancekeep.entrypoints.spark.internals import python_source
from lancekeep.entrypoints.spark.internals.driver import Driver
from lancekeep.entrypoints.spark.streaming import BATCH, QUERY, StreamReader, StreamWriter, WrittenByQuery
from lancekeep.entrypoints.spark.versions import LIMITS_BATCHES, ReadAllAvailable
from pyspark_lancekeep import DefaultSource

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),  # the JVM is forked, and executes at once
]

limits_batches = pytest.mark.skipif(not LIMITS_BATCHES, reason="limits of batches need PySpark 4.2")

SCHEMA = StructType([StructField("id", LongType())])


@pytest.fixture
def options(tmp_path: Path) -> dict[str, str]:
    return {"root": str(tmp_path / "lake"), "commit_store": f"sqlite://{tmp_path}/commits.db"}


@pytest.fixture
def catalog(options: Mapping[str, str]) -> Iterator[lancekeep.Catalog]:
    with lancekeep.connect(options["root"], commit_store=options["commit_store"]) as catalog:
        yield catalog


def add(catalog: lancekeep.Catalog, *ids: int, table: str = "source") -> None:
    rows = pa.table({"id": pa.array(ids, pa.int64())})
    catalog.write(table, rows, "append" if catalog.table_exists(table) else "create")


def ids(catalog: lancekeep.Catalog, table: str) -> list[int]:
    return sorted(catalog.open(table).to_table()["id"].to_pylist())


# -- the source -----------------------------------------------------------------------------------------------------


def reader(options: Mapping[str, str], **more: str) -> StreamReader:
    made = DefaultSource({**options, **more, "path": "source"}).streamReader(SCHEMA)
    assert isinstance(made, StreamReader)
    return made


def batch(stream: StreamReader, start: Mapping[str, int], end: Mapping[str, int]) -> list[int]:
    parts = stream.partitions(dict(start), dict(end))
    return sorted(value for part in parts for rows in stream.read(part) for value in rows["id"].to_pylist())


def next_batch(stream: StreamReader, start: Mapping[str, int]) -> list[int]:
    return batch(stream, start, stream.latestOffset(dict(start), ReadAllAvailable()))


def batches(stream: StreamReader) -> list[list[int]]:
    """What the stream holds now, batch by batch."""
    found, start = [], stream.initialOffset()
    while (end := stream.latestOffset(start, ReadAllAvailable())) != start:
        found.append(batch(stream, start, end))
        start = end
    return found


def test_stream_starts_with_all_rows_or_at_version(options: dict[str, str], catalog: lancekeep.Catalog) -> None:
    for number in range(4):
        add(catalog, number)
    assert batches(reader(options)) == [[0, 1, 2, 3]]
    assert batches(reader(options, starting_version="1")) == [[0, 1, 2, 3]]
    assert batches(reader(options, starting_version="3")) == [[2, 3]]
    assert batches(reader(options, starting_version="latest")) == []
    with pytest.raises(lancekeep.InvalidInput, match="starting_version is 9, and the latest version of source is 4"):
        reader(options, starting_version="9").initialOffset()
    with pytest.raises(lancekeep.InvalidInput, match="unknown option 'version'"):
        reader(options, version="1")


def test_stream_in_older_spark_reads_up_to_latest_version(
    options: dict[str, str], catalog: lancekeep.Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        add(catalog, number)
    stream = reader(options)
    end = stream.latestOffset()
    assert batch(stream, stream.initialOffset(), end) == [0, 1, 2]
    assert stream.latestOffset() == end
    add(catalog, 3)
    assert batch(stream, end, stream.latestOffset()) == [3]
    catalog.drop_table("source")
    for number in (10, 11):
        add(catalog, number)
        with pytest.raises(lancekeep.Refused, match="dropped and created again"):
            batch(stream, end, stream.latestOffset())

    monkeypatch.setattr(streaming, "LIMITS_BATCHES", False)
    for limit in ("max_versions_per_trigger", "max_rows_per_trigger"):
        with pytest.raises(lancekeep.InvalidInput, match=r"need PySpark 4\.2 or later"):
            reader(options, **{limit: "1"})


@limits_batches
def test_batches_are_limited_by_versions_and_rows(options: dict[str, str], catalog: lancekeep.Catalog) -> None:
    for number in range(0, 10, 2):
        add(catalog, number, number + 1)
    assert batches(reader(options, max_versions_per_trigger="1")) == [[*range(10)]]  # the first batch is the table
    limited = reader(options, starting_version="1", max_versions_per_trigger="2")
    assert batches(limited) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    by_rows = reader(options, starting_version="1", max_rows_per_trigger="5")
    assert batches(by_rows) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert batches(reader(options, starting_version="1", max_rows_per_trigger="1"))[0] == [0, 1]  # a version at least

    now = reader(options, starting_version="1", max_versions_per_trigger="4")
    now.prepareForTriggerAvailableNow()
    add(catalog, 99)
    assert batches(now) == [[*range(8)], [8, 9]]


def test_stream_contains_only_appended_rows(options: dict[str, str], catalog: lancekeep.Catalog) -> None:
    add(catalog, 1)
    add(catalog, 2)
    catalog.open("source").optimize.compact_files()
    catalog.open("source").create_scalar_index("id", "BTREE")
    new = pa.table({"id": pa.array([3], pa.int64())})
    catalog.open("source").merge_insert("id").when_not_matched_insert_all().execute(new)
    catalog.open("source").add_columns({"twice": "id * 2"})
    catalog.open("source").delete("id = 99")
    catalog.open("source").optimize.compact_files()
    latest = catalog.open("source").version
    assert [batch(reader(options), {"version": at}, {"version": latest}) for at in (1, 2)] == [[2, 3], [3]]

    catalog.open("source").delete("id = 1")
    changed = latest + 1
    add_columns = pa.table({"id": pa.array([4], pa.int64()), "twice": pa.array([8], pa.int64())})
    catalog.write("source", add_columns, "append")
    catalog.open("source").update({"id": "5"}, where="id = 4")
    catalog.write("source", add_columns, "overwrite")
    with pytest.raises(lancekeep.Refused, match=f"version {changed} of source is no append"):
        batches(reader(options, starting_version="2"))
    skipping = reader(options, starting_version="2", skip_change_commits="true")
    assert batches(skipping) == [[2, 3, 4]]  # each as its version appended it


def test_removed_versions_and_replaced_tables_are_reported(options: dict[str, str], catalog: lancekeep.Catalog) -> None:
    for number in range(5):
        add(catalog, number)
    catalog.upkeep.cleanup(timedelta(0), grace=timedelta(0), tables=["source"])
    with pytest.raises(lancekeep.VersionNotFound, match="version 2 of source, which the stream still needs"):
        batch(reader(options), {"version": 2}, {"version": 5})
    assert batches(reader(options)) == [[0, 1, 2, 3, 4]]
    catalog.drop_table("source")
    add(catalog, 7)
    with pytest.raises(lancekeep.Refused, match="dropped and created again"):
        reader(options).latestOffset({"version": 5}, ReadAllAvailable())


def test_stream_refuses_source_that_was_dropped_and_recreated(
    options: dict[str, str], catalog: lancekeep.Catalog
) -> None:
    for number in range(3):
        add(catalog, number)
    stream = reader(options)
    offset = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
    assert batch(stream, {"version": 0}, offset) == [0, 1, 2]
    planned = stream.partitions({"version": 0}, offset)

    catalog.drop_table("source")
    for number in range(10, 15):
        add(catalog, number)
    assert dict(offset)["version"] == 3
    for restarted in (reader(options), stream):
        with pytest.raises(
            lancekeep.Refused, match=r"source is not the table .* Start the query with a new checkpoint"
        ):
            next_batch(restarted, offset)
    with pytest.raises(lancekeep.Refused, match="dropped and created again"):  # the batch of an interrupted run
        batch(reader(options, starting_version="1"), {"version": 0}, offset)
    with pytest.raises(lancekeep.Refused, match="Run the query again"):  # tasks that were planned before
        [rows for part in planned for rows in stream.read(part)]

    old_checkpoint = {"version": 3}  # names no transaction, so it cannot tell
    end = stream.latestOffset(old_checkpoint, ReadAllAvailable())
    assert batch(stream, old_checkpoint, end) == [13, 14]
    catalog.drop_table("source")
    for number in range(20, 25):
        add(catalog, number)
    with pytest.raises(lancekeep.Refused, match="dropped and created again"):
        reader(options).latestOffset(end, ReadAllAvailable())


EVOLVED = StructType(
    [
        StructField("key", LongType()),
        StructField("st", StructType([StructField("xx", LongType()), StructField("z", LongType())])),
        StructField("n", LongType()),
        StructField("ar", ArrayType(StructType([StructField("q", LongType())]))),
    ]
)


def test_stream_reads_old_versions_in_current_schema(options: dict[str, str], catalog: lancekeep.Catalog) -> None:
    def rows(number: int, **more: Any) -> pa.Table:
        schema = pa.schema([("id", pa.int32()), ("st", pa.struct([("x", pa.int64()), ("y", pa.string())]))])
        schema = schema.append(pa.field("ar", pa.list_(pa.struct([("p", pa.int64())]))))
        return pa.Table.from_pylist([{"id": number, "st": {"x": number, "y": "a"}, "ar": [{"p": number}]}], schema)

    catalog.write("source", rows(1))
    catalog.write("source", rows(2), "append")
    alterations: list[Any] = [
        lambda table: table.alter_columns({"path": "id", "data_type": pa.int64()}),
        lambda table: table.add_columns(pa.schema([pa.field("n", pa.int32())])),
        lambda table: table.drop_columns(["n"]),  # what it held is no part of the column that gets its name later
        lambda table: table.alter_columns({"path": "id", "name": "key"}),
        lambda table: table.alter_columns({"path": "st.x", "name": "xx"}),
        lambda table: table.alter_columns({"path": "ar.item.p", "name": "q"}),
        lambda table: table.drop_columns(["st.y"]),
        lambda table: table.add_columns(pa.schema([pa.field("st", pa.struct([pa.field("z", pa.int64())]))])),
        lambda table: table.add_columns(pa.schema([pa.field("n", pa.int64())])),
    ]
    for number, alter in enumerate(alterations, 3):
        alter(catalog.open("source"))
        schema = catalog.open("source").schema
        given = {"id": number, "key": number, "n": number, "st": {"x": number, "xx": number, "z": number}}
        row = {name: value for name, value in given.items() if name in schema.names} | {"ar": [{"p": number, "q": 0}]}
        catalog.write("source", pa.Table.from_pylist([row], schema), "append")

    made = DefaultSource({**options, "path": "source", "starting_version": "1"}).streamReader(EVOLVED)
    assert isinstance(made, StreamReader)
    end = made.latestOffset(made.initialOffset(), ReadAllAvailable())
    found = [
        (row["key"], row["st"]["xx"], row["st"]["z"], row["n"], len(row["ar"]))
        for part in made.partitions({"version": 0}, end)
        for read in made.read(part)
        for row in read.to_pylist()
    ]
    last = len(alterations) + 2
    assert found == [
        (number, number, number if number >= last - 1 else None, number if number == last else None, 1)
        for number in range(1, last + 1)
    ]

    catalog.open("source").drop_columns(["n"])
    row = {"key": 99, "st": {"xx": 1, "z": 1}, "ar": []}
    catalog.write("source", pa.Table.from_pylist([row], catalog.open("source").schema), "append")
    with pytest.raises(lancekeep.InvalidInput, match="dropped a column that the stream reads"):
        made.partitions(end, made.latestOffset(end, ReadAllAvailable()))


@pytest.mark.parametrize("change", ["retyped", "renamed"])
def test_columns_that_changed_before_the_first_batch_are_reported(
    options: dict[str, str], catalog: lancekeep.Catalog, change: str
) -> None:
    add(catalog, 1)
    stream = reader(options)
    CHANGES_OF_COLUMNS[change](catalog.open("source"))
    for _ in range(2):
        with pytest.raises(lancekeep.InvalidInput, match="columns of source were changed after the stream was loaded"):
            batches(stream)


def test_stream_of_changes_has_deletes_and_updates(catalog: lancekeep.Catalog, options: Mapping[str, str]) -> None:
    add(catalog, 1, 2, 3)
    source = DefaultSource({**options, "path": "source", "read_changes": "true"})
    stream = source.streamReader(source.schema())
    assert isinstance(stream, StreamReader)

    def changes(start: dict[str, Any]) -> tuple[list[tuple[Any, ...]], dict[str, Any]]:
        end = stream.latestOffset(start, ReadAllAvailable())
        rows = [
            row for part in stream.partitions(start, end) for found in stream.read(part) for row in found.to_pylist()
        ]
        return sorted((row["_commit_version"], row["_change_type"], row["id"]) for row in rows), end

    first, read = changes(stream.initialOffset())
    assert first == [(1, "insert", 1), (1, "insert", 2), (1, "insert", 3)]
    add(catalog, 4)
    catalog.open("source").delete("id = 2")
    found, read = changes(read)
    assert found == [(2, "insert", 4), (3, "delete", 2)]
    catalog.open("source").optimize.compact_files()
    assert changes(read)[0] == []
    read = changes(read)[1]
    catalog.open("source").update({"id": "id + 10"}, where="id = 1")
    with pytest.raises(lancekeep.Refused, match=r"updated rows .Update., and the table has no stable row ids"):
        changes(read)
    for name, value in (("columns", "id"), ("skip_change_commits", "true"), ("max_rows_per_trigger", "1")):
        with pytest.raises(lancekeep.InvalidInput, match=f"the option {name} does not apply"):
            reader(options, read_changes="true", **{name: value})
    with pytest.raises(lancekeep.InvalidInput, match="load it without a schema"):
        reader(options, read_changes="true")


# -- changes --------------------------------------------------------------------------------------------------------

PAIRS = pa.schema([("id", pa.int64()), ("n", pa.int64())])


def pairs(*numbers: int) -> pa.Table:
    return pa.table({"id": list(numbers), "n": [0] * len(numbers)}, PAIRS)


def changes(stream: StreamReader, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """The rows of a batch, each with its version and the kind of its change."""
    found = [
        row
        for part in stream.partitions(dict(start), dict(end))
        for rows in stream.read(part)
        for row in rows.to_pylist()
    ]
    kinds = ("_commit_version", "_change_type")
    return sorted((*map(row.pop, kinds), *(value for name, value in row.items() if name[0] != "_")) for row in found)


def reader_of_changes(options: Mapping[str, str], schema: StructType | None = None) -> StreamReader:
    source = DefaultSource({**options, "path": "source", "read_changes": "true", "starting_version": "1"})
    made = source.streamReader(schema or source.schema())
    assert isinstance(made, StreamReader)
    return made


def replace_value(dataset: lance.LanceDataset, operation: str) -> None:
    """Set n to 7 in the row with id 2, as a native program may, without a record that the row was updated."""
    first, *others = dataset.get_fragments()
    new = pa.table({"id": [2], "n": [7]}, PAIRS)
    changed, fields = first.update_columns(new, left_on="id", right_on="id")
    if operation == "Update":
        given: Any = lance.LanceOperation.Update(updated_fragments=[changed], fields_modified=fields)
    else:
        given = lance.LanceOperation.Merge([changed, *(other.metadata for other in others)], dataset.lance_schema)
    lance.LanceDataset.commit(dataset, given, read_version=dataset.version)


@pytest.mark.parametrize("operation", ["Update", "Merge"])
def test_stream_of_changes_has_values_that_were_replaced_in_place(tmp_path: Path, operation: str) -> None:
    options = {"root": str(tmp_path / "lake")}
    with lancekeep.connect(options["root"]) as catalog:
        catalog.write("source", pairs(1, 2, 3), stable_row_ids=True)
        catalog.write("source", pairs(4), "append")
        replace_value(catalog.open("source"), operation)
        catalog.open("source").optimize.compact_files()
        compacted = catalog.open("source").version
        catalog.versions.restore("source", 2)
        stream = reader_of_changes(options)
        offsets = [stream._offset(version) for version in range(compacted + 2)]
        assert changes(stream, offsets[2], offsets[3]) == [
            (3, "update_postimage", 2, 7),
            (3, "update_preimage", 2, 0),
        ]
        assert changes(stream, offsets[3], offsets[compacted]) == []
        assert changes(stream, offsets[compacted], offsets[-1]) == [
            (compacted + 1, "update_postimage", 2, 0),
            (compacted + 1, "update_preimage", 2, 7),
        ]


def test_merge_that_replaces_values_is_no_change_of_columns_only(tmp_path: Path) -> None:
    options = {"root": str(tmp_path / "lake")}
    with lancekeep.connect(options["root"]) as catalog:
        catalog.write("source", pairs(1, 2, 3))
        catalog.open("source").delete("id = 1")
        catalog.open("source").add_columns({"twice": "id * 2"})
        for start in (reader(options, starting_version="3"), reader_of_changes(options)):
            assert batch(start, {"version": 2}, {"version": 3}) == []
        catalog.open("source").drop_columns(["twice"])
        replace_value(catalog.open("source"), "Merge")
        with pytest.raises(lancekeep.Refused, match="version 5 of source is no append"):
            batch(reader(options), {"version": 4}, {"version": 5})
        with pytest.raises(lancekeep.Refused, match=r"updated rows .Merge., and the table has no stable row ids"):
            batch(reader_of_changes(options), {"version": 4}, {"version": 5})


def test_skipping_stream_does_not_repeat_rows_that_a_restore_brings_back(
    options: dict[str, str], catalog: lancekeep.Catalog
) -> None:
    for number in range(3):
        add(catalog, number)
    catalog.open("source").delete("id = 2")  # with its fragment
    catalog.versions.restore("source", 3)
    add(catalog, 3)
    assert ids(catalog, "source") == [0, 1, 2, 3]
    assert batches(reader(options, starting_version="1", skip_change_commits="true")) == [[0, 1, 2, 3]]
    assert batches(reader(options, starting_version="5")) == [[2, 3]]  # starts without the row


def test_stream_of_changes_keeps_its_columns_when_the_columns_of_the_table_change(
    options: dict[str, str], catalog: lancekeep.Catalog
) -> None:
    catalog.write("source", pairs(1), stable_row_ids=True)
    stream = reader_of_changes(options)
    assert changes(stream, {"version": 0}, stream._offset(1)) == [(1, "insert", 1, 0)]
    alterations: list[Callable[[Any], Any]] = [
        lambda table: table.add_columns({"more": "id * 10"}),
        lambda table: table.alter_columns({"path": "more", "name": "most"}),
        lambda table: table.alter_columns({"path": "n", "data_type": pa.int32()}),
    ]
    for number, alter in enumerate(alterations, 2):
        alter(catalog.open("source"))
        columns = catalog.open("source").schema
        row = {"id": number, "n": 0, "more": 5, "most": 5}
        catalog.write("source", pa.Table.from_pylist([row], columns), "append")
        catalog.open("source").update({"n": "n + 1"}, where=f"id = {number}")
    inserts = [(1, "insert", 1, 0), (3, "insert", 2, 0), (6, "insert", 3, 0), (9, "insert", 4, 0)]
    updates = [(3 * row - 2, kind, row, n) for row in (2, 3, 4) for n, kind in enumerate(_IMAGES)]
    end = stream._offset(10)
    assert changes(stream, {"version": 0}, end) == sorted([*inserts, *updates])

    restarted = changes(reader_of_changes(options), {"version": 0}, end)  # in the columns of the last version
    assert restarted == sorted((*row, None if row[0] < 2 else 5) for row in [*inserts, *updates])

    catalog.open("source").drop_columns(["n"])
    catalog.open("source").delete("id = 1")
    with pytest.raises(lancekeep.InvalidInput, match="Load the table again and restart the query with its checkpoint"):
        changes(stream, end, stream._offset(12))
    assert changes(reader_of_changes(options), end, stream._offset(12)) == [(12, "delete", 1, 10)]


_IMAGES = ("update_preimage", "update_postimage")


# -- the sink -------------------------------------------------------------------------------------------------------


def writer(options: Mapping[str, str], *, complete: bool = False, **more: str) -> StreamWriter:
    made = DefaultSource({**options, **more, "path": "sink"}).streamWriter(SCHEMA, complete)
    assert isinstance(made, StreamWriter)
    return made


def written(sink: StreamWriter, *ids: int, query: str = "q") -> list[Any]:
    """What a task answers that has written these rows."""
    from lancekeep.entrypoints.spark.writing import write_batches

    rows = pa.record_batch({"id": pa.array(ids, pa.int64())})
    return [WrittenByQuery(write_batches([rows], sink._plan), query)]


def test_repeated_batch_is_committed_once(options: dict[str, str], catalog: lancekeep.Catalog) -> None:
    for number in (0, 1, 1, 1):
        sink = writer(options)
        sink.commit(written(sink, number), number)
        sink.commit(written(sink, number), number)
    add(catalog, 100, table="sink")
    sink = writer(options)
    sink.commit(written(sink, 1), 1)
    sink.commit([WrittenByQuery([], "q")], 2)  # nothing to commit
    sink.commit(written(sink, 3), 3)
    sink.commit(written(sink, 200, query="other"), 0)
    assert ids(catalog, "sink") == [0, 1, 3, 100, 200]
    dataset = catalog.open("sink")
    transactions = [dataset.read_transaction(version) for version in range(1, dataset.version + 1)]
    assert [
        (kept.transaction_properties or {}).get(QUERY, "") + (kept.transaction_properties or {}).get(BATCH, "")
        for kept in transactions
        if kept is not None
    ] == ["", "q0", "q1", "", "q3", "other0"]


def test_sink_that_was_dropped_and_recreated_is_refused(options: dict[str, str], catalog: lancekeep.Catalog) -> None:
    sink = writer(options)
    sink.commit(written(sink), 0)  # the first batch is recorded even though it has no rows
    sink.commit(written(sink, 1), 1)
    stale = writer(options)
    answer = written(stale, 2)
    catalog.drop_table("sink")
    add(catalog, 100, table="sink")
    add(catalog, 101, table="sink")
    add(catalog, 102, table="sink")
    with pytest.raises(lancekeep.Refused, match="was dropped and created again while a batch was written"):
        stale.commit(answer, 2)
    sink = writer(options)
    with pytest.raises(lancekeep.Refused, match="sink holds no batch of the query q, whose next batch is 2"):
        sink.commit(written(sink, 2), 2)
    assert ids(catalog, "sink") == [100, 101, 102]
    sink = writer(options, ignore_removed_versions="true")
    sink.commit(written(sink, 2), 2)
    assert ids(catalog, "sink") == [2, 100, 101, 102]


def test_batch_of_an_older_checkpoint_is_refused(options: dict[str, str], catalog: lancekeep.Catalog) -> None:
    for number in range(3):
        sink = writer(options)
        sink.commit(written(sink, number), number)
    sink = writer(options)
    with pytest.raises(lancekeep.Refused, match=r"sink has batch 2 of the query q, which comes with batch 1 again"):
        sink.commit(written(sink, 1, 2, 3), 1)  # Spark plans batch 1 again, with rows that were added since
    assert ids(catalog, "sink") == [0, 1, 2]


def test_search_for_the_last_batch_follows_restores_of_earlier_versions_only() -> None:
    """A transaction that another program wrote may restore its own version."""

    class Dataset:
        def read_transaction(self, version: int) -> Any:
            return SimpleNamespace(operation=lance.LanceOperation.Restore(5), transaction_properties=None)

    assert [streaming._record(Dataset(), version) for version in (4, 5, 6)] == [({}, None), ({}, None), ({}, 5)]


def test_table_and_checkpoint_are_restored_together(options: dict[str, str], catalog: lancekeep.Catalog) -> None:
    for number in range(3):
        sink = writer(options)
        sink.commit(written(sink, number), number)
    catalog.versions.restore("sink", 2)  # version 2 ends with batch 0
    for _ in range(2):
        sink = writer(options)
        sink.commit(written(sink, 1, 2, 3), 1)
    assert ids(catalog, "sink") == [0, 1, 2, 3]


def test_batches_that_a_restore_removed_are_not_written_again(
    options: dict[str, str], catalog: lancekeep.Catalog
) -> None:
    for number in range(3):
        sink = writer(options)
        sink.commit(written(sink, number), number)
    catalog.versions.restore("sink", 2)  # ends with batch 0, and the checkpoint with batch 2
    sink = writer(options)
    sink.commit(written(sink, 3), 3)
    assert ids(catalog, "sink") == [0, 3]


def test_restore_while_a_batch_is_committed_is_noticed(
    options: dict[str, str], catalog: lancekeep.Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        sink = writer(options)
        sink.commit(written(sink, number), number)
    add(catalog, 100, table="sink")
    sink = writer(options)
    answer = written(sink, 3)
    commit = lancekeep.Catalog.commit_fragments

    def overtaken(self: lancekeep.Catalog, *given: Any, **named: Any) -> Any:
        monkeypatch.undo()
        catalog.versions.restore("sink", 1)  # before both batches
        return commit(self, *given, **named)

    monkeypatch.setattr(lancekeep.Catalog, "commit_fragments", overtaken)
    with pytest.raises(lancekeep.Refused, match="sink holds no batch of the query q, whose next batch is 2"):
        sink.commit(answer, 2)
    assert ids(catalog, "sink") == []


def test_sink_that_was_replaced_by_a_shorter_table_is_refused(
    options: dict[str, str], catalog: lancekeep.Catalog
) -> None:
    for number in range(3):
        add(catalog, number, table="sink")
    sink = writer(options)
    answer = written(sink, 3)
    catalog.drop_table("sink")
    add(catalog, 100, table="sink")
    with pytest.raises(lancekeep.Refused, match="was dropped and created again while a batch was written"):
        sink.commit(answer, 0)
    assert ids(catalog, "sink") == [100]


CHANGES_OF_COLUMNS: dict[str, Callable[[Any], Any]] = {
    "added": lambda table: table.add_columns({"more": "id"}),
    "retyped": lambda table: table.alter_columns({"path": "id", "data_type": pa.int32()}),
    "renamed": lambda table: table.alter_columns({"path": "id", "name": "key"}),
    "replaced": lambda table: lance.write_dataset(pa.table({"id": ["a"]}), table.uri, mode="overwrite"),
}


@pytest.mark.parametrize("change", CHANGES_OF_COLUMNS)
def test_batch_is_refused_if_its_columns_change_while_it_is_written(tmp_path: Path, change: str) -> None:
    options = {"root": str(tmp_path / "lake")}
    with lancekeep.connect(options["root"]) as catalog:
        add(catalog, 1, table="sink")
        sink = writer(options)
        answer = written(sink, 2)
        CHANGES_OF_COLUMNS[change](catalog.open("sink"))
        stored = catalog.open("sink").to_table()
        if change == "added":
            sink.commit(answer, 0)
            assert catalog.open("sink").to_table().to_pylist() == [{"id": 1, "more": 1}, {"id": 2, "more": None}]
            return
        with pytest.raises(lancekeep.ConcurrentModification, match="changed the columns while a batch was written"):
            sink.commit(answer, 0)
        assert catalog.open("sink").to_table() == stored


@pytest.mark.parametrize("managed", [True, False])
def test_one_of_racing_processes_commits_batch(options: dict[str, str], managed: bool) -> None:
    """The commit of a killed driver may still be in progress when the next driver repeats the batch."""
    given = options if managed else {"root": options["root"]}
    sinks = [writer(given) for _ in range(4)]
    together = Barrier(len(sinks))

    def race(number: int) -> None:
        answer = written(sinks[number], 7)
        for attempt in range(3):
            together.wait(60)
            sinks[number].commit(answer if attempt == 0 else written(sinks[number], attempt), attempt)

    with ThreadPoolExecutor(len(sinks)) as pool:
        list(pool.map(race, range(len(sinks))))
    with lancekeep.connect(given["root"], commit_store=given.get("commit_store")) as catalog:
        assert ids(catalog, "sink") == [1, 2, 7]
        assert [entry.version for entry in catalog.versions.history("sink")] == [4, 3, 2, 1]


def test_replay_after_cleanup_of_its_evidence_is_refused(options: dict[str, str], catalog: lancekeep.Catalog) -> None:
    sink = writer(options)
    sink.commit(written(sink, 0), 0)
    for number in range(100, 103):
        add(catalog, number, table="sink")
    catalog.upkeep.cleanup(timedelta(0), grace=timedelta(0), tables=["sink"])
    sink = writer(options)
    with pytest.raises(lancekeep.Refused, match="whether batch 1 of the query q is in sink cannot be known"):
        sink.commit(written(sink, 1), 1)
    assert catalog.open("sink").version == 5
    trusting = writer(options, ignore_removed_versions="true")
    trusting.commit(written(trusting, 1), 1)
    sink.commit(written(sink, 2), 2)
    sink.commit(written(sink, 10, query="new"), 0)  # batch 0 is a query's first
    assert ids(catalog, "sink") == [0, 1, 2, 10, 100, 101, 102]


def test_complete_mode_replaces_rows(options: dict[str, str], catalog: lancekeep.Catalog) -> None:
    for number in (0, 1, 1):
        sink = writer(options, complete=True)
        sink.commit(written(sink, number), number)
    assert ids(catalog, "sink") == [1]
    assert catalog.open("sink").version == 3


# -- both, in Spark -------------------------------------------------------------------------------------------------


def run(spark: SparkSession, options: Mapping[str, str], checkpoint: Path, **more: str) -> None:
    stream = spark.readStream.format("lancekeep").options(**options, **more).load("source")
    sink = stream.writeStream.format("lancekeep").options(**options).option("checkpointLocation", str(checkpoint))
    query = sink.queryName("copying").trigger(availableNow=True).start("sink")
    assert query.awaitTermination(300)


@limits_batches
def test_restarted_query_repeats_no_batch(
    spark: SparkSession, options: dict[str, str], catalog: lancekeep.Catalog, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    add(catalog, 0, 1)
    run(spark, options, checkpoint)
    add(catalog, 2)
    add(catalog, 3)
    run(spark, options, checkpoint, max_versions_per_trigger="1")
    assert ids(catalog, "sink") == [0, 1, 2, 3]
    assert [entry.rows for entry in catalog.versions.history("sink")] == [4, 3, 2, 0]

    for file in (checkpoint / "commits").iterdir():  # as if Spark had died before it noted the last batch
        if file.name.strip(".").startswith("2"):
            file.unlink()
    run(spark, options, checkpoint)
    assert ids(catalog, "sink") == [0, 1, 2, 3]
    assert catalog.open("sink").version == 4

    catalog.open("source").delete("id = 0")
    with pytest.raises(StreamingQueryException, match="version 4 of source is no append"):
        run(spark, options, checkpoint)


@pytest.mark.parametrize("starts", ["reads", "writes"])
def test_stream_without_a_python_process_says_what_to_check(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts: str
) -> None:
    started: list[Driver] = []

    def unconnected(driver: Driver, name: str) -> Any:
        """Fail as Spark does; its exception is checked, and Java proxies hide the message of such exceptions."""
        started.append(driver)
        if (starts == "reads") == (len(started) == 1):
            error = driver.java("org.apache.spark.SparkException")("Python worker failed to connect back.")
            raise Py4JJavaError("the stream", error)
        return source(driver, name)

    source = python_source._source
    with lancekeep.spark.install(spark, "lake", str(tmp_path / "lake")) as catalog:
        add(catalog, 1)
        add(catalog, 2, table="sink")
        monkeypatch.setattr(python_source, "_source", unconnected)
        rows = spark.readStream.table("lake.source").writeStream.trigger(availableNow=True)
        with pytest.raises(StreamingQueryException, match=r"failed to connect back\. Check that the Python which"):
            rows.option("checkpointLocation", str(tmp_path / "checkpoint")).toTable("lake.sink").awaitTermination()


@pytest.mark.parametrize("starts", ["reads", "writes"])
def test_stream_of_a_named_table_names_an_unknown_option(spark: SparkSession, tmp_path: Path, starts: str) -> None:
    given = {"reads": {}, "writes": {}, starts: {"replaceWhere": "id = 1"}}
    with lancekeep.spark.install(spark, "lake", str(tmp_path / "lake")) as catalog:
        add(catalog, 1)
        add(catalog, 2, table="sink")
        rows = spark.readStream.options(**given["reads"]).table("lake.source").writeStream.options(**given["writes"])
        with pytest.raises(StreamingQueryException, match="unknown option 'replacewhere' of lancekeep"):
            rows.option("checkpointLocation", str(tmp_path / "checkpoint")).toTable("lake.sink").awaitTermination()


def test_stream_creates_a_table_with_stable_row_ids(options: dict[str, str], catalog: lancekeep.Catalog) -> None:
    writer(options, stable_row_ids="true")
    assert catalog.open("sink").has_stable_row_ids
    with pytest.raises(lancekeep.InvalidInput, match="sink has stable row ids, and keeps that"):
        writer(options, stable_row_ids="false")
