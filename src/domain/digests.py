"""Digests of the files of tables."""

from __future__ import annotations

import attrs


@attrs.frozen
class FileDigest:
    """The size of a file in bytes, and the BLAKE2b digest of its content."""

    size: int
    blake2b: str


DIGEST_BYTES = 16
