"""Clean-up removes what is old and reachable from nothing, and nothing else: on files and S3, over each kind of row."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from deployments import Deployment, bucket, s3_options

import lancekeep
from lancekeep.adapters.object_stores import open_object_store

ROWS = pa.table({"a": pa.array(range(10), pa.int64())})
NOW = timedelta(0)
DAY = timedelta(days=1)
KINDS = ("sqlite", "conditional-put", "sqlite on s3", "conditional-put on s3", "storage-managed")


@pytest.fixture(params=KINDS)
def deployment(request: pytest.FixtureRequest, tmp_path: Path) -> Deployment:
    store, _, storage = request.param.partition(" on ")
    url = {"sqlite": f"sqlite://{tmp_path}/commits.db", "conditional-put": "conditional-put://"}.get(store)
    if not storage:
        return Deployment(str(tmp_path / "lake"), url)  # type: ignore[arg-type]  # None is no commit store
    endpoint = request.getfixturevalue("moto_endpoint")
    return Deployment(f"s3://{bucket(endpoint)}/lake", str(url), s3_options(endpoint))


def connect(deployment: Deployment, **more: Any) -> lancekeep.Catalog:
    options = deployment.storage_options
    return lancekeep.connect(deployment.root, commit_store=deployment.commit_store, storage_options=options, **more)


def stored(deployment: Deployment, below: str = "") -> set[str]:
    """The files of the lake, relative to its root."""
    objects, key = open_object_store(deployment.root, deployment.storage_options)
    return {info.key.removeprefix(f"{key}/") for info in objects.list(f"{key}/{below}")}


def numbers(dataset: Any) -> list[int]:
    return sorted(dataset.to_table()["a"].to_pylist())


def versions(catalog: lancekeep.Catalog, table: str = "t") -> list[int]:
    return [entry.version for entry in catalog.history(table)]


def fill(catalog: lancekeep.Catalog) -> None:
    """A table whose versions each replace what the one before has written, with deletions and indices."""
    catalog.write("t", ROWS)
    catalog.open("t").delete("a < 2")
    catalog.open("t").create_scalar_index("a", "BTREE")
    catalog.write("t", ROWS, "append")
    catalog.open("t").optimize.compact_files()


def test_only_what_the_latest_version_needs_stays_and_the_rows_go_with_the_files(deployment: Deployment) -> None:
    catalog = connect(deployment)
    fill(catalog)
    before, expected = stored(deployment, "t.lance/"), numbers(catalog.open("t"))
    planned = catalog.cleanup(NOW, dry_run=True)
    assert stored(deployment, "t.lance/") == before
    done = catalog.cleanup(NOW)
    assert (planned.tables, planned.skipped, done.skipped) == (done.tables, (), ())
    left = stored(deployment, "t.lance/")
    [cleaned] = done.tables
    assert cleaned.versions == tuple(range(1, max(cleaned.versions) + 1))
    assert cleaned.kept == 1
    assert len(before - left) == len(cleaned.versions) + cleaned.files
    fragments = [fragment.metadata for fragment in catalog.open("t").get_fragments()]
    needed = {f"t.lance/data/{file.path}" for fragment in fragments for file in fragment.files}
    assert {file for file in left if "/data/" in file} == needed
    assert len([file for file in left if "/_deletions/" in file]) == sum(bool(one.deletion_file) for one in fragments)
    assert numbers(connect(deployment).open("t")) == expected
    root = catalog.dataset_root(catalog.find_table("t"))
    rows = catalog.commits.rows.list(root.base_uri, after=None, limit=None, descending=False)
    assert [row.version for row in rows] == [max(cleaned.versions) + 1]
    assert catalog.fsck(deep=True, grace=0).findings == ()
    again = catalog.cleanup(NOW)
    assert (again.tables, again.versions, again.files) == ((), 0, 0)
    catalog.write("t", ROWS, "append")
    assert len(numbers(catalog.open("t"))) == len(expected) + 10


def test_the_native_engine_reads_and_checks_what_is_left(deployment: Deployment) -> None:
    catalog = connect(deployment)
    fill(catalog)
    catalog.cleanup(NOW, keep=2)
    dataset = lance.dataset(catalog.uri(catalog.find_table("t")), storage_options=dict(catalog.storage_options))
    for version in dataset.versions():
        old = dataset.checkout_version(version["version"])
        old.validate()
        assert numbers(old)
    assert len(dataset.versions()) == 2
    assert dataset.to_table(filter="a = 5").num_rows == 2


def test_tags_branches_and_clones_keep_what_they_need(deployment: Deployment) -> None:
    catalog = connect(deployment)
    for at in range(6):
        catalog.write("t", pa.table({"a": [at]}), "create" if at == 0 else "overwrite")
    location = catalog.uri(catalog.find_table("t"))
    options = dict(catalog.storage_options) or None
    native = lance.dataset(location, storage_options=options)
    native.tags.create("kept", 1)
    native.checkout_version(2).create_branch("side", storage_options=options)
    clones = {3: "clone.lance", 4: "elsewhere"}
    for version, directory in clones.items():
        native.shallow_clone(f"{location.rpartition('/')[0]}/{directory}", reference=version, storage_options=options)
    catalog.register_table("second", "elsewhere")
    catalog.write("second", ROWS, "append")
    catalog.deregister_table("second")
    report = catalog.cleanup(NOW)
    assert report.skipped == ()
    assert {table.table: table.versions for table in report.tables}["t"] == (3, 4, 5)
    assert numbers(catalog.open("t")) == [5]
    assert numbers(catalog.open("t", tag="kept")) == [0]
    assert numbers(catalog.open("t", branch="side")) == [1]
    assert numbers(catalog.open("clone")) == [2]
    catalog.register_table("second", "elsewhere")
    assert numbers(catalog.open("second")) == sorted([3, *range(10)])
    assert len([file for file in stored(deployment, "t.lance/data/") if file]) == 5  # all but that of version 5
    native.tags.delete("kept")
    assert catalog.cleanup(NOW, tables=["t"]).versions == 1
    assert numbers(catalog.open("t", branch="side")) == [1]


def test_branches_are_cleaned_as_tables_are(deployment: Deployment) -> None:
    catalog = connect(deployment)
    catalog.write("t", ROWS)
    catalog.open("t").create_branch("side/way")
    for at in range(3):
        side = catalog.open("t", branch="side/way")
        lance.write_dataset(pa.table({"a": [at]}), side, mode="overwrite")
    report = catalog.cleanup(NOW)
    [cleaned] = report.tables
    assert (cleaned.branch, cleaned.versions) == ("side/way", (1, 2, 3))
    assert numbers(catalog.open("t", branch="side/way")) == [2]
    assert numbers(catalog.open("t")) == list(range(10))
