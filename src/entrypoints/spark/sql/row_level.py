"""Implement UPDATE, MERGE and DELETE by any condition.

Spark evaluates the statement, and gives each changed row its operation and its address in the version that the
statement reads. Tasks write new rows, or new columns of fragments (`changed_rows`). The driver marks the old rows as
deleted and commits one version. Stable row ids are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import lance
import numpy as np

from lancekeep.adapters.lance.blobs import is_blob
from lancekeep.domain.errors import ConcurrentModification, InvalidInput, Unsupported
from lancekeep.entrypoints.spark.internals.classes import EXPRESSIONS, STRUCT, WRITE
from lancekeep.entrypoints.spark.internals.strategy import row_delta
from lancekeep.entrypoints.spark.jobs.tasks import repetitions
from lancekeep.entrypoints.spark.projection import field_ids
from lancekeep.entrypoints.spark.reading import Snapshot
from lancekeep.entrypoints.spark.sql.answers import Unmetered
from lancekeep.entrypoints.spark.sql.changed_rows import (
    FRAGMENT_BITS,
    Layout,
    Written,
    write_changes,
)
from lancekeep.entrypoints.spark.sql.column_files import OFFSETS, Addresses, Rewritten
from lancekeep.entrypoints.spark.sql.jvm import Jvm, Proxy
from lancekeep.entrypoints.spark.sql.metadata_columns import ROW_ADDRESS
from lancekeep.entrypoints.spark.sql.workers import messages, writer_factory
from lancekeep.ports.table_engine import WriteMode, WritePlan

_MERGE = "MERGE"


class Read(Protocol):
    """The table whose rows change, at the version that the statement reads."""

    _name: str

    def version(self) -> str | None: ...

    def newScanBuilder(self, options: Any) -> Any: ...


class Target(Read, Protocol):
    """A table in one dataset."""

    _dataset: Any

    def _begin(self, mode: WriteMode) -> WritePlan: ...

    def _changeable(self) -> tuple[Any, Snapshot]: ...

    def _change(self, act: Callable[[Any], Any], *, exactly: bool) -> None: ...


class Query(Protocol):
    """The query of the changed rows, before it is planned.

    `internals.changed_query` implements it in Java.
    """

    def read(self) -> Iterable[Any]:
        """Return the tables that it reads, without the rows that it changes."""

    def joins(self) -> bool:
        """Return whether the rows of a fragment may be in several tasks, or in any order."""

    def inserts(self) -> bool:
        """Return whether it may have rows without an address."""

    def unchanged(self) -> Iterable[int]:
        """Return the positions of columns that every updated row keeps."""

    def without(self, columns: Any, drop: bool) -> Any:
        """Remove the values of columns in updated rows, with ``drop`` the columns.

        Returns:
            The columns that the scan must read.
        """

    def scan(self, scan: Any) -> None:
        """Replace the scan by one of the columns that `without` has returned."""

    def reduce(self) -> None:
        """Drop the rows without a row of a small source before Spark moves them."""

    def gather(self, address: int) -> None:
        """Bring the rows of a fragment into one task."""

    def schema(self) -> Any:
        """Return the columns of the changed rows."""

    def sort(self, address: int) -> None:
        """Sort the rows of each task by their old addresses; new rows are the last."""


class Statement(Unmetered):
    """One statement.

    Spark uses the object in turn as the operation, the builder and the write.
    """

    class Java:
        implements = (
            WRITE + "SupportsDelta",
            WRITE + "DeltaWriteBuilder",
            WRITE + "DeltaWrite",
            "java.util.function.BiFunction",
        )

    _identity: tuple[str, ...] = (ROW_ADDRESS,)
    """The metadata columns that identify a row."""

    def __init__(self, jvm: Jvm, target: Read, command: Any) -> None:
        self._jvm = jvm
        self._read = target
        self._command = command
        self._scans: list[Any] = []

    def build(self) -> Statement:
        return self

    def command(self) -> Any:
        return self._command

    def description(self) -> str:
        return f"{self._command.toString()} {self._read._name}"

    def rowId(self) -> Any:
        make = self._jvm.java(EXPRESSIONS + "Expressions").column
        return self._jvm.array(EXPRESSIONS + "NamedReference", map(make, self._identity))

    def requiredMetadataAttributes(self) -> Any:
        return self._jvm.array(EXPRESSIONS + "NamedReference", [])

    def representUpdateAsDeleteAndInsert(self) -> bool:
        return False

    def newScanBuilder(self, options: Any) -> Any:
        self._scans.append(self._read.newScanBuilder(options))
        return self._scans[-1]

    def newWriteBuilder(self, info: Any) -> Statement:
        return self

    def _is_merge(self) -> bool:
        return bool(self._command.toString() == _MERGE)

    def _is_exact(self, query: Query) -> bool:
        """Return whether no version may come between: other rows of the table decide about the changes.

        New rows may satisfy a condition on other rows of the table, or the keys of a MERGE.
        """
        again = [str(table.version()) for table in query.read() if table.name() == self._read._name]
        version = str(self._read.version())
        if set(again) - {version}:
            raise ConcurrentModification(
                f"{self._read._name} was changed while the statement was planned, which reads it at the versions "
                f"{version} and {again[0]}. Nothing was written."
            )
        return bool(again) or self._is_merge()

    def toBatch(self) -> Any:
        """Refuse the plan that Spark makes in a session without the strategy."""
        raise Unsupported(
            f"{self.description()}: the session cannot run it. Call lancekeep.spark.install for this session. Nothing "
            "was written."
        )

    def toStreaming(self) -> Any:
        raise Unsupported(f"{self.description()}: a stream cannot run it")


class Operation(Statement):
    """A statement on a table in one dataset."""

    def __init__(self, jvm: Jvm, target: Target, command: Any) -> None:
        super().__init__(jvm, target, command)
        self._target = target

    def apply(self, delta: Any, query: Query) -> Changes:
        """Return the write of the changed rows; called by the strategy.

        Args:
            delta: Spark's ``WriteDelta``.
            query: Its query, which is planned afterwards.
        """
        exactly = self._is_exact(query)
        found = row_delta(self._jvm, delta)
        layout = Layout(found.operations, found.columns, found.identity[-1])
        layout = self._narrowed(layout, query, is_merge=self._is_merge())
        return Changes(self._jvm, self._target, self.description(), query, layout, exactly=exactly)

    def _narrowed(self, layout: Layout, query: Query, *, is_merge: bool) -> Layout:
        """Leave out the columns that no update changes, and arrange the rows for `changed_rows`."""
        unchanged = list(query.unchanged()) if self._is_narrowable() else []
        if len(unchanged) == len(layout.row):  # updates to the stored values; one column is written again
            del unchanged[:1]
        gathered = not query.joins()
        if unchanged:
            [scan] = self._scans
            drops = not query.inserts()
            scan.pruneColumns(query.without(self._jvm.list(unchanged), drops))
            query.scan(scan.build())
            layout = layout.without(unchanged, drop=drops)
            if drops and not gathered:
                query.gather(layout.address)
                gathered = True
        query.reduce()
        if is_merge and (unchanged or self._target._dataset.has_stable_row_ids):
            query.sort(layout.address)
        return layout._replace(gathered=gathered)

    def _is_narrowable(self) -> bool:
        """Return whether tasks can copy every column of the table.

        The engine takes no bytes of blobs by position.
        """
        return len(self._scans) == 1 and not any(map(is_blob, self._target._dataset.schema))


class OperationBuilder(Proxy):
    """Build an operation.

    py4j cannot tell the two ``build`` methods apart, so the builder is an object of its own.
    """

    class Java:
        implements = (WRITE + "RowLevelOperationBuilder",)

    def __init__(self, jvm: Jvm, operation: Statement) -> None:
        self._jvm = jvm
        self._operation = operation

    def build(self) -> Statement:
        return self._operation


class ChangedRows(Unmetered):
    """The write of changed rows; see `Operation.apply`."""

    class Java:
        implements = (WRITE + "Write", WRITE + "BatchWrite")

    def __init__(self, jvm: Jvm, description: str, query: Query) -> None:
        self._jvm = jvm
        self._description = description
        self._schema = self._jvm.java(STRUCT)()
        for at, field in enumerate(query.schema().fields()):  # by position, because names may repeat
            self._schema = self._schema.add(f"c{at}", field.dataType(), True)

    def description(self) -> str:
        return self._description

    def toBatch(self) -> ChangedRows:
        return self

    def toStreaming(self) -> Any:
        raise Unsupported(f"{self._description}: a stream cannot run it")

    def useCommitCoordinator(self) -> bool:
        return True

    def onDataWriterCommit(self, message: Any) -> None:
        pass

    def abort(self, answers: Iterable[Any]) -> None:
        """Do nothing: uncommitted fragments are invisible until clean-up."""


class Changes(ChangedRows):
    """The changed rows of a table in one dataset."""

    def __init__(
        self, jvm: Jvm, target: Target, description: str, query: Query, layout: Layout, *, exactly: bool
    ) -> None:
        super().__init__(jvm, description, query)
        self._target = target
        self._exactly = exactly
        self._layout = layout
        self._changed: Any = None

    def createBatchWriterFactory(self, info: Any) -> Any:
        plan = self._target._begin(WriteMode.APPEND)
        self._changed, snapshot = self._target._changeable()
        write = partial(write_changes, plan=plan, snapshot=snapshot, layout=self._layout)
        return writer_factory(self._jvm, write, self._schema)

    def commit(self, answers: Iterable[Any], summary: Any = None) -> None:
        written: list[Written] = messages(answers)
        # A MERGE that only deletes may find a row several times.
        deleted = np.unique(_joined(one.deleted for one in written))
        addresses = np.sort(_joined([deleted, *(one.moved for one in written)]))
        changed, removed = addressed(self._changed, addresses)
        rewritten = [fragment for one in written for fragment in one.rewritten]
        numbers = [fragment.id for fragment in changed] + removed + [fragment.number for fragment in rewritten]
        if (addresses[1:] == addresses[:-1]).any() or len(set(numbers)) < len(numbers):
            raise InvalidInput(f"{self._description}: a row would be changed twice; nothing was committed")
        changes = FragmentChanges(
            self._changed.version,
            added_fragments(fragment for one in written for fragment in one.added),
            changed,
            removed,
            rewritten,
            field_ids(self._changed, self._layout.assigned(self._changed.schema).names),
        )
        commit_changes(self._target, changes, exactly=self._exactly)


class FragmentChanges(NamedTuple):
    """The changes of a version that a statement has read.

    Attributes:
        version: The version.
        added: The new fragments.
        changed: The fragments with new deletion files.
        removed: The ids of the fragments that keep no row.
        rewritten: The fragments with new columns.
        fields: The ids of the columns that the statement changes, and of their fields.
    """

    version: int
    added: Sequence[Any]
    changed: Sequence[Any]
    removed: Sequence[int]
    rewritten: Sequence[Rewritten] = ()
    fields: Sequence[int] = ()

    def operation(self) -> Any:
        """Return the operation of the engine; None if nothing changes."""
        operations = lance.LanceOperation
        if self.rewritten:
            return operations.Update(
                list(self.removed),
                [
                    *self.changed,
                    *(lance.FragmentMetadata.from_json(one.fragment) for one in self.rewritten),
                ],
                list(self.added),
                fields_modified=list(self.fields),
                fields_for_preserving_frag_bitmap=list(self.fields),
                update_mode="rewrite_columns",
                updated_fragment_offsets={one.number: one.offsets for one in self.rewritten},
            )
        deletes = bool(self.changed or self.removed)
        if deletes and self.added:
            return operations.Update(
                list(self.removed),
                list(self.changed),
                list(self.added),
                fields_for_preserving_frag_bitmap=list(self.fields),  # their indexes do not cover the moved rows
                update_mode="rewrite_rows",
            )
        if deletes:
            return operations.Delete(list(self.changed), list(self.removed), "rows chosen by Spark")
        return operations.Append(list(self.added)) if self.added else None


def commit_changes(target: Target, changes: FragmentChanges, *, exactly: bool) -> None:
    """Commit the changes of a statement as one version, or none if there are none.

    Args:
        target: The table.
        changes: The changes.
        exactly: Whether no other version may come between.

    Raises:
        ConcurrentModification: Another writer has changed the same fragments, or the table since if ``exactly``.
    """
    operation = changes.operation()
    if operation is not None:
        transaction = lance.Transaction(changes.version, operation)
        most = repetitions(exactly=exactly)
        target._change(lambda latest: lance.LanceDataset.commit(latest, transaction, max_retries=most), exactly=exactly)


def added_fragments(fragments: Iterable[str]) -> list[Any]:
    """Return the fragments that tasks have written as JSON."""
    return [lance.FragmentMetadata.from_json(text) for text in fragments]


def matching(dataset: Any, condition: str) -> tuple[list[Any], list[int]]:
    """Mark the rows that satisfy a condition as deleted; returns as `addressed`."""
    changed: list[Any] = []
    removed: list[int] = []
    for fragment in dataset.get_fragments():
        found = fragment.count_rows(condition)
        if found:
            left = fragment.delete(condition) if found < fragment.count_rows() else None
            _sort(fragment.fragment_id, left, changed, removed)
    return changed, removed


def addressed(dataset: Any, addresses: Addresses) -> tuple[list[Any], list[int]]:
    """Mark rows as deleted.

    Args:
        dataset: The version that has the rows.
        addresses: Their addresses in ascending order.

    Returns:
        The fragments that keep other rows, with new deletion files, and the ids of fragments that keep no row.
    """
    changed: list[Any] = []
    removed: list[int] = []
    numbers, starts = np.unique(addresses >> FRAGMENT_BITS, return_index=True)
    ends = [*starts[1:], len(addresses)]
    for number, start, end in zip(numbers.tolist(), starts, ends, strict=bool(len(addresses))):
        left = dataset.get_fragment(number).delete_rows((addresses[start:end] & OFFSETS).tolist())
        _sort(number, left, changed, removed)
    return changed, removed


def _joined(parts: Iterable[Addresses]) -> Addresses:
    return np.concatenate([np.empty(0, np.uint64), *parts])


def _sort(number: int, left: Any, changed: list[Any], removed: list[int]) -> None:
    if left is None:
        removed.append(number)
    else:
        changed.append(left)
