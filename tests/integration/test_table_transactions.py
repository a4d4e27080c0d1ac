"""Transactions that Lancekeep commits make the same versions as those that pylance commits."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import lance
import pyarrow as pa
import pytest
from lance import LanceOperation
from lance.fragment import write_fragments

import lancekeep
from lancekeep.domain.operations import Transaction
from lancekeep.format.table_version import TableVersion


def rows(*values: int) -> pa.Table:
    return pa.table({"a": pa.array(values, pa.int64()), "b": [str(value) for value in values]})


def read(uri: Path, version: int) -> TableVersion:
    path = uri / "_versions" / f"{2**64 - 1 - version}.manifest"
    return TableVersion.parse(path.read_bytes(), str(path))


def fragments(table: Any, *values: int) -> Any:
    return write_fragments(rows(*values), table.uri, schema=table.schema, mode="append")


def update(**entries: str | None) -> Any:
    return LanceOperation.UpdateMap(entries, False)


OTHER = pa.table({"c": pa.array([1], pa.int32())})
BUILD: dict[str, Callable[[Any], Any]] = {
    "append": lambda table: LanceOperation.Append(fragments(table, 100, 101)),
    "delete rows": lambda table: LanceOperation.Delete([table.get_fragment(1).delete("a = 11")], [], "a = 11"),
    "delete a fragment": lambda table: LanceOperation.Delete([], [2], "a > 19"),
    "overwrite": lambda table: LanceOperation.Overwrite(table.schema, fragments(table, 7, 8)),
    "overwrite with another schema": lambda table: LanceOperation.Overwrite(
        pa.schema([("c", pa.int32())]),
        write_fragments(pa.table({"c": pa.array([1], pa.int32())}), table.uri, mode="overwrite"),
    ),
    "restore": lambda table: LanceOperation.Restore(2),
    "set configuration": lambda table: LanceOperation.UpdateConfig(config_updates=update(k="v")),
    "set table metadata": lambda table: LanceOperation.UpdateConfig(table_metadata_updates=update(k="v", gone=None)),
    "set schema metadata": lambda table: LanceOperation.UpdateConfig(schema_metadata_updates=update(k="v")),
    "set metadata of a field": lambda table: LanceOperation.UpdateConfig(field_metadata_updates={1: update(unit="m")}),
}


@pytest.fixture(params=[False, True], ids=["row addresses", "stable row ids"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A lake with a table of three fragments, deleted rows and an index, and its copy without a catalog."""
    table = lance.write_dataset(rows(*range(10)), tmp_path / "lake/t.lance", enable_stable_row_ids=request.param)
    for first in (10, 20):
        table = lance.write_dataset(rows(*range(first, first + 10)), table, mode="append")
    table.delete("a in (3, 13)")
    described = LanceOperation.UpdateConfig(table_metadata_updates=update(gone="x", kept="y"))
    table = lance.LanceDataset.commit(table, described, read_version=table.version)
    table.create_scalar_index("a", "BTREE")
    return tmp_path / "lake"


def plain(version: TableVersion) -> tuple[Any, ...]:
    """Return what a version says, without what differs between two commits of one transaction."""
    manifest = attrs.evolve(
        version.manifest,
        timestamp=None,
        transaction_file="",
        writer_version=None,
        index_section=None,
        transaction_section=None,
        fragments=list(version.manifest.fragments),
    )
    return attrs.asdict(manifest), version.indices


def managed(lake: Path) -> lancekeep.Catalog:
    """Return a catalog of the lake with a commit store."""
    store = f"sqlite://{lake.parent}/commits.db"
    with lancekeep.connect(str(lake)) as catalog:
        catalog.change_commit_store(store)
    return lancekeep.connect(str(lake), commit_store=store)


@pytest.mark.parametrize("name", BUILD)
def test_version_equals_that_of_pylance(lake: Path, name: str) -> None:
    uri, copy = lake / "t.lance", lake.parent / "copy.lance"
    table = lance.dataset(uri)
    operation = BUILD[name](table)
    shutil.copytree(uri, copy)
    native = lance.LanceDataset.commit(copy, operation, read_version=table.version)
    expected = read(copy, native.version)
    assert expected.transaction is not None
    catalog = lancekeep.connect(str(lake))
    committed = catalog.commit("t", expected.transaction)
    assert committed.version == native.version
    assert plain(read(uri, committed.version)) == plain(expected)
    assert lance.dataset(uri).to_table(with_row_id=True) == native.to_table(with_row_id=True)
    catalog.write("t", native.to_table(limit=1), "append")
    assert catalog.open("t").count_rows() == native.count_rows() + min(1, native.count_rows())


def transactions(lake: Path, *names: str) -> dict[str, Transaction]:
    """Return transactions that read the present version."""
    table = lance.dataset(lake / "t.lance")
    found: dict[str, Transaction] = {}
    for number, name in enumerate(names):
        operation, copy = BUILD[name](table), lake.parent / f"{number}.lance"
        shutil.copytree(table.uri, copy)
        committed = lance.LanceDataset.commit(copy, operation, read_version=table.version)
        transaction = read(copy, committed.version).transaction
        assert transaction is not None
        found[name] = transaction
    return found


def test_transactions_follow_compatible_ones_and_refuse_others(lake: Path) -> None:
    built = transactions(lake, "append", "delete rows", "overwrite", "set configuration", "delete a fragment")
    catalog = managed(lake)
    before = catalog.describe_table("t").version or 0
    catalog.open("t").delete("a = 12")  # in the fragment of "delete rows"
    assert catalog.commit("t", built["append"]).version == before + 2
    catalog.write("t", rows(200), "append")
    assert catalog.commit("t", built["set configuration"]).version == before + 4
    assert catalog.commit("t", built["delete a fragment"]).version == before + 5
    with pytest.raises(lancekeep.ConcurrentModification, match=f"version {before + 1}, delete, .* common fragment"):
        catalog.commit("t", built["delete rows"])
    expected = [*range(3), *range(4, 12), *range(14, 20), 100, 101, 200]
    assert sorted(lance.dataset(lake / "t.lance").to_table()["a"].to_pylist()) == expected
    catalog.commit("t", built["overwrite"])
    with pytest.raises(lancekeep.CommitRefused, match=r"overwrite, .* incompatible"):
        catalog.commit("t", built["append"])
    assert lance.dataset(lake / "t.lance").to_table()["a"].to_pylist() == [7, 8]


def test_transaction_of_a_version_without_record_is_incompatible(lake: Path) -> None:
    built = transactions(lake, "append")
    catalog = lancekeep.connect(str(lake))
    version = catalog.write("t", rows(300), "append").version
    path = lake / "t.lance" / "_versions" / f"{2**64 - 1 - version}.manifest"
    path.write_bytes(attrs.evolve(read(lake / "t.lance", version), transaction=None).serialize())
    with pytest.raises(lancekeep.CommitRefused, match="unknown"):
        lancekeep.connect(str(lake)).commit("t", built["append"])


def test_what_cannot_be_committed_is_refused_before_a_write(lake: Path) -> None:
    catalog = lancekeep.connect(str(lake))
    [append] = transactions(lake, "append").values()
    version = catalog.describe_table("t").version
    files = sorted(lake.rglob("*"))
    for transaction, error in (
        (attrs.evolve(append, read_version=99), lancekeep.InvalidInput),
        (attrs.evolve(append, read_version=0), lancekeep.InvalidInput),
        (attrs.evolve(append, operation=None), lancekeep.Unsupported),
    ):
        with pytest.raises(error):
            catalog.commit("t", transaction)
    with pytest.raises(lancekeep.TableNotFound):
        catalog.commit("missing", append)
    assert (catalog.describe_table("t").version, sorted(lake.rglob("*"))) == (version, files)
