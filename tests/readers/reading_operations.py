"""Reads of earlier versions: by their times, and in comparison."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis.stateful import RuleBasedStateMachine
from readers.model import State, content_of
from readers.operations import FEW, has_tables, operation

import lancekeep


def time_of(dataset: Any) -> datetime:
    moment: datetime = dataset.get_version()["timestamp"]
    return moment.astimezone(UTC)


class ReadingOperations(RuleBasedStateMachine):
    """Rules of `readers.machine.Readers`, which has the model."""

    @operation(has_tables, at=FEW, branch=FEW, version=FEW)
    def open_by_time(self: Any, at: int, branch: int, version: int) -> None:
        """Open a version that must be left by its own time."""
        name = self.named(at)
        if name is None:
            return
        of = self.pick([None, None, *self.tables[name].branches], branch)
        history, catalog = self.tables[name].history(of), self.catalogs[at % 2]
        wanted = self.pick(sorted(history.kept), version)
        moment = time_of(catalog.open(name, wanted, branch=of))
        found = catalog.open(name, branch=of, timestamp=moment)
        assert found.version >= wanted
        assert time_of(found) <= moment
        assert content_of(found) == history.versions[found.version].content

    @operation(has_tables, at=FEW, branch=FEW, first=FEW, second=FEW)
    def compare(self: Any, at: int, branch: int, first: int, second: int) -> None:
        """Compare two versions that must be left, row by row."""
        name = self.named(at)
        if name is None:
            return
        of = self.pick([None, None, *self.tables[name].branches], branch)
        history = self.tables[name].history(of)
        before, after = (self.pick(sorted(history.kept), number) for number in (first, second))
        difference = self.catalogs[at % 2].diff(name, lancekeep.At(before, branch=of), lancekeep.At(after, branch=of))
        old, new = history.versions[before], history.versions[after]
        shared = [column for column in new.columns if column in old.columns]
        found: dict[str, dict[int, tuple[int | None, ...]]] = {}
        for row in difference.rows(["id"], columns=shared).read_all().to_pylist():
            found.setdefault(row["_change_type"], {})[row["id"]] = tuple(row[column] for column in shared)
        assert found == changes(old, new, shared)
        assert (difference.rows_before, difference.rows_after) == (len(old.rows), len(new.rows))


def changes(old: State, new: State, shared: list[str]) -> dict[str, dict[int, tuple[int | None, ...]]]:
    """Return the changes of rows between two states by their kinds, without empty kinds."""
    first, second = (
        {number: tuple(row[state.columns.index(column)] for column in shared) for number, row in state.rows.items()}
        for state in (old, new)
    )
    differ = {number for number in first.keys() & second.keys() if first[number] != second[number]}
    found = {
        "delete": {number: first[number] for number in first.keys() - second.keys()},
        "insert": {number: second[number] for number in second.keys() - first.keys()},
        "update_preimage": {number: first[number] for number in differ},
        "update_postimage": {number: second[number] for number in differ},
    }
    return {kind: rows for kind, rows in found.items() if rows}
