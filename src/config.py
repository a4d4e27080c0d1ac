"""The configuration of a connection, shared by every entry point.

A setting comes from the first source that has it: an explicit argument, the environment (``LANCEKEEP_*``), the
``lancekeep.toml`` of the project, ``lancekeep.toml`` of the user. A source that names a root applies to this root only,
so a connection to one catalog never uses the commit store of another. Property names follow the "Tool Integration
Guidelines" of the Lance namespace specification: ``impl``, ``dir.*`` for the settings of the directory implementation,
and ``rest.*`` for a connection to a server, whose URI is the root.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote

import attrs

from lancekeep.config_files import FILE, SUBSCRIBERS, content, files
from lancekeep.config_settings import (
    ARGUMENT,
    BOOLEANS,
    COMMIT_STORE,
    COMPATIBLE,
    HIVE,
    HIVE3,
    HOMES,
    IMPLEMENTATIONS,
    MANIFEST_STORE,
    MODES,
    POSTGRES,
    PREFIX,
    REST,
    STORAGE,
    TEXTS,
    Setting,
    Settings,
    boolean,
    canonical,
    found_in,
    from_environment,
    options_below,
)
from lancekeep.domain.automatic_maintenance import AUTO, OFF
from lancekeep.domain.errors import InvalidInput

MAINTENANCE = (AUTO, OFF)
"""Whether the process maintains the tables to which it commits."""
REMEMBERED = "remembered"
"""In place of the URL of a commit store: the one that the catalog remembers."""

CATALOG_VARIABLE = f"{PREFIX}CATALOG"
"""Names the configured catalog to use, unless an argument does."""

_SERVERS = ("http://", "https://")
NATIVE = "native"
"""What a server takes in place of an implementation: the directory namespace of pylance."""


def public_url(url: str) -> str:
    """Return a URL or path for a message, without user, password and query."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    parts = re.fullmatch(r"([^/?#]*)([^?#]*)(.*)", rest, re.DOTALL)
    assert parts is not None
    authority, path, query = parts.groups()
    if "@" in path + query:  # the password may hold a '/', '?' or '#'
        return f"{scheme}://…"
    return f"{scheme}://{authority.rpartition('@')[2]}{path}"


def _shown_root(root: str | None) -> str:
    return repr(None if root is None else public_url(root))


def _shown_store(url: str | None) -> str:
    return repr(None if url is None else public_url(url) if "://" in url else "…")


def _shown_names(options: Mapping[str, Any]) -> str:
    return f"<{', '.join(sorted(options)) or 'none'}>"


@attrs.frozen(kw_only=True)
class ConnectionConfig:
    """How to connect to one catalog. The repr shows no secret.

    ``sources`` names where each setting came from: ``argument``, a variable, or the path of a file. A setting without
    an entry has its default value.
    """

    root: str | None = attrs.field(default=None, repr=_shown_root)
    impl: str = "dir"
    mode: str = COMPATIBLE
    commit_store: str | None = attrs.field(default=None, repr=_shown_store)
    manifest_store: str | None = attrs.field(default=None, repr=_shown_store)
    storage_options: Mapping[str, str] = attrs.field(factory=dict, repr=_shown_names)
    commit_store_options: Mapping[str, str] = attrs.field(factory=dict, repr=_shown_names)
    manifest_store_options: Mapping[str, str] = attrs.field(factory=dict, repr=_shown_names)
    rest_options: Mapping[str, str] = attrs.field(factory=dict, repr=_shown_names)
    committer: str | None = None
    inline_optimization: bool = False
    unsafe: bool = False
    vend_input_storage_options: bool | None = None
    spark_master: str | None = None
    maintenance: str | None = None
    sources: Mapping[str, str] = attrs.field(factory=dict, eq=False)

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any]) -> Self:
        """Return the configuration that properties describe.

        It reads neither environment nor files.

        Args:
            properties: Text by name: `SETTINGS`, the same names after ``dir.``, and the names of the native namespace.

        Raises:
            InvalidInput: A property is unknown, given twice, or has a value that cannot be honoured.
        """
        settings = canonical((name, value, ARGUMENT) for name, value in properties.items())
        return cls._of(_with_root(settings, []))

    @classmethod
    def resolve(cls, properties: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Self:
        """Complete explicit properties from the environment and from files.

        Args:
            properties: As of `from_properties`; ``catalog`` selects a section ``[catalogs.NAME]`` of a file.
            environment: The variables to read; by default the variables of the process.

        Raises:
            InvalidInput: As `from_properties`, for each source that is read.
        """
        variables = os.environ if environment is None else environment
        sections = [section for path in files(variables) for section in _sections(path)]
        given = _with_root(canonical((name, value, ARGUMENT) for name, value in properties.items()), sections)
        surroundings = _with_root(from_environment(variables), sections)
        layers = (given, surroundings, *(settings for _, settings in sections))
        unnamed = (given, surroundings, *(settings for name, settings in sections if name is None))
        root = next((settings["root"] for settings in unnamed if "root" in settings), None)
        merged: Settings = {} if root is None else {"root": root}
        for settings in layers:
            own = settings.get("root")
            if own is None or (root is not None and _place(own.value) == _place(root.value)):
                merged = settings | merged
        return cls._of(merged)

    @classmethod
    def _of(cls, settings: Settings) -> Self:
        def text(name: str) -> Any:
            return settings[name].value if name in settings else None

        mode = text("mode") or COMPATIBLE
        if mode not in MODES:
            raise InvalidInput(f"unknown mode {mode!r}{found_in(settings['mode'])}; choose {', '.join(MODES)}")
        if "maintenance" in settings and text("maintenance") not in MAINTENANCE:
            found = f"{text('maintenance')!r}{found_in(settings['maintenance'])}"
            raise InvalidInput(f"unknown maintenance {found}; choose {', '.join(MAINTENANCE)}")
        inline = boolean(settings, "inline_optimization")
        if "manifest_store" in settings and ("mode" in settings or inline):
            other = "mode" if "mode" in settings else "inline_optimization"
            raise InvalidInput(
                f"{other}{found_in(settings[other])} is about entries in the directory of the root, and "
                f"manifest_store{found_in(settings['manifest_store'])} keeps them elsewhere; leave one of them out"
            )
        vend = "vend_input_storage_options"
        impl = _implementation(settings)
        if impl == POSTGRES:
            settings = _in_one_database(settings)
        elif impl in (HIVE, HIVE3):
            settings, impl = _in_metastore(settings, impl), HIVE
        return cls(
            root=text("root"),
            impl=impl,
            mode=mode,
            commit_store=text("commit_store"),
            manifest_store=text("manifest_store"),
            storage_options=options_below(STORAGE, settings),
            commit_store_options=options_below(COMMIT_STORE, settings),
            manifest_store_options=options_below(MANIFEST_STORE, settings),
            rest_options=options_below(REST, settings),
            committer=text("committer"),
            inline_optimization=inline,
            unsafe=boolean(settings, "unsafe"),
            vend_input_storage_options=boolean(settings, vend) if vend in settings else None,
            spark_master=text("spark_master"),
            maintenance=text("maintenance"),
            sources={name: setting.origin for name, setting in settings.items()},
        )

    def as_properties(self) -> dict[str, str]:
        """Return the properties of this configuration, secrets included."""
        properties = {name: value for name in TEXTS if (value := getattr(self, name)) is not None}
        if self.manifest_store is not None:
            del properties["mode"]  # the mode of a directory
        for name in BOOLEANS:
            if (flag := getattr(self, name)) is not None:
                properties[name] = str(flag).lower()
        properties |= {f"{STORAGE}{name}": value for name, value in self.storage_options.items()}
        properties |= {f"{COMMIT_STORE}{name}": value for name, value in self.commit_store_options.items()}
        properties |= {f"{MANIFEST_STORE}{name}": value for name, value in self.manifest_store_options.items()}
        return properties | {f"{REST}{name}": value for name, value in self.rest_options.items()}

    def require_root(self) -> str:
        """Return the root. Raises `InvalidInput` if no source names one."""
        if self.root is None:
            raise InvalidInput(
                f"no catalog is named. Give its root, URL or configured name, set {PREFIX}CATALOG or {PREFIX}ROOT, or "
                f"write root = '…' into the {FILE} of the project"
            )
        return self.root

    def explain(self, error: BaseException) -> None:
        """Add a note to an error about settings that no argument gave."""
        found = [f"{name} ({origin})" for name, origin in sorted(self.sources.items()) if origin != ARGUMENT]
        if found:
            error.add_note(f"Settings that were not given as arguments: {', '.join(found)}")


def located(
    root: str | None, manifest_store: str | None, impl: str | None, uri: str | None
) -> tuple[str | None, str | None, str | None]:
    """Return the root, manifest store and implementation that arguments name.

    Args:
        root: The root.
        manifest_store: The manifest store.
        impl: The implementation.
        uri: Another name of the manifest store, or of the root of a server.

    Raises:
        InvalidInput: Two arguments name the same.
    """
    if uri is None:
        return root, manifest_store, impl
    if (impl or "").lower() in HOMES:
        if manifest_store is not None:
            raise InvalidInput("manifest_store and uri both name the place of the entries; give one of them")
        return root, uri, impl
    if root is not None:
        raise InvalidInput("root and uri both name the catalog; give one of them")
    return uri, manifest_store, impl or "rest"


def given(
    properties: Mapping[str, Any] | None = None,
    *,
    storage_options: Mapping[str, str] | None = None,
    commit_store_options: Mapping[str, str] | None = None,
    manifest_store_options: Mapping[str, str] | None = None,
    rest_options: Mapping[str, str] | None = None,
    **settings: object,
) -> dict[str, Any]:
    """Return the arguments of a call as properties, without those that are None.

    Raises:
        InvalidInput: A property repeats an argument.
    """
    arguments = {name: value for name, value in settings.items() if value is not None}
    arguments |= {f"{STORAGE}{name}": value for name, value in (storage_options or {}).items()}
    arguments |= {f"{COMMIT_STORE}{name}": value for name, value in (commit_store_options or {}).items()}
    arguments |= {f"{MANIFEST_STORE}{name}": value for name, value in (manifest_store_options or {}).items()}
    arguments |= {f"{REST}{name}": value for name, value in (rest_options or {}).items()}
    twice = sorted(arguments.keys() & (properties or {}).keys())
    if twice:
        raise InvalidInput(f"{twice[0]!r} is both an argument and a property; give it once")
    return {**(properties or {}), **arguments}


# -- one source as settings ----------------------------------------------------------------------------------------


def _implementation(settings: Settings) -> str:
    served = "root" in settings and str(settings["root"].value).lower().startswith(_SERVERS)
    if "impl" not in settings:
        return "rest" if served else "dir"
    impl = str(settings["impl"].value).lower()
    if impl not in IMPLEMENTATIONS:
        raise InvalidInput(f"unknown impl {impl!r}{found_in(settings['impl'])}; choose {', '.join(IMPLEMENTATIONS)}")
    if served and impl != "rest":
        raise InvalidInput(
            f"impl {impl!r}{found_in(settings['impl'])} opens a directory, and the root{found_in(settings['root'])} "
            "is the URL of a server; use impl 'rest', or leave impl out"
        )
    return impl


def _in_one_database(settings: Settings) -> Settings:
    """Complete the settings of a catalog in PostgreSQL: version rows are in the database of the entries by default."""
    store = settings.get("manifest_store")
    if store is None or not store.value.startswith("postgresql://"):
        found = "" if store is None else f"; found {public_url(store.value)}{found_in(store)}"
        raise InvalidInput(f"impl 'postgres' needs the URL of a database: uri='postgresql://HOST/DATABASE'{found}")
    if "commit_store" in settings:
        return settings
    options = {
        COMMIT_STORE + name.removeprefix(MANIFEST_STORE): setting
        for name, setting in settings.items()
        if name.startswith(MANIFEST_STORE) and name != f"{MANIFEST_STORE}catalog"
    }
    return {**options, **settings, "commit_store": attrs.evolve(store, value=without_catalog(store.value))}


def without_catalog(url: str) -> str:
    """Return the URL of the version rows in the database of a manifest store."""
    url, _, query = url.partition("?")
    kept = "&".join(option for option in query.split("&") if option and not option.startswith("catalog="))
    return f"{url}?{kept}" if kept else url


def _in_metastore(settings: Settings, impl: str) -> Settings:
    """Complete the settings of a catalog in a Hive Metastore.

    ``thrift://`` is another name of ``hive://``. ``hive3`` is ``hive`` with catalogs as the first level of namespaces.
    """
    store = settings.get("manifest_store")
    url = "" if store is None else re.sub("(^|,)thrift://", r"\1", store.value)
    if store is not None and url != store.value:
        store = attrs.evolve(store, value=f"hive://{url}")
    if store is None or not store.value.startswith("hive://"):
        found = "" if store is None else f"; found {public_url(store.value)}{found_in(store)}"
        raise InvalidInput(f"impl {impl!r} needs the URL of a Metastore: uri='thrift://HOST:9083'{found}")
    if impl == HIVE3:
        catalogs = f"{MANIFEST_STORE}catalogs"
        if not boolean(settings, catalogs, "true"):
            raise InvalidInput(
                f"impl 'hive3' has catalogs, and catalogs{found_in(settings[catalogs])} is 'false'; use impl 'hive' "
                "for namespaces of one level"
            )
        settings = {**settings, catalogs: Setting("true", settings["impl"].origin)}
    return {"root": Setting(".", store.origin), **settings, "manifest_store": store}


def _place(root: str) -> str:
    """Return one spelling for every spelling of a root."""
    scheme, separator, rest = root.partition("://")
    if separator and scheme.lower() != "file":
        return f"{scheme.lower()}://{rest.rstrip('/')}"
    path = unquote(rest) if separator else root
    return os.path.realpath(os.path.expanduser(path))


# -- environment ---------------------------------------------------------------------------------------------------


# -- files ---------------------------------------------------------------------------------------------------------


def named_catalogs(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the roots of the configured catalogs by name; the nearest file decides."""
    variables = os.environ if environment is None else environment
    sections = [section for file in files(variables) for section in _sections(file)]
    return {name: settings["root"].value for name, settings in reversed(sections) if name is not None}


def require_own_roots(configs: Mapping[str, ConnectionConfig]) -> None:
    """Refuse catalogs that share a root.

    The settings of one would hold for the other.

    Raises:
        InvalidInput: Two catalogs have one root.
    """
    names: dict[str, str] = {}
    for name, config in configs.items():
        other = names.setdefault(_place(config.require_root()), name)
        if other != name:
            raise InvalidInput(
                f"the catalogs {other!r} and {name!r} have one root, {public_url(config.require_root())}; give each "
                "catalog a root of its own"
            )


def _sections(file: Path) -> Iterator[tuple[str | None, Settings]]:
    """Return the named catalogs of a file, then its top level under the name None."""
    top = content(file)
    for name in ("server", *SUBSCRIBERS):  # `server_settings` and `subscriber_tables` read them
        top.pop(name, None)
    catalogs = top.pop("catalogs", {})
    if not isinstance(catalogs, dict) or not all(isinstance(each, dict) for each in catalogs.values()):
        raise InvalidInput(f"{file}: 'catalogs' holds one table for each catalog, such as [catalogs.lake]")
    for name, section in catalogs.items():
        for of_server in ("server", *SUBSCRIBERS):
            section.pop(of_server, None)
        settings = _section(section, f"{file} [catalogs.{name}]", file.parent)
        if "root" not in settings:
            raise InvalidInput(f"{file}: [catalogs.{name}] has no root; add root = '…'")
        yield name, settings
    yield None, _section(top, str(file), file.parent)


def _section(table: Mapping[str, Any], origin: str, folder: Path) -> Settings:
    settings = canonical((name, value, origin) for name, value in _flat(table, origin))
    if "catalog" in settings:
        raise InvalidInput(f"{origin}: 'catalog' selects a catalog in an argument or in {PREFIX}CATALOG, not in a file")
    root = settings.get("root")
    if root is not None and not re.match(r"~|[A-Za-z][A-Za-z0-9+.-]*:/", root.value):
        settings["root"] = attrs.evolve(root, value=str(folder / root.value))
    if root is None and any(name.startswith(("commit_store", "manifest_store", REST)) for name in settings):
        raise InvalidInput(
            f"{origin}: a commit store, a manifest store and the settings of a server belong to one root; add "
            "root = '…' to the same section"
        )
    return settings


def _flat(table: Mapping[str, Any], origin: str, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Return the values of nested tables as text, under dotted names."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, origin, f"{prefix}{key}.")
        elif isinstance(value, str | int | float):
            yield f"{prefix}{key}", str(value).lower() if isinstance(value, bool) else str(value)
        else:
            raise InvalidInput(f"{origin}: {prefix}{key} is a {type(value).__name__}; give text, a number or a boolean")


def _with_root(settings: Settings, sections: Iterable[tuple[str | None, Settings]]) -> Settings:
    """Replace the name of a configured catalog by its root."""
    if "catalog" not in settings:
        return settings
    if "root" in settings:
        raise InvalidInput("root and catalog both name the catalog; give one of them")
    named = {name: section for name, section in reversed(list(sections)) if name is not None}
    wanted = settings["catalog"]
    if wanted.value not in named:
        known = f"configured are {', '.join(sorted(named))}" if named else f"no {FILE} names one"
        raise InvalidInput(f"there is no catalog {wanted.value!r}{found_in(wanted)}; {known}")
    return {name: value for name, value in settings.items() if name != "catalog"} | {
        "root": named[wanted.value]["root"]
    }
