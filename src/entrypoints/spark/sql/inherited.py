"""Let clones of a session find the catalogs that were installed in it.

A streaming query runs in a clone of its session, and ``foreachBatch`` receives that clone. A clone copies the
configuration, but not the catalogs, and creates each catalog from the class that the configuration names. So a Java
class is generated, compiled with Spark's own compiler, and added to the driver's class loader. It delegates every call
to the catalog that was installed in the original session.
"""

from __future__ import annotations

from typing import Any

from lancekeep.entrypoints.spark.internals.classes import OPTIONS
from lancekeep.entrypoints.spark.internals.compiler import loaded
from lancekeep.entrypoints.spark.internals.sessions import session_id
from lancekeep.entrypoints.spark.sql.delegates import delegating_methods
from lancekeep.entrypoints.spark.sql.jvm import Jvm

CLASS = "LancekeepInstalledCatalog"
"""The name of the generated class, as ``spark.sql.catalog.<name>`` shows it."""

_SOURCE = """
public class {name} implements {interfaces} {{
    public static final java.util.Map INSTALLED = new java.util.concurrent.ConcurrentHashMap();
    private Object installed;

    public void initialize(String name, {options} options) {{
        java.lang.ref.Reference found = (java.lang.ref.Reference) INSTALLED.get(options.get("{key}"));
        installed = found == null ? null : found.get();
        if (installed == null) throw new IllegalStateException(
            "The session in which the catalog " + name + " was installed no longer exists."
            + " Call lancekeep.spark.install for this session.");
    }}
{methods}
}}
"""
_KEY = "installed"


def let_clones_inherit(jvm: Jvm, name: str, catalog: Any, interfaces: tuple[str, ...]) -> None:
    """Configure a session so that its clones have a catalog.

    Args:
        jvm: The session's JVM.
        name: The name of the catalog in SQL.
        catalog: The installed catalog, as an object of the JVM. The reference to it is weak.
        interfaces: The interfaces that the catalog implements.
    """
    key = f"{session_id(jvm.spark)}.{name}"
    reference = jvm.java("java.lang.ref.WeakReference")(catalog)
    _delegate(jvm, interfaces).getField("INSTALLED").get(None).put(key, reference)
    jvm.spark.conf.set(f"spark.sql.catalog.{name}", CLASS)
    jvm.spark.conf.set(f"spark.sql.catalog.{name}.{_KEY}", key)


def _delegate(jvm: Jvm, interfaces: tuple[str, ...]) -> Any:
    """Return the generated class."""

    def write() -> str:
        methods = delegating_methods(jvm.java, interfaces, "installed")
        return _SOURCE.format(name=CLASS, interfaces=", ".join(interfaces), options=OPTIONS, key=_KEY, methods=methods)

    return loaded(jvm.java, CLASS, write)
