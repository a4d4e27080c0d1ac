"""Values that Arrow has in a way that the engine does not take are written through every door."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import lance
import lance_namespace as api
import numpy as np
import pyarrow as pa
import pytest

import lancekeep
from lancekeep import PartitionBy
from lancekeep.adapters.lance.alignment import aligned
from lancekeep.ports.rows import MergeRule

KINDS = [pa.decimal128(20, 2), pa.decimal256(50, 2)]


def misaligned(values: pa.Array) -> pa.Array:
    """Return decimals at an address that Arrow permits, and the engine does not."""
    content = values.buffers()[1].to_pybytes()[: values.type.byte_width * len(values)]
    memory = np.zeros(len(content) + 32, np.uint8)
    start = -memory.ctypes.data % 16 + 8
    memory[start : start + len(content)] = np.frombuffer(content, np.uint8)
    buffer = pa.py_buffer(memory[start : start + len(content)])
    assert buffer.address % 16 == 8
    return pa.Array.from_buffers(values.type, len(values), [None, buffer])


def rows(kind: pa.DataType, first: int, last: int) -> pa.Table:
    decimals = misaligned(pa.array([Decimal(number) for number in range(first, last)], kind))
    offsets = pa.array(range(last - first + 1), pa.int32())
    columns = {
        "id": pa.array(range(first, last), pa.int64()),
        "price": decimals,
        "in_struct": pa.StructArray.from_arrays([decimals], ["price"]),
        "in_list": pa.ListArray.from_arrays(offsets, decimals),
    }
    return pa.table(columns)


def stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def append(catalog: lancekeep.Catalog, new: pa.Table) -> None:
    catalog.write("t", new, "append")


def append_by_the_engine(catalog: lancekeep.Catalog, new: pa.Table) -> None:
    catalog.write("t", new.select(new.column_names[::-1]), "append")


def merge(catalog: lancekeep.Catalog, new: pa.Table) -> None:
    catalog.data.merge("t", new.to_reader(), MergeRule(["id"], update=True, insert=True))


def merge_decimals(catalog: lancekeep.Catalog, new: pa.Table) -> None:
    catalog.data.merge("t", new.to_reader(), MergeRule(["price"], update=True, insert=True))


def merge_new(catalog: lancekeep.Catalog, new: pa.Table) -> None:
    catalog.data.merge("t", new.to_reader(), MergeRule(["id"], update=False, insert=True))


def overwrite(catalog: lancekeep.Catalog, new: pa.Table) -> None:
    before = catalog.open("t").to_table()
    catalog.write("t", pa.concat_tables([before, new]), "overwrite")


def insert_by_a_client(catalog: lancekeep.Catalog, new: pa.Table) -> None:
    namespace = lancekeep.DirectoryNamespace(root=catalog.root_uri)
    namespace.insert_into_table(api.InsertIntoTableRequest(id=["t"]), stream(new))


def merge_by_a_client(catalog: lancekeep.Catalog, new: pa.Table) -> None:
    namespace = lancekeep.DirectoryNamespace(root=catalog.root_uri)
    rule = api.MergeInsertIntoTableRequest(
        id=["t"], on=["id"], when_matched_update_all=True, when_not_matched_insert_all=True
    )
    namespace.merge_insert_into_table(rule, stream(new))


DOORS = [
    append,
    append_by_the_engine,
    merge,
    merge_decimals,
    merge_new,
    overwrite,
    insert_by_a_client,
    merge_by_a_client,
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_engine_alone_needs_aligned_decimals(kind: pa.DataType, tmp_path: Path) -> None:
    with pytest.raises(BaseException, match="not aligned"):
        lance.write_dataset(rows(kind, 0, 3), tmp_path / "t.lance")
    lance.write_dataset(aligned(rows(kind, 0, 3)), tmp_path / "t.lance")
    lance.write_dataset(aligned(rows(kind, 3, 6).to_reader()), tmp_path / "t.lance", mode="append")
    assert lance.dataset(tmp_path / "t.lance").to_table() == pa.concat_tables([rows(kind, 0, 3), rows(kind, 3, 6)])


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_door_takes_decimals_at_any_address(
    kind: pa.DataType, door: Callable[[lancekeep.Catalog, pa.Table], None], tmp_path: Path
) -> None:
    catalog = lancekeep.connect(str(tmp_path / "lake"))
    catalog.write("t", rows(kind, 0, 3))
    for number in range(3, 6):  # of different sizes: the addresses in a stream depend on them
        door(catalog, rows(kind, number, number + 1 + number % 2))
    found = lance.dataset(catalog.open("t").uri).to_table().sort_by("id")
    ids = found["id"].to_pylist()
    assert set(ids) == set(range(7))
    assert found["price"].to_pylist() == [Decimal(number) for number in ids]
    assert found["in_struct"].to_pylist() == [{"price": Decimal(number)} for number in ids]
    assert found["in_list"].to_pylist() == [[Decimal(number)] for number in ids]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_partitions_take_decimals_at_any_address(kind: pa.DataType, tmp_path: Path) -> None:
    catalog = lancekeep.connect(str(tmp_path / "lake"))
    new = rows(kind, 0, 3)
    partitioned = catalog.partitions.create(new.schema, [PartitionBy.bucket("id", 2)])
    partitioned.write(new)
    assert partitioned.scan().to_table().sort_by("id")["price"].to_pylist() == [Decimal(number) for number in range(3)]


# -- texts and structs that the engine stores, and cannot read ------------------------------------------------------


def not_utf8() -> pa.Array:
    """Return a text that Arrow holds without a check."""
    return pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xffa")])


def texts(number: int, text: pa.Array, *, nested: bool = True) -> pa.Table:
    offsets = pa.array([0, 1], pa.int32())
    tags = pa.MapArray.from_arrays(offsets, text, pa.StructArray.from_arrays([text], ["text"])) if nested else text
    price = pa.array([Decimal(number)], pa.decimal128(20, 2))
    return pa.table({"id": pa.array([number], pa.int64()), "price": price, "tags": tags})


def test_the_engine_alone_stores_texts_that_it_cannot_read(tmp_path: Path) -> None:
    lance.write_dataset(texts(0, not_utf8()), tmp_path / "t.lance")
    with pytest.raises(BaseException, match="Invalid UTF8"):
        lance.dataset(tmp_path / "t.lance").to_table()


@pytest.mark.parametrize("nested", [True, False])  # small appends of plain columns need no engine
@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_no_door_takes_a_text_that_is_not_utf8(
    door: Callable[[lancekeep.Catalog, pa.Table], None], tmp_path: Path, *, nested: bool
) -> None:
    catalog = lancekeep.connect(str(tmp_path / "lake"))
    before = texts(0, pa.array(["é"]), nested=nested)
    catalog.write("t", before)
    with pytest.raises((lancekeep.InvalidInput, api.InvalidInputError), match="Invalid UTF8 sequence"):
        door(catalog, texts(1, not_utf8(), nested=nested))
    assert catalog.open("t").to_table() == before
    door(catalog, texts(2, pa.array(["ü"]), nested=nested))
    assert catalog.open("t").to_table().num_rows == 2


def test_no_new_table_has_texts_or_structs_that_the_engine_cannot_read(tmp_path: Path) -> None:
    catalog = lancekeep.connect(str(tmp_path / "lake"))
    with pytest.raises(lancekeep.InvalidInput, match="'tags' has a text that Lance could not read"):
        catalog.write("t", texts(1, not_utf8()))
    with pytest.raises(lancekeep.InvalidInput, match="a text that Lance could not read"):
        catalog.partitions.create(texts(1, not_utf8()).schema, [PartitionBy.identity("id")]).write(texts(1, not_utf8()))
    nothing = pa.StructArray.from_buffers(pa.struct([]), 1, [None])
    for column in (nothing, pa.StructArray.from_arrays([nothing, pa.array(["x"])], ["nothing", "text"])):
        for mode in ("create", "overwrite"):
            with pytest.raises(lancekeep.InvalidInput, match=r"'place' is struct.*a struct without fields"):
                catalog.write("u", pa.table({"place": column, "text": ["x"]}), mode)
    assert not catalog.table_exists("t")
    assert not catalog.table_exists("u")


# -- texts that mean the same, however memory has them ---------------------------------------------------------------

UNREAD = pa.Array.from_buffers(
    pa.string(), 3, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0"), pa.py_buffer(b"a\xffc")]
)
"""Texts of which the second is not UTF-8; arrays that do not use the second one are valid."""
SECOND = pa.array([False, True, False])
FORMS = {
    "a text": pa.Array.from_buffers(pa.string(), 3, [pa.py_buffer(b"\x05"), *UNREAD.buffers()[1:]]),
    "a struct": pa.StructArray.from_arrays([UNREAD], ["x"], mask=SECOND),
    "a struct in a struct": pa.StructArray.from_arrays(
        [pa.StructArray.from_arrays([UNREAD], ["y"], mask=SECOND)], ["x"]
    ),
    "a list": pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), UNREAD, mask=SECOND),
    "a slice of a struct": pa.StructArray.from_arrays([UNREAD], ["x"]).slice(2),
    "a slice of a struct in a struct": pa.array([{"x": {"y": at, "text": "é"}} for at in range(5)]).slice(2),
    "a list of such a slice": pa.ListArray.from_arrays(
        pa.array([0, 1, 3], pa.int32()), pa.array([{"x": {"y": at}} for at in range(5)]).slice(2)
    ),
    "a struct of slices of structs": pa.StructArray.from_arrays(
        [pa.array([{"y": at} for at in range(5)]).slice(2)], ["x"]
    ),
    "a slice of a list": pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), UNREAD).slice(2),
    "a slice of a map": pa.MapArray.from_arrays([0, 1, 2, 3], UNREAD, UNREAD).slice(2),
    "a date beside a text": pa.StructArray.from_arrays(
        [pa.array(["x", None]), pa.array([1, 86_400_001], pa.int64()).view(pa.date64())], ["text", "date"]
    ),
    "a view": pa.array(["p", None, "q" * 20], pa.string_view()),
    "a view of bytes": pa.array([b"p", None, b"q" * 20], pa.binary_view()),
    "a list of views": pa.array([["p", "q" * 20], None, []], pa.list_(pa.string_view())),
}


@pytest.mark.parametrize("form", [form for form in FORMS if "view" not in form])  # Arrow sorts no views
def test_partitions_take_what_arrow_permits(form: str, tmp_path: Path) -> None:
    catalog = lancekeep.connect(str(tmp_path / "lake"))
    new = pa.table({"id": pa.array(range(len(FORMS[form])), pa.int64()), "value": FORMS[form]})
    partitioned = catalog.partitions.create(new.schema, [PartitionBy.identity("id")])
    partitioned.write(new)
    found = partitioned.scan().to_table().sort_by("id")
    assert found["value"].to_pylist() == new["value"].to_pylist()


def replace(catalog: lancekeep.Catalog, new: pa.Table) -> None:
    catalog.write("t", new, "overwrite")


@pytest.mark.parametrize(
    "door", [append, append_by_the_engine, merge, merge_new, replace], ids=lambda door: door.__name__
)
@pytest.mark.parametrize("form", FORMS)
def test_every_door_takes_what_arrow_permits(
    form: str, door: Callable[[lancekeep.Catalog, pa.Table], None], tmp_path: Path
) -> None:
    catalog = lancekeep.connect(str(tmp_path / "lake"))
    column = FORMS[form]
    new = pa.table({"id": pa.array(range(len(column)), pa.int64()), "value": column})
    catalog.write("t", new.schema.empty_table())
    door(catalog, new)
    found = catalog.open("t").to_table().sort_by("id")
    assert found["id"].to_pylist() == new["id"].to_pylist()
    assert found["value"].to_pylist() == new["value"].to_pylist()


@pytest.mark.parametrize(
    "form", ["a view", "a list of views", "a slice of a list", "a slice of a struct", "a slice of a struct in a struct"]
)
@pytest.mark.parametrize("door", [insert_by_a_client, merge_by_a_client], ids=lambda door: door.__name__)
def test_clients_send_what_arrow_permits(
    form: str, door: Callable[[lancekeep.Catalog, pa.Table], None], tmp_path: Path
) -> None:
    """Bytes of nulls that are not UTF-8 are refused in their streams, which are checked as a whole."""
    test_every_door_takes_what_arrow_permits(form, door, tmp_path)


@pytest.mark.parametrize("door", [append, append_by_the_engine, merge, replace], ids=lambda door: door.__name__)
def test_no_door_takes_a_view_that_is_not_utf8(
    door: Callable[[lancekeep.Catalog, pa.Table], None], tmp_path: Path
) -> None:
    catalog = lancekeep.connect(str(tmp_path / "lake"))
    wrong = pa.array([b"a", b"\xff"], pa.binary_view()).view(pa.string_view())
    catalog.write("t", pa.table({"id": [1, 2], "value": pa.array(["a", "b"], pa.string_view())}))
    with pytest.raises(lancekeep.InvalidInput, match="Invalid UTF8 sequence"):
        door(catalog, pa.table({"id": [2, 3], "value": wrong}))
    assert catalog.open("t").to_table()["value"].to_pylist() == ["a", "b"]
