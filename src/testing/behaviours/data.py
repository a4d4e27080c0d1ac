"""Behaviours of the rows of tables: inserts, merges, updates, deletions, queries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from lance_namespace import errors

from lancekeep.testing.behaviours.behaviour import OTHERS, ROWS, Bench, Departure, claim
from lancekeep.testing.behaviours.registry import DATA, OPERATION_404, Behaviours

BEHAVIOURS = Behaviours()
behaviour = BEHAVIOURS.add

NAMED = pa.table(
    {
        "a": pa.array([1, 2, 3], pa.int64()),
        "b": ["one", "two", "three"],
        "vector": pa.array([[0, 0], [0, 1], [3, 4]], pa.list_(pa.float32(), 2)),
    }
)


def keyed(**values: str) -> pa.Table:
    """Return rows with the key ``a``: ``k2="new"`` is the row with key 2."""
    keys = [int(name.removeprefix("k")) for name in values]
    vectors = pa.array([[9, 9]] * len(keys), NAMED.schema.field("vector").type)
    return pa.table({"a": pa.array(keys, pa.int64()), "b": list(values.values()), "vector": vectors})


def query(bench: Bench, **fields: Any) -> pa.Table:
    """Return the answer of ``query_table`` on the table ``t``."""
    given = {"vector": {}, "k": 0, **fields}
    data = bench.other.ask("query_table", id=bench.at("t"), **given).data
    try:
        return pa.ipc.open_file(data).read_all()
    except (pa.ArrowException, TypeError) as error:
        raise Departure("`query_table` returns no Arrow IPC file") from error


def names(bench: Bench) -> Mapping[int, str]:
    """Return the rows of the table ``t``: ``b`` by ``a``.

    Raises:
        Departure: A key is in the table twice.
    """
    rows = query(bench)
    found = dict(zip(rows["a"].to_pylist(), rows["b"].to_pylist(), strict=True))
    claim(len(found) == rows.num_rows, "a key is in the table twice")
    return found


def merge(bench: Bench, data: pa.Table, **fields: Any) -> Any:
    return bench.one.ask("merge_insert_into_table", id=bench.at("t"), data=data, **{"on": ["a"], **fields})


# -- inserts -----------------------------------------------------------------------------------------------------

INSERT = "InsertIntoTableRequest.mode: Append (default): insert data to the existing table."


@behaviour("data/insert", INSERT, DATA)
def _insert(bench: Bench) -> None:
    bench.create("t")
    bench.one.ask("insert_into_table", id=bench.at("t"), data=OTHERS)
    bench.one.ask("insert_into_table", id=bench.at("t"), data=OTHERS, mode="Append")
    claim(bench.rows("t") == [1, 2, 3, 4, 4], "other rows in the table")


@behaviour("data/insert-response", "InsertIntoTableResponse.num_inserted_rows: Number of rows inserted.", DATA)
def _insert_response(bench: Bench) -> None:
    bench.create("t")
    inserted = bench.one.ask("insert_into_table", id=bench.at("t"), data=OTHERS)
    claim(inserted.num_inserted_rows == 1, f"`num_inserted_rows` is {inserted.num_inserted_rows}")
    claim(inserted.version == 2, f"`version` is {inserted.version}")


@behaviour("data/insert-overwrite", "InsertIntoTableRequest.mode: Overwrite: remove all data in the table and then "
           "insert data to it.", DATA)  # fmt: skip
def _insert_overwrite(bench: Bench) -> None:
    bench.create("t")
    bench.one.ask("insert_into_table", id=bench.at("t"), data=OTHERS, mode="Overwrite")
    claim(bench.rows("t") == [4], "other rows in the table")


@behaviour("data/insert-mode-unknown", INSERT, DATA)
def _insert_mode_unknown(bench: Bench) -> None:
    bench.create("t")
    refused = {"id": bench.at("t"), "data": OTHERS, "mode": "Perhaps"}
    bench.one.refused("insert_into_table", errors.InvalidInputError, **refused)
    claim(bench.rows("t") == [1, 2, 3], "rows are inserted all the same")


@behaviour("data/insert-declared", "InsertIntoTable: For tables that have been declared but not yet created on "
           "storage, this operation will create the table with the provided data.", DATA)  # fmt: skip
def _insert_declared(bench: Bench) -> None:
    bench.one.ask("declare_table", id=bench.at("t"))
    bench.one.ask("insert_into_table", id=bench.at("t"), data=ROWS)
    claim(bench.rows("t") == [1, 2, 3], "other rows in the table")


@behaviour("data/insert-schema", "InsertIntoTable: 20 (TableSchemaValidationError).", DATA)
def _insert_schema(bench: Bench) -> None:
    bench.create("t")
    other = pa.table({"z": ["text"]})
    bench.one.refused("insert_into_table", errors.TableSchemaValidationError, id=bench.at("t"), data=other)
    claim(bench.rows("t") == [1, 2, 3], "the rows are not the old ones")


@behaviour("data/insert-malformed", "All operations: 13 (InvalidInput): The request contains invalid parameters.", DATA)
def _insert_malformed(bench: Bench) -> None:
    bench.create("t")
    bench.one.refused("insert_into_table", errors.InvalidInputError, id=bench.at("t"), data=b"not Arrow")


MISSING: Mapping[str, Mapping[str, Any]] = {
    "insert_into_table": {"data": ROWS},
    "merge_insert_into_table": {"data": ROWS, "on": ["a"], "when_matched_update_all": True},
    "update_table": {"updates": [["a", "1"]]},
    "delete_from_table": {"predicate": "a = 1"},
    "count_table_rows": {},
    "query_table": {"vector": {}, "k": 1},
    "get_table_stats": {},
    "restore_table": {"version": 1},
    "explain_table_query_plan": {"query": {"vector": {}, "k": 1}},
    "analyze_table_query_plan": {"vector": {}, "k": 1},
}

for _operation, _fields in MISSING.items():

    @behaviour(f"data/missing-{_operation.replace('_', '-')}", OPERATION_404, DATA)
    def _missing(bench: Bench, operation: str = _operation, fields: Mapping[str, Any] = _fields) -> None:
        bench.create("t")
        bench.one.refused(operation, errors.TableNotFoundError, id=bench.at("missing"), **fields)


# -- merges ------------------------------------------------------------------------------------------------------

MERGE = (
    "MergeInsertIntoTable: This operation updates existing rows based on a matching column and inserts new rows that "
    "don't match. It returns the number of rows inserted and updated."
)


@behaviour("data/merge", MERGE, DATA)
def _merge(bench: Bench) -> None:
    bench.create("t", NAMED)
    clauses = {"when_matched_update_all": True, "when_not_matched_insert_all": True}
    merged = merge(bench, keyed(k3="new", k4="four"), **clauses)
    claim(names(bench) == {1: "one", 2: "two", 3: "new", 4: "four"}, "other rows in the table")
    counts = merged.num_updated_rows, merged.num_inserted_rows, merged.num_deleted_rows
    claim(counts == (1, 1, 0), f"the numbers of updated, inserted and deleted rows are {counts}")
    claim(merged.version == 2, f"`version` is {merged.version}")


@behaviour("data/merge-insert-only", "MergeInsertIntoTableRequest.when_not_matched_insert_all: Insert all columns when "
           "rows don't match.", DATA)  # fmt: skip
def _merge_insert_only(bench: Bench) -> None:
    bench.create("t", NAMED)
    merge(bench, keyed(k3="new", k4="four"), when_not_matched_insert_all=True)
    claim(names(bench) == {1: "one", 2: "two", 3: "three", 4: "four"}, "other rows in the table")


@behaviour(
    "data/merge-without-clause", "MergeInsertIntoTableRequest.when_not_matched_insert_all: default: false.", DATA
)
def _merge_without_clause(bench: Bench) -> None:
    bench.create("t", NAMED)
    fields = {"id": bench.at("t"), "data": keyed(k4="four"), "on": ["a"]}
    bench.one.refused("merge_insert_into_table", errors.InvalidInputError, **fields)
    claim(bench.rows("t") == [1, 2, 3], "rows are inserted all the same")


@behaviour("data/merge-update-only", "MergeInsertIntoTableRequest.when_matched_update_all: Update all columns when "
           "rows match.", DATA)  # fmt: skip
def _merge_update_only(bench: Bench) -> None:
    bench.create("t", NAMED)
    clauses = {"when_matched_update_all": True, "when_not_matched_insert_all": False}
    merge(bench, keyed(k3="new", k4="four"), **clauses)
    claim(names(bench) == {1: "one", 2: "two", 3: "new"}, "other rows in the table")


@behaviour("data/merge-update-filter", "MergeInsertIntoTableRequest.when_matched_update_all_filt: The row is updated "
           "only for rows where the SQL expression evaluates to true.", DATA)  # fmt: skip
def _merge_update_filter(bench: Bench) -> None:
    bench.create("t", NAMED)
    clauses = {"when_matched_update_all": True, "when_matched_update_all_filt": "target.b = 'two'"}
    merge(bench, keyed(k2="new", k3="new"), **clauses)
    claim(names(bench) == {1: "one", 2: "new", 3: "three"}, "other rows in the table")


@behaviour("data/merge-delete", "MergeInsertIntoTableRequest.when_not_matched_by_source_delete: Delete all rows from "
           "target table that don't match a row in the source table.", DATA)  # fmt: skip
def _merge_delete(bench: Bench) -> None:
    bench.create("t", NAMED)
    merged = merge(bench, keyed(k3="new", k4="four"), when_not_matched_by_source_delete=True)
    claim(names(bench) == {3: "three"}, "other rows in the table")
    claim(merged.num_deleted_rows == 2, f"`num_deleted_rows` is {merged.num_deleted_rows}")


@behaviour("data/merge-delete-filter", "MergeInsertIntoTableRequest.when_not_matched_by_source_delete_filt: Delete "
           "rows from the target table if there is no match AND the SQL expression evaluates to true.",
           DATA)  # fmt: skip
def _merge_delete_filter(bench: Bench) -> None:
    bench.create("t", NAMED)
    clauses = {"when_not_matched_by_source_delete": True, "when_not_matched_by_source_delete_filt": "a < 2"}
    merge(bench, keyed(k3="new"), **clauses)
    claim(names(bench) == {2: "two", 3: "three"}, "other rows in the table")


@behaviour("data/merge-composite-key", "MergeInsertIntoTableRequest.on: Multiple fields form a composite match key; a "
           "row matches only when every listed field is equal.", DATA)  # fmt: skip
def _merge_composite_key(bench: Bench) -> None:
    bench.create("t", NAMED)
    merged = merge(bench, keyed(k2="two", k3="new"), on=["a", "b"], when_not_matched_insert_all=True)
    claim(merged.num_inserted_rows == 1, f"`num_inserted_rows` is {merged.num_inserted_rows}")
    claim(bench.rows("t") == [1, 2, 3, 3], "other rows in the table")


@behaviour("data/merge-declared", "MergeInsertIntoTable: For tables that have been declared but not yet created on "
           "storage, this operation will create the table with the provided data.", DATA)  # fmt: skip
def _merge_declared(bench: Bench) -> None:
    bench.one.ask("declare_table", id=bench.at("t"))
    merged = merge(bench, NAMED, when_matched_update_all=True)
    claim(bench.rows("t") == [1, 2, 3], "other rows in the table")
    claim(merged.num_inserted_rows == 3, f"`num_inserted_rows` is {merged.num_inserted_rows}")


@behaviour("data/merge-column-missing", "MergeInsertIntoTableRequest.on: invalid or unresolved paths should return "
           "InvalidInput or TableColumnNotFound.", DATA)  # fmt: skip
def _merge_column_missing(bench: Bench) -> None:
    bench.create("t", NAMED)
    for on in (["missing"], ["a", "missing"]):
        bench.one.refused(
            "merge_insert_into_table",
            errors.InvalidInputError,
            errors.TableColumnNotFoundError,
            id=bench.at("t"),
            data=NAMED,
            on=on,
            when_matched_update_all=True,
        )


# -- updates, deletions and restores -----------------------------------------------------------------------------


@behaviour("data/update", "UpdateTable: Each update consists of a field path and an SQL expression that will be "
           "evaluated against the current row's value.", DATA)  # fmt: skip
def _update(bench: Bench) -> None:
    bench.create("t", NAMED)
    updated = bench.one.ask("update_table", id=bench.at("t"), updates=[["b", "upper(b)"]], predicate="a >= 2")
    claim(names(bench) == {1: "one", 2: "TWO", 3: "THREE"}, "other rows in the table")
    claim(updated.updated_rows == 2, f"`updated_rows` is {updated.updated_rows}")
    claim(updated.version == 2, f"`version` is {updated.version}")


@behaviour("data/update-all", "UpdateTableRequest.predicate: Optional SQL predicate to filter rows for update.", DATA)
def _update_all(bench: Bench) -> None:
    bench.create("t", NAMED)
    updated = bench.one.ask("update_table", id=bench.at("t"), updates=[["a", "a + 10"], ["b", "'x'"]])
    claim(names(bench) == {11: "x", 12: "x", 13: "x"}, "other rows in the table")
    claim(updated.updated_rows == 3, f"`updated_rows` is {updated.updated_rows}")


@behaviour("data/update-column-missing", "UpdateTable: 12 (TableColumnNotFound).", DATA)
def _update_column_missing(bench: Bench) -> None:
    bench.create("t", NAMED)
    fields = {"id": bench.at("t"), "updates": [["missing", "1"]]}
    bench.one.refused("update_table", errors.TableColumnNotFoundError, **fields)


@behaviour("data/delete", "DeleteFromTableRequest.predicate: SQL predicate to filter rows for deletion.", DATA)
def _delete(bench: Bench) -> None:
    bench.create("t", NAMED)
    deleted = bench.one.ask("delete_from_table", id=bench.at("t"), predicate="a >= 2 AND b <> 'three'")
    claim(names(bench) == {1: "one", 3: "three"}, "other rows in the table")
    claim(deleted.version == 2, f"`version` is {deleted.version}")


@behaviour("data/delete-malformed", "All operations: 13 (InvalidInput): The request contains invalid parameters.", DATA)
def _delete_malformed(bench: Bench) -> None:
    bench.create("t", NAMED)
    bench.one.refused("delete_from_table", errors.InvalidInputError, id=bench.at("t"), predicate="a = = 1")
    claim(bench.rows("t") == [1, 2, 3], "rows are deleted all the same")


@behaviour("data/restore", "RestoreTable: Restore table `id` to a specific version.", DATA)
def _restore(bench: Bench) -> None:
    bench.create("t")
    bench.one.ask("insert_into_table", id=bench.at("t"), data=OTHERS, mode="Overwrite")
    bench.one.ask("restore_table", id=bench.at("t"), version=1)
    claim(bench.rows("t") == [1, 2, 3], "other rows in the table")


@behaviour("data/restore-missing", "RestoreTable: 11 (TableVersionNotFound).", DATA)
def _restore_missing(bench: Bench) -> None:
    bench.create("t")
    bench.one.refused("restore_table", errors.TableVersionNotFoundError, id=bench.at("t"), version=7)
    claim(bench.rows("t") == [1, 2, 3], "other rows in the table")


# -- queries -----------------------------------------------------------------------------------------------------


@behaviour("data/count", "CountTableRowsRequest.predicate: Optional SQL predicate to filter rows for counting.", DATA)
def _count(bench: Bench) -> None:
    bench.create("t", NAMED)
    for predicate, expected in ((None, 3), ("a > 1", 2), ("a > 3", 0)):
        found = bench.other.ask("count_table_rows", id=bench.at("t"), predicate=predicate).count
        claim(found == expected, f"`count` is {found}, not {expected}")


@behaviour("data/count-version", "CountTableRowsRequest.version: Version of the table to describe.", DATA)
def _count_version(bench: Bench) -> None:
    bench.create("t")
    bench.one.ask("insert_into_table", id=bench.at("t"), data=OTHERS)
    for version, expected in ((1, 3), (2, 4), (None, 4)):
        found = bench.other.ask("count_table_rows", id=bench.at("t"), version=version).count
        claim(found == expected, f"`count` is {found}, not {expected}")
    bench.other.refused("count_table_rows", errors.TableVersionNotFoundError, id=bench.at("t"), version=7)


@behaviour("data/query", "QueryTableResponse.data: Query results as Arrow IPC file binary data.", DATA)
def _query(bench: Bench) -> None:
    bench.create("t", NAMED)
    claim(query(bench).equals(NAMED), "other rows than the rows of the table")
    claim(query(bench, k=2)["a"].to_pylist() == [1, 2], "`k` does not limit the rows")
    claim(query(bench, k=1, offset=1)["a"].to_pylist() == [2], "`offset` does not skip rows")
    claim(query(bench, filter="a > 1 AND b <> 'two'")["a"].to_pylist() == [3], "`filter` selects other rows")


@behaviour("data/query-offset", "QueryTableRequest.offset: Number of results to skip.", DATA)
def _query_offset(bench: Bench) -> None:
    bench.create("t", NAMED)
    claim(query(bench, offset=2)["a"].to_pylist() == [3], "without `k`, `offset` skips nothing")


@behaviour("data/query-columns", "QueryTableRequest.columns: Optional field paths to return. Provide either "
           "column_names or column_aliases, not both.", DATA)  # fmt: skip
def _query_columns(bench: Bench) -> None:
    bench.create("t", NAMED)
    named = query(bench, columns={"column_names": ["b", "a"]})
    claim(named.column_names == ["b", "a"], f"the columns are {named.column_names}")
    aliased = query(bench, columns={"column_aliases": {"twice": "a * 2"}})
    claim(aliased.to_pydict() == {"twice": [2, 4, 6]}, "the alias is not the expression")
    both = {"column_names": ["a"], "column_aliases": {"x": "a"}}
    fields = {"id": bench.at("t"), "vector": {}, "k": 1, "columns": both}
    bench.other.refused("query_table", errors.InvalidInputError, **fields)


@behaviour("data/query-column-missing", "QueryTable: 12 (TableColumnNotFound).", DATA)
def _query_column_missing(bench: Bench) -> None:
    bench.create("t", NAMED)
    for fields in ({"columns": {"column_names": ["missing"]}}, {"filter": "missing = 1"}):
        given = {"id": bench.at("t"), "vector": {}, "k": 1, **fields}
        bench.other.refused("query_table", errors.TableColumnNotFoundError, **given)


@behaviour("data/query-version", "QueryTableRequest.version: Table version to query.", DATA)
def _query_version(bench: Bench) -> None:
    bench.create("t", NAMED)
    bench.one.ask("delete_from_table", id=bench.at("t"), predicate="a = 1")
    claim(query(bench, version=1)["a"].to_pylist() == [1, 2, 3], "the rows are not the rows of version 1")
    claim(query(bench)["a"].to_pylist() == [2, 3], "the rows are not the rows of the latest version")
    fields = {"id": bench.at("t"), "vector": {}, "k": 1, "version": 7}
    bench.other.refused("query_table", errors.TableVersionNotFoundError, **fields)


@behaviour("data/query-row-id", "QueryTableRequest.with_row_id: If true, return the row id as a column called "
           "`_rowid`.", DATA)  # fmt: skip
def _query_row_id(bench: Bench) -> None:
    bench.create("t", NAMED)
    rows = query(bench, with_row_id=True, columns={"column_names": ["a"]})
    claim(sorted(rows.column_names) == ["_rowid", "a"], f"the columns are {rows.column_names}")
    claim(len(set(rows["_rowid"].to_pylist())) == 3, "two rows have one id")


@behaviour("data/query-vector", "QueryTableRequest.vector: Query vector(s) for similarity search.", DATA)
def _query_vector(bench: Bench) -> None:
    bench.create("t", NAMED)
    near = {"vector": {"single_vector": [0.0, 1.0]}}
    rows = query(bench, k=2, **near)
    claim(rows["a"].to_pylist() == [2, 1], "not the nearest rows in order")
    claim(rows["_distance"].to_pylist() == [0.0, 1.0], "`_distance` is not the square of the distance")
    claim(query(bench, k=1, offset=1, **near)["a"].to_pylist() in ([], [1]), "`offset` skips no row")
    claim(query(bench, k=3, upper_bound=1.5, **near)["a"].to_pylist() == [2, 1], "`upper_bound` is not honoured")
    claim(query(bench, k=3, lower_bound=0.5, **near)["a"].to_pylist() == [1, 3], "`lower_bound` is not honoured")
    rows = query(bench, k=1, distance_type="dot", **near)
    claim(rows["a"].to_pylist() == [3], "`distance_type` is not honoured")


@behaviour("data/query-vectors", "QueryTableRequest.vector: Multiple query vectors for batch search.", DATA)
def _query_vectors(bench: Bench) -> None:
    bench.create("t", NAMED)
    rows = query(bench, k=1, vector={"multi_vector": [[0.0, 1.0], [3.0, 3.0]]})
    claim(sorted(rows["a"].to_pylist()) == [2, 3], "only the first query vector is searched")


@behaviour(
    "data/query-prefilter", "QueryTableRequest.prefilter: Whether to apply filtering before vector search.", DATA
)
def _query_prefilter(bench: Bench) -> None:
    bench.create("t", NAMED)
    near = {"vector": {"single_vector": [0.0, 0.0]}, "k": 1, "filter": "a > 2"}
    claim(query(bench, prefilter=True, **near)["a"].to_pylist() == [3], "it is not applied before the search")
    claim(query(bench, prefilter=False, **near).num_rows == 0, "it is not applied after the search")


PLAN = "ExplainTableQueryPlan, AnalyzeTableQueryPlan: the query execution plan, as text."


@behaviour("data/plans", PLAN, DATA)
def _plans(bench: Bench) -> None:
    bench.create("t", NAMED)
    fields = {"vector": {}, "k": 1, "filter": "a > 1"}
    explained = bench.other.ask("explain_table_query_plan", id=bench.at("t"), query=fields)
    claim(isinstance(explained, str) and "a >" in explained, "`explain_table_query_plan` returns no plan")
    analyzed = bench.other.ask("analyze_table_query_plan", id=bench.at("t"), **fields)
    claim(isinstance(analyzed, str) and "metrics" in analyzed, "`analyze_table_query_plan` returns no figures")


STATS = "GetTableStatsResponse.num_rows: The number of rows in the table."


@behaviour("data/stats", STATS, DATA)
def _stats(bench: Bench) -> None:
    bench.create("t", NAMED)
    bench.one.ask("insert_into_table", id=bench.at("t"), data=keyed(k4="four"))
    stats = bench.other.ask("get_table_stats", id=bench.at("t"))
    claim((stats.num_rows, stats.num_indices) == (4, 0), f"{stats.num_rows} rows, {stats.num_indices} indices")
    claim(stats.total_bytes > 0, f"`total_bytes` is {stats.total_bytes}")
    fragments = stats.fragment_stats
    claim((fragments.num_fragments, fragments.num_small_fragments) == (2, 2), "not two small fragments")
    claim((fragments.lengths.min, fragments.lengths.max) == (1, 3), "not the lengths of the fragments")


@behaviour("data/stats-deleted", STATS, DATA)
def _stats_deleted(bench: Bench) -> None:
    bench.create("t", NAMED)
    bench.one.ask("delete_from_table", id=bench.at("t"), predicate="a = 1")
    found = bench.other.ask("get_table_stats", id=bench.at("t")).num_rows
    claim(found == 2, f"`num_rows` is {found} after a row was deleted")
