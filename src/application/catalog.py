"""The catalog: what a user does with namespaces, tables and their versions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Any, Self

import attrs

from lancekeep.application.ledger import Ledger
from lancekeep.application.partitions.namespace import PartitionedNamespace
from lancekeep.application.places import Places
from lancekeep.application.table_commits import TableCommits
from lancekeep.application.tokens import parse_token
from lancekeep.application.transaction_commits import TransactionCommits
from lancekeep.application.transactions import Snapshot, Transaction, take_snapshot
from lancekeep.application.upkeep.cleanup import Cleanup, CleanupReport
from lancekeep.application.upkeep.clones import Clones
from lancekeep.application.upkeep.fsck import Fsck, FsckReport, Progress
from lancekeep.application.upkeep.migration import MigrationProgress, MigrationReport, migrate
from lancekeep.application.upkeep.relocation import Relocation
from lancekeep.application.upkeep.table_checks import TableChecks
from lancekeep.application.versions import NewVersion, Versions, raise_unless_committed
from lancekeep.domain.catalog import CatalogView, Change, SetProperties, page
from lancekeep.domain.commit import Committed, Conflict, Outcome, Unknown
from lancekeep.domain.commit_token import CommitToken, CommitUnknown
from lancekeep.domain.errors import (
    AlreadyExists,
    BranchNotFound,
    ConcurrentModification,
    Damaged,
    InvalidInput,
    LancekeepError,
    NamespaceNotFound,
    NotFound,
    ObjectNotFound,
    Refused,
    StoreUnavailable,
    TableAlreadyExists,
    TableNotFound,
    Unsupported,
    VersionNotFound,
    VersionTaken,
)
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import BRANCHES, DatasetRoot
from lancekeep.domain.lineage import Base
from lancekeep.domain.manifest_entry import NAMESPACE, OWN_PROPERTIES, TABLE
from lancekeep.domain.namespace import (
    Namespace,
    alter_namespace,
    create_namespace,
    drop_namespace,
    find_namespace,
    replace_namespace,
)
from lancekeep.domain.partitioning import PartitionBy
from lancekeep.domain.partitions import made_up_properties
from lancekeep.domain.table import (
    MANIFEST_DIRECTORY,
    MARKER_CONTENT,
    Table,
    add_table,
    alter_table,
    find_table,
    is_at,
    remove_table,
    rename_table,
    v1_location,
    v1_table,
)
from lancekeep.domain.transaction import AllCommitted, TransactionOutcome
from lancekeep.format.file_references import names_in
from lancekeep.ports.commit_store import ExternalCommitStore
from lancekeep.ports.table_engine import TableEngine, VersionDetails, WriteMode, WritePlan

Identifier = str | Iterable[str] | ObjectId

_LISTED_DIRECTORIES, _LISTED_LOOKS = 1000, 50
"""How many V1 directories, and how many tables among them that no manifest table has, are searched for clones."""

_FORCE = (
    "`lancekeep drop --force` (drop_table(force=True), drop_namespace(force=True)) drops the table all the same; the "
    "clones cannot be read afterwards."
)
_RENAME_IN_PLACE = "A catalog opened with mode='v2' renames the table without moving its files."

_DEFINITE = (AlreadyExists, NotFound, Refused, InvalidInput, ConcurrentModification)
"""Errors of a change after which it is certain that nothing was changed."""


@attrs.frozen
class HistoryEntry:
    """One version of a table.

    timestamp: when it was made, UTC. operation: what its transaction did. rows: how many the table holds at it.
    committer: who committed it, as far as the commit store knows; empty otherwise.
    """

    version: int
    timestamp: datetime
    operation: str
    rows: int
    committer: str


@attrs.frozen
class Description:
    """A table: where it lies, and its latest version (None while it is only declared)."""

    id: ObjectId
    uri: str
    version: int | None
    properties: Mapping[str, str]
    managed: bool


class Catalog:
    """Namespaces and tables below one root; `lancekeep.connect` makes it.

    Identifiers are strings with ``.`` between the names, or lists of names. Every operation sees what was acknowledged
    before it began, by any process. Instances may be shared between threads; they are not pickled: ship the arguments
    of ``connect``.
    """

    def __init__(
        self,
        places: Places,
        ledger: Ledger,
        versions: Versions,
        engine: Callable[[Catalog], TableEngine],
        *,
        open_rows: Callable[[str], ExternalCommitStore],
    ) -> None:
        self.places = places
        self.ledger = ledger
        self.versions = versions
        self._open_rows = open_rows
        self._clones = Clones(places.objects, ledger.commits.retry, places.root_key)
        ledger.commits.on_staged = self._record_clone
        self._engine = engine(self)
        versions.tagged_versions = lambda uri: self._engine.tagged_versions(uri)

    @property
    def commits(self) -> TableCommits:
        """The commits of table versions."""
        return self.ledger.commits

    @property
    def managed(self) -> bool:
        """Whether a commit store manages the versions of tables."""
        return self.ledger.managed

    @property
    def storage_options(self) -> Mapping[str, str]:
        """The options that the table engine needs to open a table."""
        return self.places.storage_options

    # -- namespaces ---------------------------------------------------------------------------------------------

    def create_namespace(
        self,
        identifier: Identifier,
        properties: Mapping[str, str] | None = None,
        *,
        exist_ok: bool = False,
        overwrite: bool = False,
    ) -> Namespace:
        """Create a namespace below an existing one.

        With ``exist_ok`` an existing one is kept as it is; with ``overwrite`` an existing one that is empty is replaced
        in one step. Raises `NamespaceAlreadyExists`, `NamespaceNotFound` (its parent), `NamespaceNotEmpty`,
        `InvalidInput`.
        """
        if exist_ok and overwrite:
            raise InvalidInput("an existing namespace can be kept (exist_ok) or replaced (overwrite), not both")
        object_id = ObjectId.of(identifier)
        created = Namespace(object_id, _checked_properties(properties))
        kept: list[Namespace] = []

        def decide(view: CatalogView) -> list[Change]:
            kept.clear()
            if exist_ok:
                with suppress(NamespaceNotFound):
                    kept.append(find_namespace(view, object_id))
                    return []
            return (replace_namespace if overwrite else create_namespace)(view, object_id, created.properties)

        self.ledger.apply(decide)
        return kept[0] if kept else created

    def alter_namespace(
        self,
        identifier: Identifier,
        set: Mapping[str, str] | None = None,  # noqa: A002 - the word that a caller reads
        remove: Iterable[str] = (),
    ) -> Namespace:
        """Set some properties of a namespace, the root too, and remove others; the rest stay as they are.

        A property that is not there counts as removed. Raises `NamespaceNotFound`, `InvalidInput`, `Unsupported`.
        """
        object_id = ObjectId.of(identifier)
        changes = _property_changes(set, remove)
        altered: list[Namespace] = []

        def decide(view: CatalogView) -> list[Change]:
            before = find_namespace(view, object_id)
            altered[:] = [Namespace(object_id, SetProperties(changes).merged_into(before.properties))]
            return alter_namespace(view, object_id, changes)

        self.ledger.apply(decide)
        return altered[0]

    def describe_namespace(self, identifier: Identifier) -> Namespace:
        """A namespace and its properties, with those made up for partitions. Raises `NamespaceNotFound`."""
        view, object_id = self.view(), ObjectId.of(identifier)
        found = find_namespace(view, object_id)
        return attrs.evolve(found, properties={**made_up_properties(view, object_id), **found.properties})

    def namespace_exists(self, identifier: Identifier) -> bool:
        """Whether the namespace exists; the root always does."""
        try:
            self.describe_namespace(identifier)
        except NamespaceNotFound:
            return False
        return True

    def list_namespaces(self, identifier: Identifier = "") -> list[str]:
        """The names of the namespaces directly below one, in order. Raises `NamespaceNotFound`."""
        return self.page_of(identifier, NAMESPACE, None, None)[0]

    def drop_namespace(self, identifier: Identifier, *, cascade: bool = False, force: bool = False) -> Namespace:
        """Drop a namespace; with ``cascade`` with everything below it, data included. What it was.

        Raises `NamespaceNotFound`, `NamespaceNotEmpty`; `Refused` if a clone outside of the namespace reads files of a
        table in it, unless ``force``; `Damaged` once all is dropped save the data of a table to which a symbolic link
        leads, or that has become the source of a clone since.
        """
        object_id = ObjectId.of(identifier)
        dropped: list[Namespace] = []
        doomed: list[Table] = []

        def decide(view: CatalogView) -> list[Change]:
            changes, doomed[:] = drop_namespace(view, object_id, cascade=cascade)
            dropped[:] = [find_namespace(view, object_id)]
            return changes

        if cascade and not force:
            decide(self.view())
            self._refuse_needed(doomed)
        self.ledger.apply(decide)
        linked: list[Damaged] = []
        for table in doomed:
            try:
                if not force:
                    self._keep_needed(table, doomed)
                self._remove_data(table)
            except Damaged as error:
                linked.append(error)
        if linked:
            raise linked[0]
        return dropped[0]

    # -- tables -------------------------------------------------------------------------------------------------

    def declare_table(
        self, identifier: Identifier, properties: Mapping[str, str] | None = None, *, location: str | None = None
    ) -> Table:
        """Reserve a name and a directory for a table; its first version is still to come.

        ``location``: a directory below the root, relative or as a URI; chosen when left out: ``{hash}_{object_id}``,
        new with every attempt, or ``{name}.lance`` in the root where V1 names are kept (V2 specification, compatibility
        mode, rule 3; where a deregistered table lies there, the new one goes elsewhere).

        Raises `TableAlreadyExists`, `NamespaceNotFound`, `InvalidInput`, `Unsupported`; `ConcurrentModification` where
        another dropped or renamed it at once, or registered its directory.
        """
        object_id = ObjectId.of(identifier)
        if object_id.is_root:
            raise InvalidInput("a table needs a name; the empty identifier is the root namespace")
        given = None if location is None else self.relative(location)
        entered = _checked_properties(properties)

        def place(view: CatalogView) -> Table:
            return Table(object_id, given or self._free_location(object_id, view), entered)

        table = place(self.ledger.refuse_early(lambda view: add_table(view, place(view), chosen=given is None)))
        if given is not None or self.places.v1_names:  # else the directory is new
            self.places.chosen_root(table)
        if self.places.v1_names:
            self.ledger.record_store()  # first, because V1 readers see the directory as a table at once
        table, marker = self._reserve(table, given is None)
        reserved = self.places.objects.guarantees.atomic_create
        seen = self.places.v1_names and table.location == v1_location(object_id)

        def decide(view: CatalogView) -> list[Change]:
            if seen and view.find(object_id.key) is None:
                raise ConcurrentModification(
                    f"{table.location!r} was a table for V1 readers as soon as it was reserved for {object_id}, and "
                    "another has dropped or renamed it meanwhile; nothing was declared"
                )
            return add_table(view, table, reserved=reserved)

        try:
            self.ledger.apply(decide)
        except _DEFINITE:
            owner = self.view().owner_of(table.location) if seen else None
            if owner is None or owner.listed:  # else another has dropped it, and declared his own there
                self.places.objects.delete(marker)
                self.places.objects.prune(self.places.key(table))
            raise
        return table

    def register_table(
        self,
        identifier: Identifier,
        location: str,
        properties: Mapping[str, str] | None = None,
        *,
        overwrite: bool = False,
    ) -> Table:
        """Enter a table whose files lie below the root already; with ``overwrite`` in place of one of that name.

        Raises `TableNotFound` where no table lies there, `TableAlreadyExists`, `InvalidInput` where the location leaves
        the root or belongs to another table.
        """
        table = Table(ObjectId.of(identifier), self.relative(location), _checked_properties(properties))
        root = self.places.chosen_root(table)
        source = self.places.moves_from(table)
        if source is not None and is_at(self.view(), source):
            raise Refused(
                f"{root.base_uri} is the copy that a rename makes, or made when it was stopped; wait for it, or have "
                "fsck remove it"
            )
        if self.commits.latest(root) is None:
            raise TableNotFound(f"no Lance table lies at {root.base_uri}: it has no version; nothing was registered")
        before = self.view()
        read = self._clones.record_dataset(table.location)
        sources = [location for location in read if is_at(before, location)]

        def decide(view: CatalogView) -> list[Change]:
            dropped = next((location for location in sources if not is_at(view, location)), None)
            if dropped is not None:
                raise ConcurrentModification(
                    f"{table.location!r} is a clone that reads files of {dropped!r}, which is no longer a table of the "
                    "catalog: it was dropped or renamed while the clone was registered. Nothing was changed."
                )
            return add_table(view, table, replace=overwrite)

        self.ledger.apply(decide)
        if source is not None:
            self.places.objects.delete(self.places.moving_marker(table))  # left by a rename that had done its work
        return table

    def alter_table(
        self,
        identifier: Identifier,
        set: Mapping[str, str] | None = None,  # noqa: A002 - the word that a caller reads
        remove: Iterable[str] = (),
    ) -> Table:
        """Set some properties of a table and remove others; the rest, and its versions, stay as they are.

        A property that is not there counts as removed. Raises `TableNotFound`, `InvalidInput`, `Unsupported`.
        """
        object_id = ObjectId.of(identifier)
        changes = _property_changes(set, remove)
        altered: list[Table] = []

        def decide(view: CatalogView) -> list[Change]:
            before = find_table(view, object_id)
            properties = SetProperties(changes).merged_into(before.properties)
            altered[:] = [attrs.evolve(before, properties=properties)]
            return alter_table(view, object_id, changes)

        self._record_listed(object_id)
        self.ledger.apply(decide)
        return altered[0]

    def rename_table(self, source: Identifier, target: Identifier) -> Table:
        """Give a table another name, in another namespace too; ``target`` is the whole new identifier.

        One atomic change of the catalog. The files stay where they are, save those of a V1 directory where V1 names are
        kept: they go to a directory of the target's own (V2 specification, compatibility mode, rule 4), together with
        what is committed meanwhile; whoever commits through the old name afterwards is refused.

        Raises `TableNotFound`, `NamespaceNotFound`, `TableAlreadyExists`, `InvalidInput`, `Unsupported`; `Refused`
        where files have to move and the table has branches, or a shallow clone in the catalog reads its files;
        `ConcurrentModification` where others keep committing; then nothing was changed. `Damaged`: the table has its
        new name, and something at the old place could not be brought along; nothing was removed.
        """
        table = self.find_table(source)
        object_id = ObjectId.of(target)
        self.ledger.refuse_early(lambda view: rename_table(view, table, object_id, table.location))
        if not self.places.v1_names or v1_table(table.location) is None:
            return self._enter_renamed(table, object_id, table.location)
        self._refuse_needed([table], _RENAME_IN_PLACE)
        reserved, _ = self._reserve(Table(object_id, self.places.new_location(object_id), {}), True)
        move = Relocation(self.commits, self.dataset_root(table), self.dataset_root(reserved))
        moving = self.places.moving_marker(reserved)
        self.places.objects.put(moving, table.location.encode())
        try:
            move.copy()
            self._clones.record_dataset(reserved.location)
            renamed = self._enter_renamed(table, object_id, reserved.location)
        except (*_DEFINITE, Damaged):
            self._remove_data(reserved, copied=True)
            raise
        move.carry_over()
        if not self._clones.recorded_readers(table.location):  # else a clone was made of it since it was copied
            self._remove_data(table)
        self.places.objects.delete(moving)
        return renamed

    def deregister_table(self, identifier: Identifier) -> Table:
        """Remove a table from the catalog and leave its files and versions alone. Raises `TableNotFound`."""
        object_id = ObjectId.of(identifier)
        self._record_listed(object_id)
        return self._remove(object_id)

    def drop_table(self, identifier: Identifier, *, force: bool = False) -> Table:
        """Remove a table, its files and its versions; commits to it are refused from then on.

        Files in its directory that neither Lance nor Lancekeep wrote stay, and `fsck` reports the directory.

        Args:
            identifier: The table.
            force: Drop the table even if shallow clones read its files. They cannot be read afterwards.

        Raises:
            TableNotFound: There is no such table.
            Refused: A shallow clone in the catalog reads files of the table. Nothing was changed.
            Damaged: A symbolic link leads to the table.
        """
        object_id = ObjectId.of(identifier)
        found = self.find_table(object_id)
        self.dataset_root(found)
        if not force:
            self._refuse_needed([found])
        table = self._remove(object_id)
        if not force and (clones := self._clones.recorded_readers(table.location)):
            self.ledger.apply(lambda view: add_table(view, table))
            raise self._needed(table, clones)
        self._remove_data(table)
        return table

    def clones_of(self, identifier: Identifier) -> list[str]:
        """Return the shallow clones that read files of a table: identifiers, or locations of what is no table.

        Raises:
            TableNotFound: There is no such table.
        """
        table = self.find_table(identifier)
        return self._named({*self._clones.recorded_readers(table.location), *self._listed_readers(table)})

    def find_table(self, identifier: Identifier) -> Table:
        """A table's entry. Raises `TableNotFound`."""
        return find_table(self.view(), ObjectId.of(identifier))

    def table_exists(self, identifier: Identifier) -> bool:
        """Whether the table is in the catalog, declared ones included."""
        try:
            self.find_table(identifier)
        except TableNotFound:
            return False
        return True

    def describe_table(self, identifier: Identifier) -> Description:
        """Where a table lies and its latest version. Raises `TableNotFound`."""
        table = self.find_table(identifier)
        latest = self.commits.latest(self.dataset_root(table))
        version = None if latest is None else latest.version
        return Description(table.id, self.uri(table), version, table.properties, self.managed)

    def list_tables(self, identifier: Identifier = "", *, include_declared: bool = True) -> list[str]:
        """The names of the tables directly in a namespace, in order; on wish without those that are only declared.

        Raises `NamespaceNotFound`.
        """
        return self.page_of_tables(identifier, None, None, include_declared=include_declared)[0]

    def list_all_tables(self, after: str | None = None, *, include_declared: bool = True) -> Iterator[ObjectId]:
        """Every table of the catalog as it is now, in the byte order of the object ids, lazily.

        after: an object id (`ObjectId.key`), to begin behind it.
        """
        view = self.view()
        ids = (ObjectId.from_key(entry.object_id) for entry in view.all_of(TABLE, after))
        return (object_id for object_id in ids if include_declared or self._is_created(view, object_id))

    def page_of(
        self, identifier: Identifier, object_type: str, after: str | None, limit: int | None
    ) -> tuple[list[str], str | None]:
        """Names of one type directly in a namespace behind ``after``; and the last of them if more follow."""
        view = self.view()
        parent = find_namespace(view, ObjectId.of(identifier)).id
        return view.children(parent, object_type, after, limit)

    def page_of_tables(
        self, identifier: Identifier, after: str | None, limit: int | None, *, include_declared: bool
    ) -> tuple[list[str], str | None]:
        """As `page_of`, for tables; without those that are only declared the page is filled by those that follow."""
        if include_declared:
            return self.page_of(identifier, TABLE, after, limit)
        view = self.view()
        parent = find_namespace(view, ObjectId.of(identifier)).id
        created: list[str] = []
        more = True
        while more and (limit is None or len(created) <= limit):
            names, after = view.children(parent, TABLE, after, limit)
            created += [name for name in names if self._is_created(view, ObjectId((*parent.names, name)))]
            more = after is not None
        return page(created, None, limit)

    def usable_tables(self) -> Iterator[Table]:
        """The tables whose entries name a directory that can be used; `Fsck` tells of the others."""
        for entry in self.view().all_of(TABLE):
            with suppress(Damaged):
                table = Table.from_entry(entry)
                self.dataset_root(table)
                yield table

    # -- data ---------------------------------------------------------------------------------------------------

    def write(
        self, identifier: Identifier, data: Any, mode: str = "create", *, properties: Mapping[str, str] | None = None
    ) -> Committed:
        """Write a ``pyarrow`` Table, RecordBatch or RecordBatchReader, or a pandas or polars frame, as one version.

        mode: ``create`` fails where the table exists; ``append`` adds rows to an existing one; ``overwrite`` replaces
        the rows, and creates the table where there is none. properties: of the table that this write creates; with
        ``overwrite`` they also replace those of an existing table, after the rows, and None leaves these as they are.

        Raises `TableAlreadyExists`, `TableNotFound`, `NamespaceNotFound`, `InvalidInput`; then nothing was written.
        `ConcurrentModification`: nothing was committed. `CommitUnknown`: ask `resolve`. `StoreUnavailable`: a table
        that this write creates may be there, whole, or not; look for it before writing it again.
        """
        write_mode = _mode(mode)
        reader = self._engine.reader(data)
        object_id = ObjectId.of(identifier)
        if write_mode is WriteMode.CREATE and not (self.places.v1_names and v1_location(object_id)):
            location = self.places.new_location(object_id)
            return self._write_and_enter(Table(object_id, location, _checked_properties(properties)), reader)
        replaces = write_mode is WriteMode.OVERWRITE and properties is not None
        if properties and replaces and self.view().flat:
            raise Unsupported(f"{object_id}: a V1 directory has no properties; open the catalog with its manifest")
        declared = self._declare_for(object_id, write_mode, properties, replaces=replaces)
        engine_mode = WriteMode.CREATE if declared else write_mode
        try:
            with self._diagnosed(object_id):
                committed = self._settled(object_id, lambda: self._engine.write(object_id, reader, engine_mode))
            if replaces and not declared:
                self._replace_properties(object_id, properties or {})
            return committed
        except CommitUnknown:
            raise
        except Exception:
            if declared:
                with suppress(LancekeepError):  # what went wrong first is what the caller has to hear
                    self._drop_if_empty(object_id)
            raise

    def begin_write(
        self, identifier: Identifier, schema: Any, mode: str = "create", *, properties: Mapping[str, str] | None = None
    ) -> WritePlan:
        """Prepare a distributed write: a plan that pickles, for workers to write fragments by.

        ``commit_fragments`` makes them one version; ``abandon_write`` gives up. Arguments and errors as for `write`.
        """
        write_mode = _mode(mode)
        object_id = ObjectId.of(identifier)
        declared = self._declare_for(object_id, write_mode, properties)
        table = self.find_table(object_id)
        latest = self.commits.latest(self.dataset_root(table))
        if latest is None and write_mode is WriteMode.APPEND:
            raise TableNotFound(
                f"the table {object_id} is only declared: it has no version to append to. Make the first one with "
                "mode='overwrite'"
            )
        read_version = 0 if latest is None else latest.version
        base = None
        if latest is not None and self.managed and v1_table(table.location) is not None:
            base = self.commits.lineage.base(self.dataset_root(table), latest)
        return WritePlan(
            object_id, self.uri(table), self.storage_options, schema, write_mode, read_version, declared, base
        )

    def commit_fragments(
        self,
        plan: WritePlan,
        fragments: Sequence[Any],
        *,
        properties: Mapping[str, str] | None = None,
        exactly: bool = False,
    ) -> Committed:
        """Make fragments one version of the plan's table; each is a ``lance.FragmentMetadata`` or its JSON.

        properties: what the version's transaction carries, for whoever looks whether something was committed.
        exactly: make it the version after ``plan.read_version``, and raise `ConcurrentModification` where another has
        that. Raises as `write` does.
        """
        found = dict(properties or {})
        with self._diagnosed(plan.table):
            return self._settled(
                plan.table, lambda: self._engine.commit_fragments(plan, fragments, found, exactly=exactly)
            )

    def commit_change(
        self, identifier: Identifier, act: Callable[[Any], Any], *, after: int | None = None
    ) -> Committed:
        """Commit a change that only the native engine can make: a compaction, an index, a merge, a transaction.

        ``act`` gets the table as `open` gives it, commits through it, and returns the dataset it has then. after: make
        it the version that follows this one, and raise `ConcurrentModification` where another has that.

        Raises `TableNotFound`, `VersionNotFound`, and as `write` does; but what ``act`` wrote before it came to the
        commit stays, for `cleanup`.
        """
        table = self._with_version(identifier, None, None, None)
        with self._diagnosed(table.id):
            return self._settled(table.id, lambda: self._engine.change(table.id, act, after))

    def abandon_write(self, plan: WritePlan) -> None:
        """Undo what ``begin_write`` did to the catalog. Idempotent. Fragments that were written are left behind."""
        if plan.declared and self.table_exists(plan.table):
            self._drop_if_empty(plan.table)

    def open(
        self, identifier: Identifier, version: int | None = None, *, tag: str | None = None, branch: str | None = None
    ) -> Any:
        """A table as a ``lance.LanceDataset`` whose commits go through this catalog.

        At its latest version, or at a version, a tag, or the latest or a given version of a branch. Raises
        `TableNotFound`, `VersionNotFound` (`TagNotFound`, `BranchNotFound`), and `InvalidInput` for a tag together with
        a version or a branch.
        """
        table = self._with_version(identifier, version, tag, branch)
        with self._diagnosed(table.id):
            return self._engine.open(table.id, version, tag, branch)

    def describe_version(
        self, identifier: Identifier, version: int | None = None, *, tag: str | None = None, branch: str | None = None
    ) -> VersionDetails:
        """What a version of a table holds: arguments and errors are those of `open`."""
        table = self._with_version(identifier, version, tag, branch)
        with self._diagnosed(table.id):
            return self._engine.details(table.id, version, tag, branch)

    def history(self, identifier: Identifier, limit: int | None = None) -> list[HistoryEntry]:
        """The versions of a table, newest first, at most ``limit``. Raises `TableNotFound`."""
        table = self.find_table(identifier)
        rows = self.commits.page(self.dataset_root(table), None, limit, True)
        if not rows:
            return []
        committers = {row.version: row.committer for row in rows}
        return [
            HistoryEntry(entry.version, entry.timestamp, entry.operation, entry.rows, committers[entry.version])
            for entry in self._engine.summaries(table.id, list(committers))
        ]

    def transaction(self) -> Transaction:
        """Write several tables and publish their new versions together, or none: ``with catalog.transaction() as tx:``.

        Raises `Unsupported` where the commit store cannot reserve versions of several tables in one step.
        """
        return Transaction(self, self._engine)

    def snapshot(self, tables: Iterable[Identifier] | None = None) -> Snapshot:
        """The latest versions of some tables, or of all, at one moment: of every transaction either all or nothing.

        All of them leaves out those that are only declared. Raises `TableNotFound`, `VersionNotFound` for a named one
        that is only declared, `ConcurrentModification` where tables came and went meanwhile.
        """
        return take_snapshot(self, None if tables is None else [ObjectId.of(table) for table in tables])

    def resolve(self, token: CommitToken | str) -> Outcome | AllCommitted:
        """Settle a commit whose outcome was unknown, by the token of `CommitUnknown` or of `Unknown`.

        Completes the commit where its version is still free. `Committed`, for a transaction `AllCommitted`, and
        `Conflict` are final; `Unknown` means that the stores still do not answer, or that the version and its staged
        manifest are gone, cleaned up or with their table. Idempotent.

        Raises `InvalidInput` for a token that Lancekeep did not make, or that is of another catalog; nothing was done.
        """
        known, gone = parse_token(token, self.view(), self.places.base_uri, self.dataset_root)
        if gone:
            return Unknown(known, gone)
        return TransactionCommits(self.commits).resolve(known) if known.others else self.commits.resolve(known)

    # -- partitions ---------------------------------------------------------------------------------------------

    def create_partitioned(self, schema: Any, by: Iterable[PartitionBy]) -> PartitionedNamespace:
        """Make the catalog a partitioned namespace: tables that share a schema, divided by values of their rows.

        schema: a ``pyarrow.Schema``; its columns get numbers (``lance:field_id``) unless they have them. by: the
        levels, outermost first. Tables that the catalog holds already stay what they are. Raises `AlreadyExists`,
        `InvalidInput`, `Unsupported` in a V1 directory.
        """
        namespace = self._partitioned()
        namespace.create(schema, by)
        return namespace

    def partitioned(self) -> PartitionedNamespace:
        """The catalog as a partitioned namespace. Raises `NamespaceNotFound` where it is none."""
        namespace = self._partitioned()
        if not namespace.specs:
            raise NamespaceNotFound(f"{self.root_uri} is not partitioned; create_partitioned makes it so")
        return namespace

    def _partitioned(self) -> PartitionedNamespace:
        return PartitionedNamespace(self, self._engine, self.ledger.apply, self._remove_data)

    # -- versions -----------------------------------------------------------------------------------------------

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

    def change_commit_store(self, url: str) -> int:
        """Move the versions of every table and branch to the commit store at ``url``; how many rows were moved.

        For each history: the latest version is finished, a fence is put behind it in the old store (from then on the
        old store admits no commit, in any process), the rows are copied and compared. When all are moved, the catalog
        remembers the new store and this object uses it; whoever has the catalog open with the old one is refused.

        Stopped at any point, it is completed by calling it again. Raises `Refused` where another such move to a
        different store is under way, and `Damaged` where the new store holds versions that do not exist; then nothing
        was changed.
        """
        rows = self._open_rows(url)
        view = self.ledger.may_move(rows.url)
        if view is None:
            return 0
        target = self.commits.with_rows(rows)
        # A store that cannot be reached must not block the catalog: ask it before the move begins.
        rows.latest(self.manifest_root.base_uri)
        for root in (self.dataset_root(Table.from_entry(entry)) for entry in view.all_of(TABLE)):
            for history in self.commits.histories(root):  # a row that cannot be moved is refused before the move begins
                self.commits.require_room(history, target)
        view = self.ledger.begin_move(rows.url)
        roots = [self.dataset_root(Table.from_entry(entry)) for entry in view.all_of(TABLE)]
        if self.ledger.shares_store(view):
            roots.append(self.manifest_root)
        moved = sum(
            self.commits.move_history(history, target) for root in roots for history in self.commits.histories(root)
        )
        self.ledger.finish_move(target)
        return moved

    # -- upkeep -------------------------------------------------------------------------------------------------

    def migrate(
        self,
        *,
        dry_run: bool = False,
        batch: int = 1000,
        progress: Callable[[MigrationProgress], None] | None = None,
    ) -> MigrationReport:
        """Enter every table that only V1 knows in the manifest; ``mode="v2"`` shows them all from then on.

        Files stay where they are, and others may read and write meanwhile. Every ``batch`` tables are one atomic
        change, after which ``progress`` is told. Stopped at any point, it is completed by calling it again.
        ``dry_run``: nothing is written. Raises `Unsupported` unless the catalog was opened with ``mode="compatible"``,
        and `InvalidInput`.
        """
        return migrate(
            self.view(),
            self.ledger.apply,
            self.places.objects,
            self.places.prefix,
            self._clones.record_dataset,
            lists_v1=self.places.v1_names,
            dry_run=dry_run,
            batch=batch,
            progress=progress,
        )

    def fsck(
        self,
        *,
        repair: bool = False,
        grace: timedelta | float = timedelta(hours=1),
        remove_tables: bool = False,
        deep: bool = False,
        accept_loss: bool = False,
        tables: Iterable[Identifier] | None = None,
        progress: Progress = lambda done, total, name: None,
    ) -> FsckReport:
        """Look over the catalog and the directories of its root, and tell what does not fit together.

        deep: look into every table, too, at manifests, rows of the commit store, tags and branches, records of clones,
        and the files that the latest version of each table and branch and every tagged version name: each must exist,
        with the size that the manifest says. tables: look into these alone, and not at the catalog.

        ``repair`` removes directories without a table that no entry refers to, markers that hide a table of the
        catalog, and files of the manifest table that no version needs; ``remove_tables`` with it also tables that no
        entry refers to, deregistered ones included. In tables it publishes decided versions, brings rows and manifests
        into agreement, and removes staged manifests that lost, files without an end and tags of versions that are gone:
        nothing that a reader could need. Nothing is removed from storage that is younger than ``grace`` (a span, or
        seconds; 0: nothing is young), which has to be longer than any operation that may be under way, and than the
        clock of the storage is off. Idempotent. Raises `InvalidInput`, `TableNotFound`.

        ``accept_loss`` with ``repair``: give up a latest version that cannot be read, because its manifest or one of
        its files is missing or damaged, and go back to an older one. Without it, the finding says what could be done.
        """
        span = grace if isinstance(grace, timedelta) else timedelta(seconds=grace)
        look = self._fsck(span, remove_tables=remove_tables)
        checks = TableChecks(
            self.commits,
            self._clones,
            self.managed,
            span,
            look.now,
            restore=lambda table, version: self._engine.restore(table, version),
            accept_loss=accept_loss,
        )
        if tables is not None:
            chosen = [self.find_table(table) for table in tables]
            return checks.run(chosen, self.dataset_root, repair=repair, progress=progress)
        report = look.run(repair=repair)
        if not deep:
            return report
        within = checks.run(list(self.usable_tables()), self.dataset_root, repair=repair, progress=progress)
        findings = report.findings + within.findings
        if self.managed and self.ledger.shares_store(self.view()):
            own = Table(ObjectId((MANIFEST_DIRECTORY,)), MANIFEST_DIRECTORY, {})
            own_checks = attrs.evolve(checks, accept_loss=False)
            findings += own_checks.run([own], lambda _: self.manifest_root, repair=repair, progress=progress).findings
        return attrs.evolve(report, findings=findings, tables=within.tables)

    def cleanup(
        self,
        older_than: timedelta,
        *,
        keep: int = 1,
        grace: timedelta = timedelta(days=7),
        tables: Iterable[Identifier] | None = None,
        dry_run: bool = False,
        progress: Progress = lambda done, total, name: None,
    ) -> CleanupReport:
        """Remove old versions of tables, rows and manifests, and the files that nothing needs any more.

        A version goes once it and its successor are ``older_than`` that, from the oldest on. The latest ``keep``
        versions of a table and of each branch stay, and those that a tag points at or a branch begins with. A file goes
        when no manifest names it that stays, of any table of the catalog, clones and deregistered tables among them,
        and either a version that goes does, or it is older than ``grace``; so does the manifest of a commit that was
        never finished. ``grace`` has to be longer than any write takes, ``older_than`` than anything that reads or
        restores an old version.

        Ages are differences between the storage's own times, so no writer's clock matters. Clones outside the catalog
        are not known. tables: those to clean; all, and the manifest table, when left out. Of a table with a manifest
        that cannot be read nothing goes, and the report says so. Stopped at any point, it is completed by calling it
        again.

        Raises `TableNotFound`, `InvalidInput`; nothing was removed.
        """
        chosen = None if tables is None else [self.find_table(table).id for table in tables]
        cleanup = Cleanup(
            self.view,
            self.dataset_root,
            self.commits,
            self.places.root_key,
            older_than,
            keep,
            grace,
            chosen,
            progress,
            self._clones.unowned_datasets,
        )
        report = cleanup.run(dry_run=dry_run)
        if dry_run or chosen is not None:
            return report
        return attrs.evolve(report, manifest_versions=self.commits.retry.call(self.ledger.manifest.clean_up))

    def optimize(self) -> None:
        """Bring the manifest table into the shape in which others find things fast; no entry changes. Idempotent.

        Old versions of it go, and the indexes of the V2 specification ("Manifest Table Indexes") are built where they
        are missing, or brought up to date. Lancekeep itself does not need them. Raises `Unsupported` in a V1 directory,
        and where nothing here could build them safely.
        """
        self.ledger.manifest.optimize()

    # -- places -------------------------------------------------------------------------------------------------

    def dataset_root(self, table: Table) -> DatasetRoot:
        """Return the dataset root of a table; see `Places.dataset_root`."""
        return self.places.dataset_root(table)

    @property
    def manifest_root(self) -> DatasetRoot:
        """The dataset root of the manifest table."""
        return self.places.manifest_root

    def uri(self, table: Table) -> str:
        """Return the URI by which the table engine opens a table."""
        return self.places.uri(table)

    def relative(self, location: str) -> str:
        """Return a location as a path relative to the root; see `Places.relative`."""
        return self.places.relative(location)

    @property
    def root_uri(self) -> str:
        """The root of the catalog."""
        return self.places.root_uri

    def is_bare(self) -> bool:
        """Return whether nothing at all lies below the root: the catalog is new, or its root is mistyped."""
        return self.places.is_bare()

    # -- life ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Give back connections. Idempotent."""
        self.ledger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Catalog({self.root_uri!r}, commit_store={self.ledger.own_store!r})"

    # -- inside -------------------------------------------------------------------------------------------------

    def view(self) -> CatalogView:
        """Return the entries as of now; see `Ledger.view`."""
        return self.ledger.view()

    def _fsck(self, grace: timedelta, *, remove_tables: bool) -> Fsck:
        return Fsck(
            view=self.view,
            apply=self.ledger.apply,
            leftovers=self.ledger.manifest.leftovers,
            remove=self._remove_data,
            remove_leftovers=self._remove_leftovers,
            clones=self._clones,
            objects=self.places.objects,
            root_key=self.places.root_key,
            grace=grace,
            remove_tables=remove_tables,
        )

    def _reserve(self, table: Table, chosen: bool) -> tuple[Table, str]:
        """Take a directory that holds nothing for a table: whoever creates the marker in it has it.

        ``chosen``: the location was chosen here, and may be another. Raises `TableAlreadyExists`.
        """
        hashed = table.location.endswith(f"_{table.id.key}")
        if not (chosen and hashed) and self.places.is_occupied(table):
            deregistered = self.places.is_deregistered(table)
            if not (chosen and deregistered) or self.ledger.recent().flat:
                raise TableAlreadyExists(
                    f"{table.id}: files lie in {table.location!r} already. If they are a table, enter it with "
                    f"register_table({str(table.id)!r}, {table.location!r}); otherwise move the files away. "
                    "`lancekeep fsck` says what they are."
                )
            table = attrs.evolve(table, location=self.places.new_location(table.id))
        marker = self.places.reserved_marker(table)
        if not self.places.objects.guarantees.atomic_create:
            self.places.objects.put(marker, MARKER_CONTENT)
        elif not self.places.objects.put_if_absent(marker, MARKER_CONTENT):
            raise TableAlreadyExists(f"{table.id}: another has just taken the directory {table.location!r}")
        if self.managed and not hashed:
            self.commits.forget_predecessor(self.dataset_root(table))
        return table, marker

    def _free_location(self, object_id: ObjectId, view: CatalogView) -> str:
        """Where a new table goes: its V1 directory where such names are kept, unless another table lies there."""
        v1 = v1_location(object_id) if self.places.v1_names else None
        owner = None if v1 is None else view.owner_of(v1)
        if v1 is None or (owner is not None and owner.object_id != object_id.key):
            return self.places.new_location(object_id)
        return v1

    def _is_created(self, view: CatalogView, object_id: ObjectId) -> bool:
        """Return whether the table has a version; a table that is being dropped has none, a damaged one has."""
        try:
            return self.commits.has_versions(self.dataset_root(find_table(view, object_id)))
        except TableNotFound:
            return False
        except Damaged:
            return True

    def _enter_renamed(self, table: Table, target: ObjectId, location: str) -> Table:
        renamed: list[Table] = []

        def decide(view: CatalogView) -> list[Change]:
            changes = rename_table(view, table, target, location)
            renamed[:] = [Table(target, location, find_table(view, table.id).properties)]
            return changes

        self.ledger.apply(decide)
        return renamed[0]

    def _remove(self, object_id: ObjectId) -> Table:
        removed: list[Table] = []

        def decide(view: CatalogView) -> list[Change]:
            removed[:] = [find_table(view, object_id)]
            return remove_table(view, object_id)

        self.ledger.apply(decide)
        return removed[0]

    def _with_version(self, identifier: Identifier, version: int | None, tag: str | None, branch: str | None) -> Table:
        """A table that has this version, as far as that can be told without the engine."""
        if tag is not None and (version is not None or branch is not None):
            raise InvalidInput("a tag names a version of its own: give no version or branch beside it")
        table = self.find_table(identifier)
        root = self.dataset_root(table)
        latest = self.commits.latest(root)
        if latest is None:
            raise VersionNotFound(
                f"the table {table.id} is only declared: it has no version to open yet. Make the first one with "
                f"write({str(table.id)!r}, data, 'overwrite'), or remove the table with `lancekeep drop`"
            )
        if version is not None and self.commits.get(root.branch(branch), version) is None:
            if branch is not None and self.commits.latest(root.branch(branch)) is None:
                raise BranchNotFound(f"the table {table.id} has no branch {branch!r}")
            place = f"the table {table.id}" if branch is None else f"the branch {branch} of {table.id}"
            raise VersionNotFound(f"{place} has no version {version}; history() lists those of the table")
        return table

    def _record_listed(self, object_id: ObjectId) -> None:
        """Record a table as a clone before its V1 directory, where nothing has done so, stops to answer for it."""
        entry = self.view().find(object_id.key) if self.places.v1_names else None
        if entry is not None and entry.listed and entry.location:
            self._clones.record_dataset(entry.location)

    def _record_clone(self, root: DatasetRoot, content: bytes) -> None:
        """Record the dataset of a manifest that is about to be committed at the datasets whose files it reads."""
        key = root.key.partition(f"/{BRANCHES}/")[0] if root.is_branch else root.key
        self._clones.record(key, content, root.base_uri)

    def _refuse_needed(self, doomed: Sequence[Table], advice: str = _FORCE) -> None:
        """Raises `Refused` if a clone that stays reads files of a table that shall go."""
        for table in doomed:
            readers = {*self._clones.recorded_readers(table.location), *self._listed_readers(table)}
            readers -= {other.location for other in doomed}
            if readers:
                raise self._needed(table, readers, advice)

    def _keep_needed(self, table: Table, doomed: Sequence[Table]) -> None:
        """Raises `Damaged` if a table whose entry is gone has become the source of a clone since."""
        readers = set(self._clones.recorded_readers(table.location)) - {other.location for other in doomed}
        if readers:
            raise Damaged(
                f"the table {table.id} is dropped, but its files at {table.location!r} stay: "
                f"{', '.join(sorted(readers))} became a clone of it meanwhile. Register it again, or drop the clone "
                "and have `lancekeep repair --remove-tables` remove them"
            )

    def _listed_readers(self, table: Table) -> Iterator[str]:
        """The first clones of a table among those V1 directories that no operation of the catalog has recorded."""
        if not self.places.v1_names:
            return
        view, looks = self.view(), 0
        below = self.places.prefix
        for directory in islice(self.places.objects.directories(below), _LISTED_DIRECTORIES):
            listed = v1_table(directory)
            if listed is None or directory == table.location:
                continue
            entry = view.find(listed.key)
            if entry is not None and entry.listed and entry.location == directory:
                looks += 1
                if self._clones.ends_read(directory, table.location):
                    yield directory
                if looks >= _LISTED_LOOKS:
                    return

    def _named(self, locations: Iterable[str]) -> list[str]:
        """The identifiers of the tables at these locations; a location that is no table's is given as it is."""
        view = self.view()
        owners = {location: view.owner_of(location) for location in sorted(locations)}
        return [
            location if owner is None else str(ObjectId.from_key(owner.object_id)) for location, owner in owners.items()
        ]

    def _needed(self, table: Table, clones: Iterable[str], advice: str = _FORCE) -> Refused:
        return Refused(
            f"the table {table.id} is needed by {', '.join(self._named(clones))}: a shallow clone reads its files. "
            f"Nothing was changed. Drop the clones first, or make deep copies of them. {advice}"
        )

    def _remove_data(self, table: Table, *, copied: bool = False) -> None:
        """Rows first: without them no writer that still has the table open can commit.

        Then the manifests, so that what a crash leaves is no table that could be registered; last the marker that
        hides a V1 directory, so that nobody takes what is left for a V1 table. A commit that was under way may have put
        its row back meanwhile, so rows go once more. A directory that has been registered since is not touched; one
        that is only seen, as by V1 readers, is. ``copied``: all that lies there is a copy, foreign files included.
        """
        root = self.dataset_root(table)
        view = self.view()
        owner = view.owner_of(table.location)
        if owner is not None and (view.flat or not owner.listed):
            return
        self.commits.forget_history(root)
        keys = self.places.contents(root)
        latest = self.places.latest_manifest(root, keys)
        self.places.remove(root, keys, copied=copied)
        self._forget_rows(root)
        if latest is not None:
            with suppress(LancekeepError):  # the records of a clone that is gone are for fsck
                self._clones.forget(table.location, *latest)

    def _remove_leftovers(self, table: Table, keys: Iterable[str]) -> None:
        """Remove these objects of a directory that is no table's, and the rows of manifests that are gone.

        What has come there since they were looked at stays: a writer may have the table open that was deregistered.
        """
        root = self.dataset_root(table)
        self.places.remove(root, keys)
        self.commits.forget_predecessor(root)

    def _forget_rows(self, root: DatasetRoot) -> None:
        self.commits.retry.call(partial(self.commits.rows.delete, root.base_uri))
        self.commits.forget()

    def _write_and_enter(self, table: Table, data: Any) -> Committed:
        """Create a table: its first version in a directory that nobody knows of, then its entry.

        So whoever finds the entry finds the rows. (A native process that finds none writes its own there.)
        """

        def decide(view: CatalogView) -> list[Change]:
            return add_table(view, table)

        self.ledger.refuse_early(self.ledger.authorised(decide))
        first = self._write_first(table, data)
        try:
            self.ledger.apply(decide)
        except _DEFINITE:
            self._discard(table)
            raise
        return first

    def _write_first(self, table: Table, data: Any) -> Committed:
        """Commit rows as the first version of a table that nobody knows of yet."""
        self.commits.prove()
        plan = WritePlan(table.id, self.uri(table), self.storage_options, data.schema, WriteMode.CREATE, 0, False)
        try:
            fragments = self._engine.write_fragments(plan, data)
            if not self.managed:
                return Committed(self._engine.create_at(plan, fragments), "", 0)
            staged = self._engine.stage(plan, fragments, entered=False)
            outcome = self.commit_version(table, None, staged.version, staged.path, staged.size)
            return raise_unless_committed(outcome, str(table.id))
        except Exception as error:
            self._discard(table)
            if isinstance(error, CommitUnknown):
                raise StoreUnavailable(f"{table.id} was not created: {error}") from error
            raise

    def _discard(self, table: Table) -> None:
        """Remove what was written of a table that has not come to be; what remains is for fsck."""
        with suppress(LancekeepError):  # what went wrong first is what the caller has to hear
            self._remove_data(table)

    def _replace_properties(self, object_id: ObjectId, properties: Mapping[str, str]) -> None:
        """Give a table these properties and no others but the catalog's own."""
        present = self.find_table(object_id).properties
        users = {name: value for name, value in present.items() if not name.startswith(OWN_PROPERTIES)}
        if users != properties:
            self.alter_table(object_id, properties, users.keys() - properties.keys())

    def _declare_for(
        self, object_id: ObjectId, mode: WriteMode, properties: Mapping[str, str] | None, *, replaces: bool = False
    ) -> bool:
        """Declare the table that a write needs; whether this call did.

        ``replaces``: the properties may be those of an existing table, which they replace.
        """
        if mode is WriteMode.CREATE:
            self.declare_table(object_id, properties)
            return True
        if mode is WriteMode.OVERWRITE and not self.table_exists(object_id):
            with suppress(TableAlreadyExists):  # another was faster; then its rows are what is overwritten
                self.declare_table(object_id, properties)
                return True
        self.find_table(object_id)
        if replaces:
            _checked_properties(properties)
        elif properties:
            raise InvalidInput(f"the table {object_id} exists; properties are given when a table is created")
        return False

    def _drop_if_empty(self, object_id: ObjectId) -> None:
        """Take a declaration back, and what its write left. A table with a version stays, or is entered again.

        Others can commit the first version until the entry is gone, and where it is no V1 directory behind that, too.
        """
        table = self.find_table(object_id)
        root = self.dataset_root(table)
        if self.commits.latest(root) is not None:
            return
        removed = self._remove(object_id)
        keys = self.places.contents(root)
        if removed.location != table.location or self.commits.latest(root) is not None:
            self.ledger.apply(lambda view: add_table(view, removed))
        else:
            self._remove_leftovers(table, keys)

    @contextmanager
    def _diagnosed(self, object_id: ObjectId) -> Iterator[None]:
        """Raise `Damaged` with the way out, in place of what the engine makes of a latest version that is lost."""
        try:
            yield
        except (NotFound, AlreadyExists, InvalidInput, Damaged, OSError) as error:
            fault = None
            with suppress(LancekeepError):  # what went wrong first is what the caller has to hear
                fault = self._head_fault(self.find_table(object_id))
            if fault is None:
                raise
            raise Damaged(
                f"the table {object_id}: {fault}. Put the manifest back from a backup. Without one, `lancekeep repair "
                f"{self.root_uri} --table {object_id} --accept-loss` shows which version it can go back to"
            ) from error

    def _head_fault(self, table: Table) -> str | None:
        """What is wrong with the latest manifest of a table; None if it can be read, or there is none."""
        latest = self.commits.latest(self.dataset_root(table))
        if latest is None:
            return None
        try:
            names_in(self.places.objects.get(latest.path), latest.path)
        except ObjectNotFound:
            return f"its latest version {latest.version} is lost, because nothing lies at {latest.path!r}"
        except Damaged as error:
            return f"its latest version {latest.version} cannot be read: {error}"
        return None

    def _settled(self, object_id: ObjectId, write: Callable[[], Committed]) -> Committed:
        """The outcome of a write, an unknown one settled if it can be."""
        try:
            return write()
        except CommitUnknown as unknown:
            outcome = self.commits.resolve(unknown.token)
            if isinstance(outcome, Conflict):
                raise VersionTaken(
                    f"{object_id}: version {unknown.token.staged.version} went to another writer; nothing was "
                    "committed. Write again."
                ) from unknown
            if isinstance(outcome, Unknown):
                raise
            return outcome


def _mode(mode: str) -> WriteMode:
    try:
        return WriteMode(mode)
    except ValueError:
        raise InvalidInput(f"unknown write mode {mode!r}; choose create, append or overwrite") from None


def _checked_properties(properties: Mapping[str, str] | None) -> dict[str, str]:
    for key, value in (properties or {}).items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidInput(f"properties are text: {key!r} has the value {value!r}")
        _refuse_own(key)
    return dict(properties or {})


def _property_changes(values: Mapping[str, str] | None, removed: Iterable[str]) -> dict[str, str | None]:
    """Properties to set, and to remove as None. Raises `InvalidInput`."""
    if isinstance(removed, str):
        raise InvalidInput(f"give the properties to remove as a list of names, not as the text {removed!r}")
    names = list(removed)
    changes = _checked_properties(values)
    for name in names:
        if not isinstance(name, str) or name in changes:
            raise InvalidInput(f"cannot remove the property {name!r}: its name is no text, or it is set as well")
        _refuse_own(name)
    return {**changes, **dict.fromkeys(names)}


def _refuse_own(name: str) -> None:
    if name.startswith(OWN_PROPERTIES):
        raise InvalidInput(f"the property {name!r} is the catalog's own; choose a name without {OWN_PROPERTIES!r}")
