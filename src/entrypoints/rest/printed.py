"""What native code prints on the stderr of a server, as lines of its log.

The engine and the interpreter write plain text to the file of stderr, such as warnings, panics and the last words of a
crash. If the log is JSON, that file is a pipe, and the process writes its log to what was stderr before. The supervisor
reads the pipes of its workers, so it has every line of a worker that has ended.
"""

from __future__ import annotations

import codecs
import io
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any, Final

from lancekeep.entrypoints.rest.logs import is_console, log_of, write_to, write_to_stderr_again
from lancekeep.entrypoints.rest.settings import ServerSettings
from lancekeep.entrypoints.rest.whole_lines import log_stream

_OF_ENGINE = re.compile(r"\[\S+ (ERROR|WARN|INFO|DEBUG|TRACE) +(\S+)\] (.*)")
_LEVELS: Final = {"ERROR": 40, "WARN": 30, "INFO": 20, "DEBUG": 10, "TRACE": 10}
_UNKNOWN: Final = (40, "stderr")
"""The level and the name of lines that are none of the engine's log."""
_LONGEST: Final = 64 << 10
"""The characters after which a line is divided."""
_STDERR: Final = 2
_PATIENCE: Final = 1.0
"""The seconds to wait for the last lines if another process still has the pipe."""


def is_captured(settings: ServerSettings) -> bool:
    """Return whether a server writes what native code prints to its log."""
    if is_console(settings):
        return False
    with suppress(OSError, AttributeError, io.UnsupportedOperation):
        return sys.stderr.fileno() == _STDERR
    return False


class Printed(Thread):
    """Writes the lines that arrive in a pipe to a log.

    Args:
        source: The end of the pipe to read; it is closed at the end.
        log: The log.
    """

    def __init__(self, source: int, log: Any) -> None:
        super().__init__(name="printed", daemon=True)
        self._source = source
        self._log = log
        self._as = _UNKNOWN
        self._is_divided = False
        self.start()

    def run(self) -> None:
        """Read until all writers have closed the pipe."""
        rest, decoder = "", codecs.getincrementaldecoder("utf-8")("replace")
        with open(self._source, "rb", buffering=0) as pipe:
            while part := pipe.read(_LONGEST):
                *lines, rest = (rest + decoder.decode(part)).split("\n")
                for each in lines:
                    self._write(each)
                if len(rest) > _LONGEST:
                    self._write(rest, has_more=True)
                    rest = ""
        self._write(rest + decoder.decode(b"", final=True))

    def finish(self) -> None:
        """Wait for the last line."""
        self.join(_PATIENCE)

    def _write(self, text: str, *, has_more: bool = False) -> None:
        text = text if has_more else text.rstrip()
        found = None if self._is_divided else _OF_ENGINE.fullmatch(text)
        if found is not None:
            self._as, text = (_LEVELS[found[1]], found[2]), found[3]
        elif not (self._is_divided or text.startswith(" ")):  # otherwise a further part of the message before
            self._as = _UNKNOWN
        self._is_divided = has_more
        level, logger = self._as
        if text:
            self._log.log(level, text, logger=logger)


@contextmanager
def printing_to_log(settings: ServerSettings) -> Iterator[None]:
    """Write what native code prints in this process to its log.

    A log for people is unchanged.
    """
    if not is_captured(settings):
        yield
        return
    before = os.dup(_STDERR)
    source, target = os.pipe()
    os.dup2(target, _STDERR)
    os.close(target)
    write_to(log_stream(before))
    printed = Printed(source, log_of(settings))
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, _STDERR)
        printed.finish()
        write_to_stderr_again()
