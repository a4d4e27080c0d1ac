"""Commit store of small local files; hard links decide who wins a version.

::

    <directory>/<sha-256 of base_uri>/history       the base_uri, for people; every `record` and `delete` appends a
                                                    byte, which invalidates the latest version in other caches
                                      <version>     one row: size, path, committer
                                      .<random>     a row that is being written
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import ClassVar
from urllib.parse import quote

from lancekeep.adapters.commit_stores.boundary import boundary
from lancekeep.adapters.commit_stores.claims import answer, latest_agreed, may_finalize, reserve_alone
from lancekeep.domain.errors import AccessDenied, Damaged, InvalidInput, LancekeepError, StoreUnavailable
from lancekeep.domain.version_row import (
    BatchReservation,
    Claim,
    NotReady,
    Reservation,
    Reserved,
    VersionRow,
    may_claim,
)
from lancekeep.local_files import hard_link
from lancekeep.ports.commit_store import CommitStoreGuarantees
from lancekeep.ports.object_store import ObjectStore
from lancekeep.store_urls import StoreUrl

_VERSION = re.compile("0|[1-9][0-9]{0,19}")
_ADVICE = "Put the directory on a file system with hard links, or use another commit store, such as sqlite:///…"


class FilesCommitStore:
    """Keep version rows in a directory that the processes of one machine share.

    To reserve a version, the store hard-links a complete file to the version's name. This succeeds for one claimant,
    and no reader sees a partial row. `finalize` renames a new file over the old one. `finalize`, `delete`, and
    `reserve` of a version after the first hold a lock on the history (``flock`` on the file ``history``) from the check
    of a row to the change, so a deleted row does not reappear. The operating system releases the lock of a crashed
    process.

    Args:
        directory: The directory; its parent must exist.
        fsync: Sync a row to the disk before it is acknowledged.
    """

    options: ClassVar[frozenset[str]] = frozenset(("fsync",))

    def __init__(self, directory: str, fsync: bool = True) -> None:
        self._directory = os.path.realpath(directory)
        self._fsync = fsync
        self._known: dict[str, tuple[int, int]] = {}
        self.url = f"file://{quote(self._directory)}"
        self.guarantees = CommitStoreGuarantees(remembers=fsync, shared=False)

    @classmethod
    def open(cls, url: StoreUrl, objects: ObjectStore) -> FilesCommitStore:
        return cls(url.absolute_path(), url.boolean("fsync", True))

    def __repr__(self) -> str:
        return f"FilesCommitStore({self.url!r})"

    @boundary(OSError)
    def get(self, base_uri: str, version: int) -> VersionRow | None:
        return self._read(self._history(base_uri), base_uri, version)

    @boundary(OSError)
    def latest(self, base_uri: str) -> VersionRow | None:
        return self._latest(self._history(base_uri), base_uri)

    @boundary(OSError)
    def list(self, base_uri: str, *, after: int | None, limit: int | None, descending: bool) -> list[VersionRow]:
        history = self._history(base_uri)
        rows: list[VersionRow] = []
        for version in sorted(_versions(history), reverse=descending):
            if limit is not None and len(rows) >= limit:
                break
            if after is not None and (version >= after if descending else version <= after):
                continue
            row = self._read(history, base_uri, version)
            if row is not None:
                rows.append(row)
        return rows

    @boundary(OSError)
    def reserve(self, row: VersionRow, *, first: bool) -> Reservation:
        history = self._history(row.base_uri)
        latest = self._latest(history, row.base_uri)
        predecessor = None if first else f"{history}/{row.version - 1}"
        if may_claim(row, latest, first=first) and self._create(history, row, predecessor):
            self._sync(history)
            return Reserved()
        held = self._read(history, row.base_uri, row.version)
        if held is None:
            return NotReady(latest)
        self._sync(history)  # the writer of the row may have crashed before its sync
        return answer(row, held)

    def reserve_all(self, claims: Sequence[Claim]) -> BatchReservation:
        return reserve_alone(self, claims)

    def latest_all(self, base_uris: Sequence[str]) -> Sequence[VersionRow | None]:
        return latest_agreed(self, base_uris)

    @boundary(OSError)
    def finalize(self, row: VersionRow) -> bool:
        history = self._history(row.base_uri)
        with self._locked(history):
            held = self._read(history, row.base_uri, row.version)
            if held is not None and may_finalize(held):
                text = f"{row.size}\0{row.path}\0{held.committer}"
                os.rename(self._write(history, text), f"{history}/{row.version}")
        if held is not None and may_finalize(held):
            self._sync(history)
        return held is not None

    @boundary(OSError)
    def record(self, rows: Iterable[VersionRow]) -> None:
        changing: set[str] = set()
        try:
            for row in rows:
                history = self._history(row.base_uri)
                if history not in changing:
                    self._make(history, row.base_uri)
                    self._announce_change(history)
                    changing.add(history)
                self._create(history, row)
        finally:
            for history in changing:
                self._announce_change(history)
                self._sync(history)

    @boundary(OSError)
    def delete(self, base_uri: str, versions: Iterable[int] | None = None) -> int:
        history = self._history(base_uri)
        with self._locked(history):
            present = _versions(history)
            doomed = present if versions is None else present.intersection(versions)
            if not doomed:
                return 0
            # Announced before, for readers during the removal, and after, for readers that started during it.
            self._announce_change(history)
            for version in sorted(doomed):  # the newest last: if interrupted, the latest version is still the latest
                _remove(f"{history}/{version}")
            self._announce_change(history)
        self._sync(history)
        return len(doomed)

    def close(self) -> None:
        """Do nothing: no file is held open."""

    def _history(self, base_uri: str) -> str:
        return f"{self._directory}/{sha256(base_uri.encode()).hexdigest()}"

    def _latest(self, history: str, base_uri: str) -> VersionRow | None:
        """Return the latest row, starting at the cached version; list the directory if the cache is invalid.

        Reservations leave no gaps, so between two announced changes the first missing version ends the history.
        """
        while True:
            changes = _changes(history)
            known_changes, version = self._known.get(base_uri, (None, 0))
            if known_changes != changes:
                versions = _versions(history)
                if not versions:
                    return None
                version = max(versions)
            while os.access(f"{history}/{version + 1}", os.F_OK):
                version += 1
            row = self._read(history, base_uri, version)
            if row is not None and _changes(history) == changes:
                self._known[base_uri] = changes, version
                return row
            self._known.pop(base_uri, None)

    def _read(self, history: str, base_uri: str, version: int) -> VersionRow | None:
        try:
            with open(f"{history}/{version}", "rb", 0) as file:
                content = file.readall()
        except FileNotFoundError:
            return None
        try:
            size, path, committer = content.decode().split("\0", 2)
            return VersionRow(base_uri, version, path, int(size), committer)
        except ValueError as error:
            raise Damaged(
                f"{history}/{version}: expected the row of version {version} of {base_uri}, found {len(content)} bytes "
                "instead: the disk lost it, or fsync was off during a power loss. Remove the file; the row is "
                "restored from the manifest if that is final."
            ) from error

    def _create(self, history: str, row: VersionRow, predecessor: str | None = None) -> bool:
        """Enter a row if its version has none, and return whether it did; the caller syncs the directory.

        Args:
            history: The directory of the history.
            row: The row.
            predecessor: A row that must still exist, because a concurrent `delete` may have removed the history.
        """
        content = f"{row.size}\0{row.path}\0{row.committer}"
        try:
            temporary = self._write(history, content)
        except FileNotFoundError:
            self._make(history, row.base_uri)
            temporary = self._write(history, content)
        if predecessor is None:
            return self._place(temporary, f"{history}/{row.version}")
        with self._locked(history):
            if os.access(predecessor, os.F_OK):
                return self._place(temporary, f"{history}/{row.version}")
        _remove(temporary)
        return False

    def _place(self, temporary: str, path: str) -> bool:
        """Link a complete file to its name; return False if the name is taken."""
        try:
            return hard_link(temporary, path, self.url, _ADVICE)
        finally:
            _remove(temporary)

    def _write(self, history: str, text: str) -> str:
        """Write the text to a new file whose name is no version, and return its path."""
        path = f"{history}/.{os.urandom(8).hex()}"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            content = text.encode()
            if os.write(file, content) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            if self._fsync:
                os.fsync(file)
        except OSError:
            _remove(path)
            raise
        finally:
            os.close(file)
        return path

    def _make(self, history: str, base_uri: str) -> None:
        """Create the directories of the store and a history, but no parents: the path may be misspelt."""
        for directory in (self._directory, history):
            try:
                os.mkdir(directory)
            except FileExistsError:
                continue
            self._sync(os.path.dirname(directory))
        if not os.access(f"{history}/history", os.F_OK):
            self._place(self._write(history, base_uri + "\n"), f"{history}/history")

    @contextmanager
    def _locked(self, history: str) -> Iterator[None]:
        """Hold the lock for changes of existing rows; a history without files needs none."""
        try:
            file = os.open(f"{history}/history", os.O_RDONLY)
        except FileNotFoundError:
            yield
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)  # a process that was forked since then keeps the file open
        finally:
            os.close(file)

    def _announce_change(self, history: str) -> None:
        file = os.open(f"{history}/history", os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, b".")
        finally:
            os.close(file)

    def _sync(self, directory: str) -> None:
        if not self._fsync:
            return
        file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(file)
        finally:
            os.close(file)

    def understood(self, error: Exception) -> LancekeepError:
        assert isinstance(error, OSError)
        where = error.filename or self._directory
        if isinstance(error, PermissionError) or error.errno == errno.EROFS:
            return AccessDenied(f"{self.url}: {where}: {error.strerror}; the commit store must be writable")
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            return InvalidInput(
                f"{self.url}: {where}: {error.strerror}. Expected a directory, or a name inside one that exists; "
                "create the directories above it first"
            )
        return StoreUnavailable(f"{self.url}: {where}: {error.strerror}")


def _versions(history: str) -> set[int]:
    try:
        return {int(name) for name in os.listdir(history) if _VERSION.fullmatch(name)}
    except FileNotFoundError:
        return set()


def _changes(history: str) -> int:
    try:
        return os.stat(f"{history}/history").st_size
    except FileNotFoundError:
        return 0  # nothing has been written yet


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
