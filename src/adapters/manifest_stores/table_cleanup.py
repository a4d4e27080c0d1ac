"""Old versions of the manifest table, and when they may go."""

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
"""How long a version stays once a later one exists; processes rely on it, see `LanceManifestStore._is_overtaken`."""

_OF_VERSIONS = (DATA, DELETIONS, TRANSACTIONS, INDICES)

Forget = Callable[[Sequence[int]], None]
"""Removes what a commit store keeps of versions."""


def clean_up(objects: ObjectStore, key: str, forget: Forget | None = None) -> int:
    """Remove overtaken versions of the table at ``key`` that are older than `RETENTION`; how many.

    Ages are differences between the store's own times, so no clock of a writer matters. First goes what a commit store
    keeps of them; a version goes after the files that only it and older ones need, the oldest first. Nothing is removed
    where tags or branches exist, since they hold versions. Idempotent; several processes may do it at once.
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
    # A file lives through consecutive versions: what the oldest that stays and the latest do not need, none needs.
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
    """Files of the table at ``key`` that no version needs, and what is unfinished there.

    Versions are looked at later, so that what is published in between is not among them. Nothing where tags or branches
    exist. Staged manifests are the commit store's (`TableChecks`).
    """
    if _is_held(objects, key):
        return ()
    files = [info for directory in _OF_VERSIONS for info in objects.list(f"{key}/{directory}/")]
    files += objects.unfinished(f"{key}/")
    needed = {name for _, info in versions_of(objects, key) for name in _files(objects, key, info)} if files else set()
    return [info for info in files if not {info.key, *(f"{above}/" for above in ancestors(info.key))} & needed]


def versions_of(objects: ObjectStore, key: str) -> Iterator[tuple[int, ObjectInfo]]:
    """The published versions of the table at ``key``, in no order."""
    for info in objects.list(f"{key}/{VERSIONS}/"):
        name = ManifestName.parse(info.key.rpartition("/")[2])
        if name is not None and not name.is_staged:
            yield name.version, info


def _is_held(objects: ObjectStore, key: str) -> bool:
    """Whether tags or branches may need any version."""
    return any(next(objects.list(f"{key}/{directory}/"), None) for directory in (REFERENCES, BRANCHES))


def _is_old(successor: ObjectInfo, latest: ObjectInfo) -> bool:
    """Whether a version was overtaken long ago, by the times at which the store received others."""
    if successor.modified is None or latest.modified is None:
        return False
    return latest.modified - successor.modified > RETENTION


def _files(objects: ObjectStore, key: str, info: ObjectInfo) -> Iterator[str]:
    """The keys of what a version needs; directories, for indexes, end in a slash."""
    try:
        file = ManifestFile.parse(objects.get(info.key), info.key)
    except ObjectNotFound:  # another process was faster
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
