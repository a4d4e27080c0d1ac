"""Rows of tables, of which each is managed by the commit store or by the storage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from lancekeep.application.commits.checked_rows import CheckedRows
from lancekeep.domain.errors import Unsupported
from lancekeep.domain.layout import BRANCHES
from lancekeep.domain.managed import IMPLEMENTATION, MANAGED
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
)
from lancekeep.ports.commit_store import CommitStoreGuarantees, ExternalCommitStore, require_atomic

_Rows = list[VersionRow]


class ManagedRows:
    """An `ExternalCommitStore` over the commit store and the storage's own condition.

    A row of the commit store decides: if the latest row of a history is a *release*, the storage manages the history,
    and its rows are derived from the final manifests. Any other history is managed by the commit store. A branch
    without rows follows its table. A release takes effect for every process at once, because each claim of a version
    meets it. A claim that the commit store granted before still needs the final manifest, which both create by
    put-if-absent.

    An operation on a history of the commit store costs no further request, unless it finds no row.

    Args:
        rows: The commit store.
        direct: The storage's own condition; None if the storage has none.
        root_uri: The root of the object store.
    """

    def __init__(self, rows: ExternalCommitStore, direct: ExternalCommitStore | None, root_uri: str) -> None:
        self.stored = CheckedRows(rows, root_uri)
        self._root_uri = root_uri
        self._direct = None if direct is None else CheckedRows(direct, root_uri)

    def __repr__(self) -> str:
        return repr(self.stored)

    @property
    def url(self) -> str:
        """The URL of the commit store."""
        return self.stored.url

    @property
    def guarantees(self) -> CommitStoreGuarantees:
        """The guarantees of the commit store."""
        return self.stored.guarantees

    # -- managers -----------------------------------------------------------------------------------------------

    @property
    def storage(self) -> CheckedRows | None:
        """The condition that can manage tables besides the commit store.

        None if the storage has none, or if the commit store is this condition.
        """
        return None if self.stored.guarantees.derived else self._direct

    @property
    def is_create_only(self) -> bool:
        """Whether the storage creates an object only if it does not exist."""
        return self._direct is not None

    def of(self, base_uri: str) -> CheckedRows:
        """Return the rows of the manager of a history.

        A row that another program wrote is no release, so it leaves the history to the commit store, where a drop or a
        repair can delete it.
        """
        return self.stored if self.storage is None else self._manager(base_uri, self.stored.unchecked_latest(base_uri))

    def is_released(self, base_uri: str) -> bool:
        """Return whether the commit store has left a history to the storage."""
        return self.of(base_uri) is not self.stored

    def release(self, base_uri: str) -> None:
        """Leave a history to the storage from now on. Idempotent.

        Raises:
            Unsupported: The storage has no condition, or the commit store keeps no such row.
        """
        self.require_storage()
        self.stored.record([VersionRow.release(base_uri)])
        latest = self.stored.unchecked_latest(base_uri)
        if latest is None or not latest.is_release:
            raise Unsupported(f"{self.url} keeps no row that leaves {base_uri} to the storage; nothing was changed")

    def require_storage(self) -> None:
        """Raise `Unsupported` unless the storage can manage tables."""
        if self._direct is None:
            raise Unsupported(
                "the storage has no create-only write, so it cannot manage the versions of a table. Leave them to the "
                f"commit store: {MANAGED!r} = {IMPLEMENTATION!r}"
            )

    def forget_rows(self, base_uri: str) -> None:
        """Delete the rows of a released history; the release stays."""
        sound, foreign = self.stored.sort_out(base_uri)
        if stale := [row.version for row in (*sound, *foreign) if not row.is_release]:
            self.stored.delete(base_uri, stale)

    def reclaim(self, base_uri: str) -> None:
        """Let the commit store manage a released history from now on. Idempotent.

        The history has no rows; the next participant adopts its final manifests.
        """
        latest = self.stored.unchecked_latest(base_uri)
        if latest is not None and latest.is_release:
            self.forget_rows(base_uri)
            self.stored.delete(base_uri, [latest.version])

    def beside(self, rows: ExternalCommitStore) -> ManagedRows:
        """Return the rows of another commit store over the same storage."""
        return ManagedRows(rows, self._direct, self._root_uri)

    def move_to(self, rows: ExternalCommitStore) -> None:
        """Return rows of another commit store from now on."""
        self.stored.move_to(rows)

    def unfinished(self, prefix: str, *, after: tuple[str, int] | None, limit: int) -> _Rows:
        """Return rows of the commit store, as `CheckedRows.unfinished` does.

        Tables that the storage manages have none.
        """
        return self.stored.unfinished(prefix, after=after, limit=limit)

    @staticmethod
    def tables_of(base_uri: str) -> list[str]:
        """Return the tables of which a history may be a branch.

        There is none if its path has no directory of branches.
        """
        parts = base_uri.split("/")
        return ["/".join(parts[:at]) for at, part in enumerate(parts) if part == BRANCHES]

    # -- reading ------------------------------------------------------------------------------------------------

    def sort_out(self, base_uri: str) -> tuple[list[VersionRow], list[VersionRow]]:
        """Return the sound rows of a history, and the foreign rows of the commit store."""
        rows, foreign = self.stored.sort_out(base_uri)
        manager = self._manager(base_uri, rows[-1] if rows else None)
        return (rows if manager is self.stored else manager.sort_out(base_uri)[0]), foreign

    def get(self, base_uri: str, version: int) -> VersionRow | None:
        row = self.stored.get(base_uri, version)
        if self.storage is None or (row is not None and not row.is_release):
            return row
        manager = self.of(base_uri)
        return None if manager is self.stored else manager.get(base_uri, version)

    def latest(self, base_uri: str, read: LatestRow | None = None) -> VersionRow | None:
        """Return the latest row of a history; see `CheckedRows.latest`."""
        row = self.stored.latest(base_uri, read)
        manager = self._manager(base_uri, row)
        return row if manager is self.stored else manager.latest(base_uri)

    def list(self, base_uri: str, *, after: int | None, limit: int | None, descending: bool) -> list[VersionRow]:
        rows = self.stored.list(base_uri, after=after, limit=limit, descending=descending)
        if self.storage is None or (rows and not any(row.is_release for row in rows)):
            return rows
        manager = self.of(base_uri)
        if manager is self.stored:
            return []
        return manager.list(base_uri, after=after, limit=limit, descending=descending)

    def latest_all(self, base_uris: Sequence[str]) -> Sequence[VersionRow | None]:
        """Return the latest rows, at one moment if the commit store manages all."""
        rows = self.stored.latest_all(base_uris)
        managers = [self._manager(base_uri, row) for base_uri, row in zip(base_uris, rows, strict=True)]
        return [
            row if manager is self.stored else manager.latest(base_uri)
            for base_uri, row, manager in zip(base_uris, rows, managers, strict=True)
        ]

    # -- changing -----------------------------------------------------------------------------------------------

    def reserve(self, row: VersionRow, *, first: bool) -> Reservation:
        if self._follows_released_table(row.base_uri, first=first):
            return self._required().reserve(row, first=first)
        reservation = self.stored.reserve(row, first=first)
        if isinstance(reservation, Reserved):
            return reservation
        met = reservation.row if isinstance(reservation, Taken) else reservation.latest
        if isinstance(reservation, NotReady) or (met is not None and met.is_release):
            manager = self._manager(row.base_uri, met)
            if manager is not self.stored:
                return manager.reserve(row, first=first)
        return reservation

    def reserve_all(self, claims: Sequence[Claim]) -> BatchReservation:
        """Reserve versions of several histories together.

        Raises:
            Unsupported: The storage manages one of them, and there are several.
        """
        if len(claims) == 1:
            told = self.reserve(claims[0].row, first=claims[0].first)
            return told if isinstance(told, Reserved) else Blocked({claims[0].row.base_uri: told})
        require_atomic(self.stored, len(claims))
        for claim in claims:
            if self._follows_released_table(claim.row.base_uri, first=claim.first):
                raise _together(claim.row.base_uri)
        reservation = self.stored.reserve_all(claims)
        if isinstance(reservation, Blocked) and self.storage is not None:
            for base_uri, told in reservation.obstacles.items():
                met = told.row if isinstance(told, Taken) else told.latest
                if met is None or met.is_release:
                    self._require_stored(base_uri, met)
        return reservation

    def finalize(self, row: VersionRow) -> bool:
        if self.stored.finalize(row):
            return True
        manager = self.of(row.base_uri)
        return manager is not self.stored and manager.finalize(row)

    def record(self, rows: Iterable[VersionRow]) -> None:
        """Enter final rows.

        A history that was released before the rows were entered keeps none of them.
        """
        for base_uri, group in groupby(rows, lambda row: row.base_uri):
            entered = [*group]
            manager = self.of(base_uri)
            manager.record(entered)
            if manager is self.stored and self.is_released(base_uri):
                self.stored.delete(base_uri, [row.version for row in entered if not row.is_release])

    def delete(self, base_uri: str, versions: Iterable[int] | None = None) -> int:
        """Delete rows; a history without ``versions`` also loses its release."""
        doomed = None if versions is None else [*versions]
        manager = self.of(base_uri)
        count = self.stored.delete(base_uri, doomed)
        return count if manager is self.stored else manager.delete(base_uri, doomed)

    def close(self) -> None:
        """Release the connections of the commit store."""
        self.stored.close()

    # -- the decision -------------------------------------------------------------------------------------------

    def _manager(self, base_uri: str, latest: VersionRow | None) -> CheckedRows:
        """Return the rows of the manager of a history, given its latest row in the commit store."""
        if self.storage is None:
            return self.stored
        is_released = self._table_is_released(base_uri) if latest is None else latest.is_release
        return self._required() if is_released else self.stored

    def _follows_released_table(self, base_uri: str, *, first: bool) -> bool:
        """Return whether the first version of a branch belongs to the storage.

        The commit store would grant it, because the branch has no rows.
        """
        if not first or self.storage is None or f"/{BRANCHES}/" not in base_uri:
            return False
        return self.stored.latest(base_uri) is None and self._table_is_released(base_uri)

    def _table_is_released(self, base_uri: str) -> bool:
        """Return whether a history is a branch of a released table."""
        rows = (self.stored.latest(table) for table in self.tables_of(base_uri))
        return any(row is not None and row.is_release for row in rows)

    def _require_stored(self, base_uri: str, latest: VersionRow | None) -> None:
        if self._manager(base_uri, latest) is not self.stored:
            raise _together(base_uri)

    def _required(self) -> CheckedRows:
        assert self.storage is not None
        return self.storage


def _together(base_uri: str) -> Unsupported:
    return Unsupported(
        f"{base_uri}: the storage manages the versions of this table ({MANAGED!r} is 'storage'), so they cannot be "
        "committed together with versions of other tables. Commit this table alone, or set the property to "
        f"{IMPLEMENTATION!r} first. Nothing was committed."
    )
