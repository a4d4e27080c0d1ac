"""Every interleaving of the participants of a setting, breadth first: the trace of a violation is the shortest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import attrs
from model.participants import (
    Append,
    Clean,
    CommitDirectly,
    Lift,
    Misled,
    Participant,
    Pending,
    Programme,
    Read,
    Settle,
    Tape,
)
from model.world import (
    Mishap,
    Request,
    Tale,
    World,
    begun,
    mishaps,
    perform,
    remembered,
    shown,
    told,
    violation,
)

from lancekeep.domain.direct_commits import Decision
from lancekeep.ports.object_store import ObjectStoreGuarantees

State = tuple[int, ...]
"""The number of the world, then the numbers of the participants' nodes; those of one kind are sorted."""

ENDED = 0
"""The node of a participant that finished or crashed; the others cannot tell the two apart."""

PATIENCE = 100
"""Steps after which a lone writer counts as running in circles."""

WATCHED = 1000
"""States between two calls of ``watch``."""

_SHOWN = 12

COPIES = ObjectStoreGuarantees(atomic_create=True, atomic_copy=True, durable=True)
CREATES = ObjectStoreGuarantees(atomic_create=True, atomic_copy=False, durable=True)
NEITHER = ObjectStoreGuarantees(atomic_create=False, atomic_copy=False, durable=True)


@attrs.frozen
class Setting:
    """Who takes part, and what may go wrong.

    writers: for each, how many commits it wants. hasty: further writers, with one commit, that do not finalize what
    they read. versions: how many there are at the beginning. faults: calls that may have no reply, with or without
    their effect. losses: rows that the commit store may forget. failovers: how often it may fall back to an earlier
    state. padded: manifests of one version differ in size. store: what the object store promises.
    """

    writers: tuple[int, ...]
    hasty: int = 0
    readers: int = 0
    cleaners: int = 0
    versions: int = 1
    faults: int = 0
    losses: int = 0
    failovers: int = 0
    padded: bool = False
    store: ObjectStoreGuarantees = COPIES
    looks: bool = False
    direct: int = 0
    misled: int = 0
    settlers: tuple[Decision, ...] = ()
    owners: int = 0

    @property
    def programmes(self) -> list[Programme]:
        writers = [*map(Append, self.writers), *[Append(1, hasty=True)] * self.hasty]
        others: list[Programme] = [*[Read()] * self.readers, *[Clean()] * self.cleaners]
        others += [*[CommitDirectly()] * self.direct, *[Misled()] * self.misled]
        return [*writers, *others, *map(Settle, self.settlers), *[Lift()] * self.owners]

    @property
    def names(self) -> list[str]:
        kinds = {
            "writer": len(self.writers) + self.hasty,
            "reader": self.readers,
            "cleaner": self.cleaners,
            "direct writer": self.direct,
            "misled writer": self.misled,
            "operator": len(self.settlers),
            "owner": self.owners,
        }
        return [f"{kind} {number}" for kind, count in kinds.items() for number in range(1, count + 1)]

    def __str__(self) -> str:
        counts = {
            "hasty": self.hasty,
            "readers": self.readers,
            "cleaners": self.cleaners,
            "faults": self.faults,
            "rows lost": self.losses,
            "failovers": self.failovers,
            "direct writers": self.direct,
            "misled writers": self.misled,
            "owners": self.owners,
        }
        copies = "" if self.store == COPIES else ", create-only put" if self.store == CREATES else ", neither"
        commits = "+".join(map(str, self.writers))
        return (
            f"{len(self.writers)} writers ({commits} commits)"
            + "".join(f", {count} {name}" for name, count in counts.items() if count)
            + f", from version {self.versions}{', sizes differ' if self.padded else ''}{copies}"
            + (", looking" if self.looks else "")
            + "".join(f", one may {decision}" for decision in self.settlers)
        )


@attrs.frozen
class Report:
    """What came of it: how many states were visited, and the first violation with the steps that lead there."""

    setting: Setting
    states: int
    worlds: int
    violation: str | None = None
    trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        head = f"{self.setting}: {self.states:,} states, {self.worlds:,} worlds"
        if self.violation is None:
            return f"{head}, every invariant holds"
        steps = "\n".join(f"  {number:2} {step}" for number, step in enumerate(self.trace, 1))
        return f"{head}: {self.violation}\n{steps}"


@attrs.frozen
class _Node:
    """A participant between two calls: its next one, or None at the end."""

    programme: Programme | None
    log: tuple[object, ...]
    request: Request | None


@attrs.frozen
class _Step:
    """What one participant, or the commit store by itself, may do next."""

    label: str
    world: int
    node: int
    violation: str | None


@attrs.frozen
class Aftermath:
    """Return the fault after all participants have crashed and a new writer has run, and its steps."""

    violation: str
    steps: list[str]


class Checker:
    """One exploration. Nodes, worlds and steps are numbered and computed once."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._worlds: list[World] = []
        self._world_numbers: dict[World, int] = {}
        self._wrong: dict[int, str] = {}
        self._nodes: list[_Node] = [_Node(None, (), None)]
        self._node_numbers: dict[tuple[Programme | None, tuple[object, ...]], int] = {(None, ()): ENDED}
        self._replies: dict[tuple[int, object], tuple[int, tuple[Tale, ...]]] = {}
        self._steps: dict[tuple[int, int], list[_Step]] = {}
        self._mishaps: dict[int, list[_Step]] = {}
        self._progress: dict[World, Aftermath | None] = {}
        self._aftermaths: dict[int, Aftermath] = {}
        # Writers that want different numbers of commits are one kind: after some commits one is as the other was.
        names = [type(programme) for programme in setting.programmes]
        self._kinds = [
            (names.index(name) + 1, names.index(name) + 1 + names.count(name)) for name in dict.fromkeys(names)
        ]
        self._kind_of = {at: kind for kind in self._kinds for at in range(*kind)}

    def run(
        self, at_most: int = 100_000_000, *, watch: Callable[[int, int], object] = lambda depth, states: None
    ) -> Report:
        """Visit every state, and stop at the first violation.

        Args:
            at_most: The number of states above which the exploration ends with AssertionError.
            watch: Gets the depth and the number of states from time to time. It may end the exploration by an error.
        """
        world = attrs.evolve(
            begun(self._setting.versions),
            faults=self._setting.faults,
            losses=self._setting.losses,
            failovers=self._setting.failovers,
            padded=self._setting.padded,
            holds=self._setting.direct > 0,
        )
        nodes = [self._begin(each)[0] for each in self._setting.programmes]
        start = self._canonical([self._number(world), *nodes])
        parents: dict[State, State | None] = {start: None}
        level, depth = [start], 0
        while level:
            following: list[State] = []
            depth += 1
            for number, state in enumerate(level):
                if number % WATCHED == 0:
                    watch(depth, len(parents))
                for at, step in self._successors(state):
                    if step.violation is not None:
                        return self._report(parents, state, at, step)
                    new = self._followed(state, at, step)
                    if new not in parents:
                        parents[new] = state
                        following.append(new)
            level = following
            assert len(parents) <= at_most, f"{self._setting}: more than {at_most:,} states"
        return Report(self._setting, len(parents), len(self._worlds))

    def _canonical(self, state: list[int]) -> State:
        for begin, end in self._kinds:
            state[begin:end] = sorted(state[begin:end])
        return tuple(state)

    def _followed(self, state: State, at: int, step: _Step) -> State:
        """Return the state after a step; of the kinds, only that of the participant needs sorting."""
        if not at:
            return (step.world, *state[1:])
        begin, end = self._kind_of[at]
        if end - begin == 1:
            return (step.world, *state[1:at], step.node, *state[end:])
        kind = [*state[begin:at], step.node, *state[at + 1 : end]]
        kind.sort()
        return (step.world, *state[1:begin], *kind, *state[end:])

    def _successors(self, state: State) -> Iterator[tuple[int, _Step]]:
        world = state[0]
        before = ENDED
        for at in range(1, len(state)):
            node = state[at]
            if node in (ENDED, before):  # what one of two equal participants can do, the other can
                continue
            before = node
            key = world, node
            steps = self._steps.get(key)
            if steps is None:
                steps = self._steps[key] = list(_distinct(self._steps_of(world, node), world, node))
            for step in steps:
                yield at, step
        spontaneous = self._mishaps.get(world)
        if spontaneous is None:
            spontaneous = self._mishaps[world] = [
                self._step(label, self._worlds[world], after, ENDED, ())
                for label, after in mishaps(self._worlds[world])
            ]
        for step in spontaneous:
            yield 0, step

    def _steps_of(self, world_number: int, node: int) -> Iterator[_Step]:
        world, request = self._worlds[world_number], self._nodes[node].request
        assert request is not None
        yield _Step("crashes", world_number, ENDED, None)
        after, reply = perform(world, request)
        yield self._heard(world, after, node, reply, f"{request} → {shown(reply)}")
        if world.faults and request.method not in ("stage", "newest"):
            blamed = attrs.evolve(world, faults=world.faults - 1)
            yield self._heard(world, blamed, node, Mishap.FAULT, f"{request} → no reply, no effect")
            if after != world:
                blamed = attrs.evolve(after, faults=world.faults - 1)
                yield self._heard(world, blamed, node, Mishap.FAULT, f"{request} → done, the reply was lost")

    def _heard(self, before: World, after: World, node: int, reply: object, label: str) -> _Step:
        following, tales = self._after(node, reply)
        return self._step(label + _said(tales), before, after, following, tales)

    def _step(self, label: str, before: World, after: World, node: int, tales: tuple[Tale, ...]) -> _Step:
        after, wrong = _judged(before, after, tales)
        number = self._number(after)
        return _Step(label, number, node, wrong or self._wrong.get(number))

    def _number(self, world: World) -> int:
        number = self._world_numbers.get(world)
        if number is None:
            number = self._world_numbers[world] = len(self._worlds)
            self._worlds.append(world)
            wrong = violation(world)
            if wrong is None and (aftermath := self._alone(world)) is not None:
                self._aftermaths[number], wrong = aftermath, aftermath.violation
            if wrong is not None:
                self._wrong[number] = wrong
        return number

    # -- participants ---------------------------------------------------------------------------------------------

    def _begin(self, programme: Programme | None, log: tuple[object, ...] = ()) -> tuple[int, tuple[Tale, ...]]:
        """Return the node of a participant that has run ``programme`` with the replies ``log``, and its reports."""
        tales: list[Tale] = []
        while programme is not None:
            tape = Tape(log)
            try:
                programme, log = (
                    programme.run(tape, self._participant(tape)),
                    (),
                )
            except Pending as pending:
                key = programme, tuple(tape.log)
                number = self._node_numbers.setdefault(key, len(self._nodes))
                if number == len(self._nodes):
                    self._nodes.append(_Node(*key, pending.request))
                return number, (*tales, *tape.tales)
            tales.extend(tape.tales)
        return ENDED, tuple(tales)

    def _participant(self, tape: Tape) -> Participant:
        setting = self._setting
        trusts, holds, lifts = not setting.looks, setting.direct > 0, setting.owners > 0
        return Participant(tape, setting.store, trusts_rows=trusts, holds=holds, lifts=lifts)

    def _after(self, node: int, reply: object) -> tuple[int, tuple[Tale, ...]]:
        key = node, reply
        known = self._replies.get(key)
        if known is None:
            asked = self._nodes[node]
            known = self._replies[key] = self._begin(asked.programme, (*asked.log, reply))
        return known

    # -- progress -------------------------------------------------------------------------------------------------

    def _alone(self, world: World) -> Aftermath | None:
        """Check that a single new writer can commit a version after all others have crashed."""
        alone = attrs.evolve(world, faults=0, losses=0, failovers=0, denied=frozenset())
        if alone not in self._progress:
            steps: list[str] = []
            wrong = self._lone_writer(alone, steps)
            self._progress[alone] = None if wrong is None else Aftermath(wrong, steps)
        return self._progress[alone]

    def _lone_writer(self, world: World, steps: list[str]) -> str | None:
        """What goes wrong when one writer runs alone; what it does is added to ``steps``."""
        if world.holds:  # an operator decides first
            world, wrong = self._settled(world, steps)
            if wrong is not None:
                return wrong
        reserved = max([*world.finals, *(row.version for row in world.rows)], default=0)
        node, _ = self._begin(Append(1))
        while (request := self._nodes[node].request) is not None and len(steps) < PATIENCE:
            after, reply = perform(world, request)
            node, tales = self._after(node, reply)
            steps.append(f"a lone writer: {request} → {shown(reply)}{_said(tales)}")
            world, wrong = _judged(world, after, tales)
            if wrong is not None or (wrong := violation(world)) is not None:
                return wrong
            if any(tale.what == "committed" for tale in tales):
                latest = world.latest_row
                forward = latest is not None and latest.is_final and latest.version == reserved + 1
                return None if forward else f"a lone writer committed, and the latest row is {shown(latest)}"
        steps[_SHOWN:] = [f"… and so on, for {PATIENCE} steps"]
        return "a lone writer cannot bring the table forward"

    def _settled(self, world: World, steps: list[str]) -> tuple[World, str | None]:
        """Return the world after an operator alone has discarded what the table holds, and what went wrong."""
        node, _ = self._begin(Settle(Decision.DISCARD))
        while (request := self._nodes[node].request) is not None and len(steps) < PATIENCE:
            after, reply = perform(world, request)
            node, tales = self._after(node, reply)
            steps.append(f"a lone operator: {request} → {shown(reply)}")
            world, wrong = _judged(world, after, tales)
            if wrong is not None or (wrong := violation(world)) is not None:
                return world, wrong
        return world, None

    # -- traces ---------------------------------------------------------------------------------------------------

    def _report(self, parents: dict[State, State | None], last: State, at: int, step: _Step) -> Report:
        path = [last]
        while (parent := parents[path[-1]]) is not None:
            path.append(parent)
        path.reverse()
        names = ["the commit store", *self._setting.names]
        trace = []
        for state, following in pairwise(path):
            moves = ((at, step) for at, step in self._successors(state))
            index, taken = next(move for move in moves if self._followed(state, *move) == following)
            nodes = [*state[:index], taken.node, *state[index + 1 :]]
            trace.append(f"{names[index]}: {taken.label}")
            for begin, end in self._kinds:  # who is who, after sorting
                order = sorted(range(begin, end), key=nodes.__getitem__)
                names[begin:end] = [names[place] for place in order]
        trace.append(f"{names[at]}: {step.label}")
        aftermath = self._aftermaths.get(step.world)
        if aftermath is not None and step.violation == aftermath.violation:
            trace += aftermath.steps
        return Report(self._setting, len(parents), len(self._worlds), step.violation, tuple(trace))


def _distinct(steps: Iterator[_Step], world: int, node: int) -> Iterator[_Step]:
    """Yield the steps that violate an invariant or lead elsewhere than the ones before and than to stay."""
    reached = {(world, node)}
    for step in steps:
        if step.violation is not None or (step.world, step.node) not in reached:
            reached.add((step.world, step.node))
            yield step


def _judged(before: World, after: World, tales: tuple[Tale, ...]) -> tuple[World, str | None]:
    """The world with what has to be remembered of a step, and what was wrong with the step."""
    after, wrong = remembered(before, after)
    for tale in tales:
        after, lie = told(after, tale)
        wrong = wrong or lie
    return after, wrong


def _said(tales: tuple[Tale, ...]) -> str:
    return "".join(f"; tells: {tale.what}" for tale in tales)
