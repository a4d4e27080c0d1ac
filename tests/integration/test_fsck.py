"""fsck on real storage distinguishes deregistered tables from leftovers of failed operations."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from deployments import bucket, s3_options

import lancekeep
from lancekeep.adapters.object_stores import open_object_store
from lancekeep.application.upkeep.fsck import Kind
from lancekeep.application.upkeep.relocation import Relocation
from lancekeep.domain.table import RESERVED_MARKER


@pytest.mark.parametrize("storage", ["local", "s3", "fsspec"])
def test_leftover_is_removed_and_deregistered_table_is_kept(
    request: pytest.FixtureRequest, tmp_path: Path, storage: str
) -> None:
    root, options = str(tmp_path / "lake"), dict[str, str]()
    more: dict[str, Any] = {}
    if storage == "s3":
        endpoint = request.getfixturevalue("moto_endpoint")
        root, options = f"s3://{bucket(endpoint)}/lake", s3_options(endpoint)
    if storage == "fsspec":
        root, more = f"local://{root}", {"commit_store": f"sqlite://{tmp_path}/commits.db"}
    catalog = lancekeep.connect(root, mode="v2", storage_options=options, **more)
    catalog.create_namespace("a")
    location = catalog.declare_table("a.t").location
    catalog.deregister_table("a.t")
    objects, key = open_object_store(root, options)
    objects.put(f"{key}/{location}/_versions/18446744073709551614.manifest", b"a version")
    objects.put(f"{key}/0a1b2c3d_a$t/{RESERVED_MARKER}", b"reserved")
    kinds = {(Kind.UNREGISTERED, location), (Kind.UNREFERENCED, "0a1b2c3d_a$t")}
    young = catalog.upkeep.fsck(repair=True)
    assert {(finding.kind, finding.object) for finding in young.findings} == kinds
    assert not any(finding.repaired for finding in young.findings)
    old = catalog.upkeep.fsck(repair=True, grace=0)
    assert {finding.object for finding in old.findings if finding.repaired} == {"0a1b2c3d_a$t"}
    catalog.register_table("a.t", location)
    assert catalog.upkeep.fsck(repair=True, grace=0, remove_tables=True).findings == ()
    catalog.deregister_table("a.t")
    assert all(finding.repaired for finding in catalog.upkeep.fsck(repair=True, grace=0, remove_tables=True).findings)
    assert catalog.upkeep.fsck().findings == ()
    assert set(objects.directories(f"{key}/")) == {"__manifest"}


def test_copy_of_an_interrupted_rename_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = lancekeep.connect(str(tmp_path / "lake"))
    catalog.write("t", pa.table({"a": [1, 2]}))

    def stop(self: Relocation) -> None:
        copy(self)
        raise KeyboardInterrupt

    copy = Relocation.copy
    monkeypatch.setattr(Relocation, "copy", stop)
    with pytest.raises(KeyboardInterrupt):
        catalog.rename_table("t", "u")
    monkeypatch.undo()
    [copied] = (tmp_path / "lake").glob("*_u")
    assert list(copied.glob("_versions/*.manifest"))
    [finding] = catalog.upkeep.fsck(repair=True, grace=0).findings
    assert (finding.object, finding.repaired) == (copied.name, True)
    assert not copied.exists()
    assert catalog.open("t").count_rows() == 2
    assert catalog.rename_table("t", "u").location != copied.name
    assert not list((tmp_path / "lake").rglob(".lancekeep-moving"))


@pytest.mark.parametrize("mode", ["compatible", "v2", "v1"])
def test_repair_keeps_folders_of_users_in_every_mode(tmp_path: Path, mode: str) -> None:
    root = tmp_path / "lake"
    catalog = lancekeep.connect(str(root), mode=mode)
    catalog.write("t", pa.table({"a": [1, 2]}))
    location = catalog.find_table("t").location
    foreign = ["20260101_exports/2026/invoices.csv", "photos.lance/p.jpg", f"{location}/notes.txt", "data/1.csv"]
    for name in foreign:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    shutil.copytree(root / location, root / "20260102_backup/copy.lance")
    kept = sorted((root / "20260102_backup").rglob("*"))
    for deep in (False, True):
        lancekeep.connect(str(root), mode=mode).upkeep.fsck(repair=True, grace=0, remove_tables=True, deep=deep)
    if mode != "v2":
        catalog.drop_table("photos")
    if mode == "compatible":
        catalog.rename_table("t", "u")
        assert catalog.open("u").count_rows() == 2
        catalog.write("t", pa.table({"a": [7]}))
        assert catalog.open("t").to_table()["a"].to_pylist() == [7]
    for table in catalog.list_tables():
        catalog.drop_table(table)
    assert catalog.list_tables() == []
    catalog.upkeep.fsck(repair=True, grace=0, remove_tables=True)
    assert [(root / name).read_text() for name in foreign] == foreign
    assert sorted((root / "20260102_backup").rglob("*")) == kept
    assert lance.dataset(str(root / "20260102_backup/copy.lance")).count_rows() == 2
    assert not list((root / location).glob("*/*"))
