"""Clustered tables: compaction sorts the rows of the fragments that it merges."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import lance.optimize
import pyarrow as pa
import pytest

import lancekeep
from lancekeep import Catalog, InvalidInput
from lancekeep.adapters.lance import sorted_rewrite
from lancekeep.application.catalog import services_of
from lancekeep.domain.manifest_entry import CLUSTER_BY
from lancekeep.ports.table_structure import NewIndex

Open = Callable[[], Catalog]


@pytest.fixture(params=["storage", "managed"])
def open_catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    store = f"sqlite:///{tmp_path}/commits.db" if request.param == "managed" else None
    return lambda: lancekeep.connect(f"{tmp_path}/lake", commit_store=store)


def rows(*numbers: int | None, text: str = "x") -> pa.Table:
    return pa.table(
        {"k": pa.array(numbers, pa.int64()), "t": [text] * len(numbers), "tags": [[str(number)] for number in numbers]}
    )


def keys(catalog: Catalog, table: str = "t", version: int | None = None) -> list[Any]:
    """Return the keys as pylance reads them, fragment by fragment."""
    uri = catalog.describe_table(table).uri
    found = lance.dataset(uri, version=version)
    for row in found.to_table().to_pylist():
        assert row["tags"] == [str(row["k"])]
    return [fragment.to_table(columns=["k"])["k"].to_pylist() for fragment in found.get_fragments()]


def clustered(catalog: Catalog, by: str = "k", **more: str) -> None:
    catalog.write("t", rows(5, 3), properties={CLUSTER_BY: by, **more})
    catalog.write("t", rows(4, None, 1), "append")


def test_merged_fragments_are_sorted(open_catalog: Open) -> None:
    catalog = open_catalog()
    clustered(catalog)
    catalog.data.delete("t", "k = 3")
    before = open_catalog().open("t").version
    catalog.upkeep.compact("t")
    assert keys(catalog) == [[1, 4, 5, None]]
    assert keys(catalog, version=before) == [[5], [4, None, 1]]
    assert catalog.upkeep.compact("t") is None
    catalog.write("t", rows(0, 2), "append")
    catalog.write("t", rows(9), "append")
    catalog.upkeep.compact("t", target_rows=4)
    assert keys(catalog) == [[1, 4, 5, None], [0, 2, 9]]  # the first fragment is not small
    catalog.upkeep.compact("t")
    assert keys(catalog) == [[0, 1, 2, 4, 5, 9, None]]
    assert not catalog.upkeep.fsck(deep=True).findings


def test_order_has_several_columns_and_columns_that_exist(open_catalog: Open) -> None:
    catalog = open_catalog()
    catalog.write("t", rows(2, 1, text="b"), properties={CLUSTER_BY: "gone, t, k"})
    catalog.write("t", rows(4, 3, text="a"), "append")
    catalog.upkeep.compact("t")
    assert keys(catalog) == [[3, 4, 1, 2]]
    catalog.alter_table("t", {CLUSTER_BY: "tags"})
    catalog.write("t", rows(0), "append")
    catalog.upkeep.compact("t")
    assert keys(catalog) == [[3, 4, 1, 2, 0]]


def test_task_with_many_bytes_has_several_sorted_runs(open_catalog: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = open_catalog()
    clustered(catalog)
    monkeypatch.setattr(sorted_rewrite, "SORTED_BYTES", 1)
    catalog.upkeep.compact("t", target_rows=100)
    assert keys(catalog) == [[3, 5, 1, 4, None]]
    assert catalog.upkeep.compact("t", target_rows=100) is None


def test_sorted_rows_are_written_in_small_batches(open_catalog: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = open_catalog()
    for properties in ({CLUSTER_BY: "k"}, None):
        data = rows(*range(6), text="x" * 700_000)
        catalog.write("t", data, "create" if properties else "append", properties=properties)
    write = lance.fragment.write_fragments
    found: list[pa.RecordBatch] = []

    def writing(reader: pa.RecordBatchReader, *given: Any, **named: Any) -> Any:
        found.extend(reader)
        return write(pa.RecordBatchReader.from_batches(reader.schema, found), *given, **named)

    monkeypatch.setattr(lance.fragment, "write_fragments", writing)
    catalog.upkeep.compact("t")
    assert [batch.num_rows for batch in found] == [2] * 6
    assert keys(catalog) == [sorted([*range(6)] * 2)]


def test_engine_reads_little_ahead(open_catalog: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = open_catalog()
    for mode in ("create", "append"):
        texts = pa.array([os.urandom(350_000).hex() for _ in range(6)])
        catalog.write("t", rows(*range(6)).set_column(1, "t", texts), mode)
    kind: Any = lance.optimize.CompactionTask
    found: list[dict[str, Any]] = []

    class Task:
        @staticmethod
        def from_json(text: str) -> Any:
            found.append(json.loads(text)["options"])
            return kind.from_json(text)

    monkeypatch.setattr(lance.optimize, "CompactionTask", Task)
    catalog.upkeep.compact("t")
    assert [(options["batch_size"] < 6, options["io_buffer_size"]) for options in found] == [(True, 32 << 20)]
    assert keys(catalog) == [[*range(6)] * 2]


@pytest.mark.parametrize(
    ("written", "deleted", "sizes"),
    [((70, 1, 90), 0, [161]), ((99, 99, 99), 0, [149, 148]), ((350,), 49, [151, 150]), ((3, 4), 3, [1]), ((3,), 3, [])],
)
def test_no_new_fragment_is_small(open_catalog: Open, written: tuple[int, ...], deleted: int, sizes: list[int]) -> None:
    catalog = open_catalog()
    for number, count in enumerate(written):
        properties = None if number else {CLUSTER_BY: "k"}
        catalog.write("t", rows(*range(count)), "append" if number else "create", properties=properties)
    catalog.data.delete("t", f"k < {deleted}")
    catalog.upkeep.compact("t", target_rows=100)
    assert [len(found) for found in keys(catalog)] == sizes
    assert catalog.upkeep.compact("t", target_rows=100) is None


def test_rows_that_an_index_names_keep_their_order(open_catalog: Open) -> None:
    catalog = open_catalog()
    clustered(catalog)
    catalog.structure.create_index("t", NewIndex("k", "BTREE"))
    catalog.upkeep.compact("t")
    assert keys(catalog) == [[5, 3, 4, None, 1]]
    assert catalog.open("t").to_table(filter="k = 4")["k"].to_pylist() == [4]
    for number in (7, 6):
        catalog.write("t", rows(number), "append")
    catalog.upkeep.compact("t")  # the indexed fragment stays alone
    assert keys(catalog) == [[5, 3, 4, None, 1], [6, 7]]
    assert sorted(catalog.open("t").to_table(filter="k > 3")["k"].to_pylist()) == [4, 5, 6, 7]


def test_zone_map_of_sorted_rows_prunes(open_catalog: Open) -> None:
    catalog = open_catalog()
    numbers = [number * 7919 % 40_000 for number in range(40_000)]
    catalog.write("t", rows(*numbers[:20_000]), properties={CLUSTER_BY: "k"})
    catalog.write("t", rows(*numbers[20_000:]), "append")
    catalog.upkeep.compact("t")
    assert keys(catalog) == [sorted(numbers)]
    catalog.structure.create_index("t", NewIndex("k", "ZONEMAP"))
    scanner = catalog.open("t").scanner(filter="k < 100", columns=["k"])
    assert "ScalarIndexQuery" in scanner.explain_plan()
    assert scanner.to_table()["k"].to_pylist() == list(range(100))


def test_tags_clones_and_branches_keep_their_rows(open_catalog: Open) -> None:
    catalog = open_catalog()
    clustered(catalog)
    catalog.tags.create("t", "kept", 2)
    catalog.branches.create("t", "dev", None, None)
    catalog.clone("t", "copy")
    catalog.upkeep.compact("t")
    assert keys(catalog) == [[1, 3, 4, 5, None]]
    old = [5, 3, 4, None, 1]
    for dataset in (catalog.open("t", tag="kept"), catalog.open("t", branch="dev"), catalog.open("copy")):
        assert dataset.to_table(columns=["k"])["k"].to_pylist() == old
    catalog.upkeep.cleanup(0, grace=0)
    assert catalog.open("copy").to_table(columns=["k"])["k"].to_pylist() == old


@pytest.mark.parametrize("kind", ["stable", "blob", "blob in a struct"])
def test_tables_that_cannot_be_sorted_are_compacted(open_catalog: Open, kind: str) -> None:
    catalog = open_catalog()
    field = pa.field("v", pa.large_binary(), metadata={"lance-encoding:blob": "true"} if "blob" in kind else None)
    value: Any = b"v"
    if "struct" in kind:
        field, value = pa.field("v", pa.struct([field])), {"v": value}
    schema = pa.schema([("k", pa.int64()), field])
    for at, number in enumerate((5, 3)):
        properties = {CLUSTER_BY: "k", "lancekeep.stable_row_ids": str(kind == "stable").lower()}
        data = pa.table({"k": [number], "v": [value]}, schema=schema)
        catalog.write("t", data, "append" if at else "create", properties=None if at else properties)
    catalog.upkeep.compact("t")
    found = catalog.open("t")
    assert len(found.get_fragments()) == 1
    assert found.to_table(columns=["k"])["k"].to_pylist() == [5, 3]


def test_sort_beside_an_append_is_rebased(open_catalog: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = open_catalog()
    clustered(catalog)
    engine = type(services_of(catalog).engine.compaction)
    rewrite = engine.rewrite

    def late(*given: Any, **named: Any) -> Any:
        done = rewrite(*given, **named)
        monkeypatch.undo()
        open_catalog().write("t", rows(0), "append")
        return done

    monkeypatch.setattr(engine, "rewrite", late)
    catalog.upkeep.compact("t")
    assert sorted(keys(catalog), key=len) == [[0], [1, 3, 4, 5, None]]


def test_property_names_columns(open_catalog: Open) -> None:
    catalog = open_catalog()
    for value in ("", "a,,b", "a, a", "a, b, c, d, e"):
        with pytest.raises(InvalidInput, match="expected 1 to 4 different columns"):
            catalog.write("t", rows(1), properties={CLUSTER_BY: value})
    with pytest.raises(InvalidInput, match="property of tables"):
        catalog.alter_namespace("", {CLUSTER_BY: "k"})
    assert list(catalog.list_tables("")) == []
