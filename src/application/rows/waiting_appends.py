"""Appends that wait for a committer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from lancekeep.application.rows.waiting_writes import WaitingWrite, all_announced
from lancekeep.domain.appends import Waiting
from lancekeep.domain.commit import Committed
from lancekeep.domain.commit_token import CommitToken
from lancekeep.domain.errors import LancekeepError, StoreUnavailable
from lancekeep.ports.committers import Declined, Reply, SentUpsert
from lancekeep.ports.rows import MergeCounts


class Dropped(LancekeepError):
    """A group must not be committed, because some of its appends are dropped."""


@attrs.frozen
class Alone:
    """The append has to commit alone, through the table engine.

    Attributes:
        data: all its rows, as a ``pyarrow.RecordBatchReader``, a ``pyarrow.Table``, or `Rows`.
    """

    data: Any


@attrs.define(eq=False)
class Append(WaitingWrite):
    """An append that waits for its answer: committed, failed, or to commit alone.

    Attributes:
        is_written: whether its rows are in the file of its group.
    """

    committed: Committed | None = attrs.field(default=None, init=False)
    is_written: bool = attrs.field(default=False, init=False)

    @property
    def waiting(self) -> Waiting:
        return Waiting(self.rows.schema, self.rows.size)

    @property
    def reply(self) -> Reply:
        return Declined.NOT_TAKEN if self.is_moved else self.error or self.committed or Declined.ALONE

    # -- sent to another process --------------------------------------------------------------------------------

    def sent_upsert(self, now: float) -> SentUpsert | None:
        return None

    def wait_for_reply(self, clock: Callable[[], float], give_up: Callable[[], None]) -> None:
        self.wait()

    def count(self, counts: MergeCounts) -> None:
        """Do nothing: an append inserts its rows."""

    def settle(self, committed: Committed) -> None:
        self.committed, self.error = attrs.evolve(committed, rows=self.rows.count), None


def announce(appends: Sequence[Append], token: Callable[[], CommitToken]) -> None:
    """Announce a commit to the processes that have sent some of its appends.

    Raises:
        Dropped: A process has given up. Its appends are dropped, and the commit must not be attempted.
    """
    if not all_announced(appends, lambda asker, theirs: asker.announce([each.number for each in theirs], token())):
        raise Dropped("a process that has sent appends of the group has given up")


def unknown_append() -> StoreUnavailable:
    """Return the error of a keyed append whose effect cannot be determined any more."""
    return StoreUnavailable(
        "whether an attempt of the request was committed cannot be determined: the version that shows it was removed, "
        "by a clean-up or with its table. Check the rows of the table, and send what is missing with a new key"
    )
