"""Records of the digests of a table's files, beside these files.

A record is an object ``.lancekeep-digests/{digest of its content}.jsonl`` in the directory of a history. Records are
only added, or replaced by one record with all of their contents, so concurrent writers lose none. If several records
name a file, each of their digests is valid: a version may have been removed, and its number used again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

import attrs

from lancekeep.application.retry import Retry
from lancekeep.domain.digests import FileDigest
from lancekeep.domain.errors import Damaged, ObjectNotFound
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.table import DIGESTS_DIRECTORY, Table
from lancekeep.format.digests import decode_digests, digest_of, encode_digests
from lancekeep.ports.object_store import ObjectInfo, ObjectStore

Recorded = Mapping[str, Collection[FileDigest]]
_Record = tuple[ObjectInfo, list[tuple[str, FileDigest]]]


class Recorder(Protocol):
    """Notes committed versions, and records the digests of their files later."""

    def wants(self, table: Table) -> bool:
        """Return whether the commits of a table record digests. This costs no request."""

    def note(self, table: Table, branch: str | None, version: int, path: str) -> None:
        """Note a committed version, whose new files will be read.

        Args:
            table: The table.
            branch: The branch; None for the main history.
            version: The version.
            path: The key of its manifest; empty if it is not known.
        """

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


@attrs.frozen
class Digests:
    """The records of the tables in one object store.

    A history is given by the key of its root.
    """

    objects: ObjectStore
    retry: Retry

    def recorded(self, history: str) -> Recorded:
        """Return the recorded digests of files, by their names.

        Raises:
            Damaged: A record is damaged.
        """
        return _merged(pair for _, pairs in self._records(history) for pair in pairs)

    def add(self, history: str, found: Iterable[tuple[str, FileDigest]]) -> str:
        """Add a record, and return its key."""
        name, content = encode_digests(found)
        key = f"{history}/{DIGESTS_DIRECTORY}/{name}"
        self.retry.call(partial(self.objects.put, key, content))
        return key

    def merge(
        self, history: str, found: Iterable[tuple[str, FileDigest]], present: Collection[str], records: Collection[str]
    ) -> None:
        """Replace records by one record.

        Args:
            history: The key of the root of the history.
            found: Digests to add.
            present: The names of the files that exist. Other files are left out.
            records: The keys of the records to replace. They existed before the files were listed.

        Raises:
            Damaged: A record is damaged. It stays.
        """
        before = [(info, pairs) for info, pairs in self._records(history) if info.key in records]
        kept = {pair for _, pairs in before for pair in pairs if pair[0] in present or "://" in pair[0]}
        self._replace(history, before, {*found, *kept})

    def fold(self, history: str, removed: Collection[str] = ()) -> None:
        """Replace all records by one record, without the digests of removed files.

        The names of these files may be used again.

        Args:
            history: The key of the root of the history.
            removed: The names of the removed files.
        """
        with suppress(Damaged):  # `verify` reports the record
            before = list(self._records(history))
            kept = {pair for _, pairs in before for pair in pairs if pair[0] not in removed}
            if len(before) > 1 or any(name in removed for _, pairs in before for name, _ in pairs):
                self._replace(history, before, kept)

    def amend(self, history: str, name: str, content: bytes) -> None:
        """Add the digest of a changed file if the history has any record."""
        if self.retry.call(lambda: next(self.objects.list(f"{history}/{DIGESTS_DIRECTORY}/"), None)) is not None:
            self.add(history, [(name, digest_of(content))])

    def keys(self, history: str) -> set[str]:
        """Return the keys of the records."""
        return {info.key for info in self._listed(history)}

    def _replace(self, history: str, before: Sequence[_Record], kept: Collection[tuple[str, FileDigest]]) -> None:
        """Add a record, and remove the records whose contents it has; it may have the name of such a record."""
        record = self.add(history, kept) if kept else ""
        for info, _ in before:
            if info.key != record:
                self.retry.call(partial(self.objects.delete, info.key))

    def _listed(self, history: str) -> list[ObjectInfo]:
        return self.retry.call(lambda: list(self.objects.list(f"{history}/{DIGESTS_DIRECTORY}/")))

    def _records(self, history: str) -> Iterator[_Record]:
        for info in self._listed(history):
            with suppress(ObjectNotFound):  # another process has merged it
                yield info, decode_digests(info.key, self.retry.call(partial(self.objects.get, info.key)))


def _merged(pairs: Iterable[tuple[str, FileDigest]]) -> Recorded:
    found: dict[str, set[FileDigest]] = {}
    for name, digest in pairs:
        found.setdefault(name, set()).add(digest)
    return found
