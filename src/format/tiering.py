"""The places of a version's data files, and their move to a base path.

Storage layout, "Base Path System".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from lancekeep.domain.errors import Unsupported
from lancekeep.domain.features import KNOWN, Feature
from lancekeep.format.judge import Approved, approve_file
from lancekeep.format.manifest import ManifestFile, make_successor
from lancekeep.format.messages import Transaction


@attrs.frozen
class PlacedFile:
    """A data file of a version.

    Attributes:
        base: the base path of the dataset that holds it; None for the table itself.
        path: its path below ``data``.
    """

    base: str | None
    path: str


def data_files(content: bytes, name: str) -> dict[PlacedFile, int]:
    """Return the data files of a version, each with its size in bytes.

    The size is 0 if the manifest does not state it.

    Args:
        content: the manifest file.
        name: the file, for messages.

    Raises:
        Damaged: the content is not a manifest.
    """
    manifest = ManifestFile.parse(content, name).manifest
    return {placed: file.file_size_bytes for file, placed in _placed(manifest)}


def with_base(content: bytes, name: str, base: str, uuid: str, now: int) -> Approved | None:
    """Return a next version that defines a base path.

    Takes the arguments of `moved`, and raises its errors.

    Returns:
        None if the version defines the base path.
    """
    file = _parse(content, name)
    manifest = file.manifest
    if _number(manifest, base) is not None:
        return None
    number = max((each.id for each in manifest.base_paths), default=0) + 1
    manifest.base_paths.add(id=number, is_dataset_root=True, path=base)
    manifest.reader_feature_flags |= Feature.BASE_PATHS
    manifest.writer_feature_flags |= Feature.BASE_PATHS
    transaction = Transaction(read_version=manifest.version, uuid=uuid)
    transaction.update_bases.new_bases.add(id=number, is_dataset_root=True, path=base)
    return approve_file(name, _following(file, transaction, now), content)


def moved(
    content: bytes, name: str, paths: Mapping[PlacedFile, str], base: str, uuid: str, now: int
) -> Approved | None:
    """Return a next version whose data files lie at a base path.

    Rows, row ids, addresses, deletion files and indexes do not change. The transaction replaces data files.

    Args:
        content: the manifest file of the latest version, which defines the base path.
        name: the file, for messages.
        paths: the new paths of files. The version may have lost some of them.
        base: the base path: the URI of a directory that holds ``data``.
        uuid: the id of the transaction.
        now: the time in nanoseconds since 1970.

    Returns:
        None if the version has none of the files.

    Raises:
        CommitRefused: the judge has found problems.
        Damaged: the content is not a manifest.
        Unsupported: a writer of the table needs a feature that is not known here.
    """
    file = _parse(content, name)
    manifest, number = file.manifest, _number(file.manifest, base)
    assert number is not None  # the version defines the base path
    transaction = Transaction(read_version=manifest.version, uuid=uuid)
    bases = {each.id: each for each in manifest.base_paths}
    for fragment in manifest.fragments:
        for holder, placed in _placed_of(fragment, bases):
            if placed in paths:
                holder.path, holder.base_id = paths[placed], number
                transaction.data_replacement.replacements.add(fragment_id=fragment.id).new_file.CopyFrom(holder)
    if not transaction.HasField("data_replacement"):
        return None
    return approve_file(name, _following(file, transaction, now), content)


def timestamp(content: bytes, name: str) -> int:
    """Return the time of a version in nanoseconds since 1970. Raises `Damaged`."""
    found = ManifestFile.parse(content, name).manifest.timestamp
    return int(found.seconds) * 10**9 + int(found.nanos)


def _parse(content: bytes, name: str) -> ManifestFile:
    file = ManifestFile.parse(content, name)
    if unknown := file.manifest.writer_feature_flags & ~KNOWN:
        raise Unsupported(f"{name}: writers need the features {unknown}, which are not known here; nothing was moved")
    return file


def _number(manifest: Any, base: str) -> int | None:
    return next((each.id for each in manifest.base_paths if each.path == base and each.is_dataset_root), None)


def _following(file: ManifestFile, transaction: Any, now: int) -> bytes:
    make_successor(file.manifest, file.manifest.version + 1, now, f"{transaction.read_version}-{transaction.uuid}.txn")
    return file.serialize(transaction)


def _placed(manifest: Any) -> Iterator[tuple[Any, PlacedFile]]:
    bases = {base.id: base for base in manifest.base_paths}
    for fragment in manifest.fragments:
        yield from _placed_of(fragment, bases)


def _placed_of(fragment: Any, bases: Mapping[int, Any]) -> Iterator[tuple[Any, PlacedFile]]:
    """Yield the data files of a fragment whose place this module knows."""
    for file in fragment.files:
        if not file.HasField("base_id"):
            yield file, PlacedFile(None, file.path)
        elif (base := bases.get(file.base_id)) is not None and base.is_dataset_root:
            yield file, PlacedFile(base.path, file.path)
