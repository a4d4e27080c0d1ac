"""The facts that files state about themselves, for the judge of versions.

File format, "Footer"; table format, "Deletion Files". The facts of a data file come from its last bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import attrs

from lancekeep.domain.errors import Damaged
from lancekeep.domain.manifest import DeletionFile, SchemaField
from lancekeep.format import deletions
from lancekeep.format.data_footer import TooShort, read_summary

LEGACY: Final = "0.1"
"""The version of data files before format 2, as manifests state it."""
_VERSIONS: Final = {
    (0, 0): LEGACY,
    (0, 1): LEGACY,
    (0, 2): LEGACY,
    (0, 3): "2.0",
    (2, 0): "2.0",
    (2, 1): "2.1",
    (2, 2): "2.2",
    (2, 3): "2.3",
}
_TEXTS = ("string", "large_string", "binary", "large_binary", "json")


@attrs.frozen
class DataFileFacts:
    """What is known of a data file.

    Attributes:
        size: its size in bytes.
        version: the version of its format; empty if that is not known.
        rows: the number of its rows, or None.
        columns: the number of its columns, or None.
        types: the logical type of each column; empty if they are not known.
        damage: why its footer cannot be read; empty if it can.
    """

    size: int
    version: str = ""
    rows: int | None = None
    columns: int | None = None
    types: tuple[str, ...] = ()
    damage: str = ""


@attrs.frozen
class DeletionFileFacts:
    """What is known of a deletion file.

    Attributes:
        rows: the number of rows that it marks.
        damage: why it cannot be read; empty if it can.
    """

    rows: int = 0
    damage: str = ""


Facts = Mapping[str, DataFileFacts | DeletionFileFacts | None]
"""What is known of files, by their paths below the table. None: the file does not exist."""


def file_version(major: int, minor: int) -> str | None:
    """Return the version of data files with these numbers; None if unknown."""
    return _VERSIONS.get((major, minor))


def data_file_facts(tail: bytes, size: int, name: str) -> DataFileFacts | TooShort:
    """Return the facts of a data file.

    Args:
        tail: the last bytes of the file.
        size: the size of the file.
        name: the file, for messages.

    Returns:
        The facts; or how many of the last bytes are needed for them.
    """
    try:
        found = read_summary(tail, size, name)
    except Damaged as error:
        return DataFileFacts(size, damage=str(error))
    if isinstance(found, TooShort):
        return found
    version = file_version(*found.version)
    if version is None:
        major, minor = found.version
        return DataFileFacts(size, damage=f"its footer has the unknown version {major}.{minor}")
    if version == LEGACY:
        return DataFileFacts(size, version)
    types = tuple(_column_types(found.fields, leaves_only=version != "2.0"))
    return DataFileFacts(size, version, found.rows, found.columns, types if len(types) == found.columns else ())


def deletion_file_facts(content: bytes, file: DeletionFile, physical_rows: int, name: str) -> DeletionFileFacts:
    """Return the facts of a deletion file.

    Args:
        content: its bytes.
        file: what the manifest says of it.
        physical_rows: the rows of its fragment.
        name: the file, for messages.
    """
    uncounted = attrs.evolve(file, num_deleted_rows=0)
    try:
        rows = deletions.read(content, uncounted, physical_rows, name)
    except Damaged as error:
        return DeletionFileFacts(damage=str(error))
    return DeletionFileFacts(len(rows))


def kind_of(logical: str) -> str:
    """Return the kind of a logical type, for the comparison with a file.

    The types of texts and of bytes are encoded alike.
    """
    return "text" if logical in _TEXTS else logical.partition(".")[0]


def _column_types(fields: Iterable[SchemaField], *, leaves_only: bool) -> Iterator[str]:
    """Yield the logical type of each column of a data file."""
    fields = list(fields)
    parents = {field.parent_id for field in fields}
    alone: set[int] = set()
    for field in fields:
        if field.parent_id in alone and field.parent_id >= 0:
            alone.add(field.id)
        elif has_one_column(field):
            alone.add(field.id)
            yield field.logical_type
        elif not leaves_only or field.id not in parents:
            yield field.logical_type


def has_one_column(field: SchemaField) -> bool:
    """Return whether a field with children is one column: a packed struct or blob."""
    packed = field.metadata.get("packed", field.metadata.get("lance-encoding:packed", b""))
    return packed.lower() == b"true" or field.metadata.get("ARROW:extension:name") == b"lance.blob.v2"
