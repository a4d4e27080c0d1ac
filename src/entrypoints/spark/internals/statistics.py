"""Give Spark's planner the statistics of columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql.types import StructType

from lancekeep.entrypoints.spark.internals import classes
from lancekeep.entrypoints.spark.internals.driver import Driver

_FORMAT = "2"
"""The version of Spark's texts of values; the texts of instants are in UTC."""
_SIZE = "1"
"""A size in bytes, which Spark requires, and which the statistics of columns do not depend on."""


def column_statistics(driver: Driver, schema: StructType, found: Mapping[str, Mapping[str, str]]) -> Any:
    """Return the ``columnStats`` of a ``Statistics``.

    They are objects of the JVM, which Spark reads without callbacks.

    Args:
        driver: The JVM of the session.
        schema: The types of the columns.
        found: For each column the texts that ``ANALYZE TABLE`` of Spark's own tables stores: ``distinctCount``,
            ``nullCount``, ``avgLen``, ``maxLen``, ``min`` and ``max``.
    """
    columns = driver.java("java.util.HashMap")()
    for name, texts in found.items():
        parsed = _parsed(driver, name, texts)
        if parsed.isDefined():
            columns.put(name, parsed.get())
    # py4j turns a BigInt into an int of Python, which no method takes as a BigInt; so the size stays in its Option.
    size = _parsed(driver, "", {"distinctCount": _SIZE}).get().distinctCount()
    rest = size.map(driver.java(classes.TABLE_STATISTICS).curried()).get()
    table = rest.apply(driver.option()).apply(driver.scala_map(columns))
    types = driver.java(classes.TYPE).fromJson(schema.json())
    return driver.java(classes.RELATION).v1StatsToV2Stats(table, types).columnStats()


def _parsed(driver: Driver, name: str, texts: Mapping[str, str]) -> Any:
    """Return an ``Option`` of the ``CatalogColumnStat`` of a column."""
    stated = driver.java("java.util.HashMap")()
    for key, text in {**texts, "version": _FORMAT}.items():
        stated.put(f"{name}.{key}", text)
    return driver.java(classes.COLUMN_STATISTICS).fromMap("", name, driver.scala_map(stated))
