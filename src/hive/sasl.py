"""The login of Thrift over SASL: PLAIN with a password, and GSSAPI with Kerberos."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Protocol

from lancekeep.domain.errors import AccessDenied, MissingExtra
from lancekeep.hive.address import Address
from lancekeep.hive.wire import Malformed

_START, _OK, _COMPLETE = 1, 2, 5
_LONGEST = 1 << 16
"""Maximum number of bytes of a message of the login."""
_AUTHENTICATED, _SIGNED, _ENCRYPTED = 1, 2, 4
"""What protects the messages after the login (RFC 4752)."""
_LARGEST = 0xFFFFFF


class Mechanism(Protocol):
    """What a client answers in a login, and how it protects later messages."""

    name: str

    @property
    def complete(self) -> bool:
        """Whether the client expects no further challenge."""

    def answer(self, challenge: bytes) -> bytes:
        """Return the answer to a challenge; the first one is empty."""

    def wrap(self, content: bytes) -> bytes:
        """Protect a message."""

    def unwrap(self, content: bytes) -> bytes:
        """Return a message that the server protected."""


class Plain:
    """User and password in clear text; use TLS."""

    name = "PLAIN"

    def __init__(self, user: str, password: str) -> None:
        self._login = b"\0".join((b"", user.encode(), password.encode()))
        self.complete = False

    def answer(self, challenge: bytes) -> bytes:
        self.complete = True
        return self._login

    def wrap(self, content: bytes) -> bytes:
        return content

    def unwrap(self, content: bytes) -> bytes:
        return content


class Kerberos:
    """The ticket of this process, from its cache or keytab.

    Args:
        service: The first part of the server's principal.
        host: The second part.
    """

    name = "GSSAPI"

    def __init__(self, service: str, host: str) -> None:
        try:
            import gssapi
        except ImportError as error:  # also if the library of Kerberos itself is missing
            raise MissingExtra(
                f"auth=kerberos needs the package gssapi: pip install 'lancekeep[kerberos]' ({error})"
            ) from (error)
        self.failure: type[Exception] = gssapi.exceptions.GSSError
        target = gssapi.Name(f"{service}@{host}", gssapi.NameType.hostbased_service)
        self._context: Any = gssapi.SecurityContext(name=target, usage="initiate")
        self._layer = _AUTHENTICATED
        self.complete = False

    def answer(self, challenge: bytes) -> bytes:
        if not self._context.complete:
            return self._context.step(challenge or None) or b""
        offered = self._context.unwrap(challenge).message
        if len(offered) != 4:
            raise Malformed("the server's offer of protection has another length than 4")
        layers = [each for each in (_ENCRYPTED, _SIGNED, _AUTHENTICATED) if offered[0] & each]
        if not layers:
            raise Malformed("the server offers no protection that Kerberos defines")
        self._layer, self.complete = layers[0], True
        largest = 0 if self._layer == _AUTHENTICATED else _LARGEST
        chosen: bytes = self._context.wrap(bytes([self._layer]) + largest.to_bytes(3), False).message
        return chosen

    def wrap(self, content: bytes) -> bytes:
        return self._protected(self._context.wrap, content, self._layer == _ENCRYPTED)

    def unwrap(self, content: bytes) -> bytes:
        return self._protected(self._context.unwrap, content)

    def _protected(self, act: Callable[..., Any], content: bytes, *how: bool) -> bytes:
        if self._layer == _AUTHENTICATED:
            return content
        try:
            changed: bytes = act(content, *how).message
        except self.failure as error:
            raise Malformed(f"a message is not protected by Kerberos: {error}") from error
        return changed


def mechanism_of(address: Address, host: str) -> Plain | Kerberos | None:
    """Return the mechanism that an address asks for, or None.

    Raises:
        MissingExtra: The package for Kerberos is not installed.
    """
    if address.mechanism == "PLAIN":
        return Plain(address.user or "", address.password or "")
    return Kerberos(address.service, host) if address.mechanism == "GSSAPI" else None


def log_in(mechanism: Mechanism, peer: str, send: Callable[[bytes], None], take: Callable[[int], bytes]) -> None:
    """Log in over a new connection.

    Args:
        mechanism: The mechanism.
        peer: The server, for messages.
        send: Sends bytes.
        take: Returns the next bytes of the server, as many as it is asked for.

    Raises:
        AccessDenied: The server refuses the login.
    """
    send(_message(_START, mechanism.name.encode()))
    challenge = b""
    while True:
        try:
            answer = mechanism.answer(challenge)
        except getattr(mechanism, "failure", ()) as error:
            raise AccessDenied(
                f"{peer}: Kerberos: {' '.join(str(error).split())}. Get a ticket with kinit, and check the option "
                "kerberos_service"
            ) from error
        send(_message(_COMPLETE if mechanism.complete else _OK, answer))
        status, length = struct.unpack(">Bi", take(5))
        if not 0 <= length <= _LONGEST:
            raise Malformed("the answer to the login is no message of SASL")
        challenge = take(length)
        if status not in (_OK, _COMPLETE):
            raise AccessDenied(
                f"{peer}: the Metastore refused the login: {challenge[:300].decode(errors='replace')}. Check the "
                "options auth, user and password"
            )
        if status == _COMPLETE:
            if not mechanism.complete:
                raise Malformed("the server ended the login before it proved its identity")
            return


def _message(status: int, content: bytes) -> bytes:
    return struct.pack(">Bi", status, len(content)) + content
