"""Indexed answers equal the scan after values were replaced, whatever optimizes the indexes afterwards."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import lancekeep
from lancekeep.application.rows.appends import Appends
from lancekeep.application.upkeep.fsck import Kind
from lancekeep.domain.appends import REBASED
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.maintenance import MaintenancePolicy, MaintenanceRule
from lancekeep.domain.naming import NamingScheme
from lancekeep.ports.rows import MergeRule
from lancekeep.ports.table_structure import FieldMetadata, NewIndex

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("number", pa.int64()),
        ("words", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("vector", pa.list_(pa.float32(), 2)),
    ]
)
ASSIGNED = ["number", "words", "tags", "vector"]
COLUMNS = {
    "BTREE": "number",
    "BITMAP": "number",
    "ZONEMAP": "number",
    "BLOOMFILTER": "number",
    "LABEL_LIST": "tags",
    "INVERTED": "words",
    "NGRAM": "words",
    "IVF_FLAT": "vector",
}
TRUSTED = ["BTREE", "BITMAP", "LABEL_LIST", "INVERTED"]
QUESTIONS = {
    "number": ["number = 0", "number = 100"],
    "tags": ["array_has_any(tags, ['t0'])", "array_has_any(tags, ['t100'])"],
    "words": ["contains(words, 'word0')", "contains(words, 'word100')"],
}
OPTIMIZES: dict[str, dict[str, Any]] = {
    "default": {},
    "delta": {"num_indices_to_merge": 0},
    "retrain": {"retrain": True},
}
TABLE = ObjectId(("t",))


def table(numbers: dict[int, int]) -> pa.Table:
    rows = [
        {
            "id": each,
            "number": number,
            "words": f"word{number} text",
            "tags": [f"t{number}"],
            "vector": [float(number), 0.0],
        }
        for each, number in numbers.items()
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


def appended(dataset: Any) -> None:
    dataset.insert(table({100: 0}))


def compacted(dataset: Any) -> None:
    dataset.optimize.compact_files()


def of_four_fragments(path: Path, kind: str, segments: int, *, stable: bool) -> str:
    uri = str(path / "lake/t.lance")
    rows = table({each: each % 5 for each in range(40)})
    dataset = lance.write_dataset(rows, uri, max_rows_per_file=10, enable_stable_row_ids=stable)
    groups = [[0, 1, 2, 3]] if segments == 1 else [[0, 1], [2, 3]]
    dataset.commit_existing_index_segments("i", COLUMNS[kind], [built(dataset, kind, group) for group in groups])
    return uri


def built(dataset: Any, kind: str, fragments: list[int]) -> Any:
    options: dict[str, Any] = {}
    if kind == "IVF_FLAT":
        options = {"num_partitions": 1, "ivf_centroids": np.array([[1.0, 0.0]], np.float32)}
    return dataset.create_index_uncommitted(COLUMNS[kind], kind, name="i", fragment_ids=fragments, **options)


def replace_columns(dataset: Any, rows: int = 10, fields: Sequence[int] = range(1, 7)) -> Any:
    """Replace the values of rows of the first fragment in place, as column files do."""
    fragment = dataset.get_fragment(0)
    found = fragment.to_table(columns=["id"], with_row_id=True, filter=f"id < {rows}")
    new = table(dict.fromkeys(range(rows), 100)).select(ASSIGNED).append_column("_rowid", found["_rowid"])
    changed, _ = fragment.update_columns(new, left_on="_rowid", right_on="_rowid")
    operation = lance.LanceOperation.Update(
        updated_fragments=[changed], fields_modified=list(fields), update_mode="rewrite_columns"
    )
    return lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)


def replace_file(dataset: Any) -> Any:
    """Replace the data file of the first fragment."""
    new = table(dict.fromkeys(range(10), 100)).set_column(0, "id", [list(range(10))])
    [written] = lance.fragment.write_fragments(new, dataset.uri, schema=dataset.schema, mode="append")
    operation = lance.LanceOperation.DataReplacement([lance.LanceOperation.DataReplacementGroup(0, written.files[0])])
    return lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)


def by_columns(catalog: lancekeep.Catalog) -> None:
    catalog.commit_change("t", replace_columns)


def by_columns_of_some_rows(catalog: lancekeep.Catalog) -> None:
    """Replace the values of some rows in place, as a backfill with a condition does."""
    catalog.commit_change("t", partial(replace_columns, rows=7))


def by_file(catalog: lancekeep.Catalog) -> None:
    catalog.commit_change("t", replace_file)


def by_structure(catalog: lancekeep.Catalog) -> None:
    """Fill computed columns, whose new values are those of the rows below 7."""
    catalog.structure.set_field_metadata(
        TABLE, [FieldMetadata(name, {"lancekeep:computed": VALUES[name]}) for name in ASSIGNED], None
    )
    for name in ASSIGNED:
        catalog.structure.fill_column(TABLE, name, "id < 7", None)


VALUES = {
    "number": "100",
    "words": "'word100 text'",
    "tags": "['t100']",
    "vector": "arrow_cast([100.0, 0.0], 'FixedSizeList(2, Float32)')",
}


def by_update(catalog: lancekeep.Catalog) -> None:
    catalog.data.update(TABLE, VALUES, "id < 7")


def by_merge(catalog: lancekeep.Catalog) -> None:
    catalog.data.merge(TABLE, table(dict.fromkeys(range(7), 100)).to_reader(), MergeRule(["id"], update=True))


CHANGES: dict[str, Callable[[lancekeep.Catalog], None]] = {
    "columns": by_columns,
    "columns of some rows": by_columns_of_some_rows,
    "data file": by_file,
    "update": by_update,
    "merge": by_merge,
}
PAIRS = [
    *((False, change) for change in ("columns", "columns of some rows", "data file")),
    *((True, change) for change in ("columns", "update", "merge")),
]


def require_true_answers(dataset: Any, kind: str) -> None:
    """Compare the answers by the index with the rows."""
    every = dataset.to_table().to_pylist()
    for position, number in enumerate((0, 100)):
        wanted = sorted(row["id"] for row in every if row["number"] == number)
        if kind == "INVERTED":
            asked: dict[str, Any] = {"full_text_query": f"word{number}"}
        elif kind == "IVF_FLAT":
            nearest = {"column": "vector", "q": np.array([number, 0], np.float32), "k": len(wanted)}
            asked = {"nearest": nearest}
        else:
            asked = {"filter": QUESTIONS[COLUMNS[kind]][position]}
        found = dataset.scanner(columns=["id"], **asked).to_table()["id"].to_pylist() if wanted else []
        assert sorted(found) == wanted


def require_right_whatever_follows(uri: str, kind: str, optimize: str) -> None:
    """Require true answers, also after plain pylance has optimized, compacted, and deleted by the index."""
    require_true_answers(lance.dataset(uri), kind)
    lance.dataset(uri).optimize.optimize_indices(**OPTIMIZES[optimize])
    require_true_answers(lance.dataset(uri), kind)
    lance.dataset(uri).optimize.compact_files()
    require_true_answers(lance.dataset(uri), kind)
    if COLUMNS[kind] in QUESTIONS:
        left = [row["id"] for row in lance.dataset(uri).to_table().to_pylist() if row["number"] != 0]
        lance.dataset(uri).delete(QUESTIONS[COLUMNS[kind]][0])
        assert sorted(lance.dataset(uri).to_table()["id"].to_pylist()) == sorted(left)


def versions_since(uri: str, version: int) -> Iterator[str]:
    """Yield the table as each later version left it, as if the writer had died then."""
    latest = lance.dataset(uri).version
    for number in range(version + 1, latest + 1):
        copy = f"{uri.removesuffix('.lance')} at {number}.lance"
        shutil.copytree(uri, copy)
        for later in range(number + 1, latest + 1):
            Path(copy, "_versions", NamingScheme.V2.final_name(later)).unlink()
        assert lance.dataset(copy).version == number
        yield copy
        shutil.rmtree(copy)


def require_right_at_each_version(uri: str, since: int, kind: str, optimize: str = "delta") -> None:
    assert lance.dataset(uri).version > since
    for at in versions_since(uri, since):
        require_right_whatever_follows(at, kind, optimize)


@pytest.mark.parametrize(("stable", "change"), PAIRS)
@pytest.mark.parametrize("segments", [1, 2])
@pytest.mark.parametrize("kind", COLUMNS)
def test_no_version_has_entries_of_replaced_values(
    tmp_path: Path, kind: str, segments: int, stable: bool, change: str
) -> None:
    uri = of_four_fragments(tmp_path, kind, segments, stable=stable)
    before = lance.dataset(uri).version
    CHANGES[change](lancekeep.connect(str(tmp_path / "lake")))
    require_right_at_each_version(uri, before, kind)


@pytest.mark.parametrize("optimize", OPTIMIZES)
@pytest.mark.parametrize("segments", [1, 2])
@pytest.mark.parametrize("kind", TRUSTED)
def test_indexes_answer_new_values_after_every_native_optimize(
    tmp_path: Path, kind: str, segments: int, optimize: str
) -> None:
    uri = of_four_fragments(tmp_path, kind, segments, stable=False)
    before = lance.dataset(uri).version
    by_columns(lancekeep.connect(str(tmp_path / "lake")))
    require_right_at_each_version(uri, before, kind, optimize)


@pytest.mark.parametrize("kind", TRUSTED)
def test_computed_column_leaves_no_entries_of_replaced_values(tmp_path: Path, kind: str) -> None:
    uri = of_four_fragments(tmp_path, kind, 2, stable=True)
    before = lance.dataset(uri).version
    by_structure(lancekeep.connect(str(tmp_path / "lake")))
    for at in versions_since(uri, before):
        lance.dataset(at).optimize.optimize_indices(num_indices_to_merge=0)
        if lance.dataset(at).count_rows("number = 100 and array_has_any(tags, ['t100'])") == 7:
            require_true_answers(lance.dataset(at), kind)


@pytest.mark.parametrize("kind", TRUSTED)
def test_index_is_full_again_after_a_change(tmp_path: Path, kind: str) -> None:
    uri = of_four_fragments(tmp_path, kind, 2, stable=False)
    by_columns(lancekeep.connect(str(tmp_path / "lake")))
    assert lance.dataset(uri).stats.index_stats("i")["num_unindexed_rows"] == 0


def test_index_of_lists_is_full_again_after_only_the_items_were_replaced(tmp_path: Path) -> None:
    uri = of_four_fragments(tmp_path, "LABEL_LIST", 2, stable=False)
    before = lance.dataset(uri).version
    items = [4, 2]  # as pylance names the fields, without the list itself
    lancekeep.connect(str(tmp_path / "lake")).commit_change("t", partial(replace_columns, fields=items))
    assert lance.dataset(uri).stats.index_stats("i")["num_unindexed_rows"] == 0
    require_right_at_each_version(uri, before, "LABEL_LIST")


def managed(path: Path, kind: str, *, stable: bool = False) -> lancekeep.Catalog:
    """Return a catalog with a table of one segment, whose versions a commit store manages."""
    of_four_fragments(path, kind, 1, stable=stable)
    store = f"sqlite:///{path}/commits.db"
    lancekeep.connect(str(path / "lake")).upkeep.change_commit_store(store)
    return lancekeep.connect(str(path / "lake"), commit_store=store)


def move_rows(dataset: Any) -> Any:
    dataset.merge_insert("id").when_matched_update_all().execute(table(dict.fromkeys(range(7), 100)))
    return dataset


KINDS_OF_CHANGE = pytest.mark.parametrize(
    ("stable", "change"), [(False, replace_columns), (True, move_rows)], ids=["replaced", "moved"]
)


@pytest.mark.parametrize("same", [True, False], ids=["same handle", "other handle"])
@KINDS_OF_CHANGE
@pytest.mark.parametrize("kind", TRUSTED)
def test_native_handle_of_a_managed_table_leaves_no_entries_of_replaced_values(
    tmp_path: Path, kind: str, stable: bool, change: Callable[[Any], Any], same: bool
) -> None:
    catalog = managed(tmp_path, kind, stable=stable)
    changed = change(catalog.open("t"))
    require_true_answers(catalog.open("t"), kind)
    writer = changed if same else catalog.open("t")
    assert writer.read_transaction(writer.version) is not None
    writer.optimize.optimize_indices(num_indices_to_merge=0)
    require_true_answers(catalog.open("t"), kind)
    writer.insert(table({100: 0}))
    require_true_answers(catalog.open("t"), kind)
    catalog.open("t").optimize.optimize_indices(num_indices_to_merge=0)
    require_true_answers(catalog.open("t"), kind)


@pytest.mark.parametrize("store", ["none", "sqlite"])
@KINDS_OF_CHANGE
@pytest.mark.parametrize("kind", TRUSTED)
def test_index_that_was_built_during_a_change_has_no_replaced_values(
    tmp_path: Path, kind: str, stable: bool, change: Callable[[Any], Any], store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if store == "sqlite":
        catalog = managed(tmp_path, kind, stable=stable)
    else:
        of_four_fragments(tmp_path, kind, 1, stable=stable)
        catalog = lancekeep.connect(str(tmp_path / "lake"))
    catalog.structure.drop_index(TABLE, "i", None)
    before = catalog.open("t").version

    def build_during_a_change(dataset: Any, column: str, kind: str, name: str, *, replace: bool) -> None:
        segment = built(dataset, kind, [0, 1, 2, 3])
        change(catalog.open("t"))
        dataset._ds = dataset.commit_existing_index_segments(name, column, [segment])._ds

    monkeypatch.setattr(lance.LanceDataset, "create_scalar_index", build_during_a_change)
    catalog.structure.create_index(TABLE, NewIndex(COLUMNS[kind], kind, "i"), None)
    uri = str(tmp_path / "lake/t.lance")
    assert lance.dataset(uri).stats.index_stats("i")["num_unindexed_rows"] == (7 if kind == "BTREE" and stable else 0)
    require_right_at_each_version(uri, before + 1, kind)  # the version before has no index


@KINDS_OF_CHANGE
@pytest.mark.parametrize("kind", TRUSTED)
def test_index_that_was_built_during_a_change_is_no_damage(
    tmp_path: Path, kind: str, stable: bool, change: Callable[[Any], Any]
) -> None:
    """Its version and its transaction describe it differently."""
    catalog = managed(tmp_path, kind, stable=stable)
    catalog.structure.drop_index(TABLE, "i", None)
    writer = catalog.open("t")
    segment = built(writer, kind, [0, 1, 2, 3])
    change(catalog.open("t"))
    writer.commit_existing_index_segments("i", COLUMNS[kind], [segment])
    require_true_answers(catalog.open("t"), kind)
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()


def test_index_that_was_built_during_an_append_stays_full(tmp_path: Path) -> None:
    uri = of_four_fragments(tmp_path, "BTREE", 1, stable=False)
    catalog = lancekeep.connect(str(tmp_path / "lake"))
    catalog.structure.drop_index(TABLE, "i", None)

    def act(dataset: Any) -> Any:
        segment = built(dataset, "BTREE", [0, 1, 2, 3])
        catalog.write("t", table({100: 7}), "append")
        return dataset.commit_existing_index_segments("i", "number", [segment])

    catalog.structure.add_segments(TABLE, act)
    [index] = lance.dataset(uri).describe_indices()
    assert [list(each.fragment_ids) for each in index.segments] == [[0, 1, 2, 3]]


@pytest.mark.parametrize("kind", ["BITMAP", "INVERTED"])
def test_update_that_is_rebased_on_appends_leaves_no_entries_of_moved_rows(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Appends, "are_recent", lambda *_: True)
    uri = of_four_fragments(tmp_path, kind, 1, stable=True)
    catalog = lancekeep.connect(str(tmp_path / "lake"))
    before = lance.dataset(uri).version
    by_update(catalog)
    transaction = lance.dataset(uri).read_transaction(before + 1)
    assert transaction is not None
    assert transaction.transaction_properties == dict([REBASED])
    require_right_at_each_version(uri, before, kind)


@pytest.mark.parametrize("kind", ["BITMAP", "INVERTED"])
def test_change_of_a_branch_leaves_no_entries_of_replaced_values(tmp_path: Path, kind: str) -> None:
    catalog = managed(tmp_path, kind)
    catalog.branches.create(TABLE, "b", None, None)
    replace_columns(catalog.open("t", branch="b"))
    replace_columns(catalog.open("t", branch="b"))
    catalog.open("t", branch="b").optimize.optimize_indices(num_indices_to_merge=0)
    require_true_answers(catalog.open("t", branch="b"), kind)
    require_true_answers(catalog.open("t"), kind)


@pytest.mark.parametrize("change", [appended, compacted])
@pytest.mark.parametrize("kind", TRUSTED)
def test_index_stays_full_where_values_stay(tmp_path: Path, kind: str, change: Callable[[Any], Any]) -> None:
    catalog = managed(tmp_path, kind, stable=True)
    dataset = catalog.open("t")
    dataset.delete("id % 3 = 0")
    change(dataset)
    covered = [each for index in catalog.open("t").describe_indices() for each in index.segments[0].fragment_ids]
    assert len(covered) == len(catalog.open("t").fragment_ids()) - (change is not compacted)


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable row ids"])
@pytest.mark.parametrize("kind", TRUSTED)
def test_maintenance_removes_entries_that_a_native_writer_left(tmp_path: Path, kind: str, stable: bool) -> None:
    uri = of_four_fragments(tmp_path, kind, 2, stable=stable)
    replace_columns(lance.dataset(uri))
    catalog = lancekeep.connect(str(tmp_path / "lake"))
    done = list(catalog.upkeep.maintain(MaintenancePolicy((MaintenanceRule(refresh_indexes=True),))))
    assert [(each.action, each.failed) for each in done] == [("index", False)]
    require_true_answers(lance.dataset(uri), kind)
    lance.dataset(uri).optimize.optimize_indices(num_indices_to_merge=0)
    require_true_answers(lance.dataset(uri), kind)


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
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()
    dataset.optimize.optimize_indices(num_indices_to_merge=0)
    with pytest.raises(AssertionError):
        require_true_answers(lance.dataset(uri), kind)
    [finding] = catalog.upkeep.fsck(deep=True, grace=0).findings
    assert (finding.kind, finding.object, finding.repair) == (Kind.OUTDATED_INDEX, "t", "build it again")
    [finding] = catalog.upkeep.fsck(deep=True, repair=True, grace=0).findings
    assert finding.repaired
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()
    require_true_answers(lance.dataset(uri), kind)
    lance.dataset(uri).optimize.optimize_indices(num_indices_to_merge=0)
    require_true_answers(lance.dataset(uri), kind)
