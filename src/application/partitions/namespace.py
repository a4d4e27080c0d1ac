"""A partitioned namespace: writing and reading tables that share a schema, one per partition, as one.

A write commits to each table and then has all those versions read from then on in one change of the manifest table.
A version counts only once it is published, and is always built on the published one: what a write that failed has left
behind it never becomes visible (``docs/adr/0026``).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import pyarrow as pa

from lancekeep.application.partitions.arrow_json import exact_schema_text, schema_of
from lancekeep.application.partitions.values import (
    column_type,
    expression,
    is_understood,
    keeps,
    partition_arrays,
    partition_field,
    split,
    with_field_ids,
)
from lancekeep.domain.catalog import AddColumns, CatalogView, Change, Put, SetProperties, require_free
from lancekeep.domain.errors import (
    AlreadyExists,
    ConcurrentModification,
    Damaged,
    InvalidInput,
    LancekeepError,
    NamespaceNotFound,
    Refused,
    StoreUnavailable,
    Unsupported,
    VersionTaken,
)
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.manifest_entry import NAMESPACE, TABLE, ManifestEntry
from lancekeep.domain.partitioning import (
    READ_BRANCH,
    READ_TAG,
    READ_VERSION,
    SCHEMA_PROPERTY,
    PartitionBy,
    PartitionSpec,
    next_spec,
    specs_of,
)
from lancekeep.domain.partitions import (
    DATASET,
    NAME_LENGTH,
    Overtaken,
    Partition,
    Publication,
    Values,
    by_values,
    key_of,
    level_names,
    levels_of,
    partition_of,
    partitions_of,
    publish,
    require_alone,
    table_of,
)
from lancekeep.domain.pruning import Filter, parse_filter
from lancekeep.domain.table import Table, new_location
from lancekeep.format.logical_types import logical_type
from lancekeep.ports.manifest_store import Decision
from lancekeep.ports.table_engine import TableEngine, WriteMode, WritePlan

if TYPE_CHECKING:
    from lancekeep.application.catalog import Catalog

APPEND, OVERWRITE = "append", "overwrite"
"""What a write does to the partitions that the data belong to: add to them, or replace their rows."""

T = TypeVar("T")

_ATTEMPTS = 20
_AT_ONCE = 8


@attrs.frozen
class Scan:
    """What a filter leaves of a partitioned namespace at one moment: the partitions to read, each at its version.

    skipped: how many partitions cannot hold a row that satisfies the filter.
    """

    partitions: tuple[Partition, ...]
    skipped: int
    schema: pa.Schema
    filter: Filter
    _engine: TableEngine
    _open: Callable[[Partition], Any]

    def datasets(self) -> Iterator[tuple[Partition, Any]]:
        """Each partition as a ``lance.LanceDataset`` at its version; the filter still has to be applied."""
        return ((partition, self._open(partition)) for partition in self.partitions)

    def select(self, columns: Sequence[str] | None) -> pa.Schema:
        """The schema of some columns, of all for None. Raises `InvalidInput`."""
        names = self.schema.names if columns is None else list(columns)
        unknown = [name for name in names if name not in self.schema.names]
        if unknown:
            raise InvalidInput(f"there is no column {unknown[0]!r}; the columns are {', '.join(self.schema.names)}")
        return pa.schema([self.schema.field(name) for name in names])

    def to_table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows that satisfy the filter, in no particular order. Raises `InvalidInput`."""
        schema = self.select(columns)
        names = schema.names
        condition = expression(self.filter, self.schema)
        understood = condition is None or is_understood(self.filter, self.schema)

        def read(partition: Partition) -> pa.Table:
            dataset = self._open(partition)
            if understood:
                return self._engine.read(dataset, names, condition).cast(schema)
            return self._engine.read(dataset, None, None).filter(condition).select(names).cast(schema)

        return pa.concat_tables([schema.empty_table(), *_all(read, self.partitions)])


@attrs.frozen
class PartitionWritePlan:
    """What writers elsewhere need to write the rows of partitions, and `PartitionedNamespace.publish` afterwards; it
    pickles.

    known: the places of the existing partitions, by their values. levels: the existing namespaces, by their values.
    root_uri: where new partitions go. salt: random; makes the names of new namespaces.
    """

    spec: PartitionSpec
    schema: Any
    mode: str
    root_uri: str
    storage_options: Mapping[str, str] = attrs.field(repr=False)
    known: Mapping[Values, tuple[ObjectId, str]]
    levels: Mapping[Values, ObjectId]
    salt: str

    def place(self, values: Values) -> tuple[WritePlan, str | None]:
        """Where rows of a partition are to be written, and the location where that is new; it is new at every call."""
        mode = WriteMode(self.mode)
        found = self.known.get(key_of(values))
        if found is not None:
            return WritePlan(found[0], found[1], self.storage_options, self.schema, mode, 1, False), None
        table = self.table_of(values)
        location = new_location(table, secrets.token_hex(4))
        return self.at(table, location), location

    def table_of(self, values: Values) -> ObjectId:
        """Return the id that the table of a new partition gets."""
        return table_of(self.levels, self.spec, values, level_names(self.spec, values, self.salt))

    def at(self, table: ObjectId, location: str) -> WritePlan:
        """Return the plan for a new partition that `place` has given a name and a location."""
        uri = f"{self.root_uri.rstrip('/')}/{location}"
        return WritePlan(table, uri, self.storage_options, self.schema, WriteMode.CREATE, 0, True)


@attrs.frozen
class WrittenPartition:
    """Fragments that were written for a partition, by the plan that `PartitionWritePlan.place` gave."""

    values: Values
    fragments: tuple[Any, ...]
    plan: WritePlan
    location: str | None


class PartitionedNamespace:
    """The partitions below the root of a catalog; `Catalog.partitioned` and `Catalog.create_partitioned` give it."""

    def __init__(
        self,
        catalog: Catalog,
        engine: TableEngine,
        apply: Callable[[Decision], None],
        remove_data: Callable[[Table], None],
    ) -> None:
        self._catalog = catalog
        self._engine = engine
        self._apply = apply
        self._remove_data = remove_data

    # -- what it is ---------------------------------------------------------------------------------------------

    @property
    def schema(self) -> pa.Schema:
        """Of all partitions. Raises `NamespaceNotFound` where the catalog is not partitioned, `Damaged`."""
        return _schema_in(self._catalog.view())

    @property
    def specs(self) -> dict[int, PartitionSpec]:
        """Every version of how it is partitioned; new data are written under the last."""
        return specs_of(self._catalog.view().properties)

    def create(self, schema: pa.Schema, by: Iterable[PartitionBy]) -> None:
        """See `Catalog.create_partitioned`."""
        numbered = with_field_ids(schema)
        spec = next_spec({}, [partition_field(each, numbered) for each in by])
        _require_depth(spec)

        def decide(view: CatalogView) -> list[Change]:
            if view.flat:
                raise Unsupported("a V1 directory cannot be partitioned; open it with its manifest")
            if specs_of(view.properties) or SCHEMA_PROPERTY in view.properties:
                raise AlreadyExists("the catalog is partitioned already; evolve it instead")
            return [SetProperties({SCHEMA_PROPERTY: exact_schema_text(numbered)}), *_enter(view, spec, numbered)]

        self._apply(decide)

    def evolve(self, by: Iterable[PartitionBy]) -> PartitionSpec:
        """Partition what is written from now on otherwise; data that are there stay as they are, and are read as well.

        Idempotent: nothing changes where that is how it is partitioned already. Raises `InvalidInput`.
        """
        wanted = list(by)
        evolved: list[PartitionSpec] = []

        def decide(view: CatalogView) -> list[Change]:
            schema, specs = _schema_in(view), specs_of(view.properties)
            spec = next_spec(specs, [partition_field(each, schema) for each in wanted])
            _require_depth(spec)
            evolved[:] = [spec]
            return [] if spec.id in specs else _enter(view, spec, schema)

        self._apply(decide)
        return evolved[0]

    # -- writing ------------------------------------------------------------------------------------------------

    def write(self, data: Any, mode: str = APPEND) -> list[Partition]:
        """Write rows to the partitions they belong to, and publish all in one step; those partitions as they are then.

        data: what `Catalog.write` takes, held in memory. Columns are matched by name. mode: ``append``; ``overwrite``
        replaces the rows of the partitions that the data belong to, and leaves the others.

        Raises `InvalidInput` (nothing was written), `Refused` (an expression partitions it; overwriting beside data of
        another specification), `ConcurrentModification` (nothing was published: others kept changing the same
        partitions, or dropped one), `CommitUnknown` (of one table; nothing was published), `StoreUnavailable` (when
        publishing, which then may have happened: `scan` tells).
        """
        plan = self.begin_write(mode)
        table = self._conforming(self._engine.reader(data).read_all(), plan.schema)
        rows = list(split(table, partition_arrays(table, plan.spec, plan.schema)))
        places = [WrittenPartition(values, (), *plan.place(values)) for values, _ in rows]

        def write_rows(place: WrittenPartition, rows: pa.Table) -> WrittenPartition:
            return attrs.evolve(place, fragments=tuple(self._engine.write_fragments(place.plan, rows.to_reader())))

        try:
            written = _all(write_rows, places, [part for _, part in rows])
        except BaseException:
            self.abandon(places)
            raise
        return self.publish(plan, written)

    def begin_write(self, mode: str = APPEND) -> PartitionWritePlan:
        """What writers elsewhere need; `publish` makes what they have written visible, `abandon` gives up.

        Raises as `write` does.
        """
        if mode not in (APPEND, OVERWRITE):
            raise InvalidInput(f"unknown write mode {mode!r}; choose append or overwrite")
        view = self._catalog.view()
        schema, spec = _schema_in(view), _latest_spec(view)
        spec.require_writable()
        if mode == OVERWRITE:
            require_alone(view, spec)
        present = by_values(view, spec)
        known = {key: (partition.table.id, self._catalog.uri(partition.table)) for key, partition in present.items()}
        catalog, levels = self._catalog, levels_of(view, spec)
        salt = secrets.token_hex(16)
        return PartitionWritePlan(spec, schema, mode, catalog.root_uri, catalog.storage_options, known, levels, salt)

    def publish(self, plan: PartitionWritePlan, written: Sequence[WrittenPartition]) -> list[Partition]:
        """Commit to every partition, and have all of it read from then on in one step. Raises as `write` does."""
        writer = _Writer(self._catalog, self._engine, self._apply, self._remove_data, plan)
        return writer.run(written)

    def abandon(self, written: Iterable[WrittenPartition]) -> None:
        """Remove the directories of partitions that were to be made. Idempotent."""
        for part in written:
            if part.location is not None:
                with suppress(LancekeepError):
                    self._remove_data(Table(part.plan.table, part.location, {}))

    # -- reading ------------------------------------------------------------------------------------------------

    def scan(self, filter: Any = None) -> Scan:  # noqa: A002 - the word that a caller reads
        """The partitions that can hold rows which a filter wants, all at one moment, at their published versions.

        filter: tuples ``(column, operator, value)``, all of which have to hold; or lists of such, one of which has to
        (as ``pyarrow.parquet`` takes it); operators ``= != < <= > >= in`` ``not in`` ``is null`` ``is not null``. Text
        may stand for a date or timestamp; a timestamp without a zone is UTC where the column has one.

        Raises `NamespaceNotFound`, `InvalidInput`, `Damaged`.
        """
        view = self._catalog.view()
        schema, wanted = _schema_in(view), parse_filter(filter)
        expression(wanted, schema)  # so that what cannot be compared is said before anything is read
        kept, skipped = [], 0
        for spec in specs_of(view.properties).values():
            tests = [[keeps(field, schema, conjunction) for field in spec.fields] for conjunction in wanted]
            for partition in partitions_of(view, spec):
                if any(all(map(_call, fields, partition.values)) for fields in tests):
                    kept.append(partition)
                else:
                    skipped += 1
        return Scan(tuple(kept), skipped, schema, wanted, self._engine, self._open)

    def place(self, partition: Partition) -> tuple[str, Mapping[str, str]]:
        """Where readers elsewhere open the table of a partition: its URI, and storage options."""
        return self._catalog.uri(partition.table), self._catalog.storage_options

    def _open(self, partition: Partition) -> Any:
        return self._catalog.open(partition.table.id, partition.version, tag=partition.tag, branch=partition.branch)

    def _conforming(self, table: pa.Table, schema: pa.Schema) -> pa.Table:
        if sorted(table.schema.names) != sorted(schema.names):
            raise InvalidInput(
                f"the data have the columns {', '.join(table.schema.names)}; expected {', '.join(schema.names)}"
            )
        for field in schema:
            if not field.nullable and table[field.name].null_count:
                raise InvalidInput(f"the column {field.name!r} takes no nulls, and the data hold some")
        try:
            return table.select(schema.names).cast(schema)
        except (pa.ArrowException, ValueError) as error:
            raise InvalidInput(f"the data do not fit the schema of the namespace: {error}") from error


@attrs.define
class _Part:
    """One partition of a write on its way, and what is to be published of it once it is committed."""

    written: WrittenPartition
    publication: Publication | None = None


@attrs.frozen
class _Writer:
    """The commits of one write, and their publication."""

    catalog: Catalog
    engine: TableEngine
    apply: Callable[[Decision], None]
    remove_data: Callable[[Table], None]
    plan: PartitionWritePlan

    def run(self, written: Sequence[WrittenPartition]) -> list[Partition]:
        parts = [_Part(each) for each in written if each.fragments]
        if len({key_of(part.written.values) for part in parts}) < len(parts):
            raise InvalidInput("a partition was written twice in one write; give all its fragments together")
        try:
            return self._publish(parts) if parts else []
        except StoreUnavailable:
            raise  # whether it was published is not known: what was written stays
        except Exception:
            for part in parts:
                self._forget(part)
            raise

    def _publish(self, parts: list[_Part]) -> list[Partition]:
        pending = parts
        entered: list[ManifestEntry] = []

        def decide(view: CatalogView) -> list[Change]:
            publications = [part.publication for part in parts if part.publication is not None]
            changes = publish(view, self.plan.spec, publications, alone=self.plan.mode == OVERWRITE)
            entered[:] = [change.entry for change in changes if change.entry.object_type == TABLE]
            return [_columns(self.plan.spec, self.plan.schema), *changes]

        for _ in range(_ATTEMPTS):
            view = self.catalog.view()
            present, plan = (
                by_values(view, self.plan.spec),
                attrs.evolve(self.plan, levels=levels_of(view, self.plan.spec)),
            )
            bases = [present.get(key_of(part.written.values)) for part in pending]
            _all(self._commit, pending, bases, [plan.table_of(part.written.values) for part in pending])
            try:
                self.apply(decide)
                return [partition_of(self.plan.spec, entry) for entry in entered]
            except Overtaken as overtaken:
                pending = [part for part in parts if key_of(part.written.values) in overtaken.values]
        raise ConcurrentModification("others kept publishing the same partitions; nothing was published, try again")

    def _commit(self, part: _Part, base: Partition | None, table: ObjectId) -> None:
        """Make what was written a version that holds nothing else but what is published in ``base``.

        ``table``: the id of the partition's table if it is new.
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
            uri, mode = self.catalog.uri(base.table), WriteMode(self.plan.mode)
            plan = attrs.evolve(written.plan, table=base.table.id, uri=uri, mode=mode, read_version=1, declared=False)
            written = self._move(part, plan, None)
        part.publication = self._commit_to(base, written)

    def _first(self, written: WrittenPartition) -> Publication:
        """The first version of a table that is no table of the catalog before it is published."""
        assert written.location is not None
        version = self.engine.create_at(written.plan, written.fragments)
        root = self.catalog.dataset_root(Table(written.plan.table, written.location, {}))
        self.catalog.commits.latest(root)  # the commit store comes to know of it
        return Publication(written.values, written.plan.table, written.location, None, version)

    def _move(self, part: _Part, plan: WritePlan, location: str | None) -> WrittenPartition:
        """Write the rows again for another table: a concurrent write has entered the partition or a level of it."""
        written = part.written
        if part.publication is None:
            self.engine.create_at(written.plan, written.fragments)
        rows = self.engine.open_at(written.plan.uri).scanner().to_reader()
        fragments = tuple(self.engine.write_fragments(plan, rows))
        self._forget(part)
        part.written, part.publication = WrittenPartition(written.values, fragments, plan, location), None
        return part.written

    def _forget(self, part: _Part) -> None:
        """Remove the directory of a partition that did not come to be."""
        if part.written.location is not None:
            with suppress(LancekeepError):
                self.remove_data(Table(part.written.plan.table, part.written.location, {}))

    def _commit_to(self, base: Partition, written: WrittenPartition) -> Publication:
        """A version with what ``base`` holds and the fragments, or with these alone where they overwrite.

        Versions behind the published one are of writes that failed or are under way. Appending to them would publish
        them; so the published version is restored first. The engine rebases silently: what did not become the very
        next version holds rows of others, and stays behind unpublished, too.
        """
        root = self.catalog.dataset_root(base.table)
        for attempt in range(_ATTEMPTS):
            _require_main(base)
            latest = self._latest(root)
            overwrites = self.plan.mode == OVERWRITE
            start = latest if base.version is None or overwrites else base.version
            with suppress(ConcurrentModification, VersionTaken):
                if start != latest:
                    start = self.engine.restore(base.table.id, start).version
                plan = attrs.evolve(written.plan, read_version=start)
                version = self.catalog.commit_fragments(plan, written.fragments).version
                if overwrites or version == start + 1:
                    return Publication(written.values, base.table.id, base.table.location, base, version)
            retry = self.catalog.commits.retry
            retry.sleep(retry.jitter() * min(0.5, 0.01 * 2**attempt))
            base = self._again(base)
        raise ConcurrentModification(f"{base.table.id}: others kept committing to it; nothing was published, try again")

    def _again(self, base: Partition) -> Partition:
        """The partition as it is published now."""
        entry = self.catalog.view().find(base.table.id.key)
        if entry is None or entry.location != base.table.location:
            raise ConcurrentModification(f"the partition {base.table.id} was dropped; nothing was published")
        return partition_of(self.plan.spec, entry)

    def _latest(self, root: DatasetRoot) -> int:
        latest = self.catalog.commits.latest(root)
        if latest is None:
            raise Damaged(f"the partition at {root.base_uri} is in the catalog and has no version; drop it")
        return latest.version


def _call(test: Callable[[Any], bool], value: Any) -> bool:
    return test(value)


def _all(act: Callable[..., T], *arguments: Sequence[Any]) -> list[T]:
    """Act on every item, several at once; the first failure is raised when all have ended."""
    if len(arguments[0]) == 1:
        return list(map(act, *arguments))
    with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
        running = [pool.submit(act, *item) for item in zip(*arguments, strict=True)]
    return [done.result() for done in running]


def _schema_in(view: CatalogView) -> pa.Schema:
    if not specs_of(view.properties):
        raise NamespaceNotFound("the catalog is not partitioned; create_partitioned makes it so")
    if SCHEMA_PROPERTY not in view.properties:
        raise Damaged(f"the root namespace has partition specs and no property {SCHEMA_PROPERTY!r}")
    return schema_of(view.properties[SCHEMA_PROPERTY])


def _latest_spec(view: CatalogView) -> PartitionSpec:
    specs = specs_of(view.properties)
    return specs[max(specs)]


def _enter(view: CatalogView, spec: PartitionSpec, schema: pa.Schema) -> list[Change]:
    namespace = ObjectId((spec.namespace,))
    require_free(view, namespace, NAMESPACE)
    return [
        SetProperties({spec.property: spec.to_json()}),
        _columns(spec, schema),
        Put(ManifestEntry(namespace.key, NAMESPACE)),
    ]


def _columns(spec: PartitionSpec, schema: pa.Schema) -> AddColumns:
    versions = {READ_VERSION: "uint64", READ_BRANCH: "string", READ_TAG: "string"}
    return AddColumns(versions | {field.column: logical_type(column_type(field, schema)) for field in spec.fields})


def _require_depth(spec: PartitionSpec) -> None:
    ObjectId.of((spec.namespace, *("0" * NAME_LENGTH for _ in spec.fields), DATASET))


def _require_main(partition: Partition) -> None:
    """Raises `Refused` where a branch or a tag is to be read: other software has put it there."""
    if partition.branch is not None or partition.tag is not None:
        raise Refused(
            f"the partition {partition.table.id} is read from the branch or tag {partition.branch or partition.tag!r}; "
            "Lancekeep writes to main only. Clear read_branch and read_tag first."
        )
