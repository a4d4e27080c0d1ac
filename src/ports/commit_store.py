"""What Lancekeep needs from an external manifest store (table format, "External Manifest Store")."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import attrs

from lancekeep.domain.version_row import Reservation, VersionRow


@attrs.frozen
class CommitStoreGuarantees:
    """What a store promises.

    remembers: an acknowledged row is never forgotten, not even in a failover or a power loss. Where it is False, the
        create-only copy to the final name still keeps two contents from ever being one version.
    shared: processes on other machines see the same rows.
    """

    remembers: bool
    shared: bool


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
