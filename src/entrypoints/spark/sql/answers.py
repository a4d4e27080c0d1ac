"""Answer alike what Spark asks of several objects."""

from __future__ import annotations

from typing import Any

from lancekeep.entrypoints.spark.internals.classes import CATALOG, EXPRESSIONS, METRIC
from lancekeep.entrypoints.spark.sql.jvm import Proxy


class Relation(Proxy):
    """Answers for a table without version, partitions and constraints."""

    _name: str
    _schema: Any

    def __repr__(self) -> str:
        return self._name

    def name(self) -> str:
        return self._name

    def id(self) -> str | None:
        return None

    def version(self) -> str | None:
        return None

    def schema(self) -> Any:
        return self._schema

    def columns(self) -> Any:
        return self._jvm.columns(self._schema)

    def partitioning(self) -> Any:
        return self._jvm.array(EXPRESSIONS + "Transform", [])

    def constraints(self) -> Any:
        return self._jvm.array(CATALOG + "constraints.Constraint", [])


class Unmetered(Proxy):
    """Answers for a scan or write without metrics."""

    def supportedCustomMetrics(self) -> Any:
        return self._jvm.array(METRIC + "CustomMetric", [])

    def reportDriverMetrics(self) -> Any:
        return self._jvm.array(METRIC + "CustomTaskMetric", [])
