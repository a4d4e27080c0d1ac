"""Tables of one catalog are managed by its commit store or by the storage, each by its property."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from faults import killed_at_each_state, killed_before_each_write
from home_kinds import HOMES, Home, home_of
from lance_namespace import DeclareTableRequest, DescribeTableRequest
from rest_server import serving

import lancekeep
from lancekeep.application.catalog import directory_of
from lancekeep.application.upkeep.fsck import Kind
from lancekeep.domain.errors import InvalidInput, LancekeepError, TableAlreadyExists, Unsupported

STORAGE = {"lancekeep.managed": "storage"}
IMPLEMENTATION = {"lancekeep.managed": "implementation"}
TABLES = ("n.s", "n.i", "n.t")


def rows(*numbers: int) -> pa.Table:
    return pa.table({"x": list(numbers)})


def numbers(catalog: lancekeep.Catalog, table: str = "n.t") -> list[int]:
    """The rows as the catalog sees them, which equal the rows of the directory."""
    found = sorted(catalog.open(table).to_table()["x"].to_pylist())
    assert found == sorted(lance.dataset(uri(catalog, table)).to_table()["x"].to_pylist())
    return found


def uri(catalog: lancekeep.Catalog, table: str = "n.t") -> str:
    return catalog.describe_table(table).uri


def native(catalog: lancekeep.Catalog, number: int, table: str = "n.t") -> None:
    """Append without the catalog."""
    lance.write_dataset(rows(number), uri(catalog, table), mode="append")


def stored(catalog: lancekeep.Catalog, table: str = "n.t") -> list[int]:
    """The versions that have rows in the commit store; none if the storage manages the table."""
    root = directory_of(catalog).places.dataset_root(catalog.find_table(table))
    found = directory_of(catalog).commits.rows.stored.list(root.base_uri, after=None, limit=None, descending=False)
    return [row.version for row in found if not row.is_release]


def write_both(catalog: lancekeep.Catalog, first: str, second: str) -> None:
    with catalog.transaction() as transaction:
        transaction.write(first, rows(2), "append")
        transaction.write(second, rows(2), "append")


def findings(catalog: lancekeep.Catalog) -> list[tuple[Kind, str]]:
    return [(finding.kind, finding.object) for finding in catalog.upkeep.fsck(deep=True, grace=0).findings]


@pytest.fixture(params=HOMES)
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    return home_of(request.param, tmp_path, request.getfixturevalue)


@pytest.fixture
def catalog(home: Home) -> Iterator[lancekeep.Catalog]:
    with home.connect() as catalog:
        yield catalog


# -- the choice -----------------------------------------------------------------------------------------------------


def test_table_is_managed_by_the_manager_that_its_property_names(catalog: lancekeep.Catalog) -> None:
    catalog.write("n.s", rows(1), properties=STORAGE)
    catalog.write("n.i", rows(1), properties=IMPLEMENTATION)
    catalog.write("n.t", rows(1))
    assert [catalog.describe_table(name).managed for name in TABLES] == [False, True, True]
    assert [stored(catalog, name) for name in TABLES] == [[], [1], [1]]
    for name in TABLES:
        native(catalog, 2, name)
        catalog.write(name, rows(3), "append")
        assert numbers(catalog, name) == [1, 2, 3]
        assert [entry.version for entry in catalog.versions.history(name)] == [3, 2, 1]
    assert findings(catalog) == []


def test_native_writers_learn_the_manager(catalog: lancekeep.Catalog, home: Home) -> None:
    """A native writer commits to a storage-managed table itself, and through the namespace to any other table."""
    namespace = home.namespace()
    declared = namespace.declare_table(DeclareTableRequest(id=["n", "s"], properties=STORAGE))
    assert declared.managed_versioning is None
    assert declared.properties == STORAGE
    namespace.declare_table(DeclareTableRequest(id=["n", "t"]))
    for name, managed in (("n.s", None), ("n.t", True)):
        lance.write_dataset(rows(1), uri(catalog, name)) if managed is None else catalog.write(
            name, rows(1), "overwrite"
        )
        described = namespace.describe_table(DescribeTableRequest(id=name.split(".")))
        assert described.managed_versioning is managed
        handle = lance.dataset(namespace_client=namespace, table_id=name.split("."))
        lance.write_dataset(rows(2), namespace_client=namespace, table_id=name.split("."), mode="append")
        handle.delete("x = 1")  # rebased on the version that was committed since
        catalog.write(name, rows(3), "append")
        assert numbers(catalog, name) == [2, 3]
    assert (stored(catalog, "n.s"), stored(catalog, "n.t")) == ([], [1, 2, 3, 4])


def test_root_property_is_the_default_of_new_tables(catalog: lancekeep.Catalog) -> None:
    catalog.write("n.before", rows(1))
    catalog.alter_namespace([], STORAGE)
    catalog.write("n.t", rows(1))
    catalog.write("n.i", rows(1), properties=IMPLEMENTATION)
    catalog.clone("n.before", "n.clone")
    assert [catalog.describe_table(name).managed for name in ("n.before", "n.t", "n.i", "n.clone")] == [
        True,
        False,
        True,
        False,
    ]
    assert catalog.find_table("n.t").properties == STORAGE
    catalog.alter_namespace([], remove=["lancekeep.managed"])
    catalog.write("n.after", rows(1))
    assert [catalog.describe_table(name).managed for name in ("n.t", "n.after")] == [False, True]
    assert findings(catalog) == []


@pytest.mark.parametrize("wanted", [STORAGE, IMPLEMENTATION, None])
def test_registered_table_is_managed_by_the_manager_that_was_asked_for(
    catalog: lancekeep.Catalog, wanted: dict[str, str] | None
) -> None:
    catalog.write("n.t", rows(1), properties=STORAGE)
    catalog.write("n.u", rows(1))
    for name in ("n.t", "n.u"):
        location = catalog.deregister_table(name).location
        catalog.register_table(name, location, wanted)
        assert catalog.describe_table(name).managed is (wanted != STORAGE)
        native(catalog, 2, name)
        catalog.write(name, rows(3), "append")
        assert numbers(catalog, name) == [1, 2, 3]
        assert bool(stored(catalog, name)) is (wanted != STORAGE)
    assert findings(catalog) == []


def test_refusals(catalog: lancekeep.Catalog) -> None:
    with pytest.raises(InvalidInput, match="expected 'implementation' or 'storage'"):
        catalog.declare_table("n.t", {"lancekeep.managed": "hive"})
    with pytest.raises(InvalidInput, match="the root namespace and of tables"):
        catalog.create_namespace("a", STORAGE)
    assert catalog.list_tables("n") == []


def test_catalog_without_a_commit_store_leaves_every_table_to_the_storage(tmp_path: Path) -> None:
    with lancekeep.connect(str(tmp_path / "plain")) as plain:
        with pytest.raises(InvalidInput, match="has no commit store"):
            plain.declare_table("t", IMPLEMENTATION)
        with pytest.raises(InvalidInput, match="has no commit store"):
            plain.alter_namespace([], IMPLEMENTATION)
        plain.write("t", rows(1), properties=STORAGE)
        assert not plain.describe_table("t").managed


def test_storage_without_a_condition_manages_no_table(catalog: lancekeep.Catalog) -> None:
    commits = directory_of(catalog).commits
    commits.rows._direct = None
    catalog.write("n.t", rows(1))
    for refused in (
        lambda: catalog.declare_table("n.s", STORAGE),
        lambda: catalog.alter_table("n.t", STORAGE),
        lambda: catalog.alter_namespace([], STORAGE),
    ):
        with pytest.raises(Unsupported, match="no create-only write"):
            refused()
    assert catalog.list_tables("n") == ["t"]


def test_refused_declaration_leaves_no_release(catalog: lancekeep.Catalog) -> None:
    catalog.write("n.t", rows(1), properties=STORAGE)
    with pytest.raises(TableAlreadyExists):
        catalog.declare_table("n.t", STORAGE)
    catalog.drop_table("n.t", keep=0)
    catalog.write("n.t", rows(2))
    assert catalog.describe_table("n.t").managed
    assert (stored(catalog), numbers(catalog), findings(catalog)) == ([1], [2], [])


# -- the change -----------------------------------------------------------------------------------------------------


def test_change_of_the_manager_keeps_every_version(catalog: lancekeep.Catalog) -> None:
    catalog.write("n.t", rows(1))
    catalog.write("n.t", rows(2), "append")
    catalog.branches.create("n.t", "b")
    catalog.tags.create("n.t", "first", 1)
    number = 2
    for wanted in (STORAGE, IMPLEMENTATION, STORAGE):
        handle = lance.dataset(uri(catalog))
        through = catalog.open("n.t")
        catalog.alter_table("n.t", wanted)
        catalog.alter_table("n.t", wanted)
        handle.insert(rows(number + 1))  # a native writer with an old handle
        through.insert(rows(number + 2))  # a writer that commits through the catalog, with an old handle
        catalog.write("n.t", rows(number + 3), "append")
        number += 3
        assert numbers(catalog) == list(range(1, number + 1))
        assert catalog.open("n.t", tag="first").to_table()["x"].to_pylist() == [1]
        assert sorted(catalog.open("n.t", branch="b").to_table()["x"].to_pylist()) == [1, 2]
        assert findings(catalog) == []
        assert bool(stored(catalog)) is (wanted == IMPLEMENTATION)
    catalog.alter_table("n.t", remove=["lancekeep.managed"])
    assert catalog.describe_table("n.t").managed
    assert [entry.version for entry in catalog.versions.history("n.t")] == list(range(number, 0, -1))


def test_native_clean_up_of_a_storage_managed_table_hides_no_version(catalog: lancekeep.Catalog) -> None:
    """A commit store would miss the versions after a gap that no reader has seen."""
    catalog.write("n.t", rows(1))
    catalog.alter_table("n.t", STORAGE)
    for number in range(2, 8):
        native(catalog, number)
    lance.dataset(uri(catalog)).cleanup_old_versions(older_than=timedelta(0))
    assert numbers(catalog) == list(range(1, 8))
    assert [entry.version for entry in catalog.versions.history("n.t")] == [7]
    catalog.alter_table("n.t", IMPLEMENTATION)
    assert (numbers(catalog), stored(catalog)) == (list(range(1, 8)), [7])
    catalog.write("n.t", rows(8), "append")
    assert numbers(catalog) == list(range(1, 9))


def test_branches_follow_their_table(catalog: lancekeep.Catalog) -> None:
    catalog.write("n.t", rows(1), properties=STORAGE)
    catalog.branches.create("n.t", "b")
    lance.dataset(uri(catalog)).create_branch("native")
    for branch in ("b", "native"):
        dataset = lance.dataset(uri(catalog)).checkout_version((branch, None))
        dataset.insert(rows(2))
        assert sorted(catalog.open("n.t", branch=branch).to_table()["x"].to_pylist()) == [1, 2]
        opened: Any = catalog.open("n.t", branch=branch)
        opened.insert(rows(3))
        assert sorted(catalog.open("n.t", branch=branch).to_table()["x"].to_pylist()) == [1, 2, 3]
    root = directory_of(catalog).places.dataset_root(catalog.find_table("n.t"))
    commit_store = directory_of(catalog).commits.rows.stored
    assert all(commit_store.latest(root.branch(branch).base_uri) is None for branch in ("b", "native"))
    catalog.alter_table("n.t", IMPLEMENTATION)
    for branch in ("b", "native"):
        assert sorted(catalog.open("n.t", branch=branch).to_table()["x"].to_pylist()) == [1, 2, 3]
        assert commit_store.latest(root.branch(branch).base_uri) is not None
    assert findings(catalog) == []


@pytest.mark.parametrize("wanted", [STORAGE, IMPLEMENTATION])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("method", ["reserve", "copy_if_absent", "finalize"])
def test_commit_in_flight_during_a_change_is_visible_or_refused(
    catalog: lancekeep.Catalog, home: Home, wanted: dict[str, str], method: str, late: bool
) -> None:
    """The change comes just before or just after the commit store, or the storage, has answered."""
    catalog.write("n.t", rows(1), properties=IMPLEMENTATION if wanted == STORAGE else STORAGE)
    with home.connect() as writer:
        commits: Any = directory_of(writer).commits
        target = commits.objects if method == "copy_if_absent" else commits.rows.stored._rows
        original = getattr(target, method)
        changed: list[bool] = []

        def act(*args: Any, **kwargs: Any) -> Any:
            answer = original(*args, **kwargs) if late else None
            if not changed:
                changed.append(True)
                catalog.alter_table("n.t", wanted)
            return answer if late else original(*args, **kwargs)

        setattr(target, method, act)
        acknowledged = True
        try:
            writer.write("n.t", rows(2).to_reader(), "append")
        except LancekeepError:
            acknowledged = False
        setattr(target, method, original)
    assert changed
    assert numbers(catalog) == [1] + [2] * acknowledged
    assert catalog.describe_table("n.t").managed is (wanted == IMPLEMENTATION)
    native(catalog, 3)
    catalog.write("n.t", rows(4), "append")
    assert numbers(catalog) == [1] + [2] * acknowledged + [3, 4]
    assert {kind for kind, _ in findings(catalog)} <= {Kind.LEFTOVER}


@pytest.mark.parametrize("mode", ["compatible", "v2"])
@pytest.mark.parametrize("wanted", [STORAGE, IMPLEMENTATION])
def test_crash_during_a_change_loses_no_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, wanted: dict[str, str]
) -> None:
    home = Home(tmp_path / "now", {"mode": mode, "commit_store": f"file://{tmp_path}/now/commits?fsync=false"}, "")
    home.directory.mkdir()
    nth = 0
    with home.connect() as before:
        of_other_manager(before, "n.t", wanted)
    for nth in killed_at_each_state(
        monkeypatch, home.directory, home.connect, lambda catalog: catalog.alter_table("n.t", wanted)
    ):
        with home.connect() as catalog:
            check_after_crash(catalog, "n.t", wanted, nth)
    assert nth > 3, "the process died nowhere"


@pytest.mark.parametrize("home", ["postgres", "hive"], indirect=True)
@pytest.mark.parametrize("wanted", [STORAGE, IMPLEMENTATION])
def test_crash_during_a_change_in_a_server_loses_no_version(
    home: Home, monkeypatch: pytest.MonkeyPatch, wanted: dict[str, str]
) -> None:
    """Each kill has a table of its own, because the server cannot be set back."""
    nth = 0
    with home.connect() as before:
        of_other_manager(before, "n.t1", wanted)
    for nth in killed_before_each_write(
        monkeypatch, home.connect, lambda catalog, nth: catalog.alter_table(f"n.t{nth}", wanted)
    ):
        with home.connect() as catalog:
            check_after_crash(catalog, f"n.t{nth}", wanted, nth)
            catalog.drop_table(f"n.t{nth}", keep=0)
            of_other_manager(catalog, f"n.t{nth + 1}", wanted)
    assert nth > 3, "the process died nowhere"


def of_other_manager(catalog: lancekeep.Catalog, table: str, wanted: dict[str, str]) -> None:
    """Create a table with two versions and a branch."""
    catalog.write(table, rows(1), properties=IMPLEMENTATION if wanted == STORAGE else STORAGE)
    catalog.write(table, rows(2), "append")
    catalog.branches.create(table, "b")


def check_after_crash(catalog: lancekeep.Catalog, table: str, wanted: dict[str, str], nth: int) -> None:
    """Check that a stopped change of the manager can be completed, and repaired, without loss."""
    assert numbers(catalog, table) == [1, 2], nth
    native(catalog, 3, table)
    catalog.write(table, rows(4), "append")
    assert numbers(catalog, table) == [1, 2, 3, 4], nth
    assert sorted(catalog.open(table, branch="b").to_table()["x"].to_pylist()) == [1, 2], nth
    assert {kind for kind, _ in findings(catalog)} <= {Kind.MANAGER, Kind.LEFTOVER}, nth
    catalog.upkeep.fsck(deep=True, repair=True, grace=0)
    assert findings(catalog) == [], nth
    catalog.alter_table(table, wanted)
    assert numbers(catalog, table) == [1, 2, 3, 4], nth
    assert catalog.describe_table(table).managed is (wanted == IMPLEMENTATION)
    assert bool(stored(catalog, table)) is (wanted == IMPLEMENTATION)
    assert findings(catalog) == [], nth


def test_fsck_finds_a_lost_release_and_repair_follows_the_entry(catalog: lancekeep.Catalog) -> None:
    catalog.write("n.t", rows(1), properties=STORAGE)
    root = directory_of(catalog).places.dataset_root(catalog.find_table("n.t"))
    directory_of(catalog).commits.rows.stored.delete(root.base_uri)
    native(catalog, 2)
    assert numbers(catalog) == [1, 2]
    assert findings(catalog) == [(Kind.MANAGER, "n.t")]
    catalog.upkeep.fsck(deep=True, repair=True)
    assert (findings(catalog), stored(catalog)) == ([], [])
    assert numbers(catalog) == [1, 2]


# -- other operations -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("home", ["sqlite", "postgres"], indirect=True)  # others commit one table at a time
def test_transaction_refuses_storage_managed_tables_beside_others(home: Home) -> None:
    with home.connect() as catalog:
        catalog.write("n.s", rows(1), properties=STORAGE)
        for name in ("n.t", "n.u"):
            catalog.write(name, rows(1))
        for first, second in (("n.s", "n.t"), ("n.t", "n.s")):
            with pytest.raises(Unsupported, match=r"manages the versions of n\.s "):
                write_both(catalog, first, second)
        with catalog.transaction() as transaction:
            transaction.write("n.s", rows(2), "append")
        with catalog.transaction() as transaction:
            transaction.write("n.t", rows(3), "append")
            transaction.write("n.u", rows(3), "append")
        assert [numbers(catalog, name) for name in ("n.s", "n.t", "n.u")] == [[1, 2], [1, 3], [1, 3]]
        assert findings(catalog) == []


@pytest.mark.parametrize(
    ("home", "mode"),
    [("sqlite", "compatible"), ("sqlite", "v2"), ("file", "v2"), ("postgres", None), ("hive", None)],
    indirect=["home"],
)
def test_storage_managed_tables_move_and_return(home: Home, mode: str | None) -> None:
    with home.connect(**({} if mode is None else {"mode": mode})) as catalog:
        catalog.write("n.t", rows(1), properties=STORAGE)
        native(catalog, 2)
        catalog.rename_table("n.t", "n.u")
        native(catalog, 3, "n.u")
        assert numbers(catalog, "n.u") == [1, 2, 3]
        assert (stored(catalog, "n.u"), findings(catalog)) == ([], [])
        catalog.upkeep.relocate("n.u", "place")
        native(catalog, 4, "n.u")
        catalog.write("n.u", rows(5), "append")
        assert numbers(catalog, "n.u") == [1, 2, 3, 4, 5]
        assert stored(catalog, "n.u") == []
        catalog.drop_table("n.u", keep=timedelta(days=1))
        catalog.undrop("n.u")
        native(catalog, 6, "n.u")
        assert numbers(catalog, "n.u") == [1, 2, 3, 4, 5, 6]
        for deep in (False, True):
            catalog.clone("n.u", f"n.clone_{deep}".lower(), deep=deep)
            assert catalog.open(f"n.clone_{deep}".lower()).count_rows() == 6
        catalog.upkeep.cleanup(older_than=0, grace=0)
        assert numbers(catalog, "n.u") == [1, 2, 3, 4, 5, 6]
        assert len(catalog.versions.history("n.u")) == 1


def test_change_of_the_commit_store_keeps_the_managers(home: Home) -> None:
    store, other = home.settings["commit_store"], home.other
    with home.connect() as catalog:
        catalog.write("n.s", rows(1), properties=STORAGE)
        catalog.write("n.i", rows(1))
        for at, url in enumerate((other, "conditional-put://", store, other)):
            catalog.upkeep.change_commit_store(url)
            assert [catalog.describe_table(name).managed for name in ("n.s", "n.i")] == [False, True]
            for name in ("n.s", "n.i"):
                native(catalog, 2 * at + 2, name)
                catalog.write(name, rows(2 * at + 3), "append")
                assert numbers(catalog, name) == list(range(1, 2 * at + 4))
            assert findings(catalog) == []
            if url == "conditional-put://":  # the manager changes while no commit store keeps a release
                catalog.alter_table("n.s", IMPLEMENTATION)
                catalog.alter_table("n.i", STORAGE)
                catalog.alter_table("n.s", STORAGE)
                catalog.alter_table("n.i", IMPLEMENTATION)
        assert (stored(catalog, "n.s"), bool(stored(catalog, "n.i"))) == ([], True)


def test_first_commit_store_leaves_tables_to_the_storage_that_say_so(home: Home) -> None:
    with home.connect(commit_store=None if "impl" not in home.settings else "conditional-put://") as catalog:
        catalog.write("n.s", rows(1), properties=STORAGE)
        catalog.write("n.t", rows(1))
        catalog.upkeep.change_commit_store(home.settings["commit_store"])
        assert [catalog.describe_table(name).managed for name in ("n.s", "n.t")] == [False, True]
        assert (stored(catalog, "n.s"), stored(catalog, "n.t")) == ([], [1])
        native(catalog, 2, "n.s")
        assert numbers(catalog, "n.s") == [1, 2]
        assert findings(catalog) == []


# -- over a server --------------------------------------------------------------------------------------------------


def test_manager_over_a_server(home: Home) -> None:
    """A commit through the server is right for both managers, also by a handle from before the change."""
    namespace = home.namespace()
    with serving(namespace) as front, lancekeep.connect(front.uri) as served:
        own = namespace.catalog
        served.write("n.t", rows(1), properties=STORAGE)
        assert (served.describe_table("n.t").managed, stored(own)) == (False, [])
        native(own, 2)
        served.write("n.t", rows(3), "append")
        handle = served.open("n.t")
        own.alter_table("n.t", IMPLEMENTATION)
        assert served.describe_table("n.t").managed
        handle.insert(rows(4))
        served.write("n.t", rows(5), "append")
        assert (numbers(own), bool(stored(own))) == ([1, 2, 3, 4, 5], True)
        own.alter_namespace([], STORAGE)
        served.write("n.u", rows(1))
        assert not served.describe_table("n.u").managed
        with pytest.raises(InvalidInput, match="expected 'implementation' or 'storage'"):
            served.declare_table("n.v", {"lancekeep.managed": "both"})
        assert findings(own) == []
