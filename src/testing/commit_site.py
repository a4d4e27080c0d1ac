"""A commit store under test, and the writers that use it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from multiprocessing.synchronize import Barrier as ProcessBarrier
from uuid import uuid4

import attrs

from lancekeep.adapters.commit_stores import open_commit_store
from lancekeep.adapters.object_stores import open_object_store
from lancekeep.domain.naming import NamingScheme, final_path
from lancekeep.domain.version_row import NotReady, Reserved, VersionRow
from lancekeep.ports.commit_store import ExternalCommitStore
from lancekeep.ports.object_store import ObjectStore


@attrs.frozen
class Site:
    """The location of a commit store, which any process can open.

    Attributes:
        commit_store: the URL of the commit store.
        root: the URL of the object store with the manifests.
        storage_options: the options of the object store.
        options: the options of the commit store.
        derived: the store derives its rows from the manifests in the object store.
    """

    commit_store: str
    root: str = "memory:///"
    storage_options: Mapping[str, str] = {}
    options: Mapping[str, str] = {}
    derived: bool = False

    @property
    def objects(self) -> ObjectStore:
        return open_object_store(self.root, self.storage_options)[0]

    def connect(self) -> ExternalCommitStore:
        """Open another instance of the store, which must see the rows of the others."""
        return open_commit_store(self.commit_store, self.options, self.objects)

    def new_base_uri(self, name: str = "t.lance") -> str:
        """Return the base URI of a table that no other test uses."""
        """Return the base URI of a table that no other test uses."""
        objects, key = open_object_store(self.root, self.storage_options)
        return objects.root_uri + "/".join(filter(None, (key, uuid4().hex, name)))


@attrs.frozen
class Writer:
    """A minimal writer: it stages and publishes the manifests of its commits."""

    site: Site
    store: ExternalCommitStore
    objects: ObjectStore

    @staticmethod
    def at(site: Site) -> Writer:
        return Writer(site, site.connect(), site.objects)

    def stage(self, base_uri: str, version: int, committer: str = "ada@host") -> VersionRow:
        """Stage a unique manifest and return the row that claims ``version``."""
        uuid = str(uuid4())
        key = base_uri.removeprefix(self.objects.root_uri)
        path = f"{key}/_versions/{NamingScheme.V2.final_name(version)}-{uuid}"
        self.objects.put(path, uuid.encode() + bytes(version % 7))
        return VersionRow(base_uri, version, path, len(uuid) + version % 7, committer)

    def publish(self, row: VersionRow) -> VersionRow:
        """Copy a staged manifest to its final path and return the final row."""
        final = attrs.evolve(row, path=final_path(row.path))
        self.objects.put_if_absent(final.path, self.objects.get(row.path))
        return final

    def place(self, base_uri: str, version: int) -> VersionRow:
        """Write a final manifest without a row, as in a history to adopt."""
        key = base_uri.removeprefix(self.objects.root_uri)
        path = f"{key}/_versions/{NamingScheme.V2.final_name(version)}"
        self.objects.put(path, b"manifest")
        return VersionRow(base_uri, version, path, 8, "ada@host")

    def commit(self, row: VersionRow, *, first: bool) -> VersionRow:
        """Reserve, publish and finalize a staged row."""
        """Reserve, publish and finalize a staged row."""
        assert self.store.reserve(row, first=first) == Reserved()
        final = self.publish(row)
        assert self.store.finalize(final)
        return self.seen(final)

    def history(self, base_uri: str, count: int) -> list[VersionRow]:
        """Commit versions 1 to ``count``."""
        return [self.commit(self.stage(base_uri, v), first=v == 1) for v in range(1, count + 1)]

    def remove(self, base_uri: str, versions: list[int] | None) -> int:
        """Delete rows and their manifests, and return the number of rows."""
        rows = self.store.list(base_uri, after=None, limit=None, descending=False)
        count = self.store.delete(base_uri, versions)
        for row in rows:
            if versions is None or row.version in versions:
                self.objects.delete(final_path(row.path))
        return count

    def seen(self, row: VersionRow) -> VersionRow:
        """Return the row as this store reads it."""
        return attrs.evolve(row, path=final_path(row.path), committer="") if self.site.derived else row


def claim_versions(site: Site, base_uri: str, count: int, number: int, start: ProcessBarrier) -> list[str]:
    """Claim versions 1 to ``count`` and return the staged paths that won."""
    writer = Writer.at(site)
    start.wait()
    won, deadline = [], time.monotonic() + 300
    with closing(writer.store):
        for version in range(1, count + 1):
            row = writer.stage(base_uri, version)
            while isinstance(reservation := writer.store.reserve(row, first=version == 1), NotReady):
                # The previous version is not final yet. In a broken store it may never be.
                assert time.monotonic() < deadline, f"version {version} stays NotReady"
            if reservation == Reserved():
                writer.store.finalize(writer.publish(row))
                won.append(row.path)
    return won
