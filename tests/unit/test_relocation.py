"""The order in which a table's files are copied to another directory."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count

import pytest

from lancekeep.adapters.commit_stores.memory import MemoryCommitStore
from lancekeep.adapters.object_stores.memory import MemoryObjectStore
from lancekeep.application.commits.table_commits import TableCommits
from lancekeep.application.retry import Retry
from lancekeep.application.upkeep.relocation import Relocation
from lancekeep.domain.errors import ConcurrentModification
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.naming import NamingScheme
from lancekeep.ports.object_store import ObjectInfo

DELETION = "_deletions/0-1-7.arrow"
VERSIONS = [f"_versions/{NamingScheme.V2.final_name(number)}" for number in (1, 2)]


class Committing(MemoryObjectStore):
    """A writer commits version 2 while the source is listed: after its deletions, before its versions."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = False
        self.complete: list[bool] = []

    def list(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        before = list(super().list(prefix))
        if prefix == "source/" and not self.begun:
            self.begun = True
            self.put(f"source/{DELETION}", b"deletions")
            self.put(f"source/{VERSIONS[1]}", b"version 2")
        at = f"{prefix}_versions/"
        yield from (info for info in before if info.key < at)
        yield from (info for info in super().list(prefix) if info.key >= at)

    def put_if_absent(self, key: str, content: bytes) -> bool:
        if key == f"target/{VERSIONS[1]}":
            self.complete.append(self.head(f"target/{DELETION}") is not None)
        return super().put_if_absent(key, content)


class Rewriting(MemoryObjectStore):
    """A version gets another modification time, and this content, as soon as it was copied."""

    def __init__(self, content: bytes) -> None:
        seconds = count()
        super().__init__(clock=lambda: datetime.fromtimestamp(next(seconds), UTC))
        self.content = content

    def put_if_absent(self, key: str, content: bytes) -> bool:
        created = super().put_if_absent(key, content)
        if key == f"target/{VERSIONS[0]}":
            self.put(f"source/{VERSIONS[0]}", self.content)
        return created


def relocation(objects: MemoryObjectStore) -> Relocation:
    """Return the copy of a table with one version."""
    objects.put("source/data/one.lance", b"rows")
    objects.put(f"source/{VERSIONS[0]}", b"version 1")
    commits = TableCommits(objects, MemoryCommitStore("relocation"), "tester", Retry())
    return Relocation(commits, *(DatasetRoot(name, f"memory:///{name}") for name in ("source", "target")))


def test_version_is_copied_after_the_files_it_references() -> None:
    objects = Committing()
    relocation(objects).copy()
    assert objects.complete == [True]
    for name in ("data/one.lance", DELETION, *VERSIONS):
        assert objects.get(f"target/{name}") == objects.get(f"source/{name}")


def test_version_whose_time_changes_is_the_one_that_was_copied() -> None:
    """For a local file, the time changes with the last step of a commit, which removes the staged name."""
    objects = Rewriting(b"version 1")
    relocation(objects).copy()
    assert objects.get(f"target/{VERSIONS[0]}") == b"version 1"


def test_version_of_another_table_is_found_during_the_copy() -> None:
    with pytest.raises(ConcurrentModification, match="was removed or replaced while the table was copied"):
        relocation(Rewriting(b"version 1 of another table")).copy()
