"""The catalog's entries, and the authority of its commit store over them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

from lancekeep.application.commits.keyed_requests import current_request
from lancekeep.application.entries.limits import current_limits
from lancekeep.domain.catalog import CatalogView, Change, Lookup, ManifestStoreGuarantees, Question, SetProperties
from lancekeep.domain.dropped import records
from lancekeep.domain.errors import (
    CommitStoreMismatch,
    Damaged,
    InvalidInput,
    LancekeepError,
    Refused,
    Unsupported,
)
from lancekeep.domain.home_copy import MOVING_PROPERTY, require_home
from lancekeep.domain.identity import IDENTITY_PROPERTY, Identity, identity_in
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.managed import DIRECT_COMMITS, HOLD, IMPLEMENTATION, MANAGED, STORAGE, by_storage, holds
from lancekeep.domain.manifest_entry import OWN_PROPERTIES, TABLE
from lancekeep.ports.manifest_store import ForeseeingManifestStore, JoiningManifestStore

if TYPE_CHECKING:
    from lancekeep.application.commits.managed_rows import ManagedRows
    from lancekeep.application.commits.table_commits import TableCommits
    from lancekeep.domain.idempotency import Effect
    from lancekeep.domain.identifiers import ObjectId
    from lancekeep.domain.table import Table
    from lancekeep.domain.version_row import LatestRow
    from lancekeep.ports.change_feed import ChangeFeed
    from lancekeep.ports.commit_store import ExternalCommitStore
    from lancekeep.ports.manifest_store import Decision, ManifestStore, Result

COMMIT_STORE_PROPERTY = f"{OWN_PROPERTIES}commit_store"
"""The property of the root namespace that names, without secrets, the commit store that manages the versions."""


P = ParamSpec("P")
Changed = TypeVar("Changed", bound="Effect")


def once(kind: type[Changed]) -> Callable[[Callable[P, Changed]], Callable[P, Changed]]:
    """Make a method return the effect of an earlier attempt of its keyed request.

    Args:
        kind: What the method returns. Its service has a `Ledger` as ``_ledger``.
    """

    def decorate(method: Callable[P, Changed]) -> Callable[P, Changed]:
        @functools.wraps(method)
        def called(*args: P.args, **kwargs: P.kwargs) -> Changed:
            effect = cast(Ledger, args[0]._ledger).effect_of_request()  # type: ignore[attr-defined]  # the service
            if effect is None:
                return method(*args, **kwargs)
            if not isinstance(effect, kind):
                raise Damaged(f"the record of the request names {effect.id}, which is not a {kind.__name__.lower()}")
            return effect

        return called

    return decorate


_SEEN: ContextVar[list[CatalogView] | None] = ContextVar("lancekeep_seen_views", default=None)
"""The views that this context has read; None if nothing collects them."""


@contextmanager
def seen_views() -> Iterator[list[CatalogView]]:
    """Yield a list that gets the view of each read of entries in this thread."""
    views: list[CatalogView] = []
    before = _SEEN.set(views)
    try:
        yield views
    finally:
        _SEEN.reset(before)


def _seen(view: CatalogView) -> CatalogView:
    views = _SEEN.get()
    if views is not None:
        views.append(view)
    return view


class Ledger:
    """The entries of one catalog.

    If another commit store manages the catalog's versions, every read and every change is refused: two authorities over
    one table lose commits.

    Args:
        manifest: The store of the entries.
        commits: The commits of table versions.
        root_uri: The root of the catalog.
        managed: Whether a commit store, and not the storage alone, manages the versions.
        new_id: Returns a random id for a new catalog.
    """

    def __init__(
        self,
        manifest: ManifestStore,
        commits: TableCommits,
        root_uri: str,
        *,
        managed: bool,
        new_id: Callable[[], str],
    ) -> None:
        self.manifest = manifest
        self.commits = commits
        self.managed = managed
        self.root_uri = root_uri
        self.new_id = new_id
        self._checked: CatalogView | None = None
        self._foreseeing = manifest if isinstance(manifest, ForeseeingManifestStore) else None
        self._joining = manifest if isinstance(manifest, JoiningManifestStore) else None

    def at(self, manifest: ManifestStore) -> Ledger:
        """Return the catalog with its entries in another manifest store."""
        return Ledger(manifest, self.commits, self.root_uri, managed=self.managed, new_id=self.new_id)

    @property
    def guarantees(self) -> ManifestStoreGuarantees:
        """What the store of the entries can hold."""
        return self.manifest.guarantees

    # -- reading ------------------------------------------------------------------------------------------------

    def view(self, question: Question | None = None, *, during_move: bool = False) -> CatalogView:
        """Return the current entries.

        Args:
            question: What the caller asks the view first, which some stores answer in the same round trip.
            during_move: Accept a catalog whose versions are moving to another commit store.

        Raises:
            CommitStoreMismatch: Another commit store manages the versions.
        """
        return self._checked_view(self.fresh(question), during_move=during_move)

    def view_with_latest(self, object_id: ObjectId, base_uri: str) -> tuple[CatalogView, LatestRow | None]:
        """Return the current entries, and perhaps the latest row of a table.

        Both are read if one request can do so.

        Args:
            object_id: What the caller asks the view first.
            base_uri: What precedes the location of a table in the URI of its history.

        Raises:
            CommitStoreMismatch: Another commit store manages the versions.
        """
        joining = self._joining
        if joining is None or not self.commits.rows.stored.are_joined_by(joining):
            return self.view(Lookup(object_id.key)), None
        view, latest = self.commits.retry.call(lambda: joining.view_with_latest(object_id.key, base_uri))
        return self._checked_view(_seen(view)), latest

    def fresh(self, question: Question | None = None) -> CatalogView:
        """Return the current entries, regardless of the commit store that manages them."""
        foreseeing = self._foreseeing
        if question is not None and foreseeing is not None:
            return _seen(self.commits.retry.call(lambda: foreseeing.view_for(question)))
        return _seen(self.commits.retry.call(self.manifest.view))

    def recent(self) -> CatalogView:
        """Return the entries as of the last read. This costs no request."""
        return _seen(self.manifest.recent())

    def feed(self) -> ChangeFeed:
        """Return the feed of changes of the store of the entries.

        Raises:
            Unsupported: The store keeps no changes.
        """
        found = self.manifest.feed
        if found is None:
            raise self.guarantees.refusal(
                "keeps no feed of its changes; a catalog in PostgreSQL does (impl='postgres'), and a directory with a "
                "manifest table (mode='v2' or 'compatible')"
            )
        return found

    def _checked_view(self, view: CatalogView, *, during_move: bool = False) -> CatalogView:
        if view is not self._checked or during_move:
            self._require_authority(view, during_move=during_move)
            self.commits.forget()
            self._checked = view
        return view

    # -- changing -----------------------------------------------------------------------------------------------

    def apply(
        self,
        decide: Decision[Result],
        *,
        effect: Callable[[Result], Effect] | None = None,
        withdraws: bool = False,
    ) -> Result:
        """Change the entries.

        The first change creates the catalog, and records its commit store and its identity.

        Args:
            decide: The decision.
            effect: Given if the change is the effect of the caller's request. If the request has an idempotency key,
                the same commit records what ``effect`` returns of the result.
            withdraws: The change undoes the effect of the caller's request.

        Returns:
            The result of the decision that was applied.

        Raises:
            CommitStoreMismatch: Another commit store manages the versions.
            Superseded: Another attempt of the caller's request has taken over.
            QuotaExceeded: A quota of the caller has no room for a table that the change adds.
        """
        request = current_request()
        if request is not None and effect is not None:
            decide = request.recording(decide, effect)
        if request is not None and withdraws:
            decide = request.withdrawing(decide)
        _, result = self.manifest.apply(self.authorized(decide))
        return result

    def effect_of_request(self) -> Effect | None:
        """Return the effect of an earlier attempt of the caller's keyed request."""
        request = current_request()
        return None if request is None else request.recorded()

    def authorized(self, decide: Decision[Result]) -> Decision[Result]:
        """Wrap a decision for `apply`.

        The wrapped decision checks the authority and the quotas of the caller, and records the commit store and the
        identity.
        """
        proposed, limits = self._proposed(), current_limits()

        def authorized(view: CatalogView) -> tuple[Sequence[Change], Result]:
            remembering = self._remembering(view, proposed)
            changes, result = decide(view)
            if limits is not None:
                limits.require_room(view, changes)
            return ([*remembering, *changes] if changes else []), result

        return authorized

    def refuse_early(self, decide: Callable[[CatalogView], Sequence[Change]]) -> CatalogView:
        """Raise the errors of a decision before anything is written.

        The quotas of the caller are checked, too.
        A refusal by a stale view is checked with a fresh one.

        Returns:
            The view that the decision accepts.
        """
        limits = current_limits()

        def refuse(view: CatalogView) -> CatalogView:
            changes = decide(view)
            if limits is not None:
                limits.require_room(view, changes)
            return view

        try:
            return refuse(self.recent())
        except LancekeepError:
            return refuse(self.view())

    # -- authority ----------------------------------------------------------------------------------------------

    @property
    def own_store(self) -> str | None:
        """The URL of this object's commit store; None for storage-managed tables."""
        return self.commits.rows.url if self.managed else None

    def manages(self, table: Table) -> bool:
        """Return whether the commit store manages the versions of a table."""
        return self.managed and not by_storage(table.properties)

    def holds(self, table: Table) -> bool:
        """Return whether a table holds direct commits."""
        return self.managed and holds(table.properties)

    def marks(self, table: Table) -> bool:
        """Return whether a declaration of a table writes a marker into the directory.

        Without a marker, only the rows of a commit store tell a declared table from a table that has lost its files.
        """
        return self._marks_all or by_storage(table.properties)

    def may_be_empty(self, root: DatasetRoot) -> bool:
        """Return whether the directory of a table may be empty: no version is known."""
        if self._marks_all:
            return False
        latest = self.commits.retry.call(partial(self.commits.rows.stored.unchecked_latest, root.base_uri))
        return latest is None or latest.moved_to is not None

    @property
    def _marks_all(self) -> bool:
        return self.guarantees.marks_declared or not self.managed or self.commits.rows.guarantees.derived

    def require_manager(self, properties: Mapping[str, str | None]) -> None:
        """Check that the manager that properties name can manage tables of this catalog.

        Raises:
            InvalidInput: The catalog has no commit store.
            Unsupported: The storage has no create-only write, or the commit store cannot tell direct commits from its
                own.
        """
        if properties.get(MANAGED) == IMPLEMENTATION and not self.managed:
            raise InvalidInput(
                f"{MANAGED!r} is {IMPLEMENTATION!r}, and {self.root_uri} has no commit store. Move the versions to "
                "one with change_commit_store first; nothing was changed"
            )
        if properties.get(MANAGED) == STORAGE:
            self.commits.rows.require_storage()
        if properties.get(DIRECT_COMMITS) == HOLD:
            self.require_holding(self.commits.rows if self.managed else None)

    def require_holding(self, rows: ManagedRows | None) -> None:
        """Check that tables of a commit store can hold direct commits.

        Raises:
            Unsupported: There is no commit store, it may lose acknowledged rows, or the storage has no create-only
                write.
        """
        if rows is None or rows.guarantees.derived or not rows.guarantees.remembers:
            reason = "the catalog has no commit store"
            if rows is not None:
                fault = "derives rows from final manifests" if rows.guarantees.derived else "may lose acknowledged rows"
                reason = f"{rows.url} {fault}"
            raise Unsupported(
                f"{DIRECT_COMMITS!r} is {HOLD!r}, and {reason}, so a direct commit cannot be told from a commit of the "
                "catalog. Move the versions to a commit store that keeps every row with change_commit_store first, "
                "such as sqlite://, or postgresql:// with durable=true; nothing was changed"
            )
        if not rows.is_create_only:
            raise Unsupported(
                f"{DIRECT_COMMITS!r} is {HOLD!r}, and the storage has no create-only write, so a commit of the catalog "
                "and a direct commit could replace each other. Leave the property out; nothing was changed"
            )

    def record_store(self) -> None:
        """Record the commit store in a catalog that has none recorded."""
        if self.managed and COMMIT_STORE_PROPERTY not in self.recent().properties:
            proposed = self._proposed()
            self.manifest.apply(lambda view: (self._remembering(view, proposed), None))

    def require_store(self, remembered: str) -> None:
        """Raise `CommitStoreMismatch` unless this object has the recorded commit store."""
        if remembered != self.own_store:
            raise CommitStoreMismatch(
                f"the versions of {self.root_uri} are managed by the commit store {remembered}; opened with "
                f"{self.own_store or 'none'}. Connect with commit_store={remembered!r}, or move the versions with "
                "change_commit_store."
            )

    def may_move(self, url: str) -> CatalogView | None:
        """Return the view from which the versions may move to another commit store.

        Returns:
            The view; None if the versions have moved already.

        Raises:
            Refused: A move to a different commit store is in progress.
        """
        view = self.view(during_move=True)
        in_progress = view.properties.get(MOVING_PROPERTY)
        if in_progress not in (None, url):
            raise Refused(f"the catalog's versions are already moving to {in_progress}; finish that move first")
        return None if view.properties.get(COMMIT_STORE_PROPERTY) == url else view

    def begin_move(self, url: str) -> CatalogView:
        """Record that the versions are moving.

        Every other process is refused until `finish_move`.
        """

        def begin(view: CatalogView) -> tuple[Sequence[Change], None]:
            self._require_authority(view, during_move=True)
            return [SetProperties({MOVING_PROPERTY: url})], None

        view, _ = self.manifest.apply(begin)
        return view

    def finish_move(self, rows: ExternalCommitStore) -> None:
        """Commit through another store from now on, and record it in the catalog."""
        self.commits.move_to(rows)
        self.managed = True
        finished = SetProperties({COMMIT_STORE_PROPERTY: rows.url, MOVING_PROPERTY: None})
        self.manifest.apply(lambda _: ([finished], None))

    def _require_authority(self, view: CatalogView, *, during_move: bool = False) -> None:
        if not view.entered and view.version == 0:
            return
        properties = view.properties
        require_home(properties, self.root_uri)
        remembered, moving = properties.get(COMMIT_STORE_PROPERTY), properties.get(MOVING_PROPERTY)
        if moving is not None and not during_move:
            raise CommitStoreMismatch(
                f"the versions of {self.root_uri} are moving to the commit store {moving}; wait until "
                "change_commit_store has finished, or call it again if it was stopped"
            )
        own = self.own_store
        if remembered == own or (remembered is None and (during_move or not _holds_tables(view))):
            return
        if remembered is None:
            raise CommitStoreMismatch(
                f"{self.root_uri} holds tables whose versions no commit store manages; opened with {own}. Connect "
                "without commit_store, or move the tables to the commit store with change_commit_store."
            )
        self.require_store(remembered)

    def _remembering(self, view: CatalogView, proposed: Identity) -> Sequence[Change]:
        """Return the changes that record the commit store and the identity.

        A store without properties records no identity alone: a V1 directory would get a file for it.
        """
        self._require_authority(view)
        recorded: dict[str, str | None] = {}
        properties = view.properties
        if self.managed and COMMIT_STORE_PROPERTY not in properties:
            recorded[COMMIT_STORE_PROPERTY] = self.commits.rows.url
        if (recorded or self.guarantees.properties) and IDENTITY_PROPERTY not in properties:
            recorded[IDENTITY_PROPERTY] = proposed.text()
        return [SetProperties(recorded)] if recorded else []

    # -- identity -----------------------------------------------------------------------------------------------

    def identity(self) -> Identity | None:
        """Return the identity, also of a copied or moved catalog; None without one.

        Raises:
            Damaged: The stored identity cannot be read.
        """
        return identity_in(self.view().properties)

    def require_identity(self) -> Identity:
        """Return the identity of the catalog; create it if there is none.

        Raises:
            Refused: The catalog was copied or moved.
        """
        proposed = self._proposed()

        def decide(view: CatalogView) -> tuple[list[Change], Identity]:
            found = identity_in(view.properties)
            if found is None:
                return [SetProperties({IDENTITY_PROPERTY: proposed.text()})], proposed
            found.require_at(self.root_uri)
            return [], found

        return self.apply(decide)

    def adopt_identity(self, kept: str | None) -> Identity:
        """Record this root in the identity, with the id ``kept`` or a new id."""
        adopted = self._proposed() if kept is None else Identity(kept, self.root_uri)
        self.apply(lambda _: ([SetProperties({IDENTITY_PROPERTY: adopted.text()})], None))
        return adopted

    def take_store(self, *, dry_run: bool = False) -> str | None:
        """Let a copied or moved catalog commit through the commit store of this object.

        No process commits to this root through the commit store of the former root, and versions are in the storage.

        Args:
            dry_run: Change nothing.

        Returns:
            The former commit store; None if the catalog remembers none, or already the one of this object.

        Raises:
            CommitStoreMismatch: The catalog was not copied, and another commit store manages its versions.
            Unsupported: A table holds direct commits, and the commit store cannot tell them from its own.
        """

        def decide(view: CatalogView) -> tuple[Sequence[Change], str | None]:
            require_home(view.properties, self.root_uri)
            remembered = view.properties.get(COMMIT_STORE_PROPERTY)
            if remembered in (None, self.own_store):
                return [], None
            identity = identity_in(view.properties)
            if identity is None or identity.root == self.root_uri:
                self.require_store(remembered)
            if holds(view.properties) or any(holds(entry.properties) for entry in view.all_of(TABLE)):
                self.require_holding(self.commits.rows)
            change = SetProperties({COMMIT_STORE_PROPERTY: self.own_store, MOVING_PROPERTY: None})
            return [] if dry_run else [change], remembered

        return self.manifest.apply(decide)[1]

    def _proposed(self) -> Identity:
        return Identity(self.new_id(), self.root_uri)

    # -- life ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Release the connections of both stores. Idempotent."""
        self.manifest.close()
        self.commits.rows.close()


def _holds_tables(view: CatalogView) -> bool:
    return next(view.all_of(TABLE), None) is not None or next(records(view), None) is not None
