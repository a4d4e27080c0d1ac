"""The structure engine: branches, indexes and columns through pylance."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC
from typing import Any, cast

import pyarrow as pa

from lancekeep.adapters.lance import indexes
from lancekeep.adapters.lance.panics import without_panics
from lancekeep.domain.column_names import plain_path, require_readable
from lancekeep.domain.errors import (
    BranchAlreadyExists,
    ColumnNotFound,
    IndexAlreadyExists,
    IndexNotFound,
    InvalidInput,
    LancekeepError,
    Refused,
    SchemaMismatch,
    Unsupported,
)
from lancekeep.domain.expressions import require_bounded
from lancekeep.domain.indexes import is_system_index
from lancekeep.native import lance
from lancekeep.ports.table_structure import Branch, ColumnChange, FieldMetadata, Index, IndexStatistics, NewIndex

EXPRESSION = "lancekeep:computed"
"""The key of a field's metadata that holds the SQL expression of a computed column."""

_NAMES = {"max_iterations": "max_iters"}
"""Parameters of the specification that pylance names differently."""

_VALUES = re.compile(r"Invalid user input|LanceError\(Schema\)")
"""The beginnings of errors that blame the caller's values, but have the class of a storage error."""

_PQ = ("IVF_PQ", "IVF_HNSW_PQ")


@without_panics
class LanceStructure:
    """A `StructureEngine` that uses pylance."""

    def operation(self, dataset: Any) -> str:
        return operation_of(dataset, dataset.version)

    # -- branches -----------------------------------------------------------------------------------------------

    def branches(self, dataset: Any) -> Mapping[str, Branch]:
        return {
            name: Branch(
                found.get("parent_branch"),
                found["parent_version"],
                found["create_at"],
                found["manifest_size"],
                found.get("metadata") or {},
            )
            for name, found in dataset.branches.list().items()
        }

    def create_branch(self, dataset: Any, name: str, source: str | None, version: int | None) -> Any:
        if name in dataset.branches.list():
            raise BranchAlreadyExists(
                f"{_name(dataset)} has a branch {name!r}; choose another name, or delete it first"
            )

        def remains(_: str) -> BranchAlreadyExists:
            return BranchAlreadyExists(
                f"{_name(dataset)} has the remains of a branch {name!r} that a stopped creation or deletion left. "
                "`lancekeep repair --deep` removes them; or choose another name"
            )

        with (
            _refusing(BranchAlreadyExists, "already exists"),
            _refusing(remains, "Clone operation should not enter build_manifest"),
        ):
            return dataset.create_branch(name, (source, version))

    def delete_branch(self, dataset: Any, name: str) -> Any:
        with _refusing(Refused, "is referenced by"):
            dataset.branches.delete(name)
        return dataset

    def fast_forward(self, dataset: Any, tip: Any) -> Any:
        if [field.to_arrow() for field in dataset.lance_schema.fields()] != [
            field.to_arrow() for field in tip.lance_schema.fields()
        ]:
            raise Unsupported(
                f"the branch has other columns than {_name(dataset)}, and only rows can be published. "
                "Alter the table itself, and then create the branch."
            )
        before = {fragment.fragment_id: fragment for fragment in dataset.get_fragments()}
        after = {fragment.fragment_id: fragment for fragment in tip.get_fragments()}
        kept = {
            number for number in before.keys() & after.keys() if _paths_of(before[number]) == _paths_of(after[number])
        }
        new = [fragment for number, fragment in after.items() if number not in kept]
        added = _copied(tip, new, dataset) if new else []
        removed = [number for number in before if number not in kept]
        updated = []
        for number in sorted(kept):
            if before[number].num_deletions != after[number].num_deletions:
                left = before[number].delete(f"_rowaddr IN ({', '.join(_deleted(dataset, tip, number))})")
                updated.append(left) if left is not None else removed.append(number)
        operations = lance.LanceOperation
        operation = operations.Update(removed, updated, added) if removed or updated else operations.Append(added)
        return lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)

    # -- indexes ------------------------------------------------------------------------------------------------

    def create_index(self, dataset: Any, index: NewIndex) -> Any:
        field = _field(dataset, index.column)
        with _refusing(IndexAlreadyExists, "already exists"), _refusing(InvalidInput):
            if index.kind.startswith("IVF_"):
                _create_vector_index(dataset, index, field.type)
            else:
                dataset.create_scalar_index(
                    index.column, index.kind, index.name, replace=False, **_native(index.parameters)
                )
        return dataset

    def indexes(self, dataset: Any) -> Sequence[Index]:
        rows = dataset.count_rows()
        paths = dict(_paths(dataset.lance_schema.fields()))
        found = [each for each in dataset.describe_indices() if not is_system_index(each.name)]
        live = frozenset(dataset.fragment_ids())
        return [_described(each, rows, live, paths) for each in sorted(found, key=lambda each: str(each.name))]

    def index_statistics(self, dataset: Any, name: str) -> IndexStatistics:
        _require_index(dataset, name)
        found = dataset.stats.index_stats(name)
        parts = found.get("indices") or [{}]
        return IndexStatistics(
            kind=found["index_type"],
            distance=parts[0].get("metric_type"),
            indexed_rows=found["num_indexed_rows"],
            unindexed_rows=found["num_unindexed_rows"],
            segments=found["num_indices"],
        )

    def drop_index(self, dataset: Any, name: str) -> Any:
        _require_index(dataset, name)
        dataset.drop_index(name)
        return dataset

    def coverage(self, dataset: Any) -> Any:
        return indexes.coverage(dataset)

    def outdated(self, before: Any, dataset: Any) -> Sequence[str]:
        return indexes.outdated(before, dataset)

    def merge_indexes(self, dataset: Any, names: Sequence[str]) -> Any:
        return indexes.merge_indexes(dataset, names)

    def emptied_indexes(self, dataset: Any) -> Sequence[str]:
        return indexes.emptied_indexes(dataset)

    def rebuild_indexes(self, dataset: Any, names: Sequence[str]) -> Any:
        return indexes.rebuild_indexes(dataset, names)

    # -- columns ------------------------------------------------------------------------------------------------

    def add_columns(self, dataset: Any, expressions: Mapping[str, str]) -> Any:
        _require_new(dataset, expressions)
        require_bounded(*expressions.values())
        with _refusing(SchemaMismatch):
            dataset.add_columns(dict(expressions))
        return dataset

    def declare_columns(self, dataset: Any, expressions: Mapping[str, str]) -> Any:
        _require_new(dataset, expressions)
        require_bounded(*expressions.values())
        with _refusing(SchemaMismatch):
            inferred = dataset.scanner(columns=dict(expressions)).projected_schema
            columns = [
                pa.field(name, inferred.field(name).type, metadata={EXPRESSION: expression})
                for name, expression in expressions.items()
            ]
            dataset.add_columns(pa.schema(columns))
        return dataset

    def expression(self, dataset: Any, path: str) -> str:
        expression = self.field_metadata(dataset, [path])[path].get(EXPRESSION)
        if expression is None:
            raise InvalidInput(
                f"the column {path!r} of {_name(dataset)} has no expression to compute it by; alter_table_add_columns "
                "declares a column with an expression in the field computed"
            )
        return expression

    def fill_column(self, dataset: Any, path: str, condition: str | None) -> Any:
        expression = self.expression(dataset, path)
        require_bounded(expression, condition)
        with _refusing(InvalidInput):
            dataset.update({path: expression}, condition)
        return dataset

    def alter_columns(self, dataset: Any, changes: Sequence[ColumnChange]) -> Any:
        fields, columns = _fields_of(dataset, [change.path for change in changes]), _columns(dataset)
        require_readable(
            change.name
            for field, change in zip(fields, changes, strict=True)
            if change.name is not None and field.id() in columns
        )
        _require_once(fields, changes)
        names = {field.id(): change.name for field, change in zip(fields, changes, strict=True) if change.name}
        _require_own_names(dataset.lance_schema.fields(), names)
        with _refusing(SchemaMismatch):
            dataset.alter_columns(*map(_alteration, changes))
        return dataset

    def drop_columns(self, dataset: Any, paths: Sequence[str]) -> Any:
        fields, columns = _fields_of(dataset, paths), _columns(dataset)
        # The engine drops no column with another name, and reports success.
        require_readable(field.name() for field in fields if field.id() in columns)
        with _refusing(SchemaMismatch):
            dataset.drop_columns(list(paths))
        return dataset

    # -- metadata -----------------------------------------------------------------------------------------------

    def set_metadata(self, dataset: Any, values: Mapping[str, str]) -> Any:
        dataset.update_schema_metadata(dict(values))
        return dataset

    def metadata(self, dataset: Any) -> Mapping[str, str]:
        found: Mapping[str, str] = dataset.schema_metadata
        return found

    def set_field_metadata(self, dataset: Any, changes: Sequence[FieldMetadata]) -> Any:
        fields = _fields_of(dataset, [each.path for each in changes])
        _require_once(fields, changes)
        updates = {
            field.id(): lance.LanceOperation.UpdateMap(dict(change.values), change.replace)
            for field, change in zip(fields, changes, strict=True)
        }
        operation = lance.LanceOperation.UpdateConfig(field_metadata_updates=updates)
        return lance.LanceDataset.commit(dataset, lance.Transaction(dataset.version, operation))

    def field_metadata(self, dataset: Any, paths: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        fields = _fields_of(dataset, paths)
        found = {path: field.to_arrow().metadata or {} for path, field in zip(paths, fields, strict=True)}
        return {
            path: {key.decode(): value.decode(errors="replace") for key, value in metadata.items()}
            for path, metadata in found.items()
        }


def operation_of(dataset: Any, version: int) -> str:
    """Return the name of the operation of a version's transaction."""
    try:
        transaction = dataset.read_transaction(version)
    except TypeError:  # pylance 14 cannot build the one operation that rewrites indexes
        return "Rewrite"
    return "unknown" if transaction is None else type(transaction.operation).__name__


# -- branches -------------------------------------------------------------------------------------------------------


def _paths_of(fragment: Any) -> list[str]:
    return [file.path for file in fragment.metadata.files]


def _copied(tip: Any, fragments: Sequence[Any], dataset: Any) -> list[Any]:
    """Write the rows of fragments of a branch as new fragments of the main history."""
    rows = tip.scanner(fragments=list(fragments), scan_in_order=True).to_reader()
    if not any(fragment.count_rows() for fragment in fragments):
        return []
    written: list[Any] = lance.fragment.write_fragments(
        rows, dataset.uri, schema=dataset.schema, mode="append", storage_options=dataset.latest_storage_options()
    )
    return written


def _deleted(dataset: Any, tip: Any, number: int) -> list[str]:
    """Return the addresses of the rows that a branch has deleted from a fragment."""
    live, kept = (
        set(version.scanner(columns=["_rowaddr"], fragments=[version.get_fragment(number)]).to_table()[0].to_pylist())
        for version in (dataset, tip)
    )
    return [str(address) for address in sorted(live - kept)]


# -- indexes --------------------------------------------------------------------------------------------------------


def _create_vector_index(dataset: Any, index: NewIndex, data_type: Any) -> None:
    parameters = dict(index.parameters)
    metric = parameters.pop("distance_type", "l2")
    if index.kind in _PQ and "num_sub_vectors" not in parameters:
        parameters["num_sub_vectors"] = _sub_vectors(data_type)
    dataset.create_index(index.column, index.kind, index.name, metric=metric, replace=False, **_native(parameters))


def _sub_vectors(data_type: Any) -> int:
    """Return a number of sub-vectors, of 16 dimensions each if that divides the vector."""
    while not pa.types.is_fixed_size_list(data_type) and pa.types.is_list(data_type):
        data_type = data_type.value_type
    size = data_type.list_size if pa.types.is_fixed_size_list(data_type) else 1
    return next(size // width for width in (16, 8, 4, 2, 1) if size % width == 0)


def _native(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {_NAMES.get(name, name): value for name, value in parameters.items()}


def _described(found: Any, rows: int, live: frozenset[int], paths: Mapping[int, str]) -> Index:
    first = min(found.segments, key=lambda segment: str(segment.uuid))
    created = min((segment.created_at for segment in found.segments if segment.created_at), default=None)
    return Index(
        name=found.name,
        uuid=first.uuid,
        columns=[paths.get(field, name) for field, name in zip(found.fields, found.field_names, strict=True)],
        kind=found.index_type,
        type_url=found.type_url,
        indexed_rows=found.num_rows_indexed,
        unindexed_rows=max(0, rows - found.num_rows_indexed),
        fragments=len(live & {fragment for segment in found.segments for fragment in segment.fragment_ids}),
        size=found.total_size_bytes,
        segments=len(found.segments),
        created=created if created is None or created.tzinfo else created.replace(tzinfo=UTC),
        format_version=first.index_version,
        details=found.details,
    )


def _require_index(dataset: Any, name: str) -> None:
    names = sorted(each.name for each in dataset.describe_indices())
    if name not in names:
        raise IndexNotFound(f"{_name(dataset)} has no index {name!r}; its indexes are {', '.join(names) or 'none'}")


# -- columns --------------------------------------------------------------------------------------------------------


def _field(dataset: Any, path: str) -> pa.Field:
    [field] = _fields_of(dataset, [path])
    return cast(pa.Field, field.to_arrow())


def _fields_of(dataset: Any, paths: Sequence[str]) -> list[Any]:
    """Return the fields of paths as pylance has them. Raises `ColumnNotFound` if there is none."""
    schema = dataset.lance_schema  # pylance copies it on each access
    found = [schema.field(path) for path in paths]
    missing = next((path for path, field in zip(paths, found, strict=True) if field is None), None)
    if missing is not None:
        columns = ", ".join(dataset.schema.names)
        raise ColumnNotFound(f"{_name(dataset)} has no column {missing!r}; its columns are {columns}")
    return found


def _require_once(fields: Sequence[Any], changes: Sequence[ColumnChange | FieldMetadata]) -> None:
    """Check that no field is changed twice: the engine takes the last change, or panics."""
    seen = set[int]()
    for field, change in zip(fields, changes, strict=True):
        if field.id() in seen:
            raise InvalidInput(f"the change names the column {change.path!r} twice; nothing was changed")
        seen.add(field.id())


def _require_own_names(fields: Sequence[Any], names: Mapping[int, str], above: str = "") -> None:
    """Check that no two fields of one parent get one name: the engine checks columns only.

    Args:
        fields: The fields of the parent.
        names: The new names of fields, by their ids.
        above: The path of the parent.
    """
    taken = set[str]()
    for field in fields:
        name = names.get(field.id(), field.name())
        if name in taken:
            raise SchemaMismatch(f"two fields would have the name {above + name!r}; nothing was changed")
        taken.add(name)
        _require_own_names(field.children(), names, f"{above}{name}.")


def _columns(dataset: Any) -> frozenset[int]:
    """Return the ids of the fields that are columns, not fields in one."""
    return frozenset(field.id() for field in dataset.lance_schema.fields())


def _paths(fields: Sequence[Any], above: str = "") -> Iterator[tuple[int, str]]:
    """Yield the id and the canonical path of each field."""
    for field in fields:
        name = field.name()
        path = above + plain_path([name])
        yield field.id(), path
        yield from _paths(field.children(), path + ".")


def _require_new(dataset: Any, names: Mapping[str, str]) -> None:
    require_readable(names)
    stored = frozenset(dataset.schema.names)
    taken = [name for name in names if name in stored]
    if taken:
        raise SchemaMismatch(f"{_name(dataset)} has a column {taken[0]!r} already; nothing was added")


def _name(dataset: Any) -> str:
    return f"the table {'.'.join(dataset._table_id)}"


def _alteration(change: ColumnChange) -> dict[str, Any]:
    values = {"name": change.name, "data_type": change.data_type, "nullable": change.nullable}
    return {"path": change.path} | {name: value for name, value in values.items() if value is not None}


@contextmanager
def _refusing(refusal: Callable[[str], LancekeepError], text: str | None = None) -> Iterator[None]:
    """Raise an error of pylance that contains ``text`` as a refusal; by default, an error that blames the values."""
    try:
        yield
    except LancekeepError:
        raise
    except (OSError, RuntimeError, LookupError, ValueError, TypeError) as error:
        found = str(error)
        blames = not isinstance(error, OSError | RuntimeError) or isinstance(error, NotImplementedError)
        if text in found if text is not None else blames or _VALUES.match(found):
            raise refusal(found) from error
        raise
