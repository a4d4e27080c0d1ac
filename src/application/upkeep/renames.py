"""The rename of a table, which moves the files of a V1 directory."""

from __future__ import annotations

from contextlib import suppress

from lancekeep.application.entries.ledger import Ledger, once
from lancekeep.application.entries.mem_wal import MemWal
from lancekeep.application.entries.places import Places
from lancekeep.application.entries.removal import Removal
from lancekeep.application.entries.tables import DEFINITE, Tables
from lancekeep.application.entries.unfinished_clones import UnfinishedClones
from lancekeep.application.upkeep.digest_recorder import DigestRecorder
from lancekeep.application.upkeep.relocation import Relocation
from lancekeep.domain.catalog import CatalogView, Change
from lancekeep.domain.errors import ConcurrentModification, Damaged, LancekeepError
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.table import Table, announce_move, find_table, moving_to, rename_table, stop_move, v1_table

_ROUNDS = 10
"""How often a rename that writers have stopped begins to move the files again."""

_MOVING = "renamed, because its files would move"
_RENAME_IN_PLACE = "A catalog opened with mode='v2' renames the table without moving its files."


class Renames:
    """Renames tables; see `Catalog.rename_table`."""

    def __init__(
        self,
        ledger: Ledger,
        places: Places,
        tables: Tables,
        removal: Removal,
        mem_wal: MemWal,
        recorder: DigestRecorder,
    ) -> None:
        self._ledger = ledger
        self._places = places
        self._tables = tables
        self._removal = removal
        self._mem_wal = mem_wal
        self._recorder = recorder

    @once(Table)
    def rename(self, source: ObjectId, target: ObjectId) -> Table:
        table = self._tables.find(source)
        self._ledger.refuse_early(lambda view: rename_table(view, table, target, table.location))
        if not self._ledger.guarantees.lists_directories or v1_table(table.location) is None:
            return self._enter(table, target, table.location)
        UnfinishedClones(self._ledger, self._places).refuse(table)
        self._ledger.commits.naming_schemes.require_one(self._places.dataset_root(table))
        self._removal.refuse_needed([table], _RENAME_IN_PLACE)
        self._mem_wal.refuse_writers(table, _MOVING)
        self._recorder.flush()  # the records move with the files
        reserved = self._tables.reserve(Table(target, self._places.new_location(target), table.properties), True)
        places, objects = self._places, self._places.objects
        move = Relocation(self._ledger.commits, places.dataset_root(table), places.dataset_root(reserved))
        moving = places.moving_marker(reserved)
        objects.put(moving, table.location.encode())
        try:
            move.begin()
            renamed = self._switch(move, table, reserved)
        except (*DEFINITE, Damaged):
            with suppress(LancekeepError):  # a writer removes the record otherwise
                self._ledger.apply(lambda view: (stop_move(view, table, reserved.location), None))
            self._removal.remove(reserved, copied=True)
            raise
        move.carry_over()
        self._removal.clones.record_dataset(reserved.location)  # a version that was carried over may be a clone
        if not self._removal.recorded_readers(table):  # a clone of the table may have been made since the copy
            self._removal.remove(table)
        objects.delete(moving)
        return renamed

    def _switch(self, move: Relocation, table: Table, reserved: Table) -> Table:
        """Enter a copied table under its new name, with every version that is acknowledged.

        Once the entry records the move, each writer waits with its commit, or removes the record.
        """
        target, location = reserved.id, reserved.location
        for _ in range(_ROUNDS):
            self._ledger.apply(lambda view: (announce_move(view, table, target, location), None))
            move.copy()
            self._mem_wal.refuse_writers(table, _MOVING)  # a writer may have set LSM writes up since
            self._removal.clones.record_dataset(location)
            with suppress(_MoveStopped):
                return self._enter(table, target, location)
        raise ConcurrentModification(
            f"{table.id}: writers did not wait while the files of the table moved for its new name {target}; nothing "
            "was changed. Rename the table again when fewer writers are active."
        )

    def _enter(self, table: Table, target: ObjectId, location: str) -> Table:
        def decide(view: CatalogView) -> tuple[list[Change], Table]:
            changes = rename_table(view, table, target, location)
            if location != table.location:
                _require_announced(view, table, location)
            return changes, Table(target, location, find_table(view, table.id).properties)

        return self._ledger.apply(decide, effect=lambda renamed: renamed)


class _MoveStopped(ConcurrentModification):
    """A writer has removed the record that the files move."""


def _require_announced(view: CatalogView, table: Table, location: str) -> None:
    announced = moving_to(view, table)
    if announced is None:
        raise _MoveStopped(f"{table.id}: a writer did not wait while the files of the table moved")
    if announced != location:
        raise ConcurrentModification(
            f"{table.id}: another rename moves the files of the table, to {announced!r}; nothing was changed"
        )
