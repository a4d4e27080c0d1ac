"""The ports between processes that write to the same tables.

One of these processes commits the appends and upserts of a table, and the others send theirs to it. Two committers of a
table are safe, because the commit protocol decides; they are slower. So an implementation may declare any process the
committer if anything is unclear.
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
from lancekeep.ports.rows import MergeCounts


class Declined(Enum):
    """Why a committer in another process has not committed, and will not.

    ALONE: it has to commit alone, through the table engine. NOT_TAKEN: the process ended, stopped, is full, or does not
    commit the appends of the table.
    """

    ALONE = auto()
    NOT_TAKEN = auto()


Reply = Committed | Declined | BaseException
"""What became of an append or upsert that was sent to another process."""


@attrs.frozen
class SentUpsert:
    """How the rows that are sent replace the rows of their keys.

    Attributes:
        on: The key columns.
        use_index: Whether to find matches by an index on the key.
        seconds: How long attempts may begin.
    """

    on: tuple[str, ...]
    use_index: bool
    seconds: float


class Asker(Protocol):
    """A process that sends appends and upserts, and waits for the replies."""

    def announce(self, numbers: Sequence[int], token: CommitToken, counts: Sequence[MergeCounts] = ()) -> bool:
        """Send the token of a commit that is about to be attempted.

        Called before anything of the commit is written. If the attempt is lost, the token of the next one replaces it.

        Args:
            numbers: The appends of the commit, as the asker numbers them.
            token: The token by which any process learns the outcome.
            counts: What each of them inserts, updates and deletes if this attempt commits; none for appends.

        Returns:
            Whether the asker has the token, or will find it before it gives up. Otherwise it takes the appends as not
            committed: they must not be committed any more.
        """

    def answer(self, numbers: Sequence[int], reply: Reply) -> None:
        """Send what became of appends. Without the asker, do nothing."""


@attrs.frozen
class Received:
    """An append or upsert that another process has sent.

    Attributes:
        table: The table.
        rows: The rows.
        key: The idempotency key that is recorded with the group; None without one.
        asker: The process.
        number: The number by which the process knows it.
        upsert: How to upsert the rows; None for an append.
    """

    table: ObjectId
    rows: Rows
    key: SharedKey | None
    asker: Asker
    number: int
    upsert: SentUpsert | None = None


class Committers(Protocol):
    """The committers of the tables of one catalog.

    Threads may share an instance.
    """

    def begin(
        self,
        receive: Callable[[Received], None],
        counted: Callable[[Sequence[int], Sequence[MergeCounts]], None],
        answered: Callable[[Sequence[int], Reply], None],
    ) -> None:
        """Begin to take part. Called once, before all other methods.

        Args:
            receive: Takes an append or upsert of another process.
            counted: Takes what an attempt that was announced inserts, updates and deletes for each upsert that this
                process has sent, by their numbers.
            answered: Takes what became of appends and upserts that this process has sent, by their numbers.
        """

    def send(
        self, table: ObjectId, number: int, rows: Rows, key: SharedKey | None, upsert: SentUpsert | None = None
    ) -> bool:
        """Send an append or upsert to the process that commits for its table.

        If no process does, this one does from now on.

        Args:
            table: The table.
            number: A number that nothing else has that this process sends.
            rows: The rows.
            key: The idempotency key that is recorded with the group.
            upsert: How to upsert the rows; None for an append.

        Returns:
            False if this process has to commit it itself. After True exactly one call of ``answered`` follows:
            also if the other process ends or stops, within a few seconds. `CommitUnknown` carries the last token that
            the other process has announced; without a token, the reply is `Declined.NOT_TAKEN`.
        """

    def lost(self, table: ObjectId) -> None:
        """Note that this process has lost a version to another writer; does not wait."""

    def is_elsewhere(self, table: ObjectId) -> bool:
        """Return whether another process is known to commit for a table.

        Writes may still wait for the committer of this process.
        """

    def give_up(self, number: int) -> None:
        """Wait no longer for what was sent, as if the other process had ended.

        The call of ``answered`` follows, also for everything else that this process has sent to the other one.
        """

    def leave(self, seconds: float) -> bool:
        """Take nothing more of other processes, and answer what was taken.

        Idempotent.

        Args:
            seconds: How long to wait for the replies.

        Returns:
            Whether all were answered.
        """

    def close(self) -> None:
        """Release everything. Idempotent. What waits is answered."""


class LinkedTables(Protocol):
    """What links need from the process that uses them. Any thread may call it."""

    def takes(self, table: ObjectId) -> bool:
        """Return whether this process commits to a table for other processes."""

    def receive(self, received: Received) -> None:
        """Take a write of another process; as ``receive`` of `Committers.begin`."""

    def counted(self, numbers: Sequence[int], counts: Sequence[MergeCounts]) -> None:
        """Take announced counts; as ``counted`` of `Committers.begin`."""

    def answered(self, numbers: Sequence[int], reply: Reply) -> None:
        """Take what became of what was sent; as ``answered`` of `Committers.begin`."""

    def unlinked(self, address: str) -> None:
        """Note that a process takes nothing more, or that its link has ended."""

    def prove(self, challenge: str) -> None:
        """Leave a challenge of another process in the storage of the catalog.

        Raises:
            StoreUnavailable: The storage did not answer.
        """

    def is_proven(self, challenge: str) -> bool:
        """Remove a challenge of this process from the storage of the catalog.

        Returns:
            Whether it was there.

        Raises:
            StoreUnavailable: The storage did not answer.
        """


class Links(Protocol):
    """The connections to processes that serve the same catalog on other hosts.

    A process commits nothing for an asker before the asker has acknowledged the token of the attempt. An asker that has
    given up acknowledges nothing. So what it has sent without a token is not committed, and will not be.
    """

    @property
    def address(self) -> str:
        """Where others reach this process.

        No other process has the same address, also none before it.
        """

    def begin(self, tables: LinkedTables) -> None:
        """Begin to take part. Called once, before the methods below."""

    def link(self, address: str) -> bool:
        """Return whether there is a link to a process, after making one.

        Both processes prove that they use the same storage. It takes no more than some seconds.
        """

    def send(
        self,
        address: str,
        table: ObjectId,
        number: int,
        rows: Rows,
        key: SharedKey | None,
        upsert: SentUpsert | None = None,
    ) -> bool:
        """Send an append or upsert over a link; as `Committers.send`.

        Returns:
            False if there is no link, or it is too large to be sent.
        """

    def give_up(self, number: int) -> None:
        """Wait no longer for what was sent; as `Committers.give_up`."""

    def leave(self, seconds: float) -> bool:
        """Take nothing more, and answer what was taken; as `Committers.leave`."""

    def close(self) -> None:
        """Release everything. Idempotent. What waits is answered."""
