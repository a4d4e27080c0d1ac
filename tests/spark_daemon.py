"""Spark's daemon of Python workers with their imports loaded, so that a forked worker imports nothing.

It only imports: Lance has started no thread that a fork would lose.
"""

import runpy

import pandas  # noqa: F401 # loaded for the workers, like the following modules
import pyarrow.compute  # noqa: F401

import lancekeep.entrypoints.spark.source
from lancekeep.entrypoints.spark.versions import why_no_catalog

if why_no_catalog() is None:
    import lancekeep.entrypoints.spark.sql.scan  # noqa: F401

if __name__ == "__main__":
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
