"""The files of a version: fragments, base paths, clones and indexes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

import attrs
from markupsafe import Markup
from starlette.responses import Response

from lancekeep.application.catalog import Catalog
from lancekeep.domain.errors import (
    AccessDenied,
    Damaged,
    EngineFailed,
    LancekeepError,
    ObjectNotFound,
    TableNotFound,
    Unsupported,
)
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest import Fragment, Manifest
from lancekeep.entrypoints.cli.cells import size
from lancekeep.entrypoints.page.drawing import MOST, Bar, bars, relations, shares
from lancekeep.entrypoints.page.formats import plural
from lancekeep.entrypoints.page.named_files import data_path, deletion_path, messages, transaction_path
from lancekeep.entrypoints.page.parameters import version_of, whole_number
from lancekeep.entrypoints.page.request import PageRequest

PAGE = 50
"""The most fragments of a page."""
FILES = 8
"""The most data files of a fragment that a page lists."""
MEASURED = 8
"""The most data files whose footers are read for the bytes of the columns."""
ITEMS = 200
"""The most columns, base paths, clones and indexes of a page."""

COLUMNS = 20
"""The most columns of the picture."""
FRAGMENT = ("fill-1", "fill-bad")
"""The colours of live and deleted rows."""

SENTENCES = (AccessDenied, Damaged, EngineFailed, ObjectNotFound, Unsupported)
"""Errors that a view shows as a sentence."""


@attrs.frozen
class ShownFile:
    """A file of a fragment.

    Attributes:
        path: Its path below the table, or below its base path.
        size: Its bytes; 0 if the manifest does not state them.
        base: The number of its base path; None if it lies below the table.
        is_open: Whether the page can describe it.
    """

    path: str
    size: int
    base: int | None
    is_open: bool


@attrs.frozen
class ShownFragment:
    """A fragment: its number, rows, deleted rows and files."""

    id: int
    rows: int
    deleted: int
    files: tuple[ShownFile, ...]
    more_files: int


@attrs.frozen
class Totals:
    """The sums over all fragments, and the bars of their live and deleted rows."""

    rows: int = 0
    deleted: int = 0
    files: int = 0
    size: int = 0
    bars: tuple[Bar, ...] = ()


@attrs.frozen
class IndexCover:
    """An index, and what it covers."""

    name: str
    kind: str
    columns: tuple[str, ...]
    size: int | None
    fragments: int
    indexed_rows: int
    unindexed_rows: int


@attrs.frozen
class FilesView:
    """The files of a version.

    Attributes:
        id: The table.
        version: The version; None if its manifest cannot be read.
        branch: The branch; None is the main history.
        fragments: The number of fragments.
        totals: The sums over them.
        page: The number of this page of fragments, from 1.
        shown: The fragments of the page.
        columns: The columns with the bytes that they need in the measured files.
        measured: The number of measured files.
        base_paths: The numbers and places of the base paths.
        clones: The clones that read files of the table; None if they are unknown.
        indexes: The indexes.
        transaction: The path of the transaction file; None if the version has none.
        problem: Why the files are unknown; empty if they are known.
        notes: Why parts of the page are unknown.
    """

    id: ObjectId
    version: int | None = None
    branch: str | None = None
    fragments: int = 0
    totals: Totals = Totals()
    page: int = 1
    shown: tuple[ShownFragment, ...] = ()
    columns: tuple[tuple[str, int], ...] = ()
    measured: int = 0
    base_paths: tuple[tuple[int, str], ...] = ()
    clones: tuple[str, ...] | None = None
    indexes: tuple[IndexCover, ...] = ()
    transaction: str | None = None
    problem: str = ""
    notes: tuple[str, ...] = ()

    @property
    def more(self) -> bool:
        """Whether another page of fragments follows."""
        return self.page * PAGE < self.fragments

    @property
    def linked_clones(self) -> tuple[tuple[str, bool], ...]:
        """The clones, each with whether it is in the catalog."""
        return tuple((clone, "/" not in clone and " " not in clone) for clone in self.clones or ())


def build(catalog: Catalog, table: ObjectId, parameters: Mapping[str, str]) -> FilesView:
    """Return the files of a version.

    Args:
        catalog: The catalog.
        table: The table.
        parameters: ``version`` (a number or a tag), ``branch`` and ``page``.

    Raises:
        TableNotFound, VersionNotFound, TagNotFound, BranchNotFound: There is no such object.
        InvalidInput: A parameter is invalid.
    """
    page = whole_number(parameters, "page", 1)
    chosen = version_of(parameters)
    described = catalog.describe_table(table)
    if described.version is None and not any(chosen.values()):
        return FilesView(table, problem="The table is only declared: it has no version, and no files.")
    try:
        manifest = read_manifest(catalog, table, chosen)
        totals = _totals(manifest)
        fragments = list(manifest.fragments[(page - 1) * PAGE : page * PAGE])
    except SENTENCES as error:
        return FilesView(table, problem=str(error))
    notes: list[str] = []
    columns, measured = _columns(catalog, table, manifest, fragments, notes)
    return FilesView(
        table,
        manifest.version,
        manifest.branch,
        len(manifest.fragments),
        totals,
        page,
        tuple(_shown(each, manifest) for each in fragments),
        columns,
        measured,
        tuple((base.id, base.path) for base in manifest.base_paths[:ITEMS]),
        _clones(catalog, table, notes),
        _indexes(catalog, table, manifest, notes),
        transaction_path(manifest),
        notes=tuple(dict.fromkeys(notes)),
    )


def read_manifest(catalog: Catalog, table: ObjectId, chosen: Mapping[str, Any]) -> Manifest:
    """Return the manifest of the version that a request chooses."""
    return catalog.versions.manifest(table, chosen.get("version"), tag=chosen.get("tag"), branch=chosen.get("branch"))


def _totals(manifest: Manifest) -> Totals:
    """Count all fragments, and sum adjacent ones for the bars of the picture."""
    together = max(-(-len(manifest.fragments) // MOST), 1)
    found = messages(manifest)
    rows = gone = files = stored = 0
    drawn: list[Bar] = []
    while group := list(islice(found, together)):
        physical = sum(each.physical_rows for each in group)
        deleted = sum(each.deletion_file.num_deleted_rows for each in group if each.HasField("deletion_file"))
        files += sum(len(each.files) for each in group)
        stored += sum(file.file_size_bytes for each in group for file in each.files)
        named = f"fragment {group[0].id}" if len(group) == 1 else f"{len(group):,} fragments from {group[0].id}"
        drawn.append(Bar((physical - deleted, deleted), f"{named}: {physical:,} rows, {deleted:,} of them deleted"))
        rows, gone = rows + physical, gone + deleted
    return Totals(rows - gone, gone, files, stored, tuple(drawn))


def _shown(fragment: Fragment, manifest: Manifest) -> ShownFragment:
    files = [
        ShownFile(data_path(each.path, manifest), each.file_size_bytes, each.base_id, each.base_id is None)
        for each in fragment.files[:FILES]
    ]
    deletion = fragment.deletion_file
    if deletion is not None:
        path = deletion_path(fragment.id, deletion, manifest)
        files.append(ShownFile(path, 0, deletion.base_id, deletion.base_id is None and manifest.branch is None))
    deleted = 0 if deletion is None else deletion.num_deleted_rows
    more = max(len(fragment.files) - FILES, 0)
    return ShownFragment(fragment.id, fragment.physical_rows, deleted, tuple(files), more)


def _columns(
    catalog: Catalog, table: ObjectId, manifest: Manifest, fragments: list[Fragment], notes: list[str]
) -> tuple[tuple[tuple[str, int], ...], int]:
    """Return the bytes of each column in the first data files of a page, most bytes first, and the number of files."""
    files = [file for each in fragments for file in each.files if file.base_id is None][:MEASURED]
    parents = {field.id: field.parent_id for field in manifest.fields}
    names = {field.id: field.name for field in manifest.fields}
    found: dict[str, int] = {}
    measured = 0
    for file in files:
        try:
            columns = catalog.inspect(table, file=data_path(file.path, manifest))["columns"]
        except Unsupported as error:
            notes.append(str(error))
            break
        except SENTENCES as error:
            notes.append(str(error))
            continue
        measured += 1
        for field, column in zip(file.fields, file.column_indices, strict=False):
            name = names.get(_top(field, parents))
            if name is not None and 0 <= column < len(columns):
                found[name] = found.get(name, 0) + columns[column]["bytes"]
    return tuple(sorted(found.items(), key=lambda each: -each[1])[:ITEMS]), measured


def _top(field: int, parents: Mapping[int, int]) -> int:
    """Return the column that contains a field; a damaged schema may have a cycle."""
    for _ in parents:
        above = parents.get(field, -1)
        if above < 0:
            break
        field = above
    return field


def _clones(catalog: Catalog, table: ObjectId, notes: list[str]) -> tuple[str, ...] | None:
    try:
        return tuple(catalog.clones_of(table)[:ITEMS])
    except SENTENCES as error:
        notes.append(str(error))
        return None


def _indexes(catalog: Catalog, table: ObjectId, manifest: Manifest, notes: list[str]) -> tuple[IndexCover, ...]:
    try:
        found = catalog.structure.indexes(table, manifest.version, manifest.branch)[:ITEMS]
    except TableNotFound:
        raise
    except LancekeepError as error:  # an index that the engine cannot read leaves the rest of the page
        notes.append(str(error))
        return ()
    return tuple(
        IndexCover(
            each.name, each.kind, tuple(each.columns), each.size, each.fragments, each.indexed_rows, each.unindexed_rows
        )
        for each in found
    )


# -- routes ----------------------------------------------------------------------------------------------------------


def files(request: PageRequest) -> Response:
    """Answer with the files of a version."""
    view = build(request.catalog, request.object_id, request.query)
    return request.render("files.html", view=view, tab="files", pictures=_pictures(view, request.catalog.root_uri))


def _pictures(view: FilesView, root: str) -> Mapping[str, Markup]:
    each = "fragments" if len(view.totals.bars) == view.fragments else "groups of fragments"
    sources = [path.removeprefix(f"{root}/") for _, path in view.base_paths]
    return {
        "rows": bars(view.totals.bars, f"Rows of {plural(view.fragments, 'fragment')}, by {each}", FRAGMENT),
        "columns": shares(
            [Bar((bytes_,), f"{name}: {size(bytes_)}") for name, bytes_ in view.columns[:COLUMNS]],
            f"Bytes of {plural(len(view.columns[:COLUMNS]), 'column')}",
            FRAGMENT[:1],
        ),
        "places": relations(
            str(view.id), sources, view.clones or (), "Base paths above the table, and its clones below it"
        ),
    }


ROUTES = (("/t/{id}/files", files),)
