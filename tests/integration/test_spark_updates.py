"""UPDATE and MERGE of some columns: exact rows, row ids, indexes and changes; the other columns are not rewritten."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from lancekeep.entrypoints.spark.sql import row_level
from lancekeep.entrypoints.spark.sql.branches import WAP_BRANCH

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),  # the JVM is forked, and executes at once
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
]

Row = dict[str, Any]
FRAGMENT, FRAGMENTS = 20, 3
TOTAL = FRAGMENT * FRAGMENTS
LENGTH = 16


def row(number: int) -> Row:
    return {
        "id": number,
        "key": number * 7 % 31,
        "score": number / 2,
        "text": f"text {number}",
        "st": {"a": number, "b": None if number % 3 else f"b{number}"},
        "tags": [f"t{number}", "all"],
        "embedding": [float(number)] * LENGTH,
    }


SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("key", pa.int64()),
        ("score", pa.float64()),
        ("text", pa.string()),
        ("st", pa.struct([("a", pa.int64()), ("b", pa.string())])),
        ("tags", pa.list_(pa.string())),
        ("embedding", pa.list_(pa.float32(), LENGTH)),
    ]
)


@attrs.define
class Lake:
    """A catalog with the table ``lake.t``, and a model of its rows by id."""

    spark: SparkSession
    catalog: lancekeep.Catalog
    rows: dict[int, Row]
    stable: bool

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        return [tuple(found) for found in self.spark.sql(statement).collect()]

    def stored(self) -> Any:
        return lance.dataset(self.catalog.describe_table("t").uri)

    def check(self) -> None:
        """Compare the rows, the answers of the indexes and the row ids, all read by plain pylance."""
        stored = self.stored()
        found = stored.to_table(columns=list(SCHEMA.names)).to_pylist()
        assert len(found) == len(self.rows)
        assert {each["id"]: each for each in found} == self.rows
        assert stored.count_rows() == len(self.rows)
        for score in {each["score"] for each in self.rows.values()} - {None} | {0.5, 3.0, 11.0}:
            matching = stored.to_table(columns=["id"], filter=f"score = {score}")["id"].to_pylist()
            assert sorted(matching) == [number for number, each in sorted(self.rows.items()) if each["score"] == score]
        for tag in ("t3", "t8", "new"):
            tagged = stored.to_table(columns=["id"], filter=f"array_has_any(tags, ['{tag}'])")["id"].to_pylist()
            expected = [number for number, each in sorted(self.rows.items()) if tag in (each["tags"] or [])]
            assert sorted(tagged) == expected
        query = {"column": "embedding", "q": [11.2] * LENGTH, "k": 1, "nprobes": 2}
        [nearest] = stored.to_table(columns=["id"], nearest=query)["id"].to_pylist()
        distances = {number: abs(each["embedding"][0] - 11.2) for number, each in self.rows.items()}
        assert distances[nearest] == min(distances.values())

    def apply(self, statement: str, change: Callable[[Row], Row | None], added: list[Row] | None = None) -> None:
        """Run a statement, and check the rows, row ids and changes that follow from the model."""
        before, version = self.numbers(), self.stored().version
        old = self.rows
        self.rows = {number: new for number, each in old.items() if (new := change(each)) is not None}
        self.rows |= {each["id"]: each for each in added or []}
        self.sql(statement)
        self.check()
        assert self.stored().version == version + 1
        if self.stable:
            self.check_changes(old, before)

    def numbers(self) -> dict[int, Row]:
        names = ["_rowid", "_row_created_at_version", "_row_last_updated_at_version"] if self.stable else ["_rowid"]
        return {each["id"]: each for each in self.stored().to_table(columns=["id", *names]).to_pylist()}

    def check_changes(self, old: dict[int, Row], before: dict[int, Row]) -> None:
        version, after = self.stored().version, self.numbers()
        found = self.sql(
            f"SELECT _change_type, id, score FROM lake.t CHANGES FROM VERSION {version} TO VERSION {version}"
        )
        updated = [number for number in self.rows.keys() & old.keys() if after[number] != before[number]]
        assert {number for number in self.rows.keys() & old.keys() if self.rows[number] != old[number]} <= set(updated)
        expected = [("delete", number, old[number]["score"]) for number in old.keys() - self.rows.keys()]
        expected += [("insert", number, self.rows[number]["score"]) for number in self.rows.keys() - old.keys()]
        expected += [("update_preimage", number, old[number]["score"]) for number in updated]
        expected += [("update_postimage", number, self.rows[number]["score"]) for number in updated]
        assert sorted(map(str, found)) == sorted(map(str, expected))
        for number in self.rows.keys() & old.keys():
            assert after[number]["_rowid"] == before[number]["_rowid"]
            assert after[number]["_row_created_at_version"] == before[number]["_row_created_at_version"]
            last = version if number in updated else before[number]["_row_last_updated_at_version"]
            assert after[number]["_row_last_updated_at_version"] == last
        for number in self.rows.keys() - old.keys():
            assert after[number]["_row_created_at_version"] == version

    def files(self, column: str) -> set[str]:
        """Return the paths of the data files that hold a column."""
        stored = self.stored()
        [number] = [field.id() for field in stored.lance_schema.fields() if field.name() == column]
        metadata = [fragment.metadata for fragment in stored.get_fragments()]
        return {file.path for fragment in metadata for file in fragment.files if number in file.fields}

    def index_coverage(self) -> dict[str, int]:
        return {index.name: index.num_rows_indexed for index in self.stored().describe_indices()}


KINDS = [(False, "2.0"), (False, "2.1"), (True, "2.1"), (True, "2.2")]


@pytest.fixture(params=KINDS, ids=[f"{'stable' if stable else 'plain'}-{version}" for stable, version in KINDS])
def lake(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Lake]:
    """A table of three fragments with deleted rows and indexes."""
    stable, version = request.param
    store = f"sqlite://{tmp_path}/commits.db"
    with lancekeep.spark.install(spark, "lake", str(tmp_path / "lake"), commit_store=store) as catalog:
        catalog.create_namespace("ns")  # the catalog exists before the table
        rows = {number: row(number) for number in range(TOTAL)}
        place = tmp_path / "lake" / "t.lance"
        table = pa.Table.from_pylist(list(rows.values()), SCHEMA)
        dataset = lance.write_dataset(
            table, place, max_rows_per_file=FRAGMENT, data_storage_version=version, enable_stable_row_ids=stable
        )
        dataset.create_index("embedding", "IVF_FLAT", num_partitions=2)
        dataset.delete("id IN (2, 25, 26)")
        for number in (2, 25, 26):
            del rows[number]
        catalog.register_table("t", "t.lance")
        lake = Lake(spark, catalog, rows, stable)
        lake.check()
        yield lake


def changed(when: Callable[[Row], bool], change: Callable[[Row], Row]) -> Callable[[Row], Row | None]:
    return lambda each: each | change(each) if when(each) else each


def every(_: Row) -> bool:
    return True


def test_statements_give_rows_of_the_model(lake: Lake) -> None:
    embeddings = lake.files("embedding")
    covered = lake.index_coverage()["embedding_idx"]
    lake.apply("UPDATE lake.t SET score = score + 1", changed(every, lambda each: {"score": each["score"] + 1}))
    lake.apply(
        "UPDATE lake.t SET text = upper(text), score = NULL WHERE id % 3 = 0",
        changed(lambda each: each["id"] % 3 == 0, lambda each: {"text": each["text"].upper(), "score": None}),
    )
    lake.apply(
        "UPDATE lake.t SET tags = array('new', text) WHERE id % 2 = 0",
        changed(lambda each: each["id"] % 2 == 0, lambda each: {"tags": ["new", each["text"]]}),
    )
    assert lake.files("embedding") == embeddings
    assert lake.index_coverage()["embedding_idx"] == covered
    assert len(lake.stored().get_fragments()) == FRAGMENTS

    lake.apply(
        "UPDATE lake.t SET text = 'one', tags = NULL WHERE id IN (3, 41)",
        changed(lambda each: each["id"] in (3, 41), lambda _: {"text": "one", "tags": None}),
    )
    assert embeddings < lake.files("embedding")  # a row is fewer bytes than two columns of a fragment
    lake.apply(
        "UPDATE lake.t SET st.a = key, st.b = 'x' WHERE id > 30",
        changed(lambda each: each["id"] > 30, lambda each: {"st": {"a": each["key"], "b": "x"}}),
    )
    lake.apply(
        "UPDATE lake.t SET embedding = transform(embedding, x -> x + 0.5F) WHERE id < 20",
        changed(lambda each: each["id"] < 20, lambda each: {"embedding": [x + 0.5 for x in each["embedding"]]}),
    )
    lake.apply(
        "UPDATE lake.t SET score = 3, key = key + 1 WHERE id IN (SELECT id + 1 FROM lake.t WHERE id % 4 = 0)",
        changed(
            lambda each: each["id"] % 4 == 1 and each["id"] - 1 in lake.rows,
            lambda each: {"score": 3.0, "key": each["key"] + 1},
        ),
    )


@pytest.mark.parametrize("lake", [(True, "2.1"), (False, "2.1")], indirect=True, ids=["stable", "plain"])
def test_updates_of_indexed_columns_leave_no_entries_of_old_values(lake: Lake) -> None:
    dataset = lake.catalog.open("t")
    dataset.create_scalar_index("score", "BTREE")
    dataset.create_scalar_index("tags", "LABEL_LIST")
    version, embeddings = lake.stored().version, lake.files("embedding")
    statements: list[tuple[str, Callable[[Row], bool], Row]] = [
        ("UPDATE lake.t SET score = 11 WHERE id < 20", lambda each: each["id"] < 20, {"score": 11.0}),
        ("UPDATE lake.t SET tags = array('new') WHERE id > 30", lambda each: each["id"] > 30, {"tags": ["new"]}),
        ("UPDATE lake.t SET text = 'same' WHERE id > 20", lambda each: each["id"] > 20, {"text": "same"}),
    ]
    for statement, when, values in statements:
        lake.rows = {number: each | values if when(each) else each for number, each in lake.rows.items()}
        lake.sql(statement)
        lake.check()
        lake.stored().optimize.optimize_indices(num_indices_to_merge=0)
        lake.check()
    assert embeddings != lake.files("embedding")  # rows moved to new fragments, so no index has old entries
    assert lake.stored().version == version + len(statements) + 2 + lake.stable  # a label list names stable row ids


def test_merges_give_rows_of_the_model(lake: Lake) -> None:
    source = "(SELECT id, id * 100L points FROM range(0, 100, 2))"
    lake.apply(
        f"MERGE INTO lake.t t USING {source} s ON t.id = s.id WHEN MATCHED THEN UPDATE SET score = points",
        changed(lambda each: each["id"] % 2 == 0, lambda each: {"score": each["id"] * 100.0}),
    )
    lake.apply(
        f"MERGE INTO lake.t t USING {source} s ON t.id = s.id WHEN MATCHED AND t.key > 20 THEN UPDATE SET text = 'x' "
        "WHEN MATCHED AND t.key < 10 THEN DELETE WHEN MATCHED THEN UPDATE SET key = key + 1 "
        "WHEN NOT MATCHED BY SOURCE AND t.id > 50 THEN UPDATE SET text = 'orphan'",
        merged,
    )
    values = f"{TOTAL} + s.id, 1, 2.5, 'added', named_struct('a', 1, 'b', 'x'), array(), array_repeat(1F, {LENGTH})"
    new = [
        row(TOTAL + number)
        | {
            "key": 1,
            "score": 2.5,
            "text": "added",
            "st": {"a": 1, "b": "x"},
            "tags": [],
            "embedding": [1.0] * LENGTH,
        }
        for number in range(100)
        if number % 2 == 0 and number not in lake.rows
    ]
    lake.apply(
        f"MERGE INTO lake.t t USING {source} s ON t.id = s.id WHEN MATCHED THEN UPDATE SET score = NULL "
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(SCHEMA.names)}) VALUES ({values})",
        changed(lambda each: each["id"] % 2 == 0, lambda _: {"score": None}),
        new,
    )


def merged(each: Row) -> Row | None:
    if each["id"] % 2:
        return each | {"text": "orphan"} if each["id"] > 50 else each
    if each["key"] > 20:
        return each | {"text": "x"}
    return None if each["key"] < 10 else each | {"key": each["key"] + 1}


@pytest.mark.parametrize("lake", [(True, "2.1"), (False, "2.0")], indirect=True, ids=["stable", "plain"])
def test_column_that_old_fragments_lack(lake: Lake) -> None:
    lake.sql("ALTER TABLE lake.t ADD COLUMN late BIGINT")
    lake.catalog.write("t", pa.Table.from_pylist([row(70) | {"late": 5}], lake.stored().schema), "append")
    lake.sql("UPDATE lake.t SET late = id + coalesce(late, 0) WHERE id % 2 = 0")
    found = {each["id"]: each for each in lake.stored().to_table().to_pylist()}
    assert found.keys() == {*lake.rows, 70}
    for number, each in found.items():
        late = (75 if number == 70 else number) if number % 2 == 0 else None
        assert each == row(number) | {"late": late}


@pytest.mark.parametrize("lake", [(False, "2.1")], indirect=True, ids=["plain"])
def test_plan_reads_only_needed_columns(lake: Lake) -> None:
    plan = "\n".join(found[0] for found in lake.sql("EXPLAIN UPDATE lake.t SET score = key WHERE length(text) > 3"))
    assert "columns [key, text, _rowaddr]" in plan
    merge = (
        "MERGE INTO lake.t t USING (SELECT id FROM range(5)) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET score = 1"
    )
    assert "columns [id, _rowaddr]" in "\n".join(found[0] for found in lake.sql(f"EXPLAIN {merge}"))


def compacted(lake: Lake) -> None:
    lake.catalog.open("t").optimize.compact_files()


def deleted(lake: Lake) -> None:
    lake.catalog.open("t").delete("id = 0")
    del lake.rows[0]


def updated(lake: Lake) -> None:
    lake.catalog.open("t").update({"text": "'other'"}, "id = 1")
    lake.rows[1] |= {"text": "other"}


def added_column(lake: Lake) -> None:
    lake.catalog.open("t").add_columns({"more": "id + 1"})


def appended(lake: Lake) -> None:
    lake.catalog.write("t", pa.Table.from_pylist([row(90)], SCHEMA), "append")
    lake.rows[90] = row(90)


def indexed(lake: Lake) -> None:
    lake.catalog.open("t").create_scalar_index("score", "BTREE", replace=True)


@pytest.mark.parametrize("lake", [(True, "2.1")], indirect=True, ids=["stable"])
@pytest.mark.parametrize(
    ("other", "passes"),
    [(compacted, False), (deleted, False), (updated, False), (added_column, False), (appended, True), (indexed, True)],
)
def test_commit_of_another_writer_is_kept(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, other: Callable[[Lake], None], passes: bool
) -> None:
    commit = row_level.commit_changes

    def late(*args: Any, **named: Any) -> None:
        assert args[1].rewritten
        other(lake)
        commit(*args, **named)

    monkeypatch.setattr(row_level, "commit_changes", late)
    if passes:
        before = set(lake.rows)
        lake.sql("UPDATE lake.t SET score = 11")
        lake.rows = {number: each | ({"score": 11.0} if number in before else {}) for number, each in lake.rows.items()}
    else:
        with pytest.raises(PySparkException, match="nothing"):
            lake.sql("UPDATE lake.t SET score = 11")
    lake.check()


@pytest.mark.parametrize("lake", [(True, "2.1"), (False, "2.1")], indirect=True, ids=["stable", "plain"])
def test_first_update_creates_the_branch(lake: Lake) -> None:
    for number, statement in enumerate(["UPDATE lake.t SET score = 4", "UPDATE lake.t SET score = 4 WHERE id = 7"]):
        lake.spark.conf.set(WAP_BRANCH, f"audit{number}")
        try:
            lake.sql(statement)
            found = dict(lake.sql("SELECT id, score FROM lake.t"))
        finally:
            lake.spark.conf.unset(WAP_BRANCH)
        assert found == {i: 4.0 if number == 0 or i == 7 else each["score"] for i, each in lake.rows.items()}
        lake.check()
        branch = lake.catalog.open("t", branch=f"audit{number}").to_table(columns=["id", "score", "text"])
        assert {each["id"]: each["score"] for each in branch.to_pylist()} == found
