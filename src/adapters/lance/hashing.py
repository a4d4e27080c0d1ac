"""Digests of files, which the table engine reads from any storage that it knows."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from lancekeep.domain.digests import DIGEST_BYTES
from lancekeep.native import lance

_CHUNK = 8 << 20


def file_digest(directory: str, path: str, size: int, storage_options: Mapping[str, str], *, start: int = 0) -> str:
    """Return the BLAKE2b digest of a file, in hexadecimal digits.

    Args:
        directory: The URI of a directory.
        path: The path of the file below it.
        size: The size of the file.
        storage_options: The options that open the directory.
        start: The position at which to begin; the bytes before it are digested last.

    Raises:
        OSError: The file cannot be read.
    """
    session: Any = lance.file.LanceFileSession(directory, dict(storage_options) or None)
    digest = blake2b(digest_size=DIGEST_BYTES)
    for begin, end in ((start, size), (0, start)):
        for at in range(begin, end, _CHUNK):
            digest.update(session.read_range(path, at, min(_CHUNK, end - at)))
    return digest.hexdigest()
