"""Change and list the branches, indexes and columns of tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from lancekeep.application.writes import Writes
from lancekeep.domain.errors import BranchNotFound
from lancekeep.domain.identifiers import ObjectId
from lancekeep.ports.table_engine import TableEngine
from lancekeep.ports.table_structure import Branch, ColumnChange, FieldMetadata, Index, IndexStatistics, NewIndex


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
    """Changes and lists the branches, indexes and columns of tables.

    Every change is one version, committed as those of `Catalog.write`, and raises its errors. ``branch`` None is the
    main history.
    """

    def __init__(self, writes: Writes, engine: TableEngine) -> None:
        self._writes = writes
        self._engine = engine

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
        self._writes.commit_change(
            object_id, lambda dataset: self._engine.structure.create_branch(dataset, name, source, version)
        )

    def delete_branch(self, object_id: ObjectId, name: str) -> None:
        """Delete a branch with its versions and files.

        Raises:
            BranchNotFound: The table has no such branch.
            Refused: A tag or another branch needs it.
        """
        if name not in self.branches(object_id):
            raise BranchNotFound(f"the table {object_id} has no branch {name!r}")
        self._writes.commit_change(object_id, lambda dataset: self._engine.structure.delete_branch(dataset, name))

    # -- indexes ------------------------------------------------------------------------------------------------

    def create_index(self, object_id: ObjectId, index: NewIndex, branch: str | None) -> Changed:
        """Create an index; see `StructureEngine.create_index`."""
        return self._change(object_id, branch, lambda dataset: self._engine.structure.create_index(dataset, index))

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

    # -- columns ------------------------------------------------------------------------------------------------

    def add_columns(self, object_id: ObjectId, expressions: Mapping[str, str], branch: str | None) -> Changed:
        """Add columns with values; see `StructureEngine.add_columns`."""
        return self._change(object_id, branch, lambda dataset: self._engine.structure.add_columns(dataset, expressions))

    def declare_columns(self, object_id: ObjectId, expressions: Mapping[str, str], branch: str | None) -> Changed:
        """Add columns that `fill_column` computes; see `StructureEngine.declare_columns`."""
        return self._change(
            object_id, branch, lambda dataset: self._engine.structure.declare_columns(dataset, expressions)
        )

    def fill_column(self, object_id: ObjectId, path: str, condition: str | None, branch: str | None) -> Changed:
        """Compute a declared column; see `StructureEngine.fill_column`."""
        return self._change(
            object_id, branch, lambda dataset: self._engine.structure.fill_column(dataset, path, condition)
        )

    def alter_columns(self, object_id: ObjectId, changes: Sequence[ColumnChange], branch: str | None) -> Changed:
        """Alter columns; see `StructureEngine.alter_columns`."""
        return self._change(object_id, branch, lambda dataset: self._engine.structure.alter_columns(dataset, changes))

    def drop_columns(self, object_id: ObjectId, paths: Sequence[str], branch: str | None) -> Changed:
        """Drop columns; see `StructureEngine.drop_columns`."""
        return self._change(object_id, branch, lambda dataset: self._engine.structure.drop_columns(dataset, paths))

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

    def _change(self, object_id: ObjectId, branch: str | None, act: Callable[[Any], Any]) -> Changed:
        made: list[str | None] = []

        def acted(dataset: Any) -> Any:
            changed = act(dataset)
            made.append(self._engine.structure.transaction(changed))
            return changed

        committed = self._writes.commit_change(object_id, acted, branch=branch)
        return Changed(committed.version, made[-1] if made else None)
