"""Object store on a file system: the key ``a/b`` is the file ``/a/b``."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache, wraps
from itertools import count
from stat import S_ISLNK, S_ISREG
from typing import Concatenate, ParamSpec, TypeVar

from lancekeep.adapters.object_stores.keys import check_directory, check_key, check_prefix, is_after
from lancekeep.domain.errors import (
    AccessDenied,
    ConcurrentModification,
    InvalidInput,
    LancekeepError,
    ObjectNotFound,
    StoreUnavailable,
)
from lancekeep.local_files import NO_HARD_LINKS, content_of, hard_link
from lancekeep.ports.object_store import ObjectInfo, ObjectStoreGuarantees, Piece, Tail

P = ParamSpec("P")
T = TypeVar("T")

_SHORT, _LONGEST_BELOW = 512, 250
"""A path length that every file system accepts, and the length of Lance's longest path below a table."""

_TEMPORARY = ".tmp-"
_TEMPORARY_NAME = re.compile(r"\.tmp-[0-9a-f]+-[0-9a-f]+")
_PRUNINGS = 100
"""How often in a row a new directory may be removed before its writer uses it."""
_ADVICE = (
    "A catalog needs a file system with hard links for the whole table, and files of one owner: keep the catalog on "
    "such a file system, or in an object store"
)
_NOT_A_PLACE = frozenset((errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.EILSEQ))


def _boundary(
    method: Callable[Concatenate[LocalObjectStore, str, P], T],
) -> Callable[Concatenate[LocalObjectStore, str, P], T]:
    """Translate errors of the operating system; Python raises ValueError for names that it cannot encode."""

    @wraps(method)
    def mapped(self: LocalObjectStore, key: str, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(self, key, *args, **kwargs)
        except (OSError, UnicodeError) as error:
            raise _understood(error, key) from error

    return mapped


class LocalObjectStore:
    """Keep objects on a file system with atomic rename and hard links.

    An object is written under a temporary name in its directory, and then renamed (`put`) or hard-linked
    (`put_if_absent`, `copy_if_absent`). A hard link succeeds for one claimant and shows the complete file at once,
    where ``O_EXCL`` would show an empty file first. Only empty objects are created by ``O_EXCL``. A crash leaves at
    most a file ``.tmp-<random>``, which is `unfinished` and not listed.

    Args:
        fsync: Sync files and their directories before a call returns. This includes the answer that another writer
            created the object, because the caller relies on it.
    """

    root_uri = "file:///"

    def __init__(self, fsync: bool = True) -> None:
        self._fsync = fsync
        self.guarantees = ObjectStoreGuarantees(atomic_create=True, atomic_copy=True, durable=fsync)

    def prove(self) -> None:
        """Do nothing: the file system guarantees the condition."""

    @_boundary
    def get(self, key: str) -> bytes:
        try:
            return content_of(_path(key))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise ObjectNotFound(f"/{key}: no such file") from error

    @_boundary
    def tail(self, key: str, most: int) -> Tail | None:
        try:
            return _tail(_path(key), most)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    @_boundary
    def piece(self, key: str, start: int, most: int, stamp: str | None = None) -> Piece:
        """Return a range of a file; inode, size and modification time are the stamp."""
        try:
            piece, before = _piece(_path(key), start, most)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise ObjectNotFound(f"/{key}: no such file") from error
        if before != piece.stamp or stamp not in (None, before):
            raise ConcurrentModification(f"/{key} was changed while it was read")
        return piece

    @_boundary
    def put(self, key: str, content: bytes) -> None:
        self._put(key, (content,))

    @_boundary
    def put_pieces(self, key: str, size: int, pieces: Iterable[bytes]) -> None:
        self._put(key, pieces)

    def _put(self, key: str, pieces: Iterable[bytes]) -> None:
        path = _path(key)
        temporary = self._write_beside(path, pieces)
        try:
            os.rename(temporary, path)
        except OSError:
            _remove(temporary)
            raise
        self._sync_directory_of(path)

    @_boundary
    def put_if_absent(self, key: str, content: bytes) -> bool:
        path = _path(key)
        if content:
            temporary = self._write_beside(path, (content,))
            try:
                created = _link(temporary, path)
            finally:
                _remove(temporary)
        else:
            created = self._create_empty(path)
        self._sync_directory_of(path)
        return created

    @_boundary
    def copy_if_absent(self, source: str, target: str) -> bool:
        """Link the source under the target name, without copying bytes."""
        source_path, path = _path(source), _path(target)
        try:
            self._sync_file(source_path)  # its writer may not have synced it
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ObjectNotFound(f"/{source}: no such file") from error
        created = self._in_directory(path, lambda: _link(source_path, path))
        self._sync_directory_of(path)
        self._sync_directory_of(os.path.dirname(path))  # nor may the creator of the directory
        return created

    def head(self, key: str) -> ObjectInfo | None:
        try:
            status = os.stat(_path(key))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, UnicodeError) as error:
            raise _understood(error, key) from error
        if not S_ISREG(status.st_mode):
            return None
        # A hard link to an old file is a new object, which only ctime shows.
        since = max(status.st_mtime, status.st_ctime)
        return ObjectInfo(key, status.st_size, None, datetime.fromtimestamp(since, UTC))

    def list(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        directory, slash, name = prefix.rpartition("/")
        return self._walk(directory + slash, name, after)

    def unfinished(self, prefix: str) -> Iterator[ObjectInfo]:
        check_directory(prefix)
        return self._walk(prefix, "", unfinished=True)

    @_boundary
    def delete(self, key: str) -> None:
        """Delete a file; keep its directory, where another writer may be about to write.

        The deletion is not synced, because every commit would pay for it. A staged file or an old version that
        reappears after a power loss does no harm.
        """
        with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            os.unlink(_path(key))

    @_boundary
    def directories(self, prefix: str) -> Iterator[str]:
        check_directory(prefix)
        try:
            with os.scandir(f"/{prefix}") as entries:
                names = [f"{entry.name}/" for entry in entries if entry.is_dir(follow_symlinks=False)]
        except (FileNotFoundError, NotADirectoryError):
            names = []
        return (name[:-1] for name in sorted(names, key=os.fsencode))

    @_boundary
    def copy(self, source: str, target: str) -> None:
        """Link the source under the target name; both may share a file."""
        path = _path(target)
        temporary = _temporary(path)
        try:
            self._sync_file(_path(source))
            self._in_directory(path, lambda: os.link(_path(source), temporary))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ObjectNotFound(f"/{source}: no such file") from error
        except OSError as error:
            if error.errno not in NO_HARD_LINKS:
                raise
            self.duplicate(source, target)
            return
        try:
            os.rename(temporary, path)
        finally:
            _remove(temporary)  # it still exists if both names already were one file: then rename does nothing
        self._sync_directory_of(path)

    @_boundary
    def duplicate(self, source: str, target: str) -> None:
        """Copy the bytes of a file, also to another file system.

        The target shares nothing with the source.

        Raises:
            ObjectNotFound: ``source`` does not exist.
        """
        path = _path(target)
        temporary = _temporary(path)
        os.close(self._in_directory(path, lambda: _new_file(temporary)))
        try:
            try:
                shutil.copyfile(_path(source), temporary)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
                raise ObjectNotFound(f"/{source}: no such file") from error
            self._sync_file(temporary)
            os.rename(temporary, path)
        finally:
            _remove(temporary)
        self._sync_directory_of(path)

    @_boundary
    def prune(self, directory: str) -> None:
        top = _path(directory)
        if os.path.islink(top):  # the only link that os.walk follows
            return
        for path, _, _ in os.walk(top, topdown=False):
            with suppress(OSError):  # not empty, or already removed; a directory that stays does no harm
                os.rmdir(path)

    def close(self) -> None:
        """Do nothing: there are no connections."""

    @_boundary
    def passes_link(self, directory: str, below: str) -> bool:
        if len(directory) > _SHORT:  # the loop below ends at the first missing name, so it may not reach the limit
            with suppress(FileNotFoundError, NotADirectoryError):
                os.lstat(_path(f"{directory}/{'x' * _LONGEST_BELOW}"))
        path = _path(below) if below else ""
        for name in directory[len(below) :].strip("/").split("/"):
            path += f"/{name}"
            try:
                if S_ISLNK(os.lstat(path).st_mode):
                    return True
            except (FileNotFoundError, NotADirectoryError):
                return False
        return False

    def _walk(self, directory: str, start: str, after: str = "", *, unfinished: bool = False) -> Iterator[ObjectInfo]:
        """Yield the objects below ``directory`` (empty, or with its slash) whose names begin with ``start``.

        With ``unfinished``, yield the temporary files instead. A directory sorts as its name with a slash, as the keys
        below it do: ``a.b`` precedes ``a/b``. Symbolic links to directories are not followed, because listed objects
        may be deleted, so they must be in the directory itself.

        If a file was deleted since its name was read, the later names are read again. An object that replaced it under
        a later name is therefore listed, as by a store that reads the names page by page.
        """
        is_complete = False
        while not is_complete:
            is_complete = True
            for name in self._names(directory, start, unfinished):
                if not is_after(directory + name, after):
                    continue
                if name.endswith("/"):
                    yield from self._walk(directory + name, "", after, unfinished=unfinished)
                    continue
                info = self.head(directory + name)
                if info is not None:
                    yield info
                elif not os.path.lexists(_path(directory + name)):
                    after, is_complete = directory + name, False
                    break

    def _names(self, directory: str, start: str, unfinished: bool) -> Sequence[str]:
        """Return the names in a directory, sorted. The name of a directory ends in a slash."""
        try:
            with os.scandir(f"/{directory}") as entries:
                return sorted(
                    (
                        f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name
                        for entry in entries
                        if entry.name.startswith(start) and _is_wanted(entry, unfinished)
                    ),
                    key=os.fsencode,
                )
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise _understood(error, directory) from error

    def _write_beside(self, path: str, pieces: Iterable[bytes]) -> str:
        """Write the pieces to a new temporary file in the directory of ``path``, and return its path."""
        temporary = _temporary(path)
        file = self._in_directory(path, lambda: _new_file(temporary))
        try:
            try:
                for piece in pieces:
                    rest = memoryview(piece)
                    while rest:
                        rest = rest[os.write(file, rest) :]
                if self._fsync:
                    os.fsync(file)
            finally:
                os.close(file)
        except BaseException:
            _remove(temporary)
            raise
        return temporary

    def _create_empty(self, path: str) -> bool:
        """Create an empty file; return False if the name is taken. Usually its directory is new as well."""
        directory = os.path.dirname(path)
        with suppress(FileExistsError, FileNotFoundError):
            os.mkdir(directory)
        try:
            os.close(self._in_directory(path, lambda: _new_file(path)))
            created = True
        except FileExistsError:
            created = False
        if self._fsync:  # their creators may not have synced them yet
            with suppress(FileNotFoundError):  # deleted since
                self._sync_file(path)
            self._sync_directory_of(directory)
        return created

    def _in_directory(self, path: str, act: Callable[[], T]) -> T:
        """Run ``act``, which creates a name in the directory of ``path``; create the directory if it is missing."""
        for _ in range(_PRUNINGS):
            try:
                return act()
            except FileNotFoundError:
                with suppress(FileNotFoundError):
                    self._make_directory(os.path.dirname(path))
        return act()

    def _make_directory(self, path: str) -> None:
        try:
            os.mkdir(path)
        except FileExistsError:
            pass  # created by another writer, which may not have synced it yet
        except FileNotFoundError:
            self._make_directory(os.path.dirname(path))
            with suppress(FileExistsError):
                os.mkdir(path)
        self._sync_directory_of(path)

    def _sync_directory_of(self, path: str) -> None:
        """Sync the directory of a name. If the directory was pruned, the name had been deleted before."""
        if self._fsync:
            with suppress(FileNotFoundError):
                self._sync(os.path.dirname(path) or "/", os.O_DIRECTORY)

    def _sync_file(self, path: str) -> None:
        """Sync a file. Raises FileNotFoundError even if no sync is needed."""
        if self._fsync:
            self._sync(path, 0)
        else:
            os.stat(path)

    def _sync(self, path: str, flags: int) -> None:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
        try:
            os.fsync(file)
        finally:
            os.close(file)


_numbers = count()


@lru_cache(maxsize=1)
def _process() -> str:
    return os.urandom(16).hex()


os.register_at_fork(after_in_child=_process.cache_clear)


def _temporary(path: str) -> str:
    """Return a unique name in the directory of ``path``. Entropy is read once, since it may cost as much as a file."""
    return f"{os.path.dirname(path)}/{_TEMPORARY}{_process()}-{next(_numbers):x}"


def _tail(path: str, most: int) -> Tail:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(file).st_size
        return Tail(os.pread(file, most, max(0, size - most)), size)
    finally:
        os.close(file)


def _piece(path: str, start: int, most: int) -> tuple[Piece, str]:
    """Return a range of a file with its stamp after it was read, and its stamp before."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        before = _stamp(os.fstat(file))
        content, status = os.pread(file, most, start), os.fstat(file)
        return Piece(content, status.st_size, _stamp(status)), before
    finally:
        os.close(file)


def _stamp(status: os.stat_result) -> str:
    return f"{status.st_dev}-{status.st_ino}-{status.st_size}-{status.st_mtime_ns}"


def _is_wanted(entry: os.DirEntry[str], unfinished: bool) -> bool:
    temporary = _TEMPORARY_NAME.fullmatch(entry.name) is not None
    return temporary is unfinished or (not temporary and entry.is_dir(follow_symlinks=False))


def _new_file(path: str) -> int:
    """Create a file and open it for writing."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)


@lru_cache(8192)  # a commit names the same few keys a dozen times
def _path(key: str) -> str:
    check_key(key)
    return f"/{key}"


def _link(source: str, target: str) -> bool:
    """Give a file a second name; return False if the name is taken."""
    return hard_link(source, target, os.path.dirname(target), _ADVICE)


def _remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


def _understood(error: OSError | UnicodeError, key: str) -> LancekeepError:
    if isinstance(error, UnicodeError):
        return InvalidInput(f"{key!r} is not a key of this file system: it cannot be encoded as a file name")
    where, reason = error.filename or f"/{key}", error.strerror
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return AccessDenied(f"{where}: {reason}. This process has to be allowed to read and write there")
    if error.errno in _NOT_A_PLACE:
        return InvalidInput(f"{where}: {reason}. No object can be there: choose another key")
    return StoreUnavailable(f"{where}: {reason}")
