"""Install a catalog in a Spark session."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from pyspark.sql import SparkSession

from lancekeep.application.catalog import Catalog, services_of
from lancekeep.domain.errors import InvalidInput
from lancekeep.entrypoints.spark.internals.sessions import put_catalog, session_id
from lancekeep.entrypoints.spark.internals.strategy import install_strategy
from lancekeep.entrypoints.spark.sql.catalog import SqlCatalog
from lancekeep.entrypoints.spark.sql.changes_function import register_changes
from lancekeep.entrypoints.spark.sql.inherited import CLASS, let_clones_inherit
from lancekeep.entrypoints.spark.sql.jvm import Jvm
from lancekeep.entrypoints.spark.sql.search import register
from lancekeep.entrypoints.spark.sql.streams import Streams

_OPENERS: dict[str, dict[str, Callable[[], Catalog]]] = {}
"""How to open the catalogs of each session, which share their search functions."""

_TAKEN = ("spark_catalog", "system", "session", "global_temp")


def check_name(spark: SparkSession, name: str) -> None:
    """Check that a catalog may have a name.

    Raises:
        InvalidInput: The name is not a word, is reserved by Spark, or is configured in the session.
    """
    if not re.fullmatch(r"\w+", name) or name.lower() in _TAKEN:
        raise InvalidInput(f"{name!r} cannot be the name of a catalog; choose a word of your own, as 'lake'")
    if spark.conf.get(f"spark.sql.catalog.{name}", CLASS) != CLASS:
        raise InvalidInput(f"the session configures another catalog as {name}, by spark.sql.catalog.{name}")


def install_catalog(
    spark: SparkSession,
    name: str,
    catalog: Catalog,
    options: Mapping[str, str],
    opener: Callable[[], Catalog],
) -> None:
    """Register a catalog in a session's SQL, replacing one of the same name.

    Clones of the session, as in ``foreachBatch``, have the catalog too.

    Args:
        spark: The session.
        name: The name in SQL.
        catalog: The catalog.
        options: The options of ``format("lancekeep")`` that open the catalog.
        opener: Opens the catalog in another process.
    """
    jvm = Jvm(spark)
    installed = implement(jvm, name, catalog, options, opener)
    let_clones_inherit(jvm, name, put_catalog(spark, name, installed), SqlCatalog.Java.implements)


def implement(
    jvm: Jvm, name: str, catalog: Catalog, options: Mapping[str, str], opener: Callable[[], Catalog]
) -> SqlCatalog:
    """Return a catalog as Spark calls it.

    Its session also gets the planner strategy and the table functions.

    Args:
        jvm: The session's JVM; the other arguments are as in `install_catalog`.
        name: The name in SQL.
        catalog: The catalog.
        options: The options of ``format("lancekeep")`` that open the catalog.
        opener: Opens the catalog in another process.
    """
    install_strategy(jvm)
    openers = _OPENERS.setdefault(session_id(jvm.spark), {})
    openers[name] = opener
    register(jvm.spark, dict(openers), services_of(catalog).engine.rows)
    register_changes(jvm.spark, dict(openers))
    return SqlCatalog(jvm, name, catalog, Streams(jvm, options))
