"""Remove the rows and files of tables, unless shallow clones read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from lancekeep.domain.dropped import is_record, owner_id
from lancekeep.domain.errors import Damaged, LancekeepError, Refused
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import ManifestEntry
from lancekeep.domain.table import Table, v1_table

if TYPE_CHECKING:
    from lancekeep.application.entries.clones import Clones
    from lancekeep.application.entries.ledger import Ledger
    from lancekeep.application.entries.places import Places

_LISTED_DIRECTORIES, _LISTED_READS = 1000, 50
"""The limits of the search for clones: V1 directories, and tables among them without a manifest entry."""

DROPPED = " (dropped)"
"""The end of the name of a dropped table among readers."""
FORCE = (
    "`lancekeep drop --force` (drop_table(force=True), drop_namespace(force=True)) drops the table all the same; the "
    "clones cannot be read afterwards."
)


class Removal:
    """Removes the rows and files of tables, and finds the clones that prevent it.

    Args:
        ledger: The entries.
        places: The directories.
        clones_of: Returns the clones of the catalog.
    """

    def __init__(self, ledger: Ledger, places: Places, clones_of: Callable[[], Clones]) -> None:
        self._ledger = ledger
        self._places = places
        self._clones_of = clones_of

    @property
    def clones(self) -> Clones:
        """The clones of the catalog."""
        return self._clones_of()

    # -- clones -------------------------------------------------------------------------------------------------

    def record_listed(self, object_id: ObjectId) -> None:
        """Record a V1 table as a clone, if it is one, before its entry changes.

        No commit through the catalog may have recorded it.
        """
        entry = self._ledger.view().find(object_id.key) if self._ledger.guarantees.lists_directories else None
        if entry is not None and entry.listed and entry.location:
            self.clones.record_dataset(entry.location)

    def readers(self, table: Table) -> list[str]:
        """Return the clones that read files of a table.

        Returns:
            Identifiers of tables; for a clone that is not in the catalog, its location.
        """
        return [name for name, _ in self.located_readers(table)]

    def located_readers(self, table: Table) -> list[tuple[str, str]]:
        """Return the `readers` of a table, each with its location."""
        return self._named(self._readers(table))

    def recorded_readers(self, table: Table) -> list[str]:
        """Return the locations of the recorded clones that read files of a table."""
        return self.clones.recorded_readers(table.location)

    def refuse_needed(self, doomed: Sequence[Table], advice: str = FORCE) -> None:
        """Raise `Refused` if a clone outside ``doomed`` reads files of a table in it."""
        for table in doomed:
            readers = self._readers(table) - {other.location for other in doomed}
            if readers:
                raise self.needed(table, readers, advice)

    def refuse_needed_since(self, table: Table, doomed: Sequence[Table]) -> None:
        """Raise `Damaged` if a table became the source of a clone during its drop."""
        readers = set(self.recorded_readers(table)) - {other.location for other in doomed}
        if readers:
            raise Damaged(
                f"the table {table.id} is dropped, but its files at {table.location!r} stay, because in the same "
                f"moment {', '.join(sorted(readers))} became a clone of it. Register it again, or drop the clone "
                "and have `lancekeep repair --remove-tables` remove the files"
            )

    def needed(self, table: Table, clones: Iterable[str], advice: str = FORCE) -> Refused:
        """Return the refusal for a table whose files these clones read."""
        return Refused(
            f"the table {table.id} is needed by {', '.join(name for name, _ in self._named(clones))}: a shallow clone "
            "reads its files. "
            f"Nothing was changed. Drop the clones first, or make deep copies of them. {advice}"
        )

    def _readers(self, table: Table) -> set[str]:
        return {*self.recorded_readers(table), *self._listed_readers(table)}

    def _listed_readers(self, table: Table) -> Iterator[str]:
        """Yield clones of a table among V1 directories that no operation has recorded.

        The search is limited to the first directories.
        """
        if not self._ledger.guarantees.lists_directories:
            return
        view, reads = self._ledger.view(), 0
        for directory in islice(self._places.objects.directories(self._places.prefix), _LISTED_DIRECTORIES):
            listed = v1_table(directory)
            if listed is None or directory == table.location:
                continue
            entry = view.find(listed.key)
            if entry is not None and entry.listed and entry.location == directory:
                reads += 1
                if self.clones.ends_read(directory, table.location):
                    yield directory
                if reads >= _LISTED_READS:
                    return

    def _named(self, locations: Iterable[str]) -> list[tuple[str, str]]:
        """Return the identifier of the table at each location, or the location if no table has it."""
        view = self._ledger.view()
        owners = {location: view.owner_of(location) for location in sorted(locations)}
        return [(location if owner is None else _shown(owner), location) for location, owner in owners.items()]

    # -- removing -----------------------------------------------------------------------------------------------

    def remove(self, table: Table, *, copied: bool = False, record: str | None = None) -> None:
        """Remove the rows and files of a table whose entry is gone.

        Rows are removed first, so that writers that still have the table open can no longer commit. A commit in
        progress may write its row again before the files are removed, so rows are removed again at the end. A directory
        that was registered again in between stays, unless its table is only visible to V1 readers.

        Args:
            table: The table.
            copied: The directory is a copy, so foreign files are removed too.
            record: The object id of the record of a dropped table, which owns the directory until it is removed.
        """
        root = self._places.dataset_root(table)
        view = self._ledger.view()
        owner = view.owner_of(table.location)
        if record is not None and (owner is None or owner.object_id != record):
            return
        if record is None and owner is not None and (not owner.listed or not view.guarantees.locations):
            return
        commits = self._ledger.commits
        commits.forget_history(root)
        keys = self._places.contents(root)
        latest = self._places.latest_manifest(root, keys)
        self._places.remove(root, keys, copied=copied)
        commits.retry.call(partial(commits.rows.delete, root.base_uri))
        commits.forget()
        if latest is not None:
            with suppress(LancekeepError):  # fsck removes the records of a removed clone
                self.clones.forget(table.location, *latest)

    def remove_leftovers(self, table: Table, keys: Iterable[str]) -> None:
        """Remove objects of a directory without a table, and rows without a manifest.

        Objects that are not in ``keys`` stay: a writer may have a deregistered table open.
        """
        root = self._places.dataset_root(table)
        self._places.remove(root, keys)
        self._ledger.commits.forget_predecessor(root)

    def discard(self, table: Table) -> None:
        """Remove the files and rows of a table that was never entered.

        If the removal fails, `Upkeep.fsck` reports the remains.
        """
        with suppress(LancekeepError):  # the caller raises the original error
            self.remove(table)


def _shown(owner: ManifestEntry) -> str:
    return f"{owner_id(owner)}{DROPPED}" if is_record(owner) else str(owner_id(owner))
