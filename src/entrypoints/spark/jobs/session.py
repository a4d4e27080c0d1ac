"""Start a Spark session for jobs if the caller has none."""

from __future__ import annotations

import os
import sys
from types import ModuleType

import pyarrow as pa

from lancekeep.domain.errors import InvalidInput, MissingExtra
from lancekeep.entrypoints.spark.arrow_types import arrow_schema

try:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from lancekeep.entrypoints.spark.internals.workers import pickle_by_value
except ImportError as error:
    raise MissingExtra("jobs need PySpark: pip install 'lancekeep[spark]'") from error


def session(master: str = "local[*]") -> SparkSession:
    """Return the session of this process; create it if necessary.

    A local session has no web interface, listens on the loopback interface only, and shuffles to few partitions. Its
    workers run this interpreter.

    Args:
        master: The Spark master URL of a new session.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName("lancekeep").config("spark.ui.showConsoleProgress", "false")
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        for name, value in _LOCAL.items():
            builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")  # jobs raise errors instead
    return spark


_LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.shuffle.partitions": "16",
    "spark.ui.enabled": "false",
}
"""The settings of a local session.

Each task of a shuffle creates a file for every partition. With Spark's default of 200 partitions, a MERGE of a small
source spends half of its time on these files.
"""


def ship(module: ModuleType) -> None:
    """Pickle a module's functions by value, so that workers need not import it."""
    pickle_by_value(module)


def columns_of(ddl: str) -> pa.Schema:
    """Parse columns in Spark's DDL, such as ``id LONG, text STRING NOT NULL``.

    Raises:
        InvalidInput: The text is not a list of columns, or a table cannot store one.
    """
    try:
        columns = StructType.fromDDL(ddl)
        if not isinstance(columns, StructType):
            raise InvalidInput(f"{ddl!r} is one type; name the columns, 'id LONG, text STRING'")
    except PySparkException as error:
        raise InvalidInput(f"{ddl!r} is no list of columns; write 'id LONG, text STRING': {error}") from error
    nullable = {column.name: column.nullable for column in columns}
    return pa.schema([field.with_nullable(nullable[field.name]) for field in arrow_schema(columns)])
