"""The port of object stores, which hold the files of tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextvars import ContextVar, Token
from datetime import datetime
from types import TracebackType
from typing import Protocol

import attrs


@attrs.frozen
class ObjectInfo:
    """An object, without its content.

    Attributes:
        key: the key.
        size: the size in bytes.
        etag: the ETag, for callers. Lancekeep does not store it, and compares it only within a copy, as `Piece.stamp`.
        modified: when the object was created under this key, in UTC, by the clock of the storage; None if unknown.
    """

    key: str
    size: int
    etag: str | None = None
    modified: datetime | None = None


@attrs.frozen
class Tail:
    """The end of an object.

    Attributes:
        content: its last bytes.
        size: its size in bytes.
    """

    content: bytes = attrs.field(repr=False)
    size: int


@attrs.frozen
class Piece:
    """A range of an object.

    Attributes:
        content: its bytes.
        size: the size of the object in bytes.
        stamp: text that differs once the object was changed or replaced, for the next call.
    """

    content: bytes = attrs.field(repr=False)
    size: int
    stamp: str


PIECE = 16 << 20
"""The size of the pieces in which objects are copied between two stores."""

_MOST_PIECES = 10_000
"""How many parts an upload to S3 may have."""


def piece_size(size: int) -> int:
    """Return the size of the pieces, except the last, of an object of ``size`` bytes."""
    return max(PIECE, -(-size // _MOST_PIECES))


@attrs.frozen
class ObjectStoreGuarantees:
    """State the guarantees of a store.

    Callers choose their strategy by the guarantees, and refuse operations that no guarantee covers.

    Attributes:
        atomic_create: of concurrent ``put_if_absent`` calls, exactly one wins.
        atomic_copy: ``copy_if_absent`` does the same, and the bytes do not pass through this process.
        durable: an acknowledged write survives a power loss.
        paged: ``list`` requests one page of keys at a time, so its first keys always cost one request. Otherwise
            ``list`` reads the whole directory first.
    """

    atomic_create: bool
    atomic_copy: bool
    durable: bool
    paged: bool = False


class StorageTime:
    """Record the times in replies of the storage while the ``with`` block runs.

    No local clock is involved. If the replies of a storage carry a time, its adapter calls `record`. Otherwise both
    attributes stay None. Replies to requests of other threads do not count.

    Attributes:
        first: the time of the first reply in the block, by the clock of the storage.
        last: the time of the last reply.
    """

    first: datetime | None = None
    last: datetime | None = None

    def __enter__(self) -> StorageTime:
        self._token: Token[StorageTime | None] = _recording.set(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _recording.reset(self._token)

    @staticmethod
    def is_recorded() -> bool:
        """Return whether a block is running in this thread."""
        return _recording.get() is not None

    @staticmethod
    def record(answered: datetime) -> None:
        """Record the time in a reply of the storage."""
        recording = _recording.get()
        if recording is not None:
            recording.first = recording.first or answered
            recording.last = answered


_recording: ContextVar[StorageTime | None] = ContextVar("storage_time", default=None)


class ObjectStore(Protocol):
    """Store objects under keys, in one bucket or file system.

    Every adapter keeps these invariants:

    - **Atomic visibility**: an object is visible in full or not at all.
    - **Mutual exclusion**: of concurrent ``put_if_absent`` and ``copy_if_absent`` calls on one key, at most one returns
      True, if ``guarantees`` says so. Otherwise both raise `UnsafeStore` before they write.
    - **Read after write**: the next ``get``, ``head`` and ``list`` of any process see every acknowledged write.

    Keys have no scheme, no bucket and no leading slash. Every method raises `StoreUnavailable` if the store does not
    answer or asks to retry later (the effect is then unknown), and `AccessDenied` if the credentials do not permit it.
    Messages name the key, never a secret. Instances may be shared between threads.
    """

    root_uri: str
    """The prefix that makes a URI of a key, with a trailing slash: ``s3://bucket/``, ``file:///``."""

    guarantees: ObjectStoreGuarantees

    def prove(self) -> None:
        """Verify that the storage keeps the promise of ``guarantees.atomic_create``.

        Called before every commit, so it sends requests at most once per process and storage. An adapter that knows
        its storage does nothing. A probe leaves no object.

        Raises:
            UnsafeStore: the storage ignores the condition.
        """

    def get(self, key: str) -> bytes:
        """Return the content of an object.

        Raises:
            ObjectNotFound: the object does not exist.
        """

    def tail(self, key: str, most: int) -> Tail | None:
        """Return the last ``most`` bytes of an object; None if it does not exist.

        A shorter object is returned whole.
        """

    def piece(self, key: str, start: int, most: int, stamp: str | None = None) -> Piece:
        """Return up to ``most`` bytes of an object from the offset ``start``.

        Args:
            key: the key.
            start: the offset; 0, or less than the size of the object.
            most: the number of bytes, at least 1; fewer are returned only at the end of the object.
            stamp: the stamp of an earlier piece. Pieces with one stamp are pieces of one content.

        Raises:
            ObjectNotFound: the object does not exist.
            ConcurrentModification: the object was changed or replaced since the piece with ``stamp`` was read, as far
                as the storage shows it.
        """

    def put(self, key: str, content: bytes) -> None:
        """Write an object, or replace it if it exists. Idempotent."""

    def put_pieces(self, key: str, size: int, pieces: Iterable[bytes]) -> None:
        """Write an object, or replace it if it exists, from an iterator of pieces.

        The store holds few of the pieces at a time, if it is not in memory itself. Idempotent, as `put` is.

        If ``pieces`` raises a `LancekeepError`, it is raised, and nothing was written.

        Args:
            key: the key.
            size: the size of the object in bytes.
            pieces: its content, in pieces of `piece_size` bytes. The last one may be smaller.
        """

    def put_if_absent(self, key: str, content: bytes) -> bool:
        """Create an object, by put-if-absent.

        Returns:
            True if this call created the object, False if the key exists. If the reply to a successful call is lost,
            its retry returns False. A caller to whom this matters compares the content.
        """

    def copy_if_absent(self, source: str, target: str) -> bool:
        """Copy an object to a key that does not exist.

        Requires ``guarantees.atomic_copy``.

        Returns:
            True if this call created the object, False if the key exists.

        Raises:
            ObjectNotFound: ``source`` does not exist.
        """

    def head(self, key: str) -> ObjectInfo | None:
        """Return an object's size, ETag and time; None if it does not exist."""

    def list(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        """Iterate over the objects below ``prefix``, in byte order of the keys.

        The listing is recursive. It is also lazy: a caller that stops early pays only for the pages that it read. A
        prefix that ends in a slash is a directory. A directory that does not exist is empty.

        Args:
            prefix: the beginning of the keys.
            after: the key after which the listing begins; no object needs to have it.
        """

    def directories(self, prefix: str) -> Iterator[str]:
        """Iterate over the names of the directories directly below ``prefix``.

        The order is as in `list`: the byte order of the names with a slash appended, so ``a-b`` precedes ``a``. The
        listing is lazy, as in `list`. If the storage has real directories, the result may contain directories without
        objects, but no symbolic links.

        Args:
            prefix: empty, or a directory with its trailing slash.
        """

    def unfinished(self, prefix: str) -> Iterator[ObjectInfo]:
        """Iterate over incomplete uploads below a directory, in no order.

        Incomplete uploads come from writers that crashed or are still running, and are not objects yet. `delete`
        removes an upload; if its writer is still running, the write then raises `StoreUnavailable`. The result is empty
        if the storage does not show incomplete uploads.
        """

    def delete(self, key: str) -> None:
        """Remove an object if it exists. Idempotent."""

    def copy(self, source: str, target: str) -> None:
        """Copy an object; replace the target if it exists. Idempotent.

        If the store can copy by itself, the bytes do not pass through this process.

        Raises:
            ObjectNotFound: ``source`` does not exist.
        """

    def prune(self, directory: str) -> None:
        """Remove the directories at and below ``directory`` that hold no object.

        Idempotent. Does nothing if the storage has only keys. A writer that is about to create an object in a removed
        directory creates the directory again.
        """

    def passes_link(self, directory: str, below: str) -> bool:
        """Return whether the path from ``below`` to ``directory`` has a symbolic link.

        Such a link may lead anywhere.

        Raises:
            InvalidInput: the storage can tell that no such directory can exist.
        """

    def close(self) -> None:
        """Release every connection; a later call connects again. Idempotent."""
