"""What is wrong with single fragments and their files, for the judge of versions.

Table format, "Data Fragments", "Deletion Files" and "Move-Stable Row IDs".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import attrs

from lancekeep.domain.dataset_files import DATA, DELETIONS, deletion_file_name
from lancekeep.domain.errors import Damaged
from lancekeep.domain.features import Feature
from lancekeep.domain.manifest import (
    TOMBSTONE,
    DataFile,
    DeletionFile,
    DeletionFileType,
    Fragment,
    Manifest,
    SchemaField,
)
from lancekeep.format.file_facts import (
    LEGACY,
    DataFileFacts,
    DeletionFileFacts,
    Facts,
    file_version,
    has_one_column,
    kind_of,
)
from lancekeep.format.row_ids import decode_row_ids, decode_row_versions

MOST_ID = 2**32 - 2
"""The highest id of a fragment: the engine counts ids in 32 bits, and computes the next one."""
_NO_COLUMN = -1


@attrs.frozen
class Problem:
    """A fault of a version.

    Attributes:
        object: a part of the version, such as a fragment, or a file with its path below the table.
        expected: what was expected of it.
        found: what was found.
    """

    object: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.object}: expected {self.expected}, found {self.found}"


@attrs.define(eq=False)  # with a cache
class Frame:
    """The version that its fragments are judged against.

    Attributes:
        fields: the fields of its schema by their ids.
        without_column: the fields with children that have no column of their own since format 2.1.
        bases: the ids of its base paths.
        storage_version: the version of its data files; empty if the manifest does not say.
        is_mixed: whether a file may have another version.
        has_row_ids: whether rows have stable ids.
        next_row_id: the next row id.
        earlier: the fragments of the version before; None if fragments are judged alone.
    """

    fields: Mapping[int, SchemaField]
    without_column: frozenset[int]
    bases: frozenset[int]
    storage_version: str
    is_mixed: bool
    has_row_ids: bool
    next_row_id: int
    earlier: Sequence[Fragment] | None

    @staticmethod
    def of(manifest: Manifest, earlier: Sequence[Fragment] | None) -> Frame:
        fields = {field.id: field for field in manifest.fields}
        parents = {field.parent_id for field in manifest.fields}
        stored = manifest.data_format.version if manifest.data_format else ""
        flags = manifest.reader_feature_flags
        return Frame(
            fields,
            frozenset(number for number, field in fields.items() if number in parents and not has_one_column(field)),
            frozenset(base.id for base in manifest.base_paths),
            LEGACY if stored == "legacy" else stored,
            bool(flags & Feature.MIXED_FILE_VERSIONS),
            bool(flags & Feature.STABLE_ROW_IDS),
            manifest.next_row_id,
            earlier,
        )

    @cached_property
    def former_fields(self) -> frozenset[int]:
        """The ids of fields in files of the version before, dropped ones too."""
        return frozenset(number for each in self.earlier or () for file in each.files for number in file.fields)

    @cached_property
    def required(self) -> frozenset[int]:
        """The ids of columns without which a row would have a null that is not allowed."""
        return frozenset(number for number in self.fields.keys() - self.without_column if self._is_required(number))

    def _is_required(self, number: int) -> bool:
        field: SchemaField | None = self.fields[number]
        while field is not None and not field.nullable:
            field = self.fields.get(field.parent_id)
            if field is not None and has_one_column(field):
                return False
        return field is None

    def problems_of_versions(self, fragment: Fragment) -> Iterator[Problem]:
        """Yield a problem for each data file of a version that is not permitted."""
        for file in fragment.files:
            version = file_version(file.file_major_version, file.file_minor_version)
            if version == self.storage_version or (not self.storage_version and version is not None):
                continue
            if version is None or not self.is_mixed or LEGACY in (version, self.storage_version):
                found = version or f"{file.file_major_version}.{file.file_minor_version}"
                yield Problem(_file(file), f"the format {self.storage_version or 'of a release'} of the table", found)


def problems_of_fragment(fragment: Fragment, frame: Frame, facts: Facts) -> Iterator[Problem]:
    """Yield what is wrong with a fragment.

    Args:
        fragment: the fragment.
        frame: its version.
        facts: what is known of its files.
    """
    at = f"fragment {fragment.id}"
    if not fragment.files:
        yield Problem(at, "data files", "none")
    if not fragment.physical_rows and (frame.earlier is not None or frame.storage_version not in ("", LEGACY)):
        yield Problem(at, "the number of its rows", "0")
    yield from frame.problems_of_versions(fragment)
    named: set[int] = set()
    for file in fragment.files:
        yield from _of_data_file(file, at, frame, named)
        if file.base_id is None:
            yield from _of_data_facts(file, fragment, frame, facts)
    if frame.earlier is not None and (missing := frame.required - named):
        name = frame.fields[min(missing)].name
        yield Problem(at, f"values of the column {name!r}, which is never null", "none")
    if fragment.deletion_file is not None:
        yield from _of_deletion_file(fragment.deletion_file, fragment, frame, facts)
    for overlay in fragment.overlays:
        if overlay.data_file is not None:
            yield from _of_place(overlay.data_file, frame)
    yield from _of_row_ids(fragment, at, frame)


def problems_of_new(fragments: Sequence[Fragment], facts: Facts) -> Iterator[Problem]:
    """Yield why a version cannot be built of new fragments.

    A new version takes memory for their rows, and bitmaps of their ids.
    """
    for fragment in fragments:
        yield from problem_of_id(fragment, MOST_ID)
        for file in fragment.files:
            found = facts.get(f"{DATA}/{file.path}") if file.base_id is None else None
            if isinstance(found, DataFileFacts):
                yield from _of_rows(_file(file), fragment, found)


def problem_of_id(fragment: Fragment, most: int) -> Iterator[Problem]:
    """Yield a problem if the id of a fragment is above the highest one."""
    if fragment.id > most:
        yield Problem(f"fragment {fragment.id}", "an id that was given", f"{most} as the highest")


def path_problem(name: str, path: str) -> Iterator[Problem]:
    """Yield a problem if a path does not name a file below a directory."""
    if not path or "\\" in path or {"", ".", ".."} & set(path.split("/")):
        yield Problem(name, "a path below its directory", repr(path))


def _of_place(file: DataFile, frame: Frame) -> Iterator[Problem]:
    yield from path_problem("a data file", file.path)
    if file.base_id is not None and file.base_id not in frame.bases:
        yield Problem(_file(file), "a base path of the version", str(file.base_id))


def _of_data_file(file: DataFile, fragment: str, frame: Frame, named: set[int]) -> Iterator[Problem]:
    """Judge a data file; ``named`` holds the fields of the fragment's files before it."""
    yield from _of_place(file, frame)
    name = _file(file)
    if not file.fields:
        yield Problem(name, "fields", "none")
    elif frame.earlier is not None and frame.fields.keys().isdisjoint(file.fields):
        yield Problem(name, "a field of the schema", "none")
    is_legacy = file_version(file.file_major_version, file.file_minor_version) == LEGACY
    if not is_legacy and len(file.fields) != len(file.column_indices):
        yield Problem(name, f"{len(file.fields)} columns for its fields", str(len(file.column_indices)))
    columns = [column for column in file.column_indices if column != _NO_COLUMN]
    if len(set(columns)) < len(columns):
        yield Problem(name, "each column once", str(file.column_indices))
    for number in file.fields:
        if number == TOMBSTONE:
            continue
        if number in named:
            yield Problem(f"{fragment}, {name}", "each field once", str(number))
        named.add(number)
        if frame.earlier is not None and number not in frame.fields and number not in frame.former_fields:
            yield Problem(name, "fields of the table", str(number))
    if not is_legacy and (file.file_major_version, file.file_minor_version) >= (2, 1):
        for number, column in zip(file.fields, file.column_indices, strict=False):
            if number in frame.without_column and column != _NO_COLUMN:
                yield Problem(name, f"no column for the field {number}, which has children", str(column))


def _of_data_facts(file: DataFile, fragment: Fragment, frame: Frame, facts: Facts) -> Iterator[Problem]:
    path = f"{DATA}/{file.path}"
    if path not in facts:
        return
    name, found = _file(file), facts[path]
    if found is None:
        yield Problem(name, "a file", "none; it may have been removed with a table that was dropped or moved")
        return
    if not isinstance(found, DataFileFacts):
        return
    if file.file_size_bytes and file.file_size_bytes != found.size:
        yield Problem(name, f"{file.file_size_bytes:,} bytes", f"{found.size:,}")
    if found.damage:
        yield Problem(name, "a data file", found.damage)
        return
    stated = file_version(file.file_major_version, file.file_minor_version)
    if found.version and found.version != stated:
        yield Problem(name, f"the format {stated}", found.version)
    yield from _of_rows(name, fragment, found)
    for number, column in zip(file.fields, file.column_indices, strict=False):
        if found.columns is not None and column >= found.columns:
            yield Problem(name, f"{found.columns} columns", f"the column {column} of the field {number}")
        elif found.types and column >= 0 and number in frame.fields:
            field, kind = frame.fields[number], found.types[column]
            if kind_of(kind) != kind_of(field.logical_type):
                yield Problem(f"{name}, the field {field.name!r}", f"the type {field.logical_type}", kind)


def _of_rows(name: str, fragment: Fragment, found: DataFileFacts) -> Iterator[Problem]:
    if found.rows is not None and fragment.physical_rows and found.rows != fragment.physical_rows:
        yield Problem(name, f"{fragment.physical_rows:,} rows", f"{found.rows:,}")


def _of_deletion_file(file: DeletionFile, fragment: Fragment, frame: Frame, facts: Facts) -> Iterator[Problem]:
    bitmap = file.file_type is DeletionFileType.BITMAP
    path = f"{DELETIONS}/{deletion_file_name(fragment.id, file.read_version, file.id, bitmap=bitmap)}"
    name = f"the deletion file {path!r}"
    if file.base_id is not None and file.base_id not in frame.bases:
        yield Problem(name, "a base path of the version", str(file.base_id))
    if fragment.physical_rows and file.num_deleted_rows > fragment.physical_rows:
        yield Problem(name, f"at most {fragment.physical_rows:,} rows", f"{file.num_deleted_rows:,}")
    if file.base_id is not None or path not in facts:
        return
    found = facts[path]
    if found is None:
        yield Problem(name, "a file", "none")
    elif isinstance(found, DeletionFileFacts):
        if found.damage:
            yield Problem(name, "a deletion file", found.damage)
        elif file.num_deleted_rows and found.rows != file.num_deleted_rows:
            yield Problem(name, f"{file.num_deleted_rows:,} deleted rows", f"{found.rows:,}")


def _of_row_ids(fragment: Fragment, at: str, frame: Frame) -> Iterator[Problem]:
    has_ids = fragment.inline_row_ids is not None or fragment.external_row_ids is not None
    if has_ids != frame.has_row_ids:
        expected = "row ids, as the table has the feature" if frame.has_row_ids else "no row ids"
        yield Problem(at, expected, "row ids" if has_ids else "none")
        return
    try:
        if fragment.inline_row_ids is not None:
            ids = decode_row_ids(fragment.inline_row_ids, fragment.physical_rows, at)
            if len(ids) and int(ids.max()) >= frame.next_row_id:
                yield Problem(at, f"row ids below {frame.next_row_id}", str(ids.max()))
        for versions in (fragment.inline_created_at_versions, fragment.inline_last_updated_at_versions):
            if versions is not None:
                decode_row_versions(versions, fragment.physical_rows, at)
    except Damaged as error:
        yield Problem(at, "row ids and versions of its rows", str(error))


def _file(file: DataFile) -> str:
    return f"the data file {f'{DATA}/{file.path}'!r}"
