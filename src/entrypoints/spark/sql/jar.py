"""Write the jar that gives a catalog to drivers without Python.

Those are ``spark-sql``, Connect servers, Thrift servers and Scala programs. Spark creates a catalog from the class that
``spark.sql.catalog.<name>`` names. The jar holds such a class. It starts one Python process for the driver's JVM
(`driver_process`), and delegates every call to a `SqlCatalog` there.

The class is compiled on the machine that runs Spark, by Spark's own compiler against Spark's own interfaces. So it
needs no JDK, and fits the installed version.
"""

from __future__ import annotations

from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

from lancekeep.domain.errors import InvalidInput, Unsupported
from lancekeep.entrypoints.spark.internals.catalog_class import catalog_class
from lancekeep.entrypoints.spark.internals.compiler import compiled
from lancekeep.entrypoints.spark.internals.driver import idle_jvm
from lancekeep.entrypoints.spark.sql.catalog import SqlCatalog
from lancekeep.entrypoints.spark.sql.delegates import delegating_methods
from lancekeep.entrypoints.spark.versions import why_no_catalog

PACKAGE = "lancekeep"
CLASS = f"{PACKAGE}.SparkCatalog"
"""The value of ``spark.sql.catalog.<name>``."""

MODULE = "pyspark_lancekeep"
"""The module that the class runs; it has the catalogs."""
SILENCE = 30
"""Seconds without processor time after which the starting process counts as stuck."""
PATIENCE = 120
"""Seconds in which the process must answer in any case."""


def write_jar(path: Path, *, silence: int = SILENCE) -> None:
    """Compile the class with the installed Spark, and write the jar.

    It replaces an existing file.

    Args:
        path: The jar, whose folder exists.
        silence: The value for `SILENCE` in this jar.

    Raises:
        InvalidInput: The path does not end in ``.jar``, or its folder does not exist.
        Unsupported: The installed Spark is not of version 4.3.
    """
    if path.suffix != ".jar" or not path.parent.is_dir():
        raise InvalidInput(f"{path} cannot be the jar: name a file that ends in .jar in an existing folder")
    reason = why_no_catalog()
    if reason:
        raise Unsupported(reason)
    classes = _compiled(silence)
    with ZipFile(path, "w", ZIP_DEFLATED) as jar:
        jar.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n")
        for name in sorted(classes):
            jar.writestr(f"{name.replace('.', '/')}.class", classes[name])


def _compiled(silence: int) -> dict[str, bytes]:
    interfaces = SqlCatalog.Java.implements
    with idle_jvm() as java:
        methods = delegating_methods(java, interfaces, "there()")
        source = catalog_class(PACKAGE, interfaces, methods, module=MODULE, silence=silence, patience=PATIENCE)
        return compiled(java, source)
