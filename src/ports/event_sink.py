"""The port of subscribers, which take events."""

from __future__ import annotations

from typing import Protocol

from lancekeep.domain.event_delivery import Attempt, Delivery


class EventSink(Protocol):
    """Take events in order, one delivery at a time.

    A delivery is repeated until it is taken, also after a process was killed, so a sink may get events twice.
    """

    def deliver(self, delivery: Delivery) -> Attempt:
        """Deliver events once, within a limited time.

        Returns:
            What the attempt led to. A sink that cannot be reached, or that answers with an error, raises nothing.

        Raises:
            LancekeepError: The attempt failed; `StoreUnavailable` if another attempt may succeed.
        """

    def close(self) -> None:
        """Release connections. Idempotent."""
