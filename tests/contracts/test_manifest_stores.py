"""The manifest store contract for every adapter."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from deployments import bucket, s3_options
from faults import Crash, Faulty, crash_at
from fsspec.implementations.local import LocalFileSystem
from hive_places import empty
from memory_manifests import MemoryManifestStore

from lancekeep.adapters.manifest_stores.compatible import CompatibleManifestStore
from lancekeep.adapters.manifest_stores.directory_listing import DirectoryListing
from lancekeep.adapters.manifest_stores.hive.store import HiveManifestStore
from lancekeep.adapters.manifest_stores.lance_table import LanceManifestStore
from lancekeep.adapters.manifest_stores.postgres import PostgresManifestStore
from lancekeep.adapters.object_stores import open_object_store
from lancekeep.adapters.object_stores.fsspec_store import FsspecObjectStore
from lancekeep.adapters.object_stores.local import LocalObjectStore
from lancekeep.adapters.object_stores.memory import MemoryObjectStore
from lancekeep.domain.catalog import CatalogView, Put, SetProperties
from lancekeep.domain.errors import LancekeepError
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import TABLE, ManifestEntry
from lancekeep.domain.table import Table, add_table, remove_table, rename_table
from lancekeep.ports.manifest_store import ManifestStore
from lancekeep.ports.object_store import ObjectStore
from lancekeep.store_urls import MANIFEST_STORES, StoreUrl
from lancekeep.testing.manifest_store import (
    CompatibleContract,
    ManifestStoreContract,
    T,
    V1AloneContract,
    V1Contract,
    change,
    seen,
)


def lance_table(root: str, options: dict[str, str]) -> LanceManifestStore:
    objects, key = open_object_store(root, options)
    return LanceManifestStore(objects, f"{key}/__manifest")


class TestMemory(ManifestStoreContract):
    @pytest.fixture
    def store(self) -> ManifestStore:
        return MemoryManifestStore()


class TestLanceTableOnLocalFiles(ManifestStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ManifestStore:
        return lance_table(str(tmp_path), {})

    @pytest.fixture
    def other(self, tmp_path: Path, store: ManifestStore) -> ManifestStore:
        return lance_table(str(tmp_path), {})

    def test_one_of_racing_creators_of_the_catalog_wins(self, tmp_path: Path) -> None:
        for number in range(20):
            doors: list[ManifestStore] = [lance_table(str(tmp_path / str(number)), {}) for _ in range(4)]
            self._race(doors, "first")
            assert doors[0].view().version == 1


class TestLanceTableOnS3(ManifestStoreContract):
    @pytest.fixture
    def root(self, moto_endpoint: str) -> str:
        return f"s3://{bucket(moto_endpoint)}/lake"

    @pytest.fixture
    def store(self, root: str, moto_endpoint: str) -> ManifestStore:
        return lance_table(root, s3_options(moto_endpoint))

    @pytest.fixture
    def other(self, root: str, moto_endpoint: str, store: ManifestStore) -> ManifestStore:
        return lance_table(root, s3_options(moto_endpoint))


class TestPostgres(ManifestStoreContract):
    @pytest.fixture
    def url(self, postgres_url: str) -> str:
        return f"{postgres_url}?catalog={uuid4()}"

    @pytest.fixture
    def store(self, url: str) -> Iterator[ManifestStore]:
        yield from opened_postgres(url)

    @pytest.fixture
    def other(self, url: str) -> Iterator[ManifestStore]:
        yield from opened_postgres(url)


def opened_postgres(url: str) -> Iterator[ManifestStore]:
    location = StoreUrl.parse(url, {}, MANIFEST_STORES)
    with closing(PostgresManifestStore.open(location, MemoryObjectStore(), "lake")) as store:
        yield store


class TestHive(ManifestStoreContract):
    @pytest.fixture
    def store(self, hive_url: str) -> Iterator[ManifestStore]:
        empty(hive_url)
        yield from opened_hive(hive_url)

    @pytest.fixture
    def other(self, hive_url: str) -> Iterator[ManifestStore]:
        yield from opened_hive(hive_url)


class TestHiveOverPostgres(TestHive):
    """The Metastore of a deployment, whose database orders names and locks rows in other ways than Derby."""

    @pytest.fixture
    def hive_url(self, hive_postgres_url: str) -> str:
        return hive_postgres_url


def opened_hive(url: str) -> Iterator[ManifestStore]:
    location = StoreUrl.parse(url, {}, MANIFEST_STORES)
    with closing(HiveManifestStore.open(location, LocalObjectStore(), "lake")) as store:  # nothing is written there
        yield store


# -- V1 directories ---------------------------------------------------------------------------------------------


class OnMemory(V1Contract):
    @pytest.fixture
    def objects(self) -> ObjectStore:
        return MemoryObjectStore()


class OnFiles(V1Contract):
    @pytest.fixture
    def objects(self, tmp_path: Path) -> ObjectStore:
        self.home = f"{tmp_path}/lake"[1:]
        return LocalObjectStore(fsync=False)

    def test_empty_or_linked_directory_is_not_a_table(
        self, tmp_path: Path, objects: ObjectStore, store: ManifestStore
    ) -> None:
        self.write(objects, "t.lance/x")
        (tmp_path / "lake/empty.lance/_versions").mkdir(parents=True)
        os.symlink(tmp_path / "lake/t.lance", tmp_path / "lake/link.lance")
        assert seen(store.view()) == ["t"]
        assert store.view().find("empty") is store.view().find("link") is None


class OnS3(V1Contract):
    @pytest.fixture
    def objects(self, moto_endpoint: str) -> ObjectStore:
        return open_object_store(f"s3://{bucket(moto_endpoint)}/lake", s3_options(moto_endpoint))[0]


class Alone(V1AloneContract):
    @pytest.fixture
    def store(self, objects: ObjectStore) -> ManifestStore:
        return DirectoryListing(objects, self.home)

    @pytest.fixture
    def other(self, objects: ObjectStore) -> ManifestStore:
        return DirectoryListing(objects, self.home)


class TestV1OnMemory(Alone, OnMemory):
    """In memory."""


class TestV1OnFiles(Alone, OnFiles):
    """On local files."""


class TestV1OnS3(Alone, OnS3):
    """On S3."""


class TestV1OnFsspec(Alone):
    @pytest.fixture
    def objects(self, tmp_path: Path) -> ObjectStore:
        self.home = f"{tmp_path}/lake"[1:]
        return FsspecObjectStore(LocalFileSystem(), "file:///")


class BesideMemory(CompatibleContract):
    @pytest.fixture
    def manifest(self) -> ManifestStore:
        return MemoryManifestStore()

    @pytest.fixture
    def store(self, objects: ObjectStore, manifest: ManifestStore) -> ManifestStore:
        return CompatibleManifestStore(manifest, DirectoryListing(objects, self.home))

    @pytest.fixture
    def other(self, objects: ObjectStore, manifest: ManifestStore) -> ManifestStore:
        return CompatibleManifestStore(manifest, DirectoryListing(objects, self.home))


class TestCompatibleOnMemory(BesideMemory, OnMemory):
    """A manifest in memory, and objects there."""


class TestCompatibleOnFiles(BesideMemory, OnFiles):
    """A manifest in memory, and local files."""


class TestCompatibleOnS3(CompatibleContract, OnS3):
    @pytest.fixture
    def store(self, objects: ObjectStore) -> ManifestStore:
        return CompatibleManifestStore(
            LanceManifestStore(objects, "lake/__manifest"), DirectoryListing(objects, "lake")
        )

    @pytest.fixture
    def other(self, objects: ObjectStore) -> ManifestStore:
        return CompatibleManifestStore(
            LanceManifestStore(objects, "lake/__manifest"), DirectoryListing(objects, "lake")
        )


class TestCompatibleIsAManifestStore(ManifestStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ManifestStore:
        objects, key = open_object_store(str(tmp_path), {})
        return CompatibleManifestStore(lance_table(str(tmp_path), {}), DirectoryListing(objects, key))

    @pytest.fixture
    def other(self, tmp_path: Path, store: ManifestStore) -> ManifestStore:
        objects, key = open_object_store(str(tmp_path), {})
        return CompatibleManifestStore(lance_table(str(tmp_path), {}), DirectoryListing(objects, key))


class TestCompatibleIsAManifestStoreInMemoryToo(ManifestStoreContract):
    @pytest.fixture
    def store(self) -> ManifestStore:
        return CompatibleManifestStore(MemoryManifestStore(), DirectoryListing(MemoryObjectStore(), "lake"))


# -- what it costs ----------------------------------------------------------------------------------------------


def test_page_of_v1_directory_reads_only_its_entries() -> None:
    objects = Faulty(MemoryObjectStore())
    for number in range(100):
        objects.put(f"lake/t{number:02}.lance/x", b"")
    listing = DirectoryListing(objects, "lake")
    costs: list[Counter[str]] = []
    for look in (
        listing.view,
        lambda: listing.view().find("t00"),
        lambda: listing.view().find("$"),
        lambda: listing.view().children(ObjectId(), TABLE, "t50", 10),
    ):
        objects.calls.clear()
        look()
        costs.append(objects.counts)
    assert costs == [
        {},
        {"passes_link": 1, "list": 1},
        {},
        {"directories": 1, "passes_link": 11, "list": 11},
    ]


def test_declare_reads_no_marker() -> None:
    objects = Faulty(MemoryObjectStore())
    store = CompatibleManifestStore(MemoryManifestStore(), DirectoryListing(objects, "lake"))
    change(store, lambda view: [SetProperties({"lancekeep.store": "x"})])
    objects.put("lake/t.lance/.lance-reserved", b"")
    objects.calls.clear()
    change(store, lambda view: add_table(view, Table(T, "t.lance", {})))
    assert objects.counts == {"passes_link": 1, "list": 1}
    objects.calls.clear()
    child = Table(ObjectId.of("n.t"), "12345678_n$t", {})
    change(store, lambda view: [Put(ManifestEntry.namespace(ObjectId.of("n"), {}))])
    objects.calls.clear()
    change(store, lambda view: add_table(view, child))
    assert objects.counts == {}


# -- crashes ----------------------------------------------------------------------------------------------------

U = ObjectId.of("u")
CHANGES: dict[str, Callable[[ManifestStore], object]] = {
    "remove": lambda store: change(store, lambda view: remove_table(view, T)),
    "rename": lambda store: change(store, lambda view: rename_table(view, Table(T, "t.lance", {}), U, "12345678_u")),
    "move": lambda store: change(store, lambda view: add_table(view, Table(T, "other", {}), replace=True)),
    "register again": lambda store: change(store, lambda view: add_table(view, Table(T, "t.lance", {"k": "v"}))),
}


@pytest.mark.parametrize("known", ["listed", "entered"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("when", ["before", "after"])
def test_crash_leaves_old_or_new_state_and_retry_completes(change: str, known: str, when: str) -> None:
    def world() -> tuple[MemoryObjectStore, MemoryManifestStore]:
        objects, manifest = MemoryObjectStore(), MemoryManifestStore()
        objects.put("lake/t.lance/x", b"")
        objects.put("lake/other/x", b"")
        if change == "register again":
            objects.put("lake/t.lance/.lance-deregistered", b"")
        elif known == "entered":
            manifest.apply(lambda _: ([Put(ManifestEntry.table(T, "t.lance", {}))], None))
        return objects, manifest

    def state(objects: Any, manifest: Any) -> list[tuple[str, str | None, str | None]]:
        view = opened(objects, manifest).view()
        assert [entry.object_id for entry in view.all_of(TABLE)] == seen(view)
        return [(entry.object_id, entry.location, entry.metadata) for entry in view.all_of(TABLE)]

    def opened(objects: Any, manifest: Any) -> ManifestStore:
        return CompatibleManifestStore(manifest, DirectoryListing(objects, "lake"))

    objects, manifest = world()
    old = state(objects, manifest)
    counting = Faulty(objects), Faulty(manifest)
    CHANGES[change](opened(*counting))
    new = state(objects, manifest)
    assert new != old
    marked = objects.head("lake/t.lance/.lance-deregistered") is not None
    assert marked == (change != "register again")
    states = []
    for side, calls in enumerate(double.calls for double in counting):
        for nth in range(len(calls)):
            if when == "after" and calls[nth] == "get":
                continue  # the properties file is missing
            objects, manifest = world()
            doubles = [Faulty(objects), Faulty(manifest)]
            doubles[side].decide = crash_at(nth, when)
            with pytest.raises(Crash):
                CHANGES[change](opened(*doubles))
            states.append(state(objects, manifest))
            assert states[-1] in (old, new), (side, calls[nth])
            if states[-1] == old:
                CHANGES[change](opened(objects, manifest))
                assert state(objects, manifest) == new
                assert (objects.head("lake/t.lance/.lance-deregistered") is not None) == marked
    assert old in states
    assert (new in states) or when == "before"


def test_removal_during_registration_keeps_table_removed() -> None:
    objects, manifest = MemoryObjectStore(), MemoryManifestStore()
    objects.put("lake/t.lance/x", b"")
    objects.put("lake/t.lance/.lance-deregistered", b"")
    overtaking = Faulty(objects)
    store = CompatibleManifestStore(manifest, DirectoryListing(overtaking, "lake"))
    other = CompatibleManifestStore(manifest, DirectoryListing(objects, "lake"))

    def overtake(name: str, _: int) -> None:
        if name == "delete":
            overtaking.decide = None
            change(other, lambda view: remove_table(view, T))

    overtaking.decide = overtake
    change(store, lambda view: add_table(view, Table(T, "t.lance", {})))
    assert overtaking.decide is None
    assert seen(other.view()) == []


def test_concurrent_registration_under_other_name_owns_directory() -> None:
    objects, manifest = MemoryObjectStore(), MemoryManifestStore()
    objects.put("lake/t.lance/x", b"")
    objects.put("lake/t.lance/.lance-deregistered", b"")
    view = CompatibleManifestStore(manifest, DirectoryListing(objects, "lake")).view()
    assert view.owner_of("t.lance") is None
    entry = ManifestEntry("u", TABLE, "t.lance")
    change(manifest, lambda _: [Put(entry)])
    assert view.owner_of("t.lance") == entry


def test_one_of_two_racing_commit_stores_is_remembered() -> None:
    objects = MemoryObjectStore()
    doors = [DirectoryListing(objects, "lake") for _ in range(2)]

    asked: list[str] = []

    def decide(view: CatalogView) -> list[SetProperties]:
        asked.append(view.properties.get("lancekeep.store", "none"))
        if view.properties:
            raise LancekeepError("managed by another")
        change(doors[1], lambda _: [SetProperties({"lancekeep.store": "faster"})])
        return [SetProperties({"lancekeep.store": "slower"})]

    with pytest.raises(LancekeepError, match="managed by another"):
        change(doors[0], decide)
    assert asked == ["none", "faster"]
