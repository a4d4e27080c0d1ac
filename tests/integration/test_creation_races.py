"""Processes race to create one table: one wins, its rows are stored, and no loser leaves a directory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import lance
import lance_namespace as api
import pyarrow as pa
import pytest
from deployments import bucket, s3_options
from lance.namespace import DirectoryNamespace as Native
from writers import Answer, Call, Peers

import lancekeep
from lancekeep.adapters.object_stores import open_object_store
from lancekeep.domain.errors import TableAlreadyExists

PROCESSES, ROUNDS = 4, 20
MODES: Mapping[str, Mapping[str, str]] = {
    "v1": {"manifest_enabled": "false"},
    "compatible": {},
    "v2": {"dir_listing_enabled": "false"},
}
LOST = {"TableAlreadyExistsError", "ConcurrentModificationError"}
"""What a loser may be told."""


@pytest.fixture(scope="module")
def peers() -> Iterator[Peers]:
    started = Peers(PROCESSES)
    yield started
    started.close()


def rows_of(process: int, turn: int) -> pa.Table:
    """Return the rows of one process; each process writes another number of rows."""
    return pa.table({"process": [process] * (process + 1), "turn": [turn] * (process + 1)})


def commit_store(url: str | None) -> dict[str, str]:
    return {} if url is None else {"commit_store": url}


def creations(process: int, rounds: int) -> list[Call]:
    return [("create_table", {"id": [f"t{turn}"], "data": rows_of(process, turn)}) for turn in range(rounds)]


def race(peers: Peers, properties: Mapping[str, str], natives: int = 0, rounds: int = ROUNDS) -> list[list[Answer]]:
    """The answers of every process in each turn; the first ``natives`` of them are native."""
    given = [(process < natives, properties, creations(process, rounds)) for process in range(PROCESSES)]
    return [list(turn) for turn in zip(*peers.race(*given), strict=True)]


def assert_one_winner_each(catalog: lancekeep.Catalog, turns: list[list[Answer]]) -> None:
    for turn, answers in enumerate(turns):
        winners = [process for process, (kind, _) in enumerate(answers) if kind == "ok"]
        assert len(winners) == 1, answers
        assert {kind for kind, _ in answers} <= {"ok", *LOST}, answers
        assert catalog.open(f"t{turn}").to_table() == rows_of(winners[0], turn)
    assert sorted(catalog.list_tables()) == sorted(f"t{turn}" for turn in range(len(turns)))


def directories(root: str, options: Mapping[str, str] | None = None) -> set[str]:
    """Those below the root, empty ones too; without the manifest's."""
    objects, key = open_object_store(root, dict(options or {}))
    return set(objects.directories(f"{key}/")) - {"__manifest"}


def places(catalog: lancekeep.Catalog) -> set[str]:
    return {catalog.find_table(name).location for name in catalog.list_tables()}


@pytest.mark.parametrize("managed", [False, True], ids=["storage-managed", "sqlite"])
@pytest.mark.parametrize("mode", MODES)
def test_of_four_processes_one_creates_the_table(peers: Peers, tmp_path: Path, mode: str, managed: bool) -> None:
    root = str(tmp_path / "lake")
    store = f"sqlite://{tmp_path}/commits.db" if managed else None
    turns = race(peers, {"root": root, **MODES[mode], **commit_store(store)})
    catalog = lancekeep.connect(root, mode=mode, commit_store=store)
    assert_one_winner_each(catalog, turns)
    assert directories(root) == places(catalog)
    assert catalog.upkeep.fsck(grace=0).findings == ()


@pytest.mark.parametrize("managed", [False, True], ids=["storage-managed", "conditional-put"])
def test_of_four_processes_one_creates_the_table_on_s3(peers: Peers, moto_endpoint: str, managed: bool) -> None:
    root, options = f"s3://{bucket(moto_endpoint)}/lake", s3_options(moto_endpoint)
    store = "conditional-put://" if managed else None
    storage = {f"storage.{name}": value for name, value in options.items()}
    vend = {"vend_input_storage_options": "true"}
    turns = race(peers, {"root": root, **MODES["v2"], **storage, **vend, **commit_store(store)}, rounds=5)
    catalog = lancekeep.connect(root, mode="v2", storage_options=options, commit_store=store)
    assert_one_winner_each(catalog, turns)
    assert directories(root, options) == places(catalog)


def test_of_two_native_and_two_own_processes_one_creates_the_table(peers: Peers, tmp_path: Path) -> None:
    """Departures: a native process that loses leaves the directory that it wrote, rows and all. And one that has seen
    no manifest table makes it by an overwrite, which takes away what another has entered in between: so it is made
    before the race.
    """
    root, natives = str(tmp_path / "lake"), 2
    catalog = lancekeep.connect(root, mode="v2")
    catalog.create_namespace("before")
    turns = race(peers, {"root": root, **MODES["v2"]}, natives=natives)
    assert_one_winner_each(catalog, turns)
    lost = sum(kind != "ok" for answers in turns for kind, _ in answers[:natives])
    left = directories(root) - places(catalog)
    assert len(left) <= lost
    for name in left:
        assert set(lance.dataset(f"{root}/{name}").to_table()["process"].to_pylist()) <= set(range(natives)), name


@pytest.mark.parametrize("managed", [False, True], ids=["storage-managed", "sqlite"])
def test_entry_follows_the_rows_and_the_faster_creator_keeps_the_table(tmp_path: Path, managed: bool) -> None:
    """While one writes its rows, another finds no table of that name, and creates it; a native one without a store."""
    root, store = str(tmp_path / "lake"), f"sqlite://{tmp_path}/commits.db" if managed else None
    properties = {"root": root, **MODES["v2"]}
    other = lancekeep.DirectoryNamespace(**properties, **commit_store(store)) if managed else Native(**properties)
    catalog = lancekeep.connect(root, mode="v2", commit_store=store)
    catalog.create_namespace("n")

    def rows() -> Iterator[pa.RecordBatch]:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows_of(1, 0).schema) as writer:
            writer.write_table(rows_of(1, 0))
        assert other.list_tables(api.ListTablesRequest(id=["n"], include_declared=True)).tables == []
        other.create_table(api.CreateTableRequest(id=["n", "t"]), sink.getvalue().to_pybytes())
        yield from rows_of(0, 0).to_batches()

    with pytest.raises(TableAlreadyExists):
        catalog.write("n.t", pa.RecordBatchReader.from_batches(rows_of(0, 0).schema, rows()))
    assert catalog.open("n.t").to_table() == rows_of(1, 0)
    assert directories(root) == {catalog.find_table("n.t").location}


@pytest.mark.parametrize("mode", ["v1", "compatible"])
def test_where_directories_have_v1_names_native_processes_break_in_and_own_ones_say_so(
    peers: Peers, tmp_path: Path, mode: str
) -> None:
    """Departure: native processes write into a reserved directory, so several or none report success.

    At most one Lancekeep process succeeds, and the others report the reason.
    """
    root, natives = str(tmp_path / "lake"), 2
    turns = race(peers, {"root": root, **MODES[mode]}, natives=natives)
    catalog = lancekeep.connect(root, mode=mode)
    for turn, answers in enumerate(turns):
        own = [kind for kind, _ in answers[natives:]]
        assert own.count("ok") <= 1
        assert set(own) <= {"ok", *LOST}, answers
        stored = catalog.open(f"t{turn}").to_table()
        assert stored in [rows_of(process, turn) for process in range(PROCESSES)]
    assert directories(root) == places(catalog)
