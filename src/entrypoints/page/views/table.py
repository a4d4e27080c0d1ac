"""A version of a table: its schema, its health and its rows; and its images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar

import attrs
from starlette.responses import Response

from lancekeep.application.catalog import Catalog
from lancekeep.domain.errors import Damaged, EngineFailed, InvalidInput, LancekeepError
from lancekeep.domain.identifiers import ObjectId
from lancekeep.entrypoints.cli.cells import size as bytes_text
from lancekeep.entrypoints.cli.reading import tags_by_version
from lancekeep.entrypoints.page.cells import image_type
from lancekeep.entrypoints.page.drawing import sparkline
from lancekeep.entrypoints.page.formats import command, plural, text
from lancekeep.entrypoints.page.parameters import MOST, version_of, whole_number
from lancekeep.entrypoints.page.request import PageRequest, slug
from lancekeep.entrypoints.page.rows import COLUMNS, Rows, Version, image, read_rows

Found = TypeVar("Found")

SCHEMA = 100
"""The most columns, properties and indexes that a page lists."""
_LONGEST = 200
"""The characters of a type, a key or a value."""
_TARGET_ROWS, _SMALL = 1 << 20, 4
"""A fragment with fewer rows is small; as many small fragments are worth a compaction, as in a maintenance rule."""
_DELETED = 0.1
"""The share of deleted rows that is worth a compaction."""
_VERSIONS = 100
"""As many versions are worth a cleanup."""


@attrs.frozen
class ColumnShown:
    """A column: its name, Arrow type, nullability and metadata, as texts."""

    name: str
    type: str
    is_nullable: bool
    metadata: tuple[tuple[str, str], ...]


@attrs.frozen
class IndexShown:
    """An index, and how many rows it covers and lacks."""

    name: str
    kind: str
    columns: tuple[str, ...]
    indexed_rows: int
    unindexed_rows: int


@attrs.frozen
class Check:
    """A figure of the health of a table.

    Attributes:
        name: What is measured.
        value: The figure, as text.
        command: The command that helps; "" if all is well.
    """

    name: str
    value: str
    command: str = ""


@attrs.frozen
class TableView:
    """What the page of a table shows.

    Attributes:
        id: The table.
        location: The URI of its directory.
        properties: Its properties.
        version: The number of the version; None if the table is only declared.
        branch: The branch; None for the main history.
        is_latest: Whether the version is the latest of its history.
        tags: The tags of the version.
        changed: The time of the version; None if its manifest is gone.
        operation: The operation that made it.
        committer: Who committed it; empty if that is not known.
        view_of: The source of a materialized view.
        row_count: The number of its rows.
        column_count: The number of its columns.
        columns: A page of columns.
        first_column: The position of the first of them, from 1.
        metadata: The metadata of the schema.
        checks: The health.
        indexes: The indexes.
        filter: The condition of the rows.
        page: The page of the rows.
        rows: The rows; None if the table is only declared.
        notes: Why parts of the page are unknown.
    """

    id: ObjectId
    location: str
    properties: tuple[tuple[str, str], ...]
    version: int | None = None
    branch: str | None = None
    is_latest: bool = True
    tags: tuple[str, ...] = ()
    changed: datetime | None = None
    operation: str = ""
    committer: str = ""
    view_of: ObjectId | None = None
    row_count: int = 0
    column_count: int = 0
    columns: tuple[ColumnShown, ...] = ()
    first_column: int = 1
    metadata: tuple[tuple[str, str], ...] = ()
    checks: tuple[Check, ...] = ()
    indexes: tuple[IndexShown, ...] = ()
    filter: str = ""
    page: int = 1
    rows: Rows | None = None
    notes: tuple[str, ...] = ()

    @property
    def column_page(self) -> int:
        """The page of the columns."""
        return (self.first_column - 1) // COLUMNS + 1

    @property
    def next_columns(self) -> int | None:
        """The page of columns after this one."""
        return self.column_page + 1 if self.column_page * COLUMNS < self.column_count else None


def build(catalog: Catalog, table: ObjectId, parameters: Mapping[str, str]) -> TableView:
    """Return the page of one version of a table.

    Args:
        catalog: The catalog.
        table: The table.
        parameters: ``version`` (a number or a tag) and ``branch``; ``filter``, an SQL condition; ``page`` of the rows,
            and ``columns``, the page of the columns.

    Raises:
        TableNotFound, VersionNotFound, TagNotFound, BranchNotFound: There is no such object.
        InvalidInput: A parameter is no number.
    """
    page, of_columns = whole_number(parameters, "page", 1), whole_number(parameters, "columns", 1)
    described = catalog.describe_table(table)
    shown = TableView(table, text(described.uri, 500), pairs(described.properties))
    if described.version is None and not any(version_of(parameters).values()):
        return shown
    version = Version.chosen(catalog, table, parameters)
    branch, dataset = version.branch, version.dataset
    latest = described.version if branch is None else catalog.open(table, branch=branch).version
    notes: list[str] = []
    before = version.number + 1
    entries = noted(notes, lambda: catalog.versions.history(table, 1, before=before, branch=branch)) or []
    by_version = noted(notes, lambda: tags_by_version(catalog, table, branch)) or {}
    fields = list(dataset.schema)
    first = min((of_columns - 1) * COLUMNS, max(len(fields) - 1, 0) // COLUMNS * COLUMNS)
    condition = parameters.get("filter", "").strip()
    names = [field.name for field in fields[first : first + COLUMNS]]
    indexes = tuple(
        IndexShown(each.name, each.kind, tuple(each.columns), each.indexed_rows, each.unindexed_rows)
        for each in catalog.structure.indexes(table, version.number, branch)[:SCHEMA]
    )
    small = dataset.stats.dataset_stats(_TARGET_ROWS)["num_small_files"]
    return attrs.evolve(
        shown,
        version=version.number,
        branch=branch,
        is_latest=version.number == latest,
        tags=tuple(by_version.get(version.number, ()))[:SCHEMA],
        changed=entries[0].timestamp if entries else None,
        operation=entries[0].operation if entries else "",
        committer=entries[0].committer if entries else "",
        view_of=_source(catalog, table),
        row_count=version.summary["total_rows"],
        column_count=len(fields),
        columns=tuple(map(column_shown, fields[first : first + SCHEMA])),
        first_column=first + 1,
        metadata=pairs(dataset.schema.metadata or {}),
        checks=_health(catalog.root_uri, version, small, indexes),
        indexes=indexes,
        filter=condition,
        page=page,
        rows=read_rows(catalog, version, names, condition, page),
        notes=tuple(notes),
    )


def noted(notes: list[str], read: Callable[[], Found]) -> Found | None:
    """Return what a function reads; if that is damaged, None with a note."""
    try:
        return read()
    except (Damaged, EngineFailed) as error:
        notes.append(str(error))
        return None


def pairs(values: Mapping[Any, Any]) -> tuple[tuple[str, str], ...]:
    """Return keys and values as bounded texts, sorted."""
    found = sorted((_text(key), _text(value)) for key, value in values.items())
    more = [("…", f"{len(found) - SCHEMA:,} more")] if len(found) > SCHEMA else []
    return (*found[:SCHEMA], *more)


def column_shown(field: Any) -> ColumnShown:
    """Return an Arrow field as texts."""
    return ColumnShown(field.name, text(field.type, _LONGEST), field.nullable, pairs(field.metadata or {}))


def _text(value: str | bytes) -> str:
    given = value[: 4 * _LONGEST].decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
    return text(given, _LONGEST)


def _source(catalog: Catalog, table: ObjectId) -> ObjectId | None:
    try:
        return catalog.views.definition(table).source
    except LancekeepError:  # the table is no view
        return None


def _health(root: str, version: Version, small: int, indexes: tuple[IndexShown, ...]) -> tuple[Check, ...]:
    """Return the figures of the health of a version, each with the command that improves it."""
    name, summary = str(version.table), version.summary
    rows, deleted, size = summary["total_rows"], summary["total_deletion_file_rows"], summary["total_files_size"]
    share = deleted / max(rows + deleted, 1)
    lacking = [each for each in indexes if each.unindexed_rows and each.columns]
    return (
        Check(
            "Fragments",
            f"{plural(summary['total_fragments'], 'fragment')}, {small:,} with fewer than {_TARGET_ROWS:,} rows",
            command("compact", root, name) if small >= _SMALL else "",
        ),
        Check(
            "Deleted rows",
            f"{plural(deleted, 'row')} ({share:.0%})",
            command("compact", root, name) if share > _DELETED else "",
        ),
        Check(
            "Rows outside of indexes",
            ", ".join(f"{plural(each.unindexed_rows, 'row')} of {text(each.name, 60)}" for each in lacking[:3])
            or ("none" if indexes else "the table has no index"),
            _extension(root, name, lacking[0]) if lacking else "",
        ),
        Check(
            "Versions",
            f"up to version {version.number:,}",
            command("cleanup", root, older_than="7d", table=name) if version.number > _VERSIONS else "",
        ),
        Check(
            "Bytes",
            f"{bytes_text(size)} in this version, of which about {bytes_text(round(size * share))} are of deleted rows",
            command("cost", root, name) if version.number > 1 else "",
        ),
    )


def _extension(root: str, table: str, index: IndexShown) -> str:
    """Return the command that adds rows to an index."""
    kind = "LABEL_LIST" if index.kind == "LabelList" else index.kind.upper()
    return command("index", root, table, index.columns[0], kind=kind, name=index.name)


# -- routes ----------------------------------------------------------------------------------------------------------


def table(request: PageRequest) -> Response:
    """Answer with the page of a table."""
    view = build(request.catalog, request.object_id, request.query)
    return request.render("table.html", view=view, sparkline=sparkline, slug=slug, tab="")


def picture(request: PageRequest) -> Response:
    """Answer with an image in a row.

    The first bytes decide the type. Of other values, which a browser might run, nothing is sent.
    """
    table, query = request.object_id, request.query
    number, row = whole_number(query, "version", 1), query.get("row", "")
    if not (row.isascii() and row.isdecimal() and len(row) < 20 and int(row) < 4 * MOST):
        raise InvalidInput(f"row is {row!r:.100}; give the id of a row")
    branch = query.get("branch") or None
    version = Version(table, number, branch, request.catalog.open(table, number, branch=branch))
    content = image(request.catalog, version, query.get("column", ""), int(row))
    media_type = image_type(content)
    if media_type is None:
        raise InvalidInput(f"the row {row} has no PNG, JPEG, GIF or WebP image in this column")
    headers = {
        "content-disposition": f'inline; filename="image.{media_type.partition("/")[2]}"',
        "content-security-policy": "default-src 'none'; sandbox",
        "x-content-type-options": "nosniff",
    }
    return Response(content, media_type=media_type, headers=headers)


ROUTES = (("/t/{id}", table), ("/t/{id}/image", picture))
