"""Read names of a catalog into the cache of the completion (ADR 114)."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterable, Mapping
from typing import Any

from lancekeep.application.catalog import Catalog, services_of
from lancekeep.config import ConnectionConfig, given
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest_entry import NAMESPACE
from lancekeep.entrypoints.cli import completion
from lancekeep.entrypoints.cli.options import PublicFunctions, Stores

_MOST, _SECONDS = 1000, 10
"""The names of one answer, and the time that a lookup may take."""


def look_up(functions: PublicFunctions) -> None:
    """Answer the request in the environment.

    If the catalog cannot be read in time, names from before stay in the cache.
    """
    if hasattr(signal, "alarm"):
        signal.alarm(_SECONDS)
    request = json.loads(os.environ[completion.REQUEST])
    file = completion.cache_of(request)
    try:
        with _stores(request).catalog(functions, mode=request["mode"]) as catalog:
            answer: dict[str, Any] | None = _answer(_names(catalog, request))
    except Exception:  # the key press that waits for names gets none; names from before stay
        answer = None if file.exists() else _answer([])
    try:
        if answer is not None:
            completion.write(file, {"at": time.time(), **answer})
            completion.forget_unused()
    finally:
        file.with_suffix(".running").unlink(missing_ok=True)


def _stores(request: Mapping[str, Any]) -> Stores:
    config = ConnectionConfig.resolve(given(completion.root_of(request), commit_store=request["commit_store"]))
    return Stores.of(config)


def _answer(found: Iterable[tuple[str, bool]]) -> dict[str, Any]:
    names = list(found)
    return {"names": names[:_MOST], "complete": len(names) <= _MOST}


def _names(catalog: Catalog, request: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """Return names, each with whether it is a whole name; a namespace among tables is the beginning of one."""
    name, prefix = request["of"], request["prefix"]
    match request["kind"]:
        case completion.TABLES:
            tables, _ = services_of(catalog).tables.page(
                ObjectId.of(name), prefix or None, _MOST + 1, include_declared=True
            )
            return [*((each, False) for each in _namespaces(catalog, name, prefix)), *((each, True) for each in tables)]
        case completion.NAMESPACES:
            return [(each, True) for each in _namespaces(catalog, name, prefix)]
        case completion.COLUMNS:
            found: Iterable[str] = catalog.versions.describe(name).schema.names
        case completion.TAGS:
            found = catalog.tags.list(name)
        case completion.BRANCHES:
            found = catalog.branches.list(name)
        case _:
            found = {str(each.id) for each in catalog.list_dropped()}
    return [(each, True) for each in sorted(found) if each.startswith(prefix)]


def _namespaces(catalog: Catalog, parent: str, prefix: str) -> list[str]:
    names, _ = services_of(catalog).namespaces.page(ObjectId.of(parent), NAMESPACE, prefix or None, _MOST + 1)
    return names
