"""Shallow clones, and the records by which a source finds its clones.

A record is an object ``.lancekeep-clones/{hash of the clone's location}`` in the directory of the source. It contains
that location. The record is written before the catalog shows the clone or publishes its version. So one listing of the
source finds every clone, regardless of the number of tables (ADR 32). Records are hints: a manifest of the clone
decides.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import TypeVar
from urllib.parse import unquote

import attrs

from lancekeep.application.entries.outside import OutsideDirectory, nowhere
from lancekeep.application.retry import Retry
from lancekeep.domain.catalog import ancestors
from lancekeep.domain.errors import Damaged, InvalidInput, ObjectNotFound
from lancekeep.domain.file_references import same_dataset
from lancekeep.domain.layout import BRANCHES, VERSIONS
from lancekeep.domain.naming import ManifestName, is_detached_name
from lancekeep.domain.table import CLONES_DIRECTORY, MANIFEST_DIRECTORY
from lancekeep.format.file_references import file_references, may_be_clone
from lancekeep.ports.object_store import ObjectInfo, ObjectStore

T = TypeVar("T")


@attrs.frozen
class Clones:
    """The clones among the datasets below ``root_key``; locations are relative to it."""

    objects: ObjectStore
    retry: Retry
    root_key: str
    outside: Callable[[str], OutsideDirectory] = nowhere
    _recorded: set[tuple[str, frozenset[str]]] = attrs.field(factory=set)

    # -- records ------------------------------------------------------------------------------------------------

    def record(self, key: str, content: bytes, name: str) -> list[str]:
        """Record a dataset as a clone at every source of one manifest. Idempotent.

        Args:
            key: The key of the dataset.
            content: The manifest.
            name: The name of the manifest, for errors.

        Returns:
            The locations of the sources.

        Raises:
            Damaged: The manifest cannot be read.
        """
        if not may_be_clone(content):
            return []
        location = self.location(key)
        examples = _examples(content, name)
        known = (location, frozenset(examples))
        if known in self._recorded:
            return []
        sources = self._sources(location, examples)
        for source in sources:
            record, text = self._record_key(source, location), location.encode()
            if self._retry(partial(self.objects.head, record)) is None:
                self._retry(partial(self.objects.put, record, text))
        self._recorded.add(known)
        return sources

    def record_dataset(self, location: str) -> list[str]:
        """Record a dataset as a clone, and return the locations of its sources.

        The newest and the oldest manifest of each history are read.
        """
        found = (self.record(self._key(location), content, name) for name, content in self._ends(location))
        return list(dict.fromkeys(source for sources in found for source in sources))

    def forget(self, location: str, content: bytes, name: str) -> None:
        """Remove the records of a dropped clone.

        Args:
            location: The location of the clone.
            content: Its latest manifest.
            name: The name of the manifest, for errors.
        """
        if may_be_clone(content):
            for source in self._sources(location, _examples(content, name)):
                self.objects.delete(self._record_key(source, location))
        self._recorded.clear()

    def records(self, source: str) -> Iterator[tuple[str, str]]:
        """Yield the key of each record of a source, and the location of the clone."""
        for info in self._list(f"{self._key(source)}/{CLONES_DIRECTORY}/"):
            with suppress(ObjectNotFound):
                yield info.key, self._retry(partial(self.objects.get, info.key)).decode(errors="replace")

    def missing_records(self, location: str) -> list[str]:
        """Return the sources of a clone that have no record of it.

        A damaged manifest has no sources.
        """
        sources = set[str]()
        for name, content in self._ends(location):
            with suppress(Damaged, InvalidInput):
                sources.update(self._sources(location, _examples(content, name) if may_be_clone(content) else {}))
        return sorted(source for source in sources if self.objects.head(self._record_key(source, location)) is None)

    def add_record(self, source: str, location: str) -> bool:
        """Record one clone at one source, and return True."""
        self.objects.put(self._record_key(source, location), location.encode())
        return True

    # -- readers ------------------------------------------------------------------------------------------------

    def recorded_readers(self, source: str) -> list[str]:
        """Return the locations of the recorded clones that read files of a source."""
        return [location for _, location in self.records(source) if self.reads(location, source)]

    def reads(self, location: str, source: str) -> bool:
        """Return whether any manifest of a dataset reads files of a source.

        A damaged manifest counts as reading them.
        """
        return any(self._reads(key, source) for key in self._manifests(location))

    def ends_read(self, location: str, source: str) -> bool:
        """Return whether a newest or oldest version of a dataset reads files of a source.

        Each branch has a newest and an oldest version. An overwritten clone reads its source only by its older
        versions.
        """
        return any(_reads(content, name, source) for name, content in self._ends(location))

    def protected(self, doomed: Collection[str], datasets: Iterable[str]) -> dict[str, str]:
        """Return the doomed locations that remaining datasets read, each with one reader.

        A doomed dataset that is protected remains too, and protects the datasets that it reads.
        """
        bases = {location: self._bases(location) for location in datasets}
        protected: dict[str, str] = {}
        while True:
            found = {
                source: location
                for location, paths in bases.items()
                if location not in doomed or location in protected
                for source in doomed
                if source not in protected and source != location and any(same_dataset(path, source) for path in paths)
            }
            if not found:
                return protected
            protected |= found

    def unowned_datasets(self, located: Collection[str], above: str = "") -> Iterator[str]:
        """Yield the locations of datasets without an entry, at any depth."""
        parents = {directory for location in located for directory in ancestors(location)} - set(located)
        prefix = self._key(above)
        for name in self.objects.directories(f"{prefix}/" if prefix else ""):
            directory = f"{above}/{name}".lstrip("/")
            if directory in parents:
                yield from self.unowned_datasets(located, directory)
            elif directory not in located and directory != MANIFEST_DIRECTORY:
                yield from self._datasets_in(directory)

    def _datasets_in(self, directory: str) -> Iterator[str]:
        found = None
        for info in self.objects.list(f"{self._key(directory)}/"):
            path, _, name = info.key.rpartition("/")
            dataset, _, last = path.rpartition("/")
            if last == VERSIONS and ".manifest" in name:
                dataset = self.location(dataset.partition(f"/{BRANCHES}/")[0])
                if dataset != found:
                    yield dataset
                found = dataset

    # -- inside -------------------------------------------------------------------------------------------------

    def _reads(self, key: str, source: str) -> bool:
        with suppress(ObjectNotFound):
            return _reads(self._retry(partial(self.objects.get, key)), key, source)
        return False

    def _bases(self, location: str) -> set[str]:
        found = set[str]()
        for key in self._manifests(location):
            with suppress(Damaged):
                found.update(self._bases_of(key))
        return found

    def _bases_of(self, key: str) -> Iterable[str]:
        with suppress(ObjectNotFound):
            content = self._retry(partial(self.objects.get, key))
            return _examples(content, key) if may_be_clone(content) else ()
        return ()

    def _manifests(self, location: str) -> list[str]:
        """Return the keys of all manifests of a dataset and its branches, as listed.

        Detached versions are among them.
        """
        key = self._key(location)
        try:
            infos = [info for part in (VERSIONS, BRANCHES) for info in self._list(f"{key}/{part}/")]
        except InvalidInput:  # the storage does not support the location
            return []
        return [info.key for info in infos if _is_manifest(posixpath.basename(info.key))]

    def _ends(self, location: str) -> Iterator[tuple[str, bytes]]:
        """Yield the newest and the oldest manifest of each history, with its key.

        A detached version belongs to no history, so its manifest is both.
        """
        histories: dict[str, list[str]] = {}
        for key in self._manifests(location):
            is_detached = is_detached_name(posixpath.basename(key))
            histories.setdefault(key if is_detached else posixpath.dirname(key), []).append(key)
        for keys in histories.values():
            by_version = sorted(keys, key=_version)
            for key in dict.fromkeys((by_version[0], by_version[-1])):
                with suppress(ObjectNotFound):
                    yield key, self._retry(partial(self.objects.get, key))

    def _sources(self, location: str, examples: Mapping[str, str]) -> list[str]:
        """Return the locations of the datasets below the root that base paths name."""
        found = (self._source(location, base, example) for base, example in examples.items())
        return sorted({source for source in found if source is not None and source != location})

    def _source(self, location: str, base: str, example: str) -> str | None:
        """Return the dataset below the root that holds a file of a base path.

        The file resolves the ambiguity of the base path.
        """
        for candidate in self._places(location, base):
            if self._holds(f"{candidate}/{example}"):
                dataset = candidate.partition(f"/{BRANCHES}/")[0]
                return self.location(dataset if self._holds(f"{dataset}/{VERSIONS}/") else candidate)
        return None

    def base_key(self, key: str, base: str, example: str) -> str | None:
        """Return the key of a base path in a manifest of the dataset at ``key``.

        Args:
            key: The key of the dataset.
            base: The base path.
            example: A file below it.

        Returns:
            The first possible key that holds ``example``; if none does, the first possible key. None for another object
            store.
        """
        absolute = self._absolute(base)
        if absolute is None and "://" in base:
            return None
        places = [*([] if absolute is None else [absolute]), *self._places(self.location(key), base)]
        return next((place for place in places if self._holds(f"{place}/{example}")), next(iter(places), None))

    def _absolute(self, base: str) -> str | None:
        root = self.objects.root_uri
        if base.startswith(root):
            return unquote(base.removeprefix(root)).strip("/")
        return base.strip("/") if base.startswith("/") else None

    def _places(self, location: str, base: str) -> Iterator[str]:
        """Yield the possible keys of a base path in a manifest at ``location``.

        An absolute path or a URI means one key, but its spelling may pass a symbolic link. A relative path depends on
        the working directory of its writer.
        """
        absolute = self._absolute(base)
        if absolute is not None and (not self.root_key or absolute.startswith(f"{self.root_key}/")):
            yield absolute
        parts = [part for part in posixpath.normpath(base.partition("://")[2] or base).split("/") if part]
        tails = ["/".join(parts[at:]) for at in range(len(parts))]
        beside = posixpath.dirname(location)
        relative = (f"{directory}/{tail}".strip("/") for tail in tails for directory in ("", beside))
        yield from dict.fromkeys(map(self._key, relative))

    def _record_key(self, source: str, location: str) -> str:
        return f"{self._key(source)}/{CLONES_DIRECTORY}/{sha256(location.encode()).hexdigest()[:32]}"

    def _key(self, location: str) -> str:
        return "/".join(filter(None, (self.root_key, location)))

    def location(self, key: str) -> str:
        """Return the location of the dataset at a key."""
        return key.removeprefix(f"{self.root_key}/") if self.root_key else key

    def _list(self, prefix: str) -> list[ObjectInfo]:
        return self._retry(lambda: list(self.objects.list(prefix)))

    def _holds(self, prefix: str) -> bool:
        return self._retry(lambda: next(self.objects.list(prefix), None)) is not None

    def _retry(self, act: Callable[[], T]) -> T:
        return self.retry.call(act)


def _reads(content: bytes, name: str, source: str) -> bool:
    """Return whether a manifest reads files of the source; a damaged manifest counts."""
    try:
        return may_be_clone(content) and any(same_dataset(base, source) for base in _examples(content, name))
    except Damaged:
        return True


def _examples(content: bytes, name: str) -> dict[str, str]:
    """Return the base paths of a manifest, each with one file below it."""
    examples: dict[str, str] = {}
    for reference in file_references(content, name):
        if reference.base is not None:
            examples.setdefault(reference.base, reference.path)
    return examples


def _is_manifest(name: str) -> bool:
    return ManifestName.parse(name) is not None or is_detached_name(name)


def _version(key: str) -> int:
    parsed = ManifestName.parse(posixpath.basename(key))
    return parsed.version if parsed else 0
