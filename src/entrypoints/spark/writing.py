"""Write fragments in Spark's tasks, and choose the columns of the target table.

A failed task leaves no file: the native writer removes its files. The driver commits only the fragments that successful
attempts return, so a retried task counts once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

import lance.fragment
import pyarrow as pa

from lancekeep.adapters.lance.blobs import is_blob
from lancekeep.application.rows.row_rules import check_rows
from lancekeep.domain.errors import InvalidInput, Unsupported
from lancekeep.entrypoints.spark.arrow_types import (
    arrow_schema,
    as_spark_sees,
    blob_columns,
    fit,
    require_fit,
    require_storable,
    vector_lengths,
    with_blobs,
    with_vectors,
)
from lancekeep.entrypoints.spark.versions import with_offsets
from lancekeep.entrypoints.spark.worker_gc import freeze_imports
from lancekeep.ports.table_engine import WritePlan

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def target_schema(
    frame: StructType, existing: pa.Schema | None, vectors: Mapping[str, str], *, overwrite: bool
) -> pa.Schema:
    """Return the schema that the table has after a DataFrame is written to it.

    An append uses the ``existing`` columns. A new or overwritten table gets Spark's types, all nullable. An overwritten
    table keeps the types of columns that already store what the DataFrame has, such as vectors.

    Args:
        frame: The columns of the DataFrame.
        existing: The stored columns; None for a new table.
        vectors: The lengths of vectors, by column in lower case; column metadata (`VECTOR_LENGTH`) is the default.
        overwrite: Whether the write replaces the table.

    Raises:
        InvalidInput: The DataFrame does not fit the table.
    """
    offered = arrow_schema(frame)
    require_storable(offered)
    lengths = _lengths(frame, vectors)
    if existing is not None and not overwrite:
        require_fit(offered, existing)
        _require_lengths(existing, {name: lengths[name] for name in lengths if name.lower() in vectors})
        return existing
    blobs = set(blob_columns(frame))
    known = frozenset(existing.names if existing is not None else ())
    for index, field in enumerate(offered):
        if existing is None or field.name not in known:
            continue
        stored = existing.field(field.name)
        if as_spark_sees(stored.type) == field.type and lengths.get(field.name) in (None, _length(stored.type)):
            lengths.pop(field.name, None)
            offered = offered.set(index, stored.with_nullable(True))
        blobs -= {field.name} if is_blob(stored) else set()
    return with_blobs(with_vectors(offered, lengths), blobs)


def added_fields(offered: Iterable[pa.Field], existing: Iterable[pa.Field]) -> list[pa.Field]:
    """Return the columns that a table lacks.

    A struct of the table that lacks fields is a struct of these fields.
    """
    known = {field.name: field for field in existing}
    found = []
    for field in offered:
        stored = known.get(field.name)
        if stored is None:
            found.append(field)
        elif pa.types.is_struct(field.type) and pa.types.is_struct(stored.type):
            fields = added_fields(field.type, stored.type)
            found += [stored.with_type(pa.struct(fields))] if fields else []
    return found


def require_extensible(dataset: Any, fields: Iterable[pa.Field]) -> None:
    """Check that Lance can add columns, or fields of structs, to a table.

    Raises:
        Unsupported: The files of the table do not support it.
    """
    known = frozenset(dataset.schema.names)
    structs = [field.name for field in fields if field.name in known]
    if structs and tuple(map(int, dataset.data_storage_version.split("."))) < (2, 2):
        raise Unsupported(
            f"no field can be added to {structs[0]!r}: the table has files of the format "
            f"{dataset.data_storage_version}, and Lance adds fields to structs from 2.2 on. Copy the table by CREATE "
            "TABLE … AS SELECT."
        )


def _lengths(frame: StructType, vectors: Mapping[str, str]) -> dict[str, str]:
    """Return the vector lengths by column; options take precedence over metadata."""
    unknown = [name for name in vectors if name not in (column.lower() for column in frame.names)]
    if unknown:
        raise InvalidInput(
            f"the DataFrame has no column {unknown[0]!r} to store as vectors, only: {', '.join(frame.names)}"
        )
    return vector_lengths(frame) | {name: vectors[name.lower()] for name in frame.names if name.lower() in vectors}


def _length(stored: pa.DataType) -> str | None:
    return str(stored.list_size) if pa.types.is_fixed_size_list(stored) else None


def _require_lengths(existing: pa.Schema, lengths: Mapping[str, str]) -> None:
    for name, length in lengths.items():
        stored = existing.field(name).type
        if _length(stored) != length:
            raise InvalidInput(f"the column {name!r} of the table is {stored}; vectors of length {length} do not fit")


def write_batches(batches: Iterable[pa.RecordBatch], plan: WritePlan) -> list[str]:
    """Write one partition as fragments and return their metadata as JSON.

    An empty partition writes nothing. If the write fails, it leaves no files.

    Raises:
        InvalidInput: A value does not fit the table.
    """
    freeze_imports()
    filled = (with_offsets(batch) for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return []
    failures: list[Exception] = []

    def checked() -> Iterator[pa.RecordBatch]:
        """Yield fitted and checked batches; keep any error, of which the native writer reports only the text."""
        try:
            for batch in chain([first], filled):
                fitted = fit(batch, plan.schema)
                check_rows(fitted, plan.rules)
                yield fitted
        except Exception as error:
            failures.append(error)
            raise

    try:
        fragments = lance.fragment.write_fragments(
            pa.RecordBatchReader.from_batches(plan.schema, checked()),
            plan.uri,
            schema=plan.schema,
            mode=plan.fragment_mode,
            **plan.access,
        )
    except Exception as error:
        raise (failures[0] if failures else error) from None
    return [json.dumps(fragment.to_json()) for fragment in fragments]
