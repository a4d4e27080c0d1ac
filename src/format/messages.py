"""Protobuf messages of the Lance table format.

Protobuf keeps the fields that a definition does not name, and writes them again. The outlines name only some fields,
because their users need no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

_REST_OF_MANIFEST = (
    "version=3:uint64 version_aux_data=4:uint64 "
    "schema_metadata=5:Metadata* index_section=6:uint64 timestamp=7:Timestamp tag=8:string "
    "reader_feature_flags=9:uint64 writer_feature_flags=10:uint64 max_fragment_id=11:uint32 transaction_file=12:string "
    "writer_version=13:WriterVersion next_row_id=14:uint64 data_format=15:DataStorageFormat config=16:Property* "
    "blob_dataset_version=17:uint64 base_paths=18:BasePath* table_metadata=19:Property* branch=20:string "
    "transaction_section_21=21:uint64 transaction_section=23:uint64"
)

_MESSAGES = {
    "Manifest": f"fields=1:Field* fragments=2:DataFragment* {_REST_OF_MANIFEST}",
    "ManifestOfVersion": f"fields=1:Field* fragments=2:bytes* {_REST_OF_MANIFEST}",
    "ManifestOutline": "fields=1:bytes* fragments=2:bytes* index_section=6:uint64 transaction_file=12:string "
    "base_paths=18:BasePath* transaction_section=23:uint64",
    "ManifestTail": "fields=1:bytes* fragments=2:bytes* version=3:uint64 version_aux_data=4:uint64 "
    "index_section=6:uint64 timestamp=7:Timestamp tag=8:string reader_feature_flags=9:uint64 "
    "writer_feature_flags=10:uint64 max_fragment_id=11:uint32 transaction_file=12:string next_row_id=14:uint64 "
    "data_format=15:DataStorageFormat config=16:Property* base_paths=18:BasePath* branch=20:string "
    "transaction_section_21=21:uint64 transaction_section=23:uint64",
    "WriterVersion": "library=1:string version=2:string prerelease=3:string build_metadata=4:string",
    "Field": "type=1:uint32 name=2:string id=3:int32 parent_id=4:int32 logical_type=5:string nullable=6:bool "
    "encoding=7:uint32 dictionary=8:Dictionary extension_name=9:string metadata=10:Metadata* storage_class=11:string "
    "unenforced_primary_key=12:bool unenforced_primary_key_position=13:uint32 unenforced_clustering_key=14:bool "
    "unenforced_clustering_key_position=15:uint32",
    "Dictionary": "offset=1:int64 length=2:int64",
    "DataFragment": "id=1:uint64 files=2:DataFile* deletion_file=3:DeletionFile physical_rows=4:uint64 "
    "inline_row_ids=5:bytes external_row_ids=6:ExternalFile "
    "inline_last_updated_at_versions=7:bytes external_last_updated_at_versions=8:ExternalFile "
    "inline_created_at_versions=9:bytes external_created_at_versions=10:ExternalFile overlays=11:DataOverlayFile*",
    "DataFile": "path=1:string fields=2:int32* column_indices=3:int32* file_major_version=4:uint32 "
    "file_minor_version=5:uint32 file_size_bytes=6:uint64 base_id=7:uint32",
    "DataOverlayFile": "data_file=1:DataFile shared_offset_bitmap=2:bytes committed_version=3:uint64 "
    "field_coverage=4:FieldCoverage",
    "FieldCoverage": "offset_bitmaps=1:bytes*",
    "DeletionFile": "file_type=1:uint32 read_version=2:uint64 id=3:uint64 num_deleted_rows=4:uint64 base_id=7:uint32",
    "ExternalFile": "path=1:string offset=2:uint64 size=3:uint64",
    "DataStorageFormat": "file_format=1:string version=2:string",
    "BasePath": "id=1:uint32 name=2:string is_dataset_root=3:bool path=4:string",
    "Timestamp": "seconds=1:int64 nanos=2:int32",
    "Property": "key=1:string value=2:string",
    "Metadata": "key=1:string value=2:bytes",
    "IndexSection": "indices=1:IndexMetadata*",
    "IndexMetadata": "uuid=1:Uuid fields=2:int32* name=3:string dataset_version=4:uint64 fragment_bitmap=5:bytes "
    "index_details=6:Details index_version=7:int32 created_at=8:uint64 base_id=9:uint32 files=10:IndexFile* "
    "covering_fields=11:int32*",
    "Details": "type_url=1:string value=2:bytes",
    "IndexFile": "path=1:string size_bytes=2:uint64",
    "FragmentReuseIndexDetails": "inline=1:bytes external=2:ExternalFile",
    "MemWalIndexDetails": "compacted_sstables=9:CompactedSsTable*",
    "ShardManifest": "replay_after_wal_entry_position=3:uint64 sstables=8:SsTable*",
    "SsTable": "generation=1:uint64",
    "Uuid": "uuid=1:bytes",
    "Transaction": "read_version=1:uint64 uuid=2:string tag=3:string transaction_properties=4:Property* "
    "append=100:Append delete=101:Delete overwrite=102:Overwrite create_index=103:CreateIndex rewrite=104:Rewrite "
    "merge=105:Merge restore=106:Restore reserve_fragments=107:ReserveFragments update=108:Update project=109:Project "
    "update_config=110:UpdateConfig data_replacement=111:DataReplacement update_mem_wal_state=112:UpdateMemWalState "
    "clone=113:Clone update_bases=114:UpdateBases data_overlay=115:DataOverlay "
    "append_fri_transitions=116:AppendFragmentReuseTransitions",
    "RowIdSequence": "segments=1:RowSegment*",
    "RowSegment": "range=1:RowRange range_with_holes=2:RowRangeWithHoles range_with_bitmap=3:RowRangeWithBitmap "
    "sorted_array=4:RowArray array=5:RowArray",
    "RowRange": "start=1:uint64 end=2:uint64",
    "RowRangeWithHoles": "start=1:uint64 end=2:uint64 holes=3:RowArray",
    "RowRangeWithBitmap": "start=1:uint64 end=2:uint64 bitmap=3:bytes",
    "RowArray": "u16_array=1:RowOffsets u32_array=2:RowOffsets u64_array=3:RowValues",
    "RowOffsets": "base=1:uint64 offsets=2:bytes",
    "RowValues": "values=2:bytes",
    "RowVersionSequence": "runs=1:RowVersionRun*",
    "RowVersionRun": "span=1:RowSegment version=2:uint64",
    "Append": "fragments=1:DataFragment*",
    "Delete": "updated_fragments=1:DataFragment* deleted_fragment_ids=2:uint64* predicate=3:string",
    "Overwrite": "fragments=1:DataFragment* schema=2:Field* schema_metadata=3:Metadata* "
    "config_upsert_values=4:Property* initial_bases=5:BasePath*",
    "CreateIndex": "new_indices=1:IndexMetadata* removed_indices=2:IndexMetadata*",
    "Rewrite": "old_fragments=1:DataFragment* new_fragments=2:DataFragment* groups=3:RewriteGroup* "
    "rewritten_indices=4:RewrittenIndex*",
    "RewriteGroup": "old_fragments=1:DataFragment* new_fragments=2:DataFragment*",
    "RewrittenIndex": "old_id=1:Uuid new_id=2:Uuid new_index_details=3:Details new_index_version=4:uint32 "
    "new_index_files=5:IndexFile*",
    "Merge": "fragments=1:DataFragment* schema=2:Field* schema_metadata=3:Metadata* preserves_nullability=4:bool",
    "Restore": "version=1:uint64",
    "ReserveFragments": "num_fragments=1:uint32",
    "Update": "removed_fragment_ids=1:uint64* updated_fragments=2:DataFragment* new_fragments=3:DataFragment* "
    "fields_modified=4:uint32* compacted_sstables=5:CompactedSsTable* fields_for_preserving_frag_bitmap=6:uint32* "
    "update_mode=7:uint32 inserted_rows=8:KeyExistenceFilter updated_fragment_offsets=9:OffsetsEntry* "
    "updated_fragment_offset_bitmaps=10:BitmapEntry*",
    "CompactedSsTable": "shard_id=1:Uuid generation=2:uint64",
    "KeyExistenceFilter": "field_ids=1:int32* exact=2:ExactKeySetFilter bloom=3:BloomFilter",
    "ExactKeySetFilter": "key_hashes=1:uint64*",
    "BloomFilter": "bitmap=1:bytes num_bits=2:uint32 number_of_items=3:uint64 probability=4:double",
    "OffsetsEntry": "key=1:uint64 value=2:OffsetList",
    "OffsetList": "values=1:uint32*",
    "BitmapEntry": "key=1:uint64 value=2:bytes",
    "Project": "schema=1:Field* preserves_nullability=2:bool",
    "UpdateConfig": "upsert_values=1:Property* delete_keys=2:string* schema_metadata=3:Property* "
    "field_metadata=4:FieldMetadataEntry* config_updates=6:UpdateMap table_metadata_updates=7:UpdateMap "
    "schema_metadata_updates=8:UpdateMap field_metadata_updates=9:FieldUpdatesEntry*",
    "FieldMetadataEntry": "key=1:uint32 value=2:FieldMetadataUpdate",
    "FieldMetadataUpdate": "metadata=5:Property*",
    "FieldUpdatesEntry": "key=1:int32 value=2:UpdateMap",
    "UpdateMap": "update_entries=1:UpdateMapEntry* replace=2:bool",
    "UpdateMapEntry": "key=1:string value=2:string",
    "DataReplacement": "replacements=1:DataReplacementGroup*",
    "DataReplacementGroup": "fragment_id=1:uint64 new_file=2:DataFile",
    "UpdateMemWalState": "compacted_sstables=1:CompactedSsTable*",
    "Clone": "is_shallow=1:bool ref_name=2:string ref_version=3:uint64 ref_path=4:string branch_name=5:string",
    "UpdateBases": "new_bases=1:BasePath*",
    "DataOverlay": "groups=1:DataOverlayGroup*",
    "DataOverlayGroup": "fragment_id=1:uint64 overlays=2:DataOverlayFile*",
    "AppendFragmentReuseTransitions": "transitions=1:bytes*",
}
"""See `message_classes`."""


def message_classes(package: str, messages: Mapping[str, str]) -> dict[str, Any]:
    """Return protobuf classes for messages.

    Each field is written as ``name=number:type``, and a star after the type marks a repeated field. Every field has
    presence, and a string that is not UTF-8 is an error.
    """
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package}.proto", package=package, syntax="editions", edition=descriptor_pb2.EDITION_2023
    )
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field in fields.split():
            field_name, _, rest = field.partition("=")
            number, _, kind = rest.partition(":")
            label = kinds.LABEL_REPEATED if kind.endswith("*") else kinds.LABEL_OPTIONAL
            kind = kind.removesuffix("*")
            added = message.field.add(name=field_name, number=int(number), label=label)
            if kind in messages:
                added.type, added.type_name = kinds.TYPE_MESSAGE, f".{package}.{kind}"
            else:
                added.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    get_class = message_factory.GetMessageClass
    return {name: get_class(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}


MESSAGES: Mapping[str, Any] = message_classes("lancekeep.table", _MESSAGES)
"""The protobuf class of each message."""
Manifest: Any = MESSAGES["Manifest"]
ManifestOutline: Any = MESSAGES["ManifestOutline"]
"""A manifest whose schema fields and fragments stay encoded: a table of 100,000 fragments decodes in milliseconds."""
ManifestOfVersion: Any = MESSAGES["ManifestOfVersion"]
"""A manifest whose fragments stay encoded, which takes no more memory than its file."""
ManifestTail: Any = MESSAGES["ManifestTail"]
"""A manifest whose schema fields and fragments stay encoded, and whose other fields an append changes."""
Field: Any = MESSAGES["Field"]
DataFile: Any = MESSAGES["DataFile"]
DataFragment: Any = MESSAGES["DataFragment"]
RowIdSequence: Any = MESSAGES["RowIdSequence"]
RowVersionSequence: Any = MESSAGES["RowVersionSequence"]
IndexSection: Any = MESSAGES["IndexSection"]
Transaction: Any = MESSAGES["Transaction"]


def parse(kind: Any, content: bytes | memoryview) -> Any:
    """Decode a message of a class.

    Raises `ValueError` if the bytes are not such a message.
    """
    try:
        return kind.FromString(content)
    except DecodeError as error:
        raise ValueError(str(error)) from error


def uuid_text(content: bytes) -> str:
    """Return the text of a UUID.

    Raises `ValueError` unless it has 16 bytes.
    """
    digits = content.hex()
    if len(content) != 16:
        raise ValueError(f"an id is the UUID {digits!r}; expected 16 bytes")
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
