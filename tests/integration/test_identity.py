"""Files outside of a catalog's root belong to the catalog whose identity they carry, and to no other."""

from __future__ import annotations

import json
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import lance
import lance_namespace
import pyarrow as pa
import pytest
from click.testing import CliRunner

import lancekeep
from lancekeep.application.catalog import directory_of, services_of
from lancekeep.application.upkeep.bases import BASE_MARKER, BASES_PROPERTY
from lancekeep.domain.catalog import SetProperties
from lancekeep.domain.identity import IDENTITY_PROPERTY, Identity
from lancekeep.entrypoints.cli import lancekeep as lancekeep_command

MODES = ("compatible", "v2", "v1")
NOW = timedelta(0)


@attrs.frozen
class Site:
    """A directory with catalogs that share a base."""

    at: Path
    mode: str = "compatible"

    @property
    def base(self) -> Path:
        return self.at / "cold"

    def connect(self, name: str = "lake") -> lancekeep.Catalog:
        return lancekeep.connect(str(self.at / name), mode=self.mode)

    def tiered(self, *values: int) -> lancekeep.Catalog:
        """Return a new catalog ``lake`` with a table whose only data file lies at the base."""
        catalog = self.connect()
        catalog.write("t", rows(*values))
        assert catalog.upkeep.move_fragments("t", NOW, str(self.base)).files == 1
        return catalog

    def overwritten(self, catalog: lancekeep.Catalog, *values: int) -> lancekeep.CleanupReport:
        """Replace the rows of a table, and clean up its earlier versions."""
        catalog.write("t", rows(*values), "overwrite")
        return catalog.upkeep.cleanup(0, grace=0)

    def rename(self, name: str, new: str) -> None:
        (self.at / name).rename(self.at / new)

    def copies(self) -> set[Path]:
        return set(self.base.glob("*/data/*"))

    def markers(self) -> list[str]:
        return [path.read_text() for path in sorted(self.base.glob(f"*/{BASE_MARKER}"))]


@pytest.fixture(params=MODES)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    return Site(tmp_path, request.param)


@pytest.fixture
def one(tmp_path: Path) -> Site:
    return Site(tmp_path)


def rows(*values: int) -> pa.Table:
    return pa.table({"a": pa.array(values, pa.int64())})


def values(catalog: lancekeep.Catalog, version: int | None = None) -> list[int]:
    found = lance.dataset(services_of(catalog).uri(catalog.find_table("t")), version=version)
    return sorted(found.to_table()["a"].to_pylist())


def identity_of(catalog: lancekeep.Catalog) -> Identity:
    found = catalog.upkeep.identity()
    assert found is not None
    return found


def reasons(report: lancekeep.CleanupReport) -> list[str]:
    return [skipped.reason for skipped in report.skipped]


def test_catalogs_with_equal_roots_keep_each_others_files(site: Site) -> None:
    site.tiered(1, 2)
    first = site.copies()
    site.rename("lake", "first host")
    second = site.tiered(3)
    assert len(site.copies()) == 2
    assert site.overwritten(second, 4).skipped == ()
    assert site.copies() == first
    site.rename("lake", "second host")
    site.rename("first host", "lake")
    assert values(site.connect()) == [1, 2]
    site.overwritten(site.connect(), 5)
    assert site.copies() == set()


def test_new_catalog_at_the_root_of_a_moved_one_keeps_its_files(site: Site) -> None:
    site.tiered(1, 2)
    before = site.copies()
    site.rename("lake", "archive")
    site.overwritten(site.tiered(3), 4)
    assert site.copies() == before
    archive = site.connect("archive")
    assert values(archive) == [1, 2]
    identity = identity_of(archive)
    with pytest.raises(lancekeep.Refused, match=r"adopt_identity\(original=True\)"):
        archive.upkeep.move_fragments("t", NOW, str(site.base), dry_run=True)
    with pytest.raises(lancekeep.Refused, match=r"adopt_identity\(original=True\)"):
        archive.upkeep.move_fragments("t", NOW, str(site.base))
    [reason] = reasons(site.overwritten(archive, 5))
    assert "adopt_identity(original=True)" in reason
    assert site.copies() == before
    for _ in range(2):
        assert archive.upkeep.adopt_identity(original=True) == Identity(identity.id, archive.root_uri)
    assert site.overwritten(archive, 6).skipped == ()
    assert site.copies() == set()
    archive.upkeep.move_fragments("t", NOW, str(site.base))
    assert len(site.copies()) == 1
    assert values(archive) == [6]


def test_copy_of_a_catalog_leaves_the_files_to_the_original(site: Site) -> None:
    original = site.tiered(1, 2)
    before = site.copies()
    shutil.copytree(site.at / "lake", site.at / "copy")
    copy = site.connect("copy")
    with pytest.raises(lancekeep.Refused, match=r"copied or moved"):
        copy.upkeep.move_fragments("t", NOW, str(site.base))
    assert len(reasons(site.overwritten(copy, 3))) == 1
    with pytest.raises(lancekeep.Refused, match="still has the identity, so this catalog is a copy"):
        copy.upkeep.adopt_identity(original=True)
    assert site.copies() == before
    adopted = copy.upkeep.adopt_identity()
    assert (adopted.id != identity_of(original).id, adopted.root) == (True, copy.root_uri)
    assert site.overwritten(copy, 4).skipped == ()
    copy.upkeep.move_fragments("t", NOW, str(site.base))
    site.overwritten(copy, 6)
    assert site.copies() == before
    assert values(original) == [1, 2]
    assert site.overwritten(original, 5).skipped == ()
    assert site.copies() == set()


def test_copy_reads_shared_files_until_it_has_moved_them(one: Site) -> None:
    one.tiered(1, 2)
    shutil.copytree(one.at / "lake", one.at / "copy")
    copy = one.connect("copy")
    copy.upkeep.adopt_identity()
    assert copy.upkeep.move_fragments("t", NOW, str(one.base)).files == 1
    one.overwritten(one.connect(), 3)
    assert values(copy) == [1, 2]


def test_only_one_of_two_originals_owns_the_files(one: Site) -> None:
    first = one.tiered(1, 2)
    before = one.copies()
    shutil.copytree(one.at / "lake", one.at / "moved")
    one.rename("lake", "out of sight")
    one.connect("moved").upkeep.adopt_identity(original=True)
    one.rename("out of sight", "lake")
    first.write("t", rows(6), "append")
    with pytest.raises(lancekeep.Refused, match="has taken the directory over"):
        first.upkeep.move_fragments("t", NOW, str(one.base))
    [reason] = reasons(one.overwritten(one.connect(), 3))
    assert "has the same identity and has taken the directory over" in reason
    assert one.copies() == before
    assert values(one.connect("moved")) == [1, 2]


def test_marker_without_identity_is_kept_until_it_is_adopted(site: Site) -> None:
    catalog = site.tiered(1, 2)
    before = site.copies()
    for marker in site.base.glob(f"*/{BASE_MARKER}"):
        marker.write_text(catalog.root_uri)
    other = site.base / "other"
    shutil.copytree(next(iter(before)).parent, other / "data")
    (other / BASE_MARKER).write_text(f"{catalog.root_uri}2")
    [reason] = reasons(site.overwritten(catalog, 3))
    assert "has no identity" in reason
    assert site.copies() > before
    catalog.upkeep.adopt_identity(original=True)
    assert site.overwritten(catalog, 4).skipped == ()
    assert {path.parents[1].name for path in site.copies()} == {"other"}
    assert site.markers().count(identity_of(catalog).text()) == 1


def test_directory_that_another_catalog_takes_over_during_a_cleanup_is_kept(one: Site) -> None:
    catalog = one.tiered(1, 2)
    before = one.copies()
    catalog.write("t", rows(3), "overwrite")
    [marker] = one.base.glob(f"*/{BASE_MARKER}")
    identity = identity_of(catalog)

    def take_over(done: int, total: int, step: str) -> None:
        if step.startswith("removing versions"):
            marker.write_text(attrs.evolve(identity, root="elsewhere").text())

    catalog.upkeep.cleanup(0, grace=0, progress=take_over)
    assert one.copies() == before


@pytest.mark.parametrize("mode", ["compatible", "v2"])
def test_first_change_of_a_catalog_creates_its_identity(tmp_path: Path, mode: str) -> None:
    catalog = lancekeep.connect(str(tmp_path / "lake"), mode=mode)
    assert catalog.upkeep.identity() is None
    catalog.create_namespace("a")
    created = identity_of(catalog)
    assert (len(created.id), created.root) == (32, catalog.root_uri)
    catalog.write("a.t", rows(1))
    assert lancekeep.connect(str(tmp_path / "lake"), mode=mode).upkeep.identity() == created
    assert catalog.describe_namespace("").properties == {}
    assert not (tmp_path / "lake" / ".lancekeep.json").exists()


def test_catalog_of_a_native_writer_receives_an_identity_when_it_is_needed(one: Site) -> None:
    native = lance_namespace.connect("dir", {"root": str(one.at / "lake")})
    native.create_namespace(lance_namespace.CreateNamespaceRequest(id=["n"]))
    lance.write_dataset(rows(1), str(one.at / "lake" / "t.lance"), enable_v2_manifest_paths=True)
    catalog = one.connect()
    assert catalog.upkeep.move_fragments("t", NOW, str(one.base), dry_run=True).base == f"file://{one.base}"
    assert catalog.upkeep.identity() is None
    catalog.upkeep.move_fragments("t", NOW, str(one.base))
    assert one.markers() == [identity_of(catalog).text()]
    assert (
        one.connect().upkeep.identity() == Site(one.at, "v2").connect().upkeep.identity() == catalog.upkeep.identity()
    )


def test_catalog_of_a_native_writer_adopts_an_identity_as_the_original(one: Site) -> None:
    native = lance_namespace.connect("dir", {"root": str(one.at / "lake")})
    native.create_namespace(lance_namespace.CreateNamespaceRequest(id=["n"]))
    catalog = one.connect()
    assert catalog.upkeep.identity() is None
    assert catalog.upkeep.adopt_identity(original=True) == identity_of(one.connect())


@pytest.mark.parametrize("stored", ["", "{}", "[", '{"id": "", "root": "x"}', '{"id": 1, "root": "x"}', "[" * 10**5])
def test_damaged_identity_removes_nothing_until_it_is_replaced(one: Site, stored: str) -> None:
    catalog = one.tiered(1, 2)
    before = one.copies()
    directory_of(catalog).ledger.apply(lambda _: ([SetProperties({IDENTITY_PROPERTY: stored})], None))
    catalog.write("t", rows(3), "overwrite")
    for act in (
        lambda: catalog.upkeep.cleanup(0, grace=0),
        lambda: catalog.upkeep.move_fragments("t", NOW, str(one.base)),
    ):
        with pytest.raises(lancekeep.Damaged, match="identity"):
            act()
    assert one.copies() == before
    catalog.upkeep.adopt_identity()
    assert one.overwritten(catalog, 4).skipped == ()
    assert one.copies() == before


@pytest.mark.parametrize("stored", ["", "{}", "[", "[1]", "[" * 10**5])
def test_damaged_list_of_bases_removes_nothing(one: Site, stored: str) -> None:
    catalog = one.tiered(1, 2)
    before = one.copies()
    directory_of(catalog).ledger.apply(lambda _: ([SetProperties({BASES_PROPERTY: stored})], None))
    catalog.write("t", rows(3), "overwrite")
    with pytest.raises(lancekeep.Damaged, match="bases"):
        catalog.upkeep.cleanup(0, grace=0)
    assert one.copies() == before


@pytest.mark.parametrize("marker", ["", "{}", '{"id": "", "root": ""}', "{" * 10**5, "\x00"])
def test_directory_with_an_unknown_marker_is_kept(one: Site, marker: str) -> None:
    catalog = one.tiered(1, 2)
    before = one.copies()
    for path in one.base.glob(f"*/{BASE_MARKER}"):
        path.write_text(marker)
    one.overwritten(catalog, 3)
    catalog.upkeep.adopt_identity(original=True)
    one.overwritten(catalog, 4)
    assert one.copies() == before


def test_command_shows_the_identity_before_it_changes_anything(one: Site) -> None:
    before = identity_of(one.tiered(1))
    one.rename("lake", "archive")

    def run(*arguments: str) -> Any:
        line = ["adopt-identity", str(one.at / "archive"), "--json", *arguments]
        result = CliRunner().invoke(lancekeep_command, line, obj=lancekeep)
        assert result.exit_code == 0, result.output
        return json.loads(result.output)

    assert run() == {"identity": attrs.asdict(before), "root": f"{before.root[:-4]}archive", "dry_run": True}
    assert run("--original", "--yes")["identity"] == {"id": before.id, "root": f"{before.root[:-4]}archive"}
    assert run("--yes")["identity"]["id"] != before.id
