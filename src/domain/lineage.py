"""Whether a staged manifest descends from the version that it follows.

A path is not an identity. A table or branch that is dropped and recreated keeps its path and restarts its version
numbers. A writer that read the old table still stages a well-formed manifest, which names data files that no longer
exist. Data files have random names. The fragments of two manifests, and the transaction inside the staged one (table
format, "Transactions"), therefore show whether one was made from the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

import attrs

from lancekeep.domain.errors import CommitRefused


class Operation(IntEnum):
    """The operation of a transaction, by its field number in ``message Transaction``."""

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
    UPDATE_MEM_WAL_STATE = 112
    CLONE = 113
    UPDATE_BASES = 114


_KEEPS_EVERYTHING = {
    Operation.APPEND,
    Operation.CREATE_INDEX,
    Operation.RESERVE_FRAGMENTS,
    Operation.PROJECT,
    Operation.UPDATE_CONFIG,
    Operation.DATA_REPLACEMENT,
}
"""Operations that keep every fragment of the previous version."""

_KEEPS_FRAGMENTS = _KEEPS_EVERYTHING | {Operation.MERGE}
"""Operations that keep every fragment of the previous version, if not its data files."""

_KEEPS_COLUMNS = (_KEEPS_EVERYTHING - {Operation.PROJECT}) | {Operation.DELETE, Operation.UPDATE}
"""Operations that remove no data file from a fragment unless they add another data file."""

_DELETES_ROWS = {Operation.DELETE, Operation.UPDATE}

_REPLACES_EVERYTHING = {Operation.OVERWRITE, Operation.RESTORE}
"""Operations that have the same result whatever others have committed since the version that the writer read."""

_NAMES_WHAT_IT_REMOVES = {Operation.DELETE, Operation.UPDATE, Operation.REWRITE}

_NAMES_WHAT_IT_CREATES = _KEEPS_EVERYTHING | {Operation.DELETE, Operation.REWRITE}
"""Operations whose transaction lists every data file that they write."""


class Deletions(NamedTuple):
    """The deletion file of a fragment.

    Attributes:
        read_version: the version that its writer read.
        id: a random number.
        rows: the number of deleted rows; 0 if the manifest does not tell.
    """

    read_version: int
    id: int
    rows: int


class Fragment(NamedTuple):
    """A fragment of a table.

    Attributes:
        id: its id.
        files: the paths of its data files.
        own_file: the first of these files in the table's own directory, or None.
        deletions: its deletion file, or None.
    """

    id: int
    files: frozenset[str]
    own_file: str | None
    deletions: Deletions | None


@attrs.frozen
class Change:
    """What the transaction of a manifest did.

    Attributes:
        operation: `Operation.UNKNOWN` if the manifest carries no transaction, or one of a later format.
        created: the data files of new fragments, in order.
        removed: the ids of removed fragments.
        replaced: the fragments that a compaction replaced.
        restored: the version that a restore returns to.
        read_version: the version that the writer read, or a later version whose changes the transaction includes.
    """

    operation: Operation = Operation.UNKNOWN
    created: Sequence[str] = ()
    removed: frozenset[int] = frozenset()
    replaced: Sequence[Fragment] = ()
    restored: int = 0
    read_version: int = 0


@attrs.frozen
class Difference:
    """How the fragments of a manifest differ from an earlier manifest.

    Attributes:
        added: the fragments that only the later manifest has, or has in another form.
        lost: the fragments that only the earlier manifest has, or has in another form.
        other_columns: whether the earlier manifest has no fragment and other columns.
        other_bases: whether the later manifest names a directory of files that the earlier one does not.
    """

    added: Sequence[Fragment]
    lost: Sequence[Fragment]
    other_columns: bool = False
    other_bases: bool = False


@attrs.frozen
class Base:
    """The version that a writer has read.

    Attributes:
        version: its number.
        transaction: the name of its transaction file, which no other version has. Version 0 has none: the content of
            the marker by which the directory of the table is reserved.
        branch: the branch, or None for the table itself.
    """

    version: int
    transaction: str
    branch: str | None = None


def refuse_accidental_overwrite(version: int, reads_version_zero: bool, name: str) -> None:
    """Refuse a manifest above version 1 whose transaction was built on version 0.

    The Lance engine turns an append into an overwrite if it misses the latest version on its first read and finds it on
    the second. Committing that overwrite would wipe the table. Its transaction claims to have read version 0, which no
    honest append, overwrite, restore or branch of an existing table does.

    Args:
        version: the version that the manifest is staged for.
        reads_version_zero: whether its transaction was built on version 0.
        name: the table, for the message.

    Raises:
        CommitRefused: the manifest is such an overwrite.
    """
    if version > 1 and reads_version_zero:
        raise CommitRefused(
            f"{name}: version {version} was built as if the table were empty (its transaction read version 0) and "
            "would replace every row. A writer does this when it could not see the latest version at first; nothing "
            "was committed. Open the table again and repeat the write; to replace the rows on purpose, overwrite the "
            "table from a handle that has read it."
        )


def require_descent(difference: Difference, change: Change) -> str | None:
    """Check that a staged manifest was made from the version it is compared with.

    That version is the previous version, or the version to which a restore returns.

    Args:
        difference: how the staged manifest differs from that version.
        change: what the transaction of the staged manifest did.

    Returns:
        The path of a data file that must exist, if the manifests alone cannot prove the descent. Operations that
        rewrite columns may keep no file of a fragment. None if the proof is complete.

    Raises:
        CommitRefused: the staged manifest was not made from that version.
    """
    if difference.other_bases and change.operation is not Operation.UNKNOWN:
        raise CommitRefused("it names files of a shallow clone's source, which that version does not read")
    before = {fragment.id: fragment for fragment in difference.lost}
    gone = dict(before)
    created = frozenset(change.created)
    unexplained = []
    for fragment in difference.added:
        earlier = gone.get(fragment.id)
        if earlier is not None and fragment.files & earlier.files:
            if change.operation in _KEEPS_COLUMNS and fragment.files < earlier.files:
                raise CommitRefused(f"fragment {fragment.id} lacks a data file that it has in that version")
            _require_deletions(change.operation, fragment, earlier)
            del gone[fragment.id]  # The fragment was changed in place: it gained a deletion file or a column.
        elif not fragment.files <= created:
            unexplained.append(fragment)
            gone.pop(fragment.id, None)
        elif change.operation is Operation.DATA_REPLACEMENT:
            gone.pop(fragment.id, None)
    if unexplained and change.operation in _NAMES_WHAT_IT_CREATES:
        raise CommitRefused(f"{_names(unexplained[0])}, which neither that version nor its transaction holds")
    if change.operation in _KEEPS_FRAGMENTS | _NAMES_WHAT_IT_REMOVES:
        _require_removals(change, gone, before)
    if change.operation is Operation.APPEND and difference.other_columns:
        raise CommitRefused("its columns differ from the columns of that version")
    return next((fragment.own_file for fragment in unexplained if fragment.own_file), None)


def versions_to_compare(difference: Difference, change: Change, version: int) -> range:
    """Return the versions between the version that was read and the new version.

    The writer has compared its transaction with the transactions of these versions, but only where they existed: the
    engine finds no conflict with a version that was cleaned up.

    Args:
        difference: how the staged manifest differs from the previous version.
        change: what the transaction of the staged manifest did.
        version: the version that the manifest is staged for.
    """
    if change.operation is Operation.UNKNOWN or change.operation in _REPLACES_EVERYTHING:
        return range(0)
    before = {fragment.id: fragment.deletions for fragment in difference.lost}
    written = [
        fragment.deletions.read_version
        for fragment in difference.added
        if fragment.deletions is not None and fragment.deletions != before.get(fragment.id, fragment.deletions)
    ]
    return range(min([change.read_version, *written]) + 1, version - 1)


def _require_deletions(operation: Operation, fragment: Fragment, earlier: Fragment) -> None:
    """Check that a fragment that was changed in place keeps its deleted rows."""
    deletions, before = fragment.deletions, earlier.deletions
    if operation is Operation.UNKNOWN or before is None or deletions == before:
        return
    if operation not in _DELETES_ROWS | _REPLACES_EVERYTHING:
        raise CommitRefused(f"fragment {fragment.id} has another deletion file than in that version")
    if operation in _DELETES_ROWS and (deletions is None or 0 < deletions.rows < before.rows):
        raise CommitRefused(f"fragment {fragment.id} lacks deleted rows that it has in that version")


def _require_removals(change: Change, gone: Mapping[int, Fragment], before: Mapping[int, Fragment]) -> None:
    """Check that the transaction removes all missing fragments and no others.

    ``before`` holds the fragments that are missing or changed; ``gone`` those that are missing.
    """
    removed = change.removed | {fragment.id for fragment in change.replaced}
    if lost := gone.keys() - removed:
        raise CommitRefused(f"it lacks fragment {min(lost)} of that version, which its transaction keeps")
    if strange := removed - before.keys():
        raise CommitRefused(f"it removes fragment {min(strange)}, which that version does not have")
    for fragment in change.replaced:
        if not fragment.files & before[fragment.id].files:
            raise CommitRefused(f"{_names(fragment)}, which that version does not hold")
        if fragment.deletions != before[fragment.id].deletions:
            raise CommitRefused(f"it replaces fragment {fragment.id} without the rows deleted in that version")


def _names(fragment: Fragment) -> str:
    return f"it names the data file {min(fragment.files, default='')!r} of fragment {fragment.id}"
