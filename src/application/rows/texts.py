"""The texts in columns, also inside of structs, lists, maps and dictionaries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa


def is_text(kind: Any) -> bool:
    """Return whether the values of a type are texts."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def holds_texts(kind: Any) -> bool:
    """Return whether values of a type can hold texts."""
    if isinstance(kind, pa.ExtensionType):
        return holds_texts(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return holds_texts(kind.value_type)
    return is_text(kind) or any(holds_texts(kind.field(at).type) for at in range(kind.num_fields))


def texts_in(array: Any) -> Iterator[Any]:
    """Yield the arrays of texts that are written with an array.

    Texts of rows before and after a slice, and of lists that are null, are not among them. All values of a dictionary
    are, because the engine stores them.

    Args:
        array: A ``pyarrow.Array`` or ``ChunkedArray``.
    """
    if not holds_texts(array.type):
        return
    if isinstance(array, pa.ChunkedArray):
        for chunk in array.chunks:
            yield from texts_in(chunk)
    elif isinstance(array, pa.ExtensionArray):
        yield from texts_in(array.storage)
    elif isinstance(array, pa.DictionaryArray):
        yield from texts_in(array.dictionary)
    elif isinstance(array, pa.StructArray):
        for field in array.flatten():
            yield from texts_in(field)
    elif is_text(array.type):
        yield array
    elif isinstance(array, pa.RunEndEncodedArray):
        yield from texts_in(array.values)
    elif isinstance(array, pa.MapArray):
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        for entries in (array.keys, array.items):
            yield from texts_in(entries.slice(first, last - first))
    else:
        yield from texts_in(array.flatten())
