"""The request that a view of the page answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

import attrs
from jinja2 import Environment
from starlette.responses import HTMLResponse, Response

from lancekeep.application.catalog import Catalog
from lancekeep.domain.identifiers import DELIMITER, MANIFEST_DELIMITER, Identifier, ObjectId
from lancekeep.entrypoints.page.authorized import Listing
from lancekeep.entrypoints.page.names import Names


@attrs.frozen
class PageRequest:
    """A request for a page.

    Attributes:
        catalog: The catalog, as far as the signed-in principal may read it. It has only operations that read.
        listing: The names of the same catalog in pages.
        names: Returns the names of all tables that the principal sees, for searches.
        path: The path of the URL, percent-encoded, with its prefix.
        path_params: The decoded parameters in the path, such as ``id``.
        query: The parameters of the query; of several with one name, the last.
        templates: The templates.
        shown: Values for every template, such as the name of the principal.
        prefix: The path before the paths of the page.
    """

    catalog: Catalog
    listing: Listing
    names: Callable[[], Names]
    path: str
    path_params: Mapping[str, str]
    query: Mapping[str, str]
    templates: Environment = attrs.field(repr=False)
    shown: Mapping[str, Any] = attrs.field(factory=dict, repr=False)
    prefix: str = ""

    @property
    def object_id(self) -> ObjectId:
        """The object that ``{id}`` in the path names.

        Raises:
            InvalidInput: The text is no identifier.
        """
        return parsed(self.path_params["id"])

    def link(self, **changes: object) -> str:
        """Return the URL of this page with other parameters; None removes a parameter."""
        return with_query(self.path, **{**self.query, **changes})

    def render(self, template: str, /, status: int = 200, **values: Any) -> Response:
        """Return a template as a response.

        Args:
            template: The name of the template.
            status: The HTTP status.
            values: The values that the template shows. ``request`` is this request.
        """
        content = self.templates.get_template(template).render(**self.shown, **values, request=self)
        return HTMLResponse(content, status)


def slug(identifier: Identifier) -> str:
    """Return an identifier as text for URLs, which `parsed` reads.

    Names that contain the delimiter are written in another form.
    """
    object_id = ObjectId.of(identifier)
    if any(DELIMITER in name for name in object_id.names):
        return MANIFEST_DELIMITER + object_id.key
    return DELIMITER.join(object_id.names)


def parsed(text: str) -> ObjectId:
    """Return the identifier of a `slug`.

    Raises:
        InvalidInput: The text is no identifier.
    """
    if text.startswith(MANIFEST_DELIMITER):
        return ObjectId.of(text.removeprefix(MANIFEST_DELIMITER), MANIFEST_DELIMITER)
    return ObjectId.of(text)


def table_url(identifier: Identifier, view: str = "", /, **query: object) -> str:
    """Return the path of a view of a table, such as ``history``.

    It is below the prefix of the page.
    """
    path = f"/t/{quote(slug(identifier), safe='')}"
    return with_query(f"{path}/{view}" if view else path, **query)


def namespace_url(identifier: Identifier, /, **query: object) -> str:
    """Return the path of a namespace below the prefix of the page."""
    return with_query("/", namespace=slug(identifier) or None, **query)


def with_query(path: str, /, **query: object) -> str:
    """Return a path with the parameters that are not None."""
    given = {name: str(value) for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path
