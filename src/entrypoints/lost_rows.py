"""Remove the fragments of tables that cannot be read."""

from __future__ import annotations

from functools import partial
from typing import Any

import attrs
import lance

from lancekeep.application.catalog import Catalog
from lancekeep.domain.errors import ConcurrentModification
from lancekeep.entrypoints.verification import Verification


@attrs.frozen
class LostRows:
    """The rows of a fragment that cannot be read.

    Attributes:
        table: The table.
        fragment: The fragment.
        first: The position of its first row among the live rows of the table, from 0.
        rows: The number of its live rows.
        reasons: Why it cannot be read.
    """

    table: str
    fragment: int
    first: int
    rows: int
    reasons: tuple[str, ...]


def lost_rows(catalog: Catalog, report: Verification) -> list[LostRows]:
    """Return the rows that `drop_fragments` would remove.

    Args:
        catalog: The catalog.
        report: A verification of the versions that are still the latest.

    Raises:
        ConcurrentModification: A table has a later version than the report.
    """
    verified = {table.table: table.version for table in report.tables}
    reasons: dict[tuple[str, int], list[str]] = {}
    for problem in report.problems:
        if problem.fragment is not None:
            reasons.setdefault((problem.table, problem.fragment), []).append(f"{problem.object}: {problem.reason}")
    found: list[LostRows] = []
    for table in dict.fromkeys(table for table, _ in reasons):
        dataset, first = catalog.open(table), 0
        if dataset.version != verified[table]:
            raise ConcurrentModification(
                f"{table} has version {dataset.version}; version {verified[table]} was verified. Verify it again"
            )
        for fragment in (each.metadata for each in dataset.get_fragments()):
            rows = fragment.physical_rows - (fragment.num_deletions or 0)
            if (table, fragment.id) in reasons:
                found.append(LostRows(table, fragment.id, first, rows, tuple(reasons[table, fragment.id])))
            first += rows
    return found


def drop_fragments(catalog: Catalog, report: Verification) -> list[LostRows]:
    """Remove the fragments that cannot be read, as a new version of each table.

    Older versions stay unchanged. Takes the arguments of `lost_rows`, and raises its errors.

    Raises:
        ConcurrentModification: Another writer committed a version after the report. Nothing was changed in that table.
    """
    lost = lost_rows(catalog, report)
    verified = {table.table: table.version for table in report.tables}
    for table in dict.fromkeys(each.table for each in lost):
        dead = [each.fragment for each in lost if each.table == table]
        removal = lance.LanceOperation.Delete([], dead, "false")
        version = verified[table]
        catalog.commit_change(table, partial(_commit, operation=removal, version=version), after=version)
    return lost


def _commit(latest: Any, *, operation: Any, version: int) -> Any:
    return lance.LanceDataset.commit(latest, operation, read_version=version)
