"""Rows of an external manifest store, and the replies to a claim."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from lancekeep.domain.layout import VERSIONS
from lancekeep.domain.naming import ManifestName, NamingScheme

_FENCE = "moved-to:"
STORAGE_MANAGED = "storage-managed://"
"""What the row of a released history names in place of the URL of a commit store."""
_RELEASED = 10**12
"""The version of that row. It is above every version, so no other row of the history is the latest."""


@attrs.frozen
class VersionRow:
    """One version of one history.

    Attributes:
        base_uri: the dataset root, with scheme and bucket.
        version: the number of the version.
        path: the key of the manifest: staged while the commit is in progress, final afterwards.
        size: the size of the manifest in bytes.
        committer: the writer that reserved the version, for people to read.
    """

    base_uri: str
    version: int
    path: str
    size: int
    committer: str = ""

    @property
    def is_final(self) -> bool:
        """Whether the manifest has its final name, which does not end in a UUID.

        Table format, "External Store Reader".
        """
        return self.path.endswith(".manifest") and self.moved_to is None

    @property
    def moved_to(self) -> str | None:
        """The URL of the commit store that the history moved to.

        None unless the row is a fence.
        """
        return self.path.removeprefix(_FENCE) if self.path.startswith(_FENCE) else None

    @staticmethod
    def fence(base_uri: str, version: int, new_store: str) -> VersionRow:
        """Return a row that ends a history in this commit store permanently.

        It takes the next version and never becomes final.
        """
        return VersionRow(base_uri, version, _FENCE + new_store, 0)

    @property
    def is_release(self) -> bool:
        """Whether the commit store has left the history to the storage."""
        return self.moved_to == STORAGE_MANAGED

    @staticmethod
    def release(base_uri: str) -> VersionRow:
        """Return the row that leaves a history to the storage, until it is deleted."""
        return VersionRow.fence(base_uri, _RELEASED, STORAGE_MANAGED)


@attrs.frozen
class LatestRow:
    """The answer to a read of the latest row of a history.

    Attributes:
        base_uri: the dataset root, with scheme and bucket.
        row: the row; None if the history has none.
    """

    base_uri: str
    row: VersionRow | None


def misplacement(row: VersionRow, dataset_key: str) -> str:
    """Return why a row cannot belong to a dataset; empty if it can.

    The manifest lies directly in the dataset's ``_versions`` directory, and has the name of the row's version: final,
    or staged with a UUID. A fence names a commit store by its URL instead.
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
    """Return whether ``path`` names a manifest of a version of a dataset.

    The manifest may be staged or final.
    """
    directory, _, file_name = path.rpartition("/")
    name = ManifestName.parse(file_name)
    return directory == f"{dataset_key}/{VERSIONS}" and name is not None and name.version == version


@attrs.frozen
class Reserved:
    """The version belongs to the staged manifest of the claim."""


@attrs.frozen
class Taken:
    """The version belongs to another manifest, or is already final."""

    row: VersionRow


@attrs.frozen
class NotReady:
    """The predecessor is missing or still staged, or the history is not empty.

    Attributes:
        latest: the latest row; None for an empty history.
    """

    latest: VersionRow | None


Reservation = Reserved | Taken | NotReady


def may_claim(row: VersionRow, latest: VersionRow | None, *, first: bool) -> bool:
    """Return whether a free version may be reserved.

    It must begin an empty history, or follow the latest row, which must be final.
    """
    if latest is None:
        return first
    return not first and latest.version == row.version - 1 and latest.is_final


@attrs.frozen
class Claim:
    """A request to reserve a row.

    Attributes:
        row: the row.
        first: the history must be empty, and this version begins it.
    """

    row: VersionRow
    first: bool


@attrs.frozen
class Blocked:
    """No row of a batch was reserved.

    Attributes:
        obstacles: some or all of the conflicting replies, by ``base_uri``.
    """

    obstacles: Mapping[str, Taken | NotReady] = attrs.field(hash=False)


BatchReservation = Reserved | Blocked
