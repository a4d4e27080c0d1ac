"""Appends that wait for a committer."""

from __future__ import annotations

from queue import SimpleQueue

import attrs

from lancekeep.domain.appends import Waiting
from lancekeep.domain.commit import Committed
from lancekeep.domain.recorded_keys import SharedKey
from lancekeep.ports.data_files import Rows


@attrs.define(eq=False)
class Append:
    """An append that waits for its answer: committed, failed, or to commit alone.

    Attributes:
        key: the idempotency key, which is recorded with its group.
        is_written: whether its rows are in the file of its group.
        following: the append that is answered after this one. Hundreds of threads that continue at once would compete
            for the interpreter's lock, also with the committer.
        is_left: whether its thread waits no longer: it is answered, or was interrupted.
    """

    rows: Rows
    key: SharedKey | None = None
    committed: Committed | None = None
    error: BaseException | None = None
    is_written: bool = False
    following: Append | None = None
    is_left: bool = False
    _answered: SimpleQueue[None] = attrs.field(factory=SimpleQueue)

    @property
    def waiting(self) -> Waiting:
        return Waiting(self.rows.schema, self.rows.size)

    def wait(self) -> None:
        """Wait for the answer."""
        try:
            self._answered.get()
        finally:
            self.is_left = True
            self._answer_following()

    def answer(self) -> None:
        """Let the thread of the append continue, then the thread of the following append."""
        self._answered.put(None)
        if self.is_left:
            self._answer_following()

    def _answer_following(self) -> None:
        if self.following is not None:
            self.following.answer()
