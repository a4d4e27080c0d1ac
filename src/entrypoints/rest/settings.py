"""The settings of the server.

They come from options of the command, ``LANCEKEEP_SERVER__*`` and ``[server]`` of a configuration file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import attrs

from lancekeep.config_server import server_settings
from lancekeep.domain.errors import InvalidInput

if TYPE_CHECKING:
    from lancekeep.composition import Cluster

PORT = 2333
"""The port of the REST catalog specification."""

_RANGES = (
    ("port", 0, 65535),
    ("workers", 1, 256),
    ("threads", 1, 10_000),
    ("shutdown_seconds", 1, 86_400),
    ("operation_seconds", 1, 86_400),
    ("long_seconds", 1, 86_400),
    ("requests", 1, 1_000_000),
    ("rate", 0, 1_000_000),
    ("burst", 1, 1_000_000),
    ("usage_seconds", 1, 86_400),
    ("largest_body", 1, 1 << 50),
    ("largest_batch", 1, 1 << 40),
    ("largest_document", 1, 1 << 30),
    ("held_bodies", 1, 1 << 50),
    ("least_rate", 0, 1 << 30),
    ("header_seconds", 1, 3600),
    ("body_seconds", 1, 86_400),
)
OF_PROCESS = frozenset(
    (
        "host",
        "port",
        "workers",
        "shutdown_seconds",
        "header_seconds",
        "log_format",
        "log_level",
        "tracing",
        "audit",
        "keys",
        "tokens",
        "certificate",
        "private_key",
        "cluster_host",
        "cluster_ports",
        "cluster_certificate",
        "cluster_private_key",
        "cluster_authority",
    )
)
"""The settings that all catalogs of a server share."""
_CLUSTER = ("cluster_host", "cluster_ports", "cluster_certificate", "cluster_private_key", "cluster_authority")
LOG_FORMATS = ("auto", "console", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")


@attrs.frozen(kw_only=True)
class ServerSettings:
    """How to serve a catalog.

    Attributes:
        host: The address to listen on.
        port: The port to listen on; 0 for a free one.
        workers: The number of processes that serve. They divide the limits of the server (`share`).
        threads: The number of operations that run at the same time.
        shutdown_seconds: How long a shutdown waits for requests in progress. Then the process ends.
        operation_seconds: How long an operation may take, unless its time grows with the table or the request.
        long_seconds: How long the other operations may take.
        log_format: ``json``, ``console``, or ``auto``: console on a terminal, JSON elsewhere.
        log_level: The least severe level to log.
        tracing: Whether to export OpenTelemetry spans; needs the extra ``[tracing]``.
        keys: The file of API keys, as ``lancekeep keys`` writes it.
        tokens: The issuer of bearer tokens: ``[server.tokens]`` with ``jwks``, ``issuer`` and ``audience``.
        audit: The file of the audit log; without one, there is none.
        events: Whether to record the events of the catalog in its log.
        maintenance_policy: The file of the policy by which the server maintains tables; without one, it has none.
        policy: The file of grants; without one, every authenticated caller may do everything.
        vending: What credentials are vended from: ``[server.vending]`` with ``cloud`` and its settings, such as
            ``role_arn``.
        certificate: The file of the TLS certificate and its chain.
        private_key: The file of its private key.
        cluster_host: The name or address at which servers on other hosts reach this one; without one, the server has
            no links to others.
        cluster_ports: The ports for these servers, such as ``7400-7431``; any free one without a value. Each worker
            takes one for each catalog.
        cluster_certificate: The file of this server's certificate for the others.
        cluster_private_key: The file of its private key.
        cluster_authority: The file of the certificate of the authority, which signs for these servers alone.
        requests: The number of requests in progress above which further ones are refused.
        rate: The requests per second that each principal may send; 0 for any number.
        burst: The requests that a principal may send at once, if there is a rate.
        usage_seconds: The seconds between two measurements of the bytes that quotas limit.
        largest_body: The maximum size of a body in bytes, as sent and after decompression.
        largest_batch: The maximum size in bytes of one Arrow batch or dictionary after decompression.
        largest_document: The maximum size of a JSON body in bytes.
        held_bodies: The maximum bytes of the bodies that the server holds, in temporary files; a principal has half.
        header_seconds: How long a request may take to arrive up to its body.
        body_seconds: How long the server waits for the client in all, while it sends its body or reads the response.
        least_rate: The bytes per second that a client must send or read on average, after ``header_seconds``; 0 for any
            rate.
    """

    host: str = "127.0.0.1"
    port: int = PORT
    workers: int = 1
    threads: int = 64
    shutdown_seconds: int = 30
    operation_seconds: int = 60
    long_seconds: int = 3600
    log_format: str = "auto"
    log_level: str = "info"
    tracing: bool = False
    keys: str = ""
    tokens: Mapping[str, Any] = attrs.field(factory=dict)
    audit: str = ""
    events: bool = False
    maintenance_policy: str = ""
    policy: str = ""
    vending: Mapping[str, Any] = attrs.field(factory=dict)
    certificate: str = ""
    private_key: str = ""
    cluster_host: str = ""
    cluster_ports: str = ""
    cluster_certificate: str = ""
    cluster_private_key: str = ""
    cluster_authority: str = ""
    requests: int = 1024
    rate: int = 0
    burst: int = 100
    usage_seconds: int = 60
    largest_body: int = 1 << 30
    largest_batch: int = 1 << 28
    largest_document: int = 1 << 24
    held_bodies: int = 1 << 33
    header_seconds: int = 10
    body_seconds: int = 300
    least_rate: int = 1024

    @classmethod
    def resolve(
        cls, given: Mapping[str, Any], environment: Mapping[str, str] | None = None, catalog: str | None = None
    ) -> Self:
        """Complete explicit settings from the environment and from files.

        Args:
            given: The explicit settings.
            environment: The variables to read; by default the variables of the process.
            catalog: The configured catalog that is served, if it has a name.

        Raises:
            InvalidInput: A setting is unknown, or its value cannot be honoured.
        """
        fields, defaults = attrs.fields_dict(cls), cls()
        values: dict[str, Any] = {}
        for name, value, origin in server_settings(given, environment, catalog, OF_PROCESS):
            if name not in fields:
                raise InvalidInput(
                    f"{origin}: the server has no setting {name!r}; its settings are {', '.join(fields)}"
                )
            values[name] = _converted(name, value, type(getattr(defaults, name)), origin)
        settings = cls(**values)
        settings._check()
        return settings

    @property
    def scheme(self) -> str:
        """The scheme of the server's URL."""
        return "https" if self.certificate else "http"

    @property
    def cluster(self) -> Cluster | None:
        """How servers on other hosts reach this one; None if none does.

        Raises:
            InvalidInput: A setting is missing, or the ports cannot be understood.
        """
        values = {name: getattr(self, name) for name in _CLUSTER}
        missing = [f"server.{name}" for name in _CLUSTER if name != "cluster_ports" and not values[name]]
        if not any(values.values()):
            return None
        if missing:
            raise InvalidInput(
                f"the settings server.cluster_* belong together, and {', '.join(missing)} are missing: set them, too, "
                "or none, and this server has no links to others"
            )
        first, _, last = self.cluster_ports.partition("-")
        ports = [part for part in (first, last or first) if part]
        if not all(part.isdecimal() and 0 < int(part) <= 65535 for part in ports):
            raise InvalidInput(f"server.cluster_ports is {self.cluster_ports!r}; give ports such as '7400-7431'")
        found = range(int(ports[0]), int(ports[1]) + 1) if ports else range(0)
        if ports and not found:
            raise InvalidInput(f"server.cluster_ports is {self.cluster_ports!r}; give the lower port first")
        from lancekeep.composition import Cluster  # the process that supervises the workers opens no catalog

        return Cluster(
            self.cluster_host, found, self.cluster_certificate, self.cluster_private_key, self.cluster_authority
        )

    def share(self) -> Self:
        """Return the settings of one worker, with its part of the limits.

        Each worker may hold the largest body for each of two principals, also if that is more than its part.
        ``rate`` stays the server's: a worker divides it, because its part can be below one.
        """

        def part(whole: int) -> int:
            return -(-whole // self.workers)

        return attrs.evolve(
            self,
            threads=part(self.threads),
            requests=part(self.requests),
            burst=part(self.burst),
            held_bodies=max(part(self.held_bodies), min(self.held_bodies, 2 * self.largest_body)),
        )

    def _check(self) -> None:
        for name, least, most in _RANGES:
            if not least <= getattr(self, name) <= most:
                raise InvalidInput(f"server.{name} is {getattr(self, name)}; give a number from {least} to {most}")
        for name, choices in (("log_format", LOG_FORMATS), ("log_level", LOG_LEVELS)):
            if getattr(self, name) not in choices:
                raise InvalidInput(f"server.{name} is {getattr(self, name)!r}; choose {', '.join(choices)}")
        _ = self.cluster


def require_callers(settings: ServerSettings) -> None:
    """Refuse settings about callers of a server that does not authenticate them.

    Raises:
        InvalidInput: There is a policy or a role for credentials, and neither keys nor tokens.
    """
    if (settings.policy or settings.vending) and not settings.keys and not settings.tokens:
        raise InvalidInput(
            "server.policy and server.vending need to know the caller; configure server.keys "
            "(`lancekeep keys create`) or server.tokens"
        )


def _converted(name: str, value: Any, kind: type, origin: str) -> Any:
    """Return a value, which a file or a variable has as text, as the type of its setting."""
    if kind is dict:
        if isinstance(value, Mapping):
            return dict(value)
        raise InvalidInput(f"{origin}: write server.{name} as a section [server.{name}] of a configuration file")
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if kind is bool and text in ("true", "false"):
        return text == "true"
    if kind is int and text.isdecimal():
        return int(text)
    if kind is str:
        return text
    expected = "true or false" if kind is bool else "a number"
    raise InvalidInput(f"{origin}: server.{name} is {text!r}; give {expected}")
