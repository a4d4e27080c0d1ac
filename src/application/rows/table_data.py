"""Change and query the rows of tables ("Table Data Operations")."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lancekeep.application.deprecation import warn_of_move
from lancekeep.application.entries.services import TableService
from lancekeep.application.retry import Retry
from lancekeep.application.rows.changes import change_table
from lancekeep.application.rows.row_rules import check_stream, check_texts, checked
from lancekeep.application.rows.services import WriteService
from lancekeep.application.rows.table_versions import TableVersions
from lancekeep.application.rows.upserts import LOST, Upserts
from lancekeep.application.rows.write_checks import is_stream
from lancekeep.domain.appends import MOST_BYTES
from lancekeep.domain.bounds import require_few
from lancekeep.domain.commit import Changed, Committed
from lancekeep.domain.errors import (
    ConcurrentModification,
    LsmWarning,
    TableAlreadyExists,
    TableNotFound,
    VersionNotFound,
)
from lancekeep.domain.identifiers import Identifier, ObjectId
from lancekeep.domain.row_rules import Rules, columns_of
from lancekeep.ports.rows import MergeCounts, MergeRule, Query, RowStats, Source
from lancekeep.ports.table_engine import TableEngine

AskUnmerged = Callable[[ObjectId, str | None], Callable[[], int | None]]
"""Begins to look for LSM writes that the latest version of a table or branch lacks; see `MemWal.ask`."""

PATIENCE = 30.0
"""The seconds after which a merge that keeps losing is no longer repeated, as pylance has it."""


class TableData:
    """The rows of tables: ``catalog.data``.

    Identifiers are as in `Catalog`. ``branch`` None is the main history, and ``version`` None is the latest version.
    Changes raise the errors of `Catalog.write`. Queries raise `TableNotFound`, `VersionNotFound`, `BranchNotFound`,
    `ColumnNotFound` and, for a malformed query, `InvalidInput`.
    """

    def __init__(
        self,
        tables: TableService,
        writes: WriteService,
        engine: TableEngine,
        ask_unmerged: AskUnmerged = lambda table, branch: lambda: None,
        upserts: Upserts | None = None,
    ) -> None:
        self._tables = tables
        self._writes = writes
        self._engine = engine
        self._ask_unmerged = ask_unmerged
        self._upserts = upserts or Upserts(writes, engine)

    # -- changes ------------------------------------------------------------------------------------------------

    def insert(
        self, identifier: Identifier, data: Any, *, overwrite: bool = False, branch: str | None = None
    ) -> Changed:
        """Append rows, or replace all rows.

        A table that is only declared gets its first version.

        Args:
            identifier: The table.
            data: A ``pyarrow.RecordBatchReader``, a ``pyarrow.Table``, or `Rows`.
            overwrite: Replace all rows.
            branch: The branch to change.
        """
        object_id = ObjectId.of(identifier)
        if branch is not None:
            rows = self._engine.rows
            with checked(self._engine.reader(data), self._tables.find(object_id).rules) as stream:
                return self._change(
                    object_id, lambda dataset: rows.insert(dataset, stream, overwrite=overwrite), branch
                )
        if not overwrite and is_stream(data):  # a small stream that has arrived can share a commit
            arrived, data = self._engine.data_files.gather(data, MOST_BYTES)
            data = data if arrived is None else arrived
        try:
            return _change_of(self._writes.write(object_id, data, "overwrite" if overwrite else "append", None))
        except TableNotFound:
            if overwrite or not self._tables.exists(object_id):
                raise
            return self._write_first(object_id, self._engine.reader(data))

    def merge(
        self,
        identifier: Identifier,
        data: Any,
        rule: MergeRule,
        *,
        branch: str | None = None,
        patience: float = PATIENCE,
    ) -> tuple[Changed, MergeCounts]:
        """Merge rows into a table by key.

        The merge commits after the version that it has read, with only versions between that add none of its keys;
        else it runs again on the newer version. So no key that another writer inserts at the same time is inserted
        twice. A table that is only declared gets its first version.

        Small upserts of one table that wait at the same time share a merge and a version. Each one gets its own counts.

        Args:
            identifier: The table.
            data: A ``pyarrow.RecordBatchReader``, a ``pyarrow.Table``, or `Rows`.
            rule: The key columns, and the treatment of rows.
            branch: The branch to change.
            patience: The seconds after which no further attempt begins.

        Raises:
            ConcurrentModification: Other writers won every attempt. Nothing was committed.
        """
        object_id = self._of_new_rows(identifier, branch)
        data = self._engine.rows_of(data)
        if branch is None:
            upsert, data = self._upserts.gather(data, rule, patience)
            if upsert is not None:
                check_texts(upsert.rows.table)
                done = self._upserts.commit(object_id, upsert)
                if done is not None:
                    return done
                patience = self._upserts.patience(upsert)
        retry = Retry(patience, first=0.02, retried=LOST)
        with checked(self._engine.reader(data), ()) as stream, self._engine.rows.repeatable(stream) as source:
            return retry.call(lambda: self._merge_once(object_id, source, rule, branch))

    def _merge_once(
        self, object_id: ObjectId, source: Source, rule: MergeRule, branch: str | None
    ) -> tuple[Changed, MergeCounts]:
        counted: list[MergeCounts] = []

        def merge(dataset: Any) -> Any:
            commit, counts = self._engine.rows.merge(dataset, source.stream(), rule)
            counted.append(counts)
            return commit()

        try:
            change = self._change(
                object_id,
                merge,
                branch,
                exactly=True,
                admits=lambda dataset, version: self._engine.rows.keeps_apart(dataset, version, source, rule),
                checks=lambda dataset, rules: check_stream(source.stream(), rules),
            )
        except VersionNotFound as error:
            if branch is not None:
                raise
            if self._tables.describe(object_id).version is not None:
                raise ConcurrentModification(
                    f"{object_id}: another writer has just written the first version; nothing was committed"
                ) from error
            return self._write_first(object_id, source.stream()), MergeCounts(source.rows, 0, 0)
        return change, counted[0]

    def update(
        self,
        identifier: Identifier,
        values: Mapping[str, str],
        condition: str | None = None,
        *,
        branch: str | None = None,
    ) -> tuple[Changed, int]:
        """Set columns of rows to SQL expressions.

        Args:
            identifier: The table.
            values: The SQL expression of each column to set, by its name.
            condition: An SQL condition that selects the rows; by default all rows.
            branch: The branch to change.

        Returns:
            The change, and the number of updated rows.
        """
        require_few("updates", values)
        object_id = self._of_new_rows(identifier, branch)
        counted: list[int] = []

        def update(dataset: Any) -> Any:
            dataset, updated = self._engine.rows.update(dataset, values, condition)
            counted[:] = [updated]
            return dataset

        def check(dataset: Any, rules: Rules) -> None:
            check_stream(self._engine.rows.updated(dataset, values, condition, columns_of(rules)), rules)

        change = self._change(object_id, update, branch, checks=check, rebased=True)
        if counted:
            return change, counted[0]
        # The reply of the commit was lost: the engine raised, and the commit store has settled the outcome.
        return change, self.count(object_id, condition, version=change.version - 1, branch=branch)

    def delete(self, identifier: Identifier, condition: str, *, branch: str | None = None) -> Changed:
        """Delete the rows for which an SQL condition is true."""
        object_id = ObjectId.of(identifier)
        return self._change(
            object_id, lambda dataset: self._engine.rows.delete(dataset, condition), branch, rebased=True
        )

    def _of_new_rows(self, identifier: Identifier, branch: str | None) -> ObjectId:
        """Return the table of a change that may add rows or values. Raises `Refused` for a partition."""
        object_id = ObjectId.of(identifier)
        if branch is None:
            self._writes.require_no_new_rows(object_id)
        return object_id

    def _change(
        self,
        object_id: ObjectId,
        act: Callable[[Any], Any],
        branch: str | None,
        *,
        exactly: bool = False,
        admits: Callable[[Any, int], bool] | None = None,
        checks: Callable[[Any, Rules], None] | None = None,
        rebased: bool = False,
    ) -> Changed:
        return change_table(
            self._writes,
            self._engine,
            object_id,
            act,
            branch,
            exactly=exactly,
            admits=admits,
            checks=checks,
            rebased=rebased,
        )

    def _write_first(self, object_id: ObjectId, data: Any) -> Changed:
        """Write the first version of a table that is only declared."""
        plan = self._writes.begin(object_id, data.schema, "overwrite", None)
        lost = f"{object_id}: another writer has just written its first version; insert again"
        if plan.read_version:
            raise ConcurrentModification(lost)
        try:
            fragments = self._engine.write_fragments(plan, data)
            return _change_of(self._writes.commit_fragments(plan, fragments, {}, exactly=True))
        except TableAlreadyExists as error:
            raise ConcurrentModification(lost) from error

    # -- queries ------------------------------------------------------------------------------------------------

    def query(
        self, identifier: Identifier, query: Query, *, version: int | None = None, branch: str | None = None
    ) -> Any:
        """Return the rows of a query as a ``pyarrow.RecordBatchReader``."""
        object_id = ObjectId.of(identifier)
        return self._engine.rows.scan(self._writes.open(object_id, version, None, branch), query)

    def explain(
        self,
        identifier: Identifier,
        query: Query,
        *,
        version: int | None = None,
        branch: str | None = None,
        verbose: bool = False,
    ) -> str:
        """Return the plan of a query as text."""
        object_id = ObjectId.of(identifier)
        return self._engine.rows.explain(self._writes.open(object_id, version, None, branch), query, verbose=verbose)

    def analyze(
        self, identifier: Identifier, query: Query, *, version: int | None = None, branch: str | None = None
    ) -> str:
        """Run a query, and return its plan with the measured figures."""
        object_id = ObjectId.of(identifier)
        return self._engine.rows.analyze(self._writes.open(object_id, version, None, branch), query)

    def count(
        self,
        identifier: Identifier,
        condition: str | None = None,
        *,
        version: int | None = None,
        branch: str | None = None,
    ) -> int:
        """Return the number of rows for which an SQL condition is true.

        If the table has LSM writes that are in no version, a count of the latest version issues `LsmWarning`.
        """
        object_id = ObjectId.of(identifier)
        asked = self._ask_unmerged(object_id, branch) if version is None else None
        rows = self._engine.rows.count(self._writes.open(object_id, version, None, branch), condition)
        if asked is not None and (lacking := asked()):
            warnings.warn(
                f"the count of {object_id} lacks {lacking} generations of LSM writes, which are in no version",
                LsmWarning,
                stacklevel=2,
            )
        return rows

    def stats(self, identifier: Identifier, *, branch: str | None = None) -> RowStats:
        """Return the statistics of the latest version."""
        object_id = ObjectId.of(identifier)
        return self._engine.rows.stats(self._writes.open(object_id, None, None, branch))

    if not TYPE_CHECKING:  # a type checker rejects the deprecated name

        def __getattr__(self, name: str) -> object:
            """Return `TableVersions.restore` by its former, deprecated name."""
            if name != "restore":
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            warn_of_move("data.restore", "Catalog.versions.restore")
            return TableVersions(self._tables, self._writes, self._engine).restore


def _change_of(committed: Committed) -> Changed:
    return Changed(committed.version, None)
