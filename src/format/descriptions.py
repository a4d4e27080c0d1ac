"""Descriptions of the files of a table, as plain values that JSON can hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from itertools import islice
from typing import Any

import attrs

from lancekeep.domain.errors import Damaged
from lancekeep.domain.features import feature_names
from lancekeep.domain.manifest import DeletionFile, Fragment, IndexMetadata, Manifest, SchemaField
from lancekeep.domain.operations import Transaction
from lancekeep.format.data_footer import TooShort, read_footer
from lancekeep.format.deletions import decode_bitmap, read
from lancekeep.format.manifest import parse_message
from lancekeep.format.messages import DataFragment, ManifestOutline, parse
from lancekeep.format.row_ids import decode_row_ids
from lancekeep.format.schema import primary_key
from lancekeep.format.table_version import TableVersion, parse_transaction
from lancekeep.format.values import Fragments, operation_name

MOST_ROWS = 100
"""The most positions or row ids that a description lists."""
_MOST_FRAGMENTS = 1 << 24
_EMPTY: tuple[Any, ...] = ("", b"", (), {})


def describe_manifest(content: bytes, name: str, most: int) -> dict[str, Any]:
    """Describe a manifest file.

    Args:
        content: the bytes of the file.
        name: the file, for messages.
        most: the most fragments to describe; the totals count all of them.

    Raises:
        Damaged: the bytes are not a manifest.
        Unsupported: readers of the table need a feature that is not known here.
    """
    version = TableVersion.parse(content, name)
    manifest, transaction = version.manifest, version.transaction
    return {
        "kind": "manifest",
        "file": name,
        "size": len(content),
        "version": manifest.version,
        "branch": manifest.branch,
        "tag": manifest.tag,
        "written": manifest.timestamp.seconds if manifest.timestamp else None,
        "writer": str(manifest.writer_version or ""),
        "transaction_file": manifest.transaction_file,
        "transaction": _transaction(transaction, most) if transaction else None,
        "reader_features": feature_names(manifest.reader_feature_flags),
        "writer_features": feature_names(manifest.writer_feature_flags),
        "data_format": described(manifest.data_format),
        "schema": [_field(field) for field in manifest.fields],
        "primary_key": [field.name for field in primary_key(manifest.fields)],
        "schema_metadata": described(manifest.schema_metadata),
        "totals": totals(manifest),
        "fragments": [_fragment(fragment) for fragment in islice(manifest.fragments, most)],
        "max_fragment_id": manifest.max_fragment_id,
        "next_row_id": manifest.next_row_id,
        "indices": [_index(index, name) for index in version.indices],
        "base_paths": [described(base) for base in manifest.base_paths],
        "config": described(manifest.config),
        "table_metadata": described(manifest.table_metadata),
    }


def describe_transaction(content: bytes, name: str, most: int) -> dict[str, Any]:
    """Describe a transaction file; takes the arguments of `describe_manifest`."""
    transaction = parse_transaction(content, name)
    return {"kind": "transaction", "file": name, "size": len(content), **_transaction(transaction, most)}


def describe_data_file(tail: bytes, size: int, name: str) -> dict[str, Any] | TooShort:
    """Describe the footer of a data file; takes the arguments of `read_footer`.

    Raises `Damaged` if it has none.
    """
    footer = read_footer(tail, size, name)
    if isinstance(footer, TooShort):
        return footer
    columns = [
        {
            "pages": len(pages),
            "rows": sum(page.rows for page in pages),
            "bytes": sum(size for page in pages for _, size in page.buffers),
            "encodings": sorted({page.encoding for page in pages}),
        }
        for pages in footer.columns
    ]
    return {
        "kind": "data file",
        "file": name,
        "size": footer.size,
        "format": footer.version,
        "rows": footer.rows,
        "schema": [_field(field) for field in footer.fields],
        "columns": columns,
        "global_buffers": [{"position": position, "size": size} for position, size in footer.global_buffers],
    }


def describe_deletion_file(content: bytes, file: DeletionFile, physical_rows: int, name: str) -> dict[str, Any]:
    """Describe a deletion file; takes the arguments of `read` and raises its errors."""
    rows = read(content, file, physical_rows, name)
    return {
        "kind": "deletion file",
        "file": name,
        "size": len(content),
        "type": file.file_type.name.lower(),
        "deleted_rows": len(rows),
        "physical_rows": physical_rows or None,
        "rows": rows[:MOST_ROWS].tolist(),
    }


def describe_fragment(fragment: Fragment, name: str) -> dict[str, Any]:
    """Describe a fragment, with the row ids that the manifest holds.

    Raises `Damaged` if these are not as many as the fragment has rows.
    """
    found = _fragment(fragment)
    if fragment.inline_row_ids is not None:
        ids = decode_row_ids(fragment.inline_row_ids, fragment.physical_rows, f"{name}: fragment {fragment.id}")
        found["row_ids"] = {"count": len(ids), "first": ids[:MOST_ROWS].tolist(), "bytes": len(fragment.inline_row_ids)}
    return {"kind": "fragment", "file": name, **found}


def totals(manifest: Manifest) -> dict[str, int]:
    """Return the numbers of fragments, rows and files of a version, and their bytes."""
    rows = deleted = files = size = 0
    fragments = _messages(manifest)  # not as values, because a table may have millions
    for fragment in fragments:
        rows += fragment.physical_rows
        if fragment.deletion_file:
            deleted += fragment.deletion_file.num_deleted_rows
        for file in fragment.files:
            files += 1
            size += file.file_size_bytes
    return {
        "fragments": len(manifest.fragments), "rows": rows - deleted, "deleted_rows": deleted, "data_files": files,
        "data_bytes": size,
    }  # fmt: skip


def change(before: bytes | None, after: bytes, *, continues: bool) -> dict[str, Any]:
    """Return what a version added to the previous version, and what it removed.

    Args:
        before: the manifest file of the version before; None for the first version.
        after: the manifest file of the version.
        continues: whether a fragment id means the same fragment in both. Not after an overwrite or a restore: fragments
            are then compared by their first files.

    Returns:
        Numbers of fragments, live rows, and data files with their bytes. A fragment in both versions counts as changed
        if it differs.
    """
    old_entries: Sequence[bytes] = () if before is None else parse_message(ManifestOutline, before).fragments
    new_entries: Sequence[bytes] = parse_message(ManifestOutline, after).fragments
    earlier = _differing(old_entries, new_entries, continues)
    later = _differing(new_entries, old_entries, continues)
    kept = earlier.keys() & later.keys()
    new, old = [later[each] for each in later.keys() - kept], [earlier[each] for each in earlier.keys() - kept]
    deleted = sum(_live_rows(earlier[each]) - _live_rows(later[each]) for each in kept)
    new_files = _files_of([*new, *(later[each] for each in kept)])
    old_files = _files_of([*old, *(earlier[each] for each in kept)])
    added, removed = new_files.keys() - old_files.keys(), old_files.keys() - new_files.keys()
    return {
        "fragments": {"added": len(new), "removed": len(old), "changed": len(kept)},
        "rows": {"added": sum(map(_live_rows, new)), "removed": sum(map(_live_rows, old)) + deleted},
        "data_files": {"added": len(added), "removed": len(removed)},
        "data_bytes": {
            "added": sum(new_files[path] for path in added), "removed": sum(old_files[path] for path in removed),
        },
    }  # fmt: skip


def _differing(entries: Sequence[bytes], others: Sequence[bytes], continues: bool) -> dict[tuple[int, str], Any]:
    """Decode the fragments that the other version does not have; encoded, they are compared fast."""
    known = set(others)
    found = [parse(DataFragment, entry) for entry in entries if entry not in known]
    return {(each.id, each.files[0].path if each.files and not continues else ""): each for each in found}


def _messages(manifest: Manifest) -> Iterable[Any]:
    fragments: Any = manifest.fragments
    return fragments.messages() if isinstance(fragments, Fragments) else fragments


def _files_of(fragments: Sequence[Any]) -> dict[str, int]:
    return {file.path: file.file_size_bytes or 0 for fragment in fragments for file in fragment.files}


def _live_rows(fragment: Any) -> int:
    deleted = fragment.deletion_file.num_deleted_rows if fragment.deletion_file else 0
    return int(fragment.physical_rows - deleted)


def described(value: Any) -> Any:
    """Return a value of the domain as plain values, without its empty attributes."""
    if isinstance(value, bytes):
        return value.decode() if value.isascii() and value.decode().isprintable() else value.hex()
    if isinstance(value, Enum):
        return value.name.lower()
    if attrs.has(type(value)):
        found = ((attribute.name, getattr(value, attribute.name)) for attribute in attrs.fields(type(value)))
        return {name: described(each) for name, each in found if each is not None and each not in _EMPTY}
    if isinstance(value, Mapping):
        return {str(key): described(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [described(each) for each in value]
    return value


def _fragment(fragment: Fragment) -> dict[str, Any]:
    encoded: dict[str, Any] = {name: None for name in attrs.fields_dict(Fragment) if name.startswith("inline_")}
    return {"live_rows": fragment.live_rows, **described(attrs.evolve(fragment, **encoded))}


def _transaction(transaction: Transaction, most: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operation": "unknown",
        "read_version": transaction.read_version,
        "uuid": transaction.uuid,
        "properties": dict(transaction.transaction_properties),
    }
    operation = transaction.operation
    if operation is not None:
        found["operation"] = operation_name(type(operation))
        for attribute in attrs.fields(type(operation)):  # type: ignore[arg-type]  # every operation is an attrs class
            value = getattr(operation, attribute.name)
            if isinstance(value, tuple) and value and isinstance(value[0], Fragment):
                found[attribute.name] = {"count": len(value), "first": [_fragment(each) for each in value[:most]]}
            elif isinstance(value, tuple) and value and isinstance(value[0], SchemaField):
                found[attribute.name] = [_field(field) for field in value]
            elif value:
                found[attribute.name] = described(value)
    return found


def _field(field: SchemaField) -> dict[str, Any]:
    found = {"id": field.id, "parent": field.parent_id, "name": field.name, "type": field.logical_type}
    metadata = {"metadata": described(field.metadata)} if field.metadata else {}
    return {**found, "nullable": field.nullable, **metadata}


def _index(index: IndexMetadata, name: str) -> dict[str, Any]:
    found: dict[str, Any] = described(attrs.evolve(index, fragment_bitmap=b""))
    if index.fragment_bitmap:
        try:
            covered = decode_bitmap(index.fragment_bitmap, _MOST_FRAGMENTS)
        except ValueError as error:
            raise Damaged(f"{name}: the fragments that the index {index.name!r} covers: {error}") from error
        found["covers"] = {"count": len(covered), "first": covered[:MOST_ROWS].tolist()}
    return found
