"""The snapshot of a catalog in PostgreSQL for native readers."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import lance.namespace
import lancedb
import pyarrow as pa
import pytest
from click.testing import CliRunner
from lance_namespace import DescribeTableRequest, ListNamespacesRequest, ListTablesRequest, connect

import lancekeep
from lancekeep.adapters.manifest_stores.lance_table import LanceManifestStore
from lancekeep.adapters.object_stores import open_object_store
from lancekeep.domain.errors import Refused, Unsupported
from lancekeep.entrypoints.cli import lancekeep as command

ROWS = pa.table({"a": [1, 2, 3]})
NATIVE = {"dir_listing_enabled": "false"}


def properties(root: Path) -> dict[str, str]:
    objects, key = open_object_store(str(root), {})
    return dict(LanceManifestStore(objects, f"{key}/__manifest").view().properties)


def test_native_readers_list_and_open_the_exported_tables(tmp_path: Path, postgres_url: str) -> None:
    root, url = tmp_path / "lake", f"{postgres_url}?catalog={uuid4()}"
    with lancekeep.connect(str(root), impl="postgres", uri=url, storage_options={"fsync": "false"}) as catalog:
        assert catalog.upkeep.export_manifest() == 0
        assert not (root / "__manifest").exists()
        catalog.create_namespace("n", {"owner": "ada"})
        catalog.write("n.t", ROWS)
        catalog.write("u", ROWS)
        catalog.write("gone", ROWS)
        catalog.drop_table("gone", keep=3600)
        stores = ["--manifest-store", url, "--commit-store", postgres_url]
        ran = CliRunner().invoke(command, ["export-manifest", str(root), *stores], obj=lancekeep)
        assert ran.exit_code == 0, ran.output
        assert "3 entries" in ran.output
        native = connect("dir", NATIVE | {"root": str(root)})
        assert native.list_namespaces(ListNamespacesRequest(id=[])).namespaces == ["n"]
        assert sorted(native.list_tables(ListTablesRequest(id=[])).tables) == ["u"]
        assert sorted(native.list_tables(ListTablesRequest(id=["n"])).tables) == ["t"]
        found = native.describe_table(DescribeTableRequest(id=["n", "t"])).location
        assert lance.dataset(found).to_table() == ROWS
        database = lancedb.connect_namespace("dir", NATIVE | {"root": str(root)})
        assert database.open_table("t", namespace_path=["n"]).count_rows() == 3
        shown = properties(root)
        assert shown["lancekeep.snapshot_version"] == catalog.changes.latest().partition(".")[0]
        assert shown["lancekeep.snapshot_at"] <= "9999"
        for mode in ("compatible", "v2", "v1"):
            with pytest.raises(Refused, match="in the manifest store postgresql://"):
                lancekeep.connect(str(root), mode=mode, commit_store=postgres_url)
        catalog.rename_table("u", "n.v")
        assert catalog.upkeep.export_manifest() == 3
        fresh = connect("dir", NATIVE | {"root": str(root)})
        assert sorted(fresh.list_tables(ListTablesRequest(id=["n"])).tables) == ["t", "v"]
        assert sorted(fresh.list_tables(ListTablesRequest(id=[])).tables) == []
        assert int(properties(root)["lancekeep.snapshot_version"]) > int(shown["lancekeep.snapshot_version"])
        assert catalog.upkeep.fsck(deep=True).findings == ()
    with lancekeep.connect(str(root), impl="postgres", uri=url, storage_options={"fsync": "false"}) as catalog:
        assert catalog.list_tables("n") == ["t", "v"]


@pytest.mark.parametrize("mode", ["compatible", "v1", "v2"])
def test_entries_in_the_root_need_no_snapshot(tmp_path: Path, mode: str) -> None:
    with lancekeep.connect(str(tmp_path / "lake"), mode=mode) as catalog, pytest.raises(Unsupported, match="native"):
        catalog.upkeep.export_manifest()
