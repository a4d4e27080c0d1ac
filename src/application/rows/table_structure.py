"""Change and list the indexes, columns and base paths of tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lancekeep.application.deprecation import warn_of_move
from lancekeep.application.rows.branches import Branches
from lancekeep.application.rows.changes import change_table
from lancekeep.application.rows.services import WriteService
from lancekeep.domain.bounds import LONGEST_NAME, require_few, require_short
from lancekeep.domain.commit import Changed
from lancekeep.domain.identifiers import Identifier, ObjectId
from lancekeep.domain.properties import require_bounded_texts
from lancekeep.ports.table_engine import TableEngine
from lancekeep.ports.table_structure import ColumnChange, FieldMetadata, Index, IndexStatistics, NewIndex

if TYPE_CHECKING:
    from lancekeep.application.rows.table_transactions import TableTransactions

_OF_BRANCHES = {
    "branches": "list",
    "create_branch": "create",
    "delete_branch": "delete",
    "fast_forward": "fast_forward",
}
"""Methods that have moved to `Branches`, by their former names."""


class TableStructure:
    """The indexes, columns, metadata and base paths of tables: ``catalog.structure``.

    Identifiers are as in `Catalog`. ``branch`` None is the main history, and ``version`` None is the latest version.
    Every change is one version, and raises the errors of `Catalog.write`. Every method raises `TableNotFound`,
    `BranchNotFound` or `VersionNotFound` if the object does not exist.
    """

    def __init__(
        self, writes: WriteService, engine: TableEngine, transactions: Callable[[], TableTransactions]
    ) -> None:
        """Create the service; ``transactions`` returns the commits without the engine."""
        self._writes = writes
        self._engine = engine
        self._transactions = transactions

    # -- indexes ------------------------------------------------------------------------------------------------

    def create_index(self, identifier: Identifier, index: NewIndex, branch: str | None = None) -> Changed:
        """Create an index.

        If another writer replaces values of the column during the build, the index is committed empty, and the next
        version fills it.

        Raises:
            ColumnNotFound: The table has no such field.
            IndexAlreadyExists: The table has an index of the name.
            InvalidInput: The type of the index does not fit the field, or a parameter is invalid.
        """
        require_short("the name of the index", index.name or "", LONGEST_NAME)
        object_id = ObjectId.of(identifier)
        return self._change(
            object_id, branch, lambda dataset: self._engine.structure.create_index(dataset, index), indexes=True
        )

    def add_segments(self, identifier: Identifier, act: Callable[[Any], Any]) -> Changed:
        """Commit segments of an index that were built before.

        Args:
            identifier: The table.
            act: Receives the table as `Catalog.open` returns it, commits the segments through it, and returns the
                dataset afterwards.
        """
        object_id = ObjectId.of(identifier)
        return self._change(object_id, None, act, indexes=True)

    def indexes(self, identifier: Identifier, version: int | None = None, branch: str | None = None) -> Sequence[Index]:
        """Return the indexes of a version, by name."""
        object_id = ObjectId.of(identifier)
        return self._writes.examine(object_id, self._engine.structure.indexes, version, branch)

    def index_statistics(
        self, identifier: Identifier, name: str, version: int | None = None, branch: str | None = None
    ) -> IndexStatistics:
        """Return the statistics of an index.

        Raises:
            IndexNotFound: The table has no such index.
        """
        object_id = ObjectId.of(identifier)
        return self._writes.examine(
            object_id, lambda dataset: self._engine.structure.index_statistics(dataset, name), version, branch
        )

    def drop_index(self, identifier: Identifier, name: str, branch: str | None = None) -> Changed:
        """Drop an index.

        Raises:
            IndexNotFound: The table has no such index.
        """
        object_id = ObjectId.of(identifier)
        return self._change(object_id, branch, lambda dataset: self._engine.structure.drop_index(dataset, name))

    def merge_indexes(self, identifier: Identifier, names: Sequence[str]) -> Changed:
        """Add missing rows to indexes, and remove entries of replaced values.

        Raises:
            IndexNotFound: The table has no index of a name.
        """
        object_id = ObjectId.of(identifier)
        return self._change(object_id, None, lambda dataset: self._engine.structure.merge_indexes(dataset, names))

    # -- columns ------------------------------------------------------------------------------------------------

    def add_columns(self, identifier: Identifier, expressions: Mapping[str, str], branch: str | None = None) -> Changed:
        """Add columns with the values of SQL expressions.

        Args:
            identifier: The table.
            expressions: The SQL expression of each new column, by its name.
            branch: The branch to change.

        Raises:
            InvalidInput: There are more than `MOST_ITEMS` columns.
            SchemaMismatch: The table has a column of the name, or an expression is invalid.
            Refused: The table is a partition; its columns belong to the namespace.
        """
        _require_columns(expressions)
        object_id = ObjectId.of(identifier)
        return self._change_columns(
            object_id, branch, lambda dataset: self._engine.structure.add_columns(dataset, expressions)
        )

    def declare_columns(
        self, identifier: Identifier, expressions: Mapping[str, str], branch: str | None = None
    ) -> Changed:
        """Add columns of nulls that keep SQL expressions for `fill_column`.

        Args:
            identifier: The table.
            expressions: The SQL expression of each new column, by its name.
            branch: The branch to change.

        Raises:
            InvalidInput: There are more than `MOST_ITEMS` columns.
            SchemaMismatch: The table has a column of the name, or an expression is invalid.
            Refused: The table is a partition; its columns belong to the namespace.
        """
        _require_columns(expressions)
        object_id = ObjectId.of(identifier)
        return self._change_columns(
            object_id, branch, lambda dataset: self._engine.structure.declare_columns(dataset, expressions)
        )

    def fill_column(
        self, identifier: Identifier, path: str, condition: str | None = None, branch: str | None = None
    ) -> Changed:
        """Compute a column that `declare_columns` has added.

        Args:
            identifier: The table.
            path: The path of the column.
            condition: An SQL condition that selects the rows; by default all rows.
            branch: The branch to change.

        Raises:
            ColumnNotFound: The table has no such column.
            InvalidInput: The column has no expression, or the condition is invalid.
        """
        object_id = ObjectId.of(identifier)
        return self._change(
            object_id, branch, lambda dataset: self._engine.structure.fill_column(dataset, path, condition)
        )

    def expression(self, identifier: Identifier, path: str) -> str:
        """Return the SQL expression of a declared column.

        Raises:
            ColumnNotFound: The table has no such column.
            InvalidInput: The column has no expression.
        """
        object_id = ObjectId.of(identifier)
        return self._writes.examine(
            object_id, lambda dataset: self._engine.structure.expression(dataset, path), None, None
        )

    def alter_columns(
        self, identifier: Identifier, changes: Sequence[ColumnChange], branch: str | None = None
    ) -> Changed:
        """Rename columns, or change their type or nullability.

        Raises:
            ColumnNotFound: The table has no such field.
            SchemaMismatch: The table has a column of the new name, or its values do not fit the type.
            Refused: The table is a partition; its columns belong to the namespace.
        """
        require_few("alterations", changes)
        for change in changes:
            require_short("the name of the column", change.name or "", LONGEST_NAME)
        object_id = ObjectId.of(identifier)
        return self._change_columns(
            object_id, branch, lambda dataset: self._engine.structure.alter_columns(dataset, changes)
        )

    def drop_columns(self, identifier: Identifier, paths: Sequence[str], branch: str | None = None) -> Changed:
        """Drop columns.

        Raises:
            ColumnNotFound: The table has no such field.
            SchemaMismatch: No column would remain.
            Refused: The table is a partition; its columns belong to the namespace.
        """
        require_few("columns", paths)
        object_id = ObjectId.of(identifier)
        return self._change_columns(
            object_id, branch, lambda dataset: self._engine.structure.drop_columns(dataset, paths)
        )

    def require_columns_may_change(self, identifier: Identifier) -> None:
        """Check that the columns of a table do not belong to a partitioned namespace.

        Raises:
            Refused: The table is a partition.
        """
        object_id = ObjectId.of(identifier)
        self._writes.require_columns_may_change(object_id)

    def _change_columns(self, object_id: ObjectId, branch: str | None, act: Callable[[Any], Any]) -> Changed:
        self.require_columns_may_change(object_id)
        return self._change(object_id, branch, act)

    # -- base paths ---------------------------------------------------------------------------------------------

    def set_base_paths(self, identifier: Identifier, paths: Mapping[int, str]) -> Changed:
        """Change the places of base paths whose files were copied.

        See "Dataset Portability" in the storage layout. The new version reads the copies. Older versions, branches and
        tags read the old places. Idempotent.

        Args:
            identifier: The table.
            paths: The new absolute path or URI of each base path to change, by its id.

        Raises:
            InvalidInput: The latest version has no base path with an id, or a path is not absolute.
            AccessDenied: The caller may not read a new place.
            CommitRefused: A file of the latest version does not exist at its new place, or has another size; or
                another change of these base paths was committed in between.
            Unsupported: The table, or a feature of it, needs the Lance engine.
        """
        object_id = ObjectId.of(identifier)
        made = self._transactions().set_base_paths(object_id, paths)
        return Changed(made.version, made.transaction.partition("-")[2].removesuffix(".txn") or None)

    # -- metadata -----------------------------------------------------------------------------------------------

    def set_metadata(
        self, identifier: Identifier, values: Mapping[str, str], branch: str | None = None
    ) -> tuple[Changed, Mapping[str, str]]:
        """Set keys of the schema's metadata.

        Returns:
            The change, and the whole metadata afterwards.
        """
        require_bounded_texts("metadata", values)
        object_id = ObjectId.of(identifier)
        found: dict[str, str] = {}

        def act(dataset: Any) -> Any:
            changed = self._engine.structure.set_metadata(dataset, values)
            found.update(self._engine.structure.metadata(changed))
            return changed

        return self._change(object_id, branch, act), found

    def set_field_metadata(
        self, identifier: Identifier, changes: Sequence[FieldMetadata], branch: str | None = None
    ) -> tuple[Changed, Mapping[str, Mapping[str, str]]]:
        """Change the metadata of fields.

        Returns:
            The change, and the whole metadata of these fields afterwards, by path.

        Raises:
            ColumnNotFound: The table has no such field.
        """
        require_few("updates", changes)
        require_bounded_texts("metadata", *(change.values for change in changes))
        object_id = ObjectId.of(identifier)
        found: dict[str, Mapping[str, str]] = {}

        def act(dataset: Any) -> Any:
            changed = self._engine.structure.set_field_metadata(dataset, changes)
            found.update(self._engine.structure.field_metadata(changed, [change.path for change in changes]))
            return changed

        return self._change(object_id, branch, act), found

    def _change(
        self, object_id: ObjectId, branch: str | None, act: Callable[[Any], Any], *, indexes: bool = False
    ) -> Changed:
        return change_table(self._writes, self._engine, object_id, act, branch, indexes=indexes)

    if not TYPE_CHECKING:  # a type checker rejects the deprecated names

        def __getattr__(self, name: str) -> object:
            """Return a method of `Branches` by its former, deprecated name."""
            if name not in _OF_BRANCHES:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            warn_of_move(f"structure.{name}", f"Catalog.branches.{_OF_BRANCHES[name]}")
            return getattr(Branches(self._writes, self._engine), _OF_BRANCHES[name])


def _require_columns(expressions: Mapping[str, str]) -> None:
    """Check the number of new columns, and their names."""
    require_few("new_columns", expressions)
    for name in expressions:
        require_short("the name of the column", name, LONGEST_NAME)
