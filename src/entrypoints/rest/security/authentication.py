"""Authentication of requests, as ASGI middleware.

REST catalog specification, "Identity Header Mapping".
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any
from urllib.parse import urlsplit

import anyio.to_thread
import attrs
from lance_namespace.errors import ErrorCode
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from lancekeep.domain.authorization import Principal
from lancekeep.domain.errors import InvalidInput, StoreUnavailable
from lancekeep.entrypoints.rest.errors import HttpError
from lancekeep.entrypoints.rest.requests import Call
from lancekeep.entrypoints.rest.security.refusal import refuse
from lancekeep.ports.authentication import Authenticator

API_KEY, AUTHORIZATION = "x-api-key", "authorization"
_LONGEST = 16_384


class Authentication:
    """Accept requests with a valid API key or bearer token.

    They receive its principal, and a function that authenticates a caller who has waited again: its credential may have
    been revoked, or have expired.

    An API key is also accepted as a bearer token, for clients that know no other way. Credentials in a body are not
    read, because a body is read only for an authenticated caller.

    Args:
        app: The application.
        keys: Verifies API keys; None if there are none.
        tokens: Verifies bearer tokens; None if there are none.
    """

    def __init__(self, app: ASGIApp, keys: Authenticator | None, tokens: Authenticator | None) -> None:
        self._app = app
        self._keys = keys
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        authenticate = partial(self._principal, Headers(scope=scope))
        try:
            principal = await authenticate()
        except HttpError as error:
            await refuse(error, scope, receive, send)
            return
        scope.setdefault("state", {}).update(principal=principal, authenticate=authenticate)
        await self._app(scope, receive, send)

    async def _principal(self, headers: Headers) -> Principal:
        keys, bearers = headers.getlist(API_KEY), headers.getlist(AUTHORIZATION)
        if len(keys) + len(bearers) > 1:
            raise HttpError(400, "The request has several credentials; send one, as x-api-key or as bearer token.")
        if not keys and not bearers:
            raise _unauthenticated("The request has no credential; send x-api-key or Authorization: Bearer.")
        found: Principal | None = None
        if keys:
            found = await verified(self._keys, keys[0])
        else:
            scheme, _, token = bearers[0].partition(" ")
            if scheme.lower() == "bearer":
                found = await verified(self._tokens, token.strip()) or await verified(self._keys, token.strip())
        if found is None:
            raise _unauthenticated("The credential is not valid: it is unknown, malformed, expired or revoked.")
        return found


async def verified(authenticator: Authenticator | None, credential: str) -> Principal | None:
    """Return the principal of a credential; None if it is not valid.

    Raises:
        HttpError: The keys of the issuer cannot be read at the moment.
    """
    if authenticator is None or len(credential) > _LONGEST:
        return None
    try:
        return await anyio.to_thread.run_sync(authenticator.authenticate, credential)
    except StoreUnavailable as error:
        raise HttpError(503, str(error), ErrorCode.SERVICE_UNAVAILABLE, {"retry-after": "30"}) from error


def _unauthenticated(message: str) -> HttpError:
    return HttpError(401, message, ErrorCode.UNAUTHENTICATED, {"www-authenticate": "Bearer"})


def without_identity(call: Call, proceed: Callable[[Call], Any]) -> Any:
    """Call an operation without the credentials of its request.

    The namespace has no use for them.
    """
    return proceed(attrs.evolve(call, request=call.request.model_copy(update={"identity": None})))


class LocalOnly:
    """Protect a server without authentication from web pages.

    A page in a browser of the same machine can send requests to the loopback address, also under a name of its own that
    resolves to it. Browsers then name the site in ``Origin`` or ``Sec-Fetch-Site``, or their ``Host`` is not
    the loopback address.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        site = headers.get("sec-fetch-site", "none")
        origin = headers.get("origin")
        foreign = origin is not None and not is_loopback(_host(origin))
        if foreign or site not in ("none", "same-origin") or not is_loopback(_host(f"//{headers.get('host', '')}")):
            message = "A server without authentication answers only requests of this machine that no web page sends."
            await refuse(HttpError(403, message, ErrorCode.PERMISSION_DENIED), scope, receive, send)
            return
        await self._app(scope, receive, send)


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


@lru_cache(maxsize=1024)
def is_loopback(host: str) -> bool:
    """Return whether an address reaches this machine alone.

    Names other than localhost may resolve to anything.
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def require_authentication(host: str, *, authenticated: bool) -> None:
    """Refuse to listen on other addresses than loopback without authentication.

    Raises:
        InvalidInput: The address may be reached by other machines, and the server has no authentication.
    """
    if not authenticated and not is_loopback(host):
        raise InvalidInput(
            f"the server would listen on {host} without authentication; listen on 127.0.0.1, or configure server.keys "
            "(`lancekeep keys create`) or server.tokens"
        )
