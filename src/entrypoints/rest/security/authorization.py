"""Authorization of operations: permissions, hidden objects, listings."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from functools import partial
from typing import Any

import attrs
from lance_namespace import errors as api_errors

from lancekeep.application.entries.base_paths import restricted
from lancekeep.application.events.cloud_events import event_of, fields_of
from lancekeep.domain.authorization import Decision, Principal
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.events import visible
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.restrictions import RESTRICTED, Restriction, united
from lancekeep.domain.rights import Permission, Right, name_of, permission_of, role_of
from lancekeep.entrypoints.namespace.extensions import dropped_page
from lancekeep.entrypoints.permitted import Hidden, PermittedNames
from lancekeep.entrypoints.rest.requests import Call
from lancekeep.entrypoints.rest.security.permissions import Kind, Need, gained, move_of, needs
from lancekeep.ports.authorization import Authorizer

_NAMES = {"list_namespaces": "namespaces", "list_tables": "tables", "list_all_tables": "tables"}
"""The field of the response that holds the names, by operation."""


@attrs.frozen
class Authorization:
    """Wraps the call of every operation: refuses it without permission.

    An object that the principal may not read looks absent: the error equals the error of a missing object, because the
    errors of missing objects are written here, too. A listing is filtered before it is cut into pages, so neither its
    length nor its page token reveals a hidden name. A base path in a manifest is permitted if the principal may read
    the table that it leads into. A table moves only to places where the principal has no further right. A permission
    that holds within a restriction of columns and rows is enough for the operations that can be performed within it.
    """

    authorizer: Authorizer

    def __call__(self, call: Call, proceed: Callable[[Call], Any]) -> Any:
        principal = call.principal
        if not isinstance(principal, Principal):
            raise api_errors.UnauthenticatedError("The request has no principal.")
        required = needs(call.operation, call.request)
        within = [need for need in required if self._require(principal, need, required)]
        if within:
            restriction = self._restriction(principal, call.operation, within[0], required)
            call.progress.restricted.update(restriction.kinds)
            call = attrs.evolve(call, restriction=restriction)
        self._require_no_gain(principal, call)
        try:
            with restricted(partial(self._may_read, principal)):
                if call.operation == "list_dropped_tables":
                    return self._dropped(call, principal, proceed)
                if call.operation == "list_events":
                    return self._events(call, principal, proceed)
                if call.operation == "list_quotas":
                    return self._quotas(call, principal, proceed)
                if call.operation in _NAMES:
                    return self._listing(call, principal, proceed)
                return proceed(call)
        except api_errors.TableNotFoundError as error:
            raise absence(required, of_table=True) from error
        except api_errors.NamespaceNotFoundError as error:
            raise absence(required, of_table=False) from error

    def _require(self, principal: Principal, need: Need, required: Sequence[Need]) -> bool:
        """Return whether a permission holds within a restriction alone; refuse the request without it."""
        if need.kind is Kind.LISTING:
            if not self.authorizer.sees(principal, need.object_id):
                raise absence(required, of_table=False) from Hidden(principal, need.right, need.object_id)
            if self.authorizer.subtrees(principal, need.object_id, [need.permission]):
                return False
            raise _refusal(principal, need)
        decision = self.authorizer.decide(principal, need.permission, need.object_id)
        if decision in (Decision.ALLOWED, Decision.RESTRICTED):
            return decision is Decision.RESTRICTED
        if decision is Decision.HIDDEN:
            of_table = need.kind is Kind.TABLE
            shown = need.object_id.parent if need.kind is Kind.NEW else need.object_id
            if of_table or not self.authorizer.sees(principal, shown):
                raise absence(required, of_table=of_table) from Hidden(principal, need.right, need.object_id)
        raise _refusal(principal, need)

    def _restriction(self, principal: Principal, operation: str, need: Need, required: Sequence[Need]) -> Restriction:
        """Return the restriction within which a request may be performed.

        Raises:
            PermissionDeniedError: The operation cannot be performed within a restriction, or the grants do not combine.
        """
        grants = self.authorizer.restricted(principal, need.object_id)
        grants = [each for each in grants if need.permission.is_in(each.rights)]
        if operation not in RESTRICTED or len(required) > 1:
            kinds = sorted({kind for each in grants if each.restriction for kind in each.restriction.kinds})
            raise api_errors.PermissionDeniedError(
                f"{principal.name} may read some {' and '.join(kinds)} of {need.object_id} alone, and "
                f"{name_of(operation)} shows or changes more; use {', '.join(map(name_of, RESTRICTED))}, or ask an "
                "administrator for a grant without columns and rows. Nothing was done."
            )
        found = united(each.restriction for each in grants if each.restriction is not None)
        if found is None:
            raise api_errors.PermissionDeniedError(
                f"{principal.name} has several grants on {need.object_id} with different columns and different rows, "
                "which do not combine; ask an administrator for grants with the same columns or the same rows. Nothing "
                "was done."
            )
        return found

    def _require_no_gain(self, principal: Principal, call: Call) -> None:
        """Refuse to move a table to a place where the principal has rights that it lacks on the table."""
        moved = move_of(call.operation, call.request)
        if moved is None:
            return
        before, after = (self.authorizer.rights(principal, each) for each in moved)
        source, target = moved
        self._require_no_wider(principal, source, target, before)
        more = gained(before, after)
        if more:
            raise api_errors.PermissionDeniedError(
                f"{principal.name} needs the right {more[0]} on {source}, because it has this right on {target}, where "
                "the request moves the table to; ask an administrator for it"
            )

    def _require_no_wider(self, principal: Principal, source: ObjectId, target: ObjectId, before: Set[str]) -> None:
        """Refuse to move a table to a place where the principal may read other columns or rows of it."""
        had = {(each.restriction, each.rights) for each in self.authorizer.restricted(principal, source)}
        for each in self.authorizer.restricted(principal, target):
            if (each.restriction, each.rights) not in had and not each.rights <= before:
                raise api_errors.PermissionDeniedError(
                    f"{principal.name} may read columns or rows of {target}, where the request moves the table to, by "
                    f"a grant that it lacks on {source}; ask an administrator for it"
                )

    def _may_read(self, principal: Principal, table: ObjectId | None, source: ObjectId | None) -> bool:
        """Return whether a base path of a table may lead into a table.

        A branch reads its own table, for which the request has its rights. None is a place like a location that a
        request chooses.
        """
        if source is not None and source == table:
            return True
        right, where = (Right.ADMINISTER, ObjectId()) if source is None else (Right.READ, source)
        return self.authorizer.decide(principal, Permission(right), where) is Decision.ALLOWED

    def _dropped(self, call: Call, principal: Principal, proceed: Callable[[Call], Any]) -> Any:
        """List the dropped tables that the principal may list, without pages: their number is the operator's."""
        request: Any = call.request
        permission = permission_of(call.operation)

        def may_list(names: Sequence[str] | None) -> bool:
            return self.authorizer.decide(principal, permission, ObjectId.of(names)) is Decision.ALLOWED

        if may_list(request.id):
            return proceed(call)
        whole = request.model_copy(update={"limit": None})
        found = proceed(attrs.evolve(call, request=whole))["tables"]
        return dropped_page([each for each in found if may_list(each["id"])], request.limit)

    def _events(self, call: Call, principal: Principal, proceed: Callable[[Call], Any]) -> Any:
        """Return the events of objects that the principal may describe."""
        permission = permission_of(call.operation)

        def may_see(object_id: ObjectId) -> bool:
            return self.authorizer.decide(principal, permission, object_id) is Decision.ALLOWED

        answer = proceed(call)
        source = answer["source"]
        shown = visible(map(event_of, answer["events"]), may_see)
        return {**answer, "events": [fields_of(each, source) for each in shown]}

    def _quotas(self, call: Call, principal: Principal, proceed: Callable[[Call], Any]) -> Any:
        """Return the quotas of subtrees that the principal may describe."""
        permission = permission_of(call.operation)
        found = proceed(call)["quotas"]
        shown = [
            each
            for each in found
            if self.authorizer.decide(principal, permission, ObjectId.of(each["id"])) is Decision.ALLOWED
        ]
        return {"quotas": shown}

    def _listing(self, call: Call, principal: Principal, proceed: Callable[[Call], Any]) -> Any:
        request: Any = call.request
        namespace = ObjectId.of(request.id)
        subtrees = self.authorizer.subtrees(principal, namespace, [permission_of(call.operation)])
        if namespace in subtrees:
            return proceed(call)
        if request.limit is not None and request.limit < 1:
            raise InvalidInput(f"the limit is {request.limit}; give a positive number, or leave it out")
        field = _NAMES[call.operation]
        response: Any = None

        def read(after: str | None, limit: int) -> tuple[Sequence[str], str | None]:
            nonlocal response
            page = request.model_copy(update={"limit": limit, "page_token": after})
            response = proceed(attrs.evolve(call, request=page))
            return getattr(response, field), response.page_token

        whole = call.operation == "list_all_tables"
        permitted = PermittedNames.of_all(subtrees) if whole else PermittedNames.of_children(namespace, subtrees)
        names, token = permitted.page(read, request.page_token or None, request.limit)
        return response.model_copy(update={field: names, "page_token": token})


def _refusal(principal: Principal, need: Need) -> api_errors.LanceNamespaceError:
    return api_errors.PermissionDeniedError(
        f"{principal.name} needs the right {need.right} (role {role_of(need.right)}) on {need.object_id}; ask an "
        "administrator for it"
    )


def absence(required: Sequence[Need], *, of_table: bool) -> api_errors.LanceNamespaceError:
    """Return the error of a missing object; it depends on the request alone.

    Args:
        required: The permissions that the request needs.
        of_table: Whether the missing object is a table.
    """
    kinds = {(need.kind, need.object_id) for need in required}
    kind = required[0].kind if len(kinds) == 1 else Kind.TABLE if of_table else Kind.NEW
    objects = {need.object_id for need in required if need.kind is kind}
    if kind is Kind.TABLE:
        what = f"the table {objects.pop()}" if len(objects) == 1 else "a table that the request names"
        return api_errors.TableNotFoundError(f"Table not found: {what} does not exist")
    namespaces = {each.parent if kind is Kind.NEW else each for each in objects}
    what = f"the namespace {namespaces.pop()}" if len(namespaces) == 1 else "a namespace that the request names"
    return api_errors.NamespaceNotFoundError(f"Namespace not found: {what} does not exist")
