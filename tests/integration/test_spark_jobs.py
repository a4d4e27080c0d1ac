"""Upserts, compaction, indexes, computed columns and verification on a real Spark session, beside other writers."""

from __future__ import annotations

import base64
import gc
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import lance
import lance_namespace as api
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner
from lance_namespace import errors as api_errors
from pyspark.sql import SparkSession

import lancekeep
from lancekeep.application.catalog import directory_of
from lancekeep.entrypoints.cli import lancekeep as commands
from lancekeep.jobs import backfill, compact, index, ingest, upsert, verify

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),  # the JVM is forked, and executes at once
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
]

FRAGMENTS, ROWS = 4, 100


def rows(start: int, count: int = ROWS) -> pa.Table:
    ids = np.arange(start, start + count)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(ids, 8).astype(np.float32)), 8)
    return pa.table({"id": ids, "text": [f"word{number % 7} of {number}" for number in ids], "vector": vectors})


@pytest.fixture
def catalog(tmp_path: Path) -> lancekeep.Catalog:
    """A table of four fragments."""
    catalog = lancekeep.connect(str(tmp_path / "lake"), commit_store=f"sqlite://{tmp_path}/commits.db")
    for number in range(FRAGMENTS):
        catalog.write("t", rows(number * ROWS), "append" if number else "create")
    return catalog


def plain(catalog: lancekeep.Catalog) -> lance.LanceDataset:
    """Return the table as plain pylance reads it."""
    return lance.dataset(catalog.describe_table("t").uri)


def recorded(catalog: lancekeep.Catalog) -> list[int]:
    """The versions that the commit store has."""
    return [
        row.version
        for row in directory_of(catalog).commits.page(
            directory_of(catalog).places.dataset_root(catalog.find_table("t")), None, None, False
        )
    ]


@pytest.fixture
def before_commit(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Return a function that schedules a call between the tasks of a job and its commit, once."""

    def arrange(happens: Callable[[], object]) -> None:
        pending = [happens]

        def after(commit: Callable[..., Any]) -> Callable[..., Any]:
            def overtaken(self: object, *arguments: Any, **options: Any) -> Any:
                if pending:
                    pending.pop()()
                return commit(self, *arguments, **options)

            return overtaken

        for owner, name in ((lancekeep.Catalog, "commit_change"), (lancekeep.Upkeep, "commit_compaction")):
            monkeypatch.setattr(owner, name, after(getattr(owner, name)))

    return arrange


# -- upsert ---------------------------------------------------------------------------------------------------------


def test_upsert_by_key_with_concurrent_insert_of_same_key(
    spark: SparkSession, catalog: lancekeep.Catalog, before_commit: Callable[[Callable[[], object]], None]
) -> None:
    changes = rows(FRAGMENTS * ROWS - 5, 10).set_column(1, "text", pa.array(["new"] * 10))
    before_commit(lambda: catalog.write("t", rows(FRAGMENTS * ROWS, 1), "append"))
    summary = upsert(catalog, "t", changes, "id")
    assert (summary.counts["updated"], summary.counts["inserted"]) == (6, 4)
    table = plain(catalog).to_table()
    assert sorted(table["id"].to_pylist()) == list(range(FRAGMENTS * ROWS + 5))
    assert plain(catalog).count_rows("text = 'new'") == 10
    assert recorded(catalog) == list(range(1, 7))

    frame = spark.createDataFrame([(1, "of Spark", [0.5] * 8)], "id long, text string, vector array<double>")
    with pytest.raises(lancekeep.InvalidInput, match="missing"):
        upsert(catalog, "t", frame.drop("text"), "id")
    upsert(catalog, "t", frame, "id")
    assert plain(catalog).to_table(filter="id = 1")["text"].to_pylist() == ["of Spark"]


def test_duplicate_source_key_is_refused_or_last_row_wins(catalog: lancekeep.Catalog) -> None:
    twice = pa.concat_tables([rows(0, 2), rows(0, 1).set_column(1, "text", pa.array(["last"]))])
    with pytest.raises(lancekeep.InvalidInput, match="3 rows of the source have 2 keys"):
        upsert(catalog, "t", twice, "id")
    with pytest.raises(lancekeep.InvalidInput, match="1 rows of the source have no 'id'"):
        upsert(catalog, "t", twice.slice(2).set_column(0, "id", pa.nulls(1, pa.int64())), "id")
    assert upsert(catalog, "t", twice, "id", duplicates="last").counts["updated"] == 2
    assert plain(catalog).to_table(filter="id = 0")["text"].to_pylist() == ["last"]


# -- compaction and indexes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stable", [False, True])
def test_zeros_of_both_signs_are_one_key(tmp_path: Path, stable: bool) -> None:
    catalog = lancekeep.connect(str(tmp_path / "lake"))
    table = pa.table({"k": [0.0, -0.0, 1.0], "l": pa.array([0.0, 1.0, -0.0], pa.float32()), "v": [1, 2, 3]})
    if stable:
        lance.write_dataset(table.slice(0, 1), str(tmp_path / "lake/t.lance"), enable_stable_row_ids=True)
        catalog.register_table("t", "t.lance")
        upsert(catalog, "t", pa.table({"k": [-0.0], "l": pa.array([-0.0], pa.float32()), "v": [10]}), ["k", "l"])
        expected = [(0, 0, 10)]
    else:
        catalog.write("t", table)
        changes = pa.table({"k": [-0.0, 0.0, 2.0], "l": pa.array([-0.0, 1.0, 0.0], pa.float32()), "v": [10, 20, 40]})
        summary = upsert(catalog, "t", changes, ["k", "l"])
        assert summary.counts == {"updated": 2, "inserted": 1}
        expected = [(0, 0, 10), (0, 1, 20), (1, 0, 3), (2, 0, 40)]
        twice = pa.table({"k": [-0.0, 0.0], "l": pa.array([1, 1], pa.float32()), "v": [5, 6]})
        with pytest.raises(lancekeep.InvalidInput, match="have 1 keys"):
            upsert(catalog, "t", twice, ["k", "l"])
    found = plain(catalog).to_table().sort_by([("v", "ascending")]).to_pylist()
    assert sorted((row["k"], row["l"], row["v"]) for row in found) == expected


def test_job_over_spark_connect_is_refused(catalog: lancekeep.Catalog) -> None:
    connect: Any = object()  # a session of Spark Connect has no JVM either
    for job in (
        lambda: backfill(connect, catalog, "t", "twice", doubled, reads=["id"]),
        lambda: compact(connect, catalog, "t"),
        lambda: index(connect, catalog, "t", "id", "btree"),
        lambda: verify(connect, catalog, ["t"]),
    ):
        with pytest.raises(lancekeep.Unsupported, match="this is one of Spark Connect"):
            job()


def test_compaction_runs_during_appends_and_replans_after_delete(
    spark: SparkSession, catalog: lancekeep.Catalog, before_commit: Callable[[Callable[[], object]], None]
) -> None:
    before_commit(lambda: (catalog.write("t", rows(1000, 5), "append"), catalog.open("t").delete("id = 3")))
    summary = compact(spark, catalog, "t")
    assert summary.counts["fragments removed"] == FRAGMENTS + 1  # planned again, with what was appended
    assert len(plain(catalog).get_fragments()) == 1
    expected = [*(number for number in range(FRAGMENTS * ROWS) if number != 3), *range(1000, 1005)]
    assert sorted(plain(catalog).to_table()["id"].to_pylist()) == expected
    assert recorded(catalog) == list(range(1, (summary.version or 0) + 1))
    again = compact(spark, catalog, "t")
    assert again.before == again.version == summary.version


def test_indexes_are_built_in_parts_and_used(spark: SparkSession, catalog: lancekeep.Catalog) -> None:
    index(spark, catalog, "t", "id", "btree")
    index(spark, catalog, "t", "text", "inverted", name="words", segments=3)
    index(spark, catalog, "t", "vector", "ivf_flat", partitions=2)
    found = {
        each.name: sorted(sorted(part.fragment_ids) for part in each.segments)
        for each in plain(catalog).describe_indices()
    }
    assert found == {"id_idx": [[0, 1], [2, 3]], "words": [[0], [1], [2, 3]], "vector_idx": [[0, 1], [2, 3]]}
    dataset = plain(catalog)
    assert "ScalarIndexQuery" in dataset.scanner(filter="id = 77").explain_plan()
    assert dataset.to_table(full_text_query="word3").num_rows == dataset.count_rows("text LIKE 'word3 %'")
    nearest = {"column": "vector", "q": np.full(8, 250, np.float32), "k": 3, "nprobes": 2}
    assert sorted(dataset.to_table(nearest=nearest)["id"].to_pylist()) == [249, 250, 251]

    assert index(spark, catalog, "t", "id", "BTREE").counts == {}
    catalog.write("t", rows(1000), "append")
    extended = index(spark, catalog, "t", "id", "BTREE")
    assert (extended.rows, extended.counts) == (ROWS, {"segments": 1, "fragments": 1})
    [segments] = [each.segments for each in plain(catalog).describe_indices() if each.name == "id_idx"]
    assert sorted(sorted(part.fragment_ids) for part in segments) == [[0, 1], [2, 3], [4]]
    assert plain(catalog).to_table(filter="id IN (77, 1077)").num_rows == 2
    assert index(spark, catalog, "t", "id", "BTREE", replace=True).counts == {"segments": 2, "fragments": 5}
    with pytest.raises(lancekeep.InvalidInput, match="the index 'words' is Inverted of text"):
        index(spark, catalog, "t", "id", "BTREE", name="words")
    with pytest.raises(lancekeep.InvalidInput, match="no BTREE index of 'vector' can be built"):
        index(spark, catalog, "t", "vector", "BTREE", name="other")
    assert recorded(catalog) == list(range(1, 11))


# -- computed columns -----------------------------------------------------------------------------------------------


def doubled(batch: pa.RecordBatch) -> pa.Array:
    return pc.multiply(batch["id"], 2)


def test_backfill_covers_concurrently_added_fragments(
    spark: SparkSession, catalog: lancekeep.Catalog, before_commit: Callable[[Callable[[], object]], None]
) -> None:
    before_commit(lambda: (catalog.write("t", rows(1000, 5), "append"), catalog.open("t").delete("id = 3")))
    summary = backfill(spark, catalog, "t", "twice", doubled, reads=["id"])
    assert summary.rows == FRAGMENTS * ROWS + 5  # what had been computed was not computed again
    table = plain(catalog).to_table()
    assert table.num_rows == FRAGMENTS * ROWS + 4
    assert table["twice"].to_pylist() == [2 * number for number in table["id"].to_pylist()]

    before_commit(lambda: catalog.open("t").delete("id = 5"))
    backfill(spark, catalog, "t", "twice", lambda batch: pc.multiply(batch["id"], 3), reads=["id"], batch_rows=7)
    table = plain(catalog).to_table()
    assert table["twice"].to_pylist() == [3 * number for number in table["id"].to_pylist()]
    assert 5 not in table["id"].to_pylist()
    assert recorded(catalog) == list(range(1, 10))


def test_declared_columns_are_filled_by_the_job(spark: SparkSession, catalog: lancekeep.Catalog) -> None:
    """The namespace runs the job where Spark is configured, and its rows are those of the engine in this process."""
    properties = {"root": catalog.root_uri, "commit_store": directory_of(catalog).commits.rows.url}
    here = lancekeep.DirectoryNamespace(**properties)
    there = lancekeep.DirectoryNamespace(**properties, spark_master="local[2]")
    expression = "id * 2 + length(text)"
    catalog.commit_change("t", lambda dataset: (dataset.delete("id = 3"), dataset)[1])
    columns = [{"name": name, "computed": expression} for name in ("there", "here")]
    there.alter_table_add_columns({"id": ["t"], "new_columns": columns})  # type: ignore[arg-type]  # as callers give it
    before = {fragment.fragment_id for fragment in plain(catalog).get_fragments()}
    for where in ("id % 2 = 0 AND id < 100", None, "id = 5"):
        for namespace, column in ((there, "there"), (here, "here")):
            request = api.AlterTableBackfillColumnsRequest(id=["t"], column=column, where=where)
            job = namespace.alter_table_backfill_columns(request).job_id
            described = namespace.describe_transaction(api.DescribeTransactionRequest(id=["t", job]))
            assert described.properties is not None
            assert int(described.properties["version"]) == plain(catalog).version
            if column == "there" and where is not None and "100" in where:
                assert {fragment.fragment_id for fragment in plain(catalog).get_fragments()} == before  # rows stay
        table = plain(catalog).to_table()
        assert table.num_rows == FRAGMENTS * ROWS - 1
        assert table["there"].to_pylist() == table["here"].to_pylist()
        assert table["there"].null_count == (FRAGMENTS * ROWS - 1 - 50 if where and "100" in where else 0)
    version = plain(catalog).version
    for fields in ({"column": "there", "where": "id ="}, {"column": "id"}, {"column": "missing"}):
        with pytest.raises((api_errors.InvalidInputError, api_errors.TableColumnNotFoundError)):
            there.alter_table_backfill_columns({"id": ["t"], **fields})  # type: ignore[arg-type]  # as callers give it
    backfill(spark, catalog, "t", "added", "upper(text)")
    assert plain(catalog).version == version + 1
    assert plain(catalog).count_rows("added = upper(text)") == FRAGMENTS * ROWS - 1
    backfill(spark, catalog, "t", "added", "'x'", where="id = 7")
    assert plain(catalog).to_table(filter="added = 'x'")["id"].to_pylist() == [7]
    for column, sql, where in (("added", "sum(id)", None), ("added", "random(", None), ("new", "id", "id > 1")):
        with pytest.raises(lancekeep.InvalidInput):
            backfill(spark, catalog, "t", column, sql, where=where)
    assert plain(catalog).version == version + 2


def test_index_of_recomputed_list_answers_new_values(spark: SparkSession, catalog: lancekeep.Catalog) -> None:
    catalog.write("tagged", pa.table({"id": [1, 2], "tags": [["a"], ["b"]]}))
    catalog.open("tagged").create_scalar_index("tags", "LABEL_LIST")
    backfill(spark, catalog, "tagged", "tags", lambda batch: pa.array([["b"]] * batch.num_rows), reads=["id"])
    table = lance.dataset(catalog.describe_table("tagged").uri)
    assert sorted(table.to_table(filter="array_has(tags, 'b')")["id"].to_pylist()) == [1, 2]
    assert table.count_rows("array_has(tags, 'a')") == 0


@pytest.mark.parametrize("segments", [1, 2])
def test_indexes_answer_new_values_after_a_backfill_of_some_rows(
    spark: SparkSession, catalog: lancekeep.Catalog, segments: int
) -> None:
    index(spark, catalog, "t", "text", "BTREE", segments=segments)
    backfill(spark, catalog, "t", "text", "'new'", reads=["id"], where="id = 7")
    index(spark, catalog, "t", "text", "BTREE")
    plain(catalog).optimize.optimize_indices(num_indices_to_merge=0)
    for text in (rows(0)["text"][7].as_py(), "new"):
        found = plain(catalog).to_table(filter=f"text = '{text}'")["id"].to_pylist()
        assert found == plain(catalog).to_table(filter=f"text = '{text}'", use_scalar_index=False)["id"].to_pylist()


def test_an_index_job_does_not_add_segments_to_entries_of_old_values(
    spark: SparkSession, catalog: lancekeep.Catalog
) -> None:
    """A native writer has replaced values, and left the index as it was."""
    index(spark, catalog, "t", "id", "BTREE", segments=2)
    dataset = plain(catalog)
    fragment = dataset.get_fragments()[0]
    found = fragment.to_table(columns=[], with_row_id=True)
    new = pa.table({"_rowid": found["_rowid"], "id": pa.array([5000] * found.num_rows, pa.int64())})
    changed, fields = fragment.update_columns(new, left_on="_rowid", right_on="_rowid")
    operation = lance.LanceOperation.Update(
        updated_fragments=[changed], fields_modified=fields, update_mode="rewrite_columns"
    )
    lance.LanceDataset.commit(catalog.open("t"), operation, read_version=dataset.version)
    assert index(spark, catalog, "t", "id", "BTREE").counts["fragments"] == FRAGMENTS
    assert plain(catalog).count_rows("id = 7") == 0
    assert plain(catalog).count_rows("id = 5000") == found.num_rows


def test_a_backfill_stores_nothing_that_the_engine_cannot_read(spark: SparkSession, catalog: lancekeep.Catalog) -> None:
    """The engine stores such values, and then cannot read the column; or it panics at their place in memory."""

    def not_utf8(batch: pa.RecordBatch) -> pa.Array:
        return pa.array([b"\xff"] * batch.num_rows, pa.binary_view()).view(pa.string_view())

    def no_field(batch: pa.RecordBatch) -> pa.Array:
        return pa.StructArray.from_buffers(pa.struct([]), batch.num_rows, [None])

    def misaligned(batch: pa.RecordBatch) -> pa.Array:
        memory = np.zeros(batch.num_rows * 16 + 32, np.uint8)
        start = -memory.ctypes.data % 16 + 8
        buffer = pa.py_buffer(memory[start : start + batch.num_rows * 16])
        return pa.Array.from_buffers(pa.decimal128(20, 2), batch.num_rows, [None, buffer])

    before = plain(catalog).version
    for column, function, message in (
        ("new", not_utf8, "a text that Lance could not read"),
        ("text", not_utf8, "a text that Lance could not read"),
        ("new", no_field, "a struct without fields"),
    ):
        with pytest.raises(lancekeep.InvalidInput, match=message):
            backfill(spark, catalog, "t", column, function, reads=["id"])
    assert plain(catalog).version == before
    backfill(spark, catalog, "t", "price", misaligned, reads=["id"])
    assert set(plain(catalog).to_table()["price"].to_pylist()) == {0}


def test_imports_of_workers_are_frozen_from_garbage_collection(spark: SparkSession, catalog: lancekeep.Catalog) -> None:
    before = gc.get_freeze_count()
    backfill(
        spark, catalog, "t", "frozen", lambda batch: pa.array([gc.get_freeze_count()] * batch.num_rows), reads=["id"]
    )
    assert min(plain(catalog).to_table()["frozen"].to_pylist()) > 0
    assert gc.get_freeze_count() <= before  # frozen objects may have been deleted


def test_failed_backfill_resumes_with_unfinished_fragments(
    spark: SparkSession, catalog: lancekeep.Catalog, tmp_path: Path
) -> None:
    calls, broken = tmp_path / "calls", tmp_path / "broken"
    calls.mkdir()
    broken.touch()

    def brittle(batch: pa.RecordBatch) -> pa.Array:
        first = batch["id"][0].as_py()
        if first >= 3 * ROWS and broken.exists():
            raise RuntimeError("no luck with the last fragment")
        if len(batch) > 1:  # the engine tries a function on one row first
            (calls / str(first)).touch(exist_ok=False)
        return doubled(batch)

    options: dict[str, Any] = {"reads": ["id"], "checkpoint": str(tmp_path / "checkpoint")}
    with pytest.raises(lancekeep.InvalidInput, match="the function failed with RuntimeError: no luck with the last"):
        backfill(spark, catalog, "t", "twice", brittle, **options)
    assert catalog.describe_table("t").version == FRAGMENTS
    broken.unlink()
    finished = len(list((tmp_path / "checkpoint").glob("*.json")))
    assert backfill(spark, catalog, "t", "twice", brittle, **options).counts["fragments computed before"] == finished
    assert plain(catalog).count_rows("twice = 2 * id") == FRAGMENTS * ROWS
    with pytest.raises(lancekeep.InvalidInput, match="it has to keep them all"):
        backfill(spark, catalog, "t", "other", lambda batch: batch["id"].slice(1))


class Payload:
    """A pickle of it creates a file when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.mark,))


def test_pickle_planted_in_any_stored_file_of_a_job_is_not_executed(
    spark: SparkSession,
    catalog: lancekeep.Catalog,
    tmp_path: Path,
    before_commit: Callable[[Callable[[], object]], None],
) -> None:
    mark, checkpoint = tmp_path / "executed", tmp_path / "checkpoint"
    payload = pickle.dumps(Payload(mark))
    landing = tmp_path / "landing"
    landing.mkdir()
    (landing / "a.csv").write_text("id\n1\n")
    ingest(spark, catalog, "taken", str(landing))
    lancekeep.digest(catalog, ["t"])
    options: dict[str, Any] = {"reads": ["id"], "checkpoint": str(checkpoint)}
    before_commit(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # stopped before the commit
        backfill(spark, catalog, "t", "twice", doubled, **options)
    written = sorted(checkpoint.glob("*.json"))
    [record] = (tmp_path / "lake").rglob("_ingested/*")
    remembered = json.loads(written[0].read_text())
    escaping = [*remembered["files"][:-1], remembered["files"][-1] | {"path": "../../taken.lance/data/x.lance"}]
    contents = [
        payload,
        json.dumps(remembered | {"schema": base64.b64encode(payload).decode()}).encode(),
        json.dumps(remembered | {"schema": ["{}", base64.b64encode(payload).decode()]}).encode(),
        json.dumps(remembered | {"files": escaping}).encode(),
    ]
    assert len(written) == len(contents) == FRAGMENTS
    for file, content in zip(written, contents, strict=True):
        file.write_bytes(content)
    assert backfill(spark, catalog, "t", "twice", doubled, **options).counts["fragments computed before"] == 0
    assert plain(catalog).count_rows("twice = 2 * id") == FRAGMENTS * ROWS

    record.write_bytes(payload)
    with pytest.raises(lancekeep.Damaged, match=r"_ingested/.* is no record of ingested files"):
        ingest(spark, catalog, "taken", str(landing))
    [digests] = (tmp_path / "lake").rglob(".lancekeep-digests/*")
    digests.write_bytes(payload)
    [problem] = verify(spark, catalog, ["t"]).problems
    assert "is no record of digests" in problem.reason
    assert not mark.exists()


def test_ctrl_c_cancels_tasks_and_keeps_session(
    spark: SparkSession, catalog: lancekeep.Catalog, tmp_path: Path
) -> None:
    started, never = str(tmp_path / "started"), str(tmp_path / "never")
    os.mkfifo(started)
    os.mkfifo(never)

    def stuck(batch: pa.RecordBatch) -> pa.Array:
        with open(started, "w"), open(never):
            return doubled(batch)

    def interrupt() -> None:
        with open(started):
            os.kill(os.getpid(), signal.SIGINT)

    Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        backfill(spark, catalog, "t", "twice", stuck)
    # The interrupted call has cost this thread its connection; without this the new one has no active session.
    spark.createDataFrame([(1,)], "one int")
    assert catalog.describe_table("t").version == FRAGMENTS
    assert backfill(spark, catalog, "t", "twice", doubled).version == FRAGMENTS + 1


# -- verification and commands --------------------------------------------------------------------------------------


def test_verify_reports_missing_truncated_and_changed_files(spark: SparkSession, catalog: lancekeep.Catalog) -> None:
    catalog.open("t").delete("id < 10")
    report = verify(spark, catalog, deep=True)
    assert (report.problems, report.tables[0].rows) == ((), FRAGMENTS * ROWS - 10)
    recorded = lancekeep.digest(catalog)
    report = verify(spark, catalog, ["t"])
    assert (report.problems, report.tables[0].digests) == ((), recorded.recorded)

    root = Path(catalog.describe_table("t").uri.removeprefix("file://"))
    changed, cut, missing = (
        root / "data" / fragment.data_files()[0].path for fragment in plain(catalog).get_fragments()[1:]
    )
    content = bytearray(changed.read_bytes())
    content[10] ^= 1
    changed.write_bytes(content)
    cut.write_bytes(cut.read_bytes()[:-50])
    missing.unlink()
    next((root / "_deletions").iterdir()).unlink()
    report = verify(spark, catalog)
    told = {(problem.object.rpartition("/")[2], problem.reason.partition(" has ")[0]) for problem in report.problems}
    assert (changed.name, "its content differs from the recorded digest") in told
    assert (cut.name, "the file") in told
    assert (missing.name, "the file is not there") in told
    assert any(problem.object.startswith("_deletions/") for problem in report.problems)
    assert {f"fragment {number}" for number in (0, 2, 3)} <= {problem.object for problem in report.problems}
    with pytest.raises(lancekeep.TableNotFound):
        verify(spark, catalog, ["none"])


def test_jobs_as_commands(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_text("id,text\n1,a\n2,b\nx,c\n")
    (tmp_path / "functions.py").write_text(
        "import pyarrow.compute as pc\ndef twice(b): return pc.add(b['id'], b['id'])\n"
    )
    monkeypatch.chdir(tmp_path)

    def run(command: str, *arguments: str, code: int = 0) -> Any:
        called = [command, "lake", *arguments, "--json", "--commit-store", f"sqlite://{tmp_path}/commits.db"]
        done = CliRunner().invoke(commands, called, obj=lancekeep)
        assert done.exit_code == code, done.output
        return json.loads(done.stdout) if done.stdout else done.stderr

    bad = ("--bad-records", "bad", "--max-bad", "1", "--columns", "id LONG NOT NULL, text STRING")
    assert "more than 0 bad records" in run("ingest", "t", "a.csv", *bad[4:], code=2)
    [summary] = run("ingest", "t", "a.csv", *bad)
    assert (summary["rows"], summary["version"], summary["counts"]["bad records"]) == (2, 1, 1)
    assert len(list((tmp_path / "bad").iterdir())) == 1
    assert run("ingest", "t", "a.csv", *bad[:4])[0]["rows"] == 0
    assert "Spark cannot plan" in run("upsert", "t", "nowhere.parquet", "--on", "id", code=2)
    run("backfill", "t", "--function", "functions:twice", "--column", "twice", "--reads", "id")
    run("index", "t", "id", "--kind", "btree")
    assert [done["table"] for done in run("compact")] == ["t"]
    catalog = lancekeep.connect("lake", commit_store=f"sqlite://{tmp_path}/commits.db")
    assert catalog.open("t").to_table()["twice"].to_pylist() == [2, 4]
    assert run("verify", "--deep")["problems"] == []
    next((Path(catalog.describe_table("t").uri.removeprefix("file://")) / "data").iterdir()).unlink()
    assert run("verify", code=1)["problems"]


@pytest.mark.parametrize(
    ("arguments", "store", "code", "told"),
    [
        (["ingest", "lake", "t", "landing/none"], "memory://missing", 3, "there is no file under landing/none"),
        (["ingest", "lake", "t", "a.csv"], "wrong://x", 2, "unknown commit store wrong://"),
        (["compact", "lake", "t"], "memory://missing", 3, "the table t does not exist"),
        (["index", "lake", "t", "id", "--kind", "btree"], "memory://missing", 3, "the table t does not exist"),
        (["upsert", "lake", "t", "a.parquet", "--on", "id"], "memory://missing", 3, "the table t does not exist"),
        (["verify", "lake", "t"], "memory://missing", 3, "the table t does not exist"),
    ],
)
def test_missing_arguments_are_reported_before_spark_starts(
    arguments: list[str], store: str, code: int, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def session(master: str) -> SparkSession:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("lancekeep.jobs.session", session)
    monkeypatch.chdir(tmp_path)
    lancekeep.connect("lake", commit_store="memory://missing").create_namespace("n")
    done = CliRunner().invoke(commands, [*arguments, "--commit-store", store], obj=lancekeep)
    assert (done.exit_code, told in done.stderr) == (code, True), done.output


def test_job_without_pyspark_names_extra_to_install(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['pyspark'] = None; sys.argv[0] = 'lancekeep'\n"
        "from lancekeep.__main__ import main; main()"
    )
    command = [sys.executable, "-c", program, "compact", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.strip().endswith("pip install 'lancekeep[spark]'")


def test_jobs_write_through_a_server(spark: SparkSession, catalog: lancekeep.Catalog) -> None:
    from rest_server import serving  # not above: Spark's workers import this module to find the functions in it

    served = lancekeep.DirectoryNamespace(root=catalog.root_uri, commit_store=directory_of(catalog).commits.rows.url)
    with serving(served) as front:
        over = lancekeep.connect(front.uri)
        backfill(spark, over, "t", "twice", lambda batch: pc.multiply(batch["id"], 2), reads=["id"])
        compact(spark, over, "t")
        changes = rows(FRAGMENTS * ROWS - 1, 2).append_column("twice", pa.array([798, 800], pa.int64()))
        assert upsert(over, "t", changes, on="id").counts == {"updated": 1, "inserted": 1}
        index(spark, over, "t", "id", "BTREE")
    read = plain(catalog).to_table(columns=["id", "twice"])
    assert sorted(read["id"].to_pylist()) == list(range(FRAGMENTS * ROWS + 1))
    assert [found.name for found in plain(catalog).describe_indices()] == ["id_idx"]
    assert plain(catalog).to_table(filter="id = 399")["twice"].to_pylist() == [798]
    assert read["twice"].to_pylist() == [2 * number for number in read["id"].to_pylist()]
    assert len(plain(catalog).get_fragments()) == 2  # the compacted rows, and those of the upsert
    assert recorded(catalog)[-1] == plain(catalog).version
