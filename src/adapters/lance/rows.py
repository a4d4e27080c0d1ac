"""The row engine that queries and changes rows through pylance."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from tempfile import SpooledTemporaryFile
from typing import Any

import pyarrow as pa

from lancekeep.adapters.lance.alignment import aligned
from lancekeep.adapters.lance.apart import searched_apart
from lancekeep.adapters.lance.channels import StagingChannel
from lancekeep.adapters.lance.keys import conforms, found_keys, keys_of
from lancekeep.adapters.lance.panics import without_panics
from lancekeep.adapters.lance.queries import plans, streamed, streamed_fragments, translated
from lancekeep.domain.column_names import quoted
from lancekeep.domain.errors import ColumnNotFound, Unsupported
from lancekeep.domain.expressions import require_bounded
from lancekeep.domain.indexes import is_system_index
from lancekeep.domain.upserts import Key
from lancekeep.format.manifest import transaction_name, without_columns
from lancekeep.native import compute as pc
from lancekeep.native import lance
from lancekeep.ports.rows import MergeCounts, MergeRule, Query, RowStats, Source

_IN_MEMORY = 16 << 20
"""The bytes of a source that are kept in memory; a larger source is kept on disk."""

_ADD_NO_ROWS = ("CreateIndex", "Delete", "Rewrite")
"""Operations after which the table has no key that it lacked before."""

_MOST_COMPARED = 100_000
"""The rows of another writer's append up to which their keys are compared; beyond that, a merge runs again."""


@without_panics
class LanceRows:
    """A `RowEngine` that uses pylance."""

    def scan(self, dataset: Any, query: Query) -> Any:
        return streamed(dataset, query)

    def without_columns(self, dataset: Any, names: Collection[str]) -> Any:
        if not set(names).intersection(dataset.schema.names):
            return dataset
        with translated(dataset):
            # What pickle takes of a dataset; the fourth part is its manifest, which is not read again.
            build, (uri, options, version, manifest, *others) = dataset.__reduce__()
            return build(uri, options, version, without_columns(bytes(manifest), names), *others)

    def search_apart(self, dataset: Any, rows: pa.Table, query: Query) -> pa.Table:
        return searched_apart(dataset, rows, query)

    def explain(self, dataset: Any, query: Query, *, verbose: bool) -> str:
        with translated(dataset):
            return _titled((title, part.explain_plan(verbose)) for title, part in plans(dataset, query))

    def analyze(self, dataset: Any, query: Query) -> str:
        with translated(dataset):
            return _titled((title, part.analyze_plan()) for title, part in plans(dataset, query))

    def count(self, dataset: Any, condition: str | None) -> int:
        require_bounded(condition)
        with translated(dataset):
            return int(dataset.count_rows(condition))

    def stats(self, dataset: Any) -> RowStats:
        with translated(dataset):
            size = sum(field.bytes_on_disk for field in dataset.stats.data_stats().fields)
            names = {index.name for index in dataset.describe_indices()}
            fragments = [fragment.metadata.num_rows for fragment in dataset.get_fragments()]
            return RowStats(size, sum(not is_system_index(name) for name in names), fragments)

    def manifest(self, dataset: Any) -> bytes:
        return bytes(dataset._ds.serialized_manifest())

    def fragments(
        self, dataset: Any, ids: Sequence[int], columns: Sequence[str], metadata: Sequence[str]
    ) -> pa.RecordBatchReader:
        return streamed_fragments(dataset, ids, columns, metadata)

    def insert(self, dataset: Any, data: Any, *, overwrite: bool) -> Any:
        dataset.insert(aligned(data), mode="overwrite" if overwrite else "append")
        return dataset

    def delete(self, dataset: Any, condition: str) -> Any:
        require_bounded(condition)
        dataset.delete(condition)
        return dataset

    def update(self, dataset: Any, values: Mapping[str, str], condition: str | None) -> tuple[Any, int]:
        _require_fields(dataset, values)
        require_bounded(condition, *values.values())
        return dataset, int(dataset.update(dict(values), condition)["num_rows_updated"])

    def updated(
        self, dataset: Any, values: Mapping[str, str], condition: str | None, columns: Sequence[str]
    ) -> pa.RecordBatchReader:
        require_bounded(condition, *values.values())
        stored = frozenset(dataset.schema.names)
        present = [name for name in columns if name in stored]
        schema = pa.schema([dataset.schema.field(name) for name in present])
        with translated(dataset):
            if any("." in path for path in values):
                raise Unsupported("fields of structs cannot be updated in a table with rules for its rows")
            projected = {name: values.get(name, quoted(name)) for name in present}
            # The engine refuses to compute only constants; an address is a column.
            reader = dataset.scanner(columns=projected, filter=condition, with_row_address=True).to_reader()
        made = (batch.select(present) for batch in reader if batch.num_rows)
        cast = (rows.cast(schema) if present else rows for rows in made)  # without columns, it would lose the rows
        return pa.RecordBatchReader.from_batches(schema, cast)

    def merge(self, dataset: Any, source: Any, rule: MergeRule) -> tuple[Callable[[], Any], MergeCounts]:
        _require_fields(dataset, rule.on)
        require_bounded(rule.update_if, rule.delete_if)
        merge = dataset.merge_insert(list(rule.on)).use_index(rule.use_index).conflict_retries(0)
        if rule.update:
            merge.when_matched_update_all(rule.update_if)
        if rule.insert:
            merge.when_not_matched_insert_all()
        if rule.delete:
            merge.when_not_matched_by_source_delete(rule.delete_if)
        transaction, counts = merge.execute_uncommitted(aligned(source))

        def commit() -> Any:
            # The engine rebases no detached version, and a staging channel takes any version.
            detached = isinstance(dataset._namespace_client, StagingChannel)
            return lance.LanceDataset.commit(dataset, transaction, detached=detached)

        return commit, MergeCounts(counts["num_inserted_rows"], counts["num_updated_rows"], counts["num_deleted_rows"])

    def keeps_apart(self, dataset: Any, version: int, source: Source, rule: MergeRule) -> bool:
        try:
            found = dataset.checkout_version(version)
            transaction = found.read_transaction(version)
            operation = type(transaction.operation)
            if operation.__name__ in _ADD_NO_ROWS:
                return True
            moves = operation is lance.LanceOperation.Update
            if not (moves or operation is lance.LanceOperation.Append) or rule.delete:
                return False
            before = dataset.checkout_version(version - 1).get_fragments()
            known = {fragment.fragment_id: fragment for fragment in before}
            if moves and not _are_only_moved(transaction.operation.updated_fragments, known):
                return False
            added = [fragment for fragment in found.get_fragments() if fragment.fragment_id not in known]
            return not _may_share_keys(found, added, source, rule.on)
        except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, RuntimeError):
            return False  # the merge runs again, and meets the fault if it lasts

    def keys(self, rows: pa.Table, on: Sequence[str]) -> frozenset[Key] | None:
        return keys_of(rows, on)

    def takes(self, dataset: Any, rows: pa.Table) -> bool:
        return not dataset.base_paths() and conforms(rows, dataset.schema)

    def found(self, dataset: Any, on: Sequence[str], keys: Collection[Key]) -> Mapping[Key, int]:
        with translated(dataset):
            return found_keys(dataset, on, keys)

    def located(self, dataset: Any, column: str, fragments: Collection[int]) -> pa.RecordBatchReader:
        with translated(dataset):
            chosen = [dataset.get_fragment(number) for number in fragments]
            scanner = dataset.scanner(columns=[column], fragments=chosen, with_row_address=True)
            return scanner.to_reader() if chosen else scanner.to_table().slice(0, 0).to_reader()

    def restore(self, dataset: Any, version: int, branch: str | None) -> Any:
        old = dataset.checkout_version(version if branch is None else (branch, version))
        old.restore()
        return old

    def transaction(self, dataset: Any) -> str | None:
        name = transaction_name(dataset._ds.serialized_manifest())
        return name.partition("-")[2].removesuffix(".txn") or None

    @contextmanager
    def repeatable(self, data: Any) -> Iterator[Source]:
        with SpooledTemporaryFile(_IN_MEMORY) as file:
            kept = _Kept(file)
            with pa.ipc.new_stream(file, data.schema) as writer:
                for batch in data:
                    writer.write_batch(batch)
                    kept.rows += batch.num_rows
            yield kept


def _are_only_moved(updated: Sequence[Any], known: Mapping[int, Any]) -> bool:
    """Return whether an update has left the values of all rows in known fragments as they were."""
    return all(
        each.id in known and [file.path for file in each.files] == [file.path for file in known[each.id].metadata.files]
        for each in updated
    )


def _may_share_keys(dataset: Any, fragments: Sequence[Any], source: Source, on: Sequence[str]) -> bool:
    """Return whether rows of the source may have keys of the fragments.

    Keys of several columns are compared column by column, which may find too many.
    """
    fields = [dataset.schema.field(name) for name in on]
    if sum(fragment.count_rows() for fragment in fragments) > _MOST_COMPARED:
        return True
    if any(pa.types.is_floating(field.type) or pa.types.is_nested(field.type) for field in fields):
        return True  # 0.0 and -0.0 are one key
    keys = dataset.scanner(columns=list(on), fragments=list(fragments)).to_table()
    for batch in source.stream():
        shared = pa.array([True] * batch.num_rows)
        for field in fields:
            found = pc.is_in(batch.column(field.name).cast(field.type), value_set=keys[field.name])
            shared = pc.and_(shared, found)
        if pc.any(shared, min_count=0).as_py():
            return True
    return False


class _Kept:
    """Rows in a temporary file."""

    def __init__(self, file: Any) -> None:
        self.rows = 0
        self._file = file

    def stream(self) -> pa.RecordBatchReader:
        self._file.seek(0)
        return pa.ipc.open_stream(self._file)


def _require_fields(dataset: Any, paths: Iterable[str]) -> None:
    for path in paths:
        if dataset.lance_schema.field(path) is None:
            columns = ", ".join(dataset.schema.names)
            raise ColumnNotFound(f"the table has no column {path!r}; its columns are {columns}. Nothing was changed")


def _titled(parts: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"{title}:\n{text}" if title else text for title, text in parts)
