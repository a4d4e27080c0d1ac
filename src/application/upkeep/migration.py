"""The migration of V1 tables to the manifest.

See "Migration from V1 to V2" in the specification of the directory namespace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice

import attrs

from lancekeep.application.entries.clones import Clones
from lancekeep.application.entries.ledger import Ledger
from lancekeep.application.entries.places import Places
from lancekeep.domain.catalog import CatalogView, Change, Put
from lancekeep.domain.errors import InvalidInput, Unsupported
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import TABLE, ManifestEntry
from lancekeep.domain.notebook import Shown
from lancekeep.domain.table import V1_SUFFIX, v1_table
from lancekeep.ports.object_store import ObjectStore


@attrs.frozen
class MigrationProgress:
    """The progress of a migration.

    Attributes:
        registered: The number of tables registered so far.
        skipped: The number of tables skipped so far.
        total: The number of V1 directories.
    """

    registered: int
    skipped: int
    total: int


@attrs.frozen
class Skipped:
    """A V1 directory that was not registered.

    Attributes:
        location: The directory, relative to the root.
        reason: Why it was skipped.
    """

    location: str
    reason: str


@attrs.frozen
class MigrationReport(Shown):
    """What a migration did or, with ``dry_run``, would do."""

    registered: tuple[ObjectId, ...]
    skipped: tuple[Skipped, ...]
    dry_run: bool

    @property
    def total(self) -> int:
        return len(self.registered) + len(self.skipped)

    def __str__(self) -> str:
        done = "would be registered" if self.dry_run else "registered"
        lines = [f"{len(self.registered)} of {self.total} V1 tables {done}, {len(self.skipped)} skipped"]
        lines += (f"  {done}: {table}" for table in self.registered)
        lines += (f"  skipped: {skipped.location}: {skipped.reason}" for skipped in self.skipped)
        return "\n".join(lines)


def migrate(
    ledger: Ledger,
    places: Places,
    clones: Clones,
    *,
    dry_run: bool,
    batch: int,
    progress: Callable[[MigrationProgress], None] | None,
) -> MigrationReport:
    """Register every V1 table in the manifest; see `Upkeep.migrate`."""
    view = ledger.view()
    if batch < 1:
        raise InvalidInput(f"batch is {batch!r}; give at least 1")
    if not (ledger.guarantees.lists_directories and ledger.guarantees.locations):
        raise Unsupported(
            "a migration needs a catalog that sees V1 tables and has a manifest to enter them in: open it with "
            "mode='compatible'"
        )
    skipped = list(_unspeakable(places.objects, places.prefix))
    candidates = [entry for entry in view.all_of(TABLE) if entry.listed]
    total = len(candidates) + len(skipped)
    registered: list[ObjectId] = []
    remaining = iter(candidates)
    while some := list(islice(remaining, batch)):
        entered = some
        if not dry_run:
            for entry in some:
                clones.record_dataset(str(entry.location))
            entered, refused = ledger.apply(partial(_register, candidates=some))
            skipped += refused
        registered += (ObjectId.from_key(entry.object_id) for entry in entered)
        if progress is not None:
            progress(MigrationProgress(len(registered), len(skipped), total))
    return MigrationReport(tuple(registered), tuple(skipped), dry_run)


def _register(
    view: CatalogView, candidates: Sequence[ManifestEntry]
) -> tuple[list[Change], tuple[list[ManifestEntry], list[Skipped]]]:
    """Decide to register some V1 tables.

    Returns:
        The changes, and the entries that were registered with the tables that were skipped.
    """
    now = [(candidate, view.find(candidate.object_id)) for candidate in candidates]
    registered = [found for _, found in now if found is not None and found.listed]
    skipped = [
        Skipped(
            str(candidate.location),
            "it was dropped or deregistered during the migration"
            if found is None
            else "its name was entered during the migration",
        )
        for candidate, found in now
        if found is None or not found.listed
    ]
    return [Put(attrs.evolve(entry, listed=False)) for entry in registered], (registered, skipped)


def _unspeakable(objects: ObjectStore, root_prefix: str) -> Iterator[Skipped]:
    """Yield V1 directories with invalid table names, which no reader can open."""
    for name in objects.directories(root_prefix):
        if name.endswith(V1_SUFFIX) and v1_table(name) is None:
            yield Skipped(name, "no table can have this name; rename the directory")
