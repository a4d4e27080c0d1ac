"""Authorization of operations: permissions, hidden objects, listings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from lancekeep.domain.rights import Permission, Right, permission_of, role_of
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
    the table that it leads into. A table moves only to places where the principal has no further right.
    """

    authorizer: Authorizer

    def __call__(self, call: Call, proceed: Callable[[Call], Any]) -> Any:
        principal = call.principal
        if not isinstance(principal, Principal):
            raise api_errors.UnauthenticatedError("The request has no principal.")
        required = needs(call.operation, call.request)
        for need in required:
            self._require(principal, need, required)
        self._require_no_gain(principal, call)
        try:
            with restricted(partial(self._may_read, principal)):
                if call.operation == "list_dropped_tables":
                    return self._dropped(call, principal, proceed)
                if call.operation == "list_events":
                    return self._events(call, principal, proceed)
                if call.operation in _NAMES:
                    return self._listing(call, principal, proceed)
                return proceed(call)
        except api_errors.TableNotFoundError as error:
            raise absence(required, of_table=True) from error
        except api_errors.NamespaceNotFoundError as error:
            raise absence(required, of_table=False) from error

    def _require(self, principal: Principal, need: Need, required: Sequence[Need]) -> None:
        if need.kind is Kind.LISTING:
            if not self.authorizer.sees(principal, need.object_id):
                raise absence(required, of_table=False) from Hidden(principal, need.right, need.object_id)
            if self.authorizer.subtrees(principal, need.object_id, [need.permission]):
                return
            raise _refusal(principal, need)
        decision = self.authorizer.decide(principal, need.permission, need.object_id)
        if decision is Decision.ALLOWED:
            return
        if decision is Decision.HIDDEN:
            of_table = need.kind is Kind.TABLE
            shown = need.object_id.parent if need.kind is Kind.NEW else need.object_id
            if of_table or not self.authorizer.sees(principal, shown):
                raise absence(required, of_table=of_table) from Hidden(principal, need.right, need.object_id)
        raise _refusal(principal, need)

    def _require_no_gain(self, principal: Principal, call: Call) -> None:
        """Refuse to move a table to a place where the principal has rights that it lacks on the table."""
        moved = move_of(call.operation, call.request)
        if moved is None:
            return
        before, after = (self.authorizer.rights(principal, each) for each in moved)
        more = gained(before, after)
        if more:
            source, target = moved
            raise api_errors.PermissionDeniedError(
                f"{principal.name} needs the right {more[0]} on {source}, because it has this right on {target}, where "
                "the request moves the table to; ask an administrator for it"
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
