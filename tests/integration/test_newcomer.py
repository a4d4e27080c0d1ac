"""Ten questions of a newcomer, each answered by one command on a fresh catalog."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner

import lancekeep
from lancekeep.entrypoints.cli import lancekeep as command

ROWS = pa.table({"id": [1, 2, 3], "name": ["ada", "bob", "cy"]})


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A catalog in which `ada` has created two tables, and `bob` has overwritten one and dropped the other."""
    home = tmp_path_factory.mktemp("newcomer")
    lancekeep.connect(str(home / "lake"), commit_store=f"sqlite://{home}/commits.db").initialize()
    for who in ("ada", "bob"):
        with lancekeep.connect(str(home / "lake"), commit_store="remembered", committer=who) as catalog:
            if who == "ada":
                catalog.create_namespace("ml")
                catalog.write("ml.features", ROWS)
                catalog.write("ml.labels", ROWS)
            else:
                catalog.write("ml.features", ROWS.slice(0, 1), "overwrite")
                catalog.drop_table("ml.labels")
    return str(home / "lake")


def answer(lake: str, line: str) -> list[dict[str, Any]]:
    name, *arguments = line.split()
    done = CliRunner().invoke(command, [name, lake, *arguments, "-o", "jsonl"], obj=lancekeep)
    assert done.exit_code == 0, f"{line}\n{done.output}"
    return [json.loads(each) for each in done.stdout.splitlines()]


def test_ten_questions_are_answered_by_ten_commands(lake: str) -> None:
    # What is here? What is in it? What are its columns? What are its last rows?
    assert answer(lake, "ls -r") == [{"name": "ml.features", "kind": "table"}]
    [described] = answer(lake, "describe ml.features")
    assert (described["rows"], described["columns"]) == (1, ["id int64", "name string"])
    assert [each["type"] for each in answer(lake, "schema ml.features")] == ["int64", "string"]
    assert answer(lake, "tail ml.features -n 1") == [{"id": 1, "name": "ada"}]

    # What changed since yesterday? Who changed it?
    changes = answer(lake, "history ml.features --since 1d")
    assert [(each["version"], each["difference"]) for each in changes] == [(2, -2), (1, 3)]
    [latest] = answer(lake, "show ml.features 2")
    assert (latest["by"], latest["operation"]) == ("bob", "Overwrite")

    # How big is it, and why? Is it healthy?
    table = Path(described["location"].removeprefix("file://"))
    costs = answer(lake, "cost ml.features")
    assert {each["what"] for each in costs} == {"latest version", "old versions", "other files"}
    assert sum(each["bytes"] for each in costs) == sum(
        each.stat().st_size for each in table.rglob("*") if each.is_file()
    )
    assert answer(lake, "fsck --deep") == []

    # Get the old rows back. Get the dropped table back.
    assert CliRunner().invoke(command, ["restore", lake, "ml.features", "1"], obj=lancekeep).exit_code == 0
    assert lance.dataset(str(table)).to_table() == ROWS
    assert CliRunner().invoke(command, ["undrop", lake, "ml.labels"], obj=lancekeep).exit_code == 0
    assert answer(lake, "head ml.labels") == ROWS.to_pylist()
