"""Spark looks for modules whose names begin with ``pyspark_``, and registers their ``DefaultSource`` by itself.

So ``spark.read.format("lancekeep")`` works wherever the wheel is installed. The module is a package of its own beside
``lancekeep``, since Spark finds top-level modules only; it joins the data source to ``lancekeep.connect``.
"""

from __future__ import annotations

from typing import Any

from lancekeep.application.catalog import Catalog
from lancekeep.entrypoints.spark.daemon import freeze_imports
from lancekeep.entrypoints.spark.source import LancekeepSource

__all__ = ["DefaultSource"]


def connect(root: str, **arguments: Any) -> Catalog:
    """``lancekeep.connect``, loaded when it is called: tasks never do, and start faster."""
    import lancekeep

    catalog = lancekeep.connect(root, **arguments)
    freeze_imports()
    return catalog


class DefaultSource(LancekeepSource):
    """``format("lancekeep")``; to be registered by hand where Spark does not find it (an editable install)."""

    connect = staticmethod(connect)
