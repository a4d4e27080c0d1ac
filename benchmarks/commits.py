"""Commits per second through each commit store, beside native commits in the same run; and what grows with versions.

    python benchmarks/commits.py [--seconds 3] [--redis redis://127.0.0.1:6379/0] [--versions 1000 3000]

Every figure is a ratio against a named peer of the same run: absolute times belong to the machine. A commit here is
metadata only (an Append of a fragment that is already written), so that nothing but the commit is measured.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from lance.commit import CommitConflictError
from lance.fragment import write_fragments
from lance.namespace import DirectoryNamespace as NativeNamespace
from lance_namespace import CreateNamespaceRequest
from results import record

import lancekeep
from lancekeep.application.catalog import directory_of

SPAWN = multiprocessing.get_context("spawn")
ROW = pa.table({"a": pa.array([1], pa.int64())})
Properties = dict[str, str]
SAMPLES = 40


def open_namespace(properties: Properties | None) -> Any:
    """Ours, native with managed versioning, or none at all."""
    if properties is None:
        return None
    if "table_version_tracking_enabled" in properties:
        return NativeNamespace(**properties)
    return lancekeep.DirectoryNamespace(**properties)


def create(namespace: Any, uri: str, table_id: list[str]) -> Any:
    if namespace is None:
        return lance.write_dataset(ROW, uri)
    return lance.write_dataset(ROW, namespace_client=namespace, table_id=table_id, mode="create")


def committer(namespace: Any, dataset: Any, table_id: list[str], *, replacing: bool = False) -> Callable[[], Any]:
    """A call that makes one metadata commit and keeps the handle current.

    ``replacing``: by an Overwrite, so that the manifest stays small and only the number of versions grows.
    """
    fragments = write_fragments(ROW, dataset.uri, mode="append")
    append, overwrite = lance.LanceOperation.Append, lance.LanceOperation.Overwrite
    operation: Any = overwrite(dataset.schema, fragments) if replacing else append(fragments)
    handle = [dataset]
    managed: dict[str, Any] = {}
    if namespace is not None:
        managed = {
            "namespace_client": namespace,
            "table_id": table_id,
            "namespace_client_managed_versioning": True,
        }

    def commit() -> Any:
        read_version = handle[0].version
        handle[0] = lance.LanceDataset.commit(handle[0], operation, read_version=read_version, **managed)
        return handle[0]

    return commit


def write_for(
    seconds: float, properties: Properties | None, uri: str, table_id: list[str], start: Any, counts: Any
) -> None:
    namespace = open_namespace(properties)
    dataset = lance.dataset(uri) if namespace is None else lance.dataset(namespace_client=namespace, table_id=table_id)
    commit, done, lost = committer(namespace, dataset, table_id), 0, Counter[str]()
    start.wait()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        try:
            commit()
            done += 1
        except (CommitConflictError, OSError) as error:
            lost[str(error)[:160]] += 1
    counts.put((done, lost))


def throughput(properties: Properties | None, root: Path, writers: int, tables: int, seconds: float) -> float:
    """Commits per second of ``writers`` processes, spread over ``tables`` tables."""
    namespace = open_namespace(properties)
    if namespace is not None:
        namespace.create_namespace(CreateNamespaceRequest(id=["b"]))
    for table in range(tables):
        create(namespace, f"{root}/plain-{table}", ["b", f"t{table}"])
    start, counts = SPAWN.Barrier(writers), SPAWN.Queue()
    running = [
        SPAWN.Process(
            target=write_for,
            args=(seconds, properties, f"{root}/plain-{n % tables}", ["b", f"t{n % tables}"], start, counts),
        )
        for n in range(writers)
    ]
    for process in running:
        process.start()
    total, failures = 0, Counter[str]()
    for _ in running:
        done, lost = counts.get()
        total += done
        failures += lost
    for process in running:
        process.join()
    for failure, times in failures.items():
        print(f"  {times} commits failed: {failure}", file=sys.stderr)
    return total / seconds


def growth(properties: Properties, versions: list[int]) -> dict[int, tuple[float, float]]:
    """Median seconds of a commit and of a latest read, at each number of versions."""
    namespace = open_namespace(properties)
    namespace.create_namespace(CreateNamespaceRequest(id=["b"]))
    commit = committer(namespace, create(namespace, "", ["b", "grown"]), ["b", "grown"], replacing=True)
    found, have = {}, 1
    for target in versions:
        for _ in range(target - have):
            dataset = commit()
        commits = [timed(commit) for _ in range(SAMPLES)]
        reads = [timed(partial(getattr, dataset, "latest_version")) for _ in range(SAMPLES)]
        found[target] = statistics.median(commits), statistics.median(reads)
        have = target + SAMPLES
    return found


def timed(act: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


class Clocked:
    """A port whose calls are taken out of the time that a callback needs for itself."""

    def __init__(self, target: Any, spent: list[float]) -> None:
        self._target, self._spent = target, spent

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if not callable(value):
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            try:
                return value(*args, **kwargs)
            finally:
                self._spent[0] += time.perf_counter() - begin

        self.__dict__[name] = call  # what is left to measure is the caller, not this double
        return call


def own_time(properties: Properties) -> dict[str, float]:
    """Median microseconds of our own Python in each native callback: the time inside it, less the time in ports."""
    namespace = lancekeep.DirectoryNamespace(**properties, dir_listing_enabled="false")
    catalog, spent, found = namespace.catalog, [0.0], {}
    namespace.create_namespace(CreateNamespaceRequest(id=["b"]))
    manifest = directory_of(catalog).ledger.manifest
    manifest._objects = Clocked(manifest._objects, spent)  # type: ignore[attr-defined] # of the Lance manifest store
    directory_of(catalog).commits.objects = Clocked(directory_of(catalog).commits.objects, spent)
    directory_of(catalog).commits.rows = Clocked(directory_of(catalog).commits.rows, spent)  # type: ignore[assignment] # a double
    for name in ("create_table_version", "describe_table_version", "list_table_versions"):
        samples: list[float] = []
        found[name] = samples
        method = getattr(namespace, name)

        def measured(request: Any, method: Any = method, samples: list[float] = samples) -> Any:
            spent[0] = 0.0
            begin = time.perf_counter()
            try:
                return method(request)
            finally:
                samples.append(time.perf_counter() - begin - spent[0])

        setattr(namespace, name, measured)
    commit = committer(namespace, create(namespace, "", ["b", "t"]), ["b", "t"], replacing=True)
    for _ in range(300):
        version = commit().version
        lance.dataset(namespace_client=namespace, table_id=["b", "t"])
        lance.dataset(namespace_client=namespace, table_id=["b", "t"], version=version)
    return {name: statistics.median(samples) * 1e6 for name, samples in found.items()}


@contextmanager
def redis_server(given: str | None) -> Iterator[str | None]:
    """The Redis that was named, or one of our own; None where there is no ``redis-server``."""
    if given or not shutil.which("redis-server"):
        yield given
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--save", "", "--appendonly", "no", "--loglevel", "warning"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        time.sleep(0.5)
        try:
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            server.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--redis")
    parser.add_argument("--versions", type=int, nargs="*", default=[1000, 3000])
    arguments = parser.parse_args()
    with redis_server(arguments.redis) as redis, tempfile.TemporaryDirectory() as scratch:

        def places(label: str) -> dict[str, Callable[[Path], Properties | None]]:
            fast = {"storage.fsync": "false"}
            stores: dict[str, Callable[[Path], Properties | None]] = {
                "native": lambda root: None,
                "native managed": lambda root: {"root": str(root), "table_version_tracking_enabled": "true"},
                "conditional-put": lambda root: {"root": str(root), "commit_store": "conditional-put://", **fast},
                "conditional-put, fsync": lambda root: {"root": str(root), "commit_store": "conditional-put://"},
                "files": lambda root: {"root": str(root), "commit_store": f"file://{root}-c?fsync=false", **fast},
                "files, fsync": lambda root: {"root": str(root), "commit_store": f"file://{root}-c"},
                "sqlite normal": lambda root: {
                    "root": str(root),
                    "commit_store": f"sqlite://{root}.db?synchronous=normal",
                    **fast,
                },
                "sqlite full, fsync": lambda root: {"root": str(root), "commit_store": f"sqlite://{root}.db"},
            }
            if redis:
                stores["redis"] = lambda root: {"root": str(root), "commit_store": redis, **fast}
            return stores

        print(f"commits per second, {arguments.seconds:g} s each; ratio to native in the same column")
        columns = [(1, 1), (4, 1), (8, 1), (4, 4), (8, 8)]
        print(f"{'':24}" + "".join(f"{w} writers, {t} table{'s' * (t > 1):1}".rjust(22) for w, t in columns))
        peers: dict[tuple[int, int], float] = {}
        for number, (name, place) in enumerate(places("throughput").items()):
            cells = []
            for writers, tables in columns:
                root = Path(scratch) / f"throughput-{number}-{writers}-{tables}"
                rate = throughput(place(root), root, writers, tables, arguments.seconds)
                peers.setdefault((writers, tables), rate)
                cells.append(f"{rate:.0f} ({rate / peers[writers, tables]:.2f})".rjust(22))
                what = f"{name}: {writers} writers, {tables} tables"
                record("commits", what, "commits per second", rate, peers[writers, tables], "pylance without a catalog")
            print(f"{name:24}" + "".join(cells), flush=True)

        print("\ngrowth with versions: median ms of a commit and of a latest read; times faster than native managed")
        peer: dict[int, tuple[float, float]] = {}
        for number, (name, place) in enumerate(places("growth").items()):
            properties = place(Path(scratch) / f"growth-{number}")
            if properties is None:
                continue
            found = growth(properties, arguments.versions)
            peer = peer or found
            cells = []
            for count, (commit, read) in found.items():
                times = peer[count][0] / commit, peer[count][1] / read
                what = f"{name}: a commit after {count} versions"
                record("commits", what, "ms", commit * 1e3, peer[count][0] * 1e3, "pylance's managed versions")
                cells.append(f"{count}: {commit * 1e3:.2f} ({times[0]:.1f}x), {read * 1e3:.3f} ({times[1]:.1f}x)")
            print(f"{name:24}" + "   ".join(cells), flush=True)

        print("\nour own Python in a callback, median microseconds (time in ports taken out)")
        for number, (name, place) in enumerate(places("own").items()):
            properties = place(Path(scratch) / f"own-{number}")
            if properties is not None and "commit_store" in properties:
                figures = own_time(properties)
                print(f"{name:24}" + "   ".join(f"{key} {value:.0f}" for key, value in figures.items()), flush=True)


if __name__ == "__main__":
    main()
