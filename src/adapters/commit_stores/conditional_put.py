"""Commit store without rows: creating the final manifest decides.

Rows are derived from the manifests in ``_versions``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice, takewhile
from typing import ClassVar

from lancekeep.adapters.commit_stores.claims import latest_agreed, reserve_alone
from lancekeep.domain.dataset_files import REFERENCES
from lancekeep.domain.errors import Damaged, InvalidInput, LancekeepError, ObjectNotFound, UnsafeStore
from lancekeep.domain.layout import BRANCHES, DatasetRoot
from lancekeep.domain.naming import ManifestName, NamingScheme, final_path, final_versions
from lancekeep.domain.version_row import (
    BatchReservation,
    Claim,
    NotReady,
    Reservation,
    Reserved,
    Taken,
    VersionRow,
    scheme_of,
)
from lancekeep.format.json_files import hinted_version
from lancekeep.ports.commit_store import CommitStoreGuarantees
from lancekeep.ports.object_store import ObjectStore
from lancekeep.store_urls import StoreUrl

_Rows = list[VersionRow]

_REMEMBERED = 1024
"""The number of histories whose last version this process remembers."""


class ConditionalPutCommitStore:
    """Derive an `ExternalCommitStore` from an `ObjectStore` with an atomic create.

    - ``reserve`` writes the final manifest, so every row is final. If the claimant's bytes already exist under the
      final name, the answer is `Reserved`.
    - ``record`` and ``finalize`` write nothing. ``delete`` leaves the manifests to its caller, and only returns the
      number of existing versions.
    - A fence is answered with `Reserved` and not written. Writers of every commit store must create the final manifest,
      so two stores cannot both decide a version.
    - If listings are paged, ``latest`` is the first name of a listing, because V2 names sort from the newest version to
      the oldest. Otherwise the cost of a listing grows with the versions, so the search starts at the version in the
      engine's hint. A missing, unreadable or too high hint costs a listing. So does a tag or branch of the table: a
      native clean-up keeps the version of the tag or branch and removes later versions, and the search ends at the gap.

    Raises:
        UnsafeStore: the object store has no atomic create.
    """

    options: ClassVar[frozenset[str]] = frozenset()
    url = "conditional-put://"

    def __init__(self, objects: ObjectStore) -> None:
        if not objects.guarantees.atomic_create:
            raise UnsafeStore(
                f"{objects.root_uri} has no create-only write, so it cannot decide which writer commits a "
                "version. Configure a commit store, such as commit_store='sqlite:///var/lib/lake/commits.db' on one "
                "machine, or 'dynamodb://TABLE?region=…' for many."
            )
        self._objects = objects
        self._found: dict[str, int] = {}
        self.guarantees = CommitStoreGuarantees(
            remembers=objects.guarantees.durable,
            shared=not objects.root_uri.startswith(("file://", "memory://")),
            complete=True,
            derived=True,
        )

    @classmethod
    def open(cls, url: StoreUrl, objects: ObjectStore) -> ConditionalPutCommitStore:
        if url.parts.netloc or url.parts.path:
            url.refuse("expected conditional-put:// without host and path; it uses the object store of the tables")
        return cls(objects)

    def __repr__(self) -> str:
        return f"ConditionalPutCommitStore({self._objects.root_uri!r})"

    def get(self, base_uri: str, version: int) -> VersionRow | None:
        root = self._root(base_uri)
        for scheme in (NamingScheme.V2, NamingScheme.V1):
            row = self._row(base_uri, version, root.manifest_key(version, scheme))
            if row is not None:
                return row
        return None

    def latest(self, base_uri: str) -> VersionRow | None:
        if not self._objects.guarantees.paged:
            return self._latest_unpaged(base_uri)
        newest = next(self._finals(base_uri), None)
        if newest is None or scheme_of(newest) is NamingScheme.V2:
            return newest
        return self._sorted(base_uri)[-1]

    def list(self, base_uri: str, *, after: int | None, limit: int | None, descending: bool) -> _Rows:
        if descending and limit is not None:
            newest = (row for row in self._newest_first(base_uri, after) if after is None or row.version < after)
            return list(islice(newest, limit))
        rows = self._sorted(base_uri)
        if descending:
            rows.reverse()
        if after is not None:
            rows = [row for row in rows if (row.version < after if descending else row.version > after)]
        return rows[:limit]

    def reserve(self, row: VersionRow, *, first: bool) -> Reservation:
        if row.moved_to is not None:
            return Reserved()
        latest = self.latest(row.base_uri)
        ready = first if latest is None else not first and latest.version == row.version - 1
        if ready and self._create(row):
            return Reserved()
        held = self._row(row.base_uri, row.version, final_path(row.path))
        if held is None:
            return NotReady(latest)
        return Reserved() if self._is_own(row, held) else Taken(held)

    def reserve_all(self, claims: Sequence[Claim]) -> BatchReservation:
        return reserve_alone(self, claims)

    def latest_all(self, base_uris: Sequence[str]) -> Sequence[VersionRow | None]:
        return latest_agreed(self, base_uris)

    def finalize(self, row: VersionRow) -> bool:
        return self._objects.head(row.path) is not None

    def record(self, rows: Iterable[VersionRow]) -> None:
        for row in rows:
            if self._objects.head(row.path) is None:
                raise Damaged(
                    f"{row.base_uri}: version {row.version} cannot be recorded: no manifest {row.path!r} exists"
                )

    def delete(self, base_uri: str, versions: Iterable[int] | None = None) -> int:
        """Count the rows: they are the manifests, which the caller removes afterwards.

        A removal may leave a gap above the version of a stale hint, and the search from the hint ends at a gap. So a
        stale hint is removed first: without a hint, the versions are listed. Writing a newer hint could race with other
        writers.
        """
        present = {row.version for row in self._sorted(base_uri)}
        doomed = present if versions is None else present.intersection(versions)
        if present - doomed and not self._objects.guarantees.paged and self._hinted(base_uri) != max(present):
            self._objects.delete(self._root(base_uri).hint_key)
        return len(doomed)

    def close(self) -> None:
        """Do nothing: the object store belongs to its creator."""

    def _create(self, row: VersionRow) -> bool:
        """Create the final manifest; return False if it exists."""
        try:
            if self._objects.guarantees.atomic_copy:
                return self._objects.copy_if_absent(row.path, final_path(row.path))
            return self._objects.put_if_absent(final_path(row.path), self._objects.get(row.path))
        except ObjectNotFound:
            if self._objects.head(final_path(row.path)) is not None:
                return False
            raise

    def _is_own(self, row: VersionRow, held: VersionRow) -> bool:
        """Return whether the final manifest is the claimant's; a unique transaction makes its bytes unique."""
        if held.size != row.size:
            return False
        try:
            return self._objects.get(row.path) == self._objects.get(held.path)
        except ObjectNotFound:
            return False  # no proof without the staged manifest; the caller compares the final manifest

    def _row(self, base_uri: str, version: int, key: str) -> VersionRow | None:
        info = self._objects.head(key)
        return None if info is None else VersionRow(base_uri, version, key, info.size)

    def _latest_unpaged(self, base_uri: str) -> VersionRow | None:
        """Search by the hint; list the versions if the search finds none, or may end at a gap.

        A hint from which the search ends at a gap is removed, because the tag that keeps its version may be deleted.
        """
        found = self._latest_by_hint(base_uri)
        if found is not None and not self._has_references(self._root(base_uri)):
            return found
        if found is None:
            rows = self._sorted(base_uri)
            return rows[-1] if rows else None
        above = [*takewhile(lambda row: row.version > found.version, self._newest_first(base_uri))]
        if above and above[-1].version > found.version + 1:
            with suppress(LancekeepError):  # a reader may not be permitted to remove it
                self._objects.delete(self._root(base_uri).hint_key)
        return above[0] if above else found

    def _has_references(self, root: DatasetRoot) -> bool:
        """Return whether the table has a tag or branch. The references of a branch lie in its table's directory."""
        parts = root.key.split("/")
        keys = ["/".join(parts[:at]) for at, part in enumerate(parts) if part == BRANCHES and at] + [root.key]
        return any(next(self._objects.list(f"{key}/{REFERENCES}/"), None) is not None for key in keys)

    def _latest_by_hint(self, base_uri: str) -> VersionRow | None:
        """Search upwards from the version in the hint of native commits; None without a usable hint.

        If the version that the last search found still exists, the search continues there. None also if the next
        version has a V1 name. The caller then lists the versions, and refuses both schemes.
        """
        root, hinted = self._root(base_uri), self._hinted(base_uri)

        def row(version: int) -> VersionRow | None:
            return self._row(base_uri, version, root.manifest_key(version, NamingScheme.V2))

        latest = row(hinted) if hinted else None
        if latest is None:
            return None
        last = self._found.get(base_uri, 0)
        latest = (row(last) if last > hinted else None) or latest
        while (following := row(latest.version + 1)) is not None:
            latest = following
        if self._objects.head(root.manifest_key(latest.version + 1, NamingScheme.V1)) is not None:
            return None
        if len(self._found) >= _REMEMBERED:
            self._found.clear()
        self._found[base_uri] = latest.version
        return latest

    def _hinted(self, base_uri: str) -> int:
        """Return the version in the hint; 0 without a usable hint."""
        try:
            return hinted_version(self._objects.get(self._root(base_uri).hint_key))
        except ObjectNotFound:
            return 0

    def _sorted(self, base_uri: str) -> _Rows:
        """Return every version, oldest first. Raises `Damaged` if both naming schemes occur."""
        rows = list(self._finals(base_uri))
        final_versions((row.path.rpartition("/")[2] for row in rows), base_uri)
        return sorted(rows, key=lambda row: row.version)

    def _newest_first(self, base_uri: str, before: int | None = None) -> Iterator[VersionRow]:
        """Yield the versions, newest first; of V2 names, only as many are read as the caller takes.

        Args:
            base_uri: The history.
            before: The caller ignores this version and those after it.

        Raises:
            Damaged: Both naming schemes occur.
        """
        finals = self._finals(base_uri)
        newest = next(finals, None)
        if newest is None or scheme_of(newest) is not NamingScheme.V2:
            yield from reversed(self._sorted(base_uri))
            return
        if before is None:
            yield newest
        else:
            finals = self._finals(base_uri, self._root(base_uri).manifest_key(before, NamingScheme.V2))
        for row in finals:
            final_versions((each.path.rpartition("/")[2] for each in (newest, row)), base_uri)
            yield row

    def _finals(self, base_uri: str, after: str = "") -> Iterator[VersionRow]:
        """Yield the final manifests in the byte order of their names, as the object store lists them."""
        directory = self._root(base_uri).versions_key
        for info in self._objects.list(directory, after=after):
            name = ManifestName.parse(info.key.removeprefix(directory))
            if name is not None and not name.is_staged:
                yield VersionRow(base_uri, name.version, info.key, info.size)

    def _root(self, base_uri: str) -> DatasetRoot:
        if not base_uri.startswith(self._objects.root_uri):
            raise InvalidInput(
                f"{base_uri} is not in {self._objects.root_uri}, whose create-only write decides commits here"
            )
        return DatasetRoot(base_uri.removeprefix(self._objects.root_uri), base_uri)
