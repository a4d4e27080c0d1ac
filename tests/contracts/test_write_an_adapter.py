"""The adapters of docs/write-an-adapter.md, registered as the guide says and run against the contracts."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner

import lancekeep
from lancekeep.adapters.commit_stores import open_commit_store
from lancekeep.adapters.object_stores import open_object_store
from lancekeep.adapters.object_stores.memory import MemoryObjectStore
from lancekeep.config import ConnectionConfig
from lancekeep.domain.errors import CommitStoreMismatch, InvalidInput, Refused, TableAlreadyExists, Unsupported
from lancekeep.entrypoints.cli import lancekeep as command

GUIDE = Path(__file__).parents[2] / "docs" / "write-an-adapter.md"
ROWS = pa.table({"n": [1, 2, 3]})


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The files of the guide, installed: a directory with modules and the metadata of their distribution."""
    before = ""
    for language, code in re.findall(r"```(\w+)\n(.*?)```", GUIDE.read_text(), re.DOTALL):
        before = GUIDE.read_text().partition(code)[0]
        if language == "toml":
            metadata = tomllib.loads(code)["project"]
            register(tmp_path, metadata["name"], metadata["entry-points"])
        elif "## Use them" in before:
            (tmp_path / "use.py").write_text(code.replace("/var/lib/lake", str(tmp_path)))
        else:
            (tmp_path / re.findall(r"`(\w+\.py)`", before)[-1]).write_text(code)
    return tmp_path


@pytest.fixture
def installed(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The adapters of the guide, for this process."""
    monkeypatch.syspath_prepend(project)
    monkeypatch.chdir(project)
    return project


def register(directory: Path, name: str, groups: Mapping[str, Mapping[str, str]]) -> None:
    """Write the metadata of an installed distribution."""
    installed = directory / f"{name.replace('-', '_')}-0.1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    lines = []
    for group, adapters in groups.items():
        lines += [f"[{group}]", *(f"{scheme} = {adapter}" for scheme, adapter in adapters.items())]
    (installed / "entry_points.txt").write_text("\n".join(lines))


def python(project: Path, *arguments: str) -> str:
    path = os.pathsep.join(filter(None, (str(project), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path}
    run = subprocess.run(
        [sys.executable, *arguments], cwd=project, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def url_of(url: str) -> str:
    return open_commit_store(url, {}, MemoryObjectStore()).url


def connect(project: Path, root: str = "lake", **settings: str) -> lancekeep.Catalog:
    return lancekeep.connect(root, manifest_store=f"json://{project}/entries.json", **settings)  # type: ignore[arg-type]


# -- the guide -----------------------------------------------------------------------------------------------------


def test_adapters_of_the_guide_pass_the_contracts(project: Path) -> None:
    assert re.search(r"^\d{3} passed", python(project, "-m", "pytest", "-q", "-p", "no:cacheprovider"), re.MULTILINE)


def test_stores_of_the_guide_hold_a_catalog(project: Path) -> None:
    assert python(project, "use.py") == "4\n['ml']\n"
    assert "numbers" in (project / "commits.json").read_text()
    assert "ml$numbers" in (project / "entries.json").read_text()
    assert not (project / "lake" / "__manifest").exists()


# -- schemes -------------------------------------------------------------------------------------------------------


def test_registered_scheme_is_opened_and_listed(installed: Path) -> None:
    assert url_of("json:///lake//commits.json") == "json:///lake/commits.json"
    with pytest.raises(InvalidInput, match=r"jsno://.*did you mean 'json'.*conditional-put://, json://"):
        url_of("jsno:///lake/commits.json")
    with pytest.raises(InvalidInput, match=r"unknown option 'fsync'"):
        url_of("json:///lake/commits.json?fsync=false")


def test_unknown_manifest_store_names_the_registered_ones(installed: Path) -> None:
    with pytest.raises(
        InvalidInput,
        match=r"unknown manifest store jsno://.*did you mean 'json'.*available are postgresql://, hive://, json://",
    ):
        lancekeep.connect("lake", manifest_store="jsno:///entries.json")
    with pytest.raises(InvalidInput, match=r"unknown option 'pool'; the store has none"):
        lancekeep.connect("lake", manifest_store="json:///entries.json", manifest_store_options={"pool": "3"})
    with pytest.raises(InvalidInput, match="expected the URL of a manifest store"):
        lancekeep.connect("lake", manifest_store="entries.json")


def test_unknown_object_store_names_the_registered_ones(installed: Path) -> None:
    with pytest.raises(InvalidInput, match=r"unknown scheme archiv://.*did you mean 'archive'"):
        open_object_store("archiv://lake", {})
    with pytest.raises(InvalidInput, match=r"unknown storage option 'foldr' for archive://.*did you mean 'folder'"):
        open_object_store("archive://lake", {"foldr": "x"})
    store, key = open_object_store("archive://lake/a%20b", {"aws_region": "eu-west-1"})
    assert (store.root_uri, key) == ("archive://lake/", "a b")


@pytest.mark.parametrize(
    ("kind", "act"),
    [
        ("commit_stores", lambda: url_of("json:///lake/commits.json")),
        ("manifest_stores", lambda: lancekeep.connect("lake", manifest_store="json:///entries.json")),
        ("object_stores", lambda: open_object_store("archive://lake", {})),
    ],
)
def test_scheme_of_two_adapters_is_refused(installed: Path, kind: str, act: Callable[[], object]) -> None:
    register(installed, "another", {f"lancekeep.{kind}": {"json": "another:Store", "archive": "another:Store"}})
    with pytest.raises(InvalidInput, match=r"several adapters are registered for \w+://: a\w+:\w+, \w+:\w+\."):
        act()


def test_built_in_scheme_takes_precedence(installed: Path) -> None:
    adapters = {"memory": "another:Store", "file": "another:Store"}
    register(installed, "another", {"lancekeep.commit_stores": adapters, "lancekeep.object_stores": adapters})
    assert url_of("memory://lake") == "memory://lake"
    assert open_object_store("memory:///lake", {})[0].root_uri == "memory:///"


# -- a catalog whose entries are elsewhere -------------------------------------------------------------------------


@pytest.mark.parametrize("commit_store", ["", "conditional-put://", "sqlite://{}/c.db", "json://{}/commits.json"])
def test_every_operation_on_entries_works_with_a_manifest_store_elsewhere(installed: Path, commit_store: str) -> None:
    settings = {"commit_store": commit_store.format(installed)} if commit_store else {}
    catalog, other = connect(installed, **settings), connect(installed, **settings)
    catalog.create_namespace("a", {"owner": "ada"})
    catalog.create_namespace("a.b")
    catalog.alter_namespace("a", {"owner": "bob"}, [])
    catalog.declare_table("a.b.declared", {"kind": "x"})
    catalog.write("a.b.t", ROWS, properties={"kind": "y"})
    other.write("a.b.t", ROWS, "append")
    catalog.write("top", ROWS)
    with pytest.raises(TableAlreadyExists):
        other.declare_table("a.b.t")
    assert other.describe_namespace("a").properties == {"owner": "bob"}
    assert other.list_tables("a.b") == ["declared", "t"]
    other.rename_table("a.b.t", "moved")
    description = catalog.describe_table("moved")
    assert (description.properties, description.version) == ({"kind": "y"}, 2)
    if not commit_store:
        assert lance.dataset(description.uri).count_rows() == 6
    assert catalog.open("moved").count_rows() == 6
    catalog.alter_table("moved", {"kind": "z"})
    catalog.tags.create("moved", "first", 1)
    catalog.deregister_table("top")
    assert str(catalog.upkeep.fsck().findings[0].kind.value) == "unregistered table"
    catalog.register_table("top", catalog.upkeep.fsck().findings[0].object)
    assert catalog.upkeep.fsck(deep=True).findings == ()
    if "//{}" in commit_store:  # it reserves versions of several tables at once
        with catalog.transaction() as tx:
            tx.write("moved", ROWS, "append")
            tx.write("top", ROWS, "append")
    catalog.upkeep.cleanup(0)
    catalog.drop_table("moved")
    catalog.drop_namespace("a", cascade=True)
    assert (other.list_namespaces(), other.list_tables()) == ([], ["top"])
    assert catalog.upkeep.fsck(deep=True).findings == ()
    assert not (installed / "lake" / "__manifest" / "_versions").exists()


def test_commit_store_of_a_manifest_store_elsewhere_is_remembered_and_changed(installed: Path) -> None:
    catalog = connect(installed, commit_store=f"sqlite://{installed}/c.db")
    catalog.write("t", ROWS)
    with pytest.raises(CommitStoreMismatch):
        connect(installed)
    catalog.upkeep.change_commit_store(f"json://{installed}/commits.json")
    assert connect(installed, commit_store=f"json://{installed}/commits.json").open("t").count_rows() == 3


def test_root_is_refused_to_other_places_of_its_entries(installed: Path) -> None:
    first = connect(installed)
    first.list_tables()
    lancekeep.connect("lake", mode="v2").list_tables()  # reads claim nothing
    assert not (installed / "lake" / ".lancekeep.json").exists()
    with pytest.raises(lancekeep.NotFound):
        first.drop_namespace("missing")
    assert not (installed / "lake" / ".lancekeep.json").exists()
    first.create_namespace("a")
    for mode in ("v1", "v2", "compatible"):
        with pytest.raises(Refused, match=r"manifest store json://.*opened with its directory.*manifest_store='json"):
            lancekeep.connect("lake", mode=mode)
    with pytest.raises(Refused, match=r"opened with json:///.*/others\.json"):
        lancekeep.connect("lake", manifest_store=f"json://{installed}/others.json")
    assert connect(installed).list_namespaces() == ["a"]


def test_copy_of_a_catalog_elsewhere_is_not_taken_for_the_original(installed: Path) -> None:
    connect(installed).create_namespace("a")
    shutil.copytree("lake", "copy")
    entries = installed / "entries.json"
    stored = json.loads(entries.read_text())
    stored[f"file://{installed}/copy"] = stored[f"file://{installed}/lake"]
    entries.write_text(json.dumps(stored))
    copy = connect(installed, "copy")
    with pytest.raises(Refused, match="still has the identity, so this catalog is a copy"):
        copy.upkeep.adopt_identity(original=True)
    del stored[f"file://{installed}/lake"]
    entries.write_text(json.dumps(stored))
    copy.upkeep.adopt_identity(original=True)


def test_root_of_a_catalog_in_its_directory_is_refused(installed: Path) -> None:
    lancekeep.connect("lake", mode="v2").create_namespace("a")
    with pytest.raises(Refused, match=r"holds a catalog whose entries are in the directory"):
        connect(installed)


def test_of_two_manifest_stores_only_one_claims_an_empty_root(installed: Path) -> None:
    first, second = connect(installed), lancekeep.connect("lake", manifest_store=f"json://{installed}/others.json")
    first.create_namespace("a")
    with pytest.raises(Refused, match=r"are in the manifest store json:///.*entries\.json"):
        second.create_namespace("b")
    assert json.loads((installed / "entries.json").read_text()).keys() == {f"file://{installed}/lake"}
    assert not (installed / "others.json").exists()


def test_manifest_store_comes_from_the_environment_the_file_and_the_command_line(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"json://{installed}/entries.json"
    connect(installed).create_namespace("a")
    checked = CliRunner().invoke(command, ["fsck", "lake", "--manifest-store", url], obj=lancekeep)
    assert checked.output == "1 entries and 0 directories: 0 findings\n"
    refused = CliRunner().invoke(command, ["fsck", "lake", "--manifest-store", url, "--mode", "v2"], obj=lancekeep)
    assert "mode is about entries in the directory" in refused.output
    (installed / "lancekeep.toml").write_text(
        f"[catalogs.lake]\nroot = 'lake'\nmanifest_store = '{url}'\nmanifest_store_options = {{ pool = '3' }}\n"
    )
    assert ConnectionConfig.resolve({"catalog": "lake"}).manifest_store_options == {"pool": "3"}
    (installed / "lancekeep.toml").write_text(f"[catalogs.lake]\nroot = 'lake'\nmanifest_store = '{url}'\n")
    assert lancekeep.connect(catalog="lake").list_namespaces() == ["a"]
    (installed / "lancekeep.toml").write_text(f"manifest_store = '{url}'\n")
    with pytest.raises(InvalidInput, match="belong to one root"):
        lancekeep.connect("lake")
    (installed / "lancekeep.toml").unlink()
    monkeypatch.setenv("LANCEKEEP_MANIFEST_STORE", url)
    config = ConnectionConfig.resolve({"root": "lake"})
    assert ConnectionConfig.from_properties(config.as_properties()) == config
    assert lancekeep.connect("lake").list_namespaces() == ["a"]


@pytest.mark.parametrize("setting", [{"mode": "v2"}, {"inline_optimization": True}])
def test_settings_of_entries_in_the_directory_are_refused_beside_a_manifest_store(setting: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match=f"{next(iter(setting))} is about entries in the directory"):
        lancekeep.connect("lake", manifest_store="json:///entries.json", **setting)  # type: ignore[arg-type]


def test_server_has_its_own_manifest_store() -> None:
    with pytest.raises(InvalidInput, match="leave manifest_store out"):
        lancekeep.connect("http://localhost:1", manifest_store="json:///entries.json")


DATABASES = """
from json_manifest_store import JsonManifestStore
from lancekeep.domain.catalog import ManifestStoreGuarantees


class DatabaseStore(JsonManifestStore):
    guarantees = ManifestStoreGuarantees(atomic_changes=False, levels=1, home="a metastore")

    def location_of(self, table_id):
        return f"{table_id.names[0]}.db/{table_id.name}"
"""


@pytest.mark.parametrize("commit_store", [None, "conditional-put://", "memory://databases"])
def test_store_of_databases_prescribes_directories_and_names(installed: Path, commit_store: str | None) -> None:
    (installed / "databases.py").write_text(DATABASES)
    register(installed, "databases", {"lancekeep.manifest_stores": {"databases": "databases:DatabaseStore"}})
    url = f"databases://{installed}/entries.json"
    catalog = lancekeep.connect("lake", manifest_store=url, commit_store=commit_store)
    catalog.create_namespace("a")
    with pytest.raises(Unsupported, match=r"a metastore names each table by 2 name\(s\); it cannot store t"):
        catalog.write("t", ROWS)
    assert not list((installed / "lake").glob("*_t"))
    catalog.write("a.t", ROWS, properties={"kind": "x"})
    assert catalog.describe_table("a.t").uri.endswith("/lake/a.db/t")
    catalog.rename_table("a.t", "a.u")
    catalog.write("a.t", ROWS)  # the renamed table keeps the prescribed directory
    catalog.write("a.t", ROWS, "append")
    assert not catalog.describe_table("a.t").uri.endswith("/lake/a.db/t")
    assert (catalog.open("a.u").count_rows(), catalog.open("a.t").count_rows()) == (3, 6)
    catalog.drop_table("a.u")
    catalog.write("a.v", ROWS)
    catalog.drop_table("a.t")
    catalog.write("a.t", ROWS, "overwrite")
    assert catalog.describe_table("a.t").uri.endswith("/lake/a.db/t")
    assert catalog.upkeep.fsck(deep=True).findings == ()
    catalog.deregister_table("a.t")
    catalog.register_table("a.t", "a.db/t")
    catalog.upkeep.relocate("a.t", "elsewhere/t")
    assert catalog.open("a.t").count_rows() == 3
    catalog.drop_namespace("a", cascade=True)
    (fence,) = catalog.upkeep.fsck(deep=True).findings
    assert (fence.object, fence.repair) == ("a.db", "")
    assert catalog.list_namespaces() == []
