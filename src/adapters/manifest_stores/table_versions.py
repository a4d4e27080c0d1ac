"""Versions of the manifest table: read one into an index, prepare the next.

Fragments that a version shares with the previously read one are not read again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from uuid import uuid4

import attrs
import pyarrow as pa
from pyroaring import FrozenBitMap

from lancekeep.adapters.manifest_stores.columns import REQUIRED, SCHEMA, column_of, enter_columns, in_memory
from lancekeep.adapters.manifest_stores.index import (
    SMALL,
    UNWRITTEN,
    EntryRows,
    Fragment,
    IndexedView,
    Piece,
    Rows,
)
from lancekeep.adapters.manifest_stores.table_data import (
    DataFiles,
    StoredColumns,
    conforming,
    example_of,
    filled,
)
from lancekeep.domain.dataset_files import DATA, DELETIONS, data_file_name, deletion_file_name
from lancekeep.domain.errors import Damaged, InvalidInput, LancekeepError, Refused
from lancekeep.domain.features import FENCE
from lancekeep.domain.home_copy import NOT_HOME
from lancekeep.domain.layout import VERSIONS
from lancekeep.format import data_file
from lancekeep.format.manifest import TRANSACTION_SECTIONS, ManifestFile, make_successor
from lancekeep.format.messages import DataFragment, Transaction
from lancekeep.ports.object_store import ObjectStore

READER_FLAGS = "lance.namespace.manifest.reader_feature_flags"
WRITER_FLAGS = "lance.namespace.manifest.writer_feature_flags"

_DELETION_FILES = 1
_READABLE = _DELETION_FILES | 2 | 4 | 8  # stable row ids, the V2 format, table configuration
_WRITABLE = _DELETION_FILES | 4 | 8 | FENCE
_ARROW, _BITMAP = 0, 1
_DELETED_ROWS = pa.schema([pa.field("row_id", pa.uint32(), nullable=False)])
_MOST_DELETED = 4096
"""A fragment with more deleted rows is rewritten, so that deletion files stay small."""


@attrs.frozen
class Version:
    """A version of the manifest table.

    Attributes:
        number: its number.
        content: its manifest file.
        file: the decoded manifest file.
        columns: its columns.
        view: its entries.
    """

    number: int
    content: bytes = attrs.field(repr=False)
    file: ManifestFile
    columns: StoredColumns
    view: IndexedView


@attrs.frozen
class Prepared:
    """The next version, which exists once its manifest has its final name.

    Attributes:
        version: the version.
        content: its manifest file.
        keys: the files that were written for it.
    """

    version: Version
    content: bytes
    keys: Sequence[str]


class TableVersions:
    """Read and prepare versions of the manifest table in the directory ``key``."""

    def __init__(self, objects: ObjectStore, key: str) -> None:
        self._objects = objects
        self._key = key
        self._files = DataFiles()

    # -- reading ------------------------------------------------------------------------------------------------

    def read(self, content: bytes, previous: Version | None) -> Version:
        """Decode a version, which shares rows with ``previous``.

        Raises:
            Damaged: the bytes are not a version of a manifest table.
            Refused: the version requires features that this release does not know.
        """
        try:
            return self._read(content, previous)
        except InvalidInput as error:  # The path comes from the manifest, not from the caller.
            raise Damaged(f"{self._key}: version is not readable: {error}") from error
        except LancekeepError:
            raise
        except (ArithmeticError, LookupError, OSError, TypeError, ValueError, MemoryError, pa.ArrowException) as error:
            raise Damaged(
                f"{self._key}: a file of the manifest table cannot be read ({error!r:.200}). Restore the table, or an "
                "older version of it with pylance."
            ) from error

    def _read(self, content: bytes, previous: Version | None) -> Version:
        file = ManifestFile.parse(content, f"{self._key}/{VERSIONS}")
        manifest = file.manifest
        properties = _properties(manifest)
        flags = manifest.reader_feature_flags
        self._require_known("reader_feature_flags", flags, _READABLE, properties, READER_FLAGS)
        if previous is not None and list(previous.file.manifest.fields) != list(manifest.fields):
            previous = None
        same = previous is not None and previous.columns.version == manifest.data_format.version
        columns = previous.columns if previous is not None and same else StoredColumns.of(manifest)
        schema = in_memory(columns.schema, self._key)
        known = {} if previous is None else {fragment.paths: fragment for fragment in previous.view.fragments}
        unknown = (fragment for fragment in manifest.fragments if _paths(fragment) not in known)
        read = {fragment.id: self._columns(fragment, manifest) for fragment in unknown}
        fragments = tuple(
            self._fragment(fragment, read.get(fragment.id), schema, known) for fragment in manifest.fragments
        )
        view = IndexedView(manifest.version, properties, fragments, schema)
        return Version(manifest.version, content, file, columns, view)

    def _fragment(
        self,
        fragment: Any,
        columns: Mapping[str, pa.ChunkedArray] | None,
        schema: pa.Schema,
        previous: Mapping[tuple[str, ...], Fragment],
    ) -> Fragment:
        key = _paths(fragment)
        deletion = _deletion(fragment)
        known = previous.get(key)
        if known is not None and known.deletion == deletion:
            return attrs.evolve(known, id=fragment.id)
        deleted = self._deleted(fragment)
        if known is not None:
            return attrs.evolve(known, id=fragment.id, deletion=deletion, deleted=deleted)
        batch = filled(_aligned(columns or {}, schema))
        return Fragment(fragment.id, key, tuple(_pieces(batch, previous.values())), deletion, deleted)

    def _columns(self, fragment: Any, manifest: Any) -> Mapping[str, pa.ChunkedArray]:
        """Return the columns that the data files of a fragment hold, by name."""
        if any(file.HasField("base_id") for file in (*fragment.files, fragment.deletion_file)):
            raise Refused(f"{self._key}: files of fragment {fragment.id} lie in another table; that is not supported")
        if not fragment.physical_rows:
            return {}
        held = {number for file in fragment.files for number in file.fields}
        roots = [field for field in manifest.fields if field.parent_id < 0]
        missing = [field.name for field in roots if field.name in REQUIRED and field.id not in held]
        if missing:
            raise Damaged(f"{self._key}: fragment {fragment.id} has rows without the column {' and '.join(missing)}")
        contents = [self._objects.get(f"{self._key}/{DATA}/{file.path}") for file in fragment.files]
        columns = self._files.decode(manifest, fragment, contents)
        rows = {len(column) for column in columns.values()}
        if rows != {fragment.physical_rows}:
            raise Damaged(
                f"{self._key}: the data files of fragment {fragment.id} hold {', '.join(map(str, sorted(rows)))} rows; "
                f"its manifest expects {fragment.physical_rows}. Restore an older version of the table with pylance"
            )
        return columns

    def _deleted(self, fragment: Any) -> FrozenBitMap:
        if not fragment.HasField("deletion_file"):
            return FrozenBitMap()
        from lancekeep.domain.manifest import DeletionFile  # most fragments have no deletion file
        from lancekeep.format.deletions import read
        from lancekeep.format.values import decoded

        file = fragment.deletion_file
        key = self._deletion_key(fragment.id, file)
        content = self._objects.get(key)
        return FrozenBitMap(read(content, decoded(DeletionFile, file), fragment.physical_rows, key))

    # -- writing ------------------------------------------------------------------------------------------------

    def prepare(self, base: Version, view: IndexedView) -> Prepared:
        """Write the files of the version after ``base``, with the entries of ``view``.

        New rows become one fragment. Trailing fragments that are not much larger are merged into the new fragment, so
        the number of fragments grows with the logarithm of the rows. Index metadata, unknown columns and configuration
        are kept.
        """
        manifest = base.file.manifest
        flags = manifest.writer_feature_flags
        self._require_known("writer_feature_flags", flags, _WRITABLE, base.view.properties, WRITER_FLAGS)
        kept, merged = _merge(view.fragments)
        keys: list[str] = []
        new: list[tuple[Fragment, Any]] = []
        following = type(manifest)()
        following.CopyFrom(manifest)
        columns = base.columns
        if view.schema is not base.view.schema:
            enter_columns(following, example_of(view.schema, columns.version).manifest)
            columns = StoredColumns.of(following)
        rows = _rows(merged, view.schema)
        if len(rows):
            parts = self._files.split(rows, columns)
            new += [self._write_fragment(part, columns, following, keys) for part in parts]
        before = {fragment.id: fragment for fragment in base.view.fragments}
        changed = [fragment for fragment in kept if fragment.deleted != before[fragment.id].deleted]
        replaced = {fragment.id: self._write_deletions(fragment, base, keys) for fragment in changed}
        kept = [replaced[fragment.id][0] if fragment.id in replaced else fragment for fragment in kept]

        messages = {message.id: message for message in manifest.fragments}
        messages.update({fragment_id: message for fragment_id, (_, message) in replaced.items()})
        messages.update({fragment.id: message for fragment, message in new})
        fragments = (*kept, *(fragment for fragment, _ in new))
        del following.fragments[:]
        following.fragments.extend(messages[fragment.id] for fragment in fragments)
        _advance(following, base.number + 1, view, deletions=any(fragment.deleted for fragment in fragments))
        remaining = {fragment.id for fragment in fragments}
        removed = [fragment.id for fragment in base.view.fragments if fragment.id not in remaining]
        transaction = _transaction(
            base,
            following,
            removed=removed,
            updated=[message for _, message in replaced.values()],
            new=[message for _, message in new],
        )
        file = ManifestFile(following, base.file.indexes)
        # Engines that ignore the flag rebase a commit by the transactions in between, unless they find none (ADR 71).
        sections = TRANSACTION_SECTIONS[:1] if following.writer_feature_flags & FENCE else TRANSACTION_SECTIONS
        content = file.serialize(transaction, sections)
        after = attrs.evolve(view, version=base.number + 1, fragments=fragments)
        return Prepared(Version(base.number + 1, content, file, columns, after), content, keys)

    def discard(self, prepared: Prepared) -> None:
        """Remove the files of a version that was not published."""
        for key in prepared.keys:
            self._objects.delete(key)

    def _write_fragment(
        self, rows: Rows, columns: StoredColumns, manifest: Any, keys: list[str]
    ) -> tuple[Fragment, Any]:
        content, file = self._files.encode(rows, columns)
        file.path = data_file_name(uuid4().bytes)
        keys.append(f"{self._key}/{DATA}/{file.path}")
        self._objects.put(keys[-1], content)
        message = DataFragment(id=_next_fragment_id(manifest), physical_rows=len(rows), files=[file])
        manifest.max_fragment_id = message.id
        return Fragment(message.id, (file.path,), (Piece(rows),)), message

    def _write_deletions(self, fragment: Fragment, base: Version, keys: list[str]) -> tuple[Fragment, Any]:
        message = DataFragment()
        message.CopyFrom(next(known for known in base.file.manifest.fragments if known.id == fragment.id))
        file = message.deletion_file
        file.Clear()
        file.file_type, file.read_version, file.id = _ARROW, base.number, random.getrandbits(63)
        file.num_deleted_rows = len(fragment.deleted)
        buffer = pa.py_buffer(fragment.deleted.to_array())
        offsets = pa.Array.from_buffers(pa.uint32(), len(fragment.deleted), [None, buffer])
        table = pa.table([offsets], schema=_DELETED_ROWS)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        keys.append(self._deletion_key(message.id, file))
        self._objects.put(keys[-1], sink.getvalue().to_pybytes())
        return attrs.evolve(fragment, deletion=_deletion(message)), message

    # -- inside -------------------------------------------------------------------------------------------------

    def _deletion_key(self, fragment_id: int, file: Any) -> str:
        name = deletion_file_name(fragment_id, file.read_version, file.id, bitmap=file.file_type == _BITMAP)
        return f"{self._key}/{DELETIONS}/{name}"

    def _require_known(self, name: str, flags: int, known: int, properties: Mapping[str, str], gate: str) -> None:
        """Refuse feature bits that this release does not know."""
        gated = properties.get(gate, "0")
        unknown = f"{name} = {flags & ~known}" if flags & ~known else f"{gate} = {gated}"
        if flags & ~known or gated != "0":
            raise Refused(
                f"{self._key} requires features that this version of Lancekeep does not know ({unknown}); "
                "use a newer version"
            )


def empty_version() -> Version:
    """Return version 0: no entries, and the schema that the Lance engine writes."""
    example = example_of(SCHEMA, data_file.STORAGE_VERSION).manifest
    manifest = type(example)()
    manifest.CopyFrom(example)
    manifest.ClearField("max_fragment_id")
    del manifest.fragments[:]
    return Version(0, b"", ManifestFile(manifest, None), StoredColumns.of(manifest), empty_view())


def empty_view() -> IndexedView:
    """Return the entries of version 0."""
    return IndexedView(0, {}, (), SCHEMA)


def _merge(fragments: Sequence[Fragment]) -> tuple[list[Fragment], list[Fragment]]:
    """Return the fragments to keep and the fragments to merge into one, in order."""
    kept = [fragment for fragment in fragments if fragment.id != UNWRITTEN]
    unwritten = [fragment for fragment in fragments if fragment.id == UNWRITTEN]
    worn = [fragment for fragment in kept if not fragment.live or len(fragment.deleted) > _MOST_DELETED]
    kept = [fragment for fragment in kept if fragment not in worn]
    rows = sum(fragment.live for fragment in (*worn, *unwritten))
    tail: list[Fragment] = []
    while kept and rows and kept[-1].live <= 2 * rows:
        tail.insert(0, kept.pop())
        rows += tail[0].live
    return kept, [*worn, *tail, *unwritten]


def _rows(fragments: Sequence[Fragment], schema: pa.Schema) -> Rows:
    """Return the live rows of fragments, in order."""
    if sum(fragment.live for fragment in fragments) <= data_file.MOST_ROWS:
        return EntryRows([entry for fragment in fragments for entry in fragment.entries()], schema)
    return Rows(_joined([batch for fragment in fragments for batch in fragment.batches()], schema))


def _joined(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [pa.concat_arrays([column_of(batch, field.name, field.type) for batch in batches]) for field in schema]
    return filled(pa.RecordBatch.from_arrays(arrays, schema=schema))


def _advance(manifest: Any, number: int, view: IndexedView, *, deletions: bool) -> None:
    """Turn a copy of the previous manifest into the manifest of version ``number``."""
    make_successor(manifest, number, time.time_ns())
    fence = 0 if NOT_HOME.isdisjoint(view.properties) else FENCE
    for flags, fenced in (("reader_feature_flags", 0), ("writer_feature_flags", fence)):
        others = getattr(manifest, flags) & ~(_DELETION_FILES | FENCE)
        setattr(manifest, flags, others | fenced | (_DELETION_FILES if deletions else 0))
    _set_properties(manifest, view.properties)


def _transaction(base: Version, following: Any, *, removed: list[int], updated: list[Any], new: list[Any]) -> Any:
    """Return the transaction, by which other writers detect conflicts."""
    transaction = Transaction(read_version=base.number, uuid=str(uuid4()))
    changes = _changed(base.file.manifest.table_metadata, following.table_metadata)
    of_schema = _changed(base.file.manifest.schema_metadata, following.schema_metadata)
    touches_rows = bool(removed or updated or new)
    widened = len(following.fields) != len(base.file.manifest.fields)
    if base.number == 0 or widened or ((changes or of_schema) and touches_rows):
        transaction.overwrite.fragments.extend(following.fragments)
        transaction.overwrite.schema.extend(following.fields)
    elif not touches_rows:
        transaction.update_config.SetInParent()
        for key, value in changes.items():
            transaction.update_config.table_metadata_updates.update_entries.add(key=key, value=value)
        for key in of_schema:  # Properties are never added to the schema metadata.
            transaction.update_config.schema_metadata_updates.update_entries.add(key=key)
    elif not (removed or updated):
        transaction.append.fragments.extend(new)
    elif not new:
        transaction.delete.updated_fragments.extend(updated)
        transaction.delete.deleted_fragment_ids.extend(removed)
        transaction.delete.predicate = "true"
    else:
        transaction.update.removed_fragment_ids.extend(removed)
        transaction.update.updated_fragments.extend(updated)
        transaction.update.new_fragments.extend(new)
    return transaction


def _pieces(batch: pa.RecordBatch, known: Iterable[Fragment]) -> Iterator[Piece]:
    """Split a batch into known pieces and new rows.

    Native writers rewrite all rows in their previous order, so most rows follow the order of known pieces.
    """
    at = 0
    if batch.num_rows >= SMALL:
        for rows in (piece.rows for fragment in known if not fragment.deleted for piece in fragment.pieces):
            if at + len(rows) > batch.num_rows or not _same(batch.slice(at, len(rows)), rows.batch):
                break
            yield Piece(rows, at)
            at += len(rows)
    if at < batch.num_rows or at == 0:
        yield Piece(Rows(batch if at == 0 else _joined([batch.slice(at)], batch.schema)), at)


def _same(some: pa.RecordBatch, other: pa.RecordBatch) -> bool:
    fields = {field.name: field.type for field in (*some.schema, *other.schema)}
    return all(column_of(some, name, kind).equals(column_of(other, name, kind)) for name, kind in fields.items())


def _aligned(columns: Mapping[str, pa.ChunkedArray], schema: pa.Schema) -> pa.RecordBatch:
    """Return columns as one batch, in the order and with the types of this schema."""
    arrays, names = [], [name for name in schema.names if name in columns]
    for name in names:
        array = columns[name].combine_chunks()
        arrays.append(array.chunk(0) if isinstance(array, pa.ChunkedArray) else array)
    return conforming(pa.RecordBatch.from_arrays(arrays, names=names), schema)


def _properties(manifest: Any) -> dict[str, str]:
    """Return the properties of the root namespace.

    They come from the table metadata, which every writer keeps, and from the schema metadata, which other writers use.
    """
    return {**_schema_properties(manifest), **{item.key: item.value for item in manifest.table_metadata}}


def _schema_properties(manifest: Any) -> dict[str, str]:
    """Return the text values of the schema metadata."""
    found = {}
    for item in manifest.schema_metadata:
        try:
            found[item.key] = item.value.decode()
        except UnicodeDecodeError:  # It is not a property.
            continue
    return found


def _set_properties(manifest: Any, properties: Mapping[str, str]) -> None:
    """Store properties as table metadata unless the schema metadata already hold them."""
    stored = _schema_properties(manifest)
    outdated = {key for key, value in stored.items() if properties.get(key) != value}
    kept = [item for item in manifest.schema_metadata if item.key not in outdated]
    shadowed = {item.key for item in manifest.table_metadata}
    del manifest.schema_metadata[:]
    manifest.schema_metadata.extend(kept)
    del manifest.table_metadata[:]
    for key, value in properties.items():
        if key in shadowed or key in outdated or key not in stored:
            manifest.table_metadata.add(key=key, value=value)


def _changed(before: Iterable[Any], after: Iterable[Any]) -> dict[str, str | None]:
    """Return the changed keys of metadata with their new values; None if removed."""
    old = {item.key: item.value for item in before}
    new = {item.key: item.value for item in after}
    return {key: new.get(key) for key in (*old, *new) if old.get(key) != new.get(key)}


def _paths(fragment: Any) -> tuple[str, ...]:
    return tuple(file.path for file in fragment.files)


def _deletion(fragment: Any) -> tuple[int, int] | None:
    file = fragment.deletion_file
    return (file.read_version, file.id) if fragment.HasField("deletion_file") else None


def _next_fragment_id(manifest: Any) -> int:
    used = [fragment.id for fragment in manifest.fragments]
    if manifest.HasField("max_fragment_id"):
        used.append(manifest.max_fragment_id)
    return max(used, default=-1) + 1
