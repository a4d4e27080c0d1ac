"""The keys of appends and upserts that share commits.

A group of them records its keys before its commit, in one object. The object names the version that the group is
about to commit, and the transaction file that identifies this version, so any process can find out whether the group
committed. Records of many groups are later merged into larger objects.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
import sys
from array import array
from base64 import b64decode, b64encode
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from enum import Enum, auto
from itertools import pairwise
from typing import Any

import attrs

from lancekeep.domain.errors import Damaged

GROUPS = 0
"""The level of the object of one group. Merged objects have higher levels."""

MOST_LEVEL = 4
MOST_COUNTED = 2**16 - 1
"""The maximum number of inserted and of updated rows in a record."""
MERGED_GROUPS = 64
"""The number of groups that are merged into one object; `_MERGED` is the same for higher levels."""
_MERGED = 16
_MAGIC = b"LKKEYS01"
_KEY = 16
_COUNTS = struct.Struct(">HH")
"""The rows that an upsert has inserted and updated, at the end of its request's digest."""
UPSERT_DIGEST = _KEY - _COUNTS.size
"""The bytes of the digest of an upsert's request."""
_PREFIX = 8
_RECORD = struct.Struct(">16s16sQQ16s")
_TEXT = "ascii"
_TRANSACTION = re.compile(r"([0-9]{1,19})-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.txn")


class Effect(Enum):
    """What is known of a recorded key.

    COMMITTED: its rows are in a version. IN_LOG: it has a log of its own. UNKNOWN: the version that would show whether
    it was committed has been removed. PENDING: the version that it may be committed as does not exist yet; a committer
    of this version excludes it.
    """

    COMMITTED = auto()
    IN_LOG = auto()
    UNKNOWN = auto()
    PENDING = auto()


_IN_LOG, _UNKNOWN = 0, 2**64 - 1
"""The versions that stand for other effects; no version of a table has these numbers."""


@attrs.frozen
class SharedKey:
    """A keyed append or upsert.

    The digest of an upsert is shorter: in a record, its counts follow.

    Attributes:
        name: the digest of the request's key.
        request: the digest of what was requested, including the rows.
        request_name: the name of the request's log; empty if the key was read from a record.
    """

    name: bytes
    request: bytes
    request_name: str = attrs.field(default="", eq=False)

    @staticmethod
    def of(name: str, *request: str, is_upsert: bool = False) -> SharedKey:
        """Return the key of a request.

        Args:
            name: the name of the request, in hexadecimal digits.
            request: digests of what was requested.
            is_upsert: whether the request upserts rows.
        """
        told = hashlib.sha256(json.dumps(request).encode()).digest()
        return SharedKey(bytes.fromhex(name)[:_KEY], told[: UPSERT_DIGEST if is_upsert else _KEY], name)

    @property
    def is_valid(self) -> bool:
        """Whether the digests have the lengths of the key of a request."""
        return len(self.name) == _KEY and len(self.request) in (_KEY, UPSERT_DIGEST)

    @property
    def is_upsert(self) -> bool:
        """Whether it is the key of an upsert; unknown if it was read from a record."""
        return len(self.request) == UPSERT_DIGEST

    def counted(self, inserted: int, updated: int) -> SharedKey | None:
        """Return the key of an upsert with its counts; None if they are too large."""
        if max(inserted, updated) > MOST_COUNTED:
            return None
        return attrs.evolve(self, request=self.request + _COUNTS.pack(inserted, updated))

    def repeats(self, recorded: SharedKey) -> bool:
        """Return whether a record with this key is about the same request."""
        return recorded.request.startswith(self.request)


@attrs.frozen
class Recorded:
    """The record of a key.

    Attributes:
        key: the keyed append or upsert.
        effect: what is known of it.
        version: the version that it was committed as.
        transaction: the name of the transaction file of this version.
    """

    key: SharedKey
    effect: Effect
    version: int = 0
    transaction: str = ""

    @property
    def counts(self) -> tuple[int, int]:
        """The rows that an upsert has inserted and updated."""
        inserted, updated = _COUNTS.unpack(self.key.request[UPSERT_DIGEST:])
        return inserted, updated

    def encode(self) -> bytes:
        """Return the stored form: 64 bytes."""
        if self.effect is not Effect.COMMITTED:
            version = _IN_LOG if self.effect is Effect.IN_LOG else _UNKNOWN
            return _RECORD.pack(self.key.name, self.key.request, version, 0, bytes(_KEY))
        read, uuid = transaction_of(self.transaction)
        return _RECORD.pack(self.key.name, self.key.request, self.version, read, uuid)

    @staticmethod
    def decode(content: bytes) -> Recorded:
        """Return a record from its stored form."""
        name, request, version, read, uuid = _RECORD.unpack(content)
        key = SharedKey(name, request)
        if version == _IN_LOG:
            return Recorded(key, Effect.IN_LOG)
        if version == _UNKNOWN:
            return Recorded(key, Effect.UNKNOWN)
        return Recorded(key, Effect.COMMITTED, version, f"{read}-{'-'.join(_in_parts(uuid.hex()))}.txn")


def transaction_of(name: str) -> tuple[int, bytes]:
    """Return what the name of a transaction file says.

    Returns:
        The version that the transaction read, and the bytes of its id.

    Raises:
        ValueError: it is not such a name.
    """
    found = _TRANSACTION.fullmatch(name)
    if found is None:
        raise ValueError(f"not the name of a transaction file: {name[:80]!r}")
    return int(found[1]), bytes.fromhex(found[2].replace("-", ""))


def _in_parts(digits: str) -> list[str]:
    return [digits[start:end] for start, end in pairwise((0, 8, 12, 16, 20, 32))]


@attrs.frozen
class Group:
    """The keys of one group, recorded before its commit.

    Attributes:
        keys: the keyed appends or upserts; upserts of a version have their counts.
        version: the version that the group is about to commit; 0 for requests that have a log of their own.
        transaction: the name of the transaction file of this version.
    """

    keys: tuple[SharedKey, ...]
    version: int = 0
    transaction: str = ""

    def encode(self) -> bytes:
        """Return the content of the group's object."""
        keys = b64encode(b"".join(key.name + key.request.ljust(_KEY, b"\0") for key in self.keys)).decode(_TEXT)
        fields = {"version": self.version, "transaction": self.transaction, "keys": keys}
        return json.dumps(fields, separators=(",", ":")).encode()

    @staticmethod
    def decode(content: bytes, name: str) -> Group:
        """Return a group from its object, which is input.

        Raises:
            Damaged: the content is not a group; ``name`` names it in the message.
        """
        try:
            fields: dict[str, Any] = json.loads(content)
            version, transaction = fields["version"], fields["transaction"]
            if not (type(version) is int and isinstance(transaction, str) and 0 <= version < 2**63):
                raise TypeError("a field has another type")
            if version:
                transaction_of(transaction)
            keys = b64decode(fields["keys"], validate=True)
            if len(keys) % (2 * _KEY):
                raise ValueError("the keys are cut off")
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise _damaged(name) from error
        parts = [keys[at : at + 2 * _KEY] for at in range(0, len(keys), 2 * _KEY)]
        shared = tuple(SharedKey(part[:_KEY], part[_KEY:]) for part in parts)
        return Group(shared, version, transaction)

    def recorded(self, effect: Effect) -> list[Recorded]:
        """Return the records of the keys."""
        return [Recorded(key, effect, self.version, self.transaction) for key in self.keys]

    def effect(self, latest: int, transaction: str | None) -> Effect | None:
        """Return the effect of the group; None if it was not and will not be committed.

        Args:
            latest: the latest version of the table.
            transaction: the name of the transaction file of the group's version; None if the version was removed, or
                does not exist yet.
        """
        if not self.version:
            return Effect.IN_LOG
        if self.version > latest:
            return Effect.PENDING
        if transaction is None:
            return Effect.UNKNOWN
        return Effect.COMMITTED if transaction == self.transaction else None


class Segment:
    """Merged records, sorted by the names of their keys."""

    def __init__(self, records: bytes) -> None:
        self._records = records
        # The first bytes of each name as a number: the search then compares no bytes objects.
        self._prefixes = array("Q", b"".join(_prefixes(records)))
        if sys.byteorder == "little":
            self._prefixes.byteswap()

    def __len__(self) -> int:
        return len(self._prefixes)

    @staticmethod
    def of(records: Iterable[Recorded]) -> Segment:
        """Merge records. Of a key with several records, each different one is kept."""
        return Segment(b"".join(sorted({each.encode() for each in records})))

    @staticmethod
    def merged(segments: Sequence[Segment]) -> Segment:
        """Merge segments."""
        return Segment(b"".join(sorted({each for segment in segments for each in _parts(segment._records)})))

    def encode(self) -> bytes:
        """Return the content of the segment's object."""
        return _MAGIC + hashlib.sha256(self._records).digest() + self._records

    @staticmethod
    def decode(content: bytes, name: str) -> Segment:
        """Return a segment from its object, which is input.

        Raises:
            Damaged: the content is not a segment; ``name`` names it in the message.
        """
        start = len(_MAGIC) + hashlib.sha256().digest_size
        records = content[start:]
        if content[:start] != _MAGIC + hashlib.sha256(records).digest() or len(records) % _RECORD.size:
            raise _damaged(name)
        return Segment(records)

    def find(self, name: bytes) -> list[Recorded]:
        """Return the records of a key."""
        prefix = int.from_bytes(name[:_PREFIX], "big")
        found = []
        for at in range(bisect_left(self._prefixes, prefix), len(self._prefixes)):
            if self._prefixes[at] != prefix:
                break
            part = self._records[at * _RECORD.size : (at + 1) * _RECORD.size]
            if part.startswith(name):
                found.append(Recorded.decode(part))
        return found


def _parts(records: bytes) -> Iterable[bytes]:
    return (records[at : at + _RECORD.size] for at in range(0, len(records), _RECORD.size))


def _prefixes(records: bytes) -> Iterable[bytes]:
    return (records[at : at + _PREFIX] for at in range(0, len(records), _RECORD.size))


def object_name(level: int, uuid: str) -> str:
    """Return the name of an object.

    Names of higher levels sort after names of lower levels. An object is merged into one of a higher level before it is
    removed, so a listing in the order of the names sees one of them.
    """
    return f"{level}-{uuid}"


def level_of(name: str) -> int | None:
    """Return the level of an object; None if another release has written the object."""
    level, _, uuid = name.partition("-")
    return int(level) if level in map(str, range(MOST_LEVEL + 1)) and uuid else None


def to_merge(level: int, names: Sequence[str]) -> Sequence[str]:
    """Return which objects of a level to merge into the next one now."""
    return names if level < MOST_LEVEL and len(names) >= (_MERGED if level else MERGED_GROUPS) else ()


def decisive(records: Iterable[Recorded]) -> Recorded | None:
    """Return the record that decides about a key; None if nothing is known of it."""
    order = (Effect.COMMITTED, Effect.IN_LOG, Effect.UNKNOWN, Effect.PENDING)
    return min(records, key=lambda each: order.index(each.effect), default=None)


def _damaged(name: str) -> Damaged:
    return Damaged(
        f"{name} does not hold the keys of appends and upserts. Restore it, or remove it; requests whose keys it held "
        "must then not be repeated with their keys"
    )
