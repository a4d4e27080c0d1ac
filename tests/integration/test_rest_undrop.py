"""Dropped tables and protection over a server: from the catalog, the namespace and plain requests."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import lance
import pyarrow as pa
import pytest
from lance_namespace import errors as api_errors
from rest_server import Front, serving

import lancekeep
from lancekeep.adapters.rest import dropped as rest_dropped

ROWS = pa.table({"id": [1, 2]})
KEEP = timedelta(hours=1)


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    settings = {"root": str(tmp_path / "lake"), "storage.fsync": "false", "commit_store": f"file://{tmp_path}/commits"}
    with serving(lancekeep.DirectoryNamespace(**settings)) as running:
        with lancekeep.connect(running.uri) as catalog:
            catalog.create_namespace("ns")
            catalog.write("ns.t", ROWS)
        yield running


@pytest.fixture
def catalog(front: Front) -> Iterator[lancekeep.Catalog]:
    with lancekeep.connect(front.uri) as opened:
        yield opened


@pytest.fixture
def local(tmp_path: Path) -> Iterator[lancekeep.Catalog]:
    with lancekeep.connect(str(tmp_path / "lake"), commit_store=f"file://{tmp_path}/commits") as opened:
        yield opened


def test_dropped_table_comes_back_with_its_rows_and_tags(catalog: lancekeep.Catalog) -> None:
    catalog.write("ns.t", pa.table({"id": [3]}), "append")
    catalog.tags.create("ns.t", "first", 1)
    catalog.drop_table("ns.t", keep=KEEP)
    assert not catalog.table_exists("ns.t")
    [dropped] = catalog.list_dropped("ns")
    assert (dropped.id.names, dropped.until - dropped.at) == (("ns", "t"), KEEP)
    table = catalog.undrop("ns.t")
    assert table.location == catalog.describe_table("ns.t").uri
    assert sorted(catalog.open("ns.t").to_table()["id"].to_pylist()) == [1, 2, 3]
    assert catalog.open("ns.t", tag="first").count_rows() == 2
    assert catalog.list_dropped() == []


def test_answers_repeat_the_key_of_the_request(front: Front, catalog: lancekeep.Catalog) -> None:
    catalog.drop_table("ns.t", keep=KEEP)
    key = str(uuid4())
    for _ in range(2):
        url = f"{front.uri}/lancekeep/v1/table/ns$t/undrop"
        answer = httpx.post(url, json={}, headers={"idempotency-key": key})
        assert (answer.status_code, answer.headers.get("idempotency-key")) == (200, key), answer.text
        assert "context" not in answer.json()


def test_both_catalogs_describe_a_dropped_table_alike(catalog: lancekeep.Catalog, local: lancekeep.Catalog) -> None:
    catalog.drop_table("ns.t", keep=KEEP)
    assert catalog.list_dropped() == local.list_dropped() != []


def test_drop_is_chosen_by_name_and_by_time(catalog: lancekeep.Catalog) -> None:
    for rows in ([1], [2], [3]):
        catalog.drop_table("ns.t", keep=KEEP)
        catalog.write("ns.t", pa.table({"id": rows}))
    first, second, third = catalog.list_dropped("ns.t")
    assert catalog.undrop("ns.t", "ns.one", drop=first.drop).id.names == ("ns", "one")
    catalog.undrop("ns.t", "two", drop=second.at)
    assert catalog.open("ns.one").to_table() == ROWS
    assert catalog.open("two").to_table()["id"].to_pylist() == [1]
    with pytest.raises(lancekeep.TableNotFound, match="no dropped table"):
        catalog.undrop("ns.t", "three", drop=first.at)
    assert [each.drop for each in catalog.list_dropped()] == [third.drop]
    with pytest.raises(lancekeep.TableAlreadyExists):
        catalog.undrop("ns.t")


def test_keep_of_zero_removes_the_files(catalog: lancekeep.Catalog, tmp_path: Path) -> None:
    catalog.drop_table("ns.t", keep=0)
    assert catalog.list_dropped() == []
    assert not [each for each in (tmp_path / "lake").rglob("*.lance") if "ns$t" in str(each)]


def test_dropped_namespace_keeps_its_tables(catalog: lancekeep.Catalog) -> None:
    catalog.drop_namespace("ns", cascade=True, keep=KEEP)
    assert catalog.undrop("ns.t", "back").id.names == ("back",)
    assert catalog.open("back").to_table() == ROWS


@pytest.mark.parametrize("keep", [-1, 0.5, 10**9])
def test_keep_that_a_server_cannot_understand_drops_nothing(catalog: lancekeep.Catalog, keep: float) -> None:
    with pytest.raises(lancekeep.InvalidInput, match="keep"):
        catalog.drop_table("ns.t", keep=keep)
    assert catalog.table_exists("ns.t")


def test_purge_removes_the_files(catalog: lancekeep.Catalog) -> None:
    location = catalog.describe_table("ns.t").uri
    catalog.drop_table("ns.t", keep=KEEP)
    assert catalog.purge("ns.t").id.names == ("ns", "t")
    with pytest.raises(ValueError, match="not found"):
        lance.dataset(location)
    with pytest.raises(lancekeep.TableNotFound):
        catalog.undrop("ns.t")


def test_purge_names_the_clones_unless_forced(catalog: lancekeep.Catalog, local: lancekeep.Catalog) -> None:
    local.clone("ns.t", "ns.clone")
    catalog.drop_table("ns.t", keep=KEEP)
    with pytest.raises(lancekeep.Refused, match=r"ns\.clone"):
        catalog.purge("ns.t")
    catalog.purge("ns.t", force=True)
    assert catalog.list_dropped() == []


def test_protected_objects_are_not_dropped(catalog: lancekeep.Catalog) -> None:
    for protected in ("ns.t", "ns", ""):
        catalog.protect(protected)
        catalog.protect(protected)
        with pytest.raises(lancekeep.Refused, match="protect"):
            catalog.drop_table("ns.t")
        catalog.unprotect(protected)
    with pytest.raises(lancekeep.NotFound):
        catalog.protect("missing")
    catalog.drop_table("ns.t")


def test_long_list_of_dropped_tables_is_read_in_pages(
    front: Front, catalog: lancekeep.Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        catalog.write(f"ns.t{number}", ROWS)
        catalog.drop_table(f"ns.t{number}", keep=KEEP)
    monkeypatch.setattr(rest_dropped, "PAGE", 2)
    front.asked.clear()
    assert [each.id.name for each in catalog.list_dropped("ns")] == [f"t{number}" for number in range(5)]
    assert front.asked == ["list_dropped_tables"] * 3


@pytest.mark.parametrize("operation", ["undrop_table", "purge_table", "protect_object", "unprotect_object"])
def test_change_whose_reply_is_lost_takes_effect_once(front: Front, catalog: lancekeep.Catalog, operation: str) -> None:
    catalog.drop_table("ns.t", keep=KEEP)
    front.losses[operation] = 1
    if operation == "undrop_table":
        assert catalog.undrop("ns.t").id.names == ("ns", "t")
    elif operation == "purge_table":
        assert catalog.purge("ns.t").id.names == ("ns", "t")
    else:
        (catalog.protect if operation == "protect_object" else catalog.unprotect)("ns")
    assert front.asked.count(operation) == 2
    assert len(catalog.list_dropped()) == (operation not in ("undrop_table", "purge_table"))


def test_server_of_another_implementation_has_no_such_operations(tmp_path: Path) -> None:
    with (
        lance.namespace.RestAdapter("dir", {"root": str(tmp_path / "native")}, port=0) as adapter,
        lancekeep.connect(f"http://127.0.0.1:{adapter.port}") as catalog,
    ):
        catalog.write("t", ROWS)
        for change in (
            lambda: catalog.list_dropped(),
            lambda: catalog.undrop("t"),
            lambda: catalog.purge("t"),
            lambda: catalog.protect("t"),
            lambda: catalog.unprotect("t"),
            lambda: catalog.drop_table("t", keep=KEEP),
            lambda: catalog.drop_table("t", keep=0),
        ):
            with pytest.raises(lancekeep.Unsupported, match=f":{adapter.port}"):
                change()
        assert catalog.table_exists("t")


def test_namespace_over_a_server_has_the_operations(front: Front) -> None:
    namespace: Any = lancekeep.RestNamespace(uri=front.uri)
    namespace.drop_table({"id": ["ns", "t"], "context": {"header.x-lancekeep-keep": "1h"}})
    [dropped] = namespace.list_dropped_tables({"id": ["ns"], "limit": 1})["tables"]
    assert dropped["id"] == ["ns", "t"]
    undropped = namespace.undrop_table({"id": ["ns", "t"], "new_table_name": "u"})
    assert undropped["id"] == ["ns", "u"]
    with pytest.raises(api_errors.TableNotFoundError):
        namespace.undrop_table({"id": ["ns", "t"]})


def test_requests_are_checked(front: Front) -> None:
    def ask(path: str, **fields: object) -> tuple[int, str]:
        answer = httpx.post(f"{front.uri}/lancekeep/v1/{path}", json=fields)
        return answer.status_code, answer.json().get("error", "")

    assert ask("table/ns$missing/undrop")[0] == 404
    assert ask("table/ns$t/undrop", new_namespace_id=["ns"])[0] == 400
    assert ask("table/ns$t/undrop", wrong=1)[0] == 400
    assert ask("table/ns$t/purge", force="perhaps")[0] == 400
    assert ask("object/ns$missing/protect")[0] == 404
    listed = httpx.get(f"{front.uri}/lancekeep/v1/object/$/dropped", params={"limit": 0})
    assert listed.status_code == 400
    assert httpx.get(f"{front.uri}/lancekeep/v1/object/$/dropped", params={"page_token": ""}).json() == {"tables": []}
    operations = httpx.post(f"{front.uri}/ListOperations", json={}).json()["operations"]
    assert {"ListDroppedTables", "UndropTable", "PurgeTable", "ProtectObject", "UnprotectObject"} <= set(operations)
