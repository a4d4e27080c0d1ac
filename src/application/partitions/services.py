"""The protocol of the service for partitions, of a directory and of a server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Protocol

from lancekeep.application.partitions.namespace import PartitionedNamespace
from lancekeep.application.partitions.writing import PartitionWritePlan, WrittenPartition
from lancekeep.domain.partitioning import PartitionBy


class PartitionService(Protocol):
    """The partitions of a catalog; `Partitions` describes the methods."""

    def create(self, schema: Any, by: Iterable[PartitionBy]) -> PartitionedNamespace: ...

    def begin_create(self, schema: Any, by: Iterable[PartitionBy], *, replace: bool = False) -> PartitionWritePlan: ...

    def finish_create(
        self, plan: PartitionWritePlan, written: Sequence[WrittenPartition], *, replace: bool = False
    ) -> PartitionedNamespace: ...

    def open(self) -> PartitionedNamespace: ...

    def drop(self, *, force: bool = False, keep: timedelta | float | None = None) -> None: ...
