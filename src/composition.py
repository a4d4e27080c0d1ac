"""The composition root: from a configuration to a catalog."""

from __future__ import annotations

import difflib
import getpass
import os
import random
import socket
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from lancekeep.adapters.commit_stores import open_commit_store
from lancekeep.adapters.lance.engine import LanceEngine
from lancekeep.adapters.manifest_stores.compatible import CompatibleManifestStore
from lancekeep.adapters.manifest_stores.directory_listing import DirectoryListing
from lancekeep.adapters.manifest_stores.lance_table import LanceManifestStore
from lancekeep.adapters.manifest_stores.table_indexes import refresh_indexes
from lancekeep.adapters.object_stores import open_object_store, uri_for_lance
from lancekeep.application.catalog import Catalog
from lancekeep.application.certification import Certificate, Progress, measure
from lancekeep.application.ledger import COMMIT_STORE_PROPERTY, Ledger
from lancekeep.application.places import Places
from lancekeep.application.retry import Retry
from lancekeep.application.table_commits import TableCommits
from lancekeep.application.versions import Versions
from lancekeep.domain.errors import InvalidInput, UnsafeStore, UnsafeStoreWarning
from lancekeep.entrypoints.namespace.boundary import translating
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace
from lancekeep.ports.commit_store import ExternalCommitStore
from lancekeep.ports.manifest_store import ManifestStore
from lancekeep.ports.object_store import ObjectStore
from lancekeep.ports.table_engine import TableEngine

CONDITIONAL_PUT = "conditional-put://"
OWN_STORAGE_OPTIONS = frozenset({"fsync"})
"""Storage options that the native engine does not know."""

PROPERTIES = (
    "root",
    "commit_store",
    "committer",
    "manifest_enabled",
    "dir_listing_enabled",
    "dir_listing_to_manifest_migration_enabled",
    "inline_optimization_enabled",
    "vend_input_storage_options",
    "unsafe",
)
NATIVE_ONLY = (
    "commit_retries",
    "ops_metrics_enabled",
    "table_version_storage_enabled",
    "table_version_tracking_enabled",
    "vend_input_storage_options_refresh_interval_millis",
)
"""Properties of the native namespace that are accepted with a warning: a configuration can serve both namespaces."""

COMPATIBLE, V1, V2 = "compatible", "v1", "v2"
MODES = (COMPATIBLE, V1, V2)

_CHANCE = random.Random()
"""Seeded by the system once: each time it is asked, a thread among others that create tables loses its turn."""

os.register_at_fork(after_in_child=_CHANCE.seed)


def connect(
    root: str,
    *,
    mode: str = COMPATIBLE,
    commit_store: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    commit_store_options: Mapping[str, str] | None = None,
    committer: str | None = None,
    inline_optimization: bool = False,
    unsafe: bool = False,
) -> Catalog:
    """Open the catalog below ``root``; the first change makes one where there is none. Opening writes nothing.

    root: a URI (``file://``, ``s3://``, or any scheme of fsspec), or an absolute or relative path.
    mode: where the catalog's entries lie. ``compatible``: in the manifest table, and V1 directories count as tables of
        the root, too; those made here keep to V1 names, ``{name}.lance``. ``v2``: in the manifest table alone. ``v1``:
        there is no manifest table, every directory ``{name}.lance`` is a table; without namespaces, properties, rename.
    commit_store: the URL of the store that decides which version is current (``sqlite:///…``, ``file:///…``,
        ``redis://…``, ``rediss://…``, ``dynamodb://…``, ``memory://…``, ``conditional-put://``). Left out, tables are
        storage-managed: native writers commit by the storage's own atomic primitive.
    storage_options: of the object store, in the spelling of the native engine. commit_store_options: of the commit
        store, credentials for instance, which do not belong into a URL.
    committer: who commits, for `Catalog.history`; by default ``user@host``.
    inline_optimization: bring the indexes of the manifest table up to date every 256 changes, as `Catalog.optimize`
        does when it is called.
    unsafe: where `UnsafeStore` would be raised, warn (`UnsafeStoreWarning`) and go on: for one writer at a time, who
        can lose the last commits. The catalog does not remember it.

    S3 servers other than AWS are probed before the first change, once per process, server and bucket: they have to keep
    the condition of a create, in a race too (21 requests on an object ``.lancekeep-probe-<uuid>`` below the root, which
    is removed). A server without the condition needs the storage option ``conditional_put=disabled`` and a commit store
    that never forgets.

    Raises:
        InvalidInput, MissingExtra: a URL or option cannot be understood, or its adapter is not installed.
        CommitStoreMismatch: the catalog's versions are managed by another commit store.
        UnsafeStore: nothing here would make a commit atomic; the message says what to configure. So do changes, where
            the server turns out to ignore the condition.
        StoreUnavailable, AccessDenied: a store cannot be reached (within 10 s).
    """
    if mode not in MODES:
        raise InvalidInput(f"unknown mode {mode!r}; choose {', '.join(MODES)}")
    options = dict(storage_options or {})
    decides = commit_store in (None, CONDITIONAL_PUT)
    objects, root_key = open_object_store(root, options, probe=True, unsafe=unsafe, emulate_create=unsafe and decides)
    if objects.root_uri.startswith("memory:") and not decides:
        raise InvalidInput(
            f"root {root}: the native engine cannot read the memory of this process, so no commit store can commit "
            "what it writes. Use a directory (a temporary one for a trial), or leave commit_store out"
        )

    def open_rows(url: str) -> ExternalCommitStore:
        rows = open_commit_store(url, dict(commit_store_options or {}), objects)
        try:
            _require_safe(objects, rows)
        except UnsafeStore as error:
            if not unsafe:
                raise
            _warn(str(error))
        return rows

    rows = open_rows(commit_store or CONDITIONAL_PUT)
    native_options = {key: value for key, value in options.items() if key not in OWN_STORAGE_OPTIONS}

    def publish(name: str, content: bytes) -> bool:
        return ledger.commits.publish(places.manifest_root, name, content)

    def forget(versions: Sequence[int]) -> None:
        ledger.commits.rows.delete(places.manifest_root.base_uri, versions)

    places = Places(
        objects,
        root_key,
        uri_of=lambda key: uri_for_lance(objects, key),
        storage_options=native_options,
        v1_names=mode != V2,
        entropy=lambda: f"{_CHANCE.getrandbits(32):08x}",
    )
    manifest_key = places.manifest_root.key
    native_commits = objects.guarantees.atomic_create and mode != V1
    if inline_optimization and not native_commits:
        raise InvalidInput(f"inline optimization of {root} in mode {mode!r}: there are no indexes that could be built")
    listing = DirectoryListing(objects, root_key)
    manifest = _manifest_in(
        mode,
        LanceManifestStore(
            objects,
            manifest_key,
            publish=None if native_commits else publish,
            forget=None if native_commits else forget,
            index=partial(refresh_indexes, uri_for_lance(objects, manifest_key), native_options),
            index_inline=inline_optimization,
        ),
        listing,
    )

    def engine(catalog: Catalog) -> TableEngine:
        namespace = CatalogNamespace(catalog)
        return LanceEngine(namespace, native_options, namespace.based_on, before_commit=objects.prove)

    commits = TableCommits(objects, rows, committer or _committer(), Retry())
    ledger = Ledger(manifest, commits, places.root_uri, managed=commit_store is not None)
    catalog = Catalog(places, ledger, Versions(ledger, places), engine, open_rows=open_rows)
    rows.latest(objects.root_uri + (root_key or manifest_key))  # fail now, not at the first commit
    manifest.view()
    view = catalog.view()
    if mode == V2 and COMMIT_STORE_PROPERTY not in view.properties:
        remembered = listing.view().properties.get(COMMIT_STORE_PROPERTY)  # by who opened it with its V1 directories
        if remembered is not None:
            ledger.require_store(remembered)
    return catalog


def certify(
    root: str,
    *,
    commit_store: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    commit_store_options: Mapping[str, str] | None = None,
    progress: Progress = lambda done, total, name: None,
) -> Certificate:
    """Measure whether a user's own stores keep what Lancekeep rests on; arguments as those of `connect`.

    Without ``commit_store`` the storage's own condition is measured, as native writers use it. Everything is written
    below ``{root}/.lancekeep-certify-<uuid>/``, under as many histories of the commit store, and removed at the end, by
    Ctrl-C too; what stays is what a commit store makes with its first row (the SQLite file, the DynamoDB table). Takes
    500 to 900 requests and writes 48 MiB. ``progress`` is told before each check.

    Raises:
        InvalidInput, MissingExtra: as `connect`.
        UnsafeStore: ``conditional-put://`` was asked for, and the object store has no create-only write.
        StoreUnavailable, AccessDenied, NotFound: a store cannot be reached, or stopped answering.
    """
    options = dict(storage_options or {})
    _, root_key = open_object_store(root, options)

    def open_objects() -> ObjectStore:
        return open_object_store(root, options)[0]

    def open_rows(objects: ObjectStore) -> ExternalCommitStore:
        return open_commit_store(commit_store or CONDITIONAL_PUT, dict(commit_store_options or {}), objects)

    nothing_decides = commit_store is None and not open_objects().guarantees.atomic_create
    return measure(open_objects, None if nothing_decides else open_rows, root_key, progress)


class DirectoryNamespace(CatalogNamespace):
    """A directory namespace whose commits go through a commit store, with the properties of the native one.

    ``root``, ``storage.*``, ``manifest_enabled`` and ``dir_listing_enabled`` (both ``true``: compatibility mode; the
    first alone: V2; the second alone: V1), ``dir_listing_to_manifest_migration_enabled`` (the native name for reading
    root tables from the manifest first, as the specification has it: always ``true`` here),
    ``inline_optimization_enabled`` (``false``), ``vend_input_storage_options`` (``true``: answers hold the storage
    options, credentials included; ``false``: never; left out: only where a request asks for them with
    ``vend_credentials=true``), ``commit_store``, ``commit_store.*``, ``committer``, ``unsafe`` (``false``). All values
    are text. The other properties of the native namespace (`NATIVE_ONLY`) are accepted with a warning.

    ``lance_namespace.connect("lancekeep.DirectoryNamespace", properties)`` makes one. It pickles as its properties,
    credentials included.

    Raises ``lance_namespace.errors.InvalidInputError`` for a property that is unknown or cannot be honoured.
    """

    @translating
    def __init__(self, **properties: str) -> None:
        known = _known_properties(properties)
        catalog = connect(
            properties.get("root", "."),
            commit_store=properties.get("commit_store"),
            storage_options=known["storage."],
            commit_store_options=known["commit_store."],
            mode=_mode(properties),
            committer=properties.get("committer"),
            inline_optimization=_boolean(properties, "inline_optimization_enabled", "false"),
            unsafe=_boolean(properties, "unsafe", "false"),
        )
        vend = "vend_input_storage_options"
        super().__init__(catalog, vend_storage_options=_boolean(properties, vend) if vend in properties else None)
        self._properties = properties

    @property
    def catalog(self) -> Catalog:
        """The catalog behind this namespace."""
        return self._catalog

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _restore, (self._properties,)


def _restore(properties: Mapping[str, str]) -> DirectoryNamespace:
    return DirectoryNamespace(**properties)


def _known_properties(properties: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """The options behind each prefix. Raises `InvalidInput` for what is unknown, with the nearest known name."""
    grouped: dict[str, dict[str, str]] = {"storage.": {}, "commit_store.": {}}
    for name, value in properties.items():
        prefix = next((prefix for prefix in grouped if name.startswith(prefix)), None)
        if prefix is not None:
            grouped[prefix][name.removeprefix(prefix)] = value
        elif name in NATIVE_ONLY:
            _warn(f"the property {name!r} of the native namespace has no effect in Lancekeep", UserWarning)
        elif name not in PROPERTIES:
            nearest = difflib.get_close_matches(name, [*PROPERTIES, *NATIVE_ONLY, *grouped], n=1, cutoff=0.0)[0]
            raise InvalidInput(f"unknown property {name!r}; did you mean {nearest!r}?")
    return grouped


def _manifest_in(mode: str, table: LanceManifestStore, listing: DirectoryListing) -> ManifestStore:
    match mode:
        case "v1":
            return listing
        case "v2":
            return table
        case _:
            return CompatibleManifestStore(table, listing)


def _mode(properties: Mapping[str, str]) -> str:
    """The mode that the native names ask for."""
    manifest, listing = _boolean(properties, "manifest_enabled"), _boolean(properties, "dir_listing_enabled")
    if not manifest and not listing:
        raise InvalidInput("manifest_enabled and dir_listing_enabled are both 'false': nothing would find a table")
    if not _boolean(properties, "dir_listing_to_manifest_migration_enabled"):
        raise InvalidInput(
            "dir_listing_to_manifest_migration_enabled=false is not supported: tables of the root are looked up in the "
            "manifest first, as the specification says; leave the property out"
        )
    if not manifest:
        return V1
    return COMPATIBLE if listing else V2


def _boolean(properties: Mapping[str, str], name: str, default: str = "true") -> bool:
    value = str(properties.get(name, default)).lower()
    if value not in ("true", "false"):
        raise InvalidInput(f"the property {name!r} is {properties[name]!r}; give 'true' or 'false'")
    return value == "true"


def _warn(reason: str, kind: type[Warning] = UnsafeStoreWarning) -> None:
    warnings.warn(reason, kind, stacklevel=3)


def _require_safe(objects: ObjectStore, rows: ExternalCommitStore) -> None:
    """Where neither store can be trusted to keep the first of two writers, a commit could be overwritten."""
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
