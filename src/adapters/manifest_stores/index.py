"""The in-memory index of the catalog's entries.

The cost of finding an entry or listing a page does not grow with the number of entries. The rows of a fragment stay in
the Arrow arrays that were read; `lookups` orders them. A view is a tuple of fragments, and the next version shares
unchanged fragments.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
from pyroaring import FrozenBitMap

from lancekeep.adapters.manifest_stores.columns import (
    OWN_COLUMNS,
    REQUIRED,
    added_columns,
    array_of,
    column_of,
    require_values,
    value_of,
    with_columns,
)
from lancekeep.adapters.manifest_stores.lookups import (
    HASH_LENGTH,
    STEP,
    Lookup,
    Part,
    SmallLookup,
    SortedLookup,
    positions_array,
)
from lancekeep.domain.catalog import AddColumns, Change, ManifestStoreGuarantees, Put, Remove, SetProperties, ancestors
from lancekeep.domain.identifiers import MANIFEST_DELIMITER, ObjectId
from lancekeep.domain.manifest_entry import TABLE, ManifestEntry
from lancekeep.domain.table import V1_SUFFIX
from lancekeep.native import compute as pc

SMALL = 2048
"""Below this number of rows, Python's dictionaries and lists are faster than Arrow."""

_KEPT = 256
"""The number of ids of which `Rows` keep the result of a search."""

UNWRITTEN = -1


class Rows:
    """Rows of the manifest table, and a lookup for them.

    ``batch`` holds the columns that have values; most rows have neither properties nor extensions.
    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self._found: dict[str, Sequence[tuple[int, ManifestEntry]]] = {}

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    @cached_property
    def lookup(self) -> Lookup:
        if len(self) >= SMALL:
            return SortedLookup(self.batch)
        ids, types, locations = (column_of(self.batch, name).to_pylist() for name in OWN_COLUMNS[:3])
        return SmallLookup(zip(ids, types, locations, strict=True))

    def find(self, object_id: str) -> Sequence[tuple[int, ManifestEntry]]:
        """Return the positions and entries of an id.

        There are several if a foreign writer wrote it twice. Some results are kept: most operations need the entry of
        their namespace, and search an id more than once.
        """
        found = self._found.get(object_id)
        if found is None:
            found = [(position, self.entry(position)) for position in self.lookup.positions(object_id)]
            if len(self._found) >= _KEPT:
                self._found.clear()
            self._found[object_id] = found
        return found

    def entry(self, position: int) -> ManifestEntry:
        own, others = self._columns
        texts: list[Any] = [None if column is None else column[position].as_py() for column in own]
        object_id, object_type, location, metadata = texts
        extension = {name: value_of(column, position) for name, column in others if column[position].is_valid}
        return ManifestEntry(object_id, object_type, location, metadata, extension)

    def entries(self, positions: Sequence[int]) -> Iterator[ManifestEntry]:
        """Yield the entries at positions, which for many is faster than one by one."""
        own, others = self._columns
        if others or len(self) < SMALL:
            yield from map(self.entry, positions)
            return
        chosen = positions_array(positions)
        empty = [None] * len(positions)
        texts = [empty if column is None else column.take(chosen).to_pylist() for column in own]
        yield from map(ManifestEntry, *texts)

    def texts(self) -> dict[str, list[str | None]] | None:
        """Return the columns with values if the rows are few and all text; else None."""
        return None

    @cached_property
    def _columns(self) -> tuple[list[pa.Array | None], list[tuple[str, pa.Array]]]:
        """The own columns, None for a column without values, and the other columns with their names."""
        columns = dict(zip(self.batch.schema.names, self.batch.columns, strict=True))
        return [columns.pop(name, None) for name in OWN_COLUMNS], list(columns.items())


class EntryRows(Rows):
    """A few rows, held as entries.

    They are faster than Arrow arrays, and become such arrays when they are merged into a larger fragment.
    """

    def __init__(self, entries: Sequence[ManifestEntry], schema: pa.Schema) -> None:
        self._entries = entries
        self._schema = schema
        self._by_id: dict[str, list[tuple[int, ManifestEntry]]] = {}
        for position, entry in enumerate(entries):
            self._by_id.setdefault(entry.object_id, []).append((position, entry))

    def __len__(self) -> int:
        return len(self._entries)

    @cached_property
    def batch(self) -> pa.RecordBatch:
        return batch_of(self._entries, self._schema)

    @cached_property
    def lookup(self) -> Lookup:
        return SmallLookup((entry.object_id, entry.object_type, entry.location) for entry in self._entries)

    def find(self, object_id: str) -> Sequence[tuple[int, ManifestEntry]]:
        return self._by_id.get(object_id, ())

    def entry(self, position: int) -> ManifestEntry:
        return self._entries[position]

    def entries(self, positions: Sequence[int]) -> Iterator[ManifestEntry]:
        return map(self._entries.__getitem__, positions)

    def texts(self) -> dict[str, list[str | None]] | None:
        if any(entry.extension for entry in self._entries):
            return None
        columns = {name: [getattr(entry, name) for entry in self._entries] for name in OWN_COLUMNS}
        return {name: values for name, values in columns.items() if any(value is not None for value in values)}


@attrs.frozen
class Piece:
    """Rows that begin at offset ``start`` of their fragment."""

    rows: Rows
    start: int = 0


@attrs.frozen
class Fragment:
    """A fragment of the manifest table.

    Attributes:
        id: its id, or `UNWRITTEN` if no data file holds its rows yet.
        paths: the paths of its data files.
        pieces: its rows, deleted ones included.
        deletion: the version and the number in the name of its deletion file.
        deleted: the offsets of deleted rows.
    """

    id: int
    paths: tuple[str, ...]
    pieces: tuple[Piece, ...]
    deletion: tuple[int, int] | None = None
    deleted: FrozenBitMap = attrs.field(factory=FrozenBitMap)

    @property
    def length(self) -> int:
        """The number of rows, deleted ones included."""
        last = self.pieces[-1]
        return last.start + len(last.rows)

    @property
    def live(self) -> int:
        return self.length - len(self.deleted)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the live rows in order, as batches."""
        for piece in self.pieces:
            batch = piece.rows.batch
            gone = self.deleted & FrozenBitMap(range(piece.start, piece.start + batch.num_rows)) if self.deleted else ()
            if gone:
                kept = np.ones(batch.num_rows, dtype=bool)
                kept[np.asarray(list(gone)) - piece.start] = False
                batch = batch.filter(pa.array(kept))
            yield batch

    def entries(self) -> Iterator[ManifestEntry]:
        """Yield the live rows in order, as entries."""
        for piece in self.pieces:
            for position in range(len(piece.rows)):
                if piece.start + position not in self.deleted:
                    yield piece.rows.entry(position)

    def without(self, ids: Iterable[str]) -> Fragment:
        """Return the fragment without the rows of these ids; unchanged if it has none."""
        offsets = [
            piece.start + position
            for piece in self.pieces
            for object_id in ids
            for position, _ in piece.rows.find(object_id)
        ]
        return attrs.evolve(self, deleted=self.deleted | FrozenBitMap(offsets)) if offsets else self


@attrs.frozen
class IndexedView:
    """The `CatalogView` over the fragments of the manifest table, the newest last."""

    version: int
    properties: Mapping[str, str]
    fragments: tuple[Fragment, ...]
    schema: pa.Schema
    _stamp: object = attrs.field(init=False, factory=object, eq=False, repr=False)

    guarantees = ManifestStoreGuarantees()

    def stamp(self, parent: ObjectId, object_type: str) -> object:
        return self._stamp

    @property
    def columns(self) -> Mapping[str, str]:
        return added_columns(self.schema)

    @property
    def unnamed(self) -> int:
        nulls = (
            pc.or_(*(column_of(batch, name).is_null() for name in REQUIRED))
            for fragment in self.fragments
            for batch in fragment.batches()
        )
        return sum(pc.sum(each).as_py() or 0 for each in nulls)

    @property
    def entered(self) -> Mapping[str, str]:
        return self.properties

    def find(self, object_id: str) -> ManifestEntry | None:
        for fragment in reversed(self.fragments):
            for piece in fragment.pieces:
                for position, entry in piece.rows.find(object_id):
                    if piece.start + position not in fragment.deleted:
                        return entry
        return None

    def children(
        self, parent: ObjectId, object_type: str, after: str | None = None, limit: int | None = None
    ) -> tuple[list[str], str | None]:
        prefix, high = _range(parent)
        low = prefix if after is None else f"{prefix}{after}\0"
        kind = (object_type, len(parent.names))
        most = None if limit is None else limit + 1
        ids = [
            object_id
            for fragment in self.fragments
            for piece in fragment.pieces
            for object_id in _first(fragment, piece, piece.rows.lookup.between(kind, low, high, most or STEP), most)
        ]
        ids.sort()  # Each piece has its own in order already.
        names = [object_id[len(prefix) :] for object_id in ids[:limit]]
        return names, names[-1] if names and len(names) < len(ids) else None

    def descendants(self, parent: ObjectId) -> Iterator[ManifestEntry]:
        prefix, high = _range(parent)
        kinds = {kind for piece in self._pieces() for kind in piece.rows.lookup.kinds()}
        for kind in sorted(kinds):
            if kind[1] >= len(parent.names):
                yield from self._between(kind, prefix, high)

    def all_of(self, object_type: str, after: str | None = None) -> Iterator[ManifestEntry]:
        low = "" if after is None else after + "\0"
        kinds = {kind for piece in self._pieces() for kind in piece.rows.lookup.kinds()}
        runs = [self._between(kind, low, None) for kind in kinds if kind[0] == object_type]
        yield from heapq.merge(*runs, key=_ID)

    def owner_of(self, location: str) -> ManifestEntry | None:
        for place in ancestors(location):
            for candidate in _tables_by_name(place):
                entry = self.find(candidate)
                if entry is not None and entry.object_type == TABLE and entry.location == place:
                    return entry
            # A native writer can register the directory of a dropped table.
            found = sorted(self._elsewhere(place, place + "\0"), key=lambda entry: entry.object_type != TABLE)
            if found:
                return found[0]
        return next(self._elsewhere(location + "/", location + "0"), None)  # "0" follows "/"

    def after(self, changes: Sequence[Change]) -> IndexedView:
        """Return the view after changes; new entries form an unwritten fragment."""
        put: dict[str, ManifestEntry | None] = {}
        properties, schema = self.properties, self.schema
        for change in changes:
            match change:
                case AddColumns(columns):
                    schema = with_columns(schema, columns)
                case Put(entry):
                    require_values(entry, schema)
                    put[entry.object_id] = entry
                case Remove(object_id):
                    put[object_id] = None
                case SetProperties():
                    properties = change.merged_into(properties)
        fragments = [fragment.without(put) for fragment in self.fragments]
        entries = [entry for entry in put.values() if entry is not None]
        if entries:
            fragments.append(Fragment(UNWRITTEN, (), (Piece(EntryRows(entries, schema)),)))
        return attrs.evolve(self, properties=properties, fragments=tuple(fragments), schema=schema)

    def _pieces(self) -> Iterator[Piece]:
        return (piece for fragment in self.fragments for piece in fragment.pieces)

    def _between(self, kind: tuple[str, int], low: str, high: str | None) -> Iterator[ManifestEntry]:
        """Yield the entries of one type and depth in byte order of their ids."""
        sources = [
            _live(fragment, piece, piece.rows.lookup.between(kind, low, high))
            for fragment in self.fragments
            for piece in fragment.pieces
        ]
        return sources[0] if len(sources) == 1 else heapq.merge(*sources, key=_ID)

    def _elsewhere(self, low: str, high: str) -> Iterator[ManifestEntry]:
        for fragment in self.fragments:
            for piece in fragment.pieces:
                for position in piece.rows.lookup.elsewhere(low, high):
                    if piece.start + position not in fragment.deleted:
                        yield piece.rows.entry(position)


def batch_of(entries: Sequence[ManifestEntry], schema: pa.Schema) -> pa.RecordBatch:
    """Return entries as rows of a table with this schema."""
    columns = [
        array_of([getattr(entry, field.name) for entry in entries], field.type)
        if field.name in OWN_COLUMNS
        else array_of([entry.extension.get(field.name) for entry in entries], field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _live(fragment: Fragment, piece: Piece, parts: Iterator[Part]) -> Iterator[ManifestEntry]:
    """Yield the entries of live rows."""
    start, deleted = piece.start, fragment.deleted
    for _, positions in parts:
        live = [position for position in positions if start + position not in deleted] if deleted else positions
        yield from piece.rows.entries(live)


def _first(fragment: Fragment, piece: Piece, parts: Iterator[Part], most: int | None) -> list[str]:
    """Return the first ids of live rows; all of them if ``most`` is None."""
    found: list[str] = []
    start, deleted = piece.start, fragment.deleted
    for ids, positions in parts:
        if deleted:
            pairs = zip(ids, positions, strict=True)
            ids = [object_id for object_id, position in pairs if start + position not in deleted]
        found += ids
        if most is not None and len(found) >= most:
            return found[:most]
    return found


_ID = attrgetter("object_id")


def _range(parent: ObjectId) -> tuple[str, str | None]:
    """Return the prefix of the ids below a namespace, and the first text after them."""
    if not parent.names:
        return "", None
    return parent.key + MANIFEST_DELIMITER, parent.key + chr(ord(MANIFEST_DELIMITER) + 1)


def _tables_by_name(location: str) -> Iterator[str]:
    """Yield the object ids for which a directory of this name may exist.

    The names are ``{name}.lance`` and ``{hash}_{object_id}``.
    """
    if location.endswith(V1_SUFFIX):
        yield location.removesuffix(V1_SUFFIX)
    yield location[HASH_LENGTH:]
