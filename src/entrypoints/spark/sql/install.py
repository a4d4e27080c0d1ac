"""A catalog into a Spark session."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pyspark.sql import SparkSession

from lancekeep.application.catalog import Catalog
from lancekeep.domain.errors import InvalidInput
from lancekeep.entrypoints.spark.sql.catalog import SqlCatalog
from lancekeep.entrypoints.spark.sql.jvm import Jvm
from lancekeep.entrypoints.spark.sql.streams import Streams

_TAKEN = ("spark_catalog", "system", "session", "global_temp")


def check_name(spark: SparkSession, name: str) -> None:
    """Raises `InvalidInput` for the name of a catalog that is Spark's own, or that the session configures."""
    if not re.fullmatch(r"\w+", name) or name.lower() in _TAKEN:
        raise InvalidInput(f"{name!r} cannot be the name of a catalog; choose a word of your own, as 'lake'")
    if spark.conf.get(f"spark.sql.catalog.{name}", None) is not None:
        raise InvalidInput(f"the session configures another catalog as {name}, by spark.sql.catalog.{name}")


def install_catalog(spark: SparkSession, name: str, catalog: Catalog, options: Mapping[str, str]) -> None:
    """Have the session's SQL know ``catalog`` as ``name``, in place of one that was installed so before.

    options: those of ``format("lancekeep")`` that open the catalog.
    """
    jvm = Jvm(spark)
    installed = SqlCatalog(jvm, name, catalog, Streams(jvm, options))
    manager = spark._jsparkSession.sessionState().catalogManager()
    catalogs = manager.getClass().getDeclaredField("catalogs")  # what the configuration names has to be in a jar
    catalogs.setAccessible(True)
    catalogs.get(manager).put(name, installed)
