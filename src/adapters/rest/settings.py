"""The settings of a connection to a server (``rest.*``)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self
from urllib.parse import urlsplit

import attrs

from lancekeep.domain.errors import InvalidInput

HEADER = "header."
TLS = {
    "tls.ssl_ca_cert": "tls_ca_file",
    "tls.cert_file": "tls_cert_file",
    "tls.key_file": "tls_key_file",
    "tls.assert_hostname": "tls_assert_hostname",
}
"""The settings of the native client for TLS, and their names here."""


@attrs.frozen(kw_only=True)
class RestSettings:
    """How to reach a server. The repr shows no secret.

    Attributes:
        uri: the URI below which the routes of the specification are.
        headers: headers of every request.
        api_key: the value of the header ``x-api-key``.
        token: the bearer token of the header ``Authorization``.
        delimiter: what joins the names of an identifier in a path.
        connect_timeout: seconds until a connection is given up.
        read_timeout: seconds without a byte of the response until it is given up.
        retry_seconds: how long a request is repeated while the server does not answer.
        tls_ca_file: certificates to trust, in place of the certificates of the system.
        tls_cert_file: the certificate of this client.
        tls_key_file: the key of that certificate, unless it is in the same file.
        tls_assert_hostname: whether the certificate of the server must name its host.
    """

    uri: str
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=lambda headers: f"<{', '.join(sorted(headers))}>")
    api_key: str | None = attrs.field(default=None, repr=False)
    token: str | None = attrs.field(default=None, repr=False)
    delimiter: str = "$"
    connect_timeout: float = 5.0
    read_timeout: float = 120.0
    retry_seconds: float = 30.0
    tls_ca_file: str | None = None
    tls_cert_file: str | None = None
    tls_key_file: str | None = None
    tls_assert_hostname: bool = True

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Return settings from options by name, such as ``uri`` and ``header.x-team``.

        Raises:
            InvalidInput: An option is unknown, or its value cannot be honoured.
        """
        headers, fields = dict[str, str](), dict[str, Any]()
        for name, value in options.items():
            if name.startswith(HEADER) and name != HEADER:
                headers[_header(name.removeprefix(HEADER).lower(), str(value))] = str(value)
            else:
                fields[TLS.get(name, name)] = value
        known = attrs.fields_dict(cls)
        unknown = sorted(fields.keys() - (known.keys() - {"headers"}))
        if unknown:
            shown = [*(name for name in known if not name.startswith(("tls_", "headers"))), f"{HEADER}*", *TLS]
            raise InvalidInput(f"unknown setting rest.{unknown[0]}; the settings are {', '.join(shown)}")
        if not fields.get("uri"):
            raise InvalidInput("impl 'rest' needs the URI of the server; set rest.uri, such as http://127.0.0.1:2333")
        converted = {name: _converted(name, value, known[name].default) for name, value in fields.items()}
        settings = cls(headers=headers, **converted)
        settings._check()
        return settings

    def _check(self) -> None:
        try:
            url = urlsplit(self.uri)
            _ = url.port
        except ValueError:
            raise InvalidInput("rest.uri is not a URI; expected one such as http://127.0.0.1:2333") from None
        if url.scheme not in ("http", "https") or not url.hostname or url.query or url.fragment:
            raise InvalidInput("rest.uri must be http:// or https://, a host, and at most a port and a path")
        if url.username is not None or url.password is not None:
            raise InvalidInput("rest.uri holds credentials; give them as rest.token, rest.api_key or rest.header.*")
        for name, value in (("api_key", self.api_key), ("token", self.token)):
            if value is not None:
                _header(f"rest.{name}", value)
        if not self.delimiter or "/" in self.delimiter:
            raise InvalidInput(f"rest.delimiter is {self.delimiter!r}; give a text without '/'")


def _header(name: str, value: str) -> str:
    """Return the name of a header. Raises `InvalidInput` if name or value would break the request."""
    if not name or not name.replace("-", "").replace("_", "").replace(".", "").isalnum() or not name.isascii():
        raise InvalidInput(f"{name!r} is not the name of an HTTP header")
    if not value.isprintable() or not value.isascii():
        raise InvalidInput(f"the value of the header {name!r} has characters that a header cannot hold")
    return name


def _converted(name: str, value: Any, default: Any) -> Any:
    """Return a value, which may be text from a file or variable, as the type of its setting."""
    text = str(value)
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise InvalidInput(f"rest.{name} is {text!r}; give true or false")
        return text.lower() == "true"
    if isinstance(default, float):
        try:
            seconds = float(text)
        except ValueError:
            seconds = math.nan
        if not 0 < seconds < 1e6:
            raise InvalidInput(f"rest.{name} is {text!r}; give a number of seconds")
        return seconds
    return text
