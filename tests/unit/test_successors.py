"""Each version that Lancekeep builds keeps the fields of the manifest before it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lancekeep.domain import operations
from lancekeep.domain.operations import Transaction
from lancekeep.format.append import Appendable, NewFile, layout_of
from lancekeep.format.clone import deep_clone, materialized, shallow_clone
from lancekeep.format.fence import fence, without_fence
from lancekeep.format.manifest import OF_ONE_VERSION, file_of, parse_message
from lancekeep.format.messages import Manifest
from lancekeep.format.next_version import next_version
from lancekeep.format.table_version import TableVersion
from lancekeep.format.tiering import PlacedFile, moved, with_base

UUID = "00000000-0000-4000-8000-000000000001"
NOW = 1_700_000_000_000_000_123
BASE = "s3://cold/t"
UNKNOWN = bytes([200 & 127 | 128 | 2, 12, 3]) + b"new"
"""A field of bytes that no release defines."""
CHANGED = {"version", "timestamp", "transaction_file", "fragments", "max_fragment_id", "next_row_id", "base_paths"}
"""Fields that one of the operations changes; each test of an operation judges them."""
FLAGS = {"reader_feature_flags", "writer_feature_flags"}


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A manifest with every field that a table may have, and one that a later release may add."""
    path = tmp_path_factory.mktemp("successors") / "t"
    dataset = lance.write_dataset(pa.table({"id": [1, 2, 3]}), str(path))
    dataset.update_config({"mine": "1"})
    dataset.update_metadata({"theirs": "2"})
    dataset.update_schema_metadata({"schema": "3"})
    [last, *_] = sorted(Path(path, "_versions").glob("*.manifest"))
    message = parse_message(Manifest, last.read_bytes())
    for field in OF_ONE_VERSION:
        message.ClearField(field)
    message.tag, message.version_aux_data, message.transaction_file = "label", 7, "1-x.txn"
    message.blob_dataset_version = 3
    message.writer_version.prerelease = "beta.1"
    return file_of(message.SerializeToString() + UNKNOWN)


def appended(content: bytes) -> bytes:
    version = Appendable.parse(content, "t")
    file = NewFile("own.lance", 9, 3, layout_of(content, version, "t"))
    return version.followed_by(file, version.adding(file, UUID), NOW, "t")[1].content


def committed(operation: Any) -> Callable[[bytes], bytes]:
    def commit(content: bytes) -> bytes:
        base = TableVersion.parse(content, "t")
        transaction = Transaction(base.manifest.version, UUID, operation=operation)
        return next_version(base, transaction, NOW, "t", base).content

    return commit


def content_of(built: Any) -> bytes:
    assert built is not None
    return bytes(built.content)


def based(content: bytes) -> bytes:
    return content_of(with_base(content, "t", BASE, UUID, NOW))


def tiered(content: bytes) -> bytes:
    [file] = parse_message(Manifest, content).fragments[0].files
    return content_of(moved(based(content), "t", {PlacedFile(None, file.path): "new.lance"}, BASE, UUID, NOW))


SUCCESSORS: dict[str, Callable[[bytes], bytes]] = {
    "append": appended,
    "shallow clone": lambda content: shallow_clone(content, "t", "/source", UUID, NOW).content,
    "deep clone": lambda content: deep_clone(content, "t", "/source", UUID, NOW).content,
    "materialized clone": lambda content: content_of(materialized(based(content), "t", UUID, NOW)),
    "fence": lambda content: fence(content, "t", UUID, NOW, "new").content,
    "end of a fence": lambda content: without_fence(content, "t", UUID, NOW, "new").content,
    "base path": based,
    "tier": tiered,
    "next version": committed(operations.ReserveFragments(1)),
    "restore": committed(operations.Restore(1)),
}


@pytest.mark.parametrize("operation", SUCCESSORS)
def test_next_version_keeps_the_fields_of_the_table(content: bytes, operation: str) -> None:
    before, after = (parse_message(Manifest, each) for each in (content, SUCCESSORS[operation](content)))
    kept = {field.name for field in Manifest.DESCRIPTOR.fields} - {"branch", *CHANGED, *FLAGS, *OF_ONE_VERSION}
    assert kept <= {field.name for field, _ in before.ListFields()}, "the fixture lacks a field of manifests"
    assert (after.tag, after.version_aux_data) == ("", 0)
    assert after.transaction_file != before.transaction_file
    for message in (before, after):
        for field in CHANGED | FLAGS | {*OF_ONE_VERSION}:
            message.ClearField(field)
    assert after == before
    assert after.SerializeToString().endswith(UNKNOWN)
