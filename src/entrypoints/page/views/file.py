"""One file of a version, as ``lancekeep inspect`` describes it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

import attrs
from starlette.responses import Response

from lancekeep.application.catalog import Catalog
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.identifiers import ObjectId
from lancekeep.entrypoints.page.formats import command, text
from lancekeep.entrypoints.page.named_files import is_named
from lancekeep.entrypoints.page.parameters import version_of
from lancekeep.entrypoints.page.request import PageRequest
from lancekeep.entrypoints.page.views.files import SENTENCES, read_manifest

ITEMS = 100
"""The most items of a list, and members of an object, that a page shows."""
FRAGMENTS = 10
"""The most fragments of a manifest that a page shows, as the command does."""


@attrs.frozen
class FileView:
    """The description of a file.

    Attributes:
        id: The table.
        version: The version.
        path: The path of the file below the table; empty for the manifest of the version.
        document: The description; lists and objects are cut, and empty members are left out.
        command: The command that shows all of it.
        problem: Why the file cannot be described; empty if it can.
    """

    id: ObjectId
    version: int | None
    path: str
    document: Mapping[str, Any]
    command: str
    problem: str = ""


def build(catalog: Catalog, table: ObjectId, parameters: Mapping[str, str]) -> FileView:
    """Return the description of a file that a version names.

    Args:
        catalog: The catalog.
        table: The table.
        parameters: ``path`` is the path of the file below the table; without it, the manifest of the version is
            described. ``version`` and ``branch`` choose the version.

    Raises:
        TableNotFound, VersionNotFound, TagNotFound, BranchNotFound: There is no such object.
        InvalidInput: The version does not name the file.
    """
    path, chosen = parameters.get("path", ""), version_of(parameters)
    version = chosen.get("version")
    try:
        manifest = read_manifest(catalog, table, chosen)  # also refuses base paths that the principal may not read
        version = manifest.version
        if path and not is_named(manifest, path):
            raise InvalidInput(f"version {version} of {table} has no file {text(path)!r}; choose one of its files")
        if manifest.branch and not path:
            raise InvalidInput("the page describes manifests of the main history; leave the branch out")
        number = None if manifest.branch else version
        found = catalog.inspect(table, number, file=path or None, most_fragments=FRAGMENTS)
    except SENTENCES as error:
        found, problem = {}, str(error)
    else:
        problem = ""
    options = {name: value for name, value in (("version", str(version or "")), ("file", path)) if value}
    shown = command("inspect", catalog.root_uri, str(table), **options)
    return FileView(table, version, path, _bounded(found), shown, problem)


def _bounded(value: Any) -> Any:
    """Cut lists and objects, and leave empty members out."""
    if isinstance(value, Mapping):
        kept = {
            name.replace("_", " "): _bounded(each)
            for name, each in islice(value.items(), ITEMS)
            if each not in (None, "", [], {})
        }
        return kept | ({"…": f"{len(value) - ITEMS:,} more"} if len(value) > ITEMS else {})
    if isinstance(value, list | tuple):
        shown = [*map(_bounded, value[:ITEMS]), *([f"… {len(value) - ITEMS:,} more"] if len(value) > ITEMS else [])]
        return shown if any(isinstance(each, Mapping | list) for each in shown) else ", ".join(map(str, shown))
    return value


def file(request: PageRequest) -> Response:
    """Answer with the description of a file."""
    view = build(request.catalog, request.object_id, request.query)
    return request.render("file.html", view=view, tab="files")


ROUTES = (("/t/{id}/file", file),)
