"""Temporary credentials for Google Cloud Storage: tokens with a boundary."""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC
from functools import partial
from threading import Lock
from typing import Any

import attrs
import google.auth
from google.auth.exceptions import GoogleAuthError, OAuthError, TransportError
from google.auth.transport.urllib3 import Request
from google.oauth2.sts import Client
from urllib3 import PoolManager, Timeout

from lancekeep.adapters.credential_vendors.locations import directory
from lancekeep.adapters.credential_vendors.remembered import Issued, Remembered
from lancekeep.domain.authorization import Action
from lancekeep.domain.errors import AccessDenied, InvalidInput, StoreUnavailable

ENDPOINT = "https://sts.googleapis.com/v1/token"
MOST_RULES = 10
LONGEST_CONDITION = 2048
"""The rules of a Credential Access Boundary, and the characters of a condition, that the token service accepts."""

FRESH = 2700
"""The seconds that the token of the account must still live, or it is replaced; a limited token lives as long."""

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
_READ = "inRole:roles/storage.objectViewer"
_WRITE: Mapping[Action, str] = {
    Action.WRITE: "inRole:roles/storage.objectCreator",
    Action.DELETE: "inRole:roles/storage.objectUser",
}
_ENDPOINT = re.compile(r"https://|http://127\.0\.0\.1[:/]")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]+[a-z0-9]")
_PUBLIC = ("allow_http", "allow_invalid_certificates", "google_base_url")
"""The storage options of the catalog that clients need, too."""


@attrs.frozen(kw_only=True)
class Account:
    """The Google account whose access is limited and handed out.

    Attributes:
        credentials: The file of a service account key or of another kind of credentials; by default the Application
            Default Credentials of the process: ``GOOGLE_APPLICATION_CREDENTIALS``, or the metadata server.
        endpoint: The URL of the token service that limits tokens.
    """

    credentials: str = ""
    endpoint: str = ENDPOINT


class GcsVendor:
    """A `CredentialVendor` that limits an access token to one table.

    It exchanges the token of the account for one with a Credential Access Boundary, which lives as long. Tokens are
    remembered per table, action and principal.

    Args:
        account: The account. Its own roles must permit what the tokens are to permit.
        storage_options: The storage options of the catalog; of these, the answer has only what clients need.
        now: Returns the time in seconds since 1970.

    Raises:
        InvalidInput: The account has no valid credentials, or the endpoint is no URL.
    """

    def __init__(
        self, account: Account, storage_options: Mapping[str, str], *, now: Callable[[], float] = time.time
    ) -> None:
        if not _ENDPOINT.match(account.endpoint):
            raise InvalidInput(f"vending: endpoint is {account.endpoint!r}; give the https URL of a token service")
        self._now = now
        self._remembered = Remembered(now)
        self._renewing = Lock()
        self._transport = Request(PoolManager(timeout=Timeout(connect=3, read=7), retries=1))
        self._exchange = Client(account.endpoint)
        self._public = {name: value for name, value in storage_options.items() if name.lower() in _PUBLIC}
        self._source = self._credentials(account.credentials)

    def __repr__(self) -> str:
        return "GcsVendor()"

    def vend(self, location: str, action: Action, principal: str, sources: Sequence[str] = ()) -> Mapping[str, str]:
        question = (location, action, principal, tuple(sources))
        return self._remembered.vend(question, partial(self._issue, location, action, sources))

    def _issue(self, location: str, action: Action, sources: Sequence[str]) -> Issued:
        boundary = access_boundary(location, action, sources)
        asked = self._now()
        try:
            token, expires = self._full_token()
            found = self._exchange.exchange_token(
                self._request,
                grant_type="urn:ietf:params:oauth:grant-type:token-exchange",
                subject_token=token,
                subject_token_type=_ACCESS_TOKEN,
                requested_token_type=_ACCESS_TOKEN,
                additional_options=boundary,
            )
            limited, lifetime = found["access_token"], found.get("expires_in")
        except TransportError:
            raise StoreUnavailable("the token service of Google does not answer; try again later") from None
        except (GoogleAuthError, KeyError, ValueError) as error:
            raise AccessDenied(f"the token service of Google refuses to limit a token: {_code(error)}") from None
        if lifetime is not None:
            expires = min(expires, asked + int(lifetime))
        if expires <= asked:
            raise AccessDenied("the account of Google has no token that is valid for some time; see its credentials")
        return Issued({**self._public, "google_storage_token": limited}, asked, expires)

    def _full_token(self) -> tuple[str, float]:
        """Return an access token of the account that lives for a while, and when it expires."""
        with self._renewing:
            if self._expiry() < self._now() + FRESH:
                self._source.refresh(self._request)
            return self._source.token, self._expiry()

    def _expiry(self) -> float:
        expiry = self._source.expiry
        return 0.0 if expiry is None else expiry.replace(tzinfo=UTC).timestamp()

    def _request(self, url: str, method: str = "GET", **given: Any) -> Any:
        """Send a request of the library, which has a token; no redirect takes it to another host."""
        answer = self._transport(url, method, **{**given, "timeout": None, "redirect": False})
        if answer.status >= 500 or answer.status == 429:
            raise TransportError(f"HTTP {answer.status}")
        return answer

    def _credentials(self, file: str) -> Any:
        try:
            if file:
                return google.auth.load_credentials_from_file(file, scopes=[_SCOPE])[0]
            return google.auth.default(scopes=[_SCOPE])[0]
        except (GoogleAuthError, OSError, ValueError) as error:
            raise InvalidInput(
                f"vending: {file or 'the environment'} has no valid credentials of Google "
                f"({type(error).__name__}); set server.vending.credentials to the file of a service account key, or "
                "run the server where Application Default Credentials exist"
            ) from None


def access_boundary(location: str, action: Action, sources: Sequence[str] = ()) -> dict[str, Any]:
    """Return the Credential Access Boundary for a location and its sources.

    The prefixes end with a slash, and are string literals of the Common Expression Language: the name of a table may
    contain quotes.

    Raises:
        InvalidInput: A location is not a directory in a bucket of Google Cloud Storage, or they need too many rules.
    """
    bucket, prefix = _directory(location)
    listed = f"api.getAttribute('storage.googleapis.com/objectListPrefix', '').startsWith({_literal(prefix)})"
    rules = [_rule(bucket, _READ, f"{_below(bucket, prefix)} || {listed}")]
    if action in _WRITE:
        rules.append(_rule(bucket, _WRITE[action], _below(bucket, prefix)))
    read: dict[str, list[str]] = defaultdict(list)
    for source in sources:
        other, prefix = _directory(source)
        read[other].append(_below(other, prefix))
    rules += [_rule(other, _READ, " || ".join(conditions)) for other, conditions in read.items()]
    longest = max(len(rule["availabilityCondition"]["expression"]) for rule in rules)
    if len(rules) > MOST_RULES or longest > LONGEST_CONDITION:
        raise InvalidInput(
            f"credentials cannot be limited to {location} and the {len(sources)} directories that it reads: the "
            f"boundary has {len(rules)} rules and a condition of {longest} characters, and Google accepts "
            f"{MOST_RULES} and {LONGEST_CONDITION}. Set vend_credentials to false, and read the table through the "
            "server"
        )
    return {"accessBoundary": {"accessBoundaryRules": rules}}


def _rule(bucket: str, role: str, condition: str) -> dict[str, Any]:
    return {
        "availableResource": f"//storage.googleapis.com/projects/_/buckets/{bucket}",
        "availablePermissions": [role],
        "availabilityCondition": {"expression": condition},
    }


def _below(bucket: str, prefix: str) -> str:
    return f"resource.name.startsWith({_literal(f'projects/_/buckets/{bucket}/objects/{prefix}')})"


def _literal(text: str) -> str:
    """Return a string literal of the Common Expression Language, which has all escapes of JSON but surrogates."""
    return json.dumps(text, ensure_ascii=False)


def _directory(location: str) -> tuple[str, str]:
    bucket, prefix = directory(location, "gs", "a bucket of Google Cloud Storage")
    if not _BUCKET.fullmatch(bucket):
        raise InvalidInput(f"credentials cannot be limited to {location!r}; {bucket!r} is not the name of a bucket")
    return bucket, prefix


def _code(error: Exception) -> str:
    """Return the kind of an error; its message could quote what was sent."""
    code = re.match(r"Error code (\w+)", str(error.args[0])) if isinstance(error, OAuthError) and error.args else None
    return type(error).__name__ if code is None else code[1]
