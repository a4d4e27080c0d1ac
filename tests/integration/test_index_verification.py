"""`verify --indexes` finds every index that answers other rows than a scan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import lancekeep
from lancekeep.entrypoints.verification import verify

KINDS = {
    "BTREE": "number", "BITMAP": "number", "ZONEMAP": "number", "BLOOMFILTER": "number", "LABEL_LIST": "tags",
    "INVERTED": "words", "IVF_FLAT": "vector",
}  # fmt: skip


def table(numbers: dict[int, int]) -> pa.Table:
    vectors = np.random.default_rng(0).random((1000, 4), np.float32)
    return pa.table(
        {
            "id": pa.array(numbers.keys(), pa.int64()),
            "number": pa.array(numbers.values(), pa.int64()),
            "words": [f"word{number} the running text" for number in numbers.values()],
            "tags": [[f"t{number}", "all"] for number in numbers.values()],
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


def problems(tmp_path: Path) -> list[str]:
    catalog = lancekeep.connect(str(tmp_path / "lake"))
    return [f"{each.object}: {each.reason}" for each in verify(catalog, ["t"], indexes=True).problems]


@pytest.mark.parametrize("stable", [False, True])
def test_right_indexes_have_no_problems(tmp_path: Path, stable: bool) -> None:
    uri, dataset = created(tmp_path, stable=stable)
    for kind in KINDS:
        index(dataset, kind)
    index(dataset, "BTREE", "float")
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


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_an_index_lost_are_found(tmp_path: Path, kind: str) -> None:
    """The index claims to cover fragments whose rows it does not have, as after a merge that drops entries."""
    uri, dataset = created(tmp_path)
    options: dict[str, Any] = {}
    if kind == "IVF_FLAT":
        centroids = pa.FixedSizeListArray.from_arrays(pa.array([0.2] * 4 + [0.8] * 4, pa.float32()), 4)
        options = {"ivf_centroids": centroids, "num_partitions": 2}
    part = dataset.create_index_uncommitted(KINDS[kind], kind, name="i", fragment_ids=[0, 1], **options)
    part.fragment_ids = {0, 1, 2, 3}
    operation = lance.LanceOperation.CreateIndex(new_indices=[part], removed_indices=[])
    lance.LanceDataset.commit(uri, operation, read_version=dataset.version)
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
