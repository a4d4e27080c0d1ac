"""Declare the tables that writes need."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from lancekeep.application.entries.ledger import Ledger
from lancekeep.application.entries.tables import Tables
from lancekeep.application.rows.versions import Versions
from lancekeep.application.rows.write_checks import require_no_location
from lancekeep.domain.errors import InvalidInput, TableAlreadyExists
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.properties import checked_properties
from lancekeep.domain.row_rules import Rules, rules_of
from lancekeep.domain.stable_row_ids import require_row_ids, stated_row_ids, wants_stable_row_ids, with_row_ids
from lancekeep.ports.table_engine import WriteMode


class Declarations:
    """Declares the tables that writes need, or checks those that exist."""

    def __init__(self, ledger: Ledger, tables: Tables, versions: Versions) -> None:
        self._ledger = ledger
        self._tables = tables
        self._versions = versions

    def declare_for(
        self,
        object_id: ObjectId,
        mode: WriteMode,
        properties: Mapping[str, str] | None,
        stable: bool | None,
        *,
        replaces: bool = False,
        location: str | None = None,
    ) -> tuple[bool, Rules, bool]:
        """Declare the table that a write needs.

        Args:
            object_id: The table.
            mode: The mode of the write.
            properties: The properties of the table to declare.
            stable: Whether the caller wants stable row ids; None if the caller leaves it open.
            replaces: Accept properties for an existing table; the write replaces its properties.
            location: The directory of the table to declare, as for `Catalog.declare_table`.

        Returns:
            Whether this call declared the table, the rules of the rows to write, and whether a first version has stable
            row ids.
        """
        if mode is WriteMode.CREATE:
            return self._declare(object_id, properties, stable, location)
        if mode is WriteMode.OVERWRITE and not self._tables.exists(object_id):
            with suppress(TableAlreadyExists):  # another writer was faster; this write overwrites its rows
                return self._declare(object_id, properties, stable, location)
        require_no_location(object_id, location)
        table = self._tables.find(object_id)
        if mode is WriteMode.OVERWRITE:
            self._versions.unfinished_clones.refuse(table)
            self._tables.require_replaceable(object_id, "overwrite")
        self.require_row_ids(object_id, stable)
        wants = wants_stable_row_ids(table.properties) if stable is None else stable
        if replaces:
            return False, rules_of(checked_properties(properties)), wants
        if properties:
            raise InvalidInput(f"the table {object_id} exists; properties are given when a table is created")
        return False, table.rules, wants

    def _declare(
        self, object_id: ObjectId, properties: Mapping[str, str] | None, stable: bool | None, location: str | None
    ) -> tuple[bool, Rules, bool]:
        """Declare a table; return what `declare_for` does."""
        stores = self._ledger.guarantees.properties
        table = self._tables.declare(object_id, with_row_ids(properties, stable) if stores else properties, location)
        return True, rules_of(properties or {}), stable or wants_stable_row_ids(table.properties)

    def require_row_ids(self, object_id: ObjectId, stable: bool | None) -> None:
        """Check that an existing table has the row ids that a caller states.

        ``stable`` is None if the caller states none.
        """
        if stable is None:
            return
        table = self._tables.find(object_id)
        present = self._tables.stable_row_ids(table)
        require_row_ids(str(object_id), stated_row_ids(table.properties) if present is None else present, stable)
