"""One history of a table as the checks find it: its objects and its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

import attrs

from lancekeep.application.upkeep.file_checks import Version
from lancekeep.application.upkeep.fsck import Finding, Kind
from lancekeep.domain.dataset_files import Reference
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.version_row import VersionRow
from lancekeep.ports.object_store import ObjectInfo

Repair = Callable[[], bool]
"""Repairs a finding if it still holds, and returns whether it did."""


@attrs.frozen
class History:
    """The objects in ``_versions`` of a table or branch, and its rows.

    The rows are read after the objects.

    Attributes:
        title: The name of the history in findings.
        unfinished: Files that Lance was writing when it was stopped.
        foreign: Rows that do not name a manifest of this history.
        unreadable: Why the rows cannot be read; empty if they can.
        v1: The V1 names of final manifests.
        detached: The manifests of detached versions, which belong to no history.
    """

    title: str
    root: DatasetRoot
    finals: Mapping[int, ObjectInfo]
    staged: Sequence[ObjectInfo]
    unfinished: Sequence[ObjectInfo]
    unknown: Sequence[str]
    rows: Mapping[int, VersionRow]
    foreign: Sequence[VersionRow] = ()
    unreadable: str = ""
    v1: Sequence[str] = ()
    detached: Mapping[int, ObjectInfo] = attrs.field(factory=dict)

    @property
    def latest(self) -> int:
        return max((*self.finals, *self.rows), default=0)


def gaps(branch: str, history: History, held: set[Reference]) -> Iterator[tuple[Finding, None]]:
    """Yield gaps between versions, except those that a clean-up leaves after a tag."""
    for before, after in pairwise(sorted(history.finals)):
        if after != before + 1 and Reference(branch, before) not in held:
            meaning = (
                f"versions {before + 1} to {after - 1} are missing between others: deleted one by one, or lost; later "
                "versions do not need them"
            )
            yield Finding(Kind.GAP, history.title, meaning), None


def has_version(histories: Mapping[str, History | None], reference: Reference) -> bool:
    """Return whether a version exists; 0 stands for any version.

    An unreadable history counts as having every version.
    """
    if reference.branch not in histories:
        return False
    history = histories[reference.branch]
    return history is None or (reference.version in history.finals if reference.version else bool(history.finals))


def kept(histories: Mapping[str, History], held: set[Reference]) -> Iterator[Version]:
    """Yield the versions to which a reader has a reference.

    These are the latest version of each history, the versions that a tag or branch refers to, and detached versions.
    """
    for branch, history in sorted(histories.items()):
        numbers = {one.version for one in held if one.branch == branch} & set(history.finals)
        numbers |= {max(history.finals)} if history.finals else set()
        for number in sorted(numbers):
            yield Version(history.root, number, history.finals[number].key)
        for number, info in sorted(history.detached.items()):
            yield Version(history.root, number, info.key)
