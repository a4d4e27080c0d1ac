"""What tests of copies between homes share: what a catalog shows, and the ends of processes at writes."""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock, current_thread, main_thread
from typing import Any

import lance
import pytest
from faults import Crash

import lancekeep
from lancekeep.adapters.manifest_stores.directory_listing import DirectoryListing
from lancekeep.adapters.manifest_stores.hive.store import HiveManifestStore
from lancekeep.adapters.manifest_stores.lance_table import LanceManifestStore
from lancekeep.adapters.manifest_stores.postgres import PostgresManifestStore
from lancekeep.adapters.object_stores.local import LocalObjectStore
from lancekeep.adapters.rest.routes import READS
from lancekeep.adapters.rest.server import RestServer
from lancekeep.domain.identifiers import ObjectId

Kill = Callable[..., None]
DECLARED = "declared"
"""What `shown` has in place of a table without a version."""

_WRITES: list[tuple[type, str, Callable[..., bool]]] = [
    (RestServer, "call", lambda operation, *_: operation not in READS),
    (LocalObjectStore, "put_if_absent", lambda key, *_: ".lancekeep-servers" in key),
    *((kind, "apply", lambda *_: True) for kind in (PostgresManifestStore, HiveManifestStore, LanceManifestStore)),
    *((DirectoryListing, name, lambda *_: True) for name in ("remember", "hide", "show")),
]
"""The methods by which a copy writes, and which of their calls write."""


def kills(monkeypatch: pytest.MonkeyPatch) -> Kill:
    """Return a function: the process ends right after as many further writes; None for never.

    A second argument is called after each write.
    """
    left: list[int | None] = [None]
    checks: list[Callable[[], object]] = []
    one_at_a_time = RLock()

    def written() -> None:
        for check in checks:
            check()
        if left[0] is not None:
            left[0] -= 1
            require_alive()

    def require_alive() -> None:
        if left[0] is not None and left[0] <= 0:
            raise Crash

    def patched(kind: type, name: str, writes: Callable[..., bool]) -> None:
        method = getattr(kind, name)

        def call(self: Any, *args: Any, **more: Any) -> Any:
            is_of_a_server = kind is not RestServer and current_thread() is not main_thread()
            if is_of_a_server or not writes(*args):
                return method(self, *args, **more)
            with one_at_a_time:
                require_alive()
                result = method(self, *args, **more)
                written()
                return result

        monkeypatch.setattr(kind, name, call)

    for kind, name, writes in _WRITES:
        patched(kind, name, writes)

    def after(writes: int | None, check: Callable[[], object] | None = None) -> None:
        left[0] = writes
        checks[:] = [] if check is None else [check]

    return after


def shown(catalog: lancekeep.Catalog, prefix: str = "") -> dict[str, Any]:
    """Return what a catalog shows, with the rows by plain pylance.

    Args:
        catalog: The catalog.
        prefix: Only namespaces with this prefix: other software has namespaces in some homes.
    """
    found: dict[str, Any] = {}
    level: list[ObjectId] = [ObjectId()]
    while level:
        below = [parent.child(name) for parent in level for name in catalog.list_namespaces(parent)]
        below = [space for space in below if str(space).startswith(prefix)]
        for space in below:
            found[str(space)] = dict(catalog.describe_namespace(space).properties)
        for parent in level:
            for name in catalog.list_tables(parent):
                table = catalog.describe_table(parent.child(name))
                try:
                    rows = lance.dataset(table.uri).to_table().to_pydict()
                except ValueError:  # pylance finds no version
                    found[str(table.id)] = DECLARED
                else:
                    found[str(table.id)] = table.uri.removeprefix("file://"), dict(table.properties), rows
        level = below
    return found
