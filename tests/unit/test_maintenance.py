"""The findings and repairs of fsck, and the files that it never touches."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from memory_catalogs import DATA, MANIFEST, STAGED, TRANSACTION, World

import lancekeep
from lancekeep.adapters.object_stores.local import LocalObjectStore
from lancekeep.application.catalog import directory_of
from lancekeep.application.upkeep.fsck import FsckReport, Kind
from lancekeep.domain.catalog import Put
from lancekeep.domain.commit import Committed
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import ManifestEntry
from lancekeep.domain.table import DEREGISTERED_MARKER, RESERVED_MARKER, Table

HOUR = timedelta(hours=1)


@pytest.fixture
def world() -> World:
    return World()


def found(report: FsckReport) -> list[tuple[Kind, str]]:
    return [(finding.kind, finding.object) for finding in report.findings]


def test_sound_catalog_has_no_findings_and_is_unchanged(world: World) -> None:
    world.catalog.create_namespace("a")
    world.catalog.declare_table("a.t")
    world.catalog.declare_table("t", location="deep/below/t")
    world.files("u.lance", MANIFEST)
    world.enter("u", "u.lance", listed=True)
    world.files("__manifest", MANIFEST)
    before = world.stored()
    report = world.fsck(repair=True, grace=timedelta(0), remove_tables=True)
    assert found(report) == []
    assert (report.entries, report.directories) == (4, 3)
    assert str(report) == "4 entries and 3 directories: 0 findings"
    assert world.stored() == before


@pytest.mark.parametrize(
    ("directory", "names"),
    [
        ("0a1b2c3d_t", [RESERVED_MARKER]),
        ("0a1b2c3d_a$t", [DATA, TRANSACTION]),
        ("0a1b2c3d_t", [STAGED]),
        ("t.lance", [RESERVED_MARKER]),
        ("t.lance", [DEREGISTERED_MARKER]),
        ("t.lance", [DEREGISTERED_MARKER, DATA]),
        ("places", [f"t/{RESERVED_MARKER}"]),
    ],
)
def test_leftover_of_an_operation_is_removed_after_the_grace_period(
    world: World, directory: str, names: list[str]
) -> None:
    world.files(directory, *names)
    stored = world.stored()
    world.time += HOUR - timedelta(seconds=1)
    young = world.fsck(repair=True)
    assert found(young) == [(Kind.UNREFERENCED, directory)]
    assert (young.findings[0].repair, young.findings[0].repaired) == ("", False)
    assert "younger than 1:00:00" in str(young)
    world.time += timedelta(seconds=1)
    looked = world.fsck()
    assert str(looked).endswith("; repair: remove the directory")
    assert world.stored() == stored
    assert str(world.fsck(repair=True)).endswith("; repaired: remove the directory")
    assert world.stored() == []
    assert found(world.fsck()) == []


def test_youngest_object_determines_the_age_of_a_directory(world: World) -> None:
    world.files("0a1b2c3d_t", "data/a.lance")
    world.time += 2 * HOUR
    world.files("0a1b2c3d_t", "data/b.lance")
    world.fsck(repair=True)
    assert len(world.stored()) == 2


def test_object_of_unknown_age_is_kept(world: World) -> None:
    world.files("0a1b2c3d_t", RESERVED_MARKER)
    world.objects._modified.clear()
    world.time += 1000 * HOUR
    assert not world.fsck(repair=True).findings[0].repaired
    assert world.fsck(repair=True, grace=timedelta(0)).findings[0].repaired


@pytest.mark.parametrize(
    ("directory", "names", "kind"),
    [
        ("0a1b2c3d_t", [MANIFEST], Kind.UNREGISTERED),
        ("0a1b2c3d_t", ["_versions/1.manifest"], Kind.UNREGISTERED),
        ("0a1b2c3d_t", [f"tree/b/{MANIFEST}"], Kind.UNREGISTERED),
        ("t.lance", [MANIFEST], Kind.UNREGISTERED),
        ("t.lance", [MANIFEST, DEREGISTERED_MARKER], Kind.DEREGISTERED),
        ("mine", [MANIFEST, DATA], Kind.UNREGISTERED),
    ],
)
def test_directory_with_a_committed_version_is_removed_only_on_request(
    world: World, directory: str, names: list[str], kind: Kind
) -> None:
    world.files(directory, *names)
    world.time += 2 * HOUR
    kept = world.fsck(repair=True)
    assert found(kept) == [(kind, directory)]
    assert not kept.findings[0].repaired
    assert len(world.stored()) == len(names)
    told = world.fsck(repair=True, remove_tables=True)
    assert told.findings[0].repaired
    assert world.stored() == []


@pytest.mark.parametrize("names", [["notes.txt"], [f"t/{MANIFEST}", "notes.txt"], ["rows/7"], ["data/x.lance"], [DATA]])
def test_directory_that_no_catalog_creates_is_never_removed(world: World, names: list[str]) -> None:
    world.files("commits", *names)
    world.time += 2 * HOUR
    report = world.fsck(repair=True, grace=timedelta(0), remove_tables=True)
    assert found(report) == [(Kind.FOREIGN, "commits")]
    assert len(world.stored()) == len(names)


FOREIGN = [
    "p.jpg",
    "2026/invoices.csv",
    "data/p.lance",
    "data/6f1c1c1e-0000-4000-8000-000000000003.csv",
    "data/report#3",
    "_versions/notes.txt",
    "_versions/3.manifest-backup",
    "_versions/notes#1",
    f"copy/{MANIFEST}",
    f"copy/{DATA}",
    ".tmp-notes",
]


@pytest.mark.parametrize("beside", [[], [RESERVED_MARKER], [DATA, STAGED], [MANIFEST, DEREGISTERED_MARKER]])
@pytest.mark.parametrize("directory", ["20260101_exports", "photos.lance", "mine"])
@pytest.mark.parametrize("foreign", FOREIGN)
def test_directory_with_a_foreign_file_is_reported_and_kept(
    world: World, directory: str, foreign: str, beside: list[str]
) -> None:
    world.files(directory, foreign, *beside)
    stored = world.stored()
    report = world.fsck(repair=True, grace=timedelta(0), remove_tables=True)
    [finding] = report.findings
    assert (finding.object, finding.repair, finding.repaired) == (directory, "", False)
    assert foreign in finding.meaning
    assert world.stored() == stored


@pytest.mark.parametrize("foreign", FOREIGN)
@pytest.mark.parametrize("location", ["t.lance", "0a1b2c3d_t"])
def test_drop_keeps_foreign_files_and_the_marker_that_hides_them(world: World, location: str, foreign: str) -> None:
    hides = [DEREGISTERED_MARKER] if location == "t.lance" else []
    world.files(location, MANIFEST, DATA, TRANSACTION, foreign, *hides)
    world.enter("t", location)
    world.catalog.drop_table("t")
    assert world.stored() == sorted(f"{location}/{name}" for name in (foreign, *hides))


def test_empty_directory_of_a_user_is_kept(tmp_path: Path) -> None:
    (tmp_path / "uploads" / "2026").mkdir(parents=True)
    report = lancekeep.connect(str(tmp_path)).upkeep.fsck(repair=True, grace=0)
    assert report.findings == ()
    assert (tmp_path / "uploads" / "2026").is_dir()


def test_siblings_of_a_nested_table_are_checked_and_the_table_is_kept(world: World) -> None:
    world.catalog.declare_table("t", location="places/here/t")
    world.files("places/here/gone", RESERVED_MARKER)
    world.files("places/there", RESERVED_MARKER)
    report = world.fsck(repair=True, grace=timedelta(0))
    assert found(report) == [(Kind.UNREFERENCED, "places/here/gone"), (Kind.UNREFERENCED, "places/there")]
    assert world.stored() == [f"places/here/t/{RESERVED_MARKER}"]


def test_table_below_thousands_of_directories_is_checked_without_error(world: World) -> None:
    location = "/".join(["d"] * 2000)
    world.enter("t", location)
    world.files(location, MANIFEST)
    world.files("d/other", RESERVED_MARKER)
    assert found(world.fsck()) == [(Kind.UNREFERENCED, "d/other")]


def test_directory_that_is_entered_after_the_check_is_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.files("0a1b2c3d_t", MANIFEST)
    world.files("0a1b2c3d_u", RESERVED_MARKER)
    look = world.manifest.view
    looks: list[Any] = []

    def register_behind_the_first_look() -> Any:
        view = look()
        if not looks:
            world.enter("t", "0a1b2c3d_t")
            world.enter("u", "0a1b2c3d_u")
        looks.append(view)
        return view

    monkeypatch.setattr(world.manifest, "view", register_behind_the_first_look)
    report = world.fsck(repair=True, grace=timedelta(0), remove_tables=True)
    assert [finding.repaired for finding in report.findings] == [False, False]
    assert len(world.stored()) == 2


def test_directory_that_changes_after_the_check_is_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.files("0a1b2c3d_t", RESERVED_MARKER)
    list_objects = world.objects.list

    def commit_behind_the_first_look(prefix: str) -> Any:
        infos = list(list_objects(prefix))
        if prefix == "lake/0a1b2c3d_t/":
            world.files("0a1b2c3d_t", MANIFEST)
        return iter(infos)

    monkeypatch.setattr(world.objects, "list", commit_behind_the_first_look)
    report = world.fsck(repair=True, grace=timedelta(0))
    assert found(report) == [(Kind.UNREFERENCED, "0a1b2c3d_t")]
    assert not report.findings[0].repaired
    assert len(list(list_objects("lake/"))) == 2


@pytest.mark.parametrize("moment", ["view", "delete"])
def test_version_committed_during_a_removal_is_kept(world: World, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """A writer can have a table open that was deregistered before its first version."""
    world.files("0a1b2c3d_t", RESERVED_MARKER)
    root = directory_of(world.catalog).places.dataset_root(Table(ObjectId(("t",)), "0a1b2c3d_t", {}))
    staged = f"{root.key}/{MANIFEST}-00000000"
    place: Any = world.manifest if moment == "view" else world.objects
    act, looks = getattr(place, moment), iter(range(100))

    def behind_the_last_look(*arguments: str) -> Any:
        if next(looks) == (1 if moment == "view" else 0):
            monkeypatch.undo()
            world.objects.put(staged, b"version 1 LANC")
            assert isinstance(
                directory_of(world.catalog).commits.commit(
                    root, 1, staged, None, branch=False, check=directory_of(world.catalog).versions.check
                ),
                Committed,
            )
        return act(*arguments)

    monkeypatch.setattr(place, moment, behind_the_last_look)
    world.fsck(repair=True, grace=timedelta(0))
    row = world.rows.latest(root.base_uri)
    assert row is not None
    assert world.objects.get(row.path) == b"version 1 LANC"
    assert world.stored() == [f"0a1b2c3d_t/{MANIFEST}"]


def test_rows_of_a_removed_table_are_deleted(world: World) -> None:
    world.files("0a1b2c3d_t", MANIFEST)
    table = world.catalog.register_table("t", "0a1b2c3d_t")
    root = directory_of(world.catalog).places.dataset_root(table)
    world.catalog.deregister_table("t")
    assert world.rows.latest(root.base_uri) is not None
    world.fsck(repair=True, grace=timedelta(0), remove_tables=True)
    assert world.rows.latest(root.base_uri) is None


def test_marker_that_hides_a_catalog_table_is_removed_after_the_grace_period(world: World) -> None:
    world.files("t.lance", MANIFEST)
    world.enter("t", "t.lance")
    world.time += 2 * HOUR
    world.files("t.lance", DEREGISTERED_MARKER)
    assert not world.fsck(repair=True).findings[0].repaired
    world.time += HOUR
    report = world.fsck(repair=True)
    assert found(report) == [(Kind.HIDDEN, "t.lance")]
    assert report.findings[0].repaired
    assert world.stored() == [f"t.lance/{MANIFEST}"]


def test_marker_of_a_concurrently_deregistered_table_is_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.files("t.lance", MANIFEST, DEREGISTERED_MARKER)
    world.enter("t", "t.lance")
    look = world.manifest.view
    looks: list[Any] = []

    def deregister_behind_the_first_look() -> Any:
        view = look()
        if not looks:
            looks.append(view)
            world.catalog.deregister_table("t")
        return view

    monkeypatch.setattr(world.manifest, "view", deregister_behind_the_first_look)
    report = world.fsck(repair=True, grace=timedelta(0))
    assert found(report) == [(Kind.HIDDEN, "t.lance")]
    assert not report.findings[0].repaired
    assert f"t.lance/{DEREGISTERED_MARKER}" in world.stored()


def test_inconsistent_entries_are_reported_and_kept(world: World) -> None:
    world.enter("gone", "gone.lance")
    world.enter("outside", "../elsewhere")
    world.enter("a$orphan", "0a1b2c3d_a$orphan")
    world.files("0a1b2c3d_a$orphan", MANIFEST)
    for object_id, location in (("t", "t.lance"), ("same", "t.lance"), ("inner", "t.lance/data/inner")):
        world.enter(object_id, location)
        world.files(location, MANIFEST)
    world.files("odd\\place", "data/x.lance")
    world.enter("odd", "odd\\place")
    stored = world.stored()
    report = world.fsck(repair=True, grace=timedelta(0), remove_tables=True)
    assert sorted(found(report), key=lambda pair: (pair[0].value, pair[1])) == [
        (Kind.DANGLING, "gone"),
        (Kind.ORPHAN, "a.orphan"),
        (Kind.OVERLAP, "inner"),
        (Kind.OVERLAP, "t"),
        (Kind.UNUSABLE, "odd"),
        (Kind.UNUSABLE, "outside"),
    ]
    assert not any(finding.repair for finding in report.findings)
    assert world.stored() == stored
    assert len(world.tables()) == 7


def test_duplicate_entries_are_reported(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.enter("t", "t.lance")
    entry = world.manifest.view().find("t")
    monkeypatch.setattr(type(world.manifest.view()), "descendants", lambda *_: iter([entry, entry]))
    assert (Kind.DUPLICATE, "t") in found(world.fsck())


def test_directory_of_an_entry_of_unknown_type_is_kept(world: World) -> None:
    world.files("0a1b2c3d_v", "view.json")
    world.manifest.apply(lambda _: ([Put(ManifestEntry("v", "view", "0a1b2c3d_v"))], None))
    assert found(world.fsck(repair=True, grace=timedelta(0), remove_tables=True)) == []
    assert len(world.stored()) == 1


def test_empty_directory_of_a_table_is_removed(tmp_path: Path) -> None:
    (tmp_path / "t.lance" / "data").mkdir(parents=True)
    report = lancekeep.connect(str(tmp_path)).upkeep.fsck(repair=True)
    assert [(finding.kind, finding.object, finding.repaired) for finding in report.findings] == [
        (Kind.EMPTY, "t.lance", True),
    ]
    assert list(tmp_path.iterdir()) == []


def test_incomplete_upload_is_removed_after_the_grace_period(tmp_path: Path) -> None:
    """The upload is alone in a directory, in a table, or in the manifest table."""
    catalog = lancekeep.connect(str(tmp_path), mode="v2")
    table = catalog.declare_table("t")
    unfinished = [tmp_path / directory / ".tmp-8f3c-1" for directory in ("mine", f"{table.location}/_versions")]
    unfinished.append(tmp_path / "__manifest" / "_versions" / ".tmp-8f3c-2")
    for path in unfinished:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    kinds = [Kind.UNREFERENCED, Kind.LEFTOVER, Kind.LEFTOVER]
    young = catalog.upkeep.fsck(repair=True, deep=True).findings
    assert [(finding.kind, finding.repair, finding.repaired) for finding in young] == [
        (kind, "", False) for kind in kinds
    ]
    old = catalog.upkeep.fsck(repair=True, deep=True, grace=0).findings
    assert [(finding.kind, finding.repaired) for finding in old] == [(kind, True) for kind in kinds]
    assert not any(path.exists() for path in unfinished)
    assert not (tmp_path / "mine").exists()
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()


def test_file_of_any_manifest_version_is_kept(tmp_path: Path) -> None:
    """The files include rewritten rows, deletions and indexes."""
    catalog = lancekeep.connect(str(tmp_path), mode="v2")
    for number in range(40):
        catalog.create_namespace(f"n{number}")
    catalog.upkeep.optimize()
    catalog.drop_namespace("n7")
    stored = sorted(tmp_path.rglob("*.*"))
    assert catalog.upkeep.fsck(repair=True, grace=0).findings == ()
    assert sorted(tmp_path.rglob("*.*")) == stored
    index = "6f1c1c1e-0000-4000-8000-000000000003"
    stray = tmp_path / "__manifest" / "_indices" / index / "page_data.lance"
    stray.parent.mkdir()
    stray.touch()
    [finding] = catalog.upkeep.fsck(repair=True, grace=0).findings
    assert (finding.object, finding.repaired) == (f"__manifest/_indices/{index}/page_data.lance", True)
    assert not stray.parent.exists()


def test_foreign_files_in_the_manifest_table_are_reported_and_kept(tmp_path: Path) -> None:
    catalog = lancekeep.connect(str(tmp_path), mode="v2")
    catalog.create_namespace("a")
    foreign = tmp_path / "__manifest" / "data" / "notes.txt"
    foreign.write_text("mine")
    [finding] = catalog.upkeep.fsck(repair=True, grace=0).findings
    assert (finding.kind, finding.object, finding.repaired) == (Kind.FOREIGN_FILE, "__manifest/data/notes.txt", False)
    assert foreign.read_text() == "mine"


def test_drop_removes_incomplete_uploads(tmp_path: Path) -> None:
    catalog = lancekeep.connect(str(tmp_path), mode="v2")
    directory = tmp_path / catalog.declare_table("t").location
    (directory / ".tmp-8f3c-1").touch()
    catalog.drop_table("t")
    assert not directory.exists()


def test_writer_retries_if_repair_removes_its_unpublished_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the catalog would name a missing file, however long the writer paused."""
    catalog = lancekeep.connect(str(tmp_path), mode="v2")
    catalog.create_namespace("before")
    create = LocalObjectStore.put_if_absent
    removed: list[str] = []

    def after_a_repair(self: LocalObjectStore, key: str, content: bytes) -> bool:
        if not removed:
            [finding] = catalog.upkeep.fsck(repair=True, grace=0).findings
            assert (finding.kind, finding.repaired) == (Kind.LEFTOVER, True)
            removed.append(finding.object)
        return create(self, key, content)

    monkeypatch.setattr(LocalObjectStore, "put_if_absent", after_a_repair)
    sleeper = lancekeep.connect(str(tmp_path), mode="v2")
    sleeper.create_namespace("late")
    assert removed[0].startswith("__manifest/data/")
    for one in (catalog, sleeper, lancekeep.connect(str(tmp_path), mode="v2")):
        assert one.list_namespaces() == ["before", "late"]
    assert catalog.upkeep.fsck(grace=0).findings == ()


def test_table_reached_by_symbolic_link_is_reported_and_its_target_is_kept(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / RESERVED_MARKER).touch()
    catalog = lancekeep.connect(str(tmp_path / "lake"), mode="v2")
    directory = tmp_path / "lake" / catalog.declare_table("t").location
    (directory / RESERVED_MARKER).unlink()
    for link in (directory, tmp_path / "lake" / "0a1b2c3d_u"):
        if link.exists():
            link.rmdir()
        link.symlink_to(tmp_path / "elsewhere")
    report = catalog.upkeep.fsck(repair=True, grace=0, remove_tables=True)
    assert found(report) == [(Kind.UNUSABLE, "t")]
    assert (tmp_path / "elsewhere" / RESERVED_MARKER).exists()


def test_negative_grace_period_is_refused(world: World) -> None:
    with pytest.raises(InvalidInput, match="at least 0"):
        world.catalog.upkeep.fsck(grace=-1)
