"""The port of manifest stores, which hold the catalog's entries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, runtime_checkable

from lancekeep.domain.catalog import CatalogView, Change, ManifestStoreGuarantees, Question
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.version_row import LatestRow
from lancekeep.ports.change_feed import ChangeFeed
from lancekeep.ports.commit_store import ExternalCommitStore
from lancekeep.ports.object_store import ObjectInfo

Result = TypeVar("Result")

Decision = Callable[[CatalogView], tuple[Sequence[Change], Result]]
"""Takes a view; returns the changes to make in the catalog, and a result for the caller.

It raises an error if the view does not permit the change. It is pure, because a store calls it again with a newer view
after a conflict. Only the result of the last call counts.
"""


class ManifestStore(Protocol):
    """Store the entries of a catalog and the properties of its root namespace.

    Every adapter keeps these invariants:

    - **Atomicity**: the changes of one ``apply`` become visible together or not at all, if ``guarantees`` says so.
      Otherwise each change is an atomic step.
    - **Uniqueness and isolation**: changes apply to exactly the state that ``decide`` saw. If another process changes
      the state in between, the store calls ``decide`` again with the new state.
    - **Freshness**: ``view`` shows every change that any process had acknowledged before the call.
    - **Reads write nothing.**

    Every method raises `StoreUnavailable` and `AccessDenied`, and `Damaged` if the stored data is not a catalog.
    Instances may be shared between threads.
    """

    @property
    def guarantees(self) -> ManifestStoreGuarantees:
        """What the store can hold; its views state the same guarantees."""

    @property
    def history(self) -> DatasetRoot | None:
        """The dataset whose versions are the states of the catalog.

        None if the store decides its states itself, without the commit store of the catalog.
        """

    @property
    def feed(self) -> ChangeFeed | None:
        """The versions of the catalog in order; None if the store does not keep them."""

    def location_of(self, table_id: ObjectId) -> str | None:
        """Return the directory that the store prescribes for a new table.

        Returns:
            A path relative to the root; None if the catalog chooses a new directory.
        """

    def view(self) -> CatalogView:
        """Return the latest state of the catalog."""

    def recent(self) -> CatalogView:
        """Return the state that this instance read last, without a request."""

    def apply(self, decide: Decision[Result]) -> tuple[CatalogView, Result]:
        """Apply the changes that ``decide`` returns, atomically.

        If there are no changes, nothing is written.

        Args:
            decide: The decision. It may be called several times, also from another thread, so it must have no side
                effects. An error that it raises about the latest state ends the call, and nothing is written.

        Returns:
            The catalog after the changes, and the result of the decision that was applied.

        Raises:
            ConcurrentModification: Other writers won every attempt. Nothing was written.
        """

    def optimize(self) -> None:
        """Update the indexes that speed up other readers. Idempotent.

        No entry changes.

        Raises:
            Unsupported: The store cannot have such indexes.
        """

    def clean_up(self) -> int:
        """Remove earlier states that no reader can still use. Idempotent.

        Returns:
            The number of removed states.
        """

    def leftovers(self) -> Sequence[ObjectInfo]:
        """Return the files that no state needs, by their keys in the object store.

        The files come from writers that crashed before their commit, or that are still running. After the next change,
        no Lancekeep writer can still use the remaining files. A native writer can: the writer rebases its commit on the
        change and publishes the same file.
        """

    def close(self) -> None:
        """Release all resources. Idempotent."""


@runtime_checkable
class ForeseeingManifestStore(Protocol):
    """A manifest store that reads a view together with its first answer."""

    def view_for(self, question: Question) -> CatalogView:
        """Return the latest state of the catalog, as `ManifestStore.view`.

        Args:
            question: What the caller will ask the view first. The view answers any other question, too.
        """


@runtime_checkable
class JoiningManifestStore(Protocol):
    """A manifest store that reads a table together with its latest version row."""

    def joins(self, rows: ExternalCommitStore) -> bool:
        """Return whether a commit store has its rows where the entries are."""

    def view_with_latest(self, object_id: str, base_uri: str) -> tuple[CatalogView, LatestRow | None]:
        """Return the latest state, and the latest row of a table, both as of one moment.

        Args:
            object_id: The table, which the caller will ask the view for.
            base_uri: What precedes the location of a table in the URI of its history.

        Returns:
            The state, and the answer of a commit store that `joins` accepts; None if there is no such table.
        """
