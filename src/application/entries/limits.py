"""The quotas that limit the current caller.

The server knows the caller and its policy. The ledger and the commits know what a change adds: they check it here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:  # only a server has quotas
    from lancekeep.domain.authorization import Quota
    from lancekeep.domain.catalog import CatalogView, Change
    from lancekeep.domain.identifiers import ObjectId
    from lancekeep.domain.quotas import Used


@attrs.frozen
class Limits:
    """The quotas of a caller.

    Attributes:
        quotas: The quotas.
        used: Returns the measured bytes of a subtree; None before its first measurement.
    """

    quotas: Sequence[Quota]
    used: Callable[[ObjectId], Used | None]

    def require_room(self, view: CatalogView, changes: Sequence[Change]) -> None:
        """Check the tables that changes add.

        Raises:
            QuotaExceeded: A quota has no room for them.
        """
        from lancekeep.domain.quotas import require_room

        require_room(view, changes, self.quotas)

    def require_space(self, object_id: ObjectId) -> None:
        """Check that a table may grow.

        Raises:
            QuotaExceeded: A subtree that contains it has as many bytes as its quota, or more.
        """
        from lancekeep.domain.quotas import require_space

        for quota in self.quotas:
            if quota.bytes is not None and quota.covers(object_id):
                used = self.used(quota.subtree)
                if used is not None:
                    require_space(object_id, quota, used)


_LIMITS: ContextVar[Limits | None] = ContextVar("lancekeep_limits", default=None)


def current_limits() -> Limits | None:
    """Return the limits of the caller; None if no quota limits it."""
    return _LIMITS.get()


@contextmanager
def limited(limits: Limits | None) -> Iterator[None]:
    """Limit the changes in the ``with`` block.

    Args:
        limits: The limits; None for none, as for a change that undoes a change.
    """
    token = _LIMITS.set(limits)
    try:
        yield
    finally:
        _LIMITS.reset(token)
