"""Quotas: refuse requests that add tables or bytes to a full subtree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from lancekeep.adapters.lance.namespace_errors import translating
from lancekeep.application.entries.limits import Limits, limited
from lancekeep.domain.authorization import Principal
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.quotas import Used
from lancekeep.entrypoints.namespace.operations import choice
from lancekeep.entrypoints.rest.requests import Call
from lancekeep.entrypoints.rest.security.permissions import move_of
from lancekeep.ports.authorization import Authorizer

GROWING = frozenset(
    (
        "insert_into_table",
        "merge_insert_into_table",
        "update_table",
        "create_table",
        "create_materialized_view",
        "register_table",
        "alter_table_add_columns",
        "alter_table_backfill_columns",
        "create_table_index",
        "create_table_scalar_index",
    )
)
"""The operations that add bytes to their table, unless they replace or only delete its rows."""


@attrs.frozen
class Quotas:
    """Wraps the call of every operation: sets the limits of the caller.

    It is inside of idempotency, so a repeated request has the answer of the first one.
    The ledger counts tables when it decides a change of the catalog. A subtree that has as many bytes as its quota is
    refused operations that add bytes, before they write any. The commits of other operations are judged by what they
    add.

    Attributes:
        authorizer: Has the quotas.
        used: Returns the measured bytes of a subtree.
    """

    authorizer: Authorizer
    used: Callable[[ObjectId], Used | None]

    def __call__(self, call: Call, proceed: Callable[[Call], Any]) -> Any:
        quotas = self.authorizer.limiting(call.principal) if isinstance(call.principal, Principal) else ()
        if not quotas:
            return proceed(call)
        limits = Limits(quotas, self.used)
        moved = move_of(call.operation, call.request)
        if moved is not None:
            _require_space_for_move(limits, call.operation, *moved)
        elif _adds_bytes(call):
            _require_space(limits, ObjectId.of(call.object_id))
        with limited(limits):
            return proceed(call)


@translating
def _require_space(limits: Limits, table: ObjectId) -> None:
    limits.require_space(table)


def _require_space_for_move(limits: Limits, operation: str, source: ObjectId, target: ObjectId) -> None:
    """Check the quotas that a table enters; a dropped table is in none."""
    entered = [each for each in limits.quotas if operation != "rename_table" or not each.covers(source)]
    _require_space(attrs.evolve(limits, quotas=entered), target)


def _adds_bytes(call: Call) -> bool:
    """Return whether a request adds bytes, as far as it says itself."""
    request: Any = call.request
    if call.operation == "merge_insert_into_table":
        return bool(request.when_not_matched_insert_all or request.when_matched_update_all)
    if call.operation == "insert_into_table":
        return choice(request.mode, "mode", "append", "overwrite") == "append"
    if call.operation == "create_table":
        return choice(request.mode, "mode", "create", "exist_ok", "overwrite") == "create"
    return call.operation in GROWING
