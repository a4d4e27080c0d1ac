"""The keyed request that the current thread performs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol, TypeVar

import attrs

from lancekeep.domain.errors import LancekeepError

if TYPE_CHECKING:
    from lancekeep.domain.commit_token import CommitToken
    from lancekeep.domain.idempotency import Effect
    from lancekeep.domain.recorded_keys import SharedKey
    from lancekeep.ports.manifest_store import Decision

Result = TypeVar("Result")


class KeyedRequest(Protocol):
    """One attempt of a request with an idempotency key."""

    def recording(self, decide: Decision[Result], effect: Callable[[Result], Effect]) -> Decision[Result]:
        """Return a decision that also records its effect."""

    def withdrawing(self, decide: Decision[Result]) -> Decision[Result]:
        """Return a decision that undoes the effect, and removes its record."""

    def recorded(self) -> Effect | None:
        """Return the effect of an earlier attempt on the catalog; None if there is none."""

    def claim(self, members: Callable[[], CommitToken]) -> None:
        """Append the staged manifests to the request's log, before their commit.

        Raises:
            Superseded: Another attempt has taken over, or has committed.
            CommitUnknown: Whether another attempt has committed cannot be determined.
        """


@attrs.define
class Sharing:
    """A keyed append that may share a commit, whose key is recorded with the group.

    Attributes:
        key: the key.
        needs_log: whether it has to be performed with a log of its own instead. Nothing was committed.
    """

    key: SharedKey
    needs_log: bool = False


class NeedsLog(LancekeepError):
    """A keyed append cannot share a commit."""


_sharing: ContextVar[Sharing | None] = ContextVar("shared_append", default=None)


def current_sharing() -> Sharing | None:
    """Return the keyed append of this thread that may share a commit, or None."""
    return _sharing.get()


@contextmanager
def sharing(append: Sharing) -> Iterator[None]:
    """Make a keyed append the current one in the ``with`` block."""
    token = _sharing.set(append)
    try:
        yield
    finally:
        _sharing.reset(token)


def refuse_to_share() -> None:
    """Refuse to write for a keyed append in any other way than by a shared commit.

    Raises:
        NeedsLog: This thread performs such an append. Nothing was committed.
    """
    append = _sharing.get()
    if append is not None:
        append.needs_log = True
        raise NeedsLog("the append cannot share a commit, so its request needs a log of its own")


_current: ContextVar[KeyedRequest | None] = ContextVar("keyed_request", default=None)


def current_request() -> KeyedRequest | None:
    """Return the keyed request of this thread, or None."""
    return _current.get()


@contextmanager
def performing(request: KeyedRequest | None) -> Iterator[None]:
    """Make a request the current one in the ``with`` block.

    None is for changes that are not the effect of a request.
    """
    token = _current.set(request)
    try:
        yield
    finally:
        _current.reset(token)
