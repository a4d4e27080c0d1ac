"""The structs and methods of the Metastore that Lancekeep uses.

The numbers are the ones of Hive's Thrift interface.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from lancekeep.hive.wire import BOOL, I16, I32, TEXT, TEXTS, Kind, field, list_of, rest, struct_of

USER, ROLE, GROUP = 1, 2, 3
"""Kinds of owners."""
EXTERNAL, VIEW = "EXTERNAL_TABLE", "VIRTUAL_VIEW"
"""Types of tables."""


@attrs.frozen
class Database:
    """A database. A Metastore before Hive 3 has no catalogs."""

    name: str | None = field(1, TEXT)
    description: str | None = field(2, TEXT)
    location: str | None = field(3, TEXT)
    parameters: Mapping[str, str] | None = field(4, TEXTS)
    owner: str | None = field(6, TEXT)
    owner_kind: int | None = field(7, I32)
    catalog: str | None = field(8, TEXT)
    rest: bytes = rest()


@attrs.frozen
class FieldSchema:
    """A column; ``type`` in Hive's syntax."""

    name: str | None = field(1, TEXT)
    type: str | None = field(2, TEXT)
    comment: str | None = field(3, TEXT)
    rest: bytes = rest()


@attrs.frozen
class SerDeInfo:
    """How Hive reads rows."""

    name: str | None = field(1, TEXT)
    library: str | None = field(2, TEXT)
    parameters: Mapping[str, str] | None = field(3, TEXTS)
    rest: bytes = rest()


@attrs.frozen
class Order:
    """A column by which a table is sorted."""

    column: str | None = field(1, TEXT)
    order: int | None = field(2, I32)
    rest: bytes = rest()


@attrs.frozen
class StorageDescriptor:
    """Columns and location of a table."""

    columns: list[FieldSchema] | None = field(1, list_of(struct_of(FieldSchema)))
    location: str | None = field(2, TEXT)
    input_format: str | None = field(3, TEXT)
    output_format: str | None = field(4, TEXT)
    compressed: bool | None = field(5, BOOL)
    buckets: int | None = field(6, I32)
    serde: SerDeInfo | None = field(7, struct_of(SerDeInfo))
    bucket_columns: list[str] | None = field(8, list_of(TEXT))
    sort_columns: list[Order] | None = field(9, list_of(struct_of(Order)))
    parameters: Mapping[str, str] | None = field(10, TEXTS)
    rest: bytes = rest()


@attrs.frozen
class Table:
    """A table or a view. ``kind`` is its table type."""

    name: str | None = field(1, TEXT)
    database: str | None = field(2, TEXT)
    owner: str | None = field(3, TEXT)
    created: int | None = field(4, I32)
    accessed: int | None = field(5, I32)
    retention: int | None = field(6, I32)
    storage: StorageDescriptor | None = field(7, struct_of(StorageDescriptor))
    partition_keys: list[FieldSchema] | None = field(8, list_of(struct_of(FieldSchema)))
    parameters: Mapping[str, str] | None = field(9, TEXTS)
    view_text: str | None = field(10, TEXT)
    view_expanded_text: str | None = field(11, TEXT)
    kind: str | None = field(12, TEXT)
    catalog: str | None = field(17, TEXT)
    owner_kind: int | None = field(18, I32)
    rest: bytes = rest()


@attrs.frozen
class Catalog:
    """A catalog of Hive 3 or newer."""

    name: str | None = field(1, TEXT)
    description: str | None = field(2, TEXT)
    location: str | None = field(3, TEXT)
    rest: bytes = rest()


@attrs.frozen
class EnvironmentContext:
    """Conditions and options of a change."""

    properties: Mapping[str, str] | None = field(1, TEXTS)
    rest: bytes = rest()


@attrs.frozen
class GetTableRequest:
    database: str | None = field(1, TEXT)
    table: str | None = field(2, TEXT)
    catalog: str | None = field(4, TEXT)
    rest: bytes = rest()


@attrs.frozen
class GetTableResult:
    table: Table | None = field(1, struct_of(Table))
    rest: bytes = rest()


@attrs.frozen
class GetTablesRequest:
    database: str | None = field(1, TEXT)
    tables: list[str] | None = field(2, list_of(TEXT))
    catalog: str | None = field(4, TEXT)
    rest: bytes = rest()


@attrs.frozen
class GetTablesResult:
    tables: list[Table] | None = field(1, list_of(struct_of(Table)))
    rest: bytes = rest()


@attrs.frozen
class CatalogRequest:
    """Creates a catalog."""

    catalog: Catalog | None = field(1, struct_of(Catalog))
    rest: bytes = rest()


@attrs.frozen
class CatalogName:
    """Names a catalog to get or to drop."""

    name: str | None = field(1, TEXT)
    rest: bytes = rest()


@attrs.frozen
class AlterCatalogRequest:
    name: str | None = field(1, TEXT)
    catalog: Catalog | None = field(2, struct_of(Catalog))
    rest: bytes = rest()


@attrs.frozen
class CatalogNames:
    names: list[str] | None = field(1, list_of(TEXT))
    rest: bytes = rest()


@attrs.frozen
class Refusal:
    """An exception of the Metastore; each of them has a message only."""

    message: str | None = field(1, TEXT)
    rest: bytes = rest()


META, MISSING, TAKEN, INVALID, INVALID_OPERATION = (
    "MetaException",
    "NoSuchObjectException",
    "AlreadyExistsException",
    "InvalidObjectException",
    "InvalidOperationException",
)
UNKNOWN_DATABASE = "UnknownDBException"


@attrs.frozen
class Method:
    """A method of the Metastore.

    Attributes:
        name: its name.
        arguments: the types of its arguments, numbered from 1.
        result: the type of the return value, or None.
        refusals: the names of its exceptions, by number.
        reads: the method changes nothing, so it may be repeated.
    """

    name: str
    arguments: tuple[Kind, ...]
    result: Kind | None
    refusals: Mapping[int, str]
    reads: bool = False


_TABLE, _DATABASE, _CONTEXT = struct_of(Table), struct_of(Database), struct_of(EnvironmentContext)
_NAMES = list_of(TEXT)
_ON_CREATE = {1: TAKEN, 2: INVALID, 3: META}
_ON_FILTER = {1: META, 2: INVALID_OPERATION, 3: UNKNOWN_DATABASE}

SET_UGI = Method("set_ugi", (TEXT, _NAMES), _NAMES, {1: META}, reads=True)

GET_DATABASES = Method("get_databases", (TEXT,), _NAMES, {1: META}, reads=True)
GET_DATABASE = Method("get_database", (TEXT,), _DATABASE, {1: MISSING, 2: META}, reads=True)
CREATE_DATABASE = Method("create_database", (_DATABASE,), None, _ON_CREATE)
ALTER_DATABASE = Method("alter_database", (TEXT, _DATABASE), None, {1: META, 2: MISSING})
DROP_DATABASE = Method("drop_database", (TEXT, BOOL, BOOL), None, {1: MISSING, 2: INVALID_OPERATION, 3: META})

GET_TABLES = Method("get_tables", (TEXT, TEXT), _NAMES, {1: META}, reads=True)
FILTER_TABLES = Method("get_table_names_by_filter", (TEXT, TEXT, I16), _NAMES, _ON_FILTER, reads=True)
GET_TABLE = Method(
    "get_table_req", (struct_of(GetTableRequest),), struct_of(GetTableResult), {1: META, 2: MISSING}, reads=True
)
GET_TABLES_BY_NAME = Method(
    "get_table_objects_by_name_req",
    (struct_of(GetTablesRequest),),
    struct_of(GetTablesResult),
    _ON_FILTER,
    reads=True,
)
CREATE_TABLE = Method("create_table_with_environment_context", (_TABLE, _CONTEXT), None, _ON_CREATE | {4: MISSING})
ALTER_TABLE = Method(
    "alter_table_with_environment_context", (TEXT, TEXT, _TABLE, _CONTEXT), None, {1: INVALID_OPERATION, 2: META}
)
DROP_TABLE = Method("drop_table_with_environment_context", (TEXT, TEXT, BOOL, _CONTEXT), None, {1: MISSING, 2: META})

GET_CATALOGS = Method("get_catalogs", (), struct_of(CatalogNames), {1: META}, reads=True)
GET_CATALOG = Method(
    "get_catalog", (struct_of(CatalogName),), struct_of(CatalogRequest), {1: MISSING, 2: META}, reads=True
)
CREATE_CATALOG = Method("create_catalog", (struct_of(CatalogRequest),), None, _ON_CREATE)
ALTER_CATALOG = Method(
    "alter_catalog", (struct_of(AlterCatalogRequest),), None, {1: MISSING, 2: INVALID_OPERATION, 3: META}
)
DROP_CATALOG = Method("drop_catalog", (struct_of(CatalogName),), None, {1: MISSING, 2: INVALID_OPERATION, 3: META})
