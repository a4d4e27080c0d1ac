"""The processes of a server."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Collection
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any


class ServedProcess:
    """The process of ``lancekeep serve``, with a log in JSON.

    A thread reads the log, with a line for each request: workers wait while its pipe is full.
    """

    def __init__(self, process: subprocess.Popen[str], faults: Collection[str] = ()) -> None:
        self.process = process
        self._faults = faults
        self._events: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self.reader = Thread(target=self._read, daemon=True)
        self.reader.start()

    def await_event(self, name: str) -> dict[str, Any]:
        """Return the next event of a name. No fault may come before it."""
        while (event := self._events.get()) is not None:
            if event["event"] == name:
                return event
            assert event["event"] not in self._faults, event
        raise AssertionError(f"the server ended before its event {name!r}")

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if line.startswith("{"):
                self._events.put(json.loads(line))
        self._events.put(None)


def workers_of(pid: int) -> list[int]:
    """Return the workers of the process of ``lancekeep serve``."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def peak_memory(pid: int) -> int:
    """Return the most memory that a process or one of its workers has had, in MB."""
    found = (Path(f"/proc/{each}/status").read_text() for each in (pid, *workers_of(pid)))
    return max(int(re.search(r"VmHWM:\s+(\d+)", status)[1]) // 1024 for status in found)  # type: ignore[index] # Linux
