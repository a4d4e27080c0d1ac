"""Move catalogs between homes: the manifest stores that hold their entries."""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import ExitStack, closing
from functools import partial
from typing import TYPE_CHECKING

import attrs

from lancekeep.adapters.manifest_stores import names_manifest_store, open_adoptable, open_unclaimed
from lancekeep.adapters.manifest_stores.adoption import Adoption
from lancekeep.adapters.manifest_stores.adoption import adopt_root as adopt
from lancekeep.adapters.manifest_stores.claimed import require_claim_of, return_root, show_tables, take_root
from lancekeep.adapters.manifest_stores.directory_listing import DirectoryListing
from lancekeep.adapters.object_stores import open_object_store
from lancekeep.application.catalog import directory_of
from lancekeep.composition import assembled, in_directory, manifest_table, objects_of, outside
from lancekeep.config import MODES, REMEMBERED, V1, V2, ConnectionConfig, given, public_url
from lancekeep.domain.catalog import CatalogView
from lancekeep.domain.errors import InvalidInput, Unsupported
from lancekeep.domain.home_copy import MANIFEST_STORE_PROPERTY

if TYPE_CHECKING:
    from lancekeep.application.certification import Progress
    from lancekeep.application.upkeep.copy_report import CatalogCopy

_CHANCE = random.SystemRandom()


def copy_catalog(
    source: str,
    target: str,
    *,
    root: str | None = None,
    mode: str | None = None,
    commit_store: str | None = REMEMBERED,
    to_commit_store: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    commit_store_options: Mapping[str, str] | None = None,
    source_options: Mapping[str, str] | None = None,
    target_options: Mapping[str, str] | None = None,
    writers_stopped: bool = False,
    give_up: bool = False,
    dry_run: bool = False,
    progress: Progress = lambda done, total, name: None,
) -> CatalogCopy:
    """Copy the entries of a catalog to another home, which takes the catalog over.

    A home is the directory of the root, or a manifest store elsewhere. The directories of the tables stay where they
    are, and so do their versions, tags and branches. Everything that the catalog holds is copied: namespaces, tables
    and their properties, dropped tables that can be brought back, protection, views, and the identity.

    Readers and writers continue while entries are copied. Then a fence refuses every operation in the source, also of
    processes that have it open; the last changes follow, and the target becomes the home. The fence stays, and names
    the target. At no moment are there two homes.

    If the copy is interrupted at any point, call it again to complete it.

    Args:
        source: The home of the catalog: a root (a path or a URI), whose directory holds the entries, or the URL of a
            manifest store.
        target: The home that it gets: the same root, or the URL of a manifest store. It is empty, or was a home of this
            catalog before.
        root: The root, if neither ``source`` nor ``target`` is one.
        mode: The mode in which the directory is opened, as of `connect`. In compatibility mode, tables that are only
            directories are entered in the manifest table first.
        commit_store: The commit store of the source; by default the one that the catalog remembers.
        to_commit_store: The commit store to which the versions move afterwards, as by `Upkeep.change_commit_store`. By
            default they stay.
        storage_options: As of `connect`.
        commit_store_options: Options of both commit stores.
        source_options: Options of the manifest store of the source, such as credentials.
        target_options: The same for the target.
        writers_stopped: No process changes the catalog until the end. Needed if the source cannot refuse writers
            atomically.
        give_up: End an unfinished copy, and permit operations in the source again.
        dry_run: Change nothing, and return the plan.
        progress: Called before each step.

    Returns:
        What was copied or, with ``dry_run``, would be copied, and what the target cannot hold.

    Raises:
        InvalidInput: The source and the target are one home, or have different roots.
        Refused: The target cannot hold an entry, or holds another catalog; or the source is not the home. The message
            names the entries. Nothing was copied.
        Unsupported: The source cannot refuse writers atomically, and ``writers_stopped`` is not set.
        ConcurrentModification: Another process has taken the copy over.
    """
    from lancekeep.application.upkeep.catalog_copy import Home, HomeCopy

    for place in (source, target):
        if place.startswith(("http://", "https://")):
            raise Unsupported(
                f"{public_url(place)}: a server has no fence, and no operation that copies entries as they are. Give "
                "the root of its catalog, or the manifest store of its entries"
            )
    urls = [place if names_manifest_store(place) else None for place in (source, target)]
    roots = [place for place, url in zip((source, target), urls, strict=True) if url is None]
    roots += [] if root is None else [root]
    if not roots:
        raise InvalidInput("source and target are manifest stores; give the root of the catalog, too")
    if mode is not None and mode not in MODES:
        raise InvalidInput(f"unknown mode {mode!r}; choose {', '.join(MODES)}")
    config = ConnectionConfig.resolve(
        given(
            root=roots[0],
            commit_store=commit_store,
            storage_options=storage_options,
            commit_store_options=commit_store_options,
        )
    )
    config = attrs.evolve(config, mode=mode or config.mode, manifest_store=None)
    objects, root_key = objects_of(config)
    for other in roots[1:]:
        _require_one_root(objects.root_uri + root_key, other, config.storage_options)
    stores = [
        None
        if url is None
        else open_unclaimed(url, config.manifest_store_options if own is None else own, objects, root_key)
        for url, own in zip(urls, (source_options, target_options), strict=True)
    ]
    require_claim_of(objects, root_key, [store.url for store in stores if store is not None])
    with ExitStack() as opened:
        catalog = opened.enter_context(assembled(config, objects, root_key, stores[0]))
        own = directory_of(catalog)
        into = config if config.mode == V1 else attrs.evolve(config, mode=V2)  # compatible mode shows the same table
        left, taken = (
            Home(
                store.url,
                store,
                _is_created,
                partial(take_root, objects, root_key, store.url),
                require_possible=store.require_possible,
                may_remove=store.may_remove,
            )
            if store is not None
            else Home(
                own.places.root_uri,
                own.ledger.manifest
                if at == 0
                else in_directory(
                    into, own.commits, root_key, own.places.storage_options, manifest_table(objects, root_key)
                ),
                _is_unclaimed if config.mode == V1 else _is_created,
                partial(return_root, objects, root_key),
                partial(show_tables, objects, root_key),
            )
            for at, store in enumerate(stores)
        )
        opened.callback(taken.store.close)
        if left.name == taken.name:
            raise InvalidInput(
                f"source and target are both {left.name}. To enter the V1 tables of a directory in its manifest "
                "table, call migrate"
            )
        copy = HomeCopy(own.ledger, own.places, own.removal.clones, left, taken, f"{_CHANCE.getrandbits(128):032x}")
        if give_up:
            return copy.give_up(dry_run=dry_run)
        rows = None if to_commit_store is None else own.open_rows(to_commit_store)
        return copy.run(rows, writers_stopped=writers_stopped, dry_run=dry_run, progress=progress)


def adopt_root(
    config: ConnectionConfig, *, original: bool, force: bool = False, dry_run: bool = False
) -> Adoption | None:
    """Make a catalog outside of the directory the one of a copied or moved root.

    See `lancekeep.adapters.manifest_stores.adoption.adopt_root`.

    Returns:
        What was adopted; None if the entries are in the directory, or there is nothing to adopt.
    """
    if config.manifest_store is None:
        return None
    objects, root_key = open_object_store(config.require_root(), config.storage_options)
    opened = {objects.root_uri: objects}

    def properties_at(uri: str) -> Mapping[str, str]:
        place = outside(uri, opened, config.storage_options)
        return DirectoryListing(place.objects, place.key).view().properties

    store = open_adoptable(config.manifest_store, config.manifest_store_options, objects, root_key)
    if store is None:
        return None
    with closing(store):
        return adopt(store, objects, root_key, properties_at, original=original, force=force, dry_run=dry_run)


def _is_created(view: CatalogView) -> bool:
    return view.version > 0


def _is_unclaimed(view: CatalogView) -> bool:
    return MANIFEST_STORE_PROPERTY not in view.properties


def _require_one_root(root: str, other: str, storage_options: Mapping[str, str]) -> None:
    objects, key = open_object_store(other, storage_options)
    if objects.root_uri + key != root:
        raise InvalidInput(
            f"{public_url(other)} is another root than {root}. A catalog names its tables by paths below its root, and "
            "a copy moves no tables: copy the directory with the tools of the storage instead, then adopt_identity"
        )
