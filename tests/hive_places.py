"""The content of the shared Hive Metastore."""

from __future__ import annotations

from lancekeep.adapters.manifest_stores.hive.mapping import DEFAULT_CATALOG, DEFAULT_DATABASE
from lancekeep.hive.address import Address
from lancekeep.hive.metastore import Metastore
from lancekeep.store_urls import StoreUrl


def metastore(url: str) -> Metastore:
    return Metastore.of(Address.of(StoreUrl.parse(url, {})))


def empty(url: str) -> None:
    """Remove everything from a Metastore, except files."""
    server = metastore(url)
    for catalog in set(server.catalogs() or ()) - {DEFAULT_CATALOG}:
        for database in server.databases(catalog=catalog):
            server.drop_database(database, cascade=True, catalog=catalog)
        server.drop_catalog(catalog)
    for database in server.databases():
        if database != DEFAULT_DATABASE:
            server.drop_database(database, cascade=True)
    for table in server.table_names(DEFAULT_DATABASE):
        server.drop_table(DEFAULT_DATABASE, table)


def contents(url: str) -> object:
    """Return everything in a Metastore as a comparable value."""
    server = metastore(url)
    databases = sorted(server.databases())
    tables = [server.tables(database, sorted(server.table_names(database))) for database in databases]
    found = zip(databases, tables, strict=True)
    return [(name, server.database(name), sorted(map(repr, below))) for name, below in found]
