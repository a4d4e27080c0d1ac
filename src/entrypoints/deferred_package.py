"""A package whose own code runs when one of its names is asked for.

The package of the namespace's models also has a client, whose methods build a validator each. That takes more
than a quarter of the processor time in which a worker of `lancekeep serve` starts, and the worker does not use it.
"""

from __future__ import annotations

import sys
from functools import partial
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from threading import get_ident
from types import ModuleType
from typing import Any, Final

MODELS: Final = "lance_namespace_urllib3_client"
"""The package of the namespace's models."""


class _Deferred(ModuleType):
    """A package of which only the place of its modules is known.

    Several threads may run its code at the same time, as each import in it waits for the others. A lock held here
    could wait forever for a thread that imports a module of the package, and asks for a name.
    """

    def __init__(self, spec: ModuleSpec, loader: Loader) -> None:
        super().__init__(spec.name)
        self.__spec__, self.__loader__, self.__package__ = spec, loader, spec.name
        self.__file__ = spec.origin
        self.__path__ = list(spec.submodule_search_locations or ())
        self._run = partial(loader.exec_module, self)
        self._is_complete = False
        self._running: set[int] = set()
        """The threads that run its code, for which only what has run so far exists."""

    def __getattr__(self, name: str) -> Any:
        if not self._is_complete and get_ident() not in self._running:
            self._running.add(get_ident())
            try:
                self._run()
                self._is_complete = True
            finally:
                self._running.discard(get_ident())
        return super().__getattribute__(name)


def defer(package: str) -> None:
    """Let the modules of a package be imported without its own code.

    That runs when something asks the package for a name. Nothing happens if it has been imported, or is not installed.
    Call this before anything imports the package.
    """
    spec = None if package in sys.modules else find_spec(package)
    if spec is not None and spec.loader is not None:
        sys.modules[package] = _Deferred(spec, spec.loader)
