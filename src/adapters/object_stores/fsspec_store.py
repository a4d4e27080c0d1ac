"""Objects on any storage that has an fsspec implementation."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from inspect import signature
from typing import Any, TypeVar

import attrs
import fsspec
from fsspec.spec import AbstractBufferedFile

from lancekeep.adapters.object_stores.keys import check_directory, check_key, check_prefix, is_after
from lancekeep.adapters.object_stores.native_options import is_native_option
from lancekeep.application.pieces import in_pieces
from lancekeep.application.retry import Retry
from lancekeep.domain.errors import (
    AccessDenied,
    ConcurrentModification,
    InvalidInput,
    LancekeepError,
    MissingExtra,
    ObjectNotFound,
    StoreUnavailable,
    UnsafeStore,
    UnsafeStoreWarning,
)
from lancekeep.ports.object_store import PIECE, ObjectInfo, ObjectStoreGuarantees, Piece, Tail

T = TypeVar("T")

_TIMES = ("mtime", "LastModified", "last_modified", "updated", "created")

_LISTINGS = 100
"""How often in a row a listing in memory may meet an object that another thread removes."""

_PRUNINGS = 100
"""How often in a row another process may remove a directory that a writer has just created."""


class FsspecObjectStore:
    """An `ObjectStore` below ``root_uri`` of an fsspec file system.

    The exclusive create of fsspec may check first and then write. `put_if_absent` and `copy_if_absent` therefore raise
    `UnsafeStore` before they write. With a commit store that never forgets a row, the writer that holds a version may
    write its final name by `head` and `put`.

    `put` is fsspec's ``pipe_file``. On cloud storage this is one atomic upload. Implementations that write a file in
    place (sftp, smb, local) may show a partial file to a reader, and may leave one after a crash. `put_pieces` is one
    upload, too; where a file is written in place, a failure removes the file. Each read first clears the cached
    listings, so that it sees writes of other processes.
    """

    guarantees = ObjectStoreGuarantees(atomic_create=False, atomic_copy=False, durable=False)

    def __init__(self, filesystem: fsspec.AbstractFileSystem, root_uri: str, *, emulate_create: bool = False) -> None:
        self.root_uri = root_uri
        self._emulate_create = emulate_create
        if emulate_create:
            self.guarantees = attrs.evolve(self.guarantees, atomic_create=True)
        self._filesystem = filesystem
        self._root: str = filesystem._strip_protocol(root_uri).rstrip("/")

    def __repr__(self) -> str:
        return f"FsspecObjectStore({self.root_uri!r})"

    def prove(self) -> None:
        """Do nothing: no guarantee rests on the storage."""

    def get(self, key: str) -> bytes:
        path = self._path(key)
        with self._boundary(key):
            content: bytes = self._filesystem.cat_file(path)
            return content

    def tail(self, key: str, most: int) -> Tail | None:
        info = self.head(key)
        if info is None:
            return None
        path = self._path(key)
        with self._boundary(key):
            content: bytes = self._filesystem.cat_file(path, start=max(0, info.size - most)) if info.size else b""
            return Tail(content, info.size)

    def piece(self, key: str, start: int, most: int, stamp: str | None = None) -> Piece:
        """Return a range of an object; size, ETag and time are the stamp."""
        if stamp is None:
            content = self._range(key, start, most)
            if len(content) < most:
                return Piece(content, start + len(content), "")
            stamp = self._stamp(key)[0]  # older than the content that is read now
        content = self._range(key, start, most)
        after, size = self._stamp(key)
        if after != stamp:
            raise ConcurrentModification(f"{self.root_uri}{key} was changed while it was read")
        return Piece(content, size, stamp)

    def put(self, key: str, content: bytes) -> None:
        path = self._path(key)
        with self._boundary(key):
            self._in_directory(path, lambda: self._filesystem.pipe_file(path, content))

    def put_pieces(self, key: str, size: int, pieces: Iterable[bytes]) -> None:
        if size <= PIECE:
            self.put(key, b"".join(pieces))
            return
        path = self._path(key)
        with self._boundary(key):
            file = self._in_directory(path, lambda: self._filesystem.open(path, "wb", block_size=PIECE))
            try:
                for piece in pieces:
                    file.write(piece)
                file.close()
            except BaseException:
                self._abandon(path, file)
                raise

    def put_if_absent(self, key: str, content: bytes) -> bool:
        if not self._emulate_create:
            raise self._refusal(key)
        created = self.head(key) is None
        if created:
            self.put(key, content)
        return created

    def copy_if_absent(self, source: str, target: str) -> bool:
        raise self._refusal(target)

    def head(self, key: str) -> ObjectInfo | None:
        path = self._path(key)
        with self._boundary(key):
            try:
                self._filesystem.invalidate_cache()
                found = self._filesystem.info(path)
            except (FileNotFoundError, NotADirectoryError):
                return None
            return None if found["type"] == "directory" else _info(key, found)

    def list(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        directory, slash, name = prefix.rpartition("/")
        return self._walk(directory + slash, name, after)

    def delete(self, key: str) -> None:
        path = self._path(key)
        with self._boundary(key), suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            self._filesystem.rm_file(path)

    def directories(self, prefix: str) -> Iterator[str]:
        check_directory(prefix)
        return (name.removesuffix("/") for name in self._entries(prefix, "") if name.endswith("/"))

    def unfinished(self, prefix: str) -> Iterator[ObjectInfo]:
        """Return nothing: fsspec does not show unfinished uploads."""
        check_directory(prefix)
        return iter(())

    def copy(self, source: str, target: str) -> None:
        source_path, path = self._path(source), self._path(target)
        if self.head(source) is None:  # fsspec copies a directory as an empty object
            raise ObjectNotFound(f"{self.root_uri}{source}: no such object")
        if source == target:
            return
        try:
            with self._boundary(source):
                self._in_directory(path, lambda: self._filesystem.cp_file(source_path, path))
        except UnsafeStore:  # the implementation has no copy
            self.put_pieces(target, *in_pieces(self, source, Retry()))

    def prune(self, directory: str) -> None:
        """Remove empty directories; the storage itself refuses to remove others."""
        path = self._path(directory)
        if self._is_link(path):
            return
        for name in list(self.directories(f"{directory}/")):
            self.prune(f"{directory}/{name}")
        with self._boundary(directory), suppress(OSError, NotImplementedError):
            if next(self.list(f"{directory}/"), None) is None:
                self._filesystem.rmdir(path)

    def close(self) -> None:
        """Do nothing: fsspec shares its file systems within the process."""

    def passes_link(self, directory: str, below: str) -> bool:
        """Return whether the path has a link; few implementations have links."""
        names = directory[len(below) :].strip("/").split("/")
        top = f"{self._root}/{below}".rstrip("/")
        with self._boundary(directory):
            return any(self._is_link("/".join((top, *names[: depth + 1]))) for depth in range(len(names)))

    def _walk(self, directory: str, start: str, after: str) -> Iterator[ObjectInfo]:
        """Yield the objects below a directory (empty, or with its slash) in names that begin with ``start``.

        A directory sorts by its name with a slash, as the keys below it do. Links to directories are not followed.
        """
        for name, found in self._entries(directory, start).items():
            if not is_after(directory + name, after):
                continue
            if name.endswith("/"):
                yield from self._walk(directory + name, "", after)
            else:
                yield _info(directory + name, found)

    def _entries(self, directory: str, start: str) -> dict[str, Mapping[str, Any]]:
        """Return the entries of a directory by name, sorted; names of directories end in a slash."""
        below = f"{self._root}/{directory}"
        with self._boundary(directory):
            try:
                self._filesystem.invalidate_cache()
                listed = self._listed(below.rstrip("/") or "/")
            except (FileNotFoundError, NotADirectoryError):
                return {}
            entries = {}
            for found in listed:
                path = found["name"]
                name = path.rstrip("/").removeprefix(below)
                if not name.startswith(start) or "/" in name or not name:
                    continue
                if found.get("islink") and self._filesystem.isdir(path):
                    continue
                entries[f"{name}/" if found["type"] == "directory" else name] = found
        return dict(sorted(entries.items()))

    def _listed(self, path: str) -> Any:
        """List a directory. In memory, fsspec fails if it meets an object that another thread removes."""
        for _ in range(_LISTINGS):
            with suppress(KeyError):
                return self._filesystem.ls(path, detail=True)
        return self._filesystem.ls(path, detail=True)

    def _range(self, key: str, start: int, most: int) -> bytes:
        path = self._path(key)
        with self._boundary(key):
            try:
                content: bytes = self._filesystem.cat_file(path, start=start, end=start + most)
            except FileNotFoundError:
                raise
            except Exception:  # some implementations find no range in an empty object
                info = self.head(key) if start == 0 else None
                if info is None or info.size:
                    raise
                content = b""
        if len(content) > most:
            raise UnsafeStore(f"{self.root_uri}{key}: not read, since this storage ignores ranges")
        return content

    def _stamp(self, key: str) -> tuple[str, int]:
        info = self.head(key)
        if info is None:
            raise ObjectNotFound(f"{self.root_uri}{key}: no such object")
        return f"{info.size} {info.etag} {info.modified}", info.size

    def _abandon(self, path: str, file: Any) -> None:
        """Discard an upload; remove a file that was written in place."""
        with suppress(Exception):  # the caller raises the original error
            if isinstance(file, AbstractBufferedFile):
                file.discard()
            else:
                file.close()
                self._filesystem.rm_file(path)
        if isinstance(file, AbstractBufferedFile):
            file.closed = True  # else it completes the upload when it is deleted

    def _in_directory(self, path: str, act: Callable[[], T]) -> T:
        """Create an object; recreate its directory whenever another process has pruned it."""
        for _ in range(_PRUNINGS):
            with suppress(FileNotFoundError):
                return act()
            with suppress(FileNotFoundError):
                self._filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
        return act()

    def _is_link(self, path: str) -> bool:
        is_link = getattr(self._filesystem, "islink", None)
        return is_link is not None and bool(is_link(path))

    def _path(self, key: str) -> str:
        check_key(key)
        return f"{self._root}/{key}"

    def _refusal(self, key: str) -> UnsafeStore:
        return UnsafeStore(
            f"{self.root_uri}{key}: not written, because this storage has no create-only write. Choose a "
            "commit store (sqlite://, redis://, dynamodb://) to decide which writer commits"
        )

    @contextmanager
    def _boundary(self, key: str) -> Iterator[None]:
        """Translate errors of any implementation without their texts, which may hold credentials."""
        try:
            yield
        except LancekeepError:
            raise
        except Exception as error:  # an implementation may raise any error of its library
            raise _understood(error, self.root_uri + key) from error


def open_fsspec(
    scheme: str, root_uri: str, options: Mapping[str, str], *, emulate_create: bool = False
) -> FsspecObjectStore:
    """Open the store at a root.

    Args:
        scheme: The scheme of the root.
        root_uri: The root.
        options: Arguments of the implementation. An option of the native engine reaches the implementation only if its
            signature names it.
        emulate_create: Check and then write; see `open_object_store`.

    Raises:
        InvalidInput: fsspec does not know the scheme, or the implementation refuses the options.
        MissingExtra: The implementation is not installed.
        AccessDenied, StoreUnavailable: The storage is not reachable.
    """
    try:
        implementation: Any = fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        package = getattr(error.__cause__, "name", None)
        raise MissingExtra(
            f"{scheme}:// needs a package that is not installed. {error}"
            + (f" (pip install {package})" if package else "")
        ) from error
    try:
        named = signature(implementation.__init__).parameters
        own = {name: value for name, value in options.items() if name in named or not is_native_option(name)}
        filesystem = implementation(**{**implementation._get_kwargs_from_urls(root_uri), **own})
    except Exception as error:
        if isinstance(error, TypeError | ValueError):
            raise InvalidInput(
                f"{root_uri}: {implementation.__name__} of fsspec does not take the storage options {sorted(options)}"
            ) from error
        raise _understood(error, root_uri) from error
    if emulate_create:
        warnings.warn(
            f"{root_uri} has no create-only write: a second writer overwrites what the first has committed",
            UnsafeStoreWarning,
            stacklevel=2,
        )
    return FsspecObjectStore(filesystem, root_uri, emulate_create=emulate_create)


def _info(key: str, found: Mapping[str, Any]) -> ObjectInfo:
    return ObjectInfo(key, int(found["size"]), found.get("ETag") or found.get("etag"), _modified(found))


def _modified(found: Mapping[str, Any]) -> datetime | None:
    """Return the latest time that the implementation states; names and types differ between implementations."""
    times = [_time(found.get(name)) for name in _TIMES]
    return max((time for time in times if time is not None), default=None)


def _time(value: Any) -> datetime | None:
    try:
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        elif isinstance(value, int | float):
            value = datetime.fromtimestamp(value, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return value if isinstance(value, datetime) and value.tzinfo else None  # without a zone it says nothing


def _understood(error: Exception, uri: str) -> LancekeepError:
    kind = type(error).__name__
    if isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError):
        return ObjectNotFound(f"{uri}: no such object")
    if isinstance(error, PermissionError):
        return AccessDenied(f"{uri}: the credentials at hand do not permit this ({kind})")
    if isinstance(error, UnicodeError):
        return InvalidInput(f"{uri!r}: not a key that this storage can encode")
    if isinstance(error, NotImplementedError):
        return UnsafeStore(f"{uri}: it lacks the operation; choose a storage that reads, writes, lists and deletes")
    return StoreUnavailable(f"{uri}: the storage failed ({kind}); the outcome of the request is unknown")
