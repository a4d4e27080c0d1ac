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
        String origin = "spark.sql.catalog." + name + ".python";
        String python = (String) options.get("python");
        String[] settings = {{"spark.pyspark.driver.python", "spark.pyspark.python"}};
        for (int position = 0; python == null && position < settings.length; position++) {{
            origin = settings[position];
            python = session.conf().get(origin, null);
        }}
        if (python == null) {{
            origin = "PYSPARK_PYTHON";
            python = System.getenv(origin);
        }}
        if (python == null) {{
            origin = "the default";
            python = "python3";
        }}
        DriverProcess living = DriverProcess.of(python, session, name, origin);
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

        static DriverProcess of(String python, SparkSession session, String name, String origin) {{
            synchronized (RUNNING) {{
                DriverProcess found = (DriverProcess) RUNNING.get(python);
                if (found == null || !found.process.isAlive()) {{
                    found = new DriverProcess(python, session, name, origin);
                    RUNNING.put(python, found);
                }}
                return found;
            }}
        }}

        private DriverProcess(String python, SparkSession session, String name, String origin) {{
            String token = java.util.UUID.randomUUID().toString();
            String command = python + " -m {module}";
            String cure = " (" + origin + " names this interpreter). Set spark.sql.catalog." + name
                + ".python to an interpreter of the driver that has lancekeep[spark].";
            org.apache.spark.api.python.Py4JServer server =
                new org.apache.spark.api.python.Py4JServer(session.sparkContext().conf());
            server.start();
            Process begun = null;
            Object answer = null;  // among the system's properties, which need no class loader
            try {{
                ProcessBuilder builder = new ProcessBuilder(new String[] {{python, "-m", "{module}", token}});
                builder.environment().put("PYSPARK_GATEWAY_PORT", String.valueOf(server.getListeningPort()));
                builder.environment().put("PYSPARK_GATEWAY_SECRET", server.secret());
                builder.environment().put("PYSPARK_PIN_THREAD", "true");
                builder.environment().put("PYSPARK_PYTHON", python);
                builder.redirectOutput(ProcessBuilder.Redirect.DISCARD);
                builder.redirectError(ProcessBuilder.Redirect.INHERIT);
                final Process started = builder.start();
                begun = started;
                Runtime.getRuntime().addShutdownHook(new Thread() {{
                    public void run() {{ started.destroyForcibly(); }}
                }});
                long used = 0;
                int idle = 0;
                for (int tenths = 0; tenths < {patience} && idle < {silence}; tenths++) {{
                    if (answer != null || !started.isAlive()) break;
                    Thread.sleep(100);
                    answer = System.getProperties().remove(token);
                    long before = used;
                    used = processorTime(started);
                    idle = used == before ? idle + 1 : 0;
                }}
                if (answer == null && started.isAlive())
                    throw new IllegalStateException("the process " + command + " does not answer, and was ended" + cure
                        + " Run this command to see where it waits.");
                if (answer == null)
                    throw new IllegalStateException("the process " + command + " ended with the code "
                        + started.waitFor() + "; the log of this driver has its errors" + cure);
            }} catch (java.io.IOException error) {{
                throw new IllegalStateException("cannot start " + command + ": " + error.getMessage() + cure);
            }} catch (InterruptedException error) {{
                throw new IllegalStateException("interrupted while the catalog was opened");
            }} finally {{
                if (answer == null) {{
                    if (begun != null) begun.destroyForcibly();
                    server.shutdown();
                }}
            }}
            process = begun;
            door = (java.util.function.Function) answer;
        }}

        /** Return the milliseconds of processor time that a process has used, as far as the system says it. */
        private static long processorTime(Process process) {{
            Object used = process.toHandle().info().totalCpuDuration().orElse(null);
            return used == null ? 0 : ((java.time.Duration) used).toMillis();
        }}

        Object open(SparkSession session, String name, java.util.Map options) {{
            return door.apply(new Object[] {{session, name, options}});
        }}
    }}
}}
"""


def catalog_class(
    package: str, interfaces: Iterable[str], methods: str, *, module: str, silence: int, patience: int
) -> str:
    """Return the Java source of the class.

    Args:
        package: The package of the class.
        interfaces: The interfaces that it implements.
        methods: The source of their methods, which call the methods of ``there()``.
        module: The Python module that implements the catalogs.
        silence: Seconds without processor time after which the starting process counts as stuck.
        patience: Seconds in which the process must answer in any case.
    """
    return _SOURCE.format(
        package=package,
        interfaces=", ".join(interfaces),
        methods=methods,
        module=module,
        silence=10 * silence,
        patience=10 * patience,
    )
