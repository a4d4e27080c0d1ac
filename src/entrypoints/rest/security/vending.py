"""Credential vending: temporary credentials in place of the server's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
from lance_namespace import errors as api_errors

from lancekeep.adapters.lance.namespace_errors import translating
from lancekeep.application.entries.base_paths import BasePaths
from lancekeep.domain.authorization import Action, Principal
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.rights import Right, role_of
from lancekeep.entrypoints.rest.requests import Call
from lancekeep.ports.authorization import Authorizer
from lancekeep.ports.credential_vendor import CredentialVendor

VENDING = ("describe_table", "declare_table")
"""The operations whose request has ``vend_credentials``."""

RIGHTS: Mapping[Action, frozenset[Right]] = {
    Action.DELETE: frozenset((Right.COMMIT, Right.DROP, Right.PURGE)),
    Action.WRITE: frozenset((Right.COMMIT,)),
    Action.READ: frozenset((Right.READ,)),
}
"""The rights on a table for which the server vends credentials, by what the credentials permit, the most first.

A holder that may write objects can overwrite them, so it can change all rows, tags and branches of the table.
"""


@attrs.frozen
class Vending:
    """Wraps the call of every operation: keeps the storage options of the server.

    No answer contains them.

    `RIGHTS` says what the credentials permit; without the right read, the server vends none. They also read the
    directories that the table reads by base paths, if the principal may read these directories.
    Credentials are vended unless the request has ``vend_credentials=false``, because native clients do not set it.

    Attributes:
        vendor: Issues credentials; None if the server vends none.
        authorizer: Decides what a principal may do; None if every principal may do everything.
        base_paths: The base paths of the catalog; None if credentials reach none.
    """

    vendor: CredentialVendor | None
    authorizer: Authorizer | None
    base_paths: BasePaths | None = None

    def __call__(self, call: Call, proceed: Callable[[Call], Any]) -> Any:
        request: Any = call.request
        wanted = call.operation in VENDING and request.vend_credentials is not False
        if self.vendor is None and wanted and request.vend_credentials:
            raise api_errors.UnsupportedOperationError(
                "The server vends no credentials. Configure server.vending, or leave vend_credentials out."
            )
        if wanted and request.vend_credentials and self._action(_holder(call), ObjectId.of(call.object_id)) is None:
            raise api_errors.PermissionDeniedError(
                f"{_holder(call).name} needs the right {Right.READ} (role {role_of(Right.READ)}) on "
                f"{ObjectId.of(call.object_id)} for credentials; ask an administrator for it, or leave "
                "vend_credentials out. Nothing was done."
            )
        if call.operation in VENDING:
            call = attrs.evolve(call, request=request.model_copy(update={"vend_credentials": False}))
        answer = proceed(call)
        if getattr(answer, "storage_options", None) is not None:
            answer = answer.model_copy(update={"storage_options": None})
        if self.vendor is None or not wanted or answer.location is None:
            return answer
        principal, table = _holder(call), ObjectId.of(call.object_id)
        action = self._action(principal, table)
        if action is None:
            return answer
        options = self._vend(self.vendor, answer.location, action, principal, table)
        return answer.model_copy(update={"storage_options": options})

    @translating
    def _vend(
        self, vendor: CredentialVendor, location: str, action: Action, principal: Principal, table: ObjectId
    ) -> dict[str, str]:
        sources = () if self.base_paths is None else self.base_paths.sources(table)
        return dict(vendor.vend(location, action, principal.name, sources))

    def _action(self, principal: Principal, table: ObjectId) -> Action | None:
        """Return what credentials for a table permit; None if the principal gets none."""
        if self.authorizer is None:
            return Action.DELETE
        rights = self.authorizer.rights(principal, table)
        return next((action for action, needed in RIGHTS.items() if needed <= rights), None)


def _holder(call: Call) -> Principal:
    return call.principal if isinstance(call.principal, Principal) else Principal("anonymous")
