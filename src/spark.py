"""Spark: a catalog under a name of its own in SQL.

>>> import lancekeep.spark
>>> catalog = lancekeep.spark.install(spark, "lake", root="s3://bucket/lake")  # doctest: +SKIP
>>> spark.sql("SELECT count(*) FROM lake.travel.flights").show()  # doctest: +SKIP
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING

import attrs
import pyspark

from lancekeep.application.catalog import Catalog
from lancekeep.composition import open_catalog
from lancekeep.config import ConnectionConfig, given
from pyspark_lancekeep import DefaultSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["NoSqlCatalogWarning", "install"]


SPARK = "4.3"
"""The version of Spark whose interfaces the SQL catalog implements."""


class NoSqlCatalogWarning(UserWarning):
    """The session can have no catalog of SQL; the data source is there instead."""


def install(
    spark: SparkSession,
    name: str,
    root: str | None = None,
    *,
    mode: str | None = None,
    commit_store: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    commit_store_options: Mapping[str, str] | None = None,
    committer: str | None = None,
    inline_optimization: bool | None = None,
    unsafe: bool | None = None,
) -> Catalog:
    """Have the session's SQL know the catalog below ``root`` as ``name``, and ``format("lancekeep")``; the catalog.

    The arguments behind ``name`` are those of `lancekeep.connect`, and so are the errors. Commits are made by this
    catalog, in this process; tasks get no catalog. Installed again, a name stands for the new catalog. Other sessions,
    those of ``spark.newSession()`` too, need an install of their own.

    Needs Spark 4.3 and a session of this process. Elsewhere (Spark Connect, other versions) a `NoSqlCatalogWarning`
    says why there is no SQL catalog, and what to use: the data source is registered all the same.

    Raises `InvalidInput` also where the name is Spark's own, or one that the session configures.
    """
    reason = _why_not(spark)
    if reason is None:
        _sql().check_name(spark, name)
    config = ConnectionConfig.resolve(
        given(
            root=root,
            mode=mode,
            commit_store=commit_store,
            storage_options=storage_options,
            commit_store_options=commit_store_options,
            committer=committer,
            inline_optimization=inline_optimization,
            unsafe=unsafe,
        )
    )
    catalog = open_catalog(config)
    spark.dataSource.register(DefaultSource)
    if reason is not None:
        warnings.warn(
            f"no SQL catalog {name!r}: {reason}. Use spark.read.format('lancekeep').option('root', {config.root!r})"
            ".load('namespace.table') and df.write likewise; createOrReplaceTempView names in SQL what was read.",
            NoSqlCatalogWarning,
            stacklevel=2,
        )
        return catalog
    options = attrs.evolve(config, root=catalog.root_uri).as_properties()
    _sql().install_catalog(spark, name, catalog, options)
    return catalog


def _why_not(spark: SparkSession) -> str | None:
    """Why this session can have no SQL catalog; None where it can."""
    if not hasattr(spark, "_jsparkSession"):
        return "this is a session of Spark Connect, whose driver is another process"
    version = pyspark.__version__
    if not version.startswith(f"{SPARK}."):
        return f"this is Spark {version}, and the catalog is made for the interfaces of Spark {SPARK}"
    return None


def _sql() -> ModuleType:
    """Loaded where it can be used: a client of Spark Connect may have no py4j."""
    from lancekeep.entrypoints.spark.sql import install

    return install
