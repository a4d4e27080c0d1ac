"""Partitioned namespaces on real storage: writing, reading, races, crashes, and native software beside them."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from threading import Barrier, Event
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import lance
import lance.namespace
import lance_namespace as api
import pyarrow as pa
import pytest
from lance_namespace import CreateNamespaceRequest, DescribeNamespaceRequest, ListNamespacesRequest, ListTablesRequest
from rest_server import serving

import lancekeep
from lancekeep import (
    AlreadyExists,
    Catalog,
    ConcurrentModification,
    Damaged,
    InvalidInput,
    NamespaceNotFound,
    Partition,
    PartitionBy,
    PartitionedNamespace,
    Refused,
    TableNotFound,
    Unsupported,
)
from lancekeep.application.catalog import directory_of, services_of
from lancekeep.application.entries.removal import Removal
from lancekeep.application.partitions.writing import PartitionWritePlan, WrittenPartition
from lancekeep.domain import operations
from lancekeep.domain.identifiers import ObjectId
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace
from lancekeep.ports.rows import MergeRule
from lancekeep.ports.table_structure import ColumnChange, NewIndex

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("ts", pa.timestamp("us", "UTC")), ("country", pa.string())]
)
BY = [PartitionBy.year("ts"), PartitionBy.identity("country")]
ROWS = pa.table(
    {
        "id": [1, 2, 3, 4],
        "ts": [dt.datetime(2025, 1, 1), dt.datetime(1969, 1, 1), dt.datetime(2025, 2, 1), None],
        "country": ["NL", "NL", "US", None],
    }
)

Open = Callable[[], Catalog]


@pytest.fixture(params=["storage", "managed"])
def open_catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens one catalog, each time as another process would."""
    store = f"sqlite:///{tmp_path}/commits.db" if request.param == "managed" else None
    return lambda: lancekeep.connect(f"{tmp_path}/lake", commit_store=store, mode="v2")


@pytest.fixture
def open_managed(tmp_path: Path) -> Open:
    return lambda: lancekeep.connect(f"{tmp_path}/lake", commit_store=f"sqlite:///{tmp_path}/commits.db")


def ids(namespace: PartitionedNamespace, wanted: Any = None) -> list[int]:
    found: list[int] = namespace.scan(wanted).to_table(["id"])["id"].to_pylist()
    return sorted(found)


def rows(*numbers: int, country: str | None = "NL", year: int = 2025) -> pa.Table:
    return pa.table(
        {
            "id": list(numbers),
            "ts": [dt.datetime(year, 1, 1)] * len(numbers),
            "country": pa.array([country] * len(numbers), pa.string()),
        }
    )


def append_natively(catalog: Catalog, table: ObjectId, data: pa.Table) -> None:
    """Append past the namespace, as native software does."""
    dataset = catalog.open(table)
    dataset.insert(data.cast(dataset.schema), mode="append")


@contextmanager
def no_publication(namespace: PartitionedNamespace) -> Iterator[None]:
    """Writes end as if the process were killed between the commits of the tables and that of the manifest table."""
    ledger = namespace._ledger
    apply = ledger.apply

    def killed(_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    ledger.apply = killed  # type: ignore[assignment, method-assign] # a double
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        ledger.apply = apply  # type: ignore[method-assign] # the original


def test_layout_matches_the_specification_and_reads_prune(open_catalog: Open) -> None:
    namespace = open_catalog().partitions.create(SCHEMA, BY)
    written = namespace.write(ROWS)
    assert all([field.field_id for field in each.spec.fields] == ["ts_year", "country"] for each in written)
    assert {each.values for each in written} == {(2025, "NL"), (1969, "NL"), (2025, "US"), (None, None)}
    assert len(written) == 4
    assert all(re.fullmatch(r"v1(\$[a-z0-9]{16}){2}\$dataset", partition.table.id.key) for partition in written)
    assert all(re.fullmatch(r"[0-9a-f]{8}_v1.*", partition.table.location) for partition in written)
    by_value = {partition.values: partition for partition in written}
    assert by_value[2025, "NL"].table.id.names[1] == by_value[2025, "US"].table.id.names[1]
    assert {partition.version for partition in written} == {1}
    [again] = namespace.write(rows(5))
    assert (again.table, again.version) == (by_value[2025, "NL"].table, 2)

    catalog = open_catalog()
    reader = catalog.partitions.open()
    assert ids(reader) == [1, 2, 3, 4, 5]
    scan = reader.scan([("ts", ">", "2025-01-15"), ("country", "=", "US")])
    assert (len(scan.partitions), scan.skipped) == (1, 3)
    assert scan.to_table().schema.equals(reader.schema)
    assert ids(reader, [("ts", ">", "2025-01-15")]) == [3]
    assert ids(reader, [[("country", "is null")], [("ts", "<", "1970-01-01")]]) == [2, 4]
    assert ids(reader, [("country", "=", "DE")]) == []
    assert [dataset.version for _, dataset in reader.scan([("id", "=", 5)]).datasets()].count(2) == 1

    level = again.table.id.parent
    assert catalog.describe_namespace("v1").properties == {"partition_spec": reader.specs[1].to_json()}
    assert catalog.describe_namespace(level).properties == {"partition.country": "NL"}
    assert catalog.describe_namespace(level.parent).properties == {"partition.ts_year": "2025"}
    assert {"partition_spec_v1", "schema"} <= set(catalog.describe_namespace("").properties)
    assert not catalog.upkeep.fsck(deep=True).findings

    manifest = lance.dataset(f"{catalog.root_uri}/__manifest").to_table()
    entries = {row["object_id"]: row for row in manifest.to_pylist()}
    assert manifest.schema.field("read_version").type == pa.uint64()
    assert manifest.schema.field("partition_field_ts_year").type == pa.int32()
    table = entries[again.table.id.key]
    assert (table["read_version"], table["partition_field_ts_year"], table["partition_field_country"]) == (
        2,
        2025,
        "NL",
    )
    assert (table["read_branch"], table["read_tag"]) == (None, None)
    year = entries[level.parent.key]
    assert (year["read_version"], year["partition_field_ts_year"], year["partition_field_country"]) == (
        None,
        2025,
        None,
    )


def test_rows_that_do_not_fit_are_refused_before_any_write(open_managed: Open, tmp_path: Path) -> None:
    catalog = open_managed()
    with pytest.raises(NamespaceNotFound, match="not partitioned"):
        catalog.partitions.open()
    with pytest.raises(InvalidInput, match="has room for 246"):
        catalog.partitions.create(SCHEMA, [PartitionBy.bucket("id", n) for n in range(1, 20)])
    namespace = catalog.partitions.create(SCHEMA, BY)
    with pytest.raises(AlreadyExists):
        catalog.partitions.create(SCHEMA, BY)
    before = sorted(tmp_path.rglob("*"))
    for data, message in [
        (ROWS.drop_columns(["country"]), "expected id, ts, country"),
        (ROWS.append_column("x", pa.array(range(4))), "expected id, ts, country"),
        (ROWS.set_column(0, "id", pa.array(["a"] * 4)), "do not fit"),
        (ROWS.set_column(0, "id", pa.array([None] * 4, pa.int64())), "takes no nulls"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            namespace.write(data)
    with pytest.raises(InvalidInput, match="unknown write mode"):
        namespace.write(ROWS, mode="create")
    assert namespace.write(ROWS.slice(0, 0)) == []
    assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(Unsupported):
        lancekeep.connect(f"{tmp_path}/v1", mode="v1").partitions.create(SCHEMA, BY)


@pytest.mark.parametrize("by", ["country", "year"])
def test_views_of_texts_and_bytes_become_texts_and_bytes(open_managed: Open, by: str) -> None:
    views = pa.array(["NL", None, "a text of more than twelve bytes"], pa.string_view())
    raw = pa.array([b"x", None, b"more than twelve bytes"], pa.binary_view())
    data = pa.table(
        {
            "country": views,
            "year": [2025, 2025, 2026],
            "raw": raw,
            "place": pa.StructArray.from_arrays([views], ["name"]),
            "tags": pa.array([["a"], None, ["b", None]], pa.list_(pa.string_view())),
            "counts": pa.array([[("k", 1)], [], None], pa.map_(pa.string_view(), pa.int64())),
        }
    )
    namespace = open_managed().partitions.create(data.schema, [PartitionBy.identity(by)])
    namespace.write(data)
    found = namespace.scan().to_table()
    assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, data.to_pylist()))
    assert [str(kind) for kind in found.schema.types[:3]] == ["string", "int64", "binary"]


def test_evolved_namespace_is_read_across_its_specifications(open_managed: Open) -> None:
    namespace = open_managed().partitions.create(SCHEMA, BY)
    namespace.write(ROWS)
    spec = open_managed().partitions.open().evolve([PartitionBy.identity("country"), PartitionBy.bucket("id", 4)])
    assert [field.field_id for field in spec.fields] == ["country", "id_bucket_4"]
    assert namespace.evolve([PartitionBy.identity("country"), PartitionBy.bucket("id", 4)]) == spec
    written = namespace.write(rows(6, 7))
    assert {partition.table.id.names[0] for partition in written} == {"v2"}
    assert ids(namespace) == [1, 2, 3, 4, 6, 7]
    scan = namespace.scan([("country", "=", "NL"), ("id", "=", 6)])
    assert Counter(partition.spec.id for partition in scan.partitions) == {1: 2, 2: 1}
    assert ids(namespace, [("country", "=", "NL"), ("id", "=", 6)]) == [6]
    with pytest.raises(Refused, match="while v1 has data"):
        namespace.write(rows(8), mode="overwrite")


def test_overwriting_replaces_the_partitions_of_the_data(open_catalog: Open) -> None:
    namespace = open_catalog().partitions.create(SCHEMA, BY)
    namespace.write(ROWS)
    with no_publication(namespace):
        namespace.write(rows(8))
    [partition, *_] = namespace.write(pa.concat_tables([rows(9), rows(10, country="FR")]), mode="overwrite")
    assert ids(namespace) == [2, 3, 4, 9, 10]
    assert lance.dataset(services_of(open_catalog()).uri(partition.table)).count_rows() == 1


def test_unpublished_rows_never_become_visible(open_catalog: Open) -> None:
    namespace = open_catalog().partitions.create(SCHEMA, BY)
    namespace.write(ROWS)
    with no_publication(namespace):
        namespace.write(pa.concat_tables([rows(100), rows(101, country="FR")]))
    native = open_catalog()
    [partition] = namespace.scan([("id", "=", 1), ("ts", ">", "2000-01-01"), ("country", "=", "NL")]).partitions
    append_natively(native, partition.table.id, rows(102))
    assert ids(namespace) == [1, 2, 3, 4]
    [after] = namespace.write(rows(5))
    assert ids(open_catalog().partitions.open()) == [1, 2, 3, 4, 5]
    assert after.version is not None
    assert after.version > 3
    namespace.write(rows(6, country="FR"))
    assert ids(namespace) == [1, 2, 3, 4, 5, 6]


def test_rows_added_during_a_commit_are_not_published(open_catalog: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine rebases the append of a write onto it, silently."""
    catalog, native = open_catalog(), open_catalog()
    namespace = catalog.partitions.create(SCHEMA, BY)
    [partition] = namespace.write(rows(1))
    commit, slipped = namespace._writes.commit_fragments, list[str]()

    def late(*arguments: Any, **options: Any) -> Any:
        if not slipped:
            slipped.append("once")
            append_natively(native, partition.table.id, rows(100))
        return commit(*arguments, **options)

    monkeypatch.setattr(namespace._writes, "commit_fragments", late)
    namespace.write(rows(2))
    assert slipped
    assert ids(namespace) == [1, 2]


def test_clean_up_keeps_what_is_published(open_managed: Open) -> None:
    catalog = open_managed()
    namespace = catalog.partitions.create(SCHEMA, BY)
    for number in range(3):
        namespace.write(rows(number))
    with no_publication(namespace):
        namespace.write(rows(100))
    report = catalog.upkeep.cleanup(timedelta(0), grace=timedelta(0))
    assert [table.versions for table in report.tables] == [(1, 2)]
    assert ids(namespace) == [0, 1, 2]
    [partition] = namespace.scan().partitions
    with pytest.raises(Refused, match="is published for the partition"):
        directory_of(catalog).versions.delete_versions(directory_of(catalog).places.dataset_root(partition.table), [3])


def test_write_that_loses_its_publication_is_repeated(open_catalog: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the commits and the publication of a write another publishes the same partitions, old and new."""
    namespace, other = open_catalog().partitions.create(SCHEMA, BY), open_catalog().partitions.open()
    namespace.write(rows(1))
    ledger, overtaken = namespace._ledger, list[str]()
    apply = ledger.apply

    def late(decide: Any) -> Any:
        if not overtaken:
            overtaken.append("once")
            other.write(pa.concat_tables([rows(2), rows(3, country="FR")]))
        return apply(decide)

    monkeypatch.setattr(ledger, "apply", late)
    written = namespace.write(pa.concat_tables([rows(4), rows(5, country="FR"), rows(6, country="DE")]))
    assert ids(namespace) == [1, 2, 3, 4, 5, 6]
    assert len(written) == len(namespace.scan().partitions) == 3
    assert not open_catalog().upkeep.fsck(grace=0).findings


def test_write_to_dropped_partition_is_refused(open_managed: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = open_managed()
    namespace = catalog.partitions.create(SCHEMA, BY)
    [partition] = namespace.write(rows(1))
    apply = directory_of(catalog).ledger.apply

    def late(decide: Any) -> Any:
        monkeypatch.undo()
        catalog.drop_table(partition.table.id)
        return apply(decide)

    monkeypatch.setattr(directory_of(catalog).ledger, "apply", late)
    with pytest.raises(ConcurrentModification, match="dropped"):
        namespace.write(pa.concat_tables([rows(2), rows(3, country="FR")]))
    assert ids(namespace) == []
    assert not catalog.upkeep.fsck(grace=0).findings


def test_racing_writers_make_each_partition_once_and_readers_see_whole_writes(open_catalog: Open) -> None:
    """Every write adds one row to each of three partitions, which the first writers have to make."""
    open_catalog().partitions.create(SCHEMA, BY)
    writers, each = 3, 2
    barrier, done = Barrier(writers), Event()

    def write(writer: int) -> None:
        namespace = open_catalog().partitions.open()
        barrier.wait()
        for number in range(writer * each, writer * each + each):
            namespace.write(pa.concat_tables([rows(number, country=country) for country in ("NL", "FR", None)]))

    def read() -> int:
        namespace, most = open_catalog().partitions.open(), 0
        while not done.is_set():
            counts = Counter(ids(namespace))
            assert set(counts.values()) <= {3}, counts
            assert len(counts) >= most, "what was seen has gone"
            most = len(counts)
        return most

    with ThreadPoolExecutor(writers + 1) as pool:
        reading = pool.submit(read)
        try:
            list(pool.map(write, range(writers)))
        finally:
            done.set()
        reading.result()
    namespace = open_catalog().partitions.open()
    assert ids(namespace) == sorted(list(range(writers * each)) * 3)
    assert len(namespace.scan().partitions) == 3
    assert not open_catalog().upkeep.fsck(grace=0).findings


def test_native_namespace_lists_the_tables_and_its_drops_are_visible(tmp_path: Path) -> None:
    namespace = lancekeep.connect(f"{tmp_path}/native").partitions.create(SCHEMA, BY)
    partitions: list[Partition] = namespace.write(ROWS)
    [first, *_] = partitions
    native = lance.namespace.DirectoryNamespace(root=f"{tmp_path}/native")
    assert native.list_namespaces(ListNamespacesRequest(id=[])).namespaces == ["v1"]
    assert len(native.list_namespaces(ListNamespacesRequest(id=["v1"])).namespaces) == 3
    assert native.list_tables(ListTablesRequest(id=list(first.table.id.parent.names))).tables == ["dataset"]
    native.describe_namespace(DescribeNamespaceRequest(id=["v1"]))
    assert lance.dataset(namespace_client=native, table_id=list(first.table.id.names)).count_rows() == 1

    native.create_namespace(CreateNamespaceRequest(id=["other"]))
    assert "read_version" not in lance.dataset(f"{tmp_path}/native/__manifest").schema.names
    with pytest.raises(Damaged, match="Restore the previous version"):
        namespace.scan()
    manifest = lance.dataset(f"{tmp_path}/native/__manifest")
    lance.dataset(f"{tmp_path}/native/__manifest", version=manifest.version - 1).restore()
    assert ids(namespace) == [1, 2, 3, 4]


def test_namespace_of_another_implementation_is_read_as_specified(open_managed: Open) -> None:
    catalog = open_managed()
    namespace = catalog.partitions.create(SCHEMA, BY)
    [partition] = namespace.write(rows(1))
    namespace.write(rows(2))
    table, entry = catalog.open(partition.table.id), f"object_id = '{partition.table.id.key}'"

    def edit(**columns: str) -> None:
        lance.dataset(f"{catalog.root_uri}/__manifest").update(columns, where=entry)

    table.tags.create("first", 1)
    edit(read_version="NULL", read_tag="'first'")
    assert ids(namespace) == [1]
    edit(metadata="NULL")
    assert ids(namespace) == [1]
    with pytest.raises(Refused, match="branch or tag 'first'"):
        namespace.write(rows(3))
    edit(read_tag="NULL")
    catalog.write(partition.table.id, rows(4).cast(namespace.schema), mode="append")  # readers use the latest version
    assert ids(namespace) == [1, 2, 4]
    namespace.write(rows(5))
    append_natively(catalog, partition.table.id, rows(6))
    assert ids(namespace) == [1, 2, 4, 5]

    field = {"field_id": "f", "source_ids": [0], "expression": "col0 / 2", "result_type": {"type": "int64"}}
    manifest = lance.dataset(f"{catalog.root_uri}/__manifest")
    manifest.update_metadata({"partition_spec_v2": json.dumps({"id": 2, "fields": [field]})})
    assert ids(namespace, [("id", ">", 1)]) == [2, 4, 5]
    with pytest.raises(Refused, match="expression"):
        namespace.write(rows(7))


OTHER = pa.table({"id": [9], "note": ["other"]})


def _add(dataset: lance.LanceDataset) -> lance.LanceDataset:
    dataset.add_columns({"n": "id + 1"})
    return dataset


FORBIDDEN: dict[str, Callable[[Catalog, ObjectId], object]] = {
    "drop v1": lambda catalog, _: catalog.drop_namespace("v1", cascade=True),
    "drop empty v2": lambda catalog, _: catalog.drop_namespace("v2"),
    "replace v2": lambda catalog, _: catalog.create_namespace("v2", overwrite=True),
    "create v3": lambda catalog, _: catalog.create_namespace("v3"),
    "create a level": lambda catalog, _: catalog.create_namespace("v1.level"),
    "set a spec": lambda catalog, _: catalog.alter_namespace("", {"partition_spec_v7": "{}"}),
    "remove a spec": lambda catalog, _: catalog.alter_namespace("", remove=["partition_spec_v1"]),
    "set the schema": lambda catalog, _: catalog.alter_namespace("", {"schema": "{}"}),
    "set a derived property": lambda catalog, _: catalog.alter_namespace("v1", {"partition_spec": "{}"}),
    "create a table": lambda catalog, table: catalog.write(f"{table.parent}.other", ROWS),
    "hide all partitions": lambda catalog, _: catalog.write("dataset", ROWS),
    "rename away": lambda catalog, table: catalog.rename_table(table, "away"),
    "rename to": lambda catalog, table: catalog.rename_table("plain", f"{table.parent}.other"),
    "overwrite": lambda catalog, table: catalog.write(table, OTHER, "overwrite"),
    "add columns": lambda catalog, table: catalog.structure.add_columns(table, {"n": "id + 1"}, None),
    "rename a column": lambda catalog, table: catalog.structure.alter_columns(
        table, [ColumnChange("id", name="key")], None
    ),
    "drop columns": lambda catalog, table: catalog.structure.drop_columns(table, ["country"], None),
    "append": lambda catalog, table: catalog.write(table, rows(9).cast(catalog.open(table).schema), "append"),
    "replace the rows": lambda catalog, table: catalog.write(
        table, rows(9).cast(catalog.open(table).schema), "overwrite"
    ),
    "insert": lambda catalog, table: catalog.data.insert(table, rows(9).cast(catalog.open(table).schema).to_reader()),
    "merge": lambda catalog, table: catalog.data.merge(
        table, rows(9).cast(catalog.open(table).schema).to_reader(), MergeRule(["id"])
    ),
    "update": lambda catalog, table: catalog.data.update(table, {"country": "'BE'"}),
    "restore": lambda catalog, table: catalog.versions.restore(table, 1),
    "begin a write": lambda catalog, table: catalog.begin_write(table, catalog.open(table).schema, "append"),
    "commit a transaction": lambda catalog, table: catalog.commit(
        table, operations.Transaction(1, str(uuid4()), operation=operations.Restore(1))
    ),
    "change all columns of a branch": lambda catalog, table: catalog.structure.drop_columns(table, ["ts"], "dev"),
}
COMMITTED: dict[str, Callable[[Catalog, ObjectId], object]] = {
    "commit a change": lambda catalog, table: catalog.commit_change(table, _add),
    "through an opened dataset": lambda catalog, table: _add(catalog.open(table)),
}
"""Changes that reach a catalog as a manifest, which only a managed catalog sees before readers do.

The engine reports every refusal of a commit through an opened dataset as unknown.
"""


def test_changes_by_name_that_break_partitions_are_refused(open_catalog: Open) -> None:
    catalog = open_catalog()
    namespace = catalog.partitions.create(SCHEMA, BY)
    [partition] = namespace.write(rows(1))
    namespace.evolve([PartitionBy.identity("country")])
    table = partition.table.id
    catalog.write("plain", ROWS)
    catalog.branches.create(table, "dev", None, None)
    before = catalog.describe_namespace("").properties
    columns, version = catalog.open(table).schema, catalog.open(table).version
    for name, change in {**FORBIDDEN, **(COMMITTED if directory_of(catalog).versions.managed else {})}.items():
        with pytest.raises(Exception, match=r"partition|commit may or may not have been applied") as refusal:
            change(catalog, table)
        assert isinstance(refusal.value, Refused | OSError | RuntimeError), name
    assert catalog.describe_namespace("").properties == before
    dataset = catalog.open(table)
    assert (dataset.schema, dataset.version) == (columns, version)
    assert (catalog.list_tables(""), catalog.list_namespaces("")) == (["plain"], ["v1", "v2"])
    namespace.write(rows(2))
    assert ids(namespace) == [1, 2]


def test_partitions_stay_usable_by_name(open_catalog: Open) -> None:
    catalog = open_catalog()
    namespace = catalog.partitions.create(SCHEMA, BY)
    [partition] = namespace.write(rows(1))
    table = partition.table.id
    catalog.alter_namespace("v1", {"owner": "ann"})
    catalog.alter_namespace("", {"owner": "ann", "partition_spec_v1": namespace.specs[1].to_json()})
    assert ids(namespace) == [1]
    catalog.drop_namespace(ObjectId(table.names[:2]), cascade=True)
    assert ids(namespace) == []
    namespace.write(rows(6))
    assert ids(namespace) == [6]


def test_changes_by_name_that_keep_partitions_are_published(open_catalog: Open) -> None:
    catalog = open_catalog()
    namespace = catalog.partitions.create(SCHEMA, BY)
    for number in range(1, 5):
        [partition] = namespace.write(rows(number))
    table = partition.table.id
    with no_publication(namespace):
        namespace.write(rows(100))
    append_natively(catalog, table, rows(101))

    assert catalog.upkeep.compact(table) is not None
    [compacted] = namespace.scan().datasets()
    assert len(compacted[1].get_fragments()) == 1
    assert ids(namespace) == [1, 2, 3, 4]
    catalog.structure.create_index(table, NewIndex("id", "BTREE"), None)
    catalog.data.delete(table, "id = 2")
    assert ids(namespace) == [1, 3, 4]
    [(_, dataset)] = namespace.scan().datasets()
    assert [index.name for index in dataset.describe_indices()] == ["id_idx"]
    assert dataset.version == catalog.open(table).version
    transaction = operations.Transaction(dataset.version, str(uuid4()), operation=operations.Delete())
    committed = catalog.commit(table, transaction)
    [partition] = namespace.scan().partitions
    assert partition.version == committed.version
    append_natively(catalog, table, rows(102))
    namespace.write(rows(5))
    assert ids(open_catalog().partitions.open()) == [1, 3, 4, 5]
    [(_, dataset)] = namespace.scan([("id", "=", 5)]).datasets()
    assert [index.name for index in dataset.describe_indices()] == ["id_idx"]


def test_change_by_name_that_loses_to_a_write_is_an_error(open_catalog: Open) -> None:
    catalog = open_catalog()
    namespace = catalog.partitions.create(SCHEMA, BY)
    [partition] = namespace.write(rows(1, 2))
    table = partition.table.id

    def late(dataset: lance.LanceDataset) -> lance.LanceDataset:
        namespace.write(rows(3))
        dataset.delete("id = 1")
        return dataset

    with pytest.raises(ConcurrentModification, match="was committed and not published"):
        catalog.commit_change(table, late)
    assert ids(namespace) == [1, 2, 3]
    catalog.data.delete(table, "id = 1")
    assert ids(open_catalog().partitions.open()) == [2, 3]


def test_change_by_name_that_adds_rows_is_not_published(open_catalog: Open) -> None:
    catalog = open_catalog()
    namespace = catalog.partitions.create(SCHEMA, BY)
    [partition] = namespace.write(rows(1))
    table = partition.table.id

    def add(dataset: lance.LanceDataset) -> lance.LanceDataset:
        dataset.insert(rows(9, country="US").cast(dataset.schema), mode="append")
        return dataset

    with pytest.raises(ConcurrentModification, match="rows that the partitioned namespace did not write"):
        catalog.commit_change(table, add)
    assert ids(namespace) == [1]
    namespace.write(rows(2))
    assert ids(open_catalog().partitions.open()) == [1, 2]


def test_dropped_partition_returns_as_a_plain_table_under_another_name(open_catalog: Open) -> None:
    catalog = open_catalog()
    namespace = catalog.partitions.create(SCHEMA, BY)
    [partition] = namespace.write(rows(1))
    catalog.drop_table(partition.table.id, keep=3600)
    catalog.undrop(partition.table.id)
    assert ids(namespace) == [1]
    catalog.drop_table(partition.table.id, keep=3600)
    namespace.write(rows(2))
    assert catalog.undrop(partition.table.id, "old").properties == {}
    catalog.write("old", rows(3).cast(namespace.schema), "append")
    assert sorted(catalog.open("old").to_table()["id"].to_pylist()) == [1, 3]
    assert ids(open_catalog().partitions.open()) == [2]
    [entry] = lance.dataset(f"{catalog.root_uri}/__manifest").to_table(filter="object_id = 'old'").to_pylist()
    assert not any(value for name, value in entry.items() if name.startswith(("read_", "partition_field_")))


def test_catalog_with_a_table_of_the_name_of_all_partitions_is_not_partitioned(open_managed: Open) -> None:
    catalog = open_managed()
    catalog.write("dataset", ROWS)
    with pytest.raises(AlreadyExists, match="the name dataset is taken by a table"):
        catalog.partitions.create(SCHEMA, BY)


def test_servers_refuse_other_columns_of_a_partition(open_managed: Open) -> None:
    catalog = open_managed()
    [partition] = catalog.partitions.create(SCHEMA, BY).write(rows(1))
    names = list(partition.table.id.names)
    namespace = CatalogNamespace(catalog)
    with serving(namespace) as front, lancekeep.connect(front.uri) as remote:
        for change in (FORBIDDEN["add columns"], FORBIDDEN["overwrite"], FORBIDDEN["drop v1"]):
            with pytest.raises(Exception, match="partition"):
                change(remote, partition.table.id)
    with pytest.raises(Exception, match="partition"):
        namespace.alter_table_drop_columns(api.AlterTableDropColumnsRequest(id=names, columns=["ts"]))
    assert catalog.open(partition.table.id).schema == catalog.partitions.open().schema


def test_directories_carry_the_ids_of_their_tables(open_catalog: Open) -> None:
    """Partitions share the namespaces of their common values, whether they exist or one write makes them."""
    namespace = open_catalog().partitions.create(SCHEMA, BY)
    namespace.write(ROWS)
    namespace.write(rows(5, country="DE"))
    tables = [partition.table for partition in namespace.scan().partitions]
    assert len(tables) == 5
    assert [table.location.partition("_")[2] for table in tables] == [table.id.key for table in tables]
    years = {partition.values[0]: partition.table.id.names[1] for partition in namespace.scan().partitions}
    assert len(set(years.values())) == len(years) == 3
    assert len({partition.table.id.names[1] for partition in namespace.scan().partitions}) == 3


def test_level_named_by_concurrent_write_is_used(open_catalog: Open) -> None:
    """Both writes create the year 2025; the rows of the later one go to a directory below the first one's name."""
    namespace = open_catalog().partitions.create(SCHEMA, BY)
    plan = namespace.begin_write()
    values = (2025, "NL")
    place, location = plan.place(values)
    fragments = lance.fragment.write_fragments(rows(1).cast(namespace.schema), place.uri, mode="create")
    namespace.write(rows(2, country="US"))
    [published] = namespace.publish(plan, [WrittenPartition(values, tuple(fragments), place, location)])
    assert published.table.location.partition("_")[2] == published.table.id.key
    assert len({partition.table.id.names[1] for partition in namespace.scan().partitions}) == 1
    assert ids(namespace) == [1, 2]
    assert open_catalog().upkeep.fsck(grace=timedelta(0)).findings == ()


def test_floats_are_truncated_and_dates_have_the_hour_zero(open_catalog: Open) -> None:
    schema = pa.schema([("x", pa.float64()), ("d", pa.date32())])
    namespace = open_catalog().partitions.create(schema, [PartitionBy.truncate("x", 10), PartitionBy.hour("d")])
    day = dt.date(2025, 1, 1)
    namespace.write(pa.table({"x": [12.7, 19.9, -3.5, float("nan"), None], "d": [day, day, None, day, day]}))
    found = {repr(partition.values) for partition in namespace.scan().partitions}
    assert found == {"(10.0, 0)", "(0.0, None)", "(nan, 0)", "(None, 0)"}
    for wanted, expected in (
        ([("x", ">", 12.7), ("x", "<", 100.0)], [19.9]),
        ([("x", "<=", -3.5)], [-3.5]),
        ([("d", "=", day), ("x", "<", 15.0)], [12.7]),
    ):
        assert namespace.scan(wanted).to_table(["x"])["x"].to_pylist() == expected


FLOATS = [float("nan"), -0.0, 0.0, 1.5, -1.5, float("inf"), float("-inf"), None]


@pytest.mark.parametrize(
    "specs",
    [
        [[PartitionBy.identity("x")], [PartitionBy.truncate("x", 1)]],
        [[PartitionBy.truncate("x", 1)], [PartitionBy.bucket("id", 2)], [PartitionBy.identity("x")]],
        [[PartitionBy.bucket("id", 3)], [PartitionBy.identity("x"), PartitionBy.truncate("id", 2)]],
    ],
)
def test_floats_are_found_across_specifications(open_managed: Open, tmp_path: Path, specs: list[list[Any]]) -> None:
    """A table of one partition has the same rows for each condition; signs of zero are kept."""
    schema = pa.schema([("id", pa.int64()), ("x", pa.float64())])
    divided = open_managed().partitions.create(schema, specs[0])
    whole = lancekeep.connect(str(tmp_path / "whole")).partitions.create(schema, [PartitionBy.bucket("id", 1)])
    for by in [*specs[1:], None]:
        rows = pa.table({"id": range(len(FLOATS)), "x": FLOATS}, schema)
        divided.write(rows)
        whole.write(rows)
        if by is not None:
            divided.evolve(by)
    conditions: list[Any] = [None, [("x", "is null")], [("x", "is not null"), ("id", ">", 1)]]
    for x in FLOATS[1:-1]:  # NaN and null are refused
        conditions += [[("x", sign, x)] for sign in ("=", "!=", "<", "<=", ">", ">=")]
        conditions += [[("x", "in", [x, 1.5])], [("x", "not in", [x])], [("id", "<", 4), ("x", "<=", x)]]
    for condition in conditions:
        found, expected = (
            sorted(map(repr, space.scan(condition).to_table(["id", "x"]).to_pylist())) for space in (divided, whole)
        )
        assert found == expected, condition


def test_dropped_partitions_are_gone(open_catalog: Open) -> None:
    catalog = open_catalog()
    catalog.write("plain", pa.table({"k": [1]}))
    namespace = catalog.partitions.create(SCHEMA, BY)
    namespace.write(ROWS)
    namespace.evolve([PartitionBy.bucket("id", 2)])
    namespace.write(ROWS)
    places = [Path(namespace.place(part)[0].removeprefix("file://")) for part in namespace.scan().partitions]
    assert len(places) == 6
    assert all(map(Path.exists, places))
    catalog.protect(namespace.scan().partitions[0].table.id)
    with pytest.raises(Refused, match="is protected"):
        catalog.partitions.drop()
    assert ids(namespace) == sorted([1, 2, 3, 4] * 2)
    catalog.unprotect(namespace.scan().partitions[0].table.id)
    catalog.partitions.drop()
    assert not any(map(Path.exists, places))
    assert open_catalog().list_namespaces() == []
    with pytest.raises(NamespaceNotFound):
        open_catalog().partitions.open()
    with pytest.raises(TableNotFound, match="not partitioned"):
        catalog.partitions.drop()
    assert catalog.open("plain").count_rows() == 1
    assert not catalog.upkeep.fsck(deep=True).findings


def test_write_to_partitions_that_were_dropped_and_created_is_refused(open_catalog: Open) -> None:
    catalog = open_catalog()
    namespace = catalog.partitions.create(SCHEMA, BY)
    plan = namespace.begin_write()
    place, location = plan.place((2025, "NL"))
    fragments = services_of(catalog).engine.write_fragments(place, rows(7).cast(SCHEMA).to_reader())
    catalog.partitions.drop()
    for schema, by in [(SCHEMA.append(pa.field("more", pa.int8())), BY), (SCHEMA, BY[::-1])]:
        again = open_catalog().partitions.create(schema, by)
        with pytest.raises(ConcurrentModification, match="were dropped"):
            namespace.publish(plan, [WrittenPartition((2025, "NL"), tuple(fragments), place, location)])
        assert again.scan().partitions == ()
        catalog.partitions.drop()


def test_dropped_partitions_may_be_kept(open_catalog: Open) -> None:
    catalog = open_catalog()
    catalog.partitions.create(SCHEMA, [PartitionBy.bucket("id", 1)]).write(ROWS)
    catalog.partitions.drop(keep=3600)
    [dropped] = catalog.list_dropped()
    catalog.undrop(dropped.id, "returned")
    assert catalog.open("returned").count_rows() == 4


def first_rows(catalog: Catalog, plan: PartitionWritePlan) -> WrittenPartition:
    """Write the row 7 of a partition that does not exist."""
    place, location = plan.place((2025, "NL"))
    fragments = services_of(catalog).engine.write_fragments(place, rows(7).cast(SCHEMA).to_reader())
    return WrittenPartition((2025, "NL"), tuple(fragments), place, location)


def test_first_rows_become_visible_with_the_partitions(open_catalog: Open) -> None:
    catalog = open_catalog()
    plan = catalog.partitions.begin_create(SCHEMA, BY)
    written = first_rows(catalog, plan)
    with pytest.raises(InvalidInput, match="written twice"):
        catalog.partitions.finish_create(plan, [written, written])
    assert catalog.list_namespaces() == []
    namespace = catalog.partitions.finish_create(plan, [written])
    assert ids(namespace, [("country", "=", "NL")]) == ids(open_catalog().partitions.open()) == [7]
    [(partition, _)] = namespace.scan().datasets()
    assert lance.dataset(namespace.place(partition)[0]).to_table()["id"].to_pylist() == [7]
    namespace.write(rows(8))
    assert ids(namespace) == [7, 8]
    assert not catalog.upkeep.fsck(deep=True).findings
    with pytest.raises(AlreadyExists):
        catalog.partitions.begin_create(SCHEMA, BY)


def test_first_rows_of_a_second_creator_are_removed(open_catalog: Open) -> None:
    catalog, other = open_catalog(), open_catalog()
    plan = catalog.partitions.begin_create(SCHEMA, BY)
    written = first_rows(catalog, plan)
    other.partitions.create(SCHEMA.append(pa.field("more", pa.int8())), BY[:1])
    with pytest.raises(AlreadyExists, match="partitioned already"):
        catalog.partitions.finish_create(plan, [written])
    assert open_catalog().partitions.open().scan().partitions == ()
    assert not list(Path(urlsplit(catalog.root_uri).path).glob(f"{written.location}/**/*.lance"))


def test_killed_creation_leaves_no_partitions(open_catalog: Open) -> None:
    catalog = open_catalog()
    plan = catalog.partitions.begin_create(SCHEMA, BY)
    written = first_rows(catalog, plan)
    with no_publication(catalog.partitions._namespace):  # type: ignore[attr-defined] # its ledger is the service's
        catalog.partitions.finish_create(plan, [written])
    assert open_catalog().list_namespaces() == []
    with pytest.raises(NamespaceNotFound):
        open_catalog().partitions.open()
    assert ids(catalog.partitions.finish_create(plan, [first_rows(catalog, plan)])) == [7]


def test_changes_of_several_partitions_are_published_once(open_catalog: Open) -> None:
    namespace = open_catalog().partitions.create(SCHEMA, BY)
    namespace.write(ROWS)

    def delete(dataset: Any) -> Any:
        dataset.delete("true")
        return dataset

    read, plan = namespace.scan(), namespace.begin_write()
    by_values = {part.values: part.table.id for part in read.partitions}
    first, second = by_values[2025, "NL"], by_values[1969, "NL"]
    acts = {first: delete, second: delete}
    namespace.write(rows(5, country="US"))
    with pytest.raises(ConcurrentModification, match="have changed since"):
        namespace.change(plan, read, acts, exactly=True)
    assert ids(namespace) == [1, 2, 3, 4, 5]
    namespace.change(plan, read, {first: delete})  # what was committed before is not published; US may change
    assert ids(namespace) == [2, 3, 4, 5]
    with pytest.raises(ConcurrentModification, match="the same partitions"):
        namespace.change(plan, read, acts)  # the first partition is not as it was read
    again = namespace.scan()
    assert sum(dataset.count_rows() for part, dataset in again.datasets() if part.table.id == second) == 1
    namespace.change(namespace.begin_write(), again, {part.table.id: delete for part in again.partitions}, exactly=True)
    assert ids(namespace) == []
    namespace.write(ROWS)
    assert ids(namespace) == [1, 2, 3, 4]


def add_column(namespace: PartitionedNamespace, before: Callable[[], None] = lambda: None) -> None:
    """Add the column ``n`` to all partitions; call a function before the change of each."""

    def act(dataset: Any) -> Any:
        before()
        dataset.add_columns(pa.field("n", pa.int32()))
        return dataset

    plan, read = namespace.begin_write(), namespace.scan()
    schema = plan.schema.append(pa.field("n", pa.int32(), metadata={"lance:field_id": str(len(plan.schema))}))
    namespace.change(plan, read, {part.table.id: act for part in read.partitions}, exactly=True, schema=schema)


def test_alteration_succeeds_although_a_simultaneous_one_fails(open_catalog: Open) -> None:
    namespace = open_catalog().partitions.create(SCHEMA, BY)
    namespace.write(rows(1))

    def stop() -> None:
        raise InvalidInput("stopped")

    def fail() -> None:
        with pytest.raises(InvalidInput, match="stopped"):
            add_column(namespace, before=stop)

    add_column(namespace, before=fail)
    assert namespace.schema.names == [*SCHEMA.names, "n"]
    namespace.write(rows(2).append_column("n", pa.array([7], pa.int32())))
    assert namespace.scan().to_table(["id", "n"]).sort_by("id")["n"].to_pylist() == [None, 7]


@pytest.mark.parametrize("change", ["append", "delete", "add a column"])
def test_columns_of_a_killed_alteration_are_undone_by_the_next_change(open_catalog: Open, change: str) -> None:
    namespace = open_catalog().partitions.create(SCHEMA, BY)
    namespace.write(rows(1, 2))
    with no_publication(namespace):
        add_column(namespace)
    catalog = open_catalog()
    again = catalog.partitions.open()
    [partition] = again.scan().partitions
    assert lance.dataset(again.place(partition)[0]).schema.names == [*SCHEMA.names, "n"]  # and no reader sees it
    assert again.scan().to_table().schema.names == again.schema.names == SCHEMA.names
    if change == "append":
        again.write(rows(3))
    elif change == "delete":
        catalog.data.delete(partition.table.id, "id = 2")
    else:
        add_column(again)
    assert ids(again) == {"append": [1, 2, 3], "delete": [1]}.get(change, [1, 2])
    names = [*SCHEMA.names, "n"] if change == "add a column" else SCHEMA.names
    [(partition, found)] = again.scan().datasets()
    assert found.schema.names == again.schema.names == names
    assert lance.dataset(again.place(partition)[0]).schema.names == names
    assert not catalog.upkeep.fsck(deep=True).findings


NESTED = {
    "struct": (pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))]), {"a": 1, "b": ["x"]}),
    "list": (pa.list_(pa.int32()), [1, 2]),
    "list of structs": (pa.large_list(pa.struct([("a", pa.int32())])), [{"a": 1}]),
    "map": (pa.map_(pa.string(), pa.int32()), [("k", 1)]),
    "vector": (pa.list_(pa.float32(), 2), [1.0, 2.0]),
}


@pytest.mark.parametrize("kind", NESTED)
def test_columns_may_follow_a_column_with_fields(open_catalog: Open, kind: str) -> None:
    nested, value = NESTED[kind]
    catalog = open_catalog()
    schema = pa.schema([("id", pa.int64()), ("nested", nested), ("country", pa.string()), ("last", pa.int32())])
    namespace = catalog.partitions.create(schema, [PartitionBy.identity("country")])

    def data(number: int, country: str) -> pa.Table:
        values = zip((number, value, country, 7), schema, strict=True)
        return pa.table([pa.array([each], field.type) for each, field in values], schema=schema)

    for number, country in ((1, "NL"), (2, "US"), (3, "NL")):  # new partitions, and an append
        namespace.write(data(number, country))
    add_column(namespace)
    namespace.write(data(4, "FR").append_column("n", pa.array([8], pa.int32())))
    found = namespace.scan().to_table().sort_by("id").to_pylist()
    assert [(row["id"], row["nested"], row["last"], row["n"]) for row in found] == [
        (number, value, 7, None) for number in (1, 2, 3)
    ] + [(4, value, 7, 8)]
    for partition, _ in namespace.scan().datasets():
        stored = lance.dataset(namespace.place(partition)[0], version=partition.version)
        assert stored.to_table(["nested"])["nested"].to_pylist() == [value] * stored.count_rows()
    assert not catalog.upkeep.fsck(deep=True).findings


@pytest.mark.parametrize("mode", ["create", "overwrite"])
def test_a_table_may_have_the_schema_of_partitions(open_catalog: Open, mode: str) -> None:
    catalog = open_catalog()
    schema = pa.schema([("id", pa.int64()), ("nested", NESTED["struct"][0]), ("country", pa.string())])
    numbered = catalog.partitions.create(schema, [PartitionBy.identity("country")]).schema
    catalog.write("plain", ROWS)
    name = "plain" if mode == "overwrite" else "new"
    catalog.write(name, numbered.empty_table(), mode)
    catalog.write(name, pa.table([[1], [NESTED["struct"][1]], ["NL"]], schema=numbered), "append")
    assert catalog.open(name).to_table().to_pylist() == [{"id": 1, "nested": NESTED["struct"][1], "country": "NL"}]


def test_tasks_that_write_a_new_partition_share_its_directory(open_catalog: Open) -> None:
    namespace = open_catalog().partitions.create(SCHEMA, BY)
    plan = namespace.begin_write()
    [first, again] = (plan.place((2025, "NL"), shared=True) for _ in range(2))
    assert first == again != namespace.begin_write().place((2025, "NL"), shared=True)
    assert first != plan.place((2025, "US"), shared=True)


def test_replacement_is_published_with_its_first_rows(open_catalog: Open) -> None:
    catalog = open_catalog()
    with pytest.raises(TableNotFound, match="not partitioned"):
        catalog.partitions.finish_create(catalog.partitions.begin_create(SCHEMA, BY), [], replace=True)
    old = catalog.partitions.create(SCHEMA, [PartitionBy.bucket("id", 2)])
    old.write(ROWS)
    old.evolve([PartitionBy.identity("country")])
    old.write(ROWS)
    begun = old.begin_write()
    before = ids(open_catalog().partitions.open())
    places = [old.place(partition)[0] for partition in old.scan().partitions]
    plan = catalog.partitions.begin_create(SCHEMA, BY, replace=True)
    killed = first_rows(catalog, plan)
    assert ids(open_catalog().partitions.open()) == before
    with no_publication(catalog.partitions._namespace):  # type: ignore[attr-defined] # its ledger is the service's
        catalog.partitions.finish_create(plan, [killed], replace=True)
    assert ids(open_catalog().partitions.open()) == before
    written = first_rows(catalog, plan)
    new = catalog.partitions.finish_create(plan, [written], replace=True)
    assert ids(new) == ids(open_catalog().partitions.open()) == [7]
    assert list(new.specs) == [1]
    assert [field.field_id for field in new.specs[1].fields] == ["ts_year", "country"]
    assert catalog.list_namespaces() == ["v1"]
    assert not any(Path(urlsplit(place).path).exists() for place in places)
    assert [finding.object for finding in catalog.upkeep.fsck(deep=True).findings] == [killed.location]
    place, location = begun.place(("NL",))
    with pytest.raises(ConcurrentModification):
        old.publish(begun, [WrittenPartition(("NL",), tuple(written.fragments), place, location)])
    new.write(rows(8))
    assert ids(new) == [7, 8]


def test_write_to_a_partition_that_an_equal_one_replaces_is_refused(open_catalog: Open) -> None:
    catalog = open_catalog()
    namespace = catalog.partitions.create(SCHEMA, BY)
    namespace.write(rows(7))
    begun = namespace.begin_write()
    place, location = begun.place((2025, "NL"))
    fragments = services_of(catalog).engine.write_fragments(place, rows(8).cast(SCHEMA).to_reader())
    plan = catalog.partitions.begin_create(SCHEMA, BY, replace=True)
    catalog.partitions.finish_create(plan, [first_rows(catalog, plan)], replace=True)
    with pytest.raises(ConcurrentModification, match="was replaced"):
        namespace.publish(begun, [WrittenPartition((2025, "NL"), tuple(fragments), place, location)])
    assert ids(namespace) == [7]


def test_refused_replacement_keeps_the_partitions(open_catalog: Open) -> None:
    catalog = open_catalog()
    namespace = catalog.partitions.create(SCHEMA, BY)
    namespace.write(ROWS)
    before = ids(namespace)
    plan = catalog.partitions.begin_create(SCHEMA, BY, replace=True)
    written = first_rows(catalog, plan)
    catalog.clone(str(namespace.scan().partitions[0].table.id), "copy")
    with pytest.raises(Refused, match="copy"):
        catalog.partitions.finish_create(plan, [written], replace=True)
    assert ids(namespace) == before
    assert not list(Path(urlsplit(catalog.root_uri).path).glob(f"{written.location}/**/*.lance"))


def test_replacement_stays_if_old_files_cannot_be_removed(open_catalog: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = open_catalog()
    catalog.partitions.create(SCHEMA, BY).write(ROWS)
    plan = catalog.partitions.begin_create(SCHEMA, BY, replace=True)
    written = first_rows(catalog, plan)

    def damaged(*_: Any) -> None:
        raise Damaged("a file cannot be read")

    monkeypatch.setattr(Removal, "refuse_needed_since", damaged)
    with pytest.raises(Damaged):
        catalog.partitions.finish_create(plan, [written], replace=True)
    assert ids(catalog.partitions.open()) == [7]
