"""Compare two versions of a table.

Fragments with the same files hold the same rows, so only fragments that differ are read. The values decide whether a
row was updated: operations that write columns leave ``_row_last_updated_at_version`` unchanged, or change it for rows
whose values stay.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence, Set
from datetime import datetime
from functools import cached_property
from typing import Any

import attrs
import pyarrow as pa

from lancekeep.application.entries.services import TagService
from lancekeep.application.rows.described_versions import HistoryEntry
from lancekeep.application.rows.matching import AFTER, CHANGE_TYPE, DELETE, INSERT, Matching
from lancekeep.application.rows.services import WriteService
from lancekeep.application.rows.version_times import Moment, history_name, version_of
from lancekeep.domain.dataset_files import DATA, DELETIONS, deletion_file_name
from lancekeep.domain.errors import ColumnNotFound, InvalidInput, Unsupported
from lancekeep.domain.features import Feature
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest import DeletionFileType, Fragment, Manifest, SchemaField
from lancekeep.domain.notebook import Shown
from lancekeep.format.table_version import parse_manifest
from lancekeep.format.values import differing
from lancekeep.ports.table_engine import TableEngine

ROW_ID = "_rowid"
ROW_VERSIONS = ("_row_created_at_version", "_row_last_updated_at_version")
MEMORY = 256 << 20
"""The bytes of rows that a comparison holds in memory."""


@attrs.frozen
class At:
    """A version of a table, wherever a version number alone does not say which.

    Attributes:
        version: A version number; by default the latest version.
        tag: A tag, without anything else.
        branch: A branch; by default the main history.
        timestamp: A time instead of a version, as in `Catalog.open`.
    """

    version: int | None = None
    tag: str | None = attrs.field(default=None, kw_only=True)
    branch: str | None = attrs.field(default=None, kw_only=True)
    timestamp: Moment | None = attrs.field(default=None, kw_only=True)


Reference = int | str | datetime | At | None
"""A version number, the name of a tag, a time, an `At`, or None for the latest version."""


@attrs.frozen
class SchemaDifference(Shown):
    """The columns that differ.

    Attributes:
        added: The new columns, as ``pyarrow.Field``.
        removed: The columns that are gone.
        changed: Columns before and after a change of name, type, nullability or metadata.
    """

    added: tuple[Any, ...]
    removed: tuple[Any, ...]
    changed: tuple[tuple[Any, Any], ...]


@attrs.frozen
class ChangeCounts(Shown):
    """How many rows were inserted, deleted and updated."""

    inserted: int
    deleted: int
    updated: int


@attrs.frozen(slots=False)
class _Version:
    """One of the two versions.

    Attributes:
        name: The version, for messages.
        dataset: The opened dataset.
        manifest: Its manifest.
        branch: Its branch.
    """

    name: str
    dataset: Any
    manifest: Manifest
    branch: str | None

    def ids(self, names: Iterable[str | None]) -> frozenset[int]:
        """Return the ids of the fields of columns, including their children."""
        wanted = set(names)
        found: set[int] = set()
        for field in self.manifest.fields:  # a parent precedes its children
            if field.parent_id in found or (field.name in wanted and self.roots[field.name].id == field.id):
                found.add(field.id)
        return frozenset(found)

    @cached_property
    def roots(self) -> dict[str, SchemaField]:
        """The field of each column."""
        ids = {field.id for field in self.manifest.fields}
        return {field.name: field for field in self.manifest.fields if field.parent_id not in ids}


@attrs.frozen
class _Column:
    """A column of the compared rows, with its names on both sides; None if a side lacks it."""

    name: str
    before: str | None
    after: str | None

    def of(self, side: int) -> str | None:
        """Return its name on a side."""
        return (self.before, self.after)[side]


@attrs.frozen
class Difference(Shown):
    """What differs between two versions of a table.

    Attributes:
        table: The table.
        before: The number of the first version.
        after: The number of the second version.
        schema: The columns that differ.
        rows_before: The number of rows of the first version.
        rows_after: The number of rows of the second version.
        files_added: The data and deletion files that only the second version has, as paths below the table.
        files_removed: Those that only the first version has.
    """

    table: ObjectId
    before: int
    after: int
    schema: SchemaDifference
    rows_before: int
    rows_after: int
    files_added: tuple[str, ...] = attrs.field(repr=False)
    files_removed: tuple[str, ...] = attrs.field(repr=False)
    _sides: tuple[_Version, _Version] = attrs.field(repr=False, eq=False)
    _writes: WriteService = attrs.field(repr=False, eq=False)
    _engine: TableEngine = attrs.field(repr=False, eq=False)

    def operations(self) -> list[HistoryEntry]:
        """Return the versions from the older one, exclusive, to the newer one.

        Versions that were cleaned up are left out. Each costs a read.

        Raises:
            Unsupported: The versions belong to different branches.
        """
        branch = self._require_one_history("the operations between")
        older, newer = sorted((self.before, self.after))
        return self._writes.entries(self.table, range(older + 1, newer + 1), branch)

    def rows(
        self, keys: Sequence[str] | None = None, columns: Sequence[str] | None = None, *, memory: int = MEMORY
    ) -> Any:
        """Return the changed rows as a ``pyarrow.RecordBatchReader``.

        The column ``_change_type`` is ``insert``, ``delete``, or for an update ``update_preimage`` (the row before) and
        ``update_postimage`` (the row after), as in Spark. The order is not defined. The other columns are the columns
        of the second version, followed by columns that only the first one has. A column that a row lacks is null. A row
        is updated if a column differs that both versions have; a column that was only renamed does not differ.

        Only fragments with other files are read. Rows beyond ``memory`` bytes are sorted into temporary files.

        Args:
            keys: The columns that identify a row, by their names in the second version; null is a value. By default,
                stable row ids identify the rows, and the row has ``_rowid`` and the versions that created and last
                updated it.
            columns: The columns to compare and to return; by default all.
            memory: The bytes of rows in memory.

        Raises:
            Unsupported: There are no keys, and a version has no stable row ids, or the versions are of different
                branches, which give the same row ids to different rows.
            InvalidInput: A key is no column, or of a type that does not identify rows; or, while the stream is read,
                several rows of a version have the same key.
            ColumnNotFound: Neither version has such a column.
        """
        pairs, identity = self._chosen(keys, columns)
        extra = () if keys else (ROW_ID, *ROW_VERSIONS)
        parts = [self._differing(side, pairs) for side in (0, 1)]
        sides = [
            self._engine.rows.fragments(
                version.dataset, ids, [name for pair in pairs if (name := pair.of(side)) is not None], extra
            )
            for side, (version, ids) in enumerate(zip(self._sides, parts, strict=True))
        ]
        schema = _joint_schema(pairs, sides, extra)
        matching = Matching(
            (self._sides[0].name, self._sides[1].name),
            identity,
            [pair.name for pair in pairs if pair.before and pair.after],
            schema,
            memory,
        )
        found = matching.changes(*(_aligned(reader, side, pairs, schema) for side, reader in enumerate(sides)))
        return pa.RecordBatchReader.from_batches(
            schema.insert(0, pa.field(CHANGE_TYPE, pa.string())), (each for each in found if each.num_rows)
        )

    def count(self, keys: Sequence[str] | None = None) -> ChangeCounts:
        """Count the rows of `rows`."""
        counts = dict.fromkeys((INSERT, DELETE, AFTER), 0)
        for batch in self.rows(keys):
            for each in batch.column(CHANGE_TYPE).value_counts():
                if each["values"].as_py() in counts:
                    counts[each["values"].as_py()] += each["counts"].as_py()
        return ChangeCounts(counts[INSERT], counts[DELETE], counts[AFTER])

    # -- inside -------------------------------------------------------------------------------------------------

    def _require_one_history(self, what: str) -> str | None:
        first, second = (side.branch for side in self._sides)
        if first != second:
            raise Unsupported(f"{self.table}: {what} versions of different branches cannot be determined")
        return first

    def _chosen(self, keys: Sequence[str] | None, columns: Sequence[str] | None) -> tuple[list[_Column], Sequence[str]]:
        """Return the columns to read, and those that identify rows."""
        if isinstance(keys, str) or isinstance(columns, str):
            raise InvalidInput("keys and columns are lists of names")
        pairs = _columns(*self._sides)
        known = {pair.name: pair for pair in pairs}
        for name in (*(keys or ()), *(columns or ())):
            if name not in known:
                raise ColumnNotFound(f"{self.table} has no column {name!r}; its columns are {', '.join(known)}")
        if CHANGE_TYPE in known:
            raise Unsupported(f"{self.table} has a column {CHANGE_TYPE}, which names the kind of a change; rename it")
        if keys:
            for key in keys:
                self._require_key(known[key])
        else:
            self._require_row_ids()
        wanted = set(known if columns is None else columns) | set(keys or ())
        return [pair for pair in pairs if pair.name in wanted], keys or [ROW_ID]

    def _require_key(self, column: _Column) -> None:
        if not (column.before and column.after):
            raise InvalidInput(f"{self.table}: only one version has the key {column.name!r}; choose another key")
        for version, name in zip(self._sides, (column.before, column.after), strict=True):
            kind = version.dataset.schema.field(name).type
            if pa.types.is_nested(kind) or pa.types.is_floating(kind) or pa.types.is_dictionary(kind):
                raise InvalidInput(
                    f"{version.name}: the column {name!r} of type {kind} cannot be a key; choose columns of integers, "
                    "texts, bytes, dates, times, decimals or booleans"
                )

    def _require_row_ids(self) -> None:
        for version in self._sides:
            if not version.manifest.reader_feature_flags & Feature.STABLE_ROW_IDS:
                raise Unsupported(
                    f"{version.name} has no stable row ids, so its rows can be compared only by keys; give keys=[…]"
                )
        if self._sides[0].branch != self._sides[1].branch:
            raise Unsupported(
                f"{self.table}: different branches give the same row ids to different rows, so their rows can be "
                "compared only by keys; give keys=[…]"
            )

    def _differing(self, side: int, pairs: Sequence[_Column]) -> list[int]:
        """Return the fragments of a side that may hold rows that the other side lacks."""
        version, other = self._sides[side], self._sides[1 - side]
        fragments, others = version.manifest.fragments, other.manifest.fragments
        shared = [pair for pair in pairs if pair.before and pair.after]
        ids, other_ids = version.ids(each.of(side) for each in shared), other.ids(each.of(1 - side) for each in shared)
        known = {_content(fragment, other_ids) for fragment in differing(others, fragments)}
        return [each.id for each in differing(fragments, others) if _content(each, ids) not in known]


class Differences:
    """Compares versions of tables; `Catalog.diff` documents the arguments."""

    def __init__(self, writes: WriteService, tags: TagService, engine: TableEngine) -> None:
        self._writes = writes
        self._tags = tags
        self._engine = engine

    def between(self, object_id: ObjectId, before: Reference, after: Reference) -> Difference:
        sides = self._opened(object_id, before), self._opened(object_id, after)
        old, new = (frozenset(_files(differing(*pair))) for pair in _both_ways(*(each.manifest for each in sides)))
        return Difference(
            object_id,
            sides[0].manifest.version,
            sides[1].manifest.version,
            _schema_difference(_columns(*sides), sides[0].dataset.schema, sides[1].dataset.schema),
            self._engine.rows.count(sides[0].dataset, None),
            self._engine.rows.count(sides[1].dataset, None),
            tuple(sorted(new - old)),
            tuple(sorted(old - new)),
            sides,
            self._writes,
            self._engine,
        )

    def _opened(self, object_id: ObjectId, reference: Reference) -> _Version:
        at = _at(reference)
        version, branch = version_of(self._writes, object_id, at.version, at.tag, at.branch, at.timestamp), at.branch
        if at.tag is not None:
            if version is not None or branch is not None:
                raise InvalidInput(
                    f"{object_id}: the tag {at.tag!r} selects a version; pass no version or branch with it"
                )
            tag = self._tags.get(object_id, at.tag)
            version, branch = tag.version, tag.branch
        dataset = self._writes.open(object_id, version, None, branch)
        name = f"version {dataset.version} of {history_name(object_id, branch)}"
        return _Version(name, dataset, parse_manifest(self._engine.rows.manifest(dataset), name), branch)


def _at(reference: Reference) -> At:
    if isinstance(reference, At):
        return reference
    if isinstance(reference, bool) or not isinstance(reference, int | str | datetime | None):
        raise InvalidInput(
            f"{reference!r:.100} selects no version; give a number, the name of a tag, a datetime, or lancekeep.At"
        )
    if isinstance(reference, str):
        return At(tag=reference)
    return At(timestamp=reference) if isinstance(reference, datetime) else At(reference)


def _both_ways(old: Manifest, new: Manifest) -> tuple[tuple[Sequence[Fragment], Sequence[Fragment]], ...]:
    return (old.fragments, new.fragments), (new.fragments, old.fragments)


def _files(fragments: Iterable[Fragment]) -> Iterator[str]:
    for fragment in fragments:
        yield from (f"{DATA}/{file.path}" for file in fragment.files)
        if (file := fragment.deletion_file) is not None:
            bitmap = file.file_type is DeletionFileType.BITMAP
            yield f"{DELETIONS}/{deletion_file_name(fragment.id, file.read_version, file.id, bitmap=bitmap)}"


def _content(fragment: Fragment, ids: Set[int]) -> Hashable:
    """Return what determines the rows of a fragment in fields with these ids.

    Names of files are unique. The first one was written with the fragment.
    """
    files = frozenset((number, file.path) for file in fragment.files for number in file.fields if number in ids)
    deletion = fragment.deletion_file
    deleted = None if deletion is None else (deletion.read_version, deletion.id, deletion.num_deleted_rows)
    first = fragment.files[0].path if fragment.files else ""
    return fragment.id, fragment.physical_rows, first, files, deleted, fragment.overlays


def _columns(before: _Version, after: _Version) -> list[_Column]:
    """Pair the columns of both versions: by name, and a renamed column by its field id."""
    old, new = before.dataset.schema, after.dataset.schema
    by_id = {field.id: name for name, field in before.roots.items() if name not in after.roots}

    def partner(name: str, field: SchemaField) -> str | None:
        kind = new.field(name).type
        if name in before.roots:
            return None if _joint_type(old.field(name).type, kind) is None else name
        renamed = by_id.get(field.id)
        return renamed if renamed is not None and old.field(renamed).type == kind else None

    pairs = [_Column(name, partner(name, field), name) for name, field in after.roots.items()]
    taken = {pair.before for pair in pairs} | {pair.name for pair in pairs}
    return pairs + [_Column(name, name, None) for name in before.roots if name not in taken]


def _schema_difference(pairs: Sequence[_Column], old: pa.Schema, new: pa.Schema) -> SchemaDifference:
    kept = {pair.after: pair.before for pair in pairs if pair.before is not None and pair.after is not None}
    changed = [(old.field(was), new.field(name)) for name, was in kept.items()]
    return SchemaDifference(
        tuple(new.field(name) for name in new.names if name not in kept),
        tuple(old.field(name) for name in old.names if name not in kept.values()),
        tuple((was, field) for was, field in changed if not field.equals(was, check_metadata=True)),
    )


def _joint_type(*kinds: pa.DataType) -> pa.DataType | None:
    """Return a type that holds the values of two types, such as the larger integer; None if there is none."""
    try:
        [field] = pa.unify_schemas([pa.schema([("", kind)]) for kind in kinds], promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return None
    return field.type


def _joint_schema(pairs: Sequence[_Column], sides: Sequence[Any], extra: Sequence[str]) -> pa.Schema:
    fields = []
    for pair in pairs:
        found = [side.schema.field(name) for at, side in enumerate(sides) if (name := pair.of(at)) is not None]
        fields.append(pa.field(pair.name, _joint_type(*(each.type for each in found)), metadata=found[-1].metadata))
    return pa.schema([*fields, *(sides[1].schema.field(name) for name in extra)])


def _aligned(reader: Any, side: int, pairs: Sequence[_Column], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a side with the columns of the joint schema."""
    names = [pair.of(side) for pair in pairs] + list(schema.names[len(pairs) :])
    for batch in reader:
        arrays = [
            pa.nulls(batch.num_rows, field.type) if name is None else batch.column(name).cast(field.type, safe=False)
            for name, field in zip(names, schema, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
