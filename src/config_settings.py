"""Settings of a connection under their own names, each with its origin.

A source has settings under the names of the native namespace, of an implementation, or of a variable. Each of them
becomes a `Setting` under the one name that Lancekeep has for it.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from lancekeep.config_files import CONFIG_VARIABLE
from lancekeep.domain.errors import InvalidInput

COMPATIBLE, V1, V2 = "compatible", "v1", "v2"
MODES = (COMPATIBLE, V1, V2)
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
HIVE, HIVE3, POSTGRES = "hive", "hive3", "postgres"
HOMES = (HIVE, HIVE3, POSTGRES)
"""The implementations whose entries are outside of the root; ``uri`` says where."""
IMPLEMENTATIONS = ("dir", *HOMES, "rest")
ARGUMENT = "argument"
"""The origin of a setting that the caller gave."""


@attrs.frozen
class Setting:
    """One value.

    Attributes:
        value: The value.
        origin: ``argument``, the name of a variable, or the path of a file.
    """

    value: Any = attrs.field(repr=False)
    origin: str


Settings = dict[str, Setting]
"""Settings by name."""


def canonical(items: Iterable[tuple[str, Any, str]]) -> Settings:
    """Return settings under their own names.

    Args:
        items: A name, a value and the origin of both, for each setting.

    Raises:
        InvalidInput: A setting is unknown, given twice, or contradicts another setting.
    """
    settings: Settings = {}
    native: Settings = {}
    for name, value, origin in items:
        key = _key(name, origin)
        if key in settings or key in native:
            raise InvalidInput(f"{_label(name, origin)} is given twice; give it once")
        if key in NATIVE_ONLY:
            warnings.warn(f"the property {name!r} of the native namespace has no effect in Lancekeep", stacklevel=4)
        else:
            (native if key in NATIVE_MODE else settings)[key] = Setting(value, origin)
    if native:
        if "mode" in settings:
            raise InvalidInput(f"mode and {min(native)} both select the mode; give one of them")
        settings["mode"] = Setting(_native_mode(native), next(iter(native.values())).origin)
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


def found_in(setting: Setting) -> str:
    """Return the origin of a setting for a message; nothing for an argument."""
    return "" if setting.origin == ARGUMENT else f" ({setting.origin})"


def _native_mode(native: Settings) -> str:
    """Return the mode that the properties of the native namespace select."""
    manifest, listing, migration = (boolean(native, name, "true") for name in NATIVE_MODE)
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


def boolean(settings: Settings, name: str, default: str = "false") -> bool:
    """Return the value of a setting that is ``true`` or ``false``.

    Raises:
        InvalidInput: The setting has a different value.
    """
    if name not in settings:
        return default == "true"
    value = str(settings[name].value).lower()
    if value not in ("true", "false"):
        raise InvalidInput(
            f"the property {name!r} is {settings[name].value!r}{found_in(settings[name])}; give 'true' or 'false'"
        )
    return value == "true"


def options_below(prefix: str, settings: Settings) -> dict[str, Any]:
    """Return the settings below a prefix, without it."""
    return {name.removeprefix(prefix): setting.value for name, setting in settings.items() if name.startswith(prefix)}


def from_environment(variables: Mapping[str, str]) -> Settings:
    """Return the settings in ``LANCEKEEP_*``.

    Two underscores separate a prefix from the rest of a name. A variable of another program may have the same prefix,
    so an unknown name is an error only if it resembles a setting or has two underscores.
    """
    found = []
    for variable, value in variables.items():
        name = "" if variable == CONFIG_VARIABLE else property_of(variable)
        if not name or name.startswith(SERVER):
            continue
        if "." not in name and (not value or not difflib.get_close_matches(name, _KNOWN, n=1, cutoff=0.9)):
            continue
        found.append((name, value, variable))
    return canonical(found)


def property_of(variable: str) -> str:
    """Return the setting that a variable names; nothing for other variables."""
    return _dotted(variable.removeprefix(PREFIX).lower()) if variable.startswith(PREFIX) else ""


def _dotted(name: str) -> str:
    prefix, separator, rest = name.partition("__")
    if not separator:
        return name
    return f"{prefix}.{_dotted(rest) if prefix in IMPLEMENTATIONS else rest}"


def _variable(name: str) -> str:
    return PREFIX + name.replace(".", "__").upper()
