"""A catalog moves to a server of the namespace specification, and back."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import lance
import lance_namespace as api
import pyarrow as pa
import pytest
from click.testing import CliRunner
from faults import Crash
from home_copies import Kill, kills, shown
from lance.namespace import RestAdapter
from lance.namespace import RestNamespace as NativeClient
from rest_server import serving

import lancekeep
from lancekeep.domain.errors import InvalidInput, LancekeepError, Refused, Unsupported
from lancekeep.entrypoints.cli import lancekeep as command

ROWS = pa.table({"a": [1, 2, 3]})
FAST = {"fsync": "false"}


@attrs.frozen
class Served:
    """A server whose root contains the root of a catalog.

    Attributes:
        lake: The root of the catalog.
        uri: The server.
        options: What its client needs to know.
        keeps_properties: Whether the server keeps the properties of a table that is registered.
    """

    lake: str
    uri: str
    options: dict[str, str]
    keeps_properties: bool = True

    def connect(self, **more: Any) -> lancekeep.Catalog:
        return lancekeep.connect(self.lake, mode="v2", commit_store="remembered", storage_options=FAST, **more)

    def there(self, **more: Any) -> lancekeep.CatalogCopy:
        return lancekeep.copy_catalog(
            self.lake, self.uri, mode="v2", storage_options=FAST, target_options=self.options, **more
        )

    def back(self, **more: Any) -> lancekeep.CatalogCopy:
        return lancekeep.copy_catalog(
            self.uri, self.lake, mode="v2", storage_options=FAST, source_options=self.options, **more
        )


@pytest.fixture(params=["lancekeep", "pylance"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    above = tmp_path / "above"
    lake = str(above / "lake")
    if request.param == "lancekeep":
        namespace = lancekeep.DirectoryNamespace(root=str(above), mode="v2", **{"storage.fsync": "false"})
        with serving(namespace) as front:
            yield Served(lake, front.uri, {})
    else:
        options = {"root": str(above), "dir_listing_enabled": "false"}
        with RestAdapter("dir", options, port=0) as adapter:
            yield Served(lake, f"http://127.0.0.1:{adapter.port}", {"root": str(above)}, keeps_properties=False)


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[Served]:
    above = tmp_path / "above"
    namespace = lancekeep.DirectoryNamespace(root=str(above), mode="v2", **{"storage.fsync": "false"})
    with serving(namespace) as front:
        yield Served(str(above / "lake"), front.uri, {})


def fill(served: Served) -> None:
    with served.connect() as catalog:
        catalog.create_namespace("ml", {"owner": "ann"})
        catalog.create_namespace("ml.deep")
        catalog.write("ml.deep.t", ROWS)
        catalog.write("ml.deep.t", ROWS, "append")
        catalog.tags.create("ml.deep.t", "first", 1)
        catalog.write("root_table", ROWS, properties={"unit": "m"} if served.keeps_properties else None)


def test_catalog_moves_to_a_server_and_back(served: Served) -> None:
    fill(served)
    with served.connect() as catalog:
        before = shown(catalog)
        report = served.there()
        assert (report.done, report.obstacles, report.namespaces, report.tables) == (True, (), 2, 2)
        with pytest.raises(Refused, match=f"moved to {served.uri}. Connect to {served.uri}"):
            catalog.create_namespace("other")
    with pytest.raises(Refused, match=f"Connect to {served.uri}"):
        served.connect()
    with lancekeep.connect(served.uri) as moved:
        assert shown(moved) == before
    native = NativeClient(uri=served.uri)
    assert native.list_tables(api.ListTablesRequest(id=["ml", "deep"])).tables == ["t"]
    assert served.there().done
    lance.write_dataset(ROWS, namespace_client=native, table_id=["root_table"], mode="append")
    with pytest.raises(Unsupported, match="writers_stopped"):
        served.back()
    assert f"{served.uri} has no fence and still shows the tables" in str(served.back(writers_stopped=True))
    with served.connect() as returned:
        assert shown(returned).keys() == before.keys()
        assert returned.data.count("root_table") == 6
        assert returned.tags.list("ml.deep.t").keys() == {"first"}
        assert returned.upkeep.fsck(grace=0).findings == ()
        returned.rename_table("root_table", "ml.renamed")
        returned.drop_table("ml.deep.t", keep=timedelta(0))
        returned.write("later", ROWS)
        after = shown(returned)
    assert served.there().done
    with lancekeep.connect(served.uri) as moved:
        assert shown(moved) == after


def test_server_is_refused_what_it_cannot_hold(ours: Served) -> None:
    fill(ours)
    with ours.connect() as catalog:
        catalog.write("dropped", ROWS)
        catalog.drop_table("dropped", keep=timedelta(days=3))
        catalog.declare_table("declared")
        catalog.protect("root_table")
        catalog.alter_namespace((), {"note": "x"})
        report = ours.there(dry_run=True)
        assert {each.name for each in report.obstacles if "dropped" not in each.name} == {
            "the root",
            "declared",
            "root_table",
        }
        assert len(report.obstacles) == 4
        with pytest.raises(Refused, match="Nothing was copied"):
            ours.there()
        catalog.create_namespace("still_here")
    with lancekeep.connect(ours.uri) as server:
        assert (server.list_namespaces(), server.list_tables()) == ([], [])


def test_versions_in_a_commit_store_are_refused(ours: Served, tmp_path: Path) -> None:
    url = f"sqlite://{tmp_path}/rows.db"
    with lancekeep.connect(ours.lake, mode="v2", commit_store=url, storage_options=FAST) as catalog:
        catalog.write("t", ROWS)
        with pytest.raises(Refused, match=r"commit store sqlite:.*change_commit_store with 'conditional-put://' first"):
            ours.there()
        catalog.write("t", ROWS, "append")
        with pytest.raises(InvalidInput, match="leave to_commit_store out"):
            ours.there(to_commit_store=url)
        catalog.upkeep.change_commit_store("conditional-put://")
    assert ours.there().done
    assert lancekeep.connect(ours.uri).data.count("t") == 6


def test_server_over_the_same_directory_is_refused(tmp_path: Path) -> None:
    lake = str(tmp_path / "lake")
    namespace = lancekeep.DirectoryNamespace(root=lake, mode="v2", **{"storage.fsync": "false"})
    with serving(namespace) as front:
        served = Served(lake, front.uri, {})
        fill(served)
        with pytest.raises(Refused, match=r"root_table: the server lists root_table in its directory"):
            served.there()
        for give_up in (False, True):
            with pytest.raises(Refused, match="Name the directory as the source"):
                lancekeep.copy_catalog(
                    front.uri, lake, mode="v2", storage_options=FAST, writers_stopped=True, give_up=give_up
                )
        with served.connect() as catalog:
            catalog.create_namespace("still_here")


def test_table_that_a_server_has_elsewhere_is_refused(ours: Served) -> None:
    fill(ours)
    with lancekeep.connect(ours.uri) as server:
        server.write("root_table", ROWS)
        server.create_namespace("ml", {"owner": "bob"})
    report = ours.there(dry_run=True)
    assert {each.name for each in report.obstacles} == {"ml", "root_table"}


def test_table_outside_of_the_root_does_not_come_back(ours: Served) -> None:
    fill(ours)
    assert ours.there().done
    with lancekeep.connect(ours.uri) as server:
        server.write("elsewhere", ROWS)
        with pytest.raises(Refused, match=r"elsewhere: .*location"):
            ours.back(writers_stopped=True)
        server.drop_table("elsewhere")
        assert ours.back(writers_stopped=True).done


def test_server_that_does_not_take_a_table_leaves_the_source_the_home(tmp_path: Path) -> None:
    above = tmp_path / "above"
    with RestAdapter("dir", {"root": str(above), "dir_listing_enabled": "false"}, port=0) as adapter:
        served = Served(str(above / "lake"), f"http://127.0.0.1:{adapter.port}", {})
        fill(served)
        with served.connect() as catalog:
            before = shown(catalog)
            with pytest.raises(LancekeepError, match="Absolute URIs are not allowed"):
                served.there()
            with pytest.raises(InvalidInput, match="expected one that contains"):
                attrs.evolve(served, options={"root": str(tmp_path / "other")}).there()
            within = attrs.evolve(served, options={"root": str(above)})
            with pytest.raises(Refused, match="cannot hold root_table: the server does not keep its properties"):
                within.there()
            assert shown(catalog) == before
            catalog.alter_table("root_table", remove=["unit"])
        native = NativeClient(uri=served.uri)
        assert native.list_tables(api.ListTablesRequest(id=[])).tables == []
        assert within.there().done


# -- kills ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def kill(monkeypatch: pytest.MonkeyPatch) -> Kill:
    return kills(monkeypatch)


def require_one_home(served: Served) -> None:
    """Check that not both homes show the table of the root."""
    found = 0
    try:
        with served.connect() as catalog:
            found += catalog.table_exists("root_table")
    except Refused:
        pass
    with lancekeep.connect(served.uri) as server:
        assert found + server.table_exists("root_table") <= 1


def test_copy_to_a_server_and_back_is_killed_after_each_write_and_completed(ours: Served, kill: Kill) -> None:
    fill(ours)
    with ours.connect() as catalog:
        before = shown(catalog)
    for goes, move in ((True, ours.there), (False, partial(ours.back, writers_stopped=True))):
        killed = 0
        while True:
            kill(killed + 1, partial(require_one_home, ours) if goes else None)
            try:
                assert move().done
            except Crash:
                killed += 1
            else:
                break
            finally:
                kill(None)
        assert killed > 2
        if goes:
            with lancekeep.connect(ours.uri) as server:
                assert shown(server) == before
    with ours.connect() as catalog:
        assert shown(catalog) == before


def test_writer_that_goes_on_loses_no_acknowledged_change(ours: Served, kill: Kill) -> None:
    fill(ours)
    kept: list[str] = []
    refused: list[str] = []
    with ours.connect() as writer:

        def write() -> None:
            kill(None)  # its own writes
            name = f"n{len(kept)}"
            try:
                writer.create_namespace(name)
                kept.append(name)
            except Refused:
                refused.append(name)
            kill(None, write)

        kill(None, write)
        assert ours.there().done
        kill(None)
    assert (len(kept) > 0, len(refused) > 2) == (True, True)
    with lancekeep.connect(ours.uri) as server:
        assert server.list_namespaces() == ["ml", *kept]


@pytest.mark.parametrize("writes", [1, 2, 5, 7])
def test_copy_to_a_server_that_is_given_up_leaves_no_table_there(ours: Served, kill: Kill, writes: int) -> None:
    fill(ours)
    with ours.connect() as catalog:
        before = shown(catalog)
    kill(writes)
    with pytest.raises(Crash):
        ours.there()
    kill(2)
    for _ in range(2):
        try:
            ours.there(give_up=True)
        except (Crash, Refused):  # refused if it is given up already
            kill(None)
    with lancekeep.connect(ours.uri) as server:
        assert [str(each) for each in server.list_all_tables()] == []
    with ours.connect() as catalog:
        assert shown(catalog) == before
    assert ours.there().done
    with pytest.raises(Refused, match="is finished"):
        ours.there(give_up=True)


def test_version_that_is_not_final_in_the_storage_is_refused(tmp_path: Path) -> None:
    above = tmp_path / "above"
    keys = {"commit_store": f"sqlite://{tmp_path}/rows.db", "storage.fsync": "false"}
    with serving(lancekeep.DirectoryNamespace(root=str(above), mode="v2", **keys)) as front:
        served = Served(str(above / "lake"), front.uri, {})
        fill(served)
        assert served.there().done
        with lancekeep.connect(front.uri) as server:
            server.write("root_table", ROWS, "append")
            versions = Path(server.describe_table("root_table").uri.removeprefix("file://"), "_versions")
        latest = min(versions.glob("*.manifest"))  # names count down
        content = latest.read_bytes()
        latest.unlink()
        with pytest.raises(Refused, match=r"root_table: the server has version 2, .* in the storage is 1"):
            served.back(writers_stopped=True)
        latest.write_bytes(content)
        assert served.back(writers_stopped=True).done


def test_catalog_that_began_on_a_server_returns_there(ours: Served) -> None:
    lance.write_dataset(ROWS, f"{ours.lake}/t.lance")
    with lancekeep.connect(ours.uri) as server:
        server.register_table("t", "lake/t.lance")
    assert ours.back(writers_stopped=True).done
    with ours.connect() as catalog:
        catalog.rename_table("t", "renamed")
        after = shown(catalog)
    assert ours.there().done
    with lancekeep.connect(ours.uri) as server:
        assert shown(server) == after


def test_copy_between_two_servers(ours: Served, tmp_path: Path) -> None:
    fill(ours)
    assert ours.there().done
    other = lancekeep.DirectoryNamespace(root=str(tmp_path), mode="v2", **{"storage.fsync": "false"})
    with serving(other) as front:
        assert lancekeep.copy_catalog(
            ours.uri, front.uri, root=ours.lake, storage_options=FAST, writers_stopped=True
        ).done
        with lancekeep.connect(ours.uri) as left, lancekeep.connect(front.uri) as server:
            assert shown(server) == shown(left)
        with pytest.raises(Refused, match="copy them from there"):
            ours.back(writers_stopped=True)


def test_command_moves_a_catalog_to_a_server(ours: Served) -> None:
    fill(ours)
    arguments = ["copy-catalog", ours.lake, ours.uri, "--mode", "v2", "--storage-option", "fsync=false", "--yes"]
    moved = CliRunner().invoke(command, arguments, obj=lancekeep)
    assert (moved.exit_code, f"{ours.uri} is the home" in moved.stdout) == (0, True), moved.output
