"""The port of authorization."""

from __future__ import annotations

from collections.abc import Collection, Sequence, Set
from typing import Protocol

from lancekeep.domain.authorization import Decision, Grant, Principal, Quota
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.rights import Permission


class Authorizer(Protocol):
    """Decide what principals may do with the objects of a catalog.

    Every adapter keeps these invariants:

    - **Default deny**: a principal without a grant has no access to any object.
    - **Subtrees**: a right on an object holds for everything below it.
    - **Agreement**: ``decide`` answers `Decision.ALLOWED` if ``rights`` contains the permission, `Decision.RESTRICTED`
      if only a grant of ``restricted`` has it, and `Decision.HIDDEN` if the principal has no grant on the object.
    - **Restrictions add nothing**: what a restricted grant permits is in ``restricted`` alone. Of its rights,
      ``rights`` and ``subtrees`` have the listings of names.
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
        """Return the rights and single operations of a principal on an object.

        Those that hold within a restriction alone are not among them.
        """

    def restricted(self, principal: Principal, object_id: ObjectId) -> Sequence[Grant]:
        """Return the grants on an object that hold within a restriction."""

    def limiting(self, principal: Principal) -> Sequence[Quota]:
        """Return the quotas that limit a principal."""

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
