"""Give Spark rows that the driver computes, without a task."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import pyarrow as pa

from lancekeep.domain.errors import Unsupported
from lancekeep.entrypoints.spark.internals.classes import READ
from lancekeep.entrypoints.spark.internals.schemas import spark_of
from lancekeep.entrypoints.spark.internals.sessions import internal_rows
from lancekeep.entrypoints.spark.sql.jvm import Jvm, Proxy
from lancekeep.entrypoints.spark.sql.pushdown import DriverScan


class Rows(DriverScan):
    """A scan over rows that are computed when Spark asks for them."""

    class Java:
        implements = (READ + "LocalScan",)

    def __init__(self, jvm: Jvm, description: str, schema: pa.Schema, compute: Callable[[], pa.Table]) -> None:
        super().__init__(jvm, jvm.struct(spark_of(schema)))
        self._description = description
        self._compute = compute

    def description(self) -> str:
        return self._description

    def toBatch(self) -> Any:
        raise Unsupported("a local scan has no batch")

    def rows(self) -> Any:
        return self._rows

    @cached_property
    def _rows(self) -> Any:
        """Convert the rows in the JVM: a call for each value would take long."""
        return internal_rows(self._jvm.spark.createDataFrame(self._compute()))


class RowsBuilder(Proxy):
    """Build a scan that nothing is pushed down to."""

    class Java:
        implements = (READ + "ScanBuilder",)

    def __init__(self, jvm: Jvm, scan: Rows) -> None:
        self._jvm = jvm
        self._scan = scan

    def build(self) -> Rows:
        return self._scan
