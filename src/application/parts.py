"""Parts of an object that are made when they are first read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

Made = TypeVar("Made")


class part(Generic[Made]):  # noqa: N801 - a decorator, like `property`
    """A property that is made when it is first read, and kept.

    Threads that read it first at the same time may make one each; all get the same. So making it has no effect but the
    value, and takes no lock that a fork could leave behind.
    """

    def __init__(self, make: Callable[[Any], Made]) -> None:
        self._make = make
        self._name = make.__name__
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> part[Made]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> Made: ...

    def __get__(self, instance: object | None, owner: type) -> part[Made] | Made:
        """Return the value; later reads find it in the object's dictionary."""
        if instance is None:
            return self
        made: Made = instance.__dict__.setdefault(self._name, self._make(instance))
        return made

    def made(self, instance: object) -> Made | None:
        """Return the value if it was made."""
        return instance.__dict__.get(self._name)
