"""Record which files a table has ingested, consistently with its commits.

A run enters its files under the version that it is about to commit, and names itself in that version's transaction. So
one commit makes both the rows and the entry valid. A later run decides a pending entry by reading that one transaction.
Only one commit can create a version, so the entry is permanently void if another commit created it.

Entries are Arrow files in ``_ingested/`` below the table. They are moved and removed with the table; clean-up keeps
them. See ADR 25.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from hashlib import blake2b
from typing import Any, TypeVar

import attrs
import pyarrow as pa

from lancekeep.application.catalog import Catalog, directory_of
from lancekeep.domain.errors import Damaged, ObjectNotFound, Refused
from lancekeep.domain.table import INGESTED_DIRECTORY, Table
from lancekeep.entrypoints.spark.jobs.files import SourceFile

T = TypeVar("T")

RUN_PROPERTY = "lancekeep.ingest"
"""The transaction property that names the run that committed the rows."""

_SCHEMA = pa.schema([("uri", pa.string()), ("state", pa.string()), ("version", pa.int64())])
_MOST_ENTRIES = 16
_PENDING, _SETTLED = "a-pending", "b-settled"  # sorted so that a listing during settlement has at least one record
_REPLACES = b"replaces"


@attrs.frozen
class _Entry:
    key: str
    version: int
    run: str
    status: str

    @staticmethod
    def parse(key: str) -> _Entry:
        version, run, status = key.rpartition("/")[2].removesuffix(".arrow").split(".")
        return _Entry(key, int(version), run, status)


class IngestedFiles:
    """The record of one table; stays valid after other commits to the table."""

    def __init__(self, catalog: Catalog, table: Table) -> None:
        own = directory_of(catalog, "ingest")
        self._objects = own.commits.objects
        self._retry = own.commits.retry
        self._table = table
        self._prefix = f"{own.places.dataset_root(table).key}/{INGESTED_DIRECTORY}/"

    def read(self, dataset: Any) -> pa.Table:
        """Return the files that a version has ingested, and settle pending entries.

        Returns:
            The columns uri, state, and version of the commit.

        Raises:
            Refused: The version of a pending entry was cleaned up, so its run may or may not have committed.
        """
        while True:
            try:
                return self._read(dataset)
            except ObjectNotFound:  # a concurrent run has settled or combined entries
                continue

    def propose(self, version: int, run: str, files: Iterable[SourceFile], *, replaces: bool) -> None:
        """Enter files under a version that this run is about to commit.

        Args:
            version: The version.
            run: The name of the run.
            files: The files.
            replaces: Whether the commit removes the rows of all earlier files.
        """
        rows = [{"uri": file.uri, "state": file.state, "version": version} for file in files]
        self._put(self._key(version, run, _PENDING), pa.Table.from_pylist(rows, _SCHEMA), replaces)

    def settle(self, version: int, run: str) -> None:
        """Settle proposed files after their commit; idempotent."""
        self._settle(_Entry(self._key(version, run, _PENDING), version, run, _PENDING))

    def _read(self, dataset: Any) -> pa.Table:
        known = _SCHEMA.empty_table()
        settled = []
        for entry in self._entries():
            if entry.version > dataset.version:
                continue  # the run is in progress, or stopped before its commit
            if entry.status == _PENDING:
                if not self._holds(dataset, entry):
                    self._call(self._objects.delete, entry.key)
                    continue
                entry = self._settle(entry)
            files = _decoded(self._call(self._objects.get, entry.key), entry.key)
            replaces = _REPLACES in (files.schema.metadata or {})
            files = files.replace_schema_metadata()
            known = files if replaces else pa.concat_tables([known, files])
            settled.append(entry)
        known = _latest(known)
        if len(settled) > _MOST_ENTRIES:
            self._put_together(settled, known)
        return known

    def _entries(self) -> list[_Entry]:
        """Return the entries by version; lists until two listings agree, so that a concurrent rename hides none."""
        seen = None
        while True:
            keys = self._call(lambda: [info.key for info in self._objects.list(self._prefix)])
            if keys == seen:
                return sorted(map(_Entry.parse, keys), key=lambda entry: (entry.version, entry.run))
            seen = keys

    def _holds(self, dataset: Any, entry: _Entry) -> bool:
        """Return whether the run of an entry committed the entry's version."""
        try:
            transaction = dataset.read_transaction(entry.version)
        except TypeError:  # pylance 14 cannot build the operation of a compaction that rewrites indexes: no ingest
            return False
        except (OSError, ValueError) as error:
            raise Refused(
                f"{self._table.id}: version {entry.version} is gone, so it cannot be told whether the run {entry.run} "
                f"committed it before it was stopped. Look whether its rows are there; then rename {entry.key} from "
                f"{_PENDING} to {_SETTLED}, or remove it"
            ) from error
        return transaction is not None and (transaction.transaction_properties or {}).get(RUN_PROPERTY) == entry.run

    def _settle(self, entry: _Entry) -> _Entry:
        key = self._key(entry.version, entry.run, _SETTLED)
        self._call(self._objects.put, key, self._call(self._objects.get, entry.key))
        self._call(self._objects.delete, entry.key)
        return attrs.evolve(entry, key=key, status=_SETTLED)

    def _put_together(self, entries: list[_Entry], files: pa.Table) -> None:
        """Combine entries into one, which keeps reads cheap; idempotent, even after a partial run."""
        last = entries[-1]
        key = self._key(last.version, f"{last.run}-and-before", _SETTLED)
        self._put(key, files, True)
        for entry in entries:
            if entry.key != key:
                self._call(self._objects.delete, entry.key)

    def _put(self, key: str, files: pa.Table, replaces: bool) -> None:
        sink = pa.BufferOutputStream()
        schema = _SCHEMA.with_metadata({_REPLACES: b""} if replaces else {})
        with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(files.cast(schema))
        self._call(self._objects.put, key, sink.getvalue().to_pybytes())

    def _call(self, act: Callable[..., T], *arguments: Any) -> T:
        return self._retry.call(partial(act, *arguments))

    def _key(self, version: int, run: str, status: str) -> str:
        return f"{self._prefix}{version:020}.{run}.{status}.arrow"


def _decoded(content: bytes, key: str) -> pa.Table:
    try:
        files = pa.ipc.open_file(content).read_all()
    except pa.ArrowException as error:
        raise Damaged(
            f"{key} is no record of ingested files: {error}. Restore it from a backup, or remove it"
        ) from error
    if files.schema != _SCHEMA:
        raise Damaged(f"{key} is no record of ingested files; its columns are {', '.join(files.schema.names)}")
    return files


def run_of(files: Iterable[SourceFile], purpose: str) -> str:
    """Return the name of a run.

    The name depends on the files and their state, so a repeated run keeps the same bad records once.
    """
    digest = blake2b(purpose.encode(), digest_size=16)
    for file in files:
        digest.update(f"\n{file.uri} {file.state}".encode())
    return digest.hexdigest()


def _latest(files: pa.Table) -> pa.Table:
    """Keep the last entry of each file."""
    places = files["uri"].to_pylist()
    last = {uri: at for at, uri in enumerate(places)}
    return files if len(last) == len(places) else files.take(sorted(last.values()))
