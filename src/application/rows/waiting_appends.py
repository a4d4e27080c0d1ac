"""Appends that wait for a committer, and their claims of its commit."""

from __future__ import annotations

from collections.abc import Sequence
from queue import SimpleQueue

import attrs

from lancekeep.application.commits.keyed_requests import KeyedRequest
from lancekeep.domain.appends import Waiting
from lancekeep.domain.commit import Committed
from lancekeep.domain.commit_token import CommitToken
from lancekeep.domain.errors import LancekeepError
from lancekeep.ports.data_files import Rows


@attrs.define(eq=False)
class Append:
    """An append that waits for its answer: committed, failed, or to commit alone.

    Attributes:
        request: the keyed request whose effect it is. Its own thread claims each commit, so all appends of a group
            claim at the same time.
        following: the append that is answered after this one. Hundreds of threads that continue at once would compete
            for the interpreter's lock, also with the committer.
        is_left: whether its thread waits no longer: it is answered, or was interrupted.
    """

    rows: Rows
    request: KeyedRequest | None = None
    committed: Committed | None = None
    error: BaseException | None = None
    following: Append | None = None
    is_left: bool = False
    _tokens: SimpleQueue[CommitToken | None] = attrs.field(factory=SimpleQueue)
    _claims: SimpleQueue[bool] = attrs.field(factory=SimpleQueue)

    @property
    def waiting(self) -> Waiting:
        return Waiting(self.rows.schema, self.rows.size)

    def wait(self) -> None:
        """Wait for the answer; until then claim the commits that the committer names."""
        try:
            while (token := self._tokens.get()) is not None:
                self._claims.put(self._claim(token))
        finally:
            self._claims.put(False)  # a committer must not wait for a thread that was interrupted
            self.is_left = True
            self._answer_following()

    def _claim(self, token: CommitToken) -> bool:
        assert self.request is not None
        try:
            self.request.claim(lambda: token)
        except LancekeepError as error:
            self.error = error
        return self.error is None

    def ask(self, token: CommitToken) -> None:
        """Let the append's thread claim a commit."""
        self._tokens.put(token)

    def claimed(self) -> bool:
        """Wait until the commit is claimed; return False if it cannot be."""
        return self._claims.get()

    def answer(self) -> None:
        """Let the thread of the append continue, then the thread of the following append."""
        self._tokens.put(None)
        if self.is_left:
            self._answer_following()

    def _answer_following(self) -> None:
        if self.following is not None:
            self.following.answer()


class Unclaimed(LancekeepError):
    """Another attempt of a keyed append has taken over: the group commits without it."""


@attrs.define
class Claims:
    """The claims of one commit by the keyed appends of its group."""

    appends: Sequence[Append]
    _token: CommitToken | None = None

    def claim(self, token: CommitToken) -> None:
        """Let every append claim the commit.

        Raises:
            Unclaimed: An append cannot claim it; the append has the error.
        """
        self._token = token
        for append in self.appends:
            append.ask(token)
        claimed = [append.claimed() for append in self.appends]
        if not all(claimed):
            self.lost()
            raise Unclaimed

    def lost(self) -> None:
        """Withdraw the claims: the manifest will never be a version."""
        for append in self.appends:
            if append.request is not None and self._token is not None:
                append.request.lost(self._token)
