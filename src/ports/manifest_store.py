"""What Lancekeep needs from the place where the catalog's own entries lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from lancekeep.domain.catalog import CatalogView, Change
from lancekeep.ports.object_store import ObjectInfo

Result = TypeVar("Result")

Decision = Callable[[CatalogView], tuple[Sequence[Change], Result]]
"""Returns the changes to make in the catalog that it is given, and a result for the caller.

It raises what forbids the change. It is pure, because a store calls it again with a newer view after a conflict. Only
the result of the last call counts.
"""


class ManifestStore(Protocol):
    """The entries of a catalog and the properties of its root namespace (directory namespace V1 and V2).

    Invariants every adapter keeps:

    - **Atomicity**: the changes of one ``apply`` are seen together or not at all.
    - **Uniqueness and isolation**: ``decide`` saw the very state that its changes are applied to; where another
      process changed it in between, ``decide`` is asked again with the new state.
    - **Freshness**: ``view`` shows every change that was acknowledged anywhere before it was called.
    - Looking writes nothing.

    (A V1 directory has no place for more than one object's state: there, one change is one atomic step.)

    All raise `StoreUnavailable`, `AccessDenied`, and `Damaged` where what is stored is not a catalog. Instances may be
    shared between threads.
    """

    def view(self) -> CatalogView:
        """The catalog as it is now."""

    def recent(self) -> CatalogView:
        """The catalog as it was when it was last looked at, which costs no look at the store."""

    def apply(self, decide: Decision[Result]) -> tuple[CatalogView, Result]:
        """Make the changes that ``decide`` returns, atomically. Without changes nothing is written.

        Args:
            decide: May be called several times, also from another thread, and must not act. What it raises about the
                current state ends the call, and nothing is written.

        Returns:
            The catalog after the changes, and the result of the decision that was applied.

        Raises:
            ConcurrentModification: Other writers kept winning. Nothing was written.
        """

    def optimize(self) -> None:
        """Bring what is stored into the shape in which others find things fast; no entry changes. Idempotent.

        Raises `Unsupported` where there is nothing to be done about it.
        """

    def clean_up(self) -> int:
        """Remove what is stored of earlier states that nobody can be looking at any more; how many. Idempotent."""

    def leftovers(self) -> Sequence[ObjectInfo]:
        """Files that no state needs: of writers who were stopped before they had made one, or who are at it.

        What is among them still once another change has been made, no writer of ours can make a state of any more. A
        native one can, for it publishes the same file behind the change.
        """

    def close(self) -> None:
        """Give back what is held. Idempotent."""
