"""Deliberate faults in the protocol, one each: the checker has to find every one of them.

A fault is put where the product would have it: in the transition table, in the effects, in the runner, or in a store.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest
from model import world
from model.checker import NEITHER, Setting
from model.world import World

from lancekeep.adapters.commit_stores import claims
from lancekeep.application.commits import protocol_runner
from lancekeep.application.commits.adoption import Adoption
from lancekeep.application.commits.protocol_runner import ProtocolRunner
from lancekeep.application.commits.table_commits import TableCommits
from lancekeep.domain import commit
from lancekeep.domain.commit import DONE, Event, Progress, understand
from lancekeep.domain.commit_token import StagedManifest
from lancekeep.domain.commit_transitions import EFFECTS, TRANSITIONS, Effect, Reply, State
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.version_row import Reservation, VersionRow

TWO = Setting((1, 1))
FORGETFUL = Setting((1, 1), losses=1)
UNRELIABLE = Setting((1, 1), faults=2)
HASTY = Setting((1,), hasty=1)


@attrs.frozen
class Mutation:
    """A fault, the smallest setting that shows it, and a part of the checker's message."""

    name: str
    apply: Callable[[pytest.MonkeyPatch], None]
    setting: Setting
    found: str


def transitions(changed: dict[tuple[State, Reply], State]) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(commit, "TRANSITIONS", {**TRANSITIONS, **changed})


def effects(changed: dict[State, Effect]) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(commit, "EFFECTS", {**EFFECTS, **changed})


def runner(method: str, double: Callable[..., object]) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(TableCommits, method, double)


_COMPARE = TableCommits._compare


def _compares_sizes(self: TableCommits, progress: Progress, _: bytes | None) -> Event:
    final = self.objects.head(progress.final_row.path)
    if final is None:
        return Event(Reply.ABSENT)
    return Event(Reply.SAME if final.size == progress.row.size else Reply.DIFFERENT, size=final.size)


def _overwrites(before: World, source: str, target: str) -> tuple[World, object]:
    content = before.object(source)
    return (before, world.Mishap.MISSING) if content is None else (before.with_object(target, content), True)


def _skips_the_predecessor(row: VersionRow, latest: VersionRow | None, *, first: bool) -> bool:
    return latest is None or latest.version == row.version - 1


def _removes_the_staged_manifest_first(self: TableCommits, progress: Progress, _: bytes | None) -> Event:
    self.objects.delete(progress.row.path)
    self.rows.finalize(progress.final_row)
    return DONE


def _does_not_put_the_row_back(self: ProtocolRunner, progress: Progress, _: bytes | None) -> Event:
    self.rows.finalize(progress.final_row)
    return DONE


def _never_begins_a_history(self: ProtocolRunner, progress: Progress, _: bytes | None) -> Event:
    assert progress.staged is not None
    return understand(progress.staged, self.rows.reserve(progress.row, first=False), repeated=progress.repeated)


def _deletes_the_manifest_before_the_row(self: TableCommits, root: DatasetRoot, versions: range) -> int:
    for row in self.rows.list(root.base_uri, after=None, limit=None, descending=False):
        if row.version in versions:
            self.objects.delete(row.path)
            self.rows.delete(root.base_uri, [row.version])
    return 0


def _keeps_the_own_size(self: TableCommits, progress: Progress, content: bytes | None) -> Event:
    return attrs.evolve(_COMPARE(self, progress, content), size=None)


def nothing(_: pytest.MonkeyPatch) -> None:
    """The fault is in what is put together: `connect` refuses it."""


def copies_first(patch: pytest.MonkeyPatch) -> None:
    effects({State.RESERVE: Effect.COPY, State.COPY: Effect.RESERVE})(patch)
    of_a_claim = {
        (State.COPY, reply): after
        for (state, reply), after in TRANSITIONS.items()
        if state is State.RESERVE and after is not State.COPY
    }
    of_a_copy = {
        (State.RESERVE, Reply.DONE): State.COPY,
        (State.RESERVE, Reply.EXISTS): State.ABANDON,
        (State.RESERVE, Reply.ABSENT): State.UNKNOWN,
    }
    transitions({**of_a_claim, **of_a_copy, (State.COPY, Reply.RESERVED): State.PUBLISH})(patch)


def asks_as_if_for_the_first_time(patch: pytest.MonkeyPatch) -> None:
    def forgetting(staged: StagedManifest, reservation: Reservation, *, repeated: bool) -> Event:
        return understand(staged, reservation, repeated=False)

    patch.setattr(protocol_runner, "understand", forgetting)


MUTATIONS = [
    Mutation(
        "the row is published before the manifest is copied",
        transitions(
            {
                (State.RESERVE, Reply.RESERVED): State.PUBLISH,
                (State.PUBLISH, Reply.DONE): State.COPY,
                (State.COPY, Reply.DONE): State.CLEAN,
                (State.COMPARE, Reply.SAME): State.CLEAN,
            }
        ),
        TWO,
        "is final, and its object is missing",
    ),
    Mutation(
        "the manifest is copied before the version is reserved",
        copies_first,
        TWO,
        "a lone writer cannot bring the table forward",
    ),
    Mutation(
        "the staged manifest is removed before the copy",
        transitions(
            {
                (State.RESERVE, Reply.RESERVED): State.CLEAN,
                (State.CLEAN, Reply.DONE): State.COPY,
                (State.PUBLISH, Reply.DONE): State.COMMITTED,
            }
        ),
        TWO,
        "points at a manifest that is gone",
    ),
    Mutation(
        "the copy is left out",
        transitions({(State.RESERVE, Reply.RESERVED): State.PUBLISH}),
        TWO,
        "is final, and its object is missing",
    ),
    Mutation(
        "a helper publishes without a copy",
        lambda patch: patch.setattr(protocol_runner, "begin_help", lambda row: Progress(State.HELP_PUBLISH, row)),
        TWO,
        "is final, and its object is missing",
    ),
    Mutation(
        "the copy overwrites",
        lambda patch: patch.setitem(world.CALLS, "objects.copy_if_absent", _overwrites),
        FORGETFUL,
        "version 2 held",
    ),
    Mutation(
        "an object store without any create-only write goes with a commit store that forgets",
        nothing,
        attrs.evolve(FORGETFUL, store=NEITHER),
        "version 2 held",
    ),
    Mutation("sizes are compared instead of contents", runner("_compare", _compares_sizes), FORGETFUL, "was reported"),
    Mutation(
        "another's bytes under the final name are published as the own",
        transitions({(State.COMPARE, Reply.DIFFERENT): State.PUBLISH}),
        FORGETFUL,
        "committed was reported",
    ),
    Mutation(
        "what exists under the final name is taken for the own",
        transitions({(State.COPY, Reply.EXISTS): State.PUBLISH}),
        FORGETFUL,
        "committed was reported",
    ),
    Mutation(
        "a fault of the reservation is called a conflict",
        transitions({(State.RESERVE, Reply.FAULT): State.CONFLICT}),
        UNRELIABLE,
        "2a<a was reported lost",
    ),
    Mutation(
        "a fault of the copy is called a conflict",
        transitions({(State.COPY, Reply.FAULT): State.CONFLICT}),
        UNRELIABLE,
        "2a<a was reported lost",
    ),
    Mutation(
        "the staged manifest is removed after a fault",
        transitions({(State.RESERVE, Reply.FAULT): State.ABANDON, (State.ABANDON, Reply.DONE): State.UNKNOWN}),
        UNRELIABLE,
        "unknown was reported after",
    ),
    Mutation(
        "the own commit is not recognized after a reader finished it",
        transitions({(State.RESERVE, Reply.PERHAPS_OWN): State.ABANDON}),
        Setting((1, 1), faults=1),
        "2a<a was reported lost",
    ),
    Mutation(
        "a final row of the own size is taken for the own",
        transitions({(State.RESERVE, Reply.OVERTAKEN): State.CLEAN}),
        TWO,
        "committed was reported",
    ),
    Mutation(
        "a lost row is not put back",
        runner("_finalize_row", _does_not_put_the_row_back),
        FORGETFUL,
        "was found lost and not put back",
    ),
    Mutation(
        "the claim of the first version does not begin the history",
        runner("_reserve", _never_begins_a_history),
        Setting((1,), versions=0),
        "a lone writer cannot bring the table forward",
    ),
    Mutation(
        "a version is reserved before the one before it is final",
        lambda patch: patch.setattr(claims, "may_claim", _skips_the_predecessor),
        HASTY,
        "sees version 1, and 3 is reserved",
    ),
    Mutation(
        "the staged manifest is removed before the row is published",
        runner("_finalize_row", _removes_the_staged_manifest_first),
        TWO,
        "points at a manifest that is gone",
    ),
    Mutation(
        "the size of another's final object is not entered in the row",
        runner("_compare", _keeps_the_own_size),
        attrs.evolve(FORGETFUL, padded=True),
        "is final, and its object is",
    ),
    Mutation(
        "a helper does not look what lies under the final name",
        transitions({(State.HELP_COPY, Reply.EXISTS): State.HELP_PUBLISH}),
        attrs.evolve(FORGETFUL, padded=True),
        "is final, and its object is",
    ),
    Mutation(
        "the predecessor is not finalized",
        transitions({(State.RESERVE, Reply.PREDECESSOR_STAGED): State.COPY}),
        HASTY,
        "a gap",
    ),
    Mutation(
        "a version without a row, and with later ones, is called another's",
        asks_as_if_for_the_first_time,
        Setting((1, 1), cleaners=1, faults=1),
        "2a<a was reported lost",
    ),
    Mutation(
        "the holder of the row is taken for the winner of the version",
        asks_as_if_for_the_first_time,
        Setting((1, 1), losses=1, faults=2),
        "2a<a was reported lost",
    ),
    Mutation(
        "a commit that was cleaned up is called lost when it is resolved",
        transitions({(State.SETTLE, Reply.ABSENT): State.CONFLICT}),
        Setting((1, 1), cleaners=1),
        "lost",
    ),
    Mutation(
        "clean-up removes the manifest before the row",
        runner("delete", _deletes_the_manifest_before_the_row),
        Setting((1, 1), cleaners=1),
        "was removed, and not by a cleaner",
    ),
    Mutation(
        "a reader does not look beyond the last row",
        lambda patch: patch.setattr(Adoption, "following", lambda self, row: None),
        Setting((1,), readers=1, losses=1, looks=True),
        "a reader was shown version 1, and 2 was final before",
    ),
]
