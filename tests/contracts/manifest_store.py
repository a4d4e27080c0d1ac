"""What every `ManifestStore` keeps, whatever it is made of."""

from __future__ import annotations

from threading import Barrier, Thread

import pytest

from lancekeep.domain.catalog import CatalogView, Change, Put, Remove, SetProperties
from lancekeep.domain.errors import NamespaceAlreadyExists
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import ManifestEntry
from lancekeep.domain.namespace import create_namespace
from lancekeep.ports.manifest_store import ManifestStore


def namespace(name: str, properties: dict[str, str] | None = None) -> ManifestEntry:
    return ManifestEntry.namespace(ObjectId.of([name]), properties or {})


def ids(view: CatalogView) -> list[str]:
    return sorted(entry.object_id for entry in view.descendants(ObjectId()))


class ManifestStoreContract:
    """``store`` and ``other`` are two doors to one catalog that is empty at first."""

    @pytest.fixture
    def store(self) -> ManifestStore:
        raise NotImplementedError

    @pytest.fixture
    def other(self, store: ManifestStore) -> ManifestStore:
        return store

    def test_an_empty_catalog_is_version_0_and_looking_makes_none(
        self, store: ManifestStore, other: ManifestStore
    ) -> None:
        assert (store.view().version, ids(store.view()), dict(store.view().properties)) == (0, [], {})
        assert store.apply(lambda view: []).version == 0
        assert other.view().version == 0

    def test_changes_are_seen_through_the_other_door(self, store: ManifestStore, other: ManifestStore) -> None:
        other.view()
        entry = namespace("a", {"owner": "Zoë", "quote": '"'})
        after = store.apply(lambda view: [Put(entry), Put(namespace("b"))])
        assert ids(after) == ids(other.view()) == ["a", "b"]
        assert other.view().find("a") == entry
        changed = namespace("a", {"owner": "me"})
        other.apply(lambda view: [Put(changed), Remove("b")])
        assert ids(store.view()) == ["a"]
        assert store.view().find("a") == changed
        assert store.view().version > after.version

    def test_a_refused_decision_writes_nothing(self, store: ManifestStore) -> None:
        store.apply(lambda view: [Put(namespace("a"))])
        before = store.view().version
        with pytest.raises(NamespaceAlreadyExists):
            store.apply(lambda view: create_namespace(view, ObjectId.of("a"), {}))
        assert store.apply(lambda view: []).version == before

    def test_every_decision_sees_the_state_it_changes(self, store: ManifestStore, other: ManifestStore) -> None:
        store.apply(lambda view: [Put(namespace("a"))])
        asked: list[list[str]] = []

        def decide(view: CatalogView) -> list[Change]:
            asked.append(ids(view))
            if len(asked) == 1 and other is not store:
                other.apply(lambda view: [Put(namespace("b"))])  # somebody is faster
            return [Put(namespace("c"))] if view.find("c") is None else []

        store.apply(decide)
        assert ids(store.view()) == (["a", "c"] if other is store else ["a", "b", "c"])
        assert asked[-1] == (["a"] if other is store else ["a", "b"])

    def test_properties_of_the_root_are_merged_and_removed(self, store: ManifestStore, other: ManifestStore) -> None:
        store.apply(lambda view: [SetProperties({"x": "1", "y": "2"})])
        store.apply(lambda view: [Put(namespace("a"))])
        other.apply(lambda view: [SetProperties({"x": None, "z": "3"})])
        assert dict(store.view().properties) == {"y": "2", "z": "3"}
        assert ids(store.view()) == ["a"]

    def test_of_racing_creators_of_one_name_one_wins(self, store: ManifestStore, other: ManifestStore) -> None:
        for number in range(5):
            self._race([store, other, store, other], f"n{number}")
        assert ids(other.view()) == [f"n{number}" for number in range(5)]

    def _race(self, doors: list[ManifestStore], name: str) -> None:
        """Everybody creates one namespace at once: one does, the others are told that it is there."""
        together = Barrier(len(doors))
        told: list[str] = []

        def create(door: ManifestStore) -> None:
            together.wait()
            try:
                door.apply(lambda view: create_namespace(view, ObjectId.of([name]), {}))
                told.append("created")
            except Exception as error:
                told.append(type(error).__name__)

        racers = [Thread(target=create, args=(door,)) for door in doors]
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join()
        assert sorted(told) == ["NamespaceAlreadyExists"] * (len(doors) - 1) + ["created"]
