"""The base class of the operations of a namespace, and helpers for requests."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import lance_namespace as api

from lancekeep.adapters.lance.callbacks import CallbackNamespace
from lancekeep.application.catalog import Catalog, directory_of
from lancekeep.domain.bounds import MOST_TOGETHER, require_few
from lancekeep.domain.dropped import checked_undrop
from lancekeep.domain.errors import BranchNotFound, InvalidInput, VersionNotFound
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.table import Table
from lancekeep.domain.version_row import VersionRow
from lancekeep.entrypoints.namespace.boundary import context_value, timestamp_of

KEEP = "lancekeep.keep"
"""The entry of a request's context that says how long dropped tables are kept, such as ``7d``; ``0``: not at all.

As a header, ``x-lancekeep-keep``.
"""

MAIN = "main"
"""The name of the main history, which is no branch."""


class Operations(api.LanceNamespace):
    """The base of each family of operations.

    ``callbacks`` answers the requests of native code. Storage options may hold credentials: with
    ``vend_storage_options`` True, answers hold them unless a request has ``vend_credentials=false``; with None, only if
    it has ``vend_credentials=true``; with False, never. ``spark_master`` is the Spark master that runs backfills; None
    for this process.
    """

    def __init__(
        self, catalog: Catalog, *, vend_storage_options: bool | None = None, spark_master: str | None = None
    ) -> None:
        self._catalog = catalog
        self._spark_master = spark_master
        self._vend = vend_storage_options
        self._parts = directory_of(catalog, "namespace")
        self.callbacks = CallbackNamespace(self._parts.versions)

    def _storage_options(self, vend: bool | None) -> dict[str, str] | None:
        wanted = vend if self._vend is None else self._vend and vend is not False
        return dict(self._catalog.storage_options) or None if wanted else None

    def _root(self, table: Table, branch: str | None) -> DatasetRoot:
        return self._parts.places.dataset_root(table).branch(branch)

    def _latest(self, table: Table, branch: str | None) -> int | None:
        row = self._parts.commits.latest(self._root(table, branch))
        return None if row is None else row.version

    def _version(self, table: Table, branch: str | None, version: int) -> VersionRow:
        row = self._parts.commits.existing(self._root(table, branch), version)
        if row is None:
            raise VersionNotFound(f"the table {table.id} has no version {version}")
        return row

    def _chosen(self, request: Any, version: int | None, branch: str | None, tag: str | None = None) -> int | None:
        """Return the version that a request selects, by its number or by the time in its context."""
        timestamp = timestamp_of(request)
        if timestamp is None:
            return version
        if version is not None or tag is not None:
            raise InvalidInput("the time in the context selects a version; give no version or tag with it")
        return self._catalog.versions.at(id_of(request), timestamp, branch=branch)

    def _require_branch(self, table: Table, branch: str | None) -> None:
        """Raise `BranchNotFound` if a table has no such branch."""
        if branch is not None and self._latest(table, branch) is None:
            raise BranchNotFound(f"the table {table.id} has no branch {branch!r}, or it has no version yet")


def id_of(request: Any) -> ObjectId:
    """Return the identifier in a request."""
    return ObjectId.of(request.id)


def members_of(request: Any, field: str) -> Sequence[Any]:
    """Return the members of a batch.

    Args:
        request: The batch.
        field: Its field, ``entries`` or ``operations``.

    Raises:
        InvalidInput: They are more than `MOST_TOGETHER`.
    """
    members: Sequence[Any] = getattr(request, field)
    require_few(field, members, MOST_TOGETHER)
    return members


def keep_of(request: Any) -> timedelta | None:
    """Return how long a request keeps a dropped table; None for the default."""
    kept = context_value(request, KEEP)
    return None if kept is None else timedelta(microseconds=checked_undrop(kept))


def branch_of(request: Any) -> str | None:
    """Return the branch in a request; None for the main history."""
    return None if request.branch in (None, "", MAIN) else str(request.branch)


def choice(value: str | None, name: str, default: str, *others: str) -> str:
    """Return an option in its own spelling.

    Requests may use any case, PascalCase or snake_case.

    Raises:
        InvalidInput: The value is not among the choices.
    """
    if value is None:
        return default
    for choice in (default, *others):
        if value.lower().replace("_", "") == choice.replace("_", ""):
            return choice
    raise InvalidInput(f"unknown {name} {value!r}; choose {', '.join((default, *others))}")


def namespace_mode(mode: str | None) -> str:
    """Return what a creation does if the namespace exists.

    Returns:
        ``create`` to refuse it, ``exist_ok`` to keep it, ``overwrite`` to replace it.

    Raises:
        InvalidInput: The mode is unknown.
    """
    return choice(mode, "mode", "create", "exist_ok", "overwrite")
