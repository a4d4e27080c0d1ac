"""Check rows of a commit store on every read: stored rows are input, not truth."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lancekeep.domain.errors import Damaged, Unsupported
from lancekeep.domain.version_row import (
    BatchReservation,
    Blocked,
    Claim,
    LatestRow,
    NotReady,
    Reservation,
    Reserved,
    Taken,
    VersionRow,
    misplacement,
)
from lancekeep.ports.commit_store import ExternalCommitStore, ListsUnfinished
from lancekeep.ports.manifest_store import JoiningManifestStore

_LARGEST = 2**63 - 1
"""The largest number that every commit store can compare; no history has so many versions."""


class CheckedRows:
    """An `ExternalCommitStore` that returns rows of their own history only.

    Every row that ``rows`` returns has to name a manifest of its version, directly in the ``_versions`` directory of
    its history. Any other row raises `Damaged`, so no caller reads, moves or deletes the file that it names.
    """

    def __init__(self, rows: ExternalCommitStore, root_uri: str) -> None:
        self.url = rows.url
        self.guarantees = rows.guarantees
        self._rows = rows
        self._root_uri = root_uri
        self._left: list[ExternalCommitStore] = []

    def __repr__(self) -> str:
        return repr(self._rows)

    def move_to(self, rows: ExternalCommitStore) -> None:
        """Return rows of another commit store from now on."""
        self._left.append(self._rows)  # commits in progress may still use it
        self.url, self.guarantees, self._rows = rows.url, rows.guarantees, rows

    def sort_out(self, base_uri: str) -> tuple[list[VersionRow], list[VersionRow]]:
        """Return the sound rows of a history, and the foreign rows."""
        rows = self._rows.list(base_uri, after=None, limit=None, descending=False)
        foreign = [row for row in rows if self._fault(row)]
        return [row for row in rows if row not in foreign], foreign

    def unfinished(self, prefix: str, *, after: tuple[str, int] | None, limit: int) -> list[VersionRow]:
        """Return unchecked rows of all histories, as `ListsUnfinished` does.

        Raises:
            Unsupported: The commit store cannot find them without reading every history.
        """
        if self.guarantees.derived:
            return []
        if not isinstance(self._rows, ListsUnfinished):
            raise Unsupported(
                f"{self.url}: this commit store keeps no index of commits that are not complete. `lancekeep fsck` "
                "finds them by reading every history"
            )
        return self._rows.unfinished(prefix, after=after, limit=limit)

    def get(self, base_uri: str, version: int) -> VersionRow | None:
        return self._checked(self._rows.get(base_uri, version))

    def unchecked_latest(self, base_uri: str) -> VersionRow | None:
        """Return the latest row of a history, which another program may have written.

        Its path is not to be used.
        """
        return self._rows.latest(base_uri)

    def latest(self, base_uri: str, read: LatestRow | None = None) -> VersionRow | None:
        """Return the latest row of a history.

        Args:
            base_uri: The history.
            read: The answer, if a manifest store has read it together with its entries.
        """
        row = self._rows.latest(base_uri) if read is None or read.base_uri != base_uri else read.row
        return self._checked(row)

    def are_joined_by(self, store: JoiningManifestStore) -> bool:
        """Return whether a manifest store reads the rows together with its entries."""
        return store.joins(self._rows)

    def list(self, base_uri: str, *, after: int | None, limit: int | None, descending: bool) -> list[VersionRow]:
        after, limit = (number and min(number, _LARGEST) for number in (after, limit))
        rows = self._rows.list(base_uri, after=after, limit=limit, descending=descending)
        for row in rows:
            self._checked(row)
        return rows

    def reserve(self, row: VersionRow, *, first: bool) -> Reservation:
        reservation = self._rows.reserve(row, first=first)
        if not isinstance(reservation, Reserved):
            self._check_obstacle(reservation)
        return reservation

    def reserve_all(self, claims: Sequence[Claim]) -> BatchReservation:
        reservation = self._rows.reserve_all(claims)
        if isinstance(reservation, Blocked):
            for obstacle in reservation.obstacles.values():
                self._check_obstacle(obstacle)
        return reservation

    def latest_all(self, base_uris: Sequence[str]) -> Sequence[VersionRow | None]:
        return [self._checked(row) for row in self._rows.latest_all(base_uris)]

    def finalize(self, row: VersionRow) -> bool:
        return self._rows.finalize(row)

    def record(self, rows: Iterable[VersionRow]) -> None:
        self._rows.record(rows)

    def delete(self, base_uri: str, versions: Iterable[int] | None = None) -> int:
        return self._rows.delete(base_uri, versions)

    def close(self) -> None:
        for rows in (*self._left, self._rows):
            rows.close()

    def _check_obstacle(self, obstacle: Taken | NotReady) -> None:
        self._checked(obstacle.row if isinstance(obstacle, Taken) else obstacle.latest)

    def _checked(self, row: VersionRow | None) -> VersionRow | None:
        if row is not None and (fault := self._fault(row)):
            raise Damaged(
                f"{self.url}: the row of version {row.version} of {row.base_uri} {fault}. Another program wrote it; "
                "nothing was done with that path. `lancekeep repair --deep` removes such rows of the catalog's tables; "
                "for any other directory delete the row in the commit store."
            )
        return row

    def _fault(self, row: VersionRow) -> str:
        return misplacement(row, row.base_uri.removeprefix(self._root_uri))
