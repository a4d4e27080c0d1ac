"""Indexed answers equal the scan after values were replaced, whatever optimizes the indexes afterwards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancekeep
from lancekeep.application.upkeep.fsck import Kind
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.maintenance import MaintenancePolicy, MaintenanceRule
from lancekeep.ports.rows import MergeRule

SCHEMA = pa.schema(
    [("id", pa.int64()), ("number", pa.int64()), ("words", pa.string()), ("tags", pa.list_(pa.string()))]
)
COLUMNS = {"BTREE": "number", "BITMAP": "number", "LABEL_LIST": "tags", "INVERTED": "words"}
QUESTIONS = {
    "BTREE": ["number = 0", "number = 100"],
    "BITMAP": ["number = 0", "number = 100"],
    "LABEL_LIST": ["array_has_any(tags, ['t0'])", "array_has_any(tags, ['t100'])"],
    "INVERTED": ["word0", "word100"],
}
OPTIMIZES: dict[str, dict[str, Any]] = {
    "none": {"index_names": []},
    "default": {},
    "delta": {"num_indices_to_merge": 0},
    "retrain": {"retrain": True},
}


def table(numbers: dict[int, int]) -> pa.Table:
    rows = [
        {"id": each, "number": number, "words": f"word{number} text", "tags": [f"t{number}"]}
        for each, number in numbers.items()
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


def of_four_fragments(path: Path, kind: str, segments: int, *, stable: bool) -> str:
    uri = str(path / "lake/t.lance")
    rows = table({each: each % 5 for each in range(40)})
    dataset = lance.write_dataset(rows, uri, max_rows_per_file=10, enable_stable_row_ids=stable)
    groups = [[0, 1, 2, 3]] if segments == 1 else [[0, 1], [2, 3]]
    parts: list[Any] = [
        dataset.create_index_uncommitted(COLUMNS[kind], kind, name="i", fragment_ids=group) for group in groups
    ]
    dataset.commit_existing_index_segments("i", COLUMNS[kind], parts)
    return uri


def replace_columns(dataset: Any) -> Any:
    """Replace the values of the first fragment in place, as column files do."""
    fragment = dataset.get_fragment(0)
    rows = fragment.to_table(columns=["id"], with_row_id=True)
    new = table(dict.fromkeys(range(10), 100)).select(["number", "words", "tags"])
    changed, _ = fragment.update_columns(
        new.append_column("_rowid", rows["_rowid"]), left_on="_rowid", right_on="_rowid"
    )
    operation = lance.LanceOperation.Update(
        updated_fragments=[changed], fields_modified=list(range(1, 5)), update_mode="rewrite_columns"
    )
    return lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)


def by_columns(catalog: lancekeep.Catalog) -> None:
    catalog.commit_change("t", replace_columns)


def by_update(catalog: lancekeep.Catalog) -> None:
    values = {"number": "100", "words": "'word100 text'", "tags": "['t100']"}
    catalog.data.update(ObjectId(("t",)), values, "id < 7")


def by_merge(catalog: lancekeep.Catalog) -> None:
    catalog.data.merge(
        ObjectId(("t",)), table(dict.fromkeys(range(7), 100)).to_reader(), MergeRule(["id"], update=True)
    )


def by_partial_merge(catalog: lancekeep.Catalog) -> None:
    """pylance replaces columns in place if the source lacks others."""
    source = table(dict.fromkeys(range(7), 100)).select(["id", "number", "words", "tags"])
    catalog.open("t").add_columns({"other": "id"})
    catalog.data.merge(ObjectId(("t",)), source.to_reader(), MergeRule(["id"], update=True, insert=False))


CHANGES: dict[str, Callable[[lancekeep.Catalog], None]] = {
    "columns": by_columns,
    "update": by_update,
    "merge": by_merge,
}


def require_true_answers(uri: str, kind: str) -> None:
    dataset = lance.dataset(uri)
    every = dataset.to_table().to_pylist()
    for question, number in zip(QUESTIONS[kind], (0, 100), strict=True):
        asked: dict[str, Any] = {"full_text_query": question} if kind == "INVERTED" else {"filter": question}
        found = dataset.scanner(columns=["id"], **asked).to_table()["id"].to_pylist()
        assert sorted(found) == sorted(row["id"] for row in every if row["number"] == number)


@pytest.mark.parametrize("optimize", OPTIMIZES)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable row ids"])
@pytest.mark.parametrize("segments", [1, 2])
@pytest.mark.parametrize("kind", COLUMNS)
def test_indexes_answer_new_values_after_native_optimize(
    tmp_path: Path, kind: str, segments: int, stable: bool, change: str, optimize: str
) -> None:
    uri = of_four_fragments(tmp_path, kind, segments, stable=stable)
    CHANGES[change](lancekeep.connect(str(tmp_path / "lake")))
    require_true_answers(uri, kind)
    lance.dataset(uri).optimize.optimize_indices(**OPTIMIZES[optimize])
    require_true_answers(uri, kind)
    if kind != "INVERTED":
        dataset = lance.dataset(uri)
        left = [row["id"] for row in dataset.to_table().to_pylist() if row["number"] != 0]
        dataset.delete(QUESTIONS[kind][0])
        assert lance.dataset(uri).to_table()["id"].to_pylist() == left


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable row ids"])
@pytest.mark.parametrize("kind", COLUMNS)
def test_maintenance_removes_entries_that_a_native_writer_left(tmp_path: Path, kind: str, stable: bool) -> None:
    uri = of_four_fragments(tmp_path, kind, 2, stable=stable)
    replace_columns(lance.dataset(uri))
    catalog = lancekeep.connect(str(tmp_path / "lake"))
    done = list(catalog.maintain(MaintenancePolicy((MaintenanceRule(refresh_indexes=True),))))
    assert [(each.action, each.failed) for each in done] == [("index", False)]
    require_true_answers(uri, kind)
    lance.dataset(uri).optimize.optimize_indices(num_indices_to_merge=0)
    require_true_answers(uri, kind)


def by_moved_rows(dataset: Any) -> Any:
    rows = table(dict.fromkeys(range(7), 100))
    dataset.merge_insert("id").when_matched_update_all().execute(rows)
    return lance.dataset(dataset.uri)


@pytest.mark.parametrize("segments", [1, 2])
@pytest.mark.parametrize("change", [replace_columns, by_moved_rows])
@pytest.mark.parametrize("kind", ["BITMAP", "INVERTED"])
def test_fsck_reports_an_index_that_answers_replaced_values_and_repair_builds_it_again(
    tmp_path: Path, kind: str, change: Callable[[Any], Any], segments: int
) -> None:
    uri = of_four_fragments(tmp_path, kind, segments, stable=True)
    catalog = lancekeep.connect(str(tmp_path / "lake"))
    dataset = change(lance.dataset(uri))
    assert catalog.fsck(deep=True, grace=0).findings == ()
    dataset.optimize.optimize_indices(num_indices_to_merge=0)
    with pytest.raises(AssertionError):
        require_true_answers(uri, kind)
    [finding] = catalog.fsck(deep=True, grace=0).findings
    assert (finding.kind, finding.object, finding.repair) == (Kind.OUTDATED_INDEX, "t", "build it again")
    [finding] = catalog.fsck(deep=True, repair=True, grace=0).findings
    assert finding.repaired
    assert catalog.fsck(deep=True, grace=0).findings == ()
    require_true_answers(uri, kind)
    lance.dataset(uri).optimize.optimize_indices(num_indices_to_merge=0)
    require_true_answers(uri, kind)
