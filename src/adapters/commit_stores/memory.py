"""Commit store in memory, for tests and temporary tables."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from threading import Lock
from typing import ClassVar
from urllib.parse import quote

from lancekeep.adapters.commit_stores.claims import answer_all, answer_claim, may_finalize
from lancekeep.domain.version_row import BatchReservation, Claim, Reservation, Reserved, VersionRow
from lancekeep.ports.commit_store import CommitStoreGuarantees
from lancekeep.ports.object_store import ObjectStore
from lancekeep.store_urls import StoreUrl

_Rows = list[VersionRow]


class _Histories:
    def __init__(self) -> None:
        self.lock = Lock()
        self.rows: dict[str, dict[int, VersionRow]] = {}
        self.latest: dict[str, int] = {}


_NAMED: dict[str, _Histories] = defaultdict(_Histories)


class MemoryCommitStore:
    """Keep version rows in memory, shared by all instances of one name."""

    options: ClassVar[frozenset[str]] = frozenset()
    guarantees = CommitStoreGuarantees(remembers=False, shared=False, atomic_rows=sys.maxsize)

    def __init__(self, name: str) -> None:
        self.url = f"memory://{quote(name, safe='')}"
        self._histories = _NAMED[name]

    @classmethod
    def open(cls, url: StoreUrl, objects: ObjectStore) -> MemoryCommitStore:
        return cls(url.name_only())

    def __repr__(self) -> str:
        return f"MemoryCommitStore({self.url!r})"

    def get(self, base_uri: str, version: int) -> VersionRow | None:
        with self._histories.lock:
            return self._rows(base_uri).get(version)

    def latest(self, base_uri: str) -> VersionRow | None:
        with self._histories.lock:
            return self._latest(base_uri)

    def list(self, base_uri: str, *, after: int | None, limit: int | None, descending: bool) -> list[VersionRow]:
        with self._histories.lock:
            rows = self._rows(base_uri)
            versions = sorted(rows, reverse=descending)
            if after is not None:
                versions = [version for version in versions if (version < after if descending else version > after)]
            return [rows[version] for version in versions[:limit]]

    def unfinished(self, prefix: str, *, after: tuple[str, int] | None, limit: int) -> _Rows:
        with self._histories.lock:
            found = [
                row
                for base_uri, version in self._histories.latest.items()
                if base_uri.startswith(prefix)
                and not (row := self._histories.rows[base_uri][version]).is_final
                and row.moved_to is None
            ]
        found.sort(key=lambda row: (row.base_uri, row.version))
        return [row for row in found if after is None or (row.base_uri, row.version) > after][:limit]

    def reserve(self, row: VersionRow, *, first: bool) -> Reservation:
        with self._histories.lock:
            told = self._answer(Claim(row, first))
            if told is None:
                self._put(row)
            return told or Reserved()

    def reserve_all(self, claims: Sequence[Claim]) -> BatchReservation:
        with self._histories.lock:
            told = answer_all(claims, map(self._answer, claims))
            if told is None:
                for claim in claims:
                    self._put(claim.row)
            return told or Reserved()

    def latest_all(self, base_uris: Sequence[str]) -> Sequence[VersionRow | None]:
        with self._histories.lock:
            return [self._latest(base_uri) for base_uri in base_uris]

    def finalize(self, row: VersionRow) -> bool:
        with self._histories.lock:
            held = self._rows(row.base_uri).get(row.version)
            if held is None:
                return False
            if may_finalize(held):
                self._put(VersionRow(row.base_uri, row.version, row.path, row.size, held.committer))
            return True

    def record(self, rows: Iterable[VersionRow]) -> None:
        with self._histories.lock:
            for row in rows:
                if row.version not in self._rows(row.base_uri):
                    self._put(row)

    def delete(self, base_uri: str, versions: Iterable[int] | None = None) -> int:
        with self._histories.lock:
            rows = self._rows(base_uri)
            doomed = [version for version in (set(rows) if versions is None else set(versions)) if version in rows]
            for version in doomed:
                del rows[version]
            if rows:
                self._histories.latest[base_uri] = max(rows)
            else:
                self._histories.latest.pop(base_uri, None)
                self._histories.rows.pop(base_uri, None)
            return len(doomed)

    def close(self) -> None:
        """Do nothing: the rows live as long as the process."""

    def _answer(self, claim: Claim) -> Reservation | None:
        row = claim.row
        return answer_claim(claim, self._rows(row.base_uri).get(row.version), self._latest(row.base_uri))

    def _rows(self, base_uri: str) -> dict[int, VersionRow]:
        return self._histories.rows.get(base_uri, {})

    def _latest(self, base_uri: str) -> VersionRow | None:
        version = self._histories.latest.get(base_uri)
        return None if version is None else self._histories.rows[base_uri][version]

    def _put(self, row: VersionRow) -> None:
        self._histories.rows.setdefault(row.base_uri, {})[row.version] = row
        self._histories.latest[row.base_uri] = max(row.version, self._histories.latest.get(row.base_uri, row.version))
