"""The log of a server."""

from __future__ import annotations

import logging
import sys
import threading
from contextlib import suppress
from types import TracebackType
from typing import Any, TextIO, cast

import structlog

from lancekeep.entrypoints.rest.settings import ServerSettings
from lancekeep.entrypoints.rest.whole_lines import numbers_of

_STAMPED: tuple[Any, ...] = (
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper("iso", utc=True),
)


_STREAMS: list[TextIO] = []
"""Where the logs that are made now write to, instead of stderr, is the last one."""


def write_to(stream: TextIO) -> None:
    """Let logs write to a stream, not to stderr, if they are made from now on.

    It changes the process, so only a program that is a server calls it.
    """
    _STREAMS.append(stream)


def write_to_stderr_again() -> None:
    """Undo `write_to`."""
    _STREAMS.pop()


def files_of_log() -> tuple[int, ...]:
    """Return the numbers by which another process writes to the log."""
    return numbers_of(_stream())


def _stream() -> TextIO:
    return _STREAMS[-1] if _STREAMS else sys.stderr


class _Lines:
    """A stream that drops what it cannot write: a log without a reader, or on a full disk, costs no request."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with suppress(OSError, ValueError):
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


def log_of(settings: ServerSettings) -> Any:
    """Return a logger that writes lines to stderr."""
    lines = cast(TextIO, _Lines(_stream()))
    return structlog.wrap_logger(
        structlog.WriteLogger(lines),  # a line is one write, so lines of several workers stay apart
        processors=[*_STAMPED, *_renderers(settings)],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, settings.log_level.upper())),
        cache_logger_on_first_use=True,
    )


def log_everything(settings: ServerSettings) -> None:
    """Log libraries, warnings and crashes in the form of the server.

    It changes the process, so only a program that is a server calls it.
    """
    handler = logging.StreamHandler(_stream())
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=(structlog.contextvars.merge_contextvars, *_STAMPED),  # which of several catalogs
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderers(settings)],
        )
    )
    level = getattr(logging, settings.log_level.upper())
    logging.basicConfig(handlers=[handler], level=max(level, logging.WARNING), force=True)
    logging.getLogger("lancekeep").setLevel(level)
    logging.captureWarnings(True)
    log = log_of(settings)

    def crashed(kind: type[BaseException], error: BaseException | None, traceback: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            sys.__excepthook__(kind, error or kind(), traceback)
        else:
            log.critical("crash", exc_info=(kind, error, traceback))

    sys.excepthook = crashed
    threading.excepthook = lambda found: crashed(found.exc_type, found.exc_value, found.exc_traceback)


def is_console(settings: ServerSettings) -> bool:
    """Return whether the log is for people."""
    return settings.log_format == "console" or (settings.log_format == "auto" and sys.stderr.isatty())


def _renderers(settings: ServerSettings) -> list[Any]:
    if is_console(settings):
        return [structlog.dev.ConsoleRenderer()]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
