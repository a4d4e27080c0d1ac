"""Behaviours of indexes."""

from __future__ import annotations

from typing import Any

import lance
import pyarrow as pa
from lance_namespace import errors

from lancekeep.testing.behaviours.behaviour import Bench, claim
from lancekeep.testing.behaviours.registry import INDEXES, OPERATION_404, Behaviours

BEHAVIOURS = Behaviours()
behaviour = BEHAVIOURS.add

COUNT = 300
WIDE = pa.table(
    {
        "a": pa.array(range(COUNT), pa.int64()),
        "s": [f"word{number % 7} text" for number in range(COUNT)],
        "l": [[f"l{number % 3}"] for number in range(COUNT)],
        "v": pa.array(
            [[float(number % 17), float(number % 5)] * 4 for number in range(COUNT)], pa.list_(pa.float32(), 8)
        ),
    }
)

VECTOR: dict[str, dict[str, Any]] = {
    "IVF_FLAT": {},
    "IVF_PQ": {"num_sub_vectors": 2, "num_bits": 4},
    "IVF_HNSW_SQ": {"m": 8, "ef_construction": 40},
    "IVF_HNSW_PQ": {"num_sub_vectors": 2},
}
SCALAR: dict[str, tuple[str, dict[str, Any]]] = {
    "BTREE": ("a", {}),
    "BITMAP": ("s", {}),
    "LABEL_LIST": ("l", {}),
    "FTS": ("s", {"with_position": True, "base_tokenizer": "whitespace", "lower_case": False, "stem": False}),
}

for _kind, _parameters in VECTOR.items():

    @behaviour(f"indexes/{_kind.lower().replace('_', '-')}", "CreateTableIndex: Supports vector indexes (IVF_FLAT, "
               "IVF_HNSW_SQ, IVF_PQ, etc.).", INDEXES, below_too=False)  # fmt: skip
    def _vector_index(bench: Bench, kind: str = _kind, parameters: dict[str, Any] = _parameters) -> None:
        location = bench.create("t", WIDE).location
        given = {"num_partitions": 2, "distance_type": "cosine", "name": "near", **parameters}
        bench.one.ask("create_table_index", id=bench.at("t"), column="v", index_type=kind, **given)
        stats = bench.other.ask("describe_table_index_stats", id=bench.at("t"), index_name="near")
        claim(stats.index_type == kind, f"its type is {stats.index_type}")
        claim((stats.distance_type or "").lower() == "cosine", f"its distance is {stats.distance_type}")
        claim((stats.num_indexed_rows, stats.num_unindexed_rows) == (COUNT, 0), "not all rows are indexed")
        found = lance.dataset(location).to_table(nearest={"column": "v", "q": [3.0, 3.0] * 4, "k": 5})
        claim(len(found) == 5, "Lance does not find the nearest rows")


for _kind, (_column, _parameters) in SCALAR.items():

    @behaviour(f"indexes/{_kind.lower().replace('_', '-')}", "CreateTableScalarIndex: Supports scalar indexes (BTREE, "
               "BITMAP, LABEL_LIST, FTS, etc.).", INDEXES, below_too=False)  # fmt: skip
    def _scalar_index(
        bench: Bench, kind: str = _kind, column: str = _column, parameters: dict[str, Any] = _parameters
    ) -> None:
        location = bench.create("t", WIDE).location
        bench.one.ask(
            "create_table_scalar_index", id=bench.at("t"), column=column, index_type=kind, name="i", **parameters
        )
        [index] = bench.other.ask("list_table_indices", id=bench.at("t")).indexes
        claim((index.index_name, index.columns) == ("i", [column]), "`list_table_indices` shows another index")
        claim(index.num_indexed_rows == COUNT and index.num_unindexed_rows == 0, "not all rows are indexed")
        claim([each.name for each in lance.dataset(location).describe_indices()] == ["i"], "Lance does not find it")


@behaviour("indexes/either-operation", "CreateTableScalarIndex: This is an alias for CreateTableIndex specifically for "
           "scalar indexes.", INDEXES)  # fmt: skip
def _either_operation(bench: Bench) -> None:
    bench.create("t")
    bench.one.ask("create_table_index", id=bench.at("t"), column="a", index_type="BTREE")
    [index] = bench.other.ask("list_table_indices", id=bench.at("t")).indexes
    claim(index.columns == ["a"] and index.index_name, "the index has no column or no name")


@behaviour("indexes/create-taken", "CreateTableIndex: 7 (TableIndexAlreadyExists).", INDEXES)
def _index_taken(bench: Bench) -> None:
    bench.create("t")
    fields = {"id": bench.at("t"), "column": "a", "name": "i"}
    bench.one.ask("create_table_scalar_index", index_type="BTREE", **fields)
    bench.other.refused("create_table_scalar_index", errors.TableIndexAlreadyExistsError, index_type="BITMAP", **fields)


@behaviour("indexes/create-missing-column", "CreateTableIndex: 12 (TableColumnNotFound).", INDEXES)
def _index_of_missing_column(bench: Bench) -> None:
    bench.create("t")
    absent = errors.TableColumnNotFoundError
    bench.one.refused("create_table_scalar_index", absent, id=bench.at("t"), column="b", index_type="BTREE")
    bench.one.refused("create_table_index", absent, id=bench.at("t"), column="b", index_type="IVF_FLAT")


@behaviour("indexes/create-invalid", "CreateTableIndex: 13 (InvalidInput).", INDEXES)
def _invalid_index(bench: Bench) -> None:
    bench.create("t", WIDE)
    for column, fields in (
        ("a", {"index_type": "QUICK"}),
        ("a", {"index_type": "IVF_FLAT"}),
        ("v", {"index_type": "IVF_FLAT", "distance_type": "far"}),
        ("v", {"index_type": "BTREE"}),
    ):
        bench.one.refused("create_table_index", errors.InvalidInputError, id=bench.at("t"), column=column, **fields)
    claim(bench.one.ask("list_table_indices", id=bench.at("t")).indexes == [], "one is created all the same")


@behaviour("indexes/pages", "ListTableIndices: List all indexes created on table `id`.", INDEXES, below_too=False)
def _list_indexes(bench: Bench) -> None:
    bench.create("t", WIDE)
    for name in ("b", "a", "c"):
        bench.one.ask("create_table_scalar_index", id=bench.at("t"), column="a", index_type="BTREE", name=name)
    page = bench.other.ask("list_table_indices", id=bench.at("t"), limit=2)
    claim(len(page.indexes) == 2 and page.page_token, "not the limit, or no page token")
    rest = bench.other.ask("list_table_indices", id=bench.at("t"), limit=2, page_token=page.page_token)
    names = [index.index_name for index in (*page.indexes, *rest.indexes)]
    claim(sorted(names) == ["a", "b", "c"] and not rest.page_token, "the pages are not the whole")
    claim(bench.other.ask("list_table_indices", id=bench.at("t"), version=1).indexes == [], "version 1 has indexes")


@behaviour("indexes/drop", "DropTableIndex: Drop the specified index from table `id`.", INDEXES)
def _drop_index(bench: Bench) -> None:
    location = bench.create("t").location
    bench.one.ask("create_table_scalar_index", id=bench.at("t"), column="a", index_type="BTREE", name="i")
    bench.other.ask("drop_table_index", id=bench.at("t"), index_name="i")
    claim(bench.one.ask("list_table_indices", id=bench.at("t")).indexes == [], "the index is still listed")
    claim(lance.dataset(location).describe_indices() == [], "Lance still finds the index")
    claim(bench.rows("t") == [1, 2, 3], "the table has other rows")


@behaviour("indexes/missing", "DescribeTableIndexStats, DropTableIndex: 6 (TableIndexNotFound).", INDEXES)
def _missing_index(bench: Bench) -> None:
    bench.create("t")
    for operation in ("describe_table_index_stats", "drop_table_index"):
        bench.one.refused(operation, errors.TableIndexNotFoundError, id=bench.at("t"), index_name="missing")


for _operation, _fields in {
    "create_table_index": {"column": "a", "index_type": "BTREE"},
    "create_table_scalar_index": {"column": "a", "index_type": "BTREE"},
    "list_table_indices": {},
    "describe_table_index_stats": {"index_name": "i"},
    "drop_table_index": {"index_name": "i"},
}.items():

    @behaviour(f"indexes/no-table-{_operation.replace('_', '-')}", OPERATION_404, INDEXES)
    def _missing_table(bench: Bench, operation: str = _operation, fields: dict[str, Any] = _fields) -> None:
        bench.create("t")
        bench.one.refused(operation, errors.TableNotFoundError, id=bench.at("missing"), **fields)
