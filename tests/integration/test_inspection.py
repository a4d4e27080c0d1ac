"""`catalog.inspect` and `lancekeep inspect` describe the files of a table."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import attrs
import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner

import lancekeep
from lancekeep.application.catalog import services_of
from lancekeep.domain.errors import Damaged, InvalidInput, ObjectNotFound, TableNotFound, VersionNotFound
from lancekeep.entrypoints.cli import lancekeep as commands
from lancekeep.entrypoints.cli.version_picture import picture
from lancekeep.format.table_version import TableVersion

ROWS = pa.table({"a": range(50), "b": [str(number) for number in range(50)]})


class Lake:
    """A catalog with one table: two fragments, deletions and an index."""

    def __init__(self, directory: Path, commit_store: str | None) -> None:
        self.root = str(directory / "lake")
        self.options = ["--commit-store", commit_store] if commit_store else []
        self.catalog = lancekeep.connect(self.root, commit_store=commit_store)
        self.catalog.write("t", ROWS)
        self.catalog.write("t", ROWS, "append")
        dataset = self.catalog.open("t")
        dataset.delete("a in (3, 4)")
        dataset.create_scalar_index("a", "BTREE")
        self.directory = Path(services_of(self.catalog).uri(self.catalog.find_table("t")).removeprefix("file://"))

    def inspect(self, **how: Any) -> dict[str, Any]:
        return self.catalog.inspect("t", **how)

    def printed(self, *arguments: str) -> str:
        done = CliRunner().invoke(commands, ["inspect", self.root, "t", *self.options, *arguments], obj=lancekeep)
        assert done.exit_code == 0, done.output
        return done.stdout

    def names(self, directory: str) -> list[str]:
        return sorted(f"{directory}/{path.name}" for path in (self.directory / directory).iterdir())


@pytest.fixture(scope="module", params=["sqlite", "storage"])
def lake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    directory = tmp_path_factory.mktemp("inspect")
    return Lake(directory, f"sqlite://{directory}/commits.db" if request.param == "sqlite" else None)


def test_version_is_described_as_pylance_reports_it(lake: Lake) -> None:
    found = lake.inspect()
    dataset = lake.catalog.open("t")
    assert (found["kind"], found["version"]) == ("manifest", dataset.version)
    assert found["totals"] == {
        "fragments": 2, "rows": dataset.count_rows(), "deleted_rows": 4, "data_files": 2,
        "data_bytes": sum(path.stat().st_size for path in (lake.directory / "data").iterdir()),
    }  # fmt: skip
    assert found["transaction"]["operation"] == "create_index"
    assert [index["covers"] for index in found["indices"]] == [{"count": 2, "first": [0, 1]}]
    assert [field["name"] for field in found["schema"]] == ["a", "b"]
    assert found["commit_row"]["path"].endswith(found["file"])
    assert found["reader_features"] == ["deletion_files"]
    assert json.loads(lake.printed("--json")) == found
    assert [lake.inspect(version=number)["transaction"]["operation"] for number in (1, 2, 3)] == [
        "overwrite", "append", "delete",
    ]  # fmt: skip


def test_version_tells_what_it_changed_and_how_its_neighbours_conflict(lake: Lake) -> None:
    changes = [lake.inspect(version=number)["change"] for number in (1, 2, 3, 4)]
    assert [change["rows"] for change in changes] == [
        {"added": 50, "removed": 0}, {"added": 50, "removed": 0}, {"added": 0, "removed": 4},
        {"added": 0, "removed": 0},
    ]  # fmt: skip
    assert [change["fragments"] for change in changes[1:3]] == [
        {"added": 1, "removed": 0, "changed": 0}, {"added": 0, "removed": 0, "changed": 2},
    ]  # fmt: skip
    sizes = [(lake.directory / name).stat().st_size for name in lake.names("data")]
    assert sum(change["data_bytes"]["added"] for change in changes) == sum(sizes)
    told = [
        (each["version"], each["operation"], each["if_concurrent"]) for each in lake.inspect(version=2)["neighbours"]
    ]
    assert told == [(1, "overwrite", "incompatible"), (3, "delete", "compatible")]
    assert "change" in lake.printed("--version", "2")


def test_version_after_an_overwrite_has_none_of_the_former_rows(tmp_path: Path) -> None:
    catalog = lancekeep.connect(str(tmp_path / "lake"), commit_store=f"sqlite://{tmp_path}/commits.db")
    catalog.write("t", ROWS)
    catalog.write("t", ROWS.slice(0, 3), "overwrite")
    assert catalog.inspect("t")["change"]["rows"] == {"added": 3, "removed": 50}
    catalog.upkeep.cleanup(timedelta(0), grace=timedelta(0))
    found = catalog.inspect("t")
    assert "change" not in found  # the version before is gone
    assert found["neighbours"] == []


def test_picture_shows_the_fragments_of_each_version(lake: Lake, tmp_path: Path) -> None:
    lake.printed("--svg", str(tmp_path / "t.svg"))
    image = ElementTree.parse(tmp_path / "t.svg").getroot()
    groups = [group for group in image if group.get("class") == "version"]
    assert ["".join(group[0].itertext()) for group in groups] == [
        "1  overwrite +50 rows", "2  append +50 rows", "3  delete -4 rows", "4  create index",
    ]  # fmt: skip
    cells = [[part for part in group if part.get("class") == "fragment"] for group in groups]
    deleted = [sum(part.get("class") == "deleted" for cell in row for part in cell) for row in cells]
    assert [(len(row), light) for row, light in zip(cells, deleted, strict=True)] == [(1, 0), (2, 0), (2, 2), (2, 2)]
    places = [(cell[1].get("x"), cell[1].get("y")) for row in cells for cell in row]
    assert len(set(places)) == len(places)
    assert float(image.get("width", 0)) > max(float(x or 0) for x, _ in places)
    assert "the light part is the share of deleted rows" in "".join(image.itertext())


def test_files_that_moved_are_no_rows_added(tmp_path: Path) -> None:
    catalog = lancekeep.connect(str(tmp_path / "lake"))
    catalog.write("t", ROWS)
    catalog.upkeep.move_fragments("t", timedelta(0), str(tmp_path / "cold"))
    change = catalog.inspect("t")["change"]
    assert change["rows"] == {"added": 0, "removed": 0}
    assert change["fragments"] == {"added": 0, "removed": 0, "changed": 1}
    assert change["data_files"] == {"added": 1, "removed": 1}


def test_picture_has_a_stripe_for_each_file_of_a_fragment() -> None:
    files = [{"path": "a.lance"}, {"path": "b.lance", "base_id": 1}]
    version = {
        "version": 1,
        "transaction": {"operation": "merge"},
        "base_paths": [{"id": 1, "path": "s3://cold"}],
        "fragments": [{"id": 0, "physical_rows": 2, "files": files}],
    }
    image = ElementTree.fromstring(picture("t", [version], 0))
    [cell] = [part for part in image.iter() if part.get("class") == "fragment"]
    assert [part.get("fill") for part in cell[1:]] == ["#2563eb", "#ea580c"]
    assert cell[0].text == "fragment 0: 2 rows, 0 deleted; a.lance, b.lance"


def test_large_pictures_say_what_they_leave_out() -> None:
    fragments = [{"id": number, "physical_rows": 1, "files": [{"path": f"{number}.lance"}]} for number in range(150)]
    version = {
        "version": 7,
        "transaction": None,
        "base_paths": [{"id": 3, "path": "s3://cold"}],
        "fragments": fragments,
    }
    image = picture("<t>", [version], 12)
    assert "12 older versions, 30 fragments not drawn" in image
    assert "s3://cold" in image
    assert ElementTree.fromstring(image) is not None


def test_tree_shows_whole_names(lake: Lake) -> None:
    printed = lake.printed()
    assert printed.startswith("t: manifest _versions/")
    assert "totals: fragments 2, rows 96, deleted rows 4" in printed
    assert all(name.removeprefix("data/") in printed for name in lake.names("data"))
    assert "├── 0\n" not in lake.printed("--fragments", "0").partition("fragments")[2].partition("indices")[0]


def test_files_are_described(lake: Lake) -> None:
    for name in lake.names("data"):
        found = lake.inspect(file=name)
        assert (found["kind"], found["rows"], found["format"]) == ("data file", 50, "2.2")
        assert [column["rows"] for column in found["columns"]] == [50, 50]
    for name in lake.names("_deletions"):
        assert lake.inspect(file=name)["rows"] == [3, 4]
    operations = [lake.inspect(file=name)["operation"] for name in lake.names("_transactions")]
    assert operations == ["overwrite", "append", "delete", "create_index"]
    manifest = lake.inspect()
    assert lake.inspect(file=manifest["file"])["totals"] == manifest["totals"]


def test_tables_and_files_are_found_by_path_and_uri(lake: Lake) -> None:
    latest = lake.inspect()
    for place in (str(lake.directory), f"{lake.directory.as_uri()}/"):
        assert lake.catalog.inspect(place) == latest
        assert lake.catalog.inspect(place, 2)["version"] == 2
    for name in [*lake.names("data"), *lake.names("_deletions"), *lake.names("_transactions"), latest["file"]]:
        for uri in (str(lake.directory / name), (lake.directory / name).as_uri()):
            assert lake.catalog.inspect(uri) == lake.inspect(file=name)
    with pytest.raises(TableNotFound, match="neither a table of the catalog"):
        lake.catalog.inspect(f"{lake.root}/other.lance/_versions/1.manifest")
    with pytest.raises(InvalidInput, match="inside the root"):
        lake.catalog.inspect("/etc/passwd")
    with pytest.raises(InvalidInput, match="leave the file"):
        lake.catalog.inspect(str(lake.directory / latest["file"]), file=latest["file"])
    path = str(lake.directory / latest["file"])
    done = CliRunner().invoke(commands, ["inspect", lake.root, path, *lake.options, "--json"], obj=lancekeep)
    assert json.loads(done.stdout)["file"] == latest["file"]


def test_files_of_branches_are_described(tmp_path: Path) -> None:
    catalog = lancekeep.connect(str(tmp_path))
    catalog.write("t", ROWS)
    branch = catalog.open("t").create_branch("dev", None)
    lance.write_dataset(ROWS, branch, mode="append")
    manifest = min((tmp_path / "t.lance/tree/dev/_versions").glob("*.manifest"))
    found = catalog.inspect(str(manifest))
    assert (found["kind"], found["file"]) == ("manifest", f"tree/dev/_versions/{manifest.name}")


def test_staged_manifest_is_listed_and_described(lake: Lake) -> None:
    name = f"{lake.inspect()['file']}-7b1e5eaa-8371-4c00-912e-00784d3391fc"
    staged = lake.directory / name
    staged.write_bytes((lake.directory / lake.inspect()["file"]).read_bytes())
    try:
        assert lake.inspect()["staged"] == [name]
        assert lake.inspect(file=name)["version"] == 4
    finally:
        staged.unlink()


def test_fragment_is_described_with_its_row_ids(tmp_path: Path) -> None:
    catalog = lancekeep.connect(str(tmp_path / "lake"))
    source = lance.write_dataset(ROWS, str(tmp_path / "lake" / "s.lance"), enable_stable_row_ids=True)
    catalog.register_table("s", "s.lance")
    found = catalog.inspect("s", fragment=0)
    assert (found["kind"], found["live_rows"], found["row_ids"]["count"]) == ("fragment", 50, source.count_rows())
    assert found["row_ids"]["first"] == list(range(50))
    with pytest.raises(InvalidInput, match="has no fragment 9"):
        catalog.inspect("s", fragment=9)


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ({"version": 99}, VersionNotFound, "has no version 99"),
        ({"file": "data/none.lance"}, ObjectNotFound, "has no file 'data/none.lance'"),
        ({"file": "data/../../../secret"}, InvalidInput, "no path of a file below the table"),
        ({"file": "/etc/passwd"}, InvalidInput, "is no file that can be described"),
        ({"file": "_versions/../../s"}, InvalidInput, "no path of a file below the table"),
        ({"file": "data/x", "fragment": 1}, InvalidInput, "not both"),
    ],
)
def test_what_cannot_be_described_is_refused(
    lake: Lake, how: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        lake.inspect(**how)


def test_damaged_file_is_reported(lake: Lake) -> None:
    path = lake.directory / "data" / "broken.lance"
    path.write_bytes(b"LANC")
    try:
        with pytest.raises(Damaged, match=r"data/broken\.lance is not a data file"):
            lake.inspect(file="data/broken.lance")
    finally:
        path.unlink()


def test_large_manifest_is_counted_in_full_and_listed_in_part(tmp_path: Path) -> None:
    catalog = lancekeep.connect(str(tmp_path / "lake"))
    catalog.write("t", ROWS)
    name = catalog.inspect("t")["file"]
    path = Path(services_of(catalog).uri(catalog.find_table("t")).removeprefix("file://"), name)
    version = TableVersion.parse(path.read_bytes(), name)
    [fragment] = version.manifest.fragments
    many = [attrs.evolve(fragment, id=number) for number in range(2000)]
    path.write_bytes(attrs.evolve(version, manifest=attrs.evolve(version.manifest, fragments=many)).serialize())
    found = catalog.inspect("t", file=name, most_fragments=3)
    assert (found["totals"]["fragments"], found["totals"]["rows"]) == (2000, 100_000)
    assert [fragment["id"] for fragment in found["fragments"]] == [0, 1, 2]
