"""A declared table whose name another directory gets leaves nothing in its own directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree

import lance
import pyarrow as pa
import pytest
from home_kinds import HOMES, Home, home_of

import lancekeep
from lancekeep.application.entries.clones import Clones
from lancekeep.application.upkeep.fsck import Kind

ROWS = pa.table({"x": [1]})
STORAGE = {"lancekeep.managed": "storage"}


@pytest.fixture(params=[each for each in HOMES if each != "file"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    return home_of(request.param, tmp_path, request.getfixturevalue)


@pytest.fixture
def catalog(home: Home) -> Iterator[lancekeep.Catalog]:
    """Yield a catalog with a table at ``place`` that has no entry."""
    settings = {"mode": "v2"} if "impl" not in home.settings else {}
    with home.connect(**settings) as catalog:
        catalog.declare_table("n.made", location="place")
        catalog.write("n.made", ROWS, "overwrite")
        catalog.deregister_table("n.made")
        yield catalog


def directory(catalog: lancekeep.Catalog, table: str) -> Path:
    return Path(catalog.describe_table(table).uri.removeprefix("file://"))


def findings(catalog: lancekeep.Catalog) -> list[tuple[Kind, str]]:
    return [(each.kind, each.object) for each in catalog.upkeep.fsck(deep=True, grace=0).findings]


@pytest.mark.parametrize("declared", [{}, {"properties": STORAGE}, {"location": "chosen"}])
def test_registered_table_leaves_no_directory_of_its_declaration(
    catalog: lancekeep.Catalog, declared: dict[str, object]
) -> None:
    catalog.declare_table("n.t", **declared)  # type: ignore[arg-type]
    former = directory(catalog, "n.t")
    catalog.register_table("n.t", "place", overwrite=True)
    assert not former.exists()
    assert findings(catalog) == []
    assert catalog.open("n.t").to_table() == ROWS
    catalog.declare_table("n.u", location=former.name if former.parent.name == "lake" else None)
    catalog.write("n.u", ROWS, "overwrite")
    assert catalog.open("n.u").to_table() == ROWS
    assert findings(catalog) == []


def test_directory_in_which_a_first_write_has_begun_stays(catalog: lancekeep.Catalog) -> None:
    catalog.declare_table("n.t", location="chosen")
    former = directory(catalog, "n.t")
    (former / "data").mkdir()
    (former / "data" / f"{'01' * 12}{'ab' * 13}.lance").write_bytes(b"begun")
    before = sorted(each.name for each in former.rglob("*"))
    catalog.register_table("n.t", "place", overwrite=True)
    assert sorted(each.name for each in former.rglob("*")) == before


def test_directory_of_a_table_that_has_lost_its_files_stays(catalog: lancekeep.Catalog) -> None:
    """Its rows of versions are all that tells it from a declared table."""
    catalog.declare_table("n.t", location="chosen")
    former = directory(catalog, "n.t")
    catalog.write("n.t", ROWS, "overwrite")
    for each in sorted(former.iterdir()):
        if each.is_dir():
            rmtree(each)
    assert [each.name for each in former.iterdir()] == [".lance-reserved"]
    catalog.register_table("n.t", "place", overwrite=True)
    assert former.exists()


def test_directory_that_is_a_table_stays(catalog: lancekeep.Catalog) -> None:
    catalog.write("n.t", ROWS)
    former = directory(catalog, "n.t")
    catalog.register_table("n.t", "place", overwrite=True)
    assert lance.dataset(str(former)).to_table() == ROWS


def test_directory_of_a_renamed_declaration_stays(
    home: Home, catalog: lancekeep.Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process renames the declared table while its name is registered."""
    catalog.declare_table("n.t", location="chosen")
    former = directory(catalog, "n.t")
    settings = {"mode": "v2"} if "impl" not in home.settings else {}
    with home.connect(**settings) as other:
        record = Clones.record_dataset

        def renaming(clones: Clones, location: str) -> object:
            other.rename_table("n.t", "n.v")
            return record(clones, location)

        monkeypatch.setattr(Clones, "record_dataset", renaming)
        catalog.register_table("n.t", "place", overwrite=True)
    assert former.exists()
    assert findings(catalog) == []


def test_directory_of_an_unfinished_deep_clone_stays(catalog: lancekeep.Catalog) -> None:
    """Its marker says what is copied, so that a repair finishes or removes the clone."""
    catalog.declare_table("n.t", location="chosen")
    former = directory(catalog, "n.t")
    (former / ".lance-reserved").write_bytes(b'{"source": "n.made"}')
    catalog.register_table("n.t", "place", overwrite=True)
    assert (former / ".lance-reserved").exists()
