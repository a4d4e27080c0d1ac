"""New data files of some columns of a fragment, read by plain pylance."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.identifiers import ObjectId
from lancekeep.entrypoints.spark.projection import field_ids
from lancekeep.entrypoints.spark.sql import column_files
from lancekeep.entrypoints.spark.sql.column_files import rewrite
from lancekeep.entrypoints.spark.sql.row_level import FragmentChanges
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
