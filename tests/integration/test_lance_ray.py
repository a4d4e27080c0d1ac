"""lance-ray through ``lancekeep.DirectoryNamespace``: its commits bypass the commit store, and readers see them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from deployments import ALL, Deployment, deployment

import lancekeep
from lancekeep.application.catalog import services_of

SCHEMA = pa.schema([("id", pa.int64()), ("vector", pa.list_(pa.float32(), 2))])


@pytest.fixture(scope="module")
def ray_session() -> Iterator[Any]:
    """One small Ray for all tests; its workers have no dashboard and report nothing. Idle, it takes CPU time, too."""
    import ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            object_store_memory=80 * 2**20,
        )
        ray.data.DataContext.get_current().enable_progress_bars = False
        yield ray
        ray.shutdown()


@pytest.fixture(params=ALL)
def place(request: pytest.FixtureRequest, tmp_path: Path, redis_url: str, moto_endpoint: str) -> Deployment:
    return deployment(request.param, tmp_path, redis_url, moto_endpoint)


@pytest.fixture
def local(tmp_path: Path) -> Deployment:
    return deployment("sqlite", tmp_path, "", "")


def data(ray: Any, *ids: int) -> Any:
    return ray.data.from_arrow(pa.table({"id": ids, "vector": [[1.0, float(number)] for number in ids]}, schema=SCHEMA))


def arguments(place: Deployment) -> dict[str, Any]:
    return {
        "namespace_impl": "lancekeep.DirectoryNamespace",
        "namespace_properties": place.properties,
        "table_id": ["n", "t"],
    }


def catalog_of(place: Deployment) -> lancekeep.Catalog:
    return lancekeep.connect(place.root, commit_store=place.commit_store, storage_options=place.storage_options)


def ids(place: Deployment) -> list[int]:
    """The ids as the catalog, a native reader through the namespace, and plain pylance read them; they agree."""
    catalog, namespace = catalog_of(place), lancekeep.DirectoryNamespace(**place.properties)
    options = place.storage_options or None
    datasets = (
        catalog.open("n.t"),
        lance.dataset(namespace_client=namespace, table_id=["n", "t"], storage_options=options),
        lance.dataset(services_of(catalog).uri(catalog.find_table("n.t")), storage_options=options),
    )
    found = [sorted(dataset.to_table(columns=["id"])["id"].to_pylist()) for dataset in datasets]
    assert found[0] == found[1] == found[2]
    versions = [entry.version for entry in catalog.versions.history("n.t")]
    assert versions == list(range(len(versions), 0, -1))
    assert datasets[0].version == versions[0]
    return found[0]


def test_writes_appends_and_overwrites_are_seen(place: Deployment, ray_session: Any) -> None:
    import lance_ray

    catalog_of(place).create_namespace("n")
    lance_ray.write_lance(data(ray_session, 1, 2), mode="create", **arguments(place))
    assert ids(place) == [1, 2]
    lance_ray.write_lance(data(ray_session, 3), mode="append", **arguments(place))
    assert ids(place) == [1, 2, 3]
    catalog_of(place).write("n.t", pa.table({"id": [4], "vector": [[1.0, 4.0]]}, schema=SCHEMA), mode="append")
    lance_ray.write_lance(data(ray_session, 5), mode="append", **arguments(place))
    assert ids(place) == [1, 2, 3, 4, 5]
    assert lance_ray.read_lance(**arguments(place)).count() == 5
    lance_ray.write_lance(data(ray_session, 7), mode="overwrite", **arguments(place))
    assert ids(place) == [7]


def test_columns_indexes_and_compaction(local: Deployment, ray_session: Any) -> None:
    import lance_ray

    def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"double": [2 * number for number in batch["id"].to_pylist()]})

    catalog = catalog_of(local)
    catalog.create_namespace("n")
    lance_ray.write_lance(data(ray_session, *range(32)), mode="create", **arguments(local))
    lance_ray.write_lance(data(ray_session, *range(32, 40)), mode="append", **arguments(local))
    lance_ray.add_columns(transform=doubled, concurrency=1, **arguments(local))
    assert catalog.open("n.t").to_table(filter="id = 35")["double"].to_pylist() == [70]
    lance_ray.create_scalar_index(uri=None, column="id", index_type="BTREE", num_workers=1, **arguments(local))
    assert [index.name for index in catalog.open("n.t").describe_indices()] == ["id_idx"]
    lance_ray.compact_files(num_workers=1, **arguments(local))
    assert len(catalog.open("n.t").get_fragments()) == 1
    assert ids(local) == list(range(40))
    assert catalog.upkeep.fsck(deep=True).findings == ()


def test_scan_reads_one_version_into_ray(local: Deployment, ray_session: Any) -> None:
    rows = pa.table({"id": range(4), "vector": [[1.0, 1.0]] * 4}, schema=SCHEMA)
    with catalog_of(local) as catalog:
        catalog.write("t", rows)
        scan = catalog.scan("t").where("id > 1").select("id")
        catalog.write("t", rows, "append")
        for read in (scan, scan.limit(4), scan.select({"id": "id + 0"})):
            assert sorted(row["id"] for row in read.to_ray().take_all()) == [2, 3]
        catalog.open("t").create_branch("side", 1)
        catalog.open("t", branch="side").delete("id = 2")
        side = catalog.scan("t", branch="side").where("id > 1")
        assert [row["id"] for row in side.to_ray().take_all()] == [3]
