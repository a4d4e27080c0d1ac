"""Implement UPDATE, MERGE and DELETE of a partitioned table.

Spark gives each changed row the partition and the address that it had. Tasks write the new rows to the partitions to
which their values belong, as an INSERT does; several tasks may write a new partition, in one directory. The driver
marks the old rows as deleted, commits one version per partition, and publishes all of them at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import attrs
import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lancekeep.application.partitions.writing import PartitionWritePlan, WrittenPartition
from lancekeep.domain.errors import ConcurrentModification, InvalidInput, Unsupported
from lancekeep.domain.partitions import Partition
from lancekeep.entrypoints.spark.internals.strategy import row_delta
from lancekeep.entrypoints.spark.jobs.tasks import repetitions
from lancekeep.entrypoints.spark.partitions import PartitionedRows
from lancekeep.entrypoints.spark.projection import field_ids
from lancekeep.entrypoints.spark.sql.changed_rows import Layout
from lancekeep.entrypoints.spark.sql.column_files import Addresses
from lancekeep.entrypoints.spark.sql.jvm import Jvm
from lancekeep.entrypoints.spark.sql.metadata_columns import ROW_ADDRESS
from lancekeep.entrypoints.spark.sql.partition_reader import PARTITION
from lancekeep.entrypoints.spark.sql.row_level import (
    ChangedRows,
    FragmentChanges,
    Query,
    Read,
    Statement,
    added_fragments,
    addressed,
    matching,
)
from lancekeep.entrypoints.spark.sql.workers import Batches, messages, writer_factory

Act = Callable[[Any], Any]


class Target(Read, Protocol):
    """The partitioned table, with the partitions that a statement reads."""

    @property
    def _partitions(self) -> Sequence[Partition]: ...

    def _begin(self) -> PartitionWritePlan: ...

    def _publish(
        self,
        plan: PartitionWritePlan,
        acts: Mapping[str, Act],
        created: Sequence[WrittenPartition],
        *,
        exactly: bool,
    ) -> None: ...


class PartitionedStatement(Statement):
    """A statement on all partitions."""

    _identity = (PARTITION, ROW_ADDRESS)

    def __init__(self, jvm: Jvm, target: Target, command: Any) -> None:
        super().__init__(jvm, target, command)
        self._target = target

    def newScanBuilder(self, options: Any) -> Any:
        builder = self._read.newScanBuilder(options)
        builder._keep_partitions()
        return builder

    def apply(self, delta: Any, query: Query) -> PartitionedChanges:
        """Return the write of the changed rows; called by the strategy."""
        exactly = self._is_exact(query)
        query.reduce()
        return PartitionedChanges(
            self._jvm, self._target, self.description(), query, row_delta(self._jvm, delta), exactly=exactly
        )


class PartitionedChanges(ChangedRows):
    """The changed rows of all partitions."""

    def __init__(self, jvm: Jvm, target: Target, description: str, query: Query, delta: Any, *, exactly: bool) -> None:
        super().__init__(jvm, description, query)
        self._target = target
        self._exactly = exactly
        partition, address = delta.identity
        self._layout = Layout(delta.operations, delta.columns, address)
        self._partition = partition
        self._plan: PartitionWritePlan | None = None

    def createBatchWriterFactory(self, info: Any) -> Any:
        self._plan = self._target._begin()
        write = partial(write_partition_changes, plan=self._plan, layout=self._layout, partition=self._partition)
        return writer_factory(self._jvm, write, self._schema)

    def commit(self, answers: Iterable[Any], summary: Any = None) -> None:
        assert self._plan is not None
        written: list[Written] = messages(answers)
        gone: dict[str, Addresses] = {}
        for name in dict.fromkeys(name for one in written for name in (*one.deleted, *one.moved)):
            # A MERGE that only deletes may find a row several times.
            deleted = np.unique(_joined(one.deleted.get(name) for one in written))
            gone[name] = np.sort(_joined([deleted, *(one.moved.get(name) for one in written)]))
            if (gone[name][1:] == gone[name][:-1]).any():
                raise InvalidInput(f"{self._description}: a row would be changed twice; nothing was committed")
        publish_rows(
            self._target, self._plan, [part for one in written for part in one.added], gone, exactly=self._exactly
        )


class Written(NamedTuple):
    """What a task has written.

    Attributes:
        added: The new rows.
        deleted: The addresses of deleted rows, by the name of the partition's table.
        moved: The old addresses of updated rows.
    """

    added: list[WrittenPartition]
    deleted: dict[str, Addresses]
    moved: dict[str, Addresses]


def write_partition_changes(batches: Batches, plan: PartitionWritePlan, layout: Layout, partition: int) -> Written:
    """Write the changed rows of one task."""
    delete, update, insert = layout.operations
    deleted: dict[str, list[Addresses]] = defaultdict(list)
    moved: dict[str, list[Addresses]] = defaultdict(list)
    rows = PartitionedRows(plan)
    for batch in batches:
        kind = batch.column(0)
        unknown = set(pc.unique(kind).to_pylist()) - {delete, update, insert}
        if unknown:
            raise Unsupported(f"Spark asks for a change of the kind {min(unknown)}, which is not known")
        for which, found in ((delete, deleted), (update, moved)):
            for name, addresses in _addresses(batch.filter(pc.equal(kind, which)), partition, layout.address):
                found[name].append(addresses)
        new = batch.filter(pc.not_equal(kind, delete))
        if new.num_rows and layout.row:
            columns = [new.column(at) for at in layout.row if at is not None]
            rows.add(pa.RecordBatch.from_arrays(columns, names=plan.schema.names))
    rows.flush()
    return Written(
        rows.written,
        {name: _joined(each) for name, each in deleted.items()},
        {name: _joined(each) for name, each in moved.items()},
    )


def publish_rows(
    target: Target,
    plan: PartitionWritePlan,
    written: Iterable[WrittenPartition],
    gone: Mapping[str, Addresses],
    replaced: Mapping[str, str] = MappingProxyType({}),
    *,
    exactly: bool,
) -> None:
    """Publish new rows and the removal of old ones at once.

    Args:
        target: The table.
        plan: The plan with which the rows were written.
        written: The new rows; several may be of one partition.
        gone: The addresses of removed rows in ascending order, by the name of the partition's table.
        replaced: Conditions of removed rows, by the name of the partition's table.
        exactly: Whether all partitions must be as the statement read them.

    Raises:
        ConcurrentModification: Another writer has changed a partition since.
    """
    known = {str(partition.table.id) for partition in target._partitions}
    added: dict[str, list[str]] = defaultdict(list)
    created: dict[str, WrittenPartition] = {}
    for part in written:
        name = str(part.plan.table)
        added[name] += part.fragments
        if part.location is not None:
            created[name] = attrs.evolve(part, fragments=tuple(added[name]))
    late = added.keys() - created.keys() - known
    if late:
        raise ConcurrentModification(
            f"{target._name}: the partition {min(late)} was added during the statement; nothing was published"
        )
    acts = {
        name: partial(_change, added=added[name], gone=gone.get(name, _NONE), condition=replaced.get(name))
        for name in sorted((gone.keys() | replaced.keys() | added.keys()) - created.keys())
    }
    if acts or created:
        target._publish(plan, acts, list(created.values()), exactly=exactly)


def _change(dataset: Any, added: Sequence[str], gone: Addresses, condition: str | None) -> Any:
    """Commit new fragments and the removal of rows, by address or by a condition, as one version."""
    changed, removed = addressed(dataset, gone) if condition is None else matching(dataset, condition)
    fields = field_ids(dataset, dataset.schema.names)
    changes = FragmentChanges(dataset.version, added_fragments(added), changed, removed, (), fields)
    transaction = lance.Transaction(dataset.version, changes.operation())
    return lance.LanceDataset.commit(dataset, transaction, max_retries=repetitions(exactly=True))


_NONE: Addresses = np.empty(0, np.uint64)


def _joined(parts: Iterable[Addresses | None]) -> Addresses:
    return np.concatenate([_NONE, *(part for part in parts if part is not None)])


def _addresses(batch: pa.RecordBatch, partition: int, address: int) -> Iterator[tuple[str, Addresses]]:
    """Yield the names of partitions with the addresses of their rows."""
    names = batch.column(partition)
    addresses = np.asarray(batch.column(address).cast(pa.uint64()).to_numpy(zero_copy_only=False))
    for name in pc.unique(names).to_pylist():
        yield name, addresses[pc.equal(names, name).to_numpy(zero_copy_only=False)]
