"""Write and read the data of tables through the table engine.

The methods of `Catalog` with similar names document these.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from lancekeep.application.commits.keyed_requests import current_request, performing, refuse_to_share
from lancekeep.application.commits.replaced_values import WatchedChange
from lancekeep.application.entries.ledger import Ledger
from lancekeep.application.entries.limits import current_limits
from lancekeep.application.entries.places import Places
from lancekeep.application.entries.removal import Removal
from lancekeep.application.entries.tables import DEFINITE, Tables
from lancekeep.application.rows.appends import Appends
from lancekeep.application.rows.declarations import Declarations
from lancekeep.application.rows.described_versions import DescribedVersions, HistoryEntry
from lancekeep.application.rows.diagnosis import Diagnosis
from lancekeep.application.rows.published import PublishedPartitions
from lancekeep.application.rows.row_rules import checked
from lancekeep.application.rows.version_times import history_name, latest_at
from lancekeep.application.rows.versions import Versions, raise_unless_committed
from lancekeep.application.rows.write_checks import (
    Announce,
    after_checks,
    is_stream,
    mode_of,
    noting,
    unannounced,
    until_committed,
)
from lancekeep.domain.catalog import CatalogView, Change
from lancekeep.domain.commit import Committed, Conflict
from lancekeep.domain.commit_token import CommitUnknown
from lancekeep.domain.errors import (
    BranchNotFound,
    InvalidInput,
    LancekeepError,
    Refused,
    StoreUnavailable,
    TableNotFound,
    Unsupported,
    VersionNotFound,
    VersionTaken,
)
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.lineage import Base
from lancekeep.domain.managed import by_storage
from lancekeep.domain.row_rules import Rules
from lancekeep.domain.stable_row_ids import stated_row_ids, wants_stable_row_ids, with_row_ids
from lancekeep.domain.table import Table, add_table, find_table, is_reusable
from lancekeep.domain.table_defaults import require_default, with_default
from lancekeep.ports.table_engine import TableEngine, VersionDetails, WriteMode, WritePlan

if TYPE_CHECKING:
    from lancekeep.application.rows.table_transactions import TableTransactions

Result = TypeVar("Result")


class Writes:
    """Writes tables and opens their versions.

    Args:
        transactions: Returns what commits without the engine.
    """

    def __init__(
        self,
        ledger: Ledger,
        places: Places,
        versions: Versions,
        tables: Tables,
        removal: Removal,
        engine: TableEngine,
        appends: Appends,
        transactions: Callable[[], TableTransactions],
        published: PublishedPartitions,
    ) -> None:
        self._ledger = ledger
        self._places = places
        self._versions = versions
        self._tables = tables
        self._removal = removal
        self._engine = engine
        self._transactions = transactions
        self._described = DescribedVersions(ledger)
        self._declarations = Declarations(ledger, tables, versions)
        self._published = published
        self._appends = appends
        self._diagnosis = Diagnosis(ledger, places, versions, tables)

    # -- writing ------------------------------------------------------------------------------------------------

    def write(
        self,
        object_id: ObjectId,
        data: Any,
        mode: str,
        properties: Mapping[str, str] | None,
        stable_row_ids: bool | None = None,
    ) -> Committed:
        self._versions.lines.require_whole()
        write_mode = mode_of(mode)
        stable = stated_row_ids(properties, stable_row_ids)
        data = self._engine.rows_of(data)
        if write_mode is not WriteMode.CREATE:
            self.require_no_new_rows(object_id)
        if write_mode is WriteMode.CREATE:
            refuse_to_share()
        if write_mode is WriteMode.CREATE and self._ledger.manifest.location_of(object_id) is None:
            location = self._places.new_location(object_id)
            stated = self._tables.checked(with_row_ids(properties, stable))
            return self._write_and_enter(Table(object_id, location, stated), self._engine.reader(data))
        replaces = write_mode is WriteMode.OVERWRITE and properties is not None
        if write_mode is WriteMode.OVERWRITE:
            self._require_columns(object_id, data.schema)
        if properties and replaces and not self._ledger.guarantees.properties:
            raise self._ledger.guarantees.refusal(f"cannot store the properties of {object_id}")
        if write_mode is WriteMode.APPEND and not properties and not is_stream(data):
            self._declarations.require_row_ids(object_id, stable)
            return self._append(object_id, data)
        refuse_to_share()
        declared, rules, stable = self._declarations.declare_for(
            object_id, write_mode, properties, stable, replaces=replaces
        )
        engine_mode = WriteMode.CREATE if declared else write_mode
        try:
            reader = self._engine.reader(data)
            with self._diagnosis.of(object_id), self._versions.lines.beside(object_id), checked(reader, rules) as rows:
                write = partial(self._engine.write, object_id, rows, engine_mode, stable_row_ids=stable)
                committed = self._settled(object_id, partial(self._versions.by_engine, object_id, write))
            self.note(object_id, None, committed)
            if replaces and not declared:
                self._tables.replace_properties(object_id, properties or {})
            return committed
        except CommitUnknown:
            raise
        except Exception:
            if declared:
                with suppress(LancekeepError):  # the original error is raised
                    self._tables.take_back(object_id)
            raise

    def _append(self, object_id: ObjectId, data: Any) -> Committed:
        """Append with the other appends that wait, or alone if only the engine can append."""

        def append() -> Committed:
            appended = self._appends.append(object_id, data)
            if isinstance(appended, Committed):
                return appended
            reader, rules = self._engine.reader(appended.data), self._tables.find(object_id).rules
            with self._versions.lines.beside(object_id), checked(reader, rules) as rows:
                write = partial(self._engine.write, object_id, rows, WriteMode.APPEND)
                return self._versions.by_engine(object_id, write)

        with self._diagnosis.of(object_id):
            committed = self._settled(object_id, append)
        self.note(object_id, None, committed)
        return committed

    def begin(
        self,
        object_id: ObjectId,
        schema: Any,
        mode: str,
        properties: Mapping[str, str] | None,
        stable_row_ids: bool | None = None,
        location: str | None = None,
    ) -> WritePlan:
        refuse_to_share()
        write_mode = mode_of(mode)
        if write_mode is not WriteMode.CREATE:
            self.require_no_new_rows(object_id)
        if write_mode is WriteMode.OVERWRITE:
            self._require_columns(object_id, schema)
        stated = stated_row_ids(properties, stable_row_ids)
        declared, _, stable = self._declarations.declare_for(
            object_id, write_mode, properties, stated, location=location
        )
        table = self._tables.find(object_id)
        if not declared:
            self._versions.require_one_scheme(table)
        root = self._places.dataset_root(table)
        latest = self._ledger.commits.latest(root)
        if latest is None and write_mode is WriteMode.APPEND:
            self._versions.unfinished_clones.refuse(table)
            raise TableNotFound(
                self._diagnosis.remains(table)
                or f"the table {object_id} is only declared: it has no version to append to. Write the first version "
                "with mode='overwrite'"
            )
        version = 0 if latest is None else latest.version
        base = None
        if is_reusable(table.location):
            if latest is None:
                base = Base(0, self._versions.moved.reservation(table))
            else:
                base = self._ledger.commits.lineage.base(root, latest)
        uri, options = self._places.uri(table), self._places.storage_options
        rules = table.rules
        return WritePlan(
            object_id, uri, options, schema, write_mode, version, declared, base, rules=rules, stable_row_ids=stable
        )

    def commit_fragments(
        self, plan: WritePlan, fragments: Sequence[Any], properties: Mapping[str, str], *, exactly: bool
    ) -> Committed:
        with self._diagnosis.of(plan.table), self._versions.lines.beside(plan.table):
            commit = partial(self._engine.commit_fragments, plan, fragments, properties, exactly=exactly)
            committed = self._settled(plan.table, partial(self._versions.by_engine, plan.table, commit))
        self.note(plan.table, None, committed)
        return committed

    def commit_change(
        self,
        object_id: ObjectId,
        act: Callable[[Any], Any],
        after: int | None = None,
        *,
        branch: str | None = None,
        exactly: bool = False,
        admits: Callable[[Any, int], bool] | None = None,
        checks: Callable[[Any, Rules], None] | None = None,
        rebased: bool = False,
        noted: bool = True,
        indexes: bool = False,
        announce: Announce = unannounced,
    ) -> Committed:
        """Commit a native change; ``indexes``: one that creates indexes.

        With ``rebased``, a change of the main history beside appends is rebased without the engine: each version that
        the engine loses to appends costs the engine seconds, and the appends a pause. With ``admits``, too, every such
        change is.

        ``announce`` is called before each attempt; see `Announce`.

        Unless ``noted``, the change makes no version of this history, so a version that the engine commits without a
        callback is not noted for `Versions.recorder`.

        If the table has rules, ``checks`` receives the dataset and the rules before ``act``. Without ``admits``, the
        change is then repeated until it commits on the version that was checked.
        """
        refuse_to_share()
        table = self.with_version(object_id, None, None, branch)
        if checks is not None and table.rules:
            ruled = after_checks(checks, table.rules, act)
            if admits is None:
                return until_committed().call(
                    lambda: self.commit_change(object_id, ruled, after, branch=branch, exactly=True, announce=announce)
                )
            act = ruled
        watched = WatchedChange(self._engine.structure, act, indexes=indexes)
        committed = self._published.commit(
            table.id,
            branch,
            lambda: self._commit_watched(
                table.id, watched, after, branch, exactly, admits, rebased=rebased, indexes=indexes, announce=announce
            ),
        )
        if noted:
            self.note(table.id, branch, committed, after=watched.read)

        def merge(act: Callable[[Any], Any]) -> None:
            merged = self._published.commit(
                table.id, branch, lambda: self._commit_watched(table.id, act, None, branch, False, None)
            )
            self.note(table.id, branch, merged)

        watched.settle(table.id, merge)
        return committed

    def commit_built(self, object_id: ObjectId, commit: Callable[[], Committed]) -> Committed:
        """Commit a version that the caller has built.

        Partitions are published, as by `commit_change`.

        Args:
            object_id: The table.
            commit: Commits the version. An unknown outcome is resolved if the stores answer.
        """
        with self._diagnosis.of(object_id):
            return self._published.commit(object_id, None, lambda: self._settled(object_id, commit))

    def change_unpublished(self, object_id: ObjectId, act: Callable[[Any], Any], after: int) -> Committed:
        """Commit a native change of a partition directly after a version.

        The caller publishes it.
        """
        refuse_to_share()
        committed = self._commit_watched(object_id, act, after, None, True, None)
        self.note(object_id, None, committed)
        return committed

    def note(self, object_id: ObjectId, branch: str | None, committed: Committed, *, after: int | None = None) -> None:
        """Note a version that the engine has committed without a callback.

        Args:
            object_id: The table.
            branch: The branch; None for the main history.
            committed: The version.
            after: Also note the versions after this one: a compaction makes several.
        """
        if committed.path:
            return
        first = committed.version if after is None else min(after + 1, committed.version)
        with suppress(TableNotFound):  # dropped since
            table = find_table(self._ledger.recent(), object_id)
            for version in range(first, committed.version + 1):
                self._versions.note(table, branch, Committed(version, "", 0))

    def _commit_watched(
        self,
        object_id: ObjectId,
        act: Callable[[Any], Any],
        after: int | None,
        branch: str | None,
        exactly: bool,
        admits: Callable[[Any, int], bool] | None,
        *,
        rebased: bool = False,
        indexes: bool = False,
        announce: Announce = unannounced,
    ) -> Committed:
        if rebased and branch is None and current_request() is None:
            with suppress(Unsupported):  # the engine can
                if admits is not None:
                    return self._commit_rebased(object_id, act, admits, announce)
                if self._appends.are_recent(object_id):
                    return until_committed().call(lambda: self._commit_rebased(object_id, act))
        announce(None)
        with self._diagnosis.of(object_id), self._versions.lines.beside(object_id):
            read: list[int] = []
            change = partial(self._engine.change, object_id, noting(act, read), after, branch=branch, exactly=exactly)
            commit = partial(change, admits=admits, indexes=indexes)
            return self._settled(object_id, partial(self._versions.by_engine, object_id, commit, branch, read))

    def _commit_rebased(
        self,
        object_id: ObjectId,
        act: Callable[[Any], Any],
        admits: Callable[[Any, int], bool] | None = None,
        announce: Announce = unannounced,
    ) -> Committed:
        read: list[Any] = []

        def noted(dataset: Any) -> Any:
            read[:] = [dataset]
            return act(dataset)

        with self._diagnosis.of(object_id):
            staged, base = self._engine.stage_change(object_id, noted)
            may_follow = None if admits is None else partial(admits, *read)
            return self._settled(
                object_id, lambda: self._transactions().commit_staged(object_id, staged, base, may_follow, announce)
            )

    def require_no_new_rows(self, object_id: ObjectId) -> None:
        """Check that a table may get rows by its name; see `PublishedPartitions`."""
        self._published.require_no_new_rows(object_id)

    def require_columns_may_change(self, object_id: ObjectId) -> None:
        """Check that a table is no partition; see `PartitionColumns.require_may_change`."""
        self._versions.columns.require_may_change(object_id)

    def altering(self, tables: Collection[ObjectId]) -> AbstractContextManager[None]:
        """Let versions of partitions have other columns; see `PartitionColumns.altering`."""
        return self._versions.columns.altering(tables)

    def _require_columns(self, object_id: ObjectId, schema: Any) -> None:
        """Check that an overwrite keeps the columns of a partition."""
        try:
            self.require_columns_may_change(object_id)
        except Refused:
            if not self._tables.exists(object_id) or self.open(object_id, None, None, None).schema.equals(schema):
                return
            raise

    def abandon(self, plan: WritePlan) -> None:
        if plan.declared and self._tables.exists(plan.table):
            self._tables.take_back(plan.table)

    def _write_and_enter(self, table: Table, data: Any) -> Committed:
        """Create a table: commit its first version, then add its entry.

        A reader that finds the entry then also finds the rows. If a native process found an entry without a version, it
        would write its own first version there.
        """

        stated = table.properties
        table = attrs.evolve(table, properties=with_default(stated, self._ledger.recent().properties))

        def decide(view: CatalogView) -> tuple[list[Change], Table]:
            require_default(view, table, stated)
            return add_table(view, table), table

        if self._ledger.effect_of_request() is not None:
            return Committed(1, "", 0)
        self._ledger.refuse_early(lambda view: self._ledger.authorized(decide)(view)[0])
        limits = current_limits()
        if limits is not None:  # a commit without an entry cannot be judged by what it adds
            limits.require_space(table.id)
        if self._ledger.managed and by_storage(table.properties):
            self._ledger.commits.release(self._places.dataset_root(table))
        if self._ledger.holds(table):
            self._ledger.commits.holding.hold(self._places.dataset_root(table))
        with performing(None):  # the entry is the effect of a request; without it, the version does not exist
            first = self._write_first(table, data)
        try:
            self._ledger.apply(decide, effect=lambda entered: entered)
        except DEFINITE:
            self._removal.discard(table)
            raise
        return first

    def _write_first(self, table: Table, data: Any) -> Committed:
        """Commit rows as the first version of a table that has no entry yet."""
        self._ledger.commits.prove()
        uri, options = self._places.uri(table), self._places.storage_options
        stable = wants_stable_row_ids(table.properties)
        plan = WritePlan(
            table.id, uri, options, data.schema, WriteMode.CREATE, 0, False, rules=table.rules, stable_row_ids=stable
        )
        try:
            fragments = self._engine.write_fragments(plan, data)
            if not self._ledger.managed:
                created = Committed(self._engine.create_at(plan, fragments), "", 0)
                self._versions.note(table, None, created)
                return created
            staged = self._engine.stage(plan, fragments, entered=False)
            outcome = self._versions.commit_version(table, None, staged.version, staged.path, staged.size)
            return raise_unless_committed(outcome, str(table.id))
        except Exception as error:
            self._removal.discard(table)
            if isinstance(error, CommitUnknown):
                raise StoreUnavailable(f"{table.id} was not created: {error}") from error
            raise

    def _settled(self, object_id: ObjectId, write: Callable[[], Committed]) -> Committed:
        """Return the outcome of a write. Resolve an unknown outcome if the stores answer."""
        try:
            return write()
        except CommitUnknown as unknown:
            try:
                outcome = self._versions.resolve(unknown.token)
            except StoreUnavailable:
                raise unknown from None
            if isinstance(outcome, Conflict):
                raise VersionTaken(
                    f"{object_id}: version {unknown.token.staged.version} went to another writer; nothing was "
                    "committed. Write again."
                ) from unknown
            if not isinstance(outcome, Committed):
                raise
            return outcome

    # -- reading ------------------------------------------------------------------------------------------------

    def open(self, object_id: ObjectId, version: int | None, tag: str | None, branch: str | None) -> Any:
        table = self.with_version(object_id, version, tag, branch)
        with self._diagnosis.of(table.id):
            return self._engine.open(table.id, version, tag, branch)

    def handle(self, object_id: ObjectId, version: int | None, tag: str | None, branch: str | None) -> Any:
        table = self.with_version(object_id, version, tag, branch)
        with self._diagnosis.of(table.id):
            return self._engine.handle(table.id, version, tag, branch)

    def describe_version(
        self, object_id: ObjectId, version: int | None, tag: str | None, branch: str | None
    ) -> VersionDetails:
        table = self.with_version(object_id, version, tag, branch)
        with self._diagnosis.of(table.id):
            return self._engine.details(table.id, version, tag, branch)

    def examine(
        self, object_id: ObjectId, act: Callable[[Any], Result], version: int | None, branch: str | None
    ) -> Result:
        """Return what ``act`` finds in a version; see `TableEngine.examine`."""
        table = self.with_version(object_id, version, None, branch)
        with self._diagnosis.of(table.id):
            return self._engine.examine(table.id, act, version, branch)

    def history(
        self,
        object_id: ObjectId,
        limit: int | None,
        *,
        before: int | None = None,
        branch: str | None = None,
        changes: bool = False,
    ) -> list[HistoryEntry]:
        if branch is not None:
            self.with_version(object_id, None, None, branch)
        root = self._root(object_id, branch)
        find = self._described.changed if changes else self._described.latest
        return find(root, limit, before)

    def entries(self, object_id: ObjectId, versions: Sequence[int], branch: str | None) -> list[HistoryEntry]:
        return self._described.of(self._root(object_id, branch), versions)

    def version_at(self, object_id: ObjectId, moment: datetime, branch: str | None) -> int:
        table = self.with_version(object_id, None, None, branch)
        root = self._places.dataset_root(table).branch(branch)
        return latest_at(self._described.times(root, history_name(table.id, branch)), moment)

    def _root(self, object_id: ObjectId, branch: str | None) -> DatasetRoot:
        return self._places.dataset_root(self._tables.find(object_id)).branch(branch)

    def with_version(self, object_id: ObjectId, version: int | None, tag: str | None, branch: str | None) -> Table:
        """Return a table after checking, without the engine, that the version exists."""
        if tag is not None and (version is not None or branch is not None):
            raise InvalidInput("a tag selects a version; pass no version or branch with it")
        if version is not None and not isinstance(version, int):
            raise InvalidInput(
                f"the version {version!r} of {object_id} is not a number; select a tag by tag={version!r}"
            )
        table = self._tables.find(object_id)
        root = self._places.dataset_root(table)
        commits = self._ledger.commits
        latest = commits.latest(root)
        if latest is None:
            self._tables.find(object_id)  # it may have been renamed or dropped since
        if latest is None and self._places.is_foreign(table):
            raise VersionNotFound(
                f"{table.location!r} is not a Lance table: it has files and no version. Move the files away, "
                f"or write the first version of {table.id} with mode='overwrite'"
            )
        if latest is None:
            self._versions.unfinished_clones.refuse(table)
            raise VersionNotFound(
                self._diagnosis.remains(table)
                or f"the table {table.id} is only declared: it has no version to open yet. Write the first version "
                f"with write({str(table.id)!r}, data, 'overwrite'), or remove the table with `lancekeep drop`"
            )
        if branch is not None and commits.latest(root.branch(branch)) is None:
            raise BranchNotFound(f"the table {table.id} has no branch {branch!r}")
        if version is not None and commits.get(root.branch(branch), version) is None:
            self._tables.find(object_id)
            raise VersionNotFound(
                f"{history_name(table.id, branch)} has no version {version}; catalog.versions.history lists those that "
                "exist"
            )
        return table
