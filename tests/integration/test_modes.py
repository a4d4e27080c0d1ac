"""V1 alone, V2 alone and compatibility mode as people use them, on every storage, and native processes beside them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import fsspec
import lance
import lance_namespace as api
import pyarrow as pa
import pytest
from deployments import bucket, s3_options
from faults import Faulty
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from lance.namespace import DirectoryNamespace as NativeNamespace
from lance_namespace import errors as api_errors
from writers import stream

import lancekeep
from lancekeep import composition
from lancekeep.adapters.object_stores import open_object_store
from lancekeep.domain.errors import Unsupported
from lancekeep.ports.object_store import ObjectStore

TABLE = pa.table({"a": pa.array([1, 2, 3], pa.int64())})
MODES = ("v1", "compatible", "v2")
NATIVE = {
    "v1": {"manifest_enabled": "false"},
    "compatible": {},
    "v2": {"dir_listing_enabled": "false"},
}


@attrs.frozen
class Lake:
    """A place for a catalog."""

    root: str
    options: dict[str, str]
    commit_store: str | None = None

    def open(self, mode: str) -> lancekeep.Catalog:
        return lancekeep.connect(
            self.root, mode=mode, commit_store=self.commit_store, storage_options=self.options or None
        )

    def native(self, **properties: str) -> NativeNamespace:
        storage = {f"storage.{name}": value for name, value in self.options.items()}
        return NativeNamespace(root=self.root, **storage, **properties)

    def objects(self) -> tuple[ObjectStore, str]:
        return open_object_store(self.root, self.options)

    def stored(self) -> list[str]:
        objects, root = self.objects()
        return [info.key.removeprefix(f"{root}/") for info in objects.list(f"{root}/")]

    def put(self, name: str) -> None:
        objects, root = self.objects()
        objects.put(f"{root}/{name}", b"reserved")


@pytest.fixture(params=["files", "files-sqlite", "s3", "s3-conditional-put"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    storage, _, store = request.param.partition("-")
    url = {"sqlite": f"sqlite://{tmp_path}/commits.db", "conditional-put": "conditional-put://"}.get(store)
    if storage == "files":
        return Lake(str(tmp_path / "lake"), {}, url)
    endpoint = request.getfixturevalue("moto_endpoint")
    return Lake(f"s3://{bucket(endpoint)}/lake", s3_options(endpoint), url)


@pytest.mark.parametrize("mode", MODES)
def test_table_in_the_root_supports_every_operation(lake: Lake, mode: str) -> None:
    catalog = lake.open(mode)
    assert catalog.list_tables() == []
    catalog.declare_table("t")
    place = catalog.find_table("t").location
    assert (place == "t.lance") == (mode != "v2")
    assert f"{place}/.lance-reserved" in lake.stored()
    assert catalog.describe_table("t").version is None
    with pytest.raises(lancekeep.TableAlreadyExists):
        catalog.declare_table("t")
    catalog.drop_table("t")
    assert catalog.write("t", TABLE).version == 1
    assert lake.open(mode).open("t").to_table() == TABLE
    assert catalog.describe_table("t").version == 1
    assert lake.open(mode).list_tables() == ["t"]

    place = catalog.deregister_table("t").location
    assert (f"{place}/.lance-deregistered" in lake.stored()) == (mode != "v2")
    assert lake.open(mode).list_tables() == []
    assert not catalog.table_exists("t")
    for missing in (catalog.describe_table, catalog.open, catalog.deregister_table, catalog.drop_table):
        with pytest.raises(lancekeep.TableNotFound):
            missing("t")
    assert catalog.register_table("t", place).location == place
    assert f"{place}/.lance-deregistered" not in lake.stored()
    assert catalog.list_tables() == ["t"]
    assert catalog.write("t", TABLE, "append").version == 2
    catalog.drop_table("t")
    assert lake.open(mode).list_tables() == []
    assert [key for key in lake.stored() if key.startswith(place)] == []


@pytest.mark.parametrize("mode", MODES)
def test_only_directories_with_an_object_and_without_the_marker_are_tables(lake: Lake, mode: str) -> None:
    unmanaged = attrs.evolve(lake, commit_store=None)
    lance.write_dataset(TABLE, f"{lake.root}/t.lance", storage_options=lake.options or None)
    lake.put("reserved.lance/.lance-reserved")
    lake.put("gone.lance/.lance-deregistered")
    lake.put("gone.lance/data/x")
    if "://" not in lake.root:
        (Path(lake.root) / "empty.lance/_versions").mkdir(parents=True)
    catalog = unmanaged.open(mode)
    assert catalog.list_tables() == ([] if mode == "v2" else ["reserved", "t"])
    assert [name for name in ("t", "reserved", "gone", "empty") if catalog.table_exists(name)] == (
        [] if mode == "v2" else ["t", "reserved"]
    )
    if mode != "v2":
        assert catalog.open("t").to_table() == TABLE
        assert catalog.describe_table("reserved").version is None


def test_in_v1_there_is_nothing_but_tables_in_the_root(lake: Lake) -> None:
    catalog = lake.open("v1")
    catalog.write("t", TABLE)
    acts: list[Callable[[], object]] = [
        lambda: catalog.create_namespace("n"),
        lambda: catalog.rename_table("t", "u"),
        lambda: catalog.declare_table("u", {"owner": "me"}),
        lambda: catalog.declare_table("u", location="elsewhere"),
        lambda: catalog.alter_table("t", {"owner": "me"}),
        lambda: catalog.alter_namespace("", {"owner": "me"}),
    ]
    before = lake.stored()
    for act in acts:
        with pytest.raises(Unsupported):
            act()
    with pytest.raises(lancekeep.NamespaceNotFound):
        catalog.declare_table("n.t")
    assert catalog.list_namespaces() == []
    assert lake.stored() == before


def test_renamed_listed_table_is_hidden_from_v1_readers(lake: Lake) -> None:
    lake.open("v1").write("t", TABLE)
    catalog = lake.open("compatible")
    assert catalog.list_tables() == ["t"]
    renamed = catalog.rename_table("t", "u")
    assert renamed.location != "u.lance"
    assert catalog.list_tables() == lake.open("v2").list_tables() == ["u"]
    assert catalog.open("u").to_table() == TABLE
    assert lake.open("v1").list_tables() == []


# -- native processes beside it ----------------------------------------------------------------------------------


def tables(native: NativeNamespace) -> list[str]:
    return sorted(native.list_tables(api.ListTablesRequest(id=[])).tables)


def exists(native: NativeNamespace, name: str) -> bool:
    try:
        native.describe_table(api.DescribeTableRequest(id=[name]))
    except api_errors.TableNotFoundError:
        return False
    return True


@pytest.fixture(params=["files", "s3"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    """A place that native processes use, too: nothing else commits there."""
    if request.param == "files":
        return Lake(str(tmp_path / "lake"), {})
    endpoint = request.getfixturevalue("moto_endpoint")
    return Lake(f"s3://{bucket(endpoint)}/lake", s3_options(endpoint))


@pytest.mark.parametrize("mode", MODES)
def test_native_sees_what_is_done_here(shared: Lake, mode: str) -> None:
    catalog = shared.open(mode)
    catalog.write("t", TABLE)
    catalog.declare_table("d")
    native = shared.native(**NATIVE[mode])
    assert tables(native) == ["d", "t"]
    described = native.describe_table(api.DescribeTableRequest(id=["t"]))
    assert str(described.location).endswith(catalog.find_table("t").location)
    place = catalog.deregister_table("t").location
    assert tables(native) == ["d"]
    assert not exists(native, "t")
    catalog.register_table("t", place)
    assert tables(native) == ["d", "t"]
    if mode != "v1":
        catalog.rename_table("t", "u")
        # Departure: in compatibility mode native reads the tables of the root from the directory listing alone.
        assert tables(native) == (["d"] if mode == "compatible" else ["d", "u"])
        assert tables(shared.native(dir_listing_to_manifest_migration_enabled="true")) == ["d", "u"]
        catalog.drop_table("u")
    else:
        catalog.drop_table("t")
    assert tables(native) == ["d"]


@pytest.mark.parametrize("mode", MODES)
def test_native_changes_are_visible(shared: Lake, mode: str) -> None:
    native, catalog = shared.native(**NATIVE[mode]), shared.open(mode)
    native.create_table(api.CreateTableRequest(id=["t"]), stream(TABLE))
    native.declare_table(api.DeclareTableRequest(id=["d"]))
    assert catalog.list_tables() == ["d", "t"]
    assert catalog.open("t").to_table() == TABLE
    assert catalog.describe_table("d").version is None
    place = catalog.find_table("t").location
    native.deregister_table(api.DeregisterTableRequest(id=["t"]))
    # Departure: in compatibility mode native takes the table out of the manifest and leaves no marker in its directory,
    # so that by rule 1 it is a table still; native itself goes on showing it.
    assert catalog.table_exists("t") == exists(native, "t") == (mode == "compatible")
    assert catalog.list_tables() == tables(native) == (["d", "t"] if mode == "compatible" else ["d"])
    register = api.RegisterTableRequest(id=["t"], location=place)
    if mode == "v1":
        # Departure: native V1 cannot register again what it has deregistered; here that is taking the marker away.
        with pytest.raises(api_errors.UnsupportedOperationError):
            native.register_table(register)
        catalog.register_table("t", place)
    else:
        native.register_table(register)
    assert catalog.list_tables() == tables(native) == ["d", "t"]
    native.drop_table(api.DropTableRequest(id=["t"]))
    assert catalog.list_tables() == tables(native) == ["d"]


def test_native_lists_an_empty_directory_but_does_not_find_it(tmp_path: Path) -> None:
    """Departure: here it is no table, and is not listed either."""
    (tmp_path / "empty.lance").mkdir()
    native = Lake(str(tmp_path), {}).native(**NATIVE["v1"])
    assert tables(native) == ["empty"]
    assert not exists(native, "empty")
    assert lancekeep.connect(str(tmp_path), mode="v1").list_tables() == []


# -- which commit store ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("later", ["v1", "compatible"])
@pytest.mark.parametrize("first", ["v1", "compatible"])
def test_managed_catalog_is_managed_in_every_mode_that_shows_its_tables(tmp_path: Path, first: str, later: str) -> None:
    lake = Lake(str(tmp_path / "lake"), {}, f"sqlite://{tmp_path}/commits.db")
    lake.open(first).write("t", TABLE)
    for other in (None, f"sqlite://{tmp_path}/other.db"):
        with pytest.raises(lancekeep.CommitStoreMismatch, match=r"commits\.db"):
            attrs.evolve(lake, commit_store=other).open(later)
    assert lake.open(later).write("t", TABLE, "append").version == 2
    catalog = lake.open(later)
    if (first, later) == ("compatible", "v1"):  # there is a manifest, which would not learn of it
        with pytest.raises(lancekeep.Refused, match="in compatibility mode"):
            catalog.upkeep.change_commit_store(f"sqlite://{tmp_path}/new.db")
        catalog = lake.open(first)
    assert catalog.upkeep.change_commit_store(f"sqlite://{tmp_path}/new.db") == 2
    with pytest.raises(lancekeep.CommitStoreMismatch, match=r"new\.db"):
        lake.open(first)
    assert attrs.evolve(lake, commit_store=f"sqlite://{tmp_path}/new.db").open(first).open("t").version == 2


@pytest.mark.parametrize("mode", ["v1", "compatible"])
def test_v1_tables_that_no_store_manages_come_under_one_only_on_purpose(tmp_path: Path, mode: str) -> None:
    lance.write_dataset(TABLE, str(tmp_path / "lake/t.lance"))
    url = f"sqlite://{tmp_path}/commits.db"
    with pytest.raises(lancekeep.CommitStoreMismatch, match="change_commit_store"):
        lancekeep.connect(str(tmp_path / "lake"), mode=mode, commit_store=url)
    lancekeep.connect(str(tmp_path / "lake"), mode=mode).upkeep.change_commit_store(url)
    catalog = lancekeep.connect(str(tmp_path / "lake"), mode=mode, commit_store=url)
    assert catalog.write("t", TABLE, "append").version == 2


# -- V1 over fsspec ----------------------------------------------------------------------------------------------


class Shelf(DirFileSystem):  # type: ignore[misc] # fsspec has no types
    """A storage with a scheme of fsspec only: ``shelf://name/key`` is a file below a directory."""

    protocol = "shelf"
    cachable = False

    def __init__(self, directory: str) -> None:
        super().__init__(path=directory, fs=LocalFileSystem())

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("shelf://").strip("/")


def test_v1_works_where_only_fsspec_reaches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The native engine has no such storage, so tables are declared and listed here, and written elsewhere."""
    (tmp_path / "storage").mkdir()
    fsspec.register_implementation("shelf", Shelf, clobber=True)
    options = {"directory": str(tmp_path / "storage")}
    store = f"sqlite://{tmp_path}/commits.db"

    def connect() -> lancekeep.Catalog:
        return lancekeep.connect("shelf://a/lake", mode="v1", commit_store=store, storage_options=options)

    catalog = connect()
    assert catalog.list_tables() == []
    assert catalog.declare_table("t").location == "t.lance"
    with pytest.raises(lancekeep.TableAlreadyExists):
        connect().declare_table("t")
    assert connect().list_tables() == ["t"]
    assert connect().describe_table("t").version is None
    catalog.deregister_table("t")
    assert connect().list_tables() == []
    catalog.drop_table(catalog.declare_table("u").id)
    lance.write_dataset(TABLE, str(tmp_path / "storage/a/lake/x.lance"))
    assert connect().list_tables() == ["x"]
    assert catalog.describe_table("x").version == 1
    catalog.deregister_table("x")
    assert connect().list_tables() == []
    assert catalog.register_table("x", "x.lance").location == "x.lance"
    assert connect().list_tables() == ["x"]
    catalog.drop_table("x")
    lake = tmp_path / "storage/a/lake"
    assert sorted(str(path.relative_to(lake)) for path in lake.rglob("*") if path.is_file()) == [
        ".lancekeep.json",
        "t.lance/.lance-deregistered",
        "t.lance/.lance-reserved",
    ]
    with pytest.raises(lancekeep.CommitStoreMismatch):
        lancekeep.connect("shelf://a/lake", mode="v1", commit_store=f"{store}2", storage_options=options)


# -- looking, and what is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("filled", [False, True])
def test_opening_listing_and_describing_write_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, filled: bool
) -> None:
    root = str(tmp_path / "lake")
    if filled:
        lancekeep.connect(root, mode=mode).write("t", TABLE)
    spies: list[Faulty] = []

    def spied(*args: Any, **how: Any) -> tuple[Any, str]:
        objects, key = open_object_store(*args, **how)
        spies.append(Faulty(objects))
        return spies[-1], key

    monkeypatch.setattr(composition, "open_object_store", spied)
    before = sorted(os.walk(tmp_path))
    catalog = lancekeep.connect(root, mode=mode)
    assert catalog.list_tables() == [str(table) for table in catalog.list_all_tables()] == ["t"] * filled
    assert catalog.list_namespaces() == []
    assert catalog.table_exists("t") == filled
    assert not catalog.table_exists("n.t")
    if filled:
        assert catalog.describe_table("t").version == 1
    assert spies[0].calls
    assert not {"put", "put_if_absent", "copy", "copy_if_absent", "delete", "prune"} & set(spies[0].calls)
    assert sorted(os.walk(tmp_path)) == before


def test_unknown_mode_is_refused_with_the_known_modes(tmp_path: Path) -> None:
    with pytest.raises(lancekeep.InvalidInput, match="unknown mode 'v3'; choose compatible, v1, v2"):
        lancekeep.connect(str(tmp_path / "lake"), mode="v3")


@pytest.mark.parametrize("mode", MODES)
def test_native_property_names_choose_the_mode(tmp_path: Path, mode: str) -> None:
    namespace = lancekeep.DirectoryNamespace(
        root=str(tmp_path / "lake"), dir_listing_to_manifest_migration_enabled="true", **NATIVE[mode]
    )
    namespace.catalog.declare_table("t")
    entries = sorted(path.name for path in (tmp_path / "lake").iterdir())
    assert ("__manifest" in entries, "t.lance" in entries) == (mode != "v1", mode != "v2")


def test_commit_store_recorded_in_v1_directory_applies_to_v2(tmp_path: Path) -> None:
    root, first, second = str(tmp_path / "lake"), f"sqlite://{tmp_path}/one.db", f"sqlite://{tmp_path}/two.db"
    lancekeep.connect(root, mode="v1", commit_store=first).write("t", TABLE)
    for other in (None, second):
        with pytest.raises(lancekeep.CommitStoreMismatch, match=r"managed by the commit store .*one\.db"):
            lancekeep.connect(root, mode="v2", commit_store=other)
    lancekeep.connect(root, mode="v2", commit_store=first).create_namespace("a")
    assert lancekeep.connect(root, commit_store=first).list_tables() == ["t"]
