"""Partition specifications.

Implements "Partition Spec" and "Partition Evolution" of the partitioning specification.

A specification lists the fields that divide the rows. A namespace has one specification per version, and keeps the old
ones for the data that was written under them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from lancekeep.domain.errors import Damaged, InvalidInput, Refused

RECORD = "partitions.stream."
"""The prefix of the properties that record the batches of streams. It is none of Lancekeep's own, because a V1
directory stores those before the entries."""
SCHEMA_PROPERTY = "schema"
"""The property of the root namespace with the schema of all partitions, as JSON."""

COLUMN = "partition_field_"
"""The prefix of the manifest table's columns of partition values; the ``field_id`` follows."""

READ_VERSION, READ_BRANCH, READ_TAG = "read_version", "read_branch", "read_tag"
"""Columns of the manifest table that select the version of a partition's table to read."""

DATE_PARTS = ("year", "month", "day", "hour")
TRANSFORMS = ("identity", *DATE_PARTS, "bucket", "multi_bucket", "truncate")
_PARAMETERS = {"bucket": "num_buckets", "multi_bucket": "num_buckets", "truncate": "width"}
_SPEC_PROPERTY = re.compile(r"partition_spec_v([1-9][0-9]{0,8})")
_FIELD_ID = re.compile(r"\w{1,100}")
_LARGEST = 2**31 - 1


@attrs.frozen
class Transform:
    """A well-known function from source columns to a partition value.

    ``parameter`` is the number of buckets, or the width.
    """

    type: str
    parameter: int | None = None

    def __attrs_post_init__(self) -> None:
        if self.type not in TRANSFORMS:
            raise InvalidInput(f"unknown transform {self.type!r}; choose {', '.join(TRANSFORMS)}")
        name = _PARAMETERS.get(self.type)
        number = self.parameter
        if name is None and number is not None:
            raise InvalidInput(f"the transform {self.type!r} takes no parameter; found {number!r}")
        if name is not None and (type(number) is not int or not 0 < number <= _LARGEST):
            raise InvalidInput(f"the transform {self.type!r} needs {name}, a positive 32-bit integer; found {number!r}")

    @staticmethod
    def from_json(value: Any) -> Transform:
        """Parse a transform.

        Raises:
            InvalidInput: the value is not a well-known transform.
        """
        if not isinstance(value, dict) or not isinstance(value.get("type"), str):
            raise InvalidInput(f"a transform is an object with a type; found {value!r:.200}")
        kind = value["type"]
        unknown = set(value) - {"type", _PARAMETERS.get(kind, "type")}
        if kind in TRANSFORMS and unknown:
            raise InvalidInput(f"the transform {kind!r} has unknown parameters: {', '.join(sorted(unknown))}")
        return Transform(kind, value.get(_PARAMETERS.get(kind, "")))

    def to_json(self) -> dict[str, Any]:
        return {"type": self.type} | ({_PARAMETERS[self.type]: self.parameter} if self.parameter is not None else {})

    def __str__(self) -> str:
        return self.type if self.parameter is None else f"{self.type}[{self.parameter}]"


@attrs.frozen
class PartitionField:
    """A field of a specification: one level of its partitions.

    Attributes:
        field_id: the permanent name of the field and its column, the same in every version.
        source_ids: the ``lance:field_id`` of the source columns.
        transform: the function of the source columns, or None.
        expression: the function as DataFusion SQL over ``col0``…, or None. Lancekeep keeps it and never evaluates it.
        result_type: the type of the values as a JsonArrowDataType.
    """

    field_id: str
    source_ids: tuple[int, ...]
    transform: Transform | None
    expression: str | None
    result_type: Mapping[str, Any] = attrs.field(hash=False)

    @staticmethod
    def from_json(value: Any) -> PartitionField:
        """Parse a partition field.

        Raises:
            InvalidInput: the value is not a partition field, or its transform is unknown.
        """
        if not isinstance(value, dict):
            raise InvalidInput(f"a partition field is an object; found {value!r:.200}")
        field_id, sources, result = value.get("field_id"), value.get("source_ids"), value.get("result_type")
        expression, transform = value.get("expression"), value.get("transform")
        if not isinstance(field_id, str) or not field_id or "." in field_id:
            raise InvalidInput(f"a field_id is text without a dot; found {field_id!r:.200}")
        if not isinstance(sources, list) or not sources or not all(type(number) is int for number in sources):
            raise InvalidInput(f"the source_ids of the partition field {field_id!r} are integers; found {sources!r}")
        if (expression is None) == (transform is None) or not isinstance(expression, str | None):
            raise InvalidInput(f"the partition field {field_id!r} has exactly one of transform and expression, a text")
        if not isinstance(result, dict) or not isinstance(result.get("type"), str):
            raise InvalidInput(f"the partition field {field_id!r} has the result_type {result!r:.200}; expected a type")
        known = None if transform is None else Transform.from_json(transform)
        return PartitionField(field_id, tuple(sources), known, expression, result)

    def to_json(self) -> dict[str, Any]:
        how = {"expression": self.expression} if self.transform is None else {"transform": self.transform.to_json()}
        return {
            "field_id": self.field_id,
            "source_ids": list(self.source_ids),
            **how,
            "result_type": dict(self.result_type),
        }

    @property
    def column(self) -> str:
        """The column of the manifest table with the values of this field."""
        return COLUMN + self.field_id

    def is_same_as(self, other: PartitionField) -> bool:
        """Return whether both compute the same values, and so share one ``field_id``."""
        return (self.source_ids, self.transform, self.expression) == (
            other.source_ids,
            other.transform,
            other.expression,
        )


@attrs.frozen
class PartitionSpec:
    """One version of a partition specification.

    Each field has a level of namespaces below ``v{id}``.
    """

    id: int
    fields: tuple[PartitionField, ...]

    @staticmethod
    def from_json(text: str) -> PartitionSpec:
        """Parse a specification.

        Unknown transforms are refused, because Lancekeep could not find their rows.

        Raises:
            InvalidInput: the text is not a specification, or has an unknown transform.
        """
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"a partition spec is JSON; found {text!r:.200}") from error
        if not isinstance(value, dict) or type(value.get("id")) is not int or not isinstance(value.get("fields"), list):
            raise InvalidInput(f"a partition spec is an object with an id and fields; found {text!r:.200}")
        fields = tuple(map(PartitionField.from_json, value["fields"]))
        if len({field.field_id for field in fields}) < len(fields):
            raise InvalidInput(f"the partition spec {value['id']} names a field_id twice")
        return PartitionSpec(value["id"], fields)

    def to_json(self) -> str:
        fields = [field.to_json() for field in self.fields]
        return json.dumps({"id": self.id, "fields": fields}, separators=(",", ":"), ensure_ascii=False)

    @property
    def namespace(self) -> str:
        """The namespace below the root with the data that was written under this version."""
        return f"v{self.id}"

    @property
    def property(self) -> str:
        """The property of the root namespace with this specification."""
        return f"partition_spec_v{self.id}"

    def require_writable(self) -> None:
        """Check that Lancekeep can compute every field.

        Raises:
            Refused: a field is an expression, which only DataFusion can evaluate.
        """
        for field in self.fields:
            if field.transform is None:
                raise Refused(
                    f"the partition field {field.field_id!r} is the expression {field.expression!r}; Lancekeep can "
                    "read such partitions but not write them. Evolve to well-known transforms, or write with the "
                    "software that created the namespace."
                )


@attrs.frozen
class PartitionBy:
    """A partition field as a user requests it; ``name`` becomes its ``field_id``.

    >>> PartitionBy.bucket("user", 16).name
    'user_bucket_16'
    """

    columns: tuple[str, ...]
    transform: Transform
    name: str

    @staticmethod
    def identity(column: str, name: str | None = None) -> PartitionBy:
        """Partition by the values themselves."""
        return PartitionBy._of([column], Transform("identity"), name or column)

    @staticmethod
    def year(column: str, name: str | None = None) -> PartitionBy:
        """Partition by the year of a date or timestamp, in the time zone of the column."""
        return PartitionBy._of([column], Transform("year"), name)

    @staticmethod
    def month(column: str, name: str | None = None) -> PartitionBy:
        """Partition by the month of a date or timestamp, 1 to 12 in every year."""
        return PartitionBy._of([column], Transform("month"), name)

    @staticmethod
    def day(column: str, name: str | None = None) -> PartitionBy:
        """Partition by the day of the month of a date or timestamp."""
        return PartitionBy._of([column], Transform("day"), name)

    @staticmethod
    def hour(column: str, name: str | None = None) -> PartitionBy:
        """Partition by the hour of a timestamp, 0 to 23."""
        return PartitionBy._of([column], Transform("hour"), name)

    @staticmethod
    def bucket(column: str, buckets: int, name: str | None = None) -> PartitionBy:
        """Partition into ``buckets`` by the Murmur3 hash of the value."""
        return PartitionBy._of([column], Transform("bucket", buckets), name)

    @staticmethod
    def multi_bucket(columns: Sequence[str], buckets: int, name: str | None = None) -> PartitionBy:
        """Partition into ``buckets`` by the Murmur3 hash of several non-null values."""
        return PartitionBy._of(columns, Transform("multi_bucket", buckets), name)

    @staticmethod
    def truncate(column: str, width: int, name: str | None = None) -> PartitionBy:
        """Partition by the first ``width`` characters, or by multiples of ``width``.

        Numbers are rounded towards zero.
        """
        return PartitionBy._of([column], Transform("truncate", width), name)

    @staticmethod
    def _of(columns: Sequence[str], transform: Transform, name: str | None) -> PartitionBy:
        parts = [*columns, transform.type, *([] if transform.parameter is None else [str(transform.parameter)])]
        chosen = name or "_".join(parts)
        if not _FIELD_ID.fullmatch(chosen):
            raise InvalidInput(
                f"{chosen!r} cannot be a field_id, because a column of the manifest table has its name: give a name of "
                "at most 100 letters, digits and underscores"
            )
        return PartitionBy(tuple(columns), transform, chosen)


def is_record(name: str) -> bool:
    """Return whether a property of the root is the record of a stream."""
    return name.startswith(RECORD)


def is_spec_property(name: str) -> bool:
    """Return whether a property of the root has the name of a specification."""
    return _SPEC_PROPERTY.fullmatch(name) is not None


def specs_of(properties: Mapping[str, str]) -> dict[int, PartitionSpec]:
    """Return the partition specifications among the properties of the root.

    They are sorted by version. A namespace without specifications is not partitioned.

    Raises:
        Damaged: a specification cannot be parsed.
    """
    specs: dict[int, PartitionSpec] = {}
    for name, text in properties.items():
        found = _SPEC_PROPERTY.fullmatch(name)
        if found is None:
            continue
        try:
            spec = PartitionSpec.from_json(text)
        except InvalidInput as error:
            raise Damaged(f"the property {name!r} of the root namespace: {error}") from error
        if spec.property != name:
            raise Damaged(f"the property {name!r} of the root namespace holds the spec with the id {spec.id}")
        specs[spec.id] = spec
    return dict(sorted(specs.items()))


def next_spec(specs: Mapping[int, PartitionSpec], wanted: Iterable[PartitionField]) -> PartitionSpec:
    """Return the next version of a specification.

    A field that computes the same values as a field of an earlier version keeps that ``field_id``. Any other field
    needs a ``field_id`` that no version has used. If nothing changes, the result is the latest version itself.

    Args:
        specs: the versions so far.
        wanted: the fields of the next version, outermost level first.

    Raises:
        InvalidInput: no field is given, a field is given twice, or its ``field_id`` belongs to another field.
    """
    known = [field for spec in specs.values() for field in spec.fields]
    fields: list[PartitionField] = []
    for field in wanted:
        same = next((earlier for earlier in known if earlier.is_same_as(field)), None)
        if same is None and any(earlier.field_id == field.field_id for earlier in known):
            raise InvalidInput(
                f"the field_id {field.field_id!r} permanently belongs to another partition field; choose another name"
            )
        fields.append(same or field)
    if not fields:
        raise InvalidInput("a partition spec needs at least one field; found none")
    for at, field in enumerate(fields):
        if any(field.field_id == other.field_id or field.is_same_as(other) for other in fields[:at]):
            raise InvalidInput(f"the partition field {field.field_id!r} is given twice")
    latest = specs[max(specs)] if specs else PartitionSpec(0, ())
    return latest if latest.fields == tuple(fields) else PartitionSpec(latest.id + 1, tuple(fields))
