"""The manifests of clones, and of tables that stop reading files of other tables.

Storage layout, "Base Path System"; table format, "Clone".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lancekeep.domain.errors import ConcurrentModification, Unsupported
from lancekeep.domain.features import FENCE, refuse_unknown_features
from lancekeep.domain.indexes import index_kind
from lancekeep.format.judge import Approved, approve_file
from lancekeep.format.manifest import ManifestFile, make_successor
from lancekeep.format.messages import IndexSection, Transaction, parse

_BASE_PATHS = 16
"""The feature flag of tables with base paths."""


def shallow_clone(content: bytes, name: str, source: str, uuid: str, now: int) -> Approved:
    """Return the first version of a shallow clone.

    Every file that the source has in its own directory gets a base path that names the source. The clone continues
    the version number of its source, because rows may record the versions that created them. It has no index that
    describes files outside of every version.

    Args:
        content: the manifest file of the source.
        name: the source, for messages.
        source: the URI of the source.
        uuid: the id of the transaction.
        now: the time in nanoseconds since 1970.

    Raises:
        CommitRefused: the judge has found problems.
        Damaged: the content is not a manifest.
        Unsupported: the manifest belongs to a branch, or needs a feature of its writers that is not known here.
    """
    file = _parse_main(content, name)
    manifest = file.manifest
    base = max((path.id for path in manifest.base_paths), default=-1) + 1
    indexes = _cloned(_indexes_of(file))
    for holder in _holders(manifest, indexes):
        if not holder.HasField("base_id"):
            holder.base_id = base
    added = manifest.base_paths.add(is_dataset_root=True, path=source)
    if base:  # the engine leaves zeros out
        added.id = base
    manifest.reader_feature_flags |= _BASE_PATHS
    manifest.writer_feature_flags |= _BASE_PATHS
    transaction = _cloning(manifest, source, uuid, shallow=True)
    return approve_file(name, _following(file, indexes, transaction, manifest.version, now), content)


def deep_clone(content: bytes, name: str, source: str, uuid: str, now: int) -> Approved:
    """Return the first version of a clone that has every file in its own directory.

    Takes the arguments of `shallow_clone`, and raises its errors.
    """
    file = _parse_main(content, name)
    indexes = _cloned(_cut(file))
    transaction = _cloning(file.manifest, source, uuid, shallow=False)
    return approve_file(name, _following(file, indexes, transaction, file.manifest.version, now), content)


def materialized(content: bytes, name: str, uuid: str, now: int) -> Approved | None:
    """Return a next version without files of other datasets.

    The transaction is a merge: it conflicts with every concurrent change of rows, which then reads the table again.

    Args:
        content: the manifest file of the latest version.
        name: the table, for messages.
        uuid: the id of the transaction.
        now: the time in nanoseconds since 1970.

    Returns:
        None if the version reads no files of other datasets.

    Raises:
        CommitRefused: the judge has found problems.
        Damaged: the content is not a manifest.
        Unsupported: the manifest belongs to a branch, or needs a feature of its writers that is not known here.
        ConcurrentModification: the table is being moved to another place.
    """
    file = _parse_main(content, name)
    if not file.manifest.base_paths:
        return None
    if file.manifest.writer_feature_flags & FENCE:
        raise ConcurrentModification(f"{name}: the table is being moved to another place; nothing was committed")
    indexes = _cut(file)
    transaction = Transaction(read_version=file.manifest.version, uuid=uuid)
    transaction.merge.fragments.extend(file.manifest.fragments)
    transaction.merge.schema.extend(file.manifest.fields)
    return approve_file(name, _following(file, indexes, transaction, file.manifest.version + 1, now), content)


def _parse_main(content: bytes, name: str) -> ManifestFile:
    file = ManifestFile.parse(content, name)
    if file.manifest.branch:
        raise Unsupported(f"{name}: version {file.manifest.version} belongs to the branch {file.manifest.branch!r}")
    refuse_unknown_features(file.manifest.writer_feature_flags & ~FENCE, name)
    return file


def _indexes_of(file: ManifestFile) -> Any:
    """Return the decoded index section of a manifest; None without one."""
    return None if file.indexes is None else parse(IndexSection, file.indexes)


def _cloned(indexes: Any) -> Any:
    """Return an index section without the indexes that a clone does not have."""
    if indexes is None:
        return None
    kept = [index for index in indexes.indices if index_kind(index.name, index.index_details.type_url).cloned]
    return IndexSection(indices=kept)


def _cut(file: ManifestFile) -> Any:
    """Remove all base paths from a manifest, and return its decoded index section, if any."""
    indexes = _indexes_of(file)
    for holder in _holders(file.manifest, indexes):
        holder.ClearField("base_id")
    file.manifest.ClearField("base_paths")
    file.manifest.reader_feature_flags &= ~_BASE_PATHS
    file.manifest.writer_feature_flags &= ~_BASE_PATHS
    return indexes


def _holders(manifest: Any, indexes: Any) -> Iterator[Any]:
    """Yield each message that may name a base path."""
    for fragment in manifest.fragments:
        yield from fragment.files
        if fragment.HasField("deletion_file"):
            yield fragment.deletion_file
    if indexes is not None:
        yield from indexes.indices


def _cloning(manifest: Any, source: str, uuid: str, *, shallow: bool) -> Any:
    transaction = Transaction(read_version=manifest.version, uuid=uuid)
    transaction.clone.ref_version, transaction.clone.ref_path = manifest.version, source
    transaction.clone.is_shallow = shallow
    return transaction


def _following(file: ManifestFile, indexes: Any, transaction: Any, version: int, now: int) -> bytes:
    manifest: Any = file.manifest
    make_successor(manifest, version, now, f"{transaction.read_version}-{transaction.uuid}.txn")
    manifest.writer_feature_flags &= ~FENCE  # a clone is no place that its table leaves
    encoded = None if indexes is None else indexes.SerializeToString()
    return ManifestFile(manifest, encoded, file.dictionaries).serialize(transaction)
