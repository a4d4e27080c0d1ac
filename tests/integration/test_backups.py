"""A backup beside writers is a complete catalog: what was acknowledged before it began is there, and nothing twice."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from hashlib import blake2b
from itertools import count
from pathlib import Path
from threading import Condition, Event, Thread
from typing import Any
from uuid import uuid4

import attrs
import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner
from deployments import bucket, s3_options
from pages import ROOT, Reader, free_port
from postgres_servers import new_server

import lancekeep
from lancekeep.adapters.object_stores import open_object_store
from lancekeep.application.catalog import directory_of
from lancekeep.application.events.subscriptions import Subscription
from lancekeep.composition import migrate_schema
from lancekeep.domain.backup import FILES, RECORD
from lancekeep.entrypoints.cli import lancekeep as command

SCHEMA = pa.schema([("id", pa.int64()), ("writer", pa.string())])
WRITERS = 2
_TIMES = 10
KINDS = ("sqlite", "conditional-put", "v1")
PAGE = "backups.md"
SETUP = {(each, "setup") for each in range(6)}


def rows(writer: str, first: int, count: int = 2) -> pa.Table:
    return pa.table({"id": list(range(first, first + count)), "writer": [writer] * count}, SCHEMA)


@attrs.frozen
class Lake:
    """A catalog with a place for backups beside it."""

    above: str
    options: dict[str, str]
    connection: dict[str, Any]

    @property
    def root(self) -> str:
        return f"{self.above}/lake"

    def connect(self, root: str | None = None, **other: Any) -> lancekeep.Catalog:
        return lancekeep.connect(root or self.root, storage_options=self.options, **self.connection | other)

    def run(self, *arguments: str, codes: tuple[int, ...] = (0,)) -> Any:
        """Run a command, and return its report."""
        storage = [word for item in self.options.items() for word in ("--storage-option", "=".join(item))]
        done = CliRunner().invoke(command, [*arguments, *storage, "--json"], obj=lancekeep)
        assert done.exit_code in codes, done.output
        return json.loads(done.stdout) if done.stdout.strip() else None

    def upkeep(self, name: str, *arguments: str, codes: tuple[int, ...] = (0,)) -> Any:
        """Run a command of the catalog with its stores."""
        stores = {"commit_store": "--commit-store", "manifest_store": "--manifest-store", "mode": "--mode"}
        given = [
            word for key, option in stores.items() if key in self.connection for word in (option, self.connection[key])
        ]
        return self.run(name, self.root, *given, *arguments, codes=codes)

    def remove(self, root: str) -> None:
        """Remove every file below a root."""
        if "://" not in root:
            shutil.rmtree(root)
            return
        objects, key = open_object_store(root, self.options)
        for info in list(objects.list(f"{key}/")):
            objects.delete(info.key)

    def natively(self, catalog: lancekeep.Catalog, name: str) -> list[tuple[int, str]]:
        """Return the rows of a table as plain pylance reads them."""
        table = lance.dataset(catalog.describe_table(name).uri, storage_options=self.options or None).to_table()
        return list(zip(table["id"].to_pylist(), table["writer"].to_pylist(), strict=True))


@pytest.fixture(params=KINDS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    kind = request.param
    above = str(tmp_path)
    if kind == "v1":
        return Lake(above, {}, {"mode": "v1"})
    return Lake(
        above, {}, {"commit_store": f"sqlite://{tmp_path}/commits.db" if kind == "sqlite" else "conditional-put://"}
    )


def at(name: str, lake: Lake) -> str:
    """Return the name of a table; V1 directories have no namespaces."""
    return name if lake.connection.get("mode") == "v1" else f"ml.{name}"


class Writers:
    """Writers of several kinds that go on until they are stopped.

    Calm writers drop no tables, and keep versions for the time of a backup. Without ``designing`` they create none.
    """

    def __init__(self, lake: Lake, *, calm: bool = False, designing: bool = True) -> None:
        self._lake = lake
        self._is_designing = designing
        self._is_calm = calm
        self._most = 15 if lake.options else 100  # each request to a server of the tests takes longer
        self._changed = Condition()
        self.acknowledged: set[tuple[int, str]] = set()
        self.tried: set[tuple[int, str]] = set()
        self.faults: list[str] = []
        self._stop = Event()
        self.rounds = Counter[str]()

    @contextmanager
    def running(self) -> Iterator[Writers]:
        acts = {f"writer-{each}": self._append for each in range(WRITERS)}
        acts |= {"keeper": self._maintain} | ({"designer": self._change_entries} if self._is_designing else {})
        threads = [Thread(target=self._work, args=(name, act)) for name, act in acts.items()]
        for each in threads:
            each.start()
        try:
            yield self
        finally:
            self._stop.set()
            for each in threads:
                each.join()

    def wait_for(self, count: int) -> None:
        """Wait until a number of rows was acknowledged."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.acknowledged) >= count, timeout=60)

    def backed_up(self, target: str) -> tuple[set[tuple[int, str]], Any]:
        """Back the catalog up, again if tables were dropped in each attempt.

        Returns:
            The rows that were acknowledged before, and the report.
        """
        for _ in range(_TIMES):
            with self._changed:
                before = set(self.acknowledged)
            report = self._lake.run("backup", self._lake.root, target, codes=(0, 1))
            if not report["changed"]:
                return before, report
        raise AssertionError(report)

    def _work(self, name: str, act: Callable[[lancekeep.Catalog, str, int], None]) -> None:
        with self._lake.connect() as catalog:
            while not self._stop.is_set() and not (self._is_calm and self.rounds[name] >= self._most):
                try:
                    act(catalog, name, self.rounds[name])
                except (lancekeep.Retryable, lancekeep.NotFound, lancekeep.Refused, lancekeep.AlreadyExists):
                    pass  # of a race with another writer
                except Exception as error:
                    self.faults.append(f"{name}: {error!r}")
                    return
                self.rounds[name] += 1

    def _append(self, catalog: lancekeep.Catalog, name: str, number: int) -> None:
        new = {(number * 2, name), (number * 2 + 1, name)}
        with self._changed:
            self.tried |= new
        catalog.write(at("events", self._lake), rows(name, number * 2), "append")
        with self._changed:
            self.acknowledged |= new
            self._changed.notify_all()

    def _maintain(self, catalog: lancekeep.Catalog, name: str, number: int) -> None:
        events = at("events", self._lake)
        if number % 3 == 0:
            catalog.upkeep.compact(events)
        elif number % 3 == 1:
            catalog.upkeep.cleanup(timedelta(0), keep=50 if self._is_calm else 3, grace=timedelta(days=7))
        elif not self._is_calm:
            catalog.tags.update(events, "moving", catalog.open(events).version)

    def _change_entries(self, catalog: lancekeep.Catalog, name: str, number: int) -> None:
        draft = at(f"draft{number}", self._lake)
        catalog.write(draft, rows(name, number))
        if self._lake.connection.get("mode") == "v1" or (number % 2 == 0 and not self._is_calm):
            catalog.drop_table(draft, keep=0)
        else:
            catalog.rename_table(draft, at(f"kept{number}", self._lake))


def filled(lake: Lake) -> None:
    with lake.connect() as catalog:
        if lake.connection.get("mode") != "v1":
            catalog.initialize()
            catalog.create_namespace("ml")
        events = at("events", lake)
        for number in range(3):
            catalog.write(events, rows("setup", number * 2), "append" if number else "create")
        catalog.tags.create(events, "first", 1)
        catalog.tags.create(events, "moving", 2)
        catalog.branches.create(events, "trial", version=2)
        catalog.clone(events, at("clone", lake))


def judge(lake: Lake, acknowledged: set[tuple[int, str]], tried: set[tuple[int, str]], root: str = "") -> None:
    """Check a restored catalog by plain pylance, and write to it."""
    with lake.connect(root or lake.root) as catalog:
        events = at("events", lake)
        uri, options = catalog.describe_table(events).uri, lake.options or None
        found = lake.natively(catalog, events)
        assert max(Counter(found).values()) == 1
        assert acknowledged | SETUP <= set(found) <= tried | SETUP
        assert set(catalog.tags.list(events)) == {"first", "moving"}
        assert lance.dataset(uri, version="first", storage_options=options).count_rows() == 2
        assert set(catalog.branches.list(events)) == {"trial"}
        assert catalog.open(events, branch="trial").to_table().num_rows == 4
        assert catalog.open(at("clone", lake)).to_table().num_rows == 6
        catalog.write(events, rows("afterwards", 0), "append")
        assert set(lake.natively(catalog, events)) == set(found) | {(0, "afterwards"), (1, "afterwards")}


def test_backup_beside_writers_has_what_was_acknowledged_before(lake: Lake) -> None:
    filled(lake)
    backup = f"{lake.above}/backup"
    with Writers(lake).running() as writers:
        for _ in range(2):
            before, report = writers.backed_up(backup)
    assert writers.faults == []
    assert min(writers.rounds.values()) >= 1, writers.rounds
    assert report["versions"]
    lake.remove(lake.root)

    lake.run("backup", backup, lake.root)
    lake.upkeep("repair", "--deep", "--accept-loss", "--yes", codes=(0, 1))
    harmless = {"version gap"}  # a clean-up removed versions after a tag, and the tag was moved
    assert {each["kind"] for each in lake.upkeep("fsck", "--deep", codes=(0, 1))["findings"]} <= harmless
    judge(lake, before, writers.tried)
    assert {each["kind"] for each in lake.upkeep("fsck", "--deep", codes=(0, 1))["findings"]} <= harmless


# -- a change at each step of a backup -----------------------------------------------------------------------------

TABLE = "ml.events"
Change = Callable[[lancekeep.Catalog], object]


def append(catalog: lancekeep.Catalog) -> None:
    catalog.write(TABLE, rows("setup", 6), "append")


def replace_versions(catalog: lancekeep.Catalog) -> None:
    """Compact, and remove the former versions with their files."""
    append(catalog)
    catalog.upkeep.compact(TABLE)
    catalog.upkeep.cleanup(timedelta(0), grace=timedelta(0))


def move_tag(catalog: lancekeep.Catalog) -> None:
    catalog.tags.update(TABLE, "moving", catalog.open(TABLE).version)
    catalog.upkeep.cleanup(timedelta(0), grace=timedelta(0))


def drop(catalog: lancekeep.Catalog) -> None:
    catalog.drop_table(TABLE, keep=0, force=True)


def create_again(catalog: lancekeep.Catalog) -> None:
    drop(catalog)
    for number in range(3):
        catalog.write(TABLE, rows("again", number * 2), "append" if number else "create")


def create_another_in_the_same_directory(catalog: lancekeep.Catalog) -> None:
    catalog.drop_table("plain", keep=0)
    catalog.write("plain", rows("plain", 2))


def rename(catalog: lancekeep.Catalog) -> None:
    catalog.rename_table(TABLE, "ml.renamed")


def rename_in_the_root(catalog: lancekeep.Catalog) -> None:
    """Rename a table whose files move."""
    catalog.rename_table("plain", "other")


def create(catalog: lancekeep.Catalog) -> None:
    catalog.write("ml.new", rows("new", 0))


def branch(catalog: lancekeep.Catalog) -> None:
    catalog.branches.create(TABLE, "second")
    lance.write_dataset(rows("branch", 0), catalog.open(TABLE, branch="second"), mode="append")


def change_entries(catalog: lancekeep.Catalog) -> None:
    for number in range(3):
        catalog.create_namespace(f"ns{number}")
    catalog.upkeep.optimize()


CHANGES = (
    append,
    replace_versions,
    move_tag,
    drop,
    create_again,
    create_another_in_the_same_directory,
    rename,
    rename_in_the_root,
    create,
    branch,
    change_entries,
)


@pytest.mark.parametrize("change", CHANGES)
def test_change_at_any_step_leaves_a_whole_backup(change: Change, tmp_path: Path) -> None:
    lake = Lake(str(tmp_path), {}, {"commit_store": "conditional-put://"})
    filled(lake)
    with lake.connect() as catalog:
        catalog.drop_table("ml.clone", keep=0)
        catalog.write("plain", rows("plain", 0))
        catalog.tags.update(TABLE, "moving", 3)
        append(catalog)
    shutil.copytree(lake.root, tmp_path / "saved")
    for step in count():
        calls, backup = count(), f"{tmp_path}/backup{step}"
        with lake.connect() as catalog:

            def act(*_: object, calls: Iterator[int] = calls, step: int = step) -> None:
                if next(calls) == step:
                    change(catalog)

            report = lancekeep.backup(lake.root, backup, progress=act)
        assert report.changed == ()
        lake.remove(lake.root)
        lancekeep.backup(backup, lake.root)
        assert lake.upkeep("fsck", "--deep")["findings"] == [], step
        read = contents_of_tables(lake)
        assert read.get("plain", read.get("other")) == ["plain"] * 2
        possible: list[list[str] | None] = [["setup"] * 8, ["setup"] * 10]
        if change is create_again:
            possible = [["setup"] * 8, *(["again"] * 2 * number for number in (1, 2, 3))]
        elif change is drop:
            possible = [["setup"] * 8, None]
        assert read.get(TABLE, read.get("ml.renamed")) in possible, (step, read)
        lake.remove(lake.root)
        shutil.copytree(tmp_path / "saved", lake.root)
        if step >= next(calls):
            return


def backed_up_at_each_step(lake: Lake, act: Callable[[], object]) -> Iterator[str]:
    """Back a catalog up, each time with a change at a later step; the caller takes the change back."""
    for step in count():
        calls, backup = count(), f"{lake.above}/backup{step}"

        def at_step(*_: object, calls: Iterator[int] = calls, step: int = step) -> None:
            if next(calls) == step:
                act()

        assert lancekeep.backup(lake.root, backup, progress=at_step).changed == ()
        yield backup
        if step >= next(calls):
            return


def test_file_with_a_name_that_no_engine_generates_is_in_the_backup(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path), {}, {"mode": "v1"})
    uri = f"{lake.root}/native.lance"
    lance.write_dataset(rows("setup", 0), uri)
    shutil.copytree(lake.root, tmp_path / "saved")

    def append_own_name() -> None:
        dataset = lance.dataset(uri)
        fragment = dataset.get_fragments()[0].metadata
        named = next(iter(Path(uri, "data").iterdir()))
        shutil.copy(named, Path(uri, "data", "own.lance"))
        added = json.loads(json.dumps(fragment.to_json()).replace(named.name, "own.lance"))
        operation = lance.LanceOperation.Append([lance.FragmentMetadata.from_json(json.dumps(added))])
        lance.LanceDataset.commit(uri, operation, read_version=1)

    for backup in backed_up_at_each_step(lake, append_own_name):
        assert lance.dataset(f"{backup}/native.lance").to_table().num_rows in (2, 4)
        lake.remove(lake.root)
        shutil.copytree(tmp_path / "saved", lake.root)


@pytest.mark.parametrize("is_root", [True, False])
def test_files_at_another_base_path_below_the_root_are_in_the_backup(tmp_path: Path, is_root: bool) -> None:
    lake = Lake(f"{tmp_path}/a lake", {}, {"mode": "v1"})
    hot = lance.DatasetBasePath(f"{lake.root}/hot", "hot", is_root)
    uri = f"{lake.root}/native.lance"
    Path(lake.root, "hot").mkdir(parents=True)
    lance.write_dataset(rows("setup", 0), uri, initial_bases=[hot], target_bases=["hot"])
    shutil.copytree(lake.root, tmp_path / "saved")
    places = (("native.lance", "manifest"), ("hot", "lance"))

    def replace() -> None:
        """Append, and remove the first version and its file."""
        [version], [file] = ([*Path(lake.root, place).rglob(f"*.{end}")] for place, end in places)
        lance.write_dataset(rows("setup", 2), uri, mode="overwrite", target_bases=["hot"])
        version.unlink()
        file.unlink()

    for backup in backed_up_at_each_step(lake, replace):
        lake.remove(lake.root)
        dataset = lance.dataset(f"{backup}/native.lance")
        for version in dataset.versions():
            assert dataset.checkout_version(version["version"]).to_table().num_rows == 2
        shutil.copytree(tmp_path / "saved", lake.root)


def test_clean_up_in_a_later_attempt_leaves_whole_versions(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path), {}, {"commit_store": "conditional-put://"})
    with lake.connect() as catalog:
        catalog.initialize()
        catalog.create_namespace("ml")
        catalog.write("plain", rows("plain", 0))
        catalog.write("ml.other", rows("other", 0))
        catalog.write("ml.other", rows("other", 2), "overwrite")
        uri = catalog.describe_table("ml.other").uri.removeprefix("file://")
    shutil.copytree(lake.root, tmp_path / "saved")
    for first in range(5, 8):
        for second in range(first + 1, first + 16):
            calls, backup = count(), f"{tmp_path}/backup{first}-{second}"

            def act(*_: object, calls: Iterator[int] = calls, steps: tuple[int, int] = (first, second)) -> None:
                step = next(calls)
                if step == steps[0]:
                    shutil.rmtree(Path(lake.root, "plain.lance"), ignore_errors=True)
                elif step == steps[1]:
                    lance.dataset(uri).cleanup_old_versions(timedelta(0), delete_unverified=True)

            lancekeep.backup(lake.root, backup, progress=act)
            dataset = lance.dataset(uri.replace(lake.root, backup))
            for version in dataset.versions():
                assert dataset.checkout_version(version["version"]).to_table().num_rows == 2
            lake.remove(lake.root)
            shutil.copytree(tmp_path / "saved", lake.root)


def test_table_registered_during_a_backup_is_in_it(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path), {}, {"commit_store": "conditional-put://"})
    filled(lake)
    with lake.connect() as catalog:
        catalog.write("ml.known", rows("known", 0))
        place = catalog.describe_table("ml.known").uri.rpartition("/")[2]
        catalog.deregister_table("ml.known")
        for backup in backed_up_at_each_step(lake, lambda: catalog.register_table("ml.known", place)):
            assert lance.dataset(f"{backup}/{place}").to_table().num_rows == 2
            if catalog.table_exists("ml.known"):
                catalog.deregister_table("ml.known")


def contents_of_tables(lake: Lake) -> dict[str, list[str]]:
    with lake.connect() as catalog:
        names = [f"{each}.{name}".lstrip(".") for each in ("", "ml") for name in catalog.list_tables(each)]
        return {name: sorted(catalog.open(name).to_table()["writer"].to_pylist()) for name in names}


# -- what a backup refuses, and what it continues -------------------------------------------------------------------


@pytest.fixture
def local(tmp_path: Path) -> Lake:
    found = Lake(str(tmp_path), {}, {"commit_store": f"sqlite://{tmp_path}/commits.db"})
    filled(found)
    return found


def contents(place: str) -> dict[str, bytes]:
    """Return the files of a directory."""
    return {str(each.relative_to(place)): each.read_bytes() for each in Path(place).rglob("*") if each.is_file()}


def test_restored_catalog_in_use_is_not_replaced_by_the_same_command(local: Lake) -> None:
    backup, restored = f"{local.above}/backup", f"{local.above}/restored"
    lancekeep.backup(local.root, backup)
    lancekeep.backup(backup, restored)
    lancekeep.backup(backup, restored)  # no process has written to it
    with local.connect(restored) as catalog:
        catalog.write("ml.events", rows("user", 0), "append")
    before = contents(restored)
    with pytest.raises(lancekeep.Refused, match="may be a catalog in use"):
        lancekeep.backup(backup, restored)
    assert contents(restored) == before


def test_other_contents_of_the_target_are_refused(local: Lake, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "p.jpg").write_bytes(b"p")
    with pytest.raises(lancekeep.Refused, match=r"photos holds 1 files and is no backup, such as p\.jpg"):
        lancekeep.backup(local.root, f"{tmp_path}/photos")
    lancekeep.backup(local.root, f"{tmp_path}/backup")
    other = attrs.evolve(local, above=f"{tmp_path}/other")
    filled(other)
    with pytest.raises(lancekeep.Refused, match="holds the backup of"):
        lancekeep.backup(other.root, f"{tmp_path}/backup")
    shutil.copytree(f"{tmp_path}/backup", f"{tmp_path}/copy")
    with pytest.raises(lancekeep.Refused, match="holds the backup of"):  # a copy by another tool may be in use
        lancekeep.backup(local.root, f"{tmp_path}/copy")
    for nested in (local.root, f"{local.root}/backup", str(tmp_path)):
        with pytest.raises(lancekeep.InvalidInput, match="is not outside of"):
            lancekeep.backup(local.root, nested)
        with pytest.raises(lancekeep.InvalidInput, match="is not outside of"):
            lancekeep.backup(local.root, nested, target_storage_options={"fsync": "false"})
    with pytest.raises(lancekeep.NotFound, match="holds no table with a version"):
        lancekeep.backup(f"{tmp_path}/photos", f"{tmp_path}/empty")
    assert not Path(tmp_path, "empty").exists()


def test_stopped_backup_is_no_backup_until_it_is_completed(local: Lake) -> None:
    class Stopped(Exception):
        pass

    backup, restored = f"{local.above}/backup", f"{local.above}/restored"
    for last in count(1):  # the first listing writes nothing
        calls = count()

        def stop(*_: object, calls: Iterator[int] = calls, last: int = last) -> None:
            if next(calls) == last:
                raise Stopped

        try:
            lancekeep.backup(local.root, backup, progress=stop)
            break
        except Stopped:
            pass
        with pytest.raises(lancekeep.Refused, match="is an unfinished backup"):
            lancekeep.backup(backup, restored)
        assert not Path(restored).exists()
    assert last > 5
    local.remove(local.root)
    lancekeep.backup(backup, local.root)
    judge(local, set(), set())


def test_moved_unfinished_backup_is_not_restored(local: Lake) -> None:
    backup, moved, restored = (f"{local.above}/{name}" for name in ("backup", "moved", "restored"))
    stop_at_the_end(local.root, backup)
    Path(backup).rename(moved)
    with pytest.raises(lancekeep.Refused, match="is an unfinished backup"):
        lancekeep.backup(moved, restored)
    assert not Path(restored).exists()


def stop_at_the_end(source: str, target: str) -> None:
    """Back up a catalog, and leave the target as a kill before the last step does."""
    lancekeep.backup(source, target)
    record = Path(target, RECORD)
    record.write_text(json.dumps(json.loads(record.read_text()) | {"contents": ""}))


def test_stopped_restore_into_which_someone_wrote_is_not_continued(local: Lake) -> None:
    backup, restored = f"{local.above}/backup", f"{local.above}/restored"
    lancekeep.backup(local.root, backup)
    stop_at_the_end(backup, restored)
    lancekeep.backup(backup, restored)  # no process has written to it
    stop_at_the_end(backup, restored)
    with local.connect(restored) as catalog:
        catalog.write("ml.events", rows("user", 0), "append")
    before = contents(restored)
    with pytest.raises(lancekeep.Refused, match=r"versions that the backup .* lacks, .*so it may be a catalog in use"):
        lancekeep.backup(backup, restored)
    assert contents(restored) == before


def another_catalog(local: Lake) -> None:
    local.remove(local.root)
    with local.connect() as catalog:
        catalog.initialize()
        catalog.write("stray", rows("stray", 0))


def no_identity(local: Lake) -> None:
    local.remove(local.root)
    lance.write_dataset(rows("stray", 0), f"{local.root}/stray.lance")


def lost_entries(local: Lake) -> None:
    local.remove(f"{local.root}/__manifest")


def lost_table(local: Lake) -> None:
    with local.connect() as catalog:
        place = catalog.describe_table("ml.events").uri.rpartition("/")[2]
    local.remove(f"{local.root}/{place}")


@pytest.mark.parametrize(
    ("disaster", "message"),
    [
        (another_catalog, "is the backup of the catalog [0-9a-f]{32} that was there"),
        (no_identity, "has the id None"),
        (lost_entries, "has no entries of tables any more"),
        (lost_table, r"lost every version of 1 tables that it still names, such as .*ml\$events"),
    ],
)
def test_lost_catalog_does_not_replace_its_backup(local: Lake, disaster: Callable[[Lake], None], message: str) -> None:
    backup = f"{local.above}/backup"
    lancekeep.backup(local.root, backup)
    before = contents(backup)
    disaster(local)
    with pytest.raises(lancekeep.Refused, match=message):
        lancekeep.backup(local.root, backup)
    assert contents(backup) == before


def test_table_that_is_declared_again_is_not_lost(local: Lake) -> None:
    backup = f"{local.above}/backup"
    with local.connect() as catalog:
        catalog.write("plain", rows("plain", 0))
        lancekeep.backup(local.root, backup)
        catalog.drop_table("plain", keep=0)
        catalog.declare_table("plain")
        assert lancekeep.backup(local.root, backup).removed > 0


def test_next_backup_copies_new_files_only_and_forgets_dropped_tables(local: Lake) -> None:
    backup = f"{local.above}/backup"
    first = lancekeep.backup(local.root, backup)
    assert first.copied == first.files
    with local.connect() as catalog:
        catalog.write("ml.events", rows("later", 0), "append")
        catalog.write("ml.other", rows("other", 0))
        catalog.drop_table("ml.clone", keep=0)
    second = lancekeep.backup(local.root, backup)
    files = contents(backup)
    data = [path for path in files if "/data/" in path and not path.startswith("__manifest/")]
    assert second.copied_size < second.size
    assert not [path for path in files if "ml$clone" in path]
    assert len(data) == 5
    assert second.removed > 0
    lancekeep.backup(backup, f"{local.above}/restored")
    with local.connect(f"{local.above}/restored") as catalog:
        assert sorted(catalog.list_tables("ml")) == ["events", "other"]
        assert catalog.open("ml.events").count_rows() == 8


def test_copy_takes_a_commit_store_although_the_first_one_is_gone(local: Lake, tmp_path: Path) -> None:
    lancekeep.backup(local.root, f"{tmp_path}/backup")
    local.remove(local.root)
    for file in tmp_path.glob("commits.db*"):
        file.unlink()
    copy, second = f"{tmp_path}/copy", f"sqlite://{tmp_path}/second.db"
    lancekeep.backup(f"{tmp_path}/backup", copy)
    plan = local.run("adopt-identity", copy, "--commit-store", second)
    assert plan == {"former_commit_store": f"sqlite://{tmp_path}/commits.db", "root": copy, "dry_run": True}
    with pytest.raises(lancekeep.CommitStoreMismatch):
        lancekeep.connect(copy, commit_store=second)
    local.run("adopt-identity", copy, "--commit-store", second, "--original", "--yes")
    moved = attrs.evolve(local, connection={"commit_store": second})
    moved.run("repair", copy, "--commit-store", second, "--deep", "--yes")
    judge(moved, set(), set(), copy)
    refused = CliRunner().invoke(
        command, ["adopt-identity", copy, "--commit-store", "conditional-put://", "--yes"], obj=lancekeep
    )
    assert refused.exit_code == 1  # it is no copy any more


def test_digests_describe_the_manifests_of_the_copy(local: Lake) -> None:
    with local.connect() as catalog:
        lancekeep.digest(catalog)
    lancekeep.backup(local.root, f"{local.above}/backup")
    lancekeep.backup(f"{local.above}/backup", f"{local.above}/restored")
    with local.connect(f"{local.above}/restored") as catalog:
        report = lancekeep.verify(catalog)
        assert not report.problems, report
        catalog.write("ml.events", rows("afterwards", 0), "append")


def test_cursors_of_events_expire_and_positions_of_subscribers_stay(local: Lake) -> None:
    with local.connect() as catalog:
        catalog.events.record()
        cursor = catalog.events.latest()
        catalog.write("ml.events", rows("later", 0), "append")
        catalog.events.record()
        Subscription.of(directory_of(catalog), "billing").begin(cursor)
        lancekeep.backup(local.root, f"{local.above}/backup")
        catalog.write("ml.events", rows("lost", 0), "append")
        catalog.events.record()
        lost = catalog.events.latest()
    local.remove(local.root)
    lancekeep.backup(f"{local.above}/backup", local.root)
    local.upkeep("repair", "--deep", "--accept-loss", "--yes")
    with local.connect() as catalog:
        catalog.events.record()
        for number in range(3):
            catalog.write("ml.events", rows("new", number * 2), "append")
            catalog.events.record()
        for each in (cursor, lost):
            with pytest.raises(lancekeep.CursorExpired):
                catalog.events.read(each)
        position = Subscription.of(directory_of(catalog), "billing").position()
        assert position is not None
        assert position.cursor == cursor
    assert local.upkeep("fsck", "--deep")["findings"] == []


def test_backup_in_another_storage_is_restored_from_there(local: Lake, moto_endpoint: str) -> None:
    backup, options = f"s3://{bucket(moto_endpoint)}/lake", s3_options(moto_endpoint)
    lancekeep.backup(local.root, backup, target_storage_options=options)
    with lancekeep.connect(backup, storage_options=options, commit_store=local.connection["commit_store"]) as catalog:
        assert catalog.open("ml.clone").to_table().num_rows == 6
        assert catalog.open("ml.events", branch="trial").to_table().num_rows == 4
    local.remove(local.root)
    lancekeep.backup(backup, local.root, storage_options=options, target_storage_options={})
    assert local.upkeep("fsck", "--deep")["findings"] == []
    judge(local, set(), set())


def test_decided_commit_of_a_crashed_writer_is_in_the_backup(local: Lake, tmp_path: Path) -> None:
    with local.connect() as catalog:
        committed = catalog.write("ml.events", rows("crashed", 0), "append")
    staged = f"{committed.path}-{uuid4()}"
    os.rename(f"/{committed.path}", f"/{staged}")
    with closing(sqlite3.connect(tmp_path / "commits.db")) as store, store:
        change = "UPDATE version_rows SET path = ?, final = 0 WHERE path = ?"
        assert store.execute(change, (staged, committed.path)).rowcount == 1
    lancekeep.backup(local.root, f"{tmp_path}/backup")
    local.remove(local.root)
    lancekeep.backup(f"{tmp_path}/backup", local.root)
    local.upkeep("repair", "--deep", "--yes")
    with local.connect() as catalog:
        assert catalog.open("ml.events").count_rows() == 8


def test_staged_manifest_of_a_commit_in_progress_is_left_out(local: Lake, tmp_path: Path) -> None:
    calls = count()

    def stage(_: int, __: int, what: str) -> None:
        if what == "listing versions" and next(calls) == 1:  # after the listing that shows what was there before
            first = next(Path(local.root).glob("*ml$events/_versions/*.manifest"))
            shutil.copy(first, f"{first}-{uuid4()}")

    lancekeep.backup(local.root, f"{tmp_path}/backup", progress=stage)
    assert [path for path in contents(local.root) if ".manifest-" in path]
    assert not [path for path in contents(f"{tmp_path}/backup") if ".manifest-" in path]


def test_staged_manifest_of_a_published_version_is_left_out(local: Lake, tmp_path: Path) -> None:
    """Its writer removes it after the listing that shows what was there before."""
    for manifest in list(Path(local.root).rglob("_versions/*.manifest")):
        shutil.copy(manifest, f"{manifest}-{uuid4()}")
    lancekeep.backup(local.root, f"{tmp_path}/backup")
    assert [path for path in contents(local.root) if ".manifest-" in path]
    assert not [path for path in contents(f"{tmp_path}/backup") if ".manifest-" in path]


def test_records_of_ingested_files_are_copied_up_to_the_latest_version(local: Lake, tmp_path: Path) -> None:
    [table] = Path(local.root).glob("*ml$events")
    directory = table / "_ingested"
    directory.mkdir()
    own, later = (f"{version:020}.{'a' * 32}.b-settled.arrow" for version in (3, 4))
    for name in (own, later):
        (directory / name).touch()
    report = lancekeep.backup(local.root, f"{tmp_path}/backup")
    assert report.changed == ()
    assert [path.name for path in Path(tmp_path, "backup", table.name, "_ingested").iterdir()] == [own]
    (directory / later).rename(directory / later.replace(".b-", "-and-before.b-"))
    report = lancekeep.backup(local.root, f"{tmp_path}/backup")  # it also has records of versions in the backup
    assert report.changed == (table.name,)


# -- two processes -----------------------------------------------------------------------------------------------------


def test_second_backup_into_the_same_target_is_refused_while_the_first_runs(local: Lake) -> None:
    backup, steps, errors = f"{local.above}/backup", Counter[str](), []

    def try_too(done: int, total: int, what: str) -> None:
        steps[what] += 1
        if what in ("copying manifests", "removing files") and steps[what] == 1:
            with pytest.raises(
                lancekeep.Refused, match=r"another process, .* \d+, writes a backup to .*backup\. Noth"
            ) as error:
                lancekeep.backup(local.root, backup)
            errors.append(error.value)

    lancekeep.backup(local.root, backup, progress=try_too)
    assert len(errors) == 1
    with local.connect() as catalog:
        catalog.drop_table("ml.clone", keep=0)
    steps.clear()
    lancekeep.backup(local.root, backup, progress=try_too)
    assert len(errors) == 3
    assert not [path for path in contents(backup) if "lancekeep-maintenance" in path]
    lancekeep.backup(local.root, backup)


def test_backup_on_a_file_system_without_hard_links_has_no_claim(local: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EPERM, "no hard links")

    backup = f"{local.above}/backup"
    with monkeypatch.context() as patched:
        patched.setattr(os, "link", refused)
        for _ in range(2):
            assert lancekeep.backup(local.root, backup).changed == ()
    local.remove(local.root)
    lancekeep.backup(backup, local.root)
    judge(local, set(), set())


def test_backup_that_another_process_completed_in_the_meantime_is_not_written_again(local: Lake) -> None:
    backup, calls = f"{local.above}/backup", count()

    def act(*_: object) -> None:
        if next(calls) == 0:  # while it lists the source
            lancekeep.backup(local.root, backup)

    with pytest.raises(lancekeep.Refused, match=r"another process has written a backup to .* in the meantime"):
        lancekeep.backup(local.root, backup, progress=act)
    lancekeep.backup(backup, f"{local.above}/restored")


def test_restore_beside_a_backup_into_its_source_is_not_complete(local: Lake) -> None:
    backup, restored = f"{local.above}/backup", f"{local.above}/restored"
    lancekeep.backup(local.root, backup)

    def act(done: int, total: int, what: str) -> None:
        if what == "copying manifests" and not done:
            with local.connect() as catalog:
                catalog.write("ml.events", rows("later", 0), "append")
            lancekeep.backup(local.root, backup)

    with pytest.raises(lancekeep.ConcurrentModification, match="was the target of a backup while it was copied"):
        lancekeep.backup(backup, restored, progress=act)
    lancekeep.backup(backup, restored)


# -- a damaged backup ------------------------------------------------------------------------------------------------


def some_data_file(backup: str) -> Path:
    return min(Path(backup).glob("*ml$events/data/*"))


def latest_manifest(backup: str) -> Path:
    return min(Path(backup).glob("*ml$events/_versions/*.manifest"))


def cut_data_file(backup: str) -> str:
    file = some_data_file(backup)
    size = file.stat().st_size
    os.truncate(file, 100)
    return rf"has lost 1 files since it was a complete backup: .*{file.name} \(100 of {size:,} bytes\)\. Nothing"


def remove_data_file(backup: str) -> str:
    some_data_file(backup).unlink()
    return r"has lost 1 files since it was a complete backup: .*ml\$events/data/.*\.lance \(missing\)\. Nothing"


def remove_latest_manifest(backup: str) -> str:
    latest_manifest(backup).unlink()
    return r"has lost 1 files since it was a complete backup: .*_versions/.*\.manifest \(missing\)\. Nothing"


def remove_all_tables(backup: str) -> str:
    for each in Path(backup).iterdir():
        if each.is_dir():
            shutil.rmtree(each)
    return r"has lost \d+ files .* and \d+ more\. Nothing"


def remove_a_file_and_the_list(backup: str) -> str:
    some_data_file(backup).unlink()
    Path(backup, FILES).unlink()
    return "files were lost or changed since the backup in .* was complete"


def change_the_record(backup: str) -> str:
    record = Path(backup, RECORD)
    record.write_text(json.dumps(json.loads(record.read_text()) | {"contents": "0" * 32}))
    return "files were lost or changed since the backup in .* was complete"


def cut_the_record(backup: str) -> str:
    os.truncate(Path(backup, RECORD), 20)
    return "is not the record of a backup of this release, or was changed"


def nest_the_record(backup: str) -> str:
    Path(backup, RECORD).write_text("[" * 100_000)
    return "is not the record of a backup of this release, or was changed"


def nest_the_list(backup: str) -> str:
    """Replace the list of files by one that nests, with the digest that the record has of it."""
    content, record = b"[" * 100_000, Path(backup, RECORD)
    Path(backup, FILES).write_bytes(content)
    fields = json.loads(record.read_text()) | {"contents": blake2b(content, digest_size=16).hexdigest()}
    record.write_text(json.dumps(fields))
    return "files were lost or changed since the backup in .* was complete"


DAMAGES = (cut_data_file, remove_data_file, remove_latest_manifest, remove_all_tables)
DAMAGES_OF_THE_RECORD = (
    *(remove_a_file_and_the_list, change_the_record, cut_the_record),
    *(nest_the_record, nest_the_list),
)


@pytest.mark.parametrize("damage", [*DAMAGES, *DAMAGES_OF_THE_RECORD])
def test_damaged_backup_is_not_restored(local: Lake, damage: Callable[[str], str]) -> None:
    backup, restored = f"{local.above}/backup", f"{local.above}/restored"
    lancekeep.backup(local.root, backup)
    message = damage(backup)
    with pytest.raises(lancekeep.Damaged, match=message):
        lancekeep.backup(backup, restored)
    assert not Path(restored).exists()
    assert CliRunner().invoke(command, ["backup", backup, restored], obj=lancekeep).exit_code == 1
    if damage is remove_all_tables:
        return
    local.run("backup", backup, restored, "--accept-loss")
    left = contents(backup)
    assert {path for path in contents(restored) if path not in (RECORD, FILES)} == left.keys() - {RECORD, FILES}


@pytest.mark.parametrize("act", ["append", "cleanup", "drop"])
def test_restored_catalog_in_use_is_backed_up(local: Lake, act: str) -> None:
    backup, restored = f"{local.above}/backup", f"{local.above}/restored"
    lancekeep.backup(local.root, backup)
    lancekeep.backup(backup, restored)
    with local.connect(restored) as catalog:
        if act == "append":
            catalog.write("ml.events", rows("user", 0), "append")
        elif act == "drop":
            catalog.drop_table("ml.clone", keep=0)
        else:
            catalog.write("ml.events", rows("user", 0), "overwrite")
            catalog.tags.delete("ml.events", "first")
            catalog.upkeep.cleanup(timedelta(0), keep=1, grace=timedelta(0))
    lancekeep.backup(restored, f"{local.above}/second")


def test_restore_of_a_whole_backup_reads_no_list_of_files(local: Lake) -> None:
    """The listing and the digest in the record suffice."""
    backup = f"{local.above}/backup"
    lancekeep.backup(local.root, backup)
    Path(backup, FILES).unlink()
    lancekeep.backup(backup, f"{local.above}/restored")


# -- the page ------------------------------------------------------------------------------------------------------


def part_of_page(home: Path, first: str, last: str) -> Path:
    """Return a part of the page as a file of its own."""
    text = (ROOT / "docs" / PAGE).read_text()
    found = home / "part.md"
    found.write_text(text[text.index(first) : text.index(last)])
    return found


@pytest.mark.parametrize("kind", ["sqlite", "redis-s3"])
def test_drill_of_the_page_beside_writers(
    kind: str, tmp_path: Path, moto_endpoint: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    buckets = ("bucket-2", "bucket", "backups", "drill")
    if kind == "sqlite":
        store, last, options = f"sqlite://{tmp_path}/commits.db", f"sqlite://{tmp_path}/second.db", {}
        places = {f"s3://{each}/": f"{tmp_path}/{each}/" for each in buckets}
    else:
        store, options = redis_url, s3_options(moto_endpoint)
        last = f"dynamodb://{tmp_path.name}-{free_port()}?endpoint_url={moto_endpoint}"
        places = {f"s3://{each}/": f"s3://{bucket(moto_endpoint)}/" for each in buckets}
        for name, value in options.items():
            monkeypatch.setenv(f"LANCEKEEP_STORAGE__{name.upper()}", value)
    places |= {"redis://cache:6379/0": store, "dynamodb://lance-commits": f"'{last}'"}
    lake = Lake(places["s3://bucket/"].rstrip("/"), options, {"commit_store": store})
    filled(lake)
    writers, acknowledged = Writers(lake, calm=True), set[tuple[int, str]]()
    running = ExitStack()

    def before(line: str) -> None:
        words = line.split()
        if words[:2] != ["lancekeep", "backup"]:
            return
        if words[2] == lake.root:
            running.enter_context(writers.running())
            writers.wait_for(10)
            acknowledged.update(writers.acknowledged)
        elif words[3].startswith(places["s3://drill/"]):
            running.close()
        elif words[3] == lake.root:
            lake.remove(lake.root)
        elif words[3].startswith(places["s3://bucket-2/"]):
            judge(lake, acknowledged, writers.tried)
            lake.remove(lake.root)

    with running:
        assert Reader(places, before=before).read(part_of_page(tmp_path, "## Back up", "## Entries in PostgreSQL")) == 4
    assert writers.faults == []
    assert len(acknowledged) >= 10
    moved = attrs.evolve(lake, connection={"commit_store": last})
    judge(moved, acknowledged, writers.tried, f"{places['s3://bucket-2/']}lake")
    drill = attrs.evolve(lake, connection={"commit_store": "conditional-put://"})
    judge(drill, acknowledged, writers.tried, f"{places['s3://drill/']}lake")


def test_drill_of_the_page_with_entries_in_postgresql(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with new_server() as server:
        server.run("CREATE DATABASE lake")
        url = server.url("lake")
        migrate_schema(url)
        places = {"s3://bucket/": f"{tmp_path}/bucket/", "s3://backups/": f"{tmp_path}/backups/"}
        places |= {f"postgresql://{role}@db/lake": url for role in ("lake_owner", "lake_writer")}
        store = {"manifest_store": f"{url}?catalog=prod", "commit_store": url}
        lake = Lake(f"{tmp_path}/bucket", {}, store)
        filled(lake)
        text = part_of_page(tmp_path, "## Entries in PostgreSQL", "## In another way")
        back_up, restore = text.read_text().split("To restore, replace")
        with Writers(lake, calm=True, designing=False).running() as writers:
            writers.wait_for(10)
            acknowledged = set(writers.acknowledged)
            text.write_text(back_up)
            assert Reader(places).read(text) == 1
        assert writers.faults == []
        lake.remove(lake.root)
        text.write_text(restore)
        assert Reader(places).read(text) == 1
        judge(lake, acknowledged, writers.tried)
