"""The operations on transactions, and batches of table operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import lance_namespace as api

from lancekeep.application.catalog import services_of
from lancekeep.application.entries.tables import Declaration
from lancekeep.application.rows.transaction_records import STATUSES, SUCCEEDED, TransactionRecord
from lancekeep.domain.errors import InvalidInput, Unsupported
from lancekeep.entrypoints.namespace.boundary import operation
from lancekeep.entrypoints.namespace.operations import choice, id_of, members_of
from lancekeep.entrypoints.namespace.tables import TableOperations
from lancekeep.entrypoints.namespace.versions import VersionOperations

CREATE, DECLARE, DELETE, DEREGISTER = KINDS = (
    "create_table_version",
    "declare_table",
    "delete_table_versions",
    "deregister_table",
)
"""The operations of a batch, by the fields of `CommitTableOperation`."""


class TransactionOperations(TableOperations, VersionOperations):
    """Commit batches; describe and settle transactions.

    The id of a transaction is the id of its table followed by the uuid in the name of its transaction file, or, alone,
    the token of a commit whose outcome is unknown.
    """

    @operation
    def batch_commit_tables(self, request: api.BatchCommitTablesRequest) -> api.BatchCommitTablesResponse:
        """Commit a batch of operations, all or none.

        A batch is either new versions of several tables, which the commit store reserves in one step, or declarations
        and deregistrations, which are one change of the catalog, or a single operation of any kind.
        """
        chosen = [_only(each) for each in members_of(request, "operations")]
        kinds = {kind for kind, _ in chosen}
        if not chosen:
            raise InvalidInput("the batch has no operation; give at least one")
        if kinds == {CREATE}:
            versions = self._create_versions([each for _, each in chosen])
            responses: Sequence[Any] = [api.CreateTableVersionResponse(version=version) for version in versions]
        elif kinds <= {DECLARE, DEREGISTER}:
            responses = self._change_entries(chosen)
        elif len(chosen) == 1:
            responses = [self.batch_delete_table_versions(chosen[0][1])]
        else:
            raise Unsupported(_not_atomic(kinds))
        results = [
            api.CommitTableResult(**{kind: response}) for (kind, _), response in zip(chosen, responses, strict=True)
        ]
        return api.BatchCommitTablesResponse(results=results)

    @operation
    def describe_transaction(self, request: api.DescribeTransactionRequest) -> api.DescribeTransactionResponse:
        """Describe a transaction. Nothing is committed by it."""
        found = services_of(self._catalog).transaction_records.describe(request.id or [])
        return api.DescribeTransactionResponse(status=found.status, properties=dict(found.properties))

    @operation
    def alter_transaction(self, request: api.AlterTransactionRequest) -> api.AlterTransactionResponse:
        """Settle a transaction of unknown outcome: the status SUCCEEDED completes it.

        A transaction that has ended keeps its status and properties; to set the status that it has changes nothing.
        """
        wanted = _statuses(request.actions)
        found = self._settled(request.id or [], wanted)
        return api.AlterTransactionResponse(status=found.status, properties=dict(found.properties))

    def _settled(self, names: Sequence[str], wanted: set[str]) -> TransactionRecord:
        records = services_of(self._catalog).transaction_records
        found = records.describe(names)
        if wanted == {found.status}:
            return found
        if wanted == {SUCCEEDED} and not found.has_ended:
            return records.settle(names)
        raise Unsupported(
            f"the transaction is {found.status} and cannot become {' and '.join(sorted(wanted))}: a transaction that "
            f"has ended is final, and one in progress can only become {SUCCEEDED}. Nothing was changed."
        )

    def _change_entries(self, chosen: Sequence[tuple[str, Any]]) -> list[Any]:
        declared = [
            Declaration(id_of(each), each.properties, each.location) for kind, each in chosen if kind == DECLARE
        ]
        removed = [id_of(each) for kind, each in chosen if kind == DEREGISTER]
        entries = self._parts.tables
        tables, gone = map(iter, entries.declare_and_deregister(declared, removed))
        return [
            self._declared(next(tables), each) if kind == DECLARE else self._deregistered(next(gone))
            for kind, each in chosen
        ]


def _only(each: api.CommitTableOperation) -> tuple[str, Any]:
    """Return the kind of an operation and its request."""
    given = [(kind, request) for kind in KINDS if (request := getattr(each, kind)) is not None]
    if len(given) != 1:
        raise InvalidInput(
            f"an operation of a batch is exactly one of {', '.join(KINDS)}; found {len(given)} of them in one"
        )
    return given[0]


def _not_atomic(kinds: set[str]) -> str:
    versions = f"new versions of several tables ({CREATE}) are one step of the commit store"
    names = f"declarations and deregistrations ({DECLARE}, {DEREGISTER}) are one change of the catalog"
    reason = (
        f"versions are deleted one by one ({DELETE})"
        if DELETE in kinds
        else "no step changes the commit store and the catalog together"
    )
    return (
        f"a batch of {', '.join(sorted(kinds))} cannot be atomic here: {versions}, {names}, but {reason}. Nothing was "
        "done; send these operations in batches of one kind."
    )


def _statuses(actions: Sequence[Any]) -> set[str]:
    """Return the statuses that the actions of a request set; refuse every other action."""
    if not actions:
        raise InvalidInput("actions is empty; give at least one")
    wanted = set()
    for action in actions:
        given = [name for name in type(action).model_fields if getattr(action, name) is not None]
        if len(given) != 1:
            raise InvalidInput(f"an action is exactly one of {', '.join(type(action).model_fields)}; found {given}")
        if action.set_status_action is None:
            raise Unsupported(
                f"{given[0]}: the properties of a transaction belong to its commit and do not change afterwards. "
                "Nothing was changed."
            )
        status = action.set_status_action.status
        wanted.add(choice(status, "status", *(each.lower() for each in STATUSES)).upper())
    return wanted
