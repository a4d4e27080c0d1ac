"""The web page without a browser: routes, permissions, escaping, sign-in."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from html import unescape
from operator import attrgetter
from pathlib import Path
from threading import Event
from typing import cast
from unittest.mock import Mock

import httpx
import pyarrow as pa
import pytest
from memory_catalogs import World
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from lancekeep import Catalog, StoreUnavailable, connect
from lancekeep.domain.authorization import Grant, Policy, Principal
from lancekeep.domain.catalog import ManifestStoreGuarantees
from lancekeep.domain.errors import NamespaceNotFound, TableNotFound, Unsupported
from lancekeep.domain.identifiers import ObjectId
from lancekeep.domain.rights import ROLES
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace
from lancekeep.entrypoints.page.app import SEARCHES, THREADS, Page
from lancekeep.entrypoints.page.authorized import Access, AuthorizedCatalog, Listing
from lancekeep.entrypoints.page.names import NameIndex, Names
from lancekeep.entrypoints.page.request import parsed, slug
from lancekeep.entrypoints.page.views import catalog as catalog_view
from lancekeep.entrypoints.page.views.catalog import find
from lancekeep.entrypoints.rest.app import create_app
from lancekeep.entrypoints.rest.openapi import document
from lancekeep.entrypoints.rest.settings import ServerSettings

ROWS = pa.table({"a": [1, 2, 3]})
ADA = Principal("key:ada")
HOST = "http://lake.test"


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    with connect(str(tmp_path_factory.mktemp("page") / "lake")) as catalog:
        for namespace in ("ml", "secret"):
            catalog.create_namespace(namespace)
            catalog.write(f"{namespace}.t", ROWS)
        catalog.write("ml.<script>alert(1)<", ROWS)
        yield catalog


@pytest.fixture(scope="module")
def page(catalog: Catalog) -> TestClient:
    return TestClient(Page(catalog))


def granted(subtree: str) -> Access:
    return Access(ADA, Policy((Grant(ROLES["read"], ObjectId.of(subtree), frozenset({ADA.name})),)))


def test_catalog_lists_namespaces_and_tables(page: TestClient) -> None:
    root, ml = page.get("/").text, page.get("/", params={"namespace": "ml"}).text
    assert 'href="/?namespace=ml"' in root
    assert 'href="/t/ml.t"' in ml
    assert "&lt;script&gt;" in ml
    assert "<script>alert" not in ml


def test_page_of_an_unknown_address_is_an_error_page(page: TestClient) -> None:
    for address, status in (("/nope", 404), ("/?namespace=nope", 404), ("/?namespace=a$b", 400), ("/?q=%ff", 400)):
        answer = page.get(address)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "text/html; charset=utf-8"), address
    assert page.post("/").status_code == 405


def test_every_answer_has_the_headers_that_protect_it(page: TestClient) -> None:
    for address in ("/", "/nope"):
        headers = page.get(address).headers
        assert "unsafe" not in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert headers["cache-control"] == "no-store"


def test_pages_of_the_api_lead_to_every_operation_and_model(catalog: Catalog) -> None:
    page, described = TestClient(Page(catalog, has_api=True)), document()
    operations = {
        each["operationId"]: f"<code>{method.upper()} {path}</code>"
        for path, methods in described["paths"].items()
        for method, each in methods.items()
    }
    texts, waiting = {}, ["/"]
    while waiting:
        address = waiting.pop()
        answer = page.get(address)
        assert answer.status_code == 200, address
        texts[address] = answer.text
        linked = {link for link in re.findall(r'href="(/api[^"]*)"', answer.text) if link not in texts}
        waiting += linked - set(waiting)
    for name, route in operations.items():
        assert route in texts["/api"]
        assert route in texts[f"/api?operation={name}"]
    used = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(described)))
    assert {f"/api?model={model}" for model in used} <= set(texts)
    fields = texts["/api?model=DescribeTableRequest"]
    assert "<code>load_detailed_metadata</code>: boolean" in fields
    assert page.get("/api?operation=nope").status_code == page.get("/api?model=%3Cb%3E").status_code == 404


def test_page_without_a_server_has_no_api(page: TestClient) -> None:
    answer = page.get("/api")
    assert (answer.status_code, "`lancekeep serve` has" in unescape(answer.text)) == (404, True)
    assert "/api" not in page.get("/").text


@pytest.mark.parametrize("names", [("ml", "t"), ("a.b",), ("ml", "a.b"), ("é t", "%")])
def test_identifier_in_a_url_is_read_back(names: tuple[str, ...]) -> None:
    assert parsed(slug(names)).names == names


def test_principal_reads_its_subtree_alone(catalog: Catalog) -> None:
    access = granted("ml")
    authorized, listing = AuthorizedCatalog(catalog, access), Listing(catalog, access)
    assert authorized.open("ml.t").count_rows() == 3
    assert authorized.list_namespaces() == ["ml"]
    assert [str(table) for table in listing.all_tables()] == ["ml.<script>alert(1)<", "ml.t"]
    assert listing.namespaces(ObjectId(), None, 100) == (["ml"], None)
    with pytest.raises(NamespaceNotFound) as hidden:
        listing.tables(ObjectId.of("secret"), None, 100)
    with pytest.raises(NamespaceNotFound) as absent:
        listing.tables(ObjectId.of("missing"), None, 100)
    assert str(hidden.value).replace("secret", "missing") == str(absent.value)


def test_principal_without_a_grant_learns_what_it_needs(catalog: Catalog) -> None:
    app = Page(catalog, Policy())

    async def signed_in(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "state": {"principal": ADA}}, receive, send)

    answer = TestClient(signed_in).get("/")
    assert answer.status_code == 403
    assert "ask an administrator for a role" in answer.text
    assert "secret" not in answer.text


@pytest.mark.parametrize(
    "door",
    ["open", "scan", "find_table", "describe_table", "inspect", "tags.list", "branches.list", "versions.history"],
)
def test_hidden_table_looks_like_a_missing_one(catalog: Catalog, door: str) -> None:
    method = attrgetter(door)(AuthorizedCatalog(catalog, granted("ml")))
    errors = []
    for table in ("secret.t", "ml.missing"):
        with pytest.raises(TableNotFound) as caught:
            method(table)
        errors.append(str(caught.value).replace(table, "X"))
    assert errors[0] == errors[1]


@pytest.mark.parametrize("door", ["drop_table", "write", "tags.create", "upkeep", "versions.restore", "data.delete"])
def test_operation_that_changes_something_is_no_part_of_the_page(catalog: Catalog, door: str) -> None:
    with pytest.raises(Unsupported, match="only operations that read"):
        attrgetter(door)(AuthorizedCatalog(catalog, Access()))


def test_listing_of_a_narrow_principal_has_full_pages(tmp_path: Path) -> None:
    with connect(str(tmp_path)) as catalog:
        for at in range(6):
            catalog.declare_table(f"t{at}")
        grants = tuple(Grant(ROLES["read"], ObjectId.of(f"t{at}"), frozenset({ADA.name})) for at in (1, 3, 5))
        listing = Listing(catalog, Access(ADA, Policy(grants)))
        assert listing.tables(ObjectId(), None, 2) == (["t1", "t3"], "t3")
        assert listing.tables(ObjectId(), "t3", 2) == (["t5"], None)


def test_search_finds_tables_by_a_part_of_their_identifiers(page: TestClient) -> None:
    found = page.get("/search", params={"q": "ML.T"}).text
    assert 'href="/t/ml.t"' in found
    assert 'href="/t/secret.t"' not in found
    part = page.get("/search", params={"q": "t", "part": "results"}).text
    assert "<html" not in part
    assert part.count("/t/") == 3
    assert "No table of 3" in page.get("/search", params={"q": "nothing"}).text
    for odd in ("", " ", "\n", "%", "ml$t", "a" * 9000):
        assert page.get("/search", params={"q": odd}).status_code in (200, 400), odd


def test_names_are_read_again_when_they_are_old() -> None:
    """A search of a large catalog answers from the names of before while they are read again."""
    now, tables = [0.0], [ObjectId.of("a")]
    reading, done = Event(), Event()

    class Slow:
        def all_tables(self) -> Iterator[ObjectId]:
            now[0] += 1
            if len(tables) > 1:
                reading.set()
                done.wait(30)
            yield from tables

    index, listing = NameIndex(lambda: now[0]), cast(Listing, Slow())
    assert index.names(ADA, listing).count == 1
    tables.append(ObjectId.of("b"))
    assert index.names(ADA, listing).count == 1
    now[0] += 21
    assert index.names(ADA, listing).count == 1
    assert reading.wait(30)
    assert index.names(ADA, listing).count == 1
    assert index.names(None, cast(Listing, Mock(all_tables=list))).count == 0
    before = set(threading.enumerate())
    done.set()
    for thread in before - {threading.current_thread()}:
        if thread.name.endswith("(_refresh)"):
            thread.join()
    assert index.names(ADA, listing).count == 2


def joined(name: str) -> None:
    """Wait for the threads that run a method."""
    for thread in threading.enumerate():
        if thread.name.endswith(f"({name})"):
            thread.join(30)


def test_first_search_of_a_large_catalog_answers_before_all_names_are_read() -> None:
    now, read, fails = [0.0], Event(), [False]

    class Large:
        def all_tables(self) -> Iterator[ObjectId]:
            for number in range(5000):
                now[0] += number == 4999  # reading these took a second
                yield ObjectId.of(f"t{number}")
            assert read.wait(30)
            if fails[0]:
                raise StoreUnavailable("the storage does not answer")
            yield ObjectId.of("last")

    index, listing = NameIndex(lambda: now[0]), cast(Listing, Large())
    names = index.names(ADA, listing)
    view = find(names, lambda _: True, "t499")
    assert (view.searched, view.is_complete, len(view.tables)) == (5000, False, 11)
    assert find(index.names(ADA, listing), lambda _: True, "last").tables == ()
    read.set()
    joined("_complete")
    found = find(index.names(ADA, listing), lambda _: True, "last")
    assert (found.searched, found.is_complete, found.tables) == (5001, True, (ObjectId.of("last"),))

    fails[0] = True
    assert not index.names(None, listing).is_complete
    joined("_complete")
    fails[0] = False
    assert not index.names(None, listing).is_complete
    joined("_complete")
    assert index.names(None, listing).is_complete


def test_search_says_that_names_are_still_read(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NameIndex, "names", lambda *_: Names(is_complete=False).followed_by([ObjectId.of("ml.t")]))
    page = TestClient(Page(catalog))
    assert "still reads the names" in page.get("/search", params={"q": "t"}).text
    assert "still reads the names" not in page.get("/search").text


def test_searches_leave_threads_to_other_pages(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first searches of a large catalog wait until its names are read."""
    reading, done = Event(), Event()

    def slow(_: Listing) -> Iterator[ObjectId]:
        reading.set()
        done.wait(60)
        yield ObjectId.of("ml.t")

    async def visit() -> tuple[int, set[int]]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(Page(catalog)), base_url=HOST) as visitor:
            searches = [asyncio.create_task(visitor.get("/search?q=t")) for _ in range(THREADS + SEARCHES)]
            try:
                await asyncio.to_thread(reading.wait, 30)
                answer = await asyncio.wait_for(visitor.get("/"), 30)
            finally:
                done.set()
            return answer.status_code, {(await each).status_code for each in searches}

    monkeypatch.setattr(Listing, "all_tables", slow)
    assert asyncio.run(visit()) == (200, {200})


def test_principals_that_read_the_whole_catalog_share_the_names(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Grant(ROLES["read"], ObjectId(), frozenset({"key:ada", "key:bob"}))
    page = Page(catalog, Policy((whole, Grant(ROLES["read"], ObjectId.of("ml"), frozenset({"key:eve"})))))
    reads, read = list[Listing](), Listing.all_tables

    def counted(listing: Listing) -> Iterator[ObjectId]:
        reads.append(listing)
        return read(listing)

    monkeypatch.setattr(Listing, "all_tables", counted)
    monkeypatch.setattr("lancekeep.entrypoints.page.names._SHARE", 1 << 30)
    for name, count in (("key:ada", 3), ("key:bob", 3), ("key:eve", 2)):

        async def signed_in(scope: Scope, receive: Receive, send: Send, name: str = name) -> None:
            await page({**scope, "state": {"principal": Principal(name)}}, receive, send)

        assert f"of {count} tables" in TestClient(signed_in).get("/search?q=t").text
    assert len(reads) == 2


def test_search_checks_permissions_at_the_time_of_the_answer() -> None:
    names = Names.of([ObjectId.of("ml.t"), ObjectId.of("secret.t")])
    assert find(names, lambda table: table.names[0] == "ml", "t").tables == (ObjectId.of("ml.t"),)


@pytest.mark.parametrize("sort", ["size", "change"])
def test_tables_are_sorted_by_their_latest_versions(tmp_path: Path, sort: str) -> None:
    with connect(str(tmp_path)) as catalog:
        for name, rows in (("small", 1), ("large", 50_000), ("middle", 5_000)):
            catalog.write(name, pa.table({"a": range(rows)}))
        catalog.declare_table("declared")
        shown = re.findall(r'href="/t/([a-z]+)"', TestClient(Page(catalog)).get("/", params={"sort": sort}).text)
    expected = ["large", "middle", "small"] if sort == "size" else ["middle", "large", "small"]
    assert shown == [*expected, "declared"]


def test_large_namespace_is_paged_and_never_sorted_by_versions(tmp_path: Path) -> None:
    world = World(ManifestStoreGuarantees(lists_directories=True))
    for at in range(250):
        world.enter(f"n{at:03}" if at < 150 else f"t{at:03}", None if at < 150 else f"t{at:03}.lance")
    browser, address, seen = TestClient(Page(world.catalog)), "/", list[str]()
    while address:
        answer = browser.get(address).text
        seen += re.findall(r'href="/(?:t/|\?namespace=)([nt]\d{3})"', answer)
        following = re.search(r'rel="next" href="([^"]+)"', answer)
        address = unescape(following[1]) if following else ""
    assert seen == [f"{'n' if at < 150 else 't'}{at:03}" for at in range(250)]
    for at in range(250, 360):
        world.enter(f"t{at:03}", f"t{at:03}.lance")
    assert "at most 200 children" in browser.get("/", params={"sort": "size"}).text
    assert browser.get("/", params={"sort": "nope"}).status_code == 400


def test_search_among_many_names_shows_the_first_matches() -> None:
    keys = [ObjectId((f"team_{at // 1000:04}", f"features_{at:06}")) for at in range(100_000)]
    names = Names.of(keys)
    view = find(names, lambda _: True, "features_0999")
    assert (len(view.tables), view.more, view.searched) == (100, False, 100_000)
    assert str(view.tables[0]) == "team_0099.features_099900"
    assert find(names, lambda _: True, "features").more


def test_defect_of_a_view_says_where_its_cause_is(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("secret of the server")

    monkeypatch.setattr(catalog_view, "build", broken)
    app = create_app(CatalogNamespace(catalog), ServerSettings(log_format="json"), others={"": Page(catalog)})
    answer = TestClient(app).get("/", headers={"x-request-id": "r-1"})
    assert answer.status_code == 500
    assert "secret of the server" not in answer.text
    assert "<code>r-1</code>" in answer.text
