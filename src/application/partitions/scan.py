"""Read a partitioned namespace at the published versions of its partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import pyarrow as pa

from lancekeep.application.concurrency import at_once
from lancekeep.application.partitions.calendar import keeps_dates
from lancekeep.application.partitions.values import expression, is_understood, keeps
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.partitioning import PartitionSpec
from lancekeep.domain.partitions import Partition, Values
from lancekeep.domain.pruning import Filter, Predicate, parse_filter
from lancekeep.ports.table_engine import TableEngine


@attrs.frozen
class Scan:
    """The partitions that a filter selects, at the published versions of one moment.

    Attributes:
        skipped: The number of partitions that cannot hold a row of the filter.
    """

    partitions: tuple[Partition, ...]
    skipped: int
    schema: pa.Schema
    filter: Filter
    _engine: TableEngine
    _open: Callable[[Partition], Any]

    def datasets(self) -> Iterator[tuple[Partition, Any]]:
        """Yield each partition with its ``lance.LanceDataset``.

        The caller applies the filter.
        """
        return ((partition, self._open(partition)) for partition in self.partitions)

    def where(self, filter: Any) -> Scan:  # noqa: A002 - the word that a caller reads
        """Return the scan of the partitions that can also hold rows of another filter.

        Args:
            filter: As for `PartitionedNamespace.scan`.

        Raises:
            InvalidInput: The filter is invalid.
        """
        wanted = parse_filter(filter)
        expression(wanted, self.schema)  # report invalid comparisons before anything is read
        tests: dict[int, list[_Test]] = {}
        kept = []
        for partition in self.partitions:
            spec = partition.spec
            if spec.id not in tests:
                tests[spec.id] = [_Test.of(spec, self.schema, conjunction) for conjunction in wanted]
            if any(test.keeps(partition.values) for test in tests[spec.id]):
                kept.append(partition)
        both = tuple((*one, *other) for one in self.filter for other in wanted)
        skipped = self.skipped + len(self.partitions) - len(kept)
        return attrs.evolve(self, partitions=tuple(kept), skipped=skipped, filter=both)

    def select(self, columns: Sequence[str] | None) -> pa.Schema:
        """Return the schema of some columns; of all columns for None.

        Raises:
            InvalidInput: A column does not exist.
        """
        known = dict.fromkeys(self.schema.names)
        names = list(known if columns is None else columns)
        unknown = [name for name in names if name not in known]
        if unknown:
            raise InvalidInput(f"there is no column {unknown[0]!r}; the columns are {', '.join(known)}")
        return pa.schema([self.schema.field(name) for name in names])

    def to_table(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows that satisfy the filter, in no particular order.

        Raises:
            InvalidInput: A column does not exist.
        """
        schema = self.select(columns)
        names = schema.names
        condition = expression(self.filter, self.schema)
        understood = condition is None or is_understood(self.filter, self.schema)

        def read(partition: Partition) -> pa.Table:
            dataset = self._open(partition)
            if understood:
                return self._engine.read(dataset, names, condition).cast(schema)
            return self._engine.read(dataset, None, None).filter(condition).select(names).cast(schema)

        return pa.concat_tables([schema.empty_table(), *at_once(read, self.partitions)])


@attrs.frozen
class _Test:
    """Whether a partition can hold rows that satisfy a conjunction."""

    fields: Sequence[Callable[[Any], bool]]
    dates: Callable[[Values], bool]

    @staticmethod
    def of(spec: PartitionSpec, schema: pa.Schema, conjunction: Sequence[Predicate]) -> _Test:
        fields = [keeps(field, schema, conjunction) for field in spec.fields]
        return _Test(fields, keeps_dates(spec, schema, conjunction))

    def keeps(self, values: Values) -> bool:
        return all(test(value) for test, value in zip(self.fields, values, strict=True)) and self.dates(values)
