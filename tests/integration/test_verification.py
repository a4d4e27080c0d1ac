"""Verification without Spark, and the removal of fragments that cannot be read."""

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

STORE = "conditional-put://"
FRAGMENTS, ROWS = 6, 100


@pytest.fixture
def catalog(tmp_path: Path) -> lancekeep.Catalog:
    """A table of six fragments of 100 rows, five of which are deleted."""
    catalog = lancekeep.connect(str(tmp_path / "lake"), commit_store=STORE)
    for number in range(FRAGMENTS):
        rows = pa.table({"id": range(number * ROWS, (number + 1) * ROWS)})
        catalog.write("t", rows, "append" if number else "create")
    catalog.open("t").delete("id < 5")
    return catalog


def data_file(catalog: lancekeep.Catalog, fragment: int) -> Path:
    [file] = catalog.open("t").get_fragment(fragment).data_files()
    return Path(catalog.root_uri.removeprefix("file://"), "t.lance", "data", file.path)


def damage(catalog: lancekeep.Catalog) -> tuple[Path, Path, Path]:
    """Remove the file of fragment 1, and damage the footers of those of the fragments 3 and 4."""
    missing, scrambled, cut = (data_file(catalog, fragment) for fragment in (1, 3, 4))
    missing.unlink()
    content = bytearray(scrambled.read_bytes())
    content[-4:] = b"ECNA"
    scrambled.write_bytes(content)
    cut.write_bytes(cut.read_bytes()[:500])
    return missing, scrambled, cut


@pytest.mark.parametrize("deep", [False, True])
def test_verification_names_every_file_that_cannot_be_read(catalog: lancekeep.Catalog, deep: bool) -> None:
    sound = lancekeep.verify(catalog, deep=deep)
    assert (sound.problems, sound.tables[0].rows) == ((), FRAGMENTS * ROWS - 5)
    files = damage(catalog)
    report = lancekeep.verify(catalog, ["t"], deep=deep, threads=2)
    assert report.tables[0].rows == 3 * ROWS - 5
    problems = {problem.object: problem for problem in report.problems}
    for file, fragment, reason in zip(files, (1, 3, 4), ("not there", "magic", "500 bytes"), strict=True):
        problem = problems[f"data/{file.name}"]
        assert problem.fragment == fragment
        assert reason in problem.reason
        assert ".rs:" not in problem.reason
        assert problems[f"fragment {fragment}"].fragment == fragment


def test_deep_verification_names_the_file_of_a_damaged_page(catalog: lancekeep.Catalog) -> None:
    catalog.write("images", pa.table({"image": [bytes([number]) * 1000 for number in range(50)]}))
    [file] = Path(catalog.root_uri.removeprefix("file://"), "images.lance", "data").iterdir()
    content = bytearray(file.read_bytes())
    content[: len(content) // 2] = bytes(len(content) // 2)
    file.write_bytes(content)
    assert lancekeep.verify(catalog, ["images"]).problems == ()
    found = {problem.object for problem in lancekeep.verify(catalog, ["images"], deep=True).problems}
    assert found == {f"data/{file.name}", "fragment 0"}


def test_dropped_fragments_are_named_and_the_rest_is_readable(catalog: lancekeep.Catalog) -> None:
    damage(catalog)
    report = lancekeep.verify(catalog)
    lost = lancekeep.lost_rows(catalog, report)
    assert [(each.fragment, each.first, each.rows) for each in lost] == [(1, 95, 100), (3, 295, 100), (4, 395, 100)]
    assert lancekeep.drop_fragments(catalog, report) == lost
    expected = [*range(5, 100), *range(200, 300), *range(500, 600)]
    table = lance.dataset(catalog.describe_table("t").uri)
    assert table.to_table()["id"].to_pylist() == expected
    assert (table.version, catalog.open("t", version=7).count_rows()) == (8, FRAGMENTS * ROWS - 5)
    assert lancekeep.verify(catalog, deep=True).problems == ()
    with pytest.raises(lancekeep.ConcurrentModification, match="version 8; version 7 was verified"):
        lancekeep.drop_fragments(catalog, report)


def test_commands_verify_and_repair(catalog: lancekeep.Catalog) -> None:
    damage(catalog)

    def run(*arguments: str, code: int) -> Any:
        done = CliRunner().invoke(command, [*arguments, "--json", "--commit-store", STORE], obj=lancekeep)
        assert done.exit_code == code, done.output
        return json.loads(done.stdout)

    root = catalog.root_uri.removeprefix("file://")
    assert run("verify", root, code=1)["tables"][0]["rows"] == 295
    plan = run("repair", root, "--drop-fragments", code=1)
    assert ([each["fragment"] for each in plan["lost"]], plan["applied"]) == ([1, 3, 4], False)
    assert catalog.describe_table("t").version == 7
    assert run("repair", root, "--drop-fragments", "--yes", code=0)["lost"] == plan["lost"]
    assert run("verify", root, "--deep", code=0)["problems"] == []
