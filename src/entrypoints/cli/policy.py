"""``lancekeep policy``: what a policy decides, and why."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from lancekeep.adapters.authorization.policy_file import read_policy
from lancekeep.domain.authorization import Decision, Grant, Principal
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.restrictions import RESTRICTED, RIGHTS, Restriction, united
from lancekeep.domain.rights import OPERATIONS, RIGHT_OF, ROLES, Permission, Right, name_of, role_of
from lancekeep.entrypoints.cli.command import Command
from lancekeep.entrypoints.cli.console import print_line, print_table
from lancekeep.entrypoints.cli.options import as_json
from lancekeep.entrypoints.cli.output import print_report
from lancekeep.entrypoints.rest.security.permissions import Kind, plain_needs

_SEVERAL = ("rename_table", "undrop_table", "register_table", "create_materialized_view")
"""The operations that need rights on two objects; batches need the rights for their members."""

_FEW = 3
"""So many rights of a question are shown; of a role, only the missing ones."""


@click.group()
def policy() -> None:
    """Explain what a policy decides."""


@policy.command(cls=Command)
@as_json
def rights(as_json: bool) -> None:
    """List the rights of policies, with their operations.

    The list names the weakest role that has each right.
    """
    if as_json:
        print_report(
            [
                {"right": right.value, "role": role_of(right), "operations": list(map(name_of, operations))}
                for right, operations in OPERATIONS.items()
            ]
        )
        return
    rows = [(right, role_of(right), ", ".join(map(name_of, each))) for right, each in OPERATIONS.items()]
    print_table("Rights", ("right", "weakest role", "operations"), rows)


@policy.command(cls=Command)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("principal")
@click.argument("operation")
@click.argument("object_id", metavar="OBJECT", default="")
@click.option("--group", "groups", multiple=True, metavar="GROUP", help="A group of the principal; may be repeated.")
@as_json
def test(file: Path, principal: str, operation: str, object_id: str, groups: tuple[str, ...], as_json: bool) -> None:
    """Show whether PRINCIPAL may do OPERATION with OBJECT, and what decides.

    PRINCIPAL is key:NAME or jwt:SUBJECT. OPERATION is a right, the role write or admin, or an operation such as
    DropTable. Without OBJECT, the question is about the whole catalog. The exit code is 1 if the policy refuses. The
    keys of the server give groups to a key, and tokens carry them: name them by --group. The quotas that limit
    PRINCIPAL in OBJECT are shown, too; only the server knows how much of them is used.
    """
    who, what = Principal(principal, frozenset(groups)), ObjectId.of(object_id)
    needed, listing = _needed(operation, what)
    rules = read_policy(file)
    found = rules.covering(who, what, below=listing)
    missing = [each for each in needed if not any(each.is_in(grant.rights) for grant in found)]
    decision = Decision.ALLOWED if not missing else Decision.DENIED if found else Decision.HIDDEN
    within = [] if missing else _within(needed, found)
    restriction = united(each.restriction for each in within if each.restriction is not None)
    reason = _refusal(operation, needed, restriction) if within else ""
    quotas = [each for each in rules.limiting(who) if each.covers(what)]
    if within:
        decision = Decision.DENIED if reason else Decision.RESTRICTED
    if as_json:
        rights = [
            {"right": each.right.value, "grants": [grant.number for grant in found if each.is_in(grant.rights)]}
            for each in needed
        ]
        role = max((role_of(each.right) for each in needed), key=list(ROLES).index)
        grants = [_document(each) for each in found]
        report = {"decision": decision.value, "needs": role, "rights": rights, "on": str(what), "grants": grants}
        report["quotas"] = [
            {"quota": each.number, "on": str(each.subtree), "tables": each.tables, "bytes": each.bytes}
            for each in quotas
        ]
        print_report(report | ({"restriction": str(restriction or ""), "reason": reason} if within else {}))
    else:
        explained = _explained(operation, who, what, missing, found)
        if within:
            explained = f"Refused: {reason}." if reason else f"{explained[:-1]} within a restriction: {restriction}."
        print_line(explained)
        for each in needed if len(needed) <= _FEW else missing:
            numbers = [str(grant.number) for grant in found if each.is_in(grant.rights)]
            print_line(f"  {each.right}: {'grant ' + ', '.join(numbers) if numbers else 'no grant'}")
        for grant in found:
            shown = _document(grant)
            limits = "" if grant.restriction is None else f" within {grant.restriction}"
            print_line(
                f"  grant {grant.number}: {grant.title} on {grant.subtree} for {', '.join(shown['for'])}{limits}"
            )
        for quota in quotas:
            print_line(f"  {quota.title}")
    if missing or reason:
        click.get_current_context().exit(1)


def _needed(question: str, what: ObjectId) -> tuple[Sequence[Permission], bool]:
    """Return the permissions that a right, role or operation needs, and whether grants below the object suffice."""
    lower = question.lower()
    right = next((each for each in Right if each.value == lower), None)
    if right is not None:
        return [Permission(right)], right in (Right.LIST, Right.CONNECT)
    if lower in ROLES:
        return [Permission(each) for each in Right if each in ROLES[lower]], False
    operations = {key: each for each in RIGHT_OF for key in (each, name_of(each).lower())}
    operation = operations.get(lower)
    if operation is not None and operation not in _SEVERAL:
        found = plain_needs(operation, what)
        return [each.permission for each in found], found[0].kind is Kind.LISTING
    raise click.BadParameter(
        f"{question!r} is neither a right, a role nor an operation that needs rights on one object. Give a right, "
        "write or admin, or an operation such as DescribeTable; `lancekeep policy rights` lists them, and "
        "docs/security.md says what the others need",
        param_hint="OPERATION",
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


def _explained(
    question: str, who: Principal, what: ObjectId, missing: Sequence[Permission], found: Sequence[Grant]
) -> str:
    if not missing:
        return f"Allowed: {who.name} may {question} {what}."
    if not found:
        return f"Refused: {who.name} has no right on {what}, which therefore looks absent to it."
    right = missing[0].right
    titles = "; ".join(grant.title for grant in found)
    return f"Refused: {who.name} needs {right} (role {role_of(right)}) on {what}, and has {titles}."


def _document(grant: Grant) -> dict[str, Any]:
    whom = [*sorted(grant.principals), *(f"group {name}" for name in sorted(grant.groups))]
    return {
        "grant": grant.number,
        "role": grant.role,
        "rights": sorted(grant.rights),
        "on": str(grant.subtree),
        "for": whom,
        **({} if grant.restriction is None else {"restriction": str(grant.restriction)}),
    }
