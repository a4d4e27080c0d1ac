"""Open object stores by URI; each adapter loads on first use.

Other distributions add adapters by entry points (docs/write-an-adapter.md).
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from functools import cache
from typing import ClassVar, NoReturn, Protocol
from urllib.parse import quote, unquote

from lancekeep.adapters.object_stores.native_options import NATIVE_OPTIONS, is_native_option
from lancekeep.domain.errors import InvalidInput, MissingExtra
from lancekeep.ports.object_store import ObjectStore
from lancekeep.store_urls import OBJECT_STORES

_LOCAL_URI = "file:///"
_URI = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/]*)/*(?P<path>.*)", re.DOTALL)
_BOOLEANS = {"true": True, "false": False}


class ObjectStoreAdapter(Protocol):
    """A class that opens the object stores of one URI scheme."""

    options: ClassVar[frozenset[str]]
    """The names of its storage options. The options of the native engine are permitted, too."""

    @classmethod
    def open(cls, authority: str, options: Mapping[str, str]) -> ObjectStore:
        """Open the store of the URIs ``scheme://authority/…``.

        The ``root_uri`` of the store makes a URI of a key, which the native engine must be able to open.
        """
        ...


def open_object_store(
    root: str,
    storage_options: Mapping[str, str],
    *,
    probe: bool = False,
    unsafe: bool = False,
    emulate_create: bool = False,
    opened: Mapping[str, ObjectStore] | None = None,
) -> tuple[ObjectStore, str]:
    """Open the object store that holds a root.

    Args:
        root: A path or a URI: ``file:///…`` or ``file:/…``, ``s3://bucket/…``, ``memory:///…`` (one store per
            process), the scheme of a registered adapter, or any scheme of fsspec. Percent escapes in a URI are decoded,
            as the native engine does. Symbolic links in local paths are resolved, so one directory has one key.
        storage_options: ``fsync`` (true or false) for files; the options of `s3_client.s3_client` for S3; otherwise the
            arguments of the fsspec implementation. Every root also accepts the options of the native engine.
        probe: `ObjectStore.prove` tests S3 servers other than AWS, below ``root``.
        unsafe: Warn after a failed probe instead of raising `UnsafeStore`.
        emulate_create: An fsspec store checks and then writes. The caller promises one writer at a time.
        opened: Stores to use again, by their root URIs; they were opened with the same options.

    Returns:
        The store, and the key of ``root`` in it, without a trailing slash.

    Raises:
        InvalidInput: The root or an option is invalid.
        MissingExtra: The adapter's package is not installed. The message says how to install it.
    """
    for name, value in storage_options.items():
        if not isinstance(value, str):
            raise InvalidInput(f"storage option {name!r} is of type {type(value).__name__}; expected text")
    if not root.isascii() and not _is_unicode(root):
        raise InvalidInput(f"root {root!r} contains a lone surrogate, which is not a valid character")
    if root.lower().startswith("file:/") and "://" not in root:
        root = f"file:///{root[len('file:') :].lstrip('/')}"  # the short form of RFC 8089
    if "://" not in root:
        if root.lower().startswith("file:"):
            raise InvalidInput(
                f"root {root!r}: a file URI is absolute; write file:/// and an absolute path, or the path "
                f"{root[len('file:') :]!r}, or './{root}' for a directory of this name"
            )
        return _open_local(root, storage_options)
    uri = _URI.fullmatch(root)
    if uri is None:
        raise InvalidInput(f"root {root!r} is neither a path nor a URI such as scheme://place/path")
    scheme, authority, path = uri["scheme"].lower(), uri["authority"], uri["path"]
    if "@" in authority and ":" in authority.rpartition("@")[0]:
        raise InvalidInput(f"root {scheme}://…: a URI must not contain a password; pass it as a storage option")
    if re.search(r"[?#]", authority + path):
        raise InvalidInput(f"root {root!r}: the native engine ends a URI at '?' and '#'; write %3F and %23 in a name")
    if scheme == "file":
        if authority not in ("", "localhost"):
            raise InvalidInput(f"root {root!r} names the host {authority!r}; expected file:/// and an absolute path")
        return _open_local(f"/{unquote(path)}", storage_options)
    key = unquote(path).rstrip("/")
    if scheme == "memory":
        _refuse_unknown(storage_options, (), "memory")
        return _memory(), f"{authority}/{key}".strip("/")
    if opened is not None and (found := opened.get(f"{scheme}://{authority}/")) is not None:
        return found, key
    if scheme == "s3":
        return _open_s3(authority, storage_options, key if probe else None, unsafe), key
    adapter: type[ObjectStoreAdapter] | None = OBJECT_STORES.adapter(scheme)
    if adapter is not None:
        _refuse_unknown(storage_options, tuple(adapter.options), f"{scheme}://")
        return adapter.open(authority, storage_options), key
    return _open_fsspec(scheme, f"{scheme}://{authority}/", storage_options, emulate_create), key


def uri_for_lance(store: ObjectStore, key: str) -> str:
    """Return the URI by which the native engine opens a key.

    `open_object_store` parses the URI back to the key. The engine decodes percent escapes and ends a URI at ``?`` and
    ``#``, in any scheme. URIs of files escape every unusual character. Other URIs escape only the characters that the
    engine would interpret.
    """
    if store.root_uri == _LOCAL_URI:
        return _LOCAL_URI + quote(key, safe="/$")
    return store.root_uri + re.sub(r"[\x00-\x20%#?\x7f]", lambda found: quote(found[0], safe=""), key)


def _open_local(path: str, options: Mapping[str, str]) -> tuple[ObjectStore, str]:
    from lancekeep.adapters.object_stores.local import LocalObjectStore

    _refuse_unknown(options, ("fsync",), "local files")
    fsync = options.get("fsync", "true").lower()
    if fsync not in _BOOLEANS:
        raise InvalidInput(f"storage option fsync is {fsync!r}; expected true or false")
    if not path or "\0" in path:
        raise InvalidInput(f"root {path!r} is not a path; expected one such as ./lake, or a URI")
    return LocalObjectStore(_BOOLEANS[fsync]), os.path.realpath(os.path.expanduser(path)).strip("/")


def _open_s3(bucket: str, options: Mapping[str, str], probe_below: str | None, unsafe: bool) -> ObjectStore:
    if not bucket:
        raise InvalidInput("root s3:// names no bucket; expected s3://bucket/path")
    try:
        from lancekeep.adapters.object_stores.s3 import S3ObjectStore
        from lancekeep.adapters.object_stores.s3_client import has_condition, s3_client
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("boto3", "botocore"):
            raise
        raise MissingExtra("s3:// needs boto3, which is not installed: pip install 'lancekeep[s3]'") from error
    client = s3_client(bucket, options)
    return S3ObjectStore(bucket, client, conditional=has_condition(options), probe_below=probe_below, unsafe=unsafe)


def _open_fsspec(scheme: str, root_uri: str, options: Mapping[str, str], emulate_create: bool) -> ObjectStore:
    from fsspec.registry import known_implementations, registry

    if scheme not in known_implementations and scheme not in registry:
        _refuse_scheme(scheme, set(OBJECT_STORES.schemes(["file", "memory", "s3", *known_implementations, *registry])))
    from lancekeep.adapters.object_stores.fsspec_store import open_fsspec

    return open_fsspec(scheme, root_uri, options, emulate_create=emulate_create)


@cache
def _memory() -> ObjectStore:
    from lancekeep.adapters.object_stores.memory import MemoryObjectStore

    return MemoryObjectStore()


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse_scheme(scheme: str, known: set[str]) -> NoReturn:
    raise InvalidInput(f"unknown scheme {scheme}://{_nearest(scheme, known)}; known are {', '.join(sorted(known))}")


def _refuse_unknown(options: Mapping[str, str], known: tuple[str, ...], what: str) -> None:
    for name in options:
        if name not in known and not is_native_option(name):
            own = f"{', '.join(known)} and " if known else ""
            raise InvalidInput(
                f"unknown storage option {name!r} for {what}{_nearest(name, {*known, *NATIVE_OPTIONS})}; known are "
                f"{own}the options of the native engine"
            )


def _nearest(name: str, known: set[str]) -> str:
    matches = difflib.get_close_matches(name, known, 1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""
