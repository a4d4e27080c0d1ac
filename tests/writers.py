"""Writers for separate processes, which cannot import test modules."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Barrier, Thread
from typing import Any
from urllib.parse import unquote

import attrs
import lance
import lance_namespace as api
import pyarrow as pa
import pyarrow.compute as pc
from lance.commit import CommitConflictError
from lance.namespace import DirectoryNamespace as NativeNamespace
from lance.namespace import RestNamespace
from lance_namespace.errors import LanceNamespaceError

import lancekeep
from lancekeep.testing.concurrency import PROCESSES, watch_exit

TABLE = ["hot", "t"]


def row(writer: int, number: int) -> pa.Table:
    """Return a row that no other writer appends."""
    return pa.table({"writer": pa.array([writer], pa.int64()), "number": pa.array([number], pa.int64())})


def append(namespace: Any, writer: int, number: int) -> None:
    """Append one row natively; retry only if nothing was committed."""
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
    """Append to one table in several threads; put errors into ``failures``."""
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
    watch_exit()


def append_until_killed(
    properties: Mapping[str, str], writer: int, ledger: str, kind: str = "DirectoryNamespace"
) -> None:
    """Append endlessly; record each acknowledged row in the ledger before the next append."""
    namespace = getattr(lancekeep, kind)(**properties)
    _append_endlessly(lambda number: append(namespace, writer, number), writer, ledger)


def add_until_killed(properties: Mapping[str, str], writer: int, ledger: str, kind: str) -> None:
    """Append endlessly with lancedb; record each acknowledged row in the ledger before the next append."""
    import lancedb

    *path, name = TABLE
    table = lancedb.connect_namespace(f"lancekeep.{kind}", dict(properties)).open_table(name, namespace_path=path)
    _append_endlessly(lambda number: table.add(row(writer, number)), writer, ledger)


def _append_endlessly(act: Callable[[int], object], writer: int, ledger: str) -> None:
    with open(ledger, "a", buffering=1) as acknowledged:
        for number in itertools.count():
            act(number)
            acknowledged.write(f"{writer},{number}\n")
            os.fsync(acknowledged.fileno())


def append_through_server(uri: str, writer: int, ledger: str) -> None:
    """Append until the server is gone; record each acknowledged row in the ledger before the next append."""
    namespace = RestNamespace(uri=uri)
    with open(ledger, "a", buffering=1) as acknowledged:
        try:
            for number in itertools.count():
                append(namespace, writer, number)
                acknowledged.write(f"{writer},{number}\n")
                os.fsync(acknowledged.fileno())
        except (OSError, RuntimeError, LanceNamespaceError):
            return


def write_pairs(root: str, store: str, ledger: Connection) -> None:
    """Write the same number into both tables until killed, and report each commit."""
    catalog = lancekeep.connect(root, commit_store=store)
    for number in itertools.count(catalog.open("a").version):
        rows = pa.table({"number": pa.array([number], pa.int64())})
        with catalog.transaction() as tx:
            tx.write("b", rows, "append")
            tx.write("a", rows, "append")
        ledger.send(number)


# -- several kinds of writers and one table --------------------------------------------------------------------------

SHARED = pa.schema([("id", pa.int64()), ("work", pa.int64())])
COMMON = 5
"""The number of rows that all works update."""


def own(work: int, rows: int) -> pa.Table:
    """Return the rows that only this work appends."""
    return pa.table({"id": range(work * rows, (work + 1) * rows), "work": [work] * rows}, SHARED)


def common(work: int) -> pa.Table:
    """Return the rows that all works update."""
    return pa.table({"id": range(-COMMON, 0), "work": [work] * COMMON}, SHARED)


def following(dataset: lance.LanceDataset, work: int) -> pa.Table:
    """Return the next missing row, which concurrent writers may add at the same time."""
    return pa.table({"id": [pc.min(dataset.to_table(columns=["id"])["id"]).as_py() - 1], "work": [work]}, SHARED)


def share(properties: Mapping[str, str], first: int, works: int, rows: int, failures: Any) -> None:
    """Run works of a Lancekeep writer: append rows, update rows, and add a row that others may add."""
    from lancekeep.jobs import upsert

    try:
        with lancekeep.connect(properties["root"], commit_store=properties["commit_store"]) as catalog:
            for work in range(first, first + works):
                catalog.write("shared", own(work, rows), "append")
                upsert(catalog, "shared", common(work), on="id")
                upsert(catalog, "shared", following(catalog.open("shared"), work), on="id")
    except BaseException as error:
        failures.put(f"writer {first}: {error!r}")
    watch_exit()


def share_natively(properties: Mapping[str, str], first: int, works: int, rows: int, failures: Any) -> None:
    """Append and update rows with pylance, which does not detect concurrent inserts of one key."""
    namespace = lancekeep.DirectoryNamespace(**properties)
    try:
        for work in range(first, first + works):
            lance.write_dataset(own(work, rows), namespace_client=namespace, table_id=["shared"], mode="append")
            dataset = lance.dataset(namespace_client=namespace, table_id=["shared"])
            merge = dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
            merge.conflict_retries(1000).execute(common(work))
    except BaseException as error:
        failures.put(f"native writer {first}: {error!r}")
    watch_exit()


# -- namespaces in processes of their own ------------------------------------------------------------------------

PATIENCE = 120.0
"""Seconds after which a missing peer counts as dead."""

OWN_OPERATIONS = ("alter_namespace", "alter_table")
"""Operations that the interface lacks; they call the namespace's catalog."""

Call = tuple[str, dict[str, Any]]
"""An operation and its fields; ``data`` is the content of a new table."""

Answer = tuple[str, Any]
"""``ok`` with the response, or the name of the error with its message."""


def open_namespace(native: bool, properties: Mapping[str, str]) -> Any:
    """Open a directory namespace, native or of Lancekeep."""
    return (NativeNamespace if native else lancekeep.DirectoryNamespace)(**properties)


def stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def perform(namespace: Any, operation: str, fields: Mapping[str, Any]) -> Any:
    """Run an operation of the interface, of `OWN_OPERATIONS` or of this module."""
    if operation in OWN_OPERATIONS:
        return attrs.asdict(getattr(namespace.catalog, operation)(**fields))["properties"]
    if operation in ("append_rows", "world"):
        return globals()[operation](namespace, **fields)
    data = [stream(fields["data"])] if "data" in fields else []
    model = "list_tables" if operation == "list_all_tables" else operation
    request = getattr(api, "".join(word.capitalize() for word in model.split("_")) + "Request")
    given = {name: value for name, value in fields.items() if name != "data"}
    response = getattr(namespace, operation)(request(**given), *data)
    return {} if response is None else response.model_dump(exclude_none=True)


def answer(namespace: Any, call: Call) -> Answer:
    """Return the response to a call, or its error."""
    try:
        return "ok", perform(namespace, *call)
    except Exception as error:
        return type(error).__name__, str(error)


def append_rows(namespace: Any, id: list[str], data: pa.Table) -> int:  # noqa: A002 - as in the requests
    """Append natively at the location that the namespace returns, and return the new version."""
    location = perform(namespace, "describe_table", {"id": id})["location"]
    return int(lance.write_dataset(data, location, mode="append").version)


def world(namespace: Any, names: Sequence[str] = ()) -> dict[str, Any]:
    """Return the results of all read operations below ``names``."""
    at = {"id": list(names)}
    perform(namespace, "namespace_exists", at)
    spaces = perform(namespace, "list_namespaces", at).get("namespaces", [])
    tables = perform(namespace, "list_tables", at)["tables"]
    return {
        "properties": perform(namespace, "describe_namespace", at).get("properties", {}),
        "tables": {name: _table(namespace, [*names, name]) for name in tables},
        "written": perform(namespace, "list_tables", {**at, "include_declared": False})["tables"],
        "namespaces": {name: world(namespace, [*names, name]) for name in spaces},
    }


def _table(namespace: Any, names: list[str]) -> dict[str, Any]:
    perform(namespace, "table_exists", {"id": names})
    described = perform(namespace, "describe_table", {"id": names, "check_declared": True})
    assert [*described["namespace"], described["table"]] == names
    written = not described["is_only_declared"]
    versions = perform(namespace, "list_table_versions", {"id": names, "descending": True})["versions"]
    return {
        "directory": unquote(described["location"]).rpartition("/")[2],
        "properties": described.get("properties", {}),
        "rows": lance.dataset(described["location"]).to_table().to_pydict() if written else None,
        "versions": [(version["version"], version["manifest_path"], version["manifest_size"]) for version in versions],
    }


def attend(connection: Connection, together: Any) -> None:
    """Serve calls until None arrives; wait for the other peers before each call."""
    opened: dict[str, Any] = {}
    for native, properties, calls in iter(connection.recv, None):
        key = repr((native, properties))
        answers = []
        for call in calls:
            if key not in opened:
                opened[key] = open_namespace(native, properties)
            together.wait(PATIENCE)
            answers.append(answer(opened[key], call))
        connection.send(answers)


class Peers:
    """Processes that answer calls on namespaces of their own, all at once.

    They live as long as this does; a namespace that was opened in one stays open there.
    """

    def __init__(self, count: int) -> None:
        self._together = PROCESSES.Barrier(count)  # kept alive: a starting process opens it by name
        self._pipes, self._processes = [], []
        for _ in range(count):
            ours, theirs = PROCESSES.Pipe()
            process = PROCESSES.Process(target=attend, args=(theirs, self._together), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def race(self, *rounds: tuple[bool, Mapping[str, str], Sequence[Call]]) -> list[list[Answer]]:
        """Return each peer's answers to (native, properties, calls); the n-th calls start together."""
        for pipe, given in zip(self._pipes, rounds, strict=True):
            pipe.send(given)
        return [self._received(pipe) for pipe in self._pipes]

    def close(self) -> None:
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.send(None)
            process.join(PATIENCE)

    @staticmethod
    def _received(pipe: Any) -> list[Answer]:
        assert pipe.poll(PATIENCE), "a peer does not answer"
        received: list[Answer] = pipe.recv()
        return received


def kill_two_at_work(directory: Path, work: Callable[..., None], *place: object, works: int) -> list[str]:
    """Run two processes that write a line per work into a ledger each, and kill both after some works.

    Args:
        directory: The directory of the ledgers.
        work: The function of a process. It receives ``place``, the number of the process and the path of its ledger.
        place: Where the processes work.
        works: The number of works of each process after which they are killed.

    Returns:
        The whole lines of both ledgers.
    """
    ledgers = [directory / f"ledger-{writer}" for writer in (1, 2)]
    processes = [
        PROCESSES.Process(target=work, args=(*place, writer, str(ledger)), daemon=True)
        for writer, ledger in enumerate(ledgers, 1)
    ]
    for process in processes:
        process.start()
    while not all(ledger.exists() and ledger.read_text().count("\n") > works for ledger in ledgers):
        assert all(process.is_alive() for process in processes)
        time.sleep(0.01)
    for process in processes:
        process.kill()
        process.join()
    return [line for ledger in ledgers for line in ledger.read_text().splitlines(keepends=True) if line.endswith("\n")]
