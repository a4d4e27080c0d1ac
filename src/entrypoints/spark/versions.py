"""The differences between the releases of PySpark.

The data source works with 4.0 and later, the SQL catalog with 4.3. This module supplies the classes that earlier
releases lack.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyspark
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter

__all__ = [
    "LIMITS_BATCHES",
    "PUSHES_FILTERS",
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "SupportsTriggerAvailableNow",
    "why_no_catalog",
    "with_offsets",
]

INTERFACES = "4.3"
"""The version of Spark whose interfaces the SQL catalog implements."""

_RELEASE = tuple(map(int, pyspark.__version__.split(".")[:2]))
PUSHES_FILTERS = _RELEASE >= (4, 1)
"""Whether Spark offers filters to readers."""
LIMITS_BATCHES = _RELEASE >= (4, 2)
"""Whether Spark tells a stream where its batch starts and how much it may read."""

if TYPE_CHECKING or _RELEASE >= (4, 1):
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:

    class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
        """A stream writer that receives Arrow batches.

        PySpark 4.0 passes them to every subclass of the second base.
        """


if TYPE_CHECKING or LIMITS_BATCHES:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
else:

    class ReadLimit:
        """The base of read limits, which Spark never passes."""

    class ReadAllAvailable(ReadLimit):
        """The default limit."""

    class SupportsTriggerAvailableNow:
        """The mark of a reader that knows where ``availableNow`` ends."""


def with_offsets(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch whose nested arrays have offsets even if they are empty.

    Spark before 4.2 sends none for them, and Lance would read beyond their memory.
    """
    if LIMITS_BATCHES or not any(map(pa.types.is_nested, batch.schema.types)):
        return batch
    return batch.take(pa.array(range(batch.num_rows)))


def why_no_catalog() -> str | None:
    """Return why the installed Spark cannot have the SQL catalog; None if it can."""
    if pyspark.__version__.startswith(f"{INTERFACES}."):
        return None
    return f"this is Spark {pyspark.__version__}, and the catalog is made for the interfaces of Spark {INTERFACES}"
