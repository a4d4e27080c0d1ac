"""The move of all versions to another commit store.

See `Upkeep.change_commit_store`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from lancekeep.application.commits.direct_commits import DirectCommits
from lancekeep.application.commits.managed_rows import ManagedRows
from lancekeep.application.commits.table_commits import TableCommits
from lancekeep.application.entries.ledger import Ledger
from lancekeep.application.entries.places import Places
from lancekeep.domain.catalog import CatalogView
from lancekeep.domain.dropped import dropped_tables
from lancekeep.domain.errors import Damaged
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.managed import by_storage, holds
from lancekeep.domain.manifest_entry import TABLE
from lancekeep.domain.table import Table
from lancekeep.domain.version_row import VersionRow
from lancekeep.ports.commit_store import ExternalCommitStore


def move_to(rows: ExternalCommitStore, ledger: Ledger, places: Places) -> int:
    """Move every history to the commit store ``rows``.

    Returns:
        The number of rows moved.
    """
    view = ledger.may_move(rows.url)
    if view is None:
        return 0
    commits = ledger.commits
    target = commits.rows.beside(rows)
    # An unreachable store must not block the catalog, so it is read before the move begins.
    rows.latest(places.probe_uri)
    if holds(view.properties) or any(holds(table.properties) for table in _tables(view)):
        ledger.require_holding(target)
    for table in _tables(view):
        if by_storage(table.properties):
            continue
        for history in commits.histories(places.dataset_root(table)):
            _require_room(commits, history, target)  # a row that cannot be moved is refused before the move begins
    view = ledger.begin_move(rows.url)
    roots: list[DatasetRoot] = []
    for table in _tables(view):
        if by_storage(table.properties):
            _release_at(commits, places.dataset_root(table), target)
        else:
            roots.append(places.dataset_root(table))
    if ledger.manifest.history is not None:
        roots.append(ledger.manifest.history)
    for table in _tables(view):
        _mark_at(commits, places.dataset_root(table), target)
    moved = sum(move_history(commits, history, target) for root in roots for history in commits.histories(root))
    ledger.finish_move(rows)
    return moved


def _release_at(source: TableCommits, root: DatasetRoot, target: ManagedRows) -> None:
    """Leave a table to the storage, also under the new commit store. Idempotent."""
    source.release(root)
    if target.storage is not None:
        for history in source.histories(root):
            target.release(history.base_uri)
            target.forget_rows(history.base_uri)


def _mark_at(source: TableCommits, root: DatasetRoot, target: ManagedRows) -> None:
    """Let the versions of a table need approvals under the new commit store as under the present one. Idempotent."""
    direct = DirectCommits(source.objects, target)
    for history in source.histories(root):  # left by an earlier move in the other direction
        direct.forget(history.base_uri)
    if direct.can_hold and source.holding.is_marked(root):
        if source.holding.holds(root):
            direct.hold(root.base_uri)
        else:
            direct.lift(root.base_uri)
            direct.mark(root.base_uri)


def _tables(view: CatalogView) -> Iterator[Table]:
    """Yield the tables, and the dropped tables that can be brought back."""
    yield from map(Table.from_entry, view.all_of(TABLE))
    yield from (dropped.table for dropped in dropped_tables(view, ObjectId()))


def move_history(source: TableCommits, root: DatasetRoot, target: ManagedRows) -> int:
    """Fence a history in its store, and copy its rows to the target. Idempotent.

    Returns:
        The number of rows in ``target``, which were compared with the rows of ``source``.

    Raises:
        Damaged: The target holds other versions; see `_require_room`.
    """
    target.reclaim(root.base_uri)  # left by an earlier move in the other direction
    source.rows.reclaim(root.base_uri)
    source.retry.call(lambda: source.fence(root, target.url))
    _move_approvals(source, root, target)
    rows = [row for row in _all_rows(source.rows, root) if row.is_final]
    if target.guarantees.derived:  # the store searches from the hint up to a gap, which deletions may have left
        source.retry.call(partial(source.objects.delete, root.hint_key))
    stale = target.latest(root.base_uri)
    if stale is not None and stale.moved_to is not None:
        target.delete(root.base_uri)  # left by an earlier move in the other direction
    target.record(rows)
    missing = {(row.version, row.path) for row in rows} - {(row.version, row.path) for row in _all_rows(target, root)}
    if missing:
        raise Damaged(
            f"{root.base_uri}: {target.url} holds other versions than {source.rows.url}, first {min(missing)}. "
            "Remove the foreign rows there, then call change_commit_store again."
        )
    _require_room(source, root, target)
    return len(rows)


def _move_approvals(source: TableCommits, root: DatasetRoot, target: ManagedRows) -> None:
    """Copy what is decided about direct commits; after the fence, decisions have no effect at the source."""
    if source.direct.can_hold and target.guarantees.remembers and not target.guarantees.derived:
        approvals = source.retry.call(lambda: source.direct.approvals(root.base_uri))
        if approvals:
            direct = DirectCommits(source.objects, target)
            direct.keep(approvals)


def _require_room(source: TableCommits, root: DatasetRoot, target: ManagedRows) -> None:
    """Check that the target's rows of a history belong to existing versions.

    Readers would report the version of any other row as the latest.

    Raises:
        Damaged: A row has no manifest. The message names the row.
    """
    own = {(row.version, row.path) for row in _all_rows(source.rows, root)}
    for row in _all_rows(target, root):
        if row.moved_to is not None:
            return  # the history moved away from the target before; its rows are replaced
        if (row.version, row.path) not in own and source.retry.call(partial(source.objects.head, row.path)) is None:
            raise Damaged(
                f"{root.base_uri}: {target.url} holds a row of version {row.version}, whose manifest "
                f"{row.path!r} does not exist. The row was left by another table at this place. Delete the rows of "
                f"{root.base_uri} in {target.url}, then call change_commit_store again."
            )


def _all_rows(rows: ManagedRows, root: DatasetRoot) -> list[VersionRow]:
    return rows.list(root.base_uri, after=None, limit=None, descending=True)
