"""The catalogs of the machine: a mode, a commit store and a new root each."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from itertools import count
from typing import Any

import attrs
import lance
import pyarrow as pa

import lancekeep
from lancekeep.adapters.manifest_stores.columns import SCHEMA
from lancekeep.adapters.object_stores import open_object_store

MODES = ("v1", "v2", "compatible")
STORES = ("memory", "file", "sqlite", "conditional-put", "none")
REMEMBERING = frozenset({"memory", "file", "sqlite", "redis"})
"""Stores that keep rows of their own."""

ATOMIC = frozenset({"memory", "sqlite", "redis"})
"""Stores that reserve versions of two tables in one step."""

NATIVE_MODES = {"v1": {"manifest_enabled": "false"}, "v2": {"dir_listing_enabled": "false"}, "compatible": {}}

_NUMBERS = count()


@attrs.define
class Lake:
    """A root with a commit store. ``outside`` is a directory beside the root, for clones outside every catalog."""

    mode: str
    kind: str
    directory: str
    root: str
    store: str | None
    storage_options: dict[str, str]

    @staticmethod
    def make(mode: str, kind: str, servers: Mapping[str, Any] | None = None) -> Lake:
        """Make a lake on a tmpfs; ``servers``: the URL of Redis, or a root with storage options on S3."""
        shm = "/dev/shm"
        directory = tempfile.mkdtemp(prefix="readers-", dir=shm if os.path.isdir(shm) else None)
        given = servers or {}
        root = given["root"]() if "root" in given else f"{directory}/lake"
        options = given.get("storage_options", {"fsync": "false"})
        lake = Lake(mode, kind, directory, root, None, options)
        lake.store = lake.new_store(kind, given.get("redis"))
        return lake

    def new_store(self, kind: str, redis: str | None = None) -> str | None:
        number = next(_NUMBERS)
        return {
            "memory": f"memory://readers-{number}",
            "file": f"file://{self.directory}/commits-{number}?fsync=false",
            "sqlite": f"sqlite://{self.directory}/commits-{number}.db",
            "redis": redis,
            "conditional-put": "conditional-put://",
        }.get(kind)

    @property
    def outside(self) -> str:
        return f"{self.root.rpartition('/')[0]}/outside"

    @property
    def cold(self) -> str:
        """The base to which data files are moved; several catalogs share it."""
        return f"{self.root.rpartition('/')[0]}/cold"

    @property
    def native_options(self) -> dict[str, str] | None:
        return {key: value for key, value in self.storage_options.items() if key != "fsync"} or None

    def connect(self, store: str | None = None) -> lancekeep.Catalog:
        url = store or self.store
        return lancekeep.connect(self.root, mode=self.mode, commit_store=url, storage_options=self.storage_options)

    def namespace(self) -> lancekeep.DirectoryNamespace:
        storage = {f"storage.{key}": value for key, value in self.storage_options.items()}
        store = {} if self.store is None else {"commit_store": self.store}
        return lancekeep.DirectoryNamespace(root=self.root, **storage, **store, **NATIVE_MODES[self.mode])

    def plain(self, uri: str, version: int | str | None = None) -> Any:
        """Open a table by plain pylance, without the catalog."""
        return lance.dataset(uri, version=version, storage_options=self.native_options)

    def write_manifest_table(self) -> None:
        """Make an empty manifest table as another writer may: its columns in another order, and one of its own."""
        fields = {field.name: field for field in SCHEMA}
        own = pa.field("owner", pa.int64())
        schema = pa.schema(
            [*(fields[name] for name in ("object_type", "metadata", "location")), own, fields["object_id"]]
        )
        lance.write_dataset(schema.empty_table(), f"{self.root}/__manifest", storage_options=self.native_options)

    # -- files of others --------------------------------------------------------------------------------------------

    def put(self, path: str, content: bytes) -> None:
        objects, key = open_object_store(self.root, self.storage_options)
        objects.put(f"{key}/{path}", content)

    def get(self, path: str) -> bytes:
        objects, key = open_object_store(self.root, self.storage_options)
        return objects.get(f"{key}/{path}")

    def list(self, path: str) -> list[str]:
        """Return the keys of the files in a directory below the root."""
        objects, key = open_object_store(self.root, self.storage_options)
        return [info.key for info in objects.list(f"{key}/{path}/")]

    def holds(self, path: str) -> bool:
        """Return whether a directory below the root has any file."""
        return bool(self.list(path))

    def remove(self) -> None:
        shutil.rmtree(self.directory)
