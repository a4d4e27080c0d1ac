"""A whole bucket as the root of a catalog: ``s3://bucket``, where keys have no prefix."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import lance
import lance.namespace
import pyarrow as pa
import pytest
from deployments import bucket, s3_options
from lance_namespace import ListTablesRequest

import lancekeep
from lancekeep.adapters.object_stores import open_object_store
from lancekeep.application.catalog import services_of

ROWS = pa.table({"a": pa.array([1, 2, 3], pa.int64())})


@pytest.mark.parametrize(("mode", "store"), [("v1", "sqlite"), ("compatible", "conditional-put"), ("v2", "sqlite")])
def test_bucket_root_supports_every_operation(moto_endpoint: str, tmp_path: Path, mode: str, store: str) -> None:
    root, options = f"s3://{bucket(moto_endpoint)}", s3_options(moto_endpoint)
    url = {"sqlite": f"sqlite://{tmp_path}/commits.db", "conditional-put": "conditional-put://"}[store]

    def open_catalog() -> lancekeep.Catalog:
        return lancekeep.connect(root, mode=mode, commit_store=url, storage_options=options)

    catalog = open_catalog()
    catalog.write("t", ROWS)
    open_catalog().write("t", ROWS, mode="append")
    catalog.declare_table("d")
    assert open_catalog().list_tables() == ["d", "t"]
    if mode != "v2":
        native = lance.namespace.DirectoryNamespace(root=root, **{f"storage.{key}": options[key] for key in options})
        assert native.list_tables(ListTablesRequest(id=[])).tables == ["d", "t"]
    if mode != "v1":
        catalog.create_namespace("n")
        catalog.write("n.t", ROWS)
        catalog.rename_table("t", "n.u")
        catalog.rename_table("n.u", "t")

    location = catalog.deregister_table("t").location
    assert open_catalog().list_tables() == ["d"]
    for outside in (root, ".", "", "../t", "s3://other/t.lance", "__manifest", "_versions"):
        with pytest.raises((lancekeep.InvalidInput, lancekeep.TableNotFound, lancekeep.Unsupported)):
            catalog.register_table("t", outside)
    table = open_catalog().register_table("t", f"{root}/{location}")
    assert (table.location, services_of(catalog).uri(table)) == (location, f"{root}/{location}")
    assert lance.dataset(services_of(catalog).uri(table), storage_options=options).count_rows() == 6
    assert catalog.open("t", version=1).to_table() == ROWS

    assert catalog.upkeep.fsck(deep=True, repair=True, grace=timedelta(0)).findings == ()
    catalog.upkeep.cleanup(timedelta(0))
    assert open_catalog().open("t").count_rows() == 6
    for name in catalog.list_tables():
        open_catalog().drop_table(name)
    if mode != "v1":
        assert catalog.open("n.t").to_table() == ROWS
        catalog.drop_namespace("n", cascade=True)
    objects, _ = open_object_store(root, options)
    assert not [info.key for info in objects.list("") if not info.key.startswith(("__manifest/", ".lancekeep"))]
