"""A table that moves to another directory keeps its rows, its history and every acknowledged commit."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from threading import Event, Thread
from typing import Any
from uuid import uuid4

import attrs
import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner
from deployments import bucket, s3_options
from faults import Crash, killed_at_each_state
from lance_namespace.errors import LanceNamespaceError

import lancekeep
from lancekeep.adapters.lance.channels import Channel
from lancekeep.adapters.lance.engine import LanceEngine
from lancekeep.application.catalog import directory_of
from lancekeep.application.commits.table_commits import TableCommits
from lancekeep.application.entries.staged_checks import StagedChecks
from lancekeep.application.rows.moved_tables import MovedTables
from lancekeep.application.upkeep.table_relocation import TableRelocation
from lancekeep.domain.appends import MOST_BYTES
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.operations import Restore, Transaction
from lancekeep.entrypoints.cli import lancekeep as lancekeep_command

KINDS = ("sqlite", "files", "conditional-put", "storage-managed", "conditional-put on s3", "sqlite on s3")


@attrs.frozen
class Lake:
    """A catalog, and plain readers of its directories."""

    root: str
    commit_store: str | None
    options: dict[str, str]

    def connect(self, mode: str = "compatible") -> lancekeep.Catalog:
        return lancekeep.connect(self.root, mode=mode, commit_store=self.commit_store, storage_options=self.options)

    def namespace(self) -> Any:
        properties = {f"storage.{name}": value for name, value in self.options.items()}
        if self.commit_store is not None:
            properties["commit_store"] = self.commit_store
        return lancekeep.DirectoryNamespace(root=self.root, **properties)

    def native(self, location: str, version: Any = None) -> Any:
        dataset = lance.dataset(f"{self.root}/{location}", storage_options=self.options or None)
        return dataset if version is None else dataset.checkout_version(version)

    def rows(self, location: str, version: Any = None) -> list[int]:
        return sorted(self.native(location, version).to_table()["a"].to_pylist())


@pytest.fixture(params=KINDS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    store, _, storage = request.param.partition(" on ")
    urls = {"sqlite": f"sqlite://{tmp_path}/commits.db", "files": f"file://{tmp_path}/commits"}
    url = urls.get(store, "conditional-put://" if store == "conditional-put" else None)
    if storage:
        endpoint = request.getfixturevalue("moto_endpoint")
        return Lake(f"s3://{bucket(endpoint)}/lake", url, s3_options(endpoint))
    return Lake(str(tmp_path / "lake"), url, {})


PAIRS = [
    ("sqlite", "compatible"),
    ("files", "v2"),
    ("conditional-put", "compatible"),
    ("conditional-put", "v2"),
    ("storage-managed", "v2"),
    ("conditional-put on s3", "v2"),
    ("sqlite on s3", "compatible"),
]
"""Lakes and modes: each lake, and a store of either sort in both modes."""


@pytest.fixture
def local(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"), f"sqlite://{tmp_path}/commits.db", {})


def rows(*values: int) -> pa.Table:
    return pa.table({"a": pa.array(values, pa.int64())})


def filled(lake: Lake, mode: str = "compatible") -> lancekeep.Catalog:
    """Return a catalog with a table of two versions, a tag, a branch and a deletion."""
    catalog = lake.connect(mode)
    catalog.write("t", rows(1, 2, 3))
    catalog.write("t", rows(4), "append")
    catalog.commit_change("t", lambda dataset: (dataset.delete("a = 2"), dataset)[1])
    native = lake.native(catalog.find_table("t").location)
    native.tags.create("first", 1)
    return catalog


@pytest.mark.parametrize(("lake", "mode"), PAIRS, indirect=["lake"])
def test_relocated_table_keeps_rows_versions_and_tags(lake: Lake, mode: str) -> None:
    catalog = filled(lake, mode)
    before = catalog.find_table("t").location
    plan = catalog.upkeep.relocate("t", "elsewhere/t", dry_run=True)
    assert plan.versions == 3
    assert plan.files > 3
    assert catalog.find_table("t").location == before
    report = catalog.upkeep.relocate("t", "elsewhere/t")
    assert attrs.evolve(report, dry_run=True) == plan
    assert catalog.find_table("t").location == "elsewhere/t"
    assert lake.rows("elsewhere/t") == [1, 3, 4]
    assert lake.rows("elsewhere/t", 1) == lake.rows("elsewhere/t", "first") == [1, 2, 3]
    assert [entry.version for entry in catalog.versions.history("t")] == [4, 3, 2, 1]
    assert catalog.write("t", rows(5), "append").version == 5
    other = lake.connect(mode)
    assert sorted(other.open("t").to_table()["a"].to_pylist()) == [1, 3, 4, 5] == lake.rows("elsewhere/t")
    assert other.list_tables() == ["t"]
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()
    catalog.upkeep.fsck(repair=True, remove_tables=True, grace=0)
    assert lake.rows("elsewhere/t") == [1, 3, 4, 5]


def append(value: int, options: dict[str, str]) -> Callable[[Any], Any]:
    return lambda handle: lance.write_dataset(rows(value), handle, mode="append", storage_options=options or None)


@pytest.mark.parametrize("keep", [False, True])
def test_handle_from_before_the_move_commits_nothing(lake: Lake, keep: bool) -> None:
    catalog = filled(lake, "v2")
    location = catalog.find_table("t").location
    acts: list[Callable[[Any], Any]] = [
        append(9, lake.options),
        lambda handle: lance.write_dataset(rows(9), handle, mode="overwrite", storage_options=lake.options or None),
        lambda handle: handle.delete("a = 1"),
        lambda handle: handle.update({"a": "7"}),
    ]
    stale = [(act, handle) for act in acts for handle in (catalog.open("t"), lake.native(location))]
    catalog.upkeep.relocate("t", "new", keep=keep)
    for act, handle in stale:
        if lake.commit_store is not None and handle.uri == lake.native("new").uri:
            continue
        with pytest.raises((OSError, RuntimeError, ValueError)):
            act(handle)
    assert lake.rows("new") == [1, 3, 4]
    assert catalog.describe_table("t").version == 4
    if keep:
        assert lake.rows(location) == [1, 3, 4]
        assert lake.rows(location, 2) == [1, 2, 3, 4]


def append_with_few_retries(data: pa.Table, namespace: Any, options: dict[str, str] | None) -> None:
    """Append natively to ``t``. The engine's usual twenty retries would wait 30 seconds for a table that moved."""
    dataset = lance.dataset(namespace_client=namespace, table_id=["t"], storage_options=options)
    fragments = lance.fragment.write_fragments(data, dataset, mode="append", storage_options=options)
    lance.LanceDataset.commit(
        dataset,
        lance.LanceOperation.Append(fragments),
        dataset.version,
        storage_options=options,
        max_retries=3,
        namespace_client=namespace,
        table_id=["t"],
        namespace_client_managed_versioning=dataset._namespace_client_managed_versioning,
    )


@pytest.mark.parametrize(("lake", "mode"), PAIRS, indirect=["lake"])
def test_commits_beside_the_move_arrive_or_are_refused(lake: Lake, mode: str) -> None:
    catalog = lake.connect(mode)
    catalog.write("t", rows(0))
    acknowledged, done = [0], Event()

    def write() -> None:
        namespace = lake.namespace()
        for value in count(1):
            try:
                append_with_few_retries(rows(value), namespace, lake.options or None)
                acknowledged.append(value)
            except (OSError, RuntimeError, ValueError, LanceNamespaceError):  # refused: the rows must not be there
                pass
            if done.is_set() and acknowledged[-1] == value:
                return

    writer = Thread(target=write)
    writer.start()
    for place in ("one", "two", "three"):
        for _ in range(20):
            try:
                lake.connect(mode).upkeep.relocate("t", place)
                break
            except lancekeep.ConcurrentModification:
                continue
    done.set()
    writer.join()
    assert catalog.find_table("t").location == "three"
    assert lake.rows("three") == acknowledged


@pytest.mark.parametrize("store", ["sqlite", "conditional-put", "storage-managed"])
def test_grouped_appends_beside_the_move_are_neither_lost_nor_repeated(tmp_path: Path, store: str) -> None:
    urls = {"sqlite": f"sqlite://{tmp_path}/commits.db", "conditional-put": "conditional-put://"}
    lake = Lake(str(tmp_path / "lake"), urls.get(store), {})
    catalog, other = lake.connect(), lake.connect()
    catalog.write("t", rows(0))
    acknowledged, done = [0], Event()

    def insert(writer: int) -> None:
        for number in count(1):
            value = 1000 * writer + number
            try:
                catalog.data.insert(ObjectId.of("t"), rows(value).to_reader())
                acknowledged.append(value)
            except lancekeep.LancekeepError:  # refused: the row must not be there
                pass
            if done.is_set():
                return

    writers = [Thread(target=insert, args=(writer,)) for writer in range(1, 4)]
    for writer in writers:
        writer.start()
    try:
        for place in ("one", "two"):
            other.upkeep.relocate("t", place)
    finally:
        done.set()
        for writer in writers:
            writer.join()
    assert lake.rows("two") == sorted(acknowledged)


def at_the_end_of_the_commit(
    monkeypatch: pytest.MonkeyPatch, catalog: lancekeep.Catalog, act: Callable[[], Any]
) -> None:
    """``act`` happens once, after the next version of a catalog is committed and before it is confirmed."""
    settle, acts = TableCommits._settle, [act]

    def settle_and_act(commits: TableCommits, *arguments: Any, **named: Any) -> Any:
        outcome = settle(commits, *arguments, **named)
        if commits is directory_of(catalog).commits and acts:
            actor = Thread(target=acts.pop(), daemon=True)
            actor.start()
            actor.join()
        return outcome

    monkeypatch.setattr(TableCommits, "_settle", settle_and_act)


def test_commit_that_the_move_carried_along_is_acknowledged(local: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, other = filled(local), local.connect()
    at_the_end_of_the_commit(monkeypatch, catalog, lambda: other.upkeep.relocate("t", "new"))
    catalog.write("t", rows(5), "append")
    assert local.rows("new") == [1, 3, 4, 5]


@pytest.mark.parametrize("mode", ["compatible", "v2"])
def test_commit_to_a_branch_that_the_move_carried_along_is_acknowledged(
    local: Lake, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, other = filled(local, mode), local.connect(mode)
    catalog.branches.create("t", "side")
    at_the_end_of_the_commit(monkeypatch, catalog, lambda: other.upkeep.relocate("t", "new"))
    catalog.data.insert(ObjectId.of("t"), rows(5).to_reader(), branch="side")
    assert local.rows("new", ("side", None)) == [1, 3, 4, 5]


def test_commit_to_a_branch_of_a_table_that_is_dropped_is_refused(local: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, other = filled(local, "v2"), local.connect("v2")
    catalog.branches.create("t", "side")
    at_the_end_of_the_commit(monkeypatch, catalog, lambda: other.drop_table("t"))
    with pytest.raises(lancekeep.CommitRefused, match="was moved or dropped while version 4 of its branch 'side'"):
        catalog.data.insert(ObjectId.of("t"), rows(5).to_reader(), branch="side")


@pytest.mark.parametrize("store", ["sqlite", "storage-managed"])
def test_commit_that_two_moves_carried_along_is_acknowledged(
    tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(str(tmp_path / "lake"), f"sqlite://{tmp_path}/commits.db" if store == "sqlite" else None, {})
    catalog, other = lake.connect(), lake.connect()
    catalog.write("t", rows(0))
    places = iter(("one", "two"))

    def move() -> None:
        if (place := next(places, None)) is not None:
            other.upkeep.relocate("t", place)

    for name in ("_require_unmoved", "_is_carried_over"):  # the check of the new version, and its look at "one"
        check = getattr(MovedTables, name)

        def moving(*arguments: Any, check: Callable[..., Any] = check, **named: Any) -> Any:
            move()
            return check(*arguments, **named)

        monkeypatch.setattr(MovedTables, name, moving)
    catalog.write("t", rows(5), "append")
    assert next(places, None) is None
    assert lake.rows("two") == [0, 5]


def test_append_of_the_engine_that_follows_the_move_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(str(tmp_path / "lake"), None, {})
    catalog, other = lake.connect(), lake.connect()
    catalog.write("t", rows(0))
    before_open = LanceEngine._dataset

    def move_and_open(*arguments: Any, **named: Any) -> Any:
        monkeypatch.undo()
        other.upkeep.relocate("t", "one")
        return before_open(*arguments, **named)

    monkeypatch.setattr(LanceEngine, "_dataset", move_and_open)
    many = range(MOST_BYTES // 8 + 1)  # more than a group of appends takes
    catalog.write("t", rows(*many), "append")
    assert lake.rows("one") == [0, *many]


def test_append_of_the_engine_beside_the_move_ends_at_once(local: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, other = filled(local), local.connect()
    create = Channel.create_table_version
    calls: list[int] = []

    def act() -> None:
        if len(calls) == 1:
            other.upkeep.relocate("t", "one")
        other.write("t", rows(len(calls)), "append")  # the engine tries again after another writer's version

    def move_and_create(channel: Channel, request: Any) -> Any:
        calls.append(request["version"])
        mover = Thread(target=act, daemon=True)  # the engine cannot be called by a thread of its own
        mover.start()
        mover.join()
        return create(channel, request)

    monkeypatch.setattr(Channel, "create_table_version", move_and_create)
    with pytest.raises(lancekeep.ConcurrentModification, match="moved to another place"):
        catalog.write("t", rows(*range(MOST_BYTES // 8 + 1)), "append")
    assert len(calls) == 1
    assert local.rows("one") == [1, 1, 3, 4]


@pytest.mark.parametrize("use", ["change", "open"])
def test_fence_that_shrinks_while_it_is_read_is_a_move(
    tmp_path: Path, use: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(str(tmp_path / "lake"), None, {})
    catalog, other = lake.connect(), lake.connect()
    catalog.write("t", rows(0))

    def open_moved(*arguments: Any, **named: Any) -> None:
        monkeypatch.undo()
        other.upkeep.relocate("t", "one")
        raise ValueError("LanceError(IO): Generic memory error: Invalid range 0..971 for object of size 116 bytes")

    monkeypatch.setattr(lance, "LanceDataset", open_moved)
    with pytest.raises(lancekeep.ConcurrentModification, match="moved to another place"):
        _ = catalog.commit_change("t", lambda dataset: dataset) if use == "change" else catalog.open("t")
    assert lake.rows("one") == [0]


def test_branches_move_with_the_table(lake: Lake) -> None:
    catalog = filled(lake, "v2")
    options = lake.options or None
    side = catalog.open("t").create_branch("side", storage_options=options)
    lance.write_dataset(rows(8), side, mode="append", storage_options=options)
    inner = catalog.open("t", branch="side").create_branch("side/inner", storage_options=options)
    lance.write_dataset(rows(9), inner, mode="append", storage_options=options)
    catalog.upkeep.relocate("t", "another/place/t")
    assert lake.rows("another/place/t", ("side", None)) == [1, 3, 4, 8]
    assert lake.rows("another/place/t", ("side/inner", None)) == [1, 3, 4, 8, 9]
    catalog.write("t", rows(5), "append")
    handle = catalog.open("t", branch="side")
    lance.write_dataset(rows(6), handle, mode="append", storage_options=options)
    assert lake.rows("another/place/t", ("side", None)) == [1, 3, 4, 6, 8]
    assert lake.rows("another/place/t") == [1, 3, 4, 5]
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()


@pytest.mark.parametrize("keep", [False, True])
def test_branch_that_begins_during_the_move_is_not_acknowledged(
    local: Lake, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    catalog = filled(local, "v2")
    other = local.connect("v2")
    handle = catalog.open("t")

    require = StagedChecks.__call__

    def move(checks: StagedChecks, root: Any, content: bytes) -> None:
        require(checks, root, content)
        if root.is_branch:  # in a thread of its own: the engine waits for this call
            mover = Thread(target=other.upkeep.relocate, args=("t", "new"), kwargs={"keep": keep}, daemon=True)
            mover.start()
            mover.join()

    monkeypatch.setattr(StagedChecks, "__call__", move)
    with pytest.raises((OSError, RuntimeError, ValueError)):
        handle.create_branch("late")
    assert local.rows("new") == [1, 3, 4]


def test_old_place_is_kept_if_a_branch_has_begun_there_since(local: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = filled(local, "v2")
    before = catalog.find_table("t").location

    def stop(*_: Any, **__: Any) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(TableRelocation, "_leave", stop)
        with pytest.raises(Crash):
            catalog.upkeep.relocate("t", "new")
    lance.write_dataset(rows(9), local.native(before, 1).create_branch("late"), mode="append")
    with pytest.raises(lancekeep.Damaged, match="was committed there since"):
        catalog.upkeep.relocate("t", "new")
    assert local.rows(before, ("late", None)) == [1, 2, 3, 9]


def test_versions_made_from_a_fence_are_no_fences(local: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = filled(local)
    catalog.clone("t", "borrower")
    catalog.upkeep.materialize("borrower")
    catalog.upkeep.cleanup(0, grace=0, tables=["borrower"])

    def stop(*_: Any) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(TableCommits, "page", stop)
        with pytest.raises(Crash):
            catalog.upkeep.relocate("t", "new")
    catalog.clone("t", "shallow")
    catalog.clone("t", "deep", deep=True)
    for table in ("shallow", "deep"):
        catalog.write(table, rows(5), "append")
        assert sorted(catalog.open(table).to_table()["a"].to_pylist()) == [1, 3, 4, 5]
    catalog.upkeep.relocate("t", "t.lance")
    with pytest.raises(lancekeep.Unsupported):
        catalog.commit("t", Transaction(read_version=5, uuid=str(uuid4()), operation=Restore(4)))
    assert catalog.write("t", rows(6), "append").version == 6


def test_moved_clone_reads_its_source(lake: Lake) -> None:
    catalog = filled(lake, "v2")
    catalog.clone("t", "c")
    with pytest.raises(lancekeep.Refused, match="c"):
        catalog.upkeep.relocate("t", "elsewhere")
    assert catalog.upkeep.relocate("t", "elsewhere", dry_run=True).readers == ("c",)
    catalog.upkeep.relocate("c", "copies/c")
    assert lake.rows("copies/c") == [1, 3, 4]
    catalog.upkeep.fsck(repair=True, deep=True, remove_tables=True, grace=0)
    with pytest.raises(lancekeep.Refused, match="c"):
        catalog.drop_table("t")
    catalog.drop_table("c")
    catalog.drop_table("t")


def test_cleanup_after_the_move_removes_what_the_old_place_named(lake: Lake) -> None:
    catalog = filled(lake, "v2")
    catalog.upkeep.relocate("t", "new")
    catalog.tags.delete(ObjectId.of("t"), "first")
    catalog.write("t", rows(7), "overwrite")
    report = catalog.upkeep.cleanup(0, grace=0)
    assert sum(table.files for table in report.tables) >= 3
    assert lake.rows("new") == [7]


def test_cleanup_believes_no_marker_of_a_move_without_a_fence(tmp_path: Path) -> None:
    """Someone has put the marker beside a clone, which still reads the table."""
    lake = Lake(str(tmp_path / "lake"), None, {})
    catalog = lake.connect("v2")
    catalog.write("t", rows(1, 2))
    catalog.clone("t", "c")
    place = tmp_path / "lake" / catalog.find_table("c").location
    catalog.deregister_table("c")
    (place / ".lancekeep-moved").write_text("elsewhere")
    catalog.write("t", rows(7), "overwrite")
    catalog.upkeep.cleanup(0, grace=0)
    assert lake.rows(place.name) == [1, 2]


@pytest.mark.parametrize(("managed", "kept"), [("storage", 3), ("implementation", 1)])
def test_versions_stay_at_the_old_place_if_the_storage_decides(local: Lake, managed: str, kept: int) -> None:
    catalog = local.connect("v2")
    catalog.write("t", rows(1), properties={"lancekeep.managed": managed})
    catalog.write("t", rows(2), "append")
    place = Path(local.root) / catalog.find_table("t").location
    catalog.upkeep.relocate("t", "new")
    assert len([*place.glob("_versions/*.manifest")]) == kept
    assert local.rows("new") == [1, 2]


def test_v1_directory_stays_hidden_from_v1_readers(local: Lake) -> None:
    catalog = filled(local)
    catalog.upkeep.relocate("t", "new")
    assert local.connect("v1").list_tables() == []
    assert catalog.list_tables() == ["t"]
    catalog.drop_table("t")
    assert catalog.list_tables() == local.connect("v1").list_tables() == []
    catalog.write("t", rows(1))
    assert catalog.open("t").count_rows() == 1


def test_places_that_cannot_hold_the_table_are_refused(local: Lake, tmp_path: Path) -> None:
    catalog = filled(local)
    catalog.write("u", rows(1))
    catalog.declare_table("only")
    (Path(local.root) / "used").mkdir()
    (Path(local.root) / "used" / "notes").write_text("mine")
    for place, error in (
        ("used", lancekeep.TableAlreadyExists),
        ("u.lance", lancekeep.InvalidInput),
        ("u.lance/t", lancekeep.InvalidInput),
        ("t.lance/t", lancekeep.InvalidInput),
        ("v.lance", lancekeep.InvalidInput),
        ("../t", lancekeep.InvalidInput),
        ("s3://bucket/t", lancekeep.InvalidInput),
    ):
        with pytest.raises(error):
            catalog.upkeep.relocate("t", place)
    with pytest.raises(lancekeep.Unsupported, match="declared"):
        catalog.upkeep.relocate("only", "place")
    with pytest.raises(lancekeep.Unsupported, match="V1"):
        local.connect("v1").upkeep.relocate("t", "place")
    assert local.rows("t.lance") == [1, 3, 4]
    assert catalog.write("t", rows(5), "append").version == 4


def test_stopped_move_is_given_up_by_the_present_location(local: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = filled(local)

    def stop(*_: Any) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(TableCommits, "page", stop)
        with pytest.raises(Crash):
            catalog.upkeep.relocate("t", "new")
    with pytest.raises(lancekeep.ConcurrentModification, match="moved"):
        catalog.write("t", rows(5), "append")
    assert local.rows("t.lance") == [1, 3, 4]
    catalog.upkeep.relocate("t", "t.lance")
    assert catalog.write("t", rows(5), "append").version == 6
    assert local.rows("t.lance") == [1, 3, 4, 5]


def test_move_that_fails_leaves_the_table_writable(local: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, other = filled(local, "v2"), local.connect("v2")
    location = catalog.find_table("t").location
    verify = TableRelocation._verify

    def rename_and_verify(*arguments: Any) -> None:
        other.rename_table("t", "u")
        verify(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(TableRelocation, "_verify", rename_and_verify)
        with pytest.raises(lancekeep.TableNotFound):
            catalog.upkeep.relocate("t", "new")
    catalog.write("u", rows(5), "append")
    next((Path(local.root) / location).glob("data/*")).unlink()
    with pytest.raises(lancekeep.Damaged, match="data/"):
        catalog.upkeep.relocate("u", "other")
    catalog.write("u", rows(6), "append")
    assert catalog.find_table("u").location == location


@pytest.mark.parametrize("store", ["files", "conditional-put"])
def test_killed_move_is_completed_by_the_next_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str) -> None:
    now = tmp_path / "now"
    url = f"file://{now}/commits?fsync=false" if store == "files" else "conditional-put://"
    lake = Lake(str(now / "lake"), url, {"fsync": "false"})
    filled(lake)
    calls = 0
    for at in killed_at_each_state(monkeypatch, now, lake.connect, lambda catalog: catalog.upkeep.relocate("t", "new")):
        calls += 1
        catalog = lake.connect()
        assert lake.rows(catalog.find_table("t").location) == [1, 3, 4], at
        catalog.upkeep.relocate("t", "new")
        assert catalog.find_table("t").location == "new"
        assert lake.rows("new") == [1, 3, 4], at
        assert lake.rows("new", "first") == [1, 2, 3], at
        assert catalog.write("t", rows(5), "append").version == 5
        assert not list((now / "lake" / "t.lance").glob("data/*")), at
    assert calls > 20


def test_command_shows_the_plan_before_it_moves_anything(local: Lake) -> None:
    filled(local)
    arguments = ["relocate", local.root, "--commit-store", str(local.commit_store), "t", "new"]
    shown = CliRunner().invoke(lancekeep_command, arguments, obj=lancekeep)
    assert shown.exit_code == 0
    assert "would move" in shown.output
    assert local.rows("t.lance") == [1, 3, 4]
    done = CliRunner().invoke(lancekeep_command, [*arguments, "--yes", "--json"], obj=lancekeep)
    assert json.loads(done.output)["versions"] == 3
    assert local.rows("new") == [1, 3, 4]
