"""Implement INSERT and REPLACE WHERE.

Executors write fragments, and the driver commits them once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from lancekeep.domain.errors import Unsupported
from lancekeep.entrypoints.spark.internals.classes import WRITE
from lancekeep.entrypoints.spark.sql.answers import Unmetered
from lancekeep.entrypoints.spark.sql.jvm import Jvm
from lancekeep.entrypoints.spark.sql.streams import given_options, refuse_options
from lancekeep.entrypoints.spark.sql.workers import Batches, messages, writer_factory
from lancekeep.entrypoints.spark.writing import write_batches
from lancekeep.ports.table_engine import WriteMode, WritePlan


class Target(Protocol):
    """The table that receives the rows."""

    def _begin(self, mode: WriteMode) -> WritePlan: ...

    def _commit(self, plan: WritePlan, fragments: list[str], after: str | None = None) -> None: ...

    def _where(self, predicates: Iterable[Any]) -> str: ...

    def _replace(self, condition: str, fragments: list[str]) -> None: ...

    def _stream(self, info: Any, replaces: bool) -> Any: ...


class Insert(Unmetered):
    """One INSERT; it may replace all rows, or the rows that satisfy a condition.

    Spark uses the object in turn as the builder, the write and the batch write.
    """

    class Java:
        implements = (
            WRITE + "SupportsOverwriteV2",
            WRITE + "SupportsDynamicOverwrite",
            WRITE + "Write",
            WRITE + "BatchWrite",
            "java.util.function.Consumer",
        )

    def __init__(self, jvm: Jvm, name: str, target: Target, info: Any) -> None:
        self._jvm = jvm
        self._name = name
        self._target = target
        self._info = info
        self._mode = WriteMode.APPEND
        self._plan: WritePlan | None = None
        self._after: str | None = None
        self._condition: str | None = None

    def canOverwrite(self, predicates: Iterable[Any]) -> bool:
        return True

    def overwrite(self, predicates: Iterable[Any]) -> Insert:
        """Replace the rows that satisfy a condition."""
        self._condition = self._target._where(predicates)
        return self

    def truncate(self) -> Insert:
        self._mode = WriteMode.OVERWRITE
        return self

    def overwriteDynamicPartitions(self) -> Insert:
        return self.truncate()

    def build(self) -> Insert:
        return self

    def buildForBatch(self) -> Insert:
        return self

    def buildForStreaming(self) -> Any:
        return self.toStreaming()

    def accept(self, read: Iterable[Any]) -> None:
        """Commit only after the version of the target that the statement reads.

        In a MERGE that only inserts, the rows of the target decide which rows are new. Called by the strategy.
        """
        self._after = next((table.version() for table in read if table.name() == self._name), None)

    def andThen(self, after: Any) -> Any:
        raise Unsupported("the planner strategy calls accept alone")

    def description(self) -> str:
        replaced = f" where {self._condition}" if self._condition else ""
        return f"{self._mode.value} {self._name}{replaced}"

    def toBatch(self) -> Insert:
        refuse_options(self._name, given_options(self._info.options()))
        return self

    def toStreaming(self) -> Any:
        return self._target._stream(self._info, self._mode is WriteMode.OVERWRITE)

    def createBatchWriterFactory(self, info: Any) -> Any:
        plan = self._plan = self._target._begin(self._mode)

        def write(batches: Batches) -> list[str]:
            return write_batches(batches, plan)

        return writer_factory(self._jvm, write, self._info.schema())

    def useCommitCoordinator(self) -> bool:
        return True

    def onDataWriterCommit(self, message: Any) -> None:
        pass

    def commit(self, answers: Iterable[Any], summary: Any = None) -> None:
        assert self._plan is not None
        fragments = [fragment for written in messages(answers) for fragment in written]
        if self._condition is None:
            self._target._commit(self._plan, fragments, self._after)
        else:
            self._target._replace(self._condition, fragments)

    def abort(self, answers: Iterable[Any]) -> None:
        """Do nothing: uncommitted fragments are invisible until clean-up."""
