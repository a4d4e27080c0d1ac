"""The port of authorization."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from typing import Protocol

from lancekeep.domain.authorization import Decision, Principal
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.rights import Permission


class Authorizer(Protocol):
    """Decide what principals may do with the objects of a catalog.

    Every adapter keeps these invariants:

    - **Default deny**: a principal without a grant has no access to any object.
    - **Subtrees**: a right on an object holds for everything below it.
    - **Agreement**: ``decide`` answers `Decision.ALLOWED` if ``rights`` contains the permission, and
      `Decision.HIDDEN` if ``rights`` is empty.
    - **Hiding**: if ``decide`` answers `Decision.HIDDEN` and no object below is permitted, ``sees`` is False.

    Instances may be shared between threads. The methods are called several times per request, so they send no
    requests.
    """

    def state(self) -> object:
        """Return what all decisions follow from.

        While it is the same object, no decision changes.
        """

    def decide(self, principal: Principal, permission: Permission, object_id: ObjectId) -> Decision:
        """Return whether a principal has a permission on an object.

        The object need not exist.
        """

    def rights(self, principal: Principal, object_id: ObjectId) -> Set[str]:
        """Return the rights of a principal on an object, and its single operations."""

    def sees(self, principal: Principal, object_id: ObjectId) -> bool:
        """Return whether a principal has a right on an object, or on an object below it."""

    def subtrees(
        self, principal: Principal, object_id: ObjectId, required: Collection[Permission]
    ) -> Sequence[ObjectId]:
        """Return the objects in an object on which some permissions hold.

        These are the object itself, or subtrees below it.

        Returns:
            Subtrees none of which covers another. Listings below the object show names in them or above them alone.
        """
