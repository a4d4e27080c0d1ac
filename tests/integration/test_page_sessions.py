"""Signing in to the page: cookies, other sites, permissions, the one-time URL."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import attrs
import httpx
import pyarrow as pa
import pytest
from rest_server import serving
from starlette.testclient import TestClient

from lancekeep import Catalog, connect
from lancekeep.adapters.authentication.api_keys import KeyFile
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace
from lancekeep.entrypoints.page.app import SEGMENTS, VIEWS, Page
from lancekeep.entrypoints.page.assets import assets
from lancekeep.entrypoints.page.serving import page_of
from lancekeep.entrypoints.page.sessions import LocalSession
from lancekeep.entrypoints.rest.app import create_app
from lancekeep.entrypoints.rest.hold import Hold
from lancekeep.entrypoints.rest.security.setup import security_of
from lancekeep.entrypoints.rest.settings import ServerSettings
from lancekeep.entrypoints.rest.threads import Threads

HOST = "http://lake.test"
OWN = {"origin": HOST}
"""A form of the page itself."""


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    with connect(str(tmp_path_factory.mktemp("sessions") / "lake")) as catalog:
        for namespace in ("ml", "secret"):
            catalog.create_namespace(namespace)
            catalog.write(f"{namespace}.t", pa.table({"a": [1, 2, 3]}))
        catalog.write("secret.gone", pa.table({"a": [1]}))
        catalog.drop_table("secret.gone", keep=3600)
        catalog.clone("secret.t", "ml.copy")
        yield catalog


@attrs.frozen
class Site:
    """A server with keys and a policy.

    Attributes:
        client: A browser without a session; `signed_in` returns one with a session.
        keys: The file of keys.
        key_id: The id of the key of ada.
        ada: The key of ada, who may read ``ml``.
    """

    client: TestClient
    keys: KeyFile
    key_id: str
    ada: str

    def signed_in(self) -> TestClient:
        browser = TestClient(self.client.app, HOST)
        answer = browser.post("/sign-in", data={"credential": self.ada, "next": "/"}, headers=OWN)
        assert answer.status_code == 200, answer.text
        return browser


@pytest.fixture
def site(catalog: Catalog, tmp_path: Path) -> Site:
    keys = KeyFile(tmp_path / "keys.json")
    described, ada = keys.create("ada", ())
    (tmp_path / "policy.toml").write_text('[[grants]]\nrole = "read"\non = "ml"\nprincipals = ["key:ada"]\n')
    settings = ServerSettings(keys=str(tmp_path / "keys.json"), policy=str(tmp_path / "policy.toml"), log_level="error")
    security = security_of(settings, {})
    app = create_app(
        CatalogNamespace(catalog),
        settings,
        around=security.around,
        middleware=security.middleware,
        others=dict.fromkeys(SEGMENTS, page_of(catalog, settings, security)),
    )
    return Site(TestClient(app, HOST), keys, described.id, ada)


def test_page_asks_for_a_credential_and_returns_to_its_address(site: Site) -> None:
    asked = site.client.get("/?namespace=ml", follow_redirects=False)
    assert (asked.status_code, asked.headers["location"]) == (303, f"/sign-in?next={quote('/?namespace=ml', safe='')}")
    form = site.client.get(asked.headers["location"]).text
    assert 'value="/?namespace=ml"' in form
    assert "lake" not in form.replace("Lancekeep", ""), "the root is not for strangers"
    data = {"credential": site.ada, "next": "/?namespace=ml"}
    answer = site.client.post("/sign-in", data=data, headers=OWN, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/?namespace=ml")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert "key:ada" in site.client.get("/?namespace=ml").text


def test_sign_in_returns_to_a_table_whose_name_is_encoded(site: Site) -> None:
    address = "/t/ml.a%3Fb%2541?page=2"
    asked = site.client.get(address, follow_redirects=False)
    assert asked.headers["location"] == f"/sign-in?next={quote(address, safe='')}"
    data = {"credential": site.ada, "next": address}
    answer = site.client.post("/sign-in", data=data, headers=OWN, follow_redirects=False)
    assert answer.headers["location"] == address


def test_cookie_is_secure_if_the_browser_speaks_tls(site: Site) -> None:
    browser = TestClient(site.client.app, "https://lake.test")
    answer = browser.post(
        "/sign-in",
        data={"credential": site.ada, "next": "/"},
        headers={"origin": "https://lake.test"},
        follow_redirects=False,
    )
    assert answer.headers["set-cookie"].startswith("__Host-lancekeep=")
    assert "; secure" in answer.headers["set-cookie"].lower()
    assert browser.get("/").status_code == 200


def test_wrong_credential_opens_nothing(site: Site) -> None:
    for wrong in ("", "nonsense", site.ada[:-1], "é" * 9):
        answer = site.client.post("/sign-in", data={"credential": wrong, "next": "/"}, headers=OWN)
        assert answer.status_code == 401, wrong
        assert "set-cookie" not in answer.headers
    for cookie in ("x", "%%%", "8J-SqQ", site.ada):
        asked = site.client.get("/", headers={"cookie": f"lancekeep={cookie}"}, follow_redirects=False)
        assert asked.status_code == 303, cookie


def test_revoked_key_ends_its_sessions(site: Site) -> None:
    browser = site.signed_in()
    assert browser.get("/", follow_redirects=False).status_code == 200
    site.keys.revoke(site.key_id)
    assert browser.get("/", follow_redirects=False).status_code == 303


def test_signing_out_removes_the_cookie(site: Site) -> None:
    browser = site.signed_in()
    assert browser.post("/sign-out", headers=OWN, follow_redirects=False).status_code == 303
    assert browser.get("/", follow_redirects=False).status_code == 303


@pytest.mark.parametrize(
    "headers",
    [{}, {"origin": "http://evil.test"}, {"origin": "null"}, {"origin": HOST, "sec-fetch-site": "cross-site"}],
    ids=["none", "other", "null", "fetch-metadata"],
)
def test_form_of_another_site_is_refused(site: Site, headers: dict[str, str]) -> None:
    browser = site.signed_in()
    for path in ("/sign-in", "/sign-out"):
        assert browser.post(path, data={"credential": site.ada}, headers=headers).status_code == 403
    assert browser.get("/", follow_redirects=False).status_code == 200


@pytest.mark.parametrize("target", ["//evil.test", "https://evil.test", "/\\evil.test", "/\t/evil.test", "evil", ""])
def test_sign_in_stays_on_this_server(site: Site, target: str) -> None:
    data = {"credential": site.ada, "next": target}
    answer = site.client.post("/sign-in", data=data, headers=OWN, follow_redirects=False)
    assert answer.headers["location"] == "/"


def test_api_takes_no_cookie(site: Site) -> None:
    """A cookie in the API would let other sites send changes."""
    assert site.signed_in().get("/v1/namespace/$/list").status_code == 401


@pytest.mark.parametrize("path", [path for path, _ in VIEWS])
def test_no_view_shows_anything_of_another_subtree(site: Site, path: str) -> None:
    browser = site.signed_in()
    query = {"q": "secret", "a": "secret.t", "b": "ml.t", "namespace": "secret", "from": "1", "to": "1"}
    hidden = browser.get(path.replace("{id}", "secret.t"), params=query)
    missing = browser.get(
        path.replace("{id}", "absent.t"),
        params={name: each.replace("secret", "absent") for name, each in query.items()},
    )
    assert hidden.text.replace("secret", "absent") == missing.text
    assert hidden.status_code == missing.status_code
    assert "secret" not in browser.get(path.replace("{id}", "ml.t"), params={"a": "ml.t", "b": "ml.t"}).text


@pytest.mark.parametrize("path", [path for path, _ in VIEWS if "{id}" in path])
def test_clone_of_a_hidden_table_does_not_name_it(site: Site, path: str) -> None:
    answer = site.signed_in().get(path.replace("{id}", "ml.copy"), params={"from": "1", "to": "1"})
    assert answer.status_code < 500
    assert "secret" not in answer.text


def test_rate_of_principals_does_not_count_styles(catalog: Catalog, tmp_path: Path) -> None:
    """Strangers would use up the rate of all visitors otherwise."""
    KeyFile(tmp_path / "keys.json").create("ada", ())
    settings = ServerSettings(keys=str(tmp_path / "keys.json"), rate=1, burst=1)
    browser = TestClient(page_of(catalog, settings, security_of(settings, {})), HOST)
    assert [browser.get(assets().urls["style"]).status_code for _ in range(5)] == [200] * 5


def test_server_without_authentication_answers_this_machine_alone(catalog: Catalog) -> None:
    settings = ServerSettings()
    app = page_of(catalog, settings, security_of(settings, {}))
    assert TestClient(app, "http://127.0.0.1:2333").get("/").status_code == 200
    assert TestClient(app, "http://rebound.test:2333").get("/").status_code == 403
    framed = TestClient(app, "http://localhost:2333").get("/", headers={"sec-fetch-site": "cross-site"})
    assert framed.status_code == 403
    assert framed.headers["content-type"].startswith("text/html")
    assert "content-security-policy" in framed.headers
    assert "Back to the catalog" in framed.text


def test_view_that_hangs_is_answered_and_known_to_hold_its_thread(tmp_path: Path) -> None:
    catalog, threads = connect(str(tmp_path / "lake")), Threads(2, patience=0.0)
    catalog.write("t", pa.table({"a": [1]}))
    [file] = Path(catalog.open("t").uri.removeprefix("file://")).glob("data/*")
    file.unlink()
    os.mkfifo(file)
    settings = ServerSettings(operation_seconds=1)
    page = page_of(catalog, settings, security_of(settings, {}), threads)
    answer = TestClient(page, "http://127.0.0.1").get("/t/t")
    assert (answer.status_code, "took longer than 1 seconds" in answer.text) == (504, True)
    assert (threads.abandoned(), threads.hold()) == (1, Hold.SOME)
    with file.open("wb"):  # ends the read
        pass


def test_refused_request_of_a_browser_is_answered_with_a_page(catalog: Catalog) -> None:
    busy = ServerSettings(requests=0)
    answers = [TestClient(page_of(catalog, busy, security_of(busy, {})), "http://127.0.0.1").get("/")]
    rated = ServerSettings(rate=1, burst=1)
    visitor = TestClient(page_of(catalog, rated, security_of(rated, {})), "http://127.0.0.1")
    answers += [visitor.get("/") for _ in range(9)][-1:]
    for answer, status in zip(answers, (503, 429), strict=True):
        assert answer.status_code == status
        assert answer.headers["content-type"].startswith("text/html")
        assert int(answer.headers["retry-after"]) >= 1
        assert "Back to the catalog" in answer.text


def test_one_time_url_opens_one_browser(catalog: Catalog) -> None:
    session = LocalSession(Page(catalog))
    browser, other = (TestClient(session, "http://127.0.0.1:5000") for _ in range(2))
    assert browser.get("/").status_code == 403
    assert other.get("/open", params={"token": "é"}).status_code == 403
    opened = browser.get("/open", params={"token": session.token}, follow_redirects=False)
    assert (opened.status_code, opened.headers["location"]) == (303, "/")
    cookie = opened.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert session.token.lower() not in cookie
    assert browser.get("/").status_code == 200
    assert other.get("/open", params={"token": session.token}).status_code == 403
    assert other.get("/").status_code == 403


def test_page_of_another_server_is_read_through_its_api(catalog: Catalog) -> None:
    with serving(CatalogNamespace(catalog)) as front:
        line = [sys.executable, "-m", "lancekeep", "ui", front.uri, "--no-browser"]
        with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                url = process.stdout.readline().split()[-1]
                browser = httpx.Client(follow_redirects=True, timeout=60)
                assert browser.get(url, headers={"host": "rebound.test"}).status_code == 403
                assert 'href="/?namespace=ml"' in browser.get(url).text
                assert 'href="/t/ml.t"' in browser.get(url.partition("/open")[0] + "/?namespace=ml").text
            finally:
                process.terminate()
