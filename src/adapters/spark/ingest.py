"""A Spark DataFrame into a table: executors write fragments in parallel, the driver makes one commit.

Executors get the table's URI and storage options, never a catalog, and answer with the metadata of the fragments they
wrote. A task that fails leaves no file behind (the native writer removes what it had written), and a retried task
counts once: the driver commits what the successful attempts answered.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import lance.fragment
import pyarrow as pa
import pyarrow.compute as pc

from lancekeep.application.catalog import Catalog, Identifier
from lancekeep.domain.commit import Committed
from lancekeep.domain.errors import InvalidInput, MissingExtra, Retryable
from lancekeep.ports.table_engine import WriteMode, WritePlan

try:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # py4j is published without types
    from pyspark.errors import AnalysisException, PySparkException, PySparkImportError
    from pyspark.sql.pandas.types import to_arrow_schema
except ImportError as error:
    raise MissingExtra("ingesting from Spark needs PySpark: pip install 'lancekeep[spark]'") from error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


def ingest(
    frame: DataFrame, catalog: Catalog, table: Identifier, mode: str = "create", *, schema: pa.Schema | None = None
) -> Committed:
    """Write a DataFrame to a table as one version, each non-empty partition as a fragment or more.

    mode: as in `Catalog.write`. schema: what a created or overwritten table shall store, where that is narrower than
    Spark's own types: vectors (``pa.list_(pa.float32(), 128)``), unsigned integers, half floats, columns that are not
    nullable. Left out, columns get Spark's types, nullable, as Spark's own tables do; instants are stored in UTC.
    Appends follow the schema of the table; columns are matched by name.

    Raises before any task runs: `InvalidInput` where the DataFrame does not fit the table, `TableAlreadyExists`,
    `TableNotFound`, `NamespaceNotFound`. From the tasks: `InvalidInput` where a value does not fit its column,
    `Retryable` where the Spark job failed otherwise. Then nothing was committed. From the commit: as `Catalog.write`.
    """
    offered = _arrow_schema(frame.schema)
    _require_storable(offered)
    if mode == WriteMode.APPEND.value:
        if schema is not None:
            raise InvalidInput("an append follows the schema of its table; give no schema")
        schema = catalog.open(table).schema
    elif schema is not None:
        _require_storable(schema)
    else:
        schema = offered
    _require_fit(offered, schema)
    plan = catalog.begin_write(table, schema, mode)
    try:
        fragments = _write_fragments(frame, plan)
    except BaseException:
        catalog.abandon_write(plan)
        raise
    return catalog.commit_fragments(plan, fragments)


def _write_fragments(frame: DataFrame, plan: WritePlan) -> list[str]:
    """Run the tasks; the fragments of every partition, as JSON."""

    def write_partition(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        fragments = write_batches(batches, plan)
        if fragments:
            yield pa.RecordBatch.from_pydict({"fragment": fragments})

    try:
        return [row.fragment for row in frame.mapInArrow(write_partition, "fragment string").collect()]
    except PySparkImportError as error:
        raise MissingExtra(f"Spark's mapInArrow needs a package more, 'pip install pandas': {error}") from error
    except AnalysisException as error:
        raise InvalidInput(f"{plan.table}: Spark cannot plan the DataFrame; nothing was committed: {error}") from error
    except (PySparkException, Py4JError) as error:
        raise _failure(plan, str(error)) from error


def write_batches(batches: Iterable[pa.RecordBatch], plan: WritePlan) -> list[str]:
    """Write one partition as fragments and return their metadata as JSON; an empty partition writes nothing.

    Raises `InvalidInput` where a value does not fit the table; whatever fails, no file stays.
    """
    filled = (batch for batch in batches if batch.num_rows)
    first = next(filled, None)
    if first is None:
        return []
    failures: list[Exception] = []

    def fitted() -> Iterator[pa.RecordBatch]:
        """The native writer turns what a reader raises into an ``OSError`` with its text; the error itself is kept."""
        try:
            yield _fit(first, plan.schema)
            for batch in filled:
                yield _fit(batch, plan.schema)
        except Exception as error:
            failures.append(error)
            raise

    try:
        fragments = lance.fragment.write_fragments(
            pa.RecordBatchReader.from_batches(plan.schema, fitted()),
            plan.uri,
            schema=plan.schema,
            mode="append" if plan.mode is WriteMode.APPEND else "overwrite" if plan.read_version else "create",
            storage_options=dict(plan.storage_options) or None,
        )
    except Exception as error:
        raise (failures[0] if failures else error) from None
    return [json.dumps(fragment.to_json()) for fragment in fragments]


# -- schemas --------------------------------------------------------------------------------------------------------


def _arrow_schema(schema: StructType) -> pa.Schema:
    try:
        arrow = to_arrow_schema(schema, timezone="UTC")
    except PySparkException as error:
        raise InvalidInput(f"the DataFrame has a column that Arrow cannot hold: {error}") from error
    return pa.schema([pa.field(field.name, _as_spark_sees(field.type)) for field in arrow])


def _require_storable(schema: pa.Schema) -> None:
    """Let the engine itself say what it cannot store: names that repeat or hold a dot, intervals, ..."""
    if not schema.names:
        raise InvalidInput("the DataFrame has no columns; a table needs at least one")
    try:
        lance.fragment.write_fragments(schema.empty_table(), "memory://schema-check", schema=schema, mode="create")
    except (OSError, ValueError) as error:
        raise InvalidInput(f"Lance cannot store these columns: {error}") from error


def _require_fit(offered: pa.Schema, wanted: pa.Schema) -> None:
    problems = [f"{name!r} is missing" for name in wanted.names if name not in offered.names]
    problems += [f"{name!r} is not a column of the table" for name in offered.names if name not in wanted.names]
    problems += [
        f"{field.name!r} is {offered.field(field.name).type}, the table has {field.type}"
        for field in wanted
        if field.name in offered.names and offered.field(field.name).type != _as_spark_sees(field.type)
    ]
    if problems:
        raise InvalidInput(
            f"the DataFrame does not fit the table; nothing was written: {'; '.join(problems)}. "
            "Select and cast its columns to those of the table."
        )


def _as_spark_sees(stored: pa.DataType) -> pa.DataType:
    """The type in which Spark holds what is stored as ``stored``; every nested value nullable."""
    is_ = pa.types
    if is_.is_list(stored) or is_.is_large_list(stored) or is_.is_fixed_size_list(stored):
        return pa.list_(pa.field("element", _as_spark_sees(stored.value_type)))
    if is_.is_struct(stored):
        return pa.struct([pa.field(child.name, _as_spark_sees(child.type)) for child in stored])
    if is_.is_map(stored):
        return pa.map_(_as_spark_sees(stored.key_type), _as_spark_sees(stored.item_type))
    if is_.is_dictionary(stored):
        return _as_spark_sees(stored.value_type)
    if is_.is_timestamp(stored):
        return pa.timestamp("us", tz="UTC" if stored.tz else None)
    if is_.is_time(stored):
        return pa.time64("ns")
    return _SPARK_TYPES.get(stored, stored)


_SPARK_TYPES = {
    pa.large_string(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
}


# -- values ---------------------------------------------------------------------------------------------------------


def _fit(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([_fit_column(batch.column(field.name), field) for field in schema], schema=schema)


def _fit_column(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.null_count and not field.nullable:
        raise InvalidInput(f"the column {field.name!r} of the table takes no nulls, and the DataFrame holds some")
    if column.type == field.type:
        return _aligned(column)
    try:
        if pa.types.is_fixed_size_list(field.type):
            return _vectors(column, field)
        return _aligned(column.cast(field.type))
    except pa.ArrowException as error:
        raise InvalidInput(f"a value of the column {field.name!r} does not fit {field.type}: {error}") from error


def _vectors(lists: pa.Array, field: pa.Field) -> pa.Array:
    """Built by hand: pyarrow's cast crashes the process where all lists are null and their buffer is empty."""
    size = field.type.list_size
    lengths = pc.unique(pc.list_value_length(lists).drop_null()).to_pylist()
    if lengths not in ([], [size]):
        raise InvalidInput(f"the column {field.name!r} holds vectors of {size} values; found lengths {sorted(lengths)}")
    mask = lists.is_null()
    if lists.null_count:
        lists = pc.coalesce(lists, pa.scalar([0] * size, lists.type))
    return pa.FixedSizeListArray.from_arrays(lists.flatten().cast(field.type.value_type), type=field.type, mask=mask)


def _aligned(column: pa.Array) -> pa.Array:
    """The native writer panics on decimals that do not begin at a multiple of 16 bytes, and Spark aligns to 8."""
    if _holds_decimals(column.type) and any(buffer and buffer.address % 16 for buffer in column.buffers()):
        return pa.concat_arrays([column])  # a copy, which pyarrow aligns to 64
    return column


def _holds_decimals(stored: pa.DataType) -> bool:
    children = [stored.field(i).type for i in range(stored.num_fields)]
    return pa.types.is_decimal(stored) or any(map(_holds_decimals, children))


# -- failures -------------------------------------------------------------------------------------------------------


_ERROR_LINE = re.compile(r"(?:Caused by: )?(?P<error>[\w.$]+): (?P<message>.+)")


def _failure(plan: WritePlan, report: str) -> InvalidInput | Retryable:
    """What a failed job reports is the traceback of a Python task or of the JVM: the last error in it is the cause."""
    errors = [found for found in map(_ERROR_LINE.fullmatch, report.splitlines()) if found]
    reason = f"{errors[-1]['error']}: {errors[-1]['message']}" if errors else report.partition("\n")[0]
    own = f"{InvalidInput.__module__}.{InvalidInput.__qualname__}: "
    if reason.startswith(own):
        return InvalidInput(f"{plan.table}: {reason.removeprefix(own)}; nothing was committed")
    return Retryable(f"{plan.table}: the Spark job failed; nothing was committed: {reason}")
