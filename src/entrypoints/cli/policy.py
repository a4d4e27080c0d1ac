"""``lancekeep policy``: what a policy decides, and why; its grants."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from lancekeep.adapters.authorization.policy_edits import Changed, PolicyEdits
from lancekeep.adapters.authorization.policy_file import read_policy
from lancekeep.domain.authorization import Policy, Principal
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.rights import OPERATIONS, name_of, role_of
from lancekeep.entrypoints.cli.command import Command
from lancekeep.entrypoints.cli.console import print_line, print_table
from lancekeep.entrypoints.cli.options import as_json
from lancekeep.entrypoints.cli.output import print_report
from lancekeep.entrypoints.explanation import explained, grant_document, grant_title, quota_document

_FEW = 3
"""So many rights of a question are shown; of a role, only the missing ones."""

T = TypeVar("T")


@click.group()
def policy() -> None:
    """Explain what a policy decides, and change its grants."""


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


def _present(command: Callable[..., T]) -> Callable[..., T]:
    return click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))(command)


@policy.command(cls=Command)
@_present
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
    rules = read_policy(file)
    try:
        found = explained(rules, who, operation, what)
    except InvalidInput as error:
        raise click.BadParameter(str(error), param_hint="OPERATION") from error
    if as_json:
        print_report(found.document())
    else:
        print_line(found.sentence)
        for each in found.needed if len(found.needed) <= _FEW else found.missing:
            numbers = ", ".join(map(str, found.numbers(each)))
            print_line(f"  {each.right}: {f'grant {numbers}' if numbers else 'no grant'}")
        for grant in found.found:
            print_line(f"  {grant_title(grant)}")
        for quota in found.quotas:
            print_line(f"  {quota.title}")
    if found.missing or found.reason:
        click.get_current_context().exit(1)


@policy.command(cls=Command)
@_present
@as_json
def show(file: Path, as_json: bool) -> None:
    """List the grants and quotas of a policy with their numbers."""
    rules = read_policy(file)
    if as_json:
        print_report(_document(rules))
        return
    for grant in rules.grants:
        print_line(grant_title(grant))
    for quota in rules.quotas:
        print_line(quota.title)


@policy.command(cls=Command)
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("object_id", metavar="OBJECT", default="")
@click.option("--role", metavar="ROLE", help="read, write or admin; or give rights.")
@click.option("--right", "rights", multiple=True, metavar="RIGHT", help="A right or an operation; may be repeated.")
@click.option("--principal", "principals", multiple=True, metavar="NAME", help="key:NAME, jwt:SUBJECT or '*'.")
@click.option("--group", "groups", multiple=True, metavar="GROUP", help="A group; may be repeated.")
@click.option("--column", "columns", multiple=True, metavar="NAME", help="A column that may be read; others may not.")
@click.option("--rows", metavar="CONDITION", help="The rows that may be read.")
@as_json
def add(file: Path, object_id: str, as_json: bool, **given: Any) -> None:
    """Add a grant on OBJECT to the end of a policy.

    Without OBJECT, the grant is on the whole catalog. Comments and other grants stay as they are. Servers read the
    policy again.
    """
    fields = {name: list(each) if isinstance(each, tuple) else each for name, each in given.items() if each}
    _show(PolicyEdits(file).add({**fields, "on": object_id}), "Added", as_json)


@policy.command(cls=Command)
@_present
@click.argument("number", type=int)
@as_json
def remove(file: Path, number: int, as_json: bool) -> None:
    """Remove the grant NUMBER of a policy.

    `lancekeep policy show` has the numbers; the grants after it move up by one. Comments between the lines of the grant
    are removed with it and shown; other comments stay.
    """
    _show(PolicyEdits(file).remove(number), "Removed", as_json)


def _show(changed: Changed, done: str, as_json: bool) -> None:
    assert changed.grant is not None
    if as_json:
        print_report({done.lower(): grant_document(changed.grant), "removed_text": changed.removed})
    else:
        print_line(f"{done} {grant_title(changed.grant)}.")
        if changed.removed:
            print_line(changed.removed.rstrip())
    if not changed.policy.has_admin:
        click.echo("No grant has the role admin on the whole catalog now; no caller can administer it.", err=True)


def _document(rules: Policy) -> dict[str, Any]:
    return {
        "grants": [grant_document(each) for each in rules.grants],
        "quotas": [quota_document(each) for each in rules.quotas],
    }
