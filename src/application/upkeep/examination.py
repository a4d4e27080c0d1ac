"""The versions of a table to which a reader has a reference.

Their metadata proves some damage. No check here uses the table engine, which damaged metadata may crash.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import attrs

from lancekeep.application.table_commits import TableCommits
from lancekeep.application.upkeep.file_checks import Version
from lancekeep.domain.dataset_files import REFERENCES
from lancekeep.domain.errors import Damaged, LancekeepError, ObjectNotFound
from lancekeep.domain.layout import BRANCHES, DatasetRoot
from lancekeep.domain.naming import parse_detached
from lancekeep.domain.version_row import VersionRow
from lancekeep.format.json_files import parse_reference
from lancekeep.format.judge import problems
from lancekeep.format.table_version import TableVersion
from lancekeep.format.whole_version import decode_whole
from lancekeep.ports.object_store import ObjectInfo

_SHOWN = 3


@attrs.frozen
class Kept:
    """A version to which a reader has a reference.

    Attributes:
        branch: Its branch; empty for the main history.
        is_latest: Whether it is the latest version of its history.
    """

    version: Version
    branch: str
    is_latest: bool


@attrs.frozen
class Unreadable:
    """A reference that leads to no version: its key or its history, and the reason."""

    object: str
    reason: str


def kept_versions(commits: TableCommits, root: DatasetRoot) -> Iterator[Kept | Unreadable]:
    """Yield the versions of a table to which a reader has a reference.

    These are the latest version of each history, the latest one of the table first, then the versions of tags and those
    at which branches begin, and detached versions.
    """
    histories = commits.retry.call(partial(commits.histories, root))
    latest = set[Version]()
    for history in histories:
        try:
            row = commits.latest(history)
        except LancekeepError as error:
            yield Unreadable(history.key, str(error))
            continue
        if row is not None:
            latest.add(version := _version(history, row))
            yield Kept(version, _branch(root, history), True)
    for found in dict.fromkeys(_referenced(commits, root)):
        if isinstance(found, Unreadable):
            yield found
        elif found not in latest:
            yield Kept(found, _branch(root, found.root), False)
    for history in histories:
        for info in commits.retry.call(partial(_listed, commits, history.versions_key)):
            number = parse_detached(info.key.removeprefix(history.versions_key))
            if number is not None:
                yield Kept(Version(history, number, info.key), _branch(root, history), False)


def _referenced(commits: TableCommits, root: DatasetRoot) -> Iterator[Version | Unreadable]:
    for info in commits.retry.call(partial(_listed, commits, f"{root.key}/{REFERENCES}/")):
        try:
            reference = parse_reference(commits.retry.call(partial(commits.objects.get, info.key)), info.key)
            history = root.branch(reference.branch or None)
            row = commits.get(history, reference.version)
        except ObjectNotFound:  # deleted since it was listed
            continue
        except LancekeepError as error:
            yield Unreadable(info.key, str(error))
            continue
        if row is not None and commits.retry.call(partial(commits.objects.head, row.path)) is not None:
            yield _version(history, row)
        elif "/tags/" in info.key:
            yield Unreadable(info.key, f"it names version {reference.version}, which does not exist")


def _listed(commits: TableCommits, prefix: str) -> list[ObjectInfo]:
    return list(commits.objects.list(prefix))


def _version(history: DatasetRoot, row: VersionRow) -> Version:
    return Version(history, row.version, row.path)


def _branch(root: DatasetRoot, history: DatasetRoot) -> str:
    return history.key.removeprefix(root.key).removeprefix(f"/{BRANCHES}/")


def examine(commits: TableCommits, version: Version) -> TableVersion:
    """Decode the manifest of a version completely, and judge what it says.

    Raises:
        ObjectNotFound: It does not exist.
        Damaged: It cannot be read, or the table engine could not read the version.
        Unsupported: Readers of the table need a feature that is not known here.
    """
    content = commits.retry.call(partial(commits.objects.get, version.key))
    decoded = decode_whole(content, version.key, version.number)
    if found := problems(decoded):
        raise Damaged(f"{version.key} is not a version that Lance can read: {'; '.join(map(str, found[:_SHOWN]))}")
    return decoded
