"""The table engine that reads and writes through pylance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC
from functools import partial
from typing import Any, TypeVar, cast

import pyarrow as pa

from lancekeep.adapters.lance.alignment import aligned, require_storable
from lancekeep.adapters.lance.channels import Channel, FirstChannel, Handle, Reads, StagingChannel
from lancekeep.adapters.lance.data_files import LanceDataFiles
from lancekeep.adapters.lance.fields import fragment_of, keeping_fields
from lancekeep.adapters.lance.indexes import trusted_indexes
from lancekeep.adapters.lance.panics import without_panics
from lancekeep.adapters.lance.rows import LanceRows
from lancekeep.adapters.lance.structure import LanceStructure, operation_of
from lancekeep.adapters.lance.translation import translated
from lancekeep.adapters.lance.views import LanceViews
from lancekeep.application.concurrency import in_a_thread
from lancekeep.application.rows.row_rules import checked
from lancekeep.domain.commit import Committed
from lancekeep.domain.errors import (
    BranchNotFound,
    CommitRefused,
    EngineFailed,
    InvalidInput,
    StoreUnavailable,
    TableNotFound,
    TagNotFound,
    VersionNotFound,
)
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.lineage import Base
from lancekeep.domain.table import V1_SUFFIX
from lancekeep.format.manifest import time_of, transaction_name
from lancekeep.native import CACHED_METADATA, lance
from lancekeep.ports.compaction_engine import CompactionEngine
from lancekeep.ports.data_files import DataFiles, Rows
from lancekeep.ports.table_engine import StagedVersion, VersionDetails, VersionSummary, WriteMode, WritePlan

_AT_ONCE = 8
"""The versions that are summarized at a time."""

Result = TypeVar("Result")


@without_panics
class LanceEngine:
    """A `TableEngine` that uses pylance.

    namespace: its callbacks commit. based_on: returns it for a writer that has read a version. before_commit: called
    with the table and the branch before each change, and raises if its commit would not be safe: pylance commits a
    storage-managed table without a callback. on_open: called with the base paths of each version before its rows are
    read; raises if the caller may not read them.
    """

    def __init__(
        self,
        namespace: Any,
        storage_options: Mapping[str, str],
        based_on: Callable[[Base], Any],
        *,
        before_commit: Callable[[ObjectId, str | None], None] = lambda table, branch: None,
        on_open: Callable[[ObjectId, Iterable[str]], None] = lambda table, base_paths: None,
    ) -> None:
        self._namespace = namespace
        self._based_on = based_on
        self._storage_options = dict(storage_options)
        self._before_commit = before_commit
        self._on_open = on_open
        self.rows = LanceRows()
        self.structure = LanceStructure()
        self.views = LanceViews()
        self.data_files: DataFiles = LanceDataFiles()

    @property
    def compaction(self) -> CompactionEngine:
        from lancekeep.adapters.lance.compaction import LanceCompaction  # loads classes as `Catalog.inspect` does

        return LanceCompaction()

    def reader(self, data: Any) -> Any:
        rows = self.rows_of(data)
        if isinstance(rows, Rows):
            rows = rows.table
        return rows.to_reader() if isinstance(rows, pa.Table) else rows

    def rows_of(self, data: Any) -> Any:
        if isinstance(data, pa.RecordBatch):
            data = pa.Table.from_batches([data])
        elif not isinstance(data, pa.RecordBatchReader | pa.Table | Rows):
            data = _table_of_frame(data)
        require_storable(data.schema)
        return data

    def write(self, table: ObjectId, data: Any, mode: WriteMode, *, stable_row_ids: bool = False) -> Committed:
        self._before_commit(table, None)
        if mode is WriteMode.CREATE and self._described(table).managed_versioning is not True:
            return self._create(table, data, stable_row_ids=stable_row_ids)
        if mode is WriteMode.APPEND:
            return self._append(table, data)
        channel = Channel(self._namespace)
        return _one_commit(
            table,
            channel,
            lambda: lance.write_dataset(
                aligned(data),
                mode=mode.value,
                namespace_client=cast(Any, channel),  # pylance calls methods by name
                table_id=list(table.names),
                storage_options=self._storage_options or None,
                enable_stable_row_ids=stable_row_ids,  # ignored if the table has a version
            ),
        )

    def _append(self, table: ObjectId, data: Any) -> Committed:
        """Append to the opened table: pylance's own append creates a table if it is missing."""
        channel = Channel(self._namespace)

        def append() -> Any:
            try:
                dataset = self._dataset(channel, table)
            except ValueError as error:
                if "not found" not in str(error) or isinstance(channel.met, StoreUnavailable):
                    raise
                raise TableNotFound(
                    f"the table {table} is only declared: it has no version to append to. Write the first version "
                    "with mode='overwrite'"
                ) from error
            self._bind(channel, dataset)
            dataset.insert(aligned(data), mode="append")
            return dataset

        return _one_commit(table, channel, append)

    def _create(self, table: ObjectId, data: Any, *, stable_row_ids: bool) -> Committed:
        """Create version 1 by the storage's own condition; one of several processes wins.

        If another process was faster, pylance's own creation continues as an Overwrite and reports success.
        """
        described = self._namespace.describe_table({"id": list(table.names)})
        uri = cast(str, described.location)  # always set
        plan = WritePlan(
            table,
            uri,
            self._storage_options,
            data.schema,
            WriteMode.CREATE,
            0,
            True,
            stable_row_ids=stable_row_ids,
        )
        return _native(self._created(plan, self.write_fragments(plan, data)))

    def create_at(self, plan: WritePlan, fragments: Sequence[Any]) -> int:
        return int(self._created(plan, fragments).version)

    def _created(self, plan: WritePlan, fragments: Sequence[Any]) -> Any:
        require_storable(plan.schema)
        with translated(plan.table, Channel(self._namespace)):
            return lance.LanceDataset.commit(
                plan.uri,
                lance.LanceOperation.Overwrite(plan.schema, [fragment_of(fragment) for fragment in fragments]),
                read_version=0,
                max_retries=0,
                enable_v2_manifest_paths=True,
                enable_stable_row_ids=plan.stable_row_ids,
                storage_options=dict(plan.storage_options) or None,
            )

    def restore(self, table: ObjectId, version: int) -> Committed:
        self._before_commit(table, None)
        channel = Channel(self._namespace)

        def restore() -> Any:
            dataset = self._dataset(channel, table, version)
            self._bind(channel, dataset)
            dataset.restore()
            return dataset

        return _one_commit(table, channel, restore)

    def read(self, dataset: Any, columns: Sequence[str] | None, condition: Any) -> Any:
        return dataset.to_table(columns=None if columns is None else list(columns), filter=condition)

    def open_at(self, uri: str) -> Any:
        return lance.dataset(uri, storage_options=self._storage_options or None)

    def commit_fragments(
        self, plan: WritePlan, fragments: Sequence[Any], properties: Mapping[str, str], *, exactly: bool
    ) -> Committed:
        self._before_commit(plan.table, None)
        if plan.base is not None and not plan.read_version:
            self._described(plan.table)  # the engine hides that the table does not exist
        namespace = self._namespace if plan.base is None else self._based_on(plan.base)
        metadata = [fragment_of(fragment) for fragment in fragments]
        channel = Channel(namespace, after=plan.read_version if exactly else None, fits=self._fits(plan, metadata))
        return _committed(channel, self._commit(plan, metadata, properties, channel, exactly=exactly))

    def _fits(self, plan: WritePlan, metadata: Sequence[Any]) -> Callable[[int], bool] | None:
        return keeping_fields(plan, metadata, lambda version: self.open(plan.table, version, None, None))

    def write_fragments(self, plan: WritePlan, data: Any) -> Sequence[Any]:
        if plan.mode is not WriteMode.APPEND:
            require_storable(plan.schema)
        with checked(data, plan.rules) as rows, translated(plan.table, Channel(self._namespace)):
            fragments: Sequence[Any] = lance.fragment.write_fragments(
                aligned(rows),
                plan.uri,
                schema=plan.schema,
                mode=plan.fragment_mode,
                storage_options=dict(plan.storage_options) or None,
            )
        return fragments

    def stage(self, plan: WritePlan, fragments: Sequence[Any], *, entered: bool = True) -> StagedVersion:
        metadata = [fragment_of(fragment) for fragment in fragments]
        staging = partial(StagingChannel, fits=self._fits(plan, metadata)) if entered else FirstChannel
        channel = staging(self._namespace)
        self._commit(plan, metadata, {}, channel, managed=True)
        assert channel.staged is not None, "the engine committed past its namespace"
        return channel.staged

    def _commit(
        self,
        plan: WritePlan,
        metadata: list[Any],
        properties: Mapping[str, str],
        channel: Channel,
        *,
        managed: bool = False,
        exactly: bool = False,
    ) -> Any:
        appends = plan.mode is WriteMode.APPEND
        if not appends:
            require_storable(plan.schema)
        operation = (
            lance.LanceOperation.Append(metadata) if appends else lance.LanceOperation.Overwrite(plan.schema, metadata)
        )
        # With a base, the directory may become another table's: the catalog compares the base, whatever the store.
        managed = managed or exactly or plan.base is not None or self._manages(plan)
        # A repetition of an exact commit cannot succeed, and the engine waits before it for several times the duration
        # of the first attempt. Without a table, the engine finds out by a repetition that another writer has created
        # the table.
        repeats = not exactly if plan.read_version else managed
        if plan.read_version:
            channel.follow_version()
        with translated(plan.table, channel, managed=managed):
            return lance.LanceDataset.commit(
                plan.uri,
                lance.Transaction(plan.read_version, operation, transaction_properties=dict(properties)),
                max_retries=20 if repeats else 0,
                storage_options=dict(plan.storage_options) or None,
                enable_v2_manifest_paths=True,
                enable_stable_row_ids=plan.stable_row_ids,  # ignored if the table has a version
                namespace_client=cast(Any, channel),
                table_id=list(plan.table.names),
                namespace_client_managed_versioning=managed,
            )

    def change(
        self,
        table: ObjectId,
        act: Callable[[Any], Any],
        after: int | None,
        *,
        branch: str | None = None,
        exactly: bool = False,
        admits: Callable[[Any, int], bool] | None = None,
        indexes: bool = False,
    ) -> Committed:
        self._before_commit(table, branch)
        channel = Channel(self._namespace, after=after, exactly=exactly, guards=True)
        with translated(table, channel):
            dataset = self._dataset(channel, table)
            if not channel.is_asked and (indexes or trusted_indexes(dataset)):
                channel.ask()
                dataset = self._dataset(channel, table)
            dataset = dataset if branch is None else self._opened(table, dataset.checkout_version((branch, None)))
            self._bind(channel, dataset, branch)
            if exactly:
                channel.follow(dataset.version, None if admits is None else partial(_admitted, admits, dataset))
            return _committed(channel, act(dataset))

    def stage_change(self, table: ObjectId, act: Callable[[Any], Any]) -> tuple[StagedVersion, Base]:
        self._before_commit(table, None)
        channel = StagingChannel(self._namespace, exactly=True)
        with translated(table, channel):
            dataset = self._dataset(channel, table)
            base = _base_of(dataset)
            act(dataset)
        assert channel.staged is not None, "the engine committed past its namespace"
        return channel.staged, base

    def examine(
        self, table: ObjectId, act: Callable[[Any], Result], version: int | None, branch: str | None = None
    ) -> Result:
        handle = Handle(self._namespace)
        with translated(table, handle, reading=True):
            return act(self._open(handle, table, version, None, branch))

    def open(self, table: ObjectId, version: int | None, tag: str | None, branch: str | None) -> Any:
        return self._open(Handle(self._namespace), table, version, tag, branch)

    def handle(self, table: ObjectId, version: int | None, tag: str | None, branch: str | None) -> Any:
        handle = Handle(self._namespace, commits=True)
        dataset = self._open(handle, table, version, tag, branch, cached=None)
        if handle.is_asked:
            for method in ("shallow_clone", "deep_clone"):  # the engine refuses them if commits call back
                setattr(dataset, method, partial(self._clone, method, table, branch))
        return dataset

    def _clone(self, method: str, table: ObjectId, branch: str | None, *given: Any, **named: Any) -> Any:
        return getattr(self.open(table, None, None, branch), method)(*given, **named)

    def _open(
        self,
        handle: Handle,
        table: ObjectId,
        version: int | None,
        tag: str | None,
        branch: str | None,
        *,
        cached: int | None = CACHED_METADATA,
    ) -> Any:
        try:
            with translated(table, handle, reading=True):
                chosen = tag if tag is not None else None if branch else version
                dataset = self._dataset(handle, table, chosen, cached=cached)
                if branch is not None:
                    dataset = self._opened(table, dataset.checkout_version((branch, version)))
                if tag is None:
                    self._bind(handle, dataset, branch)
                return dataset
        except VersionNotFound as error:
            if tag is not None:
                raise TagNotFound(f"the table {table} has no tag {tag!r}") from error
            if branch is not None and version is None:
                raise BranchNotFound(f"the table {table} has no branch {branch!r}") from error
            raise

    def details(self, table: ObjectId, version: int | None, tag: str | None, branch: str | None) -> VersionDetails:
        handle = Handle(self._namespace)
        with translated(table, handle, reading=True):
            dataset = self._open(handle, table, version, tag, branch)
            stats = dataset.stats.dataset_stats()
            return VersionDetails(
                dataset.version,
                dataset.schema,
                dataset.count_rows(),
                stats["num_fragments"],
                stats["num_deleted_rows"],
            )

    def summaries(
        self, table: ObjectId, versions: Sequence[int], branch: str | None = None
    ) -> Iterator[VersionSummary]:
        handle = Handle(self._namespace)
        with translated(table, handle, reading=True):
            dataset = self._open(handle, table, None, None, branch)
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                yield from filter(None, pool.map(partial(_summary, table, handle, dataset, branch), versions))

    def times(self, table: ObjectId, branch: str | None) -> tuple[int, Callable[[int], int | None]]:
        handle = Handle(self._namespace)
        dataset = self._open(handle, table, None, None, branch)

        def time(version: int) -> int | None:
            at = _checked_out(table, handle, dataset, branch, version)
            return None if at is None else time_of(at._ds.serialized_manifest())

        return int(dataset.version), time

    def _bind(self, writer: Reads, dataset: Any, branch: str | None = None) -> None:
        """Bind a writer's commits to the version that it has read, and to its successors."""
        writer.bind(self._based_on(_base_of(dataset, branch)))

    def _dataset(
        self, namespace: Any, table: ObjectId, version: int | str | None = None, *, cached: int | None = CACHED_METADATA
    ) -> Any:
        """Open a table as `lance.dataset` does, which would import `lance_namespace` for its request."""
        described = namespace.describe_table({"id": list(table.names)})
        dataset = lance.LanceDataset(
            described.location,
            version,
            storage_options={**self._storage_options, **(described.storage_options or {})} or None,
            namespace_client=namespace,
            table_id=list(table.names),
            namespace_client_managed_versioning=described.managed_versioning is True,
            metadata_cache_size_bytes=cached,
        )
        return self._opened(table, dataset)

    def _opened(self, table: ObjectId, dataset: Any) -> Any:
        self._on_open(table, [base.path for base in dataset.base_paths().values()])
        return dataset

    def _manages(self, plan: WritePlan) -> bool:
        """Return whether the namespace manages the versions of the table of a plan.

        Raises:
            CommitRefused: The table has another directory than the plan.
        """
        described = self._described(plan.table)
        if described.managed_versioning is not True and described.location != plan.uri:
            raise CommitRefused(
                f"the table {plan.table} was dropped and created again, or moved, since the write began: it is at "
                f"{described.location!r}, and not at {plan.uri!r}. Nothing was committed: begin the write again"
            )
        return described.managed_versioning is True

    def _described(self, table: ObjectId) -> Any:
        with translated(table, Channel(self._namespace)):
            return self._namespace.describe_table({"id": list(table.names)})


def _base_of(dataset: Any, branch: str | None = None) -> Base:
    return Base(dataset.version, transaction_name(dataset._ds.serialized_manifest()), branch)


def _table_of_frame(data: Any) -> pa.Table:
    module = type(data).__module__.partition(".")[0]
    if module == "pandas":
        return pa.Table.from_pandas(data, preserve_index=False)
    if module == "polars":
        return (data.collect() if hasattr(data, "collect") else data).to_arrow()
    raise InvalidInput(
        f"cannot write a {type(data).__module__}.{type(data).__qualname__}; give a pyarrow Table, RecordBatch or "
        "RecordBatchReader, or a pandas or polars frame"
    )


def _admitted(admits: Callable[[Any, int], bool], dataset: Any, version: int) -> bool:
    return in_a_thread(partial(admits, dataset, version))


def _summary(table: ObjectId, handle: Handle, dataset: Any, branch: str | None, version: int) -> VersionSummary | None:
    """Summarize a version by its manifest alone; None if the version was cleaned up."""
    at = _checked_out(table, handle, dataset, branch, version)
    if at is None:
        return None
    described = at.get_version()
    when = described["timestamp"].astimezone(UTC)  # pylance gives local time without a zone
    return VersionSummary(version, when, operation_of(at, version), int(described["metadata"]["total_rows"]))


def _checked_out(table: ObjectId, handle: Handle, dataset: Any, branch: str | None, version: int) -> Any | None:
    """Return a dataset at another version; None if the version does not exist."""
    try:
        with translated(table, handle, reading=True):
            return dataset.checkout_version(version if branch is None else (branch, version))
    except VersionNotFound:
        return None


def _committed(channel: Channel, dataset: Any) -> Committed:
    """Return what was committed; storage-managed tables commit without a callback.

    The engine takes a refused commit for done if it finds the version all the same, so the error is raised here.
    """
    if channel.error is not None:
        raise channel.error
    return channel.committed or _native(dataset)


def _native(dataset: Any) -> Committed:
    """Return a version that was committed without a callback.

    In a V1 directory, it has the name of its transaction file, by which a copy of it is recognized.
    """
    in_v1 = f"{V1_SUFFIX}/" in f"{dataset.uri}/"
    return Committed(dataset.version, "", 0, transaction_name(dataset._ds.serialized_manifest()) if in_v1 else "")


def _one_commit(table: ObjectId, channel: Channel, act: Callable[[], Any]) -> Committed:
    """Run a single commit; an outage or a panic after the commit does not undo it."""
    try:
        with translated(table, channel):
            dataset = act()
    except (EngineFailed, StoreUnavailable):
        if channel.committed is None or channel.error is not None:
            raise
        return channel.committed
    return _committed(channel, dataset)
