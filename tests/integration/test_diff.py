"""Differences between versions, judged by full scans of both with plain pylance."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rest_server import serving

import lancekeep
from lancekeep.application.rows.matching import equal
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace

Rows = dict[Any, tuple[Any, ...]]


def rows(first: int, count: int, value: int, columns: list[str] | None = None) -> pa.Table:
    ids = range(first, first + count)
    vectors = pa.array([[float(value), float("nan") if each % 3 else None] for each in ids], pa.list_(pa.float32(), 2))
    every = {
        "id": pa.array(ids, pa.int64()),
        "v": pa.array([None if (each + value) % 5 == 0 else value for each in ids], pa.int64()),
        "vector": vectors,
        "tags": pa.array([["a"] * ((each + value) % 3) for each in ids], pa.list_(pa.string())),
        "s": pa.array([{"x": value, "y": [str(each)]} for each in ids]),
    }
    named = {name: every.get(name, pa.array([value] * count, pa.int64())) for name in columns or every}
    return pa.table(named)


class History:
    """A table that changes at random, with keys that the rows keep."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.next = 100
        self.value = 1

    def append(self, number: int) -> None:
        self.dataset.insert(self._rows(self.next, number + 1), mode="append")
        self.next += number + 1

    def delete(self, number: int) -> None:
        self.dataset.delete(f"id % 7 = {number}")

    def update(self, number: int) -> None:
        self.dataset.update({"v": f"id + {self.value}"}, where=f"id % 3 = {number % 3}")

    def merge(self, number: int) -> None:
        source = self._rows(self.next - number - 1, 2 * number + 2)
        self.next += number + 1
        self.dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(source)

    def compact(self, number: int) -> None:
        self.dataset.optimize.compact_files(materialize_deletions_threshold=0.0)

    def restore(self, number: int) -> None:
        version = 1 + number % self.dataset.version
        old = self.dataset.checkout_version(version)
        old.restore()
        self.dataset = old

    def overwrite(self, number: int) -> None:
        self.dataset.insert(rows(self.next - 2, 3, self.value), mode="overwrite")
        self.next += 1

    def add_column(self, number: int) -> None:
        self.dataset.add_columns({f"c{self.dataset.version}": f"id + {number}"})

    def drop_column(self, number: int) -> None:
        names = [name for name in self.dataset.schema.names if name not in ("id", "v")]
        if names:
            self.dataset.drop_columns([names[number % len(names)]])

    def index(self, number: int) -> None:
        self.dataset.create_scalar_index("id", "BTREE", replace=True)

    def _rows(self, first: int, count: int) -> pa.Table:
        self.value += 1
        found = rows(first, count, self.value, self.dataset.schema.names)
        return found.cast(self.dataset.schema)


STEPS = [name for name in vars(History) if not name.startswith("_")]


def scan(dataset: Any, columns: list[str], keys: list[str]) -> Rows:
    """Return the rows of a version by their identity."""
    identity = keys or ["_rowid"]
    table = dataset.scanner(columns=[*dict.fromkeys((*keys, *columns))], with_row_id=not keys).to_table()
    found = {
        tuple(row[name] for name in identity): tuple(repr(row[name]) for name in columns) for row in table.to_pylist()
    }
    assert len(found) == table.num_rows
    return found


def judged(dataset: Any, before: int, after: int, keys: list[str]) -> dict[str, Rows]:
    """Return the changes by full scans."""
    old, new = dataset.checkout_version(before), dataset.checkout_version(after)
    shared = [name for name in new.schema.names if name in old.schema.names]
    first, second = scan(old, shared, keys), scan(new, shared, keys)
    changed = {key for key in first.keys() & second.keys() if first[key] != second[key]}
    return {
        "delete": {key: first[key] for key in first.keys() - second.keys()},
        "insert": {key: second[key] for key in second.keys() - first.keys()},
        "update_preimage": {key: first[key] for key in changed},
        "update_postimage": {key: second[key] for key in changed},
        "shared": {(): tuple(shared)},
    }


def found(difference: lancekeep.Difference, keys: list[str], shared: list[str], **given: Any) -> dict[str, Rows]:
    kinds: dict[str, Rows] = {kind: {} for kind in ("delete", "insert", "update_preimage", "update_postimage")}
    for row in difference.rows(keys or None, **given).read_all().to_pylist():
        key = tuple(row[name] for name in keys or ["_rowid"])
        assert key not in kinds[row["_change_type"]]
        kinds[row["_change_type"]][key] = tuple(repr(row[name]) for name in shared)
    return kinds


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    stable=st.booleans(),
    steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 6)), min_size=1, max_size=7),
    versions=st.tuples(st.integers(0, 20), st.integers(0, 20)),
    memory=st.sampled_from([1 << 28, 2000]),
)
def test_rows_are_those_of_full_scans(
    tmp_path: Path, stable: bool, steps: list[tuple[str, int]], versions: tuple[int, int], memory: int
) -> None:
    root = tmp_path / "lake"
    shutil.rmtree(root, ignore_errors=True)
    dataset = lance.write_dataset(rows(0, 12, 1), str(root / "t.lance"), enable_stable_row_ids=stable)
    history = History(dataset)
    for name, number in steps:
        getattr(history, name)(number)
    latest = lance.dataset(str(root / "t.lance"))
    before, after = (1 + each % latest.version for each in versions)
    with lancekeep.connect(str(root)) as catalog:
        difference = catalog.diff("t", before, after)
        for keys in [["id"]] + [[]] * stable:
            expected = judged(latest, before, after, keys)
            shared = list(expected.pop("shared")[()])
            assert found(difference, keys, shared, memory=memory) == expected
        counted = difference.count(["id"])
        assert difference.rows_after - difference.rows_before == counted.inserted - counted.deleted
        old, new = latest.checkout_version(before), latest.checkout_version(after)
        assert (difference.rows_before, difference.rows_after) == (old.count_rows(), new.count_rows())
        assert set(difference.files_added) == files(new) - files(old)
        assert set(difference.files_removed) == files(old) - files(new)
        if not stable:
            with pytest.raises(lancekeep.Unsupported, match="no stable row ids"):
                difference.rows()


def files(dataset: Any) -> set[str]:
    names = set()
    for fragment in dataset.get_fragments():
        names |= {f"data/{file.path}" for file in fragment.metadata.files}
        deletion = fragment.deletion_file()
        if deletion:
            names.add(deletion)
    return names


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "lake"


def written(root: Path, *, stable: bool = True) -> Any:
    return lance.write_dataset(rows(0, 4, 1), str(root / "t.lance"), enable_stable_row_ids=stable)


def kinds(difference: lancekeep.Difference, keys: list[str] | None = None, **given: Any) -> dict[str, list[Any]]:
    """Return the ids of the rows of each kind of change."""
    found: dict[str, list[Any]] = {}
    for row in difference.rows(keys, **given).read_all().to_pylist():
        found.setdefault(row["_change_type"], []).append(row["id"])
    return {kind: sorted(ids) for kind, ids in found.items()}


def test_equal_fragments_are_not_read(root: Path) -> None:
    dataset = written(root)
    [untouched] = dataset.get_fragments()
    dataset.insert(rows(10, 4, 2), mode="append")
    dataset.delete("id = 10")
    dataset.add_columns({"w": "v + 1"})
    (root / "t.lance" / "data" / untouched.metadata.files[0].path).unlink()
    with lancekeep.connect(str(root)) as catalog:
        assert kinds(catalog.diff("t", 2, 4)) == {"delete": [10]}
        assert kinds(catalog.diff("t", 2, 3), ["id"]) == {"delete": [10]}
        assert kinds(catalog.diff("t", 3, 4)) == {}  # only the new column has files


def test_overwrite_with_as_many_rows_is_read(root: Path) -> None:
    dataset = written(root)
    for value in (7, 8):
        dataset.insert(rows(0, 4, value), mode="overwrite")
    with lancekeep.connect(str(root)) as catalog:
        assert kinds(catalog.diff("t", 2, 3), ["id"])["update_postimage"] == [0, 1, 2, 3]


def test_row_versions_are_returned(root: Path) -> None:
    dataset = written(root)
    dataset.update({"v": "9"}, where="id = 1")
    with lancekeep.connect(str(root)) as catalog:
        found = catalog.diff("t", 1).rows().read_all().to_pylist()
        shown = [(row["_change_type"], row["_rowid"], row["_row_last_updated_at_version"], row["v"]) for row in found]
        assert shown == [("update_preimage", 1, 1, 1), ("update_postimage", 1, 2, 9)]


def test_columns_are_paired_by_name_and_by_rename(root: Path) -> None:
    dataset = written(root)
    dataset.alter_columns({"path": "v", "name": "w"})
    dataset.alter_columns({"path": "id", "data_type": pa.int32()})
    dataset.drop_columns(["tags"])
    dataset.add_columns({"more": "id * 2"})
    dataset.update({"w": "9"}, where="id = 3")
    with lancekeep.connect(str(root)) as catalog:
        difference = catalog.diff("t", 1)
        assert [field.name for field in difference.schema.added] == ["more"]
        assert [field.name for field in difference.schema.removed] == ["tags"]
        changed = {(old.name, new.name): (old.type, new.type) for old, new in difference.schema.changed}
        assert changed == {("v", "w"): (pa.int64(), pa.int64()), ("id", "id"): (pa.int64(), pa.int32())}
        assert kinds(difference, ["id"]) == {"update_preimage": [3], "update_postimage": [3]}
        assert kinds(difference) == kinds(difference, ["id"])
        [before, after] = difference.rows().read_all().to_pylist()
        assert (before["w"], before["tags"], before["more"]) == (1, ["a"], None)
        assert (after["w"], after["tags"], after["more"]) == (9, None, 6)
        assert kinds(difference, ["id"], columns=["vector"]) == {}
        assert difference.rows(["id"], columns=["w"]).schema.names == ["_change_type", "id", "w"]


def test_column_of_another_type_is_another_column(root: Path) -> None:
    dataset = written(root)
    dataset.drop_columns(["v"])
    dataset.add_columns({"v": "cast(id as string)"})
    with lancekeep.connect(str(root)) as catalog:
        difference = catalog.diff("t", 1)
        assert ([field.type for field in difference.schema.added], difference.schema.changed) == ([pa.string()], ())
        assert kinds(difference, ["id"]) == {}


def test_versions_are_numbers_tags_times_and_branches(root: Path) -> None:
    with lancekeep.connect(str(root)) as catalog:
        catalog.write("t", rows(0, 4, 1))
        dataset = catalog.open("t")
        dataset.insert(rows(10, 2, 2), mode="append")
        dataset.create_branch("side", 1)
        catalog.open("t", branch="side").delete("id = 0")
        dataset.delete("id = 1")
        catalog.tags.create("t", "first", 1)
        times = {entry.version: entry.timestamp for entry in catalog.versions.history("t")}
        last = catalog.diff("t", 2, 3)
        for before in (2, times[2], lancekeep.At(2), lancekeep.At(timestamp=times[2].isoformat())):
            assert catalog.diff("t", before) == last
        assert kinds(catalog.diff("t", "first"), ["id"]) == {"insert": [10, 11], "delete": [1]}
        assert [entry.operation for entry in catalog.diff("t", "first").operations()] == ["Append", "Delete"]
        assert [entry.version for entry in catalog.diff("t", 3, 2).operations()] == [3]
        across = catalog.diff("t", 3, lancekeep.At(branch="side"))
        assert kinds(across, ["id"]) == {"insert": [1], "delete": [0, 10, 11]}
        with pytest.raises(lancekeep.Unsupported, match="different branches"):
            across.operations()
        beside = catalog.diff("t", lancekeep.At(1, branch="side"), lancekeep.At(branch="side"))
        assert [entry.operation for entry in beside.operations()] == ["Delete"]
        for wrong in (True, 1.5, lancekeep.At(1, tag="first"), lancekeep.At(1, timestamp=times[1])):
            with pytest.raises(lancekeep.InvalidInput):
                catalog.diff("t", wrong)  # type: ignore[arg-type]
        with pytest.raises(lancekeep.TagNotFound):
            catalog.diff("t", "other")
        with pytest.raises(lancekeep.VersionNotFound):
            catalog.diff("t", 9)


def test_row_ids_of_branches_are_not_compared(root: Path) -> None:
    dataset = written(root)
    dataset.create_branch("side", 1)
    with lancekeep.connect(str(root)) as catalog, pytest.raises(lancekeep.Unsupported, match="same row ids"):
        catalog.diff("t", 1, lancekeep.At(branch="side")).rows()


def test_keys_must_identify_rows(root: Path) -> None:
    dataset = written(root)
    dataset.update({"v": "5"})
    with lancekeep.connect(str(root)) as catalog:
        difference = catalog.diff("t", 1)
        for memory in (1 << 28, 1):
            with pytest.raises(lancekeep.InvalidInput, match=r"rows with the key {'v'"):
                difference.rows(["v"], memory=memory).read_all()
        for keys in (["vector"], ["s"], "id"):
            with pytest.raises(lancekeep.InvalidInput):
                difference.rows(keys)
        with pytest.raises(lancekeep.ColumnNotFound, match="no column 'x'"):
            difference.rows(["x"])
        assert kinds(difference, ["v", "id"]) == {"delete": [0, 1, 2, 3], "insert": [0, 1, 2, 3]}


def test_server_compares_versions(root: Path) -> None:
    dataset = written(root)
    dataset.update({"v": "9"}, where="id = 1")
    with lancekeep.connect(str(root)) as catalog:
        namespace: Any = CatalogNamespace(catalog)
        with serving(namespace) as front, lancekeep.connect(front.uri) as client:
            difference = client.diff("t", 1)
            assert difference == catalog.diff("t", 1)
            assert difference.count() == lancekeep.ChangeCounts(0, 0, 1)
            assert [entry.operation for entry in difference.operations()] == ["Update"]


def test_large_difference_takes_bounded_memory(root: Path) -> None:
    count, memory = 200_000, 2 << 20
    for value in ("before", "after"):
        table = pa.table({"id": pa.array(range(count)), "text": [f"{value}-{number:050}" for number in range(count)]})
        lance.write_dataset(table, str(root / "t.lance"), mode="overwrite")
    del table
    usual = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(usual)
    with lancekeep.connect(str(root)) as catalog:
        reader = catalog.diff("t", 1).rows(["id"], memory=memory)
        pa.set_memory_pool(pool)
        try:
            assert sum(batch.num_rows for batch in reader) == 2 * count
        finally:
            pa.set_memory_pool(usual)
    assert 0 < pool.max_memory() < 8 * memory


VALUES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int8(), st.integers(0, 2)),
    (pa.float64(), st.sampled_from([0.0, 1.5, float("nan")])),
    (pa.string(), st.sampled_from(["", "a", "b"])),
    (pa.bool_(), st.booleans()),
    (pa.null(), st.none()),
    (pa.list_(pa.int8()), st.lists(st.none() | st.integers(0, 1), max_size=2)),
    (pa.large_list(pa.list_(pa.string())), st.lists(st.lists(st.sampled_from("ab"), max_size=2), max_size=2)),
    (pa.list_(pa.float32(), 2), st.lists(st.sampled_from([0.0, float("nan")]), min_size=2, max_size=2)),
    (
        pa.struct([("x", pa.int8()), ("y", pa.list_(pa.int8()))]),
        st.fixed_dictionaries({"x": st.none() | st.integers(0, 1), "y": st.none() | st.lists(st.just(1), max_size=1)}),
    ),
    (pa.map_(pa.string(), pa.int8()), st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 1)), max_size=2)),
    (pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["a", "b"])),
]


@given(st.data())
def test_values_are_equal_as_python_compares_them(data: Any) -> None:
    kind, values = data.draw(st.sampled_from(VALUES))
    pairs = data.draw(st.lists(st.tuples(st.none() | values, st.none() | values), min_size=1, max_size=8))
    skip = data.draw(st.integers(0, 1))
    arrays = [pa.array([pair[side] for pair in pairs], kind).slice(skip) for side in (0, 1)]
    pairs = zip(*(array.to_pylist() for array in arrays), strict=True)
    expected = [repr(left) == repr(right) for left, right in pairs]
    assert equal(*arrays).tolist() == expected


@pytest.mark.parametrize("store", ["conditional-put://", "sqlite:///{path}/commits.db", "memory://limits"])
def test_pages_of_histories_take_any_number_that_is_not_negative(tmp_path: Path, store: str) -> None:
    with lancekeep.connect(str(tmp_path / "lake"), commit_store=store.format(path=tmp_path)) as catalog:
        for mode in ("create", "append"):
            catalog.write("t", pa.table({"id": [1]}), mode)
        for limit in (2**63, 2**70):
            found = catalog.versions.history("t", limit, before=limit)
            assert [entry.version for entry in found] == [2, 1]
            assert [row.version for row in catalog.commit_rows("t", limit, before=limit).rows] == [2, 1]
        assert list(catalog.versions.history("t", 0)) == []
        with pytest.raises(lancekeep.InvalidInput, match="the limit is -1"):
            catalog.versions.history("t", -1)
