"""Give Spark rows that the driver computes, without a task."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from lancekeep.domain.errors import Unsupported
from lancekeep.entrypoints.spark.sql.jvm import READ, Jvm, Proxy
from lancekeep.entrypoints.spark.sql.scan import DriverScan


class Rows(DriverScan):
    """A scan over rows that are computed when Spark asks for them."""

    class Java:
        implements = (READ + "LocalScan",)

    def __init__(self, jvm: Jvm, description: str, schema: pa.Schema, compute: Callable[[], pa.Table]) -> None:
        super().__init__(jvm, jvm.struct(from_arrow_schema(schema)))
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
        frame = self._jvm.spark.createDataFrame(self._compute())
        return frame._jdf.queryExecution().executedPlan().executeCollect()


class RowsBuilder(Proxy):
    """Build a scan that nothing is pushed down to."""

    class Java:
        implements = (READ + "ScanBuilder",)

    def __init__(self, jvm: Jvm, scan: Rows) -> None:
        self._jvm = jvm
        self._scan = scan

    def build(self) -> Rows:
        return self._scan
