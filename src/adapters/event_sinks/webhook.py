"""Deliver events by HTTP: batches of CloudEvents, with a signature.

The headers are those that the Standard Webhooks specification names.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException
from threading import Timer
from urllib.parse import urlsplit

from lancekeep.application.events.cloud_events import fields_of
from lancekeep.connecting import connected
from lancekeep.domain.errors import InvalidInput
from lancekeep.domain.event_delivery import Attempt, Delivery, Result, result_of

BATCH = "application/cloudevents-batch+json"
PREFIX = "whsec_"
_SHORTEST, _LONGEST = 24, 64
_MOST_SHOWN = 200


class Webhook:
    """Posts batches of events to a URL.

    Each request has a connection of its own. Redirects are not followed, and the body of a response is not read. The
    certificate of the server is verified. Messages name the host only: the path and the query may hold a secret.

    Args:
        url: The URL.
        secrets: Returns the secrets, each of which signs; the receiver needs one of them.
        timeout: The most seconds of a request.
        ca_file: Certificates to trust, in place of the certificates of the system.

    Raises:
        InvalidInput: The URL or the file is not valid.
    """

    def __init__(
        self, url: str, secrets: Callable[[], Sequence[bytes]], timeout: float = 10.0, ca_file: str | None = None
    ) -> None:
        parts = urlsplit(url)
        host = parts.hostname
        assert host is not None, "the URL was checked"
        self._host, self._port = host, parts.port
        self._authority = parts.netloc
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._place = shown(url)
        self._secrets = secrets
        self._timeout = timeout
        self._tls = None
        if parts.scheme == "https":
            try:
                self._tls = ssl.create_default_context(cafile=ca_file)
            except (OSError, ssl.SSLError) as error:
                raise InvalidInput(f"ca_file {ca_file} cannot be read as certificates: {error}") from error

    def deliver(self, delivery: Delivery) -> Attempt:
        """Post the events, and return what the response says."""
        body = json.dumps([fields_of(event, delivery.source) for event in delivery.events]).encode()
        timestamp = int(time.time())
        headers = {
            "host": self._authority,
            "content-type": BATCH,
            "user-agent": "lancekeep",
            "connection": "close",
            "webhook-id": delivery.id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": " ".join(signature(each, delivery.id, timestamp, body) for each in self._secrets()),
        }
        try:
            status, retry_after = self._post(body, headers)
        except (OSError, HTTPException, ValueError) as error:
            return Attempt(Result.FAILED, f"{self._place}: {_reason(error)}")
        result = result_of(status)
        if result is Result.TAKEN:
            return Attempt(result)
        meaning = "; redirects are not followed" if 300 <= status < 400 else ""
        return Attempt(result, f"{self._place} answered with status {status}{meaning}", _seconds(retry_after))

    def close(self) -> None:
        """Do nothing: each request closes its connection."""

    def _post(self, body: bytes, headers: dict[str, str]) -> tuple[int, str | None]:
        connection = HTTPConnection(self._host, self._port or (80 if self._tls is None else 443), self._timeout)
        begin = time.monotonic()
        try:
            connection.sock = connected(self._host, connection.port, begin + self._timeout)
            connection.sock.settimeout(self._timeout)
            if self._tls is not None:
                connection.sock = self._tls.wrap_socket(
                    connection.sock, server_hostname=self._host, do_handshake_on_connect=False
                )
            # The time-out of a socket is about each of its reads; a server that sends byte by byte would hold it open.
            left = max(0.0, begin + self._timeout - time.monotonic())
            watchdog = Timer(left, _cut, [connection.sock])
            watchdog.daemon = True
            watchdog.start()
            try:
                if isinstance(connection.sock, ssl.SSLSocket):
                    connection.sock.do_handshake()
                connection.request("POST", self._path, body, headers)
                response = connection.getresponse()
                return response.status, response.headers.get("retry-after")
            finally:
                watchdog.cancel()
        except (OSError, HTTPException, ValueError) as error:
            if time.monotonic() - begin >= self._timeout:
                raise TimeoutError(f"no response within {self._timeout:g} seconds") from error
            raise
        finally:
            connection.close()


def shown(url: str) -> str:
    """Return the scheme and the host of a URL, because the rest may hold a secret."""
    parts = urlsplit(url)
    rest = "/…" if parts.path.strip("/") or parts.query else ""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{rest}"


def signature(secret: bytes, message: str, timestamp: int, body: bytes) -> str:
    """Return one signature of a message for the header ``webhook-signature``.

    Args:
        secret: The secret.
        message: The id of the message.
        timestamp: The time of the attempt, in seconds since 1970.
        body: The body.
    """
    signed = f"{message}.{timestamp}.".encode() + body
    return f"v1,{base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()}"


def parsed_secret(text: str, origin: str) -> bytes:
    """Return the bytes of a secret: ``whsec_`` and base64.

    Raises:
        InvalidInput: The text has another form. The message does not quote it.
    """
    with suppress(ValueError):
        found = base64.b64decode(text.strip().removeprefix(PREFIX), validate=True)
        if _SHORTEST <= len(found) <= _LONGEST:
            return found
    raise InvalidInput(
        f"{origin} holds no secret of a webhook; expected {PREFIX} and {_SHORTEST} to {_LONGEST} bytes in base64. "
        f'Make one: echo "{PREFIX}$(openssl rand -base64 32)"'
    )


def _cut(connection: socket.socket) -> None:
    """End the reads and writes of another thread on a connection."""
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # of the connection, without a farewell of TLS


def _seconds(retry_after: str | None) -> float | None:
    """Return the seconds that the header ``Retry-After`` names, as a number or as a date."""
    if retry_after is None:
        return None
    if retry_after.strip().isascii() and retry_after.strip().isdecimal():
        return float(retry_after[:20])
    with suppress(ValueError, TypeError, OverflowError):
        date = parsedate_to_datetime(retry_after)
        return max(0.0, (date.astimezone(UTC) - datetime.now(UTC)).total_seconds())
    return None


def _reason(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of the server is not trusted: {error.verify_message}"
    if isinstance(error, OSError):
        return str(error)[:_MOST_SHOWN] or type(error).__name__
    return f"no valid response ({type(error).__name__})"  # its text may quote what the server sent, such as the query
