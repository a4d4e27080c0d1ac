"""Streams that name a table by SQL: they are streams of ``format("lancekeep")``, with the catalog's options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.identifiers import ObjectId
from lancekeep.entrypoints.spark.sql.jvm import PYTHON, WRITE, Jvm

FORMAT = "lancekeep"
_TIME_TRAVEL = {"versionasof", "timestampasof"}
"""Options that Spark acts on itself, and hands over nevertheless."""


@attrs.frozen
class Streams:
    """What the data source needs to open the catalog in its own processes: ``options``, as it names them."""

    jvm: Jvm
    options: Mapping[str, str] = attrs.field(repr=False)

    def read(self, table: ObjectId, schema: Any, given: Mapping[str, str], checkpoint: str) -> Any:
        """A ``MicroBatchStream``."""
        filters = self.jvm.array("org.apache.spark.sql.sources.Filter", [])
        scan = self.jvm.java(PYTHON + "PythonScan")(self._source(), FORMAT, schema, self._all(table, given), filters)
        return scan.toMicroBatchStream(checkpoint)

    def write(self, table: ObjectId, info: Any, *, replaces: bool) -> Any:
        """A ``StreamingWrite``."""
        nothing = self.jvm.java("java.util.Optional").empty()
        options = self._all(table, given_options(info.options()))
        with_options = self.jvm.java(WRITE + "LogicalWriteInfoImpl")(
            info.queryId(), info.schema(), options, nothing, nothing
        )
        return self.jvm.java(PYTHON + "PythonWrite")(self._source(), FORMAT, with_options, replaces).toStreaming()

    def _source(self) -> Any:
        source = self.jvm.java(PYTHON + "PythonDataSourceV2")()
        source.setShortName(FORMAT)
        return source

    def _all(self, table: ObjectId, given: Mapping[str, str]) -> Any:
        options = self.jvm.map({**self.options, "table": str(table), **given})
        return self.jvm.java("org.apache.spark.sql.util.CaseInsensitiveStringMap")(options)


def given_options(options: Any) -> dict[str, str]:
    """The options of a ``CaseInsensitiveStringMap`` that are not Spark's own."""
    return {key: options.get(key) for key in options.keySet() if key not in _TIME_TRAVEL}


def refuse_options(name: str, given: Mapping[str, str]) -> None:
    """Raises `InvalidInput` where there are any: reading and writing a table by its name takes none."""
    if given:
        raise InvalidInput(
            f"{name}: there is no option {', '.join(sorted(given))}; tables of a SQL catalog take some in streams only"
        )
