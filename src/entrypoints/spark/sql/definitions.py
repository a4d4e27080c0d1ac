"""Read the columns, properties and partitions that a statement defines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from pyspark.sql.types import StructType

from lancekeep.application.rows.row_rules import require_evaluable
from lancekeep.domain.clustering import cluster_by
from lancekeep.domain.errors import InvalidInput, Unsupported
from lancekeep.domain.manifest_entry import CLUSTER_BY
from lancekeep.domain.partitioning import PartitionBy
from lancekeep.domain.row_rules import rules_of
from lancekeep.entrypoints.spark.sql.alter import constraint_property
from lancekeep.entrypoints.spark.sql.clustering import require_clusterable
from lancekeep.entrypoints.spark.sql.columns import is_type_property, stated_expressions, stored_schema
from lancekeep.entrypoints.spark.sql.jvm import struct
from lancekeep.entrypoints.spark.sql.keys import is_key, stated_key, with_key
from lancekeep.entrypoints.spark.sql.statistics import property_of, stored
from lancekeep.entrypoints.spark.sql.table import PROVIDER, STORE_SHOWN, VERSION_SHOWN
from lancekeep.entrypoints.spark.sql.texts import without_lengths
from lancekeep.entrypoints.spark.sql.transforms import clustered_by, partition_by

_PROVIDERS = (PROVIDER, "lance")
_HIVE = ("hive.stored-as", "hive.input-format", "hive.output-format", "hive.serde")
"""The properties that Spark makes of the clauses for files of Hive."""

_CLAUSES = {
    "LOCATION": "a namespace has no directory, and CREATE TABLE … LOCATION chooses the directory of a table",
    "EXTERNAL": "DROP TABLE removes the rows of each table. LOCATION chooses a directory below the root of the "
    "catalog, and CALL system.register_table enters a Lance table that is below the root",
    "COLLATION": "texts have the order of their bytes",
}


@attrs.frozen
class TableDefinition:
    """A table as CREATE or REPLACE defines it.

    Attributes:
        columns: The columns, with the types that a table stores.
        properties: The properties, also those that define types.
        by: How its rows are partitioned; nothing for other tables.
        location: The directory that the statement chooses, as `Catalog.declare_table` takes it, or None.
    """

    columns: StructType
    properties: Mapping[str, str]
    by: Sequence[PartitionBy]
    location: str | None

    @property
    def schema(self) -> Any:
        """The stored schema."""
        return stored_schema(self.columns, self.properties)

    @property
    def kept(self) -> dict[str, str]:
        """The properties to store.

        Other properties follow from the columns or show the state of a table.
        """
        shown = {VERSION_SHOWN, STORE_SHOWN, "is_managed_location", "table_type"}
        shown |= set(map(property_of, stored(self.properties)))
        return {
            name: value for name, value in self.properties.items() if name not in shown and not is_type_property(name)
        }

    @staticmethod
    def of(info: Any) -> TableDefinition:
        """Read a ``TableInfo``.

        Raises:
            InvalidInput: A property or clause is invalid.
            Unsupported: A clause has no equivalent.
        """
        by = partition_by(info.partitions())
        columns = struct(info.schema())
        given = dict(info.properties())
        location = given.pop("location", None)
        properties = stated(given, "a table") | stated_expressions(columns)
        columns = without_lengths(columns)
        clustering = clustered_by(info.partitions())
        if clustering:
            properties[CLUSTER_BY] = cluster_by(clustering)
        for constraint in info.constraints():
            if is_key(constraint):
                columns = with_key(columns, stated_key(constraint))
            else:
                properties |= constraint_property(constraint)
        require_evaluable(stored_schema(columns, properties), rules_of(properties))
        require_clusterable(stored_schema(columns, properties), properties)
        return TableDefinition(columns, properties, by, None if location is None else _chosen(location))


def _chosen(location: str) -> str:
    """Return a location without the spellings of Hadoop, which Spark adds to a path or a user writes."""
    scheme, colon, path = location.partition(":")
    if colon and scheme == "file":
        return f"/{path.lstrip('/')}"
    return f"s3:{path}" if colon and scheme in ("s3a", "s3n") else location


def stated(properties: Any, of_what: str) -> dict[str, str]:
    """Return the properties that the user gave.

    Raises:
        InvalidInput: The provider is not Lance, or an option is given.
        Unsupported: A property stems from an SQL clause that would have no effect.
    """
    given = dict(properties)
    given.pop("owner", None)  # added by Spark: the user of the process
    provider = given.pop("provider", PROVIDER)
    if provider not in _PROVIDERS:
        raise InvalidInput(
            f"USING {provider}: tables here are Lance tables. Leave USING out or say USING {PROVIDER}. saveAsTable "
            f"without a format states Spark's default: say format('{PROVIDER}'), set spark.sql.sources.default to "
            f"{PROVIDER}, or use writeTo"
        )
    for clause, advice in _CLAUSES.items():
        if clause.lower() in given:
            raise Unsupported(f"{clause} of {of_what} is not supported: {advice}. Leave it out.")
    if any(name.startswith(_HIVE) for name in given):
        raise Unsupported(
            "STORED AS, INPUTFORMAT and ROW FORMAT are not supported: tables here are Lance tables. Leave them out, or "
            f"say USING {PROVIDER}"
        )
    options = sorted(name.removeprefix("option.") for name in given if name.startswith("option."))
    if options:
        raise InvalidInput(f"there is no option {', '.join(options)}; use TBLPROPERTIES for properties of your own")
    return given
