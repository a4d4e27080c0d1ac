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
from lancekeep.adapters.manifest_stores.claimed import (
    ManifestStoreElsewhere,
    require_claim_of,
    return_root,
    show_tables,
    take_root,
)
from lancekeep.adapters.manifest_stores.directory_listing import DirectoryListing
from lancekeep.adapters.object_stores import open_object_store, uri_for_lance
from lancekeep.adapters.rest.home import ServedHome
from lancekeep.adapters.rest.server import RestServer
from lancekeep.adapters.rest.settings import RestSettings
from lancekeep.application.catalog import directory_of
from lancekeep.composition import assembled, in_directory, manifest_table, objects_of, outside
from lancekeep.config import REMEMBERED, ConnectionConfig, given, public_url
from lancekeep.config_settings import MODES, V1, V2
from lancekeep.domain.catalog import CatalogView
from lancekeep.domain.errors import InvalidInput, LancekeepError, Refused
from lancekeep.domain.home_copy import COPY_PROPERTY, MANIFEST_STORE_PROPERTY
from lancekeep.ports.object_store import ObjectStore

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

    A home is the directory of the root, a manifest store elsewhere, or a server. The directories of the tables stay
    where they are, and so do their versions, tags and branches. Everything that the catalog holds is copied:
    namespaces, tables and their properties, dropped tables that can be brought back, protection, views, the identity.

    Readers and writers continue while entries are copied. Then a fence refuses every operation in the source, also of
    processes that have it open; the last changes follow, and the target becomes the home. The fence stays, and names
    the target. At no moment are there two homes.

    A server of the namespace specification has no fence. From a server, the caller states that writers are stopped. To
    a server, the fence precedes the copy, and versions that are in a commit store are refused. The tables are checked
    in the storage, so ``root`` and its options are needed.

    If the copy is interrupted at any point, call it again to complete it.

    Args:
        source: The home of the catalog: a root (a path or a URI), whose directory holds the entries, the URL of a
            manifest store, or the URI of a server (``https://…``).
        target: The home that it gets: the same root, the URL of a manifest store, or the URI of a server. It is empty,
            or was a home of this catalog before. A server may have other tables.
        root: The root, if neither ``source`` nor ``target`` is one.
        mode: The mode in which the directory is opened, as of `connect`. In compatibility mode, tables that are only
            directories are entered in the manifest table first.
        commit_store: The commit store of the source; by default the one that the catalog remembers.
        to_commit_store: The commit store to which the versions move afterwards, as by `Upkeep.change_commit_store`. By
            default they stay.
        storage_options: As of `connect`.
        commit_store_options: Options of both commit stores.
        source_options: Options of the manifest store of the source, such as credentials; of a server, the settings of
            its client without ``rest.``, such as ``token``, and ``root``: the root of a server that takes only
            locations relative to it.
        target_options: The same for the target. With ``give_up``, ``gone`` set to ``true`` states that the server is
            gone permanently: it is not asked, and its entries stay in it.
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
    from lancekeep.application.upkeep.catalog_copy import HomeCopy
    from lancekeep.application.upkeep.copy_plan import Home

    is_gone = False
    if _is_server(target) and target_options is not None:
        is_gone = _is_gone(target_options.get("gone", "false"), give_up=give_up)
        target_options = {name: value for name, value in target_options.items() if name != "gone"}
    urls = [place if _is_server(place) or names_manifest_store(place) else None for place in (source, target)]
    roots = [place for place, url in zip((source, target), urls, strict=True) if url is None]
    roots += [] if root is None else [root]
    if not roots:
        raise InvalidInput("neither source nor target is a root; give the root of the catalog, too")
    if to_commit_store is not None and _is_server(target):
        raise InvalidInput(f"{public_url(target)}: a server has a commit store of its own; leave to_commit_store out")
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
    stores: list[ManifestStoreElsewhere | ServedHome | None] = []
    for url, given_options in zip(urls, (source_options, target_options), strict=True):
        if url is None:
            stores.append(None)
        elif _is_server(url):
            stores.append(_served(url, given_options or {}, objects, root_key, config.storage_options, ask=not is_gone))
        else:
            options = config.manifest_store_options if given_options is None else given_options
            stores.append(open_unclaimed(url, options, objects, root_key))
    require_claim_of(objects, root_key, [store.url for store in stores if store is not None])
    if isinstance(stores[0], ServedHome):
        _require_no_catalog(stores[0], objects, root_key)
    with ExitStack() as opened:
        catalog = opened.enter_context(assembled(config, objects, root_key, stores[0]))
        own = directory_of(catalog)
        into = config if config.mode == V1 else attrs.evolve(config, mode=V2)  # compatible mode shows the same table

        def home_at(at: int) -> Home:
            store = stores[at]
            if store is None:
                table = manifest_table(objects, root_key)
                return Home(
                    own.places.root_uri,
                    own.ledger.manifest
                    if at == 0
                    else in_directory(into, own.commits, root_key, own.places.storage_options, table),
                    _is_unclaimed if config.mode == V1 else _is_created,
                    partial(return_root, objects, root_key),
                    partial(show_tables, objects, root_key),
                )
            elsewhere = Home(
                store.url,
                store,
                _is_created,
                partial(take_root, objects, root_key, store.url),
                require_possible=store.require_possible,
                may_remove=store.may_remove,
            )
            if isinstance(store, ServedHome):
                there = attrs.evolve(elsewhere, fault_of=store.fault_of, served=True)
                return there if is_gone else attrs.evolve(there, leave=store.leave)
            return elsewhere

        left, taken = home_at(0), home_at(1)
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


def _is_server(place: str) -> bool:
    return place.startswith(("http://", "https://"))


def _is_gone(gone: str, *, give_up: bool) -> bool:
    """Return whether the server of the target is gone permanently, as the caller states."""
    if gone not in ("true", "false") or (gone == "true" and not give_up):
        raise InvalidInput(
            f"the option gone of the server is {gone!r}; give true, and only with give_up, if the server will not come "
            "back with the entries that it has"
        )
    return gone == "true"


def _served(
    uri: str,
    options: Mapping[str, str],
    objects: ObjectStore,
    root_key: str,
    storage_options: Mapping[str, str],
    *,
    ask: bool,
) -> ServedHome:
    """Return the entries of a server.

    Args:
        uri: The URI of the server.
        options: Settings of the client without ``rest.``; ``root`` is the root of the server, if it takes only
            locations relative to its root.
        objects: The object store of the tables.
        root_key: The key of the catalog's root.
        storage_options: The options of the object store.
        ask: Ask the server first whether it answers.
    """
    own = {name: value for name, value in options.items() if name != "root"}
    resolved = ConnectionConfig.resolve(given(root=uri, rest_options=own))
    server = RestServer(RestSettings.of({**resolved.rest_options, "uri": uri}))
    if ask:
        try:
            server.honours_keys()  # fail now, not in the middle
        except LancekeepError as error:
            error.add_note(
                "If a copy to this server was stopped, and the server is gone permanently, end the copy with "
                "give_up=True (--give-up) and the option gone=true of the server."
            )
            raise
    if "root" not in options:
        return ServedHome(
            server, objects, root_key, lambda location: uri_for_lance(objects, f"{root_key}/{location}".lstrip("/"))
        )
    above, key = open_object_store(options["root"], storage_options)
    if above.root_uri != objects.root_uri or not f"{root_key}/".startswith(f"{key}/" if key else ""):
        raise InvalidInput(
            f"the root of the server is {public_url(options['root'])}; expected one that contains "
            f"{objects.root_uri}{root_key}, because the tables stay where they are"
        )
    within = root_key.removeprefix(key).lstrip("/")
    return ServedHome(server, objects, root_key, lambda location: f"{within}/{location}".lstrip("/"))


def _require_no_catalog(server: ServedHome, objects: ObjectStore, root_key: str) -> None:
    """Raise `Refused` if the catalog of a server has its entries in the root: then those can be fenced."""
    if server.view().version:
        return  # the catalog moved to the server
    entries = manifest_table(objects, root_key).view()
    recorded = DirectoryListing(objects, root_key).view()
    is_own = entries.version > 0 and COPY_PROPERTY not in entries.properties
    if is_own or (recorded.remembers and MANIFEST_STORE_PROPERTY not in recorded.properties):
        raise Refused(
            f"{objects.root_uri}{root_key} holds a catalog whose entries are in the directory, which {server.url} may "
            "serve. Name the directory as the source: it can be fenced while writers continue"
        )


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
