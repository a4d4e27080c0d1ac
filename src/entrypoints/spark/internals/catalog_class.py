"""Write the catalog in Java for drivers without Python.

It starts a Python process beside the driver, and delegates every call to that process.
"""

from __future__ import annotations

from collections.abc import Iterable

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

    /** Return the catalog in the living Python process; a new process replaces a process that has died. */
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
                        + " python of the catalog names another interpreter.");
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


def catalog_class(package: str, interfaces: Iterable[str], methods: str, *, module: str, patience: int) -> str:
    """Return the Java source of the class.

    Args:
        package: The package of the class.
        interfaces: The interfaces that it implements.
        methods: The source of their methods, which call the methods of ``there()``.
        module: The Python module that implements the catalogs.
        patience: Seconds in which the process must answer.
    """
    return _SOURCE.format(
        package=package, interfaces=", ".join(interfaces), methods=methods, module=module, patience=10 * patience
    )
