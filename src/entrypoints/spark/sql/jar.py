"""Write the jar that gives a catalog to drivers without Python.

Those are ``spark-sql``, Connect servers, Thrift servers and Scala programs. Spark creates a catalog from the class that
``spark.sql.catalog.<name>`` names. The jar holds such a class. It starts one Python process for the driver's JVM
(`driver_process`), and delegates every call to a `SqlCatalog` there.

The class is compiled on the machine that runs Spark, by Spark's own compiler against Spark's own interfaces. So it
needs no JDK, and fits the installed version.
"""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

from pyspark.java_gateway import launch_gateway

from lancekeep.domain.errors import InvalidInput, Unsupported
from lancekeep.entrypoints.spark.sql.catalog import SqlCatalog
from lancekeep.entrypoints.spark.sql.delegates import compiled, delegating_methods
from lancekeep.entrypoints.spark.versions import why_no_catalog

PACKAGE = "lancekeep"
CLASS = f"{PACKAGE}.SparkCatalog"
"""The value of ``spark.sql.catalog.<name>``."""

MODULE = "pyspark_lancekeep"
"""The module that the class runs; it has the catalogs."""
PATIENCE = 120
"""Seconds in which the process must answer."""

_SOURCE = """
package {package};

import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A catalog that a Python process beside this driver implements. */
public class SparkCatalog implements {interfaces} {{
    private SparkSession session;
    private String name;
    private java.util.Map options;
    private DriverProcess driverProcess;
    private Object catalog;

    public void initialize(String name, CaseInsensitiveStringMap options) {{
        this.session = (SparkSession) SparkSession.active();
        this.name = name;
        this.options = new java.util.HashMap(options.asCaseSensitiveMap());
        there();
    }}

    /** Return the catalog in the living Python process; another one takes the place of one that has died. */
    private synchronized Object there() {{
        String python = (String) options.get("python");
        if (python == null) python = session.conf().get("spark.pyspark.driver.python", null);
        if (python == null) python = session.conf().get("spark.pyspark.python", null);
        if (python == null) python = System.getenv("PYSPARK_PYTHON");
        DriverProcess living = DriverProcess.of(python == null ? "python3" : python, session);
        if (living != driverProcess) {{
            catalog = living.open(session, name, options);
            driverProcess = living;
        }}
        return catalog;
    }}

{methods}

    /** The Python process of this JVM; it ends with the JVM, whose end closes its input. */
    public static class DriverProcess {{
        private static final java.util.Map RUNNING = new java.util.HashMap();
        private final Process process;
        private final java.util.function.Function door;

        static DriverProcess of(String python, SparkSession session) {{
            synchronized (RUNNING) {{
                DriverProcess found = (DriverProcess) RUNNING.get(python);
                if (found == null || !found.process.isAlive()) {{
                    found = new DriverProcess(python, session);
                    RUNNING.put(python, found);
                }}
                return found;
            }}
        }}

        private DriverProcess(String python, SparkSession session) {{
            String token = java.util.UUID.randomUUID().toString();
            try {{
                org.apache.spark.api.python.Py4JServer server =
                    new org.apache.spark.api.python.Py4JServer(session.sparkContext().conf());
                server.start();
                ProcessBuilder builder = new ProcessBuilder(new String[] {{python, "-m", "{module}", token}});
                builder.environment().put("PYSPARK_GATEWAY_PORT", String.valueOf(server.getListeningPort()));
                builder.environment().put("PYSPARK_GATEWAY_SECRET", server.secret());
                builder.environment().put("PYSPARK_PIN_THREAD", "true");
                builder.environment().put("PYSPARK_PYTHON", python);
                builder.redirectOutput(ProcessBuilder.Redirect.DISCARD);
                builder.redirectError(ProcessBuilder.Redirect.INHERIT);
                process = builder.start();
                final Process started = process;
                Runtime.getRuntime().addShutdownHook(new Thread() {{
                    public void run() {{ started.destroyForcibly(); }}
                }});
                Object answer = null;  // among the system's properties, which need no class loader
                for (int tenths = 0; answer == null && process.isAlive() && tenths < {patience}; tenths++) {{
                    Thread.sleep(100);
                    answer = System.getProperties().remove(token);
                }}
                if (answer == null) {{
                    process.destroyForcibly();
                    throw new IllegalStateException("the process " + python + " -m {module} did not answer; the log of"
                        + " this driver has its errors. Is lancekeep[spark] installed for that interpreter? The option"
                        + " python of the catalog names another one.");
                }}
                door = (java.util.function.Function) answer;
            }} catch (java.io.IOException error) {{
                throw new IllegalStateException("cannot start " + python + ": " + error.getMessage());
            }} catch (InterruptedException error) {{
                throw new IllegalStateException("interrupted while the catalog was opened");
            }}
        }}

        Object open(SparkSession session, String name, java.util.Map options) {{
            return door.apply(new Object[] {{session, name, options}});
        }}
    }}
}}
"""


def write_jar(path: Path) -> None:
    """Compile the class with the installed Spark, and write the jar.

    It replaces an existing file.

    Args:
        path: The jar, whose folder exists.

    Raises:
        InvalidInput: The path does not end in ``.jar``, or its folder does not exist.
        Unsupported: The installed Spark is not of version 4.3.
    """
    if path.suffix != ".jar" or not path.parent.is_dir():
        raise InvalidInput(f"{path} cannot be the jar: name a file that ends in .jar in an existing folder")
    reason = why_no_catalog()
    if reason:
        raise Unsupported(reason)
    classes = _compiled()
    with ZipFile(path, "w", ZIP_DEFLATED) as jar:
        jar.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\n")
        for name in sorted(classes):
            jar.writestr(f"{name.replace('.', '/')}.class", classes[name])


def _compiled() -> dict[str, bytes]:
    gateway: Any = launch_gateway(popen_kwargs={"stderr": subprocess.DEVNULL})  # type: ignore[no-untyped-call]
    try:
        java = cache(lambda name: getattr(gateway.jvm, name))
        interfaces = SqlCatalog.Java.implements
        methods = delegating_methods(java, interfaces, "there()")
        source = _SOURCE.format(
            package=PACKAGE, interfaces=", ".join(interfaces), methods=methods, module=MODULE, patience=10 * PATIENCE
        )
        return compiled(java, source)
    finally:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()
