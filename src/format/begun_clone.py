"""The marker that describes a deep clone until it is complete."""

from __future__ import annotations

import json

import attrs


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
        """Return the clone that a marker describes; None without one."""
        try:
            found = BegunClone(**json.loads(content)["clone"])
        except (ValueError, TypeError, LookupError, RecursionError):
            return None
        kinds = (found.source, str), (found.version, int), (found.transaction, str), (found.began, int)
        return found if all(isinstance(value, kind) for value, kind in kinds) else None
