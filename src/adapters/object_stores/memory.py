"""Object store in the memory of the process, for tests and experiments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from threading import Lock

from lancekeep.adapters.object_stores.keys import check_directory, check_key, check_prefix
from lancekeep.domain.errors import ConcurrentModification, ObjectNotFound
from lancekeep.ports.object_store import ObjectInfo, ObjectStoreGuarantees, Piece, Tail


def _now() -> datetime:
    return datetime.now(UTC)


class MemoryObjectStore:
    """Keep objects in memory, separate from the native engine's ``memory://``.

    Args:
        root_uri: The URI of the root.
        clock: Returns the time for `ObjectInfo.modified`.
    """

    guarantees = ObjectStoreGuarantees(atomic_create=True, atomic_copy=True, durable=False)

    def __init__(self, root_uri: str = "memory:///", clock: Callable[[], datetime] = _now) -> None:
        self.root_uri = root_uri
        self._clock = clock
        self._objects: dict[str, bytes] = {}
        self._modified: dict[str, datetime] = {}
        self._lock = Lock()

    def prove(self) -> None:
        """Do nothing: a lock guarantees the condition."""

    def get(self, key: str) -> bytes:
        check_key(key)
        try:
            return self._objects[key]
        except KeyError as error:
            raise ObjectNotFound(f"{self.root_uri}{key}: no such object") from error

    def tail(self, key: str, most: int) -> Tail | None:
        check_key(key)
        content = self._objects.get(key)
        return None if content is None else Tail(content[-most:], len(content))

    def piece(self, key: str, start: int, most: int, stamp: str | None = None) -> Piece:
        content = self.get(key)
        found = str(hash(content))
        if stamp not in (None, found):
            raise ConcurrentModification(f"{self.root_uri}{key} was changed while it was read")
        return Piece(content[start : start + most], len(content), found)

    def put(self, key: str, content: bytes) -> None:
        check_key(key)
        with self._lock:
            self._write(key, content)

    def put_pieces(self, key: str, size: int, pieces: Iterable[bytes]) -> None:
        self.put(key, b"".join(pieces))

    def put_if_absent(self, key: str, content: bytes) -> bool:
        check_key(key)
        with self._lock:
            if key in self._objects:
                return False
            self._write(key, content)
            return True

    def copy_if_absent(self, source: str, target: str) -> bool:
        return self.put_if_absent(target, self.get(source))

    def head(self, key: str) -> ObjectInfo | None:
        check_key(key)
        content = self._objects.get(key)
        return None if content is None else ObjectInfo(key, len(content), None, self._modified.get(key))

    def list(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        with self._lock:  # keys sort by code point, as UTF-8 bytes do
            keys = sorted(key for key in self._objects if key.startswith(prefix) and key > after)
            found = [info for info in map(self.head, keys) if info is not None]
        return iter(found)

    def directories(self, prefix: str) -> Iterator[str]:
        check_directory(prefix)
        keys = (info.key[len(prefix) :] for info in self.list(prefix))
        return iter(dict.fromkeys(key.partition("/")[0] for key in keys if "/" in key))

    def unfinished(self, prefix: str) -> Iterator[ObjectInfo]:
        """Return nothing: objects are written atomically."""
        check_directory(prefix)
        return iter(())

    def delete(self, key: str) -> None:
        check_key(key)
        with self._lock:
            self._objects.pop(key, None)

    def copy(self, source: str, target: str) -> None:
        self.put(target, self.get(source))

    def prune(self, directory: str) -> None:
        """Do nothing: directories do not exist."""

    def close(self) -> None:
        """Do nothing: there are no connections."""

    def passes_link(self, directory: str, below: str) -> bool:
        return False

    def _write(self, key: str, content: bytes) -> None:
        self._objects[key] = bytes(content)
        self._modified[key] = self._clock()
