"""A catalog refuses what its manifest store cannot hold, before anything is written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from memory_catalogs import DATA, World

from lancekeep import Catalog
from lancekeep.application.catalog import directory_of
from lancekeep.application.entries.tables import Declaration
from lancekeep.application.upkeep.fsck import Kind
from lancekeep.domain.catalog import ManifestStoreGuarantees
from lancekeep.domain.errors import TableAlreadyExists, Unsupported
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.partitioning import PartitionBy
from lancekeep.domain.table import RESERVED_MARKER
from lancekeep.domain.version_row import VersionRow
from lancekeep.format.begun_clone import BegunClone

DATABASES = ManifestStoreGuarantees(levels=1, home="a server of databases", remedy="choose another home")


def partition(catalog: Catalog) -> object:
    import pyarrow as pa

    return catalog.partitions.create(pa.schema([("a", pa.int64())]), [PartitionBy.identity("a")])


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda catalog: catalog.declare_table("t"), r"names each table by 2 name\(s\); it cannot store t"),
        (lambda catalog: catalog.create_namespace("a.b"), r"has 1 level\(s\) of namespaces, and cannot store a.b"),
        (lambda catalog: catalog.rename_table("a.t", "t"), r"names each table by 2 name\(s\); it cannot store t"),
        (partition, "cannot be partitioned"),
    ],
)
def test_objects_at_other_levels_are_refused(act: Callable[[Catalog], object], message: str) -> None:
    world = World(DATABASES)
    world.catalog.create_namespace("a", {"owner": "me"})
    world.catalog.declare_table("a.t", {"owner": "me"})
    before, version = world.stored(), world.manifest.view().version
    with pytest.raises(Unsupported, match=f"^a server of databases {message}; choose another home$"):
        act(world.catalog)
    assert (world.stored(), world.manifest.view().version) == (before, version)
    world.catalog.rename_table("a.t", "a.u")
    assert world.tables() == ["a.u"]


@pytest.mark.parametrize(
    "act",
    [
        lambda catalog: catalog.declare_table("u", {"owner": "me"}),
        lambda catalog: catalog.alter_table("t", {"owner": "me"}),
        lambda catalog: catalog.alter_namespace("", {"owner": "me"}),
        partition,
    ],
)
def test_store_without_properties_refuses_them(act: Callable[[Catalog], object]) -> None:
    world = World(ManifestStoreGuarantees(properties=False))
    world.catalog.declare_table("t")
    before = world.stored()
    with pytest.raises(Unsupported, match="a catalog cannot"):
        act(world.catalog)
    assert world.stored() == before
    assert dict(world.manifest.view().properties) == {}


def test_store_without_atomic_changes_refuses_several_tables() -> None:
    world = World(ManifestStoreGuarantees(atomic_changes=False))
    tables = directory_of(world.catalog).tables
    world.catalog.declare_table("t")
    before = world.stored()
    with pytest.raises(Unsupported, match="changes one table at a time"):
        tables.declare_and_deregister([Declaration(ObjectId.of(name)) for name in ("u", "v")], [])
    assert world.stored() == before
    assert world.tables() == ["t"]


UNMARKED = ManifestStoreGuarantees(marks_declared=False)


def test_entry_alone_declares_a_table_in_a_new_directory() -> None:
    world = World(UNMARKED, managed=True)
    tables = directory_of(world.catalog).tables
    declared = world.catalog.declare_table("t")
    assert (world.stored(), world.fsck().findings) == ([], ())
    with pytest.raises(TableAlreadyExists):
        world.catalog.declare_table("t")
    tables.declare_and_deregister([Declaration(ObjectId.of(name)) for name in ("u", "v")], [ObjectId.of("t")])
    world.catalog.rename_table("u", "w")
    world.catalog.drop_table("v")
    assert (world.stored(), world.tables(), world.fsck().findings) == ([], ["w"], ())
    assert world.catalog.declare_table("t").location != declared.location


def test_directory_that_the_caller_chooses_or_a_deep_clone_begins_is_marked() -> None:
    world = World(UNMARKED, managed=True)
    world.catalog.declare_table("t", location="here/t")
    world.catalog.declare_table("u", location="ffffffff_u")
    assert world.stored() == [f"ffffffff_u/{RESERVED_MARKER}", f"here/t/{RESERVED_MARKER}"]
    world.files("there", DATA)
    with pytest.raises(TableAlreadyExists, match="files lie in 'there' already"):
        world.catalog.declare_table("v", location="there")
    world.catalog.drop_table("t")
    world.catalog.drop_table("u")
    begun = BegunClone("a", 1, "6f1c1c1e-0000-4000-8000-000000000001", 1)
    cloned = directory_of(world.catalog).tables.declare_clone(ObjectId.of("c"), begun)
    assert directory_of(world.catalog).places.begun_clone(cloned) == begun
    assert Kind.UNFINISHED_CLONE in {finding.kind for finding in world.fsck().findings}


def test_empty_directory_is_a_finding_if_the_table_had_a_version_or_a_marker() -> None:
    for guarantees, managed, versions, dangling in (
        (UNMARKED, True, 0, []),
        (UNMARKED, True, 1, [Kind.DANGLING]),
        (UNMARKED, False, 0, [Kind.DANGLING]),
        (ManifestStoreGuarantees(), True, 0, [Kind.DANGLING]),
    ):
        world = World(guarantees, managed=managed)
        declared = world.catalog.declare_table("t")
        for info in list(world.objects.list("lake/")):
            world.objects.delete(info.key)
        root = directory_of(world.catalog).places.dataset_root(declared)
        world.rows.record([VersionRow(root.base_uri, 1, root.versions_key + "1.manifest", 9)] * versions)
        assert [finding.kind for finding in world.fsck().findings] == dangling


def test_stopped_first_write_does_not_make_the_directory_foreign() -> None:
    world = World(UNMARKED, managed=True)
    declared = world.catalog.declare_table("t")
    places = directory_of(world.catalog).places
    assert not places.is_foreign(declared)
    world.files(declared.location, "notes.txt")
    assert places.is_foreign(declared)
    world.files(declared.location, DATA)
    assert not places.is_foreign(declared)
    world.catalog.drop_table("t")
    assert world.stored() == [f"{declared.location}/notes.txt"]
