"""The announcement of a commit to the processes that have sent its writes."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Barrier
from typing import Any, cast

import attrs
import pytest

from lancekeep.application.rows import waiting_upserts
from lancekeep.application.rows.waiting_appends import Append, Dropped, announce
from lancekeep.application.rows.waiting_upserts import Upsert
from lancekeep.domain.commit_token import CommitToken
from lancekeep.ports.committers import Reply
from lancekeep.ports.rows import MergeCounts

TOKEN = cast(CommitToken, object())


@attrs.define(eq=False)
class Process:
    """A process that acknowledges nothing before all others are asked."""

    barrier: Barrier
    acknowledges: bool = True
    numbers: list[int] = attrs.field(factory=list)
    counts: list[MergeCounts] = attrs.field(factory=list)

    def announce(self, numbers: Sequence[int], token: CommitToken, counts: Sequence[MergeCounts] = ()) -> bool:
        assert token is TOKEN
        self.numbers += numbers
        self.counts += counts
        self.barrier.wait(20)
        return self.acknowledges

    def answer(self, numbers: Sequence[int], reply: Reply) -> None: ...


def processes(*acknowledge: bool) -> list[Process]:
    barrier = Barrier(len(acknowledge))
    return [Process(barrier, each) for each in acknowledge]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_processes_are_asked_at_the_same_time(count: int) -> None:
    asked = processes(*[True] * count)
    appends = [Append(cast(Any, None), asker=asked[at % count], number=at) for at in range(2 * count)]
    announce([*appends, Append(cast(Any, None))], lambda: TOKEN)
    assert [each.numbers for each in asked] == [[at, at + count] for at in range(count)]
    assert not any(append.is_dropped for append in appends)


def test_appends_of_a_process_that_gave_up_are_dropped() -> None:
    asked = processes(True, False, True)
    appends = [Append(cast(Any, None), asker=asked[at % 3], number=at) for at in range(6)]
    with pytest.raises(Dropped):
        announce(appends, lambda: TOKEN)
    assert [append.is_dropped for append in appends] == [False, True, False] * 2


def test_upserts_of_a_process_that_gave_up_are_dropped() -> None:
    asked = processes(True, False)
    nothing = cast(Any, None)
    upserts = [Upsert(nothing, nothing, frozenset(), 0.0, 0.0, asker=asked[at % 2], number=at) for at in range(4)]
    counts = [MergeCounts(at, 0, 0) for at in range(4)]
    waiting_upserts.announce(upserts, counts, TOKEN)
    assert [each.numbers for each in asked] == [[0, 2], [1, 3]]
    assert [each.counts for each in asked] == [[counts[0], counts[2]], [counts[1], counts[3]]]
    assert [upsert.is_dropped for upsert in upserts] == [False, True] * 2
