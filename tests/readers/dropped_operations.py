"""Tables that are dropped and brought back, and tables that are protected."""

from __future__ import annotations

from typing import Any

from hypothesis.stateful import RuleBasedStateMachine
from readers.model import State
from readers.operations import FEW, FLAG, has_tables, operation


def has_dropped(machine: Any) -> bool:
    return bool(machine.dropped)


class DroppedOperations(RuleBasedStateMachine):
    """Rules of `readers.machine.Readers`, which has the model."""

    @operation(has_tables, at=FEW, weight=2)
    def drop_kept(self: Any, at: int) -> None:
        """Drop a table that can be brought back; its clones do not prevent it."""
        name = self.named(at)
        if name is None:
            return
        catalog = self.catalogs[at % 2]
        act = lambda: catalog.drop_table(name, keep=1000)  # noqa: E731 - as in `register`
        if self.mode == "v1":
            self.require_refused(act, "drop a V1 table with keep")
        elif self.attempt(act, may_refuse=False, what="drop with keep"):
            self.dropped.append((name, catalog.list_dropped(name)[-1].drop, self.tables.pop(name)))

    @operation(has_dropped, at=FEW, into=FEW, same=FLAG, weight=2)
    def undrop(self: Any, at: int, into: int, same: bool) -> None:
        """Bring a dropped table back, under its own name or another."""
        name, drop, table = dropped = self.pick(self.dropped, at)
        goal = name if same else self.free(into)
        if goal is None:
            return
        act = lambda: self.catalogs[at % 2].undrop(name, goal, drop=drop)  # noqa: E731 - as in `register`
        may_refuse = goal in self.tables or self.is_occupied(goal)
        if self.attempt(act, may_refuse=may_refuse, what="undrop"):
            assert goal not in self.tables, f"{goal}: another table was replaced"
            self.dropped.remove(dropped)
            self.tables[goal] = table

    @operation(has_dropped, at=FEW)
    def purge(self: Any, at: int) -> None:
        """Remove a dropped table; a clone that reads its files prevents it."""
        name, drop, table = dropped = self.pick(self.dropped, at)
        act = lambda: self.catalogs[at % 2].purge(name, drop=drop)  # noqa: E731 - as in `register`
        if self.attempt(act, may_refuse=self.is_source(table), what="purge"):
            self.dropped.remove(dropped)
            self.outside = [clone for clone in self.outside if table not in clone.sources]
            assert not self.lake.holds(f"{table.path}/_versions"), f"{table.path}: its versions were not removed"

    @operation(has_tables, at=FEW, whole=FLAG)
    def protect(self: Any, at: int, whole: bool) -> None:
        """Protect a table, or the whole catalog; everything that loses rows is refused until the end of it."""
        name = self.named(at)
        if name is None or self.mode == "v1":
            return
        catalog, other = self.catalogs[at % 2], self.catalogs[(at + 1) % 2]
        catalog.protect("" if whole else name)
        rows = State().put([next(self.numbers)], at).arrow
        self.require_refused(lambda: other.drop_table(name), "drop a protected table")
        self.require_refused(lambda: other.deregister_table(name), "deregister a protected table")
        self.require_refused(lambda: other.rename_table(name, [*name[:-1], "elsewhere"]), "rename a protected table")
        self.require_refused(lambda: other.write(name, rows, "overwrite"), "overwrite a protected table")
        other.unprotect("" if whole else name)
