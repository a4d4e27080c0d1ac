"""Races between operations keep the catalog sound, lose no acknowledged write, and give a name to one table."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import lance
import pyarrow as pa
import pytest
from writers import PATIENCE, Answer, Call, Peers, answer, open_namespace

import lancekeep
from lancekeep.application.catalog import directory_of
from lancekeep.application.upkeep.fsck import Kind

ROWS = pa.table({"a": pa.array([1, 2, 3], pa.int64())})
MORE = pa.table({"a": pa.array([4], pa.int64())})
MODES: Mapping[str, Mapping[str, str]] = {"compatible": {}, "v2": {"dir_listing_enabled": "false"}}
TURNS = 6

GONE, TAKEN, BUSY = "TableNotFoundError", "TableAlreadyExistsError", "ConcurrentModificationError"
NO_PARENT, NOT_EMPTY, OVERLAP = "NamespaceNotFoundError", "NamespaceNotEmptyError", "InvalidInputError"
REFUSED = "InvalidTableStateError"

LEFT = {Kind.UNREGISTERED, Kind.DEREGISTERED, Kind.UNREFERENCED}
"""What fsck may find: a table that was deregistered, and what was written to one that had just been dropped."""


@pytest.fixture(scope="module")
def peers() -> Iterator[Peers]:
    started = Peers(2)
    yield started
    started.close()


@attrs.frozen
class Arena:
    """Two racers on one directory, each with its own catalog, and a third catalog that observes."""

    properties: Mapping[str, str]
    mode: str
    run: Callable[[Sequence[Call]], list[Answer]]

    def do(self, operation: str, **fields: Any) -> Any:
        kind, told = answer(open_namespace(False, self.properties), (operation, fields))
        assert kind == "ok", told
        return told

    def race(self, *calls: Call) -> list[str]:
        return [kind for kind, _ in self.run(calls)]

    @property
    def catalog(self) -> lancekeep.Catalog:
        return lancekeep.connect(self.properties["root"], mode=self.mode, storage_options={"fsync": "false"})

    def tables(self) -> dict[str, list[int]]:
        """Every table and its rows, once it is certain that the catalog is sound."""
        catalog = self.catalog
        report = catalog.upkeep.fsck(grace=0)
        assert [finding for finding in report.findings if finding.kind not in LEFT] == [], str(report)
        rows = lance.dataset(f"{self.properties['root']}/__manifest").to_table().to_pylist()
        ids = [row["object_id"] for row in rows]
        places = [row["location"] for row in rows if row["object_type"] == "table"]
        assert len(set(ids)) == len(ids)
        assert len(set(places)) == len(places)
        assert {"$".join(name.split("$")[:-1]) for name in ids} <= {"", *ids}
        described = {str(table): catalog.describe_table(table).version for table in catalog.list_all_tables()}
        return {
            name: catalog.open(name).to_table()["a"].to_pylist() if version else []
            for name, version in described.items()
        }


@pytest.fixture(params=["threads", "processes"])
def by(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=MODES)
def arena(request: pytest.FixtureRequest, tmp_path: Path, by: str, peers: Peers) -> Iterator[Arena]:
    properties = {"root": str(tmp_path / "lake"), "storage.fsync": "false", **MODES[request.param]}
    with ThreadPoolExecutor(2) as pool:
        together = threading.Barrier(2)
        own = [open_namespace(False, properties) for _ in range(2)]

        def one(number: int, call: Call) -> Answer:
            together.wait(PATIENCE)
            return answer(own[number], call)

        def in_threads(calls: Sequence[Call]) -> list[Answer]:
            return list(pool.map(one, range(2), calls))

        def in_processes(calls: Sequence[Call]) -> list[Answer]:
            return [told for (told,) in peers.race(*((False, properties, [call]) for call in calls))]

        yield Arena(properties, request.param, in_threads if by == "threads" else in_processes)


def create(*names: str) -> Call:
    return "create_table", {"id": list(names), "data": MORE}


def drop(*names: str) -> Call:
    return "drop_table", {"id": list(names)}


def rename(source: Sequence[str], *target: str) -> Call:
    return "rename_table", {"id": list(source), "new_namespace_id": list(target[:-1]), "new_table_name": target[-1]}


def test_concurrent_drop_and_create_of_one_name(arena: Arena) -> None:
    for turn in range(TURNS):
        name = f"t{turn}"
        arena.do("create_table", id=[name], data=ROWS)
        dropped, created = arena.race(drop(name), create(name))
        assert dropped == "ok"
        assert created in ("ok", TAKEN, BUSY)
        assert arena.tables().get(name) == ([4] if created == "ok" else None)


def test_concurrent_renames_of_one_table_succeed_once(arena: Arena) -> None:
    for turn in range(TURNS):
        name, one, other = f"t{turn}", f"x{turn}", f"y{turn}"
        arena.do("create_table", id=[name], data=ROWS)
        outcomes = arena.race(rename([name], one), rename([name], other))
        assert sorted(outcomes) in (["TableNotFoundError", "ok"], [BUSY, "ok"])
        winner = (one, other)[outcomes.index("ok")]
        assert {name: rows for name, rows in arena.tables().items() if name.endswith(str(turn))} == {winner: [1, 2, 3]}


def test_concurrent_renames_to_one_name_succeed_once(arena: Arena) -> None:
    arena.do("create_namespace", id=["n"])
    for turn in range(TURNS):
        one, other, target = f"a{turn}", f"b{turn}", f"c{turn}"
        arena.do("create_table", id=[one], data=ROWS)
        arena.do("create_table", id=["n", other], data=MORE)
        outcomes = arena.race(rename([one], target), rename(["n", other], target))
        assert sorted(outcomes) in ([TAKEN, "ok"], [BUSY, "ok"])
        first = outcomes[0] == "ok"
        found = {name: rows for name, rows in arena.tables().items() if name.endswith(str(turn))}
        assert found == ({target: [1, 2, 3], f"n.{other}": [4]} if first else {target: [4], one: [1, 2, 3]})


def test_concurrent_rename_and_drop(arena: Arena) -> None:
    for turn in range(TURNS):
        name, target = f"t{turn}", f"u{turn}"
        arena.do("create_table", id=[name], data=ROWS)
        renamed, dropped = arena.race(rename([name], target), drop(name))
        assert (renamed, dropped) in (("ok", GONE), (GONE, "ok"), (BUSY, "ok"), ("ok", BUSY))
        found = {name: rows for name, rows in arena.tables().items() if name.endswith(str(turn))}
        assert found == ({target: [1, 2, 3]} if renamed == "ok" else {})


@pytest.mark.parametrize("child", ["declare", "create", "namespace", "rename into"])
@pytest.mark.parametrize("behavior", ["Restrict", "Cascade"])
def test_concurrent_namespace_drop_and_child_creation(arena: Arena, behavior: str, child: str) -> None:
    for turn in range(TURNS):
        name, source = f"n{turn}", f"s{turn}"
        arena.do("create_namespace", id=[name])
        if child == "rename into":
            arena.do("create_table", id=[source], data=MORE)
        comes: Call = {
            "declare": ("declare_table", {"id": [name, "c"]}),
            "create": create(name, "c"),
            "namespace": ("create_namespace", {"id": [name, "c"]}),
            "rename into": rename([source], name, "c"),
        }[child]
        dropped, came = arena.race(("drop_namespace", {"id": [name], "behavior": behavior}), comes)
        tables, exists = arena.tables(), arena.catalog.namespace_exists(name)
        assert exists == (dropped != "ok")
        if behavior == "Restrict":
            assert (dropped, came) in (("ok", NO_PARENT), (NOT_EMPTY, "ok"))
            assert (f"{name}.c" in tables) == (came == "ok" and child != "namespace")
        else:
            assert dropped == "ok"
            # A table that is dropped while its rows are written: the engine finds its directory gone.
            assert came in ("ok", NO_PARENT, *((GONE, REFUSED, "InternalError") if child == "create" else ()))
            assert f"{name}.c" not in tables
        if child == "rename into" and came != "ok":
            assert tables[source] == [4]


def test_concurrent_deregistrations_succeed_once(arena: Arena) -> None:
    for turn in range(TURNS):
        name = f"t{turn}"
        arena.do("create_table", id=[name], data=ROWS)
        place = arena.do("describe_table", id=[name])["location"].rpartition("/")[2]
        call: Call = ("deregister_table", {"id": [name]})
        assert sorted(arena.race(call, call)) == ["TableNotFoundError", "ok"]
        assert name not in arena.tables()
        arena.do("register_table", id=[name], location=place)
        assert arena.tables()[name] == [1, 2, 3]


def test_concurrent_alterations_are_both_kept(arena: Arena) -> None:
    arena.do("create_namespace", id=["n"])
    arena.do("create_table", id=["n", "t"], data=ROWS)
    for turn in range(TURNS):
        for operation, names in (("alter_namespace", ["n"]), ("alter_table", ["n", "t"]), ("alter_namespace", [])):
            calls = [(operation, {"identifier": names, "set": {f"{who}{turn}": "x"}}) for who in "ab"]
            assert arena.race(*calls) == ["ok", "ok"]
    catalog = arena.catalog
    everything = {f"{who}{turn}" for who in "ab" for turn in range(TURNS)}
    assert catalog.describe_namespace("n").properties.keys() == everything
    assert catalog.describe_namespace("").properties.keys() == everything
    assert catalog.describe_table("n.t").properties.keys() == everything
    assert arena.tables() == {"n.t": [1, 2, 3]}


def test_concurrent_registrations_of_one_directory_succeed_once(arena: Arena) -> None:
    for turn in range(TURNS):
        place = f"own{turn}"
        lance.write_dataset(ROWS, f"{arena.properties['root']}/{place}")
        calls = [("register_table", {"id": [f"{who}{turn}"], "location": place}) for who in "ab"]
        outcomes = arena.race(*calls)
        assert sorted(outcomes) == [OVERLAP, "ok"]
        found = [name for name in arena.tables() if name.endswith(str(turn))]
        assert found == [f"{'ab'[outcomes.index('ok')]}{turn}"]


def test_concurrent_migration_and_rename(tmp_path: Path) -> None:
    arena = Arena({"root": str(tmp_path / "lake")}, "compatible", lambda _: [])
    together = threading.Barrier(2)

    def go(act: Callable[..., object], *arguments: str) -> object:
        together.wait(PATIENCE)
        return act(*arguments)

    for turn in range(TURNS):
        name, target = f"t{turn}", f"u{turn}"
        lance.write_dataset(ROWS, f"{arena.properties['root']}/{name}.lance")
        with ThreadPoolExecutor(2) as pool:
            migrated = pool.submit(go, arena.catalog.upkeep.migrate)
            renamed = pool.submit(go, arena.catalog.rename_table, name, target)
            migrated.result()
            renamed.result()
        assert {name: rows for name, rows in arena.tables().items() if name.endswith(str(turn))} == {target: [1, 2, 3]}


def between(catalog: lancekeep.Catalog, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Run ``act`` once, between the next decision of ``catalog`` and its compare-and-set."""
    apply = directory_of(catalog).ledger.apply
    waiting = [act]

    def meddled(decide: Callable[[Any], Any], **options: Any) -> Any:
        def decide_slowly(view: Any) -> Any:
            changes = decide(view)
            while waiting:
                waiting.pop()()
            return changes

        return apply(decide_slowly, **options)

    monkeypatch.setattr(directory_of(catalog).ledger, "apply", meddled)


@pytest.mark.parametrize("operation", ["drop_table", "deregister_table"])
def test_concurrent_migration_and_drop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str) -> None:
    arena = Arena({"root": str(tmp_path / "lake")}, "compatible", lambda _: [])
    lance.write_dataset(ROWS, f"{arena.properties['root']}/t.lance")
    migrating, other = arena.catalog, arena.catalog
    between(migrating, monkeypatch, lambda: getattr(other, operation)("t"))
    migrating.upkeep.migrate()
    assert arena.tables() == {}


def test_table_dropped_during_its_rename_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arena = Arena({"root": str(tmp_path / "lake")}, "compatible", lambda _: [])
    place = f"{arena.properties['root']}/t.lance"
    lance.write_dataset(ROWS, place)
    renaming, other = arena.catalog, arena.catalog
    record = directory_of(renaming).commits.rows.record
    dropped: list[str] = []

    def meddled(rows: Any) -> None:
        if other.table_exists("u"):
            dropped.append(other.drop_table("u").location)
        record(rows)

    def append_late() -> None:  # after the change that records the move
        between(renaming, monkeypatch, lambda: lance.write_dataset(MORE, place, mode="append"))

    between(renaming, monkeypatch, append_late)
    monkeypatch.setattr(directory_of(renaming).commits.rows, "record", meddled)
    assert [renaming.rename_table("t", "u").location] == dropped
    assert arena.tables() == {}
    assert not Path(place).exists()


def test_registration_of_a_chosen_directory_raises_concurrent_modification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arena = Arena({"root": str(tmp_path / "lake")}, "compatible", lambda _: [])
    lance.write_dataset(ROWS, f"{arena.properties['root']}/t.lance")
    declaring, other = arena.catalog, arena.catalog
    other.upkeep.migrate()
    assert declaring.list_tables() == ["t"]
    other.deregister_table("t")
    choose = directory_of(declaring).tables._prescribed_location
    looks: list[Callable[[], object]] = [
        lambda: other.register_table("u", "t.lance"),
        lambda: None,
    ]  # of those, the first is at a stale view

    def slowly(*arguments: Any) -> str | None:
        chosen = choose(*arguments)
        looks.pop()()
        return chosen

    monkeypatch.setattr(directory_of(declaring).tables, "_prescribed_location", slowly)
    with pytest.raises(lancekeep.ConcurrentModification, match="which was chosen for t, belongs to"):
        declaring.declare_table("t")
    assert arena.tables() == {"u": [1, 2, 3]}


def test_concurrent_migration_and_creation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arena = Arena({"root": str(tmp_path / "lake")}, "compatible", lambda _: [])
    lance.write_dataset(ROWS, f"{arena.properties['root']}/t.lance")
    creating, other = arena.catalog, arena.catalog
    apply = directory_of(creating).ledger.apply

    def late(decide: Callable[[Any], Any], **options: Any) -> Any:
        other.upkeep.migrate()
        return apply(decide, **options)

    monkeypatch.setattr(directory_of(creating).ledger, "apply", late)
    creating.write("new", MORE)
    assert arena.tables() == {"t": [1, 2, 3], "new": [4]}
