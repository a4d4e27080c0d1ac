"""What Lancekeep needs from the place where tables lie."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar, Token
from datetime import datetime
from types import TracebackType
from typing import Protocol

import attrs


@attrs.frozen
class ObjectInfo:
    """An object, without its content.

    size: in bytes. etag: for callers; never stored, never compared. modified: when the object came to be under this
    key, UTC, by the clock of the storage; None where the storage does not say.
    """

    key: str
    size: int
    etag: str | None = None
    modified: datetime | None = None


@attrs.frozen
class ObjectStoreGuarantees:
    """What a store promises; callers choose their way by it, and refuse what nothing vouches for.

    atomic_create: ``put_if_absent`` lets exactly one of any number of racing writers win.
    atomic_copy: ``copy_if_absent`` does the same without moving the bytes through this process.
    durable: what was acknowledged survives a power loss.
    paged: ``list`` asks for one page of keys after another, so its beginning costs one request however much follows;
        otherwise it reads the whole directory first.
    """

    atomic_create: bool
    atomic_copy: bool
    durable: bool
    paged: bool = False


class StorageTime:
    """Record the time that the storage gives in its answers, while the ``with`` block runs.

    No local clock is involved. An adapter whose answers carry a time calls `record`; others do nothing, so both
    attributes stay None. Answers to requests of other threads do not count.

    first, last: the times of the first and of the last answer in the block, by the clock of the storage.
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
        """Whether a block is running in this thread."""
        return _recording.get() is not None

    @staticmethod
    def record(answered: datetime) -> None:
        """Note the time in an answer of the storage."""
        recording = _recording.get()
        if recording is not None:
            recording.first = recording.first or answered
            recording.last = answered


_recording: ContextVar[StorageTime | None] = ContextVar("storage_time", default=None)


class ObjectStore(Protocol):
    """Objects under keys, in one bucket or file system.

    Invariants every adapter keeps:

    - **Atomic visibility**: an object is seen whole or not at all, and never under a half-written name.
    - **Mutual exclusion**: of racing ``put_if_absent`` and ``copy_if_absent`` calls on one key at most one returns
      True, where ``guarantees`` says so; where it does not, both raise `UnsafeStore` before writing.
    - **Read after write**: whatever was acknowledged is seen by the next ``get``, ``head`` and ``list`` anywhere.

    Keys have no scheme, no bucket and no leading slash. Every method raises `StoreUnavailable` where the store did
    not answer or asks to come back later (the effect is then unknown), and `AccessDenied` where credentials do not
    permit it. Messages name the key, never a secret. Instances may be shared between threads.
    """

    root_uri: str
    """What stands before a key to make its URI, with the trailing slash: ``s3://bucket/``, ``file:///``."""

    guarantees: ObjectStoreGuarantees

    def prove(self) -> None:
        """Verify that the storage keeps the condition that ``guarantees.atomic_create`` promises.

        Called before every commit, so it sends requests at most once per process and storage. An adapter that knows
        its storage does nothing. A probe leaves no object.

        Raises:
            UnsafeStore: the storage ignores the condition.
        """

    def get(self, key: str) -> bytes:
        """The content of an object. Raises `ObjectNotFound`."""

    def put(self, key: str, content: bytes) -> None:
        """Write an object, replacing what is there. Idempotent."""

    def put_if_absent(self, key: str, content: bytes) -> bool:
        """Write an object where there is none; True where this call created it, False where the key was taken.

        After a lost reply a repeated call answers False although its own first attempt won: the caller compares
        the content where that matters.
        """

    def copy_if_absent(self, source: str, target: str) -> bool:
        """Copy an object to a key that is free; True where this call created it, False where the key was taken.

        Only where ``guarantees.atomic_copy``. Raises `ObjectNotFound` where ``source`` does not exist.
        """

    def head(self, key: str) -> ObjectInfo | None:
        """An object's size and ETag; None where it does not exist."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Every object whose key starts with ``prefix``, recursively, in the byte order of the keys.

        Lazy: a caller that stops early pays for the pages it read. A prefix that ends in a slash is a directory;
        one that does not exist is empty.
        """

    def directories(self, prefix: str) -> Iterator[str]:
        """The names of the directories directly below ``prefix`` (empty, or with its slash), in the order of `list`.

        That is the byte order of the names with a slash behind them: ``a-b`` comes before ``a``. Lazy, as `list`.
        Where the storage has real directories, one without any object may be among them; symbolic links are not.
        """

    def unfinished(self, prefix: str) -> Iterator[ObjectInfo]:
        """What writers who were stopped, or are at it, have left below the directory ``prefix`` and is no object yet.

        In no order. `delete` removes it; whoever is at it then is told `StoreUnavailable`. Nothing where the storage
        shows none of it.
        """

    def delete(self, key: str) -> None:
        """Remove an object. Idempotent: an object that is not there counts as removed."""

    def copy(self, source: str, target: str) -> None:
        """Write a copy of an object, replacing what is there; the bytes stay in the store where it can do that.

        Raises `ObjectNotFound` where ``source`` does not exist. Idempotent.
        """

    def prune(self, directory: str) -> None:
        """Remove ``directory`` and those below it as far as they hold no object; nothing where there are only keys.

        Idempotent. A writer that is about to create an object there makes its directory again.
        """

    def passes_link(self, directory: str, below: str) -> bool:
        """Whether a symbolic link lies on the way from ``below`` down to ``directory``, which it may lead anywhere.

        Raises `InvalidInput` for a directory that cannot be, where the storage can tell.
        """
