"""The data source ``format("lancekeep")``; `batch` and `streaming` do the work.

Spark creates these objects in separate processes without the user's state, so each opens the catalog from the options.
Tasks receive no catalog: they read one pinned version or write fragments, which the driver commits at once.
"""

from __future__ import annotations

from contextlib import suppress
from typing import ClassVar

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
)
from pyspark.sql.types import StructType

from lancekeep.application.catalog import Catalog
from lancekeep.application.partitions.namespace import PartitionedNamespace
from lancekeep.application.upkeep.directory import NoDirectory
from lancekeep.domain.errors import NamespaceNotFound
from lancekeep.domain.partition_rules import DATASET
from lancekeep.entrypoints.spark.arrow_types import spark_schema
from lancekeep.entrypoints.spark.batch import BatchReader, BatchWriter, open_version
from lancekeep.entrypoints.spark.changes import CHANGE_COLUMNS
from lancekeep.entrypoints.spark.internals.schemas import spark_of
from lancekeep.entrypoints.spark.options import BATCH_READ, BATCH_WRITE, STREAM_READ, STREAM_WRITE, Connect, Options
from lancekeep.entrypoints.spark.partition_sink import PartitionStreamWriter
from lancekeep.entrypoints.spark.partition_source import PartitionStreamReader
from lancekeep.entrypoints.spark.reading import require_columns
from lancekeep.entrypoints.spark.streaming import StreamReader, StreamWriter


class LancekeepSource(DataSource):
    """The data source for Spark.

    Attributes:
        connect: ``lancekeep.connect``; `pyspark_lancekeep` sets it on registration.
    """

    connect: ClassVar[Connect]

    @classmethod
    def name(cls) -> str:
        return "lancekeep"

    def schema(self) -> StructType:
        """Return the columns for a read without a schema and for CREATE TABLE."""
        declared = Options.declared(self.options)
        if declared is not None:
            declared.require_no_secret()
        options = declared or Options.of(self.options, *BATCH_READ, *STREAM_READ)
        with options.opener(self.connect)() as catalog:
            partitions = partitions_of(catalog, options)
            stored = open_version(catalog, options).schema if partitions is None else partitions.schema
            root_uri = catalog.root_uri
        if options.columns is not None:
            require_columns(stored, options.columns)
            stored = pa.schema([stored.field(name) for name in options.columns])
        seen = spark_schema(stored)
        if options.flag("read_changes"):
            seen = StructType([*seen, *spark_of(CHANGE_COLUMNS)])
        return seen if declared is None else declared.kept_in(seen, root_uri)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = Options.of_read(self.options, schema, *BATCH_READ)
        return BatchReader(options, options.opener(self.connect), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        options = Options.of(self.options, *BATCH_WRITE)
        return BatchWriter(options, options.opener(self.connect), schema, overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = Options.of_read(self.options, schema, *STREAM_READ)
        reader = PartitionStreamReader if self._is_partitioned(options) else StreamReader
        return reader(options, options.opener(self.connect), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        options = Options.of(self.options, *STREAM_WRITE)
        writer = PartitionStreamWriter if self._is_partitioned(options) else StreamWriter
        return writer(options, options.opener(self.connect), schema, overwrite)

    def _is_partitioned(self, options: Options) -> bool:
        """Return whether the options name all partitions of a catalog."""
        if options.table != DATASET:
            return False
        with options.opener(self.connect)() as catalog:
            return partitions_of(catalog, options) is not None


def partitions_of(catalog: Catalog, options: Options) -> PartitionedNamespace | None:
    """Return all partitions of a catalog if the options name them."""
    if options.table != DATASET or catalog.table_exists(DATASET):
        return None
    with suppress(NamespaceNotFound, NoDirectory):
        return catalog.partitions.open()
    return None
