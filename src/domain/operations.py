"""The transactions of one table, one class per operation.

Table format, "Conflict Resolution". Attributes have the names of the specification, as in `lancekeep.domain.manifest`.
Transactions over several tables are in `lancekeep.domain.transaction`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from functools import partial
from types import MappingProxyType
from typing import Any

import attrs

from lancekeep.domain.manifest import (
    BasePath,
    DataFile,
    DataOverlayFile,
    Details,
    Fragment,
    IndexFile,
    IndexMetadata,
    SchemaField,
)

_NOTHING: Mapping[Any, Any] = MappingProxyType({})
_others = partial(attrs.field, default=b"", repr=False)


class Operation:
    """The root of all operations."""

    __slots__ = ()


class UpdateMode(IntEnum):
    """How an update wrote its rows."""

    REWRITE_ROWS = 0
    REWRITE_COLUMNS = 1


@attrs.frozen
class Append(Operation):
    """Add fragments, whose ids are not assigned yet."""

    fragments: tuple[Fragment, ...] = ()
    others: bytes = _others()


@attrs.frozen
class Delete(Operation):
    """Mark rows as deleted, and remove fragments without remaining rows."""

    updated_fragments: tuple[Fragment, ...] = ()
    deleted_fragment_ids: tuple[int, ...] = ()
    predicate: str = ""
    others: bytes = _others()


@attrs.frozen
class Overwrite(Operation):
    """Create or replace the whole table."""

    fragments: tuple[Fragment, ...] = ()
    schema: tuple[SchemaField, ...] = ()
    schema_metadata: Mapping[str, bytes] = _NOTHING
    config_upsert_values: Mapping[str, str] = _NOTHING
    initial_bases: tuple[BasePath, ...] = ()
    others: bytes = _others()


@attrs.frozen
class CreateIndex(Operation):
    """Add, replace or remove indexes."""

    new_indices: tuple[IndexMetadata, ...] = ()
    removed_indices: tuple[IndexMetadata, ...] = ()
    others: bytes = _others()


@attrs.frozen
class RewriteGroup:
    """Fragments that one rewrite replaces, and their replacements."""

    old_fragments: tuple[Fragment, ...] = ()
    new_fragments: tuple[Fragment, ...] = ()
    others: bytes = _others()


@attrs.frozen
class RewrittenIndex:
    """An index that a rewrite replaces."""

    old_id: str | None = None
    new_id: str | None = None
    new_index_details: Details | None = None
    new_index_version: int = 0
    new_index_files: tuple[IndexFile, ...] = ()
    others: bytes = _others()


@attrs.frozen
class Rewrite(Operation):
    """Rearrange rows without a change of values, as compaction does."""

    old_fragments: tuple[Fragment, ...] = ()
    new_fragments: tuple[Fragment, ...] = ()
    groups: tuple[RewriteGroup, ...] = ()
    rewritten_indices: tuple[RewrittenIndex, ...] = ()
    others: bytes = _others()


@attrs.frozen
class Merge(Operation):
    """Add columns to the fragments."""

    fragments: tuple[Fragment, ...] = ()
    schema: tuple[SchemaField, ...] = ()
    schema_metadata: Mapping[str, bytes] = _NOTHING
    preserves_nullability: bool = False
    others: bytes = _others()


@attrs.frozen
class Restore(Operation):
    """Make an earlier version the latest one."""

    version: int = 0
    others: bytes = _others()


@attrs.frozen
class ReserveFragments(Operation):
    """Reserve fragment ids for a rewrite."""

    num_fragments: int = 0
    others: bytes = _others()


@attrs.frozen
class CompactedSsTable:
    """How far a shard of a MemWAL index is compacted into the table."""

    shard_id: str | None = None
    generation: int = 0
    others: bytes = _others()


@attrs.frozen
class ExactKeySetFilter:
    """The hashes of inserted keys."""

    key_hashes: tuple[int, ...] = ()
    others: bytes = _others()


@attrs.frozen
class BloomFilter:
    """A Bloom filter of inserted keys."""

    bitmap: bytes = b""
    num_bits: int = 0
    number_of_items: int = 0
    probability: float = 0.0
    others: bytes = _others()


@attrs.frozen
class KeyExistenceFilter:
    """The keys that a merge insert added, for the detection of conflicts."""

    field_ids: tuple[int, ...] = ()
    exact: ExactKeySetFilter | None = None
    bloom: BloomFilter | None = None
    others: bytes = _others()


@attrs.frozen
class OffsetList:
    """Positions of rows in a fragment."""

    values: tuple[int, ...] = ()
    others: bytes = _others()


@attrs.frozen
class Update(Operation):
    """Change rows, by new fragments or by new data files for some columns."""

    removed_fragment_ids: tuple[int, ...] = ()
    updated_fragments: tuple[Fragment, ...] = ()
    new_fragments: tuple[Fragment, ...] = ()
    fields_modified: tuple[int, ...] = ()
    compacted_sstables: tuple[CompactedSsTable, ...] = ()
    fields_for_preserving_frag_bitmap: tuple[int, ...] = ()
    update_mode: UpdateMode = UpdateMode.REWRITE_ROWS
    inserted_rows: KeyExistenceFilter | None = None
    updated_fragment_offsets: Mapping[int, OffsetList] = _NOTHING
    updated_fragment_offset_bitmaps: Mapping[int, bytes] = _NOTHING
    others: bytes = _others()


@attrs.frozen
class Project(Operation):
    """Change the schema without new values: drop or rename columns."""

    schema: tuple[SchemaField, ...] = ()
    preserves_nullability: bool = False
    others: bytes = _others()


@attrs.frozen
class UpdateMap:
    """Changes of a map of text; the value None removes the key.

    Attributes:
        update_entries: the new values.
        replace: whether they replace the whole map.
    """

    update_entries: Mapping[str, str | None] = _NOTHING
    replace: bool = False
    others: bytes = _others()


@attrs.frozen
class FieldMetadataUpdate:
    """New metadata of a field, as Lance recorded it before `UpdateMap`."""

    metadata: Mapping[str, str] = _NOTHING
    others: bytes = _others()


@attrs.frozen
class UpdateConfig(Operation):
    """Change the configuration, or metadata of the table, schema or fields.

    The last four attributes are deprecated, and older releases of Lance set them.
    """

    config_updates: UpdateMap | None = None
    table_metadata_updates: UpdateMap | None = None
    schema_metadata_updates: UpdateMap | None = None
    field_metadata_updates: Mapping[int, UpdateMap] = _NOTHING
    upsert_values: Mapping[str, str] = _NOTHING
    delete_keys: tuple[str, ...] = ()
    schema_metadata: Mapping[str, str] = _NOTHING
    field_metadata: Mapping[int, FieldMetadataUpdate] = _NOTHING
    others: bytes = _others()


@attrs.frozen
class DataReplacementGroup:
    """A new data file for columns of a fragment."""

    fragment_id: int = 0
    new_file: DataFile | None = None
    others: bytes = _others()


@attrs.frozen
class DataReplacement(Operation):
    """Replace data files of some columns."""

    replacements: tuple[DataReplacementGroup, ...] = ()
    others: bytes = _others()


@attrs.frozen
class UpdateMemWalState(Operation):
    """Record how far MemWAL shards are compacted."""

    compacted_sstables: tuple[CompactedSsTable, ...] = ()
    others: bytes = _others()


@attrs.frozen
class Clone(Operation):
    """Create the table from a version of another table."""

    is_shallow: bool = False
    ref_name: str | None = None
    ref_version: int = 0
    ref_path: str = ""
    branch_name: str | None = None
    others: bytes = _others()


@attrs.frozen
class UpdateBases(Operation):
    """Add base paths, or give existing base paths other places by their ids."""

    new_bases: tuple[BasePath, ...] = ()
    others: bytes = _others()


@attrs.frozen
class DataOverlayGroup:
    """Overlay files to attach to a fragment."""

    fragment_id: int = 0
    overlays: tuple[DataOverlayFile, ...] = ()
    others: bytes = _others()


@attrs.frozen
class DataOverlay(Operation):
    """Attach overlay files to fragments."""

    groups: tuple[DataOverlayGroup, ...] = ()
    others: bytes = _others()


@attrs.frozen
class AppendFragmentReuseTransitions(Operation):
    """Append encoded transitions to the history of the fragment reuse index."""

    transitions: tuple[bytes, ...] = ()
    others: bytes = _others()


@attrs.frozen
class Transaction:
    """A change of one table.

    Attributes:
        read_version: the version that the change was built on.
        uuid: the id of the transaction.
        tag: a tag for the new version.
        transaction_properties: text that the writer attaches to the transaction.
        operation: the change; None if it is of a kind that this release does not know.
        others: encoded unknown fields, an unknown operation among them.
    """

    read_version: int = 0
    uuid: str = ""
    tag: str = ""
    transaction_properties: Mapping[str, str] = _NOTHING
    operation: Operation | None = None
    others: bytes = _others()

    @property
    def new_fragments(self) -> tuple[Fragment, ...]:
        """The fragments of new rows and of rewritten rows."""
        match self.operation:
            case Append() | Overwrite() as operation:
                return operation.fragments
            case Rewrite() as operation:
                return tuple(fragment for group in operation.groups for fragment in group.new_fragments)
            case Update() as operation:
                return operation.new_fragments
        return ()


def without_updates_of_removed(operation: Operation | None) -> Operation | None:
    """Return a change of rows that updates no fragment that it removes.

    The engine records both if its rebase empties a fragment: the change deletes all rows that others have left.
    """
    match operation:
        case Delete(deleted_fragment_ids=removed) | Update(removed_fragment_ids=removed):
            kept = (fragment for fragment in operation.updated_fragments if fragment.id not in removed)
            return attrs.evolve(operation, updated_fragments=tuple(kept))
    return operation
