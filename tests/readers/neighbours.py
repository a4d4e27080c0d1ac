"""Other catalogs that share the base: one at another root, copies of the lake, and a new catalog at its root."""

from __future__ import annotations

import os
import shutil
from typing import Any

import attrs
import pyarrow as pa
from hypothesis.stateful import RuleBasedStateMachine
from readers.operations import FEW, FLAG, is_local, operation

import lancekeep
from lancekeep.application.catalog import services_of


@attrs.define
class Neighbour:
    """A catalog with an identity of its own, whose only table ``a`` has one column."""

    root: str
    mode: str
    base: str
    rows: list[int] = attrs.field(factory=list)

    def connect(self) -> lancekeep.Catalog:
        return lancekeep.connect(self.root, mode=self.mode, storage_options={"fsync": "false"})

    def overwrite(self, rows: list[int]) -> None:
        with self.connect() as catalog:
            catalog.write("a", pa.table({"id": pa.array(rows, pa.int64())}), "overwrite" if self.rows else "create")
        self.rows = rows

    def tier(self) -> None:
        with self.connect() as catalog:
            catalog.upkeep.move_fragments("a", catalog.versions.history("a")[0].version + 1, self.base)

    def clean_up(self) -> None:
        with self.connect() as catalog:
            report = catalog.upkeep.cleanup(0, grace=0)
            assert not report.skipped, report
            catalog.upkeep.fsck(repair=True, grace=0, deep=True)


class Neighbours(RuleBasedStateMachine):
    """Rules of `readers.machine.Readers`, which has the model. Every rule leaves the files of its lake alone."""

    neighbour: Neighbour | None

    @operation(is_local, rows=FEW, tier=FLAG, clean_up=FLAG, weight=2)
    def act_beside(self: Any, rows: int, tier: bool, clean_up: bool) -> None:
        """Let a catalog at another root replace its rows, move them to the shared base and clean up."""
        if self.neighbour is None:
            self.neighbour = Neighbour(f"{self.lake.directory}/beside", self.mode, self.lake.cold)
        self.neighbour.overwrite([next(self.numbers) for _ in range(rows + 1)])
        if tier:
            self.neighbour.tier()
        if clean_up:
            self.neighbour.clean_up()

    @operation(is_local, rows=FEW)
    def act_at_the_same_root(self: Any, rows: int) -> None:
        """Move the lake away, let a new catalog at its root use the base and clean up, and move the lake back."""
        root, away = self.lake.root, f"{self.lake.directory}/away"
        os.rename(root, away)
        try:
            other = Neighbour(root, self.mode, self.lake.cold)
            for _ in range(2):
                other.overwrite([next(self.numbers) for _ in range(rows + 1)])
                other.tier()
            other.clean_up()
            self.require_rows(other)
            shutil.rmtree(root)
        finally:
            os.rename(away, root)

    @operation(is_local, at=FEW, adopt=FLAG)
    def act_as_a_copy(self: Any, at: int, adopt: bool) -> None:
        """Let a copy of the lake replace the rows of every table, clean up and move files, also with a new identity."""
        if self.kind not in ("none", "conditional-put"):
            return  # the copy of a commit store has the rows of the original's root
        copy = f"{self.lake.directory}/copy{next(self.numbers)}"
        shutil.copytree(self.lake.root, copy)
        with attrs.evolve(self.lake, root=copy).connect() as catalog:
            if adopt:
                catalog.upkeep.adopt_identity()
            has_identity = catalog.upkeep.identity() is not None
            for name, table in self.tables.items():
                catalog.write(name, table.main.state.arrow, "overwrite")
            catalog.upkeep.cleanup(0, grace=0)
            catalog.upkeep.fsck(repair=True, grace=0)
            for name, table in self.tables.items():
                act = lambda name=name: catalog.upkeep.move_fragments(name, 1 << 40, self.lake.cold)  # noqa: E731
                may_refuse = (has_identity and not adopt) or self.has_v1_names(table)
                self.attempt(act, may_refuse=may_refuse, what="tier a table of a copy")
            catalog.upkeep.cleanup(0, grace=0)
        shutil.rmtree(copy)

    def judge_neighbours(self: Any) -> None:
        if self.neighbour is not None:
            self.require_rows(self.neighbour)

    def require_rows(self: Any, neighbour: Neighbour) -> None:
        """Read the table of a neighbour by plain pylance."""
        with neighbour.connect() as catalog:
            dataset = self.lake.plain(services_of(catalog).uri(catalog.find_table("a")))
        found = sorted(dataset.to_table()["id"].to_pylist())
        assert found == sorted(neighbour.rows), f"the neighbour has the rows {found}, expected {neighbour.rows}"
