"""Ten questions of a newcomer to a catalog, each answered by one command; and what the set-up commands say."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

import lancekeep
from lancekeep.entrypoints.cli import lancekeep as command


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LANCEKEEP_ROOT", "lake")
    return tmp_path


def answer(line: str) -> str:
    done = CliRunner().invoke(command, line.split(), obj=lancekeep)
    assert done.exit_code == 0, f"{line}\n{done.output}"
    return done.stdout


def fill(home: Path) -> None:
    def people(*ids: int) -> pa.Table:
        return pa.table({"id": ids, "name": [f"person {number}" for number in ids]})

    store = f"sqlite://{home}/commits.db"
    with lancekeep.connect(commit_store=store, committer="ada@lab") as catalog:
        catalog.create_namespace("ml")
        catalog.write("ml.people", people(1, 2, 3))
        catalog.write("ml.people", people(4), "append")
        catalog.write("ml.people", people(9), "overwrite")


def test_each_question_has_a_command(home: Path) -> None:
    fill(home)
    assert "ml.people" in answer("ls -r")  # what is here
    assert "person 9" in answer("head ml.people")  # what is in it
    assert answer("schema ml.people -o csv").splitlines()[1:] == ["id,int64,yes,[]", "name,string,yes,[]"]  # its schema
    assert "person 9" in answer("tail ml.people -n 1")  # its last rows
    changed = answer("history ml.people --since 1d")  # what changed yesterday
    assert [line.split()[3] for line in changed.splitlines()[1:]] == ["Overwrite", "Append", "Overwrite"]
    assert "ada@lab" in answer("show ml.people 3")  # who changed it
    assert "bytes" in answer("describe ml.people")  # how big it is
    assert answer("fsck --deep")  # is it healthy: exit code 0
    differing = answer("diff ml.people 2 3 --key id -o csv").splitlines()  # what is different
    assert len(differing) == 1 + 4 + 1
    answer("restore ml.people 2")  # the old rows back
    assert answer("count ml.people") == "4\n"
    answer("drop ml.people --keep 7d --yes")
    answer("undrop ml.people")  # the dropped table back
    assert answer("count ml.people") == "4\n"


def test_difference_states_rows_columns_and_files(home: Path) -> None:
    fill(home)
    with lancekeep.connect(commit_store="remembered") as catalog:
        catalog.tags.create("ml.people", "good", 2)
        catalog.structure.add_columns("ml.people", {"twice": "id * 2"})
    shown = answer("diff ml.people good")
    members = dict(re.split(r"  +", line) for line in shown.splitlines())
    assert members["added columns"] == "twice int64"
    assert (members["rows before"], members["rows after"]) == ("4", "1")
    assert answer("diff ml.people 2 2 --key id -o jsonl") == ""


# -- the set-up ----------------------------------------------------------------------------------------------------


def test_configuration_is_shown_with_its_origin_and_without_secrets(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LANCEKEEP_ROOT")
    monkeypatch.setenv("LANCEKEEP_STORAGE__AWS_SECRET_ACCESS_KEY", "hunter2")
    (home / "lancekeep.toml").write_text(
        'root = "lake"\ncommit_store = "redis://user:hunter2@cache/0"\n[catalogs.other]\nroot = "s3://bucket/lake"\n'
    )
    shown = answer("config show -o csv")
    assert f"root,{home}/lake,{home}/lancekeep.toml" in shown
    assert "commit_store,redis://cache/0," in shown
    assert "storage.aws_secret_access_key,not shown,LANCEKEEP_STORAGE__AWS_SECRET_ACCESS_KEY" in shown
    assert "catalogs.other,s3://bucket/lake," in shown
    assert "hunter2" not in shown


def test_doctor_reports_what_is_installed_and_whether_the_catalog_opens(home: Path) -> None:
    missing = CliRunner().invoke(command, ["doctor", "-o", "csv"], obj=lancekeep)
    assert (missing.exit_code, "does not open" in missing.stdout) == (1, True)
    fill(home)
    shown = answer("doctor -o csv")
    assert f"catalog,file://{home}/lake opens," in shown
    assert "extra redis,redis " in shown


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_program_of_the_shell(shell: str) -> None:
    program = answer(f"completion {shell}")
    assert "_LANCEKEEP_COMPLETE" in program
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=program, text=True, check=True)
