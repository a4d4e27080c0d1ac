"""The configuration of a connection, shared by every entry point.

A setting comes from the first source that has it: an explicit argument, the environment (``LANCEKEEP_*``), the
``lancekeep.toml`` of the project, ``lancekeep.toml`` of the user. A source that names a root applies to this root only,
so a connection to one catalog never uses the commit store of another. Property names follow the "Tool Integration
Guidelines" of the Lance namespace specification: ``impl``, ``dir.*`` for the settings of the directory implementation,
and ``rest.*`` for a connection to a server, whose URI is the root.
"""

from __future__ import annotations

import difflib
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote

import attrs

from lancekeep.config_files import CONFIG_VARIABLE, FILE, SUBSCRIBERS, content, files
from lancekeep.domain.automatic_maintenance import AUTO, OFF
from lancekeep.domain.errors import InvalidInput

COMPATIBLE, V1, V2 = "compatible", "v1", "v2"
MODES = (COMPATIBLE, V1, V2)
MAINTENANCE = (AUTO, OFF)
"""Whether the process maintains the tables to which it commits."""
REMEMBERED = "remembered"
"""In place of the URL of a commit store: the one that the catalog remembers."""

PREFIX = "LANCEKEEP_"

STORAGE, COMMIT_STORE, MANIFEST_STORE, REST = "storage.", "commit_store.", "manifest_store.", "rest."
SERVER = "server."
"""The prefix of the settings of ``lancekeep serve``, which are no settings of a connection."""
TEXTS = ("impl", "root", "mode", "commit_store", "manifest_store", "committer", "spark_master", "maintenance")
BOOLEANS = ("inline_optimization", "unsafe", "vend_input_storage_options")
_PREFIXES = (STORAGE, COMMIT_STORE, MANIFEST_STORE, REST)
SETTINGS = (*TEXTS, *BOOLEANS, *_PREFIXES)
"""Every setting; a name that ends in a dot is the prefix of a store's options."""

NATIVE_MODE = ("manifest_enabled", "dir_listing_enabled", "dir_listing_to_manifest_migration_enabled")
"""The properties by which the native namespace selects a mode."""

NATIVE_ONLY = (
    "commit_retries",
    "ops_metrics_enabled",
    "table_version_storage_enabled",
    "table_version_tracking_enabled",
    "vend_input_storage_options_refresh_interval_millis",
)
"""Native properties that are accepted with a warning, so that one configuration serves both namespaces."""

_ALIASES = {
    "inline_optimization_enabled": "inline_optimization",
    "storage_options.": STORAGE,
    "commit_store_options.": COMMIT_STORE,
    "manifest_store_options.": MANIFEST_STORE,
}
_KNOWN = (*TEXTS, *BOOLEANS, *NATIVE_MODE, *NATIVE_ONLY, "catalog")
_SERVERS = ("http://", "https://")
HIVE, HIVE3, POSTGRES = "hive", "hive3", "postgres"
HOMES = (HIVE, HIVE3, POSTGRES)
"""The implementations whose entries are outside of the root; ``uri`` says where."""
IMPLEMENTATIONS = ("dir", *HOMES, "rest")
NATIVE = "native"
"""What a server takes in place of an implementation: the directory namespace of pylance."""
ARGUMENT = "argument"
"""The origin of a setting that the caller gave."""


@attrs.frozen
class _Setting:
    """One value. origin: ``argument``, the name of a variable, or the path of a file."""

    value: Any = attrs.field(repr=False)
    origin: str


_Settings = dict[str, _Setting]


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
        settings = _canonical((name, value, ARGUMENT) for name, value in properties.items())
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
        given = _with_root(_canonical((name, value, ARGUMENT) for name, value in properties.items()), sections)
        surroundings = _with_root(_from_environment(variables), sections)
        layers = (given, surroundings, *(settings for _, settings in sections))
        unnamed = (given, surroundings, *(settings for name, settings in sections if name is None))
        root = next((settings["root"] for settings in unnamed if "root" in settings), None)
        merged: _Settings = {} if root is None else {"root": root}
        for settings in layers:
            own = settings.get("root")
            if own is None or (root is not None and _place(own.value) == _place(root.value)):
                merged = settings | merged
        return cls._of(merged)

    @classmethod
    def _of(cls, settings: _Settings) -> Self:
        def text(name: str) -> Any:
            return settings[name].value if name in settings else None

        mode = text("mode") or COMPATIBLE
        if mode not in MODES:
            raise InvalidInput(f"unknown mode {mode!r}{_found_in(settings['mode'])}; choose {', '.join(MODES)}")
        if "maintenance" in settings and text("maintenance") not in MAINTENANCE:
            found = f"{text('maintenance')!r}{_found_in(settings['maintenance'])}"
            raise InvalidInput(f"unknown maintenance {found}; choose {', '.join(MAINTENANCE)}")
        inline = _boolean(settings, "inline_optimization")
        if "manifest_store" in settings and ("mode" in settings or inline):
            other = "mode" if "mode" in settings else "inline_optimization"
            raise InvalidInput(
                f"{other}{_found_in(settings[other])} is about entries in the directory of the root, and "
                f"manifest_store{_found_in(settings['manifest_store'])} keeps them elsewhere; leave one of them out"
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
            storage_options=_below(STORAGE, settings),
            commit_store_options=_below(COMMIT_STORE, settings),
            manifest_store_options=_below(MANIFEST_STORE, settings),
            rest_options=_below(REST, settings),
            committer=text("committer"),
            inline_optimization=inline,
            unsafe=_boolean(settings, "unsafe"),
            vend_input_storage_options=_boolean(settings, vend) if vend in settings else None,
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


def _canonical(items: Iterable[tuple[str, Any, str]]) -> _Settings:
    """Return settings under their own names. Each item is a name, a value and the origin of both."""
    settings: _Settings = {}
    native: _Settings = {}
    for name, value, origin in items:
        key = _key(name, origin)
        if key in settings or key in native:
            raise InvalidInput(f"{_label(name, origin)} is given twice; give it once")
        if key in NATIVE_ONLY:
            warnings.warn(f"the property {name!r} of the native namespace has no effect in Lancekeep", stacklevel=4)
        else:
            (native if key in NATIVE_MODE else settings)[key] = _Setting(value, origin)
    if native:
        if "mode" in settings:
            raise InvalidInput(f"mode and {min(native)} both select the mode; give one of them")
        settings["mode"] = _Setting(_native_mode(native), next(iter(native.values())).origin)
    return settings


def is_setting(name: str) -> bool:
    """Return whether a property configures a connection."""
    try:
        _key(name, ARGUMENT)
    except InvalidInput:
        return False
    return True


def _key(name: str, origin: str) -> str:
    """Return a setting's own name. Raises `InvalidInput` if there is no such setting."""
    implementation, dot, below = name.partition(".")
    key = below if dot and implementation in ("dir", *HOMES) else name
    if name in ("dir.path", "rest.uri"):
        return "root"
    if dot and implementation in HOMES and below == "uri":
        return "manifest_store"
    if name == f"{POSTGRES}.catalog":  # of the database; the setting `catalog` is a section of the configuration file
        return f"{MANIFEST_STORE}catalog"
    for alias, own in _ALIASES.items():
        if key == alias or (alias.endswith(".") and key.startswith(alias)):
            key = own + key.removeprefix(alias)
    if key in _KNOWN or any(key.startswith(prefix) and key != prefix for prefix in _PREFIXES):
        return key
    if dot and implementation in HOMES and below:
        return MANIFEST_STORE + below
    nearest = difflib.get_close_matches(key, [*_KNOWN, *_PREFIXES, SERVER], n=1, cutoff=0.0)[0]
    if origin == _variable(name):
        raise InvalidInput(f"unknown variable {origin}; did you mean {_variable(nearest)}?")
    found = "" if origin == ARGUMENT else f"{origin}: "
    raise InvalidInput(f"{found}unknown property {name!r}; did you mean {nearest!r}?")


def _label(name: str, origin: str) -> str:
    return f"the property {name!r}" if origin == ARGUMENT else f"{name!r} ({origin})"


def _found_in(setting: _Setting) -> str:
    return "" if setting.origin == ARGUMENT else f" ({setting.origin})"


def _implementation(settings: _Settings) -> str:
    served = "root" in settings and str(settings["root"].value).lower().startswith(_SERVERS)
    if "impl" not in settings:
        return "rest" if served else "dir"
    impl = str(settings["impl"].value).lower()
    if impl not in IMPLEMENTATIONS:
        raise InvalidInput(f"unknown impl {impl!r}{_found_in(settings['impl'])}; choose {', '.join(IMPLEMENTATIONS)}")
    if served and impl != "rest":
        raise InvalidInput(
            f"impl {impl!r}{_found_in(settings['impl'])} opens a directory, and the root{_found_in(settings['root'])} "
            "is the URL of a server; use impl 'rest', or leave impl out"
        )
    return impl


def _in_one_database(settings: _Settings) -> _Settings:
    """Complete the settings of a catalog in PostgreSQL: version rows are in the database of the entries by default."""
    store = settings.get("manifest_store")
    if store is None or not store.value.startswith("postgresql://"):
        found = "" if store is None else f"; found {public_url(store.value)}{_found_in(store)}"
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


def _in_metastore(settings: _Settings, impl: str) -> _Settings:
    """Complete the settings of a catalog in a Hive Metastore.

    ``thrift://`` is another name of ``hive://``. ``hive3`` is ``hive`` with catalogs as the first level of namespaces.
    """
    store = settings.get("manifest_store")
    url = "" if store is None else re.sub("(^|,)thrift://", r"\1", store.value)
    if store is not None and url != store.value:
        store = attrs.evolve(store, value=f"hive://{url}")
    if store is None or not store.value.startswith("hive://"):
        found = "" if store is None else f"; found {public_url(store.value)}{_found_in(store)}"
        raise InvalidInput(f"impl {impl!r} needs the URL of a Metastore: uri='thrift://HOST:9083'{found}")
    if impl == HIVE3:
        catalogs = f"{MANIFEST_STORE}catalogs"
        if not _boolean(settings, catalogs, "true"):
            raise InvalidInput(
                f"impl 'hive3' has catalogs, and catalogs{_found_in(settings[catalogs])} is 'false'; use impl 'hive' "
                "for namespaces of one level"
            )
        settings = {**settings, catalogs: _Setting("true", settings["impl"].origin)}
    return {"root": _Setting(".", store.origin), **settings, "manifest_store": store}


def _native_mode(native: _Settings) -> str:
    """Return the mode that the properties of the native namespace select."""
    manifest, listing, migration = (_boolean(native, name, "true") for name in NATIVE_MODE)
    if not manifest and not listing:
        raise InvalidInput("manifest_enabled and dir_listing_enabled are both 'false': nothing would find a table")
    if not migration:
        raise InvalidInput(
            "dir_listing_to_manifest_migration_enabled=false is not supported: tables of the root are looked up in the "
            "manifest first, as the specification says; leave the property out"
        )
    if not manifest:
        return V1
    return COMPATIBLE if listing else V2


def _boolean(settings: _Settings, name: str, default: str = "false") -> bool:
    if name not in settings:
        return default == "true"
    value = str(settings[name].value).lower()
    if value not in ("true", "false"):
        raise InvalidInput(
            f"the property {name!r} is {settings[name].value!r}{_found_in(settings[name])}; give 'true' or 'false'"
        )
    return value == "true"


def _below(prefix: str, settings: _Settings) -> dict[str, Any]:
    return {name.removeprefix(prefix): setting.value for name, setting in settings.items() if name.startswith(prefix)}


def _place(root: str) -> str:
    """Return one spelling for every spelling of a root."""
    scheme, separator, rest = root.partition("://")
    if separator and scheme.lower() != "file":
        return f"{scheme.lower()}://{rest.rstrip('/')}"
    path = unquote(rest) if separator else root
    return os.path.realpath(os.path.expanduser(path))


# -- environment ---------------------------------------------------------------------------------------------------


def _from_environment(variables: Mapping[str, str]) -> _Settings:
    """Return the settings in ``LANCEKEEP_*``; two underscores separate a prefix from the rest of a name.

    A variable of another program may have the same prefix, so an unknown name is an error only if it resembles a
    setting or has two underscores.
    """
    found = []
    for variable, value in variables.items():
        if not variable.startswith(PREFIX) or variable == CONFIG_VARIABLE:
            continue
        name = _property(variable.removeprefix(PREFIX).lower())
        if name.startswith(SERVER):
            continue
        if "." not in name and (not value or not difflib.get_close_matches(name, _KNOWN, n=1, cutoff=0.9)):
            continue
        found.append((name, value, variable))
    return _canonical(found)


def _property(name: str) -> str:
    prefix, separator, rest = name.partition("__")
    if not separator:
        return name
    return f"{prefix}.{_property(rest) if prefix in IMPLEMENTATIONS else rest}"


def server_settings(
    given: Mapping[str, Any], environment: Mapping[str, str] | None = None
) -> Iterator[tuple[str, Any, str]]:
    """Yield the settings of a server, each once, from the first source that has it.

    They are the given ones, then ``LANCEKEEP_SERVER__NAME``, then ``[server]`` of the files that `ConnectionConfig`
    reads.

    Args:
        given: Explicit settings by name; None stands for a setting that is not given.
        environment: The variables to read; by default the variables of the process.

    Yields:
        The name, the value and the origin of a setting. A table inside ``[server]`` is one value.
    """
    variables = os.environ if environment is None else environment
    sources: list[tuple[str, Mapping[str, Any]]] = [
        (ARGUMENT, {name: value for name, value in given.items() if value is not None})
    ]
    for variable, value in variables.items():
        name = _property(variable.removeprefix(PREFIX).lower()) if variable.startswith(PREFIX) else ""
        if name.startswith(SERVER):
            sources.append((variable, {name.removeprefix(SERVER): value}))
    for file in files(variables):
        section = content(file).get("server", {})
        if not isinstance(section, dict):
            raise InvalidInput(f"{file}: 'server' is a {type(section).__name__}; write a section [server]")
        sources.append((f"{file} [server]", section))
    seen: set[str] = set()
    for origin, settings in sources:
        yield from ((name, value, origin) for name, value in settings.items() if name not in seen)
        seen.update(settings)


def _variable(name: str) -> str:
    return PREFIX + name.replace(".", "__").upper()


# -- files ---------------------------------------------------------------------------------------------------------


def named_catalogs(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the roots of the configured catalogs by name; the nearest file decides."""
    variables = os.environ if environment is None else environment
    sections = [section for file in files(variables) for section in _sections(file)]
    return {name: settings["root"].value for name, settings in reversed(sections) if name is not None}


def _sections(file: Path) -> Iterator[tuple[str | None, _Settings]]:
    """Return the named catalogs of a file, then its top level under the name None."""
    top = content(file)
    for name in ("server", *SUBSCRIBERS):  # `server_settings` and `subscriber_tables` read them
        top.pop(name, None)
    catalogs = top.pop("catalogs", {})
    if not isinstance(catalogs, dict) or not all(isinstance(each, dict) for each in catalogs.values()):
        raise InvalidInput(f"{file}: 'catalogs' holds one table for each catalog, such as [catalogs.lake]")
    for name, section in catalogs.items():
        settings = _section(section, f"{file} [catalogs.{name}]", file.parent)
        if "root" not in settings:
            raise InvalidInput(f"{file}: [catalogs.{name}] has no root; add root = '…'")
        yield name, settings
    yield None, _section(top, str(file), file.parent)


def _section(table: Mapping[str, Any], origin: str, folder: Path) -> _Settings:
    settings = _canonical((name, value, origin) for name, value in _flat(table, origin))
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


def _with_root(settings: _Settings, sections: Iterable[tuple[str | None, _Settings]]) -> _Settings:
    """Replace the name of a configured catalog by its root."""
    if "catalog" not in settings:
        return settings
    if "root" in settings:
        raise InvalidInput("root and catalog both name the catalog; give one of them")
    named = {name: section for name, section in reversed(list(sections)) if name is not None}
    wanted = settings["catalog"]
    if wanted.value not in named:
        known = f"configured are {', '.join(sorted(named))}" if named else f"no {FILE} names one"
        raise InvalidInput(f"there is no catalog {wanted.value!r}{_found_in(wanted)}; {known}")
    return {name: value for name, value in settings.items() if name != "catalog"} | {
        "root": named[wanted.value]["root"]
    }
