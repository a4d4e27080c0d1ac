"""Writers that run in processes of their own (importable there, unlike test modules)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from threading import Barrier, Thread
from typing import Any

import lance
import pyarrow as pa
from lance.commit import CommitConflictError

import lancekeep

TABLE = ["hot", "t"]


def row(writer: int, number: int) -> pa.Table:
    """One row that nobody else writes."""
    return pa.table({"writer": pa.array([writer], pa.int64()), "number": pa.array([number], pa.int64())})


def append(namespace: Any, writer: int, number: int) -> None:
    """One native append of one row, repeated only where it is certain that nothing was committed."""
    while True:
        try:
            lance.write_dataset(row(writer, number), namespace_client=namespace, table_id=TABLE, mode="append")
        except CommitConflictError:
            continue
        except OSError as error:
            if "Too many concurrent writers" in str(error):  # the engine's own patience ended; each try had lost
                continue
            raise
        return


def append_in_threads(
    properties: Mapping[str, str], process: int, threads: int, appends: int, start: Any, failures: Any
) -> None:
    """Threads that append to one table at once; ``failures`` gets what went wrong."""
    namespace = lancekeep.DirectoryNamespace(**properties)
    together = Barrier(threads)

    def write(thread: int) -> None:
        try:
            together.wait()
            for number in range(appends):
                append(namespace, process * threads + thread, number)
        except BaseException as error:
            failures.put(f"process {process}, thread {thread}: {error!r}")

    start.wait()
    workers = [Thread(target=write, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def append_until_killed(properties: Mapping[str, str], writer: int, ledger: str) -> None:
    """Appends without end; every acknowledged row is in the ledger before the next one is begun."""
    namespace = lancekeep.DirectoryNamespace(**properties)
    with open(ledger, "a", buffering=1) as acknowledged:
        number = 0
        while True:
            append(namespace, writer, number)
            acknowledged.write(f"{writer},{number}\n")
            os.fsync(acknowledged.fileno())
            number += 1
