"""What may be a key: a path of plain names, the same rule for every store."""

from __future__ import annotations

from lancekeep.domain.errors import InvalidInput

_NOT_NAMES = frozenset(("", ".", ".."))


def check_key(key: str) -> None:
    """Refuse what is not a path of names between slashes: two such keys could be one object, or leave the root.

    Raises:
        InvalidInput: the key is empty or absolute, ends in a slash, or holds NUL or an empty, ``.`` or ``..`` name.
    """
    if "\0" in key or not _NOT_NAMES.isdisjoint(key.split("/")):
        raise InvalidInput(
            f"{key!r} is not a key of an object: expected names with single slashes between them, no leading or "
            "trailing slash, no '.' or '..' among the names, and no NUL"
        )


def check_directory(prefix: str) -> None:
    """As `check_key`, for a directory: empty, or a key with a slash behind it."""
    if prefix:
        check_key(prefix.removesuffix("/") if prefix.endswith("/") else f"{prefix}/")


def check_prefix(prefix: str) -> None:
    """As `check_key`, for the beginning of a key: what follows the last slash may be any part of a name."""
    directory, slash, rest = prefix.rpartition("/")
    if slash:
        check_key(directory)
    if "\0" in rest:
        check_key(rest)
