"""Records of digests: JSON lines, in a file named by its own digest."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any

from lancekeep.domain.digests import DIGEST_BYTES, FileDigest
from lancekeep.domain.errors import Damaged

_SUFFIX = ".jsonl"


def digest_of(content: bytes) -> FileDigest:
    """Return the digest of a whole file."""
    return FileDigest(len(content), blake2b(content, digest_size=DIGEST_BYTES).hexdigest())


def encode_digests(found: Iterable[tuple[str, FileDigest]]) -> tuple[str, bytes]:
    """Return the name and the content of a record of files, by their paths."""
    content = "".join([_line(path, *each) for path, each in sorted(found)]).encode()
    return digest_of(content).blake2b + _SUFFIX, content


def _line(path: str, size: int, blake2b: str, start: int) -> str:
    begins = f', "start": {start}' if start else ""
    return f'{{"file": {json.dumps(path)}, "size": {size}, "blake2b": "{blake2b}"{begins}}}\n'


def decode_digests(name: str, content: bytes) -> list[tuple[str, FileDigest]]:
    """Decode a record.

    Raises:
        Damaged: the content does not have the digest that the name states.
    """
    try:
        if digest_of(content).blake2b + _SUFFIX != name.rpartition("/")[2]:
            raise ValueError("its content does not have the digest in its name")
        return [_decoded(json.loads(line)) for line in content.splitlines()]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise Damaged(
            f"{name} is no record of digests: {error}. Remove it, check the table against a backup, and record the "
            "digests again with `lancekeep digest`"
        ) from error


def _decoded(line: Mapping[str, Any]) -> tuple[str, FileDigest]:
    size, start = int(line["size"]), int(line.get("start", 0))
    if not 0 <= start <= size:
        raise ValueError(f"the digest of {line['file']!r} starts at {start} of {size} bytes")
    return str(line["file"]), FileDigest(size, str(line["blake2b"]), start)
