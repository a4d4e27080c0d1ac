"""The files that a version reads, and where they lie.

Storage layout, "Base Path System". A manifest names data files, deletion files and indexes. A shallow clone names files
of another dataset by the number of a base path. Its writer chose the spelling of that path: a URI, an absolute path, or
a path relative to its working directory.
"""

from __future__ import annotations

from urllib.parse import unquote

import attrs

from lancekeep.domain.layout import BRANCHES
from lancekeep.domain.manifest import DeletionFile


@attrs.frozen
class FileReference:
    """A file that a version reads.

    Attributes:
        path: the path below ``base``, or below the dataset itself if ``base`` is None. A directory ends in a slash.
        size: the size in bytes, or None if the manifest does not say.
        base: the base path, or None.
        fragment: the fragment, for a data file or a deletion file.
        deletion: what the manifest says about a deletion file; None for other files.
        rows: the rows of the fragment of a deletion file, deleted ones included; 0 if the manifest does not say.
    """

    path: str
    size: int | None = None
    base: str | None = None
    fragment: int | None = None
    deletion: DeletionFile | None = None
    rows: int = 0


def same_dataset(path: str, location: str) -> bool:
    """Return whether a base path may name the dataset at a location.

    The ends of the two are compared, and the base path may also name a branch of the dataset.
    """
    wanted = location.split("/")
    for spelled in (path, path.rpartition(f"/{BRANCHES}/")[0], path.partition(f"/{BRANCHES}/")[0]):
        parts = [part for part in spelled.partition("://")[2 if "://" in spelled else 0].split("/") if part]
        common = min(len(parts), len(wanted))
        if common and parts[-common:] == wanted[-common:]:
            return True
    return False


def certain_location(path: str, store_uri: str, prefix: str) -> str | None:
    """Return the location below the root of a catalog that a base path names.

    Access depends on the answer, so a spelling that two readers could resolve to different directories has none.

    Args:
        path: the base path.
        store_uri: the URI of the object store, which ends in a slash.
        prefix: the prefix of the keys below the root.

    Returns:
        None if the base path is outside of the root, or ambiguous.
    """
    if path.startswith(store_uri) and not {"?", "#"} & set(path):
        key = unquote(path.removeprefix(store_uri), errors="replace")
    elif store_uri == "file:///" and path.startswith("/"):
        key = path[1:]
    else:
        return None
    key = key.removesuffix("/")
    ambiguous = not key.isprintable() or {"%", "\\", "\ufffd"} & set(key)
    if ambiguous or not key.startswith(prefix) or {"", ".", ".."} & set(key.split("/")):
        return None
    return key.removeprefix(prefix)
