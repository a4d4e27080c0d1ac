"""`verify --indexes` finds every index that answers other rows than a scan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

import lancekeep
from lancekeep.entrypoints.cli import lancekeep as command
from lancekeep.entrypoints.index_verification import IndexCounts
from lancekeep.entrypoints.verification import Verification, verify

KINDS = {
    "BTREE": "number", "BITMAP": "number", "ZONEMAP": "number", "BLOOMFILTER": "number", "LABEL_LIST": "tags",
    "INVERTED": "words", "NGRAM": "words", "IVF_FLAT": "vector",
}  # fmt: skip


def table(numbers: dict[int, int]) -> pa.Table:
    vectors = np.random.default_rng(0).random((1000, 4), np.float32)
    return pa.table(
        {
            "id": pa.array(numbers.keys(), pa.int64()),
            "number": pa.array(numbers.values(), pa.int64()),
            "words": [f"word{number} the running text" for number in numbers.values()],
            "tags": [[f"t{number}", "all"] for number in numbers.values()],
            "mark": [f"]@it's{number}(BTree)" for number in numbers.values()],
            "nested": [{"number": number, "text": f"text{number}"} for number in numbers.values()],
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors[list(numbers)].ravel()), 4),
            "float": [
                None if number == 1 else float("nan") if number == 2 else number / 2 for number in numbers.values()
            ],
        }
    )


def created(tmp_path: Path, *, stable: bool = False) -> tuple[str, Any]:
    uri = str(tmp_path / "lake/t.lance")
    rows = table({each: each % 7 for each in range(80)})
    return uri, lance.write_dataset(rows, uri, max_rows_per_file=20, enable_stable_row_ids=stable)


def index(dataset: Any, kind: str, column: str | None = None) -> None:
    column = column or KINDS[kind]
    if kind.startswith("IVF"):
        dataset.create_index(column, kind, num_partitions=2)
    else:
        dataset.create_scalar_index(column, kind, name=f"{column}_{kind}")


def verified(tmp_path: Path) -> Verification:
    return verify(lancekeep.connect(str(tmp_path / "lake")), ["t"], indexes=True)


def problems(tmp_path: Path) -> list[str]:
    return [f"{each.object}: {each.reason}" for each in verified(tmp_path).problems]


@pytest.mark.parametrize("stable", [False, True])
def test_right_indexes_have_no_problems(tmp_path: Path, stable: bool) -> None:
    uri, dataset = created(tmp_path, stable=stable)
    for kind in KINDS:
        index(dataset, kind)
    for column in ("float", "nested.number"):
        index(dataset, "BTREE", column)
    dataset.delete("id IN (3, 44)")
    lance.write_dataset(table(dict.fromkeys(range(100, 120), 50)), uri, mode="append")
    lance.dataset(uri).update({"number": "99"}, "id < 5")
    assert problems(tmp_path) == []
    lance.dataset(uri).optimize.optimize_indices()
    assert problems(tmp_path) == []


@pytest.mark.parametrize("kind", ["BTREE", "BITMAP", "LABEL_LIST", "INVERTED"])
def test_entries_of_replaced_values_are_found(tmp_path: Path, kind: str) -> None:
    uri, dataset = created(tmp_path)
    index(dataset, kind)
    fragment = lance.dataset(uri).get_fragments()[0]
    rows = fragment.to_table(columns=["id"], with_row_id=True)
    new = table(dict.fromkeys(range(20), 100)).select(["number", "words", "tags"])
    changed, _ = fragment.update_columns(
        new.append_column("_rowid", rows["_rowid"]), left_on="_rowid", right_on="_rowid"
    )
    fields = [1, 2, 3, 4]
    operation = lance.LanceOperation.Update(
        updated_fragments=[changed], fields_modified=fields, update_mode="rewrite_columns"
    )
    dataset = lance.LanceDataset.commit(uri, operation, read_version=lance.dataset(uri).version)
    assert problems(tmp_path) == []
    dataset.optimize.optimize_indices(num_indices_to_merge=0)
    [problem] = problems(tmp_path)
    assert "answers have rows without the value, and lack no rows" in problem


def committed(dataset: Any, operation: Any) -> Any:
    return lance.LanceDataset.commit(dataset.uri, operation, read_version=dataset.version)


def part_of_index(dataset: Any, kind: str, column: str, fragments: list[int]) -> Any:
    options: dict[str, Any] = {}
    if kind == "IVF_FLAT":
        centroids = pa.FixedSizeListArray.from_arrays(pa.array([0.2] * 4 + [0.8] * 4, pa.float32()), 4)
        options = {"ivf_centroids": centroids, "num_partitions": 2}
    return dataset.create_index_uncommitted(column, kind, name=f"of {column}", fragment_ids=fragments, **options)


def test_stranded_and_stale_entries_are_found(tmp_path: Path) -> None:
    """A compaction strands vectors, and values become null, NaN and others in place."""
    uri, dataset = created(tmp_path)
    stranded = part_of_index(dataset, "IVF_FLAT", "vector", [0, 1, 2, 3])
    dataset.optimize.compact_files()
    stranded.fragment_ids = {4}
    dataset = lance.write_dataset(table({each: each % 7 for each in range(100, 120)}), uri, mode="append")
    columns = {"number": "BITMAP", "float": "BTREE", "nested.number": "BTREE"}
    parts = [part_of_index(dataset, kind, column, [4, 5]) for column, kind in columns.items()]
    fragment = dataset.get_fragments()[1]
    rows = fragment.to_table(columns=["id"], with_row_id=True)
    new = table(dict.fromkeys(range(20), 100)).select(["nested"])
    new = new.append_column("number", pa.nulls(20, pa.int64())).append_column("float", pa.array([float("nan")] * 20))
    changed, fields = fragment.update_columns(
        new.append_column("_rowid", rows["_rowid"]), left_on="_rowid", right_on="_rowid"
    )
    operation = lance.LanceOperation.Update(
        updated_fragments=[changed], fields_modified=fields, update_mode="rewrite_columns"
    )
    dataset = committed(dataset, operation)
    committed(dataset, lance.LanceOperation.CreateIndex(new_indices=[stranded, *parts], removed_indices=[]))
    found = dict(each.split(": ", 1) for each in problems(tmp_path))
    assert found.keys() == {f"index of {column}" for column in ("vector", *columns)}
    assert "of 64 sampled rows by their own vectors" in found.pop("index of vector")
    assert set(found.values()) == {"its answers have rows without the value, and lack rows. Drop and create it"}


def test_compared_indexes_and_values_are_counted(tmp_path: Path) -> None:
    _, dataset = created(tmp_path)
    for kind, column in (("NGRAM", "words"), ("BTREE", "number"), ("BITMAP", "number"), ("BTREE", "nested.number")):
        index(dataset, kind, column)
    index(dataset, "NGRAM", "nested.text")
    index(dataset, "BTREE", "mark")
    report = verified(tmp_path)
    [checked] = report.tables
    assert {each.name: each.values for each in checked.indexes if not each.reason} == {
        "nested.number_BTREE": 7, "mark_BTREE": 7, "number_BTREE": 7, "words_NGRAM": 17,
    }  # fmt: skip
    reasons = {each.name: each.reason for each in checked.indexes if each.reason}
    assert reasons["number_BITMAP"].startswith("the engine searches by the index number_BTREE: ")
    assert reasons["nested.text_NGRAM"].startswith("the engine does not search by it: contains(")
    assert report.index_counts == checked.index_counts == IndexCounts(4, 2, 38)
    runner = CliRunner()
    shown = runner.invoke(command, ["verify", str(tmp_path / "lake"), "--indexes"], obj=lancekeep)
    assert "t: 4 indexes compared by 38 values, 2 indexes not compared" in shown.output
    assert "t: the index number_BITMAP (Bitmap) was not compared: the engine searches by" in shown.output
    shown = runner.invoke(command, ["verify", str(tmp_path / "lake"), "--indexes", "--json"], obj=lancekeep)
    printed = json.loads(shown.output)
    assert printed["index_counts"] == {"compared": 4, "not_compared": 2, "values": 38}
    assert printed["tables"][0]["index_counts"] == printed["index_counts"]
    assert len(printed["tables"][0]["indexes"]) == 6


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_an_index_lost_are_found(tmp_path: Path, kind: str) -> None:
    """The index claims to cover fragments whose rows it does not have, as after a merge that drops entries."""
    _, dataset = created(tmp_path)
    part = part_of_index(dataset, kind, KINDS[kind], [0, 1])
    part.fragment_ids = {0, 1, 2, 3}
    committed(dataset, lance.LanceOperation.CreateIndex(new_indices=[part], removed_indices=[]))
    [problem] = problems(tmp_path)
    assert any(text in problem for text in ("and lack rows", "none of its partitions", "a search by it fails"))


def test_an_index_that_cannot_be_read_is_one_problem(tmp_path: Path) -> None:
    uri, dataset = created(tmp_path)
    index(dataset, "BTREE")
    index(lance.dataset(uri), "BITMAP", "id")
    for file in Path(uri, "_indices").rglob("page_data.lance"):
        file.write_bytes(b"x" * file.stat().st_size)
    found = problems(tmp_path)
    assert [each.split(":")[0] for each in found] == ["index number_BTREE"]
