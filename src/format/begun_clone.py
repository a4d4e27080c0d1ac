"""The marker that describes a deep clone until it is complete."""

from __future__ import annotations

import json
import re
from typing import Final

import attrs

from lancekeep.domain.dataset_files import DATA, DELETIONS, INDICES, TRANSACTIONS, Place
from lancekeep.domain.layout import VERSIONS
from lancekeep.domain.naming import ManifestName
from lancekeep.domain.table import DEREGISTERED_MARKER, RESERVED_MARKER

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

    def may_have_written(self, path: str) -> bool:
        """Return whether the clone writes such a file before its version.

        Another writer's transaction or staged manifest proves that the directory is more than an unfinished clone.

        Args:
            path: the path of the file relative to the target.
        """
        place = Place.of(path)
        if place is None:
            return path in (RESERVED_MARKER, DEREGISTERED_MARKER)  # a drop that was stopped left the second file
        if place.branch:
            return False
        if place.directory == VERSIONS:
            name = ManifestName.parse(place.rest)
            return name is not None and name.is_generated and name.version == self.version
        if place.directory == TRANSACTIONS:
            return place.rest == f"{self.version}-{self.transaction}.txn"
        return place.directory in (DATA, DELETIONS, INDICES) and place.is_generated

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
