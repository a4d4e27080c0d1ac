"""A protection that a test switches off."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Generic, TypeVar
from unittest.mock import patch

import attrs

T = TypeVar("T")

MISFITS = (TypeError, AttributeError, NameError, ImportError)
"""Errors of a fault that does not fit the product; they show nothing."""


@attrs.frozen
class Fault(Generic[T]):
    """A protection that is off, and what fails without it.

    Attributes:
        found_by: The test or the walk that fails.
        patches: Attributes by their dotted names, and their replacements.
    """

    found_by: T
    patches: Mapping[str, Any]

    @contextmanager
    def planted(self) -> Iterator[None]:
        with ExitStack() as stack:
            for name, replacement in self.patches.items():
                stack.enter_context(patch(name, replacement))
            yield


def nothing(*_: Any, **__: Any) -> tuple[()]:
    return ()
