"""Touch what Spark does not publish; no other module does.

These names may change with any release of Spark. `CHECKED` lists the releases for which they were checked, and
``tests/integration/test_spark_internals.py`` checks them in the installed release.

- `schemas`: conversions of schemas in PySpark; without a JVM
- `workers`: PySpark's worker processes, its pickler and its accumulators; without a JVM
- `sessions`: the JVM's side of a classic session, and of its DataFrames
- `driver`: PySpark's gateway to the JVM, and the errors that pass through it
- `classes`: names of classes in the JVM
- `compiler`: the Java compiler that Spark ships
- `python_source`: Spark's data source in Python, of which the SQL catalog uses parts
- `columnar`, `batch_classes`: readers and writers in Java, on executors
- `metrics`: what Spark's UI shows of a scan, in Java
- `strategy`, `changed_query`, `partial_aggregates`: a planner strategy in Java
- `catalog_class`: the catalog in Java for drivers without Python

The first two work with all checked releases, the others with the last one.
"""

CHECKED = ("4.0", "4.1", "4.2", "4.3")
"""The releases of Spark for which the private names were checked."""
