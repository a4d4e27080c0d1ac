"""Commit a change of the engine, and note its transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lancekeep.application.rows.services import WriteService
from lancekeep.application.rows.write_checks import Announce, unannounced
from lancekeep.domain.commit import Changed
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.row_rules import Rules
from lancekeep.ports.table_engine import TableEngine


def change_table(
    writes: WriteService,
    engine: TableEngine,
    object_id: ObjectId,
    act: Callable[[Any], Any],
    branch: str | None,
    *,
    exactly: bool = False,
    admits: Callable[[Any, int], bool] | None = None,
    checks: Callable[[Any, Rules], None] | None = None,
    rebased: bool = False,
    indexes: bool = False,
    announce: Announce = unannounced,
) -> Changed:
    """Commit a change; see `Writes.commit_change`.

    Returns:
        The new version, and the id of its transaction, unless the reply of the commit was lost.
    """
    transactions: list[str | None] = []

    def noted(dataset: Any) -> Any:
        changed = act(dataset)
        transactions[:] = [engine.rows.transaction(changed)]
        return changed

    committed = writes.commit_change(
        object_id,
        noted,
        branch=branch,
        exactly=exactly,
        admits=admits,
        checks=checks,
        rebased=rebased,
        indexes=indexes,
        announce=announce,
    )
    return Changed(committed.version, transactions[0] if transactions else None)
