"""Stream out of all partitions of a catalog.

An offset names the published version of each partition, with its transaction. A batch leads from one published state to
another, so it never holds a part of a change (docs/adr/0182).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import lance
import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from lancekeep.application.catalog import Catalog
from lancekeep.domain.errors import InvalidInput, Refused, VersionNotFound
from lancekeep.domain.partitions import Partition
from lancekeep.entrypoints.spark.internals.schemas import arrow_of
from lancekeep.entrypoints.spark.options import Options
from lancekeep.entrypoints.spark.projection import SchemaHistory
from lancekeep.entrypoints.spark.reading import (
    MOST_PARTITIONS,
    Fragment,
    Snapshot,
    identity,
    partitions,
    stored_fragments,
)
from lancekeep.entrypoints.spark.streaming import (
    FragmentStream,
    VersionFragments,
    added_fragments,
    changes_rows,
    version_reader,
)
from lancekeep.entrypoints.spark.versions import ReadLimit

Offset = dict[str, Any]
"""``partitions``: for each table of a partition, the version that was read and its identity (see `identity`)."""

_ABSENT = (
    "starting_version",
    "max_versions_per_trigger",
    "max_rows_per_trigger",
    "skip_change_commits",
    "read_changes",
)
"""Options that need the versions of one table."""


class PartitionStreamReader(FragmentStream):
    """Stream the rows that each publication appends; the first batch holds all rows."""

    def __init__(self, options: Options, open_catalog: Callable[[], Catalog], schema: StructType) -> None:
        super().__init__(open_catalog)
        self._options = options
        self._schema: pa.Schema = arrow_of(schema)
        self._end: Offset | None = None
        self._known: dict[tuple[str, int], str] = {}
        self._current: Mapping[str, list[Any]] | None = None
        self._starts_late = options.values.get("starting_version") == "latest"
        for name in _ABSENT:
            if name in options.values and not (name == "starting_version" and self._starts_late):
                raise InvalidInput(
                    f"{options.table} is all partitions of the catalog, to which the option {name} does not apply: "
                    "their versions differ. Leave it out, or stream the table of one partition; starting_version takes "
                    "only 'latest'."
                )

    def initialOffset(self) -> Offset:
        return self._published() if self._starts_late else {"partitions": {}}

    def prepareForTriggerAvailableNow(self) -> None:
        self._end = self._published()

    def latestOffset(self, start: Offset | None = None, limit: ReadLimit | None = None) -> Offset:
        return self._published() if self._end is None else self._end

    def reportLatestOffset(self) -> Offset:
        return self._published()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        before, after = self._versions(start), self._versions(end)
        gone = before.keys() - after.keys()
        if gone:
            raise Refused(f"the partition {min(gone)} was dropped: {_RESTART}")
        parts: list[InputPartition] = []
        for name, last in after.items():
            if before.get(name) != last:
                for dataset, added in self._added(name, before.get(name), last):
                    rows = sum(fragment.rows for fragment in added)
                    most = self._options.number("max_partitions") or MOST_PARTITIONS
                    chosen = list(partitions(added, rows, most))
                    if chosen:
                        reader = self._reader(name, dataset, last[0])
                        parts += [VersionFragments(reader, part.runs) for part in chosen]
        return parts or [VersionFragments(None, [])]  # one task must run, even without rows: it names the query

    # -- inside -------------------------------------------------------------------------------------------------

    def _published(self) -> Offset:
        scan = self._opened().partitions.open().scan()
        found = {str(each.table.id): self._state(scan, each) for each in scan.partitions}
        return {"partitions": dict(sorted(found.items()))}  # Spark compares offsets as text

    def _state(self, scan: Any, partition: Partition) -> list[Any]:
        """Return the version of a partition with its identity, which is read once."""
        name, version = str(partition.table.id), partition.version
        if partition.branch is not None or partition.tag is not None:
            raise Refused(f"other software publishes a branch or tag of the partition {name}; it cannot be streamed")
        known = None if version is None else self._known.get((name, version))
        if known is None:
            (_, dataset), *_ = attrs.evolve(scan, partitions=(partition,)).datasets()
            version, known = int(dataset.version), identity(dataset)
            self._known[name, version] = known
        return [version, known]

    def _versions(self, offset: Offset) -> Mapping[str, list[Any]]:
        """Return the versions of an offset.

        Raises:
            Refused: The checkpoint is of another table.
        """
        found = offset.get("partitions")
        if not isinstance(found, dict):
            raise Refused(f"the checkpoint is of a table, and {self._options.table} is all partitions: {_RESTART}")
        return found

    def _version(self, name: str, version: int) -> Any:
        try:
            return self._opened().open(name, version)
        except VersionNotFound as error:
            raise VersionNotFound(
                f"version {version} of {name}, which the stream still needs, was cleaned up. Keep versions longer than "
                "a stream may stand still; now begin with a new checkpoint."
            ) from error

    def _same(self, name: str, state: Sequence[Any]) -> Any:
        dataset = self._version(name, state[0])
        if identity(dataset) != state[1]:
            raise Refused(f"the partition {name} was dropped and created again: {_RESTART}")
        return dataset

    def _added(
        self, name: str, start: Sequence[Any] | None, end: Sequence[Any]
    ) -> Iterator[tuple[Any, Sequence[Fragment]]]:
        """Yield versions with the fragments that they added.

        If the last version has all fragments of the first, the versions between them do not matter.
        """
        last = self._same(name, end)
        if start is None:
            yield last, list(stored_fragments(last))
            return
        first = self._same(name, start)
        added = added_fragments(first, last)
        if added is not None:
            yield last, added
            return
        before = first
        for version in self._published_between(name, start[0], last):
            dataset = last if version == end[0] else self._version(name, version)
            added = added_fragments(before, dataset)
            if added is None and changes_rows(before, dataset):
                raise Refused(
                    f"version {version} of the partition {name} is no append: it changed or removed rows. A stream has "
                    f"no way to say so: {_RESTART}"
                )
            yield dataset, added or []
            before = dataset

    def _published_between(self, name: str, start: int, last: Any) -> list[int]:
        """Return the versions on which the last one is based, without versions that a failed write has left.

        The next write restores the published version first.
        """
        found, version = [], int(last.version)
        while version > start:
            restored = _restored(last, version)
            if restored is None:
                found.append(version)
            version = version - 1 if restored is None else restored
        if version < start:
            raise Refused(f"the partition {name} was restored to the version {version}: {_RESTART}")
        return found[::-1]

    def _reader(self, name: str, dataset: Any, last: int) -> Any:
        """Create a reader of a version in the columns that the table has when the stream starts.

        A partition that appears later has them in its last version.
        """
        if self._current is None:
            self._current = self._versions(self._published())
        current = self._current.get(name, [last])[0]
        snapshot = Snapshot.of(self._opened(), dataset)
        history = SchemaHistory(partial(self._version, name))
        size = self._options.number("batch_size")
        return version_reader(history, current, dataset, snapshot, self._schema, size, name)


_RESTART = "its rows are not what the stream has read. Start the query with a new checkpoint."


def _restored(dataset: Any, version: int) -> int | None:
    """Return the version that a version restores; None if it has another operation."""
    try:
        transaction = dataset.read_transaction(version)
    except TypeError:  # pylance 14 cannot build the operation of a compaction that rewrites indexes
        return None
    operation = None if transaction is None else transaction.operation
    return int(operation.version) if isinstance(operation, lance.LanceOperation.Restore) else None
