"""What Lancekeep needs from the software that reads and writes the data of tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Any, Protocol

import attrs

from lancekeep.domain.commit import Committed
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.lineage import Base


class WriteMode(Enum):
    """What a write does to a table: fail where it exists, add rows to it, or replace its rows."""

    CREATE = "create"
    APPEND = "append"
    OVERWRITE = "overwrite"


@attrs.frozen
class WritePlan:
    """What distributed writers need to write fragments, and what the one commit afterwards needs; it pickles.

    uri, storage_options: for ``lance.fragment.write_fragments``. schema: a ``pyarrow.Schema``. read_version: the
    version the write builds on, 0 for a new table. declared: this write made the table's entry. base: identifies that
    version, where another table may take the place of this one.
    """

    table: ObjectId
    uri: str
    storage_options: Mapping[str, str] = attrs.field(repr=False)
    schema: Any
    mode: WriteMode
    read_version: int
    declared: bool
    base: Base | None = None

    @property
    def fragment_mode(self) -> str:
        """The ``mode`` for ``lance.fragment.write_fragments``."""
        if self.mode is WriteMode.APPEND:
            return "append"
        return "overwrite" if self.read_version else "create"


@attrs.frozen
class StagedVersion:
    """A manifest that is written and not committed: which version it would be, its key, its size in bytes."""

    version: int
    path: str
    size: int


@attrs.frozen
class VersionSummary:
    """What a version did: ``operation`` is the transaction's, ``rows`` how many the table holds at it."""

    version: int
    timestamp: datetime
    operation: str
    rows: int


@attrs.frozen
class VersionDetails:
    """What a version of a table holds. schema: a ``pyarrow.Schema``; deleted_rows: those still in its fragments."""

    version: int
    schema: Any
    rows: int
    fragments: int
    deleted_rows: int


class TableEngine(Protocol):
    """Data goes through the engine; every version it makes is committed through the catalog it belongs to.

    Writes raise `CommitUnknown` where the outcome could not be learnt, `ConcurrentModification` where others kept
    winning, `InvalidInput` for data it cannot take; then nothing was committed.
    """

    def reader(self, data: Any) -> Any:
        """Any supported frame as one stream of Arrow batches. Raises `InvalidInput`, naming what is supported."""

    def write(self, table: ObjectId, data: Any, mode: WriteMode) -> Committed:
        """Write a stream of batches to an existing (for CREATE: declared) table and commit it as one version."""

    def commit_fragments(
        self, plan: WritePlan, fragments: Sequence[Any], properties: Mapping[str, str], *, exactly: bool
    ) -> Committed:
        """Commit fragments that writers elsewhere have written, as one version.

        properties: of its transaction. exactly: as the version after ``plan.read_version``, or not at all.
        """

    def change(self, table: ObjectId, act: Callable[[Any], Any], after: int | None) -> Committed:
        """Have ``act`` commit a native change on the table, opened at its latest version; it returns the new dataset.

        after: commit as the version that follows this one, or not at all.
        """

    def write_fragments(self, plan: WritePlan, data: Any) -> Sequence[Any]:
        """Write a stream of batches as fragments of the plan's table, and commit nothing."""

    def stage(self, plan: WritePlan, fragments: Sequence[Any], *, entered: bool = True) -> StagedVersion:
        """Prepare what `commit_fragments` would commit, behind the latest version, and do not commit it.

        Nothing removes the staged manifest. Every call makes another one. entered: the catalog knows the table; else
        this is its first version.
        """

    def create_at(self, plan: WritePlan, fragments: Sequence[Any]) -> int:
        """Make fragments the first version of a table that no catalog knows yet, at the plan's ``uri``; its number.

        Nobody else may know of the place. Raises as writes do.
        """

    def restore(self, table: ObjectId, version: int) -> Committed:
        """Commit a new version that holds what an earlier one does."""

    def read(self, dataset: Any, columns: Sequence[str] | None, condition: Any) -> Any:
        """Rows of what `open` gave as a ``pyarrow.Table``. condition: a ``pyarrow.compute.Expression``, or None."""

    def open_at(self, uri: str) -> Any:
        """As `open`, for a table that no catalog knows, at its latest version."""

    def open(self, table: ObjectId, version: int | None, tag: str | None, branch: str | None) -> Any:
        """A ``lance.LanceDataset`` whose commits go through the catalog."""

    def details(self, table: ObjectId, version: int | None, tag: str | None, branch: str | None) -> VersionDetails:
        """What `open` with the same arguments would show."""

    def summaries(self, table: ObjectId, versions: Sequence[int]) -> Iterator[VersionSummary]:
        """What each of the versions did, in the order given; versions that were cleaned up are left out."""

    def tagged_versions(self, uri: str) -> set[int]:
        """The versions of the table or branch at ``uri`` that a tag points at."""
