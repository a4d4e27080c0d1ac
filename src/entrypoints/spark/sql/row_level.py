"""Implement UPDATE, MERGE and DELETE by any condition.

Spark evaluates the statement, and gives each changed row its operation and its address in the version that the
statement reads. Tasks write the new rows as fragments and return the addresses of the old ones. The driver marks these
as deleted and commits one version. An updated row is deleted and inserted, so it gets a new address; in a table with
stable row ids also a new id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import lance
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lancekeep.domain.errors import ConcurrentModification, InvalidInput, Unsupported
from lancekeep.entrypoints.spark.sql.jvm import WRITE, Jvm, Proxy
from lancekeep.entrypoints.spark.sql.metadata_columns import ROW_ADDRESS
from lancekeep.entrypoints.spark.sql.workers import Batches, messages, writer_factory
from lancekeep.entrypoints.spark.writing import write_batches
from lancekeep.ports.table_engine import WriteMode, WritePlan

_EXPRESSIONS, _METRIC = "org.apache.spark.sql.connector.expressions.", "org.apache.spark.sql.connector.metric."
_MERGE = "MERGE"


class Target(Protocol):
    """The table whose rows change, at the version that the statement reads."""

    _jvm: Jvm
    _name: str
    _dataset: Any

    def newScanBuilder(self, options: Any) -> Any: ...

    def _begin(self, mode: WriteMode) -> WritePlan: ...

    def _change(self, act: Callable[[Any], Any], *, exactly: bool) -> None: ...


class Operation(Proxy):
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

    def __init__(self, target: Target, command: Any) -> None:
        self._jvm = target._jvm
        self._target = target
        self._command = command

    def build(self) -> Operation:
        return self

    def command(self) -> Any:
        return self._command

    def description(self) -> str:
        return f"{self._command.toString()} {self._target._name}"

    def rowId(self) -> Any:
        column = self._jvm.java(_EXPRESSIONS + "Expressions").column(ROW_ADDRESS)
        return self._jvm.array(_EXPRESSIONS + "NamedReference", [column])

    def requiredMetadataAttributes(self) -> Any:
        return self._jvm.array(_EXPRESSIONS + "NamedReference", [])

    def representUpdateAsDeleteAndInsert(self) -> bool:
        return False

    def newScanBuilder(self, options: Any) -> Any:
        return self._target.newScanBuilder(options)

    def newWriteBuilder(self, info: Any) -> Operation:
        return self

    def supportedCustomMetrics(self) -> Any:
        return self._jvm.array(_METRIC + "CustomMetric", [])

    def reportDriverMetrics(self) -> Any:
        return self._jvm.array(_METRIC + "CustomTaskMetric", [])

    def apply(self, delta: Any, read: Iterable[Any]) -> Changes:
        """Return the write of the changed rows; called by the strategy.

        Args:
            delta: Spark's ``WriteDelta``.
            read: The other tables that the statement reads.
        """
        again = [str(table.version()) for table in read if table.name() == self._target._name]
        version = str(self._target._dataset.version)
        if set(again) - {version}:
            raise ConcurrentModification(
                f"{self._target._name} was changed while the statement was planned, which reads it at the versions "
                f"{version} and {again[0]}. Nothing was written."
            )
        # New rows may satisfy a condition on other rows of the table, or the keys of a MERGE.
        exactly = bool(again) or self._command.toString() == _MERGE
        return Changes(self._target, self.description(), delta, exactly=exactly)

    def toBatch(self) -> Any:
        """Refuse the plan that Spark makes in a session without the strategy."""
        raise Unsupported(
            f"{self.description()}: the session cannot run it. Call lancekeep.spark.install for this session. Nothing "
            "was written."
        )

    def toStreaming(self) -> Any:
        raise Unsupported(f"{self.description()}: a stream cannot run it")


class OperationBuilder(Proxy):
    """Build an operation.

    py4j cannot tell its ``build`` from that of the operation, so it is an object of its own.
    """

    class Java:
        implements = (WRITE + "RowLevelOperationBuilder",)

    def __init__(self, target: Target, command: Any) -> None:
        self._jvm = target._jvm
        self._operation = Operation(target, command)

    def build(self) -> Operation:
        return self._operation


class Changes(Proxy):
    """The write of changed rows; see `Operation.apply`."""

    class Java:
        implements = (WRITE + "Write", WRITE + "BatchWrite")

    def __init__(self, target: Target, description: str, delta: Any, *, exactly: bool) -> None:
        self._jvm = target._jvm
        self._target = target
        self._description = description
        self._exactly = exactly
        operations = self._jvm.java("org.apache.spark.sql.catalyst.util.RowDeltaUtils")
        row = delta.projections().rowProjection()
        self._layout = Layout(
            (operations.DELETE_OPERATION(), operations.UPDATE_OPERATION(), operations.INSERT_OPERATION()),
            tuple(_ordinals(row.get())) if row.isDefined() else (),
            _ordinals(delta.projections().rowIdProjection())[0],
        )
        self._schema = self._jvm.java("org.apache.spark.sql.types.StructType")()
        for at, field in enumerate(delta.query().schema().fields()):  # by position, because names may repeat
            self._schema = self._schema.add(f"c{at}", field.dataType(), True)

    def description(self) -> str:
        return self._description

    def toBatch(self) -> Changes:
        return self

    def toStreaming(self) -> Any:
        raise Unsupported(f"{self._description}: a stream cannot run it")

    def supportedCustomMetrics(self) -> Any:
        return self._jvm.array(_METRIC + "CustomMetric", [])

    def reportDriverMetrics(self) -> Any:
        return self._jvm.array(_METRIC + "CustomTaskMetric", [])

    def createBatchWriterFactory(self, info: Any) -> Any:
        plan = self._target._begin(WriteMode.APPEND)
        return writer_factory(self._jvm, partial(_write, plan=plan, layout=self._layout), self._schema)

    def useCommitCoordinator(self) -> bool:
        return True

    def onDataWriterCommit(self, message: Any) -> None:
        pass

    def commit(self, answers: Iterable[Any], summary: Any = None) -> None:
        written = messages(answers)
        added = [lance.FragmentMetadata.from_json(text) for fragments, _ in written for text in fragments]
        old = [np.frombuffer(addresses, np.uint64) for _, addresses in written]
        addresses = np.sort(np.concatenate([np.empty(0, np.uint64), *old]))
        if (addresses[1:] == addresses[:-1]).any():
            raise InvalidInput(f"{self._description}: a row would be changed twice; nothing was committed")
        commit_changes(self._target, *addressed(self._target._dataset, addresses), added, exactly=self._exactly)

    def abort(self, answers: Iterable[Any]) -> None:
        """Do nothing: uncommitted fragments are invisible until clean-up."""


class Layout(NamedTuple):
    """Where the parts of a changed row are.

    Attributes:
        operations: The values of the first column that mean delete, update and insert.
        row: The positions of the table's columns.
        address: The position of the old address.
    """

    operations: tuple[int, int, int]
    row: tuple[int, ...]
    address: int


def commit_changes(
    target: Target, updated: Sequence[Any], removed: Sequence[int], added: Sequence[Any], *, exactly: bool
) -> None:
    """Commit changes of the version that a statement has read.

    They are one version; if nothing changes, none is committed.

    Args:
        target: The table.
        updated: The fragments with new deletion files.
        removed: The ids of the fragments that keep no row.
        added: The new fragments.
        exactly: Whether no other version may come between.

    Raises:
        ConcurrentModification: Another writer has changed the same fragments, or the table since if ``exactly``.
    """
    deletes, operations = bool(updated or removed), lance.LanceOperation
    operation: Any
    if deletes and added:
        operation = operations.Update(list(removed), list(updated), list(added), update_mode="rewrite_rows")
    elif deletes:
        operation = operations.Delete(list(updated), list(removed), "rows chosen by Spark")
    elif added:
        operation = operations.Append(list(added))
    else:
        return
    transaction = lance.Transaction(target._dataset.version, operation)
    target._change(lambda latest: lance.LanceDataset.commit(latest, transaction), exactly=exactly)


def matching(dataset: Any, condition: str) -> tuple[list[Any], list[int]]:
    """Mark the rows that satisfy a condition as deleted; returns as `addressed`."""
    updated: list[Any] = []
    removed: list[int] = []
    for fragment in dataset.get_fragments():
        found = fragment.count_rows(condition)
        if found:
            _sort(fragment, found, condition, updated, removed)
    return updated, removed


def addressed(dataset: Any, addresses: npt.NDArray[np.uint64]) -> tuple[list[Any], list[int]]:
    """Mark rows as deleted.

    Args:
        dataset: The version that has the rows.
        addresses: Their addresses in ascending order.

    Returns:
        The fragments that keep other rows, with new deletion files, and the ids of those that keep none.
    """
    updated: list[Any] = []
    removed: list[int] = []
    numbers, starts = np.unique(addresses >> np.uint64(32), return_index=True)
    ends = [*starts[1:], len(addresses)]
    for number, start, end in zip(numbers.tolist(), starts, ends, strict=bool(len(addresses))):
        found = addresses[start:end]
        condition = f"{ROW_ADDRESS} IN ({', '.join(map(str, found.tolist()))})"
        _sort(dataset.get_fragment(number), len(found), condition, updated, removed)
    return updated, removed


def _sort(fragment: Any, found: int, condition: str, updated: list[Any], removed: list[int]) -> None:
    """Delete the ``found`` rows of a fragment that satisfy a condition."""
    left = fragment.delete(condition) if found < fragment.count_rows() else None
    if left is None:
        removed.append(fragment.fragment_id)
    else:
        updated.append(left)


def _write(batches: Batches, plan: WritePlan, layout: Layout) -> tuple[list[str], bytes]:
    """Write the new rows of one task.

    Returns:
        The fragments as JSON, and the addresses of the old rows as integers of 64 bits.
    """
    delete, _, insert = layout.operations
    old: list[bytes] = []

    def rows() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            operation = batch.column(0)
            unknown = set(pc.unique(operation).to_pylist()) - set(layout.operations)
            if unknown:
                raise Unsupported(f"Spark asks for a change of the kind {min(unknown)}, which is not known")
            changed = batch.filter(pc.not_equal(operation, insert)).column(layout.address)
            old.append(changed.cast(pa.uint64()).to_numpy(zero_copy_only=False).tobytes())
            new = batch.filter(pc.not_equal(operation, delete))
            if new.num_rows and layout.row:
                columns = [new.column(at) for at in layout.row]
                yield pa.RecordBatch.from_arrays(columns, names=plan.schema.names)

    return write_batches(rows(), plan), b"".join(old)


def _ordinals(projection: Any) -> list[int]:
    found = projection.colOrdinals()
    return [found.apply(at) for at in range(found.size())]
