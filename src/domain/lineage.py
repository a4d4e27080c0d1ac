"""Whether a staged manifest descends from the version that it is to follow.

A path is not an identity: a table or branch that is dropped and recreated keeps its path and counts its versions from
the beginning again. A writer that read the old one still stages a well-formed manifest, which names data files that are
gone. Data files have random names, so the fragments of the two manifests, and the transaction that the staged manifest
carries (table format, "Transactions"), show whether the one was made from the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

import attrs

from lancekeep.domain.errors import CommitRefused
from lancekeep.domain.manifest import fields, message_at, section_at, transaction_name, varint

_FIELD, _FRAGMENT, _TRANSACTION_SECTION = 1, 2, 23  # of a Manifest
_ID, _FILES = 1, 2  # of a DataFragment
_PATH, _BASE = 1, 7  # of a DataFile
_NAME, _FIELD_ID, _TYPE = 2, 3, 5  # of a Field


class Operation(IntEnum):
    """The field of a Transaction that holds its operation."""

    UNKNOWN = 0
    APPEND = 100
    DELETE = 101
    OVERWRITE = 102
    CREATE_INDEX = 103
    REWRITE = 104
    MERGE = 105
    RESTORE = 106
    RESERVE_FRAGMENTS = 107
    UPDATE = 108
    PROJECT = 109
    UPDATE_CONFIG = 110
    DATA_REPLACEMENT = 111


_KEEPS_EVERYTHING = {
    Operation.APPEND,
    Operation.CREATE_INDEX,
    Operation.RESERVE_FRAGMENTS,
    Operation.PROJECT,
    Operation.UPDATE_CONFIG,
    Operation.DATA_REPLACEMENT,
}
"""Operations after which every fragment of the version before is still part of the table."""

_KEEPS_COLUMNS = (_KEEPS_EVERYTHING - {Operation.PROJECT}) | {Operation.DELETE, Operation.UPDATE}
"""Operations that take no data file from a fragment they change, unless they give it another."""

_NAMES_WHAT_IT_REMOVES = {Operation.DELETE, Operation.UPDATE, Operation.REWRITE}

_NAMES_WHAT_IT_CREATES = _KEEPS_EVERYTHING | {Operation.DELETE, Operation.REWRITE}
"""Operations that write no data file but those that their transaction lists as new."""

_OPERATIONS = frozenset(Operation) - {Operation.UNKNOWN}


class Fragment(NamedTuple):
    """A fragment: its id, its data files, and the first of them in the table's own directory, if there is one."""

    id: int
    files: frozenset[str]
    own_file: str | None

    @staticmethod
    def of(entry: bytes | memoryview) -> Fragment:
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


@attrs.frozen
class Change:
    """What the transaction of a manifest says that it did.

    created: data files of new fragments, in their order. removed: ids of fragments. replaced: fragments that others
    take the place of. restored: the version that a restore goes back to.
    """

    operation: Operation = Operation.UNKNOWN
    created: Sequence[str] = ()
    removed: frozenset[int] = frozenset()
    replaced: Sequence[Fragment] = ()
    restored: int = 0

    @staticmethod
    def of(transaction: memoryview) -> Change:
        for number, body in fields(transaction):
            if number in _OPERATIONS and isinstance(body, memoryview):
                return _change(Operation(number), body)
        return Change()


@attrs.frozen
class Base:
    """The version that a writer has read.

    transaction: the name of its transaction file, which no other version has.
    """

    version: int
    transaction: str
    branch: str | None = None


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
        shared = previous.body if previous is not None and self.continues(previous) else 0
        self.body: int = max(shared, _scan(self._message, shared)[1])
        """The position after the last fragment; 0 where there is none."""

    def change(self) -> Change:
        """What its transaction did; `Operation.UNKNOWN` where the manifest does not carry it."""
        position = next((value for number, value in self._tail() if number == _TRANSACTION_SECTION), None)
        if not isinstance(position, int):
            return Change()
        return Change.of(section_at(self._content, position))

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
        return _scan(self._message, after)[0]

    def _tail(self) -> Iterator[tuple[int, int | memoryview]]:
        return fields(self._tail_message())

    def _tail_message(self) -> memoryview:
        return memoryview(self._message)[self.body :]


def require_descent(staged: Manifest, previous: Manifest, change: Change) -> str | None:
    """Check that ``staged``, whose transaction is ``change``, was made from ``previous``.

    ``previous`` is the version before, or for a restore the version that it goes back to.

    Returns:
        The name of a data file whose existence decides, where the manifests do not: operations that rewrite columns
        may leave no file of a fragment in place. None where nothing is left to check.

    Raises:
        CommitRefused: it was not.
    """
    if staged.continues(previous):
        new, lost = staged.fragments(previous.body), []
    else:
        here, there = staged.fragments(), previous.fragments()
        known, kept = set(there), set(here)
        new, lost = [entry for entry in here if entry not in known], [entry for entry in there if entry not in kept]
    before = {fragment.id: fragment.files for fragment in map(Fragment.of, lost)}
    gone = dict(before)
    created = frozenset(change.created)
    unexplained = []
    for fragment in map(Fragment.of, new):
        if fragment.files & gone.get(fragment.id, frozenset()):
            if change.operation in _KEEPS_COLUMNS and fragment.files < gone[fragment.id]:
                raise CommitRefused(f"fragment {fragment.id} lacks a data file that it has in that version")
            del gone[fragment.id]  # changed in place: it has a deletion file or another column now
        elif not fragment.files <= created:
            unexplained.append(fragment)
            gone.pop(fragment.id, None)
        elif change.operation is Operation.DATA_REPLACEMENT:
            gone.pop(fragment.id, None)
    if unexplained and change.operation in _NAMES_WHAT_IT_CREATES:
        raise CommitRefused(f"{_names(unexplained[0])}, which neither that version nor its transaction holds")
    if change.operation in _KEEPS_EVERYTHING | _NAMES_WHAT_IT_REMOVES:
        _require_removals(change, gone, before)
    if change.operation is Operation.APPEND and not previous.body and staged.columns() != previous.columns():
        raise CommitRefused("its columns are not those of that version")
    return next((fragment.own_file for fragment in unexplained if fragment.own_file), None)


def _require_removals(change: Change, gone: Mapping[int, frozenset[str]], before: Mapping[int, frozenset[str]]) -> None:
    """Check that the transaction removes what is gone, and that what it removes was there.

    before: the fragments of the version before that are gone or changed, with their data files.
    """
    removed = change.removed | {fragment.id for fragment in change.replaced}
    if lost := gone.keys() - removed:
        raise CommitRefused(f"it lacks fragment {min(lost)} of that version, which its transaction keeps")
    if strange := removed - before.keys():
        raise CommitRefused(f"it removes fragment {min(strange)}, which that version does not have")
    for fragment in change.replaced:
        if not fragment.files & before[fragment.id]:
            raise CommitRefused(f"{_names(fragment)}, which that version does not hold")


def _names(fragment: Fragment) -> str:
    return f"it names the data file {min(fragment.files, default='')!r} of fragment {fragment.id}"


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
                replaced=[Fragment.of(value) for number, value in parts if number == 1],
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
    found, end, length = [], 0, 0
    while at < len(message):
        tag, at = varint(message, at)
        wire = tag & 7
        if wire == 2:
            length, at = varint(message, at)
            at += length
            if tag >> 3 == _FRAGMENT:
                found.append(message[at - length : at])
                end = at
        elif wire == 0:
            _, at = varint(message, at)
        elif wire in (1, 5):
            at += 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire} at byte {at}")
    if at > len(message):
        raise ValueError(f"a field of {length} bytes runs past the end of the message")
    return found, end
