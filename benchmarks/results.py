"""Keeps the figures of benchmarks, for the page about performance.

``make bench`` names a file by ``LANCEKEEP_RESULTS``. It begins with the commit, the machine and the date, and each
benchmark adds its figures. Without the variable, nothing is kept. ``python docs/performance_table.py`` writes the table
of the page from ``benchmarks/results.json``.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

VARIABLE = "LANCEKEEP_RESULTS"


def record(benchmark: str, what: str, unit: str, ours: float, peer: float | None = None, against: str = "") -> None:
    """Keep a figure; a figure of the same name is replaced.

    Args:
        benchmark: The name of the benchmark's file.
        what: What was measured.
        unit: The unit. For units per second more is better, for others less.
        ours: The figure of Lancekeep.
        peer: The figure of the peer in the same run.
        against: The peer.
    """
    if VARIABLE not in os.environ:
        return
    path = Path(os.environ[VARIABLE])
    document: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    document |= {"commit": _commit(), "machine": _machine(), "date": datetime.now(UTC).date().isoformat()}
    figure = {"unit": unit, "ours": round(ours, 4)}
    if peer is not None:
        figure |= {"peer": round(peer, 4), "against": against}
    document.setdefault("figures", {}).setdefault(benchmark, {})[what] = figure
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False, sort_keys=True) + "\n")


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def _machine() -> str:
    return f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"
