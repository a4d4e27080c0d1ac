"""The files of a base path are copied to another place, and the table reads the copies."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

import lance
import pyarrow as pa
import pytest
from lance import DatasetBasePath

import lancekeep
from lancekeep.application.catalog import directory_of, services_of
from lancekeep.application.entries.base_paths import restricted
from lancekeep.domain.errors import AccessDenied, CommitRefused, InvalidInput, Unsupported
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest import BasePath
from lancekeep.domain.operations import Restore, Transaction, UpdateBases

T = ObjectId.of("t")


def rows(*values: int) -> pa.Table:
    return pa.table({"a": pa.array(values, pa.int64())})


class Lake:
    """A catalog whose table has files at the base paths ``warm``, a dataset root, and ``plain``, a directory."""

    def __init__(self, root: Path, store: str | None, mode: str = "v2") -> None:
        self.root = root
        self.catalog = lancekeep.connect(str(root / "lake"), mode=mode, commit_store=store)
        self.catalog.write("t", rows(1, 2))
        self.at("warm").mkdir()
        self.at("plain").mkdir()
        bases = [DatasetBasePath(str(self.at("warm")), "warm", True), DatasetBasePath(str(self.at("plain")), "plain")]
        self.catalog.commit_change("t", lambda dataset: dataset.add_bases(bases))
        for name, values in (("warm", (3, 4)), ("plain", (5, 6))):
            self.append(name, *values)

    def append(self, base: str, *values: int) -> None:
        """Write rows to a base path."""

        def written(dataset: Any) -> Any:
            return lance.write_dataset(rows(*values), dataset, mode="append", target_bases=[base])

        self.catalog.commit_change("t", written)

    def at(self, name: str) -> Path:
        return self.root / name

    def copy(self, name: str, target: str) -> str:
        shutil.copytree(self.at(name), self.at(target))
        return str(self.at(target))

    def move(self, name: str, target: str) -> str:
        shutil.move(self.at(name), self.at(target))
        return str(self.at(target))

    def native(self, version: int | None = None) -> Any:
        return lance.dataset(services_of(self.catalog).uri(self.catalog.find_table("t")), version=version)

    def values(self, version: int | None = None) -> list[int]:
        return sorted(self.native(version).to_table()["a"].to_pylist())

    def paths(self) -> dict[int, str]:
        found = self.native().base_paths().items()
        return {number: unquote(base.path.removeprefix("file://")) for number, base in found}

    def transaction(self, number: int, path: str) -> Transaction:
        """Return a transaction that changes or adds a base path."""
        operation = UpdateBases((BasePath(number, "some", True, path),))
        return Transaction(self.native().version, str(uuid4()), operation=operation)


KINDS = ["sqlite v2", "sqlite v1", "conditional-put v2", "storage-managed v2"]


def lake_of(tmp_path: Path, kind: str) -> Lake:
    store, mode = kind.split()
    urls = {
        "sqlite": f"sqlite://{tmp_path}/c.db",
        "files": f"file://{tmp_path}/c",
        "conditional-put": "conditional-put://",
    }
    return Lake(tmp_path, urls.get(store), mode)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    lake = lake_of(tmp_path, "sqlite v2")
    with lake.catalog:
        yield lake


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_read_from_the_new_places(tmp_path: Path, kind: str) -> None:
    lake = lake_of(tmp_path, kind)
    stale = lake.native()
    before = stale.version
    warm, plain = lake.move("warm", "moved warm"), lake.move("plain", "moved-plain")
    made = lake.catalog.structure.set_base_paths(T, {1: warm, 2: f"file://{plain}"})
    assert made.version == before + 1
    assert lake.paths() == {1: warm, 2: plain}
    assert lake.values() == [1, 2, 3, 4, 5, 6]
    assert made.transaction == lake.native().read_transaction(made.version).uuid
    assert lake.values(1) == [1, 2]
    with pytest.raises(pa.ArrowInvalid, match="Not found"):
        lake.values(before)
    lance.write_dataset(rows(7), stale, mode="append")
    lake.catalog.write("t", rows(8), "append")
    lake.append("warm", 9)
    assert lake.values() == list(range(1, 10))
    assert lancekeep.verify(lake.catalog, deep=True).problems == ()


def test_a_repetition_commits_nothing(lake: Lake) -> None:
    path = lake.move("warm", "moved")
    first = lake.catalog.structure.set_base_paths(T, {1: path})
    assert lake.catalog.structure.set_base_paths(T, {1: path}).version == first.version
    assert lake.native().version == first.version


@pytest.mark.parametrize("number", [0, 3, 2**40, -1])
def test_an_unknown_base_path_is_refused(lake: Lake, number: int) -> None:
    before = lake.native().version
    with pytest.raises(InvalidInput, match=rf"t has no base path {number} to change.* 1 \(.*warm\), 2 \(.*plain\)"):
        lake.catalog.structure.set_base_paths(T, {number: str(lake.at("warm"))})
    assert lake.native().version == before


@pytest.mark.parametrize("path", ["", "warm", "../warm", "no-such-scheme://warm"])
def test_a_path_that_is_not_absolute_is_refused(lake: Lake, path: str) -> None:
    before = lake.native().version
    with pytest.raises(InvalidInput):
        lake.catalog.structure.set_base_paths(T, {1: path})
    assert lake.native().version == before


@pytest.mark.parametrize("fault", ["absent", "incomplete", "short"])
def test_a_place_without_the_files_is_refused_before_anything_is_written(lake: Lake, fault: str) -> None:
    target = lake.at("elsewhere")
    if fault != "absent":
        lake.copy("warm", "elsewhere")
        [file] = target.rglob("*.lance")
        file.unlink() if fault == "incomplete" else file.write_bytes(file.read_bytes()[:-1])
    table = Path(services_of(lake.catalog).uri(lake.catalog.find_table("t")).removeprefix("file://"))
    before = sorted(table.rglob("*"))
    with pytest.raises(CommitRefused, match=r"t: the latest version needs the file 'data/.*elsewhere.*Copy the dir"):
        lake.catalog.structure.set_base_paths(T, {1: str(target)})
    for detached in (False, True):
        with pytest.raises(CommitRefused, match="nothing was committed"):
            lake.catalog.commit("t", lake.transaction(1, str(target)), detached=detached)
    assert sorted(table.rglob("*")) == before
    assert lake.values() == [1, 2, 3, 4, 5, 6]


def test_files_that_another_writer_adds_at_the_old_place_are_checked(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lake.copy("warm", "copy")
    commits, pending = directory_of(lake.catalog).commits, [True]
    record = commits.record_transaction

    def overtaken(*arguments: Any) -> None:
        if pending and pending.pop():
            lake.append("warm", 7)
        record(*arguments)

    monkeypatch.setattr(commits, "record_transaction", overtaken)
    with pytest.raises(CommitRefused, match="the latest version needs the file"):
        lake.catalog.structure.set_base_paths(T, {1: path})
    assert lake.values() == [1, 2, 3, 4, 5, 6, 7]


def test_a_caller_needs_access_to_the_new_place(lake: Lake) -> None:
    path = lake.copy("warm", "copy")
    with restricted(lambda table, source: False), pytest.raises(AccessDenied):
        lake.catalog.structure.set_base_paths(T, {1: path})
    with restricted(lambda table, source: False), pytest.raises(AccessDenied):  # does not say whether files exist
        lake.catalog.structure.set_base_paths(T, {1: str(lake.at("absent"))})
    with restricted(lambda table, source: source is None):
        lake.catalog.structure.set_base_paths(T, {1: path})
    assert lake.paths()[1] == path


def test_a_clone_follows_its_source_to_another_table(tmp_path: Path) -> None:
    with lancekeep.connect(str(tmp_path / "lake")) as catalog:
        catalog.write("source", rows(1, 2, 3))
        catalog.commit_change("source", lambda dataset: (dataset.create_scalar_index("a", "BTREE"), dataset)[1])
        catalog.commit_change("source", lambda dataset: (dataset.delete("a = 2"), dataset)[1])
        catalog.clone("source", "t")
        source = Path(services_of(catalog).uri(catalog.find_table("source")).removeprefix("file://"))
        copy = source.with_name("copy.lance")
        shutil.copytree(source, copy)
        catalog.register_table("copy", "copy.lance")
        [number] = lance.dataset(services_of(catalog).uri(catalog.find_table("t"))).base_paths()
        catalog.structure.set_base_paths(T, {number: str(copy)})
        assert "t" in catalog.clones_of("copy")
        catalog.drop_table("source", force=True)
        read = lance.dataset(services_of(catalog).uri(catalog.find_table("t")))
        assert read.to_table()["a"].to_pylist() == [1, 3]
        assert read.to_table(filter="a = 3")["a"].to_pylist() == [3]


@pytest.mark.parametrize("by_engine", [True, False])
def test_a_restored_version_has_its_old_places(lake: Lake, by_engine: bool) -> None:
    before, old = lake.native().version, lake.paths()
    lake.catalog.structure.set_base_paths(T, {1: lake.copy("warm", "copy")})
    if by_engine:
        lake.catalog.versions.restore(T, before)
    else:
        lake.catalog.commit("t", Transaction(before, str(uuid4()), operation=Restore(before)))
    assert lake.paths() == old
    shutil.rmtree(lake.at("warm"))
    lake.catalog.structure.set_base_paths(T, {1: str(lake.at("copy"))})
    assert lake.values() == [1, 2, 3, 4, 5, 6]
    assert lancekeep.verify(lake.catalog, deep=True).problems == ()


def test_a_change_of_a_base_path_by_the_engine_is_no_problem(lake: Lake) -> None:
    path = lake.move("warm", "moved")
    base = [DatasetBasePath(path, "other name", True, 1)]
    lake.catalog.commit_change("t", lambda dataset: dataset.add_bases(base))
    assert lake.values() == [1, 2, 3, 4, 5, 6]
    assert lancekeep.verify(lake.catalog, deep=True).problems == ()


def test_new_base_paths_are_left_to_the_engine(lake: Lake) -> None:
    with pytest.raises(Unsupported, match=r"changes the base path 7; the latest version has \[1, 2\]"):
        lake.catalog.commit("t", lake.transaction(7, str(lake.at("warm"))))
