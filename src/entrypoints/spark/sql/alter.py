"""Translate ALTER TABLE to changes of the catalog and of Lance tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import lance
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructField

from lancekeep.application.catalog import Catalog, directory_of, services_of
from lancekeep.application.rows.row_rules import check_stream, require_evaluable
from lancekeep.domain.clustering import cluster_by, cluster_columns
from lancekeep.domain.column_names import plain_path, quoted, require_readable
from lancekeep.domain.errors import InvalidInput, Unsupported
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import CLUSTER_BY
from lancekeep.domain.row_rules import CONSTRAINT, DEFAULT, LENGTHS, columns_of, rules_of
from lancekeep.entrypoints.spark.arrow_types import as_spark_sees, fit, require_storable
from lancekeep.entrypoints.spark.internals.schemas import spark_of, type_of_json
from lancekeep.entrypoints.spark.sql.clustering import require_clusterable
from lancekeep.entrypoints.spark.sql.columns import COMMENT, is_type_property, stored_field
from lancekeep.entrypoints.spark.sql.keys import NAME as PRIMARY_KEY
from lancekeep.entrypoints.spark.sql.keys import add_key, is_key, require_no_key
from lancekeep.entrypoints.spark.sql.texts import ChangedLengths, as_stored, padded
from lancekeep.entrypoints.spark.writing import require_extensible

_ADD_KEY = "AddPrimaryKey"


def alter(catalog: Catalog, table: ObjectId, changes: Sequence[Any]) -> None:
    """Apply the ``TableChange`` objects of one statement.

    All property changes are one change of the catalog. All column changes of one kind are one version of the table.
    Unsupported kinds and properties are refused before anything changes.

    Raises:
        TableNotFound: The table does not exist.
        InvalidInput: Lance cannot store the altered columns.
        Unsupported: Lance tables do not support a change.
    """
    by_kind = changes_by_kind(str(table), changes)
    given = {change.property(): change.value() for change in by_kind.pop("SetProperty", [])}
    removed = [change.property() for change in by_kind.pop("RemoveProperty", [])]
    stored = catalog.find_table(table).properties
    for change in by_kind.pop("ClusterBy", []):
        columns = [".".join(each.fieldNames()) for each in change.clusteringColumns()]
        if columns:
            given[CLUSTER_BY] = cluster_by(columns)
        elif CLUSTER_BY in stored:
            removed.append(CLUSTER_BY)
    if CLUSTER_BY in given:
        dataset = catalog.open(table)
        require_clusterable(dataset.schema, given, stable_row_ids=bool(dataset.has_stable_row_ids))
    if (
        any(change.name() == PRIMARY_KEY for change in by_kind.get("DropConstraint", []))
        and CONSTRAINT + PRIMARY_KEY not in stored
    ):
        require_no_key(catalog.open(table), None)
    _state_rules(table, by_kind, stored, given, removed)
    lengths = ChangedLengths.of(by_kind, stored)
    _require_unused(table, by_kind, stored)
    for name in (*given, *removed):
        if is_type_property(name):
            raise Unsupported(f"{table}: {name} is the type of a column, which is decided when the table is created")
        if name in ("provider", "location", "owner"):
            raise Unsupported(f"{table}: {name} is not a property that can be changed")
    if by_kind.keys() - {"UpdateColumnComment"}:
        catalog.structure.require_columns_may_change(table)
    if given or removed or lengths.given or lengths.removed:
        require_properties(catalog, table)
    if lengths.removed:
        catalog.alter_table(table, None, lengths.removed)
    try:
        for kind, of_kind in by_kind.items():
            catalog.commit_change(table, partial(altered, COLUMN_CHANGES[kind], of_kind))
    except Exception:
        if lengths.removed:
            catalog.alter_table(table, {name: stored[name] for name in lengths.removed})
        raise
    given |= lengths.given
    if given or removed:
        _set_properties(catalog, table, stored, given, removed)


def require_properties(catalog: Catalog, table: ObjectId) -> None:
    """Check that a catalog can change properties, before a statement changes more.

    Raises:
        Unsupported: It has none, or a server has the catalog.
    """
    guarantees = directory_of(catalog, "properties of a table that exists").ledger.guarantees
    if not guarantees.properties:
        raise guarantees.refusal(f"cannot store the properties of {table}")


def changes_by_kind(table: str, changes: Sequence[Any]) -> dict[str, list[Any]]:
    """Return the changes of a statement by kind.

    Raises:
        Unsupported: Lance tables do not support a change.
    """
    by_kind: dict[str, list[Any]] = {}
    for change in changes:
        by_kind.setdefault(change.getClass().getSimpleName(), []).append(change)
    unknown = by_kind.keys() - COLUMN_CHANGES.keys() - PROPERTY_CHANGES
    if unknown:
        raise Unsupported(f"{table}: a Lance table cannot be altered by {_WORDS.get(min(unknown), min(unknown))}")
    if by_kind.keys() >= {"DeleteColumn", "AddColumn"}:  # no other statement has both
        raise Unsupported(
            f"{table}: REPLACE COLUMNS would remove the values of all columns. Use ADD, DROP, RENAME and ALTER COLUMN, "
            "or CREATE OR REPLACE TABLE"
        )
    return by_kind


def constraint_property(constraint: Any) -> dict[str, str]:
    """Return the property that states a constraint.

    Raises:
        Unsupported: It is not a CHECK, or it is not enforced.
    """
    if constraint.getClass().getSimpleName() != "Check" or not constraint.enforced():
        raise Unsupported(
            f"{constraint.toDDL()}: only PRIMARY KEY, and CHECK constraints that are enforced, are supported. Leave it "
            "out"
        )
    return {CONSTRAINT + constraint.name(): constraint.predicateSql()}


def _state_rules(
    table: ObjectId,
    by_kind: dict[str, list[Any]],
    stored: Mapping[str, str],
    given: dict[str, str],
    removed: list[str],
) -> None:
    """Turn changes of constraints and defaults into changes of properties."""
    added = by_kind.pop("AddConstraint", [])
    keys = [change.constraint() for change in added if is_key(change.constraint())]
    if keys:
        by_kind[_ADD_KEY] = keys
    for change in added:
        if is_key(change.constraint()):
            continue
        stated = constraint_property(change.constraint())
        if stated.keys() & stored.keys():
            raise InvalidInput(f"{table} has a constraint {change.constraint().name()} already; drop it first")
        given |= stated
    for change in by_kind.pop("DropConstraint", []):
        if CONSTRAINT + change.name() in stored:
            removed.append(CONSTRAINT + change.name())
        elif not change.ifExists():
            raise InvalidInput(f"{table} has no constraint {change.name()}")
    for change in by_kind.pop("UpdateColumnDefaultValue", []):
        name, text = DEFAULT + _path(change), change.newDefaultValue()
        if text:
            given[name] = text
        elif name in stored:
            removed.append(name)
    for change in by_kind.get("AddColumn", []):
        if change.defaultValue() is not None:
            given[DEFAULT + _path(change)] = change.defaultValue().getSql()


def _require_unused(table: ObjectId, by_kind: Mapping[str, Sequence[Any]], stored: Mapping[str, str]) -> None:
    """Check that no rule or default needs the columns that are dropped, renamed or retyped."""
    rules = [rule for rule in rules_of(stored) if not rule.name.startswith(LENGTHS)]
    needed = {column: rule.name for rule in rules for column in rule.columns}
    needed |= {name.removeprefix(DEFAULT): name for name in stored if name.startswith(DEFAULT)}
    needed |= dict.fromkeys(cluster_columns(stored), CLUSTER_BY)
    for kind in ("DeleteColumn", "RenameColumn", "UpdateColumnType"):
        for change in by_kind.get(kind, []):
            column = change.fieldNames()[0]
            if column in needed:
                way = " by ALTER TABLE … CLUSTER BY NONE" if needed[column] == CLUSTER_BY else ""
                raise Unsupported(
                    f"{table}: the property {needed[column]} needs the column {column}; drop that first{way}"
                )


def _set_properties(
    catalog: Catalog, table: ObjectId, stored: Mapping[str, str], given: dict[str, str], removed: list[str]
) -> None:
    """Set properties, and take them back if they state a rule that a row violates.

    Writers enforce the rule before the rows are read, so that no row is added unchecked in between.
    """
    rules = rules_of(given)
    if rules:
        require_evaluable(catalog.open(table).schema, rules)
    catalog.alter_table(table, given, removed)
    try:
        if rules:
            updated = services_of(catalog).engine.rows.updated(catalog.open(table), {}, None, columns_of(rules))
            check_stream(updated, rules)
    except InvalidInput:
        stated = [rule.name for rule in rules]
        former = {name: stored[name] for name in stated if name in stored}
        catalog.alter_table(table, former, [name for name in stated if name not in former])
        raise


def altered(alteration: Callable[[Any, Sequence[Any]], None], changes: Sequence[Any], dataset: Any) -> Any:
    alteration(dataset, changes)
    return dataset


def _add(dataset: Any, changes: Sequence[Any]) -> None:
    fields: list[pa.Field] = []
    filled: list[tuple[pa.Field, str]] = []
    for change in changes:
        names = list(change.fieldNames())
        if change.position() is not None:
            raise Unsupported(
                f"{'.'.join(names)} cannot be added FIRST or AFTER another: Lance adds columns and fields as the last"
            )
        if not change.isNullable():
            raise Unsupported(f"the column {'.'.join(names)} cannot be added with NOT NULL: the stored rows get NULL")
        metadata = {"comment": change.comment()} if change.comment() else None
        declared = type_of_json(change.dataType().json())
        kind = declared if len(names) > 1 else as_stored(declared)
        field = stored_field(StructField(names[-1], kind, True, metadata))
        if change.defaultValue() is not None:
            filled.append((field, padded(change.defaultValue().getSql(), declared)))
            continue
        for name in reversed(names[:-1]):
            field = pa.field(name, pa.struct([field]))
        fields.append(field)
        _require_structs(dataset, names)
    require_extensible(dataset, fields)
    schema = pa.schema(_joined([*fields, *(field for field, _ in filled)]))
    require_storable(schema)
    for field, text in filled:
        _fill(dataset, field, text)
    if fields:
        dataset.add_columns(pa.schema(_joined(fields)))


def _joined(fields: Sequence[pa.Field]) -> list[pa.Field]:
    """Join the structs of one name."""
    found: dict[str, pa.Field] = {}
    for field in fields:
        known = found.get(field.name)
        if known is not None and pa.types.is_struct(known.type) and pa.types.is_struct(field.type):
            field = field.with_type(pa.struct(_joined([*known.type, *field.type])))
        found[field.name] = field
    return list(found.values())


def _require_structs(dataset: Any, names: Sequence[str]) -> None:
    """Check that a field is added to a struct, not to the elements of a list or map."""
    fields: Any = dataset.schema
    for name in names[:-1]:
        field = fields.field(name)
        if not pa.types.is_struct(field.type):
            raise Unsupported(
                f"the field {'.'.join(names)} cannot be added: {name} is {field.type}, and Lance adds fields to structs"
            )
        fields = field.type


def _fill(dataset: Any, field: pa.Field, text: str) -> None:
    """Add a column in which all stored rows have the default."""
    session = SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
    kind = spark_of(pa.schema([pa.field(field.name, as_spark_sees(field.type))]))[0].dataType
    value = session.sql(f"SELECT CAST(({text}) AS {kind.simpleString()}) AS {quoted(field.name)}").toArrow()
    [constant] = fit(value.to_batches()[0], pa.schema([field])).columns

    @lance.batch_udf(output_schema=pa.schema([field]))
    def filled(batch: pa.RecordBatch) -> pa.RecordBatch:
        repeated = constant.take(pa.array([0] * batch.num_rows, pa.int64()))
        return pa.RecordBatch.from_arrays([repeated], schema=pa.schema([field]))

    dataset.add_columns(filled, read_columns=[dataset.schema.names[0]])


def _drop(dataset: Any, changes: Sequence[Any]) -> None:
    require_no_key(dataset, changes)
    require_readable(change.fieldNames()[0] for change in changes)  # Lance would drop nothing
    dataset.drop_columns([_path(change) for change in changes])


def _rename(dataset: Any, changes: Sequence[Any]) -> None:
    require_readable(change.newName() for change in changes if len(list(change.fieldNames())) == 1)
    dataset.alter_columns(*({"path": _path(change), "name": change.newName()} for change in changes))


def _retype(dataset: Any, changes: Sequence[Any]) -> None:
    require_no_key(dataset, changes)
    wanted = [stored_field(StructField(_path(change), type_of_json(change.newDataType().json()))) for change in changes]
    dataset.alter_columns(*({"path": field.name, "data_type": field.type} for field in wanted))


def _nullability(dataset: Any, changes: Sequence[Any]) -> None:
    require_no_key(dataset, changes)
    dataset.alter_columns(*({"path": _path(change), "nullable": change.nullable()} for change in changes))


def _comment(dataset: Any, changes: Sequence[Any]) -> None:
    dataset.update_field_metadata({_path(change): {COMMENT: change.newComment() or None} for change in changes})


def _path(change: Any) -> str:
    """Return the path as Lance parses it."""
    return plain_path(change.fieldNames())


COLUMN_CHANGES = {
    "AddColumn": _add,
    "DeleteColumn": _drop,
    "RenameColumn": _rename,
    "UpdateColumnType": _retype,
    "UpdateColumnNullability": _nullability,
    "UpdateColumnComment": _comment,
    _ADD_KEY: add_key,
}

_WORDS = {
    "UpdateColumnPosition": "moving a column",
}

PROPERTY_CHANGES = {
    *("SetProperty", "RemoveProperty", "ClusterBy"),
    *("AddConstraint", "DropConstraint", "UpdateColumnDefaultValue"),
}
