"""The environment of the templates."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context

from lancekeep.domain.identifiers import Identifier
from lancekeep.entrypoints.page.assets import assets
from lancekeep.entrypoints.page.formats import FILTERS
from lancekeep.entrypoints.page.request import namespace_url, table_url, with_query


@cache
def environment() -> Environment:
    """Return the environment of all templates, which escapes every value.

    ``prefix`` is the path before the paths of the page, without a slash at its end.
    """
    made = Environment(
        loader=PackageLoader("lancekeep.entrypoints.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(FILTERS)
    made.globals.update(assets=assets().urls, table_url=_table_url, namespace_url=_namespace_url, with_query=with_query)
    made.globals["prefix"] = ""
    return made


@pass_context
def _table_url(context: Context, identifier: Identifier, view: str = "", /, **query: object) -> str:
    return f"{context['prefix']}{table_url(identifier, view, **query)}"


@pass_context
def _namespace_url(context: Context, identifier: Identifier, /, **query: object) -> str:
    return f"{context['prefix']}{namespace_url(identifier, **query)}"
