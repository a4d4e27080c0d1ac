"""The history of a table reads only the manifests that it describes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from faults import Faulty

import lancekeep
from lancekeep.application.catalog import directory_of

VERSIONS = 12


@pytest.fixture(params=["storage-managed", "sqlite", "conditional-put"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> lancekeep.Catalog:
    stores = {"sqlite": f"sqlite://{tmp_path}/commits.db", "conditional-put": "conditional-put://"}
    catalog = lancekeep.connect(str(tmp_path / "lake"), commit_store=stores.get(request.param))
    for number in range(VERSIONS):
        catalog.write("t", pa.table({"a": [number]}), "append" if number else "create")
    return catalog


def manifests(catalog: lancekeep.Catalog) -> list[Path]:
    """Return the manifests, the latest first."""
    return sorted(Path(catalog.root_uri.removeprefix("file://"), "t.lance", "_versions").glob("*.manifest"))


def test_history_reads_as_many_manifests_as_it_describes(catalog: lancekeep.Catalog) -> None:
    for old in manifests(catalog)[3:]:
        old.write_bytes(b"no manifest")
    commits = directory_of(catalog).commits
    objects = Faulty(commits.objects)
    commits.objects = objects
    found = [(entry.version, entry.operation, entry.rows) for entry in catalog.versions.history("t", limit=3)]
    assert found == [(version, "Append", version) for version in range(VERSIONS, VERSIONS - 3, -1)]
    assert objects.counts["get"] == 3
    with pytest.raises(lancekeep.Damaged, match="manifest"):
        catalog.versions.history("t")


def test_history_agrees_with_the_engine(catalog: lancekeep.Catalog) -> None:
    dataset = catalog.open("t")
    dataset.delete("a < 3")
    dataset.update({"a": "a + 1"}, where="a = 5")
    dataset.create_scalar_index("a", "BTREE")
    engine = lance.dataset(catalog.describe_table("t").uri)
    versions: list[Any] = engine.versions()
    described = {
        version["version"]: (version["timestamp"].timestamp(), int(version["metadata"]["total_rows"]))
        for version in versions
    }
    history = catalog.versions.history("t")
    assert {entry.version: (entry.timestamp.timestamp(), entry.rows) for entry in history} == described
    for entry in history:
        transaction = engine.read_transaction(entry.version)
        assert transaction is not None
        assert entry.operation == type(transaction.operation).__name__
