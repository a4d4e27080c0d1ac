"""Scans into the frames of other packages, judged by plain pylance."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from rest_server import serving

import lancekeep
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace

ROWS = pa.table(
    {
        "id": range(8),
        "text": [f"row {number}" for number in range(8)],
        "vector": pa.array([[float(number), 0.0] for number in range(8)], pa.list_(pa.float32(), 2)),
    }
)


@pytest.fixture(params=["directory", "server"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[lancekeep.Catalog]:
    with lancekeep.connect(str(tmp_path / "lake")) as catalog:
        catalog.write("t", ROWS)
        if request.param == "directory":
            yield catalog
            return
        namespace: Any = CatalogNamespace(catalog)
        with serving(namespace) as front, lancekeep.connect(front.uri) as client:
            yield client


FRAMES: dict[str, Callable[[Any], list[int]]] = {
    "to_arrow": lambda scan: sorted(scan.to_arrow()["id"].to_pylist()),
    "to_batches": lambda scan: sorted(scan.to_batches().read_all()["id"].to_pylist()),
    "to_pandas": lambda scan: sorted(scan.to_pandas()["id"]),
    "to_polars": lambda scan: sorted(scan.to_polars()["id"].to_list()),
    "to_duckdb": lambda scan: sorted(row[0] for row in scan.to_duckdb().project("id").fetchall()),
    "to_torch": lambda scan: sorted(int(each) for batch in scan.select("id").to_torch(3) for each in batch),
}
PACKAGES = {"to_pandas": "pandas", "to_polars": "polars", "to_duckdb": "duckdb", "to_torch": "torch", "to_ray": "ray"}


@pytest.mark.parametrize("method", FRAMES)
def test_frame_has_the_rows_of_the_scan(catalog: lancekeep.Catalog, method: str) -> None:
    scan = catalog.scan("t").where("id > 1").where("id < 4 OR id = 6").select("id", "text")
    if find_spec(PACKAGES.get(method, "pyarrow")) is None:
        with pytest.raises(lancekeep.MissingExtra, match=f"{method} needs the package {PACKAGES[method]}"):
            getattr(scan, method)()
        return
    assert FRAMES[method](scan) == [2, 3, 6]
    assert scan.count() == 3
    assert scan.to_arrow().column_names == ["id", "text"]


@pytest.mark.parametrize("method", PACKAGES)
def test_missing_package_is_named(catalog: lancekeep.Catalog, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package = PACKAGES[method]
    for name in (package, "ray.data"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(lancekeep.MissingExtra, match=f"{method} needs the package {package}: pip install {package}"):
        getattr(catalog.scan("t"), method)()


def test_scan_keeps_its_version(catalog: lancekeep.Catalog) -> None:
    scan = catalog.scan("t")
    narrow = scan.where("id < 3")
    catalog.write("t", ROWS.slice(0, 1), "overwrite")
    assert (scan.version, scan.count(), narrow.count()) == (1, 8, 3)
    assert catalog.scan("t").count() == 1
    assert catalog.scan("t", 1).count() == 8
    times = {entry.version: entry.timestamp for entry in catalog.versions.history("t")}
    assert catalog.scan("t", timestamp=times[1]).count() == 8
    catalog.tags.create("t", "first", 1)
    assert catalog.scan("t", tag="first").count() == 8
    with pytest.raises(lancekeep.TableNotFound):
        catalog.scan("other")


def test_scan_is_immutable(catalog: lancekeep.Catalog) -> None:
    scan = catalog.scan("t")
    scan.where("id = 1").select("id").limit(1).search([1.0, 0.0])
    assert scan.to_arrow().equals(lance.dataset(catalog.open("t").uri).to_table())


def test_limit_bounds_rows_and_counts(catalog: lancekeep.Catalog) -> None:
    scan = catalog.scan("t").limit(5).limit(7)
    assert (scan.count(), scan.to_arrow().num_rows) == (5, 5)
    assert scan.where("id < 2").count() == 2
    assert (catalog.scan("t").limit(0).count(), catalog.scan("t").limit(0).to_arrow().num_rows) == (0, 0)


def test_search_finds_the_nearest_rows_that_match(catalog: lancekeep.Catalog) -> None:
    scan = catalog.scan("t").search([5.1, 0.0], k=3)
    assert scan.to_arrow()["id"].to_pylist() == [5, 6, 4]
    assert scan.where("id < 4").select("id").to_arrow()["id"].to_pylist() == [3, 2, 1]
    assert scan.limit(2).to_arrow()["id"].to_pylist() == [5, 6]
    assert (scan.count(), scan.limit(2).count(), scan.limit(0).count()) == (3, 2, 0)
    assert scan.select({"twice": "id * 2"}).to_arrow()["twice"].to_pylist() == [10, 12, 8]


@pytest.mark.parametrize(
    "act",
    [
        lambda scan: scan.where(""),
        lambda scan: scan.select(),
        lambda scan: scan.select(1),
        lambda scan: scan.limit(-1),
        lambda scan: scan.limit(True),
        lambda scan: scan.limit(10**20),
        lambda scan: scan.search([]),
        lambda scan: scan.search("near"),
        lambda scan: scan.search([1.0], k=0),
        lambda scan: scan.search([1.0], k=10**20),
        lambda scan: scan.where("id >").to_arrow(),
        lambda scan: scan.where("id = 1); DROP TABLE t").to_arrow(),
        lambda scan: scan.where("false) OR (true").where("id < 0").to_arrow(),
        lambda scan: scan.where("id = 1 -- "),
        lambda scan: scan.where("text = 'row"),
        lambda scan: scan.where(f"id{'+1' * 300} > 0"),
        lambda scan: scan.search([1.0], column="text").to_arrow(),
    ],
)
def test_malformed_scans_are_refused(catalog: lancekeep.Catalog, act: Callable[[Any], Any]) -> None:
    with pytest.raises(lancekeep.InvalidInput):
        act(catalog.scan("t"))


def test_quoted_text_may_hold_anything(catalog: lancekeep.Catalog) -> None:
    scan = catalog.scan("t").where("text <> ') -- ;'' (' AND (`id` + 1) - -1 > 3").where("`text` = 'row 2'")
    assert scan.to_arrow()["id"].to_pylist() == [2]


def test_missing_columns_are_refused(catalog: lancekeep.Catalog) -> None:
    for scan in (catalog.scan("t").select("x"), catalog.scan("t").where("x = 1")):
        with pytest.raises(lancekeep.ColumnNotFound):
            scan.to_arrow()
