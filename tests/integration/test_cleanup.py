"""Cleanup removes exactly the old, unreferenced files and versions, on local files and S3."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import lance
import pyarrow as pa
import pytest
from deployments import Deployment, bucket, s3_options
from faults import Crash, Faulty
from memory_catalogs import World

import lancekeep
from lancekeep.adapters.object_stores import open_object_store
from lancekeep.application.catalog import directory_of, services_of
from lancekeep.application.upkeep.fsck import Kind
from lancekeep.domain.naming import NamingScheme
from lancekeep.domain.version_row import Reserved, VersionRow

ROWS = pa.table({"a": pa.array(range(10), pa.int64())})
NOW = timedelta(0)
DAY = timedelta(days=1)
KINDS = ("sqlite", "storage-managed", "sqlite on s3", "conditional-put on s3")


@pytest.fixture(params=KINDS)
def deployment(request: pytest.FixtureRequest, tmp_path: Path) -> Deployment:
    store, _, storage = request.param.partition(" on ")
    url = {"sqlite": f"sqlite://{tmp_path}/commits.db", "conditional-put": "conditional-put://"}.get(store)
    if not storage:
        return Deployment(str(tmp_path / "lake"), url)  # type: ignore[arg-type]  # None is no commit store
    endpoint = request.getfixturevalue("moto_endpoint")
    return Deployment(f"s3://{bucket(endpoint)}/lake", str(url), s3_options(endpoint))


def connect(deployment: Deployment, **more: Any) -> lancekeep.Catalog:
    options = deployment.storage_options
    return lancekeep.connect(deployment.root, commit_store=deployment.commit_store, storage_options=options, **more)


def stored(deployment: Deployment, below: str = "") -> set[str]:
    """Return the files of the lake, relative to its root."""
    objects, key = open_object_store(deployment.root, deployment.storage_options)
    return {info.key.removeprefix(f"{key}/") for info in objects.list(f"{key}/{below}")}


def numbers(dataset: Any) -> list[int]:
    return sorted(dataset.to_table()["a"].to_pylist())


def versions(catalog: lancekeep.Catalog, table: str = "t") -> list[int]:
    return [entry.version for entry in catalog.versions.history(table)]


def fill(catalog: lancekeep.Catalog) -> None:
    """Create a table in which each version replaces the files of the previous one, with deletions and indices."""
    catalog.write("t", ROWS)
    catalog.open("t").delete("a < 2")
    catalog.open("t").create_scalar_index("a", "BTREE")
    catalog.write("t", ROWS, "append")
    catalog.open("t").optimize.compact_files()


def test_cleanup_keeps_only_the_files_and_rows_of_the_latest_version(deployment: Deployment) -> None:
    catalog = connect(deployment)
    fill(catalog)
    before, expected = stored(deployment, "t.lance/"), numbers(catalog.open("t"))
    planned = catalog.upkeep.cleanup(NOW, dry_run=True)
    assert stored(deployment, "t.lance/") == before
    done = catalog.upkeep.cleanup(NOW)
    assert (planned.tables, planned.skipped, done.skipped) == (done.tables, (), ())
    left = stored(deployment, "t.lance/")
    [cleaned] = done.tables
    assert cleaned.versions == tuple(range(1, max(cleaned.versions) + 1))
    assert cleaned.kept == 1
    assert len(before - left) == len(cleaned.versions) + cleaned.files
    fragments = [fragment.metadata for fragment in catalog.open("t").get_fragments()]
    needed = {f"t.lance/data/{file.path}" for fragment in fragments for file in fragment.files}
    assert {file for file in left if "/data/" in file} == needed
    assert len([file for file in left if "/_deletions/" in file]) == sum(bool(one.deletion_file) for one in fragments)
    assert numbers(connect(deployment).open("t")) == expected
    root = directory_of(catalog).places.dataset_root(catalog.find_table("t"))
    rows = directory_of(catalog).commits.rows.list(root.base_uri, after=None, limit=None, descending=False)
    assert [row.version for row in rows] == [max(cleaned.versions) + 1]
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()
    again = catalog.upkeep.cleanup(NOW)
    assert (again.tables, again.versions, again.files) == ((), 0, 0)
    catalog.write("t", ROWS, "append")
    assert len(numbers(catalog.open("t"))) == len(expected) + 10


def test_files_of_shared_appends_are_removed_with_their_versions(deployment: Deployment) -> None:
    catalog = connect(deployment)
    for mode in ("create", "append", "append", "overwrite"):
        catalog.write("t", ROWS, mode)
    assert len(stored(deployment, "t.lance/data/")) == 4
    catalog.upkeep.cleanup(0)
    assert len(stored(deployment, "t.lance/data/")) == 1
    assert numbers(catalog.open("t")) == list(range(10))


def test_native_engine_reads_a_table_after_cleanup(deployment: Deployment) -> None:
    catalog = connect(deployment)
    fill(catalog)
    catalog.upkeep.cleanup(NOW, keep=2)
    dataset = lance.dataset(
        services_of(catalog).uri(catalog.find_table("t")), storage_options=dict(catalog.storage_options)
    )
    for version in dataset.versions():
        old = dataset.checkout_version(version["version"])
        old.validate()
        assert numbers(old)
    assert len(dataset.versions()) == 2
    assert dataset.to_table(filter="a = 5").num_rows == 2


def test_files_of_tags_branches_and_clones_are_kept(deployment: Deployment) -> None:
    catalog = connect(deployment)
    for at in range(6):
        catalog.write("t", pa.table({"a": [at]}), "create" if at == 0 else "overwrite")
    location = services_of(catalog).uri(catalog.find_table("t"))
    options = dict(catalog.storage_options) or None
    native = lance.dataset(location, storage_options=options)
    native.tags.create("kept", 1)
    native.checkout_version(2).create_branch("side", storage_options=options)
    clones = {3: "clone.lance", 4: "elsewhere"}
    for version, directory in clones.items():
        native.shallow_clone(f"{location.rpartition('/')[0]}/{directory}", reference=version, storage_options=options)
    catalog.register_table("second", "elsewhere")
    catalog.write("second", ROWS, "append")
    catalog.deregister_table("second")
    planned, report = catalog.upkeep.cleanup(NOW, dry_run=True), catalog.upkeep.cleanup(NOW)
    assert (report.tables, report.skipped) == (planned.tables, ())
    assert {table.table: table.versions for table in report.tables}["t"] == (3, 4, 5)
    assert numbers(catalog.open("t")) == [5]
    assert numbers(catalog.open("t", tag="kept")) == [0]
    assert numbers(catalog.open("t", branch="side")) == [1]
    assert numbers(catalog.open("clone")) == [2]
    catalog.register_table("second", "elsewhere")
    assert numbers(catalog.open("second")) == sorted([3, *range(10)])
    assert len([file for file in stored(deployment, "t.lance/data/") if file]) == 5  # all but that of version 5
    native.tags.delete("kept")
    assert catalog.upkeep.cleanup(NOW, tables=["t"]).versions == 1
    assert numbers(catalog.open("t", branch="side")) == [1]


def test_branches_are_cleaned_like_tables(deployment: Deployment) -> None:
    catalog = connect(deployment)
    catalog.write("t", ROWS)
    catalog.open("t").create_branch("side/way")
    for at in range(3):
        side = catalog.open("t", branch="side/way")
        lance.write_dataset(pa.table({"a": [at]}), side, mode="overwrite")
    report = catalog.upkeep.cleanup(NOW)
    [cleaned] = report.tables
    assert (cleaned.branch, cleaned.versions) == ("side/way", (1, 2, 3))
    assert numbers(catalog.open("t", branch="side/way")) == [2]
    assert numbers(catalog.open("t")) == list(range(10))


def test_incomplete_files_are_removed_after_the_grace_period(deployment: Deployment) -> None:
    """The engine writes local files under a temporary name. SIGKILL leaves such files in each of these directories."""
    catalog = connect(deployment)
    catalog.write("t", ROWS)
    objects, key = open_object_store(deployment.root, deployment.storage_options)
    before, index = stored(deployment, "t.lance/"), f"_indices/{uuid4()}"
    for directory in ("data", "_deletions", "_transactions", "_versions", index):
        objects.put(f"{key}/t.lance/{directory}/.tmpToIqV6", b"half of a")
    objects.put(f"{key}/t.lance/_versions/{NamingScheme.V2.final_name(2)}-{uuid4()}#1", b"half of a")
    own = [Path(f"/{key}/t.lance/{name}") for name in (".tmp-8f3c-1", "_versions/.tmp-8f3c-2")]
    for path in own if deployment.root.startswith("/") else ():
        path.write_bytes(b"half of a")  # as this library names them
    catalog.write("u", ROWS)  # the newest manifest stands for now
    assert catalog.upkeep.cleanup(NOW).files == 0
    done = catalog.upkeep.cleanup(NOW, grace=NOW)
    assert (done.files, done.skipped) == (8 if deployment.root.startswith("/") else 6, ())
    assert stored(deployment, "t.lance/") == before
    assert not any(path.exists() for path in own)
    assert numbers(connect(deployment).open("t")) == list(range(10))


def test_files_of_unknown_age_and_of_young_versions_are_kept(deployment: Deployment) -> None:
    catalog = connect(deployment)
    fill(catalog)
    before = stored(deployment)
    assert catalog.upkeep.cleanup(DAY).tables == ()
    assert stored(deployment) == before
    assert catalog.upkeep.cleanup(NOW, keep=100).tables == ()
    with pytest.raises(lancekeep.InvalidInput, match="keep is 0"):
        catalog.upkeep.cleanup(NOW, keep=0)
    with pytest.raises(lancekeep.InvalidInput, match="older_than"):
        catalog.upkeep.cleanup(-DAY)
    with pytest.raises(lancekeep.TableNotFound):
        catalog.upkeep.cleanup(NOW, tables=["u"])


def test_files_of_concurrent_writers_are_kept(deployment: Deployment) -> None:
    """The writers are stopped after their fragments, after the staged manifest, and after the reservation."""
    catalog = connect(deployment)
    fill(catalog)
    plan = catalog.begin_write("t", ROWS.schema, "append")
    options = dict(plan.storage_options) or None
    fragments = lance.fragment.write_fragments(ROWS, plan.uri, storage_options=options)
    stopped = connect(deployment)
    if deployment.commit_store == "conditional-put://" or deployment.commit_store is None:
        stopped = catalog  # deciding is publishing there
    else:
        fate = dying_behind("reserve")
        directory_of(stopped).commits.objects = Faulty(directory_of(stopped).commits.objects, fate)
        directory_of(stopped).commits.rows = Faulty(directory_of(stopped).commits.rows, fate)  # type: ignore[assignment] # a double
        with pytest.raises((OSError, Crash, lancekeep.LancekeepError)):
            stopped.write("t", ROWS, "append")
    expected = len(numbers(lance.dataset(plan.uri, storage_options=options)))
    assert catalog.upkeep.cleanup(NOW).versions
    reader = connect(deployment)
    decided = len(numbers(reader.open("t"))) - expected
    assert decided == (0 if stopped is catalog else 10)
    reader.commit_fragments(plan, fragments)
    assert len(numbers(reader.open("t"))) == expected + decided + 10
    assert reader.upkeep.fsck(deep=True, grace=0).findings == ()


def test_version_restored_or_cloned_during_its_removal_is_kept(tmp_path: Path) -> None:
    """Other writers can use a version between the removal of its manifest and that of its files."""
    deployment = Deployment(str(tmp_path / "lake"), f"sqlite://{tmp_path}/commits.db")
    catalog = connect(deployment)
    for at in range(4):
        catalog.write("t", pa.table({"a": [at]}), "overwrite")
    opened = connect(deployment).open("t", version=2)
    cloned = lance.dataset(f"{deployment.root}/t.lance", version=1)

    def step(done: int, total: int, name: str) -> None:
        if name == "removing versions of t":
            opened.restore()
            cloned.shallow_clone(f"{deployment.root}/clone.lance", reference=1)

    catalog.upkeep.cleanup(NOW, progress=step)
    assert numbers(connect(deployment).open("t")) == [1]
    assert numbers(connect(deployment).open("clone")) == [0]


def test_table_recreated_in_the_same_directory_is_kept(tmp_path: Path) -> None:
    deployment = Deployment(str(tmp_path / "lake"), f"sqlite://{tmp_path}/commits.db")
    catalog = connect(deployment)
    for at in range(4):
        catalog.write("t", pa.table({"a": [at]}), "overwrite")

    def step(done: int, total: int, name: str) -> None:
        if name == "removing versions of t":
            other = connect(deployment)
            other.drop_table("t")
            other.write("t", ROWS)
            other.write("t", ROWS, "append")

    catalog.upkeep.cleanup(NOW, progress=step)
    assert versions(connect(deployment)) == [2, 1]
    assert len(numbers(connect(deployment).open("t", version=1))) == 10
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()


def test_older_versions_are_kept_if_the_latest_disappears(tmp_path: Path) -> None:
    deployment = Deployment(str(tmp_path / "lake"), f"sqlite://{tmp_path}/commits.db")
    catalog = connect(deployment)
    for at in range(3):
        catalog.write("t", pa.table({"a": [at]}), "overwrite")
    manifests = tmp_path / "lake/t.lance/_versions"

    def step(done: int, total: int, name: str) -> None:
        if name == "removing versions of t":
            (manifests / NamingScheme.V2.final_name(3)).unlink()

    assert catalog.upkeep.cleanup(NOW, progress=step).tables == ()
    assert len(list(manifests.glob("*.manifest"))) == 2
    assert numbers(lance.dataset(f"{deployment.root}/t.lance")) == [1]


def test_version_of_a_concurrently_created_tag_is_kept(tmp_path: Path) -> None:
    deployment = Deployment(str(tmp_path / "lake"), f"sqlite://{tmp_path}/commits.db")
    catalog = connect(deployment)
    for at in range(4):
        catalog.write("t", pa.table({"a": [at]}), "overwrite")

    def step(done: int, total: int, name: str) -> None:
        if name == "removing versions of t":
            connect(deployment).open("t").tags.create("kept", 2)

    assert catalog.upkeep.cleanup(NOW, progress=step).tables[0].versions == (1, 3)
    assert numbers(catalog.open("t", tag="kept")) == [1]


def test_concurrently_reserved_staged_manifest_is_kept(tmp_path: Path) -> None:
    deployment = Deployment(str(tmp_path / "lake"), f"sqlite://{tmp_path}/commits.db")
    catalog = connect(deployment)
    catalog.write("t", pa.table({"a": [1]}))
    root = directory_of(catalog).places.dataset_root(catalog.find_table("t"))
    staged = f"{root.manifest_key(3, NamingScheme.V2)}-{uuid4()}"
    first = Path("/", root.manifest_key(1, NamingScheme.V2))
    Path("/", staged).write_bytes(first.read_bytes())
    catalog.write("t", pa.table({"a": [2]}), "append")

    def step(done: int, total: int, name: str) -> None:
        if name == "removing versions of t":
            row = VersionRow(root.base_uri, 3, staged, first.stat().st_size)
            assert directory_of(catalog).commits.rows.reserve(row, first=False) == Reserved()

    catalog.upkeep.cleanup(timedelta(days=1), grace=timedelta(0), progress=step)
    assert Path("/", staged).exists()


def test_cleanup_after_a_crash_at_any_call_is_completed(tmp_path: Path) -> None:
    made = Deployment(str(tmp_path / "made/lake"), f"file://{tmp_path}/made/commits?fsync=false")
    catalog = connect(made)
    fill(catalog)
    catalog.open("t").tags.create("kept", 2)
    opened = {None: numbers(catalog.open("t")), 2: numbers(catalog.open("t", version=2))}
    shutil.copytree(tmp_path / "made", tmp_path / "done")
    for nth in count():
        shutil.rmtree(tmp_path / "made")
        shutil.copytree(tmp_path / "done", tmp_path / "made")
        dying = connect(made)
        fate = dying_at(nth)
        directory_of(dying).commits.objects = Faulty(directory_of(dying).commits.objects, fate)
        directory_of(dying).commits.rows = Faulty(directory_of(dying).commits.rows, fate)  # type: ignore[assignment] # a double
        finished = False
        try:
            dying.upkeep.cleanup(NOW)
            finished = True
        except Crash:
            pass
        catalog = connect(made)
        for version, expected in opened.items():
            assert numbers(catalog.open("t", version=version)) == expected, nth
        for version in versions(catalog):
            assert numbers(catalog.open("t", version=version)), nth
        catalog.upkeep.fsck(deep=True, repair=True, grace=0)
        assert catalog.upkeep.fsck(deep=True, grace=0).findings == (), nth
        catalog.upkeep.cleanup(NOW, grace=NOW)
        assert versions(catalog) == [max(versions(catalog)), 2], nth
        assert catalog.upkeep.cleanup(NOW, grace=NOW).tables == (), nth
        if finished:
            assert nth > 20
            return


def dying_behind(method: str) -> Any:
    """Crash the process after the effect of ``method``; no later call has an effect."""
    dead: list[bool] = []

    def decide(name: str, _: int) -> tuple[str, BaseException] | None:
        if dead:
            return "before", Crash()
        if name != method:
            return None
        dead.append(True)
        return "after", Crash()

    return decide


def dying_at(nth: int) -> Any:
    """Crash the process at the ``nth`` call of any port."""
    calls = count()
    return lambda method, _: ("before", Crash()) if next(calls) >= nth else None


# -- ages ----------------------------------------------------------------------------------------------------------

HOURS = timedelta(hours=1)
START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("skew", [-HOURS, NOW, HOURS])
def test_ages_come_from_the_clock_of_the_storage(tmp_path: Path, skew: timedelta) -> None:
    """The test sets the clock of the storage. The writers put their own time into the manifests."""
    world, source = World(), connect(Deployment(str(tmp_path / "lake"), None))  # type: ignore[arg-type]  # no commit store
    for at in range(4):
        source.write("t", pa.table({"a": [at]}), "overwrite")
    versions_key = "lake/t.lance/_versions/"
    files = [path for path in (tmp_path / "lake/t.lance").rglob("*") if path.is_file()]
    for version in range(1, 5):  # one a day
        world.time = START + version * DAY
        name = NamingScheme.V2.final_name(version)
        world.objects.put(versions_key + name, (tmp_path / "lake/t.lance/_versions" / name).read_bytes())
        for path in files:
            key = f"lake/{path.relative_to(tmp_path / 'lake')}"
            if "_versions" not in key and world.objects.head(key) is None:
                world.objects.put(key, path.read_bytes())
    world.objects.put(f"{versions_key}{NamingScheme.V2.final_name(5)}-{uuid4()}", b"in flight")
    world.enter("t", "t.lance")
    cleaned = world.cleanup(older_than=DAY, now=world.time + skew, dry_run=True)
    assert [table.versions for table in cleaned.tables] == ([(1, 2)] if skew >= NOW else [(1,)])
    assert world.cleanup(older_than=2 * DAY, now=world.time + skew - 9 * HOURS, dry_run=True).versions == 0
    assert world.cleanup(older_than=DAY, now=world.time + skew).tables == cleaned.tables
    assert any("-" in key for key in world.stored() if "_versions" in key)


def test_latest_version_is_found_after_a_clean_up_above_a_stale_hint(tmp_path: Path) -> None:
    """Writers that die after their commit leave the hint behind, and a tag keeps the version that it names."""
    with lancekeep.connect(str(tmp_path / "lake"), commit_store="conditional-put://", mode="v2") as catalog:
        for x in range(3):
            catalog.write("t", pa.table({"x": [x]}), "overwrite" if x == 0 else "append")
        catalog.open("t").tags.create("kept", 1)
        hint = Path(catalog.describe_table("t").uri.removeprefix("file://")) / "_versions/latest_version_hint.json"
        hint.write_text('{"version": 1}')
        catalog.upkeep.cleanup(timedelta(0), grace=timedelta(0))
        assert catalog.open("t").version == 3
        assert sorted(catalog.open("t").to_table()["x"].to_pylist()) == [0, 1, 2]


def test_fsck_removes_a_hint_that_a_clean_up_by_pylance_made_misleading(tmp_path: Path) -> None:
    with lancekeep.connect(str(tmp_path / "lake"), commit_store="conditional-put://", mode="v2") as catalog:
        for x in range(4):
            catalog.write("t", pa.table({"x": [x]}), "overwrite" if x == 0 else "append")
        dataset = lance.dataset(catalog.describe_table("t").uri)
        dataset.tags.create("kept", 1)
        hint = Path(catalog.describe_table("t").uri.removeprefix("file://")) / "_versions/latest_version_hint.json"
        hint.write_text('{"version": 1}')
        dataset.cleanup_old_versions(timedelta(0), delete_unverified=True, error_if_tagged_old_versions=False)
        [found] = catalog.upkeep.fsck(deep=True, repair=True, grace=0).findings
        assert found.kind is Kind.STALE_HINT
        assert found.repaired
        assert catalog.open("t").version == 4
        assert lance.dataset(catalog.describe_table("t").uri).version == 4
        assert sorted(catalog.open("t").to_table()["x"].to_pylist()) == [0, 1, 2, 3]
        assert not catalog.upkeep.fsck(deep=True, grace=0).findings
