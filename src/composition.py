"""The composition root: from a configuration to a catalog."""

from __future__ import annotations

import getpass
import os
import random
import socket
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from lancekeep.adapters.commit_stores import open_commit_store
from lancekeep.adapters.lance.hashing import file_digest
from lancekeep.adapters.manifest_stores import open_manifest_store
from lancekeep.adapters.manifest_stores.claimed import (
    ClaimedManifestStore,
    ManifestStoreElsewhere,
    require_entries_in,
)
from lancekeep.adapters.manifest_stores.compatible import CompatibleManifestStore
from lancekeep.adapters.manifest_stores.directory_listing import DirectoryListing
from lancekeep.adapters.manifest_stores.lance_table import LanceManifestStore
from lancekeep.adapters.manifest_stores.snapshot import ManifestSnapshot
from lancekeep.adapters.manifest_stores.table_indexes import refresh_indexes
from lancekeep.adapters.object_stores import open_object_store, uri_for_lance
from lancekeep.adapters.rest.settings import HEADER
from lancekeep.application.bootstrap import bootstrap
from lancekeep.application.catalog import Catalog, directory_of
from lancekeep.application.commits.table_commits import TableCommits
from lancekeep.application.entries.ledger import COMMIT_STORE_PROPERTY
from lancekeep.application.entries.outside import OutsideDirectory
from lancekeep.application.entries.places import Places
from lancekeep.application.retry import Retry
from lancekeep.config import REMEMBERED, ConnectionConfig, given, located, public_url, without_catalog
from lancekeep.config_settings import ARGUMENT, V1, V2
from lancekeep.domain.automatic_maintenance import AUTO
from lancekeep.domain.catalog import CatalogView
from lancekeep.domain.errors import (
    InvalidInput,
    LancekeepError,
    MissingExtra,
    Refused,
    StoreUnavailable,
    UnsafeStore,
    UnsafeStoreWarning,
    Unsupported,
)
from lancekeep.domain.home_copy import MANIFEST_STORE_PROPERTY
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.layout import DatasetRoot
from lancekeep.domain.manifest_entry import TABLE
from lancekeep.domain.table import MANIFEST_DIRECTORY
from lancekeep.ports.commit_store import ExternalCommitStore
from lancekeep.ports.manifest_store import ManifestStore
from lancekeep.ports.object_store import ObjectStore
from lancekeep.store_urls import StoreUrl

if TYPE_CHECKING:
    from lancekeep.adapters.lance.engine import LanceEngine
    from lancekeep.application.certification import Certificate, Progress
    from lancekeep.application.rows.versions import Versions
    from lancekeep.ports.committers import Committers

CONDITIONAL_PUT = "conditional-put://"
OWN_STORAGE_OPTIONS = frozenset({"fsync"})
"""Storage options that the native engine does not know."""

_CHANCE = random.Random()
"""Seeded by the system only once, because each such request makes a thread that creates tables lose its turn."""

os.register_at_fork(after_in_child=_CHANCE.seed)


def connect(
    root: str | None = None,
    *,
    catalog: str | None = None,
    impl: str | None = None,
    mode: str | None = None,
    commit_store: str | None = None,
    manifest_store: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    commit_store_options: Mapping[str, str] | None = None,
    manifest_store_options: Mapping[str, str] | None = None,
    committer: str | None = None,
    inline_optimization: bool | None = None,
    unsafe: bool | None = None,
    maintenance: str | None = None,
    uri: str | None = None,
    headers: Mapping[str, str] | None = None,
    api_key: str | None = None,
    token: str | None = None,
    properties: Mapping[str, str] | None = None,
) -> Catalog:
    """Open the catalog below ``root``, or of a server; opening writes nothing.

    The first change creates a catalog if there is none. The environment (``LANCEKEEP_*``) and ``lancekeep.toml`` give
    defaults for the arguments that are left out; see `ConnectionConfig`.

    S3 servers other than AWS are probed before the first change, once per process, server and bucket: they must keep
    the condition of a create, in a race too. The probe sends 21 requests on an object ``.lancekeep-probe-<uuid>`` below
    the root and removes it. A server without the condition needs the storage option ``conditional_put=disabled`` and a
    commit store that never forgets.

    Args:
        root: A URI (``file://``, ``s3://``, or any scheme of fsspec), or an absolute or relative path.
        catalog: The name of a configured catalog, in place of ``root``.
        impl: The implementation of the namespace: ``dir`` for a directory, ``postgres`` for entries and version rows
            in a PostgreSQL database, ``hive`` or ``hive3`` for entries in a Hive Metastore, ``rest`` for a server. By
            default ``rest`` if the root begins with ``http://`` or ``https://``.
        mode: Where the catalog's entries are. ``compatible`` (the default): in the manifest table; V1 directories
            count as tables of the root, too, and new tables of the root get V1 names, ``{name}.lance``. ``v2``: in the
            manifest table alone. ``v1``: there is no manifest table, and every directory ``{name}.lance`` is a table,
            without namespaces, properties and rename.
        commit_store: The URL of the store that decides which version is current (``sqlite:///…``, ``file:///…``,
            ``redis://…``, ``rediss://…``, ``postgresql://…``, ``hive://…``, ``dynamodb://…``, ``memory://…``, ``conditional-put://``).
            Without one,
            tables are storage-managed: native writers commit by the storage's own atomic primitive. ``remembered``
            stands for the commit store that the catalog names; its credentials come from ``commit_store_options``,
            the environment and ``lancekeep.toml``.
        manifest_store: The URL of the store that holds the catalog's entries (``postgresql://…?catalog=NAME``,
            ``hive://HOST:9083``, or of an installed adapter). Without one, the entries are in the root, as ``mode``
            says.
        storage_options: Options of the object store, in the spelling of the native engine.
        commit_store_options: Options of the commit store, such as credentials, which do not belong in a URL.
        manifest_store_options: The same for the manifest store.
        committer: The name that `TableVersions.history` shows; ``user@host`` by default.
        inline_optimization: Update the indexes of the manifest table every 256 changes, as `Upkeep.optimize` does.
        unsafe: Warn (`UnsafeStoreWarning`) instead of raising `UnsafeStore`. Only for one writer at a time, which may
            lose its last commits. The catalog does not remember it.
        maintenance: ``auto``: a thread compacts the tables to which this process commits, refreshes their indexes and
            removes their old versions, until the catalog is closed. ``off`` (the default): only you do.
        uri: The URI of the server, for ``impl="rest"``; another name of ``root``. For ``impl="postgres"`` and
            ``impl="hive"``, another name of ``manifest_store``; a Metastore may be ``thrift://HOST:9083``, too.
        headers: Headers of every request to the server.
        api_key: The API key for the server.
        token: The bearer token for the server.
        properties: The same settings by their property names, such as ``dir.root``, ``storage.aws_region`` and
            ``rest.read_timeout``.

    Raises:
        InvalidInput, MissingExtra: A setting cannot be understood, or its adapter is not installed.
        CommitStoreMismatch: Another commit store manages the catalog's versions.
        UnsafeStore: Nothing in this configuration makes a commit atomic; the message says what to configure. Changes
            raise it, too, if the server turns out to ignore the condition.
        StoreUnavailable, AccessDenied: A store cannot be reached (within 10 s).
    """
    root, manifest_store, impl = located(root, manifest_store, impl, uri)
    rest_options = {f"{HEADER}{name}": value for name, value in (headers or {}).items()}
    rest_options |= {name: value for name, value in (("api_key", api_key), ("token", token)) if value is not None}
    config = ConnectionConfig.resolve(
        given(
            properties,
            root=root,
            catalog=catalog,
            impl=impl,
            mode=mode,
            commit_store=commit_store,
            manifest_store=manifest_store,
            storage_options=storage_options,
            commit_store_options=commit_store_options,
            manifest_store_options=manifest_store_options,
            rest_options=rest_options,
            committer=committer,
            inline_optimization=inline_optimization,
            unsafe=unsafe,
            maintenance=maintenance,
        )
    )
    return open_catalog(config)


@attrs.frozen
class Sharing:
    """How processes agree which one commits the appends of a table.

    Attributes:
        directory: Where the processes of this host do; see `UnixCommitters`. None if this process is the only one.
        cluster: How processes of several hosts do; None if this host is the only one.
    """

    directory: Path | None = None
    cluster: Cluster | None = None


@attrs.frozen
class Cluster:
    """How the processes of several hosts reach each other.

    The attributes are the arguments of `TlsLinks`.
    """

    host: str
    ports: range
    certificate: str
    private_key: str
    authority: str


def open_catalog(config: ConnectionConfig, sharing: Sharing | None = None) -> Catalog:
    """Open the catalog of a resolved configuration; see `connect`.

    Args:
        config: The configuration.
        sharing: How processes agree which one commits the appends of a table; ignored for the catalog of a server.

    Raises:
        InvalidInput: A setting is not valid, or the cluster needs what the storage lacks.
    """
    try:
        return _open_server(config) if config.impl == "rest" else _open(config, sharing)
    except LancekeepError as error:
        config.explain(error)
        raise


def _open_server(config: ConnectionConfig) -> Catalog:
    if config.commit_store is not None or config.commit_store_options:
        raise InvalidInput("impl 'rest' has no commit store: the server has one; leave commit_store out")
    if config.manifest_store is not None or config.manifest_store_options:
        raise InvalidInput("impl 'rest' has no manifest store: the server has one; leave manifest_store out")
    if config.maintenance == AUTO and config.sources.get("maintenance") == ARGUMENT:
        raise InvalidInput("impl 'rest' maintains nothing: the server does; leave maintenance out")
    # The models of `lance_namespace` take longer to import than the rest of Lancekeep.
    from lancekeep.adapters.lance.engine import LanceEngine
    from lancekeep.adapters.lance.remote import ServedNamespace
    from lancekeep.adapters.rest.catalog import commit_key, served_catalog
    from lancekeep.adapters.rest.server import RestServer
    from lancekeep.adapters.rest.settings import RestSettings
    from lancekeep.adapters.rest.tables import Descriptions

    own = {name: value for name, value in config.storage_options.items() if name not in OWN_STORAGE_OPTIONS}
    server = RestServer(RestSettings.of({**config.rest_options, "uri": config.require_root()}))
    server.honours_keys()  # fail now, not at the first change
    namespace = ServedNamespace(server, Descriptions(server), commit_key)

    def engine(table: ObjectId, vended: Mapping[str, str]) -> LanceEngine:
        return LanceEngine(namespace, {**own, **vended}, lambda base: namespace)

    return served_catalog(server, engine, namespace, own)


def _open(config: ConnectionConfig, sharing: Sharing | None = None) -> Catalog:
    objects, root_key = objects_of(config)
    elsewhere = None
    if config.manifest_store is not None:
        elsewhere = open_manifest_store(config.manifest_store, config.manifest_store_options, objects, root_key)
    try:
        catalog = assembled(config, objects, root_key, elsewhere, sharing)
        ledger = directory_of(catalog).ledger
        properties = ledger.view().properties
    except LancekeepError as error:
        is_silent = isinstance(error, StoreUnavailable) and config.commit_store in (None, CONDITIONAL_PUT)
        if elsewhere is None and not is_silent:  # that the entries are elsewhere is the better reason
            entries = _over(manifest_table(objects, root_key), objects, root_key)
            require_entries_in(f"{objects.root_uri}{root_key}", None, entries.view().properties)
        raise
    if config.manifest_store is None:
        if config.mode == V2 and COMMIT_STORE_PROPERTY not in properties:
            properties = DirectoryListing(objects, root_key).view().properties  # of V1 or compatible mode
            if COMMIT_STORE_PROPERTY in properties:
                ledger.require_store(properties[COMMIT_STORE_PROPERTY])
        require_entries_in(catalog.root_uri, None, properties)
    return catalog


def objects_of(config: ConnectionConfig) -> tuple[ObjectStore, str]:
    unsafe = config.unsafe
    emulates = unsafe and config.commit_store in (None, REMEMBERED, CONDITIONAL_PUT)
    return open_object_store(
        config.require_root(), config.storage_options, probe=True, unsafe=unsafe, emulate_create=emulates
    )


def assembled(
    config: ConnectionConfig,
    objects: ObjectStore,
    root_key: str,
    elsewhere: ClaimedManifestStore | ManifestStoreElsewhere | None,
    sharing: Sharing | None = None,
) -> Catalog:
    """Return the catalog of a configuration, whatever its home and commit store.

    Args:
        config: The configuration.
        objects: The object store of the root.
        root_key: The key of the root.
        elsewhere: The store of the entries; None if they are in the directory.
        sharing: As of `open_catalog`.
    """
    root, commit_store, unsafe = config.require_root(), config.commit_store, config.unsafe
    options, commit_store_options = config.storage_options, config.commit_store_options

    def open_rows(url: str, options: Mapping[str, str] | None = None) -> ExternalCommitStore:
        rows = open_commit_store(url, commit_store_options if options is None else options, objects)
        try:
            _require_safe(objects, rows)
        except UnsafeStore as error:
            if not unsafe:
                raise
            _warn(str(error))
        return rows

    table = manifest_table(objects, root_key)
    if commit_store == REMEMBERED:
        commit_store = _remembered((elsewhere or _over(table, objects, root_key)).view())
        if elsewhere is not None and commit_store == without_catalog(elsewhere.url) and not commit_store_options:
            # One database holds both, so one user and one set of options reach it.
            commit_store = without_catalog(config.manifest_store or "")
            commit_store_options = {k: v for k, v in config.manifest_store_options.items() if k != "catalog"}
    if objects.root_uri.startswith("memory:") and commit_store not in (None, CONDITIONAL_PUT):
        raise InvalidInput(
            f"root {root}: the native engine cannot read the memory of this process, so no commit store can commit "
            "what it writes. Use a directory (a temporary one for a trial), or leave commit_store out"
        )
    rows = open_rows(commit_store or CONDITIONAL_PUT)
    native_options = {key: value for key, value in options.items() if key not in OWN_STORAGE_OPTIONS}
    direct = open_rows(CONDITIONAL_PUT, {}) if objects.guarantees.atomic_create else None
    commits = TableCommits(objects, rows, config.committer or _committer(), Retry(), direct)
    opened = {objects.root_uri: objects}
    places = Places(
        objects,
        root_key,
        uri_of=partial(uri_for_lance, objects),
        storage_options=native_options,
        entropy=lambda: f"{_CHANCE.getrandbits(32):08x}",
        outside=lambda uri: outside(uri, opened, options),
        opened=opened.values(),
    )
    manifest = elsewhere or in_directory(config, commits, root_key, native_options, table)

    def engine_over(versions: Versions) -> LanceEngine:
        from lancekeep.adapters.lance.callbacks import CallbackNamespace  # a process that lists tables needs no engine
        from lancekeep.adapters.lance.engine import LanceEngine

        callbacks = CallbackNamespace(versions)
        return LanceEngine(
            callbacks,
            native_options,
            callbacks.based_on,
            before_commit=versions.require_safe,
            on_open=versions.base_paths.require,
        )

    def properties_at(uri: str) -> Mapping[str, str]:
        place = places.outside(uri)
        entries = _over(manifest_table(place.objects, place.key), place.objects, place.key)
        properties = entries.view().properties
        url = properties.get(MANIFEST_STORE_PROPERTY)
        if url is None:
            return properties
        with closing(open_manifest_store(url, config.manifest_store_options, place.objects, place.key)) as elsewhere:
            try:
                return elsewhere.view().properties
            except Refused:  # the catalog has another root by now
                return {}

    committers = None if sharing is None else _committers(sharing, places, lambda: _identity(catalog))
    catalog = bootstrap(
        commits,
        places,
        manifest,
        engine_over,
        managed=commit_store is not None,
        new_id=lambda: f"{_CHANCE.getrandbits(128):032x}",
        file_digest=partial(file_digest, storage_options=native_options),
        open_rows=open_rows,
        properties_at=properties_at,
        write_snapshot=None if elsewhere is None else ManifestSnapshot(elsewhere.url, objects, root_key).write,
        maintained=config.maintenance == AUTO,
        committers=committers,
    )
    try:
        rows.latest(places.probe_uri)  # fail now, not at the first commit
        manifest.view()
    except BaseException:
        if committers is not None:
            committers.close()  # it has a port, which the next attempt to open the catalog needs
        raise
    return catalog


def _committers(sharing: Sharing, places: Places, identity: Callable[[], str]) -> Committers | None:
    local: Committers | None = None
    if sharing.directory is not None:
        from lancekeep.adapters.committers.unix import UnixCommitters  # only servers need it

        local = UnixCommitters(sharing.directory)
    if sharing.cluster is None:
        return local
    if not places.objects.guarantees.atomic_create:
        raise InvalidInput(
            f"{places.root_uri}: servers of a cluster agree by leases, which need storage with a create-only write; "
            "leave the settings server.cluster_* out"
        )
    from lancekeep.adapters.committers.tls import TlsLinks
    from lancekeep.application.upkeep.shared_committers import SharedCommitters

    links = TlsLinks(**attrs.asdict(sharing.cluster))
    return SharedCommitters(local, links, places.objects, places.prefix, identity, time.monotonic)


def _identity(catalog: Catalog) -> str:
    found = directory_of(catalog).ledger.identity()
    return "" if found is None else found.id


def manifest_table(objects: ObjectStore, root_key: str) -> LanceManifestStore:
    """Return the manifest table of the catalog at a root, to read it."""
    return LanceManifestStore(objects, f"{root_key}/{MANIFEST_DIRECTORY}".lstrip("/"))


def _over(table: LanceManifestStore, objects: ObjectStore, root_key: str) -> ManifestStore:
    """Return the entries of the catalog at a root, in any mode, to read them."""
    return CompatibleManifestStore(table, DirectoryListing(objects, root_key))


def _remembered(view: CatalogView) -> str | None:
    """Return the commit store that the entries name; None if the storage manages the versions.

    Raises:
        StoreUnavailable: It is a file of another machine. An empty file in its place would permit other versions.
    """
    url = view.properties.get(COMMIT_STORE_PROPERTY)
    if url is None or not url.startswith(("sqlite:", "file:")):
        return url
    is_here = os.path.exists(StoreUrl.parse(url, {}).absolute_path())
    if not is_here and next(view.all_of(TABLE), None) is not None:
        raise StoreUnavailable(
            f"the catalog remembers the commit store {url}, which does not exist on this machine. Run it where the "
            "commit store is, or name the commit store"
        )
    return url


def in_directory(
    config: ConnectionConfig,
    commits: TableCommits,
    root_key: str,
    native_options: Mapping[str, str],
    known: LanceManifestStore,
) -> ManifestStore:
    """Open the manifest store of the mode, in the directory of the root."""
    objects, mode = commits.objects, config.mode
    native_commits = objects.guarantees.atomic_create and mode != V1
    if config.inline_optimization and not native_commits:
        raise InvalidInput(
            f"inline optimization of {config.root} in mode {mode!r}: there are no indexes that could be built"
        )
    listing = DirectoryListing(objects, root_key)
    if mode == V1:
        return listing
    key = f"{root_key}/{MANIFEST_DIRECTORY}".lstrip("/")
    history = DatasetRoot(key, objects.root_uri + key)
    table = LanceManifestStore(
        objects,
        key,
        publish=None if native_commits else partial(commits.publish, history),
        forget=None if native_commits else partial(commits.rows.delete, history.base_uri),
        index=partial(refresh_indexes, uri_for_lance(objects, key), native_options),
        index_inline=config.inline_optimization,
        known=known,
    )
    return table if mode == V2 else CompatibleManifestStore(table, listing)


def outside(uri: str, opened: dict[str, ObjectStore], options: Mapping[str, str]) -> OutsideDirectory:
    """Open a directory outside of a catalog with the options of the catalog.

    A store that is new is added to ``opened``: its connections serve later calls, until the catalog is closed.
    """
    is_local = "://" not in uri or uri.startswith("file:")
    if is_local and not uri.startswith(("/", "file:/")):
        raise InvalidInput(f"the base {uri!r} is neither an absolute path nor a URI")
    own = {name: options[name] for name in OWN_STORAGE_OPTIONS & options.keys()} if is_local else {}
    native = {name: value for name, value in options.items() if name not in OWN_STORAGE_OPTIONS}
    store, key = open_object_store(uri, native | own, opened=opened)
    store = opened.setdefault(store.root_uri, store)
    return OutsideDirectory(store, key, uri_for_lance(store, key))


def migrate_schema(commit_store: str, options: Mapping[str, str] | None = None) -> tuple[int, int]:
    """Create or update the tables of a PostgreSQL store.

    See `lancekeep.postgres.migrate.migrate_schema`.
    """
    try:
        from lancekeep.postgres.migrate import migrate_schema as migrate
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "psycopg":
            raise
        raise MissingExtra("PostgreSQL needs the package psycopg: pip install 'lancekeep[postgres]'") from error
    return migrate(commit_store, options)


def certify(
    root: str | None = None,
    *,
    catalog: str | None = None,
    commit_store: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    commit_store_options: Mapping[str, str] | None = None,
    progress: Progress = lambda done, total, name: None,
) -> Certificate:
    """Measure whether your own stores keep the guarantees that Lancekeep needs.

    Without a commit store this measures the storage's own condition, as native writers use it. Every check writes
    below ``{root}/.lancekeep-certify-<uuid>/`` and in histories of its own, which are removed at the end, also after
    Ctrl-C. What a commit store creates with its first row remains: the SQLite file, the DynamoDB table. Takes 500 to
    900 requests and writes 48 MiB.

    Args:
        root: As of `connect`, like the other settings.
        catalog: As of `connect`.
        commit_store: As of `connect`.
        storage_options: As of `connect`.
        commit_store_options: As of `connect`.
        progress: Called before each check with the number of checks done, their total, and the next one's name.

    Raises:
        InvalidInput, MissingExtra: As `connect`.
        UnsafeStore: ``conditional-put://`` was asked for, and the object store has no create-only write.
        StoreUnavailable, AccessDenied, NotFound: A store cannot be reached, or stopped answering.
    """
    from lancekeep.application.certification import measure

    config = ConnectionConfig.resolve(
        given(
            root=root,
            catalog=catalog,
            commit_store=commit_store,
            storage_options=storage_options,
            commit_store_options=commit_store_options,
        )
    )
    place, options = config.require_root(), config.storage_options
    if config.impl == "rest":
        raise Unsupported(
            f"{public_url(place)}: the REST protocol has no operation that measures the stores of a server. Give the "
            "root of the catalog's storage, with its commit store"
        )
    _, root_key = open_object_store(place, options)

    def open_objects() -> ObjectStore:
        return open_object_store(place, options)[0]

    def open_rows(objects: ObjectStore) -> ExternalCommitStore:
        return open_commit_store(config.commit_store or CONDITIONAL_PUT, config.commit_store_options, objects)

    nothing_decides = config.commit_store is None and not open_objects().guarantees.atomic_create
    return measure(open_objects, None if nothing_decides else open_rows, root_key, progress)


def _warn(reason: str, kind: type[Warning] = UnsafeStoreWarning) -> None:
    warnings.warn(reason, kind, stacklevel=3)


def _require_safe(objects: ObjectStore, rows: ExternalCommitStore) -> None:
    """Refuse two stores of which neither is sure to keep the first of two writes."""
    if not objects.guarantees.atomic_create and not rows.guarantees.remembers:
        raise UnsafeStore(
            f"{objects.root_uri} has no create-only write, and {rows.url} may forget a row in a failover: together "
            "they could lose an acknowledged commit. Use a commit store that never forgets (sqlite://, dynamodb://)."
        )


def _committer() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a process without a user name, as in some containers
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
