"""Protobuf messages of the Lance table format.

A definition names only the fields in use. Protobuf keeps all other fields of a message when it is written again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

_MESSAGES = {
    "Manifest": "fields=1:Field* fragments=2:DataFragment* version=3:uint64 version_aux_data=4:uint64 "
    "schema_metadata=5:Metadata* index_section=6:uint64 timestamp=7:Timestamp tag=8:string "
    "reader_feature_flags=9:uint64 writer_feature_flags=10:uint64 max_fragment_id=11:uint32 transaction_file=12:string "
    "data_format=15:DataStorageFormat base_paths=18:BasePath* table_metadata=19:Property* branch=20:string "
    "transaction_section=23:uint64",
    "ManifestOutline": "fields=1:bytes* fragments=2:bytes* index_section=6:uint64 transaction_file=12:string "
    "base_paths=18:BasePath* transaction_section=23:uint64",
    "ManifestTail": "fields=1:bytes* fragments=2:bytes* version=3:uint64 version_aux_data=4:uint64 "
    "index_section=6:uint64 timestamp=7:Timestamp tag=8:string reader_feature_flags=9:uint64 "
    "writer_feature_flags=10:uint64 max_fragment_id=11:uint32 transaction_file=12:string next_row_id=14:uint64 "
    "data_format=15:DataStorageFormat config=16:Property* base_paths=18:BasePath* branch=20:string "
    "transaction_section=23:uint64",
    "Field": "name=2:string id=3:int32 parent_id=4:int32 logical_type=5:string nullable=6:bool metadata=10:Metadata*",
    "DataFragment": "id=1:uint64 files=2:DataFile* deletion_file=3:DeletionFile physical_rows=4:uint64 "
    "inline_row_ids=5:bytes inline_last_updated_at_versions=7:bytes inline_created_at_versions=9:bytes",
    "DataFile": "path=1:string fields=2:int32* column_indices=3:int32* file_major_version=4:uint32 "
    "file_minor_version=5:uint32 file_size_bytes=6:uint64 base_id=7:uint32",
    "DeletionFile": "file_type=1:uint32 read_version=2:uint64 id=3:uint64 num_deleted_rows=4:uint64 base_id=7:uint32",
    "DataStorageFormat": "file_format=1:string version=2:string",
    "BasePath": "id=1:uint32 is_dataset_root=3:bool path=4:string",
    "Timestamp": "seconds=1:int64 nanos=2:int32",
    "Property": "key=1:string value=2:string",
    "Metadata": "key=1:string value=2:bytes",
    "IndexSection": "indices=1:IndexMetadata*",
    "IndexMetadata": "uuid=1:Uuid name=3:string base_id=9:uint32 files=10:IndexFile*",
    "IndexFile": "path=1:string size_bytes=2:uint64",
    "Uuid": "uuid=1:bytes",
    "Transaction": "read_version=1:uint64 uuid=2:string append=100:Append delete=101:Delete overwrite=102:Overwrite "
    "create_index=103:Empty rewrite=104:Rewrite merge=105:Merge restore=106:Restore reserve_fragments=107:Empty "
    "update=108:Update project=109:Empty update_config=110:UpdateConfig data_replacement=111:DataReplacement "
    "clone=113:Clone",
    "RowIdSequence": "segments=1:RowSegment*",
    "RowSegment": "range=1:RowRange",
    "RowRange": "start=1:uint64 end=2:uint64",
    "RowVersionSequence": "runs=1:RowVersionRun*",
    "RowVersionRun": "span=1:RowSegment version=2:uint64",
    "Empty": "",
    "Append": "fragments=1:DataFragment*",
    "Delete": "updated_fragments=1:DataFragment* deleted_fragment_ids=2:uint64* predicate=3:string",
    "Overwrite": "fragments=1:DataFragment* schema=2:Field*",
    "Rewrite": "old_fragments=1:DataFragment* new_fragments=2:DataFragment* groups=3:RewriteGroup*",
    "RewriteGroup": "old_fragments=1:DataFragment* new_fragments=2:DataFragment*",
    "Merge": "fragments=1:DataFragment* schema=2:Field*",
    "Restore": "version=1:uint64",
    "Clone": "is_shallow=1:bool ref_version=3:uint64 ref_path=4:string",
    "Update": "removed_fragment_ids=1:uint64* updated_fragments=2:DataFragment* new_fragments=3:DataFragment*",
    "UpdateConfig": "table_metadata_updates=7:UpdateMap schema_metadata_updates=8:UpdateMap",
    "UpdateMap": "update_entries=1:Property*",
    "DataReplacement": "replacements=1:DataReplacementGroup*",
    "DataReplacementGroup": "new_file=2:DataFile",
}
"""See `message_classes`. pylance 14 writes the transaction section as field 23 of the manifest, older texts as 21."""


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


_CLASSES = message_classes("lancekeep.table", _MESSAGES)
Manifest: Any = _CLASSES["Manifest"]
ManifestOutline: Any = _CLASSES["ManifestOutline"]
"""A manifest whose schema fields and fragments stay encoded: a table of 100,000 fragments decodes in milliseconds."""
ManifestTail: Any = _CLASSES["ManifestTail"]
"""A manifest whose schema fields and fragments stay encoded, and whose other fields an append changes."""
Field: Any = _CLASSES["Field"]
DataFile: Any = _CLASSES["DataFile"]
DataFragment: Any = _CLASSES["DataFragment"]
RowIdSequence: Any = _CLASSES["RowIdSequence"]
RowVersionSequence: Any = _CLASSES["RowVersionSequence"]
IndexSection: Any = _CLASSES["IndexSection"]
Transaction: Any = _CLASSES["Transaction"]


def parse(kind: Any, content: bytes | memoryview) -> Any:
    """Decode a message of a class.

    Raises `ValueError` if the bytes are not such a message.
    """
    try:
        return kind.FromString(content)
    except DecodeError as error:
        raise ValueError(str(error)) from error
