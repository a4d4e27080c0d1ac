"""The checks of an object store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from lancekeep.application.certification.checks import (
    CONTENDERS,
    IN_FLIGHT,
    LARGE,
    ROUNDS,
    UNUSUAL_NAMES,
    Broken,
    NotClaimed,
    Planned,
    WritesInParts,
    found,
    judge,
    race,
    raced,
    shown,
)
from lancekeep.domain.errors import ObjectNotFound
from lancekeep.ports.object_store import ObjectStore

_OVERWRITES = (
    "Do not commit to this storage: two writers could both win a version, and the second would overwrite the first"
)
_STALE = (
    "Do not keep tables on this storage: a writer or reader that misses an acknowledged write works on an old state"
)
_UNREADABLE = "Do not keep tables on this storage: reads do not return the written bytes"
_UNLISTED = "Do not rely on listings here: V1 directories, fsck and cleanup depend on them"


class ObjectStoreChecks:
    """The checks of one object store, with several connections to it.

    Attributes:
        used: Every key that was written.
    """

    def __init__(self, clients: Sequence[ObjectStore], directory: str) -> None:
        self.used: set[str] = set()
        self._clients = clients
        self._store, self._other = clients[0], clients[1]
        self._directory = directory

    def plan(self) -> list[Planned]:
        return [
            Planned("object store", name, measure, not_for)
            for name, measure, not_for in (
                ("create_only_put", self._create_only_put, _OVERWRITES),
                ("create_only_put_race", self._create_only_put_race, _OVERWRITES),
                ("create_in_flight", self._create_in_flight, _OVERWRITES),
                ("create_only_multipart", self._create_only_multipart, _OVERWRITES),
                ("create_only_copy", self._create_only_copy, _OVERWRITES),
                ("create_only_copy_race", self._create_only_copy_race, _OVERWRITES),
                ("read_after_write", self._read_after_write, _STALE),
                ("overwrite_visible", self._overwrite_visible, _STALE),
                ("read_after_delete", self._read_after_delete, _STALE),
                ("list_after_write", self._list_after_write, _STALE),
                ("list_after_delete", self._list_after_delete, _STALE),
                ("large_value", self._large_value, _UNREADABLE),
                ("unusual_keys", self._unusual_keys, _UNREADABLE),
                ("copy", self._copy, _UNREADABLE),
                ("etag_on_copy", self._etag_on_copy, _UNREADABLE),
                ("directories", self._directories, _UNLISTED),
                ("modified", self._modified, _UNLISTED),
            )
        ]

    def _key(self, name: str) -> str:
        key = f"{self._prefix}{name}"
        self.used.add(key)
        return key

    @property
    def _prefix(self) -> str:
        return f"{self._directory}/objects/"

    # -- one writer only

    def _create_only_put(self) -> str:
        self._require_create()
        key = self._key("create")
        self._refuses_a_second(self._store, key, b"first", b"second")
        self._store.delete(key)
        if not self._store.put_if_absent(key, b"third"):
            raise Broken("a key that was deleted could not be created again")
        return "a second create was refused, the content was kept, and a deleted key can be created again"

    def _create_only_put_race(self) -> str:
        self._require_create()
        for number in range(ROUNDS):
            contents = [b"%d" % contender for contender in range(CONTENDERS)]
            silent = self._race_to_create(self._key(f"race-{number}"), self._clients, contents)
        return f"{raced(CONTENDERS, ROUNDS)}: one won each time, and its content is stored{silent}"

    def _create_in_flight(self) -> str:
        """Create a key while other creates of it are in progress.

        A server may reply with 409.
        """
        self._require_create()
        contents = [bytes([contender]) * IN_FLIGHT for contender in range(CONTENDERS)]
        silent = self._race_to_create(self._key("in-flight"), self._clients, contents)
        return f"{CONTENDERS} overlapping writes of {shown(IN_FLIGHT)} to one key: one won{silent}"

    def _create_only_multipart(self) -> str:
        self._require_create()
        stores = [store.in_parts() for store in self._clients[:2] if isinstance(store, WritesInParts)]
        if not stores:
            raise NotClaimed("this adapter writes no object in parts")
        key, contents = self._key("parts"), [bytes([contender]) * LARGE for contender in range(3)]
        self._refuses_a_second(stores[0], key, contents[0], contents[1])
        self._race_to_create(self._key("parts-race"), stores, contents[1:])
        return f"a second create of {shown(LARGE)} in parts was refused, and one of two concurrent creates won"

    def _create_only_copy(self) -> str:
        self._require_copy()
        first, second, key = self._key("copy-1"), self._key("copy-2"), self._key("copied")
        self._store.put(first, b"first")
        self._store.put(second, b"second")
        told = self._store.copy_if_absent(first, key), self._store.copy_if_absent(second, key)
        if told != (True, False) or self._other.get(key) != b"first":
            raise Broken(f"two copies to one key were answered {told}, and {self._other.get(key)!r} is stored")
        return "a second copy to the key was refused, and the content was kept"

    def _create_only_copy_race(self) -> str:
        self._require_copy()
        contents = [b"%d" % contender for contender in range(CONTENDERS)]
        sources = [self._key(f"source-{contender}") for contender in range(CONTENDERS)]
        for source, content in zip(sources, contents, strict=True):
            self._store.put(source, content)
        for number in range(ROUNDS):
            silent = self._race_to_copy(sources, self._key(f"copy-race-{number}"), contents)
        return f"{raced(CONTENDERS, ROUNDS)}: one won each time, and its content is stored{silent}"

    def _refuses_a_second(self, store: ObjectStore, key: str, first: bytes, second: bytes) -> None:
        if not store.put_if_absent(key, first):
            raise Broken("the first create of a free key was refused")
        told, stored = store.put_if_absent(key, second), self._other.get(key)
        if stored != first:
            raise Broken(f"a second create {'was acknowledged' if told else 'was refused'} and replaced the content")
        if told:
            raise Broken("a second create of the same key was acknowledged, although its content is not stored")

    def _race_to_create(self, key: str, stores: Sequence[ObjectStore], contents: Sequence[bytes]) -> str:
        told = race(stores, lambda store, me: store.put_if_absent(key, contents[me]))
        return judge(told, contents, self._store.get(key))

    def _race_to_copy(self, sources: Sequence[str], key: str, contents: Sequence[bytes]) -> str:
        told = race(self._clients, lambda store, me: store.copy_if_absent(sources[me], key))
        return judge(told, contents, self._store.get(key))

    def _require_create(self) -> None:
        if not self._store.guarantees.atomic_create:
            raise NotClaimed("this adapter claims no create-only write; the commit store alone has to decide")

    def _require_copy(self) -> None:
        if not self._store.guarantees.atomic_copy:
            raise NotClaimed("this adapter makes no create-only copy; the final manifest is written create-only")

    # -- a second client sees acknowledged writes

    def _read_after_write(self) -> str:
        for number in range(ROUNDS):
            key, content = self._key(f"read-{number}"), b"%d" % number
            if self._other.head(key) is not None:
                raise Broken(f"{key!r} existed before it was written")
            self._store.put(key, content)
            info = found(self._other.head(key), key)
            if self._other.get(key) != content or info.size != len(content):
                raise Broken("a second client did not read the acknowledged write")
        return "a second client, which had just found no object, read the acknowledged write"

    def _overwrite_visible(self) -> str:
        key = self._key("overwritten")
        for content in (b"first, and longer", b"second", b""):
            self._store.put(key, content)
            if self._other.get(key) != content or found(self._other.head(key), key).size != len(content):
                raise Broken("a second client read an old content after an overwrite")
        return "a second client read the new content and size after each overwrite"

    def _read_after_delete(self) -> str:
        key = self._key("deleted")
        self._store.put(key, b"content")
        self._store.delete(key)
        if self._other.head(key) is not None:
            raise Broken("a second client found an object that was deleted")
        try:
            self._other.get(key)
        except ObjectNotFound:
            self._store.delete(key)
            return "a second client found nothing, and deleting again did no harm"
        raise Broken("a second client read an object that was deleted")

    def _list_after_write(self) -> str:
        keys = [self._key(f"listed/{name}") for name in ("a/b", "a-b", "ab", "a.b", "b/c/d")]
        for number, key in enumerate(keys):
            self._store.put(key, b"content")
            self._require_listed(f"{self._prefix}listed/", keys[: number + 1])
        return "a second client listed every object as soon as it was written, in the byte order of the keys"

    def _list_after_delete(self) -> str:
        keys = [self._key(f"unlisted/{number}") for number in range(5)]
        for key in keys:
            self._store.put(key, b"content")
        while keys:
            self._store.delete(keys.pop())
            self._require_listed(f"{self._prefix}unlisted/", keys)
        return "a second client no longer listed any object that was deleted"

    def _require_listed(self, prefix: str, keys: Sequence[str]) -> None:
        listed = [info.key for info in self._other.list(prefix)]
        expected = sorted(keys, key=str.encode)
        if listed != expected:
            raise Broken(f"a second client listed {listed}, where {expected} was written")

    # -- objects are returned unchanged

    def _large_value(self) -> str:
        key, content = self._key("large"), bytes(range(256)) * (LARGE // 256)
        self._store.put(key, content)
        if self._other.get(key) != content or found(self._other.head(key), key).size != LARGE:
            raise Broken(f"{shown(LARGE)} came back changed")
        return f"{shown(LARGE)} were returned unchanged"

    def _unusual_keys(self) -> str:
        keys = [self._key(f"unusual/{name}") for name in UNUSUAL_NAMES]
        for key in keys:
            self._store.put(key, key.encode())
        self._require_listed(f"{self._prefix}unusual/", keys)
        for key in keys:
            if self._other.get(key) != key.encode():
                raise Broken(f"{key!r} came back with the content of another key")
        return f"{len(keys)} keys with spaces, per cent signs, quotes and other scripts were written, listed and read"

    def _copy(self) -> str:
        source, target = self._key("original"), self._key("duplicate")
        self._store.put(target, b"replaced by the copy")
        self._store.put(source, b"content")
        self._store.copy(source, target)
        if (self._other.get(source), self._other.get(target)) != (b"content", b"content"):
            raise Broken("a copy differs from its source")
        return "a copy replaced the target, and the source stayed"

    def _etag_on_copy(self) -> str:
        source, target = self._key("etag"), self._key("etag-copied")
        self._store.put(source, b"content")
        self._store.copy(source, target)
        before, after = found(self._store.head(source), source).etag, found(self._store.head(target), target).etag
        if before is None or after is None:
            raise NotClaimed("this adapter states no ETag; nothing depends on an ETag")
        return f"a copy {'keeps' if before == after else 'changes'} the ETag; nothing depends on it"

    def _directories(self) -> str:
        for name in ("a/x", "a-b/x", "b/c/x", "file"):
            self._store.put(self._key(f"directories/{name}"), b"")
        found = list(self._other.directories(f"{self._prefix}directories/"))
        if found != ["a-b", "a", "b"]:
            raise Broken(f"the directories a-b, a and b were listed as {found}")
        return "the directories below a prefix were listed, in order"

    def _modified(self) -> str:
        key = self._key("modified")
        self._store.put(key, b"")
        modified = found(self._store.head(key), key).modified
        if modified is None:
            raise NotClaimed("this storage keeps no time; fsck removes here only with grace=0")
        ahead = (modified - datetime.now(UTC)).total_seconds()
        return f"objects have a time; the clocks of the storage and of this machine differ by {abs(ahead):.0f} s"
