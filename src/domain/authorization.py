"""Authorization: who may do what with which object, decided by a policy.

Grants only add permissions. A grant covers an object and everything below it. Quotas limit what a subtree may hold.
"""

from __future__ import annotations

from collections.abc import Collection, Set
from enum import IntEnum, StrEnum

import attrs

from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.restrictions import Restriction, free_of
from lancekeep.domain.rights import ROLES, Permission, Right

EVERYONE = "*"
"""The principal in a grant that stands for every authenticated principal."""


class Action(IntEnum):
    """What the holder of credentials may do with the objects of a table."""

    READ = 1
    WRITE = 2
    DELETE = 3


class Decision(StrEnum):
    """The answer to a request for permission."""

    ALLOWED = "allowed"
    RESTRICTED = "restricted"
    """The principal has the permission within a restriction of columns or rows alone."""
    DENIED = "denied"
    """The principal has another right on the object."""
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
    """Rights on a subtree for principals and groups.

    Attributes:
        rights: The rights, with those that they include, and the names of single operations.
        subtree: The object that the grant covers, with everything below it; the root for the whole catalog.
        principals: The names of principals; `EVERYONE` for all principals.
        groups: The names of groups.
        number: The position of the grant in its file, from 1.
        restriction: The columns and rows that the grant permits to read; None for all.
    """

    rights: frozenset[str]
    subtree: ObjectId
    principals: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    number: int = 0
    restriction: Restriction | None = None

    @property
    def free(self) -> frozenset[str]:
        """The rights and operations that hold without a restriction."""
        return self.rights if self.restriction is None else free_of(self.rights)

    @property
    def role(self) -> str | None:
        """The role that has exactly these rights; None if there is none."""
        return next((name for name, rights in ROLES.items() if rights == self.rights), None)

    @property
    def title(self) -> str:
        """The name of the role, or the names of the rights and operations."""
        rights = [each for each in Right if each in self.rights and each is not Right.CONNECT]
        operations = sorted(self.rights.difference(Right))
        return f"role {self.role}" if self.role else ", ".join((*rights, *operations)) or str(Right.CONNECT)

    def names(self, principal: Principal) -> bool:
        """Return whether the grant is for a principal."""
        return _names(self.principals, self.groups, principal)


@attrs.frozen
class Quota:
    """How many tables and bytes a subtree may hold.

    All tables of the subtree count, also those that other principals created.

    Attributes:
        subtree: The object that the quota covers, with everything below it; the root for the whole catalog.
        tables: The maximum number of tables; None for any number.
        bytes: The bytes of the subtree above which it takes no more rows; None for any number.
        principals: The names of the principals that the quota limits; `EVERYONE` for all principals.
        groups: The names of the groups that it limits.
        number: The position of the quota in its file, from 1.
    """

    subtree: ObjectId
    tables: int | None = None
    bytes: int | None = None
    principals: frozenset[str] = frozenset((EVERYONE,))
    groups: frozenset[str] = frozenset()
    number: int = 0

    @property
    def title(self) -> str:
        """The limits and the subtree in words."""
        limits = (("tables", self.tables), ("bytes", self.bytes))
        shown = " and ".join(f"{limit:,} {what}" for what, limit in limits if limit is not None)
        return f"quota {self.number}: {shown} for {'the catalog' if self.subtree.is_root else self.subtree}"

    def covers(self, object_id: ObjectId) -> bool:
        """Return whether an object is in the subtree."""
        return _covers(self.subtree, object_id)

    def limits(self, principal: Principal) -> bool:
        """Return whether the quota limits a principal."""
        return _names(self.principals, self.groups, principal)


@attrs.frozen
class Policy:
    """The grants and quotas of a catalog. Without a grant, a principal has no access."""

    grants: tuple[Grant, ...] = ()
    quotas: tuple[Quota, ...] = ()

    def state(self) -> Policy:
        """Return what all decisions follow from."""
        return self

    @property
    def has_admin(self) -> bool:
        """Whether a grant has every right on the whole catalog."""
        return any(each.subtree.is_root and each.free.issuperset(Right) for each in self.grants)

    def is_admin(self, principal: Principal) -> bool:
        """Return whether a principal has every right on the whole catalog."""
        return self.rights(principal, ObjectId()).issuperset(Right)

    def covering(self, principal: Principal, object_id: ObjectId, *, below: bool = False) -> list[Grant]:
        """Return the grants on an object for a principal.

        Args:
            principal: The principal.
            object_id: The object.
            below: Whether grants on objects below it count, too.
        """
        return [
            each
            for each in self.grants
            if (_covers(each.subtree, object_id) or (below and _covers(object_id, each.subtree)))
            and each.names(principal)
        ]

    def rights(self, principal: Principal, object_id: ObjectId) -> frozenset[str]:
        """Return the rights and single operations of a principal on an object.

        Those that hold within a restriction alone are not among them.
        """
        return frozenset[str]().union(*(each.free for each in self.covering(principal, object_id)))

    def restricted(self, principal: Principal, object_id: ObjectId) -> list[Grant]:
        """Return the grants on an object for a principal that hold within a restriction."""
        return [each for each in self.covering(principal, object_id) if each.restriction is not None]

    def limiting(self, principal: Principal) -> list[Quota]:
        """Return the quotas that limit a principal."""
        return [each for each in self.quotas if each.limits(principal)]

    def sees(self, principal: Principal, object_id: ObjectId) -> bool:
        """Return whether a principal has a right on an object, or on an object below it."""
        return bool(self.covering(principal, object_id, below=True))

    def subtrees(self, principal: Principal, object_id: ObjectId, required: Collection[Permission]) -> list[ObjectId]:
        """Return the objects in an object on which some permissions hold.

        These are the object itself, or subtrees below it.

        None covers another; they are sorted by their names.
        """
        given: dict[ObjectId, frozenset[str]] = {}
        for each in self.covering(principal, object_id, below=True):
            subtree = max(each.subtree, object_id, key=lambda one: len(one.names))
            given[subtree] = given.get(subtree, frozenset()) | each.free
        found: list[ObjectId] = []
        above: list[tuple[ObjectId, frozenset[str]]] = []
        for subtree in sorted(given, key=lambda one: one.names):  # each object precedes what is below it
            while above and not _covers(above[-1][0], subtree):
                above.pop()
            rights = given[subtree] | (above[-1][1] if above else frozenset())
            above.append((subtree, rights))
            if (not found or not _covers(found[-1], subtree)) and all(each.is_in(rights) for each in required):
                found.append(subtree)
        return found

    def decide(self, principal: Principal, permission: Permission, object_id: ObjectId) -> Decision:
        """Return whether a principal has a permission on an object."""
        covering = self.covering(principal, object_id)
        if not covering:
            return Decision.HIDDEN
        if any(permission.is_in(each.free) for each in covering):
            return Decision.ALLOWED
        restricted = any(permission.is_in(each.rights) for each in covering)
        return Decision.RESTRICTED if restricted else Decision.DENIED


def _names(principals: Set[str], groups: Set[str], principal: Principal) -> bool:
    """Return whether names of principals and groups stand for a principal, too."""
    return EVERYONE in principals or principal.name in principals or bool(groups & principal.groups)


def _covers(subtree: ObjectId, object_id: ObjectId) -> bool:
    return object_id.names[: len(subtree.names)] == subtree.names
