"""Manifest store in PostgreSQL: the entries of many catalogs (ADR 123).

Each change of a catalog makes a new version of it. An entry is valid from one version to another, so a view is the
catalog at one version, however many statements it takes, without a transaction that stays open.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, ClassVar
from uuid import uuid4

import attrs

from lancekeep.adapters.manifest_stores.postgres_view import LAST, PostgresView, encode_extension, parted
from lancekeep.domain.catalog import Change, ManifestStoreGuarantees, Put, Remove
from lancekeep.domain.errors import ConcurrentModification, Damaged, Refused
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import ManifestEntry
from lancekeep.ports.manifest_store import Decision, Result
from lancekeep.ports.object_store import ObjectInfo, ObjectStore
from lancekeep.postgres.address import OPTIONS, Address, with_place
from lancekeep.postgres.database import Connection, Database, Row
from lancekeep.store_urls import StoreUrl

CATALOG = "catalog"
DEFAULT_CATALOG = "default"
KEPT = "1 day"
"""How long earlier states are kept for readers, by the clock of the server."""

_VIEW = "SELECT id, root, version, properties, columns FROM {schema}.catalog WHERE name = %s"
_CREATE = """
INSERT INTO {schema}.catalog (name, root, version, properties, columns) VALUES (%s, %s, 0, '{}', '{}')
ON CONFLICT DO NOTHING
"""
_LOCKED_VIEW = f"{_VIEW} FOR UPDATE"
# The update of the catalog decides: the other parts take the new version from it, and do nothing without it. The log of
# changes makes the statement idempotent, so that it settles a lost reply.
_APPLY = f"""
WITH won AS (
    UPDATE {{schema}}.catalog SET version = version + 1, properties = %(properties)s, columns = %(columns)s
    WHERE id = %(catalog)s AND version = %(version)s
    RETURNING id, version
), ended AS (
    UPDATE {{schema}}.entry SET until = won.version FROM won
    WHERE entry.catalog = won.id AND entry.object_id = ANY(%(changed)s::text[]) AND entry.until = {LAST}
), entered AS (
    INSERT INTO {{schema}}.entry
        (catalog, since, object_id, parent, name, object_type, location, metadata, extension)
    SELECT won.id, won.version, entry.*
    FROM won, unnest(
        %(object_ids)s::text[], %(parents)s::text[], %(names)s::text[], %(object_types)s::text[],
        %(locations)s::text[], %(metadata)s::text[], %(extensions)s::bytea[]
    ) AS entry
), logged AS (
    INSERT INTO {{schema}}.change (catalog, version, token) SELECT id, version, %(token)s FROM won
)
SELECT version FROM won
UNION ALL SELECT version FROM {{schema}}.change WHERE catalog = %(catalog)s AND version > %(seen)s AND token = %(token)s
"""
_SETTLE = "SELECT FROM {schema}.change WHERE catalog = %s AND version > %s AND token = %s"
_OBSOLETE = f"""
WITH oldest AS (
    SELECT coalesce(max(version), 0) AS version FROM {{schema}}.change
    WHERE catalog = %(catalog)s AND at < now() - interval '{KEPT}'
), forgotten AS (
    DELETE FROM {{schema}}.change USING oldest WHERE catalog = %(catalog)s AND change.version < oldest.version
    RETURNING change.version
), removed AS (
    DELETE FROM {{schema}}.entry USING oldest WHERE catalog = %(catalog)s AND until <= oldest.version
)
SELECT count(*) FROM forgotten
"""


class PostgresManifestStore:
    """Keep the entries of a catalog in PostgreSQL. The first call connects.

    Args:
        database: The database.
        name: The name of the catalog in the database.
        root: The URI of the root, which the catalog belongs to.
    """

    options: ClassVar[frozenset[str]] = OPTIONS | {CATALOG}
    guarantees = ManifestStoreGuarantees(home="a catalog in PostgreSQL")
    history = None

    def __init__(self, database: Database, name: str, root: str) -> None:
        self._database, self._name, self._root = database, name, root
        self.url = with_place(database.url, {CATALOG: name})
        self._known: PostgresView | None = None
        statement = database.statement
        self._view, self._create, self._locked_view = statement(_VIEW), statement(_CREATE), statement(_LOCKED_VIEW)
        self._apply, self._obsolete, self._settle = statement(_APPLY), statement(_OBSOLETE), statement(_SETTLE)

    @classmethod
    def open(cls, url: StoreUrl, objects: ObjectStore, root_key: str) -> PostgresManifestStore:
        name = url.options.get(CATALOG, DEFAULT_CATALOG)
        if not name or "\0" in name:
            url.refuse("the option catalog is the name of a catalog in the database; it is empty or has a NUL")
        return cls(Database.of(Address.of(url)), name, objects.root_uri + root_key)

    def __repr__(self) -> str:
        return f"PostgresManifestStore({self.url!r})"

    def location_of(self, table_id: ObjectId) -> None:
        """Prescribe no directory: the catalog chooses a new one for each table."""

    def view(self) -> PostgresView:
        self._known = self._viewed(self._database.rows, self._view)
        return self._known

    def recent(self) -> PostgresView:
        return self._known or self.view()

    def apply(self, decide: Decision[Result]) -> tuple[PostgresView, Result]:
        """Apply the changes by compare-and-set of the catalog's version.

        If another process is faster, the next decision is made in a transaction that holds a lock on the catalog.
        """
        view, token = self.view(), uuid4().hex
        try:
            changes, result = decide(view)
        except Exception:
            if self.view().version == view.version:
                raise
            return self._applied_locked(decide, view, token)
        if not changes:
            return view, result
        current = view if view.catalog is not None else self._created()
        if current.version != view.version:
            return self._applied_locked(decide, current, token)
        applied = self._applied(current, changes, token, self._database.rows)
        if applied is None:  # unless the server makes a change whose connection was lost while it waited for a lock
            return self._applied_locked(decide, current, token, (current.after(changes), result))
        self._known = applied
        return applied, result

    def optimize(self) -> None:
        """Remove earlier states. The indexes need no update."""
        self.clean_up()

    def clean_up(self) -> int:
        catalog = self.view().catalog
        return 0 if catalog is None else int(self._database.rows(self._obsolete, {"catalog": catalog})[0][0])

    def leftovers(self) -> Sequence[ObjectInfo]:
        """Return nothing: no object belongs to the store."""
        return ()

    def close(self) -> None:
        """Close the idle connections; a later call opens new ones."""
        self._database.close()

    def _created(self) -> PostgresView:
        """Return the view of the catalog after it was created, by this or another process."""
        self._database.count(self._create, (self._name, self._root))
        return self.view()

    def _viewed(self, rows: Callable[[str, Any], list[Row]], statement: str) -> PostgresView:
        found = rows(statement, (self._name,))
        if not found:
            return PostgresView(rows, self._database.schema, None, 0, {}, {}, self.guarantees)
        ((catalog, root, version, properties, columns),) = found
        if root != self._root:
            raise Refused(
                f"{self.url} is the catalog of {root}; opened with {self._root}. Connect with that root, or name "
                "another catalog of the database by the option catalog."
            )
        stored = self._texts("properties", properties), self._texts("columns", columns)
        return PostgresView(rows, self._database.schema, catalog, version, *stored, self.guarantees)

    def _texts(self, column: str, stored: str) -> dict[str, str]:
        try:
            texts = json.loads(stored)
        except (ValueError, RecursionError):
            texts = None
        if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
            raise Damaged(
                f"{self.url}: the {column} of the catalog are {stored[:80]!r}; expected a JSON object of text values. "
                "Restore the row of the table catalog from a backup."
            )
        return texts

    def _applied(
        self, view: PostgresView, changes: Sequence[Change], token: str, rows: Callable[[str, Any], list[Row]]
    ) -> PostgresView | None:
        """Apply changes to the version of a view.

        Returns:
            The view after the changes; None if the catalog has another version.
        """
        after = view.after(changes)
        won = rows(
            self._apply, {**_values(after, changes), "version": view.version, "seen": view.version, "token": token}
        )
        return after if won else None

    def _applied_locked(
        self, decide: Decision[Result], seen: PostgresView, token: str, *promised: tuple[PostgresView, Result]
    ) -> tuple[PostgresView, Result]:
        """Decide and apply in one transaction, which holds a lock on the catalog.

        Args:
            decide: The decision.
            seen: A view that precedes the change.
            token: The token of the change.
            promised: What an earlier attempt with this token has promised; returned if the server made its change.
        """
        if seen.catalog is None:
            self._created()

        def act(connection: Connection) -> tuple[PostgresView, Result]:
            nonlocal promised

            def rows(statement: str, values: Any) -> list[Row]:
                return connection.execute(statement, values).fetchall()

            with connection.transaction():
                view = self._viewed(rows, self._locked_view)
                if promised and rows(self._settle, (view.catalog, seen.version, token)):
                    return promised[-1]  # the reply to the commit was lost
                changes, result = decide(view)
                applied = view if not changes else self._applied(view, changes, token, rows)
                if applied is None:
                    raise ConcurrentModification(f"{self.url}: another process changed the catalog; try again")
                promised = ((attrs.evolve(applied, rows=self._database.rows), result),)
            return promised[-1]

        self._known, result = self._database.call(act)
        return self._known, result


def _values(after: PostgresView, changes: Sequence[Change]) -> dict[str, Any]:
    """Return the values of the statement that applies changes."""
    entries: dict[str, ManifestEntry | None] = {}
    for change in changes:
        match change:
            case Put(entry):
                entries[entry.object_id] = entry
            case Remove(object_id):
                entries[object_id] = None
    put = [entry for entry in entries.values() if entry is not None]
    places = [parted(entry.object_id) for entry in put]
    return {
        "catalog": after.catalog,
        "properties": json.dumps(dict(after.properties)),
        "columns": json.dumps(dict(after.columns)),
        "changed": list(entries),
        "object_ids": [entry.object_id for entry in put],
        "parents": [parent for parent, _ in places],
        "names": [name for _, name in places],
        "object_types": [entry.object_type for entry in put],
        "locations": [entry.location for entry in put],
        "metadata": [entry.metadata for entry in put],
        "extensions": [encode_extension(entry.extension, after.column_types) for entry in put],
    }
