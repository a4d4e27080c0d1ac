"""Deep clones that were stopped: completed by the same call, refused to other writers, removed by repair."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import attrs
import lance
import lance_namespace as api
import pyarrow as pa
import pytest
from click.testing import CliRunner
from deployments import bucket, s3_options
from faults import Crash, killed_at_each_state, killed_before_each_write

import lancekeep
from lancekeep.application.catalog import directory_of
from lancekeep.application.entries.tables import Tables
from lancekeep.application.rows.versions import Versions
from lancekeep.application.upkeep.fsck import Kind
from lancekeep.entrypoints.cli import lancekeep as lancekeep_command


@attrs.frozen
class Lake:
    """A catalog, and its tables as plain pylance reads them."""

    root: str
    commit_store: str | None
    options: dict[str, str] = attrs.field(factory=dict)
    mode: str = "compatible"

    def connect(self) -> lancekeep.Catalog:
        return lancekeep.connect(
            self.root, mode=self.mode, commit_store=self.commit_store, storage_options=self.options
        )

    def rows(self, name: str) -> list[int]:
        uri = f"{self.root}/{self.connect().find_table(name).location}"
        return sorted(lance.dataset(uri, storage_options=self.options or None).to_table()["a"].to_pylist())

    def files(self) -> set[str]:
        """Return the files of a local lake, except those of the catalog's own table."""
        found = (path for path in Path(self.root).rglob("*") if path.is_file())
        return {str(path.relative_to(self.root)) for path in found if "__manifest" not in str(path)}

    def stop_clone(self, monkeypatch: pytest.MonkeyPatch, name: str = "c") -> None:
        """Write a table t, and stop a deep clone before it has a version."""
        catalog = self.connect()
        catalog.write("t", rows(1, 2), "overwrite")
        with monkeypatch.context() as patch:
            patch.setattr(Versions, "begin_history", crash)
            with pytest.raises(Crash):
                catalog.clone("t", name, deep=True)


def local(tmp_path: Path, store: str, mode: str = "compatible") -> Lake:
    url = {"sqlite": f"sqlite://{tmp_path}/commits.db", "storage-managed": None}.get(store, f"{store}://")
    return Lake(str(tmp_path / "lake"), url, mode=mode)


def rows(*values: int) -> pa.Table:
    return pa.table({"a": pa.array(values, pa.int64())})


def crash(*_: object) -> None:
    raise Crash


def unfinished(catalog: lancekeep.Catalog, **how: Any) -> list[Any]:
    return [finding for finding in catalog.upkeep.fsck(**how).findings if finding.kind is Kind.UNFINISHED_CLONE]


@pytest.fixture(params=["conditional-put", "sqlite", "v1"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    if request.param == "v1":
        return local(tmp_path, "storage-managed", "v1")
    if request.param == "sqlite":
        return local(tmp_path, "sqlite", "v2")
    return local(tmp_path, "conditional-put")


def filled(lake: Lake) -> lancekeep.Catalog:
    catalog = lake.connect()
    catalog.write("t", rows(1, 2))
    catalog.write("t", rows(3), "append")
    return catalog


def test_clone_on_s3_killed_before_its_first_version_is_completed(
    moto_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills at other writes are in the tests of local files: the object stores keep one contract."""
    lake = Lake(f"s3://{bucket(moto_endpoint)}/lake", "conditional-put://", s3_options(moto_endpoint))
    lake.stop_clone(monkeypatch)
    catalog = lake.connect()
    assert [each.object for each in unfinished(catalog)] == ["c"]
    catalog.clone("t", "c", deep=True)
    assert lake.rows("c") == [1, 2]
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()
    lake.stop_clone(monkeypatch, "d")
    [finding] = unfinished(catalog, repair=True, grace=0)
    assert (finding.object, finding.repaired) == ("d", True)
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()


def test_clone_killed_at_any_write_is_completed(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(lake)
    begun = 0
    for nth in killed_before_each_write(
        monkeypatch, lake.connect, lambda catalog, nth: catalog.clone("t", f"c{nth}", 2, deep=True)
    ):
        catalog, name = lake.connect(), f"c{nth}"
        begun += len(unfinished(catalog))
        with suppress(lancekeep.TableAlreadyExists):  # it was complete, and only the reply is missing
            catalog.clone("t", name, 2, deep=True)
        assert lake.rows(name) == [1, 2, 3], nth
        catalog.write(name, rows(4), "append")
        assert lake.rows(name) == [1, 2, 3, 4], nth
    assert begun >= 3
    catalog.upkeep.fsck(repair=True, deep=True, grace=0)  # a kill after the commit leaves its staged manifest
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()


def test_clone_killed_at_any_write_is_removed_by_repair(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(lake)
    removed = complete = 0
    for nth in killed_before_each_write(
        monkeypatch, lake.connect, lambda catalog, nth: catalog.clone("t", f"c{nth}", 2, deep=True)
    ):
        catalog, name = lake.connect(), f"c{nth}"
        young = [finding for finding in catalog.upkeep.fsck(repair=True).findings if finding.object == name]
        assert not any(finding.repair or finding.repaired for finding in young), nth
        planned = unfinished(catalog, grace=0)
        assert [(each.object, each.repair) for each in planned] == [(name, "remove the table")] * len(planned)
        was = catalog.list_tables()
        catalog.upkeep.fsck(repair=True, deep=True, grace=0)
        assert catalog.upkeep.fsck(deep=True, grace=0).findings == (), nth
        removed += len(planned)
        if planned:
            assert (name in was, name in catalog.list_tables()) == (True, False), nth
            catalog.write(name, rows(nth))
            assert lake.rows(name) == [nth]
        elif name in catalog.list_tables(include_declared=False):
            complete += 1
            assert lake.rows(name) == [1, 2, 3], nth
    assert removed >= 3
    assert complete


@pytest.mark.parametrize("mode", ["compatible", "v2", "v1"])
def test_repair_keeps_a_clone_with_a_file_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    lake = local(tmp_path, "conditional-put", mode)
    lake.stop_clone(monkeypatch)
    catalog = lake.connect()
    directory = Path(lake.root, catalog.find_table("c").location)
    uuid = "7b1e5eaa-8371-4c00-912e-00784d3391fc"
    for other in (
        "notes.txt",
        "data/1.csv",
        f"_transactions/1-{uuid}.txn",
        f"_versions/18446744073709551613.manifest-{uuid}",
        "_versions/18446744073709551614.manifest-copy",
        "_refs/tags/x.json",
        "tree/b/data/110100101101011000001011c84f344d26b7a6ff5a3f6de9b5.lance",
    ):
        path = directory / other
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
        before = lake.files()
        [finding] = unfinished(catalog, repair=True, grace=0)
        assert (finding.repair, finding.repaired) == ("", False), other
        assert repr(other) in finding.meaning
        assert lake.files() == before
        path.unlink()
    [finding] = unfinished(catalog, repair=True, grace=0)
    assert finding.repaired
    assert [name for name in lake.files() if name.startswith(directory.name)] == []


def test_command_shows_the_plan_before_it_removes_a_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = local(tmp_path, "conditional-put")
    lake.stop_clone(monkeypatch)
    arguments = ["repair", lake.root, "--commit-store", str(lake.commit_store), "--grace", "0s"]
    plan = CliRunner().invoke(lancekeep_command, [*arguments, "--json"], obj=lancekeep)
    [finding] = json.loads(plan.output)["findings"]
    assert (finding["object"], finding["repair"], finding["repaired"]) == ("c", "remove the table", False)
    assert lake.connect().list_tables() == ["c", "t"]
    done = CliRunner().invoke(lancekeep_command, [*arguments, "--yes"], obj=lancekeep)
    assert done.exit_code == 0, done.output
    assert lake.connect().list_tables() == ["t"]


Change = Callable[[lancekeep.Catalog], object]


@pytest.mark.parametrize(
    ("mode", "between"),
    [
        *product(["compatible", "v2", "v1"], ["completed", "committed", "declared", "dropped"]),
        ("v2", "renamed"),  # refused in other modes: the files would move, or there are no names to change
    ],
)
def test_repair_removes_only_what_it_has_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, between: str
) -> None:
    """Another process changes the table after the last check of the repair."""
    lake = local(tmp_path, "conditional-put", mode)
    lake.stop_clone(monkeypatch)

    def commit_and_stop(catalog: lancekeep.Catalog) -> None:
        with monkeypatch.context() as patch:
            patch.setattr("lancekeep.application.rows.cloning.is_at", crash)
            with pytest.raises(Crash):
                catalog.clone("t", "c", deep=True)

    others: dict[str, Change] = {
        "committed": commit_and_stop,
        "completed": lambda catalog: catalog.clone("t", "c", deep=True),
        "declared": lambda catalog: (catalog.drop_table("c"), catalog.declare_table("c")),
        "dropped": lambda catalog: catalog.drop_table("c"),
        "renamed": lambda catalog: catalog.rename_table("c", "d"),
    }
    remove = Tables.remove_unwritten

    def remove_late(tables: Tables, *given: Any) -> bool:
        others[between](lake.connect())
        return remove(tables, *given)

    catalog = lake.connect()
    with monkeypatch.context() as patch:
        patch.setattr(Tables, "remove_unwritten", remove_late)
        [finding] = unfinished(catalog, repair=True, grace=0)
    assert not finding.repaired
    catalog = lake.connect()
    if between in ("committed", "completed"):
        assert lake.rows("c") == [1, 2]
        assert catalog.write("c", rows(3), "append").version == 2
    elif between == "declared":
        catalog.write("c", rows(7), "overwrite")
        assert lake.rows("c") == [7]
    elif between == "renamed":
        catalog.clone("t", "d", deep=True)
        assert lake.rows("d") == [1, 2]
    assert lake.rows("t") == [1, 2]
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()


@pytest.mark.parametrize("mode", ["compatible", "v2", "v1"])
def test_repair_during_the_same_call_of_clone_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Either the call fails, or the table has its rows."""
    lake = local(tmp_path, "conditional-put", mode)
    lake.stop_clone(monkeypatch)
    begin = Versions.begin_history

    def begin_late(versions: Versions, *given: Any) -> Any:
        assert unfinished(lake.connect(), repair=True, grace=0)[0].repaired
        return begin(versions, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Versions, "begin_history", begin_late)
        with pytest.raises(lancekeep.LancekeepError):
            lake.connect().clone("t", "c", deep=True)


CHANGES: dict[str, Change] = {
    "create": lambda catalog: catalog.write("c", rows(9)),
    "overwrite": lambda catalog: catalog.write("c", rows(9), "overwrite"),
    "overwrite with properties": lambda catalog: catalog.write("c", rows(9), "overwrite", properties={}),
    "append": lambda catalog: catalog.write("c", rows(9), "append"),
    "append a stream": lambda catalog: catalog.write("c", rows(9).to_reader(), "append"),
    "begin": lambda catalog: catalog.begin_write("c", rows(9).schema, "overwrite"),
    "begin an append": lambda catalog: catalog.begin_write("c", rows(9).schema, "append"),
    "insert": lambda catalog: catalog.data.insert(lancekeep.ObjectId.of("c"), rows(9).to_reader()),
    "merge": lambda catalog: _namespace(catalog).merge_insert_into_table(
        api.MergeInsertIntoTableRequest(id=["c"], on=["a"], when_not_matched_insert_all=True), _body()
    ),
    "create_table": lambda catalog: _namespace(catalog).create_table(
        api.CreateTableRequest(id=["c"], mode="overwrite"), _body()
    ),
    "insert_into_table": lambda catalog: _namespace(catalog).insert_into_table(
        api.InsertIntoTableRequest(id=["c"]), _body()
    ),
    "declare": lambda catalog: catalog.declare_table("c"),
    "open": lambda catalog: catalog.open("c"),
    "update": lambda catalog: catalog.commit_change("c", lambda table: table),
    "clone": lambda catalog: catalog.clone("c", "d"),
    "materialize": lambda catalog: catalog.upkeep.materialize("c"),
    "relocate": lambda catalog: catalog.upkeep.relocate("c", "place"),
    "move fragments": lambda catalog: catalog.upkeep.move_fragments("c", 1, "/nowhere"),
    "rename": lambda catalog: catalog.rename_table("c", "d"),
}
EXPLAINED = CHANGES.keys() - {"create", "declare", "clone", "materialize", "move fragments"}
"""The changes whose error says that the table is an unfinished clone; other errors say that it has no version."""


def _body() -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows(9).schema) as stream:
        stream.write_table(rows(9))
    return bytes(sink.getvalue())


def _namespace(catalog: lancekeep.Catalog) -> Any:
    store = {} if not directory_of(catalog).ledger.managed else {"commit_store": directory_of(catalog).commits.rows.url}
    return lancekeep.DirectoryNamespace(root=directory_of(catalog).places.root_uri, **store)


@pytest.mark.parametrize("store", ["sqlite", "conditional-put", "storage-managed"])
def test_every_change_of_an_unfinished_clone_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    lake = local(tmp_path, store)
    lake.stop_clone(monkeypatch)
    before = lake.files()
    catalog = lake.connect()
    for name, change in CHANGES.items():
        with pytest.raises(
            Exception, match=r"unfinished deep clone.*clone, or" if name in EXPLAINED else "c"
        ) as raised:
            change(catalog)
        assert "c" in catalog.list_tables(), (name, raised)
        assert lake.files() == before, name
    catalog.clone("t", "c", deep=True)
    assert lake.rows("c") == [1, 2]
    catalog.write("c", rows(3), "overwrite")
    assert lake.rows("c") == [3]


@pytest.mark.parametrize("store", ["sqlite", "conditional-put"])
def test_native_writer_is_refused_in_an_unfinished_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    lake = local(tmp_path, store)
    lake.stop_clone(monkeypatch)
    catalog = lake.connect()
    for mode in ("create", "overwrite"):  # native code hides the text of a refused first version
        with pytest.raises(Exception, match=r"already exists|is unknown"):
            lance.write_dataset(rows(9), namespace_client=_namespace(catalog), table_id=["c"], mode=mode)
    [kept] = unfinished(catalog, repair=True, grace=0)
    assert (kept.repaired, "_transactions/0-" in kept.meaning) == (False, True)
    catalog.drop_table("c")
    assert not Path(lake.root, "c.lance").exists()
    catalog.write("c", rows(9))
    assert lake.rows("c") == [9]


def test_transaction_is_refused_in_an_unfinished_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = local(tmp_path, "sqlite")
    lake.stop_clone(monkeypatch)
    catalog = lake.connect()
    with catalog.transaction() as transaction:
        with pytest.raises(lancekeep.Refused, match="unfinished deep clone"):
            transaction.write("c", rows(9), "overwrite")
        transaction.write("t", rows(3), "append")
    catalog.clone("t", "c", deep=True)
    assert (lake.rows("c"), lake.rows("t")) == ([1, 2], [1, 2, 3])


@pytest.mark.parametrize("mode", ["v2", "compatible"])
def test_entry_of_an_unfinished_clone_can_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    lake = local(tmp_path, "conditional-put", mode)
    lake.stop_clone(monkeypatch)
    catalog = lake.connect()
    catalog.alter_table("c", {"owner": "Zoë"})
    name = "c"
    if mode == "v2":
        catalog.rename_table("c", "d")
        name = "d"
    catalog.clone("t", name, deep=True)
    assert lake.rows(name) == [1, 2]
    assert catalog.find_table(name).properties["owner"] == "Zoë"


@pytest.mark.parametrize(("mode", "store"), [("v2", "files"), ("compatible", "conditional-put")])
def test_killed_deep_clone_is_completed_by_the_same_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, store: str
) -> None:
    now = tmp_path / "now"
    url = f"file://{now}/commits?fsync=false" if store == "files" else "conditional-put://"
    lake = Lake(str(now / "lake"), url, {"fsync": "false"}, mode)
    with lake.connect() as catalog:
        catalog.write("t", rows(1, 2))
        catalog.write("t", rows(3), "append")
        catalog.write("other", rows(7))
    unfinished = 0
    for at in killed_at_each_state(
        monkeypatch, now, lake.connect, lambda catalog: catalog.clone("t", "c", 2, deep=True)
    ):
        catalog = lake.connect()
        if Kind.UNFINISHED_CLONE in {finding.kind for finding in catalog.upkeep.fsck().findings}:
            unfinished += 1
            for other in (("other", 1), ("t", 1)):
                with pytest.raises(lancekeep.TableAlreadyExists, match="unfinished deep clone of version 2"):
                    catalog.clone(other[0], "c", other[1], deep=True)
            with pytest.raises(lancekeep.TableAlreadyExists):
                catalog.write("c", rows(9))
        with suppress(lancekeep.TableAlreadyExists):  # it was complete, and only the reply is missing
            catalog.clone("t", "c", None if unfinished % 2 else 2, deep=True)
        assert lake.rows("c") == [1, 2, 3], at
        assert Kind.UNFINISHED_CLONE not in {finding.kind for finding in catalog.upkeep.fsck(deep=True).findings}, at
        with pytest.raises(lancekeep.TableAlreadyExists):
            catalog.clone("t", "c", 2, deep=True)
        catalog.close()
    assert unfinished > 3


def test_unfinished_deep_clone_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = local(tmp_path, "sqlite")
    lake.stop_clone(monkeypatch)
    catalog = lake.connect()
    [found] = catalog.upkeep.fsck().findings
    assert (found.kind, found.object) == (Kind.UNFINISHED_CLONE, "c")
    assert all(word in found.meaning for word in ("t.lance", "version 1", "clone", "drop_table"))
    assert catalog.list_tables(include_declared=False) == ["t"]
    with pytest.raises(ValueError, match="not found"):
        lake.rows("c")
    catalog.drop_table("c")
    assert not Path(lake.root, "c.lance").exists()
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()
    catalog.clone("t", "c", deep=True)
    assert lake.rows("c") == [1, 2]


@pytest.mark.parametrize(
    "forged",
    [
        {"transaction": "../../../other/x"},
        {"transaction": 7},
        {"version": 0},
        {"version": True},
        {"version": 1 << 63},
        {"began": -1},
        {"began": 1 << 63},
        {"source": None},
        {"unknown": 1},
    ],
)
def test_forged_marker_of_a_deep_clone_is_none(tmp_path: Path, forged: dict[str, Any]) -> None:
    catalog = lancekeep.connect(str(tmp_path / "lake"), commit_store="conditional-put://")
    catalog.write("a", pa.table({"id": [1, 2]}))
    catalog.declare_table("b")
    begun = {"source": "a.lance", "version": 1, "transaction": "7b1e5eaa-8371-4c00-912e-00784d3391fc", "began": 1}
    marker = tmp_path / "lake/b.lance/.lance-reserved"
    marker.write_text(json.dumps({"clone": begun | forged}))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(lancekeep.TableAlreadyExists):
        catalog.clone("a", "b", deep=True)
    assert sorted(tmp_path.rglob("*")) == before

    marker.write_text(json.dumps({"clone": begun}))
    catalog.clone("a", "b", deep=True)
    assert lance.dataset(str(tmp_path / "lake/b.lance")).to_table()["id"].to_pylist() == [1, 2]
