"""``lancekeep policy``: what a policy decides, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from lancekeep.adapters.authorization.policy_file import read_policy
from lancekeep.adapters.rest.routes import EXTENSIONS, ROUTES
from lancekeep.domain.authorization import Action, Decision, Grant, Principal
from lancekeep.domain.identifiers import ObjectId
from lancekeep.entrypoints.cli.command import Command
from lancekeep.entrypoints.cli.console import print_line
from lancekeep.entrypoints.cli.options import as_json
from lancekeep.entrypoints.cli.output import print_report
from lancekeep.entrypoints.rest.security.permissions import CREATING, SIMPLE, Kind


@click.group()
def policy() -> None:
    """Explain what a policy decides."""


@policy.command(cls=Command)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("principal")
@click.argument("operation")
@click.argument("object_id", metavar="OBJECT", default="")
@click.option("--group", "groups", multiple=True, metavar="GROUP", help="A group of the principal; may be repeated.")
@as_json
def test(file: Path, principal: str, operation: str, object_id: str, groups: tuple[str, ...], as_json: bool) -> None:
    """Show whether PRINCIPAL may do OPERATION with OBJECT, and which grants decide.

    PRINCIPAL is key:NAME or jwt:SUBJECT. OPERATION is read, write or admin, or an operation such as DropTable. Without
    OBJECT, the question is about the whole catalog. The exit code is 1 if the policy refuses. The keys of the server
    give groups to a key, and tokens carry them: name them by --group.
    """
    who, what = Principal(principal, frozenset(groups)), ObjectId.of(object_id)
    action, kind = _needed(operation)
    rules = read_policy(file)
    grants = rules.deciding(who, what)
    if kind is Kind.LISTING:
        decision = Decision.ALLOWED if rules.sees(who, what) else Decision.HIDDEN
    else:
        decision = rules.decide(who, action, what)
    if as_json:
        print_report(
            {"decision": decision.value, "needs": action.role, "on": str(what), "grants": list(map(_document, grants))}
        )
    else:
        print_line(_explained(decision, action, who, what, grants))
        for grant in grants:
            print_line(f"  {grant.role.role} on {grant.subtree} for {', '.join(_document(grant)['for'])}")
    if decision is not Decision.ALLOWED:
        click.get_current_context().exit(1)


def _needed(operation: str) -> tuple[Action, Kind | None]:
    """Return the role that an operation needs on its object."""
    for action in Action:
        if operation.lower() == action.role:
            return action, None
    names = {route.operation_id.lower(): route.operation for route in (*ROUTES, *EXTENSIONS)}
    name = names.get(operation.lower(), operation)
    if name in SIMPLE:
        return SIMPLE[name]
    if name in CREATING or name == "create_namespace":
        return Action.WRITE, Kind.NEW
    raise click.BadParameter(
        f"{operation!r} is neither a role nor an operation that needs a role on one object. Give read, write or "
        "admin, or an operation such as DescribeTable; docs/security.md says what the others need",
        param_hint="OPERATION",
    )


def _explained(decision: Decision, action: Action, who: Principal, what: ObjectId, grants: list[Grant]) -> str:
    match decision:
        case Decision.ALLOWED:
            return f"Allowed: {who.name} may {action.role} {what}."
        case Decision.DENIED:
            return f"Refused: {who.name} needs {action.role} on {what}, and has {grants[0].role.role}."
    return f"Refused: {who.name} has no role on {what}, which therefore looks absent to it."


def _document(grant: Grant) -> dict[str, Any]:
    whom = [*sorted(grant.principals), *(f"group {name}" for name in sorted(grant.groups))]
    return {"role": grant.role.role, "on": str(grant.subtree), "for": whom}
