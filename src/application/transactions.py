"""Writes to several tables that are published together, and versions of several tables that are read together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType, TracebackType
from typing import Any, Self

import attrs

from lancekeep.application.tables import Tables
from lancekeep.application.transaction_commits import TransactionCommits
from lancekeep.application.versions import NewVersion, Versions
from lancekeep.application.writes import Writes
from lancekeep.domain.commit import Committed, Conflict, Unknown
from lancekeep.domain.commit_token import CommitUnknown
from lancekeep.domain.errors import (
    ConcurrentModification,
    InvalidInput,
    LancekeepError,
    Refused,
    Retryable,
    TableAlreadyExists,
    TableNotFound,
    VersionNotFound,
)
from lancekeep.domain.identifiers import Identifier, ObjectId
from lancekeep.domain.table import Table
from lancekeep.domain.transaction import AllCommitted, TransactionOutcome
from lancekeep.domain.version_row import VersionRow
from lancekeep.ports.commit_store import require_atomic
from lancekeep.ports.table_engine import StagedVersion, TableEngine, WriteMode, WritePlan

_ATTEMPTS = 20
"""How often the manifests of appends are staged anew because others committed first; as often as the engine does."""


@attrs.define
class _Write:
    """What a transaction has written of one table. own: this transaction has begun the plan."""

    plan: WritePlan
    fragments: list[Any]
    own: bool


class Transaction:
    """The new versions of several tables, published at the end of the ``with`` block, all of them or none.

    Data are written at once, as fragments that no version names. The end of the block stages one manifest for each
    table and reserves all their versions in one step of the commit store: that decides. Appends go behind whatever
    others have committed meanwhile; a table that is overwritten has to be as it was when its write began. A new table
    is declared when its write begins, and goes again if nothing comes of it.

    An error inside the block, or at its end, rolls everything back; but `CommitUnknown`, whose token settles the whole
    transaction. Not for use by several threads at once.

    Raises `Unsupported` where the commit store cannot do it; nothing was written.
    """

    def __init__(self, versions: Versions, writes: Writes, engine: TableEngine) -> None:
        require_atomic(versions.commits.rows, 2)
        self._versions = versions
        self._writes = writes
        self._engine = engine
        self._pending: dict[ObjectId, _Write] = {}
        self._open = False
        self._committed: dict[ObjectId, Committed] = {}

    @property
    def committed(self) -> Mapping[ObjectId, Committed]:
        """The versions that were published, by table; empty before the end of the block."""
        return MappingProxyType(self._committed)

    def write(
        self, identifier: Identifier, data: Any, mode: str = "create", *, properties: Mapping[str, str] | None = None
    ) -> None:
        """Write data to a table; arguments and errors are those of `Catalog.write`.

        A table has one new version at the end, so what follows the first write to it can only be more rows: ``append``,
        with the columns of the first.
        """
        self._require_open()
        reader = self._engine.reader(data)
        object_id = ObjectId.of(identifier)
        before = self._pending.get(object_id)
        if before is not None:
            self._require_more_rows(before.plan, reader.schema, mode, properties)
            before.fragments.extend(self._engine.write_fragments(before.plan, reader))
            return
        plan = self._writes.begin(object_id, reader.schema, mode, properties)
        try:
            fragments = self._engine.write_fragments(plan, reader)
        except BaseException:
            with suppress(LancekeepError):  # what went wrong first is what the caller has to hear
                self._writes.abandon(plan)
            raise
        self._pending[object_id] = _Write(plan, list(fragments), own=True)

    def commit_fragments(self, plan: WritePlan, fragments: Sequence[Any]) -> None:
        """Take in the fragments of a distributed write; as `Catalog.commit_fragments`, at the end of the block.

        The plan stays its maker's: if the transaction fails, `Catalog.abandon_write` undoes what it declared.
        """
        self._require_open()
        if plan.table in self._pending:
            raise InvalidInput(f"{plan.table}: the transaction has written to this table already; it has one plan")
        self._pending[plan.table] = _Write(plan, list(fragments), own=False)

    # -- the block ----------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._open or self._pending:
            raise InvalidInput("a transaction is for one block; begin another with catalog.transaction()")
        self._open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        if error is not None:
            self._undeclare()
        elif self._pending:
            self._publish()

    def _require_open(self) -> None:
        if not self._open:
            raise InvalidInput("a transaction writes inside its block: with catalog.transaction() as tx: …")

    def _require_more_rows(self, plan: WritePlan, schema: Any, mode: str, properties: Mapping[str, str] | None) -> None:
        if mode != WriteMode.APPEND.value or properties or schema != plan.schema:
            raise InvalidInput(
                f"{plan.table}: the transaction has written to this table already, and makes one version of it; only "
                f"rows of the same columns can be appended. Expected mode 'append' and {plan.schema}, found {mode!r} "
                f"and {schema}"
            )

    def _undeclare(self) -> None:
        for write in self._pending.values():
            if write.own:
                with suppress(LancekeepError):
                    self._writes.abandon(write.plan)

    # -- publishing ---------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        try:
            versions = self._commit()
        except CommitUnknown:
            raise
        except Exception:
            self._undeclare()
            raise
        self._committed = dict(zip(self._pending, versions, strict=True))

    def _commit(self) -> Sequence[Committed]:
        for _ in range(_ATTEMPTS):
            staged = self._stage()
            try:
                outcome = self._settled(self._versions.commit_versions(staged))
            except (InvalidInput, Refused, Retryable):
                self._remove(staged)
                raise
            if isinstance(outcome, AllCommitted):
                return outcome.versions
        raise ConcurrentModification(
            f"others kept committing to {self._names()}; nothing of the transaction was committed. Run it again."
        )

    def _stage(self) -> list[NewVersion]:
        """A manifest for every table, behind its latest version. Raises where one may not be there any more."""
        staged: list[NewVersion] = []
        try:
            for write in self._pending.values():
                table = self._versions.find_table(write.plan.table)
                made = self._engine.stage(write.plan, write.fragments)
                staged.append(NewVersion(table, made.version, made.path, made.size, base=write.plan.base))
                _require_unchanged(write.plan, made)
        except Exception:
            self._remove(staged)
            raise
        return staged

    def _remove(self, staged: Sequence[NewVersion]) -> None:
        """Manifests that are certain never to be reserved."""
        for each in staged:
            with suppress(LancekeepError):
                self._versions.commits.objects.delete(each.manifest_path)

    def _settled(self, outcome: TransactionOutcome) -> AllCommitted | Conflict:
        """The outcome, an unknown one settled if it can be."""
        if isinstance(outcome, Unknown):
            outcome = TransactionCommits(self._versions.commits).resolve(outcome.token)
        if isinstance(outcome, Unknown):
            raise CommitUnknown(
                f"whether the transaction over {self._names()} was committed could not be learnt: {outcome.reason}. "
                "Nothing was removed; settle it with catalog.resolve(error.token), which tells of all or none.",
                outcome.token,
            )
        return outcome

    def _names(self) -> str:
        return ", ".join(map(str, self._pending))


def _require_unchanged(plan: WritePlan, made: StagedVersion) -> None:
    """Only appends may go behind versions that the write has not seen."""
    if plan.mode is WriteMode.APPEND or made.version == plan.read_version + 1:
        return
    if plan.mode is WriteMode.CREATE:
        raise TableAlreadyExists(
            f"{plan.table}: another wrote its first version meanwhile; nothing of the transaction was committed"
        )
    raise ConcurrentModification(
        f"{plan.table}: overwriting version {plan.read_version} would undo version {made.version - 1}, which came "
        "meanwhile; nothing of the transaction was committed. Run it again."
    )


# -- reading --------------------------------------------------------------------------------------------------------


@attrs.frozen
class _Pinned:
    table: Table
    version: int


@attrs.frozen
class Snapshot:
    """Versions of several tables as they were at one moment; `Catalog.snapshot` takes it.

    It keeps nothing from being cleaned up: ``older_than`` of a clean-up has to be longer than a snapshot is read.
    """

    _versions: Versions = attrs.field(repr=False)
    _writes: Writes = attrs.field(repr=False)
    _pinned: Mapping[ObjectId, _Pinned]

    @property
    def versions(self) -> Mapping[ObjectId, int]:
        """The version of each table."""
        return {object_id: pinned.version for object_id, pinned in self._pinned.items()}

    @property
    def uris(self) -> Mapping[ObjectId, str]:
        """Where each table lies, for readers elsewhere: ``lance.dataset(uri, version=…)``."""
        return {object_id: self._versions.uri(pinned.table) for object_id, pinned in self._pinned.items()}

    def version(self, identifier: Identifier) -> int:
        """The version of one table. Raises `TableNotFound` for one that the snapshot leaves out."""
        return self._of(ObjectId.of(identifier)).version

    def open(self, identifier: Identifier) -> Any:
        """A table at its version, as `Catalog.open`. Raises `TableNotFound` also where it is another by now."""
        object_id = ObjectId.of(identifier)
        pinned = self._of(object_id)
        if self._versions.find_table(object_id).location != pinned.table.location:
            raise TableNotFound(f"the table {object_id} is another than when the snapshot was taken; take a new one")
        return self._writes.open(object_id, pinned.version, None, None)

    def _of(self, object_id: ObjectId) -> _Pinned:
        try:
            return self._pinned[object_id]
        except KeyError:
            raise TableNotFound(f"the snapshot holds no table {object_id}") from None


def take_snapshot(versions: Versions, tables: Tables, writes: Writes, chosen: Sequence[ObjectId] | None) -> Snapshot:
    """See `Catalog.snapshot`. The catalog is looked at before and behind the rows: a transaction may make tables."""

    def look() -> list[Table]:
        return list(tables.usable()) if chosen is None else [tables.find(each) for each in chosen]

    seen = look()
    for _ in range(_ATTEMPTS):
        latest = _versions_at_one_moment(versions, seen)
        before, seen = seen, look()
        if latest is not None and _places(before) == _places(seen):
            break
    else:
        raise ConcurrentModification("tables kept coming and going while a snapshot was taken; take it again")
    pinned = {
        table.id: _Pinned(table, version) for table, version in zip(seen, latest, strict=True) if version is not None
    }
    missing = [table.id for table in seen if table.id not in pinned]
    if chosen is not None and missing:
        raise VersionNotFound(f"the table {missing[0]} is only declared: it has no version to be read")
    return Snapshot(versions, writes, pinned)


def _places(tables: Sequence[Table]) -> list[tuple[ObjectId, str]]:
    return [(table.id, table.location) for table in tables]


def _versions_at_one_moment(versions: Versions, tables: Sequence[Table]) -> list[int | None] | None:
    """The latest version of each table, final by now; None where one came or went meanwhile."""
    commits = versions.commits
    roots = [versions.dataset_root(table) for table in tables]
    rows = commits.retry.call(lambda: commits.rows.latest_all([root.base_uri for root in roots]))
    latest: list[VersionRow] = []
    for row, root in zip(rows, roots, strict=True):
        # A table without rows may have versions that its store does not know yet: the next look will see them.
        finished = commits.latest(root) if row is None else commits.finalize(row)
        if (row is None) != (finished is None):
            return None
        if row is not None and finished is not None:
            latest.append(finished)
    if commits.unrecorded(latest):
        for root in roots:
            commits.latest(root)
        return None
    return [None if row is None else row.version for row in rows]
