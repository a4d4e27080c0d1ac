"""From V1 to V2 while others read and write: every table is entered once, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import lance
import lance_namespace as api
import pyarrow as pa
import pytest
from deployments import bucket, s3_options
from lance.namespace import DirectoryNamespace as NativeNamespace

import lancekeep
from lancekeep.application.upkeep.migration import MigrationProgress
from lancekeep.domain.table import DEREGISTERED_MARKER

TABLE = pa.table({"a": pa.array([1, 2, 3], pa.int64())})
FAST = {"fsync": "false"}


@pytest.fixture
def lake(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


def connect(lake: str, mode: str = "compatible", **more: Any) -> lancekeep.Catalog:
    return lancekeep.connect(lake, mode=mode, storage_options=FAST, **more)


def native_tables(lake: str, *names: str) -> None:
    for name in names:
        lance.write_dataset(TABLE, f"{lake}/{name}.lance")


def files(lake: str) -> list[Path]:
    return sorted(path for path in Path(lake).rglob("*") if path.is_file())


def manifest_versions(lake: str) -> int:
    return len(list(Path(lake, "__manifest", "_versions").glob("*.manifest")))


def test_after_a_migration_v2_alone_shows_every_table_and_native_readers_see_them(lake: str) -> None:
    catalog = connect(lake)
    catalog.create_namespace("a")
    catalog.write("a.nested", TABLE)
    catalog.write("entered", TABLE)
    names = ["b", "b-1", "ü", "with space", "Z"]
    native_tables(lake, *names)
    lance.write_dataset(TABLE, f"{lake}/b.lance", mode="append")
    before = files(f"{lake}/b.lance")
    report = catalog.upkeep.migrate()
    assert [str(table) for table in report.registered] == sorted(names)
    assert (report.skipped, report.total, report.dry_run) == ((), 5, False)
    v2 = connect(lake, "v2")
    assert v2.list_tables() == sorted([*names, "entered"])
    assert v2.list_tables("a") == ["nested"]
    assert [v2.open(name).count_rows() for name in names] == [6, 3, 3, 3, 3]
    assert v2.describe_table("b").uri == f"file://{lake}/b.lance"
    assert files(f"{lake}/b.lance") == before
    native = NativeNamespace(root=lake, manifest_enabled="true", dir_listing_enabled="false")
    assert sorted(native.list_tables(api.ListTablesRequest(id=[])).tables) == sorted([*names, "entered"])


def test_second_migration_changes_nothing(lake: str) -> None:
    native_tables(lake, "t", "u")
    catalog = connect(lake)
    catalog.upkeep.migrate()
    before = files(lake)
    assert str(catalog.upkeep.migrate()) == "0 of 0 V1 tables registered, 0 skipped"
    assert files(lake) == before


def test_dry_run_reports_the_migration_and_writes_nothing(lake: str) -> None:
    native_tables(lake, "t", "u")
    Path(lake, "no$name.lance").mkdir()
    before = files(lake)
    catalog = connect(lake)
    told = catalog.upkeep.migrate(dry_run=True)
    assert str(told).splitlines() == [
        "2 of 3 V1 tables would be registered, 1 skipped",
        "  would be registered: t",
        "  would be registered: u",
        "  skipped: no$name.lance: no table can have this name; rename the directory",
    ]
    assert files(lake) == before
    done = catalog.upkeep.migrate()
    assert (done.registered, done.skipped) == (told.registered, told.skipped)


def test_many_tables_are_migrated_in_few_changes_with_progress(lake: str) -> None:
    native_tables(lake, *(f"t{number}" for number in range(5)))
    catalog = connect(lake)
    catalog.create_namespace("a")
    before = manifest_versions(lake)
    heard: list[MigrationProgress] = []
    catalog.upkeep.migrate(batch=2, progress=heard.append)
    assert manifest_versions(lake) - before == 3
    assert [(step.registered, step.skipped, step.total) for step in heard] == [(2, 0, 5), (4, 0, 5), (5, 0, 5)]


def test_stopped_migration_is_completed_by_the_next(lake: str) -> None:
    native_tables(lake, "t", "u", "v")
    catalog = connect(lake)

    def stop(_: MigrationProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        catalog.upkeep.migrate(batch=1, progress=stop)
    assert connect(lake, "v2").list_tables() == ["t"]
    assert connect(lake).list_tables() == ["t", "u", "v"]
    assert [str(table) for table in connect(lake).upkeep.migrate().registered] == ["u", "v"]
    assert connect(lake, "v2").list_tables() == ["t", "u", "v"]


@pytest.mark.parametrize(
    ("meddle", "reason"),
    [
        (lambda other: other.drop_table("u"), "it was dropped or deregistered during the migration"),
        (lambda other: other.deregister_table("u"), "it was dropped or deregistered during the migration"),
        (lambda other: other.register_table("u", "u.lance"), "its name was entered during the migration"),
        (
            lambda other: (other.drop_table("u"), other.create_namespace("u")),
            "its name was entered during the migration",
        ),
    ],
)
def test_migration_keeps_concurrent_changes(lake: str, meddle: Callable[[lancekeep.Catalog], Any], reason: str) -> None:
    native_tables(lake, "t", "u", "v")
    other = connect(lake)
    steps: list[MigrationProgress] = []

    def meddle_after_the_first(step: MigrationProgress) -> None:
        if not steps:
            meddle(other)
        steps.append(step)

    report = connect(lake).upkeep.migrate(batch=1, progress=meddle_after_the_first)
    assert [str(table) for table in report.registered] == ["t", "v"]
    assert [(skipped.location, skipped.reason) for skipped in report.skipped] == [("u.lance", reason)]
    assert connect(lake, "v2").table_exists("u") == ("u" in other.list_tables())
    assert other.upkeep.fsck(grace=0).findings == () or Path(lake, "u.lance", DEREGISTERED_MARKER).exists()


@pytest.mark.parametrize("mode", ["v1", "v2"])
def test_only_compatibility_mode_can_migrate(lake: str, mode: str) -> None:
    native_tables(lake, "t")
    before = files(lake)
    with pytest.raises(lancekeep.LancekeepError, match="mode='compatible'"):
        connect(lake, mode).upkeep.migrate()
    assert files(lake) == before


def test_empty_batch_is_refused(lake: str) -> None:
    with pytest.raises(lancekeep.InvalidInput, match="give at least 1"):
        connect(lake).upkeep.migrate(batch=0)


@pytest.mark.parametrize("managed", ["before", "after"])
def test_migration_enters_native_versions_in_the_commit_store(lake: str, tmp_path: Path, managed: str) -> None:
    store = f"sqlite://{tmp_path}/commits.db"
    if managed == "before":
        connect(lake, commit_store=store).create_namespace("a")
    native_tables(lake, "t")
    lance.write_dataset(TABLE, f"{lake}/t.lance", mode="append")
    lance.write_dataset(TABLE, f"{lake}/t.lance", mode="append")
    if managed == "before":
        connect(lake, commit_store=store).upkeep.migrate()
    else:
        unmanaged = connect(lake)
        unmanaged.upkeep.migrate()
        assert unmanaged.upkeep.change_commit_store(store) == 3
    catalog = connect(lake, "v2", commit_store=store)
    assert catalog.describe_table("t").version == 3
    assert catalog.write("t", TABLE, "append").version == 4
    assert [entry.version for entry in catalog.versions.history("t")] == [4, 3, 2, 1]
    assert catalog.open("t", version=2).count_rows() == 6
    assert catalog.open("t").count_rows() == lance.dataset(f"{lake}/t.lance").count_rows() == 12
    with pytest.raises(lancekeep.CommitStoreMismatch):
        connect(lake, "v2")


def test_racing_migrations_add_every_table_once(lake: str) -> None:
    names = sorted(f"t{number}" for number in range(12))
    native_tables(lake, *names)
    connect(lake).create_namespace("a")
    together = Barrier(4)

    def migrate(_: int) -> list[str]:
        catalog = connect(lake)
        together.wait()
        return [str(table) for table in catalog.upkeep.migrate(batch=3).registered]

    def create_own() -> None:
        catalog = connect(lake)
        together.wait()
        for number in range(5):
            catalog.declare_table(f"a.own{number}")

    def create_native() -> None:
        native = NativeNamespace(root=lake)
        together.wait()
        for number in range(5):
            native.create_namespace(api.CreateNamespaceRequest(id=[f"native{number}"]))

    with ThreadPoolExecutor(4) as pool:
        migrations = [pool.submit(migrate, number) for number in range(2)]
        writers = [pool.submit(create_own), pool.submit(create_native)]
        registered = [name for migration in migrations for name in migration.result()]
        for writer in writers:
            writer.result()
    assert sorted(registered) == names
    catalog = connect(lake, "v2")
    assert catalog.list_tables() == names
    assert len(catalog.list_tables("a")) == 5
    assert len(catalog.list_namespaces()) == 6
    assert catalog.upkeep.fsck(grace=0).findings == ()


def test_migration_on_s3(moto_endpoint: str) -> None:
    root, options = f"s3://{bucket(moto_endpoint)}/lake", s3_options(moto_endpoint)
    for name in ("t", "u"):
        lance.write_dataset(TABLE, f"{root}/{name}.lance", storage_options=options)
    lancekeep.connect(root, storage_options=options).upkeep.migrate()
    v2 = lancekeep.connect(root, mode="v2", storage_options=options)
    assert v2.list_tables() == ["t", "u"]
    assert v2.open("u").count_rows() == 3
