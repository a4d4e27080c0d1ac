"""Translate a driver's exceptions to Lancekeep errors, once per adapter."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from lancekeep.domain.errors import LancekeepError


class _Understands(Protocol):
    def understood(self, error: Exception) -> LancekeepError:
        """Translate an exception of the driver."""


P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound=_Understands)
_Method = Callable[Concatenate[S, P], T]


def boundary(*driver_errors: type[Exception]) -> Callable[[_Method[S, P, T]], _Method[S, P, T]]:
    """Decorate a method so that ``self.understood`` translates the driver's errors."""

    def decorate(method: _Method[S, P, T]) -> _Method[S, P, T]:
        @wraps(method)
        def mapped(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return method(self, *args, **kwargs)
            except driver_errors as error:
                raise self.understood(error) from error

        return mapped

    return decorate
