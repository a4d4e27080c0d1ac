"""Writers that run in processes of their own (importable there, unlike test modules)."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
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

import lancekeep
from lancekeep.testing.concurrency import PROCESSES

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


def write_pairs(root: str, store: str, ledger: Connection) -> None:
    """Until it is killed: the same number into both tables, and told once it is committed."""
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
"""How many rows all works update."""


def own(work: int, rows: int) -> pa.Table:
    """Rows that only this work appends."""
    return pa.table({"id": range(work * rows, (work + 1) * rows), "work": [work] * rows}, SHARED)


def common(work: int) -> pa.Table:
    """Rows that all works change."""
    return pa.table({"id": range(-COMMON, 0), "work": [work] * COMMON}, SHARED)


def following(dataset: lance.LanceDataset, work: int) -> pa.Table:
    """The row that is still missing: writers that look at the same moment add it at the same moment."""
    return pa.table({"id": [pc.min(dataset.to_table(columns=["id"])["id"]).as_py() - 1], "work": [work]}, SHARED)


def share(properties: Mapping[str, str], first: int, works: int, rows: int, failures: Any) -> None:
    """So many works of a Lancekeep writer: rows appended, rows changed, and a row added that others may add, too."""
    from lancekeep.jobs import upsert

    try:
        with lancekeep.connect(properties["root"], commit_store=properties["commit_store"]) as catalog:
            for work in range(first, first + works):
                catalog.write("shared", own(work, rows), "append")
                upsert(catalog, "shared", common(work), on="id")
                upsert(catalog, "shared", following(catalog.open("shared"), work), on="id")
    except BaseException as error:
        failures.put(f"writer {first}: {error!r}")


def share_natively(properties: Mapping[str, str], first: int, works: int, rows: int, failures: Any) -> None:
    """Rows appended and rows changed by pylance, which would not notice that others add the same row."""
    namespace = lancekeep.DirectoryNamespace(**properties)
    try:
        for work in range(first, first + works):
            lance.write_dataset(own(work, rows), namespace_client=namespace, table_id=["shared"], mode="append")
            dataset = lance.dataset(namespace_client=namespace, table_id=["shared"])
            merge = dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
            merge.conflict_retries(1000).execute(common(work))
    except BaseException as error:
        failures.put(f"native writer {first}: {error!r}")


# -- namespaces in processes of their own ------------------------------------------------------------------------

PATIENCE = 120.0
"""Seconds after which a peer that does not come counts as dead."""

OWN_OPERATIONS = ("alter_namespace", "alter_table")
"""What the interface has no operation for; the catalog behind the namespace is asked."""

Call = tuple[str, dict[str, Any]]
"""An operation and its fields; ``data`` is what a table is created with."""

Answer = tuple[str, Any]
"""``ok`` with what was answered, or the name of the error with its message."""


def open_namespace(native: bool, properties: Mapping[str, str]) -> Any:
    """A directory namespace, of the native engine or ours."""
    return (NativeNamespace if native else lancekeep.DirectoryNamespace)(**properties)


def stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def perform(namespace: Any, operation: str, fields: Mapping[str, Any]) -> Any:
    """One operation of the interface, of `OWN_OPERATIONS` or of this module, on plain data."""
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
    """The answer to a call; an error is an answer, too."""
    try:
        return "ok", perform(namespace, *call)
    except Exception as error:
        return type(error).__name__, str(error)


def append_rows(namespace: Any, id: list[str], data: pa.Table) -> int:  # noqa: A002 - as in the requests
    """Append with the native engine where the namespace says that the table is; the version that it made."""
    location = perform(namespace, "describe_table", {"id": id})["location"]
    return int(lance.write_dataset(data, location, mode="append").version)


def world(namespace: Any, names: Sequence[str] = ()) -> dict[str, Any]:
    """Everything that a namespace shows below ``names``, by every operation that looks."""
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
    """Answer calls until None comes; with others at ``together``, which all wait for before each call."""
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
        self._together = PROCESSES.Barrier(count)  # kept: a process that still starts looks for it by name
        self._pipes, self._processes = [], []
        for _ in range(count):
            ours, theirs = PROCESSES.Pipe()
            process = PROCESSES.Process(target=attend, args=(theirs, self._together), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def race(self, *rounds: tuple[bool, Mapping[str, str], Sequence[Call]]) -> list[list[Answer]]:
        """Each peer's answers to its calls, as (native, properties, calls): the n-th calls of all begin together."""
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
