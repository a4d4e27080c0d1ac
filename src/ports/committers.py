"""The port between processes of one host that append to the same tables.

One of these processes commits the appends of a table, and the others send theirs to it. Two committers of a table are
safe, because the commit protocol decides; they are slower. So an implementation may declare any process the committer
if anything is unclear.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Protocol

import attrs

from lancekeep.domain.commit import Committed
from lancekeep.domain.commit_token import CommitToken
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.recorded_keys import SharedKey
from lancekeep.ports.data_files import Rows


class Declined(Enum):
    """Why a committer in another process has not committed an append, and will not.

    ALONE: the append has to commit alone, through the table engine. NOT_TAKEN: the process ended, stopped, is full, or
    does not commit the appends of the table.
    """

    ALONE = auto()
    NOT_TAKEN = auto()


Reply = Committed | Declined | BaseException
"""What became of an append that was sent to another process."""


class Asker(Protocol):
    """A process that sends appends to this one, and waits for the replies."""

    def announce(self, numbers: Sequence[int], token: CommitToken) -> bool:
        """Send the token of a commit that is about to be attempted.

        Called before anything of the commit is written. If the attempt is lost, the token of the next one replaces it.

        Args:
            numbers: The appends of the commit, as the asker numbers them.
            token: The token by which any process learns the outcome.

        Returns:
            Whether the asker has the token, or will find it before it gives up. Otherwise it takes the appends as not
            committed: they must not be committed any more.
        """

    def answer(self, numbers: Sequence[int], reply: Reply) -> None:
        """Send what became of appends. Without the asker, do nothing."""


@attrs.frozen
class Received:
    """An append that another process has sent.

    Attributes:
        table: The table.
        rows: The rows.
        key: The idempotency key that is recorded with the group; None without one.
        asker: The process.
        number: The number by which the process knows the append.
    """

    table: ObjectId
    rows: Rows
    key: SharedKey | None
    asker: Asker
    number: int


class Committers(Protocol):
    """The committers of the tables of one catalog in the processes of one host.

    Threads may share an instance.
    """

    def begin(self, receive: Callable[[Received], None], answered: Callable[[Sequence[int], Reply], None]) -> None:
        """Begin to take part. Called once, before all other methods.

        Args:
            receive: Takes an append of another process.
            answered: Takes what became of appends that this process has sent, by their numbers.
        """

    def send(self, table: ObjectId, number: int, rows: Rows, key: SharedKey | None) -> bool:
        """Send an append to the process that commits the appends of its table.

        If no process does, this one does from now on.

        Args:
            table: The table.
            number: A number that no other append of this process has.
            rows: The rows.
            key: The idempotency key that is recorded with the group.

        Returns:
            False if this process has to commit the append itself. After True exactly one call of ``answered`` follows:
            also if the other process ends or stops, within a few seconds. `CommitUnknown` carries the last token that
            the other process has announced; without a token, the reply is `Declined.NOT_TAKEN`.
        """

    def leave(self, seconds: float) -> bool:
        """Take no more appends of other processes, and answer the taken ones.

        Idempotent.

        Args:
            seconds: How long to wait for the replies.

        Returns:
            Whether all were answered.
        """

    def close(self) -> None:
        """Release everything. Idempotent. Appends that wait are answered."""
