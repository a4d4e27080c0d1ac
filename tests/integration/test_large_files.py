"""Large files are copied between two storages in pieces: neither memory nor a fault in the middle ends a backup."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from textwrap import dedent
from uuid import uuid4

import boto3
import pyarrow as pa
import pytest
from deployments import bucket, s3_options
from peaks import peak

import lancekeep
from lancekeep.adapters.object_stores import open_object_store
from lancekeep.adapters.object_stores.local import LocalObjectStore
from lancekeep.adapters.object_stores.memory import MemoryObjectStore
from lancekeep.application.pieces import copy_in_pieces
from lancekeep.application.retry import Retry
from lancekeep.ports.object_store import PIECE, ObjectStore, Piece

AT_ONCE = 8
"""How many files a backup copies at a time."""


def sparse(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Return the root of a catalog with one small table."""
    root = tmp_path / "lake"
    with lancekeep.connect(str(root), commit_store="conditional-put://") as catalog:
        catalog.create_namespace("ml")
        catalog.write("ml.t", pa.table({"id": [1, 2, 3]}))
    return root


def data_directory(lake: Path) -> Path:
    [found] = {path.parent for path in lake.rglob("data/*.lance") if "__manifest" not in path.parts}
    return found


def test_memory_holds_two_pieces_of_a_file(tmp_path: Path, moto_endpoint: str) -> None:
    """A file of 96 MiB between file systems, and one of 64 MiB from and to S3."""
    local, home = LocalObjectStore(), str(tmp_path)[1:]
    other, _ = open_object_store(f"local://{tmp_path}/other", {})
    s3, _ = open_object_store(f"s3://{bucket(moto_endpoint)}/lake", s3_options(moto_endpoint))
    s3.put("warm", b"")
    size = 6 * PIECE + 1
    sparse(tmp_path / "large", size)
    sparse(tmp_path / "medium", 4 * PIECE)
    copies: list[tuple[ObjectStore, str, ObjectStore, str]] = [
        (local, f"{home}/large", other, f"{home}/other/a"),
        (other, f"{home}/other/a", local, f"{home}/b"),
        (local, f"{home}/medium", s3, "a"),
        (s3, "a", local, f"{home}/c"),
    ]
    for each in copies:
        assert peak(partial(copy_in_pieces, *each, Retry())) < 2.25 * PIECE
    assert [(tmp_path / name).stat().st_size for name in ("other/a", "b", "c")] == [size, size, 4 * PIECE]


def test_backup_holds_two_pieces_of_each_file_in_progress(lake: Path, tmp_path: Path) -> None:
    lancekeep.backup(str(lake), f"local://{tmp_path}/first")  # imports what a backup needs
    names = [f"{'01' * 12}{number:026x}.lance" for number in range(AT_ONCE + 2)]
    for name in names:
        sparse(data_directory(lake) / name, 3 * PIECE)
    backup, restored = tmp_path / "backup", tmp_path / "restored"
    assert peak(lambda: lancekeep.backup(str(lake), f"local://{backup}")) < (2 * AT_ONCE + 1) * PIECE
    lancekeep.backup(f"local://{backup}", str(restored))
    assert {(data_directory(restored) / name).stat().st_size for name in names} == {3 * PIECE}
    with lancekeep.connect(str(restored), commit_store="conditional-put://") as catalog:
        assert catalog.open("ml.t").to_table()["id"].to_pylist() == [1, 2, 3]


def test_copy_of_another_size_is_damaged() -> None:
    class Cutting(MemoryObjectStore):
        def put_pieces(self, key: str, size: int, pieces: Iterable[bytes]) -> None:
            super().put_pieces(key, size, pieces)
            self.put(key, self.get(key)[:-1])

    source = MemoryObjectStore()
    source.put("a", bytes(PIECE + 1))
    with pytest.raises(lancekeep.Damaged, match="has 16,777,216 bytes; 16,777,217 bytes were copied"):
        copy_in_pieces(source, "a", Cutting(), "b", Retry())


def growing(monkeypatch: pytest.MonkeyPatch, name: str, times: int) -> list[str]:
    """Let a file grow after each piece that is read of it; return the list of these pieces."""
    read = LocalObjectStore.piece
    seen: list[str] = []

    def piece(self: LocalObjectStore, key: str, start: int, most: int, stamp: str | None = None) -> Piece:
        found = read(self, key, start, most, stamp)
        if key.endswith(name) and len(seen) < times:
            seen.append(key)
            with open(f"/{key}", "ab") as file:
                file.write(b"more")
        return found

    monkeypatch.setattr(LocalObjectStore, "piece", piece)
    return seen


def test_log_that_grows_is_left_out_of_a_backup(lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sparse(lake / "server.log", PIECE + 1)
    seen = growing(monkeypatch, "server.log", 1_000_000)
    backup = tmp_path / "backup"
    report = lancekeep.backup(str(lake), f"local://{backup}")
    assert (report.changed, report.left_out) == ((), ("server.log",))
    assert "left out, since a process kept changing them: server.log" in str(report)
    assert not (backup / "server.log").exists()
    assert len(seen) == 5, "it is tried no more often"
    assert list(backup.rglob("data/*.lance"))


def test_file_that_changes_once_is_copied_as_it_became(
    lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{'01' * 12}{1:026x}.lance"
    sparse(data_directory(lake) / name, PIECE + 1)
    seen = growing(monkeypatch, name, 2)
    backup = tmp_path / "backup"
    lancekeep.backup(str(lake), f"local://{backup}")
    assert len(seen) == 2
    assert (data_directory(backup) / name).read_bytes() == bytes(PIECE + 1) + b"moremore"


def test_data_file_that_keeps_changing_is_no_mixture(
    lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{'01' * 12}{1:026x}.lance"
    sparse(data_directory(lake) / name, PIECE + 1)
    growing(monkeypatch, name, 1_000_000)
    backup = tmp_path / "backup"
    with pytest.raises(lancekeep.ConcurrentModification, match="was changed while it was read"):
        lancekeep.backup(str(lake), f"local://{backup}")
    assert not list(backup.rglob(name))
    with pytest.raises(lancekeep.Refused, match="is an unfinished backup"):
        lancekeep.backup(f"local://{backup}", str(tmp_path / "restored"))


KILLED = dedent(
    """\
    import os, signal, sys
    import lancekeep
    from lancekeep.adapters.object_stores.local import LocalObjectStore

    read = LocalObjectStore.piece

    def piece(self, key, start, most, stamp=None):
        if start == 2 * most:
            os.kill(os.getpid(), signal.SIGKILL)
        return read(self, key, start, most, stamp)

    LocalObjectStore.piece = piece
    source, target, *options = sys.argv[1:]
    lancekeep.backup(source, target, target_storage_options=dict(each.split("=", 1) for each in options))
    """
)


@pytest.mark.parametrize("kind", ["s3", "local"])
def test_killed_upload_is_invisible_and_the_next_backup_copies_the_file(
    lake: Path, tmp_path: Path, moto_endpoint: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{'01' * 12}{1:026x}.lance"
    large = data_directory(lake) / name
    large.write_bytes(os.urandom(1024) * (2 * PIECE // 1024) + b"end")
    own = bucket(moto_endpoint)
    options = s3_options(moto_endpoint) if kind == "s3" else {}
    target = f"s3://{own}/{uuid4()}" if kind == "s3" else f"local://{tmp_path}/backup"
    given = [f"{key}={value}" for key, value in options.items()]
    done = subprocess.run([sys.executable, "-c", KILLED, str(lake), target, *given], check=False)
    assert done.returncode == -signal.SIGKILL
    objects, key = open_object_store(target, options)
    key_of_large = f"{key}/{large.relative_to(lake)}"
    if kind == "s3":
        assert objects.head(key_of_large) is None
    monkeypatch.setattr("lancekeep.application.upkeep.backup_claim.TERM", 0.1)
    lancekeep.backup(str(lake), target, target_storage_options=options)
    restored = tmp_path / "restored"
    lancekeep.backup(target, str(restored), storage_options=options, target_storage_options={})
    assert (restored / large.relative_to(lake)).read_bytes() == large.read_bytes()
    if kind == "s3":  # as the documentation says, a rule of the bucket removes it
        client = boto3.client("s3", endpoint_url=moto_endpoint, region_name="us-east-1")
        assert len(client.list_multipart_uploads(Bucket=own).get("Uploads", ())) == 1
