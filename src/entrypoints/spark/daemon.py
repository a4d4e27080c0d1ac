"""The daemon by which Spark forks its Python workers, and which keeps them from one task to the next."""

from __future__ import annotations

import gc
import sys
from functools import cache


@cache  # once in a process is enough
def freeze_imports() -> None:
    """Spare what a worker has imported the garbage collection of each task.

    Spark's daemon collects whenever a worker has done something, through some hundred thousand objects of imported
    modules: 65 ms of processor time, ten times what a small task takes. What is there when a worker first comes here is
    set aside for good; what comes later is collected as ever. In any other process, such as the user's own, nothing is
    done.
    """
    if getattr(sys.modules["__main__"].__spec__, "name", None) == "pyspark.daemon":
        gc.collect()
        gc.freeze()
