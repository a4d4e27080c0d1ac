"""A catalog moves to another home of its entries, and nothing else changes."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import lance
import lance_namespace as api
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from faults import Crash
from hive_places import metastore
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lance.namespace import DirectoryNamespace as NativeNamespace

import lancekeep
from lancekeep.adapters.manifest_stores import open_unclaimed
from lancekeep.adapters.manifest_stores.directory_listing import DirectoryListing
from lancekeep.adapters.manifest_stores.hive.store import HiveManifestStore
from lancekeep.adapters.manifest_stores.lance_table import LanceManifestStore
from lancekeep.adapters.manifest_stores.postgres import PostgresManifestStore
from lancekeep.adapters.object_stores import open_object_store
from lancekeep.adapters.object_stores.local import LocalObjectStore
from lancekeep.application.catalog import directory_of
from lancekeep.application.entries.places import Places
from lancekeep.config import public_url
from lancekeep.domain.catalog import CatalogView, Change, Put, Remove, SetProperties
from lancekeep.domain.errors import ConcurrentModification, Damaged, InvalidInput, LancekeepError, Refused, Unsupported
from lancekeep.domain.home_copy import COPY_PROPERTY, all_entries, copied
from lancekeep.domain.identity import IDENTITY_PROPERTY, Identity
from lancekeep.domain.managed import MANAGED, STORAGE
from lancekeep.domain.manifest_entry import ManifestEntry
from lancekeep.domain.table import RESERVED_MARKER, Table
from lancekeep.entrypoints.cli import lancekeep as command
from lancekeep.hive.messages import Database

ROWS = pa.table({"a": [1, 2, 3]})
FAST = {"fsync": "false"}
EVERY = int(os.environ.get("LANCEKEEP_KILLS", "2")) > 2
"""Whether `make soak` runs the tests."""


@pytest.fixture
def lake(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


@pytest.fixture
def postgres(postgres_url: str) -> Callable[[], str]:
    """Return a function that returns the URL of a catalog that no other test uses."""
    return lambda: f"{postgres_url}?catalog={uuid4()}"


def connect(lake: str, home: str, **more: Any) -> lancekeep.Catalog:
    more |= {"mode": home} if "://" not in home else {"manifest_store": home}
    return lancekeep.connect(lake, commit_store="remembered", storage_options=FAST, **more)


def copy(lake: str, source: str, target: str, **more: Any) -> lancekeep.CatalogCopy:
    mode = next((home for home in (source, target) if "://" not in home), None)
    places = [home if "://" in home else lake for home in (source, target)]
    return lancekeep.copy_catalog(*places, root=lake, mode=mode, storage_options=FAST, **more)


def filled(lake: str, home: str) -> lancekeep.Catalog:
    """Return a catalog that holds an object of each kind."""
    catalog = connect(lake, home)
    catalog.create_namespace("ml", {"owner": "ann"})
    catalog.create_namespace("ml.deep")
    catalog.write("ml.deep.t", ROWS)
    catalog.write("ml.deep.t", ROWS, "append")
    catalog.tags.create("ml.deep.t", "first", 1)
    catalog.branches.create("ml.deep.t", "dev", version=1)
    catalog.write("root_table", ROWS)
    catalog.write("dropped", ROWS)
    catalog.drop_table("dropped", keep=timedelta(days=3))
    catalog.declare_table("declared")
    view = lancekeep.ViewDefinition.parse('{"table": ["root_table"], "columns": ["a"]}', auto_refresh=False)
    catalog.views.create("v", view, ROWS.schema)
    return catalog


def state(catalog: lancekeep.Catalog) -> dict[str, Any]:
    """Return what a catalog holds: entries, properties, and rows by plain pylance."""
    view = directory_of(catalog).ledger.view()
    chosen = catalog.list_all_tables(include_declared=False)
    tables = {str(table): catalog.describe_table(table).uri for table in chosen}
    return {
        "entries": [(each.object_id, each.object_type, each.location, each.metadata) for each in all_entries(view)],
        "properties": dict(view.properties),
        "rows": {name: lance.dataset(uri).to_table().to_pydict() for name, uri in tables.items()},
    }


@pytest.mark.parametrize("mode", ["v2", "compatible"])
def test_catalog_moves_to_postgresql_and_back(lake: str, postgres: Callable[[], str], mode: str) -> None:
    url = postgres()
    catalog = filled(lake, mode)
    before = state(catalog)
    report = copy(lake, mode, url)
    assert (report.done, report.obstacles, report.dropped, report.namespaces) == (True, (), 1, 2)
    moved = connect(lake, url)
    assert state(moved) == before
    assert moved.tags.list("ml.deep.t").keys() == {"first"}
    assert list(moved.branches.list("ml.deep.t")) == ["dev"]
    moved.write("root_table", ROWS, "append")
    moved.drop_table("declared", keep=timedelta(0))
    moved.create_namespace("later")
    moved.undrop("dropped")
    after = state(moved)
    assert copy(lake, url, mode).done
    assert state(connect(lake, mode)) == after
    assert connect(lake, mode).upkeep.fsck(grace=0).findings == ()
    with pytest.raises(Refused, match="holds a catalog whose entries are in the directory"):
        connect(lake, url)


def test_declared_table_without_a_directory_gets_one_for_native_writers(
    lake: str, postgres: Callable[[], str], tmp_path: Path
) -> None:
    url, rows = postgres(), f"sqlite://{tmp_path}/commits.db"
    with lancekeep.connect(lake, manifest_store=url, commit_store=rows, storage_options=FAST) as catalog:
        place = Path(lake, catalog.declare_table("t").location)
        assert not place.exists()
        by_storage = catalog.declare_table("by_storage", {MANAGED: STORAGE})
        assert Path(lake, by_storage.location, RESERVED_MARKER).exists(), "no row tells whether it had versions"
        catalog.declare_table("altered")
        catalog.alter_table("altered", {MANAGED: STORAGE})
        assert catalog.upkeep.fsck(grace=0).findings == ()
        catalog.write("u", ROWS)
        lost = Path(lake, catalog.find_table("u").location)
        lost.rename(tmp_path / "elsewhere")
        with pytest.raises(Refused, match=r"u: its directory .* holds nothing"):
            copy(lake, url, "v2")
        catalog.drop_table("u")
    assert copy(lake, url, "v2").done
    assert [each.name for each in place.iterdir()] == [RESERVED_MARKER]
    assert connect(lake, "v2").upkeep.fsck(grace=0).findings == ()
    NativeNamespace(root=lake, dir_listing_enabled="false").drop_table(api.DropTableRequest(id=["t"]))
    assert not place.exists()


def test_declared_table_whose_versions_are_in_the_storage_is_marked(lake: str, postgres: Callable[[], str]) -> None:
    url, rows = postgres(), "conditional-put://"
    with lancekeep.connect(lake, manifest_store=url, commit_store=rows, storage_options=FAST) as catalog:
        assert Path(lake, catalog.declare_table("t").location, RESERVED_MARKER).exists()


def test_catalog_moves_between_two_databases(lake: str, postgres: Callable[[], str]) -> None:
    first, second = postgres(), postgres()
    before = state(filled(lake, first))
    assert copy(lake, first, second).done
    assert state(connect(lake, second)) == before
    with pytest.raises(Refused, match="are in the manifest store"):
        connect(lake, first)
    assert copy(lake, second, first).done
    assert state(connect(lake, first)) == before


# -- the source ----------------------------------------------------------------------------------------------------

OPERATIONS: dict[str, Callable[[lancekeep.Catalog], object]] = {
    "read": lambda catalog: catalog.open("root_table"),
    "list": lambda catalog: catalog.list_all_tables(),
    "create": lambda catalog: catalog.create_namespace("new"),
    "append": lambda catalog: catalog.write("root_table", ROWS, "append"),
    "write": lambda catalog: catalog.write("new", ROWS),
    "drop": lambda catalog: catalog.drop_table("root_table"),
    "rename": lambda catalog: catalog.rename_table("root_table", "ml.renamed"),
    "properties": lambda catalog: catalog.alter_namespace("ml", {"a": "b"}),
    "fsck": lambda catalog: catalog.upkeep.fsck(),
    "optimize": lambda catalog: catalog.upkeep.optimize(),
    "commit store": lambda catalog: catalog.upkeep.change_commit_store("conditional-put://"),
}


@pytest.mark.parametrize("home", ["v2", "compatible", "postgresql"])
def test_process_that_has_the_source_open_is_refused(lake: str, postgres: Callable[[], str], home: str) -> None:
    source, target = postgres() if home == "postgresql" else home, postgres()
    filled(lake, source)
    old = connect(lake, source)
    old.list_all_tables()
    copy(lake, source, target)
    before = state(connect(lake, target))
    for operation in OPERATIONS.values():
        with pytest.raises(Refused, match=r"moved to postgresql://.*Connect with manifest_store='postgresql://"):
            operation(old)
    assert state(connect(lake, target)) == before
    with pytest.raises(Refused, match="postgresql://"):
        connect(lake, source)


@pytest.mark.parametrize("mode", ["v1", "v2", "compatible"])
def test_directory_is_refused_in_each_mode_after_it_was_left(lake: str, postgres: Callable[[], str], mode: str) -> None:
    connect(lake, "compatible").write("t", ROWS)
    old = connect(lake, mode)
    old.list_all_tables()
    copy(lake, "compatible", postgres())
    with pytest.raises(Refused, match="moved to postgresql://"):
        old.write("other", ROWS)
    with pytest.raises(Refused, match="moved to postgresql://"):
        connect(lake, mode)


def test_native_writers_cannot_follow_the_fence(lake: str, postgres: Callable[[], str]) -> None:
    filled(lake, "v2")
    native = NativeNamespace(root=lake)
    stale = lance.dataset(f"{lake}/__manifest")
    copy(lake, "v2", postgres())
    for dataset in (stale, lance.dataset(f"{lake}/__manifest")):
        with pytest.raises(OSError, match="writ"):
            dataset.delete("true")
    with pytest.raises(Exception, match=r"(?i)writ|feature|flag"):
        native.create_namespace(api.CreateNamespaceRequest(id=["native"]))


# -- the plan ------------------------------------------------------------------------------------------------------


def test_plan_changes_nothing(lake: str, postgres: Callable[[], str]) -> None:
    catalog = filled(lake, "v2")
    before = state(catalog)
    files = sorted(Path(lake).rglob("*"))
    report = copy(lake, "v2", postgres(), dry_run=True)
    assert (report.dry_run, report.done, report.tables) == (True, False, 4)
    assert state(catalog) == before
    assert sorted(Path(lake).rglob("*")) == files


def test_v1_directory_is_refused_what_it_cannot_hold(lake: str, postgres: Callable[[], str]) -> None:
    url = postgres()
    catalog = filled(lake, url)
    report = copy(lake, url, "v1", dry_run=True)
    reasons = {each.name: each.reason for each in report.obstacles}
    assert {"ml", "ml.deep", "ml.deep.t", "root_table"} <= reasons.keys()
    with pytest.raises(Refused, match=r"ml: a V1 directory has no level.*Nothing was copied"):
        copy(lake, url, "v1")
    catalog.create_namespace("still_here")
    assert not Path(lake, "__manifest").exists()


def test_table_without_files_is_refused_before_anything_is_written(lake: str, postgres: Callable[[], str]) -> None:
    catalog = connect(lake, "v2")
    catalog.write("t", ROWS)
    location = Path(catalog.describe_table("t").uri.removeprefix("file://"))
    location.rename(location.with_name("elsewhere"))
    with pytest.raises(Refused, match=r"t: its directory .* holds nothing"):
        copy(lake, "v2", postgres())
    catalog.create_namespace("still_here")
    location.with_name("elsewhere").rename(location)
    url = postgres()
    copy(lake, "v2", url)
    location.rename(location.with_name("elsewhere"))
    with pytest.raises(Refused, match=r"t: its directory .* holds nothing"):
        copy(lake, url, "v2")


def test_table_that_is_dropped_while_the_plan_is_made_is_no_obstacle(
    lake: str, postgres: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, url = connect(lake, "v2"), postgres()
    catalog.write("t", ROWS)
    catalog.write("u", ROWS)
    is_occupied = Places.is_occupied

    def drop_first(places: Places, table: Table) -> bool:
        if catalog.table_exists("t"):
            catalog.drop_table("t")
        return is_occupied(places, table)

    monkeypatch.setattr(Places, "is_occupied", drop_first)
    monkeypatch.setattr("lancekeep.application.upkeep.copy_plan.all_alongside", map)
    assert copy(lake, "v2", url).done
    assert connect(lake, url).list_tables() == ["u"]


def test_home_of_another_catalog_is_refused(lake: str, tmp_path: Path, postgres: Callable[[], str]) -> None:
    url, other = postgres(), str(tmp_path / "other")
    filled(other, url)
    catalog = filled(lake, "v2")
    with pytest.raises(Refused, match="is the catalog of"):
        copy(lake, "v2", url)
    with pytest.raises(InvalidInput, match="another root"):
        lancekeep.copy_catalog(lake, other)
    with pytest.raises(InvalidInput, match="call migrate"):
        lancekeep.copy_catalog(lake, lake)
    catalog.create_namespace("still_here")


def test_snapshot_for_native_readers_gives_way_to_the_catalog(lake: str, postgres: Callable[[], str]) -> None:
    url = postgres()
    catalog = filled(lake, url)
    catalog.upkeep.export_manifest()
    catalog.drop_table("declared", keep=timedelta(0))
    catalog.write("later", ROWS)
    before = state(catalog)
    assert copy(lake, url, "v2").done
    assert state(connect(lake, "v2")) == before
    again = postgres()
    assert copy(lake, "v2", again).done
    connect(lake, again).upkeep.export_manifest()
    with pytest.raises(Refused, match=f"the entries .* are in the manifest store {re.escape(public_url(again))}"):
        lancekeep.connect(lake, storage_options=FAST)
    with pytest.raises(Refused, match=r"holds a catalog of its own|are in the manifest store"):
        copy(lake, url, "v2")
    assert copy(lake, again, "v2").done
    assert state(connect(lake, "v2")) == before


def test_copied_root_does_not_take_the_catalog_over(lake: str, tmp_path: Path, postgres: Callable[[], str]) -> None:
    filled(lake, "v2")
    Path(lake).rename(tmp_path / "moved")
    with pytest.raises(Refused, match="adopt_identity"):
        copy(str(tmp_path / "moved"), "v2", postgres())


# -- versions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", ["conditional-put://", "sqlite://{}/old.db", None])
def test_version_rows_move_to_the_commit_store_of_the_target(
    lake: str, tmp_path: Path, postgres: Callable[[], str], postgres_url: str, before: str | None
) -> None:
    url = postgres()
    store = before and before.format(tmp_path)
    catalog = lancekeep.connect(lake, mode="v2", commit_store=store, storage_options=FAST)
    catalog.write("t", ROWS)
    catalog.write("t", ROWS, "append")
    report = copy(lake, "v2", url, to_commit_store=postgres_url)
    assert report.rows == 2
    moved = lancekeep.connect(lake, impl="postgres", uri=url, storage_options=FAST)
    moved.write("t", ROWS, "append")
    assert moved.data.count("t") == 9
    assert copy(lake, "v2", url, to_commit_store=postgres_url).rows == 0
    with pytest.raises(LancekeepError):
        catalog.write("t", ROWS, "append")


# -- kills, and changes of other writers ---------------------------------------------------------------------------

STEPS = [
    (PostgresManifestStore, "apply"),
    (HiveManifestStore, "apply"),
    (LanceManifestStore, "apply"),
    (DirectoryListing, "remember"),
    (DirectoryListing, "hide"),
    (DirectoryListing, "show"),
]
"""The methods by which a copy writes."""


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[str], None]]:
    """Return a list; its last function is called before and after each write, except for its own writes."""
    hooks: list[Callable[[str], None]] = []
    inside = [False]

    def wrapped(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if inside[0] or not hooks:
                return method(*args)
            result = None
            for when in ("before", "after"):
                inside[0] = True
                try:
                    if when == "after":
                        result = method(*args)
                    hooks[-1](when)
                finally:
                    inside[0] = False
            return result

        return call

    for kind, name in STEPS:
        monkeypatch.setattr(kind, name, wrapped(getattr(kind, name)))
    return hooks


class Writer:
    """A process that has the source open since the beginning, and makes random changes."""

    def __init__(self, catalog: lancekeep.Catalog, chance: random.Random, prefix: str = "n") -> None:
        self.catalog = catalog
        self.chance = chance
        self.refused = 0
        self.prefix = prefix
        self.kept = self.found(catalog)

    def found(self, catalog: lancekeep.Catalog) -> dict[str, Any]:
        """Return the namespaces that the writer may have changed."""
        names = (name for name in catalog.list_namespaces() if name.startswith(self.prefix))
        return {name: dict(catalog.describe_namespace(name).properties) for name in names}

    def change(self) -> None:
        name, value = f"{self.prefix}{self.chance.randrange(6)}", {"value": str(self.chance.random())}
        try:
            if name not in self.kept:
                self.catalog.create_namespace(name, value)
            elif self.chance.random() < 0.4:
                self.catalog.drop_namespace(name)
                del self.kept[name]
                return
            else:
                self.catalog.alter_namespace(name, value)
            self.kept[name] = value
        except Refused:
            self.refused += 1


def run_with(
    lake: str, ends: tuple[str, str], hooks: list[Callable[[str], None]], writer: Writer, kill: tuple[int, str] | None
) -> bool:
    """Copy a catalog while a writer changes it; return whether the copy was killed."""
    calls = [0]

    def hook(when: str) -> None:
        writer.change()
        if (calls[0], when) == kill:
            raise Crash
        calls[0] += when == "after"

    hooks.append(hook)
    try:
        copy(lake, *ends)
    except Crash:
        return True
    finally:
        hooks.clear()
    return False


def check_homes(lake: str, ends: tuple[str, str], writer: Writer, table: str = "t") -> None:
    """Check that only the target is a home, and that it has every change that the source acknowledged."""
    assert writer.refused
    with connect(lake, ends[1]) as target:
        found = writer.found(target)
        if ends[1].startswith("hive:"):  # dropped namespaces stay there, because other software may use them
            found = {name: value for name, value in found.items() if name in writer.kept or target.list_tables(name)}
        assert found == writer.kept
        assert lance.dataset(target.describe_table(table).uri).to_table() == ROWS
    with pytest.raises(Refused):
        connect(lake, ends[0])


def test_copy_killed_at_each_write_is_completed_by_the_next(
    lake: str, postgres: Callable[[], str], between: list[Callable[[str], None]]
) -> None:
    homes = ["v2", postgres()]
    with connect(lake, "v2") as catalog:
        catalog.write("t", ROWS)
    killed, chance = [True, True], random.Random(1)
    for number in itertools.count():
        for when in ("before", "after"):
            ends = (homes[0], homes[1])
            with connect(lake, ends[0]) as source:
                writer = Writer(source, chance)
                was_killed = run_with(lake, ends, between, writer, (number, when))
                killed.append(was_killed)
                if was_killed:
                    assert not run_with(lake, ends, between, writer, None)
                check_homes(lake, ends, writer)
            homes.reverse()
        if not any(killed[-4:]):
            break
    assert killed.count(True) > 15


def test_fence_of_a_compatible_directory_that_was_stopped_in_the_middle_is_completed(
    lake: str, postgres: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of the root has the fence before the manifest table has it."""
    url = postgres()
    connect(lake, "compatible").create_namespace("n")
    remember = DirectoryListing.remember

    def stopped(*args: Any) -> bool:
        remember(*args)
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(DirectoryListing, "remember", stopped)
        with pytest.raises(Crash):
            copy(lake, "compatible", url)
    assert "lancekeep.moved_to" in Path(lake, ".lancekeep.json").read_text()
    assert copy(lake, "compatible", url).done
    with pytest.raises(OSError, match="writ"):
        lance.dataset(f"{lake}/__manifest").delete("true")
    assert copy(lake, url, "compatible").done


def is_home(lake: str, home: str) -> bool:
    try:
        connect(lake, home).close()
    except LancekeepError:
        return False
    return True


@pytest.mark.parametrize("seed", range(2))
def test_random_catalog_moves_in_random_directions_with_kills(
    lake: str, postgres: Callable[[], str], between: list[Callable[[str], None]], seed: int
) -> None:
    chance = random.Random(seed)
    at, homes = "compatible", ["compatible", postgres(), postgres()]
    with connect(lake, at) as catalog:
        catalog.write("t", ROWS)
        catalog.write("kept", ROWS)
        catalog.drop_table("kept", keep=timedelta(days=1))
    for _ in range(5):
        to = chance.choice([home for home in homes if home != at])
        with connect(lake, at) as source:
            writer = Writer(source, chance)
            while run_with(lake, (at, to), between, writer, (chance.randrange(12), chance.choice(["before", "after"]))):
                assert sum(is_home(lake, home) for home in (at, to)) <= 1
            check_homes(lake, (at, to), writer)
        at = to
        with connect(lake, at) as catalog:
            assert [str(each.id) for each in catalog.list_dropped()] == ["kept"]
            assert catalog.upkeep.fsck(grace=0).findings == ()


@pytest.mark.parametrize("number", range(0, 7, 2))
def test_copy_that_is_given_up_leaves_the_source_as_it_was(
    lake: str, postgres: Callable[[], str], between: list[Callable[[str], None]], number: int
) -> None:
    """Also if giving up is killed, too. Such a copy never becomes a home later."""
    url = postgres()
    with connect(lake, "compatible") as catalog:
        catalog.write("t", ROWS)
        before = state(catalog)

    def killed_after(writes: int) -> Callable[[str], None]:
        made = itertools.count(1)

        def kill(when: str) -> None:
            if when == "after" and next(made) > writes:
                raise Crash

        return kill

    for give_up, writes in ((False, number), (True, 0), (True, 1), (True, 2)):
        between.append(killed_after(writes))
        with suppress(Crash, Refused):  # refused if it is given up already
            copy(lake, "compatible", url, give_up=give_up)
        between.clear()
    with suppress(Refused):
        copy(lake, "compatible", url, give_up=True)
    with connect(lake, "compatible") as catalog:
        assert state(catalog) == before
        catalog.create_namespace("later")
    with pytest.raises(Refused):
        connect(lake, url)
    assert copy(lake, "compatible", url).done
    assert connect(lake, url).namespace_exists("later")


@pytest.mark.parametrize(("at", "give_up"), [("v2", False), ("postgresql", True)])
def test_unfinished_copy_of_a_former_home_is_taken_over_or_given_up(
    lake: str, postgres: Callable[[], str], between: list[Callable[[str], None]], at: str, give_up: bool
) -> None:
    """The catalog moved elsewhere before the copy to ``stuck`` was finished."""
    first, second, stuck = ("v2", postgres(), postgres()) if at == "v2" else (postgres(), postgres(), "v2")
    with connect(lake, first) as catalog:
        catalog.write("t", ROWS)
        catalog.write("left_behind", ROWS)
    stop_after(2, between, lambda: copy(lake, first, stuck))
    with connect(lake, first) as catalog:
        catalog.drop_table("left_behind")
    assert copy(lake, first, second).done
    with connect(lake, second) as catalog:
        catalog.write("later", ROWS)
        before = state(catalog)
    with pytest.raises(Refused, match=r"moved to|are in the manifest store"):
        copy(lake, first, stuck, give_up=True)
    if give_up:
        copy(lake, second, stuck, give_up=True)
        with pytest.raises(Refused, match=r"moved to|are in the manifest store"):
            connect(lake, stuck).list_all_tables()
        with connect(lake, second) as catalog:
            assert state(catalog) == before
    assert copy(lake, second, stuck).done
    for left in (first, second):
        with pytest.raises(Refused, match=r"moved to|are in the"):
            connect(lake, left)
    with connect(lake, stuck) as catalog:
        assert state(catalog)["rows"] == before["rows"]
        assert catalog.upkeep.fsck(grace=0).findings == ()


def test_unfinished_copy_of_another_catalog_is_neither_taken_over_nor_given_up(
    lake: str, tmp_path: Path, postgres: Callable[[], str], between: list[Callable[[str], None]]
) -> None:
    stuck, other = postgres(), str(tmp_path / "other")
    for root in (lake, other):
        with connect(root, "v2") as catalog:
            catalog.write("t", ROWS)
    stop_after(2, between, lambda: copy(lake, "v2", stuck))
    for give_up in (False, True):
        with pytest.raises(Refused, match=r"is the catalog of .*/lake"):
            copy(other, "v2", stuck, give_up=give_up)
    assert copy(lake, "v2", stuck).done


def stop_after(writes: int, between: list[Callable[[str], None]], act: Callable[[], object]) -> None:
    """Run an act that is killed after some of its writes."""
    made = itertools.count(1)

    def kill(when: str) -> None:
        if when == "after" and next(made) == writes:
            raise Crash

    between.append(kill)
    with pytest.raises(Crash):
        act()
    between.clear()


@pytest.mark.parametrize("number", range(1, 5))
def test_target_that_others_change_during_the_copy_is_complete_afterwards(
    lake: str, postgres: Callable[[], str], between: list[Callable[[str], None]], number: int
) -> None:
    """Also after the fence, when only the entries that changed are compared."""
    url = postgres()
    with connect(lake, "v2") as catalog:
        catalog.write("t", ROWS)
        objects, key = open_object_store(lake, FAST)
        writes = itertools.count(1)

        def disturb(when: str) -> None:
            if when == "after" and next(writes) == number:
                with closing(open_unclaimed(url, {}, objects, key)) as target:
                    target.apply(lambda view: ([Remove("t")] if view.find("t") else [], None))

        between.append(disturb)
        assert copy(lake, "v2", url).done
        between.clear()
    assert next(writes) > number
    with connect(lake, url) as target:
        assert list(state(target)["rows"]) == ["t"]


def test_target_that_loses_an_entry_after_the_fence_does_not_become_the_home(
    lake: str, postgres: Callable[[], str], between: list[Callable[[str], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres()
    writes = itertools.count(1)
    with connect(lake, "v2") as catalog, monkeypatch.context() as losing:
        catalog.write("t", ROWS)

        def create(when: str) -> None:
            if when == "before" and next(writes) == 4:  # the fence
                catalog.create_namespace("late")

        def without(view: CatalogView, changes: Sequence[Change], **given: Any) -> tuple[Sequence[Change], None]:
            kept = [each for each in changes if not (isinstance(each, Put) and each.entry.object_id == "late")]
            return copied(view, changes=kept, **given)

        losing.setattr("lancekeep.application.upkeep.catalog_copy.copied", without)
        between.append(create)
        with pytest.raises(Damaged, match="does not hold what was copied"):
            copy(lake, "v2", url)
        between.clear()
        with pytest.raises(Refused):
            connect(lake, url)
    assert copy(lake, "v2", url).done
    with connect(lake, url) as target:
        assert target.namespace_exists("late")


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the prefixes that are listed in local storage."""
    prefixes: list[str] = []
    listing = LocalObjectStore.list

    def counted(store: LocalObjectStore, prefix: str, *, after: str = "") -> Any:
        prefixes.append(prefix)
        return listing(store, prefix, after=after)

    monkeypatch.setattr(LocalObjectStore, "list", counted)
    return prefixes


def directories_in(prefixes: list[str]) -> set[str]:
    return {found for each in prefixes for found in re.findall(r"[^/]*\.lance(?=/)", each)}


def names_seen_by_pylance(lake: str) -> list[str]:
    """Return the tables that a native reader finds in the directories."""
    native = NativeNamespace(root=lake, manifest_enabled="false")
    return sorted(native.list_tables(api.ListTablesRequest(id=[])).tables)


def test_way_back_lists_only_directories_of_changed_entries_after_the_fence(
    lake: str, postgres: Callable[[], str], listed: list[str]
) -> None:
    url = postgres()
    with connect(lake, "compatible") as catalog:
        catalog.write("t0", ROWS)
    for number in range(1, 10):
        shutil.copytree(f"{lake}/t0.lance", f"{lake}/t{number}.lance")
    assert copy(lake, "compatible", url).done
    shutil.copytree(f"{lake}/t0.lance", f"{lake}/foreign.lance")
    with connect(lake, url) as catalog:
        catalog.drop_table("t1", keep=timedelta(days=1))
        catalog.drop_table("t2", keep=timedelta(days=1))

        def change(done: int, total: int, name: str) -> None:
            if name == "fence":  # all directories were read
                assert directories_in(listed) > {f"t{number}.lance" for number in range(10)}
                catalog.drop_table("t3", keep=timedelta(days=1))
                catalog.undrop("t1")
                catalog.rename_table("t4", "renamed")
            listed.clear()

        assert copy(lake, url, "compatible", progress=change).done
    assert directories_in(listed) == {f"t{number}.lance" for number in range(1, 5)}
    seen = ["t0", "t1", *(f"t{number}" for number in range(4, 10))]
    assert names_seen_by_pylance(lake) == seen
    with connect(lake, "compatible") as catalog:
        assert catalog.list_tables() == sorted({*seen, "renamed"} - {"t4"})


def resumed_copy(lake: str, at: str, to: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Complete a copy; return how often it reads all entries of a home after the fence."""
    readings: list[CatalogView] = []
    with monkeypatch.context() as counting:

        def counted(view: CatalogView) -> Any:
            readings.append(view)
            return all_entries(view)

        counting.setattr("lancekeep.application.upkeep.catalog_copy.all_entries", counted)
        assert copy(lake, at, to).done
    return len(readings)


def stopped_after_the_fence(lake: str, at: str, to: str) -> None:
    """Copy a catalog that gets a last change right before the fence, and end the process right after the fence."""
    with connect(lake, at) as catalog:

        def step(done: int, total: int, name: str) -> None:
            if name == "fence":
                catalog.create_namespace("late")
                catalog.drop_table("t")
            if name == "last changes":
                raise Crash

        with pytest.raises(Crash):
            copy(lake, at, to, progress=step)


@pytest.mark.parametrize("back", [False, True])
def test_copy_that_was_stopped_after_the_fence_continues_with_the_changes_since(
    lake: str, postgres: Callable[[], str], listed: list[str], monkeypatch: pytest.MonkeyPatch, back: bool
) -> None:
    at, to = (postgres(), "v2") if back else ("v2", postgres())
    with connect(lake, at) as catalog:
        catalog.write("t", ROWS)
        catalog.write("u", ROWS)
    stopped_after_the_fence(lake, at, to)
    with pytest.raises(Crash):  # a second time, in another process
        copy(lake, at, to, progress=crashing)
    listed.clear()
    assert resumed_copy(lake, at, to, monkeypatch) == 0
    with connect(lake, to) as catalog:
        assert (catalog.list_namespaces(), catalog.list_tables()) == (["late"], ["u"])


def crashing(done: int, total: int, name: str) -> None:
    if name == "last changes":
        raise Crash


Record = dict[str, Any]


def other_token(record: Record, latest: Sequence[str]) -> Record:
    """As after a restore: the positions are of a version whose change was another."""
    return record | {"compared": [f"{each.partition('.')[0]}.{'0' * 32}" for each in latest]}


def beyond(record: Record, latest: Sequence[str]) -> Record:
    """As after a restore of an older state."""
    return record | {"compared": [f"{int(each.partition('.')[0]) + 9}.{'0' * 32}" for each in latest]}


@pytest.mark.parametrize(
    "changed",
    [
        other_token,
        beyond,
        pytest.param(lambda record, latest: record | {"compared": "x"}, id="no positions"),
        pytest.param(lambda record, latest: record | {"compared": ["x", 3]}, id="damaged"),
        pytest.param(lambda record, latest: record | {"compared": [None, latest[1]]}, id="one home"),
        pytest.param(lambda record, latest: {name: record[name] for name in ("source", "copier")}, id="older release"),
        pytest.param(None, id="other identity"),
    ],
)
def test_stored_positions_that_do_not_fit_are_not_used(
    lake: str,
    postgres: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
    changed: Callable[[Record, Sequence[str]], Record] | None,
) -> None:
    url = postgres()
    with connect(lake, "v2") as catalog:
        catalog.write("t", ROWS)
        catalog.write("u", ROWS)
        source = directory_of(catalog).ledger.manifest
        stopped_after_the_fence(lake, "v2", url)
        with closing(open_unclaimed(url, {}, *open_object_store(lake, FAST))) as target:
            latest = [str(store.feed.latest()) for store in (source, target) if store.feed is not None]
            properties = target.view().properties
            stored = {IDENTITY_PROPERTY: Identity("f" * 32, "elsewhere").text()}
            if changed is not None:
                stored = {COPY_PROPERTY: json.dumps(changed(json.loads(properties[COPY_PROPERTY]), latest))}
            target.apply(lambda view: ([SetProperties(stored)], None))
    assert resumed_copy(lake, "v2", url, monkeypatch) > 0
    with connect(lake, url) as catalog:
        assert (catalog.list_namespaces(), catalog.list_tables()) == (["late"], ["u"])


def test_stored_positions_whose_changes_were_cleaned_up_are_not_used(
    lake: str, postgres: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres()
    with connect(lake, "v2") as catalog:
        catalog.write("t", ROWS)
        catalog.write("u", ROWS)
    stopped_after_the_fence(lake, "v2", url)
    versions = sorted(Path(lake, "__manifest", "_versions").glob("*.manifest"))
    for version in versions[1:]:  # the latest is the first one
        version.unlink()
    assert resumed_copy(lake, "v2", url, monkeypatch) > 0
    with connect(lake, url) as catalog:
        assert (catalog.list_namespaces(), catalog.list_tables()) == (["late"], ["u"])


@pytest.mark.parametrize("number", range(1, 4))
def test_native_directory_that_appears_before_the_fence_is_copied(
    lake: str, postgres: Callable[[], str], between: list[Callable[[str], None]], number: int
) -> None:
    url = postgres()
    with connect(lake, "compatible") as catalog:
        catalog.write("t", ROWS)
    writes = itertools.count(1)

    def appear(when: str) -> None:
        if when == "before" and next(writes) == number:
            lance.write_dataset(ROWS, f"{lake}/late.lance")

    between.append(appear)
    assert copy(lake, "compatible", url).done
    between.clear()
    with connect(lake, url) as target:
        assert state(target)["rows"].keys() == {"t", "late"}


def test_finished_copy_is_not_given_up(lake: str, postgres: Callable[[], str]) -> None:
    url = postgres()
    with connect(lake, "v2") as catalog:
        catalog.write("t", ROWS)
    with pytest.raises(Refused, match="has not begun"):
        copy(lake, "v2", url, give_up=True)
    copy(lake, "v2", url)
    with pytest.raises(Refused, match="is finished"):
        copy(lake, "v2", url, give_up=True)
    assert connect(lake, url).table_exists("t")


def test_second_copy_takes_over_and_the_first_stops(
    lake: str, postgres: Callable[[], str], between: list[Callable[[str], None]]
) -> None:
    url = postgres()
    with connect(lake, "v2") as catalog:
        catalog.write("t", ROWS)
    calls = itertools.count()

    def overtaken(when: str) -> None:
        if when == "after" and next(calls) == 1:
            assert copy(lake, "v2", url).done

    between.append(overtaken)
    with pytest.raises(ConcurrentModification, match="another process"):
        copy(lake, "v2", url)
    between.clear()
    assert copy(lake, "v2", url).done
    assert connect(lake, url).table_exists("t")


def test_v1_directory_moves_while_writers_are_stopped_and_back(lake: str, postgres: Callable[[], str]) -> None:
    url = postgres()
    with connect(lake, "v1") as catalog:
        catalog.write("t", ROWS)
        catalog.write("u", ROWS)
    old = connect(lake, "v1")
    old.list_all_tables()
    with pytest.raises(Unsupported, match="writers_stopped"):
        copy(lake, "v1", url)
    assert copy(lake, "v1", url, writers_stopped=True).tables == 2
    with pytest.raises(Refused, match="moved to postgresql://"):
        old.write("v", ROWS)
    with connect(lake, url) as moved:
        assert sorted(map(str, moved.list_all_tables())) == ["t", "u"]
        moved.drop_table("u", keep=timedelta(0))
    assert copy(lake, url, "v1").done
    with connect(lake, "v1") as back:
        assert list(map(str, back.list_all_tables())) == ["t"]
        assert back.data.count("t") == 3
        back.write("w", ROWS)


def test_command_shows_the_plan_and_moves_the_catalog(lake: str, postgres: Callable[[], str]) -> None:
    url = postgres()
    filled(lake, "v2").close()

    def run(*arguments: str) -> Result:
        options = ["--storage-option", "fsync=false", "--mode", "v2"]
        return CliRunner().invoke(command, ["copy-catalog", *options, *arguments], obj=lancekeep)

    plan = run(lake, url)
    assert (plan.exit_code, "--yes" in plan.stdout) == (0, True), plan.output
    connect(lake, "v2").close()
    moved = run(lake, url, "--yes", "--json")
    assert json.loads(moved.stdout)["done"], moved.output
    refused = CliRunner().invoke(command, ["copy-catalog", url, lake, "--mode", "v1"], obj=lancekeep)
    assert (refused.exit_code, "ml.deep.t" in refused.stdout) == (1, True), refused.output
    assert connect(lake, url).namespace_exists("ml.deep")


# -- a Hive Metastore ----------------------------------------------------------------------------------------------


@pytest.fixture
def space() -> str:
    """Return the name of a database that no other test has."""
    return f"n_{uuid4().hex[:8]}"


def test_catalog_moves_to_a_metastore_and_back(
    lake: str, space: str, hive_url: str, postgres: Callable[[], str]
) -> None:
    catalog = connect(lake, "v2")
    catalog.create_namespace(space, {"owner": "ann"})
    for name in ("t", "dropped", "u"):
        catalog.write(f"{space}.{name}", ROWS)
    catalog.alter_table(f"{space}.t", {"a": "b"})
    catalog.drop_table(f"{space}.dropped", keep=timedelta(days=3))
    before = state(catalog)
    server = metastore(hive_url)
    server.create_database(Database(f"{space}_other"))
    report = copy(lake, "v2", hive_url)
    assert (report.done, report.tables, report.dropped) == (True, 2, 1)
    with pytest.raises(Refused, match="moved to hive://"):
        catalog.create_namespace("other")
    moved = connect(lake, hive_url)
    assert of_space(state(moved), space) == of_space(before, space)
    assert f"{space}_other" in moved.list_namespaces()
    moved.undrop(f"{space}.dropped")
    moved.drop_table(f"{space}.u", keep=timedelta(0))
    moved.write(f"{space}.t", ROWS, "append")
    after = of_space(state(moved), space)
    url = postgres()
    assert copy(lake, hive_url, url).done
    with pytest.raises(Refused, match="moved to postgresql://"):
        moved.create_namespace("other")
    elsewhere = connect(lake, url)
    assert of_space(state(elsewhere), space) == after
    elsewhere.rename_table(f"{space}.t", f"{space}.renamed")
    assert copy(lake, url, hive_url).done
    assert [str(each) for each in connect(lake, hive_url).list_all_tables() if each.names[0] == space] == [
        f"{space}.dropped",
        f"{space}.renamed",
    ]
    assert server.database(f"{space}_other") is not None


def of_space(found: dict[str, Any], space: str) -> dict[str, Any]:
    """Return the part of a state in a namespace: a Metastore has databases of other software, too."""
    entries = [
        (each[0], each[1], each[2], ManifestEntry(*each).properties) for each in found["entries"] if space in each[0]
    ]
    return {"entries": [each for each in entries if "_other" not in each[0]], "rows": found["rows"]}


def test_metastore_is_refused_what_it_cannot_hold(lake: str, space: str, hive_url: str) -> None:
    catalog = connect(lake, "v2")
    catalog.create_namespace(space)
    catalog.create_namespace(f"{space}.deep")
    catalog.create_namespace("Größe")
    catalog.create_namespace(f"{space}_taken", {"a": "mine"})
    catalog.write("root_table", ROWS)
    catalog.write(f"{space}.t", ROWS)
    server = metastore(hive_url)
    server.create_database(Database(f"{space}_taken", parameters={"a": "theirs"}))
    databases = server.databases()
    report = copy(lake, "v2", hive_url, dry_run=True)
    assert {each.name for each in report.obstacles} == {f"{space}.deep", "Größe", f"{space}_taken", "root_table"}
    with pytest.raises(Refused, match="Nothing was copied"):
        copy(lake, "v2", hive_url)
    assert server.databases() == databases
    catalog.create_namespace("still_here")


def test_copy_into_a_metastore_survives_kills_between_changes(
    lake: str, space: str, hive_url: str, between: list[Callable[[str], None]]
) -> None:
    homes = ["v2", hive_url]
    with connect(lake, "v2") as catalog:
        catalog.create_namespace(space)
        catalog.write(f"{space}.t", ROWS)
    killed, chance = 0, random.Random(3)
    for number in range(6) if EVERY else (1,):
        for when in ("before", "after"):
            ends = (homes[0], homes[1])
            with connect(lake, ends[0]) as source:
                writer = Writer(source, chance, f"{space}_")
                if run_with(lake, ends, between, writer, (number, when)):
                    killed += 1
                    assert not run_with(lake, ends, between, writer, None)
            check_homes(lake, ends, writer, f"{space}.t")
            homes.reverse()
    assert killed > (5 if EVERY else 1)


# -- random catalogs -----------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "größe", "таблица", "😀", "a b", "A", "a!"])
TEXTS = st.dictionaries(st.sampled_from(["k", "ключ", "K"]), st.sampled_from(["", "v", "зн\0", "😀" * 50, '"{']))
KINDS = ["space", "deep", "declare", "write", "alter", "drop", "deregister", "rename", "protect", "undrop"]
CHANGES = st.lists(st.tuples(st.sampled_from(KINDS), NAMES, NAMES, TEXTS), max_size=12)
KILLS = st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["before", "after"])), max_size=2)
MOVES = st.lists(st.tuples(st.integers(0, 3), KILLS), min_size=1, max_size=3)


def made(catalog: lancekeep.Catalog, kind: str, name: str, other: str, texts: dict[str, str]) -> None:
    """Make a random change; it may be refused."""
    table = f"{name}.{other}" if catalog.namespace_exists([name]) else name
    table_id = table.split(".")
    match kind:
        case "space":
            catalog.create_namespace([name], texts)
        case "deep":
            catalog.create_namespace([name, other], texts)
        case "declare":
            catalog.declare_table(table_id, properties=texts)
        case "write":
            catalog.write(table_id, ROWS)
        case "alter":
            catalog.alter_table(table_id, dict(texts))
        case "drop":
            catalog.drop_table(table_id, keep=timedelta(days=2))
        case "deregister":
            catalog.deregister_table(table_id)
        case "rename":
            catalog.rename_table(table_id, [other])
        case "protect":
            catalog.protect(table_id)
        case "undrop":
            catalog.undrop(table_id)


@settings(
    max_examples=60 if EVERY else 5,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(mode=st.sampled_from(["v2", "compatible"]), changes=CHANGES, moves=MOVES)
def test_random_catalogs_are_equal_in_each_home(
    tmp_path: Path,
    postgres: Callable[[], str],
    between: list[Callable[[str], None]],
    mode: str,
    changes: list[tuple[str, str, str, dict[str, str]]],
    moves: list[tuple[int, list[tuple[int, str]]]],
) -> None:
    lake, homes, at = str(tmp_path / uuid4().hex), [mode, postgres(), postgres()], mode
    with connect(lake, mode) as catalog:
        for change in changes:
            with suppress(LancekeepError):
                made(catalog, *change)
        catalog.create_namespace("last")
        expected = state(catalog)
    for chosen, kills in moves:
        to = [home for home in homes if home != at][chosen % 2]
        for number, when in kills:
            between.append(killing(number, when))
            try:
                copy(lake, at, to)
            except Crash:
                pass
            finally:
                between.clear()
        assert copy(lake, at, to).done
        with connect(lake, to) as catalog:
            assert state(catalog) == expected
            catalog.alter_namespace("last", {"home": to})
            expected = state(catalog)
        at = to


def killing(number: int, when: str) -> Callable[[str], None]:
    """Return a hook that ends the process at a write."""
    calls = itertools.count()

    def hook(at: str) -> None:
        if at == when and next(calls) == number:
            raise Crash

    return hook
