"""Schemas of tables, to and from Arrow (table format, "Schema & Fields").

A manifest lists the fields of a schema depth first. The storage of an extension type is described as any other type;
the metadata of the field names the extension.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.manifest import FieldEncoding, SchemaField
from lancekeep.format.logical_types import arrow_type, logical_type
from lancekeep.format.manifest import parse_message
from lancekeep.format.messages import Field, ManifestOutline, parse

PRIMARY_KEY = "lance-schema:unenforced-primary-key"
PRIMARY_KEY_POSITION = PRIMARY_KEY + ":position"
CLUSTERING_KEY_POSITION = "lance-schema:unenforced-clustering-key:position"
_EXTENSION, _EXTENSION_METADATA = b"ARROW:extension:name", b"ARROW:extension:metadata"
_DEEPEST: Final = 64
"""Schemas with deeper nesting are refused, because Arrow itself recurses into them."""
_ROOT = -1
_VARIABLE = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
_UNVIEWED = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
_TRUE = ("true", "1", "yes")


def arrow_schema(fields: Iterable[SchemaField], metadata: Mapping[str, bytes]) -> pa.Schema:
    """Return the Arrow schema of the fields of a manifest.

    Args:
        fields: the fields, depth first.
        metadata: the metadata of the schema.

    Raises:
        ValueError: the fields are not depth first, or a logical type is unknown.
    """
    depths: dict[int, int] = {_ROOT: 0}
    children: dict[int, list[pa.Field]] = {}
    fields = list(fields)
    for field in fields:
        if field.parent_id not in depths or field.id in depths:
            raise ValueError(f"the field {field.name!r} repeats an id, or precedes its parent {field.parent_id}")
        depths[field.id] = depths[field.parent_id] + 1
        if depths[field.id] > _DEEPEST:
            raise ValueError(f"the field {field.name!r} is nested deeper than {_DEEPEST} levels")
    for field in reversed(fields):  # children before their parents
        inner = children.pop(field.id, [])[::-1]
        children.setdefault(field.parent_id, []).append(_arrow_field(field, inner))
    schema = pa.schema(children.get(_ROOT, [])[::-1], dict(metadata) or None)
    return pa.ipc.read_schema(schema.serialize())  # replaces the storage of known extension types by these types


def schema_fields(schema: pa.Schema) -> tuple[SchemaField, ...]:
    """Return the fields of an Arrow schema, depth first, with ids from 0.

    Raises:
        InvalidInput: the format has no logical type for a column.
    """
    fields: list[SchemaField] = []
    for field in schema:
        _add(fields, field, _ROOT)
    return tuple(fields)


def columns_in(content: bytes) -> list[tuple[str, str, int, bool]]:
    """Return name, type, parent and nullability of each field of a manifest file.

    Raises:
        ValueError: the file has no manifest.
    """
    fields = [parse(Field, field) for field in parse_message(ManifestOutline, content).fields]
    return [(field.name, field.logical_type, field.parent_id, field.nullable) for field in fields]


def primary_key(fields: Iterable[SchemaField]) -> tuple[SchemaField, ...]:
    """Return the fields of the unenforced primary key, in its order.

    Fields with a position precede fields without one, which are ordered by their ids.
    """
    key = [field for field in fields if field.unenforced_primary_key]
    return tuple(sorted(key, key=lambda field: (not field.unenforced_primary_key_position, _position(field), field.id)))


def _position(field: SchemaField) -> int:
    return field.unenforced_primary_key_position


def _arrow_field(field: SchemaField, children: list[pa.Field]) -> pa.Field:
    try:
        kind = _arrow_type(field.logical_type, children, 0)
    except (InvalidInput, ValueError, OverflowError, TypeError) as error:
        raise ValueError(f"the field {field.name!r} has the type {field.logical_type!r}: {error}") from error
    metadata = {key.encode(): value for key, value in field.metadata.items()}
    if field.logical_type == "json":
        metadata = {key: value for key, value in metadata.items() if key not in (_EXTENSION, _EXTENSION_METADATA)}
    return pa.field(field.name, kind, field.nullable, metadata or None)


def _arrow_type(logical: str, children: list[pa.Field], depth: int) -> pa.DataType:
    if depth > _DEEPEST:
        raise ValueError(f"it is nested deeper than {_DEEPEST} levels")
    match logical.partition(":")[0], len(children):
        case "struct", _:
            return pa.struct(children)
        case "list" | "list.struct", 1:
            return pa.list_(children[0])
        case "large_list" | "large_list.struct", 1:
            return pa.large_list(children[0])
        case "map", 1:
            entries = children[0].type
            return pa.map_(entries.field(0), entries.field(1))
        case "json", 0:
            return pa.json_()
        case "fixed_size_list", _:
            item, _, length = logical.partition(":")[2].rpartition(":")
            if children:
                return pa.list_(children[0], int(length))
            return pa.list_(_arrow_type(item, [], depth + 1), int(length))
        case "dict", 0:
            values, index, _ = logical.removeprefix("dict:").rsplit(":", 2)
            return pa.dictionary(arrow_type(index), _arrow_type(values, [], depth + 1))
        case _, 0:
            return arrow_type(logical)
    raise ValueError(f"it has {len(children)} fields inside")


def _add(fields: list[SchemaField], field: pa.Field, parent: int) -> None:
    """Append the description of a field and of the fields inside it."""
    kind, metadata = field.type, dict(field.metadata or {})
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    if isinstance(kind, pa.BaseExtensionType):
        metadata |= _extension(kind)
    if isinstance(kind, pa.JsonType):
        storage, logical = pa.large_binary(), "json"
    else:
        logical = _logical_type(storage)
    number = len(fields)
    text = {key.decode(): value for key, value in metadata.items()}
    position = _number(text.get(PRIMARY_KEY_POSITION))
    clustering = _number(text.get(CLUSTERING_KEY_POSITION))
    fields.append(
        SchemaField(
            name=field.name,
            id=number,
            parent_id=parent,
            logical_type=logical,
            nullable=field.nullable,
            encoding=_encoding(storage),
            extension_name=text.get("ARROW:extension:name", b"").decode(),
            metadata=text,
            unenforced_primary_key=position > 0 or text.get(PRIMARY_KEY, b"").decode().lower() in _TRUE,
            unenforced_primary_key_position=position,
            unenforced_clustering_key=clustering > 0,
            unenforced_clustering_key_position=clustering,
        )
    )
    for child in _children(storage):
        _add(fields, child, number)


def _extension(kind: Any) -> dict[bytes, bytes]:
    """Return the metadata of a field that stands for its extension type."""
    name = kind.extension_name
    if isinstance(kind, pa.ExtensionType):
        parameters = kind.__arrow_ext_serialize__()
    elif isinstance(kind, pa.FixedShapeTensorType):
        described = {"shape": kind.shape, "dim_names": kind.dim_names, "permutation": kind.permutation}
        parameters = json.dumps(
            {key: value for key, value in described.items() if value}, separators=(",", ":")
        ).encode()
    elif isinstance(kind, pa.UuidType | pa.Bool8Type | pa.JsonType):
        name, parameters = ("lance.json" if isinstance(kind, pa.JsonType) else name), b""
    else:
        raise InvalidInput(f"a column cannot have the type {kind}: the parameters of this extension type are not known")
    return {_EXTENSION: name.encode(), _EXTENSION_METADATA: parameters}


def _logical_type(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind):
        return "struct"
    if pa.types.is_map(kind):
        if kind.keys_sorted:
            raise InvalidInput(f"a column cannot have the type {kind}: the format has no map of sorted keys")
        return "map"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        name = "list" if pa.types.is_list(kind) else "large_list"
        return f"{name}.struct" if pa.types.is_struct(kind.value_type) else name
    if pa.types.is_fixed_size_list(kind):
        item = "struct" if pa.types.is_struct(kind.value_type) else _logical_type(kind.value_type)
        return f"fixed_size_list:{item}:{kind.list_size}"
    if pa.types.is_dictionary(kind):
        return f"dict:{_logical_type(kind.value_type)}:{logical_type(kind.index_type)}:false"
    return logical_type(_UNVIEWED.get(kind, kind))


def _children(kind: pa.DataType) -> Iterator[pa.Field]:
    if pa.types.is_struct(kind):
        yield from kind.fields
    elif pa.types.is_map(kind):
        yield pa.field("entries", pa.struct([kind.key_field, kind.item_field]), False)
    elif (
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or (pa.types.is_fixed_size_list(kind) and pa.types.is_struct(kind.value_type))
    ):
        yield kind.value_field


def _encoding(kind: pa.DataType) -> FieldEncoding:
    """Return the encoding that Lance records for a type."""
    kind = _UNVIEWED.get(kind, kind)
    if pa.types.is_dictionary(kind):
        return FieldEncoding.DICTIONARY
    if pa.types.is_struct(kind) or pa.types.is_null(kind):
        return FieldEncoding.NONE
    return FieldEncoding.VAR_BINARY if any(test(kind) for test in _VARIABLE) else FieldEncoding.PLAIN


def _number(content: bytes | None) -> int:
    return int(content) if content and content.isdigit() else 0
