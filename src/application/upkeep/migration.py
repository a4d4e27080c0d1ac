"""The tables of a V1 directory are entered in the manifest (directory namespace V2, "Migration from V1 to V2")."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import attrs

from lancekeep.domain.catalog import CatalogView, Change, Put
from lancekeep.domain.errors import InvalidInput, Unsupported
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import TABLE, ManifestEntry
from lancekeep.domain.table import V1_SUFFIX, v1_table
from lancekeep.ports.manifest_store import Decision
from lancekeep.ports.object_store import ObjectStore


@attrs.frozen
class MigrationProgress:
    """How far a migration is: tables registered and skipped so far, of ``total``."""

    registered: int
    skipped: int
    total: int


@attrs.frozen
class Skipped:
    """A V1 directory that was not registered, relative to the root, and why."""

    location: str
    reason: str


@attrs.frozen
class MigrationReport:
    """What a migration did or, with ``dry_run``, would do. total: the V1 directories that it looked at."""

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
    view: CatalogView,
    apply: Callable[[Decision], object],
    objects: ObjectStore,
    root_prefix: str,
    record: Callable[[str], object],
    *,
    lists_v1: bool,
    dry_run: bool,
    batch: int,
    progress: Callable[[MigrationProgress], None] | None,
) -> MigrationReport:
    """Enter every V1 table that ``view`` lists, ``batch`` tables in one atomic change; see `Catalog.migrate`.

    ``record``: called with the location of each table before it is entered. ``lists_v1``: whether the view shows V1
    directories at all. Raises `Unsupported` otherwise, and in V1 alone.
    """
    if batch < 1:
        raise InvalidInput(f"batch is {batch!r}; at least one table has to go into a change")
    if view.flat or not lists_v1:
        raise Unsupported(
            "a migration needs a catalog that sees V1 tables and has a manifest to enter them in: open it with "
            "mode='compatible'"
        )
    skipped = list(_unspeakable(objects, root_prefix))
    candidates = [entry for entry in view.all_of(TABLE) if entry.listed]
    total = len(candidates) + len(skipped)
    registered: list[ObjectId] = []
    remaining = iter(candidates)
    while some := list(islice(remaining, batch)):
        change = _Registration(some)
        if not dry_run:
            for entry in some:
                record(str(entry.location))
            apply(change.decide)
        registered += (ObjectId.from_key(entry.object_id) for entry in change.registered)
        skipped += change.skipped
        if progress is not None:
            progress(MigrationProgress(len(registered), len(skipped), total))
    return MigrationReport(tuple(registered), tuple(skipped), dry_run)


class _Registration:
    """The decision to enter some V1 tables, and what came of it when it was asked last."""

    def __init__(self, candidates: Sequence[ManifestEntry]) -> None:
        self._candidates = candidates
        self.registered = list(candidates)
        self.skipped: list[Skipped] = []

    def decide(self, view: CatalogView) -> list[Change]:
        now = [(candidate, view.find(candidate.object_id)) for candidate in self._candidates]
        self.registered = [found for _, found in now if found is not None and found.listed]
        self.skipped = [
            Skipped(
                str(candidate.location),
                "it was dropped or deregistered meanwhile" if found is None else "its name was entered meanwhile",
            )
            for candidate, found in now
            if found is None or not found.listed
        ]
        return [Put(attrs.evolve(entry, listed=False)) for entry in self.registered]


def _unspeakable(objects: ObjectStore, root_prefix: str) -> Iterator[Skipped]:
    """V1 directories whose names no identifier can have, so that neither V2 nor we could ever be asked for them."""
    for name in objects.directories(root_prefix):
        if name.endswith(V1_SUFFIX) and v1_table(name) is None:
            yield Skipped(name, "no table can have this name; rename the directory")
