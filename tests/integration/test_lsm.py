"""LSM writes (MemWAL): refused unless a table permits them, and known to every operation where they are permitted."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import lance
import lancedb
import pyarrow as pa
import pytest
from deployments import Deployment, bucket, deployment, s3_options
from rest_server import serving

import lancekeep
from lancekeep.application.catalog import directory_of, services_of
from lancekeep.application.upkeep.fsck import Kind
from lancekeep.application.upkeep.relocation import Relocation
from lancekeep.domain.identifiers import ObjectId

PAGE = Path(__file__).parents[2] / "docs" / "lsm.md"
KEY = {"lance-schema:unenforced-primary-key": "true"}
SCHEMA = pa.schema([pa.field("id", pa.int64(), False, metadata=KEY), pa.field("v", pa.int64())])
ALLOWED = {"lancekeep.lsm": "allowed"}
T = ObjectId.of("t")


def rows(*ids: int, value: int = 0) -> pa.Table:
    return pa.table({"id": ids, "v": [value] * len(ids)}, schema=SCHEMA)


def connect(place: Deployment, mode: str = "compatible") -> lancekeep.Catalog:
    return lancekeep.connect(place.root, commit_store=place.commit_store or None, mode=mode)


def database(place: Deployment) -> Any:
    return lancedb.connect_namespace("lancekeep.DirectoryNamespace", place.properties)


def plain(catalog: lancekeep.Catalog, name: str = "t") -> dict[int, int]:
    found = lance.dataset(services_of(catalog).uri(catalog.find_table(name))).to_table().to_pydict()
    return dict(zip(found["id"], found["v"], strict=True))


def merge_all(catalog: lancekeep.Catalog, name: str = "t") -> None:
    """Merge all generations as the page about LSM writes shows."""
    [recipe] = re.findall(r"```python\n(import lance\n.*?)```", PAGE.read_text(), re.DOTALL)
    exec(recipe, {"catalog": catalog, "name": name})  # our own page


def unmerged(catalog: lancekeep.Catalog, name: str = "t") -> Any:
    return catalog.inspect(name)["unmerged_generations"]


def set_up_by_pylance(catalog: lancekeep.Catalog, table: Any) -> None:
    catalog.open("t").initialize_mem_wal()


def set_up_by_lancedb(catalog: lancekeep.Catalog, table: Any) -> None:
    table.set_lsm_write_spec(lancedb.LsmWriteSpec.unsharded())


def put_by(dataset: Any, shard: str, *ids: int) -> None:
    with dataset.mem_wal_writer(shard) as writer:
        writer.put(rows(*ids))


@pytest.mark.parametrize("store", ["sqlite", "conditional-put"])
@pytest.mark.parametrize("set_up", [set_up_by_pylance, set_up_by_lancedb])
def test_managed_table_refuses_lsm_writes_and_a_warning_says_why(
    tmp_path: Path, store: str, set_up: Callable[..., None]
) -> None:
    place = deployment(store, tmp_path, "", "")
    table = database(place).create_table("t", rows(1, 2))
    catalog = connect(place)
    with (
        pytest.warns(lancekeep.LsmWarning, match=r"alter_table\('t', \{'lancekeep.lsm': 'allowed'\}\)"),
        pytest.raises((OSError, RuntimeError), match="is unknown"),
    ):
        set_up(catalog, table)
    dataset = lance.dataset(services_of(catalog).uri(catalog.find_table("t")))
    assert (dataset.version, dataset.mem_wal_index_details()) == (1, None)
    table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(rows(2, 3, value=5))
    assert plain(catalog) == {1: 0, 2: 5, 3: 5}
    assert unmerged(catalog) is None
    catalog.alter_table("t", ALLOWED)
    set_up(catalog, table)  # the same handle
    assert lance.dataset(dataset.uri).mem_wal_index_details() is not None


def test_clients_of_a_server_learn_why_lsm_writes_are_refused(tmp_path: Path) -> None:
    namespace = lancekeep.DirectoryNamespace(**deployment("sqlite", tmp_path, "", "").properties)
    with serving(namespace) as server, lancekeep.connect(impl="rest", uri=server.uri) as catalog:
        catalog.write("t", rows(1), "create")
        database = lancedb.connect_namespace("lancekeep.RestNamespace", {"uri": server.uri})
        table = database.open_table("t")
        for set_up in (set_up_by_pylance, set_up_by_lancedb):
            with (
                pytest.warns(lancekeep.LsmWarning, match='page "LSM writes"'),
                pytest.raises((OSError, RuntimeError), match="is unknown"),
            ):
                set_up(catalog, table)
        assert catalog.data.count(T) == 1


def test_restore_of_a_version_with_lsm_writes_is_refused(tmp_path: Path) -> None:
    catalog = connect(deployment("sqlite", tmp_path, "", ""))
    catalog.write("t", rows(1), "create")
    catalog.alter_table("t", ALLOWED)
    catalog.open("t").initialize_mem_wal()
    catalog.alter_table("t", remove=ALLOWED)
    catalog.write("t", rows(2), "append")  # a version that follows needs no permission
    catalog.open("t").drop_index("__lance_mem_wal")
    with pytest.raises(lancekeep.LsmRefused, match="the commit sets up LSM writes"):
        catalog.versions.restore(T, 2)
    assert plain(catalog) == {1: 0, 2: 0}


@pytest.mark.parametrize("store", ["sqlite", "conditional-put", "storage-managed"])
def test_rows_of_lsm_writes_are_counted_kept_and_merged(tmp_path: Path, store: str) -> None:
    managed = store != "storage-managed"
    place = deployment(store, tmp_path, "", "") if managed else Deployment(str(tmp_path / "lake"), "")
    catalog = connect(place)
    catalog.write("t", rows(1, 2), "create")
    if managed:
        catalog.alter_table("t", ALLOWED)
        table = database(place).open_table("t")
    else:
        table = lancedb.connect(place.root).open_table("t")
    table.set_lsm_write_spec(lancedb.LsmWriteSpec.unsharded())
    for number in (3, 4):
        table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(
            rows(2, number, value=number)
        )
        table.close_lsm_writers()
    assert plain(catalog) == {1: 0, 2: 0}
    with pytest.warns(lancekeep.LsmWarning, match="lacks 2 generations"):
        assert catalog.data.count(T) == 2
    assert unmerged(catalog) == 2
    catalog.write("t", rows(9), "append")
    before, directories = catalog.find_table("t"), sorted(os.listdir(tmp_path / "lake"))
    files = {path for path in (tmp_path / "lake").rglob("*") if "_mem_wal" in path.parts}
    attempts: list[Callable[[], object]] = [
        lambda: catalog.clone("t", "u"),
        lambda: catalog.clone("t", "u", deep=True),
        lambda: catalog.upkeep.relocate("t", "elsewhere"),
        lambda: catalog.rename_table("t", "u"),
    ]
    for attempt in attempts:
        with pytest.raises(lancekeep.Refused, match="the table t has 2 generations of LSM writes"):
            attempt()
    assert catalog.list_tables() == ["t"]
    assert catalog.find_table("t") == before
    assert sorted(os.listdir(tmp_path / "lake")) == directories
    catalog.upkeep.cleanup(older_than=0, grace=0)
    assert files == {path for path in (tmp_path / "lake").rglob("*") if "_mem_wal" in path.parts}
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()
    assert lancekeep.verify(catalog, deep=True).problems == ()

    merge_all(catalog)
    assert plain(catalog) == {1: 0, 2: 4, 3: 3, 4: 4, 9: 0}
    assert (catalog.data.count(T), unmerged(catalog)) == (5, 0)
    for deep in (False, True):
        catalog.clone("t", f"clone_{deep}", deep=deep)
        assert plain(catalog, f"clone_{deep}") == plain(catalog)
        assert catalog.open(f"clone_{deep}").mem_wal_index_details() is None
    catalog.drop_table("clone_False")
    with pytest.raises(lancekeep.Refused, match="would continue at the old place"):
        catalog.upkeep.relocate("t", "elsewhere")
    catalog.open("t").drop_index("__lance_mem_wal")
    assert [each.kind for each in catalog.upkeep.fsck(deep=True, grace=0).findings] == [Kind.LSM_WRITES]
    shutil.rmtree(tmp_path / "lake" / "t.lance" / "_mem_wal")
    catalog.upkeep.relocate("t", "elsewhere")
    assert plain(catalog) == {1: 0, 2: 4, 3: 3, 4: 4, 9: 0}


def test_rename_of_a_v2_table_keeps_lsm_writes_and_drop_removes_them(tmp_path: Path) -> None:
    catalog = connect(deployment("sqlite", tmp_path, "", ""), "v2")
    catalog.write("t", rows(1), "create", properties=ALLOWED)
    catalog.open("t").initialize_mem_wal()
    stale, shard = catalog.open("t"), str(uuid4())
    put_by(catalog.open("t"), shard, 2)
    catalog.rename_table("t", "u")
    put_by(catalog.open("u"), shard, 3)
    assert unmerged(catalog, "u") == 2
    directory = Path(services_of(catalog).uri(catalog.find_table("u")).removeprefix("file://"))
    catalog.drop_table("u")
    assert not directory.exists()
    put_by(stale, shard, 4)  # nothing can refuse the writer
    [finding] = catalog.upkeep.fsck(grace=0).findings
    assert finding.kind is Kind.UNREFERENCED
    assert catalog.upkeep.fsck(repair=True, grace=0).findings[0].repaired
    assert not directory.exists()


def test_rows_of_lsm_writes_on_an_object_store_are_counted_and_dropped(moto_endpoint: str) -> None:
    name, options = bucket(moto_endpoint), s3_options(moto_endpoint)
    catalog = lancekeep.connect(f"s3://{name}/lake", storage_options=options)
    catalog.write("t", rows(1), "create")
    assert catalog.data.count(T) == 1
    dataset = lance.dataset(services_of(catalog).uri(catalog.find_table("t")), storage_options=options)
    dataset.initialize_mem_wal()
    put_by(dataset, str(uuid4()), 2)
    with pytest.warns(lancekeep.LsmWarning, match="lacks 1 generations"):
        assert catalog.data.count(T) == 1
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()
    catalog.drop_table("t")
    assert [info.key for info in directory_of(catalog).places.objects.list("lake/t.lance/")] == []


def test_lsm_writes_that_begin_during_a_move_end_the_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = connect(Deployment(str(tmp_path), ""))
    catalog.write("t", rows(1), "create")
    uri, copy = services_of(catalog).uri(catalog.find_table("t")), Relocation.copy

    def begin(done: int, *_: object) -> None:
        if done == 1:  # files are copied, and the old place has no fence yet
            lance.dataset(uri).initialize_mem_wal()

    def copy_and_begin(move: Relocation) -> None:
        copy(move)
        begin(1)

    with pytest.raises(lancekeep.Refused, match="the table t has LSM writes"):
        catalog.upkeep.relocate("t", "elsewhere", progress=begin)
    assert services_of(catalog).uri(catalog.find_table("t")) == uri
    catalog.write("t", rows(2), "append")
    catalog.open("t").drop_index("__lance_mem_wal")
    monkeypatch.setattr(Relocation, "copy", copy_and_begin)
    with pytest.raises(lancekeep.Refused, match="the table t has LSM writes"):
        catalog.rename_table("t", "u")
    assert catalog.list_tables() == ["t"]
    assert plain(catalog) == {1: 0, 2: 0}


@pytest.mark.parametrize("recreated", [False, True])
def test_rows_of_a_writer_that_outlived_its_table_are_reported(tmp_path: Path, recreated: bool) -> None:
    catalog = connect(Deployment(str(tmp_path), ""))
    catalog.write("t", rows(1), "create")
    stale, shard = lance.dataset(services_of(catalog).uri(catalog.find_table("t"))), str(uuid4())
    stale.initialize_mem_wal()
    catalog.drop_table("t")
    if recreated:
        catalog.write("t", rows(5), "create")
    put_by(stale, shard, 2)
    [finding] = catalog.upkeep.fsck(deep=True, grace=0, repair=True, accept_loss=True).findings
    assert (finding.kind, finding.object, finding.repair) == (Kind.LSM_WRITES, "t", "")
    assert finding.meaning.startswith("1 generations of LSM writes lie in _mem_wal/")
    if recreated:
        assert (plain(catalog), unmerged(catalog)) == ({5: 0}, 1)
    catalog.drop_table("t")
    assert [path for path in tmp_path.rglob("*") if "_mem_wal" in path.parts] == []
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()


def test_deletions_and_the_logs_of_killed_writers_count_and_are_merged(tmp_path: Path) -> None:
    catalog = connect(Deployment(str(tmp_path), ""))
    catalog.write("t", rows(1, 2, 3), "create")
    uri = services_of(catalog).uri(catalog.find_table("t"))
    lance.dataset(uri).initialize_mem_wal()
    shard, other = str(uuid4()), str(uuid4())
    with lance.dataset(uri).mem_wal_writer(shard) as writer:
        writer.put(rows(1, value=1))
        writer.delete(pa.table({"id": pa.array([2], pa.int64())}))
    killed = (
        "import lance, os, pyarrow as pa, sys\n"
        "writer = lance.dataset(sys.argv[1]).mem_wal_writer(sys.argv[2])\n"
        "schema = lance.dataset(sys.argv[1]).schema\n"
        "sys.argv[3] and writer.put(pa.table({'id': [7], 'v': [7]}, schema=schema))\n"
        "os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", killed, uri, shard, ""], check=True)  # a log entry without rows
    assert unmerged(catalog) == 1
    subprocess.run([sys.executable, "-c", killed, uri, other, "put"], check=True)
    assert unmerged(catalog) == 2
    with lance.dataset(uri).mem_wal_writer(other):
        pass
    assert unmerged(catalog) == 2
    merge_all(catalog)
    assert (plain(catalog), unmerged(catalog)) == ({1: 1, 3: 0, 7: 7}, 0)
    [manifest] = sorted((tmp_path / "t.lance" / "_mem_wal" / other / "manifest").glob("*.binpb"), key=newest)[-1:]
    manifest.write_bytes(b"\xff")
    with pytest.raises(lancekeep.Damaged, match="is not a manifest of LSM writes"):
        catalog.clone("t", "u")
    assert [each.kind for each in catalog.upkeep.fsck(deep=True, grace=0).findings] == [Kind.LSM_WRITES]
    assert catalog.list_tables() == ["t"]


def newest(path: Path) -> int:
    return int(path.stem[::-1], 2)


def test_lsm_writes_to_a_branch_are_no_branch(tmp_path: Path) -> None:
    catalog = connect(Deployment(str(tmp_path / "lake"), ""))
    catalog.write("t", rows(1), "create")
    branch = lance.dataset(services_of(catalog).uri(catalog.find_table("t"))).create_branch("b")
    branch.initialize_mem_wal()
    put_by(branch, str(uuid4()), 2)
    root = directory_of(catalog).places.dataset_root(catalog.find_table("t"))
    assert [each.key.rpartition("/")[2] for each in directory_of(catalog).commits.histories(root)] == ["t.lance", "b"]
    files = set((tmp_path / "lake").rglob("*"))
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()
    catalog.upkeep.cleanup(older_than=0, grace=0)
    assert {path for path in files - set((tmp_path / "lake").rglob("*")) if "_mem_wal" in path.parts} == set()
    with pytest.warns(lancekeep.LsmWarning, match="lacks 1 generations"):
        assert catalog.data.count(T, branch="b") == 1
    assert catalog.data.count(T) == 1
    with pytest.raises(lancekeep.Refused, match=r"LSM writes \(at .*/tree/b\)"):
        catalog.upkeep.relocate("t", "elsewhere")
    catalog.drop_table("t")
    assert not (tmp_path / "lake" / "t.lance").exists()


def test_files_of_others_in_the_directory_of_lsm_writes_survive_a_drop(tmp_path: Path) -> None:
    catalog = connect(Deployment(str(tmp_path / "lake"), ""))
    catalog.write("t", rows(1), "create")
    dataset, shard = lance.dataset(services_of(catalog).uri(catalog.find_table("t"))), str(uuid4())
    dataset.initialize_mem_wal()
    put_by(dataset, shard, 2)
    written = tmp_path / "lake" / "t.lance" / "_mem_wal" / shard
    [generation] = written.glob("*_gen_1")
    own = {written / "notes.txt", generation / "notes.txt", generation / "data" / "notes.txt"}
    for path in own:
        path.write_text("mine")
    catalog.drop_table("t")
    assert {path for path in (tmp_path / "lake" / "t.lance").rglob("*") if path.is_file()} - own <= {
        tmp_path / "lake" / "t.lance" / ".lance-deregistered"
    }
    assert all(path.exists() for path in own)


def test_property_has_one_value_and_belongs_to_tables(tmp_path: Path) -> None:
    catalog = connect(Deployment(str(tmp_path / "lake"), ""))
    catalog.write("t", rows(1), "create")
    with pytest.raises(lancekeep.InvalidInput, match="the only value is 'allowed'"):
        catalog.alter_table("t", {"lancekeep.lsm": "yes"})
    with pytest.raises(lancekeep.InvalidInput, match="a property of tables"):
        catalog.create_namespace("n", ALLOWED)
    with pytest.raises(lancekeep.InvalidInput, match="a property of tables"):
        catalog.alter_namespace("", ALLOWED)
