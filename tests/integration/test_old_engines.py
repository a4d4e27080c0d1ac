"""Older engines that hold tables open while Lancekeep commits, and then commit through their stale handles."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import lance
import pyarrow as pa
import pytest
from engines import ALL, LANCEDB, PYLANCE_4, Engine, EngineError

import lancekeep
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import CLUSTER_BY
from lancekeep.domain.operations import ReserveFragments, Transaction
from lancekeep.format.fence import MOVED_TO
from lancekeep.format.manifest import ManifestFile
from lancekeep.format.table_version import TableVersion, parse_transaction
from lancekeep.ports.rows import MergeRule

FIRST = range(6)


def rows(*ids: int) -> pa.Table:
    return pa.table({"i": pa.array(ids, pa.int64()), "s": [f"text {number}" for number in ids]})


def directory(uri: str) -> Path:
    return Path(uri.removeprefix("file://"))


def stored(uri: str) -> list[int]:
    """Return what plain pylance reads."""
    found: list[int] = lance.dataset(uri).to_table()["i"].to_pylist()
    return sorted(found)


@pytest.fixture(params=ALL)
def engine(request: pytest.FixtureRequest, engine_of: Callable[[str], Engine]) -> Engine:
    return engine_of(request.param)


@pytest.fixture(params=["none", "conditional-put", "sqlite"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> lancekeep.Catalog:
    stores = {"none": None, "conditional-put": "conditional-put://", "sqlite": f"sqlite://{tmp_path}/commits.db"}
    made = lancekeep.connect(str(tmp_path / "lake"), commit_store=stores[request.param])
    made.write("t", rows(0, 1, 2))
    made.write("t", rows(3, 4, 5), "append")
    return made


def test_stale_handles_append_after_group_commits(catalog: lancekeep.Catalog, engine: Engine) -> None:
    uri = catalog.describe_table("t").uri
    handles = [engine.open(uri) for _ in range(3)]
    for number in range(6, 10):
        catalog.write("t", rows(number), "append")
        if number < 9:
            handles[number - 6].append(rows(100 + number))
    assert stored(uri) == [*range(10), 106, 107, 108]
    require_transactions(uri)


def committed(change: Callable[[Any], object]) -> Callable[[lancekeep.Catalog], object]:
    """Return a commit of the transaction that pylance makes of a change, by `Catalog.commit`."""

    def commit(catalog: lancekeep.Catalog) -> object:
        table = directory(catalog.describe_table("t").uri)
        with tempfile.TemporaryDirectory() as scratch:
            copy = shutil.copytree(table, Path(scratch, "copy"))
            dataset = lance.dataset(copy)
            before = dataset.version
            change(dataset)
            version = TableVersion.parse(newest(copy).read_bytes(), "copy")
            for part in ("data", "_deletions", "_indices"):
                if (copy / part).exists():
                    shutil.copytree(copy / part, table / part, dirs_exist_ok=True)
        assert version.transaction is not None
        for _ in range(version.manifest.version - before - 1):  # a reservation of fragment ids
            catalog.commit("t", Transaction(before, str(uuid4()), operation=ReserveFragments(4)))
        return catalog.commit("t", version.transaction)

    return commit


def newest(table: Path) -> Path:
    return min((table / "_versions").glob("*.manifest"))


def natively(change: Callable[[Any], object]) -> Callable[[lancekeep.Catalog], object]:
    return lambda catalog: change(catalog.open("t"))


T = ObjectId.of("t")
COMMITS: dict[str, Callable[[lancekeep.Catalog], object]] = {
    "append": lambda catalog: catalog.write("t", rows(7), "append"),
    "insert": lambda catalog: catalog.data.insert(T, rows(7).to_reader()),
    "delete": lambda catalog: catalog.data.delete(T, "i = 1"),
    "update": lambda catalog: catalog.data.update(T, {"s": "'changed'"}, "i = 1"),
    "merge": lambda catalog: catalog.data.merge(T, rows(1, 7).to_reader(), MergeRule(["i"], update=True)),
    "overwrite": lambda catalog: catalog.write("t", rows(7), "overwrite"),
    "restore": lambda catalog: catalog.versions.restore(T, 1),
    "compact": lambda catalog: catalog.upkeep.compact("t"),
    "compact and sort": lambda catalog: (catalog.alter_table("t", {CLUSTER_BY: "s"}), catalog.upkeep.compact("t")),
    "tier": lambda catalog: catalog.upkeep.move_fragments("t", timedelta(0), f"{catalog.root_uri}-tier"),
    "index": natively(lambda dataset: dataset.create_scalar_index("i", "BTREE")),
    "add a column": natively(lambda dataset: dataset.add_columns({"n": "i + 1"})),
    "commit an append": committed(lambda dataset: dataset.insert(rows(7))),
    "commit a delete": committed(lambda dataset: dataset.delete("i = 1")),
    "commit an update": committed(lambda dataset: dataset.update({"s": "'changed'"}, where="i = 1")),
    "commit a compaction": committed(lambda dataset: dataset.optimize.compact_files()),
    "commit an overwrite": committed(lambda dataset: dataset.insert(rows(7), mode="overwrite")),
    "commit a restore": committed(lambda dataset: dataset.checkout_version(1).restore()),
    "commit a setting": committed(lambda dataset: dataset.update_config({"k": "v"})),
}
CONFLICTS = {"overwrite", "restore", "commit an overwrite", "commit a restore"}


@pytest.mark.parametrize("kind", COMMITS)
def test_stale_handles_append_after_every_kind_of_commit(tmp_path: Path, engine: Engine, kind: str) -> None:
    catalog = lancekeep.connect(str(tmp_path / "lake"))
    catalog.write("t", rows(*FIRST[:3]))
    catalog.write("t", rows(*FIRST[3:]), "append")
    uri = catalog.describe_table("t").uri
    handle = engine.open(uri)
    before = handle.version()
    COMMITS[kind](catalog)
    expected = stored(uri)
    version = lance.dataset(uri).version
    assert version > before
    if engine.name != LANCEDB:
        assert all(handle.transaction(number) for number in range(before + 1, version + 1))
    if kind in CONFLICTS:
        with pytest.raises(EngineError, match=r"(?i)conflict"):
            handle.append(rows(100))
    else:
        handle.append(rows(100))
        expected.append(100)
    assert stored(uri) == expected
    handle.refresh()
    if "n" not in lance.dataset(uri).schema.names:
        handle.append(rows(101))
        catalog.write("t", rows(102), "append")
        expected += [101, 102]
    assert stored(uri) == expected
    assert handle.refresh() == lance.dataset(uri).version
    assert sorted(handle.rows()["i"].to_pylist()) == expected
    require_transactions(uri)


@pytest.mark.parametrize("deep", [False, True], ids=["shallow", "deep"])
def test_stale_handles_append_to_clones(tmp_path: Path, engine: Engine, deep: bool) -> None:
    catalog = lancekeep.connect(str(tmp_path / "lake"))
    catalog.write("t", rows(*FIRST))
    catalog.clone("t", "c", deep=deep)
    uri = catalog.describe_table("c").uri
    first, second = engine.open(uri), engine.open(uri)
    catalog.write("c", rows(7), "append")
    first.append(rows(100))
    catalog.upkeep.materialize("c")
    expected = [*FIRST, 7, 100]
    if deep or engine.name == PYLANCE_4:  # that engine lets an append follow a merge
        second.append(rows(101))
        expected.append(101)
    else:
        with pytest.raises(EngineError, match=r"(?i)conflict"):
            second.append(rows(101))
    second.refresh()
    second.append(rows(102))
    assert stored(uri) == [*expected, 102]
    require_transactions(uri)


@pytest.mark.parametrize("keep", [False, True], ids=["moved", "copied"])
def test_a_relocated_table_is_complete_for_older_engines(tmp_path: Path, engine: Engine, keep: bool) -> None:
    properties = {"root": str(tmp_path / "lake"), "commit_store": f"sqlite://{tmp_path}/commits.db"}
    catalog = lancekeep.connect(properties["root"], commit_store=properties["commit_store"])
    catalog.write("t", rows(*FIRST))
    old = catalog.describe_table("t").uri
    stale = engine.open(old)
    catalog.upkeep.relocate("t", "place", keep=keep)
    with pytest.raises(EngineError):
        stale.append(rows(100))
    if keep:
        assert stored(old) == [*FIRST]
    uri = catalog.describe_table("t").uri
    handle = engine.open_table(properties, ["t"]) if engine.name == LANCEDB else engine.open(uri)
    catalog.write("t", rows(7), "append")
    handle.append(rows(8))
    assert stored(uri) == [*FIRST, 7, 8]
    require_transactions(uri)
    named = {ManifestFile.parse(newest(directory(old)).read_bytes(), "fence").manifest.transaction_file} - {""}
    assert named <= {file.name for file in directory(old).glob("_transactions/*")}


def test_older_engines_append_after_a_migration_of_names(tmp_path: Path, engine: Engine) -> None:
    lance.write_dataset(rows(*FIRST), tmp_path / "lake/t.lance", enable_v2_manifest_paths=False)
    with lancekeep.connect(str(tmp_path / "lake")) as storage_managed:
        storage_managed.upkeep.change_commit_store(f"sqlite://{tmp_path}/commits.db")
    catalog = lancekeep.connect(str(tmp_path / "lake"), commit_store=f"sqlite://{tmp_path}/commits.db")
    catalog.upkeep.migrate_manifest_names("t", interrupt_plain_readers=True)
    uri = catalog.describe_table("t").uri
    handle = engine.open(uri)
    catalog.write("t", rows(7), "append")
    handle.append(rows(8))
    assert stored(uri) == [*FIRST, 7, 8]
    require_transactions(uri)


def require_transactions(uri: str) -> None:
    """Require that each version names a transaction file that exists and is the transaction inside the manifest."""
    for manifest in (directory(uri) / "_versions").glob("*.manifest"):
        version = TableVersion.parse(manifest.read_bytes(), manifest.name)
        assert version.transaction is not None
        if MOVED_TO in version.transaction.transaction_properties:  # the copy of a fence names none
            continue
        file = manifest.parent.parent / "_transactions" / version.manifest.transaction_file
        assert parse_transaction(file.read_bytes(), file.name) == version.transaction
