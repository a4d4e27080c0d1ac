"""Native pylance writers over every commit store: nothing lost, nothing twice, nothing left behind."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import lance
import pyarrow as pa
import pytest
import writers
from deployments import ALL, Deployment, deployment
from lance_namespace import CreateTableVersionRequest

import lancekeep
from lancekeep.application.catalog import directory_of
from lancekeep.domain.naming import ManifestName
from lancekeep.testing.concurrency import PROCESSES

KILLS = int(os.environ.get("LANCEKEEP_KILLS", "2"))


@pytest.fixture(params=ALL)
def place(request: pytest.FixtureRequest, tmp_path: Path, redis_url: str, moto_endpoint: str) -> Deployment:
    return deployment(request.param, tmp_path, redis_url, moto_endpoint)


def open_catalog(place: Deployment) -> lancekeep.Catalog:
    return lancekeep.connect(place.root, commit_store=place.commit_store, storage_options=place.storage_options)


def with_table(place: Deployment) -> lancekeep.Catalog:
    catalog = open_catalog(place)
    catalog.create_namespace("hot")
    catalog.write("hot.t", writers.row(-1, 0))
    return catalog


def rows_of(catalog: lancekeep.Catalog, name: str = "hot.t") -> Counter[tuple[int, int]]:
    table = catalog.open(name).to_table()
    return Counter(zip(table["writer"].to_pylist(), table["number"].to_pylist(), strict=True))


def assert_sound(catalog: lancekeep.Catalog, name: str = "hot.t", *, staged: bool = False) -> int:
    """No gap in the versions, no row without its object, no staged file; how many versions there are."""
    root = directory_of(catalog).places.dataset_root(catalog.find_table(name))
    rows = directory_of(catalog).commits.page(root, None, None, False)
    assert [row.version for row in rows] == list(range(1, len(rows) + 1))
    objects = {info.key: info for info in directory_of(catalog).commits.objects.list(root.versions_key)}
    for row in rows:
        assert objects[row.path].size == row.size
    names = [ManifestName.parse(key.rpartition("/")[2]) for key in objects]
    assert staged or not [found for found in names if found is not None and found.is_staged]
    return len(rows)


@pytest.mark.slow
def test_four_processes_of_two_threads_append_to_one_table(place: Deployment) -> None:
    processes, threads, appends = 4, 2, 5
    catalog = with_table(place)
    start, failures = PROCESSES.Barrier(processes), PROCESSES.Queue()
    running = [
        PROCESSES.Process(
            target=writers.append_in_threads,
            args=(place.properties, number, threads, appends, start, failures),
            daemon=True,
        )
        for number in range(processes)
    ]
    for process in running:
        process.start()
    for process in running:
        process.join()
    assert failures.empty(), failures.get()
    written = rows_of(catalog)
    assert written == Counter({(-1, 0): 1, **{(w, n): 1 for w in range(processes * threads) for n in range(appends)}})
    assert assert_sound(catalog) == 1 + processes * threads * appends
    plain = lance.dataset(catalog.describe_table("hot.t").uri, storage_options=place.storage_options or None)
    assert plain.count_rows() == sum(written.values())


@pytest.mark.slow
def test_killed_writer_loses_nothing_and_does_not_block(place: Deployment, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    catalog = with_table(place)
    ledger = tmp_path / "acknowledged"
    ledger.touch()
    for kill in range(KILLS):
        before = ledger.stat().st_size
        arguments = (place.properties, kill, str(ledger))
        process = PROCESSES.Process(target=writers.append_until_killed, args=arguments, daemon=True)
        process.start()
        while ledger.stat().st_size == before and process.is_alive():
            time.sleep(0.005)  # until it writes; then for a while that is different every time
        time.sleep(chance.random() * 0.05)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        written = rows_of(catalog)
        acknowledged = [line.split(",") for line in ledger.read_text().splitlines()]
        assert all(written[int(w), int(n)] == 1 for w, n in acknowledged), f"kill {kill}"
        assert max(written.values()) == 1
        writers.append(lancekeep.DirectoryNamespace(**place.properties), 1000 + kill, 0)
        assert_sound(catalog, staged=True)


def test_every_native_operation_commits_through_the_namespace(place: Deployment) -> None:
    catalog = with_table(place)
    namespace = lancekeep.DirectoryNamespace(**place.properties)
    dataset = lance.dataset(namespace_client=namespace, table_id=writers.TABLE)
    for number in range(1, 4):
        writers.append(namespace, 0, number)
    dataset = lance.dataset(namespace_client=namespace, table_id=writers.TABLE)
    dataset.tags.create("first", 2)
    dataset.delete("number = 1")
    dataset.update({"number": "number + 10"}, where="number = 2")
    changed = pa.table({"writer": pa.array([0, 9], pa.int64()), "number": pa.array([3, 9], pa.int64())})
    dataset.merge_insert(["writer", "number"]).when_not_matched_insert_all().execute(changed)
    dataset.create_scalar_index("number", "BTREE")
    dataset.optimize.compact_files()
    dataset.add_columns({"double": "number * 2"})
    assert dataset.to_table(filter="number = 12").to_pylist() == [{"writer": 0, "number": 12, "double": 24}]
    assert dataset.checkout_version(2).count_rows() == 2
    assert lance.dataset(namespace_client=namespace, table_id=writers.TABLE, version="first").version == 2
    assert catalog.open("hot.t", tag="first").count_rows() == 2
    old = lance.dataset(namespace_client=namespace, table_id=writers.TABLE, version=4)
    old.restore()
    assert catalog.open("hot.t").count_rows() == 4
    lance.write_dataset(writers.row(5, 5), namespace_client=namespace, table_id=writers.TABLE, mode="overwrite")
    assert rows_of(catalog) == Counter({(5, 5): 1})
    versions = assert_sound(catalog)
    history = catalog.versions.history("hot.t")
    assert [entry.version for entry in history] == list(range(versions, 0, -1))
    assert history[0].operation == "Overwrite"
    assert history[0].rows == 1
    assert history[-1].timestamp.tzinfo is not None
    dataset.cleanup_old_versions(older_than=timedelta(days=1))
    assert catalog.open("hot.t").version == versions


def test_branches_have_histories_of_their_own(place: Deployment) -> None:
    catalog = with_table(place)
    dataset = catalog.open("hot.t")
    branch = dataset.create_branch("trial")
    branch.insert(writers.row(1, 1))
    branch.insert(writers.row(1, 2))
    dataset.insert(writers.row(2, 1))
    assert catalog.open("hot.t", branch="trial").count_rows() == 3
    assert catalog.open("hot.t", 2, branch="trial").count_rows() == 2
    assert catalog.open("hot.t").count_rows() == 2
    dataset.create_branch("again").insert(writers.row(3, 1))
    dataset.branches.delete("again")
    recreated = catalog.open("hot.t").create_branch("again")
    assert recreated.count_rows() == 2
    recreated.insert(writers.row(3, 2))
    assert catalog.open("hot.t", branch="again").count_rows() == 3
    catalog.drop_table("hot.t")
    with pytest.raises(OSError, match="version 4"):
        branch.insert(writers.row(1, 3))


def test_dropped_table_refuses_commits_and_can_be_recreated(place: Deployment) -> None:
    catalog = with_table(place)
    held = catalog.open("hot.t")
    catalog.drop_table("hot.t")
    assert not catalog.table_exists("hot.t")
    with pytest.raises(OSError, match="version 2"):
        held.insert(writers.row(1, 1))
    catalog.write("hot.t", writers.row(2, 0))
    with pytest.raises(OSError, match="version 2"):
        held.insert(writers.row(1, 2))
    assert rows_of(catalog) == Counter({(2, 0): 1})
    assert assert_sound(catalog) == 1


def test_two_creators_of_one_name(place: Deployment) -> None:
    first, second = open_catalog(place), open_catalog(place)
    first.create_namespace("hot")
    first.write("hot.t", writers.row(1, 1))
    with pytest.raises(lancekeep.TableAlreadyExists):
        second.write("hot.t", writers.row(2, 2))
    with pytest.raises(Exception, match="is taken"):
        lance.write_dataset(
            writers.row(3, 3),
            namespace_client=lancekeep.DirectoryNamespace(**place.properties),
            table_id=writers.TABLE,
            mode="create",
        )
    assert rows_of(second) == Counter({(1, 1): 1})


def test_accidental_overwrite_is_refused(place: Deployment) -> None:
    """A manifest built on version 0 would wipe the table; version 1's own manifest is one."""
    catalog = with_table(place)
    root = directory_of(catalog).places.dataset_root(catalog.find_table("hot.t"))
    first = directory_of(catalog).commits.get(root, 1)
    assert first is not None
    content = directory_of(catalog).commits.objects.get(first.path)
    staged = f"{root.versions_key}{2**64 - 1 - 2:020}.manifest-7b1e5eaa-8371-4c00-912e-00784d3391fc"
    directory_of(catalog).commits.objects.put(staged, content)
    namespace = lancekeep.DirectoryNamespace(**place.properties)
    request = CreateTableVersionRequest(id=writers.TABLE, version=2, manifest_path=staged, manifest_size=len(content))
    with pytest.raises(Exception, match="as if the table were empty"):
        namespace.create_table_version(request)
    assert assert_sound(catalog, staged=True) == 1
