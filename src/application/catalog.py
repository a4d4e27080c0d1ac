"""The catalog: everything that a user does with namespaces, tables and their versions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from lancekeep.application.clones import Clones
from lancekeep.application.ledger import Ledger
from lancekeep.application.namespaces import Namespaces
from lancekeep.application.partitions.namespace import PartitionedNamespace
from lancekeep.application.places import Places
from lancekeep.application.removal import Removal
from lancekeep.application.table_commits import TableCommits
from lancekeep.application.tables import Description, Tables
from lancekeep.application.transactions import Snapshot, Transaction, take_snapshot
from lancekeep.application.upkeep.renames import Renames
from lancekeep.application.upkeep.service import Upkeep
from lancekeep.application.versions import NewVersion, Versions
from lancekeep.application.writes import HistoryEntry, Writes
from lancekeep.domain.catalog import CatalogView
from lancekeep.domain.commit import Committed, Outcome
from lancekeep.domain.commit_token import CommitToken
from lancekeep.domain.errors import NamespaceNotFound
from lancekeep.domain.identifiers import Identifier, ObjectId
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.lineage import Base
from lancekeep.domain.manifest_entry import NAMESPACE
from lancekeep.domain.namespace import Namespace
from lancekeep.domain.partitioning import PartitionBy
from lancekeep.domain.table import Table
from lancekeep.domain.transaction import AllCommitted, TransactionOutcome
from lancekeep.ports.commit_store import ExternalCommitStore
from lancekeep.ports.table_engine import TableEngine, VersionDetails, WritePlan


class Catalog(Upkeep):
    """The namespaces and tables below one root; `lancekeep.connect` opens it.

    Identifiers are strings with ``.`` between the names, or lists of names. Every operation sees what any process had
    acknowledged before the operation began. Threads may share an instance. Instances do not pickle: ship the arguments
    of ``connect`` instead.

    The catalog only delegates. `ledger` holds its entries, `places` its directories, `versions` its tables' versions.
    """

    def __init__(
        self,
        places: Places,
        ledger: Ledger,
        versions: Versions,
        engine: TableEngine,
        *,
        open_rows: Callable[[str], ExternalCommitStore],
    ) -> None:
        clones = Clones(places.objects, ledger.commits.retry, places.root_key)
        removal = Removal(ledger, places, clones)
        ledger.commits.on_staged = removal.record_staged
        tables = Tables(ledger, places, removal)
        self.versions = versions
        super().__init__(ledger, places, tables, removal, engine, open_rows)
        versions.tagged_versions = lambda uri: engine.tagged_versions(uri)
        self._namespaces = Namespaces(ledger, removal)
        self._writes = Writes(ledger, places, versions, tables, removal, engine)
        self._renames = Renames(ledger, places, tables, removal)

    # -- namespaces ---------------------------------------------------------------------------------------------

    def create_namespace(
        self,
        identifier: Identifier,
        properties: Mapping[str, str] | None = None,
        *,
        exist_ok: bool = False,
        overwrite: bool = False,
    ) -> Namespace:
        """Create a namespace in an existing one.

        ``exist_ok`` keeps an existing namespace unchanged; ``overwrite`` replaces an empty one atomically.

        Raises:
            NamespaceAlreadyExists, NamespaceNotFound (its parent), NamespaceNotEmpty, InvalidInput.
        """
        return self._namespaces.create(ObjectId.of(identifier), properties, exist_ok=exist_ok, overwrite=overwrite)

    def alter_namespace(
        self,
        identifier: Identifier,
        set: Mapping[str, str] | None = None,  # noqa: A002 - the word that a caller reads
        remove: Iterable[str] = (),
    ) -> Namespace:
        """Set some properties of a namespace, or of the root, and remove others. The rest keep their values.

        Raises:
            NamespaceNotFound, InvalidInput, Unsupported.
        """
        return self._namespaces.alter(ObjectId.of(identifier), set, remove)

    def describe_namespace(self, identifier: Identifier) -> Namespace:
        """Return a namespace with its properties, derived ones of partitions included. Raises `NamespaceNotFound`."""
        return self._namespaces.describe(ObjectId.of(identifier))

    def namespace_exists(self, identifier: Identifier) -> bool:
        """Return whether the namespace exists; the root always does."""
        try:
            self.describe_namespace(identifier)
        except NamespaceNotFound:
            return False
        return True

    def list_namespaces(self, identifier: Identifier = "") -> list[str]:
        """Return the names of the namespaces directly in a namespace, sorted. Raises `NamespaceNotFound`."""
        return self.page_of(identifier, NAMESPACE, None, None)[0]

    def drop_namespace(self, identifier: Identifier, *, cascade: bool = False, force: bool = False) -> Namespace:
        """Drop a namespace.

        ``cascade`` drops everything in it too, including the data of tables; ``force`` also tables that shallow clones
        read.

        Raises:
            NamespaceNotFound, NamespaceNotEmpty: Nothing was changed.
            Refused: A clone outside the namespace reads files of a table in it. Nothing was changed.
            Damaged: All is dropped, except the data of a table that a symbolic link leads to, or that became the source
                of a clone during the drop.
        """
        return self._namespaces.drop(ObjectId.of(identifier), cascade=cascade, force=force)

    # -- tables -------------------------------------------------------------------------------------------------

    def declare_table(
        self, identifier: Identifier, properties: Mapping[str, str] | None = None, *, location: str | None = None
    ) -> Table:
        """Reserve a name and a directory for a table that has no version yet.

        Args:
            identifier, properties: Of the table.
            location: A directory below the root, relative or as a URI. By default ``{hash}_{object_id}``, new with
                every attempt. If V1 names are kept: ``{name}.lance`` in the root, unless the files of a deregistered
                table lie there (V2 specification, compatibility mode, rule 3).

        Raises:
            TableAlreadyExists, NamespaceNotFound, InvalidInput, Unsupported: Nothing was declared.
            ConcurrentModification: Another writer dropped or renamed the table, or registered its directory.
        """
        return self.tables.declare(ObjectId.of(identifier), properties, location)

    def register_table(
        self,
        identifier: Identifier,
        location: str,
        properties: Mapping[str, str] | None = None,
        *,
        overwrite: bool = False,
    ) -> Table:
        """Enter a table whose files lie below the root already; ``overwrite`` replaces the entry of that name.

        Raises:
            TableNotFound: No table lies at the location.
            TableAlreadyExists: The name is taken.
            InvalidInput: The location lies outside the root, or belongs to another table.
        """
        return self.tables.register(ObjectId.of(identifier), location, properties, overwrite=overwrite)

    def alter_table(
        self,
        identifier: Identifier,
        set: Mapping[str, str] | None = None,  # noqa: A002 - the word that a caller reads
        remove: Iterable[str] = (),
    ) -> Table:
        """Set some properties of a table and remove others. The rest, and its versions, stay the same.

        Raises:
            TableNotFound, InvalidInput, Unsupported.
        """
        return self.tables.alter(ObjectId.of(identifier), set, remove)

    def rename_table(self, source: Identifier, target: Identifier) -> Table:
        """Rename a table, also into another namespace, in one atomic change.

        The files keep their place, except those of a V1 directory if V1 names are kept. They move to a directory of
        the new name (V2 specification, compatibility mode, rule 4), together with what is committed during the move.
        Later commits through the old name are refused.

        Raises:
            TableNotFound, NamespaceNotFound, TableAlreadyExists, InvalidInput, Unsupported: Nothing was changed.
            Refused: Files have to move, and the table has branches or a clone in the catalog reads its files.
            ConcurrentModification: Other writers kept committing. Nothing was changed.
            Damaged: The table has its new name, but a version at the old place could not be moved. Nothing was removed.
        """
        return self._renames.rename(ObjectId.of(source), ObjectId.of(target))

    def deregister_table(self, identifier: Identifier) -> Table:
        """Remove a table from the catalog and keep its files and versions. Raises `TableNotFound`."""
        return self.tables.deregister(ObjectId.of(identifier))

    def drop_table(self, identifier: Identifier, *, force: bool = False) -> Table:
        """Remove a table, its files and its versions; later commits to it are refused.

        Files in its directory that neither Lance nor Lancekeep wrote stay, and `fsck` reports the directory.

        ``force`` drops it even if shallow clones read its files; they cannot be read afterwards.

        Raises:
            TableNotFound: The table does not exist.
            Refused: A shallow clone in the catalog reads files of the table. Nothing was changed.
            Damaged: A symbolic link leads to the table.
        """
        return self.tables.drop(ObjectId.of(identifier), force=force)

    def clones_of(self, identifier: Identifier) -> list[str]:
        """Return the shallow clones that read files of a table: identifiers, or locations of no table.

        Raises `TableNotFound`.
        """
        return self.removal.readers(self.find_table(identifier))

    def find_table(self, identifier: Identifier) -> Table:
        """Return a table's entry. Raises `TableNotFound`."""
        return self.tables.find(ObjectId.of(identifier))

    def table_exists(self, identifier: Identifier) -> bool:
        """Return whether the catalog has the table, also if it is only declared."""
        return self.tables.exists(ObjectId.of(identifier))

    def describe_table(self, identifier: Identifier) -> Description:
        """Return a table's URI, properties and latest version. Raises `TableNotFound`."""
        return self.tables.describe(ObjectId.of(identifier))

    def list_tables(self, identifier: Identifier = "", *, include_declared: bool = True) -> list[str]:
        """Return the names of the tables in a namespace, sorted; optionally exclude declared-only tables.

        Raises `NamespaceNotFound`.
        """
        return self.page_of_tables(identifier, None, None, include_declared=include_declared)[0]

    def list_all_tables(self, after: str | None = None, *, include_declared: bool = True) -> Iterator[ObjectId]:
        """Yield every table, in the byte order of the object ids, those after ``after`` (an `ObjectId.key`)."""
        return self.tables.all(after, include_declared=include_declared)

    def page_of(
        self, identifier: Identifier, object_type: str, after: str | None, limit: int | None
    ) -> tuple[list[str], str | None]:
        """Return names of one type in a namespace, those after ``after``; and the last name if more follow."""
        return self._namespaces.page(ObjectId.of(identifier), object_type, after, limit)

    def page_of_tables(
        self, identifier: Identifier, after: str | None, limit: int | None, *, include_declared: bool
    ) -> tuple[list[str], str | None]:
        """Return a page of table names as `page_of` does; excluded tables do not count towards ``limit``."""
        return self.tables.page(ObjectId.of(identifier), after, limit, include_declared=include_declared)

    # -- data ---------------------------------------------------------------------------------------------------

    def write(
        self, identifier: Identifier, data: Any, mode: str = "create", *, properties: Mapping[str, str] | None = None
    ) -> Committed:
        """Write data as one version of a table.

        Args:
            identifier: The table.
            data: A ``pyarrow`` Table, RecordBatch or RecordBatchReader, or a pandas or polars frame.
            mode: ``create`` makes a new table. ``append`` adds rows to an existing one. ``overwrite`` replaces the
                rows, or creates the table if it does not exist.
            properties: The properties of the table that this write creates. With ``overwrite`` they also replace those
                of an existing table, after the rows; None keeps them.

        Raises:
            TableAlreadyExists, TableNotFound, NamespaceNotFound, InvalidInput: Nothing was written.
            ConcurrentModification: Other writers kept winning. Nothing was committed.
            CommitUnknown: The outcome is unknown. `resolve` settles it.
            StoreUnavailable: A store did not answer. A table that this write creates may exist, complete, or not exist;
                check before you write it again.
        """
        return self._writes.write(ObjectId.of(identifier), data, mode, properties)

    def begin_write(
        self, identifier: Identifier, schema: Any, mode: str = "create", *, properties: Mapping[str, str] | None = None
    ) -> WritePlan:
        """Return a plan by which distributed workers write fragments; it pickles.

        `commit_fragments` commits the fragments as one version, and `abandon_write` gives up. Arguments and errors are
        those of `write`.
        """
        return self._writes.begin(ObjectId.of(identifier), schema, mode, properties)

    def commit_fragments(
        self,
        plan: WritePlan,
        fragments: Sequence[Any],
        *,
        properties: Mapping[str, str] | None = None,
        exactly: bool = False,
    ) -> Committed:
        """Commit fragments as one version of the plan's table. Errors are those of `write`.

        Args:
            plan: The plan by which they were written.
            fragments: Each a ``lance.FragmentMetadata`` or its JSON.
            properties: Properties of the version's transaction, by which a later reader can recognize the commit.
            exactly: Commit as the version after ``plan.read_version``, or raise `ConcurrentModification`.
        """
        return self._writes.commit_fragments(plan, fragments, dict(properties or {}), exactly=exactly)

    def commit_change(
        self, identifier: Identifier, act: Callable[[Any], Any], *, after: int | None = None
    ) -> Committed:
        """Commit a change that only the native engine can make: a compaction, an index, a merge.

        Args:
            identifier: The table.
            act: Receives the table as `open` returns it, commits through it, and returns the dataset afterwards.
            after: Commit as the version that follows this one, or raise `ConcurrentModification`.

        Raises `TableNotFound`, `VersionNotFound`, and as `write` does. Files that ``act`` wrote stay until `cleanup`.
        """
        return self._writes.commit_change(ObjectId.of(identifier), act, after)

    def abandon_write(self, plan: WritePlan) -> None:
        """Undo what `begin_write` changed in the catalog. Idempotent. Fragments stay until `cleanup`."""
        self._writes.abandon(plan)

    def open(
        self, identifier: Identifier, version: int | None = None, *, tag: str | None = None, branch: str | None = None
    ) -> Any:
        """Return a table as a ``lance.LanceDataset`` whose commits go through this catalog.

        By default the latest version of the main history; or a version, a tag, or a branch with or without a version.

        Raises:
            TableNotFound, VersionNotFound, TagNotFound, BranchNotFound.
            InvalidInput: A tag was given together with a version or a branch.
        """
        return self._writes.open(ObjectId.of(identifier), version, tag, branch)

    def describe_version(
        self, identifier: Identifier, version: int | None = None, *, tag: str | None = None, branch: str | None = None
    ) -> VersionDetails:
        """Return the schema and the counts of a version. Arguments and errors are those of `open`."""
        return self._writes.describe_version(ObjectId.of(identifier), version, tag, branch)

    def history(self, identifier: Identifier, limit: int | None = None) -> list[HistoryEntry]:
        """Return the versions of a table, newest first, at most ``limit``. Raises `TableNotFound`."""
        return self._writes.history(ObjectId.of(identifier), limit)

    def transaction(self) -> Transaction:
        """Return a transaction, which publishes writes to several tables together or not at all.

        Raises `Unsupported` if the commit store cannot reserve versions of several tables atomically.
        """
        return Transaction(self.versions, self._writes, self.engine)

    def snapshot(self, tables: Iterable[Identifier] | None = None) -> Snapshot:
        """Return the latest versions of several tables at one moment: of each transaction either all or nothing.

        By default of all tables that have a version.

        Raises:
            TableNotFound, VersionNotFound: A table does not exist, or is only declared.
            ConcurrentModification: Other writers kept creating and dropping the tables.
        """
        chosen = None if tables is None else [ObjectId.of(table) for table in tables]
        return take_snapshot(self.versions, self.tables, self._writes, chosen)

    def resolve(self, token: CommitToken | str) -> Outcome | AllCommitted:
        """Settle a commit of unknown outcome by the token of `CommitUnknown` or of `Unknown`. Idempotent.

        Returns:
            `Committed`, for a transaction `AllCommitted`, or `Conflict`: these are final. If the version is still free,
            the commit is completed. `Unknown` if the stores still do not answer, or if garbage collection or a drop
            has removed the version and its staged manifest.

        Raises:
            InvalidInput: The text is no token, or the token belongs to another catalog. Nothing was done.
        """
        return self.versions.resolve(token)

    # -- partitions ---------------------------------------------------------------------------------------------

    def create_partitioned(self, schema: Any, by: Iterable[PartitionBy]) -> PartitionedNamespace:
        """Make the catalog a partitioned namespace: tables that share a schema, divided by values of their rows.

        ``schema`` is a ``pyarrow.Schema``, whose columns receive numbers (``lance:field_id``) unless they have them;
        ``by`` names the levels, outermost first. Tables that the catalog already holds do not change.

        Raises:
            AlreadyExists, InvalidInput, Unsupported.
        """
        namespace = self._partitioned()
        namespace.create(schema, by)
        return namespace

    def partitioned(self) -> PartitionedNamespace:
        """Return the catalog as a partitioned namespace. Raises `NamespaceNotFound` if it is not partitioned."""
        namespace = self._partitioned()
        if not namespace.specs:
            raise NamespaceNotFound(f"{self.root_uri} is not partitioned; create_partitioned makes it so")
        return namespace

    def _partitioned(self) -> PartitionedNamespace:
        return PartitionedNamespace(self.ledger, self.places, self._writes, self.removal, self.engine)

    # -- versions -----------------------------------------------------------------------------------------------

    @property
    def commits(self) -> TableCommits:
        """The commits of table versions."""
        return self.ledger.commits

    @property
    def managed(self) -> bool:
        """Whether a commit store manages the versions of tables."""
        return self.ledger.managed

    def commit_version(
        self,
        table: Table,
        branch: str | None,
        version: int,
        manifest_path: str,
        size: int | None,
        *,
        base: Base | None = None,
    ) -> Outcome:
        """Make a staged manifest the next version of a table or branch; see `Versions.commit_version`."""
        return self.versions.commit_version(table, branch, version, manifest_path, size, base=base)

    def commit_versions(self, candidates: Sequence[NewVersion]) -> TransactionOutcome:
        """Make staged manifests the next versions of their tables, all or none; see `Versions.commit_versions`."""
        return self.versions.commit_versions(candidates)

    def delete_versions(self, root: DatasetRoot, versions: Iterable[int]) -> int:
        """Delete old versions of a table or branch, rows and manifests; see `Versions.delete_versions`."""
        return self.versions.delete_versions(root, versions)

    # -- places -------------------------------------------------------------------------------------------------

    @property
    def storage_options(self) -> Mapping[str, str]:
        """The options that the table engine needs to open a table."""
        return self.places.storage_options

    @property
    def root_uri(self) -> str:
        """The root of the catalog."""
        return self.places.root_uri

    @property
    def manifest_root(self) -> DatasetRoot:
        """The dataset root of the manifest table."""
        return self.places.manifest_root

    def dataset_root(self, table: Table) -> DatasetRoot:
        """Return the dataset root of a table; see `Places.dataset_root`."""
        return self.places.dataset_root(table)

    def uri(self, table: Table) -> str:
        """Return the URI by which the table engine opens a table."""
        return self.places.uri(table)

    def is_bare(self) -> bool:
        """Return whether nothing at all lies below the root: the catalog is new, or its root is mistyped."""
        return self.places.is_bare()

    def view(self) -> CatalogView:
        """Return the entries as of now; see `Ledger.view`."""
        return self.ledger.view()

    # -- life ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Release the connections to the stores. Idempotent."""
        self.ledger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Catalog({self.root_uri!r}, commit_store={self.ledger.own_store!r})"
