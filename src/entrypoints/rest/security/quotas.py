"""Refuse requests that add to a full subtree, and list what is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs

from lancekeep.adapters.lance.namespace_errors import translating
from lancekeep.application.entries.limits import Limits, limited
from lancekeep.domain.authorization import Principal
from lancekeep.domain.errors import QuotaExceeded
from lancekeep.domain.identifiers import ObjectId
from lancekeep.entrypoints.metering import Meter
from lancekeep.entrypoints.namespace.extensions import quotas_page
from lancekeep.entrypoints.namespace.operations import choice, id_of
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

    It answers ``ListQuotas`` itself.

    It is inside of idempotency, so a repeated request has the answer of the first one.
    The ledger counts tables when it decides a change of the catalog. A subtree that has as many bytes as its quota is
    refused operations that add bytes, before they write any. The commits of other operations are judged by what they
    add.

    Attributes:
        authorizer: Has the quotas.
        meter: Measures the subtrees.
        refused: Called for each request that a quota refuses.
    """

    authorizer: Authorizer
    meter: Meter
    refused: Callable[[QuotaExceeded], None] = lambda _: None

    def __call__(self, call: Call, proceed: Callable[[Call], Any]) -> Any:
        if call.operation == "list_quotas":
            return quotas_page(self.meter.usages(), id_of(call.request))
        with self._counted():
            return self._limited(call, proceed)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count the request if a quota refuses it."""
        try:
            yield
        except Exception as error:
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, QuotaExceeded):
                cause = cause.__cause__
            if cause is not None:
                self.refused(cause)
            raise

    def _limited(self, call: Call, proceed: Callable[[Call], Any]) -> Any:
        quotas = self.authorizer.limiting(call.principal) if isinstance(call.principal, Principal) else ()
        if not quotas:
            return proceed(call)
        limits = Limits(quotas, self.meter.used)
        moved = move_of(call.operation, call.request)
        if moved is not None:
            _require_space_for_move(limits, *moved)
        elif _adds_bytes(call):
            _require_space(limits, ObjectId.of(call.object_id))
        with limited(limits):
            return proceed(call)


@translating
def _require_space(limits: Limits, table: ObjectId) -> None:
    limits.require_space(table)


def _require_space_for_move(limits: Limits, source: ObjectId, target: ObjectId) -> None:
    """Check the quotas that a table enters. The bytes of a dropped table count where it was."""
    entered = [each for each in limits.quotas if not each.covers(source)]
    _require_space(attrs.evolve(limits, quotas=entered), target)


def _adds_bytes(call: Call) -> bool:
    """Return whether a request adds bytes, as far as it says itself."""
    request: Any = call.request
    if call.operation == "merge_insert_into_table":
        updates = request.when_matched_update_all or request.when_matched_update_all_filt is not None
        return bool(request.when_not_matched_insert_all or updates)
    if call.operation == "insert_into_table":
        return choice(request.mode, "mode", "append", "overwrite") == "append"
    if call.operation == "create_table":
        return choice(request.mode, "mode", "create", "exist_ok", "overwrite") == "create"
    return call.operation in GROWING
