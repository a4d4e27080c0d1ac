"""Commit stores by URL.

An adapter, and the driver it needs, is loaded when its URL is first used. Other distributions add adapters by entry
points (docs/write-an-adapter.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import ClassVar, Protocol, cast

import attrs

from lancekeep.adapters.commit_stores.options import StoreUrl, nearest
from lancekeep.domain.errors import InvalidInput, MissingExtra
from lancekeep.ports.commit_store import ExternalCommitStore
from lancekeep.ports.object_store import ObjectStore

ENTRY_POINTS = "lancekeep.commit_stores"
"""The group of entry points that name adapters of other distributions: URL scheme = `CommitStoreAdapter`."""


class CommitStoreAdapter(Protocol):
    """A class that opens the commit stores of one URL scheme."""

    options: ClassVar[frozenset[str]]
    """The names of the options that the URL's query may give."""

    @staticmethod
    def canonical(url: StoreUrl) -> str:
        """Return the URL without secrets and tuning: equal only if two URLs mean the same rows."""
        ...

    @classmethod
    def open(cls, url: StoreUrl, objects: ObjectStore) -> ExternalCommitStore:
        """Open the store that ``url`` names, for tables in ``objects``. Writes nothing."""
        ...


@attrs.frozen
class _Source:
    """The module and class of an adapter; the extra named like the module installs ``driver``."""

    module: str
    name: str
    driver: str | None = None

    def load(self) -> type[CommitStoreAdapter]:
        try:
            module = import_module(f"{__name__}.{self.module}")
        except ModuleNotFoundError as error:
            if self.driver is None or (error.name or "").partition(".")[0] not in (self.driver, "botocore"):
                raise
            raise MissingExtra(
                f"this commit store needs the package {self.driver}: pip install 'lancekeep[{self.module}]'"
            ) from error
        return cast(type[CommitStoreAdapter], getattr(module, self.name))


TRUST_ROWS = "trust_rows"
"""The option of every store that keeps rows: readers do not look for versions without one."""
DERIVED = "conditional-put"
"""The scheme of the store whose rows are the manifests themselves."""

_REDIS = _Source("redis", "RedisCommitStore", "redis")
_SOURCES: Mapping[str, _Source] = {
    "memory": _Source("memory", "MemoryCommitStore"),
    "file": _Source("files", "FilesCommitStore"),
    "sqlite": _Source("sqlite", "SqliteCommitStore"),
    "redis": _REDIS,
    "rediss": _REDIS,
    "redis+sentinel": _REDIS,
    "dynamodb": _Source("dynamodb", "DynamoDBCommitStore", "boto3"),
    DERIVED: _Source("conditional_put", "ConditionalPutCommitStore"),
}


def open_commit_store(url: str, options: Mapping[str, str], objects: ObjectStore) -> ExternalCommitStore:
    """The commit store that ``url`` names, for tables in ``objects``. Writes nothing.

    options: the ``commit_store.*`` properties; the URL's query says the same things. Secrets are better placed here.

    Raises:
        InvalidInput: the URL or an option cannot be understood; the message names the nearest known one.
        MissingExtra: the store's driver is not installed; the message says how to install it.
        UnsafeStore: ``conditional-put://`` over an object store without an atomic create.
    """
    adapter, location = _understand(url, options)
    store = adapter.open(location, objects)
    if location.boolean(TRUST_ROWS, False):
        store.guarantees = attrs.evolve(store.guarantees, complete=True)
    return store


def canonical_url(url: str, options: Mapping[str, str] | None = None) -> str:
    """The URL of the same store without secrets and tuning: equal exactly where two URLs mean the same rows.

    Opens no connection. Raises as `open_commit_store` does.
    """
    adapter, location = _understand(url, options or {})
    return adapter.canonical(location)


def _understand(url: str, options: Mapping[str, str]) -> tuple[type[CommitStoreAdapter], StoreUrl]:
    location = StoreUrl.parse(url, options)
    scheme = location.parts.scheme
    source = _SOURCES.get(scheme)
    adapter = _registered(scheme) if source is None else source.load()
    location.check_options(adapter.options if scheme == DERIVED else adapter.options | {TRUST_ROWS})
    return adapter, location


def _registered(scheme: str) -> type[CommitStoreAdapter]:
    """Return the adapter that another distribution registers for a scheme.

    Raises:
        InvalidInput: no distribution registers the scheme, or several do.
    """
    found = entry_points(group=ENTRY_POINTS)
    adapters = {entry.value: entry for entry in found if entry.name == scheme}
    if not adapters:
        schemes = [*_SOURCES, *sorted({entry.name for entry in found} - set(_SOURCES))]
        raise InvalidInput(
            f"no commit store is called {scheme}://{nearest(scheme, schemes)}; there are "
            f"{', '.join(f'{known}://' for known in schemes)}"
        )
    if len(adapters) > 1:
        raise InvalidInput(
            f"several adapters are registered for {scheme}://: {', '.join(sorted(adapters))}. Uninstall all but one."
        )
    (entry,) = adapters.values()
    return cast(type[CommitStoreAdapter], entry.load())
