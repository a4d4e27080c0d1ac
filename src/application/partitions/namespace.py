"""A partitioned namespace: tables that share a schema, used as one table.

A write commits to each table. Then one change of the manifest table publishes all these versions. A version is visible
only after it is published, and always follows the published version. What a failed write has committed after the
published version never becomes visible (``docs/adr/0026``).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import attrs
import pyarrow as pa

from lancekeep.application.concurrency import at_once
from lancekeep.application.entries.ledger import Ledger
from lancekeep.application.entries.namespaces import Namespaces
from lancekeep.application.entries.places import Places
from lancekeep.application.entries.removal import Removal
from lancekeep.application.partitions.arrow_json import exact_schema_text, schema_of
from lancekeep.application.partitions.scan import Scan
from lancekeep.application.partitions.values import (
    as_stored,
    partition_arrays,
    partition_field,
    split,
    with_field_ids,
)
from lancekeep.application.partitions.writing import (
    APPEND,
    OVERWRITE,
    PartitionWritePlan,
    PartitionWriter,
    WrittenPartition,
    columns_of,
)
from lancekeep.application.rows.writes import Writes
from lancekeep.domain.catalog import CatalogView, Change, Put, SetProperties, require_free
from lancekeep.domain.errors import (
    AlreadyExists,
    Damaged,
    InvalidInput,
    LancekeepError,
    NamespaceNotFound,
)
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import NAMESPACE, TABLE, ManifestEntry
from lancekeep.domain.namespace import drop_partitioned, without_partitions
from lancekeep.domain.partition_rules import DATASET
from lancekeep.domain.partitioning import (
    SCHEMA_PROPERTY,
    PartitionBy,
    PartitionSpec,
    next_spec,
    specs_of,
)
from lancekeep.domain.partitions import (
    NAME_LENGTH,
    Partition,
    by_values,
    levels_of,
    partitions_of,
    require_alone,
)
from lancekeep.domain.pruning import parse_filter
from lancekeep.domain.stable_row_ids import wants_stable_row_ids
from lancekeep.domain.table import Table
from lancekeep.ports.table_engine import TableEngine


class PartitionedNamespace:
    """The partitions below the root of a catalog; see `Partitions.open`."""

    def __init__(self, ledger: Ledger, places: Places, writes: Writes, removal: Removal, engine: TableEngine) -> None:
        self._ledger = ledger
        self._places = places
        self._writes = writes
        self._removal = removal
        self._engine = engine

    # -- what it is ---------------------------------------------------------------------------------------------

    @property
    def schema(self) -> pa.Schema:
        """The schema of all partitions.

        Raises:
            NamespaceNotFound: The catalog is not partitioned.
            Damaged: The schema is missing or cannot be read.
        """
        return _schema_in(self._ledger.view())

    @property
    def specs(self) -> dict[int, PartitionSpec]:
        """The partition specifications by id; writes use the last."""
        return specs_of(self._ledger.view().properties)

    def evolve(self, by: Iterable[PartitionBy]) -> PartitionSpec:
        """Change how later writes are partitioned. Idempotent.

        Existing data stay, and readers see them too.

        Returns:
            The partition specification of later writes.

        Raises:
            InvalidInput: A level is invalid.
        """
        wanted = list(by)

        def decide(view: CatalogView) -> tuple[list[Change], PartitionSpec]:
            schema, specs = _schema_in(view), specs_of(view.properties)
            spec = next_spec(specs, [partition_field(each, schema) for each in wanted])
            _require_depth(spec)
            return ([] if spec.id in specs else _enter(view, spec, schema)), spec

        return self._ledger.apply(decide)

    # -- writing ------------------------------------------------------------------------------------------------

    def write(self, data: Any, mode: str = APPEND) -> list[Partition]:
        """Write rows to their partitions, and publish all partitions atomically.

        Args:
            data: As for `Catalog.write`; it is held in memory. Columns are matched by name.
            mode: ``append``, or ``overwrite`` to replace the rows of the partitions to which the data belong. Other
                partitions do not change.

        Returns:
            The published partitions.

        Raises:
            InvalidInput: Nothing was written.
            Refused: An expression partitions the namespace, or ``overwrite`` is used next to data of another
                specification.
            ConcurrentModification: Other writers kept changing the same partitions, or dropped a partition. Nothing was
                published.
            CommitUnknown: The outcome of the commit to one table is unknown. Nothing was published.
            StoreUnavailable: A store did not answer. If it failed during publication, the rows may be published; check
                with `scan`.
        """
        plan = self.begin_write(mode)
        table = self._conforming(self._engine.reader(data).read_all(), plan.schema)
        rows = list(split(table, partition_arrays(table, plan.spec, plan.schema)))
        places = [WrittenPartition(values, (), *plan.place(values)) for values, _ in rows]

        def write_rows(place: WrittenPartition, rows: pa.Table) -> WrittenPartition:
            return attrs.evolve(place, fragments=tuple(self._engine.write_fragments(place.plan, rows.to_reader())))

        try:
            written = at_once(write_rows, places, [part for _, part in rows])
        except BaseException:
            self.abandon(places)
            raise
        return self.publish(plan, written)

    def begin_write(self, mode: str = APPEND) -> PartitionWritePlan:
        """Return a plan for distributed writers.

        `publish` makes their rows visible, and `abandon` gives up. Raises the errors of `write`.
        """
        if mode not in (APPEND, OVERWRITE):
            raise InvalidInput(f"unknown write mode {mode!r}; choose append or overwrite")
        view = self._ledger.view()
        schema, spec = _schema_in(view), _latest_spec(view)
        spec.require_writable()
        if mode == OVERWRITE:
            require_alone(view, spec)
        return _plan(self._places, view, schema, spec, mode)

    def publish(self, plan: PartitionWritePlan, written: Sequence[WrittenPartition]) -> list[Partition]:
        """Commit to every partition, and publish all of them atomically.

        Raises the errors of `write`. If the batch of a stream is published already, its rows are dropped.
        """
        writer = PartitionWriter(self._ledger, self._places, self._writes, self._removal, self._engine, plan)
        return writer.run(written)

    def change(
        self,
        plan: PartitionWritePlan,
        read: Scan,
        acts: Mapping[ObjectId, Callable[[Any], Any]],
        created: Sequence[WrittenPartition] = (),
        *,
        exactly: bool = False,
        schema: pa.Schema | None = None,
    ) -> None:
        """Change rows or columns of partitions, and publish all partitions atomically.

        Args:
            plan: A plan of `begin_write`, with which ``created`` were written.
            read: The scan whose rows are changed.
            acts: The changes by table. Each takes a ``lance.LanceDataset`` with the rows that were read, and commits
                one version with pylance.
            created: The new partitions, each once.
            exactly: Whether all partitions must be as they were read, not only the changed ones.
            schema: The schema of all partitions after the change, with numbered columns; by default it stays.

        Raises:
            ConcurrentModification: Other writers changed the same partitions. Nothing was published.
            Refused: Readers use a branch or tag of a partition.
            CommitUnknown, StoreUnavailable: As for `write`.
        """
        writer = PartitionWriter(self._ledger, self._places, self._writes, self._removal, self._engine, plan)
        writer.change(read.partitions, acts, created, exactly=exactly, schema=schema)

    def abandon(self, written: Iterable[WrittenPartition]) -> None:
        """Remove the directories of new partitions that were not published. Idempotent."""
        for part in written:
            if part.location is not None:
                with suppress(LancekeepError):
                    self._removal.remove(Table(part.plan.table, part.location, {}))

    # -- reading ------------------------------------------------------------------------------------------------

    def scan(self, filter: Any = None) -> Scan:  # noqa: A002 - the word that a caller reads
        """Return the partitions that can hold rows of a filter, as a consistent snapshot.

        Args:
            filter: Tuples ``(column, operator, value)``, all of which must hold; or lists of such tuples, where one
                list must hold (as in ``pyarrow.parquet``). The operators are ``= != < <= > >= in``, ``not in``, ``is
                null`` and ``is not null``. Text may stand for a date or timestamp. If a column has a time zone, a
                timestamp without a time zone is UTC.

        Raises:
            NamespaceNotFound: The catalog is not partitioned.
            InvalidInput: The filter is invalid.
            Damaged: An entry of a partition cannot be read.
        """
        view = self._ledger.view()
        schema = _schema_in(view)
        found = (partition for spec in specs_of(view.properties).values() for partition in partitions_of(view, spec))
        return Scan(tuple(found), 0, schema, parse_filter(None), self._engine, self._open).where(filter)

    def place(self, partition: Partition) -> tuple[str, Mapping[str, str]]:
        """Return the URI and storage options by which other processes open a partition."""
        return self._places.uri(partition.table), self._places.storage_options

    def _open(self, partition: Partition) -> Any:
        return self._writes.open(partition.table.id, partition.version, partition.tag, partition.branch)

    def _conforming(self, table: pa.Table, schema: pa.Schema) -> pa.Table:
        if sorted(table.schema.names) != sorted(schema.names):
            raise InvalidInput(
                f"the data have the columns {', '.join(table.schema.names)}; expected {', '.join(schema.names)}"
            )
        for field in schema:
            if not field.nullable and table[field.name].null_count:
                raise InvalidInput(f"the column {field.name!r} takes no nulls, and the data contain nulls")
        try:
            return table.select(schema.names).cast(schema)
        except (pa.ArrowException, ValueError) as error:
            raise InvalidInput(f"the data do not fit the schema of the namespace: {error}") from error


class Partitions:
    """The partitions of a catalog: ``catalog.partitions``."""

    def __init__(
        self,
        ledger: Ledger,
        places: Places,
        writes: Writes,
        removal: Removal,
        engine: TableEngine,
        namespaces: Namespaces,
    ) -> None:
        self._namespaces = namespaces
        self._ledger = ledger
        self._places = places
        self._writer = partial(PartitionWriter, ledger, places, writes, removal, engine)
        self._namespace = PartitionedNamespace(ledger, places, writes, removal, engine)

    def create(self, schema: Any, by: Iterable[PartitionBy]) -> PartitionedNamespace:
        """Make the catalog a partitioned namespace.

        The tables of a partitioned namespace share a schema and are divided by values of their rows. Tables that the
        catalog already holds do not change.

        Args:
            schema: A ``pyarrow.Schema``. Unless its columns have numbers (``lance:field_id``), they receive them. Views
                of texts and bytes become texts and bytes, as in tables.
            by: The levels, outermost first.

        Raises:
            AlreadyExists: The catalog is partitioned already.
            InvalidInput: The schema or a level is invalid.
            Unsupported: The catalog is a V1 directory.
            StoreUnavailable: A store did not answer; check with `open`.
        """
        numbered, spec = _new(schema, by)
        self._ledger.apply(lambda view: (_create(view, spec, numbered), None))
        return self._namespace

    def begin_create(self, schema: Any, by: Iterable[PartitionBy], *, replace: bool = False) -> PartitionWritePlan:
        """Return a plan to write the first rows before the partitions exist.

        `finish_create` makes the partitions and these rows visible. Nothing is changed. Raises as `create` does.

        Args:
            schema: As for `create`.
            by: As for `create`.
            replace: Whether the new partitions replace all partitions of the catalog.
        """
        numbered, spec = _new(schema, by)
        view = self._ledger.view()
        if replace:
            view = without_partitions(view, drop_partitioned(view)[0])
        _create(view, spec, numbered)
        return _plan(self._places, view, numbered, spec, APPEND)

    def finish_create(
        self, plan: PartitionWritePlan, written: Sequence[WrittenPartition], *, replace: bool = False
    ) -> PartitionedNamespace:
        """Make the catalog a partitioned namespace together with its first rows.

        Args:
            plan: A plan of `begin_create`.
            written: The first partitions, which were written with ``plan``, each once.
            replace: As for ``plan``. The partitions of the catalog are dropped in the same change, as `drop` does, with
                all rows that other writers have added.

        Raises:
            AlreadyExists: The catalog is partitioned already. The written files are removed.
            TableNotFound, Refused: As for `drop`, if partitions are to be replaced. The written files are removed.
            InvalidInput: A partition was written twice.
            Unsupported: The catalog is a V1 directory.
            StoreUnavailable: A store did not answer; check with `open`. The written files stay.
        """

        def apply(creation: Callable[[CatalogView], list[Change]]) -> None:
            if replace:
                self._namespaces.drop_partitioned(force=False, keep=None, creation=creation)
            else:
                self._ledger.apply(lambda view: (creation(view), None))

        self._writer(plan).create(written, lambda view: _create(view, plan.spec, plan.schema), apply)
        return self._namespace

    def open(self) -> PartitionedNamespace:
        """Return the catalog as a partitioned namespace.

        Raises:
            NamespaceNotFound: The catalog is not partitioned.
        """
        if not self._namespace.specs:
            raise NamespaceNotFound(
                f"{self._places.root_uri} is not partitioned; catalog.partitions.create partitions it"
            )
        return self._namespace

    def drop(self, *, force: bool = False, keep: timedelta | float | None = None) -> None:
        """Drop all partitions with their rows, the specifications and the schema.

        The catalog is then not partitioned; its other tables and namespaces do not change. Readers see either all
        partitions or none. A write that has begun publishes nothing.

        Args:
            force: As for `Catalog.drop_namespace`.
            keep: As for `Catalog.drop_table`. The tables that are kept are single tables; ``undrop`` brings them back
                under names of other namespaces.

        Raises:
            TableNotFound: The catalog is not partitioned.
            Refused: A partition or the root is protected, or a clone reads files of a partition. Nothing was changed.
            Damaged: As for `Catalog.drop_namespace`.
        """
        self._namespaces.drop_partitioned(force=force, keep=keep)


def _new(schema: Any, by: Iterable[PartitionBy]) -> tuple[pa.Schema, PartitionSpec]:
    numbered = with_field_ids(as_stored(schema))
    spec = next_spec({}, [partition_field(each, numbered) for each in by])
    _require_depth(spec)
    return numbered, spec


def _create(view: CatalogView, spec: PartitionSpec, schema: pa.Schema) -> list[Change]:
    if view.guarantees.levels is not None or not view.guarantees.properties:
        raise view.guarantees.refusal("cannot be partitioned")
    if specs_of(view.properties) or SCHEMA_PROPERTY in view.properties:
        raise AlreadyExists("the catalog is partitioned already; evolve it instead")
    require_free(view, ObjectId((DATASET,)), TABLE)
    return [SetProperties({SCHEMA_PROPERTY: exact_schema_text(schema)}), *_enter(view, spec, schema)]


def _plan(places: Places, view: CatalogView, schema: pa.Schema, spec: PartitionSpec, mode: str) -> PartitionWritePlan:
    """Return the plan of a write to the partitions in a view."""
    present = by_values(view, spec)
    known = {key: (partition.table.id, places.uri(partition.table)) for key, partition in present.items()}
    levels, salt = levels_of(view, spec), secrets.token_hex(16)
    stable = wants_stable_row_ids(view.properties)
    return PartitionWritePlan(spec, schema, mode, places.root_uri, places.storage_options, known, levels, salt, stable)


def _schema_in(view: CatalogView) -> pa.Schema:
    if not specs_of(view.properties):
        raise NamespaceNotFound("the catalog is not partitioned; catalog.partitions.create partitions it")
    if SCHEMA_PROPERTY not in view.properties:
        raise Damaged(f"the root namespace has partition specs and no property {SCHEMA_PROPERTY!r}")
    return as_stored(schema_of(view.properties[SCHEMA_PROPERTY]))


def _latest_spec(view: CatalogView) -> PartitionSpec:
    specs = specs_of(view.properties)
    return specs[max(specs)]


def _enter(view: CatalogView, spec: PartitionSpec, schema: pa.Schema) -> list[Change]:
    namespace = ObjectId((spec.namespace,))
    require_free(view, namespace, NAMESPACE)
    return [
        SetProperties({spec.property: spec.to_json()}),
        columns_of(spec, schema),
        Put(ManifestEntry(namespace.key, NAMESPACE)),
    ]


def _require_depth(spec: PartitionSpec) -> None:
    ObjectId.of((spec.namespace, *("0" * NAME_LENGTH for _ in spec.fields), DATASET))
