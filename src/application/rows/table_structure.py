"""Change and list the branches, indexes, columns and base paths of tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from lancekeep.application.rows.row_rules import check_stream
from lancekeep.application.rows.writes import Writes
from lancekeep.domain.errors import BranchNotFound, Refused, Unsupported
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.row_rules import Rules, columns_of
from lancekeep.ports.table_engine import TableEngine
from lancekeep.ports.table_structure import Branch, ColumnChange, FieldMetadata, Index, IndexStatistics, NewIndex

if TYPE_CHECKING:
    from lancekeep.application.rows.table_transactions import TableTransactions


@attrs.frozen
class Changed:
    """A committed change of a table.

    Attributes:
        version: The version that holds the change.
        transaction: The id of its transaction; None if it is not known.
    """

    version: int
    transaction: str | None


class TableStructure:
    """Changes and lists the branches, indexes, columns and base paths of tables.

    Every change is one version, committed as those of `Catalog.write`, and raises its errors. ``branch`` None is the
    main history.

    Args:
        transactions: Returns what commits without the engine.
    """

    def __init__(self, writes: Writes, engine: TableEngine, transactions: Callable[[], TableTransactions]) -> None:
        self._writes = writes
        self._engine = engine
        self._transactions = transactions

    # -- branches -----------------------------------------------------------------------------------------------

    def branches(self, object_id: ObjectId) -> Mapping[str, Branch]:
        """Return the branches of a table, by name."""
        return self._writes.examine(object_id, self._engine.structure.branches, None, None)

    def create_branch(self, object_id: ObjectId, name: str, source: str | None, version: int | None) -> None:
        """Create a branch, by default from the latest version of the main history.

        Raises:
            BranchAlreadyExists: The table has the branch.
            BranchNotFound, VersionNotFound: The source does not exist.
        """
        self._writes.with_version(object_id, version, None, source)
        created = self._writes.commit_change(
            object_id, lambda dataset: self._engine.structure.create_branch(dataset, name, source, version), noted=False
        )
        self._writes.note(object_id, name, created)

    def delete_branch(self, object_id: ObjectId, name: str) -> None:
        """Delete a branch with its versions and files.

        Raises:
            BranchNotFound: The table has no such branch.
            Refused: A tag or another branch needs it.
        """
        if name not in self.branches(object_id):
            raise BranchNotFound(f"the table {object_id} has no branch {name!r}")
        self._writes.commit_change(
            object_id, lambda dataset: self._engine.structure.delete_branch(dataset, name), noted=False
        )

    def fast_forward(self, object_id: ObjectId, name: str) -> Changed:
        """Publish the rows of a branch as one version of the main history.

        Raises:
            BranchNotFound: The table has no such branch.
            Refused: The main history has versions that the branch lacks, or the branch has no version to publish.
            Unsupported: The branch begins at another branch, or has other columns.
        """
        branch = self.branches(object_id).get(name)
        if branch is None:
            raise BranchNotFound(f"the table {object_id} has no branch {name!r}")
        if branch.parent is not None:
            raise Unsupported(
                f"the branch {name!r} of {object_id} begins at the branch {branch.parent!r}. Only a branch that begins "
                "at the main history can be published."
            )
        tip = self._writes.open(object_id, None, None, name)
        if tip.version == branch.version:
            raise Refused(f"the branch {name!r} of {object_id} has no version of its own to publish")

        def act(dataset: Any) -> Any:
            if dataset.version != branch.version:
                raise Refused(
                    f"the main history of {object_id} is at version {dataset.version}, and the branch {name!r} begins "
                    f"at version {branch.version}. Create a branch from the latest version, write the rows again, and "
                    "publish that branch."
                )
            return self._engine.structure.fast_forward(dataset, tip)

        def check(_: Any, rules: Rules) -> None:
            check_stream(self._engine.rows.updated(tip, {}, None, columns_of(rules)), rules)

        return self._change(object_id, None, act, exactly=True, checks=check)

    # -- indexes ------------------------------------------------------------------------------------------------

    def create_index(self, object_id: ObjectId, index: NewIndex, branch: str | None) -> Changed:
        """Create an index; see `StructureEngine.create_index`.

        If values of the column were replaced in between, the index is committed empty, and filled by the next version.
        """
        return self._change(
            object_id, branch, lambda dataset: self._engine.structure.create_index(dataset, index), indexes=True
        )

    def add_segments(self, object_id: ObjectId, act: Callable[[Any], Any]) -> Changed:
        """Commit segments of an index that were built before, as `create_index`."""
        return self._change(object_id, None, act, indexes=True)

    def indexes(self, object_id: ObjectId, version: int | None, branch: str | None) -> Sequence[Index]:
        """Return the indexes of a version, by name."""
        return self._writes.examine(object_id, self._engine.structure.indexes, version, branch)

    def index_statistics(
        self, object_id: ObjectId, name: str, version: int | None, branch: str | None
    ) -> IndexStatistics:
        """Return the statistics of an index.

        Raises:
            IndexNotFound: The table has no such index.
        """
        return self._writes.examine(
            object_id, lambda dataset: self._engine.structure.index_statistics(dataset, name), version, branch
        )

    def drop_index(self, object_id: ObjectId, name: str, branch: str | None) -> Changed:
        """Drop an index.

        Raises:
            IndexNotFound: The table has no such index.
        """
        return self._change(object_id, branch, lambda dataset: self._engine.structure.drop_index(dataset, name))

    def merge_indexes(self, object_id: ObjectId, names: Sequence[str]) -> Changed:
        """Add missing rows to indexes, and remove entries of replaced values."""
        return self._change(object_id, None, lambda dataset: self._engine.structure.merge_indexes(dataset, names))

    # -- columns ------------------------------------------------------------------------------------------------

    def add_columns(self, object_id: ObjectId, expressions: Mapping[str, str], branch: str | None) -> Changed:
        """Add columns with values; see `StructureEngine.add_columns`."""
        return self._change_columns(
            object_id, branch, lambda dataset: self._engine.structure.add_columns(dataset, expressions)
        )

    def declare_columns(self, object_id: ObjectId, expressions: Mapping[str, str], branch: str | None) -> Changed:
        """Add columns that `fill_column` computes; see `StructureEngine.declare_columns`."""
        return self._change_columns(
            object_id, branch, lambda dataset: self._engine.structure.declare_columns(dataset, expressions)
        )

    def fill_column(self, object_id: ObjectId, path: str, condition: str | None, branch: str | None) -> Changed:
        """Compute a declared column; see `StructureEngine.fill_column`."""
        return self._change(
            object_id, branch, lambda dataset: self._engine.structure.fill_column(dataset, path, condition)
        )

    def expression(self, object_id: ObjectId, path: str) -> str:
        """Return the expression of a declared column; see `StructureEngine.expression`."""
        return self._writes.examine(
            object_id, lambda dataset: self._engine.structure.expression(dataset, path), None, None
        )

    def alter_columns(self, object_id: ObjectId, changes: Sequence[ColumnChange], branch: str | None) -> Changed:
        """Alter columns; see `StructureEngine.alter_columns`."""
        return self._change_columns(
            object_id, branch, lambda dataset: self._engine.structure.alter_columns(dataset, changes)
        )

    def drop_columns(self, object_id: ObjectId, paths: Sequence[str], branch: str | None) -> Changed:
        """Drop columns; see `StructureEngine.drop_columns`."""
        return self._change_columns(
            object_id, branch, lambda dataset: self._engine.structure.drop_columns(dataset, paths)
        )

    def require_columns_may_change(self, object_id: ObjectId) -> None:
        """Check that a table is no partition; its columns are the namespace's.

        Raises:
            Refused: It is.
        """
        self._writes.require_columns_may_change(object_id)

    def _change_columns(self, object_id: ObjectId, branch: str | None, act: Callable[[Any], Any]) -> Changed:
        self.require_columns_may_change(object_id)
        return self._change(object_id, branch, act)

    # -- base paths ---------------------------------------------------------------------------------------------

    def set_base_paths(self, object_id: ObjectId, paths: Mapping[int, str]) -> Changed:
        """Change the places of base paths whose files were copied.

        See "Dataset Portability" in the storage layout. The new version reads the copies. Older versions, branches and
        tags read the old places. Idempotent.

        Args:
            object_id: The table.
            paths: The new absolute path or URI of each base path to change, by its id.

        Raises:
            InvalidInput: The latest version has no base path with an id, or a path is not absolute.
            AccessDenied: The caller may not read a new place.
            CommitRefused: A file of the latest version does not exist at its new place, or has another size; or
                another change of these base paths was committed in between.
            Unsupported: The table, or a feature of it, needs the Lance engine.
        """
        made = self._transactions().set_base_paths(object_id, paths)
        return Changed(made.version, made.transaction.partition("-")[2].removesuffix(".txn") or None)

    # -- metadata -----------------------------------------------------------------------------------------------

    def set_metadata(
        self, object_id: ObjectId, values: Mapping[str, str], branch: str | None
    ) -> tuple[Changed, Mapping[str, str]]:
        """Set keys of the schema's metadata, and return all of it."""
        found: dict[str, str] = {}

        def act(dataset: Any) -> Any:
            changed = self._engine.structure.set_metadata(dataset, values)
            found.update(self._engine.structure.metadata(changed))
            return changed

        return self._change(object_id, branch, act), found

    def set_field_metadata(
        self, object_id: ObjectId, changes: Sequence[FieldMetadata], branch: str | None
    ) -> tuple[Changed, Mapping[str, Mapping[str, str]]]:
        """Change the metadata of fields, and return all of theirs by path."""
        found: dict[str, Mapping[str, str]] = {}

        def act(dataset: Any) -> Any:
            changed = self._engine.structure.set_field_metadata(dataset, changes)
            found.update(self._engine.structure.field_metadata(changed, [change.path for change in changes]))
            return changed

        return self._change(object_id, branch, act), found

    def _change(
        self,
        object_id: ObjectId,
        branch: str | None,
        act: Callable[[Any], Any],
        *,
        exactly: bool = False,
        checks: Callable[[Any, Rules], None] | None = None,
        indexes: bool = False,
    ) -> Changed:
        made: list[str | None] = []

        def acted(dataset: Any) -> Any:
            changed = act(dataset)
            made.append(self._engine.structure.transaction(changed))
            return changed

        committed = self._writes.commit_change(
            object_id, acted, branch=branch, exactly=exactly, checks=checks, indexes=indexes
        )
        return Changed(committed.version, made[-1] if made else None)
