"""Implement the catalogs that a Spark driver's configuration names.

``lancekeep.SparkCatalog`` (`jar`) starts this Python process beside the driver, and asks it for the catalog of each
session. Sessions whose catalogs have the same options share one; several roots share the process. It ends with the
driver.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from pyspark.sql import SparkSession

from lancekeep.application.catalog import Catalog
from lancekeep.entrypoints.spark.internals.driver import driver_of_environment, session_of
from lancekeep.entrypoints.spark.sql.catalog import SqlCatalog
from lancekeep.entrypoints.spark.sql.install import implement
from lancekeep.entrypoints.spark.sql.jvm import Jvm, Proxy

INTERPRETER = "python"
"""The option of a catalog that names the interpreter of this process; the connection has no such option."""

Opened = tuple[Catalog, Mapping[str, str], Callable[[], Catalog]]
"""A catalog, the options of ``format("lancekeep")`` that open it, and what opens it in another process."""

Open = Callable[[Mapping[str, str]], Opened]
"""Opens a catalog from the options of a configuration."""


def serve_driver(token: str, open_catalog: Open, register: Callable[[SparkSession], None]) -> None:
    """Serve the driver that started this process until it ends.

    Args:
        token: What the driver calls this process.
        open_catalog: As of `Open`.
        register: Registers the data source in a session.
    """
    threading.Thread(target=_end_with_driver, daemon=True).start()
    spark = driver_of_environment()
    jvm = Jvm(spark)
    jvm.java("java.lang.System").getProperties().put(token, Door(jvm, open_catalog, register))
    threading.Event().wait()


class Door(Proxy):
    """Opens the catalogs of the driver's sessions."""

    class Java:
        implements = ("java.util.function.Function",)

    _declared: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, jvm: Jvm, open_catalog: Open, register: Callable[[SparkSession], None]) -> None:
        self._jvm = jvm
        self._open = open_catalog
        self._register = register
        self._opened: dict[tuple[tuple[str, str], ...], Opened] = {}
        self._lock = threading.Lock()

    def apply(self, request: Any) -> SqlCatalog:
        """Return the catalog of a session: ``{session, name, options}``."""
        session, name, given = request
        options = {key: value for key, value in dict(given).items() if key != INTERPRETER}
        with self._lock:
            key = tuple(sorted(options.items()))
            if key not in self._opened:
                self._opened[key] = self._open(options)
            opened = self._opened[key]
        spark = session_of(self._jvm, session)
        self._register(spark)
        return implement(Jvm(spark), name, *opened)


def _end_with_driver() -> None:
    while os.read(sys.stdin.fileno(), 1):  # the driver writes nothing; its end closes the pipe
        pass
    os._exit(0)
