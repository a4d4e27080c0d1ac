"""The keyed request that the current thread performs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol, TypeVar

from lancekeep.domain.commit_token import CommitToken
from lancekeep.domain.idempotency import Effect
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

    def prepare(self) -> None:
        """Read the rest of the request's data, so that `claim` waits for stores only."""

    def lost(self, token: CommitToken) -> None:
        """Forget a claim: another writer has committed the version."""


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
