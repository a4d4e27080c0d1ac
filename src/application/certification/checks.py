"""Results of checks, and helpers that the checks of both stores share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol, TypeVar, runtime_checkable

import attrs

from lancekeep.application import concurrency
from lancekeep.domain.errors import LancekeepError, StoreUnavailable
from lancekeep.domain.version_row import Reservation
from lancekeep.ports.commit_store import ExternalCommitStore
from lancekeep.ports.object_store import ObjectInfo, ObjectStore

T = TypeVar("T")
R = TypeVar("R")

DIRECTORY = ".lancekeep-certify-"
"""The prefix of the directory below the root that every check writes to."""

CONTENDERS = 8
ROUNDS = 5
IN_FLIGHT = 2**20
"""Bytes that make the writes of one race overlap."""
TOGETHER = 3
"""The number of histories that one batch reserves a version of."""
LARGE = 8 * 2**20
UNUSUAL_NAMES = ("with space", "50%25", "a#b", "a?b=c&d", "a+b", "straße", "e\u0301", "日本", "😀", "[x]{y}~", "'\"$*")


class Result(Enum):
    """The result of a check.

    ``UNSUPPORTED`` means that the adapter does not claim the property, and nothing depends on it.
    """

    PASSED = "passed"
    FAILED = "failed"
    UNSUPPORTED = "unsupported"


@attrs.frozen
class Check:
    """One measured property of one store.

    Attributes:
        subject: ``object store``, ``commit store`` or ``both``.
        name: The name of the check.
        result: Its result.
        evidence: The observation and, if the check failed, the uses to avoid.
    """

    subject: str
    name: str
    result: Result
    evidence: str


@attrs.frozen
class Certificate:
    """The results for one root and one commit store.

    Attributes:
        root: The URI of the root, without secrets.
        commit_store: The URL of the commit store, without secrets.
        checks: The results.
    """

    root: str
    commit_store: str
    checks: tuple[Check, ...]

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.result is Result.FAILED)

    @property
    def safe(self) -> bool:
        """Whether no check failed: commits through this commit store are safe."""
        return not self.failed


Progress = Callable[[int, int, str], None]
"""Called before each check with the number of checks done, their total, and the name of the next check."""


@runtime_checkable
class WritesInParts(Protocol):
    """An object store that writes large content in parts."""

    def in_parts(self) -> ObjectStore:
        """Return the same store with the smallest limit above which it writes in parts."""


class Broken(Exception):
    """The store does not keep a claim of its adapter; the text is the observation."""


class NotClaimed(Exception):
    """The adapter does not claim the property."""


@attrs.frozen
class Client:
    """One connection to both stores.

    Attributes:
        objects: The object store.
        rows: The commit store; None if no commit store works on this storage.
    """

    objects: ObjectStore
    rows: ExternalCommitStore | None


@attrs.frozen
class Planned:
    """A check that is about to run.

    Attributes:
        subject: As in `Check`.
        name: As in `Check`.
        measure: Runs the check and returns the evidence.
        not_for: The uses to avoid if the check fails.
    """

    subject: str
    name: str
    measure: Callable[[], str]
    not_for: str

    def run(self) -> Check:
        """Run the check.

        Raises:
            StoreUnavailable: The store did not answer, which proves nothing.
        """
        try:
            return Check(self.subject, self.name, Result.PASSED, self.measure())
        except NotClaimed as unsupported:
            return Check(self.subject, self.name, Result.UNSUPPORTED, str(unsupported))
        except StoreUnavailable:
            raise
        except (Broken, LancekeepError) as broken:
            return Check(self.subject, self.name, Result.FAILED, f"{broken}. {self.not_for}")


def race(clients: Sequence[T], act: Callable[[T, int], R]) -> list[R | StoreUnavailable]:
    """Let all clients act at once.

    Returns: The reply to each client, or its `StoreUnavailable` if it got no reply.
    """

    def contend(me: int) -> R | StoreUnavailable:
        try:
            return act(clients[me], me)
        except StoreUnavailable as error:
            return error

    return concurrency.race(len(clients), contend)


def judge(replies: Sequence[bool | StoreUnavailable], contents: Sequence[bytes], stored: bytes) -> str:
    """Require exactly one winner, whose content is stored.

    Returns:
        The number of missing replies, as text.
    """
    winners = [content for content, reply in zip(contents, replies, strict=True) if reply is True]
    silent = [content for content, reply in zip(contents, replies, strict=True) if isinstance(reply, StoreUnavailable)]
    if len(winners) > 1 or not (winners or silent):
        raise Broken(f"{len(winners)} of {len(replies)} writers got the reply that they created the object")
    if stored not in (winners or silent):
        raise Broken(
            "the stored content belongs to another writer than the writer that got the reply that it created the object"
        )
    return f" ({len(silent)} got no answer)" if silent else ""


def found(info: ObjectInfo | None, key: str) -> ObjectInfo:
    if info is None:
        raise Broken(f"{key!r} was written, and was not found")
    return info


def answer_of(reservation: Reservation) -> str:
    return type(reservation).__name__


def raced(contenders: int, rounds: int) -> str:
    return f"{contenders} writers raced {rounds} times"


def shown(size: int) -> str:
    return f"{size // 2**20} MiB"
