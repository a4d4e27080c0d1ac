"""Tables of one catalog are managed by its commit store or by the storage, each by its property."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from faults import killed_at_each_state
from lance_namespace import DeclareTableRequest, DescribeTableRequest
from rest_server import serving

import lancekeep
from lancekeep.application.catalog import directory_of
from lancekeep.application.upkeep.fsck import Kind
from lancekeep.domain.errors import InvalidInput, LancekeepError, TableAlreadyExists, Unsupported

STORAGE = {"lancekeep.managed": "storage"}
IMPLEMENTATION = {"lancekeep.managed": "implementation"}


def rows(*numbers: int) -> pa.Table:
    return pa.table({"x": list(numbers)})


def numbers(catalog: lancekeep.Catalog, table: str = "t") -> list[int]:
    """The rows as the catalog sees them, which equal the rows of the directory."""
    found = sorted(catalog.open(table).to_table()["x"].to_pylist())
    assert found == sorted(lance.dataset(uri(catalog, table)).to_table()["x"].to_pylist())
    return found


def uri(catalog: lancekeep.Catalog, table: str = "t") -> str:
    return catalog.describe_table(table).uri


def native(catalog: lancekeep.Catalog, number: int, table: str = "t") -> None:
    """Append without the catalog."""
    lance.write_dataset(rows(number), uri(catalog, table), mode="append")


def stored(catalog: lancekeep.Catalog, table: str = "t") -> list[int]:
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


@pytest.fixture(params=["sqlite", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{request.param}://{tmp_path}/commits"


@pytest.fixture
def catalog(tmp_path: Path, store: str) -> Iterator[lancekeep.Catalog]:
    with lancekeep.connect(str(tmp_path / "lake"), commit_store=store) as catalog:
        yield catalog


# -- the choice -----------------------------------------------------------------------------------------------------


def test_table_is_managed_by_the_manager_that_its_property_names(catalog: lancekeep.Catalog) -> None:
    catalog.write("s", rows(1), properties=STORAGE)
    catalog.write("i", rows(1), properties=IMPLEMENTATION)
    catalog.write("t", rows(1))
    assert [catalog.describe_table(name).managed for name in "sit"] == [False, True, True]
    assert [stored(catalog, name) for name in "sit"] == [[], [1], [1]]
    for name in "sit":
        native(catalog, 2, name)
        catalog.write(name, rows(3), "append")
        assert numbers(catalog, name) == [1, 2, 3]
        assert [entry.version for entry in catalog.versions.history(name)] == [3, 2, 1]
    assert findings(catalog) == []


def test_native_writers_learn_the_manager(catalog: lancekeep.Catalog, tmp_path: Path, store: str) -> None:
    """A native writer commits to a storage-managed table itself, and through the namespace to any other table."""
    namespace = lancekeep.DirectoryNamespace(root=str(tmp_path / "lake"), commit_store=store)
    declared = namespace.declare_table(DeclareTableRequest(id=["s"], properties=STORAGE))
    assert declared.managed_versioning is None
    assert declared.properties == STORAGE
    namespace.declare_table(DeclareTableRequest(id=["t"]))
    for name, managed in (("s", None), ("t", True)):
        lance.write_dataset(rows(1), uri(catalog, name)) if managed is None else catalog.write(
            name, rows(1), "overwrite"
        )
        described = namespace.describe_table(DescribeTableRequest(id=[name]))
        assert described.managed_versioning is managed
        handle = lance.dataset(namespace_client=namespace, table_id=[name])
        lance.write_dataset(rows(2), namespace_client=namespace, table_id=[name], mode="append")
        handle.delete("x = 1")  # rebased on the version that was committed since
        catalog.write(name, rows(3), "append")
        assert numbers(catalog, name) == [2, 3]
    assert (stored(catalog, "s"), stored(catalog, "t")) == ([], [1, 2, 3, 4])


def test_root_property_is_the_default_of_new_tables(catalog: lancekeep.Catalog) -> None:
    catalog.write("before", rows(1))
    catalog.alter_namespace([], STORAGE)
    catalog.write("t", rows(1))
    catalog.write("i", rows(1), properties=IMPLEMENTATION)
    catalog.clone("before", "clone")
    assert [catalog.describe_table(name).managed for name in ("before", "t", "i", "clone")] == [
        True,
        False,
        True,
        False,
    ]
    assert catalog.find_table("t").properties == STORAGE
    catalog.alter_namespace([], remove=["lancekeep.managed"])
    catalog.write("after", rows(1))
    assert [catalog.describe_table(name).managed for name in ("t", "after")] == [False, True]
    assert findings(catalog) == []


@pytest.mark.parametrize("wanted", [STORAGE, IMPLEMENTATION, None])
def test_registered_table_is_managed_by_the_manager_that_was_asked_for(
    catalog: lancekeep.Catalog, wanted: dict[str, str] | None
) -> None:
    catalog.write("t", rows(1), properties=STORAGE)
    catalog.write("u", rows(1))
    for name in ("t", "u"):
        location = catalog.deregister_table(name).location
        catalog.register_table(name, location, wanted)
        assert catalog.describe_table(name).managed is (wanted != STORAGE)
        native(catalog, 2, name)
        catalog.write(name, rows(3), "append")
        assert numbers(catalog, name) == [1, 2, 3]
        assert bool(stored(catalog, name)) is (wanted != STORAGE)
    assert findings(catalog) == []


def test_refusals(catalog: lancekeep.Catalog, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="expected 'implementation' or 'storage'"):
        catalog.declare_table("t", {"lancekeep.managed": "hive"})
    with pytest.raises(InvalidInput, match="the root namespace and of tables"):
        catalog.create_namespace("a", STORAGE)
    with lancekeep.connect(str(tmp_path / "plain")) as plain:
        with pytest.raises(InvalidInput, match="has no commit store"):
            plain.declare_table("t", IMPLEMENTATION)
        with pytest.raises(InvalidInput, match="has no commit store"):
            plain.alter_namespace([], IMPLEMENTATION)
        plain.write("t", rows(1), properties=STORAGE)
        assert not plain.describe_table("t").managed
    assert catalog.list_tables() == []


def test_storage_without_a_condition_manages_no_table(catalog: lancekeep.Catalog) -> None:
    commits = directory_of(catalog).commits
    commits.rows._direct = None
    catalog.write("t", rows(1))
    for refused in (
        lambda: catalog.declare_table("s", STORAGE),
        lambda: catalog.alter_table("t", STORAGE),
        lambda: catalog.alter_namespace([], STORAGE),
    ):
        with pytest.raises(Unsupported, match="no create-only write"):
            refused()
    assert catalog.list_tables() == ["t"]


def test_refused_declaration_leaves_no_release(catalog: lancekeep.Catalog) -> None:
    catalog.write("t", rows(1), properties=STORAGE)
    with pytest.raises(TableAlreadyExists):
        catalog.declare_table("t", STORAGE)
    catalog.drop_table("t", keep=0)
    catalog.write("t", rows(2))
    assert catalog.describe_table("t").managed
    assert (stored(catalog), numbers(catalog), findings(catalog)) == ([1], [2], [])


# -- the change -----------------------------------------------------------------------------------------------------


def test_change_of_the_manager_keeps_every_version(catalog: lancekeep.Catalog) -> None:
    catalog.write("t", rows(1))
    catalog.write("t", rows(2), "append")
    catalog.branches.create("t", "b")
    catalog.tags.create("t", "first", 1)
    number = 2
    for wanted in (STORAGE, IMPLEMENTATION, STORAGE):
        handle = lance.dataset(uri(catalog))
        through = catalog.open("t")
        catalog.alter_table("t", wanted)
        catalog.alter_table("t", wanted)
        handle.insert(rows(number + 1))  # a native writer with an old handle
        through.insert(rows(number + 2))  # a writer that commits through the catalog, with an old handle
        catalog.write("t", rows(number + 3), "append")
        number += 3
        assert numbers(catalog) == list(range(1, number + 1))
        assert catalog.open("t", tag="first").to_table()["x"].to_pylist() == [1]
        assert sorted(catalog.open("t", branch="b").to_table()["x"].to_pylist()) == [1, 2]
        assert findings(catalog) == []
        assert bool(stored(catalog)) is (wanted == IMPLEMENTATION)
    catalog.alter_table("t", remove=["lancekeep.managed"])
    assert catalog.describe_table("t").managed
    assert [entry.version for entry in catalog.versions.history("t")] == list(range(number, 0, -1))


def test_native_clean_up_of_a_storage_managed_table_hides_no_version(catalog: lancekeep.Catalog) -> None:
    """A commit store would miss the versions after a gap that no reader has seen."""
    catalog.write("t", rows(1))
    catalog.alter_table("t", STORAGE)
    for number in range(2, 8):
        native(catalog, number)
    lance.dataset(uri(catalog)).cleanup_old_versions(older_than=timedelta(0))
    assert numbers(catalog) == list(range(1, 8))
    assert [entry.version for entry in catalog.versions.history("t")] == [7]
    catalog.alter_table("t", IMPLEMENTATION)
    assert (numbers(catalog), stored(catalog)) == (list(range(1, 8)), [7])
    catalog.write("t", rows(8), "append")
    assert numbers(catalog) == list(range(1, 9))


def test_branches_follow_their_table(catalog: lancekeep.Catalog) -> None:
    catalog.write("t", rows(1), properties=STORAGE)
    catalog.branches.create("t", "b")
    lance.dataset(uri(catalog)).create_branch("native")
    for branch in ("b", "native"):
        dataset = lance.dataset(uri(catalog)).checkout_version((branch, None))
        dataset.insert(rows(2))
        assert sorted(catalog.open("t", branch=branch).to_table()["x"].to_pylist()) == [1, 2]
        opened: Any = catalog.open("t", branch=branch)
        opened.insert(rows(3))
        assert sorted(catalog.open("t", branch=branch).to_table()["x"].to_pylist()) == [1, 2, 3]
    root = directory_of(catalog).places.dataset_root(catalog.find_table("t"))
    commit_store = directory_of(catalog).commits.rows.stored
    assert all(commit_store.latest(root.branch(branch).base_uri) is None for branch in ("b", "native"))
    catalog.alter_table("t", IMPLEMENTATION)
    for branch in ("b", "native"):
        assert sorted(catalog.open("t", branch=branch).to_table()["x"].to_pylist()) == [1, 2, 3]
        assert commit_store.latest(root.branch(branch).base_uri) is not None
    assert findings(catalog) == []


@pytest.mark.parametrize("wanted", [STORAGE, IMPLEMENTATION])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("method", ["reserve", "copy_if_absent", "finalize"])
def test_commit_in_flight_during_a_change_is_visible_or_refused(
    catalog: lancekeep.Catalog, tmp_path: Path, store: str, wanted: dict[str, str], method: str, late: bool
) -> None:
    """The change comes just before or just after the commit store, or the storage, has answered."""
    catalog.write("t", rows(1), properties=IMPLEMENTATION if wanted == STORAGE else STORAGE)
    with lancekeep.connect(str(tmp_path / "lake"), commit_store=store) as writer:
        commits: Any = directory_of(writer).commits
        target = commits.objects if method == "copy_if_absent" else commits.rows.stored._rows
        original = getattr(target, method)
        changed: list[bool] = []

        def act(*args: Any, **kwargs: Any) -> Any:
            answer = original(*args, **kwargs) if late else None
            if not changed:
                changed.append(True)
                catalog.alter_table("t", wanted)
            return answer if late else original(*args, **kwargs)

        setattr(target, method, act)
        acknowledged = True
        try:
            writer.write("t", rows(2).to_reader(), "append")
        except LancekeepError:
            acknowledged = False
        setattr(target, method, original)
    assert changed
    assert numbers(catalog) == [1] + [2] * acknowledged
    assert catalog.describe_table("t").managed is (wanted == IMPLEMENTATION)
    native(catalog, 3)
    catalog.write("t", rows(4), "append")
    assert numbers(catalog) == [1] + [2] * acknowledged + [3, 4]
    assert {kind for kind, _ in findings(catalog)} <= {Kind.LEFTOVER}


@pytest.mark.parametrize("mode", ["compatible", "v2"])
@pytest.mark.parametrize("wanted", [STORAGE, IMPLEMENTATION])
def test_crash_during_a_change_loses_no_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, wanted: dict[str, str]
) -> None:
    now = tmp_path / "now"

    def connect() -> lancekeep.Catalog:
        return lancekeep.connect(
            str(now / "lake"),
            mode=mode,
            commit_store=f"file://{now}/commits?fsync=false",
            storage_options={"fsync": "false"},
        )

    now.mkdir()
    other = IMPLEMENTATION if wanted == STORAGE else STORAGE
    with connect() as before:
        before.write("t", rows(1), properties=other)
        before.write("t", rows(2), "append")
        before.branches.create("t", "b")
    nth = 0
    for nth in killed_at_each_state(monkeypatch, now, connect, lambda catalog: catalog.alter_table("t", wanted)):
        with connect() as catalog:
            assert numbers(catalog) == [1, 2], nth
            native(catalog, 3)
            catalog.write("t", rows(4), "append")
            assert numbers(catalog) == [1, 2, 3, 4], nth
            assert sorted(catalog.open("t", branch="b").to_table()["x"].to_pylist()) == [1, 2], nth
            assert {kind for kind, _ in findings(catalog)} <= {Kind.MANAGER, Kind.LEFTOVER}, nth
            catalog.upkeep.fsck(deep=True, repair=True, grace=0)
            assert findings(catalog) == [], nth
            catalog.alter_table("t", wanted)
            assert numbers(catalog) == [1, 2, 3, 4], nth
            assert catalog.describe_table("t").managed is (wanted == IMPLEMENTATION)
            assert bool(stored(catalog)) is (wanted == IMPLEMENTATION)
            assert findings(catalog) == [], nth
    assert nth > 3, "the process died nowhere"


def test_fsck_finds_a_lost_release_and_repair_follows_the_entry(catalog: lancekeep.Catalog) -> None:
    catalog.write("t", rows(1), properties=STORAGE)
    root = directory_of(catalog).places.dataset_root(catalog.find_table("t"))
    directory_of(catalog).commits.rows.stored.delete(root.base_uri)
    native(catalog, 2)
    assert numbers(catalog) == [1, 2]
    assert findings(catalog) == [(Kind.MANAGER, "t")]
    catalog.upkeep.fsck(deep=True, repair=True)
    assert (findings(catalog), stored(catalog)) == ([], [])
    assert numbers(catalog) == [1, 2]


# -- other operations -----------------------------------------------------------------------------------------------


def test_transaction_refuses_storage_managed_tables_beside_others(tmp_path: Path) -> None:
    with lancekeep.connect(str(tmp_path / "lake"), commit_store=f"sqlite://{tmp_path}/c.db") as catalog:
        catalog.write("s", rows(1), properties=STORAGE)
        for name in ("t", "u"):
            catalog.write(name, rows(1))
        for first, second in (("s", "t"), ("t", "s")):
            with pytest.raises(Unsupported, match="manages the versions of s "):
                write_both(catalog, first, second)
        with catalog.transaction() as transaction:
            transaction.write("s", rows(2), "append")
        with catalog.transaction() as transaction:
            transaction.write("t", rows(3), "append")
            transaction.write("u", rows(3), "append")
        assert [numbers(catalog, name) for name in "stu"] == [[1, 2], [1, 3], [1, 3]]
        assert findings(catalog) == []


@pytest.mark.parametrize("mode", ["compatible", "v2"])
def test_storage_managed_tables_move_and_return(tmp_path: Path, store: str, mode: str) -> None:
    with lancekeep.connect(str(tmp_path / "lake"), mode=mode, commit_store=store) as catalog:
        catalog.write("t", rows(1), properties=STORAGE)
        native(catalog, 2)
        catalog.rename_table("t", "u")
        native(catalog, 3, "u")
        assert numbers(catalog, "u") == [1, 2, 3]
        assert (stored(catalog, "u"), findings(catalog)) == ([], [])
        catalog.upkeep.relocate("u", "place")
        native(catalog, 4, "u")
        catalog.write("u", rows(5), "append")
        assert numbers(catalog, "u") == [1, 2, 3, 4, 5]
        assert stored(catalog, "u") == []
        catalog.drop_table("u", keep=timedelta(days=1))
        catalog.undrop("u")
        native(catalog, 6, "u")
        assert numbers(catalog, "u") == [1, 2, 3, 4, 5, 6]
        for deep in (False, True):
            catalog.clone("u", f"clone{deep}", deep=deep)
            assert catalog.open(f"clone{deep}").count_rows() == 6
        catalog.upkeep.cleanup(older_than=0, grace=0)
        assert numbers(catalog, "u") == [1, 2, 3, 4, 5, 6]
        assert len(catalog.versions.history("u")) == 1


def test_change_of_the_commit_store_keeps_the_managers(tmp_path: Path, store: str) -> None:
    other = f"sqlite://{tmp_path}/other.db"
    with lancekeep.connect(str(tmp_path / "lake"), commit_store=store) as catalog:
        catalog.write("s", rows(1), properties=STORAGE)
        catalog.write("i", rows(1))
        for at, url in enumerate((other, "conditional-put://", store, other)):
            catalog.upkeep.change_commit_store(url)
            assert [catalog.describe_table(name).managed for name in "si"] == [False, True]
            for name in "si":
                native(catalog, 2 * at + 2, name)
                catalog.write(name, rows(2 * at + 3), "append")
                assert numbers(catalog, name) == list(range(1, 2 * at + 4))
            assert findings(catalog) == []
            if url == "conditional-put://":  # the manager changes while no commit store keeps a release
                catalog.alter_table("s", IMPLEMENTATION)
                catalog.alter_table("i", STORAGE)
                catalog.alter_table("s", STORAGE)
                catalog.alter_table("i", IMPLEMENTATION)
        assert (stored(catalog, "s"), bool(stored(catalog, "i"))) == ([], True)


def test_first_commit_store_leaves_tables_to_the_storage_that_say_so(tmp_path: Path, store: str) -> None:
    with lancekeep.connect(str(tmp_path / "lake")) as catalog:
        catalog.write("s", rows(1), properties=STORAGE)
        catalog.write("t", rows(1))
        catalog.upkeep.change_commit_store(store)
        assert [catalog.describe_table(name).managed for name in "st"] == [False, True]
        assert (stored(catalog, "s"), stored(catalog, "t")) == ([], [1])
        native(catalog, 2, "s")
        assert numbers(catalog, "s") == [1, 2]
        assert findings(catalog) == []


# -- over a server --------------------------------------------------------------------------------------------------


def test_manager_over_a_server(tmp_path: Path, store: str) -> None:
    """A commit through the server is right for both managers, also by a handle from before the change."""
    namespace = lancekeep.DirectoryNamespace(root=str(tmp_path / "lake"), commit_store=store)
    with serving(namespace) as front, lancekeep.connect(front.uri) as served:
        own = namespace.catalog
        served.write("t", rows(1), properties=STORAGE)
        assert (served.describe_table("t").managed, stored(own)) == (False, [])
        native(own, 2)
        served.write("t", rows(3), "append")
        handle = served.open("t")
        own.alter_table("t", IMPLEMENTATION)
        assert served.describe_table("t").managed
        handle.insert(rows(4))
        served.write("t", rows(5), "append")
        assert (numbers(own), bool(stored(own))) == ([1, 2, 3, 4, 5], True)
        own.alter_namespace([], STORAGE)
        served.write("u", rows(1))
        assert not served.describe_table("u").managed
        with pytest.raises(InvalidInput, match="expected 'implementation' or 'storage'"):
            served.declare_table("v", {"lancekeep.managed": "both"})
        assert findings(own) == []
