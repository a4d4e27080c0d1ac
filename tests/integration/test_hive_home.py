"""A catalog whose entries are in a Hive Metastore: other software, faults, races, settings."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import attrs
import lance_namespace
import pyarrow as pa
import pytest
from faults import Crash
from hive_places import metastore
from losing_proxy import losing_proxy
from rest_clients import GeneratedNamespace
from rest_server import serving

import lancekeep
from lancekeep.adapters.manifest_stores.hive import view as views
from lancekeep.adapters.manifest_stores.hive.mapping import Layout, Place, own_table
from lancekeep.adapters.manifest_stores.hive.store import HiveManifestStore
from lancekeep.adapters.manifest_stores.hive.view import HiveView
from lancekeep.application.catalog import directory_of, services_of
from lancekeep.domain.catalog import CatalogView, Change, Listing, Put, Remove, SetProperties
from lancekeep.domain.errors import (
    ConcurrentModification,
    InvalidInput,
    NamespaceNotEmpty,
    NamespaceNotFound,
    Refused,
    StoreUnavailable,
    TableAlreadyExists,
    TableNotFound,
    UnsafeStore,
    Unsupported,
)
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import TABLE, ManifestEntry
from lancekeep.domain.table import Table, add_table, alter_table, find_table, remove_table, rename_table
from lancekeep.hive.errors import ReplyLost
from lancekeep.hive.messages import EXTERNAL, ROLE, Database
from lancekeep.hive.messages import Table as HiveTable
from lancekeep.hive.metastore import Metastore, Read
from lancekeep.testing.behaviours import BEHAVIOURS, Outcome
from lancekeep.testing.manifest_store import change
from servers import HIVE_JARS

EVERY = int(os.environ.get("LANCEKEEP_KILLS", "2")) > 2
"""Whether `make soak` runs the tests."""
ROWS = pa.table({"a": [1, 2, 3]})
CHANGES = ("create_database", "alter_database", "drop_database", "create_table", "alter_table", "drop_table")


class Disturbed:
    """A Metastore that fails at one of the requests that change something."""

    def __init__(self, server: Metastore, at: int, error: BaseException | None, *, after: bool = True) -> None:
        self.server, self.at, self.error, self.after = server, at, error, after
        self.calls: list[str] = []
        self.before: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.server, name)
        if name not in CHANGES:
            return method

        def called(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            is_hit = len(self.calls) == self.at
            if is_hit:
                self.before()
            if is_hit and not self.after and self.error is not None:
                raise self.error
            result = method(*args, **kwargs)
            if is_hit and self.error is not None:
                raise self.error
            return result

        return called


@pytest.fixture
def space() -> str:
    """Return the name of a database that no other test has."""
    return f"n_{uuid4().hex[:8]}"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(f"file://{tmp_path}/lake")


@pytest.fixture
def store(hive_url: str, layout: Layout, space: str) -> HiveManifestStore:
    """Return a store with one namespace."""
    store = HiveManifestStore(metastore(hive_url), layout)
    change(store, lambda view: [Put(ManifestEntry.namespace(ObjectId((space,)), {"k": "v"}))])
    return store


def disturbed(store: HiveManifestStore, at: int, error: BaseException | None, *, after: bool = True) -> Any:
    """Return another process's store of the same catalog, and its Metastore."""
    server: Any = Disturbed(store._metastore, at, error, after=after)
    return HiveManifestStore(server, store._layout), server


def connect(root: Path, url: str, **settings: Any) -> lancekeep.Catalog:
    return lancekeep.connect(str(root), impl="hive", uri=url, storage_options={"fsync": "false"}, **settings)


def tables(view: CatalogView, space: str) -> list[str]:
    return view.children(ObjectId((space,)), TABLE)[0]


# -- tables of other software ------------------------------------------------------------------------------------------


def foreign(space: str, name: str, **values: Any) -> HiveTable:
    """Return a table as other software enters it."""
    table = own_table(Place(None, space, name), {"table_type": "ICEBERG"})
    return attrs.evolve(table, owner="them", **values)


def test_tables_of_other_software_are_invisible_and_stay(hive_url: str, tmp_path: Path, space: str) -> None:
    server = metastore(hive_url)
    with connect(tmp_path / "lake", hive_url) as catalog:
        catalog.create_namespace(space)
        catalog.write(f"{space}.ours", ROWS)
        server.create_table(foreign(space, "theirs"))
        before = server.table(space, "theirs")
        assert catalog.list_tables(space) == ["ours"]
        assert not catalog.table_exists(f"{space}.theirs")
        with pytest.raises(TableNotFound):
            catalog.drop_table(f"{space}.theirs")
        for enter in (
            lambda: catalog.declare_table(f"{space}.theirs"),
            lambda: catalog.write(f"{space}.theirs", ROWS),
            lambda: catalog.rename_table(f"{space}.ours", f"{space}.theirs"),
        ):
            with pytest.raises(TableAlreadyExists, match="no Lance table of this catalog"):
                enter()
        for cascade in (True, False):
            with pytest.raises(NamespaceNotEmpty):
                catalog.drop_namespace(space, cascade=cascade)
        assert catalog.list_tables(space) == ["ours"]
        catalog.drop_table(f"{space}.ours", keep=0)
        with pytest.raises(NamespaceNotEmpty, match="'theirs' of other software"):
            catalog.drop_namespace(space)
        assert server.table(space, "theirs") == before
        assert not catalog.upkeep.fsck(deep=True).findings
        server.drop_table(space, "theirs")
        catalog.drop_namespace(space)
        assert server.database(space) is None


def test_lance_table_of_other_software_is_adopted(store: HiveManifestStore, layout: Layout, space: str) -> None:
    server = store._metastore
    place = layout.place_of(f"{space}$t")
    assert place is not None
    ours = layout.table_of(ManifestEntry(f"{space}$t", TABLE, f"{space}.db/t"), place, foreign(space, "t"), "", False)
    server.create_table(attrs.evolve(ours, parameters={"table_type": "LANCE", "EXTERNAL": "TRUE", "k": "1"}))
    assert ours.storage is not None
    elsewhere = attrs.evolve(ours.storage, location="file:/elsewhere/t")
    server.create_table(attrs.evolve(ours, name="other", storage=elsewhere))
    assert tables(store.view(), space) == ["t"]
    table = ObjectId((space, "t"))
    change(store, lambda view: alter_table(view, table, {"k": None, "l": "2"}))
    assert find_table(store.view(), table).properties == {"l": "2"}
    change(store, lambda view: remove_table(view, table))
    assert server.table(space, "t") is None
    assert server.table(space, "other") is not None


def test_table_that_became_managed_becomes_external_again(hive_url: str, tmp_path: Path, space: str) -> None:
    server = metastore(hive_url)
    with connect(tmp_path / "lake", hive_url) as catalog:
        catalog.create_namespace(space)
        catalog.write(f"{space}.t", ROWS, properties={"k": "v"})
        entered = server.table(space, "t")
        assert entered is not None
        managed = {**(entered.parameters or {}), "EXTERNAL": "FALSE"}
        server.alter_table(space, "t", attrs.evolve(entered, kind="MANAGED_TABLE", parameters=managed))
        exposed = server.table(space, "t")
        assert exposed is not None
        assert exposed.kind == "MANAGED_TABLE"
        assert catalog.describe_table(f"{space}.t").properties == {"k": "v"}
        catalog.alter_table(f"{space}.t", {"k": "w"})
        repaired = server.table(space, "t")
        assert repaired is not None
        purging = {**(repaired.parameters or {}), "external.table.purge": "true"}
        server.alter_table(space, "t", attrs.evolve(repaired, parameters=purging))
        HiveManifestStore(server, Layout(f"file://{tmp_path}/lake")).optimize()
        repaired = server.table(space, "t")
        assert repaired is not None
        assert "external.table.purge" not in (repaired.parameters or {})
        assert catalog.describe_table(f"{space}.t").properties == {"k": "w"}
        assert (repaired.kind, (repaired.parameters or {})["EXTERNAL"]) == (EXTERNAL, "TRUE")
        server.drop_table(space, "t", delete_data=True)
        assert not catalog.table_exists(f"{space}.t")
        catalog.register_table(f"{space}.t", f"{space}.db/t")
        assert catalog.open(f"{space}.t").count_rows() == 3


def test_fields_of_a_database_are_properties(hive_url: str, tmp_path: Path, space: str) -> None:
    server = metastore(hive_url)
    fields = {"database.description": "Zoë's", "database.owner": "ann", "database.owner-type": "ROLE"}
    with connect(tmp_path / "lake", hive_url) as catalog:
        catalog.create_namespace(space, {**fields, "k": "v"})
        assert catalog.describe_namespace(space).properties == {**fields, "k": "v"}
        found = server.database(space)
        assert found is not None
        assert (found.description, found.owner, found.owner_kind) == ("Zoë's", "ann", 2)
        catalog.alter_namespace(space, {"database.owner": "bob", "l": "2"}, ["k"])
        assert catalog.describe_namespace(space).properties == {**fields, "database.owner": "bob", "l": "2"}
        with pytest.raises(Unsupported, match=r"database\.description"):
            catalog.alter_namespace(space, {"database.description": "x"})
        for wrong in ({"database.owner-type": "CAT", "database.owner": "a"}, {"EXTERNAL": "x"}, {"k": "x" * 5000}):
            with pytest.raises(InvalidInput):
                catalog.alter_namespace(space, wrong)
        their = Database(f"{space}_theirs", "theirs", f"file:{tmp_path}/theirs", {"a": "b"}, "them", ROLE)
        server.create_database(their)
        theirs = catalog.describe_namespace(f"{space}_theirs").properties
        assert theirs == {
            "a": "b",
            "database.description": "theirs",
            "database.location-uri": f"file:{tmp_path}/theirs",
            "database.owner": "them",
            "database.owner-type": "ROLE",
        }
        catalog.drop_namespace(f"{space}_theirs")


def test_two_roots_share_a_metastore(hive_url: str, tmp_path: Path, space: str) -> None:
    with connect(tmp_path / "one", hive_url) as one, connect(tmp_path / "two", hive_url) as two:
        one.create_namespace(space, {"k": "v"})
        one.write(f"{space}.a", ROWS)
        two.write(f"{space}.b", ROWS)
        assert (one.list_tables(space), two.list_tables(space)) == (["a"], ["b"])
        with pytest.raises(TableAlreadyExists):
            two.write(f"{space}.a", ROWS)
        assert not one.upkeep.fsck(deep=True).findings
        with pytest.raises(NamespaceNotEmpty):
            one.drop_namespace(space, cascade=True)


# -- faults ------------------------------------------------------------------------------------------------------------


def table_of(space: str, name: str, location: str = "") -> Table:
    return Table(ObjectId((space, name)), location or f"{space}.db/{name}", {"kind": name})


def scenario(space: str) -> Sequence[Callable[[CatalogView], Sequence[Change]]]:
    """Return decisions that make every kind of step."""
    renamed = table_of(space, "t", "chosen/inner")
    return (
        lambda view: [SetProperties({"p": "1"}), *add_table(view, renamed)],
        lambda view: alter_table(view, renamed.id, {"kind": "u"}),
        lambda view: rename_table(view, renamed, ObjectId((space, "u")), renamed.location),
        lambda view: add_table(view, table_of(space, "v")),
        lambda view: [*remove_table(view, ObjectId((space, "u"))), *remove_table(view, ObjectId((space, "v")))],
        lambda view: [Put(ManifestEntry.namespace(ObjectId((f"{space}_2",)), {"k": "v"}))],
        lambda view: [Put(ManifestEntry.namespace(ObjectId((f"{space}_2",)), {"k": "w"}))],
        lambda view: [Remove(f"{space}_2")],
    )


def state(view: HiveView, space: str) -> object:
    """Return what a catalog shows of the scenario."""
    names = [view.find(each) for each in (space, f"{space}_2")]
    found = [view.find(f"{space}${name}") for name in tables(view, space)]
    return names, found, dict(view.properties), [view.owner_of(place) for place in ("chosen", f"{space}.db/v")]


@pytest.mark.parametrize("at", range(1, 7) if EVERY else (2, 4, 5))
def test_change_that_is_killed_anywhere_is_made_or_not(store: HiveManifestStore, space: str, at: int) -> None:
    """A change is killed after one of its requests. The next writer completes it if it was claimed."""
    for decide in scenario(space):
        before = state(store.view(), space)
        killed, _ = disturbed(store, at, Crash())
        with suppress(Crash):
            change(killed, decide)
        change(store, lambda view: [SetProperties({"between": str(view.version)})])
        change(store, lambda view: [SetProperties({"between": None})])
        if state(store.view(), space) == before:
            change(store, decide)
    store.clean_up()
    assert (state(store.view(), space), own_tables(store)) == undisturbed(store, space)


@pytest.mark.parametrize("at", range(2, 7) if EVERY else (3, 5))
def test_change_with_a_lost_reply_is_made_once(store: HiveManifestStore, space: str, at: int) -> None:
    """A claimed change succeeds; before the claim, the change is refused and nothing is made."""
    for decide in scenario(space):
        before = state(store.view(), space)
        other, server = disturbed(store, at, ReplyLost("the reply was lost"))
        try:
            change(other, decide)
        except StoreUnavailable:
            assert server.calls[at - 1] == "create_table"
            assert state(store.view(), space) == before
            change(store, decide)
    store.clean_up()
    assert (state(store.view(), space), own_tables(store)) == undisturbed(store, space)


def undisturbed(store: HiveManifestStore, space: str) -> tuple[object, list[str]]:
    """Return what a catalog shows after the scenario, and the kinds of its own tables."""
    other, own = HiveManifestStore(store._metastore, Layout(f"{store._layout.root}-undisturbed")), f"{space}_0"
    change(other, lambda view: [Put(ManifestEntry.namespace(ObjectId((own,)), {"k": "v"}))])
    for decide in scenario(own):
        change(other, decide)
    return renamed(state(other.view(), own), own, space), own_tables(other)


def renamed(shown: Any, old: str, new: str) -> Any:
    if isinstance(shown, ManifestEntry):
        location = shown.location.replace(old, new) if shown.location else None
        return attrs.evolve(shown, object_id=shown.object_id.replace(old, new), location=location)
    if isinstance(shown, list | tuple):
        return type(shown)(renamed(each, old, new) for each in shown)
    return shown


def own_tables(store: HiveManifestStore) -> list[str]:
    return sorted(name.partition("_")[0] for name in store._metastore.table_names(store._layout.own_database))


def test_step_that_arrives_late_changes_nothing(store: HiveManifestStore, space: str) -> None:
    """Another writer completes the change of a paused one, and drops the table before the paused one goes on."""
    table = table_of(space, "t")

    def overtake() -> None:
        change(store, lambda view: remove_table(view, table.id))

    paused, server = disturbed(store, 4, None)  # the refused change, the prepared table, the claim, the rename
    server.before = overtake
    change(paused, lambda view: add_table(view, table))
    assert server.calls[:4] == ["alter_table", "create_table", "alter_table", "alter_table"]
    assert tables(store.view(), space) == []
    assert paused.view().find(table.id.key) is None

    change(store, lambda view: add_table(view, table))

    def recreate() -> None:
        change(store, lambda view: add_table(view, table))
        assert tables(store.view(), space) == ["t"]

    # The completion of the latest change, the refused change, the claim, the rename away.
    paused, server = disturbed(store, 4, None)
    server.before = recreate
    change(paused, lambda view: remove_table(view, table.id))
    assert server.calls[:4] == ["alter_table"] * 4
    assert tables(store.view(), space) == ["t"]


def test_writers_that_race_lose_no_change(store: HiveManifestStore, space: str) -> None:
    table = table_of(space, "t")
    change(store, lambda view: add_table(view, table))

    def count(_: int) -> None:
        own = HiveManifestStore(store._metastore, store._layout)

        def decide(view: CatalogView) -> Sequence[Change]:
            value = int(find_table(view, table.id).properties.get("count", "0"))
            return alter_table(view, table.id, {"count": str(value + 1)})

        for _ in range(3):
            change(own, decide)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(count, range(4)))
    assert find_table(store.view(), table.id).properties["count"] == "12"


def test_metastore_without_compare_and_set_is_refused(store: HiveManifestStore, space: str) -> None:
    class Ignoring(Disturbed):
        def __getattr__(self, name: str) -> Any:
            method = getattr(self.server, name)
            if name != "alter_table":
                return method
            return lambda *args, expected=None, **kwargs: method(*args, **kwargs)

    server: Any = Ignoring(store._metastore, 0, None)
    with pytest.raises(UnsafeStore, match="HIVE-26882"):
        change(HiveManifestStore(server, store._layout), lambda view: [SetProperties({"k": "v"})])


def test_root_without_a_file_system_is_refused(hive_url: str) -> None:
    store = HiveManifestStore(metastore(hive_url), Layout(f"nowhere://{uuid4().hex}/lake"))
    with pytest.raises(InvalidInput, match="has no file system"):
        change(store, lambda view: [SetProperties({"k": "v"})])
    assert store.view().version == 0


def test_server_that_is_away_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1"):
        connect(tmp_path / "lake", "thrift://127.0.0.1:1", manifest_store_options={"timeout": "2"})


# -- listings and requests ---------------------------------------------------------------------------------------------


def test_page_takes_a_bounded_number_of_requests(
    store: HiveManifestStore, layout: Layout, space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "BATCH", 4)
    names = [f"t{number:02}" for number in range(12)]
    place = layout.place_of(f"{space}$t")
    assert place is not None
    for name in names:
        entry = ManifestEntry(f"{space}${name}", TABLE, f"{space}.db/{name}")
        base = foreign(space, name, kind=EXTERNAL, view_text=None, view_expanded_text=None)
        store._metastore.create_table(layout.table_of(entry, attrs.evolve(place, table=name), base, "r", False))
    calls: list[str] = []

    class Counted:
        def __getattr__(self, name: str) -> Any:
            calls.append(name)
            return getattr(store._metastore, name)

        def read(self, read: Read) -> Any:
            calls.append(read.method.name)
            return store._metastore.read(read)

        def tables(self, database: str, names: Sequence[str], catalog: str | None) -> Any:
            calls.append(f"{len(names)} tables")
            return store._metastore.tables(database, names, catalog)

    counted: Any = Counted()
    other = HiveManifestStore(counted, layout)
    calls.clear()
    view = other.view()
    assert view.children(ObjectId((space,)), TABLE, "t02", 3) == (["t03", "t04", "t05"], "t05")
    assert calls == ["table", "get_table_names_by_filter", "4 tables"]
    for page, asked in ((1, ["2 tables"]), (9, ["4 tables", "4 tables", "4 tables"])):
        calls.clear()
        assert view.children(ObjectId((space,)), TABLE, None, page)[0] == names[:page]
        assert calls == ["get_table_names_by_filter", *asked]
    calls.clear()
    rest = [entry.object_id for entry in view.all_of(TABLE, f"{space}$t08")]
    assert [each for each in rest if each.startswith(space)] == [f"{space}$t{number:02}" for number in (9, 10, 11)]
    calls.clear()
    assert view.find(f"{space}$t03") is not None
    assert view.owner_of(f"{space}.db/t03/data/x") is not None
    assert calls == ["get_table_req", "table_names"]


def test_requests_of_operations_are_few(hive_url: str, tmp_path: Path, space: str) -> None:
    """The requests that cross the wire, and the round trips, as `docs/hive.md` lists them."""
    with losing_proxy(hive_url.removeprefix("hive://"), b"none") as proxy:
        far = f"hive://127.0.0.1:{proxy.port}"

        def asked(act: Callable[[], object]) -> tuple[int, int, int]:
            """Return the number of requests that read, of the ones that change something, and of round trips."""
            proxy.requests.clear()
            act()
            sent = re.findall(rb"\x80\x01\x00\x01\0\0\0.([a-z_]+)", b"".join(proxy.requests), re.DOTALL)
            writing = [name for name in sent if not name.startswith(b"get_")]
            return len(sent) - len(writing), len(writing), len(proxy.requests)

        with connect(tmp_path / "lake", far, commit_store=f"{far}/lancekeep_{space}") as catalog:
            catalog.create_namespace(space)
            for name in ("t", "u", "v"):
                catalog.write(f"{space}.{name}", ROWS)
            assert asked(lambda: catalog.find_table(f"{space}.t")) == (2, 0, 1)
            assert asked(lambda: catalog.describe_table(f"{space}.t")) == (3, 0, 2)
            assert asked(lambda: catalog.describe_namespace(space)) == (2, 0, 1)
            assert asked(lambda: catalog.list_tables(space)) == (3, 0, 2)
            assert asked(lambda: catalog.list_tables(space)) == (3, 0, 1)
            assert asked(catalog.list_namespaces) == (2, 0, 1)
            assert asked(lambda: catalog.namespace_exists(f"{space}_absent")) == (2, 0, 1)
            catalog.write(f"{space}.t", ROWS, "append")
            assert asked(lambda: catalog.write(f"{space}.t", ROWS, "append")) == (3, 2, 4)
            assert asked(lambda: catalog.alter_table(f"{space}.t", {"k": "v"})) == (3, 2, 5)
            assert asked(lambda: catalog.declare_table(f"{space}.w"))[1] == 3


def test_page_whose_names_are_guessed_is_the_present_page(hive_url: str, tmp_path: Path, space: str) -> None:
    """Other processes, and other software, change the tables between two reads of a page."""
    server = metastore(hive_url)
    with losing_proxy(hive_url.removeprefix("hive://"), b"none") as proxy:
        far = f"hive://127.0.0.1:{proxy.port}"
        with connect(tmp_path / "lake", far) as catalog, connect(tmp_path / "lake", far) as other:
            catalog.create_namespace(space)
            for name in "bdf":
                catalog.declare_table(f"{space}.{name}")

            def page(after: str | None, limit: int) -> tuple[list[str], int]:
                """Return a page, and the number of round trips."""
                proxy.requests.clear()
                names, _ = services_of(catalog).tables.page(ObjectId((space,)), after, limit, include_declared=True)
                return names, len(proxy.requests)

            for trips in (2, 1):
                assert page(None, 2) == (["b", "d"], trips)
                assert page("b", 9) == (["d", "f"], trips)
            other.declare_table(f"{space}.c")
            other.drop_table(f"{space}.f")
            assert page(None, 2) == (["b", "c"], 2)
            assert page("b", 9) == (["c", "d"], 2)
            assert page("b", 9) == (["c", "d"], 1)
            moved = server.table(space, "c")
            assert moved is not None
            assert moved.storage is not None
            elsewhere = attrs.evolve(moved.storage, location="file:/elsewhere/c")
            server.alter_table(space, "c", attrs.evolve(moved, storage=elsewhere))  # it keeps its name
            assert page("b", 9) == (["d"], 1)
            view = directory_of(catalog).ledger.view(Listing(ObjectId((space,)), TABLE, "b", 9))
            assert view.children(ObjectId((space,)), TABLE, "b", 9)[0] == ["d"]
            server.alter_table(space, "c", moved)
            assert view.children(ObjectId((space,)), TABLE, "b", 9)[0] == ["c", "d"]
            for name in ("b", "c", "d"):
                other.drop_table(f"{space}.{name}")
            other.drop_namespace(space)
            with pytest.raises(NamespaceNotFound):
                page("b", 9)


def test_page_that_a_slow_server_cannot_answer_at_once_is_read_in_parts(
    store: HiveManifestStore, layout: Layout, space: str
) -> None:
    change(store, lambda view: add_table(view, table_of(space, "a")))
    asked: list[int] = []

    class Slow:
        def __getattr__(self, name: str) -> Any:
            return getattr(store._metastore, name)

        def together(self, *reads: Read) -> list[Any]:
            asked.append(len(reads))
            if len(reads) > 2:
                raise StoreUnavailable("no answer within 8 s")
            return store._metastore.together(*reads)

    slow: Any = Slow()
    other, question = HiveManifestStore(slow, layout), Listing(ObjectId((space,)), TABLE)
    for attempt in range(4):
        with pytest.raises(StoreUnavailable) if attempt == 1 else nullcontext():
            assert other.view_for(question).children(ObjectId((space,)), TABLE)[0] == ["a"]
    assert asked == [2, 3, 2, 2]


def test_process_keeps_the_names_of_some_pages_only() -> None:
    pages = views.Pages()
    for number in range(views.PAGES + 1):
        pages.note(Listing(ObjectId(("n",)), TABLE, str(number), 9), ["a"])
    kept = [pages.of(Listing(ObjectId(("n",)), TABLE, str(number), 9)) for number in range(views.PAGES + 1)]
    assert kept[-1] == ["a"]
    assert kept.count(["a"]) <= views.PAGES


# -- settings ----------------------------------------------------------------------------------------------------------


def test_namespace_has_the_properties_of_the_specification(hive_url: str, tmp_path: Path, space: str) -> None:
    thrift = hive_url.replace("hive://", "thrift://")
    given = {"uri": thrift, "root": str(tmp_path / "lake"), "client.pool-size": "2", "storage.fsync": "false"}
    namespace = lance_namespace.connect("lancekeep.HiveNamespace", given)
    namespace.create_namespace(lance_namespace.CreateNamespaceRequest(id=[space]))
    namespace.declare_table(lance_namespace.DeclareTableRequest(id=[space, "t"]))
    for again in (
        pickle.loads(pickle.dumps(namespace)),
        lancekeep.HiveNamespace(**{"hive.uri": thrift, "hive.root": given["root"], "hive.client.pool-size": "1"}),
        lancekeep.HiveNamespace(uri=f"{hive_url}?timeout=5", root=given["root"]),
    ):
        listed = again.list_tables(lance_namespace.ListTablesRequest(id=[space])).tables
        assert list(listed) == ["t"]
    entered = metastore(hive_url).table(space, "t")
    assert entered is not None
    assert entered.storage is not None
    assert entered.kind == EXTERNAL
    parameters = entered.parameters or {}
    assert (parameters["table_type"], parameters["managed_by"], parameters["EXTERNAL"]) == ("lance", "storage", "TRUE")
    assert entered.storage.location == f"file:{tmp_path}/lake/{space}.db/t"
    with pytest.raises(Refused, match="manifest store"):
        lancekeep.connect(given["root"])


def test_catalogs_need_hive_3(hive_url: str, tmp_path: Path, space: str) -> None:
    """An older Metastore ignores the catalog of a request. `make hive` has a newer one."""
    root = str(tmp_path / "lake")
    open_ = partial(lancekeep.connect, root, uri=hive_url, storage_options={"fsync": "false"})
    if not HIVE_JARS:
        for given in ({"impl": "hive3"}, {"impl": "hive", "manifest_store_options": {"catalogs": "true"}}):
            with pytest.raises(Unsupported, match="before Hive 3, which has no catalogs"):
                open_(**given)
        return
    with open_(impl="hive3") as catalog:
        described = {"catalog.description": "Zoë's", "catalog.location-uri": f"file:{root}/elsewhere"}
        catalog.create_namespace(space, described)
        catalog.create_namespace(f"{space}.below", {"k": "v"})
        assert catalog.list_namespaces(space) == ["below"]
        assert catalog.describe_namespace(space).properties == described
        catalog.alter_namespace(space, {"catalog.description": "ours"})
        assert catalog.describe_namespace(space).properties == {**described, "catalog.description": "ours"}
        for changes, removed in (({"k": "v"}, []), ({}, ["catalog.description"])):
            with pytest.raises(Unsupported):
                catalog.alter_namespace(space, changes, removed)
        catalog.write(f"{space}.below.t", ROWS)
        catalog.create_namespace(f"hive.{space}")
        catalog.write(f"hive.{space}.t", ROWS)
        for table, place in ((f"{space}.below.t", f"{space}/below.db/t"), (f"hive.{space}.t", f"{space}.db/t")):
            assert catalog.describe_table(table).uri.endswith(f"{root}/{place}")
        with pytest.raises(NamespaceNotEmpty):
            catalog.drop_namespace(space)
        catalog.rename_table(f"hive.{space}.t", f"{space}.below.u")
        catalog.drop_table(f"{space}.below.u", keep=60)
        for keep in (60, 0):
            with pytest.raises(NamespaceNotEmpty, match=r"undrop can bring back; nothing was changed"):
                catalog.drop_namespace(space, cascade=True, keep=keep)
            assert catalog.list_tables(f"{space}.below") == ["t"]
        catalog.undrop(f"{space}.below.u")
        own, server = Layout(f"file://{root}", catalogs=True), metastore(hive_url)
        server.create_table(own_table(own.own(space, "new_1_left"), {}))
        needed = own.own(space, "new_99999_needed")
        server.create_table(own_table(needed, {}))
        with pytest.raises(ConcurrentModification):  # another writer has prepared a change there
            catalog.drop_namespace(space, cascade=True, keep=0)
        assert server.table_names(needed.database, catalog=space) == [needed.table]
        server.drop_table(needed.database, needed.table, catalog=space)
        catalog.create_namespace(f"hive.{space}_next")  # the next change completes the drop
        assert not catalog.namespace_exists(space)
    with pytest.raises(Refused, match="manifest store"):
        open_(impl="hive")


def test_tables_of_a_commit_store_say_so(hive_url: str, tmp_path: Path, space: str) -> None:
    with connect(tmp_path / "lake", hive_url, commit_store=f"sqlite://{tmp_path}/commits.db") as catalog:
        catalog.create_namespace(space)
        catalog.write(f"{space}.t", ROWS)
        catalog.write(f"{space}.t", ROWS, mode="append")
        assert catalog.describe_table(f"{space}.t").managed
    entered = metastore(hive_url).table(space, "t")
    assert entered is not None
    assert (entered.parameters or {})["managed_by"] == "impl"


def test_dropped_table_comes_back_with_what_others_added(hive_url: str, tmp_path: Path, space: str) -> None:
    server = metastore(hive_url)
    with connect(tmp_path / "lake", hive_url) as catalog:
        catalog.create_namespace(space)
        catalog.write(f"{space}.t", ROWS)
        entered = server.table(space, "t")
        assert entered is not None
        server.alter_table(space, "t", attrs.evolve(entered, parameters={**(entered.parameters or {}), "note": "x"}))
        catalog.drop_table(f"{space}.t", keep=60)
        assert server.table(space, "t") is None
        catalog.write(f"{space}.t", ROWS)
        assert [str(each.id) for each in catalog.list_dropped(space)] == [f"{space}.t"]
        catalog.undrop(f"{space}.t", f"{space}.u")
        assert catalog.describe_table(f"{space}.u").properties == {"note": "x"}
        assert not catalog.upkeep.fsck(deep=True).findings
        catalog.drop_namespace(space, cascade=True, keep=60)
        assert server.database(space) is None
        assert {str(each.id) for each in catalog.list_dropped(space)} == {f"{space}.t", f"{space}.u"}


def test_events_of_a_metastore_are_refused(hive_url: str, tmp_path: Path, space: str) -> None:
    """Its control table has the latest change alone."""
    with connect(tmp_path / "lake", hive_url) as catalog:
        catalog.create_namespace(space)
        for act in (catalog.events.record, catalog.events.read, catalog.events.latest, catalog.changes.read):
            with pytest.raises(Unsupported, match="Hive Metastore keeps no feed of its changes; a catalog"):
                act()
    assert not (tmp_path / "lake/.lancekeep-events").exists()


THROUGH_SERVER = ("tables/create@child", "rename/name@child", "register/again@child", "races/declare@child")


@pytest.mark.parametrize("name", THROUGH_SERVER)
def test_server_over_a_metastore_behaves_as_the_namespace(hive_url: str, tmp_path: Path, space: str, name: str) -> None:
    """`test_namespace_behaviours.py` has every behaviour in process; the server calls the same namespace."""
    (behaviour,) = (each for each in BEHAVIOURS if each.id == name)
    given = {"uri": hive_url, "root": str(tmp_path / "lake"), "storage.fsync": "false"}
    with ExitStack() as servers:
        result = attrs.evolve(behaviour, below=(space,)).run(
            lambda: GeneratedNamespace(servers.enter_context(serving(lancekeep.HiveNamespace(**given))).uri)
        )
    assert result.outcome is Outcome.PASSED, result
