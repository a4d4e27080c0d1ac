"""The snapshot of a catalog in PostgreSQL for native readers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Barrier
from uuid import uuid4

import lance.namespace
import lancedb
import pyarrow as pa
import pytest
from click.testing import CliRunner
from lance_namespace import (
    CreateNamespaceRequest,
    DescribeTableRequest,
    ListNamespacesRequest,
    ListTablesRequest,
    connect,
)

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
            with pytest.raises(Refused, match="manifest_store='postgresql://"):
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


def connected(root: Path, url: str) -> lancekeep.Catalog:
    return lancekeep.connect(str(root), impl="postgres", uri=url, storage_options={"fsync": "false"})


def test_manifest_table_of_another_program_is_not_overwritten(tmp_path: Path, postgres_url: str) -> None:
    root = tmp_path / "lake"
    with connected(root, f"{postgres_url}?catalog={uuid4()}") as catalog:
        catalog.create_namespace("n")
        native = connect("dir", NATIVE | {"root": str(root)})
        native.create_namespace(CreateNamespaceRequest(id=["foreign"]))
        with pytest.raises(Refused, match="no snapshot of postgresql://"):
            catalog.upkeep.export_manifest()
        fresh = connect("dir", NATIVE | {"root": str(root)})
        assert fresh.list_namespaces(ListNamespacesRequest(id=[])).namespaces == ["foreign"]
        (root / "__manifest").rename(tmp_path / "away")
        assert catalog.upkeep.export_manifest() == 1


def test_racing_exports_never_show_an_older_version(tmp_path: Path, postgres_url: str) -> None:
    root, url, start = tmp_path / "lake", f"{postgres_url}?catalog={uuid4()}", Barrier(4)
    with connected(root, url) as writer, ExitStack() as stack, ThreadPoolExecutor(3) as threads:
        writer.create_namespace("n")
        writer.upkeep.export_manifest()
        exporters = [stack.enter_context(connected(root, url)) for _ in range(3)]

        def export(catalog: lancekeep.Catalog) -> list[int]:
            start.wait()
            versions = []
            for _ in range(5):
                catalog.upkeep.export_manifest()
                versions.append(int(properties(root)["lancekeep.snapshot_version"]))
            return versions

        running = [threads.submit(export, catalog) for catalog in exporters]
        start.wait()
        for number in range(10):
            writer.create_namespace(f"n{number}")
        for each in running:
            assert each.result() == sorted(each.result())
        writer.upkeep.export_manifest()
        native = connect("dir", NATIVE | {"root": str(root)})
        assert sorted(native.list_namespaces(ListNamespacesRequest(id=[])).namespaces) == writer.list_namespaces()


def test_snapshot_is_no_home_between_two_moves(tmp_path: Path, postgres_url: str) -> None:
    """The catalog moves from its directory into the database and back, and is exported in between."""
    root, url = tmp_path / "lake", f"{postgres_url}?catalog={uuid4()}"
    options = {"fsync": "false"}
    with lancekeep.connect(str(root), mode="v2", storage_options=options) as old:
        old.create_namespace("n")
        lancekeep.copy_catalog(str(root), url, root=str(root), mode="v2", storage_options=options)
        with connected(root, url) as moved:
            moved.write("n.t", ROWS)
            assert moved.upkeep.export_manifest() == 2
            for use in (lambda: old.create_namespace("m"), lambda: old.list_tables("n")):
                with pytest.raises(Refused, match="moved to postgresql://"):
                    use()
            lancekeep.copy_catalog(url, str(root), root=str(root), mode="v2", storage_options=options)
            with pytest.raises(Refused):
                moved.upkeep.export_manifest()
    with lancekeep.connect(str(root), mode="v2", commit_store=postgres_url, storage_options=options) as back:
        assert back.list_tables("n") == ["t"]
        back.create_namespace("m")
    assert not any("snapshot" in name for name in properties(root))


@pytest.mark.parametrize("mode", ["compatible", "v1", "v2"])
def test_entries_in_the_root_need_no_snapshot(tmp_path: Path, mode: str) -> None:
    with lancekeep.connect(str(tmp_path / "lake"), mode=mode) as catalog, pytest.raises(Unsupported, match="native"):
        catalog.upkeep.export_manifest()
