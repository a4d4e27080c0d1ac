"""Sign browsers in, as ASGI middleware.

A server with authentication keeps the credential itself in the cookie, so that any process of the server can answer,
and a revoked key ends its sessions at once. A local page has one session, which a token in its first URL opens.
"""

from __future__ import annotations

import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from urllib.parse import parse_qs, quote, urlsplit

from lance_namespace.errors import ErrorCode
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from lancekeep.domain.authorization import Principal
from lancekeep.entrypoints.page.assets import assets
from lancekeep.entrypoints.page.environment import environment
from lancekeep.entrypoints.page.responses import error_page, prefix_of, protected
from lancekeep.entrypoints.rest.errors import HttpError, Problem
from lancekeep.entrypoints.rest.security.authentication import verified
from lancekeep.ports.authentication import Authenticator

SIGN_IN, SIGN_OUT = "/sign-in", "/sign-out"
OPEN = "/open"
"""The path of the first URL of a local page."""

LONGEST_COOKIE = 3800
"""The maximum size of a value for which every browser keeps the cookie."""

_INVALID = "The credential is not valid: it is unknown, malformed, expired or revoked."


class KeySessions:
    """Sign browsers in with an API key or a bearer token.

    The cookie is `HttpOnly` and `SameSite=Lax`: a link from another site shows a page, and no form of another site is
    sent with it. It ends with the browser's session, or by signing out.

    Args:
        app: The application, which receives the principal.
        keys: Verifies API keys; None if there are none.
        tokens: Verifies bearer tokens; None if there are none.
        secure: Whether the server speaks TLS.
    """

    def __init__(self, app: ASGIApp, keys: Authenticator | None, tokens: Authenticator | None, *, secure: bool) -> None:
        self._app = app
        self._keys = keys
        self._tokens = tokens
        self._secure = secure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        asset = assets().response(scope["path"])
        if asset is not None:  # before the limit of the rate, which counts all requests without a principal together
            await protected(asset)(scope, receive, send)
            return
        state, request = scope.setdefault("state", {}), Request(scope, receive)
        try:
            response = await self._session(request)
        except ClientDisconnect:
            return
        except HttpError as error:
            state["error"], state["problem"] = error, Problem.of(error)
            shown = {"prefix": prefix_of(scope)}
            response = error_page(environment(), state["problem"], shown, state.get("request_id", ""))
        if response is None:
            await self._app(scope, receive, send)
            return
        state["operation"] = "page session"
        await protected(response)(scope, receive, send)

    async def _session(self, request: Request) -> Response | None:
        """Answer about the session itself; None for a request with a valid session."""
        path, is_post, prefix = request.scope["path"], request.method == "POST", prefix_of(request.scope)
        if is_post and path in (SIGN_IN, SIGN_OUT):
            require_same_origin(request.headers)
            return self._signed_out(prefix) if path == SIGN_OUT else await self._sign_in(request)
        if path == SIGN_IN:
            return _form(prefix, request.query_params.get("next", f"{prefix}/"))
        principal = await self._principal(_credential(request.cookies.get(self._cookie(request), "")))
        if principal is not None:
            request.scope["state"]["principal"] = principal
            return None
        if request.method not in ("GET", "HEAD"):
            raise HttpError(401, "You are not signed in.", ErrorCode.UNAUTHENTICATED)
        target = prefix + request.scope["raw_path"].decode("latin-1")  # still encoded: names may have any character
        target = f"{target}?{request.url.query}" if request.url.query else target
        return RedirectResponse(f"{prefix}{SIGN_IN}?next={quote(target, safe='')}", 303)

    async def _sign_in(self, request: Request) -> Response:
        try:
            form = parse_qs((await request.body()).decode(), errors="strict", max_num_fields=10)
        except ValueError:
            raise HttpError(400, "The form is not percent-encoded UTF-8.") from None
        credential, target = (form.get(name, [""])[-1] for name in ("credential", "next"))
        credential, prefix = credential.strip(), prefix_of(request.scope)
        principal = await self._principal(credential)
        if principal is None:
            return _form(prefix, target, _INVALID, 401)
        request.scope["state"]["principal"] = principal
        value = urlsafe_b64encode(credential.encode()).decode().rstrip("=")
        if len(value) > LONGEST_COOKIE:
            message = "The token is too long for a cookie of a browser. Sign in with an API key."
            return _form(prefix, target, message, 400)
        response = RedirectResponse(_within(prefix, target), 303)
        response.set_cookie(
            self._cookie(request), value, path="/", secure=self._is_secure(request), httponly=True, samesite="lax"
        )
        return response

    def _signed_out(self, prefix: str) -> Response:
        response = RedirectResponse(f"{prefix}{SIGN_IN}", 303)
        for name in _COOKIES:
            response.delete_cookie(name, path="/", secure=name == _COOKIES[0], httponly=True, samesite="lax")
        return response

    def _is_secure(self, request: Request) -> bool:
        """Return whether the browser speaks TLS, at least with a proxy in front of the server."""
        return self._secure or request.headers.get("origin", "").startswith("https://")

    def _cookie(self, request: Request) -> str:
        """Return the name of the cookie; browsers take the first name only by TLS and from this very host."""
        return _COOKIES[0] if self._is_secure(request) or _COOKIES[0] in request.cookies else _COOKIES[1]

    async def _principal(self, credential: str) -> Principal | None:
        if not credential:
            return None
        return await verified(self._tokens, credential) or await verified(self._keys, credential)


_COOKIES = ("__Host-lancekeep", "lancekeep")


class LocalSession:
    """Open the page in the browser to which a one-time token was passed.

    The token is replaced by a cookie and leaves the URL, so it is worthless in a history or a list of processes. The
    name of the cookie has the port, because all ports of a host share cookies.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.token = secrets.token_urlsafe(32)
        self._app = app
        self._secret = secrets.token_urlsafe(32)
        self._is_used = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or assets().response(scope["path"]):
            await self._app(scope, receive, send)
            return
        scope.setdefault("state", {})
        request = Request(scope, receive)
        cookie = f"lancekeep-ui-{(scope.get('server') or ('', 0))[1]}"
        if request.url.path == OPEN and request.method == "GET" and self._redeems(request.query_params.get("token")):
            response: Response = RedirectResponse("/", 303)
            response.set_cookie(cookie, self._secret, path="/", httponly=True, samesite="strict")
        elif _equal(request.cookies.get(cookie), self._secret):
            await self._app(scope, receive, send)
            return
        else:
            message = (
                "This page belongs to the browser that opened the URL of `lancekeep ui`. The URL is valid once; run "
                "the command again for a new one."
            )
            response = error_page(
                environment(), Problem.of(HttpError(403, message, ErrorCode.PERMISSION_DENIED)), {}, ""
            )
        await protected(response)(scope, receive, send)

    def _redeems(self, given: str | None) -> bool:
        redeemed = not self._is_used and _equal(given, self.token)
        self._is_used = self._is_used or redeemed
        return redeemed


def require_same_origin(headers: Headers) -> None:
    """Refuse a form that another site sends.

    Raises:
        HttpError: The request is from another origin, or does not name its origin.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    try:
        same = urlsplit(origin).netloc == headers.get("host") if origin else False
    except ValueError:
        same = False
    if not (site == "same-origin" if site else same):
        raise HttpError(403, "Send this form from the page itself.", ErrorCode.PERMISSION_DENIED)


def _form(prefix: str, target: str, message: str = "", status: int = 200) -> Response:
    shown = {"prefix": prefix, "target": _within(prefix, target), "message": message}
    content = environment().get_template("sign-in.html").render(**shown)
    return HTMLResponse(content, status)


def _within(prefix: str, target: str) -> str:
    """Return an address of this server; the first page for an address that may leave it."""
    leaves = not target.startswith("/") or target.startswith("//") or "\\" in target or not target.isprintable()
    return f"{prefix}/" if leaves else target


def _credential(value: str) -> str:
    """Return the credential in the value of a cookie; empty if the value is malformed."""
    try:
        return urlsafe_b64decode(value + "=" * (-len(value) % 4)).decode()
    except ValueError:
        return ""


def _equal(given: str | None, secret: str) -> bool:
    return given is not None and secrets.compare_digest(given.encode(errors="replace"), secret.encode())
