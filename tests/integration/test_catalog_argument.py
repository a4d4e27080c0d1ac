"""Commands find their catalog by a path, a URL, a configured name, or the configured default; and its commit store."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from deployments import Deployment, deployment

import lancekeep
from lancekeep.application.catalog import directory_of
from lancekeep.entrypoints.cli import lancekeep as command

ROWS = pa.table({"id": [1, 2]})


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments, obj=lancekeep)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make(root: str, rows: int, **how: str) -> None:
    with lancekeep.connect(root, **how) as catalog:  # type: ignore[arg-type]
        catalog.write("t", pa.table({"id": range(rows)}))


# -- the argument CATALOG ------------------------------------------------------------------------------------------


def counted(*arguments: str) -> str:
    done = invoke("count", *arguments)
    assert done.exit_code == 0, done.output
    return done.stdout.strip()


def test_catalog_may_be_left_out_if_a_default_is_configured(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make("lake", 2)
    make("other", 3)
    (home / "lancekeep.toml").write_text('root = "lake"\n[catalogs.second]\nroot = "other"\n')
    assert counted("t") == "2"
    assert counted("other", "t") == counted("second", "t") == counted(f"file://{home}/other", "t") == "3"
    monkeypatch.setenv("LANCEKEEP_CATALOG", "second")
    assert counted("t") == "3"


def test_missing_catalog_is_reported_with_the_ways_to_name_it() -> None:
    told = invoke("count", "t")
    assert told.exit_code == 2
    assert told.stderr.startswith("Error: no catalog is named.\nGive its root, URL or configured name, set LANCEKEEP_")


@pytest.mark.parametrize("place", ["lake", "./lake", "second"])
def test_first_of_optional_arguments_is_a_catalog_if_it_names_one(home: Path, place: str) -> None:
    make("lake", 2)
    with lancekeep.connect("default") as catalog:
        catalog.create_namespace("ml")
        catalog.write("ml.u", ROWS)
    (home / "lancekeep.toml").write_text('root = "default"\n[catalogs.second]\nroot = "lake"\n')
    assert invoke("ls", place, "-o", "csv").stdout == "name,kind\nt,table\n"
    assert invoke("ls", "ml", "-o", "csv").stdout == "name,kind\nml.u,table\n"
    assert invoke("ls", "-o", "csv").stdout == "name,kind\nml,namespace\n"


def test_name_of_a_catalog_and_of_another_directory_is_refused(home: Path) -> None:
    make("lake", 2)
    make("other", 3)
    (home / "lancekeep.toml").write_text('[catalogs.lake]\nroot = "other"\n')
    told = invoke("count", "lake", "t")
    assert (told.exit_code, "Write ./lake for the directory" in told.stderr) == (2, True)
    assert (counted("./lake", "t"), counted("other", "t")) == ("2", "3")


def test_empty_argument_is_no_default_catalog(home: Path) -> None:
    """A script whose variable is empty must not work on the default catalog."""
    make("lake", 2)
    (home / "lancekeep.toml").write_text('root = "lake"\n')
    told = invoke("drop", "", "t", "--yes")
    assert told.exit_code != 0
    assert counted("t") == "2"


def test_mode_of_the_configuration_is_used(home: Path) -> None:
    make("lake", 2, mode="v1")
    (home / "lancekeep.toml").write_text('root = "lake"\nmode = "v2"\n')
    assert invoke("count", "t").exit_code == 3
    assert counted("t", "--mode", "v1") == "2"


# -- the remembered commit store -----------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", "files", "redis", "conditional-put"])
def managed(request: pytest.FixtureRequest, tmp_path: Path, redis_url: str) -> Deployment:
    return deployment(request.param, tmp_path, redis_url, "")


@pytest.mark.parametrize("mode", ["compatible", "v2", "v1"])
def test_catalog_opens_with_the_commit_store_that_it_remembers(managed: Deployment, mode: str) -> None:
    make(managed.root, 2, commit_store=managed.commit_store, mode=mode)
    with lancekeep.connect(managed.root, commit_store="remembered", mode=mode) as catalog:
        assert catalog.describe_table("t").managed
        assert catalog.write("t", ROWS, "append").version == 2
    with lancekeep.connect(managed.root, commit_store=managed.commit_store, mode=mode) as catalog:
        assert bool(catalog.versions.history("t")[0].committer) == (
            not managed.commit_store.startswith("conditional-put")
        )
        assert catalog.open("t").count_rows() == 4


def test_commands_say_which_commit_store_they_use(managed: Deployment) -> None:
    make(managed.root, 2, commit_store=managed.commit_store)
    told = invoke("fsck", managed.root)
    assert told.exit_code == 0, told.output
    with lancekeep.connect(managed.root, commit_store=managed.commit_store) as catalog:
        store = directory_of(catalog).ledger.own_store
    assert told.stderr == f"Commit store: {store}, which the catalog remembers.\n"
    assert invoke("fsck", managed.root, "--quiet").stderr == ""
    assert invoke("fsck", managed.root, "--commit-store", managed.commit_store).stderr == ""


def test_catalog_without_a_commit_store_has_none_to_remember() -> None:
    make("lake", 2)
    with lancekeep.connect("lake", commit_store="remembered") as catalog:
        assert not catalog.describe_table("t").managed
        assert catalog.write("t", ROWS, "append").version == 2
    assert invoke("fsck", "lake").stderr == ""


def test_new_catalog_has_no_commit_store_to_remember() -> None:
    with lancekeep.connect("new", commit_store="remembered") as catalog:
        catalog.write("t", ROWS)
        assert not catalog.describe_table("t").managed


def test_remembered_file_of_another_machine_is_refused(home: Path) -> None:
    """An empty database in its place would permit a second version 2."""
    make("lake", 2, commit_store=f"sqlite://{home}/commits.db")
    os.rename("commits.db", "elsewhere.db")
    with pytest.raises(lancekeep.StoreUnavailable, match="does not exist on this machine"):
        lancekeep.connect("lake", commit_store="remembered")
    assert not (home / "commits.db").exists()
    os.rename("elsewhere.db", "commits.db")
    with sqlite3.connect("commits.db") as database:
        assert database.execute("SELECT count(*) FROM version_rows").fetchone()[0] >= 1


def test_namespace_takes_the_remembered_commit_store(home: Path) -> None:
    make("lake", 2, commit_store=f"sqlite://{home}/commits.db")
    namespace = lancekeep.DirectoryNamespace(root="lake", commit_store="remembered")
    assert namespace.catalog.describe_table("t").managed
