"""What Lancekeep needs from an external manifest store (table format, "External Manifest Store")."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import attrs

from lancekeep.domain.errors import Unsupported
from lancekeep.domain.version_row import BatchReservation, Claim, Reservation, VersionRow


@attrs.frozen
class CommitStoreGuarantees:
    """What a store promises.

    remembers: an acknowledged row is never forgotten, not even in a failover or a power loss. Where it is False, the
        create-only copy to the final name still keeps two contents from ever being one version.
    shared: processes on other machines see the same rows.
    atomic_rows: how many rows one ``reserve_all`` takes at most.
    complete: no version lies in the object store without a row, so readers need not look for one. Rows that are
        derived from the manifests are complete; others only if the deployment says so.
    """

    remembers: bool
    shared: bool
    atomic_rows: int = 1
    complete: bool = False


class ExternalCommitStore(Protocol):
    """Rows ``(base_uri, version) -> path, size, committer``: which manifest is which version.

    Invariants every adapter keeps:

    - **Mutual exclusion**: of racing ``reserve`` calls for one version exactly one is told `Reserved`; each other is
      told who holds the version.
    - **No gaps**: a version is reserved only where its predecessor is the latest row and final, or where the history
      is empty and the caller says so. (Only a concurrent ``delete`` of that very history may come between check and
      write.) So a version that was deleted can never be claimed again below a later one.
    - **A row moves once**: from its staged path to its final path. A final row never changes again.
    - **Own success is never a conflict**: ``reserve`` with the staged path that the row already holds answers
      `Reserved`, however often it is repeated and whatever a driver retried underneath.
    - **All or nothing**: the rows of one ``reserve_all`` are there together from one moment on, or never; no crash and
      no lost reply leaves a part of them.
    - **Read your writes, everywhere**: ``get`` and ``latest`` see every acknowledged row, from any process.

    Each method is one atomic step, and one round trip where the store can. Every method raises `StoreUnavailable`
    where the store did not answer (the effect is then unknown) and `AccessDenied` where credentials do not permit it;
    messages name host and port, never a secret. Instances may be shared between threads, and are not pickled: ship
    the URL instead.
    """

    url: str
    """The canonical URL of the store, without secrets and tuning: equal exactly where two URLs mean the same rows."""

    guarantees: CommitStoreGuarantees

    def get(self, base_uri: str, version: int) -> VersionRow | None:
        """The row of one version, or None."""

    def latest(self, base_uri: str) -> VersionRow | None:
        """The row of the highest version, or None where the history is empty. Its cost does not grow with versions."""

    def list(self, base_uri: str, *, after: int | None, limit: int | None, descending: bool) -> list[VersionRow]:
        """Rows in the order of versions, at most ``limit``, beginning behind version ``after`` in that order."""

    def reserve(self, row: VersionRow, *, first: bool) -> Reservation:
        """Claim ``row.version`` for the staged manifest ``row.path``: put-if-absent.

        ``first``: the history must be empty, and this version begins it. Otherwise version ``row.version - 1`` must be
        the latest row, and final. Answers `Reserved`, `Taken` with the row that holds the version, or `NotReady` with
        the latest row there is (None for an empty history). Idempotent for one staged path.
        """

    def reserve_all(self, claims: Sequence[Claim]) -> BatchReservation:
        """Claim versions of several histories, each history once: all of them, or none, as ``reserve`` claims one.

        Answers `Reserved`, also where one of the rows holds its staged path already: rows of a batch are only ever
        reserved together, so an earlier call has reserved them all. Otherwise `Blocked` with rows that are in the way,
        not always all of them, and nothing was written. Idempotent for the same staged paths.

        Raises `Unsupported` for more claims than ``guarantees.atomic_rows``.
        """

    def latest_all(self, base_uris: Sequence[str]) -> Sequence[VersionRow | None]:
        """What ``latest`` answers for each of several histories, all at one moment: of a batch all rows or none."""

    def finalize(self, row: VersionRow) -> bool:
        """Let an existing row point at its final path, ``row.path``: put-if-exists.

        False, and nothing written, where the version has no row. Idempotent.
        """

    def record(self, rows: Iterable[VersionRow]) -> None:
        """Enter final rows for manifests that already lie at their final path, each where its version has no row.

        For adopting a history, moving it from another store, and putting back a row that the store lost. Checks no
        predecessor. Idempotent; not atomic over several rows, which are entered in the order given.
        """

    def delete(self, base_uri: str, versions: Iterable[int] | None = None) -> int:
        """Forget rows, or the whole history where ``versions`` is None; how many there were. Idempotent."""

    def close(self) -> None:
        """Give back connections and files. Idempotent."""


def require_atomic(store: ExternalCommitStore, rows: int) -> None:
    """Raises `Unsupported` unless the store reserves so many rows in one step."""
    most = store.guarantees.atomic_rows
    if rows > most:
        raise Unsupported(
            f"{store.url} reserves versions of at most {most} table{'' if most == 1 else 's'} in one atomic step, and "
            f"{rows} or more are asked for. Commit stores that take several are memory://, sqlite://, redis:// and "
            "rediss:// (no cluster), and dynamodb:// (up to 100); move there with change_commit_store. Nothing was "
            "written."
        )
