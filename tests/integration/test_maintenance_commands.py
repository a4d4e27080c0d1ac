"""The commands that look after a catalog: what they print, and how they exit."""

from __future__ import annotations

import csv
import io
import json
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import lancekeep
from lancekeep.application.catalog import directory_of
from lancekeep.domain.commit_token import CommitToken, StagedManifest
from lancekeep.domain.naming import NamingScheme
from lancekeep.entrypoints.cli import lancekeep as commands

ROWS = pa.table({"a": [1, 2, 3]})


class Lake:
    """A catalog with one table of three versions."""

    def __init__(self, directory: Path) -> None:
        self.root = str(directory / "lake")
        self.commit_store = f"sqlite://{directory}/commits.db"
        for _ in range(3):
            self.connect().write("t", ROWS, "overwrite")

    def connect(self) -> lancekeep.Catalog:
        return lancekeep.connect(self.root, commit_store=self.commit_store)

    def run(self, command: str, *arguments: str) -> Result:
        called = [command, self.root, *arguments, "--commit-store", self.commit_store]
        return CliRunner().invoke(commands, called, obj=lancekeep)

    def answer(self, command: str, *arguments: str, code: int = 0) -> Any:
        """The JSON document that a command prints, and nothing else."""
        done = self.run(command, *arguments, "--json")
        assert (done.exit_code, done.stderr) == (code, "")
        return json.loads(done.stdout)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path)


@pytest.mark.parametrize(
    "command", ["fsck", "repair", "cleanup --older-than 1d", "migrate", "optimize", "verify", "compact"]
)
def test_mistyped_root_is_reported(tmp_path: Path, command: str) -> None:
    (tmp_path / "empty").mkdir()
    for root in ("empty", "nowhere"):
        name, *arguments = command.split()
        done = CliRunner().invoke(commands, [name, str(tmp_path / root), *arguments], obj=lancekeep)
        assert done.exit_code == 3, done.output
        assert f"file://{tmp_path / root} holds neither a catalog nor a table" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_repair_shows_its_plan_before_it_acts(lake: Lake) -> None:
    assert lake.answer("fsck", "--deep") == {"findings": [], "entries": 1, "directories": 1, "tables": 1}
    catalog = lake.connect()
    root = directory_of(catalog).places.dataset_root(catalog.find_table("t"))
    directory_of(catalog).commits.rows.delete(root.base_uri, [2])
    assert lake.run("fsck").exit_code == 0
    [finding] = lake.answer("fsck", "--table", "t", code=1)["findings"]
    assert (finding["kind"], finding["object"], finding["repair"]) == ("unrecorded version", "t", "enter the row")
    shown = lake.run("repair", "--deep")
    assert shown.exit_code == 1
    assert "unrecorded" in shown.stdout
    assert "Nothing was changed. Run it again with --yes to apply." in shown.stdout
    assert directory_of(catalog).commits.rows.get(root.base_uri, 2) is None
    done = lake.answer("repair", "--deep", "--yes")
    assert (done["applied"], [finding["repaired"] for finding in done["findings"]]) == (True, [True])
    assert lake.answer("fsck", "--deep")["findings"] == []


def test_long_name_is_shown_completely(lake: Lake) -> None:
    name = f"{uuid4().hex}.lance"
    (Path(lake.root) / "__manifest" / "data" / name).touch()
    shown = lake.run("fsck")
    assert shown.exit_code == 1
    objects = (line.split("│")[2].strip() for line in shown.stdout.splitlines() if line.count("│") == 5)
    assert "".join(objects) == f"__manifest/data/{name}"
    [finding] = lake.answer("repair", "--grace", "0s", "--yes")["findings"]
    assert (finding["kind"], finding["repaired"]) == ("leftover file", True)


def test_cleanup_shows_its_plan_and_acts_with_yes(lake: Lake) -> None:
    plan = lake.answer("cleanup", "--older-than", "0s")
    assert (plan["dry_run"], plan["tables"][0]["versions"]) == (True, [1, 2])
    shown = lake.run("cleanup", "--older-than", "0s")
    assert "2 versions and 4 files would be removed" in shown.stdout
    assert len(lake.connect().versions.history("t")) == 3
    assert lake.answer("cleanup", "--older-than", "7d", "--yes")["tables"] == []
    done = lake.run("cleanup", "--older-than", "0s", "--keep", "2", "--table", "t", "--yes")
    assert (done.exit_code, "1 versions and 2 files removed" in done.stdout) == (0, True)
    assert [entry.version for entry in lake.connect().versions.history("t")] == [3, 2]


def test_cleanup_skips_and_reports_damaged_table(lake: Lake) -> None:
    catalog = lake.connect()
    latest = directory_of(catalog).commits.latest(directory_of(catalog).places.dataset_root(catalog.find_table("t")))
    assert latest is not None
    Path(f"/{latest.path}").write_bytes(b"")
    left = lake.answer("cleanup", "--older-than", "0s", "--yes", code=1)
    assert [skipped["table"] for skipped in left["skipped"]] == ["t"]
    assert lake.answer("fsck", "--deep", code=1)["findings"][0]["kind"] == "damaged head"


@pytest.mark.parametrize("span", ["7", "d", "-1d", "1y", "9999999d"])
def test_invalid_time_span_is_reported_before_the_catalog_opens(lake: Lake, span: str) -> None:
    done = lake.run("cleanup", f"--older-than={span}")
    assert done.exit_code == 2
    assert "30m, 12h, 7d" in done.stderr


def test_resolve_completes_a_commit_or_names_the_winner(lake: Lake) -> None:
    catalog = lake.connect()
    root = directory_of(catalog).places.dataset_root(catalog.find_table("t"))
    tokens = []
    for version in (2, 3):  # the content of two versions, as if each were to be the fourth
        row = directory_of(catalog).commits.get(root, version)
        assert row is not None
        content = Path(f"/{row.path}").read_bytes()
        path = f"{root.versions_key}{NamingScheme.V2.final_name(4)}-{uuid4()}"
        Path(f"/{path}").write_bytes(content)
        digest = sha256(content).hexdigest()
        staged = StagedManifest(root.base_uri, 4, path, len(content), begins=False, digest=digest)
        tokens.append(str(CommitToken(staged)))
    first = lake.answer("resolve", tokens[0])
    assert (first["outcome"], first["version"]) == ("committed", 4)
    assert lake.answer("resolve", tokens[0]) == first
    assert lake.answer("resolve", tokens[1], code=1) == {"outcome": "conflict", "winner": first["path"]}
    assert lake.run("resolve", "no token").exit_code == 2


def test_migrate_shows_which_tables_and_enters_them_with_yes(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lance.write_dataset(ROWS, f"{lake.root}/native.lance")
    assert lake.answer("migrate") == {"registered": ["native"], "skipped": [], "dry_run": True}
    assert "would be registered" in lake.run("migrate").stdout
    assert lake.answer("migrate", "--yes")["registered"] == ["native"]
    assert lake.answer("migrate")["registered"] == []


def test_optimize_builds_the_indexes(lake: Lake) -> None:
    assert lake.answer("optimize") == {"optimized": lake.root}
    assert len(lance.dataset(f"{lake.root}/__manifest").describe_indices()) == 3
    assert lake.run("optimize", "--mode", "v1").exit_code != 0


def test_drop_names_the_clones_and_needs_force(lake: Lake) -> None:
    lance.dataset(f"{lake.root}/t.lance").shallow_clone(f"{lake.root}/c.lance", reference=3)
    planned = lake.answer("drop", "t", code=1)
    assert (planned["table"], planned["clones"], planned["applied"]) == ("t", ["c"], False)
    assert "--yes --force" in lake.run("drop", "t").stdout
    refused = lake.run("drop", "t", "--yes")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "needed by c" in refused.stderr
    assert lance.dataset(f"{lake.root}/c.lance").to_table() == ROWS
    assert lake.answer("drop", "t", "--yes", "--force")["applied"]
    assert lake.answer("drop", "c", "--yes") == {
        "table": "c",
        "location": f"file://{lake.root}/c.lance",
        "clones": [],
        "kept": 0.0,
        "applied": True,
    }
    assert lake.connect().list_tables() == []
    assert lake.run("drop", "c", "--yes").exit_code == 3


def test_deregister_leaves_the_files(lake: Lake) -> None:
    assert lake.answer("deregister", "t")["applied"] is False
    assert lake.connect().list_tables() == ["t"]
    assert lake.answer("deregister", "t", "--yes")["applied"] is True
    assert lake.connect().list_tables() == []
    assert lance.dataset(f"{lake.root}/t.lance").to_table() == ROWS


def test_repair_accepts_a_loss_only_if_requested(lake: Lake) -> None:
    manifest = Path(lake.root) / "t.lance/_versions" / NamingScheme.V2.final_name(3)
    manifest.unlink()
    refused = lake.run("repair", "--table", "t", "--yes")
    assert refused.exit_code == 1
    assert "--accept-loss" in " ".join(refused.stdout.split())
    planned = lake.answer("repair", "--table", "t", "--accept-loss", code=1)
    assert [finding["repair"] for finding in planned["findings"]] == ["go back to version 2"]
    assert lake.answer("repair", "--table", "t", "--accept-loss", "--yes")["applied"]
    assert lance.dataset(f"{lake.root}/t.lance").to_table() == ROWS
    assert lake.connect().describe_table("t").version == 2
    assert lake.run("fsck", "--deep").exit_code == 0


@pytest.mark.parametrize(
    ("line", "code", "column", "expected"),
    [
        ("fsck --table t", 1, "kind", ["unrecorded version"]),
        ("repair --table t", 1, "kind", ["unrecorded version"]),
        ("cleanup --older-than 0s", 0, "kept", [1]),
        ("verify", 0, "object", []),
        ("optimize", 0, "optimized", ["LAKE"]),
        ("drop t", 0, "applied", [False]),
    ],
)
def test_reports_have_every_form(lake: Lake, line: str, code: int, column: str, expected: list[object]) -> None:
    with lake.connect() as catalog:
        root = directory_of(catalog).places.dataset_root(catalog.find_table("t"))
        directory_of(catalog).commits.rows.delete(root.base_uri, [2])
    name, *options = line.split()

    def told(form: str) -> Result:
        done = lake.run(name, *options, "-o", form)
        assert (done.exit_code, done.stderr) == (code, ""), done.output
        return done

    rows = [json.loads(each) for each in told("jsonl").stdout.splitlines()]
    assert [row[column] for row in rows] == [lake.root if each == "LAKE" else each for each in expected]
    header, *read = csv.reader(io.StringIO(told("csv").stdout))
    assert column in header
    assert len(read) == len(rows)
    assert not rows or set(header) == set(rows[0])
    streamed = pa.ipc.open_stream(told("arrow").stdout_bytes).read_all()
    assert streamed.schema.names == header
    assert [str(each) for each in streamed[column].to_pylist()] == [row[header.index(column)] for row in read]


def test_two_forms_are_refused(lake: Lake) -> None:
    assert lake.run("fsck", "--json", "-o", "csv").exit_code == 2
    assert lake.run("fsck", "--json", "-o", "json").exit_code == 0
