"""Records of the digests of a table's files, beside these files.

A record is an object ``.lancekeep-digests/{digest of its content}.jsonl`` in the directory of a history. Records are
only added, or replaced by one with all of their contents, so concurrent writers lose none. If several records name a
file, each of their digests is valid: a version may have been removed, and its number used again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial

import attrs

from lancekeep.application.retry import Retry
from lancekeep.domain.digests import FileDigest
from lancekeep.domain.errors import Damaged, ObjectNotFound
from lancekeep.domain.table import DIGESTS_DIRECTORY
from lancekeep.format.digests import decode_digests, digest_of, encode_digests
from lancekeep.ports.object_store import ObjectInfo, ObjectStore

Recorded = Mapping[str, Collection[FileDigest]]


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

    def merge(self, history: str, found: Iterable[tuple[str, FileDigest]], present: Collection[str]) -> None:
        """Replace all records by one.

        Args:
            history: The key of the root of the history.
            found: Digests to add.
            present: The names of the files that exist. Others are left out.

        Raises:
            Damaged: A record is damaged. It stays.
        """
        before = list(self._records(history))
        kept = (pair for _, pairs in before for pair in pairs if pair[0] in present or "://" in pair[0])
        self._replace([info.key for info, _ in before], self.add(history, {*found, *kept}))

    def amend(self, history: str, name: str, content: bytes) -> None:
        """Add the digest of a changed file if the history has any record."""
        if self.retry.call(lambda: next(self.objects.list(f"{history}/{DIGESTS_DIRECTORY}/"), None)) is not None:
            self.add(history, [(name, digest_of(content))])

    def forget(self, history: str, names: Collection[str]) -> None:
        """Remove the digests of removed files, whose names may be used again."""
        with suppress(Damaged):  # `verify` reports the record
            before = list(self._records(history))
            if not any(name in names for _, pairs in before for name, _ in pairs):
                return
            kept = {pair for _, pairs in before for pair in pairs if pair[0] not in names}
            self._replace([info.key for info, _ in before], self.add(history, kept))

    def _replace(self, before: Iterable[str], record: str) -> None:
        """Remove records whose contents a new one has; it may have the name of one of them."""
        for key in before:
            if key != record:
                self.retry.call(partial(self.objects.delete, key))

    def _records(self, history: str) -> Iterator[tuple[ObjectInfo, list[tuple[str, FileDigest]]]]:
        for info in self.retry.call(lambda: list(self.objects.list(f"{history}/{DIGESTS_DIRECTORY}/"))):
            with suppress(ObjectNotFound):  # another process has merged it
                yield info, decode_digests(info.key, self.retry.call(partial(self.objects.get, info.key)))


def _merged(pairs: Iterable[tuple[str, FileDigest]]) -> Recorded:
    found: dict[str, set[FileDigest]] = {}
    for name, digest in pairs:
        found.setdefault(name, set()).add(digest)
    return found
