"""The catalog: namespaces and tables in pages, and the search for a name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from datetime import UTC, datetime
from functools import partial
from itertools import islice

import attrs
from starlette.responses import Response

from lancekeep.application.catalog import Catalog
from lancekeep.domain.errors import InvalidInput, LancekeepError
from lancekeep.domain.identifiers import ObjectId
from lancekeep.entrypoints.page.authorized import Listing
from lancekeep.entrypoints.page.names import Names
from lancekeep.entrypoints.page.request import PageRequest, parsed

PAGE = 100
"""The most names of a page."""

MOST_SORTED = 200
"""The most tables whose latest versions a page reads, to sort by size or change."""

NAME, SIZE, CHANGE = SORTS = ("name", "size", "change")

_READERS = 16
_LONGEST_PART = 500


@attrs.frozen
class TableLine:
    """A table in the list.

    Attributes:
        id: The table.
        rows: The rows of its latest version; None if the version was not read, or there is none.
        size: The bytes of the data of its latest version.
        changed: The time of its latest version.
        problem: Why the latest version cannot be read.
    """

    id: ObjectId
    rows: int | None = None
    size: int | None = None
    changed: datetime | None = None
    problem: str = ""


@attrs.frozen
class CatalogView:
    """One page of the children of a namespace.

    Attributes:
        namespace: The namespace.
        properties: The properties of the namespace.
        namespaces: The child namespaces.
        tables: The tables.
        sort: The order of the tables: ``name``, ``size`` or ``change``.
        after: The parameters of the next page; None on the last page.
        note: Why the tables are not in the wanted order.
    """

    namespace: ObjectId
    properties: Mapping[str, str]
    namespaces: tuple[ObjectId, ...]
    tables: tuple[TableLine, ...]
    sort: str = NAME
    after: Mapping[str, str] | None = None
    note: str = ""

    @property
    def path(self) -> tuple[ObjectId, ...]:
        """The namespaces from the first below the root to this one."""
        names = self.namespace.names
        return tuple(ObjectId(names[: at + 1]) for at in range(len(names)))


def build(catalog: Catalog, listing: Listing, namespace: ObjectId, parameters: Mapping[str, str]) -> CatalogView:
    """Return a page: namespaces first, then tables.

    Args:
        catalog: The catalog as the principal may read it.
        listing: The names that the principal sees.
        namespace: The namespace.
        parameters: ``sort``; ``after`` is the last name of the page before, and ``of`` its kind, namespace or table.

    Raises:
        NamespaceNotFound: The namespace does not exist.
        InvalidInput: There is no such order.
    """
    sort = parameters.get("sort", NAME)
    if sort not in SORTS:
        raise InvalidInput(f"there is no order {sort[:100]!r}; choose {', '.join(SORTS)}")
    view = _sorted_by_version(catalog, listing, namespace, sort) if sort != NAME else None
    if view is not None and not view.note:
        return view
    page = _by_name(listing, namespace, parameters)
    return attrs.evolve(page, properties=_properties(catalog, namespace), note="" if view is None else view.note)


def _by_name(listing: Listing, namespace: ObjectId, parameters: Mapping[str, str]) -> CatalogView:
    after, of_tables = parameters.get("after"), parameters.get("of") == "table"
    namespaces, more = ([], None) if of_tables else listing.namespaces(namespace, after, PAGE)
    tables: list[str] = []
    following: Mapping[str, str] | None = None
    if more is not None:
        following = {"of": "namespace", "after": more}
    elif len(namespaces) < PAGE:
        tables, more = listing.tables(namespace, after if of_tables else None, PAGE - len(namespaces))
        following = None if more is None else {"of": "table", "after": more}
    else:
        following = {"of": "table"}
    lines = tuple(TableLine(each) for each in _children(namespace, tables))
    return CatalogView(namespace, {}, tuple(_children(namespace, namespaces)), lines, NAME, following)


def _sorted_by_version(catalog: Catalog, listing: Listing, namespace: ObjectId, sort: str) -> CatalogView:
    """Return all children with their latest versions, the largest or latest first."""
    namespaces, more = listing.namespaces(namespace, None, MOST_SORTED)
    tables, many = listing.tables(namespace, None, MOST_SORTED)
    view = CatalogView(namespace, {}, tuple(_children(namespace, namespaces)), (), sort)
    if more is not None or many is not None:
        note = (
            f"Only namespaces with at most {MOST_SORTED} children are sorted by {sort}: it reads each latest version."
        )
        return attrs.evolve(view, note=note)
    lines = _latest(catalog, list(_children(namespace, tables)))
    keys: dict[str, Callable[[TableLine], object]] = {
        SIZE: lambda line: -1 if line.size is None else line.size,
        CHANGE: lambda line: datetime.min.replace(tzinfo=UTC) if line.changed is None else line.changed,
    }
    ordered = sorted(lines, key=keys[sort], reverse=True)  # type: ignore[arg-type] # each key has one type
    return attrs.evolve(view, tables=tuple(ordered), properties=_properties(catalog, namespace))


def _children(namespace: ObjectId, names: Sequence[str]) -> Iterator[ObjectId]:
    return (ObjectId((*namespace.names, name)) for name in names)


def _properties(catalog: Catalog, namespace: ObjectId) -> Mapping[str, str]:
    """Return the properties of a namespace; none if the principal may only read a part of it."""
    try:
        return catalog.describe_namespace(namespace).properties
    except LancekeepError:
        return {}


def _latest(catalog: Catalog, tables: Sequence[ObjectId]) -> list[TableLine]:
    def read(table: ObjectId) -> TableLine:
        try:
            [latest] = catalog.versions.history(table, 1)
            size = catalog.data.stats(table).size
        except ValueError:  # the table is only declared
            return TableLine(table)
        except LancekeepError as error:
            return TableLine(table, problem=str(error))
        return TableLine(table, latest.rows, size, latest.timestamp)

    with ThreadPoolExecutor(_READERS) as readers:
        return [
            found.result() for found in [readers.submit(copy_context().run, partial(read, each)) for each in tables]
        ]


@attrs.frozen
class SearchView:
    """Tables whose identifiers contain a text.

    Attributes:
        part: The text.
        tables: The first tables.
        more: Whether there are further ones.
        searched: The number of tables that were searched.
        is_complete: Whether these are all tables; the server may still read the names of the others.
    """

    part: str
    tables: tuple[ObjectId, ...]
    more: bool
    searched: int
    is_complete: bool = True


def find(names: Names, sees: Callable[[ObjectId], bool], part: str) -> SearchView:
    """Return the tables whose identifiers contain a text.

    Args:
        names: The names.
        sees: Returns whether the principal sees a table at this moment.
        part: The text.
    """
    part = part.strip()[:_LONGEST_PART]
    found = list(islice(filter(sees, names.containing(part)), PAGE + 1))
    return SearchView(part, tuple(found[:PAGE]), len(found) > PAGE, names.count, names.is_complete)


def catalog(request: PageRequest) -> Response:
    """Answer with a page of a namespace."""
    namespace = parsed(request.query.get("namespace", ""))
    view = build(request.catalog, request.listing, namespace, request.query)
    return request.render("catalog.html", view=view, sorts=SORTS)


def search(request: PageRequest) -> Response:
    """Answer with tables by a part of their names; ``part`` omits the frame."""
    view = find(request.names(), request.listing.sees, request.query.get("q", ""))
    template = "results.html" if request.query.get("part") == "results" else "search.html"
    return request.render(template, view=view)


ROUTES = (("/", catalog), ("/search", search))
