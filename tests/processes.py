"""Processes that share nothing with the tests but the stores. A process that has used lance must not fork."""

from __future__ import annotations

import multiprocessing

PROCESSES = multiprocessing.get_context("forkserver")
"""Forks of one that has done nothing but import: a process of its own that begins at once, not after two seconds."""
PROCESSES.set_forkserver_preload(["lance", "lance_namespace", "lancekeep"])
