"""The manifest of a table version, as values.

Table format, "Manifest"; storage layout, "Base Path System".

Attributes have the names of the specification. A value whose field is optional in the specification is None if the
field is absent; any other absent field is zero or empty. ``others`` holds the encoded fields that this release does
not know, so that they survive a round trip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import partial
from types import MappingProxyType
from typing import Any

import attrs

_NOTHING: Mapping[str, Any] = MappingProxyType({})
_others = partial(attrs.field, default=b"", repr=False)

TOMBSTONE = -2
"""The field id of a column in a data file that is no longer in use."""


class FieldType(IntEnum):
    """The kind of a field in a schema. Lance writes `PARENT` for all fields."""

    PARENT = 0
    REPEATED = 1
    LEAF = 2


class FieldEncoding(IntEnum):
    """The encoding of a field in data files of version 0.1."""

    NONE = 0
    PLAIN = 1
    VAR_BINARY = 2
    DICTIONARY = 3
    RLE = 4


class DeletionFileType(IntEnum):
    """The flavour of a deletion file."""

    ARROW_ARRAY = 0
    BITMAP = 1


@attrs.frozen
class Dictionary:
    """Where a data file of version 0.1 keeps the values of a dictionary."""

    offset: int = 0
    length: int = 0
    others: bytes = _others()


@attrs.frozen
class SchemaField:
    """A field of a schema; a parent precedes its children."""

    name: str = ""
    id: int = 0
    parent_id: int = 0
    logical_type: str = ""
    nullable: bool = False
    type: FieldType = FieldType.PARENT
    encoding: FieldEncoding = FieldEncoding.NONE
    dictionary: Dictionary | None = None
    extension_name: str = ""
    metadata: Mapping[str, bytes] = _NOTHING
    storage_class: str = ""
    unenforced_primary_key: bool = False
    unenforced_primary_key_position: int = 0
    unenforced_clustering_key: bool = False
    unenforced_clustering_key_position: int = 0
    others: bytes = _others()


@attrs.frozen
class DataFile:
    """A data file of a fragment.

    ``column_indices`` names the column of the file that holds each field, or -1.
    """

    path: str = ""
    fields: tuple[int, ...] = ()
    column_indices: tuple[int, ...] = ()
    file_major_version: int = 0
    file_minor_version: int = 0
    file_size_bytes: int = 0
    base_id: int | None = None
    others: bytes = _others()


@attrs.frozen
class FieldCoverage:
    """Roaring bitmaps of the rows that an overlay covers, one per field."""

    offset_bitmaps: tuple[bytes, ...] = ()
    others: bytes = _others()


@attrs.frozen
class DataOverlayFile:
    """A file with new values for some cells of a fragment."""

    data_file: DataFile | None = None
    shared_offset_bitmap: bytes | None = None
    field_coverage: FieldCoverage | None = None
    committed_version: int = 0
    others: bytes = _others()


@attrs.frozen
class DeletionFile:
    """The file that marks deleted rows of a fragment."""

    file_type: DeletionFileType = DeletionFileType.ARROW_ARRAY
    read_version: int = 0
    id: int = 0
    num_deleted_rows: int = 0
    base_id: int | None = None
    others: bytes = _others()


@attrs.frozen
class ExternalFile:
    """A range of a file, such as one that holds the row ids of a fragment."""

    path: str = ""
    offset: int = 0
    size: int = 0
    others: bytes = _others()


@attrs.frozen
class Fragment:
    """A fragment: data files with the same rows.

    Row ids and row versions stay encoded.
    """

    id: int = 0
    files: tuple[DataFile, ...] = ()
    deletion_file: DeletionFile | None = None
    physical_rows: int = 0
    inline_row_ids: bytes | None = None
    external_row_ids: ExternalFile | None = None
    inline_last_updated_at_versions: bytes | None = None
    external_last_updated_at_versions: ExternalFile | None = None
    inline_created_at_versions: bytes | None = None
    external_created_at_versions: ExternalFile | None = None
    overlays: tuple[DataOverlayFile, ...] = ()
    others: bytes = _others()

    @property
    def live_rows(self) -> int:
        """The number of rows that are not deleted."""
        return self.physical_rows - (self.deletion_file.num_deleted_rows if self.deletion_file else 0)


@attrs.frozen
class BasePath:
    """Another place for files: a dataset root, or a directory of files."""

    id: int = 0
    name: str | None = None
    is_dataset_root: bool = False
    path: str = ""
    others: bytes = _others()


@attrs.frozen
class WriterVersion:
    """The library that wrote a manifest."""

    library: str = ""
    version: str = ""
    prerelease: str | None = None
    build_metadata: str | None = None
    others: bytes = _others()

    def __str__(self) -> str:
        prerelease = f"-{self.prerelease}" if self.prerelease else ""
        build = f"+{self.build_metadata}" if self.build_metadata else ""
        return f"{self.library} {self.version}{prerelease}{build}".strip()


@attrs.frozen
class Timestamp:
    """A time in UTC: seconds since 1970 and nanoseconds."""

    seconds: int = 0
    nanos: int = 0
    others: bytes = _others()


@attrs.frozen
class DataStorageFormat:
    """The format of data files, and its version."""

    file_format: str = ""
    version: str = ""
    others: bytes = _others()


@attrs.frozen
class Details:
    """A message whose type only its owner knows, as of the parameters of an index."""

    type_url: str = ""
    value: bytes = b""
    others: bytes = _others()


@attrs.frozen
class IndexFile:
    """A file of an index, relative to the index's directory."""

    path: str = ""
    size_bytes: int = 0
    others: bytes = _others()


@attrs.frozen
class IndexMetadata:
    """An index of a table version.

    ``fragment_bitmap`` is a Roaring bitmap of the fragments that it covers.
    """

    uuid: str | None = None
    fields: tuple[int, ...] = ()
    name: str = ""
    dataset_version: int = 0
    fragment_bitmap: bytes = b""
    index_details: Details | None = None
    index_version: int | None = None
    created_at: int | None = None
    base_id: int | None = None
    files: tuple[IndexFile, ...] = ()
    covering_fields: tuple[int, ...] = ()
    others: bytes = _others()


@attrs.frozen
class IndexSection:
    """The indexes of a table version."""

    indices: tuple[IndexMetadata, ...] = ()
    others: bytes = _others()


@attrs.frozen
class Manifest:
    """A version of a table.

    ``index_section`` and ``transaction_section`` are positions in the manifest file; the encoder sets them.
    ``transaction_section`` is field 23. ``transaction_section_21`` is field 21, which alone engines before 14 read
    and write. Lancekeep states the position in both.
    """

    fields: tuple[SchemaField, ...] = ()
    schema_metadata: Mapping[str, bytes] = _NOTHING
    fragments: Sequence[Fragment] = ()
    version: int = 0
    version_aux_data: int = 0
    index_section: int | None = None
    timestamp: Timestamp | None = None
    tag: str = ""
    reader_feature_flags: int = 0
    writer_feature_flags: int = 0
    max_fragment_id: int | None = None
    transaction_file: str = ""
    writer_version: WriterVersion | None = None
    next_row_id: int = 0
    data_format: DataStorageFormat | None = None
    config: Mapping[str, str] = _NOTHING
    blob_dataset_version: int = 0
    base_paths: tuple[BasePath, ...] = ()
    table_metadata: Mapping[str, str] = _NOTHING
    branch: str | None = None
    transaction_section_21: int | None = None
    transaction_section: int | None = None
    others: bytes = _others()

    @property
    def transaction_position(self) -> int | None:
        """The position of the transaction in the manifest file, or None."""
        return self.transaction_section_21 if self.transaction_section is None else self.transaction_section
