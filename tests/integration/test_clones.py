"""Shallow clones stay readable by plain pylance, whatever happens to their sources."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import lance
import pyarrow as pa
import pytest
from click.testing import CliRunner
from deployments import bucket, s3_options

import lancekeep
from lancekeep.application.entries.tables import Tables
from lancekeep.application.rows.cloning import Cloning
from lancekeep.application.rows.versions import Versions
from lancekeep.application.upkeep.fsck import Kind
from lancekeep.entrypoints.cli import lancekeep as lancekeep_command

KINDS = ("sqlite", "storage-managed", "conditional-put", "sqlite on s3")


@attrs.frozen
class Lake:
    """A catalog, and clones that plain pylance creates without it."""

    root: str
    commit_store: str | None
    options: dict[str, str]

    def connect(self, mode: str = "compatible") -> lancekeep.Catalog:
        return lancekeep.connect(self.root, mode=mode, commit_store=self.commit_store, storage_options=self.options)

    def native(self, location: str) -> Any:
        return lance.dataset(f"{self.root}/{location}", storage_options=self.options or None)

    def rows(self, location: str) -> list[int]:
        return sorted(self.native(location).to_table()["a"].to_pylist())

    def clone(self, source: str, target: str, reference: Any = None) -> None:
        dataset = self.native(source)
        dataset.shallow_clone(
            f"{self.root}/{target}", reference=reference or dataset.version, storage_options=self.options or None
        )


@pytest.fixture(params=KINDS)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    store, _, storage = request.param.partition(" on ")
    url = {"sqlite": f"sqlite://{tmp_path}/commits.db", "conditional-put": "conditional-put://"}.get(store)
    if storage:
        endpoint = request.getfixturevalue("moto_endpoint")
        return Lake(f"s3://{bucket(endpoint)}/lake", url, s3_options(endpoint))
    return Lake(str(tmp_path / "lake"), url, {})


@pytest.fixture
def local(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"), f"sqlite://{tmp_path}/commits.db", {})


def rows(*values: int) -> pa.Table:
    return pa.table({"a": pa.array(values, pa.int64())})


def refused(act: Callable[[], object], *names: str) -> None:
    with pytest.raises(lancekeep.Refused) as caught:
        act()
    assert all(name in str(caught.value) for name in names), str(caught.value)


@pytest.mark.parametrize(
    ("mode", "target"),
    [("compatible", "c.lance"), ("compatible", "elsewhere/c"), ("v2", "elsewhere/c"), ("v1", "c.lance")],
)
def test_source_of_a_clone_is_neither_dropped_nor_moved(lake: Lake, mode: str, target: str) -> None:
    catalog = lake.connect(mode)
    catalog.write("t", rows(1, 2, 3))
    source = catalog.find_table("t").location
    lake.clone(source, target)
    if not (mode in ("compatible", "v1") and target == "c.lance"):
        catalog.register_table("c", target)
    for connected in (catalog, lake.connect(mode)):
        refused(lambda: connected.drop_table("t"), "t", "c", "force")  # noqa: B023 - called immediately
        if mode == "compatible":
            refused(lambda: connected.rename_table("t", "u"), "t", "c")  # noqa: B023 - called immediately
    if mode == "v2":
        catalog.rename_table("t", "u")
        catalog.rename_table("c", "d")
        refused(lambda: catalog.drop_table("u"), "d")
        catalog.rename_table("u", "t")
        catalog.rename_table("d", "c")
    assert lake.rows(target) == lake.rows(source) == [1, 2, 3]
    assert sorted(catalog.open("c").to_table()["a"].to_pylist()) == [1, 2, 3]
    catalog.write("c", rows(4), "append")
    refused(lambda: catalog.drop_table("t"), "c")
    catalog.drop_table("c")
    assert lake.rows(source) == [1, 2, 3]
    catalog.drop_table("t")
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()


def test_forced_drop_removes_the_source(local: Lake) -> None:
    catalog = local.connect()
    catalog.write("t", rows(1))
    local.clone("t.lance", "c.lance")
    catalog.drop_table("t", force=True)
    assert catalog.list_tables() == ["c"]
    assert not (Path(local.root) / "t.lance").exists()


def test_clones_of_clones_branches_and_tags_keep_what_they_read(lake: Lake) -> None:
    catalog = lake.connect("v2")
    catalog.write("t", rows(1))
    source = catalog.find_table("t").location
    native = lake.native(source)
    native.tags.create("first", 1)
    options = lake.options or None
    side = native.create_branch("side", storage_options=options)
    lance.write_dataset(rows(2), side, mode="append", storage_options=options)
    catalog.write("t", rows(7), "overwrite")
    lake.clone(source, "of_tag", "first")
    lake.clone(source, "of_branch", ("side", None))
    catalog.register_table("of_tag", "of_tag")
    catalog.register_table("of_branch", "of_branch")
    catalog.write("of_tag", rows(3), "append")
    lake.clone("of_tag", "of_clone")
    catalog.register_table("of_clone", "of_clone")
    expected = {"of_tag": [1, 3], "of_branch": [1, 2], "of_clone": [1, 3], source: [7]}
    refused(lambda: catalog.drop_table("t"), "of_tag", "of_branch", "of_clone")
    refused(lambda: catalog.drop_table("of_tag"), "of_clone")
    catalog.deregister_table("of_tag")
    catalog.upkeep.cleanup(timedelta(0), grace=timedelta(0))
    report = catalog.upkeep.fsck(repair=True, grace=0, remove_tables=True, deep=True)
    assert not any(finding.repaired for finding in report.findings)
    for location, values in expected.items():
        assert lake.rows(location) == values, location
    catalog.register_table("of_tag", "of_tag")
    catalog.drop_table("of_clone")
    catalog.drop_table("of_tag")
    refused(lambda: catalog.drop_table("t"), "of_branch")
    catalog.drop_table("of_branch")
    catalog.drop_table("t")
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()


def test_cascade_drops_a_namespace_with_its_clones_and_spares_the_sources_of_others(local: Lake) -> None:
    catalog = local.connect()
    for name in ("a", "b"):
        catalog.create_namespace(name)
    catalog.write("a.t", rows(1, 2))
    source = catalog.find_table("a.t").location
    local.clone(source, "inside")
    local.clone(source, "outside")
    catalog.register_table("a.c", "inside")
    catalog.register_table("b.c", "outside")
    refused(lambda: catalog.drop_namespace("a", cascade=True), "a.t", "b.c")
    assert catalog.list_tables("a") == ["c", "t"]
    assert local.rows("outside") == local.rows("inside") == [1, 2]
    catalog.drop_table("b.c")
    catalog.drop_namespace("a", cascade=True)
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()
    assert {path.name for path in Path(local.root).iterdir()} <= {"__manifest", ".lancekeep.json"}


def test_source_that_is_deregistered_is_kept_as_long_as_a_clone_is_registered(lake: Lake) -> None:
    catalog = lake.connect("v2")
    catalog.write("t", rows(1, 2))
    source = catalog.find_table("t").location
    lake.clone(source, "nested/deep/c")
    catalog.register_table("c", "nested/deep/c")
    catalog.deregister_table("t")
    [finding] = catalog.upkeep.fsck(repair=True, grace=0, remove_tables=True).findings
    assert (finding.object, finding.repaired) == (source, False)
    assert "nested/deep/c" in finding.meaning
    assert lake.rows("nested/deep/c") == [1, 2]
    catalog.drop_table("c")
    catalog.upkeep.fsck(repair=True, grace=0, remove_tables=True)
    assert catalog.upkeep.fsck(grace=0).findings == ()


def test_source_of_a_deregistered_clone_that_another_clone_reads_is_kept(local: Lake) -> None:
    catalog = local.connect("v2")
    catalog.write("a", rows(1, 2))
    catalog.clone("a", "b")
    catalog.write("b", rows(3), "overwrite")
    catalog.clone("b", "c")
    places = {name: catalog.find_table(name).location for name in ("a", "b", "c")}
    for name in ("a", "b"):
        catalog.deregister_table(name)
    findings = catalog.upkeep.fsck(repair=True, grace=0, remove_tables=True).findings
    assert {(finding.object, finding.repaired) for finding in findings} == {(places["a"], False), (places["b"], False)}
    assert lance.dataset(f"{local.root}/{places['b']}", version=1).to_table() == rows(1, 2)
    assert local.rows(places["c"]) == [3]
    catalog.deregister_table("c")
    catalog.upkeep.fsck(repair=True, grace=0, remove_tables=True)
    assert catalog.upkeep.fsck(grace=0).findings == ()


@pytest.mark.parametrize("mode", ["v1", "compatible"])
def test_source_of_an_overwritten_clone_in_a_v1_directory_is_kept(lake: Lake, mode: str) -> None:
    """An older version of the clone still reads the source. No manifest of the catalog ever did."""
    catalog = lake.connect(mode)
    catalog.write("t", rows(1, 2))
    lake.clone(catalog.find_table("t").location, "c.lance")
    catalog.write("c", rows(3), "overwrite")
    refused(lambda: catalog.drop_table("t"), "t", "c")
    assert catalog.open("c", version=1).to_table()["a"].to_pylist() == [1, 2]


@pytest.mark.parametrize("mode", ["v1", "compatible"])
def test_source_of_a_deregistered_clone_in_a_v1_directory_is_kept(lake: Lake, mode: str) -> None:
    catalog = lake.connect(mode)
    catalog.write("t", rows(1, 2))
    lake.clone(catalog.find_table("t").location, "c.lance")
    catalog.deregister_table("c")
    refused(lambda: catalog.drop_table("t"), "t", "c")
    assert lake.rows("c.lance") == [1, 2]


def test_cleanup_keeps_what_deregistered_clones_in_nested_locations_read(lake: Lake) -> None:
    catalog = lake.connect("v2")
    catalog.write("t", rows(1, 2))
    source = catalog.find_table("t").location
    for location in ("sub/cl", "sub/deep/er/cl"):
        lake.clone(source, location)
        catalog.register_table("c", location)
        catalog.deregister_table("c")
    catalog.write("beside", rows(5))
    catalog.deregister_table("beside")
    lake.clone(source, "other/cl")
    catalog.register_table("kept", "other/cl")
    catalog.write("t", rows(9), "overwrite")
    assert catalog.upkeep.cleanup(timedelta(0), grace=timedelta(0)).versions
    for location in ("sub/cl", "sub/deep/er/cl", "other/cl"):
        assert lake.rows(location) == [1, 2]
    assert lake.rows(source) == [9]


def test_cleanup_keeps_files_of_clone_reached_by_symbolic_link(local: Lake, tmp_path: Path) -> None:
    catalog = local.connect("v2")
    catalog.write("t", rows(1, 2))
    source = catalog.find_table("t").location
    local.clone(source, "c")
    catalog.register_table("c", "c")
    (Path(local.root) / "c").rename(tmp_path / "moved")
    (Path(local.root) / "c").symlink_to(tmp_path / "moved")
    catalog.write("t", rows(9), "overwrite")
    report = catalog.upkeep.cleanup(timedelta(0), grace=timedelta(0))
    assert [skipped.table for skipped in report.skipped] == ["c"]
    assert report.versions
    assert local.rows("c") == [1, 2]
    refused(lambda: catalog.drop_table("t"), "c")


def test_concurrent_source_drop_and_clone_registration_refuse_one(local: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, other = local.connect("v2"), local.connect("v2")
    catalog.write("t", rows(1, 2))
    source = catalog.find_table("t").location
    local.clone(source, "c")
    remove = Tables.remove_entry

    def register_first(self: Tables, object_id: Any, action: str) -> Any:
        monkeypatch.undo()
        other.register_table("c", "c")
        return remove(self, object_id, action)

    monkeypatch.setattr(Tables, "remove_entry", register_first)
    refused(lambda: catalog.drop_table("t"), "c")
    assert catalog.list_tables() == ["c", "t"]
    assert local.rows("c") == local.rows(source) == [1, 2]
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()


def test_migrated_and_altered_clones_are_recorded(local: Lake) -> None:
    catalog = local.connect()
    catalog.write("t", rows(1))
    for name in ("c", "d"):
        local.clone("t.lance", f"{name}.lance")
    catalog.alter_table("d", {"owner": "me"})
    catalog.upkeep.migrate()
    strict = local.connect("v2")
    refused(lambda: strict.drop_table("t"), "c", "d")
    assert local.rows("c.lance") == local.rows("d.lance") == [1]


def test_renamed_clone_is_still_recorded(local: Lake) -> None:
    catalog = local.connect()
    catalog.write("t", rows(1))
    local.clone("t.lance", "c.lance")
    moved = catalog.rename_table("c", "e")
    assert local.rows(moved.location) == [1]
    refused(lambda: local.connect("v2").drop_table("t"), "e")
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()
    catalog.drop_table("e")
    catalog.drop_table("t")


def test_clone_overwritten_and_cleaned_up_releases_its_source(local: Lake) -> None:
    catalog = local.connect("v2")
    catalog.write("t", rows(1))
    local.clone(catalog.find_table("t").location, "c")
    catalog.register_table("c", "c")
    catalog.write("c", rows(5), "overwrite")
    refused(lambda: catalog.drop_table("t"), "c")  # an older version reads them
    catalog.upkeep.cleanup(timedelta(0), tables=["c"])
    catalog.drop_table("t")
    assert local.rows("c") == [5]


def test_fsck_finds_and_repairs_the_records_of_clones(local: Lake) -> None:
    catalog = local.connect("v2")
    catalog.write("t", rows(1))
    catalog.write("u", rows(2))
    source = Path(local.root) / catalog.find_table("t").location
    local.clone(source.name, "c")
    catalog.register_table("c", "c")
    [record] = (source / ".lancekeep-clones").iterdir()
    record.unlink()
    stale = Path(local.root) / catalog.find_table("u").location / ".lancekeep-clones" / record.name
    stale.parent.mkdir()
    stale.write_text("c")
    for repaired in (False, True):
        found = catalog.upkeep.fsck(deep=True, grace=0, repair=repaired).findings
        assert [(one.kind, one.object, one.repaired) for one in found] == [
            (Kind.UNRECORDED_CLONE, "c", repaired),
            (Kind.STALE_RECORD, "u", repaired),
        ]
    assert record.exists()
    assert not stale.exists()
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()
    refused(lambda: catalog.drop_table("t"), "c")
    catalog.drop_table("u")


@pytest.mark.parametrize("deep", [False, True])
def test_clone_of_any_version_has_its_rows_and_indexes(lake: Lake, deep: bool) -> None:
    catalog = lake.connect()
    catalog.create_namespace("n")
    catalog.write("t", rows(*range(10)))
    catalog.write("t", rows(*range(10, 20)), "append")
    catalog.open("t").delete("a = 3")
    catalog.open("t").create_scalar_index("a", "BTREE")
    catalog.open("t").tags.create("before", 2)
    latest = [*range(3), *range(4, 20)]
    for target, version, expected in (("n.c", None, latest), ("d", 3, latest), ("tagged", "before", [*range(20)])):
        table = catalog.clone("t", target, version, deep=deep)
        assert lake.rows(table.location) == sorted(catalog.open(target).to_table()["a"].to_pylist()) == expected
        assert catalog.open(target).to_table(filter="a = 15").num_rows == 1
        assert catalog.describe_table(target).version == {"n.c": 4, "d": 3, "tagged": 2}[target]
    assert [index["name"] for index in catalog.open("n.c").list_indices()] == ["a_idx"]
    assert sorted(catalog.clones_of("t")) == ([] if deep else ["d", "n.c", "tagged"])
    catalog.write("n.c", rows(100), "append")
    catalog.open("n.c").delete("a = 4")
    assert lake.rows(catalog.find_table("n.c").location) == [*range(3), *range(5, 20), 100]
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()
    if deep:
        catalog.drop_table("t")
        assert lake.rows(catalog.find_table("d").location) == latest
    else:
        refused(lambda: catalog.drop_table("t"), "n.c", "d", "tagged")


def test_materialized_clone_outlives_its_source(lake: Lake) -> None:
    catalog = lake.connect()
    catalog.write("t", rows(*range(10)))
    catalog.open("t").delete("a = 3")
    catalog.open("t").create_scalar_index("a", "BTREE")
    catalog.clone("t", "c")
    catalog.clone("c", "cc")
    catalog.write("cc", rows(10), "append")
    catalog.open("cc").delete("a = 4")
    committed = catalog.upkeep.materialize("cc")
    assert committed is not None
    assert (committed.version, catalog.upkeep.materialize("cc")) == (6, None)
    catalog.write("cc", rows(11), "append")
    assert catalog.upkeep.cleanup(timedelta(0)).skipped == ()
    assert "cc" not in catalog.clones_of("t")
    catalog.drop_table("c", force=True)
    catalog.drop_table("t", force=True)
    assert lake.rows(catalog.find_table("cc").location) == [0, 1, 2, *range(5, 12)]
    assert catalog.open("cc").to_table(filter="a = 9").num_rows == 1
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()


def test_writers_of_a_clone_continue_while_it_is_materialized(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = lake.connect()
    catalog.write("t", rows(*range(10)))
    catalog.clone("t", "c")
    stale = catalog.open("c")
    copy, interrupted = Cloning._copy, iter([True])

    def copy_slowly(*given: Any, **options: Any) -> None:
        copy(*given, **options)
        if next(interrupted, False):
            catalog.write("c", rows(10), "append")
            catalog.open("c").delete("a = 1")

    monkeypatch.setattr(Cloning, "_copy", copy_slowly)
    committed = catalog.upkeep.materialize("c")
    assert committed is not None
    assert committed.version == 4
    stale.delete("a = 2")
    lance.write_dataset(rows(11), stale, mode="append")
    assert lake.rows("c.lance") == [0, *range(3, 12)]


def test_refused_clone_leaves_nothing(local: Lake) -> None:
    catalog = local.connect()
    catalog.write("t", rows(1))
    catalog.write("taken", rows(2))
    catalog.open("t").create_branch("b")
    catalog.open("t").tags.create("on-branch", ("b", 1))
    before = sorted(Path(local.root).rglob("*"))
    for source, target, version, error in (
        ("missing", "c", None, lancekeep.TableNotFound),
        ("t", "taken", None, lancekeep.TableAlreadyExists),
        ("t", "c", 7, lancekeep.VersionNotFound),
        ("t", "c", "no-tag", lancekeep.NotFound),
        ("t", "c", "on-branch", lancekeep.Unsupported),
    ):
        with pytest.raises(error):
            catalog.clone(source, target, version)
    [fragment] = Path(local.root, "t.lance", "data").iterdir()
    content = fragment.read_bytes()
    fragment.unlink()
    with pytest.raises(lancekeep.Damaged, match="does not exist"):
        catalog.clone("t", "c", deep=True)
    fragment.write_bytes(content)
    assert catalog.list_tables() == ["t", "taken"]
    assert [path for path in sorted(Path(local.root).rglob("*")) if "__manifest" not in str(path)] == [
        path for path in before if "__manifest" not in str(path)
    ]


def test_clone_of_a_source_that_is_dropped_concurrently_is_refused(
    local: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = local.connect()
    catalog.write("t", rows(1))
    begin = Versions.begin_history

    def begin_late(versions: Versions, *given: Any) -> Any:
        local.connect().drop_table("t", force=True)
        return begin(versions, *given)

    monkeypatch.setattr(Versions, "begin_history", begin_late)
    with pytest.raises(lancekeep.ConcurrentModification):
        catalog.clone("t", "c")
    assert catalog.list_tables() == []


def test_commands_clone_and_materialize_print_the_versions(local: Lake) -> None:
    catalog = local.connect()
    catalog.write("t", rows(1))
    catalog.write("t", rows(2), "append")

    def invoke(*arguments: str) -> str:
        told = CliRunner().invoke(
            lancekeep_command, [*arguments, "--commit-store", str(local.commit_store)], obj=lancekeep
        )
        assert told.exit_code == 0, told.output
        return told.output

    assert invoke("clone", local.root, "t", "c", "--version", "1") == "Cloned t to c, version 1\n"
    assert '"version": 2' in invoke("clone", local.root, "t", "d", "--deep", "--json")
    assert invoke("materialize", local.root, "d") == "d reads no files of other tables\n"
    assert invoke("materialize", local.root, "c").startswith("Materialized c as version 2; 1 older versions may read")
    catalog.drop_table("t", force=True)
    assert (local.rows("c.lance"), local.rows("d.lance")) == ([1], [1, 2])


def test_clone_with_an_index_of_its_source_is_compacted_once_it_is_materialized(tmp_path: Path) -> None:
    """pylance 14 looks for an index that it has rewritten in the directory of the source."""
    catalog = lancekeep.connect(str(tmp_path / "lake"), commit_store="conditional-put://")
    catalog.write("a", pa.table({"id": [1, 2], "value": [5, 5]}))
    catalog.write("a", pa.table({"id": [3], "value": [6]}), "append")
    catalog.commit_change("a", lambda table: (table.create_scalar_index("value", "BTREE"), table)[1])
    catalog.clone("a", "b")
    before = set(tmp_path.glob("lake/b.lance/data/*"))
    with pytest.raises(lancekeep.Unsupported, match="materialize"):
        catalog.upkeep.compact("b")
    assert set(tmp_path.glob("lake/b.lance/data/*")) == before
    catalog.upkeep.materialize("b")
    assert catalog.upkeep.compact("b") is not None
    found = lance.dataset(str(tmp_path / "lake/b.lance"))
    assert len(found.get_fragments()) == 1
    assert found.to_table(["id"], "value = 5")["id"].to_pylist() == [1, 2]
