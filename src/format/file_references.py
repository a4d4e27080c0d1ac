"""The files that a version needs.

Table format, "Manifest"; storage layout, "Base Path System".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator
from typing import Any

import attrs

from lancekeep.domain.dataset_files import (
    DATA,
    DELETIONS,
    INDICES,
    RANDOM_NAME,
    UUID,
    deletion_file_name,
    deletion_name,
)
from lancekeep.domain.errors import Damaged
from lancekeep.domain.file_references import FileReference
from lancekeep.domain.indexes import Content, index_kind
from lancekeep.domain.manifest import DeletionFile, DeletionFileType
from lancekeep.format.manifest import message_at, not_a_manifest, parse_message, parse_section, section_at
from lancekeep.format.messages import MESSAGES, DataFragment, IndexSection, ManifestOutline, parse, uuid_text
from lancekeep.format.values import decoded

_DATASET_BASE = b'\x18\x01"'
"""The fields before the path in a BasePath of a dataset: ``is_dataset_root`` is true, the path follows."""

# Lookaheads, because the length before a name may look like its first character.
_NAMES = re.compile(b"(?=(" + RANDOM_NAME + b"|" + UUID + b"))")
_INDEX_UUID = re.compile(rb"(?=\x0a\x10(.{16}))", re.DOTALL)  # message Uuid { bytes uuid = 1; }
_DELETION_ID = re.compile(rb"(?=\x18([\x80-\xff]{4,9}[\x01-\x7f]))")  # message DeletionFile { uint64 id = 3; }
_LONGEST_NAME = 50
"""The most bytes that one of these expressions matches."""
_BLOCK = 4096


def may_be_clone(content: bytes) -> bool:
    """Return whether a manifest may name files of another dataset.

    False is certain; if True, the manifest must be decoded.
    """
    return _DATASET_BASE in content


def file_references(content: bytes, name: str, *, but: Container[bytes] = ()) -> Iterator[FileReference]:
    """Yield the files that a version reads.

    One file is in memory at a time, because a manifest may name millions.

    Args:
        content: the bytes of the manifest file.
        name: the file, for messages.
        but: encoded fragments whose files are left out.

    Raises:
        Damaged: the content is not a manifest, or a file has a base path that the manifest does not define.
    """
    try:
        manifest = parse_message(ManifestOutline, content)
        bases = {base.id: base for base in manifest.base_paths if base.HasField("path")}
        for fragment in manifest.fragments:
            if fragment in but:
                continue
            for file, holder in _files_of(parse(DataFragment, fragment)):
                yield _placed(file, holder, bases, name)
        if manifest.HasField("index_section"):
            for index in parse_section(IndexSection, content, manifest.index_section).indices:
                for file in _files_of_index(index):
                    yield _placed(file, index, bases, name)
    except ValueError as error:
        raise not_a_manifest(name, error) from error


def added_references(before: bytes, after: bytes, name: str) -> Iterator[FileReference]:
    """Yield the files that a version reads and the version before it does not.

    Args:
        before: the bytes of the manifest file of the version before.
        after: the bytes of the manifest file of the version.
        name: the file of the version, for messages.

    Raises:
        Damaged: as `file_references`.
    """
    try:
        old, new = parse_message(ManifestOutline, before), parse_message(ManifestOutline, after)
    except ValueError as error:
        raise not_a_manifest(name, error) from error
    same = frozenset[bytes]()
    if [*old.base_paths] == [*new.base_paths]:
        same = frozenset(old.fragments).intersection(new.fragments)
    known = {(file.base, file.path) for file in file_references(before, name, but=same)}
    yield from (file for file in file_references(after, name, but=same) if (file.base, file.path) not in known)


@attrs.frozen
class OwnBytes:
    """What a version holds in the directory of its table.

    Attributes:
        size: The bytes of its data files and indexes, as far as the manifest states them.
        unsized: The data files whose size the manifest does not state.
    """

    size: int = 0
    unsized: frozenset[str] = frozenset()

    def exceeds(self, before: OwnBytes) -> bool:
        """Return whether the version may hold more than another version."""
        return self.size > before.size or not self.unsized <= before.unsized


def own_bytes(content: bytes, name: str) -> OwnBytes:
    """Return what a version holds in the directory of its table.

    Files at base paths belong to other tables, and deletion files are small.

    Args:
        content: the bytes of the manifest file.
        name: the file, for messages.

    Raises:
        Damaged: as `file_references`.
    """
    own = [file for file in file_references(content, name) if file.base is None and file.deletion is None]
    unsized = frozenset(file.path for file in own if file.size is None and file.fragment is not None)
    return OwnBytes(sum(file.size or 0 for file in own), unsized)


def base_paths(content: bytes, name: str) -> list[str]:
    """Return the base paths that a manifest defines, whether files use them or not.

    Args:
        content: the bytes of the manifest file.
        name: the file, for messages.

    Raises:
        Damaged: the content is not a manifest.
    """
    try:
        return [str(base.path) for base in parse_message(ManifestOutline, content).base_paths]
    except ValueError as error:
        raise not_a_manifest(name, error) from error


def names_in(content: bytes, name: str) -> set[bytes]:
    """Return the random names of all files that a version needs; see `FileNames`.

    Args:
        content: the bytes of the manifest file.
        name: the file, for messages.

    Raises:
        Damaged: the content is not a manifest.
    """
    found = FileNames()
    found.add(content, name)
    return found.names


class FileNames:
    """Collects the random names of all files that any of several versions needs.

    The search goes by the form of the names, not by the fields that hold them. It therefore finds names in fields that
    only later formats define, and a file whose name occurs anywhere in a manifest is never garbage. The transaction
    inside the file is left out, because it also names the files that the version replaced.

    A version usually differs from the version before it in a few bytes. Bytes that a manifest shares with the manifest
    added before it, at its beginning or its end, are not searched again.

    Attributes:
        names: The names.
    """

    def __init__(self) -> None:
        self.names: set[bytes] = set()
        self._message = self._indexes = b""

    def add(self, content: bytes, name: str) -> None:
        """Add the names in a manifest.

        Args:
            content: the bytes of the manifest file.
            name: the file, for messages.

        Raises:
            Damaged: the content is not a manifest; nothing was added.
        """
        try:
            message, indexes = message_at(content), b""
            manifest = parse_message(ManifestOutline, content)
            if manifest.HasField("index_section"):
                indexes = section_at(content, manifest.index_section)
        except ValueError as error:
            raise not_a_manifest(name, error) from error
        self._search(self._message, message)
        self._search(self._indexes, indexes)
        self._message, self._indexes = message, indexes

    def _search(self, before: bytes, section: bytes) -> None:
        """Add the names in a section that are not in the section before it."""
        begin, end = _difference(before, section)
        new = section[max(0, begin - _LONGEST_NAME) : end + _LONGEST_NAME]
        self.names.update(match[1] for match in _NAMES.finditer(new))
        self.names.update(uuid_text(match[1]).encode() for match in _INDEX_UUID.finditer(new))
        self.names.update(deletion_name(_varint(match[1])) for match in _DELETION_ID.finditer(new))


def _difference(before: bytes, after: bytes) -> tuple[int, int]:
    """Return where the part of ``after`` begins and ends that ``before`` lacks."""
    most = min(len(before), len(after))
    begin = _common(most, lambda at, to: before[at:to] == after[at:to])
    ends = len(before), len(after)
    same = _common(
        most - begin, lambda at, to: before[ends[0] - to : ends[0] - at] == after[ends[1] - to : ends[1] - at]
    )
    return begin, len(after) - same


def _common(most: int, are_equal: Callable[[int, int], bool]) -> int:
    """Return how many of ``most`` bytes are equal, counted from the first one."""
    at, step = 0, _BLOCK
    while at < most and step:
        if are_equal(at, min(at + step, most)):
            at = min(at + step, most)
        else:
            step //= 2
    return at


def _files_of(fragment: Any) -> Iterator[tuple[FileReference, Any]]:
    """Yield the files of a fragment, each with the message that holds its base path."""
    for file in fragment.files:
        if not file.HasField("path"):
            raise ValueError(f"a data file of fragment {fragment.id} has no path")
        yield FileReference(f"{DATA}/{file.path}", file.file_size_bytes or None, fragment=fragment.id), file
    if fragment.HasField("deletion_file"):
        held = decoded(DeletionFile, fragment.deletion_file)
        bitmap = held.file_type is DeletionFileType.BITMAP
        path = f"{DELETIONS}/{deletion_file_name(fragment.id, held.read_version, held.id, bitmap=bitmap)}"
        deletions = FileReference(path, fragment=fragment.id, deletion=held, rows=fragment.physical_rows)
        yield deletions, fragment.deletion_file


def _files_of_index(index: Any) -> Iterator[FileReference]:
    """Yield the files of an index, or its directory if the manifest does not list them."""
    directory = f"{INDICES}/{uuid_text(index.uuid.uuid)}"
    for file in index.files:
        yield FileReference(f"{directory}/{file.path}", file.size_bytes or None)
    if index.files:
        return
    match index_kind(index.name, index.index_details.type_url).content:
        case Content.FILES:
            yield FileReference(f"{directory}/")
        case Content.EITHER:
            details = parse(MESSAGES["FragmentReuseIndexDetails"], index.index_details.value)
            if details.HasField("external"):
                file = details.external
                yield FileReference(f"{directory}/{file.path}", file.offset + file.size or None)


def _placed(file: FileReference, holder: Any, bases: dict[int, Any], name: str) -> FileReference:
    """Return a file with the base path that ``holder``, its message, names."""
    if not holder.HasField("base_id"):
        return file
    base = bases.get(holder.base_id)
    if base is None:
        raise Damaged(
            f"{name}: the file {file.path!r} has the base path {holder.base_id}, which the manifest does not define"
        )
    path = file.path if base.is_dataset_root else file.path.partition("/")[2]
    return attrs.evolve(file, path=path, base=base.path)


def _varint(content: bytes) -> int:
    return sum((byte & 0x7F) << (7 * at) for at, byte in enumerate(content))
