"""Panics of the table engine, which Python sees as a `BaseException`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from lancekeep.domain.errors import EngineFailed

C = TypeVar("C", bound=type)


def is_panic(error: BaseException) -> bool:
    """Return whether native code has panicked.

    Each native module has a class of its own.
    """
    return type(error).__name__ == "PanicException"


@contextmanager
def panics_translated(name: str = "") -> Iterator[None]:
    """Raise a panic as `EngineFailed`.

    Args:
        name: The table, for the message.
    """
    try:
        yield
    except BaseException as error:
        if not is_panic(error):
            raise
        place = f"{name}: " if name else ""
        raise EngineFailed(
            f"{place}the table engine failed on these values, or on stored ones: {error!s:.300}. After a change, read "
            "the table before you repeat it"
        ) from error


def without_panics(kind: C) -> C:
    """Let the public methods of a class raise panics as `EngineFailed`."""
    for name, method in list(vars(kind).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(kind, name, _translated(method))
    return kind


def _translated(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def translated(*args: Any, **kwargs: Any) -> Any:
        with panics_translated():
            return method(*args, **kwargs)

    return translated
