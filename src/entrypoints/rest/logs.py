"""The log of a server."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

from lancekeep.entrypoints.rest.settings import ServerSettings


def log_of(settings: ServerSettings) -> Any:
    """Return a logger that writes lines to stderr."""
    console = settings.log_format == "console" or (settings.log_format == "auto" and sys.stderr.isatty())
    renderers: list[Any] = (
        [structlog.dev.ConsoleRenderer()]
        if console
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    return structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr),
        processors=[structlog.processors.add_log_level, structlog.processors.TimeStamper("iso", utc=True), *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, settings.log_level.upper())),
        cache_logger_on_first_use=True,
    )
