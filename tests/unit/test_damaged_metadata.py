"""Metadata files of a table, truncated at every byte and with every bit flipped.

A reader may find the damage, or return values if the changed bytes are only data. It never raises another error.
"""

from __future__ import annotations

import resource
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lancekeep.domain.errors import Damaged, Unsupported
from lancekeep.domain.manifest import DeletionFile, DeletionFileType, Fragment
from lancekeep.format.data_footer import DataFileFooter, TooShort, read_footer
from lancekeep.format.deletions import decode_bitmap, read
from lancekeep.format.file_references import file_references
from lancekeep.format.json_files import parse_reference
from lancekeep.format.row_ids import decode_row_ids
from lancekeep.format.schema import arrow_schema
from lancekeep.format.table_version import TableVersion, parse_transaction

TABLE = Path(__file__).parents[1] / "fixtures" / "tables" / "14.0.2.zip"
NAME = "the/file"
BITS = 8
MOST_CASES = 1000
"""Of longer files, every n-th byte and bit is damaged, and the first and last bytes all."""


def files() -> dict[str, bytes]:
    with zipfile.ZipFile(TABLE) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def manifest(content: bytes) -> None:
    """Decode everything that a manifest file contains."""
    version = TableVersion.parse(content, NAME)
    for fragment in version.manifest.fragments:
        row_ids(fragment)
    list(file_references(content, NAME))
    try:
        arrow_schema(version.manifest.fields, version.manifest.schema_metadata)
        for index in version.indices:
            decode_bitmap(index.fragment_bitmap, 1000)
    except ValueError as error:
        raise Damaged(f"{NAME}: {error} at byte 0") from error


def row_ids(fragment: Fragment) -> None:
    if fragment.inline_row_ids is not None and fragment.physical_rows <= 100_000:
        decode_row_ids(fragment.inline_row_ids, fragment.physical_rows, NAME)


def deletion(path: str) -> Callable[[bytes], Any]:
    kind = DeletionFileType.BITMAP if path.endswith(".bin") else DeletionFileType.ARROW_ARRAY
    return lambda content: read(content, DeletionFile(kind, num_deleted_rows=5_333 if kind else 2), 8000, NAME)


def reader_of(path: str) -> Callable[[bytes], Any] | None:
    if path.endswith(".manifest"):
        return manifest
    if path.startswith("_transactions/"):
        return lambda content: parse_transaction(content, NAME)
    if path.startswith("_deletions/"):
        return deletion(path)
    if path.startswith("_refs/"):
        return lambda content: parse_reference(content, NAME)
    return None


def damaged(content: bytes) -> list[bytes]:
    step = max(1, len(content) * (BITS + 1) // MOST_CASES)
    cases = [content[:size] for size in range(0, len(content), step)] + [content[:-1]]
    bits = [*range(0, len(content) * BITS, step), *range(max(0, len(content) - 20) * BITS, len(content) * BITS)]
    for bit in bits:
        flipped = bytearray(content)
        flipped[bit // BITS] ^= 1 << bit % BITS
        cases.append(bytes(flipped))
    return cases


FILES = {path: content for path, content in files().items() if reader_of(path)}


def refusal(read_it: Callable[[bytes], Any], content: bytes) -> str:
    """Return the message of a refusal; empty if the content was decoded. Other errors pass."""
    try:
        read_it(content)
    except (Damaged, Unsupported) as error:
        return str(error)
    return ""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.replace("18446744073709551", "v"))
def test_damaged_file_is_named_with_a_position(path: str) -> None:
    read_it = reader_of(path)
    assert read_it is not None
    read_it(FILES[path])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    messages = [message for content in damaged(FILES[path]) if (message := refusal(read_it, content))]
    assert all(NAME in message for message in messages)
    assert len(messages) > 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB


def test_damaged_data_file_is_named_with_a_position(tmp_path: Path) -> None:
    columns: dict[str, Any] = {"a": range(3), "s": [{"x": [1]}, None, {"x": []}]}
    lance.write_dataset(pa.table(columns), str(tmp_path / "t"))
    content = next((tmp_path / "t" / "data").iterdir()).read_bytes()
    footer = read_footer(content, len(content), NAME)
    assert isinstance(footer, DataFileFooter)
    assert ([field.name for field in footer.fields], footer.rows) == (["a", "s", "x", "item"], 3)
    assert read_from_tail(content) == footer
    read_it: Any = lambda each: read_footer(each, len(each), NAME)  # noqa: E731 - as the readers above
    messages = [message for each in damaged(content) if (message := refusal(read_it, each))]
    assert all(NAME in message for message in messages)
    assert len(messages) > 20


def read_from_tail(content: bytes) -> object:
    """Decode a footer by ever more of the last bytes of a file."""
    found, length = read_footer(b"", len(content), NAME), 0
    while isinstance(found, TooShort):
        assert found.needed > length
        length = found.needed
        found = read_footer(content[-length:], len(content), NAME)
    assert length < len(content)
    return found


def test_every_kind_of_file_is_damaged() -> None:
    kinds = {path.partition("/")[0] for path in FILES}
    assert kinds == {"_versions", "_transactions", "_deletions", "_refs"}
    assert {path.rpartition(".")[2] for path in FILES if path.startswith("_deletions")} == {"arrow", "bin"}
