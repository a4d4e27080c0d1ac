"""Old data files at a base path are read as before, and every tool of the catalog follows them there."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import attrs
import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner
from deployments import bucket, s3_options
from faults import killed_at_each_state

import lancekeep
from lancekeep.application.catalog import directory_of
from lancekeep.application.upkeep.fsck import Kind
from lancekeep.entrypoints.cli import lancekeep as lancekeep_command

KINDS = ("sqlite", "files", "conditional-put", "storage-managed", "sqlite on s3", "conditional-put on s3", "s3 to s3")


@attrs.frozen
class Lake:
    """A catalog with a base for cold files, and plain readers."""

    root: str
    base: str
    commit_store: str | None
    options: dict[str, str]

    def connect(self, mode: str = "compatible") -> lancekeep.Catalog:
        return lancekeep.connect(self.root, mode=mode, commit_store=self.commit_store, storage_options=self.options)

    def namespace(self) -> Any:
        properties = {f"storage.{name}": value for name, value in self.options.items()}
        if self.commit_store is not None:
            properties["commit_store"] = self.commit_store
        return lancekeep.DirectoryNamespace(root=self.root, **properties)

    def native(self, location: str) -> Any:
        return lance.dataset(f"{self.root}/{location}", storage_options=self.options or None)

    def rows(self, location: str) -> list[int]:
        return sorted(self.native(location).to_table()["a"].to_pylist())


@pytest.fixture(params=KINDS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    store, _, storage = request.param.partition(" on ")
    urls = {"sqlite": f"sqlite://{tmp_path}/commits.db", "files": f"file://{tmp_path}/commits"}
    url = urls.get(store, "conditional-put://" if store == "conditional-put" else None)
    if storage or store == "s3 to s3":
        endpoint = request.getfixturevalue("moto_endpoint")
        hot = bucket(endpoint)
        cold = bucket(endpoint) if store == "s3 to s3" else hot
        return Lake(f"s3://{hot}/lake", f"s3://{cold}/cold", url, s3_options(endpoint))
    return Lake(str(tmp_path / "lake"), str(tmp_path / "cold"), url, {})


@pytest.fixture
def local(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"), str(tmp_path / "cold"), f"sqlite://{tmp_path}/commits.db", {})


def rows(*values: int) -> pa.Table:
    return pa.table({"a": pa.array(values, pa.int64())})


def filled(lake: Lake, mode: str = "compatible") -> lancekeep.Catalog:
    """Return a catalog with a table of three fragments, a deletion and an index."""
    catalog = lake.connect(mode)
    catalog.write("t", rows(1, 2, 3))
    catalog.write("t", rows(4, 5), "append")
    catalog.commit_change("t", lambda dataset: (dataset.delete("a = 2"), dataset)[1])
    catalog.commit_change("t", lambda dataset: (dataset.create_scalar_index("a", "BTREE"), dataset)[1])
    catalog.write("t", rows(6), "append")
    return catalog


def bases(dataset: Any) -> list[bool]:
    """Return for each fragment whether its data files are at a base path."""
    return [all(file.base_id is not None for file in fragment.metadata.files) for fragment in dataset.get_fragments()]


@pytest.mark.parametrize(
    ("lake", "mode"),
    [
        *zip(KINDS, ("compatible", "v2", "v1", "compatible", "v2", "v1", "compatible"), strict=True),
        ("conditional-put", "compatible"),
        ("storage-managed", "v1"),
    ],
    indirect=["lake"],
)
def test_rows_of_a_tiered_table_are_read_by_pylance(lake: Lake, mode: str) -> None:
    catalog = filled(lake, mode)
    location = catalog.find_table("t").location
    before = lake.native(location)
    ids = before.to_table(with_row_id=True).sort_by("a")
    plan = catalog.upkeep.move_fragments("t", 5, lake.base, dry_run=True)
    assert (plan.files, plan.version) == (2, None)
    report = catalog.upkeep.move_fragments("t", 5, lake.base)
    assert (report.files, report.version) == (2, 7)
    after = lake.native(location)
    assert bases(after) == [True, True, False]
    assert after.to_table(with_row_id=True).sort_by("a").equals(ids)
    assert after.to_table(filter="a = 5")["a"].to_pylist() == [5]
    assert catalog.upkeep.move_fragments("t", 5, lake.base).version is None
    catalog.write("t", rows(7), "append")
    catalog.commit_change("t", lambda dataset: (dataset.delete("a = 1"), dataset)[1])
    assert lake.rows(location) == [3, 4, 5, 6, 7]
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()
    assert lancekeep.verify(catalog, deep=True).problems == ()


def test_age_chooses_the_files(local: Lake) -> None:
    catalog = filled(local)
    assert catalog.upkeep.move_fragments("t", timedelta(hours=1), local.base).files == 0
    assert catalog.upkeep.move_fragments("t", timedelta(0), local.base).files == 3
    assert catalog.upkeep.move_fragments("t", timedelta(0), local.base).files == 0
    assert bases(local.native("t.lance")) == [True, True, True]


def test_cleanup_removes_the_old_files_and_then_the_copies(lake: Lake) -> None:
    catalog = filled(lake)
    catalog.upkeep.move_fragments("t", 6, lake.base)
    copies = catalog.upkeep.move_fragments("t", timedelta(0), lake.base + "/second").files
    assert copies == 3
    report = catalog.upkeep.cleanup(0, grace=0)
    assert sum(table.files for table in report.tables if "cold" not in table.table) >= 3
    assert sum(table.files for table in report.tables if "cold" in table.table) == 3
    assert lake.rows("t.lance") == [1, 3, 4, 5, 6]
    catalog.write("t", rows(9), "overwrite")
    report = catalog.upkeep.cleanup(0, grace=0)
    assert sum(table.files for table in report.tables if "cold" in table.table) == 3
    assert lake.rows("t.lance") == [9]


def test_cleanup_keeps_copies_that_a_clone_reads(local: Lake) -> None:
    catalog = filled(local)
    catalog.upkeep.move_fragments("t", timedelta(0), local.base)
    catalog.clone("t", "c")
    catalog.write("t", rows(9), "overwrite")
    catalog.upkeep.cleanup(0, grace=0)
    assert local.rows(catalog.find_table("c").location) == [1, 3, 4, 5, 6]
    catalog.drop_table("t", force=True)
    catalog.upkeep.cleanup(0, grace=0)
    catalog.drop_table("c")
    catalog.write("other", rows(1))
    assert list(Path(local.base).glob("*/data/*")) != []
    catalog.upkeep.cleanup(0, grace=0)
    assert list(Path(local.base).glob("*/data/*")) == []


def test_materialize_brings_the_files_back(lake: Lake) -> None:
    catalog = filled(lake)
    catalog.upkeep.move_fragments("t", timedelta(0), lake.base)
    catalog.clone("t", "copy", deep=True)
    catalog.upkeep.materialize("t")
    for table in ("t", "copy"):
        location = catalog.find_table(table).location
        assert bases(lake.native(location)) == [False, False, False]
        assert lake.rows(location) == [1, 3, 4, 5, 6]


def test_missing_copy_is_reported(lake: Lake) -> None:
    catalog = filled(lake)
    catalog.upkeep.move_fragments("t", timedelta(0), lake.base)
    place = directory_of(catalog).places.outside(lake.base)
    doomed = next(info.key for info in place.objects.list(f"{place.key}/") if info.key.endswith(".lance"))
    place.objects.delete(doomed)
    findings = catalog.upkeep.fsck(deep=True, grace=0).findings
    assert [finding.kind for finding in findings] == [Kind.MISSING_FILE]
    assert doomed.rpartition("/")[2] in findings[0].meaning
    assert lancekeep.verify(catalog).problems != ()


def test_commits_beside_the_move_are_kept(lake: Lake) -> None:
    catalog = lake.connect()
    catalog.write("t", rows(0))
    numbers = range(1, 9)

    def append(number: int) -> None:
        options = {"namespace_client": lake.namespace(), "table_id": ["t"], "storage_options": lake.options or None}
        lance.write_dataset(rows(number), mode="append", **options)

    def write(some: range) -> None:
        for number in some:
            append(number)

    writers = [Thread(target=write, args=(numbers[at::2],)) for at in range(2)]
    for writer in writers:
        writer.start()
    for _ in range(4):
        lake.connect().upkeep.move_fragments("t", timedelta(0), lake.base)
    for writer in writers:
        writer.join()
    assert lake.rows("t.lance") == [0, *numbers]
    lake.connect().upkeep.move_fragments("t", timedelta(0), lake.base)
    assert all(bases(lake.native("t.lance")))
    assert lake.rows("t.lance") == [0, *numbers]


@pytest.mark.parametrize(
    "act",
    [
        lambda dataset: dataset.delete("a = 4"),
        lambda dataset: dataset.update({"a": "40"}, where="a = 4"),
        lambda dataset: dataset.optimize.compact_files(),
        lambda dataset: dataset.create_scalar_index("a", "BTREE", name="other"),
        lambda dataset: dataset.add_columns({"b": "a + 1"}),
    ],
    ids=["delete", "update", "compact", "index", "add column"],
)
def test_stale_writer_sees_equal_rows(local: Lake, act: Callable[[Any], Any]) -> None:
    expected = filled(Lake(local.root + "2", local.base, f"{local.commit_store}2", {}))
    act(expected.open("t"))
    catalog = filled(local)
    stale = catalog.open("t")
    catalog.upkeep.move_fragments("t", timedelta(0), local.base)
    try:
        act(stale)
    except OSError as error:
        assert "conflict" in str(error).lower()  # noqa: PT017 - either outcome is right, and then the rows decide
        act(catalog.open("t"))
    catalog.upkeep.cleanup(0, grace=0)
    assert catalog.open("t").to_table().sort_by("a").equals(expected.open("t").to_table().sort_by("a"))
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()


def test_large_values_and_stable_row_ids_move_too(lake: Lake) -> None:
    options = lake.options or None
    fields = pa.schema([pa.field("a", pa.int64()), lance.blob_field("b")])
    values = pa.table([pa.array([1, 2, 3]), lance.blob_array([b"x" * 100_000, b"y", b"z" * 200_000])], schema=fields)
    catalog = lake.connect()
    lance.write_dataset(
        values,
        namespace_client=lake.namespace(),
        table_id=["t"],
        enable_stable_row_ids=True,
        data_storage_version="2.2",
        storage_options=options,
    )
    catalog.commit_change("t", lambda dataset: (dataset.delete("a = 2"), dataset)[1])
    catalog.upkeep.move_fragments("t", timedelta(0), lake.base)
    catalog.upkeep.cleanup(0, grace=0)
    native = lake.native(catalog.find_table("t").location)
    assert [blob.readall() for blob in native.take_blobs("b", indices=[0, 1])] == [b"x" * 100_000, b"z" * 200_000]
    assert native.to_table(columns=["a"], with_row_id=True).to_pydict() == {"a": [1, 3], "_rowid": [0, 2]}
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()


def test_bases_that_cannot_hold_the_files_are_refused(local: Lake) -> None:
    catalog = filled(local)
    for base in (local.root, f"{local.root}/cold", "cold", f"file://{local.root}/t.lance"):
        with pytest.raises(lancekeep.InvalidInput):
            catalog.upkeep.move_fragments("t", timedelta(0), base)
    with pytest.raises(lancekeep.InvalidInput):
        catalog.upkeep.move_fragments("t", timedelta(-1), local.base)
    assert catalog.describe_table("t").version == 5


@pytest.mark.parametrize("store", ["files", "conditional-put"])
def test_killed_move_is_completed_by_the_next_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str) -> None:
    now = tmp_path / "now"
    url = f"file://{now}/commits?fsync=false" if store == "files" else "conditional-put://"
    lake = Lake(str(now / "lake"), str(now / "cold"), url, {"fsync": "false"})
    filled(lake)
    calls = 0

    def move(catalog: lancekeep.Catalog) -> object:
        return catalog.upkeep.move_fragments("t", timedelta(0), lake.base)

    for at in killed_at_each_state(monkeypatch, now, lake.connect, move):
        calls += 1
        catalog = lake.connect()
        assert lake.rows("t.lance") == [1, 3, 4, 5, 6], at
        catalog.write("t", rows(7), "append")
        move(catalog)
        assert all(bases(lake.native("t.lance"))), at
        assert lake.rows("t.lance") == [1, 3, 4, 5, 6, 7], at
        catalog.upkeep.cleanup(0, grace=0)
        assert len(list((now / "cold").glob("*/data/*"))) == 4, at
        assert catalog.upkeep.fsck(deep=True, grace=0).findings == (), at
    assert calls > 5


def test_command_shows_the_plan_before_it_moves_anything(local: Lake) -> None:
    filled(local)
    arguments = ["tier", local.root, "--commit-store", str(local.commit_store), "t", local.base]
    shown = CliRunner().invoke(lancekeep_command, [*arguments, "--before-version", "3"], obj=lancekeep)
    assert "would move 2 data files" in shown.output, shown.output
    assert not Path(local.base).exists()
    assert CliRunner().invoke(lancekeep_command, arguments, obj=lancekeep).exit_code == 2
    done = CliRunner().invoke(lancekeep_command, [*arguments, "--older-than", "0s", "--yes", "--json"], obj=lancekeep)
    assert json.loads(done.output)["files"] == 3
    assert bases(local.native("t.lance")) == [True, True, True]
