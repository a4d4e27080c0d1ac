"""The one place in each adapter where its driver's exceptions become ours."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from lancekeep.domain.errors import LancekeepError


class _Understands(Protocol):
    def understood(self, error: Exception) -> LancekeepError:
        """What a driver's exception means to the caller."""


P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound=_Understands)
_Method = Callable[Concatenate[S, P], T]


def boundary(*driver_errors: type[Exception]) -> Callable[[_Method[S, P, T]], _Method[S, P, T]]:
    """Decorate a public method: ``driver_errors`` leave it as what ``self.understood`` makes of them."""

    def decorate(method: _Method[S, P, T]) -> _Method[S, P, T]:
        @wraps(method)
        def mapped(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return method(self, *args, **kwargs)
            except driver_errors as error:
                raise self.understood(error) from error

        return mapped

    return decorate
