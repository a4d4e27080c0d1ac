"""A move to another commit store leaves every table readable at its latest version."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import lance
import pyarrow as pa
import pytest

import lancekeep
from lancekeep.application.catalog import directory_of
from lancekeep.domain.errors import CommitStoreMismatch, Damaged, LancekeepError
from lancekeep.domain.naming import NamingScheme
from lancekeep.domain.version_row import VersionRow

SOURCES = ["conditional-put://", "sqlite:///{}/old.db", "file://{}/old", None]


def rows(number: int) -> pa.Table:
    return pa.table({"x": [number]})


def numbers(catalog: lancekeep.Catalog) -> list[int]:
    return sorted(catalog.open("t").to_table()["x"].to_pylist())


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("target", ["sqlite:///{}/new.db", "file://{}/new"])
def test_store_with_rows_of_missing_versions_is_refused(tmp_path: Path, source: str | None, target: str) -> None:
    url, new = source and source.format(tmp_path), target.format(tmp_path)
    catalog = lancekeep.connect(str(tmp_path / "lake"), commit_store=url)
    catalog.write("t", rows(1))
    catalog.write("t", rows(2), "append")
    root = directory_of(catalog).places.dataset_root(catalog.find_table("t"))
    foreign = [VersionRow(root.base_uri, number, root.manifest_key(number, NamingScheme.V2), 400) for number in (1, 3)]
    lancekeep.connect(str(tmp_path / "other"), commit_store=new).commits.rows.stored._rows.record(foreign)  # type: ignore[attr-defined] # left there
    with pytest.raises(Damaged, match="version 3"):
        catalog.upkeep.change_commit_store(new)
    again = lancekeep.connect(str(tmp_path / "lake"), commit_store=url)
    again.write("t", rows(3), "append")
    assert numbers(again) == numbers(catalog) == [1, 2, 3]
    assert len(lance.dataset(again.describe_table("t").uri).to_table()) == 3


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("source", SOURCES[:-1])
def test_commit_in_flight_during_the_move_is_visible_or_refused(tmp_path: Path, source: str, shared: bool) -> None:
    """An append that can share its commit creates the final manifest; a stream commits through the engine."""
    url, new = source.format(tmp_path), f"sqlite:///{tmp_path}/new.db"
    writer = lancekeep.connect(str(tmp_path / "lake"), commit_store=url)
    writer.write("t", rows(1))
    stored: Any = writer.commits.rows.stored._rows  # type: ignore[attr-defined] # the store itself
    objects: Any = directory_of(writer).commits.objects
    reserve, put_if_absent, copy_if_absent = stored.reserve, objects.put_if_absent, objects.copy_if_absent
    derived = stored.guarantees.derived
    moves: list[str] = []

    def move() -> None:
        stored.reserve, objects.put_if_absent, objects.copy_if_absent = reserve, put_if_absent, copy_if_absent
        moves.append(new)
        lancekeep.connect(str(tmp_path / "lake"), commit_store=url).upkeep.change_commit_store(new)

    def late(row: VersionRow, *, first: bool) -> Any:
        move()
        return reserve(row, first=first)

    def put_late(key: str, content: bytes) -> bool:
        if key.endswith(".manifest"):
            move()
        return bool(put_if_absent(key, content))

    def copy_late(source: str, target: str) -> bool:
        if derived:  # the copy is the claim
            move()
        return bool(copy_if_absent(source, target))

    stored.reserve, objects.put_if_absent, objects.copy_if_absent = late, put_late, copy_late
    acknowledged = True
    try:
        writer.write("t", rows(2) if shared else rows(2).to_reader(), "append")
    except LancekeepError:
        acknowledged = False
    assert moves == [new]
    reader = lancekeep.connect(str(tmp_path / "lake"), commit_store=new)
    assert numbers(reader) == [1] + [2] * acknowledged
    reader.write("t", rows(3), "append")
    assert numbers(reader) == [1] + [2] * acknowledged + [3]


@pytest.mark.parametrize("mode", ["v1", "compatible"])
def test_table_dropped_under_another_store_does_not_block_the_return(tmp_path: Path, mode: str) -> None:
    stores = [f"sqlite://{tmp_path}/{name}.db" for name in ("first", "second")]
    with lancekeep.connect(str(tmp_path / "lake"), mode=mode, commit_store=stores[0]) as catalog:
        catalog.write("a", pa.table({"n": [1]}))
        catalog.write("b", pa.table({"n": [2]}))
        catalog.upkeep.change_commit_store(stores[1])
        catalog.drop_table("b")
        catalog.upkeep.change_commit_store(stores[0])
        stray = tmp_path / "lake" / "b.lance" / "data" / f"{uuid4()}.lance"  # as a writer that was refused leaves it
        stray.parent.mkdir(parents=True)
        stray.write_bytes(b"rows")
        assert [str(table) for table in catalog.list_all_tables(include_declared=False)] == ["a"]
        catalog.drop_table("b")
        catalog.write("b", pa.table({"n": [3]}))
        assert catalog.open("b").to_table().to_pydict() == {"n": [3]}


def test_directory_that_pylance_creates_behind_a_fence_hides_no_other_table(tmp_path: Path) -> None:
    root, stores = str(tmp_path / "lake"), (f"sqlite:///{tmp_path}/a.db", f"file://{tmp_path}/b")
    catalog = lancekeep.connect(root, mode="v1", commit_store=stores[0])
    for name in ("t", "gone"):
        catalog.write(name, rows(1))
    catalog.upkeep.change_commit_store(stores[1])
    catalog = lancekeep.connect(root, mode="v1", commit_store=stores[1])
    catalog.drop_table("gone")
    catalog.upkeep.change_commit_store(stores[0])
    catalog = lancekeep.connect(root, mode="v1", commit_store=stores[0])
    lance.write_dataset(rows(2), f"{root}/gone.lance")
    assert catalog.list_tables(include_declared=False) == ["gone", "t"]
    assert numbers(catalog) == [1]
    with pytest.raises(CommitStoreMismatch, match="moved to"):
        catalog.open("gone")


def test_registration_of_a_table_left_in_another_store_says_what_to_do(tmp_path: Path) -> None:
    stores = [f"sqlite://{tmp_path}/{name}.db" for name in ("first", "second")]
    with lancekeep.connect(str(tmp_path / "lake"), mode="v2", commit_store=stores[0]) as catalog:
        catalog.write("t", pa.table({"n": [1]}))
        catalog.upkeep.change_commit_store(stores[1])
        location = catalog.deregister_table("t").location
        catalog.upkeep.change_commit_store(stores[0])
        with pytest.raises(CommitStoreMismatch) as refused:
            catalog.register_table("t", location)
        assert stores[1] in str(refused.value)
        assert f"change_commit_store with {stores[0]!r} again" in str(refused.value)
        catalog.upkeep.change_commit_store(stores[1])
        catalog.register_table("t", location)
        catalog.upkeep.change_commit_store(stores[0])
        catalog.write("t", pa.table({"n": [2]}), "append")
        assert catalog.open("t").to_table().to_pydict() == {"n": [1, 2]}


@pytest.mark.parametrize("branch", [None, "b"])
def test_stale_version_hint_does_not_hide_versions_after_the_move(tmp_path: Path, branch: str | None) -> None:
    """A store that derives rows searches from the hint upwards, and would stop at the gap of the deleted versions."""
    with lancekeep.connect(str(tmp_path / "lake"), commit_store=f"sqlite://{tmp_path}/old.db") as catalog:
        catalog.write("t", rows(1))
        dataset = catalog.open("t")
        if branch is not None:
            dataset = dataset.create_branch(branch)
        for number in range(2, 6):
            dataset.insert(rows(number), mode="append")
        root = directory_of(catalog).places.dataset_root(catalog.find_table("t")).branch(branch)
        latest = dataset.version
        directory_of(catalog).versions.delete_versions(root, [latest - 1, latest - 2])
        directory_of(catalog).commits.objects.put(root.hint_key, b'{"version":%d}' % (latest - 3))
        catalog.upkeep.change_commit_store("conditional-put://")
        found = directory_of(catalog).commits.latest(root)
        assert found is not None
        assert found.version == latest
        assert sorted(catalog.open("t", branch=branch).to_table()["x"].to_pylist()) == [1, 2, 3, 4, 5]
