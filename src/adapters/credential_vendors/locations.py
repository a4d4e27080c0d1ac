"""The directories to which credentials are limited."""

from __future__ import annotations

from urllib.parse import unquote

from lancekeep.domain.errors import InvalidInput


def directory(location: str, scheme: str, kind: str) -> tuple[str, str]:
    """Return the bucket of a location, and the prefix of its objects.

    The prefix ends with a slash.

    Args:
        location: The URI of a directory. The engine decodes percent escapes in it, so this function does, too.
        scheme: The scheme of the storage.
        kind: What the storage calls a bucket, for the message.

    Raises:
        InvalidInput: The location is not a directory in a bucket of this storage.
    """
    found, _, rest = location.partition("://")
    bucket, _, key = rest.partition("/")
    key = unquote(key).strip("/")
    if found != scheme or not bucket or not key:
        raise InvalidInput(f"credentials cannot be limited to {location!r}; it is not a directory in {kind}")
    return bucket, f"{key}/"
