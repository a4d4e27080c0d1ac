"""What reading anything that others wrote may come to: a value or an error of ours, in bounded time and memory."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from lance_namespace import errors as api_errors

from lancekeep import LancekeepError

T = TypeVar("T")

PATIENCE = 10.0
"""Seconds; thousands of times what any of it takes, so that only what does not end is found by it."""

MEMORY = 128 << 20
"""Bytes by which one reading may raise the most that this process has held; the inputs have some thousand."""

EXAMPLES = int(os.environ.get("LANCEKEEP_FUZZ", "100"))
"""How many inputs each test is given; more are for an evening."""

FUZZ = settings(
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
SLOW = settings(FUZZ, max_examples=EXAMPLES // 3)
"""For what takes milliseconds, with a directory or a database of its own."""
SLOWEST = settings(FUZZ, max_examples=EXAMPLES // 8)
"""For what asks a server."""


def read(call: Callable[[], T], *allowed: type[LancekeepError]) -> T | None:
    """What the call returns; None where it raises one of the allowed errors. Any other is the finding."""

    def no_end(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"no end after {PATIENCE} s")

    held = _most_held()
    before = signal.signal(signal.SIGALRM, no_end)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        value: T | None = call()
    except allowed:
        value = None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    taken = _most_held() - held
    assert taken < MEMORY, f"{taken >> 20} MB more than ever before"
    return value


def _most_held() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def texts(alphabet: str) -> st.SearchStrategy[str]:
    """Text in which the characters that mean something are frequent; lone surrogates and huge ones included."""
    means = st.text(st.sampled_from(alphabet), max_size=30)
    return st.one_of(
        st.text(max_size=40),
        st.lists(st.one_of(means, st.text(max_size=3)), max_size=8).map("".join),
        st.text(st.characters(), max_size=20),
        means.map(lambda text: text * 1000),
    )


def mutated(content: bytes) -> st.SearchStrategy[bytes]:
    """A real content with bytes changed, cut off, doubled or put in."""

    def apply(changes: list[tuple[int, int, bytes]]) -> bytes:
        changed = bytearray(content)
        for at, length, replacement in changes:
            at %= len(changed) + 1
            changed[at : at + length] = replacement
        return bytes(changed)

    change = st.tuples(st.integers(0, 2**20), st.sampled_from((0, 1, 1, 1, 4, 8, 1000)), st.binary(max_size=10))
    return st.lists(change, min_size=1, max_size=4).map(apply)


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=6,
)
DEEP = "[" * 100_000
"""JSON that is nested more deeply than Python recurses."""


def read_api(call: Any) -> None:
    """Errors of the interface are the families of ours; an internal one would be ours only by accident."""
    try:
        read(call)
    except api_errors.InternalError as error:
        raise AssertionError(f"stored things are not at fault here: {error}") from error
    except api_errors.LanceNamespaceError:
        return
