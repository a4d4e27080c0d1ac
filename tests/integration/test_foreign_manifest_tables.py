"""Manifest tables as other writers make them: any order of columns, columns of their own, odd rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import lance
import pyarrow as pa
import pytest

import lancekeep
from lancekeep.adapters.manifest_stores.columns import SCHEMA
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
