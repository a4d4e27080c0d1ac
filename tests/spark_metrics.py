"""What Spark's UI shows of a query."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from lancekeep.entrypoints.spark.internals.driver import Driver

_OURS = "lancekeep.metrics"


def shown(spark: SparkSession) -> dict[str, str]:
    """Return the metrics of Lancekeep that the UI shows of the last query; wait until Spark has counted all tasks."""
    context: Any = spark._jsparkSession.sparkContext()
    context.listenerBus().waitUntilEmpty()
    store: Any = spark._jsparkSession.sharedState().statusStore()
    last = store.executionsList().last()
    values = store.executionMetrics(last.executionId())
    found, metrics = {}, Driver(spark).java("scala.jdk.javaapi.CollectionConverters").asJava(last.metrics())
    for metric in metrics:
        value = values.get(metric.accumulatorId())
        if _OURS in metric.metricType() and value.isDefined():
            found[metric.name()] = value.get()
    return found
