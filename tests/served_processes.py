"""The processes of a server."""

from __future__ import annotations

import re
from pathlib import Path


def workers_of(pid: int) -> list[int]:
    """Return the workers of the process of ``lancekeep serve``."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def peak_memory(pid: int) -> int:
    """Return the most memory that a process or one of its workers has had, in MB."""
    found = (Path(f"/proc/{each}/status").read_text() for each in (pid, *workers_of(pid)))
    return max(int(re.search(r"VmHWM:\s+(\d+)", status)[1]) // 1024 for status in found)  # type: ignore[index] # Linux
