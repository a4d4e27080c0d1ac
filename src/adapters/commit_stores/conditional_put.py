"""No rows at all: the object store's create-only write of the final manifest decides who wins a version.

What the other stores keep is derived here from the manifests that lie in ``_versions``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from lancekeep.adapters.commit_stores.claims import latest_agreed, reserve_alone
from lancekeep.adapters.commit_stores.options import StoreUrl
from lancekeep.domain.errors import Damaged, InvalidInput, ObjectNotFound, UnsafeStore
from lancekeep.domain.layout import DatasetRoot
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

_HINT = "latest_version_hint.json"
_Rows = list[VersionRow]


class ConditionalPutCommitStore:
    """An `ExternalCommitStore` that an `ObjectStore` with an atomic create is by itself.

    - ``reserve`` writes the final manifest, so a row is final from its first moment, and a claimant whose bytes are
      already there is told `Reserved`.
    - ``record`` and ``finalize`` have nothing to write, and ``delete`` leaves the manifests to its caller, whose they
      are: it answers how many of the versions there are.
    - A fence is answered `Reserved` and not written. None is needed: the create-only manifest is what every commit
      store's writers must pass in the end, so two stores cannot both decide a version.
    - ``latest`` is the first name of a listing where that comes in pages, V2 names sorting from the newest version to
      the oldest. Elsewhere a listing would cost more with every version, and it looks for what follows the version
      that the engine's hint names; a hint that is missing, unreadable or ahead costs a listing.

    Raises `UnsafeStore` where the object store has no atomic create.
    """

    options: ClassVar[frozenset[str]] = frozenset()
    url = "conditional-put://"

    def __init__(self, objects: ObjectStore) -> None:
        if not objects.guarantees.atomic_create:
            raise UnsafeStore(
                f"{objects.root_uri} cannot create an object only where there is none, so it cannot decide who commits "
                "a version. Configure a commit store, such as commit_store='sqlite:///var/lib/lake/commits.db' on one "
                "machine, or 'dynamodb://TABLE?region=…' for many."
            )
        self._objects = objects
        self.guarantees = CommitStoreGuarantees(
            remembers=objects.guarantees.durable,
            shared=not objects.root_uri.startswith(("file://", "memory://")),
            complete=True,
        )

    @staticmethod
    def canonical(url: StoreUrl) -> str:
        if url.parts.netloc or url.parts.path:
            url.refuse("expected conditional-put:// alone: it decides where the tables lie")
        return ConditionalPutCommitStore.url

    @classmethod
    def open(cls, url: StoreUrl, objects: ObjectStore) -> ConditionalPutCommitStore:
        cls.canonical(url)
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
            return self._latest_by_hint(base_uri) or next(reversed(self._sorted(base_uri)), None)
        newest = next(self._finals(base_uri), None)
        if newest is None or scheme_of(newest) is NamingScheme.V2:
            return newest
        return self._sorted(base_uri)[-1]

    def list(self, base_uri: str, *, after: int | None, limit: int | None, descending: bool) -> _Rows:
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
                    f"{row.base_uri}: version {row.version} cannot be recorded: its manifest {row.path!r} is not there"
                )

    def delete(self, base_uri: str, versions: Iterable[int] | None = None) -> int:
        present = {row.version for row in self._sorted(base_uri)}
        return len(present if versions is None else present.intersection(versions))

    def close(self) -> None:
        """Nothing to give back: the object store belongs to whoever made it."""

    def _create(self, row: VersionRow) -> bool:
        """Write the final manifest where there is none; False where there is one."""
        try:
            if self._objects.guarantees.atomic_copy:
                return self._objects.copy_if_absent(row.path, final_path(row.path))
            return self._objects.put_if_absent(final_path(row.path), self._objects.get(row.path))
        except ObjectNotFound:
            if self._objects.head(final_path(row.path)) is not None:
                return False
            raise

    def _is_own(self, row: VersionRow, held: VersionRow) -> bool:
        """Whether the final manifest is the claimant's: each holds a transaction of its own, so bytes tell."""
        if held.size != row.size:
            return False
        try:
            return self._objects.get(row.path) == self._objects.get(held.path)
        except ObjectNotFound:
            return False  # whose staged manifest is gone cannot prove it here; the caller compares the final one

    def _row(self, base_uri: str, version: int, key: str) -> VersionRow | None:
        info = self._objects.head(key)
        return None if info is None else VersionRow(base_uri, version, key, info.size)

    def _latest_by_hint(self, base_uri: str) -> VersionRow | None:
        """What follows the version of the hint, which every native commit writes; None where no hint helps."""
        root = self._root(base_uri)
        try:
            version = hinted_version(self._objects.get(root.versions_key + _HINT))
        except ObjectNotFound:
            return None
        latest = None
        while row := self._row(base_uri, version, root.manifest_key(version, NamingScheme.V2)):
            latest, version = row, version + 1
        return latest

    def _sorted(self, base_uri: str) -> _Rows:
        """Every version, oldest first. Raises `Damaged` where both naming schemes occur."""
        rows = list(self._finals(base_uri))
        final_versions((row.path.rpartition("/")[2] for row in rows), base_uri)
        return sorted(rows, key=lambda row: row.version)

    def _finals(self, base_uri: str) -> Iterator[VersionRow]:
        """The final manifests in the byte order of their names, as the object store lists them."""
        directory = self._root(base_uri).versions_key
        for info in self._objects.list(directory):
            name = ManifestName.parse(info.key.removeprefix(directory))
            if name is not None and not name.is_staged:
                yield VersionRow(base_uri, name.version, info.key, info.size)

    def _root(self, base_uri: str) -> DatasetRoot:
        if not base_uri.startswith(self._objects.root_uri):
            raise InvalidInput(
                f"{base_uri} is not in {self._objects.root_uri}, whose own condition decides commits here"
            )
        return DatasetRoot(base_uri.removeprefix(self._objects.root_uri), base_uri)
