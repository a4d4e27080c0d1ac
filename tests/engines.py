"""Other Lance engines beside Lancekeep: pylance 4.0.2, pylance 13.0.0, and lancedb with an engine of its own.

Each engine runs in a process of its own, which keeps handles open across the commits of others. `make engines` makes
the virtual environments of the older engines from the pins in ``tests/fixtures/engines``; lancedb is a requirement of
the tests. Use the fixture ``engine_of``, which starts an engine once per session::

    old = engine_of("pylance-4.0.2")
    handle = old.open(uri)
    …                               # others commit
    handle.append(rows)             # the handle is stale: the engine rebases on the latest version

This file is also the program of those processes. There it imports the engine and pyarrow only.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import pyarrow as pa

PYLANCE_4, PYLANCE_13, LANCEDB = "pylance-4.0.2", "pylance-13.0.0", "lancedb"
ALL = (PYLANCE_4, PYLANCE_13, LANCEDB)
"""The names of the engines."""
OLDER = (PYLANCE_4, PYLANCE_13)
"""The engines that have a virtual environment of their own."""

_ENVIRONMENTS = Path(sys.prefix) / "engines"


class EngineError(Exception):
    """The engine raised an error; the message begins with its type."""


class MissingEngine(Exception):
    """The virtual environment of an engine does not exist; the message says how to make it."""


class Handle:
    """A table that an engine has opened. It stays at its version until `refresh` or a commit of its own."""

    def __init__(self, engine: Engine, number: int) -> None:
        self._engine = engine
        self._number = number

    def version(self) -> int:
        """Return the version of the handle."""
        return int(self._do("version"))

    def append(self, rows: pa.Table) -> int:
        """Append rows; return the version of the handle after the commit."""
        return int(self._do("append", rows=_encoded(rows)))

    def delete(self, where: str) -> int:
        """Delete rows; return the version of the handle after the commit."""
        return int(self._do("delete", where=where))

    def update(self, values: Mapping[str, str], where: str) -> int:
        """Set columns to SQL expressions; return the version of the handle after the commit."""
        return int(self._do("update", values=dict(values), where=where))

    def merge(self, on: str, rows: pa.Table) -> int:
        """Update the rows whose key exists, insert the others; return the version of the handle after the commit."""
        return int(self._do("merge", on=on, rows=_encoded(rows)))

    def optimize(self) -> int:
        """Compact files and update the indexes; return the version of the handle after the commit."""
        return int(self._do("optimize"))

    def clean_up(self) -> None:
        """Remove all versions but the latest one, with their files."""
        self._do("clean_up")

    def count(self, where: str | None = None) -> int:
        """Count the rows of the handle's version, by an index if there is one."""
        return int(self._do("count", where=where))

    def rows(self, where: str | None = None) -> pa.Table:
        """Return the rows of the handle's version."""
        return _decoded(self._do("rows", where=where))

    def refresh(self) -> int:
        """Move the handle to the latest version, and return it."""
        return int(self._do("refresh"))

    def transaction(self, version: int) -> str | None:
        """Return the name of the operation that made a version, as ``Append``; None if the engine finds none."""
        name: str | None = self._do("transaction", version=version)
        return name

    def close(self) -> None:
        """Forget the handle."""
        self._do("close")

    def _do(self, action: str, **arguments: object) -> Any:
        return self._engine.ask(action, handle=self._number, **arguments)


class Engine:
    """The process of an engine. Several threads may use it; it does one thing at a time.

    Attributes:
        name: one of `ALL`.
    """

    def __init__(self, name: str, process: subprocess.Popen[str]) -> None:
        self.name = name
        self._process = process
        self._lock = Lock()

    def open(self, uri: str, storage_options: Mapping[str, str] | None = None) -> Handle:
        """Open a table by its URI, past every catalog. lancedb needs a directory ``NAME.lance``."""
        return Handle(self, self.ask("open", uri=uri, storage_options=dict(storage_options or {})))

    def open_table(self, properties: Mapping[str, str], table: Sequence[str]) -> Handle:
        """Open a table through `lancekeep.DirectoryNamespace`. Only lancedb can: its environment has Lancekeep."""
        return Handle(self, self.ask("open_table", properties=dict(properties), table=list(table)))

    def ask(self, action: str, **arguments: object) -> Any:
        """Let the process do something, and return its answer.

        Raises:
            EngineError: The engine raised an error, or its process ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            try:
                self._process.stdin.write(json.dumps({"action": action, **arguments}) + "\n")
                self._process.stdin.flush()
                line = self._process.stdout.readline()
            except OSError:
                line = ""
        if not line:
            raise EngineError(f"{self.name} has ended with {self._process.wait()} during {action}")
        answer = json.loads(line)
        if "error" in answer:
            raise EngineError(answer["error"])
        return answer["value"]


@contextmanager
def running(name: str) -> Iterator[Engine]:
    """Run an engine in a process of its own.

    Raises:
        MissingEngine: Its virtual environment does not exist.
    """
    python = Path(sys.executable)
    if name in OLDER:
        python = _ENVIRONMENTS / name / "bin" / "python"
        if not (_ENVIRONMENTS / name / "installed").exists():
            raise MissingEngine(f"no {name} in {_ENVIRONMENTS} (make engines)")
    command = [str(python), "-I", __file__, name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Engine(name, process)
        finally:
            process.kill()


def _encoded(rows: pa.Table) -> str:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return base64.b64encode(sink.getvalue()).decode()


def _decoded(content: str) -> pa.Table:
    return pa.ipc.open_stream(base64.b64decode(content)).read_all()


# -- the program of an engine's process -------------------------------------------------------------------------------


class _Pylance:
    """A handle of pylance."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def version(self) -> int:
        return int(self.dataset.version)

    def append(self, rows: str) -> int:
        self.dataset.insert(_decoded(rows))
        return self.version()

    def delete(self, where: str) -> int:
        self.dataset.delete(where)
        return self.version()

    def update(self, values: dict[str, str], where: str) -> int:
        self.dataset.update(values, where=where)
        return self.version()

    def merge(self, on: str, rows: str) -> int:
        merge = self.dataset.merge_insert(on).when_matched_update_all().when_not_matched_insert_all()
        merge.execute(_decoded(rows))
        return self.version()

    def optimize(self) -> int:
        self.dataset.optimize.compact_files()
        self.dataset.optimize.optimize_indices()
        return self.version()

    def clean_up(self) -> None:
        from datetime import timedelta

        self.dataset.cleanup_old_versions(older_than=timedelta(0), delete_unverified=True)

    def count(self, where: str | None) -> int:
        return int(self.dataset.count_rows(filter=where))

    def rows(self, where: str | None) -> str:
        return _encoded(self.dataset.to_table(filter=where))

    def refresh(self) -> int:
        self.dataset.checkout_latest()
        return self.version()

    def transaction(self, version: int) -> str | None:
        found = self.dataset.read_transaction(version)
        return None if found is None else type(found.operation).__name__


class _Lancedb:
    """A handle of lancedb."""

    def __init__(self, table: Any) -> None:
        self.table = table

    def version(self) -> int:
        return int(self.table.version)

    def append(self, rows: str) -> int:
        self.table.add(_decoded(rows))
        return self.version()

    def delete(self, where: str) -> int:
        self.table.delete(where)
        return self.version()

    def update(self, values: dict[str, str], where: str) -> int:
        self.table.update(where=where, values_sql=values)
        return self.version()

    def merge(self, on: str, rows: str) -> int:
        merge = self.table.merge_insert(on).when_matched_update_all().when_not_matched_insert_all()
        merge.execute(_decoded(rows))
        return self.version()

    def optimize(self) -> int:
        self.table.optimize()
        return self.version()

    def clean_up(self) -> None:
        from datetime import timedelta

        self.table.optimize(cleanup_older_than=timedelta(0), delete_unverified=True)

    def count(self, where: str | None) -> int:
        return int(self.table.count_rows(where))

    def rows(self, where: str | None) -> str:
        if where is None:
            return _encoded(self.table.to_arrow())
        return _encoded(self.table.search().where(where).limit(None).to_arrow())

    def refresh(self) -> int:
        self.table.checkout_latest()
        return self.version()

    def transaction(self, version: int) -> str | None:
        raise NotImplementedError("lancedb does not show transactions")


def _open(name: str, uri: str, storage_options: dict[str, str]) -> _Pylance | _Lancedb:
    if name == LANCEDB:
        import lancedb

        parent, _, directory = uri.rstrip("/").rpartition("/")
        database = lancedb.connect(parent, storage_options=storage_options or None)
        return _Lancedb(database.open_table(directory.removesuffix(".lance")))
    import lance

    return _Pylance(lance.dataset(uri, storage_options=storage_options or None))


def _open_table(name: str, properties: dict[str, str], table: list[str]) -> _Lancedb:
    if name != LANCEDB:
        raise NotImplementedError(f"{name} has no Lancekeep")
    import lancedb

    database = lancedb.connect_namespace("lancekeep.DirectoryNamespace", properties)
    return _Lancedb(database.open_table(table[-1], namespace_path=table[:-1]))


def _serve(name: str, answer: Callable[[object], None]) -> None:
    """Answer each line of the standard input until it ends."""
    handles: dict[int, _Pylance | _Lancedb] = {}
    opened = 0
    for line in sys.stdin:
        asked = json.loads(line)
        action, number = asked.pop("action"), asked.pop("handle", None)
        value: object = None
        try:
            if action in ("open", "open_table"):
                opened += 1
                handles[opened] = (_open if action == "open" else _open_table)(name, **asked)
                value = opened
            elif action == "close":
                del handles[number]
            else:
                value = getattr(handles[number], action)(**asked)
        except BaseException as error:  # a panic of the engine is no Exception
            answer({"error": f"{type(error).__name__}: {error}"})
        else:
            answer({"value": value})


def _main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the engine may print

    def answer(value: object) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    _serve(sys.argv[1], answer)


if __name__ == "__main__":
    _main()
