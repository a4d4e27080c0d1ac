"""Write partitions: plan distributed writes, commit, and publish.

A version is visible only after it is published, and always follows the published version. What a failed write has
committed after the published version never becomes visible (``docs/adr/0026``).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import Any

import attrs
import pyarrow as pa

from lancekeep.application.concurrency import at_once
from lancekeep.application.entries.ledger import Ledger
from lancekeep.application.entries.places import Places
from lancekeep.application.entries.removal import Removal
from lancekeep.application.partitions.arrow_json import exact_schema_text, schema_of
from lancekeep.application.partitions.values import column_type
from lancekeep.application.rows.writes import Writes
from lancekeep.domain.catalog import AddColumns, CatalogView, Change, Entries, SetProperties
from lancekeep.domain.errors import (
    ConcurrentModification,
    Damaged,
    InvalidInput,
    LancekeepError,
    Refused,
    StoreUnavailable,
    VersionTaken,
)
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.manifest_entry import TABLE, ManifestEntry
from lancekeep.domain.partition_batches import Batch
from lancekeep.domain.partitioning import (
    READ_BRANCH,
    READ_TAG,
    READ_VERSION,
    SCHEMA_PROPERTY,
    PartitionSpec,
    specs_of,
)
from lancekeep.domain.partitions import (
    Overtaken,
    Partition,
    Publication,
    Values,
    by_values,
    key_of,
    level_names,
    levels_of,
    partition_of,
    publish,
    require_main,
    require_unchanged,
    table_of,
)
from lancekeep.domain.table import Table, new_location
from lancekeep.format.logical_types import logical_type
from lancekeep.ports.table_engine import TableEngine, WriteMode, WritePlan

APPEND, OVERWRITE = "append", "overwrite"
"""Add rows to the partitions to which the data belong, or replace their rows."""

_ATTEMPTS = 20


@attrs.frozen
class PartitionWritePlan:
    """A plan for distributed writers of partitions. It pickles.

    Attributes:
        known: The ids and URIs of the existing partitions, by their values.
        levels: The existing namespaces, by their values.
        root_uri: The root of new partitions.
        salt: Random text from which the names of new namespaces are derived.
        stable_row_ids: Whether new partitions have stable row ids.
        batch: The batch of a stream to which the rows belong.
    """

    spec: PartitionSpec
    schema: Any
    mode: str
    root_uri: str
    storage_options: Mapping[str, str] = attrs.field(repr=False)
    known: Mapping[Values, tuple[ObjectId, str]]
    levels: Mapping[Values, ObjectId]
    salt: str
    stable_row_ids: bool = False
    batch: Batch | None = None

    def place(self, values: Values, *, shared: bool = False) -> tuple[WritePlan, str | None]:
        """Return the plan for a partition, and the location if the partition is new.

        Every call returns another location for a new partition, unless several tasks write it: then ``shared`` gives
        each task the same one.
        """
        mode = WriteMode(self.mode)
        found = self.known.get(key_of(values))
        if found is not None:
            return WritePlan(found[0], found[1], self.storage_options, self.schema, mode, 1, False), None
        table = self.table_of(values)
        digest = sha256(f"{table.key} {self.salt}".encode()).hexdigest()
        location = new_location(table, digest[:8] if shared else secrets.token_hex(4))
        return self.at(table, location), location

    def table_of(self, values: Values) -> ObjectId:
        """Return the id of a new partition's table."""
        return table_of(self.levels, self.spec, values, level_names(self.spec, values, self.salt))

    def at(self, table: ObjectId, location: str) -> WritePlan:
        """Return the plan for a new partition with a name and location from `place`."""
        uri = f"{self.root_uri.rstrip('/')}/{location}"
        return WritePlan(
            table,
            uri,
            self.storage_options,
            self.schema,
            WriteMode.CREATE,
            0,
            True,
            stable_row_ids=self.stable_row_ids,
        )


@attrs.frozen
class WrittenPartition:
    """Fragments that were written for a partition.

    Attributes:
        values: The values of the partition.
        fragments: The fragments.
        plan: The plan from `PartitionWritePlan.place`.
        location: The location of a new partition; None for an existing partition.
    """

    values: Values
    fragments: tuple[Any, ...]
    plan: WritePlan
    location: str | None


@attrs.define
class _Part:
    """One partition of a write, and its publication once it is committed."""

    written: WrittenPartition
    publication: Publication | None = None


def _parts(written: Iterable[WrittenPartition]) -> list[_Part]:
    """Return the partitions that received rows.

    Raises:
        InvalidInput: A partition was written twice.
    """
    parts = [_Part(each) for each in written if each.fragments]
    if len({key_of(part.written.values) for part in parts}) < len(parts):
        raise InvalidInput("a partition was written twice in one write; give all its fragments together")
    return parts


@attrs.frozen
class PartitionWriter:
    """The commits of one write, and their publication."""

    ledger: Ledger
    places: Places
    writes: Writes
    removal: Removal
    engine: TableEngine
    plan: PartitionWritePlan

    def run(self, written: Sequence[WrittenPartition]) -> list[Partition]:
        """Publish partitions, unless their batch of a stream is published.

        Returns:
            The published partitions.
        """
        parts, batch = _parts(written), self.plan.batch
        with self._forgetting(parts):
            if batch is not None and batch.is_published(self.ledger.view()):
                published = None
            else:
                published = self._publish(parts) if parts or batch is not None else []
        if published is None:
            self._forget_unpublished(parts)
        return published or []

    def change(
        self,
        read: Sequence[Partition],
        acts: Mapping[ObjectId, Callable[[Any], Any]],
        created: Sequence[WrittenPartition],
        *,
        exactly: bool,
        schema: pa.Schema | None,
    ) -> None:
        """Change partitions, add partitions, and publish all of it atomically.

        Args:
            read: The partitions that were read.
            acts: The changes by table. Each takes the rows that were read, as a dataset, and commits one version.
            created: The new partitions.
            exactly: Whether all partitions must be as they were read, not only those that change.
            schema: The schema of the namespace after the change; None keeps it.
        """
        parts = _parts(created)
        bases = [partition for partition in read if partition.table.id in acts]

        def decide(view: CatalogView) -> tuple[list[Change], None]:
            self._require_same(view)
            if exactly:
                require_unchanged(view, read)
            first = [part.publication for part in parts if part.publication is not None]
            changes: list[Change] = [columns_of(self.plan.spec, self.plan.schema)]
            for spec in specs_of(view.properties).values():
                changed = [each for each in publications if each.base is not None and each.base.spec == spec]
                changes += publish(view, spec, changed + (first if spec == self.plan.spec else []))
            if schema is not None:
                changes.append(SetProperties({SCHEMA_PROPERTY: exact_schema_text(schema)}))
            return changes, None

        with self._forgetting(parts):
            for part in parts:
                part.publication = self._first(part.written)
            try:
                with self.writes.altering([] if schema is None else list(acts)):
                    publications = at_once(self._changed, bases, [acts[base.table.id] for base in bases])
                self.ledger.apply(decide)
            except (Overtaken, VersionTaken) as error:
                raise ConcurrentModification(
                    "other writers changed the same partitions; nothing was published"
                ) from error

    def create(
        self,
        written: Sequence[WrittenPartition],
        creation: Callable[[CatalogView], list[Change]],
        apply: Callable[[Callable[[CatalogView], list[Change]]], None],
    ) -> None:
        """Publish the first partitions in the change that creates the namespace.

        Args:
            written: The partitions.
            creation: Returns the changes that create the namespace, or raises because it exists.
            apply: Applies the changes that a function decides.
        """
        parts = _parts(written)

        def decide(view: CatalogView) -> list[Change]:
            created = creation(view)
            first = [part.publication for part in parts if part.publication is not None]
            return [*created, *publish(Entries(0, (), {}).after(created), self.plan.spec, first)]

        with self._forgetting(parts):
            for part in parts:
                part.publication = self._first(part.written)
            apply(decide)

    @contextmanager
    def _forgetting(self, parts: Sequence[_Part]) -> Iterator[None]:
        """Remove what was written for new partitions if the publication fails."""
        try:
            yield
        except StoreUnavailable:
            raise  # the outcome is unknown, so the written files stay
        except Exception:
            self._forget_unpublished(parts)
            raise

    def _forget_unpublished(self, parts: Sequence[_Part]) -> None:
        """Remove the directories of new partitions, unless they are published.

        A step after the publication may have failed, or this process repeats a batch that it has published. A removal
        spares a directory that an entry has.
        """
        for part in parts:
            self._forget(part)

    def _changed(self, base: Partition, act: Callable[[Any], Any]) -> Publication:
        """Commit a change as a version directly after the rows of ``base``."""
        require_main(base.table.id, base.branch, base.tag)
        if base.version is None:
            raise Refused(
                f"the partition {base.table.id} has no published version, because other software wrote it; nothing was "
                "changed. Append a row to the partition first."
            )
        start = base.version
        if start != self._latest(self.places.dataset_root(base.table)):
            start = self.engine.restore(base.table.id, start).version
        version = self.writes.change_unpublished(base.table.id, act, start).version
        return Publication(base.values, base.table.id, base.table.location, base, version)

    def _publish(self, parts: list[_Part]) -> list[Partition] | None:
        """Publish partitions; return None if another process has published the batch."""
        pending, batch = parts, self.plan.batch

        def decide(view: CatalogView) -> tuple[list[Change], list[ManifestEntry] | None]:
            if batch is not None and batch.is_published(view):
                return [], None
            self._require_same(view)
            publications = [part.publication for part in parts if part.publication is not None]
            changes = publish(view, self.plan.spec, publications, alone=self.plan.mode == OVERWRITE)
            entered = [change.entry for change in changes if change.entry.object_type == TABLE]
            recorded = [] if batch is None else [batch.record]
            return [columns_of(self.plan.spec, self.plan.schema), *changes, *recorded], entered

        for _ in range(_ATTEMPTS):
            view = self.ledger.view()
            present = by_values(view, self.plan.spec)
            plan = attrs.evolve(self.plan, levels=levels_of(view, self.plan.spec))
            bases = [present.get(key_of(part.written.values)) for part in pending]
            at_once(self._commit, pending, bases, [plan.table_of(part.written.values) for part in pending])
            try:
                entered = self.ledger.apply(decide)
                return None if entered is None else [partition_of(self.plan.spec, entry) for entry in entered]
            except Overtaken as overtaken:
                pending = [part for part in parts if key_of(part.written.values) in overtaken.values]
        raise ConcurrentModification(
            "other writers kept publishing the same partitions; nothing was published. Try again"
        )

    def _require_same(self, view: CatalogView) -> None:
        """Check that the namespace is the one to which the write began."""
        schema = view.properties.get(SCHEMA_PROPERTY)
        is_same = schema is not None and schema_of(schema).equals(self.plan.schema, check_metadata=True)
        if not is_same or specs_of(view.properties).get(self.plan.spec.id) != self.plan.spec:
            raise ConcurrentModification(
                "the partitions were dropped, or their columns were changed, during the write; nothing was published"
            )

    def _commit(self, part: _Part, base: Partition | None, table: ObjectId) -> None:
        """Commit the rows as a version that follows the version that ``base`` publishes.

        Args:
            part: The partition of the write.
            base: The published partition; None if it is new.
            table: The id of the partition's table if it is new.
        """
        written = part.written
        if base is None and written.location is None:
            raise ConcurrentModification(f"the partition {written.plan.table} was dropped; nothing was published")
        if base is None:
            if written.plan.table != table:
                location = new_location(table, secrets.token_hex(4))
                written = self._move(part, self.plan.at(table, location), location)
            part.publication = part.publication or self._first(written)
            return
        if written.location is not None:
            uri, mode = self.places.uri(base.table), WriteMode(self.plan.mode)
            plan = attrs.evolve(written.plan, table=base.table.id, uri=uri, mode=mode, read_version=1, declared=False)
            written = self._move(part, plan, None)
        elif written.plan.table != base.table.id:
            raise ConcurrentModification(f"the partition {written.plan.table} was replaced; nothing was published")
        part.publication = self._commit_to(base, written)

    def _first(self, written: WrittenPartition) -> Publication:
        """Commit the first version of a table that has no entry until it is published."""
        assert written.location is not None
        version = self.engine.create_at(written.plan, written.fragments)
        root = self.places.dataset_root(Table(written.plan.table, written.location, {}))
        self.ledger.commits.latest(root)  # record the version in the commit store
        return Publication(written.values, written.plan.table, written.location, None, version)

    def _move(self, part: _Part, plan: WritePlan, location: str | None) -> WrittenPartition:
        """Write the rows again for another table.

        This is necessary if a concurrent write has entered the partition or a level of it.
        """
        written = part.written
        if part.publication is None:
            self.engine.create_at(written.plan, written.fragments)
        rows = self.engine.open_at(written.plan.uri).scanner().to_reader()
        fragments = tuple(self.engine.write_fragments(plan, rows))
        self._forget(part)
        part.written, part.publication = WrittenPartition(written.values, fragments, plan, location), None
        return part.written

    def _forget(self, part: _Part) -> None:
        """Remove the directory of a new partition that was not published."""
        if part.written.location is not None:
            with suppress(LancekeepError):
                self.removal.remove(Table(part.written.plan.table, part.written.location, {}))

    def _commit_to(self, base: Partition, written: WrittenPartition) -> Publication:
        """Commit a version with the rows of ``base`` and the fragments.

        If the mode is to overwrite, the version has the fragments only.

        Versions after the published version belong to writes that failed or are in progress. Appending to them would
        publish them, so the published version is restored first. Lance rebases silently: a commit that is not the very
        next version holds rows of other writers, and stays unpublished too.
        """
        root = self.places.dataset_root(base.table)
        for attempt in range(_ATTEMPTS):
            require_main(base.table.id, base.branch, base.tag)
            latest = self._latest(root)
            overwrites = self.plan.mode == OVERWRITE
            start = latest if base.version is None or overwrites else base.version
            with suppress(ConcurrentModification, VersionTaken):
                if start != latest:
                    start = self.engine.restore(base.table.id, start).version
                plan = attrs.evolve(written.plan, read_version=start)
                version = self.writes.commit_fragments(plan, written.fragments, {}, exactly=False).version
                if overwrites or version == start + 1:
                    return Publication(written.values, base.table.id, base.table.location, base, version)
            retry = self.ledger.commits.retry
            retry.sleep(retry.jitter() * min(0.5, 0.01 * 2**attempt))
            base = self._again(base)
        raise ConcurrentModification(
            f"{base.table.id}: other writers kept committing; nothing was published. Try again"
        )

    def _again(self, base: Partition) -> Partition:
        """Return the partition with the version that is published now."""
        entry = self.ledger.view().find(base.table.id.key)
        if entry is None or entry.location != base.table.location:
            raise ConcurrentModification(f"the partition {base.table.id} was dropped; nothing was published")
        return partition_of(self.plan.spec, entry)

    def _latest(self, root: DatasetRoot) -> int:
        latest = self.ledger.commits.latest(root)
        if latest is None:
            raise Damaged(f"the partition at {root.base_uri} is in the catalog and has no version; drop it")
        return latest.version


def columns_of(spec: PartitionSpec, schema: pa.Schema) -> AddColumns:
    """Return the columns that the entries of partitions need in the manifest table."""
    versions = {READ_VERSION: "uint64", READ_BRANCH: "string", READ_TAG: "string"}
    return AddColumns(versions | {field.column: logical_type(column_type(field, schema)) for field in spec.fields})
