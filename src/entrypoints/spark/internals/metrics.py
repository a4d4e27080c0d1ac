"""Make the metrics that Spark's UI shows.

Spark's listener makes a metric again, by the name of its class, to add up the numbers of tasks. So the classes are
added to the loader of the driver's classes. A history server lacks them, and shows ``N/A``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from lancekeep.entrypoints.spark.internals import classes
from lancekeep.entrypoints.spark.internals.compiler import loaded
from lancekeep.entrypoints.spark.internals.driver import Driver, GatewayError, JavaErrors

_SOURCE = """
package @PACKAGE@;

import java.text.NumberFormat;
import java.util.Locale;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.util.Utils;

/** A metric, or its value. */
public class Count implements CustomMetric, CustomTaskMetric {
    private final String name;
    private final String description;
    private final long value;

    public Count() { this("", "", 0L); }

    Count(String name, String description, long value) {
        this.name = name;
        this.description = description;
        this.value = value;
    }

    public String name() { return name; }
    public String description() { return description; }
    public long value() { return value; }

    public String aggregateTaskMetrics(long[] values) {
        long sum = 0L;
        for (int at = 0; at < values.length; at++) sum += values[at];
        return written(sum);
    }

    protected String written(long sum) { return NumberFormat.getIntegerInstance(Locale.ROOT).format(sum); }

    /** Return the metrics of lines ``name=description``. */
    public static CustomMetric[] metrics(String given) {
        String[] lines = given.split("\\n");
        CustomMetric[] made = new CustomMetric[lines.length];
        for (int at = 0; at < made.length; at++) {
            String[] pair = lines[at].split("=");
            made[at] = pair[1].startsWith("bytes ") ? new Bytes(pair[0], pair[1]) : new Count(pair[0], pair[1], 0L);
        }
        return made;
    }

    /** Return the values of ``name=value name=value``. */
    public static CustomTaskMetric[] values(String given) {
        String[] pairs = given.split(" ");
        CustomTaskMetric[] made = new CustomTaskMetric[pairs.length];
        for (int at = 0; at < made.length; at++) {
            String[] pair = pairs[at].split("=");
            made[at] = new Count(pair[0], "", Long.parseLong(pair[1]));
        }
        return made;
    }
}

public class Bytes extends Count {
    public Bytes() { this("", ""); }
    Bytes(String name, String description) { super(name, description, 0L); }
    protected String written(long sum) { return Utils.bytesToString(sum); }
}
"""

_PACKAGE = f"lancekeep.metrics{blake2b(_SOURCE.encode(), digest_size=8).hexdigest()}"
"""The package names the source: a driver may load the classes of two releases."""
_CLASS = f"{_PACKAGE}.Count"


_log = logging.getLogger(__name__)


def custom_metrics(driver: Driver, descriptions: Mapping[str, str]) -> Any:
    """Return a ``CustomMetric[]`` of sums over tasks.

    It is empty if this Spark cannot have them.

    Args:
        driver: The driver.
        descriptions: What Spark's UI calls each metric. A sum of bytes begins with that word.
    """
    kind = _class(driver)
    if kind is None or not descriptions:
        return driver.array(classes.METRIC + "CustomMetric", [])
    return kind.metrics("\n".join(f"{name}={text}" for name, text in descriptions.items()))


def driver_metrics(driver: Driver, numbers: Mapping[str, int]) -> Any:
    """Return a ``CustomTaskMetric[]`` of numbers that the driver knows."""
    kind = _class(driver)
    if kind is None or not numbers:
        return driver.array(classes.METRIC + "CustomTaskMetric", [])
    return kind.values(" ".join(f"{name}={number}" for name, number in numbers.items()))


def _class(driver: Driver) -> Any:
    """Return the class of metrics; None if the driver cannot load it."""
    try:
        loaded(driver.java, _CLASS, lambda: _SOURCE.replace("@PACKAGE@", _PACKAGE))
        return driver.java(_CLASS)
    except (GatewayError, *JavaErrors) as error:
        _log.warning("Spark's UI shows no metrics of scans: %s", error)
        return None
