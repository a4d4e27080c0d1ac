"""Reduce garbage collection in Python workers that Spark's daemon forks."""

from __future__ import annotations

import gc
from functools import cache

from lancekeep.entrypoints.spark.internals.workers import is_forked_worker


@cache  # one call per process suffices
def freeze_imports() -> None:
    """Exclude a worker's imported modules from garbage collection.

    Spark's daemon runs a collection after each task. It traverses some hundred thousand objects of imported modules,
    which takes 65 ms of processor time, ten times as long as a small task. The first call in a worker permanently
    excludes the objects that exist then; later objects are collected as usual. In other processes, such as the
    driver, the function does nothing.
    """
    if is_forked_worker():
        gc.collect()
        gc.freeze()
