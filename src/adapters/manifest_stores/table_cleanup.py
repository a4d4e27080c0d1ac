"""Garbage collection of the manifest table: old versions and orphans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from itertools import pairwise, takewhile
from uuid import UUID

from lancekeep.domain.catalog import ancestors
from lancekeep.domain.dataset_files import DATA, DELETIONS, INDICES, REFERENCES, TRANSACTIONS, deletion_file_name
from lancekeep.domain.errors import ObjectNotFound
from lancekeep.domain.layout import BRANCHES, VERSIONS
from lancekeep.domain.naming import ManifestName
from lancekeep.format.manifest import ManifestFile
from lancekeep.format.messages import IndexSection
from lancekeep.ports.object_store import ObjectInfo, ObjectStore

RETENTION = timedelta(minutes=10)
"""Grace period of an overtaken version; `LanceManifestStore._is_overtaken` relies on it."""

_OF_VERSIONS = (DATA, DELETIONS, TRANSACTIONS, INDICES)

Forget = Callable[[Sequence[int]], object]
"""Removes the rows of versions from a commit store."""


def clean_up(objects: ObjectStore, key: str, forget: Forget | None = None) -> int:
    """Remove versions that were overtaken more than `RETENTION` ago.

    Ages are differences between times of the object store, so clock skew of writers does not matter. The rows in the
    commit store are removed first. Then each version is removed, the oldest first, after the files that no later
    version needs. Nothing is removed if tags or branches exist, because they hold versions. The function is
    idempotent, and several processes may call it concurrently.

    Args:
        objects: the object store.
        key: the directory of the table.
        forget: removes the rows of versions from a commit store.

    Returns:
        The number of removed versions.
    """
    if _is_held(objects, key):
        return 0
    versions = sorted(versions_of(objects, key), key=lambda version: version[0])
    pairs = pairwise(versions)
    old = takewhile(lambda pair: _is_old(pair[1][1], versions[-1][1]), pairs)
    going = [version for version, _ in old]
    overtaken = [info for _, info in going]
    if not overtaken:
        return 0
    if forget is not None:
        forget([number for number, _ in going])
    # Consecutive versions share a file: if neither the oldest remaining version nor the latest needs it, none does.
    staying = [versions[len(overtaken)][1], versions[-1][1]]
    needed = {name for info in staying for name in _files(objects, key, info)}
    gone: set[str] = set()
    for info in overtaken:
        for name in _files(objects, key, info):
            if name not in needed and name not in gone:
                gone.add(name)
                _delete(objects, name)
        objects.delete(info.key)
    return len(overtaken)


def leftovers(objects: ObjectStore, key: str) -> Sequence[ObjectInfo]:
    """Return the orphans and the unfinished files of the table at ``key``.

    Files are listed before versions are read, so files of a version published in between are not reported. The result
    is empty if tags or branches exist. Staged manifests are left to `TableChecks`.
    """
    if _is_held(objects, key):
        return ()
    files = [info for directory in _OF_VERSIONS for info in objects.list(f"{key}/{directory}/")]
    files += objects.unfinished(f"{key}/")
    needed = {name for _, info in versions_of(objects, key) for name in _files(objects, key, info)} if files else set()
    return [info for info in files if not {info.key, *(f"{above}/" for above in ancestors(info.key))} & needed]


def versions_of(objects: ObjectStore, key: str) -> Iterator[tuple[int, ObjectInfo]]:
    """Yield the published versions of the table at ``key``, unordered."""
    for info in objects.list(f"{key}/{VERSIONS}/"):
        name = ManifestName.parse(info.key.rpartition("/")[2])
        if name is not None and not name.is_staged:
            yield name.version, info


def _is_held(objects: ObjectStore, key: str) -> bool:
    """Return whether tags or branches exist, which may need any version."""
    return any(next(objects.list(f"{key}/{directory}/"), None) for directory in (REFERENCES, BRANCHES))


def _is_old(successor: ObjectInfo, latest: ObjectInfo) -> bool:
    """Return whether a version was overtaken before the grace period, by store times."""
    if successor.modified is None or latest.modified is None:
        return False
    return latest.modified - successor.modified > RETENTION


def _files(objects: ObjectStore, key: str, info: ObjectInfo) -> Iterator[str]:
    """Yield the keys of the files that a version needs; index directories end in a slash."""
    try:
        file = ManifestFile.parse(objects.get(info.key), info.key)
    except ObjectNotFound:  # A concurrent clean-up removed it.
        return
    for fragment in file.manifest.fragments:
        for data in fragment.files:
            yield f"{key}/{DATA}/{data.path}"
        if fragment.HasField("deletion_file"):
            deletion = fragment.deletion_file
            bitmap = bool(deletion.file_type)
            name = deletion_file_name(fragment.id, deletion.read_version, deletion.id, bitmap=bitmap)
            yield f"{key}/{DELETIONS}/{name}"
    if file.manifest.transaction_file:
        yield f"{key}/{TRANSACTIONS}/{file.manifest.transaction_file}"
    for index in IndexSection.FromString(file.indexes or b"").indices:
        yield f"{key}/{INDICES}/{UUID(bytes=index.uuid.uuid)}/"


def _delete(objects: ObjectStore, name: str) -> None:
    if not name.endswith("/"):
        objects.delete(name)
        return
    for info in list(objects.list(name)):
        objects.delete(info.key)
    objects.prune(name.removesuffix("/"))
