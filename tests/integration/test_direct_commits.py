"""Versions that a writer commits to the storage without the catalog, in tables that hold them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import attrs
import lance
import lancedb
import pyarrow as pa
import pytest
from click.testing import CliRunner
from engines import Engine
from faults import Crash, Faulty, crash_at
from home_kinds import HOMES, Home, home_of
from lance_namespace import DescribeTableVersionRequest, ListTableVersionsRequest
from rest_server import serving

import lancekeep
from lancekeep.application.catalog import directory_of
from lancekeep.application.upkeep.fsck import Kind
from lancekeep.domain.commit_token import CommitToken, StagedManifest
from lancekeep.domain.errors import (
    CommitRefused,
    ConcurrentModification,
    InvalidInput,
    Refused,
    Unsupported,
    VersionNotFound,
)
from lancekeep.domain.naming import NamingScheme
from lancekeep.domain.version_row import VersionRow
from lancekeep.entrypoints.cli import lancekeep as command

HOLD = {"lancekeep.direct_commits": "hold"}
ADOPT = {"lancekeep.direct_commits": "adopt"}
T = "n.t"


def rows(*numbers: int) -> pa.Table:
    return pa.table({"x": list(numbers)})


def values(dataset: Any) -> list[int]:
    return sorted(dataset.to_table()["x"].to_pylist())


def seen(catalog: lancekeep.Catalog, table: str = T) -> list[int]:
    """The rows that the catalog shows."""
    return values(catalog.open(table))


def uri(catalog: lancekeep.Catalog, table: str = T) -> str:
    return catalog.describe_table(table).uri


def direct(catalog: lancekeep.Catalog, number: int, table: str = T) -> None:
    """Append without the catalog."""
    lance.write_dataset(rows(number), uri(catalog, table), mode="append")


def kinds(catalog: lancekeep.Catalog) -> list[tuple[Kind, str]]:
    return [(finding.kind, finding.object) for finding in catalog.upkeep.fsck(deep=True, grace=0).findings]


@pytest.fixture(params=HOMES)
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Home:
    return home_of(request.param, tmp_path, request.getfixturevalue)


@pytest.fixture
def local(tmp_path: Path) -> Home:
    return home_of("sqlite", tmp_path, lambda _: "")


@pytest.fixture
def catalog(local: Home) -> Iterator[lancekeep.Catalog]:
    """A catalog with a table of two versions that holds direct commits."""
    with local.connect() as catalog:
        catalog.write(T, rows(1), properties=HOLD)
        catalog.write(T, rows(2), "append")
        yield catalog


# -- not reflected --------------------------------------------------------------------------------------------------


def test_direct_commit_is_held_until_it_is_adopted_or_discarded(home: Home) -> None:
    with home.connect() as catalog, home.connect() as other:
        catalog.write(T, rows(1), properties=HOLD)
        catalog.write(T, rows(2), "append")
        namespace = home.namespace()
        for number, decision in ((3, "discard"), (4, "adopt")):
            before = seen(catalog)
            version = catalog.describe_table(T).version or 0
            direct(catalog, number)
            for reader in (catalog, other):
                assert (seen(reader), reader.describe_table(T).version) == (before, version)
                assert [entry.version for entry in reader.versions.history(T)] == list(range(version, 0, -1))
                with pytest.raises(VersionNotFound):
                    reader.open(T, version=version + 1)
            for data in (rows(9), rows(9).to_reader()):
                with pytest.raises(CommitRefused, match=rf"committed version {version + 1} to the storage without"):
                    other.write(T, data, "append")
            with pytest.raises(OSError, match="Commit result for version"):
                lance.write_dataset(rows(9), namespace_client=namespace, table_id=["n", "t"], mode="append")
            listed = namespace.list_table_versions(ListTableVersionsRequest(id=["n", "t"])).versions
            assert sorted(each.version for each in listed) == list(range(1, version + 1))
            assert {kind for kind, _ in kinds(other)} <= {Kind.DIRECT, Kind.STAGED}
            assert kinds(other).count((Kind.DIRECT, T)) == 1
            skipped = other.upkeep.cleanup(older_than=0, grace=0).skipped
            assert [each.table for each in skipped] == [T]
            report = other.upkeep.direct_commits(T)
            assert [each.version for each in report.commits] == [version + 1]
            assert other.upkeep.direct_commits(T, decision).commits == report.commits
            after = sorted(before if decision == "discard" else [*before, number])
            assert seen(catalog) == seen(other) == after == values(lance.dataset(uri(catalog)))
            other.write(T, rows(10 * number), "append")
            assert seen(catalog) == sorted([*after, 10 * number]) == values(lance.dataset(uri(catalog)))
        assert {kind for kind, _ in kinds(other)} <= {Kind.STAGED}
        catalog.upkeep.cleanup(older_than=0, grace=0)
        assert seen(other) == values(lance.dataset(uri(catalog))) == [1, 2, 4, 30, 40]
        assert kinds(other) == []


def test_several_direct_commits_are_settled_in_their_order(catalog: lancekeep.Catalog) -> None:
    for number in (3, 4, 5):
        direct(catalog, number)
    assert str(catalog.upkeep.direct_commits(T)) == "n.t: holds version 3, version 4, version 5"
    catalog.upkeep.direct_commits(T, "adopt")
    assert seen(catalog) == [1, 2, 3, 4, 5]
    for number in (6, 7):
        direct(catalog, number)
    catalog.upkeep.direct_commits(T, "discard")
    assert seen(catalog) == values(lance.dataset(uri(catalog))) == [1, 2, 3, 4, 5]
    assert catalog.describe_table(T).version == 7
    assert [each.version for each in catalog.upkeep.direct_commits(T, "adopt").commits] == []


def test_writer_that_built_on_a_direct_commit_is_refused_also_after_it_was_discarded(local: Home) -> None:
    """pylance lists the storage before it commits, so it may build on what no reader of the catalog sees."""
    with local.connect() as catalog:
        catalog.write(T, rows(1), properties=HOLD)
        direct(catalog, 2)
        built = lance.dataset(uri(catalog))
        fragments = lance.fragment.write_fragments(rows(3), uri(catalog), mode="append")
        operation = lance.LanceOperation.Append(fragments)

        def commit() -> None:
            lance.LanceDataset.commit(
                built.uri,
                operation,
                read_version=2,
                namespace_client=local.namespace(),
                table_id=["n", "t"],
                namespace_client_managed_versioning=True,
            )

        with pytest.raises((OSError, ValueError)):
            commit()
        assert seen(catalog) == [1]
        catalog.upkeep.direct_commits(T, "discard")
        with suppress(OSError, ValueError):
            commit()  # rebased on the version that replaced it, or refused
        assert 2 not in seen(catalog)
        assert seen(catalog) == values(lance.dataset(uri(catalog)))


def test_other_engines_commit_directly_and_are_held(
    catalog: lancekeep.Catalog, local: Home, engine_of: Callable[[str], Engine]
) -> None:
    engine = engine_of("pylance-4.0.2")

    def of_engine() -> list[int]:
        return sorted(engine.open(uri(catalog)).rows()["x"].to_pylist())

    engine.open(uri(catalog)).append(rows(3))
    assert seen(catalog) == [1, 2]
    catalog.upkeep.direct_commits(T, "discard")
    assert seen(catalog) == of_engine() == [1, 2]
    catalog.write("u", rows(1), properties=HOLD)
    lancedb.connect(local.root).open_table("u").add(rows(4))
    assert seen(catalog, "u") == [1]
    catalog.upkeep.direct_commits("u", "adopt")
    assert seen(catalog, "u") == [1, 4]


@pytest.mark.parametrize("late", [False, True])
def test_direct_commit_in_the_middle_of_a_commit(catalog: lancekeep.Catalog, local: Home, late: bool) -> None:
    """It comes just before the copy to the final name, after the row was reserved, or after it."""
    with local.connect() as writer:
        commits: Any = directory_of(writer).commits
        objects = commits.objects
        place = uri(catalog)

        class Interrupted:
            def __getattr__(self, name: str) -> Any:
                return getattr(objects, name)

            def copy_if_absent(self, source: str, target: str) -> bool:
                created: bool = late and objects.copy_if_absent(source, target)
                commits.objects = objects
                lance.write_dataset(rows(3), place, mode="append")
                return created if late else objects.copy_if_absent(source, target)

        commits.objects = Interrupted()
        if late:
            writer.write(T, rows(9).to_reader(), "append")
        else:
            with pytest.raises(CommitRefused, match="committed version 3 to the storage"):
                writer.write(T, rows(9).to_reader(), "append")
        own = [9] if late else []
        for reader in (writer, catalog):
            assert seen(reader) == [1, 2, *own]
            with pytest.raises(CommitRefused, match="to the storage without the catalog"):
                reader.write(T, rows(8).to_reader(), "append")
            snapshot = reader.snapshot([T])
            assert values(snapshot.open(T)) == [1, 2, *own]
    catalog.upkeep.direct_commits(T, "adopt")
    assert seen(catalog) == values(lance.dataset(place)) == sorted([1, 2, 3, *own])
    catalog.write(T, rows(5), "append")
    catalog.upkeep.fsck(deep=True, repair=True, grace=0)
    assert kinds(catalog) == []


@pytest.mark.parametrize("decision", ["adopt", "discard"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_stopped_decision_is_completed(local: Home, decision: Any, when: str) -> None:
    nth, stopped = 0, True
    while stopped:
        table = f"n.t{nth}"
        with local.connect() as catalog:
            catalog.write(table, rows(1), properties=HOLD)
            direct(catalog, 2, table)
            commits: Any = directory_of(catalog).commits
            faulty = Faulty(commits.objects, crash_at(nth, when))
            commits.objects = commits._adoption._objects = commits.direct._objects = faulty
            stopped = False
            try:
                catalog.upkeep.direct_commits(table, decision)
            except Crash:
                stopped = True
        with local.connect() as again:
            assert seen(again, table) in ([1], [1, 2] if decision == "adopt" else [1])
            for _ in range(2):
                again.upkeep.direct_commits(table, decision)
            expected = [1, 2] if decision == "adopt" else [1]
            assert seen(again, table) == values(lance.dataset(uri(again, table))) == expected, nth
            again.write(table, rows(3), "append")
            assert seen(again, table) == [*expected, 3]
            again.upkeep.fsck(deep=True, repair=True, grace=0)
            assert kinds(again) == []
            again.drop_table(table, keep=0)
        nth += 1
    assert nth > 5


def test_first_decision_stands(catalog: lancekeep.Catalog, local: Home) -> None:
    direct(catalog, 3)
    with local.connect() as slow:
        commits: Any = directory_of(slow).commits
        original = commits.direct.approve

        def approve(*args: Any) -> Any:
            catalog.upkeep.direct_commits(T, "adopt")
            return original(*args)

        commits.direct.approve = approve
        with pytest.raises(ConcurrentModification, match="settled by another process"):
            slow.upkeep.direct_commits(T, "discard")
        commits.direct.approve = original
        assert seen(slow) == seen(catalog) == values(lance.dataset(uri(catalog))) == [1, 2, 3]


@pytest.mark.parametrize("when", ["before it is decided", "after it is decided"])
def test_property_changes_while_a_direct_commit_is_discarded(
    catalog: lancekeep.Catalog, local: Home, when: str
) -> None:
    """What the operator does later must not replace a version that readers have seen."""
    direct(catalog, 3)
    with local.connect() as slow:
        commits: Any = directory_of(slow).commits
        owner, name = (commits.direct, "approve") if when.startswith("before") else (commits.objects, "copy")
        original, met = getattr(owner, name), []

        def late(*args: Any) -> Any:
            setattr(owner, name, original)
            catalog.alter_table(T, ADOPT)
            met.extend(seen(catalog))
            return original(*args)

        setattr(owner, name, late)
        if when.startswith("before"):
            with pytest.raises(ConcurrentModification, match="settled by another process"):
                slow.upkeep.direct_commits(T, "discard")
        else:
            slow.upkeep.direct_commits(T, "discard")
        delattr(owner, name)
        assert met == seen(catalog) == seen(slow) == values(lance.dataset(uri(catalog)))
        assert met == ([1, 2, 3] if when.startswith("before") else [1, 2])
        direct(catalog, 4)
        assert seen(slow) == [*met, 4]


def test_discard_reaches_no_table_that_has_the_place_since(catalog: lancekeep.Catalog, local: Home) -> None:
    catalog.write("place", rows(1), properties=HOLD)
    direct(catalog, 2, "place")
    with local.connect() as slow:
        objects: Any = directory_of(slow).commits.objects
        original = objects.copy

        def late(source: str, target: str) -> None:
            catalog.drop_table("place", keep=0)
            catalog.write("place", rows(7))
            catalog.write("place", rows(8), "append")
            original(source, target)

        objects.copy = late
        with pytest.raises(lancekeep.LancekeepError):
            slow.upkeep.direct_commits("place", "discard")
        del objects.copy
    assert seen(catalog, "place") == values(lance.dataset(uri(catalog, "place"))) == [7, 8]


def test_decision_that_was_not_carried_out_moves_with_the_commit_store(catalog: lancekeep.Catalog, local: Home) -> None:
    direct(catalog, 3)
    with local.connect() as stopped:
        objects: Any = directory_of(stopped).commits.objects
        copy = objects.copy
        objects.copy = Faulty(objects, lambda name, _: ("before", Crash()) if name == "copy" else None).copy
        with pytest.raises(Crash):
            stopped.upkeep.direct_commits(T, "discard")
        catalog.upkeep.change_commit_store(local.other)
        with pytest.raises(ConcurrentModification, match="settled by another process"):
            catalog.upkeep.direct_commits(T, "adopt")
        assert seen(catalog) == [1, 2]
        objects.copy = copy
        with pytest.raises(lancekeep.LancekeepError):
            stopped.upkeep.direct_commits(T, "discard")
    catalog.upkeep.direct_commits(T, "discard")
    assert seen(catalog) == values(lance.dataset(uri(catalog))) == [1, 2]


def test_discard_that_meets_another_commit_store_changes_nothing(catalog: lancekeep.Catalog, local: Home) -> None:
    direct(catalog, 3)
    with local.connect() as slow:
        records: Any = directory_of(slow).commits.direct
        original = records.approve

        def late(*args: Any) -> Any:
            catalog.upkeep.change_commit_store(local.other)
            catalog.upkeep.direct_commits(T, "adopt")
            return original(*args)

        records.approve = late
        with pytest.raises(ConcurrentModification, match="settled by another process"):
            slow.upkeep.direct_commits(T, "discard")
    assert seen(catalog) == values(lance.dataset(uri(catalog))) == [1, 2, 3]


def test_token_of_a_commit_that_builds_on_a_direct_commit_is_refused(catalog: lancekeep.Catalog) -> None:
    direct(catalog, 3)
    direct(catalog, 4)
    commits: Any = directory_of(catalog).commits
    root = directory_of(catalog).places.dataset_root(catalog.find_table(T))
    final = root.manifest_key(4, NamingScheme.V2)
    content, path = commits.objects.get(final), f"{final}-{uuid4()}"
    commits.objects.put(path, content)
    commits.objects.delete(final)
    staged = StagedManifest(root.base_uri, 4, path, len(content), False, "", sha256(content).hexdigest())
    with pytest.raises(CommitRefused, match="committed version 3 to the storage without the catalog"):
        catalog.resolve(CommitToken(staged))
    assert seen(catalog) == [1, 2]
    assert [each.version for each in catalog.upkeep.direct_commits(T).commits] == [3]


@pytest.mark.parametrize("decision", [None, "adopt"])
def test_commit_store_changes_while_a_direct_commit_is_held(
    catalog: lancekeep.Catalog, local: Home, decision: str | None
) -> None:
    """Also if a writer has lost its number to the direct commit, and left its row."""
    direct(catalog, 3)
    commits: Any = directory_of(catalog).commits
    root = directory_of(catalog).places.dataset_root(catalog.find_table(T))
    path = f"{root.manifest_key(3, NamingScheme.V2)}-{uuid4()}"
    commits.objects.put(path, b"of a writer")
    commits.rows.reserve(VersionRow(root.base_uri, 3, path, 11), first=False)
    original = commits.rows.delete

    def late(base_uri: str, versions: Any) -> int:
        """An operator decides when the row is about to be removed."""
        commits.rows.delete = original
        row = VersionRow(root.base_uri, 3, root.manifest_key(3, NamingScheme.V2), 0)
        content = commits.objects.get(row.path)
        commits.direct.approve(root.base_uri, 3, content)
        commits.rows.finalize(attrs.evolve(row, size=len(content)))
        return int(original(base_uri, versions))

    if decision == "adopt":
        commits.rows.delete = late
    catalog.upkeep.change_commit_store(local.other)
    if decision == "adopt":
        assert seen(catalog) == [1, 2, 3]
        return
    assert seen(catalog) == [1, 2]
    catalog.upkeep.direct_commits(T, "discard")
    assert seen(catalog) == values(lance.dataset(uri(catalog))) == [1, 2]


def test_table_with_a_direct_commit_is_renamed_and_not_relocated(catalog: lancekeep.Catalog) -> None:
    direct(catalog, 3)
    with pytest.raises(CommitRefused, match="to the storage without the catalog"):
        catalog.upkeep.relocate(T, "place")
    assert seen(catalog) == [1, 2]
    catalog.rename_table(T, "n.u")
    assert seen(catalog, "n.u") == [1, 2]
    catalog.upkeep.direct_commits("n.u", "adopt")
    assert seen(catalog, "n.u") == [1, 2, 3]


def test_relocated_table_holds_direct_commits_from_its_first_moment(
    catalog: lancekeep.Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    relocation = directory_of(catalog).tables
    monkeypatch.setattr(relocation, "follow_entry", lambda object_id: direct(catalog, 3, str(object_id)))
    catalog.upkeep.relocate(T, "place")
    assert uri(catalog).endswith("/place")
    assert seen(catalog) == [1, 2]
    assert len(catalog.upkeep.direct_commits(T).commits) == 1


@pytest.mark.parametrize("kind", ["overwrite", "restore", "delete", "compaction"])
def test_direct_change_by_a_handle_opened_before(catalog: lancekeep.Catalog, kind: str) -> None:
    handle = lance.dataset(uri(catalog))
    after: dict[str, Any] = {
        "overwrite": lambda: (lance.write_dataset(rows(9), handle, mode="overwrite"), [9])[1],
        "restore": lambda: (handle.checkout_version(1).restore(), [1])[1],
        "delete": lambda: (handle.delete("x = 1"), [2])[1],
        "compaction": lambda: (handle.optimize.compact_files(), [1, 2])[1],
    }
    expected = after[kind]()
    for change in (lambda: catalog.write(T, rows(7), "overwrite"), lambda: catalog.versions.restore(T, 1)):
        assert (seen(catalog), values(catalog.open(T, version=1))) == ([1, 2], [1])
        with pytest.raises(CommitRefused, match="to the storage without the catalog"):
            change()
    catalog.upkeep.direct_commits(T, "adopt")
    assert seen(catalog) == expected


# -- what cannot be adopted or discarded ----------------------------------------------------------------------------


def test_direct_commit_that_does_not_descend_is_not_adopted(catalog: lancekeep.Catalog) -> None:
    """A manifest of another table at the next version."""
    catalog.write("n.u", rows(7))
    for number in (8, 9):
        catalog.write("n.u", rows(number), "append")
    name = "18446744073709551612.manifest"
    (Path(uri(catalog).removeprefix("file://")) / "_versions" / name).write_bytes(
        (Path(uri(catalog, "n.u").removeprefix("file://")) / "_versions" / name).read_bytes()
    )
    with pytest.raises(CommitRefused, match="does not descend"):
        catalog.upkeep.direct_commits(T, "adopt")
    assert seen(catalog) == [1, 2]
    catalog.upkeep.direct_commits(T, "discard")
    assert seen(catalog) == values(lance.dataset(uri(catalog))) == [1, 2]


def test_damaged_direct_commit_can_be_discarded_only(catalog: lancekeep.Catalog) -> None:
    path = Path(uri(catalog).removeprefix("file://")) / "_versions" / "18446744073709551612.manifest"
    path.write_bytes(b"not a manifest")
    with pytest.raises(lancekeep.Damaged):
        catalog.upkeep.direct_commits(T, "adopt")
    catalog.upkeep.direct_commits(T, "discard")
    assert seen(catalog) == values(lance.dataset(uri(catalog))) == [1, 2]


def test_direct_commit_without_a_version_before_it_can_be_adopted_only(catalog: lancekeep.Catalog) -> None:
    catalog.declare_table("n.d", HOLD)
    lance.write_dataset(rows(1), directory_of(catalog).places.uri(catalog.find_table("n.d")))
    assert catalog.describe_table("n.d").version is None
    with pytest.raises(Refused, match="no version before it"):
        catalog.upkeep.direct_commits("n.d", "discard")
    catalog.upkeep.direct_commits("n.d", "adopt")
    assert seen(catalog, "n.d") == [1]


# -- the property ---------------------------------------------------------------------------------------------------


def test_property_and_its_default(local: Home) -> None:
    with local.connect() as catalog:
        catalog.write("n.before", rows(1))
        catalog.alter_namespace([], HOLD)
        catalog.write("n.t", rows(1))
        catalog.write("n.open", rows(1), properties=ADOPT)
        catalog.write("n.s", rows(1), properties={"lancekeep.managed": "storage"})
        catalog.clone("n.t", "n.clone")
        catalog.alter_table("n.before", HOLD)
        names = ("n.before", "n.t", "n.open", "n.s", "n.clone")
        for name in names:
            direct(catalog, 2, name)
        with local.connect() as other:
            assert [len(seen(other, name)) for name in names] == [1, 1, 2, 2, 1]
            other.alter_table("n.before", ADOPT)
            other.alter_table("n.t", remove=["lancekeep.direct_commits"])
            assert [len(seen(other, name)) for name in ("n.before", "n.t")] == [2, 2]
        assert kinds(catalog) == [(Kind.DIRECT, "n.clone")]


def test_refusals(catalog: lancekeep.Catalog, tmp_path: Path, redis_url: str) -> None:
    with pytest.raises(InvalidInput, match="expected 'adopt' or 'hold'"):
        catalog.declare_table("n.u", {"lancekeep.direct_commits": "refuse"})
    both = {**HOLD, "lancekeep.managed": "storage"}
    with pytest.raises(InvalidInput, match="Set one of the two"):
        catalog.declare_table("n.u", both)
    with pytest.raises(InvalidInput, match="Set one of the two"):
        catalog.alter_table(T, {"lancekeep.managed": "storage"})
    with pytest.raises(InvalidInput, match="the root namespace and of tables"):
        catalog.create_namespace("n.m", HOLD)
    with pytest.raises(InvalidInput, match="expected 'adopt' or 'discard'"):
        catalog.upkeep.direct_commits(T, "remove")
    for url, fault in ((redis_url, "may lose acknowledged rows"), ("conditional-put://", "derives rows")):
        with pytest.raises(Unsupported, match=fault):
            catalog.upkeep.change_commit_store(url)
    for at, weak_url in enumerate((redis_url, "conditional-put://", None)):
        with lancekeep.connect(str(tmp_path / f"weak{at}"), commit_store=weak_url) as weak:
            for refused in (
                lambda: weak.write("t", rows(1), properties=HOLD),
                lambda: weak.declare_table("t", HOLD),
                lambda: weak.alter_namespace([], HOLD),
            ):
                with pytest.raises(Unsupported, match="cannot be told from a commit of the catalog"):
                    refused()
            assert weak.list_tables() == []
    direct(catalog, 3)
    assert seen(catalog) == [1, 2]


def test_table_holds_direct_commits_wherever_it_moves(home: Home) -> None:
    with home.connect() as catalog:
        catalog.write(T, rows(1), properties=HOLD)
        catalog.branches.create(T, "b")
        catalog.rename_table(T, "n.u")
        catalog.upkeep.relocate("n.u", "place")
        assert {kind for kind, _ in kinds(catalog)} <= {Kind.FOREIGN}  # a namespace that a Metastore has left empty
        catalog.drop_table("n.u", keep=60)
        catalog.undrop("n.u")
        for url in (home.other, home.settings["commit_store"]):
            catalog.upkeep.change_commit_store(url)
            direct(catalog, 2, "n.u")
            lance.dataset(uri(catalog, "n.u")).checkout_version(("b", None)).insert(rows(3))
            assert seen(catalog, "n.u") == values(catalog.open("n.u", branch="b")) == [1]
            found = catalog.upkeep.direct_commits("n.u", "discard").commits
            assert [each.branch for each in found] == ["", "b"]
            assert seen(catalog, "n.u") == values(catalog.open("n.u", branch="b")) == [1]
        assert {kind for kind, _ in kinds(catalog)} <= {Kind.FOREIGN}  # a namespace that a Metastore has left empty
        location = catalog.deregister_table("n.u").location
        catalog.register_table("n.v", location, HOLD)
        direct(catalog, 4, "n.v")
        assert seen(catalog, "n.v") == [1]
        catalog.drop_table("n.v", keep=0)
        catalog.write("n.w", rows(1))
        direct(catalog, 5, "n.w")
        assert seen(catalog, "n.w") == [1, 5]


def test_fsck_finds_a_lost_mark_and_repair_follows_the_property(catalog: lancekeep.Catalog) -> None:
    root = directory_of(catalog).places.dataset_root(catalog.find_table(T))
    directory_of(catalog).commits.holding.adopt(root)
    assert kinds(catalog) == [(Kind.MANAGER, T)]
    catalog.upkeep.fsck(deep=True, repair=True)
    direct(catalog, 3)
    assert (kinds(catalog), seen(catalog)) == ([(Kind.DIRECT, T)], [1, 2])


# -- other doors ----------------------------------------------------------------------------------------------------


def test_command(catalog: lancekeep.Catalog, local: Home) -> None:
    def run(*words: str) -> Any:
        store = local.settings["commit_store"]
        return CliRunner().invoke(
            command, ["direct-commits", local.root, T, "--commit-store", store, *words], obj=lancekeep
        )

    assert (run().exit_code, run().output) == (0, "n.t: holds no direct commit\n")
    direct(catalog, 3)
    assert (run().exit_code, run().output) == (1, "n.t: holds version 3\n")
    assert "Nothing was changed" in run("adopt").output
    assert json.loads(run("--json").output)["commits"][0]["version"] == 3
    told = run("discard", "--yes")
    assert (told.exit_code, told.output) == (0, "n.t: discarded version 3\n")
    assert seen(catalog) == [1, 2]


def test_server_shows_no_direct_commit(local: Home) -> None:
    namespace = local.namespace()
    own = namespace.catalog
    own.write(T, rows(1), properties=HOLD)
    with serving(namespace) as front, lancekeep.connect(front.uri) as served:
        direct(own, 2)
        assert seen(served) == [1]
        with pytest.raises(lancekeep.LancekeepError, match="to the storage without the catalog"):
            served.write(T, rows(3), "append")
        with pytest.raises(VersionNotFound):
            served.open(T, version=2)
        with pytest.raises(Exception, match="version 2"):
            namespace.describe_table_version(DescribeTableVersionRequest(id=["n", "t"], version=2))
        own.upkeep.direct_commits(T, "adopt")
        served.write(T, rows(3), "append")
        assert seen(served) == [1, 2, 3]
