"""Automatic maintenance beside writers: rows, readers, tags, branches, clones, leases and faults."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from threading import Event, Thread

import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner

import lancekeep
from lancekeep.application.catalog import directory_of
from lancekeep.application.rows.committed_tables import CommittedTables
from lancekeep.application.upkeep.automatic_maintenance import TERM, AutomaticMaintenance
from lancekeep.application.upkeep.cleanup import Cleanup
from lancekeep.application.upkeep.lease import Lease
from lancekeep.domain.errors import StoreUnavailable
from lancekeep.domain.identifiers import ObjectId
from lancekeep.entrypoints.cli import lancekeep as commands

AT_ONCE = {"lancekeep.maintenance.older_than": "0", "lancekeep.maintenance.keep": "1"}


class Maintained:
    """A catalog, and its maintenance without a thread and with a clock of its own."""

    def __init__(self, directory: Path) -> None:
        self.now = 0.0
        self.catalog = lancekeep.connect(str(directory / "lake"), commit_store=f"sqlite://{directory}/commits.db")
        own = directory_of(self.catalog)
        self.committed = CommittedTables(lambda: None)
        self.elsewhere = set[ObjectId]()
        self.maintenance = AutomaticMaintenance(
            own.ledger,
            own.places,
            own.removal.clones,
            own.engine,
            own.compactions,
            self.committed,
            self.elsewhere.__contains__,
            clock=lambda: self.now,
        )

    def append(self, table: str, times: int) -> None:
        for number in range(times):
            self.catalog.write(table, pa.table({"id": [number]}), "append")

    def run(self, table: str, passed: float = 1000.0) -> None:
        """Maintain a table after commits and some time."""
        self.now += passed
        for _ in range(25):
            self.committed.add(ObjectId.of(table))
        self.maintenance.run_once()

    def state(self, table: str) -> tuple[int, int]:
        """Return the numbers of fragments and of versions."""
        history = list(self.catalog.versions.history(table))
        return len(stored(self.catalog, table).get_fragments()), len(history)


def stored(catalog: lancekeep.Catalog, table: str, version: int | None = None) -> lance.LanceDataset:
    """Return the table as plain pylance reads it."""
    return lance.dataset(catalog.describe_table(table).uri, version=version)


def ids(dataset: lance.LanceDataset) -> list[int]:
    return sorted(dataset.to_table()["id"].to_pylist())


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Maintained]:
    found = Maintained(tmp_path)
    with found.catalog as catalog:
        catalog.create_namespace("ml")
        catalog.write("ml.t", pa.table({"id": [0]}))
        yield found


def test_rows_are_exact_beside_writers_of_a_maintained_catalog(tmp_path: Path) -> None:
    root, commit_store = str(tmp_path / "lake"), f"sqlite://{tmp_path}/commits.db"
    with lancekeep.connect(root, commit_store=commit_store, maintenance="auto") as catalog:
        catalog.create_namespace("ml")
        catalog.write("ml.t", pa.table({"id": [0]}))
        for name, value in AT_ONCE.items():
            catalog.alter_namespace("", {name: value})
        stop, written = Event(), [list[int]() for _ in range(8)]

        def write(me: int) -> None:
            while not stop.is_set():
                number = me * 1_000_000 + len(written[me]) + 1
                catalog.write("ml.t", pa.table({"id": [number]}), "append")
                written[me].append(number)

        writers = [Thread(target=write, args=(me,)) for me in range(8)]
        for writer in writers:
            writer.start()
        done = directory_of(catalog).automatic.actions
        while not (done["compact", False] and done["clean up", False]) and writers[0].is_alive():
            writers[0].join(0.05)
        stop.set()
        for writer in writers:
            writer.join()
        assert not [each for each in done if each[1]]
    expected = sorted([0, *(number for each in written for number in each)])
    with lancekeep.connect(root, commit_store=commit_store) as catalog:
        assert ids(stored(catalog, "ml.t")) == expected
        assert len(stored(catalog, "ml.t").get_fragments()) < len(expected) / 8
        assert catalog.upkeep.fsck(deep=True).findings == ()


def test_tags_branches_clones_and_detached_rows_keep_their_versions(lake: Maintained) -> None:
    catalog = lake.catalog
    lake.append("ml.t", 60)
    catalog.tags.create("ml.t", "kept", 3)
    catalog.branches.create("ml.t", "dev", version=5)
    catalog.clone("ml.t", "ml.c", 7)
    catalog.alter_table("ml.t", AT_ONCE)
    lake.run("ml.t")  # compacts and removes versions
    lake.run("ml.t")
    fragments, versions = lake.state("ml.t")
    assert (fragments, versions) == (1, 3)
    assert len(ids(stored(catalog, "ml.t"))) == 61
    assert len(ids(stored(catalog, "ml.t", 3))) == 3
    assert catalog.open("ml.t", branch="dev").count_rows() == 5
    assert len(ids(stored(catalog, "ml.c"))) == 7
    lake.append("ml.c", 20)
    lake.run("ml.c")
    assert len(stored(catalog, "ml.c").get_fragments()) == 27  # those of a clone are not merged
    assert catalog.upkeep.fsck(deep=True).findings == ()


def test_readers_within_the_grace_time_keep_their_version(lake: Maintained) -> None:
    lake.catalog.alter_table("ml.t", {"lancekeep.maintenance.keep": "1"})
    lake.append("ml.t", 40)
    reader = stored(lake.catalog, "ml.t", 20)
    lake.run("ml.t", passed=3000)
    assert lake.state("ml.t") == (1, 42)
    assert len(ids(reader)) == 20
    assert lake.maintenance.actions == {("compact", False): 1}


def test_versions_expire_without_new_commits(lake: Maintained, monkeypatch: pytest.MonkeyPatch) -> None:
    module = "lancekeep.application.upkeep.automatic_maintenance"
    later = datetime.now(UTC) + timedelta(hours=2)
    monkeypatch.setattr(f"{module}.Cleanup", partial(Cleanup, now=lambda: later))
    lake.catalog.alter_table("ml.t", {"lancekeep.maintenance.keep": "1"})
    lake.append("ml.t", 40)
    for _ in range(2):  # the compaction is a new version
        lake.run("ml.t")
    lake.now += 3600
    lake.maintenance.run_once()
    assert lake.state("ml.t") == (1, 42)  # the storage does not say that they are older
    monkeypatch.setattr(f"{module}.Lease.present", lambda lease: later)
    lake.now += 10
    lake.maintenance.run_once()
    assert lake.state("ml.t") == (1, 1)


def test_versions_that_expire_during_a_clean_up_are_removed_without_new_commits(
    lake: Maintained, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Cleanup.run

    def run(cleanup: Cleanup, *, dry_run: bool) -> object:
        found = original(cleanup, dry_run=dry_run)
        lake.append("ml.t", 40)  # this process has not counted them yet
        return found

    lake.catalog.alter_table("ml.t", AT_ONCE)
    lake.append("ml.t", 40)
    with monkeypatch.context() as beside:
        beside.setattr(Cleanup, "run", run)
        lake.run("ml.t")
    assert lake.state("ml.t") == (41, 41)
    lake.now += 10
    lake.maintenance.run_once()
    assert lake.state("ml.t") == (2, 1)
    assert len(ids(stored(lake.catalog, "ml.t"))) == 81


def test_the_copy_of_a_merged_table_does_not_stay_once_its_writers_pause(lake: Maintained) -> None:
    lake.catalog.alter_table("ml.t", AT_ONCE)
    lake.append("ml.t", 10)
    lake.run("ml.t")
    assert lake.state("ml.t") == (1, 12)
    lake.now += 10
    lake.maintenance.run_once()
    assert lake.state("ml.t") == (1, 1)
    assert lake.maintenance.actions == {("compact", False): 1, ("clean up", False): 1}


def test_clean_ups_end_if_tags_keep_all_versions_before_a_merge(
    lake: Maintained, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.append("ml.t", 10)
    for version in range(1, 12):
        lake.catalog.tags.create("ml.t", f"v{version}", version)
    lake.catalog.alter_table("ml.t", AT_ONCE)
    original, runs = Cleanup.run, list[bool]()

    def run(cleanup: Cleanup, *, dry_run: bool) -> object:
        runs.append(dry_run)
        return original(cleanup, dry_run=dry_run)

    monkeypatch.setattr(Cleanup, "run", run)
    lake.run("ml.t")
    for _ in range(8):
        lake.now += 1000
        lake.maintenance.run_once()
    assert len(runs) == 4
    assert lake.state("ml.t") == (1, 12)


def test_what_is_behind_is_shown(lake: Maintained, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.catalog.alter_table("ml.t", AT_ONCE)
    lake.append("ml.t", 40)
    with monkeypatch.context() as broken:
        broken.setattr(Cleanup, "run", lambda cleanup, dry_run: 1 // 0)
        lake.run("ml.t")
    assert lake.maintenance.expired() == 40
    lake.now += 5
    assert lake.maintenance.since() == {"compact": 5}
    lake.run("ml.t")
    assert lake.maintenance.expired() == 0
    lake.now += 3
    assert lake.maintenance.since()["clean up"] == 3


def test_an_orphan_and_a_foreign_file_stay(lake: Maintained) -> None:
    catalog = lake.catalog
    directory = Path(catalog.describe_table("ml.t").uri.removeprefix("file://"))
    kept = [directory / "data" / f"{'0' * 48}.lance", directory / "notes.txt"]
    for path in kept:
        path.write_bytes(b"mine")
    catalog.alter_table("ml.t", AT_ONCE)
    lake.append("ml.t", 40)
    lake.run("ml.t")
    assert lake.state("ml.t") == (1, 1)
    assert all(path.exists() for path in kept)


@pytest.mark.parametrize("of", ["", "ml.t"])
def test_a_property_switches_maintenance_off(lake: Maintained, of: str) -> None:
    alter = lake.catalog.alter_table if of else lake.catalog.alter_namespace
    alter(of, {"lancekeep.maintenance": "off"})
    lake.append("ml.t", 40)
    lake.run("ml.t")
    assert lake.state("ml.t") == (41, 41)
    lake.catalog.alter_table("ml.t", {"lancekeep.maintenance": "auto", **AT_ONCE})
    lake.run("ml.t")
    assert lake.state("ml.t") == (1, 1)
    assert lake.catalog.describe_table("ml.t").properties["lancekeep.maintenance"] == "auto"


def test_describe_shows_the_policy_in_force(lake: Maintained) -> None:
    catalog = lake.catalog

    def shown(name: str) -> str:
        store = f"sqlite://{Path(catalog.root_uri.removeprefix('file://')).parent}/commits.db"
        arguments = ["describe", catalog.root_uri, name, "--commit-store", store, "-o", "json"]
        done = CliRunner().invoke(commands, arguments, obj=lancekeep)
        assert done.exit_code == 0, done.output
        return str(json.loads(done.stdout)["maintenance"])

    assert shown("ml.t") == shown("") == "auto: older_than 1h, keep 100, target_rows 1048576"
    catalog.alter_namespace("", {"lancekeep.maintenance.older_than": "36h"})
    catalog.alter_table("ml.t", {"lancekeep.maintenance.keep": "7"})
    assert shown("ml.t") == "auto: older_than 36h, keep 7, target_rows 1048576"
    assert shown("ml") == "auto: older_than 36h, keep 100, target_rows 1048576"
    catalog.protect("ml")
    assert (shown("ml.t"), shown("ml")) == ("off", "off")
    catalog.alter_table("ml.t", {"lancekeep.maintenance": "auto"})
    assert shown("ml.t") == "auto: older_than 36h, keep 7, target_rows 1048576"


SPARED: dict[str, Callable[[lancekeep.Catalog], object]] = {
    "protected": lambda catalog: catalog.protect("ml"),
    "left to the storage": lambda catalog: catalog.alter_table("ml.t", {"lancekeep.managed": "storage"}),
    "LSM writes": lambda catalog: catalog.alter_table("ml.t", {"lancekeep.lsm": "allowed"}),
}


@pytest.mark.parametrize("why", SPARED)
def test_a_spared_table_is_left_alone_unless_it_asks(lake: Maintained, why: str) -> None:
    SPARED[why](lake.catalog)
    lake.append("ml.t", 10)
    before = lake.state("ml.t")
    lake.run("ml.t")
    assert lake.state("ml.t") == before
    lake.catalog.alter_table("ml.t", {"lancekeep.maintenance": "auto"})
    lake.run("ml.t")
    assert lake.state("ml.t")[0] == 1


def test_an_index_gets_new_rows_and_answers_as_the_scan(lake: Maintained) -> None:
    catalog = lake.catalog
    lake.append("ml.t", 10)
    catalog.structure.create_index("ml.t", lancekeep.NewIndex("id", "BTREE"))
    lake.append("ml.t", 20)
    lake.run("ml.t")
    lake.run("ml.t")
    dataset = stored(catalog, "ml.t")
    assert lake.maintenance.actions == {("compact", False): 1, ("index", False): 1}
    assert dataset.stats.index_stats("id_idx")["num_unindexed_rows"] == 0
    assert dataset.count_rows("id = 9") == 2
    assert lancekeep.verify(catalog, indexes=True).problems == ()


def test_one_process_at_a_time_maintains_a_table(lake: Maintained, tmp_path: Path) -> None:
    other = Maintained(tmp_path)
    with other.catalog:
        lake.append("ml.t", 10)
        held = Event(), Event()
        original = lake.maintenance._compactions.compact

        def compact(*arguments: object, **options: object) -> object:
            other.run("ml.t")
            assert other.maintenance.actions == {}
            held[0].set()
            return original(*arguments, **options)  # type: ignore[arg-type]

        lake.maintenance._compactions = type("Held", (), {"compact": staticmethod(compact)})()
        lake.run("ml.t")
        assert held[0].is_set()
        assert lake.maintenance.actions == {("compact", False): 1}
        other.run("ml.t")
        assert other.maintenance.actions == {}  # nothing is left to do
    assert not list(Path(tmp_path / "lake" / ".lancekeep-maintenance").glob("*"))


def test_a_table_whose_commits_another_process_makes_is_left_to_that_process(lake: Maintained, tmp_path: Path) -> None:
    other, table = Maintained(tmp_path), ObjectId.of("ml.t")
    with other.catalog:
        lake.append("ml.t", 10)
        lake.maintenance._release = lambda state: None  # type: ignore[method-assign] # it keeps its lease
        lake.run("ml.t")
        del lake.maintenance._release
        lake.append("ml.t", 10)
        lake.elsewhere.add(table)
        lake.run("ml.t")
        assert lake.maintenance.actions == {("compact", False): 1}
        other.run("ml.t")  # without waiting for the end of the lease
        assert other.maintenance.actions == {("compact", False): 1}
        lake.append("ml.t", 10)
        lake.elsewhere.remove(table)  # the other process has ended
        lake.now += 10
        lake.maintenance.run_once()
        assert lake.maintenance.actions == {("compact", False): 2}


def test_the_lease_of_a_killed_process_ends(lake: Maintained, tmp_path: Path) -> None:
    other = Maintained(tmp_path)
    with other.catalog:
        lake.append("ml.t", 10)
        lake.maintenance._release = lambda state: None  # type: ignore[method-assign] # as if it were killed
        lake.run("ml.t")
        lake.append("ml.t", 10)
        other.run("ml.t")
        other.run("ml.t", TERM - 1)
        assert other.maintenance.actions == {}
        other.run("ml.t", TERM)
        assert other.maintenance.actions == {("compact", False): 1}


def test_failures_are_counted_logged_and_repeated_after_a_pause(
    lake: Maintained, caplog: pytest.LogCaptureFixture
) -> None:
    lake.append("ml.t", 10)

    def compact(*arguments: object, **options: object) -> object:
        raise OSError("no space left")

    original = lake.maintenance._compactions
    lake.maintenance._compactions = type("Broken", (), {"compact": staticmethod(compact)})()
    lake.run("ml.t")
    assert lake.maintenance.actions == {("compact", True): 1}
    [said] = [each.getMessage() for each in caplog.records if "maintenance" in each.getMessage()]
    root = lake.catalog.root_uri
    assert said == f"Automatic maintenance of {root}: ml.t: compact failed, and runs again later: no space left"
    lake.maintenance._compactions = original
    lake.run("ml.t", passed=1)
    assert lake.maintenance.actions == {("compact", True): 1}
    lake.now += 10
    lake.maintenance.run_once()
    assert lake.maintenance.actions == {("compact", True): 1, ("compact", False): 1}


class Panic(BaseException):
    """As a panic of native code, which is no Exception."""


def test_a_table_that_fails_does_not_keep_others_from_maintenance(
    lake: Maintained, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.catalog.write("ml.u", pa.table({"id": [0]}))
    lake.catalog.alter_namespace("", AT_ONCE)
    examined, compact = lake.maintenance._examined, lake.maintenance._compactions.compact

    def examine(table: ObjectId, state: object) -> object:
        if str(table) == "ml.u":
            raise ValueError("not a manifest")
        return examined(table, state)  # type: ignore[arg-type]

    def compact_or_panic(table: ObjectId, *arguments: object, **options: object) -> object:
        if str(table) == "ml.u":
            raise Panic("unwrap of None")
        return compact(table, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(lake.maintenance, "_compactions", type("Half", (), {"compact": staticmethod(compact_or_panic)}))
    for _ in range(25):
        lake.committed.add(ObjectId.of("ml.u"))
    with monkeypatch.context() as broken:
        broken.setattr(lake.maintenance, "_examined", examine)
        lake.append("ml.t", 40)
        lake.run("ml.t")
    assert lake.maintenance.actions == {("examine", True): 1, ("compact", False): 1, ("clean up", False): 1}
    assert lake.state("ml.t") == (1, 1)
    lake.append("ml.u", 40)
    lake.append("ml.t", 40)
    lake.run("ml.t")
    assert lake.maintenance.actions["compact", True] == 1
    assert lake.state("ml.t")[1] == 1


def test_a_clean_up_without_its_lease_is_repeated(lake: Maintained, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.catalog.alter_table("ml.t", AT_ONCE)
    lake.append("ml.t", 40)

    def present(lease: Lease) -> None:
        raise StoreUnavailable("the storage does not answer")

    with monkeypatch.context() as broken:
        broken.setattr(Lease, "present", present)
        lake.run("ml.t")
    assert lake.maintenance.actions == {("compact", False): 1, ("clean up", True): 1}
    lake.now += 100
    lake.maintenance.run_once()
    assert lake.state("ml.t") == (1, 1)


def test_a_table_that_cannot_be_cleaned_rests_while_others_are_cleaned(
    lake: Maintained, caplog: pytest.LogCaptureFixture
) -> None:
    lake.catalog.write("ml.u", pa.table({"id": [0]}))
    lake.catalog.alter_namespace("", AT_ONCE)
    tags = Path(lake.catalog.describe_table("ml.u").uri.removeprefix("file://")) / "_refs" / "tags"
    tags.mkdir(parents=True)
    (tags / "torn.json").write_text("{")
    lake.append("ml.u", 40)
    for passed in (1000, 6, 6, 6):
        lake.append("ml.t", 30)
        for _ in range(25):
            lake.committed.add(ObjectId.of("ml.u"))
        lake.run("ml.t", passed)
    assert lake.state("ml.t")[1] == 1
    assert lake.state("ml.u")[1] == 42
    assert caplog.text.count("ml.u: clean up: skipped") == 3  # the pauses last 5 and 10 seconds


def test_few_of_the_idle_tables_are_remembered(lake: Maintained, monkeypatch: pytest.MonkeyPatch) -> None:
    rests = list[float]()
    monkeypatch.setattr(lake.maintenance, "_rest", rests.append)
    monkeypatch.setattr(lake.maintenance, "_examined", lambda table, state: state.listed(0, 0, None))
    monkeypatch.setattr("lancekeep.application.upkeep.automatic_maintenance._MOST_STATES", 100)
    monkeypatch.setattr("lancekeep.application.upkeep.automatic_maintenance._SLICE", 1e-12)
    for number in range(1000):
        lake.committed.add(ObjectId.of(f"ml.t{number}"))
    lake.maintenance.run_once()
    assert len(rests) == 999
    lake.maintenance.run_once()
    assert len(rests) == 999
    assert list(map(str, lake.maintenance._states)) == [f"ml.t{number}" for number in range(900, 1000)]


def test_a_table_that_is_dropped_is_forgotten(lake: Maintained) -> None:
    lake.append("ml.t", 10)
    lake.run("ml.t")
    lake.catalog.drop_table("ml.t")
    lake.run("ml.t")
    assert lake.maintenance.actions == {("compact", False): 1}


WRITER = """
import sys
import pyarrow as pa
import lancekeep
catalog = lancekeep.connect(sys.argv[1], commit_store=sys.argv[2], maintenance="auto")
for number in range(1_000_000):
    catalog.write("ml.t", pa.table({"id": [int(sys.argv[3]) * 1_000_000 + number]}), "append")
    print(number, flush=True)
"""


def test_rows_are_exact_after_kills(tmp_path: Path) -> None:
    root, commit_store = str(tmp_path / "lake"), f"sqlite://{tmp_path}/commits.db"
    with lancekeep.connect(root, commit_store=commit_store) as catalog:
        catalog.create_namespace("ml")
        catalog.write("ml.t", pa.table({"id": [-1]}))
        catalog.alter_table("ml.t", AT_ONCE)
        acknowledged = list[int]()
        leases = tmp_path / "lake" / ".lancekeep-maintenance"
        for turn in (1, 2):
            shutil.rmtree(leases, ignore_errors=True)  # the lease of the killed process has ended
            called = [sys.executable, "-c", WRITER, root, commit_store, str(turn)]
            with subprocess.Popen(called, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                lines = [process.stdout.readline() for _ in range(40)]
                while not list(leases.glob("*/*")):
                    lines.append(process.stdout.readline())
                lines += [process.stdout.readline() for _ in range(4 * turn)]  # in the middle of the maintenance
                process.send_signal(signal.SIGKILL)
                lines += process.stdout.readlines()
            acknowledged += [turn * 1_000_000 + int(line) for line in lines if line.endswith("\n")]
        found = ids(stored(catalog, "ml.t"))
        unacknowledged = set(found) - {-1, *acknowledged}
        assert len(found) == len(set(found))
        assert {-1, *acknowledged} <= set(found)
        assert len(unacknowledged) <= 2
        left = {"stuck commit", "leftover staged manifest", "leftover file", "unrecorded version"}
        assert not [each for each in catalog.upkeep.fsck(deep=True).findings if each.kind.value not in left]


def test_a_closed_catalog_ends_its_thread(tmp_path: Path) -> None:
    catalog = lancekeep.connect(str(tmp_path / "lake"), maintenance="auto")
    catalog.write("t", pa.table({"id": [0]}))
    automatic = directory_of(catalog).automatic
    catalog.close()
    assert automatic.close(0)
    assert not automatic._thread or not automatic._thread.is_alive()


def test_an_unknown_value_is_refused(tmp_path: Path) -> None:
    with pytest.raises(lancekeep.InvalidInput, match="unknown maintenance 'yes'; choose auto, off"):
        lancekeep.connect(str(tmp_path), maintenance="yes")
    catalog = lancekeep.connect(str(tmp_path / "lake"))
    catalog.write("t", pa.table({"id": [0]}))
    with pytest.raises(lancekeep.InvalidInput, match="'auto' and 'off'"):
        catalog.alter_table("t", {"lancekeep.maintenance": "on"})
    with pytest.raises(lancekeep.InvalidInput, match="root namespace and of tables"):
        catalog.create_namespace("ml", {"lancekeep.maintenance.keep": "5"})
    done = CliRunner().invoke(commands, ["serve", str(tmp_path / "lake"), "--maintenance", "never"], obj=lancekeep)
    assert (done.exit_code, "cannot read the maintenance policy never" in done.stderr) == (2, True)
