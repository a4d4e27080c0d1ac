"""Renaming, altering, modes, options and names: every operation of the catalog and of the namespace interface."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import lance
import lance_namespace as api
import pyarrow as pa
import pytest
from deployments import bucket, s3_options
from lance.namespace import DirectoryNamespace as NativeNamespace
from lance_namespace import errors as api_errors
from writers import stream

import lancekeep
from lancekeep.application.catalog import directory_of, services_of
from lancekeep.application.upkeep.relocation import Relocation
from lancekeep.application.upkeep.renames import Renames
from lancekeep.ports.object_store import ObjectInfo

TABLE = pa.table({"a": pa.array([1, 2, 3], pa.int64())})
STORES = ("sqlite", "conditional-put", "none")


def connect(directory: Path, store: str = "sqlite", **properties: str) -> lancekeep.DirectoryNamespace:
    """A namespace at ``directory/lake``, in compatibility mode unless ``properties`` say otherwise."""
    url = {"sqlite": f"sqlite://{directory}/commits.db", "conditional-put": "conditional-put://"}.get(store)
    if url is not None:
        properties["commit_store"] = url
    return lancekeep.DirectoryNamespace(root=str(directory / "lake"), **properties)


@pytest.fixture
def namespace(tmp_path: Path) -> lancekeep.DirectoryNamespace:
    return connect(tmp_path)


@pytest.fixture
def catalog(namespace: lancekeep.DirectoryNamespace) -> lancekeep.Catalog:
    return namespace.catalog


def directories(tmp_path: Path) -> list[str]:
    """Return the paths below the root, without those of the manifest table."""
    return sorted(
        entry.name for entry in (tmp_path / "lake").iterdir() if entry.is_dir() and entry.name != "__manifest"
    )


def together(*acts: Callable[[], Any]) -> list[Any]:
    """What each of some acts that begin at the same moment returned, or raised on purpose."""
    barrier = Barrier(len(acts))
    results: list[Any] = [None] * len(acts)

    def run(number: int) -> None:
        barrier.wait()
        try:
            results[number] = acts[number]()
        except (lancekeep.LancekeepError, api_errors.LanceNamespaceError) as error:
            results[number] = error

    threads = [Thread(target=run, args=(number,)) for number in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


# -- altering ----------------------------------------------------------------------------------------------------


def test_altered_properties_keep_other_properties(catalog: lancekeep.Catalog) -> None:
    catalog.create_namespace("n", {"a": "1", "b": "2"})
    catalog.write("n.t", TABLE, properties={"a": "1", "b": "2"})
    assert catalog.alter_namespace("n", {"c": "3"}, ["a", "absent"]).properties == {"b": "2", "c": "3"}
    assert catalog.describe_namespace("n").properties == {"b": "2", "c": "3"}
    assert catalog.alter_table("n.t", set={"b": "x"}, remove=["a"]).properties == {"b": "x"}
    assert catalog.describe_table("n.t").properties == {"b": "x"}
    catalog.alter_namespace("", {"owner": "Zoë", "gone": "soon"})
    catalog.alter_namespace("", remove=["gone"])
    properties = catalog.describe_namespace("").properties
    assert properties["owner"] == "Zoë"
    assert "gone" not in properties
    assert "lancekeep.commit_store" in properties
    assert catalog.open("n.t").count_rows() == 3


def test_changes_of_properties_that_mean_nothing_are_refused(catalog: lancekeep.Catalog) -> None:
    catalog.create_namespace("n")
    before = catalog.describe_namespace("").properties
    wrong: tuple[tuple[Any, Any], ...] = (
        ({"lancekeep.commit_store": "x"}, []),
        ({}, ["lancekeep.commit_store"]),
        ({"a": "1"}, ["a"]),
        ({"a": 1}, []),
        ({}, [1]),
        ({}, "name"),
    )
    for values, removed in wrong:
        for act in (catalog.alter_namespace, catalog.alter_table):
            with pytest.raises(lancekeep.InvalidInput):
                act("", values, removed)
    with pytest.raises(lancekeep.InvalidInput, match="the catalog's own"):
        catalog.declare_table("t", {"lancekeep.x": "y"})
    with pytest.raises(lancekeep.NamespaceNotFound):
        catalog.alter_namespace("missing", {"a": "1"})
    with pytest.raises(lancekeep.TableNotFound):
        catalog.alter_table("n", {"a": "1"})
    assert catalog.describe_namespace("").properties == before


# -- renaming ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", STORES)
def test_rename_keeps_data_history_tags_and_properties(tmp_path: Path, store: str) -> None:
    catalog = connect(tmp_path, store).catalog
    catalog.create_namespace("n")
    catalog.write("t", TABLE, properties={"k": "v"})
    catalog.write("t", TABLE, "append")
    catalog.open("t").create_scalar_index("a", "BTREE")
    catalog.open("t").delete("a = 1")
    catalog.open("t").tags.create("first", 1)
    before = catalog.versions.history("t")
    source = catalog.find_table("t")
    assert source.location == "t.lance"
    renamed = catalog.rename_table("t", "n.u")
    assert catalog.find_table("n.u") == renamed
    assert renamed.location.endswith("_n$u")
    assert renamed.properties == {"k": "v"}
    assert directories(tmp_path) == [renamed.location]
    assert catalog.versions.history("n.u") == before
    assert catalog.open("n.u").to_table(filter="a = 2").num_rows == 2
    assert catalog.open("n.u", tag="first").count_rows() == 3
    assert catalog.write("n.u", TABLE, "append").version == before[0].version + 1
    assert lance.dataset(services_of(catalog).uri(renamed)).count_rows() == 7
    assert not catalog.table_exists("t")
    assert catalog.write("t", TABLE).version == 1
    assert catalog.find_table("t").location == "t.lance"


def test_rename_of_v2_directory_moves_no_file(tmp_path: Path) -> None:
    catalog = connect(tmp_path, dir_listing_enabled="false").catalog
    catalog.create_namespace("n")
    catalog.write("t", TABLE)
    catalog.open("t").create_branch("b").insert(TABLE)
    location = catalog.find_table("t").location
    held = catalog.open("t")
    assert catalog.rename_table("t", "n.u").location == location
    assert catalog.rename_table("n.u", ["n", "dotted.name"]).location == location
    assert directories(tmp_path) == [location]
    assert catalog.open(["n", "dotted.name"], branch="b").count_rows() == 6
    with pytest.raises(OSError, match="Commit result for version 2 is unknown"):
        held.insert(TABLE)
    assert catalog.open(["n", "dotted.name"]).version == 1


def test_rename_in_v2_mode_keeps_v1_directory_and_frees_the_name(tmp_path: Path) -> None:
    compatible, v2 = connect(tmp_path).catalog, connect(tmp_path, dir_listing_enabled="false").catalog
    compatible.write("t", TABLE)
    assert v2.rename_table("t", "u").location == "t.lance"
    assert compatible.open("u").count_rows() == 3
    compatible.write("t", TABLE.slice(0, 1))
    assert compatible.find_table("t").location.endswith("_t")
    assert compatible.open("u").count_rows() == 3


def test_declared_table_is_renamed(tmp_path: Path, catalog: lancekeep.Catalog) -> None:
    catalog.declare_table("t", {"k": "v"})
    renamed = catalog.rename_table("t", "u")
    assert catalog.describe_table("u").version is None
    assert directories(tmp_path) == [renamed.location]
    assert (tmp_path / "lake" / renamed.location / ".lance-reserved").exists()


def test_renames_that_cannot_be_are_refused_and_change_nothing(tmp_path: Path, catalog: lancekeep.Catalog) -> None:
    catalog.create_namespace("n")
    catalog.write("t", TABLE)
    catalog.write("u", TABLE)
    before = directories(tmp_path)
    for source, target, error in (
        ("missing", "x", lancekeep.TableNotFound),
        ("n", "x", lancekeep.TableNotFound),
        ("t", "u", lancekeep.TableAlreadyExists),
        ("t", "t", lancekeep.TableAlreadyExists),
        ("t", "n", lancekeep.TableAlreadyExists),
        ("t", "", lancekeep.TableAlreadyExists),
        ("t", "missing.x", lancekeep.NamespaceNotFound),
        ("t", ["a/b"], lancekeep.InvalidInput),
    ):
        with pytest.raises(error):
            catalog.rename_table(source, target)
    assert directories(tmp_path) == before
    assert catalog.list_tables() == ["t", "u"]


def test_rename_of_v1_table_with_branches_is_refused(tmp_path: Path, catalog: lancekeep.Catalog) -> None:
    catalog.write("t", TABLE)
    catalog.open("t").create_branch("b/c").insert(TABLE)
    with pytest.raises(lancekeep.Refused, match=r"has the branch 'b/c'.*Delete the branches first"):
        catalog.rename_table("t", "u")
    assert directories(tmp_path) == ["t.lance"]
    assert catalog.open("t", branch="b/c").count_rows() == 6


def interrupted(monkeypatch: pytest.MonkeyPatch, step: str, act: Callable[[], Any], when: str) -> None:
    """``act`` happens ``before`` or ``after`` one step of the next relocations."""
    step_itself = getattr(Relocation, step)

    def with_act(self: Relocation) -> None:
        if when == "before":
            act()
        step_itself(self)
        if when == "after":
            act()

    monkeypatch.setattr(Relocation, step, with_act)


@pytest.mark.parametrize("store", STORES)
def test_commit_between_copy_and_rename_is_moved(tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog, other = connect(tmp_path, store).catalog, connect(tmp_path, store).catalog
    catalog.write("t", TABLE)
    other.open("t").tags.create("moving", 1)

    def commit() -> None:
        for _ in range(2):
            other.write("t", TABLE, "append")
        other.open("t").delete("a = 1")
        other.open("t").tags.update("moving", 3)

    acts = [commit]
    interrupted(monkeypatch, "copy", lambda: acts.pop()() if acts else None, "after")
    catalog.rename_table("t", "u")
    assert not acts
    assert [entry.version for entry in catalog.versions.history("u")] == [4, 3, 2, 1]
    assert catalog.open("u").count_rows() == 6
    assert catalog.open("u", tag="moving").count_rows() == 9
    assert len(directories(tmp_path)) == 1


def test_rename_keeps_contradicting_versions_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = connect(tmp_path, "none").catalog
    catalog.write("t", TABLE)
    old = services_of(catalog).uri(catalog.find_table("t"))

    def commit_twice() -> None:
        catalog.write("u", TABLE.slice(0, 1), "append")
        for _ in range(2):
            lance.write_dataset(TABLE, old, mode="append")  # a native writer outside the catalog

    interrupted(monkeypatch, "carry_over", commit_twice, "before")
    with pytest.raises(lancekeep.Damaged, match=r"moved from .*t\.lance to .*_u, but .* each have a _versions/"):
        catalog.rename_table("t", "u")
    new = services_of(catalog).uri(catalog.find_table("u"))
    assert (lance.dataset(new).version, lance.dataset(new).count_rows()) == (2, 4)
    assert (lance.dataset(old).version, lance.dataset(old).count_rows()) == (3, 9)


def test_rename_gives_up_if_a_writer_keeps_committing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = connect(tmp_path).catalog
    catalog.write("t", TABLE)
    list_versions = Relocation._round

    def round_beside_a_writer(self: Relocation, seen: set[str]) -> set[str]:
        catalog.write("t", TABLE, "append")
        return list_versions(self, seen)

    monkeypatch.setattr(Relocation, "_round", round_beside_a_writer)
    with pytest.raises(lancekeep.ConcurrentModification, match="other writers kept committing while it was copied"):
        catalog.rename_table("t", "u")
    assert directories(tmp_path) == ["t.lance"]
    assert catalog.open("t").count_rows() == 63
    assert not catalog.table_exists("u")


def test_version_is_copied_after_all_files_that_it_names(
    tmp_path: Path, catalog: lancekeep.Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog.write("t", TABLE)
    objects = directory_of(catalog).commits.objects
    list_itself, waiting = objects.list, [True]

    def list_beside_a_writer(prefix: str) -> Iterator[ObjectInfo]:
        for info in list_itself(prefix):
            if waiting and prefix.endswith("/t.lance/") and "/_transactions/" in info.key:
                waiting.clear()
                catalog.open("t").delete("a = 1")  # its file is in a directory that this listing has passed already
            yield info

    seen: list[int] = []
    monkeypatch.setattr(objects, "list", list_beside_a_writer)
    interrupted(monkeypatch, "carry_over", lambda: seen.extend(catalog.open("u").to_table()["a"].to_pylist()), "before")
    catalog.rename_table("t", "u")
    assert not waiting
    assert seen == [2, 3]  # as soon as the table has its new name


@pytest.mark.parametrize("store", STORES)
def test_table_recreated_during_the_copy_is_renamed_completely(
    tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its versions have the numbers of those that were seen, and were gone when they were to be copied."""
    catalog, other = connect(tmp_path, store).catalog, connect(tmp_path, store).catalog
    catalog.write("t", TABLE)
    copy_versions = Relocation._copy_versions

    def drop_first(self: Relocation, infos: Any) -> None:
        if infos and not dropped:
            dropped.append(other.drop_table("t"))
        copy_versions(self, infos)

    dropped: list[Any] = []
    monkeypatch.setattr(Relocation, "_copy_versions", drop_first)
    interrupted(monkeypatch, "begin", lambda: other.write("t", TABLE.slice(0, 1)), "after")
    catalog.rename_table("t", "u")
    assert dropped
    assert catalog.open("u").to_table()["a"].to_pylist() == [1]
    assert len(directories(tmp_path)) == 1


def test_refused_declaration_keeps_the_reservation_that_replaced_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, other = connect(tmp_path).catalog, connect(tmp_path).catalog

    def refused(_: Any, **given: Any) -> None:
        monkeypatch.undo()
        other.drop_table("t")  # a table for V1 readers, and so for all, since it was reserved
        other.declare_table("t")
        raise lancekeep.ConcurrentModification("other writers kept winning")

    monkeypatch.setattr(directory_of(catalog).ledger, "apply", refused)
    for refusal in ("other writers kept winning", "has just taken|files lie in|is taken"):
        with pytest.raises((lancekeep.TableAlreadyExists, lancekeep.ConcurrentModification), match=refusal):
            catalog.declare_table("t", {"mine": "yes"})
    assert (tmp_path / "lake" / "t.lance" / ".lance-reserved").exists()
    assert other.find_table("t").properties == {}


def test_first_of_two_reservations_to_be_entered_declares_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, other = connect(tmp_path).catalog, connect(tmp_path).catalog
    enter = directory_of(catalog).ledger.apply

    def overtaken(decide: Any, **given: Any) -> Any:
        monkeypatch.undo()
        other.drop_table("t")
        other.declare_table("t", {"theirs": "yes"})
        return enter(decide, **given)

    monkeypatch.setattr(directory_of(catalog).ledger, "apply", overtaken)
    with pytest.raises(lancekeep.TableAlreadyExists):
        catalog.declare_table("t", {"mine": "yes"})
    assert other.find_table("t").properties == {"theirs": "yes"}
    assert (tmp_path / "lake" / "t.lance" / ".lance-reserved").exists()


@pytest.mark.parametrize("act", ["alter", "migrate"])
def test_owner_may_declare_reservation_that_another_writer_entered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    catalog, other = connect(tmp_path).catalog, connect(tmp_path).catalog
    enter = directory_of(catalog).ledger.apply

    def entered(decide: Any, **given: Any) -> Any:
        monkeypatch.undo()
        other.upkeep.migrate() if act == "migrate" else other.alter_table("t", {"theirs": "yes"})
        assert "mine" not in other.find_table("t").properties
        assert not any(name.startswith("lancekeep.") for name in other.describe_table("t").properties)
        return enter(decide, **given)

    monkeypatch.setattr(directory_of(catalog).ledger, "apply", entered)
    catalog.declare_table("t", {"mine": "yes"})
    assert other.find_table("t").properties == {"mine": "yes"} | ({"theirs": "yes"} if act == "alter" else {})
    entry = directory_of(other).ledger.view().find("t")
    assert entry is not None
    assert entry.properties == dict(other.find_table("t").properties)
    with pytest.raises(lancekeep.TableAlreadyExists):
        catalog.declare_table("t")


@pytest.mark.parametrize("store", STORES)
def test_unregistered_v1_table_is_renamed(tmp_path: Path, store: str) -> None:
    catalog = connect(tmp_path, store).catalog
    catalog.create_namespace("n")
    lance.write_dataset(TABLE, str(tmp_path / "lake" / "plain.lance"))
    renamed = catalog.rename_table("plain", "n.u")
    assert catalog.list_tables() == []
    assert directories(tmp_path) == [renamed.location]
    assert catalog.write("n.u", TABLE, "append").version == 2
    native = NativeNamespace(root=str(tmp_path / "lake"))
    assert native.list_tables(api.ListTablesRequest(id=[])).tables == []
    location = native.describe_table(api.DescribeTableRequest(id=["n", "u"])).location
    assert lance.dataset(location).count_rows() == 6


@pytest.mark.parametrize("store", ["sqlite", "conditional-put"])
def test_rename_loses_no_acknowledged_append(tmp_path: Path, store: str) -> None:
    catalog = connect(tmp_path, store).catalog
    writers = [connect(tmp_path, store).catalog for _ in range(2)]

    def append(writer: lancekeep.Catalog, name: str, acknowledged: list[str]) -> None:
        for _ in range(100):
            writer.write(name, TABLE.slice(0, 1), "append")
            acknowledged.append(name)

    for turn in range(8):
        source, target = f"t{turn}", f"u{turn}"
        acknowledged: list[str] = []
        catalog.write(source, TABLE.slice(0, 1))
        *_, renamed = together(
            *(partial(append, writer, source, acknowledged) for writer in writers),
            partial(catalog.rename_table, source, target),
        )
        if isinstance(renamed, lancekeep.ConcurrentModification):
            target = source
        else:
            assert isinstance(renamed, lancekeep.Table), renamed
        rows = catalog.open(target).count_rows()
        assert 0 <= rows - 1 - len(acknowledged) <= 2  # of each writer, one whose outcome it could not learn
        assert [entry.version for entry in catalog.versions.history(target)] == list(range(rows, 0, -1))


@pytest.mark.parametrize("place", [(Relocation, "_create"), (Renames, "_enter")])
def test_commit_that_ends_during_a_rename_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: tuple[Any, str]
) -> None:
    """It removes the name that its version was staged under, which changes the time of the same file's final name."""
    catalog = connect(tmp_path).catalog
    catalog.write("t", TABLE)
    (final,) = (tmp_path / "lake" / "t.lance" / "_versions").glob("*.manifest")
    staged = final.with_name(f"{final.name}-a9aa6a43-8a4c-44d2-9f6a-b1e2d0b1c5f3")
    os.link(final, staged)
    step = getattr(*place)

    def beside(self: Any, *arguments: Any) -> Any:
        result = step(self, *arguments)
        staged.unlink(missing_ok=True)
        return result

    monkeypatch.setattr(*place, beside)
    catalog.rename_table("t", "u")
    assert catalog.open("u").count_rows() == TABLE.num_rows
    assert len(directories(tmp_path)) == 1


@pytest.mark.parametrize("store", ["sqlite", "none"])
@pytest.mark.parametrize("versions", [1, 2])
@pytest.mark.parametrize("place", [(Relocation, "_create"), (Renames, "_enter")])
def test_table_recreated_during_a_rename_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, versions: int, place: tuple[Any, str]
) -> None:
    catalog, other = connect(tmp_path, store).catalog, connect(tmp_path, store).catalog
    catalog.write("t", TABLE)
    catalog.write("t", TABLE, "append")
    step = getattr(*place)
    made: list[lancekeep.Table] = []

    def beside(self: Any, *arguments: Any) -> Any:
        copying = place[0] is Relocation
        result = step(self, *arguments) if copying else None
        if not made:
            made.append(other.drop_table("t"))
            for mode in ("create", "append")[:versions]:
                other.write("t", TABLE.slice(0, 1), mode)
        return result if copying else step(self, *arguments)

    monkeypatch.setattr(*place, beside)
    with pytest.raises(lancekeep.ConcurrentModification, match="was removed or replaced while the table was copied"):
        catalog.rename_table("t", "u")
    assert lance.dataset(str(tmp_path / "lake" / "t.lance")).count_rows() == versions
    assert catalog.list_tables() == ["t"]
    assert directories(tmp_path) == ["t.lance"]


@pytest.mark.parametrize("mode", ["compatible", "v1"])
def test_append_that_ends_after_a_drop_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """The version that it puts into the directory makes a V1 table of that, but not of what the drop has removed."""
    catalog, other = (
        lancekeep.connect(str(tmp_path / "lake"), commit_store=f"sqlite://{tmp_path}/commits.db", mode=mode)
        for _ in range(2)
    )
    catalog.write("t", TABLE)
    other.list_tables()
    create, look = directory_of(catalog).commits.objects.copy_if_absent, directory_of(other).commits.objects.list

    def finish(source: str, target: str) -> bool:
        """The drop has listed what it removes before the version comes."""
        created = create(source, target)
        listed = lambda prefix: (info for info in look(prefix) if info.key != target)  # noqa: E731 - reads better so
        monkeypatch.setattr(directory_of(other).commits.objects, "list", listed)
        other.drop_table("t")
        return created

    monkeypatch.setattr(directory_of(catalog).commits.objects, "copy_if_absent", finish)
    with pytest.raises(lancekeep.CommitRefused, match="renamed or dropped while version 2 was committed"):
        catalog.write("t", TABLE, "append")


@pytest.mark.parametrize("built", [True, False])
def test_outage_after_a_commit_leaves_its_outcome_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, built: bool
) -> None:
    """The version exists, but the catalog cannot say whether a rename has missed it."""
    catalog = lancekeep.connect(
        str(tmp_path / "lake"), commit_store=f"sqlite://{tmp_path}/commits.db", mode="compatible"
    )
    catalog.write("t", TABLE)
    catalog.write("t", TABLE, "append")
    ledger: Any = directory_of(catalog).ledger
    fresh, finalize = ledger.fresh, directory_of(catalog).commits.rows.finalize

    def down(*_: Any) -> Any:
        raise lancekeep.StoreUnavailable("the catalog does not answer")

    def finalize_and_fail(row: Any) -> bool:
        monkeypatch.setattr(ledger, "fresh", down)
        return finalize(row)

    monkeypatch.setattr(directory_of(catalog).commits.rows, "finalize", finalize_and_fail)
    with pytest.raises(lancekeep.CommitUnknown, match="does not answer") as unknown:
        catalog.write("t", TABLE if built else TABLE.to_reader(), "append")
    monkeypatch.setattr(ledger, "fresh", fresh)
    monkeypatch.setattr(directory_of(catalog).commits.rows, "finalize", finalize)
    settled = catalog.resolve(str(unknown.value.token))
    assert isinstance(settled, lancekeep.Committed)
    assert settled.version == catalog.describe_table("t").version == 3
    assert catalog.open("t").count_rows() == 3 * len(TABLE)


def test_of_renames_that_race_one_wins(tmp_path: Path) -> None:
    first, second = connect(tmp_path).catalog, connect(tmp_path).catalog
    lost = (lancekeep.TableNotFound, lancekeep.TableAlreadyExists, lancekeep.ConcurrentModification)
    for turn in range(8):
        first.write(f"a{turn}", TABLE)
        first.write(f"b{turn}", TABLE.slice(0, 1))
        results = together(
            partial(first.rename_table, f"a{turn}", f"x{turn}"),
            partial(second.rename_table, f"a{turn}", f"y{turn}"),
            partial(second.rename_table, f"b{turn}", f"x{turn}"),
        )
        assert all(isinstance(result, (lancekeep.Table, *lost)) for result in results), results
        assert any(isinstance(result, lancekeep.Table) for result in results)
        rows = [first.open(name).count_rows() for name in first.list_tables() if name.endswith(str(turn))]
        assert sorted(rows) == [1, 3]
    assert set(directories(tmp_path)) == {first.find_table(name).location for name in first.list_tables()}


def test_rename_through_the_interface(namespace: lancekeep.DirectoryNamespace) -> None:
    namespace.create_namespace(api.CreateNamespaceRequest(id=["n"]))
    namespace.create_table(api.CreateTableRequest(id=["n", "t"]), stream(TABLE))
    namespace.rename_table(api.RenameTableRequest(id=["n", "t"], new_table_name="u"))
    namespace.rename_table(api.RenameTableRequest(id=["n", "u"], new_table_name="v", new_namespace_id=[]))
    assert namespace.list_tables(api.ListTablesRequest(id=["n"])).tables == []
    assert namespace.list_tables(api.ListTablesRequest(id=[])).tables == ["v"]
    namespace.rename_table(api.RenameTableRequest(id=["v"], new_table_name="t", new_namespace_id=["n"]))
    namespace.table_exists(api.TableExistsRequest(id=["n", "t"]))
    for request, error in (
        (api.RenameTableRequest(id=["x"], new_table_name="y"), api_errors.TableNotFoundError),
        (api.RenameTableRequest(id=["n", "t"], new_table_name="t"), api_errors.TableAlreadyExistsError),
        (
            api.RenameTableRequest(id=["n", "t"], new_table_name="t", new_namespace_id=["x"]),
            api_errors.NamespaceNotFoundError,
        ),
        (api.RenameTableRequest(id=["n", "t"], new_table_name="a/b"), api_errors.InvalidInputError),
    ):
        with pytest.raises(error):
            namespace.rename_table(request)


# -- modes -------------------------------------------------------------------------------------------------------


def test_create_modes_of_namespaces(namespace: lancekeep.DirectoryNamespace) -> None:
    def create(mode: str, **properties: str) -> dict[str, str] | None:
        return namespace.create_namespace(
            api.CreateNamespaceRequest(id=["n"], mode=mode, properties=properties)
        ).properties

    assert create("overwrite", a="1") == {"a": "1"}
    assert create("ExistOk", a="2") == {"a": "1"}
    assert create("Overwrite", b="3") == {"b": "3"}
    assert namespace.describe_namespace(api.DescribeNamespaceRequest(id=["n"])).properties == {"b": "3"}
    with pytest.raises(api_errors.NamespaceAlreadyExistsError):
        create("create")
    namespace.declare_table(api.DeclareTableRequest(id=["n", "t"]))
    with pytest.raises(api_errors.NamespaceNotEmptyError):
        create("overwrite")
    namespace.declare_table(api.DeclareTableRequest(id=["t"]))
    for mode in ("exist_ok", "overwrite", "create"):
        with pytest.raises(api_errors.NamespaceAlreadyExistsError, match="is taken by a table"):
            namespace.create_namespace(api.CreateNamespaceRequest(id=["t"], mode=mode))
    with pytest.raises(lancekeep.InvalidInput, match="not both"):
        namespace.catalog.create_namespace("n", exist_ok=True, overwrite=True)


def test_drop_modes_of_namespaces(namespace: lancekeep.DirectoryNamespace, tmp_path: Path) -> None:
    with pytest.raises(api_errors.NamespaceNotFoundError):
        namespace.drop_namespace(api.DropNamespaceRequest(id=["n"], mode="Fail"))
    assert namespace.drop_namespace(api.DropNamespaceRequest(id=["n"], mode="skip")).properties is None
    namespace.create_namespace(api.CreateNamespaceRequest(id=["n"], properties={"k": "v"}))
    namespace.create_namespace(api.CreateNamespaceRequest(id=["n", "m"]))
    namespace.create_table(api.CreateTableRequest(id=["n", "m", "t"]), stream(TABLE))
    with pytest.raises(api_errors.NamespaceNotEmptyError):
        namespace.drop_namespace(api.DropNamespaceRequest(id=["n"], mode="skip", behavior="Restrict"))
    for request in (
        api.DropNamespaceRequest(id=["n"], mode="maybe"),
        api.DropNamespaceRequest(id=["n"], behavior="force"),
    ):
        with pytest.raises(api_errors.InvalidInputError):
            namespace.drop_namespace(request)
    dropped = namespace.drop_namespace(api.DropNamespaceRequest(id=["n"], behavior="cascade"))
    assert dropped.properties == {"k": "v"}
    assert directories(tmp_path) == []
    with pytest.raises(api_errors.InvalidTableStateError, match="root namespace cannot be dropped"):
        namespace.drop_namespace(api.DropNamespaceRequest(id=[]))


@pytest.mark.parametrize(
    ("parent", "mode"),
    [
        ([], {}),
        (["n"], {}),
        (["n"], {"dir_listing_enabled": "false"}),
        ([], {"dir_listing_enabled": "false"}),
        ([], {"manifest_enabled": "false"}),
    ],
    ids=["compatible root", "compatible child", "V2 child", "V2 root", "V1"],
)
def test_loser_of_exist_ok_race_gets_the_winners_table(tmp_path: Path, parent: list[str], mode: dict[str, str]) -> None:
    racers = [connect(tmp_path, **mode) for _ in range(4)]
    if parent:
        racers[0].create_namespace(api.CreateNamespaceRequest(id=parent))
    for turn in range(8):
        request = api.CreateTableRequest(id=[*parent, f"t{turn}"], mode="exist_ok")
        answers = together(*(partial(racer.create_table, request, stream(TABLE)) for racer in racers))
        assert len({answer.location for answer in answers}) == 1, answers
        dataset = lance.dataset(answers[0].location)
        assert (dataset.version, dataset.count_rows()) == (1, 3)
    assert len(directories(tmp_path)) == 8


def test_modes_of_tables(namespace: lancekeep.DirectoryNamespace, catalog: lancekeep.Catalog) -> None:
    created = namespace.create_table(api.CreateTableRequest(id=["t"], properties={"k": "v"}), stream(TABLE))
    kept = namespace.create_table(api.CreateTableRequest(id=["t"], mode="exist_ok"), stream(TABLE.slice(0, 1)))
    assert (kept.location, kept.version, kept.properties) == (created.location, 1, {"k": "v"})
    assert catalog.open("t").count_rows() == 3
    for number, properties in enumerate(({"k": "w", "a": "b"}, {"a": "c"}, None), 2):
        request = api.CreateTableRequest(id=["t"], mode="overwrite", properties=properties)
        overwritten = namespace.create_table(request, stream(TABLE.slice(0, 1)))
        described = namespace.describe_table(api.DescribeTableRequest(id=["t"]))
        assert overwritten.properties == described.properties == (properties or {})
        assert (overwritten.version, overwritten.location) == (number, created.location)
    own = api.CreateTableRequest(id=["t"], mode="overwrite", properties={"lancekeep.x": "y"})
    with pytest.raises(api_errors.InvalidInputError, match="catalog's own"):
        namespace.create_table(own, stream(TABLE))
    assert catalog.open("t").version == 4
    with pytest.raises(lancekeep.InvalidInput, match="properties are given when a table is created"):
        catalog.write("t", TABLE, "append", properties={"a": "b"})
    with pytest.raises(lancekeep.InvalidInput, match="properties are given when a table is created"):
        catalog.begin_write("t", TABLE.schema, "overwrite", properties={"a": "b"})
    for request in (
        api.CreateTableRequest(id=["x"], storage_options={"a": "b"}),
        api.CreateTableRequest(id=["x"], mode="append"),
    ):
        with pytest.raises(api_errors.InvalidInputError):
            namespace.create_table(request, stream(TABLE))
    with pytest.warns(DeprecationWarning, match="declare_table"):
        empty = namespace.create_empty_table(api.CreateEmptyTableRequest(id=["e"], properties={"k": "v"}))
    assert empty.properties == {"k": "v"}
    assert catalog.describe_table("e").version is None
    with pytest.warns(DeprecationWarning, match="declare_table"):
        again = namespace.create_empty_table(api.CreateEmptyTableRequest(id=["e"], mode="ExistOk"))
    assert again.location == empty.location
    with pytest.warns(DeprecationWarning, match="declare_table"), pytest.raises(api_errors.TableAlreadyExistsError):
        namespace.create_empty_table(api.CreateEmptyTableRequest(id=["e"]))
    with pytest.raises(api_errors.TableAlreadyExistsError):
        namespace.declare_table(api.DeclareTableRequest(id=["t"]))


def test_register_replaces_a_registration_only_if_requested(
    namespace: lancekeep.DirectoryNamespace, catalog: lancekeep.Catalog
) -> None:
    catalog.create_namespace("n")
    catalog.write("n.t", TABLE)
    catalog.write("n.u", TABLE.slice(0, 1))
    spare = catalog.deregister_table("n.u")
    with pytest.raises(api_errors.TableAlreadyExistsError):
        namespace.register_table(api.RegisterTableRequest(id=["n", "t"], location=spare.location))
    answer = namespace.register_table(
        api.RegisterTableRequest(id=["n", "t"], location=spare.location, mode="Overwrite", properties={"k": "v"})
    )
    assert answer.properties == {"k": "v"}
    assert catalog.open("n.t").count_rows() == 1


def test_operations_beyond_a_v1_directory_are_unsupported(tmp_path: Path) -> None:
    namespace = connect(tmp_path, manifest_enabled="false")
    namespace.create_table(api.CreateTableRequest(id=["t"]), stream(TABLE))
    acts: tuple[Callable[[], Any], ...] = (
        lambda: namespace.rename_table(api.RenameTableRequest(id=["t"], new_table_name="u")),
        lambda: namespace.create_namespace(api.CreateNamespaceRequest(id=["n"])),
        lambda: namespace.declare_table(api.DeclareTableRequest(id=["u"], properties={"a": "b"})),
        lambda: namespace.register_table(api.RegisterTableRequest(id=["u"], location="t.lance")),
    )
    for act in acts:
        with pytest.raises(api_errors.UnsupportedOperationError, match="connect with mode='compatible'"):
            act()
    for alter in (namespace.catalog.alter_table, namespace.catalog.alter_namespace):
        with pytest.raises(lancekeep.Unsupported, match="connect with mode='compatible'"):
            alter("t" if alter == namespace.catalog.alter_table else "", {"a": "b"})
    assert directories(tmp_path) == ["t.lance"]


# -- races of drop and create ------------------------------------------------------------------------------------


def test_namespace_dropped_during_creation_of_children_leaves_no_orphan(tmp_path: Path) -> None:
    dropper, tables, namespaces = (connect(tmp_path).catalog for _ in range(3))
    for turn in range(12):
        name = f"n{turn}"
        dropper.create_namespace(name)
        together(
            partial(dropper.drop_namespace, name),
            partial(tables.write, f"{name}.t", TABLE),
            partial(namespaces.create_namespace, f"{name}.m"),
        )
    everything = directory_of(dropper).ledger.view()
    for object_type in ("table", "namespace"):
        for entry in everything.all_of(object_type):
            parent = lancekeep.ObjectId.from_key(entry.object_id).parent
            assert dropper.namespace_exists(parent), entry
    for table in dropper.list_all_tables():
        assert dropper.open(table).count_rows() == 3
    known = {dropper.find_table(table).location for table in dropper.list_all_tables()}
    assert set(directories(tmp_path)) == known


def test_cascade_during_creations_removes_data_with_entries(tmp_path: Path) -> None:
    dropper, tables = connect(tmp_path).catalog, connect(tmp_path).catalog
    for turn in range(8):
        name = f"n{turn}"
        dropper.create_namespace(name)
        dropper.write(f"{name}.old", TABLE)
        together(
            partial(dropper.drop_namespace, name, cascade=True),
            partial(tables.declare_table, f"{name}.new"),
        )
        assert not dropper.namespace_exists(name)
    assert list(dropper.list_all_tables()) == []
    assert directories(tmp_path) == []


# -- listing -----------------------------------------------------------------------------------------------------


def pages(list_page: Callable[[api.ListTablesRequest], api.ListTablesResponse], **fields: Any) -> list[list[str]]:
    """All pages of a listing."""
    found, token = [], None
    while True:
        page = list_page(api.ListTablesRequest(page_token=token, **fields))
        found.append(page.tables)
        token = page.page_token
        if token is None:
            return found


def test_pages_without_declared_tables_are_full(
    namespace: lancekeep.DirectoryNamespace, catalog: lancekeep.Catalog
) -> None:
    catalog.create_namespace("n")
    for number in range(8):
        catalog.declare_table(f"n.t{number}")
    for number in (1, 4, 6, 7):
        catalog.write(f"n.t{number}", TABLE, "overwrite")
    listed = pages(namespace.list_tables, id=["n"], limit=2, include_declared=False)
    assert listed == [["t1", "t4"], ["t6", "t7"]]
    assert pages(namespace.list_tables, id=["n"], limit=3, include_declared=False) == [["t1", "t4", "t6"], ["t7"]]
    assert pages(namespace.list_tables, id=["n"], limit=8) == [[f"t{number}" for number in range(8)]]
    assert catalog.list_tables("n", include_declared=False) == ["t1", "t4", "t6", "t7"]
    assert pages(namespace.list_all_tables, limit=3, include_declared=False) == [
        ["n$t1", "n$t4", "n$t6"],
        ["n$t7"],
    ]
    assert namespace.list_tables(api.ListTablesRequest(id=["n"], page_token="t55")).tables == ["t6", "t7"]


def test_all_tables_are_listed_in_the_order_of_their_object_ids(
    namespace: lancekeep.DirectoryNamespace, catalog: lancekeep.Catalog
) -> None:
    for name in ("b", "b.m", "Ä"):
        catalog.create_namespace(name)
    for name in ("b.t", "b.m.t", "a", "z", "b!", "Ä.t"):
        catalog.declare_table(name)
    expected = sorted(("b$t", "b$m$t", "a", "z", "b!", "Ä$t"), key=str.encode)
    assert namespace.list_all_tables(api.ListTablesRequest()).tables == expected
    assert pages(namespace.list_all_tables, limit=2) == [expected[:2], expected[2:4], expected[4:]]
    assert [table.key for table in catalog.list_all_tables()] == expected
    for refused in (api.ListTablesRequest(id=["b"]), api.ListTablesRequest(limit=0), api.ListTablesRequest(limit=-1)):
        with pytest.raises(api_errors.InvalidInputError):
            namespace.list_all_tables(refused)


# -- describing --------------------------------------------------------------------------------------------------


def test_detailed_descriptions_are_those_of_the_native_namespace(tmp_path: Path) -> None:
    types: list[pa.DataType] = [
        *(pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.bool_(), pa.null()),
        *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(3)),
        *(pa.date32(), pa.date64(), pa.time32("s"), pa.time64("us"), pa.timestamp("us", "UTC"), pa.duration("s")),
        *(pa.decimal128(10, 2), pa.decimal256(50, 3), pa.dictionary(pa.int32(), pa.string())),
        *(pa.list_(pa.int32()), pa.large_list(pa.int32()), pa.list_(pa.float32(), 4)),
        pa.struct([pa.field("x", pa.int8(), nullable=False), pa.field("y", pa.list_(pa.string()))]),
    ]
    fields = [
        pa.field(f"f{number}", kind, metadata={"m": "n"} if number else None) for number, kind in enumerate(types)
    ]
    schema = pa.schema(fields, metadata={"k": "v"})
    struct = pa.array([{"x": 1, "y": ["z"]}], types[-1])
    row = pa.table([*(pa.nulls(1, kind) for kind in types[:-1]), struct], schema=schema)
    native = NativeNamespace(root=str(tmp_path / "lake"))
    native.create_namespace(api.CreateNamespaceRequest(id=["n"]))
    native.create_table(api.CreateTableRequest(id=["n", "t"]), stream(row))
    request = api.DescribeTableRequest(id=["n", "t"], load_detailed_metadata=True)
    expected = native.describe_table(request)
    described = connect(tmp_path, "none").describe_table(request)
    assert described.var_schema == expected.var_schema
    for name in ("table", "namespace", "version", "location", "is_only_declared", "managed_versioning"):
        assert getattr(described, name) == getattr(expected, name), name
    assert described.metadata == {"total_rows": "1"}


def test_description_has_every_field(namespace: lancekeep.DirectoryNamespace, catalog: lancekeep.Catalog) -> None:
    catalog.create_namespace("n")
    catalog.write("n.t", TABLE)
    catalog.write("n.t", TABLE, "append")
    catalog.open("n.t").delete("a = 1")
    catalog.open("n.t").create_branch("b").insert(TABLE)
    catalog.open("n.t").tags.create("first", 1)
    catalog.declare_table("n.d", {"k": "v"})

    def describe(name: str, **fields: Any) -> api.DescribeTableResponse:
        return namespace.describe_table(api.DescribeTableRequest(id=["n", name], **fields))

    detailed = describe("t", load_detailed_metadata=True)
    assert (detailed.table, detailed.namespace, detailed.version) == ("t", ["n"], 3)
    assert detailed.metadata == {"total_rows": "4"}
    assert detailed.stats is not None
    assert (detailed.stats.num_fragments, detailed.stats.num_deleted_rows) == (2, 2)
    assert detailed.is_only_declared is False
    assert describe("t", load_detailed_metadata=True, version=1).metadata == {"total_rows": "3"}
    assert describe("t", load_detailed_metadata=True, tag="first").version == 1
    assert describe("t", load_detailed_metadata=True, branch="b").metadata == {"total_rows": "7"}
    assert describe("t", version=2).version == 2
    assert describe("t", tag="first").version == 1
    assert describe("t", branch="b").version == 4
    plain = describe("t")
    assert (plain.version, plain.var_schema, plain.stats, plain.table_uri, plain.is_only_declared) == (None,) * 5
    declared = describe("d", load_detailed_metadata=True)
    assert (declared.is_only_declared, declared.version, declared.properties) == (True, None, {"k": "v"})
    for name, fields, error in (
        ("t", {"version": 9}, api_errors.TableVersionNotFoundError),
        ("t", {"version": 9, "load_detailed_metadata": True}, api_errors.TableVersionNotFoundError),
        ("t", {"branch": "x"}, api_errors.TableBranchNotFoundError),
        ("t", {"tag": "x"}, api_errors.TableTagNotFoundError),
        ("t", {"tag": "first", "version": 1}, api_errors.InvalidInputError),
        ("t", {"tag": "first", "branch": "b"}, api_errors.InvalidInputError),
        ("d", {"version": 1, "load_detailed_metadata": True}, api_errors.TableVersionNotFoundError),
        ("x", {}, api_errors.TableNotFoundError),
    ):
        with pytest.raises(error):
            describe(name, **fields)
    namespace.table_exists(api.TableExistsRequest(id=["n", "t"], version=2))
    with pytest.raises(api_errors.TableVersionNotFoundError):
        namespace.table_exists(api.TableExistsRequest(id=["n", "t"], version=9))
    namespace.namespace_exists(api.NamespaceExistsRequest(id=["n"]))
    with pytest.raises(api_errors.NamespaceNotFoundError):
        namespace.namespace_exists(api.NamespaceExistsRequest(id=["x"]))


def test_fields_of_a_version_that_cannot_be_kept_are_refused(
    namespace: lancekeep.DirectoryNamespace, catalog: lancekeep.Catalog
) -> None:
    catalog.write("t", TABLE)
    row = directory_of(catalog).commits.latest(directory_of(catalog).places.dataset_root(catalog.find_table("t")))
    assert row is not None
    for fields in ({"metadata": {"a": "b"}}, {"naming_scheme": "V1"}):
        with pytest.raises(api_errors.InvalidInputError):
            namespace.create_table_version(
                api.CreateTableVersionRequest(id=["t"], version=2, manifest_path=f"{row.path}-x", **fields)
            )


# -- places ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["outside", "another table"])
def test_operations_do_not_follow_symbolic_links(tmp_path: Path, catalog: lancekeep.Catalog, target: str) -> None:
    namespace = connect(tmp_path)
    catalog.write("other", TABLE)
    catalog.write("t", TABLE)
    lake = tmp_path / "lake"
    place = tmp_path / "outside.lance" if target == "outside" else lake / "other.lance"
    if target == "outside":
        (lake / "t.lance").rename(place)
    else:
        (lake / "t.lance").rename(tmp_path / "aside")
    (lake / "t.lance").symlink_to(place, target_is_directory=True)
    (lake / "free.lance").symlink_to(place, target_is_directory=True)
    before = sorted(path for path in place.rglob("*"))
    acts: tuple[Callable[[], Any], ...] = (
        lambda: catalog.open("t"),
        lambda: catalog.write("t", TABLE, "append"),
        lambda: catalog.drop_table("t"),
        lambda: catalog.rename_table("t", "u"),
        lambda: catalog.describe_table("t"),
    )
    for act in acts:
        with pytest.raises(lancekeep.Damaged, match="symbolic link"):
            act()
    with pytest.raises(api_errors.InternalError, match="symbolic link"):
        namespace.describe_table(api.DescribeTableRequest(id=["t"]))
    refused: tuple[Callable[[], Any], ...] = (
        lambda: catalog.register_table("r", "free.lance"),
        lambda: catalog.register_table("r", "free.lance/deep"),
        lambda: catalog.declare_table("free"),
        lambda: catalog.declare_table("r", location="free.lance/deep"),
    )
    for act in refused:
        with pytest.raises(lancekeep.InvalidInput, match="symbolic link"):
            act()
    assert sorted(path for path in place.rglob("*")) == before
    assert catalog.table_exists("t")
    catalog.deregister_table("t")
    assert catalog.list_tables() == ["other"]


def test_cascade_keeps_data_reached_by_symbolic_link(tmp_path: Path, catalog: lancekeep.Catalog) -> None:
    catalog.create_namespace("n")
    for name in ("a", "b", "c"):
        catalog.write(f"n.{name}", TABLE)
    location = tmp_path / "lake" / catalog.find_table("n.b").location
    location.rename(tmp_path / "outside")
    location.symlink_to(tmp_path / "outside", target_is_directory=True)
    with pytest.raises(lancekeep.Damaged, match="symbolic link"):
        catalog.drop_namespace("n", cascade=True)
    assert not catalog.namespace_exists("n")
    assert directories(tmp_path) == [location.name]
    assert lance.dataset(str(tmp_path / "outside")).count_rows() == 3


def test_location_in_the_directory_of_another_table_is_refused(tmp_path: Path, catalog: lancekeep.Catalog) -> None:
    catalog.create_namespace("n")
    for location in ("group/t", "group/t/inner", "group"):
        lance.write_dataset(TABLE, str(tmp_path / "lake" / location))
    catalog.register_table("n.t", "group/t")
    for location in ("group/t", "group/t/inner", "group", "group/t/", "./group/x/../t"):
        with pytest.raises(lancekeep.InvalidInput, match=r"overlaps the directory of the table n\.t"):
            catalog.register_table("n.u", location)
    with pytest.raises(lancekeep.InvalidInput, match="overlaps the directory"):
        catalog.declare_table("n.u", location="group/t/data")
    assert catalog.list_tables("n") == ["t"]


# -- names -------------------------------------------------------------------------------------------------------

NAMES = [
    " leading and inner space",
    "trailing ",
    "trailing.",
    ".leading..dots",
    "'single' \"double\" back`tick",
    "per%cent %20 a%2Fb",
    "ha#sh",
    "que?ry=1&x",
    "plus+semi;colon:star*[a]{b}<c>|~",
    "emoji 🦆 中文",
    "CON",
    "nul.txt",
    "t.lance",
    "_versions",
    unicodedata.normalize("NFC", "é"),
    unicodedata.normalize("NFD", "é"),
    "x" * 240,
    "é" * 120,
]


@pytest.fixture(scope="module", params=["local", "s3"])
def lake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> lancekeep.DirectoryNamespace:
    if request.param == "local":
        return connect(tmp_path_factory.mktemp("names"), "conditional-put")
    endpoint = request.getfixturevalue("moto_endpoint")
    return lancekeep.DirectoryNamespace(
        root=f"s3://{bucket(endpoint)}/la ke",
        commit_store="conditional-put://",
        vend_input_storage_options="true",
        **{f"storage.{key}": value for key, value in s3_options(endpoint).items()},
    )


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:20])
@pytest.mark.parametrize("parent", [[], ["n"]], ids=["root", "child"])
def test_every_operation_accepts_any_name(lake: lancekeep.DirectoryNamespace, parent: list[str], name: str) -> None:
    catalog = lake.catalog
    catalog.create_namespace("n", exist_ok=True)
    table, other = [*parent, name], [*parent, f"{name}2"]
    catalog.create_namespace(["n", name])
    assert catalog.list_namespaces("n") == [name]
    catalog.drop_namespace(["n", name])
    created = lake.create_table(api.CreateTableRequest(id=table), stream(TABLE))
    assert created.version == 1
    assert catalog.list_tables(parent) == [name]
    described = lake.describe_table(api.DescribeTableRequest(id=table))
    assert described.location == created.location
    catalog.write(table, TABLE, "append")
    assert catalog.open(table).count_rows() == 6
    options = described.storage_options
    assert lance.dataset(described.location, storage_options=options).to_table().num_rows == 6
    catalog.rename_table(table, other)
    assert catalog.list_tables(parent) == [f"{name}2"]
    described = lake.describe_table(api.DescribeTableRequest(id=other))
    assert lance.dataset(described.location, storage_options=options).count_rows() == 6
    catalog.rename_table(other, table)
    assert catalog.write(table, TABLE, "append").version == 3
    detached = catalog.deregister_table(table)
    catalog.register_table(table, services_of(catalog).uri(detached))
    assert catalog.open(table).count_rows() == 9
    catalog.drop_table(table)
    assert catalog.list_tables(parent) == []


def test_composed_and_decomposed_names_are_two(lake: lancekeep.DirectoryNamespace) -> None:
    catalog = lake.catalog
    names = [unicodedata.normalize(form, "é") for form in ("NFD", "NFC")]
    for rows, name in enumerate(names, 1):
        catalog.write([name], TABLE.slice(0, rows))
    assert catalog.list_tables() == names
    assert [catalog.open([name]).count_rows() for name in names] == [1, 2]
    for name in names:
        catalog.drop_table([name])
