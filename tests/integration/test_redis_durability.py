"""Redis servers that lose acknowledged rows, and how the create-only final manifest prevents lost commits."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import attrs
import pytest
import redis
from lying import relay
from unchecked import unchecked

from lancekeep.adapters.commit_stores import open_commit_store
from lancekeep.adapters.object_stores.memory import MemoryObjectStore
from lancekeep.application.commits.table_commits import TableCommits
from lancekeep.application.retry import Retry
from lancekeep.domain.commit import Committed, Conflict, Outcome
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.naming import NamingScheme
from lancekeep.domain.version_row import Reserved, VersionRow
from servers import free_port

ROOT = DatasetRoot("lake/t.lance", "memory:///lake/t.lance")
MANIFEST_END = "LANC"
NOTHING, SNAPSHOTS = ("--save", "", "--appendonly", "no"), ("--save", "3600 1", "--appendonly", "no")
EVERY_SECOND = ("--save", "", "--appendonly", "yes", "--appendfsync", "everysec")
ALWAYS = ("--save", "", "--appendonly", "yes", "--appendfsync", "always")


@attrs.define
class Server:
    """A redis-server with a directory and a port of its own, which outlive its process."""

    directory: Path
    settings: tuple[str, ...]
    port: int = attrs.field(factory=free_port)
    process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        binary = shutil.which("redis-server")
        if binary is None:
            pytest.skip("no redis-server on PATH (Debian: apt-get install redis-server)")
        self.directory.mkdir(exist_ok=True)
        place = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.directory)]
        self.process = subprocess.Popen([binary, *place, *self.settings], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert any("Ready to accept connections" in line for line in self.process.stdout)

    def kill(self) -> None:
        """As ``kill -9``: the process writes nothing any more; what the kernel has of it stays."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port)


@contextmanager
def running(directory: Path, settings: tuple[str, ...]) -> Iterator[Server]:
    server = Server(directory, settings)
    server.start()
    try:
        yield server
    finally:
        server.kill()


class Table:
    """A table in memory, whose versions are committed through any Redis server."""

    def __init__(self) -> None:
        self.objects = MemoryObjectStore()

    def staged(self, version: int, content: str) -> str:
        path = f"{ROOT.versions_key}{NamingScheme.V2.final_name(version)}-{uuid4()}"
        self.objects.put(path, f"{content}{MANIFEST_END}".encode())
        return path

    def commit(self, url: str, version: int, content: str) -> Outcome:
        """By a writer that has just started, and remembers nothing."""
        rows = open_commit_store(url, {}, self.objects)
        try:
            commits = TableCommits(self.objects, rows, content, Retry())
            path = self.staged(version, content)
            return commits.commit(ROOT, version, path, None, branch=False, check=unchecked)
        finally:
            rows.close()

    def contents(self) -> dict[int, str]:
        """The final manifests: what every reader reads."""
        finals = {NamingScheme.V2.final_name(version): version for version in range(1, 9)}
        named = {info.key.rpartition("/")[2]: info.key for info in self.objects.list(ROOT.versions_key)}
        return {
            version: self.objects.get(named[name]).decode().removesuffix(MANIFEST_END)
            for name, version in finals.items()
            if name in named
        }

    def rows(self, url: str) -> list[int]:
        rows = open_commit_store(url, {}, self.objects)
        try:
            found = rows.list(ROOT.base_uri, after=None, limit=None, descending=False)
            return [row.version for row in found]
        finally:
            rows.close()

    def reserve_only(self, url: str, version: int, content: str) -> str:
        """Reserve a version and stop; return the path of the staged manifest."""
        path = self.staged(version, content)
        rows = open_commit_store(url, {}, self.objects)
        try:
            answer = rows.reserve(VersionRow(ROOT.base_uri, version, path, len(content + MANIFEST_END)), first=False)
        finally:
            rows.close()
        assert isinstance(answer, Reserved)
        return path

    def resume(self, url: str, version: int, path: str) -> Outcome:
        rows = open_commit_store(url, {}, self.objects)
        try:
            commits = TableCommits(self.objects, rows, "late", Retry())
            return commits.commit(ROOT, version, path, None, branch=False, check=unchecked)
        finally:
            rows.close()


def commits_before(table: Table, url: str) -> str:
    """Commit three versions, reserve a fourth, and return the path of its staged manifest."""
    for version in (1, 2, 3):
        assert isinstance(table.commit(url, version, f"first {version}"), Committed)
    assert table.rows(url) == [1, 2, 3]
    return table.reserve_only(url, 4, "first 4")


def require_one_content_per_version(table: Table, url: str, staged: str) -> None:
    """Whatever the server forgot: who comes next overwrites nothing, and the history goes on."""
    before = table.contents()
    assert before == {1: "first 1", 2: "first 2", 3: "first 3"}
    for version in (2, 3):
        assert isinstance(table.commit(url, version, f"second {version}"), Conflict)
    second = table.commit(url, 4, "second 4")
    late = table.resume(url, 4, staged)
    assert sorted(type(outcome).__name__ for outcome in (second, late)) == ["Committed", "Conflict"]
    winner = "second 4" if isinstance(second, Committed) else "first 4"
    assert isinstance(table.commit(url, 5, "second 5"), Committed)
    assert table.contents() == {**before, 4: winner, 5: "second 5"}
    assert table.rows(url)[-2:] == [4, 5]


@pytest.mark.parametrize(
    ("settings", "snapshot", "kept"),
    [
        pytest.param(NOTHING, False, [], id="no persistence"),
        pytest.param(SNAPSHOTS, False, [], id="snapshots, none since"),
        pytest.param(SNAPSHOTS, True, [1, 2], id="snapshots, one after version 2"),
        pytest.param(EVERY_SECOND, False, [1, 2, 3, 4], id="appendonly, everysec"),
        pytest.param(ALWAYS, False, [1, 2, 3, 4], id="appendonly, always"),
    ],
)
def test_version_has_one_content_after_a_killed_server_forgets_rows(
    settings: tuple[str, ...], snapshot: bool, kept: list[int], tmp_path: Path
) -> None:
    table = Table()
    with running(tmp_path / "data", settings) as server:
        if snapshot:
            for version in (1, 2):
                table.commit(server.url, version, f"first {version}")
            with server.client() as client:
                client.save()
            assert isinstance(table.commit(server.url, 3, "first 3"), Committed)
            staged = table.reserve_only(server.url, 4, "first 4")
        else:
            staged = commits_before(table, server.url)
        assert table.rows(server.url) == [1, 2, 3, 4]
        server.kill()
        server.start()
        assert table.rows(server.url) == kept
        require_one_content_per_version(table, server.url, staged)


@pytest.mark.parametrize("settings", [NOTHING, ALWAYS], ids=["no persistence", "appendonly, always"])
def test_version_has_one_content_after_promotion_of_a_stale_replica(settings: tuple[str, ...], tmp_path: Path) -> None:
    table = Table()
    fast = ("--repl-diskless-sync-delay", "0")
    with (
        running(tmp_path / "primary", (*settings, *fast)) as primary,
        relay(f"127.0.0.1:{primary.port}") as link,
        running(tmp_path / "replica", (*settings, "--replicaof", f"127.0.0.1 {link.port}")) as replica,
        primary.client() as client,
        replica.client() as promoted,
    ):
        assert isinstance(table.commit(primary.url, 1, "first 1"), Committed)
        assert client.wait(1, 20_000) == 1
        link.cut()
        for version in (2, 3):
            assert isinstance(table.commit(primary.url, version, f"first {version}"), Committed)
        staged = table.reserve_only(primary.url, 4, "first 4")
        primary.kill()
        promoted.replicaof("NO", "ONE")
        assert table.rows(replica.url) == [1]
        require_one_content_per_version(table, replica.url, staged)


def test_version_has_one_content_with_two_primaries(tmp_path: Path) -> None:
    """A replica was promoted, and some writers still reach the old primary."""
    table = Table()
    with (
        running(tmp_path / "primary", (*ALWAYS, "--repl-diskless-sync-delay", "0")) as primary,
        relay(f"127.0.0.1:{primary.port}") as link,
        running(tmp_path / "replica", (*ALWAYS, "--replicaof", f"127.0.0.1 {link.port}")) as replica,
        primary.client() as client,
        replica.client() as promoted,
    ):
        table.commit(primary.url, 1, "first 1")
        assert client.wait(1, 20_000) == 1
        link.cut()
        promoted.replicaof("NO", "ONE")
        outcomes = []
        for version in range(2, 8):
            ours, theirs = (primary, replica) if version % 2 else (replica, primary)
            outcomes += [table.commit(ours.url, version, "ours"), table.commit(theirs.url, version, "theirs")]
        assert [type(outcome) for outcome in outcomes] == [Committed, Conflict] * 6
        assert table.contents() == {1: "first 1", **dict.fromkeys(range(2, 8), "ours")}
