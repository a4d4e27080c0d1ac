"""The port of table engines, which read and write the data of tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Any, Protocol, TypeVar

import attrs

from lancekeep.domain.commit import Committed
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.lineage import Base
from lancekeep.domain.notebook import Shown
from lancekeep.domain.row_rules import Rules
from lancekeep.format.arrow_metadata import without_field_ids
from lancekeep.ports.compaction_engine import CompactionEngine
from lancekeep.ports.data_files import DataFiles
from lancekeep.ports.rows import RowEngine
from lancekeep.ports.table_structure import StructureEngine
from lancekeep.ports.view_engine import ViewEngine

Result = TypeVar("Result")


class WriteMode(Enum):
    """What a write does to a table.

    CREATE fails if the table exists, APPEND adds rows, OVERWRITE replaces all rows.
    """

    CREATE = "create"
    APPEND = "append"
    OVERWRITE = "overwrite"


def access(options: Mapping[str, str], vends: Any | None, table: Sequence[str]) -> dict[str, Any]:
    """Return the arguments by which functions of pylance reach the files of a table.

    Args:
        options: the storage options.
        vends: a namespace client that vends more options, and renews them before they expire; None if no option
            expires.
        table: the identifier of the table for ``vends``.
    """
    reached: dict[str, Any] = {"storage_options": dict(options) or None}
    return reached if vends is None else {**reached, "namespace_client": vends, "table_id": list(table)}


@attrs.frozen
class WritePlan(Shown):
    """The input of distributed writers of fragments, and of their one commit.

    Plans pickle.

    Attributes:
        table: the table.
        uri: its URI, for ``lance.fragment.write_fragments``.
        storage_options: its storage options, for the same function.
        schema: a ``pyarrow.Schema``; numbers of its fields are left out.
        mode: the mode of the write.
        read_version: the version that the write builds on; 0 for a new table.
        declared: whether this write created the table's entry.
        base: identifies ``read_version``, in case another table takes the place of this table.
        vends: the client of a server that renews ``storage_options``; None if they do not expire.
        rules: the rules that each writer of fragments checks.
        stable_row_ids: whether a first version gives the table stable row ids. Later versions keep what it has.
    """

    table: ObjectId
    uri: str
    storage_options: Mapping[str, str] = attrs.field(repr=False)
    schema: Any = attrs.field(converter=without_field_ids)
    mode: WriteMode
    read_version: int
    declared: bool
    base: Base | None = None
    vends: Any | None = attrs.field(default=None, repr=False, eq=False)
    rules: Rules = ()
    stable_row_ids: bool = False

    @property
    def access(self) -> dict[str, Any]:
        """The arguments by which ``write_fragments`` reaches the files of the table."""
        return access(self.storage_options, self.vends, self.table.names)

    @property
    def fragment_mode(self) -> str:
        """The ``mode`` argument for ``lance.fragment.write_fragments``."""
        if self.mode is WriteMode.APPEND:
            return "append"
        return "overwrite" if self.read_version else "create"


@attrs.frozen
class StagedVersion:
    """A manifest that is written but not committed.

    Attributes:
        version: the version that it would become.
        path: its key.
        size: its size in bytes.
    """

    version: int
    path: str
    size: int


@attrs.frozen
class VersionSummary:
    """A version in the history of a table.

    Attributes:
        version: its number.
        timestamp: its time.
        operation: the operation of its transaction.
        rows: the number of rows of the table at this version.
    """

    version: int
    timestamp: datetime
    operation: str
    rows: int


@attrs.frozen
class VersionDetails(Shown):
    """The contents of a version of a table.

    Attributes:
        version: its number.
        schema: a ``pyarrow.Schema``.
        rows: the number of rows.
        fragments: the number of fragments.
        deleted_rows: the number of deleted rows that its fragments still contain.
    """

    version: int
    schema: Any
    rows: int
    fragments: int
    deleted_rows: int


class TableEngine(Protocol):
    """Read and write the data of tables; commit every version through the catalog.

    Writes raise `CommitUnknown` if the outcome is unknown. They raise `ConcurrentModification` if other writers won
    every attempt, and `InvalidInput` for unsupported data; both mean that nothing was committed.
    """

    @property
    def data_files(self) -> DataFiles:
        """Encodes the rows of appends that share a commit."""

    @property
    def rows(self) -> RowEngine:
        """The engine for the rows of opened tables."""

    @property
    def structure(self) -> StructureEngine:
        """The engine for the branches, indexes and columns of opened tables."""

    @property
    def compaction(self) -> CompactionEngine:
        """The engine that rewrites small fragments of opened tables."""

    @property
    def views(self) -> ViewEngine:
        """The engine for materialized views."""

    def reader(self, data: Any) -> Any:
        """Return a supported frame as a stream of Arrow batches.

        Raises: InvalidInput: the frame is not supported; the message names the supported frames.
        """

    def rows_of(self, data: Any) -> Any:
        """Return a supported frame as a ``pyarrow.Table``.

        A stream and `Rows` are returned unchanged.

        Raises: InvalidInput: as `reader`.
        """

    def write(self, table: ObjectId, data: Any, mode: WriteMode, *, stable_row_ids: bool = False) -> Committed:
        """Write a stream of batches and commit it as one version.

        The table exists; for CREATE, it is declared. A first version gives it stable row ids with ``stable_row_ids``.
        """

    def commit_fragments(
        self, plan: WritePlan, fragments: Sequence[Any], properties: Mapping[str, str], *, exactly: bool
    ) -> Committed:
        """Commit fragments of distributed writers as one version.

        Args:
            plan: the plan of the write.
            fragments: the fragments.
            properties: the properties of the transaction.
            exactly: commit as the version after ``plan.read_version``, or not at all.
        """

    def change(
        self,
        table: ObjectId,
        act: Callable[[Any], Any],
        after: int | None,
        *,
        branch: str | None = None,
        exactly: bool = False,
        admits: Callable[[Any, int], bool] | None = None,
        indexes: bool = False,
    ) -> Committed:
        """Commit a native change of a table.

        Args:
            table: the table.
            act: takes the dataset at its latest version, commits the change, and returns the new dataset.
            after: commit as the version that follows this one, or not at all.
            branch: the branch to change; None for the main history.
            exactly: commit as the version that follows the version that ``act`` takes, or not at all.
            admits: with ``exactly``, takes the dataset of ``act`` and a version that another writer has committed
                since, and returns whether that version may come between.
            indexes: ``act`` creates indexes, which the catalog has to settle.
        """

    def stage_change(self, table: ObjectId, act: Callable[[Any], Any]) -> tuple[StagedVersion, Base]:
        """Stage a native change of a table, and commit nothing.

        Args:
            table: the table.
            act: takes the dataset at its latest version, and commits one version.

        Returns:
            The staged version, and the version that ``act`` took. The caller removes the staged manifest.
        """

    def examine(
        self, table: ObjectId, act: Callable[[Any], Result], version: int | None, branch: str | None = None
    ) -> Result:
        """Return what ``act`` finds in a version, by default the latest one.

        Errors of the engine are raised as in `open`.
        """

    def write_fragments(self, plan: WritePlan, data: Any) -> Sequence[Any]:
        """Write a stream of batches as fragments of a table; commit nothing."""

    def stage(self, plan: WritePlan, fragments: Sequence[Any], *, entered: bool = True) -> StagedVersion:
        """Stage the version that `commit_fragments` would commit next.

        It follows the latest version. Every call writes another staged manifest; the engine removes none.

        Args:
            plan: the plan of the write.
            fragments: the fragments.
            entered: the table has an entry in the catalog. Otherwise this is its first version.
        """

    def create_at(self, plan: WritePlan, fragments: Sequence[Any]) -> int:
        """Create a table without a catalog entry, at the plan's ``uri``.

        No other writer may use the location. Raises as writes do.

        Returns:
            The number of its first version, which consists of the fragments.
        """

    def restore(self, table: ObjectId, version: int) -> Committed:
        """Commit a new version with the contents of an earlier version."""

    def read(self, dataset: Any, columns: Sequence[str] | None, condition: Any) -> Any:
        """Return rows of an opened dataset as a ``pyarrow.Table``.

        Args:
            dataset: a result of `open`.
            columns: the columns; None for all.
            condition: a ``pyarrow.compute.Expression``, or None for all rows.
        """

    def open_at(self, uri: str) -> Any:
        """Open the latest version of a table that has no catalog entry."""

    def open(self, table: ObjectId, version: int | None, tag: str | None, branch: str | None) -> Any:
        """Return a ``lance.LanceDataset`` for reads of this call.

        It commits as `handle` if a commit store manages the table.
        """

    def handle(self, table: ObjectId, version: int | None, tag: str | None, branch: str | None) -> Any:
        """Return a ``lance.LanceDataset`` that commits through the catalog.

        Without a commit store, it does so in a V1 directory.
        """

    def details(self, table: ObjectId, version: int | None, tag: str | None, branch: str | None) -> VersionDetails:
        """Return the details of the version that `open` would return."""

    def summaries(
        self, table: ObjectId, versions: Sequence[int], branch: str | None = None
    ) -> Iterator[VersionSummary]:
        """Iterate over summaries of versions of a branch, in the given order.

        Versions that were cleaned up are left out.
        """

    def times(self, table: ObjectId, branch: str | None) -> tuple[int, Callable[[int], int | None]]:
        """Return the latest version of a branch, and a function for times.

        It returns the time of a version in nanoseconds since 1970; None for a version that does not exist.
        """
