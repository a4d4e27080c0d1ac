"""What `lancekeep cost` predicts is what the clean-up frees."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner

import lancekeep
from lancekeep.entrypoints.cli import lancekeep as command


def size(directory: Path) -> int:
    """The bytes of the files with random names; records of digests are merged by a clean-up."""
    files = (each for each in directory.rglob("*") if each.is_file())
    return sum(each.stat().st_size for each in files if not re.search("[.]lancekeep|_refs|_hint", str(each)))


def costs(root: str, *arguments: str) -> list[dict[str, Any]]:
    done = CliRunner().invoke(command, ["cost", root, *arguments, "-o", "jsonl"], obj=lancekeep)
    assert done.exit_code == 0, done.output
    return [json.loads(each) for each in done.stdout.splitlines()]


def rows(first: int, last: int) -> pa.Table:
    return pa.table({"id": range(first, last), "text": [f"row {n}" * 50 for n in range(first, last)]})


@pytest.mark.parametrize("store", ["", "sqlite"])
def test_what_each_holder_keeps_is_freed_when_it_is_removed(tmp_path: Path, store: str) -> None:
    root = str(tmp_path / "lake")
    with lancekeep.connect(root, commit_store=f"sqlite://{tmp_path}/c.db" if store else None) as catalog:
        catalog.create_namespace("ml")
        for number in range(5):
            catalog.write("ml.t", rows(number, number + 50), "overwrite" if number else "create")
            if number == 0:  # an orphan that is older than the latest manifest
                table = tmp_path / "lake" / catalog.find_table("ml.t").location
                (table / "data" / f"{'01' * 12}{'ab' * 13}.lance").write_bytes(b"orphan" * 1000)
        catalog.tags.create("ml.t", "second", 2)
        catalog.clone("ml.t", "ml.copy", 3)
        catalog.branches.create("ml.t", "trial", None, 4)

        found = costs(root, "ml.t")
        assert sum(each["bytes"] for each in found) == sum(
            each.stat().st_size for each in table.rglob("*") if each.is_file()
        )
        keeps = {(each["what"], each["name"] or ""): each["bytes"] for each in found}
        assert keeps["orphans", ""] == 6000

        def frees(*holders: tuple[str, str]) -> None:
            before, predicted = size(table), sum(keeps[holder] for holder in holders)
            catalog.upkeep.cleanup(timedelta(0), grace=timedelta(0), tables=["ml.t"])
            assert before - size(table) == predicted > 1000

        frees(("old versions", ""), ("orphans", ""))
        catalog.tags.delete("ml.t", "second")
        frees(("tag", "second"))
        catalog.drop_table("ml.copy", keep=0)
        frees(("clone", "ml.copy"))
        before = size(table)
        catalog.branches.delete("ml.t", "trial")
        catalog.upkeep.cleanup(timedelta(0), grace=timedelta(0), tables=["ml.t"])
        assert before - size(table) == keeps["branch", "trial"]
        assert {each["what"] for each in costs(root, "ml.t")} <= {"latest version", "other files"}


def test_file_that_two_holders_need_is_freed_by_neither_alone(tmp_path: Path) -> None:
    root = str(tmp_path / "lake")
    with lancekeep.connect(root) as catalog:
        catalog.write("t", rows(0, 50))
        catalog.write("t", rows(0, 50), "overwrite")
        catalog.tags.create("t", "a", 1)
        catalog.tags.create("t", "b", 1)
    found = {each["what"]: each for each in costs(root, "t")}
    assert found.keys() - {"other files"} == {"latest version", "several of these"}
    versions = costs(root, "t", "--versions")
    assert [each["kept by"] for each in versions] == [["tag a", "tag b"], ["latest version 2"]]
    assert [each["bytes"] for each in versions] == [each["only here"] for each in versions]


def test_catalog_is_summed_by_table(tmp_path: Path) -> None:
    root = str(tmp_path / "lake")
    with lancekeep.connect(root) as catalog:
        catalog.initialize()
        for name in ("a", "b", "c"):
            catalog.write(name, rows(0, 10))
        catalog.drop_table("b")
        catalog.deregister_table("c")
        places = [tmp_path / "lake" / name for name in ("a.lance", "b.lance", "c.lance")]
    found = costs(root)
    assert [(each["table"], each["state"]) for each in found] == [
        ("a", None),
        ("b", "dropped"),
        ("c.lance", "no entry"),
    ]
    for row, place in zip(found, places, strict=True):
        assert row["bytes"] == sum(each.stat().st_size for each in place.rglob("*") if each.is_file())
    assert found[0]["bytes"] == sum(found[0][name] for name in ("latest", "kept", "old", "orphans", "other"))


def test_what_the_clean_up_keeps_is_not_predicted_to_be_freed(tmp_path: Path) -> None:
    root = str(tmp_path / "lake")
    with lancekeep.connect(root, commit_store="conditional-put://") as catalog:
        catalog.initialize()
        for number in range(3):
            catalog.write("t", rows(number, number + 50), "overwrite" if number else "create")
            if number == 1:
                catalog.clone("t", "copy")
        table = tmp_path / "lake" / catalog.find_table("t").location
        fragments = lance.fragment.write_fragments(rows(0, 90), str(table))
        operation = lance.LanceOperation.Append(fragments)
        lance.LanceDataset.commit(str(table), operation, read_version=1, detached=True)
        catalog.drop_table("copy", keep=timedelta(days=1))

        found = {each["what"]: each for each in costs(root, "t")}
        assert found.keys() == {"latest version", "clone", "detached versions", "old versions", "other files"}
        assert (found["clone"]["name"], found["clone"]["freed by"]) == (
            "copy (dropped)",
            "lancekeep purge copy; cleanup",
        )
        assert found["detached versions"]["freed by"] is None

        def cleaned() -> int:
            before = size(table)
            catalog.upkeep.cleanup(timedelta(0), grace=timedelta(0), tables=["t"])
            return before - size(table)

        assert cleaned() == found["old versions"]["bytes"]
        assert cleaned() == 0
        catalog.purge("copy")
        assert cleaned() == found["clone"]["bytes"] > 1000


def test_versions_of_a_protected_table_are_freed_without_the_protection(tmp_path: Path) -> None:
    root = str(tmp_path / "lake")
    with lancekeep.connect(root) as catalog:
        catalog.create_namespace("ml")
        for number in range(4):
            catalog.write("ml.t", rows(number, number + 50), "overwrite" if number else "create")
        catalog.tags.create("ml.t", "third", 3)
        catalog.protect("ml")
        table = tmp_path / "lake" / catalog.find_table("ml.t").location

        found = {each["what"]: each for each in costs(root, "ml.t")}
        assert found.keys() == {"latest version", "tag", "protection", "other files"}
        assert (found["protection"]["name"], found["protection"]["freed by"]) == (
            "ml",
            "lancekeep unprotect ml; cleanup",
        )
        for protected in (True, False):
            if not protected:
                catalog.unprotect("ml")
            before = size(table)
            catalog.upkeep.cleanup(timedelta(0), grace=timedelta(0), tables=["ml.t"])
            assert before - size(table) == (0 if protected else found["protection"]["bytes"])
        assert found["protection"]["bytes"] > 1000


def test_published_version_of_a_partition_is_kept(tmp_path: Path) -> None:
    root = str(tmp_path / "lake")
    with lancekeep.connect(root) as catalog:
        data = pa.table({"id": [1], "country": ["NL"]})
        catalog.partitions.create(data.schema, [lancekeep.PartitionBy.identity("country")]).write(data)
        (partition,) = (str(each) for each in catalog.list_all_tables())

        def add(dataset: lance.LanceDataset) -> lance.LanceDataset:
            dataset.insert(data.cast(dataset.schema), mode="append")
            return dataset

        with pytest.raises(lancekeep.ConcurrentModification, match="did not write"):  # committed, and not published
            catalog.commit_change(partition, add)
    assert [each["kept by"] for each in costs(root, partition, "--versions")] == [
        ["published version 1"],
        ["latest version 2"],
    ]


@pytest.mark.parametrize("name", ["x{y}", "a;touch pwned"])
def test_names_in_commands_are_quoted(tmp_path: Path, name: str) -> None:
    root = str(tmp_path / "lake")
    with lancekeep.connect(root) as catalog:
        catalog.initialize()
        catalog.write([name], rows(0, 10))
        catalog.write([name], rows(0, 10), "overwrite")
        catalog.tags.create([name], "first", 1)
    freed_by = [each["freed by"] for each in costs(root, name) if each["what"] == "tag"]
    assert freed_by == [f"lancekeep tag '{name}' first -d; cleanup"]
    for line, shown in (
        (["drop", root, name], f"`lancekeep undrop {root} '{name}'` brings it back"),
        (["restore", root, name, "1"], f"Undo it with `lancekeep restore {root} '{name}' 2`"),
        (["protect", root, name], f"`lancekeep unprotect {root} '{name}'`"),
        (["protect", root, ""], f"Protected the catalog. End it with `lancekeep unprotect {root} ''`"),
    ):
        told = CliRunner().invoke(command, line, obj=lancekeep)
        assert (told.exit_code, shown in told.output) == (0, True), told.output
