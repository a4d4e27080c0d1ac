"""The port of authorization."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lancekeep.domain.authorization import Action, Decision, Principal
from lancekeep.domain.identifiers import ObjectId


class Authorizer(Protocol):
    """Decide what principals may do with the objects of a catalog.

    Every adapter keeps these invariants:

    - **Default deny**: a principal without a grant has no access to any object.
    - **Subtrees**: access to an object includes everything below it.
    - **Order**: a principal that may do an action may do the weaker actions, too.
    - **Hiding**: if ``decide`` answers `Decision.HIDDEN` and no object below is permitted, ``sees`` is False.

    Instances may be shared between threads. The methods are called several times per request, so they send no
    requests.
    """

    def state(self) -> object:
        """Return what all decisions follow from.

        While it is the same object, no decision changes.
        """

    def decide(self, principal: Principal, action: Action, object_id: ObjectId) -> Decision:
        """Return whether a principal may do something with an object.

        The object need not exist.
        """

    def sees(self, principal: Principal, object_id: ObjectId) -> bool:
        """Return whether a listing shows an object.

        A listing shows the object if the object, or an object below it, is permitted.
        """

    def subtrees(self, principal: Principal, object_id: ObjectId) -> Sequence[ObjectId]:
        """Return what of an object is permitted: itself, or subtrees below it.

        Returns:
            Subtrees none of which covers another. Listings below the object show names in them or above them alone.
        """
