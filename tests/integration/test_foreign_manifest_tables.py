"""Manifest tables as other writers make them: any order of columns, columns of their own, odd rows."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import lance
import pyarrow as pa
import pytest

import lancekeep
from lancekeep.adapters.manifest_stores.columns import SCHEMA
from lancekeep.application.maintenance import Kind
from lancekeep.domain.catalog import AddColumns


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
    catalog._apply(lambda view: [AddColumns({"partition": pa.int64()})])
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
        assert "good" in catalog.page_of_tables((), None, None, include_declared=include_declared)[0]
    assert {"new", "space"} <= set(catalog.list_namespaces())
    catalog.drop_namespace("new", cascade=True)
    catalog.drop_namespace("space")
    assert len(catalog.fsck(grace=0).findings) >= 1
    catalog.fsck(repair=True, deep=True, grace=0)
    catalog.cleanup(older_than=timedelta(0))
    if odd["object_id"] != "good":
        assert catalog.open("good").count_rows() == 1
    after = [row for row in lance.dataset(uri).to_table().to_pylist() if row["object_id"] == odd["object_id"]]
    assert after == kept


def test_one_malformed_row_is_one_finding(tmp_path: Path) -> None:
    schema = pa.schema([field.with_nullable(True).remove_metadata() for field in SCHEMA])
    odd = ["metadata is no JSON", "property is no text", "object id is null", "object type is empty"]
    uri = str(tmp_path / "lake/__manifest")
    for name in odd:
        lance.write_dataset(pa.Table.from_pylist([ODD_ROWS[name]], schema=schema), uri, mode="overwrite")
        report = catalog_of(uri).fsck()
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
