"""The catalog: namespaces and tables in pages, and the search for a name."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from starlette.responses import Response

from lancekeep.domain.identifiers import ObjectId
from lancekeep.entrypoints.page.authorized import Listing
from lancekeep.entrypoints.page.request import PageRequest, parsed

PAGE = 100
"""The most names of a page."""


@attrs.frozen
class CatalogView:
    """One page of the children of a namespace.

    Attributes:
        namespace: The namespace.
        namespaces: The child namespaces.
        tables: The tables.
        after: The parameters of the next page; None on the last page.
    """

    namespace: ObjectId
    namespaces: tuple[ObjectId, ...]
    tables: tuple[ObjectId, ...]
    after: Mapping[str, str] | None

    @property
    def path(self) -> tuple[ObjectId, ...]:
        """The namespaces from the first below the root to this one."""
        names = self.namespace.names
        return tuple(ObjectId(names[: at + 1]) for at in range(len(names)))


def build(listing: Listing, namespace: ObjectId, parameters: Mapping[str, str]) -> CatalogView:
    """Return a page: namespaces first, then tables.

    Args:
        listing: The names that the principal sees.
        namespace: The namespace.
        parameters: ``after`` is the last name of the page before, and ``of`` its kind: ``namespace`` or ``table``.

    Raises:
        NamespaceNotFound: The namespace does not exist.
    """
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
    return CatalogView(
        namespace,
        tuple(ObjectId((*namespace.names, name)) for name in namespaces),
        tuple(ObjectId((*namespace.names, name)) for name in tables),
        following,
    )


def catalog(request: PageRequest) -> Response:
    """Answer with a page of a namespace."""
    namespace = parsed(request.query.get("namespace", ""))
    return request.render("catalog.html", view=build(request.listing, namespace, request.query))


ROUTES = (("/", catalog),)
