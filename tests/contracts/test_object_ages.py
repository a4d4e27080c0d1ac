"""The ages of objects in every object store, on which removal by age relies."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from deployments import bucket, s3_options
from fsspec.implementations.local import LocalFileSystem

from lancekeep.adapters.object_stores import open_object_store
from lancekeep.adapters.object_stores.fsspec_store import FsspecObjectStore
from lancekeep.adapters.object_stores.local import LocalObjectStore
from lancekeep.adapters.object_stores.memory import MemoryObjectStore
from lancekeep.ports.object_store import ObjectStore

EARLIER = datetime(2001, 1, 1, tzinfo=UTC)


@pytest.fixture(params=["memory", "local", "fsspec", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[ObjectStore, str]:
    match request.param:
        case "memory":
            return MemoryObjectStore(), "lake"
        case "local":
            return LocalObjectStore(), str(tmp_path)[1:]
        case "fsspec":
            return FsspecObjectStore(LocalFileSystem(), f"file://{tmp_path}"), "lake"
    endpoint = request.getfixturevalue("moto_endpoint")
    return open_object_store(f"s3://{bucket(endpoint)}/{uuid4().hex}", s3_options(endpoint))


def test_age_counts_from_last_write_or_copy(place: tuple[ObjectStore, str]) -> None:
    store, home = place
    second = timedelta(seconds=1)  # S3 tells whole seconds
    before = datetime.now(UTC) - second
    store.put(f"{home}/a", b"a")
    store.copy(f"{home}/a", f"{home}/b")
    after = datetime.now(UTC) + second
    for info in (store.head(f"{home}/a"), store.head(f"{home}/b"), *store.list(f"{home}/")):
        assert info is not None
        assert info.modified is not None
        assert before <= info.modified <= after


def test_hard_linked_copy_is_new(tmp_path: Path) -> None:
    store, home = LocalObjectStore(), str(tmp_path)[1:]
    (tmp_path / "a").write_bytes(b"a")
    os.utime(tmp_path / "a", (EARLIER.timestamp(), EARLIER.timestamp()))
    store.copy(f"{home}/a", f"{home}/b")
    copied = store.head(f"{home}/b")
    assert copied is not None
    assert copied.modified is not None
    assert copied.modified > datetime.now(UTC) - timedelta(minutes=1)


@pytest.mark.parametrize(
    ("told", "modified"),
    [
        ({"mtime": EARLIER.timestamp()}, EARLIER),
        ({"mtime": EARLIER}, EARLIER),
        ({"LastModified": EARLIER}, EARLIER),
        ({"updated": "2001-01-01T00:00:00Z"}, EARLIER),
        ({"created": EARLIER.timestamp(), "mtime": 1.0}, EARLIER),
        ({"LastModified": EARLIER.replace(tzinfo=None)}, None),
        ({"updated": "yesterday"}, None),
        ({"mtime": 1e300}, None),
        ({}, None),
    ],
)
def test_modification_times_of_fsspec_implementations_are_understood(
    monkeypatch: pytest.MonkeyPatch, told: Mapping[str, Any], modified: datetime | None
) -> None:
    filesystem = LocalFileSystem()
    monkeypatch.setattr(filesystem, "info", lambda path: {"name": path, "size": 1, "type": "file", **told})
    info = FsspecObjectStore(filesystem, "file:///lake").head("a")
    assert info is not None
    assert info.modified == modified
