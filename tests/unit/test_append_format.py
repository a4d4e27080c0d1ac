"""The manifest of an append, compared with the one that the Lance engine writes for the same append."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lancekeep.domain.appends import REBASED
from lancekeep.domain.errors import Damaged, Unsupported
from lancekeep.format.append import Appendable, NewFile, layout_of
from lancekeep.format.judge import Approved
from lancekeep.format.manifest import TRANSACTION_SECTIONS, file_of, parse_message, section_at
from lancekeep.format.messages import DataFragment, ManifestTail, Transaction, parse

ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "text": ["a", None, "c"],
        "vector": pa.array([[0.0, 1.0]] * 3, pa.list_(pa.float32(), 2)),
        "nested": [{"x": 1, "y": ["p"]}, None, {"x": 2, "y": []}],
    }
)
UUID = "00000000-0000-4000-8000-000000000001"


def manifest(dataset: lance.LanceDataset) -> bytes:
    return Path(dataset.uri, "_versions", f"{2**64 - 1 - dataset.version:020}.manifest").read_bytes()


def plain(path: Path) -> lance.LanceDataset:
    return lance.write_dataset(ROWS, str(path))


def with_row_ids(path: Path) -> lance.LanceDataset:
    dataset = lance.write_dataset(ROWS, str(path), enable_stable_row_ids=True)
    dataset.delete("id = 2")
    return dataset


def emptied(path: Path) -> lance.LanceDataset:
    dataset = lance.write_dataset(ROWS, str(path), enable_stable_row_ids=True)
    dataset.delete("true")
    return dataset


def indexed(path: Path) -> lance.LanceDataset:
    dataset = plain(path)
    dataset.create_scalar_index("id", "BTREE")
    return dataset


def altered(path: Path) -> lance.LanceDataset:
    dataset = plain(path)
    dataset.add_columns({"other": "id + 1"})
    dataset.drop_columns(["text"])
    renaming: Any = {"path": "nested", "name": "renamed"}  # the type wants every key
    dataset.alter_columns(renaming)
    return dataset


def configured(path: Path) -> lance.LanceDataset:
    dataset = plain(path)
    dataset.update_config({"mine": "1"})
    dataset.update_metadata({"theirs": "2"})
    dataset.update_schema_metadata({"schema": "3"})
    return dataset


KINDS = [plain, with_row_ids, emptied, indexed, altered, configured]


def encoded_by_hand(dataset: lance.LanceDataset, rows: pa.Table, scratch: Path) -> tuple[Appendable, bytes]:
    """Append rows as a data file that a scratch dataset has written."""
    version = Appendable.parse(manifest(dataset), "t")
    example = lance.write_dataset(rows, str(scratch), data_storage_version=version.storage_version)  # type: ignore[arg-type]
    [data] = Path(scratch, "data").iterdir()
    shutil.copy(data, Path(dataset.uri, "data", "own.lance"))
    file = NewFile("own.lance", data.stat().st_size, len(rows), layout_of(manifest(example), version, "t"))
    following, built = followed_by(version, file, 1_700_000_000_000_000_123)
    return following, built.content


def followed_by(version: Appendable, file: NewFile, now: int) -> tuple[Appendable, Approved]:
    return version.followed_by(file, version.adding(file, UUID), now, "t")


@pytest.mark.parametrize("kind", KINDS)
def test_the_manifest_equals_that_of_the_engine(kind: Callable[[Path], lance.LanceDataset], tmp_path: Path) -> None:
    dataset = kind(tmp_path / "t")
    shutil.copytree(tmp_path / "t", tmp_path / "own")
    own = lance.dataset(str(tmp_path / "own"))
    rows = dataset.to_table() if dataset.count_rows() else ROWS
    following, content = encoded_by_hand(own, rows, tmp_path / "scratch")
    native = lance.write_dataset(rows, dataset.uri, mode="append", transaction_properties=dict([REBASED]))

    assert normal(content) == normal(manifest(native))
    assert transaction(content) == transaction(manifest(native))
    before = own.to_table(with_row_id=True)
    Path(own.uri, "_versions", f"{2**64 - 1 - following.version:020}.manifest").write_bytes(content)
    read = lance.dataset(own.uri)
    assert read.version == native.version == following.version
    assert read.to_table(with_row_id=True) == native.to_table(with_row_id=True)
    assert read.to_table(with_row_id=True).slice(0, len(before)) == before
    assert len(read.describe_indices()) == len(native.describe_indices())
    assert len(read.delta(compared_against=own.version).list_transactions()) == 1
    read.optimize.compact_files()
    assert lance.write_dataset(rows, own.uri, mode="append").count_rows() == native.count_rows() + len(rows)


def normal(content: bytes) -> Any:
    """Return a manifest message without ids and times."""
    message = parse_message(ManifestTail, content)
    message.ClearField("timestamp")
    for field in TRANSACTION_SECTIONS:  # the names of data files have other lengths, and the engine sets one field
        message.ClearField(field)
    message.transaction_file = message.transaction_file.partition("-")[0]
    last = parse(DataFragment, message.fragments[-1])
    for file in last.files:
        file.path = "file"
    message.fragments[-1] = last.SerializeToString()
    return message


def transaction(content: bytes) -> Any:
    found = parse(Transaction, section_at(content, parse_message(ManifestTail, content).transaction_section))
    found.uuid = ""
    for fragment in found.append.fragments:
        for file in fragment.files:
            file.path = "file"
    return found


UNKNOWN = st.lists(
    st.tuples(st.integers(30, 500), st.binary(max_size=20)).map(lambda field: wire(*field)), max_size=5
).map(b"".join)


def wire(number: int, content: bytes) -> bytes:
    """Return a field of bytes as protobuf encodes it."""
    key = number << 3 | 2
    return bytes([key & 127 | 128, key >> 7, len(content)]) + content


@given(UNKNOWN, st.binary(min_size=1, max_size=30), st.integers(1, 1000))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_unknown_fields_and_the_index_section_are_kept(
    template: bytes, unknown: bytes, index: bytes, rows: int
) -> None:
    message = parse_message(ManifestTail, template)
    message.index_section = 0
    section = wire(99, index)
    content = file_of(message.SerializeToString() + unknown, section)
    first, second = (NewFile(name, 9, rows, layout_of(template, Appendable.parse(template, "t"), "t")) for name in "fg")
    following, built = followed_by(Appendable.parse(content, "t"), first, 7)
    written = built.content

    found = parse_message(ManifestTail, written)
    assert section_at(written, found.index_section) == section
    assert unknown_in(written) == unknown_in(content)
    assert unknown_in(content).endswith(unknown)
    assert list(found.fragments)[:-1] == list(message.fragments)
    assert list(found.fields) == list(message.fields)
    added = parse(DataFragment, found.fragments[-1])
    assert (added.id, added.physical_rows, found.version) == (1, rows, message.version + 1)
    assert found.max_fragment_id == 1
    again = Appendable.parse(written, "t")
    assert followed_by(again, second, 8)[1] == followed_by(following, second, 8)[1]


def unknown_in(content: bytes) -> bytes:
    """Return the fields of a manifest message that this release does not know."""
    message = parse_message(ManifestTail, content)
    for field, _ in message.ListFields():
        message.ClearField(field.name)
    return bytes(message.SerializeToString())


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return manifest(plain(tmp_path_factory.mktemp("template") / "t"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"reader_feature_flags": 64}, "features 64"),
        ({"writer_feature_flags": 16}, "features 16"),
        ({"branch": "b"}, "branch"),
        ({"base_paths": [{"id": 1}]}, "other places"),
        ({"data_format": {"file_format": "lance", "version": "0.1"}}, "lance 0.1"),
        ({"config": [{"key": "lance.auto_cleanup.interval", "value": "20"}]}, "clean up"),
        ({"reader_feature_flags": 2}, "next row id"),
        ({"max_fragment_id": 2**32 - 1}, "fragment ids"),
    ],
)
def test_an_append_that_needs_more_is_left_to_the_engine(template: bytes, change: Any, reason: str) -> None:
    message = parse_message(ManifestTail, template)
    for name in change:
        message.ClearField(name)
    message.MergeFrom(ManifestTail(**change))
    with pytest.raises(Unsupported, match=reason):
        Appendable.parse(file_of(message.SerializeToString()), "t")


def test_columns_with_metadata_are_left_to_the_engine(tmp_path: Path) -> None:
    field = pa.field("a", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    dataset = lance.write_dataset(pa.table([pa.array([b"x"], pa.large_binary())], pa.schema([field])), tmp_path / "t")
    with pytest.raises(Unsupported, match="column a"):
        Appendable.parse(manifest(dataset), "t")


def test_bytes_that_are_no_manifest_are_damaged(template: bytes) -> None:
    for content in (b"", template[:-1], template[:20] + template[-16:]):
        with pytest.raises(Damaged, match="no-manifest"):
            Appendable.parse(content, "no-manifest")
