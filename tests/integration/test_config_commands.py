"""`lancekeep config init`: ask, check the stores, and write the file."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import lancekeep
from lancekeep.entrypoints.cli import lancekeep as command


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    return tmp_path


def init(*options: str, answers: str | None = None) -> Result:
    return CliRunner().invoke(command, ["config", "init", *options], obj=lancekeep, input=answers)


GIVEN = ("--root", "lake", "--commit-store", "conditional-put://", "--yes")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("config", "console"):
        monkeypatch.setattr(f"lancekeep.entrypoints.cli.{module}.can_ask", lambda: True)


@pytest.mark.usefixtures("terminal")
def test_answers_are_written_and_make_the_default_catalog(home: Path) -> None:
    told = init(answers=f"./lake\nsqlite://{home}/commits.db\n\ny\n")
    assert told.exit_code == 0, told.output
    assert tomllib.loads((home / "lancekeep.toml").read_text()) == {
        "root": f"{home}/lake",
        "commit_store": f"sqlite://{home}/commits.db",
    }
    assert not list(home.glob("lake/*"))
    with lancekeep.connect() as catalog:
        assert catalog.root_uri == f"file://{home}/lake"
        catalog.create_namespace("ml")
    assert CliRunner().invoke(command, ["ls", "-o", "csv"], obj=lancekeep).stdout == "name,kind\nml,namespace\n"


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("answers", ["./lake\nconditional-put://\n\nn\n", "./lake\n"])
def test_refused_or_unfinished_dialogue_writes_nothing(home: Path, answers: str) -> None:
    init(answers=answers)
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("missing", [0, 2, 4])
def test_without_a_terminal_every_answer_is_needed(home: Path, missing: int) -> None:
    given = GIVEN[:missing] + GIVEN[missing + (2 if missing < 4 else 1) :]
    told = init(*given)
    assert (told.exit_code, "Nothing was changed" in told.stderr) == (1, True), told.output
    assert list(home.iterdir()) == []


def test_file_is_replaced_only_if_asked_for(home: Path) -> None:
    file = home / "lancekeep.toml"
    file.write_text('root = "other"\n')
    refused = init(*GIVEN)
    assert (refused.exit_code, "exists" in refused.stderr) == (1, True)
    assert file.read_text() == 'root = "other"\n'
    assert init(*GIVEN, "--overwrite").exit_code == 0
    assert tomllib.loads(file.read_text())["root"] == f"{home}/lake"
    assert [each.name for each in home.iterdir() if each.name.startswith(".")] == []


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize(("answer", "root"), [("y", "lake"), ("n", "other")])
def test_file_is_replaced_after_a_question(home: Path, answer: str, root: str) -> None:
    (home / "lancekeep.toml").write_text(f'root = "{home}/other"\n')
    init(*GIVEN, answers=f"{answer}\n")
    assert tomllib.loads((home / "lancekeep.toml").read_text())["root"] == f"{home}/{root}"


def test_named_catalog_is_added_to_the_file(home: Path) -> None:
    (home / "lancekeep.toml").write_text('# ours\nroot = "other"\n')
    assert init(*GIVEN, "--name", "prod").exit_code == 0
    text = (home / "lancekeep.toml").read_text()
    assert text.startswith('# ours\nroot = "other"\n')
    assert tomllib.loads(text)["catalogs"] == {
        "prod": {"root": f"{home}/lake", "commit_store": "conditional-put://"},
    }
    assert init(*GIVEN, "--name", "prod").exit_code == 1
    assert (home / "lancekeep.toml").read_text() == text


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--commit-store", "redis://:hunter2@cache/0"),
        ("--commit-store", "redis://ada:hunter2@cache/0"),
        ("--commit-store", "dynamodb://t?aws_secret_access_key=hunter2"),
        ("--root", "s3://id:hunter2@bucket/lake"),
        ("--root", "s3://bucket/lake?token=hunter2"),
    ],
)
def test_secret_is_neither_written_nor_shown(home: Path, option: str, value: str) -> None:
    told = init(*GIVEN, option, value)
    assert told.exit_code == 2, told.output
    assert "hunter2" not in told.output
    assert not (home / "lancekeep.toml").exists()


def test_unsafe_stores_are_not_written(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = lancekeep.Check("object store", "copy", lancekeep.Result.FAILED, "it differs")
    certificate = lancekeep.Certificate("file:///lake", "", (check,))
    monkeypatch.setattr(lancekeep, "certify", lambda *_, **__: certificate, raising=False)
    told = init(*GIVEN)
    assert (told.exit_code, "Not safe: copy: it differs. Nothing was written." in told.stderr) == (1, True)
    assert os.listdir(home) == []


def test_hostile_path_is_quoted(home: Path) -> None:
    root = 'a "quoted" [path] \\ of = #1'
    assert init("--root", root, *GIVEN[2:]).exit_code == 0
    assert tomllib.loads((home / "lancekeep.toml").read_text())["root"] == f"{home}/{root}"


def test_server_needs_no_commit_store(home: Path) -> None:
    assert init("--root", "https://lake.example.org", "--name", "prod", "--yes").exit_code == 0
    written = tomllib.loads((home / "lancekeep.toml").read_text())
    assert written == {"catalogs": {"prod": {"root": "https://lake.example.org"}}}


def test_folder_that_does_not_exist_is_refused_before_the_check(home: Path) -> None:
    told = init(*GIVEN, "--file", "absent/lancekeep.toml")
    assert (told.exit_code, "its folder does not exist" in told.stderr) == (2, True)
    assert list(home.iterdir()) == []


def test_file_with_secrets_keeps_its_permissions_and_its_link(home: Path) -> None:
    file = home / "secret.toml"
    file.write_text('root = "other"\n[storage]\nsecret_access_key = "hunter2"\n')
    file.chmod(0o600)
    (home / "lancekeep.toml").symlink_to(file)
    assert init(*GIVEN, "--name", "prod").exit_code == 0
    assert (file.stat().st_mode & 0o777, (home / "lancekeep.toml").is_symlink()) == (0o600, True)
    assert set(tomllib.loads(file.read_text())) == {"root", "storage", "catalogs"}
    assert init(*GIVEN, "--overwrite").exit_code == 0
    assert (file.stat().st_mode & 0o777, tomllib.loads(file.read_text())["root"]) == (0o600, f"{home}/lake")


@pytest.mark.parametrize("catalogs", ['catalogs = {dev = {root = "x"}}', 'catalogs = "dev"'])
def test_section_that_the_file_cannot_hold_is_refused(home: Path, catalogs: str) -> None:
    (home / "lancekeep.toml").write_text(f"{catalogs}\n")
    told = init(*GIVEN, "--name", "prod")
    assert (told.exit_code, "catalogs is not written as sections" in told.stderr) == (2, True), told.output
    assert (home / "lancekeep.toml").read_text() == f"{catalogs}\n"
    assert os.listdir(home) == ["lancekeep.toml"]
