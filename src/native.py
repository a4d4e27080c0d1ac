"""pylance and ``pyarrow.compute``, imported at their first use.

The imports take longer than anything else that a process does to list, describe or drop tables, and these operations
read and write without the engine. ``pyarrow.compute`` makes a Python function of each of its functions.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import lance
    import lance.commit
    import lance.file
    import lance.fragment
    import lance.optimize
    import lance.query as fts
    import pyarrow.compute as compute
else:

    class _Lance:
        def __getattr__(self, name: str) -> Any:
            module = import_module("lance")
            if hasattr(module, name):
                return getattr(module, name)
            try:
                return import_module(f"lance.{name}")
            except ModuleNotFoundError as error:
                if error.name != f"lance.{name}":
                    raise
                raise AttributeError(f"pylance has no 'lance.{name}'", name=name, obj=self) from None

    class _Fts:
        def __getattr__(self, name: str) -> Any:
            return getattr(import_module("lance.query"), name)

    class _Compute:
        def __getattr__(self, name: str) -> Any:
            return getattr(import_module("pyarrow.compute"), name)

    lance = _Lance()
    compute = _Compute()
    fts = _Fts()

__all__ = ["CACHED_METADATA", "compute", "fts", "lance"]

CACHED_METADATA = 128 << 20
"""How many bytes of metadata a dataset keeps that is opened for one operation.

The engine's default is 1 GB, and a text of a MB that is alone in its file counts as metadata: a scan of a thousand such
files would hold all of them.
"""
