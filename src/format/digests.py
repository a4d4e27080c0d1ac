"""Records of digests: JSON lines, in a file named by its own digest."""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import blake2b

from lancekeep.domain.digests import DIGEST_BYTES, FileDigest
from lancekeep.domain.errors import Damaged

_SUFFIX = ".jsonl"


def digest_of(content: bytes) -> FileDigest:
    """Return the digest of a whole file."""
    return FileDigest(len(content), blake2b(content, digest_size=DIGEST_BYTES).hexdigest())


def encode_digests(found: Iterable[tuple[str, FileDigest]]) -> tuple[str, bytes]:
    """Return the name and the content of a record of files, by their paths."""
    lines = sorted((path, each.size, each.blake2b) for path, each in found)
    content = "".join(
        json.dumps({"file": path, "size": size, "blake2b": digest}) + "\n" for path, size, digest in lines
    ).encode()
    return digest_of(content).blake2b + _SUFFIX, content


def decode_digests(name: str, content: bytes) -> list[tuple[str, FileDigest]]:
    """Decode a record.

    Raises:
        Damaged: the content is not the one that the name states.
    """
    try:
        if digest_of(content).blake2b + _SUFFIX != name.rpartition("/")[2]:
            raise ValueError("its content does not have the digest in its name")
        lines = map(json.loads, content.splitlines())
        return [(str(line["file"]), FileDigest(int(line["size"]), str(line["blake2b"]))) for line in lines]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damaged(
            f"{name} is no record of digests: {error}. Remove it, check the table against a backup, and record the "
            "digests again with `lancekeep digest`"
        ) from error
