"""Two tables, or two versions of a table, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
from starlette.responses import Response

from lancekeep.application.catalog import Catalog
from lancekeep.domain.identifiers import ObjectId
from lancekeep.entrypoints.cli.cells import size
from lancekeep.entrypoints.page.parameters import version_of
from lancekeep.entrypoints.page.request import PageRequest, parsed
from lancekeep.entrypoints.page.rows import Version
from lancekeep.entrypoints.page.views.table import column_shown, pairs
from lancekeep.ports.table_structure import Index

LISTED = 200
"""The most lines of each part; lines that differ come first if there are more."""


@attrs.frozen
class Line:
    """What both sides have under one name; "" if a side lacks it."""

    name: str
    a: str
    b: str

    @property
    def differs(self) -> bool:
        """Whether the sides differ."""
        return self.a != self.b


@attrs.frozen
class Part:
    """A part of the comparison, and how many lines it leaves out."""

    title: str
    lines: tuple[Line, ...]
    more: int = 0


@attrs.frozen
class CompareView:
    """What the page about two tables shows; without tables, only its form.

    Attributes:
        a: The slug of the first table, as it was given.
        b: The slug of the second table.
        a_version: The version of the first table, as it was given.
        b_version: The version of the second table.
        a_branch: The branch of the first table; "" for its main history.
        b_branch: The branch of the second table.
        parts: The comparison.
    """

    a: str
    b: str
    a_version: str
    b_version: str
    a_branch: str
    b_branch: str
    parts: tuple[Part, ...] = ()

    @property
    def tables(self) -> tuple[ObjectId, ObjectId]:
        """Both tables."""
        return parsed(self.a), parsed(self.b)


@attrs.frozen
class _Side:
    figures: Mapping[str, str]
    columns: Mapping[str, str]
    indexes: Mapping[str, str]
    properties: Mapping[str, str]
    metadata: Mapping[str, str]


def build(catalog: Catalog, parameters: Mapping[str, str]) -> CompareView:
    """Compare two tables.

    Args:
        catalog: The catalog.
        parameters: ``a`` and ``b``, the tables; and for each ``a_version`` and ``a_branch``.

    Raises:
        TableNotFound, VersionNotFound, TagNotFound, BranchNotFound: There is no such object.
        InvalidInput: A parameter is malformed.
    """
    names = ("a", "b", "a_version", "b_version", "a_branch", "b_branch")
    a, b, a_version, b_version, a_branch, b_branch = (parameters.get(name, "").strip() for name in names)
    shown = CompareView(a, b, a_version, b_version, a_branch, b_branch)
    if not (a and b):
        return shown
    sides = [_side(catalog, parsed(name), parameters, prefix) for name, prefix in ((a, "a_"), (b, "b_"))]
    parts = (
        _part("Figures", *(side.figures for side in sides)),
        _part("Columns", *(side.columns for side in sides)),
        _part("Indexes", *(side.indexes for side in sides)),
        _part("Properties", *(side.properties for side in sides)),
        _part("Metadata of the schema", *(side.metadata for side in sides)),
    )
    return attrs.evolve(shown, parts=tuple(part for part in parts if part.lines))


def _side(catalog: Catalog, table: ObjectId, parameters: Mapping[str, str], prefix: str) -> _Side:
    described = catalog.describe_table(table)
    properties = dict(pairs(described.properties))
    if described.version is None and not any(version_of(parameters, prefix).values()):
        return _Side({"Version": "none: the table is only declared"}, {}, {}, properties, {})
    version = Version.chosen(catalog, table, parameters, prefix)
    branch, dataset, summary = version.branch, version.dataset, version.summary
    figures = {
        "Version": f"{dataset.version:,}" if branch is None else f"{dataset.version:,} of {branch}",
        "Rows": f"{summary['total_rows']:,}",
        "Deleted rows": f"{summary['total_deletion_file_rows']:,}",
        "Fragments": f"{summary['total_fragments']:,}",
        "Data files": f"{summary['total_data_files']:,}",
        "Bytes": size(summary["total_files_size"]),
        "File format": str(dataset.data_storage_version),
    }
    columns = {field.name: _column(field) for field in dataset.schema}
    indexes = {each.name: _index(each) for each in catalog.structure.indexes(table, dataset.version, branch)}
    return _Side(figures, columns, indexes, properties, dict(pairs(dataset.schema.metadata or {})))


def _index(index: Index) -> str:
    columns = ", ".join(index.columns)
    return f"{index.kind} of {columns}: {index.indexed_rows:,} rows, {index.unindexed_rows:,} lacking"


def _column(field: Any) -> str:
    shown = column_shown(field)
    metadata = ", ".join(f"{key}={value}" for key, value in shown.metadata)
    return shown.type + ("" if shown.is_nullable else ", not nullable") + (f" ({metadata})" if metadata else "")


def _part(title: str, a: Mapping[str, str], b: Mapping[str, str]) -> Part:
    lines = _lines(a, b)
    if len(lines) > LISTED:
        lines = sorted(lines, key=lambda line: not line.differs)
    return Part(title, tuple(lines[:LISTED]), max(len(lines) - LISTED, 0))


def _lines(a: Mapping[str, str], b: Mapping[str, str]) -> Sequence[Line]:
    names: Iterable[str] = dict.fromkeys((*a, *b))
    return [Line(name, a.get(name, ""), b.get(name, "")) for name in names]


def compare(request: PageRequest) -> Response:
    """Answer with two tables side by side."""
    return request.render("compare.html", view=build(request.catalog, request.query))


ROUTES = (("/compare", compare),)
