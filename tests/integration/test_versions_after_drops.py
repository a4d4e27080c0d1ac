"""A version that follows a drop or rename of its table is refused, and leaves no version.

A V1 directory with a version is a table, and a new table there would continue after the version.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial, partialmethod
from itertools import count
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancekeep
from lancekeep.adapters.lance.engine import LanceEngine
from lancekeep.application.catalog import directory_of
from lancekeep.application.entries.ledger import Ledger
from lancekeep.application.rows import direct_upserts
from lancekeep.application.rows.moved_tables import MovedTables
from lancekeep.ports.rows import MergeRule

TABLE = pa.table({"a": pa.array([1, 2, 3], pa.int64())})
NEW = pa.table({"a": pa.array([4, 5], pa.int64())})
UPSERT = MergeRule(["a"], update=True, insert=True)


def changes(most: int) -> list[tuple[str, str, dict[str, int]]]:
    """Return modes, changes of the catalog, and the rows of the tables that are left, of which one has the most."""
    modes = "v1", "compatible"
    left: dict[str, dict[str, int]] = {"drop": {}, "new": {"t": 3}, "longer": {"t": most}}
    return [
        *((mode, change, rows) for change, rows in left.items() for mode in modes),
        ("compatible", "rename", {"moved": most}),
    ]


def _append(catalog: lancekeep.Catalog) -> Any:
    return catalog.write("t", NEW.to_reader(), "append")


def _overwrite(catalog: lancekeep.Catalog) -> Any:
    return catalog.write("t", NEW, "overwrite")


def _change(catalog: lancekeep.Catalog) -> Any:
    def delete(dataset: Any) -> Any:
        dataset.delete("a = 1")
        return dataset

    return catalog.commit_change("t", delete)


def _fragments(catalog: lancekeep.Catalog) -> Any:
    plan = catalog.begin_write("t", NEW.schema, "append")
    fragments = lance.fragment.write_fragments(NEW, plan.uri, schema=plan.schema, mode="append")
    return catalog.commit_fragments(plan, fragments)


def _merge(catalog: lancekeep.Catalog) -> Any:
    return catalog.data.merge("t", NEW.to_reader(), UPSERT)


Act = Callable[[lancekeep.Catalog], Any]
Create = Callable[[str, bytes], bool]


def _creating(monkeypatch: pytest.MonkeyPatch, catalog: lancekeep.Catalog, wrapped: Callable[..., bool]) -> None:
    """Create manifests by ``wrapped(create, key, content)``, also copies of staged ones, as on remote storage."""
    objects = directory_of(catalog).commits.objects
    create, read = partial(wrapped, objects.put_if_absent), objects.get
    monkeypatch.setattr(objects, "put_if_absent", create)
    monkeypatch.setattr(objects, "copy_if_absent", lambda source, target: create(target, read(source)))


ASKING: dict[str, Act] = {
    "appends": lambda catalog: catalog.write("t", NEW, "append"),
    "upserts": _merge,
    "changes": _change,
    "plans": _fragments,
}
"""Writes whose version the catalog creates in a V1 directory, also without a commit store."""


@pytest.mark.parametrize(("mode", "change", "left"), changes(9))
@pytest.mark.parametrize("write", ASKING)
@pytest.mark.parametrize("store", [None, "conditional-put://"])
def test_version_after_a_drop_or_rename_is_refused_and_removed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    change: str,
    left: dict[str, int],
    write: str,
    store: str | None,
) -> None:
    monkeypatch.setattr(direct_upserts, "_OFTEN", 0)
    catalog, other, fresh = (lancekeep.connect(str(tmp_path / "lake"), mode=mode, commit_store=store) for _ in range(3))
    for how in ("create", "append", "append"):
        catalog.write("t", TABLE, how)
    versions = count()

    def late(create: Create, key: str, content: bytes) -> bool:
        if "/_versions/" in key and next(versions) == 0:
            if change == "rename":
                other.rename_table("t", "moved")
            else:
                other.drop_table("t")
            for how in {"new": ["create"], "longer": ["create", "append", "append"]}.get(change, []):
                other.write("t", TABLE, how)
        return create(key, content)

    _creating(monkeypatch, catalog, late)
    with pytest.raises(lancekeep.CommitRefused, match="renamed or dropped while version 4 was committed"):
        ASKING[write](catalog)
    assert {name: fresh.open(name).to_table().num_rows for name in fresh.list_tables()} == left
    assert not fresh.upkeep.fsck().findings
    catalog.write("t", NEW, "append" if "t" in left else "create")
    assert fresh.open("t").to_table().num_rows == left.get("t", 0) + 2


@pytest.mark.parametrize("write", ["appends", "changes", "plans"])
@pytest.mark.parametrize("store", [None, "conditional-put://"])
def test_version_that_a_move_has_copied_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str | None, write: str
) -> None:
    catalog, other = (lancekeep.connect(str(tmp_path / "lake"), commit_store=store) for _ in range(2))
    for how in ("create", "append"):
        catalog.write("t", TABLE, how)
    moved = []

    def early(create: Create, key: str, content: bytes) -> bool:
        created = create(key, content)
        if key.endswith(f"/t.lance/_versions/{2**64 - 1 - 3:020}.manifest"):
            with ThreadPoolExecutor(1) as pool:  # the engine aborts if its own callback calls it
                moved.append(pool.submit(other.upkeep.relocate, "t", "place").result())
        return created

    _creating(monkeypatch, catalog, early)
    assert ASKING[write](catalog).version == 3
    assert other.open("t").to_table().num_rows == (4 if write == "changes" else 8)
    assert moved


MORE = {"head": 2}
MORE_LISTED = {"list": 1, "head": 6, "get": 2}
NATIVE = [("write", _append), ("write", _overwrite)]


def _after(monkeypatch: pytest.MonkeyPatch, method: str, follow: Callable[[], object]) -> None:
    """Let something happen after the engine's commit, before its caller learns of it."""
    act, calls = getattr(LanceEngine, method), count()

    def followed(self: LanceEngine, *given: Any, **named: Any) -> Any:
        is_first = next(calls) == 0
        committed = act(self, *given, **named)
        if is_first:
            follow()
        return committed

    monkeypatch.setattr(LanceEngine, method, followed)


@pytest.mark.parametrize(("mode", "change", "left"), changes(6))
@pytest.mark.parametrize(("method", "act"), NATIVE)
def test_version_of_the_engine_after_a_drop_or_rename_is_refused_and_removed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    change: str,
    left: dict[str, int],
    method: str,
    act: Act,
) -> None:
    catalog, other, fresh = (lancekeep.connect(str(tmp_path / "lake"), mode=mode) for _ in range(3))
    for how in ("create", "append"):
        other.write("t", TABLE, how)
    manifest = tmp_path / "lake" / "t.lance" / "_versions" / f"{2**64 - 1 - 3:020}.manifest"

    def late() -> None:
        """The manifest comes after the change of the catalog."""
        content = manifest.read_bytes()
        manifest.unlink()
        if change == "rename":
            other.rename_table("t", "moved")
        else:
            other.drop_table("t")
        for how in {"new": ["create"], "longer": ["create", "append"]}.get(change, []):
            other.write("t", TABLE, how)
        manifest.parent.mkdir(parents=True, exist_ok=True)
        manifest.write_bytes(content)

    _after(monkeypatch, method, late)
    with pytest.raises(lancekeep.CommitRefused, match="renamed or dropped while version 3 was committed"):
        act(catalog)
    assert {name: fresh.open(name).to_table().num_rows for name in fresh.list_tables()} == left
    assert not fresh.upkeep.fsck().findings


def _relocate(other: lancekeep.Catalog) -> None:
    other.upkeep.relocate("t", "place")


def _rename(other: lancekeep.Catalog) -> None:
    other.rename_table("t", "moved")


def _rename_twice(other: lancekeep.Catalog) -> None:
    other.rename_table("t", "between")
    other.rename_table("between", "moved")


def _replace(other: lancekeep.Catalog) -> None:
    other.rename_table("t", "moved")
    other.write("t", TABLE)


@pytest.mark.parametrize("move", [_relocate, _rename, _rename_twice, _replace])
@pytest.mark.parametrize(("method", "act"), NATIVE)
def test_version_of_the_engine_that_a_move_has_copied_is_acknowledged(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    move: Callable[[lancekeep.Catalog], None],
    method: str,
    act: Act,
) -> None:
    catalog, other = (lancekeep.connect(str(tmp_path / "lake")) for _ in range(2))
    other.write("beside", TABLE)
    for how in ("create", "append"):
        other.write("t", TABLE, how)
    _after(monkeypatch, method, partial(move, other))
    assert act(catalog).version == 3
    name = "t" if move is _relocate else "moved"
    assert other.open(name, 3).to_table().num_rows == 2 if act is _overwrite else 8


def test_version_of_another_writer_at_the_new_place_is_not_taken_for_the_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, other = (lancekeep.connect(str(tmp_path / "lake")) for _ in range(2))
    for how in ("create", "append"):
        other.write("t", TABLE, how)
    manifest = tmp_path / "lake" / "t.lance" / "_versions" / f"{2**64 - 1 - 3:020}.manifest"

    def missed() -> None:
        manifest.unlink()
        other.rename_table("t", "moved")
        other.write("moved", TABLE, "append")

    _after(monkeypatch, "write", missed)
    with pytest.raises(lancekeep.CommitRefused, match="under its new name"):
        _append(catalog)
    assert other.open("moved").to_table().num_rows == 9


@pytest.mark.parametrize("late", [0, 1, 3])
def test_files_that_a_drop_removes_last_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: int
) -> None:
    catalog, other = (lancekeep.connect(str(tmp_path / "lake")) for _ in range(2))
    catalog.write("t", TABLE)
    files = tmp_path / "lake" / "t.lance"
    kept = tmp_path / "kept"
    pauses: list[float] = []

    def drop() -> None:
        shutil.copytree(files, kept)
        other.drop_table("t")
        shutil.copytree(kept, files)
        (files / "_versions" / f"{2**64 - 1 - 1:020}.manifest").unlink()

    def sleep(seconds: float) -> None:
        if len(pauses) == late:
            shutil.rmtree(files / "data")
        pauses.append(seconds)

    _after(monkeypatch, "write", drop)
    monkeypatch.setattr(directory_of(catalog).commits.retry, "sleep", sleep)
    with pytest.raises(lancekeep.CommitRefused):
        _append(catalog)
    assert len(pauses) == late + 1
    assert sum(pauses) < 1
    assert not (files / "_versions" / f"{2**64 - 1 - 2:020}.manifest").exists()


def _counted(self: Any, name: str, asked: Counter[str], ask: Callable[..., Any], *given: Any, **named: Any) -> Any:
    asked[name] += 1
    return ask(self, *given, **named)


@pytest.mark.parametrize(
    ("mode", "store", "more"),
    [
        ("v2", None, {}),
        ("v2", "conditional-put://", {}),
        ("v1", "conditional-put://", {}),
        ("compatible", "conditional-put://", {}),
        ("compatible", None, MORE),
        ("v1", None, MORE_LISTED),
    ],
)
@pytest.mark.parametrize(("method", "act"), NATIVE[:1])
def test_check_of_a_table_that_stays_costs_requests_in_a_v1_directory_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    store: str | None,
    more: dict[str, int],
    method: str,
    act: Act,
) -> None:
    counts: list[Counter[str]] = []
    for checked in (False, True):
        root = str(tmp_path / f"lake-{checked}")
        catalog, other = (lancekeep.connect(root, mode=mode, commit_store=store) for _ in range(2))
        for how in ("create", "append"):
            other.write("t", TABLE, how)
        _append(catalog)
        asked: Counter[str] = Counter()
        objects = type(directory_of(catalog).commits.objects)
        with monkeypatch.context() as patch:
            for name in ("head", "get", "list", "directories", "put", "put_if_absent", "copy", "delete"):
                counted = partialmethod(_counted, name, asked, getattr(objects, name))
                patch.setattr(objects, name, counted)
            if not checked:
                patch.setattr(MovedTables, "native_check", lambda *given: lambda committed: None)
            act(catalog)
        counts.append(asked)
    assert counts[1] - counts[0] == Counter(more)
    assert not counts[0] - counts[1]


@pytest.mark.parametrize(("mode", "created"), [("v2", 0), ("compatible", 1), ("v1", 1)])
@pytest.mark.parametrize("act", [_change, _fragments])
def test_engine_commits_itself_outside_v1_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Act, mode: str, created: int
) -> None:
    catalog = lancekeep.connect(str(tmp_path / "lake"), mode=mode)
    catalog.write("t", TABLE)
    keys = []

    def note(create: Create, key: str, content: bytes) -> bool:
        keys.append(key)
        return create(key, content)

    _creating(monkeypatch, catalog, note)
    assert act(catalog).version == 2
    assert len(keys) == created


def test_version_of_a_new_table_is_kept_while_files_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, other = (lancekeep.connect(str(tmp_path / "lake")) for _ in range(2))
    other.write("t", TABLE)
    files = tmp_path / "lake" / "t.lance"
    kept = tmp_path / "kept"

    def drop() -> None:
        shutil.copytree(files, kept)
        other.drop_table("t")
        shutil.copytree(kept, files)
        (files / "_versions" / f"{2**64 - 1 - 1:020}.manifest").unlink()

    def sleep(seconds: float) -> None:
        if seconds and kept.exists():
            shutil.rmtree(kept)
            other.drop_table("t")
            for how in ("create", "append"):
                other.write("t", TABLE, how)

    _after(monkeypatch, "write", drop)
    monkeypatch.setattr(directory_of(catalog).commits.retry, "sleep", sleep)
    with pytest.raises(lancekeep.CommitRefused):
        _append(catalog)
    assert not kept.exists()
    assert other.open("t").to_table().num_rows == 6


def test_version_of_another_writer_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, other = (lancekeep.connect(str(tmp_path / "lake")) for _ in range(2))
    for name, how in (("t", "create"), ("u", "create"), ("u", "append")):
        other.write(name, TABLE, how)
    version = f"_versions/{2**64 - 1 - 2:020}.manifest"
    own, foreign = (tmp_path / "lake" / name / version for name in ("t.lance", "u.lance"))

    def drop() -> None:
        other.drop_table("t")
        own.parent.mkdir(parents=True)
        shutil.copy(foreign, own)

    _after(monkeypatch, "write", drop)
    with pytest.raises(lancekeep.CommitRefused):
        _append(catalog)
    assert own.exists()


def test_change_of_nothing_is_not_refused_after_a_cleanup(tmp_path: Path) -> None:
    catalog, other = (lancekeep.connect(str(tmp_path / "lake"), mode="v1") for _ in range(2))
    for how in ("create", "append"):
        other.write("t", TABLE, how)
    lance.dataset(str(tmp_path / "lake" / "t.lance")).cleanup_old_versions(timedelta(0))
    assert catalog.commit_change("t", lambda dataset: dataset).version == 2


def test_version_that_cannot_be_checked_is_not_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = lancekeep.connect(str(tmp_path / "lake"))
    catalog.write("t", TABLE)

    def outage() -> None:
        def fail(*given: object) -> None:
            raise lancekeep.StoreUnavailable("no answer")

        monkeypatch.setattr(Ledger, "fresh", fail)

    with monkeypatch.context() as patch:
        _after(patch, "write", outage)
        with pytest.raises(lancekeep.StoreUnavailable, match="version 2 of the table t was committed"):
            _append(catalog)
