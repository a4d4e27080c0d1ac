"""Encode Arrow schemas as JsonArrowSchema of the namespace specification.

The names of types are Lance's.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from lancekeep.domain.errors import Damaged

EXACT = "lancekeep:arrow_schema"
"""The metadata key of a schema in Arrow's own encoding, because the JSON has no place for units and time zones."""

_NAMES = {
    "halffloat": "float16",
    "float": "float32",
    "double": "float64",
    "string": "utf8",
    "large_string": "large_utf8",
    "string_view": "utf8_view",
}
"""The types whose names in pyarrow differ from the Arrow specification."""

_TYPES = {_NAMES.get(str(kind), str(kind)): kind for kind in map(pa.type_for_alias, ("bool", "binary", "large_binary"))}
_TYPES |= {name: pa.type_for_alias(name) for name in ("int8", "int16", "int32", "int64", "date32", "date64")}
_TYPES |= {name: pa.type_for_alias(name) for name in ("uint8", "uint16", "uint32", "uint64", "null")}
_TYPES |= {"float16": pa.float16(), "float32": pa.float32(), "float64": pa.float64(), "timestamp": pa.timestamp("us")}
_TYPES |= {"utf8": pa.string(), "large_utf8": pa.large_string(), "date32[day]": pa.date32()}
_LISTS = frozenset({"list", "large_list", "fixed_size_list"})


def type_json(kind: pa.DataType) -> dict[str, Any]:
    """Return a type as JsonArrowDataType.

    The format cannot express units, time zones and types of dictionary keys.
    """
    if pa.types.is_dictionary(kind):
        return type_json(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return type_json(kind.storage_type)
    name = str(kind).partition("[")[0].partition("<")[0].partition("(")[0]
    length = None
    if pa.types.is_fixed_size_list(kind):
        name, length = "fixed_size_list", kind.list_size
    elif pa.types.is_decimal(kind):
        length = kind.precision * 1000 + kind.scale
    elif pa.types.is_fixed_size_binary(kind):
        length = kind.byte_width
    found: dict[str, Any] = {"type": _NAMES.get(name, name)}
    if length is not None:
        found["length"] = length
    if pa.types.is_nested(kind):
        found["fields"] = [field_json(kind.field(index)) for index in range(kind.num_fields)]
    return found


def field_json(field: pa.Field) -> dict[str, Any]:
    """Return a field as JsonArrowField."""
    found = {"name": field.name, "nullable": field.nullable, "type": type_json(field.type)}
    return found | ({"metadata": _text(field.metadata)} if field.metadata else {})


def schema_json(schema: pa.Schema) -> dict[str, Any]:
    """Return a schema as JsonArrowSchema."""
    found: dict[str, Any] = {"fields": [field_json(field) for field in schema]}
    return found | ({"metadata": _text(schema.metadata)} if schema.metadata else {})


def exact_schema_text(schema: pa.Schema) -> str:
    """Return a schema as JSON text from which `schema_of` restores it exactly."""
    found = schema_json(schema)
    exact = base64.b64encode(schema.serialize()).decode()
    return json.dumps({**found, "metadata": {**found.get("metadata", {}), EXACT: exact}}, separators=(",", ":"))


def schema_of(text: str) -> pa.Schema:
    """Return the schema in a JSON text.

    Timestamps are in microseconds unless the text states another unit.

    Raises:
        Damaged: The text is not such a schema.
    """
    try:
        found = json.loads(text)
        exact = (found.get("metadata") or {}).get(EXACT)
        if exact is not None:
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(exact)))
            if schema_json(schema)["fields"] == found["fields"]:  # else other software changed the fields
                return schema
        return pa.schema([_field(field) for field in found["fields"]])
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError, OSError, pa.ArrowException) as error:
        raise Damaged(f"{text[:200]!r} is no schema in the JSON of the namespace specification: {error!r}") from error


def type_of(found: Mapping[str, Any]) -> pa.DataType:
    """Return the type in a JsonArrowDataType.

    Raises:
        ValueError, KeyError, TypeError: The type is unknown.
    """
    name, length = found["type"], found.get("length") or 0
    if not isinstance(length, int) or not 0 <= length < 1 << 31:
        raise ValueError(f"the length {length!r} is not a number below 2^31")
    fields = [_field(field) for field in found.get("fields") or ()]
    if name in _LISTS and len(fields) != 1:
        raise ValueError(f"a {name} has one field for its items, and this one has {len(fields)}")
    match name:
        case "struct":
            return pa.struct(fields)
        case "list":
            return pa.list_(fields[0])
        case "large_list":
            return pa.large_list(fields[0])
        case "fixed_size_list":
            return pa.list_(fields[0], length)
        case "fixed_size_binary":
            return pa.binary(length)
        case "decimal128" | "decimal256":
            make = pa.decimal128 if name == "decimal128" else pa.decimal256
            return make(*divmod(length, 1000))
    if name not in _TYPES:
        raise ValueError(f"the type {name!r} is not known")
    return _TYPES[name]


def _field(found: Mapping[str, Any]) -> pa.Field:
    return pa.field(found["name"], type_of(found["type"]), found.get("nullable", True), found.get("metadata") or None)


def _text(metadata: Mapping[bytes, bytes]) -> dict[str, str]:
    return {key.decode(): value.decode(errors="replace") for key, value in metadata.items()}
