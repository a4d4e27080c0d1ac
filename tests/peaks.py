"""The memory that a call needs."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable


def peak(act: Callable[[], object]) -> int:
    """Return the most bytes that Python held during a call."""
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
