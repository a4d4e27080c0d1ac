"""Every entry point translates its options through one configuration."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import lancekeep
from lancekeep.application.catalog import directory_of
from lancekeep.config import ConnectionConfig, public_url

SECRET = "planted-secret"


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, an empty user folder, and no variables."""
    for name in [name for name in os.environ if name.startswith("LANCEKEEP_")]:
        monkeypatch.delenv(name)
    project, home = tmp_path / "project", tmp_path / "home"
    project.mkdir()
    home.mkdir()
    monkeypatch.chdir(project)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    return project


def user_file(tmp_path: Path, content: str) -> str:
    file = tmp_path / "home" / "lancekeep" / "lancekeep.toml"
    file.parent.mkdir()
    file.write_text(content)
    return str(file)


# -- precedence ----------------------------------------------------------------------------------------------------


def test_argument_wins_over_environment_over_project_file_over_user_file(
    nowhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = nowhere / "lancekeep.toml"
    project.write_text("[storage_options]\na = 'project'\nb = 'project'\nc = 'project'")
    user = user_file(tmp_path, "committer = 'user'\n[storage_options]\na = 'user'\nb = 'user'\nc = 'user'\nd = 'user'")
    monkeypatch.setenv("LANCEKEEP_STORAGE__A", "environment")
    monkeypatch.setenv("LANCEKEEP_STORAGE__B", "environment")
    config = ConnectionConfig.resolve({"root": "lake", "storage.a": "argument"})
    assert config.storage_options == {"a": "argument", "b": "environment", "c": "project", "d": "user"}
    assert config.sources == {
        "root": "argument",
        "storage.a": "argument",
        "storage.b": "LANCEKEEP_STORAGE__B",
        "storage.c": str(project),
        "storage.d": user,
        "committer": user,
    }


def test_user_without_a_home_has_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "~" / ".config" / "lancekeep"
    folder.mkdir(parents=True)
    (folder / "lancekeep.toml").write_text('root = "/elsewhere"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as without HOME and without an account
    assert ConnectionConfig.resolve({}).root is None


def test_explicit_false_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANCEKEEP_UNSAFE", "true")
    assert ConnectionConfig.resolve({"root": "lake"}).unsafe
    assert not ConnectionConfig.resolve({"root": "lake", "unsafe": False}).unsafe


def test_file_of_a_parent_folder_is_found_and_its_root_is_relative_to_it(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (nowhere / "lancekeep.toml").write_text("root = 'lake'")
    (nowhere / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(nowhere / "a" / "b")
    assert ConnectionConfig.resolve({}).root == str(nowhere / "lake")


@pytest.mark.parametrize("root", ["s3://bucket/lake", "file:///lake", "/lake", "~/lake"])
def test_absolute_root_of_a_file_is_kept(nowhere: Path, root: str) -> None:
    (nowhere / "lancekeep.toml").write_text(f"root = '{root}'")
    assert ConnectionConfig.resolve({}).root == root


def test_named_file_replaces_those_of_project_and_user(
    nowhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (nowhere / "lancekeep.toml").write_text("committer = 'project'")
    user_file(tmp_path, "mode = 'v2'")
    (tmp_path / "other.toml").write_text("root = '/other'")
    monkeypatch.setenv("LANCEKEEP_CONFIG", str(tmp_path / "other.toml"))
    config = ConnectionConfig.resolve({})
    assert (config.root, config.committer, config.mode) == ("/other", None, "compatible")


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="the system has no owners of files")
def test_project_file_of_another_user_is_ignored_with_a_warning(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (nowhere / "lancekeep.toml").write_text("root = '/theirs'")
    owner, stat = 12345, os.stat

    def of_another(path: str | Path, **how: bool) -> os.stat_result:
        found = stat(path, **how)
        return os.stat_result((*found[:4], owner, *found[5:10])) if str(path).endswith(".toml") else found

    monkeypatch.setattr(os, "stat", of_another)
    with pytest.warns(UserWarning, match="belongs to another user"):
        assert ConnectionConfig.resolve({}).root is None


# -- one root, one commit store ------------------------------------------------------------------------------------


def test_settings_of_a_file_apply_to_its_own_root_only(nowhere: Path) -> None:
    (nowhere / "lancekeep.toml").write_text(
        "root = 'lake'\ncommit_store = 'sqlite:///lake.db'\ncommitter = 'ada'\n[storage_options]\nfsync = false"
    )
    other = ConnectionConfig.resolve({"root": "/elsewhere"})
    assert (other.commit_store, other.committer, other.storage_options) == (None, None, {})
    for same in ("lake", "./lake/", str(nowhere / "lake"), f"file://{nowhere}/lake"):
        config = ConnectionConfig.resolve({"root": same})
        assert (config.root, config.commit_store) == (same, "sqlite:///lake.db")
        assert config.storage_options == {"fsync": "false"}


def test_variables_with_a_root_apply_to_this_root_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANCEKEEP_ROOT", "s3://bucket/lake/")
    monkeypatch.setenv("LANCEKEEP_COMMIT_STORE", "redis://cache/0")
    assert ConnectionConfig.resolve({}).commit_store == "redis://cache/0"
    assert ConnectionConfig.resolve({"root": "S3://bucket/lake"}).commit_store == "redis://cache/0"
    assert ConnectionConfig.resolve({"root": "s3://bucket/lake2"}).commit_store is None


def test_variables_without_a_root_apply_to_every_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANCEKEEP_COMMIT_STORE", "redis://cache/0")
    assert ConnectionConfig.resolve({"root": "lake"}).commit_store == "redis://cache/0"


def test_commit_store_of_a_file_needs_a_root_in_the_same_section(nowhere: Path) -> None:
    (nowhere / "lancekeep.toml").write_text("commit_store = 'sqlite:///lake.db'")
    with pytest.raises(lancekeep.InvalidInput, match="belong to one root"):
        ConnectionConfig.resolve({"root": "lake"})


CATALOGS = """
committer = 'ada'
[catalogs.lake]
root = 's3://bucket/lake'
commit_store = 'redis://cache/0'
storage_options.aws_region = 'eu-west-1'
commit_store_options = { timeout = 5 }
[catalogs.scratch]
root = '/scratch'
"""


def test_catalog_is_selected_by_name_or_by_its_root(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (nowhere / "lancekeep.toml").write_text(CATALOGS)
    by_name = ConnectionConfig.resolve({"catalog": "lake"})
    assert (by_name.root, by_name.commit_store, by_name.committer) == ("s3://bucket/lake", "redis://cache/0", "ada")
    assert by_name.storage_options == {"aws_region": "eu-west-1"}
    assert by_name.commit_store_options == {"timeout": "5"}
    assert ConnectionConfig.resolve({"root": "s3://bucket/lake"}) == by_name
    monkeypatch.setenv("LANCEKEEP_CATALOG", "scratch")
    assert ConnectionConfig.resolve({}).root == "/scratch"
    assert ConnectionConfig.resolve({}).commit_store is None
    assert ConnectionConfig.resolve({"catalog": "lake"}) == by_name
    with pytest.raises(lancekeep.InvalidInput, match="no catalog 'sratch'; configured are lake, scratch"):
        ConnectionConfig.resolve({"catalog": "sratch"})
    with pytest.raises(lancekeep.InvalidInput, match="give one of them"):
        ConnectionConfig.resolve({"catalog": "lake", "root": "/scratch"})


# -- names ---------------------------------------------------------------------------------------------------------


def test_guideline_names_and_native_names_mean_the_same_settings() -> None:
    own = ConnectionConfig.from_properties({"root": "lake", "mode": "v2", "inline_optimization": "true"})
    assert own == ConnectionConfig.from_properties(
        {"impl": "dir", "dir.path": "lake", "dir.mode": "v2", "dir.inline_optimization": "true"}
    )
    assert own == ConnectionConfig.from_properties(
        {"root": "lake", "dir_listing_enabled": "false", "inline_optimization_enabled": "true"}
    )
    options = {"root": "lake", "dir.storage.aws_region": "x", "storage_options.fsync": "true"}
    assert ConnectionConfig.from_properties(options).storage_options == {"aws_region": "x", "fsync": "true"}


def test_variables_name_properties_of_an_implementation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANCEKEEP_DIR__STORAGE__AWS_REGION", "x")
    monkeypatch.setenv("LANCEKEEP_DIR__ROOT", "lake")
    config = ConnectionConfig.resolve({})
    assert (config.root, config.storage_options) == ("lake", {"aws_region": "x"})


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"comit_store": SECRET}, "unknown property 'comit_store'; did you mean 'commit_store'"),
        ({"storage.": SECRET}, "unknown property 'storage.'; did you mean 'storage.'"),
        ({"root": "a", "dir.root": "b"}, "'dir.root' is given twice"),
        ({"mode": "v1", "manifest_enabled": "true"}, "both select the mode"),
        ({"impl": "hive"}, "impl 'hive' needs the URL of a Metastore: uri='thrift://HOST:9083'"),
        ({"impl": "hive", "hive.uri": "postgresql://h"}, "needs the URL of a Metastore"),
        ({"impl": "hive3"}, "impl 'hive3' needs the URL of a Metastore"),
        ({"impl": "hive3", "hive3.uri": "hive://h", "hive3.catalogs": "false"}, "use impl 'hive' for namespaces"),
        ({"impl": "directory"}, "unknown impl 'directory'"),
        ({"impl": "glue"}, "unknown impl 'glue'; choose dir, hive, hive3, postgres, rest"),
        ({"impl": "dir", "root": "https://ann:secret@h"}, "the root is the URL of a server; use impl 'rest'"),
        ({"catalog": "lake"}, "there is no catalog 'lake'; no lancekeep.toml names one"),
        ({"unsafe": "maybe"}, "give 'true' or 'false'"),
    ],
)
def test_property_that_cannot_be_honoured_is_refused(properties: dict[str, str], message: str) -> None:
    for read in (ConnectionConfig.from_properties, ConnectionConfig.resolve):
        with pytest.raises(lancekeep.InvalidInput) as refused:
            read(properties)
        assert message in str(refused.value)
        assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("LANCEKEEP_COMIT_STORE", "unknown variable LANCEKEEP_COMIT_STORE; did you mean LANCEKEEP_COMMIT_STORE?"),
        ("LANCEKEEP_STORE__PASSWORD", "unknown variable LANCEKEEP_STORE__PASSWORD"),
        ("LANCEKEEP_UNSAFE", "(LANCEKEEP_UNSAFE); give 'true' or 'false'"),
    ],
)
def test_variable_that_cannot_be_honoured_is_refused(
    monkeypatch: pytest.MonkeyPatch, variable: str, message: str
) -> None:
    monkeypatch.setenv(variable, "x")
    with pytest.raises(lancekeep.InvalidInput) as refused:
        lancekeep.connect("lake")
    assert message in str(refused.value)


def test_variables_of_other_programs_and_empty_ones_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LANCEKEEP_PORT_80_TCP", "LANCEKEEP_SERVICE_HOST", "LANCEKEEP_NO_SKIP"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("LANCEKEEP_COMMIT_STORE", "")
    assert ConnectionConfig.resolve({"root": "lake"}) == ConnectionConfig(root="lake")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[sever]\nport = 1", "unknown property 'sever.port'; did you mean 'server.'"),
        ("comit_store = 'x'", "unknown property 'comit_store'; did you mean 'commit_store'"),
        ("[catalogs.lake]\nmode = 'v2'", "[catalogs.lake] has no root"),
        ("[catalogs.lake]\nroot = 'a'\nrot = 'b'", "[catalogs.lake]: unknown property 'rot'; did you mean 'root'"),
        ("catalogs = 'lake'", "holds one table for each catalog"),
        ("catalog = 'lake'", "not in a file"),
        ("storage_options.a = ['x']", "storage_options.a is a list; give text, a number or a boolean"),
        (f"[storage_options]\nkey = '{SECRET}\n", "is not a TOML file"),
        (f"[storage_options]\nkey = '{SECRET}\udcff'\n", "it is not UTF-8"),
        ("unsafe = 'maybe'", "give 'true' or 'false'"),
    ],
)
def test_file_that_cannot_be_honoured_is_refused(nowhere: Path, content: str, message: str) -> None:
    file = nowhere / "lancekeep.toml"
    file.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(lancekeep.InvalidInput) as refused:
        ConnectionConfig.resolve({"root": "lake"})
    assert message in str(refused.value)
    assert str(file) in str(refused.value)
    error: BaseException | None = refused.value
    while error is not None:
        assert SECRET not in repr(error)
        error = error.__cause__


def test_named_file_that_is_missing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANCEKEEP_CONFIG", "/missing/lancekeep.toml")
    with pytest.raises(lancekeep.InvalidInput, match=r"cannot read /missing/lancekeep\.toml: No such file"):
        lancekeep.connect("lake")


# -- secrets, and what crosses processes ---------------------------------------------------------------------------


def test_properties_round_trip() -> None:
    config = ConnectionConfig(
        root="lake",
        mode="v2",
        commit_store="redis://cache/0",
        storage_options={"aws_region": "x"},
        commit_store_options={"password": SECRET},
        committer="ada",
        inline_optimization=True,
        unsafe=True,
        vend_input_storage_options=False,
    )
    assert ConnectionConfig.from_properties(config.as_properties()) == config
    assert ConnectionConfig.from_properties(ConnectionConfig(root="lake").as_properties()) == ConnectionConfig(
        root="lake"
    )


def test_repr_shows_no_secret() -> None:
    config = ConnectionConfig.from_properties(
        {
            "root": f"s3://{SECRET}@bucket/lake",
            "commit_store": f"redis://ada:{SECRET}@cache:6379/0?password={SECRET}",
            "storage.aws_secret_access_key": SECRET,
            "commit_store.password": SECRET,
        }
    )
    shown = repr(config)
    assert SECRET not in shown
    for name in ("s3://bucket/lake", "redis://cache:6379/0", "aws_secret_access_key", "password", "'argument'"):
        assert name in shown
    assert SECRET not in repr(ConnectionConfig(commit_store=SECRET))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:a/b@host/0", "redis://…"),
        ("redis://:a?b@host/0", "redis://…"),
        ("redis://:a#b@host/0", "redis://…"),
        ("redis://host/0?password=a@b", "redis://…"),
        ("redis+sentinel://u:p@a:1,b:2/0", "redis+sentinel://a:1,b:2/0"),
        ("./lake", "./lake"),
    ],
)
def test_public_url_shows_no_part_of_a_password(url: str, shown: str) -> None:
    assert public_url(url) == shown


# -- public doors --------------------------------------------------------------------------------------------------


def test_connect_without_a_root_opens_the_configured_catalog(nowhere: Path) -> None:
    (nowhere / "lancekeep.toml").write_text("root = 'lake'\ncommit_store = 'memory://configured'")
    catalog = lancekeep.connect()
    assert catalog.root_uri == f"file://{nowhere}/lake"
    assert directory_of(catalog).ledger.managed
    assert lancekeep.DirectoryNamespace().catalog.root_uri == catalog.root_uri
    assert not directory_of(lancekeep.connect("other")).ledger.managed
    named = lancekeep.connect(impl="dir", properties={"dir.root": "third"})
    assert named.root_uri == f"file://{nowhere}/third"


def test_connect_without_any_root_says_where_to_give_one() -> None:
    with pytest.raises(lancekeep.InvalidInput, match=r"no catalog is named.* LANCEKEEP_ROOT, or write root = '…'"):
        lancekeep.connect()


def test_argument_repeated_as_a_property_is_refused() -> None:
    with pytest.raises(lancekeep.InvalidInput, match="'root' is both an argument and a property"):
        lancekeep.connect("lake", properties={"root": "other"})


def test_error_names_the_settings_that_no_argument_gave(nowhere: Path) -> None:
    file = nowhere / "lancekeep.toml"
    file.write_text("root = 'lake'\ncommit_store = 'sqlit:///x.db'")
    with pytest.raises(lancekeep.InvalidInput) as refused:
        lancekeep.connect()
    assert refused.value.__notes__ == [
        f"Settings that were not given as arguments: commit_store ({file}), root ({file})"
    ]
