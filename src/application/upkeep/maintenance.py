"""Maintenance by rules: compaction, indexes and clean-up of tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Protocol

import attrs

from lancekeep.application.entries.tables import Tables
from lancekeep.application.rows.compactions import Compactions
from lancekeep.application.upkeep.cleanup_report import CleanupReport
from lancekeep.domain.errors import LancekeepError, VersionNotFound
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.maintenance import MaintenancePolicy, MaintenanceRule
from lancekeep.domain.notebook import Shown
from lancekeep.ports.table_engine import TableEngine


class CleanUp(Protocol):
    """`Upkeep.cleanup`."""

    def __call__(
        self, older_than: timedelta, *, keep: int, grace: timedelta, tables: Sequence[ObjectId], dry_run: bool
    ) -> CleanupReport: ...


@attrs.frozen
class MaintenanceAction(Shown):
    """One action on one table.

    Attributes:
        table: The table.
        action: ``compact``, ``index`` or ``clean up``.
        detail: What was done or, in a dry run, would be done.
        failed: Whether it failed; ``detail`` is the error then.
    """

    table: str
    action: str
    detail: str
    failed: bool = False


class Maintenance:
    """Applies the rules of a policy to every table.

    Each action is safe beside any writer and any other worker: a compaction and an index are commits, and a clean-up
    removes only what no version needs. If it is interrupted at any point, the next run completes it.
    """

    def __init__(self, tables: Tables, engine: TableEngine, compactions: Compactions, clean_up: CleanUp) -> None:
        self._tables = tables
        self._engine = engine
        self._compactions = compactions
        self._clean_up = clean_up

    def run(
        self, policy: MaintenancePolicy, *, dry_run: bool = False, proceed: Callable[[], bool] = lambda: True
    ) -> Iterator[MaintenanceAction]:
        """Yield each action after it is done.

        An error ends the action, not the run.

        Args:
            policy: The rules.
            dry_run: Change nothing.
            proceed: Called before each table; the run ends if it returns False.
        """
        for table in [table.id for table in self._tables.usable()]:
            rule = policy.rule_for(table)
            if rule is None:
                continue
            if not proceed():
                return
            for name, act in (("compact", self._compact), ("index", self._index), ("clean up", self._remove)):
                try:
                    detail = act(table, rule, dry_run)
                except VersionNotFound:  # the table is only declared
                    break
                except LancekeepError as error:
                    yield MaintenanceAction(str(table), name, str(error), failed=True)
                else:
                    if detail:
                        yield MaintenanceAction(str(table), name, detail)

    def _compact(self, table: ObjectId, rule: MaintenanceRule, dry_run: bool) -> str:
        target = rule.target_rows
        if target is None:
            return ""
        small = sum(each.count_rows() < target for each in self._opened(table))
        if small < max(rule.small_fragments, 2):
            return ""
        if not dry_run:
            self._compactions.compact(table, target)
        return f"{small} small fragments"

    def _index(self, table: ObjectId, rule: MaintenanceRule, dry_run: bool) -> str:
        if not rule.refresh_indexes:
            return ""
        dataset = self._engine.open(table, None, None, None)
        names = sorted({index.name for index in dataset.describe_indices()})
        stale = [name for name in names if dataset.stats.index_stats(name).get("num_unindexed_rows")]
        if stale and not dry_run:
            self._engine.change(table, lambda dataset: self._engine.structure.merge_indexes(dataset, stale), None)
        return f"new rows in {', '.join(stale)}" if stale else ""

    def _remove(self, table: ObjectId, rule: MaintenanceRule, dry_run: bool) -> str:
        if rule.older_than is None:
            return ""
        older_than, grace = timedelta(seconds=rule.older_than), timedelta(seconds=rule.grace)
        report = self._clean_up(older_than, keep=rule.keep, grace=grace, tables=[table], dry_run=dry_run)
        if report.skipped:
            return f"skipped: {report.skipped[0].reason}"
        return f"{report.versions} versions, {report.files} files" if report.tables else ""

    def _opened(self, table: ObjectId) -> Sequence[Any]:
        fragments: Sequence[Any] = self._engine.open(table, None, None, None).get_fragments()
        return fragments
