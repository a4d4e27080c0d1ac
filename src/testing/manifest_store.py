"""The contract of `ManifestStore`.

Subclass `ManifestStoreContract` and provide the fixtures `store` and `other`. The other classes are for stores of V1
directories.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial

import pytest

from lancekeep.application.concurrency import race
from lancekeep.domain.catalog import CatalogView, Change, Put, Remove, SetProperties
from lancekeep.domain.errors import (
    ConcurrentModification,
    Damaged,
    InvalidInput,
    NamespaceAlreadyExists,
    TableAlreadyExists,
    TableNotFound,
    Unsupported,
)
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import NAMESPACE, TABLE, ManifestEntry
from lancekeep.domain.namespace import create_namespace
from lancekeep.domain.table import Table, add_table, alter_table, remove_table, rename_table
from lancekeep.ports.manifest_store import ManifestStore
from lancekeep.ports.object_store import ObjectStore

T = ObjectId.of("t")


def namespace(name: str, properties: dict[str, str] | None = None) -> ManifestEntry:
    return ManifestEntry.namespace(ObjectId.of([name]), properties or {})


def change(store: ManifestStore, decide: Callable[[CatalogView], Sequence[Change]]) -> CatalogView:
    """Make the changes that ``decide`` returns, and return the view after them."""
    view, _ = store.apply(lambda view: (decide(view), None))
    return view


def create(store: ManifestStore, name: str) -> None:
    change(store, lambda view: [Put(namespace(name))])


def ids(view: CatalogView) -> list[str]:
    """Return the ids of all entries, without the namespaces that always exist."""
    found = (entry.object_id for entry in view.descendants(ObjectId()))
    return sorted(object_id for object_id in found if object_id not in view.guarantees.permanent)


def namespaces(view: CatalogView, after: str | None = None, limit: int | None = None) -> tuple[list[str], str | None]:
    """Return a page of the namespaces of the root, without those that always exist."""
    names, more = view.children(ObjectId(), NAMESPACE, after, limit)
    return [name for name in names if name not in view.guarantees.permanent], more


class ManifestStoreContract:
    """``store`` and ``other`` are two instances on one catalog, empty at first."""

    @pytest.fixture
    def store(self) -> ManifestStore:
        raise NotImplementedError("override the fixture store")

    @pytest.fixture
    def other(self, store: ManifestStore) -> ManifestStore:
        return store

    def test_empty_catalog_is_version_0_and_reading_creates_none(
        self, store: ManifestStore, other: ManifestStore
    ) -> None:
        assert (store.view().version, ids(store.view()), dict(store.view().properties)) == (0, [], {})
        assert change(store, lambda view: []).version == 0
        assert other.view().version == 0

    def test_views_state_the_guarantees_of_the_store(self, store: ManifestStore) -> None:
        create(store, "a")
        assert store.view().guarantees == store.recent().guarantees == store.guarantees

    def test_changes_are_seen_by_other_instance(self, store: ManifestStore, other: ManifestStore) -> None:
        other.view()
        entry = namespace("a", {"owner": "Zoë", "quote": '"'})
        after = change(store, lambda view: [Put(entry), Put(namespace("b"))])
        assert ids(after) == ids(other.view()) == ["a", "b"]
        assert other.view().find("a") == entry
        changed = namespace("a", {"owner": "me"})
        change(other, lambda view: [Put(changed), Remove("b")])
        assert ids(store.view()) == ["a"]
        assert store.view().find("a") == changed
        assert store.view().version > after.version

    def test_refused_decision_writes_nothing(self, store: ManifestStore) -> None:
        change(store, lambda view: [Put(namespace("a"))])
        before = store.view().version
        with pytest.raises(NamespaceAlreadyExists):
            change(store, lambda view: create_namespace(view, ObjectId.of("a"), {}))
        assert change(store, lambda view: []).version == before

    def test_apply_returns_the_result_of_the_decision_that_was_applied(
        self, store: ManifestStore, other: ManifestStore
    ) -> None:
        change(store, lambda view: [Put(namespace("a"))])
        others = [] if other is store else ["b"]
        waiting = list(others)

        def decide(view: CatalogView) -> tuple[Sequence[Change], list[str]]:
            found = ids(view)
            while waiting:
                create(other, waiting.pop())  # another writer commits first
            return [Put(namespace("c"))], found

        view, found = store.apply(decide)
        assert (ids(view), found) == (["a", *others, "c"], ["a", *others])
        assert store.apply(lambda view: ([], "nothing to do"))[1] == "nothing to do"

    def test_decision_sees_state_it_changes(self, store: ManifestStore, other: ManifestStore) -> None:
        change(store, lambda view: [Put(namespace("a"))])
        asked: list[list[str]] = []

        def decide(view: CatalogView) -> list[Change]:
            asked.append(ids(view))
            if len(asked) == 1 and other is not store:
                change(other, lambda view: [Put(namespace("b"))])  # a concurrent change
            return [Put(namespace("c"))] if view.find("c") is None else []

        change(store, decide)
        assert ids(store.view()) == (["a", "c"] if other is store else ["a", "b", "c"])
        assert asked[-1] == (["a"] if other is store else ["a", "b"])

    def test_properties_of_the_root_are_merged_and_removed(self, store: ManifestStore, other: ManifestStore) -> None:
        change(store, lambda view: [SetProperties({"x": "1", "y": "2"})])
        change(store, lambda view: [Put(namespace("a"))])
        change(other, lambda view: [SetProperties({"x": None, "z": "3"})])
        assert dict(store.view().properties) == {"y": "2", "z": "3"}
        assert ids(store.view()) == ["a"]

    def test_pages_leave_out_removed_objects(self, store: ManifestStore, other: ManifestStore) -> None:
        names = [f"n{number:02}" for number in range(12)]
        change(store, lambda view: [Put(namespace(name)) for name in names])
        change(other, lambda view: [Remove(name) for name in names[::3]])
        create(store, "n03")
        kept = sorted({*names} - {*names[::3]} | {"n03"})
        found: list[str] = []
        after = None
        while after is not None or not found:
            page, after = namespaces(other.view(), after, 2)
            found += page
        assert found == kept == namespaces(other.view())[0]

    def test_page_begins_after_any_text(self, store: ManifestStore, other: ManifestStore) -> None:
        """Tokens of pages come from clients: they may hold what no name can have."""
        names = (
            ["a", "a!", "b", "\ud7ff", "\ue000", "\U0001f600"] if store.guarantees.names is None else ["a", "a0", "b"]
        )
        change(store, lambda view: [Put(namespace(name)) for name in names])
        for after in ("", "\0", "a", "a\0", "a\0b", "\ud800", "a\ud800\0", "a\0\ud800", "\udfffx", "\U0010ffff"):
            following = [name for name in names if name > after]
            assert namespaces(other.view(), after)[0] == following, ascii(after)
            found = [entry.object_id for entry in other.view().all_of(NAMESPACE, after)]
            assert [each for each in found if each not in store.guarantees.permanent] == following, ascii(after)

    def test_properties_that_are_not_unicode_are_refused(self, store: ManifestStore) -> None:
        def of_namespace(properties: dict[str, str], view: CatalogView) -> list[Change]:
            return [Put(namespace("b", properties))]

        def of_root(properties: dict[str, str], view: CatalogView) -> list[Change]:
            return [SetProperties(properties)]

        create(store, "a")
        for properties in ({"k": "\ud800"}, {"\ud800": "v"}):
            for refused in (of_namespace, of_root):
                with pytest.raises(InvalidInput, match="surrogate pair"):
                    change(store, partial(refused, properties))
        assert ids(store.view()) == ["a"]
        assert store.view().properties == {}

    def test_views_find_entries_by_name_place_and_type(self, store: ManifestStore, other: ManifestStore) -> None:
        parents = [
            ObjectId(tuple(f"n{level}" for level in range(at + 1))) for at in range(store.guarantees.levels or 2)
        ]
        # Before "$", which ends a name, if the store permits it.
        between = "a-b" if store.guarantees.names is None else "a_b"
        tables = {name: self._table(parents[-1], name, f"{name}-files/inner") for name in ("a", between, "b")}
        spaces = [ManifestEntry.namespace(parent, {}) for parent in parents]
        change(store, lambda view: [Put(entry) for entry in (*spaces, *reversed(tables.values()))])
        change(store, lambda view: [Put(self._table(parents[-1], "gone", "gone"))])
        change(store, lambda view: [Remove(f"{parents[-1].key}$gone")])
        for view in (store.view(), other.view()):
            for entry in (*spaces, *tables.values()):
                assert view.find(entry.object_id) == entry
            for missing in ("", "n", "n0$", f"{parents[-1].key}$gone", f"{parents[-1].key}$A"):
                assert view.find(missing) is None, missing
            assert view.children(parents[-1], TABLE) == (["a", between, "b"], None)
            assert view.children(parents[-1], TABLE, limit=2) == (["a", between], between)
            assert view.children(parents[-1], TABLE, between, 2) == (["b"], None)
            assert namespaces(view) == (["n0"], None)
            assert view.children(ObjectId(), TABLE) == ([], None)
            below = sorted(entry.object_id for entry in view.descendants(parents[0]))
            assert below == sorted(entry.object_id for entry in (*spaces[1:], *tables.values()))
            keys = [entry.object_id for entry in tables.values()]
            assert [entry.object_id for entry in view.all_of(TABLE)] == keys
            assert [entry.object_id for entry in view.all_of(TABLE, keys[0])] == keys[1:]
            spaces_found = [entry.object_id for entry in view.all_of(NAMESPACE)]
            assert spaces_found == sorted({*view.guarantees.permanent, *(parent.key for parent in parents)})
            for place in ("a-files", "a-files/inner", "a-files/inner/data/x"):
                assert view.owner_of(place) == tables["a"], place
            for place in ("a-file", "a-files2", "a-files/other", "gone", "c"):
                assert view.owner_of(place) is None, place

    def test_moved_table_is_found_at_its_new_place_only(self, store: ManifestStore, other: ManifestStore) -> None:
        parent = ObjectId(tuple(f"n{level}" for level in range(store.guarantees.levels or 1)))
        spaces = [ManifestEntry.namespace(ObjectId(parent.names[: at + 1]), {}) for at in range(len(parent.names))]
        old, new = self._table(parent, "t", "old"), self._table(parent, "u", "new")
        change(store, lambda view: [Put(entry) for entry in (*spaces, old)])
        change(other, lambda view: [Remove(old.object_id), Put(new)])
        view = store.view()
        assert (view.find(old.object_id), view.owner_of("old")) == (None, None)
        assert view.find(new.object_id) == view.owner_of("new") == new
        assert view.unnamed == 0

    def _table(self, parent: ObjectId, name: str, location: str) -> ManifestEntry:
        return ManifestEntry.table(ObjectId((*parent.names, name)), location, {"kind": name})

    def test_one_of_racing_creators_of_a_name_wins(self, store: ManifestStore, other: ManifestStore) -> None:
        for number in range(5):
            self._race([store, other, store, other], f"n{number}")
        assert ids(other.view()) == [f"n{number}" for number in range(5)]

    def _race(self, stores: list[ManifestStore], name: str) -> None:
        """Create one namespace through all instances at once: exactly one succeeds."""
        made = ObjectId.of([name])
        results = _together(stores, lambda store: change(store, lambda view: create_namespace(view, made, {})))
        assert results == ["NamespaceAlreadyExists"] * (len(stores) - 1) + ["done"]


def seen(view: CatalogView) -> list[str]:
    """Return the names of the root's tables, which do not depend on the page size."""
    whole, more = view.children(ObjectId(), TABLE)
    assert more is None
    for limit in (1, 2, 3):
        names: list[str] = []
        after = None
        while True:
            page, after = view.children(ObjectId(), TABLE, after, limit)
            assert len(page) <= limit
            names += page
            if after is None:
                break
            assert after == page[-1]
        assert names == whole
    assert [entry.object_id for entry in view.all_of(TABLE) if "$" not in entry.object_id] == whole
    for name in whole:
        assert view.find(name) is not None
    return whole


class V1Contract:
    """``store`` and ``other`` are two instances on the V1 directory ``home``."""

    home = "lake"

    @pytest.fixture
    def objects(self) -> ObjectStore:
        raise NotImplementedError("override the fixture objects")

    @pytest.fixture
    def store(self, objects: ObjectStore) -> ManifestStore:
        raise NotImplementedError("override the fixture store")

    @pytest.fixture
    def other(self, objects: ObjectStore) -> ManifestStore:
        raise NotImplementedError("override the fixture other")

    def write(self, objects: ObjectStore, *names: str) -> None:
        for name in names:
            objects.put(f"{self.home}/{name}", b"x")

    def stored(self, objects: ObjectStore) -> list[str]:
        keys = (info.key.removeprefix(f"{self.home}/") for info in objects.list(f"{self.home}/"))
        return [key for key in keys if not key.startswith("__manifest/")]

    def test_directory_with_object_and_without_marker_is_table(
        self, objects: ObjectStore, store: ManifestStore
    ) -> None:
        self.write(objects, "t.lance/data/x.lance", "early.lance/!first", "declared.lance/.lance-reserved")
        self.write(objects, "gone.lance/.lance-deregistered", "gone.lance/!first", "gone.lance/_versions/1.manifest")
        self.write(objects, "directory/x", "file.lance", "u.lance.bak/x", ".lance/x", "a$b.lance/x")
        assert seen(store.view()) == ["declared", "early", "t"]
        for name in ("gone", "directory", "file", "u", "", "a$b", "x$t", "no/t", "../lake/t"):
            assert store.view().find(name) is None, name
        entry = store.view().find("t")
        assert entry == ManifestEntry("t", TABLE, "t.lance", listed=True)
        assert store.view().owner_of("t.lance") == store.view().owner_of("t.lance/data") == entry
        assert store.view().owner_of("gone.lance") is None
        assert list(store.view().all_of(NAMESPACE)) == []

    def test_store_prescribes_the_directories_that_it_lists(self, store: ManifestStore) -> None:
        assert store.view().guarantees == store.guarantees
        assert store.guarantees.lists_directories
        assert store.location_of(T) == "t.lance"
        assert store.location_of(ObjectId.of("n.t")) is None

    def test_names_are_sorted_without_suffix(self, objects: ObjectStore, store: ManifestStore) -> None:
        names = ["a", "a!", "a-b", "a.b", "a.lance", "a0", "b", "é", "日", "😀"]
        self.write(objects, *(f"{name}.lance/x" for name in reversed(names)))
        assert seen(store.view()) == names
        assert [entry.object_id for entry in store.view().all_of(TABLE, "a.b")] == names[4:]
        assert sorted(ids(store.view())) == sorted(names)

    def test_marker_hides_table_and_registration_removes_it(
        self, objects: ObjectStore, store: ManifestStore, other: ManifestStore
    ) -> None:
        self.write(objects, "t.lance/_versions/1.manifest")
        assert seen(change(store, lambda view: remove_table(view, T))) == seen(other.view()) == []
        assert objects.get(f"{self.home}/t.lance/.lance-deregistered") == b""
        with pytest.raises(TableNotFound):
            change(other, lambda view: remove_table(view, T))
        again = Table(T, "t.lance", {})
        assert seen(change(other, lambda view: add_table(view, again))) == seen(store.view()) == ["t"]
        assert self.stored(objects) == ["t.lance/_versions/1.manifest"]

    def test_one_of_racing_removers_wins(
        self, objects: ObjectStore, store: ManifestStore, other: ManifestStore
    ) -> None:
        for number in range(5):
            table = ObjectId.of([f"t{number}"])
            self.write(objects, f"{table.name}.lance/x")
            remove = partial(_remove, table=table)
            results = _together([store, other, store, other], remove)
            assert results.count("TableNotFound") + results.count("done") == 4
            assert results.count("done") == 1 or (results.count("done") > 1 and not objects.guarantees.atomic_create)
            assert seen(store.view()) == []

    def test_concurrent_drop_and_removal_leave_no_marker(self, objects: ObjectStore, store: ManifestStore) -> None:
        self.write(objects, "t.lance/x")

        def decide(view: CatalogView) -> Sequence[Change]:
            changes = remove_table(view, T)
            objects.delete(f"{self.home}/t.lance/x")  # a native drop writes no marker
            return changes

        # With a manifest, the table is added to it before its directory is hidden, so there is an entry to remove.
        with nullcontext() if store.guarantees.locations else pytest.raises(TableNotFound):
            change(store, decide)
        assert seen(store.view()) == []
        assert not [key for key in self.stored(objects) if "t.lance" in key]


class V1AloneContract(V1Contract):
    """The contract of V1 directories without a manifest."""

    def test_empty_directory_is_version_0_and_reading_writes_nothing(
        self, objects: ObjectStore, store: ManifestStore
    ) -> None:
        self.write(objects, "directory/x")
        assert (store.view().version, ids(store.view()), dict(store.view().properties)) == (0, [], {})
        assert change(store, lambda view: []).version == 0
        self.write(objects, "t.lance/x")
        assert store.view().version == store.recent().version == 1
        assert self.stored(objects) == ["directory/x", "t.lance/x"]

    def test_only_lancekeep_properties_are_stored(
        self, objects: ObjectStore, store: ManifestStore, other: ManifestStore
    ) -> None:
        change(store, lambda view: [SetProperties({"lancekeep.a": "1", "lancekeep.ü": "Zoë"})])
        assert other.view().version == 1
        change(other, lambda view: [SetProperties({"lancekeep.a": None, "lancekeep.b": "2"})])
        assert dict(store.view().properties) == {"lancekeep.ü": "Zoë", "lancekeep.b": "2"}
        with pytest.raises(Unsupported, match="'owner'"):
            change(store, lambda view: [SetProperties({"owner": "me"})])
        assert self.stored(objects) == [".lancekeep.json"]

    @pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b'{"lancekeep.a": 1}', b'{"owner": "me"}'])
    def test_unreadable_properties_are_damaged(
        self, objects: ObjectStore, store: ManifestStore, content: bytes
    ) -> None:
        objects.put(f"{self.home}/.lancekeep.json", content)
        with pytest.raises(Damaged, match=r"lancekeep\.json.*restore it"):
            _ = store.view().properties

    def test_registration_of_vanished_table_is_refused(self, objects: ObjectStore, store: ManifestStore) -> None:
        with pytest.raises(ConcurrentModification):
            change(store, lambda view: add_table(view, Table(T, "t.lance", {})))
        assert self.stored(objects) == []


class CompatibleContract(V1Contract):
    """The contract of V1 directories with a manifest (V2, "Compatibility Mode")."""

    def enter(self, store: ManifestStore, *tables: tuple[str, str]) -> None:
        for object_id, location in tables:
            entry = ManifestEntry.table(ObjectId.from_key(object_id), location, {})
            change(store, lambda view, entry=entry: [Put(entry)])  # type: ignore[misc] # mypy infers no default

    def test_manifest_takes_precedence_and_owns_its_directories(
        self, objects: ObjectStore, store: ManifestStore, other: ManifestStore
    ) -> None:
        self.write(objects, "a.lance/x", "b.lance/x", "c.lance/x", "d.lance/x", "e.lance/x", "n.lance/x")
        change(store, lambda view: [Put(namespace("n")), Put(namespace("m"))])
        self.enter(store, ("b", "12345678_b"), ("m$t", "c.lance"), ("u", "d.lance/inner"), ("e", "e.lance"))
        view = other.view()
        assert seen(view) == ["a", "b", "e", "u"]
        assert view.children(ObjectId(), NAMESPACE) == (["m", "n"], None)
        assert view.children(ObjectId.of("m"), TABLE) == (["t"], None)
        found = {name: view.find(name) for name in ("a", "b", "e", "c", "d", "n")}
        assert [name for name, entry in found.items() if entry is not None and entry.listed] == ["a"]
        assert found["c"] is found["d"] is None
        assert found["n"] == namespace("n")
        owners = [view.owner_of(place) for place in ("a.lance", "a.lance/x", "c.lance", "d.lance", "b.lance", "zz")]
        assert [owner and owner.object_id for owner in owners] == ["a", "a", "m$t", "u", None, None]
        assert [entry.object_id for entry in view.all_of(TABLE)] == ["a", "b", "e", "m$t", "u"]
        assert sorted(ids(view)) == ["a", "b", "e", "m", "m$t", "n", "u"]

    @pytest.mark.parametrize("listed", [True, False])
    def test_renamed_table_leaves_no_v1_table(
        self, objects: ObjectStore, store: ManifestStore, other: ManifestStore, listed: bool
    ) -> None:
        self.write(objects, "t.lance/x", "12345678_u/x")
        if not listed:
            self.enter(store, ("t", "t.lance"))
        after = change(store, lambda view: rename_table(view, Table(T, "t.lance", {}), ObjectId.of("u"), "12345678_u"))
        assert seen(after) == seen(other.view()) == ["u"]
        assert "t.lance/.lance-deregistered" in self.stored(objects)

    def test_registration_at_another_path_leaves_no_v1_table(
        self, objects: ObjectStore, store: ManifestStore, other: ManifestStore
    ) -> None:
        for listed in (True, False):
            self.write(objects, "t.lance/x", "other/x")
            if not listed:
                self.enter(store, ("t", "t.lance"))
            change(store, lambda view: add_table(view, Table(T, "other", {}), replace=True))
            entry = other.view().find("t")
            assert entry is not None
            assert entry.location == "other"
            change(store, lambda view: remove_table(view, T))
            assert seen(other.view()) == []
            objects.delete(f"{self.home}/t.lance/.lance-deregistered")

    def test_removed_table_in_v1_directory_of_other_name_stays_removed(
        self, objects: ObjectStore, store: ManifestStore, other: ManifestStore
    ) -> None:
        self.write(objects, "t.lance/x")
        self.enter(store, ("u", "t.lance"))
        change(store, lambda view: remove_table(view, ObjectId.of("u")))
        assert seen(other.view()) == []
        assert self.stored(objects) == ["t.lance/.lance-deregistered", "t.lance/x"]

    def test_refused_change_hides_no_table_from_v1_readers(
        self, objects: ObjectStore, store: ManifestStore, other: ManifestStore
    ) -> None:
        self.write(objects, "t.lance/x")
        self.enter(store, ("t", "t.lance"))
        asked: list[CatalogView] = []

        def decide(view: CatalogView) -> Sequence[Change]:
            asked.append(view)
            if len(asked) > 1:
                raise TableAlreadyExists("a concurrent writer was faster")
            return remove_table(view, T)

        with pytest.raises(TableAlreadyExists):
            change(store, decide)
        assert seen(other.view()) == ["t"]
        assert self.stored(objects) == ["t.lance/x"]

    def test_altering_listed_table_adds_it_to_manifest(
        self, objects: ObjectStore, store: ManifestStore, other: ManifestStore
    ) -> None:
        self.write(objects, "t.lance/x")
        change(store, lambda view: alter_table(view, T, {"owner": "me"}))
        assert other.view().find("t") == ManifestEntry.table(T, "t.lance", {"owner": "me"})
        assert self.stored(objects) == ["t.lance/x"]

    def test_v1_properties_apply_until_manifest_has_them(
        self, objects: ObjectStore, store: ManifestStore, other: ManifestStore
    ) -> None:
        objects.put(f"{self.home}/.lancekeep.json", b'{"lancekeep.store": "x"}')
        assert store.view().version == 1
        assert dict(store.view().properties) == {"lancekeep.store": "x"}
        change(store, lambda view: [SetProperties({"owner": "me"})])
        objects.delete(f"{self.home}/.lancekeep.json")
        assert dict(other.view().properties) == {"lancekeep.store": "x", "owner": "me"}

    def test_manifest_properties_are_written_for_v1_readers_first(
        self, objects: ObjectStore, store: ManifestStore, other: ManifestStore
    ) -> None:
        change(store, lambda view: [SetProperties({"lancekeep.store": "x", "owner": "me"})])
        assert objects.get(f"{self.home}/.lancekeep.json") == b'{"lancekeep.store": "x"}'
        change(other, lambda view: [SetProperties({"lancekeep.store": "y"})])
        assert objects.get(f"{self.home}/.lancekeep.json") == b'{"lancekeep.store": "y"}'
        assert dict(store.view().properties) == {"lancekeep.store": "y", "owner": "me"}


def _remove(store: ManifestStore, table: ObjectId) -> None:
    change(store, lambda view: remove_table(view, table))


def _together(stores: list[ManifestStore], act: Callable[[ManifestStore], object]) -> list[str]:
    """Return each instance's result of a race, sorted: ``done`` or an error's name."""

    def run(number: int) -> str:
        try:
            act(stores[number])
        except Exception as error:
            return type(error).__name__
        return "done"

    return sorted(race(len(stores), run))
