"""New data files of some columns of a fragment, read by plain pylance."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.file import LanceFileWriter
from lance.fragment import DataFile

from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.identifiers import ObjectId
from lancekeep.entrypoints.spark.projection import field_ids
from lancekeep.entrypoints.spark.reading import Snapshot, identity
from lancekeep.entrypoints.spark.sql import column_files
from lancekeep.entrypoints.spark.sql.changed_rows import Layout, write_changes
from lancekeep.entrypoints.spark.sql.column_files import rewrite
from lancekeep.entrypoints.spark.sql.row_level import FragmentChanges, added_fragments, addressed
from lancekeep.ports.table_engine import WriteMode, WritePlan

ROWS = 40
STRUCT = pa.struct([("a", pa.int64()), ("inner", pa.struct([("b", pa.string()), ("c", pa.list_(pa.int32()))]))])
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("tags", pa.list_(pa.string())),
        ("st", STRUCT),
        pa.field("score", pa.float64(), nullable=False),
        ("vector", pa.list_(pa.float32(), 4)),
    ]
)
ASSIGNED = pa.schema([SCHEMA.field(name) for name in ("tags", "st", "score")])


def row(number: int, generation: int = 0, empty: list[str] | None = None) -> dict[str, object]:
    mark = number + 1000 * generation
    return {
        "id": number,
        "tags": empty if mark % 5 == 0 else [f"t{mark}"] * (mark % 3),
        "st": {"a": mark, "inner": {"b": f"b{mark}", "c": [mark, number]}},
        "score": mark / 2,
        "vector": [float(number)] * 4,
    }


def plan_of(uri: str) -> WritePlan:
    return WritePlan(ObjectId.of("t"), uri, {}, SCHEMA, WriteMode.APPEND, 1, declared=False)


@pytest.mark.parametrize("version", ["legacy", "2.0", "2.1", "2.2"])
@pytest.mark.parametrize("seed", range(6))
def test_columns_of_changed_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, seed: int) -> None:
    monkeypatch.setattr(column_files, "batch_rows", lambda *_: 7)
    chance, uri = random.Random(seed), str(tmp_path / "t.lance")
    empty: list[str] | None = [] if version == "legacy" else None  # such files have no null lists
    rows = {number: row(number, 0, empty) for number in range(ROWS)}
    options: dict[str, Any] = {"data_storage_version": version, "enable_stable_row_ids": version != "legacy"}
    dataset = lance.write_dataset(pa.Table.from_pylist(list(rows.values()), SCHEMA), uri, **options)
    for generation in (1, 2):
        gone = chance.sample(sorted(rows), chance.choice([0, 3, 12])) + ([min(rows), max(rows)] if seed % 2 else [])
        dataset.delete(f"id IN ({', '.join(map(str, [*gone, -1]))})")
        rows = {number: each for number, each in rows.items() if number not in gone}
        dataset = lance.dataset(uri)
        changed = chance.sample(sorted(rows), len(rows) if seed == 0 else chance.randint(1, len(rows) - 1))
        rows |= {number: row(number, generation, empty) for number in changed}
        values = pa.RecordBatch.from_pylist([rows[number] for number in changed], ASSIGNED)
        [fragment] = dataset.get_fragments()
        written = rewrite(dataset, fragment, np.array(changed, np.uint64), values, plan_of(uri))
        changes = FragmentChanges(dataset.version, [], [], [], [written], field_ids(dataset, ASSIGNED.names))
        dataset = lance.LanceDataset.commit(dataset, lance.Transaction(dataset.version, changes.operation()))
        dataset.validate()
        assert lance.dataset(uri).to_table().to_pylist() == [rows[number] for number in sorted(rows)]
        if dataset.has_stable_row_ids:
            last = dataset.to_table(columns=["id", "_row_last_updated_at_version"], filter=f"id IN {(*changed, -1)}")
            assert set(last["_row_last_updated_at_version"].to_pylist()) == {dataset.version}
    assert len(dataset.get_fragments()[0].metadata.files) == 2, "the second update replaces the file of the first"


def test_two_values_of_one_row_are_refused(tmp_path: Path) -> None:
    uri = str(tmp_path / "t.lance")
    dataset = lance.write_dataset(pa.Table.from_pylist([row(0), row(1)], SCHEMA), uri)
    values = pa.RecordBatch.from_pylist([row(1, 1), row(1, 2)], ASSIGNED)
    files = sorted(tmp_path.rglob("*.lance"))
    with pytest.raises(InvalidInput, match="a row of t would be changed twice"):
        rewrite(dataset, dataset.get_fragments()[0], np.array([1, 1], np.uint64), values, plan_of(uri))
    assert sorted(tmp_path.rglob("*.lance")) == files


def test_an_update_is_read_before_an_older_overlay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit must say that columns were rewritten, or the engine reads the overlay before the new data file."""
    monkeypatch.setenv("LANCE_ENABLE_UNSTABLE_DATA_OVERLAY_FILES", "1")
    uri, schema = str(tmp_path / "t.lance"), pa.schema([("id", pa.int64()), ("score", pa.int64()), ("v", pa.string())])
    rows = [{"id": number, "score": number, "v": "long" * 50} for number in range(4)]
    dataset = with_overlay(lance.write_dataset(pa.Table.from_pylist(rows, schema), uri), "score", {1: 100, 2: 200})
    changed = pa.record_batch({"kind": pa.array([2, 2, 2]), "score": [0, -1, -3], "address": pa.array([0, 1, 3])})
    layout = Layout((1, 2, 3), (None, 1, None), 2, unchanged=frozenset({0, 2}), gathered=True)
    plan = WritePlan(ObjectId.of("t"), uri, {}, schema, WriteMode.APPEND, dataset.version, declared=False)
    written = write_changes(iter([changed]), plan, Snapshot(uri, dataset.version, identity(dataset), {}), layout)
    changes = FragmentChanges(
        dataset.version,
        added_fragments(written.added),
        *addressed(dataset, written.moved),
        written.rewritten,
        field_ids(dataset, ["score"]),
    )
    lance.LanceDataset.commit(dataset, lance.Transaction(dataset.version, changes.operation()))
    found = lance.dataset(uri).to_table().sort_by("id")["score"].to_pylist()
    assert found == [0, -1, 200, -3]


def with_overlay(dataset: lance.LanceDataset, column: str, values: dict[int, int]) -> lance.LanceDataset:
    """Commit an overlay file of a column of the first fragment."""
    [fragment] = dataset.get_fragments()
    path = Path(dataset.uri) / "data" / "overlay.lance"
    with LanceFileWriter(str(path), pa.schema([dataset.schema.field(column)]), version="2.2") as writer:
        writer.write_batch(pa.table({column: list(values.values())}))
    [ids] = [[field.id()] for field in dataset.lance_schema.fields() if field.name() == column]
    file = DataFile(path.name, ids, [0], 2, 2, path.stat().st_size)
    operations = lance.LanceOperation
    group = operations.DataOverlayGroup(fragment.fragment_id, [operations.DataOverlayFile(file, sorted(values))])
    return lance.LanceDataset.commit(dataset, operations.DataOverlay([group]), read_version=dataset.version)
