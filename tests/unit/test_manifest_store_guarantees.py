"""A catalog refuses what its manifest store cannot hold, before anything is written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from memory_catalogs import World

from lancekeep import Catalog
from lancekeep.application.catalog import directory_of
from lancekeep.application.entries.tables import Declaration
from lancekeep.domain.catalog import ManifestStoreGuarantees
from lancekeep.domain.errors import Unsupported
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.partitioning import PartitionBy

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
