"""Manifest tables as other writers make them: any order of columns, columns of their own, odd rows."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import attrs
import lance
import lance_namespace as api
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from lance.namespace import DirectoryNamespace as NativeNamespace

import lancekeep
from lancekeep.adapters.manifest_stores.columns import SCHEMA
from lancekeep.application.catalog import directory_of, services_of
from lancekeep.application.upkeep.fsck import Kind
from lancekeep.domain.catalog import AddColumns
from lancekeep.domain.errors import Damaged
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.manifest import DeletionFileType
from lancekeep.format.deletions import write


def foreign_table(
    tmp_path: Path, columns: dict[str, Any], *, fields: dict[str, pa.Field] | None = None, version: str = "2.2"
) -> str:
    """A manifest table written by pylance with these columns, in this order."""
    known = {**{field.name: field for field in SCHEMA}, **(fields or {})}
    data = pa.table(columns, schema=pa.schema([known[name] for name in columns]))
    uri = str(tmp_path / "lake/__manifest")
    lance.write_dataset(data, uri, data_storage_version=cast(Any, version))
    return uri


def rows(uri: str, *columns: str) -> list[tuple[Any, ...]]:
    """The rows as pylance reads them, by object id."""
    found = lance.dataset(uri).to_table().to_pylist()
    return sorted((tuple(row[name] for name in ("object_id", *columns)) for row in found), key=lambda row: row[0])


def catalog_of(uri: str) -> lancekeep.Catalog:
    return lancekeep.connect(str(Path(uri).parent), mode="v2", storage_options={"fsync": "false"})


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_columns_in_any_order_keep_their_values(tmp_path: Path, version: str) -> None:
    uri = foreign_table(
        tmp_path,
        {"object_type": ["namespace"], "metadata": [None], "location": [None], "extra": [7], "object_id": ["a"]},
        fields={"extra": pa.field("extra", pa.int64())},
        version=version,
    )
    catalog = catalog_of(uri)
    catalog.create_namespace("b", {"k": "v"})
    catalog.declare_table("a.t")
    catalog.alter_namespace("a", {"k": "w"})
    found = rows(uri, "object_type", "metadata", "extra")
    assert found == [
        ("a", "namespace", '{"k":"w"}', 7),
        ("a$t", "table", None, None),
        ("b", "namespace", '{"k":"v"}', None),
    ]
    assert catalog_of(uri).list_namespaces() == ["a", "b"]


def test_own_columns_in_another_order_keep_their_values(tmp_path: Path) -> None:
    columns = {"object_type": ["namespace"], "metadata": [None], "object_id": ["a"], "location": [None]}
    uri = foreign_table(tmp_path, columns)
    catalog = catalog_of(uri)
    catalog.create_namespace("b", {"k": "v"})
    catalog.create_namespace("c")
    assert rows(uri, "object_type", "metadata") == [
        ("a", "namespace", None),
        ("b", "namespace", '{"k":"v"}'),
        ("c", "namespace", None),
    ]


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_dropped_column_leaves_the_catalog_usable(tmp_path: Path, version: str) -> None:
    catalog = lancekeep.connect(str(tmp_path / "lake"), mode="v2", storage_options={"fsync": "false"})
    catalog.create_namespace("a")
    uri = str(tmp_path / "lake/__manifest")
    struct = pa.field("nested", pa.struct([pa.field("x", pa.int64()), pa.field("y", pa.string())]))
    uri = foreign_table(
        tmp_path / "other",
        {"extra": [1], "object_id": ["a"], "nested": [{"x": 1, "y": "z"}], "object_type": ["namespace"],
         "location": [None], "metadata": [None]},
        fields={"extra": pa.field("extra", pa.int64()), "nested": struct},
        version=version,
    )  # fmt: skip
    lance.dataset(uri).drop_columns(["extra", "nested.x"])
    catalog = catalog_of(uri)
    assert catalog.list_namespaces() == ["a"]
    catalog.create_namespace("b")
    catalog.drop_namespace("b")
    lance.dataset(uri).optimize.compact_files()
    catalog.create_namespace("c", {"k": "v"})
    assert rows(uri, "object_type", "metadata") == [("a", "namespace", None), ("c", "namespace", '{"k":"v"}')]
    assert rows(uri, "nested")[0] == ("a", {"y": "z"})


def test_column_that_follows_a_dropped_one_does_not_show_its_values(tmp_path: Path) -> None:
    """A data file still holds the dropped column under its field id."""
    uri = foreign_table(
        tmp_path,
        {"object_id": ["a"], "object_type": ["namespace"], "location": [None], "metadata": [None], "extra": [99]},
        fields={"extra": pa.field("extra", pa.int64())},
    )
    lance.dataset(uri).drop_columns(["extra"])
    catalog = catalog_of(uri)
    directory_of(catalog).ledger.apply(lambda view: ([AddColumns({"partition": "int64"})], None))
    assert rows(uri, "partition") == [("a", None)]


def test_column_that_cannot_be_null_is_named_before_anything_is_written(tmp_path: Path) -> None:
    uri = foreign_table(
        tmp_path,
        {"object_id": ["a"], "object_type": ["namespace"], "location": [None], "metadata": [None], "owner": ["me"]},
        fields={"owner": pa.field("owner", pa.string(), nullable=False)},
    )
    catalog = catalog_of(uri)
    for change in (lambda: catalog.create_namespace("b"), lambda: catalog.declare_table("t")):
        with pytest.raises(lancekeep.Refused, match="'owner'"):
            change()
    assert lance.dataset(uri).version == 1
    assert sorted(path.name for path in Path(uri).parent.iterdir()) == ["__manifest"]
    catalog.alter_namespace("a", {"k": "v"})
    assert rows(uri, "metadata", "owner") == [("a", '{"k":"v"}', "me")]
    changed: Any = {"path": "owner", "nullable": True}
    lance.dataset(uri).alter_columns(changed)
    catalog.create_namespace("b")
    assert rows(uri, "owner") == [("a", "me"), ("b", None)]


ODD_ROWS: dict[str, dict[str, Any]] = {
    "metadata is no JSON": {"object_id": "bad", "object_type": "table", "location": "bad", "metadata": "{"},
    "metadata is no object": {"object_id": "bad", "object_type": "table", "location": "bad", "metadata": "[1]"},
    "property is no text": {"object_id": "bad", "object_type": "namespace", "metadata": '{"k":1}'},
    "property is null": {"object_id": "bad", "object_type": "namespace", "metadata": '{"k":null}'},
    "metadata is nested deeply": {"object_id": "bad", "object_type": "namespace", "metadata": "[" * 100_000},
    "location has 2,000 levels": {"object_id": "bad", "object_type": "table", "location": "/".join("d" * 2000)},
    "location name is too long": {"object_id": "bad", "object_type": "table", "location": "x" * 300},
    "location leaves the root": {"object_id": "bad", "object_type": "table", "location": "../x"},
    "location is absolute": {"object_id": "bad", "object_type": "table", "location": "/etc"},
    "location holds NUL": {"object_id": "bad", "object_type": "table", "location": "a\0b"},
    "location is the catalog's": {"object_id": "bad", "object_type": "table", "location": "__manifest"},
    "location is missing": {"object_id": "bad", "object_type": "table"},
    "location is empty": {"object_id": "bad", "object_type": "table", "location": ""},
    "location is another table's": {"object_id": "bad", "object_type": "table", "location": "good.lance"},
    "object id is null": {"object_id": None, "object_type": "table", "location": "bad"},
    "object id is empty": {"object_id": "", "object_type": "table", "location": "bad"},
    "object id has empty names": {"object_id": "a$$b", "object_type": "table", "location": "bad"},
    "object id is huge": {"object_id": "x" * 100_000, "object_type": "table", "location": "bad"},
    "object type is null": {"object_id": "bad", "object_type": None, "location": "bad"},
    "object type is empty": {"object_id": "bad", "object_type": "", "location": "bad"},
    "parent is missing": {"object_id": "no$bad", "object_type": "table", "location": "bad"},
    "object id is taken": {"object_id": "good", "object_type": "table", "location": "bad"},
}


@pytest.mark.parametrize("odd", ODD_ROWS.values(), ids=ODD_ROWS)
@pytest.mark.parametrize("mode", ["v2", "compatible"])
def test_odd_row_is_a_finding_and_no_outage(tmp_path: Path, mode: str, odd: dict[str, Any]) -> None:
    schema = pa.schema([field.with_nullable(True).remove_metadata() for field in SCHEMA])
    sound = [
        {"object_id": "good", "object_type": "table", "location": "good.lance"},
        {"object_id": "space", "object_type": "namespace"},
    ]
    uri = str(tmp_path / "lake/__manifest")
    lance.write_dataset(pa.Table.from_pylist([*sound, odd], schema=schema), uri, data_storage_version="2.2")
    lance.write_dataset(pa.table({"a": [1]}), str(tmp_path / "lake/good.lance"))
    catalog = lancekeep.connect(str(tmp_path / "lake"), mode=mode, storage_options={"fsync": "false"})

    kept = [row for row in lance.dataset(uri).to_table().to_pylist() if row["object_id"] == odd["object_id"]]
    catalog.create_namespace("new")
    catalog.declare_table("new.t")
    for include_declared in (True, False):
        assert "good" in {str(table) for table in catalog.list_all_tables(include_declared=include_declared)}
        assert (
            "good"
            in services_of(catalog).tables.page(lancekeep.ObjectId(()), None, None, include_declared=include_declared)[
                0
            ]
        )
    assert {"new", "space"} <= set(catalog.list_namespaces())
    catalog.drop_namespace("new", cascade=True)
    catalog.drop_namespace("space")
    assert len(catalog.upkeep.fsck(grace=0).findings) >= 1
    catalog.upkeep.fsck(repair=True, deep=True, grace=0)
    catalog.upkeep.cleanup(older_than=timedelta(0))
    if odd["object_id"] != "good":
        assert catalog.open("good").count_rows() == 1
    after = [row for row in lance.dataset(uri).to_table().to_pylist() if row["object_id"] == odd["object_id"]]
    assert after == kept


def test_malformed_row_is_one_finding(tmp_path: Path) -> None:
    schema = pa.schema([field.with_nullable(True).remove_metadata() for field in SCHEMA])
    odd = ["metadata is no JSON", "property is no text", "object id is null", "object type is empty"]
    uri = str(tmp_path / "lake/__manifest")
    for name in odd:
        lance.write_dataset(pa.Table.from_pylist([ODD_ROWS[name]], schema=schema), uri, mode="overwrite")
        report = catalog_of(uri).upkeep.fsck()
        assert [finding.kind for finding in report.findings] == [Kind.MALFORMED], name


def test_root_properties_in_the_schema_are_shown_and_can_be_changed(tmp_path: Path) -> None:
    uri = str(tmp_path / "lake/__manifest")
    lance.write_dataset(SCHEMA.empty_table().replace_schema_metadata({"a": "1", "b": "2"}), uri)
    catalog = catalog_of(uri)
    assert catalog.describe_namespace(()).properties == {"a": "1", "b": "2"}
    catalog.create_namespace("n")
    assert (lance.dataset(uri).schema.metadata or {}) == {b"a": b"1", b"b": b"2"}
    catalog.alter_namespace((), {"a": "3"})
    catalog.alter_namespace((), {}, remove=["b"])
    assert catalog_of(uri).describe_namespace(()).properties == {"a": "3"}
    assert not lance.dataset(uri).schema.metadata


# -- any foreign table ------------------------------------------------------------------------------------------------

EXAMPLES = int(os.environ.get("LANCEKEEP_FUZZ", "100"))
STORAGE = ("2.0", "2.1", "2.2")
TYPES: tuple[tuple[pa.DataType, Any], ...] = (
    (pa.bool_(), True),
    (pa.int8(), -3),
    (pa.uint64(), 2**64 - 1),
    (pa.float16(), 1.5),
    (pa.float64(), -0.5),
    (pa.string(), "text"),
    (pa.large_string(), "large"),
    (pa.binary(), b"\xff\x00"),
    (pa.large_binary(), b"\xfe"),
    (pa.binary(3), b"abc"),
    (pa.date32(), date(2026, 1, 2)),
    (pa.date64(), date(2026, 1, 2)),
    (pa.time64("ns"), 1001),
    (pa.timestamp("ns"), 1_700_000_000_000_000_001),
    (pa.timestamp("us", "Europe/Berlin"), 1_700_000_000_000_001),
    (pa.timestamp("s"), 2**40),
    (pa.duration("ns"), 12_345_678_901),
    (pa.decimal128(20, 2), Decimal("1.25")),
    (pa.decimal256(50, 3), Decimal("-1.125")),
    (pa.list_(pa.int64()), [1, None, 2]),
    (pa.large_list(pa.large_string()), ["a", None]),
    (pa.list_(pa.float32(), 2), [1.0, 2.0]),
    (pa.struct([pa.field("x", pa.int64()), pa.field("y", pa.string())]), {"x": 1, "y": "z"}),
    (pa.struct([pa.field("x", pa.int64(), nullable=False)]), {"x": 1}),
    (pa.list_(pa.struct([pa.field("object_id", pa.string())])), [{"object_id": "inner"}]),
    (pa.dictionary(pa.int32(), pa.string()), "word"),
    (pa.map_(pa.string(), pa.int64()), [("k", 1)]),
    (pa.json_(), '{"a":1}'),
)
NAMES = ("a", "b", "c", "a$t", "a$u", "b$t", "t", "u", "ü", "x" * 200)


@attrs.frozen
class Extra:
    """A column of an extension: whether it may be null, and whether its values are given."""

    name: str
    kind: pa.DataType
    value: Any
    nullable: bool


def _storable(kind: pa.DataType, version: str) -> bool:
    """Whether the engine stores the type: maps since 2.2, nulls in dictionaries since 2.1."""
    return not (pa.types.is_map(kind) and version != "2.2") and not (pa.types.is_dictionary(kind) and version == "2.0")


@st.composite
def extras(draw: st.DrawFn, version: str) -> list[Extra]:
    kinds = draw(st.lists(st.sampled_from([pair for pair in TYPES if _storable(pair[0], version)]), max_size=3))
    return [
        Extra(f"extra {number}", kind, value, draw(st.integers(0, 5)) > 0) for number, (kind, value) in enumerate(kinds)
    ]


class ForeignTable(RuleBasedStateMachine):
    """A manifest table of pylance's, changed in turn by Lancekeep, the native namespace and pylance.

    The model is a dictionary of rows. Pylance and the native namespace have to agree with it after every step.
    """

    def __init__(self) -> None:
        super().__init__()
        self._directory = TemporaryDirectory(prefix="foreign-")
        self.root = f"{self._directory.name}/lake"
        self.uri = f"{self.root}/__manifest"
        self.rows: dict[str, dict[str, Any]] = {}
        self.extras: dict[str, Extra] = {}
        self.fresh = 0

    def teardown(self) -> None:
        self._directory.cleanup()

    # -- the table as it is at first ------------------------------------------------------------------------------

    @initialize(
        data=st.data(), version=st.sampled_from(STORAGE), v2_names=st.booleans(), file=st.sampled_from((1, 2, 100))
    )
    def create(self, data: st.DataObject, version: str, v2_names: bool, file: int) -> None:
        chosen = data.draw(extras(version))
        self.version = version
        self.extras = {extra.name: extra for extra in chosen}
        fields = [field for field in SCHEMA if field.name != "base_objects" or data.draw(st.booleans())]
        self.large = data.draw(st.integers(0, 4)) == 0
        if self.large:
            fields = [field.with_type(pa.large_string()) if field.type == pa.string() else field for field in fields]
        fields += [pa.field(extra.name, extra.kind, extra.nullable) for extra in chosen]
        schema = pa.schema(data.draw(st.permutations(fields)))
        for name in data.draw(st.lists(st.sampled_from(NAMES[:3]), unique=True, min_size=1)):
            self.rows[name] = self._row(name, "namespace", data)
        self._write(list(self.rows.values()), schema, mode="create", file=file, v2_names=v2_names)
        self.catalog = lancekeep.connect(self.root, mode="v2", storage_options={"fsync": "false"})

    # -- Lancekeep ------------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES), properties=st.sampled_from(({}, {"k": "v"}, {"ü": ""})))
    def create_namespace(self, name: str, properties: dict[str, str]) -> None:
        self._ours(lambda: self.catalog.create_namespace(name.split("$"), properties), name, "namespace", properties)

    @rule(name=st.sampled_from(NAMES))
    def declare_table(self, name: str) -> None:
        self._ours(lambda: self.catalog.declare_table(name.split("$")), name, "table", {})

    @rule(name=st.sampled_from(NAMES))
    def alter(self, name: str) -> None:
        row = self.rows.get(name)
        if row is None:
            return
        self.fresh += 1
        alter = self.catalog.alter_table if row["object_type"] == "table" else self.catalog.alter_namespace
        alter(name.split("$"), {"n": str(self.fresh)})
        properties = {**json.loads(row["metadata"] or "{}"), "n": str(self.fresh)}
        row["metadata"] = json.dumps(properties, separators=(",", ":"), ensure_ascii=False)

    @rule(name=st.sampled_from(NAMES))
    def drop(self, name: str) -> None:
        row = self.rows.get(name)
        if row is None:
            return
        if row["object_type"] == "table":
            self.catalog.drop_table(name.split("$"))
            del self.rows[name]
        else:
            self.catalog.drop_namespace(name.split("$"), cascade=True)
            for gone in [other for other in self.rows if other == name or other.startswith(f"{name}$")]:
                del self.rows[gone]

    @rule()
    def root_property(self) -> None:
        self.fresh += 1
        self.catalog.alter_namespace((), {"p": str(self.fresh)})

    @rule()
    def optimize(self) -> None:
        self.catalog.upkeep.optimize()

    @rule()
    def reopen(self) -> None:
        self.catalog = lancekeep.connect(self.root, mode="v2", storage_options={"fsync": "false"})

    # -- the native namespace, which drops columns that it does not know ----------------------------------------------

    @precondition(lambda self: not self.extras and not self.large)
    @rule(name=st.sampled_from(NAMES[:3]))
    def native_namespace(self, name: str) -> None:
        native = NativeNamespace(root=self.root, dir_listing_enabled="false")
        with suppress(Exception):  # it exists already, or the table is one that the native namespace cannot change
            native.create_namespace(api.CreateNamespaceRequest(id=[name]))
            self.rows[name] = {"object_id": name, "object_type": "namespace", "location": None, "metadata": None}

    # -- pylance ----------------------------------------------------------------------------------------------------

    @rule(data=st.data())
    def append(self, data: st.DataObject) -> None:
        free = [name for name in ("foreign", "foreign 2", "foreign 3") if name not in self.rows]
        if free:
            self.rows[free[0]] = self._row(free[0], "namespace", data)
            self._write([self.rows[free[0]]], lance.dataset(self.uri).schema, mode="append")

    @rule()
    def delete(self) -> None:
        for name in ("foreign", "b"):
            if name in self.rows and not any(other.startswith(f"{name}$") for other in self.rows):
                lance.dataset(self.uri).delete(f"object_id = '{name}'")
                del self.rows[name]
                return

    @precondition(lambda self: self.extras)
    @rule(data=st.data())
    def drop_column(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.extras)))
        lance.dataset(self.uri).drop_columns([name])
        del self.extras[name]
        for row in self.rows.values():
            del row[name]

    @precondition(lambda self: len(self.extras) < 5)
    @rule()
    def add_column(self) -> None:
        self.fresh += 1
        name = f"added {self.fresh}"
        lance.dataset(self.uri).add_columns(pa.field(name, pa.int32()))
        self.extras[name] = Extra(name, pa.int32(), self.fresh, True)
        for row in self.rows.values():
            row[name] = None

    @precondition(lambda self: not any(self._is_never_null(extra) for extra in self.extras.values()))
    @rule()
    def compact(self) -> None:
        lance.dataset(self.uri).optimize.compact_files()

    @rule()
    def index(self) -> None:
        with suppress(OSError, KeyError):  # not of every type
            lance.dataset(self.uri).create_scalar_index("object_id", "BTREE")

    @rule()
    def migrate_names(self) -> None:
        lance.dataset(self.uri).migrate_manifest_paths_v2()

    # -- what has to hold -------------------------------------------------------------------------------------------

    @invariant()
    def everyone_agrees(self) -> None:
        dataset = lance.dataset(self.uri)
        dataset.validate()
        table = dataset.to_table()
        ids = table.column("object_id").to_pylist()
        assert sorted(ids) == sorted(self.rows)
        for at, object_id in enumerate(ids):
            row = self.rows[object_id]
            assert table.column("object_type")[at].as_py() == row["object_type"]
            assert table.column("metadata")[at].as_py() == row["metadata"]
            assert (table.column("location")[at].as_py() is None) == (row["object_type"] == "namespace")
            for extra in self.extras.values():
                assert _is_value(table, at, extra, row[extra.name]), (object_id, extra)
        own = {
            entry.object_id: entry.metadata
            for entry in directory_of(self.catalog).ledger.view().descendants(ObjectId())
        }
        assert own == {name: row["metadata"] for name, row in self.rows.items()}
        kinds = {name: row["object_type"] for name, row in self.rows.items() if "$" not in name}
        spaces = sorted(name for name, kind in kinds.items() if kind == "namespace")
        assert self.catalog.list_namespaces() == sorted(spaces, key=str.encode)
        if not self.large:  # the native namespace reads no other type of text
            native = NativeNamespace(root=self.root, dir_listing_enabled="false")
            assert sorted(native.list_namespaces(api.ListNamespacesRequest(id=[])).namespaces) == spaces

    # -- inside -----------------------------------------------------------------------------------------------------

    def _row(self, name: str, kind: str, data: st.DataObject) -> dict[str, Any]:
        values = {
            extra.name: extra.value if self._is_required(extra) or data.draw(st.booleans()) else None
            for extra in self.extras.values()
        }
        return {"object_id": name, "object_type": kind, "location": None, "metadata": None, **values}

    def _is_required(self, extra: Extra) -> bool:
        return not extra.nullable or self._is_never_null(extra)

    def _is_never_null(self, extra: Extra) -> bool:
        """Whether the engine refuses to write a null: Lance file version 2.0 stores no null structs."""
        return self.version == "2.0" and pa.types.is_struct(extra.kind)

    def _write(
        self, rows: list[dict[str, Any]], schema: pa.Schema, *, mode: str, file: int = 100, v2_names: bool = True
    ) -> None:
        columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in schema]
        lance.write_dataset(
            pa.table(columns, schema=schema), self.uri, mode=mode, max_rows_per_file=file,
            data_storage_version=cast(Any, self.version), enable_v2_manifest_paths=v2_names,
        )  # fmt: skip

    def _ours(self, create: Callable[[], object], name: str, kind: str, properties: dict[str, str]) -> None:
        parent = name.rpartition("$")[0]
        possible = name not in self.rows and (not parent or self.rows.get(parent, {}).get("object_type") == "namespace")
        before = lance.dataset(self.uri).version
        if possible and all(extra.nullable for extra in self.extras.values()):
            create()
            metadata = json.dumps(properties, separators=(",", ":"), ensure_ascii=False) if properties else None
            row = {"object_id": name, "object_type": kind, "location": None, "metadata": metadata}
            self.rows[name] = {**row, **dict.fromkeys(self.extras)}
        else:
            with pytest.raises(lancekeep.LancekeepError):
                create()
            assert lance.dataset(self.uri).version == before


def _is_value(table: pa.Table, at: int, extra: Extra, value: Any) -> bool:
    """Whether a row has this value, compared in Arrow: Python has no such values of some types."""
    column = table.column(extra.name).slice(at, 1).combine_chunks()
    found = pa.array(column) if isinstance(column, pa.ChunkedArray) else column
    if found.null_count:
        return value is None
    return bool(found.cast(extra.kind).equals(pa.array([value], extra.kind)))


TestForeignTables = pytest.mark.filterwarnings("ignore")(ForeignTable.TestCase)
TestForeignTables.settings = settings(
    max_examples=max(EXAMPLES // 10, 5),
    stateful_step_count=12,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # a step takes too long to shrink what was found
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


def test_deletion_file_of_the_manifest_table_that_contradicts_its_manifest_is_damaged(tmp_path: Path) -> None:
    root = str(tmp_path / "lake")
    catalog = lancekeep.connect(root)
    for name in ("a", "b", "c"):
        catalog.create_namespace(name)
    catalog.drop_namespace("b")
    [path] = (tmp_path / "lake" / "__manifest" / "_deletions").iterdir()
    rows = np.array([0, 1], np.uint32)  # the manifest says that one row is deleted
    path.write_bytes(write(rows, DeletionFileType.ARROW_ARRAY))
    with pytest.raises(Damaged, match=rf"{path.name} .* it marks 2 rows from byte 0 on; the manifest says 1"):
        lancekeep.connect(root).list_namespaces()
