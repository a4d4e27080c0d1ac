"""API keys in a file, as hashes.

A key is ``lk_<id>_<secret>``: the id is public, the secret has 256 random bits. The file holds the SHA-256 of each key,
so reading the file gives no access. A slow hash would add nothing, since 256 random bits cannot be guessed.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import attrs

from lancekeep.domain.authorization import Principal
from lancekeep.domain.errors import AlreadyExists, InvalidInput, NotFound
from lancekeep.local_files import Reloaded, WatchedFile, locked, not_reported, replace_file

PREFIX = "lk"
_LOG = logging.getLogger(__name__)
MOST_KEYS = 10_000
"""The most keys of a file: servers read it as a whole."""
MOST_GROUPS = 100
"""The most groups of a key."""
LONGEST = timedelta(days=36_525)
"""The longest time to live, and the longest overlap of two keys."""
_WHAT = "the file of keys"
_FORM = re.compile(rf"{PREFIX}_([0-9a-f]{{12}})_[A-Za-z0-9_-]{{43}}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_NO_HASH = hashlib.sha256(secrets.token_bytes(32)).hexdigest()
"""A hash without a key, so that an unknown id takes as long as a wrong secret."""


@attrs.frozen
class ApiKey:
    """A key without its secret.

    Attributes:
        id: Its public id.
        name: The name of its principal, ``key:<name>``. Several keys may have one name.
        groups: The groups of the principal.
        digest: The SHA-256 of the key, in hexadecimal.
        created: When it was created.
        expires: When it expires; None for never.
    """

    id: str
    name: str
    groups: tuple[str, ...]
    digest: str = attrs.field(repr=False)
    created: datetime
    expires: datetime | None = None

    def is_expired(self, now: datetime) -> bool:
        return self.expires is not None and self.expires <= now

    @property
    def principal(self) -> Principal:
        return Principal(f"key:{self.name}", frozenset(self.groups))


Permit = Callable[[Mapping[str, ApiKey]], None]
"""Raises an error for a change that is not permitted, given the keys before it."""


def any_change(keys: Mapping[str, ApiKey]) -> None:
    """Permit every change."""


def key_id_of(credential: str) -> str | None:
    """Return the id in an API key; None if it is none. The key need not be valid."""
    form = _FORM.fullmatch(credential)
    return form[1] if form else None


class KeyFile:
    """The keys in a file that only its owner may read.

    Changes replace the file atomically, under a lock. Each asks ``permit`` under the lock, before it changes anything.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(
        self,
        name: str,
        groups: Sequence[str] = (),
        expires: datetime | None = None,
        now: datetime | None = None,
        permit: Permit = any_change,
    ) -> tuple[ApiKey, str]:
        """Create a key.

        Returns:
            The key without its secret, and the whole key, which nothing stores.

        Raises:
            InvalidInput: The name, a group or the end is not valid, there are too many keys, or the file is damaged or
                readable by other users.
            Unsupported: This process may not change the file.
        """
        moment = now or datetime.now(UTC)
        _require_names(name, groups)
        if expires is not None and expires - moment > LONGEST:
            raise InvalidInput(
                f"the key would be valid for more than {LONGEST.days} days; give a shorter time, or none"
            )
        with locked(self.path, _WHAT) as target:
            keys = self.present()
            permit(keys)
            key, whole = _made(name, tuple(groups), moment, expires)
            self._write(target, {**keys, **_new(keys, key)})
        return key, whole

    def rotate(
        self, key_id: str, overlap: timedelta, now: datetime | None = None, permit: Permit = any_change
    ) -> tuple[ApiKey, ApiKey, str]:
        """Create a key in place of an old key, which expires after an overlap.

        The new key has the name and the groups of the old one, and the same time to live.

        Returns:
            The old key with its new end, the new key without its secret, and the whole new key.

        Raises:
            InvalidInput: The old key has expired, the overlap is too long, or there are too many keys.
            NotFound: No key has this id.
            Unsupported: This process may not change the file.
        """
        moment = now or datetime.now(UTC)
        if not timedelta() <= overlap <= LONGEST:
            raise InvalidInput(f"the overlap is {overlap}; give a time from 0 to {LONGEST.days} days")
        with locked(self.path, _WHAT) as target:
            keys = self.present()
            permit(keys)
            old = self._valid(keys, key_id, moment)
            end = moment + overlap
            expires = None if old.expires is None else moment + (old.expires - old.created)
            key, whole = _made(old.name, old.groups, moment, expires)
            old = attrs.evolve(old, expires=end if old.expires is None else min(old.expires, end))
            self._write(target, {**keys, key_id: old, **_new(keys, key)})
        return old, key, whole

    def expire(
        self, key_id: str, expires: datetime, now: datetime | None = None, permit: Permit = any_change
    ) -> ApiKey:
        """Let a key expire at a time, which may be later than its present end.

        Returns:
            The key with its new end.

        Raises:
            InvalidInput: The key has expired already, or the time is too far.
            NotFound: No key has this id.
            Unsupported: This process may not change the file.
        """
        moment = now or datetime.now(UTC)
        if expires - moment > LONGEST:
            raise InvalidInput(f"the key would be valid for more than {LONGEST.days} days; give a shorter time")
        with locked(self.path, _WHAT) as target:
            keys = self.present()
            permit(keys)
            key = attrs.evolve(self._valid(keys, key_id, moment), expires=expires)
            self._write(target, {**keys, key_id: key})
        return key

    def revoke(self, key_id: str, permit: Permit = any_change) -> ApiKey:
        """Remove a key. Servers notice it at their next request.

        Raises:
            NotFound: No key has this id.
            Unsupported: This process may not change the file.
        """
        with locked(self.path, _WHAT) as target:
            keys = self.present()
            permit(keys)
            revoked = keys.pop(key_id, None)
            if revoked is None:
                raise self._absent(key_id)
            self._write(target, keys)
        return revoked

    def present(self) -> dict[str, ApiKey]:
        """Return the keys by id; none without the file."""
        return self.keys() if self.path.exists() else {}

    def keys(self) -> dict[str, ApiKey]:
        """Return the keys by id.

        Raises:
            InvalidInput: The file cannot be read, other users may read it, or its content is not valid.
        """
        try:
            with open(self.path, "rb") as file:
                status = os.fstat(file.fileno())
                # A system such as Kubernetes mounts secrets as files of root that a group may read.
                if status.st_mode & (0o077 if status.st_uid else 0o037):
                    raise InvalidInput(f"other users may access {self.path}; restrict it with `chmod 600 {self.path}`")
                content = json.loads(file.read())
        except OSError as error:
            raise InvalidInput(f"cannot read the keys {self.path}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            if isinstance(error, InvalidInput):
                raise
            raise InvalidInput(f"{self.path} is not a file of keys; create one with `lancekeep keys create`") from None
        try:
            if content.keys() != {"keys"}:
                raise ValueError("expected the key 'keys' alone")
            return {key.id: key for key in map(_parsed, content["keys"])}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidInput(f"{self.path} is not a file of keys: {type(error).__name__}") from None

    def _valid(self, keys: Mapping[str, ApiKey], key_id: str, now: datetime) -> ApiKey:
        key = keys.get(key_id)
        if key is None:
            raise self._absent(key_id)
        if key.is_expired(now):
            raise InvalidInput(f"the key {key_id} has expired; create a new key with `lancekeep keys create`")
        return key

    def _absent(self, key_id: str) -> NotFound:
        return NotFound(f"{self.path} has no key {key_id[:16]!r}; list the keys with `lancekeep keys list`")

    def _write(self, target: Path, keys: Mapping[str, ApiKey]) -> None:
        content = json.dumps({"keys": [_document(key) for key in keys.values()]}, indent=1).encode()
        replace_file(target, content, _WHAT, self.path)


class ApiKeys:
    """An `Authenticator` for the keys of a file.

    The file is read again whenever it changes. If a changed file is invalid, the last valid keys stay in force, and
    the log reports the error once. Without the file, no key is valid.

    Args:
        path: The file.
        reloaded: Called after each change of the file.

    Raises:
        InvalidInput: The file cannot be read, or is invalid.
    """

    def __init__(self, path: Path, reloaded: Reloaded = not_reported) -> None:
        self._file = KeyFile(path)
        self._watched = WatchedFile(path)
        self._reloaded = reloaded
        self._keys = self._file.keys()

    def __repr__(self) -> str:
        return f"ApiKeys({str(self._file.path)!r})"

    def authenticate(self, credential: str, now: datetime | None = None) -> Principal | None:
        """Return the principal of a key; None for an unknown, expired or revoked key."""
        form = _FORM.fullmatch(credential)
        key = self._current().get(form[1]) if form else None
        matches = hmac.compare_digest(_digest(credential), _NO_HASH if key is None else key.digest)
        if key is None or not matches or key.is_expired(now or datetime.now(UTC)):
            return None
        return key.principal

    def _current(self) -> dict[str, ApiKey]:
        self._watched.refresh(self._reload)
        return self._keys

    def _reload(self) -> None:
        problem: str | None = None
        try:
            self._keys = self._file.present()
        except InvalidInput as error:
            problem = str(error)
            _LOG.error("The last valid keys stay in force: %s", error)
        self._reloaded(self._file.path, problem)


def _require_names(name: str, groups: Sequence[str]) -> None:
    for each in (name, *groups):
        if not _NAME.fullmatch(each) or key_id_of(each) is not None:  # names are in logs, and keys are not
            raise InvalidInput(
                f"the name {each[:16]!r} is not valid: use 1 to 64 letters, digits and . _ @ -, beginning with a "
                "letter or digit"
            )
    if len(groups) > MOST_GROUPS:
        raise InvalidInput(f"the key would have {len(groups)} groups; give at most {MOST_GROUPS}")


def _new(keys: Mapping[str, ApiKey], key: ApiKey) -> dict[str, ApiKey]:
    """Return a new key by its id, if there may be one more."""
    if key.id in keys:
        raise AlreadyExists(f"a key with the random id {key.id} exists; create the key again")
    if len(keys) >= MOST_KEYS:
        raise InvalidInput(f"the file has {len(keys)} keys already, as many as it may have; revoke keys that expired")
    return {key.id: key}


def _made(name: str, groups: tuple[str, ...], now: datetime, expires: datetime | None) -> tuple[ApiKey, str]:
    """Return a new key without its secret, and the whole key."""
    key_id = secrets.token_hex(6)
    whole = f"{PREFIX}_{key_id}_{secrets.token_urlsafe(32)}"
    return ApiKey(key_id, name, groups, _digest(whole), now, expires), whole


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def _document(key: ApiKey) -> dict[str, Any]:
    return {
        "id": key.id,
        "name": key.name,
        "groups": list(key.groups),
        "sha256": key.digest,
        "created": key.created.isoformat(),
        "expires": key.expires and key.expires.isoformat(),
    }


def _parsed(document: Mapping[str, Any]) -> ApiKey:
    if document.keys() != {"id", "name", "groups", "sha256", "created", "expires"}:
        raise ValueError("unknown or missing fields")
    expires = document["expires"]
    if not _NAME.fullmatch(document["name"]) or not re.fullmatch("[0-9a-f]{64}", document["sha256"]):
        raise ValueError("malformed name or hash")
    return ApiKey(
        document["id"],
        document["name"],
        tuple(document["groups"]),
        document["sha256"],
        _moment(document["created"]),
        None if expires is None else _moment(expires),
    )


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("a time without a zone")
    return moment
