"""Spark's daemon of Python workers with their imports loaded, so that a forked worker imports nothing.

It only imports: Lance has started no thread that a fork would lose.

The archive of pyspark that Spark puts before the installed package is not used. Its modules would be compiled in each
process, and each worker reads its directory again for each of its packages, which takes half a second.
"""

import gc
import runpy
import sys

sys.path[:] = [place for place in sys.path if not place.endswith(".zip")]
sys.path_importer_cache.clear()

import pandas  # noqa: E402, F401 # loaded for the workers, like the following modules
import pyarrow.compute  # noqa: E402, F401

import lancekeep.entrypoints.spark.source  # noqa: E402
from lancekeep.entrypoints.spark.versions import why_no_catalog  # noqa: E402

if why_no_catalog() is None:
    import lancekeep.adapters.lance.engine
    import lancekeep.composition
    import lancekeep.entrypoints.spark.sql.scan  # noqa: F401

if __name__ == "__main__":
    gc.freeze()  # a collection would write to each page of the modules, which the workers share
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
