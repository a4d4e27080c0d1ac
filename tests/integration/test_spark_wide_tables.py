"""What a query costs does not grow faster than the number of columns of its table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from py4j.clientserver import ClientServerConnection  # type: ignore[import-untyped]  # py4j has no types
from pyspark.sql import SparkSession

import lancekeep
import lancekeep.spark
from lancekeep.entrypoints.spark.reading import FragmentReader, Snapshot, require_columns

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:lance is not fork-safe"),  # the JVM is forked, and executes at once
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
]

FREES_AN_OBJECT = "m\n"


class Commands:
    """Count what is sent to the JVM, without what Python's garbage collection sends at any time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent = 0
        send = ClientServerConnection.send_command

        def counted(connection: Any, command: str) -> Any:
            self.sent += not command.startswith(FREES_AN_OBJECT)
            return send(connection, command)

        monkeypatch.setattr(ClientServerConnection, "send_command", counted)


def table(columns: int) -> pa.Table:
    return pa.table({f"c{number}": [number, 1, 2, 3, 4] for number in range(columns)})


def test_limit_sends_no_command_for_each_column(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: dict[int, int] = {}
    with lancekeep.spark.install(spark, "wide", str(tmp_path / "lake")) as catalog:
        for columns in (2, 300):
            catalog.write(f"t{columns}", table(columns))
            statement = f"SELECT * FROM wide.t{columns} LIMIT 3"
            expected = lance.dataset(catalog.describe_table(f"t{columns}").uri).to_table(limit=3).to_pylist()
            commands = Commands(monkeypatch)
            found = spark.sql(statement).collect()
            sent[columns] = commands.sent
            monkeypatch.undo()
            assert [row.asDict() for row in found] == expected
    assert abs(sent[300] - sent[2]) < 100  # the first statement also resolves classes


def test_names_of_a_schema_are_listed_once() -> None:
    class Counted:
        listed = 0

        @property
        def names(self) -> list[str]:
            self.listed += 1
            return list(table(50).column_names)

    schema: Any = Counted()
    require_columns(schema, table(50).column_names)
    assert schema.listed == 1
    with pytest.raises(lancekeep.InvalidInput, match=r"no column 'x'; it has c0, c1,"):
        require_columns(schema, ["c3", "x"])


@pytest.mark.parametrize("names", [["a", "b", "c"], ["b"], ["c", "a", "b"]])
def test_engine_projects_only_parts_of_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str]
) -> None:
    catalog = lancekeep.connect(str(tmp_path))
    rows = pa.table({"a": [1, 2], "b": [3, 4], "c": [5, 6]})
    catalog.write("t", rows)
    dataset = catalog.open("t")
    asked, scanner = [], lance.LanceDataset.scanner

    def spied(self: Any, columns: Any = None, **arguments: Any) -> Any:
        asked.append(columns)
        return scanner(self, columns=columns, **arguments)

    monkeypatch.setattr(lance.LanceDataset, "scanner", spied)
    wanted = rows.select(names).schema
    reader = FragmentReader.of(Snapshot.of(catalog, dataset), dataset.schema, wanted)
    assert pa.Table.from_batches(reader.read([range(1)])) == rows.select(names)
    assert asked == [None if names == rows.column_names else names]


def test_tasks_that_read_import_no_catalog() -> None:
    code = "import sys, lancekeep.entrypoints.spark.sql.scan; assert 'lancekeep.application.catalog' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
