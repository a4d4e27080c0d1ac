"""lancedb through ``lancekeep.DirectoryNamespace``, over every commit store; plain pylance reads the rows."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import lance
import lancedb
import pyarrow as pa
import pytest
from deployments import ALL, Deployment, deployment
from lance_namespace.errors import NamespaceNotEmptyError, TableNotFoundError
from lancedb.index import FTS, BTree, IvfFlat

import lancekeep
from lancekeep.application.catalog import services_of

NAMESPACE = "lancekeep.DirectoryNamespace"
SIZE = 64


def data(*ids: int) -> pa.Table:
    """One row per id. A vector points into the direction of its id; every seventh text has the word "seventh"."""
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "text": [f"number {number}" + (" seventh" if number % 7 == 0 else "") for number in ids],
            "vector": pa.array([[1.0, number] for number in ids], pa.list_(pa.float32(), 2)),
        }
    )


@pytest.fixture(params=ALL)
def place(request: pytest.FixtureRequest, tmp_path: Path, redis_url: str, moto_endpoint: str) -> Deployment:
    return deployment(request.param, tmp_path, redis_url, moto_endpoint)


@pytest.fixture
def local(tmp_path: Path) -> Deployment:
    return deployment("sqlite", tmp_path, "", "")


def connect(place: Deployment) -> Any:
    return lancedb.connect_namespace(NAMESPACE, place.properties)


def catalog_of(place: Deployment) -> lancekeep.Catalog:
    return lancekeep.connect(place.root, commit_store=place.commit_store, storage_options=place.storage_options)


def ids(place: Deployment, name: str) -> list[int]:
    """The ids of a table as plain pylance reads them."""
    catalog = catalog_of(place)
    uri = services_of(catalog).uri(catalog.find_table(name))
    dataset = lance.dataset(uri, storage_options=place.storage_options or None)
    found: list[int] = dataset.to_table(columns=["id"])["id"].to_pylist()
    return sorted(found)


def test_every_operation_of_a_table_succeeds(place: Deployment) -> None:
    db = connect(place)
    db.create_namespace(["ml"])
    table = db.create_table("t", data(*range(SIZE)), namespace_path=["ml"])
    table.add(data(100, 101))
    table.update(where="id = 100", values={"text": "changed"})
    table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(data(101, 102))
    table.delete("id = 101")
    assert ids(place, "ml.t") == [*range(SIZE), 100, 102]

    table.create_index("id", config=BTree())
    table.create_index("text", config=FTS())
    table.create_index("vector", config=IvfFlat(distance_type="cosine", num_partitions=1))
    assert {index.columns[0] for index in table.list_indices()} == {"id", "text", "vector"}
    assert table.search([1.0, 3.0]).limit(1).to_list()[0]["id"] == 3
    assert [row["id"] for row in table.search("changed", query_type="fts").to_list()] == [100]
    table.add(data(103))
    table.optimize()
    assert table.search([1.0, 103.0]).where("id > 100").limit(1).to_list()[0]["id"] == 103

    before = table.version
    table.add_columns({"twice": "id * 2"})
    table.alter_columns({"path": "twice", "rename": "double"})
    table.drop_columns(["double"])
    table.tags.create("before", before)
    table.delete("id < 50")
    assert len(ids(place, "ml.t")) == SIZE - 50 + 3
    table.restore(table.tags.get_version("before"))
    assert ids(place, "ml.t") == [*range(SIZE), 100, 102, 103]
    table.tags.delete("before")

    table.branches.create("trial")
    branch = db.open_table("t", namespace_path=["ml"], branch="trial")
    branch.add(data(200))
    assert (branch.count_rows(), len(ids(place, "ml.t"))) == (SIZE + 4, SIZE + 3)
    table.branches.delete("trial")

    db.rename_table("t", "u", ["ml"], ["ml"])
    renamed = db.open_table("u", namespace_path=["ml"])
    renamed.add(data(104))
    assert ids(place, "ml.u") == [*range(SIZE), 100, 102, 103, 104]
    db.create_table("u", data(1), namespace_path=["ml"], mode="overwrite")
    assert ids(place, "ml.u") == [1]
    db.drop_table("u", namespace_path=["ml"])
    db.drop_namespace(["ml"])
    assert (db.list_tables().tables, db.list_namespaces().namespaces) == ([], [])


def test_threads_lose_no_row(place: Deployment) -> None:
    threads, appends = 4, 3
    connect(place).create_table("t", data(0))
    barrier = Barrier(threads)

    def append(thread: int) -> None:
        table = connect(place).open_table("t")
        barrier.wait()
        for number in range(appends):
            table.add(data(thread * 100 + number + 1))

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(append, range(threads)))
    assert ids(place, "t") == [
        0,
        *(thread * 100 + number + 1 for thread in range(threads) for number in range(appends)),
    ]
    assert len(catalog_of(place).versions.history("t")) == 1 + threads * appends


def test_asynchronous_interface(local: Deployment) -> None:
    async def run() -> list[int]:
        db = lancedb.connect_namespace_async(NAMESPACE, local.properties)
        table = await db.create_table("t", data(1, 2))
        await asyncio.gather(*(table.add(data(number)) for number in (3, 4, 5)))
        await table.delete("id = 1")
        opened = await db.open_table("t")
        with pytest.raises(TableNotFoundError):
            await db.open_table("missing")
        return sorted((await opened.to_arrow())["id"].to_pylist())

    assert asyncio.run(run()) == ids(local, "t") == [2, 3, 4, 5]


def test_errors_are_those_of_lancedb(local: Deployment) -> None:
    db = connect(local)
    db.create_namespace(["n"])
    table = db.create_table("t", data(1), namespace_path=["n"])
    with pytest.raises(TableNotFoundError, match=r"n\$missing"):
        db.open_table("missing", namespace_path=["n"])
    with pytest.raises(NamespaceNotEmptyError):
        db.drop_namespace(["n"])
    with pytest.raises(RuntimeError, match="Table already exists"):
        db.create_table("t", data(1), namespace_path=["n"])
    with pytest.raises(RuntimeError, match="Namespace already exists"):
        db.create_namespace(["n"])
    assert db.create_table("t", data(2), namespace_path=["n"], exist_ok=True).count_rows() == 1
    db.drop_table("t", namespace_path=["n"])
    with pytest.raises(RuntimeError, match="Table not found"):
        db.drop_table("t", namespace_path=["n"])
    with pytest.raises(RuntimeError):
        table.add(data(2))
    assert db.list_tables(["n"]).tables == []


def test_tables_can_be_created_by_the_namespace(local: Deployment) -> None:
    pushed = lancedb.connect_namespace(
        NAMESPACE, local.properties, namespace_client_pushdown_operations=["CreateTable"]
    )
    pushed.create_table("t", data(1)).add(data(2))
    pushed.create_table("empty", schema=data().schema)
    assert (ids(local, "t"), ids(local, "empty")) == ([1, 2], [])
