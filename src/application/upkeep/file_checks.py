"""Check that the files of versions exist with the size that the manifest states."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

import attrs
import numpy as np

from lancekeep.application.entries.clones import Clones
from lancekeep.domain.dataset_files import DATA, DELETIONS, INDICES
from lancekeep.domain.errors import Damaged, InvalidInput, ObjectNotFound, Unsupported
from lancekeep.domain.file_references import FileReference
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.naming import detached_version
from lancekeep.format.deletions import MOST_BYTES, read
from lancekeep.format.file_references import file_references
from lancekeep.ports.object_store import ObjectInfo, ObjectStore

_BATCH = 4096
_UNKNOWN = -1
_NAMED_FAULTS = 1000
"""The most faulty files of a table that are confirmed and counted; the rest probably has the same cause."""


@attrs.frozen
class Version:
    """A version to check: the root of its history, its number and its manifest's key."""

    root: DatasetRoot
    number: int
    key: str

    @property
    def is_detached(self) -> bool:
        return detached_version(self.number) is not None

    @property
    def title(self) -> str:
        """The version, for messages."""
        return f"{'the detached version' if self.is_detached else 'version'} {self.number}"


@attrs.frozen
class FileFault:
    """A file of a version that is missing or damaged.

    Attributes:
        version: The version that names the file.
        key: The key of the file.
        fragment: The fragment that the file belongs to, if any.
        missing: Whether the file does not exist.
        reason: The fault, as the end of a sentence.
    """

    version: Version
    key: str
    fragment: int | None
    missing: bool
    reason: str


@attrs.frozen
class FileChecks:
    """Compares manifests with listings.

    The memory use is one manifest plus 17 bytes for each file that the checked versions name, regardless of the number
    of objects in the directories.
    """

    clones: Clones
    _stores: dict[str, ObjectStore] = attrs.field(factory=dict, init=False)
    """The other object stores that hold files, by the URIs with which the keys of these files begin."""

    def faults(
        self, table: DatasetRoot, versions: Sequence[Version], tell: Callable[[int], object] = lambda count: None
    ) -> Iterator[FileFault]:
        """Yield the files of a table's versions that are missing or damaged.

        A version with an unreadable manifest is skipped. Keys in another object store begin with its URI.

        Args:
            table: The root of the table.
            versions: The versions of the table and its branches to check.
            tell: Called with the number of objects that were compared.
        """
        bases: dict[tuple[str, str], str | None] = {}
        named = _Named.of((key, reference.size) for _, key, reference in self.references(versions, bases))
        prefixes = [f"{table.key}/"]
        for base in {base for base in bases.values() if base is not None and not f"{base}/".startswith(prefixes[0])}:
            prefixes += (f"{base}/{directory}/" for directory in (DATA, DELETIONS, INDICES))
        listed = (info for prefix in prefixes for info in self._list(prefix))
        count = 0
        while some := list(islice(listed, _BATCH)):
            named.find(some)
            count += len(some)
            tell(count)
        found = self._faulty(versions, bases, named)
        yield from islice(found, _NAMED_FAULTS)

    def _faulty(
        self, versions: Sequence[Version], bases: dict[tuple[str, str], str | None], named: _Named
    ) -> Iterator[FileFault]:
        for version, key, reference in self.references(versions, bases):
            if reference.deletion is not None or not named.is_whole(key):
                fault = self._fault(version, key, reference)
                if fault is not None and self.clones.objects.head(version.key) is not None:
                    yield fault

    def _list(self, prefix: str) -> Iterator[ObjectInfo]:
        store, own = self._at(prefix)
        above = prefix.removesuffix(own)
        return (attrs.evolve(info, key=above + info.key) if above else info for info in store.list(own))

    def _at(self, key: str) -> tuple[ObjectStore, str]:
        """Return the object store of a key, and the key in it."""
        for uri, store in self._stores.items():
            if key.startswith(uri):
                return store, key.removeprefix(uri)
        return self.clones.objects, key

    def _base(self, version: Version, reference: FileReference) -> str | None:
        """Return the key of the base path of a file; None if it cannot be resolved."""
        assert reference.base is not None
        with suppress(InvalidInput, Unsupported):  # the storage has no such place
            key = self.clones.base_key(version.root.key, reference.base, reference.path)
            if key is not None:
                return key
            place = self.clones.outside(reference.base)
            self._stores[place.objects.root_uri] = place.objects
            return place.objects.root_uri + place.key
        return None

    def _fault(self, version: Version, key: str, reference: FileReference) -> FileFault | None:
        """Check a file again: it or its version may have changed since the listing."""
        retry = self.clones.retry
        objects, at = self._at(key)
        if key.endswith("/"):
            held = retry.call(lambda: next(objects.list(at), None)) is not None
            return None if held else FileFault(version, key, reference.fragment, True, "is missing")
        info = retry.call(partial(objects.head, at))
        if info is None:
            return FileFault(version, key, reference.fragment, True, "is missing")
        if reference.size is not None and info.size != reference.size:
            reason = f"has {info.size:,} bytes, and its manifest says {reference.size:,}"
            return FileFault(version, key, reference.fragment, False, reason)
        if reference.deletion is not None:
            return self._deletion_fault(version, key, reference, info.size)
        return None

    def _deletion_fault(self, version: Version, key: str, reference: FileReference, size: int) -> FileFault | None:
        """Decode a deletion file. The engine must not read a damaged file: its allocations are unbounded."""
        assert reference.deletion is not None
        if size > MOST_BYTES:
            return FileFault(
                version,
                key,
                reference.fragment,
                False,
                f"has {size:,} bytes; a deletion file has at most {MOST_BYTES:,}",
            )
        objects, at = self._at(key)
        try:
            read(self.clones.retry.call(partial(objects.get, at)), reference.deletion, reference.rows, key)
        except ObjectNotFound:
            return FileFault(version, key, reference.fragment, True, "is missing")
        except Damaged as error:
            return FileFault(version, key, reference.fragment, False, str(error).removeprefix(f"{key} "))
        return None

    def references(
        self, versions: Iterable[Version], bases: dict[tuple[str, str], str | None]
    ) -> Iterator[tuple[Version, str, FileReference]]:
        """Yield the files of versions with their keys.

        Args:
            versions: The versions.
            bases: A cache of the keys of base paths.
        """
        for version in versions:
            with suppress(ObjectNotFound, Damaged):
                content = self.clones.retry.call(partial(self.clones.objects.get, version.key))
                for key, reference in self.keyed(version, file_references(content, version.key), bases):
                    yield version, key, reference

    def keyed(
        self, version: Version, references: Iterable[FileReference], bases: dict[tuple[str, str], str | None]
    ) -> Iterator[tuple[str, FileReference]]:
        """Yield files of a version with their keys; see `references`."""
        for reference in references:
            if reference.base is None:
                yield f"{version.root.key}/{reference.path}", reference
                continue
            known = (version.root.key, reference.base)
            if known not in bases:
                bases[known] = self._base(version, reference)
            if bases[known] is not None:
                yield f"{bases[known]}/{reference.path}", reference

    def objects_at(self, key: str) -> Iterator[ObjectInfo]:
        """Yield the object with a key, or the objects below a key that ends in a slash."""
        if key.endswith("/"):
            yield from self._list(key)
            return
        store, at = self._at(key)
        info = self.clones.retry.call(partial(store.head, at))
        if info is not None:
            yield attrs.evolve(info, key=key)


@attrs.define
class _Named:
    """The files that manifests name, by the hashes of their keys."""

    hashes: Any
    sizes: Any
    whole: Any

    @staticmethod
    def of(files: Iterable[tuple[str, int | None]]) -> _Named:
        pairs = ((hash(key), _UNKNOWN if size is None else size) for key, size in files)
        found = np.fromiter(pairs, dtype=[("hash", np.int64), ("size", np.int64)])
        hashes, first = np.unique(found["hash"], return_index=True)
        return _Named(hashes, found["size"][first], np.zeros(len(hashes), dtype=bool))

    def find(self, infos: Sequence[ObjectInfo]) -> None:
        """Compare listed objects with the files."""
        if not len(self.hashes):
            return
        pairs = [(hash(info.key), info.size) for info in infos]
        pairs += [(hash(_index_directory(info.key)), _UNKNOWN) for info in infos if f"/{INDICES}/" in info.key]
        hashes = np.array([known for known, _ in pairs], dtype=np.int64)
        sizes = np.array([size for _, size in pairs], dtype=np.int64)
        at = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        same = self.hashes[at] == hashes
        expected = self.sizes[at]
        self.whole[at[same & ((expected == _UNKNOWN) | (expected == sizes))]] = True

    def is_whole(self, key: str) -> bool:
        """Return whether the file was listed with the size that its manifest states."""
        at = int(np.searchsorted(self.hashes, hash(key)))
        return bool(at < len(self.hashes) and self.hashes[at] == hash(key) and self.whole[at])


def _index_directory(key: str) -> str:
    above, _, below = key.rpartition(f"/{INDICES}/")
    return f"{above}/{INDICES}/{below.partition('/')[0]}/"
