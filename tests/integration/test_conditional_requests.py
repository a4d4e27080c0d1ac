"""Entity tags of the server: an answer 304 stands for exactly the answer that the caller has."""

from __future__ import annotations

import json
import random
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import attrs
import httpx
import lance
import lance_namespace as api
import pyarrow as pa
import pytest
from lance.namespace import DirectoryNamespace
from rest_server import SETTINGS, running, serving

import lancekeep
from lancekeep.adapters.authentication.api_keys import KeyFile
from lancekeep.adapters.rest.routes import GET_ROUTES, ROUTES
from lancekeep.domain.errors import LancekeepError
from lancekeep.entrypoints.namespace.catalog_namespace import CatalogNamespace
from lancekeep.entrypoints.rest.app import create_app
from lancekeep.entrypoints.rest.audit import AuditLog
from lancekeep.entrypoints.rest.requests import Call
from lancekeep.entrypoints.rest.security.setup import security_of
from lancekeep.entrypoints.rest.settings import ServerSettings

ROWS = pa.table({"id": [1]})
NAMES = ("a", "b", "t", "batch-describe")
PATHS = (
    "/v1/namespace/$/list",
    "/v1/namespace/a/list",
    "/v1/namespace/$/table/list",
    "/v1/namespace/a/table/list",
    "/v1/namespace/a/table/list?limit=1",
    "/v1/namespace/a/table/list?limit=1&page_token=a",
    "/v1/namespace/a/table/list?include_declared=false",
    "/v1/namespace/a$b/table/list",
    "/v1/table",
    "/v1/table?delimiter=.&include_declared=true",
    "/lancekeep/v1/namespace/$",
    "/lancekeep/v1/namespace/a",
    "/lancekeep/v1/namespace/b",
    "/lancekeep/v1/table/t",
    "/lancekeep/v1/table/batch-describe",
    "/lancekeep/v1/table/a$t?with_table_uri=true",
    "/lancekeep/v1/table/a$t?load_detailed_metadata=true",
    "/lancekeep/v1/table/a$b?check_declared=true",
    "/lancekeep/v1/table/a$t?version=1",
    "/lancekeep/v1/object/$/dropped",
)
GRANTS = (
    [("admin", "", "key:ada"), ("read", "a", "key:bob")],
    [("admin", "", "key:ada"), ("read", "a.t", "key:bob")],
    [("admin", "", "key:ada"), ("read", "", "key:bob")],
    [("read", "a", "key:ada"), ("admin", "b", "key:bob")],
)


def policy(grants: list[tuple[str, str, str]]) -> str:
    return "".join(f'[[grants]]\nrole = "{role}"\non = "{on}"\nprincipals = ["{who}"]\n' for role, on, who in grants)


@attrs.define
class Site:
    """A server with keys and a policy, and the catalog as another process has it."""

    uri: str
    keys: dict[str, str]
    place: Path
    other: lancekeep.Catalog
    performed: list[str]
    client: httpx.Client

    def get(self, who: str, path: str, *tags: str) -> httpx.Response:
        headers = {"x-api-key": self.keys[who]} if who else {}
        return self.client.get(
            self.uri + path, headers={**headers, **({"if-none-match": ", ".join(tags)} if tags else {})}
        )

    def grant(self, grants: list[tuple[str, str, str]]) -> None:
        new = self.place / "policy.new"
        new.write_text(policy(grants))
        new.rename(self.place / "policy.toml")


@contextmanager
def site_of(place: Path, **settings: Any) -> Iterator[Site]:
    file = KeyFile(place / "keys.json")
    keys = {name: file.create(name)[1] for name in ("ada", "bob")}
    (place / "policy.toml").write_text(policy(GRANTS[0]))
    server = ServerSettings(log_level="error", keys=str(file.path), policy=str(place / "policy.toml"))
    security = security_of(server, {})
    performed: list[str] = []

    def counted(call: Call, proceed: Callable[[Call], Any]) -> Any:
        performed.append(call.operation)
        return proceed(call)

    settings = {"root": str(place / "lake"), "storage_options": {"fsync": "false"}, **settings}
    with lancekeep.connect(**settings) as catalog, lancekeep.connect(**settings) as other, httpx.Client() as client:
        app = create_app(
            CatalogNamespace(catalog),
            SETTINGS,
            around=(counted, *security.around),
            middleware=security.middleware,
            audit=AuditLog(place / "audit.jsonl"),
            decisions=security.decisions,
        )
        with running(app) as uri:
            yield Site(uri, keys, place, other, performed, client)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with site_of(tmp_path, mode="v2", commit_store="conditional-put://") as found:
        found.other.create_namespace("a", {"color": "red"})
        found.other.write("a.t", ROWS)
        yield found


def some_change(chance: random.Random, site: Site) -> None:
    """Change the catalog or the policy; what the present state does not permit changes nothing."""
    catalog = site.other
    name = ".".join(chance.choice((("t",), ("a", "t"), ("a", "b"), ("a", "b", "t"), ("batch-describe",))))
    namespace = chance.choice(("a", "b", "a.b"))
    stray = site.place / "lake" / "t.lance"
    changes: tuple[Callable[[], Any], ...] = (
        lambda: catalog.create_namespace(namespace, {"n": str(chance.randrange(3))}),
        lambda: catalog.create_namespace("a", exist_ok=True),
        lambda: catalog.alter_namespace(namespace, {"n": str(chance.randrange(3))}),
        lambda: catalog.drop_namespace(namespace, cascade=True),
        lambda: catalog.write(name, ROWS),
        lambda: catalog.write(name, ROWS, "append"),
        lambda: catalog.declare_table(name),
        lambda: catalog.alter_table(name, {"p": str(chance.randrange(3))}),
        lambda: catalog.drop_table(name),
        lambda: catalog.drop_table(name, keep=timedelta(days=7)),
        lambda: catalog.rename_table(name, chance.choice(("a.t", "a.b", "t", "a.z"))),
        lambda: site.grant(chance.choice(GRANTS)),
        lambda: lance.write_dataset(ROWS, str(stray), mode="overwrite"),
        lambda: shutil.rmtree(stray),
    )
    with suppress(LancekeepError, OSError):
        chance.choice(changes)()


HOMES = {
    "v2": {"mode": "v2", "commit_store": "conditional-put://"},
    "compatible": {"mode": "compatible"},
    "v1": {"mode": "v1"},
    "postgres": {"impl": "postgres"},
    "hive": {"impl": "hive"},
}


def settings_of(home: str, request: pytest.FixtureRequest) -> dict[str, str]:
    """Return how to connect to a new catalog."""
    servers = {"postgres": "postgres_url", "hive": "hive_url"}
    if home not in servers:
        return HOMES[home]
    url = request.getfixturevalue(servers[home])
    return {**HOMES[home], "uri": f"{url}?catalog={uuid4()}" if home == "postgres" else url}


@pytest.mark.parametrize("home", ["v2", "compatible", "v1", "postgres"])
def test_304_stands_for_the_bytes_that_the_caller_has(
    tmp_path: Path, home: str, request: pytest.FixtureRequest
) -> None:
    with site_of(tmp_path, **settings_of(home, request)) as site:
        check_random_changes(site, random.Random(0), 4)


@pytest.mark.parametrize("home", HOMES)
def test_304_stands_for_the_bytes_after_many_changes(tmp_path: Path, home: str, request: pytest.FixtureRequest) -> None:
    for seed in (1, 2):
        place = tmp_path / str(seed)
        place.mkdir()
        with site_of(place, **settings_of(home, request)) as site:
            check_random_changes(site, random.Random(seed), 20)


def check_random_changes(site: Site, chance: random.Random, steps: int) -> None:
    """Change at random; after each change ask every question with every tag that any caller has been given for it."""
    held: dict[str, dict[str, bytes]] = defaultdict(dict)
    for _ in range(steps):
        for _ in range(chance.choice((0, 1, 1, 3, 6))):
            some_change(chance, site)
        for path in PATHS:
            for who in ("ada", "bob"):
                answers = {tag: site.get(who, path, tag) for tag in list(held[path])[-3:]}
                plain = site.get(who, path)
                for tag, answer in answers.items():
                    if plain.status_code != 200:
                        assert (answer.status_code, "etag" in answer.headers) == (plain.status_code, False)
                        continue
                    same = held[path][tag] == plain.content
                    assert answer.status_code == (304 if same else 200), (path, who)
                    assert answer.content == (b"" if same else plain.content)
                    assert answer.headers["etag"] == plain.headers["etag"]
                if plain.status_code == 200:
                    tag = plain.headers["etag"]
                    assert held[path].setdefault(tag, plain.content) == plain.content


KEPT = {
    "/v1/namespace/$/list": ("v2", "compatible", "postgres"),
    "/v1/namespace/a/table/list": ("v2", "compatible", "postgres"),
    "/v1/table": ("v2", "postgres"),
    "/lancekeep/v1/namespace/a": ("v2", "compatible", "postgres"),
    "/lancekeep/v1/table/a$t": ("v2", "compatible", "postgres"),
    "/v1/namespace/a/table/list?include_declared=false": (),
    "/lancekeep/v1/table/a$t?check_declared=true": (),
}
"""The homes where an unchanged answer is not made again, by the path."""


@pytest.mark.parametrize("home", ["v2", "compatible", "postgres"])
def test_an_unchanged_answer_is_not_made_again(tmp_path: Path, home: str, request: pytest.FixtureRequest) -> None:
    with site_of(tmp_path, **settings_of(home, request)) as site:
        site.other.create_namespace("a", {"color": "red"})
        site.other.write("a.t", ROWS)
        for path, homes in KEPT.items():
            check_unchanged_answer(site, path, made_again=home not in homes)


def check_unchanged_answer(site: Site, path: str, *, made_again: bool) -> None:
    plain = site.get("bob", path)
    tag = plain.headers["etag"]
    assert (plain.status_code, plain.headers["cache-control"]) == (200, "private, no-cache")
    assert not tag.startswith("W/")
    site.performed.clear()
    for given in (tag, f"W/{tag}", f'"other", {tag}', "*"):
        again = site.get("bob", path, given)
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
        assert again.headers["vary"] == plain.headers["vary"]
        assert "content-type" not in again.headers
        assert "content-length" not in again.headers
    assert bool(site.performed) == made_again, path
    site.performed.clear()
    site.other.alter_namespace("", {"n": path})
    assert site.get("bob", path, tag).status_code == 304  # made again, with the same bytes
    assert len(site.performed) == 1
    assert site.get("bob", path, '"other"').content == plain.content


def test_a_table_created_again_under_its_name_has_another_tag(site: Site) -> None:
    path = "/lancekeep/v1/table/a$t"
    tag = site.get("ada", path).headers["etag"]
    site.other.drop_table("a.t")
    missing = site.get("ada", path, tag)
    assert (missing.status_code, "etag" in missing.headers) == (404, False)
    site.other.write("a.t", ROWS)
    assert site.get("ada", path, tag).status_code == 200


def test_a_table_reached_by_a_link_has_no_tag(site: Site) -> None:
    path = "/lancekeep/v1/table/a$t"
    plain = site.get("ada", path)
    directory = Path(plain.json()["location"].removeprefix("file://"))
    moved = directory.rename(site.place / "elsewhere")
    directory.symlink_to(moved)
    assert site.get("ada", path, plain.headers["etag"]).status_code == site.get("ada", path).status_code != 304


def test_a_revoked_grant_revokes_the_tag(site: Site) -> None:
    path = "/v1/namespace/a/table/list"
    tag = site.get("bob", path).headers["etag"]
    site.grant([("admin", "", "key:ada")])
    assert site.get("bob", path, tag).status_code == 404
    assert site.get("bob", path, "*").status_code == 404
    assert site.get("", path, tag).status_code == 401
    assert site.get("ada", path, tag).status_code == 304  # the tag is of the bytes, which ada may have


def test_a_describe_by_get_vends_no_credentials(site: Site) -> None:
    path = "/lancekeep/v1/table/a$t"
    headers = {"x-api-key": site.keys["ada"], "content-type": "application/json"}
    refused = site.client.request("GET", site.uri + path, headers=headers, content=b'{"vend_credentials": true}')
    assert refused.status_code == 400
    assert "vend_credentials is always false" in refused.json()["error"]
    assert site.get("ada", f"{path}?vend_credentials=true").status_code == 400
    posted = site.client.post(f"{site.uri}/v1/table/a$t/describe", headers=headers, content=b"{}")
    assert posted.json() == site.get("ada", path).json()
    assert "etag" not in posted.headers


class Leaking(api.LanceNamespace):
    """A namespace that answers with credentials, whatever it is asked."""

    def namespace_id(self) -> str:
        return "leaking"

    def describe_table(self, request: Any) -> Any:
        options = {"secret": "s"}
        if request.version is None:
            return api.DescribeTableResponse(table="t", storage_options=options)
        return {"table": "t", "storage_options": options}


@pytest.mark.parametrize("query", ["", "?version=1"])
def test_the_answer_of_any_namespace_loses_its_credentials(query: str) -> None:
    with serving(Leaking()) as front:
        assert httpx.get(f"{front.uri}/lancekeep/v1/table/t{query}").json() == {"table": "t"}


def test_another_namespace_gets_tags_of_its_answers(tmp_path: Path) -> None:
    native = DirectoryNamespace(root=str(tmp_path))
    with serving(native) as front:
        path = f"{front.uri}/v1/namespace/$/list"
        held = {"if-none-match": httpx.get(path).headers["etag"]}
        assert httpx.get(path, headers=held).status_code == 304
        native.create_namespace(api.CreateNamespaceRequest(id=["a"]))
        assert httpx.get(path, headers=held).json()["namespaces"] == ["a"]
        assert front.asked == ["list_namespaces"] * 3


def test_a_change_during_an_answer_belongs_to_the_next_tag(tmp_path: Path) -> None:
    namespace = lancekeep.DirectoryNamespace(root=str(tmp_path), **{"storage.fsync": "false", "mode": "v2"})
    namespace.catalog.create_namespace("a")
    late: list[str] = ["b"]

    def around(call: Call, proceed: Callable[[Call], Any]) -> Any:
        answer = proceed(call)
        if late:
            namespace.catalog.create_namespace(late.pop())
        return answer

    with running(create_app(namespace, SETTINGS, around=[around], decisions=lambda: None)) as uri:
        first = httpx.get(f"{uri}/v1/namespace/$/list")
        again = httpx.get(f"{uri}/v1/namespace/$/list", headers={"if-none-match": first.headers["etag"]})
    assert first.json()["namespaces"] == ["a"]
    assert (again.status_code, again.json()["namespaces"]) == (200, ["a", "b"])


def test_the_audit_log_has_a_line_of_each_304(site: Site) -> None:
    path = "/lancekeep/v1/table/a$t"
    site.get("bob", path, site.get("bob", path).headers["etag"])
    first, second = map(json.loads, (site.place / "audit.jsonl").read_text().splitlines())
    shown = ("principal", "operation", "object", "decision", "status")
    assert [first[name] for name in shown] == ["key:bob", "DescribeTable", ["a", "t"], "allowed", 200]
    assert [second[name] for name in shown] == ["key:bob", "DescribeTable", ["a", "t"], "allowed", 304]


@pytest.mark.parametrize("given", ['"', "W/", '""', "x" * 1000, '"a" "b"', "**", '"a\tb"'])
def test_any_other_text_matches_no_tag(site: Site, given: str) -> None:
    assert site.get("ada", "/v1/table", given).status_code == 200


def test_the_routes_of_get_are_those_of_the_operations() -> None:
    known = {route.operation: route for route in ROUTES}
    for route in GET_ROUTES:
        assert route.method == "GET"
        assert set(known[route.operation].query) <= set(route.query)
        assert set(route.query) | set(route.fixed) <= set(route.kinds)


def test_the_remembered_tags_are_bounded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lancekeep.entrypoints.rest.conditional.REMEMBERED", 2)
    paths = [f"/v1/namespace/a/table/list?limit={limit}" for limit in range(1, 5)]
    tags = [site.get("ada", path).headers["etag"] for path in paths]
    site.performed.clear()
    assert [site.get("ada", path, tag).status_code for path, tag in zip(paths, tags, strict=True)] == [304] * 4
    assert len(site.performed) > 0
