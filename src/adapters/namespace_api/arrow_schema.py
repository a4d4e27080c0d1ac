"""Arrow schemas as the models of ``lance_namespace`` have them, with the type names that the native engine gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from lance_namespace_urllib3_client.models.json_arrow_data_type import JsonArrowDataType
from lance_namespace_urllib3_client.models.json_arrow_field import JsonArrowField
from lance_namespace_urllib3_client.models.json_arrow_schema import JsonArrowSchema

_NAMES = {
    "halffloat": "float16",
    "float": "float32",
    "double": "float64",
    "string": "utf8",
    "large_string": "large_utf8",
    "string_view": "utf8_view",
}
"""Where pyarrow names a type otherwise than the Arrow specification."""


def json_schema(schema: pa.Schema) -> JsonArrowSchema:
    """A schema with its fields and metadata. Units, time zones and the types of keys have no place in the model."""
    return JsonArrowSchema(fields=[_field(field) for field in schema], metadata=_text(schema.metadata))


def _field(field: pa.Field) -> JsonArrowField:
    return JsonArrowField(
        name=field.name, nullable=field.nullable, type=_type(field.type), metadata=_text(field.metadata)
    )


def _type(kind: pa.DataType) -> JsonArrowDataType:
    if pa.types.is_dictionary(kind):
        return _type(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _type(kind.storage_type)
    name = str(kind).partition("[")[0].partition("<")[0].partition("(")[0]
    length, fields = None, None
    if pa.types.is_fixed_size_list(kind):
        name, length = "fixed_size_list", kind.list_size
    elif pa.types.is_fixed_size_binary(kind) and not pa.types.is_decimal(kind):
        length = kind.byte_width
    elif pa.types.is_decimal(kind):
        length = kind.precision * 1000 + kind.scale
    if pa.types.is_nested(kind):
        fields = [_field(kind.field(index)) for index in range(kind.num_fields)]
    return JsonArrowDataType(type=_NAMES.get(name, name), length=length, fields=fields)


def _text(metadata: Mapping[bytes, bytes] | None) -> dict[str, Any] | None:
    return {key.decode(): value.decode(errors="replace") for key, value in metadata.items()} if metadata else None
