"""Run the command line: ``lancekeep`` or ``python -m lancekeep``."""

from __future__ import annotations

import gc
import os
import signal
import sys
from contextlib import suppress
from io import FileIO, TextIOWrapper

_ALLOCATIONS = 50_000
"""How many objects are made before the garbage collector runs: imports make many objects, and all of them stay."""
_STDERR = 2
_FIRST = 1
"""The id of the first process of a container."""


def main() -> None:
    """Run the command line with the public functions of this package."""
    if os.getpid() == _FIRST:  # for which the system ignores SIGTERM until a program handles it
        signal.signal(signal.SIGTERM, _end)
    if None in (sys.stdin, sys.stdout, sys.stderr):
        _open_standard_files()
    gc.set_threshold(_ALLOCATIONS)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # threads of linear algebra, unused here, take 0.1 s to start
    import lancekeep
    from lancekeep.entrypoints.cli import main as run

    run(lancekeep)  # type: ignore[arg-type]  # `jobs` is a submodule that loads on first use


def _open_standard_files() -> None:
    """Open what the caller has closed of the standard files.

    Otherwise files that are opened later get their numbers, and native code prints into them.
    """
    with suppress(OSError):
        while (number := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
            os.set_inheritable(number, True)
        os.close(number)
    # They stay open, as those that a caller gives.
    sys.stdin = sys.stdin or TextIOWrapper(FileIO(0, closefd=False))
    sys.stdout = sys.stdout or TextIOWrapper(FileIO(1, "w", closefd=False))
    sys.stderr = sys.stderr or TextIOWrapper(FileIO(_STDERR, "w", closefd=False))


def _end(number: int, frame: object) -> None:
    """End as any other process does by default."""
    os._exit(128 + number)


if __name__ == "__main__":
    main()
