"""The warning that a public name has moved."""

from __future__ import annotations

import warnings


def warn_of_move(old: str, new: str) -> None:
    """Warn the caller of a ``__getattr__`` that a name of `Catalog` has moved."""
    warnings.warn(f"Catalog.{old} is deprecated, and will be removed. Use {new}", DeprecationWarning, stacklevel=3)
