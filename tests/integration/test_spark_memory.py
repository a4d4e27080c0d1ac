"""What reads, writes and jobs hold in memory: bounded, however large the table is and however many fragments it has."""

from __future__ import annotations

import json
import os
import pickle
import tracemalloc
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

import lancekeep
from lancekeep.entrypoints.scanning import batch_rows
from lancekeep.entrypoints.spark.jobs import tasks
from lancekeep.entrypoints.spark.jobs.index import sample_rate
from lancekeep.entrypoints.spark.reading import (
    MOST_PARTITIONS,
    Fragment,
    Part,
    entries,
    first_rows,
    partitions,
    stored_fragments,
)
from lancekeep.format.messages import ManifestOutline
from lancekeep.jobs import ingest, upsert
from pyspark_lancekeep import DefaultSource

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),  # the JVM is forked, and executes at once
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
]

# -- rows -----------------------------------------------------------------------------------------------------------

MB = 1 << 20
IMAGE = 40_000  # bytes
SMALL, LARGE = 64 * MB, 256 * MB
BOUND = (LARGE - SMALL) * 2 // 3
"""How much more the large table may take: whatever holds all of it at once takes the whole difference more."""

COLUMNS = pa.schema([pa.field("id", pa.int64()), pa.field("image", pa.binary())])


def batches(size: int) -> Iterator[pa.RecordBatch]:
    """Rows with images, no two alike."""
    noise = os.urandom(IMAGE)
    for start in range(0, size // IMAGE, 50):
        ids = range(start, start + 50)
        images = [number.to_bytes(8, "little") + noise[8:] for number in ids]
        yield pa.RecordBatch.from_arrays([pa.array(ids, pa.int64()), pa.array(images)], schema=COLUMNS)


def rows(size: int) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(COLUMNS, batches(size))


def status(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)


def workers(jvm: int) -> list[int]:
    """Spark's Python processes: what descends from its JVM."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found, fresh = set[int](), {jvm}
    while fresh:
        fresh = {pid for pid, parent in parents.items() if parent in fresh}
        found |= fresh
    return sorted(found)


def peaks(spark: SparkSession, act: Callable[[], object]) -> tuple[int, int]:
    """The most memory that the driver, and any worker, had at once while it acted.

    (Workers stay for the next task, and a peak is not forgotten: it need not be watched.)
    """
    jvm = spark.sparkContext._gateway.proc.pid  # type: ignore[union-attr]  # a classic session has one
    for pid in [os.getpid(), *workers(jvm)]:
        with suppress(OSError):  # it has ended
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak is the present size
    act()
    found = []
    for pid in workers(jvm):
        with suppress(OSError):
            found.append(status(pid, "VmHWM"))
    assert found, "no worker is left to be measured"
    return status(os.getpid(), "VmHWM"), max(found)


class Lake:
    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.spark = spark
        self.directory = directory
        self.options = {"root": str(directory / "lake"), "commit_store": f"sqlite://{directory}/commits.db"}
        self.catalog = lancekeep.connect(self.options["root"], commit_store=self.options["commit_store"])

    def read(self, table: str) -> Any:
        return self.spark.read.format("lancekeep").options(**self.options).load(table)

    def copy(self, size: int) -> None:
        self.read(f"t{size}").write.format("lancekeep").options(**self.options).mode("append").save(f"copy{size}")

    def stream(self, size: int) -> None:
        source = self.spark.readStream.format("lancekeep").options(**self.options).load(f"t{size}")
        sink = source.writeStream.format("lancekeep").options(**self.options).trigger(availableNow=True)
        sink.option("checkpointLocation", str(self.directory / f"at{size}")).start(f"streamed{size}").awaitTermination()

    def parquet(self, size: int) -> None:
        """One file of one row group, which is what a task has to take."""
        ingest(self.spark, self.catalog, f"parquet{size}", str(self.directory / f"{size}.parquet"))

    def array(self, size: int) -> None:
        ingest(self.spark, self.catalog, f"array{size}", str(self.directory / f"{size}.json"), format="json")

    def upsert(self, size: int) -> None:
        upsert(self.catalog, f"t{size}", self.read(f"t{size}"), "id")


@pytest.fixture(scope="module")
def on_disk() -> Iterator[Path]:
    """A directory for gigabytes: other files of the tests may be in memory."""
    with TemporaryDirectory() as directory:
        yield Path(directory)


@pytest.fixture(scope="module")
def lake(spark: SparkSession, on_disk: Path) -> Iterator[Lake]:
    made = Lake(spark, on_disk)
    before = spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 50)
    for size in (SMALL, LARGE):
        made.catalog.write(f"t{size}", rows(size))
        with pyarrow.parquet.ParquetWriter(made.directory / f"{size}.parquet", COLUMNS, compression="none") as writer:
            for batch in batches(size):
                writer.write_batch(batch, row_group_size=1 << 20)
        with (made.directory / f"{size}.json").open("w") as file:
            text = b64encode(os.urandom(IMAGE)).decode()
            for number in range(size // len(text)):
                file.write(("," if number else "[") + json.dumps({"id": number, "text": text}))
            file.write("]")
    yield made
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(before))


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells peaks of memory")
@pytest.mark.parametrize("act", [Lake.parquet, Lake.array, Lake.upsert, Lake.stream, Lake.copy])
def test_memory_does_not_grow_with_table_size(
    spark: SparkSession, lake: Lake, act: Callable[[Lake, int], None]
) -> None:
    small = peaks(spark, lambda: act(lake, SMALL))
    large = peaks(spark, lambda: act(lake, LARGE))
    print(act.__name__, [number // MB for number in (*small, *large)])
    assert large[0] - small[0] < BOUND, "the driver"
    assert large[1] - small[1] < BOUND, "a worker"


# -- fragments ------------------------------------------------------------------------------------------------------


def varint(number: int) -> bytes:
    return bytes([number & 127 | 128]) + varint(number >> 7) if number > 127 else bytes([number])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def multiplied(directory: Path, version: int, fragments: int) -> None:
    """Make a version of a table of one fragment, with so many of them, all of the same file."""
    message = lance.dataset(directory, version=1).__getstate__()[3]
    [only] = ManifestOutline.FromString(message).fragments
    more = b"".join(field(2, b"\x08" + varint(number) + only) for number in range(1, fragments))
    body = message + more + b"\x18" + varint(version) + b"\x58" + varint(fragments - 1)
    [first] = [path for path in (directory / "_versions").glob("*.manifest") if path.stem == str(2**64 - 2)]
    footer = (0).to_bytes(8, "little") + first.read_bytes()[-8:]
    path = directory / "_versions" / f"{2**64 - 1 - version:020}.manifest"
    path.write_bytes(len(body).to_bytes(4, "little") + body + footer)


ROWS, FEW, MANY = 10, 20_000, 100_000


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, lancekeep.Catalog]:
    """A table with many fragments in version 2, five times as many in version 3, and one more in version 4."""
    root = str(tmp_path_factory.mktemp("fragments"))
    catalog = lancekeep.connect(root)
    catalog.write("t", pa.table({"id": pa.array(range(ROWS), pa.int64())}))
    directory = Path(catalog.describe_table("t").uri.removeprefix("file://"))
    for version, fragments in ((2, FEW), (3, MANY), (4, MANY + 1)):
        multiplied(directory, version, fragments)
    return root, catalog


def test_plan_size_does_not_grow_with_fragments(many: tuple[str, lancekeep.Catalog]) -> None:
    root, _ = many
    schema = StructType([StructField("id", LongType())])

    def planned(version: int, **options: str) -> Any:
        source = DefaultSource({"root": root, "path": "t", "version": str(version), **options})
        return source.reader(schema)

    few, large = planned(2), planned(3)
    assert len(few.partitions()) == FEW * ROWS // 100_000
    assert len(large.partitions()) == MANY * ROWS // 100_000
    assert len(pickle.dumps(large)) < 20_000  # with all of its partitions
    assert len(planned(3, max_partitions="4").partitions()) == 4
    last = large.partitions()[-1]
    assert sum(batch.num_rows for batch in large.read(last)) == 100_000


def test_planning_keeps_no_object_per_fragment(many: tuple[str, lancekeep.Catalog]) -> None:
    _, catalog = many
    dataset = catalog.open("t", 3)
    manifest = len(dataset.__getstate__()[3])
    tracemalloc.start()
    try:
        parts = list(partitions(stored_fragments(dataset), dataset.count_rows()))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(part.rows for part in parts) == MANY * ROWS
    assert peak < manifest + MB // 2


def test_stream_plans_only_appended_fragments(many: tuple[str, lancekeep.Catalog]) -> None:
    root, _ = many
    stream = DefaultSource({"root": root, "path": "t"}).streamReader(StructType([StructField("id", LongType())]))
    [part] = stream.partitions({"version": 3}, {"version": 4})
    assert sum(len(batch) for batch in stream.read(part)) == ROWS
    whole = stream.partitions({"version": 0}, {"version": 4})
    assert len(pickle.dumps(whole)) < 20_000
    stream.stop()


def test_fragments_share_limited_number_of_tasks() -> None:
    sizes = [Fragment(2 * number, 1 + number % 7 * 60_000, None) for number in range(20_000)]
    total = sum(fragment.rows for fragment in sizes)
    parts = list(partitions(iter(sizes), total))
    assert 0.9 * MOST_PARTITIONS < len(parts) <= MOST_PARTITIONS
    assert [number for part in parts for run in part.runs for number in run] == [each.id for each in sizes]
    assert list(partitions([Fragment(number, 1, None) for number in (3, 4, 5, 7)], 4)) == [
        Part([range(3, 6), range(7, 8)], 4)
    ]
    assert list(first_rows([Part([range(1)], 5), Part([range(1, 2)], 5), Part([range(2, 3)], 5)], 7)) == [
        Part([range(1)], 5),
        Part([range(1, 2)], 2),
    ]


def test_entries_agree_with_lance(tmp_path: Path) -> None:
    dataset = lance.write_dataset(pa.table({"id": range(100), "text": ["x"] * 100}), tmp_path, max_rows_per_file=30)
    dataset.delete("id >= 40 AND id < 45 OR id > 95")
    found = [(entry.id, entry.rows, entry.size) for entry in entries(dataset)]
    assert found == [
        (each.fragment_id, each.count_rows(), sum(file.file_size_bytes or 0 for file in each.metadata.files))
        for each in dataset.get_fragments()
    ]


def test_number_of_tasks_per_job_is_limited(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "MOST_TASKS", 3)
    told = set()
    answers = tasks.run(spark, "t", "doubling", range(20), lambda number: 2 * number, lambda *at: told.add(at[1]))
    assert answers == [2 * number for number in range(20)]
    assert told == {3}


def test_batches_are_sized_by_bytes(tmp_path: Path) -> None:
    vector, images = pa.list_(pa.float32(), 1536), [b"x" * 300_000] * 30
    table = pa.table({"id": range(30), "v": pa.nulls(30, vector), "image": images})
    fragments = lance.write_dataset(table, tmp_path, data_storage_version="2.0").get_fragments()
    assert batch_rows(table.schema, ["id"], fragments) == 8192
    assert batch_rows(table.schema, ["id", "v"], fragments) == (2 * MB) // (8 + 1536 * 4)
    assert batch_rows(table.schema, ["id", "image"], fragments) in range(1, 8)


def test_vector_index_is_trained_on_bounded_sample(tmp_path: Path) -> None:
    dataset = lance.write_dataset(pa.table({"v": pa.nulls(1, pa.list_(pa.float32(), 1536))}), tmp_path)
    rates = [sample_rate(dataset, "v", partitions) for partitions in (1, 100, 1000, 100_000)]
    assert rates == [256, 256, 2**30 // (1000 * 1536 * 4), 32]
