"""Temporary credentials that were issued, to answer the same question again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from threading import Lock

import attrs

MOST = 4096


@attrs.frozen
class Issued:
    """Credentials that were issued.

    Attributes:
        options: The storage options of the credentials; their representation is hidden.
        issued: When they were issued, in seconds since 1970.
        expires: When they expire.
    """

    options: Mapping[str, str] = attrs.field(repr=False)
    issued: float
    expires: float


class Remembered:
    """Remembers credentials until a quarter of their time to live is left.

    A holder that asks again shortly before they expire receives new ones. The least recently used are forgotten first.

    Args:
        now: Returns the time in seconds since 1970.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._lock = Lock()
        self._known: OrderedDict[Hashable, Issued] = OrderedDict()

    def vend(self, question: Hashable, issue: Callable[[], Issued]) -> dict[str, str]:
        """Return storage options with ``expires_at_millis``, remembered or newly issued."""
        with self._lock:
            known = self._known.get(question)
            if known is not None and self._now() < known.expires - (known.expires - known.issued) / 4:
                self._known.move_to_end(question)
                return _answer(known)
        issued = issue()
        with self._lock:
            self._known[question] = issued
            self._known.move_to_end(question)
            if len(self._known) > MOST:
                self._known.popitem(last=False)
        return _answer(issued)


def _answer(issued: Issued) -> dict[str, str]:
    return {**issued.options, "expires_at_millis": str(int(issued.expires * 1000))}
