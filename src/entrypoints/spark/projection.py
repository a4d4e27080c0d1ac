"""Build the columns that Spark requests from the columns that a version stores.

The two differ if Spark requests a part of a nested column, or if a stream reads a version from before a column was
added, renamed or retyped. Fields of a version are matched to the current fields by field id (table format, "Fields
and ids"). A retyped column has a new id, so each step from one version to the next is followed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import attrs
import lance
import pyarrow as pa
import pyarrow.compute as pc

from lancekeep.domain.errors import InvalidInput


@attrs.frozen
class Column:
    """A field of the schema of one version; ``type`` is the name of its Arrow type."""

    id: int
    name: str
    type: str
    children: tuple[Column, ...]


@attrs.frozen
class Origin:
    """The source of a column.

    Attributes:
        name: The name of the stored field; None if the version lacks it.
        children: The origins of the nested fields; empty if the field is read whole.
    """

    name: str | None
    children: tuple[Origin, ...] = ()


def columns_of(dataset: Any) -> tuple[Column, ...]:
    """Return the schema of a ``lance.LanceDataset`` with the ids of its fields."""
    return tuple(_column(field) for field in dataset.lance_schema.fields())


def _column(field: Any) -> Column:
    kind = field.to_arrow().type
    children = field.children()
    if pa.types.is_map(kind):
        [entries] = children
        children = entries.children()
    return Column(field.id(), field.name(), str(kind), tuple(map(_column, children)))


def field_ids(dataset: Any, columns: Iterable[str], *, leaves: bool = False) -> list[int]:
    """Return the ids of columns and of all fields in them.

    With ``leaves``, return only the ids of fields that hold values.
    """
    chosen = set(columns)
    pending = [field for field in dataset.lance_schema.fields() if field.name() in chosen]
    found = []
    for field in pending:
        children = field.children()
        pending += children
        if not (leaves and children):
            found.append(field.id())
    return found


# -- origins --------------------------------------------------------------------------------------------------------


def origins_by_name(stored: pa.Schema, wanted: pa.Schema) -> tuple[Origin, ...] | None:
    """Return the origins of columns that may be parts of stored ones.

    Returns:
        None if every column is requested whole.
    """
    parts = [_parts(stored.field(field.name).type, field.type) for field in wanted]
    return tuple(map(Origin, wanted.names, parts)) if any(parts) else None


def _parts(stored: pa.DataType, wanted: pa.DataType) -> tuple[Origin, ...]:
    """Match the children of a type to the requested ones; empty if the type is requested whole."""
    if not pa.types.is_nested(wanted):
        return ()
    if pa.types.is_struct(wanted):
        known = {child.name: child.type for child in stored}
        origins = tuple(Origin(child.name, _parts(known[child.name], child.type)) for child in wanted)
        whole = [child.name for child in stored] == [child.name for child in wanted]
        return () if whole and not any(origin.children for origin in origins) else origins
    inner = tuple(Origin("", _parts(*pair)) for pair in zip(_inner(stored), _inner(wanted), strict=True))
    return inner if any(origin.children for origin in inner) else ()


def _inner(kind: pa.DataType) -> list[pa.DataType]:
    """Return the types of a list's values, or of a map's keys and values."""
    if pa.types.is_map(kind):
        return [kind.key_type, kind.item_type]
    return [kind.value_type] if _is_list(kind) else []


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def origins_by_id(
    wanted: pa.Schema, current: Iterable[Column], old: Iterable[Column], ids: Mapping[int, int]
) -> tuple[Origin, ...]:
    """Return the origins of current columns in another version.

    Args:
        wanted: The columns.
        current: The current schema.
        old: The schema of the other version.
        ids: The ids in the other version, by current id.
    """
    stored = {column.id: column for column in _flat(old)}
    known = {column.name: column for column in current}
    return tuple(_origin(known[field.name], field.type, stored, ids) for field in wanted)


def _origin(column: Column, wanted: pa.DataType, stored: Mapping[int, Column], ids: Mapping[int, int]) -> Origin:
    old = stored.get(ids.get(column.id, -1))
    if old is None:
        return Origin(None)
    if pa.types.is_struct(wanted):
        known = {child.name: child for child in column.children}
        pairs = [(known[child.name], child.type) for child in wanted]
    else:
        pairs = list(zip(column.children, _inner(wanted), strict=True))
    return Origin(old.name, tuple(_origin(child, kind, stored, ids) for child, kind in pairs))


def lacks(origin: Origin) -> bool:
    """Return whether the version lacks the column or a part of it."""
    return origin.name is None or any(map(lacks, origin.children))


def _flat(columns: Iterable[Column]) -> Iterator[Column]:
    for column in columns:
        yield column
        yield from _flat(column.children)


# -- the history of a schema ----------------------------------------------------------------------------------------


class SchemaHistory:
    """The schemas of the versions of a table, read on demand.

    Args:
        open_version: Opens a version as a ``lance.LanceDataset``.
    """

    def __init__(self, open_version: Callable[[int], Any]) -> None:
        self._open = open_version
        self._schemas: dict[int, tuple[Column, ...]] = {}

    def ids(self, current: int, version: int) -> dict[int, int]:
        """Map field ids at version ``current`` to field ids at ``version``."""
        mapped = {column.id: column.id for column in _flat(self.schema(current))}
        steps = list(self._steps(min(current, version), max(current, version)))
        for before, after in reversed(steps) if version < current else steps:
            step = self._step(before, after)
            if version > current:
                step = {old: new for new, old in step.items()}
            mapped = {known: step[at] for known, at in mapped.items() if at in step}
        return mapped

    def schema(self, version: int) -> tuple[Column, ...]:
        """Return the schema of a version."""
        if version not in self._schemas:
            self._schemas[version] = columns_of(self._open(version))
        return self._schemas[version]

    def _steps(self, low: int, high: int) -> Iterator[tuple[int, int]]:
        """Find adjacent versions with different schemas by bisection: few versions change the schema."""
        if self.schema(low) == self.schema(high):
            return
        if high == low + 1:
            yield low, high
            return
        middle = (low + high) // 2
        yield from self._steps(low, middle)
        yield from self._steps(middle, high)

    def _step(self, before: int, after: int) -> dict[int, int]:
        """Map the ids of a version to the ids of the preceding version."""
        old, new = self.schema(before), self.schema(after)
        if _is_overwrite(self._open(after), after):  # an overwrite numbers the fields from 0 again
            return dict(_by_name(old, new))
        known = {column.id for column in _flat(old)}
        mapped = {column.id: column.id for column in _flat(new) if column.id in known}
        if len(old) == len(new):  # a retyped column keeps its position and gets new ids
            left = {column.id for column in new}
            for former, column in zip(old, new, strict=True):
                if column.id not in known and former.id not in left:
                    mapped |= {column.id: former.id, **dict(_by_name(former.children, column.children))}
        return mapped


def _by_name(old: Iterable[Column], new: Iterable[Column]) -> Iterator[tuple[int, int]]:
    known = {column.name: column for column in old}
    for column in new:
        if column.name in known:
            yield column.id, known[column.name].id
            yield from _by_name(known[column.name].children, column.children)


def _is_overwrite(dataset: Any, version: int) -> bool:
    try:
        transaction = dataset.read_transaction(version)
    except TypeError:  # pylance 14 cannot build the operation of a compaction that rewrites indexes
        return False
    return transaction is not None and isinstance(transaction.operation, lance.LanceOperation.Overwrite)


# -- values ---------------------------------------------------------------------------------------------------------


def projected(batch: pa.RecordBatch, origins: Iterable[Origin], wanted: pa.Schema) -> pa.RecordBatch:
    """Build the columns ``wanted`` from a batch.

    Leaves keep their stored type; missing fields are null.

    Raises:
        InvalidInput: The batch lacks a non-nullable column.
    """
    columns = []
    for origin, field in zip(origins, wanted, strict=True):
        if origin.name is None and not field.nullable:
            raise InvalidInput(
                f"column {field.name!r} is NOT NULL, and the version that is read has no such column. Make the column "
                "nullable, or read from a later version."
            )
        stored = None if origin.name is None else batch.column(origin.name)
        columns.append(_built(stored, origin, field.type, batch.num_rows))
    return pa.RecordBatch.from_arrays(columns, names=wanted.names)


def _built(stored: pa.Array | None, origin: Origin, wanted: pa.DataType, length: int) -> pa.Array:
    if stored is None:
        return pa.nulls(length, wanted)
    if not origin.children:
        return stored
    if pa.types.is_struct(wanted):
        children = [
            _built(None if child.name is None else stored.field(child.name), child, field.type, length)
            for child, field in zip(origin.children, wanted, strict=True)
        ]
        fields = [pa.field(field.name, child.type) for field, child in zip(wanted, children, strict=True)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=stored.is_null())
    nulls = stored.is_null()
    if pa.types.is_map(wanted):
        first, last = stored.offsets[0].as_py(), stored.offsets[-1].as_py()
        keys, items = (
            _built(part.slice(first, last - first), child, kind, last - first)
            for part, child, kind in zip((stored.keys, stored.items), origin.children, _inner(wanted), strict=True)
        )
        offsets = pc.subtract(stored.offsets, first)
        return pa.MapArray.from_arrays(offsets, keys, items, pa.map_(keys.type, items.type), mask=nulls)
    flat = stored.flatten()  # drops the values below null lists
    values = _built(flat, origin.children[0], wanted.value_type, len(flat))
    lengths = pc.fill_null(pc.list_value_length(stored), 0).cast(pa.int32())
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])
    return pa.ListArray.from_arrays(offsets, values, mask=nulls)
