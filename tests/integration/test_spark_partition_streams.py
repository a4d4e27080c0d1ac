"""Streams out of and into all partitions of a catalog: what a batch has, and that each is published once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

import lancekeep
import lancekeep.spark
from lancekeep import ConcurrentModification, InvalidInput, PartitionBy, PartitionedNamespace, Refused
from lancekeep.entrypoints.spark.partition_sink import PartitionStreamWriter, WrittenByTask
from lancekeep.entrypoints.spark.partition_source import PartitionStreamReader
from lancekeep.entrypoints.spark.partitions import PartitionedRows
from lancekeep.entrypoints.spark.versions import ReadAllAvailable
from pyspark_lancekeep import DefaultSource

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),  # the JVM is forked, and executes at once
]

SCHEMA = StructType([StructField("id", LongType()), StructField("country", StringType())])
STORED = pa.schema([("id", pa.int64()), ("country", pa.string())])
BY = [PartitionBy.identity("country")]


@pytest.fixture(params=["storage", "managed"])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    store = {"commit_store": f"sqlite://{tmp_path}/commits.db"} if request.param == "managed" else {}
    return {"root": str(tmp_path / "lake"), "path": "dataset", **store}


@pytest.fixture
def catalog(options: Mapping[str, str]) -> Iterator[lancekeep.Catalog]:
    with connected(options) as catalog:
        yield catalog


def connected(options: Mapping[str, str]) -> lancekeep.Catalog:
    return lancekeep.connect(options["root"], commit_store=options.get("commit_store"))


@pytest.fixture
def namespace(catalog: lancekeep.Catalog) -> PartitionedNamespace:
    return catalog.partitions.create(STORED, BY)


def rows(country: str | None, *ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "country": [country] * len(ids)}, schema=STORED)


def ids(namespace: PartitionedNamespace) -> list[int]:
    return sorted(namespace.scan().to_table(["id"])["id"].to_pylist())


# -- the source -----------------------------------------------------------------------------------------------------


def reader(options: Mapping[str, str], schema: StructType = SCHEMA, **more: str) -> PartitionStreamReader:
    made = DefaultSource({**options, **more}).streamReader(schema)
    assert isinstance(made, PartitionStreamReader)
    return made


def batch(stream: PartitionStreamReader, start: Any, end: Any) -> list[int]:
    parts = stream.partitions(json.loads(json.dumps(start)), end)
    return sorted(value for part in parts for found in stream.read(part) for value in found["id"].to_pylist())


class Stream:
    """A query that reads batch after batch, each time as a restarted one would."""

    def __init__(self, options: Mapping[str, str], **more: str) -> None:
        self._options = {**options, **more}
        self.offset = reader(self._options).initialOffset()

    def next(self, schema: StructType = SCHEMA) -> list[int]:
        stream = reader(self._options, schema)
        start, self.offset = self.offset, stream.latestOffset(self.offset, ReadAllAvailable())
        assert json.dumps(reader(self._options, schema).latestOffset()) == json.dumps(self.offset)
        return batch(stream, start, self.offset)


def test_batches_have_the_rows_that_publications_append(
    options: dict[str, str], catalog: lancekeep.Catalog, namespace: PartitionedNamespace
) -> None:
    stream, late = Stream(options), Stream(options, starting_version="latest")
    assert stream.next() == []
    namespace.write(pa.concat_tables([rows("NL", 1, 2), rows(None, 3)]))
    namespace.write(rows("NL", 4))
    assert stream.next() == late.next() == [1, 2, 3, 4]
    assert stream.next() == []
    assert Stream(options, starting_version="latest").next() == []
    namespace.write(pa.concat_tables([rows("NL", 5), rows("US", 6)]))
    names = {part.values: part.table.id for part in namespace.scan().partitions}
    for table in names.values():
        catalog.upkeep.compact(table)
    namespace.write(pa.concat_tables([rows("NL", 7), rows("US", 8)]))
    assert stream.next() == [5, 6, 7, 8]  # the compaction is between them
    assert late.next() == [5, 6, 7, 8]


def test_rows_of_failed_writes_are_in_no_batch(
    options: dict[str, str], namespace: PartitionedNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace.write(rows("NL", 1))
    stream = Stream(options)
    assert stream.next() == [1]
    for number in (2, 4):
        with monkeypatch.context() as patch:
            patch.setattr(namespace._ledger, "apply", _killed)
            with pytest.raises(KeyboardInterrupt):
                namespace.write(rows("NL", 9))  # committed to the partition, and not published
        namespace.write(rows("NL", number))
        names = [part.table.id for part in namespace.scan().partitions]
        with connected(options) as catalog:
            catalog.upkeep.compact(names[0])
        namespace.write(rows("NL", number + 1))
        assert stream.next() == [number, number + 1]


def _killed(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_changes_of_rows_end_the_stream(
    options: dict[str, str], catalog: lancekeep.Catalog, namespace: PartitionedNamespace
) -> None:
    namespace.write(pa.concat_tables([rows("NL", 1, 2), rows("US", 3)]))
    stream = Stream(options)
    assert stream.next() == [1, 2, 3]
    before = dict(stream.offset)
    table = next(part.table.id for part in namespace.scan().partitions if part.values == ("NL",))
    catalog.data.delete(table, "id = 1")
    with pytest.raises(Refused, match=r"is no append.*new checkpoint"):
        stream.next()
    assert Stream(options).next() == [2, 3]
    stream.offset = before
    catalog.drop_table(table)
    with pytest.raises(Refused, match="was dropped"):
        stream.next()
    stream.offset = before
    catalog.partitions.drop()
    catalog.partitions.create(STORED, BY).write(rows("NL", 1))
    with pytest.raises(Refused, match="was dropped"):
        stream.next()
    with pytest.raises(Refused, match="checkpoint is of a table"):
        batch(reader(options), {"version": 3}, stream.offset)


def test_columns_are_those_of_the_start(options: dict[str, str], namespace: PartitionedNamespace) -> None:
    namespace.write(rows("NL", 1))
    old = reader(options)
    stream = Stream(options)
    assert stream.next() == batch(old, old.initialOffset(), old.latestOffset()) == [1]
    planned = old.latestOffset()
    alter_partitions(namespace, pa.field("n", pa.int64()))
    namespace.write(rows("NL", 2).append_column("n", pa.array([20])))
    wider = StructType([*SCHEMA, StructField("n", LongType())])
    again = reader(options, wider)  # a batch that was planned before the column was added
    [part] = again.partitions({"partitions": {}}, planned)
    assert [found.to_pylist() for found in again.read(part)] == [[{"id": 1, "country": "NL", "n": None}]]
    assert batch(old, planned, old.latestOffset()) == [2]
    [part] = again.partitions(planned, again.latestOffset())
    assert [found.to_pylist() for found in again.read(part)] == [[{"id": 2, "country": "NL", "n": 20}]]


def alter_partitions(namespace: PartitionedNamespace, column: pa.Field) -> None:
    plan, scan = namespace.begin_write(), namespace.scan()

    def add(dataset: Any) -> Any:
        dataset.add_columns(column)
        return dataset

    wider = plan.schema.append(column.with_metadata({"lance:field_id": "2"}))
    namespace.change(plan, scan, {part.table.id: add for part in scan.partitions}, schema=wider)


def test_cleaned_up_versions_are_reported(
    options: dict[str, str], catalog: lancekeep.Catalog, namespace: PartitionedNamespace
) -> None:
    namespace.write(rows("NL", 1))
    stream = Stream(options)
    assert stream.next() == [1]
    namespace.write(rows("NL", 2))
    catalog.upkeep.cleanup(timedelta(0), grace=timedelta(0))
    with pytest.raises(lancekeep.VersionNotFound, match="was cleaned up"):
        stream.next()


def test_options_that_need_one_table_are_refused(options: dict[str, str], namespace: PartitionedNamespace) -> None:
    for name, value in {
        "starting_version": "3",
        "max_versions_per_trigger": "1",
        "max_rows_per_trigger": "1",
        "skip_change_commits": "true",
        "read_changes": "true",
    }.items():
        with pytest.raises(InvalidInput, match=f"the option {name} does not apply"):
            reader({**options, name: value})
    with pytest.raises(InvalidInput, match="output mode complete"):
        DefaultSource(options).streamWriter(SCHEMA, overwrite=True)
    with pytest.raises(InvalidInput, match=r"vector\.v applies to new tables"):
        DefaultSource({**options, "vector.v": "2"}).streamWriter(SCHEMA, overwrite=False)
    with pytest.raises(lancekeep.TableNotFound):
        DefaultSource(options).reader(SCHEMA)


# -- the sink -------------------------------------------------------------------------------------------------------


def writer(options: Mapping[str, str], **more: str) -> PartitionStreamWriter:
    made = DefaultSource({**options, **more}).streamWriter(SCHEMA, overwrite=False)
    assert isinstance(made, PartitionStreamWriter)
    return made


def written(sink: PartitionStreamWriter, *tables: pa.Table, query: str = "q") -> list[Any]:
    """Return what the tasks of a batch write, one for each table."""
    messages = []
    for table in tables or [rows("NL")]:
        found = PartitionedRows(sink._plan)
        for part in table.to_batches():
            found.add(part)
        found.flush()
        messages.append(WrittenByTask(found.written, sink._plan, query))
    return messages


def test_repeated_batch_is_published_once(options: dict[str, str], namespace: PartitionedNamespace) -> None:
    for _ in range(2):
        sink = writer(options)
        sink.commit(written(sink), 0)
    sink = writer(options)
    both = pa.concat_tables([rows("NL", 1), rows("US", 2)])
    messages = written(sink, both, pa.concat_tables([rows("NL", 3), rows(None, 4)]))
    sink.commit(messages, 1)
    sink.commit(messages, 1)
    assert ids(namespace) == [1, 2, 3, 4]
    assert len(namespace.scan().partitions) == 3
    again = writer(options)
    again.commit(written(again, both, rows("BE", 9)), 1)
    late = writer(options)
    with pytest.raises(Refused, match=r"the partitioned table has batch 1 of the query q, which comes with batch 0"):
        late.commit(written(late, rows("NL", 9)), 0)
    assert ids(namespace) == [1, 2, 3, 4]
    assert not _directories(options) - {part.table.location for part in namespace.scan().partitions}
    other = writer(options)
    other.commit(written(other, rows("NL", 5), query="r"), 0)
    sink = writer(options)
    sink.commit(written(sink), 2)
    sink.commit(written(sink, rows("DE", 6)), 3)
    assert ids(namespace) == [1, 2, 3, 4, 5, 6]


def _directories(options: Mapping[str, str]) -> set[str]:
    return {each.name for each in Path(options["root"]).iterdir() if not each.name.startswith(("__", "."))}


@pytest.mark.parametrize("moment", ["before", "after"])
def test_batch_that_a_kill_interrupts_is_published_once(
    options: dict[str, str], namespace: PartitionedNamespace, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    namespace.write(rows("NL", 1))
    ledger = type(namespace._ledger)
    apply = ledger.apply

    def killed(self: Any, *given: Any, **named: Any) -> Any:
        if moment == "after":
            apply(self, *given, **named)
        raise KeyboardInterrupt

    sink = writer(options)
    messages = written(sink, pa.concat_tables([rows("NL", 2), rows("US", 3)]))
    with monkeypatch.context() as patch:
        patch.setattr(ledger, "apply", killed)
        with pytest.raises(KeyboardInterrupt):
            sink.commit(messages, 0)
    assert ids(namespace) == ([1] if moment == "before" else [1, 2, 3])
    again = writer(options)
    again.commit(written(again, pa.concat_tables([rows("NL", 2), rows("US", 3)])), 0)
    assert ids(namespace) == [1, 2, 3]
    sink.commit(messages, 0)  # by a process that the kill has spared
    assert ids(namespace) == [1, 2, 3]


def test_one_of_racing_processes_publishes_a_batch(options: dict[str, str], namespace: PartitionedNamespace) -> None:
    namespace.write(rows("NL", 0))
    for number in range(3):
        start = Barrier(2)

        def commit(task: int, number: int = number, start: Barrier = start) -> None:
            sink = writer(options)
            messages = written(
                sink, pa.concat_tables([rows("NL", 10 * number + 1), rows(f"X{number}", 10 * number + 2)])
            )
            start.wait(60)
            sink.commit(messages, number)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(commit, range(2)))
    assert ids(namespace) == [0, 1, 2, 11, 12, 21, 22]
    assert _directories(options) == {part.table.location for part in namespace.scan().partitions}


def test_sink_that_was_dropped_or_replaced_is_refused(
    options: dict[str, str], catalog: lancekeep.Catalog, namespace: PartitionedNamespace
) -> None:
    sink = writer(options)
    sink.commit(written(sink, rows("NL", 1)), 0)
    sink = writer(options)
    messages = written(sink, rows("NL", 2))
    plan = catalog.partitions.begin_create(STORED, BY, replace=True)
    catalog.partitions.finish_create(plan, [], replace=True)
    with pytest.raises(Refused, match="hold no batch of the query q"):
        sink.commit(messages, 1)
    sink = writer(options, ignore_removed_versions="true")
    sink.commit(written(sink, rows("NL", 3)), 1)
    assert ids(namespace) == [3]
    for value in ("9", None):
        with pytest.raises(Refused, match=r"'partitions\.stream\.q' of the root defines"):
            catalog.alter_namespace(
                "", {} if value is None else {"partitions.stream.q": value}, ["partitions.stream.q"][: value is None]
            )
    catalog.partitions.drop()
    assert not [name for name in catalog.describe_namespace("").properties if "stream" in name]
    catalog.partitions.create(STORED.append(pa.field("n", pa.int8())), BY)
    with pytest.raises(ConcurrentModification, match="were dropped, or their columns were changed"):
        sink.commit(written(sink, rows("NL", 4)), 2)
    assert ids(namespace) == []


# -- with Spark -----------------------------------------------------------------------------------------------------


def test_restarted_query_copies_all_partitions(spark: SparkSession, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    store = f"sqlite://{tmp_path}/a.db"
    with (
        lancekeep.spark.install(spark, "a", str(tmp_path / "a"), commit_store=store) as source,
        lancekeep.spark.install(spark, "b", str(tmp_path / "b")) as target,
    ):
        spark.sql("CREATE TABLE a.dataset (id BIGINT, country STRING) PARTITIONED BY (country)")
        spark.sql("CREATE TABLE b.dataset (id BIGINT, country STRING) PARTITIONED BY (bucket(2, id))")
        found = target.partitions.open()

        def run(mode: str = "append") -> None:
            frame = spark.readStream.table("a.dataset")
            frame = frame if mode == "append" else frame.groupBy("country").count().selectExpr("count AS id", "country")
            stream = frame.writeStream.outputMode(mode).option("checkpointLocation", str(checkpoint / mode))
            stream.queryName(mode).trigger(availableNow=True).toTable("b.dataset").awaitTermination()

        spark.sql("INSERT INTO a.dataset SELECT id, concat('c', id % 3) FROM range(6)")
        run()
        spark.sql("INSERT INTO a.dataset VALUES (6, 'c0'), (7, NULL)")
        spark.sql("CALL a.system.compact('dataset')")
        run()
        for file in (
            checkpoint / "append" / "commits"
        ).iterdir():  # as if Spark had died before it noted the last batch
            if file.name.strip(".").split(".")[0] == "1":
                file.unlink()
        for name in "ab":
            spark.sql(f"ALTER TABLE {name}.dataset ADD COLUMN n INT")
        spark.sql("INSERT INTO a.dataset VALUES (8, 'c0', 80)")
        run()
        assert spark.sql("SELECT n FROM b.dataset WHERE id = 8").collect()[0].n == 80
        assert ids(found) == list(range(9))
        with pytest.raises((PySparkException, StreamingQueryException), match="output mode complete"):
            run("complete")
        spark.sql("DELETE FROM a.dataset WHERE id = 3")
        with pytest.raises(StreamingQueryException, match="is no append"):
            run()
        assert ids(found) == list(range(9))
        assert source.partitions.open().scan().to_table().num_rows == 8
