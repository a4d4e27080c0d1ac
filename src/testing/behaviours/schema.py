"""Behaviours of columns and metadata."""

from __future__ import annotations

from typing import Any

import lance
import pyarrow as pa
from lance_namespace import errors

from lancekeep.testing.behaviours.behaviour import Bench, claim
from lancekeep.testing.behaviours.registry import OPERATION_404, SCHEMA, Behaviours

BEHAVIOURS = Behaviours()
behaviour = BEHAVIOURS.add

PAIRS = pa.table({"a": pa.array([1, 2, 3], pa.int64()), "b": pa.array([10, 20, 30], pa.int64())})


def columns_at(location: str) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = lance.dataset(location).to_table().to_pydict()
    return found


@behaviour("schema/add", "AddColumnsEntry.expression: Evaluated once over existing rows.", SCHEMA)
def _add_column(bench: Bench) -> None:
    location = bench.create("t", PAIRS).location
    added = bench.one.ask(
        "alter_table_add_columns",
        id=bench.at("t"),
        new_columns=[{"name": "c", "expression": "a + b"}, {"name": "d", "expression": "a * 2"}],
    )
    found = columns_at(location)
    claim((found.get("c"), found.get("d")) == ([11, 22, 33], [2, 4, 6]), "not the values of the expressions")
    claim(added.version == 2 == lance.dataset(location).version, f"the answer is version {added.version}")


@behaviour("schema/add-taken", "AlterTableAddColumns: 20 (TableSchemaValidationError).", SCHEMA)
def _add_taken_column(bench: Bench) -> None:
    location = bench.create("t", PAIRS).location
    wrong = errors.TableSchemaValidationError
    for name, expression in (("b", "a + 1"), ("c", "missing + 1"), ("c", "a +")):
        columns = [{"name": name, "expression": expression}]
        bench.one.refused("alter_table_add_columns", wrong, id=bench.at("t"), new_columns=columns)
    claim(columns_at(location) == PAIRS.to_pydict(), "the table has changed all the same")


@behaviour("schema/add-nothing", "AddColumnsEntry: `expression`, `computed` or `virtual_column` is required.", SCHEMA)
def _add_nothing(bench: Bench) -> None:
    bench.create("t", PAIRS)
    wrong = errors.InvalidInputError
    bench.one.refused("alter_table_add_columns", wrong, id=bench.at("t"), new_columns=[{"name": "c"}])
    bench.one.refused("alter_table_add_columns", wrong, id=bench.at("t"), new_columns=[])


@behaviour("schema/computed", "AddColumnsEntry.computed: The column is added all-null with the expression persisted; "
           "rows are filled by backfill, never at declaration.", SCHEMA)  # fmt: skip
def _computed_column(bench: Bench) -> None:
    location = bench.create("t", PAIRS).location
    bench.one.ask("alter_table_add_columns", id=bench.at("t"), new_columns=[{"name": "c", "computed": "a + b"}])
    claim(columns_at(location).get("c") == [None] * 3, "the column is not added with nulls")
    claim(lance.dataset(location).schema.field("c").type == pa.int64(), "the type is not the type of the expression")
    bench.other.ask("alter_table_backfill_columns", id=bench.at("t"), column="c", where="a > 1")
    rows = dict(zip(*(columns_at(location)[name] for name in ("a", "c")), strict=True))
    claim(rows == {1: None, 2: 22, 3: 33}, "the rows of the condition are not filled")
    job = bench.other.ask("alter_table_backfill_columns", id=bench.at("t"), column="c").job_id
    claim(sorted(columns_at(location)["c"]) == [11, 22, 33] and job, "not all rows are filled, or there is no job id")


@behaviour("schema/backfill-missing", "AlterTableBackfillColumns: The column must be a virtual column or a computed "
           "column declared with an expression binding.", SCHEMA)  # fmt: skip
def _backfill_missing(bench: Bench) -> None:
    bench.create("t", PAIRS)
    wrong, absent = errors.InvalidInputError, errors.TableColumnNotFoundError
    bench.one.refused("alter_table_backfill_columns", wrong, id=bench.at("t"), column="b")
    bench.one.refused("alter_table_backfill_columns", absent, id=bench.at("t"), column="c")


@behaviour("schema/alter", "AlterTableAlterColumns: Modify existing columns in table `id`, such as renaming or "
           "changing data types.", SCHEMA)  # fmt: skip
def _alter_column(bench: Bench) -> None:
    location = bench.create("t", PAIRS).location
    alterations = [
        {"path": "a", "rename": "x"},
        {"path": "b", "data_type": {"type": "int32"}},
    ]
    bench.one.ask("alter_table_alter_columns", id=bench.at("t"), alterations=alterations)
    strict = [{"path": "b", "nullable": False}]
    altered = bench.one.ask("alter_table_alter_columns", id=bench.at("t"), alterations=strict)
    dataset = lance.dataset(location)
    claim(altered.version == 3 == dataset.version, f"the answer is version {altered.version}")
    expected = pa.schema([pa.field("x", pa.int64()), pa.field("b", pa.int32(), nullable=False)])
    claim(dataset.schema.equals(expected), "the schema differs")
    claim(dataset.to_table().to_pydict() == {"x": [1, 2, 3], "b": [10, 20, 30]}, "the rows are other ones")


@behaviour("schema/alter-missing", "AlterTableAlterColumns: 12 (TableColumnNotFound).", SCHEMA)
def _alter_missing_column(bench: Bench) -> None:
    bench.create("t", PAIRS)
    absent = errors.TableColumnNotFoundError
    alterations = [{"path": "c", "rename": "x"}]
    bench.one.refused("alter_table_alter_columns", absent, id=bench.at("t"), alterations=alterations)


@behaviour("schema/alter-taken", "AlterTableAlterColumns: 20 (TableSchemaValidationError).", SCHEMA)
def _alter_to_taken_name(bench: Bench) -> None:
    location = bench.create("t", PAIRS).location
    wrong = errors.TableSchemaValidationError
    alterations = [{"path": "a", "rename": "b"}]
    bench.one.refused("alter_table_alter_columns", wrong, id=bench.at("t"), alterations=alterations)
    claim(columns_at(location) == PAIRS.to_pydict(), "the table has changed all the same")


@behaviour("schema/alter-nothing", "AlterTableAlterColumns: 13 (InvalidInput).", SCHEMA)
def _alter_nothing(bench: Bench) -> None:
    bench.create("t", PAIRS)
    for alterations in ([], [{"path": "a"}], [{"path": "a", "data_type": {"type": "quick"}}]):
        wrong = errors.InvalidInputError
        bench.one.refused("alter_table_alter_columns", wrong, id=bench.at("t"), alterations=alterations)


@behaviour("schema/drop", "AlterTableDropColumns: Remove specified columns from table `id`.", SCHEMA)
def _drop_column(bench: Bench) -> None:
    location = bench.create("t", PAIRS).location
    dropped = bench.one.ask("alter_table_drop_columns", id=bench.at("t"), columns=["b"])
    claim(columns_at(location) == {"a": [1, 2, 3]}, "other columns are left")
    claim(dropped.version == 2, f"the answer is version {dropped.version}")


@behaviour("schema/drop-missing", "AlterTableDropColumns: 12 (TableColumnNotFound).", SCHEMA)
def _drop_missing_column(bench: Bench) -> None:
    location = bench.create("t", PAIRS).location
    absent = errors.TableColumnNotFoundError
    bench.one.refused("alter_table_drop_columns", absent, id=bench.at("t"), columns=["a", "c"])
    claim(columns_at(location) == PAIRS.to_pydict(), "the table has changed all the same")


@behaviour("schema/metadata", "UpdateTableSchemaMetadataRequest.metadata: Schema metadata key-value pairs to set.",
           SCHEMA)  # fmt: skip
def _schema_metadata(bench: Bench) -> None:
    location = bench.create("t", PAIRS).location
    bench.one.ask("update_table_schema_metadata", id=bench.at("t"), metadata={"k": "v"})
    updated = bench.other.ask("update_table_schema_metadata", id=bench.at("t"), metadata={"é": "🦆"})
    claim(updated.metadata == {"k": "v", "é": "🦆"}, f"the answer is {updated.metadata}")
    claim(lance.dataset(location).schema.metadata == {b"k": b"v", "é".encode(): "🦆".encode()}, "not what was set")


@behaviour("schema/field-metadata", "UpdateFieldMetadataEntry: A null value deletes that key; `replace` replaces the "
           "field's existing metadata entirely.", SCHEMA)  # fmt: skip
def _field_metadata(bench: Bench) -> None:
    location = bench.create("t", PAIRS).location
    both = [{"path": name, "metadata": {"k": "v", "l": "w"}} for name in ("a", "b")]
    bench.one.ask("update_field_metadata", id=bench.at("t"), updates=both)
    changed = [
        {"path": "a", "metadata": {"k": None, "m": "x"}},
        {"path": "b", "metadata": {"m": "x"}, "replace": True},
    ]
    updated = bench.other.ask("update_field_metadata", id=bench.at("t"), updates=changed)
    claim(updated.fields == {"a": {"l": "w", "m": "x"}, "b": {"m": "x"}}, f"the answer is {updated.fields}")
    schema = lance.dataset(location).schema
    claim(schema.field("a").metadata == {b"l": b"w", b"m": b"x"}, "not what was set")
    claim(schema.field("b").metadata == {b"m": b"x"}, "not what was set")
    claim(updated.version == 3, f"the answer is version {updated.version}")


@behaviour("schema/field-metadata-missing", "UpdateFieldMetadata: 12 (TableColumnNotFound).", SCHEMA)
def _field_metadata_of_missing(bench: Bench) -> None:
    bench.create("t", PAIRS)
    updates = [{"path": "c", "metadata": {"k": "v"}}]
    bench.one.refused("update_field_metadata", errors.TableColumnNotFoundError, id=bench.at("t"), updates=updates)


CALLS: dict[str, dict[str, Any]] = {
    "alter_table_add_columns": {"new_columns": [{"name": "c", "expression": "a"}]},
    "alter_table_alter_columns": {"alterations": [{"path": "a", "rename": "x"}]},
    "alter_table_drop_columns": {"columns": ["a"]},
    "alter_table_backfill_columns": {"column": "a"},
    "update_table_schema_metadata": {"metadata": {"k": "v"}},
    "update_field_metadata": {"updates": [{"path": "a", "metadata": {"k": "v"}}]},
}

for _operation, _fields in CALLS.items():

    @behaviour(f"schema/no-table-{_operation.replace('_', '-')}", OPERATION_404, SCHEMA)
    def _missing_table(bench: Bench, operation: str = _operation, fields: dict[str, Any] = _fields) -> None:
        bench.create("t")
        bench.one.refused(operation, errors.TableNotFoundError, id=bench.at("missing"), **fields)
