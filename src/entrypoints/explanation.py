"""What a policy decides about a question, and why.

``lancekeep policy test`` and ``ExplainDecision`` show it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from lancekeep.domain.authorization import Decision, Grant, Policy, Principal, Quota
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.restrictions import RESTRICTED, RIGHTS, Restriction, united
from lancekeep.domain.rights import OF_ADMINS, RIGHT_OF, ROLES, Permission, Right, name_of, role_of

_SEVERAL = ("rename_table", "undrop_table", "register_table", "create_materialized_view")
"""The operations that need rights on two objects; batches need the rights for their members."""


_OF_ADMINS = frozenset(key for each in OF_ADMINS for key in (each, name_of(each).lower()))
"""The operations on keys and the policy, which need every right on the whole catalog."""


@attrs.frozen
class Explanation:
    """What a policy decides about a question.

    Attributes:
        question: The right, role or operation.
        who: The principal.
        what: The object.
        decision: The decision.
        needed: The permissions that the question needs.
        missing: Those that no grant has.
        found: The grants on the object for the principal.
        within: Whether the decision holds within a restriction alone, or is refused for it.
        restriction: The restriction; None if grants do not combine.
        reason: Why the question is refused within the restriction; empty if it is not.
        quotas: The quotas that limit the principal in the object.
    """

    question: str
    who: Principal
    what: ObjectId
    decision: Decision
    needed: Sequence[Permission]
    missing: Sequence[Permission]
    found: Sequence[Grant]
    within: bool
    restriction: Restriction | None
    reason: str
    quotas: Sequence[Quota]

    @property
    def sentence(self) -> str:
        """The decision as a sentence."""
        if self.reason:
            return f"Refused: {self.reason}."
        if not self.missing:
            within = f" within a restriction: {self.restriction}" if self.within else ""
            return f"Allowed: {self.who.name} may {self.question} {self.what}{within}."
        if not self.found:
            return f"Refused: {self.who.name} has no right on {self.what}, which therefore looks absent to it."
        right = self.missing[0].right
        titles = "; ".join(grant.title for grant in self.found)
        return f"Refused: {self.who.name} needs {right} (role {role_of(right)}) on {self.what}, and has {titles}."

    def numbers(self, permission: Permission) -> list[int]:
        """Return the numbers of the grants that have a permission."""
        return [grant.number for grant in self.found if permission.is_in(grant.rights)]

    def document(self) -> dict[str, Any]:
        """Return the explanation as JSON."""
        role = max((role_of(each.right) for each in self.needed), key=list(ROLES).index)
        report: dict[str, Any] = {
            "decision": self.decision.value,
            "needs": role,
            "rights": [{"right": each.right.value, "grants": self.numbers(each)} for each in self.needed],
            "on": str(self.what),
            "grants": [grant_document(each) for each in self.found],
            "quotas": [quota_document(each) for each in self.quotas],
        }
        return report | ({"restriction": str(self.restriction or ""), "reason": self.reason} if self.within else {})


def explained(rules: Policy, who: Principal, question: str, what: ObjectId) -> Explanation:
    """Return what a policy decides about a right, a role or an operation.

    Raises:
        InvalidInput: The question is none of these.
    """
    if question.lower() in _OF_ADMINS:
        what = ObjectId()
    needed, listing = _needed(question, what)
    found = rules.covering(who, what, below=listing)
    missing = [each for each in needed if not any(each.is_in(grant.rights) for grant in found)]
    decision = Decision.ALLOWED if not missing else Decision.DENIED if found else Decision.HIDDEN
    within = [] if missing else _within(needed, found)
    restriction = united(each.restriction for each in within if each.restriction is not None)
    reason = _refusal(question, needed, restriction) if within else ""
    quotas = [each for each in rules.limiting(who) if each.covers(what)]
    if within:
        decision = Decision.DENIED if reason else Decision.RESTRICTED
    return Explanation(question, who, what, decision, needed, missing, found, bool(within), restriction, reason, quotas)


def grant_document(grant: Grant) -> dict[str, Any]:
    """Return a grant as JSON."""
    whom = [*sorted(grant.principals), *(f"group {name}" for name in sorted(grant.groups))]
    return {
        "grant": grant.number,
        "role": grant.role,
        "rights": sorted(grant.rights),
        "on": str(grant.subtree),
        "id": list(grant.subtree.names),
        "for": whom,
        "principals": sorted(grant.principals),
        "groups": sorted(grant.groups),
        **({} if grant.restriction is None else {"restriction": str(grant.restriction)}),
    }


def quota_document(quota: Quota) -> dict[str, Any]:
    """Return a quota as JSON."""
    return {"quota": quota.number, "on": str(quota.subtree), "tables": quota.tables, "bytes": quota.bytes}


def grant_title(grant: Grant) -> str:
    """Return a grant as a line of text."""
    limits = "" if grant.restriction is None else f" within {grant.restriction}"
    return (
        f"grant {grant.number}: {grant.title} on {grant.subtree} for {', '.join(grant_document(grant)['for'])}{limits}"
    )


def _needed(question: str, what: ObjectId) -> tuple[Sequence[Permission], bool]:
    """Return the permissions that a right, role or operation needs, and whether grants below the object suffice."""
    lower = question.lower()
    right = next((each for each in Right if each.value == lower), None)
    if right is not None:
        return [Permission(right)], right in (Right.LIST, Right.CONNECT)
    if lower in _OF_ADMINS:
        return [Permission(each) for each in reversed(Right)], False
    if lower in ROLES:
        return [Permission(each) for each in Right if each in ROLES[lower]], False
    operations = {key: each for each in RIGHT_OF for key in (each, name_of(each).lower())}
    operation = operations.get(lower)
    if operation is not None and operation not in _SEVERAL:
        # Loads the models of all requests, which take a second; commands that show grants do without.
        from lancekeep.entrypoints.rest.security.permissions import Kind, plain_needs

        found = plain_needs(operation, what)
        return [each.permission for each in found], found[0].kind is Kind.LISTING
    raise InvalidInput(
        f"{question[:100]!r} is neither a right, a role nor an operation that needs rights on one object. Give a "
        "right, write or admin, or an operation such as DescribeTable; `lancekeep policy rights` lists them, and "
        "docs/security.md says what the others need"
    )


def _within(needed: Sequence[Permission], found: Sequence[Grant]) -> list[Grant]:
    """Return the restricted grants that decide, if no other grant has a permission."""
    short = [each for each in needed if not any(each.is_in(grant.free) for grant in found)]
    return [grant for grant in found if any(each.is_in(grant.rights) for each in short) and grant.restriction]


def _refusal(question: str, needed: Sequence[Permission], restriction: Restriction | None) -> str:
    """Return why a question is refused within a restriction; empty if it is not."""
    if restriction is None:
        return "several grants have different columns and different rows, which do not combine"
    lower = question.lower()
    if lower in {right.value for right in RIGHTS}:
        return ""  # of a right, the operations that can be restricted
    if len(needed) == 1 and lower in {key for each in RESTRICTED for key in (each, name_of(each).lower())}:
        return ""
    operations = ", ".join(map(name_of, RESTRICTED))
    return f"{question} shows or changes more than {restriction}; permitted are {operations}"
