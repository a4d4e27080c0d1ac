"""Transactions over several tables, and snapshots of several tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType, TracebackType
from typing import Any, Self

import attrs

from lancekeep.application.commits.transaction_commits import TransactionCommits
from lancekeep.application.concurrency import all_alongside, is_remote
from lancekeep.application.entries.tables import Tables
from lancekeep.application.rows.versions import NewVersion, Versions
from lancekeep.application.rows.writes import Writes
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
    Unsupported,
    VersionNotFound,
)
from lancekeep.domain.identifiers import Identifier, ObjectId
from lancekeep.domain.lineage import Base
from lancekeep.domain.managed import IMPLEMENTATION, MANAGED, STORAGE
from lancekeep.domain.table import Table, is_reusable
from lancekeep.domain.transaction import AllCommitted, TransactionOutcome
from lancekeep.domain.version_row import VersionRow
from lancekeep.ports.commit_store import require_atomic
from lancekeep.ports.table_engine import StagedVersion, TableEngine, WriteMode, WritePlan

_ATTEMPTS = 20
"""How often a transaction stages its appends again after a conflict; the engine retries as often."""


@attrs.define
class _Write:
    """The fragments of one table.

    Attributes:
        own: Whether this transaction began the plan.
        managed: Whether the commit store manages the versions of the table.
    """

    plan: WritePlan
    fragments: list[Any]
    own: bool
    managed: bool


class Transaction:
    """A ``with`` block that publishes new versions of several tables, or none.

    Each write inside the block writes fragments that no version names. The end of the block stages one manifest for
    each table, and reserves all versions in one step of the commit store, which decides
    (`lancekeep.domain.transaction`). Appends are rebased on the latest version. A table to overwrite must not have
    changed since its write began. The first write to a new table declares it.

    An error inside the block or at its end rolls back the transaction and its declarations. `CommitUnknown` does not;
    its token settles the whole transaction. A transaction is not thread-safe.

    Raises:
        Unsupported: The commit store cannot reserve versions of several tables in one step; nothing was written.
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
        """The published versions by table; empty before the end of the block."""
        return MappingProxyType(self._committed)

    def write(
        self,
        identifier: Identifier,
        data: Any,
        mode: str = "create",
        *,
        properties: Mapping[str, str] | None = None,
        stable_row_ids: bool | None = None,
    ) -> None:
        """Write data to a table; takes the arguments of `Catalog.write`.

        The transaction creates one version of each table. So later writes to the same table must use ``append``, with
        the columns of the first write.
        """
        self._require_open()
        reader = self._engine.reader(data)
        object_id = ObjectId.of(identifier)
        before = self._pending.get(object_id)
        if before is not None:
            self._require_more_rows(before.plan, reader.schema, mode, properties, stable_row_ids)
            before.fragments.extend(self._engine.write_fragments(before.plan, reader))
            return
        plan = self._writes.begin(object_id, reader.schema, mode, properties, stable_row_ids)
        try:
            managed = self._is_managed(object_id)
            fragments = self._engine.write_fragments(plan, reader)
        except BaseException:
            with suppress(LancekeepError):  # the first error is raised
                self._writes.abandon(plan)
            raise
        self._pending[object_id] = _Write(plan, list(fragments), own=True, managed=managed)

    def commit_fragments(self, plan: WritePlan, fragments: Sequence[Any]) -> None:
        """Add the fragments of a distributed write; the end of the block commits them.

        The caller keeps the plan: if the transaction fails, `Catalog.abandon_write` removes its declaration.
        """
        self._require_open()
        if plan.table in self._pending:
            raise InvalidInput(
                f"{plan.table}: the transaction has written to this table already; give all fragments of a table "
                "together"
            )
        managed = self._is_managed(plan.table)
        self._pending[plan.table] = _Write(plan, list(fragments), own=False, managed=managed)

    def _is_managed(self, added: ObjectId) -> bool:
        """Return whether the commit store manages the versions of a table that joins the transaction.

        Raises:
            Unsupported: The storage manages one of several tables.
        """
        managed = self._versions.manages(self._versions.find_table(added))
        direct = (
            added if not managed else next((table for table, write in self._pending.items() if not write.managed), None)
        )
        if direct is not None and self._pending:
            raise Unsupported(
                f"the storage manages the versions of {direct} ({MANAGED!r} is {STORAGE!r}), so no transaction over "
                f"several tables can include it. Write {direct} alone, or set the property to {IMPLEMENTATION!r} "
                "first. Nothing was committed."
            )
        return managed

    # -- the block ----------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._open or self._pending:
            raise InvalidInput("a transaction is for one block; begin a new transaction with catalog.transaction()")
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

    def _require_more_rows(
        self,
        plan: WritePlan,
        schema: Any,
        mode: str,
        properties: Mapping[str, str] | None,
        stable_row_ids: bool | None,
    ) -> None:
        written = f"{plan.table}: the transaction has written to this table already, and makes one version of it"
        if mode != WriteMode.APPEND.value or schema != plan.schema:
            raise InvalidInput(
                f"{written}; only rows of the same columns can be appended. Expected mode 'append' and {plan.schema}, "
                f"found {mode!r} and {schema}"
            )
        if properties or stable_row_ids is not None:
            raise InvalidInput(f"{written}; give properties and stable_row_ids with its first write only")

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
            f"other writers committed to {self._names()} at each of {_ATTEMPTS} attempts; nothing was committed. "
            "Run the transaction again."
        )

    def _stage(self) -> list[NewVersion]:
        """Stage a manifest for each table, based on its latest version."""
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
        """Remove staged manifests that no row can name."""
        for each in staged:
            with suppress(LancekeepError):
                self._versions.commits.objects.delete(each.manifest_path)

    def _settled(self, outcome: TransactionOutcome) -> AllCommitted | Conflict:
        """Return the outcome; resolve an unknown outcome."""
        if isinstance(outcome, Unknown):
            outcome = TransactionCommits(self._versions.commits).resolve(outcome.token)
        if isinstance(outcome, Unknown):
            raise CommitUnknown(
                f"whether the transaction over {self._names()} was committed is unknown: {outcome.reason}. "
                "Nothing was removed; settle the whole transaction with catalog.resolve(error.token).",
                outcome.token,
            )
        return outcome

    def _names(self) -> str:
        return ", ".join(map(str, self._pending))


def _require_unchanged(plan: WritePlan, made: StagedVersion) -> None:
    """Require that a write other than an append has read the latest version."""
    if plan.mode is WriteMode.APPEND or made.version == plan.read_version + 1:
        return
    if plan.mode is WriteMode.CREATE:
        raise TableAlreadyExists(
            f"{plan.table}: another writer committed the first version; nothing of the transaction was committed"
        )
    raise ConcurrentModification(
        f"{plan.table}: overwriting version {plan.read_version} would undo version {made.version - 1} of "
        "another writer; nothing of the transaction was committed. Run it again."
    )


# -- reading --------------------------------------------------------------------------------------------------------


@attrs.frozen
class _Pinned:
    """A table and its version.

    Attributes:
        base: The identity of the version, if another table can take the location: a V1 directory.
    """

    table: Table
    version: int
    base: Base | None = None


@attrs.frozen
class Snapshot:
    """The versions of several tables at one moment. `Catalog.snapshot` takes it.

    A snapshot does not protect its versions from cleanup. Choose an ``older_than`` that exceeds the time you read.
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
        """The URI of each table, for other processes: ``lance.dataset(uri, version=…)``."""
        return {object_id: self._versions.uri(pinned.table) for object_id, pinned in self._pinned.items()}

    def version(self, identifier: Identifier) -> int:
        """Return the version of a table.

        Raises:
            TableNotFound: The snapshot does not contain the table.
        """
        return self._of(ObjectId.of(identifier)).version

    def open(self, identifier: Identifier) -> Any:
        """Open a table at its version, as `Catalog.open`.

        Raises:
            TableNotFound: The snapshot does not contain the table, or another table has its name.
        """
        object_id = ObjectId.of(identifier)
        pinned = self._of(object_id)
        other = TableNotFound(
            f"another table has the name {object_id} since the snapshot was taken; take a new snapshot"
        )
        if self._versions.find_table(object_id).location != pinned.table.location:
            raise other
        dataset = self._writes.open(object_id, pinned.version, None, None)
        if pinned.base is not None and _base(self._versions, pinned) != pinned.base:
            raise other
        return dataset

    def _of(self, object_id: ObjectId) -> _Pinned:
        try:
            return self._pinned[object_id]
        except KeyError:
            raise TableNotFound(f"the snapshot holds no table {object_id}") from None


def take_snapshot(versions: Versions, tables: Tables, writes: Writes, chosen: Sequence[ObjectId] | None) -> Snapshot:
    """Take a snapshot; see `Catalog.snapshot`.

    The entries are read before and after the rows, because a transaction can create tables.
    """

    def look() -> list[Table]:
        return list(tables.usable()) if chosen is None else [tables.find(each) for each in chosen]

    seen = look()
    for _ in range(_ATTEMPTS):
        latest = _versions_at_one_moment(versions, seen)
        before, seen = seen, look()
        if latest is not None and _places(before) == _places(seen):
            break
    else:
        raise ConcurrentModification("tables were created or dropped at each attempt to take a snapshot; take it again")
    found = [_Pinned(table, version) for table, version in zip(seen, latest, strict=True) if version is not None]

    def identified(each: _Pinned) -> _Pinned:
        return each if not is_reusable(each.table.location) else attrs.evolve(each, base=_base(versions, each))

    pins = all_alongside(identified, found) if is_remote(versions.commits.objects) else map(identified, found)
    pinned = {each.table.id: each for each in pins}
    missing = [table.id for table in seen if table.id not in pinned]
    if chosen is not None and missing:
        raise VersionNotFound(f"the table {missing[0]} is only declared: it has no version to read")
    return Snapshot(versions, writes, pinned)


def _places(tables: Sequence[Table]) -> list[tuple[ObjectId, str]]:
    return [(table.id, table.location) for table in tables]


def _base(versions: Versions, pinned: _Pinned) -> Base | None:
    """Return the identity of a version; None if the version does not exist."""
    root = versions.dataset_root(pinned.table)
    row = versions.commits.get(root, pinned.version)
    return None if row is None else versions.commits.lineage.base(root, row)


def _versions_at_one_moment(versions: Versions, tables: Sequence[Table]) -> list[int | None] | None:
    """Return the final latest version of each table.

    Returns:
        None if a table appeared or disappeared.
    """
    commits = versions.commits
    roots = [versions.dataset_root(table) for table in tables]
    rows = commits.retry.call(lambda: commits.rows.latest_all([root.base_uri for root in roots]))
    latest: list[VersionRow] = []
    found: list[int | None] = []
    for row, root in zip(rows, roots, strict=True):
        # A table without rows can have versions that its store does not know yet; the next attempt reads them.
        finished = commits.latest(root) if row is None else commits.finalize(row)
        if row is not None and finished is None and commits.is_held(row):
            finished = commits.latest(root)
        if (row is None) != (finished is None):
            return None
        if row is not None and finished is not None:
            latest.append(finished)
        found.append(None if finished is None else finished.version)
    if commits.unrecorded(latest):
        for root in roots:
            commits.latest(root)
        return None
    return found
