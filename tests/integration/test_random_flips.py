"""Random flips and truncations of every kind of file: what no check finds is harmless.

``make soak`` repeats this with fresh seeds.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lancekeep
from lancekeep.domain.errors import Damaged
from lancekeep.domain.manifest import DeletionFile, DeletionFileType
from lancekeep.entrypoints.verification import Found, Task, Work, verify_by
from lancekeep.format.deletions import read

STORE = "conditional-put://"
METADATA = (
    "_versions/*.manifest",
    "tree/b/_versions/*.manifest",
    "_refs/tags/*.json",
    "_refs/branches/*.json",
    "_deletions/*",
    "tree/b/_deletions/*",
    "_transactions/*.txn",
)
CONTENT = (*METADATA[:2], *METADATA[4:], "data/*.lance", "_indices/*/*")
FLIPS = 5
CHEAP: dict[str, Any] = {"deep": False, "digests": False, "indexes": False, "progress": lambda *position: None}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a catalog with a table that has every kind of file."""
    directory = tmp_path_factory.mktemp("flips") / "lake"
    catalog = lancekeep.connect(str(directory), commit_store=STORE)
    catalog.write("t", rows(0, 100))
    catalog.open("t").create_scalar_index("id", "BTREE")
    catalog.open("t").delete("id = 3")
    catalog.open("t").tags.create("kept", 2)
    catalog.open("t").create_branch("b")
    catalog.open("t", branch="b").delete("id < 50")
    catalog.open("t", branch="b").delete("id < 60")
    catalog.write("t", rows(100, 20_000), "append")
    catalog.open("t").delete("id >= 1000 and id < 8000")
    catalog.write("t", rows(30_000, 100), "append")
    assert {file.suffix for file in directory.rglob("_deletions/*")} == {".arrow", ".bin"}
    return directory


def rows(first: int, count: int) -> pa.Table:
    return pa.table({"id": range(first, first + count), "text": [str(number) for number in range(count)]})


def chosen(table: Path, patterns: Iterable[str], seed: int) -> Iterator[tuple[Path, str, bytes]]:
    """Yield files, a name of their damage, and their damaged content."""
    choice = random.Random(seed)
    for pattern in patterns:
        for file in sorted(table.glob(pattern)):
            whole = file.read_bytes()
            for bit in sorted(choice.sample(range(8 * len(whole)), FLIPS)):
                content = bytearray(whole)
                content[bit // 8] ^= 1 << bit % 8
                yield file, f"bit {bit} of {file.name}, seed {seed}", bytes(content)
            size = choice.randrange(len(whole))
            yield file, f"{file.name} cut to {size} bytes, seed {seed}", whole[:size]


def in_this_process(name: str, work: Sequence[Work], task: Task) -> Iterator[Found]:
    return map(task, work)


def is_verified(lake: Path, *, digests: bool) -> bool:
    catalog = lancekeep.connect(str(lake), commit_store=STORE)
    report = verify_by(in_this_process, catalog, None, **{**CHEAP, "digests": digests})
    return not report.problems


def is_sound(lake: Path) -> bool:
    """Return whether no check without digests finds anything."""
    catalog = lancekeep.connect(str(lake), commit_store=STORE)
    return not catalog.upkeep.fsck(deep=True).findings and is_verified(lake, digests=False)


def answers(table: Path) -> list[object]:
    """Return what plain pylance reads: rows, indexed answers and tags."""
    found: list[object] = []
    for branch in (None, "b"):
        dataset = lance.dataset(str(table)).checkout_version((branch, None))
        lookups = [dataset.to_table(filter=f"id = {number}").to_pydict() for number in (3, 70, 31, 30_001)]
        indexes = [(index["name"], index["type"], index["fields"]) for index in dataset.list_indices()]
        found.append((dataset.version, dataset.schema, dataset.to_table().to_pydict(), lookups, indexes))
    tags = lance.dataset(str(table)).tags.list()
    kept = lance.dataset(str(table)).checkout_version("kept")
    return [*found, [(name, tag["version"]) for name, tag in tags.items()], kept.to_table().to_pydict()]


def names_another_row(file: Path, content: bytes) -> bool:
    """Return whether a deletion file still marks as many rows: its manifest cannot prove that they are others."""
    if "_deletions" not in file.parts:
        return False
    kind = DeletionFileType.ARROW_ARRAY if file.suffix == ".arrow" else DeletionFileType.BITMAP
    try:
        before, after = (read(each, DeletionFile(kind), 0, file.name) for each in (file.read_bytes(), content))
    except Damaged:  # of a version that is not checked
        return False
    return len(before) == len(after)


def check_metadata(lake: Path, seed: int) -> None:
    table = lake / "t.lance"
    expected = answers(table)
    for file, damage, content in chosen(table, METADATA, seed):
        whole = file.read_bytes()
        unprovable = False
        file.write_bytes(content)
        try:
            if is_sound(lake):
                file.write_bytes(whole)
                unprovable = names_another_row(file, content)
                file.write_bytes(content)
                assert unprovable or answers(table) == expected, damage
        finally:
            file.write_bytes(whole)


def test_harmful_damage_of_metadata_is_found(lake: Path) -> None:
    assert is_sound(lake)
    check_metadata(lake, 1)


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable row ids"])
def test_versions_of_the_engine_agree_with_those_before(tmp_path: Path, stable: bool) -> None:
    uri = str(tmp_path / "lake" / "t.lance")
    lance.write_dataset(rows(0, 100), uri, enable_stable_row_ids=stable)
    catalog = lancekeep.connect(str(tmp_path / "lake"))

    def more(dataset: lance.LanceDataset) -> None:
        lance.write_dataset(dataset.to_table().slice(0, 9), uri, mode="append")

    first, second = lance.dataset(uri), lance.dataset(uri)
    for change in (
        more,
        lambda dataset: dataset.create_scalar_index("id", "BTREE"),
        lambda dataset: first.delete("id = 1"),
        lambda dataset: second.delete("id = 2"),  # rebased
        lambda dataset: dataset.update({"text": "'z'"}, where="id = 5"),
        lambda dataset: dataset.merge_insert("id").when_matched_update_all().execute(rows(7, 1)),
        lambda dataset: dataset.optimize.optimize_indices(),
        lambda dataset: dataset.add_columns({"double": "id * 2"}),
        lambda dataset: dataset.alter_columns({"path": "double", "name": "twice"}),
        lambda dataset: dataset.drop_columns(["twice"]),
        lambda dataset: dataset.update_config({"key": "value"}),
        lambda dataset: dataset.delete("id < 50"),
        lambda dataset: dataset.optimize.compact_files(defer_index_remap=not stable),
        more,
        lambda dataset: dataset.delete("true"),
        lambda dataset: lance.dataset(uri, version=3).restore(),
        lambda dataset: lance.write_dataset(rows(0, 10), uri, mode="overwrite"),
    ):
        change(lance.dataset(uri))
        assert verify_by(in_this_process, catalog, None, **CHEAP).problems == ()


def test_materialized_clone_agrees_with_the_version_before(tmp_path: Path) -> None:
    catalog = lancekeep.connect(str(tmp_path / "lake"), commit_store=STORE)
    catalog.write("t", rows(0, 10))
    catalog.clone("t", "c")
    catalog.upkeep.materialize("c")
    assert verify_by(in_this_process, catalog, None, **CHEAP).problems == ()
    assert catalog.upkeep.fsck(deep=True).findings == ()


def test_digests_find_all_damage(lake: Path) -> None:
    catalog = lancekeep.connect(str(lake), commit_store=STORE)
    lancekeep.digest(catalog)
    assert is_verified(lake, digests=True)
    records = list(lake.rglob(".lancekeep-digests/*"))
    recorded = {each.parents[1] / json.loads(line)["file"] for each in records for line in each.open()}
    for file, damage, content in chosen(lake / "t.lance", CONTENT, 2):
        if file not in recorded:
            continue
        whole = file.read_bytes()
        file.write_bytes(content)
        try:
            assert not is_verified(lake, digests=True), damage
        finally:
            file.write_bytes(whole)


if "LANCEKEEP_SOAK_MINUTES" in os.environ:  # `make soak`; a test that is skipped would have failed in CI

    def test_fresh_seeds_find_no_harmful_damage(lake: Path) -> None:
        end = time.monotonic() + 60 * float(os.environ["LANCEKEEP_SOAK_MINUTES"])
        seed = time.time_ns() // 1_000_000
        while time.monotonic() < end:
            check_metadata(lake, seed)
            seed += 1
