"""HTTP requests to one server, with bounded responses and without redirects."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit

import attrs
import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError

from lancekeep.adapters.rest.settings import RestSettings
from lancekeep.domain.errors import AccessDenied, InvalidInput, StoreUnavailable

MOST_JSON = 64 << 20
"""The largest JSON response that is read."""

MOST_ROWS = 8 << 30
"""The largest response of rows that is read."""

_PART = 1 << 20


class NotSent(StoreUnavailable):
    """The request did not reach the server, so it had no effect."""


@attrs.frozen
class Reply:
    """A response.

    Attributes:
        status: the HTTP status.
        headers: the headers, by name in lower case.
        content: the body.
    """

    status: int
    headers: Mapping[str, str] = attrs.field(repr=False)
    content: bytes = attrs.field(repr=False)

    @property
    def media_type(self) -> str:
        """The type of the body, without parameters, in lower case."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


class Connection:
    """Sends requests to one server.

    Redirects are answers like any other, so the headers of ``settings``, which hold credentials, reach no other server.
    """

    def __init__(self, settings: RestSettings) -> None:
        url = urlsplit(settings.uri)
        self.uri = f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path.rstrip('/')}"
        self._headers = {**settings.headers, **_credentials(settings)}
        context = _tls(settings) if url.scheme == "https" else None
        self._pool = urllib3.PoolManager(
            num_pools=1,
            maxsize=64,
            retries=False,
            timeout=urllib3.Timeout(connect=settings.connect_timeout, read=settings.read_timeout),
            ssl_context=context,
            assert_hostname=None if settings.tls_assert_hostname else False,
        )

    def send(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any],
        headers: Mapping[str, str],
        body: bytes | None,
        *,
        most: int = MOST_JSON,
    ) -> Reply:
        """Send a request and return its response, whatever its status.

        Args:
            method: The HTTP method.
            path: The path below the server's URI, percent-encoded.
            query: The query parameters; a list is given several times.
            headers: The headers of this request.
            body: The body.
            most: The largest body that is read.

        Raises:
            NotSent: The server could not be reached.
            StoreUnavailable: The response is incomplete or too large.
        """
        url = f"{self.uri}{path}" + (f"?{urlencode(query, doseq=True)}" if query else "")
        try:
            response = self._pool.request(
                method,
                url,
                body=body,
                headers={**self._headers, **headers},
                redirect=False,
                preload_content=False,
            )
            try:
                content = bytearray()
                while part := response.read(_PART):
                    content += part
                    if len(content) > most:
                        response.close()
                        raise StoreUnavailable(f"{self.uri}: the response is larger than {most} bytes")
            finally:
                response.release_conn()
        except (NewConnectionError, ConnectTimeoutError) as error:
            raise NotSent(f"{self.uri} cannot be reached: {_reason(error)}") from error
        except (HTTPError, OSError) as error:
            if _is_untrusted(error):
                raise AccessDenied(f"{self.uri}: the certificate of the server is not trusted") from error
            raise StoreUnavailable(f"{self.uri}: no complete response: {_reason(error)}") from error
        return Reply(response.status, {name.lower(): value for name, value in response.headers.items()}, bytes(content))

    def close(self) -> None:
        """Close idle connections. Idempotent."""
        self._pool.clear()


def _credentials(settings: RestSettings) -> dict[str, str]:
    found = {}
    if settings.api_key is not None:
        found["x-api-key"] = settings.api_key
    if settings.token is not None:
        found["authorization"] = f"Bearer {settings.token}"
    return found


def _tls(settings: RestSettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.tls_ca_file)
        if settings.tls_cert_file is not None:
            context.load_cert_chain(settings.tls_cert_file, settings.tls_key_file)
    except (OSError, ssl.SSLError) as error:
        raise InvalidInput(f"the files of rest.tls.* cannot be read as certificates and a key: {error}") from error
    if not settings.tls_assert_hostname:
        context.check_hostname = False
    return context


def _is_untrusted(error: BaseException) -> bool:
    """Return whether the certificate of the server was refused, before anything was sent."""
    causes = (*error.args, error.__cause__, error.__context__)
    return any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes)


def _reason(error: BaseException) -> str:
    """Return the kind of an error: its text may hold the URL and headers."""
    reason = getattr(error, "reason", None)
    cause = reason if isinstance(reason, BaseException) else error.__cause__ or error
    return type(cause).__name__
