"""The parts to which the facade of a catalog delegates."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from operator import attrgetter

import attrs

from lancekeep.application.entries.services import NamespaceService, TableService, TagService
from lancekeep.application.rows.compactions import Compactions
from lancekeep.application.rows.services import TransactionRecordService, WriteService
from lancekeep.application.rows.table_data import TableData
from lancekeep.application.rows.table_structure import TableStructure
from lancekeep.application.rows.views import Views
from lancekeep.application.upkeep.directory import Directory
from lancekeep.domain.commit import Outcome
from lancekeep.domain.commit_token import CommitToken
from lancekeep.domain.identifiers import Identifier, ObjectId
from lancekeep.domain.table import Table
from lancekeep.domain.transaction import AllCommitted
from lancekeep.ports.table_engine import TableEngine


@attrs.frozen
class Services:
    """The parts that the catalogs of a directory and of a server both have."""

    namespaces: NamespaceService
    tables: TableService
    rename: Callable[[ObjectId, ObjectId], Table]
    writes: WriteService
    data: TableData
    structure: TableStructure
    tags: TagService
    views: Views
    compactions: Compactions
    transaction_records: TransactionRecordService
    engine: TableEngine
    resolve: Callable[[CommitToken | str], Outcome | AllCommitted]
    close: Callable[[], None]
    uri: Callable[[Table], str]
    """Returns the URI by which the table engine opens a table."""
    storage_options: Mapping[str, str]
    is_bare: Callable[[], bool]
    """Returns whether the root is empty: the catalog is new, or its root is mistyped."""
    vends: object | None = None
    """The client that vends options of tables; None if none are vended."""


# -- deprecated names of the facade ------------------------------------------------------------------------------

_OF_SERVICES: Mapping[str, Callable[[Services], object]] = {
    **{
        name: attrgetter(name)
        for name in ("compactions", "engine", "is_bare", "tables", "transaction_records", "uri", "vends")
    },
    "page_of": lambda services: lambda identifier, *page: services.namespaces.page(_id(identifier), *page),
    "page_of_tables": lambda services: (
        lambda identifier, *page, **chosen: services.tables.page(_id(identifier), *page, **chosen)
    ),
}
_OF_DIRECTORY: Mapping[str, Callable[[Directory], object]] = {
    **{
        name: attrgetter(name)
        for name in ("commits", "ledger", "mem_wal", "places", "recorder", "removal", "requests", "sql_views")
    },
    "dataset_root": attrgetter("places.dataset_root"),
    "managed": attrgetter("ledger.managed"),
    "view": attrgetter("ledger.view"),
}
_REPLACEMENTS = {
    "managed": "describe_table(...).managed",
    "page_of": "list_namespaces",
    "page_of_tables": "list_tables",
    "uri": "describe_table(...).uri",
    "view": "list_all_tables",
}
DEPRECATED = _OF_SERVICES.keys() | _OF_DIRECTORY.keys()
"""Internal parts that were public attributes of `Catalog`."""


def deprecated_part(name: str, services: Services, directory: Callable[[str], Directory]) -> object:
    """Return an internal part by its former name, with a warning.

    Args:
        name: A name of `DEPRECATED`.
        services: The services of the catalog.
        directory: Returns the directory of the catalog, for the operation of a name.

    Raises:
        NoDirectory: The catalog is that of a server, and has no such part.
    """
    part = _OF_SERVICES[name](services) if name in _OF_SERVICES else _OF_DIRECTORY[name](directory(name))
    replacement = _REPLACEMENTS.get(name, "the documented methods and services of Catalog")
    warnings.warn(
        f"Catalog.{name} is internal, and will be removed. Use {replacement}", DeprecationWarning, stacklevel=3
    )
    return part


def _id(identifier: Identifier) -> ObjectId:
    return ObjectId.of(identifier)
