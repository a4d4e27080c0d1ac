"""The checks of a commit store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from uuid import uuid4

import attrs

from lancekeep.application.certification.checks import (
    CONTENDERS,
    ROUNDS,
    TOGETHER,
    Broken,
    Client,
    NotClaimed,
    Planned,
    answer_of,
    race,
    raced,
)
from lancekeep.domain.errors import StoreUnavailable, Unsupported
from lancekeep.domain.naming import NamingScheme, final_path
from lancekeep.domain.version_row import BatchReservation, Claim, Reservation, Reserved, Taken, VersionRow
from lancekeep.ports.commit_store import ExternalCommitStore

_TWO_WINNERS = "Do not use this commit store: two writers could both win a version"
_LOST_HISTORY = "Do not use this commit store: versions that were acknowledged are missed, or given away again"
_PARTS = (
    "Do not use transactions over several tables with this commit store: a part of a transaction could be committed"
)


class CommitStoreChecks:
    """The checks of one commit store, with several connections to it."""

    def __init__(self, clients: Sequence[Client], directory: str, reopen: Callable[[], ExternalCommitStore]) -> None:
        self.histories: list[str] = []
        self.used: set[str] = set()
        self._objects = clients[0].objects
        self._connections = [client.rows for client in clients if client.rows is not None]
        self._rows, self._other = self._connections[:2]
        self._reopen = reopen
        self._directory = f"{directory}/histories"

    def plan(self) -> list[Planned]:
        return [
            Planned("commit store", name, measure, not_for)
            for name, measure, not_for in (
                ("reserve_race", self._reserve_race, _TWO_WINNERS),
                ("reserve_repeated", self._reserve_repeated, _TWO_WINNERS),
                ("reserve_all_race", self._reserve_all_race, _PARTS),
                ("no_gap", self._no_gap, _LOST_HISTORY),
                ("finalize_existing_only", self._finalize_existing_only, _LOST_HISTORY),
                ("read_your_writes", self._read_your_writes, _LOST_HISTORY),
                ("latest", self._latest, _LOST_HISTORY),
                ("list_order", self._list_order, _LOST_HISTORY),
                ("delete", self._delete, _LOST_HISTORY),
                ("survives_reconnect", self._survives_reconnect, _LOST_HISTORY),
                ("remembers", self._remembers, _LOST_HISTORY),
            )
        ]

    def _reserve_race(self) -> str:
        for number in range(ROUNDS):
            history = self._history(f"race-{number}")
            claims = [self._staged(history, 1) for _ in self._connections]
            replies = self._race_to_reserve(claims)
            winners = [claim for claim, reply in zip(claims, replies, strict=True) if isinstance(reply, Reserved)]
            silent = [
                claim for claim, reply in zip(claims, replies, strict=True) if isinstance(reply, StoreUnavailable)
            ]
            if len(winners) > 1 or not (winners or silent):
                raise Broken(f"{len(winners)} of {CONTENDERS} writers reserved one version")
            if not any(self._holds(claim) for claim in winners or silent):
                raise Broken("the row does not belong to the writer that reserved the version")
            named = [reply.row.path for reply in replies if isinstance(reply, Taken)]
            if len(set(named)) > 1:
                raise Broken(f"the replies to the losers name {len(set(named))} winners")
        return f"{raced(CONTENDERS, ROUNDS)} for one version: one writer won each time, as each reply says"

    def _race_to_reserve(self, claims: Sequence[VersionRow]) -> list[Reservation | StoreUnavailable]:
        return race(self._connections, lambda rows, me: rows.reserve(claims[me], first=True))

    def _reserve_repeated(self) -> str:
        history = self._history("repeated")
        mine, theirs = self._staged(history, 1), self._staged(history, 1)
        for answer in (self._rows.reserve(mine, first=True), self._other.reserve(mine, first=True)):
            if not isinstance(answer, Reserved):
                raise Broken(f"a writer that repeated its reservation got the reply {answer_of(answer)}")
        answer = self._other.reserve(theirs, first=True)
        if isinstance(answer, Reserved) or not self._holds(mine):
            raise Broken("a version was given to a second writer")
        return "a repeated reservation gets the same reply, also through another connection; another writer is refused"

    def _reserve_all_race(self) -> str:
        """Race for versions of several histories; each writer must get all or none."""
        if self._rows.guarantees.atomic_rows < TOGETHER:
            raise NotClaimed("it reserves one version at a time, and transactions over several tables are refused")
        for number in range(ROUNDS):
            histories = [self._history(f"together-{number}-{part}") for part in range(TOGETHER)]
            batches = [[self._staged(history, 1) for history in histories] for _ in self._connections]
            try:
                replies = self._race_to_reserve_all(batches)
            except Unsupported as error:
                raise NotClaimed(f"{error} Transactions over several tables are refused") from error
            winners = [batch for batch, reply in zip(batches, replies, strict=True) if isinstance(reply, Reserved)]
            silent = [
                batch for batch, reply in zip(batches, replies, strict=True) if isinstance(reply, StoreUnavailable)
            ]
            if len(winners) > 1 or not (winners or silent):
                raise Broken(f"{len(winners)} of {CONTENDERS} writers reserved the same versions")
            if not any(all(self._holds(row) for row in batch) for batch in winners or silent):
                raise Broken("of versions that were reserved together, some belong to another writer or are missing")
            self._partial_batch_is_refused(histories[0], self._history(f"together-{number}-free"))
        return f"{raced(CONTENDERS, ROUNDS)} for {TOGETHER} versions together: one writer got all, the others none"

    def _partial_batch_is_refused(self, taken: str, free: str) -> None:
        rows = [self._staged(free, 1), self._staged(taken, 1)]
        if isinstance(self._other.reserve_all([Claim(row, first=True) for row in rows]), Reserved):
            raise Broken("versions were reserved together although one version was taken")
        if self._other.get(free, 1) is not None:
            raise Broken("versions were refused together, but one of them was reserved")

    def _race_to_reserve_all(
        self, batches: Sequence[Sequence[VersionRow]]
    ) -> list[BatchReservation | StoreUnavailable]:
        claims = [[Claim(row, first=True) for row in batch] for batch in batches]
        return race(self._connections, lambda rows, me: rows.reserve_all(claims[me]))

    def _no_gap(self) -> str:
        history = self._history("gap")
        first, second, third = (self._staged(history, version) for version in (1, 2, 3))
        self._reserve(first, first=True)
        held = self._rows.get(history, 1)
        refused = [(third, False), (second, True)]
        if held is not None and not held.is_final:
            refused.append((second, False))
        for row, begins in refused:
            if isinstance(self._other.reserve(row, first=begins), Reserved):
                raise Broken(f"version {row.version} was given away though its predecessor is not the final latest")
        self._finalize(first)
        self._reserve(second, first=False)
        return "no version was given away before its predecessor was the latest, and final"

    def _finalize_existing_only(self) -> str:
        history = self._history("finalize")
        absent = self._staged(history, 7)
        if self._rows.finalize(attrs.evolve(absent, path=final_path(absent.path))) or self._other.get(history, 7):
            raise Broken("a version without a row was finalized")
        row = self._staged(history, 1)
        self._reserve(row, first=True)
        for _ in range(2):
            final = self._finalize(row)
        found = self._other.get(history, 1)
        if found is None or found.path != final.path or found.size != final.size:
            raise Broken(f"a finalized row reads {found}")
        return "an existing row moved to its final path, also repeatedly, and no missing row was created"

    def _read_your_writes(self) -> str:
        history = self._history("read")
        if self._other.get(history, 1) is not None or self._other.latest(history) is not None:
            raise Broken("a new history has rows")
        row = self._staged(history, 1)
        self._reserve(row, first=True)
        latest = self._other.latest(history)
        if not self._holds(row) or latest is None or latest.version != 1:
            raise Broken("a second connection did not see a row that was acknowledged")
        return "a second connection, which had just seen nothing, saw the row that was acknowledged"

    def _latest(self) -> str:
        history = self._history("latest")
        for version in range(1, 13):
            row = self._staged(history, version)
            self._reserve(row, first=version == 1)
            final = self._finalize(row)
            latest = self._other.latest(history)
            if latest is None or (latest.version, latest.path) != (version, final.path):
                raise Broken(
                    f"after version {version} was finalized a second connection found {latest} to be the latest"
                )
        return "a second connection found each of 12 versions to be the latest and final, once the version was final"

    def _list_order(self) -> str:
        history = self._recorded("list", 12)
        for after, limit, descending, expected in (
            (None, None, False, list(range(1, 13))),
            (None, None, True, list(range(12, 0, -1))),
            (9, 2, False, [10, 11]),
            (10, 3, True, [9, 8, 7]),
            (12, None, False, []),
        ):
            rows = self._other.list(history, after=after, limit=limit, descending=descending)
            if [row.version for row in rows] != expected:
                raise Broken(f"versions {expected} were listed as {[row.version for row in rows]}")
        return "12 versions were listed in order, both ways, and in pages"

    def _delete(self) -> str:
        history = self._recorded("delete", 3)
        count = self._rows.delete(history, [1, 2])
        for version in (1, 2):
            self._objects.delete(self._final_key(history, version))
        left = [row.version for row in self._other.list(history, after=None, limit=None, descending=False)]
        if count != 2 or left != [3] or self._other.get(history, 1) is not None:
            raise Broken(f"of versions 1 to 3, {count} were deleted where two should be, and {left} are left")
        again = self._staged(history, 1)
        if isinstance(self._rows.reserve(again, first=True), Reserved):
            raise Broken("a version that was deleted was given away again below a later version")
        return "deleted rows are gone for a second connection, and their versions are not given away again"

    def _survives_reconnect(self) -> str:
        history = self._history("reconnect")
        rows = self._reopen()
        row = self._staged(history, 1)
        try:
            rows.reserve(row, first=True)
        finally:
            rows.close()
        rows = self._reopen()
        try:
            found = rows.get(history, 1)
        finally:
            rows.close()
        if found is None:
            raise Broken("a row was gone after its connection was closed")
        return "a row outlived the connection that wrote it"

    def _remembers(self) -> str:
        if not self._rows.guarantees.remembers:
            raise NotClaimed(
                "it may forget a row in a failover or power loss: the create-only write has to decide then"
            )
        return "declared by the adapter; a failover or power loss cannot be measured from a client"

    # -- rows and their manifests

    def _history(self, name: str) -> str:
        base_uri = f"{self._objects.root_uri}{self._directory}/{name}.lance"
        self.histories.append(base_uri)
        return base_uri

    def _final_key(self, history: str, version: int) -> str:
        key = history.removeprefix(self._objects.root_uri)
        return f"{key}/_versions/{NamingScheme.V2.final_name(version)}"

    def _staged(self, history: str, version: int) -> VersionRow:
        """Return a row for a new staged manifest, which exists because some commit stores read it."""
        unique = str(uuid4())
        path = f"{self._final_key(history, version)}-{unique}"
        self.used |= {path, final_path(path)}
        self._objects.put(path, unique.encode())
        return VersionRow(history, version, path, len(unique), "certify")

    def _reserve(self, row: VersionRow, *, first: bool) -> None:
        answer = self._rows.reserve(row, first=first)
        if not isinstance(answer, Reserved):
            raise Broken(f"the only writer of version {row.version} got the reply {answer_of(answer)}")

    def _finalize(self, row: VersionRow) -> VersionRow:
        final = attrs.evolve(row, path=final_path(row.path))
        self._objects.put(final.path, self._objects.get(row.path))
        if not self._rows.finalize(final):
            raise Broken(f"version {row.version} could not be finalized: its row was not found")
        return final

    def _recorded(self, name: str, versions: int) -> str:
        history = self._history(name)
        rows = [attrs.evolve(row, path=final_path(row.path)) for row in self._each_staged(history, versions)]
        self._rows.record(rows)
        return history

    def _each_staged(self, history: str, versions: int) -> Iterator[VersionRow]:
        for version in range(1, versions + 1):
            row = self._staged(history, version)
            self._objects.put(final_path(row.path), self._objects.get(row.path))
            yield row

    def _holds(self, row: VersionRow) -> bool:
        """Return whether the version's row is this one, staged, or final with its bytes."""
        held = self._other.get(row.base_uri, row.version)
        if held is None or held.path == row.path:
            return held is not None
        return held.path == final_path(row.path) and self._objects.get(held.path) == self._objects.get(row.path)
