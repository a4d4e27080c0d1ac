"""Metadata tables, metadata columns, branches and tags in SQL; plain pylance reads the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import Any

import attrs
import lance
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import lancekeep
import lancekeep.spark
from lancekeep.domain.identifiers import ObjectId
from lancekeep.entrypoints.spark.sql.branches import WAP_BRANCH

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),  # the JVM is forked, and executes at once
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
]

TABLE = ObjectId.of("ns.t")


@attrs.frozen
class Lake:
    """A catalog with the name ``lake`` in SQL and the table ``ns.t`` of four versions."""

    spark: SparkSession
    catalog: lancekeep.Catalog
    commit_store: str

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.spark.sql(statement).collect()]

    def refuses(self, statement: str, error: str) -> None:
        with pytest.raises(PySparkException, match=error):
            self.sql(statement)

    def stored(self, branch: str | None = None) -> lance.LanceDataset:
        """Return the table as plain pylance reads it."""
        dataset = lance.dataset(self.catalog.describe_table("ns.t").uri)
        return dataset if branch is None else dataset.checkout_version((branch, None))

    def ids(self, branch: str | None = None) -> list[int]:
        found: list[int] = self.stored(branch).to_table()["id"].to_pylist()
        return sorted(found)


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Iterator[Lake]:
    store = f"sqlite://{tmp_path}/commits.db"
    with lancekeep.spark.install(spark, "lake", str(tmp_path / "lake"), commit_store=store) as catalog:
        catalog.create_namespace("ns")
        catalog.write("ns.t", pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]}))
        catalog.write("ns.t", pa.table({"id": [4], "name": ["d"]}), "append")
        catalog.open("ns.t").delete("id = 2")
        catalog.open("ns.t").create_scalar_index("id", "BTREE")
        catalog.tags.create(TABLE, "first", 1, None)
        yield Lake(spark, catalog, store)


def test_metadata_tables_show_what_pylance_reads(lake: Lake) -> None:
    lake.catalog.branches.create(TABLE, "dev", None, 2)
    dataset = lake.stored()
    assert lake.sql("SELECT version, operation, rows FROM lake.ns.t.history") == [
        (4, "CreateIndex", 3),
        (3, "Delete", 3),
        (2, "Append", 4),
        (1, "Overwrite", 3),
    ]
    versions: list[Any] = list(dataset.versions())
    times = [entry["timestamp"].astimezone(UTC).replace(tzinfo=None) for entry in versions]
    shown = "date_format(to_utc_timestamp(timestamp, current_timezone()), 'yyyy-MM-dd HH:mm:ss.SSSSSS')"
    assert lake.sql(f"SELECT version, rows, fragments, deleted_rows, {shown} FROM lake.ns.t.versions") == [
        (version, rows, fragments, deleted, f"{time:%Y-%m-%d %H:%M:%S.%f}")
        for time, (version, rows, fragments, deleted) in zip(
            times, [(1, 3, 1, 0), (2, 4, 2, 0), (3, 3, 2, 1), (4, 3, 2, 1)], strict=True
        )
    ]
    fragments = [fragment.metadata for fragment in dataset.get_fragments()]
    sizes = [fragment.files[0].file_size_bytes for fragment in fragments]
    assert lake.sql("SELECT * FROM lake.ns.t.fragments") == [(0, 2, 1, 1, sizes[0]), (1, 1, 0, 1, sizes[1])]
    assert lake.sql("SELECT fragment FROM lake.ns.t.fragments VERSION AS OF 1") == [(0,)]
    files = lake.sql("SELECT fragment, content, path, columns, deleted_rows FROM lake.ns.t.files ORDER BY 1, 2")
    data = [(number, "data", fragment.files[0].path, ["id", "name"], None) for number, fragment in enumerate(fragments)]
    [deletions] = [path.name for path in Path(dataset.uri.removeprefix("file://"), "_deletions").iterdir()]
    assert files == [data[0], (0, "deletion", deletions, None, 1), data[1]]
    assert lake.sql("SELECT name, columns, type, indexed_rows, unindexed_rows FROM lake.ns.t.indexes") == [
        (index.name, ["id"], "BTree", index.num_rows_indexed, 3 - index.num_rows_indexed)
        for index in dataset.describe_indices()
    ]
    assert lake.sql("SELECT * FROM lake.ns.t.tags") == [("first", "main", 1)]
    assert lake.sql("SELECT name, parent_branch, parent_version FROM lake.ns.t.branches") == [("dev", "main", 2)]
    refs = [("main", "BRANCH", "main", 4), ("dev", "BRANCH", "dev", 2), ("first", "TAG", "main", 1)]
    assert lake.sql("SELECT * FROM lake.ns.t.refs") == refs
    lake.catalog.create_namespace("ns.sub")
    lake.sql("CREATE TABLE lake.ns.sub.tags AS SELECT 'a table of that name' name")
    assert lake.sql("SELECT * FROM lake.ns.sub.tags") == [("a table of that name",)]


def test_parts_of_a_table_refuse_changes(lake: Lake) -> None:
    lake.catalog.branches.create(TABLE, "dev", None, None)
    for statement, error in [
        ("INSERT INTO lake.ns.t.tags VALUES ('x', 'main', 1)", "does not support append in batch mode"),
        ("DELETE FROM lake.ns.t.history", "does not support deletes"),
        ("ALTER TABLE lake.ns.t.files ADD COLUMN x INT", "is a part of the table lake.ns.t"),
        ("ALTER TABLE lake.ns.t.branch_dev ADD COLUMN x INT", "is a part of the table lake.ns.t"),
        ("DROP TABLE lake.ns.t.branch_dev", "TABLE_OR_VIEW_NOT_FOUND|is a part of the table"),
        ("INSERT INTO lake.ns.t.tag_first VALUES (9, 'x')", "does not support append in batch mode"),
        ("SELECT * FROM lake.ns.t.tags VERSION AS OF 1", "tags describes all versions of a table"),
        ("SELECT * FROM lake.ns.t.branch_nowhere", "nowhere"),
        ("SELECT * FROM lake.ns.t.tag_nowhere", "nowhere"),
        ("SELECT * FROM lake.ns.t.nothing", "TABLE_OR_VIEW_NOT_FOUND"),
        ("SELECT * FROM lake.ns.missing.history", "TABLE_OR_VIEW_NOT_FOUND"),
    ]:
        lake.refuses(statement, error)
    assert (lake.ids(), lake.ids("dev"), lake.stored().version) == ([1, 3, 4], [1, 3, 4], 4)


def test_metadata_columns_show_where_rows_are(lake: Lake, tmp_path: Path) -> None:
    rows = lake.stored().scanner(columns=["id", "_rowid", "_rowaddr"]).to_table().to_pylist()
    assert lake.sql("SELECT id, _rowid, _rowaddr, _fragment FROM lake.ns.t ORDER BY id") == [
        (row["id"], row["_rowid"], row["_rowaddr"], row["_rowaddr"] >> 32) for row in rows
    ]
    assert lake.sql("SELECT * FROM lake.ns.t WHERE _rowaddr = 4294967296") == [(4, "d")]
    assert lake.sql("SELECT max(_rowid), name FROM lake.ns.t WHERE _fragment = 1 GROUP BY name") == [(2**32, "d")]
    [(plan,)] = lake.sql("EXPLAIN SELECT _fragment FROM lake.ns.t WHERE _rowid IN (0, 2)")
    assert "filter (`_rowid` IN (0, 2))" in plan
    lake.refuses("SELECT _row_created_at_version FROM lake.ns.t", "UNRESOLVED_COLUMN")

    place = tmp_path / "lake" / "stable.lance"
    stable = lance.write_dataset(pa.table({"id": [1, 2], "_fragment": ["x", "y"]}), place, enable_stable_row_ids=True)
    stable.update({"_fragment": "'z'"}, where="id = 1")
    lake.catalog.register_table("stable", "stable.lance")
    changed = "_row_created_at_version, _row_last_updated_at_version, _rowid"
    assert lake.sql(f"SELECT id, {changed}, _fragment FROM lake.stable ORDER BY id") == [
        (1, 1, 2, 0, "z"),
        (2, 1, 1, 1, "y"),
    ]
    assert lake.sql("SELECT id FROM lake.stable WHERE _row_last_updated_at_version > 1") == [(1,)]


def test_branches_are_read_and_written_by_name(lake: Lake) -> None:
    lake.catalog.branches.create(TABLE, "dev", None, None)
    lake.sql("INSERT INTO lake.ns.t.branch_dev VALUES (5, 'e')")
    lake.sql("DELETE FROM lake.ns.t.branch_dev WHERE id = 1")
    assert lake.sql("SELECT id, _fragment FROM lake.ns.t.branch_dev ORDER BY id") == [(3, 0), (4, 1), (5, 2)]
    assert (lake.ids("dev"), lake.ids()) == ([3, 4, 5], [1, 3, 4])
    assert lake.sql("SELECT count(*) FROM lake.ns.t VERSION AS OF 'dev'") == [(3,)]
    assert lake.sql("SELECT count(*) FROM lake.ns.t.tag_first") == [(3,)]
    lake.sql("INSERT OVERWRITE lake.ns.t.branch_dev SELECT id + 100, name FROM lake.ns.t")
    assert (lake.ids("dev"), lake.ids()) == ([101, 103, 104], [1, 3, 4])
    reader = lake.spark.readStream.table("lake.ns.t.branch_dev").writeStream.format("noop")
    with pytest.raises(PySparkException, match="main history of a table, no branch"):
        reader.trigger(availableNow=True).start().awaitTermination()


def test_write_audit_publish(lake: Lake) -> None:
    lake.spark.conf.set(WAP_BRANCH, "audit")
    try:
        assert lake.sql("SELECT count(*) FROM lake.ns.t") == [(3,)]
        lake.sql("INSERT INTO lake.ns.t VALUES (5, 'e'), (6, NULL)")
        lake.sql("DELETE FROM lake.ns.t WHERE name IS NULL OR id = 1")
        assert lake.sql("SELECT id FROM lake.ns.t ORDER BY id") == [(3,), (4,), (5,)]
        lake.refuses("CREATE OR REPLACE TABLE lake.ns.t AS SELECT 1 id", "REPLACE TABLE replaces the main history")
        lake.sql("UPDATE lake.ns.t SET name = upper(name) WHERE id = 3")
        lake.sql(
            """MERGE INTO lake.ns.t USING (SELECT 4L id, 'merged' name UNION ALL SELECT 8, 'h') s ON t.id = s.id
            WHEN MATCHED THEN UPDATE SET name = s.name WHEN NOT MATCHED THEN INSERT *"""
        )
    finally:
        lake.spark.conf.unset(WAP_BRANCH)
    assert lake.sql("SELECT id FROM lake.ns.t ORDER BY id") == [(1,), (3,), (4,)]
    lake.catalog.branches.create(TABLE, "late", None, None)
    lake.sql("INSERT INTO lake.ns.t.branch_late VALUES (7, 'g')")

    assert lake.sql("CALL lake.system.fast_forward('ns.t', 'audit')") == [("audit", 5)]
    rows = sorted(tuple(row.values()) for row in lake.stored().to_table().to_pylist())
    assert rows == [(3, "C"), (4, "merged"), (5, "e"), (8, "h")]
    for branch, error in [("late", "begins at version 4"), ("audit", "begins at version 4"), ("none", "no branch")]:
        with pytest.raises(lancekeep.LancekeepError, match=error):
            lake.catalog.branches.fast_forward(TABLE, branch)
    lake.catalog.branches.delete(TABLE, "audit")
    assert (lake.ids(), lake.stored().version) == ([3, 4, 5, 8], 5)


def test_procedures_change_tables_and_return_rows(lake: Lake) -> None:
    assert lake.sql("CALL lake.system.rollback_to_version('ns.t', 1)") == [(4, 5, 1)]
    assert lake.ids() == [1, 2, 3]
    assert lake.sql("CALL lake.system.rollback_to_timestamp('ns.t', current_timestamp())") == [(5, 6, 5)]
    assert lake.sql("CALL lake.system.create_tag(tag => 'now', table => 'lake.ns.t', version => 6)") == [("now", 6)]
    assert lake.sql("CALL lake.system.create_tag('ns.t', 'old', 3)") == [("old", 3)]
    assert lake.sql("CALL lake.system.drop_tag('ns.t', 'old')") == [("old",)]
    assert {name: tag["version"] for name, tag in lake.stored().tags.list().items()} == {"first": 1, "now": 6}

    assert lake.sql("CALL lake.system.create_branch('ns.t', 'dev')") == [("dev", 6)]
    lake.sql("INSERT INTO lake.ns.t.branch_dev VALUES (9, 'i')")
    assert lake.sql("CALL lake.system.fast_forward('ns.t', 'dev')") == [("dev", 7)]
    assert lake.sql("CALL lake.system.drop_branch('ns.t', 'dev')") == [("dev",)]
    assert (lake.ids(), lake.stored().branches.list()) == ([1, 2, 3, 9], {})

    lake.sql("CREATE OR REPLACE TEMP VIEW source AS SELECT 9L id, 'I' name UNION ALL SELECT 10, 'j'")
    assert lake.sql("CALL lake.system.upsert_from('ns.t', source => 'source', on => array('id'))") == [(7, 8, 1, 1)]
    assert lake.sql("CALL lake.system.add_columns('ns.t', map('twice', 'id * 2'))") == [(9,)]
    rows = {row["id"]: (row["name"], row["twice"]) for row in lake.stored().to_table().to_pylist()}
    assert rows == {1: ("a", 2), 2: ("b", 4), 3: ("c", 6), 9: ("I", 18), 10: ("j", 20)}

    assert lake.sql("CALL lake.system.create_index('ns.t', column => 'id', type => 'btree')") == [(9, 10)]
    lake.sql("INSERT INTO lake.ns.t VALUES (11, 'k', 22)")
    assert lake.sql("CALL lake.system.optimize('ns.t', target_rows => 1)") == [(11, 12, 0, ["id_idx"])]
    assert lake.stored().stats.index_stats("id_idx")["num_unindexed_rows"] == 0
    assert lake.sql("CALL lake.system.drop_index('ns.t', 'id_idx')") == [(13,)]
    assert lake.stored().describe_indices() == []
    [(before, version, rewritten)] = lake.sql("CALL lake.system.compact('ns.t')")
    assert (before, version, rewritten) == (13, lake.stored().version, 6)
    assert len(lake.stored().get_fragments()) == 1
    removed = lake.sql("CALL lake.system.cleanup(older_than => '0s', table => 'ns.t', grace => '0s')")
    assert [row[:3] for row in removed] == [("ns.t", None, [2, 3, 4, 5, *range(7, version)])]
    kept: list[Any] = list(lake.stored().versions())
    assert [each["version"] for each in kept] == [1, 6, version]  # tagged, or the latest
    assert lake.sql("CALL lake.system.fsck(deep => true)") == []
    assert lake.sql("CALL lake.system.migrate(dry_run => true)") == []
    assert lake.ids() == [1, 2, 3, 9, 10, 11]


def test_procedures_refuse_wrong_arguments(lake: Lake) -> None:
    for call, error in [
        ("nothing()", "there is no procedure lake.system.nothing"),
        ("compact()", "REQUIRED_PARAMETER_NOT_FOUND"),
        ("compact(NULL)", "the argument table is NULL"),
        ("compact('ns.t', wrong => 1)", "UNRECOGNIZED_PARAMETER_NAME"),
        ("compact('ns.missing')", "ns.missing does not exist"),
        ("cleanup('next week')", "'next week' is not a time span"),
        ("rollback_to_version('ns.t', 99)", "99"),
        ("rollback_to_timestamp('ns.t', TIMESTAMP '2001-01-01')", "no version that was the latest at 2001-01-01"),
        ("create_tag('ns.t', 'first')", "has a tag 'first'"),
        ("fast_forward('ns.t', 'none')", "no branch 'none'"),
        ("drop_index('ns.t', 'none')", "no index 'none'"),
        ("register_table('ns.u', 'nowhere.lance')", "nowhere"),
    ]:
        lake.refuses(f"CALL lake.system.{call}", error)
    assert (lake.ids(), lake.stored().version) == ([1, 3, 4], 4)
    assert ("lake", ["system"], "system", "compact") in lake.sql("SHOW PROCEDURES IN lake.system")


def test_searches_return_rows_of_pylance_searches(lake: Lake) -> None:
    vectors = pa.array([[float(i % 16), float(i // 16)] for i in range(256)], pa.list_(pa.float32(), 2))
    texts = [f"word{i % 7} thing{i % 3}" for i in range(256)]
    moments = pa.array(range(256), pa.timestamp("us", "UTC"))
    lake.catalog.write("docs", pa.table({"id": range(256), "text": texts, "v": vectors, "at": moments}))
    lake.catalog.open("docs").create_scalar_index("text", "INVERTED")
    lake.catalog.open("docs").create_index("v", "IVF_FLAT", num_partitions=4)
    dataset = lance.dataset(lake.catalog.describe_table("docs").uri)

    def nearest(vector: list[float], k: int, condition: str | None = None) -> list[tuple[Any, ...]]:
        search = {"column": "v", "q": vector, "k": k, "nprobes": 4}
        found = dataset.scanner(columns=["id", "_distance"], nearest=search, filter=condition, prefilter=True)
        return sorted(tuple(row.values()) for row in found.to_table().to_pylist())

    search = "SELECT id, _distance FROM vector_search('lake.docs', 'v', array(3.2, 4.1), 3, nprobes => 4"
    assert sorted(lake.sql(f"{search})")) == nearest([3.2, 4.1], 3)
    filtered = lake.sql(f"{search}, filter => 'id > 100', columns => array('id'))")
    assert sorted(filtered) == nearest([3.2, 4.1], 3, "id > 100")
    assert lake.sql("SELECT * FROM vector_search('lake.docs', 'v', array(1, 0), k => 1)") == [
        (1, texts[1], [1.0, 0.0], *lake.sql("SELECT at FROM lake.docs WHERE id = 1")[0], 0.0)
    ]
    joined = lake.sql(
        """SELECT q.n, d.text, s._distance FROM VALUES (1, array(3.2, 4.1)), (2, array(9.9, 1.3)) q(n, e),
        LATERAL vector_search('lake.docs', 'v', q.e, 2, nprobes => 4, columns => array('id')) s
        JOIN lake.docs d ON d.id = s.id"""
    )
    expected = [(1, *row) for row in nearest([3.2, 4.1], 2)] + [(2, *row) for row in nearest([9.9, 1.3], 2)]
    assert sorted(joined) == sorted((n, texts[i], distance) for n, i, distance in expected)
    found = lake.sql("SELECT text, _score FROM text_search('lake.docs', 'word3', 5, columns => array('text'))")
    assert len(found) == 5
    assert all("word3" in text and score > 0 for text, score in found)
    [best, *_] = lake.sql("SELECT id FROM hybrid_search('lake.docs', 'v', array(3, 0), 'word3', 4)")
    assert best == (3,)  # first by vector, and has the word
    for call, error in [
        ("vector_search('docs', 'v', array(1, 2))", "name the table with its catalog"),
        ("vector_search('lake.docs', 'v', array(1, 2), wrong => 1)", "wrong is unknown"),
    ]:
        lake.refuses(f"SELECT * FROM {call}", error)


def test_changes_lead_from_each_version_to_the_next(lake: Lake, tmp_path: Path) -> None:
    rows = pa.table({"id": range(20), "name": [f"n{i}" for i in range(20)]})
    lance.write_dataset(rows, tmp_path / "lake" / "s.lance", enable_stable_row_ids=True, max_rows_per_file=8)
    lake.catalog.register_table("s", "s.lance")
    opened = lake.catalog.open
    lake.catalog.write("s", pa.table({"id": [20, 21], "name": ["n20", None]}), "append")
    opened("s").update({"name": "'x'"}, where="id % 5 = 0")
    opened("s").delete("id IN (1, 5, 20)")
    opened("s").optimize.compact_files()
    merge = opened("s").merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    merge.execute(pa.table({"id": [2, 5], "name": ["merged", "again"]}))
    lake.sql("CALL lake.system.rollback_to_version('s', 2)")
    lake.catalog.write("s", pa.table({"id": [7], "name": ["only"]}), "overwrite")

    uri = lake.catalog.describe_table("s").uri
    latest = lance.dataset(uri).version
    found = lake.sql("SELECT _commit_version, _change_type, id, name FROM lake.s CHANGES FROM VERSION 1")
    assert {kind for _, kind, *_ in found} == {"insert", "delete", "update_preimage", "update_postimage"}
    assert (3, "update_preimage", 5, "n5") in found
    assert (3, "update_postimage", 5, "x") in found
    now: set[tuple[Any, ...]] = set()
    for version in range(1, latest + 1):
        changes = [(kind, row) for number, kind, *row in found if number == version]
        gone = [tuple(row) for kind, row in changes if kind in ("delete", "update_preimage")]
        come = [tuple(row) for kind, row in changes if kind in ("insert", "update_postimage")]
        assert set(gone) <= now
        assert not set(come) & (now - set(gone))
        now = (now - set(gone)) | set(come)
        stored = lance.dataset(uri, version=version).to_table().to_pylist()
        assert now == {tuple(row.values()) for row in stored}, version

    columns = "_commit_version, _change_type, _commit_timestamp, id, name"
    expected = lake.sql(f"SELECT {columns} FROM lake.s CHANGES FROM VERSION 2 TO VERSION 3")
    function = lake.sql(f"SELECT {columns} FROM changes('lake.s', 2, to_version => 3)")
    assert sorted(map(str, function)) == sorted(map(str, expected))
    lake.refuses("SELECT * FROM changes('lake.s', 2, 99)", "give versions of lake.s from 1 to")
    lake.refuses("SELECT * FROM changes('s', 2)", "name the table with its catalog")
    assert lake.sql("SELECT id, _change_type FROM lake.ns.t CHANGES FROM VERSION 2 TO VERSION 4 ORDER BY id") == [
        (2, "delete"),
        (4, "insert"),
    ]
    lake.catalog.open("ns.t").update({"name": "'u'"}, where="id = 1")
    for clause, error in [
        ("FROM VERSION 2", "version 5 of lake.ns.t updated rows .Update., and the table has no stable row ids"),
        ("FROM VERSION 9", "give versions from 1 to 5"),
    ]:
        lake.refuses(f"SELECT * FROM lake.ns.t CHANGES {clause}", error)


def test_stable_row_ids_are_chosen_when_a_table_is_created(lake: Lake) -> None:
    """The change feed then shows updates; REPLACE and rewrites keep the choice."""
    stable = "TBLPROPERTIES ('lancekeep.stable_row_ids' = 'true')"
    options = {"root": lake.catalog.root_uri, "commit_store": lake.commit_store, "stable_row_ids": "true"}
    rows = lake.spark.sql("SELECT 1L id, 'a' name UNION ALL SELECT 2L, 'b'")

    def is_stable(name: str) -> bool:
        return lance.dataset(lake.catalog.describe_table(name).uri).has_stable_row_ids

    lake.sql(f"CREATE TABLE lake.created (id BIGINT, name STRING) {stable}")
    lake.sql("INSERT INTO lake.created VALUES (1, 'a'), (2, 'b')")
    lake.sql(f"CREATE TABLE lake.selected {stable} AS SELECT 1L id, 'a' name UNION ALL SELECT 2L, 'b'")
    rows.writeTo("lake.framed").tableProperty("lancekeep.stable_row_ids", "true").create()
    for mode in ("append", "overwrite"):
        rows.write.format("lancekeep").options(**options).mode(mode).save(mode)
    for name in ("created", "selected", "framed", "append", "overwrite"):
        assert is_stable(name), name
        before = sorted(lake.sql(f"SELECT id, _rowid FROM lake.{name}"))
        version = lake.catalog.describe_table(name).version or 0
        lake.sql(f"UPDATE lake.{name} SET name = 'u' WHERE id = 1")
        changes = lake.sql(f"SELECT id, name, _change_type FROM lake.{name} CHANGES FROM VERSION {version + 1}")
        assert sorted(changes) == [(1, "a", "update_preimage"), (1, "u", "update_postimage")]
        lake.catalog.open(name).optimize.compact_files()
        assert sorted(lake.sql(f"SELECT id, _rowid FROM lake.{name}")) == before
    assert ("lancekeep.stable_row_ids", "true") in lake.sql("SHOW TBLPROPERTIES lake.created")

    lake.sql("CREATE OR REPLACE TABLE lake.selected AS SELECT 3L id")
    assert is_stable("selected")
    assert ("lancekeep.stable_row_ids", "true") in lake.sql("SHOW TBLPROPERTIES lake.selected")


def test_contradicting_row_ids_are_refused_before_anything_is_written(lake: Lake) -> None:
    stable = "TBLPROPERTIES ('lancekeep.stable_row_ids' = 'true')"
    options = {"root": lake.catalog.root_uri, "commit_store": lake.commit_store}
    version, kept = lake.catalog.describe_table(TABLE).version, "and keeps that for all of its versions"
    lake.refuses(f"CREATE OR REPLACE TABLE lake.ns.t {stable} AS SELECT 1 id", kept)
    lake.refuses("ALTER TABLE lake.ns.t SET TBLPROPERTIES ('lancekeep.stable_row_ids' = 'true')", kept)
    frame = lake.spark.sql("SELECT 1L id, 'a' name, 'n' new")
    for mode, more in (("append", {"mergeSchema": "true"}), ("overwrite", {})):
        writer = frame.write.format("lancekeep").options(**options, **more).mode(mode)
        with pytest.raises(PySparkException, match=kept):
            writer.option("stable_row_ids", "true").save("ns.t")
    with pytest.raises(PySparkException, match="the option stable_row_ids is 'on'; give true or false"):
        frame.write.format("lancekeep").options(**options, stable_row_ids="on").mode("append").save("new")
    lake.refuses(
        "CREATE TABLE lake.new (id INT) TBLPROPERTIES ('lancekeep.stable_row_ids' = 'yes')", "'true' and 'false'"
    )
    assert lake.catalog.describe_table(TABLE).version == version
    assert lake.catalog.list_tables() == []


def kinds_of_indexes(dataset: lance.LanceDataset) -> dict[str, tuple[str, list[str]]]:
    return {each.name: (each.index_type, list(each.field_names)) for each in dataset.describe_indices()}


def test_indexes_are_created_and_dropped_by_statements(lake: Lake) -> None:
    lake.sql("CREATE INDEX names ON lake.ns.t USING bitmap (name)")
    lake.sql("CREATE INDEX IF NOT EXISTS names ON lake.ns.t (id)")
    lake.sql("CREATE INDEX plain ON TABLE lake.ns.t (name)")
    indexes = {"id_idx": ("BTree", ["id"]), "names": ("Bitmap", ["name"]), "plain": ("BTree", ["name"])}
    assert kinds_of_indexes(lake.stored()) == indexes
    assert lake.sql("SELECT id FROM lake.ns.t WHERE name = 'c'") == [(3,)]

    lake.catalog.branches.create(TABLE, "dev", None, None)
    before = lake.stored().version
    for statement, error in [
        ("CREATE INDEX names ON lake.ns.t (name)", "has an index 'names'; drop it first"),
        ("CREATE INDEX i ON lake.ns.t (id, name)", "an index is of one column"),
        ("CREATE INDEX i ON lake.ns.t USING nothing (id)", "unknown kind of index 'NOTHING'"),
        ("CREATE INDEX i ON lake.ns.t (id) OPTIONS ('sizes' = '3')", "there is no option 'sizes'; choose metric"),
        ("CREATE INDEX i ON lake.ns.t (id) OPTIONS ('partitions' = 'x')", "an option is no number"),
        ("CREATE INDEX i ON lake.ns.t (id) OPTIONS ('partitions' = '3')", "BTREE is none"),
        ("CREATE INDEX i ON lake.ns.t (id OPTIONS ('partitions' = '3'))", "put OPTIONS after the column"),
        ("CREATE INDEX i ON lake.ns.t (nothing)", "nothing"),
        ("CREATE INDEX i ON lake.ns.t.branch_dev (id)", "the branch 'dev'"),
        ("DROP INDEX nothing ON lake.ns.t", "no index 'nothing'"),
        ("DROP INDEX names ON lake.ns.t.branch_dev", "the branch 'dev'"),
    ]:
        lake.refuses(statement, error)
    assert (lake.stored().version, kinds_of_indexes(lake.stored())) == (before, indexes)

    lake.sql("DROP INDEX names ON lake.ns.t")
    lake.sql("DROP INDEX IF EXISTS names ON lake.ns.t")
    assert kinds_of_indexes(lake.stored()) == {name: indexes[name] for name in ("id_idx", "plain")}
    assert lake.stored().version == before + 1


def test_vector_index_is_created_by_a_statement(lake: Lake) -> None:
    vectors = pa.array([[float(number), 1.0] for number in range(64)], pa.list_(pa.float32(), 2))
    lake.catalog.write("ns.v", pa.table({"v": vectors}))
    lake.sql("CREATE INDEX near ON lake.ns.v USING ivf_flat (v) OPTIONS ('metric' = 'cosine', 'partitions' = '2')")
    dataset = lance.dataset(lake.catalog.describe_table("ns.v").uri)
    [found] = dataset.stats.index_stats("near")["indices"]
    assert (found["metric_type"], found["num_partitions"]) == ("cosine", 2)


def test_statements_comment_describe_and_cache(lake: Lake) -> None:
    for statement in [
        "COMMENT ON TABLE lake.ns.t IS 'things'",
        "COMMENT ON COLUMN lake.ns.t.id IS 'the key'",
        "COMMENT ON NAMESPACE lake.ns IS 'mine'",
        "REFRESH TABLE lake.ns.t",
        "CACHE TABLE lake.ns.t",
        "UNCACHE TABLE lake.ns.t",
    ]:
        lake.sql(statement)
    assert lake.catalog.find_table("ns.t").properties == {"comment": "things"}
    assert lake.catalog.describe_namespace("ns").properties["comment"] == "mine"
    assert lake.stored().schema.field("id").metadata == {b"comment": b"the key"}
    assert ("comment", "the key") in lake.sql("DESCRIBE lake.ns.t id")
    [(namespace, table, is_temporary, shown)] = lake.sql("SHOW TABLE EXTENDED IN lake.ns LIKE 't'")
    assert (namespace, table, is_temporary) == ("ns", "t", False)
    assert "Comment: things" in shown


def test_absent_statements_are_refused_before_any_effect(lake: Lake) -> None:
    for statement, error in [
        ("ANALYZE TABLE lake.ns.t COMPUTE STATISTICS", "ANALYZE TABLE is not supported for v2 tables"),
        (
            "CREATE TABLE lake.ns.u (id INT) CLUSTER BY (id) TBLPROPERTIES ('lancekeep.stable_row_ids' = 'true')",
            "CLUSTER BY is not supported for a table with stable row ids.*CREATE INDEX",
        ),
        ("CREATE TABLE lake.ns.u (s STRUCT<a: INT NOT NULL>)", "s.a is NOT NULL: fields of structs take nulls"),
        ("CREATE TABLE lake.ns.u (l ARRAY<STRUCT<a: INT NOT NULL>>)", "l.element.a is NOT NULL"),
        ("CREATE TABLE lake.ns.u (m MAP<INT, STRUCT<a: INT NOT NULL>>)", "m.value.a is NOT NULL"),
        ("ALTER TABLE lake.ns.t ADD COLUMN s STRUCT<t: STRUCT<a: INT NOT NULL>>", "s.t.a is NOT NULL"),
        ("CREATE TABLE lake.ns.u (d DATE) PARTITIONED BY (d)", "one partitioned table, which has the name .dataset."),
        ("CREATE TABLE lake.ns.u (id INT) STORED AS PARQUET", "STORED AS.*tables here are Lance tables"),
        ("CREATE TABLE lake.ns.u (id INT) ROW FORMAT SERDE 'x'", "ROW FORMAT.*tables here are Lance tables"),
        ("CREATE TABLE lake.ns.u (id BIGINT GENERATED ALWAYS AS IDENTITY)", "does not support identity column"),
        ("CREATE TABLE lake.ns.u (id INT UNIQUE)", "only PRIMARY KEY, and CHECK constraints"),
        ("ALTER TABLE lake.ns.t ADD CONSTRAINT pk PRIMARY KEY (id)", "the column id may be null"),
        ("CREATE TABLE lake.ns.u (a ARRAY<INT>, PRIMARY KEY (a))", "a is array, which cannot be in a primary key"),
        ("CREATE TABLE lake.ns.u (a INT, PRIMARY KEY (a, A))", "PRIMARY KEY names the column a twice"),
        ("CREATE TABLE lake.ns.u (a INT, PRIMARY KEY (b))", "PRIMARY KEY names no column 'b'"),
        ("ALTER TABLE lake.ns.t ADD CONSTRAINT pk PRIMARY KEY (b)", "PRIMARY KEY names no column 'b'"),
        ("CREATE TABLE lake.ns.u (a INT, PRIMARY KEY (a) RELY)", "Lance does not enforce a primary key"),
        ("CALL lake.system.upsert_from('ns.t', source => 'lake.ns.t')", "ns.t has no primary key"),
        ("ALTER TABLE lake.ns.t REPLACE COLUMNS (other INT)", "REPLACE COLUMNS would remove the values"),
        ("ALTER TABLE lake.ns.t RECOVER PARTITIONS", "RECOVER PARTITIONS is not supported"),
        ("ALTER NAMESPACE lake.ns SET LOCATION '/tmp/x'", "LOCATION of a namespace is not supported"),
        ("TRUNCATE TABLE lake.ns.t PARTITION (id = 1)", "does not support partition management"),
        ("LOAD DATA INPATH '/tmp/x' INTO TABLE lake.ns.t", "LOAD DATA is not supported"),
        ("CREATE FUNCTION lake.ns.f(x INT) RETURNS INT RETURN x", "does not support CREATE FUNCTION"),
        ("SHOW PARTITIONS lake.ns.t", "does not support partition management"),
        ("DESCRIBE TABLE EXTENDED lake.ns.t AS JSON", "AS JSON is not supported"),
    ]:
        lake.refuses(statement, error)
    assert (lake.ids(), lake.stored().version, lake.catalog.list_tables("ns")) == ([1, 3, 4], 4, ["t"])


def key_columns(dataset: lance.LanceDataset) -> list[str]:
    return [field.name() for field in dataset.lance_schema.unenforced_primary_key()]


def test_primary_key_is_kept_and_is_the_key_of_upserts(lake: Lake) -> None:
    lake.sql("CREATE TABLE lake.ns.k (a INT, b STRING COMMENT 'second', v INT, PRIMARY KEY (B, a))")
    lake.sql("INSERT INTO lake.ns.k VALUES (1, 'x', 10), (2, 'x', 20)")

    def stored() -> lance.LanceDataset:
        return lance.dataset(lake.catalog.describe_table("ns.k").uri)

    assert key_columns(stored()) == ["b", "a"]
    lake.sql("CREATE OR REPLACE TEMP VIEW changes AS SELECT 2 a, 'x' b, 21 v UNION ALL SELECT 1, 'y', 30")
    assert lake.sql("CALL lake.system.upsert_from('ns.k', source => 'changes')")[0][2:] == (1, 1)
    merge = stored().merge_insert().when_matched_update_all().when_not_matched_insert_all()  # by the stored key
    counts = merge.execute(pa.table({"a": pa.array([1], pa.int32()), "b": ["y"], "v": pa.array([31], pa.int32())}))
    assert (counts["num_updated_rows"], counts["num_inserted_rows"]) == (1, 0)
    lake.sql("INSERT OVERWRITE lake.ns.k SELECT * FROM lake.ns.k WHERE a = 1")
    lake.sql("ALTER TABLE lake.ns.k ALTER COLUMN b COMMENT 'the second'")
    lake.sql("ALTER TABLE lake.ns.k RENAME COLUMN a TO c")
    assert (key_columns(stored()), sorted(lake.sql("SELECT * FROM lake.ns.k"))) == (
        ["b", "c"],
        [(1, "x", 10), (1, "y", 31)],
    )

    before = stored().version
    for statement, error in [
        ("ALTER TABLE lake.ns.k DROP COLUMN c", "b, c, cannot be changed"),
        ("ALTER TABLE lake.ns.k ALTER COLUMN c TYPE BIGINT", "b, c, cannot be changed"),
        ("ALTER TABLE lake.ns.k ALTER COLUMN b DROP NOT NULL", "b, c, cannot be changed"),
        ("ALTER TABLE lake.ns.k DROP CONSTRAINT primary_key", "b, c, cannot be changed"),
        ("ALTER TABLE lake.ns.k ADD CONSTRAINT other PRIMARY KEY (c)", "has the primary key b, c"),
        ("INSERT INTO lake.ns.k VALUES (NULL, 'z', 1)", "NOT_NULL_ASSERT_VIOLATION"),
    ]:
        lake.refuses(statement, error)
    assert stored().version == before

    ((again,),) = lake.sql("SHOW CREATE TABLE lake.ns.k")
    columns = stored().schema
    lake.sql("DROP TABLE lake.ns.k")
    lake.sql(again)
    assert (stored().schema.equals(columns, check_metadata=True), key_columns(stored())) == (True, ["b", "c"])
    lake.sql("CREATE TABLE lake.ns.later (id INT NOT NULL)")
    lake.sql("ALTER TABLE lake.ns.later ADD CONSTRAINT id PRIMARY KEY (ID)")
    assert key_columns(lance.dataset(lake.catalog.describe_table("ns.later").uri)) == ["id"]
