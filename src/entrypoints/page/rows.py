"""The rows of one version of a table in pages."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from lancekeep.application.catalog import Catalog
from lancekeep.domain.errors import InvalidInput, LancekeepError
from lancekeep.domain.identifiers import ObjectId
from lancekeep.entrypoints.page.cells import Cell, blob_cell, cell_of
from lancekeep.entrypoints.page.formats import text
from lancekeep.entrypoints.page.parameters import MOST, version_of
from lancekeep.ports.rows import Query

PAGE, COLUMNS = 20, 16
"""The most rows and columns of a page."""
MOST_FILTERED = 500
"""The last page of a filter: each page reads the pages before it again."""
PATIENCE = 2.0
"""The seconds after which a filter reads no further fragments."""
_GROUP, _FRAGMENTS = 1 << 18, 500
"""A filter reads at least as many rows, or as many fragments, before it looks at the time."""
LARGEST = 8 << 20
"""The bytes of an image that a page shows, and of all blobs that are read to find images."""
_AT_ONCE = 64 << 20
"""The bytes of rows that are read together, by the average size of a row."""
_DESCRIPTION = frozenset({"position", "size"})
"""Names in the description of a blob."""


@attrs.frozen
class Row:
    """A row: its id, by which `image` finds it, and its cells."""

    id: int
    cells: tuple[Cell, ...]


@attrs.frozen
class Rows:
    """A page of rows.

    Attributes:
        columns: The names of the columns.
        rows: The rows.
        is_last: Whether no row follows.
        problem: Why there are no rows, as a sentence.
        stopped: The rows that the filter has read, if it ended early.
    """

    columns: tuple[str, ...]
    rows: tuple[Row, ...] = ()
    is_last: bool = True
    problem: str = ""
    stopped: int | None = None


@attrs.frozen
class Version:
    """A version of a table, for reading rows."""

    table: ObjectId
    number: int
    branch: str | None
    dataset: Any = attrs.field(repr=False)

    @classmethod
    def chosen(cls, catalog: Catalog, table: ObjectId, parameters: Mapping[str, str], prefix: str = "") -> Version:
        """Open the version that ``version`` and ``branch`` choose; see `version_of`.

        Raises:
            TableNotFound, VersionNotFound, TagNotFound, BranchNotFound: There is no such object.
            InvalidInput: The version is no number that a version can have.
        """
        chosen = version_of(parameters, prefix)
        number, branch = chosen.get("version"), chosen["branch"]
        if chosen.get("tag") is not None:
            tag = catalog.tags.get(table, chosen["tag"])
            number, branch = tag.version, branch or tag.branch
        dataset = catalog.open(table, number, branch=branch)
        return cls(table, dataset.version, branch, dataset)

    @property
    def summary(self) -> Mapping[str, int]:
        """What its manifest counts, by pylance's names, such as ``total_rows``."""
        return {name: int(value) for name, value in self.dataset.get_version()["metadata"].items()}

    @property
    def is_legacy(self) -> bool:
        """Whether the engine cannot find rows of its files by their ids."""
        return str(self.dataset.data_storage_version) in ("0.1", "legacy")

    @property
    def rows_at_once(self) -> int:
        """The rows that are read together; few if they are large.

        The sizes of files count the bytes of blobs, too, which are not read with their rows.
        """
        summary = self.summary
        average = summary["total_files_size"] // max(summary["total_rows"], 1)
        return PAGE + 1 if self.blobs else max(min(_AT_ONCE // max(average, 1), PAGE + 1), 1)

    @property
    def blobs(self) -> frozenset[str]:
        """The columns of blobs."""
        return frozenset(field.name for field in self.dataset.schema if _is_blob(field))


def read_rows(
    catalog: Catalog, version: Version, columns: Sequence[str], condition: str, page: int, clock: Any = time.monotonic
) -> Rows:
    """Return a page of rows; what cannot be read is a sentence.

    Args:
        catalog: The catalog.
        version: The version.
        columns: The columns to show.
        condition: An SQL condition, or "".
        page: The number of the page, from 1.
        clock: Returns seconds.
    """
    names, skipped = tuple(columns), min((page - 1) * PAGE, MOST)
    try:
        whole = None
        if condition:
            scan = catalog.scan(version.table, version.number, branch=version.branch)
            whole = scan.where(condition).query.condition
        if whole is None or version.is_legacy:
            rows = _at(catalog, version, names, whole, skipped)
            return Rows(names, tuple(rows[:PAGE]), len(rows) <= PAGE)
        if page > MOST_FILTERED:
            raise InvalidInput(f"a filter shows its first {MOST_FILTERED * PAGE:,} rows; narrow the filter")
        ids, stopped = _matching(catalog, version, whole, skipped + PAGE + 1, clock)
        shown = ids[skipped : skipped + PAGE]
        by_id: dict[int, Row] = {}
        together = version.rows_at_once
        for begin in range(0, len(shown), together):
            chosen = f"_rowid IN ({', '.join(map(str, shown[begin : begin + together]))})"
            for batch in _query(catalog, version, Query(names, condition=chosen, row_ids=True)):
                by_id |= {row.id: row for row in _rows(catalog, version, names, batch)}
        rows = [by_id[each] for each in shown if each in by_id]
        return Rows(names, tuple(rows), len(ids) <= skipped + PAGE, stopped=stopped)
    except LancekeepError as error:
        return Rows(names, problem=text(error, 500))


def _at(catalog: Catalog, version: Version, names: Sequence[str], condition: str | None, skipped: int) -> list[Row]:
    """Return the rows of a page at a position, and the row after them."""
    rows: list[Row] = []
    together = version.rows_at_once
    while wanted := min(together, PAGE + 1 - len(rows)):
        query = Query(names, condition=condition, limit=wanted, offset=skipped + len(rows), row_ids=True)
        found = [row for batch in _query(catalog, version, query) for row in _rows(catalog, version, names, batch)]
        rows += found
        if len(found) < wanted:
            break
    return rows


def _matching(
    catalog: Catalog, version: Version, condition: str, most: int, clock: Any
) -> tuple[list[int], int | None]:
    """Return the ids of the first rows that match, and how many rows were read if the time was over before."""
    begun, read = clock(), 0
    ids: list[int] = []
    fragments = [(each.fragment_id, each.metadata.num_rows) for each in version.dataset.get_fragments()]
    group: list[int] = []
    rows = 0
    for at, (fragment, count) in enumerate(fragments, 1):
        group.append(fragment)
        rows += count
        if rows < _GROUP and len(group) < _FRAGMENTS and at < len(fragments):
            continue
        query = Query((), condition=condition, limit=most - len(ids), row_ids=True, fragments=group)
        for batch in _query(catalog, version, query):
            ids += batch.column("_rowid").to_pylist()
        read, rows, group = read + rows, 0, []
        if len(ids) >= most:
            break
        if clock() - begun > PATIENCE and at < len(fragments):
            return ids, read
    if not fragments:  # the engine checks the condition
        _query(catalog, version, Query((), condition=condition, limit=1, row_ids=True)).read_all()
    return ids, None


def image(catalog: Catalog, version: Version, column: str, row: int) -> bytes:
    """Return the bytes of a cell.

    Raises:
        InvalidInput: There is no such cell, or it is no image that a page shows.
    """
    absent = InvalidInput(f"the row {row} has no image in the column {column!r:.200}")
    if column not in version.dataset.schema.names:
        raise absent
    chosen = Query((column,), condition=f"_rowid = {row}", limit=1)
    if column in version.blobs:
        [size] = [_blob_size(each) for batch in _query(catalog, version, chosen) for each in batch.column(0)] or [None]
        if size is None or size > LARGEST:
            raise absent
        chosen = attrs.evolve(chosen, bytes_of_blobs=True)
    for batch in _query(catalog, version, chosen):
        for scalar in batch.column(0):
            content = scalar.as_py()
            if isinstance(content, bytes) and len(content) <= LARGEST:
                return content
    raise absent


def _query(catalog: Catalog, version: Version, query: Query) -> Any:
    return catalog.data.query(version.table, query, version=version.number, branch=version.branch)


def _rows(catalog: Catalog, version: Version, names: Sequence[str], batch: Any) -> list[Row]:
    ids = batch.column("_rowid").to_pylist()
    blobs = version.blobs
    columns = [
        _blob_cells(catalog, version, name, ids, batch.column(name))
        if name in blobs
        else [cell_of(each) for each in batch.column(name)]
        for name in names
    ]
    if version.is_legacy:  # the route of images finds rows by their ids
        columns = [[Cell("text", each.text) if each.kind == "image" else each for each in cells] for cells in columns]
    return [Row(ids[at], tuple(cells[at] for cells in columns)) for at in range(len(ids))]


def _blob_cells(catalog: Catalog, version: Version, name: str, ids: Sequence[int], described: Any) -> list[Cell]:
    """Return blobs as cells. Blobs in files of others are not read."""
    sizes = [_blob_size(each) for each in described]
    read = [row for row, size in zip(ids, sizes, strict=True) if size]
    contents: dict[int, bytes] = {}
    if read and sum(size or 0 for size in sizes) <= LARGEST:
        chosen = f"_rowid IN ({', '.join(map(str, read))})"
        query = Query((name,), condition=chosen, row_ids=True, bytes_of_blobs=True)
        for batch in _query(catalog, version, query):
            contents |= zip(batch.column("_rowid").to_pylist(), batch.column(name).to_pylist(), strict=True)
    return [
        cell_of(scalar) if size is None else blob_cell(size, contents.get(row))
        for row, size, scalar in zip(ids, sizes, described, strict=True)
    ]


def _blob_size(described: Any) -> int | None:
    """Return the size of a blob by its description; None if it is null, or in a file outside of the table."""
    value = described.as_py()
    if not isinstance(value, dict) or not value.keys() >= _DESCRIPTION or value.get("blob_uri"):
        return None
    return None if value["size"] is None else int(value["size"])


def _is_blob(field: Any) -> bool:
    extension = getattr(field.type, "extension_name", "")
    return extension == "lance.blob.v2" or (field.metadata or {}).get(b"lance-encoding:blob") == b"true"
