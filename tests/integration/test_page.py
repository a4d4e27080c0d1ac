"""The web page without a browser: routes, permissions, escaping, sign-in."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path

import pyarrow as pa
import pytest
from starlette.testclient import TestClient

from lancekeep import Catalog, connect
from lancekeep.domain.authorization import Action, Grant, Policy, Principal
from lancekeep.domain.errors import NamespaceNotFound, TableNotFound, Unsupported
from lancekeep.domain.identifiers import ObjectId
from lancekeep.entrypoints.page.app import Page
from lancekeep.entrypoints.page.authorized import Access, AuthorizedCatalog, Listing
from lancekeep.entrypoints.page.request import parsed, slug

ROWS = pa.table({"a": [1, 2, 3]})
ADA = Principal("key:ada")


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


def granted(subtree: str, role: Action = Action.READ) -> Access:
    return Access(ADA, Policy((Grant(role, ObjectId.of(subtree), frozenset({ADA.name})),)))


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
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"


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
        grants = tuple(Grant(Action.READ, ObjectId.of(f"t{at}"), frozenset({ADA.name})) for at in (1, 3, 5))
        listing = Listing(catalog, Access(ADA, Policy(grants)))
        assert listing.tables(ObjectId(), None, 2) == (["t1", "t3"], "t3")
        assert listing.tables(ObjectId(), "t3", 2) == (["t5"], None)
