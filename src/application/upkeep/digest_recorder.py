"""Record the digests of new files after the commits of tables.

The property `DIGESTS` switches it on. No commit waits for it, and none fails. A thread writes one record for the
commits of a second. If the process is killed before, `lancekeep digest` records the rest.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from threading import Event, Lock, Thread, main_thread
from typing import NamedTuple
from weakref import WeakSet

from lancekeep.application.entries.clones import Clones
from lancekeep.application.entries.ledger import Ledger
from lancekeep.application.entries.places import Places
from lancekeep.application.rows.digests import Digests
from lancekeep.application.upkeep.file_checks import FileChecks, Version
from lancekeep.application.upkeep.named_files import NamedFile, added_files
from lancekeep.domain.dataset_files import TRANSACTIONS
from lancekeep.domain.digests import FileDigest, records_digests
from lancekeep.domain.errors import LancekeepError, ObjectNotFound
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.naming import detached_version
from lancekeep.domain.table import Table
from lancekeep.format.digests import digest_of
from lancekeep.format.manifest import message_at, transaction_name
from lancekeep.format.table_version import operation_field

_LOG = logging.getLogger(__name__)

_LINGER = 1.0
"""Seconds for which commits are collected."""
_LOOK_EVERY = 0.05
"""Seconds after which an ending process is noticed."""
_MOST_BYTES = 32 << 20
"""The most contents of files that wait to be hashed."""

FileDigestOf = Callable[[str, str, int], str]
"""Returns the digest of a file, by the URI of a directory, its path there and its size. Raises `OSError`."""

_OPEN: WeakSet[DigestRecorder] = WeakSet()


def _after_fork() -> None:
    for recorder in _OPEN:
        recorder.after_fork()


os.register_at_fork(after_in_child=_after_fork)


class _Found(NamedTuple):
    """The digests of the new files of a version.

    Attributes:
        digests: The digests by the names of the files, by the key of the history that records them.
        proof: The key of a file that no other table has, such as one that is created later at the same place.
    """

    digests: Mapping[str, Sequence[tuple[str, FileDigest]]]
    proof: str


class _Note(NamedTuple):
    """A committed version, and how to find its digests."""

    history: DatasetRoot
    version: int
    find: Callable[[], _Found]


class DigestRecorder:
    """Records the digests of the files of committed versions.

    Args:
        ledger: The entries, and the commits of the versions.
        places: The directories.
        clones: Resolves base paths.
        file_digest: Reads the files that the table engine has written.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self,
        ledger: Ledger,
        places: Places,
        clones: Clones,
        file_digest: FileDigestOf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger = ledger
        self._places = places
        self._clones = clones
        self._file_digest = file_digest
        self._clock = clock
        self.after_fork()
        _OPEN.add(self)

    def after_fork(self) -> None:
        """Forget the commits and the thread of the parent, which records them."""
        self._lock, self._writing, self._hurry = Lock(), Lock(), Event()
        self._notes: list[_Note] = []
        self._bytes = 0
        self._is_served = False

    # -- noting -------------------------------------------------------------------------------------------------

    def wants(self, table: Table) -> bool:
        """Return whether the commits of a table record digests. This costs no request."""
        return records_digests(self._ledger.recent().entered, table.properties)

    def note(self, table: Table, branch: str | None, version: int, path: str) -> None:
        """Note a committed version, whose new files will be read.

        Args:
            table: The table.
            branch: The branch; None for the main history.
            version: The version.
            path: The key of its manifest; empty if it is not known.
        """
        if self.wants(table):
            root = self._places.dataset_root(table)
            history = root.branch(branch)
            self._add(_Note(history, version, partial(self._read, root, history, version, path)))

    def note_append(
        self, root: DatasetRoot, version: int, contents: Sequence[tuple[str, bytes]], manifest: tuple[str, FileDigest]
    ) -> None:
        """Note a committed version of the main history, all of whose new files are known.

        Args:
            root: The table.
            version: The version.
            contents: The new files by their paths below the table, the transaction file last.
            manifest: The manifest.
        """
        size = sum([len(content) for _, content in contents])
        note = _Note(root, version, partial(_hashed, root.key, contents, manifest))
        if self._bytes + size > _MOST_BYTES:
            found, size = note.find(), 0
            note = note._replace(find=lambda: found)
        self._add(note, size)

    def _add(self, note: _Note, size: int = 0) -> None:
        with self._lock:
            self._notes.append(note)
            self._bytes += size
            starts, self._is_served = not self._is_served, True
        if self._bytes > _MOST_BYTES // 2:
            self._hurry.set()
        if starts:
            try:
                Thread(target=self._serve, name="lancekeep-digests").start()
            except RuntimeError:  # the interpreter shuts down
                self._is_served = False
                self.flush()

    def _serve(self) -> None:
        """Write records until no commit waits."""
        while True:
            ends = self._clock() + _LINGER
            while self._clock() < ends and main_thread().is_alive() and not self._hurry.wait(_LOOK_EVERY):
                pass
            self._hurry.clear()
            self.flush()
            with self._lock:
                if not self._notes:
                    self._is_served = False
                    return

    # -- recording ----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Record all commits, and let the thread end."""
        self._hurry.set()
        self.flush()

    def flush(self) -> None:
        """Record all commits that were noted. Faults are logged."""
        with self._writing:
            with self._lock:
                notes, self._notes, self._bytes = self._notes, [], 0
            by_history: dict[str, list[_Note]] = {}
            for note in notes:
                by_history.setdefault(note.history.key, []).append(note)
            for some in by_history.values():
                self._record(some)

    def _record(self, notes: Sequence[_Note]) -> None:
        """Record versions of one history."""
        digests: dict[str, list[tuple[str, FileDigest]]] = {}
        proof = ""
        for note in notes:
            try:
                found = note.find()
            except ObjectNotFound:  # the table was dropped, or the version removed
                continue
            except Exception as error:  # such as errors of the table engine: the commit is done, whatever fails here
                _warn(note, error)
                continue
            proof = found.proof
            for history, some in found.digests.items():
                digests.setdefault(history, []).extend(some)
        for history, every in digests.items():
            try:
                self._write(history, every, proof)
            except LancekeepError as error:
                _warn(notes[-1], error)

    def _write(self, history: str, digests: Sequence[tuple[str, FileDigest]], proof: str) -> None:
        commits = self._ledger.commits
        record = Digests(commits.objects, commits.retry).add(history, digests)
        if commits.retry.call(partial(commits.objects.head, proof)) is None:
            # The table was dropped. Another table at the same place has manifests of the same names.
            commits.retry.call(partial(commits.objects.delete, record))

    def _read(self, root: DatasetRoot, history: DatasetRoot, number: int, path: str) -> _Found:
        """Read the new files of a version, with the arguments of `note`."""
        path = path or self._path(history, number)
        content = self._get(path)
        found = {history.key: [(path.removeprefix(f"{history.key}/"), digest_of(content))]}
        proof, operation, read_version = path, "", number - 1
        if name := transaction_name(message_at(content)):
            proof, read_version = f"{history.key}/{TRANSACTIONS}/{name}", int(name.partition("-")[0])
            with suppress(ObjectNotFound):
                transaction = self._get(proof)
                operation = operation_field(transaction, proof)
                found[history.key].append((f"{TRANSACTIONS}/{name}", digest_of(transaction)))
        before = number - 1 if detached_version(number) is None else read_version
        row = self._ledger.commits.existing(history, before) if before > 0 else None
        if operation == "restore" or (row is None and before > 0 and operation != "clone"):
            return _Found(found, proof)  # its files were written by other commits
        previous = None if row is None else self._get(row.path)
        version = Version(history, number, path)
        for file in added_files(FileChecks(self._clones), root, version, content, previous):
            digest = FileDigest(file.size, self._digest_of(root, file))
            found.setdefault(file.history, []).append((file.name, digest))
        return _Found(found, proof)

    def _digest_of(self, root: DatasetRoot, file: NamedFile) -> str:
        if "://" in file.key:
            directory, _, path = file.key.rpartition("/")
            return self._file_digest(directory, path, file.size)
        return self._file_digest(self._places.uri_at(root), file.key.removeprefix(f"{root.key}/"), file.size)

    def _path(self, history: DatasetRoot, version: int) -> str:
        row = self._ledger.commits.existing(history, version)
        if row is None:
            raise ObjectNotFound(f"{history.base_uri} has no version {version}")
        return row.path

    def _get(self, key: str) -> bytes:
        commits = self._ledger.commits
        return commits.retry.call(partial(commits.objects.get, key))


def _hashed(history: str, contents: Sequence[tuple[str, bytes]], manifest: tuple[str, FileDigest]) -> _Found:
    """Return the digests of files whose contents are known, with the arguments of `DigestRecorder.note_append`."""
    digests = [*((name, digest_of(content)) for name, content in contents), manifest]
    return _Found({history: digests}, f"{history}/{contents[-1][0]}")


def _warn(note: _Note, error: Exception) -> None:
    _LOG.warning(
        "%s: the digests of version %d, and perhaps of earlier versions, are not recorded: %s. `lancekeep digest` "
        "records them",
        note.history.base_uri,
        note.version,
        error,
    )
