"""Hypothesis strategies for the values of the table format."""

from __future__ import annotations

from typing import Any

import attrs
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import strategies as st

from lancekeep.domain import manifest, operations
from lancekeep.format import values
from lancekeep.format.messages import MESSAGES

OPERATIONS = [
    kind
    for kind in vars(operations).values()
    if isinstance(kind, type) and issubclass(kind, operations.Operation) and kind is not operations.Operation
]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
UUIDS = st.uuids().map(str)
UNKNOWN = st.sampled_from([b"", bytes([0xF8, 0x7F, 5]), bytes([0xFA, 0x7F, 2]) + b"ab"])  # field 2047
_INTEGERS = {
    FieldDescriptor.TYPE_UINT64: st.integers(0, 2**64 - 1),
    FieldDescriptor.TYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=6),
    FieldDescriptor.TYPE_STRING: TEXT,
    FieldDescriptor.TYPE_DOUBLE: st.floats(allow_nan=False),
}
_ENUMS = {
    ("Field", "type"): manifest.FieldType,
    ("Field", "encoding"): manifest.FieldEncoding,
    ("DeletionFile", "file_type"): manifest.DeletionFileType,
    ("Update", "update_mode"): operations.UpdateMode,
}


def any_value(kind: type) -> st.SearchStrategy[Any]:
    """Return a strategy for the values of a class of the domain."""
    if kind is operations.Transaction:
        return st.builds(
            kind,
            st.integers(0, 2**64 - 1),
            TEXT,
            TEXT,
            st.dictionaries(TEXT, TEXT, max_size=2),
            st.none() | st.sampled_from(OPERATIONS).flatmap(any_value),
            UNKNOWN,
        )
    name = "Manifest" if kind is manifest.Manifest else values.message_name(kind)  # with its fragments as values
    fields = MESSAGES[name].DESCRIPTOR.fields_by_name
    names = [attribute.name for attribute in attrs.fields(kind) if attribute.name != "others"]
    parts = {name: _part(fields[name]) for name in names}
    return st.fixed_dictionaries({}, optional=parts | {"others": UNKNOWN}).map(lambda found: kind(**found))


def _part(field: Any) -> st.SearchStrategy[Any]:
    enum = _ENUMS.get((field.containing_type.name, field.name))
    if enum:
        return st.sampled_from(enum)
    message = field.message_type
    if message is None:
        single: st.SearchStrategy[Any] = _INTEGERS[field.type]
    elif message.name == "Uuid":
        single = UUIDS
    elif values.is_map(message):
        key, value = message.fields_by_name["key"], message.fields_by_name["value"]
        found = _part(value)
        return st.dictionaries(
            _INTEGERS[key.type], found | st.none() if message.name == "UpdateMapEntry" else found, max_size=2
        )
    else:
        single = any_value(values.CLASSES[message.name])
    return st.lists(single, max_size=2).map(tuple) if field.is_repeated else single
