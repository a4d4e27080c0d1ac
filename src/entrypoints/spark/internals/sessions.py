"""Reach the JVM's side of a classic session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession


def is_classic(spark: SparkSession) -> bool:
    """Return whether the driver is this process.

    A client of Spark Connect has its driver in another process.
    """
    return hasattr(spark, "_jsparkSession")


def session_id(spark: SparkSession) -> str:
    """Return the identity of a session; a clone has its own."""
    return str(spark._jsparkSession.sessionUUID())


@contextmanager
def active(spark: SparkSession) -> Iterator[None]:
    """Make a classic session the active one of this thread.

    Afterwards the previous session is active again.
    """
    sessions: Any = cast(Any, spark._jvm).SparkSession
    before = sessions.getActiveSession()
    sessions.setActiveSession(spark._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def put_catalog(spark: SparkSession, name: str, catalog: Any) -> Any:
    """Give a session an open catalog, in place of one of the same name.

    By configuration, Spark loads only classes from jars.

    Returns:
        The catalog as an object of the JVM.
    """
    manager = spark._jsparkSession.sessionState().catalogManager()
    field = manager.getClass().getDeclaredField("catalogs")
    field.setAccessible(True)
    catalogs = field.get(manager)
    catalogs.put(name, catalog)
    return catalogs.apply(name)


def planner(spark: SparkSession) -> Any:
    """Return the ``ExperimentalMethods`` of a session.

    They hold its planner strategies.
    """
    return spark._jsparkSession.sessionState().experimentalMethods()


def frame_of(rows: Any, spark: SparkSession) -> DataFrame:
    """Wrap a DataFrame of the JVM."""
    return DataFrame(rows, spark)


def internal_rows(frame: DataFrame) -> Any:
    """Compute a DataFrame; return its rows as Spark stores them, in the JVM."""
    return frame._jdf.queryExecution().executedPlan().executeCollect()
