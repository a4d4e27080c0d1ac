"""Upserts that are committed without the engine have the effect, the counts and the files of those of the engine."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial, partialmethod
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import attrs
import lance
import pyarrow as pa
import pytest
from appending import all_at_once, held_back
from engines import ALL, Engine
from faults import Crash, Faulty

import lancekeep
from lancekeep.adapters.lance.rows import LanceRows
from lancekeep.application.catalog import directory_of
from lancekeep.application.commits.table_commits import TableCommits
from lancekeep.application.retry import Retry
from lancekeep.application.rows import direct_upserts, known_keys
from lancekeep.application.rows.direct_upserts import DirectUpserts
from lancekeep.domain.commit import Changed
from lancekeep.domain.commit_token import CommitUnknown
from lancekeep.domain.errors import InvalidInput, ObjectNotFound, StoreUnavailable
from lancekeep.domain.operations import Update
from lancekeep.format.table_version import TableVersion
from lancekeep.ports.rows import MergeCounts, MergeRule

UPSERT = MergeRule(["id"], update=True, insert=True)
STORES = ("sqlite", "conditional-put", "none")


def connect(directory: Path, store: str = "none") -> lancekeep.Catalog:
    url = {"sqlite": f"sqlite://{directory}/commits.db", "conditional-put": "conditional-put://"}.get(store)
    return lancekeep.connect(str(directory / "lake"), commit_store=url, storage_options={"fsync": "false"})


def people(*ids: int, by: int = 0) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "by": pa.array([by] * len(ids), pa.int64())})


def upsert(catalog: lancekeep.Catalog, rows: pa.Table, rule: MergeRule = UPSERT) -> MergeCounts:
    return catalog.data.merge("t", rows.to_reader(), rule)[1]


def plain(catalog: lancekeep.Catalog, version: int | None = None) -> lance.LanceDataset:
    """The table as plain pylance reads it."""
    return lance.dataset(catalog.describe_table("t").uri, version=version)


def rows_of(catalog: lancekeep.Catalog) -> dict[Any, int]:
    """Return who has written each key last. Requires each key once."""
    rows = plain(catalog).to_table().to_pydict()
    assert len(rows["id"]) == len(set(rows["id"])), "a key is there twice"
    return dict(zip(rows["id"], rows["by"], strict=True))


def version_of(catalog: lancekeep.Catalog) -> TableVersion:
    dataset = plain(catalog)
    name = f"{2**64 - 1 - dataset.version:020}.manifest"
    return TableVersion.parse(Path(dataset.uri.removeprefix("file://"), "_versions", name).read_bytes(), name)


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold the keys of each table from its first upsert on."""
    monkeypatch.setattr(direct_upserts, "_OFTEN", 0)


@pytest.fixture
def merges(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note how many rows the engine merges each time."""
    merge, noted = LanceRows.merge, list[int]()

    def noting(self: LanceRows, dataset: Any, source: Any, rule: MergeRule) -> Any:
        made = merge(self, dataset, source, rule)
        noted.append(made[1].inserted + made[1].updated)
        return made

    monkeypatch.setattr(LanceRows, "merge", noting)
    return noted


@pytest.mark.parametrize("store", STORES)
def test_waiting_upserts_share_a_version_and_have_their_own_counts(
    tmp_path: Path, merges: list[int], store: str
) -> None:
    catalog = connect(tmp_path, store)
    catalog.write("t", people(*range(8)))
    catalog.open("t").create_scalar_index("id", "BTREE")
    catalog.write("t", people(8, 9), "append")
    catalog.data.delete("t", "id = 3")
    given = [people(0, 8, 100, by=1), people(1, 2, by=2), people(101, 3, by=3), people(9, by=4)]
    held_back(catalog, len(given), upserts=True)
    version = plain(catalog).version
    assert all_at_once([partial(upsert, catalog, rows) for rows in given]) == [
        MergeCounts(1, 2, 0),
        MergeCounts(0, 2, 0),
        MergeCounts(2, 0, 0),
        MergeCounts(0, 1, 0),
    ]
    assert plain(catalog).version == version + 1
    expected = dict.fromkeys(range(10), 0) | {0: 1, 8: 1, 100: 1, 1: 2, 2: 2, 101: 3, 3: 3, 9: 4}
    assert rows_of(catalog) == expected
    for key, by in expected.items():
        assert plain(catalog).to_table(filter=f"id = {key}")["by"].to_pylist() == [by]
    plain(catalog).validate()
    assert not merges


def test_group_writes_its_files_at_once_and_reads_nothing(tmp_path: Path, merges: list[int]) -> None:
    catalog = connect(tmp_path)
    catalog.write("t", people(*range(8)))
    upsert(catalog, people(1, 8, by=1))
    commits = directory_of(catalog).versions.commits
    commits.objects = counted = Faulty(commits.objects)
    upsert(catalog, people(2, 8, 9, by=2))
    written = {name: counted.counts[name] for name in ("put", "put_if_absent", "get", "copy_if_absent")}
    # Data, transaction, the deletion files of two fragments, and the manifest.
    assert written == {"put": 4, "put_if_absent": 1, "get": 0, "copy_if_absent": 0}
    assert rows_of(catalog) == dict.fromkeys(range(8), 0) | {1: 1, 2: 2, 8: 2, 9: 2}


@pytest.mark.parametrize("nested", [False, True])
def test_version_equals_the_one_that_the_engine_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nested: bool
) -> None:
    def rows(*ids: int, by: int = 0) -> pa.Table:
        place = pa.array([{"x": by, "names": ["a"]}] * len(ids))
        return people(*ids, by=by).append_column("place", place) if nested else people(*ids, by=by)

    versions = []
    for often in (0, 99):
        monkeypatch.setattr(direct_upserts, "_OFTEN", often)
        catalog = connect(tmp_path / str(often))
        catalog.write("t", rows(*range(6)))
        catalog.open("t").create_scalar_index("id", "BTREE")
        catalog.write("t", rows(6, 7), "append")
        upsert(catalog, rows(0, 6, 7, 9, by=1))
        upsert(catalog, rows(0, 1, 9, 10, by=2))
        versions.append(version_of(catalog))
    ours, engines = versions
    alike = [_without_chance(each) for each in (ours, engines)]
    assert alike[0] == alike[1]
    assert isinstance(ours.transaction and ours.transaction.operation, Update)


def _without_chance(version: TableVersion) -> Any:
    """Return a version without times, random names and sizes of files."""

    def fragment(each: Any) -> Any:
        file = each.deletion_file
        return attrs.evolve(
            each,
            files=tuple(attrs.evolve(data, path="", file_size_bytes=0) for data in each.files),
            deletion_file=file and attrs.evolve(file, id=0),
        )

    manifest, transaction = version.manifest, version.transaction
    assert transaction is not None
    update = transaction.operation
    assert isinstance(update, Update)
    return (
        [fragment(each) for each in manifest.fragments],
        [attrs.evolve(each, uuid="", created_at=0, files=()) for each in version.indices],
        attrs.evolve(
            manifest,
            fragments=(),
            timestamp=None,
            transaction_file="",
            index_section=None,
            transaction_section=None,
            transaction_section_21=None,
            writer_version=None,
            others=b"",
        ),
        attrs.evolve(
            update,
            updated_fragments=tuple(sorted(map(fragment, update.updated_fragments), key=lambda each: each.id)),
            new_fragments=tuple(map(fragment, update.new_fragments)),
        ),
        dict(transaction.transaction_properties),
        transaction.read_version,
    )


@pytest.mark.parametrize("store", ["none", "sqlite"])
def test_upserts_between_other_changes_are_exact(
    tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch, merges: list[int]
) -> None:
    monkeypatch.setattr(known_keys, "_MOST_MOVED", 50)
    chance, catalog, native = random.Random(store), connect(tmp_path, store), connect(tmp_path, store)
    catalog.write("t", people(*range(100)))
    catalog.open("t").create_scalar_index("id", "BTREE")
    expected = dict.fromkeys(range(100), 0)
    new = count(1000)

    def by_engine(turn: int) -> None:
        rows = people(*chance.sample(range(150), 5), by=turn)
        dataset = native.open("t").merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
        dataset.execute(rows)
        expected.update(dict.fromkeys(rows["id"].to_pylist(), turn))

    def deletes(turn: int) -> None:
        catalog.data.delete("t", f"id % 11 = {turn % 11}")
        for key in [key for key in expected if key % 11 == turn % 11]:
            del expected[key]

    def updates(turn: int) -> None:
        catalog.data.update("t", {"by": str(turn)}, "id < 20")
        expected.update({key: turn for key in expected if key < 20})

    def appends(turn: int) -> None:
        key = next(new)
        native.write("t", people(key, by=turn), "append")
        expected[key] = turn

    def overwrites(turn: int) -> None:
        native.write("t", people(*range(50), by=turn), "overwrite")
        expected.clear()
        expected.update(dict.fromkeys(range(50), turn))

    others: Sequence[Callable[[int], object]] = (
        by_engine,
        deletes,
        updates,
        appends,
        lambda _: catalog.upkeep.compact("t"),
        lambda _: native.open("t").optimize.optimize_indices(),
        overwrites,
    )
    for turn in range(1, 70):
        ids = chance.sample(range(160), chance.randint(1, 12))
        known = len(expected.keys() & set(ids))
        assert upsert(catalog, people(*ids, by=turn)) == MergeCounts(len(ids) - known, known, 0), turn
        expected.update(dict.fromkeys(ids, turn))
        if turn % 4 == 0:
            others[turn // 4 % len(others)](turn)
        if turn % 10 == 0:
            assert rows_of(catalog) == expected
    assert not merges
    dataset = plain(catalog)
    dataset.validate()
    assert rows_of(catalog) == expected
    for key in range(160):
        found = dataset.to_table(filter=f"id = {key}")["by"].to_pylist()
        assert found == [expected[key] for _ in range(key in expected)]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.uint64(), pa.int8()], ids=str)
def test_keys_of_each_type_are_found(tmp_path: Path, merges: list[int], kind: pa.DataType) -> None:
    texts = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    most = 2**64 - 1 if kind == pa.uint64() else 127
    keys: list[Any] = ["", "a", "ä", "a\x00", "𝄞", "a'b"] if texts else [0, 1, most, 5, 6, 7]
    catalog = connect(tmp_path)

    def rows(some: Sequence[Any], by: int) -> pa.Table:
        return pa.table({"id": pa.array(some, kind), "by": pa.array([by] * len(some), pa.int64())})

    catalog.write("t", rows([*keys[:4], None], 0))
    assert upsert(catalog, rows(keys[1:5], 1)) == MergeCounts(1, 3, 0)
    assert upsert(catalog, rows(keys[2:], 2)) == MergeCounts(1, 3, 0)
    assert rows_of(catalog) == dict(zip([*keys, None], [0, 1, 2, 2, 2, 2, 0], strict=True))
    assert not merges


def test_fragments_lose_many_rows_and_all_rows(tmp_path: Path, merges: list[int]) -> None:
    catalog = connect(tmp_path)
    catalog.write("t", people(*range(6000)))
    for first in range(0, 6000, 1000):
        assert upsert(catalog, people(*range(first, first + 999), by=1)) == MergeCounts(0, 999, 0)
        suffix = "bin" if first == 5000 else "arrow"
        file = version_of(catalog).manifest.fragments[0].deletion_file
        assert file is not None
        assert file.num_deleted_rows == 999 * (first // 1000 + 1)
        assert any(each.suffix == f".{suffix}" for each in (tmp_path / "lake").rglob(f"*-{file.id}.*"))
    assert upsert(catalog, people(*range(999, 6000, 1000), by=1)) == MergeCounts(0, 6, 0)
    assert [fragment.fragment_id for fragment in plain(catalog).get_fragments()] == [1, 2, 3, 4, 5, 6, 7]
    assert rows_of(catalog) == dict.fromkeys(range(6000), 1)
    assert not merges


def _stable(catalog: lancekeep.Catalog) -> None:
    catalog.write("t", people(0, 1), stable_row_ids=True)


def _twice(catalog: lancekeep.Catalog) -> None:
    catalog.write("t", people(0, 1, 1))


def _keyed(catalog: lancekeep.Catalog) -> None:
    field = pa.field("id", pa.int64(), False, {"lance-schema:unenforced-primary-key": "true"})
    catalog.write("t", people(0, 1).cast(pa.schema([field, ("by", pa.int64())])))


def _cleaned(catalog: lancekeep.Catalog) -> None:
    catalog.write("t", people(0, 1))
    catalog.open("t").update_config({"lance.auto_cleanup.interval": "99", "lance.auto_cleanup.older_than": "7d"})


@pytest.mark.parametrize("made", [_stable, _twice, _keyed, _cleaned], ids=lambda made: made.__name__[1:])
def test_engine_merges_what_only_it_can(
    tmp_path: Path, merges: list[int], made: Callable[[lancekeep.Catalog], None]
) -> None:
    catalog = connect(tmp_path)
    made(catalog)
    rows = people(1, 2, by=1)
    if made is _keyed:
        rows = rows.cast(pa.schema([pa.field("id", pa.int64(), False), ("by", pa.int64())]))
    upsert(catalog, rows)
    assert merges
    assert {0: 0, 1: 1, 2: 1}.items() <= dict(zip(*plain(catalog).to_table().to_pydict().values(), strict=True)).items()


@pytest.mark.parametrize("made", [None, _stable], ids=["plain", "stable"])
def test_first_of_many_clients_is_not_merged_by_the_engine_if_the_others_arrive_while_it_opens_the_table(
    tmp_path: Path, merges: list[int], monkeypatch: pytest.MonkeyPatch, made: Callable[[lancekeep.Catalog], None] | None
) -> None:
    monkeypatch.setattr(direct_upserts, "_OFTEN", 4)
    commit, is_alone, opens = DirectUpserts.commit, Event(), count()

    def opening(self: DirectUpserts, table: Any, *given: Any, **named: Any) -> Changed | None:
        done = commit(self, table, *given, **named)
        if next(opens) == 0:
            assert done is None
            is_alone.set()
            while len(directory_of(catalog).upserts._waiting_lines.of(table).waiting) < 3:
                Event().wait(0.001)
        return done

    monkeypatch.setattr(DirectUpserts, "commit", opening)
    catalog = connect(tmp_path)
    (made or (lambda catalog: catalog.write("t", people(0, 1))))(catalog)
    version = plain(catalog).version

    def arrive(number: int) -> MergeCounts:
        if number:
            is_alone.wait(30)
        return upsert(catalog, people(number, 10 + number, by=5 + number))

    counts = all_at_once([partial(arrive, number) for number in range(4)])
    assert counts == [*[MergeCounts(1, 1, 0)] * 2, *[MergeCounts(2, 0, 0)] * 2]
    assert rows_of(catalog) == {number: 5 + number % 10 for number in (0, 1, 2, 3, 10, 11, 12, 13)}
    assert plain(catalog).version == version + 2
    assert merges == ([] if made is None else [2, 6])


@pytest.mark.parametrize("store", STORES)
def test_columns_of_another_writer_are_read_when_rows_have_them(tmp_path: Path, merges: list[int], store: str) -> None:
    catalog = connect(tmp_path, store)
    catalog.write("t", people(0, 1))
    upsert(catalog, people(1, 2, by=1))
    connect(tmp_path, store).open("t").add_columns({"more": "by + 1"})
    rows = people(2, 3, by=2).append_column("more", pa.array([7, 8], pa.int64()))
    assert upsert(catalog, rows) == MergeCounts(1, 1, 0)
    assert not merges
    assert rows_of(catalog) == {0: 0, 1: 1, 2: 2, 3: 2}


@pytest.mark.parametrize("rule", [UPSERT, MergeRule(["id", "by"], update=True, insert=True)], ids=["twice", "columns"])
def test_group_that_only_the_engine_merges_is_tried_once_without_it(
    tmp_path: Path, merges: list[int], monkeypatch: pytest.MonkeyPatch, rule: MergeRule
) -> None:
    calls: dict[str, int] = {"commit": 0, "_read_again": 0}
    for name in calls:

        def counted(self: DirectUpserts, *given: Any, name: str = name, act: Any, **named: Any) -> Any:
            calls[name] += 1
            return act(self, *given, **named)

        monkeypatch.setattr(DirectUpserts, name, partialmethod(counted, act=getattr(DirectUpserts, name)))
    catalog = connect(tmp_path, "sqlite")
    _twice(catalog)
    for turn in range(3):
        upsert(catalog, people(1, 7 + turn, by=turn), rule)
    assert len(merges) == 3
    assert calls == {"commit": 3, "_read_again": 3 * (rule is UPSERT)}


@pytest.mark.parametrize("limit", ["MOST_KEYS", "MOST_BYTES"])
def test_keys_that_are_too_many_are_not_read_again_and_again(
    tmp_path: Path, merges: list[int], monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(direct_upserts, limit, 3)
    read, reads = DirectUpserts._read, list[int]()

    def noting(self: DirectUpserts, *given: Any) -> Any:
        reads.append(1)
        return read(self, *given)

    monkeypatch.setattr(DirectUpserts, "_read", noting)
    catalog = connect(tmp_path)
    catalog.write("t", people(*range(4)))
    for turn in range(3):
        assert upsert(catalog, people(1, 9 + turn, by=turn)) == MergeCounts(1, 1, 0)
    assert (len(merges), len(reads)) == (3, 1)


def test_keys_of_tables_leave_memory_in_the_order_of_their_use(
    tmp_path: Path, merges: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_upserts, "MOST_BYTES_TOGETHER", 4 * 100 * 16)
    catalog = connect(tmp_path)
    for turn in range(2):
        for number in range(8):
            if not turn:
                catalog.write(f"t{number}", people(*range(100)))
            counts = catalog.data.merge(f"t{number}", people(1, 100 + turn).to_reader(), UPSERT)[1]
            assert counts == MergeCounts(1, 1, 0)
    assert len(directory_of(catalog).upserts._direct._known) <= 4  # type: ignore[union-attr]
    assert not merges


def test_keys_of_many_small_tables_leave_memory(
    tmp_path: Path, merges: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_upserts, "_REMEMBERED", 2)
    catalog = connect(tmp_path)
    for number in range(4):
        catalog.write(f"t{number}", people(1))
        catalog.data.merge(f"t{number}", people(1, 2).to_reader(), UPSERT)
        catalog.drop_table(f"t{number}")
    assert len(directory_of(catalog).upserts._direct._known) == 2  # type: ignore[union-attr]
    assert not merges


@pytest.mark.parametrize(("limit", "most"), [("MOST_KEYS", 9), ("MOST_BYTES", 2500)])
def test_keys_that_become_too_many_leave_memory(
    tmp_path: Path, merges: list[int], monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(known_keys, limit, most)
    catalog = connect(tmp_path)
    catalog.write("t", people(0))
    for turn in range(1, 13):
        assert upsert(catalog, people(turn, turn - 1, by=turn)) == MergeCounts(1, 1, 0)
    assert not directory_of(catalog).upserts._direct._known  # type: ignore[union-attr]
    assert 0 < len(merges) < 8
    assert rows_of(catalog) == {turn: min(turn + 1, 12) for turn in range(13)}


def test_keys_that_are_long_leave_the_memory_of_moves(
    tmp_path: Path, merges: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_keys, "_MOST_MOVED_BYTES", 10_000)
    catalog = connect(tmp_path)
    keys = [f"{number}{'x' * 4000}" for number in range(12)]
    catalog.write("t", pa.table({"id": keys[:1], "by": [0]}))
    for turn in range(1, 12):
        rows = pa.table({"id": keys[turn - 1 : turn + 1], "by": [turn, turn]})
        assert upsert(catalog, rows) == MergeCounts(1, 1, 0)
        [known] = directory_of(catalog).upserts._direct._known.values()  # type: ignore[union-attr]
        assert len(known.keys._moved) < 4
        assert 4000 * turn < known.keys.size < 4300 * (turn + 3)
    assert rows_of(catalog) == {key: min(turn + 1, 11) for turn, key in enumerate(keys)}
    assert not merges


def test_upserts_of_the_same_keys_need_no_more_memory(tmp_path: Path, merges: list[int]) -> None:
    catalog = connect(tmp_path)
    catalog.write("t", people(0, 1))
    for turn in range(20):
        upsert(catalog, people(0, 1, by=turn))
    [known] = directory_of(catalog).upserts._direct._known.values()  # type: ignore[union-attr]
    assert (len(known.keys._moved), len(known.keys._dead)) == (2, 2)
    moved = known.keys.size
    assert moved < 1000
    upsert(connect(tmp_path), people(0, 1, by=30))
    upsert(catalog, people(2, by=31))
    assert known.keys.size < moved, "the fragment of the moved keys has left the table"
    assert not merges


def test_upserts_by_other_key_columns_are_exact(tmp_path: Path, merges: list[int]) -> None:
    catalog = connect(tmp_path)
    catalog.write("t", people(0, 1))
    upsert(catalog, people(1, by=1))
    assert upsert(catalog, people(2, by=1), MergeRule(["id", "by"], update=True, insert=True)) == MergeCounts(1, 0, 0)
    assert len(merges) == 1
    assert upsert(catalog, people(2, 3, by=2)) == MergeCounts(1, 1, 0)
    assert upsert(catalog, people(9, by=0), MergeRule(["by"], update=True, insert=True)) == MergeCounts(0, 1, 0)


def test_key_column_whose_name_was_another_column_s_is_read_again(tmp_path: Path) -> None:
    catalog = connect(tmp_path)
    catalog.write("t", pa.table({"id": [0, 1, 2], "by": [7, 8, 9]}))
    upsert(catalog, people(2, by=9))
    for old, new in (("id", "old"), ("by", "id"), ("old", "by")):
        catalog.open("t").alter_columns({"path": old, "name": new})
    rows = pa.table({"by": pa.array([5, 6], pa.int64()), "id": pa.array([8, 1], pa.int64())})
    assert upsert(catalog, rows) == MergeCounts(1, 1, 0)
    assert rows_of(catalog) == {7: 0, 8: 5, 9: 2, 1: 6}


def test_group_after_a_change_of_columns_is_committed_without_the_engine(tmp_path: Path, merges: list[int]) -> None:
    catalog = connect(tmp_path)
    catalog.write("t", people(0, 1))
    upsert(catalog, people(1, by=1))
    catalog.open("t").add_columns({"more": "by + 1"})
    rows = people(1, 2, by=2).append_column("more", pa.array([3, 3], pa.int64()))
    assert upsert(catalog, rows) == MergeCounts(1, 1, 0)
    assert plain(catalog).to_table().sort_by("id").to_pydict() == {"id": [0, 1, 2], "by": [0, 2, 2], "more": [1, 3, 3]}
    assert not merges


@pytest.mark.parametrize("call", ["get", "put", "head"])
def test_fault_before_the_commit_leaves_the_group_to_the_engine(tmp_path: Path, merges: list[int], call: str) -> None:
    catalog, other = connect(tmp_path), connect(tmp_path)
    catalog.write("t", people(*range(6)))
    upsert(catalog, people(1, by=1))
    other.data.delete("t", "id = 0")
    other.write("t", people(7), "append")
    commits = directory_of(catalog).versions.commits
    healthy = commits.objects
    failed: list[bool] = []

    def once(name: str, _: int) -> tuple[str, BaseException] | None:
        if name != call or failed:
            return None
        failed.append(True)
        return "before", ObjectNotFound("gone")

    commits.objects = Faulty(healthy, once)
    assert upsert(catalog, people(1, 7, 8, by=2)) == MergeCounts(1, 2, 0)
    assert merges
    commits.objects = healthy
    versions = [plain(catalog, each["version"]) for each in plain(catalog).versions()]
    named = {file.path for each in versions for part in each.get_fragments() for file in part.data_files()}
    assert {each.name for each in (tmp_path / "lake").rglob("t.lance/data/*")} == named, "files of the group are left"
    other.data.delete("t", "id = 2")
    assert upsert(catalog, people(1, 2, 8, by=3)) == MergeCounts(1, 2, 0)
    assert rows_of(catalog) == {1: 3, 2: 3, 3: 0, 4: 0, 5: 0, 7: 2, 8: 3}


def test_row_that_violates_a_rule_fails_its_caller_alone(tmp_path: Path) -> None:
    catalog = connect(tmp_path)
    catalog.write("t", people(0, 1), properties={"constraint.small": "by < 5"})
    upsert(catalog, people(1, by=1))
    held_back(catalog, 3, upserts=True)
    answers = all_at_once([partial(upsert, catalog, people(each, by=each)) for each in (2, 3, 7)])
    assert answers[:2] == [MergeCounts(1, 0, 0)] * 2
    assert isinstance(answers[2], InvalidInput)
    assert rows_of(catalog) == {0: 0, 1: 1, 2: 2, 3: 3}


# -- other writers and faults --------------------------------------------------------------------------------------


def at_each_commit(monkeypatch: pytest.MonkeyPatch, acts: Iterator[Callable[[], object]]) -> None:
    """Let other writers act directly before the commits of direct upserts."""
    published = DirectUpserts._published

    def late(self: DirectUpserts, *given: Any) -> Any:
        next(acts, lambda: None)()
        return published(self, *given)

    monkeypatch.setattr(DirectUpserts, "_published", late)


@pytest.mark.parametrize("store", STORES)
def test_upsert_that_loses_its_version_looks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merges: list[int], store: str
) -> None:
    catalog, other = connect(tmp_path, store), connect(tmp_path, store)
    catalog.write("t", people(0, 1, 2))
    upsert(catalog, people(0))
    acts = [lambda: other.write("t", people(5, by=9), "append"), lambda: other.data.delete("t", "id = 1")]
    at_each_commit(monkeypatch, iter(acts))
    assert upsert(catalog, people(1, 5, by=1)) == MergeCounts(1, 1, 0)
    assert rows_of(catalog) == {0: 0, 1: 1, 2: 0, 5: 1}
    assert not merges
    left = list(Path(plain(catalog).uri.removeprefix("file://"), "data").iterdir())
    used = {file.path for fragment in version_of(catalog).manifest.fragments for file in fragment.files}
    assert len(left) - len(used) <= 1, "files of lost attempts are left"  # one fragment has lost all its rows


def test_upsert_that_loses_often_is_rebased_by_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merges: list[int]
) -> None:
    catalog, other, keys = connect(tmp_path), connect(tmp_path), count(100)
    catalog.write("t", people(0, 1, 2))
    upsert(catalog, people(0))
    at_each_commit(monkeypatch, (lambda: other.write("t", people(next(keys)), "append") for _ in count()))
    assert upsert(catalog, people(1, 5, by=1)) == MergeCounts(1, 1, 0)
    assert len(merges) == 1
    assert rows_of(catalog) == {0: 0, 1: 1, 2: 0, 5: 1} | dict.fromkeys(range(100, next(keys)), 0)


def test_table_that_was_created_again_is_read_again(tmp_path: Path) -> None:
    catalog, other = connect(tmp_path), connect(tmp_path)
    catalog.write("t", people(0, 1, 2))
    upsert(catalog, people(0, by=1))
    other.drop_table("t")
    other.write("t", people(0, 7))
    upsert(other, people(7, by=1))
    assert upsert(catalog, people(1, 7, by=2)) == MergeCounts(1, 1, 0)
    assert rows_of(catalog) == {0: 0, 1: 2, 7: 2}


@pytest.mark.parametrize("store", ["none", "sqlite"])
def test_lost_reply_of_the_commit_is_settled(tmp_path: Path, merges: list[int], store: str) -> None:
    catalog = connect(tmp_path, store)
    catalog.write("t", people(1, 2))
    upsert(catalog, people(1, by=1))
    decisive = "put_if_absent" if store == "none" else "reserve"
    healthy, broken = directory_of(catalog).commits, list[bool]()

    def down(name: str, _: int) -> tuple[str, BaseException] | None:
        if name == decisive and not broken:
            broken.append(True)
            return "after", StoreUnavailable("the reply was lost")
        return ("before", StoreUnavailable("down")) if broken else None

    faulty = TableCommits(
        Faulty(healthy.objects, down), Faulty(healthy.rows, down), "tester", Retry(0.05, sleep=lambda _: None)
    )
    directory_of(catalog).ledger.commits = faulty
    with pytest.raises(CommitUnknown) as unknown:
        upsert(catalog, people(2, 3, by=2))
    again = connect(tmp_path, store)
    assert isinstance(again.resolve(unknown.value.token), lancekeep.Committed)
    assert rows_of(again) == {1: 1, 2: 2, 3: 2}
    directory_of(catalog).ledger.commits = healthy
    assert upsert(catalog, people(3, 4, by=3)) == MergeCounts(1, 1, 0)
    assert rows_of(again) == {1: 1, 2: 2, 3: 3, 4: 3}
    assert not merges


@pytest.mark.parametrize("when", ["before", "after"])
def test_process_that_dies_at_any_call_leaves_all_of_an_upsert_or_nothing(tmp_path: Path, when: str) -> None:
    connect(tmp_path).write("t", people(0, 1))
    for nth in count():
        catalog, calls, crashed = connect(tmp_path), count(), list[int]()
        upsert(catalog, people(0, by=nth + 1))
        commits = directory_of(catalog).versions.commits

        def decide(
            name: str, _: int, calls: Any = calls, crashed: list[int] = crashed, nth: int = nth
        ) -> tuple[str, BaseException] | None:
            if crashed or next(calls) == nth:
                crashed.append(nth)
                return ("before" if len(crashed) > 1 else when), Crash()
            return None

        commits.objects = Faulty(commits.objects, decide)
        with suppress(Crash, lancekeep.LancekeepError):
            upsert(catalog, people(0, 1, 10 + nth, by=nth + 1))
        found = rows_of(connect(tmp_path))
        assert found[0] == nth + 1
        assert (10 + nth in found) == (found[1] == nth + 1)
        if not crashed:
            assert nth > 4
            return


def test_fault_after_the_commit_fails_no_upsert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = connect(tmp_path)
    catalog.write("t", people(0, 1))
    with monkeypatch.context() as patched:
        patched.setattr(known_keys.KnownKeys, "move", lambda *given: 1 / 0)
        assert upsert(catalog, people(1, 2, by=1)) == MergeCounts(1, 1, 0)
    assert upsert(catalog, people(2, 3, by=2)) == MergeCounts(1, 1, 0)
    assert rows_of(catalog) == {0: 0, 1: 1, 2: 2, 3: 2}


def test_change_names_its_version_and_transaction(tmp_path: Path) -> None:
    catalog = connect(tmp_path)
    catalog.write("t", people(0, 1))
    change, _ = catalog.data.merge("t", people(1, 2).to_reader(), UPSERT)
    assert isinstance(change, Changed)
    name = version_of(catalog).manifest.transaction_file
    assert (change.version, f"{change.version - 1}-{change.transaction}.txn") == (plain(catalog).version, name)
    assert len(list((tmp_path / "lake").rglob(f"_transactions/{name}"))) == 1


@pytest.mark.parametrize("name", ALL)
def test_other_engines_read_and_continue_what_was_committed_without_the_engine(
    tmp_path: Path, merges: list[int], engine_of: Callable[[str], Engine], name: str
) -> None:
    """A handle of another engine is held across the upserts; its indexed answers are those of a scan."""
    catalog = connect(tmp_path)
    catalog.write("t", people(*range(100)))
    catalog.open("t").create_scalar_index("id", "BTREE")
    held = engine_of(name).open(catalog.describe_table("t").uri)
    for at in range(1, 9):
        upsert(catalog, people(at, at * 11 % 100, 100 + at, by=at))
    assert not merges
    assert held.rows().num_rows == 100  # as of its version
    held.refresh()
    expected = rows_of(catalog)
    for key in (0, 1, 8, 11, 88, 101, 108, 109):
        assert held.rows(f"id = {key}")["by"].to_pylist() == [expected[each] for each in expected if each == key]
    held.merge("id", people(1, 200, by=9))
    upsert(catalog, people(1, 201, by=10))
    assert rows_of(catalog) == {**expected, 1: 10, 200: 9, 201: 10}
    held.close()
