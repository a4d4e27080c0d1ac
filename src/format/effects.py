"""What a recorded transaction changes, for the comparison with others.

Table format, "Conflict Resolution". `lancekeep.domain.conflicts` compares the effects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from lancekeep.domain import operations
from lancekeep.domain.conflicts import Effect, Rows
from lancekeep.domain.lineage import Operation
from lancekeep.domain.manifest import BasePath, Fragment, IndexMetadata
from lancekeep.domain.operations import Transaction, UpdateMode
from lancekeep.format.deletions import decode_bitmap

MOST_FRAGMENTS = 1 << 24
"""A bitmap of more fragments is damaged: a manifest of so many has gigabytes."""

Deleted = Mapping[int, Rows]


def effect_of(
    transaction: Transaction | None, *, stable_row_ids: bool = False, deleted: Deleted | None = None
) -> Effect:
    """Return the effect of a transaction.

    Args:
        transaction: the transaction; None if it is missing, which conflicts with everything.
        stable_row_ids: whether its table has stable row ids.
        deleted: the rows that the transaction deletes, as offsets by fragment, if they are known.

    Raises:
        ValueError: the fragment bitmap of an index is damaged.
    """
    if transaction is None or type(transaction.operation) not in _EFFECTS:
        return Effect(operation=Operation.UNKNOWN)
    operation, describe = _EFFECTS[type(transaction.operation)]
    return Effect(
        operation=operation, stable_row_ids=stable_row_ids, deleted=deleted, **describe(transaction.operation)
    )


def _nothing(operation: Any) -> dict[str, Any]:
    return {}


def _deletes(operation: operations.Delete) -> dict[str, Any]:
    return {"changed": _ids(operation.updated_fragments), "removed": frozenset(operation.deleted_fragment_ids)}


def _updates(operation: operations.Update) -> dict[str, Any]:
    changed = _ids(operation.updated_fragments)
    columns = operation.update_mode is UpdateMode.REWRITE_COLUMNS
    return {
        "changed": changed,
        "removed": frozenset(operation.removed_fragment_ids),
        "rewritten": changed if columns else frozenset(),
        "fields": frozenset(operation.fields_modified) if columns else None,
    }


def _indexes(operation: operations.CreateIndex) -> dict[str, Any]:
    new = operation.new_indices
    return {
        "indexes": frozenset(index.name for index in (*new, *operation.removed_indices)),
        "covered": frozenset(fragment for index in new for fragment in _covered(index)),
        "fields": frozenset(field for index in new for field in index.fields),
    }


def _covered(index: IndexMetadata) -> Iterable[int]:
    return map(int, decode_bitmap(index.fragment_bitmap, MOST_FRAGMENTS)) if index.fragment_bitmap else ()


def _rewrites(operation: operations.Rewrite) -> dict[str, Any]:
    old = [*operation.old_fragments, *(each for group in operation.groups for each in group.old_fragments)]
    return {"removed": _ids(old)}


def _merges(operation: operations.Merge) -> dict[str, Any]:
    every = _ids(operation.fragments)
    return {
        "changed": every,
        "rewritten": every,
        "fields": None,
        "preserves_nullability": operation.preserves_nullability,
    }


def _projects(operation: operations.Project) -> dict[str, Any]:
    return {
        "fields": frozenset(field.id for field in operation.schema),
        "preserves_nullability": operation.preserves_nullability,
    }


def _replaces(operation: operations.DataReplacement) -> dict[str, Any]:
    changed = frozenset(each.fragment_id for each in operation.replacements)
    files = [each.new_file for each in operation.replacements if each.new_file is not None]
    return {"changed": changed, "rewritten": changed, "fields": frozenset(i for file in files for i in file.fields)}


def _overwrites(operation: operations.Overwrite) -> dict[str, Any]:
    return {"settings": frozenset(("config", key) for key in operation.config_upsert_values)}


def _configures(operation: operations.UpdateConfig) -> dict[str, Any]:
    return {"settings": frozenset(_settings(operation))}


def _settings(operation: operations.UpdateConfig) -> Iterator[tuple[str | int, str]]:
    maps: list[tuple[str | int, operations.UpdateMap | None]] = [
        ("config", operation.config_updates),
        ("table", operation.table_metadata_updates),
        ("schema", operation.schema_metadata_updates),
        *operation.field_metadata_updates.items(),
    ]
    for kind, update in maps:
        if update is not None:
            yield from ((kind, key) for key in update.update_entries)
            if update.replace:
                yield kind, ""
    yield from (("config", key) for key in (*operation.upsert_values, *operation.delete_keys))
    yield from (("schema", "") for _ in range(bool(operation.schema_metadata)))
    yield from ((field, "") for field in operation.field_metadata)


def _adds_bases(operation: operations.UpdateBases) -> dict[str, Any]:
    return {"bases": frozenset(name for base in operation.new_bases for name in _names(base))}


def _names(base: BasePath) -> Iterator[str]:
    yield f"id {base.id}"
    yield f"path {base.path}"
    if base.name is not None:
        yield f"name {base.name}"


def _ids(fragments: Iterable[Fragment]) -> frozenset[int]:
    return frozenset(fragment.id for fragment in fragments)


_EFFECTS: Mapping[type[Any], tuple[Operation, Callable[[Any], dict[str, Any]]]] = {
    operations.Append: (Operation.APPEND, _nothing),
    operations.Delete: (Operation.DELETE, _deletes),
    operations.Overwrite: (Operation.OVERWRITE, _overwrites),
    operations.CreateIndex: (Operation.CREATE_INDEX, _indexes),
    operations.Rewrite: (Operation.REWRITE, _rewrites),
    operations.Merge: (Operation.MERGE, _merges),
    operations.Restore: (Operation.RESTORE, _nothing),
    operations.ReserveFragments: (Operation.RESERVE_FRAGMENTS, _nothing),
    operations.Update: (Operation.UPDATE, _updates),
    operations.Project: (Operation.PROJECT, _projects),
    operations.UpdateConfig: (Operation.UPDATE_CONFIG, _configures),
    operations.DataReplacement: (Operation.DATA_REPLACEMENT, _replaces),
    operations.UpdateMemWalState: (Operation.UPDATE_MEM_WAL_STATE, _nothing),
    operations.UpdateBases: (Operation.UPDATE_BASES, _adds_bases),
}
