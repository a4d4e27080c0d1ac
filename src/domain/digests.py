"""Digests of the files of tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from lancekeep.domain.errors import InvalidInput

DIGEST_BYTES = 16

DIGESTS = "lancekeep.digests"
"""The property by which each commit records digests: of the root namespace for all tables, or of one table."""
_VALUES = {"true": True, "false": False}


class FileDigest(NamedTuple):
    """The size of a file in bytes, and the BLAKE2b digest of its content.

    Attributes:
        size: the size.
        blake2b: the digest, in hexadecimal digits.
        start: the position at which the digest begins; the bytes before it are digested last. Consecutive manifests
            have long equal parts that begin at different positions, so that one digest can continue another.
    """

    size: int
    blake2b: str
    start: int = 0


def records_digests(catalog: Mapping[str, str], table: Mapping[str, str]) -> bool:
    """Return whether the commits of a table record digests.

    The property of the table overrides the property of the root namespace.
    """
    return _VALUES.get(table.get(DIGESTS, catalog.get(DIGESTS, "")), False)


def checked_digests(value: str) -> None:
    """Raise `InvalidInput` unless a value of the property `DIGESTS` has a meaning."""
    if value not in _VALUES:
        raise InvalidInput(f"the property {DIGESTS!r} is {value!r}; its values are 'true' and 'false'")
