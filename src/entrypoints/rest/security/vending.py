"""Credential vending: temporary credentials in place of the server's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
from lance_namespace import errors as api_errors

from lancekeep.adapters.lance.namespace_errors import translating
from lancekeep.application.entries.base_paths import BasePaths
from lancekeep.domain.authorization import Action, Decision, Principal
from lancekeep.domain.identifiers import ObjectId
from lancekeep.entrypoints.rest.requests import Call
from lancekeep.ports.authorization import Authorizer
from lancekeep.ports.credential_vendor import CredentialVendor

VENDING = ("describe_table", "declare_table")
"""The operations whose request has ``vend_credentials``."""


@attrs.frozen
class Vending:
    """Wraps the call of every operation: keeps the storage options of the server.

    No answer contains them.

    The credentials permit what the principal may do with the table: read, write, or for administrators also delete.
    They also read the directories that the table reads by base paths, if the principal may read these directories.
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
        if call.operation in VENDING:
            call = attrs.evolve(call, request=request.model_copy(update={"vend_credentials": False}))
        answer = proceed(call)
        if getattr(answer, "storage_options", None) is not None:
            answer = answer.model_copy(update={"storage_options": None})
        if self.vendor is None or not wanted or answer.location is None:
            return answer
        options = self._vend(self.vendor, answer.location, call)
        return answer.model_copy(update={"storage_options": options})

    @translating
    def _vend(self, vendor: CredentialVendor, location: str, call: Call) -> dict[str, str]:
        principal = call.principal if isinstance(call.principal, Principal) else Principal("anonymous")
        table = ObjectId.of(call.object_id)
        sources = () if self.base_paths is None else self.base_paths.sources(table)
        return dict(vendor.vend(location, self._action(principal, table), principal.name, sources))

    def _action(self, principal: Principal, table: ObjectId) -> Action:
        if self.authorizer is None:
            return Action.ADMIN
        allowed = (
            action
            for action in (Action.ADMIN, Action.WRITE)
            if self.authorizer.decide(principal, action, table) is Decision.ALLOWED
        )
        return next(allowed, Action.READ)
