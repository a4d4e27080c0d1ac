"""A Spark session for jobs, where the caller has none."""

from __future__ import annotations

import os
import sys
from types import ModuleType

import pyarrow as pa

from lancekeep.domain.errors import InvalidInput, MissingExtra
from lancekeep.entrypoints.spark.arrow_types import arrow_schema

try:
    from pyspark import cloudpickle
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType
except ImportError as error:
    raise MissingExtra("jobs need PySpark: pip install 'lancekeep[spark]'") from error


def session(master: str = "local[*]") -> SparkSession:
    """A session of this process, or the one that it has; ``master`` as Spark takes it.

    A local one has no web interface and listens on the loopback alone, and its workers run this interpreter.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName("lancekeep").config("spark.ui.showConsoleProgress", "false")
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        for name, value in _LOCAL.items():
            builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")  # what goes wrong is told as an error
    return spark


_LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.ui.enabled": "false",
}


def ship(module: ModuleType) -> None:
    """Have functions of a module go to the workers with their code: they need not be able to import it."""
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # pyspark's copy has no types


def columns_of(ddl: str) -> pa.Schema:
    """Columns as Spark's DDL writes them, ``id LONG, text STRING NOT NULL``, for a table. Raises `InvalidInput`."""
    try:
        columns = StructType.fromDDL(ddl)
        if not isinstance(columns, StructType):
            raise InvalidInput(f"{ddl!r} is one type; name the columns, 'id LONG, text STRING'")
    except PySparkException as error:
        raise InvalidInput(f"{ddl!r} is no list of columns; write 'id LONG, text STRING': {error}") from error
    nullable = {column.name: column.nullable for column in columns}
    return pa.schema([field.with_nullable(nullable[field.name]) for field in arrow_schema(columns)])
