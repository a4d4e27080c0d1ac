"""Let clones of a session find the catalogs that were installed in it.

A streaming query runs in a clone of its session, and ``foreachBatch`` receives that clone. A clone copies the
configuration, but not the catalogs, and creates each catalog from the class that the configuration names. So a Java
class is generated, compiled with Spark's own compiler, and added to the driver's class loader. It delegates every call
to the catalog that was installed in the original session.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from lancekeep.entrypoints.spark.sql.delegates import compiled, delegating_methods
from lancekeep.entrypoints.spark.sql.jvm import Jvm

CLASS = "LancekeepInstalledCatalog"
"""The name of the generated class, as ``spark.sql.catalog.<name>`` shows it."""

_SOURCE = """
public class {name} implements {interfaces} {{
    public static final java.util.Map INSTALLED = new java.util.concurrent.ConcurrentHashMap();
    private Object installed;

    public void initialize(String name, org.apache.spark.sql.util.CaseInsensitiveStringMap options) {{
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
    key = f"{jvm.spark._jsparkSession.sessionUUID()}.{name}"
    reference = jvm.java("java.lang.ref.WeakReference")(catalog)
    _delegate(jvm, interfaces).getField("INSTALLED").get(None).put(key, reference)
    jvm.spark.conf.set(f"spark.sql.catalog.{name}", CLASS)
    jvm.spark.conf.set(f"spark.sql.catalog.{name}.{_KEY}", key)


def _delegate(jvm: Jvm, interfaces: tuple[str, ...]) -> Any:
    """Return the generated class; compile it on first use in this JVM."""
    loader = jvm.java("java.lang.Thread").currentThread().getContextClassLoader()
    if jvm.java("org.apache.spark.util.Utils").classIsLoadable(CLASS):
        return loader.loadClass(CLASS)
    methods = delegating_methods(jvm.java, interfaces, "installed")
    source = _SOURCE.format(name=CLASS, interfaces=", ".join(interfaces), key=_KEY, methods=methods)
    with tempfile.TemporaryDirectory() as directory:
        for name, code in compiled(jvm.java, source).items():
            Path(directory, f"{name}.class").write_bytes(code)
        loader.addURL(jvm.java("java.io.File")(directory).toURI().toURL())
        return loader.loadClass(CLASS)  # once loaded, the class needs no file
