"""The version that a transaction makes of another version.

Table format, "Conflict Resolution Flow", step 4, and "Assigning Row IDs".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count, islice, pairwise
from typing import Any, TypeVar

import attrs
import numpy as np

from lancekeep.domain import operations
from lancekeep.domain.errors import CommitRefused, ConcurrentModification, Unsupported
from lancekeep.domain.indexes import RowNames, is_system_index
from lancekeep.domain.manifest import Fragment, IndexMetadata, Manifest, SchemaField
from lancekeep.domain.operations import RewriteGroup, RewrittenIndex, Transaction, UpdateMap
from lancekeep.format.append import number_rows
from lancekeep.format.deletions import encode_bitmap
from lancekeep.format.file_facts import LEGACY, Facts
from lancekeep.format.index_coverage import covered_fragments, kind_of
from lancekeep.format.judge import Approved, approve, refuse
from lancekeep.format.judged_fragments import problems_of_new
from lancekeep.format.moved_rows import MovedRows
from lancekeep.format.table_version import TableVersion, successor
from lancekeep.format.values import decoded, encoded

T = TypeVar("T", str, bytes)
NumberRows = Callable[[Any, int, int], int]

_DELETION_FILES, _STABLE_ROW_IDS, _TABLE_CONFIG, _BASE_PATHS = 1, 2, 8, 16
_KNOWN_FLAGS = 31
_CLEANS_UP = "lance.auto_cleanup."
_CHANGES_FRAGMENTS = (operations.Append, operations.Delete, operations.Update, operations.Rewrite)


def next_version(
    base: TableVersion,
    transaction: Transaction,
    now: int,
    name: str,
    restored: TableVersion | None = None,
    *,
    detached: int | None = None,
    facts: Facts | None = None,
) -> Approved:
    """Return the version that follows ``base``, if the judge approves it.

    Args:
        base: the latest version.
        transaction: the change; it does not conflict with the versions after the version that it read.
        now: the time in nanoseconds since 1970.
        name: the table, for messages.
        restored: the version that a restore returns to.
        detached: the number of the new version, if it belongs to no history.
        facts: what is known of the files that the transaction names.

    Raises:
        CommitRefused: the transaction names a fragment that the table does not have, or the engine would refuse the
            version, or could not read it.
        ConcurrentModification: an index covers rewritten fragments, but was not rewritten.
        Damaged: an index of the table is damaged.
        Unsupported: the operation, or a feature of the table, needs the Lance engine.
    """
    _require_known(base.manifest, name)
    refuse(name, list(problems_of_new(transaction.new_fragments, facts or {})))
    if isinstance(transaction.operation, _CHANGES_FRAGMENTS):  # decoded once, for the comparison
        base = attrs.evolve(base, manifest=attrs.evolve(base.manifest, fragments=tuple(base.manifest.fragments)))
    manifest = base.manifest
    match transaction.operation:
        case operations.Append() as append:
            after = attrs.evolve(base, manifest=_with_new(manifest, append.fragments, [*manifest.fragments]))
        case operations.Delete() as delete:
            after = attrs.evolve(base, manifest=_with_deletions(manifest, delete, name))
        case operations.Update() as update:
            after = attrs.evolve(base, manifest=_updated(manifest, update, name))
        case operations.Overwrite() as overwrite:
            _require_no_dictionaries(manifest, overwrite.schema, name)
            after = TableVersion(_overwritten(manifest, overwrite))
        case operations.UpdateConfig() as settings:
            after = attrs.evolve(base, manifest=_configured(manifest, settings, name))
        case operations.UpdateBases() as update_bases:
            after = attrs.evolve(base, manifest=_with_base_paths(manifest, update_bases, name))
        case operations.ReserveFragments() as reserve:
            after = attrs.evolve(base, manifest=_with_reserved(manifest, reserve.num_fragments))
        case operations.Rewrite() as rewrite:
            rewrite = _numbered(manifest, rewrite)
            after = _rewritten(base, rewrite, name)
            transaction = attrs.evolve(transaction, operation=rewrite)
        case operations.Restore() if restored is not None:
            _require_known(restored.manifest, name)
            after = attrs.evolve(restored, manifest=_restored(manifest, restored.manifest))
        case operation:
            raise Unsupported(f"{name}: {type(operation).__name__} is committed by the Lance engine only")
    number = manifest.version + 1 if detached is None else detached
    changed = successor(
        after.manifest, number, now, f"{transaction.read_version}-{transaction.uuid}.txn", transaction.tag
    )
    return approve(name, attrs.evolve(after, manifest=_flagged(changed), transaction=transaction), base, facts)


def _require_known(manifest: Manifest, name: str) -> None:
    unknown = (manifest.reader_feature_flags | manifest.writer_feature_flags) & ~_KNOWN_FLAGS
    if unknown:
        raise Unsupported(f"{name}: the table has the features {unknown}; commit with the Lance engine")
    if any(key.startswith(_CLEANS_UP) for key in manifest.config):
        raise Unsupported(f"{name}: commits to the table clean up old versions; commit with the Lance engine")


def _with_new(
    manifest: Manifest, new: Iterable[Fragment], kept: list[Fragment], number_rows: NumberRows = number_rows
) -> Manifest:
    """Return the manifest with more fragments, which get the next ids and row ids."""
    highest, row_id = _highest(manifest), manifest.next_row_id
    for fragment in _with_ids(manifest, new):
        if manifest.reader_feature_flags & _STABLE_ROW_IDS:
            message = encoded(fragment)
            row_id += number_rows(message, row_id, manifest.version + 1)
            fragment = decoded(Fragment, message)
        kept.append(fragment)
        highest = max(highest, fragment.id)
    given = manifest.max_fragment_id if highest < 0 else highest
    return attrs.evolve(manifest, fragments=kept, max_fragment_id=given, next_row_id=row_id)


def _with_ids(manifest: Manifest, new: Iterable[Fragment]) -> Iterator[Fragment]:
    """Give the next ids to fragments that have none."""
    following = count(_highest(manifest) + 1)
    for fragment in new:
        yield fragment if fragment.id else attrs.evolve(fragment, id=next(following))


def _with_deletions(manifest: Manifest, delete: operations.Delete, name: str) -> Manifest:
    updated = {fragment.id: fragment for fragment in delete.updated_fragments}
    deleted = set(delete.deleted_fragment_ids)
    present = {fragment.id for fragment in manifest.fragments}
    if missing := (updated.keys() | deleted) - present:
        raise CommitRefused(f"{name}: the transaction deletes rows of fragment {min(missing)}, which does not exist")
    fragments = []
    for fragment in manifest.fragments:
        after = updated.get(fragment.id, fragment)
        if after is not fragment and attrs.evolve(after, deletion_file=fragment.deletion_file) != fragment:
            raise CommitRefused(
                f"{name}: the transaction deletes rows of fragment {fragment.id}, which is not as it was read"
            )
        if fragment.id not in deleted:
            fragments.append(after)
    return attrs.evolve(manifest, fragments=fragments)


def _updated(manifest: Manifest, update: operations.Update, name: str) -> Manifest:
    """Return the manifest after rows moved to new fragments, with other values."""
    moves = operations.Update(
        removed_fragment_ids=update.removed_fragment_ids,
        updated_fragments=update.updated_fragments,
        new_fragments=update.new_fragments,
        fields_for_preserving_frag_bitmap=update.fields_for_preserving_frag_bitmap,
    )
    if update != moves:
        raise Unsupported(f"{name}: the update rewrites columns or names keys; commit with the Lance engine")
    delete = operations.Delete(update.updated_fragments, update.removed_fragment_ids)
    kept = _with_deletions(manifest, delete, name)
    if not manifest.reader_feature_flags & _STABLE_ROW_IDS:
        return _with_new(kept, update.new_fragments, [*kept.fragments])
    changed = {*update.removed_fragment_ids, *(fragment.id for fragment in update.updated_fragments)}
    moved = MovedRows([fragment for fragment in manifest.fragments if fragment.id in changed], name)
    return _with_new(kept, update.new_fragments, [*kept.fragments], moved.number)


def _with_reserved(manifest: Manifest, number: int) -> Manifest:
    return attrs.evolve(manifest, max_fragment_id=_highest(manifest) + number)


def _numbered(manifest: Manifest, rewrite: operations.Rewrite) -> operations.Rewrite:
    """Give the next ids to new fragments; a rewrite with new indexes has reserved them."""
    new = _with_ids(manifest, [each for group in rewrite.groups for each in group.new_fragments])
    groups = [
        attrs.evolve(group, new_fragments=tuple(islice(new, len(group.new_fragments)))) for group in rewrite.groups
    ]
    return attrs.evolve(rewrite, groups=tuple(groups))


def _rewritten(base: TableVersion, rewrite: operations.Rewrite, name: str) -> TableVersion:
    """Return the version with the new fragments, and with the indexes that were made for them."""
    if rewrite.old_fragments or rewrite.new_fragments or rewrite.others:
        raise Unsupported(f"{name}: the rewrite has attributes of other releases; commit with the Lance engine")
    if any(is_system_index(index.name) for index in base.indices):
        raise Unsupported(f"{name}: the table has an index of the engine's own; commit with the Lance engine")
    old = {fragment.id: fragment for group in rewrite.groups for fragment in group.old_fragments}
    kept, present = [], {}
    for fragment in base.manifest.fragments:
        if fragment.id in old:
            present[fragment.id] = fragment
        else:
            kept.append(fragment)
    if present != old:
        changed = min(number for number in old if present.get(number) != old[number])
        raise CommitRefused(f"{name}: the transaction rewrites fragment {changed}, which is not as it was read")
    new = [fragment for group in rewrite.groups for fragment in group.new_fragments]
    _require_same_rows(rewrite.groups, name)
    fragments = sorted([*kept, *new], key=lambda fragment: fragment.id)
    if any(one.id == other.id for one, other in pairwise(fragments)):
        raise CommitRefused(f"{name}: the transaction gives a new fragment the id of another fragment")
    replaced = {index.old_id: index for index in rewrite.rewritten_indices}
    stable = bool(base.manifest.reader_feature_flags & _STABLE_ROW_IDS)
    indices = [
        _remapped(index, replaced.get(index.uuid), rewrite.groups, name, stable=stable) for index in base.indices
    ]
    section = base.index_section and attrs.evolve(base.index_section, indices=tuple(indices))
    highest = max([_highest(base.manifest), *(fragment.id for fragment in new)])
    manifest = attrs.evolve(base.manifest, fragments=fragments, max_fragment_id=highest)
    return attrs.evolve(base, manifest=manifest, index_section=section)


def _require_same_rows(groups: Iterable[RewriteGroup], name: str) -> None:
    for group in groups:
        before, after = (sum(each.live_rows for each in part) for part in (group.old_fragments, group.new_fragments))
        counted = all(each.physical_rows for each in group.old_fragments)  # releases before 0.8 did not count
        if counted and before != after:
            raise CommitRefused(f"{name}: the transaction rewrites {before} rows as {after}")


def _remapped(
    index: IndexMetadata, new: RewrittenIndex | None, groups: Iterable[RewriteGroup], name: str, *, stable: bool
) -> IndexMetadata:
    """Return an index that covers the new fragments, by files that name their rows.

    In a table with ``stable`` row ids, the files of most kinds still name them. Zones of removed fragments name no row.
    """
    before = covered_fragments(index, name)
    covered = before
    names = kind_of(index).rows if stable else RowNames.ADDRESSES
    for group in groups:
        old = {fragment.id for fragment in group.old_fragments}
        if covered.isdisjoint(old):
            continue
        if new is None and names is RowNames.ZONES:
            covered = covered - old
            continue
        if new is None and stable and names is not RowNames.ROW_IDS:
            raise Unsupported(f"{name}: the index {index.name} has to be rewritten; commit with the Lance engine")
        if (new is None and not stable) or not old <= covered:
            raise ConcurrentModification(
                f"{name}: the index {index.name} covers fragments that the transaction rewrites, but the transaction "
                "has no index for the new fragments. Read the table again and repeat the operation; nothing was "
                "committed"
            )
        covered = covered - old | {fragment.id for fragment in group.new_fragments}
    if covered != before:
        index = attrs.evolve(index, fragment_bitmap=encode_bitmap(np.array(sorted(covered), np.uint64)))
    if new is None:
        return index
    return attrs.evolve(
        index,
        uuid=new.new_id,
        base_id=None,  # a clone has its own files of the index now, which it read elsewhere before
        index_details=new.new_index_details,
        index_version=new.new_index_version,
        files=new.new_index_files,
    )


def _highest(manifest: Manifest) -> int:
    """Return the highest fragment id that was given; -1 if none was."""
    if manifest.max_fragment_id is not None:
        return manifest.max_fragment_id
    return max((fragment.id for fragment in manifest.fragments), default=-1)


def has_dictionaries(manifest: Manifest, fields: Iterable[SchemaField]) -> bool:
    """Return whether the manifest file has the values of dictionaries of fields."""
    stored = manifest.data_format.version if manifest.data_format else ""
    return stored in (LEGACY, "legacy") and any(field.dictionary is not None for field in fields)


def _require_no_dictionaries(manifest: Manifest, fields: Iterable[SchemaField], name: str) -> None:
    """Refuse columns whose values would have to be in the manifest file."""
    if has_dictionaries(manifest, fields):
        raise Unsupported(f"{name}: dictionaries of the format {LEGACY} are written by the Lance engine only")


def _overwritten(manifest: Manifest, overwrite: operations.Overwrite) -> Manifest:
    emptied = attrs.evolve(
        manifest,
        fragments=(),
        fields=overwrite.schema,
        schema_metadata=overwrite.schema_metadata,
        config={**manifest.config, **overwrite.config_upsert_values},
        base_paths=(*manifest.base_paths, *overwrite.initial_bases),
    )
    new = [attrs.evolve(fragment, id=0) for fragment in overwrite.fragments]  # the engine ignores the ids
    return _with_new(emptied, new, [])


def _configured(manifest: Manifest, update: operations.UpdateConfig, name: str) -> Manifest:
    if update.upsert_values or update.delete_keys or update.schema_metadata or update.field_metadata:
        raise Unsupported(f"{name}: the transaction has attributes of older releases; commit with the Lance engine")
    known = {field.id for field in manifest.fields}
    if missing := update.field_metadata_updates.keys() - known:
        raise CommitRefused(f"{name}: the transaction sets metadata of the field {min(missing)}, which does not exist")

    def described(field: SchemaField) -> SchemaField:
        change = update.field_metadata_updates.get(field.id)
        return field if change is None else attrs.evolve(field, metadata=_merged(field.metadata, change, _encode))

    return attrs.evolve(
        manifest,
        config=_merged(manifest.config, update.config_updates, str),
        table_metadata=_merged(manifest.table_metadata, update.table_metadata_updates, str),
        schema_metadata=_merged(manifest.schema_metadata, update.schema_metadata_updates, _encode),
        fields=tuple(map(described, manifest.fields)),
    )


def _with_base_paths(manifest: Manifest, update: operations.UpdateBases, name: str) -> Manifest:
    """Return the manifest with other places for base paths that it has."""
    new = {base.id: base for base in update.new_bases}
    known = sorted(base.id for base in manifest.base_paths)
    if added := sorted(new.keys() - set(known)):
        raise Unsupported(
            f"{name}: the transaction changes the base path {added[0]}; the latest version has {known or 'none'}. Add "
            "base paths with the Lance engine; nothing was committed"
        )
    return attrs.evolve(manifest, base_paths=tuple(new.get(base.id, base) for base in manifest.base_paths))


def _merged(before: Mapping[str, T], update: UpdateMap | None, convert: Any) -> Mapping[str, T]:
    if update is None:
        return before
    after = {} if update.replace else dict(before)
    for key, value in update.update_entries.items():
        if value is None:
            after.pop(key, None)
        else:
            after[key] = convert(value)
    return after


def _encode(value: str) -> bytes:
    return value.encode()


def _restored(latest: Manifest, restored: Manifest) -> Manifest:
    """Return an earlier manifest as a later version; ids of later versions are not given again."""
    highest = [each.max_fragment_id for each in (latest, restored) if each.max_fragment_id is not None]
    return attrs.evolve(
        restored,
        version=latest.version,
        max_fragment_id=max(highest, default=None),
        next_row_id=max(latest.next_row_id, restored.next_row_id),
    )


def _flagged(manifest: Manifest) -> Manifest:
    """Set the feature flags that follow from the content."""
    deletions = _DELETION_FILES if any(fragment.deletion_file for fragment in manifest.fragments) else 0
    bases = _BASE_PATHS if manifest.base_paths else 0
    config = _TABLE_CONFIG if manifest.config else 0
    kept = ~(_DELETION_FILES | _BASE_PATHS | _TABLE_CONFIG)
    return attrs.evolve(
        manifest,
        reader_feature_flags=manifest.reader_feature_flags & kept | deletions | bases,
        writer_feature_flags=manifest.writer_feature_flags & kept | deletions | bases | config,
    )
