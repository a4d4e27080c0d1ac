"""The versions of a table to which a reader has a reference.

Their metadata proves some damage. No check here uses the table engine, which damaged metadata may crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TypeVar

import attrs

from lancekeep.application.commits.table_commits import TableCommits
from lancekeep.application.upkeep.file_checks import Version
from lancekeep.domain.dataset_files import REFERENCES, TRANSACTIONS
from lancekeep.domain.errors import Damaged, LancekeepError, ObjectNotFound, Unsupported
from lancekeep.domain.layout import BRANCHES, DatasetRoot
from lancekeep.domain.naming import parse_detached
from lancekeep.domain.operations import Transaction
from lancekeep.domain.version_row import VersionRow
from lancekeep.format.json_files import parse_reference
from lancekeep.format.judge import problems
from lancekeep.format.table_version import TableVersion, parse_transaction
from lancekeep.format.tags import Tag
from lancekeep.format.whole_version import decode_whole
from lancekeep.format.witnesses import contradictions
from lancekeep.ports.object_store import ObjectInfo

_SHOWN = 3
T = TypeVar("T")


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

    These are the latest version of each history, the main history first, then the versions of tags, the versions at
    which branches begin, and detached versions.
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
            content = _content(commits, info.key)
            reference = parse_reference(content, info.key)
            size = Tag.parse(content, info.key).manifest_size if "/tags/" in info.key else 0
            history = root.branch(reference.branch or None)
            row = commits.get(history, reference.version)
        except ObjectNotFound:  # deleted since it was listed
            continue
        except LancekeepError as error:
            yield Unreadable(info.key, str(error))
            continue
        found = None if row is None else commits.retry.call(partial(commits.objects.head, row.path))
        if row is not None and found is not None:
            yield _version(history, row)
            if size not in (0, found.size):
                reason = f"it says that the manifest of version {row.version} has {size:,} bytes, not {found.size:,}"
                yield Unreadable(info.key, f"{reason}. The reference or the manifest is damaged")
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
        ObjectNotFound: The manifest does not exist. Damaged: The manifest cannot be read, or the table engine could not
            read the version.
        Unsupported: Readers of the table need a feature that is not known here.
    """
    content = _content(commits, version.key)
    decoded = decode_whole(content, version.key, version.number)
    if found := problems(decoded):
        raise Damaged(f"{version.key} is not a version that Lance can read: {'; '.join(map(str, found[:_SHOWN]))}")
    return decoded


def contradiction(commits: TableCommits, version: Version, decoded: TableVersion) -> str:
    """Return how a version contradicts other files; empty if it does not.

    These are the version before it and its transaction file. A file that is missing or damaged
    says nothing.
    """
    name = decoded.manifest.transaction_file

    def before() -> TableVersion | None:
        row = commits.get(version.root, decoded.manifest.version - 1)
        return None if row is None else examine(commits, Version(version.root, row.version, row.path))

    def recorded() -> Transaction:
        key = f"{version.root.key}/{TRANSACTIONS}/{name}"
        return parse_transaction(_content(commits, key), key)

    has_before = decoded.manifest.version > 1 and not version.is_detached
    found = list(
        contradictions(decoded, _witness(before) if has_before else None, _witness(recorded) if name else None)
    )
    return "; ".join(map(str, found[:_SHOWN]))


def _witness(read: Callable[[], T]) -> T | None:
    with suppress(ObjectNotFound, Damaged, Unsupported):
        return read()
    return None


def _content(commits: TableCommits, key: str) -> bytes:
    return commits.retry.call(partial(commits.objects.get, key))
