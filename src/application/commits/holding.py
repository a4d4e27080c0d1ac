"""Hold or adopt the direct commits of a table, and refuse commits that meet them."""

from __future__ import annotations

from functools import partial

from lancekeep.application.commits.histories import Histories
from lancekeep.application.commits.protocol_runner import held
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.version_row import VersionRow


class Holding:
    """Holds or adopts the direct commits of tables; every method is idempotent."""

    def __init__(self, histories: Histories) -> None:
        self._histories = histories
        self._direct = histories.direct
        self._call = histories.retry.call

    def is_marked(self, root: DatasetRoot) -> bool:
        """Return whether the versions of a dataset need approvals."""
        return self._call(partial(self._direct.is_marked, root.base_uri))

    def holds(self, root: DatasetRoot) -> bool:
        """Return whether a dataset holds direct commits."""
        return self._call(partial(self._direct.holds, root.base_uri))

    def hold(self, root: DatasetRoot) -> None:
        """Hold the direct commits of a dataset and its branches from now on.

        The versions that exist before become versions of the catalog. A participant that did not see the mark yet may
        take any of these for a version.
        """
        if self.holds(root):
            return
        if not self.is_marked(root):
            self._enter(root)  # without an approval of each version
            self._call(partial(self._direct.lift, root.base_uri))
            self._call(partial(self._direct.mark, root.base_uri))
        self._enter(root)
        self._call(partial(self._direct.hold, root.base_uri))
        self._histories.forget()

    def adopt(self, root: DatasetRoot) -> None:
        """Adopt the direct commits of a dataset and its branches from now on."""
        if self.is_marked(root):
            self._call(partial(self._direct.lift, root.base_uri))
            self._histories.forget()

    def forget(self, root: DatasetRoot) -> None:
        """Delete what is recorded about direct commits of a table without versions."""
        self._call(partial(self._direct.forget, root.base_uri))
        self._histories.forget()

    # -- what may follow ----------------------------------------------------------------------------------------

    def require_reflected(self, root: DatasetRoot, version: int) -> None:
        """Raise `CommitRefused` if a version to follow is a held direct commit.

        From then on its manifest stays the same, so a writer cannot have built on a manifest that it replaced.
        """
        histories = self._histories
        if version < 1 or histories.is_settled(root, version) or not self.is_marked(root):
            return
        if histories.get(root, version) is None and (found := histories.final_object(root, version)) is not None:
            raise held(found)

    def require_publishable(self, winner: VersionRow | None) -> None:
        """Raise `CommitRefused` if the row of a winner can never be published.

        A writer that tried again would lose to it again.
        """
        if winner is None or winner.is_final or winner.moved_to is not None:
            return
        if not self._call(partial(self._direct.is_marked, winner.base_uri)):
            return
        if self._histories.finalize(winner) is None and self._histories.is_held(winner):
            raise held(winner)

    def require_none(self, root: DatasetRoot) -> None:
        """Raise `CommitRefused` if a held direct commit follows the latest version."""
        if not self.is_marked(root):
            return
        latest = self._histories.latest(root)
        found = self._call(partial(self._histories.final_object, root, latest.version + 1 if latest else 1))
        if found is not None:
            raise held(found)

    def _enter(self, root: DatasetRoot) -> None:
        """Enter the versions that exist."""
        self._histories.forget()
        for history in self._histories.histories(root):
            self._histories.latest(history)
