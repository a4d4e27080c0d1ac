"""Manifest stores by URL, for entries outside of the directory of the root.

Other adapters of this package keep the entries in the directory; the mode of a connection chooses one of them. Other
distributions add adapters by entry points (docs/write-an-adapter.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Protocol, cast

from lancekeep.adapters.manifest_stores.adoption import AdoptableManifestStore
from lancekeep.adapters.manifest_stores.claimed import ClaimedManifestStore, ManifestStoreElsewhere
from lancekeep.domain.errors import MissingExtra
from lancekeep.ports.object_store import ObjectStore
from lancekeep.store_urls import MANIFEST_STORES, StoreUrl


class ManifestStoreAdapter(Protocol):
    """A class that opens the manifest stores of one URL scheme."""

    options: ClassVar[frozenset[str]]
    """The names of the options that the URL's query may give."""

    @classmethod
    def open(cls, url: StoreUrl, objects: ObjectStore, root_key: str) -> ManifestStoreElsewhere:
        """Open the store that ``url`` names, without writing.

        Args:
            url: The URL with its options.
            objects: The object store of the tables.
            root_key: The key of the catalog's root.
        """
        ...


def open_manifest_store(
    url: str, options: Mapping[str, str], objects: ObjectStore, root_key: str
) -> ClaimedManifestStore:
    """Open the manifest store of a URL, without writing.

    Args:
        url: The URL of the manifest store.
        options: The ``manifest_store.*`` properties. The URL's query may set the same options; keep secrets out of it.
        objects: The object store of the tables.
        root_key: The key of the catalog's root.

    Raises:
        InvalidInput: The URL or an option is invalid; the message names the nearest known one.
        Refused: The entries of the root are elsewhere.
    """
    return ClaimedManifestStore(open_unclaimed(url, options, objects, root_key), objects, root_key)


def open_adoptable(
    url: str, options: Mapping[str, str], objects: ObjectStore, root_key: str
) -> AdoptableManifestStore | None:
    """Open the manifest store of a URL for `adopt_root`, whatever the root records.

    Returns:
        The store; None if its catalogs do not record their roots.
    """
    store = open_unclaimed(url, options, objects, root_key)
    return cast(AdoptableManifestStore, store) if hasattr(store, "move_from") else None


def open_unclaimed(url: str, options: Mapping[str, str], objects: ObjectStore, root_key: str) -> ManifestStoreElsewhere:
    """Open the manifest store of a URL, whatever the root records.

    Otherwise it does the same as `open_manifest_store`.
    """
    location = StoreUrl.parse(url, options, MANIFEST_STORES)
    scheme = location.parts.scheme
    adapter = _adapter(scheme)
    if adapter is None:
        raise MANIFEST_STORES.unknown(scheme, _OWN)
    location.check_options(adapter.options)
    return adapter.open(location, objects, root_key)


def names_manifest_store(place: str) -> bool:
    """Return whether a text is the URL of a manifest store, and not a root."""
    scheme, separator, _ = place.partition("://")
    return bool(separator) and (scheme in _OWN or MANIFEST_STORES.adapter(scheme) is not None)


def _adapter(scheme: str) -> type[ManifestStoreAdapter] | None:
    own = _OWN.get(scheme)
    return own() if own is not None else MANIFEST_STORES.adapter(scheme)


def _postgres() -> type[ManifestStoreAdapter]:
    try:
        from lancekeep.adapters.manifest_stores.postgres import PostgresManifestStore
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "psycopg":
            raise
        raise MissingExtra(
            "this manifest store needs the package psycopg: pip install 'lancekeep[postgres]'"
        ) from error
    return PostgresManifestStore


def _hive() -> type[ManifestStoreAdapter]:
    from lancekeep.adapters.manifest_stores.hive.store import HiveManifestStore

    return HiveManifestStore


_OWN: Mapping[str, Callable[[], type[ManifestStoreAdapter]]] = {"postgresql": _postgres, "hive": _hive}
