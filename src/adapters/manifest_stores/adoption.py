"""Adopt a root that was copied or moved.

A root records the manifest store of its entries, and the store records the root. Both records are true for one root
only, so a copy is refused until an operator says whether the root was moved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import attrs

from lancekeep.adapters.manifest_stores.claimed import ManifestStoreElsewhere
from lancekeep.adapters.manifest_stores.directory_listing import DirectoryListing
from lancekeep.domain.errors import ConcurrentModification, LancekeepError, NotFound, Refused
from lancekeep.domain.home_copy import MANIFEST_STORE_PROPERTY
from lancekeep.ports.object_store import ObjectStore

PropertiesAt = Callable[[str], Mapping[str, str]]
"""Returns the properties in the file of a root; raises `NotFound` if the root is gone."""


class AdoptableManifestStore(ManifestStoreElsewhere, Protocol):
    """A manifest store whose catalogs record their roots."""

    def owner(self) -> str | None:
        """Return the root that the catalog records; None if there is no such catalog."""

    def move_from(self, former: str) -> bool:
        """Record this root in place of the former one.

        Returns:
            False if the catalog records neither of the two.
        """

    def source(self, url: str) -> str | None:
        """Return the root of a catalog of the same database, or None."""

    def copy_from(self, url: str, former: str) -> bool:
        """Create this catalog with the entries of the catalog at a URL.

        Returns:
            False if this catalog exists, or the catalog at the URL does not record the former root.
        """


@attrs.frozen
class Adoption:
    """What was adopted, or would be.

    Attributes:
        url: The catalog that has the root from now on.
        former: The root of the catalog whose entries it has.
        copied: Whether the entries are a copy.
    """

    url: str
    former: str
    copied: bool


def adopt_root(
    store: AdoptableManifestStore,
    objects: ObjectStore,
    root_key: str,
    properties_at: PropertiesAt,
    *,
    original: bool,
    force: bool,
    dry_run: bool,
) -> Adoption | None:
    """Make a catalog the one of a copied or moved root. Idempotent.

    The root must record the catalog that it was copied or moved with, which proves that both belong together.

    Args:
        store: The catalog that the root shall have.
        objects: The object store of the root.
        root_key: The key of the root.
        properties_at: Returns the properties of the former root.
        original: The root was moved. Otherwise it is a copy, and receives a copy of the entries.
        force: Move the root even if the former one may still be in use.
        dry_run: Change nothing.

    Returns:
        What was adopted; None if nothing is to be done.

    Raises:
        Refused: The root does not record the catalog, the former root is still in use, or the name of the copy is
            taken.
    """
    root = objects.root_uri + root_key
    listing = DirectoryListing(objects, root_key)
    directory = listing.view()
    recorded = directory.properties.get(MANIFEST_STORE_PROPERTY)
    if recorded is None:
        raise Refused(f"{root} records no manifest store, so it is neither a copy nor the new place of {store.url}")
    if recorded == store.url:
        former = store.owner()
        if former == root:
            return None
        if former is None:
            raise Refused(f"{store.url} does not exist, so {root} cannot have its entries. Restore the database")
        if not original:
            raise Refused(
                f"{store.url} is the catalog of {former}, and {root} is a copy of that root. Name a new catalog for "
                "the copy by the option catalog of the URL; or add --original if the root was moved"
            )
        if not force:
            _require_left(former, store.url, properties_at)
        if not dry_run and not store.move_from(former):
            raise ConcurrentModification(f"{store.url}: another process changed the root of the catalog; try again")
        return Adoption(store.url, former, copied=False)
    if original:
        raise Refused(
            f"the entries of {root} are in {recorded}, not in {store.url}. Name that catalog, or leave --original out "
            "to copy its entries"
        )
    former = store.source(recorded)
    if former is None:
        raise Refused(f"{recorded}, which {root} records, is no catalog in the database of {store.url}")
    if store.owner() not in (None, root):
        raise Refused(f"{store.url} is the catalog of {store.owner()}; choose another name for the copy")
    if not dry_run:
        if store.owner() is None and not store.copy_from(recorded, former):
            raise ConcurrentModification(f"{store.url}: another process created the catalog; try again")
        listing.remember({**directory.properties, MANIFEST_STORE_PROPERTY: store.url}, directory)
    return Adoption(store.url, former, copied=True)


def _require_left(former: str, url: str, properties_at: PropertiesAt) -> None:
    """Raise `Refused` unless the former root is gone, or has another catalog by now."""
    try:
        recorded = properties_at(former).get(MANIFEST_STORE_PROPERTY)
    except NotFound:
        return
    except LancekeepError as error:
        raise Refused(
            f"it is unknown whether {former} is still the root of {url}: {error}. If it is not in use any more, add "
            "--force"
        ) from error
    if recorded == url:
        raise Refused(
            f"{former} still records {url}, so processes may use the catalog there; nothing was changed. For a copy, "
            "leave --original out and name a new catalog. If that root is not in use any more, add --force"
        )
