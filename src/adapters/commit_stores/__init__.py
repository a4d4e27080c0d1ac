"""Commit stores by URL.

An adapter, and the driver it needs, is loaded when its URL is first used. Other distributions add adapters by entry
points (docs/write-an-adapter.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar, Protocol, cast

import attrs

from lancekeep.domain.errors import MissingExtra
from lancekeep.ports.commit_store import ExternalCommitStore
from lancekeep.ports.object_store import ObjectStore
from lancekeep.store_urls import COMMIT_STORES, StoreUrl


class CommitStoreAdapter(Protocol):
    """A class that opens the commit stores of one URL scheme."""

    options: ClassVar[frozenset[str]]
    """The names of the options that the URL's query may give."""

    @classmethod
    def open(cls, url: StoreUrl, objects: ObjectStore) -> ExternalCommitStore:
        """Open the store that ``url`` names, for tables in ``objects``. Writes nothing.

        The ``url`` of the store is without secrets and tuning, and equal for equal sets of rows.
        """
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
"""Option of every store that keeps rows: readers do not check for versions without rows."""
DERIVED = "conditional-put"
"""Scheme of the store that derives its rows from the manifests."""

_REDIS = _Source("redis", "RedisCommitStore", "redis")
_SOURCES: Mapping[str, _Source] = {
    "memory": _Source("memory", "MemoryCommitStore"),
    "file": _Source("files", "FilesCommitStore"),
    "sqlite": _Source("sqlite", "SqliteCommitStore"),
    "redis": _REDIS,
    "rediss": _REDIS,
    "redis+sentinel": _REDIS,
    "dynamodb": _Source("dynamodb", "DynamoDBCommitStore", "boto3"),
    "postgresql": _Source("postgres", "PostgresCommitStore", "psycopg"),
    "hive": _Source("hive", "HiveCommitStore"),
    DERIVED: _Source("conditional_put", "ConditionalPutCommitStore"),
}


def open_commit_store(url: str, options: Mapping[str, str], objects: ObjectStore) -> ExternalCommitStore:
    """Open the commit store of a URL for tables in ``objects``, without writing.

    Args:
        url: The URL of the commit store.
        options: The ``commit_store.*`` properties. The URL's query may set the same options; keep secrets out of it.
        objects: The object store of the tables.

    Raises:
        InvalidInput: the URL or an option is invalid; the message names the nearest known option.
        MissingExtra: the store's driver is not installed; the message says how to install it.
        UnsafeStore: ``conditional-put://`` over an object store without an atomic create.
    """
    location = StoreUrl.parse(url, options)
    scheme = location.parts.scheme
    source = _SOURCES.get(scheme)
    adapter: type[CommitStoreAdapter] | None = COMMIT_STORES.adapter(scheme) if source is None else source.load()
    if adapter is None:
        raise COMMIT_STORES.unknown(scheme, _SOURCES)
    location.check_options(adapter.options if scheme == DERIVED else adapter.options | {TRUST_ROWS})
    store = adapter.open(location, objects)
    if location.boolean(TRUST_ROWS, False):
        return cast(ExternalCommitStore, _TrustedRows(store))  # it has every method of the store
    return store


class _TrustedRows:
    """A commit store whose rows are declared to be complete."""

    def __init__(self, store: ExternalCommitStore) -> None:
        self._store = store
        self.guarantees = attrs.evolve(store.guarantees, complete=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def __repr__(self) -> str:
        return repr(self._store)
