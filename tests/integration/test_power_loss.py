"""A power loss at every system call of a commit on local files: what was acknowledged is there, and can be read.

The commit stores in files and by conditional put are watched; SQLite syncs by itself. Data files are the native
engine's, which syncs none of them: they are outside the promise.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pyarrow as pa
import pytest
from powerless import Disk, Loss

import lancekeep
from lancekeep.adapters.commit_stores import open_commit_store
from lancekeep.adapters.object_stores.local import LocalObjectStore
from lancekeep.application.retry import Retry
from lancekeep.application.table_commits import TableCommits
from lancekeep.domain.commit import Committed
from lancekeep.domain.errors import LancekeepError
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.naming import NamingScheme

STORES = ("files", "conditional-put")


@attrs.define
class Machine:
    """A table with a commit store, on a disk that may lose its power."""

    directory: Path
    disk: Disk
    store: str
    fsync: bool
    acknowledged: list[tuple[int, int, bytes]] = attrs.field(factory=list)
    """The number of moments before it was acknowledged, the version, its manifest."""

    @property
    def root(self) -> DatasetRoot:
        key = str(self.directory / "t.lance").strip("/")
        return DatasetRoot(key, f"file:///{key}")

    def commits(self) -> TableCommits:
        objects = LocalObjectStore(self.fsync)
        url = f"file://{self.directory}/commits?fsync={str(self.fsync).lower()}"
        rows = open_commit_store(url if self.store == "files" else "conditional-put://", {}, objects)
        return TableCommits(objects, rows, "tester", Retry(patience=0))

    def commit(self, version: int) -> None:
        commits = self.commits()
        path = f"{self.root.manifest_key(version, NamingScheme.V2)}-{version:08x}"
        content = f"manifest {version} LANC".encode()
        commits.objects.put(path, content)
        assert isinstance(commits.commit(self.root, version, path, None, branch=False), Committed)
        self.acknowledged.append((len(self.disk.moments), version, content))

    def losses(self) -> Iterator[str]:
        """What a power loss would take of what had been acknowledged, at each moment in either way."""
        for count, moment in enumerate(self.disk.moments, 1):
            for loss in Loss:
                self.disk.lose(moment, loss)
                try:
                    self._check([entry for entry in self.acknowledged if entry[0] <= count])
                except (AssertionError, LancekeepError) as error:
                    yield f"after {moment.call}, without {loss.value}: {error!r}"

    def _check(self, acknowledged: list[tuple[int, int, bytes]]) -> None:
        commits = self.commits()
        latest = commits.latest(self.root)
        assert (latest.version if latest else 0) >= len(acknowledged)
        for _, version, content in acknowledged:
            row = commits.get(self.root, version)
            assert row is not None
            assert commits.objects.get(row.path) == content
        for info in commits.objects.list(self.root.versions_key):
            assert ".manifest-" in info.key or commits.objects.get(info.key).endswith(b"LANC"), "an unreadable head"
        version = latest.version + 1 if latest else 1
        path = f"{self.root.manifest_key(version, NamingScheme.V2)}-ffffffff"
        commits.objects.put(path, b"the next LANC")
        assert isinstance(commits.commit(self.root, version, path, None, branch=False), Committed)


@contextmanager
def machine(tmp_path: Path, store: str, fsync: bool) -> Iterator[Machine]:
    disk = _disk(tmp_path)
    with disk.watched():
        yield Machine(tmp_path / "disk", disk, store, fsync)


def _disk(tmp_path: Path) -> Disk:
    (tmp_path / "disk").mkdir()
    (tmp_path / "kept").mkdir()
    return Disk(tmp_path / "disk", tmp_path / "kept")


@pytest.mark.parametrize("store", STORES)
def test_an_acknowledged_commit_survives_a_power_loss_at_any_call(tmp_path: Path, store: str) -> None:
    with machine(tmp_path, store, fsync=True) as watched:
        for version in (1, 2, 3):
            watched.commit(version)
    assert len(watched.disk.moments) > 45
    assert not list(watched.losses())


@pytest.mark.parametrize("store", STORES)
def test_without_fsync_the_same_power_losses_take_commits(tmp_path: Path, store: str) -> None:
    with machine(tmp_path, store, fsync=False) as watched:
        for version in (1, 2):
            watched.commit(version)
    losses = list(watched.losses())
    assert any(Loss.EVERYTHING_UNSYNCED.value in loss for loss in losses)
    assert any(Loss.CONTENTS.value in loss for loss in losses)


@pytest.mark.parametrize("fsync", ["true", "false"])
@pytest.mark.parametrize("mode", ["v2", "compatible"])
def test_a_namespace_that_was_created_survives_a_power_loss_at_any_call(tmp_path: Path, mode: str, fsync: str) -> None:
    disk = _disk(tmp_path)
    root = str(tmp_path / "disk" / "lake")

    def opened() -> lancekeep.Catalog:
        store = f"file://{tmp_path}/disk/commits?fsync={fsync}"
        return lancekeep.connect(root, mode=mode, commit_store=store, storage_options={"fsync": fsync})

    acknowledged: list[tuple[int, str]] = []
    with disk.watched():
        catalog = opened()
        for name in ("a", "b"):
            catalog.create_namespace(name)
            acknowledged.append((len(disk.moments), name))
    lost = []
    for count, moment in enumerate(disk.moments, 1):
        expected = {name for before, name in acknowledged if before <= count}
        for loss in Loss:
            disk.lose(moment, loss)
            try:
                found = set(opened().list_namespaces())
            except LancekeepError as error:
                lost.append(f"after {moment.call}, without {loss.value}: {error!r}")
            else:
                lost += [f"after {moment.call}, without {loss.value}: {expected - found}"] if expected - found else []
    assert bool(lost) == (fsync == "false"), lost


@pytest.mark.parametrize("loss", Loss)
def test_manifests_that_the_native_engine_staged_survive_their_acknowledgement(tmp_path: Path, loss: Loss) -> None:
    """The engine syncs neither the staged manifest nor the directory that it makes for it."""
    disk = _disk(tmp_path)
    root = str(tmp_path / "disk" / "lake")
    store = f"file://{tmp_path}/disk/commits"
    manifests: list[tuple[int, str, bytes]] = []
    with disk.watched():
        catalog = lancekeep.connect(root, commit_store=store)
        for rows in (pa.table({"a": [1, 2]}), pa.table({"a": [3]})):
            version = catalog.write("t", rows, "append" if manifests else "create").version
            row = catalog.commits.get(catalog.dataset_root(catalog.find_table("t")), version)
            assert row is not None
            manifests.append((version, row.path, catalog.commits.objects.get(row.path)))
    disk.lose(disk.moments[-1], loss)
    catalog = lancekeep.connect(root, commit_store=store)
    assert set(catalog.list_tables()) == {"t"}
    for _, path, content in manifests:
        assert catalog.commits.objects.get(path) == content
    latest = catalog.commits.latest(catalog.dataset_root(catalog.find_table("t")))
    assert latest is not None
    assert latest.version == manifests[-1][0]
