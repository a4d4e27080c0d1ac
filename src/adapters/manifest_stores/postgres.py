"""Manifest store in PostgreSQL: the entries of many catalogs (ADR 123).

Each change of a catalog makes a new version of it. An entry is valid from one version to another, so a view is the
catalog at one version, however many statements it takes, without a transaction that stays open.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, ClassVar
from uuid import uuid4

import attrs
import psycopg

from lancekeep.adapters.manifest_stores.joint_changes import JointChanges
from lancekeep.adapters.manifest_stores.postgres_changes import (
    APPLY,
    APPLY_IF_UNCHANGED,
    LOCK,
    REVOKE,
    ids_of,
    values_of,
    values_of_questions,
)
from lancekeep.adapters.manifest_stores.postgres_feed import PostgresFeed
from lancekeep.adapters.manifest_stores.postgres_state import PostgresStates
from lancekeep.adapters.manifest_stores.postgres_view import LAST, PostgresView
from lancekeep.application.retry import Retry
from lancekeep.domain.catalog import CatalogView, Change, ManifestStoreGuarantees, Question
from lancekeep.domain.errors import (
    ConcurrentModification,
    InvalidInput,
    LancekeepError,
    StoreUnavailable,
)
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.joint_changes import MOST_CHANGES
from lancekeep.domain.manifest_entry import ManifestEntry
from lancekeep.domain.questions import QuestionedView
from lancekeep.domain.version_row import LatestRow
from lancekeep.ports.commit_store import ExternalCommitStore
from lancekeep.ports.manifest_store import Decision, Result
from lancekeep.ports.object_store import ObjectInfo, ObjectStore
from lancekeep.postgres.address import OPTIONS, Address, with_place
from lancekeep.postgres.database import BoundedConnection, Database, Row, Unmade, seconds_for
from lancekeep.store_urls import MANIFEST_STORES, StoreUrl

CATALOG = "catalog"
DEFAULT_CATALOG = "default"
KEPT = "1 day"
"""How long earlier states are kept for readers, by the clock of the server."""
RECENT_SECONDS = 3600.0
"""How long a state that was read is recent."""
LOCK_SECONDS = 20.0
"""How long to wait for the change of another process."""
MANY = 1_000_000
"""How many entries a clean-up is expected to remove."""

_CREATE = """
INSERT INTO {schema}.catalog (name, root, version, properties, columns) VALUES (%s, %s, 0, '{}', '{}')
ON CONFLICT DO NOTHING
"""
_SETTLE = "SELECT token, version FROM {schema}.change WHERE catalog = %s AND version > %s AND token = ANY(%s::text[])"
_ABANDON = "DELETE FROM {schema}.catalog WHERE name = %s AND root = %s AND version = 0"
_OBSOLETE = f"""
WITH oldest AS (
    SELECT coalesce(max(version), 0) AS version FROM {{schema}}.change
    WHERE catalog = %(catalog)s AND at < now() - interval '{KEPT}'
), forgotten AS (
    DELETE FROM {{schema}}.change USING oldest WHERE catalog = %(catalog)s AND change.version < oldest.version
    RETURNING change.version
), removed AS (
    DELETE FROM {{schema}}.entry USING oldest
    WHERE catalog = %(catalog)s AND until <= oldest.version AND until < {LAST}
)
SELECT count(*) FROM forgotten
"""


_OWNER = "SELECT root FROM {schema}.catalog WHERE name = %s"
_MOVE = "UPDATE {schema}.catalog SET root = %s WHERE name = %s AND root = ANY(%s::text[]) RETURNING root"
_COPY = f"""
WITH source AS (
    SELECT id, properties, columns FROM {{schema}}.catalog WHERE name = %(source)s AND root = %(former)s
), made AS (
    INSERT INTO {{schema}}.catalog (name, root, version, properties, columns)
    SELECT %(name)s, %(root)s, 1, properties, columns FROM source ON CONFLICT DO NOTHING RETURNING id
), entered AS (
    INSERT INTO {{schema}}.entry
        (catalog, since, object_id, parent, name, object_type, location, metadata, extension)
    SELECT made.id, 1, object_id, parent, name, object_type, location, metadata, extension
    FROM made, source JOIN {{schema}}.entry ON entry.catalog = source.id AND entry.until = {LAST}
), logged AS (
    INSERT INTO {{schema}}.change (catalog, version, token) SELECT id, 1, %(token)s FROM made
)
SELECT id FROM made
UNION ALL SELECT catalog.id FROM {{schema}}.catalog JOIN {{schema}}.change ON change.catalog = catalog.id
WHERE name = %(name)s AND change.version = 1 AND token = %(token)s
"""


class PostgresManifestStore:
    """Keep the entries of a catalog in PostgreSQL. The first call connects.

    Args:
        database: The database.
        name: The name of the catalog in the database.
        root: The URI of the root, which the catalog belongs to.
        clock: Returns monotonic seconds.
        retry: How long a change waits for the server.
    """

    options: ClassVar[frozenset[str]] = OPTIONS | {CATALOG}
    guarantees = ManifestStoreGuarantees(marks_declared=False, home="a catalog in PostgreSQL")
    history = None

    def __init__(
        self,
        database: Database,
        name: str,
        root: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        retry: Retry | None = None,
    ) -> None:
        self._database, self._name, self._root, self._clock = database, name, root, clock
        self._retry = retry or Retry()
        self.url = with_place(database.url, {CATALOG: name})
        self._joint = JointChanges(self._apply_now)
        self._known: PostgresView | None = None
        self._known_until = 0.0
        self._topic = sha256(f"{database.schema}/{name}".encode()).hexdigest()
        self.feed = PostgresFeed(database, self.view, self._topic)
        statement = database.statement
        self._states = PostgresStates(database, name, root, self.url, self.guarantees, self._patient_rows)
        self._create, self._abandon = statement(_CREATE), statement(_ABANDON)
        self._apply, self._obsolete, self._settle = statement(APPLY), statement(_OBSOLETE), statement(_SETTLE)
        self._lock, self._apply_if_unchanged = statement(LOCK), statement(APPLY_IF_UNCHANGED)
        self._revoke = statement(REVOKE)

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

    def begin(self) -> None:
        self._created()

    def abandon(self) -> None:
        self._database.count(self._abandon, (self._name, self._root))

    def owner(self) -> str | None:
        return self._root_of(self._name)

    def move_from(self, former: str) -> bool:
        values = (self._root, self._name, [former, self._root])  # idempotent
        return bool(self._database.rows(self._database.statement(_MOVE), values))

    def source(self, url: str) -> str | None:
        name = self._name_in(url)
        return None if name is None else self._root_of(name)

    def copy_from(self, url: str, former: str) -> bool:
        names = {"source": self._name_in(url), "former": former, "name": self._name, "root": self._root}
        values = {**names, "token": _new_token()}
        return bool(self._database.rows(self._database.statement(_COPY), values, seconds=seconds_for(MANY)))

    def require_possible(self, entry: ManifestEntry) -> None:
        """Accept every entry."""

    def may_remove(self, entry: ManifestEntry) -> bool:
        return True

    def view(self) -> PostgresView:
        return self._remembered(self._states.latest(self._known))

    def view_for(self, question: Question) -> PostgresView:
        """Return the latest state, read together with the answer to a question (ADR 175)."""
        return self._remembered(self._states.latest(self._known, question))

    def joins(self, rows: ExternalCommitStore) -> bool:
        return getattr(rows, "database", None) is self._database

    def view_with_latest(self, object_id: str, base_uri: str) -> tuple[PostgresView, LatestRow | None]:
        view, latest = self._states.latest_with_row(self._known, object_id, base_uri)
        return self._remembered(view), latest

    def recent(self) -> PostgresView:
        """Return the state that this instance read last.

        A state that is older than an hour is read again, because a clean-up removes states after a day.
        """
        known = self._known
        return known if known is not None and self._clock() < self._known_until else self.view()

    def apply(self, decide: Decision[Result]) -> tuple[CatalogView, Result]:
        return self._joint.apply(decide)

    def _apply_now(self, decide: Decision[Result]) -> tuple[PostgresView, Result]:
        return self._applied_to_recent(decide) or self._applied_to_latest(decide)

    def _applied_to_recent(self, decide: Decision[Result]) -> tuple[PostgresView, Result] | None:
        """Decide about the recent state, and apply the changes if nothing that was asked has changed since (ADR 156).

        This is one round trip, during which the catalog is locked.

        Returns:
            None if nothing was changed: the decision has to be made about the latest state.
        """
        known = self._known
        if known is None or known.token is None or self._clock() >= self._known_until or not self._database.pipelines:
            return None
        questioned = QuestionedView(known)
        try:
            changes, result = decide(questioned)
        except Exception:  # the latest state decides
            return None
        questions, ids = questioned.questions, ids_of(changes)
        if not (questions.are_narrow and 0 < len(changes) == len(ids) <= MOST_CHANGES):
            return None
        token = _new_token()
        after = known.after(changes, token)
        values = {
            **values_of(after, changes),
            **values_of_questions(questions, changes),
            "root": self._root,
            "version": known.version,
            "seen_token": known.token,
            "topic": self._topic,
        }
        later = after.restricted_to(questions)
        try:
            made = self._database.transact(
                [(self._lock, values), (self._apply_if_unchanged, values)], seconds=seconds_for(len(changes))
            )
        except Unmade:
            return None
        except StoreUnavailable:  # the server may have made the change, or may still make it
            promised = {token: (later, result)}
            return self._applied_locked(decide, known, promised, unanswered=True, revoked=ids[0])
        if not made:
            return None
        version = made[0][0]
        return self._remembered(after if version == after.version else attrs.evolve(later, version=version)), result

    def _applied_to_latest(self, decide: Decision[Result]) -> tuple[PostgresView, Result]:
        """Apply the changes by compare-and-set of the catalog's version.

        If another process is faster, or has changed the catalog since this instance read it, which is likely to happen
        again, the next decision is made in a transaction that holds a lock on the catalog.
        """
        known = self._known
        view, token = self._retry.call(self.view), _new_token()
        if known is not None and known.state != view.state:
            return self._applied_locked(decide, view, {})
        try:
            changes, result = decide(view)
        except Exception:
            if self._retry.call(self.view).state == view.state:
                raise
            return self._applied_locked(decide, view, {})
        if not changes:
            return view, result
        current = view if view.catalog is not None else self._retry.call(self._created)
        if current.state != view.state:
            return self._applied_locked(decide, current, {})
        after = current.after(changes, token)
        promised = {token: (after, result)}
        rows = partial(self._database.rows, seconds=seconds_for(len(changes)))
        try:
            applied = self._applied(current, after, changes, rows)
        except Unmade:
            return self._applied_locked(decide, current, {})
        except StoreUnavailable:  # the server may have made the change, or may still make it
            return self._applied_locked(decide, current, promised, unanswered=True)
        if not applied:  # unless the server makes a change whose connection was lost while it waited for a lock
            return self._applied_locked(decide, current, promised)
        return self._remembered(after), result

    def optimize(self) -> None:
        """Remove earlier states. The indexes need no update."""
        self.clean_up()

    def clean_up(self) -> int:
        catalog = self.view().catalog
        if catalog is None:
            return 0
        return int(self._database.rows(self._obsolete, {"catalog": catalog}, seconds=seconds_for(MANY))[0][0])

    def leftovers(self) -> Sequence[ObjectInfo]:
        """Return nothing: no object belongs to the store."""
        return ()

    def close(self) -> None:
        """Close the idle connections; a later call opens new ones."""
        self._database.close()

    def _root_of(self, name: str) -> str | None:
        found = self._database.rows(self._database.statement(_OWNER), (name,))
        return found[0][0] if found else None

    def _name_in(self, url: str) -> str | None:
        """Return the name of a catalog of the same database; None if the URL names something else."""
        try:
            location = StoreUrl.parse(url, {}, MANIFEST_STORES)
            other = PostgresManifestStore(Database(Address.of(location)), location.options[CATALOG], self._root)
        except (InvalidInput, KeyError):
            return None
        return other._name if other._database.url == self._database.url else None

    def _created(self) -> PostgresView:
        """Return the view of the catalog after it was created, by this or another process."""
        self._database.count(self._create, (self._name, self._root))
        return self.view()

    def _applied(
        self,
        view: PostgresView,
        after: PostgresView,
        changes: Sequence[Change],
        rows: Callable[[str, Any], list[Row]],
    ) -> bool:
        """Apply changes to the version of a view; return whether the catalog has this version.

        Args:
            view: The view.
            after: The view after the changes.
            changes: The changes.
            rows: Runs a statement.
        """
        values = {
            **values_of(after, changes),
            "root": self._root,
            "version": view.version,
            "seen": view.version,
            "seen_token": view.token,
            "topic": self._topic,
        }
        return bool(rows(self._apply, values))

    def _applied_locked(
        self,
        decide: Decision[Result],
        seen: PostgresView,
        promised: dict[str, tuple[PostgresView, Result]],
        *,
        unanswered: bool = False,
        revoked: str | None = None,
    ) -> tuple[PostgresView, Result]:
        """Decide and apply in one transaction, which holds a lock on the catalog.

        Args:
            decide: The decision.
            seen: A view that precedes the change.
            promised: By their tokens, the results of earlier attempts. If the server made one of their changes, its
                result is returned.
            unanswered: The server may still make the change of an earlier attempt, as long as the catalog has the
                version that the attempt saw. So this call ends with another version, also without a change.
            revoked: An id that the unanswered attempt changes, if it can be made in later versions, too, as long as
                nothing about this id has changed. So this call also makes an entry of the id that is valid in no
                version.
        """

        def act(connection: BoundedConnection) -> tuple[PostgresView, Result] | Exception:
            def rows(statement: str, values: Any) -> list[Row]:
                return connection.execute(statement, values).fetchall()

            def advance(view: PostgresView, after: PostgresView, changes: Sequence[Change]) -> None:
                if not self._applied(view, after, changes, rows):
                    raise ConcurrentModification(f"{self.url}: another process changed the catalog; try again")
                if revoked is not None and revoked not in ids_of(changes):
                    place = {"catalog": after.catalog, "version": after.version, "object_id": revoked}
                    connection.execute(self._revoke, place)

            connection.be_patient(LOCK_SECONDS)
            with connection.transaction():
                view = self._states.locked(rows)
                settled = rows(self._settle, (view.catalog, seen.version, list(promised))) if promised else ()
                for made, version in settled:
                    return attrs.evolve(promised[made][0], version=version), promised[made][1]
                possible = unanswered and (revoked is not None or view.version == seen.version)
                if not possible:
                    promised.clear()  # none of them was made, and none can be made any more
                try:
                    changes, result = decide(view)
                except (psycopg.Error, TimeoutError):
                    raise
                except Exception as error:
                    if possible:
                        advance(view, view.after((), _new_token()), ())
                        return error
                    raise
                connection.be_patient(seconds_for(len(changes)))
                token, after = _new_token(), view
                if changes or possible:
                    after = view.after(changes, token)
                    advance(view, after, changes)
                promised[token] = attrs.evolve(after, rows=self._patient_rows), result
            return promised[token]

        def attempt() -> tuple[PostgresView, Result] | Exception:
            earlier = set(promised)
            try:
                return self._database.call(act)
            except LancekeepError as error:
                if isinstance(error, Unmade) or not isinstance(error, StoreUnavailable):
                    for token in promised.keys() - earlier:
                        del promised[token]
                raise

        try:
            if seen.catalog is None:
                self._retry.call(self._created)
            told = self._retry.call(attempt)
        except LancekeepError as error:  # the last attempt has failed; an earlier one may have succeeded
            if not promised:
                raise
            raise StoreUnavailable(
                f"{error}. It is unknown whether the change was made; read the catalog before you repeat it"
            ) from error
        if isinstance(told, Exception):
            raise told
        return self._remembered(told[0]), told[1]

    def _patient_rows(self, statement: str, values: Any) -> list[Row]:
        """Return the rows of a read, which waits for the server as long as a change does."""
        return self._retry.call(lambda: self._database.rows(statement, values))

    def _remembered(self, view: PostgresView) -> PostgresView:
        self._known, self._known_until = view, self._clock() + RECENT_SECONDS
        return view


def _new_token() -> str:
    return uuid4().hex
