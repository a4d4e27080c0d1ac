"""The move of all versions to another commit store.

See `Catalog.change_commit_store`.
"""

from __future__ import annotations

from lancekeep.application.ledger import Ledger
from lancekeep.application.places import Places
from lancekeep.domain.manifest_entry import TABLE
from lancekeep.domain.table import Table
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
    target = commits.with_rows(rows)
    # An unreachable store must not block the catalog, so it is read before the move begins.
    rows.latest(places.manifest_root.base_uri)
    for root in (places.dataset_root(Table.from_entry(entry)) for entry in view.all_of(TABLE)):
        for history in commits.histories(root):  # a row that cannot be moved is refused before the move begins
            commits.require_room(history, target)
    view = ledger.begin_move(rows.url)
    roots = [places.dataset_root(Table.from_entry(entry)) for entry in view.all_of(TABLE)]
    if ledger.shares_store(view):
        roots.append(places.manifest_root)
    moved = sum(commits.move_history(history, target) for root in roots for history in commits.histories(root))
    ledger.finish_move(target)
    return moved
