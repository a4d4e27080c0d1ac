"""Columns of types that the engine cannot store are refused by their names, before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from starlette.testclient import TestClient
from writers import stream

import lancekeep
from lancekeep.domain.bounds import LONGEST_NAME
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace
from lancekeep.entrypoints.rest.app import create_app
from lancekeep.entrypoints.rest.settings import ServerSettings
from lancekeep.ports.rows import MergeRule

ARROW = {"content-type": "application/vnd.apache.arrow.stream"}
NUMBERS = pa.array([1, 2])
UNION = pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [NUMBERS, pa.array(["a", "b"])])
NOTHING = pa.array([b"", b""], pa.binary(0))
REFUSED = {
    "dense union": pa.UnionArray.from_dense(
        pa.array([0, 1], pa.int8()), pa.array([0, 0], pa.int32()), [pa.array([1]), pa.array(["a"])]
    ),
    "sparse union": UNION,
    "interval": pa.array([(1, 2, 3), None], pa.month_day_nano_interval()),
    "run-end encoded": pa.RunEndEncodedArray.from_arrays(pa.array([2], pa.int32()), pa.array(["a"])),
    "list view": pa.array([[1], [2]], pa.list_view(pa.int64())),
    "large list view": pa.array([[1], [2]], pa.large_list_view(pa.int64())),
    "decimal32": pa.array([Decimal(1), None], pa.decimal32(5, 2)),
    "decimal64": pa.array([Decimal(1), None], pa.decimal64(15, 2)),
    "map with sorted keys": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64(), keys_sorted=True)),
    "binary of no bytes": NOTHING,
    "list of no values": pa.array([[], []], pa.list_(pa.int8(), 0)),
    "fixed-size list of texts": pa.array([["a"], None], pa.list_(pa.string(), 1)),
    "fixed-size list of lists": pa.array([[[1]], None], pa.list_(pa.list_(pa.int8()), 1)),
    "struct of no fields": pa.StructArray.from_buffers(pa.struct([]), 2, [None]),
    "struct with a long name": pa.StructArray.from_arrays([NUMBERS], ["é" * (LONGEST_NAME // 2 + 1)]),
    "struct of fields with one name": pa.StructArray.from_arrays([NUMBERS, NUMBERS], ["a", "a"]),
    "union in a struct": pa.StructArray.from_arrays([UNION], ["x"]),
    "union in lists": pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), UNION),
    "binary of no bytes in a dictionary": pa.DictionaryArray.from_arrays(NUMBERS.take(pa.array([0, 0])), NOTHING),
    "dictionary of nulls": pa.DictionaryArray.from_arrays(pa.array([0, None], pa.int32()), pa.nulls(1)),
    "dictionary of string views": pa.DictionaryArray.from_arrays(
        pa.array([0, None], pa.int32()), pa.array(["a"], pa.string_view())
    ),
    "binary of no bytes in an extension": pa.ExtensionArray.from_storage(pa.opaque(NOTHING.type, "a", "b"), NOTHING),
}
STORED = {
    "decimal256": pa.array([Decimal(1), None], pa.decimal256(50, 2)),
    "month of texts": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
    "fixed-size list of fixed-size lists": pa.array([[[1.0]], None], pa.list_(pa.list_(pa.float32(), 1), 1)),
    "null": pa.nulls(2),
    "uuid": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"a" * 16, None], pa.binary(16))),
    "string view": pa.array(["a", None], pa.string_view()),
    "dictionary": pa.array(["a", "b"]).dictionary_encode(),
}
DOORS: dict[str, Callable[[lancekeep.Catalog, str, Any], object]] = {
    "append": lambda catalog, name, rows: catalog.write(name, rows, "append"),
    "overwrite": lambda catalog, name, rows: catalog.write(name, rows, "overwrite"),
    "insert": lambda catalog, name, rows: catalog.data.insert(name, rows),
    "merge": lambda catalog, name, rows: catalog.data.merge(
        name, rows, MergeRule(on=("id",), update=True, insert=True)
    ),
}


def table(column: pa.Array) -> pa.Table:
    return pa.table({"id": NUMBERS, "wrong": column})


@pytest.fixture
def catalog(tmp_path: Path) -> lancekeep.Catalog:
    catalog = lancekeep.connect(str(tmp_path))
    catalog.write("existing", pa.table({"id": NUMBERS}))
    catalog.declare_table("declared")
    return catalog


def require_unchanged(catalog: lancekeep.Catalog) -> None:
    assert catalog.list_tables(include_declared=False) == ["existing"]
    assert catalog.open("existing").version == 1


@pytest.mark.parametrize("name", REFUSED)
def test_a_type_that_the_engine_cannot_store_is_refused_by_the_library(catalog: lancekeep.Catalog, name: str) -> None:
    rows = table(REFUSED[name])
    for given in (lambda: rows, rows.to_reader):
        for door in DOORS.values():
            for place in ("missing", "declared", "existing"):
                with pytest.raises(lancekeep.InvalidInput, match=r"'wrong' is .*: Lance "):
                    door(catalog, place, given())
        with pytest.raises(lancekeep.InvalidInput, match=r"'wrong' is .*: Lance "):
            catalog.write("missing", given(), "create")
    require_unchanged(catalog)


@pytest.mark.parametrize("name", REFUSED)
def test_a_type_that_the_engine_cannot_store_is_refused_by_the_server(catalog: lancekeep.Catalog, name: str) -> None:
    client = TestClient(create_app(CatalogNamespace(catalog), ServerSettings(log_level="critical")))
    body = stream(table(REFUSED[name]))
    for place in ("declared", "existing"):
        for operation in ("create?mode=overwrite", "insert", "insert?mode=overwrite", MERGE):
            answer = client.post(f"/v1/table/{place}/{operation}", content=body, headers=ARROW)
            assert answer.status_code == 400, (place, operation, answer.text)
            assert "'wrong' is " in answer.json()["error"]
    assert client.post("/v1/table/missing/create", content=body, headers=ARROW).status_code == 400
    require_unchanged(catalog)


def test_a_column_with_a_long_name_is_refused(catalog: lancekeep.Catalog) -> None:
    rows = pa.table({"é" * (LONGEST_NAME // 2 + 1): NUMBERS})
    for door in DOORS.values():
        for place in ("missing", "declared", "existing"):
            with pytest.raises(lancekeep.InvalidInput, match="has 4,098 bytes; at most 4,096 are allowed"):
                door(catalog, place, rows)
    require_unchanged(catalog)


MERGE = "merge_insert?on=id&when_matched_update_all=true&when_not_matched_insert_all=true"


@pytest.mark.parametrize("name", STORED)
def test_other_types_are_stored(catalog: lancekeep.Catalog, name: str) -> None:
    rows = table(STORED[name])
    catalog.data.insert("declared", rows)
    assert catalog.open("declared").to_table()["wrong"].to_pylist() == rows["wrong"].to_pylist()
