"""The version that a transaction makes of another one.

Table format, "Conflict Resolution Flow", step 4, and "Assigning Row IDs".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import attrs

from lancekeep.domain import operations
from lancekeep.domain.errors import CommitRefused, Unsupported
from lancekeep.domain.manifest import Fragment, Manifest, SchemaField, Timestamp
from lancekeep.domain.operations import Transaction, UpdateMap
from lancekeep.format.append import number_rows
from lancekeep.format.table_version import TableVersion
from lancekeep.format.values import decoded, encoded

T = TypeVar("T", str, bytes)

_DELETION_FILES, _STABLE_ROW_IDS, _TABLE_CONFIG, _BASE_PATHS = 1, 2, 8, 16
_KNOWN_FLAGS = 31
_CLEANS_UP = "lance.auto_cleanup."


def next_version(
    base: TableVersion,
    transaction: Transaction,
    now: int,
    name: str,
    restored: TableVersion | None = None,
    *,
    detached: int | None = None,
) -> TableVersion:
    """Return the version that follows ``base``.

    Args:
        base: the latest version.
        transaction: the change; it does not conflict with the versions after the one that it read.
        now: the time in nanoseconds since 1970.
        name: the table, for messages.
        restored: the version that a restore returns to.
        detached: the number of the new version, if it belongs to no history.

    Raises:
        CommitRefused: the transaction names a fragment that the table does not have.
        Unsupported: the operation, or a feature of the table, needs the Lance engine.
    """
    manifest = base.manifest
    _require_known(manifest, name)
    match transaction.operation:
        case operations.Append() as append:
            after = attrs.evolve(base, manifest=_with_new(manifest, append.fragments, [*manifest.fragments]))
        case operations.Delete() as delete:
            after = attrs.evolve(base, manifest=_with_deletions(manifest, delete, name))
        case operations.Overwrite() as overwrite:
            after = TableVersion(_overwritten(manifest, overwrite))
        case operations.UpdateConfig() as update:
            after = attrs.evolve(base, manifest=_configured(manifest, update, name))
        case operations.Restore() if restored is not None:
            _require_known(restored.manifest, name)
            after = attrs.evolve(restored, manifest=_restored(manifest, restored.manifest))
        case operation:
            raise Unsupported(f"{name}: {type(operation).__name__} is committed by the Lance engine only")
    changed = attrs.evolve(
        after.manifest,
        version=manifest.version + 1 if detached is None else detached,
        timestamp=Timestamp(*divmod(now, 10**9)),
        transaction_file=f"{transaction.read_version}-{transaction.uuid}.txn",
        tag=transaction.tag,
        version_aux_data=0,
    )
    return attrs.evolve(after, manifest=_flagged(changed), transaction=transaction)


def _require_known(manifest: Manifest, name: str) -> None:
    unknown = (manifest.reader_feature_flags | manifest.writer_feature_flags) & ~_KNOWN_FLAGS
    if unknown:
        raise Unsupported(f"{name}: the table has the features {unknown}; commit with the Lance engine")
    if any(key.startswith(_CLEANS_UP) for key in manifest.config):
        raise Unsupported(f"{name}: commits to the table clean up old versions; commit with the Lance engine")


def _with_new(manifest: Manifest, new: Iterable[Fragment], kept: list[Fragment]) -> Manifest:
    """Return the manifest with more fragments, which get the next ids and row ids."""
    number = -1 if manifest.max_fragment_id is None else manifest.max_fragment_id
    if manifest.max_fragment_id is None and kept:
        number = max(fragment.id for fragment in kept)
    row_id = manifest.next_row_id
    for fragment in new:
        number += 1
        message = encoded(attrs.evolve(fragment, id=number))
        if manifest.reader_feature_flags & _STABLE_ROW_IDS:
            number_rows(message, row_id, manifest.version + 1)
            row_id += fragment.physical_rows
        kept.append(decoded(Fragment, message))
    highest = manifest.max_fragment_id if number < 0 else number
    return attrs.evolve(manifest, fragments=kept, max_fragment_id=highest, next_row_id=row_id)


def _with_deletions(manifest: Manifest, delete: operations.Delete, name: str) -> Manifest:
    updated = {fragment.id: fragment for fragment in delete.updated_fragments}
    deleted = set(delete.deleted_fragment_ids)
    present = {fragment.id for fragment in manifest.fragments}
    if missing := (updated.keys() | deleted) - present:
        raise CommitRefused(f"{name}: the transaction deletes rows of fragment {min(missing)}, which does not exist")
    fragments = [updated.get(fragment.id, fragment) for fragment in manifest.fragments if fragment.id not in deleted]
    return attrs.evolve(manifest, fragments=fragments)


def _overwritten(manifest: Manifest, overwrite: operations.Overwrite) -> Manifest:
    emptied = attrs.evolve(
        manifest,
        fields=overwrite.schema,
        schema_metadata=overwrite.schema_metadata,
        config={**manifest.config, **overwrite.config_upsert_values},
        base_paths=(*manifest.base_paths, *overwrite.initial_bases),
    )
    return _with_new(emptied, overwrite.fragments, [])


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
    """Return an earlier manifest as a later version; ids that were given since are not given again."""
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
