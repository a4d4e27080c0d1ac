"""Recorded digests: every changed byte is found, and no operation leaves them behind or out of date."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner

import lancekeep
from lancekeep.entrypoints.cli import lancekeep as command

STORE = "conditional-put://"
RECORDS = ".lancekeep-digests/*.jsonl"


@attrs.frozen
class Lake:
    """A catalog with a table that has every kind of file, a branch and a tag."""

    catalog: lancekeep.Catalog
    directory: Path

    def table(self) -> Path:
        return self.directory / self.catalog.find_table("t").location

    def verified(self) -> tuple[list[str], int]:
        """Return the problems, and the number of files that were compared."""
        report = lancekeep.verify(self.catalog)
        problems = [f"{problem.object}: {problem.reason}" for problem in report.problems]
        return problems, sum(table.digests for table in report.tables)


def rows(first: int) -> pa.Table:
    return pa.table({"id": range(first, first + 100), "text": [str(number) for number in range(100)]})


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    catalog = lancekeep.connect(str(tmp_path / "lake"), commit_store=STORE)
    catalog.write("t", rows(0))
    catalog.open("t").create_scalar_index("id", "BTREE")
    catalog.open("t").delete("id = 3")
    catalog.open("t").tags.create("kept", 2)
    catalog.open("t").create_branch("b")
    catalog.open("t", branch="b").delete("id < 50")
    catalog.write("t", rows(100), "append")
    return Lake(catalog, tmp_path / "lake")


def test_all_tables_are_digested_by_one_process(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.catalog.write("u", rows(0))
    started = list[list[str]]()
    start = subprocess.Popen.__init__

    def counted(self: Any, arguments: list[str], **options: Any) -> None:
        started.append(arguments)
        start(self, arguments, **options)

    monkeypatch.setattr(subprocess.Popen, "__init__", counted)
    assert lancekeep.digest(lake.catalog).tables == 2
    assert len(started) == 1


def test_every_changed_file_is_named(lake: Lake) -> None:
    recorded = lancekeep.digest(lake.catalog)
    assert lake.verified() == ([], recorded.files)
    records = list(lake.table().rglob(RECORDS))
    paths = [file.parents[1] / json.loads(line)["file"] for file in records for line in file.read_text().splitlines()]
    assert len(paths) == recorded.recorded
    assert {path.relative_to(lake.table()).parts[0] for path in paths} == {
        *("data", "_deletions", "_indices", "_versions", "_transactions", "tree")
    }
    whole = {path: path.read_bytes() for path in paths}
    manifests = [path for path in paths if path.suffix == ".manifest"]
    for chosen in ([path for path in paths if path not in manifests], manifests):  # a manifest names the other files
        for damage in (flipped, cut):
            for path in chosen:
                path.write_bytes(damage(whole[path]))
            problems, _ = lake.verified()
            for path in chosen:
                assert any(str(path.relative_to(lake.table())) in problem for problem in problems), path
                path.write_bytes(whole[path])


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 16]) + content[middle + 1 :]


def cut(content: bytes) -> bytes:
    return content[:-1]


def test_digests_of_new_files_are_added(lake: Lake) -> None:
    lancekeep.digest(lake.catalog)
    assert lancekeep.digest(lake.catalog).recorded == 0
    lake.catalog.write("t", rows(200), "append")
    added = lancekeep.digest(lake.catalog).recorded
    assert 2 <= added <= 3  # a data file and a manifest, and a transaction file
    assert len(list(lake.table().glob(RECORDS))) == 1


def test_damaged_record_is_reported(lake: Lake) -> None:
    lancekeep.digest(lake.catalog)
    [record] = lake.table().glob(RECORDS)
    record.write_bytes(record.read_bytes().replace(b"0", b"1", 1))
    [problem] = lake.verified()[0]
    assert "is no record of digests" in problem


def cleaned(lake: Lake) -> None:
    lake.catalog.upkeep.cleanup(0, grace=0)


def cleaned_natively(lake: Lake) -> None:
    lance.dataset(str(lake.table())).cleanup_old_versions(
        timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False
    )


def relocated(lake: Lake) -> None:
    lake.catalog.upkeep.relocate("t", "archive/t")


def checked(lake: Lake) -> None:
    lake.catalog.upkeep.fsck(repair=True, deep=True, grace=0, remove_tables=True)


@pytest.mark.parametrize("operation", [cleaned, cleaned_natively, relocated, checked])
def test_digests_stay_valid(lake: Lake, operation: Callable[[Lake], None]) -> None:
    before = lancekeep.digest(lake.catalog).recorded
    operation(lake)
    problems, compared = lake.verified()
    assert problems == []
    assert before - 2 <= compared <= before  # a native clean-up removes the version at which the branch begins
    assert lake.catalog.upkeep.fsck(deep=True).findings == ()
    assert lance.dataset(str(lake.table())).count_rows() == 199


def test_renamed_table_keeps_its_digests(tmp_path: Path) -> None:
    catalog = lancekeep.connect(str(tmp_path / "lake"))
    catalog.write("t", rows(0))
    recorded = lancekeep.digest(catalog).recorded
    catalog.rename_table("t", "u")
    report = lancekeep.verify(catalog)
    assert (report.tables[0].digests, report.problems) == (recorded, ())


def test_dropped_table_leaves_no_digest(lake: Lake) -> None:
    lancekeep.digest(lake.catalog)
    directory = lake.table()
    lake.catalog.drop_table("t")
    assert not list(directory.rglob(RECORDS))
    lake.catalog.write("t", rows(0))
    assert lake.verified() == ([], 0)


def test_recreated_branch_has_no_digest_of_the_old_one(lake: Lake) -> None:
    lancekeep.digest(lake.catalog)
    lake.catalog.open("t").branches.delete("b")
    lake.catalog.open("t").create_branch("b")
    lake.catalog.open("t", branch="b").delete("id < 60")
    assert lake.verified()[0] == []


def test_number_of_a_discarded_version_can_be_used_again(lake: Lake) -> None:
    lancekeep.digest(lake.catalog)
    latest = min(lake.table().glob("_versions/*.manifest"))
    latest.write_bytes(b"no manifest")
    catalog = lancekeep.connect(str(lake.directory), commit_store=STORE)
    catalog.upkeep.fsck(tables=["t"], repair=True, accept_loss=True, grace=0)
    catalog.write("t", rows(500), "append")
    assert lancekeep.verify(catalog).problems == ()


def test_shallow_clone_records_the_files_of_its_source(lake: Lake) -> None:
    lake.catalog.clone("t", "c")
    recorded = lancekeep.digest(lake.catalog, ["c"]).recorded
    [data] = {file.path for file in lance.dataset(str(lake.table())).get_fragments()[1].data_files()}
    path = lake.table() / "data" / data
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(content)
    report = lancekeep.verify(lake.catalog)
    assert {table.table: table.digests for table in report.tables if table.digests} == {"c": recorded}
    assert any(data in problem.object for problem in report.problems)


def test_digests_are_recorded_and_compared_by_commands(lake: Lake) -> None:
    arguments = [str(lake.directory), "--json", "--commit-store", STORE]
    done = CliRunner().invoke(command, ["digest", *arguments], obj=lancekeep)
    assert done.exit_code == 0, done.output
    recorded = json.loads(done.stdout)["recorded"]
    for options, compared in (((), recorded), (("--no-digests",), 0)):
        done = CliRunner().invoke(command, ["verify", *arguments, *options], obj=lancekeep)
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["tables"][0]["digests"] == compared


def test_copy_of_a_table_is_a_whole_table(lake: Lake) -> None:
    lancekeep.digest(lake.catalog)
    shutil.copytree(lake.table(), lake.directory.parent / "copy.lance")
    assert lance.dataset(str(lake.directory.parent / "copy.lance")).count_rows() == 199
