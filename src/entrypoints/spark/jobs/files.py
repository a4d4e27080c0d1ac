"""Find the files that a job ingests, and divide them into tasks."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePosixPath
from urllib.parse import urlsplit, urlunsplit

import attrs
import pyarrow as pa
from fsspec.utils import glob_translate
from pyarrow import fs

from lancekeep.domain.errors import InvalidInput, NotFound

FORMATS = ("parquet", "csv", "json", "arrow", "image")

_SUFFIXES = {
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    **dict.fromkeys((".csv",), "csv"),
    **dict.fromkeys((".json", ".jsonl", ".ndjson"), "json"),
    **dict.fromkeys((".arrow", ".arrows", ".feather", ".ipc"), "arrow"),
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".gif", ".webp", ".tif", ".tiff", ".bmp"), "image"),
}
_COMPRESSED = (".gz", ".bz2", ".zst", ".lz4")
_PATTERN = re.compile(r"[*?\[]")


@attrs.frozen
class SourceFile:
    """A file in the state of its listing; can be pickled.

    Attributes:
        uri: The URI without credentials.
        path: The path in the store.
        size: The size in bytes.
        state: The size and the modification time, which show whether the file has changed.
        store: The file system.
    """

    uri: str
    path: str
    size: int
    state: str
    store: fs.FileSystem = attrs.field(eq=False, repr=False)

    def read(self) -> bytes:
        with self.store.open_input_stream(self.path) as stream:
            content: bytes = stream.read()
        return content


@attrs.frozen
class Piece:
    """A part of a file that one task reads.

    Attributes:
        file: The file.
        size: The size of the part in bytes.
        row_groups: The row groups of a Parquet file; None for all.
        first_row: The number of the first row, counted from 1.
    """

    file: SourceFile
    size: int
    row_groups: tuple[int, ...] | None = None
    first_row: int = 1


def list_files(sources: str | Iterable[str]) -> list[SourceFile]:
    """List the files that paths, URIs or patterns name.

    A folder stands for all files below it, except files and folders whose names begin with ``_`` or ``.``.

    Raises:
        InvalidInput: There is no source, or a source cannot be listed.
        NotFound: A source names no file.
    """
    found: dict[str, SourceFile] = {}
    for source in [sources] if isinstance(sources, str) else sources:
        files = {file.uri: file for file in _files(str(source))}
        if not files:
            raise NotFound(f"there is no file under {_shown(str(source))}")
        found.update(files)
    if not found:
        raise InvalidInput("name at least one file, folder or pattern to take in")
    return [found[uri] for uri in sorted(found)]


def require_sources(sources: Iterable[str]) -> None:
    """Check that each path or URI exists, with one request each; ignores patterns.

    Raises:
        InvalidInput: The source cannot be accessed.
        NotFound: The source does not exist.
    """
    for source in sources:
        if not _PATTERN.search(source):
            store, path = place(source)
            try:
                found = store.get_file_info(path).type
            except (pa.ArrowException, OSError) as error:
                raise InvalidInput(f"{_shown(source)} cannot be looked for: {error}") from error
            if found == fs.FileType.NotFound:
                raise NotFound(f"there is no file under {_shown(source)}")


def format_of(files: Sequence[SourceFile], given: str | None) -> str:
    """Return the common format of files, by default by their suffixes.

    Raises:
        InvalidInput: The given format is unknown, or the suffixes do not name one format.
    """
    if given is not None:
        if given not in FORMATS:
            raise InvalidInput(f"unknown format {given!r}; choose {', '.join(FORMATS)}")
        return given
    found = {_format(file): file.uri for file in files}
    if len(found) > 1 or None in found:
        odd = found.get(None) or " and ".join(found.values())
        raise InvalidInput(f"the names do not show one format for all files ({odd}); give the format")
    return str(next(iter(found)))


def pack(pieces: Iterable[Piece], task_bytes: int) -> list[list[Piece]]:
    """Group pieces in order into tasks of about ``task_bytes`` each."""
    tasks: list[list[Piece]] = []
    room = 0
    for piece in pieces:
        if not tasks or piece.size > room:
            tasks.append([])
            room = task_bytes
        tasks[-1].append(piece)
        room -= piece.size
    return tasks


def absolute(folder: str | None) -> str | None:
    """Return an absolute path for workers, whose working directory differs."""
    return folder if folder is None or "://" in folder else os.path.abspath(folder)


def place(uri: str) -> tuple[fs.FileSystem, str]:
    """Return the file system and the path of a URI.

    Raises:
        InvalidInput: The URI has no file system.
    """
    try:
        if "://" not in uri:
            return fs.LocalFileSystem(), os.path.abspath(uri)
        store, path = fs.FileSystem.from_uri(uri)
    except (pa.ArrowException, OSError) as error:
        raise InvalidInput(f"{_shown(uri)} is no place for files: {error}") from error
    return store, path


def _files(source: str) -> Iterator[SourceFile]:
    parts = urlsplit(source) if "://" in source else None
    pattern = parts.path if parts else os.path.abspath(source)
    wild = _PATTERN.search(pattern)
    folder = pattern[: wild.start()].rpartition("/")[0] if wild else pattern
    store, path = place(urlunsplit(parts._replace(path=folder)) if parts else folder or "/")
    prefix = f"{parts.scheme}://" if parts and parts.scheme != "file" else "file://"
    try:
        info = store.get_file_info(path)
        if info.type == fs.FileType.File:
            infos = [info]
        elif info.type == fs.FileType.NotFound:
            infos = []
        else:
            infos = store.get_file_info(fs.FileSelector(path, recursive=True))
    except (pa.ArrowException, OSError) as error:
        raise InvalidInput(f"{_shown(source)} cannot be listed: {error}") from error
    matches = re.compile(glob_translate(pattern[len(folder) :].strip("/"))).fullmatch if wild else None
    for info in infos:
        below = info.path[len(path) :].strip("/")
        if info.type == fs.FileType.File and (matches(below) if matches else not _hidden(below)):
            yield SourceFile(prefix + info.path, info.path, info.size, f"{info.size}-{info.mtime_ns}", store)


def _hidden(path: str) -> bool:
    return any(part.startswith(("_", ".")) for part in PurePosixPath(path).parts)


def _format(file: SourceFile) -> str | None:
    name = PurePosixPath(file.path.lower())
    if name.suffix in _COMPRESSED:
        name = name.with_suffix("")
    return _SUFFIXES.get(name.suffix)


def _shown(uri: str) -> str:
    """Remove the query, which may hold credentials, and the user from a URI."""
    return re.sub(r"//[^/@]*@", "//", uri.partition("?")[0]) if "://" in uri else uri
