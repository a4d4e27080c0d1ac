"""Spark looks for modules whose names begin with ``pyspark_``, and registers their ``DefaultSource`` by itself.

So ``spark.read.format("lancekeep")`` works wherever the wheel is installed. The module is a package of its own beside
``lancekeep``, since Spark finds top-level modules only; it joins the data source to ``lancekeep.connect``.
"""

from __future__ import annotations

from collections.abc import Mapping

from lancekeep.application.catalog import Catalog
from lancekeep.entrypoints.spark.daemon import freeze_imports
from lancekeep.entrypoints.spark.source import LancekeepSource

__all__ = ["DefaultSource"]


def connect(*, properties: Mapping[str, str]) -> Catalog:
    """Call ``lancekeep.connect``; the import waits for the call, so tasks that never connect start faster."""
    import lancekeep

    catalog = lancekeep.connect(properties=properties)
    freeze_imports()
    return catalog


class DefaultSource(LancekeepSource):
    """``format("lancekeep")``; to be registered by hand where Spark does not find it (an editable install)."""

    connect = staticmethod(connect)
