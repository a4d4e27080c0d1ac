"""The files that versions of a table need, as records of digests name them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial

import attrs

from lancekeep.application.upkeep.examination import Kept
from lancekeep.application.upkeep.file_checks import FileChecks, Version
from lancekeep.domain.dataset_files import DATA, DELETIONS, INDICES, TRANSACTIONS
from lancekeep.domain.errors import LancekeepError
from lancekeep.domain.layout import DatasetRoot
from lancekeep.format.file_references import added_references, file_references
from lancekeep.format.manifest import message_at, transaction_name
from lancekeep.ports.object_store import ObjectInfo


@attrs.frozen
class Source:
    """The history of another dataset that a file belongs to, and its name there."""

    history: str
    name: str


@attrs.frozen
class NamedFile:
    """A file that a version needs.

    Attributes:
        history: The key of the root of the history whose records name it.
        name: Its name in these records: its path below ``history``, or a URI.
        key: Its key; a URI for a file in another object store.
        size: Its size in bytes.
        source: The dataset from which the file was cloned, and whose records name it, too; None for other files.
    """

    history: str
    name: str
    key: str
    size: int
    source: Source | None = None


def named_files(
    checks: FileChecks, root: DatasetRoot, kept: Iterable[Kept], listed: Iterable[ObjectInfo]
) -> Iterator[NamedFile]:
    """Yield the files of versions that exist, each once.

    These are data, deletion, index, manifest and transaction files.

    Args:
        checks: Finds the files of versions.
        root: The root of the table.
        kept: The versions.
        listed: The objects of the table.
    """
    wanted, directories, outside = dict[str, str](), dict[str, str](), dict[str, int]()
    versions = [each.version for each in kept]
    for version in versions:
        wanted[version.key] = version.root.key
        with suppress(LancekeepError, ValueError):
            message = message_at(checks.clones.retry.call(partial(checks.clones.objects.get, version.key)))
            if name := transaction_name(message):
                wanted[f"{version.root.key}/{TRANSACTIONS}/{name}"] = version.root.key
    for version, key, reference in checks.references(versions, {}):
        if not key.startswith(f"{root.key}/"):
            if reference.size is not None:
                outside[key] = reference.size
        else:
            (directories if key.endswith("/") else wanted)[key] = _history(root, version, key)
    for info in listed:
        history = wanted.get(info.key) or directories.get(_directory(info.key))
        if history is not None:
            yield NamedFile(history, info.key.removeprefix(f"{history}/"), info.key, info.size)
    for key, size in outside.items():
        yield _outside(checks, root, key, size)


def added_files(
    checks: FileChecks, root: DatasetRoot, version: Version, content: bytes, before: bytes | None
) -> Iterator[NamedFile]:
    """Yield the files that a version names and the version before it does not.

    These are data, deletion and index files.

    Args:
        checks: Finds the files of versions.
        root: The root of the table.
        version: The version.
        content: Its manifest.
        before: The manifest of the version before it. Without one, files of other histories are left out.
    """
    name = version.key
    added = file_references(content, name) if before is None else added_references(before, content, name)
    for key, _ in checks.keyed(version, added, {}):
        if before is None and not key.startswith(f"{version.root.key}/"):
            continue
        for info in checks.objects_at(key):
            if info.key.startswith(f"{root.key}/"):
                history = _history(root, version, info.key)
                yield NamedFile(history, info.key.removeprefix(f"{history}/"), info.key, info.size)
            else:
                yield _outside(checks, root, info.key, info.size)


def _history(root: DatasetRoot, version: Version, key: str) -> str:
    """Return the key of the history whose records name a file of the table."""
    return version.root.key if key.startswith(f"{version.root.key}/") else root.key


def _outside(checks: FileChecks, root: DatasetRoot, key: str, size: int) -> NamedFile:
    """Return a file of another dataset, or in a base path."""
    if "://" in key:
        return NamedFile(root.key, key, key, size)
    uri = checks.clones.objects.root_uri + key
    above, directory, rest = max((key.rpartition(f"/{name}/") for name in (DATA, DELETIONS, INDICES)), key=_length)
    return NamedFile(root.key, uri, uri, size, Source(above, f"{directory.strip('/')}/{rest}") if above else None)


def _length(parts: tuple[str, str, str]) -> int:
    return len(parts[0])


def _directory(key: str) -> str:
    """Return the directory of an index that a file lies in."""
    above, found, below = key.rpartition(f"/{INDICES}/")
    return f"{above}{found}{below.partition('/')[0]}/"
