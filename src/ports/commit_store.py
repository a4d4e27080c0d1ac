"""The port of external manifest stores (table format, "External Manifest Store")."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, runtime_checkable

import attrs

from lancekeep.domain.errors import Unsupported
from lancekeep.domain.version_row import BatchReservation, Claim, Reservation, VersionRow


@attrs.frozen
class CommitStoreGuarantees:
    """State the guarantees of a store.

    remembers: An acknowledged row is never lost, even in a failover or a power loss. If False, the create-only copy to
        the final name still prevents two contents of one version.
    shared: Processes on other machines see the same rows.
    atomic_rows: The maximum number of rows per ``reserve_all``.
    complete: Every version in the object store has a row, so readers need not check. Rows derived from the manifests
        are complete; other rows only if the deployment declares it.
    derived: Rows are derived from the final manifests, so creating the final manifest commits the version.
    """

    remembers: bool
    shared: bool
    atomic_rows: int = 1
    complete: bool = False
    derived: bool = False


class ExternalCommitStore(Protocol):
    """Map each version of a table to its manifest by rows.

    A row is ``(base_uri, version) -> path, size, committer``. Every adapter keeps these invariants:

    - **Mutual exclusion**: of concurrent ``reserve`` calls for one version, exactly one is answered with `Reserved`.
      The others receive the row that holds the version.
    - **No gaps**: a version is reserved only if its predecessor is the latest row and final, or if the history is empty
      and the caller passes ``first``. (Only a concurrent ``delete`` of that history may intervene between check and
      write.) A deleted version thus can never be reserved again below a later version.
    - **A row changes once**: from its staged path to its final path. A final row never changes.
    - **Own success is never a conflict**: ``reserve`` with the staged path that the row already holds answers
      `Reserved`, also after retries by the caller or the driver.
    - **All or nothing**: the rows of one ``reserve_all`` appear at one moment, or never. No crash and no lost reply
      leaves a part of them.
    - **Linearizable reads**: ``get`` and ``latest`` see every acknowledged row, from any process.

    Each method is one atomic step, and one round trip if the store allows it. Every method raises `StoreUnavailable` if
    the store does not answer (the effect is then unknown), and `AccessDenied` if the credentials do not permit it.
    Messages name host and port, never a secret. Instances may be shared between threads. They are not pickled: pass
    the URL instead.
    """

    @property
    def url(self) -> str:
        """The canonical URL, without secrets and tuning options.

        It is equal exactly if two stores hold the same rows.
        """

    @property
    def guarantees(self) -> CommitStoreGuarantees:
        """What the store guarantees."""

    def get(self, base_uri: str, version: int) -> VersionRow | None:
        """Return the row of one version, or None."""

    def latest(self, base_uri: str) -> VersionRow | None:
        """Return the row of the highest version, or None for an empty history.

        The cost does not grow with the number of versions.
        """

    def list(self, base_uri: str, *, after: int | None, limit: int | None, descending: bool) -> list[VersionRow]:
        """Return at most ``limit`` rows after version ``after``, sorted by version."""

    def reserve(self, row: VersionRow, *, first: bool) -> Reservation:
        """Reserve a version for a staged manifest, by put-if-absent. Idempotent.

        Args:
            row: The row with the staged path.
            first: The history must be empty, and this version begins it. Otherwise version ``row.version - 1`` must be
                the latest row, and final.

        Returns:
            `Reserved`; `Taken` with the row that holds the version; or `NotReady` with the latest row, None for an
            empty history.
        """

    def reserve_all(self, claims: Sequence[Claim]) -> BatchReservation:
        """Reserve one version in each of several histories, or none. Idempotent.

        Each claim follows the rules of ``reserve``.

        Returns:
            `Reserved`, also if one of the rows already holds its staged path: these rows are only reserved together, so
            an earlier call has reserved all of them. Otherwise `Blocked` with some of the conflicting rows, and nothing
            is written.

        Raises:
            Unsupported: there are more claims than ``guarantees.atomic_rows``.
        """

    def latest_all(self, base_uris: Sequence[str]) -> Sequence[VersionRow | None]:
        """Return the latest rows of several histories at one moment.

        No result shows a transaction in part.
        """

    def finalize(self, row: VersionRow) -> bool:
        """Set an existing row to its final path, by put-if-exists. Idempotent.

        Returns:
            False, without a write, if the version has no row.
        """

    def record(self, rows: Iterable[VersionRow]) -> None:
        """Enter final rows, or a fence, of versions that have no row. Idempotent.

        Used to adopt a history, to move it from another store, and to restore lost rows. Checks no predecessor. Enters
        the rows in the given order, not atomically.
        """

    def delete(self, base_uri: str, versions: Iterable[int] | None = None) -> int:
        """Delete rows, or the whole history if ``versions`` is None. Idempotent.

        Returns:
            The number of deleted rows.
        """

    def close(self) -> None:
        """Release connections and files. Idempotent."""


@runtime_checkable
class ListsUnfinished(Protocol):
    """A commit store that finds the rows of all histories that are not final.

    Its cost grows with the number of these rows, not with the number of histories. Adapters offer it where the store
    can index such rows.
    """

    def unfinished(self, prefix: str, *, after: tuple[str, int] | None, limit: int) -> list[VersionRow]:
        """Return rows with a staged path, sorted by base URI and version.

        Rows that are final, and rows that end a history which moved elsewhere, are left out.

        Args:
            prefix: What each base URI begins with.
            after: The base URI and the version after which the page begins.
            limit: The most rows.
        """


def require_atomic(store: ExternalCommitStore, rows: int) -> None:
    """Raise `Unsupported` unless the store reserves this many rows atomically."""
    most = store.guarantees.atomic_rows
    if rows > most:
        raise Unsupported(
            f"{store.url} reserves versions of at most {most} table{'' if most == 1 else 's'} in one atomic step; the "
            f"transaction has {rows} or more. Commit stores that support several are memory://, sqlite://, redis:// "
            "and rediss:// (no cluster), postgresql://, and dynamodb:// (up to 100); choose one with "
            "change_commit_store. "
            "Nothing was written."
        )
