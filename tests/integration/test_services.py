"""The services of a catalog, through a directory and through a server."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from rest_server import serving

import lancekeep
from lancekeep.application.catalog import services_of
from lancekeep.application.rows.table_structure import _OF_BRANCHES
from lancekeep.application.services import DEPRECATED

ROWS = pa.table({"id": [1, 2, 3]})


@pytest.fixture(params=["directory", "server"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[lancekeep.Catalog]:
    settings = {"root": str(tmp_path / "lake"), "commit_store": f"sqlite://{tmp_path}/commits.db"}
    if request.param == "directory":
        with lancekeep.connect(properties=settings) as opened:
            yield opened
        return
    with serving(lancekeep.DirectoryNamespace(**settings)) as front, lancekeep.connect(front.uri) as opened:
        yield opened


def stored(catalog: lancekeep.Catalog) -> Any:
    """Return the table as plain pylance reads it."""
    return lance.dataset(catalog.describe_table("ns.t").uri)


def test_a_write_creates_its_table_at_a_location(catalog: lancekeep.Catalog) -> None:
    catalog.create_namespace("ns")
    for mode in ("create", "overwrite"):
        plan = catalog.begin_write("ns.t", ROWS.schema, mode, location="places/here")
        catalog.abandon_write(plan)
    assert catalog.list_tables("ns") == []
    plan = catalog.begin_write("ns.t", ROWS.schema, "overwrite", location="places/here")
    catalog.commit_fragments(plan, lance.fragment.write_fragments(ROWS, plan.uri, mode="append"))
    assert stored(catalog).uri.endswith("/lake/places/here")
    for mode in ("append", "overwrite"):
        with pytest.raises(lancekeep.InvalidInput, match=r"the table ns\.t exists and keeps its directory"):
            catalog.begin_write("ns.t", ROWS.schema, mode, location="places/there")
    assert (stored(catalog).to_table(), stored(catalog).version) == (ROWS, 1)


@pytest.mark.parametrize("named", ["ns.t", ["ns", "t"], lancekeep.ObjectId.of("ns.t")], ids=["text", "list", "id"])
def test_services_accept_each_spelling_of_an_identifier(catalog: lancekeep.Catalog, named: lancekeep.ObjectId) -> None:
    catalog.create_namespace("ns")
    catalog.write(named, ROWS)
    changed, updated = catalog.data.update(named, {"id": "id + 10"})
    assert (changed.version, updated) == (2, 3)
    assert catalog.data.count(named, "id > 11", version=2) == 2
    catalog.tags.create(named, "v1", 1)
    catalog.tags.update(named, "v1", 2)
    assert {name: tag.version for name, tag in catalog.tags.list(named).items()} == {"v1": 2}
    catalog.branches.create(named, "dev", version=1)
    assert list(catalog.branches.list(named)) == ["dev"]
    assert catalog.structure.create_index(named, lancekeep.NewIndex("id", "BTREE")).version == 3
    assert [index.columns for index in catalog.structure.indexes(named)] == [["id"]]
    catalog.structure.add_columns(named, {"twice": "id * 2"})
    assert sorted(stored(catalog).to_table()["twice"].to_pylist()) == [22, 24, 26]
    view = lancekeep.ViewDefinition.parse('{"table": ["ns", "t"], "columns": ["id"]}', auto_refresh=False)
    catalog.views.create("ns.v", view, ROWS.schema)
    assert catalog.views.refresh("ns.v").how is lancekeep.Refresh.FULL
    assert catalog.views.definition("ns.v").query == view.query


def test_a_list_of_tags_reads_an_iterator_of_names_once(catalog: lancekeep.Catalog) -> None:
    catalog.create_namespace("ns")
    catalog.write("ns.t", ROWS)
    catalog.tags.create(iter(["ns", "t"]), "v1", 1)
    assert list(catalog.tags.list(iter(["ns", "t"]))) == ["v1"]


CALLS: dict[str, Callable[[lancekeep.Catalog, str], object]] = {
    "data": lambda catalog, name: catalog.data.count(name),
    "tags": lambda catalog, name: catalog.tags.get(name, "v1"),
    "structure": lambda catalog, name: catalog.branches.list(name),
    "views": lambda catalog, name: catalog.views.definition(name),
}


@pytest.mark.parametrize("service", CALLS)
def test_services_check_identifiers(catalog: lancekeep.Catalog, service: str) -> None:
    with pytest.raises(lancekeep.InvalidInput, match="empty name"):
        CALLS[service](catalog, "ns..t")
    with pytest.raises(lancekeep.TableNotFound):
        CALLS[service](catalog, "missing")


# -- both kinds --------------------------------------------------------------------------------------------------

CLASSES: dict[str, type] = {
    "branches": lancekeep.Branches,
    "changes": lancekeep.CatalogChanges,
    "data": lancekeep.TableData,
    "events": lancekeep.Events,
    "partitions": lancekeep.Partitions,
    "structure": lancekeep.TableStructure,
    "tags": lancekeep.Tags,
    "upkeep": lancekeep.Upkeep,
    "versions": lancekeep.TableVersions,
    "views": lancekeep.Views,
}
"""The services, and their classes for a directory."""
SETTINGS = {"root_uri", "storage_options"}
OF_A_DIRECTORY = {
    *("commits", "dataset_root", "ledger", "managed", "mem_wal", "places", "recorder", "removal", "requests"),
    *("sql_views", "view"),
}
"""Deprecated names of parts that a server does not have."""
SCHEMA = ROWS.schema
QUERY = lancekeep.Query()
NAME = "ns.t"
PLAN: Any = None  # a server plans no partitions


def test_every_public_name_is_found_without_a_fault(catalog: lancekeep.Catalog) -> None:
    assert repr(catalog)
    assert [name for name in dir(catalog) if not hasattr(catalog, name)] == []
    assert dict(inspect.getmembers(catalog)).keys() == set(dir(catalog))
    for service in CLASSES:
        assert inspect.getmembers(getattr(catalog, service))
    assert not hasattr(catalog, "no_such_name")


@pytest.mark.parametrize("mode", ["compatible", "v1", "v2"])
def test_every_public_name_is_found_in_each_mode(tmp_path: Path, mode: str) -> None:
    with lancekeep.connect(str(tmp_path / "lake"), mode=mode) as catalog:
        assert dict(inspect.getmembers(catalog)).keys() == set(dir(catalog))
        for service in CLASSES:
            assert inspect.getmembers(getattr(catalog, service))


def signatures(owner: object) -> dict[str, str]:
    """Return the parameters of the public methods of an object, with their defaults."""
    public = {name: each for name, each in inspect.getmembers(type(owner), callable) if not name.startswith("_")}
    return {name: str([str(p) for p in inspect.signature(each).parameters.values()]) for name, each in public.items()}


def test_services_of_a_server_have_the_signatures_of_those_of_a_directory(tmp_path: Path) -> None:
    settings = {"root": str(tmp_path / "lake")}
    with (
        lancekeep.connect(properties=settings) as local,
        serving(lancekeep.DirectoryNamespace(**settings)) as front,
        lancekeep.connect(front.uri) as served,
    ):
        assert {name for name in dir(local) if name[0] != "_"} == {name for name in dir(served) if name[0] != "_"}
        assert signatures(local) == signatures(served)
        for service in CLASSES:
            assert signatures(getattr(local, service)) == signatures(getattr(served, service)), service
        here, there = services_of(local), services_of(served)
        assert signatures(here.transaction_records) == signatures(there.transaction_records)
        protocol = signatures(there.tables).keys() - {"fields", "reached", "latest", "rename"}
        assert {name: signatures(here.tables)[name] for name in protocol} == {
            name: signatures(there.tables)[name] for name in protocol
        }


def deleted(dataset: Any) -> Any:
    dataset.delete("id = 1")
    return dataset


CATALOG_CALLS: dict[str, Callable[[lancekeep.Catalog], object]] = {
    "abandon_write": lambda catalog: catalog.abandon_write(catalog.begin_write(NAME, SCHEMA, "append")),
    "upkeep.adopt_identity": lambda catalog: catalog.upkeep.adopt_identity(),
    "alter_namespace": lambda catalog: catalog.alter_namespace("ns", {"a": "b"}),
    "alter_table": lambda catalog: catalog.alter_table(NAME, {"a": "b"}),
    "begin_write": lambda catalog: catalog.begin_write(NAME, SCHEMA, "append"),
    "upkeep.change_commit_store": lambda catalog: catalog.upkeep.change_commit_store("memory://"),
    "upkeep.cleanup": lambda catalog: catalog.upkeep.cleanup(3600.0, dry_run=True),
    "clone": lambda catalog: catalog.clone(NAME, "ns.copy"),
    "clones_of": lambda catalog: catalog.clones_of(NAME),
    "commit_change": lambda catalog: catalog.commit_change(
        NAME, lambda dataset: (dataset.delete("id = 1"), dataset)[1]
    ),
    "commit_rows": lambda catalog: catalog.commit_rows(NAME),
    "upkeep.compact": lambda catalog: catalog.upkeep.compact(NAME),
    "create_namespace": lambda catalog: catalog.create_namespace("other"),
    "declare_table": lambda catalog: catalog.declare_table("ns.declared"),
    "deregister_table": lambda catalog: catalog.deregister_table(NAME),
    "describe_namespace": lambda catalog: catalog.describe_namespace("ns"),
    "describe_table": lambda catalog: catalog.describe_table(NAME),
    "diff": lambda catalog: catalog.diff(NAME, 1),
    "drop_namespace": lambda catalog: catalog.drop_namespace("ns"),
    "drop_table": lambda catalog: catalog.drop_table(NAME),
    "find_table": lambda catalog: catalog.find_table(NAME),
    "upkeep.export_manifest": lambda catalog: catalog.upkeep.export_manifest(),
    "upkeep.fsck": lambda catalog: catalog.upkeep.fsck(),
    "upkeep.identity": lambda catalog: catalog.upkeep.identity(),
    "initialize": lambda catalog: catalog.initialize(),
    "inspect": lambda catalog: catalog.inspect(NAME),
    "list_all_tables": lambda catalog: list(catalog.list_all_tables()),
    "list_dropped": lambda catalog: catalog.list_dropped(),
    "list_namespaces": lambda catalog: catalog.list_namespaces(),
    "list_tables": lambda catalog: catalog.list_tables("ns"),
    "upkeep.materialize": lambda catalog: catalog.upkeep.materialize(NAME),
    "upkeep.migrate": lambda catalog: catalog.upkeep.migrate(),
    "upkeep.migrate_manifest_names": lambda catalog: catalog.upkeep.migrate_manifest_names(NAME, dry_run=True),
    "upkeep.move_fragments": lambda catalog: catalog.upkeep.move_fragments(NAME, 1, "relative"),
    "namespace_exists": lambda catalog: catalog.namespace_exists("ns"),
    "open": lambda catalog: catalog.open(NAME),
    "upkeep.optimize": lambda catalog: catalog.upkeep.optimize(),
    "protect": lambda catalog: catalog.protect("other"),
    "purge": lambda catalog: catalog.purge("ns.dropped"),
    "register_table": lambda catalog: catalog.register_table("ns.other", "missing"),
    "upkeep.direct_commits": lambda catalog: catalog.upkeep.direct_commits(NAME),
    "upkeep.quotas": lambda catalog: catalog.upkeep.quotas(),
    "upkeep.relocate": lambda catalog: catalog.upkeep.relocate(NAME, "elsewhere", dry_run=True),
    "rename_table": lambda catalog: catalog.rename_table(NAME, "ns.renamed"),
    "resolve": lambda catalog: catalog.resolve("no token"),
    "scan": lambda catalog: catalog.scan(NAME),
    "snapshot": lambda catalog: catalog.snapshot(),
    "table_exists": lambda catalog: catalog.table_exists(NAME),
    "transaction": lambda catalog: catalog.transaction(),
    "undrop": lambda catalog: catalog.undrop("ns.dropped"),
    "unresolved_commits": lambda catalog: catalog.unresolved_commits(),
    "unprotect": lambda catalog: catalog.unprotect("other"),
    "write": lambda catalog: catalog.write(NAME, ROWS, "append"),
    "changes.latest": lambda catalog: catalog.changes.latest(),
    "changes.read": lambda catalog: catalog.changes.read(),
    "changes.watch": lambda catalog: catalog.changes.watch(),
    "events.latest": lambda catalog: catalog.events.latest(),
    "events.read": lambda catalog: catalog.events.read(),
    "events.record": lambda catalog: catalog.events.record(),
    "events.watch": lambda catalog: next(catalog.events.watch()),
    "versions.at": lambda catalog: catalog.versions.at(NAME, "2020-01-01T00:00:00Z"),
    "versions.describe": lambda catalog: catalog.versions.describe(NAME),
    "versions.history": lambda catalog: catalog.versions.history(NAME),
    "versions.manifest": lambda catalog: catalog.versions.manifest(NAME),
    "versions.restore": lambda catalog: catalog.versions.restore(NAME, 1),
    "partitions.begin_create": lambda catalog: catalog.partitions.begin_create(SCHEMA, []),
    "partitions.create": lambda catalog: catalog.partitions.create(SCHEMA, []),
    "partitions.drop": lambda catalog: catalog.partitions.drop(),
    "partitions.finish_create": lambda catalog: catalog.partitions.finish_create(PLAN, []),
    "partitions.open": lambda catalog: catalog.partitions.open(),
    "data.analyze": lambda catalog: catalog.data.analyze(NAME, QUERY),
    "data.count": lambda catalog: catalog.data.count(NAME),
    "data.delete": lambda catalog: catalog.data.delete(NAME, "id = 1"),
    "data.explain": lambda catalog: catalog.data.explain(NAME, QUERY),
    "data.insert": lambda catalog: catalog.data.insert(NAME, ROWS.to_reader()),
    "data.merge": lambda catalog: catalog.data.merge(NAME, ROWS.to_reader(), lancekeep.MergeRule(["id"], insert=True)),
    "data.query": lambda catalog: catalog.data.query(NAME, QUERY).read_all(),
    "data.stats": lambda catalog: catalog.data.stats(NAME),
    "data.update": lambda catalog: catalog.data.update(NAME, {"id": "id + 1"}),
    "structure.add_columns": lambda catalog: catalog.structure.add_columns(NAME, {"n": "id + 1"}),
    "structure.alter_columns": lambda catalog: catalog.structure.alter_columns(
        NAME, [lancekeep.ColumnChange("id", name="number")]
    ),
    "branches.list": lambda catalog: catalog.branches.list(NAME),
    "branches.create": lambda catalog: catalog.branches.create(NAME, "dev"),
    "structure.create_index": lambda catalog: catalog.structure.create_index(NAME, lancekeep.NewIndex("id", "BTREE")),
    "structure.declare_columns": lambda catalog: catalog.structure.declare_columns(NAME, {"n": "id + 1"}),
    "branches.delete": lambda catalog: catalog.branches.delete(NAME, "missing"),
    "structure.drop_columns": lambda catalog: catalog.structure.drop_columns(NAME, ["missing"]),
    "structure.drop_index": lambda catalog: catalog.structure.drop_index(NAME, "missing"),
    "structure.expression": lambda catalog: catalog.structure.expression(NAME, "id"),
    "branches.fast_forward": lambda catalog: catalog.branches.fast_forward(NAME, "missing"),
    "structure.fill_column": lambda catalog: catalog.structure.fill_column(NAME, "id"),
    "structure.index_statistics": lambda catalog: catalog.structure.index_statistics(NAME, "missing"),
    "structure.indexes": lambda catalog: catalog.structure.indexes(NAME),
    "structure.merge_indexes": lambda catalog: catalog.structure.merge_indexes(NAME, []),
    "structure.set_base_paths": lambda catalog: catalog.structure.set_base_paths(NAME, {1: "/elsewhere"}),
    "structure.set_field_metadata": lambda catalog: catalog.structure.set_field_metadata(
        NAME, [lancekeep.FieldMetadata("id", {"a": "b"})]
    ),
    "structure.set_metadata": lambda catalog: catalog.structure.set_metadata(NAME, {"a": "b"}),
    "tags.create": lambda catalog: catalog.tags.create(NAME, "v1", 1),
    "tags.delete": lambda catalog: catalog.tags.delete(NAME, "missing"),
    "tags.get": lambda catalog: catalog.tags.get(NAME, "missing"),
    "tags.list": lambda catalog: catalog.tags.list(NAME),
    "tags.update": lambda catalog: catalog.tags.update(NAME, "missing", 1),
    "views.create": lambda catalog: catalog.views.create(
        "ns.v", lancekeep.ViewDefinition.parse('{"table": ["ns", "t"]}', auto_refresh=False), SCHEMA
    ),
    "views.definition": lambda catalog: catalog.views.definition(NAME),
    "views.refresh": lambda catalog: catalog.views.refresh(NAME),
    "views.refresh_due": lambda catalog: catalog.views.refresh_due(),
}
NOT_CALLED = {
    "close",  # every test closes
    "commit", "commit_fragments", "upkeep.commit_compaction", "upkeep.maintain",
    "structure.add_segments", "structure.require_columns_may_change",
}  # fmt: skip
LOCAL = {
    "alter_namespace", "alter_table", "changes.latest", "changes.read", "changes.watch", "clone",
    "clones_of", "commit_rows", "events.record", "initialize", "inspect",
    "partitions.begin_create", "partitions.create", "partitions.drop", "partitions.finish_create",
    "partitions.open",
    "snapshot", "structure.set_base_paths", "transaction",
    "unresolved_commits", "upkeep.adopt_identity", "upkeep.change_commit_store", "upkeep.cleanup",
    "upkeep.direct_commits", "upkeep.export_manifest", "upkeep.fsck", "upkeep.identity",
    "upkeep.materialize", "upkeep.migrate", "upkeep.migrate_manifest_names",
    "upkeep.move_fragments", "upkeep.optimize", "upkeep.relocate", "views.refresh_due",
}  # fmt: skip


def test_the_table_of_calls_names_every_public_method() -> None:
    owners = {"": lancekeep.Catalog} | {f"{service}.": kind for service, kind in CLASSES.items()}
    named = {
        f"{prefix}{name}"
        for prefix, owner in owners.items()
        for name, _ in inspect.getmembers(owner, callable)
        if not name.startswith("_")
    }
    assert named - NOT_CALLED == CATALOG_CALLS.keys()


def test_each_operation_of_a_served_catalog_works_or_raises_its_error(tmp_path: Path) -> None:
    """A call without a result raises an error of the catalog, and a missing operation is named."""
    with (
        serving(lancekeep.DirectoryNamespace(root=str(tmp_path / "lake"))) as front,
        lancekeep.connect(front.uri) as catalog,
    ):
        unsupported: dict[str, str] = {}
        for name, call in CATALOG_CALLS.items():
            if not catalog.namespace_exists("ns"):
                catalog.create_namespace("ns")
            if catalog.table_exists(NAME):
                catalog.drop_table(NAME)
            catalog.write(NAME, ROWS)
            try:
                call(catalog)
            except lancekeep.Unsupported as error:
                unsupported[name] = str(error)
            except lancekeep.LancekeepError:
                pass
        assert unsupported.keys() == LOCAL
        assert [name for name, text in unsupported.items() if front.uri not in text] == []


def test_an_operation_that_the_protocol_lacks_is_named(tmp_path: Path) -> None:
    with (
        serving(lancekeep.DirectoryNamespace(root=str(tmp_path / "lake"))) as front,
        lancekeep.connect(front.uri) as catalog,
        pytest.raises(lancekeep.Unsupported, match="'change_commit_store'"),
    ):
        catalog.upkeep.change_commit_store("memory://")


DOCS = Path(__file__).parents[2] / "docs"


def test_catalog_shows_its_methods_and_documented_services_only(tmp_path: Path) -> None:
    """Each public name is a method, a setting, or a service whose class is in the reference."""
    reference = (DOCS / "api.md").read_text()
    with lancekeep.connect(str(tmp_path)) as catalog:
        names = {name for name in dir(catalog) if not name.startswith("_")}
        methods = {name for name in names if inspect.ismethod(getattr(catalog, name))}
        assert names - methods - SETTINGS == CLASSES.keys()
        for name in CLASSES:
            kind = type(getattr(catalog, name))
            assert kind is CLASSES[name]
            assert kind.__name__ in lancekeep.__all__
            assert f"::: lancekeep.{kind.__name__}\n" in reference
            assert f"`catalog.{name}`" in reference
            assert f"``catalog.{name}``" in (kind.__doc__ or "")
        for name in methods | SETTINGS:
            assert inspect.getattr_static(lancekeep.Catalog, name).__doc__, f"Catalog.{name} has no docstring"


def public_types() -> Iterator[tuple[str, str]]:
    """Yield the types in the signatures of the facade and of its services, with their methods."""
    others = (lancekeep.PartitionedNamespace, lancekeep.Snapshot, lancekeep.Transaction)
    for owner in (lancekeep.Catalog, *CLASSES.values(), *others):
        for name, member in inspect.getmembers(owner):
            method = member.fget if isinstance(member, property) else member
            if name.startswith("_") or not inspect.isfunction(method):
                continue
            signature = inspect.signature(method)
            for annotation in (
                *(each.annotation for each in signature.parameters.values()),
                signature.return_annotation,
            ):
                for kind in re.findall(r"(?<![.\w])[A-Z]\w+", str(annotation)):
                    yield kind, f"{owner.__name__}.{name}"


def test_types_of_public_methods_are_public() -> None:
    """Names of `typing` and `collections.abc`, and aliases of plain types, are no names of Lancekeep."""
    plain = {"Any", "Callable", "Iterable", "Iterator", "Mapping", "None", "Sequence"}
    aliases = {"Identifier", "Moment", "Progress", "Reference"}
    described = {"Manifest", "TableTransaction"}  # messages of the table format, in docs/table-format.md
    services = {
        "ChangeService",
        "EventService",
        "PartitionService",
        "TagService",
        "UpkeepService",
    }  # protocols of those in `CLASSES`
    known = plain | aliases | described | services | {*lancekeep.__all__}
    hidden = {kind: of for kind, of in public_types() if kind not in known}
    assert hidden == {}


def test_reference_shows_each_public_name() -> None:
    shown = re.findall(r"^::: lancekeep\.(\w+)$", (DOCS / "api.md").read_text(), re.MULTILINE)
    assert sorted(shown) == sorted({*lancekeep.__all__, "jobs", "spark"})


def test_page_on_versions_names_the_deprecated_names() -> None:
    table = (
        (DOCS / "versioning.md").read_text().partition("| deprecated | use |\n| --- | --- |\n")[2].partition("\n\n")[0]
    )
    named = {name for line in table.splitlines() for name in re.findall(r"`([\w.]+)`", line.split("|")[1])}
    assert named == DEPRECATED | {f"structure.{name}" for name in _OF_BRANCHES} | {"data.restore"}


@pytest.mark.parametrize("name", sorted(DEPRECATED))
def test_a_deprecated_name_works_with_a_warning(catalog: lancekeep.Catalog, name: str) -> None:
    assert name not in dir(catalog)
    if name in OF_A_DIRECTORY and catalog.root_uri.startswith("http"):
        assert not hasattr(catalog, name)
        with pytest.raises(lancekeep.Unsupported, match=f"'{name}'"):
            getattr(catalog, name)
        return
    with pytest.warns(DeprecationWarning, match=f"Catalog.{name} is deprecated") as warned:
        getattr(catalog, name)
    assert warned[0].filename == __file__


def test_deprecated_operations_return_what_their_replacements_do(catalog: lancekeep.Catalog) -> None:
    catalog.create_namespace("ns")
    catalog.write(NAME, ROWS)
    old: Any = catalog
    assert old.uri(catalog.find_table(NAME)) == catalog.describe_table(NAME).uri
    assert old.page_of("", "namespace", None, None) == (["ns"], None)
    assert old.page_of_tables("ns", None, None, include_declared=False) == (["t"], None)


def test_branches_have_their_deprecated_names_in_structure(catalog: lancekeep.Catalog) -> None:
    catalog.create_namespace("ns")
    catalog.write(NAME, ROWS)
    old: Any = catalog.structure
    with pytest.warns(DeprecationWarning, match=r"Catalog\.structure\.create_branch .* Use Catalog\.branches\.create"):
        old.create_branch(NAME, "dev")
    with pytest.warns(DeprecationWarning, match=r"Use Catalog\.branches\.list"):
        assert old.branches(NAME) == catalog.branches.list(NAME)
    with pytest.warns(DeprecationWarning, match=r"Use Catalog\.branches\.delete"):
        old.delete_branch(NAME, "dev")
    assert catalog.branches.list(NAME) == {}
    assert not hasattr(old, "no_such_name")


def test_restore_has_its_deprecated_name_in_data(catalog: lancekeep.Catalog) -> None:
    catalog.create_namespace("ns")
    catalog.write(NAME, ROWS)
    catalog.write(NAME, ROWS, "append")
    old: Any = catalog.data
    with pytest.warns(DeprecationWarning, match=r"Catalog\.data\.restore .* Use Catalog\.versions\.restore"):
        restored = old.restore(NAME, 1)
    assert stored(catalog).to_table().num_rows == 3
    assert [entry.version for entry in catalog.versions.history(NAME, 1)] == [restored.version]
