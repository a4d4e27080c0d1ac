"""Each kind of fault in a table is made on purpose, found, put right where nothing is lost by it, and then gone."""

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
from lancekeep.application.maintenance import Kind
from lancekeep.domain.naming import NamingScheme
from lancekeep.domain.version_row import VersionRow
from lancekeep.ports.object_store import ObjectStore

ROWS = pa.table({"a": [1, 2, 3]})


@attrs.frozen
class Lake:
    """A catalog with one table of four versions, and what is needed to damage it past every door."""

    catalog: lancekeep.Catalog
    objects: ObjectStore
    deployment: Deployment

    @property
    def base_uri(self) -> str:
        return self.catalog.dataset_root(self.catalog.find_table("t")).base_uri

    @property
    def key(self) -> str:
        return self.catalog.dataset_root(self.catalog.find_table("t")).key

    def manifest(self, version: int) -> str:
        return f"{self.key}/_versions/{NamingScheme.V2.final_name(version)}"

    def row(self, version: int) -> VersionRow | None:
        return self.catalog.commits.rows.get(self.base_uri, version)

    def stage(self, version: int) -> str:
        """A staged manifest for a version, as a writer leaves it that died: its content is version 4's."""
        staged = f"{self.manifest(version)}-{uuid4()}"
        self.objects.put(staged, self.objects.get(self.manifest(4)))
        return staged

    def reconnected(self) -> lancekeep.Catalog:
        """The catalog as another process opens it."""
        given = self.deployment
        return lancekeep.connect(given.root, commit_store=given.commit_store, storage_options=given.storage_options)

    def rows(self) -> int:
        return int(self.reconnected().open("t").count_rows())

    def found(self, *, repair: bool = False) -> list[tuple[Kind, str, bool]]:
        report = self.reconnected().fsck(deep=True, grace=0, repair=repair)
        return [(finding.kind, finding.object, finding.repaired) for finding in report.findings]


@pytest.fixture(params=["sqlite", "conditional-put on s3"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return made(request, tmp_path)


@pytest.fixture(params=["sqlite", "sqlite on s3"])
def recorded(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    """A lake whose versions have rows, which can be at odds with the manifests."""
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
    """One finding, told by looking, which changes nothing; put right or not; and then gone or not."""
    assert lake.found() == [(kind, title, False)]
    assert lake.found() == [(kind, title, False)]
    assert lake.found(repair=True) == [(kind, title, repaired)]
    assert lake.found() == ([] if repaired else [(kind, title, False)])


def test_a_sound_table_has_no_findings(lake: Lake) -> None:
    lake.catalog.open("t").tags.create("x", 2)
    lake.catalog.open("t").create_branch("side")
    assert lake.found() == []
    report = lake.catalog.fsck(tables=["t"])
    assert (report.entries, report.directories, report.tables) == (0, 0, 1)
    with pytest.raises(lancekeep.TableNotFound):
        lake.catalog.fsck(tables=["u"])
    with pytest.raises(lancekeep.InvalidInput, match="grace"):
        lake.catalog.fsck(tables=["t"], grace=-1)


def test_a_decided_version_that_was_not_published_is_published(recorded: Lake) -> None:
    staged = recorded.stage(5)
    size = len(recorded.objects.get(staged))
    recorded.catalog.commits.rows.reserve(VersionRow(recorded.base_uri, 5, staged, size), first=False)
    expect(recorded, Kind.STUCK, repaired=True)
    assert recorded.objects.head(staged) is None
    assert recorded.row(5) == VersionRow(recorded.base_uri, 5, recorded.manifest(5), size)


def test_a_decided_version_whose_manifest_vanished_holds_nobody_up_any_more(recorded: Lake) -> None:
    staged = recorded.stage(5)
    recorded.catalog.commits.rows.reserve(VersionRow(recorded.base_uri, 5, staged, 1), first=False)
    recorded.objects.delete(staged)
    with pytest.raises(lancekeep.Damaged):
        recorded.reconnected().describe_table("t")
    expect(recorded, Kind.LOST, repaired=True)
    recorded.reconnected().write("t", ROWS, "append")
    assert recorded.rows() == 15


def test_rows_that_the_engines_own_clean_up_left_are_forgotten(recorded: Lake) -> None:
    dataset = lance.dataset(
        recorded.catalog.uri(recorded.catalog.find_table("t")), storage_options=recorded.deployment.storage_options
    )
    dataset.cleanup_old_versions(versions=[1, 2])
    assert recorded.found() == [(Kind.LOST, "t", False)] * 2
    assert recorded.found(repair=True) == [(Kind.LOST, "t", True)] * 2
    assert recorded.found() == []
    assert (recorded.row(1), recorded.rows()) == (None, 12)


def test_a_latest_version_that_is_gone_is_told_and_left(recorded: Lake) -> None:
    content = recorded.objects.get(recorded.manifest(4))
    recorded.objects.delete(recorded.manifest(4))
    expect(recorded, Kind.LOST, repaired=False)
    recorded.objects.put(recorded.manifest(4), content)
    assert recorded.found() == []


@pytest.mark.parametrize("version", [2, 4])
def test_rows_that_the_store_lost_are_entered_again(recorded: Lake, version: int) -> None:
    before = recorded.row(version)
    recorded.catalog.commits.rows.delete(recorded.base_uri, [version])
    expect(recorded, Kind.UNRECORDED, repaired=True)
    after = recorded.row(version)
    assert before is not None
    assert after is not None
    assert (after.path, after.size) == (before.path, before.size)
    assert recorded.rows() == 12


def test_a_manifest_behind_a_gap_is_told_and_left(lake: Lake) -> None:
    lake.objects.put(lake.manifest(7), lake.objects.get(lake.manifest(4)))
    found = {kind for kind, _, _ in lake.found(repair=True)}
    assert found == ({Kind.UNRECORDED, Kind.GAP} if has_rows(lake) else {Kind.GAP})
    assert lake.objects.head(lake.manifest(7)) is not None


def test_a_staged_manifest_that_lost_is_removed_once_it_is_old(lake: Lake) -> None:
    staged = lake.stage(4)
    assert not any(finding.repair for finding in lake.catalog.fsck(deep=True, repair=True).findings)
    assert lake.objects.head(staged) is not None
    expect(lake, Kind.STAGED, repaired=True)
    assert lake.objects.head(staged) is None


def test_a_staged_manifest_that_may_still_win_is_left(lake: Lake) -> None:
    staged = lake.stage(5)
    expect(lake, Kind.STAGED, repaired=False)
    assert lake.objects.head(staged) is not None


def test_a_manifest_that_was_never_written_to_its_end_is_removed(lake: Lake) -> None:
    lake.objects.put(f"{lake.key}/_versions/.tmpToIqV6", b"half of a mani")
    assert lake.reconnected().fsck(deep=True, repair=True).findings[0].repair == ""  # it is young
    expect(lake, Kind.LEFTOVER, repaired=True)


def test_a_gap_is_told_unless_a_tag_explains_it(lake: Lake) -> None:
    root = lake.catalog.dataset_root(lake.catalog.find_table("t"))
    lake.catalog.delete_versions(root, [2, 3])
    expect(lake, Kind.GAP, repaired=False)
    lake.catalog.open("t").tags.create("first", 1)
    assert lake.found() == []


def test_unknown_names_are_told_and_those_of_the_engine_are_not(lake: Lake) -> None:
    lake.objects.put(f"{lake.key}/_versions/latest_version_hint.json", b"{}")
    lake.objects.put(f"{lake.key}/_versions/d123.manifest", b"detached")
    assert lake.found() == []
    lake.objects.put(f"{lake.key}/_versions/notes.txt", b"mine")
    expect(lake, Kind.UNKNOWN, repaired=False)


@pytest.mark.parametrize("content", [b"", b"half of a mani", b"\xff" * 40 + b"LANC"])
def test_a_head_that_cannot_be_read_is_told_and_left(lake: Lake, content: bytes) -> None:
    lake.objects.put(lake.manifest(4), content)
    expect(lake, Kind.HEAD, repaired=False)
    report = lake.catalog.cleanup(timedelta(0))
    assert ([skipped.table for skipped in report.skipped], report.tables) == (["t"], ())


def test_mixed_naming_schemes_are_told_and_nothing_else_of_that_table(lake: Lake) -> None:
    lake.catalog.open("t").tags.create("x", 2)
    lake.objects.put(f"{lake.key}/_versions/9.manifest", lake.objects.get(lake.manifest(4)))
    assert lake.found(repair=True) == [(Kind.MIXED, "t", False)]


def test_a_tag_of_a_version_that_is_gone_is_deleted_and_others_stay(lake: Lake) -> None:
    tags = lake.catalog.open("t").tags
    tags.create("lost", 2)
    tags.create("kept", 3)
    lake.objects.delete(lake.manifest(2))
    lake.catalog.commits.rows.delete(lake.base_uri, [2])
    assert (Kind.TAG, "t", False) in lake.found()
    assert (Kind.TAG, "t", True) in lake.found(repair=True)
    assert lake.found() == [(Kind.GAP, "t", False)]
    assert set(lake.reconnected().open("t").tags.list()) == {"kept"}


def test_a_branch_without_a_version_is_told(lake: Lake) -> None:
    lake.catalog.open("t").create_branch("side")
    for info in list(lake.objects.list(f"{lake.key}/tree/side/")):
        lake.objects.delete(info.key)
    expect(lake, Kind.BRANCH, repaired=False)


def test_branches_are_looked_at_as_tables_are(lake: Lake) -> None:
    lake.catalog.open("t").create_branch("side/way")
    root = lake.catalog.dataset_root(lake.catalog.find_table("t")).branch("side/way")
    lake.objects.put(f"{root.versions_key}notes.txt", b"mine")
    expect(lake, Kind.UNKNOWN, repaired=False, title="t@side/way")


def faults_of(lake: Lake) -> None:
    """Everything that can be repaired, at once."""
    lake.stage(3)
    lake.catalog.open("t").tags.create("lost", 2)
    lake.objects.delete(lake.manifest(2))
    lake.catalog.commits.rows.delete(lake.base_uri, [3])
    staged = lake.stage(5)
    lake.catalog.commits.rows.reserve(VersionRow(lake.base_uri, 5, staged, 1), first=False)


def test_a_repair_that_dies_at_any_call_leaves_a_readable_table_and_the_next_completes_it(
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
        commits = lake.reconnected().commits
        alive = _until(nth)
        commits.objects, commits.rows = Faulty(commits.objects, alive), Faulty(commits.rows, alive)
        broken = lake.reconnected()
        broken.commits = commits
        try:
            broken.fsck(tables=["t"], grace=0, repair=True)
        except Crash:
            assert lake.rows() == 12, nth
            lake.found(repair=True)
            assert lake.found() == [(Kind.GAP, "t", False)], nth
        else:
            assert nth > 20
            return


def _until(nth: int) -> Callable[[str, int], tuple[str, BaseException] | None]:
    """The process dies at the ``nth`` call, of whichever port."""
    calls = count()
    return lambda method, _: ("before", Crash()) if next(calls) >= nth else None
