"""The port of structure engines: branches, indexes and columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

import attrs


@attrs.frozen
class Branch:
    """A branch of a table.

    Attributes:
        parent: the branch from which it began; None for the main history.
        version: the version at which the branch began.
        created: when it was created, in seconds since 1970.
        manifest_size: the bytes of its first manifest.
        metadata: its own keys.
    """

    parent: str | None
    version: int
    created: int
    manifest_size: int
    metadata: Mapping[str, str]


@attrs.frozen
class NewIndex:
    """An index to create.

    Attributes:
        column: the path of its field.
        kind: its type, in capitals, such as ``IVF_PQ`` or ``BTREE``.
        name: its name; None for a name after the column.
        parameters: its parameters, by the names of the namespace specification.
    """

    column: str
    kind: str
    name: str | None = None
    parameters: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen
class Index:
    """An index of a version of a table.

    Attributes:
        name: its name.
        uuid: the identifier of its first segment.
        columns: the paths of its fields.
        kind: its type.
        type_url: the type of its details.
        indexed_rows: the number of rows that it covers.
        unindexed_rows: the number of other rows.
        fragments: the number of fragments that it covers.
        size: its bytes; None if they were not recorded.
        segments: the number of its segments.
        created: when its first segment was created; None if it was not recorded.
        format_version: the version of its format.
        details: its parameters.
    """

    name: str
    uuid: str
    columns: Sequence[str]
    kind: str
    type_url: str
    indexed_rows: int
    unindexed_rows: int
    fragments: int
    size: int | None
    segments: int
    created: datetime | None
    format_version: int
    details: Mapping[str, Any]


@attrs.frozen
class IndexStatistics:
    """Statistics of an index; ``distance`` is None unless it is a vector index."""

    kind: str
    distance: str | None
    indexed_rows: int
    unindexed_rows: int
    segments: int


@attrs.frozen
class ColumnChange:
    """A change of one column. A field that is None stays unchanged.

    Attributes:
        path: the path of the field.
        name: its new name.
        data_type: its new ``pyarrow.DataType``.
        nullable: whether it may hold nulls.
    """

    path: str
    name: str | None = None
    data_type: Any = None
    nullable: bool | None = None


@attrs.frozen
class FieldMetadata:
    """A change of the metadata of a field; None as a value removes the key.

    Attributes:
        path: the path of the field.
        values: the keys to set.
        replace: remove the other keys.
    """

    path: str
    values: Mapping[str, str | None]
    replace: bool = False


class StructureEngine(Protocol):
    """Read and change the structure of a dataset that a `TableEngine` has opened.

    Changes commit through the dataset, so they belong into the ``act`` of `TableEngine.change`, which translates their
    errors. The methods that read belong into the ``act`` of `TableEngine.examine`. Each change is one version, and
    returns the new dataset.
    """

    def operation(self, dataset: Any) -> str:
        """Return the operation of the dataset's version, such as ``Append``."""

    def branches(self, dataset: Any) -> Mapping[str, Branch]:
        """Return the branches of the table, by name."""

    def create_branch(self, dataset: Any, name: str, source: str | None, version: int | None) -> Any:
        """Create a branch, by default from the latest version of the main history.

        Raises:
            BranchAlreadyExists: the table has the branch.
        """

    def delete_branch(self, dataset: Any, name: str) -> Any:
        """Delete a branch with its versions and files."""

    def fast_forward(self, dataset: Any, tip: Any) -> Any:
        """Commit the rows of a branch to the main history, and return it.

        ``dataset`` is the version at which the branch begins, and ``tip`` is the latest version of the branch.
        Writes the rows that the branch has added, and deletes the rows that the branch has deleted.

        Raises:
            Unsupported: the branch has other columns.
        """

    def create_index(self, dataset: Any, index: NewIndex) -> Any:
        """Create an index.

        Raises:
            ColumnNotFound: the table has no such field.
            IndexAlreadyExists: the table has an index of the name.
            InvalidInput: the type of the index does not fit the field, or a parameter is wrong.
        """

    def indexes(self, dataset: Any) -> Sequence[Index]:
        """Return the indexes of a dataset, by name."""

    def index_statistics(self, dataset: Any, name: str) -> IndexStatistics:
        """Return the statistics of an index.

        Raises:
            IndexNotFound: the table has no index of the name.
        """

    def drop_index(self, dataset: Any, name: str) -> Any:
        """Drop an index.

        Raises:
            IndexNotFound: the table has no index of the name.
        """

    def coverage(self, dataset: Any) -> Any:
        """Return what the indexes cover, for `outdated`."""

    def outdated(self, before: Any, dataset: Any) -> Sequence[str]:
        """Return the names of indexes with entries of values replaced since.

        Another segment that covers the new values would make these entries count.
        """

    def merge_indexes(self, dataset: Any, names: Sequence[str]) -> Any:
        """Add missing rows to indexes, and remove entries of replaced values."""

    def emptied_indexes(self, dataset: Any) -> Sequence[str]:
        """Return the names of indexes with an empty segment.

        A commit empties a segment that has entries of replaced values.
        """

    def rebuild_indexes(self, dataset: Any, names: Sequence[str]) -> Any:
        """Build indexes again with the same parameters, as two versions."""

    def add_columns(self, dataset: Any, expressions: Mapping[str, str]) -> Any:
        """Add columns with the values of SQL expressions.

        Raises:
            SchemaMismatch: the table has a column of the name, or an expression is invalid.
        """

    def declare_columns(self, dataset: Any, expressions: Mapping[str, str]) -> Any:
        """Add columns of nulls that keep SQL expressions; raise as `add_columns`."""

    def expression(self, dataset: Any, path: str) -> str:
        """Return the SQL expression of a declared column.

        Raises:
            ColumnNotFound: the table has no such column.
            InvalidInput: the column has no expression.
        """

    def fill_column(self, dataset: Any, path: str, condition: str | None) -> Any:
        """Compute the rows of a declared column.

        Raises:
            ColumnNotFound: the table has no such column.
            InvalidInput: the column has no expression, or the condition is invalid.
        """

    def alter_columns(self, dataset: Any, changes: Sequence[ColumnChange]) -> Any:
        """Rename columns, or change their type or nullability.

        Raises:
            ColumnNotFound: the table has no such field.
            SchemaMismatch: the table has a column of the new name, or its values do not fit the type.
        """

    def drop_columns(self, dataset: Any, paths: Sequence[str]) -> Any:
        """Drop columns.

        Raises:
            ColumnNotFound: the table has no such field.
            SchemaMismatch: no column would remain.
        """

    def set_metadata(self, dataset: Any, values: Mapping[str, str]) -> Any:
        """Set keys of the schema's metadata."""

    def metadata(self, dataset: Any) -> Mapping[str, str]:
        """Return the schema's metadata."""

    def set_field_metadata(self, dataset: Any, changes: Sequence[FieldMetadata]) -> Any:
        """Change the metadata of fields.

        Raises:
            ColumnNotFound: the table has no such field.
        """

    def field_metadata(self, dataset: Any, paths: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        """Return the metadata of fields, by their paths."""
