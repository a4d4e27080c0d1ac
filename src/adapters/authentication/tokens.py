"""Bearer tokens: JWTs, verified with the public keys of their issuer.

RFC 7519 (JWT), RFC 7517 (key sets), RFC 8725 (best current practices).
"""

from __future__ import annotations

import base64
import json
import logging
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Condition
from typing import Any
from urllib.parse import urlsplit

import attrs
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet
from joserfc.jws import JWSRegistry

from lancekeep.domain.authorization import Principal
from lancekeep.domain.errors import InvalidInput, StoreUnavailable

ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA",
)  # fmt: skip
"""The accepted algorithms. All are asymmetric: with HS256, a public key would serve as a secret."""

_KINDS = ("RSA", "EC", "OKP")
_LARGEST_KEY_SET = 1 << 20
_DEADLINE = 10.0
"""Seconds in which a key set is read, or not at all."""
_MOST_WAITING = 8
"""How many callers wait for the first key set; each holds a thread, which other callers need."""
_LOG = logging.getLogger(__name__)


@attrs.frozen(kw_only=True)
class Issuer:
    """An issuer of tokens, and how far its word is trusted.

    Attributes:
        jwks: The URL or the file of its key set.
        issuer: The required claim ``iss``.
        audience: The required value in the claim ``aud``.
        groups_claim: The claim that lists the groups of the principal; None if tokens carry no groups.
        leeway: How many seconds the clocks of issuer and server may differ.
        refresh: After how many seconds the key set is read again.
        interval: The minimum number of seconds between two attempts to read the key set.
        longest_outage: For how many seconds the last key set stays valid if no key set can be read.
    """

    jwks: str
    issuer: str
    audience: str
    groups_claim: str | None = None
    leeway: int = 30
    refresh: float = 300.0
    interval: float = 30.0
    longest_outage: float = 3600.0


class KeySets:
    """The key set of an issuer, read when it is needed.

    An unknown key id makes it read again, at most once per ``interval``, so that neither a rotation of keys nor
    fabricated ids cause trouble. One caller reads, and holds no lock while it does. Callers whose keys are known go on
    with the last key set. A few others wait for the reader, if there is no key set yet; the rest is sent away.
    """

    def __init__(
        self, source: Issuer, read: Callable[[str], bytes], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._source = source
        self._read = read
        self._clock = clock
        self._changed = Condition()
        self._keys: KeySet | None = None
        self._is_reading = False
        self._waiting = 0
        self._read_at = self._tried_at = float("-inf")

    def get(self, key_id: str | None) -> KeySet:
        """Return the current keys, which need not contain the id.

        Raises:
            StoreUnavailable: No key set can be read, and the last key set is too old; or it is being read for an
                unknown id.
        """
        if self._is_due(key_id):
            self._refresh()
        with self._changed:
            if self._is_reading and not self._has(key_id):
                if self._keys is not None or self._waiting == _MOST_WAITING:
                    raise StoreUnavailable(f"the keys of the issuer {self._source.issuer} are being read; try again")
                self._waiting += 1
                self._changed.wait_for(lambda: not self._is_reading, _DEADLINE)
                self._waiting -= 1
            if self._keys is None or self._clock() - self._read_at > self._source.longest_outage:
                raise StoreUnavailable(
                    f"the keys of the issuer {self._source.issuer} cannot be read from {self._source.jwks}; "
                    "try again later"
                )
            return self._keys

    def _is_due(self, key_id: str | None) -> bool:
        """Return whether the caller has to read the key set; no other caller does at the same time."""
        with self._changed:
            now = self._clock()
            is_old = now - self._read_at > self._source.refresh
            if self._is_reading or not (is_old or not self._has(key_id)):
                return False
            if now - self._tried_at < self._source.interval:
                return False
            self._tried_at = now
            self._is_reading = True
            return True

    def _has(self, key_id: str | None) -> bool:
        return self._keys is not None and (key_id is None or any(key.kid == key_id for key in self._keys.keys))

    def _refresh(self) -> None:
        keys = None
        try:
            keys = parse_keys(self._read(self._source.jwks))
        except (OSError, ValueError, JoseError) as error:
            _LOG.warning("Cannot read the key set %s: %s", self._source.jwks, type(error).__name__)
        finally:
            with self._changed:
                if keys is not None:
                    self._keys = keys
                    self._read_at = self._tried_at
                self._is_reading = False
                self._changed.notify_all()


class Tokens:
    """An `Authenticator` for the tokens of one issuer.

    The name of a principal is ``jwt:`` and the claim ``sub``.
    """

    def __init__(
        self,
        issuer: Issuer,
        *,
        read: Callable[[str], bytes] | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], int] = lambda: int(time.time()),
    ) -> None:
        _check(issuer)
        self._issuer = issuer
        self._sets = KeySets(issuer, read or read_key_set, clock)
        self._registry = JWSRegistry(algorithms=ALGORITHMS)
        self._claims = jwt.JWTClaimsRegistry(
            now=now,
            leeway=issuer.leeway,
            iss={"essential": True, "value": issuer.issuer},
            aud={"essential": True, "value": issuer.audience},
            exp={"essential": True},
            sub={"essential": True},
        )

    def __repr__(self) -> str:
        return f"Tokens({self._issuer.issuer!r})"

    def authenticate(self, credential: str) -> Principal | None:
        """Return the principal of a token; None unless signature and claims are valid."""
        try:
            key_id = _key_id(credential)
            token = jwt.decode(credential, self._sets.get(key_id), registry=self._registry, algorithms=ALGORITHMS)
            self._claims.validate(token.claims)
        except (JoseError, ValueError, TypeError, RecursionError):
            return None
        return self._principal(token.claims)

    def _principal(self, claims: Mapping[str, Any]) -> Principal | None:
        subject = claims["sub"]
        groups = claims.get(self._issuer.groups_claim, []) if self._issuer.groups_claim else []
        if not isinstance(subject, str) or not subject or not isinstance(groups, list):
            return None
        if not all(isinstance(group, str) for group in groups):
            return None
        return Principal(f"jwt:{subject}", frozenset(groups))


def parse_keys(content: bytes) -> KeySet:
    """Return the public signature keys of a key set.

    Symmetric keys and keys for encryption are left out.

    Raises:
        ValueError, JoseError: The content is no key set, or has no public signature key.
    """
    document = json.loads(content)
    keys = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(keys, list):
        raise ValueError("no key set")
    signing = [
        each
        for each in keys
        if isinstance(each, dict) and each.get("kty") in _KINDS and each.get("use", "sig") == "sig"
    ]
    if not signing:
        raise ValueError("no signature key")
    return KeySet.import_key_set({"keys": signing})


def read_key_set(place: str) -> bytes:
    """Read a key set from a URL, without redirects, or from a file."""
    if "://" not in place:
        return Path(place).read_bytes()
    opener = urllib.request.build_opener(_NoRedirect)
    end, content = time.monotonic() + _DEADLINE, b""
    with opener.open(place, timeout=5) as response:
        while part := response.read1(_LARGEST_KEY_SET):
            content += part
            if len(content) > _LARGEST_KEY_SET:
                raise ValueError("the key set is too large")
            if time.monotonic() > end:  # the time-out is for one part
                raise TimeoutError("the key set arrives too slowly")
    return content


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _key_id(token: str) -> str | None:
    """Return the key id in the header of a token, which nothing has verified yet."""
    header = token.partition(".")[0]
    document = json.loads(base64.urlsafe_b64decode(header + "=" * (-len(header) % 4)))
    key_id = document.get("kid") if isinstance(document, dict) else None
    return key_id if isinstance(key_id, str) else None


def _check(issuer: Issuer) -> None:
    for name in ("jwks", "issuer", "audience"):
        if not getattr(issuer, name):
            raise InvalidInput(f"tokens: {name} is empty; tokens need jwks, issuer and audience")
    url = urlsplit(issuer.jwks)
    local = url.hostname in ("localhost", "127.0.0.1", "::1")
    if "://" in issuer.jwks and url.scheme != "https" and not (url.scheme == "http" and local):
        raise InvalidInput(f"tokens: the key set {issuer.jwks} must have an https:// URL, or be a file")
    if url.username is not None:
        raise InvalidInput("tokens: the URL of the key set holds a user name; give a URL without credentials")
    if not 0 <= issuer.leeway <= 300:
        raise InvalidInput(f"tokens: leeway is {issuer.leeway} seconds; give 0 to 300")
