"""The address of a Hive Metastore, and how to log in."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from urllib.parse import unquote

import attrs

from lancekeep.store_urls import StoreUrl

DEFAULT_PORT = 9083
POOL_SIZE = "client.pool-size"
TIMEOUT = "timeout"
MAX_MESSAGE_SIZE = "max_message_size"
_TLS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname")
_SECONDS = 8.0
_MEGABYTES = 64

OPTIONS = frozenset(
    ("user", "password", "auth", "kerberos_service", "ssl", *_TLS, POOL_SIZE, TIMEOUT, MAX_MESSAGE_SIZE)
)
"""The options of every URL of a Metastore."""


@attrs.frozen
class Address:
    """Where a Metastore is, and how to reach it.

    Attributes:
        url: The canonical URL of the servers: hosts in order, no user and no secret.
        hosts: Host and port of each server of one Metastore, in order of preference.
        user: The user that the Metastore sees, or None.
        password: The password of the user.
        mechanism: The SASL mechanism: PLAIN, GSSAPI or, without SASL, empty.
        service: The first part of the Metastore's Kerberos principal.
        tls: The options of TLS, or None without TLS.
        pool_size: The maximum number of connections of a process.
        seconds: Seconds until a call without an answer is given up.
        limit: The maximum number of bytes of an answer.
    """

    url: str
    hosts: tuple[tuple[str, int], ...]
    user: str | None = None
    password: str | None = attrs.field(default=None, repr=False)
    mechanism: str = ""
    service: str = "hive"
    tls: tuple[tuple[str, str], ...] | None = None
    pool_size: int = 3
    seconds: float = _SECONDS
    limit: int = _MEGABYTES << 20

    @staticmethod
    def of(url: StoreUrl) -> Address:
        """Return the address that a URL names; its path is for the adapter.

        Raises:
            InvalidInput: An option is invalid, or nothing names the server.
        """
        options = url.options
        if not url.parts.netloc.rpartition("@")[2]:
            url.refuse("expected hive://HOST[:PORT][,HOST…]")
        hosts = url.hosts(DEFAULT_PORT)
        login: dict[str, str] = {}
        for name, in_url in (("user", url.parts.username), ("password", url.parts.password)):
            if in_url and name in options:
                url.refuse(f"the {name} is set twice; set it once")
            value = unquote(in_url) if in_url else options.get(name)
            if value:
                login[name] = value
        mechanism = url.choice("auth", {"none": "", "plain": "PLAIN", "kerberos": "GSSAPI"}, "")
        if mechanism == "PLAIN" and login.keys() != {"user", "password"}:
            url.refuse("auth=plain needs a user and a password")
        if mechanism != "PLAIN" and "password" in login:
            url.refuse("a password is for auth=plain; add this option, or leave out the password")
        if "kerberos_service" in options and mechanism != "GSSAPI":
            url.refuse("the option kerberos_service is for auth=kerberos")
        tls = {name: options[name] for name in _TLS if name in options}
        if not url.boolean("ssl", False):
            if tls:
                url.refuse(f"the option {min(tls)} is for TLS; add ssl=true")
        elif "ssl_keyfile" in tls and "ssl_certfile" not in tls:
            url.refuse("the option ssl_keyfile needs ssl_certfile")
        url.boolean("ssl_check_hostname", True)
        shown = ",".join(sorted(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in hosts))
        return Address(
            f"hive://{shown}",
            tuple(hosts),
            login.get("user"),
            login.get("password"),
            mechanism,
            options.get("kerberos_service", "hive"),
            tuple(sorted(tls.items())) if url.boolean("ssl", False) else None,
            _number(url, POOL_SIZE, 3),
            url.seconds(TIMEOUT, _SECONDS),
            _number(url, MAX_MESSAGE_SIZE, _MEGABYTES) << 20,
        )

    def context(self) -> ssl.SSLContext | None:
        """Return the context of TLS, which verifies the server."""
        if self.tls is None:
            return None
        options: Mapping[str, str] = dict(self.tls)
        context = ssl.create_default_context(cafile=options.get("ssl_ca_certs"))
        if "ssl_certfile" in options:
            context.load_cert_chain(options["ssl_certfile"], options.get("ssl_keyfile"))
        context.check_hostname = options.get("ssl_check_hostname", "true").lower() != "false"
        return context


def _number(url: StoreUrl, name: str, default: int) -> int:
    value = url.options.get(name, str(default))
    if not re.fullmatch("[1-9][0-9]{0,3}", value):
        url.refuse(f"option {name} is {value!r:.80}; expected a number from 1 to 9999")
    return int(value)
