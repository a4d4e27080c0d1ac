"""The files that a version reads, and where they lie (storage layout, "Base Path System").

A manifest names data files, deletion files and indexes. A shallow clone names files of another dataset by the number of
a base path, whose spelling its writer chose: a URI, an absolute path, or a path relative to a working directory.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from lancekeep.domain.dataset_files import DATA, DELETIONS, INDICES, uuid_text
from lancekeep.domain.errors import Damaged
from lancekeep.domain.layout import BRANCHES
from lancekeep.format.manifest import fields, message_at, section_at

_FRAGMENTS, _INDEX_SECTION, _BASE_PATHS = 2, 6, 18  # of a Manifest
_BASE_ID, _BASE_IS_ROOT, _BASE_PATH = 1, 3, 4  # of a BasePath
_FRAGMENT_ID, _FILES, _DELETION_FILE = 1, 2, 3  # of a DataFragment
_FILE_PATH, _FILE_SIZE, _FILE_BASE = 1, 6, 7  # of a DataFile
_IS_BITMAP, _READ_VERSION, _DELETION_ID, _DELETED_ROWS, _DELETION_BASE = 1, 2, 3, 4, 7  # of a DeletionFile
_INDICES, _INDEX_UUID, _INDEX_BASE, _INDEX_FILES = 1, 1, 9, 10  # of an IndexSection, of an IndexMetadata
_INDEX_FILE_PATH, _INDEX_FILE_SIZE = 1, 2

_DATASET_BASE = b'\x18\x01"'
"""The beginning of the path in a BasePath that names a dataset: ``is_dataset_root`` is true, the path follows."""


@attrs.frozen
class FileReference:
    """A file that a version reads.

    path: below ``base``, or below the dataset itself if that is None; a directory ends in a slash. size: in bytes; None
    if the manifest does not say. deleted: how many rows a deletion file names; None for other files.
    """

    path: str
    size: int | None = None
    base: str | None = None
    deleted: int | None = None


def may_be_clone(content: bytes) -> bool:
    """Return False if no file of a version lies in another dataset; True says that it is worth decoding."""
    return _DATASET_BASE in content


def file_references(content: bytes, name: str) -> Iterator[FileReference]:
    """Yield the files that a version reads, one at a time: a manifest may name millions.

    Raises `Damaged` if the content is no manifest, or a file has a base path that the manifest does not define.
    """
    bases = _bases(content, name)

    def placed(file: _File) -> FileReference:
        directory, path, size, base, deleted = file
        if base is None:
            return FileReference(f"{directory}/{path}", size, None, deleted)
        if base not in bases:
            raise Damaged(f"{name}: the file {path!r} has the base path {base}, which the manifest does not define")
        uri, is_root = bases[base]
        return FileReference(f"{directory}/{path}" if is_root else path, size, uri, deleted)

    try:
        for number, value in fields(message_at(content)):
            if number == _FRAGMENTS and isinstance(value, memoryview):
                yield from map(placed, _of_fragment(value))
            elif number == _INDEX_SECTION and isinstance(value, int):
                yield from map(placed, _of_indexes(section_at(content, value)))
    except (IndexError, ValueError) as error:
        raise Damaged(f"{name} is not a manifest of a Lance table: {error}") from error


def same_dataset(path: str, location: str) -> bool:
    """Whether a base path may name the dataset at a location, or a branch of it, going by the end of the path."""
    wanted = location.split("/")
    for spelled in (path, path.rpartition(f"/{BRANCHES}/")[0], path.partition(f"/{BRANCHES}/")[0]):
        parts = [part for part in spelled.partition("://")[2 if "://" in spelled else 0].split("/") if part]
        common = min(len(parts), len(wanted))
        if common and parts[-common:] == wanted[-common:]:
            return True
    return False


_File = tuple[str, str, int | None, int | None, int | None]
"""The directory, path below it, size, number of the base path, and number of deleted rows."""


def _of_fragment(message: memoryview) -> Iterator[_File]:
    fragment, deletions = 0, None
    for number, value in fields(message):
        if number == _FRAGMENT_ID and isinstance(value, int):
            fragment = value
        elif number == _FILES and isinstance(value, memoryview):
            found = dict(fields(value))
            yield DATA, _text(found[_FILE_PATH]), _count(found.get(_FILE_SIZE)), _number(found.get(_FILE_BASE)), None
        elif number == _DELETION_FILE and isinstance(value, memoryview):
            deletions = dict(fields(value))
    if deletions is not None:
        suffix = "bin" if deletions.get(_IS_BITMAP) else "arrow"
        name = f"{fragment}-{deletions.get(_READ_VERSION, 0)}-{deletions.get(_DELETION_ID, 0)}.{suffix}"
        yield DELETIONS, name, None, _number(deletions.get(_DELETION_BASE)), _count(deletions.get(_DELETED_ROWS))


def _of_indexes(section: memoryview) -> Iterator[_File]:
    for number, value in fields(section):
        if number != _INDICES or not isinstance(value, memoryview):
            continue
        uuid, base, files = "", None, list[tuple[str, int | None]]()
        for inner, content in fields(value):
            if inner == _INDEX_UUID and isinstance(content, memoryview):
                uuid = uuid_text(next(bytes(digits) for _, digits in fields(content) if not isinstance(digits, int)))
            elif inner == _INDEX_BASE and isinstance(content, int):
                base = content
            elif inner == _INDEX_FILES and isinstance(content, memoryview):
                file = dict(fields(content))
                files.append((_text(file[_INDEX_FILE_PATH]), _count(file.get(_INDEX_FILE_SIZE))))
        for path, size in files or [("", None)]:
            yield INDICES, f"{uuid}/{path}", size, base, None


def _bases(content: bytes, name: str) -> dict[int, tuple[str, bool]]:
    try:
        messages = (value for number, value in fields(message_at(content)) if number == _BASE_PATHS)
        found = [dict(fields(message)) for message in messages if isinstance(message, memoryview)]
        return {
            _number(base.get(_BASE_ID)) or 0: (_text(base[_BASE_PATH]), bool(base.get(_BASE_IS_ROOT)))
            for base in found
            if _BASE_PATH in base
        }
    except (IndexError, ValueError) as error:
        raise Damaged(f"{name} is not a manifest of a Lance table: {error}") from error


def _text(value: int | memoryview) -> str:
    if isinstance(value, int):
        raise ValueError("a path is a number")
    return bytes(value).decode()


def _number(value: int | memoryview | None) -> int | None:
    return value if isinstance(value, int) else None


def _count(value: int | memoryview | None) -> int | None:
    """A size; 0 stands for one that the writer did not know."""
    return _number(value) or None
