"""Record bad records as JSON lines with file, row, reason and record."""

from __future__ import annotations

import json
from types import TracebackType
from typing import Any, Self

from lancekeep.domain.errors import InvalidInput
from lancekeep.entrypoints.spark.jobs.files import place


class BadRecords:
    """The bad records of one task.

    The first bad record creates the file; a repeated task writes the same file. A call records a bad record and raises
    `InvalidInput`, after writing it, if there are more than ``limit``.

    Attributes:
        count: The number of bad records.
        files: The files that were set aside whole or from some row on.
    """

    def __init__(self, folder: str | None, name: str, limit: int) -> None:
        self.count = 0
        self.files: set[str] = set()
        self._folder = folder
        self._name = name
        self._limit = limit
        self._stream: Any = None

    def __call__(self, file: str, row: int | None, reason: str, record: Any = None) -> None:
        self.count += 1
        if row is None:
            self.files.add(file)
        self._write({"file": file, "row": row, "reason": reason, "record": record})
        if self.count > self._limit:
            where = file if row is None else f"row {row} of {file}"
            kept = f"; they are kept in {self._folder}" if self._folder else ""
            raise InvalidInput(f"more than {self._limit} bad records{kept}; the last: {where}: {reason}")

    def _write(self, bad: dict[str, Any]) -> None:
        if self._folder is None:
            return
        if self._stream is None:
            store, path = place(self._folder)
            store.create_dir(path, recursive=True)
            self._stream = store.open_output_stream(f"{path}/{self._name}.jsonl")
        self._stream.write(json.dumps(bad, ensure_ascii=False, default=str).encode(errors="backslashreplace") + b"\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is not None:
            self._stream.close()
