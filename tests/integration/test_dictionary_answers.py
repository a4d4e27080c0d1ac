"""Queries of columns with dictionaries: each data file has a dictionary of its own, and an answer has one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import lance
import lance_namespace as api
import pyarrow as pa
import pytest
from rest_server import running

import lancekeep
from lancekeep.domain.conditions import condition_of
from lancekeep.domain.restrictions import Restriction
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace
from lancekeep.entrypoints.namespace.restricted import RestrictedOperations
from lancekeep.entrypoints.rest.app import create_app
from lancekeep.entrypoints.rest.settings import ServerSettings

WORD = pa.dictionary(pa.int8(), pa.string())


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[lancekeep.Catalog]:
    with lancekeep.connect(str(tmp_path / "lake"), commit_store="conditional-put://") as catalog:
        catalog.initialize()
        yield catalog


def words(first: int, *values: str | None) -> pa.Table:
    count = len(values)
    word = pa.array(values, pa.string()).dictionary_encode().cast(WORD)
    offsets = pa.array(range(count + 1), pa.int32())
    columns = {
        "id": pa.array(range(first, first + count)),
        "word": word,
        "box": pa.StructArray.from_arrays([word], ["word"]),
        "list": pa.ListArray.from_arrays(offsets, word),
        "large": pa.LargeListArray.from_arrays(offsets.cast(pa.int64()), word),
    }
    return pa.table(columns)


def query(table: str, **fields: Any) -> dict[str, Any]:
    return {"id": [table], "k": 0, "vector": {}, **fields}


@pytest.mark.parametrize("condition", [None, "id >= 0"])
def test_an_answer_has_the_values_of_all_files(catalog: lancekeep.Catalog, condition: str | None) -> None:
    """By the namespace, and by a server, which streams it."""
    parts = [words(0, "a", "b", None), words(3, "c", "b"), words(5, "b", "c", "a"), words(8, None)]
    for part in parts:
        catalog.write("t", part, "append" if catalog.table_exists("t") else "create")
    wanted = pa.concat_tables(parts).to_pylist()
    namespace = CatalogNamespace(catalog)
    request = query("t", filter=condition)
    with running(create_app(namespace, ServerSettings(log_level="error"))) as uri:
        served = httpx.post(f"{uri}/v1/table/t/query", json=request).raise_for_status().content
    for data in (namespace.query_table(api.QueryTableRequest(**request)).data, served):
        found = pa.ipc.open_file(data).read_all()
        found.validate(full=True)
        assert found.sort_by("id").to_pylist() == wanted
        assert found.schema.field("word").type == WORD


def test_an_answer_has_the_values_of_maps_in_all_files(tmp_path: Path, catalog: lancekeep.Catalog) -> None:
    """The engine stores maps in files of format 2.2 alone."""
    kind = pa.map_(pa.string(), WORD)
    wanted: list[Any] = []
    for values in (["a", "b"], ["c", None, "a"]):
        items = pa.array(values, pa.string()).dictionary_encode().cast(WORD)
        offsets = pa.array([0, 1, 1, len(values)], pa.int32())
        mask = pa.array([False, True, False])
        part = pa.MapArray.from_arrays(offsets, pa.array(map(str, range(len(values)))), items, type=kind, mask=mask)
        lance.write_dataset(
            pa.table({"map": part}),
            tmp_path / "lake" / "t.lance",
            mode="append" if wanted else "create",
            data_storage_version="2.2",
        )
        wanted += part.to_pylist()
    for fields in ({}, {"k": 3, "offset": 2}):
        data = CatalogNamespace(catalog).query_table(api.QueryTableRequest(**query("t", **fields))).data
        found = pa.ipc.open_file(data).read_all()
        found.validate(full=True)
        assert found["map"].to_pylist() == (wanted[2:5] if fields else wanted)
        assert found.schema.field("map").type == kind


def test_more_values_than_a_dictionary_can_have_are_refused_by_name(catalog: lancekeep.Catalog) -> None:
    catalog.write("t", words(0, *(f"a{at}" for at in range(100))))
    catalog.write("t", words(100, *(f"b{at}" for at in range(100))), "append")
    namespace = CatalogNamespace(catalog)
    request = query("t", filter="id > 10 AND id < 105")
    found = pa.ipc.open_file(namespace.query_table(api.QueryTableRequest(**request)).data).read_all()
    assert found["word"].to_pylist() == [f"a{at}" for at in range(11, 100)] + [f"b{at}" for at in range(5)]
    with pytest.raises(api.errors.UnsupportedOperationError, match="'word' has more values in these rows"):
        namespace.query_table(api.QueryTableRequest(**query("t")))


def test_nulls_of_dictionaries_are_answered_within_a_restriction(tmp_path: Path, catalog: lancekeep.Catalog) -> None:
    """In files of format 2.0, a null is a value of the dictionary."""
    place = tmp_path / "lake" / "t.lance"
    for first, values in ((0, ("x", None)), (2, ("y", None, "z"))):
        part = words(first, *values).select(["id", "word"])
        lance.write_dataset(part, place, mode="append" if first else "create", data_storage_version="2.0")
    restriction = Restriction(None, frozenset([condition_of("id < 4 AND (word IS NULL OR word <> 'z')")]))
    request = api.QueryTableRequest(**query("t"))
    found = RestrictedOperations(CatalogNamespace(catalog)).perform("query_table", request, restriction).read_all()
    found.validate(full=True)
    assert found["word"].to_pylist() == ["x", None, "y", None]
    assert found["word"].chunk(0).dictionary.to_pylist() == ["x", "y"]
