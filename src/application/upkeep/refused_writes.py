"""Remove files of refused writes, which bring a dropped name back (ADR 190)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta

import attrs

from lancekeep.application.entries.ledger import Ledger
from lancekeep.application.entries.places import Places
from lancekeep.application.upkeep.fsck import Finding, Kind, unless_young
from lancekeep.domain.directory_contents import foreign_files, is_mark
from lancekeep.domain.errors import AlreadyExists, CommitStoreMismatch, Damaged, InvalidInput, NotFound
from lancekeep.domain.layout import VERSIONS
from lancekeep.domain.manifest_entry import TABLE
from lancekeep.domain.naming import ManifestName
from lancekeep.domain.table import DEREGISTERED_MARKER, MOVED_MARKER, MOVING_MARKER, RESERVED_MARKER, Table


@attrs.frozen
class _Found:
    """A finding, and the keys of the files of the directory."""

    finding: Finding
    keys: frozenset[str]


@attrs.frozen
class RefusedWrites:
    """Finds and removes files that make a table of a name that nothing declared.

    Attributes:
        ledger: The entries.
        places: The directories.
        remove_unwritten: Removes a table without a version; see `Tables.remove_unwritten`.
        grace: See `Upkeep.fsck`.
        now: A clock.
    """

    ledger: Ledger
    places: Places
    remove_unwritten: Callable[[Table, Callable[[], bool]], bool]
    grace: timedelta
    now: Callable[[], datetime]

    def run(self, *, repair: bool) -> tuple[Finding, ...]:
        """Return the findings; with ``repair``, remove what can be removed."""
        found = list(self._all())
        return tuple(self._repaired(table, each) if repair else each.finding for table, each in found)

    def _all(self) -> Iterator[tuple[Table, _Found]]:
        if not self.ledger.guarantees.lists_directories:
            return
        for entry in list(self.ledger.view().all_of(TABLE)):
            if entry.listed:
                with suppress(Damaged, InvalidInput, CommitStoreMismatch):  # other findings report those
                    table = Table.from_entry(entry)
                    found = self._of(table)
                    if found is not None:
                        yield table, found

    def _of(self, table: Table) -> _Found | None:
        """Return the finding on a directory; None if it is of a table that has a version or was declared.

        A writer that creates a table by the path writes the same files before its first version. So repair leaves young
        files.
        """
        below = f"{self.places.key(table)}/"
        infos = [*self.places.objects.list(below), *self.places.objects.unfinished(below)]
        infos = [info for info in infos if info.key != f"{below}{DEREGISTERED_MARKER}"]  # repair has written it
        names = [info.key.removeprefix(below) for info in infos]
        if not infos or {RESERVED_MARKER, MOVED_MARKER, MOVING_MARKER}.intersection(names):
            return None
        if any(map(_is_version, names)) or self.ledger.commits.has_versions(self.places.dataset_root(table)):
            return None
        foreign = foreign_files(names)
        meaning = (
            f"{table.id} is listed because of its files, but has no version and was not declared: a writer that was "
            "refused after a drop left them, or a writer is creating the table"
        )
        if foreign:
            meaning += f". Repair leaves them, because neither Lance nor Lancekeep wrote {foreign[0]!r}"
        repair = "" if foreign or not any(map(is_mark, names)) else "remove the directory"
        finding = Finding(Kind.UNREFERENCED, table.location, meaning, repair)
        keys = frozenset(info.key for info in infos)
        return _Found(unless_young(finding, infos, self.grace, self.now()), keys)

    def _repaired(self, table: Table, found: _Found) -> Finding:
        """Remove the files if they are still as they were found, and return the finding.

        The name is taken from the directory first. A commit at this moment is refused, or its table is entered.
        """
        finding, entry = found.finding, self.ledger.view().find(table.id.key)
        if not finding.repair or entry is None or not entry.listed or self._of(table) != found:
            return finding
        removed = False
        with suppress(NotFound, AlreadyExists):  # another process has dropped the name, or has given it to a table
            removed = self.remove_unwritten(table, lambda: self._of(table) == found)
        return attrs.evolve(finding, repaired=removed)


def _is_version(name: str) -> bool:
    """Return whether a file is a final manifest of a table or branch."""
    directory, _, file = name.rpartition("/")
    parsed = ManifestName.parse(file)
    return f"/{directory}".endswith(f"/{VERSIONS}") and parsed is not None and not parsed.is_staged
