"""Run the command line: ``lancekeep`` or ``python -m lancekeep``."""

from __future__ import annotations

import gc
import os

import lancekeep
from lancekeep.entrypoints.cli import main as run

_ALLOCATIONS = 50_000
"""How many objects are made before the garbage collector runs: imports make many objects, and all of them stay."""


def main() -> None:
    """Run the command line with the public functions of this package."""
    gc.set_threshold(_ALLOCATIONS)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # threads of linear algebra, unused here, take 0.1 s to start
    run(lancekeep)  # type: ignore[arg-type]  # `jobs` is a submodule that loads on first use


if __name__ == "__main__":
    main()
