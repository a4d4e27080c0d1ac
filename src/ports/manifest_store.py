"""What Lancekeep needs from the place where the catalog's own entries lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from lancekeep.domain.catalog import CatalogView, Change


class ManifestStore(Protocol):
    """The entries of a catalog and the properties of its root namespace (directory namespace V2).

    Invariants every adapter keeps:

    - **Atomicity**: the changes of one ``apply`` are seen together or not at all.
    - **Uniqueness and isolation**: ``decide`` saw the very state that its changes are applied to; where another
      process changed it in between, ``decide`` is asked again with the new state.
    - **Freshness**: ``view`` shows every change that was acknowledged anywhere before it was called.
    - Looking writes nothing.

    Both raise `StoreUnavailable`, `AccessDenied`, and `Damaged` where what is stored is not a catalog.
    """

    def view(self) -> CatalogView:
        """The catalog as it is now."""

    def apply(self, decide: Callable[[CatalogView], Sequence[Change]]) -> CatalogView:
        """Make the changes that ``decide`` asks for, and show the catalog after them.

        ``decide`` may be called several times and must not act; what it raises ends the call, with nothing written.
        No changes: nothing is written. Raises `ConcurrentModification` where others kept winning.
        """

    def set_properties(self, properties: Mapping[str, str | None]) -> CatalogView:
        """Set properties of the root namespace, and remove those given as None; the others stay."""
