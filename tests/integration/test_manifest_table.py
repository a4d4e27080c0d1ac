"""The manifest table beside native writers, over time and under faults, beyond the contract of its port."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import attrs
import lance
import lance_namespace as api
import pyarrow as pa
import pytest
from deployments import bucket, s3_options
from faults import Crash, Faulty, lost_replies
from lance.namespace import DirectoryNamespace as NativeNamespace
from lance_namespace import errors as api_errors

import lancekeep
from lancekeep import composition
from lancekeep.adapters.commit_stores.memory import MemoryCommitStore
from lancekeep.adapters.manifest_stores import index, table_cleanup
from lancekeep.adapters.manifest_stores.columns import SCHEMA
from lancekeep.adapters.manifest_stores.lance_table import LanceManifestStore
from lancekeep.adapters.manifest_stores.table_data import example_of, standard_fields
from lancekeep.adapters.object_stores import open_object_store
from lancekeep.adapters.object_stores.memory import MemoryObjectStore
from lancekeep.application.commits.table_commits import TableCommits
from lancekeep.application.retry import Retry
from lancekeep.application.upkeep.fsck import Kind
from lancekeep.domain.catalog import CatalogView, Change, Put, Remove, SetProperties
from lancekeep.domain.errors import Damaged, NamespaceAlreadyExists, Refused, StoreUnavailable
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import VERSIONS, DatasetRoot
from lancekeep.domain.manifest_entry import NAMESPACE, TABLE, ManifestEntry
from lancekeep.domain.namespace import create_namespace
from lancekeep.domain.naming import NamingScheme
from lancekeep.format.data_file import STORAGE_VERSION
from lancekeep.ports.manifest_store import ManifestStore
from lancekeep.ports.object_store import ObjectInfo, ObjectStoreGuarantees, StorageTime
from lancekeep.testing.manifest_store import change

ROOT = ObjectId()


def table(object_id: str, location: str | None = None, **extension: object) -> ManifestEntry:
    return ManifestEntry(object_id, TABLE, location or f"12345678_{object_id}", None, extension)


def put(store: ManifestStore, *entries: ManifestEntry) -> CatalogView:
    return change(store, lambda view: [Put(entry) for entry in entries])


def remove(store: ManifestStore, *ids: str) -> CatalogView:
    return change(store, lambda view: [Remove(object_id) for object_id in ids])


def contents(store: ManifestStore) -> dict[str, str | None]:
    return {entry.object_id: entry.location for entry in store.view().descendants(ROOT)}


def rows(root: Path) -> dict[str, str]:
    """What the native engine reads."""
    dataset = lance.dataset(str(root / "__manifest"))
    dataset.validate()
    return {row["object_id"]: row["location"] for row in dataset.to_table().to_pylist()}


def create_indexes(uri: str) -> None:
    """The three of the specification, made by the native engine."""
    lance.dataset(uri).create_scalar_index("object_id", "BTREE")
    lance.dataset(uri).create_scalar_index("object_type", "BITMAP")
    lance.dataset(uri).create_scalar_index("base_objects", "LABEL_LIST")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def opened(root: Path) -> Callable[[], LanceManifestStore]:
    def store() -> LanceManifestStore:
        objects, key = open_object_store(str(root), {"fsync": "false"})
        return LanceManifestStore(objects, f"{key}/__manifest")

    return store


@pytest.fixture
def store(opened: Callable[[], LanceManifestStore]) -> LanceManifestStore:
    return opened()


# -- beside native writers ----------------------------------------------------------------------------------------


def test_manifest_table_matches_the_specification(store: LanceManifestStore, root: Path) -> None:
    change(store, lambda view: create_namespace(view, ObjectId.of("a"), {"k": "v"}))
    dataset = lance.dataset(str(root / "__manifest"))
    assert [(field.name, str(field.type), field.nullable) for field in dataset.schema] == [
        ("object_id", "string", False),
        ("object_type", "string", False),
        ("location", "string", True),
        ("metadata", "string", True),
        ("base_objects", "list<object_id: string>", True),
    ]
    assert dataset.schema.field("object_id").metadata == {b"lance-schema:unenforced-primary-key:position": b"0"}
    assert dataset.data_storage_version == "2.2"
    assert dataset.to_table().to_pylist() == [
        {"object_id": "a", "object_type": "namespace", "location": None, "metadata": '{"k":"v"}', "base_objects": None}
    ]


def test_native_engine_reads_writes_and_compacts_between_changes(
    store: LanceManifestStore, opened: Callable[[], LanceManifestStore], root: Path
) -> None:
    """Every kind of native change, each followed by a look and a change of ours through two doors."""
    uri = str(root / "__manifest")
    expected: dict[str, str | None] = {}
    chance = random.Random(7)

    def ours(door: LanceManifestStore) -> None:
        for _ in range(chance.randrange(1, 4)):
            name = f"t{len(expected):03d}-{chance.random()}"
            expected[name] = f"12345678_{name}"
            put(door, table(name))
        gone = chance.choice(sorted(expected))
        del expected[gone]
        remove(door, gone)

    def native_delete() -> None:
        gone = chance.choice(sorted(expected))
        del expected[gone]
        lance.dataset(uri).delete(f"object_id = '{gone}'")

    def native_append() -> None:
        name = f"n{len(expected):03d}"
        expected[name] = "there"
        row = {"object_id": name, "object_type": TABLE, "location": "there"}
        lance.write_dataset(pa.Table.from_pylist([row], schema=lance.dataset(uri).schema), uri, mode="append")

    def native_index() -> None:
        create_indexes(uri)

    def native_update() -> None:
        moved = chance.choice(sorted(expected))
        expected[moved] = "moved"
        lance.dataset(uri).update({"location": "'moved'"}, where=f"object_id = '{moved}'")

    def native_namespace() -> None:
        name = f"native{len(expected)}"
        NativeNamespace(root=str(root)).create_namespace(api.CreateNamespaceRequest(id=[name]))
        expected[name] = None

    def native_compaction() -> None:
        lance.dataset(uri).optimize.compact_files()

    ours(store)
    for native in (
        native_index, native_delete, native_append, native_update, native_compaction, native_namespace, native_index,
        native_compaction, native_append, native_delete, native_namespace, native_update,
    ):  # fmt: skip
        native()
        assert contents(store) == expected, native.__name__
        ours(store)
        ours(opened())
        assert contents(store) == rows(root) == expected, native.__name__


def test_native_lookups_by_index_stay_correct(store: LanceManifestStore, root: Path) -> None:
    put(store, *(table(f"t{number:03d}") for number in range(400)))
    uri = str(root / "__manifest")
    create_indexes(uri)
    for number in range(400, 460):
        put(store, table(f"t{number:03d}"))
    remove(store, "t007", "t420")
    put(store, table("t008", "elsewhere"))
    dataset = lance.dataset(uri)
    assert {description["type"] for description in dataset.list_indices()} == {"BTree", "Bitmap", "LabelList"}
    assert "ScalarIndexQuery" in dataset.scanner(filter="object_id = 't450'").explain_plan()

    def found(name: str) -> list[str]:
        column: list[str] = dataset.to_table(filter=f"object_id = '{name}'")["location"].to_pylist()
        return column

    assert [found(name) for name in ("t001", "t007", "t008", "t420", "t450")] == [
        ["12345678_t001"], [], ["elsewhere"], [], ["12345678_t450"],
    ]  # fmt: skip
    assert dataset.count_rows("object_type = 'table'") == 458


def test_insert_loses_to_faster_native_writer(opened: Callable[[], LanceManifestStore], root: Path) -> None:
    """The specified BTREE makes the engine's own merge insert write a key twice from two stale handles."""
    store = opened()
    put(store, table("t"))
    lance.dataset(str(root / "__manifest")).create_scalar_index("object_id", "BTREE")
    store.view()
    NativeNamespace(root=str(root)).create_namespace(api.CreateNamespaceRequest(id=["dup"]))
    with pytest.raises(NamespaceAlreadyExists):
        change(store, lambda view: create_namespace(view, ObjectId.of("dup"), {}))
    assert lance.dataset(str(root / "__manifest")).count_rows("object_id = 'dup'") == 1


def test_extension_columns_and_unknown_types_survive_every_write(store: LanceManifestStore, root: Path) -> None:
    put(store, *(table(f"t{number}") for number in range(5)))
    uri = str(root / "__manifest")
    lance.dataset(uri).add_columns(pa.schema([pa.field("partition_field_year", pa.int32())]))
    dataset = lance.dataset(uri)
    dataset.update({"partition_field_year": "2024"}, where="object_id = 't1'")
    view = {"object_id": "v", "object_type": "view", "location": "v", "base_objects": ["t1", "t2"]}
    lance.write_dataset(pa.Table.from_pylist([view], schema=dataset.schema), uri, mode="append")
    change(store, lambda view: create_namespace(view, ObjectId.of("n"), {}))
    entry = store.view().find("t1")
    assert entry is not None
    assert entry.extension == {"partition_field_year": 2024}
    put(store, table("t9", partition_field_year=2025))
    change(store, lambda view: [Put(entry.with_properties({"k": "v"}))])
    remove(store, "t0")
    stored = {row["object_id"]: row for row in lance.dataset(uri).to_table().to_pylist()}
    assert (stored["t1"]["partition_field_year"], stored["t1"]["metadata"]) == (2024, '{"k":"v"}')
    assert stored["t9"]["partition_field_year"] == 2025
    assert (stored["v"]["object_type"], stored["v"]["base_objects"]) == ("view", ["t1", "t2"])
    assert sorted(stored) == ["n", "t1", "t2", "t3", "t4", "t9", "v"]


def test_deletion_files_of_both_kinds_are_read(store: LanceManifestStore, root: Path) -> None:
    put(store, *(table(f"t{number:05d}") for number in range(20_000)))
    dataset = lance.dataset(str(root / "__manifest"))
    dataset.delete("object_id < 't15000'")
    assert list((root / "__manifest" / "_deletions").glob("*.bin"))  # dense: a roaring bitmap
    assert len(contents(store)) == 5000
    dataset.delete("object_id = 't16000'")
    remove(store, "t16001")
    assert store.view().find("t16000") is store.view().find("t16001") is None
    assert contents(store).keys() == rows(root).keys()
    assert len(rows(root)) == 4998


def test_unknown_content_is_refused_and_nothing_is_written(store: LanceManifestStore, root: Path) -> None:
    put(store, table("t"))
    lance.dataset(str(root / "__manifest")).update_metadata({"lance.namespace.manifest.writer_feature_flags": "4"})
    with pytest.raises(Refused, match="writer_feature_flags = 4"):
        put(store, table("u"))
    assert contents(store).keys() == {"t"}
    lance.dataset(str(root / "__manifest")).update_metadata({"lance.namespace.manifest.reader_feature_flags": "x"})
    with pytest.raises(Refused, match="reader_feature_flags = x"):
        store.view()


def test_damaged_manifest_is_named(opened: Callable[[], LanceManifestStore], root: Path) -> None:
    put(opened(), table("t"))
    [manifest] = (root / "__manifest" / "_versions").glob("*.manifest")
    manifest.write_bytes(manifest.read_bytes()[:100])
    with pytest.raises(Damaged, match=r"__manifest/_versions.* is not a manifest of a Lance table"):
        opened().view()


def test_another_lance_table_in_its_place_is_refused(opened: Callable[[], LanceManifestStore], root: Path) -> None:
    lance.write_dataset(pa.table({"a": [1]}), str(root / "__manifest"))
    with pytest.raises(Damaged, match="is not a manifest table: it has no column object_id, object_type, location"):
        opened().view()


# -- many entries --------------------------------------------------------------------------------------------------


def test_fragments_stay_few(store: LanceManifestStore, root: Path) -> None:
    for number in range(300):
        put(store, table(f"t{number:03d}"))
    dataset = lance.dataset(str(root / "__manifest"))
    assert dataset.count_rows() == 300
    assert len(dataset.get_fragments()) <= 10
    for number in range(290):
        remove(store, f"t{number:03d}")
    assert contents(store).keys() == rows(root).keys() == {f"t{number}" for number in range(290, 300)}
    assert len(lance.dataset(str(root / "__manifest")).get_fragments()) <= 10


@pytest.mark.parametrize("small", [2, 2048])
def test_index_equals_plain_dictionary(
    small: int, monkeypatch: pytest.MonkeyPatch, opened: Callable[[], LanceManifestStore]
) -> None:
    """Test sorted runs and dictionaries, in one process and in a new one."""
    monkeypatch.setattr(index, "SMALL", small)
    chance = random.Random(small)
    model: dict[str, ManifestEntry] = {}
    store, reader = opened(), opened()
    names = ["a", "a-", "a.", "aa", "b", "é", "e\u0301", "z", "\U0001f600", "0"]
    for _ in range(60):
        changes: list[Change] = []
        for _ in range(chance.randrange(1, 9)):
            object_id = "$".join(chance.choices(names, k=chance.randrange(1, 4)))
            if object_id in model and chance.random() < 0.4:
                changes.append(Remove(object_id))
                del model[object_id]
            else:
                where = chance.choice([f"12345678_{object_id}", f"{object_id}.lance", f"x/{object_id}", None])
                model[object_id] = ManifestEntry(object_id, chance.choice([TABLE, NAMESPACE]), where)
                changes.append(Put(model[object_id]))
        change(store, lambda view, changes=changes: changes)  # type: ignore[misc]  # mypy does not infer such a lambda
        for view in (store.view(), reader.view(), opened().view()):
            _require_equal(view, model, chance)


def _require_equal(view: CatalogView, model: dict[str, ManifestEntry], chance: random.Random) -> None:
    assert {entry.object_id: entry for entry in view.descendants(ROOT)} == model
    for object_type in (TABLE, NAMESPACE):
        ids = sorted(object_id for object_id, entry in model.items() if entry.object_type == object_type)
        after = chance.choice([None, *ids])
        assert [entry.object_id for entry in view.all_of(object_type, after)] == [
            i for i in ids if not after or i > after
        ]
        parent = ObjectId.from_key(chance.choice(sorted(model) or [""]))
        prefix = f"{parent.key}$" if parent.names else ""
        below = [i.removeprefix(prefix) for i in ids if i.startswith(prefix) and "$" not in i.removeprefix(prefix)]
        paged: list[str] = []
        token: str | None = None
        while True:
            page, token = view.children(parent, object_type, token, 2)
            paged += page
            if token is None:
                break
        assert paged == sorted(below) == view.children(parent, object_type)[0]
    for entry in model.values():
        assert view.find(entry.object_id) == entry
        if entry.location and entry.object_type == TABLE:
            owner = view.owner_of(f"{entry.location}/deeper")
            assert owner is not None
            assert owner.location == entry.location
    assert view.find("missing") is view.owner_of("missing.lance") is None
    nested = [entry.location for entry in model.values() if entry.location and entry.location.startswith("x/")]
    assert (view.owner_of("x") is not None) == bool(nested)


def test_native_rewrite_of_large_catalog_is_read_without_sorting(store: LanceManifestStore, root: Path) -> None:
    put(store, *(table(f"n$t{number:05d}") for number in range(5000)))
    before = store.view()
    assert isinstance(before, index.IndexedView)
    NativeNamespace(root=str(root)).create_namespace(api.CreateNamespaceRequest(id=["new"]))
    after = store.view()
    assert isinstance(after, index.IndexedView)
    assert after.find("new") is not None
    [rewritten] = after.fragments
    assert rewritten.pieces[0].rows is before.fragments[0].pieces[0].rows


# -- several at once -----------------------------------------------------------------------------------------------


def test_concurrent_changes_of_threads_are_one_group_commit(opened: Callable[[], LanceManifestStore]) -> None:
    store = opened()
    put(store, table("first"))
    together = Barrier(8)

    def create(thread: int) -> None:
        for number in range(25):
            together.wait()
            put(store, table(f"t{thread}-{number}"))

    threads = [Thread(target=create, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(contents(opened())) == 201
    assert store.view().version < 150


def test_refusal_in_a_group_does_not_affect_other_changes(store: LanceManifestStore) -> None:
    together = Barrier(4)
    told: list[str] = []

    def create(name: str) -> None:
        together.wait()
        try:
            change(store, lambda view: create_namespace(view, ObjectId.of([name]), {}))
            told.append("created")
        except NamespaceAlreadyExists:
            told.append("exists")

    threads = [Thread(target=create, args=(name,)) for name in ("a", "a", "b", "c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(told) == ["created", "created", "created", "exists"]
    assert contents(store).keys() == {"a", "b", "c"}


def test_interrupted_thread_drops_only_its_own_change(store: LanceManifestStore) -> None:
    together, returned = Barrier(6), list[str]()

    def create(number: int) -> None:
        for turn in range(20):
            name, ending = f"t{number}-{turn}", [Crash()] if number == turn % 6 else []
            together.wait()
            with suppress(Crash):  # also of a decision that this thread makes for another
                # The store calls the function before `change` returns.
                change(store, lambda view: _raised(ending.pop()) if ending else [Put(table(name))])  # noqa: B023
                returned.append(name)

    threads = [Thread(target=create, args=(number,), daemon=True) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert len(returned) == 100
    assert contents(store).keys() == set(returned)


def _raised(error: BaseException) -> list[Change]:
    raise error


# -- faults --------------------------------------------------------------------------------------------------------


def test_change_with_lost_reply_is_applied_once() -> None:
    memory = MemoryObjectStore()
    faulty = Faulty(memory)
    store = LanceManifestStore(faulty, "m")
    put(store, table("a"))
    faulty.decide = lost_replies("put_if_absent", 1)
    after = put(store, table("b"))
    assert after.version == 2
    assert contents(LanceManifestStore(memory, "m")).keys() == {"a", "b"}


def test_failed_group_commit_raises_in_every_waiter() -> None:
    faulty = Faulty(MemoryObjectStore())
    store = LanceManifestStore(faulty, "m")
    put(store, table("a"))
    faulty.decide = lambda name, _: ("before", StoreUnavailable("down")) if name.startswith("put") else None
    with pytest.raises(StoreUnavailable, match="down"):
        put(store, table("b"))
    faulty.decide = None
    put(store, table("c"))
    assert contents(store).keys() == {"a", "c"}


@pytest.mark.parametrize("when", ["before", "after"])
def test_crash_at_any_call_leaves_the_old_or_the_new_state(when: str) -> None:
    for nth in range(20):
        memory = MemoryObjectStore()
        put(LanceManifestStore(memory, "m"), table("a"), table("b"))
        faulty = Faulty(memory)
        store = LanceManifestStore(faulty, "m")
        faulty.decide = lambda _, count, nth=nth: (when, Crash()) if count == nth else None
        try:
            change(store, lambda view: [Remove("a"), Put(table("c")), SetProperties({"k": "v"})])
        except Crash:
            found = LanceManifestStore(memory, "m")
            state = (set(contents(found)), dict(found.view().properties))
            assert state in (({"a", "b"}, {}), ({"b", "c"}, {"k": "v"}))
        if nth >= len(faulty.calls):
            return
    raise AssertionError("it never came to an end")


# -- time ----------------------------------------------------------------------------------------------------------


Fate = tuple[str, BaseException] | None


class Plain(Faulty):
    """Objects in a store that creates nothing for one writer only."""

    guarantees = ObjectStoreGuarantees(atomic_create=False, atomic_copy=False, durable=True)


class Aging(MemoryObjectStore):
    """Objects whose time of creation is that of ``now``."""

    now = datetime(2026, 1, 1, tzinfo=UTC)

    def __init__(self) -> None:
        super().__init__(clock=lambda: self.now)


def versions(objects: MemoryObjectStore) -> int:
    return len(list(objects.list("m/_versions/")))


def test_old_versions_go_with_the_files_only_they_need_and_the_latest_stays() -> None:
    objects = Aging()
    store = LanceManifestStore(objects, "m")
    for number in range(40):
        put(store, table(f"t{number:02d}"))
    remove(store, "t05")
    assert store.clean_up() == 0  # nothing is old yet
    objects.now += timedelta(minutes=11)
    put(store, table("new"))
    assert store.clean_up() == 40
    objects.now += timedelta(minutes=11)
    put(store, table("newer"))
    assert store.clean_up() > 0
    fresh = LanceManifestStore(objects, "m")
    assert len(contents(fresh)) == 41
    needed = {key for fragment in fresh.view().fragments for key in fragment.paths}  # type: ignore[attr-defined]  # of the index
    kept = {info.key.rpartition("/")[2] for info in objects.list("m/data/")}
    assert needed <= kept
    assert len(kept) <= len(needed) + 3
    assert versions(objects) <= 3


def test_rows_go_with_the_versions_that_a_commit_store_published() -> None:
    objects, rows = Aging(), MemoryCommitStore("rows-of-the-manifest")
    root = DatasetRoot("m", "memory:///m")
    commits = TableCommits(objects, rows, "me", Retry())

    def forget(versions: Sequence[int]) -> None:
        rows.delete(root.base_uri, versions)

    store = LanceManifestStore(
        objects,
        "m",
        publish=lambda name, content: commits.publish(root, name, content),
        forget=forget,
    )
    for number in range(20):
        put(store, table(f"t{number:02d}"))
        objects.now += timedelta(minutes=1)
    assert store.clean_up() > 0
    left = rows.list(root.base_uri, after=None, limit=None, descending=False)
    assert {row.path for row in left} == {info.key for _, info in table_cleanup.versions_of(objects, "m")}
    assert len(left) < 20
    assert len(contents(store)) == 20


def test_next_writer_after_a_crash_commits_through_the_commit_store() -> None:
    """A decided version without a manifest in the directory would block every writer, at any call."""
    root = DatasetRoot("m", "memory:///m")
    died = True
    for nth in count():
        if not died:
            break
        died = False
        for when in ("before", "after"):
            world, rows = MemoryObjectStore(), MemoryCommitStore(f"crash-{nth}-{when}")
            calls: list[str] = []

            def fate(method: str, _: int, calls: list[str] = calls, nth: int = nth, when: str = when) -> Fate:
                calls.append(method)
                return (when, Crash()) if len(calls) == nth + 1 else None

            def opened(decide: Callable[[str, int], Fate] | None, world: Any = world, rows: Any = rows) -> Any:
                objects = Plain(world, decide)
                commits = TableCommits(objects, Faulty(rows, decide), "me", Retry())
                return LanceManifestStore(objects, "m", publish=lambda name, it: commits.publish(root, name, it))

            put(opened(None), table("before"))
            try:
                put(opened(fate), table("dead"))
            except Crash:
                died = True
            put(opened(None), table("after"))
            assert {"before", "after"} <= set(contents(opened(None))) <= {"before", "dead", "after"}
    assert nth > 8


def test_fsck_checks_manifest_table_in_the_commit_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deaths: list[Callable[[str, int], Fate]] = []

    def opened(*args: Any, **how: Any) -> Any:
        objects, key = open_object_store(*args, **how)
        return Plain(objects, lambda *call: deaths[0](*call) if deaths else None), key

    monkeypatch.setattr(composition, "open_object_store", opened)

    def connect() -> lancekeep.Catalog:
        return lancekeep.connect(str(tmp_path / "lake"), mode="v2", commit_store=f"sqlite:///{tmp_path}/rows.db")

    catalog = connect()
    catalog.create_namespace("before")
    puts = count()
    deaths.append(lambda method, _: ("before", Crash()) if method == "put" and next(puts) == 2 else None)
    with pytest.raises(Crash):  # data, staged manifest, and here the final one
        catalog.create_namespace("dead")
    deaths.clear()
    left = next((tmp_path / "lake/__manifest/_versions").glob("*.manifest-*"))
    lost = left.with_name(left.name[:-8] + "12345678")  # of the version that is published now
    lost.write_bytes(left.read_bytes())
    catalog = connect()
    assert catalog.list_namespaces() == ["before"]
    assert {(one.kind, one.object) for one in catalog.upkeep.fsck(deep=True, grace=0).findings} >= {
        (Kind.STUCK, "__manifest")
    }
    [needed] = catalog.upkeep.fsck(repair=True, grace=0).findings  # but not after the repair has read that version
    assert (needed.kind, needed.repaired) == (Kind.LEFTOVER, False)
    assert connect().list_namespaces() == ["before", "dead"]
    assert [one.repaired for one in catalog.upkeep.fsck(repair=True, deep=True, grace=0).findings] == [True]
    assert not lost.exists()
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()

    puts = count()
    deaths.append(lambda method, _: ("before", Crash()) if method == "put" and next(puts) == 3 else None)
    with pytest.raises(Crash):  # the marker of its directory is the first
        catalog.declare_table("t")
    deaths.clear()
    catalog = connect()
    assert {one.kind for one in catalog.upkeep.fsck(grace=0).findings} == {Kind.UNREFERENCED, Kind.LEFTOVER}
    assert not any(one.repaired for one in catalog.upkeep.fsck(repair=True, grace=0).findings)
    assert connect().list_tables() == ["t"]
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()


def test_versions_that_a_tag_may_hold_are_kept() -> None:
    objects = Aging()
    store = LanceManifestStore(objects, "m")
    for number in range(5):
        put(store, table(f"t{number}"))
    objects.put("m/_refs/tags/release.json", b"{}")
    objects.now += timedelta(hours=1)
    put(store, table("new"))
    assert store.clean_up() == 0


def test_process_suspended_during_clean_up_reads_the_latest_state_and_overwrites_nothing() -> None:
    objects = Aging()
    seconds = [0.0]
    sleeper = LanceManifestStore(objects, "m", clock=lambda: seconds[0])
    early = LanceManifestStore(objects, "m", clock=lambda: seconds[0])
    assert early.view().version == 0
    put(sleeper, table("a"))
    writer = LanceManifestStore(objects, "m")
    for number in range(10):
        put(writer, table(f"t{number}"))
    objects.now += timedelta(minutes=11)
    put(writer, table("b"))
    objects.now += timedelta(minutes=11)
    put(writer, table("c"))
    assert writer.clean_up() > 0
    assert versions(objects) < 4
    seconds[0] = 3600.0
    assert put(sleeper, table("mine")).find("c") is not None
    assert early.view().find("mine") is not None
    assert contents(writer).keys() == {"a", "b", "c", "mine", *(f"t{number}" for number in range(10))}


def test_late_version_under_the_name_in_the_hint_is_ignored() -> None:
    """Its writer was suspended until the name was cleaned up, and crashed before it could withdraw the version."""
    objects = Aging()
    writer = LanceManifestStore(objects, "m")
    for number in range(16):  # the last of them is what the hint names
        put(writer, table(f"t{number}"))
    late = objects.get("m/_versions/" + NamingScheme.V2.final_name(16))
    for name in "abc":
        objects.now += timedelta(minutes=11)
        put(writer, table(name))
    assert writer.clean_up() == 17
    objects.put("m/_versions/" + NamingScheme.V2.final_name(16), late)
    opened = LanceManifestStore(objects, "m")
    put(opened, table("d"))
    for store in (opened, writer, LanceManifestStore(objects, "m")):
        assert contents(store).keys() == {*"abcd", *(f"t{number}" for number in range(16))}


def test_suspended_writer_does_not_recreate_the_catalog() -> None:
    objects = Aging()
    seconds = [0.0]
    sleeper = LanceManifestStore(objects, "m", clock=lambda: seconds[0])
    sleeper.view()
    writer = LanceManifestStore(objects, "m")
    for name in ("a", "b"):
        put(writer, table(name))
        objects.now += timedelta(minutes=11)
    put(writer, table("c"))
    assert writer.clean_up() > 0
    seconds[0] = 3600.0
    put(sleeper, table("d"))
    assert contents(writer).keys() == {"a", "b", "c", "d"}


class HeldUp(Aging):
    """After one version is created, ``intervene`` runs before the writer gets the reply."""

    name = ""
    intervene: Callable[[], None]

    def put_if_absent(self, key: str, content: bytes) -> bool:
        created = super().put_if_absent(key, content)
        if key == self.name:
            self.name = ""
            self.intervene()
        return created


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("cleaned", [False, True])
def test_writer_suspended_after_its_change_applies_it_once(before: int, cleaned: bool) -> None:
    objects, seconds = HeldUp(), [0.0]
    writer = LanceManifestStore(objects, "m", clock=lambda: seconds[0])
    other = LanceManifestStore(objects, "m")
    for number in range(before):
        put(writer, table(f"t{number}"))
        objects.now += timedelta(minutes=11 if cleaned else 0)

    def intervene() -> None:
        objects.now += timedelta(minutes=11)
        put(other, table("other"))
        if cleaned:
            objects.now += timedelta(minutes=1)
            assert other.clean_up() == before  # the writer's own version is too young to go
        remove(other, "mine")
        seconds[0] = 1000.0

    objects.name, objects.intervene = f"m/{VERSIONS}/{NamingScheme.V2.final_name(before + 1)}", intervene
    put(writer, table("mine"))
    assert contents(other).keys() == {"other", *(f"t{number}" for number in range(before))}
    assert contents(LanceManifestStore(objects, "m")).keys() == contents(other).keys()


def test_suspended_writer_whose_version_was_cleaned_up_reports_unknown() -> None:
    objects, seconds = HeldUp(), [0.0]
    writer = LanceManifestStore(objects, "m", clock=lambda: seconds[0])
    other = LanceManifestStore(objects, "m")

    def intervene() -> None:
        for name in ("a", "b"):
            put(other, table(name))
            objects.now += timedelta(minutes=11)
        put(other, table("c"))
        assert other.clean_up() > 0
        seconds[0] = 1000.0

    objects.name, objects.intervene = f"m/{VERSIONS}/{NamingScheme.V2.final_name(1)}", intervene
    with pytest.raises(StoreUnavailable, match="was suspended while it published"):
        put(writer, table("mine"))
    assert contents(other).keys() == {"mine", "a", "b", "c"}


class HeldUpBefore(Aging):
    """``intervene`` runs before a version is put, or after its creation, whose reply is lost."""

    name = ""
    intervene: Callable[[], None]

    def put(self, key: str, content: bytes) -> None:
        if key == self.name:
            self.name = ""
            self.intervene()
        super().put(key, content)

    def put_if_absent(self, key: str, content: bytes) -> bool:
        created = super().put_if_absent(key, content)
        if key == self.name:
            self.name = ""
            self.intervene()
            raise StoreUnavailable("the reply was lost")
        return created


@pytest.mark.parametrize("through_a_commit_store", [False, True])
def test_suspended_writer_does_not_withdraw_finished_version(
    through_a_commit_store: bool,
) -> None:
    """They have built on it: so its writer neither makes the change once more nor removes its files."""
    objects, rows, seconds = HeldUpBefore(), MemoryCommitStore(f"held-up-{through_a_commit_store}"), [0.0]
    objects.guarantees = attrs.evolve(objects.guarantees, atomic_create=not through_a_commit_store)
    root = DatasetRoot("m", "memory:///m")
    commits = TableCommits(objects, rows, "me", Retry())

    def opened() -> LanceManifestStore:
        return LanceManifestStore(
            objects,
            "m",
            publish=(lambda name, content: commits.publish(root, name, content)) if through_a_commit_store else None,
            forget=forget,
            clock=lambda: seconds[0],
        )

    def forget(versions: Sequence[int]) -> None:
        rows.delete(root.base_uri, versions)

    writer, other = opened(), opened()

    def intervene() -> None:
        for name in ("a", "b", "c"):
            objects.now += timedelta(minutes=11)
            put(other, table(name))
        remove(other, "a")
        assert other.clean_up() > 0
        seconds[0] = 2000.0

    objects.name, objects.intervene = f"m/{VERSIONS}/{NamingScheme.V2.final_name(1)}", intervene
    unknown = "could not be learnt" if through_a_commit_store else "was suspended while it published"
    with pytest.raises(StoreUnavailable, match=unknown):
        put(writer, table("mine"))
    put(writer, table("d"))
    for store in (writer, other, opened()):
        assert contents(store).keys() == {"mine", "b", "c", "d"}


class LookedAt(HeldUp):
    """``intervene`` runs before the reply to the ``looks``-th read of a version."""

    looked_for = ""
    looks = 0

    def head(self, key: str) -> ObjectInfo | None:
        if key == self.looked_for:
            self.looks -= 1
            if self.looks == 0:
                self.intervene()
        return super().head(key)


@pytest.mark.parametrize("held_up_in_its_look", [False, True])
def test_cleaned_up_name_that_a_crashed_writer_took_is_ignored(held_up_in_its_look: bool) -> None:
    objects, seconds = LookedAt(), [0.0]
    dying = LanceManifestStore(objects, "m")
    reader = LanceManifestStore(objects, "m", clock=lambda: seconds[0])
    other = LanceManifestStore(objects, "m")
    second = f"m/{VERSIONS}/{NamingScheme.V2.final_name(2)}"
    put(other, table("a"))
    dying.view()
    reader.view()
    put(other, table("b"))

    def die() -> None:
        raise Crash

    def intervene() -> None:
        for name in ("c", "d", "e"):
            objects.now += timedelta(minutes=11)
            put(other, table(name))
        assert other.clean_up() == 3
        objects.name, objects.intervene = second, die
        with pytest.raises(Crash):
            put(dying, table("mine"))
        seconds[0] = 1000.0

    if held_up_in_its_look:  # it has read its known version, the first, and checks for the next
        objects.looked_for, objects.looks, objects.intervene = second, 3, intervene
    else:
        reader.view()
        intervene()
    assert contents(reader).keys() == {"a", "b", "c", "d", "e"}
    assert second in objects._objects
    put(reader, table("f"))
    assert contents(other).keys() == {"a", "b", "c", "d", "e", "f"}


# -- no safety from a local clock ----------------------------------------------------------------------------------


class Dated(Aging):
    """A storage whose answers carry its time, as those of S3 do. ``before``: called before a version is created."""

    name = ""
    before: Callable[[], None]

    def __init__(self, *, dated: bool) -> None:
        super().__init__()
        self.dated = dated

    def _answered(self) -> None:
        if self.dated:
            StorageTime.record(self.now)

    def head(self, key: str) -> ObjectInfo | None:
        try:
            return super().head(key)
        finally:
            self._answered()

    def put_if_absent(self, key: str, content: bytes) -> bool:
        if key == self.name:
            self.name = ""
            self.before()
        try:
            return super().put_if_absent(key, content)
        finally:
            self._answered()


CLOCKS = {"frozen": 0.0, "an hour back": -3600.0, "an hour ahead": 3600.0, "seconds ahead": 5.0}


@pytest.fixture(params=CLOCKS)
def step(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A stopped clock of this process, and what sets it while the process is held up."""
    now = [1_000_000.0]
    for name in ("time", "monotonic", "perf_counter"):
        monkeypatch.setattr(time, name, lambda: now[0])

    def set_clock() -> None:
        now[0] += CLOCKS[request.param]

    return set_clock


def come_and_go(objects: Dated, other: LanceManifestStore, *names: str) -> None:
    """Enter tables and remove the versions that this overtakes."""
    for name in names:
        objects.now += timedelta(minutes=11)
        put(other, table(name))
    assert other.clean_up() > 0


@pytest.mark.parametrize("dated", [False, True])
@pytest.mark.parametrize("known", [0, 3])
def test_acknowledged_change_is_kept_however_the_local_clock_runs(
    step: Callable[[], None], known: int, dated: bool
) -> None:
    """The writer is held up before it publishes, until the name of its version has been taken and cleaned up."""
    objects = Dated(dated=dated)
    writer, other = LanceManifestStore(objects, "m"), LanceManifestStore(objects, "m")
    for number in range(known):
        put(writer, table(f"t{number}"))
    writer.view()

    def before() -> None:
        come_and_go(objects, other, "a", "b", "c")
        step()

    objects.name, objects.before = f"m/{VERSIONS}/{NamingScheme.V2.final_name(known + 1)}", before
    put(writer, table("mine"))
    expected = {"mine", "a", "b", "c", *(f"t{number}" for number in range(known))}
    for store in (other, writer, LanceManifestStore(objects, "m")):
        assert contents(store).keys() == expected


@pytest.mark.parametrize("dated", [False, True])
def test_reader_sees_the_latest_version_however_the_local_clock_runs(step: Callable[[], None], dated: bool) -> None:
    objects = Dated(dated=dated)
    early, reader, other = (LanceManifestStore(objects, "m") for _ in range(3))
    assert early.view().version == 0
    put(other, table("t"))
    reader.view()
    come_and_go(objects, other, "a", "b", "c")
    step()
    assert contents(reader).keys() == contents(early).keys() == {"t", "a", "b", "c"}


@pytest.mark.parametrize("dated", [False, True])
def test_reader_is_not_misled_by_a_late_version_however_the_local_clock_runs(
    step: Callable[[], None], dated: bool
) -> None:
    """A writer paused before it claimed the version that a reader has seen, and then crashed."""
    objects = Dated(dated=dated)
    dying, reader, other = (LanceManifestStore(objects, "m") for _ in range(3))
    put(other, table("t"))
    dying.view()
    put(other, table("u"))
    reader.view()
    reader.view()
    late = objects.get(f"m/{VERSIONS}/{NamingScheme.V2.final_name(1)}")
    come_and_go(objects, other, "a", "b", "c")
    objects.put(f"m/{VERSIONS}/{NamingScheme.V2.final_name(2)}", late)
    step()
    assert contents(reader).keys() == {"t", "u", "a", "b", "c"}
    put(reader, table("v"))
    assert contents(other).keys() == {"t", "u", "a", "b", "c", "v"}


def test_hint_written_late_misleads_no_reader() -> None:
    """Its writer was suspended before it wrote the hint; another writer took the version's name and crashed."""
    objects = Dated(dated=False)
    writer, other = LanceManifestStore(objects, "m"), LanceManifestStore(objects, "m")
    for number in range(16):
        put(writer, table(f"t{number}"))
    late = {info.key: objects.get(info.key) for info in objects.list("m/data/")}
    key = f"m/{VERSIONS}/{NamingScheme.V2.final_name(16)}"
    late[key] = objects.get(key)
    come_and_go(objects, other, "a", "b", "c")
    for name, content in late.items():
        objects.put(name, content)
    objects.now += timedelta(minutes=1)
    objects.put(f"m/{VERSIONS}/latest_version_hint.json", b'{"version": 16}')
    expected = {"a", "b", "c", *(f"t{number}" for number in range(16))}
    assert contents(LanceManifestStore(objects, "m")).keys() == expected


def test_next_read_sees_change_of_naming_schemes(root: Path, opened: Callable[[], LanceManifestStore]) -> None:
    lance.write_dataset(
        pa.Table.from_pylist([{"object_id": "a", "object_type": "namespace"}], schema=SCHEMA),
        str(root / "__manifest"),
        enable_v2_manifest_paths=False,
    )
    ours, other = opened(), opened()
    assert contents(ours).keys() == {"a"}
    lance.dataset(str(root / "__manifest")).migrate_manifest_paths_v2()
    put(other, table("t"))
    assert contents(ours).keys() == {"a", "t"}
    put(ours, table("u"))
    assert rows(root).keys() == {"a", "t", "u"}


def test_clean_up_runs_by_itself_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_cleanup, "RETENTION", timedelta(0))
    objects = Aging()
    store = LanceManifestStore(objects, "m")
    for number in range(256):
        objects.now += timedelta(seconds=1)
        put(store, table(f"t{number}"))
    store.close()
    assert versions(objects) < 20
    assert len(contents(LanceManifestStore(objects, "m"))) == 256


def test_clean_up_does_not_run_by_itself_again_within_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_cleanup, "RETENTION", timedelta(0))
    objects, seconds = Aging(), [0.0]
    store = LanceManifestStore(objects, "m", clock=lambda: seconds[0])

    def left_after(changes: int) -> int:
        for _ in range(changes):
            objects.now += timedelta(seconds=1)
            put(store, table("t"))
        store.close()
        return versions(objects)

    assert left_after(256) < 20
    seconds[0] = 59.9
    assert left_after(256) > 256
    seconds[0] = 60
    assert left_after(256) < 20


# -- what it costs -------------------------------------------------------------------------------------------------


def test_read_costs_one_request_and_writes_nothing(moto_endpoint: str) -> None:
    objects, key = open_object_store(f"s3://{bucket(moto_endpoint)}/lake", s3_options(moto_endpoint))
    faulty = Faulty(objects)
    store = LanceManifestStore(faulty, f"{key}/__manifest")
    put(store, *(table(f"n$t{number}") for number in range(10)))
    for look in (
        lambda: store.view().find("n$t3"),
        lambda: store.view().find("missing"),
        lambda: store.view().children(ObjectId.of("n"), TABLE, None, 5),
    ):
        faulty.calls.clear()
        look()
        assert faulty.calls == ["head"]
    faulty.calls.clear()
    put(store, table("n$new"))
    assert faulty.calls == ["put", "put_if_absent"]


# -- storage that creates nothing for one writer only ---------------------------------------------------------------


def test_where_the_storage_has_no_create_only_write_the_commit_store_decides(shelf: str, tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/commits.db"
    for number in range(5):
        catalogs = [lancekeep.connect(shelf, mode="v2", commit_store=url) for _ in range(4)]
        together, told = Barrier(len(catalogs)), list[str]()

        def create(catalog: lancekeep.Catalog, name: str, together: Barrier = together, told: list[str] = told) -> None:
            together.wait()
            try:
                catalog.create_namespace(name)
                told.append("created")
            except lancekeep.NamespaceAlreadyExists:
                told.append("exists")

        threads = [Thread(target=create, args=(catalog, f"n{number}")) for catalog in catalogs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(told) == ["created", "exists", "exists", "exists"]
        assert catalogs[0].list_namespaces() == [f"n{n}" for n in range(number + 1)]
    assert not list((tmp_path / "a/lake/__manifest/_versions").glob("*.manifest-*"))


def test_its_versions_move_with_those_of_the_tables_to_another_commit_store(shelf: str, tmp_path: Path) -> None:
    first, second = f"sqlite://{tmp_path}/one.db", f"sqlite://{tmp_path}/two.db"
    old = lancekeep.connect(shelf, mode="v2", commit_store=first)
    old.create_namespace("a")
    mover = lancekeep.connect(shelf, mode="v2", commit_store=first)
    assert mover.upkeep.change_commit_store(second) > 0
    mover.create_namespace("b")
    with pytest.raises(lancekeep.CommitStoreMismatch):
        old.create_namespace("c")
    assert lancekeep.connect(shelf, mode="v2", commit_store=second).list_namespaces() == ["a", "b"]


# -- indexes -------------------------------------------------------------------------------------------------------


def test_specified_indexes_are_built_and_updated(root: Path) -> None:
    catalog = lancekeep.connect(str(root), storage_options={"fsync": "false"})
    catalog.upkeep.optimize()  # nothing is there yet, and nothing is made
    assert not root.exists()
    catalog.create_namespace("a")
    for _ in range(2):
        for number in range(5):
            catalog.declare_table(f"a.t{len(catalog.list_tables('a')) + number}")
        catalog.upkeep.optimize()
        dataset = lance.dataset(str(root / "__manifest"))
        indexes = {index["name"]: index for index in dataset.list_indices()}
        assert {name: (index["type"], index["fields"]) for name, index in indexes.items()} == {
            "object_id_btree": ("BTree", ["object_id"]),
            "object_type_bitmap": ("Bitmap", ["object_type"]),
            "base_objects_label_list": ("LabelList", ["base_objects"]),
        }
        fragments = {fragment.fragment_id for fragment in dataset.get_fragments()}
        assert all(set(index["fragment_ids"]) == fragments for index in indexes.values())


def test_with_inline_optimization_that_happens_by_itself(root: Path) -> None:
    namespace = lancekeep.DirectoryNamespace(
        root=str(root), inline_optimization_enabled="true", dir_listing_enabled="false", **{"storage.fsync": "false"}
    )
    for number in range(256):
        namespace.catalog.create_namespace(f"n{number}")
    namespace.catalog.close()
    assert len(lance.dataset(str(root / "__manifest")).list_indices()) == 3
    with pytest.raises(lancekeep.InvalidInput, match="there are no indexes"):
        lancekeep.connect(str(root), mode="v1", inline_optimization=True)


def test_requests_of_whole_operations_on_s3_are_exact(moto_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Describe 1, list 1, declare 3: the marker, the data file, the manifest."""
    doors: list[Faulty] = []

    def open_counted(root: str, options: dict[str, str], **how: Any) -> tuple[Any, str]:
        objects, key = open_object_store(root, options, **how)
        doors.append(Faulty(objects))
        return doors[-1], key

    monkeypatch.setattr(composition, "open_object_store", open_counted)
    storage = {f"storage.{name}": value for name, value in s3_options(moto_endpoint).items()}
    namespace = lancekeep.DirectoryNamespace(
        root=f"s3://{bucket(moto_endpoint)}/lake", dir_listing_enabled="false", **storage
    )
    namespace.create_namespace(api.CreateNamespaceRequest(id=["n"]))
    for name in ("a", "b", "c"):
        namespace.declare_table(api.DeclareTableRequest(id=["n", name]))
    [requests] = doors

    def counted(act: Callable[[], object]) -> list[str]:
        requests.calls.clear()
        with suppress(api_errors.LanceNamespaceError):
            act()
        return [call for call in requests.calls if call != "passes_link"]  # costs no request on S3

    assert counted(lambda: namespace.describe_table(api.DescribeTableRequest(id=["n", "a"]))) == ["head"]
    missing = api.DescribeTableRequest(id=["n", "missing"])
    assert counted(lambda: namespace.describe_table(missing)) == ["head"]
    assert counted(lambda: namespace.table_exists(api.TableExistsRequest(id=["n", "b"]))) == ["head"]
    assert counted(lambda: namespace.list_tables(api.ListTablesRequest(id=["n"], limit=2))) == ["head"]
    assert counted(lambda: namespace.list_namespaces(api.ListNamespacesRequest(id=[]))) == ["head"]
    declare = api.DeclareTableRequest(id=["n", "new"])
    assert counted(lambda: namespace.declare_table(declare)) == ["put_if_absent", "put", "put_if_absent"]
    assert counted(lambda: namespace.declare_table(declare)) == ["head"]  # refused: it exists
    rename = api.RenameTableRequest(id=["n", "new"], new_table_name="newer")
    assert counted(lambda: namespace.rename_table(rename))[-3:] == ["put", "put", "put_if_absent"]


def test_standard_fields_equal_the_fields_that_the_engine_writes() -> None:
    assert standard_fields() == example_of(SCHEMA, STORAGE_VERSION).manifest.fields
