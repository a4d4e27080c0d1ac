"""The commits of callers that quotas of bytes limit."""

from __future__ import annotations

from functools import partial

from lancekeep.application.entries.ledger import Ledger
from lancekeep.application.entries.limits import current_limits
from lancekeep.application.entries.places import Places
from lancekeep.domain.dropped import owner_id
from lancekeep.domain.errors import QuotaExceeded
from lancekeep.domain.layout import DatasetRoot
from lancekeep.format.file_references import OwnBytes, own_bytes


class Quotas:
    """Judges commits by what they add.

    A subtree whose quota is full takes the commits that add no bytes: deletions, compactions, tags.
    """

    def __init__(self, ledger: Ledger, places: Places) -> None:
        self._ledger = ledger
        self._places = places

    def require_kept(self, root: DatasetRoot, content: bytes) -> None:
        """Refuse a larger version while a quota of the caller is full.

        While no quota is full, a commit costs no request.

        Args:
            root: The dataset or branch.
            content: The staged manifest.

        Raises:
            QuotaExceeded: The version is larger.
        """
        limits = current_limits()
        if limits is None or all(quota.bytes is None for quota in limits.quotas):
            return
        entry = self._ledger.recent().owner_of(self._places.location(root))
        if entry is None:
            return
        try:
            limits.require_space(owner_id(entry))
        except QuotaExceeded:
            if own_bytes(content, root.base_uri).exceeds(self._latest(root)):
                raise

    def _latest(self, root: DatasetRoot) -> OwnBytes:
        commits = self._ledger.commits
        latest = commits.latest(root)
        if latest is None:
            return OwnBytes()
        return own_bytes(commits.retry.call(partial(commits.objects.get, latest.path)), latest.path)
