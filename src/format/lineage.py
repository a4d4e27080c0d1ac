"""What the lineage check reads of two manifests (table format, "Manifest" and "Transactions").

The decisions over the values are `lancekeep.domain.lineage`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lancekeep.domain.lineage import Change, Difference, Fragment, Operation
from lancekeep.format.manifest import fields, message_at, section_at, transaction_name, varint

_FIELD, _FRAGMENT, _TRANSACTION_SECTION = 1, 2, 23  # of a Manifest
_ID, _FILES = 1, 2  # of a DataFragment
_PATH, _BASE = 1, 7  # of a DataFile
_NAME, _FIELD_ID, _TYPE = 2, 3, 5  # of a Field

_OPERATIONS = frozenset(Operation) - {Operation.UNKNOWN}


class Manifest:
    """A manifest as far as its lineage goes.

    previous: a manifest that it probably continues. Then the bytes up to the last fragment that they share are equal,
    and only what follows is decoded: an append costs little, however many fragments the table has.

    Raises `IndexError` or `ValueError` where the bytes are not a manifest.
    """

    def __init__(self, content: bytes, previous: Manifest | None = None) -> None:
        self.size = len(content)
        self._content = content
        self._message = bytes(message_at(content))
        self._shared = previous.body if previous is not None and self.continues(previous) else 0
        found, end = _scan(self._message, self._shared)
        self._new = found if self._shared else None  # else they are all fragments, too many to keep
        self.body: int = max(self._shared, end)
        """The position after the last fragment; 0 where there is none."""

    def change(self) -> Change:
        """What its transaction did; `Operation.UNKNOWN` where the manifest does not carry it."""
        position = next((value for number, value in self._tail() if number == _TRANSACTION_SECTION), None)
        if not isinstance(position, int):
            return Change()
        return decode_change(section_at(self._content, position))

    @property
    def transaction(self) -> str:
        """The name of its transaction file, which identifies the version."""
        return transaction_name(self._tail_message())

    def columns(self) -> list[tuple[object, ...]]:
        """Name, id and type of each field of the schema."""
        return [
            tuple(
                sorted(
                    (inner, bytes(content) if isinstance(content, memoryview) else content)
                    for inner, content in fields(value)
                    if inner in (_NAME, _FIELD_ID, _TYPE)
                )
            )
            for number, value in fields(memoryview(self._message))
            if number == _FIELD and isinstance(value, memoryview)
        ]

    def continues(self, previous: Manifest) -> bool:
        """Whether it begins with the schema and all fragments of ``previous``."""
        return self._message.startswith(previous._message[: previous.body])

    def fragments(self, after: int = 0) -> list[bytes]:
        """The encoded fragments that begin at byte ``after`` of the message or later."""
        return self._new if self._new is not None and after == self._shared else _scan(self._message, after)[0]

    def _tail(self) -> Iterator[tuple[int, int | memoryview]]:
        return fields(self._tail_message())

    def _tail_message(self) -> memoryview:
        return memoryview(self._message)[self.body :]


def difference(staged: Manifest, previous: Manifest) -> Difference:
    """Return how the fragments of ``staged`` differ from those of ``previous``."""
    if staged.continues(previous):
        new, lost = staged.fragments(previous.body), list[bytes]()
    else:
        here, there = staged.fragments(), previous.fragments()
        known, kept = set(there), set(here)
        new, lost = [entry for entry in here if entry not in known], [entry for entry in there if entry not in kept]
    other_columns = not previous.body and staged.columns() != previous.columns()
    return Difference([*map(decode_fragment, new)], [*map(decode_fragment, lost)], other_columns)


def decode_fragment(entry: bytes | memoryview) -> Fragment:
    number, files, own = 0, [], None
    for field, value in fields(memoryview(entry)):
        if field == _ID and isinstance(value, int):
            number = value
        elif field == _FILES and isinstance(value, memoryview):
            path, based = "", False
            for inner, content in fields(value):
                if inner == _PATH and isinstance(content, memoryview):
                    path = bytes(content).decode()
                based |= inner == _BASE
            files.append(path)
            own = path if own is None and not based else own
    return Fragment(number, frozenset(files), own)


def decode_change(transaction: memoryview) -> Change:
    for number, body in fields(transaction):
        if number in _OPERATIONS and isinstance(body, memoryview):
            return _change(Operation(number), body)
    return Change()


def _change(operation: Operation, body: memoryview) -> Change:
    messages = [(number, value) for number, value in fields(body) if isinstance(value, memoryview)]
    match operation:
        case Operation.APPEND | Operation.OVERWRITE:
            return Change(operation, _files(value for number, value in messages if number == 1))
        case Operation.UPDATE:
            return Change(
                operation, _files(value for number, value in messages if number == 3), frozenset(_numbers(body, 1))
            )
        case Operation.DELETE:
            return Change(operation, removed=frozenset(_numbers(body, 2)))
        case Operation.REWRITE:
            groups = [value for number, value in messages if number == 3]
            inside = [(number, value) for group in groups for number, value in fields(group)]
            inside += [(number, value) for number, value in messages if number in (1, 2)]
            parts = [(number, value) for number, value in inside if isinstance(value, memoryview)]
            return Change(
                operation,
                _files(value for number, value in parts if number == 2),
                replaced=[decode_fragment(value) for number, value in parts if number == 1],
            )
        case Operation.DATA_REPLACEMENT:
            groups = [value for number, value in messages if number == 1]
            files = [value for group in groups for number, value in fields(group) if number == 2]
            return Change(operation, [_path(file) for file in files if isinstance(file, memoryview)])
        case Operation.RESTORE:
            return Change(operation, restored=next(_numbers(body, 1), 0))
    return Change(operation)


def _files(entries: Iterable[memoryview]) -> list[str]:
    return [
        _path(value)
        for entry in entries
        for number, value in fields(entry)
        if number == _FILES and isinstance(value, memoryview)
    ]


def _path(file: memoryview) -> str:
    found = (bytes(value) for number, value in fields(file) if number == _PATH and isinstance(value, memoryview))
    return next(found, b"").decode()


def _numbers(message: memoryview, wanted: int) -> Iterator[int]:
    """The values of a repeated integer, packed or not."""
    for number, value in fields(message):
        if number != wanted:
            continue
        if isinstance(value, int):
            yield value
            continue
        at = 0
        while at < len(value):
            one, at = varint(value, at)
            yield one


def _scan(message: bytes, at: int) -> tuple[list[bytes], int]:
    """The encoded fragments from a position between two fields on, and the position after the last of them."""
    found, after, length, end = [], 0, 0, len(message)
    while at < end:
        tag = message[at]  # as in `fields`
        at += 1
        if tag > 0x7F:
            tag, at = varint(message, at - 1)
        wire = tag & 7
        if wire == 2:
            length = message[at]
            at += 1
            if length > 0x7F:
                length, at = varint(message, at - 1)
            at += length
            if tag >> 3 == _FRAGMENT:
                found.append(message[at - length : at])
                after = at
        elif wire == 0:
            _, at = varint(message, at)
        elif wire == 1:
            at += 8
        elif wire == 5:
            at += 4
        else:
            raise ValueError(f"wire type {wire} at byte {at}")
    if at > end:
        raise ValueError(f"a field of {length} bytes runs past the end of the message")
    return found, after
