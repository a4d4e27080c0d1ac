"""Each test damages a table, and expects fsck to report the damage and to repair it if nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from itertools import count
from pathlib import Path
from uuid import uuid4

import attrs
import lance
import pyarrow as pa
import pytest
from deployments import Deployment, bucket, s3_options
from faults import Crash, Faulty

import lancekeep
from lancekeep.adapters.object_stores import open_object_store
from lancekeep.application.catalog import directory_of, services_of
from lancekeep.application.upkeep.fsck import Kind
from lancekeep.domain.naming import NamingScheme
from lancekeep.domain.version_row import VersionRow
from lancekeep.format.table_version import TableVersion
from lancekeep.ports.object_store import ObjectStore

ROWS = pa.table({"a": [1, 2, 3]})


@attrs.frozen
class Lake:
    """A catalog with one table of four versions, and ways to damage its storage."""

    catalog: lancekeep.Catalog
    objects: ObjectStore
    deployment: Deployment

    @property
    def base_uri(self) -> str:
        return directory_of(self.catalog).places.dataset_root(self.catalog.find_table("t")).base_uri

    @property
    def key(self) -> str:
        return directory_of(self.catalog).places.dataset_root(self.catalog.find_table("t")).key

    def manifest(self, version: int) -> str:
        return f"{self.key}/_versions/{NamingScheme.V2.final_name(version)}"

    def row(self, version: int) -> VersionRow | None:
        return directory_of(self.catalog).commits.rows.get(self.base_uri, version)

    def manifest_as(self, version: int) -> bytes:
        """Return the manifest of version 4 with another number."""
        found = TableVersion.parse(self.objects.get(self.manifest(4)), "version 4")
        return attrs.evolve(found, manifest=attrs.evolve(found.manifest, version=version)).serialize()

    def stage(self, version: int) -> str:
        """A staged manifest for a version, as a writer leaves it that died."""
        staged = f"{self.manifest(version)}-{uuid4()}"
        self.objects.put(staged, self.manifest_as(version))
        return staged

    def reconnected(self) -> lancekeep.Catalog:
        """The catalog as another process opens it."""
        given = self.deployment
        return lancekeep.connect(given.root, commit_store=given.commit_store, storage_options=given.storage_options)

    def rows(self) -> int:
        return int(self.reconnected().open("t").count_rows())

    def found(self, *, repair: bool = False, accept_loss: bool = False) -> list[tuple[Kind, str, bool]]:
        report = self.reconnected().upkeep.fsck(deep=True, grace=0, repair=repair, accept_loss=accept_loss)
        return [(finding.kind, finding.object, finding.repaired) for finding in report.findings]


@pytest.fixture(params=["sqlite", "conditional-put on s3"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return made(request, tmp_path)


@pytest.fixture(params=["sqlite", "sqlite on s3"])
def recorded(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    """A lake whose versions have rows, which can contradict the manifests."""
    return made(request, tmp_path)


def made(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    store, _, storage = request.param.partition(" on ")
    url = f"sqlite://{tmp_path}/commits.db" if store == "sqlite" else "conditional-put://"
    deployment = Deployment(str(tmp_path / "lake"), url)
    if storage:
        endpoint = request.getfixturevalue("moto_endpoint")
        deployment = Deployment(f"s3://{bucket(endpoint)}/lake", url, s3_options(endpoint))
    options = deployment.storage_options
    catalog = lancekeep.connect(deployment.root, commit_store=url, storage_options=options)
    for _ in range(4):
        catalog.write("t", ROWS, "create" if not catalog.table_exists("t") else "append")
    return Lake(catalog, open_object_store(deployment.root, options)[0], deployment)


def has_rows(lake: Lake) -> bool:
    return lake.deployment.commit_store.startswith("sqlite")


def expect(lake: Lake, kind: Kind, *, repaired: bool, title: str = "t") -> None:
    """Expect one finding: a check reports it without changes, and a repair removes it or keeps it."""
    assert lake.found() == [(kind, title, False)]
    assert lake.found() == [(kind, title, False)]
    assert lake.found(repair=True) == [(kind, title, repaired)]
    assert lake.found() == ([] if repaired else [(kind, title, False)])


def test_sound_table_has_no_findings(lake: Lake) -> None:
    lake.catalog.open("t").tags.create("x", 2)
    lake.catalog.open("t").create_branch("side")
    assert lake.found() == []
    report = lake.catalog.upkeep.fsck(tables=["t"])
    assert (report.entries, report.directories, report.tables) == (0, 0, 1)
    with pytest.raises(lancekeep.TableNotFound):
        lake.catalog.upkeep.fsck(tables=["u"])
    with pytest.raises(lancekeep.InvalidInput, match="grace"):
        lake.catalog.upkeep.fsck(tables=["t"], grace=-1)


def test_reserved_version_is_published(recorded: Lake) -> None:
    staged = recorded.stage(5)
    size = len(recorded.objects.get(staged))
    directory_of(recorded.catalog).commits.rows.reserve(VersionRow(recorded.base_uri, 5, staged, size), first=False)
    expect(recorded, Kind.STUCK, repaired=True)
    assert recorded.objects.head(staged) is None
    assert recorded.row(5) == VersionRow(recorded.base_uri, 5, recorded.manifest(5), size)


def test_reservation_of_a_missing_manifest_is_withdrawn(recorded: Lake) -> None:
    staged = recorded.stage(5)
    directory_of(recorded.catalog).commits.rows.reserve(VersionRow(recorded.base_uri, 5, staged, 1), first=False)
    recorded.objects.delete(staged)
    with pytest.raises(lancekeep.Damaged):
        recorded.reconnected().describe_table("t")
    expect(recorded, Kind.LOST, repaired=True)
    recorded.reconnected().write("t", ROWS, "append")
    assert recorded.rows() == 15


def test_rows_left_by_native_cleanup_are_deleted(recorded: Lake) -> None:
    dataset = lance.dataset(
        services_of(recorded.catalog).uri(recorded.catalog.find_table("t")),
        storage_options=recorded.deployment.storage_options,
    )
    dataset.cleanup_old_versions(versions=[1, 2])
    assert recorded.found() == [(Kind.LOST, "t", False)] * 2
    assert recorded.found(repair=True) == [(Kind.LOST, "t", True)] * 2
    assert recorded.found() == []
    assert (recorded.row(1), recorded.rows()) == (None, 12)


def test_missing_latest_version_is_reported_and_kept(recorded: Lake) -> None:
    content = recorded.objects.get(recorded.manifest(4))
    recorded.objects.delete(recorded.manifest(4))
    expect(recorded, Kind.LOST, repaired=False)
    recorded.objects.put(recorded.manifest(4), content)
    assert recorded.found() == []


def test_lost_latest_version_is_replaced_by_its_predecessor(recorded: Lake) -> None:
    recorded.objects.delete(recorded.manifest(4))
    for act in (
        lambda: recorded.reconnected().open("t"),
        lambda: recorded.reconnected().write("t", ROWS, "append"),
        lambda: recorded.reconnected().write("t", ROWS, "overwrite"),
    ):
        with pytest.raises(lancekeep.Damaged, match=r"latest version 4 is lost.*--accept-loss"):
            act()
    [finding] = recorded.reconnected().upkeep.fsck(tables=["t"], accept_loss=True).findings
    assert finding.repair == "go back to version 3"
    assert recorded.found(repair=True, accept_loss=True) == [(Kind.LOST, "t", True)]
    assert recorded.found() == []
    assert recorded.rows() == 9
    recorded.reconnected().write("t", ROWS, "append")
    assert recorded.rows() == 12
    assert (
        lance.dataset(
            services_of(recorded.catalog).uri(recorded.catalog.find_table("t")),
            storage_options=recorded.deployment.storage_options,
        ).count_rows()
        == 12
    )


def test_table_without_manifests_can_be_overwritten_or_dropped(recorded: Lake) -> None:
    for version in range(1, 5):
        recorded.objects.delete(recorded.manifest(version))
    assert {kind for kind, _, _ in recorded.found(repair=True)} == {Kind.LOST}
    assert recorded.found(repair=True, accept_loss=True) == [(Kind.LOST, "t", True)]
    with pytest.raises(lancekeep.VersionNotFound, match=r"only declared.*'overwrite'"):
        recorded.reconnected().open("t")
    with pytest.raises(lancekeep.TableNotFound, match="mode='overwrite'"):
        recorded.reconnected().write("t", ROWS, "append")
    with pytest.raises(lancekeep.TableNotFound, match="mode='overwrite'"):
        recorded.reconnected().begin_write("t", ROWS.schema, "append")
    recorded.reconnected().write("t", ROWS, "overwrite")
    assert recorded.rows() == 3
    assert recorded.found() == []
    recorded.reconnected().drop_table("t")
    recorded.reconnected().write("t", ROWS)
    assert recorded.rows() == 3


def test_damaged_latest_version_is_replaced_by_its_predecessor(lake: Lake) -> None:
    lake.objects.put(lake.manifest(4), b"half of a mani")
    with pytest.raises(lancekeep.Damaged, match=r"latest version 4 cannot be read.*--accept-loss"):
        lake.reconnected().open("t")
    assert lake.found(repair=True) == [(Kind.HEAD, "t", False)]
    assert lake.found(repair=True, accept_loss=True) == [(Kind.HEAD, "t", True)]
    assert lake.found() == []
    assert lake.rows() == 9
    lake.reconnected().write("t", ROWS, "append")
    assert lake.rows() == 12


def latest_files(lake: Lake, directory: str) -> list[str]:
    """Return the files of a directory that were written last."""
    infos = list(lake.objects.list(f"{lake.key}/{directory}"))
    return [info.key for info in sorted(infos, key=lambda info: str(info.modified))]


@pytest.mark.parametrize("damage", ["missing", "cut", "empty"])
@pytest.mark.parametrize("directory", ["data/", "_deletions/", "_indices/"])
def test_missing_and_truncated_files_of_the_latest_version_are_reported(
    lake: Lake, directory: str, damage: str
) -> None:
    dataset = lake.catalog.open("t")
    dataset.delete("a = 1")
    dataset.create_scalar_index("a", "BTREE")
    assert lake.found() == []
    [victim, *_] = latest_files(lake, directory)
    content = lake.objects.get(victim)
    lake.objects.delete(victim)
    if damage != "missing":
        lake.objects.put(victim, content[: len(content) // 2] if damage == "cut" else b"")
    kind = Kind.MISSING_FILE if damage == "missing" else Kind.DAMAGED_FILE
    [finding] = lake.reconnected().upkeep.fsck(deep=True, grace=0, repair=True).findings
    assert (finding.kind, finding.object, finding.repaired) == (kind, "t", False)
    assert victim in finding.meaning
    lake.objects.put(victim, content)
    assert lake.found() == []


def test_version_with_a_missing_file_is_replaced_by_a_complete_one(lake: Lake) -> None:
    before = set(latest_files(lake, "data/"))
    lake.catalog.write("t", ROWS, "append")
    [victim] = set(latest_files(lake, "data/")) - before
    lake.objects.delete(victim)
    [finding] = lake.reconnected().upkeep.fsck(deep=True, grace=0, accept_loss=True).findings
    assert (finding.kind, finding.repair) == (Kind.MISSING_FILE, "restore version 4")
    assert lake.found(repair=True) == [(Kind.MISSING_FILE, "t", False)]
    assert lake.found(repair=True, accept_loss=True) == [(Kind.MISSING_FILE, "t", True)]
    assert lake.found() == []
    table = lance.dataset(
        services_of(lake.catalog).uri(lake.catalog.find_table("t")), storage_options=lake.deployment.storage_options
    ).to_table()
    assert table.num_rows == 12


def test_missing_files_of_branches_tags_and_clones_are_reported(lake: Lake) -> None:
    options = lake.deployment.storage_options
    native = lance.dataset(services_of(lake.catalog).uri(lake.catalog.find_table("t")), storage_options=options)
    native.tags.create("first", 1)
    side = native.create_branch("side", storage_options=options)
    lance.write_dataset(ROWS, side, mode="append", storage_options=options)
    native.shallow_clone(f"{lake.deployment.root}/c.lance", reference=2, storage_options=options)
    lake.catalog.register_table("c", "c.lance")
    lake.catalog.write("t", ROWS, "overwrite")
    assert lake.found() == []
    [on_branch] = [info.key for info in lake.objects.list(f"{lake.key}/tree/side/data/")]
    lake.objects.delete(on_branch)
    assert lake.found() == [(Kind.MISSING_FILE, "t@side", False)]
    version = lake.catalog.open("t").version
    assert lake.found(repair=True, accept_loss=True) == [(Kind.MISSING_FILE, "t@side", False)]
    assert lake.reconnected().open("t").version == version
    [first, *_] = [fragment.metadata.files[0].path for fragment in native.checkout_version(1).get_fragments()]
    lake.objects.delete(f"{lake.key}/data/{first}")
    found = lake.found()
    assert {name for _, name, _ in found} == {"c", "t", "t@side"}
    assert {kind for kind, _, _ in found} == {Kind.MISSING_FILE}


@pytest.mark.parametrize("version", [2, 4])
def test_lost_rows_are_recorded_again(recorded: Lake, version: int) -> None:
    before = recorded.row(version)
    directory_of(recorded.catalog).commits.rows.delete(recorded.base_uri, [version])
    expect(recorded, Kind.UNRECORDED, repaired=True)
    after = recorded.row(version)
    assert before is not None
    assert after is not None
    assert (after.path, after.size) == (before.path, before.size)
    assert recorded.rows() == 12


def test_manifest_after_a_gap_is_reported_and_kept(lake: Lake) -> None:
    lake.objects.put(lake.manifest(7), lake.manifest_as(7))
    found = {kind for kind, _, _ in lake.found(repair=True)}
    assert found == ({Kind.UNRECORDED, Kind.GAP} if has_rows(lake) else {Kind.GAP})
    assert lake.objects.head(lake.manifest(7)) is not None


def test_losing_staged_manifest_is_removed_after_the_grace_period(lake: Lake) -> None:
    staged = lake.stage(4)
    assert not any(finding.repair for finding in lake.catalog.upkeep.fsck(deep=True, repair=True).findings)
    assert lake.objects.head(staged) is not None
    expect(lake, Kind.STAGED, repaired=True)
    assert lake.objects.head(staged) is None


def test_staged_manifest_that_can_still_win_is_kept(lake: Lake) -> None:
    staged = lake.stage(5)
    expect(lake, Kind.STAGED, repaired=False)
    assert lake.objects.head(staged) is not None


def test_incomplete_manifest_is_removed(lake: Lake) -> None:
    lake.objects.put(f"{lake.key}/_versions/.tmpToIqV6", b"half of a mani")
    assert lake.reconnected().upkeep.fsck(deep=True, repair=True).findings[0].repair == ""  # it is young
    expect(lake, Kind.LEFTOVER, repaired=True)


def test_gap_is_reported_unless_a_tag_explains_it(lake: Lake) -> None:
    root = directory_of(lake.catalog).places.dataset_root(lake.catalog.find_table("t"))
    directory_of(lake.catalog).versions.delete_versions(root, [2, 3])
    expect(lake, Kind.GAP, repaired=False)
    lake.catalog.open("t").tags.create("first", 1)
    assert lake.found() == []


def test_unknown_file_names_are_reported(lake: Lake) -> None:
    lake.objects.put(f"{lake.key}/_versions/latest_version_hint.json", b"{}")
    lake.objects.put(f"{lake.key}/_versions/d123.manifest", b"detached")
    assert lake.found() == []
    lake.objects.put(f"{lake.key}/_versions/notes.txt", b"mine")
    expect(lake, Kind.UNKNOWN, repaired=False)


@pytest.mark.parametrize("content", [b"", b"half of a mani", b"\xff" * 40 + b"LANC"])
def test_unreadable_latest_version_is_reported_and_kept(lake: Lake, content: bytes) -> None:
    lake.objects.put(lake.manifest(4), content)
    expect(lake, Kind.HEAD, repaired=False)
    report = lake.catalog.upkeep.cleanup(timedelta(0))
    assert ([skipped.table for skipped in report.skipped], report.tables) == (["t"], ())


def test_mixed_naming_schemes_are_the_only_finding_of_a_table(lake: Lake) -> None:
    lake.catalog.open("t").tags.create("x", 2)
    lake.objects.put(f"{lake.key}/_versions/9.manifest", lake.objects.get(lake.manifest(4)))
    assert lake.found(repair=True) == [(Kind.MIXED, "t", False)]


def test_tag_of_a_missing_version_is_deleted(lake: Lake) -> None:
    tags = lake.catalog.open("t").tags
    tags.create("lost", 2)
    tags.create("kept", 3)
    lake.objects.delete(lake.manifest(2))
    directory_of(lake.catalog).commits.rows.delete(lake.base_uri, [2])
    assert (Kind.TAG, "t", False) in lake.found()
    assert (Kind.TAG, "t", True) in lake.found(repair=True)
    assert lake.found() == [(Kind.GAP, "t", False)]
    assert set(lake.reconnected().open("t").tags.list()) == {"kept"}


def test_branch_without_a_version_is_reported(lake: Lake) -> None:
    lake.catalog.open("t").create_branch("side")
    for info in list(lake.objects.list(f"{lake.key}/tree/side/")):
        lake.objects.delete(info.key)
    expect(lake, Kind.BRANCH, repaired=False)


def test_branches_are_checked_like_tables(lake: Lake) -> None:
    lake.catalog.open("t").create_branch("side/way")
    root = directory_of(lake.catalog).places.dataset_root(lake.catalog.find_table("t")).branch("side/way")
    lake.objects.put(f"{root.versions_key}notes.txt", b"mine")
    expect(lake, Kind.UNKNOWN, repaired=False, title="t@side/way")


def faults_of(lake: Lake) -> None:
    """Damage a table in every way that repair can undo."""
    lake.stage(3)
    lake.catalog.open("t").tags.create("lost", 2)
    lake.objects.delete(lake.manifest(2))
    directory_of(lake.catalog).commits.rows.delete(lake.base_uri, [3])
    staged = lake.stage(5)
    directory_of(lake.catalog).commits.rows.reserve(VersionRow(lake.base_uri, 5, staged, 1), first=False)


def test_repair_after_a_crash_at_any_call_is_completed(
    tmp_path: Path,
) -> None:
    for nth in count():
        directory = tmp_path / str(nth)
        deployment = Deployment(str(directory / "lake"), f"file://{directory}/commits?fsync=false")
        catalog = lancekeep.connect(deployment.root, commit_store=deployment.commit_store)
        for at in range(4):
            catalog.write("t", ROWS, "append" if at else "create")
        lake = Lake(catalog, open_object_store(deployment.root, {})[0], deployment)
        faults_of(lake)
        commits = directory_of(lake.reconnected()).commits
        alive = _until(nth)
        commits.objects, commits.rows = Faulty(commits.objects, alive), Faulty(commits.rows, alive)  # type: ignore[assignment] # a double
        broken = lake.reconnected()
        directory_of(broken).ledger.commits = commits
        try:
            broken.upkeep.fsck(tables=["t"], grace=0, repair=True)
        except Crash:
            assert lake.rows() == 12, nth
            lake.found(repair=True)
            assert lake.found() == [(Kind.GAP, "t", False)], nth
        else:
            assert nth > 20
            return


def _until(nth: int) -> Callable[[str, int], tuple[str, BaseException] | None]:
    """Crash the process at the ``nth`` call of any port."""
    calls = count()
    return lambda method, _: ("before", Crash()) if next(calls) >= nth else None
