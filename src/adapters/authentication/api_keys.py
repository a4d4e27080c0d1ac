"""API keys in a file, as hashes.

A key is ``lk_<id>_<secret>``: the id is public, the secret has 256 random bits. The file holds the SHA-256 of each key,
so reading the file gives no access. A slow hash would add nothing, since 256 random bits cannot be guessed.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import logging
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import attrs

from lancekeep.domain.authorization import Principal
from lancekeep.domain.errors import AlreadyExists, InvalidInput, NotFound
from lancekeep.local_files import Reloaded, WatchedFile, not_reported

PREFIX = "lk"
_LOG = logging.getLogger(__name__)
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


class KeyFile:
    """The keys in a file that only its owner may read.

    Changes replace the file atomically, under a lock.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(
        self, name: str, groups: tuple[str, ...] = (), expires: datetime | None = None, now: datetime | None = None
    ) -> tuple[ApiKey, str]:
        """Create a key.

        Returns:
            The key without its secret, and the whole key, which nothing stores.

        Raises:
            InvalidInput: The name or a group is not valid, or the file is damaged or readable by other users.
        """
        for each in (name, *groups):
            if not _NAME.fullmatch(each):
                raise InvalidInput(
                    f"the name {each!r} is not valid: use 1 to 64 letters, digits and . _ @ -, beginning with a letter "
                    "or digit"
                )
        with self._locked():
            keys = self.keys() if self.path.exists() else {}
            key, whole = _made(name, groups, now or datetime.now(UTC), expires)
            if key.id in keys:
                raise AlreadyExists(f"a key with the random id {key.id} exists; create the key again")
            self._write({**keys, key.id: key})
        return key, whole

    def rotate(self, key_id: str, overlap: timedelta, now: datetime | None = None) -> tuple[ApiKey, ApiKey, str]:
        """Create a key in place of an old key, which expires after an overlap.

        The new key has the name and the groups of the old one, and the same time to live.

        Returns:
            The old key with its new end, the new key without its secret, and the whole new key.

        Raises:
            InvalidInput: The old key has expired.
            NotFound: No key has this id.
        """
        moment = now or datetime.now(UTC)
        with self._locked():
            keys = self.keys()
            old = keys.get(key_id)
            if old is None:
                raise self._absent(key_id)
            if old.is_expired(moment):
                raise InvalidInput(f"the key {key_id} has expired; create a new key with `lancekeep keys create`")
            end = moment + overlap
            expires = None if old.expires is None else moment + (old.expires - old.created)
            key, whole = _made(old.name, old.groups, moment, expires)
            old = attrs.evolve(old, expires=end if old.expires is None else min(old.expires, end))
            self._write({**keys, key_id: old, key.id: key})
        return old, key, whole

    def revoke(self, key_id: str) -> ApiKey:
        """Remove a key. Servers notice it at their next request.

        Raises:
            NotFound: No key has this id.
        """
        with self._locked():
            keys = self.keys()
            revoked = keys.pop(key_id, None)
            if revoked is None:
                raise self._absent(key_id)
            self._write(keys)
        return revoked

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
        except ValueError as error:
            if isinstance(error, InvalidInput):
                raise
            raise InvalidInput(f"{self.path} is not a file of keys; create one with `lancekeep keys create`") from None
        try:
            if content.keys() != {"keys"}:
                raise ValueError("expected the key 'keys' alone")
            return {key.id: key for key in map(_parsed, content["keys"])}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidInput(f"{self.path} is not a file of keys: {type(error).__name__}") from None

    def _absent(self, key_id: str) -> NotFound:
        return NotFound(f"{self.path} has no key {key_id[:20]!r}; list the keys with `lancekeep keys list`")

    def _write(self, keys: Mapping[str, ApiKey]) -> None:
        content = json.dumps({"keys": [_document(key) for key in keys.values()]}, indent=1).encode()
        staged = self.path.with_name(f".{self.path.name}.{secrets.token_hex(6)}")
        descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(staged, self.path)
        except BaseException:
            staged.unlink(missing_ok=True)
            raise

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = self.path.with_name(f".{self.path.name}.lock")
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise InvalidInput(f"cannot lock the keys {self.path}: {error.strerror}") from error
        with os.fdopen(descriptor, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


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
            self._keys = self._file.keys() if self._file.path.exists() else {}
        except InvalidInput as error:
            problem = str(error)
            _LOG.error("The last valid keys stay in force: %s", error)
        self._reloaded(self._file.path, problem)


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
