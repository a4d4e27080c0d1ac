"""Which transactions may follow each other.

Table format, "Conflict Resolution". A writer builds a transaction on the version that it has read. If other
transactions were committed in the meantime, the writer compares its own with each of them. `RULES` is the whole
knowledge: for each pair of operations, the first rule whose condition holds decides. A pair of known operations without
such a rule is compatible. An operation that is not in the table conflicts with everything.

The comparison is not symmetric. An overwrite may follow an append; an append may not follow an overwrite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import attrs

from lancekeep.domain.lineage import Operation


class Outcome(IntEnum):
    """What a writer does about a transaction committed before its own.

    The outcomes are in the order of severity.
    """

    COMPATIBLE = 0
    """Commit. The own transaction needs no change beyond new fragment ids, row ids and the new version."""
    REBASABLE = 1
    """Take the change of the other transaction into the own one, then commit."""
    RETRYABLE = 2
    """Give up the transaction. Read the table again, and repeat the operation."""
    INCOMPATIBLE = 3
    """Give up the operation. Repeating it could mean something else than its caller wanted."""


class Rows(Protocol):
    """A set of rows of a fragment, as offsets: a frozenset, or a bitmap."""

    def isdisjoint(self, other: Any, /) -> bool:
        """Return whether the sets have no common row."""


@attrs.frozen(kw_only=True)
class Effect:
    """What a transaction reads and changes, as far as others can conflict.

    Attributes:
        operation: its operation.
        changed: the fragments that get other data files or deletions.
        removed: the fragments that it removes or replaces.
        rewritten: the fragments of `changed` whose data files change, not only their deletions.
        deleted: the rows that it deletes, as offsets by fragment; None if they are not known.
        fields: the fields whose values it replaces or indexes, or that a projection keeps; None stands for all fields.
        indexes: the names of the indexes that it creates or removes.
        covered: the fragments that its new indexes cover.
        settings: the entries of configuration and metadata that it sets, as pairs of a kind ("config", "table",
            "schema" or the id of a field) and a key. The key "" stands for all keys of a kind.
        bases: the ids, names and paths of the base paths that it adds.
        stable_row_ids: whether its table has stable row ids, so that indexes survive a rewrite.
        preserves_nullability: for a merge or projection, whether rows that were written for the schema before it
            conform to the schema after it. pylance 14 states this for each change of columns.
    """

    operation: Operation
    changed: frozenset[int] = frozenset()
    removed: frozenset[int] = frozenset()
    rewritten: frozenset[int] = frozenset()
    deleted: Mapping[int, Rows] | None = None
    fields: frozenset[int] | None = frozenset()
    indexes: frozenset[str] = frozenset()
    covered: frozenset[int] = frozenset()
    settings: frozenset[tuple[str | int, str]] = frozenset()
    bases: frozenset[str] = frozenset()
    stable_row_ids: bool = False
    preserves_nullability: bool = False

    @property
    def settings_of_fields(self) -> frozenset[int]:
        """The fields whose metadata the transaction sets."""
        return frozenset(kind for kind, _ in self.settings if isinstance(kind, int))

    @property
    def fragments(self) -> frozenset[int]:
        """The fragments that the transaction changes or removes."""
        return self.changed | self.removed


class When(StrEnum):
    """The condition of a rule, in the words of the documentation."""

    ALWAYS = "always"
    SAME_FRAGMENT = "they change or remove a common fragment"
    FRAGMENT_REMOVED = "the committed transaction removed a fragment that the new transaction changes"
    MERGEABLE = "they delete different rows of a common fragment, and neither changes its data files or removes it"
    SAME_FIELD = "they replace a common field of a common fragment"
    INDEXED_FIELD = "the replaced field is indexed"
    COVERED = "the index covers a rewritten fragment, and the table has no stable row ids"
    SAME_INDEX = "they create or remove an index of the same name"
    SAME_SETTING = "they set a common key"
    FIELD_DROPPED = "the metadata of a dropped field is set"
    SCHEMA_SETTING = "the metadata of the schema or of a field is set"
    NULLABILITY = "the merge or projection does not say that it preserves nullability"
    REPLACED_DROPPED = "a replaced field is dropped"
    SAME_BASE = "they add or change a base path of the same id, name or path"


class Rule(NamedTuple):
    """An outcome and its condition."""

    outcome: Outcome
    when: When = When.ALWAYS


def _share_fragment(own: Effect, other: Effect) -> bool:
    return not own.fragments.isdisjoint(other.fragments)


def _mergeable(own: Effect, other: Effect) -> bool:
    common = own.fragments & other.fragments
    return (
        bool(common)
        and own.deleted is not None
        and other.deleted is not None
        and common.isdisjoint(own.removed | other.removed | own.rewritten | other.rewritten)
        and all(own.deleted[fragment].isdisjoint(other.deleted[fragment]) for fragment in common)
    )


def _share_field(own: Effect, other: Effect) -> bool:
    return own.fields is None or other.fields is None or not own.fields.isdisjoint(other.fields)


def _sets_dropped_field(own: Effect, other: Effect) -> bool:
    kept = other.fields
    return kept is not None and not own.settings_of_fields <= kept


def _share_setting(own: Effect, other: Effect) -> bool:
    def covers(one: frozenset[tuple[str | int, str]], another: frozenset[tuple[str | int, str]]) -> bool:
        kinds = {kind for kind, _ in another}
        return any(key == "" and kind in kinds for kind, key in one)

    ours, theirs = own.settings, other.settings
    return not ours.isdisjoint(theirs) or covers(ours, theirs) or covers(theirs, ours)


def _sets_schema(own: Effect, other: Effect) -> bool:
    return any(kind not in {"config", "table"} for kind, _ in own.settings | other.settings)


def _may_forbid_nulls(own: Effect, other: Effect) -> bool:
    schemas = {Operation.MERGE, Operation.PROJECT}
    return any(each.operation in schemas and not each.preserves_nullability for each in (own, other))


def _replaces_dropped_field(own: Effect, other: Effect) -> bool:
    return own.fields is not None and other.fields is not None and not own.fields <= other.fields


def _covers_rewritten(own: Effect, other: Effect) -> bool:
    survive = own.stable_row_ids or other.stable_row_ids
    return not survive and not (own.covered | other.covered).isdisjoint(own.removed | other.removed)


_HOLDS: Mapping[When, Callable[[Effect, Effect], bool]] = {
    When.ALWAYS: lambda own, other: True,
    When.SAME_FRAGMENT: _share_fragment,
    When.FRAGMENT_REMOVED: lambda own, other: not own.changed.isdisjoint(other.removed),
    When.MERGEABLE: _mergeable,
    When.SAME_FIELD: lambda own, other: _share_fragment(own, other) and _share_field(own, other),
    When.INDEXED_FIELD: _share_field,
    When.COVERED: _covers_rewritten,
    When.SAME_INDEX: lambda own, other: not own.indexes.isdisjoint(other.indexes),
    When.SAME_SETTING: _share_setting,
    When.FIELD_DROPPED: _sets_dropped_field,
    When.SCHEMA_SETTING: _sets_schema,
    When.NULLABILITY: _may_forbid_nulls,
    When.REPLACED_DROPPED: _replaces_dropped_field,
    When.SAME_BASE: lambda own, other: not own.bases.isdisjoint(other.bases),
}


def retryable(when: When = When.ALWAYS) -> Rule:
    """Return the rule that such a pair is retried."""
    return Rule(Outcome.RETRYABLE, when)


def incompatible(when: When = When.ALWAYS) -> Rule:
    """Return the rule that such a pair is incompatible."""
    return Rule(Outcome.INCOMPATIBLE, when)


_APPEND, _DELETE, _OVERWRITE = Operation.APPEND, Operation.DELETE, Operation.OVERWRITE
_CREATE_INDEX, _REWRITE, _MERGE = Operation.CREATE_INDEX, Operation.REWRITE, Operation.MERGE
_RESTORE, _RESERVE, _UPDATE = Operation.RESTORE, Operation.RESERVE_FRAGMENTS, Operation.UPDATE
_PROJECT, _CONFIG, _REPLACEMENT = Operation.PROJECT, Operation.UPDATE_CONFIG, Operation.DATA_REPLACEMENT
_MEM_WAL, _CLONE, _BASES = Operation.UPDATE_MEM_WAL_STATE, Operation.CLONE, Operation.UPDATE_BASES

_GONE = {_OVERWRITE: (incompatible(),), _RESTORE: (incompatible(),)}
"""After an overwrite or a restore, the table that the writer has read is gone."""
_WAL = {_MEM_WAL: (incompatible(),)}
_NO_NULLS = (retryable(When.NULLABILITY),)
_MERGE_DELETIONS = (Rule(Outcome.REBASABLE, When.MERGEABLE), retryable(When.SAME_FRAGMENT))

RULES: Mapping[Operation, Mapping[Operation, tuple[Rule, ...]]] = MappingProxyType(
    {
        _APPEND: {**_GONE, **_WAL, _MERGE: _NO_NULLS, _PROJECT: _NO_NULLS},
        _DELETE: {
            **_GONE,
            **_WAL,
            _DELETE: _MERGE_DELETIONS,
            _UPDATE: _MERGE_DELETIONS,
            _MERGE: (retryable(),),
            _REWRITE: (retryable(When.SAME_FRAGMENT),),
            _REPLACEMENT: (retryable(When.SAME_FRAGMENT),),
        },
        _UPDATE: {
            **_GONE,
            **_WAL,
            _DELETE: _MERGE_DELETIONS,
            _UPDATE: _MERGE_DELETIONS,
            _MERGE: (retryable(),),
            _PROJECT: (*_NO_NULLS, retryable(When.REPLACED_DROPPED)),
            _REWRITE: (retryable(When.SAME_FRAGMENT),),
            _REPLACEMENT: (retryable(When.SAME_FRAGMENT),),
        },
        _OVERWRITE: {
            **_WAL,
            _OVERWRITE: (retryable(),),
            _CONFIG: (retryable(When.SAME_SETTING),),
        },
        _CREATE_INDEX: {
            **_GONE,
            **_WAL,
            _CREATE_INDEX: (retryable(When.SAME_INDEX),),
            _REWRITE: (retryable(When.COVERED),),
            _REPLACEMENT: (retryable(When.INDEXED_FIELD),),
        },
        _REWRITE: {
            **_GONE,
            _DELETE: (retryable(When.SAME_FRAGMENT),),
            _UPDATE: (retryable(When.SAME_FRAGMENT),),
            _REWRITE: (retryable(When.SAME_FRAGMENT),),
            _REPLACEMENT: (retryable(When.SAME_FRAGMENT),),
            _MERGE: (retryable(),),
            _CREATE_INDEX: (retryable(When.COVERED),),
        },
        _MERGE: {
            **_GONE,
            **_WAL,
            _PROJECT: (incompatible(),),
            _APPEND: (retryable(),),
            _DELETE: (retryable(),),
            _UPDATE: (retryable(),),
            _MERGE: (retryable(),),
            _REWRITE: (retryable(),),
            _REPLACEMENT: (retryable(),),
            _CONFIG: (retryable(When.SCHEMA_SETTING),),
        },
        _PROJECT: {
            **_GONE,
            **_WAL,
            _APPEND: _NO_NULLS,
            _UPDATE: _NO_NULLS,
            _REPLACEMENT: _NO_NULLS,
            _MERGE: (retryable(),),
            _PROJECT: (retryable(),),
        },
        _RESTORE: {**_WAL, _CONFIG: (incompatible(When.SCHEMA_SETTING),)},
        _RESERVE: _GONE,
        _CONFIG: {
            _OVERWRITE: (incompatible(When.SCHEMA_SETTING),),
            _RESTORE: (incompatible(When.SCHEMA_SETTING),),
            _MERGE: (retryable(When.SCHEMA_SETTING),),
            _PROJECT: (incompatible(When.FIELD_DROPPED),),
            _CONFIG: (incompatible(When.SAME_SETTING),),
        },
        _REPLACEMENT: {
            **_GONE,
            **_WAL,
            _DELETE: (incompatible(When.FRAGMENT_REMOVED),),
            _UPDATE: (retryable(When.SAME_FIELD),),
            _REPLACEMENT: (retryable(When.SAME_FIELD),),
            _CREATE_INDEX: (retryable(When.INDEXED_FIELD),),
            _REWRITE: (retryable(When.SAME_FRAGMENT),),
            _MERGE: (retryable(),),
            _PROJECT: (*_NO_NULLS, incompatible(When.REPLACED_DROPPED)),
        },
        _BASES: {_BASES: (incompatible(When.SAME_BASE),)},
    }
)
"""`RULES[own][committed]`: the rules for a new transaction against a committed transaction."""


class Clash(NamedTuple):
    """The outcome for a transaction, and the committed transaction that decides it.

    Attributes:
        outcome: the most severe outcome.
        committed: the first committed transaction with that outcome, or None if there is no conflict.
        rule: the rule that applied, or None if an operation has no rules.
    """

    outcome: Outcome
    committed: Effect | None = None
    rule: Rule | None = None


def conflict(own: Effect, committed: Iterable[Effect]) -> Clash:
    """Compare a transaction with those committed since the version it read.

    An operation without rules, on either side, is incompatible with everything.
    """
    worst = Clash(Outcome.COMPATIBLE)
    for other in committed:
        found = _compare(own, other)
        if found.outcome > worst.outcome:
            worst = found
    return worst


def _compare(own: Effect, other: Effect) -> Clash:
    if own.operation not in RULES or other.operation not in _KNOWN:
        return Clash(Outcome.INCOMPATIBLE, other)
    for rule in RULES[own.operation].get(other.operation, ()):
        if _HOLDS[rule.when](own, other):
            return Clash(rule.outcome, other, rule)
    return Clash(Outcome.COMPATIBLE)


_KNOWN = frozenset(RULES) | {_MEM_WAL}
