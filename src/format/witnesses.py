"""What the version before it and its transaction say about a version.

Table format, "Conflict Resolution". A flipped bit can leave a manifest that decodes, and that no rule forbids. Most of
its content is also in the manifest before it, or in its transaction. Only what no operation of that kind changes is
compared, so that a version of any release of Lance agrees with its witnesses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import attrs

from lancekeep.domain import operations
from lancekeep.domain.indexes import is_system_index
from lancekeep.domain.manifest import DataFile, Fragment, IndexMetadata, Manifest, SchemaField
from lancekeep.domain.operations import Operation, Transaction
from lancekeep.format.deletions import decode_bitmap
from lancekeep.format.effects import MOST_FRAGMENTS
from lancekeep.format.judged_fragments import Problem
from lancekeep.format.table_version import TableVersion
from lancekeep.format.values import differing

_WHOLLY_NEW = (operations.Overwrite, operations.Restore, operations.Clone)
"""Operations after which the version before says nothing."""
_NEW_SCHEMA = (operations.Merge, operations.Project)
_NEW_SETTINGS = (operations.UpdateConfig, operations.Merge)
_KEEPS_INDEXES = (
    operations.Append,
    operations.Delete,
    operations.CreateIndex,
    operations.UpdateConfig,
    operations.ReserveFragments,
    operations.UpdateBases,
)
_KEEPS_FRAGMENTS = (*_KEEPS_INDEXES, operations.Rewrite)
"""Operations that leave each fragment that they do not name unchanged."""

Content = tuple[object, ...]


def contradictions(
    version: TableVersion, before: TableVersion | None, recorded: Transaction | None
) -> Iterator[Problem]:
    """Yield where a version contradicts its witnesses. One of the two is damaged.

    Args:
        version: the version.
        before: the version before it, if it exists.
        recorded: the content of its transaction file, if that exists.
    """
    transaction = version.transaction or recorded
    if version.transaction is not None and recorded is not None and version.transaction != recorded:
        yield Problem("the transaction in the manifest", "the content of its transaction file", "other content")
    if transaction is None or transaction.operation is None:
        return
    operation, manifest = transaction.operation, version.manifest
    yield from _of_new_fragments(manifest, transaction.new_fragments)
    if isinstance(operation, operations.Overwrite | operations.Merge | operations.Project):
        yield from _of_fields(manifest.fields, operation.schema, "its transaction")
    if isinstance(operation, operations.CreateIndex):
        yield from _of_indexes(version, _settled(version, operation.new_indices), "its transaction")
    if before is None or isinstance(operation, _WHOLLY_NEW) or before.manifest.version + 1 != manifest.version:
        return
    yield from _of_settings(manifest, before.manifest, operation)
    if isinstance(operation, _KEEPS_FRAGMENTS):
        yield from _of_kept_fragments(manifest, before.manifest, operation)
    if isinstance(operation, _KEEPS_INDEXES):
        yield from _of_kept_indexes(version, before, operation)


# -- fragments ------------------------------------------------------------------------------------------------------


def _of_new_fragments(manifest: Manifest, new: Iterable[Fragment]) -> Iterator[Problem]:
    expected = {fragment.files[0].path: fragment for fragment in new if fragment.files}
    if not expected:
        return
    first = ((fragment.files[0].path, fragment) for fragment in manifest.fragments if fragment.files)
    found = {path: fragment for path, fragment in first if path in expected}
    for path, fragment in expected.items():
        other = found.get(path)
        if other is None:
            yield Problem("the fragments", f"one with the data file {path!r}, as its transaction says", "none")
        elif not _agree(other, fragment):
            yield Problem(f"fragment {other.id}", "the files and rows that its transaction says", "others")


def _of_kept_fragments(manifest: Manifest, before: Manifest, operation: Operation) -> Iterator[Problem]:
    changed, removed = _named(operation)
    found = {fragment.id: fragment for fragment in differing(manifest.fragments, before.fragments)}
    for fragment in differing(before.fragments, manifest.fragments):
        other = found.get(fragment.id)
        if fragment.id in removed:
            continue
        if other is None:
            yield Problem(f"fragment {fragment.id}", "the fragment of the version before", "none")
        else:
            same = _agree(other, fragment) and _row_ids(other) == _row_ids(fragment)
            if not same or (fragment.id not in changed and other.deletion_file != fragment.deletion_file):
                yield Problem(f"fragment {fragment.id}", "the files and rows of the version before", "others")


def _named(operation: Operation) -> tuple[set[int], set[int]]:
    """Return the fragments whose deletions an operation changes, and the fragments that it removes."""
    match operation:
        case operations.Delete() as delete:
            return {fragment.id for fragment in delete.updated_fragments}, set(delete.deleted_fragment_ids)
        case operations.Rewrite() as rewrite:
            old = [*rewrite.old_fragments, *(each for group in rewrite.groups for each in group.old_fragments)]
            return set(), {fragment.id for fragment in old}
    return set(), set()


def _agree(found: Fragment, said: Fragment) -> bool:
    """Return whether a fragment has the files and rows that a witness says.

    Old releases did not record all numbers, and later releases add them.
    """
    rows = not said.physical_rows or found.physical_rows == said.physical_rows
    sizes = all(
        not other.file_size_bytes or file.file_size_bytes == other.file_size_bytes
        for file, other in zip(found.files, said.files, strict=False)
    )
    return rows and sizes and list(map(_without_size, found.files)) == list(map(_without_size, said.files))


def _without_size(file: DataFile) -> DataFile:
    return attrs.evolve(file, file_size_bytes=0)


def _row_ids(fragment: Fragment) -> Content:
    return fragment.inline_row_ids, fragment.external_row_ids


# -- schema, settings, indexes --------------------------------------------------------------------------------------


def _of_fields(found: Iterable[SchemaField], said: Iterable[SchemaField], witness: str) -> Iterator[Problem]:
    if list(map(_described, found)) != list(map(_described, said)):
        yield Problem("the fields", f"the fields of {witness}", "other fields")


def _described(field: SchemaField) -> Content:
    return field.name, field.id, field.parent_id, field.logical_type, field.nullable


def _of_settings(manifest: Manifest, before: Manifest, operation: Operation) -> Iterator[Problem]:
    witness = "the version before"
    if not isinstance(operation, _NEW_SCHEMA):
        yield from _of_fields(manifest.fields, before.fields, witness)
    if manifest.data_format != before.data_format:
        yield Problem("the format of data files", f"the format of {witness}", "another format")
    if manifest.branch != before.branch:
        yield Problem("the branch", repr(before.branch), repr(manifest.branch))
    if not isinstance(operation, _NEW_SETTINGS):
        settings: Iterable[tuple[str, Mapping[str, object], Mapping[str, object]]] = (
            ("the configuration", manifest.config, before.config),
            ("the metadata of the table", manifest.table_metadata, before.table_metadata),
            *([] if isinstance(operation, _NEW_SCHEMA) else [_schema_metadata(manifest, before)]),
        )
        for name, found, said in settings:
            if dict(found) != dict(said):
                yield Problem(name, f"the value of {witness}", "another value")


def _schema_metadata(manifest: Manifest, before: Manifest) -> tuple[str, Mapping[str, object], Mapping[str, object]]:
    return "the metadata of the schema", manifest.schema_metadata, before.schema_metadata


def _of_kept_indexes(version: TableVersion, before: TableVersion, operation: Operation) -> Iterator[Problem]:
    if any(is_system_index(index.name) for index in before.indices):
        return  # any commit may apply a deferred compaction to the indexes
    found, fragments = {index.uuid for index in version.indices}, {each.id for each in version.manifest.fragments}
    kept = [index for index in before.indices if index.uuid in found or _covers(index, fragments)]
    if isinstance(operation, operations.CreateIndex):
        gone = {index.uuid for index in operation.removed_indices}
        names = {index.name for index in operation.new_indices}
        kept = [index for index in kept if index.uuid not in gone and index.name not in names]
    yield from _of_indexes(version, kept, "the version before")


def _settled(version: TableVersion, created: Iterable[IndexMetadata]) -> Iterator[IndexMetadata]:
    """Return created indexes as a version may have them.

    If another version has replaced indexed values in between, the commit takes fragments out of an index, or puts
    another index in its place: see `lancekeep.format.replaced_values`.
    """
    found, names = {index.uuid: index for index in version.indices}, {index.name for index in version.indices}
    for index in created:
        other = found.get(index.uuid)
        if other is not None and _fragments(other) <= _fragments(index):
            yield attrs.evolve(index, fragment_bitmap=other.fragment_bitmap)
        elif other is not None or index.name not in names:
            yield index


def _covers(index: IndexMetadata, fragments: set[int]) -> bool:
    """Return whether an index covers a fragment; a commit may remove an index that covers none."""
    return not fragments.isdisjoint(_fragments(index))


def _fragments(index: IndexMetadata) -> set[int]:
    return set(decode_bitmap(index.fragment_bitmap, MOST_FRAGMENTS).tolist()) if index.fragment_bitmap else set()


def _of_indexes(version: TableVersion, said: Iterable[IndexMetadata], witness: str) -> Iterator[Problem]:
    found = {index.uuid: index for index in version.indices}
    for index in said:
        other = found.get(index.uuid)
        if other is None:
            yield Problem(f"the index {index.name!r} {index.uuid}", f"the index of {witness}", "none")
        elif not _is_same(other, index):
            yield Problem(
                f"the index {index.name!r} {index.uuid}", f"the description by {witness}", "another description"
            )


def _is_same(found: IndexMetadata, said: IndexMetadata) -> bool:
    """Return whether an index is as a witness says. Later releases add details that the witness does not state."""
    return found == attrs.evolve(
        said,
        index_details=said.index_details or found.index_details,
        index_version=found.index_version if said.index_version is None else said.index_version,
        created_at=found.created_at if said.created_at is None else said.created_at,
        fragment_bitmap=said.fragment_bitmap or found.fragment_bitmap,
        files=said.files or found.files,
    )
