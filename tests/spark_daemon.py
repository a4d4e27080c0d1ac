"""Spark's daemon of Python workers with their imports loaded, so that a forked worker imports nothing.

It only imports: Lance has started no thread that a fork would lose.
"""

import gc

import pandas  # noqa: F401 # loaded for the workers, like the following modules
import pyarrow.compute  # noqa: F401
from pyspark.daemon import manager

import lancekeep.entrypoints.spark.source
import lancekeep.entrypoints.spark.sql.scan  # noqa: F401

if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    manager()
