"""Detached versions read files, and nothing of the catalog takes these files away."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import attrs
import lance
import pyarrow as pa
import pytest
from lance import LanceOperation

import lancekeep
from lancekeep.application.catalog import services_of
from lancekeep.application.commits.detached_versions import DetachedVersions
from lancekeep.format.table_version import TableVersion

KINDS = ("sqlite", "conditional-put", "storage-managed")


@attrs.frozen
class Lake:
    """A catalog that several processes open."""

    root: Path
    commit_store: str | None

    def connect(self, mode: str = "v2") -> lancekeep.Catalog:
        return lancekeep.connect(str(self.root), mode=mode, commit_store=self.commit_store)


@pytest.fixture(params=KINDS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    urls = {"sqlite": f"sqlite://{tmp_path}/commits.db", "conditional-put": "conditional-put://"}
    return Lake(tmp_path / "lake", urls.get(request.param))


@pytest.fixture
def one(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake", f"sqlite://{tmp_path}/commits.db")


def rows(*values: int) -> pa.Table:
    return pa.table({"a": pa.array(values, pa.int64())})


Writer = Callable[[], int]


def by_engine(catalog: lancekeep.Catalog, table: str) -> Writer:
    """Return a writer that commits detached versions through the engine, from a handle of now."""
    dataset = catalog.open(table)
    operation = LanceOperation.UpdateConfig(config_updates=LanceOperation.UpdateMap({"k": "v"}, False))

    def write() -> int:
        found = lance.LanceDataset.commit(dataset, operation, read_version=dataset.version, detached=True)
        return int(found.version)

    return write


def without_engine(catalog: lancekeep.Catalog, table: str) -> Writer:
    """Return a writer that commits detached versions without the engine, on the version of now."""
    manifest = versions(catalog, table) / f"d{by_engine(catalog, table)()}.manifest"
    transaction = TableVersion.parse(manifest.read_bytes(), str(manifest)).transaction
    manifest.unlink()
    assert transaction is not None
    return lambda: catalog.commit(table, attrs.evolve(transaction, uuid=str(uuid4())), detached=True).version


def versions(catalog: lancekeep.Catalog, table: str) -> Path:
    return Path(services_of(catalog).uri(catalog.find_table(table)).removeprefix("file://")) / "_versions"


def values(catalog: lancekeep.Catalog, table: str, version: int) -> list[int]:
    """Return the rows of a detached version, read by plain pylance."""
    found = lance.dataset(services_of(catalog).uri(catalog.find_table(table))).checkout_version(version)
    return sorted(found.to_table()["a"].to_pylist())


def deregistered_and_repaired(catalog: lancekeep.Catalog) -> None:
    catalog.deregister_table("s")
    catalog.upkeep.fsck(repair=True, remove_tables=True, grace=0)


def test_source_of_a_detached_version_of_a_clone_stays(lake: Lake) -> None:
    catalog = lake.connect()
    catalog.write("s", rows(1, 2))
    catalog.clone("s", "c")
    detached = by_engine(catalog, "c")()
    catalog.write("c", rows(3), "overwrite")
    catalog.upkeep.cleanup(0, grace=0)
    acts: list[Callable[[], Any]] = [
        lambda: catalog.drop_table("s"),
        lambda: catalog.upkeep.relocate("s", "elsewhere"),
    ]
    for act in acts:
        with pytest.raises(lancekeep.Refused, match=r"\bc\b"):
            act()
    assert values(catalog, "c", detached) == [1, 2]
    deregistered_and_repaired(catalog)
    catalog.upkeep.cleanup(0, grace=0)
    assert values(catalog, "c", detached) == [1, 2]


def test_rename_of_a_v1_source_of_a_detached_version_is_refused(one: Lake) -> None:
    catalog = one.connect("compatible")
    catalog.write("s", rows(1, 2))
    catalog.clone("s", "c")
    detached = by_engine(catalog, "c")()
    catalog.write("c", rows(3), "overwrite")
    catalog.upkeep.cleanup(0, grace=0)
    with pytest.raises(lancekeep.Refused, match=r"\bc\b"):
        catalog.rename_table("s", "other")
    assert values(catalog, "c", detached) == [1, 2]


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("writer", [by_engine, without_engine])
def test_detached_versions_move_with_their_table(
    lake: Lake, writer: Callable[[lancekeep.Catalog, str], Writer], keep: bool
) -> None:
    catalog, other = lake.connect(), lake.connect()
    catalog.write("t", rows(1, 2))
    write = writer(other, "t")
    found = [write()]

    def committing(done: int, total: int, step: str) -> None:
        found.append(write())

    catalog.upkeep.relocate("t", "elsewhere", keep=keep, progress=committing)
    assert len(found) == 6
    assert {tuple(values(catalog, "t", version)) for version in found} == {(1, 2)}
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == () or keep


@pytest.mark.parametrize("writer", [by_engine, without_engine])
@pytest.mark.parametrize("move", ["relocate", "rename"])
def test_detached_commit_at_the_old_place_is_refused(
    one: Lake, monkeypatch: pytest.MonkeyPatch, writer: Callable[[lancekeep.Catalog, str], Writer], move: str
) -> None:
    catalog = one.connect("compatible" if move == "rename" else "v2")
    catalog.write("t", rows(1, 2))
    write = writer(catalog, "t")
    moves: dict[str, Callable[[], object]] = {
        "relocate": lambda: one.connect().upkeep.relocate("t", "elsewhere"),
        "rename": lambda: one.connect("compatible").rename_table("t", "u"),
    }
    create = DetachedVersions._create

    def late(self: DetachedVersions, *args: Any) -> Any:
        monkeypatch.setattr(DetachedVersions, "_create", create)
        with ThreadPoolExecutor(1) as thread:  # this is a callback of the engine, which must not call it again
            thread.submit(moves[move]).result()
        return create(self, *args)

    monkeypatch.setattr(DetachedVersions, "_create", late)
    with pytest.raises((lancekeep.CommitRefused, OSError), match="detached"):
        write()
    assert not any(one.root.rglob("d*.manifest"))


def test_detached_version_has_its_transaction_file_and_follows_a_version_that_exists(one: Lake) -> None:
    catalog = one.connect()
    catalog.write("t", rows(1, 2))
    manifest = versions(catalog, "t") / f"d{without_engine(catalog, 't')()}.manifest"
    version = TableVersion.parse(manifest.read_bytes(), manifest.name)
    assert (versions(catalog, "t").parent / "_transactions" / version.manifest.transaction_file).exists()
    assert version.transaction is not None
    later = attrs.evolve(version.transaction, read_version=9, uuid=str(uuid4()))
    with pytest.raises(lancekeep.VersionNotFound, match="no version 9 to begin with"):
        catalog.commit("t", later, detached=True)


def test_detached_version_of_a_version_that_a_cleanup_removes_is_refused(
    one: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = one.connect()
    catalog.write("t", rows(1, 2))
    write = without_engine(catalog, "t")
    catalog.write("t", rows(3), "overwrite")
    create = DetachedVersions._create

    def late(self: DetachedVersions, *args: Any) -> Any:
        one.connect().upkeep.cleanup(0, grace=0)
        return create(self, *args)

    monkeypatch.setattr(DetachedVersions, "_create", late)
    with pytest.raises(lancekeep.ConcurrentModification, match="version 1, which the transaction read, was removed"):
        write()
    assert list(versions(catalog, "t").glob("d*")) == []


def test_detached_version_reads_its_rows_after_tiering_and_cleanup(one: Lake, tmp_path: Path) -> None:
    catalog = one.connect()
    catalog.write("t", rows(1, 2))
    before = by_engine(catalog, "t")()
    catalog.upkeep.move_fragments("t", timedelta(0), str(tmp_path / "cold"))
    after = by_engine(catalog, "t")()
    catalog.write("t", rows(3), "overwrite")
    catalog.upkeep.cleanup(0, grace=0)
    assert values(catalog, "t", before) == values(catalog, "t", after) == [1, 2]
