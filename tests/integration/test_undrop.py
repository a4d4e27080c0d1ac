"""Dropped tables come back as they were, and nothing else sees them until then."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import lance
import lance_namespace as api
import pyarrow as pa
import pytest
from lance.namespace import DirectoryNamespace

import lancekeep
from lancekeep.application.catalog import directory_of
from lancekeep.application.entries.dropped import DroppedTables
from lancekeep.application.upkeep.fsck import Kind
from lancekeep.domain.catalog import CatalogView, Put
from lancekeep.domain.dropped import DropRecord, dropped_tables
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import ManifestEntry

MODES = ("v2", "compatible")
STORES = ("sqlite", "conditional-put", "none")


def rows(*values: int) -> pa.Table:
    return pa.table({"a": pa.array(values, pa.int64())})


@attrs.frozen
class Lake:
    directory: Path
    mode: str = "compatible"
    store: str = "sqlite"

    @property
    def root(self) -> str:
        return str(self.directory / "lake")

    def connect(self, mode: str | None = None) -> lancekeep.Catalog:
        return lancekeep.connect(self.root, mode=mode or self.mode, commit_store=self.url)

    @property
    def url(self) -> str | None:
        """The URL of the commit store."""
        urls = {"sqlite": f"sqlite://{self.directory}/commits.db", "conditional-put": "conditional-put://"}
        return urls.get(self.store)


@pytest.fixture(params=[(mode, store) for mode in MODES for store in STORES], ids="-".join)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(tmp_path, *request.param)


@pytest.fixture
def local(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


def uri_of(catalog: lancekeep.Catalog, table: lancekeep.Table) -> str:
    return directory_of(catalog).places.uri(table)


def _with(changes: list[Put], view: CatalogView) -> tuple[list[Put], None]:
    return changes, None


def _same(value: Any) -> Any:
    return value


def fill(catalog: lancekeep.Catalog, name: str) -> None:
    catalog.write(name, rows(1, 2), properties={"owner": "me"})
    catalog.write(name, rows(3), "append")
    catalog.tags.create(name, "first", 1)
    catalog.branches.create(ObjectId.of(name), "b", version=1)
    catalog.commit_change(name, lambda dataset: (dataset.create_scalar_index("a", "BTREE"), dataset)[1])


def content(uri: str) -> Any:
    """Return what plain pylance reads of a table: each version, tag, branch and index."""
    dataset = lance.dataset(uri)
    return (
        [
            (version["version"], dataset.checkout_version(version["version"]).to_table().to_pydict())
            for version in dataset.versions()
        ],
        dataset.checkout_version("first").to_table().to_pydict(),
        dataset.checkout_version(("b", None)).to_table().to_pydict(),
        [(index.name, index.field_names) for index in dataset.describe_indices()],
        dataset.to_table(filter="a = 3").to_pydict(),
    )


def native_lists(root: str) -> list[tuple[str, ...]]:
    """Return the tables that native readers list, by the manifest table and by the directory."""
    found: list[tuple[str, ...]] = []
    for properties in ({}, {"dir_listing_enabled": "false"}, {"manifest_enabled": "false"}):
        namespace = DirectoryNamespace(root=root, **properties)
        found += [("root", name) for name in namespace.list_tables(api.ListTablesRequest(id=[])).tables]
        if "manifest_enabled" not in properties:
            found += [("ml", name) for name in namespace.list_tables(api.ListTablesRequest(id=["ml"])).tables]
            assert namespace.list_namespaces(api.ListNamespacesRequest(id=[])).namespaces == ["ml"]
    return found


@pytest.mark.parametrize("name", ["t", "ml.t"])
def test_undrop_brings_back_identical_rows_versions_tags_branches_and_indexes(lake: Lake, name: str) -> None:
    catalog, other = lake.connect(), lake.connect()
    catalog.create_namespace("ml")
    fill(catalog, name)
    catalog.clone(name, "clone")
    uri = uri_of(catalog, catalog.find_table(name))
    before = content(uri)
    catalog.drop_table(name, keep=timedelta(days=1))

    assert other.list_tables() == ["clone"]
    assert other.list_tables("ml") == []
    assert set(native_lists(lake.root)) == {("root", "clone")} or lake.mode == "v2"
    with pytest.raises(lancekeep.TableNotFound):
        other.open(name)
    [dropped] = other.list_dropped()
    assert (dropped.id, dropped.until - dropped.at) == (ObjectId.of(name), timedelta(days=1))
    assert content(uri) == before
    assert lance.dataset(uri_of(other, other.find_table("clone"))).to_table()["a"].to_pylist() == [1, 2, 3]
    assert other.upkeep.fsck(deep=True, repair=True, grace=0, remove_tables=True).findings == ()
    other.upkeep.cleanup(timedelta(0), grace=timedelta(0))
    assert content(uri) == before

    other.write(name, rows(9))
    assert other.find_table(name).location != dropped.location
    back = other.undrop(name, "back")
    assert uri_of(catalog, back) == uri
    assert back.properties == {"owner": "me"}
    assert content(uri) == before
    assert other.clones_of("back") == ["clone"]
    assert other.list_dropped() == []
    other.write("back", rows(4), "append")
    assert catalog.open("back").count_rows() == 4
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()


def test_native_changes_keep_the_record(lake: Lake) -> None:
    """A native writer writes all rows of the manifest table again."""
    catalog = lake.connect()
    catalog.create_namespace("ml")
    catalog.write("ml.t", rows(1))
    catalog.drop_table("ml.t", keep=100)
    native = DirectoryNamespace(root=lake.root)
    native.create_namespace(api.CreateNamespaceRequest(id=["other"]))
    native.declare_table(api.DeclareTableRequest(id=["ml", "t"]))
    native.drop_table(api.DropTableRequest(id=["ml", "t"]))
    table = catalog.undrop("ml.t")
    assert lance.dataset(uri_of(catalog, table)).to_table()["a"].to_pylist() == [1]


def test_default_of_the_catalog_and_of_a_table(lake: Lake) -> None:
    catalog = lake.connect()
    assert catalog.initialize()
    assert not lake.connect().initialize()
    assert catalog.describe_namespace("").properties["lancekeep.undrop"] == "7d"
    catalog.create_namespace("n")
    for name in ("n.kept", "n.gone", "n.once"):
        catalog.write(name, rows(1))
    catalog.declare_table("n.declared")
    catalog.alter_table("n.gone", {"lancekeep.undrop": "0"})
    catalog.drop_table("n.once", keep=0)
    catalog.drop_namespace("n", cascade=True)
    assert [str(each.id) for each in catalog.list_dropped("n")] == ["n.kept"]
    with pytest.raises(lancekeep.NamespaceNotFound):
        catalog.undrop("n.kept")
    catalog.create_namespace("n")
    assert catalog.open(catalog.undrop("n.kept").id).count_rows() == 1
    for value in ("7", "d", "-1d", "7 d", "99999999999d"):
        with pytest.raises(lancekeep.InvalidInput, match=r"lancekeep\.undrop"):
            catalog.alter_namespace("", {"lancekeep.undrop": value})


@pytest.mark.parametrize("keep", [-1, timedelta(-1), True, "7d", float("nan"), float("inf"), timedelta.max])
def test_time_that_cannot_be_kept_is_refused(local: Lake, keep: Any) -> None:
    catalog = local.connect()
    catalog.write("t", rows(1))
    with pytest.raises(lancekeep.InvalidInput, match="keep"):
        catalog.drop_table("t", keep=keep)
    assert catalog.list_tables() == ["t"]


def test_each_dropped_table_of_one_name_comes_back(local: Lake) -> None:
    catalog = local.connect()
    for value in (1, 2, 3):
        catalog.write("t", rows(value))
        catalog.drop_table("t", keep=100)
    first, second, third = catalog.list_dropped("t")
    values = {}
    for which, name in ((second.at, "b"), (first.drop, "a"), (None, "c")):
        table = catalog.undrop("t", name, drop=which)
        values[name] = lance.dataset(uri_of(catalog, table)).to_table()["a"].to_pylist()
    assert values == {"a": [1], "b": [2], "c": [3]}
    with pytest.raises(lancekeep.TableNotFound, match="list_dropped"):
        catalog.undrop("t", drop=third.drop)


def test_table_is_purged_exactly_from_the_end_of_its_time(local: Lake) -> None:
    record = DropRecord(ObjectId.of("t"), "1-a", "t.lance", {}, 0, 10, "me")
    assert [record.is_over(now) for now in (9, 10, 11)] == [False, True, True]
    catalog = local.connect()
    catalog.write("t", rows(1))
    catalog.drop_table("t", keep=100)
    [dropped] = catalog.list_dropped()
    for now, left in ((dropped.until - timedelta(microseconds=1), 1), (dropped.until, 0)):
        clock = DroppedTables(
            directory_of(catalog).ledger,
            directory_of(catalog).places,
            directory_of(catalog).removal,
            partial(_same, now),
        )
        list(clock.purge_expired(dry_run=True))
        list(clock.purge_expired(dry_run=False))
        assert len(catalog.list_dropped()) == left
    assert not Path(local.root, dropped.location).exists()
    with pytest.raises(lancekeep.TableNotFound):
        catalog.undrop("t")
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()


def test_cleanup_purges_clones_before_their_sources(local: Lake) -> None:
    catalog = local.connect()
    catalog.write("t", rows(1))
    catalog.clone("t", "clone")
    catalog.clone("clone", "kept")
    catalog.drop_table("t", keep=1e-6)
    catalog.drop_table("clone", keep=1e-6)
    report = catalog.upkeep.cleanup(timedelta(0))
    assert [str(each.id) for each in report.purged] == ["clone"]
    assert "t (dropped)" in str(report)
    assert lance.dataset(uri_of(catalog, catalog.find_table("kept"))).to_table()["a"].to_pylist() == [1]
    with pytest.raises(lancekeep.Refused, match="needed by kept"):
        catalog.purge("t")
    catalog.drop_table("kept", keep=1e-6)
    assert len(catalog.upkeep.cleanup(timedelta(0), dry_run=True).purged) == 2
    assert {str(each.id) for each in catalog.upkeep.cleanup(timedelta(0)).purged} == {"kept", "t"}
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()


def test_dropped_clone_protects_its_source(local: Lake) -> None:
    catalog = local.connect()
    catalog.write("t", rows(1))
    catalog.clone("t", "clone")
    catalog.drop_table("clone", keep=100)
    with pytest.raises(lancekeep.Refused, match=r"clone \(dropped\)"):
        catalog.drop_table("t", keep=0)
    assert lance.dataset(uri_of(catalog, catalog.undrop("clone"))).count_rows() == 1


def test_commits_of_handles_from_before_the_drop(lake: Lake) -> None:
    """They are refused while the table is dropped and under another name; under its own name they are in the table."""
    catalog, other = lake.connect(), lake.connect()
    catalog.write("t", rows(1))
    plan = catalog.begin_write("t", rows(2).schema, "append")
    fragments = directory_of(catalog).engine.write_fragments(plan, rows(2))
    other.drop_table("t", keep=100)
    with pytest.raises(lancekeep.LancekeepError):
        catalog.commit_fragments(plan, fragments)
    other.undrop("t", "other")
    with pytest.raises(lancekeep.LancekeepError):
        catalog.commit_fragments(plan, fragments)
    if lake.store != "none":  # native commits of storage-managed tables ask no catalog
        other.write("t", rows(5))
        with pytest.raises(lancekeep.LancekeepError):
            catalog.commit_fragments(plan, fragments)
        assert other.open("t").to_table()["a"].to_pylist() == [5]
        other.drop_table("t")
    assert other.open("other").to_table()["a"].to_pylist() == [1]
    other.drop_table("other", keep=100)
    other.undrop("other", "t")
    catalog.commit_fragments(plan, fragments)
    assert sorted(other.open("t").to_table()["a"].to_pylist()) == [1, 2]


def test_managed_native_handle_from_before_the_drop(local: Lake) -> None:
    catalog = local.connect()
    catalog.write("t", rows(1))
    namespace = lancekeep.DirectoryNamespace(root=local.root, commit_store=str(local.url))
    handle = lance.dataset(namespace_client=namespace, table_id=["t"])
    catalog.drop_table("t", keep=100)
    with pytest.raises(OSError, match=r"(?i)commit"):
        lance.write_dataset(rows(2), handle, mode="append")
    catalog.undrop("t", "u")
    with pytest.raises(OSError, match=r"(?i)commit"):
        lance.write_dataset(rows(2), handle, mode="append")
    assert catalog.open("u").count_rows() == 1
    catalog.drop_table("u", keep=100)
    catalog.undrop("u", "t")
    lance.write_dataset(rows(2), handle, mode="append")
    assert catalog.open("t").count_rows() == 2


def test_directory_of_a_dropped_table_is_taken(lake: Lake) -> None:
    catalog = lake.connect()
    catalog.write("t", rows(1))
    catalog.write("u", rows(2))
    location = catalog.drop_table("t", keep=100).location
    for act in (
        lambda: catalog.register_table("again", location),
        lambda: catalog.declare_table("again", location=location),
        lambda: catalog.declare_table("again", location=f"{location}/below"),
        lambda: catalog.upkeep.relocate("u", location),
    ):
        with pytest.raises((lancekeep.InvalidInput, lancekeep.AlreadyExists), match=r"dropped table t|files lie"):
            act()
    with pytest.raises(lancekeep.InvalidInput, match="reserved"):
        catalog.create_namespace([".lancekeep-dropped"])
    assert lance.dataset(uri_of(catalog, catalog.undrop("t"))).count_rows() == 1


def test_dropped_tables_move_to_another_commit_store(tmp_path: Path) -> None:
    catalog = Lake(tmp_path, "compatible", "conditional-put").connect()
    fill(catalog, "t")
    before = content(uri_of(catalog, catalog.find_table("t")))
    catalog.drop_table("t", keep=100)
    catalog.upkeep.change_commit_store(f"sqlite://{tmp_path}/commits.db")
    catalog = Lake(tmp_path).connect()
    assert content(uri_of(catalog, catalog.undrop("t"))) == before
    catalog.write("t", rows(4), "append")
    assert catalog.open("t").count_rows() == 4


def test_store_of_a_catalog_with_only_dropped_tables_is_kept(tmp_path: Path) -> None:
    catalog = Lake(tmp_path, "v2", "none").connect()
    catalog.write("t", rows(1))
    catalog.drop_table("t", keep=100)
    with pytest.raises(lancekeep.CommitStoreMismatch):
        Lake(tmp_path, "v2", "sqlite").connect().list_tables()


def test_v1_directory_refuses_to_keep(tmp_path: Path) -> None:
    catalog = Lake(tmp_path, "v1", "none").connect()
    catalog.write("t", rows(1))
    with pytest.raises(lancekeep.Unsupported, match="V1 directory"):
        catalog.drop_table("t", keep=100)
    with pytest.raises(lancekeep.Unsupported, match="V1 directory"):
        catalog.protect("t")
    assert catalog.list_dropped() == []
    assert catalog.open("t").count_rows() == 1
    assert catalog.drop_table("t", keep=0).location == "t.lance"


def test_v1_catalog_does_not_show_a_dropped_table(tmp_path: Path) -> None:
    catalog = Lake(tmp_path, "compatible", "none").connect()
    catalog.initialize()
    catalog.write("t", rows(1))
    catalog.write("u", rows(1))
    catalog.drop_table("t")
    v1 = Lake(tmp_path, "v1", "none").connect()
    assert v1.list_tables() == ["u"]
    with pytest.raises(lancekeep.Unsupported, match="keep=0"):
        v1.drop_table("u")  # the default of the catalog holds here, too
    catalog.undrop("t")
    assert v1.list_tables() == ["t", "u"]


def test_purge_refuses_a_directory_that_v1_readers_see(tmp_path: Path) -> None:
    catalog = Lake(tmp_path, "compatible", "none").connect()
    catalog.write("t", rows(1))
    catalog.drop_table("t", keep=100)
    v1 = Lake(tmp_path, "v1", "none").connect()
    v1.register_table("t", "t.lance")
    with pytest.raises(lancekeep.Refused, match="undrop"):
        catalog.purge("t")
    assert v1.open("t").count_rows() == 1


SPOILS: dict[str, dict[str, Any]] = {
    "metadata is no JSON": {"metadata": "{"},
    "no record": {"metadata": None},
    "record is no object": {"metadata": '{"lancekeep.dropped": "[]"}'},
    "times are texts": {"metadata": '{"lancekeep.dropped": "{\\"at\\": \\"x\\", \\"until\\": 1, \\"by\\": 1}"}'},
    "location is outside": {"location": "../elsewhere"},
    "location is empty": {"location": None},
    "directory is gone": {"location": "nowhere"},
}


@pytest.mark.parametrize("what", SPOILS)
def test_broken_record_is_one_finding_and_hides_no_other_table(local: Lake, what: str) -> None:
    catalog = local.connect()
    for name in ("t", "u"):
        catalog.write(name, rows(1))
        catalog.drop_table(name, keep=100)
    key = dropped_tables(directory_of(catalog).ledger.view(), ObjectId.of("t"))[0].key
    entry = directory_of(catalog).ledger.view().find(key)
    assert entry is not None
    directory_of(catalog).ledger.apply(lambda view: ([Put(attrs.evolve(entry, **SPOILS[what]))], None))
    catalog = local.connect()
    assert "u" in [str(each.id) for each in catalog.list_dropped()]
    found = [finding for finding in catalog.upkeep.fsck(grace=0).findings if finding.kind is Kind.BROKEN_RECORD]
    assert [finding.object for finding in found] == [key]
    catalog.upkeep.cleanup(timedelta(0))
    assert Path(local.root, "t.lance").exists()
    assert catalog.upkeep.fsck(grace=0, repair=True).findings
    assert [str(each.id) for each in catalog.list_dropped()] == ["u"]
    assert catalog.open(catalog.undrop("u").id).count_rows() == 1
    assert lance.dataset(uri_of(catalog, catalog.register_table("t", "t.lance"))).count_rows() == 1


def test_row_without_a_name_is_no_record(local: Lake) -> None:
    catalog = local.connect()
    directory_of(catalog).ledger.apply(partial(_with, [Put(ManifestEntry("", "namespace"))]))
    assert [finding.kind for finding in catalog.upkeep.fsck(grace=0).findings] == [Kind.MALFORMED]
    assert catalog.list_dropped() == []


def test_concurrent_undrops_bring_one_table_back(local: Lake) -> None:
    catalog, other = local.connect(), local.connect()
    catalog.write("t", rows(1))
    catalog.drop_table("t", keep=100)
    assert other.list_dropped()  # both have read the record
    catalog.undrop("t", "a")
    with pytest.raises(lancekeep.TableNotFound):
        other.undrop("t", "b")
    assert catalog.list_tables() == ["a"]


def test_undrop_loses_to_a_purge_that_has_begun(local: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, other = local.connect(), local.connect()
    catalog.write("t", rows(1))
    catalog.drop_table("t", keep=100)
    removal = type(directory_of(catalog).removal)
    remove = removal.remove

    def undrop_first(self: Any, *args: Any, **kwargs: Any) -> None:
        with pytest.raises(lancekeep.Refused, match="has begun"):
            other.undrop("t")
        raise KeyboardInterrupt  # the purge is killed

    monkeypatch.setattr(removal, "remove", undrop_first)
    with pytest.raises(KeyboardInterrupt):
        catalog.purge("t")
    monkeypatch.setattr(removal, "remove", remove)
    [finding] = other.upkeep.fsck(grace=0).findings
    assert finding.kind is Kind.UNFINISHED_PURGE
    assert other.list_dropped()[0].is_purging
    assert [str(each.id) for each in other.upkeep.cleanup(timedelta(0)).purged] == ["t"]
    assert other.upkeep.fsck(grace=0).findings == ()


def test_clone_registered_during_a_purge_keeps_the_files(local: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, other = local.connect(), local.connect()
    catalog.write("t", rows(1))
    location = catalog.find_table("t").location
    lance.dataset(f"{local.root}/{location}").shallow_clone(f"{local.root}/c", 1)
    catalog.drop_table("t", keep=100)
    mark = DroppedTables._mark

    def register_first(self: DroppedTables, *args: Any, **kwargs: Any) -> None:
        monkeypatch.undo()
        other.register_table("c", "c")
        mark(self, *args, **kwargs)

    monkeypatch.setattr(DroppedTables, "_mark", register_first)
    with pytest.raises(lancekeep.Refused, match="needed by c"):
        catalog.purge("t")
    assert lance.dataset(f"{local.root}/c").count_rows() == 1
    assert not catalog.list_dropped()[0].is_purging
    assert catalog.undrop("t").location == location


def test_drop_by_requests_and_their_context(local: Lake) -> None:
    catalog = local.connect()
    namespace: Any = lancekeep.DirectoryNamespace(root=local.root, commit_store=str(local.url))
    for name in ("a", "b", "c"):
        catalog.write(name, rows(1))
    namespace.drop_table({"id": ["a"], "context": {"lancekeep.keep": "7d"}})
    catalog.alter_namespace("", {"lancekeep.undrop": "1d"})
    namespace.drop_table({"id": ["b"]})
    namespace.drop_table({"id": ["c"], "context": {"lancekeep.keep": "0"}})
    spans = {str(each.id): each.until - each.at for each in catalog.list_dropped()}
    assert spans == {"a": timedelta(days=7), "b": timedelta(days=1)}
    assert all(abs(each.at - datetime.now(UTC)) < timedelta(hours=1) for each in catalog.list_dropped())


PROTECTED_ACTS: dict[str, Callable[[lancekeep.Catalog], object]] = {
    "drop": lambda catalog: catalog.drop_table("n.t", keep=100),
    "drop at once": lambda catalog: catalog.drop_table("n.t", keep=0, force=True),
    "deregister": lambda catalog: catalog.deregister_table("n.t"),
    "rename": lambda catalog: catalog.rename_table("n.t", "x"),
    "relocate": lambda catalog: catalog.upkeep.relocate("n.t", "place"),
    "overwrite": lambda catalog: catalog.write("n.t", rows(9), "overwrite"),
    "overwrite in parts": lambda catalog: catalog.begin_write("n.t", rows(9).schema, "overwrite"),
    "restore": lambda catalog: catalog.versions.restore("n.t", 1),
    "replace": lambda catalog: catalog.register_table("n.t", catalog.find_table("u").location, overwrite=True),
    "drop the namespace": lambda catalog: catalog.drop_namespace("n", cascade=True, force=True),
    "purge": lambda catalog: catalog.purge("n.old"),
}


@pytest.mark.parametrize("protected", ["n.t", "n", ""])
def test_protection_refuses_each_loss_until_it_ends(lake: Lake, protected: str) -> None:
    catalog, other = lake.connect(), lake.connect()
    catalog.create_namespace("n")
    catalog.write("n.t", rows(1))
    catalog.write("n.t", rows(2), "append")
    catalog.write("n.old", rows(2))
    catalog.write("u", rows(2))
    catalog.drop_table("n.old", keep=100)
    catalog.protect(protected)
    catalog.protect(protected)
    for name, act in PROTECTED_ACTS.items():
        if name == "purge" and protected == "n.t":
            continue
        with pytest.raises(lancekeep.Refused, match="protect"):
            act(other)
        assert other.open("n.t").to_table()["a"].to_pylist() == [1, 2], name
    silent: tuple[Callable[[], object], ...] = (
        lambda: other.alter_table("n.t", remove=["lancekeep.protected"]),
        lambda: other.alter_table("n.t", {"lancekeep.protected": "false"}),
        lambda: other.alter_namespace("n", remove=["lancekeep.protected"]),
    )
    for remove in silent:
        with pytest.raises(lancekeep.InvalidInput, match=r"lancekeep\.protected"):
            remove()
    other.alter_table("n.t", {"owner": "me"})
    other.write("n.t", rows(3), "append")
    other.write("n.new", rows(1))
    other.undrop("n.old")
    other.unprotect(protected)
    other.unprotect(protected)
    assert other.drop_table("n.t", keep=0).id == ObjectId.of("n.t")


def test_first_rows_of_a_table_in_a_protected_namespace(local: Lake) -> None:
    catalog = local.connect()
    catalog.protect("")
    catalog.declare_table("t")
    catalog.write("t", rows(1), "overwrite")
    catalog.write("u", rows(1), "overwrite")
    with pytest.raises(lancekeep.Refused, match="protect"):
        catalog.write("u", rows(2), "overwrite")
    assert catalog.open("u").to_table()["a"].to_pylist() == [1]


def test_native_overwrite_and_restore_of_a_protected_table_are_refused(local: Lake) -> None:
    catalog = local.connect()
    catalog.write("t", rows(1))
    catalog.write("t", rows(2), "append")
    catalog.protect("t")
    namespace = lancekeep.DirectoryNamespace(root=local.root, commit_store=str(local.url))
    handle = lance.dataset(namespace_client=namespace, table_id=["t"])
    for act in (
        lambda: lance.write_dataset(rows(9), handle, mode="overwrite"),
        lambda: handle.checkout_version(1).restore(),
    ):
        with pytest.raises(OSError, match=r"(?i)commit"):
            act()
    lance.write_dataset(rows(3), handle, mode="append")
    assert sorted(catalog.open("t").to_table()["a"].to_pylist()) == [1, 2, 3]


def test_cleanup_keeps_the_versions_below_the_tags_of_a_protected_table(local: Lake) -> None:
    catalog = local.connect()
    catalog.write("t", rows(1))
    for value in (2, 3, 4, 5):
        catalog.write("t", rows(value), "append")
    catalog.tags.create("t", "release", 3)
    catalog.protect("t")
    report = catalog.upkeep.cleanup(timedelta(0), grace=timedelta(0))
    assert "before the tag or branch at version 3" in str(report)
    uri = uri_of(catalog, catalog.find_table("t"))
    assert [version["version"] for version in lance.dataset(uri).versions()] == [1, 2, 3, 5]
    catalog.unprotect("t")
    catalog.upkeep.cleanup(timedelta(0), grace=timedelta(0))
    assert [version["version"] for version in lance.dataset(uri).versions()] == [3, 5]


def test_cost_of_a_drop_and_an_undrop_does_not_grow_with_the_catalog(local: Lake) -> None:
    sizes = []
    for more in (0, 3000):
        lake = attrs.evolve(local, directory=local.directory / str(more))
        lake.directory.mkdir()
        catalog = lake.connect("v2")
        entries = [ManifestEntry.table(ObjectId((f"t{at}",)), f"12345678_t{at}", {}) for at in range(more)]
        changes = [Put(entry) for entry in entries]
        directory_of(catalog).ledger.apply(partial(_with, changes))
        catalog.write("t", rows(1))
        data = Path(lake.root, "__manifest/data")
        known = {path: path.stat().st_size for path in data.iterdir()}
        catalog.drop_table("t", keep=100)
        catalog.undrop("t")
        sizes.append(sum(path.stat().st_size for path in data.iterdir() if path not in known))
    assert sizes[1] < sizes[0] + 500
