"""The settings of the server.

They come from options of the command, ``LANCEKEEP_SERVER__*`` and ``[server]`` of a configuration file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import attrs

from lancekeep.config import server_settings
from lancekeep.domain.errors import InvalidInput

PORT = 2333
"""The port of the REST catalog specification."""

LOG_FORMATS = ("auto", "console", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")


@attrs.frozen(kw_only=True)
class ServerSettings:
    """How to serve a catalog.

    Attributes:
        host: The address to listen on.
        port: The port to listen on; 0 for a free one.
        threads: The number of operations that run at the same time.
        shutdown_seconds: How long a shutdown waits for requests in progress.
        log_format: ``json``, ``console``, or ``auto``: console on a terminal, JSON elsewhere.
        log_level: The least severe level to log.
        tracing: Whether to export OpenTelemetry spans; needs the extra ``[tracing]``.
    """

    host: str = "127.0.0.1"
    port: int = PORT
    threads: int = 64
    shutdown_seconds: int = 30
    log_format: str = "auto"
    log_level: str = "info"
    tracing: bool = False

    @classmethod
    def resolve(cls, given: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Self:
        """Complete explicit settings from the environment and from files.

        Raises:
            InvalidInput: A setting is unknown, or its value cannot be honoured.
        """
        fields = attrs.fields_dict(cls)
        values: dict[str, Any] = {}
        for name, value, origin in server_settings(given, environment):
            if name not in fields:
                raise InvalidInput(
                    f"{origin}: the server has no setting {name!r}; its settings are {', '.join(fields)}"
                )
            values[name] = _converted(name, value, type(fields[name].default), origin)
        settings = cls(**values)
        settings._check()
        return settings

    def _check(self) -> None:
        for name, least, most in (("port", 0, 65535), ("threads", 1, 10_000), ("shutdown_seconds", 0, 86_400)):
            if not least <= getattr(self, name) <= most:
                raise InvalidInput(f"server.{name} is {getattr(self, name)}; give a number from {least} to {most}")
        for name, choices in (("log_format", LOG_FORMATS), ("log_level", LOG_LEVELS)):
            if getattr(self, name) not in choices:
                raise InvalidInput(f"server.{name} is {getattr(self, name)!r}; choose {', '.join(choices)}")


def _converted(name: str, value: Any, kind: type, origin: str) -> Any:
    """Return a value, which a file or a variable has as text, as the type of its setting."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if kind is bool and text in ("true", "false"):
        return text == "true"
    if kind is int and text.isdecimal():
        return int(text)
    if kind is str:
        return text
    expected = "true or false" if kind is bool else "a number"
    raise InvalidInput(f"{origin}: server.{name} is {text!r}; give {expected}")
