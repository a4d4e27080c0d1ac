"""Compaction keeps every row of every kind of table, beside writers that never pause."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any, cast

import lance
import pyarrow as pa
import pytest
from lance.optimize import RewriteResult
from rest_server import serving

import lancekeep
from lancekeep.application.catalog import directory_of
from lancekeep.application.rows.compactions import Compactions
from lancekeep.application.rows.versions import Versions
from lancekeep.domain.appends import REBASED
from lancekeep.domain.identifiers import ObjectId

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("vector", pa.list_(pa.float32(), 4)),
        ("st", pa.struct([("x", pa.int32()), ("tags", pa.list_(pa.string()))])),
        pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"}),
    ]
)
STORES = {"storage-managed": "", "sqlite": "sqlite://{}/commits.db", "files": "file://{}/commits?fsync=false"}


def rows(first: int, number: int) -> pa.Table:
    found = [
        {
            "id": each,
            "vector": [float(each)] * 4,
            "st": {"x": each, "tags": [f"t{each}"] * (each % 3)},
            "blob": b"b" * each,
        }
        for each in range(first, first + number)
    ]
    return pa.Table.from_pylist(found, SCHEMA)


def ids(uri: str) -> list[int]:
    """Return the ids that plain pylance reads, in order."""
    return sorted(lance.dataset(uri).to_table(columns=["id"])["id"].to_pylist())


def connect(tmp_path: Path, store: str = "storage-managed") -> lancekeep.Catalog:
    return lancekeep.connect(str(tmp_path / "lake"), commit_store=STORES[store].format(tmp_path) or None)


def of_four_fragments(catalog: lancekeep.Catalog, columns: Sequence[str] = SCHEMA.names) -> str:
    """Write a table, and return its URI."""
    for number in range(4):
        catalog.write("t", rows(10 * number, 10).select(columns), "append" if number else "create")
    return str(catalog.open("t").uri)


# -- rows -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deleted", ["", "id % 3 = 1"], ids=["whole", "deleted rows"])
@pytest.mark.parametrize(
    ("version", "stable"),
    [("legacy", False), ("2.0", False), ("2.0", True), ("2.1", False), ("2.1", True), ("2.2", False), ("2.2", True)],
)
def test_compaction_keeps_the_rows_of_any_table(tmp_path: Path, version: str, stable: bool, deleted: str) -> None:
    names = [name for name in SCHEMA.names if version != "legacy" or name in ("id", "vector")]
    uri, catalog = str(tmp_path / "lake/t.lance"), connect(tmp_path)
    options: dict[str, Any] = {"data_storage_version": version, "enable_stable_row_ids": stable}
    for number in range(4):
        mode: Any = "append" if number else "create"
        lance.write_dataset(rows(10 * number, 10).select(names), uri, mode=mode, **options)
    if deleted:
        lance.dataset(uri).delete(deleted)
    before = lance.dataset(uri)
    columns = [name for name in names if name != "blob"]
    expected = before.to_table(columns, with_row_id=stable).sort_by("id")
    committed = catalog.upkeep.compact("t")
    after = lance.dataset(uri)
    after.validate()
    assert committed is not None
    assert committed.version == after.version == before.version + 1, "no version before it reserves ids"
    assert len(after.get_fragments()) == 1
    assert after.to_table(columns, with_row_id=stable).sort_by("id") == expected
    if "blob" in names:
        positions = range(after.count_rows())
        sizes = [len(blob.read()) for blob in after.take_blobs("blob", indices=positions) if blob is not None]
        assert sizes == after.to_table(["id"])["id"].to_pylist()
    assert catalog.upkeep.compact("t") is None
    catalog.write("t", rows(100, 2).select(names), "append")
    assert ids(uri) == [*expected["id"].to_pylist(), 100, 101]
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()


@pytest.mark.parametrize("store", STORES)
def test_indexes_find_the_rows_after_a_compaction(tmp_path: Path, store: str) -> None:
    """The engine commits, because it has to rewrite the index."""
    catalog = connect(tmp_path, store)
    uri = of_four_fragments(catalog)
    catalog.open("t").create_scalar_index("id", "BTREE")
    catalog.write("t", rows(40, 5), "append")
    assert catalog.upkeep.compact("t", target_rows=30) is not None
    after = lance.dataset(uri)
    for number in (0, 13, 39, 44):
        assert after.to_table(filter=f"id = {number}")["id"].to_pylist() == [number]
    assert "ScalarIndexQuery" in after.scanner(filter="id = 13").explain_plan()
    assert ids(uri) == list(range(45))
    assert len(after.get_fragments()) < 5


INDEXED = pa.schema(
    [
        ("id", pa.int64()),
        ("number", pa.int64()),
        ("words", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("vector", pa.list_(pa.float32(), 4)),
    ]
)
QUESTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "BTREE": ("number", {"filter": "number = 3"}),
    "BITMAP": ("number", {"filter": "number = 3"}),
    "ZONEMAP": ("number", {"filter": "number = 3"}),
    "BLOOMFILTER": ("number", {"filter": "number = 3"}),
    "LABEL_LIST": ("tags", {"filter": "array_has_any(tags, ['t3'])"}),
    "NGRAM": ("words", {"filter": "contains(words, 'word3')"}),
    "INVERTED": ("words", {"full_text_query": "word3"}),
    "IVF_FLAT": ("vector", {"nearest": {"column": "vector", "q": [3.0] * 4, "k": 20, "nprobes": 2}}),
}
"""Questions; the rows whose ``number`` is 3 are the answer, or the first of it."""


def of_four_stable_fragments(tmp_path: Path) -> str:
    """Write a table with stable row ids, and return its URI."""
    rows = [
        {
            "id": each, "number": each % 5, "words": f"word{each % 5} text", "tags": [f"t{each % 5}"],
            "vector": [float(each % 5)] * 4,
        }
        for each in range(40)
    ]  # fmt: skip
    uri = str(tmp_path / "lake/t.lance")
    lance.write_dataset(pa.Table.from_pylist(rows, INDEXED), uri, max_rows_per_file=10, enable_stable_row_ids=True)
    return uri


def index(dataset: Any, kind: str) -> None:
    column = QUESTIONS[kind][0]
    if kind.startswith("IVF"):
        dataset.create_index(column, kind, num_partitions=2)
    else:
        dataset.create_scalar_index(column, kind)


def answer(uri: str, kind: str) -> list[int]:
    """Return the ids of the rows that plain pylance finds by the index."""
    found = lance.dataset(uri).scanner(columns=["id", "number"], **QUESTIONS[kind][1]).to_table()
    return sorted(row["id"] for row in found.to_pylist() if row["number"] == 3 or "nearest" not in QUESTIONS[kind][1])


@pytest.mark.parametrize("appended", [False, True], ids=["whole", "appended rows"])
@pytest.mark.parametrize("kind", QUESTIONS)
def test_indexes_of_stable_row_ids_find_the_rows_after_a_compaction(tmp_path: Path, kind: str, appended: bool) -> None:
    uri, catalog = of_four_stable_fragments(tmp_path), connect(tmp_path)
    index(catalog.open("t"), kind)
    catalog.open("t").delete("id = 3")
    if appended:  # neither covered nor merged with covered fragments
        for first in (40, 50):
            copied = lance.dataset(uri).to_table(filter="id >= 30 AND id < 40")
            catalog.write("t", copied.set_column(0, "id", pa.array(range(first, first + 10))), "append")
    expected = [each for each in range(60 if appended else 40) if each % 5 == 3 and each != 3]
    question = QUESTIONS[kind][1]
    assert answer(uri, kind) == expected
    committed = catalog.upkeep.compact("t")
    assert committed is not None
    lance.dataset(uri).validate()
    assert len(lance.dataset(uri).get_fragments()) == 1 + appended
    assert answer(uri, kind) == expected
    dataset = lance.dataset(uri)
    dataset.optimize.optimize_indices(num_indices_to_merge=0)
    assert answer(uri, kind) == expected
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()
    if "filter" in question:
        dataset.delete(question["filter"])
        assert ids(uri) == [each for each in range(60 if appended else 40) if each % 5 != 3]


@pytest.mark.parametrize(
    ("kind", "covered", "refusals"),
    [
        ("BITMAP", [0, 1, 2, 3], 0),
        ("BITMAP", [0, 1], 1),
        ("BTREE", [0, 1, 2, 3], 1),
        ("BTREE", [0, 1], 1),
        ("ZONEMAP", [0, 1, 2, 3], 0),
        ("ZONEMAP", [0, 1], 0),
    ],
)
def test_an_index_that_appears_after_the_plan_covers_no_other_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, covered: list[int], refusals: int
) -> None:
    uri = of_four_stable_fragments(tmp_path)
    catalog, other = connect(tmp_path), connect(tmp_path)
    commit, refused = Compactions.commit, []

    def overtaken(self: Compactions, *arguments: Any) -> Any:
        if not lance.dataset(uri).list_indices():
            dataset = other.open("t")
            part = dataset.create_index_uncommitted("number", kind, name="part", fragment_ids=covered)
            dataset.commit_existing_index_segments("part", "number", [part])
        try:
            return commit(self, *arguments)
        except lancekeep.ConcurrentModification as error:
            refused.append(error)
            raise

    monkeypatch.setattr(Compactions, "commit", overtaken)
    assert catalog.upkeep.compact("t") is not None
    assert len(refused) == refusals
    assert answer(uri, kind) == [3, 8, 13, 18, 23, 28, 33, 38]
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()


def test_tables_of_a_server_are_compacted_by_the_client(tmp_path: Path) -> None:
    root, store = str(tmp_path / "lake"), STORES["files"].format(tmp_path)
    with serving(lancekeep.DirectoryNamespace(root=root, commit_store=store)) as running:
        catalog = lancekeep.connect(running.uri)
        uri = of_four_fragments(catalog)
        assert catalog.upkeep.compact("t") is not None
    assert ids(uri) == list(range(40))
    assert len(lance.dataset(uri).get_fragments()) == 1


# -- refusals -------------------------------------------------------------------------------------------------------


def test_bad_input_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    catalog = connect(tmp_path, "sqlite")
    of_four_fragments(catalog)
    files = sorted((tmp_path / "lake/t.lance").rglob("*"))
    with pytest.raises(lancekeep.InvalidInput, match="target_rows is at least 1; found 0"):
        catalog.upkeep.compact("t", target_rows=0)
    with pytest.raises(lancekeep.TableNotFound):
        catalog.upkeep.compact("u")
    catalog.declare_table("declared")
    with pytest.raises(lancekeep.VersionNotFound):
        catalog.upkeep.compact("declared")
    assert sorted((tmp_path / "lake/t.lance").rglob("*")) == files


def result_of(catalog: lancekeep.Catalog, change: Callable[[dict[str, Any]], object]) -> Any:
    """Return the result of a rewrite after a change of its description."""
    [rewritten] = directory_of(catalog).engine.compaction.rewrite(catalog.open("t"), 1000)
    described = json.loads(rewritten.json())
    change(described)
    return cast(Any, RewriteResult).from_json(json.dumps(described))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda result: result["new_fragments"][0].update(physical_rows=39), "expected 39 rows, found 40"),
        (lambda result: result["original_fragments"][2]["files"][0].update(path="x"), "fragment 2, which is not as it"),
        (lambda result: result["original_fragments"][3].update(id=7), "fragment 7, which is not as it was read"),
        (lambda result: result["original_fragments"].pop(), "rewrites 30 rows as 40"),
        (lambda result: (result["original_fragments"].pop(), result["new_fragments"][0].update(id=3, physical_rows=30)),
         "expected 30 rows, found 40"),
    ],
)  # fmt: skip
def test_a_forged_rewrite_is_refused(tmp_path: Path, change: Callable[[dict[str, Any]], object], why: str) -> None:
    catalog = connect(tmp_path, "files")
    uri = of_four_fragments(catalog)
    with pytest.raises(lancekeep.CommitRefused, match=why):
        catalog.upkeep.commit_compaction("t", [result_of(catalog, change)])
    assert lance.dataset(uri).version == 4
    assert ids(uri) == list(range(40))


def test_a_refused_compaction_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt loses to a delete in the same fragments."""
    catalog, other = connect(tmp_path, "files"), connect(tmp_path, "files")
    uri = of_four_fragments(catalog, ["id"])
    data = tmp_path / "lake/t.lance/data"
    files = sorted(data.iterdir())
    commit, lost = Compactions.commit, count()

    def overtaken(self: Compactions, *arguments: Any) -> Any:
        other.open("t").delete(f"id = {next(lost)}")
        return commit(self, *arguments)

    monkeypatch.setattr(Compactions, "commit", overtaken)
    with pytest.raises(lancekeep.ConcurrentModification, match=r"5 compactions were refused.* delete"):
        catalog.upkeep.compact("t")
    assert sorted(data.iterdir()) == files
    assert ids(uri) == list(range(5, 40))


def test_rewrites_of_two_plans_are_refused(tmp_path: Path) -> None:
    catalog = connect(tmp_path, "files")
    of_four_fragments(catalog)
    first = directory_of(catalog).engine.compaction.rewrite(catalog.open("t"), 1000)
    catalog.write("t", rows(40, 1), "append")
    second = directory_of(catalog).engine.compaction.rewrite(catalog.open("t"), 1000)
    for rewritten in ([], [*first, *second]):
        with pytest.raises(lancekeep.InvalidInput, match=r"the tasks of one plan; found results of [02] plans"):
            catalog.upkeep.commit_compaction("t", rewritten)
    assert catalog.open("t").version == 5


# -- other writers --------------------------------------------------------------------------------------------------

OTHERS: dict[str, tuple[Callable[[lancekeep.Catalog], object], list[int]]] = {
    "append": (lambda catalog: catalog.write("t", rows(40, 3), "append"), list(range(43))),
    "delete": (lambda catalog: catalog.open("t").delete("id < 15"), list(range(15, 40))),
    "overwrite": (
        lambda catalog: [catalog.write("t", rows(n, 1), "append" if n else "overwrite") for n in (0, 1)],
        [0, 1],
    ),
    "restore": (lambda catalog: catalog.open("t", 2).restore(), list(range(20))),
    "index": (lambda catalog: catalog.open("t").create_scalar_index("id", "BTREE"), list(range(40))),
    "compaction": (lambda catalog: catalog.upkeep.compact("t"), list(range(40))),
    "recreation": (
        lambda catalog: [
            catalog.drop_table("t"),
            *(catalog.write("t", rows(n, 1), "append" if n else "create") for n in range(4)),
        ],
        list(range(4)),
    ),
}


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("change", OTHERS)
def test_another_change_during_a_compaction_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, store: str
) -> None:
    catalog, other = connect(tmp_path, store), connect(tmp_path, store)
    uri = of_four_fragments(catalog)
    act, expected = OTHERS[change]
    commit, pending = Compactions.commit, [act]

    def overtaken(self: Compactions, *arguments: Any) -> Any:
        if pending:
            pending.pop()(other)
        return commit(self, *arguments)

    monkeypatch.setattr(Compactions, "commit", overtaken)
    catalog.upkeep.compact("t")
    after = lance.dataset(uri)
    after.validate()
    assert ids(uri) == expected
    assert after.to_table(filter=f"id = {expected[-1]}").num_rows == 1
    assert len(after.get_fragments()) <= (2 if change == "append" else 1)
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()


@pytest.mark.parametrize("store", STORES)
def test_the_transaction_file_is_that_of_the_last_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    """An attempt that lost to appends took other numbers for the new fragments."""
    catalog, other = connect(tmp_path, store), connect(tmp_path, store)
    uri = of_four_fragments(catalog)
    commit, pending = Versions.commit_built, [40, 41]

    def overtaken(self: Versions, *arguments: Any, **options: Any) -> Any:
        if pending:
            other.write("t", rows(pending.pop(0), 1), "append")
        return commit(self, *arguments, **options)

    monkeypatch.setattr(Versions, "commit_built", overtaken)
    committed = catalog.upkeep.compact("t")
    assert committed is not None
    assert committed.version > 5
    assert ids(uri) == list(range(42))
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()


@pytest.mark.parametrize("store", STORES)
def test_appends_do_not_pause_for_compactions(tmp_path: Path, store: str) -> None:
    """Another process compacts three times while appends never stop."""
    catalog, other = connect(tmp_path, store), connect(tmp_path, store)
    uri = of_four_fragments(catalog, ["id"])
    appended, stop = list(range(40)), threading.Event()
    numbers = count(1000)

    def append() -> None:
        while not stop.is_set():
            number = next(numbers)
            catalog.write("t", rows(number, 1).select(["id"]), "append")
            appended.append(number)

    threads = [threading.Thread(target=append) for _ in range(4)]
    for thread in threads:
        thread.start()
    committed = 0
    try:
        while committed < 3:
            committed += other.upkeep.compact("t") is not None
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert ids(uri) == sorted(appended)
    assert directory_of(catalog).versions.lines._lines[ObjectId(("t",))].pace.met == float("-inf")


def test_appends_pause_for_a_writer_that_does_not_rebase(tmp_path: Path) -> None:
    catalog, other = connect(tmp_path), connect(tmp_path)
    of_four_fragments(catalog, ["id"])
    pace = directory_of(catalog).versions.lines._lines[ObjectId(("t",))]
    other.upkeep.compact("t")
    catalog.write("t", rows(50, 1).select(["id"]), "append")
    assert pace.pace.met == float("-inf")
    other.commit_change("t", lambda dataset: (dataset.optimize.compact_files(), dataset)[1])
    catalog.write("t", rows(51, 1).select(["id"]), "append")
    assert pace.pace.met > float("-inf")


def test_the_transaction_of_a_compaction_says_that_it_was_rebased(tmp_path: Path) -> None:
    catalog = connect(tmp_path)
    uri = of_four_fragments(catalog)
    committed = catalog.upkeep.compact("t")
    assert committed is not None
    transaction = lance.dataset(uri).read_transaction(committed.version)
    assert transaction is not None
    assert transaction.transaction_properties == dict([REBASED])
    assert isinstance(transaction.operation, lance.LanceOperation.Rewrite)
    assert [[each.id for each in group.new_fragments] for group in transaction.operation.groups] == [[4]]
    assert catalog.inspect("t")["change"]["fragments"] == {"added": 1, "removed": 4, "changed": 0}
