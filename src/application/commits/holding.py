"""Change what becomes of the direct commits of a table."""

from __future__ import annotations

from functools import partial

from lancekeep.application.commits.histories import Histories
from lancekeep.domain.layout import DatasetRoot


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

    def _enter(self, root: DatasetRoot) -> None:
        """Enter the versions that exist."""
        self._histories.forget()
        for history in self._histories.histories(root):
            self._histories.latest(history)
