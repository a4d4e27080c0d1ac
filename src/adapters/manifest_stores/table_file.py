"""Manifest files of a Lance table (table format, "Manifest"): what the catalog's own table needs to read and write.

A file is a section of index metadata (where there are indexes), the transaction, the manifest, each behind its length
in four bytes, and a footer that says where the manifest begins. The messages below name the fields that are used here;
whatever else a message holds is kept as it is when it is written again.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import attrs
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from lancekeep.domain.errors import Damaged

_MESSAGES = {
    "Manifest": "fields=1:Field* fragments=2:DataFragment* version=3:uint64 version_aux_data=4:uint64 "
    "schema_metadata=5:Metadata* index_section=6:uint64 timestamp=7:Timestamp tag=8:string "
    "reader_feature_flags=9:uint64 writer_feature_flags=10:uint64 max_fragment_id=11:uint32 transaction_file=12:string "
    "data_format=15:DataStorageFormat table_metadata=19:Property* transaction_section=23:uint64",
    "Field": "name=2:string id=3:int32 parent_id=4:int32 logical_type=5:string nullable=6:bool",
    "DataFragment": "id=1:uint64 files=2:DataFile* deletion_file=3:DeletionFile physical_rows=4:uint64",
    "DataFile": "path=1:string fields=2:int32* column_indices=3:int32* file_major_version=4:uint32 "
    "file_minor_version=5:uint32 file_size_bytes=6:uint64 base_id=7:uint32",
    "DeletionFile": "file_type=1:uint32 read_version=2:uint64 id=3:uint64 num_deleted_rows=4:uint64 base_id=7:uint32",
    "DataStorageFormat": "file_format=1:string version=2:string",
    "Timestamp": "seconds=1:int64 nanos=2:int32",
    "Property": "key=1:string value=2:string",
    "Metadata": "key=1:string value=2:bytes",
    "IndexSection": "indices=1:IndexMetadata*",
    "IndexMetadata": "uuid=1:Uuid",
    "Uuid": "uuid=1:bytes",
    "Transaction": "read_version=1:uint64 uuid=2:string append=100:Append delete=101:Delete overwrite=102:Overwrite "
    "update=108:Update update_config=110:UpdateConfig",
    "Append": "fragments=1:DataFragment*",
    "Delete": "updated_fragments=1:DataFragment* deleted_fragment_ids=2:uint64* predicate=3:string",
    "Overwrite": "fragments=1:DataFragment* schema=2:Field*",
    "Update": "removed_fragment_ids=1:uint64* updated_fragments=2:DataFragment* new_fragments=3:DataFragment*",
    "UpdateConfig": "table_metadata_updates=7:UpdateMap schema_metadata_updates=8:UpdateMap",
    "UpdateMap": "update_entries=1:Property*",
}
"""See `message_classes`. Field 23 of the manifest is what pylance 14 writes; older texts: 21."""

_FOOTER = struct.Struct("<QHH4s")
_LENGTH = struct.Struct("<I")
MAGIC = b"LANC"
_FORMAT_VERSION = (0, 2)


def message_classes(package: str, messages: Mapping[str, str]) -> dict[str, Any]:
    """Classes for messages whose fields are told as ``name=number:type``, repeated with a star."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto2")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field in fields.split():
            field_name, _, rest = field.partition("=")
            number, _, kind = rest.partition(":")
            repeated = kind.endswith("*")
            kind = kind.removesuffix("*")
            label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            added = message.field.add(name=field_name, number=int(number), label=label)
            if kind in messages:
                added.type, added.type_name = kinds.TYPE_MESSAGE, f".{package}.{kind}"
            else:
                added.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
                added.options.packed = repeated and kind not in ("bytes", "string")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    get_class = message_factory.GetMessageClass
    return {name: get_class(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}


_CLASSES = message_classes("lancekeep.table", _MESSAGES)
Manifest: Any = _CLASSES["Manifest"]
Transaction: Any = _CLASSES["Transaction"]
DataFragment: Any = _CLASSES["DataFragment"]
IndexSection: Any = _CLASSES["IndexSection"]


@attrs.frozen
class TableFile:
    """A manifest file, understood: the manifest message, and the section of index metadata as it is (or None)."""

    manifest: Any
    indexes: bytes | None

    @staticmethod
    def parse(content: bytes, name: str) -> TableFile:
        """Raises `Damaged`, naming ``name``."""
        try:
            position, _, _, magic = _FOOTER.unpack_from(content, len(content) - _FOOTER.size)
            if magic != MAGIC:
                raise ValueError(f"it ends in {magic!r}")
            manifest = Manifest.FromString(_section(content, position))
            indexes = _section(content, manifest.index_section) if manifest.HasField("index_section") else None
        except (ValueError, OverflowError, struct.error, DecodeError) as error:
            raise Damaged(f"{name} is not a manifest of a Lance table: {error}") from error
        return TableFile(manifest, indexes)

    def serialize(self, transaction: Any) -> bytes:
        """The file with ``transaction`` inside; sets the positions of the sections in the manifest."""
        parts = bytearray()
        self.manifest.ClearField("index_section")
        if self.indexes is not None:
            self.manifest.index_section = len(parts)
            parts += _LENGTH.pack(len(self.indexes)) + self.indexes
        self.manifest.transaction_section = len(parts)
        recorded = transaction.SerializeToString()
        parts += _LENGTH.pack(len(recorded)) + recorded
        position = len(parts)
        manifest = self.manifest.SerializeToString()
        parts += _LENGTH.pack(len(manifest)) + manifest + _FOOTER.pack(position, *_FORMAT_VERSION, MAGIC)
        return bytes(parts)


def _section(content: bytes, position: int) -> bytes:
    (length,) = _LENGTH.unpack_from(content, position)
    section = content[position + _LENGTH.size : position + _LENGTH.size + length]
    if len(section) != length:
        raise ValueError(f"a section of {length} bytes at {position} leaves the file of {len(content)}")
    return section
