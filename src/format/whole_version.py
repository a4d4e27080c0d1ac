"""Decode everything that a manifest file says.

Readers decode only what they need, so a check of a version decodes the rest, too. Table format, "Manifest".
"""

from __future__ import annotations

from lancekeep.domain.errors import Damaged
from lancekeep.domain.manifest import Fragment
from lancekeep.format.deletions import decode_bitmap
from lancekeep.format.effects import MOST_FRAGMENTS
from lancekeep.format.file_references import file_references
from lancekeep.format.manifest import not_a_manifest
from lancekeep.format.row_ids import decode_row_ids, decode_row_versions
from lancekeep.format.schema import arrow_schema
from lancekeep.format.table_version import TableVersion

_MOST_ROWS = 1 << 32
"""A row address has 32 bits for the position of a row in its fragment."""


def decode_whole(content: bytes, name: str, number: int) -> TableVersion:
    """Decode a manifest file completely.

    One fragment is in memory at a time.

    Args:
        content: the bytes of the file.
        name: the file, for messages.
        number: the version that its name states.

    Raises:
        Damaged: a part of the file cannot be decoded, or contradicts another part.
        Unsupported: readers of the table need a feature that is not known here.
    """
    version = TableVersion.parse(content, name)
    manifest = version.manifest
    if manifest.version != number:
        raise Damaged(f"{name} is the manifest of version {manifest.version}; its name says {number}")
    ids = set[int]()
    for fragment in manifest.fragments:
        if fragment.id in ids:
            raise Damaged(f"{name}: two fragments have the id {fragment.id}")
        ids.add(fragment.id)
        _check_rows(fragment, f"{name}: fragment {fragment.id}")
    for _ in file_references(content, name):
        pass
    try:
        arrow_schema(manifest.fields, manifest.schema_metadata)
        for index in version.indices:
            if index.fragment_bitmap:
                decode_bitmap(index.fragment_bitmap, MOST_FRAGMENTS)
    except ValueError as error:
        raise not_a_manifest(name, error) from error
    return version


def _check_rows(fragment: Fragment, name: str) -> None:
    rows, file = fragment.physical_rows, fragment.deletion_file
    if rows > _MOST_ROWS:
        raise Damaged(f"{name} has {rows} rows; a fragment has at most {_MOST_ROWS}")
    if file is not None and rows and file.num_deleted_rows > rows:
        raise Damaged(f"{name} has {rows} rows, and {file.num_deleted_rows} of them are deleted")
    if fragment.inline_row_ids is not None:
        decode_row_ids(fragment.inline_row_ids, rows, name)
    for versions in (fragment.inline_created_at_versions, fragment.inline_last_updated_at_versions):
        if versions is not None:
            decode_row_versions(versions, rows, name)
