"""The rows of an external manifest store, and what a claim to one can be answered."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from lancekeep.domain.layout import VERSIONS
from lancekeep.domain.naming import ManifestName, NamingScheme

_FENCE = "moved-to:"


@attrs.frozen
class VersionRow:
    """One version of one history.

    base_uri: the dataset root, with scheme and bucket.
    path: the key of the manifest: staged while the commit is under way, final afterwards.
    size: bytes of the manifest.
    committer: who reserved the version, for people to read.
    """

    base_uri: str
    version: int
    path: str
    size: int
    committer: str = ""

    @property
    def is_final(self) -> bool:
        """The manifest lies under its final name: no path ending in a UUID (table format, "External Store Reader")."""
        return self.path.endswith(".manifest") and self.moved_to is None

    @property
    def moved_to(self) -> str | None:
        """The URL of the commit store that this history has moved to, where this row is its fence."""
        return self.path.removeprefix(_FENCE) if self.path.startswith(_FENCE) else None

    @staticmethod
    def fence(base_uri: str, version: int, new_store: str) -> VersionRow:
        """A row that ends a history here for good: it takes the next version and never becomes final."""
        return VersionRow(base_uri, version, _FENCE + new_store, 0)


def misplacement(row: VersionRow, dataset_key: str) -> str:
    """Return why a row cannot belong to the dataset at ``dataset_key``; empty if it can.

    The manifest lies directly in the dataset's ``_versions`` directory, and its name is that of the row's version:
    final, or staged with a UUID. A fence names a commit store by its URL instead.
    """
    if row.size < 0:
        return f"has the size {row.size}; expected the bytes of a manifest"
    if row.moved_to is not None:
        return (
            "" if "://" in row.moved_to else f"is a fence to {row.moved_to!r:.200}; expected the URL of a commit store"
        )
    if names_version(row.path, dataset_key, row.version):
        return ""
    return f"names {row.path!r:.200}; expected a manifest of that version directly in {dataset_key}/{VERSIONS}/"


def scheme_of(row: VersionRow) -> NamingScheme | None:
    """Return the scheme by which the manifest of a row is named; None for a fence."""
    name = ManifestName.parse(row.path.rpartition("/")[2])
    return None if name is None else name.scheme


def names_version(path: str, dataset_key: str, version: int) -> bool:
    """Return whether ``path`` names a manifest of ``version``, staged or final, of the dataset at ``dataset_key``."""
    directory, _, file_name = path.rpartition("/")
    name = ManifestName.parse(file_name)
    return directory == f"{dataset_key}/{VERSIONS}" and name is not None and name.version == version


@attrs.frozen
class Reserved:
    """The version belongs to the staged manifest that asked for it."""


@attrs.frozen
class Taken:
    """The version belongs to another manifest, or is final already."""

    row: VersionRow


@attrs.frozen
class NotReady:
    """The predecessor is missing or still staged, or the history is not empty; ``latest`` is what there is."""

    latest: VersionRow | None


Reservation = Reserved | Taken | NotReady


@attrs.frozen
class Claim:
    """A row that wants to be reserved; ``first``: its history must be empty, and this version begins it."""

    row: VersionRow
    first: bool


@attrs.frozen
class Blocked:
    """Nothing of a batch was reserved: what is in the way, or a part of it, by ``base_uri``."""

    obstacles: Mapping[str, Taken | NotReady] = attrs.field(hash=False)


BatchReservation = Reserved | Blocked
