"""The lines of a server's log."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from threading import Thread
from types import SimpleNamespace

import pytest

from lancekeep.entrypoints.rest.logs import log_of
from lancekeep.entrypoints.rest.printed import Printed
from lancekeep.entrypoints.rest.settings import ServerSettings
from lancekeep.entrypoints.rest.whole_lines import log_stream


class Writes(io.StringIO):
    """A stream that notes each of its writes."""

    def __init__(self) -> None:
        super().__init__()
        self.each: list[str] = []

    def write(self, text: str) -> int:
        self.each.append(text)
        return super().write(text)


def test_a_line_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several workers write to one pipe; the end of a line that is written apart may follow another line."""
    stream = Writes()
    monkeypatch.setattr(sys, "stderr", stream)
    log = log_of(ServerSettings(log_format="json"))
    log.info("one", number=1)
    log.info("two", text="line\nline")
    assert [json.loads(line)["event"] for line in stream.each] == ["one", "two"]
    assert all(line.endswith("\n") for line in stream.each)


def test_long_line_of_the_engine_is_divided_and_nothing_of_it_is_lost() -> None:
    text = "é" * 100_000  # of two bytes each, after a prefix with an odd number of bytes
    source, target = os.pipe()
    lines: list[tuple[int, str, str]] = []
    log = SimpleNamespace(log=lambda level, event, logger: lines.append((level, logger, event)))
    printed = Printed(source, log)
    with open(target, "wb") as pipe:
        pipe.write(f"[2026-01-01T00:00:00Z WARN  lance::io] x{text}\nnext\n".encode())
    printed.join()
    assert {line[:2] for line in lines[:-1]} == {(30, "lance::io")}
    assert "".join(line[2] for line in lines[:-1]) == f"x{text}"
    assert lines[-1] == (40, "stderr", "next")


WRITER = """
import sys
from lancekeep.entrypoints.rest.whole_lines import log_stream
log_stream(int(sys.argv[1])).write("a" * 1_000_000)
"""


def test_process_that_is_stopped_in_a_line_stops_no_other_writer() -> None:
    source, target = os.pipe()
    with subprocess.Popen([sys.executable, "-c", WRITER, str(target)], pass_fds=[target]) as process:
        try:
            os.read(source, 1)  # it has the lock, and waits for room
            os.kill(process.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            os.set_blocking(source, False)
            with suppress(BlockingIOError):
                while os.read(source, 1 << 16):
                    pass
            written = Thread(target=log_stream(target).write, args=("b\n",), daemon=True)
            written.start()
            written.join(30)
            assert os.read(source, 10) == b"b\n"
        finally:
            process.kill()
    os.close(source)
    os.close(target)
