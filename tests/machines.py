"""A machine that may lose its power: what it acknowledged, and whether that is still there.

As a program, for `traced`: ``machines.py WORK DIRECTORY EAR URL FSYNC`` does that work (a method of `Machine`) with the
commit store at that URL, and writes to the file ``EAR`` what was acknowledged.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial

import attrs
import pyarrow as pa
from unchecked import unchecked

import lancekeep
from lancekeep.adapters.commit_stores import open_commit_store
from lancekeep.adapters.object_stores.local import LocalObjectStore
from lancekeep.application.catalog import directory_of
from lancekeep.application.commits.table_commits import TableCommits
from lancekeep.application.retry import Retry
from lancekeep.domain.commit import Committed
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.naming import NamingScheme
from lancekeep.domain.version_row import Claim, Reserved, VersionRow

BATCH = ("x", "y")
"""The tables whose first versions are reserved in one step."""


@attrs.frozen
class Promise:
    """The path of a version from now on, or None; any of ``paths`` during a change."""

    table: str
    version: int
    paths: Sequence[str | None]


@attrs.frozen
class Machine:
    """Write with a commit store and local files; ``tell`` receives each acknowledgement."""

    directory: str
    url: str
    fsync: bool
    tell: Callable[[Promise], object]

    def root(self, table: str) -> DatasetRoot:
        key = f"{self.directory}/{table}.lance".strip("/")
        return DatasetRoot(key, f"file:///{key}")

    @contextmanager
    def opened(self) -> Iterator[TableCommits]:
        objects = LocalObjectStore(self.fsync)
        with closing(open_commit_store(self.url, {}, objects)) as rows:
            yield TableCommits(objects, rows, "tester", Retry(patience=0))

    def commit(self, commits: TableCommits, table: str, version: int) -> None:
        outcome = commits.commit(
            self.root(table), version, self._put(commits, table, version), None, branch=False, check=unchecked
        )
        assert isinstance(outcome, Committed)
        self.tell(Promise(table, version, [outcome.path]))

    def work(self) -> None:
        """Run two processes, then one, so that SQLite creates, removes and recreates its side files."""
        processes = [_forked(partial(self._commits, table, (1, 2))) for table in ("t", "u")]
        assert [os.waitpid(process, 0)[1] for process in processes] == [0, 0]
        self._commits("t", (3,))
        with self.opened() as commits:
            self.commit(commits, "u", 3)
            with closing(sqlite3.connect(self.url.removeprefix("sqlite://").partition("?")[0])) as other:
                other.execute("PRAGMA wal_checkpoint")  # what comes next is written over what was there
                self.commit(commits, "u", 4)
            self._reserve_together(commits)
            self._record_and_delete(commits)

    def write(self) -> None:
        """Let Lance write two versions of a table of the catalog ``lake``."""
        options = {"fsync": str(self.fsync).lower()}
        with lancekeep.connect(f"{self.directory}/lake", commit_store=self.url, storage_options=options) as catalog:
            for rows, mode in (([1, 2], "create"), ([3], "append")):
                version = catalog.write("t", pa.table({"a": rows}), mode).version
                row = directory_of(catalog).commits.get(
                    directory_of(catalog).places.dataset_root(catalog.find_table("t")), version
                )
                assert row is not None
                self.tell(Promise("t", version, [row.path]))

    def _commits(self, table: str, versions: Iterable[int]) -> None:
        with self.opened() as commits:
            for version in versions:
                self.commit(commits, table, version)

    def _reserve_together(self, commits: TableCommits) -> None:
        rows = [self._row(table, 1, self._put(commits, table, 1)) for table in BATCH]
        assert isinstance(commits.rows.reserve_all([Claim(row, first=True) for row in rows]), Reserved)
        for table, row in zip(BATCH, rows, strict=True):
            self.tell(Promise(table, 1, [row.path]))

    def _record_and_delete(self, commits: TableCommits) -> None:
        for version in (1, 2):
            commits.objects.put(self._final("z", version), _manifest(version))
        commits.rows.record([self._row("z", version, self._final("z", version)) for version in (1, 2)])
        self.tell(Promise("z", 2, [self._final("z", 2)]))
        self.tell(Promise("z", 1, [self._final("z", 1)]))
        self.tell(Promise("z", 1, [self._final("z", 1), None]))
        commits.rows.delete(self.root("z").base_uri, [1])
        self.tell(Promise("z", 1, [None]))

    def _put(self, commits: TableCommits, table: str, version: int, uuid: str = "00000000") -> str:
        path = f"{self._final(table, version)}-{uuid}"
        commits.objects.put(path, _manifest(version))
        return path

    def _final(self, table: str, version: int) -> str:
        return self.root(table).manifest_key(version, NamingScheme.V2)

    def _row(self, table: str, version: int, path: str) -> VersionRow:
        return VersionRow(self.root(table).base_uri, version, path, len(_manifest(version)))

    # -- after a power loss -----------------------------------------------------------------------------------------

    def check(self, promises: Iterable[Promise]) -> None:
        """Check that acknowledged state survived and that the next commit succeeds."""
        promised = {(promise.table, promise.version): promise.paths for promise in promises}
        with self.opened() as commits:
            batch = [commits.rows.latest(self.root(table).base_uri) for table in BATCH]
            assert len({row is None for row in batch}) == 1, "half of a batch"
            for (table, version), paths in promised.items():
                row = commits.rows.get(self.root(table).base_uri, version)
                assert (row.path if row else None) in paths
                if row:
                    found = commits.get(self.root(table), version)
                    assert found is not None
                    assert commits.objects.get(found.path) == _manifest(version)
            for table in {"t", *(table for table, _ in promised)}:
                for info in commits.objects.list(self.root(table).versions_key):
                    head = commits.objects.get(info.key)
                    assert ".manifest-" in info.key or head.endswith(b"LANC"), "an unreadable head"
                latest = commits.latest(self.root(table))
                version = latest.version if latest else 0
                assert version >= max((version for of, version in promised if of == table), default=0)
                staged = self._put(commits, table, version + 1, "ffffffff")
                outcome = commits.commit(self.root(table), version + 1, staged, None, branch=False, check=unchecked)
                assert isinstance(outcome, Committed)


def _manifest(version: int) -> bytes:
    return f"manifest {version} LANC".encode()


def _forked(work: Callable[[], None]) -> int:
    process = os.fork()
    if not process:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return process


def _main(work: str, directory: str, ear: str, url: str, fsync: str) -> None:
    heard = os.open(ear, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def tell(promise: Promise) -> None:
        os.write(heard, json.dumps(attrs.astuple(promise)).encode())

    getattr(Machine(directory, url, fsync == "true", tell), work)()


if __name__ == "__main__":
    _main(*sys.argv[1:])
