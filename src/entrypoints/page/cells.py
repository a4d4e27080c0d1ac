"""Values of rows as cells of a page, which stay small for large values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.types as types

from lancekeep.entrypoints.cli.cells import cell, json_text, size
from lancekeep.entrypoints.page.formats import text

LONGEST = 120
"""The characters of a cell."""
_POINTS, _SHORTEST = 48, 8
"""The points of a sparkline, and the numbers that a list needs to have one."""
_ITEMS, _DEPTH = 12, 6
"""The items of a nested value, and the levels that are shown of it."""
_MEDIA_TYPES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


@attrs.frozen
class Cell:
    """A value of a row.

    Attributes:
        kind: ``null``, ``text``, ``number``, ``vector`` or ``image``.
        text: The value, or what it is.
        points: The numbers of a sparkline.
    """

    kind: str
    text: str
    points: tuple[float, ...] = ()


def image_type(content: bytes) -> str | None:
    """Return the media type of an image by its first bytes.

    None if it is no image that pages show.
    """
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    return next((media_type for magic, media_type in _MEDIA_TYPES if content.startswith(magic)), None)


def cell_of(scalar: Any) -> Cell:
    """Return an Arrow scalar as a cell."""
    if not scalar.is_valid:
        return Cell("null", "null")
    if _is_vector(scalar):
        return _vector(scalar.values)
    try:
        value = scalar.as_py()
    except (ValueError, OverflowError, TypeError, NotImplementedError, pa.ArrowException):
        return Cell("text", _unreadable(scalar))
    match value:
        case bytes():
            media_type = image_type(value)
            return Cell("text", size(len(value))) if media_type is None else Cell("image", _image(media_type, value))
        case str():
            return Cell("text", text(value, LONGEST))
        case Mapping() | list() | tuple():
            return Cell("text", text(json_text(_shortened(value, _DEPTH)), LONGEST))
        case bool():
            return Cell("text", cell(value))
    is_number = types.is_integer(scalar.type) or types.is_floating(scalar.type) or types.is_decimal(scalar.type)
    return Cell("number" if is_number else "text", text(cell(value), LONGEST))


def blob_cell(size_of_blob: int, content: bytes | None) -> Cell:
    """Return a blob as a cell.

    Args:
        size_of_blob: Its bytes.
        content: Its content, if that was read.
    """
    media_type = None if content is None else image_type(content)
    if content is None or media_type is None:
        return Cell("text", f"blob of {size(size_of_blob)}")
    return Cell("image", _image(media_type, content))


def _image(media_type: str, content: bytes) -> str:
    return f"{media_type.partition('/')[2].upper()} of {size(len(content))}"


def _is_vector(scalar: Any) -> bool:
    kind = scalar.type
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return (
        is_list
        and (types.is_floating(kind.value_type) or types.is_integer(kind.value_type))
        and len(scalar.values) >= _SHORTEST
    )


def _vector(values: Any) -> Cell:
    numbers = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    count = len(numbers)
    bounds = [count * at // min(count, _POINTS) for at in range(min(count, _POINTS) + 1)]
    points = tuple(
        float(f"{math.fsum(part) / len(part):.4g}") if all(map(math.isfinite, part)) else math.nan
        for part in (numbers[begin:end].tolist() for begin, end in pairwise(bounds))
    )
    return Cell("vector", f"[{count:,}] norm {math.hypot(*numbers.tolist()):.4g}", points)


def _shortened(value: Any, depth: int) -> Any:
    """Return a nested value without the items and levels that no cell shows."""
    match value:
        case str():
            return value[: LONGEST + 1]
        case bytes():
            return f"<{size(len(value))}>"
        case Mapping() if depth and value:
            kept = list(value.items())[:_ITEMS]
            return {text(key, LONGEST): _shortened(each, depth - 1) for key, each in kept} | _rest(value)
        case list() | tuple() if depth and value:
            kept = [_shortened(each, depth - 1) for each in value[:_ITEMS]]
            return kept + ([f"… {len(value) - _ITEMS:,} more"] if len(value) > _ITEMS else [])
        case Mapping() | list() | tuple():
            return "…" if value else value
        case _:
            return value


def _rest(value: Mapping[Any, Any]) -> dict[str, str]:
    return {"…": f"{len(value) - _ITEMS:,} more"} if len(value) > _ITEMS else {}


def _unreadable(scalar: Any) -> str:
    """Return a value that Python cannot have: a text that is not UTF-8, or a time that no calendar has."""
    if types.is_string(scalar.type) or types.is_large_string(scalar.type):
        content = scalar.as_buffer()
        return text(content.slice(0, min(content.size, LONGEST)).to_pybytes().decode("utf-8", "backslashreplace"))
    if types.is_temporal(scalar.type):
        return f"{scalar.value} ({scalar.type})"
    return text(f"a value of type {scalar.type} that cannot be shown", LONGEST)
