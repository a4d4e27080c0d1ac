"""A power loss at every system call of a commit on local files: what was acknowledged is there, and can be read.

Where Python makes the calls they are watched in this process; SQLite's and the native engine's by strace. Data files
are the engine's, which syncs none of them: they are outside the promise.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import machines
import pyarrow as pa
import pytest
from machines import Machine, Promise
from powerless import Disk, Loss, Moment, losses
from traced import Trace

import lancekeep
from lancekeep.application.catalog import directory_of

STORES = ("files", "conditional-put")


def losses_in_this_process(tmp_path: Path, store: str, fsync: bool, versions: int) -> list[str]:
    """Return the losses of sequential commits, each of which opens the stores again."""
    disk = _disk(tmp_path)
    url = f"file://{tmp_path}/disk/commits?fsync={str(fsync).lower()}" if store == "files" else "conditional-put://"
    acknowledged: list[tuple[int, Promise]] = []
    machine = Machine(
        str(tmp_path / "disk"), url, fsync, lambda promise: acknowledged.append((len(disk.moments), promise))
    )
    with disk.watched():
        for version in range(1, versions + 1):
            with machine.opened() as commits:
                machine.commit(commits, "t", version)
    assert len(disk.moments) > (15 if fsync else 5) * versions
    return list(losses(disk.moments, acknowledged, machine.check))


def _disk(tmp_path: Path) -> Disk:
    (tmp_path / "disk").mkdir()
    (tmp_path / "kept").mkdir()
    return Disk(tmp_path / "disk", tmp_path / "kept")


@pytest.mark.parametrize("store", STORES)
def test_acknowledged_commit_survives_power_loss_at_any_call(tmp_path: Path, store: str) -> None:
    assert not losses_in_this_process(tmp_path, store, fsync=True, versions=3)


@pytest.mark.parametrize("store", STORES)
def test_without_fsync_the_same_power_losses_take_commits(tmp_path: Path, store: str) -> None:
    lost = losses_in_this_process(tmp_path, store, fsync=False, versions=2)
    assert any(Loss.EVERYTHING_UNSYNCED.value in one for one in lost)
    assert any(Loss.CONTENTS.value in one for one in lost)


def traced(tmp_path: Path, work: str, synchronous: str, fsync: str) -> tuple[list[Moment], list[tuple[int, Promise]]]:
    """The moments while a machine does that work with SQLite, and what it acknowledged."""
    directory, ear = tmp_path / "disk", tmp_path / "ear"
    directory.mkdir()
    url = f"{database(tmp_path)}?synchronous={synchronous}"
    trace = Trace([sys.executable, machines.__file__, work, str(directory), str(ear), url, fsync], directory, ear)
    return trace.moments, [(count, Promise(*json.loads(line))) for count, line in trace.told]


def database(tmp_path: Path) -> str:
    return f"sqlite://{tmp_path}/disk/commits.db"


def losses_of_rows(tmp_path: Path, synchronous: str, fsync: str) -> Iterator[str]:
    moments, acknowledged = traced(tmp_path, "work", synchronous, fsync)
    assert len(acknowledged) == 13
    quick = Machine(f"{tmp_path}/disk", f"{database(tmp_path)}?synchronous=normal", fsync=False, tell=lambda _: None)
    return losses(moments, acknowledged, quick.check)


def test_row_acknowledged_by_sqlite_survives_power_loss_at_any_call(tmp_path: Path) -> None:
    assert not list(losses_of_rows(tmp_path, "full", "true"))


@pytest.mark.parametrize(("synchronous", "fsync"), [("normal", "true"), ("full", "false")])
def test_with_less_syncing_the_same_power_losses_take_what_sqlite_acknowledged(
    tmp_path: Path, synchronous: str, fsync: str
) -> None:
    lost = losses_of_rows(tmp_path, synchronous, fsync)
    for loss in Loss:
        assert any(loss.value in one for one in lost)


def test_native_write_survives_power_loss_at_any_call(tmp_path: Path) -> None:
    """The engine syncs nothing: its data files are not looked at."""
    moments, acknowledged = traced(tmp_path, "write", "full", "true")
    assert len(acknowledged) == 2

    def check(promises: Sequence[Promise]) -> None:
        with lancekeep.connect(f"{tmp_path}/disk/lake", commit_store=database(tmp_path)) as catalog:
            assert {promise.table for promise in promises} <= set(catalog.list_tables())
            for promise in promises:
                row = directory_of(catalog).commits.get(
                    directory_of(catalog).places.dataset_root(catalog.find_table(promise.table)), promise.version
                )
                assert row is not None
                assert row.path in promise.paths
                assert directory_of(catalog).commits.objects.get(row.path).endswith(b"LANC")

    assert not list(losses(moments, acknowledged, check))


@pytest.mark.parametrize("fsync", ["true", "false"])
@pytest.mark.parametrize("mode", ["v2", "compatible"])
def test_created_namespace_survives_power_loss_at_any_call(tmp_path: Path, mode: str, fsync: str) -> None:
    disk = _disk(tmp_path)
    root = str(tmp_path / "disk" / "lake")

    def opened() -> lancekeep.Catalog:
        store = f"file://{tmp_path}/disk/commits?fsync={fsync}"
        return lancekeep.connect(root, mode=mode, commit_store=store, storage_options={"fsync": fsync})

    def check(expected: Sequence[str]) -> None:
        assert set(expected) <= set(opened().list_namespaces())

    acknowledged: list[tuple[int, str]] = []
    with disk.watched():
        catalog = opened()
        for name in ("a", "b"):
            catalog.create_namespace(name)
            acknowledged.append((len(disk.moments), name))
    lost = list(losses(disk.moments, acknowledged, check))
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
            row = directory_of(catalog).commits.get(
                directory_of(catalog).places.dataset_root(catalog.find_table("t")), version
            )
            assert row is not None
            manifests.append((version, row.path, directory_of(catalog).commits.objects.get(row.path)))
    disk.moments[-1].lose(loss)
    catalog = lancekeep.connect(root, commit_store=store)
    assert set(catalog.list_tables()) == {"t"}
    for _, path, content in manifests:
        assert directory_of(catalog).commits.objects.get(path) == content
    latest = directory_of(catalog).commits.latest(directory_of(catalog).places.dataset_root(catalog.find_table("t")))
    assert latest is not None
    assert latest.version == manifests[-1][0]
