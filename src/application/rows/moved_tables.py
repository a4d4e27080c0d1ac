"""Check that a table stays in its directory during a commit (ADR 14, ADR 189)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile

from lancekeep.application.commits.table_commits import Confirm
from lancekeep.application.entries.ledger import Ledger
from lancekeep.application.entries.places import Places
from lancekeep.domain.catalog import CatalogView, Lookup
from lancekeep.domain.commit import Committed
from lancekeep.domain.errors import (
    CommitRefused,
    LancekeepError,
    ObjectNotFound,
    StoreUnavailable,
)
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.manifest_entry import TABLE
from lancekeep.domain.naming import NamingScheme
from lancekeep.domain.table import Table, is_at, moving_to, stop_move, v1_table
from lancekeep.domain.version_row import VersionRow

_PAUSES = (0.0, 0.02, 0.1, 0.5)
"""Seconds before each look whether a drop or a rename has removed the files of a version that is refused."""

_RENAME_PAUSES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Seconds before each look whether a rename has moved a table, until the writer stops the rename."""


class MovedTables:
    """Refuses commits to directories that their tables leave."""

    def __init__(self, ledger: Ledger, places: Places) -> None:
        self._ledger = ledger
        self._places = places

    def confirming(
        self,
        table: Table,
        version: int,
        *,
        first: bool,
        branch: str | None = None,
        since: CatalogView | None = None,
        follows: str | None = None,
    ) -> Confirm:
        """Return the check of a new version that follows its commit.

        Only V1 names are reused. A branch that begins while its table moves is not fenced. A home that does not list
        directories may commit the first version before it enters the table.

        Args:
            table: The table.
            version: The version.
            first: Whether it is the first of its history.
            branch: The branch; None for the main history.
            since: The entries before the version that it follows was read; by default the last known entries.
            follows: The transaction file of that version, if the caller knows it.
        """
        entered = self._ledger.guarantees.lists_directories or not first
        if entered and v1_table(table.location) is not None:
            before, first = self._before_commit(table, self._ledger.recent()), first or branch is not None
            before = since or before
            return partial(self._require_unmoved, table, branch, version, before, first=first, follows=follows)
        if branch is None:
            return _nothing
        return partial(self._require_here, table, branch, version, since or self._ledger.recent())

    def reservation(self, table: Table) -> str:
        """Return what identifies a table without a version in a V1 directory.

        It is the content of the marker; without a marker, the text is empty.
        """
        retry, objects = self._ledger.commits.retry, self._places.objects
        try:
            return retry.call(partial(objects.get, self._places.reserved_marker(table))).decode(errors="replace")
        except ObjectNotFound:
            return ""

    def confirming_reservation(self, reservation: str) -> Callable[..., Confirm]:
        """Return `confirming` for a table that has to have this reservation.

        The version is the first. Calling the function raises `CommitRefused` if the table was dropped, and perhaps
        created again.
        """

        def confirming(table: Table, version: int, *, first: bool, branch: str | None = None) -> Confirm:
            self._require_reserved(table, reservation)
            confirm = self.confirming(table, version, first=first, branch=branch)

            def confirm_reserved(transaction: str) -> None:
                confirm(transaction)
                try:
                    self._require_reserved(table, reservation)
                except CommitRefused:
                    self._is_carried_over(self._places.dataset_root(table), [], version, transaction)
                    raise

            return confirm_reserved

        return confirming

    def _require_reserved(self, table: Table, reservation: str) -> None:
        if self.reservation(table) != reservation:
            raise CommitRefused(
                f"the table {table.id} was dropped since the write began, and may have been created again. Nothing was "
                f"committed at {table.location!r}: begin the write again"
            )

    def native_check(self, object_id: ObjectId, branch: str | None) -> Callable[[Committed], object]:
        ledger = self._ledger
        before = ledger.recent()
        location = None if ledger.guarantees.locations else ledger.manifest.location_of(object_id)
        table = None if location is None else Table(object_id, location, {})
        if table is None:
            entry = before.find(object_id.key)
            if entry is None:  # not read yet
                before = ledger.view(Lookup(object_id.key))
                entry = before.find(object_id.key)
            table = None if entry is None or entry.location is None else Table.from_entry(entry)
        if table is None or v1_table(table.location) is None:
            return _accept
        return partial(self._check_native, table, branch, self._before_commit(table, before))

    def _before_commit(self, table: Table, view: CatalogView) -> CatalogView:
        """Return the view before a commit, which waits for a rename that moves the table.

        Raises:
            CommitRefused: The table has moved. Nothing was committed.
        """
        if moving_to(view, table) is None:
            return view
        view = self._unless_moving(table, self._ledger.fresh())
        if not is_at(view, table.location):
            raise CommitRefused(
                f"the table {table.id} was renamed or dropped; nothing was committed at {table.location!r}. Find the "
                "table again, and repeat the write"
            )
        return view

    def _unless_moving(self, table: Table, view: CatalogView) -> CatalogView:
        """Wait while a rename moves a table; then stop the rename. Return the current entries.

        A rename copies the versions that exist when it records the move in the entry. It enters the new name only if
        the entry still has the record. So a version is in the copy, or the rename copies again. A rename that was
        killed is stopped by the next commit.
        """
        for pause in _RENAME_PAUSES:
            if (location := moving_to(view, table)) is None:
                return view
            self._ledger.commits.retry.sleep(pause)
            view = self._ledger.fresh()
        location = moving_to(view, table)
        if location is not None:
            self._ledger.apply(lambda found: (stop_move(found, table, location), None))
            view = self._ledger.fresh()
        return view

    def _check_native(self, table: Table, branch: str | None, before: CatalogView, committed: Committed) -> None:
        if not committed.transaction:  # the engine opened the table where a move had placed it by then
            return
        version, first = committed.version, committed.version == 1 or branch is not None
        try:
            self._require_unmoved(table, branch, version, before, committed.transaction, first=first)
        except CommitRefused:
            raise
        except LancekeepError as error:
            raise StoreUnavailable(
                f"version {version} of the table {table.id} was committed at {table.location!r}, but whether the table "
                f"was renamed or dropped at that time is not known: {error}. Before you write again, check whether the "
                "table has this version."
            ) from error

    def _require_here(self, table: Table, branch: str, version: int, before: CatalogView, transaction: str) -> None:
        """Raise `CommitRefused` if a table has left its directory without the new version of a branch."""
        view = self._ledger.fresh()
        if is_at(view, table.location) or self._is_elsewhere(table, branch, version, view, before, transaction):
            return
        raise CommitRefused(
            f"the table {table.id} was moved or dropped while version {version} of its branch {branch!r} was committed "
            f"at {table.location!r}. Before you write again, check whether the table has this version at its new place."
        )

    def _require_unmoved(
        self,
        table: Table,
        branch: str | None,
        version: int,
        before: CatalogView,
        transaction: str,
        *,
        first: bool,
        follows: str | None = None,
    ) -> None:
        """Raise `CommitRefused` if a rename may have missed a new version.

        A rename copies versions that are committed while the entry names the old location. If the catalog has changed
        since the view ``before``, the entry may belong to a new table in the same directory, or the new version may
        have turned a dropped table into a V1 table again. In both cases, the predecessor of the new version is missing,
        or was committed in the same way: then its older data files are missing. If the new table has as many versions,
        the older data files of the new version are missing.
        """
        view = self._unless_moving(table, self._ledger.fresh())
        entry = view.find(table.id.key)
        commits, root = self._ledger.commits, self._places.dataset_root(table).branch(branch)
        if entry is not None and entry.location == table.location:
            if first or (not entry.listed and view.version == before.version):
                return
            previous, own = (
                commits.retry.call(partial(commits.final_object, root, number)) for number in (version - 1, version)
            )
            keeps = partial(commits.lineage.keeps_files, root)
            if previous is not None and keeps(previous, follows) and (own is None or keeps(own)):
                return
        if self._is_elsewhere(table, branch, version, view, before, transaction):
            return
        raise CommitRefused(
            f"the table {table.id} was renamed or dropped while version {version} was committed at "
            f"{table.location!r}. Before you write again, check whether the table has this version under its new name."
        )

    def _is_elsewhere(
        self,
        table: Table,
        branch: str | None,
        version: int,
        view: CatalogView,
        before: CatalogView,
        transaction: str,
    ) -> bool:
        """Return whether renames and moves have carried a new version to a place where its table is now."""
        root = self._places.dataset_root(table).branch(branch)
        targets = list(self._moved(table, view, before))
        checked: set[str] = set()
        while True:
            roots = [self._places.dataset_root(each).branch(branch) for each in targets]
            if self._is_carried_over(root, roots, version, transaction):
                return True
            checked.update(each.location for each in targets)
            targets = [
                each for each in self._moved(table, self._ledger.fresh(), before) if each.location not in checked
            ]
            if not targets:  # the table has not moved on from one of them
                return False

    def _moved(self, table: Table, view: CatalogView, before: CatalogView) -> Iterator[Table]:
        """Yield what a table may be since the view ``before``: the table of its name, or one with a new entry.

        A rename out of a V1 directory enters the new name in the manifest. Tables that only the directory lists come
        last, and reading them costs requests.
        """
        entry = view.find(table.id.key)
        if entry is not None and entry.location != table.location:
            yield Table.from_entry(entry)
        if not view.guarantees.lists_directories or not view.guarantees.locations:
            return
        for each in takewhile(lambda each: not each.listed, view.descendants(ObjectId(()))):
            if each.object_type != TABLE or each.location is None or v1_table(each.location) is not None:
                continue
            known = before.find(each.object_id)
            if each.object_id != table.id.key and (known is None or known.location != each.location):
                yield Table.from_entry(each)

    def _is_carried_over(
        self, old: DatasetRoot, targets: Sequence[DatasetRoot], version: int, transaction: str
    ) -> bool:
        """Return whether a rename has copied a new version to the new place of its table.

        A rename copies the versions that it finds after it has entered the new name, and then removes the old ones. So
        the answer is certain once the old place has lost the version. Otherwise this waits for a moment.
        """
        commits = self._ledger.commits
        if not transaction:
            row = VersionRow(old.base_uri, version, old.manifest_key(version, NamingScheme.V2), 0)
            base = commits.lineage.base(old, row)  # in memory, if this process has committed it
            transaction = "" if base is None else base.transaction
        for pause in _PAUSES:
            commits.retry.sleep(pause)
            commits.lineage.forget()  # a new table may have the version by now
            is_decided = False
            with suppress(LancekeepError):  # the version is in the way of a new table, but not of this decision
                is_decided = self._is_removed(old, version, transaction)
            if transaction and any(self._has(target, version, transaction) for target in targets):
                return True
            if is_decided:
                break
        return False

    def _is_removed(self, root: DatasetRoot, version: int, transaction: str) -> bool:
        """Return whether a drop or a rename has removed a new version, or its files.

        Then the version is removed, if the storage decides about versions. A V1 directory with a version is a table,
        and a new table there would continue after the version. A drop or a rename lists the manifests that it removes,
        and removes the files after them. So the files of a version that it has missed may still exist for a moment.
        """
        commits = self._ledger.commits
        row = commits.retry.call(partial(commits.final_object, root, version))
        found = None if row is None else commits.lineage.base(root, row)
        if row is None or found is None or transaction not in ("", found.transaction):
            return True
        if commits.lineage.keeps_files(root, row):
            return False
        if commits.rows.guarantees.derived:
            commits.retry.call(partial(commits.objects.delete, row.path))
            commits.objects.prune(root.key)
        return True

    def _has(self, root: DatasetRoot, version: int, transaction: str) -> bool:
        """Return whether a history has a version with this transaction."""
        commits = self._ledger.commits
        row = commits.retry.call(partial(commits.final_object, root, version))
        found = None if row is None else commits.lineage.base(root, row)
        return found is not None and found.transaction == transaction


def _nothing(_: str) -> None:
    """Check nothing."""


def _accept(committed: Committed) -> None:
    """Accept any version."""
