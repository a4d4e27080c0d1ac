"""The parts to which the facade of a catalog delegates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

from lancekeep.domain.identifiers import ObjectId

if TYPE_CHECKING:
    from lancekeep.application.entries.services import (
        ChangeService,
        DroppedService,
        NamespaceService,
        ProtectionService,
        TableService,
        TagService,
    )
    from lancekeep.application.events.service import EventService
    from lancekeep.application.partitions.services import PartitionService
    from lancekeep.application.rows.branches import Branches
    from lancekeep.application.rows.compactions import Compactions
    from lancekeep.application.rows.services import TransactionRecordService, WriteService
    from lancekeep.application.rows.table_data import TableData
    from lancekeep.application.rows.table_structure import TableStructure
    from lancekeep.application.rows.table_versions import TableVersions
    from lancekeep.application.rows.views import Views
    from lancekeep.application.upkeep.directory import Directory
    from lancekeep.application.upkeep.services import UpkeepService
    from lancekeep.domain.commit import Outcome
    from lancekeep.domain.commit_token import CommitToken
    from lancekeep.domain.table import Table
    from lancekeep.domain.transaction import AllCommitted
    from lancekeep.ports.table_engine import TableEngine


class Services(Protocol):
    """The parts that the catalogs of a directory and of a server both have."""

    @property
    def namespaces(self) -> NamespaceService: ...
    @property
    def tables(self) -> TableService: ...
    @property
    def dropped(self) -> DroppedService: ...
    @property
    def protection(self) -> ProtectionService: ...
    @property
    def tags(self) -> TagService: ...
    @property
    def changes(self) -> ChangeService: ...
    @property
    def events(self) -> EventService: ...
    @property
    def writes(self) -> WriteService: ...
    @property
    def data(self) -> TableData: ...
    @property
    def structure(self) -> TableStructure: ...
    @property
    def versions(self) -> TableVersions: ...
    @property
    def branches(self) -> Branches: ...
    @property
    def views(self) -> Views: ...
    @property
    def compactions(self) -> Compactions: ...
    @property
    def transaction_records(self) -> TransactionRecordService: ...
    @property
    def partitions(self) -> PartitionService: ...
    @property
    def upkeep(self) -> UpkeepService: ...
    @property
    def engine(self) -> TableEngine: ...

    @property
    def storage_options(self) -> Mapping[str, str]:
        """The options with which the table engine opens a table."""

    @property
    def vends(self) -> object | None:
        """The client that vends options of tables; None if none are vended."""

    @property
    def rename(self) -> Callable[[ObjectId, ObjectId], Table]:
        """Renames a table; see `Catalog.rename_table`."""

    @property
    def resolve(self) -> Callable[[CommitToken | str], Outcome | AllCommitted]:
        """Finds out the outcome of a commit; see `Catalog.resolve`."""

    @property
    def uri(self) -> Callable[[Table], str]:
        """Returns the URI by which the table engine opens a table."""

    @property
    def is_bare(self) -> Callable[[], bool]:
        """Returns whether the root is empty: the catalog is new, or its root is mistyped."""

    @property
    def close(self) -> Callable[[], None]:
        """Releases what the catalog holds."""


# -- deprecated names of the facade ------------------------------------------------------------------------------

_INTERNAL = "the documented methods and services of Catalog"
_OF_SERVICES: Mapping[str, tuple[Callable[[Services], object], str]] = {
    **{
        name: (attrgetter(name), _INTERNAL)
        for name in ("compactions", "engine", "is_bare", "tables", "transaction_records", "vends")
    },
    "create_partitioned": (attrgetter("partitions.create"), "Catalog.partitions.create"),
    "describe_version": (attrgetter("versions.describe"), "Catalog.versions.describe"),
    "history": (attrgetter("versions.history"), "Catalog.versions.history"),
    "page_of": (
        lambda services: lambda identifier, *page: services.namespaces.page(ObjectId.of(identifier), *page),
        "Catalog.list_namespaces",
    ),
    "page_of_tables": (
        lambda services: (
            lambda identifier, *page, **chosen: services.tables.page(ObjectId.of(identifier), *page, **chosen)
        ),
        "Catalog.list_tables",
    ),
    "partitioned": (attrgetter("partitions.open"), "Catalog.partitions.open"),
    "uri": (attrgetter("uri"), "Catalog.describe_table(...).uri"),
    **{
        name: (attrgetter(f"upkeep.{name}"), f"Catalog.upkeep.{name}")
        for name in (
            *("adopt_identity", "change_commit_store", "cleanup", "commit_compaction", "compact", "fsck", "identity"),
            *("maintain", "materialize", "migrate", "migrate_manifest_names", "move_fragments", "optimize", "relocate"),
        )
    },
}
_OF_DIRECTORY: Mapping[str, tuple[Callable[[Directory], object], str]] = {
    **{
        name: (attrgetter(name), _INTERNAL)
        for name in ("commits", "ledger", "mem_wal", "places", "recorder", "removal", "requests", "sql_views")
    },
    "dataset_root": (attrgetter("places.dataset_root"), "Catalog.describe_table(...).uri"),
    "managed": (attrgetter("ledger.managed"), "Catalog.describe_table(...).managed"),
    "view": (attrgetter("ledger.view"), "Catalog.list_all_tables"),
}
DEPRECATED = _OF_SERVICES.keys() | _OF_DIRECTORY.keys()
"""Former public names of `Catalog`."""


def deprecated_part(name: str, services: Services, directory: Callable[[str], Directory]) -> tuple[object, str]:
    """Return a part of a catalog by a former name, and what to use instead.

    Args:
        name: A name of `DEPRECATED`.
        services: The services of the catalog.
        directory: Returns the directory of the catalog, for the operation of a name.

    Raises:
        NoDirectory: A server has the catalog, which has no such part here.
    """
    if name in _OF_SERVICES:
        of_services, replacement = _OF_SERVICES[name]
        return of_services(services), replacement
    of_directory, replacement = _OF_DIRECTORY[name]
    return of_directory(directory(name)), replacement
