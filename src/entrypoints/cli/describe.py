"""``lancekeep describe`` and ``lancekeep schema``."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

import click

from lancekeep.application.catalog import Catalog, directory_of, services_of
from lancekeep.domain.automatic_maintenance import OFF, policy_of
from lancekeep.domain.errors import (
    InvalidInput,
    LancekeepError,
    NamespaceNotFound,
    TableNotFound,
    Unsupported,
    VersionNotFound,
)
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.managed import by_storage
from lancekeep.domain.manifest_entry import NAMESPACE
from lancekeep.domain.mem_wal import permits_lsm
from lancekeep.domain.protection import PROTECTED
from lancekeep.entrypoints.cli.command import command
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores, stores
from lancekeep.entrypoints.cli.output import BYTES, COUNT, TIME, Column, Output, output
from lancekeep.entrypoints.cli.reading import chosen_version, version_option
from lancekeep.entrypoints.cli.upkeep import mode

_MANY = 1000
"""The most children of a namespace that are counted."""
_TABLE = (
    Column("table"),
    Column("location"),
    Column("version", COUNT),
    Column("changed", TIME),
    Column("operation"),
    Column("by"),
    Column("rows", COUNT),
    Column("deleted rows", COUNT),
    Column("fragments", COUNT),
    Column("bytes", BYTES),
    Column("columns"),
    Column("indexes"),
    Column("tags"),
    Column("branches"),
    Column("properties"),
    Column("maintenance"),
)
_NAMESPACE = (
    Column("catalog"),
    Column("namespace"),
    Column("commit store"),
    Column("namespaces"),
    Column("tables"),
    Column("properties"),
    Column("maintenance"),
)


@command()
@output
@mode
@stores
@click.argument("name", default="")
@click.pass_obj
def describe(functions: PublicFunctions, chosen: Stores, name: str, mode: str | None, out: Output) -> None:
    """Describe a catalog, a namespace or a table.

    NAME is a table or a namespace; by default the whole CATALOG is described.
    """
    with chosen.catalog(functions, mode=mode) as catalog:
        if name and catalog.table_exists(name):
            out.document(_TABLE, _table(catalog, name))
        else:
            out.document(_NAMESPACE, _namespace(catalog, name))


def _table(catalog: Catalog, name: str) -> dict[str, Any]:
    described = catalog.describe_table(name)
    found: dict[str, Any] = dict.fromkeys(column.name for column in _TABLE)
    found |= {"table": str(described.id), "location": described.uri, "version": described.version}
    found["properties"] = _pairs(described.properties)
    found["maintenance"] = _maintenance(catalog, described.id, described.properties)
    if described.version is None:
        return found
    [latest] = catalog.versions.history(name, 1)
    details = catalog.versions.describe(name)
    files = [file for each in catalog.open(name).get_fragments() for file in each.metadata.files]
    indexes = catalog.structure.indexes(name)
    return found | {
        "changed": latest.timestamp,
        "operation": latest.operation,
        "by": latest.committer or None,
        "rows": details.rows,
        "deleted rows": details.deleted_rows,
        "fragments": details.fragments,
        "bytes": sum(file.file_size_bytes or 0 for file in files),
        "columns": [f"{field.name} {field.type}" for field in details.schema],
        "indexes": [f"{each.name} ({each.kind} of {', '.join(each.columns)})" for each in indexes],
        "tags": [f"{tag} (version {at.version})" for tag, at in catalog.tags.list(name).items()],
        "branches": sorted(catalog.branches.list(name)),
    }


def _namespace(catalog: Catalog, name: str) -> dict[str, Any]:
    try:
        namespace = catalog.describe_namespace(name)
    except NamespaceNotFound as error:
        raise TableNotFound(
            f"{name!r} is neither a table nor a namespace of {catalog.root_uri}. `lancekeep tree` shows all tables"
        ) from error
    store = None
    with suppress(Unsupported):
        store = directory_of(catalog).ledger.own_store or "none; the storage decides"
    services, object_id = services_of(catalog), ObjectId.of(name)
    namespaces, more = services.namespaces.page(object_id, NAMESPACE, None, _MANY)
    tables, most = services.tables.page(object_id, None, _MANY, include_declared=True)
    return {
        "catalog": catalog.root_uri,
        "namespace": name or None,
        "commit store": store,
        "namespaces": _counted(len(namespaces), more),
        "tables": _counted(len(tables), most),
        "properties": _pairs({key: value for key, value in namespace.properties.items() if value != store}),
        "maintenance": _maintenance(catalog, object_id, None),
    }


def _maintenance(catalog: Catalog, object_id: ObjectId, table: Mapping[str, str] | None) -> str | None:
    """Return how a table, or the tables of a namespace, are maintained automatically.

    Args:
        catalog: The catalog.
        object_id: The table or the namespace.
        table: The properties of the table; None for a namespace.

    Returns:
        None if the caller must not read a namespace above.
    """
    own, is_managed = table or {}, True
    with suppress(Unsupported):
        is_managed = directory_of(catalog).ledger.managed
    lengths = range(len(object_id.names) + (table is None))
    try:
        above = [catalog.describe_namespace(ObjectId(object_id.names[:length])).properties for length in lengths]
        is_spared = any(PROTECTED in each for each in (*above, own)) or permits_lsm(own)
        policy = policy_of(above[0], own, is_spared=is_spared or (is_managed and by_storage(own)))
    except InvalidInput as error:
        return str(error)
    except LancekeepError:
        return None
    return OFF if policy is None else str(policy)


def _counted(number: int, more: str | None) -> str:
    return f"more than {number:,}" if more is not None else f"{number:,}"


def _pairs(properties: Any) -> list[str]:
    return [f"{key}={value}" for key, value in sorted(properties.items())]


@command()
@output
@version_option
@mode
@stores
@click.argument("name")
@click.pass_obj
def schema(
    functions: PublicFunctions,
    chosen: Stores,
    name: str,
    mode: str | None,
    version: str | None,
    branch: str | None,
    at: datetime | None,
    out: Output,
) -> None:
    """Show the columns of a table.

    Shows the name, the Arrow type and the metadata of each column of the table NAME.
    """
    columns = (Column("column"), Column("type"), Column("nullable"), Column("metadata"))
    with chosen.catalog(functions, mode=mode) as catalog:
        fields = catalog.versions.describe(name, **chosen_version(version, branch, at)).schema
        if not len(fields):
            raise VersionNotFound(f"the table {name} has no columns. Write rows into it")
        out.rows(columns, [_field(field) for field in fields])


def _field(field: Any) -> dict[str, Any]:
    metadata = {_text(key): _text(value) for key, value in (field.metadata or {}).items()}
    return {
        "column": field.name,
        "type": str(field.type),
        "nullable": "yes" if field.nullable else "no",
        "metadata": _pairs(metadata),
    }


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")
