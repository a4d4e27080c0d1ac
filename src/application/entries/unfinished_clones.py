"""Deep clones that were stopped, or are in progress."""

from __future__ import annotations

from functools import partial

import attrs

from lancekeep.application.entries.ledger import Ledger
from lancekeep.application.entries.places import Places
from lancekeep.domain.errors import Refused
from lancekeep.domain.table import Table
from lancekeep.format.begun_clone import BegunClone


@attrs.frozen
class UnfinishedClones:
    """Tables without a version whose directory is reserved for a deep clone.

    Until the clone has its version, other writers may neither write to such a table nor move its files: the same call
    of ``clone`` must find what it has copied. A change of the entry alone is permitted.
    """

    _ledger: Ledger
    _places: Places

    def find(self, table: Table) -> BegunClone | None:
        """Return the unfinished deep clone in a table's directory, or None."""
        commits = self._ledger.commits
        begun = commits.retry.call(partial(self._places.begun_clone, table))
        # A clone that was stopped after its commit is complete, though its marker still describes it.
        return None if begun is None or commits.has_versions(self._places.dataset_root(table)) else begun

    def refusal(self, table: Table) -> Refused | None:
        """Return the error for a write to an unfinished clone; None for any other table."""
        begun = self.find(table)
        if begun is None:
            return None
        return Refused(
            f"{table.id} is an unfinished deep clone of version {begun.version} of the table at {begun.source!r}; "
            "nothing was changed. Complete it by the same call of clone, or remove it with drop_table"
        )

    def refuse(self, table: Table) -> None:
        """Raise `Refused` if a table is an unfinished clone."""
        refusal = self.refusal(table)
        if refusal is not None:
            raise refusal
