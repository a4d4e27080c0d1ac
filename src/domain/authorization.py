"""Authorization: who may do what with which object, decided by a policy.

Grants only add permissions. A grant covers an object and everything below it, and a role includes the weaker ones.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum

import attrs

from lancekeep.domain.identifiers import ObjectId

EVERYONE = "*"
"""The principal in a grant that stands for every authenticated principal."""


class Action(IntEnum):
    """What an operation does with an object.

    The role of the same name permits it and the weaker actions.
    """

    READ = 1
    WRITE = 2
    ADMIN = 3

    @property
    def role(self) -> str:
        """The name of the weakest role that permits the action."""
        return self.name.lower()


class Decision(StrEnum):
    """The answer to a request for permission."""

    ALLOWED = "allowed"
    DENIED = "denied"
    """The principal may read the object, but not do this with it."""
    HIDDEN = "hidden"
    """The principal must not learn whether the object exists."""


@attrs.frozen
class Principal:
    """An authenticated caller.

    Attributes:
        name: Its name with the kind of its credential, such as ``key:ada`` or ``jwt:ada``, so that no issuer of tokens
            can take the name of a key.
        groups: The groups of the caller.
    """

    name: str
    groups: frozenset[str] = frozenset()


@attrs.frozen
class Grant:
    """A role on a subtree for principals and groups.

    Attributes:
        role: The strongest action that the grant permits.
        subtree: The object that the grant covers, with everything below it; the root for the whole catalog.
        principals: The names of principals; `EVERYONE` for all principals.
        groups: The names of groups.
    """

    role: Action
    subtree: ObjectId
    principals: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()

    def names(self, principal: Principal) -> bool:
        """Return whether the grant is for a principal."""
        return EVERYONE in self.principals or principal.name in self.principals or bool(self.groups & principal.groups)


@attrs.frozen
class Policy:
    """The grants of a catalog. Without a grant, a principal has no access."""

    grants: tuple[Grant, ...] = ()

    def state(self) -> Policy:
        """Return what all decisions follow from."""
        return self

    def deciding(self, principal: Principal, object_id: ObjectId) -> list[Grant]:
        """Return the grants on an object for a principal, the strongest first."""
        found = [each for each in self.grants if _covers(each.subtree, object_id) and each.names(principal)]
        return sorted(found, key=lambda grant: -grant.role)

    def role(self, principal: Principal, object_id: ObjectId) -> Action | None:
        """Return the strongest role of a principal on an object; None if it has none."""
        found = (each.role for each in self.grants if _covers(each.subtree, object_id) and each.names(principal))
        return max(found, default=None)

    def sees(self, principal: Principal, object_id: ObjectId) -> bool:
        """Return whether a listing shows an object.

        A listing shows the object if the principal has a role on the object, or on an object below it.
        """
        return any(
            (_covers(each.subtree, object_id) or _covers(object_id, each.subtree)) and each.names(principal)
            for each in self.grants
        )

    def subtrees(self, principal: Principal, object_id: ObjectId) -> list[ObjectId]:
        """Return what of an object is permitted: itself, or subtrees below it.

        None covers another; they are sorted by their names.
        """
        permitted = {
            max(each.subtree, object_id, key=lambda one: len(one.names))
            for each in self.grants
            if (_covers(each.subtree, object_id) or _covers(object_id, each.subtree)) and each.names(principal)
        }
        found: list[ObjectId] = []
        for subtree in sorted(permitted, key=lambda one: one.names):
            if not found or not _covers(found[-1], subtree):
                found.append(subtree)
        return found

    def decide(self, principal: Principal, action: Action, object_id: ObjectId) -> Decision:
        """Return whether a principal may do something with an object."""
        role = self.role(principal, object_id)
        if role is None:
            return Decision.HIDDEN
        return Decision.ALLOWED if role >= action else Decision.DENIED


def _covers(subtree: ObjectId, object_id: ObjectId) -> bool:
    return object_id.names[: len(subtree.names)] == subtree.names
