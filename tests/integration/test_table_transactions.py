"""Transactions that Lancekeep commits make the same versions as those that pylance commits."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import attrs
import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from faults import Crash, Faulty
from lance import LanceOperation
from lance.fragment import write_fragments
from rest_server import serving

import lancekeep
from lancekeep.application.catalog import directory_of
from lancekeep.domain.dataset_files import deletion_file_name
from lancekeep.domain.manifest import DeletionFile, DeletionFileType
from lancekeep.domain.operations import Transaction, Update, UpdateMode
from lancekeep.format import deletions
from lancekeep.format.row_ids import encode_row_ids
from lancekeep.format.table_version import TableVersion, parse_transaction


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
    """Return the content of a version, without what differs between two commits of one transaction."""
    manifest = attrs.evolve(
        version.manifest,
        timestamp=None,
        transaction_file="",
        writer_version=None,
        index_section=None,
        transaction_section=None,
        transaction_section_21=None,
        fragments=list(version.manifest.fragments),
    )
    return attrs.asdict(manifest), version.indices


def managed(lake: Path) -> lancekeep.Catalog:
    """Return a catalog of the lake with a commit store."""
    store = f"sqlite://{lake.parent}/commits.db"
    with lancekeep.connect(str(lake)) as catalog:
        catalog.upkeep.change_commit_store(store)
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


@pytest.mark.parametrize("indexed", [True, False])
def test_compaction_equals_that_of_pylance(lake: Path, indexed: bool) -> None:
    uri, copy = lake / "t.lance", lake.parent / "copy.lance"
    table = lance.dataset(uri)
    if not indexed:
        table.drop_index("a_idx")
    shutil.copytree(uri, copy)
    lance.dataset(copy).optimize.compact_files(target_rows_per_fragment=20)
    native = lance.dataset(copy)
    assert native.version == table.version + 2, "ids are reserved first"
    catalog = lancekeep.connect(str(lake))
    for version in (table.version + 1, native.version):
        expected = read(copy, version)
        assert expected.transaction is not None
        for index in (copy / "_indices").glob("*"):
            shutil.copytree(index, uri / "_indices" / index.name, dirs_exist_ok=True)
        shutil.copytree(copy / "data", uri / "data", dirs_exist_ok=True)
        assert catalog.commit("t", expected.transaction).version == version
        assert plain(read(uri, version)) == plain(expected)
    ours = lance.dataset(uri)
    assert ours.to_table(with_row_id=True) == native.to_table(with_row_id=True)
    assert ours.to_table(filter="a = 14") == native.to_table(filter="a = 14")
    assert len(ours.get_fragments()) == 1


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
    assert catalog.commit("t", built["delete rows"]).version == before + 6
    expected = [*range(3), *range(4, 11), *range(14, 20), 100, 101, 200]
    assert sorted(lance.dataset(lake / "t.lance").to_table()["a"].to_pylist()) == expected
    catalog.commit("t", built["overwrite"])
    with pytest.raises(lancekeep.CommitRefused, match=r"overwrite, .* incompatible"):
        catalog.commit("t", attrs.evolve(built["append"], uuid=str(uuid4())))
    assert lance.dataset(lake / "t.lance").to_table()["a"].to_pylist() == [7, 8]


def delete(predicate: str) -> Callable[[Any], Any]:
    return lambda table: table.delete(predicate)


def commit(name: str) -> Callable[[Any], Any]:
    return lambda table: lance.LanceDataset.commit(table.uri, BUILD[name](table), read_version=table.version)


def change(predicate: str) -> Callable[[Any], Any]:
    return lambda table: table.update({"b": "'new'"}, where=predicate)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "delete a row": delete("a = 11"),
    "delete rows of two fragments": delete("a in (12, 22)"),
    "delete all other rows of a fragment": delete("a >= 10 and a < 20 and a != 11"),
    "delete a fragment": delete("a >= 20"),
    "delete a row of the last fragment": delete("a = 25"),
    "update a row": change("a = 11"),
    "update rows of a fragment": change("a in (11, 14)"),
    "update rows of two fragments": change("a in (12, 22)"),
    "update a fragment": change("a >= 10 and a < 20"),
    "update a fragment and a row": change("a = 21 or (a >= 10 and a < 20)"),
    "update none": change("a = 77"),
    "merge rows": lambda table: (
        table.merge_insert("a").when_matched_update_all().when_not_matched_insert_all().execute(rows(11, 77))
    ),
    **{
        name: commit(name) for name in ("append", "set configuration", "set schema metadata", "set metadata of a field")
    },
}
PAIRS = [
    ("delete a row", "delete rows of two fragments"),
    ("delete a row", "delete all other rows of a fragment"),
    ("update a row", "delete rows of two fragments"),
    ("update a row", "delete all other rows of a fragment"),
    ("delete rows of two fragments", "delete a row"),
    ("delete a fragment", "delete a row"),
    ("append", "delete a row"),
    ("delete a row", "append"),
    ("append", "append"),
    ("set configuration", "delete a row"),
    ("update a row", "set configuration"),
    ("delete a row", "set schema metadata"),
    ("update a row", "append"),
    ("set schema metadata", "append"),
    ("append", "set metadata of a field"),
    ("append", "update a row"),
    ("delete rows of two fragments", "update a row"),
    ("delete all other rows of a fragment", "update a row"),
    ("update rows of two fragments", "update a row"),
    ("update a row", "update rows of two fragments"),
    ("delete a fragment", "update rows of a fragment"),
    ("set configuration", "update a fragment"),
    ("delete a row of the last fragment", "update a fragment and a row"),
    ("update a row", "update none"),
    ("append", "merge rows"),
    ("update rows of two fragments", "merge rows"),
]


def without_random_names(version: TableVersion, uri: Path) -> tuple[Any, ...]:
    """Return the content of a version without the names of new data files, and with the rows of deletion files."""
    described, indices = plain(version)
    for fragment in described["fragments"]:
        for data_file in fragment["files"] if fragment["id"] > 2 else ():
            del data_file["path"]
        if file := fragment["deletion_file"]:
            bitmap = file["file_type"] is DeletionFileType.BITMAP
            name = deletion_file_name(fragment["id"], file["read_version"], file.pop("id"), bitmap=bitmap)
            marked = DeletionFile(file["file_type"], num_deleted_rows=file["num_deleted_rows"])
            content = (uri / "_deletions" / name).read_bytes()
            file["rows"] = deletions.read(content, marked, fragment["physical_rows"], name).tolist()
    return described, indices


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_concurrent_transactions_are_merged_as_pylance_merges_them(lake: Path, first: str, second: str) -> None:
    uri, copy, alone = lake / "t.lance", lake.parent / "copy.lance", lake.parent / "alone.lance"
    shutil.copytree(uri, copy)
    stale = lance.dataset(copy)
    CHANGES[first](lance.dataset(copy))
    shutil.copytree(copy, lake / "twice.lance")  # the same first transaction, with the same names
    shutil.copytree(uri, alone)
    CHANGES[second](lance.dataset(alone))
    CHANGES[second](stale)
    native = lance.dataset(copy)
    own = read(alone, stale_version := lance.dataset(uri).version + 1).transaction
    assert own is not None
    for directory in ("_deletions", "data"):
        shutil.copytree(alone / directory, lake / "twice.lance" / directory, dirs_exist_ok=True)
    committed = lancekeep.connect(str(lake)).commit("twice", own)
    assert committed.version == native.version == stale_version + 1
    made, expected = read(lake / "twice.lance", committed.version), read(copy, native.version)
    if second not in {"append", "set configuration", "set schema metadata", "set metadata of a field"}:
        assert without_random_names(made, lake / "twice.lance") == without_random_names(expected, copy)
    ours = lance.dataset(lake / "twice.lance")
    assert ours.to_table(with_row_id=True) == native.to_table(with_row_id=True)
    recorded = lake / "twice.lance" / "_transactions" / committed.transaction
    assert parse_transaction(recorded.read_bytes(), recorded.name) == made.transaction


def test_first_commit_of_a_process_reads_one_manifest(lake: Path) -> None:
    built = transactions(lake, "append")
    managed(lake).close()
    catalog = lancekeep.connect(str(lake), commit_store=f"sqlite://{lake.parent}/commits.db")
    commits = directory_of(catalog).commits
    objects: Any = Faulty(commits.objects)
    rows: Any = Faulty(commits.rows)
    commits.objects = commits.lineage._objects = objects
    commits.rows = rows
    catalog.commit("t", built["append"])
    # the manifest; the transaction file and the staged manifest; the end of the new data file; of this version and the
    # one before it, whether they exist and have their files, because the table of a V1 name may have moved; of the
    # one before it once more, after the staging, because it may have been created again; and twice the names of
    # manifests, for their schemes
    assert objects.counts == {"get": 1, "put": 2, "copy_if_absent": 1, "delete": 1, "head": 5, "tail": 1, "list": 2}
    assert rows.counts == {"latest": 1, "reserve": 1, "finalize": 1}


def test_delete_follows_more_versions_than_are_held_in_memory(lake: Path) -> None:
    [own] = transactions(lake, "delete rows").values()
    for value in (10, 12, 14, 15, 16, 17, 18):
        lance.dataset(lake / "t.lance").delete(f"a = {value}")
        lance.write_dataset(rows(100 + value), lake / "t.lance", mode="append")
    before = lance.dataset(lake / "t.lance").to_table()
    committed = lancekeep.connect(str(lake)).commit("t", own)
    after = lance.dataset(lake / "t.lance")
    assert after.version == committed.version
    assert after.to_table() == before.filter(pc.field("a") != 11)


@pytest.mark.parametrize("store", ["storage-managed", "conditional-put", "sqlite"])
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("append", "the data file '.*': expected a file, found none"),
        ("overwrite", "the data file '.*': expected a file, found none"),
        ("delete rows", "deletes rows of fragment 1, which is not as it was read"),
        ("delete a fragment", ""),
    ],
)
def test_transactions_of_a_dropped_table_are_refused(lake: Path, name: str, why: str, store: str) -> None:
    """Another table has its place. Only its history tells the two apart if no file is named."""
    [transaction] = transactions(lake, name).values()
    urls = {"storage-managed": None, "conditional-put": "conditional-put://", "sqlite": f"sqlite://{lake.parent}/c.db"}
    with lancekeep.connect(str(lake)) as catalog:
        base = catalog.inspect("t")["transaction_file"]
        catalog.drop_table("t")
        if store != "storage-managed":
            catalog.upkeep.change_commit_store(urls[store] or "")
    catalog = lancekeep.connect(str(lake), commit_store=urls[store])
    for number in range(transaction.read_version + 1):
        catalog.write("t", rows(1000 + number), "append" if number else "create")
    version = catalog.open("t").version
    if why:
        with pytest.raises(lancekeep.CommitRefused, match=why):
            catalog.commit("t", transaction)
    with pytest.raises(lancekeep.CommitRefused, match="may have been dropped and created again"):
        catalog.commit("t", transaction, base=base)
    assert catalog.open("t").version == version
    assert lance.dataset(lake / "t.lance").to_table()["a"].to_pylist() == list(range(1000, 1000 + version))


def test_deletes_of_a_common_row_are_retryable(lake: Path) -> None:
    built = transactions(lake, "delete rows")
    catalog = managed(lake)
    catalog.open("t").delete("a in (11, 12)")
    with pytest.raises(lancekeep.ConcurrentModification, match="common fragment"):
        catalog.commit("t", built["delete rows"])


def test_repeated_transaction_is_committed_once(lake: Path) -> None:
    built = transactions(lake, "append")
    catalog = managed(lake)
    committed = catalog.commit("t", built["append"])
    catalog.open("t").delete("a = 12")
    again = catalog.commit("t", built["append"])
    assert (again.version, again.path, again.transaction) == (committed.version, committed.path, committed.transaction)
    assert catalog.open("t").count_rows("a = 100") == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_transaction_of_a_process_that_died_is_committed_once_by_its_repetition(lake: Path, when: str) -> None:
    built = transactions(lake, "delete rows")["delete rows"]
    with managed(lake) as catalog:
        catalog.open("t").delete("a = 12")  # the transaction is merged with it
        latest = catalog.describe_table("t").version or 0
    shutil.copytree(lake.parent, saved := lake.parent.with_name(f"{lake.parent.name}-saved"))
    for at in count():
        shutil.rmtree(lake.parent)
        shutil.copytree(saved, lake.parent)
        dying = lancekeep.connect(str(lake), commit_store=f"sqlite://{lake.parent}/commits.db")
        calls = count()

        def die(method: str, nth: int, at: int = at, calls: Iterator[int] = calls) -> tuple[str, BaseException] | None:
            return (when, Crash()) if next(calls) >= at else None

        directory_of(dying).commits.objects = directory_of(dying).commits.lineage._objects = cast(
            Any, Faulty(directory_of(dying).commits.objects, die)
        )
        directory_of(dying).commits.rows = cast(Any, Faulty(directory_of(dying).commits.rows, die))
        try:
            dying.commit("t", built)
            died = False
        except Crash:
            died = True
        catalog = lancekeep.connect(str(lake), commit_store=f"sqlite://{lake.parent}/commits.db")
        assert catalog.commit("t", built).version == latest + 1, at
        assert catalog.open("t").count_rows("a in (11, 12)") == 0, at
        assert lance.dataset(lake / "t.lance").version == latest + 1, at
        assert lance.dataset(lake / "t.lance").count_rows() == 26, at
        if not died:
            assert at > 8, "the commit made hardly any call"
            return


@pytest.mark.parametrize("name", [name for name in BUILD if name != "restore"])
def test_detached_version_equals_that_of_pylance(lake: Path, name: str) -> None:
    uri, copy = lake / "t.lance", lake.parent / "copy.lance"
    table = lance.dataset(uri)
    operation = BUILD[name](table)
    shutil.copytree(uri, copy)
    native = lance.LanceDataset.commit(copy, operation, read_version=table.version, detached=True)
    [path] = (copy / "_versions").glob("d*.manifest")
    expected = TableVersion.parse(path.read_bytes(), str(path))
    assert expected.transaction is not None
    catalog = managed(lake)
    files = sorted((uri / "_versions").iterdir())
    committed = catalog.commit("t", expected.transaction, detached=True)
    assert committed.version >= 2**63
    made = uri / "_versions" / f"d{committed.version}.manifest"
    assert [each for each in sorted((uri / "_versions").iterdir()) if each not in files] == [made]
    described, indices = plain(TableVersion.parse(made.read_bytes(), str(made)))
    described["version"] = native.version
    assert (described, indices) == plain(expected)
    for dataset in (lance.dataset(uri).checkout_version(committed.version), catalog.open("t", committed.version)):
        assert dataset.to_table(with_row_id=True) == native.to_table(with_row_id=True)
    assert lance.dataset(uri).version == catalog.describe_table("t").version == table.version


def test_native_writer_commits_detached_versions_through_the_catalog(lake: Path) -> None:
    catalog = managed(lake)
    table = catalog.open("t")
    operation = BUILD["delete rows"](table)
    detached = lance.LanceDataset.commit(table, operation, read_version=table.version, detached=True)
    assert detached.version >= 2**63
    again = lance.LanceDataset.commit(
        detached, BUILD["set configuration"](detached), read_version=detached.version, detached=True
    )
    directory = lake / "t.lance" / "_versions"
    assert sorted(each.name for each in directory.glob("d*")) == sorted(
        f"d{each.version}.manifest" for each in (detached, again)
    )
    for dataset in (lance.dataset(lake / "t.lance").checkout_version(again.version), catalog.open("t", again.version)):
        assert dataset.count_rows("a = 11") == 0
    assert catalog.open("t").count_rows("a = 11") == 1
    catalog.write("t", rows(500), "append")
    assert [entry.version for entry in catalog.versions.history("t", limit=2)] == [table.version + 1, table.version]
    catalog.upkeep.cleanup(0, grace=0)
    assert catalog.open("t", detached.version).count_rows() == 27  # clean-up keeps the files that it names
    assert catalog.upkeep.fsck(deep=True, grace=0).findings == ()


def test_server_refuses_detached_versions(tmp_path: Path) -> None:
    store = f"file://{tmp_path}/commits?fsync=false"
    with serving(lancekeep.DirectoryNamespace(root=str(tmp_path / "lake"), commit_store=store)) as running:
        catalog = lancekeep.connect(running.uri)
        catalog.write("t", rows(1))
        table = catalog.open("t")
        with pytest.raises(OSError, match="is unknown"):
            lance.LanceDataset.commit(table, BUILD["set configuration"](table), read_version=1, detached=True)
        assert not any((tmp_path / "lake").rglob("d*.manifest"))
        assert catalog.open("t").version == 1


def test_transactions_keep_v1_names(tmp_path: Path) -> None:
    uri = tmp_path / "lake" / "t.lance"
    table = lance.write_dataset(rows(1, 2), uri, enable_v2_manifest_paths=False)
    append = LanceOperation.Append(fragments(table, 3))
    shutil.copytree(uri, tmp_path / "copy.lance")
    lance.LanceDataset.commit(tmp_path / "copy.lance", append, read_version=1)
    path = tmp_path / "copy.lance" / "_versions" / "2.manifest"
    transaction = TableVersion.parse(path.read_bytes(), str(path)).transaction
    assert transaction is not None
    connections: list[Callable[[Path], lancekeep.Catalog]] = [lambda lake: lancekeep.connect(str(lake)), managed]
    for connect in connections:
        catalog = connect(tmp_path / "lake")
        read_version = catalog.describe_table("t").version or 0
        catalog.commit("t", attrs.evolve(transaction, read_version=read_version, uuid=str(uuid4())))
    assert {each.name for each in (uri / "_versions").glob("*.manifest")} == {f"{n}.manifest" for n in (1, 2, 3)}
    assert lance.dataset(uri).to_table()["a"].to_pylist() == [1, 2, 3, 3]


def test_transaction_of_a_version_without_record_is_incompatible(lake: Path) -> None:
    built = transactions(lake, "append")
    catalog = lancekeep.connect(str(lake))
    version = catalog.write("t", rows(300), "append").version
    path = lake / "t.lance" / "_versions" / f"{2**64 - 1 - version}.manifest"
    committed = read(lake / "t.lance", version)
    path.write_bytes(attrs.evolve(committed, transaction=None).serialize())
    (lake / "t.lance" / "_transactions" / committed.manifest.transaction_file).unlink()
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
        (attrs.evolve(append, operation=Update(fields_modified=(1,))), lancekeep.Unsupported),
        (attrs.evolve(append, operation=Update(update_mode=UpdateMode.REWRITE_COLUMNS)), lancekeep.Unsupported),
        (attrs.evolve(append, operation=Update(removed_fragment_ids=(9,))), lancekeep.CommitRefused),
    ):
        with pytest.raises(error):
            catalog.commit("t", transaction)
    with pytest.raises(lancekeep.TableNotFound):
        catalog.commit("missing", append)
    assert (catalog.describe_table("t").version, sorted(lake.rglob("*"))) == (version, files)


@pytest.mark.parametrize("lake", [True], ids=["stable row ids"], indirect=True)
def test_updates_of_rows_from_elsewhere_are_left_to_the_engine(lake: Path) -> None:
    uri, copy = lake / "t.lance", lake.parent / "copy.lance"
    shutil.copytree(uri, copy)
    CHANGES["update a row"](lance.dataset(copy))
    transaction = read(copy, version := lance.dataset(copy).version).transaction
    assert transaction is not None
    assert isinstance(transaction.operation, Update)
    [moved] = transaction.operation.new_fragments
    foreign = attrs.evolve(moved, inline_row_ids=encode_row_ids(np.array([25], np.uint64)))
    forged = attrs.evolve(transaction, operation=attrs.evolve(transaction.operation, new_fragments=(foreign,)))
    shutil.copytree(copy / "data", uri / "data", dirs_exist_ok=True)
    with pytest.raises(lancekeep.Unsupported, match="moves rows of other fragments"):
        lancekeep.connect(str(lake)).commit("t", forged)
    assert lance.dataset(uri).version == version - 1
