"""Every interleaving of transactions over two tables, single commits and readers, with crashes and lost replies.

Each table is a `World` of the model; the one step that spans both is ``reserve_all``. Participants drive the product's
own `Transaction` through its runner `TransactionCommits`, over `TableCommits`. Between two steps a participant is its
`Transaction` and nothing else; within a step it runs again on the replies that it has received.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import attrs
from model.checker import COPIES
from model.participants import ONE_MORE_TRY, Pending, Tape
from model.world import CALLS, ROOT, Mishap, Request, World, begun, remembered, shown, violation
from unchecked import unchecked

from lancekeep.adapters.commit_stores import claims
from lancekeep.application.commits.table_commits import TableCommits
from lancekeep.application.commits.transaction_commits import Candidate, TransactionCommits
from lancekeep.domain.commit import Committed, Conflict, Unknown
from lancekeep.domain.commit_token import CommitToken
from lancekeep.domain.errors import CommitRefused, Damaged, StoreUnavailable
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.naming import NamingScheme
from lancekeep.domain.transaction import AllCommitted, Step, Transaction
from lancekeep.domain.version_row import BatchReservation, Claim, Reservation, Reserved, VersionRow
from lancekeep.ports.commit_store import CommitStoreGuarantees
from lancekeep.ports.object_store import ObjectInfo

ROOTS = (ROOT, DatasetRoot("u", "memory:///u"))
BOTH = (0, 1)


@attrs.frozen(cache_hash=True)
class Pair:
    """Two tables, and how many calls may still have no reply."""

    worlds: tuple[World, World]
    faults: int = 0

    def evolved(self, at: int, world: World) -> Pair:
        return attrs.evolve(self, worlds=(world, self.worlds[1]) if at == 0 else (self.worlds[0], world))

    def shows(self, name: str) -> list[bool]:
        """In which tables the rows, final or staged, are those of a participant."""
        return [self.row_of(at, name) for at in BOTH]

    def row_of(self, at: int, name: str) -> bool:
        held = self.worlds[at].row(2)
        final = self.worlds[at].finals.get(2)
        return (held is not None and held.path.endswith(f"-{name}")) or (final or b"").startswith(f"2{name}".encode())


def _of_key(key: str) -> int:
    return 0 if key.startswith(ROOT.key + "/") else 1


def perform(pair: Pair, request: Request) -> tuple[Pair, Any]:
    """The tables after one call of a port, and what the caller is answered."""
    if request.method == "rows.reserve_all":
        return reserve_all(pair, *request.args)
    if request.method == "rows.latest_all":
        return pair, tuple(world.latest_row for world in pair.worlds)
    if request.method.startswith("rows."):
        at, *args = request.args
    else:
        at, args = _of_key(request.args[0]), list(request.args)
    world, reply = CALLS[request.method](pair.worlds[at], *args)
    return pair.evolved(at, world), reply


def reserve_all(pair: Pair, wanted: tuple[Claim, ...]) -> tuple[Pair, Any]:
    places = [place(claim.row.base_uri) for claim in wanted]
    told = claims.answer_all(
        wanted,
        (
            claims.answer_claim(claim, pair.worlds[at].row(claim.row.version), pair.worlds[at].latest_row)
            for claim, at in zip(wanted, places, strict=True)
        ),
    )
    if told is not None:
        return pair, told
    for claim, at in zip(wanted, places, strict=True):
        pair = pair.evolved(at, pair.worlds[at].with_row(claim.row))
    return pair, Reserved()


def place(base_uri: str) -> int:
    return [root.base_uri for root in ROOTS].index(base_uri)


# -- participants ---------------------------------------------------------------------------------------------------


class Runner(TransactionCommits):
    """The production runner; the `Transaction` stands for the replies of all steps before it."""

    def _perform(
        self, step: Step, transaction: Transaction, contents: Sequence[bytes | None], deadline: float
    ) -> Transaction:
        tape: Tape = self._commits.objects.tape  # type: ignore[attr-defined] # `_Objects`
        if tape.at < len(tape.log) and isinstance(tape.log[tape.at], Transaction):
            tape.at += 1
            reached: Transaction = tape.log[tape.at - 1]
            return reached
        since = tape.at - (tape.at > 0 and isinstance(tape.log[tape.at - 1], Transaction))
        following = super()._perform(step, transaction, contents, deadline)
        tape.log[since : tape.at] = [following]
        tape.at = since + 1
        return following


@attrs.frozen
class Transact:
    """A transaction over both tables, already staged; ``order`` is the order of the request."""

    name: str
    order: tuple[int, ...] = BOTH

    def run(self, commits: TableCommits, tell: Callable[[str], None]) -> Token | None:
        wanted = [Candidate(ROOTS[at], 2, staged_path(at, self.name), None) for at in self.order]
        try:
            outcome = Runner(commits).commit(wanted, unchecked)
        except (CommitRefused, StoreUnavailable):
            tell("lost")
            return None
        return _told(self.name, outcome, tell)


@attrs.frozen
class Token:
    """The writer of a transaction with an unknown outcome, which resolves it."""

    name: str
    token: CommitToken

    def run(self, commits: TableCommits, tell: Callable[[str], None]) -> Token | None:
        return _told(self.name, Runner(commits).resolve(self.token), tell)


@attrs.frozen
class Single:
    """A commit to one of the tables, staged already."""

    name: str
    at: int = 1

    def run(self, commits: TableCommits, tell: Callable[[str], None]) -> Token | None:
        try:
            outcome = commits.commit(
                ROOTS[self.at], 2, staged_path(self.at, self.name), None, branch=False, check=unchecked
            )
        except (CommitRefused, StoreUnavailable):
            return None
        if isinstance(outcome, Committed):
            tell("committed one")
        return None


@attrs.frozen
class Read:
    """A reader of one table after the other, which finalizes the versions that it finds."""

    name: str = "reader"
    order: tuple[int, ...] = BOTH

    def run(self, commits: TableCommits, tell: Callable[[str], None]) -> Token | None:
        try:
            for at in self.order:
                commits.latest(ROOTS[at])
        except StoreUnavailable:
            pass
        except Damaged as error:
            tell(f"cannot be read: {error}")
        return None


Programme = Transact | Token | Single | Read


def _told(name: str, outcome: AllCommitted | Conflict | Unknown, tell: Callable[[str], None]) -> Token | None:
    match outcome:
        case AllCommitted():
            tell("committed")
        case Conflict():
            tell("lost")
        case Unknown(token):
            return Token(name, token)
    return None


def staged_path(at: int, name: str) -> str:
    return f"{ROOTS[at].manifest_key(2, NamingScheme.V2)}-{name}"


class _Ports:
    """Both ports in one: every call is asked of the tape."""

    root_uri = "memory:///"
    url = "memory://model"

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self._ask = tape.ask

    def __getattr__(self, name: str) -> Any:
        return lambda *args: self._ask(f"objects.{name}", *args)


class _Objects(_Ports):
    guarantees = COPIES

    def prove(self) -> None:
        """Do nothing: the guarantees hold."""

    def head(self, key: str) -> ObjectInfo | None:
        size = self._ask("objects.head", key)
        return None if size is None else ObjectInfo(key, size)

    def list(self, prefix: str, *, after: str = "") -> Iterator[ObjectInfo]:
        return iter([ObjectInfo(key, size) for key, size in self._ask("objects.list", prefix)])


class _Rows(_Ports):
    guarantees = CommitStoreGuarantees(remembers=True, shared=True, atomic_rows=2, complete=True)

    def get(self, base_uri: str, version: int) -> VersionRow | None:
        if base_uri.endswith("/_direct_commits"):  # no table of this model holds direct commits
            return None
        row: VersionRow | None = self._ask("rows.get", place(base_uri), version)
        return row

    def latest(self, base_uri: str) -> VersionRow | None:
        row: VersionRow | None = self._ask("rows.latest", place(base_uri))
        return row

    def reserve(self, row: VersionRow, *, first: bool) -> Reservation:
        told: Reservation = self._ask("rows.reserve", place(row.base_uri), row, first)
        return told

    def reserve_all(self, wanted: Sequence[Claim]) -> BatchReservation:
        told: BatchReservation = self._ask("rows.reserve_all", tuple(wanted))
        return told

    def finalize(self, row: VersionRow) -> bool:
        present: bool = self._ask("rows.finalize", place(row.base_uri), row)
        return present

    def record(self, rows: Sequence[VersionRow]) -> None:
        for row in rows:
            self._ask("rows.record", place(row.base_uri), row)


# -- exploration ----------------------------------------------------------------------------------------------------


@attrs.frozen(cache_hash=True)
class _Node:
    """A participant between two calls: its programme, the replies so far, its reports and its next call."""

    name: str
    programme: Programme | None
    log: tuple[Any, ...]
    told: tuple[str, ...]
    request: Request | None = attrs.field(eq=False)


def explore(participants: Sequence[Programme], faults: int = 0) -> tuple[int, str | None]:
    """How many states there are, and what was wrong in the first that is; with the calls that led there."""
    pair = Pair((_table(0, participants), _table(1, participants)), faults)
    start = pair, tuple(_next(each.name, each, (), ()) for each in participants)
    seen: dict[Any, tuple[Any, str]] = {start: (None, "the beginning")}
    level = [start]
    proceed = cache(_next)
    while level:
        following = []
        for state in level:
            for after, label, wrong in _steps(*state, proceed):
                if wrong is None and after in seen:
                    continue
                seen.setdefault(after, (state, label))
                wrong = wrong or _wrong(*after)
                if wrong is not None:
                    return len(seen), f"{wrong}\n{_trace(seen, after)}"
                following.append(after)
        level = following
    return len(seen), None


def _table(at: int, participants: Sequence[Programme]) -> World:
    """One version that is final, and the manifests of all participants staged behind it."""
    world = begun(1)
    letters = [each.name for each in participants if isinstance(each, Transact) or getattr(each, "at", None) == at]
    objects = dict(world.objects) | {
        f"{ROOT.manifest_key(2, NamingScheme.V2)}-{name}": f"2{name}<aLANC".encode() for name in letters
    }
    moved = tuple(sorted((key.replace(ROOT.key, ROOTS[at].key, 1), content) for key, content in objects.items()))
    rows = tuple(
        attrs.evolve(row, base_uri=ROOTS[at].base_uri, path=row.path.replace(ROOT.key, ROOTS[at].key, 1))
        for row in world.rows
    )
    return attrs.evolve(world, objects=moved, rows=rows)


def _next(name: str, programme: Programme | None, log: tuple[Any, ...], told: tuple[str, ...]) -> _Node:
    """The participant, run on what it has heard, up to its next call."""
    while programme is not None:
        tape, tales = Tape(log), list(told)
        commits = TableCommits(_Objects(tape), _Rows(tape), "", ONE_MORE_TRY)  # type: ignore[arg-type] # doubles
        try:
            programme, log = programme.run(commits, tales.append), ()
        except Pending as pending:
            return _Node(name, programme, tuple(tape.log), told, pending.request)
        told = tuple(tales)
    return _Node(name, None, (), told, None)


def _steps(
    pair: Pair, nodes: tuple[_Node, ...], proceed: Callable[..., _Node]
) -> Iterator[tuple[tuple[Pair, tuple[_Node, ...]], str, str | None]]:
    for place, node in enumerate(nodes):
        if node.request is None:
            continue

        def heard(after: Pair, reply: Any, place: int = place, node: _Node = node) -> tuple[Pair, tuple[_Node, ...]]:
            following = proceed(node.name, node.programme, (*node.log, reply), node.told)
            return after, (*nodes[:place], following, *nodes[place + 1 :])

        crashed = _Node(node.name, None, (), node.told, None)
        yield (pair, (*nodes[:place], crashed, *nodes[place + 1 :])), f"{node.name} crashes", None
        after, reply = perform(pair, node.request)
        after, wrong = _remembered(pair, after)
        yield heard(after, reply), f"{node.name}: {node.request} → {shown(reply)}", wrong
        if pair.faults:
            left = pair.faults - 1
            lost = attrs.evolve(pair, faults=left)
            yield heard(lost, Mishap.FAULT), f"{node.name}: {node.request} → no reply, no effect", None
            if after != pair:
                done = attrs.evolve(after, faults=left)
                yield heard(done, Mishap.FAULT), f"{node.name}: {node.request} → done, the reply was lost", wrong


def _remembered(before: Pair, after: Pair) -> tuple[Pair, str | None]:
    for at in BOTH:
        world, wrong = remembered(before.worlds[at], after.worlds[at])
        after = after.evolved(at, world)
        if wrong is not None:
            return after, f"table {at}: {wrong}"
    return after, None


def _wrong(pair: Pair, nodes: tuple[_Node, ...]) -> str | None:
    for at in BOTH:
        if (wrong := violation(pair.worlds[at])) is not None:
            return f"table {at}: {wrong}"
    for node in nodes:
        shows = pair.shows(node.name)
        for told in node.told:
            if told == "committed" and shows != [True, True]:
                return f"{node.name} reported a commit, and the tables show {shows}"
            if told == "lost" and any(shows):
                return f"{node.name} reported a conflict, and the tables show {shows}"
            if told.startswith("cannot be read"):
                return f"{node.name}: {told}"
    return _left_alone(pair, tuple(node.name for node in nodes))


_ALONE: dict[tuple[tuple[World, World], tuple[str, ...]], str | None] = {}


def _left_alone(pair: Pair, names: tuple[str, ...]) -> str | None:
    """Check that after a crash of all, a reader of both tables finds each transaction whole or not at all."""
    key = pair.worlds, names
    if key not in _ALONE:
        node = _next("lone reader", Read("lone reader"), (), ())
        after = attrs.evolve(pair, faults=0)
        while node.request is not None:
            after, reply = perform(after, node.request)
            node = _next(node.name, node.programme, (*node.log, reply), node.told)
        shown_finals = [[_holds(after, at, name) for at in BOTH] for name in names if name.isupper()]
        torn = any(any(shows) and not all(shows) for shows in shown_finals)
        _ALONE[key] = f"a lone reader finds {shown_finals}" if torn or node.told else None
    return _ALONE[key]


def _holds(pair: Pair, at: int, name: str) -> bool:
    return (pair.worlds[at].finals.get(2) or b"").startswith(f"2{name}".encode())


def _trace(seen: dict[Any, tuple[Any, str]], last: Any) -> str:
    labels = []
    while last is not None:
        last, label = seen[last]
        labels.append(label)
    return "\n".join(reversed(labels))
