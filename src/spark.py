"""Lancekeep catalogs in Spark SQL, and DataFrames as tables.

>>> import lancekeep.spark
>>> catalog = lancekeep.spark.install(spark, "lake", root="s3://bucket/lake")  # doctest: +SKIP
>>> spark.sql("SELECT count(*) FROM lake.travel.flights").show()  # doctest: +SKIP
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import attrs

from lancekeep.application.catalog import Catalog
from lancekeep.composition import open_catalog
from lancekeep.config import ConnectionConfig, given, located
from lancekeep.entrypoints.spark.ingest import ingest
from lancekeep.entrypoints.spark.internals.sessions import active, is_classic
from lancekeep.entrypoints.spark.partitions import read_partitioned, write_partitioned
from lancekeep.entrypoints.spark.versions import why_no_catalog
from pyspark_lancekeep import DefaultSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["NoSqlCatalogWarning", "ingest", "install", "read_partitioned", "write_partitioned"]


class NoSqlCatalogWarning(UserWarning):
    """The session cannot have a SQL catalog; it has the data source instead."""


def install(
    spark: SparkSession,
    name: str,
    root: str | None = None,
    *,
    mode: str | None = None,
    commit_store: str | None = None,
    manifest_store: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    commit_store_options: Mapping[str, str] | None = None,
    manifest_store_options: Mapping[str, str] | None = None,
    committer: str | None = None,
    inline_optimization: bool | None = None,
    unsafe: bool | None = None,
    impl: str | None = None,
    uri: str | None = None,
) -> Catalog:
    """Install a catalog in a Spark session, with the data source ``lancekeep``.

    This process commits through the returned catalog; tasks have no catalog. If the name is already installed, it
    refers to the new catalog from now on. Every other session needs its own call, also one of ``spark.newSession()``.

    The SQL catalog needs Spark 4.3 and a session of this process. In Spark Connect and with other versions, a
    `NoSqlCatalogWarning` gives the reason and the alternative. The data source is registered in any case. A Connect
    server gets the catalog by configuration: see ``lancekeep spark-jar``.

    Args:
        spark: The session.
        name: The name of the catalog in SQL.
        root: As of `lancekeep.connect`, like the arguments below.
        mode: As of `lancekeep.connect`.
        commit_store: As of `lancekeep.connect`.
        manifest_store: As of `lancekeep.connect`.
        storage_options: As of `lancekeep.connect`.
        commit_store_options: As of `lancekeep.connect`.
        manifest_store_options: As of `lancekeep.connect`.
        committer: As of `lancekeep.connect`.
        inline_optimization: As of `lancekeep.connect`.
        unsafe: As of `lancekeep.connect`.
        impl: As of `lancekeep.connect`.
        uri: As of `lancekeep.connect`.

    Returns:
        The catalog below ``root``.

    Raises:
        InvalidInput: The name is Spark's own, or the session configures it. Otherwise as `lancekeep.connect`, which
            also gives the other errors.
    """
    reason = _why_not(spark)
    if reason is None:
        _sql().check_name(spark, name)
    root, manifest_store, impl = located(root, manifest_store, impl, uri)
    config = ConnectionConfig.resolve(
        given(
            root=root,
            impl=impl,
            mode=mode,
            commit_store=commit_store,
            manifest_store=manifest_store,
            storage_options=storage_options,
            commit_store_options=commit_store_options,
            manifest_store_options=manifest_store_options,
            committer=committer,
            inline_optimization=inline_optimization,
            unsafe=unsafe,
        )
    )
    catalog = open_catalog(config)
    _register_data_source(spark)
    if reason is not None:
        warnings.warn(
            f"no SQL catalog {name!r}: {reason}. Use spark.read.format('lancekeep').option('root', {config.root!r})"
            ".load('namespace.table') and df.write likewise; createOrReplaceTempView names in SQL what was read.",
            NoSqlCatalogWarning,
            stacklevel=2,
        )
        return catalog
    _sql().install_catalog(spark, name, catalog, *_for_processes(config, catalog))
    return catalog


def serve_driver(token: str) -> None:
    """Be the Python process that the jar starts beside a driver."""
    from lancekeep.entrypoints.spark.sql.driver_process import Opened, serve_driver

    def opened(properties: Mapping[str, str]) -> Opened:
        config = ConnectionConfig.resolve(properties)
        catalog = open_catalog(config)
        return (catalog, *_for_processes(config, catalog))

    serve_driver(token, opened, _register_data_source)


def write_jar(path: Path) -> str:
    """Write the jar for drivers without Python.

    Returns:
        The class that their configuration names.
    """
    from lancekeep.entrypoints.spark.sql import jar

    jar.write_jar(path)
    return jar.CLASS


def _for_processes(config: ConnectionConfig, catalog: Catalog) -> tuple[Mapping[str, str], Callable[[], Catalog]]:
    """Return the options of ``format("lancekeep")`` that open a catalog, and what opens it in another process."""
    options = attrs.evolve(config, root=catalog.root_uri).as_properties()
    return options, partial(DefaultSource.connect, properties=options)


def _register_data_source(spark: SparkSession) -> None:
    """Register ``format("lancekeep")``.

    Spark checks the name in the *active* session, and refuses to register a data source that only that session has. So
    a classic session is active during the registration.
    """
    if not is_classic(spark):
        spark.dataSource.register(DefaultSource)
        return
    with active(spark):
        spark.dataSource.register(DefaultSource)


def _why_not(spark: SparkSession) -> str | None:
    """Return why this session cannot have a SQL catalog; None if it can."""
    if not is_classic(spark):
        return "this is a session of Spark Connect, whose driver is another process"
    return why_no_catalog()


def _sql() -> ModuleType:
    """Import the SQL catalog on use: a client of Spark Connect may have no py4j."""
    from lancekeep.entrypoints.spark.sql import install

    return install
