"""Check object keys by the same rule for every store: a path of plain names."""

from __future__ import annotations

import os

from lancekeep.domain.errors import InvalidInput

_NOT_NAMES = frozenset(("", ".", ".."))


def check_key(key: str) -> None:
    """Refuse a key that is not a path of names between slashes.

    Other keys could denote the same object twice, or leave the root.

    Raises:
        InvalidInput: the key is empty or absolute, ends in a slash, or holds NUL or an empty, ``.`` or ``..`` name.
    """
    if "\0" in key or not _NOT_NAMES.isdisjoint(key.split("/")):
        raise InvalidInput(
            f"{key!r} is not a key of an object: expected names with single slashes between them, no leading or "
            "trailing slash, no '.' or '..' among the names, and no NUL"
        )


def check_directory(prefix: str) -> None:
    """Check a directory like `check_key`: empty, or a key followed by a slash."""
    if prefix:
        check_key(prefix.removesuffix("/") if prefix.endswith("/") else f"{prefix}/")


def check_prefix(prefix: str) -> None:
    """Check a key prefix like `check_key`; its last name may be incomplete."""
    directory, slash, rest = prefix.rpartition("/")
    if slash:
        check_key(directory)
    if "\0" in rest:
        check_key(rest)


def is_after(key: str, after: str) -> bool:
    """Return whether a listing after the key ``after`` shows an object.

    If ``key`` ends in a slash, it is a directory: whether objects below it may be shown. Keys sort by their bytes.
    """
    return not after or os.fsencode(key) > os.fsencode(after) or (key.endswith("/") and after.startswith(key))
