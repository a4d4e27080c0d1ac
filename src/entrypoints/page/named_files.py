"""The files that a manifest names, by their paths below the table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lancekeep.domain.dataset_files import DATA, DELETIONS, TRANSACTIONS, deletion_file_name
from lancekeep.domain.layout import BRANCHES
from lancekeep.domain.manifest import DeletionFileType, Manifest
from lancekeep.format.values import Fragments


def messages(manifest: Manifest) -> Iterator[Any]:
    """Yield the fragments as messages, which takes less time than values."""
    fragments = manifest.fragments
    assert isinstance(fragments, Fragments)  # as every decoded manifest has them
    return fragments.messages()


def data_path(name: str, manifest: Manifest) -> str:
    """Return the path of a data file that lies below the table."""
    return f"{_prefix(manifest)}{DATA}/{name}"


def deletion_path(fragment: int, file: Any, manifest: Manifest) -> str:
    """Return the path of a deletion file that lies below the table."""
    bitmap = int(file.file_type) == int(DeletionFileType.BITMAP)
    return f"{_prefix(manifest)}{DELETIONS}/{deletion_file_name(fragment, file.read_version, file.id, bitmap=bitmap)}"


def transaction_path(manifest: Manifest) -> str | None:
    """Return the path of the transaction file; None if the version has none."""
    name = manifest.transaction_file
    return f"{_prefix(manifest)}{TRANSACTIONS}/{name}" if name else None


def is_named(manifest: Manifest, path: str) -> bool:
    """Return whether a version has a file below the table at a path.

    Files below base paths belong to other tables, so they do not count.
    """
    if path == transaction_path(manifest):
        return True
    for fragment in messages(manifest):
        for file in fragment.files:
            if not file.HasField("base_id") and path == data_path(file.path, manifest):
                return True
        deletion = fragment.deletion_file if fragment.HasField("deletion_file") else None
        is_own = deletion is not None and not deletion.HasField("base_id")
        if is_own and path == deletion_path(fragment.id, deletion, manifest):
            return True
    return False


def _prefix(manifest: Manifest) -> str:
    return f"{BRANCHES}/{manifest.branch}/" if manifest.branch else ""
