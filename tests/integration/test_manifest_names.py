"""The migration of a table's manifests from V1 to V2 names, with concurrent readers and writers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner
from deployments import Deployment, bucket, deployment, s3_options
from faults import Crash, Faulty

import lancekeep
from lancekeep.adapters.commit_stores import open_commit_store
from lancekeep.adapters.object_stores import open_object_store
from lancekeep.application.catalog import directory_of
from lancekeep.application.upkeep.fsck import Kind
from lancekeep.domain.naming import ManifestName, NamingScheme
from lancekeep.domain.version_row import scheme_of
from lancekeep.entrypoints.cli import lancekeep as command

Decide = Callable[[str, int], tuple[str, BaseException] | None]


def rows(*values: int) -> pa.Table:
    return pa.table({"a": pa.array(values, pa.int64())})


def values(dataset: Any) -> list[int]:
    found: list[int] = sorted(dataset.to_table()["a"].to_pylist())
    return found


class Lake:
    """A managed catalog with the table ``t``, which pylance created with V1 names."""

    def __init__(self, given: Deployment) -> None:
        self.given = given
        self.uri = f"{given.root}/t.lance"
        self.options = given.storage_options or None

    @staticmethod
    def local(directory: Path) -> Lake:
        return Lake(Deployment(str(directory / "lake"), f"file://{directory}/commits?fsync=false"))

    def fill(self, versions: int) -> None:
        for version in range(1, versions + 1):
            mode: Any = "append" if version > 1 else "create"
            lance.write_dataset(
                rows(version), self.uri, mode=mode, storage_options=self.options, enable_v2_manifest_paths=False
            )
        with lancekeep.connect(self.given.root, storage_options=self.given.storage_options) as catalog:
            catalog.upkeep.change_commit_store(self.given.commit_store)

    def connect(self) -> lancekeep.Catalog:
        """Open the catalog as another process does."""
        given = self.given
        return lancekeep.connect(given.root, commit_store=given.commit_store, storage_options=given.storage_options)

    def plain(self, version: int | None = None) -> Any:
        """Open the table without the catalog."""
        return lance.dataset(self.uri, version=version, storage_options=self.options)

    def schemes(self, catalog: lancekeep.Catalog, branch: str | None = None) -> list[NamingScheme]:
        """Return the schemes of the names of all final manifests."""
        root = directory_of(catalog).places.dataset_root(catalog.find_table("t")).branch(branch)
        names = (
            ManifestName.parse(info.key.rpartition("/")[2])
            for info in directory_of(catalog).commits.objects.list(root.versions_key)
        )
        return [name.scheme for name in names if name is not None and not name.is_staged]


@pytest.fixture
def on_ports(monkeypatch: pytest.MonkeyPatch) -> Callable[[Decide | None], None]:
    """Set what decides the fate of each call of the ports of catalogs that are opened from now on."""
    current: list[Decide | None] = [None]

    def decide(method: str, nth: int) -> tuple[str, BaseException] | None:
        return None if current[0] is None else current[0](method, nth)

    def objects(root: str, options: Any, **how: Any) -> Any:
        store, key = open_object_store(root, options, **how)
        return Faulty(store, decide), key

    monkeypatch.setattr("lancekeep.composition.open_object_store", objects)
    monkeypatch.setattr(
        "lancekeep.composition.open_commit_store", lambda *args: Faulty(open_commit_store(*args), decide)
    )

    def replace(new: Decide | None) -> None:
        current[0] = new

    return replace


def migrate(catalog: lancekeep.Catalog, **how: Any) -> Any:
    return catalog.upkeep.migrate_manifest_names("t", reader_pause=0, **how)


@pytest.mark.parametrize("kind", ["sqlite", "files", "redis", "dynamodb"])
def test_migration_renames_every_manifest_of_table_and_branch(
    tmp_path: Path, redis_url: str, moto_endpoint: str, kind: str
) -> None:
    lake = Lake(deployment(kind, tmp_path, redis_url, moto_endpoint))
    lake.fill(11)
    catalog = lake.connect()
    table = catalog.open("t")
    table.tags.create("first", 1)
    branch = table.create_branch("b", 3)
    lance.write_dataset(rows(100), branch, mode="append")
    early = lake.connect()
    early.open("t").delete("a = 5")
    before = {version: values(lake.plain(version)) for version in range(1, 13)}
    of_branch = values(catalog.open("t", branch="b"))
    assert {version: values(early.open("t", version)) for version in before} == before
    renamed = {each.branch: each for each in migrate(catalog, interrupt_plain_readers=True)}
    assert (renamed[""].switched, renamed[""].versions) == (13, tuple(range(12, 0, -1)))
    for name in (None, "b"):
        assert set(lake.schemes(catalog, name)) == {NamingScheme.V2}
    for reader in (catalog, early, lake.connect()):
        assert {version: values(reader.open("t", version)) for version in before} == before
        assert values(reader.open("t", tag="first")) == [1]
        root = directory_of(reader).places.dataset_root(reader.find_table("t"))
        row = directory_of(reader).commits.get(root, 12)
        assert row is not None
        assert scheme_of(row) is NamingScheme.V2
        assert values(reader.open("t", branch="b")) == of_branch
        assert [entry.version for entry in reader.versions.history("t")] == list(range(13, 0, -1))
    assert {version: values(lake.plain(version)) for version in before} == before
    assert values(lake.plain()) == before[12]
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()
    assert migrate(catalog) == ()
    catalog.write("t", rows(200), "append")
    assert set(lake.schemes(catalog)) == {NamingScheme.V2}


def test_handles_that_were_opened_before_read_and_write_after_the_migration(tmp_path: Path) -> None:
    lake = Lake.local(tmp_path)
    lake.fill(3)
    catalog = lake.connect()
    catalog.open("t").create_scalar_index("a", "BTREE")
    handles = [lake.connect().open("t") for _ in range(4)]
    migrate(catalog, interrupt_plain_readers=True)
    assert values(handles[0]) == [1, 2, 3]
    assert handles[0].to_table(filter="a = 2").num_rows == 1
    handles[1].delete("a = 1")
    lance.write_dataset(rows(9), handles[2], mode="append")
    handles[3].update({"a": "a + 100"}, where="a = 2")
    assert values(lake.plain()) == values(lake.connect().open("t")) == [3, 9, 102]
    assert set(lake.schemes(catalog)) == {NamingScheme.V2}
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()


def test_native_writer_commits_between_any_two_steps(tmp_path: Path, on_ports: Callable[[Decide | None], None]) -> None:
    """The writer opened the table before; it commits once at each call of a port."""
    place, before = tmp_path / "now", tmp_path / "before"
    lake = Lake.local(place)
    lake.fill(3)
    shutil.copytree(place, before)
    for at in count():
        shutil.rmtree(place)
        shutil.copytree(before, place)
        catalog, other = lake.connect(), lake.connect()
        stale, reader = other.open("t"), lake.connect()
        calls = [0]

        def write(stale: Any, reader: lancekeep.Catalog, at: int, calls: list[int], method: str, nth: int) -> None:
            calls[0] += 1
            if calls[0] == at + 1:
                on_ports(None)
                lance.write_dataset(rows(50), stale, mode="append")
                assert values(reader.open("t")) == [1, 2, 3, 50]

        on_ports(partial(write, stale, reader, at, calls))
        migrate(catalog, interrupt_plain_readers=True)
        on_ports(None)
        if calls[0] <= at:
            assert at > 20, "the migration made hardly any call"
            break
        assert values(lake.plain()) == values(lake.connect().open("t")) == [1, 2, 3, 50], at
        assert set(lake.schemes(catalog)) == {NamingScheme.V2}, at
        assert catalog.upkeep.fsck(deep=True, grace=0).findings == (), at


@pytest.mark.parametrize("loses_rows", [False, True], ids=["", "and the commit store loses rows"])
def test_migration_that_dies_at_any_call_is_completed_by_the_next(
    tmp_path: Path, on_ports: Callable[[Decide | None], None], loses_rows: bool
) -> None:
    place, before = tmp_path / "now", tmp_path / "before"
    lake = Lake.local(place)
    lake.fill(3)
    shutil.copytree(place, before)
    expected = {1: [1], 2: [1, 2], 3: [1, 2, 3]}
    for at in count():
        shutil.rmtree(place)
        shutil.copytree(before, place)
        calls = [0]

        def die(at: int, calls: list[int], method: str, nth: int) -> tuple[str, BaseException] | None:
            calls[0] += 1
            return ("before" if calls[0] > at + 1 or at % 2 else "after", Crash()) if calls[0] > at else None

        catalog = lake.connect()
        on_ports(partial(die, at, calls))
        try:
            migrate(catalog, interrupt_plain_readers=True)
            assert at > 20, "the migration made hardly any call"
            return
        except Crash:
            pass
        finally:
            on_ports(None)
        again = lake.connect()
        root = directory_of(again).places.dataset_root(again.find_table("t"))
        if loses_rows:  # the newest, as in a failover, or all
            directory_of(again).commits.rows.delete(root.base_uri, (None, [4], [3, 4])[at % 3])
        assert {version: values(again.open("t", version)) for version in expected} == expected, at
        assert {version: values(lake.plain(version)) for version in expected} == expected, at
        assert values(again.open("t")) == expected[3], at
        kinds = {finding.kind for finding in again.upkeep.fsck(deep=True, grace=0).findings}
        assert kinds <= {Kind.MIXED, Kind.UNRECORDED, Kind.STUCK, Kind.STAGED}, at
        assert again.upkeep.cleanup(1e6).skipped == (), at
        again.write("t", rows(4), "append")
        migrate(again, interrupt_plain_readers=at % 3 == 0 or NamingScheme.V2 not in lake.schemes(again))
        assert set(lake.schemes(again)) == {NamingScheme.V2}, at
        assert values(lake.plain()) == values(again.open("t")) == [1, 2, 3, 4], at
        assert {version: values(lake.plain(version)) for version in expected} == expected, at
        again.upkeep.fsck(deep=True, grace=0, repair=True)
        assert again.upkeep.fsck(deep=True, grace=0).findings == (), at


def test_readers_that_record_lost_rows_at_every_step_record_no_v1_name(
    tmp_path: Path, on_ports: Callable[[Decide | None], None]
) -> None:
    lake = Lake.local(tmp_path)
    lake.fill(4)
    catalog, reader = lake.connect(), lake.connect()
    histories = []

    def read(method: str, nth: int) -> None:
        on_ports(None)
        histories.append([entry.version for entry in reader.versions.history("t")])
        on_ports(read)

    on_ports(read)
    migrate(catalog, interrupt_plain_readers=True)
    on_ports(None)
    assert all(history in ([4, 3, 2, 1], [5, 4, 3, 2, 1]) for history in histories)
    root = directory_of(catalog).places.dataset_root(catalog.find_table("t"))
    rows = directory_of(catalog).commits.rows.list(root.base_uri, after=None, limit=None, descending=True)
    assert [scheme_of(row) for row in rows] == [NamingScheme.V2] * 5
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()


@pytest.fixture
def on_s3(tmp_path: Path, moto_endpoint: str) -> Lake:
    root = f"s3://{bucket(moto_endpoint)}/lake"
    return Lake(Deployment(root, f"sqlite://{tmp_path}/commits.db", s3_options(moto_endpoint)))


def test_plain_readers_on_s3_open_the_latest_version_at_every_step(
    on_s3: Lake, on_ports: Callable[[Decide | None], None]
) -> None:
    on_s3.fill(4)
    with on_s3.connect() as catalog:
        directory_of(catalog).commits.delete(directory_of(catalog).places.dataset_root(catalog.find_table("t")), [1])
    catalog = on_s3.connect()
    steps = set()

    def read(method: str, _: int) -> None:
        if method in {"put", "put_if_absent", "delete", "reserve", "finalize", "record"}:
            assert values(on_s3.plain()) == [1, 2, 3, 4], method
            assert [values(on_s3.plain(version)) for version in (2, 3)] == [[1, 2], [1, 2, 3]], method
            steps.add(method)

    on_ports(read)
    migrate(catalog)
    on_ports(None)
    assert steps >= {"put", "delete", "reserve", "record"}
    assert set(on_s3.schemes(catalog)) == {NamingScheme.V2}
    assert values(on_s3.plain()) == [1, 2, 3, 4]


def test_name_that_another_writer_adds_before_the_switch_stops_the_migration(
    on_s3: Lake, on_ports: Callable[[Decide | None], None]
) -> None:
    on_s3.fill(9)
    with on_s3.connect() as catalog:
        directory_of(catalog).commits.delete(directory_of(catalog).places.dataset_root(catalog.find_table("t")), [1])
    catalog, other = on_s3.connect(), on_s3.connect()

    def write(method: str, nth: int) -> None:
        if method == "latest":
            on_ports(None)
            other.write("t", rows(10), "append")

    on_ports(write)
    with pytest.raises(lancekeep.Unsupported, match=r"'10.manifest' precedes V2 names"):
        migrate(catalog)
    assert values(on_s3.plain()) == list(range(1, 11))


def test_names_that_precede_v2_names_are_refused_unless_readers_may_be_interrupted(on_s3: Lake) -> None:
    on_s3.fill(2)
    catalog = on_s3.connect()
    with pytest.raises(lancekeep.Unsupported, match=r"'1.manifest' precedes V2 names"):
        migrate(catalog)
    assert set(on_s3.schemes(catalog)) == {NamingScheme.V1}
    assert catalog.describe_table("t").version == 2
    migrate(catalog, interrupt_plain_readers=True)
    assert values(on_s3.plain()) == [1, 2]


def test_migration_of_pylance_loses_the_commit_of_an_open_writer(tmp_path: Path, moto_endpoint: str) -> None:
    """The reason why storage-managed tables are refused: both writers report success."""
    lake = Lake(Deployment(f"s3://{bucket(moto_endpoint)}/lake", "", s3_options(moto_endpoint)))
    lake.uri = f"{lake.given.root}/t.lance"
    for version in (1, 2):
        mode: Any = "append" if version > 1 else "create"
        lance.write_dataset(
            rows(version), lake.uri, mode=mode, storage_options=lake.options, enable_v2_manifest_paths=False
        )
    stale = lake.plain()
    lake.plain().migrate_manifest_paths_v2()
    lance.write_dataset(rows(3), lake.uri, mode="append", storage_options=lake.options)
    written = lance.write_dataset(rows(4), stale, mode="append", storage_options=lake.options)
    assert 4 in values(written)
    assert 4 not in values(lake.plain())
    catalog = lancekeep.connect(lake.given.root, storage_options=lake.given.storage_options)
    with pytest.raises(lancekeep.Unsupported, match="no commit store"):
        migrate(catalog, interrupt_plain_readers=True)


def test_storage_managed_tables_and_plain_readers_of_files_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "lake"
    lance.write_dataset(rows(1), root / "t.lance", enable_v2_manifest_paths=False)
    files = sorted(root.rglob("*"))
    with lancekeep.connect(str(root)) as catalog, pytest.raises(lancekeep.Unsupported, match="no commit store"):
        catalog.upkeep.migrate_manifest_names("t", interrupt_plain_readers=True)
    assert sorted(root.rglob("*")) == files
    lake = Lake.local(tmp_path / "managed")
    lake.fill(1)
    with lake.connect() as catalog, pytest.raises(lancekeep.Unsupported, match="interrupt_plain_readers"):
        catalog.upkeep.migrate_manifest_names("t")


def test_rows_that_the_migration_of_pylance_left_behind_are_corrected(tmp_path: Path) -> None:
    for way in ("repair", "migrate"):
        lake = Lake.local(tmp_path / way)
        lake.fill(3)
        lake.plain().migrate_manifest_paths_v2()
        catalog = lake.connect()
        found = catalog.upkeep.fsck(deep=True, grace=0).findings
        assert [(finding.kind, "was renamed to" in finding.meaning) for finding in found] == [(Kind.LOST, True)] * 3
        if way == "repair":
            catalog.upkeep.fsck(deep=True, grace=0, repair=True)
        else:
            migrate(catalog, interrupt_plain_readers=True)
        assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()
        lake.connect().write("t", rows(4), "append")
        assert values(lake.plain()) == [1, 2, 3, 4]
        assert [values(lake.connect().open("t", version)) for version in (1, 2)] == [[1], [1, 2]]


def test_two_manifests_of_one_version_stop_the_migration(tmp_path: Path) -> None:
    lake = Lake.local(tmp_path)
    lake.fill(3)
    directory = Path(lake.uri, "_versions")
    shutil.copy(directory / "1.manifest", directory / NamingScheme.V2.final_name(2))
    catalog = lake.connect()
    with pytest.raises(lancekeep.Damaged, match="version 2 has two manifests"):
        migrate(catalog, interrupt_plain_readers=True)
    assert values(lake.connect().open("t", 2)) == [1, 2]


def test_unfinished_migration_is_reported_and_cleaned(tmp_path: Path) -> None:
    lake = Lake.local(tmp_path)
    lake.fill(3)
    catalog = lake.connect()
    directory = Path(lake.uri, "_versions")
    kept = [directory / f"{version}.manifest" for version in (1, 2, 3)]
    copies = [shutil.copy(path, tmp_path) for path in kept]
    migrate(catalog, interrupt_plain_readers=True)
    for copy in copies:
        shutil.copy(copy, directory)
    catalog = lake.connect()
    [found] = catalog.upkeep.fsck(deep=True, grace=0).findings
    assert (found.kind, found.repair) == (Kind.MIXED, "")
    assert "3 manifests have V1 names, first 1.manifest" in found.meaning
    catalog.write("t", rows(4), "append")
    report = catalog.upkeep.cleanup(0, grace=0)
    assert (report.skipped, report.versions) == ((), 4)
    assert [path.name for path in directory.glob("*.manifest")] == [NamingScheme.V2.final_name(5)]
    assert values(lake.plain()) == values(lake.connect().open("t")) == [1, 2, 3, 4]


def test_command_migrates_a_table(tmp_path: Path) -> None:
    lake = Lake.local(tmp_path)
    lake.fill(2)
    arguments = ["migrate-names", lake.given.root, "t", "--commit-store", lake.given.commit_store]
    refused = CliRunner().invoke(command, arguments, obj=lancekeep)
    assert refused.exit_code == 1
    assert "--interrupt-plain-readers" in refused.output
    arguments += ["--interrupt-plain-readers", "--reader-pause", "0"]
    planned = CliRunner().invoke(command, arguments, obj=lancekeep)
    assert planned.output.startswith("Would rename 2 manifests of t\nNothing was changed.")
    assert values(lake.plain()) == [1, 2]
    arguments.append("--yes")
    done = CliRunner().invoke(command, arguments, obj=lancekeep)
    assert (done.exit_code, done.output) == (0, "Renamed 2 manifests of t; version 3 has the first V2 name\n")
    again = CliRunner().invoke(command, arguments, obj=lancekeep)
    assert (again.exit_code, again.output) == (0, "t has no V1 names\n")
