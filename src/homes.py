"""Move catalogs between homes, which hold their entries, and back them up."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
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
from lancekeep.adapters.object_stores.local import LocalObjectStore
from lancekeep.adapters.rest.home import ServedHome
from lancekeep.adapters.rest.server import RestServer
from lancekeep.adapters.rest.settings import RestSettings
from lancekeep.application.catalog import directory_of
from lancekeep.application.entries.outside import OutsideDirectory
from lancekeep.application.retry import Retry
from lancekeep.composition import assembled, in_directory, manifest_table, objects_of, outside
from lancekeep.config import REMEMBERED, ConnectionConfig, given, public_url
from lancekeep.config_settings import MODES, V1, V2
from lancekeep.domain.catalog import CatalogView
from lancekeep.domain.dropped import dropped_tables
from lancekeep.domain.errors import InvalidInput, LancekeepError, Refused
from lancekeep.domain.home_copy import COPY_PROPERTY, MANIFEST_STORE_PROPERTY
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.identity import identity_in
from lancekeep.domain.manifest_entry import TABLE
from lancekeep.ports.object_store import ObjectStore

if TYPE_CHECKING:
    from lancekeep.application.certification import Progress
    from lancekeep.application.upkeep.backup_report import BackupReport
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


def backup(
    source: str,
    target: str,
    *,
    storage_options: Mapping[str, str] | None = None,
    target_storage_options: Mapping[str, str] | None = None,
    accept_loss: bool = False,
    progress: Progress = lambda done, total, name: None,
) -> BackupReport:
    """Copy a catalog to another place while its readers and writers continue.

    Everything below the root is copied.

    The copy is a catalog of its own: each of its tables has the latest version that it had when the call began, or a
    later one, with every file of this version. If the target is an earlier backup of the same root, it becomes the
    present backup: files that never change are copied once, and files that the catalog has no longer are removed.

    Entries and version rows that are in a database are not below the root: back the database up before this call.
    Files outside of the root, to which `Upkeep.move_fragments` moves them, are not copied.

    If the backup is interrupted, the target is no backup until the same call has completed it.

    Args:
        source: The root of the catalog, a path or a URI; also a backup, to restore it into an empty place.
        target: An empty place, or an earlier backup of the same root.
        storage_options: The options of the storage of the source; without ``target_storage_options`` also of the
            target.
        target_storage_options: The options of the storage of the target.
        accept_loss: Copy what is left of a backup that has lost files.
        progress: Called before each step.

    Returns:
        What was copied, and which tables were dropped, moved or cleaned up in each attempt.

    Raises:
        InvalidInput: One place is below the other.
        NotFound: The source holds no table.
        Refused: The target holds something else than a backup of the source, or was written to since, or another
            process writes a backup to it; the source is an unfinished backup; or it is another catalog than before, or
            has lost what the backup holds. Nothing was changed.
        Damaged: The source is a backup with a file that is missing, or that has another size than when the backup was
            complete. Nothing was changed.
        ConcurrentModification: Another process took the target over while this one was stopped, or wrote to the backup
            that this one restored.
    """
    from lancekeep.application.upkeep.backup import Backup

    config = ConnectionConfig.resolve(given(root=source, storage_options=storage_options))
    options = config.storage_options
    others = options if target_storage_options is None else target_storage_options
    left, right = (_place(*place) for place in ((config.require_root(), options), (target, others)))
    one, other = (f"{place.objects.root_uri}{place.key}".rstrip("/") + "/" for place in (left, right))
    is_one_server = options == others or isinstance(left.objects, LocalObjectStore)
    if is_one_server and (one.startswith(other) or other.startswith(one)):
        raise InvalidInput(f"{right.uri} is not outside of {left.uri}. Choose another place for the backup")
    duplicate = _duplicate(left.objects, right.objects, options == others)

    def locations(place: OutsideDirectory) -> list[str]:
        view = manifest_table(place.objects, place.key).view()
        kept = [dropped.table.location for dropped in dropped_tables(view, ObjectId())]
        return kept + [entry.location for entry in view.all_of(TABLE) if entry.location is not None]

    def identity(place: OutsideDirectory) -> str | None:
        for entries in (manifest_table(place.objects, place.key), DirectoryListing(place.objects, place.key)):
            with suppress(LancekeepError):  # a damaged place has no identity
                if (found := identity_in(entries.view().properties)) is not None:
                    return found.id
        return None

    try:
        return Backup(
            left,
            right,
            Retry(),
            duplicate=duplicate,
            locations=locations,
            identity=identity,
            accept_loss=accept_loss,
            progress=progress,
        ).run()
    finally:
        left.objects.close()
        right.objects.close()


def _place(root: str, options: Mapping[str, str]) -> OutsideDirectory:
    objects, key = open_object_store(root, options)
    return OutsideDirectory(objects, key, uri_for_lance(objects, key))


def _duplicate(source: ObjectStore, target: ObjectStore, is_one_server: bool) -> Callable[[str, str], None] | None:
    """Return the function by which the storage copies a file from one place to another; None if it cannot."""
    if isinstance(source, LocalObjectStore) and isinstance(target, LocalObjectStore):
        return target.duplicate
    if not is_one_server:
        return None
    if source.root_uri == target.root_uri:
        return target.copy
    if source.root_uri.startswith("s3://"):
        from lancekeep.adapters.object_stores.s3 import S3ObjectStore

        if isinstance(target, S3ObjectStore):
            return partial(target.duplicate, source.root_uri.removeprefix("s3://").rstrip("/"))
    return None


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


def adopt_with_store(config: ConnectionConfig, *, original: bool, dry_run: bool = False) -> str | None:
    """Adopt the identity of a copied or moved catalog, with another commit store.

    The catalog gets the commit store of the configuration. The commit store of the original is not asked, so it may be
    gone. See `Upkeep.adopt_identity`.

    Returns:
        The former commit store; None if the catalog remembers none, or already this one. Then nothing was changed.

    Raises:
        CommitStoreMismatch: The catalog was not copied, and another commit store manages its versions.
    """
    objects, root_key = objects_of(config)
    with assembled(config, objects, root_key, None) as catalog:
        former = directory_of(catalog).ledger.take_store(dry_run=True)
        if former is not None and not dry_run:
            catalog.upkeep.adopt_identity(original=original)
        return former


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
