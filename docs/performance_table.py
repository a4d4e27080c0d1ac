"""Write the table of docs/performance.md from benchmarks/results.json: ``python docs/performance_table.py``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("performance.md")
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results.json"
BEGIN, END = "<!-- figures: python docs/performance_table.py -->", "<!-- end of the figures -->"

ROWS: dict[str, list[tuple[str, str]]] = {
    "commits": [
        ("conditional-put: 1 writers, 1 tables", "commits, 1 writer, `conditional-put://`"),
        ("conditional-put: 8 writers, 1 tables", "commits, 8 writers of one table, `conditional-put://`"),
        ("sqlite normal: 8 writers, 1 tables", "commits, 8 writers of one table, `sqlite://`"),
        ("redis: 8 writers, 1 tables", "commits, 8 writers of one table, `redis://`"),
        (
            "conditional-put: a commit after 3000 versions",
            "a commit to a table of 3,000 versions, `conditional-put://`",
        ),
    ],
    "appends": [
        ("pylance: 8 clients", "appends on S3 (60 ms), 8 writers of pylance"),
        ("storage: 1 clients", "appends on S3 (60 ms), 1 client, storage-managed"),
        ("storage: 16 clients", "appends on S3 (60 ms), 16 clients, storage-managed"),
        ("storage: 64 clients", "appends on S3 (60 ms), 64 clients, storage-managed"),
    ],
    "catalog": [
        ("{tables} tables, local files: describe, hit", "describe a table of {tables}"),
        ("{tables} tables, local files: list 100, deep page", "list 100 of {tables} tables"),
        ("{tables} tables, local files: declare", "declare a table beside {tables}"),
    ],
    "spark": [
        ("write, narrow: SQL", "Spark SQL: write a table of 4 columns"),
        ("write, vectors: SQL", "Spark SQL: write vectors"),
        ("read two columns: SQL", "Spark SQL: read two columns beside vectors"),
        ("lookup by key: SQL", "Spark SQL: one key, without an index"),
        ("lookup by key, BTREE: SQL", "Spark SQL: one key, with a B-tree"),
        ("lookup with vector: SQL", "Spark SQL: one key with its vector"),
        ("join with 1,000 rows: SQL", "Spark SQL: a join with 1,000 rows"),
        ("wide aggregate: SQL", "Spark SQL: ten aggregates in 50 groups"),
        ("LIMIT 3 of 2,000 columns: SQL", "Spark SQL: `LIMIT 3` of 2,000 columns"),
        ("kNN, 10 of all: SQL", "Spark SQL: the 10 nearest vectors"),
        ("MERGE of 1 %: SQL", "Spark SQL: `MERGE` of 1 % of the rows"),
        ("UPDATE beside vectors: SQL", "Spark SQL: `UPDATE` of a column beside vectors"),
        ("add a column: backfill", "Spark: a new column beside vectors, by `backfill`"),
    ],
    "startup": [
        ("import lancekeep", "`import lancekeep`, with the interpreter"),
        ("lancekeep --help", "`lancekeep --help`, with the interpreter"),
        ("lancekeep ls", "`lancekeep ls` of 11 tables, with the interpreter"),
        ("lancekeep head, many rows", "`lancekeep head` of 10,000,000 rows, with the interpreter"),
        ("lancekeep ls, many tables", "`lancekeep ls` of 1,000,000 tables, with the interpreter"),
        ("page, first", "the first page of 1,000,000 tables in a browser"),
        ("search, first", "the first search among them, by the names that are read in a moment"),
        ("search, later", "a search among them"),
    ],
}
"""The figures of each benchmark that the page shows, and what the page calls them."""
TABLES = ("10,000", "100,000", "1,000,000")


def lines(document: dict[str, Any]) -> Iterator[str]:
    yield "| | Lancekeep | peer | ratio |"
    yield "| --- | --- | --- | --- |"
    for benchmark, rows in ROWS.items():
        figures = document["figures"].get(benchmark, {})
        for what, name in rows:
            for tables in TABLES if "{tables}" in what else ("",):
                if figure := figures.get(what.replace("{tables}", tables)):
                    yield row(name.replace("{tables}", tables), figure)
    yield ""
    yield f"Commit {document['commit']}, {document['date']}, {document['machine']}."


def row(name: str, figure: dict[str, Any]) -> str:
    ours, unit = figure["ours"], figure["unit"]
    if "peer" not in figure:
        return f"| {name} | {shown(ours)} {unit} | | |"
    peer = figure["peer"]
    better = ours / peer if "per second" in unit else peer / ours
    ratio = f"{shown(better)} times better" if better >= 1 else f"{shown(1 / better)} times worse"
    return f"| {name} | {shown(ours)} {unit} | {shown(peer)}, {figure['against']} | {ratio} |"


def shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def page() -> str:
    """Return the page with the table of the current results."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return "\n".join([f"{before}{BEGIN}\n", *lines(json.loads(RESULTS.read_text())), f"\n{END}{after}"])


if __name__ == "__main__":
    PAGE.write_text(page())
