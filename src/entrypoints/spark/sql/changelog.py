"""Implement ``SELECT … FROM lake.t CHANGES FROM VERSION …``."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from lancekeep.application.catalog import Catalog
from lancekeep.domain.errors import InvalidInput, Unsupported, VersionNotFound
from lancekeep.domain.identifiers import ObjectId
from lancekeep.entrypoints.spark.changes import CHANGE_COLUMNS, Step, steps
from lancekeep.entrypoints.spark.internals.classes import CATALOG, EXPRESSIONS, READ
from lancekeep.entrypoints.spark.internals.schemas import arrow_of, spark_of
from lancekeep.entrypoints.spark.sql.columns import spark_schema
from lancekeep.entrypoints.spark.sql.form import Form
from lancekeep.entrypoints.spark.sql.jvm import Jvm, Proxy, struct
from lancekeep.entrypoints.spark.sql.pushdown import DriverScan
from lancekeep.entrypoints.spark.sql.streams import given_options, refuse_options
from lancekeep.entrypoints.spark.sql.workers import partitions, reader_factory

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Changelog(Proxy):
    """The changes of a table in a range of versions."""

    class Java:
        implements = (CATALOG + "Changelog",)

    def __init__(self, jvm: Jvm, name: str, catalog: Catalog, table: ObjectId, context: Any) -> None:
        if context.deduplicationMode().toString() == "NET_CHANGES":
            raise Unsupported(f"{name}: net changes are not supported; read the changes of each version")
        self._jvm = jvm
        self._name = name
        self._catalog = catalog
        self._table = table
        self._versions = _versions(catalog, name, table, context.range())
        last = catalog.open(table, self._versions[-1] if self._versions else None)
        columns = StructType([*spark_schema(last.schema), *spark_of(CHANGE_COLUMNS)])
        self._arrow = arrow_of(columns)
        self._schema = jvm.struct(columns)

    def name(self) -> str:
        return self._name

    def columns(self) -> Any:
        return self._jvm.columns(self._schema)

    def containsCarryoverRows(self) -> bool:
        return False

    def containsIntermediateChanges(self) -> bool:
        return False  # otherwise Spark requires a row id, which only net changes need

    def representsUpdateAsDeleteAndInsert(self) -> bool:
        return False

    def rowId(self) -> Any:
        return self._jvm.array(EXPRESSIONS + "NamedReference", [])

    def rowVersion(self) -> None:
        return None

    def newScanBuilder(self, options: Any) -> Any:
        refuse_options(self._name, given_options(options))
        return _Builder(self._jvm, ChangeScan(self._jvm, self._name, self._schema, self._steps()))

    def _steps(self) -> list[Step]:
        def open_version(version: int) -> Any:
            return self._catalog.open(self._table, version)

        return list(steps(self._catalog, self._name, open_version, self._versions, self._arrow))


class _Builder(Proxy):
    class Java:
        implements = (READ + "ScanBuilder",)

    def __init__(self, jvm: Jvm, scan: ChangeScan) -> None:
        self._jvm = jvm
        self._scan = scan

    def build(self) -> ChangeScan:
        return self._scan


class ChangeScan(DriverScan):
    """A scan of changes, with one task for each version."""

    class Java:
        implements = (READ + "Scan", READ + "Batch")

    def __init__(self, jvm: Jvm, name: str, schema: Any, found: list[Step]) -> None:
        super().__init__(jvm, schema, Form(jvm, struct(schema)))
        self._name = name
        self._steps = found

    def description(self) -> str:
        return f"changes of {self._name} in versions {', '.join(str(step.version) for step in self._steps)}"

    def toBatch(self) -> ChangeScan:
        return self

    def toMicroBatchStream(self, checkpoint: str) -> Any:
        raise Unsupported(f"{self._name}: a stream cannot read changes; read a range of versions as a batch")

    def planInputPartitions(self) -> Any:
        return partitions(self._jvm, self._steps)

    def createReaderFactory(self) -> Any:
        return reader_factory(self._jvm, _read, self._schema, columnar=self._is_columnar)


def _read(step: Step) -> Iterator[pa.RecordBatch]:
    return step.read()


def _versions(catalog: Catalog, name: str, table: ObjectId, given: Any) -> list[int]:
    """Return the versions of a ``ChangelogRange``.

    Raises:
        InvalidInput: A bound is no version of the table.
    """
    kind = given.getClass().getSimpleName()
    if kind == "UnboundedRange":
        raise InvalidInput(f"{name}: CHANGES needs a first version: CHANGES FROM VERSION 3")
    latest = catalog.open(table).version
    if kind == "VersionRange":
        first, last = given.startingVersion(), given.endingVersion()
        bounds = [first, last.get() if last.isPresent() else str(latest)]
        if not all(bound.isdecimal() and 1 <= int(bound) <= latest for bound in bounds):
            raise InvalidInput(f"{name}: CHANGES FROM {' TO '.join(bounds)}; give versions from 1 to {latest}")
        start, end = map(int, bounds)
        return list(range(start if given.startingBoundInclusive() else start + 1, end + given.endingBoundInclusive()))
    times = [(one["version"], one["timestamp"].astimezone(UTC)) for one in catalog.open(table).versions()]
    after = _EPOCH + timedelta(microseconds=given.startingTimestamp())
    until = given.endingTimestamp()
    before = _EPOCH + timedelta(microseconds=until.get()) if until.isPresent() else times[-1][1]
    if times[0][0] > 1 and times[0][1] >= after:
        raise InvalidInput(str(VersionNotFound(f"{name}: clean-up removed versions since {after}; begin later")))
    return [
        version
        for version, time in times
        if (after <= time if given.startingBoundInclusive() else after < time)
        and (time <= before if given.endingBoundInclusive() else time < before)
    ]
