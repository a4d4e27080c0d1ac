"""The pages of a table: its rows, history, differences and comparison."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from datetime import UTC, datetime
from html import unescape
from pathlib import Path
from typing import Any, Literal

import lance
import pyarrow as pa
import pytest
from pictures import png
from starlette.testclient import TestClient

from lancekeep import Catalog, connect
from lancekeep.adapters.object_stores.local import LocalObjectStore
from lancekeep.domain.authorization import Grant, Policy, Principal
from lancekeep.domain.errors import TableNotFound
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.naming import NamingScheme
from lancekeep.domain.rights import ROLES
from lancekeep.entrypoints.page import rows as page_rows
from lancekeep.entrypoints.page.app import Page
from lancekeep.entrypoints.page.authorized import Access, AuthorizedCatalog
from lancekeep.entrypoints.page.cells import cell_of, image_type
from lancekeep.entrypoints.page.drawing import sparkline
from lancekeep.entrypoints.page.rows import Version, read_rows
from lancekeep.entrypoints.page.views import compare, diff, history, table
from lancekeep.format.manifest import ManifestFile, file_of, make_successor, place_transaction, transaction_in
from lancekeep.ports.table_structure import NewIndex

MARKUP = "<script>alert(1)</script>"
RIGHT_TO_LEFT = "a\u202egnp.exe"


PNG = png(1, 1, b"\xff\0\0")
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'


def nested(depth: int) -> Any:
    return {"x": nested(depth - 1)} if depth else [1, 2]


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    with connect(str(tmp_path_factory.mktemp("tables") / "lake")) as catalog:
        for namespace in ("ml", "secret"):
            catalog.create_namespace(namespace)
        for at in range(5):
            rows = pa.table({"id": range(10 * at, 10 * at + 10), "name": [f"n{at}"] * 10})
            catalog.write("ml.t", rows, "append" if at else "create")
        catalog.tags.create("ml.t", "first", 1)
        catalog.branches.create("ml.t", "trial", version=3)
        catalog.branches.create("ml.t", "deep", source="trial", version=3)
        catalog.data.delete("ml.t", "id < 5")
        catalog.write("secret.t", pa.table({"id": [1]}))
        yield catalog


@pytest.fixture(scope="module")
def page(catalog: Catalog) -> TestClient:
    return TestClient(Page(catalog))


def shown(catalog: Catalog, name: str, **parameters: str) -> table.TableView:
    return table.build(catalog, ObjectId.of(name), parameters)


def texts(view: table.TableView) -> list[list[str]]:
    assert view.rows is not None
    assert view.rows.problem == ""
    return [[cell.text for cell in row.cells] for row in view.rows.rows]


# -- the table -------------------------------------------------------------------------------------------------------


def test_pages_of_rows_are_the_rows_of_the_version(catalog: Catalog) -> None:
    found = [row for number in "123" for row in texts(shown(catalog, "ml.t", page=number))]
    judged = lance.dataset(catalog.describe_table("ml.t").uri).to_table().to_pylist()
    assert found == [[str(row["id"]), row["name"]] for row in judged]
    last = shown(catalog, "ml.t", page="3").rows
    assert last is not None
    assert last.is_last
    assert texts(shown(catalog, "ml.t", page="4")) == []


@pytest.mark.parametrize("condition", ["", "id >= 10 AND name != 'n3'"])
def test_large_rows_are_read_in_parts(catalog: Catalog, monkeypatch: pytest.MonkeyPatch, condition: str) -> None:
    """A page of rows of a hundred megabytes needs the memory of a few."""
    together, read = list[int](), page_rows._rows
    expected = [texts(shown(catalog, "ml.t", filter=condition, page=number)) for number in "123"]

    def counted(*arguments: Any) -> list[page_rows.Row]:
        together.append(arguments[-1].num_rows)
        return read(*arguments)

    monkeypatch.setattr(page_rows, "_rows", counted)
    monkeypatch.setattr(page_rows, "_AT_ONCE", 1)
    found = [texts(shown(catalog, "ml.t", filter=condition, page=number)) for number in "123"]
    assert found == expected
    assert max(together) == 1


def test_table_page_pins_its_version(catalog: Catalog, page: TestClient) -> None:
    view = shown(catalog, "ml.t")
    assert (view.version, view.row_count, view.is_latest) == (6, 45, True)
    content = page.get("/t/ml.t").text
    assert 'href="/t/ml.t?version=6&amp;page=2"' in content
    assert '<input type="hidden" name="version" value="6">' in content
    older = shown(catalog, "ml.t", version="first")
    assert (older.version, older.row_count, older.is_latest, older.tags) == (1, 10, False, ("first",))
    assert shown(catalog, "ml.t", branch="trial").row_count == 30


def test_filter_returns_the_rows_that_match(catalog: Catalog) -> None:
    found = [
        row for number in "12" for row in texts(shown(catalog, "ml.t", filter="id >= 20 AND name != 'n3'", page=number))
    ]
    assert [int(row[0]) for row in found] == [*range(20, 30), *range(40, 50)]
    paged = [int(row[0]) for number in "12" for row in texts(shown(catalog, "ml.t", filter="id > 7", page=number))]
    assert paged == list(range(8, 48))


@pytest.mark.parametrize(
    "condition",
    [
        *("nope = 1", "id <", "1", "id = 'a", "sleep(1)", "id > 1; DROP", "id > 1) OR (1 = 1", "\x00"),
        *("id" + "+1" * 700, "lpad(name, 2000000000, 'x') = 'x'", "repeat(repeat(name, 9999), 9999) = 'x'"),
    ],
)
def test_refused_filter_is_a_sentence(page: TestClient, condition: str) -> None:
    answer = page.get("/t/ml.t", params={"filter": condition})
    assert answer.status_code == 200
    assert "The rows cannot be shown" in answer.text


@pytest.mark.parametrize("bound", ["_GROUP", "_FRAGMENTS"])
def test_filter_ends_when_its_time_is_over(catalog: Catalog, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(f"lancekeep.entrypoints.page.rows.{bound}", 1)
    dataset, times = catalog.open("ml.t"), iter((0.0, 1.0, 9.0))
    version = Version(ObjectId.of("ml.t"), dataset.version, None, dataset)
    found = read_rows(catalog, version, ["id"], "id >= 0", 1, clock=lambda: next(times))
    assert found.stopped == 15
    assert [row.cells[0].text for row in found.rows] == [str(at) for at in range(5, 20)]


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("/t/ml.t?version=99", 404),
        ("/t/ml.t?version=no", 404),
        ("/t/ml.t?branch=no", 404),
        ("/t/ml.t?page=0", 400),
        ("/t/ml.t?page=-1", 400),
        ("/t/ml.t?version=" + "9" * 40, 400),
        ("/t/ml.t?columns=x", 400),
        ("/t/ml.t?page=4000000000000000000", 200),
        ("/t/ml.t?filter=id>1&page=4000000000000000000", 200),
        ("/t/ml.no", 404),
        ("/t/ml.t/history?before=x", 400),
        ("/t/ml.t/history?branch=no", 404),
        ("/t/ml.t/diff", 400),
        ("/t/ml.t/diff?from=1&to=99", 404),
        ("/compare?a=ml.t&b=ml.no", 404),
        ("/compare?a=ml.t&b=ml.t&a_version=x", 404),
        ("/compare?a=..&b=ml.t", 400),
        ("/t/ml.t/image?version=1&column=id&row=0", 400),
        ("/t/ml.t/image?version=1&column=no&row=0", 400),
        ("/t/ml.t/image?version=1&column=id&row=x", 400),
        ("/t/ml.t/image?version=1&column=id&row=18446744073709551615", 400),
    ],
)
def test_odd_address_is_answered_with_a_page(page: TestClient, address: str, status: int) -> None:
    assert page.get(address).status_code == status


def test_health_names_the_command_that_helps(tmp_path: Path) -> None:
    with connect(str(tmp_path)) as catalog:
        for at in range(4):
            catalog.write("my table", pa.table({"id": [at, at + 10]}), "append" if at else "create")
        small = {check.name: check.command for check in shown(catalog, "my table").checks}
        assert small["Fragments"] == f"lancekeep compact {catalog.root_uri} 'my table'"
        assert small["Deleted rows"] == ""
        catalog.write("d", pa.table({"id": range(10)}))
        catalog.data.delete("d", "id < 2")
        checks = {check.name: check for check in shown(catalog, "d").checks}
        assert checks["Deleted rows"].value == "2 rows (20%)"
        assert checks["Deleted rows"].command == f"lancekeep compact {catalog.root_uri} d"
        assert checks["Fragments"].command == ""


def test_index_without_new_rows_is_completed_by_its_command(tmp_path: Path) -> None:
    with connect(str(tmp_path)) as catalog:
        catalog.write("t", pa.table({"id": range(300)}))
        catalog.structure.create_index("t", NewIndex("id", "BTREE", name="of id"))
        assert {check.name: check for check in shown(catalog, "t").checks}["Rows outside of indexes"].command == ""
        catalog.write("t", pa.table({"id": [1, 2]}), "append")
        view = shown(catalog, "t")
        assert [(each.name, each.indexed_rows, each.unindexed_rows) for each in view.indexes] == [("of id", 300, 2)]
        check = {check.name: check for check in view.checks}["Rows outside of indexes"]
        assert check.command == f"lancekeep index --kind=BTREE '--name=of id' {catalog.root_uri} t id"


def test_table_of_the_first_file_format_has_pages(tmp_path: Path) -> None:
    lance.write_dataset(pa.table({"id": range(30), "x": [PNG] * 30}), tmp_path / "t.lance", data_storage_version="0.1")
    with connect(str(tmp_path)) as catalog:
        view = shown(catalog, "t", filter="id > 5", page="2")
        assert [int(row[0]) for row in texts(view)] == list(range(26, 30))
        assert view.rows is not None
        assert {cell.kind for row in view.rows.rows for cell in row.cells} == {"number", "text"}


def test_unreadable_rows_are_a_sentence(tmp_path: Path) -> None:
    with connect(str(tmp_path)) as catalog:
        catalog.write("t", pa.table({"id": [1]}))
        [file] = Path(catalog.describe_table("t").uri.removeprefix("file://"), "data").iterdir()
        file.unlink()
        answer = TestClient(Page(catalog)).get("/t/t")
        assert answer.status_code == 200
        assert "The rows cannot be shown" in answer.text
        assert "<code>int64</code>" in answer.text


def test_declared_table_has_a_page_in_every_view(catalog: Catalog, page: TestClient) -> None:
    catalog.declare_table("ml.declared", {"owner": "ada"})
    assert "only declared" in page.get("/t/ml.declared").text
    assert "no version" in page.get("/t/ml.declared/history").text
    assert "only declared" in page.get("/compare?a=ml.t&b=ml.declared").text


# -- cells -----------------------------------------------------------------------------------------------------------


def test_hostile_names_and_values_are_escaped_in_every_view(catalog: Catalog, page: TestClient) -> None:
    field = pa.field(MARKUP, pa.string(), metadata={MARKUP: RIGHT_TO_LEFT})
    rows = pa.table([[MARKUP, RIGHT_TO_LEFT]], schema=pa.schema([field], metadata={MARKUP: MARKUP}))
    name = ["ml", f"{MARKUP[:8]}\u202e.{MARKUP[8:-9]}"]
    catalog.write(name, rows, properties={"x": MARKUP})
    catalog.write(name, rows, "append")
    address = "/t/%24" + ObjectId.of(name).key.replace("<", "%3C").replace(">", "%3E").replace("$", "%24")
    for found in (
        page.get(address),
        page.get(address, params={"filter": f"`{MARKUP}` = '\"><b>'"}),
        page.get(f"{address}/history"),
        page.get(f"{address}/diff", params={"from": "1", "to": "2", "keys": MARKUP}),
        page.get("/compare", params={"a": f"${ObjectId.of(name).key}", "b": "ml.t"}),
    ):
        assert found.status_code == 200, unescape(found.text)
        assert "<script>alert" not in found.text
        assert '"><b>' not in found.text
        assert "\u202e" not in re.sub(r'value="[^"]*"', "", found.text)  # a form returns what it was given


def test_every_type_of_value_is_a_cell() -> None:
    long = pa.scalar("x\u202e" * 5_000_000)
    invalid = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(struct.pack("<ii", 0, 2)), pa.py_buffer(b"\xffa")]
    )
    far = pa.scalar(1 << 60, pa.timestamp("s"))
    cases: list[tuple[Any, str, str]] = [
        (pa.scalar(None, pa.string()), "null", "null"),
        (pa.scalar(7), "number", "7"),
        (pa.scalar(True), "text", "true"),
        (pa.scalar(float("nan")), "number", "nan"),
        (pa.scalar(b"\xff\xfe"), "text", "2 B"),
        (pa.scalar(PNG), "image", f"PNG of {len(PNG)} B"),
        (pa.scalar(SVG), "text", f"{len(SVG)} B"),
        (invalid[0], "text", "\\xffa"),
        (far, "text", f"{1 << 60} (timestamp[s])"),
        (pa.scalar(datetime(2026, 1, 2, tzinfo=UTC)), "text", "2026-01-02 00:00:00+00:00"),
        (pa.scalar([], pa.list_(pa.float32())), "text", "[]"),
        (pa.scalar([1.0, None], pa.list_(pa.float32())), "text", "[1.0, null]"),
        (pa.array(["a", "b"]).dictionary_encode()[1], "text", "b"),
        (pa.scalar({"a": MARKUP}), "text", '{"a": "<script>alert(1)</script>"}'),
        (pa.scalar([3.0] * 8 + [4.0] * 8), "vector", "[16] norm 14.14"),
    ]
    for scalar, kind, text in cases:
        found = cell_of(scalar)
        assert (found.kind, found.text) == (kind, text), scalar.type
    assert cell_of(long).text.endswith("… (10,000,000 characters)")
    assert len(cell_of(long).text) < 700
    deep = cell_of(pa.scalar(nested(20)))
    assert deep.text.count("x") == 6
    assert len(cell_of(pa.scalar([{"k": "v" * 1000}] * 10_000)).text) < 200


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), None])
def test_vector_with_odd_numbers_is_drawn_with_gaps(bad: float | None) -> None:
    found = cell_of(pa.scalar([1e300, bad, -1e300, *range(1533)], pa.list_(pa.float64(), 1536)))
    assert found.kind == "vector"
    assert len(found.points) == 48
    picture = sparkline(found.points, found.text)
    assert "nan" not in picture.partition("</title>")[2]
    assert "inf" not in picture.partition("</title>")[2]


def test_table_of_many_columns_shows_them_in_pages(catalog: Catalog, page: TestClient) -> None:
    catalog.write("ml.wide", pa.table({f"c{at}": [at] for at in range(2000)}))
    view = shown(catalog, "ml.wide", columns="125")
    assert [cell for row in texts(view) for cell in row] == [str(at) for at in range(1984, 2000)]
    assert view.next_columns is None
    answer = page.get("/t/ml.wide")
    assert "Columns 1 to 16 of 2,000" in answer.text
    assert len(answer.content) < 60_000


def test_page_of_vectors_is_small(catalog: Catalog, page: TestClient) -> None:
    values = pa.array([at % 97 / 97 for at in range(1536 * 20)], pa.float32())
    catalog.write("ml.vectors", pa.table({"v": pa.FixedSizeListArray.from_arrays(values, 1536)}))
    answer = page.get("/t/ml.vectors")
    assert answer.text.count('role="img"') == 20
    assert "[1,536] norm" in answer.text
    assert len(answer.content) < 60_000


# -- images ----------------------------------------------------------------------------------------------------------


def images() -> pa.Table:
    blob = pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    schema = pa.schema([pa.field("id", pa.int64()), pa.field("image", pa.binary()), blob])
    contents = [PNG, SVG, None, b"\xff\xd8\xff" + b"0" * 20, b"<html>"]
    return pa.table([range(5), contents, contents], schema=schema)


@pytest.mark.parametrize("version", ["2.0", "2.2"])
def test_images_are_served_by_their_first_bytes_alone(tmp_path: Path, version: Literal["2.0", "2.2"]) -> None:
    rows = images()
    if version == "2.2":
        rows = rows.set_column(2, lance.blob_field("blob"), lance.blob_array(rows["blob"].to_pylist()))
    lance.write_dataset(rows, tmp_path / "x.lance", data_storage_version=version)
    with connect(str(tmp_path)) as catalog:
        page = TestClient(Page(catalog))
        content = page.get("/t/x").text
        addresses = [unescape(part.partition('"')[0]) for part in content.split('<img class="thumbnail" src="')[1:]]
        assert len(addresses) == 4
        answers = [page.get(address) for address in addresses]
        assert [each.headers["content-type"] for each in answers] == ["image/png"] * 2 + ["image/jpeg"] * 2
        assert answers[0].content == answers[1].content == PNG
        for each in answers:
            assert each.headers["x-content-type-options"] == "nosniff"
            assert "sandbox" in each.headers["content-security-policy"]
            assert each.headers["content-disposition"].startswith("inline; filename=")
        for other in (addresses[0].replace("row=0", "row=1"), addresses[1].replace("row=0", "row=4")):
            assert page.get(other).status_code == 400


def test_large_image_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lancekeep.entrypoints.page.rows.LARGEST", len(PNG) - 1)
    with connect(str(tmp_path)) as catalog:
        catalog.write("t", images())
        page = TestClient(Page(catalog))
        assert 'alt="blob' not in page.get("/t/t").text
        for column in ("image", "blob"):
            assert page.get(f"/t/t/image?version=1&column={column}&row=0").status_code == 400


def test_only_four_formats_are_images() -> None:
    assert image_type(b"RIFF\0\0\0\0WEBPVP8 ") == "image/webp"
    assert image_type(b"GIF89a") == "image/gif"
    for content in (b"", SVG, b"<?xml", b"RIFF\0\0\0\0WAVE", b"%PDF", b"\0\0\1\0", b"BM"):
        assert image_type(content) is None


# -- history ---------------------------------------------------------------------------------------------------------


def test_history_shows_what_each_version_changed(catalog: Catalog, page: TestClient) -> None:
    view = history.build(catalog, ObjectId.of("ml.t"), {})
    assert [(each.version, each.operation, each.rows) for each in view.versions] == [
        (6, "Delete", 45), (5, "Append", 50), (4, "Append", 40), (3, "Append", 30), (2, "Append", 20),
        (1, "Overwrite", 10),
    ]  # fmt: skip
    changes = [each.change for each in view.versions]
    assert [(each.rows_added, each.rows_removed) for each in changes if each] == [(0, 5), *[(10, 0)] * 5]
    sizes = lance.dataset(catalog.describe_table("ml.t").uri).get_fragments()
    assert changes[1] is not None
    assert changes[1].bytes_added == sizes[-1].metadata.files[0].file_size_bytes
    assert changes[1].bytes_removed == 0
    assert view.versions[-1].tags == ("first",)
    assert view.versions[3].branches == ("trial",)
    content = page.get("/t/ml.t/history").text
    assert "branch <bdi>trial</bdi>" in content
    graph = content.partition('role="img"')[2].partition("</svg>")[0]
    assert ">branch trial</text>" in graph
    assert ">1, tag first</text>" in graph
    assert 'href="/t/ml.t/diff?from=5&amp;to=6"' in content
    assert [each.version for each in history.build(catalog, ObjectId.of("ml.t"), {"before": "3"}).versions] == [2, 1]


def test_damaged_tag_or_branch_leaves_the_rest_of_the_page(tmp_path: Path) -> None:
    with connect(str(tmp_path)) as catalog:
        catalog.write("t", pa.table({"id": [11, 12]}))
        catalog.tags.create("t", "first", 1)
        catalog.branches.create("t", "trial")
        [tag] = tmp_path.glob("**/first.json")
        [branch] = tmp_path.glob("**/trial.json")
        tag.write_text("{")
        branch.write_text("{")
        page = TestClient(Page(catalog))
        shown, history = page.get("/t/t"), page.get("/t/t/history")
    assert (shown.status_code, history.status_code) == (200, 200)
    assert all(part in shown.text for part in ("first.json is no tag", ">12<"))
    assert all(part in history.text for part in ("first.json is no tag", 'href="/t/t?version=1"'))
    assert history.text.count('class="note warn"') == 2


def test_overwrite_removes_the_rows_before_it(tmp_path: Path) -> None:
    with connect(str(tmp_path)) as catalog:
        for number in (3, 4):
            catalog.write("t", pa.table({"id": range(number)}), "overwrite")
        catalog.versions.restore("t", 1)
        found = catalog.versions.history("t", 2, changes=True)
    assert [(each.change.rows_added, each.change.rows_removed) for each in found if each.change] == [(3, 4), (4, 3)]
    assert [each.rows for each in found] == [3, 4]


def test_page_of_a_long_history_reads_its_own_manifests_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with connect(str(tmp_path)) as catalog:
        catalog.write("t", pa.table({"id": [1]}))
        [first] = Path(catalog.describe_table("t").uri.removeprefix("file://"), "_versions").glob("*.manifest")
        manifest, transaction = (
            ManifestFile.parse(first.read_bytes(), first.name).manifest,
            transaction_in(first.read_bytes()),
        )
        for number in range(2, 2001):
            path = first.parent / NamingScheme.V2.final_name(number)
            if not 976 <= number <= 1000 and number != 2000:
                path.touch()
                continue
            make_successor(manifest, number, number * 10**9)
            place_transaction(manifest, None)
            path.write_bytes(file_of(manifest.SerializeToString(), transaction))
        (first.parent / "latest_version_hint.json").write_text('{"version":2000}')
        read: list[str] = []
        get = LocalObjectStore.get

        def recorded(self: LocalObjectStore, key: str) -> bytes:
            read.append(key)
            return get(self, key)

        monkeypatch.setattr(LocalObjectStore, "get", recorded)
        view = history.build(catalog, ObjectId.of("t"), {"before": "1001"})
        assert len([key for key in read if key.endswith(".manifest")]) <= 30
        content = TestClient(Page(catalog)).get("/t/t/history", params={"before": "1001"}).content
    assert [each.version for each in view.versions] == list(range(1000, 975, -1))
    assert view.before == 976
    assert all(each.change is not None and each.rows == 1 for each in view.versions[:-1])
    assert view.versions[-1].change is None  # the version before it is damaged
    assert len(content) < 60_000


# -- differences and comparison --------------------------------------------------------------------------------------


def test_diff_shows_the_rows_that_changed(catalog: Catalog, page: TestClient) -> None:
    view = diff.build(catalog, ObjectId.of("ml.t"), {"from": "4", "to": "6", "keys": "id"})
    assert (view.rows_before, view.rows_after) == (40, 45)
    assert [each.operation for each in view.operations] == ["Append", "Delete"]
    kinds = [row.change for row in view.rows]
    assert (kinds.count("insert"), kinds.count("delete"), len(kinds)) == (10, 5, 15)
    assert sorted(int(row.cells[0].text) for row in view.rows if row.change == "delete") == [0, 1, 2, 3, 4]
    many = diff.build(catalog, ObjectId.of("ml.t"), {"from": "first", "to": "6", "keys": "id"})
    assert not many.has_more
    content = page.get("/t/ml.t/diff?from=4&to=6&keys=id").text
    assert content.count(">inserted</td>") == 10
    assert content.count(">deleted</td>") == 5


def test_diff_without_keys_or_with_many_rows_is_a_sentence(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {"from": "4", "to": "6"}
    assert "stable row ids" in diff.build(catalog, ObjectId.of("ml.t"), whole).problem
    assert "no column" in diff.build(catalog, ObjectId.of("ml.t"), {**whole, "keys": "nope"}).problem
    monkeypatch.setattr(diff, "COMPARED", 44)
    assert "up to 44 rows" in diff.build(catalog, ObjectId.of("ml.t"), {**whole, "keys": "id"}).problem
    monkeypatch.setattr(diff, "COMPARED", 50)
    monkeypatch.setattr(diff, "ROWS", 3)
    bounded = diff.build(catalog, ObjectId.of("ml.t"), {**whole, "keys": "id"})
    assert (len(bounded.rows), bounded.has_more) == (3, True)


def test_compare_marks_what_differs(catalog: Catalog, page: TestClient) -> None:
    catalog.write("ml.other", pa.table({"id": pa.array([1], pa.int32()), "extra": ["x"]}), properties={"owner": "ada"})
    view = compare.build(catalog, {"a": "ml.t", "a_version": "first", "b": "ml.other"})
    parts = {part.title: {line.name: line for line in part.lines} for part in view.parts}
    assert (parts["Figures"]["Rows"].a, parts["Figures"]["Rows"].b) == ("10", "1")
    columns = parts["Columns"]
    assert {name: (line.a, line.b) for name, line in columns.items()} == {
        "id": ("int64", "int32"), "name": ("string", ""), "extra": ("", "string"),
    }  # fmt: skip
    assert parts["Properties"]["owner"].b == "ada"
    same = compare.build(catalog, {"a": "ml.t", "b": "ml.t"})
    assert not any(line.differs for part in same.parts for line in part.lines)
    assert page.get("/compare").status_code == 200


# -- permissions -----------------------------------------------------------------------------------------------------


def test_no_view_shows_a_table_of_another_subtree(catalog: Catalog) -> None:
    ada = Principal("key:ada")
    access = Access(ada, Policy((Grant(ROLES["read"], ObjectId.of("ml"), frozenset({ada.name})),)))
    authorized: Any = AuthorizedCatalog(catalog, access)
    assert table.build(authorized, ObjectId.of("ml.t"), {"filter": "id > 40"}).rows is not None
    assert history.build(authorized, ObjectId.of("ml.t"), {}).versions
    assert diff.build(authorized, ObjectId.of("ml.t"), {"from": "1", "to": "2", "keys": "id"}).rows
    assert compare.build(authorized, {"a": "ml.t", "b": "ml.t"}).parts
    secret, given = ObjectId.of("secret.t"), {"from": "1", "to": "1"}
    for refused in (
        lambda: table.build(authorized, secret, {}),
        lambda: history.build(authorized, secret, {}),
        lambda: diff.build(authorized, secret, given),
        lambda: compare.build(authorized, {"a": "ml.t", "b": "secret.t"}),
    ):
        with pytest.raises(TableNotFound, match="does not exist"):
            refused()
    version = Version(secret, 1, None, catalog.open(secret))
    assert "does not exist" in read_rows(authorized, version, ["id"], "", 1).problem
