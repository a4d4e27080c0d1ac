"""Tables of data files in format 0.1, whose manifest files hold the values of dictionaries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import httpx
import lance
import pyarrow as pa
import pytest
from lance.bitmap import Bitmap
from lance.dataset import Index
from rest_server import serving

import lancekeep
from lancekeep.domain.operations import Overwrite, Restore, Transaction
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace
from lancekeep.format.judge import problems
from lancekeep.format.table_version import TableVersion, parse_manifest
from lancekeep.ports.table_structure import NewIndex

ROWS = pa.table(
    {
        "id": [1, 2, 3],
        "word": pa.array(["a", "b", "a"]).dictionary_encode(),
        "number": pa.array([7, 8, 7]).dictionary_encode(),
    }
)


@pytest.fixture(params=["conditional-put://", None], ids=["managed", "storage"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[lancekeep.Catalog]:
    with lancekeep.connect(str(tmp_path / "lake"), commit_store=request.param) as catalog:
        catalog.initialize()
        for version in ("0.1", "2.1"):
            name = f"t{version[0]}"
            lance.write_dataset(
                ROWS,
                namespace_client=CatalogNamespace(catalog),
                table_id=[name],
                data_storage_version=version,
            )
            catalog.write(name, ROWS, "append")
            catalog.structure.create_index(name, NewIndex("id", "BTREE", "ids"))
        yield catalog


def commit(catalog: lancekeep.Catalog, operation: Any, read: int) -> Any:
    return catalog.commit("t0", Transaction(read_version=read, uuid="0" * 8, operation=operation))


def moved(catalog: lancekeep.Catalog) -> Any:
    return catalog.upkeep.relocate("t0", "elsewhere")


def tiered(catalog: lancekeep.Catalog) -> Any:
    return catalog.upkeep.move_fragments("t0", timedelta(0), f"{catalog.root_uri}-tier")


CHANGES: dict[str, Callable[[lancekeep.Catalog], Any]] = {
    "compaction": lambda catalog: catalog.upkeep.compact("t0"),
    "delete": lambda catalog: catalog.data.delete("t0", "id = 1"),
    "update": lambda catalog: catalog.data.update("t0", {"id": "id + 1"}, "id = 1"),
    "columns": lambda catalog: catalog.structure.drop_columns("t0", ["number"]),
    "relocation": moved,
    "tiers": tiered,
    "restore": lambda catalog: catalog.versions.restore("t0", 1),
    "commit of a restore": lambda catalog: commit(catalog, Restore(version=1), catalog.versions.describe("t0").version),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_keeps_the_values_of_dictionaries(catalog: lancekeep.Catalog, change: str) -> None:
    CHANGES[change](catalog)
    found = catalog.open("t0").to_table().to_pydict()
    assert set(found["word"]) == {"a", "b"}
    assert set(found.get("number", [7, 8])) == {7, 8}
    catalog.write("t0", ROWS.select(list(found)), "append")
    assert catalog.open("t0").to_table()["word"].to_pylist() == [*found["word"], "a", "b", "a"]
    assert not catalog.upkeep.fsck(deep=True).findings


@pytest.mark.parametrize("shallow", [True, False])
def test_a_clone_has_the_values_of_dictionaries(catalog: lancekeep.Catalog, shallow: bool) -> None:
    catalog.clone("t0", "copy", deep=not shallow)
    assert catalog.open("copy").to_table().equals(catalog.open("t0").to_table())
    catalog.data.delete("copy", "id = 1")
    assert set(catalog.open("copy").to_table()["word"].to_pylist()) == {"a", "b"}


def test_the_judge_misses_values_that_the_manifest_file_lacks(tmp_path: Path) -> None:
    lance.write_dataset(ROWS, tmp_path / "t.lance", data_storage_version="0.1")
    [path] = (tmp_path / "t.lance" / "_versions").glob("*.manifest")
    version = TableVersion.parse(path.read_bytes(), str(path))
    assert not problems(version)
    assert version.serialize() == path.read_bytes()
    for kept in (b"", version.dictionaries[:20]):
        assert "values of its dictionary" in str(problems(attrs.evolve(version, dictionaries=kept))[-1])


def test_a_restore_has_the_rows_of_its_version(catalog: lancekeep.Catalog) -> None:
    """The engine refuses to write the manifest of such a version."""
    latest = catalog.versions.describe("t0").version
    changed = catalog.versions.restore("t0", 1)
    assert changed.version == latest + 1
    assert catalog.open("t0").to_table().to_pydict() == ROWS.to_pydict()
    assert changed.transaction is not None
    assert changed.transaction in catalog.versions.manifest("t0").transaction_file
    with pytest.raises(lancekeep.VersionNotFound):
        catalog.versions.restore("t0", 99)


def test_a_restore_of_rows_that_break_a_rule_is_refused(catalog: lancekeep.Catalog) -> None:
    before = catalog.versions.describe("t0").version
    catalog.data.delete("t0", "id = 1")
    catalog.alter_table("t0", {"constraint.late": "id > 1"})
    with pytest.raises(lancekeep.InvalidInput, match="violate the constraint 'late'"):
        catalog.versions.restore("t0", 1)
    assert catalog.versions.describe("t0").version == before + 1


def test_rows_that_the_engine_refuses_are_an_error_of_input(catalog: lancekeep.Catalog) -> None:
    before = catalog.versions.describe("t0").version
    plan = catalog.begin_write("t0", ROWS.schema, "overwrite")
    attempts: tuple[Callable[[], Any], ...] = (
        lambda: catalog.write("t0", ROWS.slice(0, 0), "overwrite"),
        lambda: catalog.commit_fragments(plan, []),
    )
    for attempt in attempts:
        with pytest.raises(lancekeep.InvalidInput, match=r"format 0\.1; nothing was committed") as caught:
            attempt()
        assert "may or may not" not in str(caught.value)
    assert catalog.versions.describe("t0").version == before
    emptied = Overwrite(schema=fields_of(catalog), fragments=())
    with pytest.raises(lancekeep.Unsupported, match="written by the Lance engine only"):
        commit(catalog, emptied, before)


def fields_of(catalog: lancekeep.Catalog) -> Any:
    return parse_manifest(catalog.open("t0")._ds.serialized_manifest(), "t0").fields


def test_change_by_an_index_that_lacks_rows_is_refused_by_its_reason(tmp_path: Path) -> None:
    """The engine refuses a change whose rows it does not find in their order."""
    rows = pa.table({"id": [1, 2, 3]})
    path = str(tmp_path / "t.lance")
    for mode in ("create", "append", "append"):
        dataset = lance.write_dataset(rows, path, mode=mode, data_storage_version="0.1")
    dataset.create_scalar_index("id", "BTREE", name="ids")
    [whole] = dataset.describe_indices()[0].segments
    partial = Index(whole.uuid, "ids", [0], whole.dataset_version_at_last_update, Bitmap([0, 2]), whole.index_version)
    change = lance.LanceOperation.CreateIndex(new_indices=[partial], removed_indices=[partial])
    lance.LanceDataset.commit(path, change, read_version=dataset.version)
    with lancekeep.connect(str(tmp_path)) as catalog:
        with pytest.raises(lancekeep.Unsupported, match="by merge_indexes"):
            catalog.data.delete("t", "id = 1")
        catalog.structure.merge_indexes("t", ["ids"])
        catalog.data.delete("t", "id = 1")
        assert sorted(catalog.open("t").to_table()["id"].to_pylist()) == [2, 2, 2, 3, 3, 3]


def test_the_server_answers_400_to_them_and_restores(catalog: lancekeep.Catalog) -> None:
    with serving(CatalogNamespace(catalog)) as server, httpx.Client(base_url=server.uri) as client:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, ROWS.schema):
            pass
        headers = {"content-type": "application/vnd.apache.arrow.stream"}
        body = sink.getvalue().to_pybytes()
        insert = client.post("/v1/table/t0/insert?mode=overwrite", content=body, headers=headers)
        restored = client.post("/v1/table/t0/restore", json={"version": 1})
        assert (insert.status_code, insert.json()["code"]) == (400, 13), insert.text
        assert restored.status_code == 200, restored.text
        assert client.post("/v1/table/t2/insert?mode=overwrite", content=body, headers=headers).status_code == 200


def test_a_version_without_its_values_is_reported_and_left_by_a_restore(tmp_path: Path) -> None:
    lance.write_dataset(ROWS, tmp_path / "t0.lance", data_storage_version="0.1")
    [path] = (tmp_path / "t0.lance" / "_versions").glob("*.manifest")
    version = TableVersion.parse(path.read_bytes(), str(path))
    second = attrs.evolve(version.manifest, version=2)
    lost = attrs.evolve(version, manifest=second, dictionaries=b"").serialize()
    path.with_name(f"{int(path.stem) - 1}.manifest").write_bytes(lost)
    with lancekeep.connect(str(tmp_path)) as catalog:
        assert "values of its dictionary" in str(catalog.upkeep.fsck(deep=True).findings)
        commit(catalog, Restore(version=1), 2)
        assert catalog.open("t0").to_table().equals(ROWS)
