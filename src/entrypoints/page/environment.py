"""The environment of the templates."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from lancekeep.entrypoints.page.assets import assets
from lancekeep.entrypoints.page.formats import FILTERS
from lancekeep.entrypoints.page.request import namespace_url, table_url, with_query


@cache
def environment() -> Environment:
    """Return the environment of all templates, which escapes every value."""
    made = Environment(
        loader=PackageLoader("lancekeep.entrypoints.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(FILTERS)
    made.globals.update(assets=assets().urls, table_url=table_url, namespace_url=namespace_url, with_query=with_query)
    return made
