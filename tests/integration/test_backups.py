"""A backup beside writers is a complete catalog: what was acknowledged before it began is there, and nothing twice."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from threading import Condition, Event, Thread
from typing import Any

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
from lancekeep.composition import migrate_schema
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
            while not self._stop.is_set():
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
        elif words[3] == lake.root:
            running.close()
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
