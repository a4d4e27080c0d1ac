"""Tasks in a child process, some of which end it."""

from __future__ import annotations

import os

import pytest

from lancekeep.entrypoints.isolation import Crashed, Isolation, apart

ABORTS, EXITS, FAILS, TOO_MUCH = -1, -2, -3, -4


def work(number: int) -> int:
    """Return the square of a number, or end the process in the way that the number means."""
    if number == ABORTS:
        os.abort()
    if number == EXITS:
        os.write(2, b"some output\nout of luck\n")
        os._exit(7)
    if number == FAILS:
        raise ValueError("the task failed")
    if number == TOO_MUCH:
        return len(bytearray(1 << 44))
    return number * number


@pytest.mark.parametrize("threads", [1, 4])
def test_crash_concerns_only_the_item_that_causes_it(threads: int) -> None:
    items = [1, 2, ABORTS, 3, EXITS, 4, 5]
    with Isolation(work, threads) as child:
        found = list(child.run(items))
        assert list(child.run([6])) == [36]
    crashed = {item: each.reason for item, each in zip(items, found, strict=True) if isinstance(each, Crashed)}
    assert crashed.keys() == {ABORTS, EXITS}
    assert "SIGABRT" in crashed[ABORTS]
    assert crashed[EXITS].endswith("with the exit code 7: out of luck")
    assert [each for each in found if not isinstance(each, Crashed)] == [1, 4, 9, 16, 25]


def test_error_of_a_task_is_raised() -> None:
    with Isolation(work, 1) as child, pytest.raises(RuntimeError, match="ValueError: the task failed"):
        list(child.run([1, FAILS]))


def test_excessive_memory_is_an_error_of_the_child() -> None:
    with Isolation(work, 1) as child, pytest.raises(RuntimeError, match="MemoryError"):
        list(child.run([TOO_MUCH]))


def test_child_is_kept_and_replaced_after_a_crash() -> None:
    assert apart(3, task=work) == 9
    assert isinstance(apart(ABORTS, task=work), Crashed)
    assert apart(4, task=work) == 16
