"""The address of a PostgreSQL database, as arguments of the driver."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote, unquote, urlencode

import attrs

from lancekeep.store_urls import StoreUrl

DEFAULT_PORT = 5432
DEFAULT_SCHEMA = "lancekeep"
CONNECT_SECONDS = 4
"""Seconds to connect, shared by the hosts of the URL."""
_TLS = ("sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl")
_SSL_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_SESSIONS = ("any", "read-write", "read-only", "primary", "standby", "prefer-standby")

OPTIONS = frozenset(
    ("user", "password", "service", "host", "schema", "target_session_attrs", "prepared_statements", "connections")
) | frozenset(_TLS)
"""The options of every URL of PostgreSQL."""


@attrs.frozen
class Address:
    """Where the rows are, and how to reach them.

    Attributes:
        url: The canonical URL: hosts in order, port and database filled in, no user and no secret.
        arguments: The arguments of the driver, which may hold a password.
        schema: The schema of the tables.
        prepares: Whether the driver prepares statements in the server.
        connections: The maximum number of connections of a process.
    """

    url: str
    arguments: Mapping[str, str | int] = attrs.field(repr=False)
    schema: str
    prepares: bool
    connections: int

    @staticmethod
    def of(url: StoreUrl) -> Address:
        """Return the address that a URL names.

        Raises:
            InvalidInput: An option is invalid, or nothing names the server or the database.
        """
        options = url.options
        hosts = url.hosts(DEFAULT_PORT) if url.parts.netloc.rpartition("@")[2] else []
        database = unquote(url.parts.path.strip("/"))
        elsewhere = [name for name in ("host", "service") if name in options]
        if len(elsewhere) + bool(hosts) != 1 or not (database or "service" in options):
            url.refuse(
                "expected postgresql://[USER@]HOST[:PORT][,HOST…]/DATABASE, or one of the options host=DIRECTORY (of "
                "a Unix-domain socket) and service=NAME in place of the host"
            )
        arguments: dict[str, str | int] = {
            "application_name": "lancekeep",
            "client_encoding": "utf8",
            "connect_timeout": max(2, CONNECT_SECONDS // max(1, len(hosts))),
            "tcp_user_timeout": 1000 * CONNECT_SECONDS,
            # A single server that is read-only answers with an error that says so.
            "target_session_attrs": url.choice(
                "target_session_attrs", {each: each for each in _SESSIONS}, "read-write" if len(hosts) > 1 else "any"
            ),
        }
        if hosts:
            arguments["host"] = ",".join(host for host, _ in hosts)
            arguments["port"] = ",".join(str(port) for _, port in hosts)
        if database:
            arguments["dbname"] = database
        for name, in_url in (("user", url.parts.username), ("password", url.parts.password)):
            if in_url and name in options:
                url.refuse(f"the {name} is set twice; set it once")
            if in_url:
                arguments[name] = unquote(in_url)
        for name in ("user", "password", *elsewhere, *_TLS):
            if name in options:
                arguments[name] = options[name]
        if "sslmode" in options:
            arguments["sslmode"] = url.choice("sslmode", {mode: mode for mode in _SSL_MODES}, "")
        if "host" in options and not options["host"].startswith("/"):
            url.refuse("the option host is the absolute path of the directory of a Unix-domain socket")
        if any("\0" in str(value) for value in arguments.values()):
            url.refuse("neither the URL nor an option can contain a NUL character")
        schema = options.get("schema", DEFAULT_SCHEMA)
        if not re.fullmatch("[a-z_][a-z0-9_]{0,62}", schema):
            url.refuse(f"the schema is {schema!r:.80}; expected lower-case letters, digits and '_'")
        connections = options.get("connections", "20")
        if not re.fullmatch("[1-9][0-9]{0,3}", connections):
            url.refuse(f"option connections is {connections!r:.80}; expected a number from 1 to 9999")
        return Address(
            _canonical(url, hosts, database, schema),
            arguments,
            schema,
            url.boolean("prepared_statements", True),
            int(connections),
        )


def _canonical(url: StoreUrl, hosts: list[tuple[str, int]], database: str, schema: str) -> str:
    shown = ",".join(sorted(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in hosts))
    where = {name: url.options[name] for name in ("host", "service") if name in url.options}
    if schema != DEFAULT_SCHEMA:
        where["schema"] = schema
    return with_place(f"{url.parts.scheme}://{shown}/{quote(database, safe='')}", where)


def with_place(url: str, where: Mapping[str, str]) -> str:
    """Return a canonical URL with options that determine which rows it names."""
    query = urlencode(where, quote_via=quote, safe="/")
    return f"{url}{query and ('&' if '?' in url else '?')}{query}"
