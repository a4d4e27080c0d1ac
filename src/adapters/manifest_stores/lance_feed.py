"""The changes of a catalog in a manifest table, from its versions (ADR 160)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from threading import Event, Lock
from typing import Protocol

from lancekeep.adapters.manifest_stores.index import Fragment
from lancekeep.adapters.manifest_stores.table_versions import TableVersions, Version, empty_version
from lancekeep.domain.change_feed import CatalogVersion, ChangeCursor
from lancekeep.domain.errors import ObjectNotFound, VersionNotFound
from lancekeep.domain.idempotency import PROPERTY as REQUEST_PROPERTY
from lancekeep.domain.manifest_entry import NAMESPACE, ManifestEntry, encode_properties
from lancekeep.format.manifest import committed_at

ROOT = ""
"""The root namespace among the ids of changed objects."""
_BEGIN = ChangeCursor(0, "")
_POLL = 0.2
"""Seconds between two checks for a change: the storage sends no notifications."""


class Contents(Protocol):
    """The manifest files of a manifest table."""

    def content(self, number: int) -> bytes:
        """Return the manifest file of a version.

        Raises:
            ObjectNotFound: There is no such version.
        """

    def numbers(self) -> Sequence[int]:
        """Return the versions that exist, unordered."""

    def latest(self) -> tuple[int, bytes]:
        """Return the latest version with its manifest file; version 0 has none."""


class LanceFeed:
    """The versions of a manifest table, as differences from their predecessors.

    Native writers commit the same versions, so their changes are in the feed, too. The token of a version is a digest
    of its manifest file. Only fragments that differ between two versions are compared.

    Args:
        versions: Reads versions.
        contents: Reads manifest files.
        name: The table, for messages.
    """

    def __init__(self, versions: TableVersions, contents: Contents, name: str) -> None:
        self._versions, self._contents, self._name = versions, contents, name
        self._lock = Lock()
        self._read: Version | None = None

    def versions(self, after: ChangeCursor, limit: int) -> Sequence[CatalogVersion]:
        with self._lock:
            return self._following(after, limit)

    def oldest(self) -> ChangeCursor:
        for number in sorted(self._contents.numbers()):
            if number == 1:
                return _BEGIN
            try:
                return _cursor(number, self._contents.content(number))
            except ObjectNotFound:  # a clean-up has removed it since
                continue
        return _BEGIN

    def latest(self) -> ChangeCursor:
        return _cursor(*self._contents.latest())

    @contextmanager
    def listening(self) -> Iterator[Callable[[float], None]]:
        """Provide a function that waits for a short time: the storage reports no changes."""
        never = Event()

        def wait(seconds: float) -> None:
            never.wait(min(seconds, _POLL))

        yield wait

    def _following(self, after: ChangeCursor, limit: int) -> list[CatalogVersion]:
        found: list[CatalogVersion] = []
        number = after.version
        if after.key is None:
            base = self._at(after)
        else:  # the position is within a version, with which the result begins
            self._content(after)
            number -= 1
            base = self._at(_cursor(number, self._kept(number, after) if number else b""))
        while sum(max(1, len(each.before) + len(each.after)) for each in found) < limit:
            try:
                content = self._contents.content(number + 1)
            except ObjectNotFound:
                break
            base, change = self._next(base, content)
            found.append(change)
            number += 1
        if not found and number:
            self._kept(number, after)  # otherwise the next version may have been removed as well
        self._read = base
        return found

    def _at(self, cursor: ChangeCursor) -> Version:
        """Return the version of a position. Raises `VersionNotFound` if it is not kept."""
        if cursor.version == 0:
            if cursor != _BEGIN or min(self._contents.numbers(), default=1) != 1:
                raise self._not_kept(cursor)
            return empty_version()
        content = self._content(cursor)
        known = self._read
        if known is not None and known.content == content:
            return known
        return self._versions.read(content, known)

    def _content(self, cursor: ChangeCursor) -> bytes:
        content = self._kept(cursor.version, cursor)
        if _cursor(cursor.version, content).token != cursor.token:
            raise self._not_kept(cursor)
        return content

    def _kept(self, number: int, cursor: ChangeCursor) -> bytes:
        try:
            return self._contents.content(number)
        except ObjectNotFound:
            raise self._not_kept(cursor) from None

    def _next(self, base: Version, content: bytes) -> tuple[Version, CatalogVersion]:
        try:
            version = self._versions.read(content, base)
        except ObjectNotFound:
            raise VersionNotFound(
                f"{self._name}: a clean-up removed version {base.number + 1} while it was read. Read again"
            ) from None
        at = committed_at(content, self._name) // 1000
        before, after = _differences(base, version)
        return version, CatalogVersion(version.number, _token(content), at, before, after)

    def _not_kept(self, cursor: ChangeCursor) -> VersionNotFound:
        return VersionNotFound(
            f"{self._name}: the changes after the cursor {str(cursor)!r:.80} are not kept. They are too old (a "
            "clean-up removes versions of the manifest table that were replaced ten minutes ago), or the cursor is of "
            "another catalog, or the catalog was restored from a backup. List the catalog, and continue with the "
            "cursor of changes.latest() from before the list."
        )


def _cursor(number: int, content: bytes) -> ChangeCursor:
    return ChangeCursor(number, _token(content)) if number else _BEGIN


def _token(content: bytes) -> str:
    """Return the token of a version: two versions of one number differ at least in a random name."""
    return blake2b(content, digest_size=16).hexdigest()


def _differences(base: Version, version: Version) -> tuple[Mapping[str, ManifestEntry], Mapping[str, ManifestEntry]]:
    """Return the entries that a version ended and began, by object id."""
    old = {(each.paths, each.deletion): each for each in base.view.fragments}
    new = {(each.paths, each.deletion): each for each in version.view.fragments}
    before = _entries(old[each] for each in old.keys() - new.keys())
    after = _entries(new[each] for each in new.keys() - old.keys())
    same = [key for key, entry in after.items() if before.get(key) == entry and _extends(before[key], entry)]
    for key in same:
        del before[key], after[key]
    properties = _own(version.view.properties)
    if properties != _own(base.view.properties):
        after[ROOT] = ManifestEntry(ROOT, NAMESPACE, None, encode_properties(properties))
    return before, after


def _entries(fragments: Iterator[Fragment]) -> dict[str, ManifestEntry]:
    return {entry.object_id: entry for each in sorted(fragments, key=lambda one: one.id) for entry in each.entries()}


def _extends(one: ManifestEntry, other: ManifestEntry) -> bool:
    """Return whether two entries agree in the columns outside of the specification, too."""
    return dict(one.extension) == dict(other.extension)


def _own(properties: Mapping[str, str]) -> dict[str, str]:
    """Return properties without the records of requests, which are no change of the catalog."""
    return {name: value for name, value in properties.items() if not name.startswith(REQUEST_PROPERTY)}
