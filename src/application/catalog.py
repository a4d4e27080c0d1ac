"""The public API of a catalog: its namespaces, tables and table versions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from lancekeep.application.services import DEPRECATED, Services, deprecated_part
from lancekeep.application.upkeep.directory import Directory, NoDirectory
from lancekeep.domain.errors import InvalidInput, NamespaceNotFound
from lancekeep.domain.identifiers import Identifier, ObjectId
from lancekeep.domain.manifest_entry import NAMESPACE

if TYPE_CHECKING:
    from lancekeep.application.commits.commit_rows import CommitRows
    from lancekeep.application.commits.unresolved import UnresolvedCommits
    from lancekeep.application.entries.dropped import DroppedTable
    from lancekeep.application.entries.services import ChangeService, TagService
    from lancekeep.application.entries.tables import Description
    from lancekeep.application.events.service import EventService
    from lancekeep.application.partitions.services import PartitionService
    from lancekeep.application.rows.branches import Branches
    from lancekeep.application.rows.differences import Difference, Reference
    from lancekeep.application.rows.table_data import TableData
    from lancekeep.application.rows.table_scan import TableScan
    from lancekeep.application.rows.table_structure import TableStructure
    from lancekeep.application.rows.table_versions import TableVersions
    from lancekeep.application.rows.transactions import Snapshot, Transaction
    from lancekeep.application.rows.version_times import Moment
    from lancekeep.application.rows.views import Views
    from lancekeep.application.upkeep.services import UpkeepService
    from lancekeep.domain.commit import Committed, Outcome
    from lancekeep.domain.commit_token import CommitToken
    from lancekeep.domain.namespace import Namespace
    from lancekeep.domain.operations import Transaction as TableTransaction
    from lancekeep.domain.table import Table
    from lancekeep.domain.transaction import AllCommitted
    from lancekeep.ports.table_engine import WritePlan


class Catalog:
    """The namespaces and tables below one root. Open it with `lancekeep.connect`.

    Identifiers are strings with ``.`` between the names, or lists of names. Every operation sees all changes that any
    process had acknowledged before the operation began. Threads may share an instance. Instances do not pickle: ship
    the arguments of ``connect`` instead.

    A catalog over a server raises `Unsupported` for operations that the REST protocol does not have.
    """

    def __init__(self, services: Services, root_uri: str, directory: Directory | None = None) -> None:
        """Create the facade; `lancekeep.connect` calls this."""
        self._root_uri = root_uri
        self._directory = directory
        self._services = services

    @property
    def data(self) -> TableData:
        """The rows of tables: changes, queries and indexed searches."""
        return self._services.data

    @property
    def structure(self) -> TableStructure:
        """The columns and indexes of tables."""
        return self._services.structure

    @property
    def tags(self) -> TagService:
        """The tags of versions."""
        return self._services.tags

    @property
    def changes(self) -> ChangeService:
        """The feed of changes of the catalog."""
        return self._services.changes

    @property
    def events(self) -> EventService:
        """The events of the catalog: changes of entries and commits of tables."""
        return self._services.events

    @property
    def versions(self) -> TableVersions:
        """The versions of tables."""
        return self._services.versions

    @property
    def branches(self) -> Branches:
        """The branches of tables."""
        return self._services.branches

    @property
    def views(self) -> Views:
        """The materialized views."""
        return self._services.views

    @property
    def partitions(self) -> PartitionService:
        """The partitions of the catalog, if its tables are divided by values."""
        return self._services.partitions

    @property
    def upkeep(self) -> UpkeepService:
        """The maintenance of the catalog: checks, garbage collection and migrations."""
        return self._services.upkeep

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

        Args:
            identifier: The namespace.
            properties: Its properties.
            exist_ok: Return an existing namespace unchanged.
            overwrite: Replace an existing, empty namespace atomically.

        Raises:
            NamespaceAlreadyExists: The namespace exists.
            NamespaceNotFound: The parent does not exist.
            NamespaceNotEmpty: ``overwrite`` is set, and the namespace is not empty.
            InvalidInput: An argument is invalid.
        """
        return self._services.namespaces.create(
            ObjectId.of(identifier), properties, exist_ok=exist_ok, overwrite=overwrite
        )

    def alter_namespace(
        self,
        identifier: Identifier,
        set: Mapping[str, str] | None = None,  # noqa: A002 - the word that a caller reads
        remove: Iterable[str] = (),
    ) -> Namespace:
        """Set and remove properties of a namespace or the root; keep the others.

        Raises:
            NamespaceNotFound: The namespace does not exist.
            InvalidInput: A property is invalid.
            Unsupported: The catalog is a V1 directory.
        """
        return self._services.namespaces.alter(ObjectId.of(identifier), set, remove)

    def describe_namespace(self, identifier: Identifier) -> Namespace:
        """Return a namespace with its properties, including properties of partitions.

        Raises:
            NamespaceNotFound: The namespace does not exist.
        """
        return self._services.namespaces.describe(ObjectId.of(identifier))

    def namespace_exists(self, identifier: Identifier) -> bool:
        """Return whether the namespace exists; the root always does."""
        try:
            self.describe_namespace(identifier)
        except NamespaceNotFound:
            return False
        return True

    def list_namespaces(self, identifier: Identifier = "") -> list[str]:
        """Return the names of the child namespaces of a namespace, sorted.

        Raises:
            NamespaceNotFound: The namespace does not exist.
        """
        return self._services.namespaces.page(ObjectId.of(identifier), NAMESPACE, None, None)[0]

    def drop_namespace(
        self,
        identifier: Identifier,
        *,
        cascade: bool = False,
        force: bool = False,
        keep: timedelta | float | None = None,
    ) -> Namespace:
        """Drop a namespace.

        Args:
            identifier: The namespace.
            cascade: Drop its contents too. Its tables are dropped as by `drop_table`.
            force: With ``cascade``, also drop tables that shallow clones read.
            keep: With ``cascade``, as of `drop_table`.

        Raises:
            NamespaceNotFound: The namespace does not exist.
            NamespaceNotEmpty: The namespace is not empty, and ``cascade`` is not set.
            Refused: The namespace, or something in it, is protected; or a clone outside the namespace reads files of a
                table that would be removed at once. Nothing was changed.
            Damaged: Everything was dropped, except the data of a table that is reached by a symbolic link, or that
                became the source of a clone during the drop.
        """
        return self._services.namespaces.drop(ObjectId.of(identifier), cascade=cascade, force=force, keep=keep)

    # -- tables -------------------------------------------------------------------------------------------------

    def declare_table(
        self, identifier: Identifier, properties: Mapping[str, str] | None = None, *, location: str | None = None
    ) -> Table:
        """Reserve a name and a directory for a table that has no version yet.

        Args:
            identifier: The table.
            properties: Its properties.
            location: A directory below the root, as a relative path or a URI. The default is ``{hash}_{object_id}``,
                with a new hash for each attempt. In a catalog that keeps V1 names, the default is ``{name}.lance`` in
                the root, unless that directory holds a deregistered table (V2 specification, compatibility mode, rule
                3).

        Raises:
            TableAlreadyExists, NamespaceNotFound, InvalidInput, Unsupported: Nothing was declared.
            ConcurrentModification: Another writer dropped or renamed the table, or registered its directory.
        """
        return self._services.tables.declare(ObjectId.of(identifier), properties, location)

    def register_table(
        self,
        identifier: Identifier,
        location: str,
        properties: Mapping[str, str] | None = None,
        *,
        overwrite: bool = False,
    ) -> Table:
        """Add an existing Lance table below the root to the catalog.

        Args:
            identifier: The table.
            location: Its directory, as a relative path, an absolute path or a URI.
            properties: Its properties.
            overwrite: Replace an existing entry of that name.

        Raises:
            TableNotFound: The location holds no table.
            TableAlreadyExists: The name is taken.
            InvalidInput: The location is outside the root, or belongs to another table.
            Refused: The location holds the unfinished copy of a table that is being renamed.
            ConcurrentModification: The table is a clone, and its source was dropped or renamed during the call.
        """
        return self._services.tables.register(ObjectId.of(identifier), location, properties, overwrite=overwrite)

    def alter_table(
        self,
        identifier: Identifier,
        set: Mapping[str, str] | None = None,  # noqa: A002 - the word that a caller reads
        remove: Iterable[str] = (),
    ) -> Table:
        """Set and remove properties of a table, as `alter_namespace` does.

        Raises:
            TableNotFound: The table does not exist.
        """
        return self._services.tables.alter(ObjectId.of(identifier), set, remove)

    def rename_table(self, source: Identifier, target: Identifier) -> Table:
        """Rename a table, also into another namespace, in one atomic change.

        The files stay in their directory. The exception is a V1 directory in a catalog that keeps V1 names: its files
        move to a directory of the new name (V2 specification, compatibility mode, rule 4), including versions that are
        committed during the move. Later commits under the old name are refused.

        Raises:
            TableNotFound, NamespaceNotFound, TableAlreadyExists, InvalidInput, Unsupported: Nothing was changed.
            Refused: The files have to move, and the table has branches or LSM writes, or a clone in the catalog reads
                its files.
            ConcurrentModification: Other writers kept committing. Nothing was changed.
            Damaged: The table has its new name, but a version in the old directory could not be moved. Nothing was
                removed.
        """
        return self._services.rename(ObjectId.of(source), ObjectId.of(target))

    def deregister_table(self, identifier: Identifier) -> Table:
        """Remove a table from the catalog, but keep its files and versions.

        Raises:
            TableNotFound: The table does not exist.
        """
        return self._services.tables.deregister(ObjectId.of(identifier))

    def drop_table(
        self, identifier: Identifier, *, force: bool = False, keep: timedelta | float | None = None
    ) -> Table:
        """Remove a table from the catalog. Later commits to it are refused.

        A table that is kept leaves every list and its name is free, but its files and versions stay: `undrop` brings it
        back, `purge` removes it, and `Upkeep.cleanup` does so when its time is over. Its clones remain readable. A
        table that has no version is removed at once.

        Otherwise its files and versions are removed. Files in its directory that neither Lance nor Lancekeep wrote
        stay, and `Upkeep.fsck` reports the directory.

        Args:
            identifier: The table.
            force: Remove the table even if shallow clones read its files. The clones are unreadable afterwards.
            keep: How long the table can be brought back: a time span, or seconds; 0 removes it at once. The default is
                the property ``lancekeep.undrop`` of the table, or else of the catalog.

        Raises:
            TableNotFound: The table does not exist.
            Refused: The table is protected; or it would be removed at once, and a shallow clone in the catalog reads
                its files. Nothing was changed.
            Unsupported: The table would be kept, and the catalog is a V1 directory. Nothing was changed.
            InvalidInput: ``keep`` is no time.
            Damaged: The table is reached by a symbolic link.
        """
        return self._services.tables.drop(ObjectId.of(identifier), force=force, keep=keep)

    def list_dropped(self, identifier: Identifier = "") -> list[DroppedTable]:
        """Return the dropped tables, by identifier and time.

        Args:
            identifier: The identifier that the tables had, or a namespace above them. By default all.
        """
        return list(self._services.dropped.list(ObjectId.of(identifier)))

    def undrop(
        self, identifier: Identifier, as_: Identifier | None = None, *, drop: str | datetime | None = None
    ) -> Table:
        """Bring a dropped table back as it was.

        It has its rows, versions, tags, branches, indexes and properties.

        Args:
            identifier: The identifier that the table had.
            as_: The identifier of the table from now on; by default the same.
            drop: Which of several dropped tables of that identifier: `DroppedTable.drop`, or `DroppedTable.at`. By
                default the one that was dropped last.

        Raises:
            TableNotFound: There is no such dropped table.
            TableAlreadyExists: The name is taken.
            NamespaceNotFound: The namespace does not exist.
            Refused: The removal of its files has begun.
        """
        target = identifier if as_ is None else as_
        return self._services.dropped.undrop(ObjectId.of(identifier), ObjectId.of(target), drop)

    def purge(self, identifier: Identifier, *, drop: str | datetime | None = None, force: bool = False) -> DroppedTable:
        """Remove the files and versions of a dropped table.

        It cannot be brought back afterwards. If the call is interrupted, repeat it to complete it.

        Args:
            identifier: The identifier that the table had.
            drop: As of `undrop`.
            force: Remove the files even if shallow clones read them. The clones are unreadable afterwards.

        Raises:
            TableNotFound: There is no such dropped table.
            Refused: A shallow clone reads its files, its name is protected, or another process has registered its
                directory. Nothing was removed.
        """
        return self._services.dropped.purge(ObjectId.of(identifier), drop, force=force)

    def protect(self, identifier: Identifier) -> None:
        """Protect a table, or a namespace and everything below it. Idempotent.

        Until `unprotect`, the catalog refuses to drop, deregister, replace, rename, relocate and purge it, and to
        overwrite or restore a table. `Upkeep.cleanup` keeps the versions up to the latest tag of each history. Native
        processes that do not ask the catalog are not stopped.

        Raises:
            NamespaceNotFound: There is no such table or namespace.
            Unsupported: The catalog is a V1 directory.
        """
        self._services.protection.change(ObjectId.of(identifier), protected=True)

    def unprotect(self, identifier: Identifier) -> None:
        """End the protection of a table or a namespace. Idempotent.

        Raises as `protect` does.
        """
        self._services.protection.change(ObjectId.of(identifier), protected=False)

    def initialize(self) -> bool:
        """Create the catalog with the properties of a new one, unless it exists.

        A new catalog keeps dropped tables for seven days (``lancekeep.undrop``). A V1 directory needs nothing.

        Returns:
            Whether the catalog was created.
        """
        return self._local("initialize").namespaces.initialize()

    def clones_of(self, identifier: Identifier) -> list[str]:
        """Return the shallow clones that read files of a table.

        Returns:
            Identifiers of tables; for a clone that is not in the catalog, its location.

        Raises:
            TableNotFound: The table does not exist.
        """
        return self._local("clones_of").removal.readers(self.find_table(identifier))

    def clone(
        self, source: Identifier, target: Identifier, version: int | str | None = None, *, deep: bool = False
    ) -> Table:
        """Clone a version of a table.

        A shallow clone reads the files of its source, and its source cannot be dropped. A deep clone has copies; if it
        was stopped, the same call completes it.

        Args:
            source: The table to clone.
            target: The new table. It keeps the version number of its source.
            version: A version or the name of a tag; the latest version by default.
            deep: Copy all files.

        Raises:
            TableNotFound, VersionNotFound, TagNotFound: The source, the version or the tag does not exist.
            TableAlreadyExists: The target exists.
            Refused: The source has LSM writes that are in no version.
            Unsupported: The version belongs to a branch.
            ConcurrentModification: The source was removed while it was cloned. Nothing was cloned. Or the target was
                removed.
            CommitUnknown: The outcome is unknown.
        """
        return self._local("clone").cloning.clone(ObjectId.of(source), ObjectId.of(target), version, deep=deep)

    def find_table(self, identifier: Identifier) -> Table:
        """Return a table's entry.

        Raises:
            TableNotFound: The table does not exist.
        """
        return self._services.tables.find(ObjectId.of(identifier))

    def table_exists(self, identifier: Identifier) -> bool:
        """Return whether the catalog has the table, including declared-only tables."""
        return self._services.tables.exists(ObjectId.of(identifier))

    def describe_table(self, identifier: Identifier) -> Description:
        """Return a table's URI, properties and latest version.

        Raises:
            TableNotFound: The table does not exist.
        """
        return self._services.tables.describe(ObjectId.of(identifier))

    def list_tables(self, identifier: Identifier = "", *, include_declared: bool = True) -> list[str]:
        """Return the names of the tables in a namespace, sorted.

        Raises:
            NamespaceNotFound: The namespace does not exist.
        """
        object_id = ObjectId.of(identifier)
        return self._services.tables.page(object_id, None, None, include_declared=include_declared)[0]

    def list_all_tables(self, after: str | None = None, *, include_declared: bool = True) -> Iterator[ObjectId]:
        """Yield every table after an `ObjectId.key`, in the byte order of these keys."""
        return self._services.tables.all(after, include_declared=include_declared)

    # -- data ---------------------------------------------------------------------------------------------------

    def write(
        self,
        identifier: Identifier,
        data: Any,
        mode: str = "create",
        *,
        properties: Mapping[str, str] | None = None,
        stable_row_ids: bool | None = None,
    ) -> Committed:
        """Write data as one version of a table.

        Args:
            identifier: The table.
            data: A ``pyarrow`` Table, RecordBatch or RecordBatchReader, or a pandas or polars frame.
            mode: ``create`` makes a new table. ``append`` adds rows to an existing one. ``overwrite`` replaces the
                rows, or creates the table if it does not exist.
            properties: The properties of a table that this write creates. With ``overwrite``, they also replace the
                properties of an existing table, after the rows; None keeps them.
            stable_row_ids: Whether rows of a table that this write creates keep their ids when they are updated or
                compacted. None takes the property ``lancekeep.stable_row_ids`` of the table, or else of the root
                namespace. A table keeps its choice: if it has a version, another value is refused.

        Raises:
            TableAlreadyExists, TableNotFound, NamespaceNotFound, InvalidInput: Nothing was written.
            ConcurrentModification: Other writers kept winning. Nothing was committed.
            CommitUnknown: The outcome is unknown. `resolve` settles it.
            StoreUnavailable: A store did not answer. A table that this write creates either exists completely or does
                not exist; check before you retry.
        """
        return self._services.writes.write(ObjectId.of(identifier), data, mode, properties, stable_row_ids)

    def begin_write(
        self,
        identifier: Identifier,
        schema: Any,
        mode: str = "create",
        *,
        properties: Mapping[str, str] | None = None,
        stable_row_ids: bool | None = None,
        location: str | None = None,
    ) -> WritePlan:
        """Return a plan for distributed workers to write fragments. It pickles.

        `commit_fragments` commits the fragments as one version; `abandon_write` gives up. Takes the arguments of
        `write`, and raises its errors. ``location`` is the directory of a table that this plan creates, as for
        `declare_table`.
        """
        return self._services.writes.begin(ObjectId.of(identifier), schema, mode, properties, stable_row_ids, location)

    def commit_fragments(
        self,
        plan: WritePlan,
        fragments: Sequence[Any],
        *,
        properties: Mapping[str, str] | None = None,
        exactly: bool = False,
    ) -> Committed:
        """Commit fragments as one version of the plan's table.

        Raises the errors of `write`.

        Args:
            plan: The plan for which the fragments were written.
            fragments: Each a ``lance.FragmentMetadata`` or its JSON.
            properties: Properties of the version's transaction, by which a later reader can recognize the commit.
            exactly: Commit as the version after ``plan.read_version``, or raise `ConcurrentModification`.
        """
        return self._services.writes.commit_fragments(plan, fragments, dict(properties or {}), exactly=exactly)

    def commit_change(
        self,
        identifier: Identifier,
        act: Callable[[Any], Any],
        *,
        after: int | None = None,
        branch: str | None = None,
    ) -> Committed:
        """Commit a change that only Lance itself can make, such as a compaction or index.

        Files that ``act`` wrote stay until `Upkeep.cleanup`. Also raises the errors of `write`.

        Args:
            identifier: The table.
            act: Receives the table as `open` returns it, commits through it, and returns the dataset afterwards.
            after: Commit as the version after this one, or raise `ConcurrentModification`.
            branch: The branch to change; by default the main history.

        Raises:
            TableNotFound, BranchNotFound: The table or the branch does not exist.
            VersionNotFound: The table is only declared.
        """
        return self._services.writes.commit_change(ObjectId.of(identifier), act, after, branch=branch)

    def commit(
        self,
        identifier: Identifier,
        transaction: TableTransaction,
        *,
        base: str | None = None,
        detached: bool = False,
    ) -> Committed:
        """Commit a transaction of one table without the Lance engine.

        The transaction is compared with those committed since the version that it read, and its manifest is built on
        the latest version ([conflicts](conflicts.md)). It appends, deletes, updates, overwrites, restores,
        rewrites, or changes the configuration or places of base paths. Idempotent for one UUID of a transaction, unless
        it is detached.

        Args:
            identifier: The table.
            transaction: The transaction.
            base: The name of the transaction file of the version that the transaction read, as `inspect` shows it.
                A table later created in the same directory has another transaction file name. Without ``base``, such a
                table is recognized only by data files that are missing or differ.
            detached: Build the version on the one that the transaction read, with a random number, outside of the
                history. Readers see it only if they name its number.

        Raises:
            TableNotFound, VersionNotFound: The table or a version does not exist.
            InvalidInput: The transaction read a version that the table does not have.
            ConcurrentModification: It conflicts with another commit; read the table again and repeat the operation.
            CommitRefused: It conflicts, and repeating it could mean something else; or it was built on another table.
            Unsupported: The operation or the table needs the Lance engine.
            CommitUnknown: The outcome is unknown.
        """
        return (
            self._local("commit")
            .transactions()
            .commit(ObjectId.of(identifier), transaction, base=base, detached=detached)
        )

    def abandon_write(self, plan: WritePlan) -> None:
        """Undo `begin_write`. Idempotent. Fragments stay until `Upkeep.cleanup`."""
        self._services.writes.abandon(plan)

    def open(
        self,
        identifier: Identifier,
        version: int | None = None,
        *,
        tag: str | None = None,
        branch: str | None = None,
        timestamp: Moment | None = None,
    ) -> Any:
        """Return a table as a ``lance.LanceDataset`` that commits through this catalog.

        Without a commit store, it does so in a V1 directory only. Elsewhere it commits without the catalog, also after
        the table was dropped.

        Args:
            identifier: The table.
            version: A version; by default the latest.
            tag: A tag, without a version or branch.
            branch: A branch; by default the main history.
            timestamp: A time instead of a version: the version that was the latest then. A ``datetime`` with a zone, or
                an ISO 8601 text with an offset. A version is the latest from its own time on, which
                `TableVersions.history` shows.

        Raises:
            TableNotFound, VersionNotFound, TagNotFound, BranchNotFound: The object does not exist.
            InvalidInput: A tag was given together with a version or a branch, or a time together with a version or a
                tag; or the time has no zone.
        """
        from lancekeep.application.rows.version_times import version_of  # as in `inspect`

        object_id, writes = ObjectId.of(identifier), self._services.writes
        return writes.handle(object_id, version_of(writes, object_id, version, tag, branch, timestamp), tag, branch)

    def scan(
        self,
        identifier: Identifier,
        version: int | None = None,
        *,
        tag: str | None = None,
        branch: str | None = None,
        timestamp: Moment | None = None,
    ) -> TableScan:
        """Begin to read a table into frames of other packages.

        The version is chosen as by `open`. It stays the same for all reads of the scan.
        """
        from lancekeep.application.rows.table_scan import TableScan  # as in `inspect`
        from lancekeep.application.rows.version_times import version_of
        from lancekeep.ports.rows import Query

        object_id, writes = ObjectId.of(identifier), self._services.writes
        at = version_of(writes, object_id, version, tag, branch, timestamp)
        dataset = writes.open(object_id, at, tag, branch)
        return TableScan(object_id, dataset.version, Query(), dataset, self._services.engine.rows)

    def diff(self, identifier: Identifier, before: Reference, after: Reference = None) -> Difference:
        """Compare two versions of a table.

        Schema, counts and files come from the manifests. `Difference.rows` reads the rows that were inserted, deleted
        and updated, and only fragments that differ.

        Args:
            identifier: The table.
            before: The first version: a number, the name of a tag, a ``datetime`` with a zone, or `At` for a branch.
            after: The second version; by default the latest.

        Raises:
            TableNotFound, VersionNotFound, TagNotFound, BranchNotFound: The object does not exist.
            InvalidInput: A time has no zone, or a reference is ambiguous.
        """
        from lancekeep.application.rows.differences import Differences  # as in `inspect`

        services = self._services
        found = Differences(services.writes, services.tags, services.engine)
        return found.between(ObjectId.of(identifier), before, after)

    def inspect(
        self,
        identifier: Identifier,
        version: int | str | None = None,
        *,
        file: str | None = None,
        fragment: int | None = None,
        most_fragments: int = 10,
    ) -> dict[str, Any]:
        """Describe the stored metadata of a table, without the Lance engine.

        Args:
            identifier: The table; or the path or URI of its directory, or of a file in it. Finding a path reads all
                entries of the catalog.
            version: A version or the name of a tag; the latest version by default.
            file: A file to describe instead, by its path below the table: a manifest, also a staged one, a transaction,
                a data file or a deletion file.
            fragment: A fragment of the version to describe instead.
            most_fragments: The most fragments to list.

        Returns:
            Plain values, as ``lancekeep inspect --json`` prints them.

        Raises:
            TableNotFound, VersionNotFound, TagNotFound: The table, the version or the tag does not exist.
            ObjectNotFound: The file does not exist.
            InvalidInput: The path names no such file, or the version has no such fragment.
            Damaged: The metadata cannot be decoded.
            Unsupported: Readers of the table need a feature that is not known here, or the file exceeds 1 GiB.
        """
        from lancekeep.application.rows.inspection import Inspection  # loads classes that no other operation needs

        own = self._local("inspect")
        inspection = Inspection(own.ledger, own.places, own.tables, own.tags, own.mem_wal)
        return inspection.inspect(identifier, version, file, fragment, most_fragments)

    def commit_rows(
        self, identifier: Identifier, limit: int = 50, *, before: int | None = None, branch: str | None = None
    ) -> CommitRows:
        """Return rows of the commit store for a table, and its staged manifests.

        Newest first. Completes and adopts no commit, so it also shows commits whose writer has stopped.

        Args:
            identifier: The table.
            limit: The most rows.
            before: Only rows of versions before this one, for the next page.
            branch: A branch; by default the main history.

        Raises:
            TableNotFound: The table does not exist.
            InvalidInput: The limit is less than 1, or no branch can have such a name.
            Damaged: A row names a file of another table.
        """
        from lancekeep.application.commits.commit_rows import commit_rows  # as in `inspect`

        if limit < 1:
            raise InvalidInput(f"the limit is {limit}; give a positive number")
        own = self._local("commit_rows")
        root = own.places.dataset_root(own.tables.find(ObjectId.of(identifier))).branch(branch)
        return commit_rows(own.commits, root, before, limit)

    def unresolved_commits(self, limit: int = 100, *, after: str | None = None) -> UnresolvedCommits:
        """Return commits of all tables that a row decides, and that are not complete.

        Completes none of them; the next reader or writer of a table does. The cost grows with their number, not with
        the number of tables. Staged manifests without a row are found by `Upkeep.fsck`.

        Args:
            limit: The most commits.
            after: ``following`` of the page before.

        Raises:
            InvalidInput: The limit is less than 1, or ``after`` is of no page.
            Unsupported: The commit store has no index of such rows. SQLite and memory have one. Without a commit store
                there are no such rows.
        """
        from lancekeep.application.commits.unresolved import unresolved_commits  # as in `inspect`

        if limit < 1:
            raise InvalidInput(f"the limit is {limit}; give a positive number")
        own = self._local("unresolved_commits")
        return unresolved_commits(own.commits, own.places.root_uri, own.ledger.view, after, limit)

    def transaction(self) -> Transaction:
        """Return a transaction, which commits writes to several tables atomically.

        Raises:
            Unsupported: The commit store cannot reserve versions of several tables atomically.
        """
        from lancekeep.application.rows.transactions import Transaction  # as in `inspect`

        own = self._local("transaction")
        return Transaction(own.versions, own.writes, own.engine)

    def snapshot(self, tables: Iterable[Identifier] | None = None) -> Snapshot:
        """Return a consistent snapshot of the latest versions of several tables.

        The snapshot contains either all or none of the versions of each transaction.

        Args:
            tables: The tables; by default all that have a version.

        Raises:
            TableNotFound, VersionNotFound: A table does not exist, or is only declared.
            ConcurrentModification: Other writers kept creating and dropping the tables.
        """
        from lancekeep.application.rows.transactions import take_snapshot  # as in `inspect`

        chosen = None if tables is None else [ObjectId.of(table) for table in tables]
        own = self._local("snapshot")
        return take_snapshot(own.versions, own.tables, own.writes, chosen)

    def resolve(self, token: CommitToken | str) -> Outcome | AllCommitted:
        """Settle a commit of unknown outcome. Idempotent.

        Args:
            token: The token of `CommitUnknown` or `Unknown`.

        Returns:
            `Committed` (`AllCommitted` for a transaction) or `Conflict`, which are final. If the version is still free,
            the commit is completed. `Unknown` if the stores still do not answer, or if garbage collection or a drop has
            removed the version and its staged manifest.

        Raises:
            InvalidInput: The text is not a token, or the token belongs to another catalog. Nothing was done.
        """
        return self._services.resolve(token)

    # -- settings -----------------------------------------------------------------------------------------------

    @property
    def root_uri(self) -> str:
        """The root of the catalog, or the URI of its server."""
        return self._root_uri

    @property
    def storage_options(self) -> Mapping[str, str]:
        """The options with which ``lance.dataset`` opens a table at its URI.

        A server vends more options for each table.
        """
        return self._services.storage_options

    # -- life ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Release the connections to the stores. Idempotent.

        The digests of the last commits are recorded before.
        """
        self._services.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    if not TYPE_CHECKING:  # a type checker rejects the deprecated names

        def __getattr__(self, name: str) -> object:
            """Return a part by its former, deprecated name."""
            if name not in DEPRECATED:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            from lancekeep.application.deprecation import warn_of_move  # as in `inspect`

            part, replacement = deprecated_part(name, self._services, self._local)
            warn_of_move(name, replacement)
            return part

    def _local(self, operation: str) -> Directory:
        """Return the parts of the catalog that only a directory has.

        Raises:
            NoDirectory: A server has the catalog.
        """
        if self._directory is None:
            raise NoDirectory.at(self._root_uri, operation)
        return self._directory

    def _repr_html_(self) -> str:
        from lancekeep.domain.notebook import html_table  # as in `inspect`

        store = [] if self._directory is None else [("commit store", self._directory.ledger.own_store)]
        return html_table(type(self).__name__, [("root", self.root_uri), *store])

    def __repr__(self) -> str:
        store = "" if self._directory is None else f", commit_store={self._directory.ledger.own_store!r}"
        return f"Catalog({self.root_uri!r}{store})"


def directory_of(catalog: Catalog, operation: str = "parts of a directory") -> Directory:
    """Return the parts that only a directory has, for modules of Lancekeep.

    Args:
        catalog: The catalog.
        operation: What needs the parts, for the message.

    Raises:
        NoDirectory: A server has the catalog.
    """
    return catalog._local(operation)


def services_of(catalog: Catalog) -> Services:
    """Return the parts that every catalog has, for modules of Lancekeep."""
    return catalog._services
