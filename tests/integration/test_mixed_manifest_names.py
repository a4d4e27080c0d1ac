"""Tables whose migration of manifest names, by pylance, has stopped half-way."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lancekeep
from lancekeep.domain.errors import LancekeepError
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.operations import Transaction, UpdateConfig

ROW = pa.table({"i": pa.array([1], pa.int64())})


@pytest.mark.parametrize("commit_store", [None, "conditional-put://"])
@pytest.mark.parametrize(
    "change",
    [
        lambda catalog: catalog.write("t", ROW, "append"),
        lambda catalog: catalog.write("t", ROW, "overwrite"),
        lambda catalog: catalog.data.insert(ObjectId.of("t"), ROW.to_reader()),
        lambda catalog: catalog.commit("t", Transaction(1, "u", operation=UpdateConfig())),
    ],
    ids=["append", "overwrite", "insert", "commit"],
)
def test_changes_after_a_stale_hint_are_refused(
    tmp_path: Path, change: Callable[[lancekeep.Catalog], object], commit_store: str | None
) -> None:
    with lancekeep.connect(str(tmp_path), commit_store=commit_store) as catalog:
        catalog.write("other", ROW)  # records the commit store
    table = tmp_path / "t.lance"
    for version in range(5):
        lance.write_dataset(ROW, table, mode="append" if version else "create", enable_v2_manifest_paths=False)
    versions = table / "_versions"
    for version in range(1, 4):
        (versions / f"{version}.manifest").rename(versions / f"{2**64 - 1 - version}.manifest")
    (versions / "latest_version_hint.json").write_text(json.dumps({"version": 3}))
    before = sorted(file.name for file in versions.iterdir())
    reason = r"mixes the V1 and V2 manifest naming schemes|multiple manifest naming schemes"
    with (
        lancekeep.connect(str(tmp_path), commit_store=commit_store) as catalog,
        pytest.raises(LancekeepError, match=reason),
    ):
        change(catalog)
    assert sorted(file.name for file in versions.iterdir()) == before
