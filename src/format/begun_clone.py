"""The marker that describes a deep clone until it is complete."""

from __future__ import annotations

import json
import re
from typing import Final

import attrs

_UUID: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@attrs.frozen
class BegunClone:
    """A deep clone, described so that a repeated call builds the same manifest.

    Attributes:
        source: the location of the source.
        version: the version of the source.
        transaction: the id of the transaction.
        began: the time of the manifest, in nanoseconds since 1970.
    """

    source: str
    version: int
    transaction: str
    began: int

    def encode(self) -> bytes:
        """Return the content of the marker."""
        return json.dumps({"clone": attrs.asdict(self)}).encode()

    @staticmethod
    def parse(content: bytes) -> BegunClone | None:
        """Return the clone that a marker describes; None without one.

        The transaction id becomes a part of a file name, so it must be a UUID.
        """
        try:
            found = BegunClone(**json.loads(content)["clone"])
            is_one = (
                isinstance(found.source, str)
                and _UUID.fullmatch(found.transaction) is not None
                and type(found.version) is type(found.began) is int
                and 0 < found.version < 1 << 63
                and 0 <= found.began < 1 << 63
            )
        except (ValueError, TypeError, LookupError, RecursionError):
            return None
        return found if is_one else None
