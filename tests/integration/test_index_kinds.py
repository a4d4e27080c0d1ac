"""Tables with an index of every kind are healthy, and every operation keeps their rows and their indexed answers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.indices import IndexConfig

import lancekeep
from lancekeep.application.upkeep.fsck import Kind
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.indexes import FRAGMENT_REUSE, INDEX_KINDS, MEM_WAL

ROWS, DELETED = 600, 60
VECTORS = ("IVF_FLAT", "IVF_PQ", "IVF_SQ", "IVF_RQ", "IVF_HNSW_FLAT", "IVF_HNSW_PQ", "IVF_HNSW_SQ")
SCALARS: dict[str, tuple[Any, str | None]] = {
    "btree": ("BTREE", "btree = 117"),
    "bitmap": ("BITMAP", "bitmap = '3'"),
    "label_list": ("LABEL_LIST", "array_has_any(label_list, [2])"),
    "inverted": ("INVERTED", None),
    "ngram": ("NGRAM", "contains(ngram, 'word10')"),
    "zonemap": ("ZONEMAP", "zonemap between 100 and 130"),
    "bloomfilter": ("BLOOMFILTER", "bloomfilter = 117"),
    "minhashlsh": ("MINHASHLSH", None),
    "fm": (IndexConfig("fm", {}), "contains(fm, 'word10')"),
    "json": (IndexConfig("json", {"target_index_type": "btree", "path": "a"}), "json_get_int(json, 'a') = 117"),
    "rtree": ("RTREE", None),
}
"""The column of each kind of index, and a condition that the index answers."""


def data() -> pa.Table:
    numbers = pa.array(range(ROWS), pa.int64())
    words = [f"word{number % 11} text{number % 5}" for number in range(ROWS)]
    points = pa.StructArray.from_arrays([numbers.cast(pa.float64())] * 2, names=["x", "y"])
    vectors = np.random.default_rng(7).random((ROWS, 8), dtype=np.float32)
    columns: dict[str, Any] = {
        "id": numbers,
        "btree": numbers,
        "bitmap": [str(number % 7) for number in range(ROWS)],
        "label_list": pa.array([[number % 3, number % 5] for number in range(ROWS)], pa.list_(pa.int64())),
        "inverted": words,
        "ngram": words,
        "zonemap": numbers,
        "bloomfilter": numbers,
        "minhashlsh": words,
        "fm": words,
        "json": pa.array([f'{{"a": {number}}}' for number in range(ROWS)], pa.json_()),
    }
    columns |= dict.fromkeys(VECTORS, pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 8))
    point = pa.field("rtree", points.type, metadata={"ARROW:extension:name": "geoarrow.point"})
    return pa.table(columns).append_column(point, points)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of three fragments with an index of every kind that pylance creates, and deleted rows."""
    path = tmp_path_factory.mktemp("indexed") / "t.lance"
    dataset = lance.write_dataset(data(), path, max_rows_per_file=ROWS // 3)
    for column, (kind, _) in SCALARS.items():
        dataset.create_scalar_index(column, kind)
    for kind in VECTORS:
        dataset.create_index(kind, kind, num_partitions=2, num_sub_vectors=2 if "PQ" in kind else None)
    dataset.delete(f"id < {DELETED}")
    return path


def deferred(dataset: Any) -> None:
    for name in ("fm", *(kind for kind in VECTORS if "HNSW" in kind)):  # the engine cannot remap these later
        dataset.drop_index(f"{name}_idx")
    dataset.optimize.compact_files(defer_index_remap=True)


def logged(dataset: Any) -> None:
    dataset.initialize_mem_wal()


SYSTEM: dict[str, Callable[[Any], None]] = {FRAGMENT_REUSE: deferred, MEM_WAL: logged}


def plain(catalog: lancekeep.Catalog, name: str) -> Any:
    """Return a table as plain pylance opens it."""
    return lance.dataset(catalog.open(name).uri)


def judge(catalog: lancekeep.Catalog, name: str) -> None:
    """Check rows by plain pylance, indexed answers against scans, and that no check finds and no repair changes it."""
    dataset = plain(catalog, name)
    assert sorted(dataset.to_table(columns=["id"])["id"].to_pylist()) == list(range(DELETED, ROWS))
    for column, (_, condition) in SCALARS.items():
        if condition is not None:
            found, scanned = (
                sorted(dataset.to_table(["id"], condition, use_scalar_index=indexed)["id"].to_pylist())
                for indexed in (True, False)
            )
            assert found == scanned != [], column
    found = dataset.to_table(["id"], full_text_query="word10")["id"].to_pylist()
    assert sorted(found) == [number for number in range(DELETED, ROWS) if number % 11 == 10]
    row = dataset.take([40], columns=["id", *VECTORS])
    for kind in VECTORS:
        query = {"column": kind, "q": row[kind][0].values, "k": 1, "nprobes": 2, "refine_factor": 20}
        assert dataset.to_table(["id"], nearest=query)["id"].to_pylist() == row["id"].to_pylist(), kind
    version = dataset.version
    assert lancekeep.verify(catalog, [name], deep=True).problems == ()
    for repair in (False, True):
        report = catalog.upkeep.fsck(deep=True, repair=repair, accept_loss=repair, grace=0)
        assert [each for each in report.findings if each.kind is not Kind.STALE_RECORD] == []
    assert plain(catalog, name).version == version


def opened(tmp_path: Path, template: Path, store: str | None, mode: str) -> lancekeep.Catalog:
    urls = {"sqlite": f"sqlite://{tmp_path}/commits.db"}
    catalog = lancekeep.connect(str(tmp_path / "lake"), commit_store=urls.get(store or "", store), mode=mode)
    catalog.create_namespace("n")  # a change, so that the catalog remembers its commit store
    shutil.copytree(template, tmp_path / "lake" / "t.lance")
    if mode == "v2":
        catalog.register_table("t", "t.lance")
    return catalog


def test_every_kind_of_index_is_in_the_table_of_kinds(template: Path) -> None:
    types = {each.type_url.rpartition(".")[2] for each in lance.dataset(template).describe_indices()}
    assert types | {"FragmentReuseIndexDetails", "MemWalIndexDetails"} == {kind.details for kind in INDEX_KINDS}


@pytest.mark.parametrize(
    ("system", "store", "mode"),
    [
        (None, "sqlite", "compatible"),
        (FRAGMENT_REUSE, "conditional-put://", "v2"),
        (MEM_WAL, None, "compatible"),
    ],
)
def test_indexed_tables_are_healthy_and_can_be_cloned_moved_and_compacted(
    tmp_path: Path, template: Path, system: str | None, store: str | None, mode: str
) -> None:
    catalog = opened(tmp_path, template, store, mode)
    if system is not None:
        SYSTEM[system](plain(catalog, "t"))
    judge(catalog, "t")
    catalog.clone("t", "shallow")
    judge(catalog, "shallow")
    catalog.clone("t", "deep", deep=True)
    judge(catalog, "deep")
    catalog.upkeep.materialize("shallow")
    judge(catalog, "shallow")
    catalog.upkeep.relocate("deep", "elsewhere")
    judge(catalog, "deep")
    for name in ("shallow", "deep"):
        catalog.rename_table(name, f"renamed_{name}")
        judge(catalog, f"renamed_{name}")
    catalog.upkeep.move_fragments("t", 1 << 20, str(tmp_path / "cold"))
    judge(catalog, "t")
    catalog.data.delete(ObjectId.of("t"), f"id < {DELETED + 30}")
    for first in (DELETED, DELETED + 15):
        catalog.write("t", data().slice(first, 15), "append")
    judge(catalog, "t")
    assert catalog.upkeep.compact("t") is not None
    judge(catalog, "t")
    catalog.upkeep.cleanup(older_than=0, grace=0)
    judge(catalog, "t")


def test_large_details_of_a_deferred_compaction_are_copied_and_missed(tmp_path: Path) -> None:
    rows = 200_000
    dataset = lance.write_dataset(pa.table({"a": range(rows)}), tmp_path / "t.lance", max_rows_per_file=rows // 200)
    dataset.create_scalar_index("a", "BTREE")
    dataset.delete("a % 3 = 1")
    dataset.optimize.compact_files(defer_index_remap=True)
    [details] = tmp_path.glob("t.lance/_indices/*/details.binpb")
    catalog = lancekeep.connect(str(tmp_path))
    catalog.clone("t", "c", deep=True)
    for name in ("t", "c"):
        found = plain(catalog, name).to_table(filter=f"a in (8, 9, 10, {rows - 2})")
        assert sorted(found["a"].to_pylist()) == [8, 9, rows - 2]
    assert len(list(tmp_path.glob("c.lance/_indices/*/details.binpb"))) == 1
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()
    details.unlink()
    assert [each.kind for each in catalog.upkeep.fsck(deep=True, grace=0).findings] == [Kind.MISSING_FILE]
