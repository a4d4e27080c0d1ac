"""The Spark data source ``lancekeep``, which Spark discovers by itself.

Spark searches for modules whose names begin with ``pyspark_``, and registers their ``DefaultSource``. So
``spark.read.format("lancekeep")`` works wherever the wheel is installed. This is a package of its own, because Spark
finds top-level modules only. It connects the data source to ``lancekeep.connect``.
"""

from __future__ import annotations

from collections.abc import Mapping

from lancekeep.application.catalog import Catalog
from lancekeep.entrypoints.spark.source import LancekeepSource
from lancekeep.entrypoints.spark.worker_gc import freeze_imports

__all__ = ["DefaultSource"]


def connect(*, properties: Mapping[str, str]) -> Catalog:
    """Call ``lancekeep.connect``.

    It is imported on the first call, so that tasks that never connect start faster.
    """
    import lancekeep

    catalog = lancekeep.connect(properties=properties)
    freeze_imports()
    return catalog


class DefaultSource(LancekeepSource):
    """The data source of ``format("lancekeep")``.

    Register it yourself if Spark does not find it, as in an editable install.
    """

    connect = staticmethod(connect)
