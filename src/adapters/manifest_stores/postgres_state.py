"""Read the latest state of a catalog in PostgreSQL, and its first answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import attrs

from lancekeep.adapters.manifest_stores.postgres_view import (
    CHILDREN,
    FIND,
    PAGE,
    PostgresView,
    entry_of,
    page_values,
)
from lancekeep.domain.catalog import Listing, Lookup, ManifestStoreGuarantees, Question
from lancekeep.domain.errors import AccessDenied, Damaged, Refused
from lancekeep.domain.version_row import LatestRow
from lancekeep.postgres.database import Database, Row
from lancekeep.postgres.version_rows import latest_of, row_of

Rows = Callable[[str, Any], list[Row]]

_COLUMNS = "id, root, catalog.version, properties, columns"
_WIDTH = 6
"""Columns of a state: its token follows the columns above."""
_LOCATION, _ENTRY_WIDTH = 2, 5
"""Where an entry has its location, and its columns."""
_NAMED = "FROM {schema}.catalog WHERE name = %s"
_TOKEN = "(SELECT token FROM {schema}.change WHERE (catalog, version) = (catalog.id, catalog.version))"
_LATEST = f"SELECT {_COLUMNS}, {_TOKEN} {_NAMED}"
# A part of the statement that reads another table would read it as before the wait for the lock.
_LOCKED = f"SELECT {_COLUMNS}, NULL {_NAMED} FOR UPDATE"


def _at_latest(statement: str) -> str:
    """Return a statement of a view about the version of the row of the catalog."""
    return statement.replace("%(catalog)s", "catalog.id").replace("%(version)s", "catalog.version")


# One statement has one snapshot, so the answer is of the version in the same row. The limit keeps the planner from
# joining by anything but the index of ids.
_FOUND = f"LEFT JOIN LATERAL ({_at_latest(FIND)} LIMIT 1) AS found ON true"
_WITH_ENTRY = f"""
SELECT {_COLUMNS}, {_TOKEN}, found.* FROM {{schema}}.catalog {_FOUND} WHERE catalog.name = %(catalog_name)s
"""
_WITH_ROW = f"""
SELECT {_COLUMNS}, {_TOKEN}, found.*, latest.* FROM {{schema}}.catalog {_FOUND}
{latest_of("%(base_uri)s || found.location")} WHERE catalog.name = %(catalog_name)s
"""
_WITH_NAMES = f"""
SELECT {_COLUMNS}, {_TOKEN}, ARRAY({_at_latest(CHILDREN)}) FROM {{schema}}.catalog
WHERE catalog.name = %(catalog_name)s
"""
_SECURED = "SELECT row_security_active('{schema}.catalog')"


class PostgresStates:
    """Reads the states of one catalog.

    Args:
        database: The database.
        name: The name of the catalog.
        root: The root that the catalog belongs to.
        url: The URL of the catalog, for errors.
        guarantees: What the store can hold.
        rows: Returns the rows of a statement of a view.
    """

    def __init__(
        self, database: Database, name: str, root: str, url: str, guarantees: ManifestStoreGuarantees, rows: Rows
    ) -> None:
        self._database, self._name, self._root, self._url = database, name, root, url
        self._guarantees, self._rows = guarantees, rows
        self._last: tuple[Row, PostgresView] | None = None
        statement = database.statement
        self._latest, self._locked, self._secured = statement(_LATEST), statement(_LOCKED), statement(_SECURED)
        self._with_entry, self._with_row = statement(_WITH_ENTRY), statement(_WITH_ROW)
        self._with_names = statement(_WITH_NAMES)

    def latest(self, known: PostgresView | None, question: Question | None = None) -> PostgresView:
        """Return the latest state.

        If the state is the one that was read last, this is the same view.

        Args:
            known: A view whose answers the new view shares if it is of the same state.
            question: What the caller asks the view first. The answer is read in the same statement.
        """
        match question:
            case Lookup(object_id):
                view, _ = self._found(self._with_entry, known, object_id)
            case Listing(parent, object_type, after, limit) if limit is not None and limit <= PAGE:
                values = {"catalog_name": self._name, **page_values(parent, object_type, after, limit)}
                found = self._database.rows(self._with_names, values)
                view = self._viewed(found, known)
                if found:
                    view.keep_page((parent, object_type, after, limit), found[0][_WIDTH])
            case _:
                view = self._viewed(self._database.rows(self._latest, (self._name,)), known)
        return view

    def latest_with_row(
        self, known: PostgresView | None, object_id: str, base_uri: str
    ) -> tuple[PostgresView, LatestRow | None]:
        """Do as `JoiningManifestStore.view_with_latest`."""
        view, answer = self._found(self._with_row, known, object_id, base_uri=base_uri)
        location = answer[_LOCATION] if answer else None
        if location is None:
            return view, None
        history = base_uri + location
        return view, LatestRow(history, row_of(history, answer[_ENTRY_WIDTH:]))

    def locked(self, rows: Rows) -> PostgresView:
        """Return the latest state, and lock the row of the catalog.

        Args:
            rows: Runs a statement in the transaction that holds the lock.
        """
        found = rows(self._locked, (self._name,))
        return self._view_of(found[0], rows) if found else self._absent(rows)

    def _found(
        self, statement: str, known: PostgresView | None, object_id: str, **values: str
    ) -> tuple[PostgresView, Row]:
        """Return the latest state, which keeps the entry that was found, and the further columns."""
        found = self._database.rows(statement, {"catalog_name": self._name, "object_id": object_id, **values})
        view = self._viewed(found, known)
        answer = found[0][_WIDTH:] if found else ()
        if answer:
            with suppress(Damaged):  # the view reads the entry again, and raises the error where it is asked
                view.keep_entry(object_id, None if answer[0] is None else entry_of(answer[:_ENTRY_WIDTH]))
        return view, answer

    def _viewed(self, found: list[Row], known: PostgresView | None) -> PostgresView:
        """Return the view of the row of the catalog."""
        if not found:
            return attrs.evolve(self._absent(self._database.rows), rows=self._rows)
        row, last = found[0][:_WIDTH], self._last
        if last is not None and last[0] == row and last[1].token is not None:
            return last[1]
        view = self._view_of(row, self._rows).sharing(known)
        self._last = row, view
        return view

    def _absent(self, rows: Rows) -> PostgresView:
        if rows(self._secured, ()) == [(True,)]:
            raise AccessDenied(
                f"{self._url}: no policy permits this role to see the catalog {self._name!r}, or it does not exist. "
                "The owner creates the catalog and the policy (docs/postgres.md)."
            )
        return PostgresView(rows, self._database.schema, None, 0, None, {}, {}, self._guarantees)

    def _view_of(self, row: Row, rows: Rows) -> PostgresView:
        catalog, root, version, properties, columns, token = row
        if root != self._root:
            raise Refused(
                f"{self._url} is the catalog of {root}; opened with {self._root}. Connect with that root, or name "
                "another catalog of the database by the option catalog. If the root was copied or moved, run "
                "`lancekeep adopt-identity`."
            )
        stored = self._texts("properties", properties), self._texts("columns", columns)
        return PostgresView(rows, self._database.schema, catalog, version, token, *stored, self._guarantees)

    def _texts(self, column: str, stored: str) -> dict[str, str]:
        try:
            texts = json.loads(stored)
        except (ValueError, RecursionError):
            texts = None
        if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
            raise Damaged(
                f"{self._url}: the {column} of the catalog are {stored[:80]!r}; expected a JSON object of text values. "
                "Restore the row of the table catalog from a backup."
            )
        return texts
